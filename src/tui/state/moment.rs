//! Which moment of the run is shown: the present, a frozen one, or one of the past.

use crate::time::TimeCursor;
use rankdeck_core::model::Model;
use rankdeck_types::ids::Timestamp;

/// A moment that was held.
#[derive(Debug, Clone)]
pub struct FrozenMoment {
    /// The run as it was.
    pub model: Box<Model>,
    /// When it was held.
    pub at: Timestamp,
}

/// Which moment is shown.
#[derive(Debug, Clone, Default)]
pub struct Moment {
    /// The moment that is shown instead of the present.
    pub frozen: Option<FrozenMoment>,
    /// The moment of the past that is shown. The model and the time that are drawn belong to it.
    pub cursor: Option<TimeCursor>,
    /// The run was not over at the last frame of the present.
    pub seen_alive: bool,
    /// The moment that the panes show: that of the latest input or frame, or the frozen one.
    pub now: Timestamp,
}

impl Moment {
    /// The model that the panes show: the frozen moment, or the one of the clock.
    pub fn shown<'a>(&'a self, model: &'a Model) -> &'a Model {
        self.frozen.as_ref().map_or(model, |frozen| &frozen.model)
    }

    /// Goes on to `now`; what is frozen stays.
    pub(super) fn advance(&mut self, now: Timestamp) {
        self.now = self.frozen.as_ref().map_or(now, |frozen| frozen.at);
    }
}
