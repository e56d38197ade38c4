//! Live lines: what ranks have printed and not finished, such as a progress bar or a prompt.
//!
//! Owner: the thread that reads the logs; the sampling thread and the agent's loop read them.
//!
//! - LIVE-1: a live line is reported at most once a second, and replaced in place. It is in no log: once it is
//!   finished, it is an ordinary line.

use rankdeck_types::ids::Rank;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most bytes of a row.
pub(crate) const ROW_BYTES: usize = 512;
/// Between two reports of one rank.
const EVERY: Duration = Duration::from_secs(1);
/// A line that nothing has written over is live after this time.
const UNFINISHED: Duration = Duration::from_secs(1);

/// The live lines of a host's ranks.
#[derive(Debug, Clone, Default)]
pub(crate) struct LiveLines(Arc<Mutex<BTreeMap<Rank, LiveRows>>>);

/// The rows of a rank, and how often they were replaced.
#[derive(Debug, Default)]
struct LiveRows {
    rows: Vec<String>,
    changes: u64,
}

impl LiveLines {
    /// Replaces the rows of a rank.
    pub fn set(&self, rank: Rank, rows: Vec<String>) {
        let mut all = self.lock();
        let live = all.entry(rank).or_default();
        live.changes += u64::from(live.rows != rows);
        live.rows = rows;
    }

    /// The newest row of a rank.
    pub fn newest(&self, rank: Rank) -> Option<String> {
        self.lock().get(&rank)?.rows.last().cloned()
    }

    /// The rows of a rank, unless they are those of the latest call with this number.
    pub fn changed(&self, rank: Rank, seen: &mut u64) -> Option<Vec<String>> {
        let all = self.lock();
        let live = all.get(&rank).filter(|live| live.changes != *seen)?;
        *seen = live.changes;
        Some(live.rows.clone())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Rank, LiveRows>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When the unfinished rows of one rank are reported.
#[derive(Debug, Default)]
pub(crate) struct LivePace {
    shown: Vec<String>,
    /// Number of the line that is unfinished, and since when.
    line: Option<(u64, Instant)>,
    reported: Option<Instant>,
}

impl LivePace {
    /// Takes in the rows that are unfinished now, with the number of the line and whether they are written over.
    /// Returns the rows to report, if that is due.
    pub fn turn(
        &mut self,
        rows: Vec<String>,
        (number, is_rewritten): (u64, bool),
        now: Instant,
    ) -> Option<Vec<String>> {
        if rows.is_empty() {
            self.line = None;
            return self.clear();
        }
        let since = match self.line {
            Some((known, since)) if known == number => since,
            _ => now,
        };
        self.line = Some((number, since));
        if !is_rewritten && now.saturating_duration_since(since) < UNFINISHED {
            // The line before it is finished.
            return if since == now { self.clear() } else { None };
        }
        let is_early = self.reported.is_some_and(|at| now.saturating_duration_since(at) < EVERY);
        if is_early || rows == self.shown {
            return None;
        }
        (self.reported, self.shown) = (Some(now), rows.clone());
        Some(rows)
    }

    fn clear(&mut self) -> Option<Vec<String>> {
        (!std::mem::take(&mut self.shown).is_empty()).then(Vec::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is reported of rows at times in ms.
    fn reported(turns: &[(u64, &str, u64, bool)]) -> Vec<(u64, String)> {
        let (mut pace, begin) = (LivePace::default(), Instant::now());
        let mut all = Vec::new();
        for (at, text, number, is_rewritten) in turns {
            let rows = if text.is_empty() { Vec::new() } else { vec![(*text).to_owned()] };
            let now = begin + Duration::from_millis(*at);
            all.extend(pace.turn(rows, (*number, *is_rewritten), now).map(|rows| (*at, rows.concat())));
        }
        all
    }

    #[test]
    fn live_1_bar_is_reported_once_a_second() {
        let turns: Vec<(u64, String)> = (0..25).map(|n| (n * 200, format!("{n}%"))).collect();
        let turns: Vec<_> = turns.iter().map(|(at, text)| (*at, text.as_str(), 3, true)).collect();
        let all = reported(&turns);
        assert_eq!(all.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, 1000, 2000, 3000, 4000]);
        assert_eq!(all[1].1, "5%", "the newest");
    }

    #[test]
    fn live_1_finished_bar_is_cleared_at_once() {
        let all = reported(&[(0, "1%", 3, true), (100, "", 4, false), (200, "", 4, false)]);
        assert_eq!(all, [(0, "1%".to_owned()), (100, String::new())]);
        let all = reported(&[(0, "1%", 3, true), (100, "part", 4, false)]);
        assert_eq!(all, [(0, "1%".to_owned()), (100, String::new())]);
    }

    #[test]
    fn unfinished_line_is_live_after_a_second() {
        let same = [(0, "Password:", 3, false), (500, "Password:", 3, false), (1000, "Password:", 3, false)];
        assert_eq!(reported(&same), [(1000, "Password:".to_owned())]);
        let others = [(0, "a", 3, false), (600, "b", 4, false), (1200, "c", 5, false)];
        assert_eq!(reported(&others), [], "each was finished");
    }

    #[test]
    fn live_rows_are_taken_once() {
        let (live, mut seen) = (LiveLines::default(), 0);
        assert_eq!(live.changed(Rank(0), &mut seen), None);
        live.set(Rank(0), vec!["a".into(), "b".into()]);
        assert_eq!(live.newest(Rank(0)).as_deref(), Some("b"));
        assert_eq!(live.changed(Rank(0), &mut seen).map(|rows| rows.len()), Some(2));
        live.set(Rank(0), vec!["a".into(), "b".into()]);
        assert_eq!(live.changed(Rank(0), &mut seen), None, "nothing has changed");
        live.set(Rank(0), Vec::new());
        assert_eq!((live.newest(Rank(0)), live.changed(Rank(0), &mut seen)), (None, Some(Vec::new())));
    }
}
