//! Replicas: ranks whose optimizers update the same weights. Fingerprints of the weights come with the status
//! pages of scripts, by optimizer and position: collectives of all ranks before it, and steps of the optimizer
//! since the latest of them. Healthy ranks may make different numbers of steps between two exchanges (as many as
//! fit into some time, an epoch that ends by each rank's own measure, DDP's `Join`), so only weights at the same
//! position are compared, whatever the ranks' numbers of steps there. A rank that skips a step differs at the next
//! one. Ranks of an older hook have steps instead of positions.
//!
//! Programs do not declare which ranks are replicas: a model may be split over ranks, and a rank may have
//! parameters that no other has. So equality is learned. Parameters lie in lanes; ranks that agree about a
//! lane at the first position that is known of all of them belong together. What follows from a later difference
//! depends on what was learned:
//!
//! - a lane that changed and was still equal, time and again, was kept equal by the program: a difference
//!   is an error. Once or twice is a coincidence: the first step of Adam is as large for every gradient, and
//!   a part of the model that each rank has for itself may go the same way;
//! - weights that were all equal before the first step, and of which nothing is equal after it, were never
//!   synchronized;
//! - where some lanes stay equal and others do not, the others may be meant to differ. So may an optimizer
//!   that differs as a whole next to another one that does not;
//! - weights that were never equal, and that the same amounts are added to on every rank, began differently:
//!   ranks average gradients, and the first weights were not broadcast.
//!
//! A program may average weights now and then instead of gradients (local SGD). Its replicas are equal behind
//! a collective only, so they are compared only there, and a difference counts once it has outlasted several
//! collectives: others than those that average are made, too. The hook counts as one what moves about as many
//! elements as there are weights. That ranks train apart in between is a warning: it may be meant. So is a program
//! that never exchanges as much: its ranks may be independent learners that began alike.
//!
//! Hosts with different processors may round differently: a difference in the last bits only is reported as
//! such.

use crate::watch::history::rank_history::RankHistory;
use rankdeck_proto::message::{FingerprintPosition, FingerprintSample};
use rankdeck_types::ids::Rank;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Lanes of a fingerprint.
const LANES: usize = 8;
/// Steps after which a rank without this optimizer has none.
const LONG_IN: u64 = 32;
/// Steps among which one without a collective before it shows a program that averages now and then.
const FIRST: u64 = 64;
/// Collectives, or parts of a round between two of them, that a difference outlasts in such a program.
const OUTLASTED: u32 = 8;
/// Steps between collectives at which weights differed, after which the ranks train apart in between.
const APART: u32 = 8;
/// Difference of sums, relative to the sum of all magnitudes, up to which weights may differ by rounding.
const ROUNDING: f64 = 1e-6;
/// Steps compared at which a lane changed and was equal, after which the program keeps it so. The second
/// holds where other lanes of the same ranks stay equal, or never were: a sign of a single number is often
/// the same by chance.
const KEPT: u32 = 8;
const KEPT_IN_PART: u32 = 64;
/// Steps compared at which different weights were changed alike, after which they have begun apart, and how
/// many more than those at which they were not.
const ALIKE: u32 = 6;
const ALIKE_TIMES: u32 = 8;
/// Share of a change by which those of two ranks may differ, as by weight decay, and the least change that
/// counts, relative to the sum of all magnitudes.
const ALIKE_SHARE: f64 = 0.05;
const LEAST_CHANGE: f64 = 5e-8;

/// How sure a difference is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum DriftConfidence {
    /// Other weights of the same model stay equal: these may be meant to differ.
    InPart,
    /// They are equal behind some collectives only, as in local SGD.
    Seldom,
    /// They were equal before the first step, and nothing as large as they are was exchanged since.
    NeverExchanged,
    /// They were never equal, and the same changes are made to them.
    BeganApart,
    /// No more than rounding.
    Rounding,
    /// All weights were equal before the first step, and none is after it.
    NeverEqual,
    /// The program kept them equal before.
    KeptEqual,
}

