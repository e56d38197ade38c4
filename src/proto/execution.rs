//! What a run of the built-in trainer leaves behind for `rankdeck diff`: the fingerprints of its iterations
//! ([`FINGERPRINTS`]), the operations of a replay, and the arrays of a checkpoint.
//!
//! `fingerprints.txt` has a line per iteration: its number, and the fingerprint of the weights after it as 16 hexadecimal
//! digits; those of all ranks, in rank order, where they differ. Lines that start with `#` are comments.
//!
//! A replay writes one JSON object per operation ([`TracedOperation`]).
//!
//! Invariants:
//! - EXECUTION-1: foreign bytes never panic, and allocate no more than they have themselves.

use crate::files::{CHECKPOINT_MAGIC, CHECKPOINT_PREFIX, CHECKPOINT_VERSION};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Name of the file with fingerprints, in the run directory.
pub const FINGERPRINTS: &str = "fingerprints.txt";
/// Most operations that a rank writes in a replay.
pub const MOST_OPERATIONS: u64 = 500_000;

/// The fingerprints of one iteration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FingerprintLine {
    /// Iterations done.
    pub train_iter: u64,
    /// One of all ranks if they are equal, else each rank's.
    pub ranks: Vec<u64>,
}

impl FingerprintLine {
    /// Of all ranks, in rank order.
    pub fn new(train_iter: u64, chains: &[u64]) -> FingerprintLine {
        let equal = chains.windows(2).all(|pair| pair[0] == pair[1]);
        let kept = if equal { 1 } else { chains.len() };
        FingerprintLine { train_iter, ranks: chains.iter().copied().take(kept).collect() }
    }

    /// Of one rank; `None` for a rank that there was not.
    pub fn of(&self, rank: u32) -> Option<u64> {
        match self.ranks.as_slice() {
            [all] => Some(*all),
            ranks => ranks.get(rank as usize).copied(),
        }
    }

    /// Parses a line; `None` for comments and for lines of another form.
    pub fn parse(line: &str) -> Option<FingerprintLine> {
        let mut words = line.split_ascii_whitespace();
        let train_iter = words.next()?.parse().ok()?;
        let ranks = words.map(|word| u64::from_str_radix(word, 16)).collect::<Result<Vec<u64>, _>>().ok()?;
        (!ranks.is_empty()).then_some(FingerprintLine { train_iter, ranks })
    }

    /// Parses a file; of several lines of an iteration the last one counts. A last line without its end is not
    /// complete: the run is writing it, or was killed meanwhile.
    pub fn parse_all(text: &str) -> BTreeMap<u64, FingerprintLine> {
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        complete.lines().filter_map(FingerprintLine::parse).map(|line| (line.train_iter, line)).collect()
    }
}

impl fmt::Display for FingerprintLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.train_iter)?;
        self.ranks.iter().try_for_each(|rank| write!(f, " {rank:016x}"))
    }
}

/// Stage of an iteration that an operation belongs to, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TracedStage {
    /// Weights and moments before the iteration.
    Start,
    /// Observations, actions and rewards.
    Rollout,
    /// Advantages and returns.
    Advantages,
    /// Forward and backward pass of an update.
    Pass,
    /// Sum of the gradients and step of the optimizer, equal on all ranks.
    Step,
}

impl TracedStage {
    /// Whether all ranks make its operations alike.
    pub fn is_shared(self) -> bool {
        matches!(self, TracedStage::Start | TracedStage::Step)
    }
}

/// What an operation gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TracedOperation {
    /// Number of the iteration, from 1.
    pub train_iter: u64,
    /// Updates of the iteration before it.
    pub update: u64,
    pub stage: TracedStage,
    /// Rank, or with `distributed.invariant` block of environments; 0 for operations of all ranks.
    pub unit: u32,
    /// Operations of this stage and unit before it.
    pub step: u32,
    pub operation: String,
    /// Numbers that it gave.
    pub len: u64,
    /// Hash of their bits, as 16 hexadecimal digits.
    pub hash: String,
    /// Root of the sum of their squares; absent if it is not finite.
    #[serde(default)]
    pub norm: Option<f64>,
}

impl TracedOperation {
    /// Orders operations as an execution makes them; units side by side.
    pub fn position(&self) -> (u64, u64, TracedStage, u32, u32) {
        (self.train_iter, self.update, self.stage, self.step, self.unit)
    }
}

/// An array of a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointArray {
    pub name: String,
    /// Its shape; empty for a scalar.
    pub shape: Vec<i64>,
    pub values: Vec<f32>,
}

/// The parts of a checkpoint's header that say what follows it.
#[derive(Debug, Deserialize)]
struct ContentsHeader {
    train_iter: u64,
    #[serde(default)]
    updates: u64,
    #[serde(default)]
    world_size: u32,
    about: crate::files::CheckpointAbout,
    arrays: Vec<(String, Vec<i64>)>,
}

/// A checkpoint of the built-in trainer, as far as two of them are compared.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointContents {
    /// Iterations done.
    pub train_iter: u64,
    pub updates: u64,
    /// Ranks that wrote it.
    pub world_size: u32,
    /// The resolved experiment.
    pub experiment: serde_json::Value,
    /// Weights and moments.
    pub arrays: Vec<CheckpointArray>,
}

