//! A place in a record, and the run as it was there.
//!
//! Going anywhere costs one segment: its state is read, and its events are applied up to the moment. What the
//! core wants done is not done: the past touches no host.

use super::record::reader::{Events, Record, RecordError, TRIES};
use rankdeck_core::Core;
use rankdeck_core::effect::Effect;
use rankdeck_core::event::Event;
use rankdeck_core::model::Model;
use rankdeck_core::report::Report;
use rankdeck_types::ids::{Timestamp, WallTime};

/// A place in a record.
pub struct Player {
    record: Record,
    /// The segment that is being read.
    index: usize,
    core: Core,
    events: Events,
    next: Option<(Timestamp, Event)>,
    at: Timestamp,
    end: Timestamp,
    /// What the open segment holds is known up to here.
    read_to: Timestamp,
}

impl Player {
    /// At the beginning. `end` is the latest moment that can be gone to.
    ///
    /// # Errors
    /// No segment of the record can be read.
    pub fn new(record: Record, end: Timestamp) -> Result<Player, RecordError> {
        let mut wrong = None;
        for index in 0..record.count().min(TRIES) {
            match record.segment(index) {
                Ok((core, mut events)) => {
                    let (at, next) = (record.header(index).map_or(end, |head| head.start), events.event());
                    let end = end.max(at);
                    return Ok(Player { record, index, core, events, next, at, end, read_to: end });
                }
                Err(error) => wrong = wrong.or(Some(error)),
            }
        }
        Err(wrong.unwrap_or_else(|| RecordError::Empty(std::path::PathBuf::new())))
    }

    /// The run as it was here.
    pub fn model(&self) -> &Model {
        self.core.model()
    }

    /// Where we are.
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// The earliest moment.
    pub fn start(&self) -> Timestamp {
        self.record.start()
    }

    /// The latest moment.
    pub fn end(&self) -> Timestamp {
        self.end
    }

    /// The record goes on until here, and segments may have come and gone.
    ///
    /// # Errors
    /// As [`Record::refresh`].
    pub fn extend(&mut self, end: Timestamp) -> Result<(), RecordError> {
        let number = self.record.number(self.index);
        self.record.refresh()?;
        self.end = self.end.max(end);
        // What is being read stays open although its file may have gone.
        self.index = number.map_or(0, |number| self.record.index_of(number));
        Ok(())
    }

    /// Wall time here.
    pub fn wall_time(&self) -> WallTime {
        self.record.wall_time(self.at)
    }

    /// Wall time at a moment.
    pub fn wall_time_at(&self, at: Timestamp) -> WallTime {
        self.record.wall_time(at)
    }

    /// Applies the next event, and returns when it happened and what it led to; `None` at the end.
    pub fn step(&mut self) -> Option<(Timestamp, Vec<Report>)> {
        while self.next.is_none() {
            self.open(self.index + 1).ok()?;
        }
        let (at, event) = self.next.take()?;
        self.at = at;
        let effects = self.core.handle(at, event);
        self.next = self.events.event();
        let time = self.record.wall_time(at);
        let reports = effects.into_iter().filter_map(|effect| match effect {
            Effect::Tell(report) => Some(Report { time, ..*report }),
            _ => None,
        });
        Some((at, reports.collect()))
    }

    /// Goes to a moment.
    pub fn seek(&mut self, to: Timestamp) {
        let to = to.clamp(self.start(), self.end);
        let wanted = self.record.find(to);
        if to < self.at || wanted != self.index || to > self.read_to {
            // A segment that cannot be read is gone over from the one before it.
            let found = (0..=wanted).rev().any(|index| self.open(index).is_ok());
            if !found && to < self.at {
                return;
            }
        }
        while let Some((at, event)) = self.next.take_if(|(at, _)| *at <= to) {
            self.core.handle(at, event);
            self.next = self.events.event();
        }
        self.at = to;
    }

