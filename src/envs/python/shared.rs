//! Memory shared by a rank and its worker: one anonymous file that both map.
//!
//! Everything is `[envs][...]`, each part at a multiple of 64 bytes.

use super::super::{ActionSpace, Actions, ObservationType, Observations, Spec};
use memmap2::{MmapOptions, MmapRaw};
use serde_json::{Value, json};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

const ALIGN: usize = 64;

/// A type of which every bit pattern is a value.
trait PlainData: Copy {}
impl PlainData for u8 {}
impl PlainData for i64 {}
impl PlainData for f32 {}
impl PlainData for f64 {}

/// The rank's mapping.
pub(super) struct SharedMemory {
    map: MmapRaw,
    envs: usize,
    observation_len: usize,
    observation_type: ObservationType,
    actions: usize,
    /// Where masks are, and how many numbers each has.
    masks: Option<(usize, usize)>,
    /// Where those of last observations are.
    final_masks: Option<usize>,
    observations: usize,
    final_observations: usize,
    rewards: usize,
    terminated: usize,
    truncated: usize,
    lost_life: usize,
    only_reset: usize,
    retired: usize,
    moves: usize,
}

/// Which episodes ended in a step.
pub(super) struct EpisodeFlags<'a> {
    terminated: &'a [u8],
    truncated: &'a [u8],
    lost_life: &'a [u8],
    only_reset: &'a [u8],
}

impl EpisodeFlags<'_> {
    pub(super) fn terminated(&self, env: usize) -> bool {
        self.terminated[env] != 0
    }

    pub(super) fn truncated(&self, env: usize) -> bool {
        self.truncated[env] != 0
    }

    /// The step was only the reset after an episode.
    pub(super) fn only_reset(&self, env: usize) -> bool {
        self.only_reset[env] != 0
    }

    /// A life was lost and the game continues.
    pub(super) fn lost_life(&self, env: usize) -> bool {
        self.lost_life[env] != 0
    }
}

impl SharedMemory {
    /// Sizes `memory` for `envs` environments, with or without masks, and maps it.
    pub(super) fn new(memory: &File, spec: &Spec, envs: usize, masked: bool) -> io::Result<SharedMemory> {
        let too_large = || io::Error::other("more than this machine can address");
        let observation_len = spec.observation_len();
        let element = match spec.observation_type {
            ObservationType::F32 => 4,
            ObservationType::U8 => 1,
        };
        let action = match &spec.actions {
            ActionSpace::Discrete { .. } | ActionSpace::MultiDiscrete { .. } => 8 * spec.actions.action_len(),
            ActionSpace::Continuous { low, .. } => 4 * low.len(),
        };
        let mut size = 0_usize;
        let mut place = |each: usize| -> io::Result<usize> {
            let begin = size;
            let bytes = envs.checked_mul(each).and_then(|bytes| bytes.checked_next_multiple_of(ALIGN));
            size = bytes.and_then(|bytes| begin.checked_add(bytes)).ok_or_else(too_large)?;
            Ok(begin)
        };
        let seen = observation_len.checked_mul(element).ok_or_else(too_large)?;
        let parts = [action, seen, seen, 8].map(&mut place);
        let flags = [1; 5].map(&mut place);
        let width = if masked { spec.actions.width() } else { 0 };
        let masks = masked.then(|| place(width)).transpose()?.map(|offset| (offset, width));
        let final_masks = masked.then(|| place(width)).transpose()?;
        let [actions, observations, final_observations, rewards] = parts;
        let parts = (actions?, observations?, final_observations?, rewards?);
        let [terminated, truncated, lost_life, only_reset, retired] = flags;
        let (terminated, truncated, retired) = (terminated?, truncated?, retired?);
        let (lost_life, only_reset) = (lost_life?, only_reset?);
        let moves = size;
        let size = size.checked_add(ALIGN).ok_or_else(too_large)?;
        memory.set_len(size as u64)?;
        // The file is anonymous and known to this process and its worker only, and keeps its size from here
        // on. Nothing refers to all of it at once: the worker writes a part while the rank reads another.
        let map = MmapOptions::new().len(size).map_raw(memory)?;
        Ok(SharedMemory {
            map,
            envs,
            observation_len,
            observation_type: spec.observation_type,
            actions: parts.0,
            masks,
            final_masks,
            observations: parts.1,
            final_observations: parts.2,
            rewards: parts.3,
            terminated,
            truncated,
            lost_life,
            only_reset,
            retired,
            moves,
        })
    }

