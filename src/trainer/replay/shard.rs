//! Replay in checkpoints: one file per rank, replaced as a whole.
//!
//! Owner: the rank. Format: the magic, the length of a JSON head, the head (sizes and what the file belongs
//! to), the used part of every environment's arrays as little-endian numbers, and a checksum of everything
//! before it. Invariants:
//! - SHARD-1: a file under its final name is complete: it is written beside it, flushed to disk, and renamed.
//! - SHARD-2: nothing in a file is trusted: sizes must be those that this run expects, and numbers must fit
//!   each other, before anything is used. Memory never exceeds [`Shape::bytes`], whatever the file says.

use super::env_buffer::EnvBuffer;
use super::{Replay, Shape};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

const MAGIC: &[u8; 8] = b"rdreplay";
const VERSION: u32 = 1;
const HEAD_MAX: u64 = 1 << 20;

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

/// Why a shard cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// The file system refused.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The file is damaged, or belongs to another run.
    #[error("{0}")]
    Content(String),
}

#[derive(Serialize, Deserialize)]
struct Head {
    version: u32,
    mark: ReplayMark,
    capacity: usize,
    element: usize,
    frame: usize,
    stack: usize,
    action: usize,
    #[serde(rename = "lanes")]
    buffers: Vec<BufferHead>,
}

#[derive(Serialize, Deserialize)]
struct BufferHead {
    next_frame: u64,
    current: Option<u64>,
    first: u64,
    next: u64,
}

/// FNV-1a over 8-byte words, so that it costs little beside the disk.
struct Sum(u64);

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17);
        }
    }
}

struct Out<W: Write> {
    to: W,
    sum: Sum,
}

impl<W: Write> Out<W> {
    fn bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.sum.add(bytes);
        self.to.write_all(bytes)
    }

    fn numbers<const N: usize>(&mut self, numbers: impl Iterator<Item = [u8; N]>) -> std::io::Result<()> {
        numbers.into_iter().try_for_each(|bytes| self.bytes(&bytes))
    }
}

struct In<R: Read> {
    from: R,
    sum: Sum,
}

impl<R: Read> In<R> {
    fn bytes(&mut self, bytes: &mut [u8]) -> std::io::Result<()> {
        self.from.read_exact(bytes)?;
        self.sum.add(bytes);
        Ok(())
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

/// Writes `replay` to `path`.
pub fn save(replay: &Replay, mark: &ReplayMark, path: &Path) -> Result<(), ShardError> {
    let beside = path.with_extension("partial");
    let shape = replay.shape();
    let head = Head {
        version: VERSION,
        mark: mark.clone(),
        capacity: shape.capacity,
        element: shape.element,
        frame: shape.frame,
        stack: shape.stack,
        action: shape.action,
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
    let written = || -> Result<(), ShardError> {
        let file = File::create(&beside)?;
        let mut out = Out { to: BufWriter::with_capacity(1 << 20, &file), sum: Sum(0) };
        out.bytes(MAGIC)?;
        out.bytes(&(head.len() as u64).to_le_bytes())?;
        out.bytes(&head)?;
        for buffer in &replay.buffers {
            let (steps, frames) = used(shape, buffer.next, buffer.next_frame);
            out.bytes(&buffer.frames[..frames * shape.frame_bytes()])?;
            out.numbers(buffer.seen[..steps].iter().map(|seen| seen.to_le_bytes()))?;
            out.numbers(buffer.rewards[..steps].iter().map(|reward| reward.to_le_bytes()))?;
            out.bytes(&buffer.flags[..steps])?;
            let choices = buffer.choices.len().min(steps);
            out.numbers(buffer.choices[..choices].iter().map(|choice| choice.to_le_bytes()))?;
            out.numbers(buffer.actions[..steps * shape.action].iter().map(|number| number.to_le_bytes()))?;
        }
        let sum = out.sum.0;
        out.to.write_all(&sum.to_le_bytes())?;
        out.to.flush()?;
        drop(out);
        file.sync_all()?;
        Ok(std::fs::rename(&beside, path)?)
    };
    written().inspect_err(|_| {
        // An incomplete file is useless.
        let _ = std::fs::remove_file(&beside);
    })
}

/// Slots of steps and of frames that hold something.
fn used(shape: &Shape, next: u64, next_frame: u64) -> (usize, usize) {
    (next.min(shape.env_capacity() as u64) as usize, next_frame.min(shape.env_frames() as u64) as usize)
}

/// Reads what [`save`] wrote, for exactly this mark and these sizes.
pub fn load(shape: &Shape, mark: &ReplayMark, path: &Path) -> Result<Replay, ShardError> {
    let wrong = |text: &str| ShardError::Content(format!("replay shard {}: {text}", path.display()));
    let mut from = In { from: BufReader::with_capacity(1 << 20, File::open(path)?), sum: Sum(0) };
    let mut magic = [0; 8];
    from.bytes(&mut magic)?;
    if &magic != MAGIC {
        return Err(wrong("it is no replay shard"));
    }
    let mut length = [0; 8];
    from.bytes(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > HEAD_MAX {
        return Err(wrong("its head is too long"));
    }
    let mut head = vec![0; length as usize];
    from.bytes(&mut head)?;
    let head: Head =
        serde_json::from_slice(&head).map_err(|error| wrong(&format!("its head cannot be read: {error}")))?;
    if head.version != VERSION {
        return Err(wrong(&format!("version {} is not {VERSION}", head.version)));
    }
    if head.mark != *mark {
        return Err(wrong(&format!("it belongs to {:?}, not to {mark:?}", head.mark)));
    }
    let sizes = (head.capacity, head.element, head.frame, head.stack, head.action, head.buffers.len());
    if sizes != (shape.capacity, shape.element, shape.frame, shape.stack, shape.action, shape.envs) {
        return Err(wrong("its sizes are others than this run's"));
    }
    let mut replay = Replay::new(shape.clone());
    for (buffer, head) in replay.buffers.iter_mut().zip(&head.buffers) {
        let (steps, frames) = used(shape, head.next, head.next_frame);
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
            return Err(wrong("its numbers do not fit each other"));
        }
    }
    let sum = from.sum.0;
    let mut stored = [0; 8];
    from.from.read_exact(&mut stored)?;
    if u64::from_le_bytes(stored) != sum {
        return Err(wrong("its checksum is wrong"));
    }
    if from.from.read(&mut [0])? != 0 {
        return Err(wrong("it goes on after its end"));
    }
    Ok(replay)
}

/// Every number names something that is there.
fn consistent(buffer: &EnvBuffer, shape: &Shape) -> bool {
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
