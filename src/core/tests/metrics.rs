//! What screens show of a run: metrics and how old they are, values that are not finite, charts, histograms,
//! images, and the lines of the events pane. Values that a restart discards are in no total, and in charts behind the
//! present curve.

use crate::compare::ComparedRun;
use crate::event::Event;
use crate::model::{ChartMarkKind, EventSubject, HistoryLine, Model};
use crate::report::{ReportBody, Severity};
use crate::run_summary::RunSummary;
use crate::series::Series;
use crate::testkit::*;
use rankdeck_proto::media::encoded;
use rankdeck_proto::message::*;
use rankdeck_proto::progress_bar::{ShownCounter, ShownProgress};
use rankdeck_types::ids::Rank;
use rankdeck_types::meaning::Meaning;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

fn metrics(env_step: u64, values: &[(&str, f64)], broken: &[(&str, u64)]) -> RecordEvent {
    RecordEvent::Metrics {
        rank: Rank(0),
        source: "stdout".into(),
        env_step: Some(env_step),
        values: values.iter().map(|(name, value)| (name.to_string(), *value)).collect(),
        skipped: 0,
        spread: BTreeMap::new(),
        not_finite: broken.iter().map(|(name, count)| (name.to_string(), *count)).collect::<BTreeMap<_, _>>(),
        counter: None,
        progress: None,
    }
}

#[test]
fn nan_values_reach_their_series_and_are_counted() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    c.record(0, metrics(100, &[("loss", 0.5), ("kl", 0.1)], &[]));
    c.record(0, metrics(200, &[("kl", 0.2)], &[("loss", 7), ("kl", 1)]));
    let series = |name: &str| c.model().scalars[name].clone();
    assert!(series("loss").last().is_some_and(f64::is_nan), "the newest value is NaN");
    assert_eq!((series("loss").not_finite(), series("loss").not_finite_since()), (7, 200.0));
    assert_eq!((series("kl").last(), series("kl").not_finite()), (Some(0.2), 1), "a number came after it");
    c.record(0, metrics(300, &[], &[("only", 2)]));
    assert_eq!(
        (c.model().scalars["only"].points().len(), c.model().scalars["only"].reach()),
        (0, Some(300.0))
    );
}

#[test]
fn names_of_a_library_have_their_meaning() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    let values = [("rollout/ep_rew_mean", 21.5), ("time/fps", 900.0), ("train/loss", 0.5)];
    c.record(0, metrics(2048, &values, &[]));
    let model = c.model();
    let own = model.own.as_ref().unwrap();
    assert_eq!((own.return_mean, own.steps_per_s, own.env_step), (Some(21.5), Some(900.0), Some(2048)));
    assert_eq!(model.series(Meaning::Return).map(|(name, _)| name), Some("rollout/ep_rew_mean"));
    assert_eq!(model.series(Meaning::EvalReturn), None);
    let summary = RunSummary::from_model(model, c.now);
    assert_eq!((summary.last_return, summary.env_step), (Some(21.5), Some(2048)));
    let reported = c.reports.iter().find_map(|(_, _, body)| match body {
        ReportBody::Metrics { return_mean, .. } => Some(*return_mean),
        _ => None,
    });
    assert_eq!(reported, Some(Some(21.5)));
}

#[test]
fn bar_is_progress_and_no_value() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    let mut bar = metrics(0, &[], &[]);
    let RecordEvent::Metrics { env_step, progress, .. } = &mut bar else { unreachable!() };
    *env_step = None;
    let shown = ShownProgress {
        done: 20,
        total: Some(1800),
        unit: "it".into(),
        eta_s: Some(570.0),
        ..ShownProgress::default()
    };
    *progress = Some(shown.clone());
    c.record(0, metrics(100, &[("loss", 0.5)], &[]));
    c.record(0, bar);
    c.pass(70_000);
    let own = c.model().own.as_ref().unwrap();
    assert_eq!((own.records, own.env_step, own.x), (1, Some(100), 100.0));
    assert_eq!(own.progress.as_ref().map(|progress| &progress.shown), Some(&shown));
    let left = own.progress.as_ref().and_then(|progress| progress.eta_s(c.now)).unwrap();
    assert!((499.0..=500.0).contains(&left), "{left}");
    assert_eq!(RunSummary::from_model(c.model(), c.now).progress.map(|shown| shown.done), Some(20));
    c.event(Event::restart(None));
    c.host_ends(0, true);
    assert_eq!(
        c.model().own.as_ref().and_then(|own| own.progress.clone()),
        None,
        "of the process that is gone"
    );
}

