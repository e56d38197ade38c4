//! Values that a restart discards are in no total, and in charts behind the present curve.

use crate::compare::ComparedRun;
use crate::event::Event;
use crate::model::{ChartMarkKind, Model};
use crate::run_summary::RunSummary;
use crate::series::Series;
use crate::testkit::*;
use rankdeck_proto::message::*;
use rankdeck_types::ids::Rank;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

const RETURN: &str = "charts/episodic_return";
const EVAL: &str = "charts/eval_return";
const SPS: &str = "charts/SPS";
const EARLY: &str = "/ck/early.ckpt";

/// Rank 0 reports an iteration of 100 steps per second, with these returns.
fn train(c: &mut Cluster, iterations: RangeInclusive<u64>, mean: f64) {
    for train_iter in iterations {
        c.pass(1_000);
        let env_step = train_iter * 100;
        let totals = Counters { train_iter, env_step, returns: Returns::of(mean), ..Counters::default() };
        c.rank_event(0, RankEvent::Totals(totals));
        c.rank_event(0, RankEvent::Eval(Evaluation { env_step, return_mean: mean, ..Evaluation::default() }));
        let values = BTreeMap::from([("loss".to_owned(), mean)]);
        c.rank_event(0, RankEvent::Scalars { train_iter, env_step, values, not_finite: BTreeMap::new() });
    }
}

/// Ten iterations with a return of 500 and a checkpoint after the fourth, then a restart.
fn restarted(hosts: usize, from: Option<&str>) -> Cluster {
    let mut c = Cluster::launch(hosts);
    c.all_ready();
    train(&mut c, 1..=4, 500.0);
    let (path, reason) = (EARLY.into(), "every".into());
    c.rank_event(0, RankEvent::Checkpoint { path, env_step: 400, train_iter: 4, reason });
    train(&mut c, 5..=10, 500.0);
    c.event(Event::restart(from.map(Into::into)));
    (0..hosts).for_each(|node| c.host_ends(node, true));
    assert_eq!(c.model().run.generation.0, 1);
    c
}

fn steps(series: &Series) -> Vec<u64> {
    series.points().iter().map(|point| point.place.step as u64).collect()
}

fn past(model: &Model, name: &str) -> Vec<(u32, usize)> {
    model.scalars[name].past().map(|(generation, points)| (generation.0, points.len())).collect()
}

/// The greatest value behind each figure that a run is judged by.
fn greatest(model: &Model) -> Vec<Option<f64>> {
    let summary = RunSummary::from_model(model, model_time());
    let compared = ComparedRun::from_model("r", model, model_time());
    let high = |name: &str| model.scalars.get(name)?.points().iter().map(|point| point.high).reduce(f64::max);
    vec![
        high(RETURN),
        high(EVAL),
        high("loss"),
        model.scalars[RETURN].last(),
        summary.best.map(|eval| eval.return_mean),
        summary.last_return,
        compared.best_return,
        compared.last_eval,
        compared.last_return,
    ]
}

fn model_time() -> rankdeck_types::ids::Timestamp {
    rankdeck_types::ids::Timestamp(100_000)
}

#[test]
fn scratch_restart_leaves_no_earlier_value_in_figures() {
    let mut c = restarted(1, None);
    let model = c.model();
    assert!(greatest(model).iter().all(Option::is_none), "{:?}", greatest(model));
    assert_eq!((&model.latest, &model.progress, model.evals.len()), (&None, &None, 0));
    assert_eq!(RunSummary::from_model(model, model_time()).env_step, None);
    train(&mut c, 1..=3, 20.0);
    let model = c.model();
    assert_eq!(greatest(model), vec![Some(20.0); 9]);
    for name in [RETURN, EVAL, "loss"] {
        assert_eq!((steps(&model.scalars[name]), past(model, name)), (vec![100, 200, 300], vec![(0, 10)]));
    }
    let summary = RunSummary::from_model(model, model_time());
    assert_eq!((summary.env_step, summary.evals), (Some(300), 3));
    let compared = ComparedRun::from_model("r", model, model_time());
    assert_eq!(compared.steps_per_s.map(f64::round), Some(100.0), "of the present line alone");
    assert!(compared.series[RETURN].points().iter().all(|point| point.place.generation.0 == 1));
}

