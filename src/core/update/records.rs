//! Records: durable events, applied exactly once and in order per host (CORE-3).

use super::charts::RankScalars;
use super::ownership::{self, LaunchFinding};
use super::progress::Measured;
use super::{charts, failure, link, policy, progress, queries, ranks, shrink};
use crate::host::{AHEAD, AHEAD_BYTES, HostStage};
use crate::model::{ChartMarkKind, EventTone, HostResults};
use crate::origin;
use crate::report::ReportBody;
use crate::run::EndCause;
use crate::session::{EventCtx, RecordContext};
use crate::work::FoundFile;
use rankdeck_proto::message::{CheckpointFile, Record, RecordEvent, RunResults, StopMode, Survivor};
use rankdeck_types::ids::{Generation, NodeRank};

/// Age in seconds up to which a proof in an agent's records may still be followed by a new generation.
const FRESH_S: f64 = 10.0;

/// Applies one record. Returns whether it changed anything.
pub(super) fn apply(ctx: &mut EventCtx<'_>, node: NodeRank, record: Record) -> bool {
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
    if let RecordEvent::Omitted { first } = record.event
        && first <= last.saturating_add(1)
    {
        host.last_seq = record.seq;
        ctx.model.drops.omitted += record.seq - last;
        return true;
    }
    // The first gap at a place is requested again; the second is a loss in the spool itself.
    if record.seq != last.saturating_add(1) && host.machine.gap_at != Some(last) {
        host.machine.gap_at = Some(last);
        host.machine.stage = HostStage::Attaching { since: awake };
        ctx.model.drops.gaps += 1;
        link::attach(ctx, node);
        return true;
    }
    host.last_seq = record.seq;
    keep_ahead(ctx, node, &record);
    act_on(ctx, node, record);
    true
}

/// A record of a launch that this console may follow later is kept for that (OWN-1).
fn keep_ahead(ctx: &mut EventCtx<'_>, node: NodeRank, record: &Record) {
    let present = ctx.session.run.launch.as_ref().map(|launch| launch.generation);
    let is_ahead = ctx.session.run.is_launcher() && Some(record.generation) > present;
    if !is_ahead {
        return;
    }
    let machine = &mut ctx.host(node).machine;
    let bytes = serde_json::to_vec(record).map_or(AHEAD_BYTES, |json| json.len());
    if machine.ahead.len() < AHEAD && machine.ahead_bytes.saturating_add(bytes) <= AHEAD_BYTES {
        machine.ahead_bytes += bytes;
        machine.ahead.push(record.clone());
    } else {
        ctx.model.drops.gaps += 1;
    }
}

/// Applies the records of a launch that this console follows from now on.
pub(super) fn catch_up(ctx: &mut EventCtx<'_>) {
    for node in ctx.nodes() {
        ctx.host(node).machine.ahead_bytes = 0;
        for record in std::mem::take(&mut ctx.host(node).machine.ahead) {
            act_on(ctx, node, record);
        }
    }
}

fn act_on(ctx: &mut EventCtx<'_>, node: NodeRank, record: Record) {
    let past = matches!(ctx.host(node).machine.stage, HostStage::Live { target } if record.seq <= target);
    let found = ctx.host(node).machine.found_at.is_some_and(|found| record.seq <= found);
    let Record { time, generation, event, .. } = record;
    let at = RecordContext { node, generation, time, past, found };
    match event {
        RecordEvent::Launched { spec } => launched(ctx, at, &spec),
        RecordEvent::RankSpawned { rank, local_rank: _, pid } => ranks::spawned(ctx, at, rank, pid),
        RecordEvent::RankExited { rank, pid, exit, last_lines, stopping, ago_ms, with_agent } => {
            let end = ranks::ProcessEnd { exit, last_lines: &last_lines, stopping, time, ago_ms, with_agent };
            ranks::exited(ctx, at, rank, pid, end);
        }
        RecordEvent::Signalled { rank, pid, signal } => queries::on_signal(ctx, at, rank, pid, signal),
        RecordEvent::StopOrdered { mode, by, ends } => stop_ordered(ctx, at, mode, by, ends),
        RecordEvent::Stopped { survivors, gpus_free, took_ms } => {
            stopped(ctx, at, survivors, gpus_free, took_ms)
        }
        RecordEvent::CheckpointFiles { files, complete } => found_files(ctx, at, files, complete),
        RecordEvent::CheckpointUnread { path } => unread(ctx, at, &path),
        RecordEvent::Results { results } => found_results(ctx, at, *results),
        RecordEvent::Ended { ending } => policy::end_recorded(ctx, generation, *ending),
        RecordEvent::Rank { rank, event } => ranks::on_rank_event(ctx, at, rank, event),
        RecordEvent::Metrics {
            rank,
            source,
            env_step,
            values,
            skipped: _,
            not_finite,
            spread,
            counter,
            progress,
        } => {
            let scalars = RankScalars { values, spread, not_finite };
            let measured = Measured { rank, source, env_step, counter, progress, scalars };
            progress::measured(ctx, at, measured);
        }
        RecordEvent::Notice { text } => {
            let name = ctx.host_name(node);
            ctx.note_at(time, EventTone::Warn, format!("{name}: {text}"));
            ctx.report_at(generation, time, ReportBody::Notice { node_rank: node, host: name, text });
        }
        RecordEvent::Omitted { .. } | RecordEvent::Unknown => ctx.model.drops.unknown += 1,
    }
}

