//! The lifecycle of a generation on one host, as a pure state machine: events go in, actions come
//! out.
//!
//! Owner: the agent's loop, which carries out the [`LifecycleAction`]s. Times are milliseconds on the agent's
//! monotonic clock. Invariants:
//! - LIFE-1: `Stopped` is recorded exactly when every rank's end is recorded and a scan has ended.
//! - LIFE-2: a generation starts only when nothing of the former one is left.
//! - LIFE-3: once a stop is ordered it may get harder, never softer, and its last stage is SIGKILL.
//! - LIFE-4: a rank that fails while no console is attached does not leave the others waiting forever.
//! - LIFE-5: the grace counts from the latest sign: the ranks' last progress, or a checkpoint file that grew.
//!   A stop takes no longer than `launch.stop_limit_s`, or the grace if that is longer.
//! - LIFE-6: a clean stop waits for an iteration under way: at least one and a half times the longest that
//!   ranks have reported lately. For a program that reports none, the configured grace holds.
//! - LIFE-7: on a host that has no core for a rank, a clean stop gives up to four times the grace.
//! - LIFE-8: of a stop with two signals, the second one has its grace within the same limit.
//! - LIFE-9: an order that ends the run holds for every console: no next generation starts unless its console has
//!   read of the end. It is recorded in every stage, also where nothing is left to stop.
//! - LIFE-10: where the plan lets ranks outlive others, the death of a rank that was in the process group ends nothing
//!   here, and the rank may start again in the same generation, once its end is recorded and nothing of it is left.

use crate::proc::ProcessKey;
use crate::program::AskStage;
use crate::supervise::setup;
use crate::supervise::terminate::AskedRank;
use rankdeck_proto::message::{
    CheckpointFile, Exit, HostSample, LaunchSpec, RankSample, RankSnapshot, Record, RecordEvent, RunResults,
    StopMode, Survivor, end_refusal,
};
use rankdeck_types::error::HintedError;
use rankdeck_types::exit::CANNOT_SHRINK;
use rankdeck_types::ids::{Generation, LocalRank, Rank};
use rankdeck_types::setup::Setup;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;

/// What the loop is to do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum LifecycleAction {
    /// Write this record.
    Record(Box<RecordEvent>),
    /// Ask the programs of ranks to end; then call [`Lifecycle::asked`].
    AskRanks(Vec<AskedRank>, AskStage),
    /// Signal the processes of the ranks themselves.
    SignalRanks(Vec<ProcessKey>, i32),
    /// Signal every process of the run on this host.
    SignalAll(i32),
    /// Collect a rank's last log lines and events, then call [`Lifecycle::exit_info`].
    CollectExitInfo { rank: Rank },
    /// End what a rank left behind; politely when it returned 0.
    EndOrphans {
        rank: Rank,
        /// Its process.
        ident: ProcessKey,
        /// SIGTERM first.
        polite: bool,
    },
    /// Kill and scan until nothing of the run is left, then call [`Lifecycle::scanned`].
    VerifyStop,
    /// The manifest changes. It comes before the record of the same change: a reader of
    /// the record finds it in the manifest (SPOOL-6).
    Save,
}

impl LifecycleAction {
    fn record(event: RecordEvent) -> LifecycleAction {
        LifecycleAction::Record(Box::new(event))
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum SupervisionStage {
    Idle,
    Running,
    Verifying,
    Survivors { scan_at: u64 },
    Over,
}

/// The state of the ranks of one node.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    spec: Option<Box<LaunchSpec>>,
    ranks: Vec<HostRank>,
    stage: SupervisionStage,
    stop: Option<StopEscalation>,
    /// A console has ended the run in this generation.
    ended: bool,
    failed: Option<(Rank, u64)>,
    last_exit: u64,
    rhythm: IterationTimer,
    /// Ranks that have been inside a collective for long.
    blocked: BTreeSet<Rank>,
}

impl Default for Lifecycle {
    fn default() -> Lifecycle {
        Lifecycle {
            spec: None,
            ranks: Vec::new(),
            stage: SupervisionStage::Idle,
            stop: None,
            ended: false,
            failed: None,
            last_exit: 0,
            rhythm: IterationTimer::default(),
            blocked: BTreeSet::new(),
        }
    }
}

impl Lifecycle {
    /// The latest launch.
    pub fn spec(&self) -> Option<&LaunchSpec> {
        self.spec.as_deref()
    }

    /// The generation of the latest launch, 0 before the first.
    pub fn generation(&self) -> Generation {
        self.spec.as_ref().map_or(Generation(0), |spec| spec.generation)
    }

