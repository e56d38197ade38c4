//! Remembers one rank between samples. All times are on the agent's monotonic clock.

use crate::compact::nameless;
use crate::watch::history::movement::{
    self, ChildCounters, ChildDelta, ProgressCounters, ProgressDelta, QuotaHistory,
};
use crate::watch::history::silence::{SilenceKind, SilenceModel};
use rankdeck_proto::message::{
    FingerprintPosition, FingerprintSample, HostSample, IterationSample, MainThread, NORMALIZERS, RankSample,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

/// Least time between two remembered samples, ms, and how many there are: differences are taken over two to
/// three seconds.
const STEP_MS: u64 = 500;
const STEPS: usize = 6;
/// Children remembered.
pub(crate) const CHILDREN: usize = 64;
/// Half seconds in a row that must have seen a stream: a tracker may send much at once.
const STREAMS: u32 = 4;
/// Weight of the latest moment in what helpers usually do.
const LATEST: f64 = 0.2;
/// Beginnings of iterations remembered.
const ITERATIONS: usize = 96;
/// Iterations over which a rank's present pace is taken.
const LATE: usize = 8;
/// Fingerprints of weights remembered of one optimizer, and how many optimizers.
const WEIGHTS: usize = 64;
const OPTIMIZERS: u32 = 8;

/// The history of one rank.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RankHistory {
    /// Clock of the latest sample.
    pub(crate) mono_ms: u64,
    /// Since when its collective counters stand still.
    counters: (u64, u64),
    counters_since: u64,
    stopped_since: Option<u64>,
    frozen_since: Option<u64>,
    blocked_since: Option<u64>,
    /// The latest silence, and whether something else explains it.
    quiet: (u64, bool),
    place: Option<SilenceKind>,
    /// The main thread at the latest sample, and at the latest one with counts of its connections.
    main: Option<(MainThread, MainThread)>,
    /// When its main thread was last seen to do something.
    acted_at: u64,
    /// Its longest pause that has ended by itself since its counters moved.
    longest_pause_ms: u64,
    /// Children that were there at the sample before its counters last moved, or at the one that showed it: the last
    /// moves of a rank and the death of its worker may lie between the two.
    veterans: BTreeSet<u32>,
    /// Those that had exited by the former and were not reaped.
    ended: BTreeSet<u32>,
    /// CPU share of its children and other threads while its counters moved, and bytes per second that the
    /// children moved then.
    usual_helpers: f64,
    usual_io: f64,
    /// What its connections had carried and when, and how many times in a row that was a stream.
    carried: Option<(u64, u64)>,
    streams: u32,
    past: VecDeque<ProgressCounters>,
    /// What its CPU quota has done.
    pub(crate) quota: QuotaHistory,
    /// Training iteration and updates when its counters last moved.
    pub(crate) at_collective: (u64, u64),
    /// Beginnings of iterations, oldest first.
    pub(crate) iterations: VecDeque<ObservedIteration>,
    /// They are steps of a script's optimizers, which its hook counts.
    #[serde(default)]
    guessed: bool,
    /// Steps of its optimizers, and its collectives when the latest one was made.
    #[serde(default)]
    pub(crate) stepped: (u64, u64),
    /// Since when its optimizers have made steps.
    #[serde(default)]
    stepped_since: Option<u64>,
    /// Fingerprints of weights by optimizer and position. Records of older builds have them by step, under
    /// another name; they are left out, and so are those of normalizers.
    #[serde(default)]
    weights_at: BTreeMap<(u32, FingerprintPosition), FingerprintSample>,
    /// Fingerprints of the running statistics of normalizers by position.
    #[serde(default)]
    normalizers_at: BTreeMap<FingerprintPosition, FingerprintSample>,
    seen: bool,
}

