//! Every key, as data: the one table from which dispatch, footer and help are made.
//!
//! Invariants:
//! - UI-4: every command has at least one key, and says why when it cannot be used now.
//! - UI-10: no key has two meanings in the same scope.

use crate::ranks;
use crate::state::{LogScope, Pane, Tab, ViewState};
use crate::theme::Glyphs;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rankdeck_core::model::{Model, RunState};
use rankdeck_proto::message::StopMode;

/// What a key can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Open the help page.
    Help,
    /// Leave the console.
    Quit,
    /// Stop the run cleanly.
    Stop,
    /// Kill the run.
    Kill,
    /// Leave the run alone and end the console.
    Detach,
    /// Begin a new generation.
    Restart,
    /// Pick the hosts of the next generation.
    PickHosts,
    /// Go to a page.
    Go(Tab),
    /// Focus the next pane.
    NextPane,
    /// Focus the previous pane.
    PreviousPane,
    /// Give the focused pane the whole page, or take it back.
    Zoom,
    /// Hold the view, or let it go.
    Freeze,
    /// Show the evidence.
    Explain,
    /// One level back.
    Back,
    /// Copy what is selected.
    Copy,
    /// Write the screen to a file.
    SaveScreen,
    /// Draw everything again.
    Redraw,
    /// Give the terminal back.
    Suspend,
    /// Move by rows; down is positive.
    Move(i8),
    /// Move by half pages; down is positive.
    Page(i8),
    /// Go to the first row.
    First,
    /// Go to the last row.
    Last,
    /// Everything about the selected rank.
    Inspect,
    /// Type a filter.
    Filter,
    /// Sort by the next column.
    Sort,
    /// Sort the other way round.
    Reverse,
    /// Mark the selected rank.
    Mark,
    /// Select the next rank in trouble.
    NextTrouble,
    /// The log of the selected rank.
    RankLog,
    /// All ranks' lines, or the selected rank's.
    Merge,
    /// Follow the newest line.
    Follow,
    /// Break long lines.
    Wrap,
    /// Select the next (or previous) rank without leaving the log.
    OtherRank(i8),
    /// Show or hide the selected series.
    ToggleSeries,
    /// Change the span of the charts; positive: closer.
    Span(i8),
    /// Move along the charts; positive: later.
    Pan(i8),
    /// The whole run again.
    WholeRun,
}

/// Where a binding holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// On every page.
    Everywhere,
    /// While this pane has the focus.
    In(Pane),
}

impl Scope {
    /// Heading on the help page.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Everywhere => "everywhere",
            Scope::In(Pane::Ranks) => "ranks",
            Scope::In(Pane::Charts) => "charts",
            Scope::In(Pane::Evals) => "evals",
            Scope::In(Pane::Log) => "logs",
            Scope::In(Pane::Hosts) => "hosts",
            Scope::In(Pane::Events) => "events",
        }
    }
}

/// A key as pressed. Shift is part of the character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chord {
    /// Which key.
    pub code: KeyCode,
    /// With control.
    pub ctrl: bool,
}

impl Chord {
    /// What was pressed.
    pub fn of(key: KeyEvent) -> Chord {
        let ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Tab if key.modifiers.contains(KeyModifiers::SHIFT) => {
                Chord { code: KeyCode::BackTab, ctrl }
            }
            code => Chord { code, ctrl },
        }
    }

    /// As people write it.
    pub fn name(self, glyphs: Glyphs) -> String {
        let key = match self.code {
            KeyCode::Char(' ') => "space".into(),
            KeyCode::Char(c) => c.to_string(),
            KeyCode::Enter => "enter".into(),
            KeyCode::Esc => "esc".into(),
            KeyCode::Tab => "tab".into(),
            KeyCode::BackTab => "shift-tab".into(),
            KeyCode::Up => glyphs.pick("↑", "up").into(),
            KeyCode::Down => glyphs.pick("↓", "down").into(),
            KeyCode::Left => glyphs.pick("←", "left").into(),
            KeyCode::Right => glyphs.pick("→", "right").into(),
            KeyCode::Home => "home".into(),
            KeyCode::End => "end".into(),
            KeyCode::PageUp => "pgup".into(),
            KeyCode::PageDown => "pgdn".into(),
            other => format!("{other:?}").to_lowercase(),
        };
        if self.ctrl { format!("ctrl-{key}") } else { key }
    }
}