    /// What comes before a rank here.
    fn setup(&self) -> Option<&Setup> {
        let spec = self.spec()?;
        let host = spec.plan.hosts.iter().find(|host| host.node_rank == spec.node_rank)?;
        Some(&host.host.setup)
    }

    /// A rank's program is not a child of the rank's own process: a container's monitor starts it.
    pub fn starts_elsewhere(&self) -> bool {
        self.setup().is_some_and(Setup::starts_elsewhere)
    }

    /// The command that has a container's tool forget the containers of this generation.
    pub fn containers_removal(&self) -> Option<Vec<OsString>> {
        let run = &self.spec()?.plan.run;
        let names = self.ranks.iter().map(|life| setup::container_name(run, self.generation(), life.rank));
        setup::removal(self.setup()?, names.collect())
    }

    /// This host's ranks of that generation.
    pub fn ranks(&self) -> &[HostRank] {
        &self.ranks
    }

    /// For a console that attaches.
    pub fn snapshot(&self) -> Vec<RankSnapshot> {
        let seen = |life: &HostRank| life.exit.clone().filter(|_| life.recorded);
        self.ranks
            .iter()
            .map(|life| RankSnapshot {
                rank: life.rank,
                pid: life.ident.map(|ident| ident.pid),
                exit: seen(life),
            })
            .collect()
    }

    /// Nothing runs, nothing is being stopped.
    pub fn is_quiet(&self) -> bool {
        matches!(self.stage, SupervisionStage::Idle | SupervisionStage::Over)
    }

    /// A generation runs, whether it is being stopped or not.
    pub fn is_running(&self) -> bool {
        self.stage == SupervisionStage::Running
    }

    /// Ranks run, and neither a stop nor a failure waits for the clock.
    pub fn is_calm(&self) -> bool {
        self.is_running() && self.stop.is_none() && self.failed.is_none()
    }

    /// A stop was ordered and is not over.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_some()
    }

    /// Processes of the run resist SIGKILL so far.
    pub fn has_survivors(&self) -> bool {
        matches!(self.stage, SupervisionStage::Survivors { .. })
    }

    /// Takes in which ranks have been inside a collective for long.
    pub fn observed(&mut self, sample: &HostSample) {
        let Some(spec) = self.spec.as_ref().filter(|_| self.is_running()) else { return };
        let long = milliseconds(spec.plan.experiment.watch.behind_after_s);
        let is_blocked = |rank: &&RankSample| {
            let call = rank.page.as_ref().map(|page| &page.collective);
            call.is_some_and(|call| call.entered > call.left && call.age_ms >= long)
        };
        self.blocked = sample.ranks.iter().filter(is_blocked).map(|rank| rank.rank).collect();
    }

    /// A rank's main program has returned: the exit of its interpreter does not affect its result.
    pub fn returned(&mut self, rank: Rank, has: bool) {
        if let Some(life) = self.life(rank) {
            life.returned = has;
        }
    }

    /// A rank is in the process group.
    pub fn joined(&mut self, rank: Rank) {
        if let Some(life) = self.life(rank) {
            life.joined = true;
        }
    }

    /// Takes in a rank's iteration count.
    pub fn iterated(&mut self, rank: Rank, iteration: u64, now: u64) {
        if self.is_running() {
            self.rhythm.record(rank, iteration, now);
        }
    }

    /// Refuses a next generation after an order that ended the run (LIFE-9). `after_end`: its console has read of
    /// that.
    pub fn check_end(&self, next: &LaunchSpec, after_end: bool) -> Result<(), HintedError> {
        let follows = self.spec.as_ref().is_some_and(|latest| latest.generation < next.generation);
        if self.ended && follows && !after_end { Err(end_refusal(&next.plan.run)) } else { Ok(()) }
    }

    /// Starts a generation. Repeating the launch of the latest generation changes nothing, so that a console
    /// may send it again.
    pub fn launch(&mut self, spec: Box<LaunchSpec>) -> Result<Vec<LifecycleAction>, HintedError> {
        if let Some(latest) = &self.spec {
            if latest.generation == spec.generation && **latest == *spec {
                return Ok(Vec::new());
            }
            if spec.generation <= latest.generation {
                return Err(HintedError::new(
                    format!(
                        "generation {} was already launched; the latest is {}",
                        spec.generation, latest.generation
                    ),
                    "attach again and launch the next generation",
                ));
            }
        }
        if !self.is_quiet() {
            return Err(HintedError::new(
                format!("generation {} has not ended on this host", self.generation()),
                "stop it first, then launch again",
            ));
        }
        self.ranks = planned_ranks(&spec);
        self.rhythm = IterationTimer::default();
        self.blocked.clear();
        if self.ranks.is_empty() {
            return Err(HintedError::new(
                format!("node rank {} has no ranks in the plan", spec.node_rank),
                "set `gpus` or `nproc` for the host in hosts.toml",
            ));
        }
        self.stage = SupervisionStage::Running;
        self.stop = None;
        self.ended = false;
        self.failed = None;
        let record = LifecycleAction::record(RecordEvent::Launched { spec: spec.clone() });
        self.spec = Some(spec);
        Ok(vec![LifecycleAction::Save, record])
    }

