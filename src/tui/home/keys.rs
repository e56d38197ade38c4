//! Keys of home, as data: dispatch, footer and help are made from this table.
//!
//! A key has one meaning on a page, and says why when it cannot be used.

use super::model::{Home, Life};
use super::state::{HomeView, Page};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// What a key can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// The keys.
    Help,
    /// Leave.
    Quit,
    Go(Page),
    NextPage,
    PreviousPage,
    /// By rows; down is positive.
    Move(i8),
    /// By half pages.
    Leap(i8),
    /// To the first row.
    First,
    /// To the last row.
    Last,
    /// Attach to the run; prepare the launch; runs of the host.
    Open,
    /// Stop the run.
    Stop,
    /// Begin the run again.
    Restart,
    /// Write a report.
    Report,
    /// Show the record.
    Replay,
    /// Mark it, or take the mark away.
    Mark,
    /// Remove runs.
    Remove,
    /// Remove old runs.
    Prune,
    /// Processes on the GPUs of the host.
    Processes,
    /// Prepare a launch.
    Launch,
    /// Put runs beside each other.
    Compare,
    /// Another x axis.
    Axis,
    /// Smooth more, or less.
    Smooth(i8),
    /// Logarithmic y axis, or a linear one.
    LogScale,
    /// Every run for itself, or seeds together.
    Apart,
    /// Write the charts to files.
    Export,
    /// Check the hosts for the experiment.
    Check,
    /// Edit the experiment.
    Edit,
    /// Type a filter.
    Filter,
    /// Ask all hosts now.
    Refresh,
    /// Log in to hosts that ask something.
    Answer,
    /// What the latest command said.
    Said,
    /// One level back.
    Back,
    /// Give the terminal back.
    Suspend,
    /// Draw everything again.
    Redraw,
}

/// One line of the table.
pub struct Binding {
    /// What it does.
    pub command: Command,
    /// Keys; the first is the one that the footer shows.
    pub keys: &'static [KeyEvent],
    /// Where it holds; empty: everywhere.
    pub pages: &'static [Page],
    /// For the footer; empty: not there.
    pub short: &'static str,
    /// For the help page.
    pub long: &'static str,
    /// Why it cannot be used now.
    pub disabled: fn(&Home, &HomeView) -> Option<&'static str>,
}

const fn k(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::NONE)
}
const fn c(key: char) -> KeyEvent {
    k(KeyCode::Char(key))
}
const fn ctrl(key: char) -> KeyEvent {
    KeyEvent::new(KeyCode::Char(key), KeyModifiers::CONTROL)
}

const READ_ONLY: &str = "read-only: this console only shows";

fn never(_: &Home, _: &HomeView) -> Option<&'static str> {
    None
}

fn run(home: &Home, view: &HomeView) -> Option<&'static str> {
    if view.selected_run(home).is_some() { None } else { Some("no run is selected") }
}

fn stop(home: &Home, view: &HomeView) -> Option<&'static str> {
    match view.selected_run(home).map(|row| row.life) {
        _ if view.read_only => Some(READ_ONLY),
        Some(Life::Running | Life::Orphaned) => None,
        Some(Life::Over | Life::Recorded) => Some("this run is over"),
        None => Some("no run is selected"),
    }
}

fn restart(home: &Home, view: &HomeView) -> Option<&'static str> {
    match view.selected_run(home).map(|row| row.life) {
        _ if view.read_only => Some(READ_ONLY),
        Some(Life::Recorded) => Some("only a record of this run is here, no host has it"),
        Some(_) => None,
        None => Some("no run is selected"),
    }
}

fn recorded(home: &Home, view: &HomeView) -> Option<&'static str> {
    match view.selected_run(home).map(|row| row.recorded) {
        Some(true) => None,
        Some(false) => Some("no record of this run is here: attach to it once"),
        None => Some("no run is selected"),
    }
}

fn recorded_marks(home: &Home, view: &HomeView) -> Option<&'static str> {
    match view.marks.iter().any(|name| home.run(name).is_some_and(|row| row.recorded)) {
        true => None,
        false if view.marks.is_empty() => recorded(home, view),
        false => Some("no record of a marked run is here: attach to it once"),
    }
}

