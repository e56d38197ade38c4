use super::*;
use rankdeck_charts::axis::Axis;
use rankdeck_core::compare::ComparedRun;
use rankdeck_core::run_summary::RunSummary;
use rankdeck_proto::process::{GpuUser, ProcessAction, ProcessName};
use rankdeck_proto::run_entry::HostSnapshot;

const NOW: Timestamp = Timestamp(1000);

fn home() -> Home {
    let mut home = Home::new([("gpu-a".to_owned(), "a".to_owned()), ("gpu-b".to_owned(), "b".to_owned())]);
    let row = |run: &str, phase, note: &str| {
        let hosts = vec!["gpu-a".to_owned()];
        let summary = RunSummary { note: note.into(), hosts, ..RunSummary::default() };
        RunRow { run: run.into(), phase, summary, recorded: true, ..RunRow::default() }
    };
    let runs = vec![
        row("new", RunPhase::Running, "warm"),
        row("old", RunPhase::Ended, "cold"),
        row("older", RunPhase::Ended, "cold"),
        row("kept", RunPhase::Recorded, ""),
    ];
    home.update(HomeEvent::Runs(runs), NOW);
    let experiment = |path: &str| ExperimentFile { path: path.into(), ..ExperimentFile::default() };
    home.update(
        HomeEvent::Experiments(vec![experiment("configs/a.toml"), experiment("configs/b.toml")]),
        NOW,
    );
    home
}

fn press(home: &Home, view: &mut HomeView, keys: &str) -> Vec<HomeAction> {
    view.settle(home);
    let mut actions = Vec::new();
    for c in keys.chars() {
        let code = match c {
            '\n' => KeyCode::Enter,
            '\t' => KeyCode::Tab,
            '\x1b' => KeyCode::Esc,
            c => KeyCode::Char(c),
        };
        actions = on_key(home, view, KeyEvent::from(code), NOW);
    }
    actions
}

fn args(action: &HomeAction) -> String {
    match action {
        HomeAction::OnTerminal { args, .. } | HomeAction::InBackground { args, .. } => args.join(" "),
        other => format!("{other:?}"),
    }
}

#[test]
fn enter_attaches_and_replays_a_recorded_run() {
    let (mut home, mut view) = (home(), HomeView::default());
    assert_eq!(args(&press(&home, &mut view, "\n")[0]), "attach new");
    assert_eq!(args(&press(&home, &mut view, "j\n")[0]), "attach old");
    assert_eq!(args(&press(&home, &mut view, "a")[0]), "attach old");
    assert_eq!(args(&press(&home, &mut view, "G\n")[0]), "replay kept");
    assert!(press(&home, &mut view, "A").is_empty(), "no login prompts");
    home.hosts[1].error = Some(rankdeck_types::error::HintedError::new("passphrase required", "press A"));
    assert_eq!(args(&press(&home, &mut view, "A")[0]), "ps", "which prompts");
}

#[test]
fn mouse_selects_opens_scrolls_and_changes_the_page() {
    let (home, mut view) = (home(), HomeView::default());
    let area = ratatui::layout::Rect::new(0, 0, 100, 30);
    let mouse = |view: &mut HomeView, kind, column, row| {
        layout(&home, view, area);
        on_mouse(&home, view, MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE }, NOW)
    };
    let left = MouseEventKind::Down(MouseButton::Left);
    mouse(&mut view, left, 10, 0);
    let second = view.runs.list.area.y + 1;
    assert!(mouse(&mut view, left, 10, second).is_empty(), "a click selects");
    assert_eq!(view.runs.selected(&home).map(|row| row.run.as_str()), Some("old"));
    assert_eq!(args(&mouse(&mut view, left, 10, second)[0]), "attach old", "another one opens");
    mouse(&mut view, MouseEventKind::ScrollDown, 10, second);
    assert_eq!(view.runs.selected(&home).map(|row| row.run.as_str()), Some("kept"));
    assert!(mouse(&mut view, left, 10, 28).is_empty(), "below the list is nothing");
    click(&home, &mut view, "3 fleet");
    assert_eq!(view.page, HomePage::Fleet);
}