    /// Prepares that a rank of the present generation starts again (LIFE-10): [`Lifecycle::spawned`] follows.
    ///
    /// Errors: it may not, or not yet.
    pub fn rejoin(
        &mut self,
        rank: Rank,
        generation: Generation,
    ) -> Result<Vec<LifecycleAction>, HintedError> {
        const LATER: &str = "try again in a few seconds";
        let refusal = |error: String, hint: &str| Err(HintedError::new(error, hint));
        let present = self.spec.as_ref().filter(|spec| spec.generation == generation);
        if !present.is_some_and(|spec| spec.plan.shrinks()) {
            let error = format!("rank {rank} cannot join generation {generation} of the run on this host");
            return refusal(error, "restart the run");
        }
        let is_over = self.stage == SupervisionStage::Over;
        if self.is_stopping() || self.ended || !(self.is_running() || is_over) {
            return refusal(format!("rank {rank} cannot join: the run is being stopped on this host"), LATER);
        }
        let Some(life) = self.ranks.iter_mut().find(|life| life.rank == rank) else {
            return refusal(format!("rank {rank} is not on this host"), "check the run's hosts file");
        };
        if !life.recorded {
            return refusal(format!("rank {rank} still runs, or its end is not complete"), LATER);
        }
        *life = HostRank { joins: true, ..HostRank::unstarted(life.rank, life.local_rank, life.gpu) };
        self.failed = self.failed.filter(|(failed, _)| *failed != rank);
        self.stage = SupervisionStage::Running;
        Ok(vec![LifecycleAction::Save])
    }

    /// A rank's process exists, or could not be made.
    pub fn spawned(
        &mut self,
        rank: Rank,
        result: Result<ProcessKey, String>,
        now: u64,
    ) -> Vec<LifecycleAction> {
        let stop = self.stop.as_ref().map(|stop| stop.mode);
        let Some(life) = self.life(rank) else { return Vec::new() };
        match result {
            Ok(ident) => {
                life.ident = Some(ident);
                let local_rank = life.local_rank;
                let mut actions = vec![
                    LifecycleAction::Save,
                    LifecycleAction::record(RecordEvent::RankSpawned { rank, local_rank, pid: ident.pid }),
                ];
                let asked = || vec![AskedRank { ident, blocked: false }];
                actions.extend(stop.map(|mode| match mode {
                    StopMode::Clean => LifecycleAction::AskRanks(asked(), AskStage::First),
                    StopMode::Terminate => LifecycleAction::AskRanks(asked(), AskStage::Terminate),
                    StopMode::Kill => LifecycleAction::SignalRanks(vec![ident], libc::SIGKILL),
                }));
                actions
            }
            Err(error) => {
                life.exit = Some(Exit::NotStarted { error });
                life.ended_at = now;
                self.note_end(rank, true, now);
                vec![LifecycleAction::CollectExitInfo { rank }]
            }
        }
    }

    /// A rank's process was reaped.
    pub fn reaped(&mut self, pid: u32, exit: Exit, now: u64) -> Vec<LifecycleAction> {
        let Some(life) =
            self.ranks.iter_mut().find(|life| life.lives() && life.ident.is_some_and(|i| i.pid == pid))
        else {
            return Vec::new();
        };
        let rank = life.rank;
        let Some(ident) = life.ident else { return Vec::new() };
        let clean = exit == Exit::Code { code: 0 };
        let by_itself = !exit.is_sigkill();
        life.exit = Some(exit);
        life.ended_at = now;
        self.note_end(rank, !clean, now);
        let polite = match self.stop.as_ref().map(|stop| stop.mode) {
            None => clean,
            Some(StopMode::Clean) => by_itself,
            Some(StopMode::Terminate | StopMode::Kill) => false,
        };
        vec![LifecycleAction::CollectExitInfo { rank }, LifecycleAction::EndOrphans { rank, ident, polite }]
    }

    fn note_end(&mut self, rank: Rank, abnormal: bool, now: u64) {
        self.last_exit = now;
        if abnormal && self.failed.is_none() && !self.is_outlived(rank) {
            self.failed = Some((rank, now));
        }
    }

