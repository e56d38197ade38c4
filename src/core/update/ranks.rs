//! The lives of ranks, and what ranks report.
//!
//! History (evaluations, checkpoints, charts) is kept over all generations. Lives, joins and failures belong
//! to the present one.

use super::records::At;
use crate::join::Joined;
use crate::model::{CheckpointModel, FingerprintModel, OwnMetrics, Progress, RankLife, RankModel, Tone};
use crate::report::{RankProgress, ReportBody, VerdictKind};
use crate::run::{Cause, Failure, Reach, Weight, weigh};
use crate::session::{Ctx, Limits};
use rankdeck_proto::message::{Counters, Evaluation, Exit, FinishReason, RankEvent};
use rankdeck_types::ids::Rank;
use rankdeck_types::words;
use std::collections::BTreeMap;

/// Own counters kept per rank.
const COUNTERS: usize = 64;
/// Evaluations and checkpoints kept.
const EVENTS: usize = 10_000;
/// Different charts kept.
const CHARTS: usize = 256;
/// Training returns, from totals.
const RETURN: &str = "charts/episodic_return";
const EVAL: &str = "charts/eval_return";
/// Global steps per second.
const SPS: &str = "charts/SPS";

/// A rank of this host in the present generation.
fn mine<'a>(ctx: &'a mut Ctx<'_>, at: At, rank: Rank) -> Option<&'a mut RankModel> {
    if !ctx.session.run.is_current(at.generation) {
        return None;
    }
    let found = ctx.model.ranks.get_mut(rank.index()).filter(|model| model.node == at.node);
    if found.is_none() {
        ctx.model.drops.misplaced += 1;
    }
    found
}

/// A rank's process exists.
pub(super) fn spawned(ctx: &mut Ctx<'_>, at: At, rank: Rank, pid: u32) {
    let Some(model) = mine(ctx, at, rank) else { return };
    model.pid = Some(pid);
    if model.life == RankLife::Pending {
        model.life = RankLife::Spawned;
    }
    tell_life(ctx, at, rank, "spawned", None, String::new());
}

/// How a rank's process ended.
pub(super) struct End<'a> {
    pub exit: Exit,
    /// The end of its log.
    pub last_lines: &'a [String],
    /// A stop had been ordered before.
    pub stopping: bool,
    /// Milliseconds from its end to the record.
    pub ago_ms: u64,
    /// Its agent died first.
    pub with_agent: bool,
}

/// A rank's process ended.
pub(super) fn exited(ctx: &mut Ctx<'_>, at: At, rank: Rank, pid: u32, end: End<'_>) {
    let name = ctx.host_name(at.node);
    let good = end.exit.is_success();
    let tone = if good || end.stopping { Tone::Info } else { Tone::Bad };
    ctx.note_at(at.time, tone, format!("rank {rank} on {name} {}", end.exit.predicate()));
    let Some(model) = mine(ctx, at, rank) else { return };
    model.pid = if pid == 0 { model.pid } else { Some(pid) };
    model.life = RankLife::Exited(end.exit.clone());
    let said = model.error.clone().map(|error| error.0).unwrap_or_default();
    let state = match &end.exit {
        Exit::Code { code: 0 } => "exited",
        Exit::Code { .. } => "failed",
        Exit::Signal { .. } => "killed",
        Exit::NotStarted { .. } => "not_started",
    };
    tell_life(ctx, at, rank, state, Some(&end.exit), said.clone());
    ctx.session.run.facts.first_end.get_or_insert(ctx.now);
    if good {
        // The ranks whose connection it closed may have been heard of first.
        let facts = &ctx.session.run.facts;
        let victims = facts.failures.iter().all(|failure| failure.weight == Weight::Victim);
        let first = facts.failures.first().map(|failure| failure.rank);
        if let Some(victim) = first.filter(|_| victims && !end.stopping) {
            left_early(ctx, at, victim);
        }
        return;
    }
    let blame = blame(ctx, rank, &end, &said);
    if end.stopping || is_end_wanted(ctx, blame.weight) {
        // Peers of a rank that a stop has already reached fail with connection errors before their own order
        // arrives.
        if !(end.stopping && end.exit.is_stop_effect()) {
            ctx.session.run.facts.bad_exits += 1;
        }
        return;
    }
    failed(ctx, at, rank, &end, blame);
}

