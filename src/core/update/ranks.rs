//! Starts and ends of ranks, and the events that ranks report.
//!
//! History (evaluations, checkpoints, charts) is kept over all generations. Lives, joins and failures belong
//! to the present one.

use super::charts::{self, RankScalars};
use super::shrink::{self, Death};
use super::{failure, progress};
use crate::end::{EndEvidence, RankEnd, of_rank};
use crate::exit_message::{EndOfProcess, ExitMessage, logged_exception};
use crate::limits::TimeLimits;
use crate::membership::RankLoss;
use crate::model::{
    ChartMarkKind, CheckpointModel, EventSubject, EventTone, FingerprintModel, RankLife, RankModel,
};
use crate::origin;
use crate::report::{ReportBody, VerdictReport};
use crate::run::{BlamePriority, EndCause, FailedRank, RunProgress};
use crate::session::{EventCtx, RecordContext};
use crate::watch::{AbnormalExit, RecordedTime};
use crate::work::{AGAIN_S, FoundFile};
use rankdeck_proto::message::{
    CheckpointOrigin, Exception, Exit, FailureKind, FinishReason, InnerRank, RankEvent, StepSource,
};
use rankdeck_proto::run_entry::SavedCheckpoint;
use rankdeck_types::experiment::StopSignal;
use rankdeck_types::ids::Rank;
use rankdeck_types::words;
use std::collections::BTreeSet;

/// Exceptions that follow from the failure of a program that the rank's own has started.
const OF_CHILDREN: [&str; 4] =
    ["ChildFailedError", "ProcessRaisedException", "ProcessExitedException", "CalledProcessError"];
/// Estimates of a host's clock may differ by so much between two records, seconds.
const CLOCK_S: f64 = 0.5;
/// Checkpoints kept.
pub(super) const CHECKPOINTS: usize = 10_000;

/// A rank of this host in the present generation.
fn mine<'a>(ctx: &'a mut EventCtx<'_>, at: RecordContext, rank: Rank) -> Option<&'a mut RankModel> {
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
pub(super) fn spawned(ctx: &mut EventCtx<'_>, at: RecordContext, rank: Rank, pid: u32) {
    let Some(model) = mine(ctx, at, rank) else { return };
    if model.lost {
        shrink::started_again(ctx, at.node, rank, pid);
        return report_life(ctx, at, rank, "spawned", None, String::new());
    }
    model.pid = Some(pid);
    if model.life == RankLife::Pending {
        model.life = RankLife::Spawned;
    }
    report_life(ctx, at, rank, "spawned", None, String::new());
}

/// How a rank's process ended.
pub(super) struct ProcessEnd<'a> {
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
/// Newest lines in which the line about the others is searched.
const NEAR: usize = 64;

/// A stop of many ranks is one line for each way in which they ended: adds a rank to the line of the others.
fn joins_others(ctx: &mut EventCtx<'_>, at: RecordContext, rank: Rank, exit: &Exit) -> bool {
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
        let about = matches!(line.subject, Some(EventSubject::Rank(_))) && line.routine;
        about && line.text.ends_with(&how) && line.at.plus(TOGETHER_MS) >= now
    });
    let Some(line) = line else { return false };
    let predicate = exit.predicate();
    let predicate = predicate.strip_prefix("was ").map_or(predicate.clone(), |rest| format!("were {rest}"));
    line.text = format!("ranks {} {predicate}", words::ranges(&all));
    true
}

