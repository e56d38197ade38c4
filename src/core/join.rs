//! Pairs all-reduced totals with the ranks' own counters of the same training iteration.
//!
//! Rank 0 reports the totals, every rank its own counters. They arrive over different
//! links, in any order. Invariants:
//! - JOIN-1: only an iteration of which the totals and all ranks' counters have arrived is reported, and in
//!   order.
//! - JOIN-2: the table is bounded; what never met is counted.
//! - JOIN-3: counters of ranks that all-reduce none are added up, and reported as a sum.
//! - JOIN-4: from the iteration on at which members were lost or joined, an iteration is complete with the counters of
//!   the members.

use rankdeck_proto::message::{Counters, Returns};
use rankdeck_types::ids::{Rank, WallTime};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Cells (rows times ranks) that are kept while a host is silent, at most.
const CELLS: usize = 1 << 18;
/// Longest time between two sums of ranks that report their counters at different times, seconds.
const ROUND_S: f64 = 1.0;

/// A complete iteration.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JoinedIteration {
    pub totals: Counters,
    /// When rank 0's agent wrote them.
    pub time: WallTime,
    /// Sum of the ranks' own.
    pub sum: Counters,
    /// In rank order.
    pub own: Vec<Counters>,
    /// The ranks of these, if not all of the plan.
    pub members: Option<Vec<Rank>>,
    /// Integers are equal; durations within 1e-6 of each other.
    pub consistent: bool,
    /// Global steps per second at these totals; `None` before they are measured.
    pub steps_per_s: Option<f64>,
    /// The ranks all-reduced the totals; otherwise they are the sum.
    pub reduced: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct PendingIteration {
    own: Vec<Option<Counters>>,
    /// Ranks whose counters have not come.
    missing: usize,
    totals: Option<(Counters, WallTime, Option<f64>)>,
}

/// The table of one generation.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct TotalsMatcher {
    world_size: usize,
    rows: BTreeMap<u64, PendingIteration>,
    done: Option<u64>,
    dropped: u64,
    /// The members, if not all ranks, and the iteration from which on they are.
    #[serde(default)]
    members: Option<(Vec<Rank>, u64)>,
}

impl TotalsMatcher {
    /// An empty table for a new generation.
    pub fn new(world_size: usize) -> TotalsMatcher {
        TotalsMatcher { world_size, ..TotalsMatcher::default() }
    }

    /// Rows that were given up since the last call.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// The members have changed at an iteration (JOIN-4). Returns the latest iteration that is complete with them.
    pub fn reform(&mut self, members: &[Rank], iteration: u64) -> Option<JoinedIteration> {
        self.members = Some((members.to_vec(), iteration));
        // What the ranks have gone back behind is repeated.
        if self.done.is_some_and(|done| done >= iteration) {
            self.done = iteration.checked_sub(1);
        }
        for row in self.rows.range_mut(iteration..).map(|(_, row)| row) {
            let is_missing = |rank: &&Rank| row.own.get(rank.index()).is_none_or(Option::is_none);
            row.missing = members.iter().filter(is_missing).count();
        }
        let complete = |(_, row): &(&u64, &PendingIteration)| row.missing == 0 && row.totals.is_some();
        let latest = self.rows.range(iteration..).rev().find(complete).map(|(train_iter, _)| *train_iter)?;
        self.complete(latest)
    }

    /// A rank's own counters.
    pub fn own(&mut self, rank: Rank, counters: Counters) -> Option<JoinedIteration> {
        let is_member = self.members_at(counters.train_iter).is_none_or(|members| members.contains(&rank));
        let row = self.row(counters.train_iter)?;
        if row.own.get_mut(rank.index())?.replace(counters).is_none() && is_member {
            row.missing = row.missing.saturating_sub(1);
        }
        self.complete(counters.train_iter)
    }

    /// The members of an iteration; `None`: all ranks.
    fn members_at(&self, train_iter: u64) -> Option<&[Rank]> {
        let (members, since) = self.members.as_ref()?;
        (train_iter >= *since).then_some(members.as_slice())
    }