/// One line of the table.
#[derive(Debug, Clone, Copy)]
pub struct Binding {
    /// What it does.
    pub command: Command,
    /// Keys; the first is the one that the footer shows.
    pub keys: &'static [Chord],
    /// Where it holds.
    pub scope: Scope,
    /// For the footer.
    pub short: &'static str,
    /// For the help page.
    pub long: &'static str,
    /// Rank in the footer, 1 first; 0: not in the footer.
    pub footer: u8,
    /// Why it cannot be used now.
    pub disabled: fn(&Model, &ViewState) -> Option<&'static str>,
}

const fn c(key: char) -> Chord {
    Chord { code: KeyCode::Char(key), ctrl: false }
}
const fn ctrl(key: char) -> Chord {
    Chord { code: KeyCode::Char(key), ctrl: true }
}
const fn k(code: KeyCode) -> Chord {
    Chord { code, ctrl: false }
}

const RANKS: Scope = Scope::In(Pane::Ranks);
const CHARTS: Scope = Scope::In(Pane::Charts);
const LOG: Scope = Scope::In(Pane::Log);
const HOSTS: Scope = Scope::In(Pane::Hosts);

macro_rules! bindings {
    ($($scope:expr, $command:expr, [$($key:expr),+], $footer:expr, $short:expr, $long:expr, $disabled:expr;)*) => {
        &[$(Binding {
            command: $command, keys: &[$($key),+], scope: $scope, short: $short, long: $long, footer: $footer, disabled: $disabled,
        }),*]
    };
}

/// The table.
#[rustfmt::skip]
pub static BINDINGS: &[Binding] = bindings![
    Scope::Everywhere, Command::Quit, [c('q')], 1, "quit", "leave: detach, stop or stay while ranks run", always;
    Scope::Everywhere, Command::Stop, [c('x')], 2, "stop", "stop the run: checkpoint, leave together, verify that nothing is left", no_stop;
    Scope::Everywhere, Command::Kill, [c('X')], 0, "kill", "kill every process of the run on every host", no_kill;
    Scope::Everywhere, Command::Detach, [c('D')], 7, "detach", "leave now; training goes on, and `rankdeck attach` comes back to it", no_detach;
    Scope::Everywhere, Command::Restart, [c('r'), c('R')], 6, "restart", "begin a new generation, from a checkpoint or afresh", no_restart;
    Scope::Everywhere, Command::PickHosts, [c('H')], 0, "other hosts", "leave hosts out of the next generation, or take more in", no_rehost;
    Scope::Everywhere, Command::Explain, [c('d')], 3, "why", "evidence for what the watch says", no_verdict;
    Scope::Everywhere, Command::Help, [c('?'), c(':')], 0, "help", "this page: type to filter, enter runs", always;
    Scope::Everywhere, Command::Go(Tab::Overview), [c('1')], 0, "overview", "totals, ranks, charts, log", always;
    Scope::Everywhere, Command::Go(Tab::Charts), [c('2')], 0, "charts", "every series over env_step", always;
    Scope::Everywhere, Command::Go(Tab::Evals), [c('3')], 0, "evals", "rank 0's evaluations", always;
    Scope::Everywhere, Command::Go(Tab::Logs), [c('4')], 0, "logs", "log lines, merged or of one rank", always;
    Scope::Everywhere, Command::Go(Tab::Hosts), [c('5')], 0, "hosts", "links, agents, CPU, memory, GPUs", always;
    Scope::Everywhere, Command::Go(Tab::Events), [c('6')], 0, "events", "what happened, in order", always;
    Scope::Everywhere, Command::NextPane, [k(KeyCode::Tab)], 9, "pane", "focus the next pane", one_pane;
    Scope::Everywhere, Command::PreviousPane, [k(KeyCode::BackTab)], 0, "pane back", "focus the previous pane", one_pane;
    Scope::Everywhere, Command::Zoom, [c('z')], 10, "zoom", "give the focused pane the whole page, and back", no_zoom;
    Scope::Everywhere, Command::Freeze, [c('f')], 11, "freeze", "hold the view while the run goes on; alarms still show", always;
    Scope::Everywhere, Command::Back, [k(KeyCode::Esc)], 0, "back", "one level back: filter, zoom, freeze, marks; never quits", always;
    Scope::Everywhere, Command::Copy, [c('y')], 0, "copy", "copy what is selected to the clipboard", always;
    Scope::Everywhere, Command::SaveScreen, [ctrl('s')], 0, "save screen", "write the screen as text into the run directory", always;
    Scope::Everywhere, Command::Redraw, [ctrl('l')], 0, "redraw", "clear the terminal and draw again", always;
    Scope::Everywhere, Command::Suspend, [ctrl('z')], 0, "suspend", "back to the shell; `fg` returns", always;
    Scope::Everywhere, Command::Move(1), [c('j'), k(KeyCode::Down)], 0, "down", "one row down", always;
    Scope::Everywhere, Command::Move(-1), [c('k'), k(KeyCode::Up)], 0, "up", "one row up", always;
    Scope::Everywhere, Command::Page(1), [ctrl('d'), k(KeyCode::PageDown)], 0, "page down", "half a page down", always;
    Scope::Everywhere, Command::Page(-1), [ctrl('u'), k(KeyCode::PageUp)], 0, "page up", "half a page up", always;
    Scope::Everywhere, Command::First, [c('g'), k(KeyCode::Home)], 0, "first", "first row", always;
    Scope::Everywhere, Command::Last, [c('G'), k(KeyCode::End)], 0, "last", "last row; follows in logs and events", always;
    RANKS, Command::Inspect, [k(KeyCode::Enter)], 4, "inspect", "everything known about the selected rank", no_rank;
    RANKS, Command::Filter, [c('/')], 5, "filter", "filter rows: text, !text, host: rank: state: phase:", always;
    RANKS, Command::Sort, [c('o')], 7, "sort", "sort by the next column", always;
    RANKS, Command::Reverse, [c('O')], 0, "reverse", "sort the other way round", always;
    RANKS, Command::Mark, [c(' ')], 0, "mark", "mark the rank: merged logs and copy use marked ranks", no_rank;
    RANKS, Command::NextTrouble, [c('n')], 0, "next trouble", "select the next failed or stuck rank", no_trouble;
    RANKS, Command::RankLog, [c('l')], 8, "log", "the selected rank's log", no_rank;
    CHARTS, Command::ToggleSeries, [c(' ')], 4, "show/hide", "show the selected series beside the others, or hide it", no_series;
    CHARTS, Command::Span(1), [c('+'), c('=')], 5, "closer", "halve the span", no_series;
    CHARTS, Command::Span(-1), [c('-')], 5, "wider", "double the span", whole;
    CHARTS, Command::Pan(-1), [k(KeyCode::Left), c('h')], 0, "earlier", "move to earlier steps", whole;
    CHARTS, Command::Pan(1), [k(KeyCode::Right), c('l')], 0, "later", "move to later steps", whole;
    CHARTS, Command::WholeRun, [c('0')], 7, "all", "the whole run again", whole;
    LOG, Command::Filter, [c('/')], 4, "filter", "show lines with this text; !text shows those without", always;
    LOG, Command::Merge, [c('m')], 5, "merge", "all ranks' lines, or the selected rank's", no_rank;
    LOG, Command::OtherRank(1), [c(']'), k(KeyCode::Right)], 6, "next rank", "select the next rank", merged;
    LOG, Command::OtherRank(-1), [c('['), k(KeyCode::Left)], 0, "previous rank", "select the previous rank", merged;
    LOG, Command::Wrap, [c('w')], 7, "wrap", "break long lines", always;
    LOG, Command::Follow, [c('F')], 8, "follow", "follow the newest line", following;
    HOSTS, Command::Inspect, [k(KeyCode::Enter)], 4, "ranks", "show this host's ranks", no_rank;
];

