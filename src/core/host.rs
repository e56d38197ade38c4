//! The state machine of one host: the stage of its connection, and the orders that were sent over it.
//!
//! Invariants:
//! - Orders (launch, stop) are levels, not edges. They are sent again after every snapshot until the
//!   records show that they were carried out.
//! - Nothing is decided about a host while its records are being replayed
//!   ([`crate::model::HostModel::caught_up`]).
//! - Whether something is left on a host is the word of its own agent, and of no other
//!   ([`crate::model::HostModel::is_clear`]).

use rankdeck_proto::message::{LaunchHash, LaunchSpec, Record, StopMode};
use rankdeck_types::ids::{Generation, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Most records that are kept of a launch that this console does not follow yet.
pub(crate) const AHEAD: usize = 4096;
/// Most bytes of them, as JSON.
pub(crate) const AHEAD_BYTES: usize = 4 << 20;

/// The stage of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
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

/// What only the reducer needs of a host.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct HostMachine {
    pub(crate) stage: HostStage,
    /// When anything last came, on the awake clock (see [`crate::session::ConsoleClock`]).
    #[serde(rename = "heard")]
    pub(crate) last_message_awake_ms: u64,
    /// Latest generation that this host is known to have accepted.
    pub(crate) generation: Option<Generation>,
    /// Generation whose launch was sent on this connection.
    pub(crate) launch_sent: Option<Generation>,
    /// Generation whose launch was sent and may have arrived, until a snapshot shows whether it did.
    pub(crate) launch_open: Option<Generation>,
    /// Latest generation of which the agent has verified that no process is left.
    pub(crate) proved: Option<Generation>,
    /// Hash of the launch of [`HostMachine::generation`], as this host reports it.
    #[serde(rename = "told")]
    pub(crate) launch_hash: Option<LaunchHash>,
    /// A launch of another console that this one does not follow yet (OWN-1).
    pub(crate) rival: Option<Box<LaunchSpec>>,
    /// Records of that launch, at most [`AHEAD`] and [`AHEAD_BYTES`].
    pub(crate) ahead: Vec<Record>,
    #[serde(default)]
    pub(crate) ahead_bytes: usize,
    /// Its agent has sent a snapshot.
    pub(crate) answered: bool,
    /// Its agent, which has no launch, has scanned for leftover processes and found none.
    #[serde(default)]
    pub(crate) searched: bool,
    /// A plan of this run gave it ranks.
    pub(crate) took_part: bool,
    /// When a stop that is under way there kills ranks that show no progress, as its agent reports.
    #[serde(default)]
    pub(crate) kills_at: Option<Timestamp>,
    /// Hardest stop sent on this connection in this generation.
    pub(crate) stop_sent: Option<StopMode>,
    /// Its agent has recorded an order to stop its latest generation.
    #[serde(rename = "stop_told")]
    pub(crate) stop_recorded: bool,
    /// Modes of this console's orders that end the run and are not recorded yet.
    #[serde(default)]
    pub(crate) ends_sent: BTreeSet<StopMode>,
    /// The latest record when this console first attached: up to there, it found the run as it is.
    #[serde(default)]
    pub(crate) found_at: Option<u64>,
    /// `last_seq` at the latest gap. A second gap at the same place is a loss in the spool itself and is
    /// ignored.
    pub(crate) gap_at: Option<u64>,
    /// `dropped` of the latest sample of this connection.
    pub(crate) dropped: u64,
    /// `malformed` of the latest sample.
    pub(crate) malformed: u64,
    /// `withheld` of the latest sample.
    #[serde(default)]
    pub(crate) withheld: u64,
    /// The agent's wall clock at its hello.
    pub(crate) hello_time: f64,
    /// When it was first ordered to launch, by the same clock.
    pub(crate) first_launch: Option<f64>,
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
    pub(crate) fn has_launch(&self, generation: Generation) -> bool {
        [self.launch_sent, self.generation].contains(&Some(generation))
    }

    /// Its agent has no launch: nothing was launched there, or it has lost its records.
    pub(crate) fn has_no_launch(&self) -> bool {
        self.answered && self.generation.is_none() && self.launch_open.is_none()
    }

    /// The agent has no launch any more, or not yet.
    pub(crate) fn lose_launch(&mut self) {
        let was_over = self.searched || self.generation.is_some() && self.proved >= self.generation;
        // A launch that may have arrived may have been forgotten, too.
        self.searched = was_over && self.launch_open.is_none();
        self.generation = None;
    }

    pub(crate) fn is_over(&self) -> bool {
        match self.generation.max(self.launch_open) {
            Some(latest) => self.proved >= Some(latest),
            None => self.answered,
        }
    }

    /// The agent has accepted a launch. Returns whether its generation is a new one.
    pub(crate) fn accepted(&mut self, generation: Generation, hash: &LaunchHash) -> bool {
        if self.generation <= Some(generation) {
            self.launch_hash = Some(hash.clone());
        }
        let is_new = self.generation < Some(generation);
        if is_new {
            self.generation = Some(generation);
            (self.proved, self.stop_sent, self.stop_recorded) = (None, None, false);
            (self.searched, self.kills_at) = (false, None);
            self.ends_sent.clear();
        }
        is_new
    }

    /// Another link is being opened in place of one that is gone; the state of the host stays.
    pub(crate) fn relink(&mut self) {
        self.stage = HostStage::Linking;
        (self.launch_sent, self.stop_sent, self.gap_at) = (None, None, None);
    }

    /// A connection begins: what was sent on the former one may never have arrived.
    pub(crate) fn attaching(&mut self, awake_ms: u64) {
        self.stage = HostStage::Attaching { since: awake_ms };
        self.last_message_awake_ms = awake_ms;
        self.launch_sent = None;
        self.stop_sent = None;
        self.dropped = 0;
    }
}
