//! Transitions of the run from one stage to another: facts, stage and model change together.
//!
//! The next generation is reserved and begins: its plan is installed, and the lives of ranks and the
//! verifications of hosts start over. In the end the run finishes, and the console leaves.

use super::{charts, failure, policy};
use crate::event::Effect;
use crate::host::{HostMachine, HostStage};
use crate::join::{CounterSum, TotalsMatcher};
use crate::model::{EventTone, HostModel, Model, RankLife, RankModel, RunState};
use crate::origin::{self, PlannedCode, Standing};
use crate::report::{ReportBody, RunOutcome, SCHEMA};
use crate::run::{ActiveLaunch, ConsoleRole, EndFacts, PendingGeneration, RunStage, StopRequest};
use crate::session::{CoreState, EventCtx, Goal};
use rankdeck_proto::link::LinkCommand;
use rankdeck_proto::message::{ConsoleMessage, RunEnd, StopMode, Survivor, end_refusal};
use rankdeck_types::ids::{Generation, NodeRank, Rank, Timestamp};
use rankdeck_types::link_state::LinkState;
use rankdeck_types::plan::{Plan, StopGoal};

/// The plan of a generation, the present one or another: all hosts that it gives ranks count from now on.
pub(super) fn take_part(ctx: &mut EventCtx<'_>, generation: Generation, plan: &Plan) {
    ctx.session.run.record_plan(generation);
    name_hosts(ctx.model, plan);
    for host in ctx.model.hosts.iter_mut().filter(|host| plan.has_ranks(host.node_rank)) {
        host.machine.took_part = true;
    }
}

/// Most packs that are listed.
const CODES: usize = 64;

/// Makes `launch` the present generation.
pub(super) fn begin_generation(ctx: &mut EventCtx<'_>, plan: Plan, launch: ActiveLaunch) {
    let world_size = plan.ranks.len();
    install(ctx.model, &plan);
    take_part(ctx, launch.generation, &plan);
    charts::begin(ctx, launch.generation, launch.resume.as_deref());
    let adopted = launch.role == ConsoleRole::Onlooker;
    if adopted {
        // Checkpoints are left behind host by host, as records of the launch come.
        join(ctx, &plan);
    } else {
        let resume = launch.resume.as_deref();
        origin::leave_behind(&mut ctx.model.checkpoints, launch.generation, resume, None);
    }
    let limit = ctx.session.until.iter().filter_map(|until| match until {
        StopGoal::Steps(steps) => Some(*steps),
        StopGoal::Iters(_) | StopGoal::Evals(_) | StopGoal::Seconds(_) => None,
    });
    let goal = Some(plan.experiment.run.total_steps).filter(|steps| *steps > 0);
    let model = &mut *ctx.model;
    model.run.total_steps = limit.chain(goal).min();
    model.run.generation = launch.generation;
    model.run.state = RunState::Launching;
    model.run.started = model.run.started.or(Some(ctx.now));
    model.run.adopted = adopted;
    model.run.resumed.clone_from(&launch.resume);
    (model.run.ended, model.run.outcome, model.run.exit_code) = (None, None, None);
    (model.run.first_failure, model.run.work) = (None, None);
    model.run.stopped_elsewhere = false;
    model.membership.begin_generation();
    model.run.end_warnings.clear();
    model.run.reason.clear();
    if let Some(PlannedCode::Pack(hash)) = PlannedCode::of(&plan)
        && model.run.codes.last().is_none_or(|(_, latest)| *latest != hash)
    {
        model.run.codes.push((model.run.generation, hash));
        let over = model.run.codes.len().saturating_sub(CODES);
        model.run.codes.drain(..over);
    }
    let (backend, master) = (plan.backend().to_string(), model.run.master.clone());
    let nnodes = plan.members().count() as u32;
    model.plan = Some(plan);
    let session = &mut *ctx.session;
    session.run.facts = kept_facts(session, ctx.now);
    model.run.stopping = session.run.facts.stop.map(|stop| stop.mode);
    session.run.stage = match session.run.take_next() {
        Some(next) if session.run.launch.is_none() => RunStage::Draining { began: ctx.now, next: Some(next) },
        Some(_) | None => RunStage::Launching,
    };
    session.run.launch = Some(launch);
    session.run.ended = false;
    session.join = TotalsMatcher::new(world_size);
    session.addition = CounterSum::new(world_size);
    session.watch.reset();
    for host in &mut model.hosts {
        host.machine.stop_sent = None;
    }
    let run_dir = ctx.model.hosts.first().map(|host| host.run_dir.clone()).unwrap_or_default();
    ctx.report(ReportBody::RunStarted {
        schema: SCHEMA,
        world_size: world_size as u32,
        nnodes,
        backend,
        master,
        adopted,
        run_dir,
    });
}

