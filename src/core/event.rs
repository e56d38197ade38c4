//! Every cause of change, as one closed enum. Recorded as it is: a trace is a list of `(Timestamp, Event)`.

use crate::pace_history::PaceHistory;
use rankdeck_proto::link::LinkEvent;
use rankdeck_proto::message::{AgentMessage, LaunchHash, StopMode};
use rankdeck_proto::process::{ProcessAction, ProcessName};
use rankdeck_proto::search::LogSearch;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::Host;
use rankdeck_types::ids::{NodeRank, Rank, WallTime};
use rankdeck_types::link_state::LinkState;
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
    AgentSaid {
        /// The agent's host.
        node: NodeRank,
        message: Box<AgentMessage>,
    },
    /// The user, a signal or a policy asked for a stop of the run.
    StopRequested {
        /// How hard; a harder one replaces a softer one.
        mode: StopMode,
        /// Where the request comes from.
        by: StopSource,
    },
    /// Begin a new generation.
    RestartRequested {
        /// Checkpoint path on the host of rank 0, `latest`, or `None` to start afresh.
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
    /// A restart was asked for that this console cannot make.
    RestartRefused {
        /// One sentence, with what helps.
        reason: String,
    },
    /// The user looks at the policy at play, or no longer.
    Watched {
        /// They do.
        on: bool,
    },
    /// The user wants a close look at a rank, whatever the watch thinks of it.
    LookRequested { rank: Rank },
    /// The user wants a rank that a signal has stopped to go on.
    ContinueRequested { rank: Rank },
    /// The user wants something of one process of a host.
    ReachRequested { node: NodeRank, process: ProcessName, action: ProcessAction },
    /// The user looks for lines in the logs that the hosts keep; `None`: no longer.
    Searched {
        /// What for; places in it are by this console's clock.
        wanted: Option<Box<LogSearch>>,
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
    /// Warnings of whatever prepared the run, for people to see from the start.
    Warned {
        /// One warning per line.
        lines: Vec<String>,
    },
    /// Something about the console itself that its user should know, as that its record has a hole.
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
    /// What an earlier console of this run learnt about its pace; comes before all other events.
    Recalled {
        /// How long ranks are usually silent.
        learnt: PaceHistory,
    },
    /// Time passed; nothing else did.
    Ticked,
}

impl From<(NodeRank, LinkEvent)> for Event {
    fn from((node, event): (NodeRank, LinkEvent)) -> Event {
        match event {
            LinkEvent::State(state) => Event::LinkChanged { node, state },
            LinkEvent::Message(message) => Event::AgentSaid { node, message },
        }
    }
}

impl Event {
    /// It belongs into a record. Pictures of the policy at play and lines of the hosts' files are too much
    /// for one, and change nothing else; environments are nobody's but the user's (REACH-2).
    pub fn is_recorded(&self) -> bool {
        match self {
            Event::AgentSaid { message, .. } => {
                let passing = |message: &AgentMessage| {
                    use AgentMessage::{Found, Frame, Reached};
                    matches!(message, Frame { .. } | Found { .. } | Reached { .. })
                };
                !passing(message)
            }
            Event::Watched { .. } | Event::Searched { .. } | Event::ReachRequested { .. } => false,
            _ => true,
        }
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
