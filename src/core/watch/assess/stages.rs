//! The start and the end of a run: ranks that do not join the rendezvous, ranks that do not exit, and, after a
//! death, the rank that was the first to call a different collective.

use crate::limits::TimeLimits;
use crate::model::{Model, RankLife, RankModel};
use crate::reason::{Certainty, Proof, Reason, Severity};
use crate::watch::assess::finding::{Assessment, Finding, LateRank};
use crate::watch::assess::{RunFindings, late_rank};
use crate::watch::history::program;
use crate::watch::history::run_view::{RankView, RunView};
use crate::watch::patterns::group_arguments::{self, ArgumentFault};
use crate::watch::patterns::mismatch::{self, CollectiveMismatch};
use rankdeck_proto::message::Phase;
use rankdeck_types::ids::Rank;
use serde::{Deserialize, Serialize};

/// Wait of all ranks at the rendezvous after which different addresses are those of different machines.
const SAME_MACHINE_MS: u64 = 2_000;

/// Assesses the start or the end of a run: findings, and the ranks to inspect.
pub(crate) fn assess(run: &RunView<'_>, limits: &TimeLimits) -> RunFindings {
    let mut findings = RunFindings::default();
    let mismatch = group_arguments::find_mismatch(run).filter(|mismatch| {
        let least_ms = match mismatch.fault {
            ArgumentFault::Groups | ArgumentFault::SameRank => 0,
            ArgumentFault::Addresses => SAME_MACHINE_MS,
            ArgumentFault::Plan | ArgumentFault::TooLarge => late_rank::RENDEZVOUS_MS,
        };
        mismatch.waited_ms >= least_ms
    });
    // What contradicts the plan alone does not explain why others are missing.
    let explains = mismatch.as_ref().is_some_and(|mismatch| mismatch.fault != ArgumentFault::Plan);
    // They are named with the arguments that may come from them.
    let variables = group_arguments::contradicting_variables(run).filter(|_| mismatch.is_none());
    findings.add(mismatch.map(Finding::Arguments), []);
    findings.add(variables.map(|(ranks, names)| Finding::RankVariables { ranks, names }), []);
    let separate = group_arguments::separate_programs(run.model, group_arguments::SEPARATE_MS);
    findings.add(separate.map(|ranks| Finding::SeparatePrograms { ranks }), []);
    if !explains {
        let (finding, suspects) = by_stage(run, limits);
        findings.add(finding, suspects);
    }
    findings
}

fn by_stage(run: &RunView<'_>, limits: &TimeLimits) -> (Option<Finding>, Vec<Rank>) {
    let started = run.views.iter().flat_map(|view| &view.groups).any(|group| group.entered > 0);
    let is_still = |view: &RankView| view.quiet_ms() >= limits.behind && !program::moves(view, limits.rank0);
    match leftover(run) {
        // An inspection shows first whether it lacks a core.
        Some(view) if is_still(view) => {
            let late = view.quiet_ms() >= patience(view, limits).saturating_mul(2);
            (late.then(|| stalled(view, view.quiet_ms(), &[])), vec![view.rank])
        }
        // Only inspections separate an endless loop from a last evaluation, and not with certainty.
        Some(view) if view.never_sleeps() && view.silence_ms() >= limits.behind => {
            let spins = view.silence_ms() >= late_rank::AMBER_MS && late_rank::same_functions(view);
            (spins.then(|| spinning(view)), vec![view.rank])
        }
        _ if started => teardown(run, limits),
        _ => rendezvous(run, limits),
    }
}

