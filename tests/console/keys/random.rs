//! Arbitrary models and inputs: nothing panics, and everything is on the screen.

use super::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

/// Scenes and mutations of them that the core could produce, however unlikely.
fn models() -> impl Strategy<Value = Model> {
    let base = prop_oneof![
        Just(Model::default()),
        Just(on_the_way()),
        Just(host_key()),
        Just(four()),
        Just(many()),
        Just(behind()),
        Just(dead()),
        Just(over()),
        Just(over_with_survivors()),
        Just(running(&[cpu("big", 200)])),
    ];
    (base, any::<u64>(), any::<u8>(), ".{0,40}", any::<f64>()).prop_map(|(mut model, n, cut, text, x)| {
        let states = [
            RunState::Connecting,
            RunState::Launching,
            RunState::Running,
            RunState::Draining,
            RunState::Restarting,
            RunState::Over,
        ];
        if n & 1 == 1 {
            model.run.state = states[(n >> 8) as usize % 6];
        }
        if n & 2 == 2 {
            model.ranks.truncate(usize::from(cut) % 9);
        }
        if n & 4 == 4 {
            model.hosts.truncate(usize::from(cut) % 3);
        }
        if n & 8 == 8 {
            model.run.reason = text.repeat(1 + usize::from(cut % 9));
            model.run.total_steps = Some(n);
            for rank in &mut model.ranks {
                rank.host.clone_from(&text);
                rank.steps_per_s = Some(x);
                if let Some(page) = rank.sample.as_mut().and_then(|sample| sample.page.as_mut()) {
                    page.env_step = n;
                    page.collective.entered = n;
                    page.phase_age_ms = n;
                }
                rank.log.lines.push_back(HeldLine::new(n, text.clone()));
            }
        }
        if n & 16 == 16
            && let Some(progress) = &mut model.progress
        {
            progress.totals.env_step = n;
            progress.totals.duration_s = x;
            progress.steps_per_s = Some(x);
            progress.eta_s = Some(x);
        }
        if n & 32 == 32 {
            for eval in &mut model.evals {
                eval.return_mean = x;
            }
            for series in model.scalars.values_mut() {
                series.push(place(f64::MAX), f64::MAX);
                series.push(place(f64::INFINITY), f64::MIN);
            }
        }
        if n & 64 == 64 {
            model.verdicts.push(verdict(n as u32, &text, VerdictKind::Desync, &text));
        }
        for host in &mut model.hosts {
            if n & 128 == 128 {
                host.last_message_at = Some(Timestamp(n));
                host.clock_offset_s = x;
                host.name.clone_from(&text);
                if let Some(sample) = &mut host.sample {
                    sample.cpu_percent = x as f32;
                    sample.memory_total = 0;
                }
            }
        }
        model
    })
}

fn inputs() -> impl Strategy<Value = Vec<(u8, u16, u16)>> {
    prop::collection::vec((any::<u8>(), 0u16..300, 0u16..120), 0..14)
}

/// `PROPTEST_CASES` cases, or few enough for every run of the tests.
fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(64);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn ui_11_nothing_panics(
        model in models(), later in models(), keys in inputs(), w in 1u16..300, h in 1u16..120, glyphs in 0usize..3
    ) {
        let theme = Theme::dark().with_glyphs([Glyphs::Braille, Glyphs::Block, Glyphs::Ascii][glyphs]);
        let area = Rect::new(0, 0, w, h);
        let mut view = ViewState::new();
        draw(&model, &mut view, &theme, area);
        for (n, x, y) in keys {
            // Keys of the table, in their order, then characters, clicks and wheels.
            let all: Vec<_> = TABLE.iter().flat_map(|binding| binding.keys).collect();
            match all.get(usize::from(n)) {
                Some(key) => {
                    rankdeck_tui::on_key(&model, &mut view, **key, NOW);
                }
                None if n % 3 == 0 => {
                    rankdeck_tui::on_key(&model, &mut view, KeyEvent::from(KeyCode::Char(n as char)), NOW);
                }
                None => {
                    let kind = if n % 3 == 1 { MouseEventKind::Down(MouseButton::Left) } else { MouseEventKind::ScrollDown };
                    let mouse = MouseEvent { kind, column: x, row: y, modifiers: KeyModifiers::NONE };
                    rankdeck_tui::on_mouse(&model, &mut view, mouse, NOW);
                }
            }
            rankdeck_tui::on_paste(&mut view, "a\tb", NOW);
            draw(&model, &mut view, &theme, area);
        }
        // The model changes under the view, with and without a layout between.
        let mut terminal = Terminal::new(TestBackend::new(w, h)).unwrap();
        terminal.draw(|frame| rankdeck_tui::view(&later, &view, &theme, NOW, frame)).unwrap();
        draw(&later, &mut view, &theme, Rect::new(0, 0, h, w.min(120)));
    }

    #[test]
    fn ui_8_every_rectangle_lies_on_the_screen(model in models(), w in 1u16..300, h in 1u16..120, tab in 0usize..6) {
        let mut view = ViewState::new();
        view.tab = Tab::ALL[tab];
        let area = Rect::new(0, 0, w, h);
        rankdeck_tui::layout(&model, &mut view, area);
        let geo = &view.geometry;
        let parts = [geo.title, geo.tabs, geo.progress, geo.totals, geo.status, geo.footer, geo.pane(Pane::Ranks), geo.pane(Pane::Charts), geo.pane(Pane::Log),
            geo.pane(Pane::Evals), geo.pane(Pane::Hosts), geo.pane(Pane::Events)];
        for (i, part) in parts.iter().enumerate() {
            prop_assert_eq!(part.intersection(area).area(), part.area(), "part {} of {:?}", i, geo);
            for other in &parts[i + 1..] {
                prop_assert!(part.is_empty() || other.is_empty() || part.intersection(*other).is_empty(), "{:?}", geo);
            }
        }
    }
}
