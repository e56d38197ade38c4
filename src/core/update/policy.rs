//! Restarts: on request, and by policy after a failure.
//!
//! Only the console that launched the present generation makes restarts. Others wait a while for its next
//! one. Invariants:
//! - RESTART-1: a mistake in the configuration is never tried again.
//! - RESTART-2: at most `max_restarts`, at most `no_progress` in a row without a new checkpoint or iteration.
//! - A generation on other hosts is planned and shown before anything is stopped. When there is no
//!   such plan, the run keeps running unchanged.
//! - RESTART-4: a host that was excluded without a verified stop is ordered to stop when it reconnects, by any
//!   console to which all hosts of the present generation confirm it. The run's stop counts as proved only then.
//! - RESTART-5: a requested restart stops nothing while a host that it needs does not respond. It waits at most
//!   as long as a stop does, and is then refused with the command that excludes the host.
//! - RESTART-6: a stop by another console ends the run, also between two generations: it records its ending, and
//!   the console that launched the run makes no next generation. A generation of its policy that is being started
//!   when it reads of that end is stopped.
//! - RESTART-7: a generation that cannot start because a host does not respond is given up after as long as a
//!   stop may take: nothing of the run is left then, and `lost_host` decides what follows.
//! - RESTART-8: where two generations in a row have not read the checkpoint that they resume from, and the second
//!   has saved none, a third one would not read it either.
//! - RESTART-9: a console that ends the run ends it for all: another one's restart is cancelled when it reads of
//!   that order, however far it is. Only a launch by a console that has read of the end before follows it.

use super::{failure, placement, transition, user};
use crate::event::Effect;
use crate::limits::TimeLimits;
use crate::model::{EventTone, HostModel};
use crate::origin::{self, LATEST, Standing, exclusion};
use crate::report::{ReportBody, RestartState, RunOutcome};
use crate::run::{EndCause, PendingGeneration, RequestedRestart, RunProgress, RunStage};
use crate::session::{EventCtx, RecordContext};
use rankdeck_proto::message::{ConsoleMessage, RunEnd, StopMode, end_refusal};
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::{Experiment, LostHost, Restart};
use rankdeck_types::host::Host;
use rankdeck_types::host::Probe;
use rankdeck_types::ids::{Generation, NodeRank, Timestamp};
use rankdeck_types::link_state::LinkState;
use rankdeck_types::plan::{Plan, PlanError, replan};
use rankdeck_types::words::{count, plural};
use std::collections::BTreeSet;

/// Generations in a row that may leave their checkpoint unread (RESTART-8).
const UNREAD: u32 = 2;

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
    let (unread, present) = (ctx.session.run.unread, ctx.model.run.generation);
    let has_saved = ctx.model.checkpoints.iter().any(|saved| saved.generation == present);
    let in_vain = unread.0 >= UNREAD && unread.1 == present && !has_saved;
    let gives_up = match (tries.barren >= settings.no_progress, tries.made >= budget) {
        (true, _) => Some(format!(
            "giving up after {} restarts without progress (iteration {}, env_step {})",
            tries.barren, tries.reached.train_iter, tries.reached.env_step
        )),
        (false, true) => Some(format!("giving up: reached `restart.max_restarts` = {budget}")),
        (false, false) if in_vain => {
            Some(format!("giving up: {UNREAD} generations in a row did not read their checkpoint"))
        }
        (false, false) => None,
    };
    if let Some(text) = gives_up {
        ctx.note(EventTone::Bad, text.clone());
        report_restart(ctx, RestartState::GivenUp, text, None);
        return None;
    }
    let from = match Standing::of(ctx.model).start(None) {
        Ok(start) => start.requested(),
        Err(unknown) => {
            refuse(ctx, unknown.with_hint());
            return None;
        }
    };
    ctx.session.run.tries.made += 1;
    ctx.model.run.restarts = ctx.session.run.tries.made;
    Some(PendingGeneration { from, plan, wait_ms: settings.delay_ms(tries.barren), by_policy: true })
}

