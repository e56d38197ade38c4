//! The training loop of one rank. Its invariants are the [trainer's](crate).

mod checkpoints;
mod evaluation;
mod exchange;
mod fingerprints;
mod metrics;
mod reporter;

use crate::algo::stop_points::StopPoints;
use crate::algo::{self, Algorithm, BuildContext, IterationStats, ScalarStat, StepContext};
use crate::checkpoint::description::Description;
use crate::checkpoint::{CheckpointMetadata, resume};
use crate::distributed::{GroupSettings, ProcessGroup, ReduceOp, cudnn};
use crate::env::{EnvFactory, VectorEnv};
use crate::error::TrainerError;
use crate::inject;
use crate::startup::identity::RankIdentity;
use crate::startup::last_resort;
use crate::startup::setup::{self, Sizes};
use crate::support::events::{EventSender, print_line, warn};
use crate::support::page::StatusPage;
use crate::support::signals;
use crate::support::state::RestoredState;
use crate::support::state::{RankCounters, mean, push_bounded};
use crate::support::trace::TraceFile;
use checkpoints::{find_checkpoint, keep_earlier, remove_unfinished, take_over};
use evaluation::EvaluationResult;
use exchange::{Contribution, exchange, gather};
use metrics::{IterationRow, IterationRows};
use rankdeck_kernel::seeds::Seeds;
use rankdeck_launcher::load_experiment;
use rankdeck_proto::message::{Counters, FinishReason, Phase, RankEvent};
use rankdeck_types::experiment::Experiment;
use reporter::{IterationReport, Reporter};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tch::Device;

/// Bound of leaving the group.
const LEAVE: Duration = Duration::from_secs(10);
/// An iteration that takes longer may be left for a stop; its beginning is kept meanwhile.
const LONG: Duration = Duration::from_secs(1);

/// Trains until the budget, the stop value or a signal; `joined` is called once the group is up.
pub(crate) fn run(
    identity: &RankIdentity,
    events: &EventSender,
    joined: impl FnOnce(),
) -> Result<FinishReason, TrainerError> {
    let page = setup::open_page(identity)?;
    page.own();
    let mut experiment = load_experiment(&identity.config)?;
    if identity.trace.is_some() {
        (experiment.eval.every, experiment.checkpoint.every) = (0, 0);
    }
    let sizes = Sizes::resolve(&experiment, identity.rank, identity.world_size)?;
    if identity.world_size > 1 {
        setup::bound_workers(&mut experiment);
    }
    let (env, _) = setup::parts(&experiment)?;
    // Refused before this rank waits for the others.
    let envs = EnvFactory::open(&setup::shared_workers(&experiment, env))?;
    let about = Description::new(&experiment, envs.spec());
    let spec = envs.spec().clone().fitted(experiment.policy.network);
    algo::check(&experiment, &spec, &sizes)?;
    setup::set_threads(&experiment);
    let (backend, device) = setup::device(identity, &experiment)?;
    let policy = &experiment.policy;
    cudnn(policy.deterministic, policy.cudnn_benchmark);
    let settings = GroupSettings {
        shared_memory: experiment.distributed.shared_memory,
        ..setup::group(identity, (backend, device), timeout(&experiment)?)
    };
    if identity.secret.is_none() && identity.spans_hosts && identity.rank == 0 {
        warn(
            "RANKDECK_SECRET is not set: connections between ranks are neither authenticated nor encrypted; to enable both, set it to the same output of `openssl rand -hex 32` on all ranks",
        );
    }
    let group = ProcessGroup::connect(&settings, page.clone())?;
    joined();
    announce_join(&group, device, events);
    if let Some(images) = envs.images().filter(|_| identity.rank == 0) {
        print_line(&format!("images {images}"));
    }
    let build = BuildContext {
        experiment: &experiment,
        sizes,
        envs: &envs,
        spec,
        seeds: Seeds::new(experiment.run.seed),
        device,
        group: &group,
        start_iteration: 0,
    };
    let mut trainer =
        Trainer::new(identity, build, about, (&page, events)).map_err(last_resort::on(device))?;
    let reason = trainer.run().map_err(last_resort::on(device))?;
    page.lock().phase(Phase::Teardown);
    drop(trainer);
    if let Err(error) = group.destroy(LEAVE) {
        warn(&format!("rank {}: leaving the group: {error}", identity.rank));
    }
    page.lock().phase(Phase::Done);
    Ok(reason)
}

