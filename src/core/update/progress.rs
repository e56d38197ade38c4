//! Training progress as ranks report it: totals, rates, evaluations, weights, and charts of all of them.

use super::charts::{self, RankScalars};
use super::failure::age_ms;
use crate::join::JoinedIteration;
use crate::model::{
    EventTone, FingerprintModel, LatestTotals, OwnMetrics, OwnProgress, RankModel, TrainingProgress,
};
use crate::report::{GpuState, RankProgress, ReportBody, VerdictKind};
use crate::run::RunProgress;
use crate::session::{EventCtx, RecordContext};
use rankdeck_proto::message::{Counters, Evaluation};
use rankdeck_proto::progress_bar::{ShownCounter, ShownProgress};
use rankdeck_proto::rate::SmoothedRate;
use rankdeck_types::ids::Rank;
use rankdeck_types::meaning::{EVAL, Meaning, RETURN, SPEED};
use rankdeck_types::words;

/// Evaluations kept.
pub(super) const EVALUATIONS: usize = 10_000;

pub(super) fn totals(ctx: &mut EventCtx<'_>, at: RecordContext, totals: Counters) {
    let steps_per_s = global_rate(ctx, at, &totals);
    if ctx.session.run.is_current(at.generation) {
        let joined = ctx.session.join.totals(totals, at.time, steps_per_s);
        progressed(ctx, at, joined);
    }
}

/// The ranks' latest counters were added up.
pub(super) fn summed(ctx: &mut EventCtx<'_>, at: RecordContext, added: Option<(Counters, Vec<Counters>)>) {
    let Some((totals, own)) = added else { return };
    if at.past && ctx.model.hosts.len() > 1 {
        continue_rate(ctx, at, totals.env_step);
    }
    let steps_per_s = global_rate(ctx, at, &totals);
    let joined = JoinedIteration {
        totals,
        time: at.time,
        sum: totals,
        own,
        members: None,
        consistent: true,
        steps_per_s,
        reduced: false,
    };
    progressed(ctx, at, Some(joined));
}

/// Records of the past come host by host: a sum of them does not grow as the ranks did, but the rates of all ranks
/// add up.
fn continue_rate(ctx: &mut EventCtx<'_>, at: RecordContext, env_step: u64) {
    let rates = &mut ctx.session.rates;
    let known: Option<f64> = ctx.model.ranks.iter().map(|rank| rank.steps_per_s).sum();
    if let Some(known) = known.filter(|_| rates.generation <= at.generation) {
        rates.generation = at.generation;
        rates.global.start_at(at.time, env_step, known);
    }
}

/// Global steps per second; totals are charted on the way.
fn global_rate(ctx: &mut EventCtx<'_>, at: RecordContext, totals: &Counters) -> Option<f64> {
    let rates = &mut ctx.session.rates;
    if rates.generation < at.generation {
        (rates.generation, rates.global) = (at.generation, SmoothedRate::default());
    }
    // Records of an earlier generation may be read after those of a later one.
    let is_newest = rates.generation == at.generation;
    let steps_per_s = is_newest.then(|| rates.global.update(at.time, totals.env_step)).flatten();
    let place = charts::place(at, totals.env_step as f64);
    charts::reached(ctx, at, totals.env_step);
    charts::settle(ctx, at, totals.env_step);
    if let Some(rate) = steps_per_s {
        charts::derived(ctx, SPEED, place, rate);
    }
    if totals.returns.count > 0 {
        charts::derived(ctx, RETURN, place, totals.returns.sum / totals.returns.count as f64);
    }
    if ctx.session.run.is_current(at.generation) {
        let (before, age_ms) = (ctx.model.latest.as_ref(), age_ms(ctx, at));
        ctx.model.latest =
            Some(LatestTotals::follow(before, (at.generation, *totals), steps_per_s, ctx.now, age_ms));
    }
    steps_per_s
}

/// What a program without rankdeck.py shows: values and progress of one rank, not reduced.
pub(super) struct Measured {
    pub rank: Rank,
    pub source: String,
    pub env_step: Option<u64>,
    /// Place of the values where they have no steps.
    pub counter: Option<ShownCounter>,
    pub progress: Option<ShownProgress>,
    pub scalars: RankScalars,
}

