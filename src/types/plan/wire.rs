//! Plans on the wire: their serialized form, the share of each host, and checks of a plan from a host.
//!
//! Invariants:
//! - PLAN-5: a host receives its own environment and setup, and those of no other host.
//! - PLAN-6: a plan from a host is used only if its indices are consistent, its names are file names, and it
//!   does not exceed [`MAX_HOSTS`] and [`MAX_RANKS`].

use super::{Plan, PlannedBackend, PlannedHost, PlannedRank, PlannedSize};
use crate::experiment::Experiment;
use crate::host::Host;
use crate::ids::{NodeRank, RunId};
use crate::promise::ProgramFacts;
use crate::schema::NAME;
use crate::setup::Setup;
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeSet;

/// Most hosts of a plan from a host.
pub(crate) const MAX_HOSTS: usize = 4096;
/// Most ranks of such a plan.
pub(crate) const MAX_RANKS: usize = 65_536;

/// Serialized form of a plan, with the values that follow from its fields, for other programs.
#[derive(Serialize)]
struct SentPlan<'a> {
    run: &'a RunId,
    experiment: &'a Experiment,
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<&'a ProgramFacts>,
    hosts: Vec<SentHost<'a>>,
    ranks: &'a [PlannedRank],
    backend: PlannedBackend,
    sizes: &'a [PlannedSize],
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    drill: bool,
}

#[derive(Serialize)]
struct SentHost<'a> {
    node_rank: NodeRank,
    host: &'a Host,
    address: &'a str,
    libtorch: Option<&'a str>,
    interface: Option<&'a str>,
    trainer: Option<&'a str>,
}

impl Serialize for Plan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let loopback = self.loopback();
        let mut hosts = Vec::with_capacity(self.hosts.len());
        for planned in &self.hosts {
            hosts.push(SentHost {
                node_rank: planned.node_rank,
                host: &planned.host,
                address: self.address(planned),
                libtorch: planned.libtorch(),
                interface: planned.host.interface.as_deref().or(loopback),
                trainer: planned.trainer.as_deref(),
            });
        }
        let sent = SentPlan {
            run: &self.run,
            experiment: &self.experiment,
            program: self.program.as_ref(),
            hosts,
            ranks: &self.ranks,
            backend: self.backend(),
            sizes: &self.sizes,
            drill: self.drill,
        };
        sent.serialize(serializer)
    }
}

/// Serialized form of a host, without the values that follow from the plan.
#[derive(Deserialize)]
pub(super) struct ReceivedHost {
    node_rank: NodeRank,
    host: Host,
    libtorch: Option<String>,
    trainer: Option<String>,
}

impl From<ReceivedHost> for PlannedHost {
    fn from(received: ReceivedHost) -> PlannedHost {
        let ReceivedHost { node_rank, host, libtorch, trainer } = received;
        let found_libtorch = libtorch.filter(|_| host.libtorch.is_none());
        PlannedHost { node_rank, host, found_libtorch, trainer }
    }
}

impl Plan {
    /// Returns the plan for `node` (PLAN-5).
    pub fn share_of(&self, node: NodeRank) -> Plan {
        self.with_own_of(Some(node))
    }

    /// Returns the part that is equal in the shares of all hosts.
    pub fn common(&self) -> Plan {
        self.with_own_of(None)
    }

    fn with_own_of(&self, node: Option<NodeRank>) -> Plan {
        let mut plan = self.clone();
        for planned in plan.hosts.iter_mut().filter(|planned| Some(planned.node_rank) != node) {
            planned.host.env.clear();
            planned.host.setup = Setup::default();
        }
        plan
    }

    /// Copies the host's environment and setup from its share.
    pub fn take_own(&mut self, node: NodeRank, share: &Plan) {
        let Some(theirs) = share.hosts.get(node.index()) else { return };
        if let Some(own) = self.hosts.get_mut(node.index()) {
            own.host.env.clone_from(&theirs.host.env);
            own.host.setup.clone_from(&theirs.host.setup);
        }
    }

