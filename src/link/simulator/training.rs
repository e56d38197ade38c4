//! Progress of a simulated training: pure functions of time, seed and faults.
//!
//! An iteration is: rollout, then [`GRADS`] gradient all-reduces, one comparison of fingerprints, one
//! exchange of statistics. A hanging fault stops its rank in the rollout, so that the others wait in the
//! first gradient all-reduce, as in a real group.

use super::{EVAL_EVERY, Fault, FaultKind, STEPS_PER_ITERATION, SimulatedCluster};
use rankdeck_proto::message::{
    CollectiveCall, CollectiveSample, Counters, Evaluation, FinishReason, IterationSample, PageSample, Phase,
    Returns,
};
use rankdeck_types::ids::{Generation, NodeRank, Rank};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// Gradient all-reduces per iteration.
pub(crate) const GRADS: u64 = 4;
const COLLECTIVES: u64 = GRADS + 2;
/// Part of an iteration at which the rollout ends; a slow rank's.
const ROLLOUT: f64 = 0.55;
const SLOW_ROLLOUT: f64 = 0.85;
/// Part of its speed that training loses to a slow rank.
const SLOWED: f64 = 0.25;
/// Usual wait of a rank in the collectives of an iteration, microseconds.
const USUAL_WAIT_US: u64 = 5_000;
/// Part of an iteration at which a hanging fault stops its rank.
const CAUGHT: f64 = 0.3;
/// Time from the last launch until all ranks have joined.
const JOIN: Duration = Duration::from_millis(400);

/// A generation of the simulated worker group.
#[derive(Debug, Clone, Default)]
pub(crate) struct SimGeneration {
    /// Current generation.
    pub generation: Generation,
    /// Hosts that were launched.
    pub launched: BTreeSet<NodeRank>,
    /// Time at which all ranks had joined.
    pub joined: Option<Instant>,
    /// Iterations done before this generation.
    pub first_iter: u64,
    /// Last iteration, and the reason of the end.
    pub end: Option<(u64, FinishReason)>,
    /// Latest checkpoint, in iterations.
    pub checkpoint: u64,
    /// Faults of all generations.
    pub faults: Vec<Fault>,
}

/// A hanging rank that all others wait for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Hang {
    pub rank: Rank,
    pub kind: FaultKind,
    /// Time since it hangs.
    pub age: Duration,
}

/// Position of the training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TrainingPoint {
    /// Completed iterations, including those of earlier generations.
    pub done: u64,
    /// Completed part of the current iteration.
    pub part: f64,
    /// The hanging rank, if any.
    pub hang: Option<Hang>,
}

impl SimGeneration {
    /// Records the launch of a host in `generation`.
    pub fn launch(
        &mut self,
        cluster: &SimulatedCluster,
        node: NodeRank,
        generation: Generation,
        resume: bool,
        now: Instant,
    ) {
        if generation > self.generation || (self.launched.is_empty() && self.joined.is_none()) {
            let checkpoint = if resume { self.checkpoint } else { 0 };
            let faults = std::mem::take(&mut self.faults);
            *self = SimGeneration {
                generation,
                first_iter: checkpoint,
                checkpoint,
                faults,
                ..SimGeneration::default()
            };
            self.end = end_by_budget(cluster);
        }
        if generation == self.generation {
            self.launched.insert(node);
            if self.launched.len() == cluster.nnodes as usize {
                self.joined.get_or_insert(now + JOIN);
            }
        }
    }

    /// Orders a clean stop: every rank exits at the end of the next iteration.
    pub(crate) fn stop_cleanly(&mut self, cluster: &SimulatedCluster, now: Instant) {
        let next = self.point(cluster, now).map_or(0, |point| point.done + 1);
        if self.end.is_none_or(|(end, _)| next < end) {
            self.end = Some((next, FinishReason::Stopped));
        }
    }