#[test]
fn stop_is_confirmed_and_only_for_live_runs() {
    let (home, mut view) = (home(), HomeView::default());
    assert!(press(&home, &mut view, "x").is_empty() && !view.overlays.is_empty());
    assert!(press(&home, &mut view, "n").is_empty() && view.overlays.is_empty());
    assert_eq!(args(&press(&home, &mut view, "xy")[0]), "stop new");
    assert!(press(&home, &mut view, "jx").is_empty() && view.overlays.is_empty());
    assert_eq!(view.toasts.len(), 1, "the reason is shown");
}

#[test]
fn selection_is_a_name_and_hidden_runs_are_not_acted_on() {
    let (mut home, mut view) = (home(), HomeView::default());
    press(&home, &mut view, "j");
    home.runs.insert(0, RunRow { run: "newest".into(), phase: RunPhase::Running, ..RunRow::default() });
    assert_eq!(args(&press(&home, &mut view, "\n")[0]), "attach old");
    press(&home, &mut view, "/warm\n");
    assert_eq!(args(&press(&home, &mut view, "\n")[0]), "attach new", "the first that shows");
    press(&home, &mut view, "\x1b/nothing\n");
    assert!(press(&home, &mut view, "\n").is_empty());
    press(&home, &mut view, "\x1b/!cold\n");
    assert_eq!(view.runs.names(&home).len(), 3);
}

#[test]
fn marked_runs_are_removed_only_if_all_have_ended() {
    let (home, mut view) = (home(), HomeView::default());
    press(&home, &mut view, "j  ");
    assert_eq!(view.runs.marks.len(), 2);
    assert_eq!(args(&press(&home, &mut view, "dy")[0]), "rm old older --yes");
    press(&home, &mut view, "g d");
    assert!(view.overlays.is_empty(), "one of them runs");
}

#[test]
fn launch_has_overrides_and_excluded_hosts() {
    let (home, mut view) = (home(), HomeView::default());
    press(&home, &mut view, "3j ");
    assert_eq!(view.fleet.chosen.iter().collect::<Vec<_>>(), ["gpu-b"]);
    let draft = press(&home, &mut view, "n");
    assert_eq!(draft, [HomeAction::Preview { path: "configs/a.toml".into(), typed: String::new() }]);
    let typed = press(&home, &mut view, "j\nrun.total_steps=9 a=b");
    assert_eq!(
        typed,
        [HomeAction::Preview { path: "configs/b.toml".into(), typed: "run.total_steps=9 a=b".into() }]
    );
    assert_eq!(
        args(&press(&home, &mut view, "\t")[0]),
        "check configs/b.toml --set run.total_steps=9 --set a=b"
    );
    assert_eq!(
        args(&press(&home, &mut view, "\n")[0]),
        "run configs/b.toml --set run.total_steps=9 --set a=b --exclude gpu-a"
    );
}

#[test]
fn read_only_changes_nothing() {
    let (home, mut view) = (home(), HomeView { read_only: true, ..HomeView::default() });
    for keys in ["x", "r", "n", "2\n", "1jd", "P"] {
        press(&home, &mut view, keys);
        assert!(view.overlays.is_empty(), "{keys}");
    }
    assert_eq!(args(&press(&home, &mut view, "g\n")[0]), "attach new");
}

#[test]
fn unknown_key_shows_a_toast() {
    let (home, mut view) = (home(), HomeView::default());
    press(&home, &mut view, "Z");
    assert!(!view.toasts.is_empty());
    let alt = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::ALT);
    assert!(on_key(&home, &mut view, alt, NOW).is_empty(), "Alt is not Esc and a letter");
}

