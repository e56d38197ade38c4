//! How the log is looked at, beside whose lines and where.

use crate::log_filter::Level;
use rankdeck_core::model::LogPlace;

/// How the log is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogView {
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
        LogView { level: Level::Debug, whole: false, hit: None, times: true, fold: true, former: true }
    }
}