fn launched(ctx: &mut EventCtx<'_>, at: RecordContext, spec: &rankdeck_proto::message::LaunchSpec) {
    match ownership::seen(ctx, at.node, spec) {
        LaunchFinding::Flaw => return,
        LaunchFinding::Followed => catch_up(ctx),
        LaunchFinding::Noted => {}
    }
    // Once more: those of the host of rank 0 may come after another host's word of this launch.
    charts::begin(ctx, spec.generation, spec.resume.as_deref());
    let by = Some(at.node);
    origin::leave_behind(&mut ctx.model.checkpoints, spec.generation, spec.resume.as_deref(), by);
    // By the agent's own clock.
    let machine = &mut ctx.host(at.node).machine;
    let age_s = machine.hello_time - *machine.first_launch.get_or_insert(at.time);
    if ctx.model.run.adopted && age_s > 0.0 {
        ctx.model.run.head_start_ms = ctx.model.run.head_start_ms.max((age_s * 1000.0) as u64);
    }
    let launched = ctx.model.run.launched.map_or(at.time, |first| first.min(at.time));
    ctx.model.run.launched = Some(launched).filter(|time| *time > 0.0);
    let name = ctx.host_name(at.node);
    let from = spec.resume.as_ref().map(|from| format!(" from {from}")).unwrap_or_default();
    if spec.generation > Generation(0) {
        let kind = ChartMarkKind::Generation(spec.generation);
        charts::mark(ctx, at.happened(), (spec.generation, None), kind);
    }
    ctx.note_at(at.time, EventTone::Info, format!("{name}: generation {} accepted{from}", spec.generation));
}

fn stop_ordered(ctx: &mut EventCtx<'_>, at: RecordContext, mode: StopMode, by: String, ends: bool) {
    let name = ctx.host_name(at.node);
    let how = mode.word();
    ctx.note_at(at.time, EventTone::Info, format!("{name}: stop ordered by {by} ({how})"));
    let host = ctx.host(at.node);
    host.machine.stop_recorded |= host.machine.generation == Some(at.generation);
    let has_no_launch = host.machine.has_no_launch();
    if ends {
        let was_over = host.machine.proved >= Some(at.generation);
        let own = host.machine.ends_sent.remove(&mode);
        policy::stop_recorded(ctx, at, &by, own);
        if was_over {
            // It has stopped nothing.
            return;
        }
    }
    let run = &mut ctx.session.run;
    if has_no_launch || !run.is_current(at.generation) {
        return;
    }
    run.facts.first_end.get_or_insert(ctx.now);
    let (ordered, _) = failure::on_our_clock(ctx, at.node, at.time);
    let run = &mut ctx.session.run;
    if at.time > 0.0 {
        run.facts.stopped_at = Some(run.facts.stopped_at.map_or(ordered, |first| first.min(ordered)));
    }
    // A stop that this console has ordered comes back in a record; its cause is known already.
    if run.next().is_none() && run.facts.stop.is_none() {
        run.facts.blame(EndCause::Elsewhere { by });
        ctx.model.run.stopping = ctx.model.run.stopping.max(Some(mode));
    }
}

/// Checkpoint files of a host: completed ones, and all of them once no rank is left there.
fn found_files(ctx: &mut EventCtx<'_>, at: RecordContext, files: Vec<CheckpointFile>, complete: bool) {
    let (lost, files): (Vec<CheckpointFile>, Vec<CheckpointFile>) =
        files.into_iter().partition(|file| file.is_cut_off);
    lost.iter().for_each(|file| cut_off(ctx, at, &file.path));
    let found = |file: CheckpointFile| {
        let changed = Some(file.modified).filter(|time| time.is_finite() && *time > 0.0)?;
        // No file is from the future.
        let (time, _) = failure::on_our_clock(ctx, at.node, changed.min(at.time));
        let steps = (file.env_step, file.step_from);
        Some((FoundFile { node: at.node, path: file.path, bytes: file.bytes, time }, steps))
    };
    let found: Vec<(FoundFile, _)> = files.into_iter().filter_map(found).collect();
    for (file, steps) in &found {
        ranks::found(ctx, at, file, *steps);
    }
    let run = &mut ctx.session.run;
    found.into_iter().for_each(|(file, _)| run.add_file(file));
    if run.is_current(at.generation) {
        run.facts.searched.insert(at.node, complete);
    }
}

