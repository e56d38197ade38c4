//! The data of charts: values over steps and time, the spread between ranks, marks of events, and the
//! histograms and images that the program logs.

use crate::model::{ChartMark, ChartMarkKind, Gallery, MEDIA_NAMES, Model, RankModel};
use crate::origin;
use crate::report::ReportBody;
use crate::run::RunProgress;
use crate::series::{Place, Series};
use crate::session::{EventCtx, RecordContext};
use crate::watch::RecordedTime;
use rankdeck_proto::media::{self, Histogram};
use rankdeck_proto::message::{Counters, LoggedHistogram, LoggedImage};
use rankdeck_types::ids::Generation;
use std::collections::BTreeMap;

/// Different charts kept.
pub(super) const CHARTS: usize = 256;
/// Marks kept.
pub(super) const MARKS: usize = 1024;

/// Where a value of a record stands.
pub(super) fn place(at: RecordContext, step: f64) -> Place {
    Place { step, time: at.time, generation: at.generation }
}

/// A generation started from `from`: values that it abandons are removed from all figures.
pub(super) fn begin(ctx: &mut EventCtx<'_>, generation: Generation, from: Option<&str>) {
    let origin = origin::placed(&ctx.model.checkpoints, generation, from);
    if ctx.model.lineage.begin(generation, origin) {
        abandon(ctx.model);
    }
    // What a program last printed is of the process that is gone.
    if let Some(own) = ctx.model.own.as_mut().filter(|own| own.generation < generation) {
        (own.steps_per_s, own.return_mean, own.progress) = (None, None, None);
    }
}

/// Totals have come to this step.
pub(super) fn reached(ctx: &mut EventCtx<'_>, at: RecordContext, env_step: u64) {
    if ctx.model.lineage.reached(at.generation, env_step) {
        abandon(ctx.model);
    }
}

/// Takes what is not of the present line of training out of all figures.
fn abandon(model: &mut Model) {
    let lineage = &model.lineage;
    let keeps = |place: Place| lineage.keeps(place.generation, place.step);
    model.scalars.values_mut().chain(model.spreads.values_mut()).for_each(|series| series.split(keeps));
    model.histograms.values_mut().for_each(|series| series.retain(keeps));
    model.gallery.retain(keeps);
    model.marks.retain(|mark| matches!(mark.kind, ChartMarkKind::Generation(_)) || keeps(mark.place));
    model.evals.retain(|eval| lineage.keeps(eval.generation, eval.env_step as f64));
    let is_kept = |generation, counters: &Counters| lineage.keeps(generation, counters.env_step as f64);
    model.latest.take_if(|latest| !is_kept(latest.generation, &latest.counters));
    model.progress.take_if(|progress| !is_kept(progress.generation, &progress.totals));
    if let Some(own) = &mut model.own
        && let Some(step) = own.env_step
        && !lineage.keeps(own.generation, step as f64)
    {
        own.env_step = lineage.began().filter(|step| *step > 0);
    }
    for mark in &mut model.marks {
        if let ChartMarkKind::Generation(generation) = mark.kind
            && let Some(step) = lineage.began_at(generation)
        {
            mark.place.step = step as f64;
        }
    }
}

/// Adds to a chart that the console itself makes.
pub(super) fn derived(ctx: &mut EventCtx<'_>, name: &'static str, place: Place, y: f64) {
    if !ctx.session.rates.derived.contains(name) {
        ctx.session.rates.derived.insert(name.to_owned());
        ctx.model.scalars.remove(name);
    }
    make_room(ctx, name);
    let keeps = ctx.model.lineage.keeps(place.generation, place.step);
    let series = ctx.model.scalars.entry(name.into()).or_default();
    if keeps { series.push(place, y) } else { series.push_past(place, y) }
}

/// Values that ranks report themselves, by name.
#[derive(Debug, Default)]
pub(super) struct RankScalars {
    /// The newest ones.
    pub values: BTreeMap<String, f64>,
    /// The least and the greatest, where one stands for several.
    pub spread: BTreeMap<String, (f64, f64)>,
    /// How many were not finite.
    pub not_finite: BTreeMap<String, u64>,
}

