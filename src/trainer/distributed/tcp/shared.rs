//! A connection between two ranks of one host through memory that both have mapped.
//!
//! Two ranks that have connected over TCP and find that they are on one host exchange their records through an
//! anonymous file: one rank makes it and offers it over the connection, the other opens it at `/proc` and checks
//! the token in it. Where it cannot, as in another container, records stay on TCP. Each direction is a ring of
//! slots, one record in each, written by one rank and read by the other in place. The TCP connection stays: its
//! bytes wake a rank that sleeps, and its end is the end of the peer. The file is as private as the ranks: it has
//! no name, belongs to their user and ends with them, so records in it are not encrypted.
//!
//! Invariants:
//! - SHARED-1: a rank maps only memory that a rank of its own user on the same boot and PID namespace has offered
//!   over its verified connection, of exactly the right size, sealed against shrinking.
//! - SHARED-2: a rank that sleeps is woken by every record, every free slot and the end of its peer.
//! - SHARED-3: records that a peer wrote before it ended are read; then its end is an error.

use crate::distributed::channel::{Channel, lost, subject};
use crate::distributed::error::BackendError;
use ring::rand::{SecureRandom, SystemRandom};
use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Instant;

/// Most bytes of a record. Of a larger message, the peer combines one record while the next one is written.
pub(crate) const RECORD: usize = 16 << 10;
/// Records in a ring.
const SLOTS: usize = 8;
const SLOT: usize = 64 + RECORD;
/// What two ranks write lies in lines that no other has; processors fetch two at once.
const LINE: usize = 128;
const HEAD: usize = 4 * LINE;
const RING: usize = HEAD + SLOTS * SLOT;
const TOKEN: usize = 16;
/// The token, then one ring for each direction.
const WHOLE: usize = LINE + 2 * RING;
const NAME: &CStr = c"rankdeck-ranks";
const LINK: &str = "/memfd:rankdeck-ranks";

/// An offer: the token, where the memory is, and of which machine.
const OFFER: usize = TOKEN + 3 * 8 + PLACE;
/// A boot and a PID namespace.
pub(crate) const PLACE: usize = 44;
const YES: [u8; 1] = [1];
const NO: [u8; 1] = [0];

/// What one rank has mapped.
struct SharedMapping(NonNull<u8>);

// SAFETY: the mapping belongs to one link, which one thread uses at a time.
unsafe impl Send for SharedMapping {}

impl SharedMapping {
    fn new(file: &File) -> std::io::Result<SharedMapping> {
        // SAFETY: a new mapping of a file of exactly `WHOLE` bytes that cannot shrink.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                WHOLE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(at.cast::<u8>()) {
            Some(start) if at != libc::MAP_FAILED => Ok(SharedMapping(start)),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    fn token(&self) -> *mut [u8; TOKEN] {
        self.0.as_ptr().cast()
    }

    fn ring(&self, second: bool) -> SharedRing {
        // SAFETY: both rings lie within the mapping.
        SharedRing(unsafe { self.0.add(LINE + if second { RING } else { 0 }) })
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nothing refers to it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), WHOLE) };
    }
}

/// One direction, in a mapping that outlives it.
struct SharedRing(NonNull<u8>);

// SAFETY: as for `SharedMapping`.
unsafe impl Send for SharedRing {}

impl SharedRing {
    fn number(&self, line: usize) -> &AtomicU64 {
        // SAFETY: within the head of the ring, aligned to a line, and used as an atomic number only.
        unsafe { self.0.add(line * LINE).cast().as_ref() }
    }

    /// Records written since the beginning.
    fn written(&self) -> &AtomicU64 {
        self.number(0)
    }

    /// Records read since the beginning.
    fn read(&self) -> &AtomicU64 {
        self.number(1)
    }

    fn flag(&self, line: usize) -> &AtomicU32 {
        // SAFETY: as in `number`.
        unsafe { self.0.add(line * LINE).cast().as_ref() }
    }

