//! Checkpoints: the full state of a run in one file, with the weights for PyTorch in a second one.
//!
//! Rank 0 reads and writes; the other ranks get the content over the process group.
//!
//! Layout, version 3, little-endian: magic `RANKDECK`, version (u32), length of the header (u32), header
//! (JSON, [`CheckpointMetadata`]), the arrays (f32 each, in the order of `header.arrays`), the words (u64, in the order
//! of `header.words`), the ranks' own words (u64, `world_size * words_per_rank`), SHA-256 of everything
//! before it. Random streams are named by the iteration ([`rankdeck_kernel::seeds`]), so its number is all
//! that a checkpoint needs of them. Schedules count iterations, updates or environment steps, which are in
//! the header.
//!
//! Invariants:
//! - CHECKPOINT-1: a file under its final name is complete: written to a temporary file, synced, renamed,
//!   directory synced. Temporary files of a killed process are removed by the next generation
//!   ([`is_unfinished`]).
//! - CHECKPOINT-2: a file that is cut, changed, of another version, algorithm, environment or network is
//!   refused with one error (exit code 2) that names what differs, before anything of it is used.
//! - CHECKPOINT-3: with the same world size, resuming is bit-exact.
//!
//! Exports policies in the safetensors format (https://github.com/huggingface/safetensors).
//!
//! A file holds the weights by PyTorch's names, the moments that normalize observations, and a description.
//! docs/trainer.md has a loader.
//!
//! Layout: length of the header (u64, little-endian), header (JSON: dtype, shape and byte range of each
//! tensor, and `__metadata__`, texts by name), data. The header is padded with spaces to a multiple of 8, so
//! that data are aligned.

pub mod description;
pub mod resume;
pub(crate) mod set_aside;

use crate::collect::{RankCounters, normalize};
use crate::error::TrainerError;
use crate::inject::{self, SavePoint};
use crate::support::state::{AlgorithmState, Array, MODEL, NamedWords};
use description::Description;
use rankdeck_proto::files::{
    CHECKPOINT_MAGIC as MAGIC, CHECKPOINT_PREFIX as PREFIX, CHECKPOINT_VERSION as VERSION,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

const HASH: usize = 32;
/// How the name of a file ends that is being written; it begins with a dot.
const UNFINISHED: &str = ".tmp";
/// Bytes written between two updates of the progress.
const CHUNK: usize = 4 << 20;

/// Everything that is not an array.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CheckpointMetadata {
    /// `learn.algorithm`.
    pub algorithm: String,
    /// `env.id`.
    pub env_id: String,
    /// Base seed.
    pub seed: u64,
    /// Ranks that wrote it.
    pub world_size: u32,
    /// Environments over all ranks.
    pub num_envs: u32,
    /// u64 words of each rank: counters, then its environments.
    pub words_per_rank: usize,
    /// u64 words of each environment within them; 0 when environments were not saved.
    pub words_per_env: usize,
    /// Training iterations done; names the streams, and is what schedules count.
    pub train_iter: u64,
    /// Optimizer updates done.
    pub updates: u64,
    /// Best evaluation so far.
    pub best: Option<f64>,
    /// The evaluation after that iteration was broken off by a stop.
    pub evaluation_due: bool,
    /// Returns of the last training episodes over all ranks, oldest first.
    #[serde(default)]
    pub latest_returns: Vec<f64>,
    /// Environment steps over all ranks.
    pub env_step: u64,
    /// What was trained, and by what.
    pub about: Description,
    /// Names and shapes of the arrays, in order.
    pub arrays: Vec<(String, Vec<i64>)>,
    /// Names and counts of the words, in order.
    pub words: Vec<(String, usize)>,
}

/// A whole checkpoint.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Checkpoint {
    /// Counters and shapes; `arrays` and `words` are filled in from the fields below when it is encoded.
    pub header: CheckpointMetadata,
    /// Weights, targets, moments.
    pub arrays: Vec<Array>,
    /// Step counts, normalizers.
    pub words: Vec<NamedWords>,
    /// Each rank's counters and environments, one rank after the other.
    pub ranks: Vec<u64>,
}

fn shapes(arrays: &[Array]) -> Vec<(String, Vec<i64>)> {
    arrays.iter().map(|array| (array.name.clone(), array.shape.clone())).collect()
}

