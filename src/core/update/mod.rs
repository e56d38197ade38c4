//! The reducer, one file per cause. Each part changes facts; [`reconcile`] alone decides what follows from
//! them.
//!
//! Invariants:
//! - No part panics, whatever the event; indices from outside are checked.
//! - Decisions depend on facts and time only, not on which event brought them. Gauge updates never trigger a
//!   decision; decisions are made on the next tick: thousands of such events arrive each second in a large
//!   run.
#![deny(clippy::wildcard_enum_match_arm)]

mod agent;
mod bounds;
mod charts;
mod drain;
mod failure;
mod link;
mod ownership;
mod placement;
mod policy;
mod progress;
mod queries;
mod ranks;
mod reconcile;
mod records;
mod shrink;
mod transition;
mod user;
mod verdicts;

pub(crate) use bounds::check;
pub(crate) use placement::{NamedCheckpoint, PlacedCheckpoint};
pub(crate) use queries::is_waiting;
pub(crate) use transition::install;

use crate::event::Event;
use crate::model::{EventTone, HostModel};
use crate::run::{RequestedRestart, RunStage};
use crate::session::EventCtx;
use rankdeck_proto::message::{AgentMessage, RankEvent, Record, RecordEvent};

/// Most slow links that are kept.
const SLOW_LINKS: usize = 64;

/// What follows from an event at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ReconcileUrgency {
    /// Gauges, output: no decision before the next tick.
    Informs,
    /// Counters: they may differ from the totals, which is reported.
    Reports,
    /// Everything else.
    Decides,
}

fn weight(ctx: &EventCtx<'_>, event: &Event) -> ReconcileUrgency {
    let Event::AgentMessage { node, message } = event else { return ReconcileUrgency::Decides };
    // Counters may be what the run is to be stopped at, and the last record of the past.
    let plain = || {
        ctx.session.until.is_empty() && ctx.model.hosts.get(node.index()).is_some_and(HostModel::caught_up)
    };
    let counters = |record: &Record| {
        matches!(record.event, RecordEvent::Rank { event: RankEvent::Counters(_), .. }) && plain()
    };
    match message.as_ref() {
        AgentMessage::Sample(_) | AgentMessage::Log { .. } | AgentMessage::Pong { .. } => {
            ReconcileUrgency::Informs
        }
        AgentMessage::Record(record) if counters(record) => ReconcileUrgency::Reports,
        AgentMessage::Hello { .. }
        | AgentMessage::Snapshot { .. }
        | AgentMessage::Record(_)
        | AgentMessage::PortReserved { .. }
        | AgentMessage::Frame { .. }
        | AgentMessage::Found { .. }
        | AgentMessage::Reached { .. }
        | AgentMessage::Checkpoint { .. }
        | AgentMessage::Refused(_)
        | AgentMessage::Bye { .. }
        | AgentMessage::Inspected { .. }
        | AgentMessage::Unknown => ReconcileUrgency::Decides,
    }
}

/// Handles one event.
pub(super) fn handle(ctx: &mut EventCtx<'_>, event: Event) {
    let weight = weight(ctx, &event);
    let before = ctx.out.len();
    let counts = apply(ctx, event);
    if weight >= ReconcileUrgency::Reports {
        verdicts::report_verdicts(ctx);
    }
    if weight >= ReconcileUrgency::Decides {
        reconcile::reconcile(ctx);
    }
    if counts || ctx.out.len() > before {
        ctx.model.revision += 1;
    }
}

/// Changes the facts. Returns whether a screen could show it.
fn apply(ctx: &mut EventCtx<'_>, event: Event) -> bool {
    match event {
        Event::Ticked => tick(ctx),
        Event::LinkChanged { node, .. }
        | Event::AgentMessage { node, .. }
        | Event::PromptAnswered { node, .. }
            if node.index() >= ctx.model.hosts.len() =>
        {
            false
        }
        Event::LinkChanged { node, state } => link::changed(ctx, node, state),
        Event::AgentMessage { node, message } => agent::on_agent_message(ctx, node, *message),
        Event::StopRequested { mode, by } => user::stop(ctx, mode, by),
        Event::RestartRequested { ref shown, ref exclude, .. }
            if !ownership::may_restart(ctx, shown.as_ref(), exclude) =>
        {
            true
        }
        Event::CheckedRestartRequested { ref shown, .. }
            if !ownership::may_restart(ctx, shown.as_ref(), &[]) =>
        {
            true
        }
        Event::RestartRequested { from, exclude, add, experiment: None, .. }
            if exclude.is_empty() && add.is_empty() =>
        {
            policy::request(ctx, RequestedRestart { from, ..RequestedRestart::default() })
        }
        Event::RestartRequested { from, exclude, add, experiment, .. } => {
            policy::change(ctx, from, exclude, add, experiment)
        }
        Event::CheckedRestartRequested { from, .. } => {
            policy::request(ctx, RequestedRestart { from, checked: true, ..RequestedRestart::default() })
        }
        Event::RestartRefused { reason } => {
            policy::refuse(ctx, reason);
            true
        }
        Event::Watched { on } => queries::request_frames(ctx, on),
        Event::InspectRequested { rank } => user::request_inspection(ctx, rank),
        Event::ContinueRequested { rank } => user::continue_rank(ctx, rank),
        Event::RejoinRequested { rank } => shrink::rejoin(ctx, rank),
        Event::ProcessActionRequested { node, process, action } => {
            queries::request_process_action(ctx, node, process, action)
        }
        Event::Searched { search } => queries::request_search(ctx, search.map(|search| *search)),
        Event::DetachRequested => user::detach(ctx),
        Event::PromptAnswered { node, answer } => user::answer(ctx, node, answer),
        Event::CopyAnswered { yes } => placement::on_answer(ctx, yes),
        Event::Recalled { pace } => {
            ctx.session.watch.recall(&pace);
            false
        }
        Event::Measured { mut slow_links } => {
            slow_links.truncate(SLOW_LINKS);
            ctx.model.slow_links = slow_links;
            true
        }
        Event::Warned { lines } => user::warned(ctx, lines),
        Event::Noticed { text } => {
            ctx.note(EventTone::Warn, text);
            true
        }
        Event::WallClock { time } => {
            ctx.session.clock.wall = Some((ctx.now, time));
            false
        }
    }
}

/// Time passed. Returns whether a screen could show the change.
fn tick(ctx: &mut EventCtx<'_>) -> bool {
    (ctx.session.clock.tick, ctx.session.clock.sampled) = (ctx.now, false);
    let failed = queries::on_tick(ctx);
    if ctx.session.run.stage == RunStage::Over {
        return failed;
    }
    link::ping(ctx);
    link::fail_silent_agents(ctx);
    let before = ctx.model.verdicts.len();
    verdicts::evaluate(ctx);
    verdicts::compare_last_calls(ctx);
    // A countdown is on the screen while the policy waits.
    failed || before > 0 || matches!(ctx.session.run.stage, RunStage::Waiting { .. })
}
