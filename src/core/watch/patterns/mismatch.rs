//! Finds the first mismatched collective of a group, and the rank that was the first to call a different
//! one.
//!
//! Two sources: the latest collectives of ranks that stand still (exact, with call sites), and the beginnings
//! of iterations of ranks that run on (a call left out with the same shape raises no error anywhere, but from
//! then on an iteration starts at another number). A strict majority is right. Without one, a rank that left
//! its own earlier pattern is named. A tie has no culprit.
//!
//! DISAGREE-1: an iteration proves something only where the program itself counts it ([`CountedIterations`]).
//! The hook in a script counts steps of optimizers: healthy programs make as many as they like on each rank.

use crate::reason::{Proof, Reason};
use crate::watch::history::rank_history::{CountedIterations, ObservedIteration};
use crate::watch::history::run_view::{self, RankView};
use rankdeck_proto::message::{CollectiveCall, PageSample, Phase, RecentCollective};
use rankdeck_types::ids::Rank;
use std::collections::BTreeMap;

/// Longest period of calls searched in a rank's own history.
const PERIOD: usize = 32;
/// Most calls of one run on a page: no page holds more.
const RUN: u64 = 64;
/// The hook's tag of a call that C++ made.
const UNNAMED: &str = "collective";

/// Ranks that called different collectives under one number of a group.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CollectiveMismatch {
    /// The rank that deviates; `None` if unknown.
    pub rank: Option<Rank>,
    /// All ranks that deviate from the majority, or one side of a tie.
    pub odd: Vec<Rank>,
    /// A rank on the other side.
    pub other: Rank,
    /// Name of the process group.
    pub group: String,
    /// The first number at which they differ.
    pub seq: u64,
    /// The kind of the difference.
    pub reason: Reason,
    /// What the deviating one called, in words.
    pub mine: String,
    /// What the other called, in words.
    pub theirs: String,
    /// What proves it; `None` if it may be an error of the hook's count.
    pub proof: Option<Proof>,
}

#[derive(Debug, Clone)]
struct MemberCall {
    /// Number within the group.
    seq: u64,
    call: CollectiveCall,
    /// Elements that must be equal on all members; 0 where they may differ.
    compared: u64,
    /// Chain hash of the group with this call, 0 when unknown.
    chain: u64,
    /// Training iteration, or steps of optimizers in a script; 0 when unknown.
    train_iter: u64,
    /// The program itself counts its iterations.
    counted: bool,
}

impl MemberCall {
    fn new(page: &PageSample, seq: u64, call: CollectiveCall, chain: u64, train_iter: u64) -> MemberCall {
        let compared = run_view::compared_count(page, &call.op, call.count);
        MemberCall { seq, call, compared, chain, train_iter, counted: !page.by_hook }
    }

    /// The first call of a run of equal ones.
    fn first_of(page: &PageSample, run: &RecentCollective) -> MemberCall {
        let chain = if page.by_hook { 0 } else { run.chain };
        MemberCall::new(page, run.seq, run.call.clone(), chain, run.train_iter)
    }

    /// The program reports it itself, or the hook has seen a call of this function.
    fn is_known(&self) -> bool {
        self.counted || !matches!(self.call.op.as_str(), "" | "none")
    }

    fn is_same_operation(&self, other: &MemberCall) -> bool {
        self.call.op == other.call.op && self.call.tag == other.call.tag
    }

    /// The calls fit together, whatever came before them.
    fn is_same_call(&self, other: &MemberCall) -> bool {
        self.is_same_operation(other)
            && run_view::counts_fit(&self.call.op, self.compared, other.compared)
            && self.call.dtype == other.call.dtype
            && self.call.root == other.call.root
    }
}

/// The known calls of one member, by number.
fn history(view: &RankView<'_>, group: &str) -> BTreeMap<u64, MemberCall> {
    let Some(page) = view.page() else { return BTreeMap::new() };
    let recent = view.recent(group).into_iter().filter(|recent| recent.seq > 0);
    let mut steps: BTreeMap<u64, MemberCall> = BTreeMap::new();
    for run in recent {
        let last = run.more.min(RUN);
        for more in 0..=last {
            let seq = run.seq.saturating_add(more);
            let mut step = MemberCall::first_of(page, run);
            step.seq = seq;
            // The chain hash is the last one's.
            step.chain = if more == last { step.chain } else { 0 };
            steps.insert(seq, step);
        }
    }
    if let Some(member) = view.group(group)
        && let Some(call) = view.call_in(group)
        && !matches!(call.call.op.as_str(), "" | "none")
        && !steps.contains_key(&call.seq)
    {
        let chain = if call.seq == member.entered { member.chain } else { 0 };
        steps.insert(call.seq, MemberCall::new(page, call.seq, call.call, chain, 0));
    }
    steps
}

