//! Ranks are lost and the others continue; a lost rank joins again. [`crate::membership`] has the rules.

use super::{charts, progress};
use crate::end::RankEnd;
use crate::limits::TimeLimits;
use crate::membership::{self, LossEvidence, PendingLoss, RankLoss};
use crate::model::{ChartMarkKind, EventSubject, EventTone, HostModel, RankLife, RankModel, RunState};
use crate::reason::VerdictKind;
use crate::report::{ReportBody, VerdictReport};
use crate::run::{EndCause, FailedRank, RunStage};
use crate::session::{EventCtx, RecordContext};
use crate::watch::{self, RecordedTime};
use rankdeck_proto::message::{ConsoleMessage, Exit, Membership};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{NodeRank, Rank};
use rankdeck_types::plan::Plan;
use std::collections::BTreeSet;

/// Milliseconds after a change in which samples may be from before it.
const SETTLE_MS: u64 = 2_000;
/// Longest address at which ranks join.
const ADDRESS: usize = 300;
/// The kind of the verdicts about lost ranks.
const VERDICT: VerdictKind = VerdictKind::Lost;

/// What the end of a rank of the present generation is, if it is a failure without the option.
pub(super) fn loss_of(ctx: &EventCtx<'_>, rank: Rank, exit: &Exit, usage: bool) -> RankLoss {
    let Some(model) = ctx.model.ranks.get(rank.index()) else { return RankLoss::Failure };
    let run = &ctx.session.run;
    let others = ctx.model.ranks.iter().filter(|other| other.rank != rank && is_living_member(ctx, other));
    let is_over =
        |rank: &RankModel| !rank.lost && (matches!(rank.life, RankLife::Finished) || rank.ended_well());
    membership::of_exit(LossEvidence {
        shrinks: ctx.model.plan.as_ref().is_some_and(Plan::shrinks),
        ending: run.is_ending() || ctx.model.ranks.iter().any(is_over),
        member: !model.lost,
        joined: matches!(model.life, RankLife::Joined | RankLife::Finished),
        exit,
        usage,
        others: others.count(),
    })
}

/// Records of another host may show only later that its ranks live.
fn is_living_member(ctx: &EventCtx<'_>, rank: &RankModel) -> bool {
    let is_unread = || !ctx.model.hosts.get(rank.node.index()).is_some_and(HostModel::caught_up);
    !rank.lost && (rank.is_alive() || rank.life == RankLife::Pending && is_unread())
}

/// The death of a rank, as a failure would be described.
pub(super) struct Death {
    pub failure: FailedRank,
    pub verdict: VerdictReport,
    pub happened: RecordedTime,
}

/// A member has died, and others live: they must confirm that they continue (SHRINK-2).
pub(super) fn lost(ctx: &mut EventCtx<'_>, rank: Rank, end: RankEnd, death: Death, with_agent: bool) {
    let Death { failure, verdict, happened } = death;
    let limits = TimeLimits::of(ctx.model.plan.as_ref());
    let until = ctx.now.plus(membership::confirm_ms(&limits, with_agent));
    let reported = watch::lost(ctx.model, rank, None);
    ctx.session.watch.add_fact(Some(rank), reported, happened);
    let loss = PendingLoss { failure, end, verdict: Box::new(verdict), happened, until };
    ctx.session.run.facts.losses.push(loss);
}

/// A rank that is no member any more has ended: its verdict shows how. A rank that was to join did not.
pub(super) fn gone(ctx: &mut EventCtx<'_>, rank: Rank, happened: RecordedTime, exit: &Exit) {
    if ctx.model.membership.joining == Some(rank) {
        let run = ctx.model.run.id.as_ref().map(|run| run.0.clone()).unwrap_or_default();
        let error = format!("rank {rank} ended before it joined: {exit}");
        refuse(ctx, HintedError::new(error, format!("check its log: `rankdeck logs {run} --rank {rank}`")));
    }
    let change = ctx.model.membership.changes.iter().rev().find(|known| known.change.lost.contains(&rank));
    let change = change.map(|known| known.change.clone());
    let verdict = watch::lost(ctx.model, rank, change.as_ref());
    ctx.session.watch.add_fact(Some(rank), verdict, happened);
}

