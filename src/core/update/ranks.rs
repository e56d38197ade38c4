//! The lives of ranks, and what ranks report.
//!
//! History (evaluations, checkpoints, charts) is kept over all generations. Lives, joins and failures belong
//! to the present one.

use super::charts::{self, RankScalars};
use super::{media, progress};
use crate::last_words::{EndOfProcess, LastWords};
use crate::limits::Limits;
use crate::model::{CheckpointModel, FingerprintModel, MarkKind, RankLife, RankModel, Subject, Tone};
use crate::report::ReportBody;
use crate::run::{Cause, Failure, Reach, Weight, weigh};
use crate::session::{At, Ctx};
use crate::watch::{Death, Occurrence};
use rankdeck_proto::message::{Exception, Exit, FailureKind, FinishReason, RankEvent};
use rankdeck_types::ids::Rank;
use rankdeck_types::words;

/// Checkpoints kept.
const CHECKPOINTS: usize = 10_000;

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
    /// When that was recorded, by the agent's clock.
    pub time: f64,
    /// Milliseconds from its end to the record.
    pub ago_ms: u64,
    /// Its agent died first.
    pub with_agent: bool,
}

/// Ranks that end alike within this time are one line, ms.
const TOGETHER_MS: u64 = 30_000;
/// Newest lines among which that of the others is looked for.
const NEAR: usize = 64;

/// A stop of many ranks is one line for each way in which they ended: adds a rank to the line of the others.
fn joins_others(ctx: &mut Ctx<'_>, at: At, rank: Rank, exit: &Exit) -> bool {
    let how = exit.to_string();
    let alike = |other: &&RankModel| {
        other.rank != rank && matches!(&other.life, RankLife::Exited(ended) if ended == exit)
    };
    let others = ctx.model.ranks.iter().filter(alike).map(|other| other.rank.0);
    let all: Vec<u32> = others.chain([rank.0]).collect();
    if all.len() < 2 || !ctx.session.run.is_current(at.generation) {
        return false;
    }
    let now = ctx.now;
    let line = ctx.model.history.iter_mut().rev().take(NEAR).find(|line| {
        let about = matches!(line.subject, Some(Subject::Rank(_))) && line.routine;
        about && line.text.ends_with(&how) && line.at.plus(TOGETHER_MS) >= now
    });
    let Some(line) = line else { return false };
    let predicate = exit.predicate();
    let predicate = predicate.strip_prefix("was ").map_or(predicate.clone(), |rest| format!("were {rest}"));
    line.text = format!("ranks {} {predicate}", words::ranges(&all));
    true
}

