//! Environments: their interface, the built-in ones, and vectors of them that step together.
//!
//! Two implementations of one trait, [`VectorEnv`]: [`classic`] control in Rust, bit-equal to Gymnasium and
//! saved in checkpoints, and everything else in one Python worker process per rank. [`make_vector`] chooses.
//!
//! Invariants of every [`VectorEnv`]:
//! - VECTOR-1: each `step` steps every environment by one accepted action, except where
//!   [`StepOutcome::valid`] is false; a reset counts none.
//! - VECTOR-2: same-step reset: after a step, `observations()` shows the first observation of the next
//!   episode where one ended, and the last observation of the ended one is in
//!   [`StepOutcome::final_observations`]. Reward and flags belong to the ended episode. (Gymnasium's
//!   SAME_STEP mode, which was the only one in 0.29 and is what CleanRL's PPO was written and measured with.)
//! - VECTOR-3: save and restore between two steps change nothing in what follows.
//! - VECTOR-4: an environment's randomness depends on base seed, purpose, start iteration and its global
//!   index only, not on how many ranks share the work.

pub mod classic;
mod error;
mod fitted;
mod library;
pub mod log;
mod parted;
mod python;
mod start;

pub use error::EnvError;
pub use fitted::{BYTE_SCALE, fit};
pub use python::default_workers;
use rankdeck_kernel::seeds::Seeds;
use rankdeck_proto::message::Activity;
use rankdeck_proto::show::EnvImage;
use rankdeck_types::experiment::{Env, EnvWorker};
use serde::{Deserialize, Serialize};
pub use start::{abandon_when, unstarted};
use std::cell::RefCell;

/// The actions that an environment takes.
#[derive(Debug, Clone, PartialEq)]
pub enum ActionSpace {
    /// One of `0..n`.
    Discrete {
        /// Actions.
        n: usize,
    },
    /// Several parts at once, each one of `0..sizes[i]` (Gymnasium's `MultiDiscrete`, and `MultiBinary` with sizes
    /// of 2).
    MultiDiscrete {
        /// Choices of each part.
        sizes: Vec<usize>,
    },
    /// A vector of numbers, each in `low[i]..=high[i]` (infinite where there is no bound).
    Continuous {
        /// Smallest.
        low: Vec<f32>,
        /// Largest.
        high: Vec<f32>,
    },
}

impl ActionSpace {
    /// Numbers that a policy gives per environment: a logit per choice of each discrete part, or one number per
    /// continuous one.
    pub fn width(&self) -> usize {
        match self {
            ActionSpace::Discrete { n } => *n,
            ActionSpace::MultiDiscrete { sizes } => sizes.iter().fold(0, |all, n| all.saturating_add(*n)),
            ActionSpace::Continuous { low, .. } => low.len(),
        }
    }

    /// Numbers of one action, as an environment takes it.
    pub fn action_len(&self) -> usize {
        match self {
            ActionSpace::Discrete { .. } => 1,
            ActionSpace::MultiDiscrete { sizes } => sizes.len(),
            ActionSpace::Continuous { low, .. } => low.len(),
        }
    }

    /// Choices of each discrete part; none for continuous actions.
    pub fn sizes(&self) -> &[usize] {
        match self {
            ActionSpace::Discrete { n } => std::slice::from_ref(n),
            ActionSpace::MultiDiscrete { sizes } => sizes,
            ActionSpace::Continuous { .. } => &[],
        }
    }

    /// The actions have these numbers, each one of its choices.
    pub(crate) fn contains(&self, actions: &[i64], envs: usize) -> bool {
        let sizes = self.sizes();
        actions.len() == envs * sizes.len()
            && actions.iter().zip(sizes.iter().cycle()).all(|(action, n)| (0..*n as i64).contains(action))
    }
}

/// Type of an observation's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObservationType {
    /// Feature vectors.
    F32,
    /// Pixels, 0 to 255.
    U8,
}