/// Losses that nothing has confirmed in time are failures (SHRINK-2), and so are all of them once the generation ends
/// by another one (SHRINK-4). A generation that ends otherwise needs no confirmation any more.
pub(super) fn expire(ctx: &mut EventCtx<'_>) {
    if !awaits_confirmation(ctx) {
        return;
    }
    let failed = has_failed(ctx);
    let runs = matches!(ctx.session.run.stage, RunStage::Launching | RunStage::Running);
    let reads_all = ctx.members().all(|host| host.caught_up() || is_left(ctx, host));
    if !failed && !reads_all {
        // The confirmation may be among the records of a host that does not respond now.
        let limits = TimeLimits::of(ctx.model.plan.as_ref());
        let until = ctx.now.plus(membership::confirm_ms(&limits, false));
        let losses = &mut ctx.session.run.facts.losses;
        losses.iter_mut().for_each(|loss| loss.until = loss.until.max(until));
        return;
    }
    let now = ctx.now;
    let is_due = ctx.session.run.facts.losses.iter().any(|loss| now >= loss.until);
    if !(failed || runs && is_due) {
        return;
    }
    if !failed {
        let text = "the remaining ranks did not form a smaller group in time";
        ctx.note(EventTone::Bad, text);
    }
    for loss in std::mem::take(&mut ctx.session.run.facts.losses) {
        let PendingLoss { failure, end, verdict, happened, .. } = loss;
        let rank = failure.rank;
        if let Some(model) = ctx.model.ranks.get_mut(rank.index()) {
            (model.lost, model.end) = (false, Some(end));
        }
        ctx.session.watch.withdraw_about(VERDICT, rank);
        ctx.session.watch.on_death(ctx.session.clock.awake_ms);
        ctx.session.watch.add_fact(Some(rank), *verdict, happened);
        ctx.session.run.facts.failed(failure);
    }
    ctx.session.run.facts.blame(EndCause::Failure);
}

/// The generation ends because a rank has failed.
fn has_failed(ctx: &EventCtx<'_>) -> bool {
    matches!(ctx.session.run.facts.cause, Some(EndCause::Failure))
}

/// The survivors are forming another group, or have just formed it and their samples are from before: nothing that they
/// wait for is odd.
pub(super) fn is_reforming(ctx: &EventCtx<'_>) -> bool {
    let changed_at = ctx.model.membership.changed_at;
    awaits_confirmation(ctx) || changed_at.is_some_and(|at| ctx.now.since(at) < SETTLE_MS)
}

/// A loss is not confirmed yet.
fn awaits_confirmation(ctx: &EventCtx<'_>) -> bool {
    !ctx.session.run.facts.losses.is_empty()
}

/// The members have changed, as one of them reports.
pub(super) fn changed(ctx: &mut EventCtx<'_>, at: RecordContext, mut change: Membership) {
    let shrinks = ctx.model.plan.as_ref().is_some_and(Plan::shrinks);
    let world = ctx.model.ranks.len();
    // Each list is bounded by the ranks of the plan.
    let is_valid = |ranks: &[Rank]| {
        ranks.is_sorted_by(|one, other| one < other) && ranks.iter().all(|rank| rank.index() < world)
    };
    let are_valid = [&change.ranks, &change.lost, &change.joined].into_iter().all(|ranks| is_valid(ranks));
    if !shrinks || !are_valid || change.ranks.is_empty() {
        ctx.model.drops.misplaced += 1;
        return;
    }
    change.store = change.store.filter(|store| is_address(store));
    change.seconds = Some(change.seconds).filter(|seconds| seconds.is_finite()).unwrap_or_default().max(0.0);
    if !ctx.session.run.is_current(at.generation)
        || has_failed(ctx)
        || !ctx.model.membership.apply(at, ctx.now, &change)
    {
        return;
    }
    let members: BTreeSet<Rank> = change.ranks.iter().copied().collect();
    let losses = &mut ctx.session.run.facts.losses;
    losses.retain(|loss| members.contains(&loss.failure.rank));
    // They have died since, and the next change is about them.
    let pending: BTreeSet<Rank> = losses.iter().map(|loss| loss.failure.rank).collect();
    for model in &mut ctx.model.ranks {
        model.lost = !members.contains(&model.rank) || pending.contains(&model.rank);
        if model.lost && matches!(model.life, RankLife::Exited(_)) && !model.ended_well() {
            model.end = Some(RankEnd::Lost);
        }
    }
    for rank in &change.lost {
        let verdict = watch::lost(ctx.model, *rank, Some(&change));
        ctx.session.watch.add_fact(Some(*rank), verdict, at.happened());
    }
    for rank in change.ranks.iter().filter(|rank| !pending.contains(rank)) {
        ctx.session.watch.withdraw_about(VERDICT, *rank);
    }
    ctx.session.watch.reform();
    report(ctx, at, &change);
    let joined = ctx.session.join.reform(&change.ranks, change.iteration.saturating_add(1));
    progress::progressed(ctx, at, joined);
}

/// `ADDRESS:PORT` of something that can be connected to.
fn is_address(text: &str) -> bool {
    let port =
        text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    text.len() <= ADDRESS && text.bytes().all(|byte| byte.is_ascii_graphic()) && matches!(port, Some(Ok(1..)))
}

