//! Shutdown: orders stops, waits (bounded) for each host to verify, then reports the outcome.

use super::{failure, policy, shrink, transition, verdicts};
use crate::host::HostStage;
use crate::limits::TimeLimits;
use crate::model::{CheckpointModel, EventTone, HostModel, Model};
use crate::origin::exclusion;
use crate::reason::{Reason, SentenceForm, fill};
use crate::report::RunOutcome;
use crate::run::{EndCause, RunStage, StopRequest};
use crate::session::EventCtx;
use crate::watch::separate_programs;
use crate::work::{self, ReachedWork, WorkFacts};
use rankdeck_proto::message::{ConsoleMessage, RunEnd, StopMode, Work};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{NodeRank, Timestamp};
use rankdeck_types::promise::Promise;
use rankdeck_types::words;

/// Milliseconds between the first failure and the stop of all others, so that peers can report.
const PEERS_MS: u64 = 2_000;
/// Milliseconds for which the launch of another console may be on its way to a host.
const HALF_LAUNCHED_MS: u64 = 2_000;
/// Milliseconds for which another console that stopped the run may launch its next generation.
const SUCCESSOR_MS: u64 = 4_000;
/// Milliseconds for a host to prove its stop after everything was killed.
const KILL_MS: u64 = 10_000;

/// Sends orders to every host until each has proved that nothing is left.
pub(super) fn draining(ctx: &mut EventCtx<'_>, began: Timestamp) {
    request_due_stop(ctx);
    let open: Vec<NodeRank> = ctx
        .model
        .hosts
        .iter()
        .filter(|host| is_awaited(ctx, host) && !is_done(ctx, host, began) && !given_up(ctx, host))
        .map(|host| host.node_rank)
        .collect();
    for node in ctx.nodes() {
        let host = &ctx.model.hosts[node.index()];
        if host.caught_up() && ctx.is_clear(host) {
            ctx.host(node).stopped.get_or_insert_default();
        }
    }
    if open.is_empty() {
        if !is_successor_expected(ctx) {
            conclude(ctx, &open);
        }
        return;
    }
    match ctx.session.run.facts.stop.filter(|stop| ctx.now >= stop.at) {
        Some(stop) => stopping(ctx, &open, stop),
        None => leaving(ctx, &open, began),
    }
}

/// The present generation needs the host's proof to end; a requested stop needs that of every host. One without
/// which the others have continued, and that does not respond, is not waited for.
fn is_awaited(ctx: &EventCtx<'_>, host: &HostModel) -> bool {
    let is_left = shrink::is_left(ctx, host) && !host.machine.is_connected();
    ctx.is_member(host) && !is_left || ctx.session.run.facts.by_user && ctx.counts(host)
}

/// The host has verified its stop, or has reported which processes are left. A member that has not got the
/// launch of another console may get it any moment, and counts a while later.
fn is_done(ctx: &EventCtx<'_>, host: &HostModel, began: Timestamp) -> bool {
    let run = &ctx.session.run;
    let present = run.launch.as_ref().map(|launch| launch.generation);
    let half_launched = ctx.is_member(host) && !run.is_launcher() && host.machine.generation < present;
    let is_late = !half_launched || ctx.now.since(began) >= HALF_LAUNCHED_MS;
    // A host that reported survivors before this console's order gets it again.
    let has_reported = host.stopped.is_some() && (!run.facts.by_user || host.machine.stop_sent.is_some());
    // The record after a verification may have the ending.
    let replays = host.is_live() && !host.caught_up();
    is_late && !replays && (ctx.is_clear(host) || has_reported) && has_end(ctx, host)
}

/// The host has recorded this console's order, which ends the run for all others (RESTART-9). It needs that also
/// where nothing is left to stop; what it does not record in time is not waited for.
fn has_end(ctx: &EventCtx<'_>, host: &HostModel) -> bool {
    let run = &ctx.session.run;
    let needs = run.facts.by_user && !run.is_launcher() && host.caught_up() && is_present(ctx, host);
    let recorded = host.machine.stop_sent.is_some() && host.machine.ends_sent.is_empty();
    let late = run.facts.stop.is_none_or(|stop| ctx.now.since(stop.at) >= HALF_LAUNCHED_MS);
    !needs || recorded || late
}