    /// The others continue without this rank, or end by themselves (LIFE-10).
    fn is_outlived(&self, rank: Rank) -> bool {
        let shrinks = self.spec.as_ref().is_some_and(|spec| spec.plan.shrinks());
        let life = self.ranks.iter().find(|life| life.rank == rank);
        let ends_all = |exit: &Exit| match exit {
            Exit::Code { code } => *code == CANNOT_SHRINK,
            Exit::NotStarted { .. } => true,
            Exit::Signal { .. } => false,
        };
        let outlived = |life: &HostRank| match life.joined {
            true => !life.exit.as_ref().is_some_and(ends_all),
            // A rank that was to join is not waited for.
            false => life.joins,
        };
        shrinks && life.is_some_and(outlived)
    }

    /// A rank's end can be recorded: these are its last log lines.
    pub fn exit_info(&mut self, rank: Rank, last_lines: Vec<String>, now: u64) -> Vec<LifecycleAction> {
        let stopping = self.stop.is_some();
        let Some(life) = self.life(rank).filter(|life| !life.recorded) else { return Vec::new() };
        let Some(exit) = life.exit.clone() else { return Vec::new() };
        life.recorded = true;
        let pid = life.ident.map_or(0, |ident| ident.pid);
        let ago_ms = now.saturating_sub(life.ended_at);
        // Its last events have been read meanwhile.
        let only_left = life.returned && exit.reports_crash();
        self.failed = self.failed.filter(|(failed, _)| *failed != rank || !only_left);
        let mut actions = vec![
            LifecycleAction::Save,
            LifecycleAction::record(RecordEvent::RankExited {
                rank,
                pid,
                exit,
                last_lines,
                stopping,
                ago_ms,
                with_agent: false,
            }),
        ];
        if self.stage == SupervisionStage::Running && self.ranks.iter().all(|life| life.recorded) {
            self.stage = SupervisionStage::Verifying;
            actions.push(LifecycleAction::VerifyStop);
        }
        actions
    }

    fn life(&mut self, rank: Rank) -> Option<&mut HostRank> {
        self.ranks.iter_mut().find(|life| life.rank == rank)
    }
}

/// One rank of this host.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HostRank {
    pub rank: Rank,
    /// Its index on this host.
    pub local_rank: LocalRank,
    pub gpu: Option<u32>,
    /// Its process, once it exists.
    pub ident: Option<ProcessKey>,
    /// How it ended.
    pub exit: Option<Exit>,
    ended_at: u64,
    recorded: bool,
    /// Its main program has returned.
    returned: bool,
    /// It was in the process group.
    joined: bool,
    /// It has started again, to join the others.
    joins: bool,
}

impl HostRank {
    /// A rank without a process.
    fn unstarted(rank: Rank, local_rank: LocalRank, gpu: Option<u32>) -> HostRank {
        HostRank {
            rank,
            local_rank,
            gpu,
            ident: None,
            exit: None,
            ended_at: 0,
            recorded: false,
            returned: false,
            joined: false,
            joins: false,
        }
    }

    /// It has a process that has not ended.
    pub fn lives(&self) -> bool {
        self.ident.is_some() && self.exit.is_none()
    }
}

/// The ranks of a launch that are planned for its host.
fn planned_ranks(spec: &LaunchSpec) -> Vec<HostRank> {
    spec.plan
        .ranks_of(spec.node_rank)
        .map(|planned| HostRank::unstarted(planned.rank, planned.local_rank, planned.gpu))
        .collect()
}

/// How a process ended, from the status that `waitpid` gave.
pub(crate) fn decode(status: i32, out_of_memory: bool) -> Exit {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        Exit::Signal { signal, out_of_memory: out_of_memory && signal == libc::SIGKILL }
    } else {
        Exit::Code { code: libc::WEXITSTATUS(status) }
    }
}

/// Intervals that are remembered: enough to include an evaluation or a checkpoint.
const KEPT: usize = 64;

/// Durations of a generation's iterations, by its ranks' reports: a clean stop waits for the current one.
#[derive(Debug, Default)]
struct IterationTimer {
    /// Latest iteration of each rank, and when it was reported, ms.
    latest: BTreeMap<Rank, (u64, u64)>,
    /// Milliseconds between an iteration and the next reported one.
    intervals: VecDeque<u64>,
}

impl IterationTimer {
    /// Records a rank's iteration.
    fn record(&mut self, rank: Rank, iteration: u64, now: u64) {
        let Some((before, at)) = self.latest.get(&rank).copied() else {
            self.latest.insert(rank, (iteration, now));
            return;
        };
        if iteration <= before {
            return;
        }
        self.latest.insert(rank, (iteration, now));
        if self.intervals.len() == KEPT {
            self.intervals.pop_front();
        }
        self.intervals.push_back(now.saturating_sub(at) / (iteration - before));
    }

