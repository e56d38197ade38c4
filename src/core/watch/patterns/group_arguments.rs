//! Compares the arguments of `init_process_group` on each rank with the plan and with the other ranks: the hook reads
//! the arguments where they are passed, before PyTorch uses them.
//!
//! Ranks may form groups of their own, each with an address or a port, as long as there are enough ranks for
//! all of them. A call is compared with the calls of the same number on other ranks: a program may form one
//! group after another. What differs from the plan alone may be meant, and is a warning while the group does
//! not form.

use crate::model::{Model, RankModel};
use crate::watch::history::run_view::{RankView, RunView};
use rankdeck_proto::message::{GroupArguments, Phase};
use rankdeck_types::ids::{NodeRank, Rank};
use rankdeck_types::words;
use std::collections::BTreeMap;

/// Milliseconds for which variables that contradict the plan are reported after the group has formed.
const NAMED_MS: u64 = 60_000;
/// Ranks that have each stepped an optimizer for this long had time to form a group, ms.
pub(crate) const SEPARATE_MS: u64 = 60_000;

/// What arguments of `init_process_group` exclude.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArgumentFault {
    /// Ranks call for different groups, and there are too few ranks for all of them.
    Groups,
    /// Only the addresses differ: two names may belong to one machine.
    Addresses,
    /// Two ranks call themselves the same rank.
    SameRank,
    /// A rank's number or world size is not the planned one, and other ranks have not called yet.
    Plan,
    /// The group has more members than the run has processes.
    TooLarge,
}

/// Ranks whose arguments exclude each other, or the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ArgumentMismatch {
    /// The rank that deviates; `None` if unknown.
    pub rank: Option<Rank>,
    /// All ranks that deviate, or one side of a tie.
    pub odd: Vec<Rank>,
    /// A rank on the other side; the deviating one if only the plan is.
    pub other: Rank,
    pub fault: ArgumentFault,
    /// What the deviating one passed, where it differs: `with port 7`, `as rank 0`.
    pub mine: String,
    /// What the other passed there, or what the plan has.
    pub theirs: String,
    /// The variable that its rank may come from.
    pub variable: Option<String>,
    /// Ranks that wait for the group.
    pub waiters: Vec<Rank>,
    /// How long the last of them has waited.
    pub waited_ms: u64,
}

/// A rank that has called `init_process_group`.
struct InitCall<'a> {
    rank: Rank,
    given: &'a GroupArguments,
    size: u32,
    /// The address, equal for names that stand for rank 0's host.
    address: String,
    /// Empty if it is not compared.
    backend: &'a str,
}

/// Which group a call is for.
type GroupKey<'a> = (&'a str, Option<u16>, u32, &'a str);

impl InitCall<'_> {
    fn key(&self) -> GroupKey<'_> {
        (&self.address, self.given.port, self.size, self.backend)
    }

    /// What of it differs from `other`.
    fn words(&self, other: &InitCall<'_>) -> String {
        let address =
            || Some(format!("address {}", self.given.address)).filter(|_| self.address != other.address);
        let port = || {
            let port = self.given.port.map_or_else(|| "no port".to_owned(), |port| format!("port {port}"));
            Some(port).filter(|_| self.given.port != other.given.port)
        };
        let size = || Some(format!("world size {}", self.size)).filter(|_| self.size != other.size);
        let backend = || Some(format!("backend {}", self.backend)).filter(|_| self.backend != other.backend);
        let parts = [address(), port(), size(), backend()];
        format!("with {}", parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }

    /// The variable that its rank may come from: a contradicting one of a launcher, or else the rank on its host.
    fn variable(&self, model: &Model) -> Option<String> {
        let numbers = |name: &&String| name.ends_with("RANK") || name.ends_with("PROCID");
        let launcher = self.given.contradicting.iter().find(numbers).cloned();
        let local = model.ranks.get(self.rank.index()).map(|rank| rank.local_rank);
        launcher.or_else(|| (self.given.rank == local).then(|| "LOCAL_RANK".to_owned()))
    }
}

/// `as rank 0 (LOCAL_RANK?)`.
fn as_rank(rank: u32, variable: Option<&String>) -> String {
    let origin = variable.map(|name| format!(" ({name}?)")).unwrap_or_default();
    format!("as rank {rank}{origin}")
}

