//! The status page: one memory-mapped file per rank, written by the rank, read by its agent.
//!
//! Owner: the rank (writer, one thread); the agent maps it read-only. It stays readable when the rank is stopped, spins
//! inside NCCL or is dead, and writing it costs no system call: this is what makes stuck-rank detection certain.
//!
//! Layout, version 1: 64-bit little-endian words in a file of [`PAGE_BYTES`].
//! ```text
//! word  0  magic "rankdeck"      1  version        2  rank       3  generation     4  pid
//! word  8  seqlock: odd while the writer is inside
//! words 9  body, in the order of `Body::words`
//! word 64  ring of the latest RING collectives, RING_WORDS words each, slot = seq % RING
//! ```
//! Invariants:
//! - PAGE-1: a reader returns a body only if the seqlock was even and unchanged around it; it gives up after a bounded number of tries
//!   (a writer killed inside leaves the lock odd; then the torn body is returned and marked).
//! - PAGE-2: every word is an atomic; there is no undefined behaviour however reader and writer interleave.
//! - PAGE-3: times are CLOCK_MONOTONIC nanoseconds of the host; only ages leave it.

use super::message::{CollectiveSample, PageSample, Phase};
use memmap2::{MmapMut, MmapOptions};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Size of the file.
pub const PAGE_BYTES: usize = 8192;
/// Collectives kept in the ring.
pub const RING: usize = 32;
/// Layout version.
pub const VERSION: u64 = 1;

const MAGIC: u64 = u64::from_le_bytes(*b"rankdeck");
const SEQLOCK: usize = 8;
const BODY: usize = 9;
const BODY_WORDS: usize = 20;
const RING_START: usize = 64;
const RING_WORDS: usize = 10;
const READ_TRIES: usize = 1000;

/// Nanoseconds on this host's CLOCK_MONOTONIC; no system call (vDSO).
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the duration of the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// One collective, as the ring keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Collective {
    /// Number, from 1, over all groups of the rank.
    pub seq: u64,
    /// What.
    pub op: Op,
    /// Why: up to 16 bytes of ASCII.
    pub tag: [u8; 16],
    /// Elements per rank.
    pub count: u64,
    /// Bytes per rank.
    pub bytes: u64,
    /// Element type.
    pub dtype: Dtype,
    /// When it was entered, ns.
    pub entered_ns: u64,
    /// When it was left, ns; 0 while inside.
    pub left_ns: u64,
    /// Hash of the source location that called it, 0 when unknown.
    pub call_site: u64,
}

/// Kinds of collectives; the numbers are part of the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u64)]
pub enum Op {
    /// None yet.
    #[default]
    None = 0,
    /// Reduce to all.
    AllReduce = 1,
    /// Copy from one to all.
    Broadcast = 2,
    /// Gather on all.
    AllGather = 3,
    /// Wait for all.
    Barrier = 4,
}

impl Op {
    /// Its name on screens and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Op::None => "none",
            Op::AllReduce => "all_reduce",
            Op::Broadcast => "broadcast",
            Op::AllGather => "all_gather",
            Op::Barrier => "barrier",
        }
    }

    fn from_word(word: u64) -> Op {
        match word {
            1 => Op::AllReduce,
            2 => Op::Broadcast,
            3 => Op::AllGather,
            4 => Op::Barrier,
            _ => Op::None,
        }
    }
}

/// Element types; the numbers are part of the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u64)]
pub enum Dtype {
    /// Bytes.
    #[default]
    U8 = 0,
    /// 64-bit integers.
    I64 = 1,
    /// 32-bit floats.
    F32 = 2,
    /// 64-bit floats.
    F64 = 3,
}

impl Dtype {
    /// Its name on screens and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::U8 => "u8",
            Dtype::I64 => "i64",
            Dtype::F32 => "f32",
            Dtype::F64 => "f64",
        }
    }

    fn from_word(word: u64) -> Dtype {
        match word {
            1 => Dtype::I64,
            2 => Dtype::F32,
            3 => Dtype::F64,
            _ => Dtype::U8,
        }
    }
}

