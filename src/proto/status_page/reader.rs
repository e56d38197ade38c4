//! The agent's side of a status page: reads it, and makes the sample that goes to the console. A sample
//! always has counters and ages, and the ring of collectives only while nothing moves.

use super::layout::{
    self, ARGUMENTS_START, ARGUMENTS_VERSION, BODY, BODY_WORDS, FINGERPRINT_WORDS, FINGERPRINTS_START,
    GROUP_WORDS, GROUPS_START, INPUT_START, ITERATION_WORDS, ITERATIONS_START, MEMBERSHIP_VERSION,
    OLDER_FINGERPRINT_WORDS, OLDER_PAGE_BYTES, OLDEST_VERSION, POSITIONS_VERSION, RING_START, RING_WORDS,
    SITE_WORDS, SITES_START,
};
use super::{
    Body, Collective, FINGERPRINTS, Fingerprint, GROUPS, GroupCounters, ITERATIONS, IterationStart, MAGIC,
    PAGE_BYTES, RING, SEQLOCK, SITES, VERSION, tag_text,
};
use crate::message::{
    Activity, CollectiveCall, CollectiveSample, FingerprintPosition, FingerprintSample, GroupArguments,
    GroupMembership, GroupSample, InputSample, IterationSample, PageSample, Phase, RecentCollective,
};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

const WRITER: usize = 5;
const ASKED: usize = 6;
const ANSWERED: usize = 7;
const READ_TRIES: usize = 1000;

/// Contents of a page.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    /// Rank that wrote the page.
    pub rank: u32,
    /// The generation whose rank wrote the page.
    pub generation: u32,
    /// Process id of the writer in its own pid namespace, which may differ from the host's number.
    pub pid: u32,
    /// The writer is the hook in a Python rank.
    pub by_hook: bool,
    /// The rank's values.
    pub body: Body,
    /// The ring without empty slots, oldest first.
    pub ring: Vec<Collective>,
    /// The groups, the group of all ranks first.
    pub groups: Vec<GroupCounters>,
    /// The latest iterations, oldest first.
    pub iterations: Vec<IterationStart>,
    /// The latest fingerprints of weights, by optimizer and step.
    pub fingerprints: Vec<Fingerprint>,
    /// How a script has called `init_process_group`.
    pub group_arguments: Option<GroupArguments>,
    /// How long a script has waited for its input.
    pub input: Option<InputSample>,
    /// Members of the group of all ranks; `None` on pages of scripts, of older builds, and before the group forms.
    pub membership: Option<GroupMembership>,
    /// Call sites: number and name.
    pub sites: Vec<(u64, String)>,
    /// The writer died or was stopped during a write: the body may be torn (PAGE-1).
    pub torn: bool,
}

/// The agent's side of a page.
pub struct StatusPageReader {
    file: File,
}

impl StatusPageReader {
    /// Opens an existing page.
    ///
    /// # Errors
    /// It is not a page that this build can read, or not yet.
    pub fn open(path: &Path) -> io::Result<StatusPageReader> {
        // Opening it must not block, whatever a rank has created there.
        let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
        let file = File::options().read(true).write(true).custom_flags(flags).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(bad("not a file"));
        }
        let reader = StatusPageReader { file };
        reader.copy()?;
        Ok(reader)
    }

    fn word(&self, index: usize) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, index as u64 * 8)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Returns whether the hook in a Python rank writes it.
    pub fn has_hook(&self) -> bool {
        self.word(WRITER).is_ok_and(|writer| writer == 1)
    }

    /// Requests a dump from the hook; returns the number of the request for
    /// [`StatusPageReader::hook_answered`].
    pub fn ask_hook(&self) -> io::Result<u64> {
        let request = self.word(ASKED)?.wrapping_add(1);
        self.file.write_all_at(&request.to_le_bytes(), ASKED as u64 * 8)?;
        Ok(request)
    }

    /// Returns the number of the latest request that the hook has answered.
    pub fn hook_answered(&self) -> io::Result<u64> {
        self.word(ANSWERED)
    }

    /// Reads the page (PAGE-1).
    ///
    /// # Errors
    /// The file was truncated or overwritten.
    pub fn view(&self) -> io::Result<View> {
        let mut tries = 0;
        loop {
            tries += 1;
            let before = self.word(SEQLOCK)?;
            fence(Ordering::Acquire);
            let copy = self.copy()?;
            fence(Ordering::Acquire);
            let after = self.word(SEQLOCK)?;
            let whole = before == after && before & 1 == 0;
            if whole || tries >= READ_TRIES {
                return Ok(copy.view(!whole));
            }
            std::hint::spin_loop();
        }
    }

    fn copy(&self) -> io::Result<PageCopy> {
        let mut copy = PageCopy(vec![0; PAGE_BYTES]);
        let (older, rest) = copy.0.split_at_mut(OLDER_PAGE_BYTES);
        let read = |part: &mut [u8], from: usize| {
            self.file.read_exact_at(part, from as u64).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => bad("status page is too short"),
                _ => error,
            })
        };
        read(older, 0)?;
        let version = older.get(8..16).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes);
        if version >= POSITIONS_VERSION {
            read(rest, OLDER_PAGE_BYTES)?;
        }
        match copy.load(0) {
            [MAGIC, OLDEST_VERSION..=VERSION] => Ok(copy),
            [MAGIC, _] => Err(bad("status page of another version")),
            _ => Err(bad("not a status page")),
        }
    }
}

