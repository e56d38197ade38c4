//! How long a silence is usual: learned from the run itself, per phase and role.
//!
//! A silence is the time over which nothing on a rank's page moves while it is outside collectives. The rules
//! come from measurements on 54,873 healthy phases of a busy host: rules on the median and its deviation
//! alone raise hundreds of false alarms, a multiple of a high quantile with a floor of seconds raised none.
//! Waits are not learned: a wait is explained by the phase that the late rank is in.
//!
//! Invariants:
//! - PACE-1: memory is bounded; old values weigh less.
//! - PACE-2: a threshold is never below its floor, however regular a phase is.
//! - PACE-3: what was learned can be written down and read back ([`PaceHistory`]); what is read is cut to
//!   what a histogram can hold.

use crate::limits::TimeLimits;
use crate::watch::history::patience::LineWaits;
use rankdeck_proto::message::{Activity, Phase};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Buckets: four per doubling, up to some 70 hours.
const BUCKETS: usize = 112;
/// Values after which all weigh half.
const WINDOW: u32 = 512;
/// Values before anything is concluded.
const ENOUGH: u32 = 20;
/// No threshold of suspicion is below this, ms.
pub(crate) const SUSPECT_MS: u64 = 1_000;
/// Floor in phases that are known to be long and irregular, ms.
const LONG_MS: u64 = 30_000;

/// A histogram of silences.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(from = "Vec<u32>", into = "Vec<u32>")]
struct SilenceHistogram {
    counts: [u32; BUCKETS],
    total: u32,
}

impl Default for SilenceHistogram {
    fn default() -> SilenceHistogram {
        SilenceHistogram { counts: [0; BUCKETS], total: 0 }
    }
}

impl From<SilenceHistogram> for Vec<u32> {
    fn from(histogram: SilenceHistogram) -> Vec<u32> {
        histogram.counts.to_vec()
    }
}

impl From<Vec<u32>> for SilenceHistogram {
    fn from(mut counts: Vec<u32>) -> SilenceHistogram {
        counts.resize(BUCKETS, 0);
        let total = counts.iter().fold(0, |sum: u32, count| sum.saturating_add(*count));
        SilenceHistogram { counts: counts.try_into().unwrap_or([0; BUCKETS]), total }
    }
}

fn bucket(ms: u64) -> usize {
    let place = ((ms as f64 + 1.0).log2() * 4.0) as usize;
    place.min(BUCKETS - 1)
}

/// The largest value of a bucket.
fn upper(bucket: usize) -> f64 {
    ((bucket as f64 + 1.0) / 4.0).exp2() - 1.0
}

impl SilenceHistogram {
    fn add(&mut self, ms: u64) {
        if self.total >= WINDOW {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().sum();
        }
        if let Some(count) = self.counts.get_mut(bucket(ms)) {
            *count += 1;
            self.total += 1;
        }
    }

    /// The value that a share `q` of all values does not exceed.
    fn quantile(&self, q: f64) -> f64 {
        let target = (q * f64::from(self.total)).ceil().max(1.0);
        let mut seen = 0.0;
        for (place, count) in self.counts.iter().enumerate() {
            seen += f64::from(*count);
            if seen >= target {
                return upper(place);
            }
        }
        0.0
    }

    /// Median absolute deviation from `median`.
    fn deviation(&self, median: f64) -> f64 {
        let mut parts: Vec<(f64, u32)> = self
            .counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(place, count)| ((upper(place) - median).abs(), *count))
            .collect();
        parts.sort_by(|a, b| a.0.total_cmp(&b.0));
        let half = f64::from(self.total) / 2.0;
        let mut seen = 0.0;
        for (distance, count) in parts {
            seen += f64::from(count);
            if seen >= half {
                return distance;
            }
        }
        0.0
    }
}

/// When a silence is suspicious, and when it is an alarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SilenceThreshold {
    /// Evidence is collected from here on, ms; with a decisive reason also an alarm.
    pub suspect: u64,
    /// An alarm, ms.
    pub stuck: u64,
}

/// Which kind of silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SilenceKind {
    /// Phase; `None` for programs that report none.
    pub phase: Option<Phase>,
    /// Rank 0 has work of its own.
    pub first: bool,
    /// Code is being compiled, or nothing has been learned yet.
    pub cold: bool,
}

impl SilenceKind {
    /// Of a page, or of a program without one.
    pub fn of(page: Option<&rankdeck_proto::message::PageSample>, first: bool) -> SilenceKind {
        let cold = page.is_some_and(|page| {
            if page.by_hook {
                // Not every script has an optimizer.
                page.collective.entered <= 2
            } else {
                page.activity == Activity::Compile || (page.updates == 0 && page.train_iter <= 1)
            }
        });
        SilenceKind { phase: page.filter(|page| !page.by_hook).map(|page| page.phase), first, cold }
    }

