//! The state machine of the run: its stages, the causes of its end, and the names of its outcomes.
//!
//! Invariants:
//! - The first cause of an end decides the outcome; a failed rank never gives exit code 0.
//! - RUN-2: a run is over only when every host has reported a verified stop, or when the deadline for that
//!   has passed. In the second case the run reports that its stop is not verified. Every host counts that may
//!   ever have had ranks, whoever excluded it, and whatever generation runs there.
//! - Facts belong to one generation and are dropped with it, all but a requested stop.
#![deny(clippy::wildcard_enum_match_arm)]

use crate::end::{self, RunEvidence};
use crate::event::StopSource;
use crate::membership::PendingLoss;
use crate::update::{NamedCheckpoint, PlacedCheckpoint};
use crate::work::FoundFile;
use rankdeck_proto::message::{FinishReason, RunEnd, StopMode};
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::Host;
use rankdeck_types::ids::{Generation, NodeRank, Rank, Timestamp, WallTime};
use rankdeck_types::plan::Plan;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most generations whose plans are remembered as known.
const GENERATIONS: usize = 4096;
/// Most checkpoint files of all generations that are remembered.
const FILES: usize = 64;
/// Most warnings about the end.
const WARNINGS: usize = 16;

/// The stage of the run, with the data that only this stage needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum RunStage {
    /// Links come up. No launch is known.
    Gathering {
        /// When the first host failed.
        failed: Option<Timestamp>,
        /// A restart that was requested before the run was found.
        next: Option<PendingGeneration>,
    },
    /// A port is being reserved on the first host; launches follow when every host is there.
    Reserving {
        generation: Generation,
        /// Checkpoint to start from.
        resume: Option<String>,
        /// Number of the request under way.
        request: Option<u64>,
        port: Option<u16>,
        /// Since when a host that takes part does not respond.
        #[serde(default)]
        away_since: Option<Timestamp>,
    },
    /// Nothing runs; the next generation begins at `until`.
    Waiting { until: Timestamp, next: PendingGeneration },
    /// Launches are out; not all ranks have been spawned.
    Launching,
    /// All ranks have been spawned.
    Running,
    /// The present generation is on its way out.
    Draining { began: Timestamp, next: Option<PendingGeneration> },
    /// The run has ended. Only a console that lingers leaves this stage.
    Over,
}

/// The generation that shall follow.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PendingGeneration {
    /// Checkpoint to begin from; `None`: from the beginning.
    pub from: Option<String>,
    /// Its plan, when it differs from the present one.
    pub plan: Option<Plan>,
    /// Milliseconds to wait once the present generation has ended.
    pub wait_ms: u64,
    /// The policy makes it; otherwise the user of this console has requested it.
    #[serde(default)]
    pub by_policy: bool,
}

impl PendingGeneration {
    /// The host gets no ranks in it.
    pub fn excludes(&self, node: NodeRank) -> bool {
        self.plan.as_ref().is_some_and(|plan| !plan.has_ranks(node))
    }
}

/// The launch of the present generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ActiveLaunch {
    pub generation: Generation,
    /// Checkpoint it started from.
    pub resume: Option<String>,
    /// Paths of it on hosts that have it elsewhere.
    #[serde(default)]
    pub placed: BTreeMap<NodeRank, String>,
    /// It was launched in the knowledge that the run had been ended before.
    #[serde(default)]
    pub after_end: bool,
    pub role: ConsoleRole,
}

/// What this console is to the present generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ConsoleRole {
    /// It launched the generation. It sends the launch again where it got lost, and makes restarts.
    Launcher {
        /// Where rank 0's store is reached.
        master_addr: String,
        master_port: u16,
    },
    /// It found the generation, which another console launched and restarts.
    Onlooker,
}