/// The present generation has ended: what the policy makes of it. `open`: hosts that gave no proof and do not
/// answer.
pub(super) fn ended(ctx: &mut EventCtx<'_>, open: &[NodeRank]) {
    let facts = &ctx.session.run.facts;
    let is_ended = facts.recorded_ending.is_some() || ctx.session.run.ended;
    let failed = matches!(facts.cause, Some(EndCause::Failure)) && !is_ended;
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

/// RESTART-6. A host has recorded the end of a generation, before any later one started there.
pub(super) fn end_recorded(ctx: &mut EventCtx<'_>, generation: Generation, ending: RunEnd) {
    let run = &mut ctx.session.run;
    let (launcher, current) = (run.is_launcher(), run.is_current(generation));
    run.ended |= current;
    let follows =
        run.launch.as_ref().map(|launch| launch.generation) == Some(transition::next_generation(generation));
    // A restart that a user has requested knows of the end, or replaces it.
    let reserved = matches!(run.stage, RunStage::Reserving { .. }) && current && run.by_policy;
    let started = !matches!(run.stage, RunStage::Over) && follows && run.by_policy;
    let ends = matches!(run.stage, RunStage::Draining { .. } | RunStage::Waiting { .. }) && current;
    if current && !launcher {
        run.facts.recorded_ending = Some(ending);
    } else if launcher && (reserved || started) {
        run.facts.recorded_ending = Some(ending);
        ctx.note(EventTone::Warn, CANCELLED);
        stop_elsewhere(ctx);
    } else if launcher && ends {
        // In another stage, it is its own ending that comes back.
        run.facts.recorded_ending = Some(ending);
        ended_elsewhere(ctx);
    }
}

/// RESTART-9. A host has recorded that a console ends the run; `own`: this one.
pub(super) fn stop_recorded(ctx: &mut EventCtx<'_>, at: RecordContext, by: &str, own: bool) {
    let run = &mut ctx.session.run;
    let current = run.is_current(at.generation);
    run.ended |= current;
    // What a restart found when it was requested, it replaces.
    if own || at.found {
        return;
    }
    ctx.model.run.stopped_elsewhere |= current;
    let follows = run.is_launcher()
        && run.launch.as_ref().map(|launch| launch.generation)
            == Some(transition::next_generation(at.generation));
    let (waiting, over) = (matches!(run.stage, RunStage::Waiting { .. }), run.stage == RunStage::Over);
    let reserved = current && matches!(run.stage, RunStage::Reserving { .. });
    let started = follows && !over && !waiting && !run.facts.by_user && !run.facts.cancelled;
    let requested = current && run.change.take().is_some();
    let planned = current && (waiting || run.take_next().is_some());
    if !(reserved || started || requested || planned) {
        return;
    }
    ctx.note(EventTone::Warn, CANCELLED);
    ctx.session.run.facts.cancelled = true;
    if reserved || started {
        stop_elsewhere(ctx);
    } else if waiting {
        let ending = failure::ending(ctx);
        transition::finish(ctx, ending);
    } else if over {
        let error = ctx.model.run.id.as_ref().map(|run| end_refusal(run).with_hint());
        refuse(ctx, error.unwrap_or_default());
    } else {
        ctx.session.run.facts.blame(EndCause::Elsewhere { by: by.to_owned() });
    }
}

/// RESTART-9. A host has refused the launch because another console had ended the run.
pub(super) fn launch_refused(ctx: &mut EventCtx<'_>) {
    if !std::mem::replace(&mut ctx.session.run.facts.cancelled, true) {
        ctx.note(EventTone::Warn, CANCELLED);
    }
    stop_elsewhere(ctx);
}

const CANCELLED: &str = "restart canceled: another console has stopped the run";

/// Another console has stopped and ended the generation that this one has launched.
fn ended_elsewhere(ctx: &mut EventCtx<'_>) {
    let waiting = matches!(ctx.session.run.stage, RunStage::Waiting { .. });
    if ctx.session.run.take_next().is_some() || waiting {
        ctx.note(EventTone::Info, CANCELLED);
    }
    if waiting {
        let ending = failure::ending(ctx);
        transition::finish(ctx, ending);
    }
}

/// What has been started since, or may have been, is stopped.
fn stop_elsewhere(ctx: &mut EventCtx<'_>) {
    ctx.session.run.facts.blame(EndCause::Elsewhere { by: "console".into() });
    ctx.session.run.ended = true;
    ctx.session.run.drain(ctx.now, None);
    transition::order(ctx, StopMode::Clean);
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
        Some(next) => PendingGeneration { plan: Some(plan), ..next },
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
        // Without a cause, the generation would have been the last one.
        None if ctx.session.run.facts.cause.is_none() => "a restart was requested".to_owned(),
        None => ctx.session.run.facts.ending().reason,
    };
    let code = code_word(ctx, next.plan.as_ref());
    let text = format!(
        "generation {} follows: {}{}",
        transition::next_generation(ctx.model.run.generation),
        shape(ctx, next.plan.as_ref()),
        code.map_or(String::new(), |word| format!("; {}", origin::code_text(word)))
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

/// Hosts have left between the stop and the launch. Waits for them, and returns whether that has taken too
/// long (RESTART-7).
pub(super) fn gives_up_on_absent(ctx: &mut EventCtx<'_>) -> bool {
    let away: Vec<NodeRank> =
        ctx.members().filter(|host| !host.is_live()).map(|host| host.node_rank).collect();
    let names: BTreeSet<String> = away.iter().map(|node| ctx.host_name(*node)).collect();
    let list = names.iter().cloned().collect::<Vec<_>>().join(", ");
    let restarts = matches!(ctx.session.run.stage, RunStage::Reserving { generation: Generation(1..), .. });
    if restarts {
        ctx.model.run.restart_awaits = names.iter().cloned().collect();
    }
    let bound = TimeLimits::of(ctx.model.plan.as_ref()).drain();
    let RunStage::Reserving { generation, resume, away_since, .. } = &mut ctx.session.run.stage else {
        return false;
    };
    if away.is_empty() {
        *away_since = None;
        return false;
    }
    let (generation, resume) = (*generation, resume.clone());
    if away_since.is_none() {
        *away_since = Some(ctx.now);
        ctx.note(EventTone::Warn, format!("generation {generation} waits for {list}"));
        return false;
    }
    if away_since.is_some_and(|since| ctx.now.since(since) < bound) {
        return false;
    }
    ctx.model.run.restart_awaits.clear();
    if restarts
        && settings(ctx).lost_host == LostHost::Exclude
        && let Ok(plan) = plan_without(ctx, None, &names)
    {
        let resume = transition::launched_from(ctx, resume, Some(&plan));
        for node in &away {
            ctx.host(*node).excluded = Some("lost; excluded by `restart.lost_host`".into());
        }
        ctx.note(EventTone::Warn, format!("continuing without {list} (`lost_host = \"exclude\"`)"));
        transition::install(ctx.model, &plan);
        ctx.model.plan = Some(plan);
        transition::await_hosts(ctx, generation, resume);
        return true;
    }
    let hint = exclusion(ctx.model, &away.iter().map(|node| ctx.host_name(*node)).collect::<Vec<_>>());
    if restarts {
        let error = HintedError { error: format!("no response from {list}"), hint: hint.unwrap_or_default() };
        refuse(ctx, error.with_hint());
    }
    let reason = format!("generation {generation} did not start: no response from {list}");
    transition::finish(ctx, RunEnd::new(RunOutcome::Failed, 3, reason));
    true
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

/// The code of the next generation, with this plan or the present one (ORIGIN-4).
fn code_word(ctx: &EventCtx<'_>, next: Option<&Plan>) -> Option<&'static str> {
    let present = ctx.model.plan.as_ref()?;
    origin::code_word(present, next.unwrap_or(present))
}

/// What the next generation begins from, as far as is known now.
fn begins(ctx: &EventCtx<'_>, next: &PendingGeneration) -> Option<String> {
    let from = transition::launched_from(ctx, next.from.clone(), next.plan.as_ref());
    let may_save = matches!(ctx.session.run.stage, RunStage::Running | RunStage::Launching);
    from.filter(|from| *from != LATEST || may_save || !ctx.model.checkpoints.is_empty())
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
        from: next.and_then(|next| begins(ctx, next)),
        code: next.and_then(|next| code_word(ctx, next.plan.as_ref())).map(str::to_owned),
        world_size: plan.map_or(0, |plan| plan.ranks.len() as u32),
        hosts,
        sizes: plan.map(|plan| plan.sizes.clone()).unwrap_or_default(),
        first_failure: follows.then(|| ctx.model.run.first_failure.clone()).flatten(),
    };
    ctx.report(body);
}

/// Launches the next generation after the end, in a console that lingers. A host that it excludes and that
/// does not respond is not awaited (RESTART-4).
pub(super) fn resume(ctx: &mut EventCtx<'_>, next: PendingGeneration) {
    let left_out = |host: &HostModel| next.excludes(host.node_rank) && !host.machine.is_connected();
    let is_ready = |host: &&HostModel| left_out(host) || host.is_live() && host.is_clear();
    let open: Vec<String> =
        ctx.members().filter(|host| !is_ready(host)).map(|host| host.name.clone()).collect();
    if !ctx.session.linger || ctx.session.run.launch.is_none() {
        return refuse(ctx, "the run was not launched".into());
    }
    if open.is_empty() {
        return transition::reserve(ctx, next);
    }
    let error = format!("not connected, or leftover processes of the run: {}", open.join(", "));
    let hint = exclusion(ctx.model, &open).unwrap_or_default();
    refuse(ctx, HintedError { error, hint }.with_hint());
}

/// No restart is made, and this is why.
pub(super) fn refuse(ctx: &mut EventCtx<'_>, text: String) {
    ctx.note(EventTone::Bad, format!("not restarting: {text}"));
    ctx.model.run.refused = Some(text.clone());
    report_restart(ctx, RestartState::Refused, text, None);
}

/// A restart on the same hosts was requested.
pub(super) fn request(ctx: &mut EventCtx<'_>, request: RequestedRestart) -> bool {
    if ctx.session.run.exited {
        return false;
    }
    let how = if request.checked { " that checks every collective" } else { "" };
    let text = match &request.from {
        Some(from) => format!("restart{how} from {from} requested"),
        None => format!("restart{how} from scratch requested"),
    };
    if matches!(ctx.session.run.stage, RunStage::Gathering { .. }) && user::is_launch(ctx) {
        ctx.note(EventTone::Warn, "nothing to restart: the run was not launched");
        return true;
    }
    ctx.note(EventTone::Info, text);
    ctx.model.run.refused = None;
    ctx.session.run.change = Some(request);
    true
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
    // A request that waits for hosts is replaced by one without them.
    let connects = ctx.session.run.change.as_ref().is_some_and(|change| change.until.is_none());
    if between || connects || ctx.session.run.exited {
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
        0 if exclude.is_empty() => "planning a generation with changed config keys".to_string(),
        0 => "planning a generation without the excluded hosts".to_string(),
        count => format!("connecting {} for the next generation", plural(count, "host")),
    };
    ctx.note(EventTone::Info, text);
    let change = RequestedRestart { from, exclude, add: nodes, experiment, ..RequestedRestart::default() };
    ctx.session.run.change = Some(change);
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
        Some(experiment) => plan.with_experiment(experiment.clone()),
        None => plan,
    }
}

fn worded(error: &PlanError) -> String {
    format!("{} (config key `{}`)", error.cause.with_hint(), error.key)
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

/// A restart was requested: it begins as soon as all hosts that it needs respond (RESTART-5).
pub(super) fn changing(ctx: &mut EventCtx<'_>) {
    proceed_with_request(ctx);
    if ctx.session.run.change.is_none() && !matches!(ctx.session.run.stage, RunStage::Reserving { .. }) {
        ctx.model.run.restart_awaits.clear();
    }
}

fn proceed_with_request(ctx: &mut EventCtx<'_>) {
    let Some(change) = ctx.session.run.change.clone() else { return };
    let added: Vec<&HostModel> = change.add.iter().map(|node| &ctx.model.hosts[node.index()]).collect();
    let failed = added.iter().find_map(|host| host.link_error());
    let all_live = added.iter().all(|host| host.is_live());
    if let Some(text) = failed {
        ctx.session.run.change = None;
        return refuse(ctx, text);
    }
    if awaits_hosts(ctx, &change) || !all_live {
        return;
    }
    match named_checkpoint(ctx, &change) {
        None => return,
        Some(Ok(())) => ctx.session.run.change = None,
        Some(Err(error)) => {
            ctx.session.run.change = None;
            return refuse(ctx, error.with_hint());
        }
    }
    if change.is_plain() {
        return user::restart(ctx, change.from, change.checked);
    }
    let Some(present) = ctx.model.plan.clone() else { return };
    let present = with(present, change.experiment.as_deref());
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
    let text = format!("next generation: {}", shape(ctx, Some(&plan)));
    ctx.note(EventTone::Info, text.clone());
    let next = PendingGeneration { from: change.from, plan: Some(plan), ..PendingGeneration::default() };
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

/// Whether the checkpoint that a request names exists, before anything is stopped (PLACE-7); `None` while hosts are
/// asked.
fn named_checkpoint(ctx: &mut EventCtx<'_>, change: &RequestedRestart) -> Option<Result<(), HintedError>> {
    let path = change.from.as_ref().filter(|from| *from != LATEST);
    let (Some(path), Some(plan)) = (path, &ctx.model.plan) else { return Some(Ok(())) };
    let is_builtin = plan.is_builtin();
    let is_next = |host: &HostModel| {
        let stays = ctx.is_member(host) && !change.exclude.contains(&host.name);
        (stays || change.add.contains(&host.node_rank)) && host.is_live()
    };
    // Hosts that are excluded may have what the others lack.
    let asked = ctx.model.hosts.iter().filter(|host| if is_builtin { is_next(host) } else { host.is_live() });
    let nodes: Vec<NodeRank> =
        asked.map(|host| host.node_rank).take(if is_builtin { 1 } else { usize::MAX }).collect();
    match (nodes.is_empty(), &ctx.session.run.stage) {
        (false, RunStage::Running | RunStage::Launching | RunStage::Over) => {
            placement::exists(ctx, path, &nodes)
        }
        (_, _) => Some(Ok(())),
    }
}

/// Whether the request still waits for hosts. At its end it is refused, and the run keeps running.
fn awaits_hosts(ctx: &mut EventCtx<'_>, change: &RequestedRestart) -> bool {
    // Without a running generation nothing can be lost. `lost_host` may exclude a host that stays away.
    let has_members = matches!(ctx.session.run.stage, RunStage::Running | RunStage::Launching)
        && settings(ctx).lost_host != LostHost::Exclude;
    let is_needed = |host: &HostModel| match change.add.contains(&host.node_rank) {
        true => host.link.is_unreachable(),
        false => {
            has_members && ctx.is_member(host) && !change.exclude.contains(&host.name) && !responds(ctx, host)
        }
    };
    let away: Vec<String> =
        ctx.model.hosts.iter().filter(|host| is_needed(host)).map(|host| host.name.clone()).collect();
    let bound = TimeLimits::of(ctx.model.plan.as_ref()).drain();
    let until = match away.is_empty() {
        true => None,
        false => Some(change.until.unwrap_or_else(|| ctx.now.plus(bound))),
    };
    if until.is_some_and(|until| ctx.now >= until) {
        ctx.session.run.change = None;
        let hint = exclusion(ctx.model, &away).unwrap_or_default();
        let error = format!("no response from {}; the run is unchanged", away.join(", "));
        refuse(ctx, HintedError { error, hint }.with_hint());
        return true;
    }
    if away != ctx.model.run.restart_awaits && !away.is_empty() {
        let names = away.join(", ");
        ctx.note(EventTone::Warn, format!("the restart waits for {names}; nothing is stopped yet"));
    }
    ctx.model.run.restart_awaits = away;
    if let Some(change) = &mut ctx.session.run.change {
        change.until = until;
    }
    until.is_some()
}

/// An order would reach the host now.
fn responds(ctx: &EventCtx<'_>, host: &HostModel) -> bool {
    let silence = ctx.session.clock.awake_ms.saturating_sub(host.machine.last_message_awake_ms);
    host.is_live() && silence < TimeLimits::of(ctx.model.plan.as_ref()).lost
}

/// Every host of the present generation reports this generation. A single host, which may be wrong, confirms
/// nothing about another.
fn is_confirmed(ctx: &EventCtx<'_>) -> bool {
    let launch = &ctx.model.run.launch;
    let confirms = |host: &HostModel| host.caught_up() && host.machine.launch_hash == *launch;
    launch.is_some() && ctx.members().count() > 1 && ctx.members().all(confirms)
}

/// Stops hosts that were excluded without a verified stop and have reconnected (RESTART-4). A requested stop
/// reaches them too, in its own mode.
pub(super) fn chase(ctx: &mut EventCtx<'_>) {
    if ctx.session.run.exited || ctx.session.run.facts.by_user {
        return;
    }
    let present = ctx.model.run.generation;
    let is_left_behind = |ctx: &EventCtx<'_>, host: &HostModel| {
        let runs = host.machine.generation.is_some_and(|latest| latest <= present) && !host.is_clear();
        runs && !ctx.is_member(host) && host.caught_up() && host.machine.stop_sent != Some(StopMode::Kill)
    };
    let left: Vec<NodeRank> =
        ctx.model.hosts.iter().filter(|host| is_left_behind(ctx, host)).map(|host| host.node_rank).collect();
    if left.is_empty() || !ctx.session.run.is_launcher() && !is_confirmed(ctx) {
        return;
    }
    for node in left {
        ctx.host(node).machine.stop_sent = Some(StopMode::Kill);
        let text = format!("{}: the excluded host is back; stopping its ranks", ctx.host_name(node));
        ctx.note(EventTone::Warn, text);
        ctx.send(node, ConsoleMessage::Stop { mode: StopMode::Kill, grace_ms: 0, ends: false });
    }
}
