//! Pumps frames between a console and an agent over any byte stream: [`Pipe`], which an [`AgentTransport`]
//! connects. Invariants:
//! - A started write is finished before anything else: libssh2 must receive the same bytes again.
//! - Bytes are read before silence is checked, so that a slow driver is not taken for a dead agent.
//! - A frame that is not JSON is skipped and counted; one that is too long ends the connection.
//! - CARRY-4: a driver that no longer receives may still send its last orders; the pump waits for them.

use super::link_io::LinkIo;
use super::{LinkCommand, LinkEvent};
use crate::ssh::session::{self, Interest};
use crate::ssh::{SessionOwner, SshError};
use rankdeck_proto::frame::{self, Decoder, FrameError};
use rankdeck_proto::message::{AgentMessage, ConsoleMessage};
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Probe;
use rankdeck_types::link_state::LinkState;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Silence after which a connection counts as broken, unless the ssh configuration sets another limit. An
/// attached agent sends at least one message per second.
pub const SILENCE: Duration = Duration::from_secs(5);

/// A non-blocking byte stream to an agent.
pub trait Pipe {
    /// Reads available bytes; 0 at the end, `WouldBlock` if there are none.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;
    /// Writes what fits; `WouldBlock` if nothing fits.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// Returns what to poll for; `pending`: bytes wait to be written.
    fn interest(&self, pending: bool) -> Interest;
    /// Returns the silence after which the connection counts as broken.
    fn silence(&self) -> Duration {
        SILENCE
    }
    /// Returns the last error of the process behind the stream, for the reason of its end.
    fn last_error_line(&mut self) -> String {
        String::new()
    }
}

/// Connects a link to its agent.
pub(crate) trait AgentTransport {
    /// Connects, deploys, and finds or starts the agent. If `reconnecting`, a refusal of the agent is
    /// transient.
    fn reach_agent(
        &mut self,
        link_io: &mut LinkIo,
        reconnecting: bool,
    ) -> Result<(Probe, Box<dyn Pipe>), SshError>;
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

/// Why the pump ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PumpExit {
    /// Closed by the driver.
    Closed,
    /// The connection broke, for this reason.
    Lost(String),
}

/// Messages of more bytes than this wait until few messages are queued: the driver's queue is bounded in
/// messages, and so in bytes, too.
const LARGE: usize = 64 << 10;
const LARGE_WAITING: usize = 64;

/// Marks the last ping of a connection.
const LAST_PING: u64 = u64::MAX;

/// Pumps frames until the link is closed or the connection breaks.
pub fn pump(pipe: &mut dyn Pipe, link_io: &mut LinkIo) -> PumpExit {
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; 64 << 10];
    let mut outgoing: VecDeque<u8> = VecDeque::new();
    let mut bad_frames = 0u64;
    let mut goodbye = None;
    let silence = pipe.silence();
    // An agent sends nothing before the first order.
    let mut last_received: Option<Instant> = None;
    loop {
        let mut moved = false;
        // Bursts are read in slices, so that orders are not delayed.
        for _ in 0..16 {
            match pipe.read(&mut buffer) {
                Ok(0) => return PumpExit::Lost(ended(pipe, goodbye)),
                Ok(count) => {
                    moved = true;
                    decoder.push(&buffer[..count]);
                    if let Err(error) = forward_frames(&mut decoder, link_io, &mut bad_frames, &mut goodbye) {
                        return PumpExit::Lost(error.to_string());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return PumpExit::Lost(format!("connection lost: {error}")),
            }
        }
        if moved {
            last_received = last_received.map(|_| Instant::now());
        }
        if link_io.closing() {
            let attached = last_received.is_some();
            link_io.await_last_orders();
            flush(pipe, &mut outgoing, link_io, attached);
            if attached {
                await_pong(pipe, &mut decoder);
            }
            return PumpExit::Closed;
        }
        while outgoing.is_empty() {
            match link_io.inbox.take() {
                Some(LinkCommand::Send(message)) => match frame::encode(&message) {
                    Ok(bytes) => {
                        outgoing.extend(bytes);
                        last_received.get_or_insert_with(Instant::now);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot send a message to the agent");
                        let error = format!("cannot send a command: {error}");
                        let hint = "reduce `launch.env`, `launch.command` or the number of ranks".into();
                        let refused = AgentMessage::Refused(HintedError { error, hint });
                        link_io.send_event(LinkEvent::Message(Box::new(refused)));
                    }
                },
                Some(_) => continue,
                None => break,
            }
        }
        match write_some(pipe, &mut outgoing) {
            Ok(wrote) => moved |= wrote,
            Err(error) => return PumpExit::Lost(format!("connection lost: {error}")),
        }
        if moved {
            continue;
        }
        let silent_for = last_received.map(|last_received| last_received.elapsed());
        if silent_for.is_some_and(|silent_for| silent_for >= silence) {
            return PumpExit::Lost(format!("{} for {} s", LinkState::SILENT, silence.as_secs()));
        }
        let patience =
            silent_for.map_or(Duration::from_secs(30), |silent_for| silence.saturating_sub(silent_for));
        let bell = Interest { fd: link_io.inbox.fd(), read: true, write: false };
        let _ = session::poll(&[pipe.interest(!outgoing.is_empty()), bell], patience);
    }
}

/// Decodes complete frames and forwards them.
fn forward_frames(
    decoder: &mut Decoder,
    link_io: &mut LinkIo,
    bad_frames: &mut u64,
    goodbye: &mut Option<String>,
) -> Result<(), FrameError> {
    while let Some(frame) = decoder.next_bytes()? {
        if frame.len() > LARGE && !link_io.await_capacity(LARGE_WAITING) {
            return Ok(());
        }
        match serde_json::from_slice::<AgentMessage>(frame) {
            Ok(message) => {
                if let AgentMessage::Bye { reason } = &message {
                    *goodbye = Some(reason.clone());
                }
                link_io.send_event(LinkEvent::Message(Box::new(message)));
            }
            Err(error) => {
                *bad_frames += 1;
                tracing::warn!(%error, bad_frames = *bad_frames, "cannot parse a frame of the agent");
            }
        }
    }
    Ok(())
}

fn ended(pipe: &mut dyn Pipe, goodbye: Option<String>) -> String {
    match (goodbye, pipe.last_error_line()) {
        (Some(reason), _) => format!("agent closed the connection: {reason}"),
        (None, error) if error.is_empty() => "agent exited or connection closed".into(),
        (None, error) => format!("agent exited or connection closed: {error}"),
    }
}

/// Writes queued bytes; those that do not fit stay in the queue.
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

/// Sends the remaining orders (`detach`, `close`) within half a second, followed by a ping if `ping`.
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
                let _ = session::poll(&[pipe.interest(true)], Duration::from_millis(50));
            }
            Err(_) => return,
        }
    }
}

