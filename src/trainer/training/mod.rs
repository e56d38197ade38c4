//! The training loop of one rank. Its invariants are the [trainer's](crate).

mod checkpoints;
mod evaluation;
mod exchange;
mod fingerprints;
mod metrics;
mod regroup;
mod reporter;

use crate::algo::stop_points::StopPoints;
use crate::algo::{self, Algorithm, BuildContext, IterationStats, ScalarStat, StepContext};
use crate::checkpoint::description::Description;
use crate::checkpoint::{CheckpointMetadata, resume};
use crate::distributed::membership::Members;
use crate::distributed::{GroupSettings, Interrupt, ProcessGroup, ReduceOp, cudnn};
use crate::env::{EnvFactory, Spec, VectorEnv};
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
use rankdeck_proto::message::{Counters, FailureKind, FinishReason, Phase, RankEvent};
use rankdeck_types::experiment::{Experiment, OnRankLoss};
use regroup::{NextGroup, Regrouped, Snapshot, Survival};
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
    let spec = envs.spec().clone().fitted(experiment.policy.network);
    algo::check(&experiment, &spec, &sizes)?;
    setup::set_threads(&experiment);
    let (backend, device) = setup::device(identity, &experiment)?;
    let policy = &experiment.policy;
    cudnn(policy.deterministic, policy.cudnn_benchmark);
    let shrinks = shrinks(identity, &experiment)?;
    let mut settings = GroupSettings {
        shared_memory: experiment.distributed.shared_memory,
        interrupt: shrinks.then(Interrupt::default),
        ..setup::group(identity, (backend, device), timeout(&experiment)?)
    };
    if let Some(target) = &identity.join {
        // Rank 0's host may be gone.
        let entrance = target.entrance;
        (settings.master_addr, settings.master_port) = (entrance.ip().to_string(), entrance.port());
    }
    if identity.secret.is_none() && identity.spans_hosts && identity.rank == 0 {
        warn(
            "RANKDECK_SECRET is not set: connections between ranks are neither authenticated nor encrypted; to enable both, set it to the same output of `openssl rand -hex 32` on all ranks",
        );
    }
    let launch = Launch {
        identity,
        events,
        page: &page,
        experiment: &experiment,
        envs: &envs,
        about: Description::new(&experiment, envs.spec()),
        spec,
        run_dir: setup::run_dir(identity, &experiment.run.name),
        survival: survival(&settings, &experiment)?,
        settings,
    };
    let mut joined = Some(joined);
    let mut announce = |group: &ProcessGroup| {
        if let Some(joined) = joined.take() {
            joined();
            announce_join(group, device, events);
        }
    };
    let mut ended = match &identity.join {
        None => {
            let group = ProcessGroup::connect(&launch.settings, page.clone())?;
            announce(&group);
            if let Some(images) = envs.images().filter(|_| identity.rank == 0) {
                print_line(&format!("images {images}"));
            }
            if let Some(survival) = &launch.survival {
                survival.members.start(&group)?;
            }
            launch.train(group, &experiment, sizes, StartState::Launch)
        }
        Some(target) => {
            let (rank, epoch) = (identity.rank, target.epoch);
            print_line(&format!(
                "rank {rank}: joining the group after change {epoch} at {}",
                target.entrance
            ));
            Ok(None)
        }
    };
    loop {
        let cause = match ended {
            Ok(Some(reason)) => return Ok(reason),
            Ok(None) => None,
            Err(error) => Some(error),
        };
        let Some(survival) =
            launch.survival.as_ref().filter(|_| cause.as_ref().is_none_or(|error| launch.survives(error)))
        else {
            return Err(cause.unwrap_or_else(|| TrainerError::failure("the group has ended", "")));
        };
        ended = launch.regroup(survival, cause.as_ref()).and_then(|next| {
            announce(&next.group);
            let NextGroup { group, experiment, sizes, regrouped } = next;
            launch.train(group, &experiment, sizes, StartState::Regrouped(Box::new(regrouped)))
        });
    }
}

/// Whether this rank continues without others that are lost.
fn shrinks(identity: &RankIdentity, experiment: &Experiment) -> Result<bool, TrainerError> {
    let shrinks = experiment.distributed.on_rank_loss == OnRankLoss::Shrink && identity.world_size > 1;
    match identity.join.is_some() && !shrinks {
        false => Ok(shrinks),
        true => Err(TrainerError::usage(
            "RANKDECK_JOIN is set, but `distributed.on_rank_loss` is not `shrink`",
            "unset RANKDECK_JOIN, or set `distributed.on_rank_loss = \"shrink\"` on all ranks",
        )),
    }
}