#[test]
fn values_without_steps_stand_at_the_program_s_counter() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    for at in [0.1, 0.2] {
        let mut event = metrics(0, &[("loss", at)], &[]);
        let RecordEvent::Metrics { env_step, counter, .. } = &mut event else { unreachable!() };
        (*env_step, *counter) = (None, Some(ShownCounter { unit: "epoch".into(), at }));
        c.record(0, event);
    }
    let places: Vec<f64> = c.model().scalars["loss"].points().iter().map(|point| point.place.step).collect();
    assert_eq!(places, [0.1, 0.2]);
    assert_eq!(c.model().scalars["loss"].unit(), "epoch");
    let counters = c.reports.iter().filter_map(|(_, _, body)| match body {
        ReportBody::Metrics { counter, .. } => counter.as_ref().map(|counter| counter.unit.as_str()),
        _ => None,
    });
    assert_eq!(counters.collect::<Vec<_>>(), ["epoch", "epoch"]);
    c.record(0, metrics(300, &[("loss", 0.3)], &[]));
    assert_eq!(c.model().scalars["loss"].unit(), "step");
}

#[test]
fn evaluation_of_a_series_has_no_second_chart() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    c.record(0, metrics(100, &[("eval/mean_reward", 30.5)], &[]));
    c.rank_event(0, RankEvent::Eval(Evaluation::of_series("eval/mean_reward", 100, 30.5, 0.0)));
    let model = c.model();
    assert_eq!(model.evals.back().map(|eval| (eval.return_mean, eval.env_step)), Some((30.5, 100)));
    let names: Vec<&str> = model.scalars.keys().map(String::as_str).collect();
    assert_eq!(names, ["eval/mean_reward"]);
    let summary = RunSummary::from_model(model, c.now);
    assert_eq!((summary.best.map(|best| best.return_mean), summary.evals), (Some(30.5), 1));
}

#[test]
fn latest_totals_need_rank_0_only() {
    let mut c = Cluster::launch(2);
    c.all_ready();
    let totals = |train_iter: u64| Counters { train_iter, env_step: train_iter * 400, ..Counters::default() };
    for (train_iter, pause) in [(1, 1_000), (2, 4_000), (3, 2_000)] {
        c.pass(pause);
        c.rank_event(0, RankEvent::Totals(totals(train_iter)));
    }
    assert_eq!(c.model().progress, None, "no rank has reported its own counters");
    let latest = c.model().latest.clone().unwrap();
    assert_eq!(latest.counters.env_step, 1_200);
    assert!((3_000..4_600).contains(&latest.gap_ms), "the longest of late: {}", latest.gap_ms);
    c.rank_event(0, RankEvent::Totals(totals(1)));
    assert_eq!(c.model().latest.as_ref().unwrap().gap_ms, 0, "a generation that begins again");
}

/// Counters of a rank that all-reduces none.
fn own(train_iter: u64, env_step: u64) -> RankEvent {
    RankEvent::Counters(Counters { train_iter, env_step, sum: true, ..Counters::default() })
}

/// JOIN-3
#[test]
fn join_3_unreduced_counters_are_summed() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    let steps = |c: &Cluster| c.model().progress.as_ref().map(|progress| progress.totals.env_step);
    c.rank_event(0, own(1, 100));
    assert_eq!(steps(&c), None, "rank 1 has reported nothing");
    c.rank_event(1, own(1, 90));
    assert_eq!(steps(&c), Some(190));
    // Ranks go at paces of their own: a rank that is ahead waits for a second at most.
    c.rank_event(0, own(2, 200));
    assert_eq!(steps(&c), Some(190));
    c.pass(1_100);
    c.rank_event(0, own(3, 300));
    assert_eq!(steps(&c), Some(390));
    c.rank_event(1, own(2, 180));
    let progress = c.model().progress.clone().unwrap();
    assert!(progress.consistent && !progress.reduced);
    assert_eq!(progress.per_rank.iter().map(|rank| rank.env_step).sum::<u64>(), progress.totals.env_step);
    assert!(c.model().verdicts.is_empty());
}