/// A rank's process ended.
pub(super) fn exited(ctx: &mut EventCtx<'_>, at: RecordContext, rank: Rank, pid: u32, end: ProcessEnd<'_>) {
    let name = ctx.host_name(at.node);
    let mut judged = judge(ctx, at, rank, &end);
    let (loss, dead) = (loss(ctx, at, rank, &end, &judged), judged.how);
    if loss != RankLoss::Failure {
        judged.how = RankEnd::Lost;
    }
    let how = judged.how;
    let mut text = format!("rank {rank} on {name} {}", end.exit.predicate());
    let tone = match how {
        RankEnd::CrashedAtExit => {
            text.push_str(" as it exited, after its program had returned");
            EventTone::Warn
        }
        RankEnd::Done | RankEnd::Stopped | RankEnd::Killed => EventTone::Info,
        RankEnd::Lost => EventTone::Warn,
        RankEnd::Hard | RankEnd::Failed | RankEnd::Secondary if end.stopping => EventTone::Info,
        RankEnd::Hard | RankEnd::Failed | RankEnd::Secondary => EventTone::Bad,
    };
    match tone {
        EventTone::Info if joins_others(ctx, at, rank, &end.exit) => {}
        EventTone::Info => ctx.note_routine(at.time, tone, text.clone(), Some(EventSubject::Rank(rank))),
        EventTone::Good | EventTone::Warn | EventTone::Bad => {
            ctx.note_about(at.time, tone, text.clone(), Some(EventSubject::Rank(rank)));
        }
    }
    let Some(model) = mine(ctx, at, rank) else { return };
    model.pid = if pid == 0 { model.pid } else { Some(pid) };
    model.life = RankLife::Exited(end.exit.clone());
    model.end = Some(how);
    model.lost |= how == RankEnd::Lost;
    let rest = ctx.session.addition.rest(at.time);
    progress::summed(ctx, at, rest);
    let Some(model) = mine(ctx, at, rank) else { return };
    let error = model.error.clone().map(|error| error.0).unwrap_or_default();
    let state = match &end.exit {
        Exit::Code { .. } | Exit::Signal { .. } | Exit::NotStarted { .. } if how == RankEnd::Lost => "lost",
        Exit::Code { code: 0 } if how.is_good() => "exited",
        Exit::Code { .. } => "failed",
        Exit::Signal { .. } => "killed",
        Exit::NotStarted { .. } => "not_started",
    };
    report_life(ctx, at, rank, state, Some(&end.exit), error);
    let facts = &mut ctx.session.run.facts;
    if how != RankEnd::Lost {
        facts.first_end.get_or_insert(ctx.now);
    }
    match how {
        RankEnd::Lost if loss == RankLoss::Gone => shrink::gone(ctx, rank, at.happened(), &end.exit),
        RankEnd::Lost => {
            let death = death(ctx, at, rank, &end, (priority(dead), judged), None);
            shrink::lost(ctx, rank, dead, death, end.with_agent);
        }
        RankEnd::Done | RankEnd::CrashedAtExit => ended_well(ctx, at, rank, &end, how, text),
        RankEnd::Stopped => {}
        RankEnd::Killed => facts.killed += 1,
        RankEnd::Hard | RankEnd::Failed | RankEnd::Secondary if end.stopping || is_end_requested(ctx) => {
            let shown = judged.message.shown();
            let how = if shown.is_empty() { text } else { format!("{text}: {shown}") };
            ctx.session.run.facts.ended_badly(rank, judged.message.gist(), how);
        }
        RankEnd::Hard | RankEnd::Failed | RankEnd::Secondary => {
            failed(ctx, at, rank, &end, (priority(how), judged));
        }
    }
}

/// How likely a failure is the cause of the others.
fn priority(how: RankEnd) -> BlamePriority {
    match how {
        RankEnd::Failed => BlamePriority::Plain,
        RankEnd::Secondary => BlamePriority::Victim,
        RankEnd::Hard
        | RankEnd::Lost
        | RankEnd::Done
        | RankEnd::CrashedAtExit
        | RankEnd::Stopped
        | RankEnd::Killed => BlamePriority::Hard,
    }
}

/// Whether the others continue without it.
fn loss(
    ctx: &EventCtx<'_>,
    at: RecordContext,
    rank: Rank,
    end: &ProcessEnd<'_>,
    judged: &JudgedEnd,
) -> RankLoss {
    let model = ctx.model.ranks.get(rank.index()).filter(|model| model.node == at.node);
    // Nobody waits for a rank that is no member any more, however it ends.
    let may_be = model.is_some_and(|model| model.lost || judged.how.is_failure());
    match may_be && ctx.session.run.is_current(at.generation) && !end.stopping {
        true => shrink::loss_of(ctx, rank, &end.exit, judged.usage),
        false => RankLoss::Failure,
    }
}

