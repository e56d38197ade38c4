//! The life of a generation on one host, as a pure state machine: what happened goes in, what to do comes
//! out.
//!
//! Owner: the agent's loop, which carries out the [`LifecycleAction`]s. Times are milliseconds on the agent's
//! monotonic clock. Invariants:
//! - LIFE-1: `Stopped` is recorded exactly when every rank's end is recorded and a scan has ended.
//! - LIFE-2: a generation starts only when nothing of the former one is left.
//! - LIFE-3: once a stop is ordered it may get harder, never softer, and its last stage is SIGKILL.
//! - LIFE-5: the grace of a clean stop counts from the ranks' last progress, up to `launch.stop_limit_s`.
//! - LIFE-6: a clean stop waits for an iteration under way: at least one and a half times the longest that
//!   ranks have reported lately, within that limit. For a program that reports none, the configured grace holds.
//! - LIFE-7: on a host that has no core for a rank, a clean stop gives up to four times the grace.
//! - LIFE-4: a rank that fails while no console is attached does not leave the others waiting forever.

use crate::proc::ProcessKey;
use crate::supervise::setup;
use rankdeck_proto::message::{Exit, LaunchSpec, RankSnapshot, Record, RecordEvent, StopMode, Survivor};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Generation, LocalRank, Rank};
use rankdeck_types::setup::Setup;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;

/// What the loop is to do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum LifecycleAction {
    /// Write this record.
    Record(RecordEvent),
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
    failed: Option<(Rank, u64)>,
    last_exit: u64,
    rhythm: IterationTimer,
}

