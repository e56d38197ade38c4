//! Recordings of runs: the state of a console and every event after it, with its time, so that a run can be
//! viewed again and a bug can be replayed.
//!
//! A recording is a sequence of segments. Each starts with a [`SegmentHeader`] and the whole state of the reducer, so that
//! any of them opens by itself and an old one can be deleted. Long outputs of ranks are separate
//! ([`LogBurst`]): they have a bound of their own, and only the newest line of each stays among the events.
//!
//! The shell writes and reads the files: values in, bytes out. Invariants:
//! - TRACE-1: a segment gives the state that the reducer had, all but the text of older log lines; one of
//!   another version is refused.
//! - TRACE-3: an entry cut short ends its segment; it does not spoil it.
//! - TRACE-4: answers to prompts (passphrases) are never in a record.
//! - TRACE-5: a state is validated like events when it is read, and no text of it is longer than
//!   the longest line of a log: texts are cut before a state is decoded.
//! - TRACE-6: what a segment unpacks to is bounded: its state, each of its entries, and all of them. Where one
//!   ends early, its last event reports that.

use crate::Core;
use crate::event::Event;
use rankdeck_proto::media::PICTURE_BYTES;
use rankdeck_proto::message::AgentMessage;
use rankdeck_types::ids::{Timestamp, WallTime};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// Version of the form.
pub const VERSION: u32 = 2;
/// Longest line of a header, bytes.
pub const LONGEST_HEADER: usize = 4096;
/// Longest state, bytes; that of the largest run needs half of it.
const LONGEST_STATE: u64 = 256 << 20;
/// Longest event, or lines of one, bytes; a message of an agent has at most a megabyte.
const LONGEST_ENTRY: u64 = 8 << 20;
/// Most bytes of all events of a segment: an absolute number, or a multiple of its state, whichever is larger. A
/// console starts another segment at half of it.
const EVENTS: (u64, u64) = (8 << 20, 8);
/// Most lines that one message may have; agents send far fewer.
const MOST_LINES: u32 = 1 << 16;
/// What stands for a log line that the record does not hold.
const NOT_HELD: &str = "…";
/// Bytes of one part of a state.
const PART: usize = 1 << 16;
const KIND: &str = "rankdeck-record";

/// First line of a segment, as JSON: all that must be known to find the one with a moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SegmentHeader {
    /// Marks the file; always `rankdeck-record`.
    pub kind: String,
    /// [`VERSION`].
    pub version: u32,
    /// Version of the rankdeck that wrote it.
    pub build: String,
    /// Console's monotonic clock at its first moment.
    pub start: Timestamp,
    /// Wall clock then.
    pub time: WallTime,
}

/// Why something cannot be read as a part of a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The first line is not a header.
    #[error("not a rankdeck recording: {0}")]
    Header(String),
    /// Made by another version.
    #[error("the recording has version {0}; this rankdeck reads version {VERSION}")]
    Version(u32),
    /// The state at the head of a segment does not fit this build.
    #[error("cannot read the state in the recording, written by rankdeck {build}: {error}")]
    State {
        /// The build that wrote it.
        build: String,
        /// What does not fit.
        error: String,
    },
}

impl SegmentHeader {
    /// The header of a segment that begins now.
    pub fn new(start: Timestamp, time: WallTime) -> SegmentHeader {
        let build = env!("CARGO_PKG_VERSION").to_owned();
        SegmentHeader { kind: KIND.into(), version: VERSION, build, start, time }
    }

    /// As the first line of a file, newline included.
    pub fn line(&self) -> String {
        // A structure of words and numbers always is JSON; the empty line of the impossible is not a header.
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }

    /// Reads a first line.
    ///
    /// # Errors
    /// Not a header, or one of another version.
    pub fn parse(line: &str) -> Result<SegmentHeader, TraceError> {
        #[derive(Deserialize)]
        struct HeaderProbe {
            kind: String,
            version: u32,
        }
        let wrong = |error: serde_json::Error| TraceError::Header(error.to_string());
        let kind: HeaderProbe = serde_json::from_str(line).map_err(wrong)?;
        if kind.kind != KIND {
            return Err(TraceError::Header(format!("kind is {}", kind.kind)));
        }
        if kind.version != VERSION {
            return Err(TraceError::Version(kind.version));
        }
        serde_json::from_str(line).map_err(wrong)
    }

