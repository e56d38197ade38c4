//! Checkpoints: everything that a run needs to go on as if it had not stopped, in one file.
//!
//! Owner: rank 0 writes and reads; the others get it over the process group.
//!
//! Layout, version 1, little-endian: magic `RANKDECK`, version (u32), length of the header (u32), header (JSON, [`Header`]), parameters,
//! first and second moments (f32 each, in the order of `header.layout`), the ranks' own words (u64, `world_size * words_per_rank`),
//! SHA-256 of all before. Action and shuffle streams are named by the iteration ([`crate::trainer::seeds`]), so the
//! iteration number is all there is to save of them.
//!
//! Invariants:
//! - CHECKPOINT-1: a file under its final name is whole: written beside it, synced, renamed, folder synced.
//! - CHECKPOINT-2: a file that is cut, changed, of another version or of another network is refused with one error (exit code 2)
//!   before anything of it is used.
//! - CHECKPOINT-3: with the same world size, resuming is bit-exact.

use super::error::TrainerError;
use super::policy::actor_critic::Layout;
use crate::trainer::inject;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"RANKDECK";
const VERSION: u32 = 1;
const HASH: usize = 32;
const PREFIX: usize = 16;

/// What is not an array.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Header {
    /// `env.id`.
    pub env_id: String,
    /// Base seed.
    pub seed: u64,
    /// Ranks that wrote it.
    pub world_size: u32,
    /// Environments over all ranks.
    pub num_envs: u32,
    /// u64 words of each rank.
    pub words_per_rank: usize,
    /// u64 words of each environment within them.
    pub words_per_env: usize,
    /// Training iterations done; names the streams, and is what schedules count.
    pub train_iter: u64,
    /// Optimiser updates done; Adam's step count.
    pub updates: u64,
    /// Best evaluation so far.
    pub best: Option<f64>,
    /// Environment steps over all ranks, for reading only.
    pub env_step: u64,
    /// Names and shapes of the parameters, in order.
    pub layout: Vec<(String, Vec<i64>)>,
}

/// A whole checkpoint.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Checkpoint {
    /// Counters, schedules, shapes.
    pub header: Header,
    /// Parameters.
    pub parameters: Vec<f32>,
    /// Adam's first moments.
    pub first: Vec<f32>,
    /// Adam's second moments.
    pub second: Vec<f32>,
    /// Each rank's counters and environments, one rank after the other.
    pub ranks: Vec<u64>,
}

/// Names and shapes as a header has them.
pub fn shapes(layout: &Layout) -> Vec<(String, Vec<i64>)> {
    layout.entries.iter().map(|entry| (entry.name.clone(), entry.shape.clone())).collect()
}

impl Checkpoint {
    /// The file's content.
    pub fn encode(&self) -> Result<Vec<u8>, TrainerError> {
        let header = serde_json::to_vec(&self.header)
            .map_err(|error| TrainerError::failure(format!("cannot encode a checkpoint: {error}"), ""))?;
        let floats = [&self.parameters, &self.first, &self.second];
        let mut bytes = Vec::with_capacity(
            PREFIX + header.len() + 12 * self.parameters.len() + 8 * self.ranks.len() + HASH,
        );
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(header.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&header);
        floats
            .iter()
            .for_each(|values| values.iter().for_each(|v| bytes.extend_from_slice(&v.to_le_bytes())));
        self.ranks.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        let hash = Sha256::digest(&bytes);
        bytes.extend_from_slice(&hash);
        Ok(bytes)
    }

