//! The screen shows values with their age, and unknown ones as unknown; keys act on what it shows.

use crate::scenes::*;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rankdeck_core::card::Advice;
use rankdeck_core::model::*;
use rankdeck_core::report::{Severity, VerdictKind};
use rankdeck_proto::message::{Counters, Phase, RankSample};
use rankdeck_tui::state::{Inspector, LogScope, Overlay, Tab};
use rankdeck_tui::{ScreenAction, Theme, ViewState};
use rankdeck_types::ids::{Rank, Timestamp};
use ratatui::layout::Rect;

const SIZES: [(u16, u16); 5] = [(60, 16), (80, 24), (100, 30), (120, 40), (200, 60)];

fn draw_at(model: &Model, view: &mut ViewState, size: (u16, u16), now: Timestamp) -> String {
    view.expire(now);
    rows(&cells(model, view, &Theme::dark(), size, now))
}

fn draw(model: &Model, size: (u16, u16)) -> String {
    draw_at(model, &mut ViewState::new(), size, NOW)
}

fn head_of(model: &Model, size: (u16, u16)) -> String {
    head(model, &mut ViewState::new(), size, NOW)
}

fn press(model: &Model, view: &mut ViewState, keys: &str) -> Vec<ScreenAction> {
    press_at(model, view, keys, (80, 24))
}

fn two() -> Model {
    running(&[cpu("node-a", 2), cpu("node-b", 2)])
}

fn pages(model: &mut Model, change: impl Fn(&mut RankSample)) {
    model.ranks.iter_mut().filter_map(|rank| rank.sample.as_mut()).for_each(change);
}

/// No rank has sent a heartbeat for a long time, and no totals have come.
fn stalled(ms: u64, gap_ms: u64) -> Model {
    let mut model = two();
    let counters = Counters { env_step: 1_228_800, train_iter: 600, ..Counters::default() };
    model.latest = Some(LatestTotals {
        counters,
        steps_per_s: Some(1632.0),
        at: ago(ms),
        gap_ms,
        ..LatestTotals::default()
    });
    model.progress.as_mut().unwrap().at = ago(ms);
    pages(&mut model, |sample| sample.page.as_mut().unwrap().heartbeat_age_ms = ms);
    model
}

#[test]
fn stalled_values_fall_to_0_with_age() {
    let mut shown = Transcript::default();
    for size in SIZES {
        let (late, fresh) = (head_of(&stalled(14_000, 900), size), head_of(&stalled(400, 900), size));
        assert!(late.contains(" 0 steps/s") && !late.contains("1.63k steps/s"), "{size:?}\n{late}");
        assert!(fresh.contains("1.63k steps/s"), "{size:?}\n{fresh}");
        shown.add(&format!("stalled for 14 s, {size:?}"), &late);
    }
    // Reports every 10 s are not late yet, and an evaluation is progress.
    shown.add("reports every 10 s", &head_of(&stalled(14_000, 10_000), (80, 24)));
    let mut evaluates = stalled(14_000, 900);
    evaluates.ranks[0].sample.as_mut().unwrap().page.as_mut().unwrap().heartbeat_age_ms = 20;
    shown.add("rank 0 evaluates", &head_of(&evaluates, (100, 30)));
    insta::assert_snapshot!(shown.0);
}

/// Rank 0's totals continue while those of a disconnected host do not arrive: both are shown, with ages.
#[test]
fn late_totals_show_their_age() {
    let mut model = two();
    let counters = Counters { env_step: 1_400_000, train_iter: 700, ..Counters::default() };
    model.latest = Some(LatestTotals {
        counters,
        steps_per_s: Some(1632.0),
        at: ago(300),
        gap_ms: 900,
        ..LatestTotals::default()
    });
    model.progress.as_mut().unwrap().at = ago(22_000);
    let mut shown = Transcript::default();
    for size in [(80, 24), (120, 40), (200, 60)] {
        let late = head_of(&model, size);
        assert!(late.contains("1.40M of 2.00M") && late.contains("22s"), "{size:?}\n{late}");
        shown.add(&format!("{size:?}"), &late);
    }
    model.progress.as_mut().unwrap().at = ago(300);
    assert!(!head_of(&model, (120, 40)).contains("22s"));
    insta::assert_snapshot!(shown.0);
}

