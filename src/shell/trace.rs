//! The trace: everything that the core was told, one JSON object per line, so that a run can be shown and reasoned about again.
//!
//! Line 1 is the [`Header`]; each other line is `[milliseconds, event]`. A line that cannot be read (a console killed while writing leaves half a
//! line) ends the trace there.

use crate::core::Goal;
use crate::core::event::Event;
use crate::core::ids::{RunId, Timestamp, WallTime};
use crate::core::plan::{PlanDraft, Until};
use serde::{Deserialize, Serialize};
use std::io::BufRead;

/// Version of the format.
pub const VERSION: u32 = 1;

/// First line: what the console was for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`VERSION`].
    pub trace: u32,
    /// Wall time of millisecond 0.
    pub time: WallTime,
    /// The goal.
    pub goal: RecordedGoal,
    /// `--until`.
    #[serde(default)]
    pub until: Vec<Until>,
}

/// [`Goal`], as it is written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordedGoal {
    /// Launch this.
    Launch(Box<PlanDraft>),
    /// Look at this.
    Attach {
        /// The run.
        run: RunId,
        /// Hosts in node_rank order.
        hosts: Vec<String>,
    },
}

impl From<&Goal> for RecordedGoal {
    fn from(goal: &Goal) -> RecordedGoal {
        match goal {
            Goal::Launch(draft) => RecordedGoal::Launch(draft.clone()),
            Goal::Attach { run, hosts } => RecordedGoal::Attach { run: run.clone(), hosts: hosts.clone() },
        }
    }
}

impl From<RecordedGoal> for Goal {
    fn from(goal: RecordedGoal) -> Goal {
        match goal {
            RecordedGoal::Launch(draft) => Goal::Launch(draft),
            RecordedGoal::Attach { run, hosts } => Goal::Attach { run, hosts },
        }
    }
}

/// A trace in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// What the console was for.
    pub header: Header,
    /// What happened, times never decreasing.
    pub events: Vec<(Timestamp, Event)>,
    /// The last line was not complete.
    pub cut: bool,
}

/// Reads a trace.
///
/// # Errors
/// One sentence, when the first line is no header of this version or the file cannot be read.
pub fn read(reader: impl BufRead) -> Result<Trace, String> {
    let mut lines = reader.lines();
    let first = lines.next().ok_or("the trace is empty")?.map_err(|error| error.to_string())?;
    let header: Header =
        serde_json::from_str(&first).map_err(|error| format!("line 1 is no trace header: {error}"))?;
    if header.trace != VERSION {
        return Err(format!("the trace has version {}, this build reads {VERSION}", header.trace));
    }
    let mut events: Vec<(Timestamp, Event)> = Vec::new();
    let mut cut = false;
    for line in lines {
        match line.ok().and_then(|line| serde_json::from_str::<(Timestamp, Event)>(&line).ok()) {
            Some((at, event)) => {
                let at = events.last().map_or(at, |(last, _)| at.max(*last));
                events.push((at, event));
            }
            None => {
                cut = true;
                break;
            }
        }
    }
    Ok(Trace { header, events, cut })
}

/// One line of a trace, without newline.
pub fn line(at: Timestamp, event: &Event) -> serde_json::Result<String> {
    serde_json::to_string(&(at, event))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::event::LinkState;
    use crate::core::ids::NodeRank;

    fn header() -> Header {
        Header {
            trace: VERSION,
            time: 1.5,
            goal: RecordedGoal::Attach { run: RunId("r".into()), hosts: vec!["a".into()] },
            until: vec![Until::Steps(3)],
        }
    }

    #[test]
    fn a_trace_comes_back_as_written_and_a_torn_end_is_said() {
        let events = [
            (
                Timestamp(0),
                Event::LinkChanged { node: NodeRank(0), state: LinkState::Connecting { attempt: 1 } },
            ),
            (Timestamp(5), Event::Ticked),
            (Timestamp(9), Event::DetachRequested),
        ];
        let mut text = serde_json::to_string(&header()).unwrap();
        for (at, event) in &events {
            text += &format!("\n{}", line(*at, event).unwrap());
        }
        let whole = read(text.as_bytes()).unwrap();
        assert_eq!((whole.header, whole.events.as_slice(), whole.cut), (header(), &events[..], false));
        let torn = read(&text.as_bytes()[..text.len() - 4]).unwrap();
        assert_eq!((torn.events.as_slice(), torn.cut), (&events[..2], true));
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        assert!(read(&b""[..]).is_err());
        assert!(read(&b"{\"kind\":\"progress\"}\n"[..]).is_err());
        let newer = serde_json::to_string(&Header { trace: 99, ..header() }).unwrap();
        assert!(read(newer.as_bytes()).unwrap_err().contains("version 99"));
    }

    #[test]
    fn answers_to_prompts_never_enter_a_trace() {
        let event = Event::PromptAnswered { node: NodeRank(0), answer: Some("hunter2".into()) };
        assert!(!line(Timestamp(0), &event).unwrap().contains("hunter2"));
    }
}