fn always(_: &Model, _: &ViewState) -> Option<&'static str> {
    None
}

/// Some process of the run may exist.
pub fn runs(model: &Model) -> bool {
    match model.run.state {
        RunState::Over => false,
        RunState::Connecting => model.ranks.iter().any(ranks::alive),
        RunState::Launching | RunState::Running | RunState::Draining | RunState::Restarting => true,
    }
}

fn no_stop(model: &Model, _: &ViewState) -> Option<&'static str> {
    match model.run.state {
        RunState::Over => Some("the run is over"),
        _ if model.run.stopping == Some(StopMode::Kill) => Some("the run is being killed"),
        _ if model.run.stopping.is_some() => Some("a stop is on its way; X kills"),
        _ => None,
    }
}

fn no_kill(model: &Model, _: &ViewState) -> Option<&'static str> {
    match model.run.state {
        RunState::Over => Some("the run is over"),
        _ if model.run.stopping == Some(StopMode::Kill) => Some("the run is being killed"),
        _ => None,
    }
}

fn no_detach(model: &Model, _: &ViewState) -> Option<&'static str> {
    (!runs(model)).then_some("nothing runs; q leaves")
}

fn no_restart(model: &Model, _: &ViewState) -> Option<&'static str> {
    match model.run.state {
        RunState::Connecting | RunState::Launching => Some("the run has not started yet"),
        RunState::Restarting if model.run.restart_at.is_some() => None,
        RunState::Restarting => Some("a restart is on its way"),
        RunState::Running | RunState::Draining | RunState::Over => None,
    }
}