    /// Seconds since the epoch at a moment of the console's clock.
    pub fn wall_time(&self, at: Timestamp) -> WallTime {
        self.time + (at.0 as f64 - self.start.0 as f64) / 1000.0
    }
}

#[derive(Serialize)]
struct EntryOut<'a> {
    at: Timestamp,
    event: &'a Event,
    #[serde(skip_serializing_if = "is_zero")]
    lines_apart: u32,
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

#[derive(Deserialize)]
struct EntryIn {
    at: Timestamp,
    event: Event,
    #[serde(default)]
    lines_apart: u32,
}

/// Log lines that lie apart from their event.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct LogBurst {
    /// Index of their event in the segment, from 0.
    pub entry: u64,
    /// All lines of the event but the newest.
    pub lines: Vec<String>,
}

#[derive(Serialize)]
struct BurstOut<'a> {
    entry: u64,
    lines: &'a [String],
}

/// Writes the entries of one segment.
#[derive(Debug, Clone, Default)]
pub struct SegmentWriter {
    entries: u64,
}

impl SegmentWriter {
    /// Appends an event to the entries of its segment, and those of its lines that lie apart to the bursts.
    pub fn event(&mut self, at: Timestamp, event: &Event, entries: &mut Vec<u8>, bursts: &mut Vec<u8>) {
        let entry = self.entries;
        self.entries += 1;
        if let Event::AgentMessage { node, message } = event
            && let AgentMessage::Log { rank, first, overwritten, lines, times } = message.as_ref()
            && let Some((newest, older)) = lines.split_last()
            && (1..=MOST_LINES as usize).contains(&older.len())
        {
            let (lines, times) = (vec![newest.clone()], times.clone());
            let (rank, first, overwritten) = (*rank, *first, *overwritten);
            let message = AgentMessage::Log { rank, first, overwritten, lines, times };
            let event = Event::AgentMessage { node: *node, message: Box::new(message) };
            encode(&EntryOut { at, event: &event, lines_apart: older.len() as u32 }, entries);
            encode(&BurstOut { entry, lines: older }, bursts);
        } else {
            encode(&EntryOut { at, event, lines_apart: 0 }, entries);
        }
    }
}

/// The state of a console, as it stands at the head of a segment before its first event. It is long, and lies
/// in parts: each is given back when it is written.
#[derive(Debug, Default)]
pub struct ConsoleSnapshot {
    /// Full ones, and the one that is written to.
    parts: Vec<Vec<u8>>,
    last: Vec<u8>,
    length: u64,
}

impl ConsoleSnapshot {
    /// The state of a console now.
    ///
    /// # Errors
    /// Something in it has no form.
    pub fn of(core: &Core) -> io::Result<ConsoleSnapshot> {
        let mut state = ConsoleSnapshot::default();
        write(core, &mut state)?;
        Ok(state)
    }

    /// How many bytes [`ConsoleSnapshot::write_to`] writes.
    pub fn bytes(&self) -> u64 {
        self.length + 4
    }

    /// Writes it out.
    ///
    /// # Errors
    /// `to` fails.
    pub fn write_to(self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(&(self.length as u32).to_le_bytes())?;
        self.parts.into_iter().chain([self.last]).try_for_each(|part| to.write_all(&part))
    }
}

impl ConsoleSnapshot {
    #[cold]
    fn begin_part(&mut self, least: usize) {
        let full = std::mem::replace(&mut self.last, Vec::with_capacity(PART.max(least)));
        self.parts.push(full);
    }
}

