//! The consequences of the facts: the next stage, orders to hosts, the end.
//!
//! Orders are levels: each call compares the desired state with what was sent on the current
//! connection.

use super::drain::{self, draining};
use super::transition::{self, finish};
use super::{ownership, placement, policy, records, shrink};
use crate::launch_size;
use crate::model::{EventTone, HostModel, RankLife, RankModel, RunState};
use crate::report::{ReportBody, RunOutcome};
use crate::run::{ActiveLaunch, ConsoleRole, EndCause, RunStage};
use crate::session::{EventCtx, Goal};
use rankdeck_proto::message::{ConsoleMessage, LaunchSpec, RunEnd, StopMode};
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Probe;
use rankdeck_types::host::Transport;
use rankdeck_types::ids::{Generation, NodeRank, Timestamp};
use rankdeck_types::link_state::LinkState;
use rankdeck_types::plan::{Plan, PlanDraft, StopGoal};
use rankdeck_types::words::plural;

/// Milliseconds for which other hosts may still report their own failure before a launch is given up.
const ABORT_MS: u64 = 2_000;
/// Milliseconds for which a requested stop waits for hosts before any has reported the run.
const ANSWER_MS: u64 = 30_000;
/// Milliseconds after which a goal that has counted nothing is reported.
const UNCOUNTED_MS: u64 = 60_000;
/// Stages that one event can lead through at most. A proof leads through four: draining, reserving (with a
/// fixed port), launching, running.
const STAGES: usize = 7;

/// Goes through stages until nothing follows any more.
pub(super) fn reconcile(ctx: &mut EventCtx<'_>) {
    if ownership::follow(ctx) {
        records::catch_up(ctx);
    }
    policy::changing(ctx);
    policy::chase(ctx);
    for _ in 0..STAGES {
        let stage = std::mem::discriminant(&ctx.session.run.stage);
        match ctx.session.run.stage {
            RunStage::Gathering { failed, .. } => gathering(ctx, failed),
            RunStage::Reserving { .. } => reserving(ctx),
            RunStage::Launching | RunStage::Running => running(ctx),
            RunStage::Draining { began, .. } => draining(ctx, began),
            RunStage::Waiting { until, .. } => policy::waiting(ctx, until),
            RunStage::Over => {}
        }
        if std::mem::discriminant(&ctx.session.run.stage) == stage || ctx.session.run.exited {
            break;
        }
    }
    ctx.model.run.state = match &ctx.session.run.stage {
        RunStage::Gathering { .. } => RunState::Connecting,
        RunStage::Reserving { generation: Generation(0), .. } | RunStage::Launching => RunState::Launching,
        RunStage::Reserving { .. } | RunStage::Waiting { .. } => RunState::Restarting,
        RunStage::Running => RunState::Running,
        RunStage::Draining { next: Some(_), .. } => RunState::Restarting,
        RunStage::Draining { next: None, .. } => RunState::Draining,
        RunStage::Over => RunState::Over,
    };
}

/// Before anything was launched or found.
fn gathering(ctx: &mut EventCtx<'_>, failed: Option<Timestamp>) {
    let broken = ctx.model.hosts.iter().filter(|host| host.link.failure().is_some());
    let failures: Vec<String> = broken.filter_map(HostModel::link_error).collect();
    let settled = ctx.model.hosts.iter().all(|host| {
        host.excluded.is_some()
            || host.is_live()
            || host.machine.is_gone()
            || matches!(host.link, LinkState::Asking { .. })
    });
    let launch = matches!(ctx.session.goal, Goal::Launch(_));
    match &ctx.session.run.facts.cause {
        Some(EndCause::LaunchFailed(text)) => {
            let text = text.clone();
            return finish(ctx, RunEnd::new(RunOutcome::Failed, 3, text));
        }
        Some(EndCause::Requested { by }) => {
            let by = *by;
            return stopping_early(ctx, &by.to_string(), failures, settled);
        }
        Some(_) | None => {}
    }
    if !failures.is_empty() {
        let since = failed.unwrap_or(ctx.now);
        if let RunStage::Gathering { failed, .. } = &mut ctx.session.run.stage {
            *failed = Some(since);
        }
        let hopeless = failures.len() == ctx.model.hosts.len() || launch;
        if hopeless && (settled || ctx.now.since(since) >= ABORT_MS) {
            let text = failures.join(" | ");
            match launch {
                true => finish(ctx, RunEnd::new(RunOutcome::Failed, 3, text)),
                // The run may go on: only this console ends.
                false => transition::give_up(ctx, text, 3),
            }
        }
    } else if launch && ctx.all_live() {
        let Goal::Launch(draft) = ctx.session.goal.clone() else { return };
        plan_launch(ctx, &draft);
    }
}

