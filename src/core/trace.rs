//! Traces: every event with its time, as JSON Lines, so that a run can be looked at again and a bug can be
//! replayed.
//!
//! Owner: the shell writes the lines, `rankdeck replay` reads them. Pure: text in, text out. Invariants:
//! - TRACE-1: the first line is the [`Header`]; a trace of another version is refused.
//! - TRACE-2: a trace never grows over its cap. Dropped events are counted, and those before stay valid.
//! - TRACE-3: a line torn by a crash ends the trace; it does not spoil it.
//! - TRACE-4: answers to prompts (passphrases) are never in a trace.

use crate::event::Event;
use crate::{Core, Goal};
use rankdeck_types::ids::{Timestamp, WallTime};
use rankdeck_types::plan::Until;
use serde::{Deserialize, Serialize};

/// Version of the form.
pub const VERSION: u32 = 1;
/// Bytes of one trace at most, unless told otherwise.
pub const CAP: u64 = 256 << 20;

/// First line of a trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Always `rankdeck-trace`.
    pub kind: String,
    /// [`VERSION`].
    pub version: u32,
    /// What the console was for.
    pub goal: Goal,
    /// Goals of `--until`.
    pub until: Vec<Until>,
    /// The console stayed when the run was over.
    #[serde(default)]
    pub linger: bool,
    /// Console's monotonic clock at the start.
    pub start: Timestamp,
    /// Wall clock at the start.
    #[serde(default)]
    pub time: WallTime,
}

impl Header {
    /// The header of a console for `goal` that starts at `start`.
    pub fn new(goal: Goal, until: Vec<Until>, linger: bool, start: Timestamp, time: WallTime) -> Header {
        Header { kind: "rankdeck-trace".into(), version: VERSION, goal, until, linger, start, time }
    }
}

#[derive(Serialize)]
struct LineOut<'a> {
    at: Timestamp,
    event: &'a Event,
}

#[derive(Deserialize)]
struct LineIn {
    at: Timestamp,
    event: Event,
}

/// Makes the lines of one trace.
#[derive(Debug, Clone)]
pub struct Recorder {
    written: u64,
    cap: u64,
    dropped: u64,
}

impl Recorder {
    /// A recorder for at most `cap` bytes, and the first line.
    pub fn start(header: &Header, cap: u64) -> Result<(Recorder, String), TraceError> {
        let mut line =
            serde_json::to_string(header).map_err(|error| TraceError::Header(error.to_string()))?;
        line.push('\n');
        Ok((Recorder { written: line.len() as u64, cap, dropped: 0 }, line))
    }

    /// The line of one event, newline included; `None` when it is dropped because of the cap.
    pub fn line(&mut self, at: Timestamp, event: &Event) -> Option<String> {
        // A missing event makes all later ones meaningless, so nothing follows it.
        let line = match self.dropped {
            0 => serde_json::to_string(&LineOut { at, event }).ok(),
            _ => None,
        };
        match line {
            Some(mut line) if self.written + (line.len() as u64) < self.cap => {
                line.push('\n');
                self.written += line.len() as u64;
                Some(line)
            }
            Some(_) | None => {
                self.dropped += 1;
                None
            }
        }
    }

    /// Number of events that were dropped because of the cap.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// A trace that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// Its first line.
    pub header: Header,
    /// Events in order.
    pub events: Vec<(Timestamp, Event)>,
    /// Number of the line at which it ends early (torn or of a newer form), from 1.
    pub torn_at: Option<usize>,
}

/// Why a text cannot be read as a trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The first line is not a header.
    #[error("not a rankdeck trace: {0}")]
    Header(String),
    /// Made by another version.
    #[error("the trace has version {0}, this rankdeck reads version {VERSION}")]
    Version(u32),
}

