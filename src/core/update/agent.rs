//! Messages of agents: greetings, samples, log lines, replies. Records have a file of their own.

use super::ownership::{self, LaunchFinding};
use super::{bounds, failure, link, placement, policy, queries, records, shrink};
use crate::host::HostStage;
use crate::model::{EventTone, ReceivedLines, RingLimits};
use crate::report::ReportBody;
use crate::run::{EndCause, RunStage};
use crate::session::EventCtx;
use crate::watch;
use rankdeck_proto::message::{AgentMessage, HostSample, LaunchSpec, PROTOCOL, RankSnapshot, end_refusal};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{NodeRank, Rank, RunId};
use std::collections::VecDeque;

/// Values per sparkline.
const HISTORY: usize = 240;
/// The same of a GPU, and GPUs of a host that have one.
const GPU_HISTORY: usize = 60;
const GPUS: usize = 64;

/// An agent sent a message. Returns whether a screen could show the change.
pub(super) fn on_agent_message(ctx: &mut EventCtx<'_>, node: NodeRank, mut message: AgentMessage) -> bool {
    let (awake, now) = (ctx.session.clock.awake_ms, ctx.now);
    let host = ctx.host(node);
    if !host.machine.is_connected() {
        return false;
    }
    host.machine.last_message_awake_ms = awake;
    host.last_message_at = Some(now);
    shorten(ctx, node, &mut message);
    match message {
        AgentMessage::Hello { protocol, build, host, node_rank, run, pid, wall_time, run_dir } => {
            let greeting = AgentHello { protocol, build, host, node_rank, run, pid, wall_time, run_dir };
            hello(ctx, node, greeting);
        }
        AgentMessage::Snapshot { spec, ranks, last_seq, holds } => {
            ctx.host(node).holds = Some(holds);
            snapshot(ctx, node, spec, &ranks, last_seq);
        }
        AgentMessage::Record(record) => return records::apply(ctx, node, record),
        AgentMessage::Sample(sample) => apply_sample(ctx, node, *sample),
        AgentMessage::Log { rank, first, overwritten, lines, times } => {
            let arrival = ReceivedLines { first, overwritten, lines, times, ..ReceivedLines::default() };
            log(ctx, node, rank, arrival);
        }
        AgentMessage::PortReserved { request: answered, port: found } => {
            let first = ctx.model.plan.as_ref().and_then(|plan| plan.ranks.first());
            let first = first.map_or(NodeRank(0), |rank| rank.node_rank);
            if let RunStage::Reserving { request, port, .. } = &mut ctx.session.run.stage
                && node == first
                && *request == Some(answered)
                && found != 0
            {
                *port = Some(found);
            }
        }
        AgentMessage::Pong { sent_ms, wall_time } => {
            let rtt_ms = ctx.now.0.saturating_sub(sent_ms);
            ctx.host(node).rtt_ms = Some(rtt_ms);
            if let Some(theirs) = wall_time {
                failure::measure_clock(ctx, node, theirs, rtt_ms);
            }
        }
        AgentMessage::Frame { generation, age_ms, missed, frame } => {
            return queries::on_frame(ctx, node, generation, age_ms, missed, frame);
        }
        AgentMessage::Found { request, findings } => {
            return queries::on_findings(ctx, node, request, *findings);
        }
        AgentMessage::Reached { request, outcome } => {
            return queries::on_outcome(ctx, node, request, *outcome);
        }
        AgentMessage::Checkpoint { request, reply } => {
            return placement::on_reply(ctx, node, request, *reply);
        }
        AgentMessage::Refused(error) => refused(ctx, node, &error),
        AgentMessage::Bye { reason } => {
            let name = ctx.host_name(node);
            ctx.note(EventTone::Info, format!("{name}: the agent exits: {reason}"));
        }
        AgentMessage::Inspected { request: _, inspections } => {
            for inspection in inspections {
                match ctx.model.ranks.get_mut(inspection.rank.index()).filter(|rank| rank.node == node) {
                    Some(rank) => {
                        if inspection.inner_pid.is_none() {
                            rank.inspection =
                                Some(Box::new(watch::describe_inspection(rank, &inspection, ctx.now)));
                        }
                        ctx.session.watch.on_inspection(inspection);
                    }
                    None => ctx.model.drops.misplaced += 1,
                }
            }
        }
        AgentMessage::Unknown => ctx.model.drops.unknown += 1,
    }
    true
}

/// Truncates data that no true agent sends; the first time is reported.
fn shorten(ctx: &mut EventCtx<'_>, node: NodeRank, message: &mut AgentMessage) {
    let cut = bounds::cut(message);
    let before = ctx.model.drops.cut;
    ctx.model.drops.cut = before.saturating_add(cut);
    if before == 0 && cut > 0 {
        let name = ctx.host_name(node);
        ctx.note(EventTone::Warn, format!("{name}: agent sent implausible data (truncated and counted)"));
    }
}

