//! Classic control in Rust, bit-equal to Gymnasium 1.x; many environments step together.
//!
//! A [`ClassicTask`] is the physics of one environment without time limit, random stream or bookkeeping;
//! [`ClassicVector`] adds those for all kinds alike. Nothing is allocated per step.
//!
//! Invariants, besides those of every [`VectorEnv`]:
//! - CLASSIC-1: states, observations, rewards, ends and resets are bit-equal to `gymnasium.make(id)` with the
//!   same seed: same order of operations, same widths, no fused multiply-add. `tests/data/` holds recordings,
//!   and a test compares with Gymnasium itself.
//! - CLASSIC-2: the time limit truncates at exactly `limit` steps; an end in that very step is both
//!   terminated and truncated.

mod acrobot;
pub mod cartpole;
mod mountain_car;
pub mod pendulum;

use super::{
    ActionSpace, Actions, EnvError, Episode, ObservationBuffer, ObservationType, Observations, Spec,
    StepOutcome, Streams, VectorEnv,
};
use acrobot::Acrobot;
use cartpole::{CartPole, CartPoleNoVelocity};
use mountain_car::{MountainCar, MountainCarContinuous};
use pendulum::Pendulum;
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_types::experiment::Env;
use std::hint::black_box;

/// What one action led to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TaskStep {
    pub reward: f64,
    /// The task itself ended.
    pub terminated: bool,
}

/// The type of a task's actions: `i64` where they are discrete, `f32` where they are one number.
pub(crate) trait TaskAction: Copy + Send + 'static {
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
pub(crate) trait ClassicTask: Clone + Send {
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

/// `rankdeck/Constant-v0`: one observation, reward 1 for every step, ended by the time limit only (10 steps).
///
/// A learner that bootstraps truncated episodes finds the value `1 / (1 - gamma)`; one that takes truncation
/// for termination finds a value bounded by the limit. It is not one of Gymnasium's, and has no state.
#[derive(Debug, Clone)]
struct Constant;

impl ClassicTask for Constant {
    type Action = i64;
    const OBSERVATION: usize = 1;
    const WORDS: usize = 0;

    fn actions() -> ActionSpace {
        ActionSpace::Discrete { n: 2 }
    }

    fn blank() -> Constant {
        Constant
    }

    fn reset(&mut self, _: &mut Generator) {}

    fn step(&mut self, _: i64) -> TaskStep {
        TaskStep { reward: 1.0, terminated: false }
    }

    fn observe(&self, observation: &mut [f32]) {
        observation.fill(1.0);
    }

    fn save(&self, _: &mut Vec<u64>) {}

    fn restore(&mut self, _: &[u64]) {}
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

/// The id of [`CartPoleNoVelocity`].
const NO_VELOCITY: &str = "rankdeck/CartPoleNoVelocity-v1";

/// The ids of Gymnasium that are built in; there are two more, whose ids begin with `rankdeck/`.
pub fn ids() -> Vec<&'static str> {
    rankdeck_types::experiment::builtin_ids().collect()
}

/// An id, and what is made of it.
struct ClassicEnv {
    id: &'static str,
    /// Steps of an episode.
    limit: u32,
    spec: fn() -> Spec,
    make: fn(&Env, u64, usize, Streams) -> Box<dyn VectorEnv>,
}

impl ClassicEnv {
    const fn of<T: ClassicTask + 'static>(id: &'static str, limit: u32) -> ClassicEnv {
        ClassicEnv { id, limit, spec: spec::<T>, make: boxed::<T> }
    }
}

/// All environments.
const ENVS: &[ClassicEnv] = &[
    ClassicEnv::of::<CartPole>("CartPole-v0", 200),
    ClassicEnv::of::<CartPole>("CartPole-v1", 500),
    ClassicEnv::of::<Pendulum>("Pendulum-v1", 200),
    ClassicEnv::of::<Acrobot>("Acrobot-v1", 500),
    ClassicEnv::of::<MountainCar>("MountainCar-v0", 200),
    ClassicEnv::of::<MountainCarContinuous>("MountainCarContinuous-v0", 999),
    ClassicEnv::of::<Constant>("rankdeck/Constant-v0", 10),
    ClassicEnv::of::<CartPoleNoVelocity>(NO_VELOCITY, 500),
];

fn boxed<T: ClassicTask + 'static>(
    env: &Env,
    limit: u64,
    envs: usize,
    streams: Streams,
) -> Box<dyn VectorEnv> {
    Box::new(ClassicVector::<T>::new(&env.id, limit, envs, streams))
}

fn spec<T: ClassicTask>() -> Spec {
    Spec {
        observation_shape: vec![T::OBSERVATION],
        observation_type: ObservationType::F32,
        branches: Vec::new(),
        actions: T::actions(),
    }
}

/// Shapes of a known id.
pub fn spec_of(id: &str) -> Option<Spec> {
    ENVS.iter().find(|env| env.id == id).map(|env| (env.spec)())
}

