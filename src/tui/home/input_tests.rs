use super::super::model::{Experiment, HomeEvent, RunRow};
use super::*;
use rankdeck_core::run_summary::RunSummary;

const NOW: Timestamp = Timestamp(1000);

fn home() -> Home {
    let mut home = Home::new([("gpu-a".to_owned(), "a".to_owned()), ("gpu-b".to_owned(), "b".to_owned())]);
    let row = |run: &str, life, note: &str| {
        let hosts = vec!["gpu-a".to_owned()];
        let summary = RunSummary { note: note.into(), hosts, ..RunSummary::default() };
        RunRow { run: run.into(), life, summary, recorded: true, ..RunRow::default() }
    };
    let runs = vec![
        row("new", Life::Running, "warm"),
        row("old", Life::Over, "cold"),
        row("older", Life::Over, "cold"),
        row("kept", Life::Recorded, ""),
    ];
    home.update(HomeEvent::Runs(runs), NOW);
    let experiment = |path: &str| Experiment { path: path.into(), ..Experiment::default() };
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
fn enter_attaches_to_the_selected_run_and_replays_what_no_host_has() {
    let (mut home, mut view) = (home(), HomeView::default());
    assert_eq!(args(&press(&home, &mut view, "\n")[0]), "attach new");
    assert_eq!(args(&press(&home, &mut view, "j\n")[0]), "attach old");
    assert_eq!(args(&press(&home, &mut view, "a")[0]), "attach old");
    assert_eq!(args(&press(&home, &mut view, "G\n")[0]), "replay kept");
    assert!(press(&home, &mut view, "A").is_empty(), "no host asks anything");
    home.hosts[1].trouble =
        Some(rankdeck_types::error::HintedError::new("a passphrase is asked for", "press A"));
    assert_eq!(args(&press(&home, &mut view, "A")[0]), "ps", "which asks what hosts ask");
}

#[test]
fn the_mouse_selects_opens_scrolls_and_changes_the_page() {
    let (home, mut view) = (home(), HomeView::default());
    let area = ratatui::layout::Rect::new(0, 0, 100, 30);
    let mouse = |view: &mut HomeView, kind, column, row| {
        super::super::layout(&home, view, area);
        on_mouse(&home, view, MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE }, NOW)
    };
    let left = MouseEventKind::Down(MouseButton::Left);
    mouse(&mut view, left, 10, 0);
    let second = view.list_y + 1;
    assert!(mouse(&mut view, left, 10, second).is_empty(), "a click selects");
    assert_eq!(view.selected_run(&home).map(|row| row.run.as_str()), Some("old"));
    assert_eq!(args(&mouse(&mut view, left, 10, second)[0]), "attach old", "another one opens");
    mouse(&mut view, MouseEventKind::ScrollDown, 10, second);
    assert_eq!(view.selected_run(&home).map(|row| row.run.as_str()), Some("kept"));
    assert!(mouse(&mut view, left, 10, 28).is_empty(), "below the list is nothing");
    let tab = (0..100).find(|x| super::super::draw::tab_at(&home, *x) == Some(Page::Fleet)).unwrap();
    mouse(&mut view, left, tab, 1);
    assert_eq!(view.page, Page::Fleet);
}

#[test]
fn a_stop_is_asked_about_and_only_a_run_that_goes_on_can_be_stopped() {
    let (home, mut view) = (home(), HomeView::default());
    assert!(press(&home, &mut view, "x").is_empty() && view.overlay.is_some());
    assert!(press(&home, &mut view, "n").is_empty() && view.overlay.is_none());
    assert_eq!(args(&press(&home, &mut view, "xy")[0]), "stop new");
    assert!(press(&home, &mut view, "jx").is_empty() && view.overlay.is_none());
    assert_eq!(view.toast.as_ref().map(|(text, ..)| text.as_str()), Some("this run is over"));
}

