//! Requests of people, signals and scripts.

use super::{drain, records};
use crate::Goal;
use crate::effect::Effect;
use crate::model::Tone;
use crate::run::{Cause, Next, Stage};
use crate::session::Ctx;
use rankdeck_proto::message::{ConsoleMessage, StopMode};
use rankdeck_types::ids::NodeRank;
use rankdeck_types::words;

/// Most warnings that are kept.
const WARNINGS: usize = 64;

/// A stop was asked for.
pub(super) fn stop(ctx: &mut Ctx<'_>, mode: StopMode, by: String) -> bool {
    if ctx.session.run.stage == Stage::Over {
        return false;
    }
    // Asking again does not make it harder; asking for more does.
    let waiting = matches!(ctx.session.run.stage, Stage::Waiting { .. });
    if ctx.model.run.stopping.is_some_and(|known| known >= mode) && ctx.session.run.next().is_none() {
        return false;
    }
    ctx.note(Tone::Info, format!("stop asked for by {by} ({})", records::mode_text(mode)));
    ctx.session.run.change = None;
    if ctx.session.run.take_next().is_some() || waiting {
        ctx.note(Tone::Info, "the restart is called off");
    }
    let cause = match by.strip_prefix("until ") {
        Some(goal) => Cause::Until(goal.to_string()),
        None if by == "until" => Cause::Until("its goal".into()),
        None => Cause::Requested { by },
    };
    ctx.session.run.facts.blame(cause);
    order(ctx, mode);
    if waiting {
        // Nothing runs, so nothing has to be stopped.
        let ending = ctx.session.run.facts.ending();
        drain::finish(ctx, ending);
    }
    true
}

/// Wants a stop now.
pub(super) fn order(ctx: &mut Ctx<'_>, mode: StopMode) {
    ctx.model.run.stopping = ctx.model.run.stopping.max(Some(mode));
    let facts = &mut ctx.session.run.facts;
    facts.first_end.get_or_insert(ctx.now);
    facts.want_stop(mode, ctx.now);
}

/// A new generation was asked for; `checked`: one in which ranks compare every collective before they begin
/// it.
pub(super) fn restart(ctx: &mut Ctx<'_>, from: Option<String>, checked: bool) -> bool {
    if ctx.session.run.exited {
        return false;
    }
    let configured = match &ctx.session.goal {
        Goal::Launch(draft) => draft.experiment.watch.check_collectives,
        Goal::Attach { .. } => false,
    };
    if let Some(plan) = &mut ctx.model.plan {
        plan.experiment.watch.check_collectives = checked || configured;
    }
    let how = if checked { " that checks every collective" } else { "" };
    let text = match &from {
        Some(from) => format!("restart{how} from {from} asked for"),
        None => format!("restart{how} from the beginning asked for"),
    };
    if matches!(ctx.session.run.stage, Stage::Gathering { .. }) && is_launch(ctx) {
        ctx.note(Tone::Warn, "nothing to restart: the run has not been launched");
        return true;
    }
    ctx.note(Tone::Info, text);
    match &mut ctx.session.run.stage {
        Stage::Reserving { resume, .. } => *resume = from,
        Stage::Waiting { until, next } => {
            *until = ctx.now;
            next.from = from;
        }
        Stage::Gathering { next, .. } => *next = Some(Next { from, ..Next::default() }),
        Stage::Launching | Stage::Running | Stage::Draining { .. } => {
            let next = ctx.session.run.take_next().unwrap_or_default();
            ctx.session.run.drain(ctx.now, Some(Next { from, ..next }));
            let failed = matches!(ctx.session.run.facts.cause, Some(Cause::Failure | Cause::Stuck(_)));
            order(ctx, if failed { StopMode::Terminate } else { StopMode::Clean });
        }
        Stage::Over => drain::resume(ctx, Next { from, ..Next::default() }),
    }
    true
}

/// The console leaves, the run goes on.
pub(super) fn detach(ctx: &mut Ctx<'_>) -> bool {
    match ctx.session.run.stage {
        Stage::Over => {
            let code = ctx.model.run.exit_code.unwrap_or(0);
            drain::leave(ctx, code);
        }
        Stage::Gathering { .. } | Stage::Reserving { .. }
            if ctx.session.run.launch.is_none() && is_launch(ctx) =>
        {
            // Nothing runs yet, so there is nothing to come back to.
            return stop(ctx, StopMode::Clean, "detach before the launch".into());
        }
        Stage::Waiting { .. } => {
            return stop(ctx, StopMode::Clean, "detach while nothing runs".into());
        }
        Stage::Gathering { .. }
        | Stage::Reserving { .. }
        | Stage::Launching
        | Stage::Running
        | Stage::Draining { .. } => {
            let run = ctx.model.run.id.as_ref().map(|run| run.to_string()).unwrap_or_default();
            ctx.note(
                Tone::Info,
                format!("detached; the run goes on. Come back with `rankdeck attach {run}`"),
            );
            for node in ctx.nodes() {
                if ctx.host(node).machine.is_connected() {
                    ctx.send(node, ConsoleMessage::Detach);
                }
            }
            drain::disconnect(ctx);
            ctx.out.push(Effect::Exit { code: 0 });
            ctx.session.run.exited = true;
        }
    }
    true
}

/// The user answered a link's question.
pub(super) fn answer(ctx: &mut Ctx<'_>, node: NodeRank, answer: Option<String>) -> bool {
    let asked = ctx.host(node).prompt.take().is_some();
    if asked {
        ctx.out.push(Effect::Answer { node, answer });
    }
    asked
}

/// The console is to launch, not to attach.
pub(super) fn is_launch(ctx: &Ctx<'_>) -> bool {
    matches!(ctx.session.goal, crate::Goal::Launch(_))
}

/// Keeps warnings from before the run, for the events pane and the summary at the end.
pub(super) fn warned(ctx: &mut Ctx<'_>, lines: Vec<String>) -> bool {
    let room = WARNINGS.saturating_sub(ctx.model.run.warnings.len());
    ctx.model.drops.history += lines.len().saturating_sub(room) as u64;
    for line in lines.into_iter().take(room) {
        ctx.note(Tone::Warn, line.clone());
        ctx.model.run.warnings.push(words::clip(&line, 400));
    }
    true
}