/// Adds values that ranks report themselves; `x`: steps, or what the program counts instead, in `unit`.
pub(super) fn scalars(
    ctx: &mut EventCtx<'_>,
    at: RecordContext,
    (x, unit): (f64, &str),
    scalars: RankScalars,
) {
    let RankScalars { values, spread, not_finite } = scalars;
    let place = place(at, x);
    let keeps = ctx.model.lineage.keeps(place.generation, place.step);
    // A name that is among the numbers too has become one again since.
    for (name, count) in not_finite {
        // A chart that the console makes of numbers alone takes these, too.
        let derived = ctx.session.rates.derived.contains(name.as_str());
        let series = if derived { ctx.model.scalars.get_mut(&name) } else { series(ctx, name) };
        if let Some(series) = series.filter(|_| keeps) {
            series.push_not_finite(place, f64::NAN, count);
        }
    }
    ctx.session.run.tries.reached.advance(RunProgress { env_step: x as u64, ..RunProgress::default() });
    for (name, value) in values {
        let (low, high) = spread.get(&name).copied().unwrap_or((value, value));
        match series(ctx, name) {
            Some(series) if keeps => {
                series.count_in(unit);
                series.push_spread(place, value, low.min(value), high.max(value));
            }
            Some(series) => series.push_past(place, value),
            None => {}
        }
    }
}

/// The series of a name that ranks give; `None` when the console makes it itself, or when there are too many.
fn series<'a>(ctx: &'a mut EventCtx<'_>, name: String) -> Option<&'a mut Series> {
    if ctx.session.rates.derived.contains(name.as_str()) {
        return None;
    }
    if ctx.model.scalars.len() >= CHARTS && !ctx.model.scalars.contains_key(&name) {
        ctx.model.drops.charts += 1;
        return None;
    }
    make_room(ctx, &name);
    Some(ctx.model.scalars.entry(name).or_default())
}

/// The chart of a histogram whose name is that of a chart of numbers.
fn histogram_chart(name: &str) -> String {
    format!("{name} (histogram)")
}

/// A chart of numbers gets the name of a histogram.
fn make_room(ctx: &mut EventCtx<'_>, name: &str) {
    if let Some(series) = ctx.model.histograms.remove(name) {
        ctx.model.histograms.insert(histogram_chart(name), series);
    }
}

/// Something happened in a generation, at `step` or at the one that the run had reached by then.
pub(super) fn mark(
    ctx: &mut EventCtx<'_>,
    happened: RecordedTime,
    (generation, step): (Generation, Option<u64>),
    kind: ChartMarkKind,
) {
    let RecordedTime { time, past } = happened;
    let is_generation = matches!(kind, ChartMarkKind::Generation(_));
    let began = ctx.model.lineage.began_at(generation).filter(|_| is_generation);
    let step = step.or(began).map(|step| step as f64);
    let step = step.unwrap_or_else(|| if past { step_at(ctx.model, time) } else { step_now(ctx.model) });
    let is_known = is_generation && ctx.model.marks.iter().any(|mark| mark.kind == kind);
    if is_known || !is_generation && !ctx.model.lineage.keeps(generation, step) {
        return;
    }
    ctx.model.marks.push_back(ChartMark { place: Place { step, time, generation }, kind });
    if ctx.model.marks.len() > MARKS {
        ctx.model.marks.pop_front();
        ctx.model.drops.history += 1;
    }
}

/// The step that the present line of training has reached.
fn step_now(model: &Model) -> f64 {
    let totals = model.latest.as_ref().map(|latest| latest.counters.env_step as f64);
    model.scalars.values().filter_map(Series::reach).chain(totals).fold(0.0, f64::max)
}

/// The step that the run had reached at a time, as far as has been read: hosts are read one after another.
fn step_at(model: &Model, time: f64) -> f64 {
    let before = |series: &Series| {
        series.points().iter().rev().map(|point| point.place).find(|place| place.time <= time)
    };
    let steps = model.scalars.values().filter_map(before).map(|place| place.step);
    steps.fold(0.0, f64::max)
}