struct AgentHello {
    protocol: u32,
    build: String,
    host: String,
    node_rank: NodeRank,
    run: RunId,
    pid: u32,
    wall_time: f64,
    run_dir: String,
}

fn hello(ctx: &mut EventCtx<'_>, node: NodeRank, greeting: AgentHello) {
    let HostStage::Attaching { since } = ctx.host(node).machine.stage else { return };
    let name = ctx.host_name(node);
    if greeting.protocol != PROTOCOL {
        let (theirs, build) = (greeting.protocol, &greeting.build);
        let error = format!(
            "{name}: agent protocol {theirs} (build {build}) differs from console protocol {PROTOCOL}"
        );
        let hint = "attach with the rankdeck that launched the run, or stop that run first";
        return link::fail(ctx, node, HintedError::new(error, hint));
    }
    let ours = ctx.model.run.id.as_ref();
    if ours.is_some_and(|run| *run != greeting.run) || greeting.node_rank != node {
        let error = format!(
            "{name}: the agent serves run {} as node rank {}, not {} as node rank {node}",
            greeting.run,
            greeting.node_rank,
            ours.map(RunId::to_string).unwrap_or_default()
        );
        let hint = "check that hosts.toml lists the hosts in the order of the launch: `rankdeck ps`";
        return link::fail(ctx, node, HintedError::new(error, hint));
    }
    failure::measure_clock(ctx, node, greeting.wall_time, ctx.session.clock.awake_ms.saturating_sub(since));
    let host = ctx.host(node);
    host.agent = Some((greeting.pid, greeting.build));
    host.run_dir = greeting.run_dir;
    if host.name.is_empty() {
        host.name = greeting.host;
    }
    host.machine.stage = HostStage::Greeted { since };
    host.machine.hello_time = greeting.wall_time;
}

fn snapshot(
    ctx: &mut EventCtx<'_>,
    node: NodeRank,
    spec: Option<Box<LaunchSpec>>,
    ranks: &[RankSnapshot],
    last_seq: u64,
) {
    let host = ctx.host(node);
    if !matches!(host.machine.stage, HostStage::Greeted { .. }) {
        return;
    }
    let shrunk = last_seq < host.last_seq;
    host.last_seq = host.last_seq.min(last_seq);
    host.machine.stage = HostStage::Live { target: last_seq };
    host.machine.found_at = Some(host.machine.found_at.map_or(last_seq, |found| found.min(last_seq)));
    host.machine.launch_sent = spec.as_ref().map(|spec| spec.generation);
    if spec.is_none() {
        host.machine.lose_launch();
    }
    (host.machine.launch_open, host.machine.answered) = (None, true);
    if shrunk {
        let name = ctx.host_name(node);
        ctx.note(EventTone::Warn, format!("{name}: the agent has fewer records than before"));
        ctx.model.drops.gaps += 1;
    }
    if ctx.model.policy.watched {
        queries::send_frame_request(ctx, node);
    }
    if let Some(spec) = spec {
        match ownership::seen(ctx, node, &spec) {
            LaunchFinding::Flaw => return,
            LaunchFinding::Followed => records::catch_up(ctx),
            LaunchFinding::Noted => {}
        }
        for snapshot in ranks {
            let mine = ctx.session.run.is_current(spec.generation);
            if let Some(rank) = ctx.model.ranks.get_mut(snapshot.rank.index())
                && mine
                && rank.node == node
            {
                rank.pid = rank.pid.or(snapshot.pid);
            }
        }
    }
}

fn log(ctx: &mut EventCtx<'_>, node: NodeRank, rank: Rank, arrival: ReceivedLines) {
    let ahead_ms = (ctx.host(node).clock_offset_s * 1000.0) as i64;
    let arrival = ReceivedLines { ahead_ms, generation: ctx.model.run.generation, ..arrival };
    let room = RingLimits::among(ctx.model.ranks.len());
    let Some(model) = ctx.model.ranks.get_mut(rank.index()).filter(|model| model.node == node) else {
        ctx.model.drops.misplaced += 1;
        return;
    };
    let (fresh, over) = model.log.extend(arrival, room, &mut ctx.session.rates.lines);
    ctx.model.drops.log_lines += over;
    let host = model.host.clone();
    for line in fresh {
        ctx.report(ReportBody::Log { rank, host: host.clone(), line });
    }
}