fn announce_join(group: &ProcessGroup, device: Device, events: &EventSender) {
    let (rank, world_size, backend) = (group.rank(), group.world_size(), group.backend_name());
    let device = match device {
        Device::Cuda(index) => format!("cuda:{index}"),
        _ => "cpu".to_string(),
    };
    print_line(&format!("rank {rank} of {world_size} joined: {backend} on {device}"));
    events.send(&RankEvent::Joined { world_size, backend, device });
}

fn timeout(experiment: &Experiment) -> Result<Duration, TrainerError> {
    Duration::try_from_secs_f64(experiment.distributed.timeout_s).ok().filter(|t| !t.is_zero()).ok_or_else(
        || {
            TrainerError::usage(
                format!("distributed.timeout_s = {} must be positive", experiment.distributed.timeout_s),
                "set distributed.timeout_s to a number of seconds above 0",
            )
        },
    )
}

struct Trainer<'a> {
    experiment: &'a Experiment,
    sizes: Sizes,
    seeds: Seeds,
    group: &'a ProcessGroup,
    page: &'a StatusPage,
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
    /// The evaluation of this iteration was broken off.
    evaluation_due: bool,
    /// What is trained.
    about: Description,
    /// Iterations since the last report, and their episodes of this rank.
    rows: IterationRows,
    /// Where an iteration may be left.
    stop: StopPoints,
    /// The last iteration took long on some rank, or there was none; equal on all ranks.
    long: bool,
    /// The iteration of the latest checkpoint.
    saved: Option<u64>,
    /// Returns of the last training episodes over all ranks; equal on all ranks.
    latest: VecDeque<f64>,
    /// Operations are traced; nothing is evaluated or saved.
    trace: Option<TraceFile>,
}