/// Millions of numbers of a few bytes each come here.
impl Write for ConsoleSnapshot {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    #[inline]
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.length += bytes.len() as u64;
        if self.last.capacity() - self.last.len() < bytes.len() {
            self.begin_part(bytes.len());
        }
        self.last.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write(value: &impl Serialize, to: impl Write) -> io::Result<()> {
    value.serialize(&mut rmp_serde::Serializer::new(to).with_struct_map()).map_err(io::Error::other)
}

/// Appends a value behind its length.
fn encode(value: &impl Serialize, to: &mut Vec<u8>) {
    let begin = to.len();
    to.extend([0; 4]);
    // Only a type that has no form fails, and then for every value: tests would see it.
    if write(value, &mut *to).is_err() {
        return to.truncate(begin);
    }
    let length = (to.len() - begin - 4) as u32;
    to[begin..begin + 4].copy_from_slice(&length.to_le_bytes());
}

/// The next value and its length, or what is wrong with it; `None` where the bytes end, be it in the middle of
/// one.
fn decode<T: DeserializeOwned>(from: &mut impl Read, longest: u64) -> Option<Result<(T, u64), String>> {
    let bytes = match entry(from, longest)? {
        Ok(bytes) => bytes,
        Err(error) => return Some(Err(error)),
    };
    Some(parse(&bytes).map(|value| (value, bytes.len() as u64)))
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    rmp_serde::from_slice(bytes).map_err(|error| error.to_string())
}

/// The bytes of the next value, as [`decode`] reads it.
fn entry(from: &mut impl Read, longest: u64) -> Option<Result<Vec<u8>, String>> {
    let mut length = [0; 4];
    from.read_exact(&mut length).ok()?;
    let length = u64::from(u32::from_le_bytes(length));
    if length > longest {
        return Some(Err(format!("an entry of {length} bytes; the limit is {longest}")));
    }
    let mut bytes = Vec::new();
    from.take(length).read_to_end(&mut bytes).ok()?;
    ((bytes.len() as u64) == length).then_some(Ok(bytes))
}

/// Reads one segment, event by event.
pub struct SegmentReader<R> {
    events: R,
    bursts: Option<R>,
    burst: Option<LogBurst>,
    entry: u64,
    latest: Timestamp,
    damage: Option<String>,
    /// Bytes of events that may follow.
    left: u64,
}

impl<R: Read> SegmentReader<R> {
    /// The state at the head of a segment, and what follows. `bursts` holds the lines that lie apart; without
    /// it they are shown as missing.
    ///
    /// # Errors
    /// The state is truncated, or does not fit this build.
    pub fn open(
        header: &SegmentHeader,
        mut events: R,
        bursts: Option<R>,
    ) -> Result<(Core, SegmentReader<R>), TraceError> {
        let state = |error: String| TraceError::State { build: header.build.clone(), error };
        let read = entry(&mut events, LONGEST_STATE);
        let bytes = read.unwrap_or_else(|| Err("it is truncated".into())).map_err(state)?;
        let length = bytes.len() as u64;
        let core: Core = parse(&cut_texts(bytes)).map_err(state)?;
        let reader = SegmentReader {
            events,
            bursts,
            burst: None,
            entry: 0,
            latest: header.start,
            damage: None,
            left: EVENTS.0.max(EVENTS.1 * length),
        };
        Ok((core.checked(), reader))
    }

    /// The next event with its time, which never goes back; `None` at the end. Before the end of a damaged
    /// segment comes a notice.
    pub fn event(&mut self) -> Option<(Timestamp, Event)> {
        if self.damage.is_some() {
            return None;
        }
        let entry = match decode::<EntryIn>(&mut self.events, LONGEST_ENTRY)? {
            Ok((_, length)) if length > self.left => return self.end("too many events".into()),
            Ok((entry, _)) if entry.lines_apart > MOST_LINES => {
                return self.end("a message of too many lines".into());
            }
            Ok((entry, length)) => {
                self.left -= length;
                entry
            }
            Err(error) => return self.end(error),
        };
        let mut event = entry.event;
        if entry.lines_apart > 0
            && let Event::AgentMessage { message, .. } = &mut event
            && let AgentMessage::Log { lines, .. } = message.as_mut()
        {
            let older = self.burst(entry.lines_apart as usize);
            lines.splice(0..0, older);
        }
        self.entry += 1;
        self.latest = self.latest.max(entry.at);
        Some((self.latest, event))
    }