    /// The longest iteration lately, ms; `None` while none has been seen from its beginning to its end.
    fn longest(&self) -> Option<u64> {
        self.intervals.iter().copied().max()
    }
}

impl Lifecycle {
    /// The state that the records of an earlier agent end in. Ranks that were never seen to end died with it.
    pub fn replay(&mut self, record: &Record) {
        match &record.event {
            RecordEvent::Launched { spec } => {
                self.ranks = planned_ranks(spec);
                self.spec = Some(spec.clone());
                self.stage = SupervisionStage::Running;
                self.ended = false;
            }
            RecordEvent::StopOrdered { ends, .. } => self.ended |= *ends && self.spec.is_some(),
            RecordEvent::RankSpawned { rank, pid, .. } => {
                if let Some(life) = self.life(*rank) {
                    // It may have ended before, and started again (LIFE-10).
                    *life = HostRank::unstarted(life.rank, life.local_rank, life.gpu);
                    life.ident = Some(ProcessKey { pid: *pid, start: 0 });
                    self.stage = SupervisionStage::Running;
                }
            }
            RecordEvent::RankExited { rank, exit, .. } => {
                if let Some(life) = self.life(*rank) {
                    life.exit = Some(exit.clone());
                    life.recorded = true;
                }
            }
            RecordEvent::Stopped { .. } if self.stage == SupervisionStage::Running => {
                self.stage = SupervisionStage::Over
            }
            _ => {}
        }
    }

    /// After the replay: the records that the former agent could not write any more. What it had started was
    /// ended before this one began to serve, all but the `survivors`.
    pub fn close_former(&mut self, survivors: Vec<Survivor>) -> Vec<RecordEvent> {
        if self.stage != SupervisionStage::Running && survivors.is_empty() {
            return Vec::new();
        }
        let mut events = vec![RecordEvent::Notice {
            text: "the previous agent of this host died; its processes were killed".into(),
        }];
        for life in self.ranks.iter_mut().filter(|life| life.exit.is_none()) {
            let exit = Exit::Signal { signal: libc::SIGKILL, out_of_memory: false };
            life.exit = Some(exit.clone());
            life.recorded = true;
            events.push(RecordEvent::RankExited {
                rank: life.rank,
                pid: life.ident.map_or(0, |ident| ident.pid),
                exit,
                last_lines: Vec::new(),
                stopping: false,
                ago_ms: 0,
                with_agent: true,
            });
        }
        self.stage = SupervisionStage::Over;
        if !survivors.is_empty() {
            self.survive(0, 0);
        }
        events.push(RecordEvent::Stopped { survivors, gpus_free: Vec::new(), took_ms: 0 });
        events
    }
}

/// How long ranks may take to vanish after SIGKILL before the survivors are reported.
const KILL_PATIENCE_MS: u64 = 10_000;
/// Between two rounds of SIGKILL.
const KILL_AGAIN_MS: u64 = 500;
/// Interval between scans for survivors.
const SCAN_AGAIN_MS: u64 = 1_000;
/// Longest grace of an order: an hour.
const MOST_GRACE_MS: u64 = 3_600_000;

/// Graces of a clean stop on a host that has no core for its ranks.
const STARVED: u64 = 4;

/// The times of a stop, which say how long it waits for ranks.
///
/// A program is asked by one signal, and by another one if it handles two (PROGRAM-4). The wait for each begins
/// again at every heartbeat.
#[derive(Debug, Clone, PartialEq, Default)]
struct StopTimes {
    ordered_at: u64,
    /// When the present signal was sent.
    asked_at: u64,
    /// The latest sign of life.
    sign_at: Option<u64>,
    /// When a rank was last seen without a core.
    starved_at: Option<u64>,
    grace: u64,
    /// The longest iteration lately.
    iteration: Option<u64>,
    /// Most that a stop may take.
    limit: u64,
    /// Another signal follows the present one.
    asks_again: bool,
}

impl StopTimes {
    /// When the wait for the present signal is over.
    fn deadline(&self) -> u64 {
        let quiet = self.asked_at.max(self.sign_at.unwrap_or(0)).saturating_add(self.patience());
        let most_starved = self.ordered_at.saturating_add(self.patience().saturating_mul(STARVED));
        let starved = self.starved_at.map_or(0, |at| at.saturating_add(self.patience()).min(most_starved));
        let (end, reserve) = (self.end(), self.grace.saturating_mul(u64::from(self.asks_again)));
        let has_room = end.saturating_sub(self.ordered_at) >= reserve.saturating_mul(2);
        quiet.max(starved).min(if has_room { end.saturating_sub(reserve) } else { end })
    }

