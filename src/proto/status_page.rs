//! The status page: one memory-mapped file per rank, written by the rank, read by its agent.
//!
//! Owner: the rank (writer, one thread); the agent maps it read-only. It stays readable when the rank is
//! stopped, spins inside NCCL or is dead, and writing it costs no system call: this is what makes stuck-rank
//! detection certain.
//!
//! Layout, version 2: 64-bit little-endian words in a file of [`PAGE_BYTES`].
//! ```text
//! word    0  magic "rankdeck"      1  version        2  rank       3  generation     4  pid
//! word    5  writer: 1 the hook in a Python rank   6  dumps the agent asked for   7  dumps the hook wrote
//! word    8  seqlock: odd while the writer is inside
//! words   9  body, in the order of `Body::words`
//! word   64  ring of the latest RING collectives of all groups, slot = seq % RING
//! word 1024  table of GROUPS groups (communicators); the first is the group of all ranks
//! word 1152  ring of the beginnings of the latest ITERATIONS training iterations, slot = train_iter % ITERATIONS
//! word 1792  table of SITES names of call sites
//! ```
//! Invariants:
//! - PAGE-1: a reader returns a body only if the seqlock was even and unchanged around it; it gives up after
//!   a bounded number of tries (a writer that is killed inside leaves the lock odd; the body is then returned
//!   and marked as torn).
//! - Every word is an atomic; there is no undefined behaviour however reader and writer interleave.
//! - Times are CLOCK_MONOTONIC nanoseconds of the host; only ages leave it.

mod layout;
mod sample;

pub use layout::{
    Body, Collective, Dtype, GROUPS, Group, ITERATIONS, Iteration, Op, PAGE_BYTES, PHASES, RING, SITE_TEXT,
    SITES, VERSION, tag, tag_text,
};

use super::message::{Activity, Phase};
use layout::{
    BODY, BODY_WORDS, GROUP_WORDS, GROUPS_START, ITERATION_WORDS, ITERATIONS_START, RING_START, RING_WORDS,
    SITE_WORDS, SITES_START,
};
use memmap2::{MmapMut, MmapOptions};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The group of all ranks: always the first in the table.
pub const WORLD: GroupId = GroupId(0);

const MAGIC: u64 = u64::from_le_bytes(*b"rankdeck");
const WRITER: usize = 5;
const ASKED: usize = 6;
const ANSWERED: usize = 7;
const SEQLOCK: usize = 8;
const READ_TRIES: usize = 1000;

/// Nanoseconds on this host's CLOCK_MONOTONIC; no system call (vDSO).
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the duration of the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A group (communicator) of this rank, from [`Writer::group`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupId(usize);

/// A collective about to be entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry {
    /// What.
    pub op: Op,
    /// Why: up to 16 bytes of ASCII, see [`tag`].
    pub tag: [u8; 16],
    /// Elements per rank.
    pub count: u64,
    /// Bytes per rank.
    pub bytes: u64,
    /// Element type.
    pub dtype: Dtype,
    /// Rank that a broadcast comes from.
    pub root: Option<u32>,
    /// Hash of the source location, 0 when unknown; its name comes with [`Writer::site`].
    pub call_site: u64,
}

/// A map of [`PAGE_BYTES`].
struct PageWords(MmapMut);

impl PageWords {
    fn get(&self, index: usize) -> &AtomicU64 {
        assert!(index < PAGE_BYTES / 8, "word inside the page");
        // SAFETY: the map has PAGE_BYTES and is page-aligned, `index` was checked, and both processes access
        // the page only as atomics.
        unsafe { &*self.0.as_ptr().cast::<AtomicU64>().add(index) }
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
    words: PageWords,
    body: Body,
    current: Collective,
    groups: Vec<Group>,
    sites: Vec<u64>,
    /// Time inside collectives since the phase began, ns.
    phase_wait_ns: u64,
}

/// What changed besides the body.
enum PageChange {
    Nothing,
    Collective(Collective),
    Iteration(Iteration),
    Group(usize),
    Site(usize, [u64; SITE_WORDS]),
}

impl Writer {
    /// Creates the file (mode 0600), or takes over an existing one, and writes the head. An existing file is
    /// not cut first: access to a page that is gone would kill a reader that has the file mapped.
    pub fn create(path: &Path, rank: u32, generation: u32) -> io::Result<Writer> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        file.set_len(PAGE_BYTES as u64)?;
        // SAFETY: the file has just been sized; it is only ever mapped and accessed as atomics.
        let map = unsafe { MmapOptions::new().len(PAGE_BYTES).map_mut(&file)? };
        Ok(Writer::start(map, rank, generation))
    }

