//! The log lines of a rank that the console holds: a bounded ring, and where its lines stand among those of
//! all ranks.

use rankdeck_proto::message::LinesRead;
use rankdeck_types::ids::Generation;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// A log line as the console holds it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldLine {
    /// Counts the lines of all ranks in the order in which they arrived.
    pub order: u64,
    /// As the rank wrote it.
    pub text: String,
    /// When its agent read it, by the host's clock, ms since 1970; 0: not known.
    pub time_ms: u64,
    /// The same by this console's clock, and never earlier than that of the line before: for merging.
    pub merge_ms: u64,
    /// Generation of the rank that wrote it.
    pub generation: Generation,
}

impl HeldLine {
    /// A line of which no time is known.
    pub fn new(order: u64, text: impl Into<String>) -> HeldLine {
        HeldLine { order, text: text.into(), ..HeldLine::default() }
    }

    /// Where it stands among the lines of all ranks.
    pub fn place(&self) -> LogPlace {
        LogPlace { merge_ms: self.merge_ms, order: self.order }
    }
}

/// Where a line stands among the lines of all ranks: by its time, then by its arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct LogPlace {
    /// [`HeldLine::merge_ms`].
    pub merge_ms: u64,
    /// [`HeldLine::order`].
    pub order: u64,
}

/// Lines that arrive together.
#[derive(Debug, Clone, Default)]
pub struct Arrival {
    /// Number of the first, in the rank's file.
    pub first: u64,
    /// The lines.
    pub lines: Vec<String>,
    /// When they were read.
    pub times: Vec<LinesRead>,
    /// The host's clock minus ours, ms.
    pub ahead_ms: i64,
    /// Generation of the rank.
    pub generation: Generation,
}

/// A bounded ring of log lines.
#[derive(Debug, Clone, Default)]
pub struct LogRing {
    /// Lines, oldest first.
    pub lines: VecDeque<HeldLine>,
    /// Older lines that the ring held when it was recorded; a record keeps the newest [`RECORDED_LINES`]
    /// only.
    pub unrecorded: usize,
    /// Number, in the rank's file, of the line after the newest one held.
    pub next: u64,
    /// Lines that fell out of the ring or were never sent.
    pub dropped: u64,
}

/// Most log lines kept per rank.
pub const LOG_LINES: usize = 2000;
/// Lines of each rank in a snapshot of a record.
pub const RECORDED_LINES: usize = 16;

impl LogRing {
    /// Adds those lines that are new. Returns them, and how many old ones fell out. `order` numbers lines
    /// over all ranks.
    pub fn extend(&mut self, arrival: Arrival, order: &mut u64) -> (Vec<String>, u64) {
        let Arrival { first, lines, times, ahead_ms, generation } = arrival;
        let known = usize::try_from(self.next.saturating_sub(first)).unwrap_or(usize::MAX);
        let end = first.saturating_add(lines.len() as u64);
        let times: Vec<u64> =
            LinesRead::each(&times).skip(known.min(lines.len())).take(lines.len()).collect();
        let fresh: Vec<String> = lines.into_iter().skip(known).collect();
        if fresh.is_empty() {
            return (fresh, 0);
        }
        self.dropped += first.saturating_sub(self.next);
        self.next = end;
        let mut latest = self.lines.back().map_or(0, |line| line.merge_ms);
        for (line, time_ms) in fresh.iter().zip(times) {
            *order += 1;
            if time_ms > 0 {
                latest = latest.max(time_ms.saturating_add_signed(-ahead_ms));
            }
            let (order, text) = (*order, line.clone());
            self.lines.push_back(HeldLine { order, text, time_ms, merge_ms: latest, generation });
        }
        let over = (self.unrecorded + self.lines.len()).saturating_sub(LOG_LINES);
        let unrecorded = over.min(self.unrecorded);
        self.unrecorded -= unrecorded;
        self.lines.drain(..over - unrecorded);
        self.dropped += over as u64;
        (fresh, over as u64)
    }
}

/// A ring in a snapshot: most of its lines are left out, but counted.
#[derive(Serialize, Deserialize)]
struct RecordedRing<L> {
    held: usize,
    newest: Vec<L>,
    next: u64,
    dropped: u64,
}

impl Serialize for LogRing {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let left_out = self.lines.len().saturating_sub(RECORDED_LINES);
        RecordedRing {
            held: self.unrecorded + self.lines.len(),
            newest: self.lines.range(left_out..).collect(),
            next: self.next,
            dropped: self.dropped,
        }
        .serialize(to)
    }
}

impl<'de> Deserialize<'de> for LogRing {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<LogRing, D::Error> {
        let ring = RecordedRing::<HeldLine>::deserialize(from)?;
        let unrecorded = ring.held.min(LOG_LINES).saturating_sub(ring.newest.len());
        Ok(LogRing { lines: ring.newest.into(), unrecorded, next: ring.next, dropped: ring.dropped })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(first: u64, count: usize) -> Arrival {
        Arrival { first, lines: (0..count).map(|i| i.to_string()).collect(), ..Arrival::default() }
    }

    #[test]
    fn log_lines_come_once_and_holes_are_counted() {
        let (mut ring, mut order) = (LogRing::default(), 0);
        assert_eq!(ring.extend(lines(0, 3), &mut order).0.len(), 3);
        assert_eq!(ring.extend(lines(1, 4), &mut order).0, ["2", "3"]);
        assert_eq!(ring.extend(lines(0, 5), &mut order).0, Vec::<String>::new());
        assert_eq!(ring.extend(lines(9, 1), &mut order).0.len(), 1);
        assert_eq!((ring.next, ring.dropped, order), (10, 4, 6));
    }

    #[test]
    fn lines_keep_their_time_and_are_merged_by_it_on_one_clock() {
        let (mut ring, mut order) = (LogRing::default(), 0);
        let times = vec![LinesRead { lines: 1, time_ms: 5_000 }, LinesRead { lines: 2, time_ms: 9_000 }];
        ring.extend(Arrival { times, ahead_ms: 1_000, ..lines(0, 3) }, &mut order);
        let back = vec![LinesRead { lines: 2, time_ms: 1 }];
        ring.extend(Arrival { times: back, ..lines(2, 2) }, &mut order);
        ring.extend(lines(4, 1), &mut order);
        let times: Vec<(u64, u64)> = ring.lines.iter().map(|line| (line.time_ms, line.merge_ms)).collect();
        assert_eq!(times, [(5_000, 4_000), (9_000, 8_000), (9_000, 8_000), (1, 8_000), (0, 8_000)]);
    }

    /// A record of a build that knew no times.
    #[test]
    fn lines_without_a_time_are_read_from_an_older_record() {
        let old = rmp_serde::to_vec_named(&RecordedRing {
            held: 1,
            newest: vec![(7u64, "x")],
            next: 1,
            dropped: 0,
        });
        let ring: LogRing = rmp_serde::from_slice(&old.unwrap()).unwrap();
        assert_eq!(ring.lines[0], HeldLine::new(7, "x"));
    }

    #[test]
    fn core_2_the_ring_is_bounded_and_counts() {
        let (mut ring, mut order) = (LogRing::default(), 0);
        let (_, over) = ring.extend(lines(0, LOG_LINES + 10), &mut order);
        assert_eq!((ring.lines.len(), over, ring.dropped), (LOG_LINES, 10, 10));
        assert!(
            ring.extend(lines(u64::MAX, 2), &mut order).0.len() <= 2,
            "numbers from outside never overflow"
        );
    }
}
