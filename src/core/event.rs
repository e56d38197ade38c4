//! Input and output of the core: events and effects.
//!
//! [`Event`] is every cause of change, as one closed enum. Events are recorded as they are: a trace is a list
//! of `(Timestamp, Event)`. [`Effect`] is a request of the core, as data: the app executes it and reports
//! back with events.

use crate::model::SlowLink;
use crate::report::Report;
use crate::watch::history::silence::PaceHistory;
use rankdeck_proto::link::{LinkCommand, LinkEvent};
use rankdeck_proto::message::{AgentMessage, CheckpointReply, LaunchHash, StopMode};
use rankdeck_proto::process::{ProcessAction, ProcessName};
use rankdeck_proto::search::LogSearch;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::Host;
use rankdeck_types::ids::{NodeRank, Rank, WallTime};
use rankdeck_types::link_state::{LinkState, Prompt};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a request to stop the run comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopSource {
    /// A key of the screen.
    Key,
    /// A signal to the console.
    Signal,
    /// A command, such as `rankdeck stop`.
    Command,
    /// The console leaves while nothing runs that could be left alone.
    Detach,
}

impl fmt::Display for StopSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StopSource::Key => "key",
            StopSource::Signal => "signal",
            StopSource::Command => "command",
            StopSource::Detach => "detach",
        })
    }
}

/// One cause of change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A link changed its state.
    LinkChanged {
        /// The link's host.
        node: NodeRank,
        /// The new state.
        state: LinkState,
    },
    /// An agent sent a message.
    #[serde(rename = "agent_said")]
    AgentMessage {
        /// The agent's host.
        node: NodeRank,
        message: Box<AgentMessage>,
    },
    /// The user, a signal or a policy requested a stop of the run.
    StopRequested {
        /// How hard; a harder one replaces a softer one.
        mode: StopMode,
        /// Where the request comes from.
        by: StopSource,
    },
    /// Begin a new generation.
    RestartRequested {
        /// Checkpoint path on the host of rank 0, `latest`, or `None` to start from scratch.
        from: Option<String>,
        /// Names of hosts that the new generation excludes.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        exclude: Vec<String>,
        /// Hosts that it adds, known or new.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        add: Vec<Host>,
        /// The experiment with changed keys; `None`: as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        experiment: Option<Box<Experiment>>,
        /// The launch that the user was shown, for a run that another console has launched (OWN-2).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shown: Option<LaunchHash>,
    },
    /// Begin a new generation in which ranks compare every collective before they begin it.
    CheckedRestartRequested {
        /// Checkpoint to begin from, as for [`Event::RestartRequested`].
        from: Option<String>,
        /// As for [`Event::RestartRequested`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shown: Option<LaunchHash>,
    },
    /// A restart was requested that this console cannot make.
    RestartRefused {
        /// One sentence, with what helps.
        reason: String,
    },
    /// A screen shows live frames of the policy, or no longer.
    Watched {
        /// It does.
        on: bool,
    },
    /// The user requests an inspection of a rank.
    #[serde(rename = "look_requested")]
    InspectRequested { rank: Rank },
    /// The user resumes a rank that a signal has stopped.
    ContinueRequested { rank: Rank },
    /// The user requests that a lost rank joins the running process group again.
    RejoinRequested { rank: Rank },
    /// The user requests the environment of one process of a host, or a signal to it.
    #[serde(rename = "reach_requested")]
    ProcessActionRequested { node: NodeRank, process: ProcessName, action: ProcessAction },
    /// The user searches the logs on the hosts; `None`: no longer.
    Searched {
        /// What for; places in it are by this console's clock.
        #[serde(rename = "wanted")]
        search: Option<Box<LogSearch>>,
    },
    /// Leave the run alone and end the console.
    DetachRequested,
    /// The user answered a prompt of a link.
    PromptAnswered {
        /// The link's host.
        node: NodeRank,
        /// `None`: refused. The text itself never enters a trace.
        #[serde(skip)]
        answer: Option<String>,
    },
    /// The user answered whether a checkpoint is copied between hosts.
    CopyAnswered { yes: bool },
    /// Warnings of whatever prepared the run, for people to see from the start.
    Warned {
        /// One warning per line.
        lines: Vec<String>,
    },
    /// A notice about the console itself, as that its record has a hole.
    Noticed {
        /// One sentence.
        text: String,
    },
    /// The console's wall clock, at the start and again after a jump. It serves to show times and clock skew,
    /// never to decide.
    WallClock {
        /// Seconds since the epoch.
        time: WallTime,
    },
    /// What an earlier console of this run learned about its pace; comes before all other events.
    Recalled {
        /// How long ranks are usually silent.
        #[serde(rename = "learnt")]
        pace: PaceHistory,
    },
    /// An earlier `rankdeck check --measure` found links between hosts slow.
    Measured { slow_links: Vec<SlowLink> },
    /// Time passed; nothing else did.
    Ticked,
}