/// A part of a `Dict` observation with images. The observation is flat: its parts follow each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Branch {
    /// Its key in the observation.
    pub key: String,
    /// `[channels, height, width]` or `[height, width, channels]` of an image, else `[numbers]`.
    pub shape: Vec<usize>,
    /// It is an image.
    pub image: bool,
    /// The last side of the image has its channels.
    pub last: bool,
    /// The image has values from 0 to 255.
    pub bytes: bool,
}

impl Branch {
    /// Its numbers.
    pub fn numbers(&self) -> usize {
        self.shape.iter().fold(1, |all, size| all.saturating_mul(*size))
    }
}

/// Shapes of an environment.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// Shape of one observation: `[len]`, or `[stack, height, width]` of images.
    pub observation_shape: Vec<usize>,
    /// Type of its elements.
    pub observation_type: ObservationType,
    /// The parts of a `Dict` observation with images; empty for all other observations.
    pub branches: Vec<Branch>,
    pub actions: ActionSpace,
}

impl Spec {
    /// Flat f32 observations of `len` numbers and `n` discrete actions.
    pub fn discrete(len: usize, n: usize) -> Spec {
        Spec {
            observation_shape: vec![len],
            observation_type: ObservationType::F32,
            branches: Vec::new(),
            actions: ActionSpace::Discrete { n },
        }
    }

    /// Elements of one observation.
    pub fn observation_len(&self) -> usize {
        // A lower bound, whatever the worker reports.
        self.observation_shape.iter().fold(1, |all, size| all.saturating_mul(*size))
    }
}

/// `[envs][observation_shape]`, row by row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Observations<'a> {
    /// Feature vectors.
    F32(&'a [f32]),
    /// Pixels.
    U8(&'a [u8]),
}

impl<'a> Observations<'a> {
    /// The numbers, if they are.
    pub fn f32(self) -> Option<&'a [f32]> {
        match self {
            Observations::F32(values) => Some(values),
            Observations::U8(_) => None,
        }
    }

    /// The pixels, if they are.
    pub fn u8(self) -> Option<&'a [u8]> {
        match self {
            Observations::U8(values) => Some(values),
            Observations::F32(_) => None,
        }
    }
}

/// One action per environment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Actions<'a> {
    /// `[envs]`, or `[envs][parts]` of several parts.
    Discrete(&'a [i64]),
    /// `[envs][action_len]`, as the environment takes them: the caller scales and clips.
    Continuous(&'a [f32]),
}

/// A finished episode: a whole game, however training cuts it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Episode {
    /// Local index of the environment.
    pub env: usize,
    /// Sum of its rewards, unclipped.
    pub episode_return: f64,
    /// Its steps.
    pub length: u64,
}

/// `[envs][observation_shape]`, owned.
#[derive(Debug, Clone, PartialEq)]
pub enum ObservationBuffer {
    /// Feature vectors.
    F32(Vec<f32>),
    /// Pixels.
    U8(Vec<u8>),
}

impl ObservationBuffer {
    /// Room for the observations of `envs` environments, filled with 0.
    pub fn new(spec: &Spec, envs: usize) -> ObservationBuffer {
        let len = envs * spec.observation_len();
        match spec.observation_type {
            ObservationType::F32 => ObservationBuffer::F32(vec![0.0; len]),
            ObservationType::U8 => ObservationBuffer::U8(vec![0; len]),
        }
    }

    /// All of it.
    pub fn view(&self) -> Observations<'_> {
        match self {
            ObservationBuffer::F32(values) => Observations::F32(values),
            ObservationBuffer::U8(values) => Observations::U8(values),
        }
    }
}

