//! Restarts: by policy after a failure, and on other hosts than before.
//!
//! Only the console that launched the present generation makes restarts. Others wait a while for its next
//! one. Invariants:
//! - RESTART-1: a mistake in the configuration is never tried again.
//! - RESTART-2: at most `max_restarts`, at most `no_progress` in a row without a new checkpoint or iteration.
//! - A generation on other hosts is planned and shown before anything is stopped. When there is no
//!   such plan, the run keeps running unchanged.
//! - RESTART-4: a host that was excluded without a verified stop is ordered to stop when it reconnects. The
//!   run's stop counts as proved only then.

use super::{failure, transition};
use crate::event::Effect;
use crate::model::{EventTone, HostModel};
use crate::origin::Standing;
use crate::report::{ReportBody, RestartState};
use crate::run::{EndCause, HostChange, PendingGeneration, RunProgress, RunStage};
use crate::session::EventCtx;
use rankdeck_proto::message::{ConsoleMessage, StopMode};
use rankdeck_types::experiment::{Experiment, LostHost, Restart};
use rankdeck_types::host::Host;
use rankdeck_types::ids::{NodeRank, Timestamp};
use rankdeck_types::link_state::LinkState;
use rankdeck_types::plan::{Plan, PlanError, replan};
use rankdeck_types::probe::Probe;
use rankdeck_types::words::{count, plural};
use std::collections::BTreeSet;

fn settings(ctx: &EventCtx<'_>) -> Restart {
    ctx.model.plan.as_ref().map(|plan| plan.experiment.restart.clone()).unwrap_or_default()
}

/// How many restarts the policy may make, given what has happened.
fn budget(ctx: &EventCtx<'_>, asked: bool) -> u32 {
    settings(ctx).max_restarts.unwrap_or(if asked { Restart::ASKED } else { 0 })
}

/// How long the console that launched the run may wait before its next generation; `None` when it makes none,
/// or when it is this console.
pub(super) fn successor_ms(ctx: &EventCtx<'_>) -> Option<u64> {
    let onlooker = !ctx.session.run.is_launcher();
    let usage = ctx.session.run.facts.culprit().is_some_and(|failure| failure.usage);
    let settings = settings(ctx);
    (onlooker && !usage && budget(ctx, false) > 0).then(|| settings.delay_ms(settings.no_progress))
}

/// The checkpoint that the policy begins from.
fn checkpoint(ctx: &EventCtx<'_>, next: Option<&Plan>) -> Option<String> {
    // The generation is over, or does not stop cleanly: nothing newer is written.
    let standing = Standing { running: false, ..Standing::of(ctx.model) };
    let start = standing.start(None).ok()?;
    transition::launched_from(ctx, start.from, next)
}

/// Asks the policy for another generation, on other hosts when there is a `plan`. `asked`: another key than
/// `max_restarts` asks for one. Reports when the policy gives up.
fn again(ctx: &mut EventCtx<'_>, asked: bool, plan: Option<Plan>) -> Option<PendingGeneration> {
    let (budget, settings) = (budget(ctx, asked), settings(ctx));
    if budget == 0 || ctx.session.run.facts.culprit().is_some_and(|failure| failure.usage) {
        return None;
    }
    let reports = ctx.model.plan.as_ref().is_some_and(Plan::is_builtin);
    let tries = &mut ctx.session.run.tries;
    // A program that reports nothing cannot be assessed by its progress.
    let judged = reports || tries.reached != RunProgress::default();
    if tries.reached.is_beyond(&tries.before) {
        tries.barren = 0;
    } else if tries.made > 0 && judged {
        tries.barren += 1;
    }
    tries.before = tries.reached;
    let tries = *tries;
    let gives_up = match (tries.barren >= settings.no_progress, tries.made >= budget) {
        (true, _) => Some(format!(
            "giving up after {} restarts without progress (iteration {}, env_step {})",
            tries.barren, tries.reached.train_iter, tries.reached.env_step
        )),
        (false, true) => Some(format!("giving up: reached `restart.max_restarts` = {budget}")),
        (false, false) => None,
    };
    if let Some(text) = gives_up {
        ctx.note(EventTone::Bad, text.clone());
        report_restart(ctx, RestartState::GivenUp, text, None);
        return None;
    }
    ctx.session.run.tries.made += 1;
    ctx.model.run.restarts = ctx.session.run.tries.made;
    let from = checkpoint(ctx, plan.as_ref());
    Some(PendingGeneration { from, plan, wait_ms: settings.delay_ms(tries.barren) })
}

