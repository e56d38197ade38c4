//! When to draw. Pure: no clock, no terminal.
//!
//! Invariants:
//! - FRAME-1: after a frame, the next is due only when something is wanted again.
//! - FRAME-2: two frames for what the user did are at least [`INPUT_MS`] apart; such a frame waits for no
//!   other one. A frame for data alone comes [`DATA_MS`] after the last frame at the earliest.
//! - FRAME-3: frames for data take no more than a [`SHARE`]th of the time, down to one in [`REST_MS`].

use rankdeck_types::ids::Timestamp;
use std::time::Duration;

/// Least time between frames after keys, mouse and resize: about 30 per second.
pub const INPUT_MS: u64 = 33;
/// Least time between frames for new data: 10 per second.
pub const DATA_MS: u64 = 100;
/// Longest time between them while there is new data, however long one takes to draw.
pub const REST_MS: u64 = 400;
/// A run of thousands of ranks takes milliseconds to draw, and has something new at any time.
const SHARE: u32 = 100;

/// Why a frame is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FrameReason {
    /// The model changed.
    Data,
    /// The user did something.
    Input,
    /// The screen was cleared under us.
    Now,
}

/// Coalesces wishes for frames.
#[derive(Debug, Clone, Default)]
pub struct Pacer {
    wanted: Option<FrameReason>,
    drawn_at: Option<Timestamp>,
    /// When the last frame for what the user did was drawn.
    input_at: Option<Timestamp>,
    /// Least time to the next frame for data alone, ms.
    rest_ms: u64,
    drawn_revision: Option<u64>,
}

impl Pacer {
    /// A frame is wanted; the most urgent wish counts.
    pub fn want(&mut self, want: FrameReason) {
        self.wanted = self.wanted.max(Some(want));
    }

    /// Wants a frame if the model's revision is not the one drawn.
    pub fn see(&mut self, revision: u64) {
        if self.drawn_revision != Some(revision) {
            self.want(FrameReason::Data);
        }
    }

    /// When the next frame is due; `None`: nothing to draw.
    pub fn due(&self) -> Option<Timestamp> {
        let next = |at: Option<Timestamp>, gap: u64| at.map_or(Timestamp(0), |at| at.plus(gap));
        Some(match self.wanted? {
            FrameReason::Data => next(self.drawn_at, self.rest_ms),
            FrameReason::Input => next(self.input_at, INPUT_MS),
            FrameReason::Now => Timestamp(0),
        })
    }

    /// A frame of `revision` was drawn at `now`, and that took so long.
    pub fn drawn(&mut self, now: Timestamp, revision: u64, took: Duration) {
        let rest_ms = (took.saturating_mul(SHARE).as_millis() as u64).clamp(DATA_MS, REST_MS);
        let input_at = if self.wanted > Some(FrameReason::Data) { Some(now) } else { self.input_at };
        *self =
            Pacer { wanted: None, drawn_at: Some(now), drawn_revision: Some(revision), input_at, rest_ms };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Duration = Duration::from_micros(300);

    #[test]
    fn frame_1_nothing_is_due_without_a_change() {
        let mut pacer = Pacer::default();
        pacer.see(7);
        assert_eq!(pacer.due(), Some(Timestamp(0)));
        pacer.drawn(Timestamp(1000), 7, FAST);
        pacer.see(7);
        assert_eq!(pacer.due(), None);
    }

    #[test]
    fn frame_2_data_waits_longer_than_input_and_input_for_no_frame_of_data() {
        let mut pacer = Pacer::default();
        pacer.drawn(Timestamp(1000), 1, FAST);
        pacer.see(2);
        assert_eq!(pacer.due(), Some(Timestamp(1100)));
        pacer.want(FrameReason::Input);
        assert_eq!(pacer.due(), Some(Timestamp(0)), "at once");
        pacer.drawn(Timestamp(1005), 2, FAST);
        pacer.want(FrameReason::Input);
        assert_eq!(pacer.due(), Some(Timestamp(1038)));
        pacer.see(3);
        assert_eq!(pacer.due(), Some(Timestamp(1038)), "data never postpones input");
        pacer.want(FrameReason::Now);
        assert!(pacer.due().is_some_and(|due| due <= Timestamp(1005)));
    }

    #[test]
    fn frame_3_frames_that_take_long_come_seldom_but_keys_do_not_wait() {
        for (took_ms, rest_ms) in [(0, 100), (1, 100), (3, 300), (50, 400)] {
            let mut pacer = Pacer::default();
            pacer.drawn(Timestamp(1000), 1, Duration::from_millis(took_ms));
            pacer.see(2);
            assert_eq!(pacer.due(), Some(Timestamp(1000 + rest_ms)), "{took_ms}");
            pacer.want(FrameReason::Input);
            assert_eq!(pacer.due(), Some(Timestamp(0)));
        }
    }

    #[test]
    fn a_burst_of_changes_is_one_frame() {
        let mut pacer = Pacer::default();
        pacer.drawn(Timestamp(0), 0, FAST);
        (1..1000).for_each(|revision| pacer.see(revision));
        assert_eq!(pacer.due(), Some(Timestamp(100)));
        pacer.drawn(Timestamp(100), 999, FAST);
        assert_eq!(pacer.due(), None);
    }
}