#[test]
fn join_3_last_counters_of_ended_rank_are_summed() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    for (rank, env_step) in [(0, 100), (1, 100), (0, 200), (0, 250)] {
        c.rank_event(rank, own(1, env_step));
    }
    c.host_ends(0, true);
    assert_eq!(c.model().progress.as_ref().unwrap().totals.env_step, 350);
}

#[test]
fn returns_since_last_sum_cover_all_ranks() {
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
    c.rank_event(0, with(1.0));
    c.rank_event(1, with(2.0));
    c.rank_event(1, with(7.0));
    c.rank_event(0, with(3.0));
    assert_eq!(c.model().progress.as_ref().unwrap().return_mean, Some(5.0));
}

#[test]
fn scalar_event_counts_non_finite_values() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    let not_finite = BTreeMap::from([("loss".to_string(), 2)]);
    c.rank_event(0, RankEvent::Scalars { train_iter: 1, env_step: 8, values: BTreeMap::new(), not_finite });
    assert_eq!(c.model().scalars["loss"].not_finite(), 2);
}

/// A spike between two records, of which only the last value is reported.
#[test]
fn spread_of_merged_values_is_charted() {
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
fn charts_have_times_and_marks() {
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
    c.rank_event(0, RankEvent::Checkpoint { path: "a.ckpt".into(), env_step: 150, train_iter: 3, reason });
    let mark = c.model().marks.back().copied().unwrap();
    assert_eq!((mark.place.step, mark.kind), (150.0, ChartMarkKind::Checkpoint));
    c.event(Event::restart(Some("latest".into())));
    c.host_ends(0, true);
    let generations =
        || c.model().marks.iter().filter(|mark| matches!(mark.kind, ChartMarkKind::Generation(_)));
    assert_eq!(generations().count(), 1);
    assert_eq!(generations().next().unwrap().place.step, 150.0, "where it began");
}

#[test]
fn gpu_utilization_history_is_bounded() {
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

fn histogram(name: &str, env_step: u64, edges: &[f64], counts: &[f64]) -> RankEvent {
    RankEvent::Histogram(LoggedHistogram {
        name: name.into(),
        env_step,
        edges: edges.to_vec(),
        counts: counts.to_vec(),
        ..LoggedHistogram::default()
    })
}

fn image(name: &str, env_step: u64, file: &[u8]) -> RankEvent {
    let data = encoded(file);
    RankEvent::Image(LoggedImage { name: name.into(), env_step, data, ..LoggedImage::default() })
}

const GIF: &[u8] = b"GIF89a\x05\0\x04\0";

#[test]
fn histograms_and_images_are_kept_and_reported() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    c.rank_event(0, histogram("actions", 100, &[0.0, 1.0, 2.0], &[3.0, 1.0]));
    c.rank_event(0, image("seen", 200, GIF));
    let model = c.model();
    let column = &model.histograms["actions"].columns()[0];
    assert_eq!((column.place.step, column.bins.total()), (100.0, 4.0));
    assert_eq!(model.chart("actions").and_then(|series| series.last()), Some(0.75), "a chart of its means");
    let picture = &model.gallery.of("seen").unwrap()[0];
    assert_eq!((picture.place.step, picture.head.width, picture.number), (200.0, 5, 1));
    let reported: Vec<&ReportBody> = c.reports.iter().map(|(_, _, body)| body).collect();
    assert!(reported.iter().any(|body| matches!(body, ReportBody::Histogram { count, min, max, .. }
        if (*count, *min, *max) == (4.0, 0.0, 2.0))));
    assert!(
        reported.iter().any(|body| matches!(body, ReportBody::Image { width: 5, height: 4, bytes: 10, .. }))
    );
}

#[test]
fn histogram_name_equal_to_scalar_name_gets_a_suffix() {
    let scalars = |name: &str| RankEvent::Scalars {
        train_iter: 1,
        env_step: 10,
        values: [(name.to_owned(), 0.5)].into(),
        not_finite: Default::default(),
    };
    let mut c = Cluster::launch(1);
    c.all_ready();
    c.rank_event(0, scalars("first"));
    c.rank_event(0, histogram("first", 20, &[0.0, 1.0], &[1.0]));
    c.rank_event(0, histogram("later", 20, &[0.0, 1.0], &[1.0]));
    c.rank_event(0, scalars("later"));
    c.rank_event(0, histogram("later", 30, &[0.0, 1.0], &[1.0]));
    let names: Vec<&str> = c.model().histograms.keys().map(String::as_str).collect();
    assert_eq!(names, ["first (histogram)", "later (histogram)"]);
    assert_eq!(c.model().histograms["later (histogram)"].columns().len(), 2);
    let mut all: Vec<&String> = c.model().charts().map(|(name, _)| name).collect();
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count, "no name stands for two charts");
}