/// The latest generation of the host is the present one.
fn is_present(ctx: &EventCtx<'_>, host: &HostModel) -> bool {
    host.machine.generation.is_some_and(|latest| ctx.session.run.is_current(latest))
}

/// The console that launched the run may make a next generation, by order or by policy.
fn is_successor_expected(ctx: &EventCtx<'_>) -> bool {
    let facts = &ctx.session.run.facts;
    let patience = match facts.cause {
        Some(EndCause::Elsewhere { .. }) => SUCCESSOR_MS,
        Some(EndCause::Failure) => {
            policy::successor_ms(ctx).map_or(0, |wait| wait.saturating_add(SUCCESSOR_MS))
        }
        Some(
            EndCause::LaunchFailed(_) | EndCause::Requested { .. } | EndCause::Until(_) | EndCause::Stuck(_),
        )
        | None => 0,
    };
    !facts.by_user
        && facts.recorded_ending.is_none()
        && !facts.cancelled
        && facts.live_proof.is_some_and(|proof| ctx.now.since(proof) < patience)
}

/// A stop is due: the orders, a harder one when it takes too long, and the end when that does not help.
fn stopping(ctx: &mut EventCtx<'_>, open: &[NodeRank], stop: StopRequest) {
    let limits = TimeLimits::of(ctx.model.plan.as_ref());
    ctx.model.run.stopping = ctx.model.run.stopping.max(Some(stop.mode));
    send_stops(ctx, open, stop.mode, limits.grace);
    if ctx.now < deadline(ctx, open, stop, &limits) {
        return;
    }
    let reachable = open.iter().any(|node| ctx.host(*node).is_live());
    if stop.mode < StopMode::Kill && reachable {
        ctx.note(EventTone::Warn, "stop timed out; killing remaining processes");
        transition::order(ctx, StopMode::Kill);
        send_stops(ctx, open, StopMode::Kill, 0);
    } else {
        conclude(ctx, open);
    }
}

/// Until when hosts are waited for. An agent reports when it kills ranks that show no progress; hosts that
/// report nothing have their grace.
fn deadline(ctx: &EventCtx<'_>, open: &[NodeRank], stop: StopRequest, limits: &TimeLimits) -> Timestamp {
    if stop.mode == StopMode::Kill {
        return stop.at.plus(KILL_MS.max(limits.lost));
    }
    let hosts = open.iter().filter_map(|node| ctx.model.hosts.get(node.index()));
    let kills = hosts.filter_map(|host| host.machine.kills_at).max();
    let latest = stop.at.plus(limits.longest_stop());
    let reported = kills.map(|kills| kills.plus(KILL_MS).min(latest));
    stop.at.plus(limits.drain()).max(reported.unwrap_or(stop.at))
}

/// The run ends by itself, without a stop. It is over unless hosts do not respond.
fn leaving(ctx: &mut EventCtx<'_>, open: &[NodeRank], began: Timestamp) {
    pass_on(ctx, open);
    stop_lost(ctx, open);
    request_scans(ctx, open, began);
    let away_since = |node: &NodeRank| match ctx.host(*node).machine.stage {
        HostStage::Away { since } => Some(since),
        HostStage::Failed | HostStage::Closed => Some(began),
        HostStage::Linking
        | HostStage::Attaching { .. }
        | HostStage::Greeted { .. }
        | HostStage::Live { .. } => None,
    };
    let away: Option<Vec<Timestamp>> = open.iter().map(away_since).collect();
    // No verification will come if no host will connect again.
    let for_good = open.iter().all(|node| ctx.host(*node).machine.is_gone());
    let proof = ctx.session.run.facts.first_proof.or(for_good.then_some(began));
    if let (Some(away), Some(proof)) = (away, proof) {
        let since = away.into_iter().fold(proof, Timestamp::max);
        if ctx.now.since(since) >= TimeLimits::of(ctx.model.plan.as_ref()).drain() {
            conclude(ctx, open);
        }
    }
}