/// `envs` environments of a known id, reset.
pub(super) fn make(env: &Env, envs: usize, streams: Streams) -> Option<Box<dyn VectorEnv>> {
    let known = ENVS.iter().find(|known| known.id == env.id)?;
    let limit = u64::from(env.max_episode_steps.unwrap_or(known.limit));
    Some((known.make)(env, limit, envs, streams))
}

/// Words that every environment has besides its task's: return so far, length so far, generator.
const COMMON: usize = 6;

struct EnvSlot<T> {
    task: T,
    random: Generator,
    episode_return: f64,
    length: u64,
}

/// Environments of one kind.
pub(crate) struct ClassicVector<T> {
    id: String,
    limit: u64,
    streams: Streams,
    slots: Vec<EnvSlot<T>>,
    spec: Spec,
    observations: Vec<f32>,
}

impl<T: ClassicTask> ClassicVector<T> {
    fn new(id: &str, limit: u64, envs: usize, streams: Streams) -> ClassicVector<T> {
        let blank = || EnvSlot {
            task: T::blank(),
            random: Generator::from_words(&[0]),
            episode_return: 0.0,
            length: 0,
        };
        let mut this = ClassicVector {
            id: id.into(),
            limit,
            streams,
            slots: (0..envs).map(|_| blank()).collect(),
            spec: spec::<T>(),
            observations: vec![0.0; envs * T::OBSERVATION],
        };
        this.start_episodes();
        this
    }

    fn start_episodes(&mut self) {
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
            return Err(self.refuse(format!("expected {envs} actions of this environment's kind")));
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
        self.start_episodes();
        Ok(())
    }

    fn words_per_env(&self) -> Option<usize> {
        Some(COMMON + T::WORDS)
    }

