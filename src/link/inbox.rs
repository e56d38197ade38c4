//! Orders to a link, where its thread can wait for them together with its sockets.
//!
//! A bridge task moves orders from the driver's channel into a bounded queue and rings a socket that the
//! thread polls. Owner: the link's thread holds the [`Inbox`]; the bridge ends with it. Invariants:
//! - INBOX-1: `Close` and answers always fit; a `Send` beyond [`LIMIT`] is dropped and counted (the core
//!   sends again after the next snapshot).
//! - The driver never waits for the link's thread.
//! - INBOX-3: the channel is closed when the link has ended and not before, so that a console that waits for
//!   it leaves no order unsent.

use super::LinkCommand;
use crate::ssh::wait;
use crate::ssh::wait::Interest;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Most messages that wait for a link.
pub const LIMIT: usize = 256;

#[derive(Debug, Default)]
struct InboxState {
    queue: Mutex<VecDeque<LinkCommand>>,
    closing: AtomicBool,
    dropped: AtomicU64,
}

/// The thread's end.
#[derive(Debug)]
pub struct Inbox {
    shared: Arc<InboxState>,
    bell: UnixStream,
    // Dropped with the inbox, which ends the bridge and with it the driver's channel.
    _alive: Option<oneshot::Sender<()>>,
}

impl Inbox {
    /// Starts the bridge on the current runtime, or on a thread of its own where there is none.
    pub fn new(commands: mpsc::Receiver<LinkCommand>) -> io::Result<Inbox> {
        let (ringer, bell) = pair()?;
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

    /// Has the order to close arrived, or the driver gone? Also silences the bell.
    pub fn closing(&mut self) -> bool {
        let mut rung = [0; 64];
        while matches!(self.bell.read(&mut rung), Ok(count) if count == rung.len()) {}
        self.shared.closing.load(Ordering::Acquire)
    }

    /// The next message or answer.
    pub fn take(&mut self) -> Option<LinkCommand> {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Throws away what waits; done whenever there is no agent to send it to.
    pub fn clear(&mut self) {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Messages dropped because the queue was full.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Readable when there is something new.
    pub fn fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// Waits for the bell, at most `timeout`.
    pub fn wait(&self, timeout: Duration) {
        let _ = wait::poll(&[Interest { fd: self.fd(), read: true, write: false }], timeout);
    }
}

fn pair() -> io::Result<(UnixStream, UnixStream)> {
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
        } else if let Some(command) = command {
            let mut queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
            if matches!(command, LinkCommand::Send(_)) && queue.len() >= LIMIT {
                shared.dropped.fetch_add(1, Ordering::Relaxed);
            } else {
                // A client that answers without being asked cannot grow the queue without end.
                if queue.len() >= LIMIT * 2 {
                    queue.pop_front();
                }
                queue.push_back(command);
            }
        }
        // A full pipe has rung already.
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
    use std::time::Instant;

    fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn inbox_1_messages_are_bounded_but_close_and_answers_arrive() {
        let (sender, receiver) = mpsc::channel(8);
        let mut inbox = Inbox::new(receiver).unwrap();
        for _ in 0..LIMIT + 5 {
            sender.blocking_send(LinkCommand::Send(ConsoleMessage::Detach)).unwrap();
        }
        sender.blocking_send(LinkCommand::Answer(Some("yes".into()))).unwrap();
        sender.blocking_send(LinkCommand::Close).unwrap();
        eventually("close arrives", || inbox.closing());
        assert_eq!(inbox.dropped(), 5);
        let taken: Vec<LinkCommand> = std::iter::from_fn(|| inbox.take()).collect();
        assert_eq!(taken.len(), LIMIT + 1);
        assert!(matches!(taken.last(), Some(LinkCommand::Answer(Some(text))) if text == "yes"));
    }

    #[test]
    fn inbox_3_the_channel_stays_open_until_the_link_has_ended() {
        let (sender, receiver) = mpsc::channel(8);
        let mut inbox = Inbox::new(receiver).unwrap();
        sender.blocking_send(LinkCommand::Close).unwrap();
        eventually("close arrives", || inbox.closing());
        // The bridge, had it ended, would have dropped its end within moments.
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until {
            assert!(!sender.is_closed());
            std::thread::yield_now();
        }
        drop(inbox);
        eventually("the channel is closed", || sender.is_closed());
    }

    #[test]
    fn a_dropped_driver_closes_and_a_dropped_inbox_refuses_orders() {
        let (sender, receiver) = mpsc::channel::<LinkCommand>(8);
        let mut inbox = Inbox::new(receiver).unwrap();
        drop(sender);
        eventually("close arrives", || inbox.closing());

        let (sender, receiver) = mpsc::channel::<LinkCommand>(8);
        drop(Inbox::new(receiver).unwrap());
        eventually("the channel is closed", || sender.is_closed());
    }
}