    /// Ends a damaged segment.
    fn end(&mut self, damage: String) -> Option<(Timestamp, Event)> {
        let text = format!("the recording is damaged: {damage}; what follows is missing");
        self.damage = Some(damage);
        Some((self.latest, Event::Noticed { text }))
    }

    /// What ended it before its end, other than a file cut short.
    pub fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }

    fn burst(&mut self, count: usize) -> Vec<String> {
        while let Some(bursts) = &mut self.bursts
            && self.burst.as_ref().is_none_or(|burst| burst.entry < self.entry)
        {
            match decode::<LogBurst>(bursts, LONGEST_ENTRY) {
                Some(Ok((burst, _))) => self.burst = Some(burst),
                Some(Err(_)) | None => self.bursts = None,
            }
        }
        match self.burst.take_if(|burst| burst.entry == self.entry && burst.lines.len() == count) {
            Some(burst) => burst.lines,
            None => vec![NOT_HELD.to_owned(); count],
        }
    }
}

/// Most bytes of a text: a log line of invalid UTF-8.
const LONGEST: usize = 12 << 10;
/// Most bytes of a picture, as base64.
const PICTURE: usize = PICTURE_BYTES.div_ceil(3) * 4;
/// Name of the field that holds it.
const PICTURE_KEY: &[u8] = b"data";

/// One token of MessagePack.
struct Token<'a> {
    /// Kind and length.
    head: &'a [u8],
    /// Its content, if it is a text.
    text: Option<&'a [u8]>,
}

/// Splits the first token off; `None` at the end, or where the rest is malformed.
fn next<'a>(rest: &mut &'a [u8]) -> Option<Token<'a>> {
    let tag = *rest.first()?;
    // Bytes of the number behind the tag, and whether that is a length.
    let (width, is_length) = match tag {
        0xc4 | 0xc7 | 0xd9 => (1, true),
        0xc5 | 0xc8 | 0xda => (2, true),
        0xc6 | 0xc9 | 0xdb => (4, true),
        0xcc | 0xd0 => (1, false),
        0xcd | 0xd1 | 0xdc | 0xde => (2, false),
        0xca | 0xce | 0xd2 | 0xdd | 0xdf => (4, false),
        0xcb | 0xcf | 0xd3 => (8, false),
        0xd4..=0xd8 => (1 + (1 << (tag - 0xd4)), false),
        _ => (0, false),
    };
    let number = rest.get(1..=width)?.iter().fold(0, |number: usize, byte| number << 8 | usize::from(*byte));
    let is_text = matches!(tag, 0xa0..=0xbf | 0xd9..=0xdb);
    let length = match tag {
        0xa0..=0xbf => usize::from(tag & 31),
        // One byte more: the type of an extension.
        0xc7..=0xc9 => number + 1,
        _ if is_length => number,
        _ => 0,
    };
    let (head, behind) = rest.split_at_checked(1 + width)?;
    let (content, behind) = behind.split_at_checked(length)?;
    *rest = behind;
    Some(Token { head, text: is_text.then_some(content) })
}

/// Cuts every text of a packed state to [`LONGEST`], those of pictures to [`PICTURE`].
fn cut_texts(state: Vec<u8>) -> Vec<u8> {
    let mut cut_texts = Vec::new();
    let (mut rest, mut kept, mut key) = (state.as_slice(), 0, &[][..]);
    while let Some(token) = next(&mut rest) {
        let Some(text) = token.text else { continue };
        let most = if key == PICTURE_KEY { PICTURE } else { LONGEST };
        key = text;
        if text.len() > most {
            let end = state.len() - rest.len();
            cut_texts.extend_from_slice(&state[kept..end - text.len() - token.head.len()]);
            pack(text, most, &mut cut_texts);
            kept = end;
        }
    }
    if kept == 0 {
        return state;
    }
    cut_texts.extend_from_slice(&state[kept..]);
    cut_texts
}

