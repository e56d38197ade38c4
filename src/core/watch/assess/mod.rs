//! Stage 3: decides what is wrong: the reason, its severity and its confidence, without words.
//!
//! Facts about one rank (`history`) and patterns over ranks (`patterns`) come in, [`Finding`]s and ranks to
//! inspect go out. [`late_rank`] has the rules for a rank that others wait for, [`waits`] the wait patterns,
//! [`stages`] start and end; hosts, links, GPUs and stopped processes are assessed here.

pub(crate) mod finding;
pub(crate) mod late_rank;
pub(crate) mod stages;
pub(crate) mod waits;

use crate::host::HostStage;
use crate::limits::TimeLimits;
use crate::model::HostModel;
use crate::reason::{Proof, Reason, Severity};
use crate::watch::history::hosts::{DeviceHealth, HostHeartbeats};
use crate::watch::history::inspections::{INSPECTION_MS, is_in_collective};
use crate::watch::history::program::STARVED;
use crate::watch::history::rank_history::{CountedIterations, RankHistory};
use crate::watch::history::run_view::{RankView, RunView, living};
use crate::watch::patterns::stall::Stall;
use crate::watch::patterns::{mismatch, network, waits as wait_patterns};
use finding::{Assessment, Finding, SilenceCause, SilentHost};
use rankdeck_types::ids::Rank;

/// Milliseconds for which a process must be seen stopped, or a link down.
const FROZEN_MS: u64 = 1_000;
/// Progress of other ranks this long after a host's last message shows that its ranks are alive.
const ALIVE_MS: u64 = 2_000;

/// What is wrong, and which ranks to inspect.
#[derive(Debug, Default)]
pub(crate) struct RunFindings {
    pub found: Vec<Finding>,
    /// Ranks to inspect, most suspicious first.
    pub suspects: Vec<Rank>,
}

impl RunFindings {
    fn add(&mut self, found: impl IntoIterator<Item = Finding>, suspects: impl IntoIterator<Item = Rank>) {
        self.found.extend(found);
        self.suspects.extend(suspects);
    }
}

/// Assesses all conditions of the run but a stall of all ranks and stragglers.
pub(crate) fn assess(
    run: &RunView<'_>,
    heartbeats: &HostHeartbeats,
    devices: &DeviceHealth,
    awake_ms: u64,
    limits: &TimeLimits,
) -> RunFindings {
    let model = run.model;
    let histories = living(model);
    let mut findings = RunFindings::default();
    let awaited = model.hosts.iter().filter(|host| !model.has_only_lost(host.node_rank));
    let silent = awaited.filter_map(|host| silent_host(run, host, awake_ms, limits, heartbeats));
    findings.add(silent.map(Finding::SilentHost), []);
    let down = devices.down_links(model).filter(|(_, _, held_ms)| *held_ms >= FROZEN_MS);
    let down = down.map(|(node, interface, held_ms)| {
        let fault = network::link_down(model, node, interface, held_ms);
        Finding::LinkDown { node, fault }
    });
    findings.add(down, []);
    for view in run.answering() {
        let halted = halted(view);
        let suspect = halted.is_some().then_some(view.rank);
        findings.add(halted, suspect);
    }
    for view in run.answering() {
        findings.add(broken_gpu(run, view, devices), []);
    }
    findings.add(model.hosts.iter().filter_map(|host| shared_core(run, host)), []);
    // A death explains every wait that follows from it.
    let dead = run.views.iter().any(|view| view.died);
    for pattern in wait_patterns::find_wait_patterns(&run.views) {
        findings.add(waits::assess(run, &pattern, limits, dead), waits::suspects(run, &pattern));
    }
    if let Some(mismatch) = shifted(&histories) {
        let suspects = [mismatch.odd.first().copied().unwrap_or_default(), mismatch.other];
        findings.add([Finding::Mismatch { mismatch, waited_ms: 0 }], suspects);
    }
    findings.add(waits::no_collectives(run, &histories), []);
    findings.add(waits::idle_optimizer(run, &histories), []);
    let RunFindings { found, suspects } = stages::assess(run, limits);
    findings.add(found, suspects);
    findings
}

/// A process that is stopped, traced or frozen.
fn halted(view: &RankView<'_>) -> Option<Finding> {
    let halted_ms = view.halted_ms().filter(|ms| *ms >= FROZEN_MS)?;
    let reason = match view.sample.state {
        't' => Reason::Debugger,
        'T' => Reason::Stopped,
        _ => Reason::CgroupFrozen,
    };
    Some(Finding::Halted { rank: view.rank, reason, halted_ms })
}

