//! The rank's side of a status page.

use super::layout::{
    self, BODY, GROUP_WORDS, GROUPS_START, ITERATION_WORDS, ITERATIONS_START, RING_START, RING_WORDS,
    SITE_WORDS, SITES_START,
};
use super::{
    Body, Collective, CollectiveOp, Dtype, GROUPS, GroupCounters, GroupId, ITERATIONS, IterationStart, MAGIC,
    PAGE_BYTES, RING, SEQLOCK, SITES, VERSION, WORLD, monotonic_ns, tag,
};
use crate::mapping::MappingGuard;
use crate::message::{Activity, Phase};
use crate::trust;
use memmap2::{MmapOptions, MmapRaw};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A collective to enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CollectiveStart {
    /// Operation.
    pub op: CollectiveOp,
    /// Purpose: up to 16 bytes of ASCII, see [`tag`].
    pub tag: [u8; 16],
    /// Elements per rank.
    pub count: u64,
    /// Bytes per rank.
    pub bytes: u64,
    /// Element type.
    pub dtype: Dtype,
    /// Source rank of a broadcast.
    pub root: Option<u32>,
    /// Hash of the source location; 0 if unknown. [`StatusPageWriter::site`] sets its name.
    pub call_site: u64,
}

/// A writable map of [`PAGE_BYTES`].
pub(super) struct MappedPage {
    /// Dropped before the map: fields are dropped in their order.
    _guarded: Option<MappingGuard>,
    map: MmapRaw,
}

impl MappedPage {
    fn get(&self, index: usize) -> &AtomicU64 {
        assert!(index < PAGE_BYTES / 8, "word inside the page");
        // SAFETY: the map has PAGE_BYTES and is page-aligned, `index` was checked, and this process accesses
        // the page only as atomics.
        unsafe { &*self.map.as_mut_ptr().cast::<AtomicU64>().add(index) }
    }

    pub(super) fn store(&self, start: usize, words: &[u64]) {
        for (i, word) in words.iter().enumerate() {
            self.get(start + i).store(*word, Ordering::Relaxed);
        }
    }
}

/// The rank's side of a page.
pub struct StatusPageWriter {
    pub(super) words: MappedPage,
    body: Body,
    current: Collective,
    pub(super) groups: Vec<GroupCounters>,
    sites: Vec<u64>,
    /// Time inside collectives since the phase began, ns.
    phase_wait_ns: u64,
}

/// The change besides the body.
enum PageChange {
    Nothing,
    Collective(Collective),
    Iteration(IterationStart),
    Group(usize),
    /// The group of all ranks begins anew.
    World,
    Site(usize, [u64; SITE_WORDS]),
}

