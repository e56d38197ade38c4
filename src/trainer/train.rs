//! The training loop of one rank. Its invariants are the [trainer's](crate).

use super::algo::{self, Algorithm, BuildContext, IterationStats, Stat, StepContext};
use super::checkpoint::{Checkpoint, Header};
use super::counters::{RankCounters, mean, push_bounded};
use super::distributed::{GroupSettings, ProcessGroup};
use super::env::{self, VectorEnv};
use super::error::TrainerError;
use super::evaluate::{self, evaluate};
use super::events::{Events, say, warn};
use super::exchange::{Contribution, exchange, gather};
use super::identity::RankIdentity;
use super::page::Page;
use super::replay::ReplayMark;
use super::reporter::{IterationReport, Reporter};
use super::resume;
use super::setup::{self, Sizes};
use super::signals;
use super::state::RestoredState;
use rankdeck_kernel::seeds::Seeds;
use rankdeck_proto::message::{Activity, Counters, Evaluation, FinishReason, Phase, RankEvent};
use rankdeck_types::experiment::{Experiment, Learn};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use tch::Device;

/// Bound of leaving the group.
const LEAVE: Duration = Duration::from_secs(10);

/// Trains until the budget, the stop value or a signal; `joined` is called once the group is up.
pub fn run(
    identity: &RankIdentity,
    events: &Events,
    joined: impl FnOnce(),
) -> Result<FinishReason, TrainerError> {
    let page = setup::open_page(identity)?;
    let experiment = setup::load_experiment(&identity.config)?;
    let (env, _) = setup::parts(&experiment)?;
    let sizes = Sizes::resolve(&experiment, identity.rank, identity.world_size)?;
    // Refused before this rank waits for the others.
    let spec = env::spec_of(env)?;
    algo::check(&experiment, &spec, &sizes)?;
    setup::set_threads(&experiment);
    let (backend, device) = setup::device(identity, &experiment)?;
    let settings = GroupSettings {
        rank: identity.rank,
        world_size: identity.world_size,
        local_rank: identity.local_rank,
        master_addr: identity.master_addr.clone(),
        master_port: identity.master_port,
        backend,
        timeout: timeout(&experiment)?,
        interface: identity.interface.clone(),
        generation: identity.generation,
        device,
    };
    let group = ProcessGroup::connect(&settings, Rc::clone(&page))?;
    joined();
    announce_join(&group, device, events);
    let build = BuildContext {
        experiment: &experiment,
        sizes,
        spec,
        seeds: Seeds::new(experiment.run.seed),
        device,
        group: &group,
        start_iteration: 0,
    };
    let mut trainer = Trainer::new(identity, build, &page, events)?;
    let reason = trainer.run()?;
    page.borrow_mut().phase(Phase::Teardown);
    drop(trainer);
    if let Err(error) = group.destroy(LEAVE) {
        warn(&format!("rank {}: leaving the group: {error}", identity.rank));
    }
    page.borrow_mut().phase(Phase::Done);
    Ok(reason)
}

fn announce_join(group: &ProcessGroup, device: Device, events: &Events) {
    let (rank, world_size, backend) = (group.rank(), group.world_size(), group.backend_name());
    let device = match device {
        Device::Cuda(index) => format!("cuda:{index}"),
        _ => "cpu".to_string(),
    };
    say(&format!("rank {rank} of {world_size} joined: {backend} on {device}"));
    events.send(&RankEvent::Joined { world_size, backend, device });
}

fn timeout(experiment: &Experiment) -> Result<Duration, TrainerError> {
    Duration::try_from_secs_f64(experiment.distributed.timeout_s).ok().filter(|t| !t.is_zero()).ok_or_else(
        || {
            TrainerError::usage(
                format!(
                    "distributed.timeout_s = {} is not a positive time",
                    experiment.distributed.timeout_s
                ),
                "set distributed.timeout_s to seconds above 0",
            )
        },
    )
}

/// Names the checkpoint of this iteration, for replay.
fn mark(experiment: &Experiment, group: &ProcessGroup, train_iter: u64) -> ReplayMark {
    ReplayMark {
        env_id: experiment.env.as_ref().map(|env| env.id.clone()).unwrap_or_default(),
        seed: experiment.run.seed,
        rank: group.rank(),
        world_size: group.world_size(),
        train_iter,
    }
}

/// What rank 0 broadcasts after an evaluation.
#[derive(Default, Serialize, Deserialize)]
struct EvaluationResult {
    evaluation: Evaluation,
    best: bool,
    /// Rank 0 could not evaluate; all ranks end.
    error: Option<String>,
}