    fn index(self) -> usize {
        let phase = self.phase.map_or(Phase::ALL.len(), |phase| phase as usize);
        phase * 2 + usize::from(self.first)
    }
}

/// Silences of all phases and roles.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct SilenceModel {
    places: Vec<SilenceHistogram>,
}

impl SilenceModel {
    /// Learns a silence that has ended by itself.
    pub fn learn(&mut self, place: SilenceKind, ms: u64) {
        let index = place.index();
        if self.places.len() <= index {
            self.places.resize_with((Phase::ALL.len() + 1) * 2, SilenceHistogram::default);
        }
        if let Some(histogram) = self.places.get_mut(index) {
            histogram.add(ms);
        }
    }

    /// What was learned so far.
    pub fn history(&self) -> PaceHistory {
        let filled = |histogram: &SilenceHistogram| {
            let all = histogram.counts.iter().zip(0u8..);
            all.filter(|(count, _)| **count > 0).map(|(count, bucket)| (bucket, *count)).collect()
        };
        PaceHistory { places: self.places.iter().map(filled).collect(), ..PaceHistory::default() }
    }

    /// Takes over what an earlier console learned, wherever that is more than is known here.
    pub fn recall(&mut self, history: &PaceHistory) {
        self.places.resize_with((Phase::ALL.len() + 1) * 2, SilenceHistogram::default);
        for (own, filled) in self.places.iter_mut().zip(&history.places) {
            let mut other = SilenceHistogram::default();
            for (bucket, count) in filled {
                if let Some(slot) = other.counts.get_mut(usize::from(*bucket)) {
                    *slot = (*count).min(WINDOW);
                }
            }
            other.total = other.counts.iter().sum();
            if other.total > own.total {
                *own = other;
            }
        }
    }

    /// What is usual at all places now.
    pub fn thresholds<'a>(&'a self, limits: &'a TimeLimits) -> SilenceThresholds<'a> {
        SilenceThresholds { pace: self, limits, known: Vec::new() }
    }

    /// What is usual there.
    pub fn threshold(&self, place: SilenceKind, limits: &TimeLimits) -> SilenceThreshold {
        let learned = self.places.get(place.index()).filter(|histogram| histogram.total >= ENOUGH);
        let start_up = matches!(place.phase, Some(Phase::Init | Phase::Rendezvous));
        let long = matches!(place.phase, Some(Phase::Eval | Phase::Checkpoint));
        if place.cold || start_up {
            return SilenceThreshold { suspect: limits.behind.min(limits.init), stuck: limits.init };
        }
        let floor = if long { LONG_MS.min(limits.rank0).max(limits.behind) } else { limits.behind };
        let Some(histogram) = learned else {
            let stuck = if long { limits.rank0 } else { floor };
            return SilenceThreshold { suspect: limits.behind.min(stuck), stuck };
        };
        let median = histogram.quantile(0.5);
        let spread = (1.4826 * histogram.deviation(median)).max(0.1 * median).max(1.0);
        let outlier = median + 20.0 * spread;
        let stuck = (5.0 * histogram.quantile(0.99)).max(outlier) as u64;
        let suspect = (3.0 * histogram.quantile(0.999)).max(outlier) as u64;
        let stuck = stuck.max(floor);
        SilenceThreshold { suspect: suspect.max(SUSPECT_MS).min(stuck), stuck }
    }
}

/// What was learned: histograms of silences, one for each kind of silence in the watch's order, and the waits at
/// each line of the program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PaceHistory {
    /// `(bucket, count)` of each kind, without empty buckets.
    pub places: Vec<Vec<(u8, u32)>>,
    /// By `FILE:LINE`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub lines: BTreeMap<String, LineWaits>,
}

/// Thresholds of a moment: there are few, and very many ranks ask.
pub(crate) struct SilenceThresholds<'a> {
    pace: &'a SilenceModel,
    limits: &'a TimeLimits,
    known: Vec<(SilenceKind, SilenceThreshold)>,
}