/// Before the first collective: which rank keeps the group from forming.
fn rendezvous(run: &RunView<'_>, limits: &TimeLimits) -> (Option<Finding>, Vec<Rank>) {
    let model = run.model;
    // The hook reports this phase, too. A rank without a page has not started.
    let comes = |view: &RankView| view.page().is_some_and(|page| page.phase == Phase::Rendezvous);
    let waits = |view: &&RankView| view.fresh && comes(view);
    let waiters: Vec<&RankView> = run.views.iter().filter(waits).collect();
    let age = |view: &&RankView| view.page().map_or(0, |page| page.phase_age_ms);
    let Some(waited_ms) = waiters.iter().map(age).max() else { return (None, Vec::new()) };
    if waited_ms < limits.behind || run.views.iter().any(|view| view.died) {
        return (None, Vec::new());
    }
    let late: Vec<&RankView> = run.views.iter().filter(|view| !comes(view)).collect();
    let is_reachable = |rank: &Rank| {
        model.ranks.get(rank.index()).is_some_and(|rank| run.fresh.get(rank.node.index()) == Some(&true))
    };
    // Ranks without a process, and ranks whose process was never seen.
    let absent: Vec<Rank> = model
        .ranks
        .iter()
        .filter(|rank| rank.sample.is_none() && !matches!(rank.life, RankLife::Exited(_)))
        .map(|rank| rank.rank)
        .collect();
    if absent.iter().any(|rank| !is_reachable(rank)) || late.iter().any(|view| view.alive() && !view.fresh) {
        return (None, Vec::new());
    }
    let waiting: Vec<Rank> = waiters.iter().map(|view| view.rank).collect();
    let silence = |view: &RankView| if view.left { 0 } else { view.silence_ms() };
    let gravity = |view: &&&RankView| (view.left, silence(view), u32::MAX - view.rank.0);
    let primary = late.iter().max_by_key(gravity);
    let (rank, assessment) = match (absent.first(), primary) {
        (Some(rank), _) => {
            let assessment = (waited_ms >= late_rank::RENDEZVOUS_MS)
                .then(|| Assessment::usual(Certainty::Likely, Reason::RendezvousIncomplete));
            (*rank, assessment)
        }
        (None, Some(view)) => (view.rank, late_rank::assess_start(view, waited_ms, limits)),
        (None, None) => {
            let starved =
                waiters.iter().filter(|view| program::lacks_cores(view)).map(|view| program::stretch(view));
            let budget = limits.init.saturating_mul(starved.max().unwrap_or(1));
            let finding = (waited_ms >= budget && waiters.len() == model.ranks.len())
                .then_some(Finding::RendezvousBlocked { waited_ms });
            return (finding, waiting);
        }
    };
    let also: Vec<Rank> = absent
        .iter()
        .copied()
        .chain(late.iter().map(|view| view.rank))
        .filter(|other| *other != rank)
        .collect();
    let late = LateRank { rank, also, waiters: waiting, waited_ms, ..LateRank::default() };
    (assessment.map(|assessment| Finding::LateRank { late, assessment }), vec![rank])
}

/// A script's rank whose training has ended, and whose process is still there: all others have exited, or it has
/// closed its process group and some have exited.
fn leftover<'a, 'b>(run: &'a RunView<'b>) -> Option<&'a RankView<'b>> {
    let views = &run.views;
    let left = views.iter().filter(|view| view.left).count();
    if left == 0 || views.len() < run.model.member_count() || views.iter().any(|view| view.died) {
        return None;
    }
    let ends = |view: &RankView| view.page().is_some_and(|page| page.phase == Phase::Teardown);
    let stays = |view: &&RankView| {
        let over = ends(view) || left + 1 == views.len();
        let is_known = view.page().is_none_or(|page| page.by_hook) && view.idle_ms().is_some();
        over && is_known && view.fresh && view.halted_ms().is_none() && view.waiting().is_none()
    };
    let mut alive = views.iter().filter(|view| view.alive());
    let first = alive.clone().find(stays)?;
    alive.all(|view| stays(&view)).then_some(first)
}

/// Milliseconds after which a rank that does not exit is late.
fn patience(view: &RankView<'_>, limits: &TimeLimits) -> u64 {
    let times = if program::lacks_cores(view) { program::stretch(view) } else { 1 };
    limits.behind.saturating_mul(times).min(limits.rank0)
}

fn stalled(view: &RankView<'_>, waited_ms: u64, also: &[Rank]) -> Finding {
    let assessment = Assessment::usual(Certainty::Likely, Reason::TeardownStall);
    let late = LateRank { rank: view.rank, also: also.to_vec(), waited_ms, ..LateRank::default() };
    Finding::LateRank { late, assessment }
}

/// A rank that computes in the same functions at each inspection although others have exited, as in an endless loop
/// of an exit handler. It may be a last evaluation: a warning.
fn spinning(view: &RankView<'_>) -> Finding {
    let assessment =
        Assessment { severity: Severity::Amber, certainty: Certainty::Likely, reason: Reason::TeardownStall };
    let late = LateRank { rank: view.rank, waited_ms: view.silence_ms(), ..LateRank::default() };
    Finding::LateRank { late, assessment }
}