    /// When ranks are killed that give no further sign.
    fn kill_at(&self) -> u64 {
        let deadline = self.deadline();
        if self.asks_again { deadline.saturating_add(self.patience()).min(self.end()) } else { deadline }
    }

    /// How long to wait for a sign (LIFE-6).
    fn patience(&self) -> u64 {
        let iteration = self.iteration.filter(|_| self.grace > 0).unwrap_or(0);
        self.grace.max(iteration.saturating_add(iteration / 2).min(self.limit))
    }

    fn end(&self) -> u64 {
        self.ordered_at.saturating_add(self.limit.max(self.grace))
    }
}

/// A stop that was ordered.
#[derive(Debug, Clone, PartialEq)]
struct StopEscalation {
    mode: StopMode,
    times: StopTimes,
    /// What programs were asked with last.
    stage: AskStage,
    /// Since when it kills.
    killing: Option<u64>,
    next_kill: u64,
    /// Survivors were recorded.
    survivors_recorded: bool,
}

impl StopEscalation {
    fn new(mode: StopMode, times: StopTimes) -> StopEscalation {
        let stage = AskStage::First;
        StopEscalation { mode, times, stage, killing: None, next_kill: 0, survivors_recorded: false }
    }
}

impl Lifecycle {
    /// Survivors are recorded once, and scanned for until they are gone.
    fn survive(&mut self, begun: u64, now: u64) {
        let times = StopTimes { ordered_at: begun, asked_at: now, ..StopTimes::default() };
        self.stop.get_or_insert(StopEscalation::new(StopMode::Kill, times)).survivors_recorded = true;
        self.stage = SupervisionStage::Survivors { scan_at: now + SCAN_AGAIN_MS };
    }

    /// Orders a stop that does not end the run.
    pub fn stop(&mut self, mode: StopMode, grace_ms: u64, by: &str, now: u64) -> Vec<LifecycleAction> {
        self.order(mode, grace_ms, (by, false), now)
    }

    /// A console orders a stop; `ends`: of the run (LIFE-9).
    pub fn stop_by_console(
        &mut self,
        mode: StopMode,
        grace_ms: u64,
        ends: bool,
        now: u64,
    ) -> Vec<LifecycleAction> {
        self.order(mode, grace_ms, ("console", ends), now)
    }

    fn order(
        &mut self,
        mode: StopMode,
        grace_ms: u64,
        (by, ends): (&str, bool),
        now: u64,
    ) -> Vec<LifecycleAction> {
        let order = RecordEvent::StopOrdered { mode, by: by.to_owned(), ends };
        let times = self.times_of(mode, grace_ms, now);
        // Where the order changes nothing here, consoles read of the end anyway.
        let is_news = ends && (!self.ended || self.stage == SupervisionStage::Over);
        let unchanged = || -> Vec<LifecycleAction> {
            is_news.then(|| LifecycleAction::record(order.clone())).into_iter().collect()
        };
        self.ended |= ends && self.spec.is_some();
        match self.stage {
            SupervisionStage::Over => unchanged(),
            SupervisionStage::Idle => {
                self.stop = Some(StopEscalation::new(mode, times));
                self.stage = SupervisionStage::Verifying;
                vec![LifecycleAction::record(order), LifecycleAction::VerifyStop]
            }
            SupervisionStage::Verifying => unchanged(),
            SupervisionStage::Survivors { .. } => {
                self.stage = SupervisionStage::Verifying;
                if let Some(stop) = &mut self.stop {
                    stop.survivors_recorded = false;
                }
                vec![LifecycleAction::record(order), LifecycleAction::VerifyStop]
            }
            SupervisionStage::Running => {
                match &mut self.stop {
                    Some(stop) if stop.mode > mode => return unchanged(),
                    Some(stop) if stop.mode == mode => {
                        // Asking again would interrupt who saves.
                        let shorter = times.kill_at() < stop.times.kill_at();
                        if !shorter || stop.killing.is_some() {
                            return unchanged();
                        }
                        let (kill_at, known) = (times.kill_at(), &mut stop.times);
                        known.grace = kill_at.saturating_sub(known.asked_at);
                        known.limit = kill_at.saturating_sub(known.ordered_at);
                        (known.iteration, known.asks_again) = (None, false);
                    }
                    known => {
                        let ordered_at = known.as_ref().map_or(now, |stop| stop.times.ordered_at);
                        let limit = times.limit.saturating_add(now.saturating_sub(ordered_at));
                        *known = Some(StopEscalation::new(mode, StopTimes { ordered_at, limit, ..times }));
                    }
                }
                self.failed = None;
                let mut actions = vec![LifecycleAction::record(order)];
                actions.extend(self.first_requests(mode, now));
                actions.extend(self.tick(now, false, 0));
                actions
            }
        }
    }

