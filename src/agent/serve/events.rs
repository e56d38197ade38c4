//! The event socket: rank events that must not be lost. JSON Lines of [`RankEvent`], `hello` first.
//!
//! Owner: one task per connection on the agent's loop. Invariants:
//! - EVENT-1: a line is read into a bounded number of bytes ([`LineBuffer`]); longer ones are skipped and
//!   counted, like lines that are not events.
//! - Only this user's processes may send, and only for a rank of the current generation of this
//!   host.
//! - EVENT-2: a refusal is answered on the connection and recorded with its rank and the reason, at most
//!   [`RECORDED_REFUSALS`] times for each rank and generation. All are counted.
//! - EVENT-3: the first [`YOUNG_LINES`] lines of a connection are read as they come, so that a start is seen
//!   at once; later ones once per turn, which is a round of samples or the end of a rank. In between they
//!   wait in the kernel, which keeps them even if the rank dies. Agent and consoles then wake a few
//!   times a second however much a rank sends, and take that much less from its cores.

use crate::observe::media_limiter::MediaLimiter;
use crate::open_files;
use rankdeck_proto::media::PICTURE_BYTES;
use rankdeck_proto::message::{RankEvent, RecordEvent};
use rankdeck_proto::show::LiveFrame;
use rankdeck_proto::trust::own_uid;
use rankdeck_types::ids::{Generation, Rank};
use rankdeck_types::words;
use serde_json::json;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::{Notify, mpsc, watch};

/// Connections of rank 0 that may carry images.
const PICTURE_CONNECTIONS: usize = 4;
/// Most connections at once, if the limit of open files allows them (FILES-2).
const CONNECTIONS: usize = 1024;
/// Lines of a new connection that are read as they come.
const YOUNG_LINES: usize = 32;
/// Most recorded refusals for each rank and generation.
const RECORDED_REFUSALS: u32 = 8;
/// Longest reason of a refusal, characters: it may quote what was sent.
const REASON_LENGTH: usize = 300;

/// An event of a rank, or its refusal.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReceivedEvent {
    /// Generation of the rank.
    pub generation: Generation,
    /// What is to be recorded.
    pub event: RecordEvent,
}

/// A moment of rank 0's evaluation, for consoles that watch: a newer one replaces it.
#[derive(Debug, Clone, Default)]
pub(crate) struct LatestFrame {
    /// How many there were.
    pub number: u64,
    /// It, its generation, and when it came.
    pub newest: Option<(Arc<LiveFrame>, Generation, Instant)>,
}

/// Refusals of one generation, per rank; `None` for connections without a `hello`.
#[derive(Debug, Default)]
struct RejectionLog {
    generation: Generation,
    count: BTreeMap<Option<Rank>, u32>,
}

/// What the connections share with the loop.
#[derive(Debug, Clone, Default)]
pub(crate) struct EventConnections {
    /// Ranks that may report, and their generation.
    pub expected: Rc<RefCell<(Generation, Vec<Rank>)>>,
    /// Ranks that report for all after rank 0 is lost.
    pub reporters: Rc<RefCell<BTreeSet<Rank>>>,
    /// Open connections per rank after its `hello`.
    pub open: Rc<RefCell<BTreeMap<Rank, usize>>>,
    /// Lines that were no valid event, so far.
    pub malformed: Arc<AtomicU64>,
    /// The newest moment of rank 0's evaluation.
    pub frames: Rc<watch::Sender<LatestFrame>>,
    /// Histograms and images go through it.
    pub gate: MediaLimiter,
    refusals: Rc<RefCell<RejectionLog>>,
    turns: Rc<Notify>,
    /// Held by every connection.
    count: Rc<()>,
}

impl EventConnections {
    /// What the rank sends is about the whole run.
    fn reports(&self, rank: Rank) -> bool {
        rank == Rank(0) || self.reporters.borrow().contains(&rank)
    }

    /// Connections of `rank` that are still open.
    pub fn open_of(&self, rank: Rank) -> usize {
        self.open.borrow().get(&rank).copied().unwrap_or(0)
    }

    /// Has every connection read what is there (EVENT-3).
    pub fn turn(&self) {
        self.turns.notify_waiters();
    }

