//! The state of the reducer next to the model: machines, tables, clocks, and the context in which one event
//! is handled.
//!
//! The parts are independent; `update` connects them.

use crate::event::Effect;
use crate::join::{CounterSum, TotalsMatcher};
use crate::model::{EventSubject, EventTone, HistoryLine, HostModel, Model};
use crate::report::{Report, ReportBody};
use crate::run::RunMachine;
use crate::watch::{Detector, RecordedTime};
use rankdeck_proto::link::LinkCommand;
use rankdeck_proto::message::ConsoleMessage;
use rankdeck_proto::rate::SmoothedRate;
use rankdeck_types::host::Probe;
use rankdeck_types::ids::{Generation, NodeRank, RunId, Timestamp, WallTime};
use rankdeck_types::plan::{Plan, PlanDraft, PlanError, StopGoal};
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

/// What a console is for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    Launch(Box<PlanDraft>),
    /// Attach to this run's agents on these hosts (node_rank order).
    Attach {
        run: RunId,
        /// Names of the hosts in node_rank order.
        hosts: Vec<String>,
    },
}

/// Everything but the model.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CoreState {
    /// What the console is for.
    pub goal: Goal,
    /// When to stop.
    pub until: Vec<StopGoal>,
    /// Stay when the run is over, for a screen.
    pub linger: bool,
    /// How a draft becomes a plan.
    #[serde(skip, default = "usual")]
    pub resolve: Resolve,
    /// Machine of the run.
    pub run: RunMachine,
    /// Totals and counters of this generation.
    pub join: TotalsMatcher,
    /// Counters of ranks that do not all-reduce them.
    pub addition: CounterSum,
    pub rates: Rates,
    pub watch: Detector,
    pub clock: ConsoleClock,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Rates {
    /// Of rank 0's totals, on its agent's wall clock.
    pub global: SmoothedRate,
    /// Generation of the last totals.
    pub generation: Generation,
    /// Of the steps in rank 0's own output, on its agent's wall clock, and their generation.
    #[serde(default)]
    pub own: (SmoothedRate, Generation),
    /// Charts that come from totals and evaluations; scalars of the same names are ignored.
    pub derived: std::collections::BTreeSet<String>,
    /// Global order of log lines.
    pub lines: u64,
    /// Lines of history so far.
    pub notes: u64,
}

/// Times of the console.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct ConsoleClock {
    /// When the last event was handled.
    pub last: Timestamp,
    /// Milliseconds for which this console was awake. At most [`ConsoleClock::GAP`] between two events count,
    /// so that a console that was stopped or starved does not mistake its own silence for that of the hosts.
    pub awake_ms: u64,
    /// When the last tick came.
    pub tick: Timestamp,
    /// Gauges have come since then.
    pub sampled: bool,
    /// When agents were last pinged.
    pub ping: Timestamp,
    /// Wall time at a console time, once the shell has reported it.
    pub wall: Option<(Timestamp, WallTime)>,
}

impl ConsoleClock {
    /// Milliseconds between two events that count as awake, at most.
    pub const GAP: u64 = 1000;

    /// Moves to `now`; time never goes back.
    pub fn advance(&mut self, now: Timestamp) -> Timestamp {
        let now = now.max(self.last);
        self.awake_ms += now.since(self.last).min(ConsoleClock::GAP);
        self.last = now;
        now
    }

    /// Seconds since the epoch at `now`, 0 when unknown.
    pub fn wall_time(&self, now: Timestamp) -> WallTime {
        self.wall.map_or(0.0, |(then, time)| time + (now.0 as f64 - then.0 as f64) / 1000.0)
    }
}

/// One event being handled.
pub(crate) struct EventCtx<'a> {
    pub now: Timestamp,
    pub model: &'a mut Model,
    pub session: &'a mut CoreState,
    /// What to do, so far.
    pub out: Vec<Effect>,
}

impl EventCtx<'_> {
    /// Sends to an agent.
    pub fn send(&mut self, node: NodeRank, message: ConsoleMessage) {
        self.out.push(Effect::Link { node, command: LinkCommand::Send(message) });
    }

    /// All hosts.
    pub fn nodes(&self) -> impl Iterator<Item = NodeRank> + use<> {
        (0..self.model.hosts.len() as u32).map(NodeRank)
    }

    /// One of [`EventCtx::nodes`]. Events about other hosts go no further than [`crate::update::handle`].
    pub fn host(&mut self, node: NodeRank) -> &mut HostModel {
        &mut self.model.hosts[node.index()]
    }

    /// Reports to the outside, now.
    pub fn report(&mut self, body: ReportBody) {
        self.report_at(self.model.run.generation, 0.0, body);
    }

    /// Reports what was recorded.
    pub fn report_at(&mut self, generation: Generation, time: WallTime, body: ReportBody) {
        let run = self.model.run.id.clone().unwrap_or(RunId(String::new()));
        self.out.push(Effect::Report(Box::new(Report { run, generation, time, body })));
    }

    /// Adds a line to the history.
    pub fn note(&mut self, tone: EventTone, text: impl Into<String>) {
        self.note_at(self.session.clock.wall_time(self.now), tone, text);
    }

    /// Adds a line about a record.
    pub fn note_at(&mut self, time: WallTime, tone: EventTone, text: impl Into<String>) {
        self.note_about(time, tone, text, None);
    }

    /// Adds a line that comes again and again: it makes room before others do.
    pub fn note_routine(
        &mut self,
        time: WallTime,
        tone: EventTone,
        text: impl Into<String>,
        about: Option<EventSubject>,
    ) {
        self.note_about(time, tone, text, about);
        if let Some(line) = self.model.history.back_mut() {
            line.routine = true;
        }
    }

    /// Adds a line with details.
    pub fn note_about(
        &mut self,
        time: WallTime,
        tone: EventTone,
        text: impl Into<String>,
        about: Option<EventSubject>,
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
        let is_card = |line: &&mut HistoryLine| matches!(line.subject, Some(EventSubject::Verdict(_)));
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
            Some(_) => self.session.run.has_all_plans(),
            // Nothing has been launched yet by a console that is to launch.
            None => matches!(self.session.goal, Goal::Launch(_)),
        };
        machine.took_part || machine.generation.is_some() || machine.launch_open.is_some() || !all_known
    }

    /// Nothing of the run is left on a host of which the proof of a stop is needed. An agent that has no
    /// launch may have lost its records: it must have scanned.
    pub fn is_clear(&self, host: &HostModel) -> bool {
        host.is_clear() && (!host.machine.has_no_launch() || host.machine.searched || !self.counts(host))
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
pub(crate) struct RecordContext {
    /// The host whose agent wrote it.
    pub node: NodeRank,
    /// Generation it belongs to.
    pub generation: Generation,
    /// Wall clock of the agent.
    pub time: f64,
    /// It was written before this connection began: what is measured now was not measured then.
    pub past: bool,
    /// It was written before this console first attached to the host.
    pub found: bool,
}

impl RecordContext {
    /// When it happened, for reports.
    pub fn happened(&self) -> RecordedTime {
        RecordedTime { time: self.time, past: self.past }
    }
}
