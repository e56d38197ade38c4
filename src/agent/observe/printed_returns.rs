//! Returns that the ranks of a script print, each for itself: ranks whose environments have the same seed print the
//! same ones.
//!
//! Owner: the agent's loop, which reads the lines; the sampling thread sends what they give. Only names of single
//! episodes count, such as `episodic_return`: a mean may be one over all ranks. Invariants:
//! - SEEDS-1: reading costs a bounded share of a core: at most [`LINES`] lines of a rank a second, each at most
//!   [`BYTES`] long, and no more than [`LINES_OF_ALL`] lines of all ranks.
//! - SEEDS-2: a rank sends a bounded number of blocks, each a number and a hash.

use rankdeck_proto::message::ReturnBlock;
use rankdeck_proto::printed::MetricLineParser;
use rankdeck_types::experiment::Metrics;
use rankdeck_types::ids::Rank;
use rankdeck_types::meaning::{Meaning, Meanings, compile_patterns};
use regex_lite::Regex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most lines of one rank, and of all together, that are read in a second, and the longest of them.
const LINES: u32 = 40;
const LINES_OF_ALL: u32 = 1_000;
const BYTES: usize = 512;
/// Returns of a block, and how many different ones must be among them: where all episodes are as good as can be, equal
/// returns mean nothing.
const BLOCK: u32 = 8;
const DIFFERENT: usize = 4;
/// Blocks that are kept of a rank: the ranks print at different times.
const KEPT: usize = 4;
/// Parts of names of statistics.
const STATISTICS: [&str; 10] =
    ["mean", "avg", "average", "max", "min", "std", "median", "last", "smooth", "global"];

/// The latest blocks of each rank, for the sampling thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReturnBlocks(Arc<Mutex<BTreeMap<Rank, VecDeque<ReturnBlock>>>>);

impl ReturnBlocks {
    /// The latest blocks of a rank, oldest first.
    pub fn of(&self, rank: Rank) -> Vec<ReturnBlock> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&rank).into_iter().flatten().copied().collect()
    }

    fn push(&self, rank: Rank, block: ReturnBlock) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let blocks = all.entry(rank).or_default();
        blocks.push_back(block);
        if blocks.len() > KEPT {
            blocks.pop_front();
        }
    }

    fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Reads the lines of all ranks of this host.
#[derive(Debug)]
pub(crate) struct PrintedReturns {
    patterns: Vec<Regex>,
    meanings: Meanings,
    ranks: BTreeMap<Rank, RankReturns>,
    blocks: ReturnBlocks,
    second: Option<Instant>,
    read: u32,
}

/// Of one rank.
#[derive(Debug, Default)]
struct RankReturns {
    parser: MetricLineParser,
    /// Lines that were read in this second.
    read: u32,
    /// Complete blocks so far.
    blocks: u64,
    /// The block that is being filled: its length, the hash of its values, and the different ones among them.
    count: u32,
    hash: u32,
    values: Vec<f64>,
}

impl PrintedReturns {
    /// Begins a generation of a script; earlier blocks are forgotten.
    pub fn new(metrics: &Metrics, blocks: ReturnBlocks) -> PrintedReturns {
        blocks.clear();
        PrintedReturns {
            patterns: compile_patterns(metrics).unwrap_or_default(),
            meanings: Meanings::new(&metrics.names),
            ranks: BTreeMap::new(),
            blocks,
            second: None,
            read: 0,
        }
    }

    /// Reads finished lines of a rank (SEEDS-1).
    pub fn lines(&mut self, rank: Rank, lines: &[String], now: Instant) {
        if self.second.is_none_or(|second| now.saturating_duration_since(second) >= Duration::from_secs(1)) {
            (self.second, self.read) = (Some(now), 0);
            self.ranks.values_mut().for_each(|known| known.read = 0);
        }
        let known = self.ranks.entry(rank).or_default();
        for line in lines {
            if known.read >= LINES || self.read >= LINES_OF_ALL {
                return;
            }
            (known.read, self.read) = (known.read + 1, self.read + 1);
            if line.len() > BYTES {
                continue;
            }
            for value in returns_in(line, &self.patterns, &self.meanings, &mut known.parser) {
                if let Some(block) = known.add(value) {
                    self.blocks.push(rank, block);
                }
            }
        }
    }
}