    /// The times of a stop that is ordered now.
    fn times_of(&self, mode: StopMode, grace_ms: u64, now: u64) -> StopTimes {
        let grace = if mode == StopMode::Kill { 0 } else { grace_ms.min(MOST_GRACE_MS) };
        let limit = self.spec.as_ref().map_or(0, |spec| limit_ms(spec)).min(MOST_GRACE_MS);
        let clean = mode == StopMode::Clean;
        StopTimes {
            ordered_at: now,
            asked_at: now,
            grace,
            iteration: self.rhythm.longest().filter(|_| clean),
            limit: if clean { limit } else { grace },
            ..StopTimes::default()
        }
    }

    /// What a stop sends when it is ordered.
    fn first_requests(&self, mode: StopMode, now: u64) -> Vec<LifecycleAction> {
        let asked = self.live();
        let Some(stop) = self.stop.as_ref().filter(|stop| stop.times.asked_at == now) else {
            return Vec::new();
        };
        let patience = stop.times.patience();
        let notice = (patience > stop.times.grace).then(|| self.grace_notice(patience));
        let request = match mode {
            StopMode::Clean => Some(LifecycleAction::AskRanks(asked, AskStage::First)),
            StopMode::Terminate => Some(LifecycleAction::SignalAll(libc::SIGTERM)),
            StopMode::Kill => None,
        };
        notice.into_iter().chain(request).collect()
    }

    /// Programs were asked; `more`: one of them handles another signal, too.
    pub fn asked(&mut self, more: bool) {
        // The trainer leaves at once when it gets another one.
        let own = self.spec.as_ref().is_some_and(|spec| spec.plan.is_builtin());
        let is_first = |stop: &&mut StopEscalation| {
            stop.mode == StopMode::Clean && stop.stage == AskStage::First && stop.killing.is_none()
        };
        if let Some(stop) = self.stop.as_mut().filter(is_first) {
            stop.times.asks_again |= more && !own;
        }
    }

    /// Milliseconds until ranks are killed that show no progress; `None` without a stop that asks them.
    pub fn kills_in(&self, now: u64) -> Option<u64> {
        let stop = self.stop.as_ref().filter(|_| self.is_running())?;
        stop.killing.is_none().then(|| stop.times.kill_at().saturating_sub(now))
    }

    /// Continues ranks that a signal has stopped; the order is recorded.
    pub fn resume(&self, ranks: &[Rank]) -> Vec<LifecycleAction> {
        let requested = self.ranks.iter().filter(|life| life.lives() && ranks.contains(&life.rank));
        let (names, idents): (Vec<String>, Vec<ProcessKey>) =
            requested.filter_map(|life| Some((life.rank.to_string(), life.ident?))).unzip();
        if idents.is_empty() {
            return Vec::new();
        }
        let text = format!("rank {}: SIGCONT sent on request of a console", names.join(", "));
        vec![
            LifecycleAction::record(RecordEvent::Notice { text }),
            LifecycleAction::SignalRanks(idents, libc::SIGCONT),
        ]
    }

    fn grace_notice(&self, grace: u64) -> LifecycleAction {
        let seconds = |ms: u64| ms.div_ceil(1000);
        let text = format!(
            "the stop waits up to {} s for the current iteration: iterations have taken up to {} s here",
            seconds(grace),
            seconds(self.rhythm.longest().unwrap_or(0))
        );
        LifecycleAction::record(RecordEvent::Notice { text })
    }

    /// Every living rank has just made progress on its way to a clean stop, or waits for others that do, or a
    /// checkpoint has grown (LIFE-5).
    pub fn progressed(&mut self, now: u64) {
        if let Some(stop) = self.clean_stop() {
            stop.times.sign_at = Some(now);
        }
    }

    /// A stopping rank is short of CPU (LIFE-7).
    pub fn starved(&mut self, now: u64) {
        if let Some(stop) = self.clean_stop() {
            stop.times.starved_at = Some(now);
        }
    }

    /// A clean stop that may wait longer. Once SIGKILL is sent, nothing softens it (LIFE-3).
    fn clean_stop(&mut self) -> Option<&mut StopEscalation> {
        let running = self.is_running();
        let stop = self.stop.as_mut().filter(|_| running)?;
        (stop.mode == StopMode::Clean && stop.killing.is_none()).then_some(stop)
    }

    fn live(&self) -> Vec<AskedRank> {
        let blocked = |life: &HostRank| self.blocked.contains(&life.rank);
        let live = self.ranks.iter().filter(|life| life.lives());
        live.filter_map(|life| Some(AskedRank { ident: life.ident?, blocked: blocked(life) })).collect()
    }

