//! Every cause of change, as one closed enum. Recorded as it is: a trace is a list of `(Timestamp, Event)`.

use crate::pace_history::PaceHistory;
use rankdeck_proto::link_event::LinkEvent;
use rankdeck_proto::message::{AgentMessage, StopMode};
use rankdeck_types::host::Host;
use rankdeck_types::ids::{NodeRank, WallTime};
use rankdeck_types::link_state::LinkState;
use serde::{Deserialize, Serialize};

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
        /// The message.
        message: Box<AgentMessage>,
    },
    /// The user, a signal or a policy asked for a stop of the run.
    StopRequested {
        /// How hard; a harder one replaces a softer one.
        mode: StopMode,
        /// Where the request comes from: `key`, `signal`, `command`, `until`.
        by: String,
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
    },
    /// Begin a new generation in which ranks compare every collective before they begin it.
    CheckedRestartRequested {
        /// Checkpoint to begin from, as for [`Event::RestartRequested`].
        from: Option<String>,
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
    /// A restart on the same hosts.
    pub fn restart(from: Option<String>) -> Event {
        Event::RestartRequested { from, exclude: Vec::new(), add: Vec::new() }
    }
}
