//! Problems of a run, assessed but not yet described: findings about conditions, and assessments of
//! facts (a process that failed, weights that differ, a run that does not learn).

use crate::exit_message::ExitMessage;
use crate::reason::{Certainty, Proof, Reason, Severity};
use crate::watch::history::hosts::LinkLoss;
use crate::watch::patterns::group_arguments::ArgumentMismatch;
use crate::watch::patterns::input::InputBound;
use crate::watch::patterns::learning::LearningIssue;
use crate::watch::patterns::mismatch::CollectiveMismatch;
use crate::watch::patterns::network::NetworkFault;
use crate::watch::patterns::replicas::{DriftConfidence, WeightDrift};
use crate::watch::patterns::speed::SlowRun;
use crate::watch::patterns::stragglers::Straggler;
use rankdeck_proto::message::{Exit, FailureKind};
use rankdeck_types::ids::{NodeRank, Rank};

/// Severity, certainty and reason of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Assessment {
    pub severity: Severity,
    pub certainty: Certainty,
    pub reason: Reason,
}

impl Assessment {
    /// Takes the usual severity of the reason.
    pub fn usual(certainty: Certainty, reason: Reason) -> Assessment {
        Assessment { severity: reason.row().severity, certainty, reason }
    }

    /// The same of a finding that is proved.
    pub fn proved(proof: Proof, reason: Reason) -> Assessment {
        Assessment::usual(Certainty::Proved(proof), reason)
    }
}

/// One thing that is wrong. `report` describes it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Finding {
    /// A process is stopped, traced or frozen.
    Halted { rank: Rank, reason: Reason, halted_ms: u64 },
    /// One rank holds the others up.
    LateRank { late: LateRank, assessment: Assessment },
    /// Ranks called different collectives.
    Mismatch { mismatch: CollectiveMismatch, waited_ms: u64 },
    /// Ranks use their groups in different orders: each rank with the group that it waits in. `is_proved`: each of
    /// them was seen to wait there.
    OrderDeadlock { ring: Vec<(Rank, String)>, waited_ms: u64, is_proved: bool },
    /// All members are inside the same collective.
    InsideCollective { members: Vec<Rank>, seq: u64, waited_ms: u64, severity: Severity },
    /// TCP traffic between hosts is not acknowledged.
    Network(NetworkFault),
    /// A network interface of the host is down.
    LinkDown { node: NodeRank, fault: NetworkFault },
    /// TCP traffic is retransmitted while ranks wait: a late rank there is not the culprit.
    LossyNetwork { place: String, waiters: Vec<Rank>, group: String, seq: u64, waited_ms: u64 },
    /// A GPU is lost or reports an error.
    Gpu { rank: Rank, reason: Reason },
    /// Ranks update their weights without any collective.
    NoCollectives { ranks: Vec<Rank>, updates: u64, iterations: u64 },
    /// The optimizer of a rank makes no steps any more, those of all others do.
    OptimizerIdle { rank: Rank, own: u64, theirs: u64, collectives: u64 },
    /// Ranks called `init_process_group` with arguments that exclude each other or the plan.
    Arguments(ArgumentMismatch),
    /// Variables of launchers contradict the plan on these ranks.
    RankVariables { ranks: Vec<Rank>, names: Vec<String> },
    /// All ranks step optimizers, and none has a process group with others.
    SeparatePrograms { ranks: Vec<Rank> },
    /// All ranks reached the rendezvous, and the group does not form.
    RendezvousBlocked { waited_ms: u64 },
    /// A host sends no messages.
    SilentHost(SilentHost),
    /// The whole run is stalled.
    Stall { rank: Option<Rank>, severity: Severity, still_ms: u64 },
    /// One rank slows the run.
    Straggler(Straggler),
    /// The run is slower than it was.
    SlowRun(SlowRun),
    /// The run waits for its input most of the time.
    InputBound(InputBound),
    /// All ranks of a host may use only this core, and the host has more.
    SharedCore { node: NodeRank, core: u32, count: usize },
}

impl Finding {
    /// It explains no wait: the run keeps running, though not as intended.
    pub fn is_advice(&self) -> bool {
        matches!(
            self,
            Finding::RankVariables { .. }
                | Finding::SeparatePrograms { .. }
                | Finding::OptimizerIdle { .. }
                | Finding::SharedCore { .. }
                | Finding::SlowRun(_)
                | Finding::InputBound(_)
        )
    }

    /// The host that it is about, if it is about a host and not about a rank.
    pub fn node(&self) -> Option<NodeRank> {
        match self {
            Finding::LinkDown { node, .. } => Some(*node),
            Finding::SilentHost(silent) => Some(silent.node),
            Finding::SharedCore { node, .. } => Some(*node),
            Finding::Halted { .. }
            | Finding::LateRank { .. }
            | Finding::Mismatch { .. }
            | Finding::OrderDeadlock { .. }
            | Finding::InsideCollective { .. }
            | Finding::Network(_)
            | Finding::LossyNetwork { .. }
            | Finding::Gpu { .. }
            | Finding::NoCollectives { .. }
            | Finding::OptimizerIdle { .. }
            | Finding::Arguments(_)
            | Finding::RankVariables { .. }
            | Finding::SeparatePrograms { .. }
            | Finding::RendezvousBlocked { .. }
            | Finding::Stall { .. }
            | Finding::SlowRun(_)
            | Finding::InputBound(_)
            | Finding::Straggler(_) => None,
        }
    }
}

