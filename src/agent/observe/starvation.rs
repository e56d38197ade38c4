//! Ranks that want a core and get none.

use rankdeck_proto::message::HostSample;
use std::collections::BTreeMap;

/// Remembers what differences are taken from.
#[derive(Debug, Default)]
pub struct Starvation {
    at: u64,
    /// Time that each rank's main thread was ready and got no core, ms, by process.
    delays: BTreeMap<u32, u64>,
}

impl Starvation {
    /// Whether a rank has waited for a core for more than half of the time since the latest look.
    pub fn look(&mut self, sample: &HostSample) -> bool {
        let passed = sample.mono_ms.saturating_sub(self.at);
        let living = sample.ranks.iter().filter(|rank| !matches!(rank.state, 'X' | 'Z'));
        let delays: BTreeMap<u32, u64> = living.map(|rank| (rank.pid, rank.signals.delay_ms)).collect();
        let starves = |(pid, delay): (&u32, &u64)| {
            self.delays.get(pid).is_some_and(|before| 2 * delay.saturating_sub(*before) > passed)
        };
        let found = passed > 0 && delays.iter().any(starves);
        (self.at, self.delays) = (sample.mono_ms, delays);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_starves_when_most_of_its_time_goes_by_without_a_core() {
        let mut starvation = Starvation::default();
        let mut look = |mono_ms: u64, delay_ms: u64| {
            let rank = serde_json::json!({
                "rank": 0, "pid": 7, "state": "R", "cpu_percent": 0.0, "rss": 0, "children": 0, "gpu": null,
                "gpu_memory": null, "page": null, "signals": { "delay_ms": delay_ms },
            });
            let mut sample = HostSample { mono_ms, ..HostSample::default() };
            sample.ranks = vec![serde_json::from_value(rank).unwrap_or_else(|error| panic!("{error}"))];
            starvation.look(&sample)
        };
        assert!(!look(1_000, 900), "nothing to compare with");
        assert!(!look(1_500, 1_100));
        assert!(look(2_000, 1_400));
        assert!(!look(2_000, 1_900), "no time has passed");
    }
}
