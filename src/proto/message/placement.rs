//! Checkpoints that a generation resumes from: what a host has of one, and pieces of its files.

use rankdeck_types::code::Code;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Generation, WallTime};
use serde::{Deserialize, Serialize};

/// Most bytes of a piece: as base64, it fits into a frame.
pub const PIECE: u64 = 512 << 10;
/// Most files of a checkpoint that is placed on hosts.
pub const CHECKPOINT_FILES: usize = 16_384;

/// What a console requests of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum CheckpointOrder {
    /// What this host has of it.
    Describe {
        /// Its path on the host that saved it.
        path: String,
        /// The same below a directory that all hosts have; looked for where `path` does not exist.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        relative: Option<RelativePath>,
        /// The code of the generation that resumes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<Code>,
        /// Compute the hashes of its files.
        #[serde(default)]
        hash: bool,
        /// Only files whose names follow this one: the reply before had more.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<String>,
    },
    /// A piece of one of its files.
    Read {
        /// Path on this host.
        path: String,
        /// Name below `path`; empty: `path` is the file.
        file: String,
        offset: u64,
    },
    /// Writes a piece of one of its files; the file appears when it is complete and verified.
    Write {
        /// Path on this host.
        path: String,
        /// Name below `path`; empty: `path` is the file.
        file: String,
        offset: u64,
        /// Bytes in base64.
        data: String,
        /// Set with the last piece: the hash of the whole file.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sha256: Option<String>,
    },
    /// Moves what is under this path, of an earlier generation, to `genN/` next to it; the reply is `written`.
    SetAside {
        /// Path on this host.
        path: String,
        generation: Generation,
    },
    /// An order unknown to this build.
    #[serde(other)]
    Unknown,
}

/// A path below a directory that every host of a run has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "below", content = "path", rename_all = "snake_case")]
pub enum RelativePath {
    /// The directory in which ranks run.
    Ranks(String),
    /// The directory of the run.
    Run(String),
    /// The host's `workdir`.
    Workdir(String),
}

/// An agent's reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum CheckpointReply {
    Described(CheckpointContent),
    /// A piece; fewer bytes than requested at the end of the file.
    Piece {
        bytes: u64,
        /// The bytes in base64; no recording has them.
        data: String,
    },
    /// The piece is written, or what was there is set aside.
    Written,
    Failed(HintedError),
    /// A reply unknown to this build.
    #[serde(other)]
    Unknown,
}

/// What a host has of a checkpoint.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointContent {
    /// Its path on this host, or where a copy would be.
    pub path: String,
    /// The same for hosts whose directories have other names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relative: Option<RelativePath>,
    /// Its files, ordered by name; empty: the host does not have it.
    pub files: Vec<PartFile>,
    /// More files follow the last one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// Free bytes on the disk of `path`.
    pub free: u64,
}

/// A file of a checkpoint on one host.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PartFile {
    /// Name below the checkpoint; empty: the checkpoint is this file.
    pub name: String,
    pub bytes: u64,
    /// Inode and time of the last change: the same on two hosts if they share the disk.
    pub identity: String,
    /// When its content changed last, seconds since the epoch by the host's clock.
    pub modified: WallTime,
    /// SHA-256 in hexadecimal, if it was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The latest generation on this host when its content changed last; `None`: it is older, or that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// rankdeck copied it to this host, and it is unchanged.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub copied: bool,
}
