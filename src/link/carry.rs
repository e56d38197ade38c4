//! Frames between a console and an agent, over any byte stream. The same for every transport.
//!
//! Owner: the link's thread. Invariants:
//! - A write that has begun is finished before anything else: libssh2 must see the same bytes again.
//! - Bytes are read before silence is judged, so that a slow driver is not taken for a dead agent.
//! - A frame that is not JSON is skipped and counted; one that is too long ends the connection.
//! - CARRY-4: a driver that no longer receives may still give its last orders: they are waited for before the
//!   conversation ends.

use super::link_io::LinkIo;
use super::{LinkCommand, LinkEvent};
use crate::ssh::Operator;
use crate::ssh::wait;
use crate::ssh::wait::Interest;
use rankdeck_proto::frame;
use rankdeck_proto::frame::{Decoder, FrameError};
use rankdeck_proto::message::{AgentMessage, ConsoleMessage};
use rankdeck_types::error::HintedError;
use rankdeck_types::link_state::LinkState;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// An agent speaks at least once a second once it is attached to; silence for this long means that the
/// connection is broken, unless the user's ssh configuration says otherwise.
pub const SILENCE: Duration = Duration::from_secs(5);

/// A non-blocking byte stream to an agent.
pub trait Pipe {
    /// Reads what is there; 0 at the end, `WouldBlock` when nothing is.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;
    /// Writes what fits; `WouldBlock` when nothing does.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// What to wait for; `pending`: bytes wait to be written.
    fn interest(&self, pending: bool) -> Interest;
    /// How long the agent may say nothing before the connection counts as broken.
    fn silence(&self) -> Duration {
        SILENCE
    }
    /// The last words of whatever carries the stream, for the reason of its end.
    fn complaint(&mut self) -> String {
        String::new()
    }
}

impl Pipe for UnixStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Read::read(self, buffer)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(self, bytes)
    }

    fn interest(&self, pending: bool) -> Interest {
        Interest { fd: self.as_raw_fd(), read: true, write: pending }
    }
}

/// Why carrying ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The order to close arrived.
    Closed,
    /// The connection broke, for this reason.
    Lost(String),
}

/// The driver's queue is bounded in messages. One of more bytes than this waits until few are in it, so that
/// it is bounded in bytes, too.
const LARGE: usize = 64 << 10;
const LARGE_WAITING: usize = 64;

/// Marks the ping that closes a conversation.
const LAST_PING: u64 = u64::MAX;

