//! The pure core: no clock, no I/O, no tokio. Events in, effects out, a model to display.
//!
//! The path of an event: `link` → [`event::Event`] → [`Core::handle`] → [`event::Effect`]s. The screen reads
//! [`Core::model`].
//!
//! Map: `update` reduces events (one file per cause; `update::reconcile` alone decides what follows), `host`
//! and `run` are the state machines, `join` pairs totals with the ranks' counters, `watch` finds verdicts
//! (four stages, one way), `reason` has the table of their reasons, `end` has the tables of how ranks and runs
//! end, `work` decides what is saved, `session` holds the reducer's state next to the model, `trace` records
//! and replays.
//!
//! Invariants:
//! - PURE-1: the same goal and the same `(time, event)` list give the same model and the same effects.
//! - PURE-2: no event, in whatever order, panics.

pub mod card;
mod compact;
pub mod compare;
mod end;
pub mod event;
mod exit_message;
mod host;
mod join;
pub mod launch_size;
mod limits;
pub mod membership;
pub mod model;
pub mod origin;
mod placement;
pub mod reason;
pub mod report;
mod run;
pub mod run_summary;
pub mod series;
mod session;
#[cfg(test)]
mod testkit;
pub mod trace;
mod update;
mod watch;
mod work;

pub use end::RankEnd;
pub use session::Goal;
pub use watch::history::silence::PaceHistory;

#[cfg(test)]
mod tests;

use crate::host::{HostMachine, HostStage};
use crate::run::{RunMachine, RunStage};
use crate::session::{ConsoleClock, CoreState, EventCtx, Rates, Resolve};
use event::{Effect, Event};
use model::{HostModel, Model};
use rankdeck_types::ids::{NodeRank, RunId, Timestamp};
use rankdeck_types::plan::{PlanDraft, StopGoal};
use serde::{Deserialize, Serialize};

/// Milliseconds between two ticks while something is wrong or in transition.
const TICK_MS: u64 = 250;
/// Milliseconds between two ticks while all is well. Gauges arrive twice a second then, and each arrival
/// causes a tick. A faster clock would only interrupt the ranks that run on this machine.
const CALM_TICK_MS: u64 = 750;
/// Milliseconds between two ticks while many ranks run and nothing is wrong: their hosts do not
/// report together, so there is something new at any time, but of each host only once a second.
const BUSY_TICK_MS: u64 = 500;
const MANY: usize = 256;

/// The state of a console and its only way to change.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Core {
    model: Model,
    session: CoreState,
}

impl Default for Core {
    /// A console without a run.
    fn default() -> Core {
        Core::new(Goal::Attach { run: RunId(String::new()), hosts: Vec::new() }, Vec::new(), Timestamp(0))
    }
}

impl Core {
    /// A console for `goal` that stops the run when one of `until` is reached. The shell opens one link per
    /// host.
    pub fn new(goal: Goal, until: Vec<StopGoal>, now: Timestamp) -> Core {
        Core::with_resolver(goal, until, now, PlanDraft::resolve)
    }

