//! Walking through log lines of one rank or of many in the order of arrival, with a filter. Pure; cost is
//! what is looked at, not what is held.

use crate::ranks;
use crate::state::{LogScope, ViewState};
use rankdeck_core::model::{Model, RankModel};
use rankdeck_types::ids::Rank;

/// A line and where it stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogLine<'a> {
    /// Order of arrival over all ranks.
    pub order: u64,
    /// Whose.
    pub rank: Rank,
    /// As the rank wrote it.
    pub text: &'a str,
}

/// A filter: a substring in any case; a leading `!` inverts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LogFilter {
    needle: String,
    invert: bool,
}

impl LogFilter {
    /// As typed.
    pub fn new(typed: &str) -> LogFilter {
        let (invert, needle) = match typed.strip_prefix('!') {
            Some(rest) => (!rest.is_empty(), rest),
            None => (false, typed),
        };
        LogFilter { needle: needle.to_lowercase(), invert }
    }

    /// Nothing was typed.
    pub fn is_empty(&self) -> bool {
        self.needle.is_empty()
    }

    /// What to mark in the lines shown.
    pub fn highlight(&self) -> Option<&str> {
        (!self.invert && !self.needle.is_empty()).then_some(&self.needle)
    }

    fn keeps(&self, text: &str) -> bool {
        self.needle.is_empty() || text.to_lowercase().contains(&self.needle) != self.invert
    }
}

/// The ranks whose lines are looked at.
pub fn sources<'a>(model: &'a Model, view: &ViewState) -> Vec<&'a RankModel> {
    match view.log_scope {
        LogScope::Selected => ranks::selected(model, view).into_iter().collect(),
        LogScope::Merged => {
            let marked: Vec<_> = model.ranks.iter().filter(|rank| view.marked.contains(&rank.rank)).collect();
            if marked.is_empty() { model.ranks.iter().collect() } else { marked }
        }
    }
}

/// At most `n` lines that match, with order up to and including `at` (`None`: the newest), newest first.
pub fn before<'a>(
    sources: &[&'a RankModel],
    filter: &LogFilter,
    at: Option<u64>,
    n: usize,
) -> Vec<LogLine<'a>> {
    // How many lines of each ring are still ahead of the cursor.
    let mut ends: Vec<usize> = sources
        .iter()
        .map(|rank| at.map_or(rank.log.lines.len(), |at| rank.log.lines.partition_point(|line| line.0 <= at)))
        .collect();
    let mut found = Vec::new();
    while found.len() < n {
        let next = (0..sources.len())
            .filter_map(|i| Some((sources[i].log.lines.get(ends[i].checked_sub(1)?)?.0, i)))
            .max();
        let Some((order, i)) = next else { break };
        ends[i] -= 1;
        if let Some((_, text)) = sources[i].log.lines.get(ends[i])
            && filter.keeps(text)
        {
            found.push(LogLine { order, rank: sources[i].rank, text });
        }
    }
    found
}

/// Order of the `n`th line that matches after `at`; `None` when there are fewer, which is the way back to
/// following.
pub fn after(sources: &[&RankModel], filter: &LogFilter, at: u64, n: usize) -> Option<u64> {
    let mut starts: Vec<usize> =
        sources.iter().map(|rank| rank.log.lines.partition_point(|line| line.0 <= at)).collect();
    let mut left = n;
    loop {
        let (order, i) =
            (0..sources.len()).filter_map(|i| Some((sources[i].log.lines.get(starts[i])?.0, i))).min()?;
        let (_, text) = sources[i].log.lines.get(starts[i])?;
        starts[i] += 1;
        if filter.keeps(text) {
            left = left.saturating_sub(1);
            if left == 0 {
                return Some(order);
            }
        }
    }
}

/// Lines that match, and lines held.
pub fn count(sources: &[&RankModel], filter: &LogFilter) -> (usize, usize) {
    let all = sources.iter().map(|rank| rank.log.lines.len()).sum();
    if filter.is_empty() {
        return (all, all);
    }
    let kept = sources.iter().flat_map(|rank| &rank.log.lines).filter(|line| filter.keeps(&line.1)).count();
    (kept, all)
}

/// Moves the cursor of the log by `rows` lines (down is positive).
pub fn scroll(model: &Model, view: &mut ViewState, rows: i64) {
    let filter = LogFilter::new(&view.log_filter);
    let sources = sources(model, view);
    let n = rows.unsigned_abs() as usize;
    if rows < 0 {
        // At the very top the cursor stays, so that the first page does not shrink to one line.
        let rows = view.geometry.log_rows;
        let page = before(&sources, &filter, view.log_at, rows.saturating_add(n));
        let room = page.len().saturating_sub(rows).min(n);
        if room > 0
            && let Some(line) = page.get(room)
        {
            view.log_at = Some(line.order);
        }
    } else if let Some(at) = view.log_at {
        // One more than asked for must exist, else the newest is on screen and the log follows again.
        view.log_at =
            after(&sources, &filter, at, n).filter(|order| after(&sources, &filter, *order, 1).is_some());
    }
}