impl Default for Lifecycle {
    fn default() -> Lifecycle {
        Lifecycle {
            spec: None,
            ranks: Vec::new(),
            stage: SupervisionStage::Idle,
            stop: None,
            failed: None,
            last_exit: 0,
            rhythm: IterationTimer::default(),
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

    /// Takes in a rank's iteration count.
    pub fn iterated(&mut self, rank: Rank, iteration: u64, now: u64) {
        if self.is_running() {
            self.rhythm.record(rank, iteration, now);
        }
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
        if self.ranks.is_empty() {
            return Err(HintedError::new(
                format!("node rank {} has no ranks in the plan", spec.node_rank),
                "set `gpus` or `nproc` for the host in hosts.toml",
            ));
        }
        self.stage = SupervisionStage::Running;
        self.stop = None;
        self.failed = None;
        let record = LifecycleAction::Record(RecordEvent::Launched { spec: spec.clone() });
        self.spec = Some(spec);
        Ok(vec![LifecycleAction::Save, record])
    }

    /// A rank's process exists, or could not be made.
    pub fn spawned(
        &mut self,
        rank: Rank,
        result: Result<ProcessKey, String>,
        now: u64,
    ) -> Vec<LifecycleAction> {
        let stop = self.stop.clone();
        let Some(life) = self.life(rank) else { return Vec::new() };
        match result {
            Ok(ident) => {
                life.ident = Some(ident);
                let local_rank = life.local_rank;
                let mut actions = vec![
                    LifecycleAction::Save,
                    LifecycleAction::Record(RecordEvent::RankSpawned { rank, local_rank, pid: ident.pid }),
                ];
                if let Some(stop) = stop {
                    let signal = if stop.mode == StopMode::Kill { libc::SIGKILL } else { libc::SIGTERM };
                    actions.push(LifecycleAction::SignalRanks(vec![ident], signal));
                }
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
        life.exit = Some(exit);
        life.ended_at = now;
        self.note_end(rank, !clean, now);
        vec![
            LifecycleAction::CollectExitInfo { rank },
            LifecycleAction::EndOrphans { rank, ident, polite: clean && self.stop.is_none() },
        ]
    }

    fn note_end(&mut self, rank: Rank, abnormal: bool, now: u64) {
        self.last_exit = now;
        if abnormal && self.failed.is_none() {
            self.failed = Some((rank, now));
        }
    }

    /// A rank's end can be recorded: these are its last log lines.
    pub fn exit_info(&mut self, rank: Rank, last_lines: Vec<String>, now: u64) -> Vec<LifecycleAction> {
        let stopping = self.stop.is_some();
        let Some(life) = self.life(rank).filter(|life| !life.recorded) else { return Vec::new() };
        let Some(exit) = life.exit.clone() else { return Vec::new() };
        life.recorded = true;
        let pid = life.ident.map_or(0, |ident| ident.pid);
        let ago_ms = now.saturating_sub(life.ended_at);
        let mut actions = vec![
            LifecycleAction::Save,
            LifecycleAction::Record(RecordEvent::RankExited {
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
}

impl HostRank {
    /// It has a process that has not ended.
    pub fn lives(&self) -> bool {
        self.ident.is_some() && self.exit.is_none()
    }
}

/// The ranks of a launch that are planned for its host.
fn planned_ranks(spec: &LaunchSpec) -> Vec<HostRank> {
    spec.plan
        .ranks_of(spec.node_rank)
        .map(|planned| HostRank {
            rank: planned.rank,
            local_rank: planned.local_rank,
            gpu: planned.gpu,
            ident: None,
            exit: None,
            ended_at: 0,
            recorded: false,
        })
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
            }
            RecordEvent::RankSpawned { rank, pid, .. } => {
                if let Some(life) = self.life(*rank) {
                    life.ident = Some(ProcessKey { pid: *pid, start: 0 });
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
/// Graces of a clean stop on a host that has no core for its ranks.
const STARVED: u64 = 4;
/// Longest grace of an order: an hour.
const MOST_GRACE_MS: u64 = 3_600_000;

/// A stop that was ordered.
#[derive(Debug, Clone, PartialEq)]
struct StopEscalation {
    mode: StopMode,
    ordered_at: u64,
    grace: u64,
    kill_at: u64,
    next_kill: u64,
    /// Survivors were recorded.
    survivors_recorded: bool,
}

impl Lifecycle {
    /// Survivors are recorded once, and scanned for until they are gone.
    fn survive(&mut self, begun: u64, now: u64) {
        let known = StopEscalation {
            mode: StopMode::Kill,
            ordered_at: begun,
            grace: 0,
            kill_at: now,
            next_kill: now,
            survivors_recorded: false,
        };
        self.stop.get_or_insert(known).survivors_recorded = true;
        self.stage = SupervisionStage::Survivors { scan_at: now + SCAN_AGAIN_MS };
    }

    /// Orders a stop.
    pub fn stop(&mut self, mode: StopMode, grace_ms: u64, by: &str, now: u64) -> Vec<LifecycleAction> {
        let order = RecordEvent::StopOrdered { mode, by: by.to_owned() };
        let grace = if mode == StopMode::Kill { 0 } else { grace_ms.min(MOST_GRACE_MS) };
        let extended = self.iteration_grace(mode, grace);
        let grace = extended.unwrap_or(grace);
        let kill_at = now.saturating_add(grace);
        match self.stage {
            SupervisionStage::Over => Vec::new(),
            SupervisionStage::Idle => {
                self.stop = Some(StopEscalation {
                    mode,
                    ordered_at: now,
                    grace,
                    kill_at,
                    next_kill: kill_at,
                    survivors_recorded: false,
                });
                self.stage = SupervisionStage::Verifying;
                vec![LifecycleAction::Record(order), LifecycleAction::VerifyStop]
            }
            SupervisionStage::Verifying => Vec::new(),
            SupervisionStage::Survivors { .. } => {
                self.stage = SupervisionStage::Verifying;
                if let Some(stop) = &mut self.stop {
                    stop.survivors_recorded = false;
                }
                vec![LifecycleAction::Record(order), LifecycleAction::VerifyStop]
            }
            SupervisionStage::Running => {
                let known = self.stop.as_ref();
                if known
                    .is_some_and(|stop| stop.mode > mode || (stop.mode == mode && stop.kill_at <= kill_at))
                {
                    return Vec::new();
                }
                let ordered_at = known.map_or(now, |stop| stop.ordered_at);
                self.failed = None;
                self.stop = Some(StopEscalation {
                    mode,
                    ordered_at,
                    grace,
                    kill_at,
                    next_kill: kill_at,
                    survivors_recorded: false,
                });
                let mut actions = vec![LifecycleAction::Record(order)];
                actions.extend(extended.map(|grace| self.grace_notice(grace)));
                match mode {
                    StopMode::Clean => actions.push(LifecycleAction::SignalRanks(self.live(), libc::SIGTERM)),
                    StopMode::Terminate => actions.push(LifecycleAction::SignalAll(libc::SIGTERM)),
                    StopMode::Kill => {}
                }
                actions.extend(self.tick(now, false, 0));
                actions
            }
        }
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
            LifecycleAction::Record(RecordEvent::Notice { text }),
            LifecycleAction::SignalRanks(idents, libc::SIGCONT),
        ]
    }

    /// What an iteration under way needs, where that is more than `grace` (LIFE-6).
    fn iteration_grace(&self, mode: StopMode, grace: u64) -> Option<u64> {
        let longest = self.rhythm.longest().filter(|_| mode == StopMode::Clean && grace > 0)?;
        let limit = self.spec.as_ref().map_or(0, |spec| limit_ms(spec)).min(MOST_GRACE_MS);
        Some(longest.saturating_add(longest / 2).min(limit)).filter(|needed| *needed > grace)
    }

    fn grace_notice(&self, grace: u64) -> LifecycleAction {
        let seconds = |ms: u64| ms.div_ceil(1000);
        let text = format!(
            "the stop waits up to {} s for the current iteration: iterations have taken up to {} s here",
            seconds(grace),
            seconds(self.rhythm.longest().unwrap_or(0))
        );
        LifecycleAction::Record(RecordEvent::Notice { text })
    }

    /// Every living rank has just made progress on its way to a clean stop, or waits for others that do
    /// (LIFE-5).
    pub fn progressed(&mut self, now: u64) {
        let limit = self.spec.as_ref().map_or(0, |spec| limit_ms(spec));
        let Some(stop) = self.stop.as_mut().filter(|stop| stop.mode == StopMode::Clean) else { return };
        // Once SIGKILL is sent, nothing softens it (LIFE-3).
        if self.stage == SupervisionStage::Running && now < stop.kill_at {
            let latest = stop.ordered_at.saturating_add(limit.max(stop.grace));
            stop.kill_at = now.saturating_add(stop.grace).min(latest).max(stop.kill_at);
            stop.next_kill = stop.kill_at;
        }
    }

    /// A stopping rank is short of CPU: it has four times the grace (LIFE-7).
    pub fn starved(&mut self, now: u64) {
        let Some(stop) = self.stop.as_mut().filter(|stop| stop.mode == StopMode::Clean) else { return };
        if self.stage == SupervisionStage::Running && now < stop.kill_at {
            let latest = stop.ordered_at.saturating_add(stop.grace.saturating_mul(STARVED));
            stop.kill_at = now.saturating_add(stop.grace).min(latest).max(stop.kill_at);
            stop.next_kill = stop.kill_at;
        }
    }

    fn live(&self) -> Vec<ProcessKey> {
        self.ranks.iter().filter(|life| life.lives()).filter_map(|life| life.ident).collect()
    }

    /// Handles passed time. `attended`: a console is attached. `unattended_ms`: how long ranks next to a failed one may
    /// wait for orders.
    pub fn tick(&mut self, now: u64, attended: bool, unattended_ms: u64) -> Vec<LifecycleAction> {
        match (self.stage, &mut self.stop) {
            (SupervisionStage::Survivors { scan_at }, _) if now >= scan_at => {
                self.stage = SupervisionStage::Verifying;
                vec![LifecycleAction::VerifyStop]
            }
            (SupervisionStage::Running, Some(stop))
                if now >= stop.kill_at.saturating_add(KILL_PATIENCE_MS) =>
            {
                self.stage = SupervisionStage::Verifying;
                vec![LifecycleAction::VerifyStop]
            }
            (SupervisionStage::Running, Some(stop)) if now >= stop.next_kill => {
                stop.next_kill = now + KILL_AGAIN_MS;
                vec![LifecycleAction::SignalAll(libc::SIGKILL)]
            }
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
        survivors: Vec<Survivor>,
        gpus_free: Vec<u32>,
        now: u64,
    ) -> Vec<LifecycleAction> {
        if self.stage != SupervisionStage::Verifying {
            return Vec::new();
        }
        let begun = self.stop.as_ref().map_or(self.last_exit, |stop| stop.ordered_at);
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
        vec![
            LifecycleAction::Save,
            LifecycleAction::Record(RecordEvent::Stopped { survivors, gpus_free, took_ms }),
        ]
    }
}

/// Milliseconds between SIGTERM and SIGKILL, from the experiment.
pub(crate) fn grace_ms(spec: &LaunchSpec) -> u64 {
    milliseconds(spec.plan.experiment.launch.stop_grace_s)
}

/// Milliseconds that progress may extend them to.
fn limit_ms(spec: &LaunchSpec) -> u64 {
    milliseconds(spec.plan.experiment.launch.stop_limit_s)
}

fn milliseconds(seconds: f64) -> u64 {
    if seconds.is_finite() { (seconds.max(0.0) * 1000.0) as u64 } else { 0 }
}

#[cfg(test)]
mod tests;
