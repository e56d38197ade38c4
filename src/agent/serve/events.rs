//! The event socket: what ranks say that must not be lost. JSON Lines of [`RankEvent`], `hello` first.
//!
//! Owner: one task per connection on the agent's loop. Invariants:
//! - EVENT-1: a line is read into at most [`LINE_BYTES`]; longer ones are skipped and counted, like lines
//!   that are not events.
//! - Only this user's processes may speak, and only for a rank of the current generation of this
//!   host.
//! - EVENT-3: the first [`YOUNG_LINES`] lines of a connection are read as they come, so that a start is seen
//!   at once; later ones once per turn, which is a round of samples or the end of a rank. In between they
//!   wait in the kernel, which keeps them whatever becomes of the rank. Agent and consoles then wake a few
//!   times a second however much a rank says, and take that much less from its cores.

use crate::paths::own_uid;
use rankdeck_proto::message::RankEvent;
use rankdeck_types::ids::{Generation, Rank};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::{Notify, mpsc};

/// Longest line, bytes.
pub const LINE_BYTES: usize = 64 << 10;
/// Most connections at once.
const CONNECTIONS: usize = 1024;
/// Lines of a new connection that are read as they come.
const YOUNG_LINES: usize = 32;

/// Something a rank said.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// The rank that reports it.
    pub rank: Rank,
    /// Generation of the rank.
    pub generation: Generation,
    /// The event.
    pub event: RankEvent,
}

/// What the connections share with the loop.
#[derive(Debug, Clone, Default)]
pub struct EventConnections {
    /// Ranks that may speak, and their generation.
    pub expected: Rc<RefCell<(Generation, Vec<Rank>)>>,
    /// Open connections per rank that has said hello.
    pub open: Rc<RefCell<BTreeMap<Rank, usize>>>,
    /// Lines that were no valid event, so far.
    pub malformed: Arc<AtomicU64>,
    turns: Rc<Notify>,
    /// Held by every connection.
    count: Rc<()>,
}

impl EventConnections {
    /// Connections of `rank` that are still open.
    pub fn open_of(&self, rank: Rank) -> usize {
        self.open.borrow().get(&rank).copied().unwrap_or(0)
    }

    /// Has every connection read what is there (EVENT-3).
    pub fn turn(&self) {
        self.turns.notify_waiters();
    }

