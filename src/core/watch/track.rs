//! What is remembered of a rank between samples. All times are on the agent's monotonic clock.

use super::pace::{Pace, SilenceKind};
use rankdeck_proto::message::{HostSample, IterationSample, RankSample};
use std::collections::VecDeque;

/// Least time between two remembered samples, ms, and how many there are: differences are taken over two to
/// three seconds.
const STEP_MS: u64 = 500;
const STEPS: usize = 6;
/// Beginnings of iterations remembered.
const ITERATIONS: usize = 96;

/// What the watch remembers of one rank's samples.
#[derive(Debug, Clone, Default)]
pub struct Track {
    /// Clock of the latest sample.
    pub(super) mono_ms: u64,
    /// Since when its collective counters stand still.
    counters: (u64, u64),
    counters_since: u64,
    stopped_since: Option<u64>,
    frozen_since: Option<u64>,
    blocked_since: Option<u64>,
    /// The latest silence, and whether something else explains it.
    quiet: (u64, bool),
    place: Option<SilenceKind>,
    past: VecDeque<Gauges>,
    /// Training iteration and updates when its counters last moved.
    pub(super) at_collective: (u64, u64),
    /// Beginnings of iterations, oldest first.
    pub(super) iterations: VecDeque<IterationStart>,
    seen: bool,
}

/// The beginning of an iteration; `at_ms` is the agent's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IterationStart {
    pub train_iter: u64,
    pub seq: u64,
    pub chain: u64,
    pub at_ms: u64,
    pub wait_us: u64,
}

/// Counters whose differences matter.
#[derive(Debug, Clone, Default)]
struct Gauges {
    at: u64,
    cpu_ms: u64,
    delay_ms: u64,
    io_bytes: u64,
    faults: u64,
    periods: u64,
    throttled: u64,
    oom_kills: u64,
    children: Vec<(u32, u64)>,
    own_ms: Vec<u64>,
}

/// What moved over the latest two to three seconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Movement {
    /// Over how long, ms; 0 while there is only one sample.
    pub over_ms: u64,
    /// Own CPU share of one core, 0..; `None` when the agent does not tell.
    pub cpu: Option<f64>,
    /// Share of the time in which its main thread waited for a core, 0 to 1.
    pub delayed: f64,
    /// Storage, bytes.
    pub io_bytes: u64,
    /// Major page faults per second.
    pub faults_per_s: f64,
    /// Share of throttled periods; `None` without a quota.
    pub throttled: Option<f64>,
    /// Out-of-memory kills in its cgroup.
    pub oom_kills: u64,
    /// CPU of its children, ms.
    pub children_cpu_ms: u64,
    /// Children that were there all the time.
    pub children: usize,
    /// Milliseconds in each phase, collectives excluded.
    pub own_ms: Vec<u64>,
}

/// Collectives entered and left.
fn counters(sample: &RankSample) -> (u64, u64) {
    sample.page.as_ref().map_or((0, 0), |page| (page.collective.entered, page.collective.left))
}

/// Milliseconds without a sign of life from the program, `None` when it gives none.
pub(super) fn silence(sample: &RankSample) -> Option<u64> {
    sample.page.as_ref().map(|page| page.heartbeat_age_ms)
}

/// Inside a collective.
pub(super) fn inside(sample: &RankSample) -> bool {
    sample.page.as_ref().is_some_and(|page| page.collective.left < page.collective.entered)
}

impl Track {
    /// Takes a sample; what it learns about usual silences goes to `pace`.
    pub(super) fn observe(&mut self, host: &HostSample, sample: &RankSample, pace: &mut Pace) {
        let mono_ms = host.mono_ms;
        let counters = counters(sample);
        if mono_ms < self.mono_ms {
            // Another clock: a host that was booted anew.
            *self = Track::default();
        }
        if !self.seen || counters != self.counters {
            self.counters = counters;
            self.counters_since = mono_ms;
            self.at_collective = sample.page.as_ref().map_or((0, 0), |page| (page.train_iter, page.updates));
        }
        let since = |holds: bool, known: Option<u64>| holds.then(|| known.unwrap_or(mono_ms));
        let frozen = sample.signals.cgroup.as_ref().is_some_and(|cgroup| cgroup.frozen);
        self.stopped_since = since(matches!(sample.state, 'T' | 't'), self.stopped_since);
        self.frozen_since = since(frozen, self.frozen_since);
        self.blocked_since = since(sample.state == 'D', self.blocked_since);
        self.listen(sample, pace);
        self.remember(mono_ms, sample);
        if let Some(page) = &sample.page {
            for iteration in &page.iterations {
                self.begun(mono_ms, iteration);
            }
        }
        self.mono_ms = mono_ms;
        self.seen = true;
    }