    /// The reader waits at its socket for a record.
    fn reader_sleeps(&self) -> &AtomicU32 {
        self.flag(2)
    }

    /// The writer waits at its socket for a slot.
    fn writer_sleeps(&self) -> &AtomicU32 {
        self.flag(3)
    }

    /// Start of the slot of a record.
    fn slot(&self, number: u64) -> NonNull<u8> {
        let index = (number % SLOTS as u64) as usize;
        // SAFETY: `index` is below the number of slots.
        unsafe { self.0.add(HEAD + index * SLOT) }
    }

    fn length(&self, number: u64) -> &AtomicU32 {
        // SAFETY: the first bytes of a slot, which are aligned.
        unsafe { self.slot(number).cast().as_ref() }
    }

    fn bytes(&self, number: u64) -> NonNull<u8> {
        // SAFETY: the record begins 64 bytes into the slot.
        unsafe { self.slot(number).add(64) }
    }
}

/// A connection to a rank of the same host.
pub(crate) struct SharedLink {
    pub(crate) peer: u32,
    stream: TcpStream,
    sends: SharedRing,
    receives: SharedRing,
    /// Records written by this rank, and read by it: only this rank changes these numbers.
    written: u64,
    read: u64,
    /// Length of the record at the front, once it was seen.
    seen: Option<usize>,
    /// It slept since it read from its socket.
    slept: bool,
    closed: bool,
    _mapping: SharedMapping,
}

impl SharedLink {
    fn new(peer: u32, stream: TcpStream, mapping: SharedMapping, first: bool) -> SharedLink {
        let (sends, receives) = (mapping.ring(!first), mapping.ring(first));
        SharedLink {
            peer,
            stream,
            sends,
            receives,
            written: 0,
            read: 0,
            seen: None,
            slept: false,
            closed: false,
            _mapping: mapping,
        }
    }

    fn has_slot(&self) -> bool {
        self.written.wrapping_sub(self.sends.read().load(Ordering::Acquire)) < SLOTS as u64
    }

    fn has_record(&self) -> bool {
        self.receives.written().load(Ordering::Acquire) != self.read
    }

    /// Whether [`SharedLink::put`] may be called.
    pub(crate) fn can_put(&self) -> bool {
        self.has_slot()
    }

    /// Writes the next record, of at most [`RECORD`] bytes.
    pub(crate) fn put(&mut self, parts: [&[u8]; 2]) {
        let length = parts[0].len() + parts[1].len();
        assert!(length <= RECORD && self.has_slot(), "{length} bytes");
        let to = self.sends.bytes(self.written).as_ptr();
        // SAFETY: the slot has room for `RECORD` bytes, and its reader is done with it: it has counted the record
        // that was there as read.
        unsafe {
            std::ptr::copy_nonoverlapping(parts[0].as_ptr(), to, parts[0].len());
            std::ptr::copy_nonoverlapping(parts[1].as_ptr(), to.add(parts[0].len()), parts[1].len());
        }
        self.sends.length(self.written).store(length as u32, Ordering::Relaxed);
        self.written += 1;
        self.sends.written().store(self.written, Ordering::Release);
        // SHARED-2.
        wake(self.sends.reader_sleeps(), &self.stream);
    }

