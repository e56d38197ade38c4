//! The life of a generation on one host, as a pure state machine: what happened goes in, what to do comes
//! out.
//!
//! Owner: the agent's loop, which carries out the [`Action`]s. Times are milliseconds on the agent's
//! monotonic clock. Invariants:
//! - LIFE-1: `Stopped` is recorded exactly when every rank's end is recorded and a search has ended.
//! - LIFE-2: a generation begins only when nothing of the former one is left.
//! - LIFE-3: once a stop is ordered it may get harder, never softer, and its last stage is SIGKILL.
//! - LIFE-4: a rank that failed while no console looks on does not leave its neighbours waiting without end.

use rankdeck_proto::message::{Exit, LaunchSpec, RankSnapshot, Record, RecordEvent, StopMode, Survivor};
use rankdeck_types::ids::{Generation, LocalRank, Rank};

use crate::proc::Ident;
use rankdeck_types::error::HintedError;

/// How long ranks may take to vanish after SIGKILL before the survivors are reported.
const KILL_PATIENCE_MS: u64 = 10_000;
/// Between two rounds of SIGKILL.
const KILL_AGAIN_MS: u64 = 500;
/// Between two looks at survivors.
const LOOK_AGAIN_MS: u64 = 1_000;
/// Longest grace that an order may ask for: an hour.
const MOST_GRACE_MS: u64 = 3_600_000;

/// What the loop is to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Write this record.
    Record(RecordEvent),
    /// Signal the processes of the ranks themselves.
    SignalRanks(Vec<Ident>, i32),
    /// Signal every process of the run on this host.
    SignalAll(i32),
    /// Collect a rank's last log lines and events, then call [`Lifecycle::exit_info`].
    CollectExitInfo {
        /// The rank.
        rank: Rank,
    },
    /// End what a rank left behind; politely when it returned 0.
    EndOrphans {
        /// The rank.
        rank: Rank,
        /// Its process.
        ident: Ident,
        /// SIGTERM first.
        polite: bool,
    },
    /// Kill and search until nothing of the run is left, then call [`Lifecycle::searched`].
    VerifyStop,
    /// The manifest has to say something new.
    Save,
}

/// One rank of this host.
#[derive(Debug, Clone, PartialEq)]
pub struct RankLife {
    /// The rank.
    pub rank: Rank,
    /// Its index on this host.
    pub local_rank: LocalRank,
    /// Its GPU.
    pub gpu: Option<u32>,
    /// Its process, once it exists.
    pub ident: Option<Ident>,
    /// How it ended.
    pub exit: Option<Exit>,
    ended_at: u64,
    recorded: bool,
}

impl RankLife {
    /// It has a process that has not ended.
    pub fn lives(&self) -> bool {
        self.ident.is_some() && self.exit.is_none()
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    Idle,
    Running,
    Verifying,
    Survivors { look_at: u64 },
    Over,
}

#[derive(Debug, Clone, PartialEq)]
struct Stop {
    mode: StopMode,
    ordered_at: u64,
    kill_at: u64,
    next_kill: u64,
    /// Survivors were recorded.
    told: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Lifecycle {
    spec: Option<Box<LaunchSpec>>,
    ranks: Vec<RankLife>,
    stage: Stage,
    stop: Option<Stop>,
    failed: Option<(Rank, u64)>,
    last_exit: u64,
}

impl Default for Lifecycle {
    fn default() -> Lifecycle {
        Lifecycle {
            spec: None,
            ranks: Vec::new(),
            stage: Stage::Idle,
            stop: None,
            failed: None,
            last_exit: 0,
        }
    }
}

impl Lifecycle {
    /// The state that the records of an earlier agent end in. Ranks that were never seen to end died with it.
    pub fn replay(&mut self, record: &Record) {
        match &record.event {
            RecordEvent::Launched { spec } => {
                self.ranks = planned_ranks(spec);
                self.spec = Some(spec.clone());
                self.stage = Stage::Running;
            }
            RecordEvent::RankSpawned { rank, pid, .. } => {
                if let Some(life) = self.life(*rank) {
                    life.ident = Some(Ident { pid: *pid, start: 0 });
                }
            }
            RecordEvent::RankExited { rank, exit, .. } => {
                if let Some(life) = self.life(*rank) {
                    life.exit = Some(exit.clone());
                    life.recorded = true;
                }
            }
            RecordEvent::Stopped { .. } if self.stage == Stage::Running => self.stage = Stage::Over,
            _ => {}
        }
    }

