//! The life of a generation on one host, as a pure state machine: what happened goes in, what to do comes
//! out.
//!
//! Owner: the agent's loop, which carries out the [`Action`]s. Times are milliseconds on the agent's
//! monotonic clock. Invariants:
//! - LIFE-1: `Stopped` is recorded exactly when every rank's end is recorded and a search has ended.
//! - LIFE-2: a generation begins only when nothing of the former one is left.
//! - LIFE-3: once a stop is ordered it may get harder, never softer, and its last stage is SIGKILL.
//! - LIFE-5: the grace of a clean stop counts from the ranks' last progress, up to `launch.stop_limit_s`.
//! - LIFE-6: a clean stop waits for an iteration under way: at least one and a half times the longest that
//!   ranks have told lately, within that limit. Of a program that tells none, the configured grace holds.
//! - LIFE-7: on a host that has no core for a rank, a clean stop gives up to four times the grace.
//! - LIFE-4: a rank that failed while no console looks on does not leave its neighbours waiting without end.

mod former;
mod rank_life;
mod rhythm;
mod stop;
#[cfg(test)]
mod tests;

pub use rank_life::{RankLife, decode};
pub use stop::grace_ms;

use crate::proc::Ident;
use crate::supervise::setup;
use rank_life::planned_ranks;
use rankdeck_proto::message::{Exit, LaunchSpec, RankSnapshot, RecordEvent, StopMode};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Generation, Rank};
use rankdeck_types::setup::Setup;
use rhythm::Rhythm;
use std::ffi::OsString;
use stop::Stop;

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
    CollectExitInfo { rank: Rank },
    /// End what a rank left behind; politely when it returned 0.
    EndOrphans {
        rank: Rank,
        /// Its process.
        ident: Ident,
        /// SIGTERM first.
        polite: bool,
    },
    /// Kill and search until nothing of the run is left, then call [`Lifecycle::searched`].
    VerifyStop,
    /// The manifest has to say something new. It comes before the record of the same change: who has seen
    /// the record finds it in the manifest (SPOOL-6).
    Save,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    Idle,
    Running,
    Verifying,
    Survivors { look_at: u64 },
    Over,
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
    rhythm: Rhythm,
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
            rhythm: Rhythm::default(),
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

    /// The program of a rank is no child of the rank's own process: a container's monitor starts it.
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

    /// A rank has told how many iterations it has done.
    pub fn iterated(&mut self, rank: Rank, iteration: u64, now: u64) {
        if self.is_running() {
            self.rhythm.heard(rank, iteration, now);
        }
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
        self.rhythm = Rhythm::default();
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
        Ok(vec![Action::Save, record])
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
                    Action::Save,
                    Action::Record(RecordEvent::RankSpawned { rank, local_rank, pid: ident.pid }),
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
            Action::Save,
            Action::Record(RecordEvent::RankExited {
                rank,
                pid,
                exit,
                last_lines,
                stopping,
                ago_ms,
                with_agent: false,
            }),
        ];
        if self.stage == Stage::Running && self.ranks.iter().all(|life| life.recorded) {
            self.stage = Stage::Verifying;
            actions.push(Action::VerifyStop);
        }
        actions
    }

    fn life(&mut self, rank: Rank) -> Option<&mut RankLife> {
        self.ranks.iter_mut().find(|life| life.rank == rank)
    }
}