    fn show(&self, frame: LiveFrame, generation: Generation) {
        self.frames.send_modify(|shown| {
            shown.number += 1;
            shown.newest = Some((Arc::new(frame), generation, Instant::now()));
        });
    }

    fn count_malformed(&self) {
        self.malformed.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the record of a refusal, if it is within the limit.
    fn refusal(&self, rank: Option<Rank>, reason: &str) -> Option<ReceivedEvent> {
        let generation = self.expected.borrow().0;
        let mut refusals = self.refusals.borrow_mut();
        if refusals.generation != generation {
            *refusals = RejectionLog { generation, count: BTreeMap::new() };
        }
        let count = refusals.count.entry(rank).or_default();
        *count += 1;
        if *count > RECORDED_REFUSALS {
            return None;
        }
        let who =
            rank.map_or_else(|| "a process on the event socket".to_owned(), |rank| format!("rank {rank}"));
        let rest = if *count == RECORDED_REFUSALS { "; further refusals are only counted" } else { "" };
        let text = format!("{who}: event refused: {reason}{rest}");
        Some(ReceivedEvent { generation, event: RecordEvent::Notice { text } })
    }
}

/// Counts a connection as open for as long as it lives.
struct OpenConnection {
    connections: EventConnections,
    rank: Rank,
}

impl OpenConnection {
    fn take(connections: &EventConnections, rank: Rank) -> OpenConnection {
        *connections.open.borrow_mut().entry(rank).or_default() += 1;
        OpenConnection { connections: connections.clone(), rank }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        if let Some(count) = self.connections.open.borrow_mut().get_mut(&self.rank) {
            *count = count.saturating_sub(1);
        }
    }
}

/// Takes a new connection, or refuses it; to be called in a `LocalSet`.
pub(crate) fn admit(
    stream: UnixStream,
    connections: &EventConnections,
    events: &mpsc::Sender<ReceivedEvent>,
) {
    let allowed = stream.peer_cred().is_ok_and(|peer| peer.uid() == own_uid());
    if !allowed || Rc::strong_count(&connections.count) > open_files::share(CONNECTIONS) {
        connections.count_malformed();
        return;
    }
    let (connections, events) = (connections.clone(), events.clone());
    tokio::task::spawn_local(listen(stream, connections, events));
}

async fn listen(mut stream: UnixStream, connections: EventConnections, events: mpsc::Sender<ReceivedEvent>) {
    let mut peer = EventPeer { connections, events, lines: LineBuffer::default(), open: None, lines_read: 0 };
    let mut chunk = vec![0; 16 << 10];
    while peer.lines_read < YOUNG_LINES {
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(read) => {
                let outcome = peer.read_lines(&chunk[..read]).await;
                // A rank that does not read its answers loses them.
                let _ = stream.try_write(&outcome.answers);
                if outcome.over {
                    return;
                }
            }
        }
    }
    // The runtime would wake the loop for every line: from here on the socket is read without it.
    let Ok(mut stream) = stream.into_std() else { return };
    loop {
        peer.connections.turns.notified().await;
        loop {
            match stream.read(&mut chunk) {
                Ok(0) => return,
                Ok(read) => {
                    let outcome = peer.read_lines(&chunk[..read]).await;
                    let _ = stream.write(&outcome.answers);
                    if outcome.over {
                        return;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}

/// The rank at the other end of a connection, known after its `hello`.
struct EventPeer {
    connections: EventConnections,
    events: mpsc::Sender<ReceivedEvent>,
    lines: LineBuffer,
    open: Option<(Generation, OpenConnection)>,
    lines_read: usize,
}

/// What follows from bytes that came.
#[derive(Debug, Default)]
struct ReadOutcome {
    /// Lines for the other end.
    answers: Vec<u8>,
    /// The connection is over.
    over: bool,
}

impl EventPeer {
    async fn read_lines(&mut self, bytes: &[u8]) -> ReadOutcome {
        let mut outcome = ReadOutcome::default();
        for line in self.lines.push(bytes) {
            self.lines_read += 1;
            match self.take(line) {
                Ok(Some(event)) => outcome.over = self.events.send(event).await.is_err(),
                Ok(None) => {}
                Err(refused) => {
                    self.connections.count_malformed();
                    let reason = words::clip(&refused.reason, REASON_LENGTH);
                    let answer = json!({ "kind": "refused", "line": self.lines_read, "reason": reason });
                    outcome.answers.extend(format!("{answer}\n").bytes());
                    let rank = self.open.as_ref().map(|(_, open)| open.rank);
                    if let Some(event) = self.connections.refusal(rank, &reason) {
                        outcome.over = self.events.send(event).await.is_err();
                    }
                    outcome.over |= refused.ends;
                }
            }
            if outcome.over {
                break;
            }
        }
        outcome
    }

    /// Returns the event of a line; `None` when there is nothing to record.
    fn take(&mut self, line: Result<Vec<u8>, ()>) -> Result<Option<ReceivedEvent>, LineRefusal> {
        let most = self.lines.most();
        let line = line.map_err(|()| LineRefusal::line(format!("the line is longer than {most} bytes")))?;
        let event = serde_json::from_slice::<RankEvent>(&line);
        let event = event.map_err(|error| LineRefusal::line(parse_error(&line, &error)))?;
        let Some((generation, open)) = &self.open else {
            let RankEvent::Hello { rank, generation } = event else {
                return Err(LineRefusal::connection("the first line of a connection must be `hello`".into()));
            };
            let known = {
                let expected = self.connections.expected.borrow();
                expected.0 == generation && expected.1.contains(&rank)
            };
            if !known {
                let what = format!("rank {rank} of generation {generation} is not on this host");
                return Err(LineRefusal::connection(what));
            }
            self.open = Some((generation, OpenConnection::take(&self.connections, rank)));
            if rank == Rank(0) && self.connections.open_of(rank) <= PICTURE_CONNECTIONS {
                self.lines.take_pictures();
            }
            return Ok(None);
        };
        match event {
            RankEvent::Hello { .. } => Ok(None),
            RankEvent::Frame(frame) => {
                if self.connections.reports(open.rank) {
                    self.connections.show(*frame, *generation);
                }
                Ok(None)
            }
            RankEvent::Membership(change) => {
                if change.ranks.first() == Some(&open.rank) {
                    self.connections.reporters.borrow_mut().insert(open.rank);
                }
                Ok(self.recorded(RankEvent::Membership(change)))
            }
            RankEvent::Histogram(_) | RankEvent::Image(_) if !self.connections.reports(open.rank) => {
                self.connections.gate.withhold(1);
                Ok(None)
            }
            RankEvent::Histogram(event) => {
                let passed = self.connections.gate.histogram(event, Instant::now());
                let passed = passed.map_err(|why| LineRefusal::line(format!("`histogram`: {why}")))?;
                Ok(passed.and_then(|event| self.recorded(RankEvent::Histogram(event))))
            }
            RankEvent::Image(event) => {
                let passed = self.connections.gate.picture(event, Instant::now());
                let passed = passed.map_err(|why| LineRefusal::line(format!("`image`: {why}")))?;
                Ok(passed.and_then(|event| self.recorded(RankEvent::Image(event))))
            }
            RankEvent::Unknown => Err(LineRefusal::line(format!("unknown kind: {}", quoted(&line)))),
            event => Ok(self.recorded(event)),
        }
    }

    /// Returns the record of an event.
    fn recorded(&self, event: RankEvent) -> Option<ReceivedEvent> {
        let (generation, open) = self.open.as_ref()?;
        Some(ReceivedEvent { generation: *generation, event: RecordEvent::Rank { rank: open.rank, event } })
    }
}

/// Why a line was not taken.
#[derive(Debug)]
struct LineRefusal {
    reason: String,
    /// Nothing else is read from the connection.
    ends: bool,
}

impl LineRefusal {
    fn line(reason: String) -> LineRefusal {
        LineRefusal { reason, ends: false }
    }

    fn connection(reason: String) -> LineRefusal {
        LineRefusal { reason, ends: true }
    }
}

/// Describes why a line is not an event.
fn parse_error(line: &[u8], error: &serde_json::Error) -> String {
    match serde_json::from_slice::<serde_json::Value>(line) {
        Ok(value) => match value.get("kind").and_then(|kind| kind.as_str()) {
            Some(kind) => format!("`{kind}`: {error}"),
            None => format!("`kind` is missing: {}", quoted(line)),
        },
        Err(error) => format!("invalid JSON: {error}: {}", quoted(line)),
    }
}

/// The beginning of a line.
fn quoted(line: &[u8]) -> String {
    words::clip(&String::from_utf8_lossy(&line[..line.len().min(120)]), 80)
}

/// Longest line, bytes.
const LINE_BYTES: usize = 64 << 10;
/// Longest line with an image in base64.
const PICTURE_LINE: usize = PICTURE_BYTES.div_ceil(3) * 4 + (4 << 10);

/// Cuts bytes into lines of bounded length.
#[derive(Debug)]
pub(crate) struct LineBuffer {
    /// Longest line, bytes.
    most: usize,
    pending: Vec<u8>,
    skipping: bool,
}

impl Default for LineBuffer {
    fn default() -> LineBuffer {
        LineBuffer { most: LINE_BYTES, pending: Vec::new(), skipping: false }
    }
}

impl LineBuffer {
    /// Lines that may hold images follow.
    pub fn take_pictures(&mut self) {
        self.most = PICTURE_LINE;
    }

    /// Longest line, bytes.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Feeds bytes; every finished line comes out, `Err` for one that was too long.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Result<Vec<u8>, ()>> {
        let mut out = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            if !self.skipping {
                self.pending.extend_from_slice(text);
            }
            if self.pending.len() > self.most {
                self.pending = Vec::new();
                self.skipping = true;
            }
            if ends {
                if std::mem::take(&mut self.skipping) {
                    out.push(Err(()));
                } else if !self.pending.is_empty() {
                    out.push(Ok(std::mem::take(&mut self.pending)));
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn event_3_busy_connection_is_read_once_per_turn() {
        let hello = RankEvent::Hello { rank: Rank(1), generation: Generation(0) };
        let line = |event: &RankEvent| serde_json::to_string(event).unwrap() + "\n";
        let joined =
            line(&RankEvent::Error { message: "e".into(), hint: String::new(), usage: false, failure: None });
        let connections = EventConnections::default();
        *connections.expected.borrow_mut() = (Generation(0), vec![Rank(1)]);
        let (sender, mut received) = mpsc::channel(1024);
        let (mut rank, stream) = UnixStream::pair().unwrap();
        let local = tokio::task::LocalSet::new();
        let patience = std::time::Duration::from_secs(20);
        let silence = std::time::Duration::from_millis(50);
        local
            .run_until(async {
                admit(stream, &connections, &sender);
                rank.write_all(line(&hello).as_bytes()).await.unwrap();
                for _ in 1..YOUNG_LINES {
                    rank.write_all(joined.as_bytes()).await.unwrap();
                    tokio::time::timeout(patience, received.recv()).await.expect("young lines come at once");
                }
                rank.write_all(joined.repeat(3).as_bytes()).await.unwrap();
                assert!(tokio::time::timeout(silence, received.recv()).await.is_err(), "not before its turn");
                connections.turn();
                for _ in 0..3 {
                    tokio::time::timeout(patience, received.recv()).await.expect("all that is there");
                }
                rank.write_all(joined.as_bytes()).await.unwrap();
                drop(rank);
                let ended = async {
                    while connections.open_of(Rank(1)) > 0 {
                        connections.turn();
                        tokio::task::yield_now().await;
                    }
                };
                tokio::time::timeout(patience, ended).await.expect("its end is seen at a turn");
                assert!(received.try_recv().is_ok(), "the last event arrives before the end");
            })
            .await;
    }

    /// Connects, writes `lines` and returns the answers and what is recorded.
    async fn after(connections: &EventConnections, lines: &str) -> (Vec<String>, Vec<RecordEvent>) {
        let (sender, mut received) = mpsc::channel(1024);
        let (mut rank, stream) = UnixStream::pair().unwrap();
        admit(stream, connections, &sender);
        drop(sender);
        rank.write_all(lines.as_bytes()).await.unwrap();
        rank.shutdown().await.unwrap();
        let turns = async {
            loop {
                connections.turn();
                tokio::task::yield_now().await;
            }
        };
        let mut answers = String::new();
        let read = async {
            rank.read_to_string(&mut answers).await.unwrap();
            let mut events = Vec::new();
            while let Some(event) = received.recv().await {
                events.push(event.event);
            }
            events
        };
        let events = tokio::select! { events = read => events, () = turns => unreachable!() };
        (answers.lines().map(str::to_owned).collect(), events)
    }

    #[tokio::test]
    async fn event_2_refusal_is_answered_recorded_and_bounded() {
        let connections = EventConnections::default();
        *connections.expected.borrow_mut() = (Generation(2), vec![Rank(1)]);
        let hello = "{\"kind\":\"hello\",\"rank\":1,\"generation\":2}\n";
        let good = "{\"kind\":\"finished\",\"reason\":\"budget\"}\n";
        let text = |event: &RecordEvent| match event {
            RecordEvent::Notice { text } => text.clone(),
            other => format!("{other:?}"),
        };
        tokio::task::LocalSet::new()
            .run_until(async {
                for (line, reason) in [
                    ("{\"kind\":\"eval\",\"env_step\":1}", "`eval`: missing field"),
                    ("{\"kind\":\"evaluation\"}", "unknown kind"),
                    ("{\"env_step\":1}", "`kind` is missing"),
                    ("loss 0.5", "invalid JSON: expected value at line 1"),
                ] {
                    let connections =
                        EventConnections { expected: connections.expected.clone(), ..Default::default() };
                    let (answers, events) = after(&connections, &format!("{hello}{line}\n{good}")).await;
                    let [answer] = answers.as_slice() else { panic!("{line}: {answers:?}") };
                    let answer: serde_json::Value = serde_json::from_str(answer).unwrap();
                    assert_eq!((&answer["kind"], &answer["line"]), (&json!("refused"), &json!(2)));
                    assert!(answer["reason"].as_str().unwrap().contains(reason), "{answer}");
                    let notice = text(&events[0]);
                    assert!(notice.starts_with("rank 1: event refused: "), "{notice}");
                    assert!(notice.contains(reason), "{notice}");
                    assert_eq!(events.len(), 2, "the connection continues: {events:?}");
                    assert_eq!(connections.malformed.load(Ordering::Relaxed), 1);
                }
                for (lines, reason) in [
                    (good, "the first line of a connection must be `hello`"),
                    (
                        "{\"kind\":\"hello\",\"rank\":7,\"generation\":2}\n",
                        "rank 7 of generation 2 is not on this host",
                    ),
                ] {
                    let (answers, events) = after(&connections, &format!("{lines}{good}")).await;
                    assert!(answers.len() == 1 && answers[0].contains(reason), "{answers:?}");
                    let [notice] = events.as_slice() else { panic!("{events:?}") };
                    assert!(text(notice).starts_with("a process on the event socket: "), "{notice:?}");
                }
                let (answers, events) = after(&connections, &(hello.to_owned() + &"?\n".repeat(500))).await;
                assert_eq!(events.len(), RECORDED_REFUSALS as usize);
                assert!(text(&events[7]).ends_with("; further refusals are only counted"));
                assert_eq!(answers.len(), 500, "every one is answered");
                let (_, events) = after(&connections, &format!("{hello}?\n")).await;
                assert!(events.is_empty(), "a new connection begins no new count");
                assert_eq!(connections.malformed.load(Ordering::Relaxed), 503);
            })
            .await;
    }

    #[test]
    fn event_1_lines_are_bounded_whatever_the_cut() {
        let mut stream = b"{\"a\":1}\n\n".to_vec();
        stream.extend(vec![b'x'; LINE_BYTES + 1]);
        stream.extend(b"\nlast\nunfinished");
        for step in [1, 7, 4096, stream.len()] {
            let mut lines = LineBuffer::default();
            let seen: Vec<_> = stream.chunks(step).flat_map(|part| lines.push(part)).collect();
            assert_eq!(
                seen,
                [Ok(b"{\"a\":1}".to_vec()), Err(()), Ok(b"last".to_vec())],
                "cut every {step} bytes"
            );
            assert!(lines.pending.capacity() <= 2 * LINE_BYTES);
        }
        let mut lines = LineBuffer::default();
        lines.take_pictures();
        let long =
            [vec![b'x'; 2 * LINE_BYTES], vec![b'\n'], vec![b'x'; PICTURE_LINE + 1], vec![b'\n']].concat();
        let seen: Vec<_> = long.chunks(4096).flat_map(|part| lines.push(part)).collect();
        assert_eq!(seen, [Ok(vec![b'x'; 2 * LINE_BYTES]), Err(())]);
    }
}
