//! The pure core: no clock, no I/O, no tokio. Events in, effects out, a model to look at.
//!
//! The way of an event: `link` → [`event::Event`] → [`Core::handle`] → [`effect::Effect`]s, and `ui` reads [`Core::model`].

pub mod effect;
pub mod event;
pub mod ids;
pub mod model;
pub mod plan;
pub mod report;
pub mod series;

use effect::Effect;
use event::Event;
use ids::{RunId, Timestamp};
use model::Model;
use plan::{PlanDraft, Until};

/// What a console is for.
#[derive(Debug, Clone, PartialEq)]
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
#[derive(Debug, Clone, Default)]
pub struct Core {
    model: Model,
}

impl Core {
    /// A console for `goal` that stops the run when one of `until` is reached. Links are opened by the shell, one per host, right after.
    pub fn new(goal: Goal, until: Vec<Until>, now: Timestamp) -> Core {
        let _ = (goal, until, now);
        Core::default()
    }

    /// What is known.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Applies one event at `now` (console's monotonic clock) and says what to do.
    pub fn handle(&mut self, now: Timestamp, event: Event) -> Vec<Effect> {
        let _ = (now, event);
        Vec::new()
    }

    /// When time alone could change something.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        None
    }
}
