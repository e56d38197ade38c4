//! Detects a stall of the whole run without a waiting relationship between ranks.
//!
//! A single rank that waits, shared storage that hangs for all, a lock that all need: no group has a frontier
//! to follow. The run's own past is the measure: there is no progress for longer than ever before. Scripts
//! without the hook report no collectives, so that the waits of their ranks end here, too; their stacks show
//! which of them waits for the others.

use crate::limits::TimeLimits;
use crate::watch::history::run_view::{RankView, RunView};
use crate::watch::history::{inspections, program};
use rankdeck_proto::message::{PageSample, Phase};
use rankdeck_types::ids::Rank;
use serde::{Deserialize, Serialize};

/// A stall must last this many times the longest pause so far, and the time after which a rank is behind.
const LONGER: u64 = 2;
/// A stall is critical after this many times that, and not before this time, ms.
const CRITICAL: u64 = 3;
const CRITICAL_MS: u64 = 30_000;
/// A younger run has no past to compare with, ms, unless all of its ranks train.
const YOUNG_MS: u64 = 30_000;
/// Iterations after which a rank trains: it has prepared everything for the first ones.
const TRAINS: u64 = 2;

/// Remembers the pauses of the run as a whole. Times are on the awake clock.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct StallDetector {
    /// When the first pause began.
    begun: Option<u64>,
    /// When a rank last made progress.
    moved: Option<u64>,
    longest_ms: u64,
}

/// A run without progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stall {
    /// For how long.
    pub still_ms: u64,
    /// From when on it is a warning.
    pub warning_ms: u64,
    /// From when on it is critical.
    pub critical_ms: u64,
    /// All suspects have been inspected since.
    pub inspected: bool,
    /// Ranks to inspect.
    pub suspects: Vec<Rank>,
}

impl StallDetector {
    /// Something else explains the pause: do not learn from it.
    pub fn interrupt(&mut self) {
        self.moved = None;
    }

    /// Takes the run now; returns a stall that may need a finding or inspections.
    pub fn observe(&mut self, run: &RunView<'_>, awake_ms: u64, limits: &TimeLimits) -> Option<Stall> {
        if !is_comparable(run) {
            self.interrupt();
            return None;
        }
        let begun = *self.begun.get_or_insert(awake_ms);
        let moved = *self.moved.get_or_insert(awake_ms);
        let still_ms = awake_ms.saturating_sub(moved);
        if run.views.iter().any(|view| program::moves(view, limits.rank0)) {
            self.longest_ms = self.longest_ms.max(still_ms);
            self.moved = Some(awake_ms);
            return None;
        }
        let new = moved.saturating_sub(begun) < YOUNG_MS || run.views.iter().any(is_cold);
        let young = new && !run.views.iter().all(trains);
        let usual = run.views.iter().filter(|view| view.phase().is_some()).map(|view| view.threshold.stuck);
        let own = limits.behind.max(self.longest_ms).saturating_mul(LONGER);
        let warning_ms = usual.chain([own]).max().unwrap_or(own);
        let critical_ms = if young {
            limits.init.max(warning_ms)
        } else {
            warning_ms.saturating_mul(CRITICAL).max(CRITICAL_MS)
        };
        let suspects =
            if still_ms >= limits.behind.min(warning_ms / 2) { first_ranks(run) } else { Vec::new() };
        let short = run.views.iter().filter(|view| suspects.contains(&view.rank));
        let short = short.filter(|view| program::lacks_cores(view)).map(program::stretch);
        let critical_ms = critical_ms.saturating_mul(short.max().unwrap_or(1));
        let is_inspected =
            |view: &RankView| view.current_inspection().is_some() || !suspects.contains(&view.rank);
        let inspected = run.views.iter().all(is_inspected);
        Some(Stall { still_ms, warning_ms, critical_ms, inspected, suspects })
    }
}

/// The first ranks, which stand for all.
fn first_ranks(run: &RunView<'_>) -> Vec<Rank> {
    run.views.iter().map(|view| view.rank).take(inspections::MOST).collect()
}

/// Whether all ranks are there and send samples, and none of them waits for another one, by their pages.
fn is_comparable(run: &RunView<'_>) -> bool {
    let alone = |view: &RankView| {
        let meets = view.page().is_some_and(|page| page.phase == Phase::Rendezvous);
        let known = view.page().is_some() || view.idle_ms().is_some();
        view.fresh
            && view.alive()
            && view.halted_ms().is_none()
            && view.waiting().is_none()
            && known
            && !meets
    };
    !run.views.is_empty() && run.views.len() == run.model.member_count() && run.views.iter().all(alone)
}

/// A script that has not reached its training loop yet.
fn is_cold(view: &RankView<'_>) -> bool {
    view.page().is_some_and(|page| page.by_hook && page.collective.entered <= 2 && page.train_iter == 0)
}

/// It has completed iterations of its training loop, as counted by itself or by the steps of its optimizers.
fn trains(view: &RankView<'_>) -> bool {
    view.page().and_then(PageSample::iteration).is_some_and(|iteration| iteration >= TRAINS)
}
