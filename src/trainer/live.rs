//! Rank 0's evaluation as the console shows it while it goes on.
//!
//! Owner: the evaluation, which asks after every step whether the next one is to be shown. Invariants:
//! - LIVE-1: looking changes nothing: results with and without it are equal to the bit.
//! - LIVE-2: at most one frame per [`EVERY`], of at most
//!   [`FRAME_BYTES`](super::events::FRAME_BYTES); one waits to be sent, and a
//!   newer one replaces it.

use super::events::Events;
use rankdeck_proto::show::{LIVE_SCORES, LiveFrame, ShownPolicy, ShownStep};
use std::time::{Duration, Instant};

/// Between two frames.
pub const EVERY: Duration = Duration::from_millis(250);

/// Shows steps of one evaluation.
pub struct Live<'a> {
    events: &'a Events,
    policy: ShownPolicy,
    /// Nothing is shown before; `None`: never.
    due: Option<Instant>,
}

impl<'a> Live<'a> {
    /// Of an evaluation that begins.
    pub fn new(events: &'a Events, mut policy: ShownPolicy) -> Live<'a> {
        policy.bounds.truncate(LIVE_SCORES);
        let due = events.frame_at().map(|last| last.map_or_else(Instant::now, |last| last + EVERY));
        Live { events, policy, due }
    }

    /// The next step is to be shown.
    pub fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Shows a step; `ended` episodes were over before it.
    pub fn show(&mut self, mut step: ShownStep, ended: usize) {
        if let Some(thought) = &mut step.thought
            && thought.scores.len() > LIVE_SCORES
        {
            thought.scores = Vec::new();
        }
        step.action.truncate(LIVE_SCORES);
        self.due = Some(Instant::now() + EVERY);
        self.events.frame(LiveFrame { policy: self.policy.clone(), step, ended: ended as u32, skipped: 0 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::FRAME_BYTES;
    use rankdeck_proto::message::RankEvent;
    use rankdeck_proto::show::{LIVE_PIXELS, MOST_PIXELS, MOST_SEEN, Picture, Thought};
    use rankdeck_types::ids::{Generation, Rank};

    #[test]
    fn live_2_frames_come_at_most_every_so_often_over_evaluations_too() {
        let events = Events::to("/nonexistent/events.sock".as_ref(), Rank(0), Generation(0));
        let mut first = Live::new(&events, ShownPolicy::default());
        assert!(first.is_due(Instant::now()), "a short evaluation is seen, too");
        first.show(ShownStep::default(), 0);
        let shown = Instant::now();
        let second = Live::new(&events, ShownPolicy::default());
        for live in [&first, &second] {
            assert!(!live.is_due(shown) && live.is_due(shown + EVERY));
        }
        let silent = Events::silent();
        assert!(!Live::new(&silent, ShownPolicy::default()).is_due(shown + EVERY), "nobody could see it");
    }

    #[test]
    fn live_2_the_largest_frame_is_a_line_of_the_event_socket() {
        let bounds = vec![[f32::MIN, f32::MAX]; LIVE_SCORES];
        let thought = Thought { scores: vec![-1.234_567_9e-38; LIVE_SCORES], ..Thought::default() };
        let side = (LIVE_PIXELS as f64).sqrt() as u32;
        assert!(side <= MOST_PIXELS);
        let step = ShownStep {
            seen: vec![-1.234_567_9e-38; MOST_SEEN],
            picture: Some(Picture::of(side, side, &vec![0; (side * side) as usize])),
            thought: Some(thought),
            action: vec![-1.234_567_9e-38; LIVE_SCORES],
            ..ShownStep::default()
        };
        let policy = ShownPolicy { env_id: "x".repeat(200), bounds, ..ShownPolicy::default() };
        let frame = LiveFrame { policy, step, ended: u32::MAX, skipped: u64::MAX };
        let line = serde_json::to_string(&RankEvent::Frame(Box::new(frame))).unwrap();
        assert!(line.len() < FRAME_BYTES, "{}", line.len());
    }
}
