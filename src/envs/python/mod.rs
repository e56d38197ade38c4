//! Python environments (any Gymnasium id, Atari games, vector environments of others), in worker processes of a
//! rank, each with a part of its environments ([`super::parted`]).
//!
//! A worker ([`process`], `worker.py`) writes observations, rewards and flags into shared memory
//! ([`shared`]); a byte each way over pipes passes the turn. Returns and lengths of episodes are counted
//! here, from raw rewards and real ends, so that clipped rewards and lost lives change what is learned but not
//! what is reported.
//!
//! Invariants, besides those of every [`VectorEnv`]:
//! - PYTHON-1: shared memory belongs to one side at a time: to the worker from a request to its answer, else
//!   to the rank. The exception is the count of environments that the worker has finished: the rank reads it
//!   while it waits.
//! - PYTHON-2: every wait for the worker is bounded, to write to it as well as to read from it; a worker that
//!   fails, dies or hangs becomes an [`EnvError::Worker`].
//! - PYTHON-5: all workers of a rank have the same spaces, those of the [factory](super::EnvFactory), or their
//!   environments are refused before they are reset.
//! - PYTHON-4: rewards and observations are finite numbers of the spaces' shapes, or the step is an error
//!   that names the environment by its index over all ranks. So are masks that allow no action.
//! - PYTHON-3: no worker outlives its [`PythonVector`], or the [factory](super::EnvFactory) that it waits in,
//!   nor the thread that made it (parent-death signal, and end of its input). The workers of a rank end at the
//!   same time.

mod process;
mod shared;

use super::parted::PartedVector;
use super::{
    ActionSpace, Actions, Branch, EnvError, EnvPurpose, Episode, ObservationBuffer, ObservationType,
    Observations, Spec, StepOutcome, Streams, VectorEnv, Watcher, WorkerImports, indices,
};
pub(super) use process::PythonWorker;
use rankdeck_proto::message::Activity;
use rankdeck_proto::show::EnvImage;
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::Env;
use serde::Deserialize;
use serde_json::{Value, json};
use shared::SharedMemory;

/// Environments in a Python worker.
pub(super) struct PythonVector {
    worker: PythonWorker,
    shared: SharedMemory,
    spec: Spec,
    envs: usize,
    /// Rewards of Atari games are clipped in training.
    clip_rewards: bool,
    episodic_life: bool,
    /// Return and length of each environment's current episode.
    running: Vec<(f64, u64)>,
    /// Environments that are not stepped any more until the next reset.
    retired: Vec<bool>,
    /// Global index of the first environment.
    first_env: u32,
    watcher: Option<Watcher>,
    /// The worker draws pictures on request.
    draws: bool,
    /// An error left the worker unusable.
    failed: bool,
}

/// Most numbers of one observation.
const MOST_NUMBERS: usize = 1 << 31;
/// Most choices of all parts of an action together, or numbers of a continuous one.
const MOST_ACTIONS: usize = 1 << 20;

/// Spaces in the worker's answer.
#[derive(Deserialize)]
struct Spaces {
    shape: Vec<usize>,
    r#type: String,
    actions: WorkerActions,
    /// What was assumed about images.
    #[serde(default)]
    images: Option<String>,
    #[serde(default)]
    branches: Vec<Branch>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum WorkerActions {
    Discrete { n: usize },
    MultiDiscrete { sizes: Vec<usize> },
    Continuous { low: Vec<Option<f32>>, high: Vec<Option<f32>> },
}

impl Spaces {
    fn spec(self) -> Spec {
        let bounds = |values: Vec<Option<f32>>, without: f32| -> Vec<f32> {
            values.into_iter().map(|value| value.unwrap_or(without)).collect()
        };
        Spec {
            observation_shape: self.shape,
            observation_type: match self.r#type.as_str() {
                "u8" => ObservationType::U8,
                _ => ObservationType::F32,
            },
            branches: self.branches,
            actions: match self.actions {
                WorkerActions::Discrete { n } => ActionSpace::Discrete { n },
                WorkerActions::MultiDiscrete { sizes } => ActionSpace::MultiDiscrete { sizes },
                WorkerActions::Continuous { low, high } => ActionSpace::Continuous {
                    low: bounds(low, f32::NEG_INFINITY),
                    high: bounds(high, f32::INFINITY),
                },
            },
        }
    }
}

/// Starts a worker with one environment, to which others are added later; returns it with its spaces, and what was
/// assumed about images.
pub(super) fn open(
    env: &Env,
    imports: WorkerImports,
) -> Result<(PythonWorker, Spec, Option<String>), EnvError> {
    let mut worker = PythonWorker::start(env, imports)?;
    let (spec, images) = make(&mut worker, env, 1, None)?;
    Ok((worker, spec, images))
}