impl From<(NodeRank, LinkEvent)> for Event {
    fn from((node, event): (NodeRank, LinkEvent)) -> Event {
        match event {
            LinkEvent::State(state) => Event::LinkChanged { node, state },
            LinkEvent::Message(message) => Event::AgentMessage { node, message },
        }
    }
}

impl Event {
    /// It belongs into a record. Pictures of the policy at play and lines of the hosts' files are too much
    /// for one, and change nothing else; environments are the user's alone (REACH-2).
    pub fn is_recorded(&self) -> bool {
        match self {
            Event::AgentMessage { message, .. } => {
                let passing = |message: &AgentMessage| {
                    use AgentMessage::{Found, Frame, Reached};
                    matches!(message, Frame { .. } | Found { .. } | Reached { .. })
                };
                !passing(message)
            }
            Event::Watched { .. } | Event::Searched { .. } | Event::ProcessActionRequested { .. } => false,
            _ => true,
        }
    }

    /// The event without bytes of a checkpoint, which no record has; `None`: it has none.
    pub fn without_pieces(&self) -> Option<Event> {
        let Event::AgentMessage { node, message } = self else { return None };
        let AgentMessage::Checkpoint { request, reply } = &**message else { return None };
        let CheckpointReply::Piece { bytes, .. } = **reply else { return None };
        let reply = Box::new(CheckpointReply::Piece { bytes, data: String::new() });
        let message = Box::new(AgentMessage::Checkpoint { request: *request, reply });
        Some(Event::AgentMessage { node: *node, message })
    }

    /// The same, of a launch that the user was shown.
    pub fn having_shown(mut self, launch: Option<LaunchHash>) -> Event {
        if let Event::RestartRequested { shown, .. } | Event::CheckedRestartRequested { shown, .. } =
            &mut self
        {
            *shown = launch;
        }
        self
    }

    /// A restart on the same hosts.
    pub fn restart(from: Option<String>) -> Event {
        Event::RestartRequested { from, exclude: Vec::new(), add: Vec::new(), experiment: None, shown: None }
    }
}

/// An order to the shell.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// A command to a link.
    Link {
        /// The link's host.
        node: NodeRank,
        /// The command.
        command: LinkCommand,
    },
    /// Open a link to a host that joins the run, in place of its closed link if it has one.
    Connect {
        /// Index of the host from now on.
        node: NodeRank,
        /// How to reach the host.
        host: Box<Host>,
    },
    /// Open a link to a host that another console's plan names, if the user's hosts file lists it. Hosts and
    /// addresses come from the user, never from an agent; a host that is not listed has a failed link.
    Find {
        /// Index of the host.
        node: NodeRank,
        name: String,
    },
    /// Ask the user. Without a user, the answer is "no".
    Ask { node: NodeRank, prompt: Prompt },
    /// Report to the outside: a JSON line, a plain line, a record in the console's run directory.
    Report(Box<Report>),
    /// End the console.
    Exit {
        /// Its exit code, as README lists them.
        code: u8,
    },
}
