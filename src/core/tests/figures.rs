//! The figures that a screen shows: how late they are, and values that are no numbers.

use crate::event::Event;
use crate::model::MarkKind;
use crate::testkit::*;
use rankdeck_proto::message::*;
use rankdeck_types::ids::Rank;
use std::collections::BTreeMap;

fn metrics(env_step: u64, values: &[(&str, f64)], broken: &[(&str, u64)]) -> RecordEvent {
    RecordEvent::Metrics {
        rank: Rank(0),
        source: "stdout".into(),
        env_step: Some(env_step),
        values: values.iter().map(|(name, value)| (name.to_string(), *value)).collect(),
        skipped: 0,
        spread: BTreeMap::new(),
        not_finite: broken.iter().map(|(name, count)| (name.to_string(), *count)).collect::<BTreeMap<_, _>>(),
    }
}

#[test]
fn values_that_are_not_numbers_reach_their_series_and_are_counted() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    c.record(0, metrics(100, &[("loss", 0.5), ("kl", 0.1)], &[]));
    c.record(0, metrics(200, &[("kl", 0.2)], &[("loss", 7), ("kl", 1)]));
    let series = |name: &str| c.model().scalars[name].clone();
    assert!(series("loss").last().is_some_and(f64::is_nan), "the newest value is no number");
    assert_eq!((series("loss").not_finite(), series("loss").not_finite_since()), (7, 200.0));
    assert_eq!((series("kl").last(), series("kl").not_finite()), (Some(0.2), 1), "a number came after it");
    c.record(0, metrics(300, &[], &[("only", 2)]));
    assert_eq!(
        (c.model().scalars["only"].points().len(), c.model().scalars["only"].reach()),
        (0, Some(300.0))
    );
}

#[test]
fn the_latest_totals_need_no_other_rank_and_know_how_often_they_come() {
    let mut c = Cluster::launch(2);
    c.all_ready();
    let totals = |train_iter: u64| Counters { train_iter, env_step: train_iter * 400, ..Counters::default() };
    for (train_iter, pause) in [(1, 1_000), (2, 4_000), (3, 2_000)] {
        c.pass(pause);
        c.rank_said(0, RankEvent::Totals(totals(train_iter)));
    }
    assert_eq!(c.model().progress, None, "no rank has told its own counters");
    let latest = c.model().latest.clone().unwrap();
    assert_eq!(latest.counters.env_step, 1_200);
    assert!((3_000..4_600).contains(&latest.gap_ms), "the longest of late: {}", latest.gap_ms);
    c.rank_said(0, RankEvent::Totals(totals(1)));
    assert_eq!(c.model().latest.as_ref().unwrap().gap_ms, 0, "a generation that begins anew");
}

/// Counters of a rank that all-reduces none.
fn own(train_iter: u64, env_step: u64) -> RankEvent {
    RankEvent::Counters(Counters { train_iter, env_step, sum: true, ..Counters::default() })
}

/// JOIN-3
#[test]
fn counters_that_nobody_reduces_are_added_up_and_told_as_a_sum() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    let steps = |c: &Cluster| c.model().progress.as_ref().map(|progress| progress.totals.env_step);
    c.rank_said(0, own(1, 100));
    assert_eq!(steps(&c), None, "rank 1 has told nothing");
    c.rank_said(1, own(1, 90));
    assert_eq!(steps(&c), Some(190));
    // Ranks go at paces of their own: a rank that is ahead waits for a second at most.
    c.rank_said(0, own(2, 200));
    assert_eq!(steps(&c), Some(190));
    c.pass(1_100);
    c.rank_said(0, own(3, 300));
    assert_eq!(steps(&c), Some(390));
    c.rank_said(1, own(2, 180));
    let progress = c.model().progress.clone().unwrap();
    assert!(progress.consistent && !progress.reduced);
    assert_eq!(progress.per_rank.iter().map(|rank| rank.env_step).sum::<u64>(), progress.totals.env_step);
    assert!(c.model().verdicts.is_empty());
}

