//! When to draw. Pure: no clock, no terminal.
//!
//! Invariants:
//! - FRAME-1: after a frame, the next is due only when something is wanted again.
//! - FRAME-2: two frames are at least [`INPUT_MS`] apart when the user did something, [`DATA_MS`] when only
//!   data came.

use rankdeck_types::ids::Timestamp;

/// Least time between frames after keys, mouse and resize: about 30 per second.
pub const INPUT_MS: u64 = 33;
/// Least time between frames for new data: 10 per second.
pub const DATA_MS: u64 = 100;

/// Why a frame is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Want {
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
    wanted: Option<Want>,
    drawn_at: Option<Timestamp>,
    drawn_revision: Option<u64>,
}

impl Pacer {
    /// A frame is wanted; the most urgent wish counts.
    pub fn want(&mut self, want: Want) {
        self.wanted = self.wanted.max(Some(want));
    }

    /// Wants a frame if the model's revision is not the one drawn.
    pub fn see(&mut self, revision: u64) {
        if self.drawn_revision != Some(revision) {
            self.want(Want::Data);
        }
    }

    /// When the next frame is due; `None`: nothing to draw.
    pub fn due(&self) -> Option<Timestamp> {
        let gap = match self.wanted? {
            Want::Data => DATA_MS,
            Want::Input => INPUT_MS,
            Want::Now => 0,
        };
        Some(self.drawn_at.map_or(Timestamp(0), |at| at.plus(gap)))
    }

    /// A frame of `revision` was drawn at `now`.
    pub fn drawn(&mut self, now: Timestamp, revision: u64) {
        *self = Pacer { wanted: None, drawn_at: Some(now), drawn_revision: Some(revision) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_1_nothing_is_due_without_a_change() {
        let mut pacer = Pacer::default();
        pacer.see(7);
        assert_eq!(pacer.due(), Some(Timestamp(0)));
        pacer.drawn(Timestamp(1000), 7);
        pacer.see(7);
        assert_eq!(pacer.due(), None);
    }

    #[test]
    fn frame_2_data_waits_longer_than_input() {
        let mut pacer = Pacer::default();
        pacer.drawn(Timestamp(1000), 1);
        pacer.see(2);
        assert_eq!(pacer.due(), Some(Timestamp(1100)));
        pacer.want(Want::Input);
        assert_eq!(pacer.due(), Some(Timestamp(1033)));
        pacer.see(3);
        assert_eq!(pacer.due(), Some(Timestamp(1033)), "data never postpones input");
        pacer.want(Want::Now);
        assert_eq!(pacer.due(), Some(Timestamp(1000)));
    }

    #[test]
    fn a_burst_of_changes_is_one_frame() {
        let mut pacer = Pacer::default();
        pacer.drawn(Timestamp(0), 0);
        (1..1000).for_each(|revision| pacer.see(revision));
        assert_eq!(pacer.due(), Some(Timestamp(100)));
        pacer.drawn(Timestamp(100), 999);
        assert_eq!(pacer.due(), None);
    }
}