/// A rank has done its work. Its exit may be odd, and it may have left too early.
fn ended_well(
    ctx: &mut EventCtx<'_>,
    at: RecordContext,
    rank: Rank,
    end: &ProcessEnd<'_>,
    how: RankEnd,
    text: String,
) {
    if how == RankEnd::CrashedAtExit {
        ctx.session.run.facts.warn(text);
    } else if let Some(logged) = logged_exception(end.last_lines).filter(|_| !end.stopping) {
        let name = ctx.host_name(at.node);
        let text = format!("rank {rank} on {name} exited with code 0 after it logged {logged}");
        ctx.note_about(at.time, EventTone::Warn, text.clone(), Some(EventSubject::Rank(rank)));
        ctx.session.run.facts.warn(text);
    }
    // The ranks whose connection it closed may have reported first.
    let facts = &ctx.session.run.facts;
    let follow = facts.failures.iter().all(|failure| failure.weight >= BlamePriority::Late);
    let victim = facts.failures.iter().find(|failure| failure.weight == BlamePriority::Victim);
    let victim = victim.map(|failure| failure.rank).filter(|_| follow && !end.stopping);
    if let Some(victim) = victim {
        left_early(ctx, at, victim);
    }
}

/// How a rank ended, and why.
struct JudgedEnd {
    how: RankEnd,
    /// The rank named a mistake in the configuration.
    usage: bool,
    message: ExitMessage,
    /// The signal from a console that it ended by.
    sent: Option<i32>,
}

fn judge(ctx: &EventCtx<'_>, at: RecordContext, rank: Rank, end: &ProcessEnd<'_>) -> JudgedEnd {
    let is_current = ctx.session.run.is_current(at.generation);
    let known = ctx.model.ranks.get(rank.index()).filter(|model| is_current && model.node == at.node);
    let plan = ctx.model.plan.as_ref().filter(|_| known.is_some());
    // Exit code 2 of the built-in trainer means a configuration error, with or without a message.
    let code_2 = plan.is_some_and(|plan| plan.is_builtin()) && end.exit == Exit::Code { code: 2 };
    let usage = known.is_some() && (code_2 || ctx.session.run.facts.usage.contains(&rank));
    let message = known.map(|model| last_words(model, end)).unwrap_or_default();
    let sent = known.and_then(|model| sent(model, end));
    let how = of_rank(&EndEvidence {
        exit: &end.exit,
        message: &message,
        raised: known.is_some_and(|model| model.raised),
        returned: known.is_some_and(|model| model.returned),
        usage,
        sent: sent.is_some(),
        stopping: end.stopping,
        ending: known.is_some() && is_on_its_way_out(ctx),
        stop_signal: plan.and_then(|plan| plan.experiment.launch.stop_signal).map(StopSignal::number),
    });
    JudgedEnd { how, usage, message, sent }
}

/// A program that ends by itself this long after a signal ends for another reason, seconds.
const AFTER_SIGNAL_S: f64 = 30.0;

/// The signal from a console that a rank ended by: that very signal, or an end soon after one that ends
/// programs.
fn sent(model: &RankModel, end: &ProcessEnd<'_>) -> Option<i32> {
    let sent = model.signalled?;
    let ended = end.time - end.ago_ms as f64 / 1000.0;
    let by_it = match end.exit {
        Exit::Signal { signal, .. } => signal == sent.signal,
        Exit::Code { .. } => ended - sent.time <= AFTER_SIGNAL_S && !words::signal_is_harmless(sent.signal),
        Exit::NotStarted { .. } => false,
    };
    by_it.then_some(sent.signal)
}

