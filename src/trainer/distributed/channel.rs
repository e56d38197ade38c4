//! A connection between two ranks that carries records: sealed ones where the run has a secret.
//!
//! Owner: whoever holds the connection. A record is its length (4 bytes, little endian), its bytes and, when
//! sealed, a tag over both. Nothing here waits; [`wait`] does, within a deadline.
//!
//! Invariants:
//! - CHANNEL-1: no byte of a sealed record is given to anybody before the whole record is verified.
//! - CHANNEL-2: a length beyond the connection's own bound ends it before anything is stored.

use super::error::{BackendError, DistErrorKind};
use super::greeting::SessionKeys;
use super::seal::{Seal, TAG};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

const LENGTH: usize = 4;

/// See the module.
pub(super) struct Channel {
    pub(super) peer: u32,
    stream: TcpStream,
    sealing: Option<Seal>,
    opening: Option<Seal>,
    /// Most bytes of a record.
    most: usize,
    out: Vec<u8>,
    flushed: usize,
    inbox: Box<[u8]>,
    filled: usize,
    /// Length of the record at the front of the inbox, once it is open.
    opened: Option<usize>,
}

impl Channel {
    /// For records of at most `most` bytes in both directions.
    ///
    /// Errors: the socket cannot be set up.
    pub(super) fn new(
        peer: u32,
        stream: TcpStream,
        keys: SessionKeys,
        most: usize,
    ) -> Result<Channel, BackendError> {
        stream
            .set_nodelay(true)
            .and_then(|()| stream.set_nonblocking(true))
            .map_err(|error| lost(peer, &error.to_string()))?;
        Ok(Channel {
            peer,
            stream,
            sealing: keys.sends,
            opening: keys.receives,
            most,
            out: Vec::with_capacity(LENGTH + most + TAG),
            flushed: 0,
            // With room for the next length, so that a stream of full records is read in whole ones.
            inbox: vec![0; LENGTH + most + TAG + LENGTH].into(),
            filled: 0,
            opened: None,
        })
    }

    /// Everything put in is sent.
    pub(super) fn is_flushed(&self) -> bool {
        self.flushed == self.out.len()
    }

    /// Makes the next record; only when the last one is flushed. Copies: the parts may change afterwards.
    pub(super) fn put(&mut self, parts: [&[u8]; 2]) -> Result<(), BackendError> {
        let length = parts[0].len() + parts[1].len();
        debug_assert!(self.is_flushed() && length <= self.most);
        self.out.clear();
        self.out.extend((length as u32).to_le_bytes());
        self.out.extend_from_slice(parts[0]);
        self.out.extend_from_slice(parts[1]);
        self.flushed = 0;
        if let Some(seal) = &mut self.sealing {
            let (head, body) = self.out.split_at_mut(LENGTH);
            let tag = seal.seal(head, body).ok_or_else(|| lost(self.peer, "its key is used up"))?;
            self.out.extend(tag);
        }
        Ok(())
    }

    /// Sends what the socket takes; whether it took anything.
    pub(super) fn flush(&mut self) -> Result<bool, BackendError> {
        if self.is_flushed() {
            return Ok(false);
        }
        let sent = moved((&self.stream).write(&self.out[self.flushed..]), self.peer)?;
        self.flushed += sent;
        Ok(sent > 0)
    }

    /// Takes in what has arrived; whether anything has. Nothing while a whole record waits to be used: a peer
    /// that has closed its connection after it must not keep it from being used.
    pub(super) fn fill(&mut self) -> Result<bool, BackendError> {
        if self.holds_record() {
            return Ok(false);
        }
        let read = match (&self.stream).read(&mut self.inbox[self.filled..]) {
            Ok(0) => return Err(lost(self.peer, "it closed its connection")),
            result => moved(result, self.peer)?,
        };
        self.filled += read;
        Ok(read > 0)
    }