impl SilenceThresholds<'_> {
    /// What is usual there.
    pub fn of(&mut self, place: SilenceKind) -> SilenceThreshold {
        if let Some((_, known)) = self.known.iter().find(|(known, _)| *known == place) {
            return *known;
        }
        let threshold = self.pace.threshold(place, self.limits);
        self.known.push((place, threshold));
        threshold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: TimeLimits = TimeLimits {
        grace: 10_000,
        stop: 300_000,
        lost: 5_000,
        behind: 5_000,
        init: 120_000,
        rank0: 600_000,
        silence: None,
    };

    fn place(phase: Phase) -> SilenceKind {
        SilenceKind { phase: Some(phase), first: false, cold: false }
    }

    #[test]
    fn pace_2_regular_phase_keeps_the_floor() {
        let mut pace = SilenceModel::default();
        for _ in 0..600 {
            pace.learn(place(Phase::Learn), 20);
        }
        let found = pace.threshold(place(Phase::Learn), &LIMITS);
        assert_eq!(found, SilenceThreshold { suspect: 1_000, stuck: 5_000 });
    }

    #[test]
    fn long_silences_count_for_their_phase_and_role() {
        let mut pace = SilenceModel::default();
        for i in 0..200u64 {
            pace.learn(place(Phase::Rollout), 50);
            pace.learn(
                SilenceKind { first: true, ..place(Phase::Rollout) },
                if i % 20 == 0 { 4_000 } else { 50 },
            );
        }
        assert_eq!(pace.threshold(place(Phase::Rollout), &LIMITS).stuck, 5_000);
        let first = pace.threshold(SilenceKind { first: true, ..place(Phase::Rollout) }, &LIMITS);
        assert!((20_000..25_000).contains(&first.stuck), "{first:?}");
    }

    #[test]
    fn slow_run_raises_thresholds() {
        let mut pace = SilenceModel::default();
        for i in 0..100u64 {
            pace.learn(place(Phase::Learn), 3_000 + i % 7 * 100);
        }
        let found = pace.threshold(place(Phase::Learn), &LIMITS);
        assert!(found.suspect >= 9_000 && found.stuck >= 15_000 && found.stuck < 30_000, "{found:?}");
    }

    #[test]
    fn budgets_hold_until_enough_is_known() {
        let pace = SilenceModel::default();
        assert_eq!(pace.threshold(place(Phase::Eval), &LIMITS).stuck, 600_000);
        assert_eq!(pace.threshold(place(Phase::Init), &LIMITS).stuck, 120_000);
        assert_eq!(pace.threshold(SilenceKind { cold: true, ..place(Phase::Learn) }, &LIMITS).stuck, 120_000);
        assert_eq!(pace.threshold(place(Phase::Learn), &LIMITS).stuck, 5_000);
    }

    #[test]
    fn pace_1_old_values_fade() {
        let mut pace = SilenceModel::default();
        for _ in 0..WINDOW {
            pace.learn(place(Phase::Learn), 60_000);
        }
        assert!(pace.threshold(place(Phase::Learn), &LIMITS).stuck > 200_000);
        for _ in 0..20 * WINDOW {
            pace.learn(place(Phase::Learn), 10);
        }
        assert_eq!(pace.threshold(place(Phase::Learn), &LIMITS).stuck, 5_000);
    }

    #[test]
    fn pace_3_recalled_history_is_cut_to_fit() {
        let mut pace = SilenceModel::default();
        for _ in 0..40 {
            pace.learn(place(Phase::Learn), 3_000);
        }
        let text = serde_json::to_string(&pace.history()).unwrap();
        let mut next = SilenceModel::default();
        next.learn(place(Phase::Learn), 10);
        next.recall(&serde_json::from_str(&text).unwrap());
        let of = |pace: &SilenceModel| pace.threshold(place(Phase::Learn), &LIMITS);
        assert!(of(&next).stuck > 14_000);
        assert_eq!(of(&next), of(&pace));
        // Less than is known here changes nothing, and what does not fit is cut.
        let before = next.history();
        next.recall(&PaceHistory { places: vec![vec![(3, 1)]; 500], ..PaceHistory::default() });
        next.recall(&PaceHistory { places: vec![vec![(255, u32::MAX)]; 22], ..PaceHistory::default() });
        assert_eq!(
            next.history().places[place(Phase::Learn).index()],
            before.places[place(Phase::Learn).index()]
        );
        let full = vec![vec![(3, u32::MAX), (4, u32::MAX)]; 22];
        next.recall(&PaceHistory { places: full, ..PaceHistory::default() });
        for _ in 0..3 * WINDOW {
            next.learn(place(Phase::Learn), 10);
        }
        assert!(next.places.len() <= 2 * (Phase::ALL.len() + 1));
    }

    #[test]
    fn any_number_has_a_bucket() {
        let mut pace = SilenceModel::default();
        for ms in [0, 1, u64::MAX, u64::MAX / 2] {
            for _ in 0..30 {
                pace.learn(place(Phase::Learn), ms);
            }
        }
        assert!(pace.threshold(place(Phase::Learn), &LIMITS).stuck >= 5_000);
    }
}