/// The error message of the program.
fn last_words(model: &RankModel, end: &ProcessEnd<'_>) -> ExitMessage {
    let page = model.sample.as_ref().and_then(|sample| sample.page.as_ref());
    ExitMessage::of(&EndOfProcess {
        exit: &end.exit,
        exception: model.exception.as_ref(),
        error: model.error.as_ref().map(|error| (error.0.as_str(), model.failure)),
        lines: end.last_lines,
        hooked: page.is_some_and(|page| page.by_hook),
    })
}

/// The generation was on its way out already, by order of this console and for a reason other than a failure.
fn is_end_requested(ctx: &EventCtx<'_>) -> bool {
    let requested = match ctx.session.run.facts.cause {
        Some(EndCause::Failure | EndCause::LaunchFailed(_) | EndCause::Elsewhere { .. }) | None => false,
        Some(EndCause::Requested { .. } | EndCause::Until(_) | EndCause::Stuck(_)) => true,
    };
    requested || ctx.session.run.next().is_some()
}

/// The same, by whose order ever: peers of a rank that a stop has already reached fail with connection errors
/// before their own order arrives.
fn is_on_its_way_out(ctx: &EventCtx<'_>) -> bool {
    is_end_requested(ctx) || matches!(ctx.session.run.facts.cause, Some(EndCause::Elsewhere { .. }))
}

/// A rank failed by itself or as a secondary failure: a fact for the watch, and the cause of the run's end.
fn failed(
    ctx: &mut EventCtx<'_>,
    at: RecordContext,
    rank: Rank,
    end: &ProcessEnd<'_>,
    (weight, judged): (BlamePriority, JudgedEnd),
) {
    let lost_peer = has_lost_peer(weight, &judged);
    if lost_peer {
        blame_root(ctx, at, rank);
    }
    let culprit = ctx.session.run.facts.culprit().filter(|culprit| culprit.weight <= weight);
    let victim_of = culprit.map(|culprit| culprit.rank).filter(|_| lost_peer);
    ctx.session.watch.on_death(ctx.session.clock.awake_ms);
    let Death { failure, verdict, happened } = death(ctx, at, rank, end, (weight, judged), victim_of);
    let facts = &mut ctx.session.run.facts;
    facts.failed(failure);
    facts.blame(EndCause::Failure);
    ctx.session.watch.add_fact(Some(rank), verdict, happened);
    // SHRINK-4.
    shrink::expire(ctx);
}

/// The failure reports a broken connection to another rank.
fn has_lost_peer(weight: BlamePriority, judged: &JudgedEnd) -> bool {
    weight == BlamePriority::Victim && judged.message.kind() != FailureKind::Mismatch
}

/// Describes the death of a rank; `victim_of`: the rank that failed before it.
fn death(
    ctx: &EventCtx<'_>,
    at: RecordContext,
    rank: Rank,
    end: &ProcessEnd<'_>,
    (weight, judged): (BlamePriority, JudgedEnd),
    victim_of: Option<Rank>,
) -> Death {
    // A broken connection is never the first failure of a group, even if its cause has not been reported
    // yet.
    let victim = has_lost_peer(weight, &judged) && ctx.model.ranks.len() > 1;
    let JudgedEnd { usage, message, sent, .. } = judged;
    let death = AbnormalExit {
        exit: &end.exit,
        message: &message,
        last_lines: end.last_lines,
        victim,
        victim_of,
        sent,
    };
    let mut verdict = crate::watch::dead(ctx.model, rank, &death);
    let host = ctx.host_name(at.node);
    if end.with_agent {
        // Our own guard sent the signal, after the agent had died.
        verdict.reason = format!("agent on {host} died; rank {rank} was killed with it");
    }
    let ended = at.time - end.ago_ms as f64 / 1000.0;
    let began = ctx.session.run.facts.errors.get(&rank).map_or(ended, |reported| reported.min(ended));
    let (time, bound_s) = failure::on_our_clock(ctx, at.node, began);
    let (last_lines, text) = (end.last_lines.to_vec(), verdict.reason.clone());
    let failure =
        FailedRank { rank, host, time, bound_s, last_lines, weight, text, gist: message.gist(), usage };
    let happened = RecordedTime { time: ended, past: at.past };
    Death { failure, verdict, happened }
}

