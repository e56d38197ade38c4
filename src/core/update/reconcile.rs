//! What follows from the facts: the next stage, orders to hosts, the end.
//!
//! Orders are levels (HOST-1): each call compares what is wanted with what was sent on the present connection.

use super::generation;
use crate::core::Goal;
use crate::core::effect::Effect;
use crate::core::event::{LinkState, Probe};
use crate::core::host::HostStage;
use crate::core::ids::{Generation, NodeRank, Timestamp};
use crate::core::model::{RankLife, RunState, Tone};
use crate::core::plan::{Plan, PlanDraft, Until};
use crate::core::report::{Outcome, ReportBody};
use crate::core::run::{Cause, Ending, Facts, Launch, Stage};
use crate::core::session::{Ctx, Limits};
use crate::proto::message::{ConsoleMessage, LaunchSpec, StopMode};

/// Milliseconds for which other hosts may still report their own failure before a launch is given up.
const ABORT_MS: u64 = 2_000;
/// Milliseconds between the first failure and the stop of all others, so that peers can report.
const PEERS_MS: u64 = 2_000;
/// Milliseconds for which another console that stopped the run may launch its next generation.
const SUCCESSOR_MS: u64 = 4_000;
/// Milliseconds for a host to prove its stop after everything was killed.
const KILL_MS: u64 = 10_000;

/// Goes through stages until nothing follows any more.
pub(super) fn reconcile(ctx: &mut Ctx<'_>) {
    for _ in 0..8 {
        let stage = ctx.session.run.stage.clone();
        match &stage {
            Stage::Gathering { failed } => gathering(ctx, *failed),
            Stage::Reserving { .. } => reserving(ctx),
            Stage::Launching | Stage::Running => running(ctx),
            Stage::Draining { began } => draining(ctx, *began),
            Stage::Over => over(ctx),
        }
        if ctx.session.run.stage == stage || ctx.session.run.exited {
            break;
        }
    }
    ctx.model.run.state = match &ctx.session.run.stage {
        Stage::Gathering { .. } => RunState::Connecting,
        Stage::Reserving { generation: Generation(0), .. } | Stage::Launching => RunState::Launching,
        Stage::Reserving { .. } => RunState::Restarting,
        Stage::Running => RunState::Running,
        Stage::Draining { .. } if ctx.session.run.restart.is_some() => RunState::Restarting,
        Stage::Draining { .. } => RunState::Draining,
        Stage::Over => RunState::Over,
    };
}

fn all_live(ctx: &Ctx<'_>) -> bool {
    let count = ctx.host_count();
    count > 0 && (0..count).all(|node| ctx.session.hosts.get(node).is_some_and(|machine| machine.is_live()))
}

/// Before anything was launched or found.
fn gathering(ctx: &mut Ctx<'_>, failed: Option<Timestamp>) {
    let failures: Vec<String> = ctx
        .model
        .hosts
        .iter()
        .filter_map(|host| match &host.link {
            LinkState::Failed { error, hint } if hint.is_empty() => Some(error.clone()),
            LinkState::Failed { error, hint } => Some(format!("{error}; {hint}")),
            LinkState::Idle
            | LinkState::Connecting { .. }
            | LinkState::Asking { .. }
            | LinkState::Uploading { .. }
            | LinkState::Starting
            | LinkState::Ready { .. }
            | LinkState::Lost { .. }
            | LinkState::Closed => None,
        })
        .collect();
    let settled = ctx.session.hosts.iter().zip(&ctx.model.hosts).all(|(machine, host)| {
        machine.is_live() || machine.is_gone() || matches!(host.link, LinkState::Asking { .. })
    });
    let launch = matches!(ctx.session.goal, Goal::Launch(_));
    match &ctx.session.run.facts.cause {
        Some(Cause::LaunchFailed(text)) => {
            let text = text.clone();
            return finish(ctx, Ending::new(Outcome::Failed, 3, text));
        }
        Some(Cause::Requested { by }) if launch || (settled && failures.is_empty()) => {
            let text = format!("stopped by {by} before anything was launched");
            return finish(ctx, Ending::new(Outcome::Stopped, 130, text));
        }
        Some(Cause::Requested { .. }) if settled => {
            return finish(ctx, Ending::new(Outcome::Failed, 3, failures.join(" | ")));
        }
        Some(_) | None => {}
    }
    if !failures.is_empty() {
        let since = failed.unwrap_or(ctx.now);
        ctx.session.run.stage = Stage::Gathering { failed: Some(since) };
        let hopeless = failures.len() == ctx.model.hosts.len() || launch;
        if hopeless && (settled || ctx.now.since(since) >= ABORT_MS) {
            return finish(ctx, Ending::new(Outcome::Failed, 3, failures.join(" | ")));
        }
    } else if launch && all_live(ctx) {
        let Goal::Launch(draft) = ctx.session.goal.clone() else { return };
        plan_launch(ctx, &draft);
    }
}