/// `text` cut to the 16 bytes of a tag.
pub fn tag(text: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    bytes
}

/// The text of a tag.
pub fn tag_text(tag: &[u8; 16]) -> String {
    let end = tag.iter().position(|b| *b == 0).unwrap_or(tag.len());
    String::from_utf8_lossy(&tag[..end]).into_owned()
}

fn tag_words(tag: &[u8; 16]) -> [u64; 2] {
    let word = |half: &[u8]| half.iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b));
    [word(&tag[..8]), word(&tag[8..])]
}

fn tag_bytes([low, high]: [u64; 2]) -> [u8; 16] {
    let mut tag = [0; 16];
    tag[..8].copy_from_slice(&low.to_le_bytes());
    tag[8..].copy_from_slice(&high.to_le_bytes());
    tag
}

impl Collective {
    fn words(&self) -> [u64; RING_WORDS] {
        let [low, high] = tag_words(&self.tag);
        [
            self.seq,
            self.op as u64,
            low,
            high,
            self.count,
            self.bytes,
            self.dtype as u64,
            self.entered_ns,
            self.left_ns,
            self.call_site,
        ]
    }

    fn from_words(words: &[u64; RING_WORDS]) -> Collective {
        Collective {
            seq: words[0],
            op: Op::from_word(words[1]),
            tag: tag_bytes([words[2], words[3]]),
            count: words[4],
            bytes: words[5],
            dtype: Dtype::from_word(words[6]),
            entered_ns: words[7],
            left_ns: words[8],
            call_site: words[9],
        }
    }
}

/// Everything on the page except the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Body {
    /// Number of [`Phase`].
    pub phase: u64,
    /// When the phase began, ns.
    pub phase_entered_ns: u64,
    /// Moves while something happens inside the phase.
    pub phase_progress: u64,
    /// When anything here was last written, ns; set by the writer itself.
    pub heartbeat_ns: u64,
    /// Training iteration.
    pub train_iter: u64,
    /// This rank's own environment steps.
    pub env_step: u64,
    /// This rank's own samples.
    pub samples: u64,
    /// This rank's own finished episodes.
    pub episodes: u64,
    /// Optimiser updates.
    pub updates: u64,
    /// Number of the collective entered last.
    pub entered: u64,
    /// Number of the collective left last.
    pub left: u64,
    /// Chain hash over the fingerprints (op, count, dtype, tag) of all collectives so far.
    pub chain_hash: u64,
    /// The latest collective of a group of some ranks; those of all ranks are counted above and kept in the ring.
    pub group: GroupWords,
}

/// The latest collective of a group that not all ranks are in. It stands apart, because `entered` and `left` are compared between all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupWords {
    /// Number of the group; 0: none was used yet.
    pub communicator: u64,
    /// Number of the collective entered last, from 1, within its group.
    pub entered: u64,
    /// The same number once it was left; else that of the one before.
    pub left: u64,
    /// What.
    pub op: Op,
    /// Why.
    pub tag: [u8; 16],
    /// Elements per rank.
    pub count: u64,
    /// When it was entered, ns.
    pub entered_ns: u64,
}

impl Body {
    fn words(&self) -> [u64; BODY_WORDS] {
        let mut words = [0; BODY_WORDS];
        words[..12].copy_from_slice(&[
            self.phase,
            self.phase_entered_ns,
            self.phase_progress,
            self.heartbeat_ns,
            self.train_iter,
            self.env_step,
            self.samples,
            self.episodes,
            self.updates,
            self.entered,
            self.left,
            self.chain_hash,
        ]);
        let [low, high] = tag_words(&self.group.tag);
        words[12..].copy_from_slice(&[
            self.group.communicator,
            self.group.entered,
            self.group.left,
            self.group.op as u64,
            low,
            high,
            self.group.count,
            self.group.entered_ns,
        ]);
        words
    }