/// Lines of its log that are shown of a rank that others failed by, though it lives.
const LINES_OF_ROOT: usize = 20;

/// Ranks that wait for another one lose their connection or run into a timeout in the end. Unless another rank
/// failed by itself, the culprit is, in this order: the rank that a critical verdict named before, a rank that left
/// early, or the late rank of a warning. The timeout of a process group may be shorter than the patience of the
/// detector, so that no verdict has become critical yet.
fn blame_root(ctx: &mut EventCtx<'_>, at: RecordContext, victim: Rank) {
    let failures = &ctx.session.run.facts.failures;
    if failures.iter().any(|failure| failure.weight != BlamePriority::Victim) {
        return;
    }
    let is_first = failures.is_empty();
    let critical = ctx.session.watch.critical();
    let root = critical.and_then(|verdict| named_root(ctx, verdict, victim, BlamePriority::Root));
    if root.is_none() && is_first && left_early(ctx, at, victim).is_some() {
        return;
    }
    let late = || {
        let verdict = ctx.session.watch.late_rank(victim)?;
        named_root(ctx, verdict, victim, BlamePriority::Late)
    };
    if let Some(failure) = root.or_else(late) {
        ctx.session.run.facts.failed(failure);
    }
}

/// The failure of a live rank that a verdict names; `None` if that is the victim itself.
fn named_root(
    ctx: &EventCtx<'_>,
    verdict: &VerdictReport,
    victim: Rank,
    weight: BlamePriority,
) -> Option<FailedRank> {
    let rank = verdict.rank.filter(|rank| *rank != victim)?;
    let model = ctx.model.ranks.get(rank.index())?;
    let lines = model.log.lines.iter().skip(model.log.lines.len().saturating_sub(LINES_OF_ROOT));
    let now = ctx.session.clock.wall_time(ctx.now);
    Some(FailedRank {
        rank,
        host: model.host.clone(),
        time: (now - verdict.latency_s).max(0.0),
        bound_s: 0.0,
        last_lines: lines.map(|line| line.text.clone()).collect(),
        weight,
        text: verdict.reason.clone(),
        gist: String::new(),
        usage: false,
    })
}

/// The rank that left early and thereby ended `victim`, if there is one: the run's failure is its failure.
fn left_early(ctx: &mut EventCtx<'_>, at: RecordContext, victim: Rank) -> Option<Rank> {
    let limits = TimeLimits::of(ctx.model.plan.as_ref());
    let (rank, text) = ctx.session.watch.left_early(ctx.model, victim, &limits, at.happened())?;
    let host = ctx.model.ranks.get(rank.index()).map(|rank| rank.host.clone()).unwrap_or_default();
    let (time, bound_s) = failure::on_our_clock(ctx, at.node, at.time);
    let (last_lines, weight) = (Vec::new(), BlamePriority::Plain);
    let gist = String::new();
    let failure = FailedRank { rank, host, time, bound_s, last_lines, weight, text, gist, usage: false };
    ctx.session.run.facts.failed(failure);
    Some(rank)
}

