//! Keys and the mouse: what is typed changes what is selected, or becomes an action.

use super::keys::{self, Command};
use super::model::{Home, Life, RunRow};
use super::processes;
use super::state::{HomeAction, HomeView, Input, Launch, Overlay, Page, left_out};
use crate::chart_view::Axis;
use crate::theme::Role;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words::plural;
use ratatui::layout::Position;

/// Longest text that can be typed.
const TYPED: usize = 2000;
/// Weights of the past that `s` goes through.
const WEIGHTS: [f64; 6] = [0.0, 0.3, 0.6, 0.8, 0.9, 0.99];
/// Rows of a turn of the wheel.
const WHEEL: i8 = 3;

/// A key.
pub fn on_key(home: &Home, view: &mut HomeView, key: KeyEvent, now: Timestamp) -> Vec<HomeAction> {
    if key.modifiers.contains(KeyModifiers::ALT) {
        return Vec::new();
    }
    if let Some(overlay) = view.overlay.take() {
        return in_overlay(home, view, overlay, key, now);
    }
    if view.filtering {
        match key.code {
            KeyCode::Enter => view.filtering = false,
            KeyCode::Esc => (view.filtering, view.filter) = (false, String::new()),
            _ => edit(&mut view.filter, key),
        }
        view.settle(home);
        return Vec::new();
    }
    let Some(binding) = keys::find(key, view.page) else {
        view.say(format!("no key does that here; ? shows the keys of {}", view.page.name()), Role::Dim, now);
        return Vec::new();
    };
    if let Some(why) = (binding.disabled)(home, view) {
        view.say(why, Role::Warn, now);
        return Vec::new();
    }
    carry_out(home, view, binding.command, now)
}

/// Text from the clipboard goes where text is typed.
pub fn on_paste(view: &mut HomeView, text: &str) {
    let line: String = text.chars().filter(|c| !c.is_control()).take(TYPED).collect();
    match &mut view.overlay {
        Some(Overlay::Launch(launch)) => launch.typed.push_str(&line),
        Some(Overlay::Input(input)) => input.typed.push_str(&line),
        None if view.filtering => view.filter.push_str(&line),
        _ => {}
    }
}

/// A click selects a row, another one opens it; keys of the footer can be pressed; the wheel moves.
pub fn on_mouse(home: &Home, view: &mut HomeView, mouse: MouseEvent, now: Timestamp) -> Vec<HomeAction> {
    let at = Position { x: mouse.column, y: mouse.row };
    if view.overlay.is_some() {
        return over(home, view, mouse.kind, at, now);
    }
    match mouse.kind {
        MouseEventKind::ScrollDown => step(home, view, isize::from(WHEEL)),
        MouseEventKind::ScrollUp => step(home, view, -isize::from(WHEEL)),
        MouseEventKind::Down(MouseButton::Left) if mouse.row == 1 => {
            if let Some(page) = super::draw::tab_at(home, mouse.column) {
                view.page = page;
            }
        }
        MouseEventKind::Down(MouseButton::Left) => {
            if let Some(Some(key)) = super::draw::key_at(home, view, at) {
                return on_key(home, view, key, now);
            }
            let Some(row) = super::draw::name_at(home, view, mouse.row) else { return Vec::new() };
            let (_, at) = view.list(home);
            let again = at.and_then(|at| view.list(home).0.get(at).cloned()) == Some(row.clone());
            view.select(Some(row));
            if again && view.page != Page::Compare {
                return carry_out(home, view, Command::Open, now);
            }
            return drafted(home, view);
        }
        _ => {}
    }
    drafted(home, view)
}

/// The mouse while something lies over the page: answers and hints are pressed, and beside what is only read
/// a click closes it.
fn over(
    home: &Home,
    view: &mut HomeView,
    kind: MouseEventKind,
    at: Position,
    now: Timestamp,
) -> Vec<HomeAction> {
    let read = matches!(view.overlay, Some(Overlay::Help(_) | Overlay::Said(_)));
    let turned = match kind {
        MouseEventKind::ScrollDown => Some(KeyCode::Down),
        MouseEventKind::ScrollUp => Some(KeyCode::Up),
        _ => None,
    };
    if let Some(code) = turned.filter(|_| read) {
        return (0..WHEEL).flat_map(|_| on_key(home, view, KeyEvent::from(code), now)).collect();
    }
    match (kind, super::draw::key_at(home, view, at)) {
        (MouseEventKind::Down(MouseButton::Left), Some(Some(key))) => on_key(home, view, key, now),
        (MouseEventKind::Down(MouseButton::Left), None) if read => {
            view.overlay = None;
            Vec::new()
        }
        _ => Vec::new(),
    }
}