/// Lets the worker make `envs` environments in all.
fn make(
    worker: &mut PythonWorker,
    env: &Env,
    envs: usize,
    streams: Option<Streams>,
) -> Result<(Spec, Option<String>), EnvError> {
    worker.order(&order(worker, env, envs, streams))?;
    spec(worker)
}

/// What a worker makes.
fn order(worker: &PythonWorker, env: &Env, envs: usize, streams: Option<Streams>) -> Value {
    let seeds = |i: usize| streams.map_or([0; 6], |streams| streams.words(i));
    let small = |i: usize| streams.map_or(0, |streams| streams.small(i));
    json!({
        "id": env.id,
        "envs": envs,
        "first_env": streams.map_or(0, |streams| streams.first_env),
        "threads": worker.threads(),
        "seeds": (0..envs).map(seeds).collect::<Vec<_>>(),
        "small_seeds": (0..envs).map(small).collect::<Vec<_>>(),
        "max_episode_steps": env.max_episode_steps,
        "kwargs": env.kwargs.clone().unwrap_or_default(),
        "wrappers": env.wrappers.clone().unwrap_or_default(),
        "vector": env.vector,
        "channels": env.channels,
        "action_masks": env.uses_masks(),
        // Once for all ranks.
        "announce_masks": env.action_masks.is_none()
            && streams.is_some_and(|streams| streams.purpose == EnvPurpose::Train && streams.first_env == 0),
        "atari": env.atari(),
        "atari_keys": env.atari_keys(),
        "is_atari": env.is_atari() && env.vector.is_none(),
        "show": streams.is_some_and(|streams| streams.purpose == EnvPurpose::Show),
    })
}

/// The spaces that the worker answers with.
fn spec(worker: &mut PythonWorker) -> Result<(Spec, Option<String>), EnvError> {
    let mut spaces = worker.spaces()?;
    let images = spaces.images.take();
    let spec = spaces.spec();
    match refusal(&spec) {
        Some(why) => Err(worker.refuse(why)),
        None => Ok((spec, images)),
    }
}

/// Processes for `envs` environments of a rank.
fn workers(env: &Env, envs: usize, purpose: EnvPurpose) -> usize {
    let share = if purpose == EnvPurpose::Show { 1 } else { default_workers(env) };
    env.workers.map_or(share, |workers| workers as usize).clamp(1, envs.max(1))
}

/// Workers of a rank without `env.workers`: its share of the cores, or one that has threads of its own.
pub fn default_workers(env: &Env) -> usize {
    if env.is_atari() || env.vector.is_some() || env.id.starts_with(ENVPOOL) {
        return 1;
    }
    process::rank_cores()
}

/// What ids of EnvPool begin with; it has threads of its own.
const ENVPOOL: &str = "envpool:";

/// Groups of `counts` environments, reset, each in as many workers as [`Env::workers`] asks for; the first of all
/// workers is `open` or new. All have the spaces of `expected`, or of the first worker (PYTHON-5).
pub(super) fn make_groups(
    env: &Env,
    counts: &[usize],
    streams: Streams,
    (mut open, expected): (Option<PythonWorker>, Option<&Spec>),
    imports: WorkerImports,
) -> Result<Vec<Box<dyn VectorEnv>>, EnvError> {
    let mut parts = Vec::new();
    let mut first = 0;
    for envs in counts {
        let count = workers(env, *envs, streams.purpose);
        parts.extend(
            (0..count).map(|i| (first + envs * i / count, envs * (i + 1) / count - envs * i / count)),
        );
        first += envs;
    }
    let mut started = Vec::with_capacity(parts.len());
    for _ in &parts {
        match open.take().map_or_else(|| PythonWorker::start(env, imports), Ok) {
            Ok(worker) => started.push(worker),
            Err(error) => {
                started.iter_mut().for_each(PythonWorker::close);
                return Err(error);
            }
        }
    }
    // All import, make their environments and reset them at the same time.
    let mut numbered = parts.into_iter().enumerate();
    let making = pass(started, |worker| {
        let (number, (from, envs)) = numbered.next().unwrap_or_default();
        let streams = Streams { first_env: streams.first_env.wrapping_add(from as u32), ..streams };
        StartingVector::begin(env, (number, envs), streams, worker)
    })?;
    let mut expected = expected.cloned();
    let resetting = pass(making, |vector| vector.reset(&mut expected))?;
    let mut ready = pass(resetting, PythonVector::ready)?.into_iter();
    let group = |envs: &usize| -> Box<dyn VectorEnv> {
        let mut vectors: Vec<Box<dyn VectorEnv>> = Vec::new();
        let count = workers(env, *envs, streams.purpose);
        vectors.extend(ready.by_ref().take(count).map(|vector| Box::new(vector) as _));
        match vectors.len() {
            1 => vectors.remove(0),
            _ => Box::new(PartedVector::new(vectors)),
        }
    };
    Ok(counts.iter().map(group).collect())
}

