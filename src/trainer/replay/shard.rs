//! Replay in checkpoints: one file per rank, replaced as a whole.
//!
//! Format: the magic, the length of a JSON head, the head (sizes and what the file belongs to), the used part
//! of every environment's arrays as little-endian numbers, and a checksum of everything before it.
//! Invariants:
//! - SHARD-1: a file under its final name is complete: it is written to a temporary file, flushed to disk, and renamed.
//! - SHARD-2: nothing in a file is trusted: sizes must be those that this run expects, and numbers must fit
//!   each other, before anything is used. Memory never exceeds [`ReplayShape::bytes`], whatever the file contains.

use super::env_buffer::EnvBuffer;
use super::{Replay, ReplayShape};
use crate::error::TrainerError;
use crate::inject::{self, SavePoint};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"rdreplay";
const VERSION: u32 = 1;
const HEAD_MAX: u64 = 1 << 20;
/// Extension of a file that is being written.
const UNFINISHED: &str = "partial";
/// Bytes between two reports of progress; a multiple of the checksum's words.
const PART: usize = 4 << 20;

/// What a shard belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayMark {
    /// Environment.
    pub env_id: String,
    /// Base seed of the run.
    pub seed: u64,
    /// Rank that wrote it.
    pub rank: u32,
    /// Ranks of the run.
    pub world_size: u32,
    /// Training iterations before it was written.
    pub train_iter: u64,
}

impl std::fmt::Display for ReplayMark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ReplayMark { env_id, seed, rank, world_size, train_iter } = self;
        write!(f, "rank {rank} of {world_size} after iteration {train_iter}, {env_id}, seed {seed}")
    }
}

/// Why a shard cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShardError {
    /// The file system refused.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The file is damaged, or belongs to another run.
    #[error("{0}")]
    Content(String),
}

#[derive(Serialize, Deserialize)]
struct ShardHeader {
    version: u32,
    mark: ReplayMark,
    capacity: usize,
    element: usize,
    frame: usize,
    stack: usize,
    action: usize,
    #[serde(default)]
    mask: usize,
    buffers: Vec<BufferHead>,
}

#[derive(Serialize, Deserialize)]
struct BufferHead {
    next_frame: u64,
    current: Option<u64>,
    first: u64,
    next: u64,
}

/// FNV-1a over 8-byte words, so that it is cheap compared with the disk.
struct ShardChecksum(u64);

impl ShardChecksum {
    fn add(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17);
        }
    }
}

/// What goes into a shard, and its checksum.
pub(crate) struct ShardWriter<W: Write> {
    to: W,
    sum: ShardChecksum,
}

impl<W: Write> ShardWriter<W> {
    /// Writes them.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.sum.add(bytes);
        self.to.write_all(bytes)
    }

    fn numbers<const N: usize>(&mut self, numbers: impl Iterator<Item = [u8; N]>) -> std::io::Result<()> {
        numbers.into_iter().try_for_each(|bytes| self.bytes(&bytes))
    }
}

/// What comes out of a shard, and its checksum.
pub(crate) struct ShardReader<R: Read> {
    from: R,
    sum: ShardChecksum,
}

impl<R: Read> ShardReader<R> {
    /// From the beginning.
    pub(crate) fn new(from: R) -> ShardReader<R> {
        ShardReader { from, sum: ShardChecksum(0) }
    }

    /// The checksum of what was read.
    pub(crate) fn sum(&self) -> u64 {
        self.sum.0
    }

    /// What follows, past the checksum.
    pub(crate) fn rest(&mut self) -> &mut R {
        &mut self.from
    }

    /// Reads as many.
    pub(crate) fn bytes(&mut self, bytes: &mut [u8]) -> std::io::Result<()> {
        self.from.read_exact(bytes)?;
        self.sum.add(bytes);
        Ok(())
    }

    /// Reads the head of a file that begins so; `what` it would hold.
    pub(crate) fn head<H: DeserializeOwned>(&mut self, magic: [u8; 8], what: &str) -> Result<H, ShardError> {
        let wrong = |text: String| Err(ShardError::Content(text));
        let mut word = [0; 8];
        self.bytes(&mut word)?;
        if word != magic {
            return wrong(format!("it does not contain {what}"));
        }
        self.bytes(&mut word)?;
        let length = u64::from_le_bytes(word);
        if length > HEAD_MAX {
            return wrong("its header is too long".into());
        }
        let mut head = vec![0; length as usize];
        self.bytes(&mut head)?;
        serde_json::from_slice(&head).or_else(|error| wrong(format!("cannot read its header: {error}")))
    }

    fn numbers<const N: usize>(
        &mut self,
        count: usize,
        mut each: impl FnMut(usize, [u8; N]),
    ) -> std::io::Result<()> {
        for i in 0..count {
            let mut bytes = [0; N];
            self.bytes(&mut bytes)?;
            each(i, bytes);
        }
        Ok(())
    }
}