    fn from_words(words: &[u64; BODY_WORDS]) -> Body {
        Body {
            phase: words[0],
            phase_entered_ns: words[1],
            phase_progress: words[2],
            heartbeat_ns: words[3],
            train_iter: words[4],
            env_step: words[5],
            samples: words[6],
            episodes: words[7],
            updates: words[8],
            entered: words[9],
            left: words[10],
            chain_hash: words[11],
            group: GroupWords {
                communicator: words[12],
                entered: words[13],
                left: words[14],
                op: Op::from_word(words[15]),
                tag: tag_bytes([words[16], words[17]]),
                count: words[18],
                entered_ns: words[19],
            },
        }
    }
}

struct Words {
    map: MmapMut,
}

impl Words {
    fn get(&self, index: usize) -> &AtomicU64 {
        assert!(index < PAGE_BYTES / 8, "word inside the page");
        // SAFETY: the map is PAGE_BYTES long and page-aligned, `index` was checked, and both processes access it only as atomics.
        unsafe { &*self.map.as_ptr().cast::<AtomicU64>().add(index) }
    }

    fn load<const N: usize>(&self, start: usize) -> [u64; N] {
        std::array::from_fn(|i| self.get(start + i).load(Ordering::Relaxed))
    }

    fn store(&self, start: usize, words: &[u64]) {
        for (i, word) in words.iter().enumerate() {
            self.get(start + i).store(*word, Ordering::Relaxed);
        }
    }
}

/// The rank's side.
pub struct Writer {
    words: Words,
    body: Body,
    current: Collective,
}

impl Writer {
    /// Creates the file (mode 0600), or takes over an existing one, and writes the head. An existing file is not cut first: a reader that
    /// has it mapped would be killed by the access to a page that is gone.
    pub fn create(path: &Path, rank: u32, generation: u32) -> io::Result<Writer> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        file.set_len(PAGE_BYTES as u64)?;
        // SAFETY: the file has just been sized; it is only ever mapped and accessed as atomics (PAGE-2).
        let map = unsafe { MmapOptions::new().len(PAGE_BYTES).map_mut(&file)? };
        Ok(Writer::start(map, rank, generation))
    }

    /// A page that no agent sees, for a trainer started by hand.
    pub fn anonymous(rank: u32, generation: u32) -> io::Result<Writer> {
        Ok(Writer::start(MmapOptions::new().len(PAGE_BYTES).map_anon()?, rank, generation))
    }

    fn start(map: MmapMut, rank: u32, generation: u32) -> Writer {
        let words = Words { map };
        // What an earlier writer left: no reader may take it for this one's.
        words.get(0).store(0, Ordering::Release);
        words.store(1, &[0; PAGE_BYTES / 8 - 1]);
        let now = monotonic_ns();
        let body = Body { phase_entered_ns: now, heartbeat_ns: now, ..Body::default() };
        words.store(BODY, &body.words());
        words.store(1, &[VERSION, u64::from(rank), u64::from(generation), u64::from(std::process::id())]);
        words.get(0).store(MAGIC, Ordering::Release);
        Writer { words, body, current: Collective::default() }
    }

    /// The latest body.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// Changes the body and publishes it.
    pub fn update(&mut self, change: impl FnOnce(&mut Body)) {
        change(&mut self.body);
        self.body.heartbeat_ns = monotonic_ns();
        self.publish(None);
    }

    /// Enters a phase.
    pub fn phase(&mut self, phase: Phase) {
        self.update(|body| {
            body.phase = phase as u64;
            body.phase_entered_ns = monotonic_ns();
            body.phase_progress = 0;
        });
    }

    /// Says that something moved inside the phase.
    pub fn progress(&mut self) {
        self.update(|body| body.phase_progress += 1);
    }

    /// Enters the next collective and returns its number.
    pub fn enter(
        &mut self,
        op: Op,
        tag: [u8; 16],
        count: u64,
        bytes: u64,
        dtype: Dtype,
        call_site: u64,
    ) -> u64 {
        let now = monotonic_ns();
        let seq = self.body.entered + 1;
        self.current =
            Collective { seq, op, tag, count, bytes, dtype, entered_ns: now, left_ns: 0, call_site };
        self.body.entered = seq;
        self.body.heartbeat_ns = now;
        let words = self.current.words();
        for word in &words[1..7] {
            self.body.chain_hash = (self.body.chain_hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.publish(Some(self.current));
        seq
    }

    /// Leaves the collective entered last.
    pub fn leave(&mut self) {
        let now = monotonic_ns();
        self.current.left_ns = now;
        self.body.left = self.body.entered;
        self.body.heartbeat_ns = now;
        self.publish(Some(self.current));
    }

    /// Enters collective `seq` of a group that not all ranks are in.
    pub fn enter_group(&mut self, communicator: u32, seq: u64, op: Op, tag: [u8; 16], count: u64) {
        self.update(|body| {
            body.group = GroupWords {
                communicator: u64::from(communicator),
                entered: seq,
                left: seq - 1,
                op,
                tag,
                count,
                entered_ns: monotonic_ns(),
            };
        });
    }

    /// Leaves collective `seq` of the group entered last.
    pub fn leave_group(&mut self, seq: u64) {
        self.update(|body| body.group.left = seq);
    }

    fn publish(&self, collective: Option<Collective>) {
        let lock = self.words.get(SEQLOCK);
        let inside = lock.load(Ordering::Relaxed) | 1;
        lock.store(inside, Ordering::Relaxed);
        fence(Ordering::Release);
        self.words.store(BODY, &self.body.words());
        if let Some(collective) = collective {
            let slot = collective.seq as usize % RING;
            self.words.store(RING_START + slot * RING_WORDS, &collective.words());
        }
        lock.store(inside.wrapping_add(1), Ordering::Release);
    }
}

/// What a reader saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Rank that wrote the page.
    pub rank: u32,
    /// Its generation.
    pub generation: u32,
    /// Its process id, as it sees itself (inside a pid namespace this is not the host's number).
    pub pid: u32,
    /// The body.
    pub body: Body,
    /// The ring, oldest first; empty slots left out.
    pub ring: Vec<Collective>,
    /// The writer died or was stopped inside a write: the body may be torn (PAGE-1).
    pub torn: bool,
}

