//! Requests of users, signals and scripts.

use super::{drain, policy, transition};
use crate::event::{Effect, StopSource};
use crate::model::EventTone;
use crate::run::{EndCause, PendingGeneration, RunStage};
use crate::session::{EventCtx, Goal};
use rankdeck_proto::link::LinkCommand;
use rankdeck_proto::message::{ConsoleMessage, StopMode};
use rankdeck_types::ids::{NodeRank, Rank};
use rankdeck_types::words;

/// Most warnings that are kept.
const WARNINGS: usize = 64;

/// A stop was requested.
pub(super) fn stop(ctx: &mut EventCtx<'_>, mode: StopMode, by: StopSource) -> bool {
    let text = format!("stop requested by {by} ({})", mode.word());
    stop_because(ctx, mode, EndCause::Requested { by }, text)
}

/// The run has reached a goal of `--until`.
pub(super) fn stop_at_goal(ctx: &mut EventCtx<'_>, goal: String) {
    let text = format!("stopping: the run reached {goal}");
    ctx.session.run.facts.stuck = ctx.session.watch.critical().map(|verdict| verdict.reason.clone());
    stop_because(ctx, StopMode::Clean, EndCause::Until(goal), text);
}

fn stop_because(ctx: &mut EventCtx<'_>, mode: StopMode, cause: EndCause, text: String) -> bool {
    if ctx.session.run.stage == RunStage::Over {
        return drain::stop_again(ctx, mode, text);
    }
    let waiting = matches!(ctx.session.run.stage, RunStage::Waiting { .. });
    let facts = &ctx.session.run.facts;
    if facts.by_user && facts.stop.is_some_and(|stop| stop.mode >= mode) {
        // Asking again does not make it harder; asking for more does.
        return drain::repeat(ctx);
    }
    ctx.note(EventTone::Info, text);
    if let Some(text) = drain::awaited(ctx.model).filter(|_| mode == StopMode::Clean) {
        ctx.note(EventTone::Info, text);
    }
    let awaited = ctx.session.run.change.take().is_some();
    if ctx.session.run.take_next().is_some() || waiting || awaited {
        ctx.note(EventTone::Info, "restart canceled");
    }
    ctx.session.run.facts.blame(cause);
    ctx.session.run.facts.by_user = true;
    transition::order(ctx, mode);
    if waiting && transition::has_open_host(ctx) {
        ctx.session.run.stage = RunStage::Draining { began: ctx.now, next: None };
    } else if waiting {
        // Nothing runs, so nothing has to be stopped.
        let ending = ctx.session.run.facts.ending();
        transition::finish(ctx, ending);
    }
    true
}

/// Begins the way to a new generation on the same hosts; `checked`: one in which ranks compare every collective
/// before they begin it.
pub(super) fn restart(ctx: &mut EventCtx<'_>, from: Option<String>, checked: bool) {
    let configured = match &ctx.session.goal {
        Goal::Launch(draft) => draft.experiment.watch.check_collectives,
        Goal::Attach { .. } => false,
    };
    if let Some(plan) = &mut ctx.model.plan {
        plan.experiment.watch.check_collectives = checked || configured;
    }
    ctx.session.run.facts.by_user = false;
    match &mut ctx.session.run.stage {
        RunStage::Reserving { .. } => {
            let from = transition::launched_from(ctx, from, None);
            if let RunStage::Reserving { resume, .. } = &mut ctx.session.run.stage {
                *resume = from;
            }
            ctx.session.run.placed = None;
        }
        RunStage::Waiting { until, next } => {
            *until = ctx.now;
            next.from = from;
        }
        RunStage::Gathering { next, .. } => {
            *next = Some(PendingGeneration { from, ..PendingGeneration::default() })
        }
        RunStage::Launching | RunStage::Running | RunStage::Draining { .. } => {
            let next = ctx.session.run.take_next().unwrap_or_default();
            ctx.session.run.drain(ctx.now, Some(PendingGeneration { from, ..next }));
            let failed = matches!(ctx.session.run.facts.cause, Some(EndCause::Failure | EndCause::Stuck(_)));
            transition::order(ctx, if failed { StopMode::Terminate } else { StopMode::Clean });
        }
        RunStage::Over => policy::resume(ctx, PendingGeneration { from, ..PendingGeneration::default() }),
    }
}