/// Finds ranks whose arguments exclude each other while at least one rank waits for the group.
pub(crate) fn find_mismatch(run: &RunView<'_>) -> Option<ArgumentMismatch> {
    let number = |view: &RankView<'_>| Some(view.page()?.group_arguments.as_ref()?.calls);
    let mut numbers: Vec<u32> = run.views.iter().filter(|view| waits(view)).filter_map(number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.into_iter().find_map(|number| {
        let mut calls: Vec<InitCall<'_>> =
            run.views.iter().filter_map(|view| call(run.model, view, number)).collect();
        if calls.iter().any(|call| call.given.address.is_empty()) {
            // A store of the program's own: only the sizes can be compared.
            calls.iter_mut().for_each(|call| call.address.clear());
        }
        if calls.iter().any(|call| call.backend.is_empty()) {
            calls.iter_mut().for_each(|call| call.backend = "");
        }
        let found = different_groups(run.model, &calls).or_else(|| same_rank(run.model, &calls));
        let found =
            found.or_else(|| too_large(run, &calls)).or_else(|| against_the_plan(run.model, &calls))?;
        let waiting: Vec<&RankView<'_>> = run.views.iter().filter(|view| waits(view)).collect();
        let age = |view: &&RankView<'_>| view.page().map_or(0, |page| page.phase_age_ms);
        Some(ArgumentMismatch {
            waiters: waiting.iter().map(|view| view.rank).collect(),
            waited_ms: waiting.iter().map(age).min().unwrap_or(0),
            ..found
        })
    })
}

/// Variables of launchers that contradict those that rankdeck has set, and the live ranks that have them, while
/// their group forms and shortly after.
pub(crate) fn contradicting_variables(run: &RunView<'_>) -> Option<(Vec<Rank>, Vec<String>)> {
    let has = |view: &RankView<'_>| {
        let page = view.page().filter(|page| view.alive() && page.group_arguments.is_some())?;
        let is_new = page.phase == Phase::Rendezvous || page.phase_age_ms < NAMED_MS;
        let names = &page.group_arguments.as_ref()?.contradicting;
        (is_new && !names.is_empty()).then(|| (view.rank, names.clone()))
    };
    let found: Vec<(Rank, Vec<String>)> = run.views.iter().filter_map(has).collect();
    let names = found.first().map(|(_, names)| names.clone())?;
    Some((found.iter().map(|(rank, _)| *rank).collect(), names))
}

/// What contradicts the plan in the arguments of a rank whose group has not formed: `as rank 0 (LOCAL_RANK?)`. Such
/// a rank may end before another one has called.
pub(crate) fn deviation(model: &Model, rank: Rank) -> Option<String> {
    let found = model.ranks.get(rank.index())?;
    let page = found.sample.as_ref()?.page.as_ref().filter(|page| page.phase == Phase::Rendezvous)?;
    let given = page.group_arguments.as_ref()?;
    let call =
        InitCall { rank, given, size: given.world_size?, address: String::new(), backend: &given.backend };
    let number = given.rank.filter(|number| *number != rank.0 && call.size as usize == model.ranks.len())?;
    let site = if given.site.is_empty() { String::new() } else { format!(" at {}", given.site) };
    Some(format!("{}{site}", as_rank(number, call.variable(model).as_ref())))
}

/// All ranks of a run of several, if each has made steps of optimizers, for `least_ms` at least, and none has a
/// process group with others.
pub(crate) fn separate_programs(model: &Model, least_ms: u64) -> Option<Vec<Rank>> {
    let is_alone = |rank: &RankModel| {
        let page = rank.sample.as_ref()?.page.as_ref()?;
        // A rank's group of one does not include other ranks.
        let alone = page.group_arguments.as_ref().is_none_or(|given| {
            given.world_size == Some(1) && page.groups.iter().all(|group| group.size <= 1)
        });
        let stepped_ms = rank.watch_history.stepped_ms()?;
        (page.by_hook && page.updates > 0 && alone && stepped_ms >= least_ms).then_some(rank.rank)
    };
    let found: Option<Vec<Rank>> = model.ranks.iter().map(is_alone).collect();
    found.filter(|ranks| ranks.len() > 1)
}

fn waits(view: &RankView<'_>) -> bool {
    view.fresh && view.alive() && view.page().is_some_and(|page| page.phase == Phase::Rendezvous)
}