    fn holds_record(&self) -> bool {
        match self.inbox[..self.filled].first_chunk::<LENGTH>() {
            _ if self.opened.is_some() => true,
            Some(head) => self.filled >= self.whole((u32::from_le_bytes(*head) as usize).min(self.most)),
            None => false,
        }
    }

    /// The record at the front, once it has arrived and is verified.
    pub(super) fn record(&mut self) -> Result<Option<&[u8]>, BackendError> {
        let length = match self.opened {
            Some(length) => length,
            None => {
                let Some(head) = self.inbox[..self.filled].first_chunk::<LENGTH>() else { return Ok(None) };
                let length = u32::from_le_bytes(*head) as usize;
                if length > self.most {
                    return Err(forged(self.peer));
                }
                if self.filled < self.whole(length) {
                    return Ok(None);
                }
                let whole = self.whole(length);
                if let Some(seal) = &mut self.opening {
                    let (head, body) = self.inbox[..whole].split_at_mut(LENGTH);
                    if !seal.open(head, body) {
                        return Err(forged(self.peer));
                    }
                }
                self.opened = Some(length);
                length
            }
        };
        Ok(Some(&self.inbox[LENGTH..LENGTH + length]))
    }

    /// Gives up the record at the front.
    pub(super) fn consume(&mut self) {
        if let Some(length) = self.opened.take() {
            let whole = self.whole(length);
            self.inbox.copy_within(whole..self.filled, 0);
            self.filled -= whole;
        }
    }

    fn whole(&self, length: usize) -> usize {
        LENGTH + length + if self.opening.is_some() { TAG } else { 0 }
    }

    /// For [`wait`]: this connection can be written, or `reads` and something has arrived.
    pub(super) fn interest(&self, reads: bool) -> libc::pollfd {
        let out = if self.is_flushed() { 0 } else { libc::POLLOUT };
        let reads = reads && !self.holds_record();
        subject(self.stream.as_raw_fd(), out | if reads { libc::POLLIN } else { 0 })
    }

    /// Sends one record and waits for the one that answers it.
    pub(super) fn ask(&mut self, request: &[u8], deadline: Instant) -> Result<Vec<u8>, BackendError> {
        self.put([request, &[]])?;
        loop {
            let flushed = self.flush()?;
            let filled = self.fill()?;
            if let Some(answer) = self.record()? {
                let answer = answer.to_vec();
                self.consume();
                return Ok(answer);
            }
            if !flushed && !filled && !wait(&mut [self.interest(true)], Some(deadline)) {
                let text = format!("timed out waiting for rank {}", self.peer);
                return Err(BackendError::new(DistErrorKind::Timeout, text));
            }
        }
    }
}

pub(super) fn subject(fd: RawFd, events: i16) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

/// Sleeps until one of the sockets is ready; `false` once the deadline is over. It does not spin first: on
/// shared cores, the scheduler puts a rank that has spun behind the others. Spinning for 50 us doubled both
/// CPU time and latency there (136 kB, load 14 on two cores), and made no difference on an idle machine.
pub(super) fn wait(subjects: &mut [libc::pollfd], deadline: Option<Instant>) -> bool {
    let limit = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
        None => -1,
        Some(left) if left.is_zero() => return false,
        Some(left) => i32::try_from(left.as_millis().max(1)).unwrap_or(i32::MAX),
    };
    // SAFETY: the pointer and the length are of one live slice for the length of the call. The next read or
    // write finds out what happened.
    unsafe { libc::poll(subjects.as_mut_ptr(), subjects.len() as libc::nfds_t, limit) };
    true
}

pub(super) fn lost(peer: u32, text: &str) -> BackendError {
    BackendError::new(DistErrorKind::Connection, format!("rank {peer}: {text}"))
}

fn forged(peer: u32) -> BackendError {
    let text = format!("what arrived as rank {peer}'s message is not what it sent");
    BackendError::new(DistErrorKind::Forged, text)
}

fn moved(result: std::io::Result<usize>, peer: u32) -> Result<usize, BackendError> {
    match result {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        result => result.map_err(|error| lost(peer, &error.to_string().to_lowercase())),
    }
}