/// A program without rankdeck.py gave values, or shows how far it is.
pub(super) fn measured(ctx: &mut EventCtx<'_>, at: RecordContext, measured: Measured) {
    let Measured { rank, source, env_step, counter, progress, scalars } = measured;
    let progress = progress.map(ShownProgress::checked);
    let values = &scalars.values;
    let has_values = !values.is_empty() || !scalars.not_finite.is_empty();
    let meanings = ctx.model.meanings();
    let return_mean = meanings.value(Meaning::Return, values);
    // A start from scratch counts from zero.
    let is_line = |known: &&OwnMetrics| {
        known.generation <= at.generation && ctx.model.lineage.keeps(known.generation, f64::MIN)
    };
    let known = ctx.model.own.as_ref().filter(is_line);
    let age_ms = age_ms(ctx, at);
    let (rate, generation) = &mut ctx.session.rates.own;
    if *generation < at.generation {
        (*rate, *generation) = (SmoothedRate::default(), at.generation);
    }
    let measured = env_step.filter(|_| *generation == at.generation);
    let measured = measured.and_then(|env_step| rate.update(at.time, env_step));
    // What the program reports counts, also between two of its reports.
    let names = ctx.model.scalars.keys().map(String::as_str);
    let measured = measured.filter(|_| meanings.best(Meaning::StepsPerSecond, names).is_none());
    let known_rate = || known.and_then(|known| known.steps_per_s);
    let env_steps = env_step.or_else(|| known.and_then(|known| known.env_step));
    let counter = counter.filter(|counter| counter.at.is_finite());
    let counted = counter.as_ref().map(|counter| counter.at);
    let place = env_step.map(|step| step as f64).or(counted).or(env_steps.map(|step| step as f64));
    // Without steps, only the order of arrival is known.
    let latest = known.map_or(0.0, |known| known.x);
    let x = place.unwrap_or(if has_values { latest + 1.0 } else { latest });
    let shown = progress.clone().map(|shown| OwnProgress { shown, at: ctx.now, age_ms });
    let own = OwnMetrics {
        rank,
        source: match known.filter(|_| !has_values) {
            Some(known) => known.source.clone(),
            None => words::clip(&source, 40),
        },
        generation: at.generation,
        env_step: env_steps,
        steps_per_s: meanings.value(Meaning::StepsPerSecond, values).or(measured).or_else(known_rate),
        return_mean: return_mean.or_else(|| known.and_then(|known| known.return_mean)),
        records: known.map_or(0, |known| known.records).saturating_add(u64::from(has_values)),
        x,
        progress: shown.or_else(|| known.and_then(|known| known.progress.clone())),
        at: ctx.now,
        age_ms,
    };
    if ctx.model.own.as_ref().is_none_or(|known| known.generation <= at.generation) {
        ctx.model.own = Some(own);
    }
    ctx.report_at(
        at.generation,
        at.time,
        ReportBody::Metrics {
            rank,
            source,
            env_step,
            values: values.clone(),
            return_mean,
            progress,
            counter: counter.clone().filter(|_| env_step.is_none()),
            reduced: false,
        },
    );
    let unit =
        counter.as_ref().filter(|_| env_step.is_none()).map_or("step", |counter| counter.unit.as_str());
    charts::scalars(ctx, at, (x, unit), scalars);
}

pub(super) fn evaluated(ctx: &mut EventCtx<'_>, at: RecordContext, evaluation: Evaluation) {
    // A program's own series is a chart already.
    if !evaluation.is_of_series() {
        charts::derived(ctx, EVAL, charts::place(at, evaluation.env_step as f64), evaluation.return_mean);
    }
    ctx.session.run.evals = ctx.session.run.evals.saturating_add(1);
    let spread = match evaluation.is_of_series() {
        true => String::new(),
        false => {
            let std = words::fixed(evaluation.return_std, 1);
            let how = if evaluation.sampled { ", actions sampled" } else { "" };
            format!(" ± {std} over {} episodes{how}", evaluation.episodes)
        }
    };
    let text = format!(
        "evaluation at step {}: return {}{spread}{}",
        words::count(evaluation.env_step),
        words::fixed(evaluation.return_mean, 1),
        if evaluation.stop { ", stop value reached" } else { "" }
    );
    ctx.note_routine(at.time, EventTone::Good, text, None);
    ctx.report_at(
        at.generation,
        at.time,
        ReportBody::Eval {
            env_step: evaluation.env_step,
            train_iter: evaluation.train_iter,
            episodes: evaluation.episodes,
            return_mean: evaluation.return_mean,
            return_std: evaluation.return_std,
            return_min: evaluation.return_min,
            return_max: evaluation.return_max,
            stop: evaluation.stop,
            sampled: evaluation.sampled,
            series: words::clip(&evaluation.series, 200),
        },
    );
    if !ctx.model.lineage.keeps(at.generation, evaluation.env_step as f64) {
        return;
    }
    let evaluation = Evaluation { generation: at.generation, ..evaluation };
    // Those of an earlier generation may be read after those of a later one.
    let place = ctx.model.evals.iter().rposition(|known| known.generation <= at.generation);
    ctx.model.evals.insert(place.map_or(0, |before| before + 1), evaluation);
    if ctx.model.evals.len() > EVALUATIONS {
        ctx.model.evals.pop_front();
        ctx.model.drops.history += 1;
    }
}

