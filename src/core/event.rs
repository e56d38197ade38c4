//! Every cause of change, as one closed enum. Recorded as it is: a trace is a list of `(Timestamp, Event)`.

use crate::Learnt;
use rankdeck_proto::link_event::LinkEvent;
use rankdeck_proto::message::{AgentMessage, StopMode};
use rankdeck_types::host::Host;
use rankdeck_types::ids::{NodeRank, WallTime};
use rankdeck_types::link_state::LinkState;
use serde::{Deserialize, Serialize};

/// Something happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A link changed its state.
    LinkChanged {
        /// Which host.
        node: NodeRank,
        /// To what.
        state: LinkState,
    },
    /// An agent said something.
    AgentSaid {
        /// Which host.
        node: NodeRank,
        /// What.
        message: Box<AgentMessage>,
    },
    /// The user, a signal or a policy asked for a stop of the run.
    StopRequested {
        /// How hard; a harder one replaces a softer one.
        mode: StopMode,
        /// Who: `key`, `signal`, `command`, `until`.
        by: String,
    },
    /// Begin a new generation.
    RestartRequested {
        /// Checkpoint path on the host of rank 0, `latest`, or `None` to start afresh.
        from: Option<String>,
        /// Hosts that the new generation does without, by name.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        exclude: Vec<String>,
        /// Hosts that it gets, known or new.
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
        /// Which host.
        node: NodeRank,
        /// `None`: refused. The text itself never enters a trace.
        #[serde(skip)]
        answer: Option<String>,
    },
    /// What people should know about this run from the start, said by whoever prepared it; one line each.
    Warned {
        /// The lines.
        lines: Vec<String>,
    },
    /// The console's wall clock, told once at the start (and again after a jump): for showing times and clock skew, never for a decision.
    WallClock {
        /// Seconds since the epoch.
        time: WallTime,
    },
    /// What an earlier console of this run learnt about its pace; told before anything else.
    Recalled {
        /// Its silences.
        learnt: Learnt,
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