/// The means to continue without other ranks, where the settings have an interrupt.
fn survival(settings: &GroupSettings, experiment: &Experiment) -> Result<Option<Survival>, TrainerError> {
    if settings.interrupt.is_none() {
        return Ok(None);
    }
    let silence = Duration::try_from_secs_f64(experiment.watch.lost_after_s).unwrap_or(settings.timeout);
    let members = Members::open(settings, silence)?;
    Ok(Some(Survival::new(members, experiment, settings.world_size)))
}

/// What all groups of this rank have in common.
struct Launch<'a> {
    identity: &'a RankIdentity,
    events: &'a EventSender,
    page: &'a StatusPage,
    experiment: &'a Experiment,
    envs: &'a EnvFactory,
    /// What is trained.
    about: Description,
    spec: Spec,
    run_dir: PathBuf,
    survival: Option<Survival>,
    /// Of the first group.
    settings: GroupSettings,
}

/// What a group begins with.
enum StartState {
    /// Nothing, or a checkpoint.
    Launch,
    /// The state of the group before.
    Regrouped(Box<Regrouped>),
}

/// How long a rank whose GPU reports a failure waits for the news that another rank is lost.
const NEWS: Duration = Duration::from_secs(1);
const NEWS_POLL: Duration = Duration::from_millis(10);

impl Launch<'_> {
    /// Trains in this group to its end; `None`: its members are about to change, since a rank joins.
    fn train(
        &self,
        group: ProcessGroup,
        experiment: &Experiment,
        sizes: Sizes,
        start: StartState,
    ) -> Result<Option<FinishReason>, TrainerError> {
        let result = self.train_in(&group, experiment, sizes, start);
        match &result {
            Ok(Some(_)) => {
                if let Some(survival) = &self.survival {
                    survival.members.retire();
                }
                self.page.lock().phase(Phase::Teardown);
                if let Err(error) = group.destroy(LEAVE) {
                    warn(&format!("rank {}: leaving the group: {error}", self.identity.rank));
                }
                self.page.lock().phase(Phase::Done);
            }
            // Ranks that continue need its connections no more; whoever waits at one of them is to know at once.
            _ if self.survival.is_some() => group.abandon(),
            _ => drop(group),
        }
        result
    }

    fn train_in(
        &self,
        group: &ProcessGroup,
        experiment: &Experiment,
        sizes: Sizes,
        start: StartState,
    ) -> Result<Option<FinishReason>, TrainerError> {
        let device = self.settings.device;
        let build = BuildContext {
            experiment,
            sizes,
            envs: self.envs,
            spec: self.spec.clone(),
            seeds: Seeds::new(experiment.run.seed),
            device,
            group,
            start_iteration: 0,
        };
        let trained = Trainer::new(self, build, start).and_then(|mut trainer| {
            let ended = trainer.run();
            if let Some(survival) = self.survival.as_ref().filter(|_| !matches!(ended, Ok(Some(_)))) {
                *survival.own.borrow_mut() = trainer.algorithm.take_own();
            }
            ended
        });
        trained.map_err(|error| match self.survives(&error) {
            true => error,
            false => last_resort::on(device)(error),
        })
    }

    /// Whether this rank continues after this error of its group.
    fn survives(&self, error: &TrainerError) -> bool {
        let Some(interrupt) = self.settings.interrupt.as_ref().filter(|_| !error.needs_restart) else {
            return false;
        };
        match error.kind {
            FailureKind::Connection | FailureKind::Rendezvous => true,
            // NCCL reports the end of another rank in several ways, and a little earlier.
            FailureKind::Other if self.settings.device.is_cuda() => {
                let until = Instant::now() + NEWS;
                while !interrupt.is_set() && Instant::now() < until {
                    std::thread::sleep(NEWS_POLL);
                }
                interrupt.is_set()
            }
            _ => false,
        }
    }
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
    survival: Option<&'a Survival>,
    /// A checkpoint of this iteration is still to be written; equal on all ranks.
    checkpoint_due: bool,
    /// The members of the group are about to change: a rank joins.
    regroups: bool,
}

