//! Classic control, computed in Rust as Gymnasium 1.x computes it, many environments stepped together.
//!
//! Owner: the collector of a rank. A [`ClassicTask`] is the physics of one environment without time limit,
//! random stream or bookkeeping; [`ClassicVector`] adds those for all kinds alike. Nothing is allocated per
//! step.
//!
//! Invariants, besides those of every [`VectorEnv`]:
//! - CLASSIC-1: states, observations, rewards, ends and resets are bit-equal to `gymnasium.make(id)` with the
//!   same seed: same order of operations, same widths, no fused multiply-add. `tests/data/` holds recordings,
//!   and a test compares with Gymnasium itself.
//! - CLASSIC-2: the time limit truncates at exactly `limit` steps; an end in that very step is both
//!   terminated and truncated.

pub mod acrobot;
pub mod cartpole;
pub mod constant;
pub mod mountain_car;
pub mod pendulum;

use super::{ActionSpace, Actions, EnvError, Episode, Observations, Spec, StepOutcome, Streams, VectorEnv};
use super::{ObservationBuffer, ObservationType};
use acrobot::Acrobot;
use cartpole::CartPole;
use constant::Constant;
use mountain_car::{MountainCar, MountainCarContinuous};
use pendulum::Pendulum;
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_types::experiment::Env;
use std::hint::black_box;

/// What one action led to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TaskStep {
    pub reward: f64,
    /// The task itself ended.
    pub terminated: bool,
}

/// The type of a task's actions: `i64` where they are discrete, `f32` where they are one number.
pub trait TaskAction: Copy + Send + 'static {
    /// The actions, if they are of this type.
    fn all(actions: Actions<'_>) -> Option<&[Self]>;
    /// May be applied in this space.
    fn fits(self, space: &ActionSpace) -> bool;
}

impl TaskAction for i64 {
    fn all(actions: Actions<'_>) -> Option<&[i64]> {
        match actions {
            Actions::Discrete(actions) => Some(actions),
            Actions::Continuous(_) => None,
        }
    }

    fn fits(self, space: &ActionSpace) -> bool {
        matches!(space, ActionSpace::Discrete { n } if (0..*n as i64).contains(&self))
    }
}

impl TaskAction for f32 {
    fn all(actions: Actions<'_>) -> Option<&[f32]> {
        match actions {
            Actions::Continuous(actions) => Some(actions),
            Actions::Discrete(_) => None,
        }
    }

    fn fits(self, _: &ActionSpace) -> bool {
        !self.is_nan()
    }
}

/// The physics of one environment.
pub trait ClassicTask: Clone + Send {
    /// Type of its actions.
    type Action: TaskAction;
    /// Numbers in an observation.
    const OBSERVATION: usize;
    /// Words of [`ClassicTask::save`].
    const WORDS: usize;
    /// Its actions.
    fn actions() -> ActionSpace;
    /// A task that was never reset.
    fn blank() -> Self;
    /// Draws the first state of an episode.
    fn reset(&mut self, random: &mut Generator);
    /// Applies an action that fits.
    fn step(&mut self, action: Self::Action) -> TaskStep;
    /// Writes the observation of the state as it is.
    fn observe(&self, observation: &mut [f32]);
    /// Appends its state; first the numbers of Gymnasium's `state`, as bits of f64.
    fn save(&self, words: &mut Vec<u64>);
    /// Restores [`ClassicTask::WORDS`] words of [`ClassicTask::save`].
    fn restore(&mut self, words: &[u64]);
}

/// `x**2` of a NumPy scalar: libm's `pow`, which sometimes differs from `x * x` in the last bit. The exponent
/// is hidden from the compiler, which would turn it into a product.
fn pow2(x: f64) -> f64 {
    x.powf(black_box(2.0))
}

/// The same for an f32.
fn pow2_f32(x: f32) -> f32 {
    x.powf(black_box(2.0))
}

/// The ids of Gymnasium that are built in; [`constant::ID`] is one more.
pub const KNOWN: [&str; 6] = rankdeck_types::experiment::BUILTIN_ENVS;

fn spec<T: ClassicTask>() -> Spec {
    Spec {
        observation_shape: vec![T::OBSERVATION],
        observation_type: ObservationType::F32,
        actions: T::actions(),
    }
}

/// Shapes of a known id.
pub fn spec_of(id: &str) -> Option<Spec> {
    Some(match id {
        "CartPole-v0" | "CartPole-v1" => spec::<CartPole>(),
        "Pendulum-v1" => spec::<Pendulum>(),
        "Acrobot-v1" => spec::<Acrobot>(),
        "MountainCar-v0" => spec::<MountainCar>(),
        "MountainCarContinuous-v0" => spec::<MountainCarContinuous>(),
        constant::ID => spec::<Constant>(),
        _ => return None,
    })
}

/// `envs` environments of a known id, reset.
pub(super) fn make(env: &Env, envs: usize, streams: Streams) -> Option<Box<dyn VectorEnv>> {
    fn boxed<T: ClassicTask + 'static>(
        env: &Env,
        limit: u32,
        envs: usize,
        streams: Streams,
    ) -> Option<Box<dyn VectorEnv>> {
        let limit = u64::from(env.max_episode_steps.unwrap_or(limit));
        Some(Box::new(ClassicVector::<T>::new(&env.id, limit, envs, streams)))
    }
    match env.id.as_str() {
        "CartPole-v0" => boxed::<CartPole>(env, 200, envs, streams),
        "CartPole-v1" => boxed::<CartPole>(env, 500, envs, streams),
        "Pendulum-v1" => boxed::<Pendulum>(env, 200, envs, streams),
        "Acrobot-v1" => boxed::<Acrobot>(env, 500, envs, streams),
        "MountainCar-v0" => boxed::<MountainCar>(env, 200, envs, streams),
        "MountainCarContinuous-v0" => boxed::<MountainCarContinuous>(env, 999, envs, streams),
        constant::ID => boxed::<Constant>(env, 10, envs, streams),
        _ => None,
    }
}