/// Another console's stop, for hosts that it could not reach: the console that launched the run passes it on.
fn pass_on(ctx: &mut EventCtx<'_>, open: &[NodeRank]) {
    let facts = &ctx.session.run.facts;
    let elsewhere = matches!(facts.cause, Some(EndCause::Elsewhere { .. })) && ctx.session.run.is_launcher();
    let settled = facts.first_proof.is_some_and(|proof| ctx.now.since(proof) >= PEERS_MS);
    if elsewhere && settled {
        let mode = ctx.model.run.stopping.unwrap_or(StopMode::Clean);
        let unordered: Vec<NodeRank> =
            open.iter().copied().filter(|node| !ctx.host(*node).machine.stop_recorded).collect();
        let grace_ms = TimeLimits::of(ctx.model.plan.as_ref()).grace;
        send_stops(ctx, &unordered, mode, grace_ms);
    }
}

/// The others have finished without a rank that is still there.
fn stop_lost(ctx: &mut EventCtx<'_>, open: &[NodeRank]) {
    let waiting: Vec<NodeRank> =
        open.iter().copied().filter(|node| shrink::has_only_waiting(ctx, *node)).collect();
    let grace_ms = TimeLimits::of(ctx.model.plan.as_ref()).grace;
    send_stops(ctx, &waiting, StopMode::Terminate, grace_ms);
}

/// Agents without a launch are ordered to scan for leftover processes; by then, a launch of another
/// console would have arrived.
fn request_scans(ctx: &mut EventCtx<'_>, open: &[NodeRank], began: Timestamp) {
    if ctx.now.since(began) >= HALF_LAUNCHED_MS {
        let silent =
            open.iter().copied().filter(|node| ctx.model.hosts[node.index()].machine.has_no_launch());
        let silent: Vec<NodeRank> = silent.collect();
        send_stops(ctx, &silent, StopMode::Clean, 0);
    }
}

/// The next generation excludes the host, and it does not respond: its verification is not awaited
/// (RESTART-4).
fn given_up(ctx: &EventCtx<'_>, host: &HostModel) -> bool {
    let excluded = ctx.session.run.next().is_some_and(|next| next.excludes(host.node_rank));
    excluded && !host.machine.is_connected()
}

/// The stop that follows from why the run ends.
fn request_due_stop(ctx: &mut EventCtx<'_>) {
    let restart = ctx.session.run.next().is_some();
    let facts = &mut ctx.session.run.facts;
    match &facts.cause {
        Some(EndCause::Failure) => facts.request_stop(StopMode::Terminate, ctx.now.plus(PEERS_MS)),
        Some(EndCause::LaunchFailed(_)) => facts.request_stop(StopMode::Terminate, ctx.now),
        Some(
            EndCause::Requested { .. } | EndCause::Until(_) | EndCause::Stuck(_) | EndCause::Elsewhere { .. },
        )
        | None
            if restart =>
        {
            facts.request_stop(StopMode::Clean, ctx.now);
        }
        Some(
            EndCause::Requested { .. } | EndCause::Until(_) | EndCause::Stuck(_) | EndCause::Elsewhere { .. },
        )
        | None => {}
    }
}

pub(super) fn send_stops(ctx: &mut EventCtx<'_>, open: &[NodeRank], mode: StopMode, grace_ms: u64) {
    let run = &ctx.session.run;
    let present = run.launch.as_ref().map(|launch| launch.generation);
    let by_user = run.facts.by_user;
    // Another console's end that is passed on stays one.
    let passed_on = run.ended && matches!(run.facts.cause, Some(EndCause::Elsewhere { .. }));
    let ends = run.next().is_none() && (by_user || passed_on);
    for node in open {
        let host = &ctx.model.hosts[node.index()];
        let is_over = ctx.is_clear(host) && is_present(ctx, host);
        let host = ctx.host(*node);
        // The end of this generation does not affect another console's next one.
        let is_meant = by_user || host.machine.generation <= present;
        if is_meant && host.caught_up() && host.machine.stop_sent.is_none_or(|sent| sent < mode) {
            host.machine.stop_sent = Some(mode);
            if ends {
                host.machine.ends_sent.insert(mode);
            }
            if !is_over {
                host.stopped = None;
                ctx.session.run.facts.ordered = true;
            }
            ctx.session.run.ended |= ends;
            ctx.send(*node, ConsoleMessage::Stop { mode, grace_ms, ends });
        }
    }
}