#[test]
fn invalid_or_foreign_media_is_only_counted() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    let before = c.model().drops;
    c.rank_event(0, histogram("h", 1, &[1.0, 0.0], &[1.0]));
    c.rank_event(0, image("p", 1, b"text"));
    c.rank_event(1, image("p", 1, GIF));
    c.rank_event(1, histogram("h", 1, &[0.0, 1.0], &[1.0]));
    assert_eq!(c.model().drops.misplaced, before.misplaced + 4);
    assert!(c.model().histograms.is_empty() && c.model().gallery.is_empty());
    for i in 0..40 {
        c.rank_event(0, histogram(&format!("h{i}"), 1, &[0.0, 1.0], &[1.0]));
        c.rank_event(0, image(&format!("p{i}"), 1, GIF));
    }
    let model = c.model();
    assert_eq!((model.histograms.len(), model.gallery.names().count()), (32, 32));
    assert_eq!(model.drops.charts, before.charts + 16);
}

#[test]
fn withheld_media_is_counted_across_agents() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    for (withheld, sum) in [(3, 3), (10, 10), (4, 14)] {
        let sample = HostSample { withheld, ..HostSample::default() };
        c.receive(0, AgentMessage::Sample(Box::new(sample)));
        assert_eq!(c.model().drops.withheld, sum);
    }
    assert_eq!(c.model().drops.lost(), 0, "rates are not counted as lost");
}

#[test]
fn core_2_routine_events_are_dropped_first() {
    let mut c = Cluster::launch(2);
    c.all_ready();
    c.iteration(1, 10);
    let before = c.model().history.len();
    let first = c.model().history[0].clone();
    for n in 2..1500 {
        c.rank_event(0, RankEvent::Eval(Evaluation { env_step: n * 100, ..Evaluation::default() }));
        c.rank_event(
            0,
            RankEvent::Checkpoint {
                path: format!("/ckpt/{n}"),
                env_step: n * 100,
                train_iter: n,
                reason: "every".into(),
            },
        );
    }
    let history = &c.model().history;
    assert!(before > 2 && history.len() <= 1000 && c.model().drops.history > 1000);
    assert_eq!(history[0], first, "the beginning is still reported");
    assert_eq!(history.iter().filter(|line| !line.routine).count(), before);
    assert_eq!(history.back().unwrap().subject, Some(EventSubject::Checkpoint("/ckpt/1499".into())));
    assert!(history.iter().is_sorted_by_key(|line| line.number));
}

#[test]
fn cleared_verdict_keeps_evidence_in_events() {
    let mut c = Cluster::launch(2);
    c.all_ready();
    c.iteration(1, 10);
    c.hang(1, |_| {});
    c.pass(15_000);
    c.release();
    c.pass(5_000);
    let mut reported = c.model().history.iter().filter_map(|line| match &line.subject {
        Some(EventSubject::Verdict(verdict)) => Some(verdict.severity),
        _ => None,
    });
    assert_eq!(reported.next_back(), Some(Severity::Cleared));
    assert!(c.model().verdicts.is_empty());
}

#[test]
fn stop_of_many_ranks_has_one_line_per_kind_of_exit() {
    let mut c = Cluster::launch(3);
    c.all_ready();
    c.iteration(1, 10);
    (0..3).for_each(|node| c.host_ends(node, true));
    let of_ranks = |line: &&HistoryLine| matches!(line.subject, Some(EventSubject::Rank(_)));
    let lines: Vec<&HistoryLine> = c.model().history.iter().filter(of_ranks).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    insta::assert_snapshot!("stop_of_many_ranks", lines[0].text);
}

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