    /// Returns why this plan is invalid (PLAN-6).
    pub fn flaw(&self) -> Option<String> {
        if self.hosts.len() > MAX_HOSTS || self.ranks.len() > MAX_RANKS {
            let (hosts, ranks) = (self.hosts.len(), self.ranks.len());
            return Some(format!(
                "{hosts} hosts and {ranks} ranks exceed the limits of {MAX_HOSTS} and {MAX_RANKS}"
            ));
        }
        let mut names = BTreeSet::new();
        for (index, planned) in self.hosts.iter().enumerate() {
            let name = &planned.host.name;
            if planned.node_rank.index() != index {
                return Some(format!("host {index} has node rank {}", planned.node_rank));
            }
            if let Err((why, _)) = (NAME.test)(name) {
                return Some(format!("the name of host {index} {why}"));
            }
            if !names.insert(name) {
                return Some(format!("duplicate host name {name}"));
            }
        }
        let mut last = NodeRank(0);
        let misplaced = self.ranks.iter().enumerate().find(|(index, planned)| {
            // Ranks are in the order of their hosts (PLAN-1).
            let falls = planned.node_rank < std::mem::replace(&mut last, planned.node_rank);
            falls || planned.rank.index() != *index || planned.node_rank.index() >= self.hosts.len()
        });
        misplaced.map(|(index, _)| format!("rank {index} is out of order"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::resolve::tests::{draft, host};
    use super::*;
    use crate::ids::Rank;

    fn plan() -> Plan {
        let mut hosts = vec![host("a"), host("b")];
        for host in &mut hosts {
            host.env.insert("TOKEN".into(), format!("of {}", host.name));
            host.setup.prelude = Some(format!("login {}", host.name));
        }
        draft(hosts, 12).resolve(&[]).unwrap()
    }

    #[test]
    fn plan_5_share_has_setup_of_its_host_only() {
        let plan = plan();
        let shares = [plan.share_of(NodeRank(0)), plan.share_of(NodeRank(1))];
        assert_eq!(shares[0].hosts[0], plan.hosts[0]);
        assert!(shares[0].hosts[1].host.env.is_empty() && shares[0].hosts[1].host.setup.is_empty());
        assert_eq!(shares[0].common(), shares[1].common());
        let mut whole = shares[0].clone();
        whole.take_own(NodeRank(1), &shares[1]);
        assert_eq!(whole, plan);
    }

    #[test]
    fn plan_6_flaw_is_reported() {
        assert_eq!(plan().flaw(), None);
        type Flaw = (fn(&mut Plan), &'static str);
        let flaws: [Flaw; 8] = [
            (|plan| plan.hosts[1].node_rank = NodeRank(7), "host 1 has node rank 7"),
            (|plan| plan.hosts[0].host.name = "../x".into(), "the name of host 0"),
            (|plan| plan.hosts[1].host.name = "a".into(), "duplicate host name a"),
            (|plan| plan.ranks[0].node_rank = NodeRank(u32::MAX), "rank 0 is out of order"),
            (|plan| plan.ranks[0].rank = Rank(9), "rank 0 is out of order"),
            (|plan| plan.ranks.swap(0, 1), "rank 0 is out of order"),
            (
                |plan| (plan.ranks[0].node_rank, plan.ranks[1].node_rank) = (NodeRank(1), NodeRank(0)),
                "rank 1 is out of order",
            ),
            (|plan| plan.ranks = vec![plan.ranks[0].clone(); MAX_RANKS + 1], "65537 ranks"),
        ];
        for (break_it, expected) in flaws {
            let mut plan = plan();
            break_it(&mut plan);
            let flaw = plan.flaw().unwrap_or_default();
            assert!(flaw.contains(expected), "{flaw} / {expected}");
        }
    }
}
