//! Silent hosts. Pure.

use super::draft::{Draft, Judgement};
use super::evidence::Snapshot;
use super::gauges;
use super::rank_view::HostView;
use super::shortage::STARVED;
use crate::host::HostStage;
use crate::limits::Limits;
use crate::model::HostModel;
use crate::reason::{Reason, Severity};
use crate::report::{Confidence, VerdictReport};
use rankdeck_types::ids::NodeRank;
use rankdeck_types::link_state::LinkState;
use rankdeck_types::words::{self, clip};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Milliseconds between two samples from which an agent came late (they come once a second at least), and for
/// how long that is remembered.
const LATE_MS: u64 = 1_750;
const LATE_HOLD_MS: u64 = 30_000;

/// Most characters of why a link was lost.
const REASON_CHARS: usize = 200;

/// Progress of other ranks this long after a host's last message shows that its ranks are alive.
pub(super) const ALIVE_MS: u64 = 2_000;

/// When each host's agent looked: the clock of its latest sample, and of the latest that came late.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Beats {
    hosts: BTreeMap<NodeRank, (u64, Option<u64>)>,
    /// Hosts whose agent alone is silent, and when it was heard of last.
    silent: BTreeMap<NodeRank, u64>,
    /// Why the latest link to a host was lost, while no other one stands.
    lost: BTreeMap<NodeRank, String>,
}

impl Beats {
    /// A sample was made at `mono_ms` of its host's clock.
    pub fn heard(&mut self, node: NodeRank, mono_ms: u64) {
        let (before, late) = self.hosts.entry(node).or_insert((mono_ms, None));
        if mono_ms.saturating_sub(*before) >= LATE_MS {
            *late = Some(mono_ms);
        }
        *before = mono_ms;
    }

    /// Looks at which connections stand while their agents say nothing. While one that was given up for its
    /// silence is made anew, nothing shows yet that it is broken.
    pub fn look(&mut self, host: &HostModel) {
        if host.machine.is_connected() {
            self.lost.remove(&host.node_rank);
        } else if let LinkState::Lost { reason, .. } = &host.link {
            let own = format!("{}: ", host.name);
            let reason = clip(reason.strip_prefix(&own).unwrap_or(reason), REASON_CHARS);
            self.lost.insert(host.node_rank, reason);
        }
        if host.machine.is_connected() || host.link.fell_silent() {
            self.silent.insert(host.node_rank, host.machine.heard);
        } else if matches!(host.link, LinkState::Lost { .. } | LinkState::Failed(_) | LinkState::Closed) {
            self.silent.remove(&host.node_rank);
        }
    }

    /// Why its link does not stand.
    fn why_lost(&self, host: &HostModel) -> String {
        match self.lost.get(&host.node_rank) {
            _ if self.is_unbroken(host) => "nothing came over its link; another one is being made".into(),
            Some(reason) => format!("{reason}; another link is being made"),
            None => "the link is broken and is being mended".into(),
        }
    }

    /// Nothing shows that the way to it broke.
    fn is_unbroken(&self, host: &HostModel) -> bool {
        self.silent.get(&host.node_rank) == Some(&host.machine.heard)
    }

    /// Its cores had more to do than they could: silence may be no more than that where its agent felt it, or
    /// where the host still answers.
    pub fn is_starved(&self, host: &HostModel) -> bool {
        let busy = host.sample.as_ref().is_some_and(|sample| HostView::of(sample).is_busy());
        let answers = self.is_unbroken(host);
        let late = self.hosts.get(&host.node_rank).is_some_and(|(latest, late)| {
            late.is_some_and(|late| latest.saturating_sub(late) < LATE_HOLD_MS)
        });
        busy && (late || answers)
    }
}

/// Is this host silent? `others`: ranks elsewhere make progress with their collectives, so its ranks must be
/// alive.
pub(super) fn lost(
    snapshot: &Snapshot<'_>,
    host: &HostModel,
    awake_ms: u64,
    limits: &Limits,
    others: bool,
    beats: &Beats,
) -> Option<VerdictReport> {
    if host.stopped.is_some() {
        return None;
    }
    let silence = awake_ms.saturating_sub(host.machine.heard);
    let (reason, why) = match host.machine.stage {
        HostStage::Linking | HostStage::Closed => return None,
        HostStage::Failed => (Reason::HostSilent, "it cannot be reached".to_owned()),
        HostStage::Away { .. } if silence >= limits.lost => (Reason::HostSilent, beats.why_lost(host)),
        HostStage::Attaching { .. } | HostStage::Greeted { .. } | HostStage::Live { .. }
            if silence >= limits.lost =>
        {
            (Reason::AgentSilent, "the link stands but its agent says nothing".to_owned())
        }
        HostStage::Attaching { .. }
        | HostStage::Greeted { .. }
        | HostStage::Live { .. }
        | HostStage::Away { .. } => return None,
    };
    let reason = if others && reason == Reason::HostSilent { Reason::LinkLost } else { reason };
    let starved = beats.is_starved(host);
    let excused = starved && silence < limits.lost.saturating_mul(STARVED);
    let mut facts = vec![format!("last message {} ago", words::duration_ms(silence))];
    if starved {
        facts.push("its cores had more to do than they could when it spoke last: it may get none".into());
    }
    facts.extend(gauges::link(&host.link));
    facts.push(if others {
        "ranks elsewhere go on, so its ranks are alive: only this console has lost it".into()
    } else {
        "its ranks may well be running: other verdicts about them wait until it answers".into()
    });
    let judged = Judgement::usual(Confidence::Certain, reason);
    let severity = if excused { Severity::Amber } else { judged.severity };
    let words = vec![("host", host.name.clone()), ("silence", words::duration_ms(silence)), ("why", why)];
    let draft = Draft {
        host: Some(host.name.clone()),
        facts,
        latency_ms: silence,
        ..Draft::new(Judgement { severity, ..judged }, words)
    };
    Some(draft.verdict(snapshot.model, snapshot.views))
}