/// A rank sent an event on its event socket.
pub(super) fn on_rank_event(ctx: &mut EventCtx<'_>, at: RecordContext, rank: Rank, event: RankEvent) {
    match event {
        RankEvent::Hello { .. } => {}
        RankEvent::Joined { world_size: _, backend, device } => joined(ctx, at, rank, &backend, device),
        RankEvent::Counters(counters) => {
            let Some(model) = mine(ctx, at, rank) else { return };
            model.own = Some(counters);
            let page = model.sample.as_ref().and_then(|sample| sample.page.as_ref());
            if at.past || page.is_none_or(|page| page.by_hook) {
                model.steps_per_s = model.rate.update(at.time, counters.env_step);
            }
            if counters.sum {
                let added = ctx.session.addition.own(rank, counters, at.time);
                return progress::summed(ctx, at, added);
            }
            let joined = ctx.session.join.own(rank, counters);
            progress::progressed(ctx, at, joined);
        }
        RankEvent::Totals(totals) if reports(ctx, rank) => progress::totals(ctx, at, totals),
        RankEvent::Scalars { env_step, values, not_finite, .. } if reports(ctx, rank) => {
            let scalars = RankScalars { values, not_finite, ..RankScalars::default() };
            charts::scalars(ctx, at, (env_step as f64, "step"), scalars);
        }
        RankEvent::Eval(evaluation) if reports(ctx, rank) => progress::evaluated(ctx, at, evaluation),
        RankEvent::Histogram(logged) if reports(ctx, rank) => charts::add_histogram(ctx, at, logged),
        RankEvent::Image(logged) if reports(ctx, rank) => charts::add_image(ctx, at, logged),
        RankEvent::Totals(_)
        | RankEvent::Scalars { .. }
        | RankEvent::Eval(_)
        | RankEvent::Histogram(_)
        | RankEvent::Image(_) => ctx.model.drops.misplaced += 1,
        RankEvent::Checkpoint { path, env_step, train_iter, reason } => {
            let (generation, (complete, _)) = (at.generation, failure::on_our_clock(ctx, at.node, at.time));
            let complete = if at.time > 0.0 { complete } else { 0.0 };
            // Its file may have been found before.
            let is_it = |known: &CheckpointModel| {
                !known.origin.is_reported() && known.generation == generation && known.covers(&path)
            };
            ctx.model.checkpoints.retain(|known| !is_it(known));
            let checkpoint = CheckpointModel {
                path,
                env_step,
                train_iter,
                reason,
                generation,
                at: complete,
                node: at.node,
                ..CheckpointModel::default()
            };
            saved(ctx, at, checkpoint);
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
            ctx.note_at(at.time, EventTone::Bad, format!("rank {rank}: {message}"));
            let Some(model) = mine(ctx, at, rank) else { return };
            model.error = Some((words::clip(&message, 2000), words::clip(&hint, 500)));
            model.failure = failure;
            ctx.session.run.facts.errors.entry(rank).or_insert(at.time);
            if usage || failure == Some(FailureKind::Configuration) {
                ctx.session.run.facts.usage.insert(rank);
            }
        }
        RankEvent::Exception(exception) => raised(ctx, at, rank, exception),
        RankEvent::Survived => {
            let Some(model) = mine(ctx, at, rank) else { return };
            let raised = model.raised || model.exception.is_some();
            (model.exception, model.raised, model.returned) = (None, false, false);
            ctx.session.run.facts.errors.remove(&rank);
            let text = format!("rank {rank}: another program started after the exception");
            if raised {
                ctx.note_at(at.time, EventTone::Info, text);
            }
        }
        RankEvent::Returned => {
            let Some(model) = mine(ctx, at, rank) else { return };
            model.returned = true;
        }
        RankEvent::InnerRank(inner) => inner_rank(ctx, at, rank, inner),
        RankEvent::Membership(change) => {
            if mine(ctx, at, rank).is_some() {
                shrink::changed(ctx, at, change);
            }
        }
        RankEvent::Finished { reason } => finished(ctx, at, rank, reason),
        // An agent records no frames.
        RankEvent::Frame(_) | RankEvent::Unknown => ctx.model.drops.unknown += 1,
    }
}

/// The rank may report for all: rank 0, or the lowest of those that are left.
fn reports(ctx: &EventCtx<'_>, rank: Rank) -> bool {
    ctx.model.membership.may_report(rank)
}