fn edit(text: &mut String, key: KeyEvent) {
    match key.code {
        KeyCode::Backspace => {
            text.pop();
        }
        KeyCode::Char('u') if key.modifiers.contains(KeyModifiers::CONTROL) => text.clear(),
        KeyCode::Char('w') if key.modifiers.contains(KeyModifiers::CONTROL) => {
            let kept = text.trim_end().rfind(' ').map_or(0, |at| at + 1);
            text.truncate(kept);
        }
        KeyCode::Char(c) if !key.modifiers.contains(KeyModifiers::CONTROL) && text.len() < TYPED => {
            text.push(c);
        }
        _ => {}
    }
}

fn is_ctrl(key: KeyEvent, c: char) -> bool {
    key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char(c)
}

fn in_overlay(
    home: &Home,
    view: &mut HomeView,
    overlay: Overlay,
    key: KeyEvent,
    now: Timestamp,
) -> Vec<HomeAction> {
    if is_ctrl(key, 'c') || key.code == KeyCode::Esc {
        return Vec::new();
    }
    let scrolled = |at: usize| match key.code {
        KeyCode::Down | KeyCode::Char('j') => Some(at + 1),
        KeyCode::Up | KeyCode::Char('k') => Some(at.saturating_sub(1)),
        KeyCode::PageDown | KeyCode::Char(' ') => Some(at + 10),
        KeyCode::PageUp => Some(at.saturating_sub(10)),
        KeyCode::Home | KeyCode::Char('g') => Some(0),
        _ => None,
    };
    match overlay {
        Overlay::Help(at) => view.overlay = scrolled(at).map(Overlay::Help),
        Overlay::Said(at) => view.overlay = scrolled(at).map(Overlay::Said),
        Overlay::Confirm { lines, yes, then } => match key.code {
            KeyCode::Char('y') => return vec![then],
            KeyCode::Char('n' | 'q') | KeyCode::Enter => {}
            _ => view.overlay = Some(Overlay::Confirm { lines, yes, then }),
        },
        Overlay::Processes { host, selected } => {
            return processes::on_key(home, view, (host, selected), key, now);
        }
        Overlay::Input(mut input) => match key.code {
            KeyCode::Enter if input.typed.trim().is_empty() => {}
            KeyCode::Enter => {
                let typed = input.typed.split_whitespace().map(str::to_owned);
                let args = input.args.into_iter().chain(typed).collect();
                return vec![HomeAction::OnTerminal { args, pause: true }];
            }
            _ => {
                edit(&mut input.typed, key);
                view.overlay = Some(Overlay::Input(input));
            }
        },
        Overlay::Launch(mut launch) => match key.code {
            KeyCode::Enter if view.read_only => view.say("read-only: nothing is launched", Role::Warn, now),
            KeyCode::Enter => {
                let args = launch_args("run", home, view, &launch);
                return vec![HomeAction::OnTerminal { args, pause: false }];
            }
            KeyCode::Tab => {
                let args = check_args(&launch);
                let title = format!("check {}", launch.path);
                view.overlay = Some(Overlay::Launch(launch));
                return vec![HomeAction::InBackground { title, args }];
            }
            _ => {
                edit(&mut launch.typed, key);
                let (path, typed) = (launch.path.clone(), launch.typed.clone());
                view.overlay = Some(Overlay::Launch(launch));
                return vec![HomeAction::Draft { path, typed }];
            }
        },
    }
    Vec::new()
}

fn sets(launch: &Launch) -> impl Iterator<Item = String> + '_ {
    launch.typed.split_whitespace().flat_map(|set| ["--set".to_owned(), set.to_owned()])
}

fn launch_args(verb: &str, home: &Home, view: &HomeView, launch: &Launch) -> Vec<String> {
    let excluded = left_out(home, view).flat_map(|name| ["--exclude".to_owned(), name.to_owned()]);
    [verb.to_owned(), launch.path.clone()].into_iter().chain(sets(launch)).chain(excluded).collect()
}

fn check_args(launch: &Launch) -> Vec<String> {
    ["check".to_owned(), launch.path.clone()].into_iter().chain(sets(launch)).collect()
}

fn step(home: &Home, view: &mut HomeView, by: isize) {
    let (names, at) = view.list(home);
    let Some(last) = names.len().checked_sub(1) else { return };
    let to = at.map_or(0, |at| at.saturating_add_signed(by).min(last));
    view.select(names.into_iter().nth(to));
}

