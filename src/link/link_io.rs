//! Channels between a link's thread and its driver: states and messages out, orders and answers in.
//!
//! A bridge task moves orders from the driver's channel into a bounded queue, the [`Inbox`], and writes to a
//! socket that the link's thread can poll together with its other sockets. The bridge ends with the inbox.
//! [`LinkIo`] implements [`SessionOwner`], so that logins can prompt the user. Invariants:
//! - INBOX-1: `Close` and answers always fit; a `Send` beyond [`LIMIT`] is dropped (the core sends it
//!   again after the next snapshot).
//! - The driver never waits for the link's thread.
//! - INBOX-3: the channel is closed only after the link has ended, so that a console that waits for it leaves
//!   no order unsent.

use super::{AgentReply, LinkCommand, LinkEvent, Prompter, WaitReason};
use crate::ssh::SessionOwner;
use crate::ssh::session::{self, Interest};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::NodeRank;
use rankdeck_types::link_state::{LinkState, Prompt};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::oneshot;

/// Shortest time between two reports of an upload's progress.
const PROGRESS: Duration = Duration::from_millis(100);

/// The ends of a link's channels.
#[derive(Debug)]
pub(crate) struct LinkIo {
    node: NodeRank,
    /// Orders.
    pub inbox: Inbox,
    events: mpsc::Sender<(NodeRank, LinkEvent)>,
    interactive: bool,
    attempt: u32,
    /// The agent could be resumed when the attempt started.
    resumes: bool,
    /// Time of the last report of an upload's progress.
    reported: Option<Instant>,
    /// The driver no longer receives events.
    is_disconnected: bool,
}

impl LinkIo {
    /// Creates the channels of the link of `node`.
    pub fn new(
        node: NodeRank,
        interactive: bool,
        inbox: Inbox,
        events: mpsc::Sender<(NodeRank, LinkEvent)>,
    ) -> LinkIo {
        let (attempt, resumes, reported, is_disconnected) = (0, false, None, false);
        LinkIo { node, inbox, events, interactive, attempt, resumes, reported, is_disconnected }
    }