    /// A page that no agent sees, for a trainer started by hand.
    pub fn anonymous(rank: u32, generation: u32) -> io::Result<Writer> {
        Ok(Writer::start(MmapOptions::new().len(PAGE_BYTES).map_anon()?, rank, generation))
    }

    fn start(map: MmapMut, rank: u32, generation: u32) -> Writer {
        let words = PageWords(map);
        // A reader must not take what an earlier writer left for this writer's.
        words.get(0).store(0, Ordering::Release);
        words.store(1, &[0; PAGE_BYTES / 8 - 1]);
        let now = monotonic_ns();
        let body =
            Body { phase_entered_ns: now, activity_entered_ns: now, heartbeat_ns: now, ..Body::default() };
        let world = Group { name: tag("world"), ..Group::default() };
        words.store(BODY, &body.words());
        words.store(GROUPS_START, &world.words());
        words.store(1, &[VERSION, u64::from(rank), u64::from(generation), u64::from(std::process::id())]);
        words.get(0).store(MAGIC, Ordering::Release);
        let (groups, sites) = (vec![world], Vec::new());
        Writer { words, body, current: Collective::default(), groups, sites, phase_wait_ns: 0 }
    }

    /// The latest body.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// Changes the body and publishes it. Where `train_iter` changes, a new iteration begins: all ranks must
    /// do so at the same place between the same collectives.
    pub fn update(&mut self, change: impl FnOnce(&mut Body)) {
        let before = self.body.train_iter;
        change(&mut self.body);
        let now = monotonic_ns();
        self.body.heartbeat_ns = now;
        let part = match self.groups.first() {
            Some(world) if self.body.train_iter != before => PageChange::Iteration(Iteration {
                train_iter: self.body.train_iter,
                seq: world.entered,
                chain: world.chain,
                at_ns: now,
                wait_ns: self.body.wait_ns,
            }),
            _ => PageChange::Nothing,
        };
        self.publish(part);
    }

    /// Enters a phase; activity and amount begin anew.
    pub fn phase(&mut self, phase: Phase) {
        let waited = std::mem::take(&mut self.phase_wait_ns);
        self.update(|body| {
            let now = monotonic_ns();
            let spent = now.saturating_sub(body.phase_entered_ns).saturating_sub(waited);
            if let Some(own) = body.own_ns.get_mut(body.phase as usize) {
                *own += spent;
            }
            body.phase = phase as u64;
            body.phase_entered_ns = now;
            body.phase_progress = 0;
            body.activity = Activity::None as u64;
            body.activity_entered_ns = now;
            (body.done, body.total) = (0, 0);
        });
    }

    /// Says that something moved inside the phase.
    pub fn progress(&mut self) {
        self.update(|body| body.phase_progress += 1);
    }

    /// Says what is being done inside the phase.
    pub fn activity(&mut self, activity: Activity) {
        self.update(|body| {
            body.activity = activity as u64;
            body.activity_entered_ns = monotonic_ns();
        });
    }

    /// Says how much of the phase is done, such as episodes of an evaluation; this is progress.
    pub fn amount(&mut self, done: u64, total: u64) {
        self.update(|body| {
            body.phase_progress += 1;
            (body.done, body.total) = (done, total);
        });
    }

    /// The group of that name, which must be the same on all its members; `size` is the number of members.
    /// When the table is full, a group is still counted in the ring, but the watch cannot compare it.
    pub fn group(&mut self, name: &str, size: u32) -> GroupId {
        let name = tag(name);
        let known = self.groups.iter().position(|group| group.name == name);
        let index = known.unwrap_or(self.groups.len());
        if index >= GROUPS {
            return GroupId(GROUPS);
        }
        if known.is_none() {
            self.groups.push(Group { name, ..Group::default() });
        }
        if let Some(group) = self.groups.get_mut(index) {
            group.size = u64::from(size);
        }
        self.publish(PageChange::Group(index));
        GroupId(index)
    }

    /// Names a call site, `FILE:LINE`; done once per number.
    pub fn site(&mut self, number: u64, name: impl FnOnce() -> String) {
        if number == 0 || self.sites.len() >= SITES || self.sites.contains(&number) {
            return;
        }
        self.sites.push(number);
        let words = layout::site_words(number, &name());
        self.publish(PageChange::Site(self.sites.len() - 1, words));
    }

    /// Enters the next collective of the group of all ranks and returns its number.
    pub fn enter(
        &mut self,
        op: Op,
        tag: [u8; 16],
        count: u64,
        bytes: u64,
        dtype: Dtype,
        call_site: u64,
    ) -> u64 {
        self.enter_in(WORLD, Entry { op, tag, count, bytes, dtype, root: None, call_site })
    }

