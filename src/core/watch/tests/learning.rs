//! Runs that learn alarm no one; runs that do not are named, with the checkpoint before.

use crate::event::Event;
use crate::reason::{RESTART, Reason};
use crate::report::{Severity, VerdictReport};
use crate::testkit::*;
use rankdeck_proto::message::*;
use rankdeck_types::experiment::OnStuck;
use std::collections::BTreeMap;

/// The return and the scalars of an iteration.
type Iteration = fn(u64) -> (f64, Vec<(&'static str, f64)>);

/// A run of 100 iterations of 1,000 steps each; `at` gives the return and the scalars of an iteration.
fn trained(
    c: &mut Cluster,
    iterations: std::ops::Range<u64>,
    at: impl Fn(u64) -> (f64, Vec<(&'static str, f64)>),
) {
    for i in iterations {
        let (value, scalars) = at(i);
        let returns = Returns { count: 2, sum: 2.0 * value, ..Returns::of(value) };
        let env_step = (i + 1) * 1_000;
        c.rank_event(
            0,
            RankEvent::Totals(Counters { train_iter: i + 1, env_step, returns, ..Counters::default() }),
        );
        let (values, not_finite): (Vec<_>, Vec<_>) =
            scalars.into_iter().partition(|(_, value): &(_, f64)| value.is_finite());
        c.rank_event(
            0,
            RankEvent::Scalars {
                train_iter: i + 1,
                env_step,
                values: values.into_iter().map(|(name, value)| (name.into(), value)).collect(),
                not_finite: not_finite
                    .into_iter()
                    .map(|(name, _)| (name.into(), 1))
                    .collect::<BTreeMap<_, _>>(),
            },
        );
    }
    c.pass(1_000);
    c.event(Event::Ticked);
}

fn ready() -> Cluster {
    let mut c = Cluster::launch(1);
    c.all_ready();
    c.core.model_mut().run.total_steps = Some(100_000);
    c
}

fn issues(c: &Cluster) -> Vec<&VerdictReport> {
    let of = |verdict: &&VerdictReport| verdict.verdict == crate::report::VerdictKind::Learning;
    c.model().verdicts.iter().filter(of).collect()
}

fn named(c: &Cluster) -> Vec<Reason> {
    issues(c).into_iter().map(|verdict| verdict.reason_code).collect()
}

/// A healthy run: the return grows, the entropy falls, losses and divergences stay small.
fn healthy(i: u64) -> (f64, Vec<(&'static str, f64)>) {
    let t = i as f64 / 100.0;
    let noise = (i * 7919 % 13) as f64 / 13.0;
    let value_loss = if i < 3 { 1e-6 } else { 30.0 + 400.0 * noise };
    let scalars = vec![
        ("losses/entropy", 0.69 * (-6.0 * t).exp()),
        ("losses/approx_kl", 0.002 + 0.05 * noise),
        ("losses/value_loss", value_loss),
        ("losses/explained_variance", if i == 0 { f64::NAN } else { 0.5 }),
    ];
    (20.0 + 450.0 * t + 10.0 * noise, scalars)
}

fn with(i: u64, name: &'static str, value: f64) -> (f64, Vec<(&'static str, f64)>) {
    let (at, mut scalars) = healthy(i);
    scalars.retain(|(known, _)| *known != name);
    scalars.push((name, value));
    (at, scalars)
}

#[test]
fn learning_run_is_not_reported() {
    let mut c = ready();
    for part in 0..10 {
        trained(&mut c, part * 10..part * 10 + 10, healthy);
        assert_eq!(named(&c), [], "after {part}");
    }
}

#[test]
fn low_entropy_of_solved_run_is_not_reported() {
    let mut c = ready();
    trained(&mut c, 0..100, |i| {
        let solved = i > 30;
        (
            if solved { 500.0 } else { 20.0 + 16.0 * i as f64 },
            vec![("losses/entropy", if solved { 1e-7 } else { 0.6 })],
        )
    });
    assert_eq!(named(&c), []);
}

#[test]
fn negative_density_entropy_is_not_reported() {
    let mut c = ready();
    trained(&mut c, 0..100, |i| (-1200.0 + i as f64, vec![("losses/entropy", 1.4 - 0.1 * i as f64)]));
    assert_eq!(named(&c), []);
}

#[test]
fn nan_series_is_critical_immediately() {
    let mut c = ready();
    c.core.model_mut().plan.as_mut().unwrap().experiment.watch.on_stuck = OnStuck::Stop;
    trained(&mut c, 0..20, healthy);
    let path = "runs/x/00015000.ckpt".to_string();
    let reason = "interval".to_string();
    c.rank_event(0, RankEvent::Checkpoint { path, env_step: 15_000, train_iter: 15, reason });
    trained(&mut c, 20..21, |i| with(i, "losses/value_loss", f64::NAN));
    let [verdict] = issues(&c)[..] else { panic!("{:?}", named(&c)) };
    assert_eq!((verdict.reason_code, verdict.severity), (Reason::Nan, Severity::Red));
    insta::assert_snapshot!("nan_series", verdict_text(verdict));
    let advice = &verdict.card.actions[0];
    assert!(advice.command.ends_with("--from runs/x/00015000.ckpt"), "{advice:?}");
    assert_eq!(advice.checkpoint(), Some("runs/x/00015000.ckpt"));
    // A checkpoint that is written after it began changes nothing.
    let (path, reason) = ("runs/x/00021000.ckpt".to_string(), "interval".to_string());
    c.rank_event(0, RankEvent::Checkpoint { path, env_step: 21_000, train_iter: 21, reason });
    trained(&mut c, 20..21, |i| with(i, "losses/value_loss", f64::NAN));
    let [verdict] = issues(&c)[..] else { panic!("{:?}", named(&c)) };
    let reported: Vec<Option<&str>> = verdict.card.actions.iter().map(|advice| advice.checkpoint()).collect();
    assert_eq!(reported[0], Some("runs/x/00015000.ckpt"), "never one that has the trouble in it");
    assert!(verdict.card.actions.iter().all(|advice| advice.text != RESTART.text), "{reported:?}");
    c.pass(700_000);
    c.event(Event::Ticked);
    assert!(c.stops(0).is_empty(), "no policy acts on it");
    trained(&mut c, 21..22, healthy);
    assert_eq!(named(&c), [], "a number came after it");
}

#[test]
fn nan_reward_is_reported_as_nan_return() {
    let mut c = ready();
    trained(&mut c, 0..10, healthy);
    trained(&mut c, 10..12, |i| (f64::NAN, healthy(i).1));
    assert_eq!(named(&c), [Reason::Nan]);
    assert!(issues(&c)[0].reason.contains("charts/episodic_return"));
}

#[test]
fn slow_degradation_is_a_warning() {
    let cases: [(Reason, Iteration); 4] = [
        (Reason::ValueDiverges, |i| with(i, "losses/value_loss", if i < 30 { 50.0 } else { 2e20 })),
        (Reason::KlBlowup, |i| with(i, "losses/approx_kl", if i < 50 { 0.005 } else { 0.4 })),
        (Reason::KlBlowup, |i| with(i, "losses/approx_kl", 3.0)),
        (Reason::EntropyCollapse, |i| {
            let collapsed = i > 8;
            let at = if collapsed { 9.4 } else { 20.0 + i as f64 };
            (at, vec![("losses/entropy", if collapsed { 1e-12 } else { 0.6 })])
        }),
    ];
    for (reason, at) in cases {
        let mut c = ready();
        trained(&mut c, 0..70, at);
        assert_eq!(named(&c), [reason]);
        assert_eq!(issues(&c)[0].severity, Severity::Amber);
    }
}

#[test]
fn no_learning_is_reported_after_half_the_steps() {
    let flat = |i: u64| (20.0 + (i % 5) as f64, vec![]);
    let mut c = ready();
    trained(&mut c, 0..45, flat);
    assert_eq!(named(&c), []);
    trained(&mut c, 45..75, flat);
    assert_eq!(named(&c), [Reason::NoLearning]);
    trained(&mut c, 75..100, |i| (200.0 + i as f64, vec![]));
    trained(&mut c, 100..190, |i| (300.0 + i as f64, vec![]));
    assert_eq!(named(&c), [], "it has learned since");
}

#[test]
fn falling_evaluations_are_reported() {
    let eval = |i: u64, return_mean: f64| {
        RankEvent::Eval(Evaluation {
            env_step: i * 1_000,
            train_iter: i,
            episodes: 20,
            return_mean,
            return_std: 20.0,
            return_min: return_mean - 30.0,
            return_max: return_mean + 30.0,
            length_mean: 100.0,
            duration_s: 1.0,
            ..Evaluation::default()
        })
    };
    let run = |means: &[f64]| {
        let mut c = ready();
        for (i, mean) in means.iter().enumerate() {
            c.rank_event(0, eval(i as u64 + 1, *mean));
        }
        c.pass(1_000);
        c.event(Event::Ticked);
        named(&c)
    };
    assert_eq!(run(&[20.0, 150.0, 400.0, 500.0, 90.0, 80.0, 100.0]), [Reason::EvalRegressed]);
    assert_eq!(run(&[20.0, 150.0, 85.0, 400.0, 120.0, 480.0, 90.0]), []);
    assert_eq!(run(&[20.0, 22.0, 30.0, 25.0, 21.0, 20.0, 22.0]), [], "noise");
}

/// Where a run begins at what it can reach (a checkpoint, an easy task), and long after it has learned, when
/// its first evaluations are kept no longer.
#[test]
fn wavering_evaluations_are_not_reported() {
    for (first, unwatched) in [(500.0, 0), (20.0, 10_100)] {
        let mut c = ready();
        let mut chance = 1_u64;
        for n in 0..unwatched + 500 {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let share = (chance >> 33) as f64 / (1_u64 << 31) as f64;
            let evaluation = Evaluation {
                env_step: (n + 1) * 1_000,
                return_mean: if n == 0 { first } else { 500.0 - 15.0 * share },
                return_std: 2.0,
                episodes: 10,
                ..Evaluation::default()
            };
            c.rank_event(0, RankEvent::Eval(evaluation));
            if n >= unwatched {
                c.event(Event::Ticked);
                assert!(named(&c).is_empty(), "after {n} evaluations: {:?}", issues(&c));
            }
        }
    }
}

#[test]
fn learning_checks_can_be_disabled() {
    let mut c = ready();
    c.core.model_mut().plan.as_mut().unwrap().experiment.watch.learning = false;
    trained(&mut c, 0..20, |i| with(i, "losses/value_loss", f64::NAN));
    assert_eq!(named(&c), []);
}

/// What Stable-Baselines3 logs of an iteration: its mean return, and minus the entropy.
fn logged(c: &mut Cluster, iterations: std::ops::Range<u64>, at: impl Fn(u64) -> (f64, f64)) {
    for i in iterations {
        let (value, entropy) = at(i);
        let values = [("rollout/ep_rew_mean", value), ("train/entropy_loss", -entropy)];
        c.rank_event(
            0,
            RankEvent::Scalars {
                train_iter: i + 1,
                env_step: (i + 1) * 1_000,
                values: values.map(|(name, value)| (name.into(), value)).into_iter().collect(),
                not_finite: BTreeMap::new(),
            },
        );
    }
    c.pass(1_000);
    c.event(Event::Ticked);
}

#[test]
fn stable_baselines_names_are_recognized() {
    let mut c = ready();
    logged(&mut c, 0..70, |i| if i > 8 { (9.4, 1e-12) } else { (20.0 + i as f64, 0.6) });
    assert_eq!(named(&c), [Reason::EntropyCollapse]);
    assert!(issues(&c)[0].reason.contains("train/entropy_loss"), "{}", issues(&c)[0].reason);
    let mut c = ready();
    logged(&mut c, 0..75, |i| (20.0 + (i % 5) as f64, 0.69));
    assert_eq!(named(&c), [Reason::NoLearning]);
    let mut c = ready();
    logged(&mut c, 0..75, |i| (20.0 + 3.0 * i as f64, 0.69 * (-0.02 * i as f64).exp()));
    assert_eq!(named(&c), [], "it learns");
    let mut c = ready();
    logged(&mut c, 0..75, |i| (20.0 + 3.0 * i as f64, 1.4 - 0.1 * i as f64));
    assert_eq!(named(&c), [], "the entropy of a density falls below 0");
}