    /// Sends an event; waits while the driver is busy, unless the link is closed.
    pub(crate) fn send_event(&mut self, event: LinkEvent) {
        let mut message = (self.node, event);
        loop {
            match self.events.try_send(message) {
                Ok(()) => return,
                Err(TrySendError::Closed(_)) => {
                    self.is_disconnected = true;
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

    /// Waits until at most `waiting` events are queued; `false` if the link is closed first.
    pub(crate) fn await_capacity(&mut self, waiting: usize) -> bool {
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

    /// Sends a state.
    pub(crate) fn send_state(&mut self, state: LinkState) {
        self.send_event(LinkEvent::State(state));
    }

    /// Sends the last state; retries for a while even if the link is closed.
    pub(crate) fn send_last_state(&mut self, state: LinkState) {
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

    /// Starts an attempt and reports it.
    pub(crate) fn start_attempt(&mut self, attempt: u32) {
        (self.attempt, self.resumes) = (attempt, self.inbox.resumes());
        self.send_state(LinkState::Connecting { attempt });
    }

    /// Waits up to a second for the order to close: all earlier orders are then in the inbox.
    pub(crate) fn await_last_orders(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(1);
        while !self.inbox.closing() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.inbox.wait(left.min(Duration::from_millis(50)));
        }
    }

    /// Waits `time`, or until the agent may be resumed; `false` if the link is closed. Drops messages meanwhile:
    /// there is no agent to send them to.
    pub(crate) fn sleep_until_woken(&mut self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        loop {
            if self.closing() {
                return false;
            }
            self.inbox.clear();
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.inbox.resumes() != self.resumes {
                return true;
            }
            self.inbox.wait(left);
        }
    }
}

impl SessionOwner for LinkIo {
    fn interactive(&self) -> bool {
        self.interactive
    }

    fn ask(&mut self, prompt: &Prompt) -> Option<String> {
        // Discard answers to earlier prompts.
        self.inbox.clear();
        self.send_state(LinkState::Asking { prompt: prompt.clone() });
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
        self.send_state(LinkState::Connecting { attempt: self.attempt });
        answer
    }

    fn closing(&mut self) -> bool {
        self.inbox.closing() || self.is_disconnected || self.events.is_closed()
    }

    fn progress(&mut self, what: &str, done: u64, total: u64) {
        let due = self.reported.is_none_or(|at| at.elapsed() >= PROGRESS);
        if due || done >= total {
            self.reported = Some(Instant::now());
            self.send_state(LinkState::Uploading { what: what.into(), done, total });
        }
    }

    fn starting(&mut self) {
        self.send_state(LinkState::Starting);
    }

    fn wake_fd(&self) -> Option<RawFd> {
        Some(self.inbox.fd())
    }
}

/// Channels of a one-shot command.
pub(crate) struct OneShotIo {
    /// Name of the host, for prompts.
    pub host: String,
    /// Answers prompts.
    pub prompter: Arc<dyn Prompter>,
    /// Closed if the result is no longer needed.
    pub result: oneshot::Sender<Result<AgentReply, HintedError>>,
    /// Bytes of the last report of progress, to detect an attempt that got further.
    pub reported: u64,
}

impl SessionOwner for OneShotIo {
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
        self.prompter.waiting(&self.host, Some(WaitReason::Shell));
    }

    fn begun(&mut self) {
        self.prompter.waiting(&self.host, Some(WaitReason::Answer));
    }

    fn closing(&mut self) -> bool {
        self.result.is_closed()
    }

    fn wake_fd(&self) -> Option<RawFd> {
        None
    }
}

/// Most queued messages of a link.
const LIMIT: usize = 256;

#[derive(Debug, Default)]
struct InboxState {
    queue: Mutex<VecDeque<LinkCommand>>,
    closing: AtomicBool,
    resuming: AtomicBool,
}

/// The thread's end of the queue.
#[derive(Debug)]
pub(crate) struct Inbox {
    shared: Arc<InboxState>,
    bell: UnixStream,
    // Dropped with the inbox, which ends the bridge and with it the driver's channel.
    _alive: Option<oneshot::Sender<()>>,
}

impl Inbox {
    /// Starts the bridge on the current runtime, or on a new thread without one.
    pub fn new(commands: mpsc::Receiver<LinkCommand>) -> io::Result<Inbox> {
        let (ringer, bell) = bell_pair()?;
        let shared = Arc::new(InboxState::default());
        let (alive, gone) = oneshot::channel();
        let bridge = bridge(commands, shared.clone(), ringer, gone);
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(bridge)),
            Err(_) => {
                let runtime = tokio::runtime::Builder::new_current_thread().build()?;
                std::thread::Builder::new()
                    .name("link-bridge".into())
                    .spawn(move || runtime.block_on(bridge))?;
            }
        }
        Ok(Inbox { shared, bell, _alive: Some(alive) })
    }

    /// Returns whether the link is closed or the driver is gone. Drains the bell.
    pub fn closing(&mut self) -> bool {
        let mut rung = [0; 64];
        while matches!(self.bell.read(&mut rung), Ok(count) if count == rung.len()) {}
        self.shared.closing.load(Ordering::Acquire)
    }

    /// Returns whether the agent may be resumed: the run is to be stopped.
    pub fn resumes(&self) -> bool {
        self.shared.resuming.load(Ordering::Acquire)
    }

    /// Takes the next message or answer.
    pub fn take(&mut self) -> Option<LinkCommand> {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Discards queued orders; used while there is no agent.
    pub fn clear(&mut self) {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Returns the bell: readable after a new order.
    pub fn fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// Waits for the bell, up to `timeout`.
    pub fn wait(&self, timeout: Duration) {
        let _ = session::poll(&[Interest { fd: self.fd(), read: true, write: false }], timeout);
    }
}

fn bell_pair() -> io::Result<(UnixStream, UnixStream)> {
    let (ringer, bell) = UnixStream::pair()?;
    ringer.set_nonblocking(true)?;
    bell.set_nonblocking(true)?;
    Ok((ringer, bell))
}

async fn bridge(
    mut commands: mpsc::Receiver<LinkCommand>,
    shared: Arc<InboxState>,
    mut ringer: UnixStream,
    mut gone: oneshot::Receiver<()>,
) {
    loop {
        let command = tokio::select! {
            command = commands.recv() => command,
            _ = &mut gone => return,
        };
        let close = matches!(command, None | Some(LinkCommand::Close));
        if close {
            shared.closing.store(true, Ordering::Release);
        } else if command == Some(LinkCommand::Resume) {
            shared.resuming.store(true, Ordering::Release);
        } else if let Some(command) = command {
            let mut queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
            if !matches!(command, LinkCommand::Send(_)) || queue.len() < LIMIT {
                // Unsolicited answers must not grow the queue without limit.
                if queue.len() >= LIMIT * 2 {
                    queue.pop_front();
                }
                queue.push_back(command);
            }
        }
        // If the socket is full, the bell is already pending.
        let _ = ringer.write(&[1]);
        if close {
            // INBOX-3.
            let _ = gone.await;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::message::ConsoleMessage;

    fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn inbox_1_only_messages_are_bounded() {
        let (sender, receiver) = mpsc::channel(8);
        let mut inbox = Inbox::new(receiver).unwrap();
        for _ in 0..LIMIT + 5 {
            sender.blocking_send(LinkCommand::Send(ConsoleMessage::Detach)).unwrap();
        }
        sender.blocking_send(LinkCommand::Answer(Some("yes".into()))).unwrap();
        sender.blocking_send(LinkCommand::Close).unwrap();
        eventually("close arrives", || inbox.closing());
        let taken: Vec<LinkCommand> = std::iter::from_fn(|| inbox.take()).collect();
        assert_eq!(taken.len(), LIMIT + 1);
        assert!(matches!(taken.last(), Some(LinkCommand::Answer(Some(text))) if text == "yes"));
    }

    #[test]
    fn resumption_outlives_the_queue_and_ends_a_wait() {
        let (sender, receiver) = mpsc::channel(8);
        let (events, _events) = mpsc::channel(8);
        let mut link_io = LinkIo::new(NodeRank(0), false, Inbox::new(receiver).unwrap(), events);
        link_io.start_attempt(1);
        let began = Instant::now();
        let order = std::thread::spawn(move || {
            sender.blocking_send(LinkCommand::Resume).unwrap();
            sender
        });
        assert!(link_io.sleep_until_woken(Duration::from_secs(600)));
        assert!(began.elapsed() < Duration::from_secs(300));
        let _sender = order.join().unwrap();
        link_io.inbox.clear();
        assert!(link_io.inbox.resumes() && link_io.inbox.take().is_none());
    }

    #[test]
    fn inbox_3_channel_stays_open_until_the_link_ends() {
        let (sender, receiver) = mpsc::channel(8);
        let mut inbox = Inbox::new(receiver).unwrap();
        sender.blocking_send(LinkCommand::Close).unwrap();
        eventually("close arrives", || inbox.closing());
        // A bridge that had ended would have dropped its end by then.
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until {
            assert!(!sender.is_closed());
            std::thread::yield_now();
        }
        drop(inbox);
        eventually("the channel is closed", || sender.is_closed());
    }

    #[test]
    fn dropped_driver_closes_and_dropped_inbox_rejects_orders() {
        let (sender, receiver) = mpsc::channel::<LinkCommand>(8);
        let mut inbox = Inbox::new(receiver).unwrap();
        drop(sender);
        eventually("close arrives", || inbox.closing());

        let (sender, receiver) = mpsc::channel::<LinkCommand>(8);
        drop(Inbox::new(receiver).unwrap());
        eventually("the channel is closed", || sender.is_closed());
    }
}
