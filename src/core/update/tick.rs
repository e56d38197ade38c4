//! Time passes: heartbeats, agents that do not answer, and the conditions that the watch checks.

use super::{finder, link, reach};
use crate::host::HostStage;
use crate::limits::Limits;
use crate::run::{Failure, Stage, Weight};
use crate::session::Ctx;
use crate::watch::LookRequest;
use rankdeck_proto::message::ConsoleMessage;
use rankdeck_types::error::HintedError;

/// Milliseconds between two pings.
const PING_MS: u64 = 2_000;
/// Milliseconds within which an agent must answer an `attach`.
const HELLO_MS: u64 = 20_000;

/// Time passed. Returns whether a screen could show the change.
pub(super) fn ticked(ctx: &mut Ctx<'_>) -> bool {
    (ctx.session.clock.tick, ctx.session.clock.sampled) = (ctx.now, false);
    let searched = finder::ticked(ctx) | reach::ticked(ctx);
    if ctx.session.run.stage == Stage::Over {
        return searched;
    }
    if ctx.now.since(ctx.session.clock.ping) >= PING_MS {
        ctx.session.clock.ping = ctx.now;
        for node in ctx.nodes() {
            if ctx.host(node).is_live() {
                ctx.send(node, ConsoleMessage::Ping { sent_ms: ctx.now.0 });
            }
        }
    }
    speechless(ctx);
    let before = ctx.model.verdicts.len();
    let run = &ctx.session.run;
    let watching = run.launch.is_some() && !run.is_ending();
    let replaying = ctx.model.hosts.iter().any(|host| host.is_live() && !host.caught_up());
    if watching
        && !replaying
        && matches!(run.stage, Stage::Launching | Stage::Running | Stage::Draining { .. })
    {
        ctx.session.watch.learning(ctx.model);
        let limits = Limits::of(ctx.model.plan.as_ref());
        let awake = ctx.session.clock.awake_ms;
        for request in ctx.session.watch.evaluate(ctx.model, awake, &limits) {
            let LookRequest { node, request, ranks } = request;
            ctx.send(node, ConsoleMessage::Inspect { request, ranks });
        }
    }
    last_words(ctx);
    // A countdown is on the screen while the policy waits.
    searched || before > 0 || matches!(ctx.session.run.stage, Stage::Waiting { .. })
}

/// For a few seconds after a death, asks the watch whether another rank had left the common order before.
pub(super) fn last_words(ctx: &mut Ctx<'_>) {
    let limits = Limits::of(ctx.model.plan.as_ref());
    let awake = ctx.session.clock.awake_ms;
    if let Some((rank, text)) = ctx.session.watch.last_words(ctx.model, awake, &limits) {
        let host = ctx.model.ranks.get(rank.index()).map(|rank| rank.host.clone()).unwrap_or_default();
        let time = ctx.session.clock.wall_time(ctx.now);
        ctx.session.run.facts.failed(Failure {
            rank,
            host,
            time,
            bound_s: 0.0,
            last_lines: Vec::new(),
            weight: Weight::Hard,
            text,
            gist: String::new(),
            usage: false,
        });
    }
}

/// Agents that were attached to but never said hello.
fn speechless(ctx: &mut Ctx<'_>) {
    let awake = ctx.session.clock.awake_ms;
    let known = ctx.session.run.launch.is_some();
    for node in ctx.nodes() {
        let host = ctx.host(node);
        let (HostStage::Attaching { since } | HostStage::Greeted { since }) = host.machine.stage else {
            continue;
        };
        if awake.saturating_sub(since) < HELLO_MS {
            continue;
        }
        if known {
            // It was asked again after a gap and did not answer: what is missing is lost and counted.
            if host.machine.gap_at.is_some() && host.agent.is_some() {
                host.machine.stage = HostStage::Live { target: host.last_seq };
            }
        } else {
            let name = ctx.host_name(node);
            let error = format!("{name}: the agent does not answer");
            let hint = format!("look at node{node}/agent.log in the run directory on {name}");
            link::fail(ctx, node, HintedError::new(error, hint));
        }
    }
}