/// The console detaches, the run keeps running.
pub(super) fn detach(ctx: &mut EventCtx<'_>) -> bool {
    match ctx.session.run.stage {
        RunStage::Over => {
            let code = ctx.model.run.exit_code.unwrap_or(0);
            transition::leave(ctx, code);
        }
        RunStage::Gathering { .. } | RunStage::Reserving { .. }
            if ctx.session.run.launch.is_none() && is_launch(ctx) =>
        {
            // Nothing runs yet, so there is nothing to come back to.
            return stop(ctx, StopMode::Clean, StopSource::Detach);
        }
        RunStage::Waiting { .. } => {
            return stop(ctx, StopMode::Clean, StopSource::Detach);
        }
        RunStage::Gathering { .. }
        | RunStage::Reserving { .. }
        | RunStage::Launching
        | RunStage::Running
        | RunStage::Draining { .. } => {
            let run = ctx.model.run.id.as_ref().map(|run| run.to_string()).unwrap_or_default();
            if ctx.session.run.change.take().is_some() {
                ctx.note(EventTone::Warn, "restart canceled");
            }
            ctx.note(EventTone::Info, format!("detached; the run keeps running (`rankdeck attach {run}`)"));
            for node in ctx.nodes() {
                if ctx.host(node).machine.is_connected() {
                    ctx.send(node, ConsoleMessage::Detach);
                }
            }
            transition::disconnect(ctx);
            ctx.out.push(Effect::Exit { code: 0 });
            ctx.session.run.exited = true;
        }
    }
    true
}

/// Number of an inspection that a user requests; those of the watch count from 1.
const USER_REQUEST: u64 = 0;

/// Requests an inspection of a rank; the model keeps the reply.
pub(super) fn request_inspection(ctx: &mut EventCtx<'_>, rank: Rank) -> bool {
    let Some(node) = ctx.model.ranks.get(rank.index()).map(|rank| rank.node) else { return false };
    if ctx.host(node).is_live() {
        ctx.send(
            node,
            ConsoleMessage::Inspect { request: USER_REQUEST, ranks: vec![rank], inner: Vec::new() },
        );
    }
    true
}

/// Asks a rank's agent to continue it.
pub(super) fn continue_rank(ctx: &mut EventCtx<'_>, rank: Rank) -> bool {
    let Some(node) = ctx.model.ranks.get(rank.index()).map(|rank| rank.node) else { return false };
    if ctx.host(node).is_live() {
        ctx.note(EventTone::Info, format!("continuing rank {rank} on request"));
        ctx.send(node, ConsoleMessage::Continue { ranks: vec![rank] });
    }
    true
}

/// The user answered a link's question.
pub(super) fn answer(ctx: &mut EventCtx<'_>, node: NodeRank, answer: Option<String>) -> bool {
    let answered = ctx.host(node).prompt.take().is_some();
    if answered {
        ctx.out.push(Effect::Link { node, command: LinkCommand::Answer(answer) });
    }
    answered
}

/// The console is to launch, not to attach.
pub(super) fn is_launch(ctx: &EventCtx<'_>) -> bool {
    matches!(ctx.session.goal, Goal::Launch(_))
}

/// Keeps warnings from before the run, for the events pane and the summary at the end.
pub(super) fn warned(ctx: &mut EventCtx<'_>, lines: Vec<String>) -> bool {
    let room = WARNINGS.saturating_sub(ctx.model.run.warnings.len());
    ctx.model.drops.history += lines.len().saturating_sub(room) as u64;
    for line in lines.into_iter().take(room) {
        ctx.note(EventTone::Warn, line.clone());
        ctx.model.run.warnings.push(words::clip(&line, 400));
    }
    true
}