#[test]
fn file_1_report_and_export_get_their_names_from_the_owner() {
    let (mut home, mut view) = (home(), HomeView::default());
    let written = |action: &HomeAction| match action {
        HomeAction::WriteFiles { args, stem, files } => (args.join(" "), stem.clone(), files.len()),
        other => panic!("{other:?}"),
    };
    let report = ("report kept".to_owned(), "kept".to_owned(), 1);
    assert_eq!(written(&press(&home, &mut view, "Gv")[0]), report);
    home.compared.runs = vec![ComparedRun { run: "kept".into(), ..ComparedRun::default() }];
    let export = ("compare kept --apart".to_owned(), "compared".to_owned(), 3);
    assert_eq!(written(&press(&home, &mut view, "4te")[0]), export);
}

#[test]
fn marked_runs_are_compared_in_list_order() {
    let (home, mut view) = (home(), HomeView::default());
    assert_eq!(press(&home, &mut view, "c"), [HomeAction::Compare(vec!["new".into()])]);
    assert_eq!(view.page, HomePage::Compare);
    let compared = press(&home, &mut view, "1jj  c");
    assert_eq!(compared, [HomeAction::Compare(vec!["older".into(), "kept".into()])], "{:?}", view.runs.marks);
    press(&home, &mut view, "xyts");
    let options = &view.compare.options;
    assert!(options.log && options.ungrouped && options.axis == Axis::Time && options.weight > 0.0);
    assert!(press(&home, &mut view, "e").is_empty(), "no runs were read yet");
}

/// The screen, row by row.
fn rows(home: &Home, view: &mut HomeView) -> Vec<String> {
    use ratatui::{Terminal, backend::TestBackend};
    let mut terminal = Terminal::new(TestBackend::new(100, 30)).unwrap();
    terminal
        .draw(|frame| {
            layout(home, view, frame.area());
            super::view(home, view, &Theme::dark(), NOW, frame);
        })
        .unwrap();
    let buffer = terminal.backend().buffer();
    (0..30).map(|y| (0..100).map(|x| buffer[(x, y)].symbol()).collect()).collect()
}

/// Position of a text on the screen.
fn place(home: &Home, view: &mut HomeView, needle: &str) -> (u16, u16) {
    let found = rows(home, view).into_iter().enumerate().find(|(_, line)| line.contains(needle));
    let (y, line) = found.unwrap_or_else(|| panic!("no {needle}"));
    (line[..line.find(needle).unwrap()].chars().count() as u16 + 1, y as u16)
}

fn click(home: &Home, view: &mut HomeView, needle: &str) -> Vec<HomeAction> {
    let (column, row) = place(home, view, needle);
    let kind = MouseEventKind::Down(MouseButton::Left);
    on_mouse(home, view, MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE }, NOW)
}

#[test]
fn footer_keys_choices_and_hints_are_clickable() {
    let (home, mut view) = (home(), HomeView::default());
    assert_eq!(args(&click(&home, &mut view, "enter attach")[0]), "attach new");
    click(&home, &mut view, "x stop");
    assert!(matches!(view.overlays.top(), Some(HomeOverlay::Confirm(_))));
    assert_eq!(click(&home, &mut view.clone(), "y stop"), press(&home, &mut view.clone(), "y"));
    assert!(click(&home, &mut view, "n cancel").is_empty() && view.overlays.is_empty());
    click(&home, &mut view, "? help");
    let before = view.overlays.clone();
    assert!(matches!(before.top(), Some(HomeOverlay::Help(_))));
    let wheel =
        MouseEvent { kind: MouseEventKind::ScrollDown, column: 50, row: 9, modifiers: KeyModifiers::NONE };
    on_mouse(&home, &mut view, wheel, NOW);
    assert!(
        matches!(view.overlays.top(), Some(HomeOverlay::Help(_))) && view.overlays != before,
        "it scrolls"
    );
    click(&home, &mut view, "filter: ");
    assert!(!view.overlays.is_empty(), "a click on the box does nothing");
    click(&home, &mut view, "rankdeck");
    assert!(view.overlays.is_empty(), "a click outside closes it");
    click(&home, &mut view, "2 experiments");
    click(&home, &mut view, "configs/b.toml");
    click(&home, &mut view, "configs/b.toml");
    assert!(matches!(view.overlays.top(), Some(HomeOverlay::Launch(_))), "a second click opens the form");
    let launched = click(&home, &mut view, "enter launches");
    assert_eq!(args(&launched[0]), "run configs/b.toml");
}

