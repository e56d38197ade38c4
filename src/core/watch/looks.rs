//! Close looks at suspicious ranks: which ranks to ask about, how often, and what came back. Pure.
//!
//! A look costs the agent up to two seconds of reading, never the rank anything. Invariants:
//! - LOOK-1: a rank is asked about at most every [`EVERY_MS`] while it stands still, with growing gaps, and
//!   at most [`MOST`] ranks at a time. The gaps begin anew when what was seen is over.
//! - LOOK-2: what a look showed counts only while the rank has not moved since.
//! - LOOK-3: a look that catches a rank between two waits does not tell what it waits for. What an earlier
//!   one told of that counts on; of its connections, the latest look tells.

use super::cause::user_function;
use super::rank_view::EarlierStorage;
use rankdeck_proto::inspection::{Inspection, Socket};
use rankdeck_types::ids::{NodeRank, Rank};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Least time between two looks at a rank, ms; doubles with each.
const EVERY_MS: u64 = 3_000;
const DOUBLINGS: u32 = 6;
/// Most ranks looked at in one incident.
pub(super) const MOST: usize = 8;

/// What is known about looks at one rank.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct LookHistory {
    at: Option<u64>,
    times: u32,
    answer: Option<Inspection>,
    /// The latest one that saw it wait, where that answer did not.
    waiting: Option<Inspection>,
    /// The function in which its own code was at the look before.
    function_before: Option<String>,
    storage_before: EarlierStorage,
    /// Connections at the first look since the rank stands still, once there was another.
    before: Vec<Socket>,
}

/// All looks of a generation.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Looks {
    ranks: BTreeMap<Rank, LookHistory>,
    request: u64,
}

/// A request to an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LookRequest {
    /// The host whose agent is asked.
    pub node: NodeRank,
    /// Number of the request.
    pub request: u64,
    /// The ranks to look at.
    pub ranks: Vec<Rank>,
}

impl Looks {
    /// Which ranks to ask about now; `wanted` holds the suspects in order of weight.
    pub fn ask(&mut self, wanted: &[(NodeRank, Rank)], awake_ms: u64) -> Vec<LookRequest> {
        // A rank that is not a suspect any more is forgotten: the next incident starts afresh.
        let suspects: BTreeSet<Rank> = wanted.iter().take(MOST).map(|(_, rank)| *rank).collect();
        self.ranks.retain(|rank, _| suspects.contains(rank));
        let mut by_node: BTreeMap<NodeRank, Vec<Rank>> = BTreeMap::new();
        for (node, rank) in wanted.iter().take(MOST) {
            let asked = self.ranks.entry(*rank).or_default();
            let gap = EVERY_MS << asked.times.saturating_sub(1).min(DOUBLINGS);
            if asked.at.is_none_or(|at| awake_ms.saturating_sub(at) >= gap) {
                asked.at = Some(awake_ms);
                asked.times += 1;
                by_node.entry(*node).or_default().push(*rank);
            }
        }
        by_node
            .into_iter()
            .map(|(node, ranks)| {
                self.request += 1;
                LookRequest { node, request: self.request, ranks }
            })
            .collect()
    }

    /// An answer came.
    pub fn answered(&mut self, inspection: Inspection) {
        if let Some(asked) = self.ranks.get_mut(&inspection.rank) {
            asked.function_before = asked.answer.as_ref().and_then(user_function);
            let before = asked.answer.clone().filter(|look| !look.os.is_awake());
            let awake =
                inspection.os.is_awake() || asked.answer.as_ref().is_some_and(|look| look.os.is_awake());
            asked.storage_before = match before.as_ref().and_then(|look| look.storage_bytes) {
                _ if awake => EarlierStorage::Answered,
                Some(bytes) => EarlierStorage::Moved(bytes),
                None => EarlierStorage::Unknown,
            };
            let seen_waiting = before.or(asked.waiting.take());
            asked.waiting = seen_waiting.filter(|_| inspection.os.is_awake());
            // On a busy host a look may end before it has read a stack. An earlier stack still holds: the
            // rank has not moved since.
            let (known, before) =
                asked.answer.take().map(|answer| (answer.threads, answer.sockets)).unwrap_or_default();
            if asked.before.is_empty() {
                asked.before = before;
            }
            let threads = if inspection.threads.is_empty() { known } else { inspection.threads };
            asked.answer = Some(Inspection { threads, ..inspection });
        }
    }

