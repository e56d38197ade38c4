//! The reducer, one file per cause. Each part changes facts; [`reconcile`] alone decides what follows from
//! them.
//!
//! Owner: [`crate::Core::handle`]. Invariants:
//! - No part panics, whatever the event; indices from outside are checked.
//! - What is decided depends on facts and time only, not on which event brought them.
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
use crate::model::{Model, Tone};
use crate::session::Ctx;

/// Hosts were asked something that somebody waits for.
pub(crate) fn is_waiting(model: &Model) -> bool {
    finder::is_waiting(model) || model.reaches.is_waiting()
}

/// Handles one event.
pub(super) fn handle(ctx: &mut Ctx<'_>, event: Event) {
    let counts = match event {
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
        Event::ReachRequested { node, process, wish } => reach::requested(ctx, node, process, wish),
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
    };
    let before = ctx.out.len();
    verdicts::tell(ctx);
    reconcile::reconcile(ctx);
    if counts || ctx.out.len() > before {
        ctx.model.revision += 1;
    }
}