    /// The all-reduced totals, with the global rate at that moment.
    pub fn totals(
        &mut self,
        totals: Counters,
        time: WallTime,
        steps_per_s: Option<f64>,
    ) -> Option<JoinedIteration> {
        self.row(totals.train_iter)?.totals = Some((totals, time, steps_per_s));
        self.complete(totals.train_iter)
    }

    fn row(&mut self, train_iter: u64) -> Option<&mut PendingIteration> {
        if self.world_size == 0 || self.done.is_some_and(|done| train_iter <= done) {
            return None;
        }
        let limit = (CELLS / self.world_size).max(64);
        if self.rows.len() >= limit && !self.rows.contains_key(&train_iter) {
            self.rows.pop_first();
            self.dropped += 1;
        }
        let world_size = self.world_size;
        let missing = self.members_at(train_iter).map_or(world_size, <[Rank]>::len);
        let new = || PendingIteration { own: vec![None; world_size], missing, totals: None };
        Some(self.rows.entry(train_iter).or_insert_with(new))
    }

    fn complete(&mut self, train_iter: u64) -> Option<JoinedIteration> {
        let row = self.rows.get(&train_iter).filter(|row| row.missing == 0)?;
        let (totals, time, steps_per_s) = row.totals?;
        let members = self.members_at(train_iter).map(<[Rank]>::to_vec);
        let own: Vec<Counters> = match &members {
            Some(members) => members.iter().map(|rank| *row.own.get(rank.index())?).collect::<Option<_>>()?,
            None => row.own.iter().copied().collect::<Option<_>>()?,
        };
        let later = self.rows.split_off(&(train_iter.saturating_add(1)));
        self.dropped += (self.rows.len() as u64).saturating_sub(1);
        self.rows = later;
        self.done = Some(train_iter);
        let sum = sum(train_iter, &own);
        let consistent = agree(&totals, &sum);
        Some(JoinedIteration { totals, time, sum, own, members, consistent, steps_per_s, reduced: true })
    }
}

fn sum(train_iter: u64, own: &[Counters]) -> Counters {
    own.iter().fold(Counters { train_iter, ..Counters::default() }, Counters::plus)
}

fn agree(totals: &Counters, sum: &Counters) -> bool {
    let scale = totals.duration_s.abs().max(sum.duration_s.abs()).max(1e-9);
    totals.env_step == sum.env_step
        && totals.samples == sum.samples
        && totals.episodes == sum.episodes
        && (totals.duration_s - sum.duration_s).abs() <= 1e-6 * scale
}

/// Latest counters of ranks that all-reduce none, to be added up.
///
/// Such ranks need not take their counters at the same iterations. A sum is made when every rank has reported
/// newer ones since the previous sum, and at least every [`ROUND_S`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct CounterSum {
    own: Vec<Option<Counters>>,
    newer: Vec<bool>,
    /// Returns since the previous sum.
    returns: Returns,
    /// When that was made.
    made: WallTime,
}

impl CounterSum {
    /// Of a new generation.
    pub fn new(world_size: usize) -> CounterSum {
        CounterSum { own: vec![None; world_size], newer: vec![false; world_size], ..CounterSum::default() }
    }

    /// A rank's counters; the sum with every rank's own when it is time for one.
    pub fn own(
        &mut self,
        rank: Rank,
        counters: Counters,
        time: WallTime,
    ) -> Option<(Counters, Vec<Counters>)> {
        *self.own.get_mut(rank.index())? = Some(counters);
        *self.newer.get_mut(rank.index())? = true;
        self.returns = self.returns.plus(counters.returns);
        let due = self.newer.iter().all(|newer| *newer) || time - self.made >= ROUND_S;
        due.then(|| self.sum(time)).flatten()
    }

    /// The sum of whatever has not been summed yet: a rank has ended.
    pub fn rest(&mut self, time: WallTime) -> Option<(Counters, Vec<Counters>)> {
        self.newer.contains(&true).then(|| self.sum(time)).flatten()
    }

