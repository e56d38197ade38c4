//! Requests of people, signals and scripts.

use super::{clean_stop, drain, policy, transition};
use crate::Goal;
use crate::effect::Effect;
use crate::event::StopSource;
use crate::model::Tone;
use crate::run::{Cause, Next, Stage};
use crate::session::Ctx;
use rankdeck_proto::link::LinkCommand;
use rankdeck_proto::message::{ConsoleMessage, StopMode};
use rankdeck_types::ids::{NodeRank, Rank};
use rankdeck_types::words;

/// Most warnings that are kept.
const WARNINGS: usize = 64;

/// A stop was asked for.
pub(super) fn stop(ctx: &mut Ctx<'_>, mode: StopMode, by: StopSource) -> bool {
    let text = format!("stop asked for by {by} ({})", mode.word());
    stop_because(ctx, mode, Cause::Requested { by }, text)
}

/// The run has reached a goal of `--until`.
pub(super) fn stop_at_goal(ctx: &mut Ctx<'_>, goal: String) {
    let text = format!("stop: the run has reached {goal}");
    stop_because(ctx, StopMode::Clean, Cause::Until(goal), text);
}

fn stop_because(ctx: &mut Ctx<'_>, mode: StopMode, cause: Cause, text: String) -> bool {
    if ctx.session.run.stage == Stage::Over {
        return drain::stop_again(ctx, mode, text);
    }
    let waiting = matches!(ctx.session.run.stage, Stage::Waiting { .. });
    let facts = &ctx.session.run.facts;
    if facts.asked && facts.stop.is_some_and(|stop| stop.mode >= mode) {
        // Asking again does not make it harder; asking for more does.
        return drain::repeat(ctx);
    }
    ctx.note(Tone::Info, text);
    if let Some(text) = clean_stop::awaited(ctx.model).filter(|_| mode == StopMode::Clean) {
        ctx.note(Tone::Info, text);
    }
    ctx.session.run.change = None;
    if ctx.session.run.take_next().is_some() || waiting {
        ctx.note(Tone::Info, "the restart is called off");
    }
    ctx.session.run.facts.blame(cause);
    ctx.session.run.facts.asked = true;
    transition::order(ctx, mode);
    if waiting && transition::has_open_host(ctx) {
        ctx.session.run.stage = Stage::Draining { began: ctx.now, next: None };
    } else if waiting {
        // Nothing runs, so nothing has to be stopped.
        let ending = ctx.session.run.facts.ending();
        transition::finish(ctx, ending);
    }
    true
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
    ctx.session.run.facts.asked = false;
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
            transition::order(ctx, if failed { StopMode::Terminate } else { StopMode::Clean });
        }
        Stage::Over => policy::resume(ctx, Next { from, ..Next::default() }),
    }
    true
}

/// The console leaves, the run goes on.
pub(super) fn detach(ctx: &mut Ctx<'_>) -> bool {
    match ctx.session.run.stage {
        Stage::Over => {
            let code = ctx.model.run.exit_code.unwrap_or(0);
            transition::leave(ctx, code);
        }
        Stage::Gathering { .. } | Stage::Reserving { .. }
            if ctx.session.run.launch.is_none() && is_launch(ctx) =>
        {
            // Nothing runs yet, so there is nothing to come back to.
            return stop(ctx, StopMode::Clean, StopSource::Detach);
        }
        Stage::Waiting { .. } => {
            return stop(ctx, StopMode::Clean, StopSource::Detach);
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
            transition::disconnect(ctx);
            ctx.out.push(Effect::Exit { code: 0 });
            ctx.session.run.exited = true;
        }
    }
    true
}

/// Number of a look that a user asks for; those of the watch count from 1.
const LOOK: u64 = 0;

/// Asks a rank's agent for a close look; the answer is kept beside the rank.
pub(super) fn look(ctx: &mut Ctx<'_>, rank: Rank) -> bool {
    let Some(node) = ctx.model.ranks.get(rank.index()).map(|rank| rank.node) else { return false };
    if ctx.host(node).is_live() {
        ctx.send(node, ConsoleMessage::Inspect { request: LOOK, ranks: vec![rank] });
    }
    true
}

/// Asks a rank's agent to continue it.
pub(super) fn resume(ctx: &mut Ctx<'_>, rank: Rank) -> bool {
    let Some(node) = ctx.model.ranks.get(rank.index()).map(|rank| rank.node) else { return false };
    if ctx.host(node).is_live() {
        ctx.note(Tone::Info, format!("rank {rank} is to be continued, asked for by key"));
        ctx.send(node, ConsoleMessage::Continue { ranks: vec![rank] });
    }
    true
}

/// The user answered a link's question.
pub(super) fn answer(ctx: &mut Ctx<'_>, node: NodeRank, answer: Option<String>) -> bool {
    let asked = ctx.host(node).prompt.take().is_some();
    if asked {
        ctx.out.push(Effect::Link { node, command: LinkCommand::Answer(answer) });
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