pub(super) fn fingerprint(
    ctx: &mut EventCtx<'_>,
    at: RecordContext,
    latest: FingerprintModel,
    values: &[String],
) {
    if !ctx.session.run.is_current(at.generation) {
        return;
    }
    let compared = ctx.model.fingerprint.as_ref().map_or(0, |known| known.compared).saturating_add(1);
    let (equal, train_iter) = (latest.equal, latest.train_iter);
    ctx.model.fingerprint = Some(FingerprintModel { compared, ..latest });
    if equal {
        ctx.session.watch.withdraw(VerdictKind::Drift);
    } else {
        let (rank, verdict) =
            crate::watch::drift(ctx.model, train_iter, values, &ctx.model.membership.members);
        ctx.session.watch.withdraw(VerdictKind::Drift);
        ctx.session.watch.add_fact(rank, verdict, at.happened());
    }
}

/// An iteration is complete: the totals and all ranks' counters have arrived.
pub(super) fn progressed(ctx: &mut EventCtx<'_>, at: RecordContext, joined: Option<JoinedIteration>) {
    ctx.model.drops.joins += ctx.session.join.take_dropped();
    let Some(joined) = joined else { return };
    ctx.session.watch.on_counters(&joined.own);
    let is_in =
        |rank: &&RankModel| joined.members.as_ref().is_none_or(|members| members.contains(&rank.rank));
    let ranks = ctx.model.ranks.iter().filter(is_in).zip(&joined.own);
    let per_rank: Vec<RankProgress> = ranks.map(|(rank, own)| rank_progress(ctx, at, rank, own)).collect();
    let JoinedIteration { totals, sum, consistent, steps_per_s, time, reduced, .. } = joined.clone();
    // Progress is what all ranks have done: a rank that continues after another has failed adds nothing to
    // it.
    let Counters { train_iter, env_step, .. } = totals;
    ctx.session.run.tries.reached.advance(RunProgress { train_iter, env_step, ..RunProgress::default() });
    let returns = totals.returns;
    let return_mean =
        (returns.count > 0).then(|| returns.sum / returns.count as f64).filter(|mean| mean.is_finite());
    let eta_s = ctx.model.run.total_steps.and_then(|goal| {
        let rate = steps_per_s.filter(|rate| *rate > 0.0)?;
        Some(goal.saturating_sub(totals.env_step) as f64 / rate)
    });
    ctx.report_at(
        at.generation,
        time,
        ReportBody::Progress {
            train_iter: totals.train_iter,
            env_step: totals.env_step,
            samples: totals.samples,
            episodes: totals.episodes,
            duration_s: totals.duration_s,
            steps_per_s,
            return_mean,
            return_last_100: totals.return_last_100.filter(|mean| mean.is_finite()),
            updates: totals.updates,
            total_steps: ctx.model.run.total_steps,
            eta_s,
            consistent,
            reduced,
            per_rank: per_rank.clone(),
        },
    );
    if !at.past {
        charts::spread(ctx.model, charts::place(at, totals.env_step as f64));
    }
    let age_ms = age_ms(ctx, at);
    ctx.model.progress = Some(TrainingProgress {
        totals,
        sum,
        consistent,
        reduced,
        generation: at.generation,
        steps_per_s,
        return_mean,
        eta_s,
        at: ctx.now,
        age_ms,
        per_rank,
    });
    if consistent {
        ctx.session.watch.withdraw(VerdictKind::TotalsDiffer);
    } else {
        ctx.session.watch.add_fact(None, crate::watch::totals_differ(ctx.model, &joined), at.happened());
    }
}

/// A rank's own counters, and its gauges of that time: those of the past were not measured.
fn rank_progress(ctx: &EventCtx<'_>, at: RecordContext, rank: &RankModel, own: &Counters) -> RankProgress {
    let sample = rank.sample.as_ref().filter(|_| !at.past);
    let page = sample.and_then(|sample| sample.page.as_ref());
    let gpu = rank.gpu.filter(|_| !at.past).and_then(|index| {
        let host = ctx.model.hosts.get(rank.node.index())?.sample.as_ref()?;
        host.gpus.iter().find(|gpu| gpu.index == index)
    });
    RankProgress {
        rank: rank.rank,
        host: rank.host.clone(),
        env_step: own.env_step,
        samples: own.samples,
        episodes: own.episodes,
        duration_s: own.duration_s,
        phase: page.map(|page| page.phase.name().to_string()).unwrap_or_default(),
        collective_seq: page.map_or(0, |page| page.collective.entered),
        cpu_percent: sample.filter(|sample| !sample.is_gone()).map(|sample| sample.cpu_percent),
        gpu_percent: sample.and_then(|sample| sample.gpu_share).or(gpu.and_then(|gpu| gpu.utilization)),
        rss: sample.map(|sample| sample.rss),
        gpu_memory: sample.and_then(|sample| sample.gpu_memory),
        gpu: gpu.map(GpuState::from),
    }
}