    /// Handles passed time. `attended`: a console is attached. `unattended_ms`: how long ranks next to a failed one may
    /// wait for orders.
    pub fn tick(&mut self, now: u64, attended: bool, unattended_ms: u64) -> Vec<LifecycleAction> {
        match (self.stage, &mut self.stop) {
            (SupervisionStage::Survivors { scan_at }, _) if now >= scan_at => {
                self.stage = SupervisionStage::Verifying;
                vec![LifecycleAction::VerifyStop]
            }
            (SupervisionStage::Running, Some(stop)) => match stop.killing {
                None if now < stop.times.deadline() => Vec::new(),
                None if stop.times.asks_again && now < stop.times.kill_at() => {
                    (stop.stage, stop.times.asks_again, stop.times.asked_at) = (AskStage::Second, false, now);
                    vec![LifecycleAction::AskRanks(self.live(), AskStage::Second)]
                }
                Some(since) if now >= since.saturating_add(KILL_PATIENCE_MS) => {
                    self.stage = SupervisionStage::Verifying;
                    vec![LifecycleAction::VerifyStop]
                }
                Some(_) if now < stop.next_kill => Vec::new(),
                _ => {
                    stop.killing = Some(stop.killing.unwrap_or(now));
                    stop.next_kill = now + KILL_AGAIN_MS;
                    vec![LifecycleAction::SignalAll(libc::SIGKILL)]
                }
            },
            (SupervisionStage::Running, None) => match &mut self.failed {
                Some((_, since)) if attended => {
                    *since = now;
                    Vec::new()
                }
                Some((rank, since)) if now.saturating_sub(*since) >= unattended_ms => {
                    let by = format!("rank {rank} failed");
                    let grace = self.spec.as_ref().map_or(0, |spec| grace_ms(spec));
                    self.stop(StopMode::Terminate, grace, &by, now)
                }
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    /// A scan for processes of the run has ended.
    pub fn scanned(
        &mut self,
        ScanOutcome { survivors, gpus_free, checkpoints, results }: ScanOutcome,
        now: u64,
    ) -> Vec<LifecycleAction> {
        if self.stage != SupervisionStage::Verifying {
            return Vec::new();
        }
        let begun = self.stop.as_ref().map_or(self.last_exit, |stop| stop.times.ordered_at);
        if !survivors.is_empty() {
            let survivors_recorded = self.stop.as_ref().is_some_and(|stop| stop.survivors_recorded);
            self.survive(begun, now);
            if survivors_recorded {
                return Vec::new();
            }
        } else if self.ranks.iter().any(|life| !life.recorded) {
            // Gone from /proc, but not yet reaped, spawned or recorded: their ends come first (LIFE-1).
            self.stage = SupervisionStage::Survivors { scan_at: now + KILL_AGAIN_MS };
            return Vec::new();
        } else {
            self.stage = if self.spec.is_some() { SupervisionStage::Over } else { SupervisionStage::Idle };
            self.stop = None;
            self.failed = None;
        }
        let took_ms = now.saturating_sub(begun);
        // Before the end: what reads it decides with both.
        let found = checkpoints.map(|(files, complete)| RecordEvent::CheckpointFiles { files, complete });
        let stopped = RecordEvent::Stopped { survivors, gpus_free, took_ms };
        let results = results.map(|results| RecordEvent::Results { results: Box::new(results) });
        let records = found.into_iter().chain(results).chain([stopped]).map(LifecycleAction::record);
        std::iter::once(LifecycleAction::Save).chain(records).collect()
    }
}

/// What a scan for processes of the run has found.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ScanOutcome {
    pub survivors: Vec<Survivor>,
    /// GPUs that no process of the run uses any more.
    pub gpus_free: Vec<u32>,
    /// What looks like checkpoints of its ranks, and whether the search was complete; `None`: not searched.
    pub checkpoints: Option<(Vec<CheckpointFile>, bool)>,
    /// What ranks have written where they work, if anything.
    pub results: Option<RunResults>,
}

/// Milliseconds that a stop waits for each of its signals, from the experiment.
pub(crate) fn grace_ms(spec: &LaunchSpec) -> u64 {
    milliseconds(spec.plan.experiment.launch.stop_grace_s)
}

/// Milliseconds that a clean stop takes at most.
fn limit_ms(spec: &LaunchSpec) -> u64 {
    milliseconds(spec.plan.experiment.launch.stop_limit_s)
}

fn milliseconds(seconds: f64) -> u64 {
    if seconds.is_finite() { (seconds.max(0.0) * 1000.0) as u64 } else { 0 }
}

#[cfg(test)]
mod tests;
