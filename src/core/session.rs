//! What the reducer keeps beside the model: machines, tables, clocks, and the context that one event is
//! handled in.
//!
//! Owner: [`crate::Core`]. The parts do not know each other; `update` connects them.

use crate::Goal;
use crate::effect::Effect;
use crate::join::{Join, Rate};
use crate::model::{HistoryLine, HostModel, Model, Tone};
use crate::report::{Report, ReportBody};
use crate::run::RunMachine;
use crate::watch::Watch;
use rankdeck_proto::message::ConsoleMessage;
use rankdeck_types::ids::{Generation, NodeRank, RunId, Timestamp, WallTime};
use rankdeck_types::plan::{Plan, PlanDraft, PlanError, Until};
use rankdeck_types::probe::Probe;

/// Most lines of history kept.
pub(crate) const HISTORY: usize = 1000;

/// How a draft becomes a plan; [`PlanDraft::resolve`] except in tests.
pub(crate) type Resolve = fn(&PlanDraft, &[Probe]) -> Result<Plan, PlanError>;

/// Everything but the model.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    /// What the console is for.
    pub goal: Goal,
    /// When to stop.
    pub until: Vec<Until>,
    /// Stay when the run is over, for a screen that people look at.
    pub linger: bool,
    /// How a draft becomes a plan.
    pub resolve: Resolve,
    /// Machine of the run.
    pub run: RunMachine,
    /// Totals and counters of this generation.
    pub join: Join,
    pub rates: Rates,
    pub watch: Watch,
    pub clock: Clock,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Rates {
    /// Of rank 0's totals, on its agent's wall clock.
    pub global: Rate,
    /// Generation of the last totals.
    pub generation: Generation,
    /// Charts that come from totals and evaluations; scalars of the same names are ignored.
    pub derived: std::collections::BTreeSet<&'static str>,
    /// Global order of log lines.
    pub lines: u64,
}

/// Times of the console.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Clock {
    /// When the last event was handled.
    pub last: Timestamp,
    /// Milliseconds for which this console was awake. At most [`Clock::GAP`] between two events count, so
    /// that a console that was stopped or starved does not mistake its own silence for that of the hosts.
    pub awake_ms: u64,
    /// When the last tick came.
    pub tick: Timestamp,
    /// Gauges have come since then.
    pub sampled: bool,
    /// When agents were last pinged.
    pub ping: Timestamp,
    /// Wall time at a console time, when the shell has told it.
    pub wall: Option<(Timestamp, WallTime)>,
}

impl Clock {
    /// Milliseconds between two events that count as awake, at most.
    pub const GAP: u64 = 1000;

    /// Moves to `now`; time never goes back.
    pub fn advance(&mut self, now: Timestamp) -> Timestamp {
        let now = now.max(self.last);
        self.awake_ms += now.since(self.last).min(Clock::GAP);
        self.last = now;
        now
    }

    /// Seconds since the epoch at `now`, 0 when unknown.
    pub fn wall_time(&self, now: Timestamp) -> WallTime {
        self.wall.map_or(0.0, |(then, time)| time + (now.0 as f64 - then.0 as f64) / 1000.0)
    }
}

/// One event being handled.
pub(crate) struct Ctx<'a> {
    pub now: Timestamp,
    pub model: &'a mut Model,
    pub session: &'a mut Session,
    /// What to do, so far.
    pub out: Vec<Effect>,
}

impl Ctx<'_> {
    /// Sends to an agent.
    pub fn send(&mut self, node: NodeRank, message: ConsoleMessage) {
        self.out.push(Effect::Send { node, message });
    }

    /// All hosts.
    pub fn nodes(&self) -> impl Iterator<Item = NodeRank> + use<> {
        (0..self.model.hosts.len() as u32).map(NodeRank)
    }

    /// One of [`Ctx::nodes`]. Events about other hosts go no further than [`crate::update::handle`].
    pub fn host(&mut self, node: NodeRank) -> &mut HostModel {
        &mut self.model.hosts[node.index()]
    }

    /// Tells the outside, now.
    pub fn tell(&mut self, body: ReportBody) {
        self.tell_at(self.model.run.generation, 0.0, body);
    }

    /// Tells the outside what a record said.
    pub fn tell_at(&mut self, generation: Generation, time: WallTime, body: ReportBody) {
        let run = self.model.run.id.clone().unwrap_or(RunId(String::new()));
        self.out.push(Effect::Tell(Box::new(Report { run, generation, time, body })));
    }

    /// Adds a line to the history.
    pub fn note(&mut self, tone: Tone, text: impl Into<String>) {
        self.note_at(self.session.clock.wall_time(self.now), tone, text);
    }

    /// Adds a line that a record said.
    pub fn note_at(&mut self, time: WallTime, tone: Tone, text: impl Into<String>) {
        let line =
            HistoryLine { at: self.now, time, tone, text: rankdeck_types::words::clip(&text.into(), 400) };
        self.model.history.push_back(line);
        if self.model.history.len() > HISTORY {
            self.model.history.pop_front();
            self.model.drops.history += 1;
        }
    }

    /// Name of a host, for sentences.
    pub fn host_name(&self, node: NodeRank) -> String {
        self.model.hosts[node.index()].name.clone()
    }

    /// The host takes part in the present generation, or shall.
    pub fn is_member(&self, host: &HostModel) -> bool {
        match &self.model.plan {
            Some(plan) => plan.has_ranks(host.node_rank),
            None => host.excluded.is_none(),
        }
    }

    /// Orders reach all hosts that take part.
    pub fn all_live(&self) -> bool {
        let mut members = self.members().peekable();
        members.peek().is_some() && members.all(HostModel::is_live)
    }

    /// The hosts that take part.
    pub fn members(&self) -> impl Iterator<Item = &HostModel> {
        self.model.hosts.iter().filter(|host| self.is_member(host))
    }
}

/// Times that decide, ms, from the plan or its defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Between the polite and the hard signal.
    pub grace: u64,
    /// Silence after which a host is lost.
    pub lost: u64,
    /// Wait after which a rank is behind.
    pub behind: u64,
    /// Start-up and rendezvous.
    pub init: u64,
    /// Evaluation and checkpoint without progress.
    pub rank0: u64,
}

impl Limits {
    /// From the model's plan.
    pub fn of(model: &Model) -> Limits {
        let ms = |seconds: f64| (seconds.max(0.0) * 1000.0) as u64;
        let (watch, grace) = match &model.plan {
            Some(plan) => (plan.experiment.watch.clone(), plan.experiment.launch.stop_grace_s),
            None => {
                let launch = rankdeck_types::experiment::Launch::default();
                (rankdeck_types::experiment::Watch::default(), launch.stop_grace_s)
            }
        };
        Limits {
            grace: ms(grace),
            lost: ms(watch.lost_after_s),
            behind: ms(watch.behind_after_s),
            init: ms(watch.init_budget_s),
            rank0: ms(watch.rank0_budget_s),
        }
    }

    /// How long a stop may take before a silent host counts as unreachable.
    pub fn drain(&self) -> u64 {
        self.grace.max(self.lost).saturating_add(10_000)
    }
}