#[test]
fn ranks_of_silent_host_are_marked_after_two_samples() {
    let mut model = two();
    let mut shown = Transcript::default();
    let fresh = SIZES.map(|size| head_of(&model, size));
    for (ms, silent) in [(1_900, false), (2_100, true), (22_000, true), (900_000, true)] {
        model.hosts[1].last_message_at = Some(ago(ms));
        for (size, fresh) in SIZES.iter().zip(&fresh) {
            let drawn = draw(&model, *size);
            let rows = drawn.lines().filter(|row| row.contains(" node-b ") && row.contains(" L ? ")).count();
            // On the smallest screen only some rows are ranks.
            assert!(if silent { rows >= 1 } else { rows == 0 }, "{ms} {size:?}\n{drawn}");
            assert_eq!(head_of(&model, *size) != *fresh, silent, "{ms} {size:?}\n{drawn}");
        }
        shown.add(&format!("{ms} ms"), &draw(&model, (80, 24)));
    }
    model.hosts[1].last_message_at = Some(ago(22_000));
    assert!(draw(&model, (120, 40)).contains("silent 22s"));
    let mut strip = running(&["a", "b", "c", "d", "e", "f", "g", "h"].map(|name| gpu(name, 8)));
    strip.hosts[2].last_message_at = Some(ago(5_000));
    assert!(draw(&strip, (120, 40)).contains("RRRRRRRR LLLLLLLL RRRRRRRR"));
    let mut view = ViewState::new();
    press(&strip, &mut view, "/silent\n");
    assert!(draw_at(&strip, &mut view, (120, 40), NOW).contains("8 of 64"), "the filter applies to it");
    insta::assert_snapshot!(shown.0);
}

#[test]
fn ok_status_needs_moving_ranks() {
    type Change = fn(&mut Model);
    let cases: [(&str, Change); 6] = [
        ("no status pages", |model| pages(model, |sample| sample.page = None)),
        ("ranks in the rendezvous", |model| {
            pages(model, |sample| {
                let page = sample.page.as_mut().unwrap();
                (page.phase, page.env_step, page.train_iter) = (Phase::Rendezvous, 0, 0);
                page.collective = Default::default();
            });
            model.ranks.iter_mut().for_each(|rank| rank.life = RankLife::Spawned);
        }),
        ("no samples", |model| model.ranks.iter_mut().for_each(|rank| rank.sample = None)),
        ("no heartbeat for 12 s", |model| {
            pages(model, |sample| sample.page.as_mut().unwrap().heartbeat_age_ms = 12_000);
        }),
        ("rank 2 is not started", |model| model.ranks[2].life = RankLife::Pending),
        ("no message from node-a for 9 s", |model| model.hosts[0].last_message_at = Some(ago(9_000))),
    ];
    let status = |model: &Model, size| {
        let mut view = ViewState::new();
        let buffer = cells(model, &mut view, &Theme::dark(), size, NOW);
        rows_in(&buffer, view.geometry.status)
    };
    let mut shown = Transcript::default();
    shown.add("all ranks move", &status(&two(), (80, 24)));
    for (case, change) in cases {
        let mut model = two();
        change(&mut model);
        for size in SIZES {
            let (calm, changed) = (status(&two(), size), status(&model, size));
            assert!(calm != changed && !changed.trim().is_empty(), "{case} {size:?}\n{changed}");
        }
        shown.add(case, &status(&model, (80, 24)));
    }
    insta::assert_snapshot!(shown.0);
}

#[test]
fn non_finite_value_is_shown_and_counted() {
    let mut shown = Transcript::default();
    for (bad, word) in [(f64::NAN, "nan"), (f64::INFINITY, "inf"), (f64::NEG_INFINITY, "-inf")] {
        let mut model = two();
        let series = model.scalars.get_mut("losses/value_loss").unwrap();
        let x = series.points().last().unwrap().place.step;
        (0..3).for_each(|i| series.push(place(x + f64::from(i)), bad));
        for size in &SIZES[1..] {
            let drawn = draw(&model, *size);
            assert!(drawn.contains(&format!("value_loss {word}")), "{size:?}\n{drawn}");
            assert!(drawn.contains("1.23M (3 "), "{size:?}\n{drawn}");
        }
        shown.add(word, &head_of(&model, (80, 24)));
        let mut view = ViewState::new();
        press(&model, &mut view, "2");
        let drawn = draw_at(&model, &mut view, (120, 40), NOW);
        let title = drawn.lines().find(|row| row.contains("value_loss") && row.contains(word));
        shown.add("its chart", title.unwrap_or_else(|| panic!("{drawn}")));
    }
    insta::assert_snapshot!(shown.0);
}