    /// What the latest look showed is over: the next one need not wait for long.
    pub fn again(&mut self, rank: Rank) {
        if let Some(asked) = self.ranks.get_mut(&rank) {
            asked.times = asked.times.min(1);
        }
    }

    /// A rank moved: what was seen is over.
    pub fn moved(&mut self, rank: Rank) {
        if let Some(asked) = self.ranks.get_mut(&rank) {
            (asked.answer, asked.waiting) = (None, None);
            (asked.function_before, asked.storage_before) = (None, EarlierStorage::Unknown);
            asked.before.clear();
        }
    }

    /// The function in which the rank's own code was at the look before the latest, since it stands still.
    pub fn function_before(&self, rank: Rank) -> Option<&str> {
        self.ranks.get(&rank)?.function_before.as_deref()
    }

    /// What the look before the latest showed of the storage that the rank waits for.
    pub fn storage_before(&self, rank: Rank) -> EarlierStorage {
        self.ranks.get(&rank).map(|asked| asked.storage_before).unwrap_or_default()
    }

    /// The rank's connections at the first look since it stands still; empty while there was no other.
    pub fn before(&self, rank: Rank) -> &[Socket] {
        self.ranks.get(&rank).map(|asked| asked.before.as_slice()).unwrap_or_default()
    }

    /// What the latest look at a rank showed.
    pub fn latest(&self, rank: Rank) -> Option<&Inspection> {
        self.ranks.get(&rank)?.answer.as_ref()
    }

    /// The look that saw it wait latest, where the latest look did not.
    pub fn waiting(&self, rank: Rank) -> Option<&Inspection> {
        self.ranks.get(&rank)?.waiting.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::inspection::ThreadStack;

    #[test]
    fn look_1_looks_become_rarer_and_are_bounded() {
        let mut looks = Looks::default();
        let wanted: Vec<(NodeRank, Rank)> = (0..20).map(|rank| (NodeRank(rank / 4), Rank(rank))).collect();
        let first = looks.ask(&wanted, 0);
        assert_eq!(first.iter().map(|request| request.ranks.len()).sum::<usize>(), MOST);
        assert_eq!(first.len(), 2);
        let mut times = 0;
        for ms in (250..=60_000).step_by(250) {
            times += looks.ask(&wanted[..1], ms).len();
        }
        assert_eq!(times, 4, "after 3, 9, 21 and 45 seconds");
    }

    #[test]
    fn look_2_an_answer_is_forgotten_when_its_rank_moves_or_is_no_suspect() {
        let mut looks = Looks::default();
        let wanted = [(NodeRank(0), Rank(1))];
        let answer = |rank| Inspection { rank: Rank(rank), ..Inspection::default() };
        looks.ask(&wanted, 0);
        looks.answered(answer(1));
        looks.answered(answer(2));
        assert!(looks.latest(Rank(1)).is_some() && looks.latest(Rank(2)).is_none(), "nobody asked about 2");
        let stack = ThreadStack { tid: 7, ..ThreadStack::default() };
        looks.answered(Inspection { threads: vec![stack], ..answer(1) });
        looks.answered(answer(1));
        assert_eq!(
            looks.latest(Rank(1)).map(|look| look.threads.len()),
            Some(1),
            "a poorer look takes no stack away"
        );
        looks.moved(Rank(1));
        assert!(looks.latest(Rank(1)).is_none());
        looks.answered(answer(1));
        looks.ask(&[], 100);
        assert!(looks.latest(Rank(1)).is_none());
    }
}