impl Trace {
    /// Reads a whole trace.
    pub fn parse(text: &str) -> Result<Trace, TraceError> {
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        #[derive(Deserialize)]
        struct Kind {
            kind: String,
            version: u32,
        }
        let kind: Kind =
            serde_json::from_str(first).map_err(|error| TraceError::Header(error.to_string()))?;
        if kind.kind != "rankdeck-trace" {
            return Err(TraceError::Header(format!("kind is {}", kind.kind)));
        }
        if kind.version != VERSION {
            return Err(TraceError::Version(kind.version));
        }
        let header: Header =
            serde_json::from_str(first).map_err(|error| TraceError::Header(error.to_string()))?;
        let (mut events, mut torn_at) = (Vec::new(), None);
        for (index, line) in lines.enumerate() {
            match serde_json::from_str::<LineIn>(line) {
                Ok(line) => events.push((line.at, line.event)),
                Err(_) => {
                    torn_at = Some(index + 2);
                    break;
                }
            }
        }
        Ok(Trace { header, events, torn_at })
    }

    /// A console as it was at the start of the trace; feed it [`Trace::events`] and leave its effects alone.
    pub fn core(&self) -> Core {
        let core = Core::new(self.header.goal.clone(), self.header.until.clone(), self.header.start);
        if self.header.linger { core.lingering() } else { core }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::ids::{NodeRank, RunId};
    use rankdeck_types::link_state::LinkState;

    fn header() -> Header {
        let goal = Goal::Attach { run: RunId("r".into()), hosts: vec!["ant".into()] };
        Header::new(goal, vec![Until::Steps(5)], true, Timestamp(7), 1.5)
    }

    fn event() -> Event {
        Event::LinkChanged { node: NodeRank(0), state: LinkState::Connecting { attempt: 1 } }
    }

    #[test]
    fn what_was_written_is_read() {
        let (mut recorder, mut text) = Recorder::start(&header(), CAP).unwrap();
        text.push_str(&recorder.line(Timestamp(8), &event()).unwrap());
        text.push_str(&recorder.line(Timestamp(9), &Event::Ticked).unwrap());
        let trace = Trace::parse(&text).unwrap();
        assert_eq!(trace.header, header());
        assert_eq!(trace.events, [(Timestamp(8), event()), (Timestamp(9), Event::Ticked)]);
        assert_eq!(trace.torn_at, None);
    }

    #[test]
    fn trace_2_the_cap_ends_it_and_counts() {
        let (mut recorder, first) = Recorder::start(&header(), CAP).unwrap();
        let line = recorder.line(Timestamp(8), &event()).unwrap();
        let cap = (first.len() + line.len()) as u64;
        let (mut recorder, _) = Recorder::start(&header(), cap).unwrap();
        assert!(recorder.line(Timestamp(8), &event()).is_some());
        assert!(recorder.line(Timestamp(8), &event()).is_none());
        assert!(recorder.line(Timestamp(9), &Event::Ticked).is_none());
        assert_eq!(recorder.dropped(), 2);
    }

    #[test]
    fn trace_3_a_torn_line_ends_it() {
        let (mut recorder, mut text) = Recorder::start(&header(), CAP).unwrap();
        text.push_str(&recorder.line(Timestamp(8), &event()).unwrap());
        text.push_str("{\"at\":9,\"eve");
        let trace = Trace::parse(&text).unwrap();
        assert_eq!((trace.events.len(), trace.torn_at), (1, Some(3)));
    }

    #[test]
    fn trace_1_other_texts_are_refused() {
        assert!(matches!(Trace::parse(""), Err(TraceError::Header(_))));
        assert!(matches!(Trace::parse("{\"kind\":\"x\",\"version\":1}"), Err(TraceError::Header(_))));
        let newer = "{\"kind\":\"rankdeck-trace\",\"version\":2}";
        assert_eq!(Trace::parse(newer), Err(TraceError::Version(2)));
    }

    #[test]
    fn trace_4_answers_are_not_recorded() {
        let (mut recorder, _) = Recorder::start(&header(), CAP).unwrap();
        let event = Event::PromptAnswered { node: NodeRank(0), answer: Some("hunter2".into()) };
        assert!(!recorder.line(Timestamp(1), &event).unwrap().contains("hunter2"));
    }
}