/// What stays of the facts when another generation begins.
fn kept_facts(session: &mut CoreState, now: Timestamp) -> EndFacts {
    let facts = std::mem::take(&mut session.run.facts);
    match session.run.launch {
        // A stop or restart that was requested before this console had found the run applies to what it
        // finds.
        None => EndFacts { stop: facts.stop.map(|stop| StopRequest { at: now, ..stop }), ..facts },
        // A requested stop is about the run. Its deadline stays, so that it ends however many
        // generations hosts report.
        Some(_) if facts.by_user => EndFacts {
            cause: facts.cause,
            stop: facts.stop,
            by_user: true,
            first_end: facts.first_end,
            took_ms: facts.took_ms,
            stuck: facts.stuck,
            ..EndFacts::default()
        },
        Some(_) => EndFacts::default(),
    }
}

/// Opens links to members of another console's launch to which this console has none.
fn join(ctx: &mut EventCtx<'_>, plan: &Plan) {
    for planned in plan.members() {
        let Some(model) = ctx.model.hosts.get_mut(planned.node_rank.index()) else { continue };
        if model.machine.is_gone() {
            model.machine.relink();
            model.link = LinkState::Idle;
            let name = model.name.clone();
            ctx.out.push(Effect::Find { node: planned.node_rank, name });
        }
    }
}

/// Adds hosts that only this plan names; they have no link yet.
fn name_hosts(model: &mut Model, plan: &Plan) {
    for planned in plan.hosts.iter().skip(model.hosts.len()) {
        let node = NodeRank(model.hosts.len() as u32);
        let machine = HostMachine { stage: HostStage::Closed, ..HostMachine::default() };
        model.hosts.push(HostModel { machine, ..HostModel::new(node, planned.host.name.clone()) });
    }
}

/// Puts the plan's hosts and ranks into the model; logs and histories of known ranks stay.
pub(crate) fn install(model: &mut Model, plan: &Plan) {
    name_hosts(model, plan);
    for host in &mut model.hosts {
        host.gpus_free.clear();
        if plan.has_ranks(host.node_rank) {
            (host.stopped, host.excluded) = (None, None);
        } else {
            host.excluded.get_or_insert_with(|| "has no ranks in this generation".into());
        }
    }
    let mut old: Vec<Option<RankModel>> = std::mem::take(&mut model.ranks).into_iter().map(Some).collect();
    model.ranks = plan
        .ranks
        .iter()
        .enumerate()
        .map(|(index, planned)| {
            let name =
                plan.hosts.get(planned.node_rank.index()).map_or("", |planned| planned.host.name.as_str());
            let fresh = RankModel { rank: Rank(index as u32), ..RankModel::pending(planned, name) };
            let known = old.get_mut(index).and_then(Option::take).filter(|known| known.node == fresh.node);
            match known {
                Some(known) => RankModel {
                    log: known.log,
                    cpu_history: known.cpu_history,
                    gpu_history: known.gpu_history,
                    ..fresh
                },
                None => fresh,
            }
        })
        .collect();
}

/// All ranks have been spawned.
pub(super) fn all_spawned(model: &Model) -> bool {
    !model.ranks.is_empty() && model.ranks.iter().all(|rank| rank.lost || rank.life != RankLife::Pending)
}

/// The generation after `generation`.
pub(super) fn next_generation(generation: Generation) -> Generation {
    Generation(generation.0.saturating_add(1))
}

/// Requests a stop now.
pub(super) fn order(ctx: &mut EventCtx<'_>, mode: StopMode) {
    ctx.model.run.stopping = ctx.model.run.stopping.max(Some(mode));
    let facts = &mut ctx.session.run.facts;
    facts.first_end.get_or_insert(ctx.now);
    facts.request_stop(mode, ctx.now);
}

