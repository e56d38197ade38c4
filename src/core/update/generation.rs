//! A new generation: the plan is known or has changed; the lives of ranks and the proofs of hosts begin anew.

use crate::effect::Effect;
use crate::host::{HostMachine, HostStage};
use crate::join::{Addition, Join};
use crate::model::{HostModel, Model, RankLife, RankModel, RunState};
use crate::report::{ReportBody, SCHEMA};
use crate::run::{Facts, Launch, Role, Stage, Stop};
use crate::session::{Ctx, Session};
use rankdeck_types::ids::{Generation, NodeRank, Rank, Timestamp};
use rankdeck_types::link_state::LinkState;
use rankdeck_types::plan::{Plan, Until};

/// The plan of a generation, the present one or another: all hosts that it gives ranks count from now on.
pub(super) fn take_part(ctx: &mut Ctx<'_>, generation: Generation, plan: &Plan) {
    ctx.session.run.know_plan(generation);
    name_hosts(ctx.model, plan);
    for host in ctx.model.hosts.iter_mut().filter(|host| plan.has_ranks(host.node_rank)) {
        host.machine.took_part = true;
    }
}

/// Makes `launch` the present generation.
pub(super) fn begin(ctx: &mut Ctx<'_>, plan: Plan, launch: Launch) {
    let world_size = plan.ranks.len();
    install(ctx.model, &plan);
    take_part(ctx, launch.generation, &plan);
    let adopted = launch.role == Role::Onlooker;
    if adopted {
        join(ctx, &plan);
    }
    let limit = ctx.session.until.iter().filter_map(|until| match until {
        Until::Steps(steps) => Some(*steps),
        Until::Iters(_) | Until::Evals(_) | Until::Seconds(_) => None,
    });
    let goal = Some(plan.experiment.run.total_steps).filter(|steps| *steps > 0);
    let model = &mut *ctx.model;
    model.run.total_steps = limit.chain(goal).min();
    model.run.generation = launch.generation;
    model.run.state = RunState::Launching;
    model.run.started = model.run.started.or(Some(ctx.now));
    model.run.adopted = adopted;
    (model.run.ended, model.run.outcome, model.run.exit_code) = (None, None, None);
    model.run.first_failure = None;
    model.run.reason.clear();
    let (backend, master) = (plan.backend.clone(), model.run.master.clone());
    let nnodes = plan.members().count() as u32;
    model.plan = Some(plan);
    let session = &mut *ctx.session;
    session.run.facts = kept_facts(session, ctx.now);
    model.run.stopping = session.run.facts.stop.map(|stop| stop.mode);
    session.run.stage = match session.run.take_next() {
        Some(next) if session.run.launch.is_none() => Stage::Draining { began: ctx.now, next: Some(next) },
        Some(_) | None => Stage::Launching,
    };
    session.run.launch = Some(launch);
    session.join = Join::new(world_size);
    session.addition = Addition::new(world_size);
    session.watch.reset();
    for host in &mut model.hosts {
        host.machine.stop_sent = None;
    }
    let run_dir = ctx.model.hosts.first().map(|host| host.run_dir.clone()).unwrap_or_default();
    ctx.tell(ReportBody::RunStarted {
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
fn kept_facts(session: &mut Session, now: Timestamp) -> Facts {
    let facts = std::mem::take(&mut session.run.facts);
    match session.run.launch {
        // A stop or restart that was asked for before this console had found the run applies to what it
        // finds.
        None => Facts { stop: facts.stop.map(|stop| Stop { at: now, ..stop }), ..facts },
        // A stop that was asked for is about the run. Its deadline stays, so that it ends however many
        // generations hosts tell.
        Some(_) if facts.asked => Facts {
            cause: facts.cause,
            stop: facts.stop,
            asked: true,
            first_end: facts.first_end,
            took_ms: facts.took_ms,
            ..Facts::default()
        },
        Some(_) => Facts::default(),
    }
}

/// Opens links to members of another console's launch to which this console has none.
fn join(ctx: &mut Ctx<'_>, plan: &Plan) {
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

/// Adds hosts that only this plan names; nobody has opened a link to them.
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
    !model.ranks.is_empty() && model.ranks.iter().all(|rank| rank.life != RankLife::Pending)
}

/// The generation after `generation`.
pub(super) fn after(generation: Generation) -> Generation {
    Generation(generation.0.saturating_add(1))
}