/// The checkpoint of a file that an agent has found.
pub(super) fn found(
    ctx: &mut EventCtx<'_>,
    at: RecordContext,
    file: &FoundFile,
    (env_step, step_from): (Option<u64>, Option<StepSource>),
) {
    let is_reported = |known: &CheckpointModel| {
        known.origin.is_reported()
            && known.covers(&file.path)
            && (known.at == 0.0 || file.time - known.at <= AGAIN_S)
    };
    // At the end all of them are found again.
    let is_known = |known: &CheckpointModel| {
        known.path == file.path
            && known.generation == at.generation
            && (known.at - file.time).abs() <= CLOCK_S
    };
    if ctx.model.checkpoints.iter().any(|known| is_reported(known) || is_known(known)) {
        return;
    }
    // What was there before has been written over. Hosts may save under one path.
    let is_replaced = |known: &CheckpointModel| {
        !known.origin.is_reported() && known.path == file.path && known.generation == at.generation
    };
    ctx.model.checkpoints.retain(|known| !is_replaced(known));
    let checkpoint = CheckpointModel {
        path: file.path.clone(),
        env_step: env_step.unwrap_or(0),
        reason: SavedCheckpoint::FOUND.to_owned(),
        generation: at.generation,
        at: file.time,
        origin: CheckpointOrigin::Found,
        step_from,
        bytes: Some(file.bytes),
        node: file.node,
        ..CheckpointModel::default()
    };
    saved(ctx, at, checkpoint);
}

/// A checkpoint is complete.
fn saved(ctx: &mut EventCtx<'_>, at: RecordContext, checkpoint: CheckpointModel) {
    let step = checkpoint.step();
    let CheckpointModel { path, env_step, train_iter, reason, origin, step_from, bytes, .. } =
        checkpoint.clone();
    let place = step.map(|step| format!(" at step {}", words::count(step))).unwrap_or_default();
    let size = bytes.map(|bytes| format!(" ({})", words::bytes(bytes))).unwrap_or_default();
    let text = format!("checkpoint ({reason}){place}: {}{size}", in_run(&path));
    ctx.note_routine(at.time, EventTone::Info, text, Some(EventSubject::Checkpoint(path.clone())));
    let body = ReportBody::Checkpoint { path, env_step, train_iter, reason, origin, step_from, bytes };
    ctx.report_at(at.generation, at.time, body);
    let reached = &mut ctx.session.run.tries.reached;
    // Where nothing is counted, another checkpoint is progress.
    reached.advance(match origin {
        CheckpointOrigin::Reported => {
            RunProgress { train_iter, checkpoint: train_iter.saturating_add(1), ..RunProgress::default() }
        }
        CheckpointOrigin::Found if env_step > 0 => RunProgress { env_step, ..RunProgress::default() },
        CheckpointOrigin::Found => {
            RunProgress { checkpoint: reached.checkpoint.saturating_add(1), ..RunProgress::default() }
        }
    });
    if step.is_some() {
        charts::mark(ctx, at.happened(), (at.generation, step), ChartMarkKind::Checkpoint);
    }
    // A host that was away sends what it has saved late, perhaps after a launch that left it behind (ORIGIN-2).
    let generation = checkpoint.generation;
    if !ctx.model.lineage.keeps(generation, step.unwrap_or(0) as f64) {
        return;
    }
    // The last one is what a restart resumes from.
    let all = &mut ctx.model.checkpoints;
    let own = all.iter().rposition(|known| known.generation <= generation).map_or(0, |before| before + 1);
    let last = all.iter().rposition(|known| known.origin.is_reported()).filter(|_| !origin.is_reported());
    all.insert(last.map_or(own, |last| last.min(own)), checkpoint);
    if ctx.model.checkpoints.len() > CHECKPOINTS {
        origin::forget_oldest(&mut ctx.model.checkpoints);
        ctx.model.drops.history += 1;
    }
}