/// A stop was requested, and no host has reported a launch. Agents without one scan for leftover processes.
fn stopping_early(ctx: &mut EventCtx<'_>, by: &str, failures: Vec<String>, settled: bool) {
    let stop = ctx.session.run.facts.stop;
    let open = |ctx: &EventCtx<'_>| -> Vec<NodeRank> {
        let hosts = ctx.model.hosts.iter().filter(|host| ctx.counts(host) && !ctx.is_clear(host));
        hosts.map(|host| host.node_rank).collect()
    };
    let targets = open(ctx);
    drain::send_stops(ctx, &targets, stop.map_or(StopMode::Clean, |stop| stop.mode), 0);
    let open = open(ctx);
    if open.is_empty() {
        let text = format!("stopped by {by} before anything was launched");
        return finish(ctx, RunEnd::new(RunOutcome::Stopped, 130, text));
    }
    let hosts = || open.iter().filter_map(|node| ctx.model.hosts.get(node.index()));
    let has_reported = |host: &&HostModel| host.machine.stop_sent.is_some() && host.stopped.is_some();
    let late = stop.is_some_and(|stop| ctx.now.since(stop.at) >= ANSWER_MS);
    if late || settled && hosts().all(|host| !host.is_live() || has_reported(&host)) {
        let silent =
            hosts().filter(|host| host.link_error().is_none()).map(|host| match has_reported(&host) {
                true => format!("{}: leftover processes", host.name),
                false => format!("{}: no response", host.name),
            });
        let text = failures.into_iter().chain(silent).collect::<Vec<_>>().join(" | ");
        finish(ctx, RunEnd::new(RunOutcome::Failed, 3, text));
    }
}

/// All hosts are there: the plan can be made.
fn plan_launch(ctx: &mut EventCtx<'_>, draft: &PlanDraft) {
    let probes: Vec<Probe> =
        ctx.model.hosts.iter().map(|host| host.probe.clone().unwrap_or_default()).collect();
    let plan = match (ctx.session.resolve)(draft, &probes) {
        Ok(plan) => plan,
        Err(error) => {
            let text = error.cause.with_hint();
            return finish(ctx, RunEnd::new(RunOutcome::Failed, 2, text));
        }
    };
    let builtin = plan.is_builtin();
    if let Some(planned) = plan.members().find(|planned| builtin && planned.trainer.is_none()) {
        let text = format!(
            "{}: rankdeck-trainer not found; build it with `make libtorch` and `cargo build --release --workspace`, \
             or set `launch.command`",
            planned.host.name
        );
        return finish(ctx, RunEnd::new(RunOutcome::Failed, 3, text));
    }
    transition::install(ctx.model, &plan);
    ctx.model.plan = Some(plan);
    let generation = Generation(0);
    let resume = draft.resume.clone();
    transition::await_hosts(ctx, generation, resume);
}

/// Why the launch cannot be made any more.
fn obstacle(ctx: &EventCtx<'_>) -> Option<RunEnd> {
    match &ctx.session.run.facts.cause {
        Some(EndCause::LaunchFailed(text)) => return Some(RunEnd::new(RunOutcome::Failed, 3, text.clone())),
        Some(EndCause::Requested { by }) => {
            let text = format!("stopped by {by} before the launch");
            return Some(RunEnd::new(RunOutcome::Stopped, 130, text));
        }
        Some(EndCause::Failure | EndCause::Until(_) | EndCause::Stuck(_) | EndCause::Elsewhere { .. })
        | None => {}
    }
    let gone = ctx.model.hosts.iter().find(|host| host.excluded.is_none() && host.machine.is_gone())?;
    let error = if let Some(HintedError { error, .. }) = gone.link.failure() {
        error.clone()
    } else {
        format!("{}: closed", gone.name)
    };
    Some(RunEnd::new(RunOutcome::Failed, 3, error))
}

