//! How the log is looked at: whose lines, where, and which of them.

use crate::log_filter::Level;
use rankdeck_core::model::LogPlace;

/// Whose lines the log shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogScope {
    /// All ranks (or the marked ones), in the order of their times.
    #[default]
    Merged,
    /// The selected rank.
    Selected,
}

/// How the log is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogView {
    /// Whose lines are shown.
    pub scope: LogScope,
    /// The lowest line shown; `None` follows the newest.
    pub at: Option<LogPlace>,
    /// The text that lines must have.
    pub filter: String,
    /// Long lines go on in the next row.
    pub wrap: bool,
    /// Lines from this level on.
    pub level: Level,
    /// All lines are shown, those that match are marked; else only those.
    pub whole: bool,
    /// The line that a search or an event led to.
    pub hit: Option<LogPlace>,
    /// When each line was read.
    pub times: bool,
    /// Equal lines are one, tracebacks are their ends.
    pub fold: bool,
    /// Lines of former generations, too.
    pub former: bool,
}

impl Default for LogView {
    fn default() -> LogView {
        LogView {
            scope: LogScope::Merged,
            at: None,
            filter: String::new(),
            wrap: false,
            level: Level::Debug,
            whole: false,
            hit: None,
            times: true,
            fold: true,
            former: true,
        }
    }
}
