//! The commands of keys, typed words and clicks on the run screen.

use crate::run::RunScreen;
use crate::run::geometry::{Pane, Tab};
use crate::run::time::TimeMove;
use rankdeck_kit::Glyphs;
use rankdeck_kit::keys::{KeyTable, Keymap};

/// A command.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScreenCommand {
    /// Open the help page.
    Help,
    /// Open the command palette.
    Palette,
    /// Quit the console.
    Quit,
    /// Stop the run cleanly.
    Stop,
    /// Kill the run.
    Kill,
    /// End the console; the run keeps running.
    Detach,
    /// Restart the run.
    Restart,
    /// Restart with changed config keys.
    RestartWith,
    /// Add or exclude hosts.
    PickHosts,
    /// Go to a page.
    Go(Tab),
    /// Focus the next pane.
    NextPane,
    /// Focus the previous pane.
    PreviousPane,
    /// Toggle the zoom of the focused pane.
    Zoom,
    /// Make the focused pane higher, or lower.
    Taller(i8),
    /// Make it wider, or narrower.
    Wider(i8),
    /// Reset pane sizes.
    UsualSizes,
    /// Freeze or unfreeze the view.
    Freeze,
    /// Show the evidence.
    Explain,
    /// Show the policy in rank 0's evaluation.
    Policy,
    /// Show logged images.
    Pictures,
    /// Go back one level.
    Back,
    /// Copy what is selected.
    Copy,
    /// Write the screen to a file.
    SaveScreen,
    /// Redraw the screen.
    Redraw,
    /// Suspend the console.
    Suspend,
    /// Move by rows; down is positive.
    Move(i8),
    /// Move by half pages; down is positive.
    Page(i8),
    /// Go to the first row.
    First,
    /// Go to the last row.
    Last,
    /// Show details of the selection.
    Inspect,
    /// Type a filter.
    Filter,
    /// Sort by the next column.
    Sort,
    /// Reverse the sort order.
    Reverse,
    /// Mark the selected rank.
    Mark,
    /// Select the next rank with a problem.
    NextTrouble,
    /// Show the log of the selected rank.
    RankLog,
    /// Toggle merged and single-rank log.
    Merge,
    /// Follow the newest line.
    Follow,
    /// Toggle wrapping of long lines.
    Wrap,
    /// Scroll long lines; right is positive.
    Sideways(i8),
    /// Go to the next match, or the previous one when negative.
    Hit(i8),
    /// Show the context of the match from all ranks.
    Around,
    /// Cycle the log level.
    Level,
    /// Toggle timestamps.
    Times,
    /// Toggle folding of repeated lines and tracebacks.
    Fold,
    /// Show or hide earlier generations, in the log or the charts.
    Former,
    /// Show the log at the time of the selection.
    LogThere,
    /// Select the next (or previous) rank without leaving the log.
    OtherRank(i8),
    /// Show or hide the selected series.
    ToggleSeries,
    /// Zoom the charts; in is positive.
    Span(i8),
    /// Pan the charts; right is positive.
    Pan(i8),
    /// Reset the zoom.
    WholeRun,
    /// Cycle the x axis: steps, time, wall clock.
    Axis,
    /// Smooth the charts more, or less.
    Smooth(i8),
    /// Toggle log scale.
    LogScale,
    /// Toggle one shared chart.
    Together,
    /// Move the cursor of the charts; positive: later.
    Cursor(i8),
    /// Pin the cursor.
    Pin,
    /// Select another bin of heat maps; up is positive.
    Height(i8),
    /// Export the shown series.
    ExportCharts,
    /// Move the timeline cursor.
    Time(TimeMove),
    /// Type a time to go to.
    TypeTime,
    /// Go to the time of the selection.
    GoThere,
    /// Launch again with changes.
    Again,
    /// Toggle mouse capture.
    Mouse,
    /// Show the stack of the selected rank.
    Stack,
    /// Show the environment of the selected rank.
    Environment,
    /// List the processes of the selected host.
    Processes,
    /// Resume the selected rank (SIGCONT).
    Continue,
    /// Toggle wait times in the strip.
    Waits,
    /// Open a shell on the selected host.
    Shell,
}

/// The names of keys, as the user has bound them.
#[derive(Clone, Copy)]
pub struct KeyNames<'a> {
    /// The keys of the screen.
    pub table: &'static KeyTable<RunScreen>,
    /// The user's own keys.
    pub keymap: &'a Keymap,
    /// The characters of arrows.
    pub glyphs: Glyphs,
}

impl KeyNames<'_> {
    /// The first key of a command.
    pub fn of(&self, command: ScreenCommand) -> String {
        self.table.key_name(command, None, self.keymap, self.glyphs)
    }

    /// Its first key in a pane.
    pub fn in_pane(&self, command: ScreenCommand, pane: Pane) -> String {
        self.table.key_name(command, Some(pane), self.keymap, self.glyphs)
    }

    /// The same names without characters that not every terminal has.
    pub fn ascii(self) -> Self {
        KeyNames { glyphs: Glyphs::Ascii, ..self }
    }
}
