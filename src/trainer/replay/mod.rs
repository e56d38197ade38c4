//! Experience replay: one rank's transitions, sampled evenly, with n-step returns.
//!
//! Replay never enters a collective: every rank fills and samples its own, and only decisions about it (is
//! there enough to begin?) are made together. All memory is taken at the start ([`ReplayShape::bytes`]); a new
//! transition replaces the oldest of its environment.
//!
//! Invariants:
//! - REPLAY-1: every observation is stored once, images as bytes; of stacked frames only the newest one.
//!   Reading gives the same bits.
//! - REPLAY-2: a transition's n-step return stops at the end of its episode and at the newest stored step.
//!   What follows counts with gamma to the number of rewards summed, or not at all where the task itself
//!   ended: after a cut by a time limit, the value of the true last observation counts. (DI-engine uses one
//!   power of gamma too few for the last transitions of every chunk.)
//! - REPLAY-3: no transition crosses a reset.
//! - REPLAY-4: every stored transition is equally likely, and which are drawn depends on the given generator
//!   alone.

mod env_buffer;
mod shard;

pub use shard::ReplayMark;
pub(crate) use shard::{
    ShardError, ShardReader, ShardWriter, load, replace_shard, save, shard_of, shard_path, unfinished_of,
    write_shard,
};

use crate::env::{ActionSpace, Actions, ObservationType, Observations, Spec, StepOutcome};
use env_buffer::EnvBuffer;
use rankdeck_kernel::numpy_random::Generator;

/// Sizes of a rank's replay.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReplayShape {
    /// Environments of this rank.
    pub envs: usize,
    /// Transitions of this rank, all environments together.
    pub(crate) capacity: usize,
    /// Bytes of one element of an observation: 1 or 4.
    pub(crate) element: usize,
    /// Elements of one frame.
    pub frame: usize,
    /// Frames of one observation, newest last.
    pub stack: usize,
    /// Numbers of a continuous action; 0: actions are discrete.
    pub action: usize,
    /// Rewards that are summed before the bootstrap.
    pub n_step: usize,
    /// Discount.
    pub gamma: f32,
    /// Bytes of a mask of actions, which is stored with each observation; 0 without masks.
    pub mask: usize,
}

/// What environments show, `[envs]` each.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a> {
    pub observations: Observations<'a>,
    /// Which actions are allowed, 0 where not, where they are known.
    pub masks: Option<&'a [u8]>,
}

impl<'a> From<Observations<'a>> for Shown<'a> {
    fn from(observations: Observations<'a>) -> Shown<'a> {
        Shown { observations, masks: None }
    }
}

impl ReplayShape {
    /// For environments of this kind. Images `[stack, height, width]` are taken apart into frames.
    pub(crate) fn new(spec: &Spec, envs: usize, capacity: usize, n_step: usize, gamma: f64) -> ReplayShape {
        let stack = match (spec.observation_type, spec.observation_shape.as_slice()) {
            (ObservationType::U8, [stack, _, _]) => (*stack).max(1),
            _ => 1,
        };
        ReplayShape {
            envs,
            capacity,
            element: match spec.observation_type {
                ObservationType::F32 => 4,
                ObservationType::U8 => 1,
            },
            frame: spec.observation_len() / stack,
            stack,
            action: match &spec.actions {
                ActionSpace::Discrete { .. } | ActionSpace::MultiDiscrete { .. } => 0,
                ActionSpace::Continuous { low, .. } => low.len(),
            },
            n_step: n_step.max(1),
            gamma: gamma as f32,
            mask: 0,
        }
    }

    /// With a mask of so many actions for each observation, whose frames are not taken apart then.
    pub(crate) fn with_masks(self, actions: usize) -> ReplayShape {
        ReplayShape { frame: self.frame * self.stack, stack: 1, mask: actions, ..self }
    }