/// A checkpoint has lost its end: the one before it is the latest.
fn cut_off(ctx: &mut EventCtx<'_>, at: RecordContext, path: &str) {
    ctx.model.checkpoints.retain(|known| known.path != path || known.node != at.node);
    ctx.session.run.drop_file(at.node, path);
    let text = format!(
        "checkpoint {path} is incomplete: its writer was killed while it saved, or the disk was full"
    );
    let name = ctx.host_name(at.node);
    ctx.note_at(at.time, EventTone::Warn, text.clone());
    ctx.report_at(at.generation, at.time, ReportBody::Notice { node_rank: at.node, host: name, text });
}

/// Ranks of a host train without having opened the checkpoint that they resume from. One that another host has
/// read may have been sent to them.
fn unread(ctx: &mut EventCtx<'_>, at: RecordContext, path: &str) {
    let run = &mut ctx.session.run;
    if !run.is_current(at.generation) || !run.facts.unread.insert(at.node) {
        return;
    }
    let read = ctx.members().any(|host| !ctx.session.run.facts.unread.contains(&host.node_rank));
    if read {
        return;
    }
    let before = Generation(at.generation.0.saturating_sub(1));
    let has_saved = ctx.model.checkpoints.iter().any(|saved| saved.generation == before);
    let (count, generation) = ctx.session.run.unread;
    let follows = generation == before && !has_saved && at.generation > Generation(0);
    ctx.session.run.unread = (if follows { count.saturating_add(1) } else { 1 }, at.generation);
    let text = format!(
        "checkpoint was not read: no rank has opened {path}; read RANKDECK_RESUME, or set `launch.resume`"
    );
    let name = ctx.host_name(at.node);
    ctx.note_at(at.time, EventTone::Warn, text.clone());
    ctx.report_at(at.generation, at.time, ReportBody::Notice { node_rank: at.node, host: name, text });
}

/// What ranks of a host have written where they work, in all generations so far.
fn found_results(ctx: &mut EventCtx<'_>, at: RecordContext, results: RunResults) {
    let name = ctx.host_name(at.node);
    let run = &mut ctx.model.run;
    run.results.retain(|known| known.node != at.node);
    run.results.push(HostResults { node: at.node, host: name, results });
    run.results.sort_by_key(|known| known.node);
}

fn stopped(
    ctx: &mut EventCtx<'_>,
    at: RecordContext,
    survivors: Vec<Survivor>,
    gpus_free: Vec<u32>,
    took_ms: u64,
) {
    let name = ctx.host_name(at.node);
    let text = match survivors.len() {
        0 => format!("{name}: no process of generation {} is left (after {took_ms} ms)", at.generation),
        count => format!("{name}: {count} processes of generation {} are left", at.generation),
    };
    let tone = if survivors.is_empty() { EventTone::Good } else { EventTone::Bad };
    ctx.note_at(at.time, tone, text);
    let host = ctx.host(at.node);
    if host.machine.generation.is_none_or(|latest| latest <= at.generation) {
        host.machine.proved = host.machine.generation.filter(|_| survivors.is_empty());
        host.machine.searched = host.machine.generation.is_none() && survivors.is_empty();
        host.stopped = Some(survivors);
    }
    if host.machine.has_no_launch() || !ctx.session.run.is_current(at.generation) {
        return;
    }
    if shrink::is_left(ctx, &ctx.model.hosts[at.node.index()]) {
        // The others continue: this is no part of an end.
        ctx.host(at.node).gpus_free = gpus_free;
        return;
    }
    // By the agent's own clock: how old this proof was when the agent last greeted us.
    let machine = &ctx.model.hosts[at.node.index()].machine;
    let age_s = machine.hello_time - at.time;
    let lasted_ms = machine.first_launch.map_or(0, |first| ((at.time - first) * 1000.0) as u64);
    let facts = &mut ctx.session.run.facts;
    let run = &mut ctx.model.run;
    if run.adopted && age_s > 0.0 {
        let known = if facts.first_proof.is_some() { run.head_start_ms } else { 0 };
        run.head_start_ms = known.max(lasted_ms);
    }
    if age_s < FRESH_S {
        facts.live_proof = Some(ctx.now);
    }
    facts.first_proof.get_or_insert(ctx.now);
    facts.first_end.get_or_insert(ctx.now);
    facts.took_ms = facts.took_ms.max(took_ms);
    facts.proof_time = facts.proof_time.max(at.time);
    ctx.host(at.node).gpus_free = gpus_free;
}