/// Takes every worker one step further. When one fails, all others end at the same time.
fn pass<T: AsMut<PythonWorker>, U: AsMut<PythonWorker>>(
    all: Vec<T>,
    mut step: impl FnMut(T) -> Result<U, EnvError>,
) -> Result<Vec<U>, EnvError> {
    let mut passed: Vec<U> = Vec::with_capacity(all.len());
    let mut rest = all.into_iter();
    while let Some(one) = rest.next() {
        match step(one) {
            Ok(one) => passed.push(one),
            Err(error) => {
                passed.iter_mut().for_each(|one| one.as_mut().close());
                rest.as_mut_slice().iter_mut().for_each(|one| one.as_mut().close());
                return Err(error);
            }
        }
    }
    Ok(passed)
}

impl AsMut<PythonWorker> for PythonWorker {
    fn as_mut(&mut self) -> &mut PythonWorker {
        self
    }
}

impl AsMut<PythonWorker> for StartingVector {
    fn as_mut(&mut self) -> &mut PythonWorker {
        &mut self.worker
    }
}

impl AsMut<PythonWorker> for PythonVector {
    fn as_mut(&mut self) -> &mut PythonWorker {
        &mut self.worker
    }
}

/// A worker that makes its environments.
struct StartingVector {
    env: Env,
    /// Among the rank's workers.
    number: usize,
    envs: usize,
    streams: Streams,
    worker: PythonWorker,
}

impl StartingVector {
    fn begin(
        env: &Env,
        (number, envs): (usize, usize),
        streams: Streams,
        mut worker: PythonWorker,
    ) -> Result<StartingVector, EnvError> {
        worker.assign(number, streams.first_env, envs);
        worker.order(&order(&worker, env, envs, Some(streams)))?;
        Ok(StartingVector { env: env.clone(), number, envs, streams, worker })
    }

    /// Maps the memory and requests a reset; refuses other spaces than the `expected` ones (PYTHON-5).
    fn reset(self, expected: &mut Option<Spec>) -> Result<PythonVector, EnvError> {
        let StartingVector { env, number, envs, streams, mut worker } = self;
        let (spec, _) = spec(&mut worker)?;
        let expected = expected.get_or_insert_with(|| spec.clone());
        if *expected != spec {
            return Err(other_spaces(&env, (number, streams.first_env, envs), &spec, expected));
        }
        let shared = SharedMemory::new(worker.memory(), &spec, envs, env.uses_masks())
            .map_err(|error| worker.refuse(format!("cannot map its shared memory: {error}")))?;
        worker.send(&shared.layout().to_string(), "its shared memory")?;
        let atari = env.atari();
        let train = streams.purpose == EnvPurpose::Train;
        let games = env.is_atari() && env.vector.is_none();
        let mut vector = PythonVector {
            worker,
            shared,
            spec,
            envs,
            clip_rewards: games && atari.clip_rewards && train,
            episodic_life: atari.episodic_life && train,
            running: vec![(0.0, 0); envs],
            retired: vec![false; envs],
            first_env: streams.first_env,
            watcher: None,
            draws: streams.purpose == EnvPurpose::Show,
            failed: false,
        };
        vector.start_reset()?;
        Ok(vector)
    }
}

/// The error of a worker whose spaces are not those of the others: its number, and its environments.
fn other_spaces(
    env: &Env,
    (number, first, envs): (usize, u32, usize),
    found: &Spec,
    expected: &Spec,
) -> EnvError {
    let shapes = |spec: &Spec| {
        let actions: String = format!("{:?}", spec.actions).chars().take(200).collect();
        format!("observations {:?} {:?}, actions {actions}", spec.observation_type, spec.observation_shape)
    };
    let error = format!(
        "the spaces of worker {number} ({}) differ from those of the rank's first worker: expected {}; found {}",
        indices(first, envs),
        shapes(expected),
        shapes(found)
    );
    let hint = "make the environment's spaces the same in every process, or set env.workers = 1";
    let error = HintedError::new(error, hint);
    EnvError::Worker { id: env.id.clone(), error, traceback: String::new(), usage: true }
}