/// A port for rank 0's store, then launches to all hosts at once.
fn reserving(ctx: &mut EventCtx<'_>) {
    if ctx.session.run.facts.by_user && transition::has_open_host(ctx) {
        // An excluded host may still run an earlier generation.
        ctx.session.run.stage = RunStage::Draining { began: ctx.now, next: None };
        return;
    }
    if let Some(ending) = obstacle(ctx) {
        return finish(ctx, ending);
    }
    if policy::gives_up_on_absent(ctx) {
        return;
    }
    let Some(plan) = ctx.model.plan.clone() else { return };
    let fixed = plan.experiment.launch.master_port;
    let first = plan.ranks.first().map_or(NodeRank(0), |rank| rank.node_rank);
    let reachable = ctx.model.hosts.get(first.index()).is_some_and(HostModel::is_live);
    let RunStage::Reserving { generation, resume, request, port, .. } = &mut ctx.session.run.stage else {
        return;
    };
    if fixed != 0 {
        *port = Some(fixed);
    }
    if !reachable {
        // The answer may have been lost with the connection.
        *request = None;
        return;
    }
    let Some(port) = *port else {
        if request.is_none() {
            ctx.session.run.requests += 1;
            let number = ctx.session.run.requests;
            *request = Some(number);
            ctx.send(first, ConsoleMessage::ReservePort { request: number });
        }
        return;
    };
    let (generation, resume) = (*generation, resume.clone());
    if !ctx.all_live() {
        // What was requested may be lost with a connection.
        ctx.session.run.placed = None;
        return;
    }
    let Some(placed) = placement::place(ctx, &plan, resume.as_deref()) else { return };
    let master_addr = master_address(&plan);
    ctx.model.run.master = format!("{master_addr}:{port}");
    let spec = LaunchSpec {
        generation,
        node_rank: first,
        master_addr: master_addr.clone(),
        master_port: port,
        resume: resume.clone(),
        resume_at: None,
        plan: plan.clone(),
    };
    if let Err(problem) = launch_size::check(&plan) {
        return finish(ctx, RunEnd::new(RunOutcome::Failed, 2, problem.cause.with_hint()));
    }
    ctx.model.run.launch = Some(spec.hash());
    let role = ConsoleRole::Launcher { master_addr, master_port: port };
    let after_end = ctx.session.run.ended;
    let launch = ActiveLaunch { generation, resume, placed, after_end, role };
    let text = format!(
        "launching generation {generation}: {} on {}, {}",
        plural(plan.ranks.len(), "rank"),
        plural(plan.members().count(), "host"),
        plan.backend()
    );
    transition::begin_generation(ctx, plan, launch);
    ctx.note(EventTone::Info, text);
}

/// Where rank 0's store is reached: on this machine by the loopback address, else by its host's own.
fn master_address(plan: &Plan) -> String {
    let local = plan.members().all(|planned| planned.host.transport == Transport::Local);
    match plan.members().next() {
        Some(first) if !local && plan.members().count() > 1 => plan.address(first).to_owned(),
        Some(_) | None => "127.0.0.1".into(),
    }
}

/// Ranks are being spawned, or run.
fn running(ctx: &mut EventCtx<'_>) {
    send_launches(ctx);
    if let Some(goal) = goal_reached(ctx) {
        super::user::stop_at_goal(ctx, goal);
    }
    if let Some(text) = allocation_over(ctx) {
        ctx.session.run.facts.blame(EndCause::LaunchFailed(text));
    }
    if ctx.session.run.stage == RunStage::Launching
        && (transition::all_spawned(ctx.model) || runs_where_reported(ctx))
    {
        ctx.session.run.stage = RunStage::Running;
    }
    report_uncounted(ctx);
    shrink::expire(ctx);
    let is_over = |rank: &RankModel| {
        // What becomes of a lost rank ends nothing.
        !rank.lost && matches!(rank.life, RankLife::Exited(_) | RankLife::Finished)
    };
    let ended = ctx.model.ranks.iter().any(is_over);
    // Each event comes here: what few hosts are is checked first.
    let proved = ctx.model.hosts.iter().any(|host| {
        host.stopped.is_some()
            && host.machine.generation.is_some_and(|latest| ctx.session.run.is_current(latest))
            && ctx.is_member(host)
            && !shrink::is_left(ctx, host)
    });
    if ended || proved || ctx.session.run.is_ending() {
        ctx.session.run.drain(ctx.now, None);
    }
}

/// Of a run that another console launched: ranks have been spawned on all hosts that respond. Hosts that do not
/// may have started theirs long ago.
fn runs_where_reported(ctx: &EventCtx<'_>) -> bool {
    let (away, here): (Vec<&HostModel>, Vec<&HostModel>) =
        ctx.members().partition(|host| host.link.is_unreachable());
    let is_up = |host: &&HostModel| {
        let mut ranks = ctx.model.ranks.iter().filter(|rank| rank.node == host.node_rank);
        host.caught_up() && ranks.all(|rank| rank.lost || rank.life != RankLife::Pending)
    };
    !ctx.session.run.is_launcher() && !away.is_empty() && !here.is_empty() && here.iter().all(is_up)
}