/// After the last iteration: which rank does not exit although others have.
fn teardown(run: &RunView<'_>, limits: &TimeLimits) -> (Option<Finding>, Vec<Rank>) {
    let leaving = |view: &&RankView| {
        view.fresh
            && view.alive()
            && view.halted_ms().is_none()
            && matches!(view.phase(), Some(Phase::Teardown | Phase::Done))
            && view.page().is_some_and(|page| page.phase_age_ms >= limits.behind)
    };
    // A rank that is ready to exit reports its full amount, and waits for the others.
    let came = |view: &RankView| view.page().is_some_and(|page| page.total > 0 && page.done == page.total);
    let waits = run.views.iter().any(|view| view.alive() && came(view));
    let mut stuck: Vec<&RankView> = run.views.iter().filter(leaving).collect();
    stuck.sort_by_key(|view| came(view));
    let gone: Vec<Rank> = run.views.iter().filter(|view| view.left).map(|view| view.rank).collect();
    let others = run
        .views
        .iter()
        .any(|view| view.alive() && !matches!(view.phase(), Some(Phase::Teardown | Phase::Done)));
    let Some(first) = stuck.first() else { return (None, Vec::new()) };
    let someone_waits = waits && !came(first);
    if others || (gone.is_empty() && !someone_waits) {
        return (None, Vec::new());
    }
    if someone_waits {
        stuck.retain(|view| !came(view));
    }
    let Some(first) = stuck.first() else { return (None, Vec::new()) };
    let waited_ms = first.page().map_or(0, |page| page.phase_age_ms);
    let also: Vec<Rank> = stuck.iter().skip(1).map(|view| view.rank).collect();
    let late = waited_ms >= patience(first, limits);
    (late.then(|| stalled(first, waited_ms, &also)), vec![first.rank])
}

/// Milliseconds after a death in which the last calls of all ranks are compared.
const POST_MORTEM_MS: u64 = 5_000;

/// State of the comparison of the ranks' last calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PostMortem {
    /// No rank has died.
    #[default]
    #[serde(rename = "NobodyDied")]
    Idle,
    /// They are compared until this time on the awake clock.
    Open(u64),
    /// They have shown the culprit.
    Found,
}

impl PostMortem {
    /// A rank died.
    pub fn on_death(&mut self, awake_ms: u64) {
        if *self == PostMortem::Idle {
            *self = PostMortem::Open(awake_ms.saturating_add(POST_MORTEM_MS));
        }
    }

    /// The last calls are to be compared now.
    pub fn is_open(self, awake_ms: u64) -> bool {
        matches!(self, PostMortem::Open(until) if awake_ms <= until)
    }
}

/// Finds the rank that exited with code 0 and broke `victim`'s connection: the root of the victim's death.
/// The counters show which rank it was. Without counters, it is one of a few ranks that exited well, if the
/// other ranks are at least as many.
pub(crate) fn left_early(run: &RunView<'_>, victim: Rank) -> Option<Finding> {
    let waits = run.view(victim).and_then(|victim| victim.groups.iter().find(|group| group.inside));
    let counted = waits.and_then(|waits| {
        let behind = |view: &&RankView| {
            view.left && view.group(waits.name).is_some_and(|group| group.entered < waits.entered)
        };
        Some((run.views.iter().find(behind)?.rank, waits.name, waits.entered, waits.age_ms))
    });
    let (rank, group, seq, waited_ms) = counted.or_else(|| Some((first_leaver(run.model)?, "", 0, 0)))?;
    let assessment = Assessment {
        severity: Severity::Red,
        certainty: if counted.is_some() { Certainty::Proved(Proof::Gone) } else { Certainty::Likely },
        reason: Reason::LeftEarly,
    };
    let late =
        LateRank { rank, waiters: vec![victim], group: group.into(), seq, waited_ms, ..LateRank::default() };
    Some(Finding::LateRank { late, assessment })
}

/// Compares the last calls of all ranks.
pub(crate) fn first_mismatch(run: &RunView<'_>) -> Option<CollectiveMismatch> {
    let mut names: Vec<&str> =
        run.views.iter().flat_map(|view| &view.groups).map(|group| group.name).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().find_map(|name| {
        let members: Vec<&RankView> = run.views.iter().filter(|view| view.group(name).is_some()).collect();
        mismatch::calls(&members, name)
    })
}

/// The rank that exited with code 0 after the fewest collectives, if at least as many ranks did not.
fn first_leaver(model: &Model) -> Option<Rank> {
    let left: Vec<&RankModel> = model.ranks.iter().filter(|rank| rank.ended_well()).collect();
    let entered = |rank: &&&RankModel| {
        let page = rank.sample.as_ref().and_then(|sample| sample.page.as_ref());
        page.map_or(0, |page| page.collective.entered)
    };
    let first = left.iter().min_by_key(entered)?.rank;
    (left.len() * 2 <= model.ranks.len()).then_some(first)
}
