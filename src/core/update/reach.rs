//! A process that the user asks for: its environment, a signal to it.

use crate::model::{ReachQuestion, SentSignal, Subject, Tone};
use crate::report::ReportBody;
use crate::session::{At, Ctx};
use rankdeck_proto::message::ConsoleMessage;
use rankdeck_proto::process::{ProcessAction, ProcessName, ReachOutcome};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{NodeRank, Rank};
use rankdeck_types::words::signal_name;

/// Milliseconds within which an agent answers.
const ANSWER_MS: u64 = 5_000;

/// The user asks.
pub(super) fn requested(
    ctx: &mut Ctx<'_>,
    node: NodeRank,
    process: ProcessName,
    action: ProcessAction,
) -> bool {
    if node.index() >= ctx.model.hosts.len() {
        return false;
    }
    let (since, host) = (ctx.session.clock.awake_ms, ctx.host_name(node));
    let live = ctx.host(node).is_live();
    let outcome = (!live).then(|| {
        ReachOutcome::Refused(HintedError::new(
            format!("{host} is not connected"),
            "it is asked when it is back",
        ))
    });
    let asked = ReachQuestion { outcome, since, ..ReachQuestion::new(node, host, process, action) };
    let request = ctx.model.reaches.ask(asked);
    if live {
        ctx.send(node, ConsoleMessage::Reach { request, process, action });
    }
    true
}

/// An agent answers.
pub(super) fn reached(ctx: &mut Ctx<'_>, node: NodeRank, request: u64, outcome: ReachOutcome) -> bool {
    let mut outcome = Some(outcome);
    ctx.model
        .reaches
        .settle(|asked| (asked.request == request && asked.node == node).then(|| outcome.take()).flatten())
}

/// The link to a host is lost: it says nothing more.
pub(super) fn lost(ctx: &mut Ctx<'_>, node: NodeRank) {
    ctx.model.reaches.settle(|asked| {
        let error = format!("{} was lost before it answered", asked.host);
        let lost = HintedError::new(error, "ask again when it is back");
        (asked.node == node).then_some(ReachOutcome::Refused(lost))
    });
}

/// Time passes: agents that do not answer know no such question.
pub(super) fn ticked(ctx: &mut Ctx<'_>) -> bool {
    let awake = ctx.session.clock.awake_ms;
    ctx.model.reaches.settle(|asked| {
        let error = format!("{} does not answer", asked.host);
        let hint = "its agent may be of an older rankdeck, or the host is in trouble";
        let late = awake.saturating_sub(asked.since) > ANSWER_MS;
        late.then(|| ReachOutcome::Refused(HintedError::new(error, hint)))
    })
}

/// A console, this one or another, had a signal sent to a process.
pub(super) fn signalled(ctx: &mut Ctx<'_>, at: At, rank: Option<Rank>, pid: u32, signal: i32) {
    let host = ctx.host_name(at.node);
    let who = rank.map_or_else(|| format!("pid {pid}"), |rank| format!("rank {rank} (pid {pid})"));
    let text = format!("{who} on {host}: a console sends it {}", signal_name(signal));
    ctx.note_about(at.time, Tone::Warn, text.clone(), rank.map(Subject::Rank));
    ctx.tell_at(at.generation, at.time, ReportBody::Notice { node_rank: at.node, host, text });
    let current = ctx.session.run.is_current(at.generation);
    let model = rank.filter(|_| current).and_then(|rank| ctx.model.ranks.get_mut(rank.index()));
    if let Some(model) = model.filter(|model| model.node == at.node) {
        model.signalled = Some(SentSignal { signal, time: at.time });
        ctx.session.run.facts.signalled = rank.map(|rank| (rank, signal));
    }
}
