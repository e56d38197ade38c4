//! Values of a program without the client module between two records.
//!
//! Invariants:
//! - METRICS-1: at most one record of printed values per second, and a bounded number of those of files; of several
//!   values of one name the last is recorded (of `return` the mean) with their extremes, the others counted.
//! - At most [`NAMES`] names.

use rankdeck_proto::message::RecordEvent;
use rankdeck_types::ids::Rank;
use rankdeck_types::meaning;
use std::collections::BTreeMap;
use std::time::Duration;

/// Between two records of one source.
pub(super) const EVERY: Duration = Duration::from_secs(1);
/// Most names of values.
const NAMES: usize = 256;

/// What the charts are called that several programs have: CleanRL logs the same values under these names.
pub(super) fn chart(name: &str) -> String {
    match name {
        "return" | "episodic_return" => meaning::RETURN.into(),
        "SPS" | "sps" => meaning::SPEED.into(),
        other => other.into(),
    }
}

/// Values of one name since the last record.
#[derive(Debug, Clone, Copy)]
struct MergedValue {
    /// The last one, or the mean of all.
    value: f64,
    count: u64,
    low: f64,
    high: f64,
    /// The mean is recorded.
    mean: bool,
}

impl MergedValue {
    /// With those that came before it.
    fn after(self, older: MergedValue) -> MergedValue {
        let count = self.count.saturating_add(older.count);
        let share = older.count as f64 / count.max(1) as f64;
        let value = if self.mean { self.value * (1.0 - share) + older.value * share } else { self.value };
        MergedValue { value, count, low: self.low.min(older.low), high: self.high.max(older.high), ..self }
    }
}

/// Values since the last record.
#[derive(Debug, Default)]
pub(super) struct PendingValues {
    pub env_step: Option<u64>,
    values: BTreeMap<String, MergedValue>,
    pub skipped: u64,
    not_finite: BTreeMap<String, u64>,
}

impl PendingValues {
    /// Adds a value.
    pub fn add(&mut self, name: &str, value: f64) {
        let (name, mean) = (chart(name), matches!(name, "return" | "episodic_return"));
        let known = self.values.contains_key(&name) || self.not_finite.contains_key(&name);
        if self.values.len() + self.not_finite.len() >= NAMES && !known {
            self.skipped += 1;
            return;
        }
        if !value.is_finite() {
            // The latest failure counts: a number from before it would be recorded as the newest value.
            self.skipped += self.values.remove(&name).map_or(0, |_| 1);
            *self.not_finite.entry(name).or_default() += 1;
            return;
        }
        self.put(name, MergedValue { value, count: 1, low: value, high: value, mean });
    }

    /// Adds what came after all that is there.
    fn put(&mut self, name: String, newer: MergedValue) {
        match self.values.get_mut(&name) {
            Some(known) => {
                self.skipped += u64::from(!newer.mean);
                *known = newer.after(*known);
            }
            None => drop(self.values.insert(name, newer)),
        }
    }

    /// The same with what came after it.
    pub fn then(mut self, newer: PendingValues) -> PendingValues {
        self.env_step = newer.env_step.or(self.env_step);
        self.skipped += newer.skipped;
        for (name, count) in newer.not_finite {
            self.skipped += self.values.remove(&name).map_or(0, |_| 1);
            *self.not_finite.entry(name).or_default() += count;
        }
        newer.values.into_iter().for_each(|(name, value)| self.put(name, value));
        self
    }

    /// A record without values.
    pub fn step(source: &str, rank: Rank, env_step: Option<u64>) -> RecordEvent {
        RecordEvent::Metrics {
            rank,
            source: source.into(),
            env_step,
            values: BTreeMap::new(),
            skipped: 0,
            not_finite: BTreeMap::new(),
            spread: BTreeMap::new(),
            counter: None,
            progress: None,
        }
    }

    /// The record of all values since the latest one.
    pub fn take(&mut self, source: &str, rank: Rank) -> Option<RecordEvent> {
        if self.values.is_empty() && self.not_finite.is_empty() {
            return None;
        }
        let taken = std::mem::take(self);
        self.env_step = taken.env_step;
        Some(RecordEvent::Metrics {
            rank,
            source: source.into(),
            env_step: taken.env_step,
            spread: taken
                .values
                .iter()
                .filter(|(_, value)| value.low < value.high)
                .map(|(name, value)| (name.clone(), (value.low, value.high)))
                .collect(),
            values: taken.values.into_iter().map(|(name, value)| (name, value.value)).collect(),
            skipped: taken.skipped,
            not_finite: taken.not_finite,
            counter: None,
            progress: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_finite_values_are_reported_by_name_and_count() {
        let mut gathered = PendingValues::default();
        for (name, value) in
            [("loss", 0.5), ("loss", f64::NAN), ("kl", f64::INFINITY), ("kl", 0.25), ("loss", f64::NAN)]
        {
            gathered.add(name, value);
        }
        let Some(RecordEvent::Metrics { values, not_finite, .. }) = gathered.take("stdout", Rank(0)) else {
            panic!("no record")
        };
        assert_eq!(values, BTreeMap::from([("kl".into(), 0.25)]), "a number is the newest of kl only");
        assert_eq!(not_finite, BTreeMap::from([("loss".into(), 2), ("kl".into(), 1)]));
    }
}