/// A rank is about to end because of an exception. The first of the main thread counts: a launcher's follows
/// from that of the program that it started.
fn raised(ctx: &mut EventCtx<'_>, at: RecordContext, rank: Rank, exception: Exception) {
    let message = ExitMessage::exception(&exception);
    let stopping = ctx.host(at.node).machine.stop_recorded || is_on_its_way_out(ctx);
    let is_of_the_stop = message.kind() == FailureKind::Connection || message.is_interrupt();
    let tone = if stopping && is_of_the_stop { EventTone::Info } else { EventTone::Bad };
    ctx.note_at(at.time, tone, format!("rank {rank}: {}", message.shown()));
    let Some(model) = mine(ctx, at, rank) else { return };
    let (ends, class) = (exception.ends_rank(), exception.class.rsplit('.').next().unwrap_or_default());
    let follows = OF_CHILDREN.contains(&class);
    let is_better = |known: &Exception| !known.thread.is_empty() || (known.survivable && ends && !follows);
    if model.exception.as_ref().is_none_or(is_better) {
        model.exception = Some(exception);
    }
    model.raised |= ends;
    ctx.session.run.facts.errors.entry(rank).or_insert(at.time);
}

fn joined(ctx: &mut EventCtx<'_>, at: RecordContext, rank: Rank, backend: &str, device: String) {
    let Some(model) = mine(ctx, at, rank) else { return };
    if matches!(model.life, RankLife::Pending | RankLife::Spawned) {
        model.life = RankLife::Joined;
    }
    let detail = format!("{device}, {backend}");
    model.device = device;
    report_life(ctx, at, rank, "joined", None, detail);
}

/// A rank has started another rank of a group of its own. They are reported together, once all of the group are there:
/// those of this rank, or those of several ranks that form one group.
fn inner_rank(ctx: &mut EventCtx<'_>, at: RecordContext, rank: Rank, inner: InnerRank) {
    let Some(model) = mine(ctx, at, rank) else { return };
    let world = inner.world_size.map_or(1, |size| size as usize);
    if !model.add_inner(inner) {
        return;
    }
    let is_whole = model.inner.len() == world;
    let all = || ctx.model.ranks.iter().filter(|rank| !rank.inner.is_empty());
    let numbers: BTreeSet<Option<u32>> = all().flat_map(|rank| &rank.inner).map(|inner| inner.rank).collect();
    let is_common = numbers.len() == world && all().map(|rank| rank.inner.len()).sum::<usize>() == world;
    let complete = all().filter(|other| (is_whole && other.rank == rank) || (!is_whole && is_common));
    let complete: Vec<(Rank, String)> =
        complete.filter_map(|rank| Some((rank.rank, rank.inner_ranks()?))).collect();
    for (rank, text) in complete {
        ctx.note_at(at.time, EventTone::Info, format!("rank {rank} spawned {text}"));
        report_life(ctx, at, rank, "spawned_ranks", None, text);
    }
}

fn finished(ctx: &mut EventCtx<'_>, at: RecordContext, rank: Rank, reason: FinishReason) {
    let Some(model) = mine(ctx, at, rank) else { return };
    if !matches!(model.life, RankLife::Exited(_)) {
        model.life = RankLife::Finished;
    }
    let word = match reason {
        FinishReason::StopValue => "reached the stop value",
        FinishReason::Budget => "reached the target steps",
        FinishReason::Stopped => "stopped by a signal",
    };
    if rank == ctx.model.membership.reporter() {
        ctx.session.run.facts.finish = Some(reason);
        ctx.note_at(at.time, EventTone::Good, format!("training finished: {word}"));
    }
    report_life(ctx, at, rank, "finished", None, word.into());
}

fn report_life(
    ctx: &mut EventCtx<'_>,
    at: RecordContext,
    rank: Rank,
    state: &str,
    exit: Option<&Exit>,
    detail: String,
) {
    let model = ctx.model.ranks.get(rank.index());
    let (exit_code, signal) = match exit {
        Some(Exit::Code { code }) => (Some(*code), None),
        Some(Exit::Signal { signal, .. }) => (None, Some(*signal)),
        Some(Exit::NotStarted { .. }) | None => (None, None),
    };
    // Of an exit: the phrase for it, and the rank's own message.
    let detail = match exit {
        Some(exit) => exit.explained(&detail, &[]),
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
    ctx.report_at(at.generation, at.time, body);
}

/// A checkpoint's place in the folder of its run.
fn in_run(path: &str) -> &str {
    path.rfind("/checkpoints/").map_or(path, |at| &path[at + 1..])
}