/// The plan of the experiment that is selected now.
fn drafted(home: &Home, view: &HomeView) -> Vec<HomeAction> {
    let known = |path: &String| {
        home.draft.as_ref().is_some_and(|draft| draft.path == *path && draft.typed.is_empty())
    };
    match &view.experiment {
        Some(path) if view.page == Page::Experiments && !known(path) => {
            vec![HomeAction::Draft { path: path.clone(), typed: String::new() }]
        }
        _ => Vec::new(),
    }
}

fn go(home: &Home, view: &mut HomeView, page: Page) -> Vec<HomeAction> {
    view.page = page;
    view.settle(home);
    drafted(home, view)
}

/// Gives the terminal to a command.
fn on_terminal(args: &[&str], pause: bool) -> Vec<HomeAction> {
    vec![HomeAction::OnTerminal { args: args.iter().map(|arg| (*arg).to_owned()).collect(), pause }]
}

/// Runs a command beside the screen.
fn in_background(title: impl Into<String>, args: &[&str]) -> HomeAction {
    HomeAction::InBackground { title: title.into(), args: args.iter().map(|arg| (*arg).to_owned()).collect() }
}

fn carry_out(home: &Home, view: &mut HomeView, command: Command, now: Timestamp) -> Vec<HomeAction> {
    let selected = view.selected_run(home).cloned().unwrap_or_default();
    let run = selected.run.as_str();
    let at = Page::ALL.iter().position(|page| *page == view.page).unwrap_or(0);
    match command {
        Command::Help => view.overlay = Some(Overlay::Help(0)),
        Command::Quit => return vec![HomeAction::Quit],
        Command::Suspend => return vec![HomeAction::Suspend],
        Command::Redraw => return vec![HomeAction::Redraw],
        Command::Refresh => {
            view.say("all hosts are asked again", Role::Dim, now);
            return vec![HomeAction::Refresh];
        }
        Command::Go(page) => return go(home, view, page),
        Command::NextPage => return go(home, view, Page::ALL[(at + 1) % Page::ALL.len()]),
        Command::PreviousPage => {
            return go(home, view, Page::ALL[(at + Page::ALL.len() - 1) % Page::ALL.len()]);
        }
        Command::Move(by) => step(home, view, isize::from(by)),
        Command::Leap(by) => step(home, view, isize::from(by) * (view.rows / 2).max(1) as isize),
        Command::First => step(home, view, isize::MIN / 2),
        Command::Last => step(home, view, isize::MAX / 2),
        Command::Open => return open(home, view, &selected),
        Command::Stop => view.overlay = Some(question_before_stop(&selected)),
        Command::Restart => return on_terminal(&["restart", run], true),
        Command::Report => {
            let args = ["report", run, "--output", &format!("{run}.html")];
            return vec![in_background(format!("report of {run}"), &args)];
        }
        Command::Replay => return on_terminal(&["replay", run], false),
        Command::Mark => mark(home, view),
        Command::Remove => view.overlay = Some(question_before_removal(view, run)),
        Command::Prune => {
            view.overlay = Some(Overlay::Input(Input {
                title: "remove runs that are over and older than".into(),
                hint: "30d, 12h ... it lists them and asks before anything goes".into(),
                typed: String::new(),
                args: vec!["prune".into(), "--older-than".into()],
            }));
        }
        Command::Processes => {
            let host = view.host.clone().unwrap_or_default();
            view.overlay = Some(Overlay::Processes { host, selected: None });
        }
        Command::Launch => return prepare(home, view),
        Command::Compare => return compare(home, view, run),
        Command::Axis => {
            view.looks.axis = if view.looks.axis == Axis::Steps { Axis::Time } else { Axis::Steps };
        }
        Command::LogScale => view.looks.log = !view.looks.log,
        Command::Apart => view.looks.apart = !view.looks.apart,
        Command::Smooth(by) => {
            let at = WEIGHTS.iter().position(|weight| *weight >= view.looks.weight).unwrap_or(0);
            view.looks.weight = WEIGHTS[at.saturating_add_signed(isize::from(by)).min(WEIGHTS.len() - 1)];
        }
        Command::Export => return vec![export(home, view)],
        Command::Check => {
            let Some(path) = view.experiment.clone() else { return Vec::new() };
            return vec![in_background(format!("check {path}"), &["check", &path])];
        }
        Command::Edit => return view.experiment.clone().map(HomeAction::Edit).into_iter().collect(),
        Command::Filter => view.filtering = true,
        Command::Answer => return on_terminal(&["ps"], true),
        Command::Said => view.overlay = Some(Overlay::Said(0)),
        Command::Back => back(home, view),
    }
    drafted(home, view)
}