/// Why the trainer cannot use such spaces.
fn refusal(spec: &Spec) -> Option<String> {
    let len = spec.observation_len();
    if len == 0 || spec.actions.width() == 0 || spec.actions.sizes().contains(&0) {
        return Some("its observations or actions are empty".into());
    }
    if spec.actions.width() > MOST_ACTIONS {
        return Some(format!("it has more than {MOST_ACTIONS} actions"));
    }
    let parts = spec.branches.iter().fold(0_usize, |all, branch| all.saturating_add(branch.numbers()));
    if !spec.branches.is_empty() && parts != len {
        return Some(format!("the parts of its Dict observation have {parts} numbers instead of {len}"));
    }
    (len > MOST_NUMBERS).then(|| {
        format!("its observations have more than {MOST_NUMBERS} numbers: {:?}", spec.observation_shape)
    })
}

impl PythonVector {
    /// Waits for the first reset.
    fn ready(mut self) -> Result<PythonVector, EnvError> {
        self.finish_reset()?;
        self.worker.started();
        Ok(self)
    }

    fn request(&mut self, request: u8, doing: &'static str) -> Result<(), EnvError> {
        if self.failed {
            return Err(self.worker.refuse("its worker failed earlier".into()));
        }
        self.worker.request(request, doing).inspect_err(|_| self.failed = true)
    }

    fn answered(&mut self, request: u8, doing: &'static str, activity: Activity) -> Result<(), EnvError> {
        let PythonVector { worker, shared, watcher, .. } = self;
        let mut report = |activity| {
            if let Some(watcher) = watcher {
                watcher(activity);
            }
        };
        report(activity);
        let mut seen = shared.moves();
        let done = worker.answered((request, doing), &mut || {
            let now = shared.moves();
            if std::mem::replace(&mut seen, now) != now {
                report(activity);
            }
        });
        report(Activity::None);
        self.failed = done.is_err();
        done
    }
}

impl PythonVector {
    /// Finds the reward or observation that is not a finite number before anything learns from it.
    fn refuse_non_finite(&mut self) -> Result<(), EnvError> {
        let finite = |values: &[f32]| values.iter().map(|value| value * 0.0).sum::<f32>() == 0.0;
        let (rewards, flags) = (self.shared.rewards(), self.shared.flags());
        let len = self.spec.observation_len();
        let wrong = |env: usize| -> Option<String> {
            // Learning uses f32.
            if !(rewards[env] as f32).is_finite() {
                return Some(format!("the reward {}", rewards[env]));
            }
            let ended = flags.terminated(env) || flags.truncated(env);
            for (part, name) in [
                (Some(self.shared.observations()), "observation"),
                (ended.then(|| self.shared.final_observations()), "last observation"),
            ] {
                let Some(Observations::F32(values)) = part else { continue };
                let row = &values[env * len..(env + 1) * len];
                if !finite(row)
                    && let Some((i, value)) = row.iter().enumerate().find(|(_, value)| !value.is_finite())
                {
                    return Some(format!("{value} as number {i} of its {name}"));
                }
            }
            None
        };
        let found = (0..self.envs).filter(|env| !self.retired[*env]).find_map(|env| Some((env, wrong(env)?)));
        let Some((env, what)) = found else { return Ok(()) };
        self.failed = true;
        Err(EnvError::NotFinite {
            id: self.worker.id().into(),
            env: self.first_env.wrapping_add(env as u32),
            step: self.running[env].1 + 1,
            what,
        })
    }
}

impl PythonVector {
    /// Finds the mask that allows none of the choices of a part of the action.
    fn refuse_empty_masks(&mut self) -> Result<(), EnvError> {
        let Some(masks) = self.shared.masks() else { return Ok(()) };
        let sizes = self.spec.actions.sizes();
        let empty = |mut mask: &[u8]| {
            sizes.iter().position(|size| {
                let (own, rest) = mask.split_at(*size);
                mask = rest;
                own.iter().all(|allowed| *allowed == 0)
            })
        };
        let rows = masks.chunks_exact(self.spec.actions.width().max(1)).enumerate();
        let found =
            rows.filter(|(env, _)| !self.retired[*env]).find_map(|(env, mask)| Some((env, empty(mask)?)));
        let Some((env, part)) = found else { return Ok(()) };
        self.failed = true;
        Err(EnvError::NoAction {
            id: self.worker.id().into(),
            env: self.first_env.wrapping_add(env as u32),
            step: self.running[env].1 + 1,
            part: (sizes.len() > 1).then_some(part),
        })
    }
}