/// What the end of a rank's process and its last words say about its guilt.
struct Blame {
    weight: Weight,
    /// The rank named a mistake in the configuration.
    usage: bool,
    /// Another rank's message of the wrong size ended it.
    mismatch: bool,
}

fn blame(ctx: &Ctx<'_>, rank: Rank, end: &End<'_>, said: &str) -> Blame {
    // Exit code 2 of the built-in trainer means a mistake in the configuration, said or unsaid.
    let builtin = ctx.model.plan.as_ref().is_some_and(|plan| plan.is_builtin());
    let code_2 = end.exit == Exit::Code { code: 2 };
    let usage = ctx.session.run.facts.usage.contains(&rank) || (builtin && code_2);
    let words = format!("{said} {}", end.last_lines.join(" "));
    let mismatch = crate::watch::is_victim(&end.exit, &words);
    let weight = if mismatch { Weight::Victim } else { weigh(&end.exit, usage, &words) };
    Blame { weight, usage, mismatch }
}

/// The generation was on its way out already, for a reason other than a failure.
fn is_end_wanted(ctx: &Ctx<'_>, weight: Weight) -> bool {
    let wanted = match ctx.session.run.facts.cause {
        Some(Cause::Failure | Cause::LaunchFailed(_)) | None => false,
        Some(Cause::Requested { .. } | Cause::Until(_) | Cause::Stuck(_)) => true,
        Some(Cause::Elsewhere { .. }) => weight == Weight::Victim,
    };
    wanted || ctx.session.run.next().is_some()
}

/// A rank failed by itself or as another one's victim: a fact for the watch, and the cause of the run's end.
fn failed(ctx: &mut Ctx<'_>, at: At, rank: Rank, end: &End<'_>, blame: Blame) {
    let Blame { weight, usage, mismatch } = blame;
    let lost_peer = weight == Weight::Victim && !mismatch;
    let culprit = ctx.session.run.facts.culprit().filter(|culprit| culprit.weight <= weight);
    let earlier = culprit.map(|culprit| culprit.rank);
    let stuck = ctx.session.watch.root().filter(|root| *root != rank);
    let known = earlier.or(stuck);
    let left = if known.is_none() && lost_peer { left_early(ctx, at, rank) } else { None };
    let victim_of = known.or(left).filter(|_| lost_peer);
    ctx.session.watch.died(ctx.session.clock.awake_ms);
    // A broken connection is never the first failure of a group, even where its cause has not been heard of
    // yet.
    let victim = lost_peer && ctx.model.ranks.len() > 1;
    let mut verdict = crate::watch::dead(ctx.model, rank, &end.exit, end.last_lines, victim, victim_of);
    let host = ctx.host_name(at.node);
    if end.with_agent {
        // Our own guard sent the signal, after the agent had died.
        verdict.reason = format!(
            "the agent on {host} was killed or died, and rank {rank} with it: ranks do not outlive their agent"
        );
    }
    let ended = at.time - end.ago_ms as f64 / 1000.0;
    let began = ctx.session.run.facts.errors.get(&rank).map_or(ended, |said| said.min(ended));
    let (time, bound_s) = super::failure::on_our_clock(ctx, at.node, began);
    let (last_lines, text) = (end.last_lines.to_vec(), verdict.reason.clone());
    let facts = &mut ctx.session.run.facts;
    facts.failures.push(Failure { rank, host, time, bound_s, last_lines, weight, text, usage });
    facts.blame(Cause::Failure);
    ctx.session.watch.fact(Some(rank), verdict);
}