/// What one step led to, per environment.
#[derive(Debug, Clone, PartialEq)]
pub struct StepOutcome {
    /// Rewards for learning (of Atari games clipped, if so configured).
    pub rewards: Vec<f32>,
    /// The task itself ended: nothing follows, so no value is added.
    pub terminated: Vec<bool>,
    /// A limit from outside, such as time, ended the episode: the value of its final observation still
    /// counts.
    pub truncated: Vec<bool>,
    /// False: the environment was only reset. Not a transition, not counted, not to be stored.
    pub valid: Vec<bool>,
    /// Row `i` is the last observation of environment `i`'s episode where `terminated[i]` or `truncated[i]`;
    /// other rows are undefined.
    pub final_observations: ObservationBuffer,
    /// Which actions those observations allow, `[envs][actions.width()]`: all where the environment does not say;
    /// empty without `env.action_masks`.
    pub final_masks: Vec<u8>,
    /// Episodes that ended in this step, in order of their environments.
    pub episodes: Vec<Episode>,
}

impl StepOutcome {
    /// Room for the steps of `envs` environments.
    pub fn new(spec: &Spec, envs: usize) -> StepOutcome {
        StepOutcome {
            rewards: vec![0.0; envs],
            terminated: vec![false; envs],
            truncated: vec![false; envs],
            valid: vec![true; envs],
            final_observations: ObservationBuffer::new(spec, envs),
            final_masks: Vec::new(),
            episodes: Vec::with_capacity(envs),
        }
    }

    /// Environment `i`'s episode is over for the learner, for any reason.
    pub fn done(&self, i: usize) -> bool {
        self.terminated[i] || self.truncated[i]
    }
}

/// What environments are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnvPurpose {
    /// Training: Atari lives may end episodes, rewards may be clipped.
    Train,
    /// Evaluation: whole games and raw rewards, seeds disjoint from training. The global index is
    /// the number of the episode.
    Evaluate,
    /// The same, to be shown: environments that can draw themselves are made so that they do.
    Show,
}

/// Where the Python worker of an environment imports modules from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerImports {
    /// The current directory too: a rank runs in its code.
    CurrentDirectory,
    /// Installed packages and `PYTHONPATH` only: the environment is a checkpoint's (IMPORT-1).
    Installed,
}

/// Called by slow environments: with what they begin to do, again for each progress in it, and with
/// [`Activity::None`] at the end.
pub type Watcher = Box<dyn FnMut(Activity)>;