#[test]
fn a_selection_is_a_name_and_a_filter_never_acts_on_what_it_hides() {
    let (mut home, mut view) = (home(), HomeView::default());
    press(&home, &mut view, "j");
    home.runs.insert(0, RunRow { run: "newest".into(), life: Life::Running, ..RunRow::default() });
    assert_eq!(args(&press(&home, &mut view, "\n")[0]), "attach old");
    press(&home, &mut view, "/warm\n");
    assert_eq!(args(&press(&home, &mut view, "\n")[0]), "attach new", "the first that shows");
    press(&home, &mut view, "\x1b/nothing\n");
    assert!(press(&home, &mut view, "\n").is_empty());
    press(&home, &mut view, "\x1b/!cold\n");
    assert_eq!(view.runs(&home).len(), 3);
}

#[test]
fn marked_runs_are_removed_together_and_only_when_all_are_over() {
    let (home, mut view) = (home(), HomeView::default());
    press(&home, &mut view, "j  ");
    assert_eq!(view.marks.len(), 2);
    assert_eq!(args(&press(&home, &mut view, "dy")[0]), "rm old older --yes");
    press(&home, &mut view, "g d");
    assert!(view.overlay.is_none(), "one of them runs");
}

#[test]
fn a_launch_has_its_changes_and_the_chosen_hosts() {
    let (home, mut view) = (home(), HomeView::default());
    press(&home, &mut view, "3j ");
    assert_eq!(view.chosen.iter().collect::<Vec<_>>(), ["gpu-b"]);
    let draft = press(&home, &mut view, "n");
    assert_eq!(draft, [HomeAction::Draft { path: "configs/a.toml".into(), typed: String::new() }]);
    let typed = press(&home, &mut view, "j\nrun.total_steps=9 a=b");
    assert_eq!(
        typed,
        [HomeAction::Draft { path: "configs/b.toml".into(), typed: "run.total_steps=9 a=b".into() }]
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
        assert!(view.overlay.is_none(), "{keys}");
    }
    assert_eq!(args(&press(&home, &mut view, "g\n")[0]), "attach new");
}

#[test]
fn what_no_key_does_is_said() {
    let (home, mut view) = (home(), HomeView::default());
    press(&home, &mut view, "Z");
    assert!(view.toast.is_some());
    let alt = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::ALT);
    assert!(on_key(&home, &mut view, alt, NOW).is_empty(), "Esc and a letter in one is no quit");
}

#[test]
fn marked_runs_are_compared_in_the_order_of_the_list() {
    let (home, mut view) = (home(), HomeView::default());
    assert_eq!(press(&home, &mut view, "c"), [HomeAction::Compare(vec!["new".into()])]);
    assert_eq!(view.page, Page::Compare);
    let compared = press(&home, &mut view, "1jj  c");
    assert_eq!(compared, [HomeAction::Compare(vec!["older".into(), "kept".into()])], "{:?}", view.marks);
    press(&home, &mut view, "xyts");
    assert!(view.looks.log && view.looks.apart && view.looks.axis == Axis::Time && view.looks.weight > 0.0);
    assert!(press(&home, &mut view, "e").is_empty(), "nothing was read yet");
}

/// The screen, row by row.
fn rows(home: &Home, view: &mut HomeView) -> Vec<String> {
    use ratatui::{Terminal, backend::TestBackend};
    let mut terminal = Terminal::new(TestBackend::new(100, 30)).unwrap();
    terminal
        .draw(|frame| {
            super::super::layout(home, view, frame.area());
            super::super::view(home, view, &crate::Theme::dark(), NOW, frame);
        })
        .unwrap();
    let buffer = terminal.backend().buffer();
    (0..30).map(|y| (0..100).map(|x| buffer[(x, y)].symbol()).collect()).collect()
}

