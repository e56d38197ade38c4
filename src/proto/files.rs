//! Files of runs, as `agent checkpoints`, `agent files` and `agent read` list them.

use rankdeck_types::ids::WallTime;
use serde::{Deserialize, Serialize};

/// The checkpoints of one run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunCheckpoints {
    pub run: String,
    /// Absolute path of its directory.
    pub run_dir: String,
    /// Files named `*.ckpt` in its directory of checkpoints; those of an earlier generation as
    /// `gen0/best.ckpt`.
    pub files: Vec<FileEntry>,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct FileEntry {
    /// Path below the requested directory, with `/`.
    pub path: String,
    /// Length of the file.
    pub bytes: u64,
    /// Time of the last change, seconds since the epoch by the host's clock.
    pub modified: WallTime,
}

/// Start of a built-in trainer's checkpoint: this, [`CHECKPOINT_VERSION`] and the length of the header (u32
/// each, little-endian), then the header as JSON.
pub const CHECKPOINT_MAGIC: &[u8; 8] = b"RANKDECK";
/// Version of the layout that this build writes and reads.
pub const CHECKPOINT_VERSION: u32 = 3;
/// Bytes before the header.
pub const CHECKPOINT_PREFIX: usize = 16;

/// The header of a built-in trainer's checkpoint, as far as a console needs it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CheckpointHeader {
    /// The trained experiment.
    pub about: CheckpointAbout,
    /// Global environment steps.
    #[serde(default)]
    pub env_step: Option<u64>,
}

/// The same part of the header as the trainer writes it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CheckpointAbout {
    /// The resolved experiment, as JSON: another version may have other keys.
    pub experiment: serde_json::Value,
}

/// The files of one run on one host.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunFiles {
    /// Absolute path of its directory; empty if the host has none of that name.
    pub run_dir: String,
    /// Regular files below it; links are omitted.
    pub files: Vec<FileEntry>,
    /// There are more files than a reply holds.
    pub more: bool,
    /// Omitted files and directories, with reasons.
    #[serde(default)]
    pub left_out: Vec<String>,
}

/// A piece of a file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct FilePiece {
    /// Bytes in base64; fewer than requested at the end of the file.
    pub data: String,
}

/// Space that the removal of a run frees, or has freed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Removal {
    pub files: u64,
    pub bytes: u64,
    /// Distinguishes its directory from those of other hosts: hosts may share a disk.
    #[serde(default)]
    pub place: String,
    /// Reason if it was not removed.
    #[serde(default)]
    pub refused: Option<String>,
}