/// The checkpoint to resume from, on all ranks; `None` in a new run, and in a restart before the first
/// checkpoint.
fn find_checkpoint(
    identity: &RankIdentity,
    run_dir: &Path,
    group: &ProcessGroup,
    device: Device,
) -> Result<Option<(PathBuf, Checkpoint)>, TrainerError> {
    let Some(from) = &identity.resume else { return Ok(None) };
    let or_afresh = from == "latest" && identity.generation > 0;
    let path = resume::find(from, run_dir);
    let checkpoint = resume::share(group, &path, or_afresh, device)?;
    Ok(checkpoint.map(|checkpoint| (path, checkpoint)))
}

struct Trainer<'a> {
    experiment: &'a Experiment,
    sizes: Sizes,
    seeds: Seeds,
    group: &'a ProcessGroup,
    page: &'a Page,
    reporter: Reporter<'a>,
    algorithm: Box<dyn Algorithm>,
    /// Rank 0's, made at the first evaluation.
    evaluation: Option<Box<dyn VectorEnv>>,
    run_dir: PathBuf,
    train_iter: u64,
    updates: u64,
    /// Over all ranks.
    env_step: u64,
    best: Option<f64>,
    /// Returns of the last training episodes over all ranks; equal on all ranks.
    latest: VecDeque<f64>,
}

