//! The part of a page that goes to the console: always counters and ages, the ring of collectives only while
//! nothing moves.

use super::{Collective, Fingerprint, Iteration, View, tag_text};
use crate::message::{
    Activity, CollectiveCall, CollectiveSample, FingerprintSample, GroupSample, IterationSample, PageSample,
    Phase, RecentCollective,
};

/// Most iterations in a sample.
const ITERATIONS: usize = 8;
/// Iterations that began within so many milliseconds are thinned out to that number.
const WINDOW_MS: u64 = 1_000;
/// Most fingerprints of one optimiser in a sample: the first steps in a row fit.
const WEIGHTS: usize = 9;
/// Most runs of equal collectives in a sample.
const RUNS: usize = 32;
/// Silence of the page from which the latest collectives are sent: a rank that works does not need to be
/// explained.
const STILL_MS: u64 = 750;

impl View {
    /// The form that goes to the console; `now_ns` is [`super::monotonic_ns`] of this host.
    pub fn sample(&self, now_ns: u64) -> PageSample {
        let age = |then: u64| now_ns.saturating_sub(then) / 1_000_000;
        let body = &self.body;
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
            fingerprints: shared_steps(&self.fingerprints),
            own_ms: body.own_ns.iter().map(|ns| ns / 1_000_000).collect(),
            recent: if silent < STILL_MS { Vec::new() } else { self.in_runs() },
        }
    }

    /// The same of a rank that has ended: what it called last is told however short its silence is.
    pub fn last_words(&self, now_ns: u64) -> PageSample {
        PageSample { recent: self.in_runs(), ..self.sample(now_ns) }
    }

    /// The ring, with equal collectives that follow each other put together.
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
        runs.split_off(runs.len().saturating_sub(RUNS))
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

    /// What the rank passed to a collective of the ring.
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

/// At most [`ITERATIONS`] of the latest iterations. Of a fast loop, only multiples of a power of two are
/// kept, so that samples of different ranks at different moments still share some.
fn thinned(iterations: &[Iteration], now_ns: u64) -> impl Iterator<Item = &Iteration> {
    let window = WINDOW_MS * 1_000_000;
    let recent =
        iterations.iter().filter(|iteration| now_ns.saturating_sub(iteration.at_ns) < window).count();
    let stride = (recent / ITERATIONS).max(1).next_power_of_two() as u64;
    let chosen: Vec<&Iteration> =
        iterations.iter().filter(|iteration| iteration.train_iter.is_multiple_of(stride)).collect();
    let from = chosen.len().saturating_sub(ITERATIONS);
    chosen.into_iter().skip(from)
}

/// At most [`WEIGHTS`] fingerprints of each optimiser: of many, those of steps that are multiples of a power
/// of two, so that ranks that are a few steps apart still share some.
fn shared_steps(taken: &[Fingerprint]) -> Vec<FingerprintSample> {
    let mut shown = Vec::new();
    for of_one in taken.chunk_by(|a, b| a.optimizer == b.optimizer) {
        // Where steps are made between collectives, replicas are equal behind a collective only.
        let mixed = of_one.iter().any(|one| one.step > 0 && !one.synced);
        let kept = move |one: &&Fingerprint, stride| mixed && one.synced || one.step.is_multiple_of(stride);
        let shared = |stride: u64| of_one.iter().filter(move |one| kept(one, stride));
        let stride = (0..63).map(|power| 1 << power).find(|stride| shared(*stride).count() <= WEIGHTS);
        shown.extend(shared(stride.unwrap_or(1)).map(|one| FingerprintSample {
            optimizer: one.optimizer,
            step: one.step,
            shapes: one.shapes,
            lanes: one.lanes,
            sum: one.sum,
            scale: one.scale,
            finite: one.finite,
            synced: one.synced,
        }));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_loops_share_iterations_however_they_are_sampled() {
        let at = |train_iter: u64, every_ms: u64| Iteration {
            train_iter,
            at_ns: train_iter * every_ms * 1_000_000,
            ..Iteration::default()
        };
        let fast: Vec<Iteration> = (1_000..1_128).map(|i| at(i, 5)).collect();
        let list: Vec<u64> = thinned(&fast, 1_128 * 5_000_000).map(|i| i.train_iter).collect();
        assert_eq!(list, [1_008, 1_024, 1_040, 1_056, 1_072, 1_088, 1_104, 1_120]);
        let slow: Vec<Iteration> = (20..30).map(|i| at(i, 700)).collect();
        let list: Vec<u64> = thinned(&slow, 30 * 700_000_000).map(|i| i.train_iter).collect();
        assert_eq!(list, [22, 23, 24, 25, 26, 27, 28, 29]);
    }

    #[test]
    fn ranks_a_few_steps_apart_show_fingerprints_of_the_same_steps() {
        let ring = |from: u64, every: u64| -> Vec<Fingerprint> {
            let at = |place: u64| Fingerprint { step: from + place * every, ..Fingerprint::default() };
            (0..64).map(at).collect()
        };
        let steps = |ring: &[Fingerprint]| -> Vec<u64> {
            shared_steps(ring).iter().map(|sample| sample.step).collect()
        };
        assert_eq!(steps(&ring(0, 1)[..9]), (0..9).collect::<Vec<u64>>(), "the first ones in a row");
        for apart in 0..20 {
            let (a, b) = (steps(&ring(1_000, 1)), steps(&ring(1_000 + apart, 1)));
            assert!(a.len() <= WEIGHTS && b.iter().any(|step| a.contains(step)), "{a:?} {b:?}");
            // One of them takes fewer and has come as far as the other.
            let c = steps(&ring(552, 8));
            assert!(a.iter().any(|step| c.contains(step)), "{a:?} {c:?}");
        }
        let two: Vec<Fingerprint> = (0..2)
            .flat_map(|optimizer| ring(0, 2).into_iter().map(move |one| Fingerprint { optimizer, ..one }))
            .collect();
        assert_eq!(shared_steps(&two).iter().filter(|one| one.optimizer == 1).count(), 8);
    }

    #[test]
    fn equal_collectives_in_a_row_travel_as_one() {
        use crate::status_page::{Dtype, Op, Writer, monotonic_ns, tag};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        let mut writer = Writer::create(&path, 0, 0).unwrap();
        for iteration in 0..4u64 {
            writer.update(|body| body.train_iter = iteration);
            for _ in 0..10 {
                writer.enter(Op::AllReduce, tag("grad"), 9, 36, Dtype::F32, 0);
                writer.leave();
            }
            writer.enter(Op::AllReduce, tag("stats"), 1, 8, Dtype::I64, 0);
            writer.leave();
        }
        let view = crate::status_page::Reader::open(&path).unwrap().view().unwrap();
        let sample = view.sample(monotonic_ns() + 2_000_000_000);
        let runs: Vec<(u64, u64)> = sample.recent.iter().map(|run| (run.seq, run.more)).collect();
        assert_eq!(runs, [(1, 9), (11, 0), (12, 9), (22, 0), (23, 9), (33, 0), (34, 9), (44, 0)]);
        assert_eq!(sample.recent[6].chain, view.ring[42].chain, "of the last one");
        assert!(view.sample(monotonic_ns()).recent.is_empty(), "a rank that works need not be explained");
        assert_eq!(view.last_words(monotonic_ns()).recent.len(), 8, "one that has ended must be");
    }
}