    /// Transitions of the environment at this index; the first ones take what is left over.
    fn capacity_of(&self, env: usize) -> usize {
        let envs = self.envs.max(1);
        (self.capacity / envs + usize::from(env < self.capacity % envs)).max(1)
    }

    /// The most of them.
    fn env_capacity(&self) -> usize {
        self.capacity_of(0)
    }

    /// Frames of one environment: one per transition, and some more for the first and last observations of
    /// episodes. Where episodes are too short for these (below 8 steps per frame of an observation), fewer
    /// transitions are kept.
    fn env_frames(&self) -> usize {
        self.env_capacity() + self.env_capacity() / 8 + 2 * self.stack + 1
    }

    /// Bytes of what is stored of a frame, its mask at the end.
    fn frame_bytes(&self) -> usize {
        self.seen_bytes() + self.mask
    }

    /// Bytes of a frame alone.
    fn seen_bytes(&self) -> usize {
        self.frame * self.element
    }

    /// The memory of replay on this rank, in bytes; all of it is allocated at the start.
    pub(crate) fn bytes(&self) -> u64 {
        let frames = self.env_frames() as u64 * self.frame_bytes() as u64;
        let action = 4 * self.action.max(1) as u64;
        self.envs as u64 * (frames + self.env_capacity() as u64 * (8 + 4 + 1 + action))
    }
}

/// A sampled batch, overwritten by every [`Replay::sample`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReplayBatch {
    pub rows: usize,
    /// `[rows][observation]`, when observations are numbers.
    pub numbers: ObservationPair<f32>,
    /// `[rows][observation]`, when observations are pixels.
    pub pixels: ObservationPair<u8>,
    /// `[rows]`, when actions are discrete.
    pub choices: Vec<i64>,
    /// `[rows][action]`, when actions are continuous.
    pub actions: Vec<f32>,
    /// `[rows]`: sums of discounted rewards.
    pub rewards: Vec<f32>,
    /// `[rows]`: what the value of the next observation counts with; 0 where the task ended.
    pub discounts: Vec<f32>,
    /// `[rows][actions]`: which actions are allowed next, 0 where not; empty without masks.
    pub next_masks: Vec<u8>,
}

/// Observations, and those that the bootstrap uses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ObservationPair<T> {
    /// The observations.
    pub now: Vec<T>,
    /// The observations n steps later.
    pub next: Vec<T>,
}

/// One rank's replay.
#[derive(Debug)]
pub struct Replay {
    shape: ReplayShape,
    buffers: Vec<EnvBuffer>,
}

impl Replay {
    /// Takes all memory. Call [`Replay::start`] before the first [`Replay::add`].
    pub(crate) fn new(shape: ReplayShape) -> Replay {
        Replay {
            buffers: (0..shape.envs).map(|env| EnvBuffer::new(&shape, shape.capacity_of(env))).collect(),
            shape,
        }
    }

    /// Its sizes.
    pub(crate) fn shape(&self) -> &ReplayShape {
        &self.shape
    }

    /// Transitions that can be sampled.
    pub fn len(&self) -> usize {
        self.buffers.iter().map(EnvBuffer::len).sum()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes over the transitions of `other` that are of environments of this replay, where both have room for as
    /// many of each; `first` and `others` are the global indices of their first environments. Call
    /// [`Replay::start`] after it.
    pub(crate) fn adopt(&mut self, first: u32, other: Replay, others: u32) {
        for (index, buffer) in (others..).zip(other.buffers) {
            let own = index.checked_sub(first).and_then(|own| self.buffers.get_mut(own as usize));
            if let Some(own) = own.filter(|own| own.has_room_of(&buffer)) {
                *own = buffer;
            }
        }
    }

    /// Continues with what the environments show now. In a resumed run, an episode continues where its
    /// environment shows what it showed last, and is cut elsewhere.
    pub fn start<'a>(&mut self, now: impl Into<Shown<'a>>) {
        let Replay { shape, buffers } = self;
        let (now, mut row) = (now.into(), Vec::new());
        for (i, buffer) in buffers.iter_mut().enumerate() {
            bytes_of(now, i, shape, &mut row);
            buffer.start(&row, shape);
        }
    }