/// A late rank and the ranks that wait for it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct LateRank {
    pub rank: Rank,
    /// Other ranks that are late.
    pub also: Vec<Rank>,
    pub waiters: Vec<Rank>,
    /// The process group; empty before the first collective.
    pub group: String,
    /// Number of the collective in that group.
    pub seq: u64,
    pub waited_ms: u64,
    /// `rank` waits, and is early.
    pub ahead: bool,
}

/// A host that sends no messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SilentHost {
    pub node: NodeRank,
    pub assessment: Assessment,
    pub silence_ms: u64,
    pub cause: SilenceCause,
    /// Its cores were oversubscribed at its last message.
    pub starved: bool,
    /// Other ranks complete collectives with its ranks.
    pub ranks_alive: bool,
}

/// Why a host is silent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SilenceCause {
    Unreachable,
    LinkDown(LinkLoss),
    AgentSilent,
}

/// How a process failed.
pub(crate) struct AbnormalExit<'a> {
    pub exit: &'a Exit,
    /// Its own error message.
    pub message: &'a ExitMessage,
    /// The end of its log, oldest first.
    pub last_lines: &'a [String],
    /// It lost its connection to another rank.
    pub victim: bool,
    pub victim_of: Option<Rank>,
    /// The signal from a console that ended it.
    pub sent: Option<i32>,
}

impl AbnormalExit<'_> {
    /// Returns the reason of the failure.
    #[allow(clippy::wildcard_enum_match_arm, reason = "some ways to exit share a reason")]
    pub fn reason(&self) -> Reason {
        let kind = self.message.kind();
        match self.exit {
            Exit::NotStarted { .. } => Reason::NotStarted,
            Exit::Signal { out_of_memory: true, .. } => Reason::OutOfMemory,
            _ if self.sent.is_some() => Reason::Killed,
            _ if kind == FailureKind::Mismatch => Reason::MismatchAbort,
            _ if kind == FailureKind::OutOfMemory => Reason::OutOfMemory,
            _ if kind == FailureKind::GpuFailed => Reason::GpuFailed,
            Exit::Signal { signal: 4 | 6 | 7 | 8 | 11, .. } => Reason::Crashed,
            Exit::Signal { .. } => Reason::Killed,
            Exit::Code { .. } if kind == FailureKind::DiskFull => Reason::DiskFull,
            Exit::Code { .. } if kind == FailureKind::PortTaken => Reason::PortTaken,
            Exit::Code { .. } if self.victim || self.victim_of.is_some() => Reason::ConnectionLost,
            // How a shell reports the signal that ended its child.
            Exit::Code { code: 132 | 134 | 135 | 136 | 139 } => Reason::Crashed,
            Exit::Code { code: 137 } => Reason::Killed,
            Exit::Code { .. } => Reason::Failed,
        }
    }

    /// Assesses the failure. A secondary failure is a warning.
    pub fn assessment(&self) -> Assessment {
        let usual = Assessment::proved(Proof::Gone, self.reason());
        let secondary = self.victim_of.is_some() || usual.severity == Severity::Amber;
        Assessment { severity: if secondary { Severity::Amber } else { usual.severity }, ..usual }
    }
}

/// Assesses weights of a script that differ across ranks.
pub(crate) fn drift(drift: &WeightDrift) -> Assessment {
    let (severity, certainty) = match drift.grounds {
        DriftConfidence::KeptEqual => (Severity::Red, Certainty::Proved(Proof::Reported)),
        DriftConfidence::NeverEqual => (Severity::Red, Certainty::Likely),
        DriftConfidence::Rounding | DriftConfidence::InPart | DriftConfidence::Seldom => {
            (Severity::Amber, Certainty::Possible)
        }
        DriftConfidence::BeganApart | DriftConfidence::NeverExchanged => (Severity::Amber, Certainty::Likely),
    };
    Assessment { severity, certainty, reason: Reason::WeightsDiffer }
}

/// Assesses running statistics of normalizers that differ: they may be meant to.
pub(crate) fn normalizers() -> Assessment {
    Assessment::usual(Certainty::Possible, Reason::NormalizersDiffer)
}

/// Assesses a learning problem.
pub(crate) fn learning(issue: &LearningIssue) -> Assessment {
    let is_nan = issue.reason == Reason::Nan;
    Assessment::usual(
        if is_nan { Certainty::Proved(Proof::Reported) } else { Certainty::Possible },
        issue.reason,
    )
}