/// The rank that left early and thereby ended `victim`, if there is one: the run's failure is its failure.
fn left_early(ctx: &mut Ctx<'_>, at: At, victim: Rank) -> Option<Rank> {
    let limits = Limits::of(ctx.model);
    let (rank, text) = ctx.session.watch.left_early(ctx.model, victim, &limits)?;
    let host = ctx.model.ranks.get(rank.index()).map(|rank| rank.host.clone()).unwrap_or_default();
    let (time, bound_s) = super::failure::on_our_clock(ctx, at.node, at.time);
    let (last_lines, weight) = (Vec::new(), Weight::Plain);
    let failure = Failure { rank, host, time, bound_s, last_lines, weight, text, usage: false };
    ctx.session.run.facts.failures.push(failure);
    Some(rank)
}

/// A rank said something on its event socket.
pub(super) fn said(ctx: &mut Ctx<'_>, at: At, rank: Rank, said: RankEvent) {
    match said {
        RankEvent::Hello { .. } => {}
        RankEvent::Joined { world_size: _, backend, device } => joined(ctx, at, rank, &backend, device),
        RankEvent::Counters(counters) => {
            let Some(model) = mine(ctx, at, rank) else { return };
            model.counters.push_back(counters);
            if model.counters.len() > COUNTERS {
                model.counters.pop_front();
            }
            let joined = ctx.session.join.own(rank, counters);
            progressed(ctx, at, joined);
        }
        RankEvent::Totals(totals) if rank == Rank(0) => self::totals(ctx, at, totals),
        RankEvent::Scalars { env_step, values, .. } if rank == Rank(0) => scalars(ctx, env_step, values),
        RankEvent::Eval(evaluation) if rank == Rank(0) => evaluated(ctx, at, evaluation),
        RankEvent::Totals(_) | RankEvent::Scalars { .. } | RankEvent::Eval(_) => {
            ctx.model.drops.misplaced += 1
        }
        RankEvent::Checkpoint { path, env_step, train_iter, reason } => {
            ctx.note_at(at.time, Tone::Info, format!("checkpoint ({reason}) at step {env_step}: {path}"));
            ctx.tell_at(
                at.generation,
                at.time,
                ReportBody::Checkpoint { path: path.clone(), env_step, train_iter, reason: reason.clone() },
            );
            let reached = Reach { train_iter, checkpoint: train_iter.saturating_add(1), ..Reach::default() };
            ctx.session.run.tries.reached.advance(reached);
            ctx.model.checkpoints.push_back(CheckpointModel { path, env_step, train_iter, reason });
            if ctx.model.checkpoints.len() > EVENTS {
                ctx.model.checkpoints.pop_front();
                ctx.model.drops.history += 1;
            }
        }
        RankEvent::Fingerprint { train_iter, update, values, equal } => {
            fingerprint(ctx, at, FingerprintModel { train_iter, update, equal, compared: 0 }, &values);
        }
        RankEvent::Error { message, hint, usage } => {
            ctx.note_at(at.time, Tone::Bad, format!("rank {rank}: {message}"));
            let Some(model) = mine(ctx, at, rank) else { return };
            model.error = Some((words::clip(&message, 2000), words::clip(&hint, 500)));
            ctx.session.run.facts.errors.entry(rank).or_insert(at.time);
            if usage {
                ctx.session.run.facts.usage.insert(rank);
            }
        }
        RankEvent::Finished { reason } => finished(ctx, at, rank, reason),
        RankEvent::Unknown => ctx.model.drops.unknown += 1,
    }
}

fn joined(ctx: &mut Ctx<'_>, at: At, rank: Rank, backend: &str, device: String) {
    let Some(model) = mine(ctx, at, rank) else { return };
    if matches!(model.life, RankLife::Pending | RankLife::Spawned) {
        model.life = RankLife::Joined;
    }
    let detail = format!("{device}, {backend}");
    model.device = device;
    tell_life(ctx, at, rank, "joined", None, detail);
}

