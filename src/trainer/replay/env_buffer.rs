//! One environment's transitions in the order in which they happened: a ring of frames and a ring of steps.
//!
//! Frames and steps are numbered from 0 and never renumbered; `number % length` is the slot. An observation
//! is named by the number of its newest frame and consists of that and the `stack - 1` frames before it. A
//! step's next observation comes one frame later, or, when it is not the old one moved on by a frame, `stack`
//! frames later.

use super::{ReplayBatch, ReplayShape};

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepEnd {
    None = 0,
    Terminated = 1,
    Truncated = 2,
}

/// Bits of an end, and the bit for a next observation that was stored with all its frames.
const END: u8 = 3;
const WHOLE: u8 = 4;

pub(super) enum StoredAction<'a> {
    Choice(i64),
    Numbers(&'a [f32]),
}

#[derive(Debug, PartialEq)]
pub(super) struct EnvBuffer {
    pub(super) frames: Vec<u8>,
    /// Number of the next frame.
    pub(super) next_frame: u64,
    /// The observation that the next action answers; `None` before the first.
    pub(super) current: Option<u64>,
    /// Stored steps are `first..next`.
    pub(super) first: u64,
    pub(super) next: u64,
    /// The observation of each step.
    pub(super) seen: Vec<u64>,
    pub(super) rewards: Vec<f32>,
    pub(super) flags: Vec<u8>,
    pub(super) choices: Vec<i32>,
    pub(super) actions: Vec<f32>,
}

impl EnvBuffer {
    /// Room for `steps` transitions.
    pub(super) fn new(shape: &ReplayShape, steps: usize) -> EnvBuffer {
        EnvBuffer {
            frames: vec![0; shape.env_frames() * shape.frame_bytes()],
            next_frame: 0,
            current: None,
            first: 0,
            next: 0,
            seen: vec![0; steps],
            rewards: vec![0.0; steps],
            flags: vec![0; steps],
            choices: vec![0; if shape.action == 0 { steps } else { 0 }],
            actions: vec![0.0; steps * shape.action],
        }
    }

    /// Whether both hold as many frames and steps.
    pub(super) fn has_room_of(&self, other: &EnvBuffer) -> bool {
        (self.frames.len(), self.seen.len()) == (other.frames.len(), other.seen.len())
    }

    pub(super) fn len(&self) -> usize {
        (self.next - self.first) as usize
    }

    fn place(&self, step: u64) -> usize {
        (step % self.seen.len().max(1) as u64) as usize
    }

    fn frame(&self, number: u64, shape: &ReplayShape) -> &[u8] {
        let (count, bytes) = (shape.env_frames() as u64, shape.frame_bytes());
        let place = (number % count) as usize * bytes;
        &self.frames[place..place + bytes]
    }

    fn push(&mut self, frame: &[u8], shape: &ReplayShape) {
        let (count, bytes) = (shape.env_frames() as u64, shape.frame_bytes());
        let place = (self.next_frame % count) as usize * bytes;
        self.frames[place..place + bytes].copy_from_slice(frame);
        self.next_frame += 1;
        // A step is lost when its oldest frame is overwritten.
        let oldest = self.next_frame.saturating_sub(count) + shape.stack as u64 - 1;
        while self.first < self.next && self.seen[self.place(self.first)] < oldest {
            self.first += 1;
        }
    }

    /// Whether `observation` is the one of frame `number`, from frame `from` of the stack on, with the stored
    /// frames `shift` later.
    fn equal(&self, number: u64, observation: &[u8], shift: usize, shape: &ReplayShape) -> bool {
        let bytes = shape.frame_bytes();
        let stored = (0..shape.stack).map(|i| number + 1 + i as u64 - shape.stack as u64).skip(shift);
        stored
            .zip(observation.chunks_exact(bytes.max(1)))
            .all(|(number, frame)| self.frame(number, shape) == frame)
    }

    /// Stores an observation that follows `before`, if any; returns its number and whether all its frames
    /// were stored.
    fn store(&mut self, observation: &[u8], before: Option<u64>, shape: &ReplayShape) -> (u64, bool) {
        let bytes = shape.frame_bytes();
        let moved_on = before
            .is_some_and(|before| before + 1 == self.next_frame && self.equal(before, observation, 1, shape));
        let from = if moved_on { shape.stack - 1 } else { 0 };
        for frame in observation.chunks_exact(bytes.max(1)).skip(from) {
            self.push(frame, shape);
        }
        (self.next_frame - 1, !moved_on)
    }