#[test]
fn ui_13_keys_act_on_the_shown_rank() {
    let (model, mut shown) = (two(), Transcript::default());
    for (key, check) in [
        (
            "\n",
            (|view| matches!(view.overlay(), Some(Overlay::Inspect(Inspector { rank: Rank(2), .. }))))
                as fn(&ViewState) -> bool,
        ),
        (" ", |view| view.marked.contains(&Rank(2)) && view.marked.len() == 1),
        ("l", |view| {
            view.tab == Tab::Logs && view.log.scope == LogScope::Selected && view.selected == Some(Rank(2))
        }),
    ] {
        for filter in ["/host:node-b\n", "/!node-a\n", "/rank:2\n"] {
            let mut view = ViewState::new();
            press(&model, &mut view, filter);
            let row = draw_at(&model, &mut view, (80, 24), NOW);
            assert!(row.lines().any(|line| line.contains("▸    2 node-b")), "the row is marked\n{row}");
            press(&model, &mut view, key);
            assert!(check(&view), "{filter:?} {key:?}");
        }
        // Nothing is shown: nothing is done, and a toast gives the reason.
        let mut view = ViewState::new();
        press(&model, &mut view, &format!("/unknown\n{key}"));
        assert!(view.overlays.is_empty() && view.marked.is_empty() && view.tab == Tab::Overview);
        shown.add(key, &toasts(&view));
    }
    let mut view = ViewState::new();
    press(&model, &mut view, "5j\n\n");
    assert!(
        matches!(view.overlay(), Some(Overlay::Inspect(Inspector { rank: Rank(2), .. }))),
        "a host's own ranks"
    );
    insta::assert_snapshot!(shown.0);
}

fn headings(model: &Model, size: (u16, u16)) -> String {
    let drawn = draw(model, size);
    drawn.lines().find(|line| line.contains("RANK") && line.contains("STATE")).unwrap_or_default().to_string()
}

#[test]
fn ui_14_columns_do_not_move_with_values() {
    for machines in [[cpu("node-a", 4), cpu("node-b", 4)], [gpu("node-a", 4), gpu("node-b", 4)]] {
        let calm = running(&machines);
        let mut busy = calm.clone();
        for (i, rank) in busy.ranks.iter_mut().enumerate() {
            rank.steps_per_s = Some(123_456.7 * i as f64);
            rank.pid = Some(4_194_303);
            let Some(sample) = rank.sample.as_mut() else { continue };
            (sample.cpu_percent, sample.rss) = (1600.0, 99 << 30);
            let page = sample.page.as_mut().unwrap();
            (page.phase, page.train_iter, page.env_step) = (Phase::Checkpoint, 1_234_567, 1_999_999);
            page.collective.entered = 123_456_789;
            page.collective.call.op = "reduce_scatter_tensor".into();
            page.collective.age_ms = 3_599_000;
        }
        let mut idle = calm.clone();
        pages(&mut idle, |sample| sample.page.as_mut().unwrap().collective = Default::default());
        let mut silent = calm.clone();
        silent.hosts[1].last_message_at = Some(ago(60_000));
        for size in SIZES {
            let expected = headings(&calm, size);
            assert!(!expected.is_empty());
            for other in [&busy, &idle, &silent] {
                assert_eq!(headings(other, size), expected, "{size:?}");
            }
        }
    }
}

#[test]
fn red_drops_count_lost_records_only() {
    let mut model = two();
    model.drops = DataLoss { log_lines: 3406, gaps: 2, joins: 1, history: 900, ..DataLoss::default() };
    assert!(!draw(&model, (80, 24)).contains("drops"), "all of it is on the hosts, or was requested again");
    model.drops.malformed = 3;
    assert!(draw(&model, (80, 24)).contains("drops 3 "));
}