/// All hosts are there: the plan can be made.
fn plan_launch(ctx: &mut Ctx<'_>, draft: &PlanDraft) {
    let probes: Vec<Probe> =
        ctx.model.hosts.iter().map(|host| host.probe.clone().unwrap_or_default()).collect();
    let mut plan = match (ctx.session.resolve)(draft, &probes) {
        Ok(plan) => plan,
        Err(error) => {
            let text = match error.hint.is_empty() {
                true => error.error,
                false => format!("{}; {}", error.error, error.hint),
            };
            return finish(ctx, Ending::new(Outcome::Failed, 2, text));
        }
    };
    for (planned, probe) in plan.hosts.iter_mut().zip(probes) {
        planned.trainer = planned.trainer.take().or(probe.trainer);
        planned.libtorch = planned.libtorch.take().or(probe.libtorch);
    }
    let builtin = plan.is_builtin();
    if let Some(host) = plan.hosts.iter().find(|host| builtin && host.trainer.is_none()) {
        let text = format!(
            "{}: there is no rankdeck-trainer; build it with `make libtorch` and `cargo build --release --features trainer`, \
             or set `launch.command`",
            host.name
        );
        return finish(ctx, Ending::new(Outcome::Failed, 3, text));
    }
    generation::install(ctx.model, &plan);
    ctx.model.plan = Some(plan);
    let generation = Generation(0);
    ctx.session.run.stage = Stage::Reserving { generation, resume: None, request: None, port: None };
}

/// A port for rank 0's store, then launches to all hosts at once.
fn reserving(ctx: &mut Ctx<'_>) {
    match &ctx.session.run.facts.cause {
        Some(Cause::LaunchFailed(text)) => {
            let text = text.clone();
            return finish(ctx, Ending::new(Outcome::Failed, 3, text));
        }
        Some(Cause::Requested { by }) => {
            let text = format!("stopped by {by} before the launch");
            return finish(ctx, Ending::new(Outcome::Stopped, 130, text));
        }
        Some(Cause::Failure | Cause::Until(_) | Cause::Stuck(_) | Cause::Elsewhere { .. }) | None => {}
    }
    let first_launch = ctx.session.run.launch.is_none();
    let failed = ctx.model.hosts.iter().zip(&ctx.session.hosts).find_map(|(host, machine)| {
        let error = match &host.link {
            LinkState::Failed { error, .. } => error.clone(),
            LinkState::Idle
            | LinkState::Connecting { .. }
            | LinkState::Asking { .. }
            | LinkState::Uploading { .. }
            | LinkState::Starting
            | LinkState::Ready { .. }
            | LinkState::Lost { .. }
            | LinkState::Closed => format!("{}: closed", host.name),
        };
        machine.is_gone().then_some(error)
    });
    if let Some(error) = failed {
        return finish(ctx, Ending::new(Outcome::Failed, 3, error));
    }
    let Some(plan) = ctx.model.plan.clone() else { return };
    let fixed = plan.experiment.launch.master_port;
    let reachable = ctx.session.hosts.first().is_some_and(|machine| machine.is_live());
    let Stage::Reserving { generation, resume, request, port } = &mut ctx.session.run.stage else { return };
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
            ctx.send(0, ConsoleMessage::ReservePort { request: number });
        }
        return;
    };
    let (generation, resume) = (*generation, resume.clone());
    if !all_live(ctx) {
        return;
    }
    let master_addr = match (&ctx.session.run.launch, first_launch) {
        (Some(launch), false) => launch.master_addr.clone(),
        (Some(_) | None, _) => master_address(ctx, &plan),
    };
    let launch = Launch { generation, master_addr, master_port: port, resume, own: true };
    let text = format!(
        "launching generation {generation}: {} ranks on {} hosts, {}",
        plan.ranks.len(),
        plan.hosts.len(),
        plan.backend
    );
    ctx.session.run.restart = None;
    generation::begin(ctx, plan, launch);
    ctx.note(Tone::Info, text);
}