/// Why a run ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EndCause {
    /// A rank failed; see [`EndFacts::failures`].
    Failure,
    /// A host refused the launch, or could not be reached before it; or no host can be reached any more.
    LaunchFailed(String),
    /// A user of this console.
    Requested { by: StopSource },
    /// A goal of `--until` was reached; the text names it.
    Until(String),
    /// The watch found a stuck rank and the policy is to stop; the text is the verdict's.
    Stuck(String),
    /// Another console ordered an agent to stop.
    Elsewhere {
        /// `console`, `lease`, `signal`.
        by: String,
    },
}

/// One rank's failure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct FailedRank {
    pub rank: Rank,
    /// Name of its host.
    pub host: String,
    /// When, on the console's clock, seconds since the epoch.
    pub time: f64,
    /// That time is right within this, seconds.
    pub bound_s: f64,
    /// The end of its log.
    pub last_lines: Vec<String>,
    /// How likely it is a secondary failure; the lowest is reported as the reason.
    pub weight: BlamePriority,
    pub text: String,
    /// Its error message, to compare it with those of others; may be empty.
    #[serde(default)]
    pub gist: String,
    /// The rank named a mistake in the configuration.
    pub usage: bool,
}

/// Which rank is the culprit if several fail. Peers of a killed rank fail with connection errors, and over
/// SSH the peers' records may arrive first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum BlamePriority {
    /// Killed, crashed, never started, or a mistake in the configuration.
    Hard,
    /// Alive: a critical verdict had named it when those that waited for it lost their connections.
    Root,
    /// Failed by itself.
    Plain,
    /// Alive: a warning had named it when those that waited for it lost their connections or timed out. The
    /// warning proves nothing, so a rank that failed by itself comes before it.
    Late,
    /// Reports that a connection broke or a peer is gone.
    Victim,
}

/// A requested stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StopRequest {
    pub mode: StopMode,
    /// When it is (or was) ordered.
    pub at: Timestamp,
}

/// What is known about the end of the present generation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct EndFacts {
    /// Why it ends; the first cause stays.
    pub cause: Option<EndCause>,
    /// Failed ranks in the order of their records' arrival.
    pub failures: Vec<FailedRank>,
    /// The requested stop.
    pub stop: Option<StopRequest>,
    /// A user of this console requested that stop: it holds for every host and every generation.
    #[serde(rename = "asked")]
    pub by_user: bool,
    /// A stop was sent to at least one host.
    pub ordered: bool,
    /// Another console has ended the run while this one was restarting it.
    #[serde(default)]
    pub cancelled: bool,
    /// Why rank 0's loop ended.
    pub finish: Option<FinishReason>,
    /// When the first stop was ordered or the first rank ended.
    pub first_end: Option<Timestamp>,
    /// When the first host proved its stop.
    pub first_proof: Option<Timestamp>,
    /// When the latest proof came that was no history.
    pub live_proof: Option<Timestamp>,
    /// When the latest proof was written, seconds since the epoch on its agent's clock.
    #[serde(default)]
    pub proof_time: f64,
    /// Longest `took_ms` of the hosts' proofs.
    pub took_ms: u64,
    /// When ranks first reported an error, seconds since the epoch on their agents' clocks.
    pub errors: BTreeMap<Rank, f64>,
    /// Ranks that named a mistake in the configuration.
    pub usage: BTreeSet<Rank>,
    /// Ranks that ended, while stopping, in a way that no stop causes.
    pub bad_exits: u32,
    /// How the first of them did.
    #[serde(default)]
    pub bad_exit: Option<String>,
    /// The error messages of ranks.
    #[serde(default, rename = "said_last")]
    pub last_messages: Vec<(Rank, String)>,
    /// Ranks that a stop ended by SIGKILL.
    pub killed: u32,
    /// The latest signal that a console had sent to a rank.
    #[serde(default)]
    pub signalled: Option<(Rank, i32)>,
    /// How the console called the end that launched this generation.
    #[serde(rename = "told")]
    pub recorded_ending: Option<RunEnd>,
    /// When the first agent recorded the order to stop, seconds since the epoch on the console's clock.
    #[serde(default)]
    pub stopped_at: Option<WallTime>,
    /// The critical verdict that stood when the limit of `--until` was reached.
    #[serde(default)]
    pub stuck: Option<String>,
    /// Hosts whose ranks have not read the checkpoint that they resume from.
    #[serde(default)]
    pub unread: BTreeSet<NodeRank>,
    /// Hosts that have reported their checkpoint files, and whether they have searched everywhere.
    #[serde(default)]
    pub searched: BTreeMap<NodeRank, bool>,
    /// What is odd about the end, though no failure.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Ranks that died, until the others have confirmed that they continue.
    #[serde(default)]
    pub losses: Vec<PendingLoss>,
}