    /// Returns the position of the training; `None` before all ranks have joined.
    pub fn point(&self, cluster: &SimulatedCluster, now: Instant) -> Option<TrainingPoint> {
        let since = now.checked_duration_since(self.joined?)?;
        let period = cluster.iteration.as_secs_f64();
        let hangs = |fault: &&Fault| {
            fault.kind.hangs() && fault.target < cluster.world_size() && fault.generation == self.generation
        };
        let mut faults: Vec<&Fault> = self.faults.iter().filter(hangs).collect();
        faults.sort_by_key(|fault| fault.at);
        // Stalled time, and the time up to which it was counted: faults may overlap.
        let (mut lost, mut counted) = (Duration::ZERO, Duration::ZERO);
        let mut stood: Vec<(Duration, Duration)> = Vec::new();
        let mut hang = None;
        for fault in faults {
            let caught_at =
                Duration::from_secs_f64(((fault.at.as_secs_f64() / period).floor() + CAUGHT) * period);
            let Some(age) = since.checked_sub(caught_at) else { continue };
            let end = caught_at + fault.lasts.map_or(age, |lasts| age.min(lasts));
            lost += end.saturating_sub(counted.max(caught_at));
            stood.push((counted.max(caught_at), end));
            counted = counted.max(end);
            if fault.lasts.is_none_or(|lasts| age < lasts) {
                hang = hang.or(Some(Hang { rank: Rank(fault.target), kind: fault.kind, age }));
            }
        }
        // While training is stalled, a slow rank costs nothing.
        let slow: Duration =
            self.slow(cluster, since).iter().map(|(_, from, to)| outside(*from, *to, &stood)).sum();
        let trained = since.saturating_sub(lost).saturating_sub(slow.mul_f64(SLOWED)).as_secs_f64() / period;
        let done = self.first_iter + trained as u64;
        let done = self.end.map_or(done, |(end, _)| done.min(end.max(self.first_iter)));
        Some(TrainingPoint { done, part: trained.fract(), hang })
    }
}

impl SimGeneration {
    /// Ranks that were slow, from when to when, one after another.
    fn slow(&self, cluster: &SimulatedCluster, since: Duration) -> Vec<(Rank, Duration, Duration)> {
        let slows = |fault: &&Fault| {
            fault.kind == FaultKind::Slow
                && fault.target < cluster.world_size()
                && fault.generation == self.generation
                && fault.at < since
        };
        let mut faults: Vec<&Fault> = self.faults.iter().filter(slows).collect();
        faults.sort_by_key(|fault| fault.at);
        let mut counted = Duration::ZERO;
        let mut all = Vec::new();
        for fault in faults {
            let end = fault.lasts.map_or(since, |lasts| since.min(fault.at.saturating_add(lasts)));
            let from = fault.at.max(counted);
            if from < end {
                all.push((Rank(fault.target), from, end));
            }
            counted = counted.max(end);
        }
        all
    }

    /// Returns the rank that is slow now.
    pub(crate) fn slow_rank(&self, cluster: &SimulatedCluster, now: Instant) -> Option<Rank> {
        let since = now.checked_duration_since(self.joined?)?;
        self.slow(cluster, since).last().filter(|(_, _, to)| *to == since).map(|(rank, ..)| *rank)
    }

    /// Returns the start of the current iteration of a rank; ranks that wait for a slow one wait longer.
    pub fn iteration_sample(
        &self,
        cluster: &SimulatedCluster,
        rank: Rank,
        point: TrainingPoint,
        now: Instant,
    ) -> IterationSample {
        let age = cluster.iteration.mul_f64(point.part);
        let since = self.joined.and_then(|joined| now.checked_duration_since(joined)).unwrap_or_default();
        let slow = self.slow(cluster, since.saturating_sub(age));
        let waited =
            slow.iter().filter(|(slow, ..)| *slow != rank).map(|(_, from, to)| to.saturating_sub(*from));
        let waited = waited.sum::<Duration>().mul_f64(SLOW_ROLLOUT - ROLLOUT);
        IterationSample {
            train_iter: point.done,
            seq: point.done * COLLECTIVES,
            chain: 0,
            age_ms: age.as_millis() as u64,
            wait_us: point.done * USUAL_WAIT_US + waited.as_micros() as u64,
        }
    }
}