/// Weights that differ between replicas.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WeightDrift {
    pub grounds: DriftConfidence,
    /// The optimizer's number, in the order of first steps.
    pub optimizer: u32,
    /// The last step known at which they were equal, and the first at which they were not; the same one where
    /// they never were. Where numbers of steps differ, those of the first rank.
    pub equal_at: u64,
    pub differ_at: u64,
    /// Ranks in groups that agree, the largest first.
    pub sides: Vec<Vec<Rank>>,
}

impl WeightDrift {
    /// The ranks that differ from a strict majority.
    pub fn odd(&self) -> Vec<Rank> {
        let all: usize = self.sides.iter().map(Vec::len).sum();
        match self.sides.first() {
            Some(most) if most.len() * 2 > all => self.sides.iter().skip(1).flatten().copied().collect(),
            _ => Vec::new(),
        }
    }
}

/// Weights that contain NaN or Inf.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NotFinite {
    pub step: u64,
    pub optimizer: u32,
    /// Those that were so first.
    pub ranks: Vec<Rank>,
    /// How many ranks have weights of this optimizer.
    pub of: usize,
}

/// Ranks that agree about a lane.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Replica {
    ranks: Vec<Rank>,
    value: u32,
    /// How many times it changed, and they still agreed.
    kept: u32,
}

/// What was done to weights that differ.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct UpdateHistory {
    /// The sums at the step before, by rank.
    sums: Vec<f64>,
    /// The first step of all.
    since: u64,
    /// All weights were equal once.
    agreed: bool,
    /// Steps at which all ranks changed by the same amount, and at which they did not.
    alike: u32,
    unlike: u32,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Comparison {
    compared_upto: Option<FingerprintPosition>,
    /// Compared before any step was made.
    from_start: bool,
    everybody: Vec<Rank>,
    /// Steps are made between collectives.
    local: bool,
    /// A step behind a collective was compared.
    synced: bool,
    /// Steps behind collectives at which they differed, one after the other.
    apart: u32,
    /// Steps between collectives at which they differed.
    between: u32,
    /// The last step at which they were compared.
    compared: u64,
    /// How many steps were compared with the one before.
    steps: u64,
    lanes: [Vec<Replica>; LANES],
    changes: UpdateHistory,
    drift: Option<WeightDrift>,
    /// What a difference by rounding is when it grows.
    grown: Option<DriftConfidence>,
    not_finite: Option<NotFinite>,
}

/// What is known about the replicas of a generation, by optimizer.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Replicas {
    optimizers: BTreeMap<u32, Comparison>,
}

impl Replicas {
    /// Compares what has come since the last call.
    pub fn compare(&mut self, living: &[(Rank, &RankHistory)]) {
        let optimizers: BTreeSet<u32> = living.iter().flat_map(|(_, track)| track.optimizers()).collect();
        for optimizer in optimizers {
            self.optimizers.entry(optimizer).or_default().compare(optimizer, living);
        }
    }

    /// The worst difference.
    pub fn drift(&self) -> Option<WeightDrift> {
        let drifts = self.optimizers.iter().filter_map(|(number, known)| {
            let drift = known.drift.clone()?;
            if drift.grounds != DriftConfidence::NeverEqual {
                return Some(drift);
            }
            // A head that each rank has for itself may have its own optimizer, too.
            let mut others = self.optimizers.iter().filter(|(other, _)| *other != number);
            if others.clone().any(|(_, other)| other.agrees()) {
                return Some(WeightDrift { grounds: DriftConfidence::InPart, ..drift });
            }
            let undecided = others.any(|(_, other)| other.compared_upto.is_some() && other.steps == 0);
            (!undecided).then_some(drift)
        });
        drifts.max_by_key(|drift| drift.grounds)
    }

    /// All ranks train the same weights, as far as is known.
    pub fn agree(&self) -> bool {
        let is_clean = self.drift().is_none() && self.not_finite().is_none();
        is_clean && self.optimizers.values().any(Comparison::agrees)
    }

    /// The first that were not finite.
    pub fn not_finite(&self) -> Option<&NotFinite> {
        self.optimizers.values().find_map(|known| known.not_finite.as_ref())
    }
}

type RankFingerprints<'a> = Vec<(Rank, &'a FingerprintSample)>;