/// The agent's side.
pub struct Reader {
    words: Words,
}

impl Reader {
    /// Maps an existing page; an error when it is not one of this version (yet).
    pub fn open(path: &Path) -> io::Result<Reader> {
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.len() < PAGE_BYTES as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "status page is too short"));
        }
        // SAFETY: the length was checked and the page never shrinks; accessed only as atomics (PAGE-2).
        let words = Words { map: unsafe { MmapOptions::new().len(PAGE_BYTES).map_mut(&file)? } };
        if words.get(0).load(Ordering::Acquire) != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a status page"));
        }
        if words.get(1).load(Ordering::Relaxed) != VERSION {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "status page of another version"));
        }
        Ok(Reader { words })
    }

    /// The page now.
    pub fn view(&self) -> View {
        let mut tries = 0;
        loop {
            tries += 1;
            let before = self.words.get(SEQLOCK).load(Ordering::Acquire);
            let body = Body::from_words(&self.words.load(BODY));
            let mut ring: Vec<Collective> = (0..RING)
                .map(|slot| Collective::from_words(&self.words.load(RING_START + slot * RING_WORDS)))
                .filter(|collective| collective.seq > 0)
                .collect();
            fence(Ordering::Acquire);
            let after = self.words.get(SEQLOCK).load(Ordering::Relaxed);
            let whole = before == after && before & 1 == 0;
            if whole || tries >= READ_TRIES {
                ring.sort_by_key(|collective| collective.seq);
                let [rank, generation, pid] = self.words.load(2);
                return View {
                    rank: rank as u32,
                    generation: generation as u32,
                    pid: pid as u32,
                    body,
                    ring,
                    torn: !whole,
                };
            }
            std::hint::spin_loop();
        }
    }
}

