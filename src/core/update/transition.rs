//! How the run goes from one stage to another: facts, stage and model change together.

use super::{failure, generation};
use crate::Goal;
use crate::effect::Effect;
use crate::host::HostStage;
use crate::model::{RunState, Tone};
use crate::report::{Outcome, ReportBody};
use crate::run::{Facts, Next, Stage};
use crate::session::Ctx;
use rankdeck_proto::link::LinkCommand;
use rankdeck_proto::message::{ConsoleMessage, Ending, StopMode, Survivor};

/// Wants a stop now.
pub(super) fn order(ctx: &mut Ctx<'_>, mode: StopMode) {
    ctx.model.run.stopping = ctx.model.run.stopping.max(Some(mode));
    let facts = &mut ctx.session.run.facts;
    facts.first_end.get_or_insert(ctx.now);
    facts.want_stop(mode, ctx.now);
}

/// Begins the way to the next generation.
pub(super) fn reserve(ctx: &mut Ctx<'_>, next: Next) {
    if let Some(plan) = next.plan {
        generation::install(ctx.model, &plan);
        ctx.model.plan = Some(plan);
    }
    let run = &mut ctx.model.run;
    (run.stopping, run.restart_at) = (None, None);
    (run.ended, run.ended_time, run.outcome, run.exit_code) = (None, None, None, None);
    let generation = generation::after(run.generation);
    (ctx.session.run.facts, ctx.session.run.change) = (Facts::default(), None);
    ctx.session.run.stage = Stage::Reserving { generation, resume: next.from, request: None, port: None };
}

/// What all hosts together have proved.
#[derive(Default)]
struct Proof {
    proved: bool,
    survivors: Vec<String>,
    unverified: Vec<String>,
    gpus_free: Vec<String>,
}

impl Proof {
    /// Of every host that counts (RUN-2).
    fn of(ctx: &Ctx<'_>) -> Proof {
        let mut proof = Proof { proved: true, ..Proof::default() };
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
                        true if host.is_live() => "its stop is not verified",
                        true => "unreachable",
                        false => "excluded, its stop is not verified",
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
pub(super) fn finish(ctx: &mut Ctx<'_>, ending: Ending) {
    let proof = Proof::of(ctx);
    let first_failure = failure::report(ctx);
    let facts = &ctx.session.run.facts;
    let stop_ms = facts.first_end.map_or(0, |first| ctx.now.since(first)).max(facts.took_ms);
    // What a console reads in the hosts' records has happened at their time, not when it was read.
    // Where a host was waited for in vain, no record has the end.
    let is_told = ctx.model.run.adopted && facts.proof_time > 0.0;
    let time = match is_told && (proof.proved || facts.live_proof.is_none()) {
        true => facts.proof_time,
        false => ctx.session.clock.wall_time(ctx.now),
    };
    let ending = Ending {
        clean: facts.is_clean() && proof.proved,
        first_failure: first_failure.as_ref().map(|failure| failure.line.clone()),
        ..ending
    };
    tell_hosts(ctx, &ending);
    let tone = match ending.outcome {
        Outcome::Succeeded => Tone::Good,
        // Somebody asked for it.
        Outcome::Stopped => Tone::Warn,
        Outcome::Failed | Outcome::Stuck => Tone::Bad,
    };
    ctx.note_at(time, tone, format!("the run is over: {}", ending.reason));
    let run = &mut ctx.model.run;
    run.ended_time = Some(time).filter(|time| *time > 0.0);
    run.outcome = Some(ending.outcome);
    run.exit_code = Some(ending.exit_code);
    run.unverified.clone_from(&proof.unverified);
    run.reason = ending.reason.clone();
    run.ended = Some(ctx.now);
    run.restart_at = None;
    run.first_failure = first_failure.clone();
    run.state = RunState::Over;
    ctx.session.run.stage = Stage::Over;
    ctx.session.run.change = None;
    ctx.tell(ReportBody::RunFinished {
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
    });
    if !ctx.session.linger {
        leave(ctx, ending.exit_code);
    }
}

/// The console that launched the run has the hosts keep how it calls the end.
fn tell_hosts(ctx: &mut Ctx<'_>, ending: &Ending) {
    let run = &ctx.session.run;
    let unlaunched = run.launch.is_none() && matches!(ctx.session.goal, Goal::Launch(_));
    if !run.is_launcher() && !unlaunched {
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
pub(super) fn leave(ctx: &mut Ctx<'_>, code: u8) {
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
pub(super) fn disconnect(ctx: &mut Ctx<'_>) {
    for host in ctx.model.hosts.iter_mut().filter(|host| host.machine.stage != HostStage::Closed) {
        host.machine.stage = HostStage::Closed;
        ctx.out.push(Effect::Link { node: host.node_rank, command: LinkCommand::Close });
    }
}

/// Something of the run may be left on a host that counts.
pub(super) fn has_open_host(ctx: &Ctx<'_>) -> bool {
    ctx.model.hosts.iter().any(|host| ctx.counts(host) && !ctx.is_clear(host))
}