impl Comparison {
    fn compare(&mut self, optimizer: u32, living: &[(Rank, &RankHistory)]) {
        let of = |track: &RankHistory| track.weights(optimizer, None).next().is_some();
        let members: Vec<&(Rank, &RankHistory)> = living.iter().filter(|(_, track)| of(track)).collect();
        self.find_not_finite(optimizer, &members);
        let Some((_, first)) = members.first().filter(|_| members.len() > 1) else { return };
        let ranks: Vec<Rank> = members.iter().map(|(rank, _)| *rank).collect();
        if ranks != self.everybody {
            // Some ranks may have no such optimizer by design; others report a little later.
            let made = first.weights(optimizer, None).next_back();
            if members.len() < living.len() && made.is_none_or(|(_, latest)| latest.step < LONG_IN) {
                return;
            }
            let Comparison { drift, not_finite, .. } = std::mem::take(self);
            *self = Comparison { drift, not_finite, everybody: ranks, ..Comparison::default() };
        }
        for (position, sample) in first.weights(optimizer, self.compared_upto) {
            let at: Option<RankFingerprints<'_>> = members
                .iter()
                .map(|(rank, track)| Some((*rank, track.weights_at(optimizer, position)?)))
                .collect();
            let Some(at) = at.filter(|at| at.iter().all(|(_, sample)| sample.finite)) else { continue };
            if self.compared_upto.replace(position).is_none() {
                self.begin(sample.step, &at);
            } else {
                self.step(optimizer, sample.step, &at);
            }
        }
    }

    fn find_not_finite(&mut self, optimizer: u32, members: &[&(Rank, &RankHistory)]) {
        if self.not_finite.is_some() {
            return;
        }
        let first = |track: &RankHistory| {
            let (position, sample) = track.weights(optimizer, None).find(|(_, sample)| !sample.finite)?;
            Some((position, sample.step))
        };
        let found: Vec<(Rank, (FingerprintPosition, u64))> =
            members.iter().filter_map(|(rank, track)| Some((*rank, first(track)?))).collect();
        let Some((position, step)) = found.iter().map(|(_, at)| *at).min() else { return };
        let ranks = found.iter().filter(|(_, (at, _))| *at == position).map(|(rank, _)| *rank).collect();
        self.not_finite = Some(NotFinite { step, optimizer, ranks, of: members.len() });
    }

    /// Compares the finite weights at a position; `step`: of the first rank.
    fn step(&mut self, optimizer: u32, step: u64, at: &RankFingerprints<'_>) {
        if self.is_between(optimizer, step, at) {
            return;
        }
        let before = std::mem::replace(&mut self.compared, step);
        self.steps += 1;
        let mut split: Vec<(u32, usize, Vec<Rank>)> = Vec::new();
        let mut together: Vec<Vec<Rank>> = Vec::new();
        for lane in 0..LANES {
            for replica in std::mem::take(&mut self.lanes[lane]) {
                let (same, ended) = replica.follow(lane, at);
                match ended {
                    Some(ended) => split.push((replica.kept, lane, ended)),
                    None => {
                        together.extend(same.iter().filter(|one| one.kept > 0).map(|one| one.ranks.clone()))
                    }
                }
                self.lanes[lane].extend(same);
            }
        }
        if let Some((kept, _, ranks)) = split.iter().max_by_key(|(kept, _, ranks)| (*kept, ranks.len())) {
            let sides = sides(ranks, at);
            let most = sides.first().map_or(0, Vec::len);
            // Pairs of equal ranks are several models.
            let apart = most == 1 || (most * 2 > ranks.len() && sides.len() == ranks.len() - most + 1);
            let contains = |others: &[Rank]| ranks.iter().all(|rank| others.contains(rank));
            // Of models of each rank's own, too, a small lane is the same for a while by chance.
            let whole = (0..LANES).all(|lane| {
                let ended = split.iter().any(|(_, other, ranks)| *other == lane && contains(ranks));
                let unused = at.iter().all(|(_, sample)| sample.lanes[lane] == 0);
                ended || unused || self.lanes[lane].iter().any(|replica| contains(&replica.ranks))
            });
            let in_part = !whole || together.iter().any(|others| contains(others));
            let grounds = if *kept >= if in_part { KEPT_IN_PART } else { KEPT } {
                DriftConfidence::KeptEqual
            } else if self.from_start && together.is_empty() && *ranks == self.everybody && apart {
                DriftConfidence::NeverEqual
            } else {
                DriftConfidence::InPart
            };
            self.found(WeightDrift { grounds, optimizer, equal_at: before, differ_at: step, sides });
        }
        if self.changed_alike(at) {
            let (since, sides) = (self.changes.since, sides(&self.everybody, at));
            let grounds = DriftConfidence::BeganApart;
            self.found(WeightDrift { grounds, optimizer, equal_at: since, differ_at: since, sides });
        }
        self.weigh(at);
    }

