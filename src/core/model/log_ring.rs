//! The log lines of a rank that the console holds: a ring that is bounded in lines and in bytes, and the
//! positions of its lines among those of all ranks.

use crate::compact::nameless;
use rankdeck_proto::message::LinesRead;
use rankdeck_proto::search::LinePlace;
use rankdeck_types::ids::{Generation, Rank};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// A log line as the console holds it.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
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
nameless!(HeldLine { order, text, time_ms, merge_ms, generation });

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

impl LogPlace {
    /// Behind all others.
    pub const MAX: LogPlace = LogPlace { merge_ms: u64::MAX, order: u64::MAX };
}

/// Lines that arrive together.
#[derive(Debug, Clone, Default)]
pub struct ReceivedLines {
    /// Number of the first, in the rank's file.
    pub first: u64,
    /// Numbers before it that no line has: the rank has written over those lines.
    pub overwritten: u64,
    pub lines: Vec<String>,
    /// When they were read.
    pub times: Vec<LinesRead>,
    /// The host's clock minus ours, ms.
    pub ahead_ms: i64,
    /// Generation of the rank.
    pub generation: Generation,
}

/// A bounded ring of log lines.
#[derive(Debug, Clone, Default, PartialEq)]
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
    /// The bytes of the lines, those that were not recorded included: a console that was read from a record
    /// drops the same lines as the one that wrote it.
    batches: VecDeque<LineBlock>,
}

/// Neighbouring lines that leave the ring together when it holds too many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
struct LineBlock {
    lines: usize,
    bytes: usize,
    /// Number, in the rank's file, of the line after its last; its lines have no holes between them. 0: not
    /// known.
    #[serde(default)]
    end: u64,
}

impl LineBlock {
    const LINES: usize = 100;
    const BYTES: usize = LEAST.bytes / 4;

    fn add(&mut self, bytes: usize) {
        self.lines += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        self.end = self.end.saturating_add(1);
    }

    fn is_full(&self) -> bool {
        self.lines >= LineBlock::LINES || self.bytes >= LineBlock::BYTES
    }
}

/// Most log lines kept per rank.
pub const LOG_LINES: usize = 2000;
/// Most bytes of them.
pub const LOG_BYTES: usize = 1 << 20;
/// Most lines and bytes of all ranks.
const ALL: RingLimits = RingLimits { lines: 64 * LOG_LINES, bytes: 64 * LOG_BYTES };
/// What each rank has at least.
const LEAST: RingLimits = RingLimits { lines: 128, bytes: 1 << 16 };
/// Lines of each rank in a snapshot of a record.
pub const RECORDED_LINES: usize = 16;

/// How much a ring may hold.
#[derive(Debug, Clone, Copy)]
pub struct RingLimits {
    lines: usize,
    bytes: usize,
}

impl RingLimits {
    /// The limits of each of `ranks` rings: smaller if there are many, so that all together are bounded. Hosts
    /// keep every line.
    pub fn among(ranks: usize) -> RingLimits {
        let each = |all: usize, least: usize, most: usize| (all / ranks.max(1)).clamp(least, most);
        RingLimits {
            lines: each(ALL.lines, LEAST.lines, LOG_LINES),
            bytes: each(ALL.bytes, LEAST.bytes, LOG_BYTES),
        }
    }
}

impl LogRing {
    /// Adds those lines that are new. Returns them, and how many old ones fell out. `order` numbers lines
    /// over all ranks.
    pub fn extend(
        &mut self,
        arrival: ReceivedLines,
        room: RingLimits,
        order: &mut u64,
    ) -> (Vec<String>, u64) {
        let ReceivedLines { first, overwritten, lines, times, ahead_ms, generation } = arrival;
        let known = usize::try_from(self.next.saturating_sub(first)).unwrap_or(usize::MAX);
        let end = first.saturating_add(lines.len() as u64);
        let times: Vec<u64> =
            LinesRead::each(&times).skip(known.min(lines.len())).take(lines.len()).collect();
        let fresh: Vec<String> = lines.into_iter().skip(known).collect();
        if fresh.is_empty() {
            return (fresh, 0);
        }
        let missing = first.saturating_sub(self.next).saturating_sub(overwritten);
        self.dropped = self.dropped.saturating_add(missing);
        let mut number = first.max(self.next);
        self.next = end;
        let mut latest = self.lines.back().map_or(0, |line| line.merge_ms);
        for (line, time_ms) in fresh.iter().zip(times) {
            *order += 1;
            if time_ms > 0 {
                latest = latest.max(time_ms.saturating_add_signed(ahead_ms.saturating_neg()));
            }
            let (order, text) = (*order, line.clone());
            match self.batches.back_mut().filter(|batch| !batch.is_full() && batch.end == number) {
                Some(batch) => batch.add(text.len()),
                None => self.batches.push_back(LineBlock {
                    lines: 1,
                    bytes: text.len(),
                    end: number.saturating_add(1),
                }),
            }
            number = number.saturating_add(1);
            self.lines.push_back(HeldLine { order, text, time_ms, merge_ms: latest, generation });
        }
        let over = self.over(room);
        let unrecorded = over.min(self.unrecorded);
        self.unrecorded -= unrecorded;
        self.lines.drain(..(over - unrecorded).min(self.lines.len()));
        self.dropped += over as u64;
        (fresh, over as u64)
    }