fn bad(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_string())
}

/// A copy of the bytes of a page.
struct PageCopy(Vec<u8>);

impl PageCopy {
    fn load<const N: usize>(&self, start: usize) -> [u64; N] {
        let word = |index: usize| self.0.get(index * 8..index * 8 + 8)?.try_into().ok();
        std::array::from_fn(|i| word(start + i).map_or(0, u64::from_le_bytes))
    }

    fn view(&self, torn: bool) -> View {
        let [version, rank, generation, pid, writer] = self.load(1);
        let collective = |slot| Collective::from_words(&self.load(RING_START + slot * RING_WORDS));
        let group = |slot| GroupCounters::from_words(&self.load(GROUPS_START + slot * GROUP_WORDS));
        let iteration =
            |slot| IterationStart::from_words(&self.load(ITERATIONS_START + slot * ITERATION_WORDS));
        let site = |slot| self.load::<SITE_WORDS>(SITES_START + slot * SITE_WORDS);
        let has_positions = version >= POSITIONS_VERSION;
        let fingerprint_words = if has_positions { FINGERPRINT_WORDS } else { OLDER_FINGERPRINT_WORDS };
        let fingerprint = |slot| {
            let taken = Fingerprint::from_words(&self.load(FINGERPRINTS_START + slot * fingerprint_words))?;
            Some(Fingerprint { position: taken.position.filter(|_| has_positions), ..taken })
        };
        let mut fingerprints: Vec<Fingerprint> = (0..FINGERPRINTS).filter_map(fingerprint).collect();
        fingerprints.sort_unstable_by_key(|taken| (taken.optimizer, taken.step));
        let mut ring = used(RING, collective, |c| c.seq > 0);
        ring.sort_unstable_by_key(|collective| collective.seq);
        let mut iterations = used(ITERATIONS, iteration, |i| i.at_ns > 0);
        iterations.sort_unstable_by_key(|iteration| iteration.train_iter);
        let sites: Vec<(u64, String)> = (0..SITES)
            .map(site)
            .filter(|words| words[0] != 0)
            .map(|words| (words[0], layout::site_text(&words)))
            .collect();
        let body = Body::from_words(&self.load::<BODY_WORDS>(BODY));
        let membership = GroupMembership { epoch: body.membership_epoch, members: body.member_count };
        let has_membership = writer != 1 && version >= MEMBERSHIP_VERSION && membership.members > 0;
        View {
            rank: rank as u32,
            generation: generation as u32,
            pid: pid as u32,
            by_hook: writer == 1,
            body,
            ring,
            groups: used(GROUPS, group, |g| g.name != [0; 16]),
            iterations,
            fingerprints,
            group_arguments: layout::group_arguments(&self.load(ARGUMENTS_START), &sites)
                .filter(|_| version >= ARGUMENTS_VERSION),
            input: layout::input(&self.load(INPUT_START), &sites)
                .filter(|_| writer == 1 && version >= ARGUMENTS_VERSION),
            membership: has_membership.then_some(membership),
            sites,
            torn,
        }
    }
}

/// Returns the used slots; allocates for all at once, because pages are read many times per second.
fn used<T>(slots: usize, slot: impl Fn(usize) -> T, in_use: impl Fn(&T) -> bool) -> Vec<T> {
    let mut found = Vec::with_capacity(slots);
    found.extend((0..slots).map(slot).filter(in_use));
    found
}

