//! The ends of a run: ranks that do not come to the rendezvous, and ranks that do not get through the end.
//! Pure.

use super::draft::Judgement;
use super::evidence::{LateRank, Snapshot};
use super::rank_view::RankView;
use super::{Detection, cause, program, shortage};
use crate::limits::Limits;
use crate::model::{Model, RankLife};
use crate::reason::Reason;
use crate::report::{Confidence, VerdictReport};
use rankdeck_proto::message::Phase;
use rankdeck_types::ids::Rank;

/// Ranks that hold up the beginning of a run or its end.
pub(super) fn look(
    snapshot: &Snapshot<'_>,
    model: &Model,
    fresh: &[bool],
    limits: &Limits,
) -> Option<Detection> {
    let begun = snapshot.views.iter().flat_map(|view| &view.groups).any(|group| group.entered > 0);
    let (verdict, suspects) = match leftover(snapshot, limits) {
        // A look tells whether it lacks a core before anything is said.
        Some(view) => {
            let late = view.quiet_ms() >= patience(view, limits).saturating_mul(2);
            (late.then(|| stalled(snapshot, view, view.quiet_ms(), &[])), vec![view.rank])
        }
        None if begun => teardown(snapshot, limits),
        None => rendezvous(snapshot, model, fresh, limits),
    };
    Some(Detection { node: None, verdict, suspects })
}

/// Before the first collective: which rank keeps the group from forming.
fn rendezvous(
    snapshot: &Snapshot<'_>,
    model: &Model,
    fresh: &[bool],
    limits: &Limits,
) -> (Option<VerdictReport>, Vec<Rank>) {
    // The hook reports this phase, too. A rank without a page has not begun.
    let comes = |view: &RankView| view.page().is_some_and(|page| page.phase == Phase::Rendezvous);
    let waits = |view: &&RankView| view.fresh && comes(view);
    let waiters: Vec<&RankView> = snapshot.views.iter().filter(waits).collect();
    let age = |view: &&RankView| view.page().map_or(0, |page| page.phase_age_ms);
    let Some(waited_ms) = waiters.iter().map(age).max() else { return (None, Vec::new()) };
    if waited_ms < limits.behind || snapshot.views.iter().any(|view| view.died) {
        return (None, Vec::new());
    }
    let late: Vec<&RankView> = snapshot.views.iter().filter(|view| !comes(view)).collect();
    let heard = |rank: &Rank| {
        model.ranks.get(rank.index()).is_some_and(|rank| fresh.get(rank.node.index()) == Some(&true))
    };
    // Ranks without a process, and ranks whose process was never seen.
    let absent: Vec<Rank> = model
        .ranks
        .iter()
        .filter(|rank| rank.sample.is_none() && !matches!(rank.life, RankLife::Exited(_)))
        .map(|rank| rank.rank)
        .collect();
    if absent.iter().any(|rank| !heard(rank)) || late.iter().any(|view| view.alive() && !view.fresh) {
        return (None, Vec::new());
    }
    let waiting: Vec<Rank> = waiters.iter().map(|view| view.rank).collect();
    let gravity = |view: &&&RankView| (view.left, view.silence_ms(), u32::MAX - view.rank.0);
    let primary = late.iter().max_by_key(gravity);
    let (rank, judged) = match (absent.first(), primary) {
        (Some(rank), _) => {
            let judged = (waited_ms >= cause::RENDEZVOUS_MS)
                .then(|| Judgement::usual(Confidence::Likely, Reason::RendezvousIncomplete));
            (*rank, judged)
        }
        (None, Some(view)) => (view.rank, cause::judge_start(view, waited_ms, limits)),
        (None, None) => {
            let starved =
                waiters.iter().filter(|view| shortage::lacks_cores(view)).map(|view| shortage::stretch(view));
            let budget = limits.init.saturating_mul(starved.max().unwrap_or(1));
            let verdict = (waited_ms >= budget && waiters.len() == model.ranks.len())
                .then(|| snapshot.no_group(waited_ms));
            return (verdict, waiting);
        }
    };
    let also: Vec<Rank> = absent
        .iter()
        .copied()
        .chain(late.iter().map(|view| view.rank))
        .filter(|other| *other != rank)
        .collect();
    let late = LateRank { rank, also: &also, waiters: &waiting, group: "", seq: 0, waited_ms, ahead: false };
    (judged.map(|judged| snapshot.behind(&late, judged)), vec![rank])
}

/// A script's rank whose training is over, and whose process stays although nothing of it moves: all others
/// have left, or it has given up its process group and some have left.
fn leftover<'a>(snapshot: &'a Snapshot<'_>, limits: &Limits) -> Option<&'a RankView<'a>> {
    let views = snapshot.views;
    let left = views.iter().filter(|view| view.left).count();
    if left == 0 || views.len() < snapshot.model.ranks.len() || views.iter().any(|view| view.died) {
        return None;
    }
    let ends = |view: &RankView| view.page().is_some_and(|page| page.phase == Phase::Teardown);
    let stays = |view: &&RankView| {
        let over = ends(view) || left + 1 == views.len();
        let knows = view.page().is_none_or(|page| page.by_hook) && view.idle_ms.is_some();
        over && knows && view.fresh && view.halted_ms.is_none() && view.waiting().is_none()
    };
    let mut alive = views.iter().filter(|view| view.alive());
    let first = alive.clone().find(stays)?;
    let still = |view: &RankView| view.quiet_ms() >= limits.behind && !program::moves(view, limits.rank0);
    (alive.all(|view| stays(&view)) && still(first)).then_some(first)
}

/// Milliseconds after which a rank that does not leave is late.
fn patience(view: &RankView<'_>, limits: &Limits) -> u64 {
    let times = if shortage::lacks_cores(view) { shortage::stretch(view) } else { 1 };
    limits.behind.saturating_mul(times).min(limits.rank0)
}

fn stalled(snapshot: &Snapshot<'_>, view: &RankView<'_>, waited_ms: u64, also: &[Rank]) -> VerdictReport {
    let judged = Judgement::usual(Confidence::Likely, Reason::TeardownStall);
    let late = LateRank { rank: view.rank, also, waiters: &[], group: "", seq: 0, waited_ms, ahead: false };
    snapshot.behind(&late, judged)
}

/// After the last iteration: which rank does not leave although others have.
fn teardown(snapshot: &Snapshot<'_>, limits: &Limits) -> (Option<VerdictReport>, Vec<Rank>) {
    let leaving = |view: &&RankView| {
        view.fresh
            && view.alive()
            && view.halted_ms.is_none()
            && matches!(view.phase(), Some(Phase::Teardown | Phase::Done))
            && view.page().is_some_and(|page| page.phase_age_ms >= limits.behind)
    };
    // A rank that is ready to leave says so by its amount, and waits for the others.
    let came = |view: &RankView| view.page().is_some_and(|page| page.total > 0 && page.done == page.total);
    let waits = snapshot.views.iter().any(|view| view.alive() && came(view));
    let mut stuck: Vec<&RankView> = snapshot.views.iter().filter(leaving).collect();
    stuck.sort_by_key(|view| came(view));
    let gone: Vec<Rank> = snapshot.views.iter().filter(|view| view.left).map(|view| view.rank).collect();
    let others = snapshot
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
    (late.then(|| stalled(snapshot, first, waited_ms, &also)), vec![first.rank])
}