/// What the selected row stands for: a run, a launch, the runs of a host.
fn open(home: &Home, view: &mut HomeView, selected: &RunRow) -> Vec<HomeAction> {
    match view.page {
        Page::Runs if selected.life == Life::Recorded => on_terminal(&["replay", &selected.run], false),
        Page::Runs => on_terminal(&["attach", &selected.run], false),
        Page::Experiments => prepare(home, view),
        Page::Fleet => {
            view.filter = view.host.clone().unwrap_or_default();
            go(home, view, Page::Runs)
        }
        Page::Compare => drafted(home, view),
    }
}

fn question_before_stop(selected: &RunRow) -> Overlay {
    let run = selected.run.as_str();
    let what = match selected.life {
        Life::Orphaned => "its processes have no agent: they are killed, and every host is looked at",
        _ => "ranks get SIGTERM and may write a checkpoint; every host proves that nothing is left",
    };
    Overlay::Confirm {
        lines: vec![
            format!("{run} on {}", selected.summary.hosts.join(", ")),
            format!("{} alive; {what}", plural(selected.alive as usize, "rank")),
        ],
        yes: "stop it".into(),
        then: in_background(format!("stop {run}"), &["stop", run]),
    }
}

/// About the marked runs, or about the selected one.
fn question_before_removal(view: &HomeView, run: &str) -> Overlay {
    let runs: Vec<&str> = match view.marks.is_empty() {
        true => vec![run],
        false => view.marks.iter().map(String::as_str).collect(),
    };
    let args: Vec<&str> = ["rm"].into_iter().chain(runs.iter().copied()).chain(["--yes"]).collect();
    let mut lines: Vec<String> = runs.iter().take(8).map(|run| (*run).to_owned()).collect();
    if runs.len() > 8 {
        lines.push(format!("and {} more", runs.len() - 8));
    }
    lines.push("logs, checkpoints and records go, from their hosts and from here, for ever".into());
    let title = format!("remove {}", plural(runs.len(), "run"));
    let then = in_background(title.clone(), &args);
    Overlay::Confirm { lines, yes: title, then }
}

/// Puts the marked runs beside each other, in the order of the list, or shows the selected one.
fn compare(home: &Home, view: &mut HomeView, run: &str) -> Vec<HomeAction> {
    let runs = match view.marks.is_empty() {
        true => vec![run.to_owned()],
        false => {
            let marked = home.runs.iter().filter(|row| view.marks.contains(&row.run));
            marked.map(|row| row.run.clone()).collect()
        }
    };
    view.page = Page::Compare;
    vec![HomeAction::Compare(runs)]
}

/// Writes what the page of comparisons shows to files.
fn export(home: &Home, view: &HomeView) -> HomeAction {
    let runs = home.compared.runs.iter().map(|run| run.run.as_str());
    let files = ["--svg", "compared.svg", "--png", "compared.png", "--csv", "compared.csv"];
    let apart = view.looks.apart.then_some("--apart");
    let args: Vec<&str> = ["compare"].into_iter().chain(runs).chain(files).chain(apart).collect();
    in_background("compared.svg, .png and .csv", &args)
}

/// Takes the filter away, or else all marks.
fn back(home: &Home, view: &mut HomeView) {
    if !view.filter.is_empty() {
        view.filter.clear();
    } else {
        view.marks.clear();
        view.chosen.clear();
    }
    view.settle(home);
}

/// Marks what is selected, and goes on to the next.
fn mark(home: &Home, view: &mut HomeView) {
    let (names, at) = view.list(home);
    let Some(name) = at.and_then(|at| names.get(at)) else { return };
    let marks = if view.page == Page::Fleet { &mut view.chosen } else { &mut view.marks };
    if !marks.remove(name) {
        marks.insert(name.clone());
    }
    step(home, view, 1);
}

fn prepare(home: &Home, view: &mut HomeView) -> Vec<HomeAction> {
    let first = home.experiments.first().map(|one| one.path.clone());
    let Some(path) = view.experiment.clone().or(first) else { return Vec::new() };
    if view.page != Page::Experiments {
        // Which one is picked first; enter there prepares it.
        return go(home, view, Page::Experiments);
    }
    view.overlay = Some(Overlay::Launch(Launch { path: path.clone(), typed: String::new() }));
    vec![HomeAction::Draft { path, typed: String::new() }]
}

#[cfg(test)]
#[path = "input_tests.rs"]
mod tests;