/// Every host has proved its stop, except those in `open`, which will not any more.
fn conclude(ctx: &mut EventCtx<'_>, open: &[NodeRank]) {
    // All ranks of a group may be dead within a tick of each other.
    verdicts::compare_last_calls(ctx);
    verdicts::report_verdicts(ctx);
    policy::ended(ctx, open);
    let next = ctx.session.run.take_next();
    let leaves = |host: &HostModel| next.as_ref().is_some_and(|next| next.excludes(host.node_rank));
    let awaited = ctx.model.hosts.iter().filter(|host| is_awaited(ctx, host));
    let dirty: Vec<String> = awaited
        .filter(|host| !leaves(host) && (open.contains(&host.node_rank) || !ctx.is_clear(host)))
        .map(|host| host.name.clone())
        .collect();
    match next {
        Some(next) if dirty.is_empty() => return policy::proceed(ctx, next),
        Some(_) => {
            let hint = exclusion(ctx.model, &dirty).unwrap_or_default();
            let error = format!("the stop is not verified on {}", dirty.join(", "));
            policy::refuse(ctx, HintedError { error, hint }.with_hint());
        }
        None => {}
    }
    let ending = failure::ending(ctx);
    let work = ending.work.clone().or_else(|| work_left(ctx, &ending));
    let ending = with_killed_ranks(ctx, RunEnd { work, ..ending });
    let mut ending = with_lost_ranks(ctx, with_separate_programs(ctx, ending));
    if !dirty.is_empty() {
        let code = if matches!(ending.exit_code, 0 | 130 | 137) { 1 } else { ending.exit_code };
        let reason = format!("{}, but the stop is not verified on {}", ending.reason, dirty.join(", "));
        ending = RunEnd { work: ending.work, ..RunEnd::new(RunOutcome::Failed, code, reason) };
    }
    transition::finish(ctx, ending);
}

/// A repeated request for a stop: it goes once more to every host that has not proved it.
pub(super) fn repeat(ctx: &mut EventCtx<'_>) -> bool {
    for node in ctx.nodes() {
        if !ctx.is_clear(&ctx.model.hosts[node.index()]) {
            ctx.host(node).machine.stop_sent = None;
        }
    }
    true
}

/// A stop that is requested after the end, in a console that lingers: hosts that proved nothing may be back.
pub(super) fn stop_again(ctx: &mut EventCtx<'_>, mode: StopMode, text: String) -> bool {
    let session = &ctx.session;
    if !session.linger
        || session.run.exited
        || session.run.launch.is_none()
        || !transition::has_open_host(ctx)
    {
        return false;
    }
    ctx.note(EventTone::Info, text);
    repeat(ctx);
    let run = &mut ctx.model.run;
    (run.ended, run.outcome, run.exit_code) = (None, None, None);
    run.stopping = Some(mode);
    let facts = &mut ctx.session.run.facts;
    (facts.by_user, facts.stop) = (true, Some(StopRequest { mode, at: ctx.now }));
    ctx.session.run.stage = RunStage::Draining { began: ctx.now, next: None };
    true
}

/// Shorter iterations are not mentioned.
const SLOW_ITERATION_MS: u64 = 2_000;

