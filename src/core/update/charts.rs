//! What charts show: values over steps and time, how far apart the ranks are, and what happened where.

use crate::model::{Mark, MarkKind, Model, RankModel};
use crate::run::Reach;
use crate::series::{Place, Series};
use crate::session::{At, Ctx};
use crate::watch::Occurrence;
use std::collections::BTreeMap;

/// Different charts kept.
const CHARTS: usize = 256;
/// Marks kept.
const MARKS: usize = 1024;
/// Training returns, from totals.
pub(super) const RETURN: &str = "charts/episodic_return";
/// Mean returns of evaluations.
pub(super) const EVAL: &str = "charts/eval_return";
/// Global steps per second.
pub(super) const SPS: &str = "charts/SPS";

/// Where a value of a record stands.
pub(super) fn place(at: At, step: u64) -> Place {
    Place { step: step as f64, time: at.time }
}

/// Adds to a chart that the console itself makes.
pub(super) fn derived(ctx: &mut Ctx<'_>, name: &'static str, place: Place, y: f64) {
    if !ctx.session.rates.derived.contains(name) {
        ctx.session.rates.derived.insert(name.to_owned());
        ctx.model.scalars.remove(name);
    }
    make_room(ctx, name);
    ctx.model.scalars.entry(name.into()).or_default().push(place, y);
}

/// Values that ranks say themselves, by name.
#[derive(Debug, Default)]
pub(super) struct RankScalars {
    /// The newest ones.
    pub values: BTreeMap<String, f64>,
    /// The least and the greatest, where one stands for several.
    pub spread: BTreeMap<String, (f64, f64)>,
    /// How many were not finite.
    pub not_finite: BTreeMap<String, u64>,
}

/// Adds what ranks say themselves.
pub(super) fn scalars(ctx: &mut Ctx<'_>, at: At, env_step: u64, said: RankScalars) {
    let RankScalars { values, spread, not_finite } = said;
    // A name that is among the numbers too has become one again since.
    for (name, count) in not_finite {
        // A chart that the console makes of numbers alone takes these, too.
        let derived = ctx.session.rates.derived.contains(name.as_str());
        let series = if derived { ctx.model.scalars.get_mut(&name) } else { series(ctx, name) };
        if let Some(series) = series {
            series.push_not_finite(place(at, env_step), f64::NAN, count);
        }
    }
    ctx.session.run.tries.reached.advance(Reach { env_step, ..Reach::default() });
    for (name, value) in values {
        let (low, high) = spread.get(&name).copied().unwrap_or((value, value));
        if let Some(series) = series(ctx, name) {
            series.push_spread(place(at, env_step), value, low.min(value), high.max(value));
        }
    }
}

/// The series of a name that ranks give; `None` when the console makes it itself, or when there are too many.
fn series<'a>(ctx: &'a mut Ctx<'_>, name: String) -> Option<&'a mut Series> {
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

/// What the chart of a histogram is called whose name is that of a chart of numbers.
pub(super) fn beside(name: &str) -> String {
    format!("{name} (histogram)")
}

/// A chart of numbers gets the name of a histogram.
fn make_room(ctx: &mut Ctx<'_>, name: &str) {
    if let Some(series) = ctx.model.histograms.remove(name) {
        ctx.model.histograms.insert(beside(name), series);
    }
}

/// Something happened at the step that the run had reached by then, or at `step`.
pub(super) fn mark(ctx: &mut Ctx<'_>, happened: Occurrence, step: Option<u64>, kind: MarkKind) {
    let Occurrence { time, past } = happened;
    let step = step.map(|step| step as f64).unwrap_or_else(|| match past {
        true => step_at(ctx.model, time),
        false => ctx.session.run.tries.reached.env_step as f64,
    });
    let generation = matches!(kind, MarkKind::Generation(_));
    if generation && ctx.model.marks.iter().any(|mark| mark.kind == kind) {
        return;
    }
    ctx.model.marks.push_back(Mark { place: Place { step, time }, kind });
    if ctx.model.marks.len() > MARKS {
        ctx.model.marks.pop_front();
        ctx.model.drops.history += 1;
    }
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
pub(super) fn settle(ctx: &mut Ctx<'_>, at: At, env_step: u64) {
    if !at.past {
        return;
    }
    let later = |mark: &&mut Mark| mark.kind != MarkKind::Checkpoint && mark.place.time >= at.time;
    for mark in ctx.model.marks.iter_mut().filter(later) {
        mark.place.step = mark.place.step.max(env_step as f64);
    }
}

/// How far apart the ranks are at an iteration that all of them have told.
pub(super) fn spread(model: &mut Model, place: Place) {
    type Value = fn(&RankModel) -> Option<f64>;
    let gauges: [(&str, Value); 5] = [
        ("ranks/SPS", |rank| rank.sample.as_ref()?.page.as_ref().map(|_| rank.steps_per_s)),
        ("ranks/iteration_s", |rank| rank.track.iteration().map(|iteration| iteration.0)),
        ("ranks/wait_share", |rank| rank.track.iteration().map(|iteration| iteration.1)),
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
