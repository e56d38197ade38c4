//! Plans that travel: the share that one host gets, and what a plan that a host tells must be like.
//!
//! Invariants:
//! - PLAN-5: a host gets its own environment and set-up (prelude and the like), and those of no other host.
//! - PLAN-6: a plan that a host tells is used only if its indices fit, its names are file names, and it is no
//!   larger than [`MAX_HOSTS`] and [`MAX_RANKS`] allow.

use super::Plan;
use crate::ids::NodeRank;
use crate::schema::text_rules::NAME;
use crate::setup::Setup;
use std::collections::BTreeSet;

/// Most hosts of a plan that a host tells.
pub const MAX_HOSTS: usize = 4096;
/// Most ranks of such a plan.
pub const MAX_RANKS: usize = 65_536;

impl Plan {
    /// The plan as `node` gets it (PLAN-5).
    pub fn share_of(&self, node: NodeRank) -> Plan {
        self.with_own_of(Some(node))
    }

    /// What is equal in the shares of all hosts.
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

    /// Takes from another host's share what only that share holds.
    pub fn take_own(&mut self, node: NodeRank, share: &Plan) {
        let Some(theirs) = share.hosts.get(node.index()) else { return };
        if let Some(own) = self.hosts.get_mut(node.index()) {
            own.host.env.clone_from(&theirs.host.env);
            own.host.setup.clone_from(&theirs.host.setup);
        }
    }

    /// Why this cannot be a plan (PLAN-6).
    pub fn flaw(&self) -> Option<String> {
        if self.hosts.len() > MAX_HOSTS || self.ranks.len() > MAX_RANKS {
            let (hosts, ranks) = (self.hosts.len(), self.ranks.len());
            return Some(format!(
                "{hosts} hosts and {ranks} ranks, and {MAX_HOSTS} and {MAX_RANKS} are the most"
            ));
        }
        let mut names = BTreeSet::new();
        for (index, planned) in self.hosts.iter().enumerate() {
            let name = &planned.host.name;
            if planned.node_rank.index() != index {
                return Some(format!("host {index} says that it is node {}", planned.node_rank));
            }
            if let Err((why, _)) = (NAME.test)(name) {
                return Some(format!("the name of host {index} {why}"));
            }
            if !names.insert(name) {
                return Some(format!("two hosts are called {name}"));
            }
        }
        let mut last = NodeRank(0);
        let misplaced = self.ranks.iter().enumerate().find(|(index, planned)| {
            // Ranks are in the order of their hosts (PLAN-1).
            let falls = planned.node_rank < std::mem::replace(&mut last, planned.node_rank);
            falls || planned.rank.index() != *index || planned.node_rank.index() >= self.hosts.len()
        });
        misplaced.map(|(index, _)| format!("rank {index} has no place"))
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
    fn plan_5_a_share_holds_the_environment_and_prelude_of_its_host_only() {
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
    fn plan_6_a_plan_with_a_flaw_is_named() {
        assert_eq!(plan().flaw(), None);
        type Flaw = (fn(&mut Plan), &'static str);
        let flaws: [Flaw; 8] = [
            (|plan| plan.hosts[1].node_rank = NodeRank(7), "host 1 says that it is node 7"),
            (|plan| plan.hosts[0].host.name = "../x".into(), "the name of host 0"),
            (|plan| plan.hosts[1].host.name = "a".into(), "two hosts are called a"),
            (|plan| plan.ranks[0].node_rank = NodeRank(u32::MAX), "rank 0 has no place"),
            (|plan| plan.ranks[0].rank = Rank(9), "rank 0 has no place"),
            (|plan| plan.ranks.swap(0, 1), "rank 0 has no place"),
            (
                |plan| (plan.ranks[0].node_rank, plan.ranks[1].node_rank) = (NodeRank(1), NodeRank(0)),
                "rank 1 has no place",
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