fn compared(home: &Home, _: &HomeView) -> Option<&'static str> {
    home.compared.runs.is_empty().then_some("nothing is compared: mark runs on page 1, then c")
}

fn remove(home: &Home, view: &HomeView) -> Option<&'static str> {
    let over = |row: &super::RunRow| row.life == Life::Over;
    match view.selected_run(home) {
        _ if view.read_only => Some(READ_ONLY),
        _ if !view.marks.is_empty() => {
            let fit = view.marks.iter().all(|name| home.run(name).is_some_and(over));
            if fit { None } else { Some("a marked run is not over, or only recorded") }
        }
        Some(row) if over(row) => None,
        Some(_) => Some("only runs that are over on their hosts can be removed"),
        None => Some("no run is selected"),
    }
}

fn writes(_: &Home, view: &HomeView) -> Option<&'static str> {
    view.read_only.then_some(READ_ONLY)
}

fn launch(home: &Home, view: &HomeView) -> Option<&'static str> {
    match home.experiments.is_empty() {
        _ if view.read_only => Some(READ_ONLY),
        true => Some("no experiment in configs/ or here; `rankdeck init` writes one"),
        false => None,
    }
}

fn check(home: &Home, _: &HomeView) -> Option<&'static str> {
    home.experiments.is_empty().then_some("no experiment in configs/ or here; `rankdeck init` writes one")
}

fn edit(home: &Home, view: &HomeView) -> Option<&'static str> {
    if view.read_only { Some(READ_ONLY) } else { check(home, view) }
}

fn answered(home: &Home, _: &HomeView) -> Option<&'static str> {
    home.silent().next().is_none().then_some("no host asks anything")
}

fn no_host(home: &Home, view: &HomeView) -> Option<&'static str> {
    view.selected_host(home).is_none().then_some("no host is selected")
}

fn said(home: &Home, _: &HomeView) -> Option<&'static str> {
    if home.said.is_some() { None } else { Some("no command has said anything yet") }
}

const RUNS: &[Page] = &[Page::Runs];
const EXPERIMENTS: &[Page] = &[Page::Experiments];
const RUNS_AND_FLEET: &[Page] = &[Page::Runs, Page::Fleet];
const COMPARE: &[Page] = &[Page::Compare];
const FLEET: &[Page] = &[Page::Fleet];

macro_rules! table {
    ($($command:expr, [$($key:expr),*], $pages:expr, $short:literal, $long:literal, $disabled:expr;)*) => {
        &[$(Binding {
            command: $command,
            keys: &[$($key),*],
            pages: $pages,
            short: $short,
            long: $long,
            disabled: $disabled,
        }),*]
    };
}