    fn count_malformed(&self) {
        self.malformed.fetch_add(1, Ordering::Relaxed);
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
pub fn admit(stream: UnixStream, connections: &EventConnections, said: &mpsc::Sender<Said>) {
    let allowed = stream.peer_cred().is_ok_and(|peer| peer.uid() == own_uid());
    if !allowed || Rc::strong_count(&connections.count) > CONNECTIONS {
        connections.count_malformed();
        return;
    }
    let (connections, said) = (connections.clone(), said.clone());
    tokio::task::spawn_local(listen(stream, connections, said));
}

async fn listen(mut stream: UnixStream, connections: EventConnections, said: mpsc::Sender<Said>) {
    let mut speaker = Speaker { connections, said, lines: Lines::default(), open: None, heard: 0 };
    let mut chunk = vec![0; 16 << 10];
    while speaker.heard < YOUNG_LINES {
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(read) => {
                if !speaker.hear(&chunk[..read]).await {
                    return;
                }
            }
        }
    }
    // The runtime would wake the loop for every line: from here on the socket is read without it.
    let Ok(mut stream) = stream.into_std() else { return };
    loop {
        speaker.connections.turns.notified().await;
        loop {
            match stream.read(&mut chunk) {
                Ok(0) => return,
                Ok(read) => {
                    if !speaker.hear(&chunk[..read]).await {
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

/// The rank at the other end of a connection, once it has said which one it is.
struct Speaker {
    connections: EventConnections,
    said: mpsc::Sender<Said>,
    lines: Lines,
    open: Option<(Generation, OpenConnection)>,
    heard: usize,
}

impl Speaker {
    /// Takes what has come; `false` when the connection is over.
    async fn hear(&mut self, bytes: &[u8]) -> bool {
        for line in self.lines.push(bytes) {
            self.heard += 1;
            let event = line.ok().and_then(|line| serde_json::from_slice::<RankEvent>(&line).ok());
            match (event, &self.open) {
                (Some(RankEvent::Hello { rank, generation }), None) => {
                    let known = {
                        let expected = self.connections.expected.borrow();
                        expected.0 == generation && expected.1.contains(&rank)
                    };
                    if !known {
                        self.connections.count_malformed();
                        return false;
                    }
                    self.open = Some((generation, OpenConnection::take(&self.connections, rank)));
                }
                (None | Some(RankEvent::Unknown), _) => self.connections.count_malformed(),
                (Some(RankEvent::Hello { .. }), Some(_)) => {}
                (Some(event), Some((generation, open))) => {
                    let said_now = Said { rank: open.rank, generation: *generation, event };
                    if self.said.send(said_now).await.is_err() {
                        return false;
                    }
                }
                (Some(_), None) => {
                    self.connections.count_malformed();
                    return false;
                }
            }
        }
        true
    }
}

/// Cuts bytes into lines of bounded length.
#[derive(Debug, Default)]
pub struct Lines {
    pending: Vec<u8>,
    skipping: bool,
}

impl Lines {
    /// Feeds bytes; every finished line comes out, `Err` for one that was too long.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Result<Vec<u8>, ()>> {
        let mut out = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            if !self.skipping {
                self.pending.extend_from_slice(text);
            }
            if self.pending.len() > LINE_BYTES {
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

    #[test]
    fn event_1_lines_are_bounded_whatever_the_cut() {
        let mut stream = b"{\"a\":1}\n\n".to_vec();
        stream.extend(vec![b'x'; LINE_BYTES + 1]);
        stream.extend(b"\nlast\nunfinished");
        for step in [1, 7, 4096, stream.len()] {
            let mut lines = Lines::default();
            let seen: Vec<_> = stream.chunks(step).flat_map(|part| lines.push(part)).collect();
            assert_eq!(
                seen,
                [Ok(b"{\"a\":1}".to_vec()), Err(()), Ok(b"last".to_vec())],
                "cut every {step} bytes"
            );
            assert!(lines.pending.capacity() <= 2 * LINE_BYTES);
        }
    }

    #[tokio::test]
    async fn event_3_a_busy_connection_is_read_once_per_turn_and_its_end_is_seen() {
        let hello = RankEvent::Hello { rank: Rank(1), generation: Generation(0) };
        let line = |event: &RankEvent| serde_json::to_string(event).unwrap() + "\n";
        let joined = line(&RankEvent::Error { message: "e".into(), hint: String::new(), usage: false });
        let connections = EventConnections::default();
        *connections.expected.borrow_mut() = (Generation(0), vec![Rank(1)]);
        let (said, mut heard) = mpsc::channel(1024);
        let (mut rank, stream) = UnixStream::pair().unwrap();
        let local = tokio::task::LocalSet::new();
        let patience = std::time::Duration::from_secs(20);
        let silence = std::time::Duration::from_millis(50);
        local
            .run_until(async {
                admit(stream, &connections, &said);
                rank.write_all(line(&hello).as_bytes()).await.unwrap();
                for _ in 1..YOUNG_LINES {
                    rank.write_all(joined.as_bytes()).await.unwrap();
                    tokio::time::timeout(patience, heard.recv()).await.expect("young lines come at once");
                }
                rank.write_all(joined.repeat(3).as_bytes()).await.unwrap();
                assert!(tokio::time::timeout(silence, heard.recv()).await.is_err(), "not before its turn");
                connections.turn();
                for _ in 0..3 {
                    tokio::time::timeout(patience, heard.recv()).await.expect("all that is there");
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
                assert!(heard.try_recv().is_ok(), "what was said last is heard before the end");
            })
            .await;
    }
}