/// Where rank 0's store is reached: on this machine by the loopback address, else by the first host's own.
fn master_address(ctx: &Ctx<'_>, plan: &Plan) -> String {
    use crate::config::hosts::Transport;
    let local = match &ctx.session.goal {
        Goal::Launch(draft) => draft.hosts.iter().all(|host| host.transport == Transport::Local),
        Goal::Attach { .. } => false,
    };
    match plan.hosts.first() {
        Some(host) if !local && plan.hosts.len() > 1 => host.address.clone(),
        Some(_) | None => "127.0.0.1".into(),
    }
}

/// Ranks are being spawned, or run.
fn running(ctx: &mut Ctx<'_>) {
    send_launches(ctx);
    if let Some(goal) = goal_reached(ctx) {
        super::user::stop(ctx, StopMode::Clean, format!("until {goal}"));
    }
    if ctx.session.run.stage == Stage::Launching && generation::all_spawned(ctx.model) {
        ctx.session.run.stage = Stage::Running;
    }
    let ended =
        ctx.model.ranks.iter().any(|rank| matches!(rank.life, RankLife::Exited(_) | RankLife::Finished));
    let proved = ctx.model.hosts.iter().any(|host| host.stopped.is_some());
    if ended || proved || ctx.session.run.is_ending() {
        ctx.session.run.stage = Stage::Draining { began: ctx.now };
    }
}

/// Sends the present launch to hosts that have not got it on this connection.
fn send_launches(ctx: &mut Ctx<'_>) {
    let Some(launch) = ctx.session.run.launch.clone().filter(|launch| launch.own) else { return };
    let Some(plan) = ctx.model.plan.clone() else { return };
    for node in 0..plan.hosts.len() {
        let due = ctx.session.hosts.get(node).is_some_and(|machine| {
            machine.is_live()
                && machine.launch_sent != Some(launch.generation)
                && machine.generation != Some(launch.generation)
        });
        if !due {
            continue;
        }
        if let Some(machine) = ctx.session.hosts.get_mut(node) {
            machine.launch_sent = Some(launch.generation);
        }
        let spec = LaunchSpec {
            generation: launch.generation,
            node_rank: NodeRank(node as u32),
            master_addr: launch.master_addr.clone(),
            master_port: launch.master_port,
            resume: launch.resume.clone(),
            plan: plan.clone(),
        };
        ctx.send(node, ConsoleMessage::Launch { spec: Box::new(spec) });
    }
}

/// A goal of `--until` that is reached, in the words it was typed in.
fn goal_reached(ctx: &Ctx<'_>) -> Option<String> {
    if ctx.session.run.is_ending() {
        return None;
    }
    let totals = ctx.model.progress.as_ref().map(|progress| progress.totals);
    let seconds = ctx.model.run.started.map_or(0, |started| ctx.now.since(started) / 1000);
    ctx.session.until.iter().find_map(|until| {
        let (reached, text) = match until {
            Until::Steps(n) => (totals.is_some_and(|totals| totals.env_step >= *n), format!("steps={n}")),
            Until::Iters(n) => (totals.is_some_and(|totals| totals.train_iter >= *n), format!("iters={n}")),
            Until::Evals(n) => (ctx.session.run.evals >= *n, format!("evals={n}")),
            Until::Seconds(n) => (seconds >= *n, format!("seconds={n}")),
        };
        reached.then_some(text)
    })
}