fn counts(words: &[NamedWords]) -> Vec<(String, usize)> {
    words.iter().map(|words| (words.name.clone(), words.values.len())).collect()
}

/// Elements of a shape, if it is one.
fn size(shape: &[i64]) -> Option<usize> {
    shape.iter().try_fold(1_usize, |all, side| all.checked_mul(usize::try_from(*side).ok()?))
}

impl Checkpoint {
    /// The file's content.
    pub fn encode(&self) -> Result<Vec<u8>, TrainerError> {
        let header = CheckpointMetadata {
            arrays: shapes(&self.arrays),
            words: counts(&self.words),
            ..self.header.clone()
        };
        let header = serde_json::to_vec(&header)
            .map_err(|error| TrainerError::failure(format!("cannot encode a checkpoint: {error}"), ""))?;
        let floats: usize = self.arrays.iter().map(|array| array.values.len()).sum();
        let mut bytes = Vec::with_capacity(PREFIX + header.len() + 4 * floats + 8 * self.ranks.len() + HASH);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(header.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&header);
        for value in self.arrays.iter().flat_map(|array| &array.values) {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        for word in self.words.iter().flat_map(|words| &words.values).chain(&self.ranks) {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        let hash = Sha256::digest(&bytes);
        bytes.extend_from_slice(&hash);
        Ok(bytes)
    }

    /// Reads a file's content; the error is a sentence without the path.
    pub fn decode(bytes: &[u8]) -> Result<Checkpoint, String> {
        let word =
            |at: usize| -> Option<u32> { Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?)) };
        if bytes.get(..8) != Some(MAGIC) {
            return Err("is not a rankdeck checkpoint".into());
        }
        match word(8) {
            Some(VERSION) => {}
            Some(other) => {
                return Err(format!("has format version {other}; this build reads version {VERSION}"));
            }
            None => return Err("is truncated".into()),
        }
        let Some(end) = bytes.len().checked_sub(HASH).filter(|end| *end >= PREFIX) else {
            return Err("is truncated".into());
        };
        if Sha256::digest(&bytes[..end])[..] != bytes[end..] {
            return Err("is damaged or truncated (checksum mismatch)".into());
        }
        let header_end = word(12).map_or(usize::MAX, |len| PREFIX + len as usize);
        let text = bytes[..end].get(PREFIX..header_end).ok_or("has a header longer than the file")?;
        let header: CheckpointMetadata =
            serde_json::from_slice(text).map_err(|error| format!("has an unreadable header: {error}"))?;
        let unfit = || "has a body that does not match its header".to_owned();
        let mut rest = &bytes[header_end..end];
        // Sizes are checked against what is left before anything of that size is made.
        let mut take = |count: Option<usize>, each: usize| -> Result<&[u8], String> {
            let len = count.and_then(|count| count.checked_mul(each)).filter(|len| *len <= rest.len());
            let (taken, left) = rest.split_at(len.ok_or_else(unfit)?);
            rest = left;
            Ok(taken)
        };
        let mut arrays = Vec::new();
        for (name, shape) in &header.arrays {
            let values = take(size(shape), 4)?.as_chunks::<4>().0;
            let values = values.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect();
            arrays.push(Array { name: name.clone(), shape: shape.clone(), values });
        }
        let words = |bytes: &[u8]| -> Vec<u64> {
            bytes.as_chunks::<8>().0.iter().map(|chunk| u64::from_le_bytes(*chunk)).collect()
        };
        let mut named = Vec::new();
        for (name, count) in &header.words {
            named.push(NamedWords { name: name.clone(), values: words(take(Some(*count), 8)?) });
        }
        let ranks = words(take((header.world_size as usize).checked_mul(header.words_per_rank), 8)?);
        if !rest.is_empty() {
            return Err(unfit());
        }
        if header.words_per_rank < RankCounters::WORDS || header.world_size == 0 {
            return Err("has no counters".into());
        }
        Ok(Checkpoint { arrays, words: named, ranks, header })
    }