/// Where a text stands on the screen.
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
fn keys_of_the_footer_answers_and_hints_can_be_pressed() {
    let (home, mut view) = (home(), HomeView::default());
    assert_eq!(args(&click(&home, &mut view, "enter attach")[0]), "attach new");
    click(&home, &mut view, "x stop");
    assert!(matches!(view.overlay, Some(Overlay::Confirm { .. })));
    assert_eq!(click(&home, &mut view.clone(), "y stop it"), press(&home, &mut view.clone(), "y"));
    assert!(click(&home, &mut view, "n go back").is_empty() && view.overlay.is_none());
    click(&home, &mut view, "? help");
    assert!(matches!(view.overlay, Some(Overlay::Help(0))));
    let wheel =
        MouseEvent { kind: MouseEventKind::ScrollDown, column: 50, row: 9, modifiers: KeyModifiers::NONE };
    on_mouse(&home, &mut view, wheel, NOW);
    assert!(matches!(view.overlay, Some(Overlay::Help(3))), "{:?}", view.overlay);
    click(&home, &mut view, "keys on runs");
    assert!(view.overlay.is_some(), "on the box itself nothing happens");
    click(&home, &mut view, "rankdeck");
    assert!(view.overlay.is_none(), "beside it, it closes");
    click(&home, &mut view, "2 experiments");
    click(&home, &mut view, "configs/b.toml");
    click(&home, &mut view, "configs/b.toml");
    assert!(matches!(view.overlay, Some(Overlay::Launch(_))), "a click on the selected one prepares it");
    let launched = click(&home, &mut view, "enter launches");
    assert_eq!(args(&launched[0]), "run configs/b.toml");
}

#[test]
fn processes_on_gpus_are_reached_where_they_are_ones_own() {
    use crate::home::HomeEvent;
    use rankdeck_proto::fleet::HostLook;
    use rankdeck_proto::process::{GpuUser, ProcessAction, ProcessName};
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
    let look = Box::new(HostLook { users, ..HostLook::default() });
    home.update(HomeEvent::Looked { host: 1, look }, NOW);
    let own = ProcessName { rank: None, pid: 8, start: 9 };
    let reach = |action| HomeAction::Reach { host: "gpu-b".into(), process: own, action };
    assert!(press(&home, &mut view, "3jp").is_empty());
    assert!(press(&home, &mut view, "K").is_empty());
    assert!(view.toast.as_ref().unwrap().0.contains("belongs to eve"), "{:?}", view.toast);
    assert_eq!(press(&home, &mut view, "pje"), [reach(ProcessAction::Environment)]);
    assert!(press(&home, &mut view, "pjT").is_empty(), "it is asked first");
    let Some(Overlay::Confirm { lines, .. }) = &view.overlay else { panic!("{:?}", view.overlay) };
    assert!(lines[0].contains("pid 8 on gpu-b: python train.py"), "{lines:?}");
    assert_eq!(press(&home, &mut view, "y"), [reach(ProcessAction::Signal { signal: 15 })]);
    view.read_only = true;
    assert!(press(&home, &mut view, "pjK").is_empty() && view.overlay.is_none());
    assert!(view.toast.as_ref().unwrap().0.contains("read-only"), "{:?}", view.toast);
}

#[test]
fn where_no_process_is_on_a_gpu_nothing_is_offered_for_one() {
    use crate::home::HomeEvent;
    use rankdeck_proto::fleet::HostLook;
    use rankdeck_proto::process::GpuUser;
    let (mut home, mut view) = (home(), HomeView::default());
    let looked = |home: &mut Home, users: Vec<GpuUser>| {
        home.update(
            HomeEvent::Looked { host: 1, look: Box::new(HostLook { users, ..HostLook::default() }) },
            NOW,
        );
    };
    looked(&mut home, Vec::new());
    press(&home, &mut view, "3jp");
    let shown = rows(&home, &mut view).join("\n");
    assert!(shown.contains("no process is on a GPU here") && shown.contains("esc closes"), "{shown}");
    assert!(!shown.contains("SIGTERM") && !shown.contains("environment"), "{shown}");
    looked(&mut home, vec![GpuUser { pid: 8, own: true, ..GpuUser::default() }]);
    let shown = rows(&home, &mut view).join("\n");
    assert!(shown.contains("T SIGTERM"), "{shown}");
}