/// Writes `replay` to `path`. `moved` gets the bytes of environments written so far and of all.
pub(crate) fn save(
    replay: &Replay,
    mark: &ReplayMark,
    path: &Path,
    moved: &mut dyn FnMut(u64, u64),
) -> Result<(), ShardError> {
    let shape = replay.shape();
    let head = ShardHeader {
        version: VERSION,
        mark: mark.clone(),
        capacity: shape.capacity,
        element: shape.element,
        frame: shape.frame,
        stack: shape.stack,
        action: shape.action,
        mask: shape.mask,
        buffers: replay
            .buffers
            .iter()
            .map(|buffer| BufferHead {
                next_frame: buffer.next_frame,
                current: buffer.current,
                first: buffer.first,
                next: buffer.next,
            })
            .collect(),
    };
    let head = serde_json::to_vec(&head).map_err(|error| ShardError::Content(error.to_string()))?;
    write_shard(path, |out| {
        out.bytes(MAGIC)?;
        out.bytes(&(head.len() as u64).to_le_bytes())?;
        out.bytes(&head)?;
        let each = |buffer: &EnvBuffer| used(shape, buffer.seen.len(), (buffer.next, buffer.next_frame));
        let all: u64 = replay.buffers.iter().map(|b| (each(b).1 * shape.frame_bytes()) as u64).sum();
        let mut done = 0;
        for buffer in &replay.buffers {
            let (steps, frames) = each(buffer);
            for part in buffer.frames[..frames * shape.frame_bytes()].chunks(PART) {
                out.bytes(part)?;
                done += part.len() as u64;
                moved(done, all);
            }
            out.numbers(buffer.seen[..steps].iter().map(|seen| seen.to_le_bytes()))?;
            out.numbers(buffer.rewards[..steps].iter().map(|reward| reward.to_le_bytes()))?;
            out.bytes(&buffer.flags[..steps])?;
            let choices = buffer.choices.len().min(steps);
            out.numbers(buffer.choices[..choices].iter().map(|choice| choice.to_le_bytes()))?;
            out.numbers(buffer.actions[..steps * shape.action].iter().map(|number| number.to_le_bytes()))?;
        }
        Ok(())
    })
}

/// Writes a file that is complete under its name (SHARD-1): what `fill` puts into it, and the checksum of
/// that.
pub(crate) fn write_shard(
    path: &Path,
    fill: impl FnOnce(&mut ShardWriter<BufWriter<&File>>) -> Result<(), ShardError>,
) -> Result<(), ShardError> {
    let temporary = path.with_extension(UNFINISHED);
    let written = || -> Result<(), ShardError> {
        inject::saving(SavePoint::BetweenFiles)?;
        let file = File::create(&temporary)?;
        let mut out = ShardWriter { to: BufWriter::with_capacity(1 << 20, &file), sum: ShardChecksum(0) };
        fill(&mut out)?;
        inject::saving(SavePoint::FirstBytes)?;
        let sum = out.sum.0;
        out.to.write_all(&sum.to_le_bytes())?;
        out.to.flush()?;
        drop(out);
        inject::saving(SavePoint::BeforeSync)?;
        file.sync_all()?;
        inject::saving(SavePoint::BeforeRename)?;
        Ok(std::fs::rename(&temporary, path)?)
    };
    written().inspect_err(|_| {
        // An incomplete file is useless.
        let _ = std::fs::remove_file(&temporary);
    })
}

/// This rank's file of a checkpoint: `replay-RANK.ITERATION.shard`.
pub(crate) fn shard_path(folder: &Path, mark: &ReplayMark) -> PathBuf {
    folder.join(format!("replay-{}.{}.shard", mark.rank, mark.train_iter))
}

/// The rank and the iteration whose file has this name, if it is one.
pub(crate) fn shard_of(name: &str) -> Option<(u32, u64)> {
    let (rank, iteration) = name.strip_prefix("replay-")?.strip_suffix(".shard")?.split_once('.')?;
    Some((rank.parse().ok()?, iteration.parse().ok()?))
}

/// The rank whose unfinished file has this name, if it is one.
pub(crate) fn unfinished_of(name: &str) -> Option<u32> {
    let own = name.strip_prefix("replay-")?.strip_suffix(UNFINISHED)?;
    own.split_once('.')?.0.parse().ok()
}

