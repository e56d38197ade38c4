//! Processes that hold GPUs or shared memory of a host, and whether they may be ended.
//!
//! - HOLD-1: a host ends a process only after it has decided again, on its current state; the console names it by
//!   pid and start time.

use rankdeck_types::error::HintedError;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Most processes of a list.
pub const LISTED: usize = 512;

/// What a process is to this user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HolderStatus {
    /// Proven to be left over from a run of rankdeck that has no live agent.
    Leftover,
    /// It holds a GPU, and has neither a parent but init, a login session nor a Slurm job. Nothing proves where
    /// it comes from.
    Unproven,
    /// Something that lives accounts for it.
    InUse,
    /// It belongs to another user.
    OtherUser,
    /// A status of a later build.
    #[default]
    #[serde(other)]
    Unknown,
}

impl HolderStatus {
    /// The word for users and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            HolderStatus::Leftover => "leftover",
            HolderStatus::Unproven => "unproven",
            HolderStatus::InUse => "in_use",
            HolderStatus::OtherUser => "other_user",
            HolderStatus::Unknown => "unknown",
        }
    }
}

/// What a process uses of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuShare {
    /// NVML index on the host.
    pub index: u32,
    /// Bytes of its memory.
    pub memory: u64,
    /// Recent share of its time, percent, if the driver reports it.
    pub percent: Option<u32>,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Holder {
    pub pid: u32,
    /// Start time, clock ticks since boot.
    pub start: u64,
    /// Its user: a name, or a number without one.
    pub user: String,
    /// The start of its command line.
    pub command: String,
    /// Its state letter.
    pub state: String,
    /// Seconds since it started.
    pub age_s: f64,
    /// Its parent, and the name of that one's program; 0: outside of what this host shows.
    pub ppid: u32,
    pub parent: String,
    /// The run that it belongs to, as far as known.
    pub run: Option<String>,
    /// GPUs that it uses.
    pub gpus: Vec<GpuShare>,
    /// Bytes of the files in `/dev/shm` that it holds, and how many they are.
    pub shm_bytes: u64,
    pub shm_files: u32,
    pub status: HolderStatus,
    /// What the status follows from.
    pub why: String,
}

impl Holder {
    /// Its name for this host, see [`HolderName`].
    pub fn name(&self) -> HolderName {
        HolderName { pid: self.pid, start: self.start }
    }
}

/// The reply of `agent gpus`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HolderList {
    pub holders: Vec<Holder>,
    /// Processes beyond [`LISTED`].
    pub left_out: u64,
    /// The same for all hosts that are one machine.
    pub machine: String,
}

/// A process of a host: a pid alone may be reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct HolderName {
    pub pid: u32,
    /// Start time, clock ticks since boot.
    pub start: u64,
}

impl fmt::Display for HolderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.pid, self.start)
    }
}

impl HolderName {
    /// Parses names that are separated by commas.
    pub fn parse_list(text: &str) -> Option<Vec<HolderName>> {
        let one = |text: &str| {
            let (pid, start) = text.split_once('-')?;
            Some(HolderName { pid: pid.parse().ok()?, start: start.parse().ok()? })
        };
        text.split(',').map(one).collect()
    }
}

/// What became of a process that was to be ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum FreeOutcome {
    /// It is gone.
    Ended,
    /// It was left alone, for this reason.
    Refused(HintedError),
    /// It is still there after SIGKILL, in this state.
    Survived { state: String },
    /// An outcome of a later build.
    #[serde(other)]
    Unknown,
}

/// The reply of `agent free`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FreeReport {
    /// Every process that was named, and those of the same leftovers that were found while they were ended.
    pub processes: Vec<(HolderName, FreeOutcome)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_names_are_pid_and_start() {
        let names = [HolderName { pid: 7, start: 9 }, HolderName { pid: 8, start: 1 }];
        let text = names.map(|name| name.to_string()).join(",");
        assert_eq!(HolderName::parse_list(&text).unwrap(), names);
        for wrong in ["", "7", "7-", "7-9,", "x-9"] {
            assert_eq!(HolderName::parse_list(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn unknown_status_of_a_later_build_is_read() {
        let holder: Holder = serde_json::from_str(r#"{"pid": 7, "status": "borrowed"}"#).unwrap();
        assert_eq!(holder.status, HolderStatus::Unknown);
    }
}