    /// Continues with what the environment shows now. If that is not what it showed last, the stored episode
    /// was cut.
    pub(super) fn start(&mut self, observation: &[u8], shape: &ReplayShape) {
        if self.current.is_some_and(|current| self.equal(current, observation, 0, shape)) {
            return;
        }
        if self.next > self.first {
            let last = self.place(self.next - 1);
            if self.flags[last] & END == StepEnd::None as u8 {
                self.flags[last] |= StepEnd::Truncated as u8;
            }
        }
        self.current = Some(self.store(observation, None, shape).0);
    }

    pub(super) fn add(
        &mut self,
        action: StoredAction<'_>,
        reward: f32,
        end: StepEnd,
        next: &[u8],
        shape: &ReplayShape,
    ) {
        let Some(seen) = self.current else { return };
        if self.len() == self.seen.len() {
            self.first += 1;
        }
        let place = self.place(self.next);
        self.seen[place] = seen;
        self.rewards[place] = reward;
        match action {
            StoredAction::Choice(choice) => self.choices[place] = choice as i32,
            StoredAction::Numbers(numbers) => {
                self.actions[place * shape.action..(place + 1) * shape.action].copy_from_slice(numbers);
            }
        }
        self.flags[place] = end as u8;
        self.next += 1;
        let (number, whole) = self.store(next, Some(seen), shape);
        if whole {
            self.flags[place] |= WHOLE;
        }
        // After an end, the next observation comes with `first_slot`.
        self.current = (end == StepEnd::None).then_some(number);
    }

    /// Appends transition `index` (0 is the oldest) to the batch.
    pub(super) fn read(&self, index: usize, shape: &ReplayShape, batch: &mut ReplayBatch) {
        let first = self.first + index as u64;
        let first_slot = self.place(first);
        let (mut step, mut sum, mut discount) = (first, 0.0, 1.0);
        let last = loop {
            let place = self.place(step);
            sum += discount * self.rewards[place];
            discount *= shape.gamma;
            let taken = (step - first + 1) as usize;
            if taken == shape.n_step || self.flags[place] & END != 0 || step + 1 == self.next {
                break place;
            }
            step += 1;
        };
        if self.flags[last] & END == StepEnd::Terminated as u8 {
            discount = 0.0;
        }
        batch.rewards.push(sum);
        batch.discounts.push(discount);
        if shape.action == 0 {
            batch.choices.push(i64::from(self.choices[first_slot]));
        } else {
            batch
                .actions
                .extend_from_slice(&self.actions[first_slot * shape.action..(first_slot + 1) * shape.action]);
        }
        let distance = if self.flags[last] & WHOLE == 0 { 1 } else { shape.stack as u64 };
        let (now, next) = (self.seen[first_slot], self.seen[last] + distance);
        if shape.mask > 0 {
            batch.next_masks.extend_from_slice(&self.frame(next, shape)[shape.seen_bytes()..]);
        }
        if shape.element == 1 {
            self.append(now, shape, &mut batch.pixels.now, |to, frame| to.extend_from_slice(frame));
            self.append(next, shape, &mut batch.pixels.next, |to, frame| to.extend_from_slice(frame));
        } else {
            self.append(now, shape, &mut batch.numbers.now, append_numbers);
            self.append(next, shape, &mut batch.numbers.next, append_numbers);
        }
    }

    fn append<T>(
        &self,
        number: u64,
        shape: &ReplayShape,
        to: &mut Vec<T>,
        append: impl Fn(&mut Vec<T>, &[u8]),
    ) {
        for i in 0..shape.stack as u64 {
            append(to, &self.frame(number + 1 + i - shape.stack as u64, shape)[..shape.seen_bytes()]);
        }
    }
}

fn append_numbers(to: &mut Vec<f32>, frame: &[u8]) {
    to.extend(frame.chunks_exact(4).map(|bytes| {
        let mut word = [0; 4];
        word.copy_from_slice(bytes);
        f32::from_ne_bytes(word)
    }));
}
