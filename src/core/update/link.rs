//! Links: the road to an agent comes up, breaks, fails.

use crate::host::HostStage;
use crate::model::Tone;
use crate::report::ReportBody;
use crate::run::Stage;
use crate::session::Ctx;
use rankdeck_proto::message::{ConsoleMessage, PROTOCOL};
use rankdeck_types::link_state::{LinkState, Prompt};

/// Lines of each rank's log that an agent sends at once.
const LOG_TAIL: u32 = 200;

/// A link changed its state. Gives whether a screen could show it.
pub(super) fn changed(ctx: &mut Ctx<'_>, node: usize, state: LinkState) -> bool {
    let awake = ctx.session.clock.awake_ms;
    let (Some(host), Some(machine)) = (ctx.model.hosts.get_mut(node), ctx.session.hosts.get_mut(node)) else {
        return false;
    };
    // A host that was given up keeps the reason; its link's last words are no news.
    if machine.is_gone()
        && matches!(state, LinkState::Closed | LinkState::Lost { .. } | LinkState::Failed { .. })
    {
        if !matches!(host.link, LinkState::Failed { .. }) {
            host.link = state;
        }
        return true;
    }
    if machine.stage == HostStage::Closed {
        host.link = state;
        return true;
    }
    let same_kind = std::mem::discriminant(&host.link) == std::mem::discriminant(&state);
    if !same_kind {
        host.link_since = ctx.now;
    }
    host.prompt = match &state {
        LinkState::Asking { prompt } => Some(prompt.clone()),
        LinkState::Idle
        | LinkState::Connecting { .. }
        | LinkState::Uploading { .. }
        | LinkState::Starting
        | LinkState::Ready { .. }
        | LinkState::Lost { .. }
        | LinkState::Failed { .. }
        | LinkState::Closed => None,
    };
    let was_connected = machine.is_connected();
    match &state {
        LinkState::Ready { probe } => {
            host.probe = Some(probe.clone());
            machine.attaching(awake);
        }
        LinkState::Lost { .. } => machine.stage = HostStage::Away { since: ctx.now },
        LinkState::Failed { .. } => machine.stage = HostStage::Failed,
        LinkState::Closed => machine.stage = HostStage::Closed,
        LinkState::Idle
        | LinkState::Connecting { .. }
        | LinkState::Asking { .. }
        | LinkState::Uploading { .. }
        | LinkState::Starting => {
            if was_connected {
                machine.stage = HostStage::Away { since: ctx.now };
            }
        }
    }
    let ready = matches!(state, LinkState::Ready { .. });
    host.link = state.clone();
    let name = host.name.clone();
    if ready {
        attach(ctx, node);
    }
    let (word, detail) = describe(&state);
    if !same_kind || ready {
        ctx.tell(ReportBody::Host {
            node_rank: rankdeck_types::ids::NodeRank(node as u32),
            host: name.clone(),
            state: word.into(),
            detail: detail.clone(),
        });
        let tone = match state {
            LinkState::Failed { .. } => Some(Tone::Bad),
            LinkState::Lost { .. } | LinkState::Asking { .. } => Some(Tone::Warn),
            LinkState::Ready { .. } => Some(Tone::Info),
            LinkState::Idle
            | LinkState::Connecting { .. }
            | LinkState::Uploading { .. }
            | LinkState::Starting
            | LinkState::Closed => None,
        };
        if let (Some(tone), false) = (tone, ctx.session.run.stage == Stage::Over) {
            let text = if detail.is_empty() {
                format!("{name}: {word}")
            } else {
                format!("{name}: {word}: {detail}")
            };
            ctx.note(tone, text);
        }
    }
    true
}

/// Asks for everything after what is applied.
pub(super) fn attach(ctx: &mut Ctx<'_>, node: usize) {
    let after_seq = ctx.model.hosts.get(node).map_or(0, |host| host.last_seq);
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

/// Gives a host up: it cannot work with this console.
pub(super) fn fail(ctx: &mut Ctx<'_>, node: usize, error: String, hint: String) {
    let Some(machine) = ctx.session.hosts.get(node) else { return };
    if machine.is_gone() {
        return;
    }
    changed(ctx, node, LinkState::Failed { error, hint });
    ctx.out.push(crate::effect::Effect::Disconnect { node: rankdeck_types::ids::NodeRank(node as u32) });
}

/// The word for a state and what there is to say about it.
fn describe(state: &LinkState) -> (&'static str, String) {
    match state {
        LinkState::Idle => ("idle", String::new()),
        LinkState::Connecting { attempt: 0 | 1 } => ("connecting", String::new()),
        LinkState::Connecting { attempt } => ("connecting", format!("attempt {attempt}")),
        LinkState::Asking { prompt } => (
            "asking",
            match prompt {
                Prompt::UnknownHostKey { host, key_type, fingerprint } => {
                    format!("the key of {host} is unknown: {key_type} {fingerprint}")
                }
                Prompt::Passphrase { key } => format!("passphrase of {key}"),
                Prompt::Password { account, text } => format!("{account}: {text}"),
            },
        ),
        LinkState::Uploading { what, total, .. } => ("uploading", format!("{what}, {total} bytes")),
        LinkState::Starting => ("starting", String::new()),
        LinkState::Ready { probe } => {
            ("ready", format!("{} cores, {} GPUs", probe.cpu_count, probe.gpu_count))
        }
        LinkState::Lost { reason, .. } => ("lost", reason.clone()),
        LinkState::Failed { error, hint } if hint.is_empty() => ("failed", error.clone()),
        LinkState::Failed { error, hint } => ("failed", format!("{error}; {hint}")),
        LinkState::Closed => ("closed", String::new()),
    }
}
