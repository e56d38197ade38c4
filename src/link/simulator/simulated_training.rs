//! How far a simulated training has come at a given moment: pure functions of time, seed and faults.
//!
//! An iteration is: rollout, then [`GRADS`] gradient all-reduces, one comparison of fingerprints, one
//! exchange of statistics. A hanging fault catches its rank in the rollout, so that the others wait in the
//! first gradient all-reduce:
//! what a real group does.

use super::chance::{chance, mix};
use super::fault::{Fault, FaultKind};
use super::scene::{EVAL_EVERY, STEPS_PER_ITERATION, Scene};
use rankdeck_proto::message::{
    CollectiveCall, CollectiveSample, Counters, Evaluation, FinishReason, IterationSample, PageSample, Phase,
    Returns,
};
use rankdeck_types::ids::{Generation, NodeRank, Rank};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// Gradient all-reduces per iteration.
pub const GRADS: u64 = 4;
const COLLECTIVES: u64 = GRADS + 2;
/// Part of an iteration at which the rollout ends; a slow rank's.
const ROLLOUT: f64 = 0.55;
const SLOW_ROLLOUT: f64 = 0.85;
/// Part of its speed that training loses to a slow rank.
const SLOWED: f64 = 0.25;
/// What a rank usually waits in the collectives of an iteration, microseconds.
const USUAL_WAIT_US: u64 = 5_000;
/// Part of an iteration at which a hanging fault catches its rank.
const CAUGHT: f64 = 0.3;
/// From the last launch to the moment when all ranks have joined.
const JOIN: Duration = Duration::from_millis(400);

/// One life of the simulated group.
#[derive(Debug, Clone, Default)]
pub struct Life {
    /// The generation that lives.
    pub generation: Generation,
    /// Hosts that were launched.
    pub launched: BTreeSet<NodeRank>,
    /// When all ranks were in the group.
    pub joined: Option<Instant>,
    /// Iterations done before this life.
    pub first_iter: u64,
    /// Training ends when so many iterations are done, for this reason.
    pub end: Option<(u64, FinishReason)>,
    /// Latest checkpoint, in iterations.
    pub checkpoint: u64,
    /// What goes wrong, of all generations.
    pub faults: Vec<Fault>,
}

/// A rank that holds all others up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hang {
    pub rank: Rank,
    /// What caught it.
    pub kind: FaultKind,
    /// For how long it has been hanging.
    pub age: Duration,
}

/// Where training is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moment {
    /// Iterations that are complete, those of earlier lives included.
    pub done: u64,
    /// Part of the present iteration.
    pub part: f64,
    /// The rank that holds it up.
    pub hang: Option<Hang>,
}

impl Life {
    /// A host was launched into `generation`.
    pub fn launch(
        &mut self,
        scene: &Scene,
        node: NodeRank,
        generation: Generation,
        resume: bool,
        now: Instant,
    ) {
        if generation > self.generation || (self.launched.is_empty() && self.joined.is_none()) {
            let checkpoint = if resume { self.checkpoint } else { 0 };
            let faults = std::mem::take(&mut self.faults);
            *self = Life { generation, first_iter: checkpoint, checkpoint, faults, ..Life::default() };
            self.end = end_by_budget(scene);
        }
        if generation == self.generation {
            self.launched.insert(node);
            if self.launched.len() == scene.nnodes as usize {
                self.joined.get_or_insert(now + JOIN);
            }
        }
    }

    /// A clean stop was ordered: every rank leaves at the end of the iteration after this one.
    pub fn stop_cleanly(&mut self, scene: &Scene, now: Instant) {
        let next = self.moment(scene, now).map_or(0, |moment| moment.done + 1);
        if self.end.is_none_or(|(end, _)| next < end) {
            self.end = Some((next, FinishReason::Stopped));
        }
    }

    /// Where training is; `None` before all ranks have joined.
    pub fn moment(&self, scene: &Scene, now: Instant) -> Option<Moment> {
        let since = now.checked_duration_since(self.joined?)?;
        let period = scene.iteration.as_secs_f64();
        let hangs = |fault: &&Fault| {
            fault.kind.hangs() && fault.target < scene.world_size() && fault.generation == self.generation
        };
        let mut faults: Vec<&Fault> = self.faults.iter().filter(hangs).collect();
        faults.sort_by_key(|fault| fault.at);
        // Time in which training stood still, and until when that has been counted: faults may overlap.
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
        // Where training stands still, a slow rank costs nothing.
        let slow: Duration =
            self.slow(scene, since).iter().map(|(_, from, to)| outside(*from, *to, &stood)).sum();
        let trained = since.saturating_sub(lost).saturating_sub(slow.mul_f64(SLOWED)).as_secs_f64() / period;
        let done = self.first_iter + trained as u64;
        let done = self.end.map_or(done, |(end, _)| done.min(end.max(self.first_iter)));
        Some(Moment { done, part: trained.fract(), hang })
    }
}

