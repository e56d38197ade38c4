//! The way out: stops are ordered, verified stops awaited within bounds, and the end is reported.

use super::{clean_stop, failure, policy, transition, verdicts};
use crate::host::HostStage;
use crate::limits::Limits;
use crate::model::{HostModel, Tone};
use crate::report::Outcome;
use crate::run::{Cause, Stage, Stop};
use crate::session::Ctx;
use rankdeck_proto::message::{ConsoleMessage, Ending, StopMode};
use rankdeck_types::ids::{NodeRank, Timestamp};

/// Milliseconds between the first failure and the stop of all others, so that peers can report.
const PEERS_MS: u64 = 2_000;
/// Milliseconds for which the launch of another console may be on its way to a host.
const HALF_LAUNCHED_MS: u64 = 2_000;
/// Milliseconds for which another console that stopped the run may launch its next generation.
const SUCCESSOR_MS: u64 = 4_000;
/// Milliseconds for a host to prove its stop after everything was killed.
const KILL_MS: u64 = 10_000;

/// Sends orders to every host until each has proved that nothing is left.
pub(super) fn draining(ctx: &mut Ctx<'_>, began: Timestamp) {
    want_stop(ctx);
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

/// The present generation needs the host's proof to end; a stop that was asked for needs that of every host.
fn is_awaited(ctx: &Ctx<'_>, host: &HostModel) -> bool {
    ctx.is_member(host) || ctx.session.run.facts.asked && ctx.counts(host)
}

/// The host has proved its stop, or has told which processes are left. A member that has not got the launch
/// of another console may get it any moment, and counts a while later.
fn is_done(ctx: &Ctx<'_>, host: &HostModel, began: Timestamp) -> bool {
    let run = &ctx.session.run;
    let present = run.launch.as_ref().map(|launch| launch.generation);
    let half_launched = ctx.is_member(host) && !run.is_launcher() && host.machine.generation < present;
    let is_late = !half_launched || ctx.now.since(began) >= HALF_LAUNCHED_MS;
    // A host that had told survivors before this console's order is asked again.
    let has_told = host.stopped.is_some() && (!run.facts.asked || host.machine.stop_sent.is_some());
    // The record after a proof may say how the run ended.
    let replays = host.is_live() && !host.caught_up();
    is_late && !replays && (ctx.is_clear(host) || has_told)
}

/// The console that launched the run may make a next generation, by order or by policy.
fn is_successor_expected(ctx: &Ctx<'_>) -> bool {
    let facts = &ctx.session.run.facts;
    let patience = match facts.cause {
        Some(Cause::Elsewhere { .. }) => SUCCESSOR_MS,
        Some(Cause::Failure) => policy::successor_ms(ctx).map_or(0, |wait| wait.saturating_add(SUCCESSOR_MS)),
        Some(Cause::LaunchFailed(_) | Cause::Requested { .. } | Cause::Until(_) | Cause::Stuck(_)) | None => {
            0
        }
    };
    !facts.asked
        && facts.told.is_none()
        && facts.live_proof.is_some_and(|proof| ctx.now.since(proof) < patience)
}

/// A stop is due: the orders, a harder one when it takes too long, and the end when that does not help.
fn stopping(ctx: &mut Ctx<'_>, open: &[NodeRank], stop: Stop) {
    let limits = Limits::of(ctx.model.plan.as_ref());
    let age = ctx.now.since(clean_stop::no_progress_since(ctx, stop, &limits));
    ctx.model.run.stopping = ctx.model.run.stopping.max(Some(stop.mode));
    send_stops(ctx, open, stop.mode, limits.grace);
    let patience = if stop.mode == StopMode::Kill { KILL_MS.max(limits.lost) } else { limits.drain() };
    if age < patience {
        return;
    }
    let reachable = open.iter().any(|node| ctx.host(*node).is_live());
    if stop.mode < StopMode::Kill && reachable {
        ctx.note(Tone::Warn, "the stop takes too long: killing what is left");
        transition::order(ctx, StopMode::Kill);
        send_stops(ctx, open, StopMode::Kill, 0);
    } else {
        conclude(ctx, open);
    }
}

/// The run ends by itself, without a stop. It is over unless hosts do not answer.
fn leaving(ctx: &mut Ctx<'_>, open: &[NodeRank], began: Timestamp) {
    pass_on(ctx, open);
    look_for_leftovers(ctx, open, began);
    let away_since = |node: &NodeRank| match ctx.host(*node).machine.stage {
        HostStage::Away { since } => Some(since),
        HostStage::Failed | HostStage::Closed => Some(began),
        HostStage::Linking
        | HostStage::Attaching { .. }
        | HostStage::Greeted { .. }
        | HostStage::Live { .. } => None,
    };
    let away: Option<Vec<Timestamp>> = open.iter().map(away_since).collect();
    // No proof is to come where no host will be heard of again.
    let for_good = open.iter().all(|node| ctx.host(*node).machine.is_gone());
    let proof = ctx.session.run.facts.first_proof.or(for_good.then_some(began));
    if let (Some(away), Some(proof)) = (away, proof) {
        let since = away.into_iter().fold(proof, Timestamp::max);
        if ctx.now.since(since) >= Limits::of(ctx.model.plan.as_ref()).drain() {
            conclude(ctx, open);
        }
    }
}

/// Another console's stop, for hosts that it could not reach: the console that launched the run passes it on.
fn pass_on(ctx: &mut Ctx<'_>, open: &[NodeRank]) {
    let facts = &ctx.session.run.facts;
    let elsewhere = matches!(facts.cause, Some(Cause::Elsewhere { .. })) && ctx.session.run.is_launcher();
    let settled = facts.first_proof.is_some_and(|proof| ctx.now.since(proof) >= PEERS_MS);
    if elsewhere && settled {
        let mode = ctx.model.run.stopping.unwrap_or(StopMode::Clean);
        let untold: Vec<NodeRank> =
            open.iter().copied().filter(|node| !ctx.host(*node).machine.stop_told).collect();
        let grace_ms = Limits::of(ctx.model.plan.as_ref()).grace;
        send_stops(ctx, &untold, mode, grace_ms);
    }
}

/// Agents that know of no launch are asked to look for what may be left of one; by then, a launch of another
/// console would have arrived.
fn look_for_leftovers(ctx: &mut Ctx<'_>, open: &[NodeRank], began: Timestamp) {
    if ctx.now.since(began) >= HALF_LAUNCHED_MS {
        let silent =
            open.iter().copied().filter(|node| ctx.model.hosts[node.index()].machine.knows_nothing());
        let silent: Vec<NodeRank> = silent.collect();
        send_stops(ctx, &silent, StopMode::Clean, 0);
    }
}

/// The next generation excludes the host, and it does not answer: nobody waits for its proof (RESTART-4).
fn given_up(ctx: &Ctx<'_>, host: &HostModel) -> bool {
    let excluded = ctx.session.run.next().is_some_and(|next| next.excludes(host.node_rank));
    excluded && !host.machine.is_connected()
}

/// The stop that follows from why the run ends.
fn want_stop(ctx: &mut Ctx<'_>) {
    let restart = ctx.session.run.next().is_some();
    let facts = &mut ctx.session.run.facts;
    match &facts.cause {
        Some(Cause::Failure) => facts.want_stop(StopMode::Terminate, ctx.now.plus(PEERS_MS)),
        Some(Cause::LaunchFailed(_)) => facts.want_stop(StopMode::Terminate, ctx.now),
        Some(Cause::Requested { .. } | Cause::Until(_) | Cause::Stuck(_) | Cause::Elsewhere { .. })
        | None
            if restart =>
        {
            facts.want_stop(StopMode::Clean, ctx.now);
        }
        Some(Cause::Requested { .. } | Cause::Until(_) | Cause::Stuck(_) | Cause::Elsewhere { .. })
        | None => {}
    }
}

pub(super) fn send_stops(ctx: &mut Ctx<'_>, open: &[NodeRank], mode: StopMode, grace_ms: u64) {
    let run = &ctx.session.run;
    let present = run.launch.as_ref().map(|launch| launch.generation);
    let asked = run.facts.asked;
    for node in open {
        let host = ctx.host(*node);
        // What follows from the end of this generation is no order to another console's next one.
        let is_meant = asked || host.machine.generation <= present;
        if is_meant && host.caught_up() && host.machine.stop_sent.is_none_or(|sent| sent < mode) {
            (host.machine.stop_sent, host.stopped) = (Some(mode), None);
            ctx.session.run.facts.ordered = true;
            ctx.send(*node, ConsoleMessage::Stop { mode, grace_ms });
        }
    }
}

/// Every host has proved its stop, except those in `open`, which will not any more.
fn conclude(ctx: &mut Ctx<'_>, open: &[NodeRank]) {
    // All ranks of a group may be dead within a tick of each other.
    super::tick::last_words(ctx);
    verdicts::tell(ctx);
    policy::ended(ctx, open);
    let next = ctx.session.run.take_next();
    let leaves = |host: &HostModel| next.as_ref().is_some_and(|next| next.excludes(host.node_rank));
    let awaited = ctx.model.hosts.iter().filter(|host| is_awaited(ctx, host));
    let dirty: Vec<String> = awaited
        .filter(|host| !leaves(host) && (open.contains(&host.node_rank) || !ctx.is_clear(host)))
        .map(|host| host.name.clone())
        .collect();
    if let Some(next) = next.filter(|_| dirty.is_empty()) {
        return policy::proceed(ctx, next);
    }
    let mut ending = clean_stop::told_apart(ctx, failure::ending(ctx));
    if !dirty.is_empty() {
        let code = if matches!(ending.exit_code, 0 | 130 | 137) { 1 } else { ending.exit_code };
        ending = Ending::new(
            Outcome::Failed,
            code,
            format!("{}, but the stop is not proved: no proof from {}", ending.reason, dirty.join(", ")),
        );
    }
    transition::finish(ctx, ending);
}

/// A stop that is asked for again: it goes once more to every host that has not proved it.
pub(super) fn repeat(ctx: &mut Ctx<'_>) -> bool {
    for node in ctx.nodes() {
        if !ctx.is_clear(&ctx.model.hosts[node.index()]) {
            ctx.host(node).machine.stop_sent = None;
        }
    }
    true
}

/// A stop that is asked for after the end, in a console that lingers: hosts that proved nothing may be back.
pub(super) fn stop_again(ctx: &mut Ctx<'_>, mode: StopMode, text: String) -> bool {
    let session = &ctx.session;
    if !session.linger
        || session.run.exited
        || session.run.launch.is_none()
        || !transition::has_open_host(ctx)
    {
        return false;
    }
    ctx.note(Tone::Info, text);
    repeat(ctx);
    let run = &mut ctx.model.run;
    (run.ended, run.outcome, run.exit_code) = (None, None, None);
    run.stopping = Some(mode);
    let facts = &mut ctx.session.run.facts;
    (facts.asked, facts.stop) = (true, Some(Stop { mode, at: ctx.now }));
    ctx.session.run.stage = Stage::Draining { began: ctx.now, next: None };
    true
}