/// On the way out: orders go to every host until each has proved that nothing is left.
fn draining(ctx: &mut Ctx<'_>, began: Timestamp) {
    let count = ctx.host_count();
    let limits = Limits::of(ctx.model);
    if let Some(launch) = ctx.session.run.launch.clone().filter(|launch| launch.own) {
        // A launch that never arrived has left nothing behind.
        for (host, machine) in ctx.model.hosts.iter_mut().zip(&ctx.session.hosts) {
            let never = machine.caught_up(host.last_seq)
                && machine.generation != Some(launch.generation)
                && machine.launch_sent != Some(launch.generation);
            if never && host.stopped.is_none() {
                host.stopped = Some(Vec::new());
            }
        }
    }
    want_stop(ctx);
    let open: Vec<usize> = (0..count)
        .filter(|node| ctx.model.hosts.get(*node).is_none_or(|host| host.stopped.is_none()))
        .collect();
    if open.is_empty() {
        let facts = &ctx.session.run.facts;
        let elsewhere = matches!(facts.cause, Some(Cause::Elsewhere { .. }));
        let wait = elsewhere && facts.live_proof.is_some_and(|proof| ctx.now.since(proof) < SUCCESSOR_MS);
        return if wait { () } else { conclude(ctx, &open) };
    }
    let stop = ctx.session.run.facts.stop;
    if let Some(stop) = stop.filter(|stop| ctx.now >= stop.at) {
        ctx.model.run.stopping = ctx.model.run.stopping.max(Some(stop.mode));
        send_stops(ctx, &open, stop.mode, limits.grace);
        let reachable = open.iter().any(|node| ctx.session.hosts.get(*node).is_some_and(|m| m.is_live()));
        match stop.mode {
            StopMode::Kill if ctx.now.since(stop.at) >= KILL_MS.max(limits.lost) => conclude(ctx, &open),
            StopMode::Kill => {}
            StopMode::Clean | StopMode::Terminate if ctx.now.since(stop.at) < limits.drain() => {}
            StopMode::Clean | StopMode::Terminate if reachable => {
                ctx.note(Tone::Warn, "the stop takes too long: killing what is left");
                super::user::order(ctx, StopMode::Kill);
                send_stops(ctx, &open, StopMode::Kill, 0);
            }
            StopMode::Clean | StopMode::Terminate => conclude(ctx, &open),
        }
        return;
    }
    // Nobody ordered a stop: the run ends by itself, and only hosts that do not answer keep it from being over.
    let away_since = |node: &usize| {
        ctx.session.hosts.get(*node).and_then(|machine| match machine.stage {
            HostStage::Away { since } => Some(since),
            HostStage::Failed | HostStage::Closed => Some(began),
            HostStage::Linking
            | HostStage::Attaching { .. }
            | HostStage::Greeted { .. }
            | HostStage::Live { .. } => None,
        })
    };
    let away: Option<Vec<Timestamp>> = open.iter().map(away_since).collect();
    if let (Some(away), Some(proof)) = (away, ctx.session.run.facts.first_proof) {
        let since = away.into_iter().fold(proof, Timestamp::max);
        if ctx.now.since(since) >= limits.drain() {
            conclude(ctx, &open);
        }
    }
}

/// The stop that follows from why the run ends.
fn want_stop(ctx: &mut Ctx<'_>) {
    let restart = ctx.session.run.restart.is_some();
    let facts = &mut ctx.session.run.facts;
    match &facts.cause {
        Some(Cause::Failure) => facts.want_stop(StopMode::Terminate, ctx.now.plus(PEERS_MS)),
        Some(Cause::LaunchFailed(_)) => facts.want_stop(StopMode::Terminate, ctx.now),
        Some(Cause::Requested { .. } | Cause::Until(_) | Cause::Stuck(_) | Cause::Elsewhere { .. })
        | None
            if restart =>
        {
            facts.want_stop(StopMode::Clean, ctx.now);
        }
        Some(Cause::Requested { .. } | Cause::Until(_) | Cause::Stuck(_) | Cause::Elsewhere { .. })
        | None => {}
    }
}

fn send_stops(ctx: &mut Ctx<'_>, open: &[usize], mode: StopMode, grace_ms: u64) {
    for node in open {
        let due =
            ctx.session.hosts.get(*node).zip(ctx.model.hosts.get(*node)).is_some_and(|(machine, host)| {
                machine.caught_up(host.last_seq) && machine.stop_sent.is_none_or(|sent| sent < mode)
            });
        if due {
            if let Some(machine) = ctx.session.hosts.get_mut(*node) {
                machine.stop_sent = Some(mode);
            }
            ctx.session.run.facts.ordered = true;
            ctx.send(*node, ConsoleMessage::Stop { mode, grace_ms });
        }
    }
}