    fn sum(&mut self, time: WallTime) -> Option<(Counters, Vec<Counters>)> {
        let own: Vec<Counters> = self.own.iter().copied().collect::<Option<_>>()?;
        self.newer.fill(false);
        self.made = time;
        let train_iter = own.iter().map(|counters| counters.train_iter).min()?;
        let returns = std::mem::take(&mut self.returns);
        Some((Counters { returns, ..sum(train_iter, &own) }, own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(train_iter: u64, env_step: u64) -> Counters {
        Counters { train_iter, env_step, samples: env_step, ..Counters::default() }
    }

    #[test]
    fn join_1_totals_and_all_ranks_complete_in_any_order() {
        let mut join = TotalsMatcher::new(2);
        assert_eq!(join.own(Rank(1), at(5, 10)), None);
        assert_eq!(join.totals(at(5, 30), 1.0, None), None);
        let joined = join.own(Rank(0), at(5, 20)).unwrap();
        assert!(joined.consistent);
        assert_eq!(joined.sum.env_step, 30);
        assert_eq!(join.own(Rank(0), at(5, 20)), None, "a finished iteration is not joined again");
    }

    #[test]
    fn join_4_members_complete_an_iteration_after_a_loss() {
        let mut join = TotalsMatcher::new(3);
        for rank in [0, 1, 2] {
            join.own(Rank(rank), at(4, 10));
        }
        assert!(join.totals(at(4, 30), 1.0, None).is_some());
        // They come before the report of the loss.
        join.own(Rank(0), at(5, 25));
        join.own(Rank(2), at(5, 15));
        assert_eq!(join.totals(at(5, 40), 2.0, None), None);
        let joined = join.reform(&[Rank(0), Rank(2)], 5).unwrap();
        assert_eq!((joined.consistent, joined.own.len()), (true, 2));
        assert_eq!(joined.members, Some(vec![Rank(0), Rank(2)]));
        join.own(Rank(0), at(6, 30));
        join.own(Rank(1), at(6, 99));
        join.own(Rank(2), at(6, 20));
        let joined = join.totals(at(6, 50), 3.0, None).unwrap();
        assert_eq!((joined.consistent, joined.sum.env_step), (true, 50), "a lost rank does not count");
        assert_eq!(join.reform(&[Rank(0), Rank(1), Rank(2)], 7), None);
        for rank in [0, 1, 2] {
            join.own(Rank(rank), at(7, 20));
        }
        assert!(join.totals(at(7, 60), 4.0, None).is_some_and(|joined| joined.own.len() == 3));
    }

    #[test]
    fn join_4_repeated_iteration_is_joined_again() {
        let mut join = TotalsMatcher::new(2);
        for rank in [0, 1] {
            join.own(Rank(rank), at(8, 10));
        }
        assert!(join.totals(at(8, 20), 1.0, None).is_some());
        assert_eq!(join.reform(&[Rank(0)], 8), None);
        join.own(Rank(0), at(8, 14));
        assert!(join.totals(at(8, 14), 2.0, None).is_some_and(|joined| joined.consistent));
    }

    #[test]
    fn counters_one_step_off_are_inconsistent() {
        let mut join = TotalsMatcher::new(1);
        join.own(Rank(0), at(1, 7));
        assert!(!join.totals(at(1, 8), 0.0, None).unwrap().consistent);
        let seconds = |duration_s| Counters { train_iter: 2, duration_s, ..Counters::default() };
        join.own(Rank(0), seconds(1.0));
        assert!(join.totals(seconds(1.0 + 1e-9), 0.0, None).unwrap().consistent);
    }

    #[test]
    fn join_2_table_is_bounded_and_counts_drops() {
        let mut join = TotalsMatcher::new(CELLS / 64);
        for iter in 0..100 {
            join.own(Rank(0), at(iter, 1));
        }
        assert_eq!(join.rows.len(), 64);
        assert_eq!(join.take_dropped(), 36);
        assert_eq!(join.take_dropped(), 0);
    }

    #[test]
    fn counters_of_unknown_ranks_are_ignored() {
        let mut join = TotalsMatcher::new(1);
        assert_eq!(join.own(Rank(9), at(1, 1)), None);
        assert_eq!(TotalsMatcher::new(0).own(Rank(0), at(1, 1)), None);
    }
}