impl<'a> Trainer<'a> {
    fn new(
        identity: &RankIdentity,
        build: BuildContext<'a>,
        page: &'a Page,
        events: &'a Events,
    ) -> Result<Trainer<'a>, TrainerError> {
        let BuildContext { experiment, sizes, seeds, device, group, .. } = build;
        let (env, learn) = setup::parts(experiment)?;
        let run_dir = setup::run_dir(identity, &experiment.run.name);
        let resumed = find_checkpoint(identity, &run_dir, group, device)?;
        if let Some((path, checkpoint)) = &resumed {
            checkpoint.is_of(path, learn.name(), &env.id)?;
        }
        let header = resumed.as_ref().map(|(_, checkpoint)| checkpoint.header.clone()).unwrap_or_default();
        let build = BuildContext { start_iteration: header.train_iter, ..build };
        let mut algorithm = algo::make(&build)?;
        let mut lost = false;
        if let Some((path, checkpoint)) = resumed {
            let state = algorithm.state()?;
            checkpoint.fits(&path, &state)?;
            let (rank, world_size) = (group.rank(), group.world_size());
            let share = resume::share_of(&checkpoint, rank, world_size, env.num_envs, state.words_per_env);
            lost = share.envs.is_none();
            algorithm.restore(&RestoredState {
                arrays: checkpoint.arrays,
                words: checkpoint.words,
                counters: share.counters,
                envs: share.envs,
            })?;
            let beside = path.parent().unwrap_or(&path);
            if experiment.checkpoint.replay
                && let Err(why) = algorithm.load_own(beside, &mark(experiment, group, header.train_iter))
            {
                warn(&format!("rank {rank}: replay begins empty: {why}"));
            }
        }
        let trainer = Trainer {
            experiment,
            sizes,
            seeds,
            group,
            page,
            reporter: Reporter::new(events, group.rank(), &run_dir),
            algorithm,
            evaluation: None,
            run_dir,
            train_iter: header.train_iter,
            updates: header.updates,
            env_step: header.env_step,
            best: header.best,
            latest: header.latest_returns.iter().copied().collect(),
        };
        trainer.announce(&header, identity.resume.is_some(), lost)?;
        trainer.show_counters();
        Ok(trainer)
    }

    fn is_first(&self) -> bool {
        self.group.rank() == 0
    }

    fn announce(&self, resumed: &Header, restart: bool, lost: bool) -> Result<(), TrainerError> {
        if !self.is_first() {
            return Ok(());
        }
        let (env, learn) = setup::parts(self.experiment)?;
        let Sizes { local_envs, local_batch, batch, num_iterations, .. } = self.sizes;
        let minibatches = learn.num_minibatches().max(1) as usize;
        let goal = num_iterations.map_or("no limit".into(), |n| format!("{n} iterations"));
        let sizes = format!(
            "{} environments ({local_envs} per rank), rollout {batch} ({local_batch} per rank), {}{goal}",
            env.num_envs,
            match learn {
                // The algorithm's own line says what these draw.
                Learn::Dqn(_) | Learn::Sac(_) => String::new(),
                _ => {
                    let (all, own) = (batch as usize / minibatches, local_batch / minibatches);
                    format!("minibatch {all} ({own} per rank), ")
                }
            }
        );
        say(&format!("{} on {}: {sizes}, run directory {}", learn.name(), env.id, self.run_dir.display()));
        if let Some(more) = self.algorithm.plan() {
            say(&more);
        }
        let (was, is) = (resumed.world_size, self.group.world_size());
        match (was > 0, restart) {
            (true, _) => {
                say(&format!("resumed after iteration {}, update {}", self.train_iter, self.updates));
                if was != is {
                    say(&format!(
                        "the checkpoint is of {was} ranks, this run has {is}: sizes are planned anew: {sizes}"
                    ));
                }
                if lost {
                    say("the checkpoint's environments cannot be taken over: new episodes begin");
                }
            }
            (false, true) => say("no checkpoint was written before the restart: beginning afresh"),
            (false, false) => {}
        }
        Ok(())
    }

    fn show_counters(&self) {
        let counters = self.algorithm.counters();
        self.page.borrow_mut().update(|body| {
            (body.train_iter, body.updates) = (self.train_iter, self.updates);
            (body.env_step, body.samples, body.episodes) =
                (counters.env_step, counters.samples, counters.episodes);
        });
    }

    fn run(&mut self) -> Result<FinishReason, TrainerError> {
        // A resumed run has made the evaluation of its iteration before the checkpoint was written.
        if self.train_iter == 0 && self.experiment.eval.every > 0 {
            self.evaluate(0)?;
        }
        let reason = loop {
            if self.sizes.num_iterations.is_some_and(|all| self.train_iter >= all) {
                break FinishReason::Budget;
            }
            let stats = self.iterate()?;
            if let Some(reason) = self.between(&stats)? {
                break reason;
            }
        };
        let name = if reason == FinishReason::Stopped { "stop" } else { "final" };
        self.checkpoint(&[(resume::LATEST, name)])?;
        Ok(reason)
    }

    fn iterate(&mut self) -> Result<IterationStats, TrainerError> {
        let ctx = StepContext {
            group: self.group,
            page: self.page,
            iteration: self.train_iter,
            num_iterations: self.sizes.num_iterations,
            updates: self.updates,
            env_step: self.env_step,
        };
        let stats = self.algorithm.iterate(&ctx)?;
        let lost = stats.losses.iter().find(|stat| stat.is_loss && !stat.value.is_finite());
        if let Some(Stat { name, .. }) = lost {
            return Err(TrainerError::failure(
                format!("{name} is not a finite number any more in iteration {}", self.train_iter + 1),
                "lower the learning rate, and look at the losses in TensorBoard",
            ));
        }
        self.updates += stats.updates;
        self.train_iter += 1;
        self.page.borrow_mut().phase(Phase::Sync);
        self.page.borrow_mut().update(|body| {
            (body.train_iter, body.updates) = (self.train_iter, self.updates);
        });
        Ok(stats)
    }

    /// Everything between two iterations. `Some` when the loop ends.
    fn between(&mut self, stats: &IterationStats) -> Result<Option<FinishReason>, TrainerError> {
        let contribution = Contribution {
            stop: signals::stop_requested(),
            report: self.reporter.due(),
            counters: self.algorithm.counters(),
            chain: stats.chain,
        };
        let consensus = exchange(self.group, contribution)?;
        self.env_step = consensus.totals.env_step;
        let every = |every: u64| every > 0 && self.train_iter.is_multiple_of(every);
        let last = self.sizes.num_iterations == Some(self.train_iter);
        let evaluate =
            !consensus.stop && (every(self.experiment.eval.every) || last && self.experiment.eval.every > 0);
        let checkpoint = every(self.experiment.checkpoint.every);
        let report = consensus.report || consensus.stop || evaluate || checkpoint || last;
        self.reporter.fingerprints(&consensus, (self.train_iter, self.updates), report);
        if report {
            self.report(&consensus.totals, stats)?;
        }
        let mut result = EvaluationResult::default();
        if evaluate {
            result = self.evaluate(consensus.totals.env_step)?;
        }
        let name = format!("iter-{}", self.train_iter);
        let files = [
            (checkpoint, name.as_str(), "every"),
            (result.best && self.experiment.checkpoint.best, "best", "best"),
        ];
        let mut files: Vec<(&str, &str)> =
            files.iter().filter(|file| file.0).map(|(_, name, why)| (*name, *why)).collect();
        if !files.is_empty() {
            // `latest` is never older than another checkpoint.
            files.push((resume::LATEST, "latest"));
            self.checkpoint(&files)?;
        }
        Ok(match (consensus.stop, result.evaluation.stop) {
            (true, _) => Some(FinishReason::Stopped),
            (_, true) => Some(FinishReason::StopValue),
            _ => None,
        })
    }

    fn report(&mut self, totals: &RankCounters, stats: &IterationStats) -> Result<(), TrainerError> {
        let own = self.algorithm.take_interval();
        let (names, values): (Vec<&str>, Vec<f64>) =
            stats.losses.iter().map(|stat| (stat.name, stat.value)).unzip();
        let gathered = gather(self.group, &own, &values)?;
        // A broken environment may return NaN, which would spoil the mean of the next hundred episodes.
        let ended = gathered.interval.latest.iter().map(|ended| ended.episode_return);
        ended.filter(|one| one.is_finite()).for_each(|one| push_bounded(&mut self.latest, one));
        let (iteration, updates) = (self.train_iter, self.updates);
        let totals = totals.to_event(iteration, updates, gathered.interval.returns);
        self.reporter.iteration(IterationReport {
            own: self.algorithm.counters().to_event(iteration, updates, own.returns),
            totals: Counters { return_last_100: mean(self.latest.iter()), ..totals },
            interval: gathered.interval,
            losses: names.into_iter().zip(gathered.means).collect(),
            learning_rate: stats.learning_rate,
        });
        Ok(())
    }

    /// Rank 0 plays; all ranks get the result.
    fn evaluate(&mut self, env_step: u64) -> Result<EvaluationResult, TrainerError> {
        let mut result = EvaluationResult::default();
        if self.is_first() {
            self.page.borrow_mut().phase(Phase::Eval);
            match self.play() {
                Ok(evaluation) => {
                    let mean = evaluation.return_mean;
                    let reached = self.experiment.eval.stop_value.is_some_and(|goal| mean >= goal);
                    let stop = reached && self.train_iter > 0 && evaluation.episodes > 0;
                    result.best = self.train_iter > 0 && self.best.is_none_or(|best| mean > best);
                    result.evaluation =
                        Evaluation { env_step, train_iter: self.train_iter, stop, ..evaluation };
                }
                Err(error) => result.error = Some(error.to_string()),
            }
            self.page.borrow_mut().phase(Phase::Sync);
        }
        self.group.broadcast_object(&mut result, 0, "eval")?;
        if let Some(error) = &result.error {
            return Err(TrainerError::failure(format!("rank 0 cannot evaluate: {error}"), ""));
        }
        if result.best {
            self.best = Some(result.evaluation.return_mean);
        }
        self.reporter.evaluation(&result.evaluation);
        Ok(result)
    }

    fn play(&mut self) -> Result<Evaluation, TrainerError> {
        let (episodes, page) = (self.experiment.eval.episodes, self.page);
        let envs = match &mut self.evaluation {
            Some(envs) => envs,
            made => {
                let (env, _) = setup::parts(self.experiment)?;
                let count = episodes.clamp(1, evaluate::MAX_ENVS) as usize;
                let purpose = env::EnvPurpose::Evaluate;
                let mut vector = env::make_vector(env, count, 0, &self.seeds, 0, purpose)?;
                vector.watch(algo::shown(page));
                made.insert(vector)
            }
        };
        evaluate(&mut **envs, episodes, self.algorithm.greedy()?, |played| {
            page.borrow_mut().amount(played as u64, u64::from(episodes));
        })
    }

    /// Gathers what the ranks own; rank 0 writes it once per (name, reason).
    fn checkpoint(&mut self, files: &[(&str, &str)]) -> Result<(), TrainerError> {
        self.page.borrow_mut().phase(Phase::Checkpoint);
        if self.experiment.checkpoint.replay {
            let mark = mark(self.experiment, self.group, self.train_iter);
            self.algorithm.save_own(&resume::folder(&self.run_dir), &mark)?;
        }
        let state = self.algorithm.state()?;
        let own = resume::own_words(self.algorithm.counters(), &state.envs);
        let ranks = self.group.all_gather_words(&own, "checkpoint")?.concat();
        if self.is_first() {
            let (env, learn) = setup::parts(self.experiment)?;
            let env_step: u64 =
                ranks.chunks(own.len().max(1)).map(|words| RankCounters::from_words(words).env_step).sum();
            let header = Header {
                algorithm: learn.name().into(),
                env_id: env.id.clone(),
                seed: self.experiment.run.seed,
                world_size: self.group.world_size(),
                num_envs: env.num_envs,
                words_per_rank: own.len(),
                words_per_env: state.words_per_env,
                train_iter: self.train_iter,
                updates: self.updates,
                best: self.best,
                latest_returns: self.latest.iter().copied().collect(),
                env_step,
                ..Header::default()
            };
            let checkpoint = Checkpoint { header, arrays: state.arrays, words: state.words, ranks };
            self.page.borrow_mut().activity(Activity::Save);
            for (name, reason) in files {
                let path = checkpoint.write(&resume::folder(&self.run_dir), name, |written, of| {
                    self.page.borrow_mut().amount(written, of);
                })?;
                self.reporter.checkpoint(&path, env_step, self.train_iter, reason);
            }
        }
        self.page.borrow_mut().phase(Phase::Sync);
        Ok(())
    }
}
