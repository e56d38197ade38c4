//! The card of a verdict: ranks in words, what was ruled out, what to do.

use super::cause;
use super::seat::{self, Seat};
use crate::card::{Advice, Card, Others, Side};
use crate::model::{Model, RankLife, RankModel};
use crate::reason::Reason;
use crate::words;
use crate::words::seconds;
use rankdeck_proto::inspection::{How, Inspection};
use rankdeck_proto::message::RankSample;
use rankdeck_types::ids::Rank;
use std::collections::BTreeMap;

/// Frames on a card, and those at the top that are there whoever they belong to.
const FRAMES: usize = 12;
const TOP_FRAMES: usize = 3;
/// Lines about other ranks.
const OTHERS: usize = 8;
/// Children named on a card.
const CHILDREN: usize = 4;

/// A rank on a card.
pub(super) fn side(rank: &RankModel, look: Option<&Inspection>) -> Side {
    let mut side = Side {
        rank: rank.rank,
        host: rank.host.clone(),
        pid: look.and_then(|look| look.pid).or(rank.pid),
        last_line: look
            .and_then(|look| look.last_line.clone())
            .or_else(|| rank.log.lines.back().map(|(_, line)| line.clone()))
            .map(|line| words::clip(&line, 200))
            .unwrap_or_default(),
        ..Side::default()
    };
    if let Some(sample) = &rank.sample {
        side.os = os(sample, look);
        side.call = seat::call(sample);
        side.silent_ms = super::track::silence(sample);
        side.children = children(sample, look);
        if let Some(page) = &sample.page {
            side.train_iter = page.iteration();
            if !page.by_hook {
                side.env_step = Some(page.env_step);
                side.phase = page.phase.name().into();
                side.activity = page.activity.name().into();
                side.phase_age_ms = Some(page.phase_age_ms);
            }
            if page.total > 0 {
                side.amount = format!("{}/{}", page.done, page.total);
            }
        }
    }
    if let Some(look) = look {
        side.blocked_on = look.blocked_on.as_deref().map(|text| words::clip(text, 200)).unwrap_or_default();
        side.at = cause::user_frame(look).unwrap_or_default();
        side.stack = stack(look);
    }
    side
}

/// The operating system's view, in words.
fn os(sample: &RankSample, look: Option<&Inspection>) -> String {
    let frozen = sample.signals.cgroup.as_ref().is_some_and(|cgroup| cgroup.frozen);
    let state = match look.map(|look| look.os.words.as_str()).filter(|words| !words.is_empty()) {
        Some(text) => text.to_string(),
        None if frozen => "frozen by its cgroup".to_string(),
        None => words::state_text(sample.state).to_string(),
    };
    let mut text = format!("{state} ({}), cpu {:.0} %", sample.state, sample.cpu_percent);
    let looked = look.and_then(|look| look.os.syscall.clone());
    let wchan = look.and_then(|look| look.os.wchan.clone()).unwrap_or_else(|| sample.wchan.clone());
    match (looked, wchan.is_empty()) {
        (Some(call), true) => text.push_str(&format!(", in {call}")),
        (Some(call), false) => text.push_str(&format!(", in {call}: {wchan}")),
        (None, false) => text.push_str(&format!(", waits in {wchan}")),
        (None, true) => {}
    }
    text
}

fn children(sample: &RankSample, look: Option<&Inspection>) -> Vec<String> {
    let from_look = look.into_iter().flat_map(|look| &look.children).map(|child| {
        let cpu = match child.cpu_ms_moved {
            0 => "no CPU used".to_string(),
            ms => format!("used {ms} ms of CPU"),
        };
        format!("pid {} {}: {}, {cpu}", child.pid, child.name, words::state_text(child.state))
    });
    let list: Vec<String> = from_look.collect();
    let list = if list.is_empty() {
        let children = sample.signals.children.iter();
        children.map(|c| format!("pid {} {}: {}", c.pid, c.name, words::state_text(c.state))).collect()
    } else {
        list
    };
    list.into_iter().take(CHILDREN).collect()
}

/// The stack of the main thread, Python frames before native ones: what it is blocked in, and below that the program's own frames.
fn stack(look: &Inspection) -> Vec<String> {
    let order = [How::Python, How::Native, How::Kernel];
    let threads = order.iter().flat_map(|how| look.threads.iter().filter(move |thread| thread.how == *how));
    let first = threads.clone().next();
    let frames = first.into_iter().flat_map(|thread| &thread.frames);
    frames
        .enumerate()
        .filter(|(depth, frame)| *depth < TOP_FRAMES || cause::is_own(frame))
        .take(FRAMES)
        .map(|(_, frame)| {
            let place = match (&frame.file, frame.line) {
                (Some(file), Some(line)) => format!("  {file}:{line}"),
                (Some(file), None) => format!("  {file}"),
                (None, _) => String::new(),
            };
            words::clip(&format!("{}{place}", frame.function), 160)
        })
        .collect()
}