/// Carries until the order to close or until the connection breaks.
pub fn carry(pipe: &mut dyn Pipe, link_io: &mut LinkIo) -> End {
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; 64 << 10];
    let mut outgoing: VecDeque<u8> = VecDeque::new();
    let mut bad_frames = 0u64;
    let mut farewell = None;
    let silence = pipe.silence();
    // Nothing is expected of an agent before it was attached to.
    let mut heard: Option<Instant> = None;
    loop {
        let mut moved = false;
        // A burst is taken in slices, so that orders get their turn.
        for _ in 0..16 {
            match pipe.read(&mut buffer) {
                Ok(0) => return End::Lost(ended(pipe, farewell)),
                Ok(count) => {
                    moved = true;
                    decoder.push(&buffer[..count]);
                    if let Err(error) = hand_over(&mut decoder, link_io, &mut bad_frames, &mut farewell) {
                        return End::Lost(error.to_string());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return End::Lost(format!("connection broke: {error}")),
            }
        }
        if moved {
            heard = heard.map(|_| Instant::now());
        }
        if link_io.closing() {
            let attached = heard.is_some();
            link_io.await_last_orders();
            flush(pipe, &mut outgoing, link_io, attached);
            if attached {
                await_pong(pipe, &mut decoder);
            }
            return End::Closed;
        }
        while outgoing.is_empty() {
            match link_io.inbox.take() {
                Some(LinkCommand::Send(message)) => match frame::encode(&message) {
                    Ok(bytes) => {
                        outgoing.extend(bytes);
                        heard.get_or_insert_with(Instant::now);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a message to an agent cannot be sent");
                        let error = format!("an order cannot be sent: {error}");
                        let hint =
                            "make `launch.env`, `launch.command` or the number of ranks smaller".into();
                        let refused = AgentMessage::Refused(HintedError { error, hint });
                        link_io.tell(LinkEvent::Message(Box::new(refused)));
                    }
                },
                Some(_) => continue,
                None => break,
            }
        }
        match write_some(pipe, &mut outgoing) {
            Ok(wrote) => moved |= wrote,
            Err(error) => return End::Lost(format!("connection broke: {error}")),
        }
        if moved {
            continue;
        }
        let quiet = heard.map(|heard| heard.elapsed());
        if quiet.is_some_and(|quiet| quiet >= silence) {
            return End::Lost(format!("{} for {} s", LinkState::SILENT, silence.as_secs()));
        }
        let patience = quiet.map_or(Duration::from_secs(30), |quiet| silence.saturating_sub(quiet));
        let bell = Interest { fd: link_io.inbox.fd(), read: true, write: false };
        let _ = wait::poll(&[pipe.interest(!outgoing.is_empty()), bell], patience);
    }
}

/// Decodes whole frames and tells them.
fn hand_over(
    decoder: &mut Decoder,
    link_io: &mut LinkIo,
    bad_frames: &mut u64,
    farewell: &mut Option<String>,
) -> Result<(), FrameError> {
    while let Some(frame) = decoder.next_bytes()? {
        if frame.len() > LARGE && !link_io.await_quiet(LARGE_WAITING) {
            return Ok(());
        }
        match serde_json::from_slice::<AgentMessage>(frame) {
            Ok(message) => {
                if let AgentMessage::Bye { reason } = &message {
                    *farewell = Some(reason.clone());
                }
                link_io.tell(LinkEvent::Message(Box::new(message)));
            }
            Err(error) => {
                *bad_frames += 1;
                tracing::warn!(%error, bad_frames = *bad_frames, "a frame of an agent cannot be read");
            }
        }
    }
    Ok(())
}

fn ended(pipe: &mut dyn Pipe, farewell: Option<String>) -> String {
    match (farewell, pipe.complaint()) {
        (Some(reason), _) => format!("agent closed the connection: {reason}"),
        (None, complaint) if complaint.is_empty() => "agent or connection ended".into(),
        (None, complaint) => format!("agent or connection ended: {complaint}"),
    }
}

/// The queue keeps the very bytes that did not fit.
fn write_some(pipe: &mut dyn Pipe, outgoing: &mut VecDeque<u8>) -> io::Result<bool> {
    let mut wrote = false;
    while !outgoing.is_empty() {
        match pipe.write(outgoing.make_contiguous()) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                outgoing.drain(..count);
                wrote = true;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
    }
    Ok(wrote)
}

/// Sends what was ordered before the order to close (`detach`, `close`), within half a second; with `ping`, a
/// ping behind it.
fn flush(pipe: &mut dyn Pipe, outgoing: &mut VecDeque<u8>, link_io: &mut LinkIo, ping: bool) {
    while let Some(command) = link_io.inbox.take() {
        if let LinkCommand::Send(message) = command
            && let Ok(bytes) = frame::encode(&message)
        {
            outgoing.extend(bytes);
        }
    }
    if ping && let Ok(bytes) = frame::encode(&ConsoleMessage::Ping { sent_ms: LAST_PING }) {
        outgoing.extend(bytes);
    }
    let deadline = Instant::now() + Duration::from_millis(500);
    while !outgoing.is_empty() && Instant::now() < deadline {
        match write_some(pipe, outgoing) {
            Ok(true) => {}
            Ok(false) => {
                let _ = wait::poll(&[pipe.interest(true)], Duration::from_millis(50));
            }
            Err(_) => return,
        }
    }
}

/// Waits, within a second, until the agent has read the last orders: an SSH server that is told to disconnect
/// throws away what it has not yet passed on, so that bytes written are not orders received.
fn await_pong(pipe: &mut dyn Pipe, decoder: &mut Decoder) {
    let deadline = Instant::now() + Duration::from_secs(1);
    let mut buffer = vec![0; 64 << 10];
    while Instant::now() < deadline {
        match pipe.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => decoder.push(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let _ = wait::poll(&[pipe.interest(false)], Duration::from_millis(50));
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        }
        loop {
            match decoder.next_frame::<AgentMessage>() {
                Ok(Some(AgentMessage::Pong { sent_ms: LAST_PING, .. })) => return,
                Ok(Some(_)) | Err(FrameError::Json(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::inbox::Inbox;
    use super::*;
    use rankdeck_types::ids::NodeRank;
    use tokio::sync::mpsc;

    struct Bench {
        orders: mpsc::Sender<LinkCommand>,
        events: mpsc::Receiver<(NodeRank, LinkEvent)>,
        agent: UnixStream,
        thread: std::thread::JoinHandle<End>,
    }

    fn bench() -> Bench {
        bench_of(8)
    }

    fn bench_of(waiting: usize) -> Bench {
        let (orders, commands) = mpsc::channel(8);
        let (sender, events) = mpsc::channel(waiting);
        let (agent, mut console) = UnixStream::pair().unwrap();
        console.set_nonblocking(true).unwrap();
        let mut link_io = LinkIo::new(NodeRank(3), false, Inbox::new(commands).unwrap(), sender);
        let thread = std::thread::spawn(move || carry(&mut console, &mut link_io));
        Bench { orders, events, agent, thread }
    }

    fn read_message(agent: &mut UnixStream) -> ConsoleMessage {
        let mut head = [0; 4];
        agent.read_exact(&mut head).unwrap();
        let mut body = vec![0; u32::from_be_bytes(head) as usize];
        agent.read_exact(&mut body).unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    #[test]
    fn frames_pass_both_ways_and_what_was_ordered_before_close_is_sent() {
        let mut bench = bench();
        let pong = frame::encode(&AgentMessage::Pong { sent_ms: 7, wall_time: None }).unwrap();
        bench.agent.write_all(&[&pong[..], &[0, 0, 0, 1, b'{'], &pong[..]].concat()).unwrap();
        for _ in 0..2 {
            let (node, event) = bench.events.blocking_recv().unwrap();
            assert_eq!(node, NodeRank(3));
            assert!(
                matches!(event, LinkEvent::Message(message) if *message == AgentMessage::Pong { sent_ms: 7, wall_time: None })
            );
        }
        bench.orders.blocking_send(LinkCommand::Send(ConsoleMessage::Ping { sent_ms: 9 })).unwrap();
        assert_eq!(read_message(&mut bench.agent), ConsoleMessage::Ping { sent_ms: 9 });
        bench.orders.blocking_send(LinkCommand::Send(ConsoleMessage::Detach)).unwrap();
        bench.orders.blocking_send(LinkCommand::Close).unwrap();
        assert_eq!(read_message(&mut bench.agent), ConsoleMessage::Detach);
        assert_eq!(bench.thread.join().unwrap(), End::Closed);
    }

    /// CARRY-4. The driver stops receiving first and gives its last orders then: a link that looked just in
    /// between must wait for them.
    #[test]
    fn carry_4_last_orders_are_waited_for_when_nobody_listens_any_more() {
        let mut bench = bench();
        bench.orders.blocking_send(LinkCommand::Send(ConsoleMessage::Ping { sent_ms: 1 })).unwrap();
        assert_eq!(read_message(&mut bench.agent), ConsoleMessage::Ping { sent_ms: 1 });
        drop(bench.events);
        bench
            .agent
            .write_all(&frame::encode(&AgentMessage::Pong { sent_ms: 1, wall_time: None }).unwrap())
            .unwrap();
        // Long enough for a link that does not wait to be gone.
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until && !bench.thread.is_finished() {
            std::thread::yield_now();
        }
        bench.orders.blocking_send(LinkCommand::Send(ConsoleMessage::Close)).unwrap();
        bench.orders.blocking_send(LinkCommand::Close).unwrap();
        assert_eq!(read_message(&mut bench.agent), ConsoleMessage::Close);
        assert_eq!(bench.thread.join().unwrap(), End::Closed);
    }

    #[test]
    fn an_end_names_the_agents_reason() {
        let mut bench = bench();
        bench
            .agent
            .write_all(&frame::encode(&AgentMessage::Bye { reason: "protocol 2".into() }).unwrap())
            .unwrap();
        drop(bench.agent);
        let End::Lost(reason) = bench.thread.join().unwrap() else { panic!() };
        assert_eq!(reason, "agent closed the connection: protocol 2");
        assert!(bench.events.blocking_recv().is_some());
    }

    #[test]
    fn link_3_a_silent_agent_is_lost_but_only_once_it_was_spoken_to() {
        let mut bench = bench();
        bench.orders.blocking_send(LinkCommand::Send(ConsoleMessage::Ping { sent_ms: 1 })).unwrap();
        let began = Instant::now();
        read_message(&mut bench.agent);
        let End::Lost(reason) = bench.thread.join().unwrap() else { panic!() };
        assert!(reason.contains("no sign of life"), "{reason}");
        assert!(began.elapsed() >= SILENCE - Duration::from_millis(100));
    }

    /// A driver that is busy while an agent sends as much as it can.
    #[test]
    fn what_waits_for_the_driver_is_bounded_in_bytes() {
        const FRAMES: usize = 2 * LARGE_WAITING;
        let mut bench = bench_of(1024);
        let lines = vec!["x".repeat(LARGE)];
        let log =
            AgentMessage::Log { rank: rankdeck_types::ids::Rank(0), first: 0, lines, times: Vec::new() };
        let frame = frame::encode(&log).unwrap();
        let mut agent = bench.agent.try_clone().unwrap();
        let sender = std::thread::spawn(move || (0..FRAMES).for_each(|_| agent.write_all(&frame).unwrap()));
        for received in 0..FRAMES {
            let deadline = Instant::now() + Duration::from_secs(20);
            let wanted = (FRAMES - received).min(LARGE_WAITING + 1);
            while bench.events.len() < wanted {
                assert!(Instant::now() < deadline, "{received}: {}", bench.events.len());
                std::thread::yield_now();
            }
            assert!(bench.events.len() <= LARGE_WAITING + 1, "{received}: {}", bench.events.len());
            assert!(matches!(bench.events.blocking_recv(), Some((_, LinkEvent::Message(_)))));
        }
        sender.join().unwrap();
        bench.orders.blocking_send(LinkCommand::Close).unwrap();
        assert_eq!(bench.thread.join().unwrap(), End::Closed);
    }

    #[test]
    fn a_frame_that_is_too_long_ends_the_connection() {
        let mut bench = bench();
        bench.agent.write_all(&u32::MAX.to_be_bytes()).unwrap();
        let End::Lost(reason) = bench.thread.join().unwrap() else { panic!() };
        assert!(reason.contains("over the limit"), "{reason}");
    }
}
