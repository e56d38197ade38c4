//! The pure core: no clock, no I/O, no tokio. Events in, effects out, a model to look at.
//!
//! The path of an event: `link` → [`event::Event`] → [`Core::handle`] → [`effect::Effect`]s. The screen reads
//! [`Core::model`].
//!
//! Map: `update` reduces events (one file per cause; `update::reconcile` alone decides what follows), `host`
//! and `run` are the state machines, `join` pairs totals with the ranks' counters, `watch` finds verdicts,
//! `session` holds what the reducer keeps beside the model, `trace` records and replays.
//!
//! Invariants:
//! - PURE-1: the same goal and the same `(time, event)` list give the same model and the same effects.
//! - PURE-2: no event, in whatever order, panics.

pub mod card;
mod compact;
pub mod compare;
pub mod effect;
pub mod event;
pub mod fit;
mod host;

mod join;
mod last_words;
mod limits;
pub mod model;
mod pace_history;

pub mod reason;
pub mod report;
mod run;
pub mod run_summary;
pub mod series;
mod session;
pub mod statistics;
#[cfg(test)]
mod testkit;
pub mod trace;
mod update;
mod watch;
pub mod xid;

pub use pace_history::PaceHistory;

#[cfg(test)]
mod tests;

use crate::host::{HostMachine, HostStage};
use crate::run::{RunMachine, Stage};
use crate::session::{Clock, Ctx, Rates, Resolve, Session};
use effect::Effect;
use event::Event;
use model::{HostModel, Model};
use rankdeck_types::ids::{NodeRank, RunId, Timestamp};
use rankdeck_types::plan::{PlanDraft, Until};
use serde::{Deserialize, Serialize};

/// Milliseconds between two ticks while something is wrong or in transition.
const TICK_MS: u64 = 250;
/// Milliseconds between two ticks while all is well. Gauges arrive twice a second then, and each arrival
/// causes a tick. A faster clock would only interrupt the ranks that run on this machine.
const CALM_TICK_MS: u64 = 750;
/// Milliseconds between two ticks while more than so many ranks run and nothing is wrong: their hosts do not
/// report together, so there is something new at any time, but of each host only once a second.
const BUSY_TICK_MS: u64 = 500;
const MANY: usize = 256;

/// What a console is for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    Launch(Box<PlanDraft>),
    /// Find this run's agents on these hosts (node_rank order) and look.
    Attach {
        run: RunId,
        /// Names of the hosts in node_rank order.
        hosts: Vec<String>,
    },
}

/// The state of a console and its only way to change.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Core {
    model: Model,
    session: Session,
}

impl Default for Core {
    /// A console that looks at nothing.
    fn default() -> Core {
        Core::new(Goal::Attach { run: RunId(String::new()), hosts: Vec::new() }, Vec::new(), Timestamp(0))
    }
}

impl Core {
    /// A console for `goal` that stops the run when one of `until` is reached. The shell opens one link per
    /// host.
    pub fn new(goal: Goal, until: Vec<Until>, now: Timestamp) -> Core {
        Core::with_resolver(goal, until, now, PlanDraft::resolve)
    }

    /// As [`Core::new`], with another way from draft to plan.
    pub(crate) fn with_resolver(goal: Goal, until: Vec<Until>, now: Timestamp, resolve: Resolve) -> Core {
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
                // Nobody opens a link to an excluded host.
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
        let clock = Clock { last: now, tick: now, ping: now, ..Clock::default() };
        let session = Session {
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

    /// What the watch has learnt about the run; the next console gets it as [`Event::Recalled`].
    pub fn learnt(&self) -> PaceHistory {
        self.session.watch.learnt()
    }

    /// Makes the console stay when the run is over, for a screen that people look at. `run_finished` is
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

    /// Applies one event at `now` (the console's monotonic clock) and returns what to do, in order. Nothing
    /// follows [`Effect::Exit`].
    pub fn handle(&mut self, now: Timestamp, event: Event) -> Vec<Effect> {
        let now = self.session.clock.advance(now);
        let over = self.session.run.exited;
        let mut ctx = Ctx { now, model: &mut self.model, session: &mut self.session, out: Vec::new() };
        update::handle(&mut ctx, event);
        let out = ctx.out;
        if over { Vec::new() } else { out }
    }

    /// When [`Event::Ticked`] is due next, `None` when the run is over.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let waits = self.session.run.stage != Stage::Over || update::is_waiting(&self.model);
        let alive = waits && !self.session.run.exited;
        let many = self.model.ranks.len() > MANY && self.model.verdicts.is_empty();
        let pause = match self.session.run.stage {
            _ if self.is_calm() => CALM_TICK_MS,
            Stage::Running if many => BUSY_TICK_MS,
            _ => TICK_MS,
        };
        alive.then(|| self.session.clock.tick.plus(pause))
    }

    /// All ranks run, every host was heard lately, nothing is wrong, and the watch has seen the latest
    /// gauges.
    fn is_calm(&self) -> bool {
        let Clock { awake_ms, sampled, .. } = self.session.clock;
        let lately =
            |host: &HostModel| host.is_live() && awake_ms.saturating_sub(host.machine.heard) <= CALM_TICK_MS;
        self.session.run.stage == Stage::Running
            && !sampled
            && self.model.verdicts.is_empty()
            && self.model.hosts.iter().filter(|host| host.machine.stage != HostStage::Closed).all(lately)
    }
}