impl View {
    /// The form that goes to the console; `now_ns` is [`monotonic_ns`] of this host.
    pub fn sample(&self, now_ns: u64) -> PageSample {
        let age = |then: u64| now_ns.saturating_sub(then) / 1_000_000;
        let body = &self.body;
        let latest = self.ring.iter().find(|c| c.seq == body.entered).copied().unwrap_or_default();
        PageSample {
            phase: Phase::ALL.get(body.phase as usize).copied().unwrap_or_default(),
            phase_age_ms: age(body.phase_entered_ns),
            phase_progress: body.phase_progress,
            heartbeat_age_ms: age(body.heartbeat_ns),
            train_iter: body.train_iter,
            env_step: body.env_step,
            samples: body.samples,
            episodes: body.episodes,
            updates: body.updates,
            collective: CollectiveSample {
                entered: body.entered,
                left: body.left,
                op: latest.op.name().into(),
                tag: tag_text(&latest.tag),
                bytes: latest.bytes,
                dtype: latest.dtype.name().into(),
                age_ms: if latest.seq == 0 {
                    0
                } else if body.left == body.entered {
                    age(latest.left_ns)
                } else {
                    age(latest.entered_ns)
                },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_what_the_writer_wrote() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank0.page");
        let mut writer = Writer::create(&path, 3, 2).unwrap();
        let reader = Reader::open(&path).unwrap();
        writer.phase(Phase::Learn);
        writer.update(|body| body.env_step = 512);
        let seq = writer.enter(Op::AllReduce, tag("grad"), 9155, 36620, Dtype::F32, 7);
        let view = reader.view();
        assert_eq!((view.rank, view.generation, view.torn), (3, 2, false));
        let sample = view.sample(monotonic_ns());
        assert_eq!((sample.phase, sample.env_step), (Phase::Learn, 512));
        assert_eq!((sample.collective.entered, sample.collective.left), (seq, seq - 1));
        assert_eq!((sample.collective.op.as_str(), sample.collective.tag.as_str()), ("all_reduce", "grad"));
        writer.leave();
        assert_eq!(reader.view().body.left, seq);
    }

    #[test]
    fn the_ring_keeps_the_latest_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let mut writer = Writer::create(&path, 0, 0).unwrap();
        for _ in 0..RING + 5 {
            writer.enter(Op::Barrier, tag("x"), 0, 0, Dtype::U8, 0);
            writer.leave();
        }
        let ring = Reader::open(&path).unwrap().view().ring;
        assert_eq!(ring.len(), RING);
        assert!(ring.windows(2).all(|pair| pair[1].seq == pair[0].seq + 1));
    }

    #[test]
    fn page_1_bodies_are_never_torn_while_the_writer_runs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let mut writer = Writer::create(&path, 0, 0).unwrap();
        let reader = Reader::open(&path).unwrap();
        let thread = std::thread::spawn(move || {
            for i in 1..=200_000 {
                writer.update(|body| {
                    body.env_step = i;
                    body.samples = i;
                    body.episodes = i;
                });
            }
        });
        while !thread.is_finished() {
            let view = reader.view();
            if !view.torn {
                assert_eq!(view.body.env_step, view.body.samples);
                assert_eq!(view.body.env_step, view.body.episodes);
            }
        }
        thread.join().unwrap();
    }

    #[test]
    fn a_writer_that_takes_over_begins_anew_and_harms_no_reader() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let mut first = Writer::create(&path, 0, 0).unwrap();
        first.enter(Op::Barrier, tag("x"), 0, 0, Dtype::U8, 0);
        let reader = Reader::open(&path).unwrap();
        let _second = Writer::create(&path, 1, 5).unwrap();
        let view = reader.view();
        assert_eq!((view.rank, view.generation, view.body.entered, view.ring.len()), (1, 5, 0, 0));
    }

    #[test]
    fn a_file_that_is_no_page_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        std::fs::write(&path, vec![0; PAGE_BYTES]).unwrap();
        assert!(Reader::open(&path).is_err());
        std::fs::write(&path, b"short").unwrap();
        assert!(Reader::open(&path).is_err());
    }
}
