//! Who holds up whom: the frontier of collectives. Pure.
//!
//! The rule (after research on NCCL's flight recorder and RAS): let F be the highest collective that any rank has entered. Ranks inside F wait;
//! ranks that have not entered F and are in no collective hold them up. Process states cannot tell the two apart; these counters can.
//! A wait is explained by what the late rank is doing, so its phase, not the wait, decides how long is too long.

use crate::core::ids::Rank;
use crate::core::report::{Confidence, Severity};
use crate::core::session::Limits;
use crate::proto::message::{PageSample, Phase};

/// Wait after which an explained wait is shown.
const AMBER_MS: u64 = 30_000;
/// Silence of a page up to which the rank counts as moving.
const MOVING_MS: u64 = 2_000;
/// Milliseconds without any advance between samples before anything is said.
pub(super) const STILL_MS: u64 = 1_000;

/// One rank with a status page.
#[derive(Debug, Clone)]
pub(super) struct Seat<'a> {
    /// Which.
    pub rank: Rank,
    /// Its page.
    pub page: &'a PageSample,
    /// Its host answers and the sample is of this generation.
    pub fresh: bool,
    /// Milliseconds, on its host's clock, over which its collective counters have not moved.
    pub still_ms: u64,
    /// Its process is stopped.
    pub stopped: bool,
    /// It ended with exit code 0.
    pub left: bool,
    /// Silence that this rank has shown at least three times and come back from, ms.
    pub usual_quiet_ms: u64,
}

impl Seat<'_> {
    /// Inside a collective.
    pub fn inside(&self) -> bool {
        !self.left && self.page.collective.left < self.page.collective.entered
    }
}

/// What the frontier shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Finding {
    /// `rank` holds up `waiters`.
    Behind {
        /// The late rank whose page has been silent longest.
        rank: Rank,
        /// Other late ranks.
        also: Vec<Rank>,
        /// Ranks inside the frontier collective.
        waiters: Vec<Rank>,
        /// How bad.
        severity: Severity,
        /// How sure.
        confidence: Confidence,
        /// Longest wait, ms.
        waited_ms: u64,
        /// What kind of lateness.
        why: Why,
    },
    /// Ranks entered different collectives under the same number.
    Desync {
        /// The rank that differs from a strict majority.
        rank: Option<Rank>,
        /// The number.
        seq: u64,
        /// Longest wait, ms.
        waited_ms: u64,
    },
    /// All ranks have waited for the process group longer than the budget.
    NoGroup {
        /// Longest wait, ms.
        waited_ms: u64,
    },
}

/// What kind of lateness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// Nothing on its page moves.
    Silent,
    /// It works, only longer than the others.
    Working,
    /// It ended with exit code 0 while the others wait.
    Left,
    /// It is still inside an earlier collective that the others have left.
    Inside,
}

