//! A connection between two ranks that carries records, sealed if the run has a secret.
//!
//! A record is its length (4 bytes, little endian), its bytes and, when sealed, a tag over both. Nothing here
//! waits; [`wait`] does, within a deadline.
//!
//! AES-128-GCM (NIST SP 800-38D), with a key of its own for each direction of each connection and the
//! record's number as nonce. With AES instructions it costs less than any code that only authenticates
//! (docs/design/collectives.md).
//!
//! Invariants:
//! - CHANNEL-1: no byte of a sealed record is used before the whole record is verified.
//! - CHANNEL-2: a length beyond the connection's own bound ends it before anything is stored.
//! - SEAL-1: a record that was changed, cut, repeated, left out, moved, sent back, or made for
//!   another connection does not open.

use super::error::{BackendError, DistErrorKind};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

/// What the two directions of a connection are sealed with; nothing without a secret.
pub(crate) struct SessionKeys {
    pub sends: Option<Seal>,
    pub receives: Option<Seal>,
}

const LENGTH: usize = 4;

/// A connection to a peer, with its buffers and seals.
pub(crate) struct Channel {
    pub(crate) peer: u32,
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
    pub(crate) fn new(
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
    pub(crate) fn is_flushed(&self) -> bool {
        self.flushed == self.out.len()
    }

    /// Makes the next record; only when the last one is flushed. Copies: the parts may change afterwards.
    pub(crate) fn put(&mut self, parts: [&[u8]; 2]) -> Result<(), BackendError> {
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
    pub(crate) fn flush(&mut self) -> Result<bool, BackendError> {
        if self.is_flushed() {
            return Ok(false);
        }
        let sent = moved((&self.stream).write(&self.out[self.flushed..]), self.peer)?;
        self.flushed += sent;
        Ok(sent > 0)
    }

    /// Takes in what has arrived; whether anything has. Nothing while a whole record waits to be used: a peer
    /// that has closed its connection after it must not keep it from being used.
    pub(crate) fn fill(&mut self) -> Result<bool, BackendError> {
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
    pub(crate) fn record(&mut self) -> Result<Option<&[u8]>, BackendError> {
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
    pub(crate) fn consume(&mut self) {
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
    pub(crate) fn interest(&self, reads: bool) -> libc::pollfd {
        let out = if self.is_flushed() { 0 } else { libc::POLLOUT };
        let reads = reads && !self.holds_record();
        subject(self.stream.as_raw_fd(), out | if reads { libc::POLLIN } else { 0 })
    }

    /// Sends one record and waits for the one that answers it.
    pub(crate) fn request(&mut self, request: &[u8], deadline: Instant) -> Result<Vec<u8>, BackendError> {
        self.put([request, &[]])?;
        self.receive(deadline)
    }

    /// Sends what is put, and waits for the next record.
    pub(crate) fn receive(&mut self, deadline: Instant) -> Result<Vec<u8>, BackendError> {
        loop {
            let flushed = self.flush()?;
            let filled = self.fill()?;
            if let Some(answer) = self.record()? {
                let answer = answer.to_vec();
                self.consume();
                return Ok(answer);
            }
            if !flushed && !filled {
                self.pause(true, deadline)?;
            }
        }
    }

    /// Waits until everything put in is sent.
    pub(crate) fn deliver(&mut self, deadline: Instant) -> Result<(), BackendError> {
        while !self.is_flushed() {
            if !self.flush()? {
                self.pause(false, deadline)?;
            }
        }
        Ok(())
    }

    fn pause(&self, reads: bool, deadline: Instant) -> Result<(), BackendError> {
        if wait(&mut [self.interest(reads)], Some(deadline)) {
            return Ok(());
        }
        let text = format!("timed out waiting for rank {}", self.peer);
        Err(BackendError::new(DistErrorKind::Timeout, text))
    }

    /// The socket, to end it from outside.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The socket, once all its records are sent and read.
    pub(crate) fn into_stream(self) -> TcpStream {
        self.stream
    }
}

pub(crate) fn subject(fd: RawFd, events: i16) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

/// Sleeps until one of the sockets is ready; `false` once the deadline is over. It does not spin first: on
/// shared cores, the scheduler puts a rank that has spun behind the others. Spinning for 50 us doubled both
/// CPU time and latency there (136 kB, load 14 on two cores), and made no difference on an idle machine.
pub(crate) fn wait(subjects: &mut [libc::pollfd], deadline: Option<Instant>) -> bool {
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

pub(crate) fn lost(peer: u32, text: &str) -> BackendError {
    BackendError::new(DistErrorKind::Connection, format!("rank {peer}: {text}"))
}

fn forged(peer: u32) -> BackendError {
    let text = format!("message from rank {peer} failed authentication");
    BackendError::new(DistErrorKind::Forged, text)
}

fn moved(result: std::io::Result<usize>, peer: u32) -> Result<usize, BackendError> {
    match result {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        result => result.map_err(|error| lost(peer, &error.to_string().to_lowercase())),
    }
}

/// Bytes that sealing adds to a record.
const TAG: usize = 16;

const KEY: usize = 16;

/// The key of one direction, and the number of its next record.
pub(crate) struct Seal {
    key: LessSafeKey,
    next: u64,
}

impl Seal {
    /// With the first bytes of `key`; `None` if they are too few.
    pub(crate) fn new(key: &[u8]) -> Option<Seal> {
        let key = UnboundKey::new(&AES_128_GCM, key.get(..KEY)?).ok()?;
        Some(Seal { key: LessSafeKey::new(key), next: 0 })
    }

    /// `None` when the numbers are used up, which takes longer than any run.
    fn nonce(&mut self) -> Option<Nonce> {
        let mut bytes = [0; 12];
        bytes[4..].copy_from_slice(&self.next.to_be_bytes());
        self.next = self.next.checked_add(1)?;
        Some(Nonce::assume_unique_for_key(bytes))
    }

    /// Encrypts `body` in place; the tag also covers `head`.
    fn seal(&mut self, head: &[u8], body: &mut [u8]) -> Option<[u8; TAG]> {
        let nonce = self.nonce()?;
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(head), body).ok()?;
        tag.as_ref().try_into().ok()
    }

    /// Decrypts `body` in place, which ends in its tag. `false`: it is not the record that was sent next, and
    /// nothing of it may be used.
    #[must_use]
    fn open(&mut self, head: &[u8], body: &mut [u8]) -> bool {
        let Some(nonce) = self.nonce() else { return false };
        self.key.open_in_place(nonce, Aad::from(head), body).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(seal: &mut Seal, body: &[u8]) -> Vec<u8> {
        let mut bytes = body.to_vec();
        let tag = seal.seal(b"head", &mut bytes).unwrap();
        [&bytes[..], &tag].concat()
    }

    fn pair() -> (Seal, Seal) {
        (Seal::new(&[7; KEY]).unwrap(), Seal::new(&[7; KEY]).unwrap())
    }

    #[test]
    fn seal_1_changed_record_does_not_open() {
        let whole = sealed(&mut pair().0, b"some numbers");
        for bit in 0..whole.len() * 8 {
            let mut changed = whole.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!pair().1.open(b"head", &mut changed), "bit {bit}");
        }
        for length in 0..whole.len() {
            assert!(!pair().1.open(b"head", &mut whole[..length].to_vec()), "{length} bytes");
        }
        assert!(!pair().1.open(b"heed", &mut whole.clone()));
        assert!(!Seal::new(&[8; KEY]).unwrap().open(b"head", &mut whole.clone()));
        let mut good = whole.clone();
        assert!(pair().1.open(b"head", &mut good));
        assert_eq!(good[..12], *b"some numbers");
    }

    #[test]
    fn seal_1_records_open_once_and_in_order() {
        let (mut seal, mut open) = pair();
        let records: Vec<Vec<u8>> = (0..3u8).map(|i| sealed(&mut seal, &[i; 9])).collect();
        assert!(open.open(b"head", &mut records[0].clone()));
        for wrong in [0, 2] {
            let (_, mut other) = pair();
            assert!(other.open(b"head", &mut records[0].clone()));
            assert!(!other.open(b"head", &mut records[wrong].clone()), "repeated or early: {wrong}");
        }
        assert!(open.open(b"head", &mut records[1].clone()));
    }
}