/// Environments stepped together; see the module's invariants.
pub trait VectorEnv {
    /// Shapes of each.
    fn spec(&self) -> &Spec;
    /// Environments.
    fn len(&self) -> usize;
    /// There are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// What the policy sees now.
    fn observations(&self) -> Observations<'_>;
    /// Which actions each environment allows now, `[envs][actions.width()]`, 0 where not; `None` without
    /// `env.action_masks`.
    fn masks(&self) -> Option<&[u8]> {
        None
    }
    /// Steps every environment by its action and overwrites `outcome`. After an error the environments cannot
    /// be used any more.
    fn step(&mut self, actions: Actions<'_>, outcome: &mut StepOutcome) -> Result<(), EnvError>;
    /// Starts a step, which may continue in another process. [`VectorEnv::finish`] ends it;
    /// until then nothing else is asked of these environments.
    fn start_step(&mut self, actions: Actions<'_>, outcome: &mut StepOutcome) -> Result<(), EnvError> {
        self.step(actions, outcome)
    }
    /// Waits for the step that was begun with the same `outcome`, which is whole then.
    fn finish(&mut self, _outcome: &mut StepOutcome) -> Result<(), EnvError> {
        Ok(())
    }
    /// The environment at this local index need not be stepped any more before the next reset: its results
    /// are not used. Environments whose steps cost next to nothing may be stepped all the same.
    fn retire(&mut self, _index: usize) {}
    /// Starts again with the seeds of [`make_vector`], so that the same episodes follow.
    fn reset(&mut self) -> Result<(), EnvError>;
    /// Starts a reset, which may continue in another process. [`VectorEnv::finish_reset`] ends it; until then
    /// nothing else is asked of these environments.
    fn start_reset(&mut self) -> Result<(), EnvError> {
        self.reset()
    }
    /// Waits for the reset that was begun.
    fn finish_reset(&mut self) -> Result<(), EnvError> {
        Ok(())
    }
    /// Asks the processes of these environments to end and returns at once; dropping the environments waits for
    /// them. Environments cannot be used after it.
    fn close(&mut self) {}
    /// Steps and resets call `watcher` with their progress. Environments whose steps are faster than the call
    /// do not.
    fn watch(&mut self, _watcher: Watcher) {}
    /// Words per environment in [`VectorEnv::save`]; `None` when its state cannot be saved.
    fn words_per_env(&self) -> Option<usize>;
    /// The environment at this local index as people see it; `None` where it does not draw itself. Only of
    /// environments made to be shown.
    fn picture(&mut self, _index: usize) -> Result<Option<EnvImage>, EnvError> {
        Ok(None)
    }
    /// Every environment's state, in order; `None` where environments of this kind cannot be saved. An error:
    /// these ones could not be saved now, and can be stepped further.
    fn save(&self) -> Result<Option<Vec<u64>>, EnvError>;
    /// Restores [`VectorEnv::save`] of the same number of environments.
    fn restore(&mut self, words: &[u64]) -> Result<(), EnvError>;
}

/// `envs` environments, reset, with the streams of the global indices `first_env..first_env + envs`.
/// `start_iteration` is the iteration at which they are made, 0 in a new run, so that environments that
/// cannot be restored get new streams; an evaluation ignores it. Call it on a thread that lives as long as
/// the environments: a Python worker dies with the thread that started it.
pub fn make_vector(
    env: &Env,
    envs: usize,
    first_env: u32,
    seeds: &Seeds,
    start_iteration: u64,
    purpose: EnvPurpose,
) -> Result<Box<dyn VectorEnv>, EnvError> {
    let streams = Streams { seeds: *seeds, first_env, start_iteration, purpose };
    if let Some(library) = library::EnvLibrary::open(env)? {
        return library.make(envs, streams);
    }
    if in_rust(env)? {
        return classic::make(env, envs, streams).ok_or_else(|| EnvError::unknown(&env.id));
    }
    let imports = WorkerImports::CurrentDirectory;
    Ok(python::make_groups(env, &[envs], streams, (None, None), imports)?.remove(0))
}

/// Makes environments of one kind, whose shapes are known.
///
/// An environment of Python's is imported and made to learn its shapes, which takes seconds to minutes where
/// it is a large simulator. The first vector takes that worker over, with the environment that is in it.
pub struct EnvFactory {
    env: Env,
    imports: WorkerImports,
    spec: Spec,
    worker: RefCell<Option<python::PythonWorker>>,
    library: Option<library::EnvLibrary>,
    /// What was assumed about image observations.
    images: Option<String>,
}

impl EnvFactory {
    /// Learns the shapes of `env` from one. Call it on a thread that lives as long as the environments: a
    /// Python worker dies with the thread that started it.
    pub fn open(env: &Env) -> Result<EnvFactory, EnvError> {
        EnvFactory::open_with(env, WorkerImports::CurrentDirectory)
    }

    /// As [`EnvFactory::open`], for workers with these imports.
    pub fn open_with(env: &Env, imports: WorkerImports) -> Result<EnvFactory, EnvError> {
        if let Some(library) = library::EnvLibrary::open(env)? {
            let (spec, worker) = (library.spec().clone(), RefCell::new(None));
            let (env, library) = (env.clone(), Some(library));
            return Ok(EnvFactory { env, imports, spec, worker, library, images: None });
        }
        let (worker, spec, images) = match in_rust(env)? {
            true => (None, classic::spec_of(&env.id).ok_or_else(|| EnvError::unknown(&env.id))?, None),
            false => {
                let (worker, spec, images) = python::open(env, imports)?;
                (Some(worker), spec, images)
            }
        };
        let worker = RefCell::new(worker);
        Ok(EnvFactory { env: env.clone(), imports, spec, worker, library: None, images })
    }

    /// Which side of image observations holds their channels, in words; `None` without images.
    pub fn images(&self) -> Option<&str> {
        self.images.as_deref()
    }