#[test]
fn the_last_counters_of_a_rank_that_ends_first_are_added_up_too() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    for (rank, env_step) in [(0, 100), (1, 100), (0, 200), (0, 250)] {
        c.rank_said(rank, own(1, env_step));
    }
    c.host_ends(0, true);
    assert_eq!(c.model().progress.as_ref().unwrap().totals.env_step, 350);
}

#[test]
fn returns_since_the_last_sum_are_those_of_all_ranks() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    let with = |of: f64| {
        RankEvent::Counters(Counters {
            env_step: 8,
            returns: Returns::of(of),
            sum: true,
            ..Counters::default()
        })
    };
    c.rank_said(0, with(1.0));
    c.rank_said(1, with(2.0));
    c.rank_said(1, with(7.0));
    c.rank_said(0, with(3.0));
    assert_eq!(c.model().progress.as_ref().unwrap().return_mean, Some(5.0));
}

#[test]
fn a_chart_of_an_event_shows_values_that_are_no_numbers() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    let not_finite = BTreeMap::from([("loss".to_string(), 2)]);
    c.rank_said(0, RankEvent::Scalars { train_iter: 1, env_step: 8, values: BTreeMap::new(), not_finite });
    assert_eq!(c.model().scalars["loss"].not_finite(), 2);
}

/// A spike between two records, of which only the last value is told.
#[test]
fn a_value_that_stands_for_several_keeps_their_extremes() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    c.record(0, metrics(100, &[("loss", 0.5)], &[]));
    let mut spiked = metrics(200, &[("loss", 0.4)], &[]);
    let RecordEvent::Metrics { spread, .. } = &mut spiked else { unreachable!() };
    spread.insert("loss".into(), (0.1, 1e6));
    c.record(0, spiked);
    let point = c.model().scalars["loss"].points()[1];
    assert_eq!((point.mean, point.low, point.high), (0.4, 0.1, 1e6));
}

#[test]
fn charts_know_when_values_came_and_what_happened_where() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    c.pass(5_000);
    c.record(0, metrics(100, &[("loss", 0.5)], &[]));
    c.pass(60_000);
    c.record(0, metrics(200, &[("loss", 0.4)], &[]));
    let places: Vec<_> = c.model().scalars["loss"].points().iter().map(|point| point.place).collect();
    assert_eq!((places[0].step, places[1].step), (100.0, 200.0));
    assert!(places[1].time - places[0].time >= 60.0, "a stall has width on the axis of time: {places:?}");
    let reason = "interval".to_string();
    c.rank_said(0, RankEvent::Checkpoint { path: "a.ckpt".into(), env_step: 150, train_iter: 3, reason });
    let mark = c.model().marks.back().copied().unwrap();
    assert_eq!((mark.place.step, mark.kind), (150.0, MarkKind::Checkpoint));
    c.event(Event::restart(Some("latest".into())));
    c.host_ends(0, true);
    let generations = || c.model().marks.iter().filter(|mark| matches!(mark.kind, MarkKind::Generation(_)));
    assert_eq!(generations().count(), 1);
    assert_eq!(generations().next().unwrap().place.step, 200.0, "where the run was");
}

#[test]
fn the_use_of_each_gpu_is_kept_over_time_and_bounded() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    let gpu =
        |index: u32, percent: Option<u32>| GpuSample { index, utilization: percent, ..GpuSample::default() };
    for percent in [10, 50, 90] {
        c.agents[0].gpus = vec![gpu(0, Some(percent)), gpu(1, None)];
        c.sample(0);
    }
    let history = &c.model().hosts[0].gpu_history;
    let newest: Vec<f32> = history[&0].iter().rev().take(3).rev().copied().collect();
    assert_eq!(newest, [10.0, 50.0, 90.0]);
    assert!(history.contains_key(&1));
    for _ in 0..500 {
        c.agents[0].gpus = vec![gpu(0, Some(1))];
        c.sample(0);
    }
    let history = &c.model().hosts[0].gpu_history;
    assert!(history[&0].len() <= 60 && !history.contains_key(&1), "one that is gone has none");
}