    /// Stores one step of all environments: what was done, what it led to, and what the environments show
    /// now.
    pub fn add<'a>(&mut self, actions: Actions<'_>, outcome: &StepOutcome, now: impl Into<Shown<'a>>) {
        let Replay { shape, buffers } = self;
        let (now, mut row) = (now.into(), Vec::with_capacity(shape.stack * shape.frame_bytes()));
        let last = Shown {
            observations: outcome.final_observations.view(),
            masks: Some(outcome.final_masks.as_slice()),
        };
        for (i, buffer) in buffers.iter_mut().enumerate() {
            if !outcome.valid[i] {
                bytes_of(now, i, shape, &mut row);
                buffer.start(&row, shape);
                continue;
            }
            let done = outcome.done(i);
            bytes_of(if done { last } else { now }, i, shape, &mut row);
            let action = match actions {
                Actions::Discrete(choices) => env_buffer::StoredAction::Choice(choices[i]),
                Actions::Continuous(values) => {
                    env_buffer::StoredAction::Numbers(&values[i * shape.action..(i + 1) * shape.action])
                }
            };
            // Both flags: the task itself ended.
            let end = match (outcome.terminated[i], outcome.truncated[i]) {
                (true, _) => env_buffer::StepEnd::Terminated,
                (false, true) => env_buffer::StepEnd::Truncated,
                (false, false) => env_buffer::StepEnd::None,
            };
            buffer.add(action, outcome.rewards[i], end, &row, shape);
            if done {
                bytes_of(now, i, shape, &mut row);
                buffer.start(&row, shape);
            }
        }
    }

    /// Draws `rows` transitions, with replacement; none while there are none.
    pub fn sample(&self, rows: usize, random: &mut Generator, batch: &mut ReplayBatch) {
        batch.clear();
        let total = self.len() as u64;
        if total == 0 {
            return;
        }
        for _ in 0..rows {
            let mut index = random.below(total) as usize;
            for buffer in &self.buffers {
                if index < buffer.len() {
                    buffer.read(index, &self.shape, batch);
                    break;
                }
                index -= buffer.len();
            }
            batch.rows += 1;
        }
    }
}

impl ReplayBatch {
    /// The largest reward and observation, for messages.
    pub fn largest(&self) -> String {
        let most = |values: &[f32]| values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        let rewards = most(&self.rewards);
        match self.numbers.now.is_empty() {
            true => format!("; the batch has rewards up to {rewards:e}"),
            false => format!(
                "; largest reward {rewards:e}, largest observation {:e}",
                most(&self.numbers.now).max(most(&self.numbers.next))
            ),
        }
    }

    fn clear(&mut self) {
        self.rows = 0;
        for pair in [&mut self.numbers.now, &mut self.numbers.next] {
            pair.clear();
        }
        for pair in [&mut self.pixels.now, &mut self.pixels.next] {
            pair.clear();
        }
        self.choices.clear();
        self.actions.clear();
        self.rewards.clear();
        self.discounts.clear();
        self.next_masks.clear();
    }
}