fn pack(text: &[u8], most: usize, into: &mut Vec<u8>) {
    // A character begins with a byte that continues none.
    let end = (0..=most).rev().find(|end| text.get(*end).is_some_and(|byte| byte & 0xc0 != 0x80));
    let mark = "…".as_bytes();
    let text = text.get(..end.unwrap_or(0)).unwrap_or_default();
    into.push(0xdb);
    into.extend(((text.len() + mark.len()) as u32).to_be_bytes());
    into.extend_from_slice(text);
    into.extend_from_slice(mark);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Goal;
    use crate::testkit::RUN;
    use rankdeck_types::ids::{NodeRank, Rank, RunId};
    use rankdeck_types::link_state::LinkState;
    use serde::{Deserialize, Serialize};
    use std::collections::BTreeMap;

    fn core() -> Core {
        let goal = Goal::Attach { run: RunId(RUN.into()), hosts: vec!["ant".into()] };
        Core::new(goal, Vec::new(), Timestamp(7)).lingering()
    }

    fn header() -> SegmentHeader {
        SegmentHeader::new(Timestamp(7), 1.5)
    }

    fn event() -> Event {
        Event::LinkChanged { node: NodeRank(0), state: LinkState::Connecting { attempt: 1 } }
    }

    fn log(lines: &[&str]) -> Event {
        let lines = lines.iter().map(|line| line.to_string()).collect();
        let message = AgentMessage::Log { rank: Rank(0), first: 5, overwritten: 0, lines, times: Vec::new() };
        Event::AgentMessage { node: NodeRank(0), message: Box::new(message) }
    }

    fn head() -> Vec<u8> {
        let mut bytes = Vec::new();
        let state = ConsoleSnapshot::of(&core()).unwrap();
        let length = state.bytes();
        state.write_to(&mut bytes).unwrap();
        assert_eq!(length, bytes.len() as u64);
        bytes
    }

    fn written(events: &[(Timestamp, Event)]) -> (Vec<u8>, Vec<u8>) {
        let (mut writer, mut bytes, mut bursts) = (SegmentWriter::default(), head(), Vec::new());
        for (at, event) in events {
            writer.event(*at, event, &mut bytes, &mut bursts);
        }
        (bytes, bursts)
    }

    fn read(bytes: &[u8], bursts: Option<&[u8]>) -> Vec<(Timestamp, Event)> {
        let (_, mut reader) = SegmentReader::open(&header(), bytes, bursts).unwrap();
        let events = std::iter::from_fn(|| reader.event()).collect();
        assert_eq!(reader.damage(), None);
        events
    }

    #[test]
    fn written_events_are_read_back() {
        let events = [
            (Timestamp(8), event()),
            (Timestamp(8), log(&["a", "b", "c"])),
            (Timestamp(9), Event::WallClock { time: f64::INFINITY }),
            (Timestamp(9), log(&["d"])),
            (Timestamp(10), log(&["e", "f"])),
        ];
        let (bytes, bursts) = written(&events);
        assert_eq!(read(&bytes, Some(&bursts)), events);
        assert_eq!(SegmentHeader::parse(&header().line()), Ok(header()));
        assert_eq!(header().wall_time(Timestamp(2007)), 3.5);
    }

    #[test]
    fn missing_log_lines_are_shown_as_missing() {
        let (bytes, bursts) =
            written(&[(Timestamp(8), log(&["a", "b", "c"])), (Timestamp(9), log(&["d", "e"]))]);
        let missing = [(Timestamp(8), log(&["…", "…", "c"])), (Timestamp(9), log(&["…", "e"]))];
        assert_eq!(read(&bytes, None), missing);
        let first_only = [(Timestamp(8), log(&["a", "b", "c"])), missing[1].clone()];
        assert_eq!(read(&bytes, Some(&bursts[..bursts.len() - 1])), first_only);
    }

    #[test]
    fn trace_3_truncated_segment_keeps_whole_entries() {
        let events =
            [(Timestamp(8), event()), (Timestamp(9), log(&["a", "b"])), (Timestamp(9), Event::Ticked)];
        let (bytes, bursts) = written(&events);
        let head = head().len();
        let mut seen = 0;
        for end in head..=bytes.len() {
            let events_read = read(&bytes[..end], Some(&bursts));
            assert_eq!(events_read, events[..events_read.len()]);
            seen = seen.max(events_read.len());
        }
        assert_eq!(seen, events.len());
        for end in 0..head {
            assert!(matches!(
                SegmentReader::open(&header(), &bytes[..end], None),
                Err(TraceError::State { .. })
            ));
        }
    }

    #[test]
    fn times_never_go_back_and_damage_ends_a_segment() {
        let (mut bytes, _) = written(&[(Timestamp(90), Event::Ticked), (Timestamp(8), Event::Ticked)]);
        assert_eq!(read(&bytes, None), [(Timestamp(90), Event::Ticked), (Timestamp(90), Event::Ticked)]);
        bytes.extend([1, 0, 0, 0, 0xc1]);
        let (_, mut reader) = SegmentReader::open(&header(), &bytes[..], None).unwrap();
        let events: Vec<Event> = (0..5).filter_map(|_| reader.event()).map(|(_, event)| event).collect();
        assert!(matches!(events[..], [_, _, Event::Noticed { .. }]), "the end is reported: {events:?}");
        assert!(reader.damage().is_some());
    }

    #[test]
    fn trace_6_segment_that_unpacks_to_too_much_ends() {
        let entry = |length: u64| [&(length as u32).to_le_bytes()[..], &[0; 9]].concat();
        let long = entry(LONGEST_STATE + 1);
        let opened = SegmentReader::open(&header(), &long[..], None);
        assert!(matches!(opened, Err(TraceError::State { error, .. }) if error.contains("the limit")));
        let (whole, _) = written(&[(Timestamp(8), Event::Ticked)]);
        let head = head();
        let left = EVENTS.0.max(EVENTS.1 * (head.len() as u64 - 4));
        let tick = &whole[head.len()..];
        let most = left as usize / (tick.len() - 4);
        let bytes = [&head[..], &tick.repeat(most + 1000)].concat();
        let (_, mut reader) = SegmentReader::open(&header(), &bytes[..], None).unwrap();
        let mut last = None;
        let count =
            std::iter::from_fn(|| reader.event()).inspect(|(_, event)| last = Some(event.clone())).count();
        assert_eq!((count, matches!(last, Some(Event::Noticed { .. }))), (most + 1, true));
        let (mut bytes, _) = written(&[(Timestamp(8), Event::Ticked)]);
        bytes.extend(entry(LONGEST_ENTRY + 1));
        let (_, mut reader) = SegmentReader::open(&header(), &bytes[..], None).unwrap();
        assert_eq!(std::iter::from_fn(|| reader.event()).count(), 2);
    }

    #[test]
    fn trace_1_other_headers_are_refused() {
        assert!(matches!(SegmentHeader::parse(""), Err(TraceError::Header(_))));
        assert!(matches!(SegmentHeader::parse("{\"kind\":\"x\",\"version\":1}"), Err(TraceError::Header(_))));
        let newer = "{\"kind\":\"rankdeck-record\",\"version\":3}";
        assert_eq!(SegmentHeader::parse(newer), Err(TraceError::Version(3)));
    }

    #[test]
    fn trace_4_answers_are_not_recorded() {
        let event = Event::PromptAnswered { node: NodeRank(0), answer: Some("hunter2".into()) };
        let (mut bytes, mut bursts) = (Vec::new(), Vec::new());
        SegmentWriter::default().event(Timestamp(1), &event, &mut bytes, &mut bursts);
        assert!(!bytes.windows(7).any(|window| window == b"hunter2"));
    }

    #[test]
    fn trace_5_impossible_state_is_dropped_and_counted() {
        use crate::model::{EventTone, HistoryLine};
        use crate::series::Place;
        use rankdeck_proto::media::{Histogram, ImageFormat, ImageHeader, encoded};
        let head = ImageHeader { format: ImageFormat::Gif, width: 5, height: 4 };
        let good = encoded(b"GIF89a\x05\0\x04\0");
        let mut core = core();
        let model = core.model_mut();
        let script = "x\"><script>".to_owned();
        let longer = ImageHeader { width: 6, ..head };
        let place = Place::default();
        model.gallery.push("good".into(), place, head, good.clone());
        model.gallery.push("script".into(), place, head, script);
        model.gallery.push("sides".into(), place, longer, good.clone());
        model.gallery.push(String::new(), place, head, good);
        let bins = |counts: Vec<f64>| Histogram { edges: vec![0.0, 1.0], counts };
        model.histograms.entry("good".into()).or_default().push(place, bins(vec![1.0]));
        model.histograms.entry("bad".into()).or_default().push(place, bins(vec![-1.0]));
        let line = |n| HistoryLine::new(n, Timestamp(n), EventTone::Bad, "x");
        model.history = (0..20_000).map(line).collect();
        let mut bytes = Vec::new();
        ConsoleSnapshot::of(&core).unwrap().write_to(&mut bytes).unwrap();
        let (read, _) = SegmentReader::open(&header(), &bytes[..], None).unwrap();
        let model = read.model();
        assert_eq!(model.gallery.names().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["good"]);
        assert_eq!(model.histograms.keys().collect::<Vec<_>>(), ["good"]);
        assert_eq!((model.drops.withheld, model.drops.history), (4, 19_000));
        assert_eq!(model.history.back().map(|line| line.at), Some(Timestamp(19_999)));
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Sample {
        name: String,
        data: String,
        numbers: (u8, i16, u32, i64, f32, f64, bool, Option<char>),
        lists: Vec<Vec<u64>>,
        map: BTreeMap<String, Vec<String>>,
    }

    fn sample(name: &str, data: usize) -> Sample {
        Sample {
            name: name.into(),
            data: "A".repeat(data),
            numbers: (200, -300, 70_000, i64::MIN, 1.5, -2.5, true, Some('é')),
            lists: vec![(0..70_000).collect(), Vec::new()],
            map: (0..40).map(|n| (format!("key{n}"), vec!["x".repeat(n * 10); 3])).collect(),
        }
    }

    fn through(sample: &Sample) -> Sample {
        let mut bytes = Vec::new();
        sample.serialize(&mut rmp_serde::Serializer::new(&mut bytes).with_struct_map()).unwrap();
        rmp_serde::from_slice(&cut_texts(bytes)).unwrap()
    }

    #[test]
    fn trace_5_long_texts_are_cut_and_nothing_else_changes() {
        for (length, data) in [(0, 0), (31, 31), (300, LONGEST + 1), (LONGEST, PICTURE)] {
            let short = sample(&"é".repeat(length / 2), data);
            assert_eq!(through(&short), short);
        }
        let mut long = sample(&"é".repeat(LONGEST), PICTURE + 1);
        long.map.insert("k".repeat(LONGEST + 1), vec!["y".repeat(1 << 20), "z".into()]);
        let read = through(&long);
        assert!(read.name.ends_with("é…") && read.name.len() <= LONGEST + 3, "{}", read.name.len());
        assert_eq!(read.data.len(), PICTURE + 3);
        let (key, values) = read.map.iter().find(|(key, _)| key.starts_with("kkk")).unwrap();
        assert_eq!((key.len(), values[0].len(), values[1].as_str()), (LONGEST + 3, LONGEST + 3, "z"));
        assert_eq!((&read.numbers, &read.lists), (&long.numbers, &long.lists));
    }

    #[test]
    fn malformed_bytes_are_left_to_their_reader() {
        for bytes in
            [&[0xdb, 0xff, 0xff, 0xff, 0xff, 1][..], &[0xc9, 0xff, 0xff, 0xff, 0xff], &[0xda, 1], &[0xc1]]
        {
            assert_eq!(cut_texts(bytes.to_vec()), bytes);
        }
    }
}