    /// Reads what woke this rank; notes the end of the peer.
    fn listen(&mut self) -> Result<(), BackendError> {
        while std::mem::take(&mut self.slept) {
            let mut rings = [0; 64];
            match (&self.stream).read(&mut rings) {
                Ok(0) => self.closed = true,
                // There may be more.
                Ok(read) => self.slept = read == rings.len(),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                // It ended without reading what woke it: its records are in the ring.
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
                    self.closed = true;
                }
                Err(error) => return Err(lost(self.peer, &error.to_string().to_lowercase())),
            }
        }
        Ok(())
    }

    /// Fails when the peer has ended and a slot is needed.
    pub(crate) fn flush(&mut self) -> Result<(), BackendError> {
        self.listen()?;
        match self.closed && !self.has_slot() {
            true => Err(lost(self.peer, "it closed its connection")),
            false => Ok(()),
        }
    }

    /// The record at the front.
    pub(crate) fn record(&mut self) -> Result<Option<&[u8]>, BackendError> {
        self.listen()?;
        let length = match self.seen {
            Some(length) => length,
            None => {
                // `closed` first: what was written before the end is there.
                let closed = self.closed;
                if !self.has_record() {
                    // SHARED-3.
                    return if closed { Err(lost(self.peer, "it closed its connection")) } else { Ok(None) };
                }
                let length = self.receives.length(self.read).load(Ordering::Relaxed) as usize;
                if length > RECORD {
                    return Err(lost(self.peer, "it sent an unexpected amount of data"));
                }
                self.seen = Some(length);
                length
            }
        };
        // SAFETY: the slot holds `RECORD` bytes, and its writer leaves it alone until the record is counted as
        // read, which ends the borrow of this link.
        Ok(Some(unsafe { std::slice::from_raw_parts(self.receives.bytes(self.read).as_ptr(), length) }))
    }

    /// Gives up the record at the front.
    pub(crate) fn consume(&mut self) {
        if self.seen.take().is_some() {
            self.read += 1;
            self.receives.read().store(self.read, Ordering::Release);
            // SHARED-2.
            wake(self.receives.writer_sleeps(), &self.stream);
        }
    }

    /// Whether a rank that waits for a record, for a slot or for both can continue.
    pub(crate) fn is_ready(&self, reads: bool, writes: bool) -> bool {
        let record = reads && self.seen.is_none() && (self.closed || self.has_record());
        record || writes && (self.closed || self.has_slot())
    }

    /// Asks to be woken, and returns what to wait for. Before it sleeps, the rank asks [`SharedLink::is_ready`]
    /// again.
    pub(crate) fn doze(&mut self, reads: bool, writes: bool) -> libc::pollfd {
        self.slept = true;
        self.receives.reader_sleeps().store(u32::from(reads), Ordering::Relaxed);
        self.sends.writer_sleeps().store(u32::from(writes), Ordering::Relaxed);
        // The peer sees that this rank sleeps, or this rank sees what the peer has done.
        fence(Ordering::SeqCst);
        subject(self.stream.as_raw_fd(), libc::POLLIN)
    }

    /// It no longer sleeps.
    pub(crate) fn rise(&mut self) {
        self.receives.reader_sleeps().store(0, Ordering::Relaxed);
        self.sends.writer_sleeps().store(0, Ordering::Relaxed);
    }
}

/// Wakes the peer if it sleeps.
fn wake(sleeps: &AtomicU32, mut stream: &TcpStream) {
    fence(Ordering::SeqCst);
    if sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0 {
        // A full socket wakes it, too; a closed one is found out when it is read.
        let _ = stream.write(&[1]);
    }
}

/// This boot of this machine, and the PID namespace that numbers its processes; `None` where `/proc` is hidden.
pub(crate) fn place() -> Option<[u8; PLACE]> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = std::fs::metadata("/proc/self/ns/pid").ok()?;
    let mut place = [0; PLACE];
    place[..36].copy_from_slice(boot.get(..36)?);
    place[36..].copy_from_slice(&namespace.ino().to_le_bytes());
    Some(place)
}

/// Memory that a rank offers.
struct OfferedMemory {
    /// Open until the peer has answered.
    file: File,
    mapping: SharedMapping,
    token: [u8; TOKEN],
}

impl OfferedMemory {
    fn new() -> std::io::Result<OfferedMemory> {
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nothing else owns.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(WHOLE as u64)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: changes the flags of this file only.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let mapping = SharedMapping::new(&file)?;
        let mut token = [0; TOKEN];
        SystemRandom::new().fill(&mut token).map_err(|_| std::io::Error::other("no random bytes"))?;
        // SAFETY: no other process has mapped it yet.
        unsafe { mapping.token().write(token) };
        Ok(OfferedMemory { file, mapping, token })
    }