/// A stop that killed ranks is not a success. A user's program may end by SIGKILL only: then a stop on request
/// is as clean as it can be unless work is lost, and a target is not reached cleanly.
fn with_killed_ranks(ctx: &EventCtx<'_>, ending: RunEnd) -> RunEnd {
    let builtin = ctx.model.plan.as_ref().is_some_and(|plan| plan.is_builtin());
    let recorded = ctx.session.run.facts.recorded_ending.is_some();
    let good = ending.outcome == RunOutcome::Succeeded;
    let meant = good || ending.exit_code == 130;
    if recorded || !meant || ctx.session.run.facts.killed == 0 {
        return ending;
    }
    let is_lost = ending.work.as_ref().is_some_and(Work::is_lost);
    let exit_code = if builtin || good || is_lost { RunEnd::KILLED } else { ending.exit_code };
    let reason = format!("{}, not clean: ranks were killed", ending.reason);
    RunEnd { outcome: RunOutcome::Stopped, exit_code, reason, ..ending }
}

/// What the end leaves of the work; `None` if ranks ended by themselves with their work done, or never began.
fn work_left(ctx: &EventCtx<'_>, ending: &RunEnd) -> Option<Work> {
    let (model, run) = (&*ctx.model, &ctx.session.run);
    let facts = &run.facts;
    let by_itself = ending.outcome == RunOutcome::Succeeded && !facts.ordered;
    let began = model.ranks.iter().any(|rank| rank.pid.is_some());
    if facts.recorded_ending.is_some() || by_itself || !began {
        return None;
    }
    // A program that reports checkpoints reports all of them.
    let reports = model.plan.as_ref().is_some_and(|plan| plan.contract().keeps(Promise::Checkpoints));
    let searched = || ctx.members().all(|host| facts.searched.get(&host.node_rank) == Some(&true));
    let pages = model.ranks.iter().filter_map(|rank| rank.sample.as_ref()?.page.as_ref());
    let iterations = pages.filter(|page| !page.by_hook).map(|page| page.train_iter).max();
    let totals = model.latest.as_ref().map(|latest| &latest.counters);
    let totals = totals.or(model.progress.as_ref().map(|progress| &progress.totals));
    let own = model.own.as_ref().and_then(|own| own.env_step);
    let reported = model.checkpoints.iter().filter(|saved| saved.origin.is_reported());
    let reported: Vec<&CheckpointModel> = reported.collect();
    Some(work::decide(&WorkFacts {
        complete: reports || !reported.is_empty() || searched(),
        reported,
        files: run.files.iter().collect(),
        stopped_at: facts.stopped_at,
        ended_at: facts.culprit().map(|culprit| culprit.time).filter(|time| *time > 0.0),
        reached: ReachedWork {
            env_step: totals.map(|totals| totals.env_step).or(own).unwrap_or(0),
            train_iter: iterations.max(totals.map(|totals| totals.train_iter)).unwrap_or(0),
        },
    }))
}

/// The end of ranks that were no run of one program shows it: the warning may have gone unnoticed.
fn with_separate_programs(ctx: &EventCtx<'_>, ending: RunEnd) -> RunEnd {
    let is_known = ctx.session.run.facts.recorded_ending.is_some() || ending.outcome == RunOutcome::Failed;
    let Some(ranks) = separate_programs(ctx.model, 0).filter(|_| !is_known) else { return ending };
    let sentence = Reason::SeparatePrograms.row().sentence(SentenceForm::Usual);
    let text = fill(sentence, &[("count", ranks.len().to_string())]);
    RunEnd { reason: format!("{}; {text}", ending.reason), ..ending }
}

/// The end of a run that has continued without some of its ranks names them.
fn with_lost_ranks(ctx: &EventCtx<'_>, ending: RunEnd) -> RunEnd {
    let is_recorded = ctx.session.run.facts.recorded_ending.is_some();
    let lost = ctx.model.lost_sentence().filter(|_| !is_recorded && ending.outcome != RunOutcome::Failed);
    match lost {
        Some(text) => RunEnd { reason: format!("{}; {text}", ending.reason), ..ending },
        None => ending,
    }
}

/// What a stop waits for, where that takes long enough to be noticed.
pub(super) fn awaited(model: &Model) -> Option<String> {
    let latest = model.latest.as_ref().filter(|latest| latest.gap_ms >= SLOW_ITERATION_MS)?;
    let (next, gap) = (latest.counters.train_iter + 1, words::duration_ms(latest.gap_ms));
    Some(format!("waiting for iteration {next} to finish (about {gap} each)"))
}