fn finished(ctx: &mut Ctx<'_>, at: At, rank: Rank, reason: FinishReason) {
    let Some(model) = mine(ctx, at, rank) else { return };
    if !matches!(model.life, RankLife::Exited(_)) {
        model.life = RankLife::Finished;
    }
    let word = match reason {
        FinishReason::StopValue => "stop value reached",
        FinishReason::Budget => "step goal reached",
        FinishReason::Stopped => "stopped by a signal",
    };
    if rank == Rank(0) {
        ctx.session.run.facts.finish = Some(reason);
        ctx.note_at(at.time, Tone::Good, format!("training has ended: {word}"));
    }
    tell_life(ctx, at, rank, "finished", None, word.into());
}

fn tell_life(ctx: &mut Ctx<'_>, at: At, rank: Rank, state: &str, exit: Option<&Exit>, detail: String) {
    let model = ctx.model.ranks.get(rank.index());
    let (exit_code, signal) = match exit {
        Some(Exit::Code { code }) => (Some(*code), None),
        Some(Exit::Signal { signal, .. }) => (None, Some(*signal)),
        Some(Exit::NotStarted { .. }) | None => (None, None),
    };
    // Of an end: the one phrase for it, and what the rank said of its own.
    let detail = match exit {
        Some(exit) if detail.is_empty() => exit.to_string(),
        Some(exit) => format!("{exit}: {detail}"),
        None => detail,
    };
    let body = ReportBody::Rank {
        rank,
        host: model.map(|model| model.host.clone()).unwrap_or_default(),
        state: state.into(),
        pid: model.and_then(|model| model.pid),
        exit_code,
        signal,
        detail,
    };
    ctx.tell_at(at.generation, at.time, body);
}

fn totals(ctx: &mut Ctx<'_>, at: At, totals: Counters) {
    let rates = &mut ctx.session.rates;
    if rates.generation != at.generation {
        rates.generation = at.generation;
        rates.global.restart();
    }
    let steps_per_s = rates.global.update(at.time, totals.env_step);
    let step = totals.env_step as f64;
    chart(ctx, SPS, step, steps_per_s);
    if totals.returns.count > 0 {
        chart(ctx, RETURN, step, totals.returns.sum / totals.returns.count as f64);
    }
    if ctx.session.run.is_current(at.generation) {
        let joined = ctx.session.join.totals(totals, at.time, steps_per_s);
        progressed(ctx, at, joined);
    }
}

/// Adds to a chart that the console itself makes.
fn chart(ctx: &mut Ctx<'_>, name: &'static str, x: f64, y: f64) {
    if ctx.session.rates.derived.insert(name) {
        ctx.model.scalars.remove(name);
    }
    ctx.model.scalars.entry(name.into()).or_default().push(x, y);
}

fn scalars(ctx: &mut Ctx<'_>, env_step: u64, values: BTreeMap<String, f64>) {
    ctx.session.run.tries.reached.advance(Reach { env_step, ..Reach::default() });
    for (name, value) in values {
        if ctx.session.rates.derived.contains(name.as_str()) {
            continue;
        }
        if ctx.model.scalars.len() >= CHARTS && !ctx.model.scalars.contains_key(&name) {
            ctx.model.drops.charts += 1;
            continue;
        }
        ctx.model.scalars.entry(name).or_default().push(env_step as f64, value);
    }
}

/// A program that does not know rankdeck gave values: those of this rank, not reduced.
pub(super) fn measured(
    ctx: &mut Ctx<'_>,
    at: At,
    rank: Rank,
    source: String,
    env_step: Option<u64>,
    values: BTreeMap<String, f64>,
) {
    let known = ctx.model.own.as_ref();
    let own = OwnMetrics {
        rank,
        source: words::clip(&source, 40),
        env_step: env_step.or_else(|| known.and_then(|known| known.env_step)),
        steps_per_s: values.get(SPS).copied().or_else(|| known.and_then(|known| known.steps_per_s)),
        return_mean: values.get(RETURN).copied().or_else(|| known.and_then(|known| known.return_mean)),
        records: known.map_or(0, |known| known.records).saturating_add(1),
        at: ctx.now,
    };
    // Without steps, only the order of arrival is known.
    let x = own.env_step.unwrap_or(own.records);
    ctx.model.own = Some(own);
    ctx.tell_at(
        at.generation,
        at.time,
        ReportBody::Metrics { rank, source, env_step, values: values.clone(), reduced: false },
    );
    scalars(ctx, x, values);
}