/// Makes `known` the set of these children; mostly it is already.
fn remember_pids<'a>(known: &mut BTreeSet<u32>, children: impl Iterator<Item = &'a ChildCounters> + Clone) {
    let pids = children.map(|child| child.pid);
    if pids.clone().count() != known.len() || !pids.clone().all(|pid| known.contains(&pid)) {
        *known = pids.collect();
    }
}

/// Collectives entered and left.
fn counters(sample: &RankSample) -> (u64, u64) {
    sample.page.as_ref().map_or((0, 0), |page| (page.collective.entered, page.collective.left))
}

/// Inside a collective.
pub(crate) fn inside(sample: &RankSample) -> bool {
    sample.page.as_ref().is_some_and(|page| page.collective.left < page.collective.entered)
}

impl RankHistory {
    /// A rank that has stood still for this long.
    #[cfg(test)]
    pub(crate) fn still(still_ms: u64) -> RankHistory {
        RankHistory { mono_ms: still_ms, ..RankHistory::default() }
    }

    /// Seconds per training iteration of late, and the share of them that it waited for other ranks.
    pub fn iteration(&self) -> Option<(f64, f64)> {
        let latest = self.iterations.back()?;
        let first = self.iterations.get(self.iterations.len().saturating_sub(LATE + 1))?;
        let iterations = latest.train_iter.checked_sub(first.train_iter).filter(|all| *all > 0)?;
        let ms = latest.at_ms.checked_sub(first.at_ms).filter(|all| *all > 0)? as f64;
        let waited_ms = latest.wait_us.saturating_sub(first.wait_us) as f64 / 1000.0;
        Some((ms / 1000.0 / iterations as f64, (waited_ms / ms).min(1.0)))
    }

    /// Each of its latest iterations, oldest first: seconds, and the share that it waited for other ranks.
    pub fn latest_iterations(&self) -> Vec<(f64, f64)> {
        let pairs = self.iterations.iter().zip(self.iterations.iter().skip(1));
        let each = pairs.filter_map(|(before, after)| {
            let iterations = after.train_iter.checked_sub(before.train_iter).filter(|all| *all > 0)? as f64;
            let ms = after.at_ms.checked_sub(before.at_ms).filter(|ms| *ms > 0)? as f64;
            let waited_ms = after.wait_us.saturating_sub(before.wait_us) as f64 / 1000.0;
            Some((ms / 1000.0 / iterations, (waited_ms / ms).min(1.0)))
        });
        each.collect()
    }

