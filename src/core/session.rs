//! What the reducer keeps beside the model: machines, tables, clocks, and the context that one event is
//! handled in.
//!
//! Owner: [`crate::Core`]. The parts do not know each other; `update` connects them.

use crate::Goal;
use crate::effect::Effect;
use crate::join::{Addition, Join, Rate};
use crate::model::{HistoryLine, HostModel, Model, Subject, Tone};
use crate::report::{Report, ReportBody};
use crate::run::RunMachine;
use crate::watch::{Occurrence, Watch};
use rankdeck_proto::link::LinkCommand;
use rankdeck_proto::message::ConsoleMessage;
use rankdeck_types::ids::{Generation, NodeRank, RunId, Timestamp, WallTime};
use rankdeck_types::plan::{Plan, PlanDraft, PlanError, Until};
use rankdeck_types::probe::Probe;
use serde::{Deserialize, Serialize};

/// Most lines of history kept.
pub(crate) const HISTORY: usize = 1000;
/// Most of them that keep the card of a verdict.
const CARDS: usize = 64;
/// Longest text of a line.
const LONGEST_NOTE: usize = 2000;

/// How a draft becomes a plan; [`PlanDraft::resolve`] except in tests.
pub(crate) type Resolve = fn(&PlanDraft, &[Probe]) -> Result<Plan, PlanError>;

/// The way of a console that was read from a record.
fn usual() -> Resolve {
    PlanDraft::resolve
}

/// Everything but the model.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Session {
    /// What the console is for.
    pub goal: Goal,
    /// When to stop.
    pub until: Vec<Until>,
    /// Stay when the run is over, for a screen that people look at.
    pub linger: bool,
    /// How a draft becomes a plan.
    #[serde(skip, default = "usual")]
    pub resolve: Resolve,
    /// Machine of the run.
    pub run: RunMachine,
    /// Totals and counters of this generation.
    pub join: Join,
    /// Counters of ranks that do not all-reduce them.
    pub addition: Addition,
    pub rates: Rates,
    pub watch: Watch,
    pub clock: Clock,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Rates {
    /// Of rank 0's totals, on its agent's wall clock.
    pub global: Rate,
    /// Generation of the last totals.
    pub generation: Generation,
    /// Charts that come from totals and evaluations; scalars of the same names are ignored.
    pub derived: std::collections::BTreeSet<String>,
    /// Global order of log lines.
    pub lines: u64,
    /// Lines of history so far.
    pub notes: u64,
}

/// Times of the console.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
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
        self.out.push(Effect::Link { node, command: LinkCommand::Send(message) });
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
        self.note_about(time, tone, text, None);
    }

    /// Adds a line that comes again and again: it makes room before others do.
    pub fn note_routine(
        &mut self,
        time: WallTime,
        tone: Tone,
        text: impl Into<String>,
        about: Option<Subject>,
    ) {
        self.note_about(time, tone, text, about);
        if let Some(line) = self.model.history.back_mut() {
            line.routine = true;
        }
    }

    /// Adds a line behind which there is something to look at.
    pub fn note_about(
        &mut self,
        time: WallTime,
        tone: Tone,
        text: impl Into<String>,
        about: Option<Subject>,
    ) {
        self.session.rates.notes += 1;
        let text = rankdeck_types::words::clip(&text.into(), LONGEST_NOTE);
        let line = HistoryLine::new(self.session.rates.notes, self.now, tone, text);
        let history = &mut self.model.history;
        history.push_back(HistoryLine { time, subject: about, ..line });
        if history.len() > HISTORY {
            let oldest = history.iter().position(|line| line.routine).unwrap_or(0);
            history.remove(oldest);
            self.model.drops.history += 1;
        }
        let is_card = |line: &&mut HistoryLine| matches!(line.subject, Some(Subject::Verdict(_)));
        if let Some(oldest) = history.iter_mut().rev().filter(is_card).nth(CARDS) {
            oldest.subject = None;
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

    /// Something of the run may be, or may have been, on the host: the proof of a stop needs it (RUN-2).
    pub fn counts(&self, host: &HostModel) -> bool {
        let machine = &host.machine;
        let all_known = match self.session.run.launch {
            Some(_) => self.session.run.knows_all_plans(),
            // Nothing has been launched yet by a console that is to launch.
            None => matches!(self.session.goal, Goal::Launch(_)),
        };
        machine.took_part || machine.generation.is_some() || machine.launch_open.is_some() || !all_known
    }

    /// Nothing of the run is left on a host of which the proof of a stop is needed. An agent that knows of no
    /// launch may have lost its records: it has to have looked.
    pub fn is_clear(&self, host: &HostModel) -> bool {
        host.is_clear() && (!host.machine.knows_nothing() || host.machine.searched || !self.counts(host))
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

/// Where and when a record was written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    /// The host whose agent wrote it.
    pub node: NodeRank,
    /// Generation it belongs to.
    pub generation: Generation,
    /// Wall clock of the agent.
    pub time: f64,
    /// It was written before this connection began: what is measured now was not measured then.
    pub past: bool,
}

impl At {
    /// The same, for what is told of it.
    pub fn happened(&self) -> Occurrence {
        Occurrence { time: self.time, past: self.past }
    }
}