#[test]
fn earlier_checkpoint_cuts_every_series_there() {
    let mut c = restarted(1, Some(EARLY));
    let model = c.model();
    // Before the generation has reported anything.
    for name in [RETURN, EVAL, "loss"] {
        assert_eq!(
            (steps(&model.scalars[name]), past(model, name)),
            (vec![100, 200, 300, 400], vec![(0, 6)])
        );
    }
    assert_eq!((model.evals.len(), &model.latest), (4, &None));
    let mark = model.marks.iter().find(|mark| matches!(mark.kind, ChartMarkKind::Generation(_))).unwrap();
    assert_eq!(mark.place.step, 400.0, "where it began");
    train(&mut c, 5..=6, 20.0);
    let series = &c.model().scalars["loss"];
    assert_eq!(steps(series), [100, 200, 300, 400, 500, 600]);
    let generations: Vec<u32> = series.points().iter().map(|point| point.place.generation.0).collect();
    assert_eq!(generations, [0, 0, 0, 0, 1, 1]);
    assert_eq!((c.model().evals.len(), series.last()), (6, Some(20.0)));
}

/// A script takes no checkpoint, or its steps are not those of the order.
#[test]
fn generation_that_repeats_steps_replaces_them() {
    let mut c = restarted(1, Some("/elsewhere/unknown.ckpt"));
    assert_eq!(past(c.model(), RETURN), [], "nothing is known yet");
    train(&mut c, 8..=9, 20.0);
    let model = c.model();
    for name in [RETURN, EVAL, "loss"] {
        assert_eq!(steps(&model.scalars[name]), [100, 200, 300, 400, 500, 600, 700, 800, 900], "{name}");
        assert_eq!(past(model, name), [(0, 3)], "{name}");
    }
    let best = model.evals.iter().filter(|eval| eval.env_step >= 800).map(|eval| eval.return_mean);
    assert!(best.eq([20.0, 20.0]), "{:?}", model.evals);
}

/// Hosts are read one after another, the one of rank 0 first or last.
#[test]
fn late_console_sees_the_same_line_in_any_order() {
    for from in [None, Some(EARLY), Some("/elsewhere/unknown.ckpt")] {
        let mut c = restarted(2, from);
        train(&mut c, 5..=7, 20.0);
        for first in [0, 1] {
            let mut other = c.attach();
            other.ready(first);
            other.ready(1 - first);
            for name in [RETURN, EVAL, SPS, "loss"] {
                assert_eq!(
                    other.model().scalars[name],
                    c.model().scalars[name],
                    "{name} from {from:?}, host {first} first"
                );
            }
            assert_eq!(other.model().evals, c.model().evals);
            assert_eq!(greatest(other.model()), greatest(c.model()));
        }
    }
}

#[test]
fn program_without_steps_counts_anew_from_scratch() {
    let reported = |value: f64| RecordEvent::Metrics {
        rank: Rank(0),
        source: "stdout".into(),
        env_step: None,
        values: BTreeMap::from([("loss".to_owned(), value), (RETURN.to_owned(), value)]),
        skipped: 0,
        spread: BTreeMap::new(),
        not_finite: BTreeMap::new(),
        counter: None,
        progress: None,
    };
    for (from, line) in [(None, vec![1, 2]), (Some(EARLY), vec![1, 2, 3, 4, 5])] {
        let mut c = Cluster::launch(1);
        c.all_ready();
        (0..3).for_each(|_| c.record(0, reported(500.0)));
        c.event(Event::restart(from.map(Into::into)));
        c.host_ends(0, true);
        assert_eq!(
            c.model().own.as_ref().and_then(|own| own.return_mean),
            None,
            "of the process that is gone"
        );
        (0..2).for_each(|_| c.record(0, reported(20.0)));
        assert_eq!(steps(&c.model().scalars["loss"]), line, "{from:?}");
    }
}

#[test]
fn speed_has_no_first_zero_and_starts_over() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    let totals = |train_iter: u64| Counters { train_iter, env_step: train_iter * 100, ..Counters::default() };
    c.rank_event(0, RankEvent::Totals(totals(1)));
    assert_eq!(c.model().latest.as_ref().unwrap().steps_per_s, None);
    assert!(!c.model().scalars.contains_key(SPS), "a rate that was not measured has no value");
    train(&mut c, 2..=10, 1.0);
    let speeds = c.model().scalars[SPS].points();
    assert!(speeds.iter().all(|point| (point.mean - 100.0).abs() < 1.0), "{speeds:?}");
    c.event(Event::restart(None));
    c.host_ends(0, true);
    train(&mut c, 1..=1, 1.0);
    assert_eq!(c.model().latest.as_ref().unwrap().steps_per_s, None, "of another generation");
}