/// Every host has proved its stop, or `open` ones will not any more.
fn conclude(ctx: &mut Ctx<'_>, open: &[usize]) {
    let clean =
        open.is_empty() && ctx.model.hosts.iter().all(|host| host.stopped.as_ref().is_none_or(Vec::is_empty));
    if let (Some(_), true) = (&ctx.session.run.restart, clean) {
        let generation = generation::after(ctx.model.run.generation);
        return reserve(ctx, generation);
    }
    let mut ending = ctx.session.run.facts.ending();
    if !clean {
        let names: Vec<String> = open.iter().map(|node| ctx.host_name(*node)).collect();
        let why = match names.is_empty() {
            true => "processes are left".to_string(),
            false => format!("no proof from {}", names.join(", ")),
        };
        let code = if ending.exit_code == 0 || ending.exit_code == 130 { 1 } else { ending.exit_code };
        ending = Ending::new(
            Outcome::Failed,
            code,
            format!("{}, but the stop is not proved: {why}", ending.reason),
        );
    }
    finish(ctx, ending);
}

/// Begins the way to another generation.
fn reserve(ctx: &mut Ctx<'_>, generation: Generation) {
    let Some(resume) = ctx.session.run.restart.take() else { return };
    ctx.session.run.facts = Facts::default();
    ctx.model.run.stopping = None;
    (ctx.model.run.ended, ctx.model.run.outcome, ctx.model.run.exit_code) = (None, None, None);
    ctx.session.run.stage = Stage::Reserving { generation, resume, request: None, port: None };
}

/// The run is over. Told exactly once per end.
fn finish(ctx: &mut Ctx<'_>, ending: Ending) {
    let launched = ctx.session.run.launch.is_some();
    let (mut survivors, mut gpus_free, mut proved) = (Vec::new(), Vec::new(), true);
    let hosts = if launched { ctx.host_count() } else { 0 };
    for host in ctx.model.hosts.iter().take(hosts) {
        match &host.stopped {
            Some(left) => {
                proved &= left.is_empty();
                let line =
                    |p: &crate::proto::message::Survivor| format!("{}:{} {}", host.name, p.pid, p.command);
                survivors.extend(left.iter().map(line));
            }
            None => {
                proved = false;
                survivors.push(format!("{}:? unreachable", host.name));
            }
        }
        gpus_free.extend(host.gpus_free.iter().map(|gpu| format!("{}:{gpu}", host.name)));
    }
    let facts = &ctx.session.run.facts;
    let stop_ms = facts.first_end.map_or(0, |first| ctx.now.since(first)).max(facts.took_ms);
    let tone = if ending.exit_code == 0 { Tone::Good } else { Tone::Bad };
    ctx.note(tone, format!("the run is over: {}", ending.reason));
    let run = &mut ctx.model.run;
    run.outcome = Some(ending.outcome);
    run.exit_code = Some(ending.exit_code);
    run.reason = ending.reason.clone();
    run.ended = Some(ctx.now);
    run.state = RunState::Over;
    ctx.session.run.stage = Stage::Over;
    ctx.session.run.restart = None;
    ctx.tell(ReportBody::RunFinished {
        outcome: ending.outcome,
        exit_code: ending.exit_code,
        survivors,
        proved,
        reason: ending.reason,
        stop_ms,
        gpus_free,
    });
    if !ctx.session.linger {
        leave(ctx, ending.exit_code);
    }
}

/// Over, but still looked at: only a restart goes on from here.
fn over(ctx: &mut Ctx<'_>) {
    if ctx.session.run.restart.is_none() {
        return;
    }
    let proved = ctx.model.hosts.iter().all(|host| host.stopped.as_ref().is_some_and(Vec::is_empty));
    if !ctx.session.linger || ctx.session.run.launch.is_none() || !all_live(ctx) || !proved {
        ctx.session.run.restart = None;
        ctx.note(
            Tone::Warn,
            "cannot restart: not every host is connected with nothing left of the run on it",
        );
        return;
    }
    let generation = generation::after(ctx.model.run.generation);
    reserve(ctx, generation);
}

/// Agents may go, links are closed, the console ends.
pub(super) fn leave(ctx: &mut Ctx<'_>, code: u8) {
    for node in 0..ctx.session.hosts.len() {
        if ctx.session.hosts.get(node).is_some_and(|machine| machine.is_connected()) {
            ctx.send(node, ConsoleMessage::Close);
        }
    }
    disconnect(ctx);
    ctx.out.push(Effect::Exit { code });
    ctx.session.run.exited = true;
}

/// Closes every link.
pub(super) fn disconnect(ctx: &mut Ctx<'_>) {
    for (node, machine) in ctx.session.hosts.iter_mut().enumerate() {
        if machine.stage != HostStage::Closed {
            machine.stage = HostStage::Closed;
            ctx.out.push(Effect::Disconnect { node: NodeRank(node as u32) });
        }
    }
}