    /// Its iterations as a proof; `None` where they are the hook's guess.
    pub(crate) fn counted_iterations(&self) -> Option<CountedIterations<'_>> {
        CountedIterations::of(&self.iterations, self.guessed)
    }

    /// Takes a sample; what it learns about usual silences goes to `pace`.
    pub(crate) fn observe(&mut self, host: &HostSample, sample: &RankSample, pace: &mut SilenceModel) {
        let mono_ms = host.mono_ms;
        let counters = counters(sample);
        let children: Vec<ChildCounters> =
            sample.signals.children.iter().take(CHILDREN).map(ChildCounters::from).collect();
        if mono_ms < self.mono_ms {
            // Another clock: the host was rebooted.
            *self = RankHistory::default();
        }
        if !self.seen || counters != self.counters {
            self.counters = counters;
            self.counters_since = mono_ms;
            self.longest_pause_ms = 0;
            let before = self.past.back().map(|sample| sample.children.clone()).unwrap_or_default();
            self.learn_helpers(&before, &children);
            self.at_collective = sample.page.as_ref().map_or((0, 0), |page| (page.train_iter, page.updates));
        }
        // A process that had a core in between starts over.
        let ran = match (&self.main, &sample.signals.main) {
            (Some((before, _)), Some(now)) => before.turns != now.turns,
            (None, _) | (_, None) => false,
        };
        let since =
            |holds: bool, known: Option<u64>| holds.then(|| known.filter(|_| !ran).unwrap_or(mono_ms));
        let frozen = sample.signals.cgroup.as_ref().is_some_and(|cgroup| cgroup.frozen);
        self.stopped_since = since(matches!(sample.state, 'T' | 't'), self.stopped_since);
        self.frozen_since = since(frozen, self.frozen_since);
        self.blocked_since = since(sample.state == 'D', self.blocked_since);
        self.observe_silence(sample, pace);
        self.watch_main(mono_ms, sample);
        self.remember(mono_ms, sample, children);
        if let Some(page) = &sample.page {
            self.guessed = page.by_hook;
            if page.updates != self.stepped.0 {
                self.stepped = (page.updates, page.collective.entered);
            }
            if page.updates > 0 {
                self.stepped_since.get_or_insert(mono_ms);
            }
            for iteration in &page.iterations {
                self.begun(mono_ms, iteration);
            }
            page.fingerprints.iter().for_each(|taken| self.taken(taken));
        }
        self.mono_ms = mono_ms;
        self.seen = true;
    }

    fn observe_silence(&mut self, sample: &RankSample, pace: &mut SilenceModel) {
        let Some(age) = movement::silence(sample) else { return };
        let excused = self.stopped_since.is_some() || self.frozen_since.is_some() || inside(sample);
        let (before, explained) = self.quiet;
        if age >= before && before > 0 {
            self.quiet = (age, explained || excused);
        } else {
            if let (false, Some(place), true) = (explained, self.place, self.seen) {
                pace.learn(place, before);
            }
            self.quiet = (age, excused);
        }
        self.place = Some(SilenceKind::of(sample.page.as_ref(), sample.rank.0 == 0));
    }

    /// The program has moved since the sample `before`: what its helpers do meanwhile is usual. A child that has ended
    /// since then may have done so after the move.
    fn learn_helpers(&mut self, before: &[ChildCounters], children: &[ChildCounters]) {
        let ended = before.iter().filter(|child| matches!(child.state, 'Z' | 'X'));
        remember_pids(&mut self.ended, ended);
        let is_gone = |old: &&ChildCounters| !children.iter().any(|child| child.pid == old.pid);
        remember_pids(&mut self.veterans, children.iter().chain(before.iter().filter(is_gone)));
        let moved = self.moved();
        self.usual_helpers += LATEST * (moved.helpers - self.usual_helpers);
        self.usual_io += LATEST * (moved.helpers_io - self.usual_io);
    }

    fn watch_main(&mut self, mono_ms: u64, sample: &RankSample) {
        let main = sample.signals.main;
        let passed_ms = mono_ms.saturating_sub(self.mono_ms);
        let locked = sample.wchan.contains("futex");
        let streams = main.and_then(|now| now.net_bytes).is_some_and(|bytes| self.streams(mono_ms, bytes));
        let acted = match (&self.main, &main) {
            (Some((before, net)), Some(now)) => {
                movement::acted(before, now, passed_ms, locked) || movement::carried(net, now) || streams
            }
            (None, _) | (_, None) => true,
        };
        if acted {
            let pause_ms = mono_ms.saturating_sub(self.acted_at.max(self.counters_since));
            self.longest_pause_ms = self.longest_pause_ms.max(pause_ms);
            self.acted_at = mono_ms;
            if sample.page.is_none() {
                // The main thread itself made the children of these seconds, for what it does now.
                let before = self.past.front().map(|old| old.children.clone()).unwrap_or_default();
                self.learn_helpers(&before, &before);
            }
        }
        let net = self.main.map(|(_, net)| net);
        self.main = main.map(|now| (now, net.filter(|_| now.net_bytes.is_none()).unwrap_or(now)));
    }

    /// Its connections have carried a stream for a while. Samples between two polls of the agent repeat the
    /// former.
    fn streams(&mut self, at: u64, bytes: u64) -> bool {
        let (since, before) = *self.carried.get_or_insert((at, bytes));
        let passed_ms = at.saturating_sub(since);
        if passed_ms >= STEP_MS {
            let now = movement::streamed(before, bytes, passed_ms);
            self.streams = if now { self.streams.saturating_add(1) } else { 0 };
            self.carried = Some((at, bytes));
        }
        self.streams >= STREAMS
    }

    fn remember(&mut self, at: u64, sample: &RankSample, children: Vec<ChildCounters>) {
        // The newest sample is always kept. The next one replaces it while it is too close to the one before
        // it.
        let close = match (self.past.back(), self.past.iter().rev().nth(1)) {
            (Some(last), Some(before)) => last.at.saturating_sub(before.at) < STEP_MS,
            _ => false,
        };
        if close {
            self.past.pop_back();
        }
        let signals = &sample.signals;
        let cgroup = signals.cgroup.as_ref();
        self.quota.count(at, cgroup);
        self.past.push_back(ProgressCounters {
            at,
            cpu_ms: signals.cpu_ms,
            delay_ms: signals.delay_ms,
            io_bytes: signals.io_bytes,
            faults: signals.major_faults,
            periods: cgroup.map_or(0, |cgroup| cgroup.periods),
            throttled: cgroup.map_or(0, |cgroup| cgroup.throttled),
            throttled_ms: cgroup.map_or(0, |cgroup| cgroup.throttled_ms),
            oom_kills: cgroup.map_or(0, |cgroup| cgroup.oom_kills),
            memory_stall_ms: cgroup.map_or(0, |cgroup| cgroup.memory_stall_ms),
            limit_hits: cgroup.map_or(0, |cgroup| cgroup.limit_hits),
            main: signals.main,
            children,
            own_ms: sample.page.as_ref().map(|page| page.own_ms.clone()).unwrap_or_default(),
        });
        if self.past.len() > STEPS {
            self.past.pop_front();
        }
    }

    fn begun(&mut self, mono_ms: u64, iteration: &IterationSample) {
        let last = self.iterations.back().map(|started| started.train_iter);
        if last.is_some_and(|last| iteration.train_iter <= last) {
            return;
        }
        self.iterations.push_back(ObservedIteration {
            train_iter: iteration.train_iter,
            seq: iteration.seq,
            chain: iteration.chain,
            at_ms: mono_ms.saturating_sub(iteration.age_ms),
            wait_us: iteration.wait_us,
        });
        if self.iterations.len() > ITERATIONS {
            self.iterations.pop_front();
        }
    }

    /// Takes a fingerprint, by what it is of.
    pub(crate) fn taken(&mut self, taken: &FingerprintSample) {
        if taken.optimizer == NORMALIZERS {
            self.normalizers_at.insert(taken.place(), *taken);
            if self.normalizers_at.len() > WEIGHTS {
                self.normalizers_at.pop_first();
            }
        } else if taken.optimizer < OPTIMIZERS {
            self.weights_at.insert((taken.optimizer, taken.place()), *taken);
            let known = || self.weights(taken.optimizer, None).map(|(position, _)| position);
            let surplus = known().next().filter(|_| known().count() > WEIGHTS);
            if let Some(oldest) = surplus {
                self.weights_at.remove(&(taken.optimizer, oldest));
            }
        }
    }

    /// The numbers of optimizers whose weights are known.
    pub(crate) fn optimizers(&self) -> impl Iterator<Item = u32> {
        self.weights_at.keys().map(|(optimizer, _)| *optimizer)
    }

    /// An optimizer's weights after a position, in the order of positions; all for `None`.
    pub(crate) fn weights(
        &self,
        optimizer: u32,
        after: Option<FingerprintPosition>,
    ) -> impl DoubleEndedIterator<Item = (FingerprintPosition, &FingerprintSample)> {
        let from = match after {
            Some(after) => Bound::Excluded((optimizer, after)),
            None => Bound::Included((optimizer, FingerprintPosition::default())),
        };
        let upto = (optimizer, FingerprintPosition { seq: u64::MAX, steps: u64::MAX });
        let all = self.weights_at.range((from, Bound::Included(upto)));
        all.map(|((_, position), taken)| (*position, taken))
    }

    /// An optimizer's weights at a position.
    pub(crate) fn weights_at(&self, optimizer: u32, at: FingerprintPosition) -> Option<&FingerprintSample> {
        self.weights_at.get(&(optimizer, at))
    }

    /// Running statistics of normalizers after a position, in the order of positions; all for `None`.
    pub(crate) fn normalizers(
        &self,
        after: Option<FingerprintPosition>,
    ) -> impl Iterator<Item = FingerprintPosition> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.normalizers_at.range((from, Bound::Unbounded)).map(|(position, _)| *position)
    }

    /// Running statistics of normalizers at a position.
    pub(crate) fn normalizers_at(&self, at: FingerprintPosition) -> Option<&FingerprintSample> {
        self.normalizers_at.get(&at)
    }

    /// Milliseconds over which its collective counters have not moved.
    pub(crate) fn still_ms(&self) -> u64 {
        self.mono_ms.saturating_sub(self.counters_since)
    }

    /// Since when it has done nothing outside of collectives; `None` while it is inside of one, stopped or frozen.
    pub(crate) fn paused_since(&self) -> Option<u64> {
        let is_outside = self.seen && self.counters.0 <= self.counters.1;
        let is_held = self.stopped_since.is_some() || self.frozen_since.is_some();
        (is_outside && !is_held).then_some(self.acted_at.max(self.counters_since))
    }

    /// Milliseconds since the first step of its optimizers was seen; `None` before that.
    pub(crate) fn stepped_ms(&self) -> Option<u64> {
        self.stepped_since.map(|since| self.mono_ms.saturating_sub(since))
    }

    /// Milliseconds since its main thread was seen to do anything; `None` if the agent does not report it.
    pub(crate) fn idle_ms(&self) -> Option<u64> {
        self.main.map(|_| self.mono_ms.saturating_sub(self.acted_at))
    }

    /// The longest pause of its main thread that has ended by itself since its counters moved, ms.
    pub(crate) fn longest_pause_ms(&self) -> u64 {
        self.longest_pause_ms
    }

    /// Children that had ended already before its counters moved.
    pub(crate) fn ended_before(&self) -> &BTreeSet<u32> {
        &self.ended
    }

    /// Children that were there around the time its counters last moved: what it did then may need them.
    pub(crate) fn veterans(&self) -> &BTreeSet<u32> {
        &self.veterans
    }

    /// CPU share of its children and other threads while its counters moved.
    pub(crate) fn usual_helpers(&self) -> f64 {
        self.usual_helpers
    }

    /// Bytes per second that its children moved while its counters did.
    pub(crate) fn usual_io(&self) -> f64 {
        self.usual_io
    }

    /// Milliseconds for which its process has been seen stopped; `None` when it is not.
    pub(crate) fn stopped_ms(&self) -> Option<u64> {
        self.stopped_since.map(|since| self.mono_ms.saturating_sub(since))
    }

    /// Milliseconds for which its cgroup has been seen frozen.
    pub(crate) fn frozen_ms(&self) -> Option<u64> {
        self.frozen_since.map(|since| self.mono_ms.saturating_sub(since))
    }

    /// Milliseconds for which it has been seen in uninterruptible sleep in every sample.
    pub(crate) fn blocked_ms(&self) -> Option<u64> {
        self.blocked_since.map(|since| self.mono_ms.saturating_sub(since))
    }

    /// What moved lately.
    pub(crate) fn moved(&self) -> ProgressDelta {
        let (Some(old), Some(new)) = (self.past.front(), self.past.back()) else {
            return ProgressDelta::default();
        };
        let over_ms = new.at.saturating_sub(old.at);
        if over_ms == 0 {
            return ProgressDelta::default();
        }
        let periods = new.periods.saturating_sub(old.periods);
        let share = |ms: u64| ms as f64 / over_ms as f64;
        let nothing = ChildCounters::default();
        let child = |now: &ChildCounters| {
            let is_new = !self.veterans.contains(&now.pid);
            let before = old.children.iter().find(|child| child.pid == now.pid);
            before.or(is_new.then_some(&nothing)).map(|before| ChildDelta::between(before, now, is_new))
        };
        let children: Vec<ChildDelta> = new.children.iter().filter_map(child).collect();
        let cpu_ms = new.cpu_ms.saturating_sub(old.cpu_ms);
        let main = new.main.zip(old.main);
        let main_cpu = main.map(|(new, old)| share(new.cpu_us.saturating_sub(old.cpu_us)) / 1000.0);
        let below = share(children.iter().map(|child| child.cpu_ms).sum());
        ProgressDelta {
            over_ms,
            cpu: (new.cpu_ms > 0).then(|| share(cpu_ms)),
            main_cpu,
            main_io_bytes: main.map_or(0, |(new, old)| new.io_bytes.saturating_sub(old.io_bytes)),
            helpers_io: children.iter().map(|child| child.io_bytes).sum::<u64>() as f64 * 1000.0
                / over_ms as f64,
            helpers: below + main_cpu.map_or(0.0, |main| (share(cpu_ms) - main).max(0.0)),
            delayed: new.delay_ms.saturating_sub(old.delay_ms) as f64 / over_ms as f64,
            io_bytes: new.io_bytes.saturating_sub(old.io_bytes),
            memory_stalled: new.memory_stall_ms.saturating_sub(old.memory_stall_ms) as f64 / over_ms as f64,
            limit_hits_per_s: new.limit_hits.saturating_sub(old.limit_hits) as f64 * 1000.0 / over_ms as f64,
            faults_per_s: new.faults.saturating_sub(old.faults) as f64 * 1000.0 / over_ms as f64,
            throttled: (periods > 0).then(|| {
                let share_of_periods = new.throttled.saturating_sub(old.throttled) as f64 / periods as f64;
                // Only periods in which anything ran are counted, and one counts however short it was held.
                let held = share(new.throttled_ms.saturating_sub(old.throttled_ms));
                if new.throttled_ms > 0 { share_of_periods.min(held) } else { share_of_periods }
            }),
            oom_kills: new.oom_kills.saturating_sub(old.oom_kills),
            children,
            own_ms: new.own_ms.iter().zip(&old.own_ms).map(|(new, old)| new.saturating_sub(*old)).collect(),
        }
    }
}