/// The run had come to this step by then: what happened later, and was read earlier, stands no further back.
pub(super) fn settle(ctx: &mut EventCtx<'_>, at: RecordContext, env_step: u64) {
    if !at.past {
        return;
    }
    let Model { lineage, marks, .. } = &mut *ctx.model;
    let moves = |mark: &ChartMark| match mark.kind {
        ChartMarkKind::Checkpoint | ChartMarkKind::Membership { .. } => false,
        ChartMarkKind::Generation(generation) => lineage.began_at(generation).is_none(),
        ChartMarkKind::Verdict(..) => mark.place.generation == at.generation,
    };
    for mark in marks.iter_mut().filter(|mark| mark.place.time >= at.time && moves(mark)) {
        mark.place.step = mark.place.step.max(env_step as f64);
    }
}

/// The spread over ranks at an iteration that all of them have reported.
pub(super) fn spread(model: &mut Model, place: Place) {
    type Value = fn(&RankModel) -> Option<f64>;
    let gauges: [(&str, Value); 5] = [
        ("ranks/SPS", |rank| rank.sample.as_ref()?.page.as_ref().and(rank.steps_per_s)),
        ("ranks/iteration_s", |rank| rank.watch_history.iteration().map(|iteration| iteration.0)),
        ("ranks/wait_share", |rank| rank.watch_history.iteration().map(|iteration| iteration.1)),
        ("ranks/cpu_percent", |rank| {
            rank.sample
                .as_ref()
                .filter(|sample| !sample.is_gone())
                .map(|sample| f64::from(sample.cpu_percent))
        }),
        ("ranks/gpu_percent", |rank| rank.gpu_history.back().map(|percent| f64::from(*percent))),
    ];
    if model.ranks.len() < 2 {
        return;
    }
    for (name, value) in gauges {
        let mut values: Vec<f64> =
            model.ranks.iter().filter_map(value).filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (Some(low), Some(high)) = (values.first(), values.last()) else { continue };
        // Of an even number the mean of the two in the middle, as everywhere.
        let middle = (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0;
        model.spreads.entry(name.into()).or_default().push_spread(place, middle, *low, *high);
    }
}

/// Adds a histogram that the program logs.
pub(super) fn add_histogram(ctx: &mut EventCtx<'_>, at: RecordContext, logged: LoggedHistogram) {
    let LoggedHistogram { name, env_step, edges, counts, train_iter, .. } = logged;
    let bins = Histogram { edges, counts };
    if bins.check().is_err() || media::check_name(&name).is_err() {
        ctx.model.drops.misplaced += 1;
        return;
    }
    let key = if ctx.model.scalars.contains_key(&name) { histogram_chart(&name) } else { name.clone() };
    let known = &ctx.model.histograms;
    if known.len() >= MEDIA_NAMES && !known.contains_key(&key) {
        ctx.model.drops.charts += 1;
        return;
    }
    let (low, high) = bins.range();
    let body = ReportBody::Histogram {
        name,
        env_step,
        train_iter,
        count: bins.total(),
        mean: bins.mean(),
        min: low,
        max: high,
        edges: bins.edges.clone(),
        counts: bins.counts.clone(),
    };
    ctx.report_at(at.generation, at.time, body);
    if ctx.model.lineage.keeps(at.generation, env_step as f64) {
        ctx.model.histograms.entry(key).or_default().push(place(at, env_step as f64), bins);
    }
}

/// Adds an image that the program logs.
pub(super) fn add_image(ctx: &mut EventCtx<'_>, at: RecordContext, logged: LoggedImage) {
    let LoggedImage { name, env_step, train_iter, data, .. } = logged;
    let (Ok((head, file)), Ok(())) = (media::decoded(&data), media::check_name(&name)) else {
        ctx.model.drops.misplaced += 1;
        return;
    };
    let gallery: &mut Gallery = &mut ctx.model.gallery;
    let keeps = ctx.model.lineage.keeps(at.generation, env_step as f64);
    if keeps && !gallery.push(name.clone(), place(at, env_step as f64), head, data) {
        ctx.model.drops.charts += 1;
        return;
    }
    let body = ReportBody::Image {
        name,
        env_step,
        train_iter,
        format: head.format,
        width: head.width,
        height: head.height,
        bytes: file.len() as u64,
    };
    ctx.report_at(at.generation, at.time, body);
}