    /// Where everything is, for the worker.
    pub(super) fn layout(&self) -> Value {
        json!({
            "size": self.map.len(),
            "envs": self.envs,
            "actions": self.actions,
            "masks": self.masks.map(|(offset, _)| offset),
            "final_masks": self.final_masks,
            "observations": self.observations,
            "final_observations": self.final_observations,
            "rewards": self.rewards,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "lost_life": self.lost_life,
            "only_reset": self.only_reset,
            "retired": self.retired,
            "moves": self.moves,
        })
    }

    /// How many environments the worker has stepped or reset in all; may be read at any time.
    pub(super) fn moves(&self) -> u64 {
        // SAFETY: the word is inside the map, at a multiple of 64 from the beginning of a page, lives as long
        // as the map, and is only ever used as an atomic here; the worker writes it by one aligned store.
        let word = unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(self.moves).cast()) };
        word.load(Ordering::Relaxed)
    }

    fn part<T: PlainData>(&self, offset: usize, len: usize) -> &[T] {
        self.check(offset, len * size_of::<T>());
        // SAFETY: the range was just checked, offsets are multiples of 64 from the beginning of a page, and
        // every bit pattern is a value. The worker does not write while the rank has its turn (PYTHON-1).
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(offset).cast(), len) }
    }

    fn part_mut<T: PlainData>(&mut self, offset: usize, len: usize) -> &mut [T] {
        self.check(offset, len * size_of::<T>());
        // SAFETY: as in `part`; the borrow of the map is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().add(offset).cast(), len) }
    }

    fn check(&self, offset: usize, bytes: usize) {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.map.len()), "a part inside the map");
    }

    /// The worker does not step this environment any more.
    pub(super) fn retire(&mut self, env: usize) {
        let (offset, envs) = (self.retired, self.envs);
        self.part_mut::<u8>(offset, envs)[env] = 1;
    }

    /// The worker steps all environments.
    pub(super) fn retire_none(&mut self) {
        let (offset, envs) = (self.retired, self.envs);
        self.part_mut::<u8>(offset, envs).fill(0);
    }

    /// Writes the actions, if they are of the right kind, number and range.
    pub(super) fn put_actions(&mut self, actions: Actions<'_>, space: &ActionSpace) -> bool {
        let (offset, envs) = (self.actions, self.envs);
        match (actions, space) {
            (
                Actions::Discrete(actions),
                ActionSpace::Discrete { .. } | ActionSpace::MultiDiscrete { .. },
            ) if space.contains(actions, envs) => {
                self.part_mut(offset, actions.len()).copy_from_slice(actions);
            }
            (Actions::Continuous(actions), ActionSpace::Continuous { low, .. })
                if actions.len() == envs * low.len() && actions.iter().all(|action| !action.is_nan()) =>
            {
                self.part_mut(offset, actions.len()).copy_from_slice(actions);
            }
            _ => return false,
        }
        true
    }

    fn seen(&self, offset: usize) -> Observations<'_> {
        let len = self.envs * self.observation_len;
        match self.observation_type {
            ObservationType::F32 => Observations::F32(self.part(offset, len)),
            ObservationType::U8 => Observations::U8(self.part(offset, len)),
        }
    }

    pub(super) fn observations(&self) -> Observations<'_> {
        self.seen(self.observations)
    }

    /// Only rows of episodes that ended in the last step are defined.
    pub(super) fn final_observations(&self) -> Observations<'_> {
        self.seen(self.final_observations)
    }

    /// Which actions are allowed, `[envs][choices]`, 0 where not.
    pub(super) fn masks(&self) -> Option<&[u8]> {
        self.masks.map(|(offset, width)| self.part(offset, self.envs * width))
    }

    /// The same of last observations; only rows of episodes that ended in the last step are defined.
    pub(super) fn final_masks(&self) -> Option<&[u8]> {
        let (_, width) = self.masks?;
        self.final_masks.map(|offset| self.part(offset, self.envs * width))
    }

    /// Raw rewards.
    pub(super) fn rewards(&self) -> &[f64] {
        self.part(self.rewards, self.envs)
    }

    pub(super) fn flags(&self) -> EpisodeFlags<'_> {
        EpisodeFlags {
            terminated: self.part(self.terminated, self.envs),
            truncated: self.part(self.truncated, self.envs),
            lost_life: self.part(self.lost_life, self.envs),
            only_reset: self.part(self.only_reset, self.envs),
        }
    }
}