/// Returns the computing time of a rank by phase, in milliseconds; a slow one takes longer for its rollouts.
pub fn own_ms(
    sim: &SimGeneration,
    cluster: &SimulatedCluster,
    rank: Rank,
    point: TrainingPoint,
    now: Instant,
) -> Vec<u64> {
    let since = sim.joined.and_then(|joined| now.checked_duration_since(joined)).unwrap_or_default();
    let slow = sim.slow(cluster, since);
    let slow = slow.iter().filter(|(slow, ..)| *slow == rank).map(|(_, from, to)| to.saturating_sub(*from));
    let more = slow.sum::<Duration>().mul_f64(SLOW_ROLLOUT - ROLLOUT);
    let rollouts = point.done as f64 * ROLLOUT + point.part.min(ROLLOUT);
    let mut all = vec![0; Phase::Rollout as usize + 1];
    if let Some(rollout) = all.last_mut() {
        *rollout = (cluster.iteration.mul_f64(rollouts) + more).as_millis() as u64;
    }
    all
}

/// Returns the part of a time range outside of disjoint ranges.
fn outside(from: Duration, to: Duration, stood: &[(Duration, Duration)]) -> Duration {
    let inside = stood.iter().map(|(a, b)| to.min(*b).saturating_sub(from.max(*a)));
    to.saturating_sub(from).saturating_sub(inside.sum())
}

fn end_by_budget(cluster: &SimulatedCluster) -> Option<(u64, FinishReason)> {
    let per_iteration = STEPS_PER_ITERATION * u64::from(cluster.world_size());
    (cluster.total_steps > 0).then(|| (cluster.total_steps.div_ceil(per_iteration), FinishReason::Budget))
}

/// Returns the age of an active fault of this kind for the target.
pub(crate) fn in_force(sim: &SimGeneration, kind: FaultKind, target: u32, now: Instant) -> Option<Duration> {
    let since = now.checked_duration_since(sim.joined?)?;
    let of =
        |fault: &&Fault| fault.kind == kind && fault.target == target && fault.generation == sim.generation;
    sim.faults.iter().filter(of).find_map(|fault| {
        let age = since.checked_sub(fault.at)?;
        fault.lasts.is_none_or(|lasts| age < lasts).then_some(age)
    })
}

/// Returns a rank's counters after `iter` iterations.
pub fn counters(cluster: &SimulatedCluster, rank: Rank, iter: u64) -> Counters {
    let seed = cluster.seed ^ (u64::from(rank.0) << 32);
    let episodes = iter * (4 + mix(seed, 1) % 3);
    let mean = 500.0 * skill(iter);
    let count = 4 + mix(seed, 1) % 3;
    let spread = 15.0 * chance(seed, iter + 2);
    Counters {
        train_iter: iter,
        env_step: iter * STEPS_PER_ITERATION,
        samples: iter * STEPS_PER_ITERATION,
        episodes,
        duration_s: iter as f64 * cluster.iteration.as_secs_f64() * ROLLOUT * (0.95 + 0.1 * chance(seed, 3)),
        updates: iter * GRADS,
        returns: Returns {
            sum: mean * count as f64,
            count,
            min: (mean - spread).max(0.0),
            max: mean + spread,
        },
        return_last_100: None,
        sum: false,
    }
}

/// Returns the sum of the counters over all ranks.
pub fn totals(cluster: &SimulatedCluster, iter: u64) -> Counters {
    (0..cluster.world_size()).map(|rank| counters(cluster, Rank(rank), iter)).fold(
        Counters { train_iter: iter, updates: iter * GRADS, ..Counters::default() },
        |sum, own| Counters {
            env_step: sum.env_step + own.env_step,
            samples: sum.samples + own.samples,
            episodes: sum.episodes + own.episodes,
            duration_s: sum.duration_s + own.duration_s,
            returns: sum.returns.plus(own.returns),
            ..sum
        },
    )
}