/// Most iterations in a sample.
const MOST_ITERATIONS: usize = 8;
/// Iterations of the last milliseconds that are thinned to [`MOST_ITERATIONS`].
const WINDOW_MS: u64 = 1_000;
/// Most fingerprints of one optimizer in a sample: enough for its first steps.
const MOST_FINGERPRINTS: usize = 9;
/// Those of them that are the latest, so that a slow loop's are shown at once.
const LATEST_FINGERPRINTS: usize = 3;
/// Most runs of equal collectives in a sample.
const MOST_RUNS: usize = 32;
/// Time without changes after which a sample has the latest collectives: a rank that makes progress needs no
/// explanation.
const STILL_MS: u64 = 750;

impl View {
    /// Returns the sample for the console; `now_ns` is [`super::monotonic_ns`] of this host.
    pub fn sample(&self, now_ns: u64) -> PageSample {
        let body = &self.body;
        let age = |then: u64| self.age_ms(then, now_ns);
        let latest = self.ring.iter().find(|c| c.seq == body.entered).copied().unwrap_or_default();
        let silent = age(body.heartbeat_ns);
        PageSample {
            phase: Phase::ALL.get(body.phase as usize).copied().unwrap_or_default(),
            phase_age_ms: age(body.phase_entered_ns),
            phase_progress: body.phase_progress,
            heartbeat_age_ms: silent,
            train_iter: body.train_iter,
            env_step: body.env_step,
            samples: body.samples,
            episodes: body.episodes,
            updates: body.updates,
            collective: CollectiveSample {
                entered: body.entered,
                left: body.left,
                age_ms: if latest.seq == 0 {
                    0
                } else if body.left == body.entered {
                    age(latest.left_ns)
                } else {
                    age(latest.entered_ns)
                },
                group_seq: latest.group_seq,
                call: self.call(&latest),
            },
            by_hook: self.by_hook,
            activity: Activity::ALL.get(body.activity as usize).copied().unwrap_or_default(),
            activity_age_ms: if body.activity == 0 { 0 } else { age(body.activity_entered_ns) },
            done: body.done,
            total: body.total,
            groups: self
                .groups
                .iter()
                .filter(|group| group.entered > 0 || group.size > 0)
                .map(|group| GroupSample {
                    name: tag_text(&group.name),
                    size: u32::try_from(group.size).unwrap_or(0),
                    entered: group.entered,
                    left: group.left,
                    chain: group.chain,
                })
                .collect(),
            iterations: thinned(&self.iterations, now_ns)
                .map(|iteration| IterationSample {
                    train_iter: iteration.train_iter,
                    seq: iteration.seq,
                    chain: iteration.chain,
                    age_ms: age(iteration.at_ns),
                    wait_us: iteration.wait_ns / 1_000,
                })
                .collect(),
            fingerprints: shared_positions(&self.fingerprints),
            own_ms: body.own_ns.iter().map(|ns| ns / 1_000_000).collect(),
            recent: if silent < STILL_MS { Vec::new() } else { self.in_runs() },
            group_arguments: self.group_arguments.clone(),
            input: self.input.clone(),
            membership: self.membership,
        }
    }

    /// Returns the milliseconds from a time of this page to `now_ns`. A time of 0 is not a time: a writer that was
    /// stopped in the middle has not written it yet, and the latest change of the page is near.
    pub fn age_ms(&self, then: u64, now_ns: u64) -> u64 {
        let then = if then == 0 { self.body.heartbeat_ns } else { then };
        if then == 0 { 0 } else { now_ns.saturating_sub(then) / 1_000_000 }
    }

    /// Returns the last sample of a rank that has exited: with its latest collectives, however recent they
    /// are.
    pub fn last_words(&self, now_ns: u64) -> PageSample {
        PageSample { recent: self.in_runs(), ..self.sample(now_ns) }
    }

    /// Returns the ring with consecutive equal collectives merged.
    fn in_runs(&self) -> Vec<RecentCollective> {
        let mut runs: Vec<RecentCollective> = Vec::new();
        for collective in &self.ring {
            let next = self.recent(collective);
            let same = |last: &RecentCollective| {
                last.seq + last.more + 1 == next.seq
                    && RecentCollective { seq: next.seq, more: 0, chain: next.chain, ..last.clone() } == next
            };
            match runs.last_mut().filter(|last| next.seq > 0 && same(last)) {
                Some(last) => (last.more, last.chain) = (last.more + 1, next.chain),
                None => runs.push(next),
            }
        }
        runs.split_off(runs.len().saturating_sub(MOST_RUNS))
    }