/// A rank's process ended.
pub(super) fn exited(ctx: &mut Ctx<'_>, at: At, rank: Rank, pid: u32, end: End<'_>) {
    let name = ctx.host_name(at.node);
    let good = end.exit.is_success();
    let tone = if good || end.stopping { Tone::Info } else { Tone::Bad };
    let text = format!("rank {rank} on {name} {}", end.exit.predicate());
    match tone {
        Tone::Info if joins_others(ctx, at, rank, &end.exit) => {}
        Tone::Info => ctx.note_routine(at.time, tone, text, Some(Subject::Rank(rank))),
        Tone::Good | Tone::Warn | Tone::Bad => {
            ctx.note_about(at.time, tone, text, Some(Subject::Rank(rank)));
        }
    }
    let Some(model) = mine(ctx, at, rank) else { return };
    model.pid = if pid == 0 { model.pid } else { Some(pid) };
    model.life = RankLife::Exited(end.exit.clone());
    let rest = ctx.session.addition.rest(at.time);
    progress::summed(ctx, at, rest);
    let Some(model) = mine(ctx, at, rank) else { return };
    let said = model.error.clone().map(|error| error.0).unwrap_or_default();
    let last_words = last_words(model, &end);
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
    let blame = blame(ctx, rank, &end, last_words);
    if end.stopping || is_end_wanted(ctx, blame.weight) {
        // Peers of a rank that a stop has already reached fail with connection errors before their own order
        // arrives.
        if !(end.stopping && end.exit.is_stop_effect()) {
            let facts = &mut ctx.session.run.facts;
            facts.bad_exits += 1;
            let gist = blame.said.gist();
            facts.said_last.extend((!gist.is_empty()).then_some((rank, gist)));
        } else if end.exit.is_sigkill() {
            ctx.session.run.facts.killed += 1;
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
    said: LastWords,
    /// The signal from a console that it ended by.
    sent: Option<i32>,
}

/// A program that ends by itself so long after a signal does it for another reason, seconds.
const AFTER_SIGNAL_S: f64 = 30.0;

/// The signal from a console that a rank ended by: that very signal, or an end soon after one that ends
/// programs.
fn sent(ctx: &Ctx<'_>, rank: Rank, end: &End<'_>) -> Option<i32> {
    let sent = ctx.model.ranks.get(rank.index())?.signalled?;
    let ended = end.time - end.ago_ms as f64 / 1000.0;
    let by_it = match end.exit {
        Exit::Signal { signal, .. } => signal == sent.signal,
        Exit::Code { .. } => ended - sent.time <= AFTER_SIGNAL_S && !words::signal_is_harmless(sent.signal),
        Exit::NotStarted { .. } => false,
    };
    by_it.then_some(sent.signal)
}

/// What the program said about its end.
fn last_words(model: &RankModel, end: &End<'_>) -> LastWords {
    let page = model.sample.as_ref().and_then(|sample| sample.page.as_ref());
    LastWords::of(&EndOfProcess {
        exit: &end.exit,
        exception: model.exception.as_ref(),
        error: model.error.as_ref().map(|error| (error.0.as_str(), model.failure)),
        lines: end.last_lines,
        hooked: page.is_some_and(|page| page.by_hook),
    })
}

fn blame(ctx: &Ctx<'_>, rank: Rank, end: &End<'_>, said: LastWords) -> Blame {
    // Exit code 2 of the built-in trainer means a mistake in the configuration, said or unsaid.
    let builtin = ctx.model.plan.as_ref().is_some_and(|plan| plan.is_builtin());
    let code_2 = end.exit == Exit::Code { code: 2 };
    let usage = ctx.session.run.facts.usage.contains(&rank) || (builtin && code_2);
    let sent = sent(ctx, rank, end);
    // Who ends by what the user sent is nobody's victim.
    let weight = if sent.is_some() { Weight::Hard } else { weigh(&end.exit, usage, &said) };
    Blame { weight, usage, said, sent }
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
    let Blame { weight, usage, said, sent } = blame;
    let lost_peer = weight == Weight::Victim && said.kind() != FailureKind::Mismatch;
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
    let death = Death { exit: &end.exit, said: &said, last_lines: end.last_lines, victim, victim_of, sent };
    let mut verdict = crate::watch::dead(ctx.model, rank, &death);
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
    facts.failed(Failure { rank, host, time, bound_s, last_lines, weight, text, gist: said.gist(), usage });
    facts.blame(Cause::Failure);
    let happened = Occurrence { time: ended, past: at.past };
    ctx.session.watch.fact(Some(rank), verdict, happened);
}

/// The rank that left early and thereby ended `victim`, if there is one: the run's failure is its failure.
fn left_early(ctx: &mut Ctx<'_>, at: At, victim: Rank) -> Option<Rank> {
    let limits = Limits::of(ctx.model.plan.as_ref());
    let (rank, text) = ctx.session.watch.left_early(ctx.model, victim, &limits, at.happened())?;
    let host = ctx.model.ranks.get(rank.index()).map(|rank| rank.host.clone()).unwrap_or_default();
    let (time, bound_s) = super::failure::on_our_clock(ctx, at.node, at.time);
    let (last_lines, weight) = (Vec::new(), Weight::Plain);
    let gist = String::new();
    let failure = Failure { rank, host, time, bound_s, last_lines, weight, text, gist, usage: false };
    ctx.session.run.facts.failed(failure);
    Some(rank)
}

/// A rank said something on its event socket.
pub(super) fn said(ctx: &mut Ctx<'_>, at: At, rank: Rank, said: RankEvent) {
    match said {
        RankEvent::Hello { .. } => {}
        RankEvent::Joined { world_size: _, backend, device } => joined(ctx, at, rank, &backend, device),
        RankEvent::Counters(counters) => {
            let Some(model) = mine(ctx, at, rank) else { return };
            model.own = Some(counters);
            if counters.sum {
                let added = ctx.session.addition.own(rank, counters, at.time);
                return progress::summed(ctx, at, added);
            }
            let joined = ctx.session.join.own(rank, counters);
            progress::progressed(ctx, at, joined);
        }
        RankEvent::Totals(totals) if rank == Rank(0) => progress::totals(ctx, at, totals),
        RankEvent::Scalars { env_step, values, not_finite, .. } if rank == Rank(0) => {
            charts::scalars(ctx, at, env_step, RankScalars { values, not_finite, ..RankScalars::default() });
        }
        RankEvent::Eval(evaluation) if rank == Rank(0) => progress::evaluated(ctx, at, evaluation),
        RankEvent::Histogram(said) if rank == Rank(0) => media::histogram(ctx, at, said),
        RankEvent::Image(said) if rank == Rank(0) => media::image(ctx, at, said),
        RankEvent::Totals(_)
        | RankEvent::Scalars { .. }
        | RankEvent::Eval(_)
        | RankEvent::Histogram(_)
        | RankEvent::Image(_) => ctx.model.drops.misplaced += 1,
        RankEvent::Checkpoint { path, env_step, train_iter, reason } => {
            let text = format!("checkpoint ({reason}) at step {}: {}", words::count(env_step), in_run(&path));
            ctx.note_routine(at.time, Tone::Info, text, Some(Subject::Checkpoint(path.clone())));
            ctx.tell_at(
                at.generation,
                at.time,
                ReportBody::Checkpoint { path: path.clone(), env_step, train_iter, reason: reason.clone() },
            );
            let reached = Reach { train_iter, checkpoint: train_iter.saturating_add(1), ..Reach::default() };
            ctx.session.run.tries.reached.advance(reached);
            charts::mark(ctx, at.happened(), Some(env_step), MarkKind::Checkpoint);
            ctx.model.checkpoints.push_back(CheckpointModel { path, env_step, train_iter, reason });
            if ctx.model.checkpoints.len() > CHECKPOINTS {
                ctx.model.checkpoints.pop_front();
                ctx.model.drops.history += 1;
            }
        }
        RankEvent::Fingerprint { train_iter, update, values, equal } => {
            progress::fingerprint(
                ctx,
                at,
                FingerprintModel { train_iter, update, equal, compared: 0 },
                &values,
            );
        }
        RankEvent::Error { message, hint, usage, failure } => {
            ctx.note_at(at.time, Tone::Bad, format!("rank {rank}: {message}"));
            let Some(model) = mine(ctx, at, rank) else { return };
            model.error = Some((words::clip(&message, 2000), words::clip(&hint, 500)));
            model.failure = failure;
            ctx.session.run.facts.errors.entry(rank).or_insert(at.time);
            if usage || failure == Some(FailureKind::Configuration) {
                ctx.session.run.facts.usage.insert(rank);
            }
        }
        RankEvent::Exception(exception) => raised(ctx, at, rank, exception),
        RankEvent::Finished { reason } => finished(ctx, at, rank, reason),
        // An agent records no frames.
        RankEvent::Frame(_) | RankEvent::Unknown => ctx.model.drops.unknown += 1,
    }
}

/// A rank is about to end because of an exception. The first of the main thread counts: a launcher's follows
/// from that of the program that it started.
fn raised(ctx: &mut Ctx<'_>, at: At, rank: Rank, exception: Exception) {
    let told = LastWords::exception(&exception);
    ctx.note_at(at.time, Tone::Bad, format!("rank {rank}: {}", told.shown()));
    let Some(model) = mine(ctx, at, rank) else { return };
    if model.exception.as_ref().is_none_or(|known| !known.thread.is_empty()) {
        model.exception = Some(exception);
    }
    ctx.session.run.facts.errors.entry(rank).or_insert(at.time);
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

/// A checkpoint's place in the folder of its run.
fn in_run(path: &str) -> &str {
    path.rfind("/checkpoints/").map_or(path, |at| &path[at + 1..])
}
