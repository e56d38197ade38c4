//! How long waits at each line of the program last: learned from the run itself, over all generations.
//!
//! The time that a reward model, a simulator or a worker takes differs from line to line, and from one run to the
//! next. A wait counts for its line once it has ended by itself, so a wait that is longer than all before at its
//! line is unusual there, whatever its length is.
//!
//! Invariants:
//! - PATIENCE-1: memory is bounded: the line whose last wait is longest ago is forgotten first.
//! - PATIENCE-2: only a wait that has ended counts. One that a stopped process or a failure explains does not.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most lines.
const LINES: usize = 256;

/// The waits at one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LineWaits {
    /// The longest one that has ended by itself, ms.
    pub longest_ms: u64,
    /// The longest time that the program has polled there until it went on, ms.
    pub polled_ms: u64,
    /// When the latest one was learned, as a count of all waits.
    pub learned: u64,
}

/// The waits at all lines, by `FILE:LINE`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Patience {
    lines: BTreeMap<String, LineWaits>,
    learned: u64,
}

impl Patience {
    /// A wait at `site` has ended by itself.
    pub fn learn_wait(&mut self, site: &str, ms: u64) {
        self.learn(site, LineWaits { longest_ms: ms, ..LineWaits::default() });
    }

    /// A loop that polls at `site` has ended.
    pub fn learn_polling(&mut self, site: &str, ms: u64) {
        self.learn(site, LineWaits { polled_ms: ms, ..LineWaits::default() });
    }

    fn learn(&mut self, site: &str, new: LineWaits) {
        self.learned += 1;
        if !self.lines.contains_key(site) && self.lines.len() >= LINES {
            let oldest = self.lines.iter().min_by_key(|(_, waits)| waits.learned);
            if let Some(site) = oldest.map(|(site, _)| site.clone()) {
                self.lines.remove(&site);
            }
        }
        let waits = self.lines.entry(site.to_owned()).or_default();
        *waits = LineWaits {
            longest_ms: waits.longest_ms.max(new.longest_ms),
            polled_ms: waits.polled_ms.max(new.polled_ms),
            learned: self.learned,
        };
    }

    /// The waits at `site` so far.
    pub fn at(&self, site: &str) -> LineWaits {
        self.lines.get(site).copied().unwrap_or_default()
    }

    /// What was learned so far.
    pub fn lines(&self) -> BTreeMap<String, LineWaits> {
        self.lines.clone()
    }

    /// Takes over what an earlier console learned.
    pub fn recall(&mut self, lines: &BTreeMap<String, LineWaits>) {
        let mut all: Vec<(&String, &LineWaits)> = lines.iter().collect();
        all.sort_by_key(|(_, waits)| waits.learned);
        for (site, waits) in all {
            self.learn(site, *waits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_1_oldest_line_is_forgotten_first() {
        let mut patience = Patience::default();
        for line in 0..2 * LINES as u64 {
            patience.learn_wait(&format!("train.py:{line}"), 1_000 + line);
            patience.learn_wait("reward.py:9", 20_000);
        }
        assert_eq!(patience.lines.len(), LINES);
        let longest_ms = |site| patience.at(site).longest_ms;
        assert_eq!((longest_ms("train.py:0"), longest_ms("reward.py:9")), (0, 20_000));
        assert_eq!(longest_ms("train.py:511"), 1_511);
    }

    #[test]
    fn recalled_waits_keep_the_longest() {
        let mut earlier = Patience::default();
        earlier.learn_wait("reward.py:9", 20_000);
        earlier.learn_wait("reward.py:9", 3_000);
        let mut patience = Patience::default();
        patience.learn_wait("reward.py:9", 7_000);
        patience.recall(&earlier.lines());
        let found = patience.at("reward.py:9");
        assert_eq!((found.longest_ms, found.polled_ms), (20_000, 0));
        assert_eq!(patience.at("reward.py:10"), LineWaits::default());
    }
}