/// What a rank does, in half a line; equal for ranks that do the same.
fn doing(rank: &RankModel) -> (String, u64) {
    let Some(sample) = &rank.sample else { return ("nothing heard of it yet".into(), 0) };
    match seat::call(sample).filter(|call| call.inside) {
        Some(call) => (format!("waits in {}", call.name()), call.age_ms),
        None => match &sample.page {
            Some(page) if !page.by_hook => (format!("in {}", page.phase.name()), page.phase_age_ms),
            Some(page) => ("in its own code".into(), page.heartbeat_age_ms),
            None => (words::state_text(sample.state).into(), 0),
        },
    }
}

fn others(model: &Model, shown: &[Rank]) -> Vec<Others> {
    let mut alike: BTreeMap<String, (Vec<Rank>, u64)> = BTreeMap::new();
    for rank in model.ranks.iter().filter(|rank| !shown.contains(&rank.rank)) {
        let (text, age) = match &rank.life {
            RankLife::Exited(exit) => (words::exit_text(exit), 0),
            RankLife::Pending | RankLife::Spawned | RankLife::Joined | RankLife::Finished => doing(rank),
        };
        let entry = alike.entry(text).or_default();
        entry.0.push(rank.rank);
        entry.1 = entry.1.max(age);
    }
    let mut lines: Vec<(String, (Vec<Rank>, u64))> = alike.into_iter().collect();
    lines.sort_by_key(|(_, (ranks, _))| ranks.len());
    let more: usize = lines.iter().skip(OTHERS).map(|(_, (ranks, _))| ranks.len()).sum();
    let mut told: Vec<Others> = lines
        .into_iter()
        .take(OTHERS)
        .map(|(text, (ranks, age))| {
            let text = if age > 0 { format!("{text} since {}", seconds(age)) } else { text };
            Others { ranks, text }
        })
        .collect();
    if more > 0 {
        told.push(Others { ranks: Vec::new(), text: format!("and {more} more ranks do other things") });
    }
    told
}

/// Why it is nothing else: only what was really looked at.
fn ruled_out(model: &Model, seat: Option<&Seat<'_>>, reason: Reason, compared: Option<u64>) -> Vec<String> {
    let mut list = Vec::new();
    if let Some(seq) = compared {
        list.push(format!("all ranks made the same collectives up to #{seq}"));
    }
    let Some(seat) = seat else { return list };
    let cgroup = seat.sample.signals.cgroup.as_ref();
    if reason.kind() != crate::report::VerdictKind::Frozen && seat.alive() {
        let frozen = if cgroup.is_some() { ", nor frozen by its cgroup" } else { "" };
        list.push(format!("its process is there and not stopped{frozen}"));
    }
    if let Some(host) = model.hosts.get(seat.node.index())
        && seat.fresh
    {
        list.push(format!("{} answers", host.name));
    }
    if let Some(gpu) = seat.gpu
        && gpu.xids.is_empty()
        && !gpu.lost
    {
        list.push("its GPU reports no error".into());
    }
    if let Some(look) = seat.look
        && !look.sockets.is_empty()
        && look.sockets.iter().all(|socket| socket.backoff < 2 && socket.retransmits < 2)
    {
        let count = look.sockets.len();
        list.push(format!("nothing is retransmitted on its {count} TCP connections"));
    }
    if let Some((cpu, memory)) = seat.host.pressure
        && cpu < 40.0
        && memory < 5.0
    {
        list.push("its host is short of neither CPU nor memory".into());
    }
    if let Some(share) = seat.moved.throttled
        && share < 0.1
    {
        list.push("its CPU quota is not used up".into());
    }
    if matches!(reason.kind(), crate::report::VerdictKind::Behind) && seat.page().is_some() {
        let usual = seconds(seat.threshold.stuck);
        list.push(format!(
            "silent for {}; up to {usual} is taken as usual there",
            seconds(seat.silence_ms())
        ));
    }
    list
}

