//! The rollouts that an auxiliary phase learns from, and their file beside a checkpoint.
//!
//! Owner: the algorithm. The file is the rank's shard of the checkpoint ([`crate::replay`]): the magic, the
//! length of a JSON head, the head, observations, returns and weights of each rollout in turn, and a
//! checksum of everything before it. Nothing in a file is trusted: it must be of exactly this checkpoint
//! and have the sizes that this run expects.

use crate::distributed::upload::{upload, upload_slice};
use crate::policy::acting;
use crate::policy::trunk::Rows;
use crate::replay::{In, Out, ReplayMark, ShardError, write_shard};
use crate::rollout::Rollout;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use tch::{Device, Kind, TchError, Tensor};

const MAGIC: &[u8; 8] = b"rdrollou";

/// The rollouts of a policy phase, on the device, one after the other: observations `[rows, ...]` as
/// [`Rows`] lays them out, the rest `[rows]`. The first rollout allocates the memory of the whole
/// phase.
pub(super) struct AuxRollouts {
    pub(super) observations: Tensor,
    pub(super) returns: Tensor,
    pub(super) weights: Tensor,
    pub(super) rollouts: usize,
}

/// What a file says about itself.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    mark: ReplayMark,
    rollouts: usize,
    /// Of one rollout's observations.
    shape: Vec<i64>,
    /// Bytes of one of their elements.
    element: usize,
}

/// A rollout's observations, in the layout in which they are kept.
pub(super) fn observations(
    rollout: &Rollout,
    seen: Option<&Tensor>,
    (device, rows): (Device, Rows),
) -> Result<Tensor, TchError> {
    let shape: Vec<i64> = rollout.shape.iter().map(|side| *side as i64).collect();
    let observations = match seen {
        Some(seen) => seen.shallow_clone(),
        // A tensor made from a slice is a copy.
        None => upload(acting::batch(rollout.observations.view(), rollout.len(), &shape)?, device)?,
    };
    rows.to(&observations)
}

impl AuxRollouts {
    /// Room for `most` rollouts with observations like these.
    pub(super) fn new(like: &Tensor, most: usize) -> Result<AuxRollouts, TchError> {
        let mut whole = like.size();
        let all = most as i64 * whole.first().copied().unwrap_or(0);
        if let Some(rows) = whole.first_mut() {
            *rows = all;
        }
        let column = || Tensor::f_zeros([all], (Kind::Float, like.device()));
        Ok(AuxRollouts {
            observations: Tensor::f_empty(&whole, (like.kind(), like.device()))?,
            returns: column()?,
            weights: column()?,
            rollouts: 0,
        })
    }

    /// Adds a rollout of as many rows as the others.
    pub(super) fn add(
        &mut self,
        observations: &Tensor,
        returns: &[f32],
        weights: &[f32],
    ) -> Result<(), TchError> {
        let device = self.returns.device();
        let (start, len) = ((self.rollouts * returns.len()) as i64, returns.len() as i64);
        self.observations.f_narrow(0, start, len)?.f_copy_(observations)?;
        self.returns.f_narrow(0, start, len)?.f_copy_(&upload_slice(returns, device)?)?;
        self.weights.f_narrow(0, start, len)?.f_copy_(&upload_slice(weights, device)?)?;
        self.rollouts += 1;
        Ok(())
    }
}

fn wrong(text: impl std::fmt::Display) -> ShardError {
    ShardError::Content(text.to_string())
}

fn bytes_of(tensor: &Tensor) -> Result<Vec<u8>, TchError> {
    let here = tensor.f_to_device(Device::Cpu)?.f_contiguous()?;
    let count = here.numel();
    let mut bytes = vec![0; count * here.f_kind()?.elt_size_in_bytes()];
    here.f_copy_data_u8(&mut bytes, count)?;
    Ok(bytes)
}

/// Writes the first `count` rollouts of `rows` rows each; `like` says what one looks like where there is
/// none.
pub(super) fn save(
    stored: Option<&AuxRollouts>,
    (like, count): (&Tensor, usize),
    mark: &ReplayMark,
    path: &Path,
    moved: &mut dyn FnMut(u64, u64),
) -> Result<(), ShardError> {
    let head = Head {
        mark: mark.clone(),
        rollouts: count,
        shape: like.size(),
        element: like.kind().elt_size_in_bytes(),
    };
    let head = serde_json::to_vec(&head).map_err(wrong)?;
    let rows = like.size().first().copied().unwrap_or(0);
    write_shard(path, |out: &mut Out<_>| {
        out.bytes(MAGIC)?;
        out.bytes(&(head.len() as u64).to_le_bytes())?;
        out.bytes(&head)?;
        for (stored, rollout) in stored.into_iter().flat_map(|stored| (0..count).map(move |i| (stored, i))) {
            for part in [&stored.observations, &stored.returns, &stored.weights] {
                let part = part.f_narrow(0, rollout as i64 * rows, rows).map_err(wrong)?;
                out.bytes(&bytes_of(&part).map_err(wrong)?)?;
            }
            moved(rollout as u64 + 1, count as u64);
        }
        Ok(())
    })
}

/// Reads what [`save`] wrote for exactly this mark, `count` rollouts like this one; `most` is their room.
pub(super) fn load(
    like: &Tensor,
    (count, most): (usize, usize),
    mark: &ReplayMark,
    path: &Path,
) -> Result<AuxRollouts, ShardError> {
    let mut from = In::new(BufReader::with_capacity(1 << 20, File::open(path)?));
    let head: Head = from.head(*MAGIC, "rollouts")?;
    if head.mark != *mark {
        return Err(wrong(format!("it is of {}, and this is {mark}", head.mark)));
    }
    let element = like.kind().elt_size_in_bytes();
    if (head.rollouts, &head.shape, head.element) != (count, &like.size(), element) {
        return Err(wrong("its sizes are others than this run's"));
    }
    let rows = like.size().first().copied().unwrap_or(0) as usize;
    let mut stored = AuxRollouts::new(like, most).map_err(wrong)?;
    let column = |from: &mut In<BufReader<File>>| -> Result<Vec<f32>, ShardError> {
        // As it was written, in one piece: the checksum goes over words.
        let mut bytes = vec![0; 4 * rows];
        from.bytes(&mut bytes)?;
        let number = |bytes: &[u8]| bytes.try_into().map_or(f32::NAN, f32::from_le_bytes);
        Ok(bytes.chunks_exact(4).map(number).collect())
    };
    let mut bytes = vec![0; like.numel() * element];
    for _ in 0..count {
        from.bytes(&mut bytes)?;
        let seen = Tensor::f_from_data_size(&bytes, &like.size(), like.kind()).map_err(wrong)?;
        let (returns, weights) = (column(&mut from)?, column(&mut from)?);
        stored.add(&seen, &returns, &weights).map_err(wrong)?;
    }
    let sum = from.sum();
    let mut found = [0; 8];
    from.bytes(&mut found)?;
    if u64::from_le_bytes(found) != sum {
        return Err(wrong("its checksum is wrong"));
    }
    if from.rest().read(&mut [0])? != 0 {
        return Err(wrong("it goes on after its end"));
    }
    Ok(stored)
}
