//! The way out: stops are ordered, verified stops awaited within bounds, and the end is reported.

use super::{failure, generation, policy};
use crate::effect::Effect;
use crate::host::HostStage;
use crate::model::{HostModel, RunState, Tone};
use crate::report::{Outcome, ReportBody};
use crate::run::{Cause, Ending, Facts, Next, Role, Stage, Stop};
use crate::session::{Ctx, Limits};
use rankdeck_proto::message::{ConsoleMessage, StopMode};
use rankdeck_types::ids::{Generation, NodeRank, Timestamp};

/// Milliseconds between the first failure and the stop of all others, so that peers can report.
const PEERS_MS: u64 = 2_000;
/// Milliseconds for which another console that stopped the run may launch its next generation.
const SUCCESSOR_MS: u64 = 4_000;
/// Milliseconds for a host to prove its stop after everything was killed.
const KILL_MS: u64 = 10_000;

/// Sends orders to every host until each has proved that nothing is left.
pub(super) fn draining(ctx: &mut Ctx<'_>, began: Timestamp) {
    settle_unlaunched(ctx);
    want_stop(ctx);
    let open: Vec<NodeRank> = ctx
        .members()
        .filter(|host| host.stopped.is_none() && !given_up(ctx, host))
        .map(|host| host.node_rank)
        .collect();
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

/// A launch that never arrived at a host has left nothing behind there.
fn settle_unlaunched(ctx: &mut Ctx<'_>) {
    let launch = ctx.session.run.launch.as_ref().filter(|launch| launch.role != Role::Onlooker);
    let Some(generation) = launch.map(|launch| launch.generation) else { return };
    for host in ctx.model.hosts.iter_mut().filter(|host| host.caught_up() && !host.machine.knows(generation))
    {
        host.stopped.get_or_insert_default();
    }
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
    facts.live_proof.is_some_and(|proof| ctx.now.since(proof) < patience)
}

/// A stop is due: the orders, a harder one when it takes too long, and the end when that does not help.
fn stopping(ctx: &mut Ctx<'_>, open: &[NodeRank], stop: Stop) {
    let limits = Limits::of(ctx.model);
    let age = ctx.now.since(stop.at);
    ctx.model.run.stopping = ctx.model.run.stopping.max(Some(stop.mode));
    send_stops(ctx, open, stop.mode, limits.grace);
    let patience = if stop.mode == StopMode::Kill { KILL_MS.max(limits.lost) } else { limits.drain() };
    if age < patience {
        return;
    }
    let reachable = open.iter().any(|node| ctx.host(*node).is_live());
    if stop.mode < StopMode::Kill && reachable {
        ctx.note(Tone::Warn, "the stop takes too long: killing what is left");
        super::user::order(ctx, StopMode::Kill);
        send_stops(ctx, open, StopMode::Kill, 0);
    } else {
        conclude(ctx, open);
    }
}

/// The run ends by itself, without a stop. It is over unless hosts do not answer.
fn leaving(ctx: &mut Ctx<'_>, open: &[NodeRank], began: Timestamp) {
    let away_since = |node: &NodeRank| match ctx.host(*node).machine.stage {
        HostStage::Away { since } => Some(since),
        HostStage::Failed | HostStage::Closed => Some(began),
        HostStage::Linking
        | HostStage::Attaching { .. }
        | HostStage::Greeted { .. }
        | HostStage::Live { .. } => None,
    };
    let away: Option<Vec<Timestamp>> = open.iter().map(away_since).collect();
    if let (Some(away), Some(proof)) = (away, ctx.session.run.facts.first_proof) {
        let since = away.into_iter().fold(proof, Timestamp::max);
        if ctx.now.since(since) >= Limits::of(ctx.model).drain() {
            conclude(ctx, open);
        }
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

fn send_stops(ctx: &mut Ctx<'_>, open: &[NodeRank], mode: StopMode, grace_ms: u64) {
    for node in open {
        let host = ctx.host(*node);
        if host.caught_up() && host.machine.stop_sent.is_none_or(|sent| sent < mode) {
            host.machine.stop_sent = Some(mode);
            ctx.session.run.facts.ordered = true;
            ctx.send(*node, ConsoleMessage::Stop { mode, grace_ms });
        }
    }
}

/// Every host has proved its stop, except those in `open`, which will not any more.
fn conclude(ctx: &mut Ctx<'_>, open: &[NodeRank]) {
    // All ranks of a group may be dead within a tick of each other.
    super::tick::last_words(ctx);
    super::verdicts::tell(ctx);
    policy::ended(ctx, open);
    let next = ctx.session.run.take_next();
    let leaves = |node: NodeRank| next.as_ref().is_some_and(|next| next.excludes(node));
    let left = |host: &HostModel| host.stopped.as_ref().is_some_and(|left| !left.is_empty());
    let clean = open.iter().all(|node| leaves(*node))
        && ctx.model.hosts.iter().all(|host| !left(host) || leaves(host.node_rank));
    if next.is_some() && clean {
        let generation = ctx.model.run.generation;
        let unproved: Vec<(NodeRank, Generation)> = ctx
            .members()
            .filter(|host| leaves(host.node_rank) && (host.stopped.is_none() || left(host)))
            .map(|host| (host.node_rank, generation))
            .collect();
        ctx.session.run.unproved.extend(unproved);
    }
    if let Some(next) = next.filter(|_| clean) {
        return policy::proceed(ctx, next);
    }
    let mut ending = ctx.session.run.facts.ending();
    if !clean {
        let names: Vec<String> = open.iter().map(|node| ctx.host_name(*node)).collect();
        let why = if names.is_empty() {
            "processes are left".to_string()
        } else {
            format!("no proof from {}", names.join(", "))
        };
        let code = if ending.exit_code == 0 || ending.exit_code == 130 { 1 } else { ending.exit_code };
        ending = Ending::new(
            Outcome::Failed,
            code,
            format!("{}, but the stop is not proved: {why}", ending.reason),
        );
    }
    finish(ctx, ending);
}

/// Begins the way to the next generation.
pub(super) fn reserve(ctx: &mut Ctx<'_>, next: Next) {
    if let Some(plan) = next.plan {
        generation::install(ctx.model, &plan);
        ctx.model.plan = Some(plan);
    }
    let run = &mut ctx.model.run;
    (run.stopping, run.restart_at) = (None, None);
    (run.ended, run.outcome, run.exit_code) = (None, None, None);
    let generation = generation::after(run.generation);
    (ctx.session.run.facts, ctx.session.run.change) = (Facts::default(), None);
    ctx.session.run.stage = Stage::Reserving { generation, resume: next.from, request: None, port: None };
}

/// Goes on after the end, in a console that lingers.
pub(super) fn resume(ctx: &mut Ctx<'_>, next: Next) {
    let proved = ctx.members().all(|host| host.stopped.as_ref().is_some_and(Vec::is_empty));
    if ctx.session.linger && ctx.session.run.launch.is_some() && ctx.all_live() && proved {
        return reserve(ctx, next);
    }
    ctx.note(Tone::Warn, "cannot restart: not every host is connected with nothing left of the run on it");
}

/// Ends the run and reports it, exactly once per end.
pub(super) fn finish(ctx: &mut Ctx<'_>, ending: Ending) {
    let launched = ctx.session.run.launch.is_some();
    let (mut survivors, mut gpus_free, mut proved) = (Vec::new(), Vec::new(), true);
    for host in ctx.model.hosts.iter().filter(|_| launched) {
        if !ctx.is_member(host) {
            if ctx.session.run.unproved.contains_key(&host.node_rank) {
                proved = false;
                survivors.push(format!("{}:? excluded, its stop is not verified", host.name));
            }
            continue;
        }
        match &host.stopped {
            Some(left) => {
                proved &= left.is_empty();
                let line =
                    |p: &rankdeck_proto::message::Survivor| format!("{}:{} {}", host.name, p.pid, p.command);
                survivors.extend(left.iter().map(line));
            }
            None => {
                proved = false;
                survivors.push(format!("{}:? unreachable", host.name));
            }
        }
        gpus_free.extend(host.gpus_free.iter().map(|gpu| format!("{}:{gpu}", host.name)));
    }
    let first_failure = failure::report(ctx);
    let facts = &ctx.session.run.facts;
    let stop_ms = facts.first_end.map_or(0, |first| ctx.now.since(first)).max(facts.took_ms);
    let tone = if ending.exit_code == 0 { Tone::Good } else { Tone::Bad };
    ctx.note(tone, format!("the run is over: {}", ending.reason));
    let run = &mut ctx.model.run;
    run.outcome = Some(ending.outcome);
    run.exit_code = Some(ending.exit_code);
    run.reason = ending.reason.clone();
    run.ended = Some(ctx.now);
    run.restart_at = None;
    run.first_failure = first_failure.clone();
    run.state = RunState::Over;
    ctx.session.run.stage = Stage::Over;
    ctx.session.run.change = None;
    ctx.tell(ReportBody::RunFinished {
        outcome: ending.outcome,
        exit_code: ending.exit_code,
        survivors,
        proved,
        reason: ending.reason,
        stop_ms,
        gpus_free,
        first_failure,
    });
    if !ctx.session.linger {
        leave(ctx, ending.exit_code);
    }
}

/// Agents may go, links are closed, the console ends.
pub(super) fn leave(ctx: &mut Ctx<'_>, code: u8) {
    for node in ctx.nodes() {
        if ctx.host(node).machine.is_connected() {
            ctx.send(node, ConsoleMessage::Close);
        }
    }
    disconnect(ctx);
    ctx.out.push(Effect::Exit { code });
    ctx.session.run.exited = true;
}

/// Closes every link.
pub(super) fn disconnect(ctx: &mut Ctx<'_>) {
    for host in ctx.model.hosts.iter_mut().filter(|host| host.machine.stage != HostStage::Closed) {
        host.machine.stage = HostStage::Closed;
        ctx.out.push(Effect::Disconnect { node: host.node_rank });
    }
}