#[test]
fn alert_starts_with_cause_and_names_key() {
    let advice = |text: &str, command: &str| Advice { text: text.into(), command: command.into() };
    let cases = [
        (
            VerdictKind::Frozen,
            "rank 3 on node-b is suspended by SIGSTOP",
            "suspended by SIGSTOP",
            advice("continue it, on node-b", "kill -CONT 1602345"),
            "d c: ",
        ),
        (
            VerdictKind::Behind,
            "rank 3 on node-b burns CPU in its phase learn and has not entered all_reduce grad #12042, in which 3 ranks wait since 6.2 s",
            "burns CPU in its phase learn",
            advice("read its log", "rankdeck logs simulated-20261122-184415 --rank 3"),
            "d l: ",
        ),
        (
            VerdictKind::Dead,
            "rank 3 was killed by SIGKILL (signal 9)",
            "was killed by SIGKILL (signal 9)",
            advice("restart from the latest checkpoint", "rankdeck restart x"),
            "r: ",
        ),
        (
            VerdictKind::Straggler,
            "rank 3 on node-b slows everybody down by 1.6 times",
            "slows everybody down by 1.6 times",
            advice("x", ""),
            "",
        ),
    ];
    for (kind, reason, point, action, key) in cases {
        let mut model = two();
        let mut report = verdict(3, "node-b", kind, reason);
        if key.is_empty() {
            report.severity = Severity::Amber;
        }
        report.card.actions = vec![action];
        model.verdicts.push(report);
        for size in SIZES {
            let drawn = draw(&model, size);
            let rows: Vec<&str> = drawn.lines().collect();
            let at = rows.iter().position(|row| row.contains("rank 3 on node-b: ")).unwrap();
            let alarm = rows[at..at + 3].iter().map(|row| row.trim()).collect::<Vec<_>>().join(" ");
            // The key that opens the evidence stands between the lines.
            let alarm = alarm.replace("d why", "").split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(alarm.contains(point), "{size:?}\n{drawn}");
            assert!(alarm.contains(key), "{size:?} {key}\n{drawn}");
            assert_eq!(alarm.matches("rank 3 on node-b").count(), 1, "shown once\n{drawn}");
        }
    }
}

#[test]
fn card_offers_only_keys_of_its_advice() {
    let mut model = two();
    let mut frozen = verdict(3, "node-b", VerdictKind::Frozen, "rank 3 is stopped");
    let (text, command) = ("continue it".into(), "kill -CONT 1602345".into());
    frozen.card.actions = vec![Advice { text, command }];
    model.verdicts.push(frozen);
    let footer = |model: &Model| {
        let mut view = ViewState::new();
        press(model, &mut view, "d");
        let drawn = draw_at(model, &mut view, (100, 30), NOW);
        drawn.lines().rev().find(|line| line.contains("esc ")).unwrap().to_owned()
    };
    let offers = |footer: &str, key: &str| footer.split("   ").any(|hint| hint.trim().starts_with(key));
    let alone = footer(&model);
    assert!(offers(&alone, "c ") && offers(&alone, "t "), "{alone}");
    assert!(!offers(&alone, "d ") && !offers(&alone, "s "), "{alone}");
    model.verdicts.push(verdict(1, "node-a", VerdictKind::Straggler, "rank 1 is slow"));
    assert!(offers(&footer(&model), "d "), "the next verdict");
    insta::assert_snapshot!(format!("{}\n{}", alone.trim(), footer(&model).trim()));
}

#[test]
fn one_failing_rank_is_visible_among_many() {
    let names: Vec<&'static str> = (0..512).map(|i| &*format!("h{i:03}").leak()).collect();
    for (hosts, each) in [(128, 8), (16, 64), (512, 8), (1, 1024)] {
        let machines: Vec<Machine> = names[..hosts].iter().map(|name| gpu(name, each)).collect();
        let mut model = running(&machines);
        let rank = hosts as u32 * each - each / 2 - 1;
        let host = names[hosts - 1];
        for size in SIZES {
            model.verdicts.clear();
            assert!(!draw(&model, size).contains('Z'));
            model.verdicts.push(verdict(rank, host, VerdictKind::Frozen, "is stopped"));
            let drawn = draw(&model, size);
            let strip = |row: &&str| {
                row.trim_matches(['│', ' ']).chars().all(|c| "RZ ".contains(c)) && row.contains('Z')
            };
            assert!(
                drawn.split_whitespace().collect::<Vec<_>>().join(" ").contains(&format!("{rank} {host} ")),
                "the row comes first\n{drawn}"
            );
            if drawn.contains("RRRR") {
                assert!(drawn.lines().any(|row| strip(&row)), "{size:?} the strip shows it\n{drawn}");
            }
        }
    }
}