    fn found(&mut self, drift: WeightDrift) {
        if self.drift.as_ref().is_none_or(|known| known.grounds < drift.grounds) {
            self.grown = Some(drift.grounds);
            self.drift = Some(drift);
        }
    }

    /// All ranks have some of these weights in common, and change them.
    fn agrees(&self) -> bool {
        let common = |replica: &Replica| replica.kept > 0 && replica.ranks == self.everybody;
        self.lanes.iter().flatten().any(common)
    }

    /// The weights were never equal, and what is added to them is. Parts of a model, and models of each
    /// rank's own, change each in its own way.
    fn changed_alike(&mut self, at: &RankFingerprints<'_>) -> bool {
        let before = self.changes.take(at);
        let changes = &mut self.changes;
        let synced = !self.local && at.iter().all(|(_, sample)| sample.synced);
        if changes.agreed || !synced || before.len() != at.len() {
            return false;
        }
        let moved = at.iter().zip(&before).map(|((_, sample), before)| sample.sum - before);
        let (low, high) = moved.fold((f64::MAX, f64::MIN), |(low, high), by| (low.min(by), high.max(by)));
        let most = low.abs().max(high.abs());
        let scale = at.iter().map(|(_, sample)| sample.scale).fold(0.0, f64::max);
        if most <= scale * LEAST_CHANGE {
            return false;
        }
        let counter = if high - low <= most * ALIKE_SHARE { &mut changes.alike } else { &mut changes.unlike };
        *counter = counter.saturating_add(1);
        changes.alike >= ALIKE && changes.alike >= changes.unlike.saturating_mul(ALIKE_TIMES)
    }

    /// Nothing follows from this step: the program averages weights now and then, and this is not where it
    /// does.
    fn is_between(&mut self, optimizer: u32, step: u64, at: &RankFingerprints<'_>) -> bool {
        let synced = at.iter().all(|(_, sample)| sample.synced);
        self.local |= !synced && step < FIRST || at.iter().any(|(_, sample)| sample.local);
        self.synced |= synced;
        if !self.local {
            return false;
        }
        let mut replicas = self.lanes.iter().enumerate();
        let differ = replicas.any(|(lane, all)| all.iter().any(|one| one.follow(lane, at).1.is_some()));
        if synced {
            self.apart = if differ { self.apart + 1 } else { 0 };
            let has_begun = |drift: &WeightDrift| drift.grounds == DriftConfidence::NeverExchanged;
            if !differ && self.drift.as_ref().is_some_and(has_begun) {
                self.drift = None;
            }
            return differ && self.apart < OUTLASTED;
        }
        self.between = self.between.saturating_add(u32::from(differ));
        let grounds = match (self.synced, self.from_start) {
            (true, _) if self.between >= APART && self.apart == 0 => Some(DriftConfidence::Seldom),
            (false, true) if differ && step >= FIRST => Some(DriftConfidence::NeverExchanged),
            _ => None,
        };
        if let Some(grounds) = grounds.filter(|_| differ) {
            let sides = sides(&self.everybody, at);
            self.found(WeightDrift { grounds, optimizer, equal_at: self.compared, differ_at: step, sides });
        }
        true
    }