/// Replaces this rank's files but that of iteration `keep` by the one that `save` writes: until the
/// checkpoint is complete, the one before it keeps its own.
pub(crate) fn replace_shard(
    folder: &Path,
    mark: &ReplayMark,
    keep: Option<u64>,
    save: impl FnOnce(&Path) -> Result<(), ShardError>,
) -> Result<(), TrainerError> {
    let path = shard_path(folder, mark);
    let made = std::fs::create_dir_all(folder).map_err(ShardError::from);
    made.and_then(|()| {
        remove_old(folder, mark, keep)?;
        save(&path)
    })
    .map_err(|error| {
        let reported = TrainerError::failure(
            format!("rank {} cannot write {}: {error}", mark.rank, path.display()),
            "free disk space there, or set checkpoint.replay = false",
        );
        match &error {
            ShardError::Io(error) => reported.with_io_kind(error),
            ShardError::Content(_) => reported,
        }
    })
}

/// Removes this rank's shards but those of this checkpoint and of iteration `keep`.
fn remove_old(folder: &Path, mark: &ReplayMark, keep: Option<u64>) -> std::io::Result<()> {
    let kept = [Some(mark.train_iter), keep].map(|iteration| iteration.map(|i| i.to_string()));
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let own = name.strip_prefix("replay-").and_then(|rest| rest.strip_prefix(&format!("{}.", mark.rank)));
        let Some((iteration, _)) = own.and_then(|own| own.split_once('.')) else { continue };
        if !kept.iter().flatten().any(|kept| kept == iteration) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Slots of steps and of frames that hold something.
fn used(shape: &ReplayShape, capacity: usize, (next, next_frame): (u64, u64)) -> (usize, usize) {
    (next.min(capacity as u64) as usize, next_frame.min(shape.env_frames() as u64) as usize)
}

/// Reads what [`save`] wrote, for exactly this mark and these sizes.
pub(crate) fn load(shape: &ReplayShape, mark: &ReplayMark, path: &Path) -> Result<Replay, ShardError> {
    let wrong = |text: &str| ShardError::Content(text.to_owned());
    let mut from =
        ShardReader { from: BufReader::with_capacity(1 << 20, File::open(path)?), sum: ShardChecksum(0) };
    let head: ShardHeader = from.head(*MAGIC, "replay")?;
    if head.version != VERSION {
        return Err(wrong(&format!("version {} is not {VERSION}", head.version)));
    }
    if head.mark != *mark {
        return Err(wrong(&format!("it belongs to {}, not to {mark}", head.mark)));
    }
    let ShardHeader { capacity, element, frame, stack, action, mask, .. } = head;
    let sizes = [capacity, element, frame, stack, action, mask, head.buffers.len()];
    let ReplayShape { capacity, element, frame, stack, action, mask, envs, .. } = *shape;
    if sizes != [capacity, element, frame, stack, action, mask, envs] {
        return Err(wrong("its sizes differ from this run's"));
    }
    let mut replay = Replay::new(shape.clone());
    for (buffer, head) in replay.buffers.iter_mut().zip(&head.buffers) {
        let (steps, frames) = used(shape, buffer.seen.len(), (head.next, head.next_frame));
        (buffer.next_frame, buffer.current) = (head.next_frame, head.current);
        (buffer.first, buffer.next) = (head.first, head.next);
        from.bytes(&mut buffer.frames[..frames * shape.frame_bytes()])?;
        let EnvBuffer { seen, rewards, flags, choices, actions, .. } = buffer;
        from.numbers(steps, |i, bytes| seen[i] = u64::from_le_bytes(bytes))?;
        from.numbers(steps, |i, bytes| rewards[i] = f32::from_le_bytes(bytes))?;
        from.bytes(&mut flags[..steps])?;
        from.numbers(choices.len().min(steps), |i, bytes| choices[i] = i32::from_le_bytes(bytes))?;
        from.numbers(steps * shape.action, |i, bytes| actions[i] = f32::from_le_bytes(bytes))?;
        if !consistent(buffer, shape) {
            return Err(wrong("its contents are inconsistent"));
        }
    }
    let sum = from.sum.0;
    let mut stored = [0; 8];
    from.from.read_exact(&mut stored)?;
    if u64::from_le_bytes(stored) != sum {
        return Err(wrong("checksum mismatch"));
    }
    if from.from.read(&mut [0])? != 0 {
        return Err(wrong("trailing data"));
    }
    Ok(replay)
}

/// Every number names something that is there.
fn consistent(buffer: &EnvBuffer, shape: &ReplayShape) -> bool {
    let oldest = buffer.next_frame.saturating_sub(shape.env_frames() as u64) + shape.stack as u64 - 1;
    let there = |number: u64| (oldest..buffer.next_frame).contains(&number);
    buffer.first <= buffer.next
        && buffer.next - buffer.first <= buffer.seen.len() as u64
        // Far from overflow.
        && buffer.next_frame < 1 << 62
        && buffer.next < 1 << 62
        && buffer.current.is_none_or(there)
        && (buffer.first..buffer.next).all(|step| there(buffer.seen[(step % buffer.seen.len().max(1) as u64) as usize]))
}
