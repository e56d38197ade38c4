//! How long a stop waits for ranks: one function of times, milliseconds on the agent's monotonic clock.
//!
//! A program is asked by one signal, and by another one if it handles two (PROGRAM-4). The wait for each begins
//! again at every heartbeat. Invariants:
//! - LIFE-5: the grace counts from the latest sign: the ranks' last progress, or a checkpoint file that grew.
//!   A stop takes no longer than `launch.stop_limit_s`, or the grace if that is longer.
//! - LIFE-6: a clean stop waits for an iteration under way: at least one and a half times the longest that
//!   ranks have reported lately. For a program that reports none, the configured grace holds.
//! - LIFE-7: on a host that has no core for a rank, a clean stop gives up to four times the grace.
//! - LIFE-8: of a stop with two signals, the second one has its grace within the same limit.

/// Graces of a clean stop on a host that has no core for its ranks.
const STARVED: u64 = 4;

/// The times of a stop.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct StopTimes {
    pub ordered_at: u64,
    /// When the present signal was sent.
    pub asked_at: u64,
    /// The latest sign of life.
    pub sign_at: Option<u64>,
    /// When a rank was last seen without a core.
    pub starved_at: Option<u64>,
    pub grace: u64,
    /// The longest iteration lately.
    pub iteration: Option<u64>,
    /// Most that a stop may take.
    pub limit: u64,
    /// Another signal follows the present one.
    pub asks_again: bool,
}

impl StopTimes {
    /// When the wait for the present signal is over.
    pub fn deadline(&self) -> u64 {
        let quiet = self.asked_at.max(self.sign_at.unwrap_or(0)).saturating_add(self.patience());
        let most_starved = self.ordered_at.saturating_add(self.patience().saturating_mul(STARVED));
        let starved = self.starved_at.map_or(0, |at| at.saturating_add(self.patience()).min(most_starved));
        let (end, reserve) = (self.end(), self.grace.saturating_mul(u64::from(self.asks_again)));
        let has_room = end.saturating_sub(self.ordered_at) >= reserve.saturating_mul(2);
        quiet.max(starved).min(if has_room { end.saturating_sub(reserve) } else { end })
    }

    /// When ranks are killed that give no further sign.
    pub fn kill_at(&self) -> u64 {
        let deadline = self.deadline();
        if self.asks_again { deadline.saturating_add(self.patience()).min(self.end()) } else { deadline }
    }

    /// How long to wait for a sign (LIFE-6).
    pub fn patience(&self) -> u64 {
        let iteration = self.iteration.filter(|_| self.grace > 0).unwrap_or(0);
        self.grace.max(iteration.saturating_add(iteration / 2).min(self.limit))
    }

    fn end(&self) -> u64 {
        self.ordered_at.saturating_add(self.limit.max(self.grace))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stop() -> StopTimes {
        StopTimes { ordered_at: 100, asked_at: 100, grace: 1_000, limit: 5_000, ..StopTimes::default() }
    }

    #[test]
    fn life_5_grace_counts_from_the_latest_sign() {
        assert_eq!((stop().deadline(), stop().kill_at()), (1_100, 1_100));
        let signed = |sign_at| StopTimes { sign_at: Some(sign_at), ..stop() };
        assert_eq!(signed(600).deadline(), 1_600);
        assert_eq!(signed(50).deadline(), 1_100, "before the order");
        assert_eq!(signed(4_900).deadline(), 5_100, "the limit");
        let short = StopTimes { limit: 10, ..signed(900) };
        assert_eq!(short.deadline(), 1_100, "a grace above the limit is the limit");
        assert_eq!(StopTimes { grace: 0, ..signed(900) }.deadline(), 900);
    }

    #[test]
    fn life_6_and_7_slow_ranks_have_more_time() {
        let slow = |iteration| StopTimes { iteration: Some(iteration), ..stop() };
        assert_eq!(slow(2_000).deadline(), 3_100);
        assert_eq!(slow(100).deadline(), 1_100, "the grace is longer");
        assert_eq!(slow(60_000).deadline(), 5_100, "the limit");
        assert_eq!(StopTimes { grace: 0, ..slow(2_000) }.deadline(), 100, "a kill");
        let starved = |at| StopTimes { starved_at: Some(at), ..stop() };
        assert_eq!((starved(2_000).deadline(), starved(4_050).deadline()), (3_000, 4_100));
        assert_eq!(StopTimes { limit: 2_000, ..starved(4_050) }.deadline(), 2_100);
    }

    #[test]
    fn life_8_second_signal_has_its_grace() {
        let first = StopTimes { asks_again: true, ..stop() };
        assert_eq!((first.deadline(), first.kill_at()), (1_100, 2_100));
        let busy = StopTimes { sign_at: Some(6_000), ..first.clone() };
        assert_eq!((busy.deadline(), busy.kill_at()), (4_100, 5_100), "its grace is within the limit");
        let second = StopTimes { asked_at: 4_100, asks_again: false, ..busy };
        assert_eq!((second.deadline(), second.kill_at()), (5_100, 5_100));
        let tight = StopTimes { limit: 1_500, ..first };
        assert_eq!((tight.deadline(), tight.kill_at()), (1_100, 1_600), "no room for two graces");
    }
}
