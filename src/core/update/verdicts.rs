//! Verdicts: conditions are assessed at each tick, changes are reported and recorded, and the policy for stuck
//! ranks is applied to verdicts about live ranks.

use super::{charts, policy, shrink, transition};
use crate::limits::TimeLimits;
use crate::model::{ChartMarkKind, EventSubject, EventTone, RunState};
use crate::report::{Proof, ReportBody, Severity};
use crate::run::{BlamePriority, EndCause, FailedRank, RunStage};
use crate::session::EventCtx;
use crate::watch::{InspectRequest, RecordedTime};
use rankdeck_proto::message::{ConsoleMessage, StopMode};
use rankdeck_types::experiment::OnStuck;

/// Assesses the conditions of the run, and requests the inspections that this needs.
pub(super) fn evaluate(ctx: &mut EventCtx<'_>) {
    let run = &ctx.session.run;
    let watching = run.launch.is_some() && !run.is_ending();
    let replaying = ctx.model.hosts.iter().any(|host| host.is_live() && !host.caught_up());
    if watching
        && !replaying
        && !shrink::is_reforming(ctx)
        && matches!(run.stage, RunStage::Launching | RunStage::Running | RunStage::Draining { .. })
    {
        ctx.session.watch.check_learning(ctx.model);
        let limits = TimeLimits::of(ctx.model.plan.as_ref());
        let awake = ctx.session.clock.awake_ms;
        for request in ctx.session.watch.evaluate(ctx.model, awake, &limits) {
            let InspectRequest { node, request, ranks, inner } = request;
            ctx.send(node, ConsoleMessage::Inspect { request, ranks, inner });
        }
    }
}

/// For a few seconds after a death, checks whether another rank had called a different collective before.
pub(super) fn compare_last_calls(ctx: &mut EventCtx<'_>) {
    let limits = TimeLimits::of(ctx.model.plan.as_ref());
    let awake = ctx.session.clock.awake_ms;
    if let Some((rank, text)) = ctx.session.watch.post_mortem(ctx.model, awake, &limits) {
        let host = ctx.model.ranks.get(rank.index()).map(|rank| rank.host.clone()).unwrap_or_default();
        let time = ctx.session.clock.wall_time(ctx.now);
        ctx.session.run.facts.failed(FailedRank {
            rank,
            host,
            time,
            bound_s: 0.0,
            last_lines: Vec::new(),
            weight: BlamePriority::Hard,
            text,
            gist: String::new(),
            usage: false,
        });
    }
}

/// Reports what changed among the verdicts.
pub(super) fn report_verdicts(ctx: &mut EventCtx<'_>) {
    let changes = ctx.session.watch.changes();
    for change in changes {
        let verdict = change.verdict;
        let (tone, word) = match verdict.severity {
            Severity::Red => (EventTone::Bad, ""),
            Severity::Amber => (EventTone::Warn, ""),
            Severity::Cleared => (EventTone::Good, "cleared: "),
        };
        let text = format!("{word}{}: {}", verdict.verdict.name(), verdict.reason);
        let now = || RecordedTime { time: ctx.session.clock.wall_time(ctx.now), past: false };
        let happened = change.happened.unwrap_or_else(now);
        let time = happened.time;
        ctx.note_about(time, tone, text, Some(EventSubject::Verdict(Box::new(verdict.clone()))));
        if verdict.severity != Severity::Cleared {
            let kind = ChartMarkKind::Verdict(verdict.verdict, verdict.severity);
            let generation = ctx.model.run.generation;
            charts::mark(ctx, happened, (generation, None), kind);
        }
        if let Some(proof) = change.acts {
            act(ctx, proof, &verdict.reason);
        }
        ctx.report(ReportBody::Verdict(verdict));
    }
    ctx.model.verdicts = ctx.session.watch.current();
}

/// The user's policy for a living rank that is proved to be stuck.
fn act(ctx: &mut EventCtx<'_>, proof: Proof, reason: &str) {
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
            let proof = proof.describe();
            ctx.note(EventTone::Warn, format!("policy `on_stuck = \"restart\"`: restarting ({proof})"));
        }
        OnStuck::Stop | OnStuck::Restart => {
            ctx.session.run.facts.blame(EndCause::Stuck(reason.to_string()));
            transition::order(ctx, StopMode::Terminate);
            let proof = proof.describe();
            ctx.note(EventTone::Warn, format!("policy `on_stuck`: stopping the run ({proof})"));
        }
    }
}