    /// As [`Core::new`], with another way from draft to plan.
    pub(crate) fn with_resolver(goal: Goal, until: Vec<StopGoal>, now: Timestamp, resolve: Resolve) -> Core {
        let (run, names): (RunId, Vec<String>) = match &goal {
            Goal::Launch(draft) => {
                (draft.run.clone(), draft.hosts.iter().map(|host| host.name.clone()).collect())
            }
            Goal::Attach { run, hosts } => (run.clone(), hosts.clone()),
        };
        let excluded = match &goal {
            Goal::Launch(draft) => draft.excluded.clone(),
            Goal::Attach { .. } => Default::default(),
        };
        let mut model = Model::default();
        model.run.id = Some(run);
        model.hosts = names
            .into_iter()
            .enumerate()
            .map(|(node, name)| {
                let excluded = excluded.contains(&name);
                // An excluded host gets no link.
                let stage = if excluded { HostStage::Closed } else { HostStage::default() };
                HostModel {
                    excluded: excluded.then(|| "excluded on request".to_string()),
                    link_since: now,
                    machine: HostMachine { stage, ..HostMachine::default() },
                    ..HostModel::new(NodeRank(node as u32), name)
                }
            })
            .collect();
        if let Goal::Launch(draft) = &goal {
            // A preview for the screen. The plan that counts is made when all hosts have reported what they
            // have.
            if let Ok(plan) = resolve(draft, &[]) {
                update::install(&mut model, &plan);
                model.plan = Some(plan);
            }
            model.run.total_steps = Some(draft.experiment.run.total_steps).filter(|steps| *steps > 0);
        }
        let clock = ConsoleClock { last: now, tick: now, ping: now, ..ConsoleClock::default() };
        let session = CoreState {
            goal,
            until,
            linger: false,
            resolve,
            run: RunMachine::new(),
            join: Default::default(),
            addition: Default::default(),
            rates: Rates::default(),
            watch: Default::default(),
            clock,
        };
        Core { model, session }
    }

    /// What was learned about usual silences; the next console gets it as [`Event::Recalled`].
    pub fn pace_history(&self) -> PaceHistory {
        self.session.watch.pace_history()
    }

    /// Keeps the console when the run is over, for a screen. `run_finished` is
    /// reported, but agents are kept and a restart is possible. [`Effect::Exit`] follows only after
    /// [`Event::DetachRequested`].
    pub fn lingering(mut self) -> Core {
        self.session.linger = true;
        self
    }

    /// What the console is for.
    pub fn goal(&self) -> &Goal {
        &self.session.goal
    }

    /// What is known.
    pub fn model(&self) -> &Model {
        &self.model
    }

    #[cfg(test)]
    pub(crate) fn model_mut(&mut self) -> &mut Model {
        &mut self.model
    }

    /// One that was read from a file, validated like events.
    pub(crate) fn checked(mut self) -> Core {
        update::check(&mut self.model);
        self
    }

    /// Applies one event at `now` (the console's monotonic clock) and returns what to do, in order. Nothing
    /// follows [`Effect::Exit`].
    pub fn handle(&mut self, now: Timestamp, event: Event) -> Vec<Effect> {
        let now = self.session.clock.advance(now);
        let over = self.session.run.exited;
        let mut ctx = EventCtx { now, model: &mut self.model, session: &mut self.session, out: Vec::new() };
        update::handle(&mut ctx, event);
        let out = ctx.out;
        if over { Vec::new() } else { out }
    }

    /// When [`Event::Ticked`] is due next, `None` when the run is over.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let run = &self.session.run;
        let waits = run.stage != RunStage::Over || run.change.is_some() || update::is_waiting(&self.model);
        let alive = waits && !self.session.run.exited;
        let many = self.model.ranks.len() > MANY && self.model.verdicts.is_empty();
        let pause = match self.session.run.stage {
            _ if self.is_calm() => CALM_TICK_MS,
            RunStage::Running if many => BUSY_TICK_MS,
            _ => TICK_MS,
        };
        alive.then(|| self.session.clock.tick.plus(pause))
    }

    /// All ranks run, every host sent a message recently, no verdict is active, and the watch has assessed
    /// the latest gauges.
    fn is_calm(&self) -> bool {
        let ConsoleClock { awake_ms, sampled, .. } = self.session.clock;
        let lately = |host: &HostModel| {
            host.is_live() && awake_ms.saturating_sub(host.machine.last_message_awake_ms) <= CALM_TICK_MS
        };
        self.session.run.stage == RunStage::Running
            && !sampled
            && self.model.verdicts.is_empty()
            && self.model.hosts.iter().filter(|host| host.machine.stage != HostStage::Closed).all(lately)
    }
}