/// The checkpoint that a launch of `from` names, with this plan or the present one.
pub(super) fn launched_from(ctx: &EventCtx<'_>, from: Option<String>, next: Option<&Plan>) -> Option<String> {
    let first = |plan: &Plan| plan.ranks.first().map(|rank| rank.node_rank);
    // Another host searches its own directory for `latest`; the full path fails loudly unless the folder is
    // shared.
    let present = ctx.model.plan.as_ref().and_then(first);
    // Another rank than 0 saves once that one is lost.
    let saved = ctx.model.checkpoints.back().filter(|_| ctx.model.membership.epoch > 0);
    let moved = next.is_some_and(|next| present != first(next))
        || saved.is_some_and(|saved| next.map_or(present, first) != Some(saved.node));
    Standing::of(ctx.model).launched_from(from, moved)
}

/// Begins the way to the next generation.
pub(super) fn reserve(ctx: &mut EventCtx<'_>, next: PendingGeneration) {
    ctx.session.run.by_policy = next.by_policy;
    let from = launched_from(ctx, next.from, next.plan.as_ref());
    let mut standing = Standing::of(ctx.model);
    if let Some(plan) = &next.plan {
        standing = standing.before(plan, None);
    }
    let begins = standing.begins(&standing.started(from.as_deref()));
    if let Some(plan) = next.plan {
        install(ctx.model, &plan);
        ctx.model.plan = Some(plan);
    }
    let run = &mut ctx.model.run;
    (run.stopping, run.restart_at) = (None, None);
    (run.ended, run.ended_time, run.outcome, run.exit_code) = (None, None, None, None);
    let generation = next_generation(run.generation);
    ctx.note(EventTone::Info, format!("generation {generation} {begins}"));
    (ctx.session.run.facts, ctx.session.run.change) = (EndFacts::default(), None);
    await_hosts(ctx, generation, from);
}

/// A port is reserved next, when all hosts that take part respond.
pub(super) fn await_hosts(ctx: &mut EventCtx<'_>, generation: Generation, resume: Option<String>) {
    ctx.session.run.placed = None;
    ctx.session.run.stage =
        RunStage::Reserving { generation, resume, request: None, port: None, away_since: None };
}

/// What all hosts together have proved.
#[derive(Default)]
struct StopProof {
    proved: bool,
    survivors: Vec<String>,
    unverified: Vec<String>,
    gpus_free: Vec<String>,
}

impl StopProof {
    /// Of every host that counts (RUN-2).
    fn of(ctx: &EventCtx<'_>) -> StopProof {
        let mut proof = StopProof { proved: true, ..StopProof::default() };
        for host in ctx.model.hosts.iter().filter(|host| ctx.counts(host)) {
            proof.gpus_free.extend(host.gpus_free.iter().map(|gpu| format!("{}:{gpu}", host.name)));
            if ctx.is_clear(host) {
                continue;
            }
            proof.proved = false;
            proof.unverified.push(host.name.clone());
            match host.stopped.as_deref() {
                Some([]) | None => {
                    let why = match ctx.is_member(host) {
                        true if host.is_live() => "stop not verified",
                        true => "unreachable",
                        false => "excluded, stop not verified",
                    };
                    proof.survivors.push(format!("{}:? {why}", host.name));
                }
                Some(left) => {
                    let line =
                        |survivor: &Survivor| format!("{}:{} {}", host.name, survivor.pid, survivor.command);
                    proof.survivors.extend(left.iter().map(line));
                }
            }
        }
        proof
    }
}