    /// Enters the next collective of a group and returns its number within that group.
    pub fn enter_in(&mut self, group: GroupId, entry: Entry) -> u64 {
        let now = monotonic_ns();
        let seq = self.body.entered + 1;
        let Entry { op, tag, count, bytes, dtype, root, call_site } = entry;
        self.current = Collective {
            seq,
            op,
            tag,
            count,
            bytes,
            dtype,
            entered_ns: now,
            left_ns: 0,
            call_site,
            group: group.0 as u64,
            group_seq: 0,
            chain: 0,
            train_iter: self.body.train_iter,
            root: root.map_or(0, |root| u64::from(root) + 1),
        };
        self.body.entered = seq;
        self.body.heartbeat_ns = now;
        if let Some(counted) = self.groups.get_mut(group.0) {
            counted.entered += 1;
            counted.chain = self.current.mixed_into(counted.chain);
            counted.last = seq;
            self.current.group_seq = counted.entered;
            self.current.chain = counted.chain;
            if group == WORLD {
                self.body.chain_hash = counted.chain;
            }
        }
        self.publish(PageChange::Collective(self.current));
        if self.current.group_seq == 0 { seq } else { self.current.group_seq }
    }

    /// Leaves the collective entered last.
    pub fn leave(&mut self) {
        let now = monotonic_ns();
        let waited = now.saturating_sub(self.current.entered_ns);
        self.current.left_ns = now;
        self.body.left = self.body.entered;
        self.body.heartbeat_ns = now;
        self.body.wait_ns += waited;
        self.phase_wait_ns += waited;
        if let Some(group) = self.groups.get_mut(self.current.group as usize) {
            group.left = group.entered;
        }
        self.publish(PageChange::Collective(self.current));
    }

    fn publish(&self, part: PageChange) {
        let lock = self.words.get(SEQLOCK);
        let inside = lock.load(Ordering::Relaxed) | 1;
        lock.store(inside, Ordering::Relaxed);
        fence(Ordering::Release);
        self.words.store(BODY, &self.body.words());
        match part {
            PageChange::Nothing => {}
            PageChange::Collective(collective) => {
                let slot = collective.seq as usize % RING;
                self.words.store(RING_START + slot * RING_WORDS, &collective.words());
                self.store_group(collective.group as usize);
            }
            PageChange::Iteration(iteration) => {
                let slot = iteration.train_iter as usize % ITERATIONS;
                self.words.store(ITERATIONS_START + slot * ITERATION_WORDS, &iteration.words());
            }
            PageChange::Group(index) => self.store_group(index),
            PageChange::Site(index, words) => self.words.store(SITES_START + index * SITE_WORDS, &words),
        }
        lock.store(inside.wrapping_add(1), Ordering::Release);
    }

    fn store_group(&self, index: usize) {
        if let Some(group) = self.groups.get(index) {
            self.words.store(GROUPS_START + index * GROUP_WORDS, &group.words());
        }
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
    /// The hook in a Python rank writes it.
    pub by_hook: bool,
    /// The body.
    pub body: Body,
    /// The ring, oldest first; empty slots left out.
    pub ring: Vec<Collective>,
    /// The groups, the group of all ranks first.
    pub groups: Vec<Group>,
    /// The latest iterations, oldest first.
    pub iterations: Vec<Iteration>,
    /// Call sites by number.
    pub sites: Vec<(u64, String)>,
    /// The writer died or was stopped inside a write: the body may be torn (PAGE-1).
    pub torn: bool,
}

/// The agent's side.
pub struct Reader {
    words: PageWords,
}

impl Reader {
    /// Maps an existing page; an error when it is not one that this build can read (yet).
    pub fn open(path: &Path) -> io::Result<Reader> {
        let bad = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_string());
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.len() < PAGE_BYTES as u64 {
            return Err(bad("status page is too short"));
        }
        // SAFETY: the length was checked and the page never shrinks; accessed only as atomics.
        let words = PageWords(unsafe { MmapOptions::new().len(PAGE_BYTES).map_mut(&file)? });
        if words.get(0).load(Ordering::Acquire) != MAGIC {
            return Err(bad("not a status page"));
        }
        if words.get(1).load(Ordering::Relaxed) != VERSION {
            return Err(bad("status page of another version"));
        }
        Ok(Reader { words })
    }

    /// The hook of a Python rank writes it.
    pub fn has_hook(&self) -> bool {
        self.words.get(WRITER).load(Ordering::Relaxed) == 1
    }

