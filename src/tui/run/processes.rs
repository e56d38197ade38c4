//! Processes that can be inspected and signaled: ranks, and others on a host's GPUs.

use crate::run::ranks;
use rankdeck_core::model::{Model, RankModel};
use rankdeck_kit::Role;
use rankdeck_proto::message::ChildSample;
use rankdeck_proto::process::{GpuUser, ProcessAction, ProcessName, ReachOutcome};
use rankdeck_types::ids::{NodeRank, Rank};
use rankdeck_types::words;
use std::collections::{BTreeMap, BTreeSet};

/// A process of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostProcess {
    pub node: NodeRank,
    pub name: ProcessName,
    /// Its user, if it is not a rank.
    pub user: String,
    /// It belongs to the user of the agent.
    pub own: bool,
    /// What it runs.
    pub command: String,
    /// Its GPUs on that host, and its memory there, bytes.
    pub gpus: Vec<u32>,
    pub memory: u64,
    /// Its descendants, in tree order.
    pub below: Vec<Descendant>,
}

impl HostProcess {
    /// # Errors
    /// It belongs to another user, and the agent cannot reach it.
    pub fn check_own(&self) -> Result<(), String> {
        match self.own {
            true => Ok(()),
            false => Err(format!("{} belongs to {}: permission denied", self.name, self.user)),
        }
    }
}

/// A descendant of a rank's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descendant {
    pub pid: u32,
    /// For each level below the rank down to itself: whether it is the last sibling.
    pub last: Vec<bool>,
    /// Name of its program, as the kernel has it.
    pub name: String,
    /// State letter.
    pub state: char,
    /// CPU time so far, milliseconds.
    pub cpu_ms: u64,
    /// Its own GPUs, and its memory there, bytes.
    pub gpus: Vec<u32>,
    pub memory: u64,
}

/// Most processes below a rank: as many as agents list.
const DESCENDANTS: usize = 64;

/// Syntax of a process: `3` is rank 3, `pid:77` another process, `pid:77@b` that on host b.
pub const TARGET: &str = "RANK|pid:PID[@HOST]";

fn of_rank(model: &Model, rank: &RankModel) -> Option<HostProcess> {
    let pid = rank.pid.filter(|_| ranks::alive(rank))?;
    let name = ProcessName { rank: Some(rank.rank), pid, start: 0 };
    let children = rank.sample.iter().flat_map(|sample| &sample.signals.children).map(|child| child.pid);
    let pids: Vec<u32> = children.chain([pid]).collect();
    let (gpus, memory) = on_gpus(model, rank.node, &pids);
    let (user, command) = (String::new(), format!("rank {}", rank.rank));
    let below = descendants(model, rank, pid);
    Some(HostProcess { node: rank.node, name, user, own: true, command, gpus, memory, below })
}

/// The descendants of a rank's process, each followed by its own.
fn descendants(model: &Model, rank: &RankModel, root: u32) -> Vec<Descendant> {
    let all = rank.sample.as_ref().map_or(&[][..], |sample| &sample.signals.children);
    let all = &all[..all.len().min(DESCENDANTS)];
    let known: BTreeSet<u32> = all.iter().map(|child| child.pid).collect();
    let mut started: BTreeMap<u32, Vec<&ChildSample>> = BTreeMap::new();
    for child in all {
        // One whose parent has ended, or is not known, belongs to the rank.
        let is_below = child.parent != child.pid && known.contains(&child.parent);
        started.entry(if is_below { child.parent } else { root }).or_default().push(child);
    }
    // Each list is taken once: what a host reports may be no tree.
    let mut below = |pid: u32, last: &[bool]| {
        let found = started.remove(&pid).unwrap_or_default();
        let newest = found.len().saturating_sub(1);
        let each = found.into_iter().enumerate();
        let each = each.map(|(at, child)| (child, [last, &[at == newest]].concat()));
        each.rev().collect::<Vec<_>>()
    };
    let mut tree = Vec::with_capacity(all.len());
    let mut open = below(root, &[]);
    while let Some((child, last)) = open.pop() {
        open.extend(below(child.pid, &last));
        let (gpus, memory) = on_gpus(model, rank.node, &[child.pid]);
        let (name, state, cpu_ms) = (words::clean(&child.name), child.state, child.cpu_ms);
        tree.push(Descendant { pid: child.pid, last, name, state, cpu_ms, gpus, memory });
    }
    tree
}