/// The line, the mark and the report of a change.
fn report(ctx: &mut EventCtx<'_>, at: RecordContext, change: &Membership) {
    let text = ctx.model.describe_change(change);
    let (tone, subject) = match change.lost.first() {
        Some(rank) => (EventTone::Warn, *rank),
        None => (EventTone::Good, change.joined.first().copied().unwrap_or_default()),
    };
    ctx.note_about(at.time, tone, text, Some(EventSubject::Rank(subject)));
    let (members, world) = (change.ranks.len() as u32, ctx.model.ranks.len() as u32);
    let kind = ChartMarkKind::Membership { members, world };
    charts::mark(ctx, at.happened(), (at.generation, Some(change.steps)), kind);
    let Membership { epoch, ranks, lost, joined, iteration, steps, steps_lost, seconds, store: _ } =
        change.clone();
    let body = ReportBody::Membership {
        epoch,
        ranks,
        lost,
        joined,
        world_size: world,
        train_iter: iteration,
        env_step: steps,
        steps_lost,
        seconds,
    };
    ctx.report_at(at.generation, at.time, body);
}

/// All ranks of a host are lost: it neither ends the generation nor keeps it from ending.
pub(super) fn is_left(ctx: &EventCtx<'_>, host: &HostModel) -> bool {
    ctx.model.has_only_lost(host.node_rank)
}

/// A lost rank still has a process there, and nothing else does: it may wait for the others forever.
pub(super) fn has_only_waiting(ctx: &EventCtx<'_>, node: NodeRank) -> bool {
    let mut living = ctx.model.ranks.iter().filter(|rank| rank.node == node && rank.is_alive()).peekable();
    living.peek().is_some() && living.all(|rank| rank.lost)
}

/// A lost rank has a process again, which is to join.
pub(super) fn started_again(ctx: &mut EventCtx<'_>, node: NodeRank, rank: Rank, pid: u32) {
    let host = ctx.host(node);
    // Something runs there again.
    (host.stopped, host.machine.proved) = (None, None);
    let Some(model) = ctx.model.ranks.get_mut(rank.index()) else { return };
    *model = RankModel {
        life: RankLife::Spawned,
        pid: Some(pid),
        error: None,
        failure: None,
        exception: None,
        raised: false,
        returned: false,
        inner: Vec::new(),
        end: None,
        signalled: None,
        inspection: None,
        sample: None,
        sampled: None,
        watch_history: Default::default(),
        rate: Default::default(),
        steps_per_s: None,
        ..model.clone()
    };
    let facts = &mut ctx.session.run.facts;
    facts.errors.remove(&rank);
    facts.usage.remove(&rank);
}

/// A user requests that a lost rank joins the running group again.
pub(super) fn rejoin(ctx: &mut EventCtx<'_>, rank: Rank) -> bool {
    ctx.model.membership.refused = None;
    if let Some(why) = ctx.model.rejoin_obstacle(rank) {
        let hint = match ctx.model.run.state {
            RunState::Running => "`rankdeck status` shows the ranks of the run",
            RunState::Connecting
            | RunState::Launching
            | RunState::Draining
            | RunState::Restarting
            | RunState::Over => "`rankdeck restart` starts all ranks",
        };
        refuse(ctx, HintedError::new(format!("rank {rank} cannot join: {why}"), hint));
        return true;
    }
    if awaits_confirmation(ctx) {
        let error = format!("rank {rank} cannot join: the remaining ranks are forming a group");
        refuse(ctx, HintedError::new(error, "try again in a few seconds"));
        return true;
    }
    let Some(node) = ctx.model.ranks.get(rank.index()).map(|rank| rank.node) else { return false };
    let (epoch, store) = (ctx.model.membership.epoch, ctx.model.membership.store.clone());
    let generation = ctx.model.run.generation;
    ctx.model.membership.joining = Some(rank);
    let host = ctx.host_name(node);
    ctx.note(EventTone::Info, format!("starting rank {rank} on {host} again; it joins the running group"));
    ctx.send(node, ConsoleMessage::Rejoin { rank, generation, epoch, store, private: Default::default() });
    true
}

/// The agent has refused to start a rank again.
pub(super) fn order_refused(ctx: &mut EventCtx<'_>, node: NodeRank, error: &HintedError) {
    let joining = ctx.model.membership.joining;
    let is_there = |rank: Rank| ctx.model.ranks.get(rank.index()).is_some_and(|rank| rank.node == node);
    if joining.is_some_and(is_there) {
        refuse(ctx, error.clone());
    }
}

fn refuse(ctx: &mut EventCtx<'_>, error: HintedError) {
    let text = error.with_hint();
    ctx.note(EventTone::Bad, text.clone());
    (ctx.model.membership.joining, ctx.model.membership.refused) = (None, Some(text));
}