/// Returns the evaluation after `iter` iterations.
pub fn evaluation(cluster: &SimulatedCluster, iter: u64) -> Evaluation {
    let mean = (500.0 * skill(iter) + 30.0 * (chance(cluster.seed, iter) - 0.5)).clamp(9.0, 500.0);
    let std = 40.0 * (1.0 - skill(iter)) + 2.0;
    Evaluation {
        env_step: iter * STEPS_PER_ITERATION * u64::from(cluster.world_size()),
        train_iter: iter,
        episodes: 20,
        return_mean: mean,
        return_std: std,
        return_min: (mean - 2.0 * std).max(8.0),
        return_max: (mean + 2.0 * std).min(500.0),
        length_mean: mean,
        duration_s: 0.2,
        ..Evaluation::default()
    }
}

/// Returns losses and other scalars.
pub fn scalars(cluster: &SimulatedCluster, iter: u64) -> [(&'static str, f64); 5] {
    let noise = chance(cluster.seed, iter ^ 0x5ca1) - 0.5;
    let left = 1.0 - skill(iter);
    [
        ("losses/policy_loss", -0.02 * left + 0.01 * noise),
        ("losses/value_loss", 40.0 * left + 4.0 + 2.0 * noise),
        ("losses/entropy", 0.69 * left.max(0.05)),
        ("losses/approx_kl", 0.008 + 0.004 * noise),
        ("charts/learning_rate", 2.5e-4),
    ]
}

fn skill(iter: u64) -> f64 {
    1.0 - (-(iter as f64) / 25.0).exp()
}

/// Returns the status page of a rank. The others wait for a slow rank in their first gradient all-reduce.
pub fn page(
    cluster: &SimulatedCluster,
    rank: Rank,
    point: Option<TrainingPoint>,
    slow: Option<Rank>,
) -> PageSample {
    let Some(point) = point else {
        return PageSample {
            phase: Phase::Rendezvous,
            phase_age_ms: 100,
            phase_progress: 0,
            heartbeat_age_ms: 10,
            train_iter: 0,
            env_step: 0,
            samples: 0,
            episodes: 0,
            updates: 0,
            ..PageSample::default()
        };
    };
    let period_ms = cluster.iteration.as_secs_f64() * 1000.0;
    let rollout_end = if slow == Some(rank) { SLOW_ROLLOUT } else { ROLLOUT };
    let learn_from = if slow.is_some() { SLOW_ROLLOUT } else { ROLLOUT };
    let hung = point.hang.filter(|hang| hang.rank == rank);
    let waits = point.hang.filter(|hang| hang.rank != rank);
    let own = counters(cluster, rank, point.done);
    let before = point.done * COLLECTIVES;
    // Ranks that wait for a hanging one are in the first gradient all-reduce.
    let (part, age_ms) = match (hung, waits) {
        (Some(hang), _) => (CAUGHT, hang.age.as_millis() as u64),
        (_, Some(hang)) => {
            let way_ms = (rollout_end - CAUGHT) * period_ms;
            let age = hang.age.as_millis() as f64;
            if age < way_ms { (CAUGHT + age / period_ms, 0) } else { (rollout_end, (age - way_ms) as u64) }
        }
        _ => (point.part, 0),
    };
    let learn = (part - learn_from) / (1.0 - learn_from);
    let (phase, entered, left) = if part < rollout_end {
        (Phase::Rollout, 0, 0)
    } else if waits.is_some() || part < learn_from {
        (Phase::Learn, 1, 0)
    } else {
        let entered = ((learn * COLLECTIVES as f64) as u64 + 1).min(COLLECTIVES);
        (if entered <= GRADS { Phase::Learn } else { Phase::Sync }, entered, entered - 1)
    };
    // Between iterations rank 0 evaluates inside the exchange of statistics.
    let phase = match phase {
        Phase::Sync if rank == Rank(0) && (point.done + 1).is_multiple_of(EVAL_EVERY) => Phase::Eval,
        phase => phase,
    };
    let tag = match entered {
        0 if point.done == 0 => "",
        0 | COLLECTIVES => "collect_stats",
        n if n <= GRADS => "grad",
        _ => "fingerprint",
    };
    PageSample {
        phase,
        phase_age_ms: age_ms
            .max(((part - if part < rollout_end { 0.0 } else { rollout_end }) * period_ms) as u64),
        phase_progress: point.done * 128 + (part * 128.0) as u64,
        heartbeat_age_ms: age_ms.max(5),
        train_iter: point.done,
        env_step: own.env_step + (part.min(rollout_end) / rollout_end * STEPS_PER_ITERATION as f64) as u64,
        samples: own.samples,
        episodes: own.episodes,
        updates: own.updates,
        collective: CollectiveSample {
            entered: before + entered,
            left: before + left,
            age_ms: age_ms.max(2),
            call: CollectiveCall {
                op: if before + entered == 0 { String::new() } else { "all_reduce".to_owned() },
                tag: tag.to_owned(),
                bytes: 38_924,
                dtype: "f32".to_owned(),
                ..CollectiveCall::default()
            },
            ..CollectiveSample::default()
        },
        ..PageSample::default()
    }
}

/// Returns a pseudorandom number for `key` (splitmix64's finalizer).
pub fn mix(seed: u64, key: u64) -> u64 {
    let mut z =
        seed.wrapping_add(key.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns a pseudorandom number in [0, 1) for `key`.
pub fn chance(seed: u64, key: u64) -> f64 {
    (mix(seed, key) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(faults: &[&str]) -> SimulatedCluster {
        SimulatedCluster {
            nnodes: 2,
            ranks_per_host: 2,
            gpus: false,
            seed: 1,
            total_steps: 0,
            iteration: Duration::from_millis(500),
            faults: faults.iter().map(|text| crate::simulator::parse_fault(text).unwrap()).collect(),
        }
    }

    fn joined(cluster: &SimulatedCluster) -> (SimGeneration, Instant) {
        let mut sim = SimGeneration { faults: cluster.faults.clone(), ..SimGeneration::default() };
        let now = Instant::now();
        sim.launch(cluster, NodeRank(0), Generation(0), false, now);
        assert_eq!(sim.point(cluster, now), None);
        sim.launch(cluster, NodeRank(1), Generation(0), false, now);
        let at = sim.joined.unwrap();
        (sim, at)
    }

    #[test]
    fn hanging_rank_stalls_all_and_is_one_collective_behind() {
        let cluster = cluster(&["freeze:2@3"]);
        let (sim, joined) = joined(&cluster);
        let before = sim.point(&cluster, joined + Duration::from_secs(3)).unwrap();
        assert_eq!((before.done, before.hang), (6, None));
        let during = sim.point(&cluster, joined + Duration::from_secs(60)).unwrap();
        assert_eq!(during.done, 6);
        let pages: Vec<PageSample> =
            (0..4).map(|rank| page(&cluster, Rank(rank), Some(during), None)).collect();
        assert_eq!(pages[2].collective.entered, pages[2].collective.left);
        for rank in [0, 1, 3] {
            let collective = &pages[rank].collective;
            assert_eq!(collective.entered, pages[2].collective.entered + 1, "waits one ahead");
            assert_eq!((collective.left, collective.call.tag.as_str()), (collective.entered - 1, "grad"));
            assert!(collective.age_ms > 50_000);
        }
    }

    #[test]
    fn temporary_fault_costs_its_duration() {
        let cluster = cluster(&["freeze:2@3+5"]);
        let (sim, joined) = joined(&cluster);
        let at = joined + Duration::from_secs(20);
        let late = sim.point(&cluster, at).unwrap();
        assert_eq!(late.hang, None);
        let without = SimGeneration { faults: Vec::new(), ..sim.clone() };
        assert_eq!(late.done + 10, without.point(&cluster, at).unwrap().done);
    }

    #[test]
    fn overlapping_faults_are_counted_once() {
        let cluster = cluster(&["freeze:2@3+2", "env:1@4+2", "freeze:0@10+1"]);
        let (sim, joined) = joined(&cluster);
        let at = joined + Duration::from_secs(20);
        let without = SimGeneration { faults: Vec::new(), ..sim.clone() };
        let lost = without.point(&cluster, at).unwrap().done - sim.point(&cluster, at).unwrap().done;
        assert_eq!(lost, 8, "4 s, 0.5 s each");
        let mut before = 0;
        for ms in (0..20_000).step_by(50) {
            let now = sim.point(&cluster, joined + Duration::from_millis(ms)).unwrap().done;
            assert!(now >= before, "progress is monotonic");
            before = now;
        }
    }

    #[test]
    fn slow_rank_costs_time_and_others_wait() {
        let cluster = cluster(&["slow:2@3+8", "freeze:0@5+2", "slow:2@6+2"]);
        let (sim, joined) = joined(&cluster);
        let (during, at) = (joined + Duration::from_millis(4_300), joined + Duration::from_secs(20));
        assert_eq!((sim.slow_rank(&cluster, during), sim.slow_rank(&cluster, at)), (Some(Rank(2)), None));
        let point = sim.point(&cluster, during).unwrap();
        let slow = page(&cluster, Rank(2), Some(TrainingPoint { part: 0.7, ..point }), Some(Rank(2)));
        let other = page(&cluster, Rank(1), Some(TrainingPoint { part: 0.7, ..point }), Some(Rank(2)));
        assert_eq!((slow.phase, other.phase), (Phase::Rollout, Phase::Learn));
        assert_eq!(other.collective.entered, slow.collective.entered + 1);
        let late = sim.point(&cluster, at).unwrap();
        let wait = |rank| sim.iteration_sample(&cluster, Rank(rank), late, at).wait_us;
        assert_eq!(wait(1) - wait(2), 2_400_000, "0.3 of 8 s");
        let without = SimGeneration { faults: Vec::new(), ..sim.clone() };
        let lost = without.point(&cluster, at).unwrap().done - late.done;
        assert_eq!(lost, 7, "2 s frozen, a quarter of the other 6 s");
        let mut before = 0;
        for ms in (0..20_000).step_by(50) {
            let now = sim.point(&cluster, joined + Duration::from_millis(ms)).unwrap().done;
            assert!(now >= before, "progress is monotonic");
            before = now;
        }
    }

    #[test]
    fn totals_are_the_sum_over_ranks() {
        let cluster = cluster(&[]);
        let total = totals(&cluster, 17);
        let sum: u64 = (0..4).map(|rank| counters(&cluster, Rank(rank), 17).episodes).sum();
        assert_eq!((total.episodes, total.env_step), (sum, 17 * 4 * STEPS_PER_ITERATION));
    }

    #[test]
    fn clean_stop_ends_all_ranks_at_one_iteration() {
        let cluster = cluster(&[]);
        let (mut sim, joined) = joined(&cluster);
        sim.checkpoint = 4;
        sim.stop_cleanly(&cluster, joined + Duration::from_millis(2600));
        assert_eq!(sim.end, Some((6, FinishReason::Stopped)));
        assert_eq!(sim.point(&cluster, joined + Duration::from_secs(60)).unwrap().done, 6);
        sim.launch(&cluster, NodeRank(0), Generation(1), true, joined);
        assert_eq!((sim.first_iter, sim.end, sim.joined), (4, None, None));
    }
}