/// The present generation has ended: what the policy makes of it. `open`: hosts that gave no proof and do not
/// answer.
pub(super) fn ended(ctx: &mut EventCtx<'_>, open: &[NodeRank]) {
    let failed = matches!(ctx.session.run.facts.cause, Some(EndCause::Failure));
    let next = ctx.session.run.take_next();
    let next = match next {
        Some(next) if ctx.session.run.is_launcher() => continue_with(ctx, Some(next), open),
        None if ctx.session.run.is_launcher() && failed && !ctx.session.run.facts.by_user => {
            continue_with(ctx, None, open)
        }
        Some(_) | None => next,
    };
    ctx.session.run.drain(ctx.now, next);
}

/// The next generation, requested or made by policy, without lost hosts if `restart.lost_host` excludes them.
fn continue_with(
    ctx: &mut EventCtx<'_>,
    next: Option<PendingGeneration>,
    open: &[NodeRank],
) -> Option<PendingGeneration> {
    if settings(ctx).lost_host != LostHost::Exclude || open.is_empty() {
        return match next {
            None if open.is_empty() => again(ctx, false, None),
            Some(_) | None => next,
        };
    }
    let names: BTreeSet<String> = open.iter().map(|node| ctx.host_name(*node)).collect();
    let list = names.iter().cloned().collect::<Vec<_>>().join(", ");
    let plan = match plan_without(ctx, next.as_ref(), &names) {
        Ok(plan) => plan,
        Err(error) => {
            refuse(ctx, format!("cannot continue without {list}: {}", error.cause.with_hint()));
            return None;
        }
    };
    let next = match next {
        Some(PendingGeneration { from, wait_ms, .. }) => {
            let from = transition::launched_from(ctx, from, Some(&plan));
            PendingGeneration { from, plan: Some(plan), wait_ms }
        }
        None => again(ctx, true, Some(plan))?,
    };
    for node in open {
        ctx.host(*node).excluded = Some("lost; excluded by `restart.lost_host`".into());
    }
    ctx.note(
        EventTone::Warn,
        format!("continuing without {list}: its stop is not verified (`lost_host = \"exclude\"`)"),
    );
    Some(next)
}

fn plan_without(
    ctx: &EventCtx<'_>,
    next: Option<&PendingGeneration>,
    names: &BTreeSet<String>,
) -> Result<Plan, PlanError> {
    let plan = next.and_then(|next| next.plan.as_ref()).or(ctx.model.plan.as_ref());
    let plan = plan.ok_or_else(|| PlanError::new("host", "no plan yet", ""))?;
    replan(plan, names, &[], &probes(ctx), ctx.session.resolve)
}

fn probes(ctx: &EventCtx<'_>) -> Vec<Probe> {
    ctx.model.hosts.iter().map(|host| host.probe.clone().unwrap_or_default()).collect()
}

/// Restarts because of a stuck, living rank, if the policy may.
pub(super) fn stuck(ctx: &mut EventCtx<'_>) -> bool {
    if !ctx.session.run.is_launcher() {
        return false;
    }
    let next = again(ctx, true, None);
    let restarts = next.is_some();
    if restarts {
        ctx.session.run.drain(ctx.now, next);
    }
    restarts
}