    /// Number of a line in the rank's file, from 0; `None`: not known.
    pub fn number(&self, index: usize) -> Option<u64> {
        let mut at = self.unrecorded + index;
        for batch in &self.batches {
            if at < batch.lines {
                return batch.end.checked_sub((batch.lines - at) as u64);
            }
            at -= batch.lines;
        }
        None
    }

    /// Where a line stands among those that hosts keep; `None`: not known.
    pub fn line_place(&self, rank: Rank, index: usize) -> Option<LinePlace> {
        let (line, number) = (self.lines.get(index)?, self.number(index)?);
        Some(LinePlace { generation: line.generation, time_ms: line.merge_ms, rank, line: number + 1 })
    }

    /// How many of the oldest lines have no room any more; they leave their batches.
    fn over(&mut self, room: RingLimits) -> usize {
        let mut over = 0;
        let mut left = self.unrecorded + self.lines.len();
        let mut bytes = self.batches.iter().fold(0_usize, |all, batch| all.saturating_add(batch.bytes));
        while let Some(batch) = self.batches.front_mut() {
            let most = if bytes > room.bytes { batch.lines } else { left.saturating_sub(room.lines) };
            let gone = most.min(batch.lines);
            (over, left) = (over + gone, left - gone);
            batch.lines -= gone;
            if batch.lines > 0 {
                break;
            }
            bytes = bytes.saturating_sub(batch.bytes);
            self.batches.pop_front();
        }
        over
    }
}

/// A ring in a snapshot: most of its lines are left out, but counted.
#[derive(Serialize, Deserialize)]
struct RecordedRing<L> {
    held: usize,
    newest: Vec<L>,
    next: u64,
    dropped: u64,
    #[serde(default)]
    batches: VecDeque<LineBlock>,
}

impl Serialize for LogRing {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let left_out = self.lines.len().saturating_sub(RECORDED_LINES);
        RecordedRing {
            held: self.unrecorded + self.lines.len(),
            newest: self.lines.range(left_out..).collect(),
            next: self.next,
            dropped: self.dropped,
            batches: self.batches.clone(),
        }
        .serialize(to)
    }
}

impl<'de> Deserialize<'de> for LogRing {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<LogRing, D::Error> {
        let ring = RecordedRing::<HeldLine>::deserialize(from)?;
        let unrecorded = ring.held.min(LOG_LINES).saturating_sub(ring.newest.len());
        let lines: VecDeque<HeldLine> = ring.newest.into();
        let mut batches = ring.batches;
        if batches.iter().try_fold(0_usize, |all, batch| all.checked_add(batch.lines))
            != Some(unrecorded + lines.len())
        {
            // A record of a build that knew no bytes.
            let bytes = lines.iter().map(|line| line.text.len()).sum();
            batches = VecDeque::from([LineBlock { lines: unrecorded + lines.len(), bytes, end: 0 }]);
        }
        Ok(LogRing { lines, unrecorded, next: ring.next, dropped: ring.dropped, batches })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where few ranks share the room.
    const FEW: RingLimits = RingLimits { lines: LOG_LINES, bytes: LOG_BYTES };

    #[test]
    fn overwritten_lines_are_not_missing() {
        let (mut ring, mut order) = (LogRing::default(), 0);
        ring.extend(lines(0, 2), FEW, &mut order);
        ring.extend(ReceivedLines { overwritten: 99, ..lines(101, 1) }, FEW, &mut order);
        assert_eq!((ring.dropped, ring.next, ring.number(2)), (0, 102, Some(101)));
        ring.extend(ReceivedLines { overwritten: 3, ..lines(110, 1) }, FEW, &mut order);
        assert_eq!(ring.dropped, 5, "the others were lost");
    }

    fn lines(first: u64, count: usize) -> ReceivedLines {
        ReceivedLines {
            first,
            lines: (0..count).map(|i| i.to_string()).collect(),
            ..ReceivedLines::default()
        }
    }

    #[test]
    fn repeated_log_lines_are_dropped_gaps_counted() {
        let (mut ring, mut order) = (LogRing::default(), 0);
        assert_eq!(ring.extend(lines(0, 3), FEW, &mut order).0.len(), 3);
        assert_eq!(ring.extend(lines(1, 4), FEW, &mut order).0, ["2", "3"]);
        assert_eq!(ring.extend(lines(0, 5), FEW, &mut order).0, Vec::<String>::new());
        assert_eq!(ring.extend(lines(9, 1), FEW, &mut order).0.len(), 1);
        assert_eq!((ring.next, ring.dropped, order), (10, 4, 6));
    }