impl StatusPageWriter {
    /// Creates the file (mode 0600), or reuses an existing one, reserves its blocks (PAGE-2) and writes the
    /// header. An existing file is not truncated first, which could kill an earlier writer that is still
    /// alive.
    ///
    /// # Errors
    /// The file cannot be opened or mapped, or the disk is full.
    pub fn create(path: &Path, rank: u32, generation: u32) -> io::Result<StatusPageWriter> {
        let file = trust::open(path, OpenOptions::new().read(true).write(true).create(true).truncate(false))?;
        // SAFETY: the descriptor is open for the duration of the call.
        let reserved = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, PAGE_BYTES as libc::off_t) };
        if reserved != 0 {
            return Err(io::Error::from_raw_os_error(reserved));
        }
        let map = MmapOptions::new().len(PAGE_BYTES).map_raw(&file)?;
        let guarded = Some(MappingGuard::new(map.as_ptr() as usize, PAGE_BYTES));
        Ok(StatusPageWriter::start(MappedPage { _guarded: guarded, map }, rank, generation))
    }

    /// Creates a page without a file, for a trainer without an agent.
    pub fn anonymous(rank: u32, generation: u32) -> io::Result<StatusPageWriter> {
        let map = MmapOptions::new().len(PAGE_BYTES).map_anon()?.into();
        Ok(StatusPageWriter::start(MappedPage { _guarded: None, map }, rank, generation))
    }

    fn start(words: MappedPage, rank: u32, generation: u32) -> StatusPageWriter {
        // A reader must not mistake values of an earlier writer for this writer's.
        words.get(0).store(0, Ordering::Release);
        words.store(1, &[0; PAGE_BYTES / 8 - 1]);
        let now = monotonic_ns();
        let body =
            Body { phase_entered_ns: now, activity_entered_ns: now, heartbeat_ns: now, ..Body::default() };
        let world = GroupCounters { name: tag("world"), ..GroupCounters::default() };
        words.store(BODY, &body.words());
        words.store(GROUPS_START, &world.words());
        words.store(1, &[VERSION, u64::from(rank), u64::from(generation), u64::from(std::process::id())]);
        words.get(0).store(MAGIC, Ordering::Release);
        let (groups, sites) = (vec![world], Vec::new());
        StatusPageWriter { words, body, current: Collective::default(), groups, sites, phase_wait_ns: 0 }
    }

    /// Returns the current body.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// Changes the body and publishes it. A change of `train_iter` starts an iteration: all ranks must make
    /// it between the same collectives.
    pub fn update(&mut self, change: impl FnOnce(&mut Body)) {
        let before = self.body.train_iter;
        change(&mut self.body);
        let now = monotonic_ns();
        self.body.heartbeat_ns = now;
        let part = match self.groups.first() {
            Some(world) if self.body.train_iter != before => PageChange::Iteration(IterationStart {
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

    /// Enters a phase; resets activity and amount.
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

    /// Records progress within the phase.
    pub fn progress(&mut self) {
        self.update(|body| body.phase_progress += 1);
    }

    /// Sets the activity within the phase.
    pub fn activity(&mut self, activity: Activity) {
        self.update(|body| {
            body.activity = activity as u64;
            body.activity_entered_ns = monotonic_ns();
        });
    }

    /// Sets the completed amount of the phase, such as episodes of an evaluation; counts as progress.
    pub fn amount(&mut self, done: u64, total: u64) {
        self.update(|body| {
            body.phase_progress += 1;
            (body.done, body.total) = (done, total);
        });
    }

    /// Returns the group of this name, which must be equal on all its members; `size` is the number of
    /// members. Collectives of groups beyond the table are only in the ring, and the detector cannot compare
    /// them.
    pub fn group(&mut self, name: &str, size: u32) -> GroupId {
        let name = tag(name);
        let known = self.groups.iter().position(|group| group.name == name);
        let index = known.unwrap_or(self.groups.len());
        if index >= GROUPS {
            return GroupId(GROUPS);
        }
        if known.is_none() {
            self.groups.push(GroupCounters { name, ..GroupCounters::default() });
        }
        if let Some(group) = self.groups.get_mut(index) {
            group.size = u64::from(size);
        }
        self.publish(PageChange::Group(index));
        GroupId(index)
    }

    /// Begins the group of all ranks anew, with these members: its collectives and the starts of iterations are
    /// counted from 0 on all of them, so that they stay comparable. `epoch` counts changes of the members.
    pub fn regroup(&mut self, epoch: u32, members: u32) {
        let world = GroupCounters {
            name: tag("world"),
            size: u64::from(members),
            last: self.body.entered,
            ..GroupCounters::default()
        };
        if let Some(first) = self.groups.first_mut() {
            *first = world;
        }
        self.body.chain_hash = 0;
        (self.body.membership_epoch, self.body.member_count) = (epoch, members);
        // A collective that failed is not left by anyone.
        self.body.left = self.body.entered;
        self.body.heartbeat_ns = monotonic_ns();
        self.publish(PageChange::World);
    }

    /// Sets the name of a call site, `FILE:LINE`; once per number.
    pub fn site(&mut self, number: u64, name: impl FnOnce() -> String) {
        if number == 0 || self.sites.len() >= SITES || self.sites.contains(&number) {
            return;
        }
        self.sites.push(number);
        let words = layout::site_words(number, &name());
        self.publish(PageChange::Site(self.sites.len() - 1, words));
    }

    /// Enters the next collective of the group of all ranks; returns its number.
    pub fn enter(
        &mut self,
        op: CollectiveOp,
        tag: [u8; 16],
        count: u64,
        bytes: u64,
        dtype: Dtype,
        call_site: u64,
    ) -> u64 {
        self.enter_in(WORLD, CollectiveStart { op, tag, count, bytes, dtype, root: None, call_site })
    }

    /// Enters the next collective of a group; returns its number within that group.
    pub fn enter_in(&mut self, group: GroupId, entry: CollectiveStart) -> u64 {
        let now = monotonic_ns();
        let seq = self.body.entered + 1;
        let CollectiveStart { op, tag, count, bytes, dtype, root, call_site } = entry;
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

    /// Leaves the latest collective.
    pub fn leave(&mut self) {
        self.leave_after(monotonic_ns().saturating_sub(self.current.entered_ns));
    }

    /// Leaves the latest collective, which took `waited` ns by a more precise clock than the time of this
    /// call.
    pub fn leave_after(&mut self, waited: u64) {
        let now = monotonic_ns();
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
            PageChange::World => {
                self.words.store(ITERATIONS_START, &[0; ITERATIONS * ITERATION_WORDS]);
                self.store_group(0);
            }
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
