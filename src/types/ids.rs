//! Identifiers: ranks, hosts, runs, generations, and the two kinds of time.
//!
//! Invariants:
//! - RUN-ID-1: a run's name that comes from a file or a wire is a plain file name.
//!
//! They are newtypes, so that a `local_rank` can never be passed where a `rank` is meant. CleanRL's multi-GPU
//! script mixes the two, which works on one node and fails on two.

use crate::error::HintedError;
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// Returns the number as an index into a vector ordered by it.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// Global index of a rank, `0..world_size`; environment variable `RANK`.
    Rank
}
number! {
    /// Index of a rank on its host, `0..local_world_size`; environment variable `LOCAL_RANK`; picks the
    /// device.
    LocalRank
}
number! {
    /// Index of a host in `hosts.toml`; environment variables `NODE_RANK` and `GROUP_RANK`.
    NodeRank
}
number! {
    /// Generation of the worker group. A restart starts a new one; the first is 0 (torchelastic's restart
    /// count).
    Generation
}

/// A run: `NAME-YYYYMMDD-HHMMSS`, chosen once by the console that launches it and passed to every host.
///
/// It names directories on every machine. A text that cannot be a file name is not decoded (RUN-ID-1).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct RunId(pub String);

impl RunId {
    /// Longest name, bytes.
    const LONGEST: usize = 128;

    /// Parses the name of a run.
    ///
    /// # Errors
    /// The text contains anything but letters, digits, `-`, `_` and `.`, or starts with `.`.
    pub fn parse(text: &str) -> Result<RunId, HintedError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let fits = !text.is_empty() && text.len() <= RunId::LONGEST && !text.starts_with('.');
        if fits && text.chars().all(plain) {
            return Ok(RunId(text.to_owned()));
        }
        Err(HintedError::new(
            format!("invalid run name `{}`", crate::words::clip(text, RunId::LONGEST)),
            "use letters, digits, `-`, `_` and `.`, not starting with `.`",
        ))
    }
}

impl TryFrom<String> for RunId {
    type Error = HintedError;

    fn try_from(text: String) -> Result<RunId, HintedError> {
        RunId::parse(&text)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Milliseconds on one machine's monotonic clock. Never compared between machines: only ages cross hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Returns the milliseconds since `earlier`; 0 if `earlier` is later.
    pub fn since(self, earlier: Timestamp) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns this time plus `ms` milliseconds.
    pub fn plus(self, ms: u64) -> Timestamp {
        Timestamp(self.0.saturating_add(ms))
    }
}

/// Seconds since the Unix epoch, for display and for `time` in JSON; never used for decisions.
pub type WallTime = f64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_id_1_only_plain_file_names_are_decoded() {
        for good in ["a", "ppo-20260101-000000-2", "A_1.b"] {
            assert_eq!(RunId::try_from(good.to_string()).unwrap(), RunId(good.into()));
        }
        let long = "x".repeat(129);
        for bad in
            ["", ".", "..", "../x", "/tmp/x", "a/b", "a b", "a\0", "a\n", "\u{1b}[2J", "ä", long.as_str()]
        {
            assert!(RunId::try_from(bad.to_string()).is_err(), "{bad:?}");
        }
    }
}