    /// Asks the hook for a dump and returns the number of the request; see [`Reader::hook_answered`].
    pub fn ask_hook(&self) -> u64 {
        self.words.get(ASKED).fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Number of the request that the hook has answered last.
    pub fn hook_answered(&self) -> u64 {
        self.words.get(ANSWERED).load(Ordering::Acquire)
    }

    /// The page now.
    pub fn view(&self) -> View {
        let mut tries = 0;
        loop {
            tries += 1;
            let before = self.words.get(SEQLOCK).load(Ordering::Acquire);
            let mut view = self.copy();
            fence(Ordering::Acquire);
            let after = self.words.get(SEQLOCK).load(Ordering::Relaxed);
            let whole = before == after && before & 1 == 0;
            if whole || tries >= READ_TRIES {
                view.torn = !whole;
                view.ring.sort_unstable_by_key(|collective| collective.seq);
                view.iterations.sort_unstable_by_key(|iteration| iteration.train_iter);
                return view;
            }
            std::hint::spin_loop();
        }
    }

    fn copy(&self) -> View {
        let words = &self.words;
        let [rank, generation, pid] = words.load(2);
        let collective = |slot| Collective::from_words(&words.load(RING_START + slot * RING_WORDS));
        let group = |slot| Group::from_words(&words.load(GROUPS_START + slot * GROUP_WORDS));
        let iteration = |slot| Iteration::from_words(&words.load(ITERATIONS_START + slot * ITERATION_WORDS));
        let site = |slot| words.load::<SITE_WORDS>(SITES_START + slot * SITE_WORDS);
        View {
            rank: rank as u32,
            generation: generation as u32,
            pid: pid as u32,
            by_hook: self.has_hook(),
            body: Body::from_words(&words.load::<BODY_WORDS>(BODY)),
            ring: used(RING, collective, |c| c.seq > 0),
            groups: used(GROUPS, group, |g| g.name != [0; 16]),
            iterations: used(ITERATIONS, iteration, |i| i.at_ns > 0),
            sites: (0..SITES)
                .map(site)
                .filter(|words| words[0] != 0)
                .map(|words| (words[0], layout::site_text(&words)))
                .collect(),
            torn: false,
        }
    }
}

/// The slots in use; room for all is made at once, since readers come many times a second.
fn used<T>(slots: usize, slot: impl Fn(usize) -> T, in_use: impl Fn(&T) -> bool) -> Vec<T> {
    let mut found = Vec::with_capacity(slots);
    found.extend((0..slots).map(slot).filter(in_use));
    found
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
    fn each_group_is_counted_for_itself() {
        let mut writer = Writer::anonymous(0, 0).unwrap();
        let pair = writer.group("pair", 2);
        assert_eq!(writer.group("pair", 2), pair, "known by its name");
        let entry = |tag_: &str| Entry { op: Op::AllReduce, tag: tag(tag_), ..Entry::default() };
        assert_eq!(writer.enter_in(WORLD, entry("grad")), 1);
        writer.leave();
        let alone = writer.body().chain_hash;
        assert_eq!(writer.enter_in(pair, entry("inner")), 1);
        writer.leave();
        assert_eq!(writer.body().chain_hash, alone, "other groups do not touch the chain of all ranks");
        assert_eq!(writer.enter_in(pair, entry("inner")), 2);
        assert_eq!((writer.body().entered, writer.body().left), (3, 2));
        assert_eq!((writer.groups[1].entered, writer.groups[1].left), (2, 1));
        for index in 0..GROUPS * 2 {
            writer.group(&format!("g{index}"), 2);
        }
        let over = writer.group("one too many", 2);
        writer.enter_in(over, entry("x"));
        assert_eq!(writer.body().entered, 4, "a group beyond the table is still in the ring");
    }

    #[test]
    fn iterations_and_call_sites_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let mut writer = Writer::create(&path, 0, 0).unwrap();
        for iteration in 1..=ITERATIONS as u64 + 3 {
            writer.site(9, || "src/train.rs:7".into());
            writer.enter(Op::AllReduce, tag("grad"), 1, 4, Dtype::F32, 9);
            writer.leave();
            writer.update(|body| body.train_iter = iteration);
        }
        let view = Reader::open(&path).unwrap().view();
        assert_eq!(view.iterations.len(), ITERATIONS);
        let last = view.iterations.last().unwrap();
        assert_eq!((last.train_iter, last.seq), (ITERATIONS as u64 + 3, ITERATIONS as u64 + 3));
        assert_eq!(view.ring.last().unwrap().train_iter, last.train_iter - 1);
        assert_eq!(view.sites, [(9, "src/train.rs:7".into())]);
    }

    #[test]
    fn a_page_of_another_version_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let writer = Writer::create(&path, 0, 0).unwrap();
        for version in [VERSION - 1, VERSION + 1] {
            writer.words.store(1, &[version]);
            assert!(Reader::open(&path).is_err());
        }
        writer.words.store(1, &[VERSION]);
        assert!(Reader::open(&path).is_ok());
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