/// An order could not be carried out.
fn refused(ctx: &mut EventCtx<'_>, node: NodeRank, error: &HintedError) {
    let name = ctx.host_name(node);
    let text = format!("{name}: {}", error.with_hint());
    ctx.note(EventTone::Bad, format!("rejected: {text}"));
    shrink::order_refused(ctx, node, error);
    let run = &ctx.session.run;
    let current = run.launch.as_ref().filter(|_| run.is_launcher()).map(|launch| launch.generation);
    let machine = &ctx.host(node).machine;
    let launch_refused = current.is_some() && machine.launch_sent == current && machine.generation != current;
    match &ctx.session.run.stage {
        // Nothing of this generation was started there.
        RunStage::Launching | RunStage::Running | RunStage::Draining { .. } if launch_refused => {
            ctx.host(node).machine.launch_open = None;
            if ctx.model.run.id.as_ref().is_some_and(|run| *error == end_refusal(run)) {
                policy::launch_refused(ctx);
            } else {
                ctx.session.run.facts.blame(EndCause::LaunchFailed(text));
            }
        }
        RunStage::Reserving { .. } | RunStage::Gathering { .. } => {
            ctx.session.run.facts.blame(EndCause::LaunchFailed(text));
        }
        RunStage::Launching
        | RunStage::Running
        | RunStage::Draining { .. }
        | RunStage::Waiting { .. }
        | RunStage::Over => {}
    }
}

/// Takes a host's sample: the latest values of the host and its ranks, their rates and short histories.
fn apply_sample(ctx: &mut EventCtx<'_>, node: NodeRank, mut sample: HostSample) {
    if !ctx.host(node).is_live() {
        return;
    }
    ctx.session.clock.sampled = true;
    let (machine, drops) = (&mut ctx.model.hosts[node.index()].machine, &mut ctx.model.drops);
    // Losses are counted per connection, malformed lines per life of the agent; both begin at 0.
    let since = |before: u64, now: u64| if now >= before { now - before } else { now };
    drops.by_agents = drops.by_agents.saturating_add(since(machine.dropped, sample.dropped));
    machine.dropped = sample.dropped;
    let malformed = since(machine.malformed, sample.malformed);
    drops.malformed = drops.malformed.saturating_add(malformed);
    machine.malformed = sample.malformed;
    drops.withheld = drops.withheld.saturating_add(since(machine.withheld, sample.withheld));
    machine.withheld = sample.withheld;
    machine.kills_at = sample.kills_in_ms.map(|ms| ctx.now.plus(ms));
    if ctx.session.run.is_current(sample.generation) {
        ctx.session.watch.observe(ctx.model, node, &sample);
        // Each rank keeps its own.
        for gauge in std::mem::take(&mut sample.ranks) {
            let Some(model) = ctx.model.ranks.get_mut(gauge.rank.index()).filter(|m| m.node == node) else {
                ctx.model.drops.misplaced += 1;
                continue;
            };
            if !gauge.is_gone() {
                push(&mut model.cpu_history, gauge.cpu_percent);
            }
            // The host overrules the plan: a scheduler may have given the rank another one.
            model.gpu = gauge.gpu.or(model.gpu);
            let gpu = sample.gpus.iter().find(|gpu| Some(gpu.index) == model.gpu);
            if let Some(percent) = gauge.gpu_share.or(gpu.and_then(|gpu| gpu.utilization)) {
                push(&mut model.gpu_history, percent as f32);
            }
            // A hook does not count steps.
            if let Some(page) = gauge.page.as_ref().filter(|page| !page.by_hook) {
                model.steps_per_s = model.rate.update(sample.mono_ms as f64 / 1000.0, page.env_step);
            }
            model.sample = Some(gauge);
            model.sampled = Some(ctx.now);
        }
    }
    sample.ranks.clear();
    sample.inner.clear();
    let histories = &mut ctx.host(node).gpu_history;
    histories.retain(|index, _| sample.gpus.iter().any(|gpu| gpu.index == *index));
    for gpu in sample.gpus.iter().take(GPUS) {
        let history = histories.entry(gpu.index).or_default();
        push(history, gpu.utilization.map_or(f32::NAN, |percent| percent as f32));
        if history.len() > GPU_HISTORY {
            history.pop_front();
        }
    }
    ctx.host(node).sample = Some(sample);
    if malformed > 0 && ctx.model.drops.malformed == malformed {
        let name = ctx.host_name(node);
        ctx.note(EventTone::Warn, format!("{name}: a rank sent invalid event lines (counted)"));
    }
}

fn push(history: &mut VecDeque<f32>, value: f32) {
    history.push_back(if value.is_finite() { value } else { 0.0 });
    if history.len() > HISTORY {
        history.pop_front();
    }
}
