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
    /// It is a checkpoint, or part of one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub checkpoint: bool,
}

/// Directory of a run on the console's machine that files are fetched into.
pub const FETCHED: &str = "hosts";
/// Beginning of the names of a run's results in the directory that its ranks work in.
pub const WORK_FILES: &str = "work";
/// Beginning of the names of checkpoints elsewhere on a host, before their absolute paths.
pub const OTHER_FILES: &str = "files";

/// Whether a file has metrics, by its name: event files of TensorBoard, tables, JSON Lines.
pub fn has_metrics(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.contains("tfevents") || name.ends_with(".csv") || name.ends_with(".jsonl")
}

/// Endings of checkpoints: of PyTorch, Lightning, Stable-Baselines3, Hugging Face, CleanRL, Keras, NeMo and Equinox.
pub const CHECKPOINT_ENDINGS: [&str; 9] =
    ["pt", "pth", "ckpt", "zip", "safetensors", "cleanrl_model", "keras", "nemo", "eqx"];
/// Ending of files whose directory is one checkpoint (torch.distributed.checkpoint).
pub const SHARD_ENDING: &str = "distcp";
/// Beginnings of the names of directories that are one checkpoint, each before a number: of Ray and Accelerate, of
/// DeepSpeed and verl.
const NUMBERED_FOLDERS: [&str; 4] = ["checkpoint_", "global_step", "global_step_", "global_step-"];

/// Whether a directory is one checkpoint, by its name: `checkpoint-20` of Hugging Face, `checkpoint_000010`,
/// `global_step100`, `last.ckpt` of Lightning's sharded strategies.
pub fn is_checkpoint_folder(name: &str) -> bool {
    let is_number = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
    name.starts_with("checkpoint-")
        || NUMBERED_FOLDERS.iter().any(|start| name.strip_prefix(*start).is_some_and(is_number))
        || name.strip_suffix(".ckpt").is_some_and(|stem| !stem.is_empty())
}

/// Whether a file looks like a checkpoint, or a part of one, by its path.
pub fn is_checkpoint_name(path: &str) -> bool {
    let mut parts = path.split('/').rev();
    let ending = parts.next().and_then(|name| name.rsplit_once('.')).map_or("", |(_, ending)| ending);
    ending == SHARD_ENDING || CHECKPOINT_ENDINGS.contains(&ending) || parts.any(is_checkpoint_folder)
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
    /// What else to know about them; nothing is missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The directory that its ranks work in, if that is not the run's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<WorkDirectory>,
}

/// The directory that ranks work in.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkDirectory {
    /// Absolute path on the host.
    pub folder: String,
    /// It is the user's own directory, not a copy.
    pub in_place: bool,
    /// Equal on hosts that share the directory.
    pub mark: String,
}

/// A piece of a file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct FilePiece {
    /// Bytes in base64; fewer than requested at the end of the file.
    pub data: String,
}

/// Space that the removal of a run frees, or has freed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Removal {
    pub files: u64,
    pub bytes: u64,
    /// Distinguishes its directory from those of other hosts: hosts may share a disk.
    #[serde(default)]
    pub place: String,
    /// Reason if it was not removed.
    #[serde(default)]
    pub refused: Option<String>,
    /// Its complete checkpoints, with paths in its directory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<FileEntry>,
    /// More checkpoints than the list holds.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more_checkpoints: bool,
    /// Results that stay where its ranks worked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_and_metrics_have_names_of_their_own() {
        for path in [
            "best.pt",
            "a/b.zip",
            "out/checkpoint-20/optimizer.bin",
            "x.safetensors",
            "runs/CartPole-v1__dqn__1/dqn.cleanrl_model",
            "checkpoint_000010/algorithm_state.pkl",
            "out/global_step100/meta.json",
            "out/epoch=1-step=9.ckpt/meta",
            "step-100/__0_0.distcp",
        ] {
            assert!(is_checkpoint_name(path), "{path}");
        }
        for path in [
            "pt",
            "train.py",
            "checkpoint-20",
            "ckpt/log.txt",
            "a.pt/log",
            "checkpoint_callbacks/log",
            "checkpoint_/log",
            "global_step/log",
            ".ckpt/log",
        ] {
            assert!(!is_checkpoint_name(path), "{path}");
        }
        for path in ["runs/events.out.tfevents.1", "metrics.csv", "a/log.jsonl"] {
            assert!(has_metrics(path) && !is_checkpoint_name(path), "{path}");
        }
        assert!(!has_metrics("csv/model.pt"));
    }
}