fn of_user(model: &Model, node: NodeRank, user: &GpuUser) -> HostProcess {
    let (gpus, memory) = on_gpus(model, node, &[user.pid]);
    let whose = user.run.as_ref().map_or(String::new(), |run| format!("{}: ", words::clean(run)));
    HostProcess {
        node,
        name: ProcessName::of(user),
        user: words::clean(&user.user),
        own: user.own,
        command: whose + &words::clean(&user.command),
        gpus,
        memory,
        below: Vec::new(),
    }
}

fn on_gpus(model: &Model, node: NodeRank, pids: &[u32]) -> (Vec<u32>, u64) {
    let sample = model.hosts.get(node.index()).and_then(|host| host.sample.as_ref());
    let (mut gpus, mut memory) = (Vec::new(), 0_u64);
    for gpu in sample.iter().flat_map(|sample| &sample.gpus) {
        let mut ours = gpu.processes.iter().filter(|(pid, _)| pids.contains(pid)).peekable();
        if ours.peek().is_some() {
            gpus.push(gpu.index);
        }
        memory = ours.fold(memory, |sum, (_, bytes)| sum.saturating_add(*bytes));
    }
    (gpus, memory)
}

/// Running ranks of a host, then other processes on its GPUs.
pub fn of_host(model: &Model, node: NodeRank) -> Vec<HostProcess> {
    let ranks = model.ranks.iter().filter(|rank| rank.node == node);
    let sample = model.hosts.get(node.index()).and_then(|host| host.sample.as_ref());
    let users = sample.iter().flat_map(|sample| &sample.users).map(|user| of_user(model, node, user));
    ranks.filter_map(|rank| of_rank(model, rank)).chain(users).collect()
}

/// The process of a rank.
pub fn rank(model: &Model, rank: Rank) -> Result<HostProcess, String> {
    let found = ranks::find(model, rank).and_then(|found| of_rank(model, found));
    found.ok_or_else(|| format!("rank {rank} has no process"))
}

/// The process that was typed.
pub fn typed(model: &Model, typed: &str) -> Result<HostProcess, String> {
    let Some(rest) = typed.strip_prefix("pid:") else {
        let number = typed.parse().map_err(|_| format!("expected a rank or pid:PID, found `{typed}`"))?;
        return rank(model, Rank(number));
    };
    let (pid, host) = rest.split_once('@').map_or((rest, None), |(pid, host)| (pid, Some(host)));
    let pid: u32 = pid.parse().map_err(|_| format!("invalid PID in `{typed}`; write pid:4242"))?;
    let hosts = model.hosts.iter().filter(|found| host.is_none_or(|host| found.name == host));
    let all = hosts.flat_map(|host| of_host(model, host.node_rank)).filter(|found| found.name.pid == pid);
    match all.collect::<Vec<_>>().as_slice() {
        [] => Err(format!("process {pid} not found; p on the Hosts page lists processes")),
        [one] => Ok(one.clone()),
        [..] => Err(format!("process {pid} is on several hosts; write pid:{pid}@HOST")),
    }
}

/// Processes for completion.
pub fn processes(model: &Model) -> Vec<String> {
    let all = model.hosts.iter().flat_map(|host| of_host(model, host.node_rank));
    all.map(|process| typed_as(&process)).collect()
}

/// Processes and signals for completion.
pub fn names(model: &Model) -> Vec<String> {
    let signals = words::SIGNALS_TYPED.iter().map(|name| (*name).to_owned());
    processes(model).into_iter().chain(signals).collect()
}

/// A process as it is typed.
pub fn typed_as(process: &HostProcess) -> String {
    process.name.rank.map_or_else(|| format!("pid:{}", process.name.pid), |rank| rank.to_string())
}

/// `rank 3 (pid 812) on b: rank 3`.
pub fn description(model: &Model, process: &HostProcess) -> String {
    let host = model.hosts.get(process.node.index()).map_or("", |host| host.name.as_str());
    let what = if process.name.rank.is_some() { String::new() } else { format!(": {}", process.command) };
    format!("{} on {host}{what}", process.name)
}

/// The toast for a reply; `None` if it is shown elsewhere.
pub fn reply_text(
    process: ProcessName,
    action: ProcessAction,
    outcome: &ReachOutcome,
) -> Option<(String, Role)> {
    match outcome {
        ReachOutcome::Environment(_) => None,
        ReachOutcome::Signalled { signal } => {
            Some((format!("sent {} to {process}", words::signal_name(*signal)), Role::Good))
        }
        ReachOutcome::Refused(_) if action == ProcessAction::Environment => None,
        ReachOutcome::Refused(error) => {
            Some((format!("{action} to {process}: {}", error.with_hint()), Role::Bad))
        }
        ReachOutcome::Unknown => Some((format!("{process}: not supported by its agent"), Role::Warn)),
    }
}