/// Waits up to a second until the agent has read the last orders: on disconnect, an SSH server discards bytes
/// that it has not forwarded yet.
fn await_pong(pipe: &mut dyn Pipe, decoder: &mut Decoder) {
    let deadline = Instant::now() + Duration::from_secs(1);
    let mut buffer = vec![0; 64 << 10];
    while Instant::now() < deadline {
        match pipe.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => decoder.push(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let _ = session::poll(&[pipe.interest(false)], Duration::from_millis(50));
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
    use super::*;
    use crate::link_io::Inbox;
    use rankdeck_types::ids::NodeRank;
    use tokio::sync::mpsc;

    struct Bench {
        orders: mpsc::Sender<LinkCommand>,
        events: mpsc::Receiver<(NodeRank, LinkEvent)>,
        agent: UnixStream,
        thread: std::thread::JoinHandle<PumpExit>,
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
        let thread = std::thread::spawn(move || pump(&mut console, &mut link_io));
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
    fn frames_pass_both_ways_and_orders_before_close_are_sent() {
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
        assert_eq!(bench.thread.join().unwrap(), PumpExit::Closed);
    }

    /// The driver stops receiving before it sends its last orders.
    #[test]
    fn carry_4_last_orders_are_sent_after_events_are_closed() {
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
        assert_eq!(bench.thread.join().unwrap(), PumpExit::Closed);
    }

    #[test]
    fn agent_bye_is_the_reason_of_the_end() {
        let mut bench = bench();
        bench
            .agent
            .write_all(&frame::encode(&AgentMessage::Bye { reason: "protocol 2".into() }).unwrap())
            .unwrap();
        drop(bench.agent);
        let PumpExit::Lost(reason) = bench.thread.join().unwrap() else { panic!() };
        assert!(reason.ends_with(": protocol 2"), "{reason}");
        assert!(bench.events.blocking_recv().is_some());
    }

    #[test]
    fn link_3_silent_agent_is_lost_after_the_first_order() {
        let mut bench = bench();
        bench.orders.blocking_send(LinkCommand::Send(ConsoleMessage::Ping { sent_ms: 1 })).unwrap();
        let began = Instant::now();
        read_message(&mut bench.agent);
        let PumpExit::Lost(reason) = bench.thread.join().unwrap() else { panic!() };
        assert!(reason.starts_with(LinkState::SILENT), "{reason}");
        assert!(began.elapsed() >= SILENCE - Duration::from_millis(100));
    }

    /// A driver that is busy while an agent sends as much as it can.
    #[test]
    fn queue_for_a_busy_driver_is_bounded_in_bytes() {
        const FRAMES: usize = 2 * LARGE_WAITING;
        let mut bench = bench_of(1024);
        let lines = vec!["x".repeat(LARGE)];
        let log = AgentMessage::Log {
            rank: rankdeck_types::ids::Rank(0),
            first: 0,
            overwritten: 0,
            lines,
            times: Vec::new(),
        };
        let frame = frame::encode(&log).unwrap();
        let mut agent = bench.agent.try_clone().unwrap();
        let sender = std::thread::spawn(move || (0..FRAMES).for_each(|_| agent.write_all(&frame).unwrap()));
        for received in 0..FRAMES {
            let deadline = Instant::now() + Duration::from_secs(20);
            let expected = (FRAMES - received).min(LARGE_WAITING + 1);
            while bench.events.len() < expected {
                assert!(Instant::now() < deadline, "{received}: {}", bench.events.len());
                std::thread::yield_now();
            }
            assert!(bench.events.len() <= LARGE_WAITING + 1, "{received}: {}", bench.events.len());
            assert!(matches!(bench.events.blocking_recv(), Some((_, LinkEvent::Message(_)))));
        }
        sender.join().unwrap();
        bench.orders.blocking_send(LinkCommand::Close).unwrap();
        assert_eq!(bench.thread.join().unwrap(), PumpExit::Closed);
    }

    #[test]
    fn oversized_frame_ends_the_connection() {
        let mut bench = bench();
        bench.agent.write_all(&u32::MAX.to_be_bytes()).unwrap();
        assert!(matches!(bench.thread.join().unwrap(), PumpExit::Lost(_)));
    }
}
