//! Every key, as data: the one table from which dispatch, footer and help are made.
//!
//! Invariants:
//! - UI-4: every command has at least one key, and says why when it cannot be used now.
//! - UI-10: no key has two meanings in the same scope.

mod keymap;
mod reasons;
mod table;

pub use keymap::Keymap;
pub use reasons::{no_order, no_question, runs};
pub use table::BINDINGS;

use crate::state::{Pane, Tab, ViewState};
use crate::theme::Glyphs;
use crate::time::TimeMove;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rankdeck_core::model::Model;

/// What a key can do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Command {
    /// Open the help page.
    Help,
    /// Type what to do.
    Palette,
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
    /// Begin a new generation with changed keys.
    RestartWith,
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
    /// Make the focused pane higher, or lower.
    Taller(i8),
    /// Make it wider, or narrower.
    Wider(i8),
    /// All panes as they come.
    UsualSizes,
    /// Hold the view, or let it go.
    Freeze,
    /// Show the evidence.
    Explain,
    /// Show the policy at play.
    Policy,
    /// Show the pictures that the program has logged.
    Pictures,
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
    /// Show another part of long lines; positive: further on.
    Sideways(i8),
    /// Go to the next line that matches, or to the one before.
    Hit(i8),
    /// The lines of all ranks around the match.
    Around,
    /// Show lines from the next level on.
    Level,
    /// Show when lines were read, or not.
    Times,
    /// Fold equal lines and tracebacks, or not.
    Fold,
    /// Show lines of former generations, or not.
    Former,
    /// The log at the moment of what is selected.
    LogThere,
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
    /// Another x axis: steps, time, wall clock.
    Axis,
    /// Smooth the charts more, or less.
    Smooth(i8),
    /// Logarithmic y axes, or linear ones.
    LogScale,
    /// All shown series in one chart, or one chart each.
    Together,
    /// Move the cursor of the charts; positive: later.
    Cursor(i8),
    /// Compare the cursor's values with those here.
    Pin,
    /// Look at another row of heat maps; positive: higher.
    Height(i8),
    /// Write the shown series to files.
    ExportCharts,
    /// Show another moment on all pages.
    Time(TimeMove),
    /// Type the moment.
    TypeTime,
    /// Show the moment of what is selected.
    GoThere,
    /// Prepare the launch of a run like this one.
    Again,
    /// Leave the mouse to the terminal, or take it back.
    Mouse,
    /// Ask for the stack of the selected rank.
    Stack,
    /// The environment of the selected rank.
    Environment,
    /// The processes of the selected host.
    Processes,
    /// Continue the selected rank, which a signal has stopped.
    Continue,
    /// How long ranks wait for each other, or their letters.
    Waits,
    /// Open a shell on the host of what is selected.
    Shell,
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
            Scope::In(Pane::End) => "end",
        }
    }
}

/// A key as the table has it: press or repeat, and shift only where the terminal tells it by nothing else.
pub fn plain(key: KeyEvent) -> KeyEvent {
    let code = match key.code {
        KeyCode::Tab if key.modifiers.contains(KeyModifiers::SHIFT) => KeyCode::BackTab,
        code => code,
    };
    KeyEvent::new(code, key.modifiers & KeyModifiers::CONTROL)
}

/// A plain key is pressed together with control.
pub fn with_ctrl(key: KeyEvent) -> bool {
    key.modifiers.contains(KeyModifiers::CONTROL)
}

/// A key as people write it.
pub fn name(key: KeyEvent, glyphs: Glyphs) -> String {
    let name = match key.code {
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
        KeyCode::F(number) => format!("f{number}"),
        other => format!("{other:?}").to_lowercase(),
    };
    if with_ctrl(key) { format!("ctrl-{name}") } else { name }
}

/// One line of the table.
#[derive(Debug, Clone, Copy)]
pub struct Binding {
    /// What it does.
    pub command: Command,
    /// Keys; the first is the one that the footer shows.
    pub keys: &'static [KeyEvent],
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

/// A binding holds now.
pub fn in_scope(binding: &Binding, view: &ViewState) -> bool {
    holds_in(binding, view.pane())
}

fn holds_in(binding: &Binding, focus: Pane) -> bool {
    match binding.scope {
        Scope::Everywhere => true,
        Scope::In(pane) => pane == focus,
    }
}

/// What a key means now; the focused pane comes before the page.
pub fn find(view: &ViewState, key: KeyEvent) -> Option<&'static Binding> {
    find_in(view, view.pane(), key)
}

/// What a key means in a pane.
pub fn find_in(view: &ViewState, pane: Pane, key: KeyEvent) -> Option<&'static Binding> {
    let matching = |binding: &&'static Binding| {
        view.steering.keymap.of(binding).contains(&key) && holds_in(binding, pane)
    };
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
    let matching = |binding: &&'static Binding| {
        binding.short.contains(&needle)
            || binding.long.to_lowercase().contains(&needle)
            || binding.scope.name().contains(&needle)
            || view.steering.keymap.of(binding).iter().any(|key| name(*key, glyphs).to_lowercase() == needle)
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
