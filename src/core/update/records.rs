//! Records: durable events, applied exactly once and in order per host (CORE-3).

use super::{generation, link, ranks};
use crate::host::HostStage;
use crate::model::Tone;
use crate::run::Cause;
use crate::session::Ctx;
use rankdeck_proto::message::{Record, RecordEvent, StopMode, Survivor};
use rankdeck_types::ids::{Generation, NodeRank};

/// Age in seconds up to which a proof in an agent's records may still be followed by a new generation.
const FRESH_S: f64 = 10.0;

/// Applies one record. Returns whether it changed anything.
pub(super) fn apply(ctx: &mut Ctx<'_>, node: NodeRank, record: Record) -> bool {
    let awake = ctx.session.clock.awake_ms;
    let host = ctx.host(node);
    if !host.is_live() {
        // Records that were under way when a new attach was sent come again after its snapshot.
        return false;
    }
    let last = host.last_seq;
    if record.seq <= last {
        return false;
    }
    // The first gap at a place is asked for again; the second is a loss in the spool itself.
    if record.seq != last.saturating_add(1) && host.machine.gap_at != Some(last) {
        host.machine.gap_at = Some(last);
        host.machine.stage = HostStage::Attaching { since: awake };
        ctx.model.drops.gaps += 1;
        link::attach(ctx, node);
        return true;
    }
    host.last_seq = record.seq;
    let Record { time, generation, event, .. } = record;
    let at = At { node, generation, time };
    match event {
        RecordEvent::Launched { spec } => launched(ctx, at, &spec),
        RecordEvent::RankSpawned { rank, local_rank: _, pid } => ranks::spawned(ctx, at, rank, pid),
        RecordEvent::RankExited { rank, pid, exit, last_lines, stopping, ago_ms, with_agent } => {
            let end = ranks::End { exit, last_lines: &last_lines, stopping, ago_ms, with_agent };
            ranks::exited(ctx, at, rank, pid, end);
        }
        RecordEvent::StopOrdered { mode, by } => stop_ordered(ctx, at, mode, by),
        RecordEvent::Stopped { survivors, gpus_free, took_ms } => {
            stopped(ctx, at, survivors, gpus_free, took_ms)
        }
        RecordEvent::Rank { rank, said } => ranks::said(ctx, at, rank, said),
        RecordEvent::Metrics { rank, source, env_step, values, skipped: _ } => {
            ranks::measured(ctx, at, rank, source, env_step, values);
        }
        RecordEvent::Notice { text } => {
            let name = ctx.host_name(node);
            ctx.note_at(time, Tone::Warn, format!("{name}: {text}"));
        }
        RecordEvent::Unknown => ctx.model.drops.unknown += 1,
    }
    true
}

/// Where and when a record was written.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    /// The host whose agent wrote it.
    pub node: NodeRank,
    /// Generation it belongs to.
    pub generation: Generation,
    /// Wall clock of the agent.
    pub time: f64,
}

fn launched(ctx: &mut Ctx<'_>, at: At, spec: &rankdeck_proto::message::LaunchSpec) {
    generation::seen(ctx, at.node, spec);
    // By the agent's own clock.
    let age_s = ctx.host(at.node).machine.hello_time - at.time;
    if ctx.model.run.adopted && age_s > 0.0 {
        ctx.model.run.head_start_ms = ctx.model.run.head_start_ms.max((age_s * 1000.0) as u64);
    }
    let name = ctx.host_name(at.node);
    let from = spec.resume.as_ref().map(|from| format!(" from {from}")).unwrap_or_default();
    ctx.note_at(at.time, Tone::Info, format!("{name}: generation {} accepted{from}", spec.generation));
}

fn stop_ordered(ctx: &mut Ctx<'_>, at: At, mode: StopMode, by: String) {
    let name = ctx.host_name(at.node);
    let how = mode_text(mode);
    ctx.note_at(at.time, Tone::Info, format!("{name}: stop ordered by {by} ({how})"));
    let run = &mut ctx.session.run;
    if !run.is_current(at.generation) {
        return;
    }
    run.facts.first_end.get_or_insert(ctx.now);
    // A stop that this console has ordered comes back in a record; its cause is known already.
    if run.next().is_none() && run.facts.stop.is_none() {
        run.facts.blame(Cause::Elsewhere { by });
        ctx.model.run.stopping = ctx.model.run.stopping.max(Some(mode));
    }
}

fn stopped(ctx: &mut Ctx<'_>, at: At, survivors: Vec<Survivor>, gpus_free: Vec<u32>, took_ms: u64) {
    let name = ctx.host_name(at.node);
    let text = match survivors.len() {
        0 => format!("{name}: nothing is left of generation {} (after {took_ms} ms)", at.generation),
        count => format!("{name}: {count} processes of generation {} are left", at.generation),
    };
    let tone = if survivors.is_empty() { Tone::Good } else { Tone::Bad };
    ctx.note_at(at.time, tone, text);
    if ctx.session.run.unproved.get(&at.node) == Some(&at.generation) && survivors.is_empty() {
        ctx.session.run.unproved.remove(&at.node);
    }
    if !ctx.session.run.is_current(at.generation) {
        return;
    }
    // By the agent's own clock: how old this proof was when the agent last greeted us.
    let age_s = ctx.host(at.node).machine.hello_time - at.time;
    let run = &mut ctx.model.run;
    if run.adopted && at.node == NodeRank(0) && age_s > 0.0 {
        run.head_start_ms = run.head_start_ms.saturating_sub((age_s * 1000.0) as u64);
    }
    let facts = &mut ctx.session.run.facts;
    if age_s < FRESH_S {
        facts.live_proof = Some(ctx.now);
    }
    facts.first_proof.get_or_insert(ctx.now);
    facts.first_end.get_or_insert(ctx.now);
    facts.took_ms = facts.took_ms.max(took_ms);
    let host = ctx.host(at.node);
    host.stopped = Some(survivors);
    host.gpus_free = gpus_free;
}

/// The word for how hard a stop is.
pub(super) fn mode_text(mode: StopMode) -> &'static str {
    match mode {
        StopMode::Clean => "clean",
        StopMode::Terminate => "terminate",
        StopMode::Kill => "kill",
    }
}
