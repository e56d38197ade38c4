//! Files of runs, as `agent checkpoints`, `agent files` and `agent read` tell them.

use rankdeck_types::ids::WallTime;
use serde::{Deserialize, Serialize};

/// The checkpoints of one run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunCheckpoints {
    pub run: String,
    /// Its folder, absolute.
    pub run_dir: String,
    /// Files with the ending `.ckpt` in its folder of checkpoints.
    pub files: Vec<FileEntry>,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its path below the folder that was asked for, with `/`.
    pub path: String,
    /// Length.
    pub bytes: u64,
    /// When it last changed, seconds since the epoch by the host's clock.
    pub modified: WallTime,
}

/// What a checkpoint of the built-in trainer begins with: this, [`CHECKPOINT_VERSION`] and the length of its
/// header (u32 each, little-endian), then the header, JSON.
pub const CHECKPOINT_MAGIC: &[u8; 8] = b"RANKDECK";
/// The layout that this build writes and reads.
pub const CHECKPOINT_VERSION: u32 = 3;
/// Bytes before the header.
pub const CHECKPOINT_PREFIX: usize = 16;

/// What a checkpoint of the built-in trainer tells of itself, as far as a console needs it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CheckpointHeader {
    /// What was trained.
    pub about: CheckpointAbout,
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
    /// Its folder, absolute; empty when the host has none of that name.
    pub run_dir: String,
    /// Regular files below it; links are left out.
    pub files: Vec<FileEntry>,
    /// There are more than an answer holds.
    pub more: bool,
}

/// A piece of a file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct FilePiece {
    /// Its bytes in base64; fewer than were asked for at the end of the file.
    pub data: String,
}

/// What the removal of a run frees, or has freed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Removal {
    pub files: u64,
    pub bytes: u64,
    /// What tells its folder from those of other hosts: hosts may share a disk.
    #[serde(default)]
    pub place: String,
    /// Why it was not removed.
    #[serde(default)]
    pub refused: Option<String>,
}
