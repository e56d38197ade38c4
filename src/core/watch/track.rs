//! What must be remembered between two samples of a rank. All times are the agent's monotonic clock.

use crate::proto::message::RankSample;

/// One rank over time.
#[derive(Debug, Clone, Default)]
pub(super) struct Track {
    /// Clock of the latest sample.
    pub mono_ms: u64,
    /// Since when its collective counters stand still.
    counters: (u64, u64),
    counters_since: u64,
    /// Since when its process is stopped.
    stopped_since: Option<u64>,
    /// The latest silence of its page, and whether a stop explains it.
    quiet: (u64, bool),
    /// The three longest silences that it has come back from, longest first.
    quiets: [u64; 3],
    seen: bool,
}

impl Track {
    /// Takes a sample; `mono_ms` is the agent's clock at it.
    pub fn observe(&mut self, mono_ms: u64, sample: &RankSample) {
        let counters =
            sample.page.as_ref().map_or((0, 0), |page| (page.collective.entered, page.collective.left));
        if !self.seen || counters != self.counters || mono_ms < self.mono_ms {
            self.counters = counters;
            self.counters_since = mono_ms;
        }
        let stopped = matches!(sample.state, 'T' | 't');
        self.stopped_since = match (stopped, self.stopped_since) {
            (true, Some(since)) => Some(since.min(mono_ms)),
            (true, None) => Some(mono_ms),
            (false, _) => None,
        };
        if let Some(page) = &sample.page {
            let age = page.heartbeat_age_ms;
            let (before, explained) = self.quiet;
            let inside = page.collective.left < page.collective.entered;
            if age >= before {
                self.quiet = (age, explained || stopped || inside);
            } else {
                if !explained {
                    self.learn(before);
                }
                self.quiet = (age, stopped || inside);
            }
        }
        self.mono_ms = mono_ms;
        self.seen = true;
    }

    fn learn(&mut self, quiet: u64) {
        if let Some(place) = self.quiets.iter().position(|known| quiet > *known) {
            self.quiets[place..].rotate_right(1);
            self.quiets[place] = quiet;
        }
    }

    /// Milliseconds over which its collective counters have not moved.
    pub fn still_ms(&self) -> u64 {
        self.mono_ms.saturating_sub(self.counters_since)
    }

    /// Milliseconds for which its process has been seen stopped; `None` when it is not.
    pub fn stopped_ms(&self) -> Option<u64> {
        self.stopped_since.map(|since| self.mono_ms.saturating_sub(since))
    }

    /// Silence that it has come back from at least three times.
    pub fn usual_quiet_ms(&self) -> u64 {
        self.quiets[2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::testkit::rank_sample;

    #[test]
    fn a_stop_is_counted_from_its_first_sample_and_ends() {
        let mut track = Track::default();
        let mut sample = rank_sample(0);
        track.observe(1_000, &sample);
        assert_eq!(track.stopped_ms(), None);
        sample.state = 'T';
        track.observe(1_500, &sample);
        track.observe(2_600, &sample);
        assert_eq!(track.stopped_ms(), Some(1_100));
        sample.state = 'S';
        track.observe(3_000, &sample);
        assert_eq!(track.stopped_ms(), None);
    }

    #[test]
    fn a_pause_is_usual_only_the_third_time() {
        let mut track = Track::default();
        let mut sample = rank_sample(0);
        let mut hear = |track: &mut Track, age: u64| {
            sample.page.as_mut().unwrap().heartbeat_age_ms = age;
            track.observe(track.mono_ms + 500, &sample);
        };
        for expected in [0, 0, 7_000] {
            hear(&mut track, 7_000);
            hear(&mut track, 10);
            assert_eq!(track.usual_quiet_ms(), expected);
        }
    }
}