    fn offer(&self, place: &[u8; PLACE]) -> Vec<u8> {
        let inode = self.file.metadata().map_or(0, |data| data.ino());
        let numbers = [u64::from(std::process::id()), self.file.as_raw_fd() as u64, inode];
        let numbers = numbers.map(u64::to_le_bytes).concat();
        [&self.token[..], &numbers, place].concat()
    }
}

/// Opens what a rank has offered; `None` where it is not there for this rank.
fn accept(offer: &[u8], place: &[u8; PLACE]) -> Option<SharedMapping> {
    let (token, rest) = offer.split_first_chunk::<TOKEN>()?;
    let (numbers, theirs) = rest.split_at_checked(3 * 8)?;
    let [pid, fd, inode]: [[u8; 8]; 3] = numbers.as_chunks().0.try_into().ok()?;
    let [pid, fd, inode] = [pid, fd, inode].map(u64::from_le_bytes);
    // SHARED-1.
    if theirs != place {
        return None;
    }
    let path = format!("/proc/{pid}/fd/{fd}");
    if !std::fs::read_link(&path).ok()?.to_string_lossy().starts_with(LINK) {
        return None;
    }
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path).ok()?;
    let data = file.metadata().ok()?;
    // SAFETY: asks for the seals of this file only; SHRINK among them keeps the mapping whole.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    // SAFETY: no arguments, no memory.
    let user = unsafe { libc::geteuid() };
    if data.ino() != inode
        || data.uid() != user
        || data.len() != WHOLE as u64
        || seals < 0
        || seals & libc::F_SEAL_SHRINK == 0
    {
        return None;
    }
    let mapping = SharedMapping::new(&file).ok()?;
    // SAFETY: it was written before the offer was sent.
    (unsafe { mapping.token().read() } == *token).then_some(mapping)
}

/// A connection to a peer.
#[expect(clippy::large_enum_variant, reason = "a rank has one per peer")]
pub(crate) enum PeerLink {
    Stream(Channel),
    Shared(SharedLink),
}

impl PeerLink {
    pub(crate) fn peer(&self) -> u32 {
        match self {
            PeerLink::Stream(channel) => channel.peer,
            PeerLink::Shared(shared) => shared.peer,
        }
    }

    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, PeerLink::Shared(_))
    }

    /// Most bytes of a record.
    pub(crate) fn most(&self) -> usize {
        match self {
            PeerLink::Stream(_) => super::exchange::RECORD,
            PeerLink::Shared(_) => RECORD,
        }
    }

    /// Everything put in is sent.
    pub(crate) fn is_flushed(&self) -> bool {
        match self {
            PeerLink::Stream(channel) => channel.is_flushed(),
            PeerLink::Shared(_) => true,
        }
    }

    pub(crate) fn can_put(&self) -> bool {
        match self {
            PeerLink::Stream(channel) => channel.is_flushed(),
            PeerLink::Shared(shared) => shared.can_put(),
        }
    }

    /// Makes the next record; only when one [can be put](PeerLink::can_put). Copies: the parts may change
    /// afterwards.
    pub(crate) fn put(&mut self, parts: [&[u8]; 2]) -> Result<(), BackendError> {
        match self {
            PeerLink::Stream(channel) => channel.put(parts),
            PeerLink::Shared(shared) => {
                shared.put(parts);
                Ok(())
            }
        }
    }

    /// Sends what is put; whether anything moved.
    pub(crate) fn flush(&mut self) -> Result<bool, BackendError> {
        match self {
            PeerLink::Stream(channel) => channel.flush(),
            PeerLink::Shared(shared) => shared.flush().map(|()| false),
        }
    }

    /// Takes in what has arrived; whether anything has.
    pub(crate) fn fill(&mut self) -> Result<bool, BackendError> {
        match self {
            PeerLink::Stream(channel) => channel.fill(),
            PeerLink::Shared(_) => Ok(false),
        }
    }

    /// The record at the front, once it has arrived and is verified.
    pub(crate) fn record(&mut self) -> Result<Option<&[u8]>, BackendError> {
        match self {
            PeerLink::Stream(channel) => channel.record(),
            PeerLink::Shared(shared) => shared.record(),
        }
    }

    /// Gives up the record at the front.
    pub(crate) fn consume(&mut self) {
        match self {
            PeerLink::Stream(channel) => channel.consume(),
            PeerLink::Shared(shared) => shared.consume(),
        }
    }

    /// What to wait for before the next record is read or put.
    pub(crate) fn doze(&mut self, reads: bool, writes: bool) -> libc::pollfd {
        match self {
            PeerLink::Stream(channel) => channel.interest(reads),
            PeerLink::Shared(shared) => shared.doze(reads, writes),
        }
    }

    /// Whether a sleeping rank can continue at once.
    pub(crate) fn is_ready(&self, reads: bool, writes: bool) -> bool {
        match self {
            PeerLink::Stream(_) => false,
            PeerLink::Shared(shared) => shared.is_ready(reads, writes),
        }
    }

    pub(crate) fn rise(&mut self) {
        if let PeerLink::Shared(shared) = self {
            shared.rise();
        }
    }
}