    fn save(&self) -> Result<Option<Vec<u64>>, EnvError> {
        let mut words = Vec::with_capacity(self.slots.len() * (COMMON + T::WORDS));
        for slot in &self.slots {
            words.extend([slot.episode_return.to_bits(), slot.length]);
            words.extend(slot.random.to_state());
            slot.task.save(&mut words);
        }
        Ok(Some(words))
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
mod tests {
    use super::super::{EnvPurpose, make_vector};
    use super::*;
    use rankdeck_kernel::seeds::Seeds;
    use rankdeck_types::experiment::{Env, EnvWorker};

    fn vector(id: &str, envs: usize, first: u32, seed: u64) -> Box<dyn VectorEnv> {
        make_vector(&Env::new(id, 1), envs, first, &Seeds::new(seed), 0, EnvPurpose::Train).unwrap()
    }

    /// Some actions that depend on the step and the environment.
    fn act(env: &mut dyn VectorEnv, step: usize, outcome: &mut StepOutcome) {
        let number = |i: usize| (step * 7 + i * 3) / 5;
        match env.spec().actions.clone() {
            ActionSpace::Discrete { n } => {
                let actions: Vec<i64> = (0..env.len()).map(|i| (number(i) % n) as i64).collect();
                env.step(Actions::Discrete(&actions), outcome).unwrap();
            }
            ActionSpace::MultiDiscrete { sizes } => panic!("{sizes:?}"),
            ActionSpace::Continuous { low, high } => {
                let at = |i: usize| low[0] + (high[0] - low[0]) * (number(i) % 11) as f32 / 10.0;
                let actions: Vec<f32> = (0..env.len()).map(at).collect();
                env.step(Actions::Continuous(&actions), outcome).unwrap();
            }
        }
    }

    fn bits(observations: Observations<'_>) -> Vec<u32> {
        observations.f32().unwrap().iter().map(|x| x.to_bits()).collect()
    }

    fn play(env: &mut dyn VectorEnv, steps: usize) -> (Vec<u32>, Vec<Episode>, u64) {
        let mut outcome = StepOutcome::new(env.spec(), env.len());
        let (mut seen, mut episodes, mut done) = (Vec::new(), Vec::new(), 0);
        for step in 0..steps {
            act(env, step, &mut outcome);
            done += (0..env.len()).filter(|i| outcome.done(*i)).count() as u64;
            assert!(outcome.valid.iter().all(|valid| *valid));
            episodes.extend(outcome.episodes.iter().copied());
            seen.extend(bits(env.observations()));
        }
        (seen, episodes, done)
    }

    #[test]
    fn vector_1_every_step_counts_and_no_reset_does() {
        let mut env = vector("CartPole-v1", 3, 0, 1);
        let (_, episodes, done) = play(env.as_mut(), 400);
        assert_eq!(episodes.len() as u64, done);
        assert!(done > 10);
        let running: u64 =
            env.save().unwrap().unwrap().chunks(env.words_per_env().unwrap()).map(|words| words[1]).sum();
        assert_eq!(episodes.iter().map(|e| e.length).sum::<u64>() + running, 3 * 400);
        assert!(episodes.iter().all(|e| e.episode_return == e.length as f64));
    }

    #[test]
    fn vector_2_final_observation_is_kept_on_same_step_reset() {
        let mut env = vector("CartPole-v1", 2, 0, 3);
        let mut outcome = StepOutcome::new(env.spec(), 2);
        let mut ends = 0;
        for step in 0..300 {
            act(env.as_mut(), step, &mut outcome);
            for i in (0..2).filter(|i| outcome.done(*i)) {
                let row =
                    |observations: Observations<'_>| observations.f32().unwrap()[i * 4..i * 4 + 4].to_vec();
                let (last, first) = (row(outcome.final_observations.view()), row(env.observations()));
                assert!(last[2].abs() > 0.2 || last[0].abs() > 2.4, "a fallen pole: {last:?}");
                assert!(first.iter().all(|x| x.abs() <= 0.05), "a reset state: {first:?}");
                ends += 1;
            }
        }
        assert!(ends > 5);
    }

    /// The console has a list of its own, because it does not link this crate.
    #[test]
    fn builtin_envs_are_those_here_with_their_actions() {
        use rankdeck_types::experiment::{ActionKind, BUILTIN_ENVS};
        let own: Vec<&str> = ENVS.iter().map(|env| env.id).filter(|id| !id.contains('/')).collect();
        assert_eq!(own, ids());
        for env in BUILTIN_ENVS {
            let continuous = matches!(spec_of(env.id).unwrap().actions, ActionSpace::Continuous { .. });
            assert_eq!(env.actions == ActionKind::Continuous, continuous, "{}", env.id);
        }
    }

    #[test]
    fn vector_3_restored_state_continues_bit_exactly() {
        for id in ids() {
            let mut env = vector(id, 2, 0, 4);
            play(env.as_mut(), 57);
            let mut copy = vector(id, 2, 9, 4);
            copy.restore(&env.save().unwrap().unwrap()).unwrap();
            assert_eq!(bits(copy.observations()), bits(env.observations()), "{id}");
            assert_eq!(play(copy.as_mut(), 300), play(env.as_mut(), 300), "{id}");
            assert!(copy.restore(&[1, 2, 3]).is_err());
        }
    }

    #[test]
    fn vector_4_an_environment_depends_on_its_global_index_only() {
        for id in ids() {
            let (mut all, mut half) = (vector(id, 4, 0, 2), vector(id, 2, 2, 2));
            let width = all.spec().observation_len();
            assert_eq!(bits(all.observations())[2 * width..], bits(half.observations()));
            let started = bits(all.observations());
            play(all.as_mut(), 20);
            all.reset().unwrap();
            half.reset().unwrap();
            assert_eq!(bits(all.observations()), started, "{id}");
        }
    }

    #[test]
    fn unfit_actions_and_buffers_are_refused() {
        let mut env = vector("CartPole-v1", 2, 0, 2);
        let mut outcome = StepOutcome::new(env.spec(), 2);
        for actions in [
            Actions::Discrete(&[0]),
            Actions::Discrete(&[0, 2]),
            Actions::Discrete(&[-1, 0]),
            Actions::Continuous(&[0.0, 0.0]),
        ] {
            assert!(matches!(env.step(actions, &mut outcome), Err(EnvError::Actions { .. })), "{actions:?}");
        }
        let mut small = StepOutcome::new(env.spec(), 1);
        assert!(env.step(Actions::Discrete(&[0, 0]), &mut small).is_err());
        env.step(Actions::Discrete(&[0, 1]), &mut outcome).unwrap();
    }

    #[test]
    fn unknown_id_error_lists_known_ids() {
        let env = Env { worker: EnvWorker::Rust, ..Env::new("CartPole-v7", 1) };
        let error = super::super::EnvFactory::open(&env).err().unwrap();
        assert!(
            error.to_string().contains("CartPole-v7") && error.to_string().contains("CartPole-v1"),
            "{error}"
        );
    }

    #[test]
    fn cartpole_without_velocity_shows_position_and_angle_only() {
        let (mut whole, mut partial) = (vector("CartPole-v1", 3, 0, 5), vector(NO_VELOCITY, 3, 0, 5));
        let (seen, ..) = play(partial.as_mut(), 100);
        let (expected, episodes, _) = play(whole.as_mut(), 100);
        let expected: Vec<u32> = expected.chunks(4).flat_map(|state| [state[0], state[2]]).collect();
        assert_eq!(seen, expected);
        assert!(episodes.len() > 3);
        assert_eq!(partial.save().unwrap(), whole.save().unwrap());
        let mut copy = vector(NO_VELOCITY, 3, 0, 6);
        copy.restore(&partial.save().unwrap().unwrap()).unwrap();
        assert_eq!(bits(copy.observations()), bits(partial.observations()));
    }

    #[test]
    fn constant_environment_is_truncated_only() {
        let env = Env { max_episode_steps: Some(4), ..Env::new("rankdeck/Constant-v0", 1) };
        let mut env = make_vector(&env, 2, 0, &Seeds::new(0), 0, EnvPurpose::Train).unwrap();
        let mut outcome = StepOutcome::new(env.spec(), 2);
        for step in 1..=12 {
            env.step(Actions::Discrete(&[0, 1]), &mut outcome).unwrap();
            assert_eq!((outcome.rewards[0], outcome.terminated[0]), (1.0, false));
            assert_eq!(outcome.truncated, [step % 4 == 0; 2]);
            assert_eq!(outcome.episodes.len(), if step % 4 == 0 { 2 } else { 0 });
        }
    }
}