impl<'a> Trainer<'a> {
    fn new(
        identity: &RankIdentity,
        build: BuildContext<'a>,
        about: Description,
        (page, events): (&'a StatusPage, &'a EventSender),
    ) -> Result<Trainer<'a>, TrainerError> {
        let BuildContext { experiment, sizes, seeds, device, group, .. } = build;
        let (env, learn) = setup::parts(experiment)?;
        let run_dir = setup::run_dir(identity, &experiment.run.name);
        let trace = identity.trace.as_ref();
        let trace = trace
            .map(|(path, iterations)| TraceFile::create(path, identity.rank, iterations.clone()))
            .transpose()?;
        remove_unfinished(&resume::folder(&run_dir), group.rank());
        let resumed = find_checkpoint(identity, &run_dir, group, device)?;
        if let Some((path, checkpoint)) = &resumed {
            checkpoint.is_of(path, learn.name(), &env.id)?;
        }
        let header = resumed.as_ref().map(|(_, checkpoint)| checkpoint.header.clone()).unwrap_or_default();
        let changed = header.about.differences(&about);
        let build = BuildContext { start_iteration: header.train_iter, ..build };
        let mut algorithm = algo::make(&build)?;
        let from = resumed.as_ref().map(|(path, _)| path.clone());
        let lost = match resumed {
            Some((path, checkpoint)) => take_over(&mut *algorithm, &path, checkpoint, &build)?,
            None => false,
        };
        let begins = from.as_deref().map(|path| (path, header.train_iter));
        keep_earlier(identity.generation, &resume::folder(&run_dir), group, begins)?;
        let mut trainer = Trainer {
            experiment,
            sizes,
            seeds,
            group,
            page,
            reporter: Reporter::new(events, group.rank(), &run_dir, header.train_iter),
            algorithm,
            evaluation: None,
            run_dir,
            train_iter: header.train_iter,
            updates: header.updates,
            env_step: header.env_step,
            best: header.best,
            evaluation_due: header.evaluation_due,
            rows: IterationRows::default(),
            stop: StopPoints::default(),
            long: inject::is_long(None, LONG),
            saved: from.is_some().then_some(header.train_iter),
            about,
            latest: header.latest_returns.iter().copied().collect(),
            trace,
        };
        trainer.evaluation_due &= trainer.trace.is_none();
        trainer.announce(&header, (identity.resume.is_some(), from.as_deref()), lost)?;
        if trainer.is_first() && from.is_some() && !changed.is_empty() {
            print_line(&format!("settings differ from the checkpoint's: {}", changed.join("; ")));
        }
        trainer.reporter.describe(&trainer.about);
        trainer.show_counters();
        Ok(trainer)
    }

    fn is_first(&self) -> bool {
        self.group.rank() == 0
    }

    /// `restart`: it was to be resumed, and what it is resumed from.
    fn announce(
        &self,
        resumed: &CheckpointMetadata,
        restart: (bool, Option<&Path>),
        lost: bool,
    ) -> Result<(), TrainerError> {
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
            match learn.replay() {
                // The algorithm's own line has their sizes.
                Some(_) => String::new(),
                None => {
                    let (all, own) = (batch as usize / minibatches, local_batch / minibatches);
                    format!("minibatch {all} ({own} per rank), ")
                }
            }
        );
        print_line(&format!(
            "{} on {}: {sizes}, run directory {}",
            learn.name(),
            env.id,
            self.run_dir.display()
        ));
        if let Some(more) = self.algorithm.plan() {
            print_line(&more);
        }
        let (was, is) = (resumed.world_size, self.group.world_size());
        match restart {
            (_, Some(from)) => {
                let (iteration, updates) = (self.train_iter, self.updates);
                print_line(&format!(
                    "resumed after iteration {iteration}, update {updates}, from {}",
                    from.display()
                ));
                if was != is {
                    print_line(&format!("world size changed from {was} to {is}; new sizes: {sizes}"));
                }
                if lost {
                    print_line("environments of the checkpoint cannot be restored: starting new episodes");
                }
            }
            (true, None) => print_line("no checkpoint found: starting from scratch"),
            (false, None) => {}
        }
        Ok(())
    }

    fn show_counters(&self) {
        let counters = self.algorithm.counters();
        self.page.lock().update(|body| {
            (body.train_iter, body.updates) = (self.train_iter, self.updates);
            (body.env_step, body.samples, body.episodes) =
                (counters.env_step, counters.samples, counters.episodes);
        });
    }

    fn run(&mut self) -> Result<FinishReason, TrainerError> {
        let reason = self.first_evaluation()?.map_or_else(|| self.iterations(), Ok)?;
        if self.trace.is_some() {
            return Ok(reason);
        }
        let name = if reason == FinishReason::Stopped { "stop" } else { "final" };
        self.checkpoint(&[(resume::LATEST, name)])?;
        Ok(reason)
    }

    /// The evaluation before the first iteration. A resumed run has made the evaluation of its iteration
    /// before the checkpoint was written, unless a stop broke it off. `Some` when the run ends with it, or
    /// before it, because some rank was asked to stop and may have no environments.
    fn first_evaluation(&mut self) -> Result<Option<FinishReason>, TrainerError> {
        let first = self.train_iter == 0 && self.experiment.eval.every > 0;
        self.evaluation_due |= first;
        let mut stop = [i64::from(signals::stop_requested())];
        self.group.all_reduce_i64(&mut stop, ReduceOp::Sum, "stop")?;
        if stop[0] > 0 {
            if self.is_first() {
                print_line("stopped before the first step: stop requested");
            }
            return Ok(Some(FinishReason::Stopped));
        }
        if !self.evaluation_due {
            return Ok(None);
        }
        let result = self.evaluate(self.env_step)?;
        if result.best && self.experiment.checkpoint.best {
            self.checkpoint(&[("best", "best"), (resume::LATEST, "latest")])?;
        }
        Ok(result.end())
    }

    fn iterations(&mut self) -> Result<FinishReason, TrainerError> {
        loop {
            if self.sizes.num_iterations.is_some_and(|all| self.train_iter >= all) {
                return Ok(FinishReason::Budget);
            }
            if self.trace.as_ref().is_some_and(|trace| self.train_iter >= trace.last()) {
                return Ok(FinishReason::Budget);
            }
            let started = Instant::now();
            let Some(stats) = self.iterate()? else { return Ok(FinishReason::Stopped) };
            self.long = inject::is_long(Some(started.elapsed()), LONG);
            if let Some(reason) = self.between(&stats)? {
                return Ok(reason);
            }
        }
    }

    /// `None`: it was left for a stop, and everything is as it was before it.
    fn iterate(&mut self) -> Result<Option<IterationStats>, TrainerError> {
        let open = self.algorithm.can_be_left(self.train_iter, self.long);
        let before = if open { Some(self.present()?) } else { None };
        self.stop.start_iteration(open);
        let ctx = StepContext {
            group: self.group,
            page: self.page,
            iteration: self.train_iter,
            num_iterations: self.sizes.num_iterations,
            updates: self.updates,
            env_step: self.env_step,
            stop: &self.stop,
        };
        if let Some(trace) = &self.trace {
            trace.start(self.train_iter + 1);
        }
        let stats = self.algorithm.iterate(&ctx)?;
        self.trace.as_ref().map_or(Ok(()), TraceFile::finish)?;
        if let Some(before) = before.filter(|_| stats.left) {
            self.algorithm.restore(&before)?;
            self.show_counters();
            if self.is_first() {
                print_line(&format!(
                    "iteration {} aborted by the stop; the state is from iteration {}",
                    self.train_iter + 1,
                    self.train_iter
                ));
            }
            return Ok(None);
        }
        // Every rank has checked its own losses before they were averaged; this finds the rest.
        let lost =
            stats.losses.iter().find(|stat| stat.is_loss && stats.updates > 0 && !stat.value.is_finite());
        if let Some(ScalarStat { name, .. }) = lost {
            return Err(TrainerError::diverged(
                format!("{name} is not finite in iteration {}", self.train_iter + 1),
                "lower the learning rate, and check the losses in TensorBoard",
            ));
        }
        self.updates += stats.updates;
        self.train_iter += 1;
        self.page.lock().phase(Phase::Sync);
        self.page.lock().update(|body| {
            (body.train_iter, body.updates) = (self.train_iter, self.updates);
        });
        Ok(Some(stats))
    }

    /// The state of the algorithm, to come back to. Environments that cannot be saved stay where they are.
    fn present(&self) -> Result<RestoredState, TrainerError> {
        let state = self.algorithm.state()?;
        Ok(RestoredState {
            arrays: state.arrays,
            words: state.words,
            counters: self.algorithm.counters(),
            envs: (state.words_per_env > 0 && state.unsaved.is_none()).then_some(state.envs),
        })
    }

    /// Everything between two iterations. `Some` when the loop ends.
    fn between(&mut self, stats: &IterationStats) -> Result<Option<FinishReason>, TrainerError> {
        let contribution = Contribution {
            stop: signals::stop_requested(),
            report: self.reporter.due(),
            long: self.long,
            counters: self.algorithm.counters(),
            chain: stats.chain,
        };
        let consensus = exchange(self.group, contribution)?;
        self.env_step = consensus.totals.env_step;
        self.long = consensus.long;
        let every = |every: u64| every > 0 && self.train_iter.is_multiple_of(every);
        let last = self.sizes.num_iterations == Some(self.train_iter);
        let evaluate =
            !consensus.stop && (every(self.experiment.eval.every) || last && self.experiment.eval.every > 0);
        let checkpoint = every(self.experiment.checkpoint.every);
        let report = consensus.report || consensus.stop || evaluate || checkpoint || last;
        let own = self.algorithm.take_interval();
        self.rows.add(self.train_iter, self.updates, &consensus.totals, stats, own);
        self.reporter.fingerprints(&consensus, (self.train_iter, self.updates), report);
        if report {
            self.report(&consensus.totals, stats)?;
        }
        let mut result = EvaluationResult::default();
        if evaluate {
            result = self.evaluate(consensus.totals.env_step)?;
        }
        let name = self.single();
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
        Ok(if consensus.stop { Some(FinishReason::Stopped) } else { result.end() })
    }

    fn report(&mut self, totals: &RankCounters, stats: &IterationStats) -> Result<(), TrainerError> {
        let names: Vec<&'static str> = stats.losses.iter().map(|stat| stat.name).collect();
        let (rows, own) = self.rows.take();
        let losses = stats.losses.iter().map(|stat| stat.value);
        let values: Vec<f64> = losses.chain(rows.iter().flat_map(IterationRow::values)).collect();
        let gathered = gather(self.group, &own, &values)?;
        let (means, all) = gathered.means.split_at(names.len());
        let rows = metrics::merged(&rows, &names, all);
        // A broken environment may return NaN, which would spoil the mean of the next hundred episodes.
        let ended = gathered.interval.latest.iter().map(|ended| ended.episode_return);
        ended.filter(|one| one.is_finite()).for_each(|one| push_bounded(&mut self.latest, one));
        let (iteration, updates) = (self.train_iter, self.updates);
        let totals = totals.to_event(iteration, updates, gathered.interval.returns);
        self.reporter.iteration(IterationReport {
            own: self.algorithm.counters().to_event(iteration, updates, own.returns),
            totals: Counters { return_last_100: mean(self.latest.iter()), ..totals },
            interval: gathered.interval,
            losses: names.into_iter().zip(means.iter().copied()).collect(),
            rows,
        });
        Ok(())
    }
}
