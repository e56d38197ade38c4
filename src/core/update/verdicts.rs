//! Verdicts are told, noted, and the policy is applied to those on living ranks.

use super::{charts, policy, transition};
use crate::model::{MarkKind, RunState, Subject, Tone};
use crate::report::{ReportBody, Severity};
use crate::run::Cause;
use crate::session::Ctx;
use crate::watch::Occurrence;
use rankdeck_proto::message::StopMode;
use rankdeck_types::experiment::OnStuck;

/// Tells what changed among the verdicts.
pub(super) fn tell(ctx: &mut Ctx<'_>) {
    let changes = ctx.session.watch.changes();
    for change in changes {
        let verdict = change.verdict;
        let (tone, word) = match verdict.severity {
            Severity::Red => (Tone::Bad, ""),
            Severity::Amber => (Tone::Warn, ""),
            Severity::Cleared => (Tone::Good, "over: "),
        };
        let text = format!("{word}{}: {}", verdict.verdict.name(), verdict.reason);
        let now = || Occurrence { time: ctx.session.clock.wall_time(ctx.now), past: false };
        let happened = change.happened.unwrap_or_else(now);
        let time = happened.time;
        ctx.note_about(time, tone, text, Some(Subject::Verdict(Box::new(verdict.clone()))));
        if verdict.severity != Severity::Cleared {
            charts::mark(ctx, happened, None, MarkKind::Verdict(verdict.verdict, verdict.severity));
        }
        if change.acts {
            act(ctx, &verdict.reason);
        }
        ctx.tell(ReportBody::Verdict(verdict));
    }
    ctx.model.verdicts = ctx.session.watch.present();
}

/// The user's policy for a stuck, living rank.
fn act(ctx: &mut Ctx<'_>, reason: &str) {
    let policy = ctx.model.plan.as_ref().map_or(OnStuck::Report, |plan| plan.experiment.watch.on_stuck);
    if ctx.session.run.is_ending() || !matches!(ctx.model.run.state, RunState::Launching | RunState::Running)
    {
        return;
    }
    match policy {
        OnStuck::Report => {}
        OnStuck::Restart if policy::stuck(ctx) => {
            // A stuck group cannot agree on a last iteration: asking it to would only cost the grace.
            transition::order(ctx, StopMode::Terminate);
            ctx.note(Tone::Warn, "policy on_stuck = \"restart\": a new generation follows");
        }
        OnStuck::Stop | OnStuck::Restart => {
            ctx.session.run.facts.blame(Cause::Stuck(reason.to_string()));
            transition::order(ctx, StopMode::Terminate);
            ctx.note(Tone::Warn, "policy on_stuck: the run is being stopped");
        }
    }
}
