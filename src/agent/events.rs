//! The event socket: what ranks say that must not be lost. JSON Lines of [`RankEvent`], `hello` first.
//!
//! Owner: one task per connection on the agent's loop. Invariants:
//! - EVENT-1: a line is read into at most [`LINE_BYTES`]; longer ones are skipped and counted, like lines that are no event.
//! - EVENT-2: only this user's processes may speak, and only for a rank of the current generation of this host.

use super::paths::own_uid;
use crate::core::ids::{Generation, Rank};
use crate::proto::message::RankEvent;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

/// Longest line, bytes.
pub const LINE_BYTES: usize = 64 << 10;
/// Most connections at once.
const CONNECTIONS: usize = 1024;

/// Something a rank said.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// Who.
    pub rank: Rank,
    /// In which generation.
    pub generation: Generation,
    /// What.
    pub event: RankEvent,
}

/// What the connections share with the loop.
#[derive(Debug, Clone, Default)]
pub struct Audience {
    /// Ranks that may speak, and their generation.
    pub expected: Rc<RefCell<(Generation, Vec<Rank>)>>,
    /// Open connections per rank that has said hello.
    pub open: Rc<RefCell<BTreeMap<Rank, usize>>>,
    /// Lines that were no valid event, so far.
    pub malformed: Arc<AtomicU64>,
    connections: Rc<()>,
}

impl Audience {
    /// Connections of `rank` that are still open.
    pub fn open_of(&self, rank: Rank) -> usize {
        self.open.borrow().get(&rank).copied().unwrap_or(0)
    }

    fn count_malformed(&self) {
        self.malformed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts a connection as open for as long as it lives.
struct Seat {
    audience: Audience,
    rank: Rank,
}

impl Seat {
    fn take(audience: &Audience, rank: Rank) -> Seat {
        *audience.open.borrow_mut().entry(rank).or_default() += 1;
        Seat { audience: audience.clone(), rank }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(count) = self.audience.open.borrow_mut().get_mut(&self.rank) {
            *count = count.saturating_sub(1);
        }
    }
}

/// Takes a new connection, or refuses it; to be called in a `LocalSet`.
pub fn admit(stream: UnixStream, audience: &Audience, said: &mpsc::Sender<Said>) {
    let allowed = stream.peer_cred().is_ok_and(|peer| peer.uid() == own_uid());
    if !allowed || Rc::strong_count(&audience.connections) > CONNECTIONS {
        audience.count_malformed();
        return;
    }
    let (audience, said) = (audience.clone(), said.clone());
    tokio::task::spawn_local(listen(stream, audience, said));
}

async fn listen(mut stream: UnixStream, audience: Audience, said: mpsc::Sender<Said>) {
    let mut lines = Lines::default();
    let mut speaker: Option<(Generation, Seat)> = None;
    let mut chunk = vec![0; 16 << 10];
    loop {
        let read = match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => break,
            Ok(read) => read,
        };
        for line in lines.push(&chunk[..read]) {
            let event = line.ok().and_then(|line| serde_json::from_slice::<RankEvent>(&line).ok());
            match (event, &speaker) {
                (Some(RankEvent::Hello { rank, generation }), None) => {
                    let known = {
                        let expected = audience.expected.borrow();
                        expected.0 == generation && expected.1.contains(&rank)
                    };
                    if !known {
                        audience.count_malformed();
                        return;
                    }
                    speaker = Some((generation, Seat::take(&audience, rank)));
                }
                (None | Some(RankEvent::Unknown), _) => audience.count_malformed(),
                (Some(RankEvent::Hello { .. }), Some(_)) => {}
                (Some(event), Some((generation, seat))) => {
                    let said_now = Said { rank: seat.rank, generation: *generation, event };
                    if said.send(said_now).await.is_err() {
                        return;
                    }
                }
                (Some(_), None) => {
                    audience.count_malformed();
                    return;
                }
            }
        }
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
}