/// Ends the run and reports it, exactly once per end.
pub(super) fn finish(ctx: &mut EventCtx<'_>, ending: RunEnd) {
    let proof = StopProof::of(ctx);
    let first_failure = failure::report(ctx);
    let facts = &ctx.session.run.facts;
    let stop_ms = facts.first_end.map_or(0, |first| ctx.now.since(first)).max(facts.took_ms);
    // What a console reads in the hosts' records has happened at their time, not when it was read.
    // Where a host was waited for without success, no record has the end.
    let is_read = ctx.model.run.adopted && facts.proof_time > 0.0;
    let time = match is_read && (proof.proved || facts.live_proof.is_none()) {
        true => facts.proof_time,
        false => ctx.session.clock.wall_time(ctx.now),
    };
    let ending = RunEnd {
        clean: facts.is_clean() && proof.proved && ctx.model.lost_ranks().is_empty(),
        first_failure: first_failure.as_ref().map(|failure| failure.line.clone()),
        ..ending
    };
    send_ending(ctx, &ending);
    let tone = match ending.outcome {
        RunOutcome::Succeeded => EventTone::Good,
        // It was requested.
        RunOutcome::Stopped => EventTone::Warn,
        RunOutcome::Failed | RunOutcome::Stuck => EventTone::Bad,
    };
    ctx.note_at(time, tone, format!("the run ended: {}", ending.reason));
    let run = &mut ctx.model.run;
    run.ended_time = Some(time).filter(|time| *time > 0.0);
    run.outcome = Some(ending.outcome);
    run.exit_code = Some(ending.exit_code);
    run.unverified.clone_from(&proof.unverified);
    run.reason = ending.reason.clone();
    run.work.clone_from(&ending.work);
    run.end_warnings.clone_from(&ctx.session.run.facts.warnings);
    run.ended = Some(ctx.now);
    run.restart_at = None;
    run.first_failure = first_failure.clone();
    run.state = RunState::Over;
    ctx.session.run.stage = RunStage::Over;
    ctx.session.run.change = None;
    if ctx.session.run.facts.cancelled {
        ctx.model.run.refused = ctx.model.run.id.as_ref().map(|run| end_refusal(run).with_hint());
    }
    ctx.report(ReportBody::RunFinished {
        outcome: ending.outcome,
        exit_code: ending.exit_code,
        clean: ending.clean,
        survivors: proof.survivors,
        unverified: proof.unverified,
        proved: proof.proved,
        reason: ending.reason,
        stop_ms,
        gpus_free: proof.gpus_free,
        first_failure,
        work: ending.work,
        warnings: ctx.session.run.facts.warnings.clone(),
        results: ctx.model.run.results(),
    });
    if !ctx.session.linger {
        leave(ctx, ending.exit_code);
    }
}

/// No host has reported the run that this console was to show. The console ends, and nothing is known of the run.
pub(super) fn give_up(ctx: &mut EventCtx<'_>, reason: String, code: u8) {
    ctx.note(EventTone::Bad, format!("the run is unknown: {reason}"));
    let run = &mut ctx.model.run;
    (run.reason, run.exit_code, run.ended) = (reason, Some(code), Some(ctx.now));
    run.state = RunState::Over;
    ctx.session.run.stage = RunStage::Over;
    if !ctx.session.linger {
        leave(ctx, code);
    }
}

/// The console that launched the run sends its ending to the hosts, which keep it. So does one that stops what
/// the other would restart (RESTART-6).
fn send_ending(ctx: &mut EventCtx<'_>, ending: &RunEnd) {
    let run = &ctx.session.run;
    let unlaunched = run.launch.is_none() && matches!(ctx.session.goal, Goal::Launch(_));
    // What failed may have been read after the stop was requested. The policy may restart stuck ranks, too.
    let restarts = ctx.model.plan.as_ref().is_some_and(|plan| plan.experiment.restarts_by_itself());
    let cancels = run.facts.by_user && (restarts || policy::successor_ms(ctx).is_some());
    if !run.is_launcher() && !unlaunched && !cancels {
        return;
    }
    let generation = ctx.model.run.generation;
    for node in
        ctx.nodes().filter(|node| ctx.model.hosts[node.index()].machine.is_connected()).collect::<Vec<_>>()
    {
        ctx.send(node, ConsoleMessage::Ended { generation, ending: Box::new(ending.clone()) });
    }
}

/// Agents may go, links are closed, the console ends.
pub(super) fn leave(ctx: &mut EventCtx<'_>, code: u8) {
    for node in ctx.nodes() {
        if ctx.host(node).machine.is_connected() {
            ctx.send(node, ConsoleMessage::Close);
        }
    }
    disconnect(ctx);
    ctx.out.push(Effect::Exit { code });
    ctx.session.run.exited = true;
}

/// Closes every link.
pub(super) fn disconnect(ctx: &mut EventCtx<'_>) {
    for host in ctx.model.hosts.iter_mut().filter(|host| host.machine.stage != HostStage::Closed) {
        host.machine.stage = HostStage::Closed;
        ctx.out.push(Effect::Link { node: host.node_rank, command: LinkCommand::Close });
    }
}

/// Something of the run may be left on a host that counts.
pub(super) fn has_open_host(ctx: &EventCtx<'_>) -> bool {
    ctx.model.hosts.iter().any(|host| ctx.counts(host) && !ctx.is_clear(host))
}