    #[test]
    fn log_1_line_numbers_survive_gaps_and_drops() {
        let (mut ring, mut order) = (LogRing::default(), 0);
        ring.extend(lines(10, 3), FEW, &mut order);
        ring.extend(lines(12, 2), FEW, &mut order);
        ring.extend(lines(500, 1), FEW, &mut order);
        let numbers =
            |ring: &LogRing| -> Vec<u64> { (0..ring.lines.len()).filter_map(|i| ring.number(i)).collect() };
        assert_eq!(numbers(&ring), [10, 11, 12, 13, 500]);
        ring.extend(lines(501, LOG_LINES - 2), FEW, &mut order);
        assert_eq!(numbers(&ring)[..3], [13, 500, 501]);
        assert_eq!(
            (ring.number(LOG_LINES - 1), ring.number(LOG_LINES)),
            (Some(498 + LOG_LINES as u64), None)
        );
        ring.next = 0;
        ring.extend(ReceivedLines { generation: Generation(1), ..lines(0, 2) }, FEW, &mut order);
        let place = ring.line_place(Rank(3), LOG_LINES - 1).unwrap();
        assert_eq!((place.generation, place.rank, place.line), (Generation(1), Rank(3), 2));
        let copy: LogRing = rmp_serde::from_slice(&rmp_serde::to_vec_named(&ring).unwrap()).unwrap();
        assert_eq!(copy.number(RECORDED_LINES - 1), Some(1), "out of a record, too");
    }

    #[test]
    fn log_lines_are_merged_by_console_clock() {
        let (mut ring, mut order) = (LogRing::default(), 0);
        let times = vec![LinesRead { lines: 1, time_ms: 5_000 }, LinesRead { lines: 2, time_ms: 9_000 }];
        ring.extend(ReceivedLines { times, ahead_ms: 1_000, ..lines(0, 3) }, FEW, &mut order);
        let back = vec![LinesRead { lines: 2, time_ms: 1 }];
        ring.extend(ReceivedLines { times: back, ..lines(2, 2) }, FEW, &mut order);
        ring.extend(lines(4, 1), FEW, &mut order);
        let times: Vec<(u64, u64)> = ring.lines.iter().map(|line| (line.time_ms, line.merge_ms)).collect();
        assert_eq!(times, [(5_000, 4_000), (9_000, 8_000), (9_000, 8_000), (1, 8_000), (0, 8_000)]);
    }

    /// A record of a build that knew no times.
    #[test]
    fn older_record_lines_without_time_are_read() {
        let old = rmp_serde::to_vec_named(&RecordedRing {
            held: 1,
            newest: vec![(7u64, "x")],
            next: 1,
            dropped: 0,
            batches: VecDeque::new(),
        });
        let ring: LogRing = rmp_serde::from_slice(&old.unwrap()).unwrap();
        assert_eq!(ring.lines[0], HeldLine::new(7, "x"));
    }

    #[test]
    fn core_2_log_ring_is_bounded_in_bytes() {
        for ranks in [1, 200, 65_536] {
            drops_the_same(RingLimits::among(ranks));
        }
        let most = |ranks: usize| RingLimits::among(ranks).bytes * ranks;
        assert!(most(1) <= ALL.bytes && most(64) <= ALL.bytes && most(1024) <= ALL.bytes);
    }

    fn drops_the_same(room: RingLimits) {
        let (mut ring, mut order, mut over) = (LogRing::default(), 0, 0);
        let mut copies: Vec<(LogRing, u64)> = Vec::new();
        for n in 0..4_000_u64 {
            // Long ones between many short ones.
            let text = "x".repeat(if n % 7 == 0 || n > 3_000 { 4_000 } else { 20 });
            let arrival = ReceivedLines { first: n, lines: vec![text], ..ReceivedLines::default() };
            for (copy, order) in &mut copies {
                copy.extend(arrival.clone(), room, order);
            }
            over += ring.extend(arrival, room, &mut order).1;
            if n % 611 == 0 {
                let record = rmp_serde::to_vec_named(&ring).unwrap();
                copies.push((rmp_serde::from_slice(&record).unwrap(), order));
            }
            let bytes: usize = ring.lines.iter().map(|line| line.text.len()).sum();
            assert!(bytes <= room.bytes && ring.lines.len() <= room.lines, "{n}: {bytes}");
            assert_eq!(over + ring.lines.len() as u64, n + 1);
        }
        assert!(over > 0 && ring.dropped == over && ring.lines.len() > 10, "{over}");
        for (copy, _) in &copies {
            assert_eq!(copy.unrecorded + copy.lines.len(), ring.lines.len());
            assert_eq!((copy.dropped, &copy.batches), (ring.dropped, &ring.batches));
        }
    }

    #[test]
    fn core_2_log_ring_is_bounded_in_lines() {
        let (mut ring, mut order) = (LogRing::default(), 0);
        let (_, over) = ring.extend(lines(0, LOG_LINES + 10), FEW, &mut order);
        assert_eq!((ring.lines.len(), over, ring.dropped), (LOG_LINES, 10, 10));
        assert!(
            ring.extend(lines(u64::MAX, 2), FEW, &mut order).0.len() <= 2,
            "numbers from outside never overflow"
        );
    }
}