impl<'a> Trainer<'a> {
    fn new(
        launch: &'a Launch<'_>,
        build: BuildContext<'a>,
        start: StartState,
    ) -> Result<Trainer<'a>, TrainerError> {
        let BuildContext { experiment, sizes, seeds, device, group, .. } = build;
        let Launch { identity, run_dir, about, .. } = launch;
        let (env, learn) = setup::parts(experiment)?;
        let trace = identity.trace.as_ref();
        let trace = trace
            .map(|(path, iterations)| TraceFile::create(path, identity.rank, iterations.clone()))
            .transpose()?;
        remove_unfinished(&resume::folder(run_dir), group.rank());
        let (resumed, regrouped) = match start {
            StartState::Launch => (find_checkpoint(identity, run_dir, group, device)?, None),
            StartState::Regrouped(regrouped) => (None, Some(regrouped)),
        };
        if let Some((path, checkpoint)) = &resumed {
            checkpoint.is_of(path, learn.name(), &env.id)?;
        }
        let source = regrouped.as_ref().map(|regrouped| &regrouped.checkpoint);
        let source = source.or(resumed.as_ref().map(|(_, checkpoint)| checkpoint));
        let header = source.map(|checkpoint| checkpoint.header.clone()).unwrap_or_default();
        let changed = header.about.differences(about);
        let build = BuildContext { start_iteration: header.train_iter, ..build };
        let mut algorithm = algo::make(&build)?;
        let from = resumed.as_ref().map(|(path, _)| path.clone());
        let lost = match (resumed, &regrouped) {
            (Some((path, checkpoint)), _) => take_over(&mut *algorithm, &path, checkpoint, &build)?,
            (None, Some(regrouped)) => regrouped.take_over(&mut *algorithm, &build)?,
            (None, None) => false,
        };
        if let Some(own) = launch.survival.as_ref().and_then(|survival| survival.own.take())
            && let Some(what) = algorithm.adopt_own(own)
        {
            print_line(&format!("rank {}: {what}", identity.rank));
        }
        if regrouped.is_none() {
            let begins = from.as_deref().map(|path| (path, header.train_iter));
            keep_earlier(identity.generation, &resume::folder(run_dir), group, begins)?;
        }
        let saved = match &regrouped {
            Some(regrouped) => regrouped.saved,
            None => from.is_some().then_some(header.train_iter),
        };
        let reporter =
            Reporter::new(launch.events, (identity.rank, group.rank() == 0), run_dir, header.train_iter);
        let mut trainer = Trainer {
            experiment,
            sizes,
            seeds,
            group,
            page: launch.page,
            reporter,
            algorithm,
            evaluation: None,
            run_dir: run_dir.clone(),
            train_iter: header.train_iter,
            updates: header.updates,
            env_step: header.env_step,
            best: header.best,
            evaluation_due: header.evaluation_due,
            rows: IterationRows::default(),
            stop: StopPoints::default(),
            long: inject::is_long(None, LONG),
            saved,
            about: about.clone(),
            latest: header.latest_returns.iter().copied().collect(),
            trace,
            survival: launch.survival.as_ref(),
            checkpoint_due: regrouped.as_ref().is_some_and(|regrouped| regrouped.checkpoint_due),
            regroups: false,
        };
        trainer.evaluation_due &= trainer.trace.is_none();
        match &regrouped {
            None => trainer.announce(&header, (identity.resume.is_some(), from.as_deref()), lost)?,
            Some(_) => trainer.announce_regrouped(header.num_envs, lost)?,
        }
        if trainer.is_first() && from.is_some() && !changed.is_empty() {
            print_line(&format!("settings differ from the checkpoint's: {}", changed.join("; ")));
        }
        trainer.reporter.describe(&trainer.about);
        trainer.show_counters();
        trainer.first_snapshot()?;
        if let Some(regrouped) = regrouped {
            trainer.reporter.membership(regrouped.membership());
        }
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

