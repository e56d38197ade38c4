//! What a link's thread exchanges with its driver: states and messages out, orders and answers in.
//!
//! Owner: the link's thread. Implements [`Operator`], so that logins can ask the user.

use super::inbox::Inbox;
use super::{AgentReply, LinkCommand, LinkEvent, Prompter, Wait};
use crate::ssh::Operator;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::NodeRank;
use rankdeck_types::link_state::{LinkState, Prompt};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::oneshot;

/// Shortest time between two reports of an upload's progress.
const PROGRESS: Duration = Duration::from_millis(100);

/// The ends of a link's channels.
#[derive(Debug)]
pub struct LinkIo {
    node: NodeRank,
    /// Orders.
    pub inbox: Inbox,
    events: mpsc::Sender<(NodeRank, LinkEvent)>,
    interactive: bool,
    attempt: u32,
    /// When the progress of an upload was last reported.
    reported: Option<Instant>,
    /// The driver no longer receives events.
    unheard: bool,
}

impl LinkIo {
    /// The ends for the link of `node`.
    pub fn new(
        node: NodeRank,
        interactive: bool,
        inbox: Inbox,
        events: mpsc::Sender<(NodeRank, LinkEvent)>,
    ) -> LinkIo {
        LinkIo { node, inbox, events, interactive, attempt: 0, reported: None, unheard: false }
    }

    /// Reports an event; waits while the driver is busy, but not beyond the order to close.
    pub fn tell(&mut self, event: LinkEvent) {
        let mut message = (self.node, event);
        loop {
            match self.events.try_send(message) {
                Ok(()) => return,
                Err(TrySendError::Closed(_)) => {
                    self.unheard = true;
                    return;
                }
                Err(TrySendError::Full(back)) => message = back,
            }
            if self.closing() {
                return;
            }
            self.inbox.wait(Duration::from_millis(5));
        }
    }

    /// Waits until at most `waiting` events are before the next one; `false` when the order to close arrived
    /// first.
    pub fn await_quiet(&mut self, waiting: usize) -> bool {
        while self.events.max_capacity().saturating_sub(self.events.capacity()) > waiting
            && !self.events.is_closed()
        {
            if self.closing() {
                return false;
            }
            self.inbox.wait(Duration::from_millis(5));
        }
        true
    }

    /// Reports a state.
    pub fn state(&mut self, state: LinkState) {
        self.tell(LinkEvent::State(state));
    }

    /// Reports the last state: tries for a while even though the order to close has arrived.
    pub fn last(&mut self, state: LinkState) {
        let deadline = Instant::now() + Duration::from_secs(2);
        let mut message = (self.node, LinkEvent::State(state));
        while let Err(TrySendError::Full(back)) = self.events.try_send(message) {
            if Instant::now() >= deadline {
                return;
            }
            message = back;
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Begins an attempt and reports it.
    pub fn begin(&mut self, attempt: u32) {
        self.attempt = attempt;
        self.state(LinkState::Connecting { attempt });
    }

    /// Waits, at most a second, until the order to close itself is here: whatever was ordered before it is
    /// then in the inbox.
    pub fn await_last_orders(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(1);
        while !self.inbox.closing() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.inbox.wait(left.min(Duration::from_millis(50)));
        }
    }

    /// Waits `time`; `false` when the order to close arrived. Messages that arrive meanwhile are dropped:
    /// there is no agent.
    pub fn rest(&mut self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        loop {
            if self.closing() {
                return false;
            }
            self.inbox.clear();
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            self.inbox.wait(left);
        }
    }
}

impl Operator for LinkIo {
    fn interactive(&self) -> bool {
        self.interactive
    }

    fn ask(&mut self, prompt: &Prompt) -> Option<String> {
        // An answer to an earlier question must not answer this one.
        self.inbox.clear();
        self.state(LinkState::Asking { prompt: prompt.clone() });
        let answer = loop {
            if self.closing() {
                return None;
            }
            match self.inbox.take() {
                Some(LinkCommand::Answer(answer)) => break answer,
                Some(_) => continue,
                None => self.inbox.wait(Duration::from_secs(1)),
            }
        };
        self.state(LinkState::Connecting { attempt: self.attempt });
        answer
    }

    fn closing(&mut self) -> bool {
        self.inbox.closing() || self.unheard || self.events.is_closed()
    }

    fn progress(&mut self, what: &str, done: u64, total: u64) {
        let due = self.reported.is_none_or(|at| at.elapsed() >= PROGRESS);
        if due || done >= total {
            self.reported = Some(Instant::now());
            self.state(LinkState::Uploading { what: what.into(), done, total });
        }
    }

    fn starting(&mut self) {
        self.state(LinkState::Starting);
    }

    fn wake_fd(&self) -> Option<RawFd> {
        Some(self.inbox.fd())
    }
}

/// The ends of a one-shot command.
pub struct OneShotIo {
    /// Name of the host, for questions.
    pub host: String,
    /// Who answers.
    pub prompter: Arc<dyn Prompter>,
    /// Closed when nobody waits for the result any more.
    pub result: oneshot::Sender<Result<AgentReply, HintedError>>,
    /// Bytes of the last report of progress, so that an attempt that got further can be told.
    pub reported: u64,
}

impl Operator for OneShotIo {
    fn interactive(&self) -> bool {
        true
    }

    fn ask(&mut self, prompt: &Prompt) -> Option<String> {
        self.prompter.ask(&self.host, prompt)
    }

    fn progress(&mut self, what: &str, done: u64, total: u64) {
        self.reported = done;
        self.prompter.progress(&self.host, what, done, total);
    }

    fn starting(&mut self) {
        self.prompter.waiting(&self.host, Some(Wait::Shell));
    }

    fn begun(&mut self) {
        self.prompter.waiting(&self.host, Some(Wait::Answer));
    }

    fn closing(&mut self) -> bool {
        self.result.is_closed()
    }

    fn wake_fd(&self) -> Option<RawFd> {
        None
    }
}
