//! The pure core: no clock, no I/O, no tokio. Events in, effects out, a model to look at.
//!
//! The way of an event: `link` → [`event::Event`] → [`Core::handle`] → [`effect::Effect`]s, and `ui` reads [`Core::model`].
//!
//! Map: `update` reduces events (one file per cause; `update::reconcile` alone decides what follows), `host` and `run` are the state
//! machines, `join` meets totals with counters, `watch` finds verdicts, `session` holds these beside the model, `trace` records and replays.
//!
//! Invariants:
//! - PURE-1: the same goal and the same `(time, event)` list give the same model and the same effects.
//! - PURE-2: no event, in whatever order, panics.

pub mod card;
pub mod effect;
pub mod event;
mod host;

mod join;
pub mod model;

pub mod reason;
pub mod report;
mod run;
pub mod series;
mod session;
#[cfg(test)]
mod testkit;
pub mod trace;
mod update;
mod watch;
mod words;

pub use watch::Learnt;

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

/// Least milliseconds between two ticks while a run is alive.
const TICK_MS: u64 = 250;
/// The most. While all is well, gauges bring a tick along, and agents send them twice a second then: a clock of its own would take the ranks of this
/// machine off their cores for nothing.
const CALM_TICK_MS: u64 = 750;

/// What a console is for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// Launch this.
    Launch(Box<PlanDraft>),
    /// Find this run's agents on these hosts (node_rank order) and look.
    Attach {
        /// The run.
        run: RunId,
        /// Names of the hosts in node_rank order.
        hosts: Vec<String>,
    },
}

/// The state of a console and its only way to change.
#[derive(Debug, Clone)]
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
    /// A console for `goal` that stops the run when one of `until` is reached. Links are opened by the shell, one per host, right after.
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
        let left_out = match &goal {
            Goal::Launch(draft) => draft.excluded.clone(),
            Goal::Attach { .. } => Default::default(),
        };
        let mut model = Model::default();
        model.run.id = Some(run);
        model.hosts = names
            .into_iter()
            .enumerate()
            .map(|(node, name)| HostModel {
                node_rank: NodeRank(node as u32),
                excluded: left_out.contains(&name).then(|| "left out on request".to_string()),
                name,
                link_since: now,
                ..HostModel::default()
            })
            .collect();
        if let Goal::Launch(draft) = &goal {
            // A first look for the screen; the plan that counts is made when the hosts have told what they have.
            if let Ok(plan) = resolve(draft, &[]) {
                update::install(&mut model, &plan);
                model.plan = Some(plan);
            }
            model.run.total_steps = Some(draft.experiment.run.total_steps).filter(|steps| *steps > 0);
        }
        let machine = |host: &HostModel| match host.excluded {
            // Nobody opens a link to it.
            Some(_) => HostMachine { stage: HostStage::Closed, ..HostMachine::default() },
            None => HostMachine::default(),
        };
        let hosts = model.hosts.iter().map(machine).collect();
        let clock = Clock { last: now, tick: now, ping: now, ..Clock::default() };
        let session = Session {
            goal,
            until,
            linger: false,
            resolve,
            hosts,
            run: RunMachine::new(),
            join: Default::default(),
            rates: Rates::default(),
            watch: Default::default(),
            clock,
        };
        Core { model, session }
    }

    /// What the watch has learnt about the run, for [`Event::Recalled`] of the next console.
    pub fn learnt(&self) -> Learnt {
        self.session.watch.learnt()
    }

    /// Stays when the run is over, for a screen that people look at: `run_finished` is told, but agents are kept, a restart is possible, and
    /// [`Effect::Exit`] with the run's exit code comes only after [`Event::DetachRequested`].
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

    /// Applies one event at `now` (console's monotonic clock) and says what to do, in order. After [`Effect::Exit`] nothing more is asked for.
    pub fn handle(&mut self, now: Timestamp, event: Event) -> Vec<Effect> {
        let now = self.session.clock.advance(now);
        let over = self.session.run.exited;
        let mut ctx = Ctx { now, model: &mut self.model, session: &mut self.session, out: Vec::new() };
        update::handle(&mut ctx, event);
        let out = ctx.out;
        if over { Vec::new() } else { out }
    }

    /// When [`Event::Ticked`] is due next: with the next gauges while all is well, four times a second else, `None` when the run is over.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let alive = self.session.run.stage != Stage::Over && !self.session.run.exited;
        let pause = if self.is_calm() { CALM_TICK_MS } else { TICK_MS };
        alive.then(|| self.session.clock.tick.plus(pause))
    }

    /// All ranks run, every host was heard of lately, nothing is wrong, and the watch has looked at the latest gauges.
    fn is_calm(&self) -> bool {
        let Clock { awake_ms, sampled, .. } = self.session.clock;
        let lately =
            |host: &HostMachine| host.is_live() && awake_ms.saturating_sub(host.heard) <= CALM_TICK_MS;
        self.session.run.stage == Stage::Running
            && !sampled
            && self.model.verdicts.is_empty()
            && self.session.hosts.iter().filter(|host| host.stage != HostStage::Closed).all(lately)
    }
}
