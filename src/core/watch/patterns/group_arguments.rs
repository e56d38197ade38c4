//! Compares the arguments with which ranks called `init_process_group`: the hook reads them where they are
//! passed, before PyTorch uses them.
//!
//! Ranks may form groups of their own, each with an address or a port, as long as there are enough ranks for
//! all of them. A call is compared with the calls of the same number on other ranks: a program may form one
//! group after another.

use crate::model::Model;
use crate::watch::history::run_view::{RankView, RunView};
use rankdeck_proto::message::{GroupArguments, Phase};
use rankdeck_types::ids::{NodeRank, Rank};
use std::collections::BTreeMap;

/// Ranks whose arguments exclude each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ArgumentMismatch {
    /// The rank that deviates; `None` if unknown.
    pub rank: Option<Rank>,
    /// All ranks that deviate, or one side of a tie.
    pub odd: Vec<Rank>,
    /// A rank on the other side.
    pub other: Rank,
    /// What the deviating one passed, where it differs.
    pub mine: String,
    /// What the other passed there.
    pub theirs: String,
    /// Both have the same rank.
    pub same_rank: bool,
    /// Only the addresses differ: two names may belong to one machine.
    pub only_address: bool,
    /// Ranks that wait for the group.
    pub waiters: Vec<Rank>,
    /// How long the last of them has waited.
    pub waited_ms: u64,
}

/// A rank that has called `init_process_group`.
struct Call<'a> {
    rank: Rank,
    given: &'a GroupArguments,
    size: u32,
    /// The address, equal for names that stand for rank 0's host.
    address: String,
}

/// Which group a call is for.
type Key<'a> = (&'a str, Option<u16>, u32);

