//! How the log is looked at: whose lines, where, and which of them.

use crate::log_filter::Level;
use rankdeck_core::model::{LogPlace, Model, Search};
use rankdeck_proto::search::LinePlace;

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
    /// Characters that are left out at the begin of each line, where lines are not broken.
    pub shift: usize,
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
    /// Lines of the hosts' files are shown instead of those that are held here.
    pub files: Option<Files>,
    /// What was shown before the lines of all ranks around one of them.
    pub back: Option<Box<LogView>>,
}

/// How lines of the hosts' files are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Files {
    /// The match that is looked at, or the one from which to step; `None`: the newest.
    pub at: Option<LinePlace>,
    /// The match before it (-1) or after it (1) is meant; it may still have to be found.
    pub step: i8,
    /// All lines around it are shown, not the matches.
    pub around: bool,
}

impl Files {
    /// The index of the line that is meant.
    pub fn current(&self, search: &Search) -> Option<usize> {
        let places = &search.places;
        let Some(at) = &self.at else { return places.len().checked_sub(1) };
        match self.step {
            0 => places.iter().position(|place| place.is(at)),
            ..0 => places.iter().rposition(|place| place.is_before(at)),
            _ => places.iter().position(|place| at.is_before(place)),
        }
    }
}

impl LogView {
    /// What was found in the hosts' files, when that is shown.
    pub fn found<'a>(&self, model: &'a Model) -> Option<(Files, &'a Search)> {
        let files = self.files?;
        let finder = &model.finder;
        let search = if files.around { finder.around.as_ref() } else { finder.hits.as_ref() };
        Some((files, search?))
    }

    /// The newest lines that are held here are shown again.
    pub fn follow(&mut self) {
        self.leave_files();
        (self.at, self.hit) = (None, None);
    }

    /// What is held here is shown again.
    pub fn leave_files(&mut self) {
        if let Some(back) = self.back.take() {
            *self = *back;
        }
        self.files = None;
    }
}

impl Default for LogView {
    fn default() -> LogView {
        LogView {
            scope: LogScope::Merged,
            at: None,
            filter: String::new(),
            wrap: false,
            shift: 0,
            level: Level::Debug,
            whole: false,
            hit: None,
            times: true,
            fold: true,
            former: true,
            files: None,
            back: None,
        }
    }
}
