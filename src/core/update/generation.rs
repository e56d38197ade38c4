//! A new generation: the plan is known or has changed; the lives of ranks and the proofs of hosts begin anew.

use crate::effect::Effect;
use crate::host::HostMachine;
use crate::join::Join;
use crate::model::{HostModel, Model, RankLife, RankModel, RunState, Tone};
use crate::report::{ReportBody, SCHEMA};
use crate::run::{Facts, Launch, Role, Stage, Stop};
use crate::session::Ctx;
use rankdeck_proto::message::LaunchSpec;
use rankdeck_types::ids::{Generation, NodeRank, Rank};
use rankdeck_types::link_state::LinkState;
use rankdeck_types::plan::{Plan, Until};

/// The snapshot or a record of a host shows which launch it has accepted.
pub(super) fn seen(ctx: &mut Ctx<'_>, node: NodeRank, spec: &LaunchSpec) {
    let known = &mut ctx.host(node).machine.generation;
    if known.is_none_or(|known| known < spec.generation) {
        *known = Some(spec.generation);
        // The rank's log file of a new generation begins at line 0.
        for rank in ctx.model.ranks.iter_mut().filter(|rank| rank.node == node) {
            rank.log.next = 0;
        }
    }
    if ctx.session.run.launch.as_ref().is_none_or(|launch| launch.generation < spec.generation) {
        let first = ctx.session.run.launch.is_none();
        ctx.model.run.master = format!("{}:{}", spec.master_addr, spec.master_port);
        let (generation, resume) = (spec.generation, spec.resume.clone());
        begin(ctx, spec.plan.clone(), Launch { generation, resume, role: Role::Onlooker });
        let text = if first {
            format!("found the run in generation {generation}")
        } else {
            format!("generation {generation} was launched by another console")
        };
        ctx.note(Tone::Info, text);
    }
}

/// Makes `launch` the present generation.
pub(super) fn begin(ctx: &mut Ctx<'_>, plan: Plan, launch: Launch) {
    let world_size = plan.ranks.len();
    let linked = ctx.model.hosts.len();
    install(ctx.model, &plan);
    let adopted = launch.role == Role::Onlooker;
    if adopted {
        join(ctx, &plan, linked);
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
    // A stop or restart that was asked for before this console had found the run applies to what it finds.
    let kept = match session.run.launch {
        None => std::mem::take(&mut session.run.facts),
        Some(_) => Facts::default(),
    };
    let kept = Facts { stop: kept.stop.map(|stop| Stop { at: ctx.now, ..stop }), ..kept };
    model.run.stopping = kept.stop.map(|stop| stop.mode);
    session.run.facts = kept;
    session.run.stage = match session.run.take_next() {
        Some(next) if session.run.launch.is_none() => Stage::Draining { began: ctx.now, next: Some(next) },
        Some(_) | None => Stage::Launching,
    };
    session.run.launch = Some(launch);
    session.join = Join::new(world_size);
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

/// Opens links to members of another console's launch to which this console has none.
fn join(ctx: &mut Ctx<'_>, plan: &Plan, linked: usize) {
    for planned in plan.members() {
        let Some(model) = ctx.model.hosts.get_mut(planned.node_rank.index()) else { continue };
        if planned.node_rank.index() >= linked || model.machine.is_gone() {
            model.machine = HostMachine::default();
            model.link = LinkState::Idle;
            let host = Box::new(planned.host.clone());
            ctx.out.push(Effect::Connect { node: planned.node_rank, host });
        }
    }
}

/// Puts the plan's hosts and ranks into the model; logs and histories of known ranks stay.
pub(crate) fn install(model: &mut Model, plan: &Plan) {
    for planned in plan.hosts.iter().skip(model.hosts.len()) {
        let node = NodeRank(model.hosts.len() as u32);
        model.hosts.push(HostModel::new(node, planned.host.name.clone()));
    }
    for host in &mut model.hosts {
        host.stopped = None;
        host.gpus_free.clear();
        if plan.has_ranks(host.node_rank) {
            host.excluded = None;
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