    /// What has changed for the environments; `before`: how many there were.
    fn announce_regrouped(&self, before: u32, lost: bool) -> Result<(), TrainerError> {
        let (env, _) = setup::parts(self.experiment)?;
        let (count, ranks) = (env.num_envs, self.group.world_size());
        if self.is_first() && count != before {
            print_line(&format!("{count} environments over {ranks} ranks, {before} before"));
        }
        if lost {
            let rank = self.group.run_rank();
            print_line(&format!("rank {rank}: environments of lost ranks start new episodes"));
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

    /// `None`: a rank joins.
    fn run(&mut self) -> Result<Option<FinishReason>, TrainerError> {
        let reason = match self.first_evaluation()? {
            Some(reason) => reason,
            None => {
                if std::mem::take(&mut self.checkpoint_due) {
                    let name = self.single();
                    self.checkpoint(&[(name.as_str(), "every"), (resume::LATEST, "latest")])?;
                    self.update_snapshot();
                }
                let Some(reason) = self.iterations()? else { return Ok(None) };
                reason
            }
        };
        if self.trace.is_some() {
            return Ok(Some(reason));
        }
        let name = if reason == FinishReason::Stopped { "stop" } else { "final" };
        self.checkpoint(&[(resume::LATEST, name)])?;
        Ok(Some(reason))
    }

    /// The evaluation before the first iteration. A resumed run has made the evaluation of its iteration
    /// before the checkpoint was written, unless a stop broke it off. `Some` when the run ends with it, or
    /// before it, because some rank was asked to stop and may have no environments.
    fn first_evaluation(&mut self) -> Result<Option<FinishReason>, TrainerError> {
        let first = self.train_iter == 0 && self.experiment.eval.every > 0;
        self.evaluation_due = (self.evaluation_due || first) && self.trace.is_none();
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
        self.update_snapshot();
        Ok(result.end())
    }

    /// `None`: a rank joins.
    fn iterations(&mut self) -> Result<Option<FinishReason>, TrainerError> {
        loop {
            if self.sizes.num_iterations.is_some_and(|all| self.train_iter >= all) {
                return Ok(Some(FinishReason::Budget));
            }
            if self.trace.as_ref().is_some_and(|trace| self.train_iter >= trace.last()) {
                return Ok(Some(FinishReason::Budget));
            }
            let started = Instant::now();
            let Some(stats) = self.iterate()? else { return Ok(Some(FinishReason::Stopped)) };
            self.long = inject::is_long(Some(started.elapsed()), LONG);
            match self.between(&stats)? {
                Some(reason) => return Ok(Some(reason)),
                None if self.regroups => return Ok(None),
                None => {}
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
            snapshot: self.is_first() && self.survival.is_some_and(|own| own.snapshots.borrow().is_due()),
            joins: self.survival.is_some_and(|own| own.joins(self.group.world_size())),
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
        // A rank joins where all have the same weights (REGROUP-1), and not at the end.
        self.regroups = consensus.joins && consensus.equal() && !consensus.stop && !last;
        let keeps = consensus.snapshot || evaluate || checkpoint || self.regroups;
        if keeps && consensus.equal() {
            self.take_snapshot(&consensus.totals, (evaluate, checkpoint))?;
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
        self.update_snapshot();
        if let Some(survival) = self.survival {
            survival.settle();
        }
        Ok(if consensus.stop { Some(FinishReason::Stopped) } else { result.end() })
    }

    /// The snapshot that a group begins with (tag `members`): whoever has joined has one from here on.
    fn first_snapshot(&self) -> Result<(), TrainerError> {
        if self.survival.is_none() {
            return Ok(());
        }
        let mut words = self.algorithm.counters().to_words().map(u64::cast_signed);
        self.group.all_reduce_i64(&mut words, ReduceOp::Sum, "members")?;
        let totals = RankCounters::from_words(&words.map(i64::cast_unsigned));
        self.take_snapshot(&totals, (self.evaluation_due, self.checkpoint_due))
    }

    /// Keeps what this rank may have to go back to; `due`: whether the evaluation and the checkpoint of this
    /// iteration are still to come.
    fn take_snapshot(
        &self,
        totals: &RankCounters,
        (evaluation_due, checkpoint_due): (bool, bool),
    ) -> Result<(), TrainerError> {
        let Some(survival) = self.survival else { return Ok(()) };
        let started = Instant::now();
        let header = CheckpointMetadata { evaluation_due, ..self.metadata()? };
        let snapshot = Snapshot {
            header,
            state: self.algorithm.state()?,
            counters: self.algorithm.counters(),
            totals: *totals,
            first_env: self.sizes.first_env,
            num_iterations: self.sizes.num_iterations,
            checkpoint_due,
            saved: self.saved,
        };
        survival.snapshots.borrow_mut().push(snapshot, started.elapsed());
        Ok(())
    }

    /// Evaluation and checkpoint of this iteration are done.
    fn update_snapshot(&self) {
        let Some(survival) = self.survival else { return };
        survival.snapshots.borrow_mut().update(|snapshot| {
            if snapshot.header.train_iter == self.train_iter {
                (snapshot.header.best, snapshot.header.evaluation_due) = (self.best, self.evaluation_due);
                snapshot.checkpoint_due = false;
            }
            snapshot.saved = self.saved;
        });
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