/// A restart that was requested and waits for hosts. Meanwhile, the run continues unchanged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RequestedRestart {
    /// Checkpoint to begin from.
    pub from: Option<String>,
    /// Names of hosts to exclude.
    pub exclude: BTreeSet<String>,
    /// Hosts to add; they are being connected.
    pub add: Vec<NodeRank>,
    /// The experiment with changed keys; `None`: as it is.
    #[serde(default)]
    pub experiment: Option<Box<Experiment>>,
    /// Ranks compare every collective before they begin it.
    #[serde(default)]
    pub checked: bool,
    /// Until when hosts that do not respond are waited for; `None`: all respond.
    #[serde(default)]
    pub until: Option<Timestamp>,
}

impl RequestedRestart {
    /// On the same hosts, with the same keys.
    pub fn is_plain(&self) -> bool {
        self.exclude.is_empty() && self.add.is_empty() && self.experiment.is_none()
    }
}

/// Restarts by policy, for the guard against restarts that lead nowhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RestartBudget {
    /// Restarts so far.
    pub made: u32,
    /// Restarts in a row that made no progress.
    pub barren: u32,
    /// How far the run has come over all generations.
    pub reached: RunProgress,
    /// The same when the policy was last asked.
    pub before: RunProgress,
}

/// How far a run has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunProgress {
    /// Furthest training iteration of a report.
    pub train_iter: u64,
    /// Furthest environment step of a report.
    pub env_step: u64,
    /// Training iteration after the one that the furthest checkpoint holds.
    pub checkpoint: u64,
}

impl RunProgress {
    /// Takes the maximum of each.
    pub fn advance(&mut self, to: RunProgress) {
        self.train_iter = self.train_iter.max(to.train_iter);
        self.env_step = self.env_step.max(to.env_step);
        self.checkpoint = self.checkpoint.max(to.checkpoint);
    }