/// Nothing of the old generation is left, or it was left behind: the next one begins now, or after its wait.
pub(super) fn proceed(ctx: &mut EventCtx<'_>, next: PendingGeneration) {
    ctx.model.run.first_failure = failure::report(ctx);
    let reason = match &ctx.model.run.first_failure {
        Some(failure) => failure.line.clone(),
        None => ctx.session.run.facts.ending().reason,
    };
    let text = format!(
        "generation {} follows: {}",
        transition::next_generation(ctx.model.run.generation),
        shape(ctx, next.plan.as_ref())
    );
    if next.wait_ms == 0 {
        report_restart(ctx, RestartState::Planned, reason, Some(&next));
        ctx.note(EventTone::Info, text);
        return transition::reserve(ctx, next);
    }
    ctx.note(EventTone::Warn, format!("{text}, in {:.1} s", next.wait_ms as f64 / 1000.0));
    report_restart(ctx, RestartState::Waiting, reason, Some(&next));
    let until = ctx.now.plus(next.wait_ms);
    ctx.model.run.restart_at = Some(until);
    ctx.session.run.stage = RunStage::Waiting { until, next };
}

/// Between two generations, while the policy waits.
pub(super) fn waiting(ctx: &mut EventCtx<'_>, until: Timestamp) {
    if let RunStage::Waiting { next, .. } = &mut ctx.session.run.stage
        && ctx.now >= until
    {
        let next = std::mem::take(next);
        transition::reserve(ctx, next);
    }
}

/// What a plan comes to, for people: `3 ranks on 2 hosts (ant, cow), 4 environments per rank`.
fn shape(ctx: &EventCtx<'_>, other: Option<&Plan>) -> String {
    let Some(plan) = other.or(ctx.model.plan.as_ref()) else { return String::new() };
    let names: Vec<&str> = plan.members().map(|planned| planned.host.name.as_str()).collect();
    let sizes: Vec<String> = plan
        .sizes
        .iter()
        .map(|size| format!("{} {} per rank of {}", size.name, count(size.local), count(size.global)))
        .collect();
    let was = ctx.model.plan.as_ref().map_or(0, |plan| plan.ranks.len());
    let change = if was == plan.ranks.len() { String::new() } else { format!(" (now {was})") };
    let sizes = if sizes.is_empty() { String::new() } else { format!("; {}", sizes.join(", ")) };
    format!(
        "{}{change} on {} ({}){sizes}",
        plural(plan.ranks.len(), "rank"),
        plural(names.len(), "host"),
        names.join(", ")
    )
}

fn report_restart(
    ctx: &mut EventCtx<'_>,
    state: RestartState,
    reason: String,
    next: Option<&PendingGeneration>,
) {
    let plan = next.and_then(|next| next.plan.as_ref()).or(ctx.model.plan.as_ref());
    let hosts = plan
        .map(|plan| plan.members().map(|planned| planned.host.name.clone()).collect())
        .unwrap_or_default();
    let present = ctx.model.run.generation;
    let follows = matches!(state, RestartState::Planned | RestartState::Waiting);
    let body = ReportBody::Restart {
        state,
        next_generation: if follows { transition::next_generation(present) } else { present },
        reason,
        in_s: next.map_or(0.0, |next| next.wait_ms as f64 / 1000.0),
        restarts: ctx.session.run.tries.made,
        max_restarts: budget(ctx, ctx.session.run.tries.made > 0),
        from: next.and_then(|next| next.from.clone()),
        world_size: plan.map_or(0, |plan| plan.ranks.len() as u32),
        hosts,
        sizes: plan.map(|plan| plan.sizes.clone()).unwrap_or_default(),
        first_failure: follows.then(|| ctx.model.run.first_failure.clone()).flatten(),
    };
    ctx.report(body);
}