fn call<'a>(model: &Model, view: &'a RankView<'_>, number: u32) -> Option<InitCall<'a>> {
    let given = view.sample.page.as_ref()?.group_arguments.as_ref().filter(|given| given.calls == number)?;
    let address = known_address(model, view.node, &given.address);
    Some(InitCall { rank: view.rank, given, size: given.world_size?, address, backend: &given.backend })
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
fn different_groups(model: &Model, calls: &[InitCall<'_>]) -> Option<ArgumentMismatch> {
    let mut groups: BTreeMap<GroupKey<'_>, Vec<&InitCall<'_>>> = BTreeMap::new();
    for call in calls {
        groups.entry(call.key()).or_default().push(call);
    }
    let total = model.ranks.len();
    let sizes = || groups.keys().map(|(_, _, size, _)| *size as usize);
    // A group of more ranks than there are has processes that the ranks start themselves.
    if groups.len() < 2 || sizes().sum::<usize>() <= total || sizes().all(|size| size > total) {
        return None;
    }
    let planned = model.run.master.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    let as_planned = |key: &GroupKey<'_>| key.0.is_empty() && key.1 == planned && key.2 as usize == total;
    // Without a majority, the arguments that rankdeck has set are right.
    let right = groups
        .iter()
        .find(|(_, members)| members.len() * 2 > calls.len())
        .or_else(|| groups.iter().find(|(key, _)| as_planned(key)));
    let mut odd: Vec<&InitCall<'_>> = match right {
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
    let only_address =
        side.given.port == other.given.port && side.size == other.size && side.backend == other.backend;
    Some(ArgumentMismatch {
        rank: right.map(|_| side.rank),
        odd: odd.iter().map(|call| call.rank).collect(),
        other: other.rank,
        fault: if only_address { ArgumentFault::Addresses } else { ArgumentFault::Groups },
        mine: side.words(other),
        theirs: other.words(side),
        variable: None,
        waiters: Vec::new(),
        waited_ms: 0,
    })
}

/// Finds ranks that call for the same group as the same rank.
fn same_rank(model: &Model, calls: &[InitCall<'_>]) -> Option<ArgumentMismatch> {
    let mut taken: BTreeMap<(GroupKey<'_>, u32), &InitCall<'_>> = BTreeMap::new();
    let mut pairs: Vec<(&InitCall<'_>, &InitCall<'_>, u32)> = Vec::new();
    for call in calls.iter().filter(|call| call.size as usize <= model.ranks.len()) {
        let Some(rank) = call.given.rank else { continue };
        if let Some(first) = taken.insert((call.key(), rank), call) {
            // The one whose number rankdeck has set otherwise deviates.
            let (odd, other) = if first.rank.0 == rank { (call, first) } else { (first, call) };
            pairs.push((odd, other, rank));
        }
    }
    let (odd, other, rank) = pairs.first()?;
    let variable = odd.variable(model);
    Some(ArgumentMismatch {
        rank: Some(odd.rank),
        odd: pairs.iter().map(|(odd, ..)| odd.rank).collect(),
        other: other.rank,
        fault: ArgumentFault::SameRank,
        mine: as_rank(*rank, variable.as_ref()),
        theirs: String::new(),
        variable,
        waiters: Vec::new(),
        waited_ms: 0,
    })
}

/// All ranks wait for one group that has more members than they and their children are.
fn too_large(run: &RunView<'_>, calls: &[InitCall<'_>]) -> Option<ArgumentMismatch> {
    let total = run.model.ranks.len();
    let first = calls.first().filter(|_| calls.len() == total && run.views.iter().all(waits))?;
    if calls.iter().any(|call| call.key() != first.key()) {
        return None;
    }
    let processes: usize = run.views.iter().map(|view| 1 + view.sample.children as usize).sum();
    (first.size as usize > processes).then(|| ArgumentMismatch {
        rank: Some(first.rank),
        odd: vec![first.rank],
        other: first.rank,
        fault: ArgumentFault::TooLarge,
        mine: format!("with world size {}", first.size),
        theirs: format!("the run has {}", words::plural(processes, "process")),
        variable: None,
        waiters: Vec::new(),
        waited_ms: 0,
    })
}

/// The first rank whose number or world size is not the planned one, while others have not called.
fn against_the_plan(model: &Model, calls: &[InitCall<'_>]) -> Option<ArgumentMismatch> {
    let total = model.ranks.len();
    if calls.len() >= total {
        return None;
    }
    let differs = |call: &InitCall<'_>| {
        let variable = call.variable(model);
        // A group of more ranks than there are has processes that the ranks start themselves.
        let (mine, theirs) = match (call.given.rank, call.size as usize) {
            (Some(rank), size) if size == total && rank != call.rank.0 => {
                (as_rank(rank, variable.as_ref()), format!("rankdeck started it as rank {}", call.rank))
            }
            (_, size) if size < total => {
                (format!("with world size {size}"), format!("the run has {total} ranks"))
            }
            _ => return None,
        };
        Some(ArgumentMismatch {
            rank: Some(call.rank),
            odd: vec![call.rank],
            other: call.rank,
            fault: ArgumentFault::Plan,
            mine,
            theirs,
            variable,
            waiters: Vec::new(),
            waited_ms: 0,
        })
    };
    calls.iter().find_map(differs)
}