fn no_rehost(model: &Model, view: &ViewState) -> Option<&'static str> {
    match model.run.state {
        RunState::Restarting if model.run.restart_at.is_some() => None,
        RunState::Draining => Some("the run is on its way out"),
        _ => no_restart(model, view),
    }
}

fn no_verdict(model: &Model, _: &ViewState) -> Option<&'static str> {
    model.verdicts.is_empty().then_some("the watch has nothing to say")
}

fn no_trouble(model: &Model, _: &ViewState) -> Option<&'static str> {
    let any = model.ranks.iter().any(|rank| ranks::state(model, rank, Glyphs::Ascii).trouble);
    (!any).then_some("no rank is failed or stuck")
}

fn no_rank(model: &Model, _: &ViewState) -> Option<&'static str> {
    model.ranks.is_empty().then_some("no ranks yet")
}

fn no_series(model: &Model, _: &ViewState) -> Option<&'static str> {
    model.scalars.is_empty().then_some("no values yet")
}

fn whole(_: &Model, view: &ViewState) -> Option<&'static str> {
    (view.window.zoom == 0).then_some("the whole run is shown")
}

fn merged(_: &Model, view: &ViewState) -> Option<&'static str> {
    (view.log_scope == LogScope::Merged).then_some("lines of all ranks are shown; m shows one rank")
}

fn following(_: &Model, view: &ViewState) -> Option<&'static str> {
    view.log_at.is_none().then_some("the newest line is shown")
}

fn one_pane(_: &Model, view: &ViewState) -> Option<&'static str> {
    let several = view.tab == Tab::Overview && view.geometry.panes().len() > 1;
    (!several).then_some("this page has one pane")
}

fn no_zoom(model: &Model, view: &ViewState) -> Option<&'static str> {
    if view.tab != Tab::Overview { Some("this page is whole already") } else { no_rank(model, view) }
}

/// A binding holds now.
pub fn in_scope(binding: &Binding, view: &ViewState) -> bool {
    match binding.scope {
        Scope::Everywhere => true,
        Scope::In(pane) => pane == view.pane(),
    }
}

/// What a key means now; the focused pane comes before the page.
pub fn find(view: &ViewState, chord: Chord) -> Option<&'static Binding> {
    let matching = |binding: &&Binding| binding.keys.contains(&chord) && in_scope(binding, view);
    let narrow = BINDINGS.iter().filter(matching).find(|binding| binding.scope != Scope::Everywhere);
    narrow.or_else(|| BINDINGS.iter().find(matching))
}

/// Keys of the footer in their order, those that can be used now.
pub fn footer(model: &Model, view: &ViewState) -> Vec<&'static Binding> {
    let mut list: Vec<_> = BINDINGS
        .iter()
        .filter(|binding| binding.footer > 0 && in_scope(binding, view))
        .filter(|binding| (binding.disabled)(model, view).is_none())
        .collect();
    list.sort_by_key(|binding| binding.footer);
    list
}

/// Entries of the help page that match what was typed: those of the focused pane first.
pub fn help(view: &ViewState, filter: &str, glyphs: Glyphs) -> Vec<&'static Binding> {
    let needle = filter.to_lowercase();
    let matching = |binding: &&Binding| {
        binding.short.contains(&needle)
            || binding.long.to_lowercase().contains(&needle)
            || binding.scope.name().contains(&needle)
            || binding.keys.iter().any(|key| key.name(glyphs).to_lowercase() == needle)
    };
    let here = |binding: &Binding| binding.scope != Scope::Everywhere && in_scope(binding, view);
    let place = |binding: &&Binding| match binding.scope {
        _ if here(binding) => 0,
        Scope::Everywhere => 1,
        Scope::In(_) => 2,
    };
    let mut list: Vec<_> = BINDINGS.iter().filter(matching).collect();
    // What the typed word names comes before what merely mentions it.
    let named = |binding: &&Binding| !needle.is_empty() && !binding.short.starts_with(&needle);
    list.sort_by_key(|binding| (named(binding), place(binding)));
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ui_10_no_key_has_two_meanings_in_a_scope() {
        for (i, a) in BINDINGS.iter().enumerate() {
            for b in &BINDINGS[i + 1..] {
                let clash = a.keys.iter().find(|key| b.keys.contains(key) && a.scope == b.scope);
                assert!(clash.is_none(), "{clash:?} in {}", a.scope.name());
            }
        }
    }

    #[test]
    fn ui_4_every_binding_has_a_key_and_texts() {
        for binding in BINDINGS {
            assert!(!binding.keys.is_empty() && !binding.short.is_empty() && !binding.long.is_empty());
        }
    }

    #[test]
    fn the_footer_is_never_empty() {
        assert!(!footer(&Model::default(), &ViewState::new()).is_empty());
    }
}
