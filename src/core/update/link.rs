//! Links: the connection to an agent comes up, breaks or fails, heartbeats, and agents that do not respond.

use super::queries;
use crate::event::Effect;
use crate::host::HostStage;
use crate::model::EventTone;
use crate::report::ReportBody;
use crate::run::RunStage;
use crate::session::EventCtx;
use rankdeck_proto::link::LinkCommand;
use rankdeck_proto::message::{ConsoleMessage, PROTOCOL};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::NodeRank;
use rankdeck_types::link_state::{LinkState, Prompt};

/// Lines of each rank's log that an agent sends at once.
const LOG_TAIL: u32 = 200;
/// Milliseconds between two pings.
const PING_MS: u64 = 2_000;
/// Milliseconds within which an agent must answer an `attach`.
const HELLO_MS: u64 = 20_000;

/// A link changed its state. Returns whether a screen could show the change.
pub(super) fn changed(ctx: &mut EventCtx<'_>, node: NodeRank, state: LinkState) -> bool {
    let (awake, now) = (ctx.session.clock.awake_ms, ctx.now);
    let host = ctx.host(node);
    let machine = &mut host.machine;
    // A host that was given up keeps the reason; what its link reports at the end is not news.
    if machine.is_gone() && matches!(state, LinkState::Closed | LinkState::Lost { .. } | LinkState::Failed(_))
    {
        if !matches!(host.link, LinkState::Failed(_)) {
            host.link = state;
        }
        return true;
    }
    if machine.stage == HostStage::Closed {
        host.link = state;
        return true;
    }
    let is_news = std::mem::discriminant(&host.link) != std::mem::discriminant(&state);
    if is_news {
        host.link_since = now;
    }
    host.prompt = if let LinkState::Asking { prompt } = &state { Some(prompt.clone()) } else { None };
    host.link = state.clone();
    match &state {
        LinkState::Ready { probe } => {
            host.probe = Some(probe.clone());
            machine.attaching(awake);
            attach(ctx, node);
        }
        LinkState::Lost { .. } => machine.stage = HostStage::Away { since: now },
        LinkState::Failed(_) => machine.stage = HostStage::Failed,
        LinkState::Closed => machine.stage = HostStage::Closed,
        LinkState::Idle
        | LinkState::Connecting { .. }
        | LinkState::Asking { .. }
        | LinkState::Uploading { .. }
        | LinkState::Starting => {
            if machine.is_connected() {
                machine.stage = HostStage::Away { since: now };
            }
        }
    }
    if !ctx.host(node).machine.is_live() {
        queries::on_link_lost(ctx, node);
    }
    if is_news || matches!(state, LinkState::Ready { .. }) {
        report_link(ctx, node, &state);
    }
    true
}

/// Reports a new state, and notes it when people should see it.
fn report_link(ctx: &mut EventCtx<'_>, node: NodeRank, state: &LinkState) {
    let (word, detail) = describe(state);
    let host = ctx.host_name(node);
    let text =
        if detail.is_empty() { format!("{host}: {word}") } else { format!("{host}: {word}: {detail}") };
    ctx.report(ReportBody::Host { node_rank: node, host, state: word.into(), detail });
    let tone = match state {
        LinkState::Failed(_) => EventTone::Bad,
        LinkState::Lost { .. } | LinkState::Asking { .. } => EventTone::Warn,
        LinkState::Ready { .. } => EventTone::Info,
        LinkState::Idle
        | LinkState::Connecting { .. }
        | LinkState::Uploading { .. }
        | LinkState::Starting
        | LinkState::Closed => return,
    };
    if ctx.session.run.stage != RunStage::Over {
        ctx.note(tone, text);
    }
}

/// Asks the agent for all records after the last one applied.
pub(super) fn attach(ctx: &mut EventCtx<'_>, node: NodeRank) {
    let after_seq = ctx.host(node).last_seq;
    ctx.send(
        node,
        ConsoleMessage::Attach {
            protocol: PROTOCOL,
            build: env!("CARGO_PKG_VERSION").into(),
            after_seq,
            log_tail: LOG_TAIL,
        },
    );
}

/// Gives up a host that cannot work with this console.
pub(super) fn fail(ctx: &mut EventCtx<'_>, node: NodeRank, error: HintedError) {
    if ctx.host(node).machine.is_gone() {
        return;
    }
    changed(ctx, node, LinkState::Failed(error));
    ctx.out.push(Effect::Link { node, command: LinkCommand::Close });
}

/// Pings live agents every [`PING_MS`].
pub(super) fn ping(ctx: &mut EventCtx<'_>) {
    if ctx.now.since(ctx.session.clock.ping) < PING_MS {
        return;
    }
    ctx.session.clock.ping = ctx.now;
    for node in ctx.nodes() {
        if ctx.host(node).is_live() {
            ctx.send(node, ConsoleMessage::Ping { sent_ms: ctx.now.0 });
        }
    }
}

/// Gives up agents that were attached to but never sent hello.
pub(super) fn fail_silent_agents(ctx: &mut EventCtx<'_>) {
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
            // Its records were requested again after a gap and did not come: they count as lost.
            if host.machine.gap_at.is_some() && host.agent.is_some() {
                host.machine.stage = HostStage::Live { target: host.last_seq };
            }
        } else {
            let name = ctx.host_name(node);
            let error = format!("{name}: the agent is not responding");
            let hint = format!("check node{node}/agent.log in the run directory on {name}");
            fail(ctx, node, HintedError::new(error, hint));
        }
    }
}

/// The word for a state and its detail.
fn describe(state: &LinkState) -> (&'static str, String) {
    match state {
        LinkState::Idle => ("idle", String::new()),
        LinkState::Connecting { attempt: 0 | 1 } => ("connecting", String::new()),
        LinkState::Connecting { attempt } => ("connecting", format!("attempt {attempt}")),
        LinkState::Asking { prompt } => (
            "asking",
            match prompt {
                Prompt::UnknownHostKey { host, key_type, fingerprint } => {
                    format!("the host key of {host} is unknown: {key_type} {fingerprint}")
                }
                Prompt::Passphrase { key } => format!("passphrase of {key}"),
                Prompt::CopyCheckpoint { path, .. } => format!("copy checkpoint {path}"),
                Prompt::Password { account, text, .. } => format!("{account}: {text}"),
            },
        ),
        LinkState::Uploading { what, total, .. } => ("uploading", format!("{what}, {total} bytes")),
        LinkState::Starting => ("starting", String::new()),
        LinkState::Ready { probe } => {
            ("ready", format!("{} cores, {} GPUs", probe.cpu_count, probe.gpu_count))
        }
        LinkState::Lost { reason, .. } => ("lost", reason.clone()),
        LinkState::Failed(error) => ("failed", error.with_hint()),
        LinkState::Closed => ("closed", String::new()),
    }
}