impl Call<'_> {
    fn key(&self) -> Key<'_> {
        (&self.address, self.given.port, self.size)
    }

    /// What of it differs from `other`.
    fn words(&self, other: &Call<'_>) -> String {
        let address =
            || Some(format!("address {}", self.given.address)).filter(|_| self.address != other.address);
        let port = || {
            let port = self.given.port.map_or_else(|| "no port".to_owned(), |port| format!("port {port}"));
            Some(port).filter(|_| self.given.port != other.given.port)
        };
        let size = || Some(format!("world size {}", self.size)).filter(|_| self.size != other.size);
        [address(), port(), size()].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// Finds ranks whose arguments exclude each other while at least one rank waits for the group.
pub(crate) fn find_mismatch(run: &RunView<'_>) -> Option<ArgumentMismatch> {
    let waits = |view: &&RankView<'_>| {
        view.fresh && view.alive() && view.page().is_some_and(|page| page.phase == Phase::Rendezvous)
    };
    let number = |view: &RankView<'_>| Some(view.sample.page.as_ref()?.group_arguments.as_ref()?.calls);
    let mut numbers: Vec<u32> = run.views.iter().filter(waits).filter_map(number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.into_iter().find_map(|number| {
        let mut calls: Vec<Call<'_>> =
            run.views.iter().filter_map(|view| call(run.model, view, number)).collect();
        if calls.iter().any(|call| call.given.address.is_empty()) {
            // A store of the program's own: only the sizes can be compared.
            calls.iter_mut().for_each(|call| call.address.clear());
        }
        let found = different_groups(run.model, &calls).or_else(|| same_rank(run.model, &calls))?;
        let waiting: Vec<&RankView<'_>> = run.views.iter().filter(waits).collect();
        let age = |view: &&RankView<'_>| view.page().map_or(0, |page| page.phase_age_ms);
        Some(ArgumentMismatch {
            waiters: waiting.iter().map(|view| view.rank).collect(),
            waited_ms: waiting.iter().map(age).min().unwrap_or(0),
            ..found
        })
    })
}

fn call<'a>(model: &Model, view: &'a RankView<'_>, number: u32) -> Option<Call<'a>> {
    let given = view.sample.page.as_ref()?.group_arguments.as_ref().filter(|given| given.calls == number)?;
    let address = known_address(model, view.node, &given.address);
    Some(Call { rank: view.rank, given, size: given.world_size?, address })
}

/// Returns an address, empty if it stands for the host of rank 0.
fn known_address(model: &Model, node: NodeRank, address: &str) -> String {
    let is_loopback = |address: &str| {
        address == "::1" || address.starts_with("127.") || address.split('.').next() == Some("localhost")
    };
    let first = model.ranks.first().map_or(NodeRank(0), |rank| rank.node);
    let master = model.run.master.rsplit_once(':').map_or("", |(address, _)| address);
    let host = model.hosts.get(first.index()).map(|host| host.name.as_str());
    let planned = model.plan.as_ref().and_then(|plan| plan.hosts.get(first.index()));
    let planned = planned.map(|planned| planned.host.address.as_str());
    let is_first = address == master
        || [host, planned].contains(&Some(address))
        || is_loopback(address) && (node == first || is_loopback(master));
    if is_first { String::new() } else { address.to_lowercase() }
}

/// Finds ranks that call for different groups, for which there are too few ranks.
fn different_groups(model: &Model, calls: &[Call<'_>]) -> Option<ArgumentMismatch> {
    let mut groups: BTreeMap<Key<'_>, Vec<&Call<'_>>> = BTreeMap::new();
    for call in calls {
        groups.entry(call.key()).or_default().push(call);
    }
    let total = model.ranks.len();
    let sizes = || groups.keys().map(|(_, _, size)| *size as usize);
    // A group of more ranks than there are has processes that the ranks start themselves.
    if groups.len() < 2 || sizes().sum::<usize>() <= total || sizes().all(|size| size > total) {
        return None;
    }
    let planned = model.run.master.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    let as_planned = |key: &Key<'_>| key.0.is_empty() && key.1 == planned && key.2 as usize == total;
    // Without a majority, the arguments that rankdeck has set are right.
    let right = groups
        .iter()
        .find(|(_, members)| members.len() * 2 > calls.len())
        .or_else(|| groups.iter().find(|(key, _)| as_planned(key)));
    let mut odd: Vec<&Call<'_>> = match right {
        Some((right, _)) => {
            groups.iter().filter(|(key, _)| *key != right).flat_map(|(_, members)| members).copied().collect()
        }
        None => groups.values().next()?.clone(),
    };
    odd.sort_by_key(|call| call.rank);
    let side = *odd.first()?;
    let other = match right {
        Some((_, members)) => *members.first()?,
        None => *groups.values().nth(1)?.first()?,
    };
    Some(ArgumentMismatch {
        rank: right.map(|_| side.rank),
        odd: odd.iter().map(|call| call.rank).collect(),
        other: other.rank,
        mine: side.words(other),
        theirs: other.words(side),
        same_rank: false,
        only_address: side.given.port == other.given.port && side.size == other.size,
        waiters: Vec::new(),
        waited_ms: 0,
    })
}

/// Finds two ranks that call for the same group as the same rank.
fn same_rank(model: &Model, calls: &[Call<'_>]) -> Option<ArgumentMismatch> {
    let mut taken: BTreeMap<(Key<'_>, u32), &Call<'_>> = BTreeMap::new();
    for call in calls.iter().filter(|call| call.size as usize <= model.ranks.len()) {
        let Some(rank) = call.given.rank else { continue };
        if let Some(first) = taken.insert((call.key(), rank), call) {
            // The one whose number rankdeck has set otherwise deviates.
            let (odd, other) = if first.rank.0 == rank { (call, first) } else { (first, call) };
            return Some(ArgumentMismatch {
                rank: Some(odd.rank),
                odd: vec![odd.rank],
                other: other.rank,
                mine: format!("rank {rank}"),
                theirs: format!("rank {rank}"),
                same_rank: true,
                only_address: false,
                waiters: Vec::new(),
                waited_ms: 0,
            });
        }
    }
    None
}