    fn recent(&self, collective: &Collective) -> RecentCollective {
        RecentCollective {
            seq: collective.group_seq,
            more: 0,
            call: self.call(collective),
            chain: collective.chain,
            train_iter: collective.train_iter,
        }
    }

    /// Returns the arguments of a collective of the ring.
    pub fn call(&self, collective: &Collective) -> CollectiveCall {
        CollectiveCall {
            op: collective.op.name().into(),
            tag: tag_text(&collective.tag),
            group: self.group_name(collective),
            count: collective.count,
            dtype: collective.dtype.name().into(),
            bytes: collective.bytes,
            root: collective.root.checked_sub(1).and_then(|root| u32::try_from(root).ok()),
            site: self.site(collective),
        }
    }

    fn group_name(&self, collective: &Collective) -> String {
        let group = self.groups.get(collective.group as usize).filter(|_| collective.group_seq > 0);
        group.map(|group| tag_text(&group.name)).unwrap_or_default()
    }

    fn site(&self, collective: &Collective) -> String {
        let named = self.sites.iter().find(|(number, _)| *number == collective.call_site);
        named.map(|(_, name)| name.clone()).unwrap_or_default()
    }
}

/// Returns at most [`MOST_ITERATIONS`] of the latest iterations. Of a fast loop, these are multiples of a
/// power of two, so that samples of different ranks at different times share some.
fn thinned(iterations: &[IterationStart], now_ns: u64) -> impl Iterator<Item = &IterationStart> {
    let window = WINDOW_MS * 1_000_000;
    let recent =
        iterations.iter().filter(|iteration| now_ns.saturating_sub(iteration.at_ns) < window).count();
    let stride = (recent / MOST_ITERATIONS).max(1).next_power_of_two() as u64;
    let chosen: Vec<&IterationStart> =
        iterations.iter().filter(|iteration| iteration.train_iter.is_multiple_of(stride)).collect();
    let from = chosen.len().saturating_sub(MOST_ITERATIONS);
    chosen.into_iter().skip(from)
}

/// Returns at most [`MOST_FINGERPRINTS`] fingerprints of each optimizer: the first of all, the latest, and of many
/// others those at some positions, the same ones on all ranks, so that ranks a few steps apart share some.
fn shared_positions(taken: &[Fingerprint]) -> Vec<FingerprintSample> {
    let sample = |one: &Fingerprint| FingerprintSample {
        optimizer: one.optimizer,
        step: one.step,
        shapes: one.shapes,
        lanes: one.lanes,
        sum: one.sum,
        scale: one.scale,
        finite: one.finite,
        synced: one.synced,
        local: one.local,
        position: one.position,
    };
    let mut shown = Vec::new();
    for of_one in taken.chunk_by(|a, b| a.optimizer == b.optimizer) {
        let of_one: Vec<FingerprintSample> = of_one.iter().map(sample).collect();
        // With steps between collectives, replicas are equal only after a collective.
        let mixed = of_one.iter().any(|one| one.step > 0 && !one.synced);
        let latest = of_one.len().saturating_sub(LATEST_FINGERPRINTS);
        let kept = |at: usize, one: &FingerprintSample, stride: u64| {
            let always = one.step == 0 || at >= latest || mixed && one.synced;
            always || mixed_up(one.place()).is_multiple_of(stride)
        };
        let shared = |stride: u64| {
            let all = of_one.iter().enumerate();
            all.filter(move |(at, one)| kept(*at, one, stride)).map(|(_, one)| *one)
        };
        let stride =
            (0..63).map(|power| 1 << power).find(|stride| shared(*stride).count() <= MOST_FINGERPRINTS);
        shown.extend(shared(stride.unwrap_or(1)));
    }
    shown
}