    fn listen(&mut self, sample: &RankSample, pace: &mut Pace) {
        let Some(age) = silence(sample) else { return };
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

    fn remember(&mut self, at: u64, sample: &RankSample) {
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
        self.past.push_back(Gauges {
            at,
            cpu_ms: signals.cpu_ms,
            delay_ms: signals.delay_ms,
            io_bytes: signals.io_bytes,
            faults: signals.major_faults,
            periods: cgroup.map_or(0, |cgroup| cgroup.periods),
            throttled: cgroup.map_or(0, |cgroup| cgroup.throttled),
            oom_kills: cgroup.map_or(0, |cgroup| cgroup.oom_kills),
            children: signals.children.iter().take(64).map(|child| (child.pid, child.cpu_ms)).collect(),
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
        self.iterations.push_back(IterationStart {
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

    /// Milliseconds over which its collective counters have not moved.
    pub(super) fn still_ms(&self) -> u64 {
        self.mono_ms.saturating_sub(self.counters_since)
    }

    /// Milliseconds for which its process has been seen stopped; `None` when it is not.
    pub(super) fn stopped_ms(&self) -> Option<u64> {
        self.stopped_since.map(|since| self.mono_ms.saturating_sub(since))
    }

    /// Milliseconds for which its cgroup has been seen frozen.
    pub(super) fn frozen_ms(&self) -> Option<u64> {
        self.frozen_since.map(|since| self.mono_ms.saturating_sub(since))
    }

    /// Milliseconds for which it has been seen in uninterruptible sleep at every look.
    pub(super) fn blocked_ms(&self) -> Option<u64> {
        self.blocked_since.map(|since| self.mono_ms.saturating_sub(since))
    }

    /// What moved lately.
    pub(super) fn moved(&self) -> Movement {
        let (Some(old), Some(new)) = (self.past.front(), self.past.back()) else {
            return Movement::default();
        };
        let over_ms = new.at.saturating_sub(old.at);
        if over_ms == 0 {
            return Movement::default();
        }
        let periods = new.periods.saturating_sub(old.periods);
        let known = |pid: u32| old.children.iter().find(|child| child.0 == pid).map(|child| child.1);
        let children: Vec<u64> = new
            .children
            .iter()
            .filter_map(|(pid, cpu)| known(*pid).map(|before| cpu.saturating_sub(before)))
            .collect();
        Movement {
            over_ms,
            cpu: (new.cpu_ms > 0).then(|| new.cpu_ms.saturating_sub(old.cpu_ms) as f64 / over_ms as f64),
            delayed: new.delay_ms.saturating_sub(old.delay_ms) as f64 / over_ms as f64,
            io_bytes: new.io_bytes.saturating_sub(old.io_bytes),
            faults_per_s: new.faults.saturating_sub(old.faults) as f64 * 1000.0 / over_ms as f64,
            throttled: (periods > 0)
                .then(|| new.throttled.saturating_sub(old.throttled) as f64 / periods as f64),
            oom_kills: new.oom_kills.saturating_sub(old.oom_kills),
            children_cpu_ms: children.iter().sum(),
            children: children.len(),
            own_ms: new.own_ms.iter().zip(&old.own_ms).map(|(new, old)| new.saturating_sub(*old)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Limits;
    use crate::testkit::rank_sample;
    use rankdeck_proto::message::{CgroupSample, ChildSample, Phase};

    fn at(mono_ms: u64) -> HostSample {
        HostSample { mono_ms, ..HostSample::default() }
    }

    #[test]
    fn a_stop_is_counted_from_its_first_sample_and_ends() {
        let (mut track, mut pace) = (Track::default(), Pace::default());
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
    fn pauses_are_learnt_when_they_end_and_stops_are_not() {
        let limits = Limits { grace: 0, lost: 5_000, behind: 5_000, init: 120_000, rank0: 600_000 };
        let place = SilenceKind { phase: Some(Phase::Rollout), first: true, cold: false };
        let (mut track, mut pace) = (Track::default(), Pace::default());
        let mut clock = 0;
        let mut hear = |pace: &mut Pace, age: u64, state: char| {
            let mut sample = rank_sample(0);
            sample.state = state;
            sample.page.as_mut().unwrap().heartbeat_age_ms = age;
            clock += 500;
            track.observe(&at(clock), &sample, pace);
        };
        for _ in 0..40 {
            for (age, state) in [(10, 'S'), (7_000, 'T'), (20, 'S')] {
                hear(&mut pace, age, state);
            }
        }
        assert_eq!(pace.threshold(place, &limits).stuck, 5_000);
        for _ in 0..40 {
            hear(&mut pace, 3_000, 'S');
            hear(&mut pace, 10, 'S');
        }
        assert!(pace.threshold(place, &limits).stuck > 14_000);
    }

    #[test]
    fn differences_are_taken_over_seconds() {
        let (mut track, mut pace) = (Track::default(), Pace::default());
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
        assert_eq!((moved.children, moved.children_cpu_ms * 25), (1, moved.over_ms));
    }

    #[test]
    fn a_clock_that_goes_back_begins_anew() {
        let (mut track, mut pace) = (Track::default(), Pace::default());
        let sample = rank_sample(0);
        track.observe(&at(900_000), &sample, &mut pace);
        track.observe(&at(910_000), &sample, &mut pace);
        assert_eq!(track.still_ms(), 10_000);
        track.observe(&at(500), &sample, &mut pace);
        assert_eq!(track.still_ms(), 0);
    }
}