/// Launches the next generation after the end, in a console that lingers. A host that it excludes and that
/// does not answer is not awaited (RESTART-4).
pub(super) fn resume(ctx: &mut EventCtx<'_>, next: PendingGeneration) {
    let left_out = |host: &HostModel| next.excludes(host.node_rank) && !host.machine.is_connected();
    let is_ready = ctx.members().all(|host| left_out(host) || host.is_live() && host.is_clear());
    if ctx.session.linger && ctx.session.run.launch.is_some() && is_ready {
        return transition::reserve(ctx, next);
    }
    refuse(ctx, "some hosts are not connected, or have leftover processes of the run".into());
}

/// No restart is made, and this is why.
pub(super) fn refuse(ctx: &mut EventCtx<'_>, text: String) {
    ctx.note(EventTone::Bad, format!("not restarting: {text}"));
    ctx.model.run.refused = Some(text.clone());
    report_restart(ctx, RestartState::Refused, text, None);
}

/// A restart on other hosts, or with other keys, was requested.
pub(super) fn change(
    ctx: &mut EventCtx<'_>,
    from: Option<String>,
    exclude: Vec<String>,
    add: Vec<Host>,
    experiment: Option<Box<Experiment>>,
) -> bool {
    ctx.model.run.refused = None;
    let between = match ctx.session.run.stage {
        RunStage::Running | RunStage::Waiting { .. } | RunStage::Over => false,
        // Excluded hosts may be the only ones that have not reported it.
        RunStage::Launching | RunStage::Draining { next: None, .. } if !ctx.session.run.facts.by_user => {
            exclude.is_empty() || !ctx.model.is_settled_without(&exclude)
        }
        RunStage::Launching
        | RunStage::Reserving { .. }
        | RunStage::Draining { .. }
        | RunStage::Gathering { .. } => true,
    };
    if between || ctx.session.run.change.is_some() || ctx.session.run.exited {
        refuse(ctx, "the run is changing state; try again when it runs".into());
        return true;
    }
    let Some(plan) = ctx.model.plan.clone() else {
        refuse(ctx, "the run is unknown until a host responds".into());
        return true;
    };
    let plan = with(plan, experiment.as_deref());
    let exclude: BTreeSet<String> = exclude.into_iter().collect();
    // What is decidable without new hosts is reported before they are contacted.
    let known: Vec<Host> = add.iter().filter(|host| host.gpus.is_none()).cloned().collect();
    if known.len() == add.len()
        && let Err(error) = try_replan(ctx, &plan, &exclude, &known)
    {
        refuse(ctx, worded(&error));
        return true;
    }
    let nodes: Vec<NodeRank> = add.into_iter().map(|host| add_host(ctx, host)).collect();
    let text = match nodes.len() {
        0 if exclude.is_empty() => "planning a generation with changed keys".to_string(),
        0 => "planning a generation without the excluded hosts".to_string(),
        count => format!("connecting {} for the next generation", plural(count, "host")),
    };
    ctx.note(EventTone::Info, text);
    ctx.session.run.change = Some(HostChange { from, exclude, add: nodes, experiment });
    true
}

/// Whether a plan would exist, as far as is decidable before all hosts are connected: trainers are not
/// missed yet.
fn try_replan(
    ctx: &EventCtx<'_>,
    plan: &Plan,
    exclude: &BTreeSet<String>,
    add: &[Host],
) -> Result<Plan, PlanError> {
    let mut probes = probes(ctx);
    probes.resize(plan.hosts.len() + add.len(), Probe::default());
    for probe in &mut probes {
        probe.trainer.get_or_insert_default();
    }
    replan(plan, exclude, add, &probes, ctx.session.resolve)
}

/// The plan with the requested experiment.
fn with(plan: Plan, experiment: Option<&Experiment>) -> Plan {
    match experiment {
        Some(experiment) => Plan { experiment: experiment.clone(), ..plan },
        None => plan,
    }
}

fn worded(error: &PlanError) -> String {
    format!("{} (key `{}`)", error.cause.with_hint(), error.key)
}

