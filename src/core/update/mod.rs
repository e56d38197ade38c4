//! The reducer, one file per cause. Each part changes facts; [`reconcile`] alone decides what follows from
//! them.
//!
//! Owner: [`crate::Core::handle`]. Invariants:
//! - No part panics, whatever the event; indices from outside are checked.
//! - What is decided depends on facts and time only, not on which event brought them. What only informs is
//!   decided upon at the next tick: thousands of such events come each second in a large run.
#![deny(clippy::wildcard_enum_match_arm)]

mod agent;
mod bounds;
mod charts;
mod clean_stop;
mod drain;
mod failure;
mod finder;
mod generation;
mod link;
mod media;
mod ownership;
mod policy;
mod policy_view;
mod progress;
mod ranks;
mod reach;
mod reconcile;
mod records;
mod samples;
mod tick;
mod transition;
mod user;
mod verdicts;

pub(crate) use generation::install;

use crate::event::Event;
use crate::model::{HostModel, Model, Tone};
use crate::session::Ctx;
use rankdeck_proto::message::{AgentMessage, RankEvent, Record, RecordEvent};

/// Hosts were asked something that somebody waits for.
pub(crate) fn is_waiting(model: &Model) -> bool {
    finder::is_waiting(model) || model.reaches.is_waiting()
}

/// What may follow from an event at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    /// Gauges, output: nothing before the next tick.
    Informs,
    /// Counters: they may differ from the totals, which is told.
    Tells,
    /// Everything else.
    Decides,
}

fn weight(ctx: &Ctx<'_>, event: &Event) -> Weight {
    let Event::AgentSaid { node, message } = event else { return Weight::Decides };
    // Counters may be what the run is to be stopped at, and the last record of the past.
    let plain = || {
        ctx.session.until.is_empty() && ctx.model.hosts.get(node.index()).is_some_and(HostModel::caught_up)
    };
    let counters = |record: &Record| {
        matches!(record.event, RecordEvent::Rank { said: RankEvent::Counters(_), .. }) && plain()
    };
    match message.as_ref() {
        AgentMessage::Sample(_) | AgentMessage::Log { .. } | AgentMessage::Pong { .. } => Weight::Informs,
        AgentMessage::Record(record) if counters(record) => Weight::Tells,
        AgentMessage::Hello { .. }
        | AgentMessage::Snapshot { .. }
        | AgentMessage::Record(_)
        | AgentMessage::PortReserved { .. }
        | AgentMessage::Frame { .. }
        | AgentMessage::Found { .. }
        | AgentMessage::Reached { .. }
        | AgentMessage::Refused(_)
        | AgentMessage::Bye { .. }
        | AgentMessage::Inspected { .. }
        | AgentMessage::Unknown => Weight::Decides,
    }
}

/// Handles one event.
pub(super) fn handle(ctx: &mut Ctx<'_>, event: Event) {
    let weight = weight(ctx, &event);
    let before = ctx.out.len();
    let counts = apply(ctx, event);
    if weight >= Weight::Tells {
        verdicts::tell(ctx);
    }
    if weight >= Weight::Decides {
        reconcile::reconcile(ctx);
    }
    if counts || ctx.out.len() > before {
        ctx.model.revision += 1;
    }
}

/// Changes the facts. Returns whether a screen could show it.
fn apply(ctx: &mut Ctx<'_>, event: Event) -> bool {
    match event {
        Event::Ticked => tick::ticked(ctx),
        Event::LinkChanged { node, .. }
        | Event::AgentSaid { node, .. }
        | Event::PromptAnswered { node, .. }
            if node.index() >= ctx.model.hosts.len() =>
        {
            false
        }
        Event::LinkChanged { node, state } => link::changed(ctx, node, state),
        Event::AgentSaid { node, message } => agent::said(ctx, node, *message),
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
            user::restart(ctx, from, false)
        }
        Event::RestartRequested { from, exclude, add, experiment, .. } => {
            policy::change(ctx, from, exclude, add, experiment)
        }
        Event::CheckedRestartRequested { from, .. } => user::restart(ctx, from, true),
        Event::RestartRefused { reason } => {
            policy::refuse(ctx, reason);
            true
        }
        Event::Watched { on } => policy_view::watched(ctx, on),
        Event::LookRequested { rank } => user::look(ctx, rank),
        Event::ContinueRequested { rank } => user::resume(ctx, rank),
        Event::ReachRequested { node, process, action } => reach::requested(ctx, node, process, action),
        Event::Searched { wanted } => finder::searched(ctx, wanted.map(|wanted| *wanted)),
        Event::DetachRequested => user::detach(ctx),
        Event::PromptAnswered { node, answer } => user::answer(ctx, node, answer),
        Event::Recalled { learnt } => {
            ctx.session.watch.recall(&learnt);
            false
        }
        Event::Warned { lines } => user::warned(ctx, lines),
        Event::Noticed { text } => {
            ctx.note(Tone::Warn, text);
            true
        }
        Event::WallClock { time } => {
            ctx.session.clock.wall = Some((ctx.now, time));
            false
        }
    }
}