fn evaluated(ctx: &mut Ctx<'_>, at: At, evaluation: Evaluation) {
    chart(ctx, EVAL, evaluation.env_step as f64, evaluation.return_mean);
    ctx.session.run.evals = ctx.session.run.evals.saturating_add(1);
    let text = format!(
        "evaluation at step {}: return {:.1} ± {:.1} over {} episodes{}",
        evaluation.env_step,
        evaluation.return_mean,
        evaluation.return_std,
        evaluation.episodes,
        if evaluation.stop { ", stop value reached" } else { "" }
    );
    ctx.note_at(at.time, Tone::Good, text);
    ctx.tell_at(
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
        },
    );
    ctx.model.evals.push_back(evaluation);
    if ctx.model.evals.len() > EVENTS {
        ctx.model.evals.pop_front();
        ctx.model.drops.history += 1;
    }
}

fn fingerprint(ctx: &mut Ctx<'_>, at: At, latest: FingerprintModel, values: &[String]) {
    if !ctx.session.run.is_current(at.generation) {
        return;
    }
    let compared = ctx.model.fingerprint.as_ref().map_or(0, |known| known.compared).saturating_add(1);
    let (equal, train_iter) = (latest.equal, latest.train_iter);
    ctx.model.fingerprint = Some(FingerprintModel { compared, ..latest });
    if equal {
        ctx.session.watch.take_back(VerdictKind::Drift);
    } else {
        let (rank, verdict) = crate::watch::drift(ctx.model, train_iter, values);
        ctx.session.watch.take_back(VerdictKind::Drift);
        ctx.session.watch.fact(rank, verdict);
    }
}

/// An iteration is complete: the totals and all ranks' counters have arrived.
fn progressed(ctx: &mut Ctx<'_>, at: At, joined: Option<Joined>) {
    ctx.model.drops.joins += ctx.session.join.take_dropped();
    let Some(joined) = joined else { return };
    let per_rank: Vec<RankProgress> =
        ctx.model.ranks.iter().zip(&joined.own).map(|(rank, own)| rank_progress(ctx, rank, own)).collect();
    let Joined { totals, sum, consistent, steps_per_s, time, .. } = joined.clone();
    // Progress is what all ranks have done: a rank that continues after another has failed adds nothing to
    // it.
    let Counters { train_iter, env_step, .. } = totals;
    ctx.session.run.tries.reached.advance(Reach { train_iter, env_step, ..Reach::default() });
    let returns = totals.returns;
    let return_mean =
        (returns.count > 0).then(|| returns.sum / returns.count as f64).filter(|mean| mean.is_finite());
    let eta_s = ctx.model.run.total_steps.and_then(|goal| {
        (steps_per_s > 0.0).then(|| goal.saturating_sub(totals.env_step) as f64 / steps_per_s)
    });
    ctx.tell_at(
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
            per_rank: per_rank.clone(),
        },
    );
    let at = ctx.now;
    ctx.model.progress =
        Some(Progress { totals, sum, consistent, steps_per_s, return_mean, eta_s, at, per_rank });
    if consistent {
        ctx.session.watch.take_back(VerdictKind::TotalsDiffer);
    } else {
        ctx.session.watch.fact(None, crate::watch::totals_differ(ctx.model, &joined));
    }
}

fn rank_progress(ctx: &Ctx<'_>, rank: &RankModel, own: &Counters) -> RankProgress {
    let sample = rank.sample.as_ref();
    let page = sample.and_then(|sample| sample.page.as_ref());
    let gpu = rank.gpu.and_then(|index| {
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
        cpu_percent: sample.map(|sample| sample.cpu_percent),
        gpu_percent: gpu.and_then(|gpu| gpu.utilization),
        rss: sample.map(|sample| sample.rss),
        gpu_memory: sample.and_then(|sample| sample.gpu_memory),
    }
}