#[test]
fn strip_follows_filter_and_groups_ranks() {
    let names: Vec<&'static str> = (0..128).map(|i| &*format!("h{i:03}").leak()).collect();
    let machines: Vec<Machine> = names.iter().map(|name| gpu(name, 8)).collect();
    let model = running(&machines);
    let strip = |row: &&str| row.contains("RR") && row.chars().all(|c| "R │".contains(c));
    let letters =
        |drawn: &str| -> usize { drawn.lines().filter(strip).map(|row| row.matches('R').count()).sum() };
    let mut view = ViewState::new();
    let all = draw_at(&model, &mut view, (120, 40), NOW);
    assert!((200..1024).contains(&letters(&all)), "several ranks per letter\n{all}");
    press(&model, &mut view, "/host:h056\n");
    let some = draw_at(&model, &mut view, (120, 40), NOW);
    assert_eq!(letters(&some), 8, "{some}");
    let legend = |drawn: &str| {
        let at = drawn.lines().position(|row| strip(&row)).unwrap();
        drawn.lines().nth(at - 1).unwrap().to_owned()
    };
    insta::assert_snapshot!(format!("{}\n{}", legend(&all).trim(), legend(&some).trim()));
}

#[test]
fn alt_and_unknown_keys_do_nothing() {
    let (model, mut shown) = (two(), Transcript::default());
    for key in ['D', 'x', 'X', 'q', 'r', 'H'] {
        let mut view = ViewState::new();
        rankdeck_tui::layout(&model, &mut view, Rect::new(0, 0, 80, 24));
        let with = KeyEvent::new(KeyCode::Char(key), KeyModifiers::ALT);
        assert_eq!(rankdeck_tui::on_key(&model, &mut view, with, NOW), []);
        assert!(view.overlays.is_empty() && !view.toasts.is_empty(), "{key}");
    }
    for (page, key) in [("2", "Q"), ("3", "/"), ("5", "/"), ("7", "/"), ("4", "Q"), ("1", "Q")] {
        let mut view = ViewState::new();
        press(&model, &mut view, page);
        assert_eq!(press(&model, &mut view, key), [], "{page}");
        assert!(view.overlays.is_empty(), "{page}");
        shown.add(&format!("{page} {key}"), &toasts(&view));
    }
    insta::assert_snapshot!(shown.0);
}

#[test]
fn stalled_rank_shows_no_speed() {
    let mut model = stalled(14_000, 900);
    model.ranks.iter_mut().for_each(|rank| rank.steps_per_s = Some(108.9));
    let drawn = draw(&model, (80, 24));
    assert!(!drawn.contains("108.9"), "{drawn}");
    model = two();
    model.ranks.iter_mut().for_each(|rank| rank.steps_per_s = Some(108.9));
    assert!(draw(&model, (80, 24)).contains("108.9"));
}

#[test]
fn events_page_shows_full_text_and_dropped_count() {
    let mut model = two();
    let text = format!("behind: rank 6 {} all_reduce END", "burns CPU in its phase learn ".repeat(8));
    model.history.push_back(HistoryLine::new(1, ago(100), EventTone::Bad, text));
    model.drops.history = 812;
    let mut view = ViewState::new();
    press(&model, &mut view, "6");
    for size in SIZES {
        let drawn = draw_at(&model, &mut view, size, NOW);
        assert!(drawn.contains("all_reduce END") && drawn.contains(" 812 "), "{drawn}");
    }
}

#[test]
fn card_log_key_opens_log_of_its_rank() {
    let model = behind();
    for page in ["1", "2", "3", "4", "5", "6"] {
        let mut view = ViewState::new();
        press(&model, &mut view, page);
        press(&model, &mut view, "dl");
        assert_eq!((view.tab, view.selected, view.overlays.len()), (Tab::Logs, Some(Rank(3)), 0), "{page}");
        assert_eq!(view.log.scope, LogScope::Selected);
    }
}