impl VectorEnv for PythonVector {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn len(&self) -> usize {
        self.envs
    }

    fn observations(&self) -> Observations<'_> {
        self.shared.observations()
    }

    fn masks(&self) -> Option<&[u8]> {
        self.shared.masks()
    }

    fn step(&mut self, actions: Actions<'_>, outcome: &mut StepOutcome) -> Result<(), EnvError> {
        self.start_step(actions, outcome)?;
        self.finish(outcome)
    }

    fn start_step(&mut self, actions: Actions<'_>, outcome: &mut StepOutcome) -> Result<(), EnvError> {
        if !self.shared.put_actions(actions, &self.spec.actions) {
            return Err(EnvError::Actions {
                id: self.worker.id().into(),
                what: "actions do not match its action space".into(),
            });
        }
        if outcome.rewards.len() != self.envs {
            return Err(EnvError::Actions {
                id: self.worker.id().into(),
                what: "the outcome's buffers were made for another environment".into(),
            });
        }
        self.request(b's', "a step")
    }

    fn finish(&mut self, outcome: &mut StepOutcome) -> Result<(), EnvError> {
        self.answered(b's', "a step", Activity::EnvStep)?;
        self.refuse_non_finite()?;
        outcome.episodes.clear();
        if let Some(masks) = self.shared.final_masks() {
            outcome.final_masks.clear();
            outcome.final_masks.extend_from_slice(masks);
        }
        let (rewards, flags) = (self.shared.rewards(), self.shared.flags());
        for (env, running) in self.running.iter_mut().enumerate() {
            outcome.valid[env] = !self.retired[env] && !flags.only_reset(env);
            if !outcome.valid[env] {
                (outcome.terminated[env], outcome.truncated[env]) = (false, false);
                continue;
            }
            let reward = rewards[env];
            running.0 += reward;
            running.1 += 1;
            // The sign; 0 stays 0.
            let signed = if reward == 0.0 { 0.0 } else { reward.signum() };
            outcome.rewards[env] = if self.clip_rewards { signed } else { reward } as f32;
            outcome.terminated[env] = flags.terminated(env) || self.episodic_life && flags.lost_life(env);
            outcome.truncated[env] = flags.truncated(env);
            if flags.terminated(env) || flags.truncated(env) {
                let (episode_return, length) = std::mem::take(running);
                outcome.episodes.push(Episode { env, episode_return, length });
            }
            if outcome.terminated[env] || outcome.truncated[env] {
                let row = env * self.spec.observation_len()..(env + 1) * self.spec.observation_len();
                match (&mut outcome.final_observations, self.shared.final_observations()) {
                    (ObservationBuffer::U8(to), Observations::U8(from)) => {
                        to[row.clone()].copy_from_slice(&from[row]);
                    }
                    (ObservationBuffer::F32(to), Observations::F32(from)) => {
                        to[row.clone()].copy_from_slice(&from[row]);
                    }
                    _ => {}
                }
            }
        }
        self.refuse_empty_masks()
    }

    fn retire(&mut self, index: usize) {
        if let Some(retired) = self.retired.get_mut(index) {
            *retired = true;
            self.shared.retire(index);
        }
    }

    fn reset(&mut self) -> Result<(), EnvError> {
        self.start_reset()?;
        self.finish_reset()
    }

    fn start_reset(&mut self) -> Result<(), EnvError> {
        self.running.fill((0.0, 0));
        self.retired.fill(false);
        self.shared.retire_none();
        self.request(b'r', "a reset")
    }

    fn finish_reset(&mut self) -> Result<(), EnvError> {
        self.answered(b'r', "a reset", Activity::EnvReset)?;
        self.refuse_non_finite()?;
        self.refuse_empty_masks()
    }

    fn close(&mut self) {
        self.failed = true;
        self.worker.close();
    }

    fn watch(&mut self, watcher: Watcher) {
        self.watcher = Some(watcher);
    }

    fn picture(&mut self, index: usize) -> Result<Option<EnvImage>, EnvError> {
        // Only the first is drawn.
        if !self.draws || index > 0 {
            return Ok(None);
        }
        let picture = self.worker.picture()?;
        self.draws = picture.is_some();
        Ok(picture)
    }

    fn words_per_env(&self) -> Option<usize> {
        None
    }

    fn save(&self) -> Result<Option<Vec<u64>>, EnvError> {
        Ok(None)
    }

    fn restore(&mut self, words: &[u64]) -> Result<(), EnvError> {
        Err(EnvError::State { expected: 0, found: words.len() })
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