/// Returns a number that only the position decides, so that programs are in no step with it (SplitMix64).
fn mixed_up(position: FingerprintPosition) -> u64 {
    let FingerprintPosition { seq, steps } = position;
    let mixed = seq.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(steps);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_fast_loop_share_iterations() {
        let at = |train_iter: u64, every_ms: u64| IterationStart {
            train_iter,
            at_ns: train_iter * every_ms * 1_000_000,
            ..IterationStart::default()
        };
        let fast: Vec<IterationStart> = (1_000..1_128).map(|i| at(i, 5)).collect();
        let list: Vec<u64> = thinned(&fast, 1_128 * 5_000_000).map(|i| i.train_iter).collect();
        assert_eq!(list, [1_008, 1_024, 1_040, 1_056, 1_072, 1_088, 1_104, 1_120]);
        let slow: Vec<IterationStart> = (20..30).map(|i| at(i, 700)).collect();
        let list: Vec<u64> = thinned(&slow, 30 * 700_000_000).map(|i| i.train_iter).collect();
        assert_eq!(list, [22, 23, 24, 25, 26, 27, 28, 29]);
    }

    #[test]
    fn zero_time_of_a_torn_page_is_no_time() {
        use crate::status_page::{
            CollectiveOp, Dtype, StatusPageReader, StatusPageWriter, monotonic_ns, tag,
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let mut writer = StatusPageWriter::create(&path, 0, 0).unwrap();
        writer.enter(CollectiveOp::AllReduce, tag("grad"), 9, 36, Dtype::F32, 0);
        let mut view = StatusPageReader::open(&path).unwrap().view().unwrap();
        view.ring.iter_mut().for_each(|call| call.entered_ns = 0);
        (view.body.phase_entered_ns, view.body.activity_entered_ns) = (0, 0);
        let now = monotonic_ns() + 3_000_000_000;
        let sample = view.sample(now);
        for age in [sample.collective.age_ms, sample.phase_age_ms, sample.heartbeat_age_ms] {
            assert!((3_000..60_000).contains(&age), "{age} ms since the latest change of the page");
        }
        view.body.heartbeat_ns = 0;
        assert_eq!((view.sample(now).collective.age_ms, view.sample(now).heartbeat_age_ms), (0, 0));
    }

    #[test]
    fn ranks_a_few_steps_apart_share_fingerprints() {
        // With positions, of so many collectives per step, and without.
        for calls in [Some(1), Some(4), Some(7), None] {
            let ring = |from: u64| -> Vec<Fingerprint> {
                let at = |step: u64| {
                    let position = calls.map(|calls| FingerprintPosition { seq: step * calls, steps: 0 });
                    Fingerprint { step, position, ..Fingerprint::default() }
                };
                (from..from + 64).map(at).collect()
            };
            let steps = |ring: &[Fingerprint]| -> Vec<u64> {
                shared_positions(ring).iter().map(|sample| sample.step).collect()
            };
            assert_eq!(steps(&ring(0)[..9]), (0..9).collect::<Vec<u64>>(), "the first steps");
            assert_eq!(steps(&ring(0))[0], 0, "what all ranks begin with");
            let of = |optimizer| ring(0).into_iter().map(move |one| Fingerprint { optimizer, ..one });
            let two: Vec<Fingerprint> = of(0).chain(of(1)).collect();
            let each = steps(&ring(0));
            assert_eq!(steps(&two), [each.as_slice(), &each].concat(), "of each optimizer");
            let a = steps(&ring(1_000));
            assert!((4..=MOST_FINGERPRINTS).contains(&a.len()), "{a:?}");
            assert_eq!(a[a.len() - LATEST_FINGERPRINTS..], [1_061, 1_062, 1_063], "the latest");
            for apart in [1, 5, 20] {
                let b = steps(&ring(1_000 + apart));
                assert!(a.iter().any(|step| b.contains(step)), "{apart}: {a:?} {b:?}");
            }
        }
    }

    #[test]
    fn consecutive_equal_collectives_are_merged() {
        use crate::status_page::{CollectiveOp, Dtype, StatusPageWriter, monotonic_ns, tag};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let mut writer = StatusPageWriter::create(&path, 0, 0).unwrap();
        for iteration in 0..4u64 {
            writer.update(|body| body.train_iter = iteration);
            for _ in 0..10 {
                writer.enter(CollectiveOp::AllReduce, tag("grad"), 9, 36, Dtype::F32, 0);
                writer.leave();
            }
            writer.enter(CollectiveOp::AllReduce, tag("stats"), 1, 8, Dtype::I64, 0);
            writer.leave();
        }
        let view = crate::status_page::StatusPageReader::open(&path).unwrap().view().unwrap();
        let sample = view.sample(monotonic_ns() + 2_000_000_000);
        let runs: Vec<(u64, u64)> = sample.recent.iter().map(|run| (run.seq, run.more)).collect();
        assert_eq!(runs, [(1, 9), (11, 0), (12, 9), (22, 0), (23, 9), (33, 0), (34, 9), (44, 0)]);
        assert_eq!(sample.recent[6].chain, view.ring[42].chain, "of the last one");
        assert!(view.sample(monotonic_ns()).recent.is_empty(), "a rank that makes progress");
        assert_eq!(view.last_words(monotonic_ns()).recent.len(), 8, "a rank that has exited");
    }
}