/// Row `i` as bytes; of masks that are kept but not known, all actions are allowed.
fn bytes_of(shown: Shown<'_>, i: usize, shape: &ReplayShape, row: &mut Vec<u8>) {
    let len = shape.stack * shape.frame;
    row.clear();
    match shown.observations {
        Observations::F32(values) => {
            row.extend(values[i * len..(i + 1) * len].iter().flat_map(|value| value.to_ne_bytes()));
        }
        Observations::U8(values) => row.extend_from_slice(&values[i * len..(i + 1) * len]),
    }
    match shown.masks.and_then(|masks| masks.get(i * shape.mask..(i + 1) * shape.mask)) {
        Some(mask) => row.extend_from_slice(mask),
        None => row.resize(row.len() + shape.mask, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::ObservationBuffer;
    use rankdeck_kernel::seeds::{Purpose, Seeds};

    const GAMMA: f64 = 0.5;

    fn spec(shape: &[usize], kind: ObservationType) -> Spec {
        Spec {
            observation_shape: shape.to_vec(),
            observation_type: kind,
            branches: Vec::new(),
            actions: ActionSpace::Discrete { n: 9 },
        }
    }

    /// One environment whose observation is a number.
    struct Line {
        replay: Replay,
        spec: Spec,
    }

    impl Line {
        fn new(capacity: usize, n_step: usize) -> Line {
            let spec = spec(&[1], ObservationType::F32);
            let mut replay = Replay::new(ReplayShape::new(&spec, 1, capacity, n_step, GAMMA));
            replay.start(Observations::F32(&[0.0]));
            Line { replay, spec }
        }

        /// A step that shows `next`; after an end the environment shows `reset`.
        fn step(&mut self, action: i64, reward: f32, next: f32, end: Option<(bool, f32)>) {
            let mut outcome = StepOutcome::new(&self.spec, 1);
            outcome.rewards[0] = reward;
            let mut now = next;
            if let Some((terminated, reset)) = end {
                outcome.terminated[0] = terminated;
                outcome.truncated[0] = !terminated;
                outcome.final_observations = ObservationBuffer::F32(vec![next]);
                now = reset;
            }
            self.replay.add(Actions::Discrete(&[action]), &outcome, Observations::F32(&[now]));
        }

        fn read(&self, index: usize) -> ReplayBatch {
            let mut batch = ReplayBatch::default();
            self.replay.buffers[0].read(index, &self.replay.shape, &mut batch);
            batch
        }

        fn row(&self, index: usize) -> (f32, i64, f32, f32, f32) {
            let batch = self.read(index);
            (
                batch.numbers.now[0],
                batch.choices[0],
                batch.rewards[0],
                batch.discounts[0],
                batch.numbers.next[0],
            )
        }
    }

    /// Of an episode that is cut off, the mask of its last observation counts, and not that of the reset.
    #[test]
    fn masks_are_those_of_the_next_observation() {
        let spec = Spec { actions: ActionSpace::Discrete { n: 3 }, ..spec(&[1], ObservationType::F32) };
        let shape = ReplayShape::new(&spec, 1, 10, 2, GAMMA).with_masks(3);
        let mut replay = Replay::new(shape);
        let values = [0.0, 1.0, 2.0, 3.0];
        let shown = |i: usize, mask: &'static [u8]| Shown {
            observations: Observations::F32(&values[i..=i]),
            masks: Some(mask),
        };
        replay.start(shown(0, &[1, 1, 0]));
        let mut outcome = StepOutcome::new(&spec, 1);
        replay.add(Actions::Discrete(&[0]), &outcome, shown(1, &[0, 1, 1]));
        (outcome.truncated[0], outcome.final_masks) = (true, vec![0, 0, 1]);
        outcome.final_observations = ObservationBuffer::F32(vec![9.0]);
        replay.add(Actions::Discrete(&[1]), &outcome, shown(2, &[1, 0, 0]));
        let read = |replay: &Replay, index: usize| {
            let mut batch = ReplayBatch::default();
            replay.buffers[0].read(index, &replay.shape, &mut batch);
            batch
        };
        for (index, now) in [(0, 0.0), (1, 1.0)] {
            let batch = read(&replay, index);
            assert_eq!((batch.numbers.now[0], batch.numbers.next[0]), (now, 9.0));
            assert_eq!(batch.next_masks, [0, 0, 1]);
        }
        outcome = StepOutcome::new(&spec, 1);
        replay.add(Actions::Discrete(&[0]), &outcome, shown(3, &[1, 0, 1]));
        assert_eq!(read(&replay, 2).next_masks, [1, 0, 1]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.shard");
        save(&replay, &mark(), &path, &mut |_, _| {}).unwrap();
        let loaded = load(replay.shape(), &mark(), &path).unwrap();
        assert_eq!(loaded.buffers, replay.buffers);
        assert!(load(&ReplayShape { mask: 0, ..replay.shape().clone() }, &mark(), &path).is_err());
    }

    /// REPLAY-2 on a chain of four steps, n = 3: pitfall 4.27 of the references.
    /// Environments 2 and 3 of a rank of two are 0 and 1 of one that has all from 2 on; where the environment has gone
    /// back, no transition crosses that place (REPLAY-3).
    #[test]
    fn adopted_replay_keeps_transitions_and_cuts_its_end() {
        let spec = spec(&[1], ObservationType::F32);
        let shape = |envs, capacity| ReplayShape::new(&spec, envs, capacity, 3, GAMMA);
        let mut old = Replay::new(shape(2, 20));
        old.start(Observations::F32(&[20.0, 30.0]));
        for step in 1..=4 {
            let mut outcome = StepOutcome::new(&spec, 2);
            outcome.rewards.fill(1.0);
            let now = [20.0 + step as f32, 30.0 + step as f32];
            old.add(Actions::Discrete(&[step, step]), &outcome, Observations::F32(&now));
        }
        let mut new = Replay::new(shape(4, 40));
        new.start(Observations::F32(&[0.0; 4]));
        new.adopt(2, old, 2);
        // Environment 2 continues where it was, environment 3 has gone back by two steps.
        new.start(Observations::F32(&[24.0, 32.0, 40.0, 50.0]));
        assert_eq!(new.buffers.iter().map(EnvBuffer::len).collect::<Vec<_>>(), [4, 4, 0, 0]);
        let mut outcome = StepOutcome::new(&spec, 4);
        outcome.rewards.fill(1.0);
        new.add(Actions::Discrete(&[5; 4]), &outcome, Observations::F32(&[25.0, 33.0, 41.0, 51.0]));
        let row = |env: usize, index: usize| {
            let mut batch = ReplayBatch::default();
            new.buffers[env].read(index, &new.shape, &mut batch);
            (batch.numbers.now[0], batch.rewards[0], batch.numbers.next[0])
        };
        assert_eq!(row(0, 3), (23.0, 1.5, 25.0), "over the place where it was handed over");
        assert_eq!(row(1, 3), (33.0, 1.0, 34.0), "up to the end of what was cut");
        assert_eq!(row(1, 4), (32.0, 1.0, 33.0));
        // Room for another number of transitions, and environments of other ranks.
        let mut other = Replay::new(shape(2, 10));
        other.start(Observations::F32(&[0.0; 2]));
        other.adopt(2, new, 2);
        assert!(other.is_empty());
    }

    #[test]
    fn n_step_returns_stop_at_termination() {
        let mut line = Line::new(100, 3);
        for i in 0..4 {
            line.step(i, 1.0 + i as f32, 10.0 + i as f32, (i == 3).then_some((true, 0.5)));
        }
        // Observations 0, 10, 11, 12 and the final 13; rewards 1, 2, 3, 4.
        assert_eq!(line.row(0), (0.0, 0, 1.0 + 0.5 * 2.0 + 0.25 * 3.0, 0.125, 12.0));
        assert_eq!(line.row(1), (10.0, 1, 2.0 + 0.5 * 3.0 + 0.25 * 4.0, 0.0, 13.0));
        assert_eq!(line.row(2), (11.0, 2, 3.0 + 0.5 * 4.0, 0.0, 13.0));
        assert_eq!(line.row(3), (12.0, 3, 4.0, 0.0, 13.0));
    }

    #[test]
    fn n_step_truncation_bootstraps_from_final_observation() {
        let mut line = Line::new(100, 3);
        for i in 0..4 {
            line.step(i, 1.0, 10.0 + i as f32, (i == 3).then_some((false, 0.5)));
        }
        line.step(7, 100.0, 20.0, None);
        assert_eq!(line.row(0), (0.0, 0, 1.75, 0.125, 12.0));
        assert_eq!(line.row(1), (10.0, 1, 1.75, 0.125, 13.0));
        // No reward of the next episode, and gamma to the number of rewards that were summed.
        assert_eq!(line.row(2), (11.0, 2, 1.5, 0.25, 13.0));
        assert_eq!(line.row(3), (12.0, 3, 1.0, 0.5, 13.0));
        // REPLAY-3: the next episode begins with what the environment showed after the reset.
        assert_eq!(line.row(4), (0.5, 7, 100.0, 0.5, 20.0));
    }

    #[test]
    fn newest_steps_bootstrap_from_newest_observation() {
        let mut line = Line::new(100, 3);
        line.step(0, 1.0, 10.0, None);
        line.step(1, 1.0, 11.0, None);
        assert_eq!(line.row(0), (0.0, 0, 1.5, 0.25, 11.0));
        assert_eq!(line.row(1), (10.0, 1, 1.0, 0.5, 11.0));
        line.step(2, 1.0, 12.0, None);
        assert_eq!(line.row(0), (0.0, 0, 1.75, 0.125, 12.0));
    }

    /// The ring against the plainest form there is: a list of transitions, oldest thrown out; many episodes, n =
    /// 1 to 4.
    #[test]
    fn full_ring_holds_newest_transitions() {
        for n_step in 1..=4 {
            let mut line = Line::new(64, n_step);
            let mut random = Seeds::new(3).generator(Purpose::Env, 0, n_step as u64);
            let mut expected: Vec<(f32, i64, f32, Option<bool>, f32)> = Vec::new();
            let (mut now, mut length) = (0.0_f32, 0);
            for i in 0..1000_i64 {
                let (next, reward) = (random.next_f64() as f32, random.next_f64() as f32);
                length += 1;
                // At least eight steps per episode: what the spare frames are meant for.
                let end = (length >= 8 && random.below(10) == 0).then(|| random.below(2) == 0);
                expected.push((now, i, reward, end, next));
                let reset = random.next_f64() as f32;
                line.step(i, reward, next, end.map(|terminated| (terminated, reset)));
                (now, length) = if end.is_some() { (reset, 0) } else { (next, length) };
                let kept = &expected[expected.len().saturating_sub(64)..];
                assert_eq!(line.replay.len(), kept.len());
                let index = random.below(kept.len() as u64) as usize;
                let (mut sum, mut discount, mut last) = (0.0, 1.0, kept[index]);
                for step in kept[index..].iter().take(n_step) {
                    (sum, discount, last) = (sum + discount * step.2, discount * 0.5, *step);
                    if step.3.is_some() {
                        break;
                    }
                }
                if last.3 == Some(true) {
                    discount = 0.0;
                }
                assert_eq!(
                    line.row(index),
                    (kept[index].0, kept[index].1, sum, discount, last.4),
                    "step {i}"
                );
            }
        }
    }

    /// Very short episodes need more frames than there are: fewer transitions, all of them right.
    #[test]
    fn episodes_of_one_step_keep_what_fits() {
        let mut line = Line::new(40, 1);
        for i in 0..500_i64 {
            line.step(i, i as f32, 1000.0 + i as f32, Some((true, i as f32 + 1.0)));
            assert!(line.replay.len() <= 40 && line.replay.len() as i64 >= (i + 1).min(20));
            for index in 0..line.replay.len() {
                let (now, action, reward, discount, next) = line.row(index);
                assert_eq!(
                    (now, reward, discount, next),
                    (action as f32, action as f32, 0.0, 1000.0 + action as f32)
                );
            }
        }
    }

    /// REPLAY-1: two environments with stacks of frames, against the stacks themselves. Resets fill the stack
    /// with the first frame; now and then an environment shows something unrelated.
    #[test]
    fn stacked_frames_round_trip() {
        let spec = spec(&[4, 2, 3], ObservationType::U8);
        let shape = ReplayShape::new(&spec, 2, 100, 2, GAMMA);
        assert_eq!((shape.stack, shape.frame, shape.element), (4, 6, 1));
        let mut replay = Replay::new(shape.clone());
        let mut random = Seeds::new(1).generator(Purpose::Env, 0, 0);
        let mut frame = || (0..6).map(|_| random.next_u64() as u8).collect::<Vec<u8>>();
        let mut stacks: [Vec<u8>; 2] = std::array::from_fn(|_| frame().repeat(4));
        let joined = |stacks: &[Vec<u8>; 2]| stacks.concat();
        replay.start(Observations::U8(&joined(&stacks)));
        let mut expected: [Vec<(Vec<u8>, Vec<u8>)>; 2] = [Vec::new(), Vec::new()];
        let mut lengths = [0, 0];
        for i in 0..400 {
            let mut outcome = StepOutcome::new(&spec, 2);
            let mut finals = Vec::new();
            for env in 0..2 {
                let before = stacks[env].clone();
                let mut next = [&before[6..], &frame()].concat();
                lengths[env] += 1;
                if i % 97 == 50 {
                    next = (0..4).flat_map(|_| frame()).collect();
                }
                expected[env].push((before, next.clone()));
                finals.extend_from_slice(&next);
                stacks[env] = next;
                if lengths[env] == 32 + 7 * env {
                    outcome.truncated[env] = true;
                    stacks[env] = frame().repeat(4);
                    lengths[env] = 0;
                }
            }
            outcome.final_observations = ObservationBuffer::U8(finals);
            replay.add(Actions::Discrete(&[i, i]), &outcome, Observations::U8(&joined(&stacks)));
        }
        assert_eq!(replay.len(), 100);
        for (buffer, expected) in replay.buffers.iter().zip(&expected) {
            let kept = &expected[expected.len() - buffer.len()..];
            for (index, (before, _)) in kept.iter().enumerate() {
                let mut batch = ReplayBatch::default();
                buffer.read(index, &shape, &mut batch);
                assert_eq!(&batch.pixels.now, before);
                // Two steps on, unless the episode or the data end before.
                let last = if batch.discounts[0] == 0.25 { index + 1 } else { index };
                assert_eq!(batch.pixels.next, kept[last].1);
            }
        }
        // One frame per transition and an eighth more, not five.
        assert!(shape.bytes() < 2 * (50 + 6 + 9 + 1) * 6 + 100 * 20);
    }

    #[test]
    fn dummy_steps_are_not_stored() {
        let mut line = Line::new(10, 3);
        line.step(0, 1.0, 1.0, None);
        let mut outcome = StepOutcome::new(&line.spec, 1);
        outcome.valid[0] = false;
        line.replay.add(Actions::Discrete(&[8]), &outcome, Observations::F32(&[50.0]));
        line.step(1, 1.0, 51.0, None);
        assert_eq!(line.replay.len(), 2);
        assert_eq!(line.row(0), (0.0, 0, 1.0, 0.5, 1.0));
        assert_eq!(line.row(1), (50.0, 1, 1.0, 0.5, 51.0));
    }

    /// REPLAY-4: all of several environments' transitions, equally often, and the same for the same generator.
    #[test]
    fn sampling_is_even_and_repeatable() {
        let spec = spec(&[1], ObservationType::F32);
        let mut replay = Replay::new(ReplayShape::new(&spec, 3, 30, 1, GAMMA));
        replay.start(Observations::F32(&[0.0; 3]));
        let outcome = StepOutcome::new(&spec, 3);
        for i in 0..25 {
            replay.add(
                Actions::Discrete(&[3 * i, 3 * i + 1, 3 * i + 2]),
                &outcome,
                Observations::F32(&[0.0; 3]),
            );
        }
        let draw = |epoch| {
            let mut batch = ReplayBatch::default();
            replay.sample(30_000, &mut Seeds::new(0).generator(Purpose::Replay, 0, epoch), &mut batch);
            batch.choices
        };
        let mut counts = std::collections::BTreeMap::new();
        let drawn = draw(0);
        drawn.iter().for_each(|choice| *counts.entry(*choice).or_insert(0) += 1);
        assert_eq!(counts.keys().copied().collect::<Vec<_>>(), (45..75).collect::<Vec<_>>());
        // 1000 each on average; six standard deviations.
        assert!(counts.values().all(|count| (810..1190).contains(count)), "{counts:?}");
        assert_eq!(drawn, draw(0));
        assert_ne!(drawn, draw(1));
    }

    fn mark() -> ReplayMark {
        ReplayMark { env_id: "x".into(), seed: 1, rank: 0, world_size: 1, train_iter: 5 }
    }

    fn filled() -> Line {
        let mut line = Line::new(20, 2);
        for i in 0..33_i64 {
            line.step(i, i as f32, i as f32 + 1.0, (i % 9 == 8).then_some((i % 2 == 0, i as f32 + 0.5)));
        }
        line
    }

    #[test]
    fn restored_shard_continues_bit_exactly() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("replay-0.shard");
        let mut line = filled();
        save(&line.replay, &mark(), &path, &mut |_, _| ()).unwrap();
        save(&line.replay, &mark(), &path, &mut |_, _| ()).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
        let mut copy =
            Line { replay: load(&line.replay.shape, &mark(), &path).unwrap(), spec: line.spec.clone() };
        assert_eq!(copy.replay.buffers, line.replay.buffers);
        for line in [&mut line, &mut copy] {
            // The environment shows its latest observation: the episode continues.
            line.replay.start(Observations::F32(&[33.0]));
            line.step(1, 1.0, 2.0, None);
        }
        assert_eq!(copy.replay.buffers, line.replay.buffers);
        assert_eq!(copy.row(18), (32.0, 32, 32.0 + 0.5, 0.25, 2.0));
        // It was recreated instead: the episode is cut, and the value of its latest observation still counts.
        let mut other =
            Line { replay: load(&line.replay.shape, &mark(), &path).unwrap(), spec: line.spec.clone() };
        other.replay.start(Observations::F32(&[0.25]));
        other.step(1, 1.0, 2.0, None);
        assert_eq!(other.row(18), (32.0, 32, 32.0, 0.5, 33.0));
        assert_eq!(other.row(19), (0.25, 1, 1.0, 0.5, 2.0));
    }

    /// SHARD-2.
    #[test]
    fn damaged_or_foreign_shard_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("replay-0.shard");
        let line = filled();
        save(&line.replay, &mark(), &path, &mut |_, _| ()).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let shape = &line.replay.shape;
        for other in [
            ReplayMark { train_iter: 6, ..mark() },
            ReplayMark { rank: 1, ..mark() },
            ReplayMark { seed: 2, ..mark() },
        ] {
            assert!(load(shape, &other, &path).is_err());
        }
        assert!(load(&ReplayShape { capacity: 21, ..shape.clone() }, &mark(), &path).is_err());
        assert!(load(shape, &mark(), &folder.path().join("missing")).is_err());
        for cut in (0..bytes.len()).step_by(7) {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            assert!(load(shape, &mark(), &path).is_err(), "cut at {cut}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x41;
            std::fs::write(&path, &damaged).unwrap();
            assert!(load(shape, &mark(), &path).is_err(), "byte {at}");
        }
        std::fs::write(&path, [&bytes[..], b"x"].concat()).unwrap();
        assert!(load(shape, &mark(), &path).is_err());
    }
}
