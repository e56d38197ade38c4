//! The state machine of one host: the stage of its connection, and the orders that were sent on it.
//!
//! Owner: `update`. Invariants:
//! - Orders (launch, stop) are levels, not edges. They are sent again after every snapshot until the
//!   records show that they were carried out.
//! - Nothing is decided about a host while its records are being replayed ([`HostModel::caught_up`]).

use crate::model::HostModel;
use rankdeck_proto::message::StopMode;
use rankdeck_types::ids::{Generation, Timestamp};
use rankdeck_types::link_state::LinkState;
use rankdeck_types::words;

/// The stage of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum HostStage {
    /// The link is on its way up.
    #[default]
    Linking,
    /// `attach` was sent; `hello` follows.
    Attaching {
        /// When, on the awake clock.
        since: u64,
    },
    /// `hello` came; `snapshot` follows.
    Greeted {
        /// When `attach` was sent, on the awake clock.
        since: u64,
    },
    /// Records and samples flow.
    Live {
        /// Records up to this number are history.
        target: u64,
    },
    /// The link broke and mends itself.
    Away {
        /// When, on the console's clock.
        since: Timestamp,
    },
    /// It cannot work.
    Failed,
    /// Closed by us.
    Closed,
}

/// What only the reducer needs to know of a host.
#[derive(Debug, Clone, Default)]
pub struct HostMachine {
    pub(crate) stage: HostStage,
    /// When anything last came, on the awake clock (see [`crate::session::Clock`]).
    pub(crate) heard: u64,
    /// Latest generation that this host is known to have accepted.
    pub(crate) generation: Option<Generation>,
    /// Generation whose launch was sent on this connection.
    pub(crate) launch_sent: Option<Generation>,
    /// Hardest stop sent on this connection in this generation.
    pub(crate) stop_sent: Option<StopMode>,
    /// `last_seq` at the latest gap. A second gap at the same place is a loss in the spool itself and is
    /// ignored.
    pub(crate) gap_at: Option<u64>,
    /// `dropped` of the latest sample of this connection.
    pub(crate) dropped: u64,
    /// `malformed` of the latest sample.
    pub(crate) malformed: u64,
    /// The agent's wall clock when it said hello.
    pub(crate) hello_time: f64,
}

impl HostMachine {
    /// Orders reach it.
    pub(crate) fn is_live(&self) -> bool {
        matches!(self.stage, HostStage::Live { .. })
    }

    /// A connection exists on which messages can be sent.
    pub(crate) fn is_connected(&self) -> bool {
        matches!(self.stage, HostStage::Attaching { .. } | HostStage::Greeted { .. } | HostStage::Live { .. })
    }

    /// The connection does not come back by itself.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.stage, HostStage::Failed | HostStage::Closed)
    }

    /// It was given the launch of `generation`, or shows that it has it.
    pub(crate) fn knows(&self, generation: Generation) -> bool {
        [self.launch_sent, self.generation].contains(&Some(generation))
    }

    /// A connection begins: what was sent on the former one may never have arrived.
    pub(crate) fn attaching(&mut self, awake_ms: u64) {
        self.stage = HostStage::Attaching { since: awake_ms };
        self.heard = awake_ms;
        self.launch_sent = None;
        self.stop_sent = None;
        self.dropped = 0;
    }
}

impl HostModel {
    /// Orders reach the host.
    pub(crate) fn is_live(&self) -> bool {
        self.machine.is_live()
    }

    /// Why its link cannot work.
    pub(crate) fn link_error(&self) -> Option<String> {
        match &self.link {
            LinkState::Failed { error, hint } => Some(words::with_hint(error, hint)),
            LinkState::Closed => Some(format!("{}: closed", self.name)),
            LinkState::Idle
            | LinkState::Connecting { .. }
            | LinkState::Asking { .. }
            | LinkState::Uploading { .. }
            | LinkState::Starting
            | LinkState::Ready { .. }
            | LinkState::Lost { .. } => None,
        }
    }

    /// The host is live, and everything that had happened before is applied.
    pub(crate) fn caught_up(&self) -> bool {
        matches!(self.machine.stage, HostStage::Live { target } if self.last_seq >= target)
    }
}