impl Life {
    /// Ranks that were slow, from when to when, one after another.
    fn slow(&self, scene: &Scene, since: Duration) -> Vec<(Rank, Duration, Duration)> {
        let slows = |fault: &&Fault| {
            fault.kind == FaultKind::Slow
                && fault.target < scene.world_size()
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

    /// The rank that is slow now.
    pub fn slow_rank(&self, scene: &Scene, now: Instant) -> Option<Rank> {
        let since = now.checked_duration_since(self.joined?)?;
        self.slow(scene, since).last().filter(|(_, _, to)| *to == since).map(|(rank, ..)| *rank)
    }

    /// How the present iteration began for a rank: who waits for a slow one waits longer.
    pub fn began(&self, scene: &Scene, rank: Rank, moment: Moment, now: Instant) -> IterationSample {
        let age = scene.iteration.mul_f64(moment.part);
        let since = self.joined.and_then(|joined| now.checked_duration_since(joined)).unwrap_or_default();
        let slow = self.slow(scene, since.saturating_sub(age));
        let waited =
            slow.iter().filter(|(slow, ..)| *slow != rank).map(|(_, from, to)| to.saturating_sub(*from));
        let waited = waited.sum::<Duration>().mul_f64(SLOW_ROLLOUT - ROLLOUT);
        IterationSample {
            train_iter: moment.done,
            seq: moment.done * COLLECTIVES,
            chain: 0,
            age_ms: age.as_millis() as u64,
            wait_us: moment.done * USUAL_WAIT_US + waited.as_micros() as u64,
        }
    }
}

/// Milliseconds that a rank has computed so far, by phase: a slow one takes longer for its rollouts.
pub fn own_ms(life: &Life, scene: &Scene, rank: Rank, moment: Moment, now: Instant) -> Vec<u64> {
    let since = life.joined.and_then(|joined| now.checked_duration_since(joined)).unwrap_or_default();
    let slow = life.slow(scene, since);
    let slow = slow.iter().filter(|(slow, ..)| *slow == rank).map(|(_, from, to)| to.saturating_sub(*from));
    let more = slow.sum::<Duration>().mul_f64(SLOW_ROLLOUT - ROLLOUT);
    let rollouts = moment.done as f64 * ROLLOUT + moment.part.min(ROLLOUT);
    let mut all = vec![0; Phase::Rollout as usize + 1];
    if let Some(rollout) = all.last_mut() {
        *rollout = (scene.iteration.mul_f64(rollouts) + more).as_millis() as u64;
    }
    all
}

/// How much of a time is in none of these, which do not overlap.
fn outside(from: Duration, to: Duration, stood: &[(Duration, Duration)]) -> Duration {
    let inside = stood.iter().map(|(a, b)| to.min(*b).saturating_sub(from.max(*a)));
    to.saturating_sub(from).saturating_sub(inside.sum())
}

fn end_by_budget(scene: &Scene) -> Option<(u64, FinishReason)> {
    let per_iteration = STEPS_PER_ITERATION * u64::from(scene.world_size());
    (scene.total_steps > 0).then(|| (scene.total_steps.div_ceil(per_iteration), FinishReason::Budget))
}

/// How long a fault of this kind has been in force for the target.
pub fn in_force(life: &Life, kind: FaultKind, target: u32, now: Instant) -> Option<Duration> {
    let since = now.checked_duration_since(life.joined?)?;
    let of =
        |fault: &&Fault| fault.kind == kind && fault.target == target && fault.generation == life.generation;
    life.faults.iter().filter(of).find_map(|fault| {
        let age = since.checked_sub(fault.at)?;
        fault.lasts.is_none_or(|lasts| age < lasts).then_some(age)
    })
}

/// A rank's own counters when `iter` iterations are done.
pub fn counters(scene: &Scene, rank: Rank, iter: u64) -> Counters {
    let seed = scene.seed ^ (u64::from(rank.0) << 32);
    let episodes = iter * (4 + mix(seed, 1) % 3);
    let mean = 500.0 * skill(iter);
    let count = 4 + mix(seed, 1) % 3;
    let spread = 15.0 * chance(seed, iter + 2);
    Counters {
        train_iter: iter,
        env_step: iter * STEPS_PER_ITERATION,
        samples: iter * STEPS_PER_ITERATION,
        episodes,
        duration_s: iter as f64 * scene.iteration.as_secs_f64() * ROLLOUT * (0.95 + 0.1 * chance(seed, 3)),
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

/// The sum over all ranks.
pub fn totals(scene: &Scene, iter: u64) -> Counters {
    (0..scene.world_size()).map(|rank| counters(scene, Rank(rank), iter)).fold(
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

/// An evaluation after `iter` iterations.
pub fn evaluation(scene: &Scene, iter: u64) -> Evaluation {
    let mean = (500.0 * skill(iter) + 30.0 * (chance(scene.seed, iter) - 0.5)).clamp(9.0, 500.0);
    let std = 40.0 * (1.0 - skill(iter)) + 2.0;
    Evaluation {
        env_step: iter * STEPS_PER_ITERATION * u64::from(scene.world_size()),
        train_iter: iter,
        episodes: 20,
        return_mean: mean,
        return_std: std,
        return_min: (mean - 2.0 * std).max(8.0),
        return_max: (mean + 2.0 * std).min(500.0),
        length_mean: mean,
        duration_s: 0.2,
        stop: false,
    }
}

/// Loss curves and the like.
pub fn scalars(scene: &Scene, iter: u64) -> [(&'static str, f64); 5] {
    let noise = chance(scene.seed, iter ^ 0x5ca1) - 0.5;
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

/// The status page of a rank; `None` before it has one. The others wait for a slow rank in their first
/// gradient all-reduce.
pub fn page(scene: &Scene, rank: Rank, moment: Option<Moment>, slow: Option<Rank>) -> PageSample {
    let Some(moment) = moment else {
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
    let period_ms = scene.iteration.as_secs_f64() * 1000.0;
    let rollout_end = if slow == Some(rank) { SLOW_ROLLOUT } else { ROLLOUT };
    let learn_from = if slow.is_some() { SLOW_ROLLOUT } else { ROLLOUT };
    let hung = moment.hang.filter(|hang| hang.rank == rank);
    let waits = moment.hang.filter(|hang| hang.rank != rank);
    let own = counters(scene, rank, moment.done);
    let before = moment.done * COLLECTIVES;
    // Whoever waits for a hanging rank has come to the first gradient all-reduce, which nobody can leave.
    let (part, age_ms) = match (hung, waits) {
        (Some(hang), _) => (CAUGHT, hang.age.as_millis() as u64),
        (_, Some(hang)) => {
            let way_ms = (rollout_end - CAUGHT) * period_ms;
            let age = hang.age.as_millis() as f64;
            if age < way_ms { (CAUGHT + age / period_ms, 0) } else { (rollout_end, (age - way_ms) as u64) }
        }
        _ => (moment.part, 0),
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
        Phase::Sync if rank == Rank(0) && (moment.done + 1).is_multiple_of(EVAL_EVERY) => Phase::Eval,
        phase => phase,
    };
    let tag = match entered {
        0 if moment.done == 0 => "",
        0 | COLLECTIVES => "collect_stats",
        n if n <= GRADS => "grad",
        _ => "fingerprint",
    };
    PageSample {
        phase,
        phase_age_ms: age_ms
            .max(((part - if part < rollout_end { 0.0 } else { rollout_end }) * period_ms) as u64),
        phase_progress: moment.done * 128 + (part * 128.0) as u64,
        heartbeat_age_ms: age_ms.max(5),
        train_iter: moment.done,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn scene(faults: &[&str]) -> Scene {
        Scene {
            nnodes: 2,
            ranks_per_host: 2,
            gpus: false,
            seed: 1,
            total_steps: 0,
            iteration: Duration::from_millis(500),
            faults: faults.iter().map(|text| super::super::fault::parse_fault(text).unwrap()).collect(),
        }
    }

    fn joined(scene: &Scene) -> (Life, Instant) {
        let mut life = Life { faults: scene.faults.clone(), ..Life::default() };
        let now = Instant::now();
        life.launch(scene, NodeRank(0), Generation(0), false, now);
        assert_eq!(life.moment(scene, now), None);
        life.launch(scene, NodeRank(1), Generation(0), false, now);
        let at = life.joined.unwrap();
        (life, at)
    }

    #[test]
    fn a_hanging_rank_stops_everybody_and_is_the_only_one_behind() {
        let scene = scene(&["freeze:2@3"]);
        let (life, joined) = joined(&scene);
        let before = life.moment(&scene, joined + Duration::from_secs(3)).unwrap();
        assert_eq!((before.done, before.hang), (6, None));
        let during = life.moment(&scene, joined + Duration::from_secs(60)).unwrap();
        assert_eq!(during.done, 6);
        let pages: Vec<PageSample> =
            (0..4).map(|rank| page(&scene, Rank(rank), Some(during), None)).collect();
        assert_eq!(pages[2].collective.entered, pages[2].collective.left);
        for rank in [0, 1, 3] {
            let collective = &pages[rank].collective;
            assert_eq!(collective.entered, pages[2].collective.entered + 1, "waits one ahead");
            assert_eq!((collective.left, collective.call.tag.as_str()), (collective.entered - 1, "grad"));
            assert!(collective.age_ms > 50_000);
        }
    }

    #[test]
    fn a_fault_that_passes_costs_its_duration() {
        let scene = scene(&["freeze:2@3+5"]);
        let (life, joined) = joined(&scene);
        let at = joined + Duration::from_secs(20);
        let late = life.moment(&scene, at).unwrap();
        assert_eq!(late.hang, None);
        let without = Life { faults: Vec::new(), ..life.clone() };
        assert_eq!(late.done + 10, without.moment(&scene, at).unwrap().done);
    }

    #[test]
    fn faults_one_after_another_and_over_each_other_cost_the_time_of_all_once() {
        let scene = scene(&["freeze:2@3+2", "env:1@4+2", "freeze:0@10+1"]);
        let (life, joined) = joined(&scene);
        let at = joined + Duration::from_secs(20);
        let without = Life { faults: Vec::new(), ..life.clone() };
        let lost = without.moment(&scene, at).unwrap().done - life.moment(&scene, at).unwrap().done;
        assert_eq!(lost, 8, "4 s, 0.5 s each");
        let mut before = 0;
        for ms in (0..20_000).step_by(50) {
            let now = life.moment(&scene, joined + Duration::from_millis(ms)).unwrap().done;
            assert!(now >= before, "training never goes back");
            before = now;
        }
    }

    #[test]
    fn a_slow_rank_costs_time_and_the_others_wait_for_it() {
        let scene = scene(&["slow:2@3+8", "freeze:0@5+2", "slow:2@6+2"]);
        let (life, joined) = joined(&scene);
        let (during, at) = (joined + Duration::from_millis(4_300), joined + Duration::from_secs(20));
        assert_eq!((life.slow_rank(&scene, during), life.slow_rank(&scene, at)), (Some(Rank(2)), None));
        let moment = life.moment(&scene, during).unwrap();
        let slow = page(&scene, Rank(2), Some(Moment { part: 0.7, ..moment }), Some(Rank(2)));
        let other = page(&scene, Rank(1), Some(Moment { part: 0.7, ..moment }), Some(Rank(2)));
        assert_eq!((slow.phase, other.phase), (Phase::Rollout, Phase::Learn));
        assert_eq!(other.collective.entered, slow.collective.entered + 1);
        let late = life.moment(&scene, at).unwrap();
        let wait = |rank| life.began(&scene, Rank(rank), late, at).wait_us;
        assert_eq!(wait(1) - wait(2), 2_400_000, "0.3 of 8 s");
        let without = Life { faults: Vec::new(), ..life.clone() };
        let lost = without.moment(&scene, at).unwrap().done - late.done;
        assert_eq!(lost, 7, "2 s frozen, a quarter of the other 6 s");
        let mut before = 0;
        for ms in (0..20_000).step_by(50) {
            let now = life.moment(&scene, joined + Duration::from_millis(ms)).unwrap().done;
            assert!(now >= before, "training never goes back");
            before = now;
        }
    }

    #[test]
    fn totals_are_the_sum_of_the_ranks() {
        let scene = scene(&[]);
        let total = totals(&scene, 17);
        let sum: u64 = (0..4).map(|rank| counters(&scene, Rank(rank), 17).episodes).sum();
        assert_eq!((total.episodes, total.env_step), (sum, 17 * 4 * STEPS_PER_ITERATION));
    }

    #[test]
    fn a_clean_stop_ends_at_one_iteration_for_all_and_restart_resumes() {
        let scene = scene(&[]);
        let (mut life, joined) = joined(&scene);
        life.checkpoint = 4;
        life.stop_cleanly(&scene, joined + Duration::from_millis(2600));
        assert_eq!(life.end, Some((6, FinishReason::Stopped)));
        assert_eq!(life.moment(&scene, joined + Duration::from_secs(60)).unwrap().done, 6);
        life.launch(&scene, NodeRank(0), Generation(1), true, joined);
        assert_eq!((life.first_iter, life.end, life.joined), (4, None, None));
    }
}
