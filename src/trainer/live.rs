//! Rank 0's evaluation as the console shows it while it goes on.
//!
//! Owner: the evaluation, which asks after every step whether the next one is to be shown. Invariants:
//! - LIVE-1: looking changes nothing: results with and without it are equal to the bit.
//! - LIVE-2: at most one frame per [`FRAME_EVERY`](super::events::FRAME_EVERY), of at most
//!   [`FRAME_BYTES`](super::events::FRAME_BYTES); one waits to be sent, and a newer one replaces it.
//! - LIVE-3: a step that is not shown costs the look at one flag, which the thread that sends frames raises:
//!   no clock, no lock, no memory.

use super::events::Events;
use rankdeck_proto::media::Histogram;
use rankdeck_proto::message::{LoggedHistogram, RankEvent};
use rankdeck_proto::show::{LIVE_SCORES, LiveFrame, ShownPolicy, ShownStep};
use std::sync::atomic::{AtomicBool, Ordering};

/// What the returns of an evaluation's episodes are called.
const RETURNS: &str = "eval/returns";

/// Shows steps of one evaluation.
pub struct Live<'a> {
    events: &'a Events,
    wanted: &'a AtomicBool,
    policy: ShownPolicy,
}

impl<'a> Live<'a> {
    /// Of an evaluation that begins.
    pub fn new(events: &'a Events, mut policy: ShownPolicy) -> Live<'a> {
        policy.bounds.truncate(LIVE_SCORES);
        Live { events, wanted: events.frame_wanted(), policy }
    }

    /// The next step is to be shown.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Shows a step; `ended` episodes were over before it.
    pub fn show(&self, mut step: ShownStep, ended: usize) {
        if let Some(thought) = &mut step.thought
            && thought.scores.len() > LIVE_SCORES
        {
            thought.scores = Vec::new();
        }
        step.action.truncate(LIVE_SCORES);
        self.events.frame(LiveFrame { policy: self.policy.clone(), step, ended: ended as u32, skipped: 0 });
    }

    /// Tells how the returns of its episodes are spread, where there are several.
    pub fn returns(&self, returns: &[f64]) {
        let Some(Histogram { edges, counts }) = Histogram::of(returns).filter(|_| returns.len() > 1) else {
            return;
        };
        let ShownPolicy { train_iter, env_step, .. } = self.policy;
        let name = RETURNS.to_owned();
        self.events.send(&RankEvent::Histogram(LoggedHistogram {
            name,
            train_iter,
            env_step,
            edges,
            counts,
            skipped: 0,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{FRAME_BYTES, FRAME_EVERY};
    use rankdeck_proto::show::{LIVE_PIXELS, MOST_PIXELS, MOST_SEEN, Picture, Thought};
    use rankdeck_types::ids::{Generation, Rank};
    use std::os::unix::net::UnixListener;
    use std::time::{Duration, Instant};

    fn wait_until(what: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn live_2_frames_are_wanted_at_most_every_so_often_over_evaluations_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let events = Events::to(&path, Rank(0), Generation(0));
        let first = Live::new(&events, ShownPolicy::default());
        wait_until("a short evaluation is seen, too", || first.is_wanted());
        let shown = Instant::now();
        first.show(ShownStep::default(), 0);
        let second = Live::new(&events, ShownPolicy::default());
        assert!(!first.is_wanted() && !second.is_wanted(), "not at once");
        wait_until("another is wanted later", || second.is_wanted());
        assert!(shown.elapsed() >= FRAME_EVERY);
        assert!(first.is_wanted(), "the flag is that of the rank");
        drop(listener);
    }

    #[test]
    fn live_3_nothing_is_wanted_where_nobody_is_told() {
        let silent = Events::silent();
        let live = Live::new(&silent, ShownPolicy::default());
        assert!(!live.is_wanted());
        live.show(ShownStep::default(), 0);
        assert!(!live.is_wanted());
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