/// Whether two ranks differ at one number.
fn differ(a: &MemberCall, b: &MemberCall) -> bool {
    let known = |x: u64, y: u64| x > 0 && y > 0;
    !a.is_same_call(b)
        || (known(a.chain, b.chain) && a.chain != b.chain)
        || (a.counted && b.counted && known(a.train_iter, b.train_iter) && a.train_iter != b.train_iter)
}

/// Compares the calls of the members of a group.
pub(crate) fn calls(views: &[&RankView<'_>], group: &str) -> Option<CollectiveMismatch> {
    let histories: Vec<(&RankView, BTreeMap<u64, MemberCall>)> =
        views.iter().map(|view| (*view, history(view, group))).collect();
    let mut seqs: Vec<u64> = histories.iter().flat_map(|(_, steps)| steps.keys().copied()).collect();
    seqs.sort_unstable();
    seqs.dedup();
    for seq in seqs {
        let at: Vec<(&RankView, &MemberCall)> =
            histories.iter().filter_map(|(view, steps)| Some((*view, steps.get(&seq)?))).collect();
        let Some((_, first)) = at.first() else { continue };
        if at.iter().all(|(_, step)| !differ(step, first)) {
            continue;
        }
        return Some(judge(&at, &histories, group, seq));
    }
    None
}

fn judge(
    at: &[(&RankView<'_>, &MemberCall)],
    histories: &[(&RankView<'_>, BTreeMap<u64, MemberCall>)],
    group: &str,
    seq: u64,
) -> CollectiveMismatch {
    let votes = |step: &MemberCall| at.iter().filter(|(_, other)| !differ(step, other)).count();
    let majority = at.iter().find(|(_, step)| votes(step) * 2 > at.len()).map(|(_, step)| *step);
    let steps_of = |rank: Rank| histories.iter().find(|(view, _)| view.rank == rank).map(|(_, steps)| steps);
    let odd: Vec<Rank> = match majority {
        Some(most) => at.iter().filter(|(_, step)| differ(step, most)).map(|(view, _)| view.rank).collect(),
        None => {
            let left =
                |rank: Rank| steps_of(rank).is_some_and(|steps| left_pattern(steps, seq) == Some(true));
            let kept =
                |rank: Rank| steps_of(rank).is_some_and(|steps| left_pattern(steps, seq) == Some(false));
            let leavers: Vec<Rank> =
                at.iter().map(|(view, _)| view.rank).filter(|rank| left(*rank)).collect();
            let rest = at.iter().map(|(view, _)| view.rank).filter(|rank| !leavers.contains(rank));
            if !leavers.is_empty() && rest.clone().next().is_some() && rest.clone().all(kept) {
                leavers
            } else {
                Vec::new()
            }
        }
    };
    let named = odd.first().copied();
    let side = named.or_else(|| at.first().map(|(view, _)| view.rank)).unwrap_or_default();
    let mine = at.iter().find(|(view, _)| view.rank == side);
    let theirs = mine
        .and_then(|(_, mine)| at.iter().find(|(view, step)| !odd.contains(&view.rank) && differ(mine, step)));
    let reason = match (mine, theirs, steps_of(side)) {
        (Some((view, mine)), Some((_, theirs)), Some(steps)) => classify(view, mine, theirs, steps, seq),
        _ => Reason::OpMismatch,
    };
    let proof = match (mine, theirs) {
        (Some(mine), Some(theirs)) => prove(mine, theirs, group, seq),
        _ => None,
    };
    let text = |found: Option<&(&RankView, &MemberCall)>| {
        found.map(|(_, step)| describe(&step.call)).unwrap_or_default()
    };
    CollectiveMismatch {
        rank: named,
        odd: if odd.is_empty() { vec![side] } else { odd },
        other: theirs.map_or(side, |(view, _)| view.rank),
        group: group.to_string(),
        seq,
        reason,
        mine: text(mine),
        theirs: text(theirs),
        proof,
    }
}

/// What proves that two members differ: the program counts its calls itself, or both are inside this number now,
/// in calls that are known by name. The hook's count of calls that C++ makes may be off by some.
fn prove(
    mine: &(&RankView<'_>, &MemberCall),
    theirs: &(&RankView<'_>, &MemberCall),
    group: &str,
    seq: u64,
) -> Option<Proof> {
    let both = [mine, theirs];
    let is_inside =
        |view: &RankView<'_>| view.call_in(group).is_some_and(|call| call.inside && call.seq == seq);
    if both.iter().all(|(_, step)| step.counted) {
        Some(Proof::Reported)
    } else if both.iter().all(|(view, step)| step.is_known() && is_inside(view)) {
        Some(Proof::CallsDiffer)
    } else {
        None
    }
}

/// `broadcast weights, 4 f32, from rank 1 at train.rs:7`.
pub(crate) fn describe(call: &CollectiveCall) -> String {
    let mut text = call.title();
    if text.is_empty() {
        text.push_str("an unknown collective");
    } else if text == UNNAMED {
        text.insert_str(0, "a ");
    }
    let size = call.size();
    if !size.is_empty() {
        text.push_str(&format!(" of {size}"));
    }
    text + &call.at_site()
}

/// What kind of difference: `mine` deviates from `theirs` at `seq`.
fn classify(
    view: &RankView<'_>,
    mine: &MemberCall,
    theirs: &MemberCall,
    steps: &BTreeMap<u64, MemberCall>,
    seq: u64,
) -> Reason {
    if mine.is_same_call(theirs) {
        return Reason::SilentShift;
    }
    let went_on = expected(steps, seq, seq + 1).is_some_and(|next| next.is_same_call(mine))
        && expected(steps, seq, seq).is_some_and(|now| now.is_same_call(theirs));
    if went_on || left_out(steps, seq, mine, theirs) {
        return Reason::SkippedCall;
    }
    if mine.is_same_operation(theirs) {
        return Reason::SizeMismatch;
    }
    let aside = matches!(view.phase(), Some(Phase::Eval | Phase::Checkpoint));
    if mine.call.op == "barrier" || aside { Reason::ExtraCall } else { Reason::OpMismatch }
}

/// Whether the rank continued with something that it has called before, with one `missing` less in this
/// iteration than in all iterations before. Calls of other kinds, such as reports, may occur in between.
fn left_out(steps: &BTreeMap<u64, MemberCall>, seq: u64, mine: &MemberCall, missing: &MemberCall) -> bool {
    let before = || steps.range(..seq).map(|(_, step)| step);
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for step in before().filter(|step| step.is_same_call(missing)) {
        *counts.entry(step.train_iter).or_default() += 1;
    }
    let last = counts.pop_last();
    // The beginning of the first iteration may not be known any more.
    counts.pop_first();
    let whole = counts.first_key_value().map(|(_, count)| *count);
    before().any(|step| step.is_same_call(mine))
        && counts.values().all(|count| Some(*count) == whole)
        && last.is_some_and(|(_, last)| whole == Some(last + 1))
}

/// What a rank's own period before `seq` predicts for number `at`.
fn expected(steps: &BTreeMap<u64, MemberCall>, seq: u64, at: u64) -> Option<&MemberCall> {
    let period = period(steps, seq)?;
    let mut back = at.checked_sub(period)?;
    while back >= seq {
        back = back.checked_sub(period)?;
    }
    steps.get(&back)
}

/// The smallest period that all calls before `seq` keep, seen at least twice.
fn period(steps: &BTreeMap<u64, MemberCall>, seq: u64) -> Option<u64> {
    let before: Vec<&MemberCall> = steps.range(..seq).map(|(_, step)| step).collect();
    let gapless = steps.range(..seq).zip(steps.range(..seq).skip(1)).all(|(a, b)| a.0 + 1 == *b.0);
    let most = PERIOD.min(before.len() / 2);
    (1..=most)
        .find(|period| {
            gapless && before.iter().zip(before.iter().skip(*period)).all(|(a, b)| a.is_same_call(b))
        })
        .map(|period| period as u64)
}

/// Did a rank leave its own pattern at `seq`? `None` without a pattern.
fn left_pattern(steps: &BTreeMap<u64, MemberCall>, seq: u64) -> Option<bool> {
    let now = steps.get(&seq)?;
    let next = expected(steps, seq, seq)?;
    Some(!next.is_same_call(now))
}

/// Compares at which number of collectives the ranks began the same iterations.
pub(crate) fn iterations(ranks: &[(Rank, CountedIterations<'_>)]) -> Option<CollectiveMismatch> {
    let (_, base) = ranks.first().filter(|_| ranks.len() > 1)?;
    let row = |started: &ObservedIteration| -> Option<Vec<(Rank, &ObservedIteration)>> {
        ranks.iter().map(|(rank, counted)| Some((*rank, counted.started(started.train_iter)?))).collect()
    };
    let same = |at: &[(Rank, &ObservedIteration)]| {
        at.iter().all(|(_, started)| at.first().is_some_and(|(_, first)| key(first) == key(started)))
    };
    // What is the same at the newest one is not a shift, whatever was before.
    if base.all().rev().find_map(row).is_none_or(|newest| same(&newest)) {
        return None;
    }
    let common: Vec<Vec<(Rank, &ObservedIteration)>> = base.all().filter_map(row).collect();
    // A resumed rank may count once elsewhere; a shift stays.
    let from = common.iter().rposition(|at| same(at)).map_or(0, |last| last + 1);
    let bad = common.get(from..).filter(|bad| bad.len() >= 2)?;
    let at = bad.first()?;
    let votes =
        |started: &ObservedIteration| at.iter().filter(|(_, other)| key(other) == key(started)).count();
    let majority = at.iter().find(|(_, started)| votes(started) * 2 > at.len()).map(|(_, s)| *s);
    let odd: Vec<Rank> = match majority {
        Some(most) => at.iter().filter(|(_, s)| key(s) != key(most)).map(|(rank, _)| *rank).collect(),
        None => irregular(&common, from),
    };
    let side = odd.first().copied().or_else(|| at.first().map(|(rank, _)| *rank))?;
    let mine = at.iter().find(|(rank, _)| *rank == side)?;
    let theirs = at.iter().find(|(rank, s)| !odd.contains(rank) && key(s) != key(mine.1))?;
    let count = |started: &ObservedIteration| {
        format!("{} collectives before iteration {}", started.seq, started.train_iter)
    };
    let named = odd.first().copied();
    Some(CollectiveMismatch {
        rank: named,
        odd: if odd.is_empty() { vec![side] } else { odd },
        other: theirs.0,
        group: run_view::WORLD.into(),
        seq: mine.1.seq.min(theirs.1.seq),
        reason: Reason::SilentShift,
        mine: count(mine.1),
        theirs: count(theirs.1),
        proof: Some(Proof::Reported),
    })
}

fn key(started: &ObservedIteration) -> (u64, u64) {
    (started.seq, started.chain)
}

/// Ranks whose number of collectives per iteration changed where they began to differ, if others kept theirs.
fn irregular(common: &[Vec<(Rank, &ObservedIteration)>], from: usize) -> Vec<Rank> {
    let (Some(bad), Some(last), Some(first)) =
        (common.get(from), from.checked_sub(1).and_then(|at| common.get(at)), common.first())
    else {
        return Vec::new();
    };
    let of =
        |at: &[(Rank, &ObservedIteration)], rank: Rank| at.iter().find(|(r, _)| *r == rank).map(|(_, s)| **s);
    let mut changed = Vec::new();
    for (rank, _) in last {
        let (Some(a0), Some(a), Some(b)) = (of(first, *rank), of(last, *rank), of(bad, *rank)) else {
            return Vec::new();
        };
        let (before, after) = (a.train_iter - a0.train_iter, b.train_iter - a.train_iter);
        if before == 0 {
            return Vec::new();
        }
        // Equal rates, without division.
        if (a.seq - a0.seq) * after != (b.seq.saturating_sub(a.seq)) * before {
            changed.push(*rank);
        }
    }
    if changed.len() < last.len() { changed } else { Vec::new() }
}