/// Looks at all ranks with pages.
pub(super) fn look(seats: &[Seat<'_>], limits: &Limits) -> Option<Finding> {
    let frontier = seats.iter().filter(|seat| seat.fresh).map(|seat| seat.page.collective.entered).max()?;
    if frontier == 0 {
        return rendezvous(seats, limits);
    }
    let reached: Vec<&Seat> = seats.iter().filter(|seat| seat.page.collective.entered == frontier).collect();
    let waiters: Vec<&Seat> = reached.iter().copied().filter(|seat| seat.fresh && seat.inside()).collect();
    let waited_ms = waiters.iter().map(|seat| seat.page.collective.age_ms).max()?;
    let still = seats.iter().filter(|seat| !seat.left).all(|seat| seat.still_ms >= STILL_MS);
    if !still || waited_ms < STILL_MS {
        return None;
    }
    if let Some(rank) = differing(&waiters) {
        return Some(Finding::Desync { rank, seq: frontier, waited_ms });
    }
    let late: Vec<&Seat> = seats.iter().filter(|seat| seat.page.collective.entered < frontier).collect();
    // A rank that is not heard of may be the one; silence of its host is a verdict of its own.
    if late.is_empty() || late.iter().any(|seat| !seat.fresh && !seat.left) || waited_ms < limits.behind {
        return None;
    }
    // A stopped process is a harder fact, told as such; all waits come from it.
    if late.iter().any(|seat| seat.stopped) {
        return None;
    }
    let outside: Vec<&Seat> = late.iter().copied().filter(|seat| !seat.inside()).collect();
    let guilty = if outside.is_empty() { &late } else { &outside };
    let primary =
        guilty.iter().max_by_key(|seat| (seat.left, seat.page.heartbeat_age_ms, u32::MAX - seat.rank.0))?;
    let (severity, confidence, why) = judge(primary, waited_ms, limits)?;
    Some(Finding::Behind {
        rank: primary.rank,
        also: guilty.iter().map(|seat| seat.rank).filter(|rank| *rank != primary.rank).collect(),
        waiters: waiters.iter().map(|seat| seat.rank).collect(),
        severity,
        confidence,
        waited_ms,
        why,
    })
}

/// How bad the lateness of one rank is, given its phase; `None` while nothing should be said.
fn judge(seat: &Seat<'_>, waited_ms: u64, limits: &Limits) -> Option<(Severity, Confidence, Why)> {
    let page = seat.page;
    if seat.left {
        return Some((Severity::Red, Confidence::Certain, Why::Left));
    }
    let quiet = page.heartbeat_age_ms;
    let first_iteration = page.updates == 0 && page.train_iter <= 1;
    let overdue = match page.phase {
        Phase::Init | Phase::Rendezvous => page.phase_age_ms >= limits.init,
        Phase::Eval | Phase::Checkpoint => quiet >= limits.rank0,
        Phase::Rollout | Phase::Learn | Phase::Sync | Phase::Teardown | Phase::Done if first_iteration => {
            quiet >= limits.init
        }
        Phase::Rollout | Phase::Learn | Phase::Sync | Phase::Teardown | Phase::Done => {
            quiet >= MOVING_MS.max(seat.usual_quiet_ms.saturating_mul(3))
        }
    };
    if overdue {
        let why = if seat.inside() { Why::Inside } else { Why::Silent };
        return Some((Severity::Red, Confidence::Likely, why));
    }
    (waited_ms >= AMBER_MS).then_some((Severity::Amber, Confidence::Possible, Why::Working))
}

/// Before the first collective: who keeps the group from forming.
fn rendezvous(seats: &[Seat<'_>], limits: &Limits) -> Option<Finding> {
    let waiters: Vec<&Seat> =
        seats.iter().filter(|seat| seat.fresh && seat.page.phase == Phase::Rendezvous).collect();
    let waited_ms = waiters.iter().map(|seat| seat.page.phase_age_ms).max()?;
    let late: Vec<&Seat> = seats.iter().filter(|seat| seat.page.phase == Phase::Init && !seat.left).collect();
    if waited_ms < limits.init || late.iter().any(|seat| !seat.fresh || seat.stopped) {
        return None;
    }
    let Some(primary) = late.iter().max_by_key(|seat| (seat.page.heartbeat_age_ms, u32::MAX - seat.rank.0))
    else {
        let all = seats.iter().all(|seat| seat.fresh && seat.page.phase == Phase::Rendezvous);
        return all.then_some(Finding::NoGroup { waited_ms });
    };
    (primary.page.phase_age_ms >= limits.init).then(|| Finding::Behind {
        rank: primary.rank,
        also: late.iter().map(|seat| seat.rank).filter(|rank| *rank != primary.rank).collect(),
        waiters: waiters.iter().map(|seat| seat.rank).collect(),
        severity: Severity::Red,
        confidence: Confidence::Likely,
        waited_ms,
        why: Why::Silent,
    })
}

/// Do the waiters disagree about what they are in? `Some(None)`: they do, and no strict majority tells who is wrong.
fn differing(waiters: &[&Seat<'_>]) -> Option<Option<Rank>> {
    let print = |seat: &Seat| {
        let collective = &seat.page.collective;
        (collective.op.clone(), collective.tag.clone(), collective.bytes, collective.dtype.clone())
    };
    let known: Vec<&&Seat> =
        waiters.iter().filter(|seat| !matches!(seat.page.collective.op.as_str(), "" | "none")).collect();
    let first = print(known.first()?);
    if known.iter().all(|seat| print(seat) == first) {
        return None;
    }
    let votes = |seat: &Seat| known.iter().filter(|other| print(other) == print(seat)).count();
    let majority = known.iter().find(|seat| votes(seat) * 2 > known.len()).map(|seat| print(seat));
    Some(majority.and_then(|print_of_most| {
        known.iter().find(|seat| print(seat) != print_of_most).map(|seat| seat.rank)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::message::CollectiveSample;

    const LIMITS: Limits =
        Limits { grace: 10_000, lost: 5_000, behind: 5_000, init: 120_000, rank0: 600_000 };

    fn page(phase: Phase, entered: u64, left: u64, age_ms: u64, quiet: u64) -> PageSample {
        PageSample {
            phase,
            phase_age_ms: quiet,
            phase_progress: 0,
            heartbeat_age_ms: quiet,
            train_iter: 10,
            env_step: 100,
            samples: 100,
            episodes: 1,
            updates: 40,
            collective: CollectiveSample {
                entered,
                left,
                op: "all_reduce".into(),
                tag: "grad".into(),
                bytes: 64,
                dtype: "f32".into(),
                age_ms,
                ..CollectiveSample::default()
            },
            ..PageSample::default()
        }
    }

    fn seat(rank: u32, page: &PageSample) -> Seat<'_> {
        let rank = Rank(rank);
        Seat { rank, page, fresh: true, still_ms: 3_000, stopped: false, left: false, usual_quiet_ms: 0 }
    }

    fn severity(finding: Option<Finding>) -> Option<Severity> {
        match finding {
            Some(Finding::Behind { severity, .. }) => Some(severity),
            Some(Finding::Desync { .. } | Finding::NoGroup { .. }) | None => None,
        }
    }

    #[test]
    fn the_rank_outside_is_named_and_the_waiters_are_not() {
        let (waits, late) =
            (page(Phase::Learn, 47, 46, 6_000, 6_000), page(Phase::Rollout, 46, 46, 6_100, 6_100));
        let finding = look(&[seat(0, &waits), seat(1, &late), seat(2, &waits)], &LIMITS);
        let Some(Finding::Behind { rank, waiters, severity, why, .. }) = finding else {
            panic!("{finding:?}")
        };
        assert_eq!((rank, severity, why), (Rank(1), Severity::Red, Why::Silent));
        assert_eq!(waiters, [Rank(0), Rank(2)]);
    }

    #[test]
    fn nothing_is_said_too_early_while_something_moves_or_a_host_is_silent() {
        let (waits, late) =
            (page(Phase::Learn, 47, 46, 4_900, 4_900), page(Phase::Rollout, 46, 46, 9_000, 9_000));
        assert_eq!(look(&[seat(0, &waits), seat(1, &late)], &LIMITS), None, "too early");
        let waits = page(Phase::Learn, 47, 46, 6_000, 6_000);
        let moved = Seat { still_ms: 500, ..seat(1, &late) };
        assert_eq!(look(&[seat(0, &waits), moved], &LIMITS), None, "advanced a moment ago");
        let silent = Seat { fresh: false, ..seat(1, &late) };
        assert_eq!(look(&[seat(0, &waits), silent], &LIMITS), None, "its host is silent");
        let stopped = Seat { stopped: true, ..seat(1, &late) };
        assert_eq!(look(&[seat(0, &waits), stopped], &LIMITS), None, "frozen explains it");
        assert_eq!(look(&[seat(0, &waits), seat(1, &waits)], &LIMITS), None, "all inside");
    }

    #[test]
    fn a_long_evaluation_is_amber_until_its_budget_is_spent() {
        let waits = page(Phase::Sync, 47, 46, 29_000, 29_000);
        let eval = page(Phase::Eval, 46, 46, 29_000, 100);
        assert_eq!(look(&[seat(0, &eval), seat(1, &waits)], &LIMITS), None);
        let waits = page(Phase::Sync, 47, 46, 31_000, 31_000);
        assert_eq!(severity(look(&[seat(0, &eval), seat(1, &waits)], &LIMITS)), Some(Severity::Amber));
        let dead_quiet = page(Phase::Eval, 46, 46, 601_000, 601_000);
        assert_eq!(severity(look(&[seat(0, &dead_quiet), seat(1, &waits)], &LIMITS)), Some(Severity::Red));
    }

    #[test]
    fn a_slow_first_iteration_has_the_init_budget() {
        let waits = page(Phase::Sync, 1, 0, 29_000, 29_000);
        let first = PageSample { updates: 0, train_iter: 1, ..page(Phase::Rollout, 0, 0, 0, 29_000) };
        assert_eq!(look(&[seat(0, &waits), seat(1, &first)], &LIMITS), None);
        let first = PageSample { heartbeat_age_ms: 121_000, ..first };
        assert_eq!(severity(look(&[seat(0, &waits), seat(1, &first)], &LIMITS)), Some(Severity::Red));
    }

    #[test]
    fn a_rank_that_works_is_not_stuck_and_usual_pauses_are_learnt() {
        let waits = page(Phase::Sync, 47, 46, 20_000, 20_000);
        let works = page(Phase::Rollout, 46, 46, 20_000, 300);
        assert_eq!(look(&[seat(0, &waits), seat(1, &works)], &LIMITS), None);
        let pauses = page(Phase::Rollout, 46, 46, 8_000, 8_000);
        let usual = Seat { usual_quiet_ms: 4_000, ..seat(1, &pauses) };
        assert_eq!(look(&[seat(0, &waits), usual], &LIMITS), None);
        let unusual = Seat { usual_quiet_ms: 2_000, ..seat(1, &pauses) };
        assert_eq!(severity(look(&[seat(0, &waits), unusual], &LIMITS)), Some(Severity::Red));
    }

    #[test]
    fn who_left_the_loop_early_is_guilty() {
        let waits = page(Phase::Learn, 61, 60, 6_000, 6_000);
        let gone = page(Phase::Done, 60, 60, 6_000, 6_000);
        let left = Seat { left: true, fresh: false, ..seat(1, &gone) };
        let finding = look(&[seat(0, &waits), left], &LIMITS);
        assert!(
            matches!(finding, Some(Finding::Behind { rank: Rank(1), why: Why::Left, .. })),
            "{finding:?}"
        );
    }

    #[test]
    fn a_different_collective_of_the_same_number_is_a_desync() {
        let good = page(Phase::Learn, 60, 59, 2_000, 2_000);
        let mut bad = good.clone();
        bad.collective.op = "broadcast".into();
        let finding = look(&[seat(0, &good), seat(1, &bad), seat(2, &good)], &LIMITS);
        assert_eq!(finding, Some(Finding::Desync { rank: Some(Rank(1)), seq: 60, waited_ms: 2_000 }));
        let finding = look(&[seat(0, &good), seat(1, &bad)], &LIMITS);
        assert_eq!(finding, Some(Finding::Desync { rank: None, seq: 60, waited_ms: 2_000 }));
    }

    #[test]
    fn the_rendezvous_has_a_budget_of_its_own() {
        let waits = page(Phase::Rendezvous, 0, 0, 0, 119_000);
        let starts = page(Phase::Init, 0, 0, 0, 119_500);
        assert_eq!(look(&[seat(0, &waits), seat(1, &starts)], &LIMITS), None);
        let waits = page(Phase::Rendezvous, 0, 0, 0, 121_000);
        let starts = page(Phase::Init, 0, 0, 0, 121_500);
        assert_eq!(severity(look(&[seat(0, &waits), seat(1, &starts)], &LIMITS)), Some(Severity::Red));
        let finding = look(&[seat(0, &waits), seat(1, &waits)], &LIMITS);
        assert_eq!(finding, Some(Finding::NoGroup { waited_ms: 121_000 }));
    }
}