/// The allocation of the run has ended: agents end their ranks (SLURM-1), and no console comes to its
/// nodes again. Hosts of other transports may come back, whatever keeps them away.
fn allocation_over(ctx: &EventCtx<'_>) -> Option<String> {
    let plan = ctx.model.plan.as_ref()?;
    let slurm = plan.members().all(|planned| planned.host.transport == Transport::Slurm);
    let failures: Option<Vec<_>> = ctx.members().map(|host| host.link.failure()).collect();
    let first = failures.filter(|_| slurm)?.into_iter().next()?;
    Some(format!("no host is reachable: {}", first.error))
}

/// Sends the present launch to hosts that have not got it on this connection.
fn send_launches(ctx: &mut EventCtx<'_>) {
    let Some(launch) = &ctx.session.run.launch else { return };
    let waits = |host: &&HostModel| host.machine.is_live() && !host.machine.has_launch(launch.generation);
    let is_meant = |host: &&HostModel| ctx.is_member(host) && !shrink::is_left(ctx, host);
    let waiting = ctx.model.hosts.iter().filter(waits).filter(is_meant);
    let waiting: Vec<NodeRank> = waiting.map(|host| host.node_rank).collect();
    if waiting.is_empty() {
        return;
    }
    let launch = launch.clone();
    let (ConsoleRole::Launcher { master_addr, master_port }, Some(plan)) =
        (launch.role, ctx.model.plan.clone())
    else {
        return;
    };
    for node in waiting {
        let machine = &mut ctx.host(node).machine;
        (machine.launch_sent, machine.launch_open) = (Some(launch.generation), Some(launch.generation));
        let spec = LaunchSpec {
            generation: launch.generation,
            node_rank: node,
            master_addr: master_addr.clone(),
            master_port,
            resume: launch.resume.clone(),
            resume_at: launch.placed.get(&node).cloned(),
            plan: plan.share_of(node),
        };
        let (spec, after_end) = (Box::new(spec), launch.after_end);
        ctx.send(node, ConsoleMessage::Launch { spec, private: Default::default(), after_end });
    }
}

/// A goal of `--until` that is reached, in the words it was typed in.
fn goal_reached(ctx: &EventCtx<'_>) -> Option<String> {
    if ctx.session.run.is_ending() {
        return None;
    }
    ctx.session.until.iter().find_map(|until| {
        let (counted, goal) = counted(ctx, *until);
        counted.is_some_and(|counted| counted >= goal).then(|| format!("{}={goal}", until.name()))
    })
}

/// What a goal has counted, `None` without totals, and its value.
fn counted(ctx: &EventCtx<'_>, goal: StopGoal) -> (Option<u64>, u64) {
    let totals = ctx.model.progress.as_ref().map(|progress| progress.totals);
    let seconds = || ctx.model.run.started.map_or(0, |started| ctx.now.since(started) / 1000);
    match goal {
        StopGoal::Steps(n) => (totals.map(|totals| totals.env_step), n),
        StopGoal::Iters(n) => (totals.map(|totals| totals.train_iter), n),
        StopGoal::Evals(n) => (Some(ctx.session.run.evals), n),
        StopGoal::Seconds(n) => (Some(seconds()), n),
    }
}

/// Reports once that a goal counts nothing of a program: the run would not end by it.
fn report_uncounted(ctx: &mut EventCtx<'_>) {
    let is_program = ctx.model.plan.as_ref().is_some_and(|plan| !plan.is_builtin());
    if ctx.session.run.uncounted_reported || ctx.session.run.stage != RunStage::Running || !is_program {
        return;
    }
    let is_empty = |goal: &&StopGoal| {
        !matches!(goal, StopGoal::Seconds(_)) && counted(ctx, **goal).0.unwrap_or_default() == 0
    };
    let Some(goal) = ctx.session.until.iter().find(is_empty).copied() else {
        ctx.session.run.uncounted = None;
        return;
    };
    let since = *ctx.session.run.uncounted.get_or_insert(ctx.now);
    if ctx.now.since(since) < UNCOUNTED_MS {
        return;
    }
    ctx.session.run.uncounted_reported = true;
    let (counts, reports) = match goal {
        StopGoal::Evals(_) => ("evaluations", "rankdeck.eval()"),
        StopGoal::Iters(_) => ("iterations", "rankdeck.report()"),
        StopGoal::Steps(_) | StopGoal::Seconds(_) => ("steps", "rankdeck.report()"),
    };
    let text = format!(
        "`--until {}={}`: no {counts} counted in {} s; report them with `{reports}`",
        goal.name(),
        counted(ctx, goal).1,
        UNCOUNTED_MS / 1000
    );
    let Some(first) = ctx.model.ranks.first().map(|rank| rank.node) else { return };
    let host = ctx.host_name(first);
    ctx.note(EventTone::Warn, text.clone());
    ctx.report(ReportBody::Notice { node_rank: first, host, text });
}