/// The beginning of an iteration; `at_ms` is the agent's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct ObservedIteration {
    pub train_iter: u64,
    pub seq: u64,
    pub chain: u64,
    pub at_ms: u64,
    pub wait_us: u64,
}
nameless!(ObservedIteration { train_iter, seq, chain, at_ms, wait_us });

/// Iterations of a rank whose program counts them itself, oldest first: the only ones that prove anything.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CountedIterations<'a>(&'a VecDeque<ObservedIteration>);

impl<'a> CountedIterations<'a> {
    /// `None` where they are `guessed`: steps of a script's optimizers, which its hook counts.
    pub fn of(begun: &'a VecDeque<ObservedIteration>, guessed: bool) -> Option<CountedIterations<'a>> {
        (!guessed).then_some(CountedIterations(begun))
    }

    /// Their beginnings, oldest first.
    pub fn all(self) -> impl DoubleEndedIterator<Item = &'a ObservedIteration> {
        self.0.iter()
    }

    /// The beginning of one, if it is remembered.
    pub fn started(self, train_iter: u64) -> Option<&'a ObservedIteration> {
        // Most ranks report each iteration: its distance from the newest is that of their numbers.
        let newest = self.0.back()?.train_iter;
        let back = usize::try_from(newest.checked_sub(train_iter)?).ok()?;
        let there = |at: usize| self.0.get(at).filter(|started| started.train_iter == train_iter);
        let guessed = (self.0.len() - 1).checked_sub(back).and_then(there);
        let search = || self.0.binary_search_by_key(&train_iter, |started| started.train_iter).ok();
        guessed.or_else(|| there(search()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::TimeLimits;
    use crate::testkit::rank_sample;
    use rankdeck_proto::message::{CgroupSample, ChildSample, Phase};

    fn at(mono_ms: u64) -> HostSample {
        HostSample { mono_ms, ..HostSample::default() }
    }

    #[test]
    fn stopped_time_counts_from_first_sample() {
        let (mut track, mut pace) = (RankHistory::default(), SilenceModel::default());
        let mut sample = rank_sample(0);
        track.observe(&at(1_000), &sample, &mut pace);
        assert_eq!(track.stopped_ms(), None);
        sample.state = 'T';
        track.observe(&at(1_500), &sample, &mut pace);
        track.observe(&at(2_600), &sample, &mut pace);
        assert_eq!(track.stopped_ms(), Some(1_100));
        sample.state = 'S';
        track.observe(&at(3_000), &sample, &mut pace);
        assert_eq!(track.stopped_ms(), None);
    }

    #[test]
    fn ended_pauses_are_learned_stops_are_not() {
        let limits = TimeLimits {
            grace: 0,
            stop: 0,
            lost: 5_000,
            behind: 5_000,
            init: 120_000,
            rank0: 600_000,
            silence: None,
        };
        let place = SilenceKind { phase: Some(Phase::Rollout), first: true, cold: false };
        let (mut track, mut pace) = (RankHistory::default(), SilenceModel::default());
        let mut clock = 0;
        let mut observe = |pace: &mut SilenceModel, age: u64, state: char| {
            let mut sample = rank_sample(0);
            sample.state = state;
            sample.page.as_mut().unwrap().heartbeat_age_ms = age;
            clock += 500;
            track.observe(&at(clock), &sample, pace);
        };
        for _ in 0..40 {
            for (age, state) in [(10, 'S'), (7_000, 'T'), (20, 'S')] {
                observe(&mut pace, age, state);
            }
        }
        assert_eq!(pace.threshold(place, &limits).stuck, 5_000);
        for _ in 0..40 {
            observe(&mut pace, 3_000, 'S');
            observe(&mut pace, 10, 'S');
        }
        assert!(pace.threshold(place, &limits).stuck > 14_000);
    }

    #[test]
    fn differences_are_taken_over_seconds() {
        let (mut track, mut pace) = (RankHistory::default(), SilenceModel::default());
        let mut sample = rank_sample(0);
        for step in 0..20u64 {
            sample.signals.cpu_ms = 1_000 + step * 125;
            sample.signals.children =
                vec![ChildSample { pid: 7, cpu_ms: step * 10, ..ChildSample::default() }];
            let cgroup = CgroupSample { periods: step * 10, throttled: step * 9, ..CgroupSample::default() };
            sample.signals.cgroup = Some(cgroup);
            track.observe(&at(1_000 + step * 250), &sample, &mut pace);
        }
        let moved = track.moved();
        assert!((2_000..=3_000).contains(&moved.over_ms), "{moved:?}");
        assert!((moved.cpu.unwrap() - 0.5).abs() < 0.01 && (moved.throttled.unwrap() - 0.9).abs() < 0.01);
        assert_eq!((moved.children.len(), moved.children[0].cpu_ms * 25), (1, moved.over_ms));
    }

    #[test]
    fn clock_going_back_resets_history() {
        let (mut track, mut pace) = (RankHistory::default(), SilenceModel::default());
        let sample = rank_sample(0);
        track.observe(&at(900_000), &sample, &mut pace);
        track.observe(&at(910_000), &sample, &mut pace);
        assert_eq!(track.still_ms(), 10_000);
        track.observe(&at(500), &sample, &mut pace);
        assert_eq!(track.still_ms(), 0);
    }
}
