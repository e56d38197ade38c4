//! The ends of a run: ranks that do not come to the rendezvous, and ranks that do not get through the end. Pure.

use super::cause::{self, Judged};
use super::evidence::{Late, Scene};
use super::seat::Seat;
use crate::model::{Model, RankLife};
use crate::reason::Reason;
use crate::report::{Confidence, Severity, VerdictReport};
use crate::session::Limits;
use rankdeck_proto::message::Phase;
use rankdeck_types::ids::Rank;

/// What is said, and whom to look at closely.
pub(super) fn look(
    scene: &Scene<'_>,
    model: &Model,
    fresh: &[bool],
    limits: &Limits,
) -> (Option<VerdictReport>, Vec<Rank>) {
    let begun = scene.seats.iter().flat_map(|seat| &seat.groups).any(|group| group.entered > 0);
    match begun {
        true => teardown(scene, limits),
        false => rendezvous(scene, model, fresh, limits),
    }
}

/// Before the first collective: who keeps the group from forming.
fn rendezvous(
    scene: &Scene<'_>,
    model: &Model,
    fresh: &[bool],
    limits: &Limits,
) -> (Option<VerdictReport>, Vec<Rank>) {
    // The hook tells this phase, too. A rank without a page has not begun.
    let comes = |seat: &Seat| seat.page().is_some_and(|page| page.phase == Phase::Rendezvous);
    let waits = |seat: &&Seat| seat.fresh && comes(seat);
    let waiters: Vec<&Seat> = scene.seats.iter().filter(waits).collect();
    let age = |seat: &&Seat| seat.page().map_or(0, |page| page.phase_age_ms);
    let Some(waited_ms) = waiters.iter().map(age).max() else { return (None, Vec::new()) };
    if waited_ms < limits.behind || scene.seats.iter().any(|seat| seat.died) {
        return (None, Vec::new());
    }
    let late: Vec<&Seat> = scene.seats.iter().filter(|seat| !comes(seat)).collect();
    let heard = |rank: &Rank| {
        model.ranks.get(rank.index()).is_some_and(|rank| fresh.get(rank.node.index()) == Some(&true))
    };
    // Ranks of which there is no process, or none that was ever seen.
    let absent: Vec<Rank> = model
        .ranks
        .iter()
        .filter(|rank| rank.sample.is_none() && !matches!(rank.life, RankLife::Exited(_)))
        .map(|rank| rank.rank)
        .collect();
    if absent.iter().any(|rank| !heard(rank)) || late.iter().any(|seat| seat.alive() && !seat.fresh) {
        return (None, Vec::new());
    }
    let waiting: Vec<Rank> = waiters.iter().map(|seat| seat.rank).collect();
    let gravity = |seat: &&&Seat| (seat.left, seat.silence_ms(), u32::MAX - seat.rank.0);
    let primary = late.iter().max_by_key(gravity);
    let (rank, judged) = match (absent.first(), primary) {
        (Some(rank), _) => {
            let judged = (waited_ms >= cause::RENDEZVOUS_MS).then_some(Judged {
                severity: Severity::Red,
                confidence: Confidence::Likely,
                reason: Reason::RendezvousIncomplete,
            });
            (*rank, judged)
        }
        (None, Some(seat)) => (seat.rank, cause::judge_start(seat, waited_ms, limits)),
        (None, None) => {
            let starved = waiters.iter().any(|seat| cause::starved(seat));
            let budget = limits.init.saturating_mul(if starved { cause::STARVED } else { 1 });
            let verdict = (waited_ms >= budget && waiters.len() == model.ranks.len())
                .then(|| scene.no_group(waited_ms));
            return (verdict, waiting);
        }
    };
    let also: Vec<Rank> = absent
        .iter()
        .copied()
        .chain(late.iter().map(|seat| seat.rank))
        .filter(|other| *other != rank)
        .collect();
    let late = Late { rank, also: &also, waiters: &waiting, group: "", seq: 0, waited_ms, ahead: false };
    (judged.map(|judged| scene.behind(&late, judged)), vec![rank])
}

/// After the last iteration: who does not leave although others have.
fn teardown(scene: &Scene<'_>, limits: &Limits) -> (Option<VerdictReport>, Vec<Rank>) {
    let leaving = |seat: &&Seat| {
        seat.fresh
            && seat.alive()
            && seat.halted_ms.is_none()
            && matches!(seat.phase(), Some(Phase::Teardown | Phase::Done))
            && seat.page().is_some_and(|page| page.phase_age_ms >= limits.behind)
    };
    // A rank that has come to leave says so by its amount, and waits for the others.
    let came = |seat: &Seat| seat.page().is_some_and(|page| page.total > 0 && page.done == page.total);
    let waits = scene.seats.iter().any(|seat| seat.alive() && came(seat));
    let mut stuck: Vec<&Seat> = scene.seats.iter().filter(leaving).collect();
    stuck.sort_by_key(|seat| came(seat));
    let gone: Vec<Rank> = scene.seats.iter().filter(|seat| seat.left).map(|seat| seat.rank).collect();
    let others = scene
        .seats
        .iter()
        .any(|seat| seat.alive() && !matches!(seat.phase(), Some(Phase::Teardown | Phase::Done)));
    let Some(first) = stuck.first() else { return (None, Vec::new()) };
    let someone_waits = waits && !came(first);
    if others || (gone.is_empty() && !someone_waits) {
        return (None, Vec::new());
    }
    if someone_waits {
        stuck.retain(|seat| !came(seat));
    }
    let Some(first) = stuck.first() else { return (None, Vec::new()) };
    let waited_ms = first.page().map_or(0, |page| page.phase_age_ms);
    let also: Vec<Rank> = stuck.iter().skip(1).map(|seat| seat.rank).collect();
    let judged =
        Judged { severity: Severity::Red, confidence: Confidence::Likely, reason: Reason::TeardownStall };
    let late =
        Late { rank: first.rank, also: &also, waiters: &[], group: "", seq: 0, waited_ms, ahead: false };
    (Some(scene.behind(&late, judged)), vec![first.rank])
}