    /// After the replay: the records that the former agent could not write any more. What it had started was
    /// ended before this one began to serve, all but the `survivors`.
    pub fn close_former(&mut self, survivors: Vec<Survivor>) -> Vec<RecordEvent> {
        if self.stage != Stage::Running && survivors.is_empty() {
            return Vec::new();
        }
        let mut events = vec![RecordEvent::Notice {
            text: "the former agent of this host died; what it had started was killed".into(),
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
        self.stage = Stage::Over;
        if !survivors.is_empty() {
            self.survive(0, 0);
        }
        events.push(RecordEvent::Stopped { survivors, gpus_free: Vec::new(), took_ms: 0 });
        events
    }

    /// Survivors have been told once, and are looked at again until they are gone.
    fn survive(&mut self, begun: u64, now: u64) {
        let known =
            Stop { mode: StopMode::Kill, ordered_at: begun, kill_at: now, next_kill: now, told: false };
        self.stop.get_or_insert(known).told = true;
        self.stage = Stage::Survivors { look_at: now + LOOK_AGAIN_MS };
    }

    /// The latest launch.
    pub fn spec(&self) -> Option<&LaunchSpec> {
        self.spec.as_deref()
    }

    /// The generation of the latest launch, 0 before the first.
    pub fn generation(&self) -> Generation {
        self.spec.as_ref().map_or(Generation(0), |spec| spec.generation)
    }

    /// This host's ranks of that generation.
    pub fn ranks(&self) -> &[RankLife] {
        &self.ranks
    }

    /// For a console that attaches.
    pub fn snapshot(&self) -> Vec<RankSnapshot> {
        let seen = |life: &RankLife| life.exit.clone().filter(|_| life.recorded);
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
        matches!(self.stage, Stage::Idle | Stage::Over)
    }

    /// A generation runs, whether it is being stopped or not.
    pub fn is_running(&self) -> bool {
        self.stage == Stage::Running
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
        matches!(self.stage, Stage::Survivors { .. })
    }

    /// Begins a generation. Repeating the launch of the latest generation changes nothing, so that a console
    /// may send it again.
    pub fn launch(&mut self, spec: Box<LaunchSpec>) -> Result<Vec<Action>, HintedError> {
        if let Some(latest) = &self.spec {
            if latest.generation == spec.generation && **latest == *spec {
                return Ok(Vec::new());
            }
            if spec.generation <= latest.generation {
                return Err(HintedError::new(
                    format!(
                        "generation {} was launched before; the latest is {}",
                        spec.generation, latest.generation
                    ),
                    "attach again and launch the next generation",
                ));
            }
        }
        if !self.is_quiet() {
            return Err(HintedError::new(
                format!("generation {} is not over on this host", self.generation()),
                "stop it first, then launch again",
            ));
        }
        self.ranks = planned_ranks(&spec);
        if self.ranks.is_empty() {
            return Err(HintedError::new(
                format!("the plan has no ranks on node {}", spec.node_rank),
                "give the host `gpus` or `nproc` in hosts.toml",
            ));
        }
        self.stage = Stage::Running;
        self.stop = None;
        self.failed = None;
        let record = Action::Record(RecordEvent::Launched { spec: spec.clone() });
        self.spec = Some(spec);
        Ok(vec![record, Action::Save])
    }

    /// A rank's process exists, or could not be made.
    pub fn spawned(&mut self, rank: Rank, result: Result<Ident, String>, now: u64) -> Vec<Action> {
        let stop = self.stop.clone();
        let Some(life) = self.life(rank) else { return Vec::new() };
        match result {
            Ok(ident) => {
                life.ident = Some(ident);
                let local_rank = life.local_rank;
                let mut actions = vec![
                    Action::Record(RecordEvent::RankSpawned { rank, local_rank, pid: ident.pid }),
                    Action::Save,
                ];
                if let Some(stop) = stop {
                    let signal = if stop.mode == StopMode::Kill { libc::SIGKILL } else { libc::SIGTERM };
                    actions.push(Action::SignalRanks(vec![ident], signal));
                }
                actions
            }
            Err(error) => {
                life.exit = Some(Exit::NotStarted { error });
                life.ended_at = now;
                self.note_end(rank, true, now);
                vec![Action::CollectExitInfo { rank }]
            }
        }
    }

    /// A rank's process was reaped.
    pub fn reaped(&mut self, pid: u32, exit: Exit, now: u64) -> Vec<Action> {
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
            Action::CollectExitInfo { rank },
            Action::EndOrphans { rank, ident, polite: clean && self.stop.is_none() },
        ]
    }

    fn note_end(&mut self, rank: Rank, abnormal: bool, now: u64) {
        self.last_exit = now;
        if abnormal && self.failed.is_none() {
            self.failed = Some((rank, now));
        }
    }

    /// A rank's end can be recorded: these are its last log lines.
    pub fn exit_info(&mut self, rank: Rank, last_lines: Vec<String>, now: u64) -> Vec<Action> {
        let stopping = self.stop.is_some();
        let Some(life) = self.life(rank).filter(|life| !life.recorded) else { return Vec::new() };
        let Some(exit) = life.exit.clone() else { return Vec::new() };
        life.recorded = true;
        let pid = life.ident.map_or(0, |ident| ident.pid);
        let ago_ms = now.saturating_sub(life.ended_at);
        let mut actions = vec![
            Action::Record(RecordEvent::RankExited {
                rank,
                pid,
                exit,
                last_lines,
                stopping,
                ago_ms,
                with_agent: false,
            }),
            Action::Save,
        ];
        if self.stage == Stage::Running && self.ranks.iter().all(|life| life.recorded) {
            self.stage = Stage::Verifying;
            actions.push(Action::VerifyStop);
        }
        actions
    }

    /// Orders a stop.
    pub fn stop(&mut self, mode: StopMode, grace_ms: u64, by: &str, now: u64) -> Vec<Action> {
        let order = RecordEvent::StopOrdered { mode, by: by.to_owned() };
        let kill_at =
            if mode == StopMode::Kill { now } else { now.saturating_add(grace_ms.min(MOST_GRACE_MS)) };
        match self.stage {
            Stage::Over => Vec::new(),
            Stage::Idle => {
                self.stop = Some(Stop { mode, ordered_at: now, kill_at, next_kill: kill_at, told: false });
                self.stage = Stage::Verifying;
                vec![Action::Record(order), Action::VerifyStop]
            }
            Stage::Verifying => Vec::new(),
            Stage::Survivors { .. } => {
                self.stage = Stage::Verifying;
                if let Some(stop) = &mut self.stop {
                    stop.told = false;
                }
                vec![Action::Record(order), Action::VerifyStop]
            }
            Stage::Running => {
                let known = self.stop.as_ref();
                if known
                    .is_some_and(|stop| stop.mode > mode || (stop.mode == mode && stop.kill_at <= kill_at))
                {
                    return Vec::new();
                }
                let ordered_at = known.map_or(now, |stop| stop.ordered_at);
                self.failed = None;
                self.stop = Some(Stop { mode, ordered_at, kill_at, next_kill: kill_at, told: false });
                let mut actions = vec![Action::Record(order)];
                match mode {
                    StopMode::Clean => actions.push(Action::SignalRanks(self.live(), libc::SIGTERM)),
                    StopMode::Terminate => actions.push(Action::SignalAll(libc::SIGTERM)),
                    StopMode::Kill => {}
                }
                actions.extend(self.tick(now, false, 0));
                actions
            }
        }
    }

    fn live(&self) -> Vec<Ident> {
        self.ranks.iter().filter(|life| life.lives()).filter_map(|life| life.ident).collect()
    }

    /// Time passed. `attended`: a console looks on. `unattended_ms`: how long neighbours of a failed rank may
    /// wait for orders.
    pub fn tick(&mut self, now: u64, attended: bool, unattended_ms: u64) -> Vec<Action> {
        match (self.stage, &mut self.stop) {
            (Stage::Survivors { look_at }, _) if now >= look_at => {
                self.stage = Stage::Verifying;
                vec![Action::VerifyStop]
            }
            (Stage::Running, Some(stop)) if now >= stop.kill_at.saturating_add(KILL_PATIENCE_MS) => {
                self.stage = Stage::Verifying;
                vec![Action::VerifyStop]
            }
            (Stage::Running, Some(stop)) if now >= stop.next_kill => {
                stop.next_kill = now + KILL_AGAIN_MS;
                vec![Action::SignalAll(libc::SIGKILL)]
            }
            (Stage::Running, None) => match &mut self.failed {
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

    /// A search for processes of the run has ended.
    pub fn searched(&mut self, survivors: Vec<Survivor>, gpus_free: Vec<u32>, now: u64) -> Vec<Action> {
        if self.stage != Stage::Verifying {
            return Vec::new();
        }
        let begun = self.stop.as_ref().map_or(self.last_exit, |stop| stop.ordered_at);
        if !survivors.is_empty() {
            let told = self.stop.as_ref().is_some_and(|stop| stop.told);
            self.survive(begun, now);
            if told {
                return Vec::new();
            }
        } else if self.ranks.iter().any(|life| !life.recorded) {
            // Gone from /proc, but not yet reaped, spawned or recorded: their ends come first (LIFE-1).
            self.stage = Stage::Survivors { look_at: now + KILL_AGAIN_MS };
            return Vec::new();
        } else {
            self.stage = if self.spec.is_some() { Stage::Over } else { Stage::Idle };
            self.stop = None;
            self.failed = None;
        }
        let took_ms = now.saturating_sub(begun);
        vec![Action::Record(RecordEvent::Stopped { survivors, gpus_free, took_ms }), Action::Save]
    }

    fn life(&mut self, rank: Rank) -> Option<&mut RankLife> {
        self.ranks.iter_mut().find(|life| life.rank == rank)
    }
}

/// Milliseconds between the polite and the hard signal, as the experiment says.
pub fn grace_ms(spec: &LaunchSpec) -> u64 {
    let seconds = spec.plan.experiment.launch.stop_grace_s;
    if seconds.is_finite() { (seconds.max(0.0) * 1000.0) as u64 } else { 0 }
}

fn planned_ranks(spec: &LaunchSpec) -> Vec<RankLife> {
    spec.plan
        .ranks_of(spec.node_rank)
        .map(|planned| RankLife {
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
pub fn decode(status: i32, out_of_memory: bool) -> Exit {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        Exit::Signal { signal, out_of_memory: out_of_memory && signal == libc::SIGKILL }
    } else {
        Exit::Code { code: libc::WEXITSTATUS(status) }
    }
}

#[cfg(test)]
#[path = "lifecycle_tests.rs"]
mod tests;