/// What to do about it, the best first.
pub(super) fn advice(model: &Model, reason: Reason, rank: Option<&RankModel>) -> Vec<Advice> {
    let run = model.run.id.as_ref().map(|run| run.to_string()).unwrap_or_default();
    let host = rank.map(|rank| rank.host.clone()).unwrap_or_default();
    let pid = rank
        .and_then(|rank| rank.sample.as_ref().map(|sample| sample.pid).or(rank.pid))
        .map(|pid| pid.to_string())
        .unwrap_or_default();
    let number = rank.map(|rank| rank.rank.to_string()).unwrap_or_default();
    let advice = |text: &str, command: String| Advice { text: text.into(), command };
    let there = |text: &str, command: String| advice(&format!("{text}, on {host}"), command);
    let log = || advice("look at its log", format!("rankdeck logs {run} --rank {number}"));
    let restart =
        || advice("restart from the latest checkpoint", format!("rankdeck restart {run} --from latest"));
    let checked = || {
        advice(
            "restart with every collective checked before it begins",
            format!("rankdeck restart {run} --check-collectives"),
        )
    };
    match reason {
        Reason::Stopped => vec![there("continue it", format!("kill -CONT {pid}"))],
        Reason::Debugger => vec![advice("detach the debugger or tracer that holds it", String::new())],
        Reason::CgroupFrozen => {
            vec![there("thaw its cgroup or unpause its container", format!("cat /proc/{pid}/cgroup"))]
        }
        Reason::Storage => vec![
            there("see which file system it waits for", format!("cat /proc/{pid}/stack")),
            there("see what is mounted", "df".into()),
        ],
        Reason::DiskFull => {
            vec![there("free space where the run writes", "df -h".into()), restart()]
        }
        Reason::OutOfMemory => vec![
            advice(
                "use fewer environments per rank (`env.num_envs`) or a host with more memory",
                String::new(),
            ),
            restart(),
        ],
        Reason::EnvWorkerDied | Reason::EnvWorkerDeadlocked => vec![log(), restart()],
        Reason::OpMismatch
        | Reason::SizeMismatch
        | Reason::SkippedCall
        | Reason::ExtraCall
        | Reason::SilentShift
        | Reason::OrderDeadlock
        | Reason::NoCollectives
        | Reason::MismatchAbort
        | Reason::WeightsDiffer => vec![checked(), restart()],
        Reason::LinkDown | Reason::NetworkLoss | Reason::OneWayLoss => {
            vec![advice("look at the interface, its cable and the firewall between the hosts", String::new())]
        }
        Reason::HostSilent | Reason::AgentSilent | Reason::LinkLost => vec![advice(
            "the run goes on there and is found again when the host answers; try",
            format!("ssh {host}"),
        )],
        Reason::GpuFault | Reason::GpuLost => vec![
            there("see what the driver says", "nvidia-smi -q -d ERRORS".into()),
            advice(
                "restart on GPUs that are well: change `gpus` in hosts.toml and launch anew",
                String::new(),
            ),
        ],
        Reason::PortTaken => vec![there("see who has the port", "ss -ltnp".into())],
        Reason::Throttled => vec![advice("raise the CPU quota of its cgroup", String::new())],
        Reason::CpuPressure | Reason::HostOverloaded => {
            vec![there("see what else runs there", "top".into())]
        }
        Reason::MemoryPressure | Reason::Thrashing => {
            vec![advice("use fewer environments per rank (`env.num_envs`)", String::new())]
        }
        Reason::ExpectedWait | Reason::SlowEnv => vec![advice("nothing while it moves", String::new())],
        Reason::Lock
        | Reason::Spinning
        | Reason::Sleeping
        | Reason::GilHeld
        | Reason::WaitsForPeer
        | Reason::InsideEarlier
        | Reason::InsideCollective
        | Reason::TeardownStall
        | Reason::RendezvousIncomplete
        | Reason::LeftEarly
        | Reason::Unknown => vec![log(), restart()],
        Reason::RendezvousBlocked => vec![advice(
            &format!(
                "every host must reach {}; set `address` and `interface` in hosts.toml",
                model.run.master
            ),
            String::new(),
        )],
        Reason::NotStarted => {
            vec![advice("check `launch.command`, `prelude` and `workdir` on that host", String::new())]
        }
        Reason::Killed | Reason::Crashed | Reason::Failed | Reason::ConnectionLost => vec![log(), restart()],
        Reason::GpuThrottled | Reason::SlowCompute | Reason::SlowEnvironment | Reason::Late => {
            vec![advice("compare it with the others on the ranks page", String::new())]
        }
        Reason::TotalsDiffer => vec![advice(
            "do not trust step counts of this run; all ranks must report the same iterations",
            String::new(),
        )],
    }
}

/// Whom a card is about.
pub(super) struct Subject<'a> {
    pub guilty: Option<Rank>,
    pub waiter: Option<Rank>,
    pub reason: Reason,
    /// All ranks' calls are equal up to this number.
    pub compared: Option<u64>,
    pub seats: &'a [Seat<'a>],
}

/// Draws the card.
pub(super) fn card(model: &Model, subject: &Subject<'_>) -> Box<Card> {
    let find = |rank: Rank| model.ranks.get(rank.index());
    let seat = |rank: Rank| subject.seats.iter().find(|seat| seat.rank == rank);
    let draw = |rank: Rank| Some(side(find(rank)?, seat(rank).and_then(|seat| seat.look)));
    let shown: Vec<Rank> = subject.guilty.into_iter().chain(subject.waiter).collect();
    Box::new(Card {
        guilty: subject.guilty.and_then(draw),
        waiter: subject.waiter.and_then(draw),
        facts: Vec::new(),
        others: others(model, &shown),
        ruled_out: ruled_out(model, subject.guilty.and_then(seat), subject.reason, subject.compared),
        actions: advice(model, subject.reason, subject.guilty.and_then(find)),
    })
}

/// The first advice as one line, for `hint`.
pub(super) fn hint(advice: &[Advice]) -> String {
    let line = |advice: &Advice| match advice.command.is_empty() {
        true => advice.text.clone(),
        false => format!("{}: `{}`", advice.text, advice.command),
    };
    advice.iter().take(2).map(line).collect::<Vec<_>>().join("; ")
}