/// The returns of single episodes in a line: by the user's patterns, else by the forms in which programs print values.
fn returns_in(
    line: &str,
    patterns: &[Regex],
    meanings: &Meanings,
    parser: &mut MetricLineParser,
) -> Vec<f64> {
    let is_return = |name: &str| meanings.of(name) == Some(Meaning::Return) && is_of_one_episode(name);
    for pattern in patterns {
        let Some(found) = pattern.captures(line) else { continue };
        let names = pattern.capture_names().flatten().filter(|name| is_return(name));
        return names.filter_map(|name| found.name(name)?.as_str().parse().ok()).collect();
    }
    let mut values = Vec::new();
    parser.line(line, meanings, |reading| {
        let returns = reading.values.iter().filter(|(name, _)| is_return(name));
        values.extend(returns.map(|(_, value)| *value));
    });
    values
}

/// Whether a name is of one episode: others may be means over all ranks.
fn is_of_one_episode(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let name = name.rsplit('/').next().unwrap_or(&name);
    let is_episode = name.contains("episod") || name.starts_with("ep_") || name.starts_with("ep ");
    is_episode && !STATISTICS.iter().any(|word| name.contains(word))
}

impl RankReturns {
    /// Adds a return; gives the block that it completes.
    fn add(&mut self, value: f64) -> Option<ReturnBlock> {
        // FNV-1a, of 32 bits.
        let hashed = value
            .to_bits()
            .to_le_bytes()
            .iter()
            .fold(if self.count == 0 { 0x811c_9dc5 } else { self.hash }, |hash: u32, byte| {
                (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
            });
        self.hash = hashed;
        self.count += 1;
        if self.values.len() < DIFFERENT && !self.values.contains(&value) {
            self.values.push(value);
        }
        if self.count < BLOCK {
            return None;
        }
        let block = ReturnBlock {
            number: self.blocks,
            hash: self.hash,
            differs_within: self.values.len() >= DIFFERENT,
        };
        self.blocks += 1;
        (self.count, self.hash) = (0, 0);
        self.values.clear();
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The blocks of two ranks that print these lines.
    fn blocks(print: impl Fn(u32, u32) -> String) -> [Vec<ReturnBlock>; 2] {
        let blocks = ReturnBlocks::default();
        let mut reader = PrintedReturns::new(&Metrics::default(), blocks.clone());
        for turn in 0..48 {
            for rank in [0, 1] {
                let now = Instant::now() + Duration::from_secs(u64::from(turn));
                reader.lines(Rank(rank), &[print(rank, turn)], now);
            }
        }
        [0, 1].map(|rank| blocks.of(Rank(rank)))
    }

    #[test]
    fn seeds_2_equal_episodes_give_equal_blocks() {
        let [first, second] =
            blocks(|_, turn| format!("global_step={turn}, episodic_return=[{}.5]", turn * 7 % 23));
        assert_eq!(first, second);
        assert_eq!(first.iter().map(|block| block.number).collect::<Vec<_>>(), [2, 3, 4, 5]);
        assert!(first.iter().all(|block| block.differs_within));
    }

    #[test]
    fn episodes_of_different_seeds_give_other_blocks() {
        let [first, second] =
            blocks(|rank, turn| format!("global_step={turn}, episodic_return={}", turn * 7 % 23 + rank));
        assert!(first.iter().zip(&second).all(|(one, other)| one.hash != other.hash));
        let [best, _] = blocks(|_, _| "global_step=3, episodic_return=500.0".into());
        assert!(!best.is_empty() && best.iter().all(|block| !block.differs_within));
    }

    #[test]
    fn means_of_many_episodes_are_left_out() {
        for name in ["mean_episode_return", "return", "ep_rew_mean", "avg_reward", "loss"] {
            let [first, _] = blocks(|_, turn| format!("step={turn}, {name}={}", turn * 7 % 23));
            assert_eq!(first, [], "{name}");
        }
    }

    #[test]
    fn seeds_1_flood_of_lines_is_read_in_part() {
        let blocks = ReturnBlocks::default();
        let mut reader = PrintedReturns::new(&Metrics::default(), blocks.clone());
        let lines: Vec<String> = (0..100_000).map(|at| format!("step={at}, episodic_return={at}")).collect();
        reader.lines(Rank(0), &lines, Instant::now());
        assert_eq!(blocks.of(Rank(0)).last().map(|block| block.number), Some(u64::from(LINES / BLOCK - 1)));
    }
}