/// The table, the most wanted first.
#[rustfmt::skip]
pub const TABLE: &[Binding] = table![
    Command::Open, [k(KeyCode::Enter), c('a')], RUNS, "attach", "show the run; q there comes back; a record is replayed", run;
    Command::Open, [k(KeyCode::Enter), c('n')], EXPERIMENTS, "launch", "type changes, see the plan, launch", launch;
    Command::Open, [k(KeyCode::Enter)], FLEET, "its runs", "runs of this host", never;
    Command::Stop, [c('x')], RUNS, "stop", "stop the run, after a question", stop;
    Command::Restart, [c('r')], RUNS, "restart", "begin a new generation, after a question", restart;
    Command::Mark, [c(' ')], RUNS, "mark", "mark the run, for what concerns several", run;
    Command::Mark, [c(' ')], FLEET, "choose", "launch on chosen hosts only", never;
    Command::Compare, [c('c')], RUNS, "compare", "put the marked runs, or the selected one, beside each other", recorded_marks;
    Command::Axis, [c('x')], COMPARE, "axis", "x axis: steps, or time since the first value", never;
    Command::LogScale, [c('y')], COMPARE, "log", "logarithmic y axis, or linear", never;
    Command::Smooth(1), [c('s')], COMPARE, "smooth", "smooth more", never;
    Command::Smooth(-1), [c('S')], COMPARE, "", "smooth less", never;
    Command::Apart, [c('t')], COMPARE, "seeds", "seeds as a mean with a band, or every run for itself", never;
    Command::Export, [c('e')], COMPARE, "export", "write all charts as CSV and SVG", compared;
    Command::Processes, [c('p')], FLEET, "processes", "who is on its GPUs: environment of, and signals to, processes of one's own", no_host;
    Command::Launch, [c('n')], RUNS_AND_FLEET, "launch", "prepare a launch; on the fleet page: on the chosen hosts", launch;
    Command::Check, [c('c')], EXPERIMENTS, "check", "check the hosts for this experiment; starts nothing", check;
    Command::Edit, [c('e')], EXPERIMENTS, "edit", "the file in your editor ($VISUAL, $EDITOR)", edit;
    Command::Report, [c('v')], RUNS, "report", "write a report of a recorded run as HTML", recorded;
    Command::Replay, [c('p')], RUNS, "replay", "show the record of the run", recorded;
    Command::Remove, [c('d')], RUNS, "remove", "remove the run, or the marked ones, after a question", remove;
    Command::Prune, [c('P')], RUNS, "", "remove old runs: how old, then a question", writes;
    Command::Filter, [c('/')], RUNS, "filter", "runs with this in name, note, host, state, program; ! inverts", never;
    Command::Go(Page::Runs), [c('1')], &[], "", "runs", never;
    Command::Go(Page::Experiments), [c('2')], &[], "", "experiments", never;
    Command::Go(Page::Fleet), [c('3'), c('f')], &[], "fleet", "hosts and their GPUs", never;
    Command::Go(Page::Compare), [c('4')], &[], "", "runs beside each other", never;
    Command::Answer, [c('A')], &[], "", "log in to hosts that ask for a key, a passphrase or a password", answered;
    Command::Said, [c('o')], &[], "", "what the latest command said", said;
    Command::Refresh, [ctrl('r')], &[], "", "ask all hosts now", never;
    Command::Quit, [c('q'), ctrl('c')], &[], "quit", "leave; runs go on", never;
    Command::NextPage, [k(KeyCode::Tab)], &[], "", "next page", never;
    Command::PreviousPage, [k(KeyCode::BackTab)], &[], "", "previous page", never;
    Command::Move(1), [c('j'), k(KeyCode::Down)], &[], "", "down", never;
    Command::Move(-1), [c('k'), k(KeyCode::Up)], &[], "", "up", never;
    Command::Leap(1), [k(KeyCode::PageDown), ctrl('d')], &[], "", "half a page down", never;
    Command::Leap(-1), [k(KeyCode::PageUp), ctrl('u')], &[], "", "half a page up", never;
    Command::First, [c('g'), k(KeyCode::Home)], &[], "", "first", never;
    Command::Last, [c('G'), k(KeyCode::End)], &[], "", "last", never;
    Command::Back, [k(KeyCode::Esc)], &[], "", "one level back: closes, clears the filter, then the marks", never;
    Command::Redraw, [ctrl('l')], &[], "", "draw everything again", never;
    Command::Suspend, [ctrl('z')], &[], "", "back to the shell for a while", never;
    Command::Help, [c('?')], &[], "", "this page", never;
];

/// Bindings of a page, the page's own first.
pub fn of(page: Page) -> impl Iterator<Item = &'static Binding> {
    let own = move |binding: &&Binding| binding.pages.contains(&page);
    TABLE.iter().filter(own).chain(TABLE.iter().filter(|binding| binding.pages.is_empty()))
}

/// The binding of a key on a page.
pub fn find(key: KeyEvent, page: Page) -> Option<&'static Binding> {
    let key = crate::keys::plain(key);
    of(page).find(|binding| binding.keys.contains(&key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_meaning_on_a_page() {
        for page in Page::ALL {
            let mut known: Vec<KeyEvent> = Vec::new();
            for binding in of(page) {
                for key in binding.keys {
                    assert!(!known.contains(key), "{key:?} on {}", page.name());
                    known.push(*key);
                }
            }
        }
    }
}