/// A host that is to join; its link is opened unless it stands.
fn add_host(ctx: &mut EventCtx<'_>, host: Host) -> NodeRank {
    let known = ctx.model.hosts.iter().find(|known| known.name == host.name).map(|known| known.node_rank);
    let node = known.unwrap_or_else(|| {
        let node = NodeRank(ctx.model.hosts.len() as u32);
        ctx.model.hosts.push(HostModel {
            link_since: ctx.now,
            excluded: Some("joins the next generation".into()),
            ..HostModel::new(node, host.name.clone())
        });
        node
    });
    ctx.session.run.added.insert(node, host.clone());
    let model = ctx.host(node);
    if known.is_none() || model.machine.is_gone() {
        model.machine.relink();
        model.link = LinkState::Idle;
        ctx.out.push(Effect::Connect { node, host: Box::new(host) });
    }
    node
}

/// A change of hosts is requested: it is planned as soon as all new hosts have answered.
pub(super) fn changing(ctx: &mut EventCtx<'_>) {
    let Some(change) = ctx.session.run.change.clone() else { return };
    let Some(present) = ctx.model.plan.clone() else { return };
    let present = with(present, change.experiment.as_deref());
    let added: Vec<&HostModel> = change.add.iter().map(|node| &ctx.model.hosts[node.index()]).collect();
    let failed = added.iter().find_map(|host| host.link_error());
    let all_live = added.iter().all(|host| host.is_live());
    if let Some(text) = failed {
        ctx.session.run.change = None;
        return refuse(ctx, text);
    }
    if !all_live {
        return;
    }
    ctx.session.run.change = None;
    // Hosts that were tried and never joined keep their places.
    let mut add: Vec<Host> = Vec::new();
    let mut exclude = change.exclude;
    for (node, host) in &ctx.session.run.added {
        let added = change.add.contains(node);
        let is_new = node.index() >= present.hosts.len();
        if added || is_new {
            add.push(host.clone());
        }
        if !added && is_new {
            exclude.insert(host.name.clone());
        }
    }
    let plan = match replan(&present, &exclude, &add, &probes(ctx), ctx.session.resolve) {
        Ok(plan) => plan,
        Err(error) => return refuse(ctx, worded(&error)),
    };
    for host in &mut ctx.model.hosts {
        if exclude.contains(&host.name) {
            host.excluded = Some("excluded on request".into());
        }
    }
    // The stop of a running generation may save a newer one.
    let from = transition::launched_from(ctx, change.from, Some(&plan));
    let text = format!("next generation: {}", shape(ctx, Some(&plan)));
    ctx.note(EventTone::Info, text.clone());
    let next = PendingGeneration { from, plan: Some(plan), wait_ms: 0 };
    report_restart(ctx, RestartState::Planned, text, Some(&next));
    match &mut ctx.session.run.stage {
        RunStage::Running | RunStage::Launching | RunStage::Draining { .. } => {
            ctx.session.run.drain(ctx.now, Some(next));
            transition::order(ctx, StopMode::Clean);
        }
        RunStage::Waiting { until, next: planned } => (*until, *planned) = (ctx.now, next),
        RunStage::Over => resume(ctx, next),
        RunStage::Gathering { .. } | RunStage::Reserving { .. } => {}
    }
}

/// Stops hosts that were excluded without a verified stop and have reconnected (RESTART-4).
pub(super) fn chase(ctx: &mut EventCtx<'_>) {
    if !ctx.session.run.is_launcher() || ctx.session.run.stage == RunStage::Over {
        return;
    }
    let present = ctx.model.run.generation;
    for node in ctx.nodes() {
        let is_member = ctx.is_member(&ctx.model.hosts[node.index()]);
        let host = ctx.host(node);
        let runs = host.machine.generation.is_some_and(|latest| latest <= present) && !host.is_clear();
        if !is_member && runs && host.caught_up() && host.machine.stop_sent != Some(StopMode::Kill) {
            host.machine.stop_sent = Some(StopMode::Kill);
            ctx.send(node, ConsoleMessage::Stop { mode: StopMode::Kill, grace_ms: 0 });
        }
    }
}