    /// The first position that is known of all: ranks that agree about a lane are taken for replicas.
    fn begin(&mut self, step: u64, at: &RankFingerprints<'_>) {
        self.compared = step;
        for lane in 0..LANES {
            let mut alike: BTreeMap<(u32, u32), Vec<Rank>> = BTreeMap::new();
            for (rank, sample) in at {
                alike.entry((sample.shapes, sample.lanes[lane])).or_default().push(*rank);
            }
            let used = |value: u32| value != 0;
            self.lanes[lane] = alike
                .into_iter()
                .filter(|((_, value), ranks)| ranks.len() > 1 && used(*value))
                .map(|((_, value), ranks)| Replica { ranks, value, kept: 0 })
                .collect();
        }
        let whole = |lane: usize| {
            let unused = at.iter().all(|(_, sample)| sample.lanes[lane] == 0);
            unused || self.lanes[lane].iter().any(|replica| replica.ranks == self.everybody)
        };
        self.from_start = at.iter().all(|(_, sample)| sample.step == 0) && (0..LANES).all(whole);
        self.changes.since = step;
        self.changes.take(at);
    }

    /// Rechecks a difference that may be rounding: an error grows.
    fn weigh(&mut self, at: &RankFingerprints<'_>) {
        let Some(drift) = &mut self.drift else { return };
        if drift.grounds < DriftConfidence::Rounding {
            return;
        }
        let of = |rank: &Rank| at.iter().find(|(other, _)| other == rank).map(|(_, sample)| *sample);
        let samples: Vec<&FingerprintSample> = drift.sides.iter().flatten().filter_map(of).collect();
        let extent = |value: fn(&FingerprintSample) -> f64| {
            let values = samples.iter().map(|sample| value(sample));
            let (low, high) =
                values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
            high - low
        };
        let scale = samples.iter().map(|sample| sample.scale).fold(f64::MIN_POSITIVE, f64::max);
        let apart = extent(|sample| sample.sum).max(extent(|sample| sample.scale)) / scale;
        let sure = self.grown.unwrap_or(drift.grounds);
        if apart <= ROUNDING {
            drift.grounds = drift.grounds.min(DriftConfidence::Rounding);
        } else if drift.grounds == DriftConfidence::Rounding {
            drift.grounds = sure;
        }
    }
}

impl UpdateHistory {
    /// The weights at a step; returns the sums before.
    fn take(&mut self, at: &RankFingerprints<'_>) -> Vec<f64> {
        let of = |sample: &FingerprintSample| (sample.shapes, sample.lanes);
        let mut all = at.iter().map(|(_, sample)| *sample);
        let first = all.next();
        let equal = first.is_some_and(|first| all.clone().all(|other| of(other) == of(first)));
        // Other shapes are other models, which need not agree.
        let alike = first.is_some_and(|first| all.all(|other| other.shapes == first.shapes));
        self.agreed |= equal || !alike;
        std::mem::replace(&mut self.sums, at.iter().map(|(_, sample)| sample.sum).collect())
    }
}

impl Replica {
    /// What becomes of it at a step: the replicas that are left, and its ranks if they do not agree any more.
    fn follow(&self, lane: usize, at: &RankFingerprints<'_>) -> (Vec<Replica>, Option<Vec<Rank>>) {
        let mut alike: BTreeMap<u32, Vec<Rank>> = BTreeMap::new();
        for (rank, sample) in at.iter().filter(|(rank, _)| self.ranks.contains(rank)) {
            alike.entry(sample.lanes[lane]).or_default().push(*rank);
        }
        let ended = (alike.len() > 1).then(|| self.ranks.clone());
        let left = alike.into_iter().filter(|(_, ranks)| ranks.len() > 1).map(|(value, ranks)| {
            let changed = ended.is_none() && value != self.value;
            Replica { ranks, value, kept: self.kept.saturating_add(u32::from(changed)) }
        });
        (left.collect(), ended)
    }
}

/// Ranks by what they have, the largest group first.
fn sides(ranks: &[Rank], at: &RankFingerprints<'_>) -> Vec<Vec<Rank>> {
    let mut alike: BTreeMap<[u32; LANES], Vec<Rank>> = BTreeMap::new();
    for (rank, sample) in at.iter().filter(|(rank, _)| ranks.contains(rank)) {
        alike.entry(sample.lanes).or_default().push(*rank);
    }
    let mut sides: Vec<Vec<Rank>> = alike.into_values().collect();
    sides.sort_by_key(|ranks| std::cmp::Reverse(ranks.len()));
    sides
}

#[cfg(test)]
mod tests;