impl CheckpointContents {
    /// Reads a file's content.
    ///
    /// # Errors
    /// A sentence without the path.
    pub fn read(bytes: &[u8]) -> Result<CheckpointContents, String> {
        let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        if !bytes.starts_with(CHECKPOINT_MAGIC) {
            return Err("is not a rankdeck checkpoint".into());
        }
        match (word(8), word(12)) {
            (Some(CHECKPOINT_VERSION), Some(len)) => {
                let (header, mut rest) = bytes
                    .get(CHECKPOINT_PREFIX..)
                    .and_then(|rest| rest.split_at_checked(len as usize))
                    .ok_or("is truncated")?;
                let header: ContentsHeader = serde_json::from_slice(header)
                    .map_err(|error| format!("has an unreadable header: {error}"))?;
                let mut arrays = Vec::new();
                for (name, shape) in header.arrays {
                    let size = shape.iter().try_fold(4_usize, |all, side| {
                        usize::try_from(*side).ok().and_then(|side| all.checked_mul(side))
                    });
                    let (own, more) =
                        size.and_then(|size| rest.split_at_checked(size)).ok_or("is truncated")?;
                    let values =
                        own.as_chunks::<4>().0.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect();
                    arrays.push(CheckpointArray { name, shape, values });
                    rest = more;
                }
                Ok(CheckpointContents {
                    train_iter: header.train_iter,
                    updates: header.updates,
                    world_size: header.world_size,
                    experiment: header.about.experiment,
                    arrays,
                })
            }
            (Some(other), Some(_)) => {
                Err(format!("has format version {other}; this build reads version {CHECKPOINT_VERSION}"))
            }
            _ => Err("is truncated".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fingerprint_lines_round_trip() {
        for chains in [vec![7], vec![7, 7, 7], vec![7, 8, 7]] {
            let line = FingerprintLine::new(12, &chains);
            assert_eq!(FingerprintLine::parse(&line.to_string()), Some(line.clone()));
            for (rank, chain) in (0..).zip(&chains) {
                assert_eq!(line.of(rank), Some(*chain));
            }
        }
        assert_eq!(FingerprintLine::new(1, &[7, 8]).of(2), None);
        for text in ["", "# iteration", "12", "x 7", "12 7 g"] {
            assert_eq!(FingerprintLine::parse(text), None, "{text:?}");
        }
        let all = FingerprintLine::parse_all("# a\n1 a\n2 b\n1 c\n");
        assert_eq!((all.len(), all[&1].ranks[0]), (2, 0xc));
        for (text, complete) in
            [("1 a\n2 b", vec![1]), ("1 a\n2 b\n", vec![1, 2]), ("1 a", vec![]), ("", vec![])]
        {
            assert_eq!(
                FingerprintLine::parse_all(text).into_keys().collect::<Vec<_>>(),
                complete,
                "{text:?}"
            );
        }
    }

    #[test]
    fn operations_of_all_units_stand_side_by_side() {
        let operation = |update, stage, unit, step| TracedOperation {
            train_iter: 1,
            update,
            stage,
            unit,
            step,
            operation: "x".into(),
            len: 1,
            hash: "0".into(),
            norm: None,
        };
        let ordered = [
            operation(0, TracedStage::Start, 0, 3),
            operation(0, TracedStage::Pass, 0, 0),
            operation(0, TracedStage::Pass, 1, 0),
            operation(0, TracedStage::Pass, 0, 1),
            operation(0, TracedStage::Step, 0, 0),
            operation(1, TracedStage::Pass, 0, 0),
        ];
        assert!(ordered.is_sorted_by_key(TracedOperation::position));
    }

    fn checkpoint(arrays: &serde_json::Value, data: &[f32]) -> Vec<u8> {
        let header =
            json!({ "train_iter": 5, "world_size": 2, "about": { "experiment": {} }, "arrays": arrays });
        let header = header.to_string().into_bytes();
        let mut bytes = CHECKPOINT_MAGIC.to_vec();
        bytes.extend(CHECKPOINT_VERSION.to_le_bytes());
        bytes.extend((header.len() as u32).to_le_bytes());
        bytes.extend(header);
        bytes.extend(data.iter().flat_map(|value| value.to_le_bytes()));
        bytes
    }

    #[test]
    fn execution_1_checkpoints_are_read_and_cut_ones_refused() {
        let bytes = checkpoint(&json!([["model.a", [2, 1]], ["model.b", []]]), &[1.0, 2.0, 3.0]);
        let read = CheckpointContents::read(&bytes).unwrap();
        assert_eq!((read.train_iter, read.world_size, read.arrays.len()), (5, 2, 2));
        assert_eq!(read.arrays[0].values, [1.0, 2.0]);
        assert_eq!(read.arrays[1].values, [3.0]);
        for len in 0..bytes.len() {
            assert!(CheckpointContents::read(&bytes[..len]).is_err(), "{len}");
        }
        let huge = checkpoint(&json!([["model.a", [i64::MAX, i64::MAX]], ["model.b", [-1]]]), &[1.0]);
        assert!(CheckpointContents::read(&huge).is_err());
    }
}
