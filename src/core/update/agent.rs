//! Messages of agents, except records and samples, which have files of their own.

use super::ownership::{self, LaunchFinding};
use super::{bounds, failure, finder, link, policy_view, reach, records, samples};
use crate::host::HostStage;
use crate::model::{Arrival, Room, Tone};
use crate::report::ReportBody;
use crate::run::{Cause, Stage};
use crate::session::Ctx;
use crate::watch;
use rankdeck_proto::message::{AgentMessage, LaunchSpec, PROTOCOL, RankSnapshot};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{NodeRank, Rank, RunId};

/// An agent sent a message. Returns whether a screen could show the change.
pub(super) fn said(ctx: &mut Ctx<'_>, node: NodeRank, mut message: AgentMessage) -> bool {
    let (awake, now) = (ctx.session.clock.awake_ms, ctx.now);
    let host = ctx.host(node);
    if !host.machine.is_connected() {
        return false;
    }
    host.machine.heard = awake;
    host.heard = Some(now);
    shorten(ctx, node, &mut message);
    match message {
        AgentMessage::Hello { protocol, build, host, node_rank, run, pid, wall_time, run_dir } => {
            let greeting = Greeting { protocol, build, host, node_rank, run, pid, wall_time, run_dir };
            hello(ctx, node, greeting);
        }
        AgentMessage::Snapshot { spec, ranks, last_seq, holds } => {
            ctx.host(node).holds = Some(holds);
            snapshot(ctx, node, spec, &ranks, last_seq);
        }
        AgentMessage::Record(record) => return records::apply(ctx, node, record),
        AgentMessage::Sample(sample) => samples::apply(ctx, node, *sample),
        AgentMessage::Log { rank, first, lines, times } => {
            log(ctx, node, rank, Arrival { first, lines, times, ..Arrival::default() });
        }
        AgentMessage::PortReserved { request: answered, port: found } => {
            let first = ctx.model.plan.as_ref().and_then(|plan| plan.ranks.first());
            let first = first.map_or(NodeRank(0), |rank| rank.node_rank);
            if let Stage::Reserving { request, port, .. } = &mut ctx.session.run.stage
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
            return policy_view::frame(ctx, node, generation, age_ms, missed, frame);
        }
        AgentMessage::Found { request, findings } => return finder::found(ctx, node, request, *findings),
        AgentMessage::Reached { request, outcome } => return reach::reached(ctx, node, request, *outcome),
        AgentMessage::Refused(error) => refused(ctx, node, &error),
        AgentMessage::Bye { reason } => {
            let name = ctx.host_name(node);
            ctx.note(Tone::Info, format!("{name}: the agent leaves: {reason}"));
        }
        AgentMessage::Inspected { request: _, inspections } => {
            for inspection in inspections {
                match ctx.model.ranks.get_mut(inspection.rank.index()).filter(|rank| rank.node == node) {
                    Some(rank) => {
                        rank.look = Some(Box::new(watch::seen(rank, &inspection, ctx.now)));
                        ctx.session.watch.looked(inspection);
                    }
                    None => ctx.model.drops.misplaced += 1,
                }
            }
        }
        AgentMessage::Unknown => ctx.model.drops.unknown += 1,
    }
    true
}

/// Cuts what no true agent says; the first time is told.
fn shorten(ctx: &mut Ctx<'_>, node: NodeRank, message: &mut AgentMessage) {
    let cut = bounds::cut(message);
    let before = ctx.model.drops.cut;
    ctx.model.drops.cut = before.saturating_add(cut);
    if before == 0 && cut > 0 {
        let name = ctx.host_name(node);
        ctx.note(Tone::Warn, format!("{name}: its agent says more than can be true (cut and counted)"));
    }
}

struct Greeting {
    protocol: u32,
    build: String,
    host: String,
    node_rank: NodeRank,
    run: RunId,
    pid: u32,
    wall_time: f64,
    run_dir: String,
}

fn hello(ctx: &mut Ctx<'_>, node: NodeRank, greeting: Greeting) {
    let HostStage::Attaching { since } = ctx.host(node).machine.stage else { return };
    let name = ctx.host_name(node);
    if greeting.protocol != PROTOCOL {
        let (theirs, build) = (greeting.protocol, &greeting.build);
        let error =
            format!("{name}: the agent speaks protocol {theirs} (build {build}), this console {PROTOCOL}");
        let hint = "attach with the rankdeck that launched the run, or stop that run first";
        return link::fail(ctx, node, HintedError::new(error, hint));
    }
    let ours = ctx.model.run.id.as_ref();
    if ours.is_some_and(|run| *run != greeting.run) || greeting.node_rank != node {
        let error = format!(
            "{name}: the agent serves run {} as node {}, not {} as node {node}",
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
    ctx: &mut Ctx<'_>,
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
    host.machine.launch_sent = spec.as_ref().map(|spec| spec.generation);
    if spec.is_none() {
        host.machine.forgets();
    }
    (host.machine.launch_open, host.machine.answered) = (None, true);
    if shrunk {
        let name = ctx.host_name(node);
        ctx.note(Tone::Warn, format!("{name}: the agent has fewer records than it had before"));
        ctx.model.drops.gaps += 1;
    }
    if ctx.model.policy.watched {
        policy_view::tell(ctx, node);
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

fn log(ctx: &mut Ctx<'_>, node: NodeRank, rank: Rank, arrival: Arrival) {
    let ahead_ms = (ctx.host(node).clock_offset_s * 1000.0) as i64;
    let arrival = Arrival { ahead_ms, generation: ctx.model.run.generation, ..arrival };
    let room = Room::among(ctx.model.ranks.len());
    let Some(model) = ctx.model.ranks.get_mut(rank.index()).filter(|model| model.node == node) else {
        ctx.model.drops.misplaced += 1;
        return;
    };
    let (fresh, over) = model.log.extend(arrival, room, &mut ctx.session.rates.lines);
    ctx.model.drops.log_lines += over;
    let host = model.host.clone();
    for line in fresh {
        ctx.tell(ReportBody::Log { rank, host: host.clone(), line });
    }
}

/// An order could not be carried out.
fn refused(ctx: &mut Ctx<'_>, node: NodeRank, error: &HintedError) {
    let name = ctx.host_name(node);
    let text = format!("{name}: {}", error.with_hint());
    ctx.note(Tone::Bad, format!("refused: {text}"));
    let run = &ctx.session.run;
    let current = run.launch.as_ref().filter(|_| run.is_launcher()).map(|launch| launch.generation);
    let machine = &ctx.host(node).machine;
    let launch_refused = current.is_some() && machine.launch_sent == current && machine.generation != current;
    match &ctx.session.run.stage {
        // Nothing of this generation was started there.
        Stage::Launching | Stage::Running | Stage::Draining { .. } if launch_refused => {
            ctx.host(node).machine.launch_open = None;
            ctx.session.run.facts.blame(Cause::LaunchFailed(text));
        }
        Stage::Reserving { .. } | Stage::Gathering { .. } => {
            ctx.session.run.facts.blame(Cause::LaunchFailed(text));
        }
        Stage::Launching | Stage::Running | Stage::Draining { .. } | Stage::Waiting { .. } | Stage::Over => {}
    }
}