/// Words that every environment has besides its task's: return so far, length so far, generator.
const COMMON: usize = 6;

struct Slot<T> {
    task: T,
    random: Generator,
    episode_return: f64,
    length: u64,
}

/// Environments of one kind.
pub struct ClassicVector<T> {
    id: String,
    limit: u64,
    streams: Streams,
    slots: Vec<Slot<T>>,
    spec: Spec,
    observations: Vec<f32>,
}

impl<T: ClassicTask> ClassicVector<T> {
    fn new(id: &str, limit: u64, envs: usize, streams: Streams) -> ClassicVector<T> {
        let blank =
            || Slot { task: T::blank(), random: Generator::from_words(&[0]), episode_return: 0.0, length: 0 };
        let mut this = ClassicVector {
            id: id.into(),
            limit,
            streams,
            slots: (0..envs).map(|_| blank()).collect(),
            spec: spec::<T>(),
            observations: vec![0.0; envs * T::OBSERVATION],
        };
        this.begin();
        this
    }

    fn begin(&mut self) {
        let rows = self.observations.chunks_exact_mut(T::OBSERVATION);
        for (index, (slot, observation)) in self.slots.iter_mut().zip(rows).enumerate() {
            slot.random = Generator::from_words(&self.streams.words(index));
            (slot.episode_return, slot.length) = (0.0, 0);
            slot.task.reset(&mut slot.random);
            slot.task.observe(observation);
        }
    }

    fn refuse(&self, what: String) -> EnvError {
        EnvError::Actions { id: self.id.clone(), what }
    }
}

impl<T: ClassicTask> VectorEnv for ClassicVector<T> {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn len(&self) -> usize {
        self.slots.len()
    }

    fn observations(&self) -> Observations<'_> {
        Observations::F32(&self.observations)
    }

    fn step(&mut self, actions: Actions<'_>, outcome: &mut StepOutcome) -> Result<(), EnvError> {
        let envs = self.slots.len();
        let Some(actions) = <T::Action as TaskAction>::all(actions).filter(|actions| actions.len() == envs)
        else {
            return Err(self.refuse(format!("actions of another kind or number than {envs} were given")));
        };
        if let Some(index) = actions.iter().position(|action| !action.fits(&self.spec.actions)) {
            return Err(self.refuse(format!("the action for environment {index} is not in its action space")));
        }
        let ObservationBuffer::F32(last) = &mut outcome.final_observations else {
            return Err(self.refuse("the outcome's buffers were made for another environment".into()));
        };
        if outcome.rewards.len() != envs || last.len() != self.observations.len() {
            return Err(self.refuse("the outcome's buffers were made for another environment".into()));
        }
        outcome.episodes.clear();
        let rows = self.observations.chunks_exact_mut(T::OBSERVATION);
        for (index, ((slot, observation), action)) in self.slots.iter_mut().zip(rows).zip(actions).enumerate()
        {
            let step = slot.task.step(*action);
            slot.episode_return += step.reward;
            slot.length += 1;
            let truncated = slot.length >= self.limit;
            outcome.rewards[index] = step.reward as f32;
            outcome.terminated[index] = step.terminated;
            outcome.truncated[index] = truncated;
            outcome.valid[index] = true;
            if step.terminated || truncated {
                slot.task.observe(&mut last[index * T::OBSERVATION..(index + 1) * T::OBSERVATION]);
                outcome.episodes.push(Episode {
                    env: index,
                    episode_return: slot.episode_return,
                    length: slot.length,
                });
                (slot.episode_return, slot.length) = (0.0, 0);
                slot.task.reset(&mut slot.random);
            }
            slot.task.observe(observation);
        }
        Ok(())
    }

    fn reset(&mut self) -> Result<(), EnvError> {
        self.begin();
        Ok(())
    }

    fn words_per_env(&self) -> Option<usize> {
        Some(COMMON + T::WORDS)
    }

    fn save(&self) -> Option<Vec<u64>> {
        let mut words = Vec::with_capacity(self.slots.len() * (COMMON + T::WORDS));
        for slot in &self.slots {
            words.extend([slot.episode_return.to_bits(), slot.length]);
            words.extend(slot.random.to_state());
            slot.task.save(&mut words);
        }
        Some(words)
    }

    fn restore(&mut self, words: &[u64]) -> Result<(), EnvError> {
        let each = COMMON + T::WORDS;
        let expected = each * self.slots.len();
        if words.len() != expected {
            return Err(EnvError::State { expected, found: words.len() });
        }
        let rows = self.observations.chunks_exact_mut(T::OBSERVATION);
        for ((slot, observation), words) in self.slots.iter_mut().zip(rows).zip(words.chunks_exact(each)) {
            slot.episode_return = f64::from_bits(words[0]);
            slot.length = words[1];
            slot.random = Generator::from_state([words[2], words[3], words[4], words[5]]);
            slot.task.restore(&words[COMMON..]);
            slot.task.observe(observation);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