    /// Further than `before` in at least one respect.
    pub fn is_beyond(&self, before: &RunProgress) -> bool {
        self.train_iter > before.train_iter
            || self.env_step > before.env_step
            || self.checkpoint > before.checkpoint
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RunMachine {
    pub stage: RunStage,
    /// The present generation, once there is one.
    pub launch: Option<ActiveLaunch>,
    /// What is known about the end of the present generation.
    pub facts: EndFacts,
    /// A requested restart that waits for hosts. The run goes through its stages meanwhile.
    pub change: Option<RequestedRestart>,
    /// Hosts that were ever added.
    pub added: BTreeMap<NodeRank, Host>,
    /// Generations whose plan is known, at most [`GENERATIONS`].
    plans: BTreeSet<Generation>,
    pub tries: RestartBudget,
    /// Evaluations so far, all generations.
    pub evals: u64,
    /// Since when a goal has counted nothing while a program runs.
    #[serde(default)]
    pub uncounted: Option<Timestamp>,
    /// That was reported.
    #[serde(default)]
    pub uncounted_reported: bool,
    /// Checkpoint files that hosts have found, newest last, all generations.
    #[serde(default)]
    pub files: VecDeque<FoundFile>,
    /// Number of the latest request for a port or a checkpoint.
    pub requests: u64,
    /// The checkpoint of the generation that is being reserved.
    #[serde(default)]
    pub placed: Option<PlacedCheckpoint>,
    /// The checkpoint that a requested restart names, while hosts are asked for it.
    #[serde(default)]
    pub check: Option<NamedCheckpoint>,
    /// Generations in a row that did not read their checkpoint, and the latest of them.
    #[serde(default)]
    pub unread: (u32, Generation),
    /// The policy made the generation that is being reserved, or the present one.
    #[serde(default)]
    pub by_policy: bool,
    /// A console has ended the run in the present generation.
    #[serde(default)]
    pub ended: bool,
    /// `Exit` was given; nothing more is done.
    pub exited: bool,
}

impl RunMachine {
    /// A run of which nothing is known.
    pub fn new() -> RunMachine {
        RunMachine {
            stage: RunStage::Gathering { failed: None, next: None },
            launch: None,
            facts: EndFacts::default(),
            change: None,
            added: BTreeMap::new(),
            plans: BTreeSet::new(),
            tries: RestartBudget::default(),
            evals: 0,
            uncounted: None,
            uncounted_reported: false,
            files: VecDeque::new(),
            requests: 0,
            placed: None,
            check: None,
            unread: (0, Generation(0)),
            by_policy: false,
            ended: false,
            exited: false,
        }
    }

    /// Is this the present generation?
    pub fn is_current(&self, generation: Generation) -> bool {
        self.launch.as_ref().is_some_and(|launch| launch.generation == generation)
    }

    /// Keeps a checkpoint file that a host has found; the oldest makes room.
    pub fn add_file(&mut self, file: FoundFile) {
        self.drop_file(file.node, &file.path);
        let at = self.files.partition_point(|known| known.time <= file.time);
        self.files.insert(at, file);
        if self.files.len() > FILES {
            self.files.pop_front();
        }
    }

    /// Forgets a checkpoint file of a host.
    pub fn drop_file(&mut self, node: NodeRank, path: &str) {
        self.files.retain(|known| known.node != node || known.path != path);
    }

    /// This console launched the present generation.
    pub fn is_launcher(&self) -> bool {
        self.launch.as_ref().is_some_and(|launch| launch.role != ConsoleRole::Onlooker)
    }

    /// The plan of `generation` is known.
    pub fn record_plan(&mut self, generation: Generation) {
        if self.plans.len() < GENERATIONS {
            self.plans.insert(generation);
        }
    }

    /// The plans of all generations so far are known: a host to which none of them gave ranks has never had any.
    pub fn has_all_plans(&self) -> bool {
        let so_far = self.launch.as_ref().map(|launch| launch.generation.index() + 1);
        so_far.is_some_and(|so_far| self.plans.range(..Generation(so_far as u32)).count() == so_far)
    }

    /// The generation that shall follow the present one.
    pub fn next(&self) -> Option<&PendingGeneration> {
        match &self.stage {
            RunStage::Gathering { next, .. } | RunStage::Draining { next, .. } => next.as_ref(),
            RunStage::Waiting { next, .. } => Some(next),
            RunStage::Reserving { .. } | RunStage::Launching | RunStage::Running | RunStage::Over => None,
        }
    }

    /// Takes back that another generation shall follow, while the present one lasts.
    pub fn take_next(&mut self) -> Option<PendingGeneration> {
        match &mut self.stage {
            RunStage::Gathering { next, .. } | RunStage::Draining { next, .. } => next.take(),
            RunStage::Waiting { .. }
            | RunStage::Reserving { .. }
            | RunStage::Launching
            | RunStage::Running
            | RunStage::Over => None,
        }
    }

    /// The present generation is on its way out since `now`, unless it was before; `next` shall follow.
    pub fn drain(&mut self, now: Timestamp, next: Option<PendingGeneration>) {
        let began = if let RunStage::Draining { began, .. } = self.stage { began } else { now };
        self.stage = RunStage::Draining { began, next };
    }

    /// A stop was requested or a rank failed: what ranks do now is part of the way out.
    pub fn is_ending(&self) -> bool {
        self.facts.cause.is_some() || self.next().is_some() || self.stage == RunStage::Over
    }
}

impl EndFacts {
    /// Notes why the run ends, unless that is known. A failure replaces a stop by another console:
    /// consoles order a stop after a failure, and another host's record of the order may arrive before the
    /// failure itself. A request to this console replaces it, too.
    pub fn blame(&mut self, cause: EndCause) {
        let weak = matches!(self.cause, Some(EndCause::Elsewhere { .. }) | None);
        let strong = matches!(cause, EndCause::Failure | EndCause::Requested { .. });
        if self.cause.is_none() || (weak && strong) {
            self.cause = Some(cause);
        }
    }

    /// Requests a stop at `at`; a harder one replaces a softer one, an earlier one of the same kind a later one.
    pub fn request_stop(&mut self, mode: StopMode, at: Timestamp) {
        self.stop = match self.stop {
            Some(stop) if stop.mode > mode || (stop.mode == mode && stop.at <= at) => Some(stop),
            Some(_) | None => Some(StopRequest { mode, at }),
        };
    }

    /// Every rank left by itself.
    pub fn is_clean(&self) -> bool {
        self.recorded_ending
            .as_ref()
            .map_or(self.killed == 0 && self.bad_exits == 0 && self.failures.is_empty(), |ending| {
                ending.clean
            })
    }

    /// A rank failed. An earlier failure of the same rank with the same priority stays.
    pub fn failed(&mut self, failure: FailedRank) {
        let is_known = |known: &FailedRank| known.rank == failure.rank && known.weight <= failure.weight;
        if !self.failures.iter().any(is_known) {
            self.failures.push(failure);
        }
    }

    /// The failure to report as the reason.
    pub fn culprit(&self) -> Option<&FailedRank> {
        self.failures.iter().min_by(|a, b| a.weight.cmp(&b.weight).then(a.time.total_cmp(&b.time)))
    }

    /// Ranks with the same error message as the culprit: they failed by themselves with the same error.
    pub fn alike(&self) -> Vec<Rank> {
        let by_itself = |first: &&FailedRank| first.weight != BlamePriority::Victim && !first.gist.is_empty();
        let Some(first) = self.culprit().filter(by_itself) else { return Vec::new() };
        let failures = self.failures.iter().map(|failure| (failure.rank, &failure.gist));
        let all = failures.chain(self.last_messages.iter().map(|(rank, gist)| (*rank, gist)));
        let alike = all.filter(|(rank, gist)| *rank != first.rank && **gist == first.gist);
        let ranks: BTreeSet<Rank> = alike.map(|(rank, _)| rank).collect();
        ranks.into_iter().collect()
    }

    /// A rank ended, while stopping, in a way that no stop causes.
    pub fn ended_badly(&mut self, rank: Rank, gist: String, how: String) {
        self.bad_exits += 1;
        self.last_messages.extend((!gist.is_empty()).then_some((rank, gist)));
        self.bad_exit.get_or_insert(how);
    }

    /// Something about the end is odd, though no failure.
    pub fn warn(&mut self, text: String) {
        if self.warnings.len() < WARNINGS && !self.warnings.contains(&text) {
            self.warnings.push(text);
        }
    }

    /// How the run is called, all hosts having proved their stop.
    pub fn ending(&self) -> RunEnd {
        if let Some(ending) = &self.recorded_ending {
            return ending.clone();
        }
        end::of_run(&RunEvidence {
            cause: self.cause.as_ref(),
            ordered: self.ordered,
            culprit: self.culprit().map(|failure| (failure.text.as_str(), failure.usage)),
            bad_exit: self.bad_exit.as_deref(),
            stuck: self.stuck.as_deref(),
            finish: self.finish,
            signalled: self.signalled,
        })
    }
}