    fn open(&mut self, index: usize) -> Result<(), RecordError> {
        let (core, mut events) = self.record.segment(index)?;
        (self.index, self.core, self.read_to) = (index, core, self.end);
        self.next = events.event();
        self.events = events;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::cursor::Cursor;
    use crate::shell::record::segments::{Limits, Ring};
    use rankdeck_core::Goal;
    use rankdeck_types::ids::RunId;
    use std::path::Path;

    /// A record of a note each second, in many segments.
    fn recorded(folder: &Path, seconds: u64) {
        let goal = Goal::Attach { run: RunId("r".into()), hosts: vec!["a".into()] };
        let limits = Limits { segments: 1 << 20, logs: 1 << 20, events: 500, states: 0, lines: 500 };
        let mut core = Core::new(goal, Vec::new(), Timestamp(0));
        let mut ring = Ring::new(folder.into(), limits, Timestamp(0), 100.0).unwrap();
        for n in 0..seconds {
            let event = Event::Noticed { text: format!("{n} {}", "x".repeat(40)) };
            ring.event(Timestamp(n * 1000), &event, &core);
            core.handle(Timestamp(n * 1000), event);
        }
        ring.finish();
    }

    fn newest(player: &Player) -> usize {
        player.model().history.len()
    }

    #[test]
    fn seeking_goes_both_ways_and_stops_at_the_ends() {
        let folder = tempfile::tempdir().unwrap();
        recorded(folder.path(), 300);
        let record = Record::open(folder.path()).unwrap();
        assert!(record.count() > 3, "{} segments", record.count());
        let (_, end) = record.last().unwrap();
        let mut player = Player::new(record, end).unwrap();
        for to in [250_500, 10_000, 0, 99_999, 100_000, 299_000, 5_500] {
            player.seek(Timestamp(to));
            assert_eq!((player.at(), newest(&player)), (Timestamp(to), to as usize / 1000 + 1));
        }
        player.seek(Timestamp(1 << 40));
        assert_eq!((player.at(), newest(&player)), (Timestamp(299_000), 300));
        player.seek(Timestamp(0));
        assert_eq!(player.wall_time(), 100.0);
    }

    #[test]
    fn stepping_goes_through_all_segments() {
        let folder = tempfile::tempdir().unwrap();
        recorded(folder.path(), 100);
        let record = Record::open(folder.path()).unwrap();
        let mut player = Player::new(record, Timestamp(0)).unwrap();
        let steps = std::iter::from_fn(|| player.step()).map(|(at, _)| at).collect::<Vec<_>>();
        assert_eq!((steps.len(), steps.is_sorted()), (100, true));
        assert_eq!(newest(&player), 100);
    }

    /// One event is later than those after it, as when a clock was set back.
    #[test]
    fn a_record_with_an_event_later_than_its_last_one_is_played_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let goal = Goal::Attach { run: RunId("r".into()), hosts: vec!["a".into()] };
        let limits = Limits { segments: 1 << 20, logs: 1 << 20, events: 500, states: 0, lines: 500 };
        let core = Core::new(goal, Vec::new(), Timestamp(0));
        let mut ring = Ring::new(folder.path().into(), limits, Timestamp(0), 100.0).unwrap();
        for (text, at) in [("a", 0), ("b", 9_000), ("c", 5_000), ("d", 5_000)] {
            ring.event(Timestamp(at), &Event::Noticed { text: text.into() }, &core);
        }
        ring.finish();
        let mut cursor = Cursor::replay(Record::open(folder.path()).unwrap()).unwrap();
        cursor.play(Timestamp(0));
        let mut looks = 0;
        while let Some(now) = cursor.poll_timeout(Timestamp(50 * looks)) {
            cursor.advance(now);
            looks += 1;
            assert!(looks < 1000, "at {:?} for ever", cursor.at());
        }
        assert_eq!((cursor.at(), cursor.model().history.len()), (Timestamp(9_000), 4));
        cursor.player().seek(Timestamp(0));
        let steps = std::iter::from_fn(|| cursor.player().step()).take(1000).count();
        assert_eq!(steps, 3, "what follows the first, once each");
    }

    #[test]
    fn a_segment_that_is_damaged_is_gone_over() {
        let folder = tempfile::tempdir().unwrap();
        recorded(folder.path(), 300);
        let record = Record::open(folder.path()).unwrap();
        let middle = record.header(2).unwrap().start;
        let next = record.header(3).unwrap().start;
        let path = crate::shell::record::segments::path(folder.path(), 3, false);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() / 8]).unwrap();
        let mut player = Player::new(record, Timestamp(299_000)).unwrap();
        player.seek(Timestamp(middle.0 + 1000));
        assert_eq!(newest(&player) as u64, middle.0 / 1000, "as it was before the damage");
        player.seek(next);
        assert_eq!(newest(&player) as u64, next.0 / 1000 + 1);
    }
}