/// Exchanges records with ranks of the same [`place`] through shared memory from here on; all ranks of the group
/// must call it.
pub(crate) fn share(
    rank: u32,
    channels: Vec<Channel>,
    place: Option<[u8; PLACE]>,
    deadline: Instant,
) -> Result<Vec<PeerLink>, BackendError> {
    // All offers first, so that no two ranks wait for each other.
    let mut offered = Vec::with_capacity(channels.len());
    for mut channel in channels {
        let memory = match channel.peer > rank {
            true => {
                let memory = place.as_ref().and_then(|_| OfferedMemory::new().ok());
                let offer = memory.as_ref().zip(place.as_ref()).map(|(memory, place)| memory.offer(place));
                channel.put([&offer.unwrap_or_default(), &[]])?;
                channel.flush()?;
                memory
            }
            false => None,
        };
        offered.push((channel, memory));
    }
    let mut links: Vec<PeerLink> = Vec::with_capacity(offered.len());
    let mut waiting = Vec::new();
    for (mut channel, memory) in offered {
        if channel.peer > rank {
            waiting.push((channel, memory));
            continue;
        }
        let offer = channel.receive(deadline)?;
        let mapping = place.as_ref().filter(|_| offer.len() == OFFER).and_then(|place| accept(&offer, place));
        channel.put([if mapping.is_some() { &YES } else { &NO }, &[]])?;
        channel.deliver(deadline)?;
        links.push(match mapping {
            Some(mapping) => {
                PeerLink::Shared(SharedLink::new(channel.peer, channel.into_stream(), mapping, false))
            }
            None => PeerLink::Stream(channel),
        });
    }
    for (mut channel, memory) in waiting {
        let accepted = channel.receive(deadline)? == YES;
        links.push(match memory.filter(|_| accepted) {
            Some(OfferedMemory { mapping, .. }) => {
                PeerLink::Shared(SharedLink::new(channel.peer, channel.into_stream(), mapping, true))
            }
            None => PeerLink::Stream(channel),
        });
    }
    Ok(links)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distributed::channel::{SessionKeys, wait};
    use crate::distributed::error::DistErrorKind;
    use std::net::TcpListener;
    use std::time::Duration;

    fn channels() -> [Channel; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let other = listener.accept().unwrap().0;
        let keys = || SessionKeys { sends: None, receives: None };
        let most = super::super::exchange::RECORD;
        [Channel::new(1, one, keys(), most).unwrap(), Channel::new(0, other, keys(), most).unwrap()]
    }

    fn links() -> [SharedLink; 2] {
        let deadline = Instant::now() + Duration::from_secs(60);
        let [first, second] = channels();
        let links = std::thread::scope(|scope| {
            let other = scope.spawn(move || share(1, vec![second], place(), deadline).unwrap());
            [share(0, vec![first], place(), deadline).unwrap(), other.join().unwrap()]
        });
        links.map(|links| match links.into_iter().next() {
            Some(PeerLink::Shared(shared)) => shared,
            _ => panic!("not shared"),
        })
    }

    fn text(link: &mut SharedLink) -> Option<String> {
        let found = link.record().unwrap().map(|record| String::from_utf8(record.to_vec()).unwrap());
        link.consume();
        found
    }

    #[test]
    fn records_arrive_in_order_both_ways() {
        let [mut one, mut other] = links();
        assert_eq!((text(&mut one), text(&mut other)), (None, None));
        for round in 0..5 * SLOTS {
            one.put([b"to ", format!("other {round}").as_bytes()]);
            other.put([b"to one", &[]]);
            assert_eq!(text(&mut other), Some(format!("to other {round}")));
            assert_eq!(text(&mut one), Some("to one".into()));
        }
    }

    #[test]
    fn full_ring_takes_records_once_some_are_read() {
        let [mut one, mut other] = links();
        for _ in 0..SLOTS {
            assert!(one.can_put());
            one.put([&[7; RECORD], &[]]);
        }
        assert!(!one.can_put() && !one.is_ready(false, true));
        assert_eq!(other.record().unwrap().map(<[u8]>::len), Some(RECORD));
        assert!(!one.can_put(), "not read yet");
        other.consume();
        assert!(one.can_put() && one.is_ready(false, true));
    }

    /// SHARED-2.
    #[test]
    fn shared_2_sleeping_ranks_are_woken() {
        let deadline = || Some(Instant::now() + Duration::from_secs(60));
        let [mut one, mut other] = links();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..200 {
                    while other.record().unwrap().is_none() {
                        let mut subjects = [other.doze(true, false)];
                        assert!(other.is_ready(true, false) || wait(&mut subjects, deadline()), "{round}");
                        other.rise();
                    }
                    other.consume();
                }
            });
            for round in 0..200 {
                while !one.can_put() {
                    let mut subjects = [one.doze(false, true)];
                    assert!(one.is_ready(false, true) || wait(&mut subjects, deadline()), "{round}");
                    one.rise();
                    one.flush().unwrap();
                }
                one.put([&[1; 64], &[]]);
            }
        });
    }

    /// SHARED-3.
    #[test]
    fn shared_3_last_records_of_an_ended_peer_are_read() {
        let [mut one, mut other] = links();
        one.put([b"last", &[]]);
        drop(one);
        let mut subjects = [other.doze(true, false)];
        assert!(wait(&mut subjects, Some(Instant::now() + Duration::from_secs(60))));
        other.rise();
        assert_eq!(text(&mut other), Some("last".into()));
        let failure = other.record().unwrap_err();
        assert_eq!(failure.kind, DistErrorKind::Connection);
    }

    /// SHARED-1.
    #[test]
    fn shared_1_only_the_offered_memory_is_mapped() {
        let place = place().unwrap();
        let memory = OfferedMemory::new().unwrap();
        let offer = memory.offer(&place);
        assert_eq!(offer.len(), OFFER);
        assert!(accept(&offer, &place).is_some());
        for at in 0..offer.len() {
            let mut other = offer.clone();
            other[at] ^= 1;
            assert!(accept(&other, &place).is_none(), "byte {at}");
            assert!(accept(&offer[..at], &place).is_none(), "{at} bytes");
        }
        let pid = std::process::id().to_le_bytes();
        let null = File::open("/dev/null").unwrap();
        let mut foreign = offer.clone();
        foreign[TOKEN..TOKEN + 4].copy_from_slice(&pid);
        foreign[TOKEN + 8..TOKEN + 12].copy_from_slice(&null.as_raw_fd().to_le_bytes());
        assert!(accept(&foreign, &place).is_none());
    }
}