/// A GPU that is lost, or reports a new error.
fn broken_gpu(run: &RunView<'_>, view: &RankView<'_>, devices: &DeviceHealth) -> Option<Finding> {
    let gpu = view.gpu.filter(|gpu| gpu.lost || devices.has_new_error(view.node, gpu))?;
    let reason = if gpu.lost { Reason::GpuLost } else { Reason::GpuFault };
    run.model.ranks.get(view.rank.index()).map(|rank| Finding::Gpu { rank: rank.rank, reason })
}

/// All ranks of a host are bound to one core.
fn shared_core(run: &RunView<'_>, host: &HostModel) -> Option<Finding> {
    let node = host.node_rank;
    let cores = host.sample.as_ref().map_or(0, |sample| sample.cpu_count);
    let views = || run.answering().filter(move |view| view.node == node);
    let core = views().next()?.sample.signals.only_core?;
    let count = views().count();
    let is_shared = views().all(|view| view.sample.signals.only_core == Some(core));
    (cores > 1 && count > 1 && is_shared).then_some(Finding::SharedCore { node, core, count })
}

/// Ranks whose iterations start at another number of collectives than those of the others.
fn shifted(histories: &[(Rank, &RankHistory)]) -> Option<mismatch::CollectiveMismatch> {
    let counted: Option<Vec<(Rank, CountedIterations<'_>)>> =
        histories.iter().map(|(rank, history)| Some((*rank, history.counted_iterations()?))).collect();
    mismatch::iterations(&counted?)
}

/// Assesses a stall of the whole run.
pub(crate) fn stall(run: &RunView<'_>, stall: Stall) -> RunFindings {
    let Stall { still_ms, warning_ms, critical_ms, inspected, suspects } = stall;
    let due = still_ms >= warning_ms && (inspected || still_ms >= warning_ms.saturating_add(INSPECTION_MS));
    let severity = if still_ms >= critical_ms { Severity::Red } else { Severity::Amber };
    let outside: Vec<Rank> = run
        .views
        .iter()
        .filter(|view| view.inspection().is_some_and(|inspection| !is_in_collective(inspection)))
        .map(|view| view.rank)
        .collect();
    // One of them may hold up all the others, which wait for it although no page shows it.
    let rank = match (run.views.as_slice(), outside.as_slice()) {
        ([only], _) => Some(only.rank),
        (_, [one]) if run.views.iter().all(|view| view.inspection().is_some()) => Some(*one),
        _ => None,
    };
    let found = due.then_some(Finding::Stall { rank, severity, still_ms }).into_iter().collect();
    RunFindings { found, suspects }
}

/// Assesses the silence of a host; `None` if it is not silent.
fn silent_host(
    run: &RunView<'_>,
    host: &HostModel,
    awake_ms: u64,
    limits: &TimeLimits,
    heartbeats: &HostHeartbeats,
) -> Option<SilentHost> {
    if host.stopped.is_some() {
        return None;
    }
    let silence_ms = awake_ms.saturating_sub(host.machine.last_message_awake_ms);
    let (reason, cause) = match host.machine.stage {
        HostStage::Linking | HostStage::Closed => return None,
        HostStage::Failed => (Reason::HostSilent, SilenceCause::Unreachable),
        HostStage::Away { .. } if silence_ms >= limits.lost => {
            (Reason::HostSilent, SilenceCause::LinkDown(heartbeats.link_loss(host)))
        }
        HostStage::Attaching { .. } | HostStage::Greeted { .. } | HostStage::Live { .. }
            if silence_ms >= limits.lost =>
        {
            (Reason::AgentSilent, SilenceCause::AgentSilent)
        }
        HostStage::Attaching { .. }
        | HostStage::Greeted { .. }
        | HostStage::Live { .. }
        | HostStage::Away { .. } => return None,
    };
    let ranks_alive = are_ranks_alive(run, host, silence_ms, limits);
    let reason = if ranks_alive && reason == Reason::HostSilent { Reason::LinkLost } else { reason };
    let starved = heartbeats.is_starved(host);
    let excused = starved && silence_ms < limits.lost.saturating_mul(STARVED);
    let usual = Assessment::proved(Proof::Lost, reason);
    let severity = if excused { Severity::Amber } else { usual.severity };
    let assessment = Assessment { severity, ..usual };
    Some(SilentHost { node: host.node_rank, assessment, silence_ms, cause, starved, ranks_alive })
}

/// Whether other ranks moved recently, and long after the host's last message: they complete collectives with
/// its ranks.
fn are_ranks_alive(run: &RunView<'_>, host: &HostModel, silence_ms: u64, limits: &TimeLimits) -> bool {
    let moves = |view: &RankView<'_>| {
        view.node != host.node_rank
            && view.fresh
            && view.still_ms() < limits.behind
            && silence_ms >= view.still_ms().saturating_add(ALIVE_MS)
            && !view.groups.is_empty()
    };
    silence_ms >= ALIVE_MS && run.views.iter().any(moves)
}