    /// Shapes of each environment.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// As [`make_vector`].
    pub fn make(
        &self,
        envs: usize,
        first_env: u32,
        seeds: &Seeds,
        start_iteration: u64,
        purpose: EnvPurpose,
    ) -> Result<Box<dyn VectorEnv>, EnvError> {
        Ok(self.make_groups(&[envs], first_env, seeds, start_iteration, purpose)?.remove(0))
    }

    /// As [`EnvFactory::make`], in a vector for each of `counts`, one after the other from `first_env` on. Their
    /// workers start at the same time.
    pub fn make_groups(
        &self,
        counts: &[usize],
        first_env: u32,
        seeds: &Seeds,
        start_iteration: u64,
        purpose: EnvPurpose,
    ) -> Result<Vec<Box<dyn VectorEnv>>, EnvError> {
        let streams = Streams { seeds: *seeds, first_env, start_iteration, purpose };
        // The environment that gave its shapes has no rendering.
        let worker = (purpose != EnvPurpose::Show).then(|| self.worker.take()).flatten();
        if self.library.is_none() && !in_rust(&self.env)? {
            return python::make_groups(&self.env, counts, streams, (worker, Some(&self.spec)), self.imports);
        }
        let mut first_env = first_env;
        let group = |envs: &usize| {
            let streams = Streams { first_env, ..streams };
            first_env = first_env.wrapping_add(*envs as u32);
            match &self.library {
                Some(library) => library.make(*envs, streams),
                None => {
                    classic::make(&self.env, *envs, streams).ok_or_else(|| EnvError::unknown(&self.env.id))
                }
            }
        };
        counts.iter().map(group).collect()
    }
}

/// Whether the environment is built in; refuses options that it does not have.
fn in_rust(env: &Env) -> Result<bool, EnvError> {
    let known = classic::spec_of(&env.id).is_some();
    match (env.worker, env.atari_keys().first()) {
        (EnvWorker::Rust, _) if !known => Err(EnvError::unknown(&env.id)),
        (EnvWorker::Auto, _) if !known && env.is_builtin() => Err(EnvError::unknown(&env.id)),
        (EnvWorker::Rust | EnvWorker::Auto, Some(key)) if known => {
            Err(EnvError::Option { id: env.id.clone(), key })
        }
        (EnvWorker::Rust, _) => Ok(true),
        (EnvWorker::Auto, _) => Ok(known && env.python_keys().is_empty()),
        _ => Ok(false),
    }
}

/// Names `count` environments by their indices over all ranks.
fn indices(first: u32, count: usize) -> String {
    match count {
        1 => format!("environment {first}"),
        _ => format!("environments {first} to {}", first.wrapping_add(count as u32).wrapping_sub(1)),
    }
}

/// The random streams of a vector of environments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Streams {
    seeds: Seeds,
    first_env: u32,
    start_iteration: u64,
    purpose: EnvPurpose,
}

impl Streams {
    /// The seed of the environment at this local index.
    pub(crate) fn words(&self, index: usize) -> [u32; 6] {
        use rankdeck_kernel::seeds::Purpose as Stream;
        let index = self.first_env.wrapping_add(index as u32);
        match self.purpose {
            EnvPurpose::Train => self.seeds.words(Stream::Env, index, self.start_iteration),
            EnvPurpose::Evaluate | EnvPurpose::Show => self.seeds.words(Stream::Eval, index, 0),
        }
    }

    /// A seed of 31 bits, for environments that take no larger one. Distinct for all environments of a
    /// generation, evaluations included: the purpose is the highest bit, below it is the global index,
    /// shifted by a number that base seed, purpose and start iteration give.
    pub(crate) fn small(&self, index: usize) -> u32 {
        const BITS: u32 = (1 << 30) - 1;
        let first = Streams { first_env: 0, ..*self }.words(0);
        let shift = rankdeck_kernel::numpy_random::Generator::from_words(&first).next_u64() as u32;
        let index = self.first_env.wrapping_add(index as u32);
        let purpose = u32::from(self.purpose != EnvPurpose::Train) << 30;
        purpose | (shift.wrapping_add(index) & BITS)
    }
}