#[test]
fn help_page_runs_the_selected_command() {
    let (mut home, mut view) = (home(), HomeView::default());
    let output = JobOutput { title: "stop old".into(), ..JobOutput::default() };
    home.update(HomeEvent::JobEnded { job: 0, output }, NOW);
    press(&home, &mut view, "?last command\n");
    assert!(matches!(view.overlays.top(), Some(HomeOverlay::Output(_))), "{:?}", view.overlays);
    assert_eq!(press(&home, &mut view, "q?refresh\n"), [HomeAction::Refresh]);
}

#[test]
fn own_gpu_processes_are_queried_and_signaled() {
    let (mut home, mut view) = (home(), HomeView::default());
    let user = |pid: u32, user: &str, own: bool| GpuUser {
        pid,
        start: 9,
        own,
        user: user.into(),
        command: "python train.py".into(),
        run: None,
    };
    let users = vec![user(7, "eve", false), user(8, "me", true)];
    let snapshot = Box::new(HostSnapshot { users, ..HostSnapshot::default() });
    home.update(HomeEvent::Snapshot { host: 1, snapshot }, NOW);
    let own = ProcessName { rank: None, pid: 8, start: 9 };
    let request = |action| HomeAction::Process { host: "gpu-b".into(), process: own, action };
    assert!(press(&home, &mut view, "3jp").is_empty());
    assert!(press(&home, &mut view, "K").is_empty());
    assert!(view.toasts.last().unwrap().text.contains("eve"), "{:?}", view.toasts);
    assert_eq!(press(&home, &mut view, "pje"), [request(ProcessAction::Environment)]);
    assert!(press(&home, &mut view, "pjT").is_empty(), "a question comes first");
    let Some(HomeOverlay::Confirm(question)) = view.overlays.top() else { panic!("{:?}", view.overlays) };
    let text = question.text();
    assert!(text[0].contains("pid 8 on gpu-b: python train.py"), "{text:?}");
    assert_eq!(press(&home, &mut view, "y"), [request(ProcessAction::Signal { signal: 15 })]);
    view.read_only = true;
    assert!(press(&home, &mut view, "pjK").is_empty() && view.overlays.is_empty());
}

#[test]
fn processes_without_rows_offer_no_signals() {
    let (mut home, mut view) = (home(), HomeView::default());
    let update = |home: &mut Home, users: Vec<GpuUser>| {
        let snapshot = Box::new(HostSnapshot { users, ..HostSnapshot::default() });
        home.update(HomeEvent::Snapshot { host: 1, snapshot }, NOW);
    };
    update(&mut home, Vec::new());
    press(&home, &mut view, "3jp");
    let shown = rows(&home, &mut view).join("\n");
    assert!(shown.contains("esc closes"), "{shown}");
    assert!(!shown.contains("SIGTERM") && !shown.contains("env vars"), "{shown}");
    update(&mut home, vec![GpuUser { pid: 8, own: true, ..GpuUser::default() }]);
    let shown = rows(&home, &mut view).join("\n");
    assert!(shown.contains("T SIGTERM"), "{shown}");
}

#[test]
fn keys_have_one_meaning_on_a_page_and_a_text() {
    assert!(KEYS.flaws().is_empty(), "{:?}", KEYS.flaws());
    for page in HomePage::ALL {
        let keys = KEYS.iter().filter(|binding| binding.applies_in(page)).flat_map(|binding| binding.keys);
        let mut seen: Vec<KeyEvent> = Vec::new();
        for key in keys {
            assert!(!seen.contains(key), "{key:?} on {}", page.name());
            seen.push(*key);
        }
    }
}