    /// Reads a file's content; the error is a sentence without the path.
    pub fn decode(bytes: &[u8]) -> Result<Checkpoint, String> {
        let word =
            |at: usize| -> Option<u32> { Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?)) };
        if bytes.get(..8) != Some(MAGIC) {
            return Err("is no checkpoint of rankdeck".into());
        }
        match word(8) {
            Some(VERSION) => {}
            Some(other) => {
                return Err(format!("has format version {other}; this build reads version {VERSION}"));
            }
            None => return Err("is cut off".into()),
        }
        let Some(end) = bytes.len().checked_sub(HASH).filter(|end| *end >= PREFIX) else {
            return Err("is cut off".into());
        };
        if Sha256::digest(&bytes[..end])[..] != bytes[end..] {
            return Err("is damaged or cut off: its checksum differs".into());
        }
        let header_end = word(12).map_or(usize::MAX, |len| PREFIX + len as usize);
        let text = bytes[..end].get(PREFIX..header_end).ok_or("has a header longer than the file")?;
        let header: Header =
            serde_json::from_slice(text).map_err(|error| format!("has an unreadable header: {error}"))?;
        let size = |(_, shape): &(String, Vec<i64>)| {
            shape.iter().try_fold(1_usize, |all, side| all.checked_mul(usize::try_from(*side).ok()?))
        };
        let len = header.layout.iter().try_fold(0_usize, |sum, entry| sum.checked_add(size(entry)?));
        let words = (header.world_size as usize).checked_mul(header.words_per_rank);
        let expected =
            len.zip(words).and_then(|(len, words)| len.checked_mul(12)?.checked_add(words.checked_mul(8)?));
        let body = &bytes[header_end..end];
        let (Some(len), true) = (len, expected == Some(body.len())) else {
            return Err("has a body that does not fit its header".into());
        };
        let floats = |part: usize| -> Vec<f32> {
            let part = &body[part * 4 * len..(part + 1) * 4 * len];
            part.as_chunks::<4>().0.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect()
        };
        let ranks =
            body[12 * len..].as_chunks::<8>().0.iter().map(|chunk| u64::from_le_bytes(*chunk)).collect();
        Ok(Checkpoint { parameters: floats(0), first: floats(1), second: floats(2), ranks, header })
    }

    /// Writes it as `folder/name` (CHECKPOINT-1).
    pub fn write(&self, folder: &Path, name: &str) -> Result<PathBuf, TrainerError> {
        let bytes = self.encode()?;
        let path = folder.join(name);
        inject::writing()
            .and_then(|()| write_atomically(folder, name, &bytes))
            .map(|()| path.clone())
            .map_err(|error| {
                TrainerError::failure(
                    format!("cannot write checkpoint {}: {error}", path.display()),
                    "check free space and permissions of the run directory",
                )
            })
    }

    /// Reads `path` and makes sure that it fits the network and the environment (CHECKPOINT-2).
    pub fn read(path: &Path, layout: &Layout, env_id: &str) -> Result<Checkpoint, TrainerError> {
        let refuse = |what: String, hint: &str| {
            TrainerError::usage(format!("checkpoint {} {what}", path.display()), hint)
        };
        let bytes = std::fs::read(path).map_err(|error| {
            refuse(
                format!("cannot be read: {error}"),
                "give a file below checkpoints/ of the run directory, or `latest`",
            )
        })?;
        let checkpoint = Checkpoint::decode(&bytes)
            .map_err(|what| refuse(what, "resume from another checkpoint of the run, or start afresh"))?;
        let header = &checkpoint.header;
        if header.env_id != env_id {
            let what = format!("was made with environment {}, not {env_id}", header.env_id);
            return Err(refuse(what, "set env.id to the checkpoint's, or start afresh"));
        }
        let (theirs, ours) = (&header.layout, shapes(layout));
        if *theirs != ours {
            let differing = theirs.iter().zip(&ours).find(|(a, b)| a != b);
            let what = match differing {
                Some((a, b)) => {
                    format!("holds another network: {} {:?} there, {} {:?} here", a.0, a.1, b.0, b.1)
                }
                None => {
                    format!("holds another network: {} parameters there, {} here", theirs.len(), ours.len())
                }
            };
            return Err(refuse(what, "set policy.hidden to the checkpoint's, or start afresh"));
        }
        if header.words_per_rank < super::collect::Tally::WORDS || header.world_size == 0 {
            return Err(refuse("has no counters".into(), "resume from another checkpoint of the run"));
        }
        Ok(checkpoint)
    }
}

fn write_atomically(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    // A run has one writer, rank 0; what a killed life left half-written is overwritten.
    let temporary = folder.join(format!(".{name}.tmp"));
    let written = (|| {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, folder.join(name))?;
        File::open(folder)?.sync_all()
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::env::Spec;

    fn sample() -> (Checkpoint, Layout) {
        let layout = Layout::new(Spec { observation_len: 4, num_actions: 2 }, &[8]);
        let values = |scale: f32| (0..layout.len).map(|i| scale * i as f32).collect::<Vec<f32>>();
        let header = Header {
            env_id: "CartPole-v1".into(),
            seed: 3,
            world_size: 2,
            num_envs: 4,
            words_per_rank: 6,
            words_per_env: 1,
            train_iter: 17,
            updates: 272,
            best: Some(123.5),
            env_step: 8704,
            layout: shapes(&layout),
        };
        let checkpoint = Checkpoint {
            header,
            parameters: values(1.5),
            first: values(-0.1),
            second: values(1e-9),
            ranks: (0..12).map(|i| u64::MAX - i).collect(),
        };
        (checkpoint, layout)
    }

    #[test]
    fn what_is_written_is_read_back_bit_by_bit() {
        let (checkpoint, layout) = sample();
        let folder = tempfile::tempdir().unwrap();
        let path = checkpoint.write(&folder.path().join("checkpoints"), "latest.ckpt").unwrap();
        assert_eq!(Checkpoint::read(&path, &layout, "CartPole-v1").unwrap(), checkpoint);
        let names: Vec<_> =
            std::fs::read_dir(path.parent().unwrap()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["latest.ckpt"], "no temporary file stays");
    }

    #[test]
    fn checkpoint_2_any_damage_is_refused() {
        let (checkpoint, _) = sample();
        let bytes = checkpoint.encode().unwrap();
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
    fn checkpoint_2_a_header_that_lies_about_sizes_is_refused() {
        let (checkpoint, _) = sample();
        for layout in [
            vec![("a".to_string(), vec![i64::MAX, i64::MAX])],
            vec![("a".to_string(), vec![-3])],
            vec![("a".to_string(), vec![5])],
        ] {
            let header = Header { layout, ..checkpoint.header.clone() };
            let bytes = Checkpoint { header, ..checkpoint.clone() }.encode().unwrap();
            assert!(Checkpoint::decode(&bytes).is_err());
        }
    }

    #[test]
    fn checkpoint_2_another_network_or_environment_is_refused_with_its_name() {
        let (checkpoint, layout) = sample();
        let folder = tempfile::tempdir().unwrap();
        let path = checkpoint.write(folder.path(), "a.ckpt").unwrap();
        let wider = Layout::new(Spec { observation_len: 4, num_actions: 2 }, &[16]);
        let error = Checkpoint::read(&path, &wider, "CartPole-v1").unwrap_err();
        assert!(error.usage && error.message.contains("critic.0.weight [8, 4] there"), "{error}");
        let error = Checkpoint::read(&path, &layout, "CartPole-v0").unwrap_err();
        assert!(error.usage && error.message.contains("CartPole-v1"));
        let error = Checkpoint::read(&folder.path().join("none.ckpt"), &layout, "CartPole-v1").unwrap_err();
        assert!(error.usage && error.message.contains("none.ckpt"));
    }
}