    /// Writes it as `folder/NAME.ckpt`, and its policy as `folder/NAME.safetensors`. `moved` gets how many
    /// bytes of how many of a file are written, every [`CHUNK`]. Returns the first path.
    pub fn write(
        &self,
        folder: &Path,
        name: &str,
        mut moved: impl FnMut(u64, u64),
    ) -> Result<PathBuf, TrainerError> {
        let mut put = |name: String, bytes: &[u8]| {
            let path = folder.join(&name);
            let written = inject::writing().and_then(|()| write_atomically(folder, &name, bytes, &mut moved));
            written.map(|()| path.clone()).map_err(|error| {
                TrainerError::failure(
                    format!("cannot write checkpoint {}: {error}", path.display()),
                    "check free disk space and permissions of the run directory",
                )
                .with_io_kind(&error)
            })
        };
        put(format!("{name}.safetensors"), &self.export()?)?;
        put(format!("{name}.ckpt"), &self.encode()?)
    }

    /// The policy as a safetensors file: weights by PyTorch's names, the moments that observations
    /// are normalized by, and everything that a program needs to act with them.
    fn export(&self) -> Result<Vec<u8>, TrainerError> {
        let header = &self.header;
        let about = &header.about;
        let mut entries: Vec<(&str, TensorEntry<'_>)> = self
            .arrays
            .iter()
            .filter_map(|array| Some((array.name.strip_prefix(MODEL)?, TensorEntry::F32(array))))
            .collect();
        let moments = self.words.iter().find(|words| words.name == "moments.observations");
        let moments = moments.and_then(|words| normalize::mean_and_variance(&words.values));
        if let Some((mean, variance)) = &moments {
            entries.push(("observations.mean", TensorEntry::F64(mean)));
            entries.push(("observations.var", TensorEntry::F64(variance)));
        }
        let setting = |pointer: &str| about.experiment.pointer(pointer).unwrap_or(&Value::Null);
        let text = |pointer: &str| match setting(pointer) {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let metadata = [
            ("format", "rankdeck 1".to_owned()),
            ("algorithm", header.algorithm.clone()),
            ("env_id", header.env_id.clone()),
            ("network", text("/policy/network")),
            ("activation", text("/policy/activation")),
            ("hidden", text("/policy/hidden")),
            ("observation_shape", json!(about.observation_shape).to_string()),
            ("observation_type", about.observation_type.clone()),
            ("observation_scale", about.observation_scale.to_string()),
            ("observation_clip", text("/collect/clip_observations")),
            ("observation_epsilon", normalize::EPSILON.to_string()),
            ("actions", about.actions.to_string()),
            ("world_size", header.world_size.to_string()),
            ("train_iter", header.train_iter.to_string()),
            ("env_step", header.env_step.to_string()),
            ("versions", json!(about.versions).to_string()),
            ("experiment", about.experiment.to_string()),
        ];
        let latest = &header.latest_returns;
        let mean = (!latest.is_empty()).then(|| latest.iter().sum::<f64>() / latest.len() as f64);
        let returns = [("best_return", header.best), ("return_last_100", mean)];
        let returns = returns.into_iter().filter_map(|(name, value)| Some((name, value?.to_string())));
        let memory = setting("/policy/memory").as_str().map(|memory| ("memory", memory.to_owned()));
        let branches = (!about.branches.is_empty()).then(|| ("branches", json!(about.branches).to_string()));
        let metadata = metadata.into_iter().chain(memory).chain(branches).chain(returns);
        let metadata = metadata.map(|(name, text)| (name.to_owned(), text)).collect();
        encode_safetensors(&entries, &metadata)
    }

    /// Makes sure that it is of this algorithm and environment. `path` is for the message.
    pub(crate) fn is_of(&self, path: &Path, algorithm: &str, env_id: &str) -> Result<(), TrainerError> {
        let header = &self.header;
        for (what, key, theirs, ours) in [
            ("algorithm", "learn.algorithm", header.algorithm.as_str(), algorithm),
            ("environment", "env.id", header.env_id.as_str(), env_id),
        ] {
            if theirs != ours {
                return Err(refuse(
                    path,
                    format!("was made with {what} {theirs}, not {ours}"),
                    &format!("set {key} = \"{theirs}\", or start from scratch"),
                ));
            }
        }
        Ok(())
    }

    /// Makes sure that everything in `state` is here, with the same shapes, and nothing else (CHECKPOINT-2).
    pub fn fits(&self, path: &Path, state: &AlgorithmState) -> Result<(), TrainerError> {
        let describe = |shape: &[i64]| format!("{shape:?}");
        let there: Vec<(String, String)> =
            self.arrays.iter().map(|array| (array.name.clone(), describe(&array.shape))).collect();
        let here: Vec<(String, String)> =
            state.arrays.iter().map(|array| (array.name.clone(), describe(&array.shape))).collect();
        compare(path, &there, &here, "set [policy] to the checkpoint's, or start from scratch")?;
        let describe = |words: &NamedWords| (words.name.clone(), format!("{} words", words.values.len()));
        let there: Vec<(String, String)> = self.words.iter().map(describe).collect();
        let here: Vec<(String, String)> = state.words.iter().map(describe).collect();
        compare(path, &there, &here, "set [collect] and [learn] to the checkpoint's, or start from scratch")
    }
}

/// Names and shapes on both sides; the first difference is the error.
fn compare(
    path: &Path,
    there: &[(String, String)],
    here: &[(String, String)],
    hint: &str,
) -> Result<(), TrainerError> {
    let find = |among: &[(String, String)], name: &str| -> Option<String> {
        among.iter().find(|(known, _)| known == name).map(|(_, shape)| shape.clone())
    };
    for (name, shape) in here {
        match find(there, name) {
            None => {
                return Err(refuse(
                    path,
                    format!("has a different network: {name} {shape} is missing"),
                    hint,
                ));
            }
            Some(other) if other != *shape => {
                let what = format!(
                    "has a different network: {name} {other} in the checkpoint, {name} {shape} in this run"
                );
                return Err(refuse(path, what, hint));
            }
            Some(_) => {}
        }
    }
    match there.iter().find(|(name, _)| find(here, name).is_none()) {
        Some((name, shape)) => {
            Err(refuse(path, format!("has a different network: {name} {shape} is unknown to this run"), hint))
        }
        None => Ok(()),
    }
}

/// A checkpoint that cannot be used; exit code 2.
pub fn refuse(path: &Path, what: impl AsRef<str>, hint: &str) -> TrainerError {
    TrainerError::usage(format!("checkpoint {} {}", path.display(), what.as_ref()), hint)
}

/// After which iteration a checkpoint was written, by its header alone; `None` where that cannot be read.
pub fn iteration(path: &Path) -> Option<u64> {
    let mut file = File::open(path).ok()?;
    let mut prefix = [0; PREFIX];
    file.read_exact(&mut prefix).ok().filter(|()| prefix.starts_with(MAGIC))?;
    let length = u32::from_le_bytes(prefix.get(12..16)?.try_into().ok()?);
    let mut text = Vec::new();
    file.take(u64::from(length)).read_to_end(&mut text).ok()?;
    serde_json::from_slice::<CheckpointMetadata>(&text).ok().map(|header| header.train_iter)
}

/// Whether a file of this name was left by a process that ended while it wrote a checkpoint.
pub(crate) fn is_unfinished(name: &str) -> bool {
    let written = name.strip_prefix('.').and_then(|name| name.strip_suffix(UNFINISHED));
    written.is_some_and(|name| name.ends_with(".ckpt") || name.ends_with(".safetensors"))
}

fn write_atomically(
    folder: &Path,
    name: &str,
    bytes: &[u8],
    mut moved: impl FnMut(u64, u64),
) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    // A run has one writer, rank 0.
    let temporary = folder.join(format!(".{name}{UNFINISHED}"));
    let written = (|| {
        inject::saving(SavePoint::BetweenFiles)?;
        let mut file = File::create(&temporary)?;
        let (first, rest) = bytes.split_at(bytes.len().min(PREFIX));
        file.write_all(first)?;
        inject::saving(SavePoint::FirstBytes)?;
        let mut written = first.len() as u64;
        for chunk in rest.chunks(CHUNK) {
            file.write_all(chunk)?;
            written += chunk.len() as u64;
            moved(written, bytes.len() as u64);
        }
        inject::saving(SavePoint::BeforeSync)?;
        file.sync_all()?;
        inject::saving(SavePoint::BeforeRename)?;
        std::fs::rename(&temporary, folder.join(name))?;
        File::open(folder)?.sync_all()
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

/// A tensor of the file.
#[derive(Debug, Clone, Copy)]
pub enum TensorEntry<'a> {
    /// Numbers as networks have them.
    F32(&'a Array),
    /// A vector of exact numbers.
    F64(&'a [f64]),
}

impl TensorEntry<'_> {
    fn head(&self) -> (&'static str, Vec<i64>, usize) {
        match self {
            TensorEntry::F32(array) => ("F32", array.shape.clone(), 4 * array.values.len()),
            TensorEntry::F64(values) => ("F64", vec![values.len() as i64], 8 * values.len()),
        }
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        match self {
            TensorEntry::F32(array) => {
                array.values.iter().for_each(|value| bytes.extend(value.to_le_bytes()))
            }
            TensorEntry::F64(values) => values.iter().for_each(|value| bytes.extend(value.to_le_bytes())),
        }
    }
}

/// The content of a file with these tensors and texts.
pub fn encode_safetensors(
    entries: &[(&str, TensorEntry<'_>)],
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>, TrainerError> {
    let (mut header, mut at) = (Map::new(), 0);
    if !metadata.is_empty() {
        header.insert("__metadata__".into(), json!(metadata));
    }
    for (name, entry) in entries {
        let (dtype, shape, len) = entry.head();
        header.insert(
            (*name).to_owned(),
            json!({ "dtype": dtype, "shape": shape, "data_offsets": [at, at + len] }),
        );
        at += len;
    }
    let mut text = serde_json::to_vec(&Value::Object(header))
        .map_err(|error| TrainerError::failure(format!("cannot encode weights: {error}"), ""))?;
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = Vec::with_capacity(8 + text.len() + at);
    bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&text);
    entries.iter().for_each(|(_, entry)| entry.write(&mut bytes));
    Ok(bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn array(name: &str, shape: &[i64], scale: f32) -> Array {
        let len = shape.iter().product::<i64>();
        Array {
            name: name.into(),
            shape: shape.to_vec(),
            values: (0..len).map(|i| scale * i as f32).collect(),
        }
    }

    pub(crate) fn sample() -> Checkpoint {
        let arrays = vec![array("model.critic.0.weight", &[8, 4], 1.5), array("adam.first", &[40], -0.1)];
        let words = vec![
            NamedWords { name: "adam.steps".into(), values: vec![272] },
            NamedWords { name: "moments".into(), values: vec![] },
        ];
        let header = CheckpointMetadata {
            algorithm: "ppo".into(),
            env_id: "CartPole-v1".into(),
            seed: 3,
            world_size: 2,
            num_envs: 4,
            words_per_rank: 6,
            words_per_env: 1,
            train_iter: 17,
            updates: 272,
            best: Some(123.5),
            evaluation_due: true,
            latest_returns: vec![9.5, 1.0 / 3.0],
            env_step: 8704,
            about: Description::default(),
            arrays: shapes(&arrays),
            words: counts(&words),
        };
        Checkpoint { header, arrays, words, ranks: (0..12).map(|i| u64::MAX - i).collect() }
    }

    #[test]
    fn exported_policy_has_returns_if_known() {
        let message =
            |checkpoint: &Checkpoint| String::from_utf8_lossy(&checkpoint.export().unwrap()).into_owned();
        let mut checkpoint = sample();
        let text = message(&checkpoint);
        assert!(
            text.contains("\"best_return\":\"123.5\"") && text.contains("\"return_last_100\":\"4.91"),
            "{text}"
        );
        (checkpoint.header.best, checkpoint.header.latest_returns) = (None, Vec::new());
        assert!(!message(&checkpoint).contains("return"), "{}", message(&checkpoint));
    }

    #[test]
    fn checkpoint_round_trips_bit_by_bit() {
        let checkpoint = sample();
        let folder = tempfile::tempdir().unwrap();
        let mut moved = (0, 0);
        let path = checkpoint
            .write(&folder.path().join("checkpoints"), "latest", |written, of| moved = (written, of))
            .unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(moved, (bytes.len() as u64, bytes.len() as u64));
        assert_eq!(Checkpoint::decode(&bytes).unwrap(), checkpoint);
        let mut names: Vec<_> =
            std::fs::read_dir(path.parent().unwrap()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["latest.ckpt", "latest.safetensors"], "no temporary file stays");
    }

    #[test]
    fn checkpoint_2_any_damage_is_refused() {
        let bytes = sample().encode().unwrap();
        for at in (0..bytes.len()).step_by(41).chain([bytes.len() - 1]) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(Checkpoint::decode(&damaged).is_err(), "byte {at}");
            assert!(Checkpoint::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
        let mut other = bytes.clone();
        other[8] = 9;
        assert!(Checkpoint::decode(&other).unwrap_err().contains("version 9"));
    }

    #[test]
    fn checkpoint_2_wrong_sizes_in_header_are_rejected() {
        for shape in [vec![i64::MAX, i64::MAX], vec![-3], vec![5]] {
            let mut lying = sample();
            lying.arrays[0].shape = shape;
            assert!(Checkpoint::decode(&lying.encode().unwrap()).is_err());
        }
        for change in [
            |header: &mut CheckpointMetadata| header.words_per_rank = usize::MAX,
            |header: &mut CheckpointMetadata| header.words_per_rank = 5,
            |header: &mut CheckpointMetadata| header.world_size = 0,
        ] {
            let mut lying = sample();
            change(&mut lying.header);
            assert!(Checkpoint::decode(&lying.encode().unwrap()).is_err());
        }
    }

    #[test]
    fn checkpoint_2_difference_is_named() {
        let (checkpoint, path) = (sample(), Path::new("runs/a.ckpt"));
        let state =
            AlgorithmState { arrays: sample().arrays, words: sample().words, ..AlgorithmState::default() };
        checkpoint.fits(path, &state).unwrap();
        checkpoint.is_of(path, "ppo", "CartPole-v1").unwrap();
        let refused = |state: &AlgorithmState| {
            let error = checkpoint.fits(path, state).unwrap_err();
            assert!(error.usage && error.to_string().contains("runs/a.ckpt"), "{error}");
            error.hinted.error
        };
        let mut wider = state.clone();
        wider.arrays[0] = array("model.critic.0.weight", &[16, 4], 0.0);
        let text = refused(&wider);
        assert!(text.contains("model.critic.0.weight [8, 4]") && text.contains("[16, 4]"), "{text}");
        let mut more = state.clone();
        more.arrays.push(array("target.0.weight", &[2], 0.0));
        assert!(refused(&more).contains("target.0.weight [2]"));
        let mut fewer = state.clone();
        fewer.arrays.pop();
        assert!(refused(&fewer).contains("adam.first [40]"));
        let mut normalizing = state.clone();
        normalizing.words[1].values = vec![0; 9];
        let text = refused(&normalizing);
        assert!(text.contains("moments 0 words") && text.contains("moments 9 words"), "{text}");
        for (algorithm, env, key) in
            [("a2c", "CartPole-v1", "learn.algorithm"), ("ppo", "CartPole-v0", "env.id")]
        {
            let error = checkpoint.is_of(path, algorithm, env).unwrap_err();
            assert!(error.usage && error.hint().contains(key), "{error:?}");
        }
    }

    #[test]
    fn safetensors_layout_is_as_specified() {
        let a = Array { name: "a".into(), shape: vec![2, 1], values: vec![1.0, -2.0] };
        let b = Array { name: "b".into(), shape: vec![], values: vec![0.5] };
        let metadata = BTreeMap::from([("algorithm".to_owned(), "ppo".to_owned())]);
        let entries =
            [("a", TensorEntry::F32(&a)), ("b", TensorEntry::F32(&b)), ("c", TensorEntry::F64(&[0.1]))];
        let bytes = encode_safetensors(&entries, &metadata).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        assert_eq!(length % 8, 0);
        let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        assert_eq!(header["a"], json!({ "dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8] }));
        assert_eq!(header["b"], json!({ "dtype": "F32", "shape": [], "data_offsets": [8, 12] }));
        assert_eq!(header["c"], json!({ "dtype": "F64", "shape": [1], "data_offsets": [12, 20] }));
        assert_eq!(header["__metadata__"], json!({ "algorithm": "ppo" }));
        let floats = [1.0_f32, -2.0, 0.5].map(f32::to_le_bytes).concat();
        assert_eq!(bytes[8 + length..], [floats, 0.1_f64.to_le_bytes().to_vec()].concat());
    }
}
