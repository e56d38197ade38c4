//! How old the figures on the screen are: which hosts are unheard, and whether training stands still. Pure.
//!
//! Invariants:
//! - UI-12: what is older than two samples carries its age, and [`next_change`] names the moment at which an
//!   age on the screen grows, so that it grows although nothing arrives.

use rankdeck_core::model::{HostModel, Model, Progress, RankLife, RankModel, RunState};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words;

/// A host that has said nothing for so long is unheard, ms: two samples, which come at least once a second.
pub const UNHEARD_MS: u64 = 2_000;
/// A rank without a sign of life for so long stands still, ms.
pub const STILL_MS: u64 = 3_000;

/// The figures of the whole run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Environment steps of all ranks.
    pub env_step: u64,
    /// Steps per second when they came.
    pub steps_per_s: f64,
    /// Seconds to the goal at that speed.
    pub eta_s: Option<f64>,
    /// Age in ms once it is beyond what is usual.
    pub late_ms: Option<u64>,
    /// They are late, and no rank that is heard shows a sign of life.
    pub stalled: bool,
}

/// The run's figures at `now`: rank 0's latest totals, else the latest that all ranks have confirmed.
pub fn figures(model: &Model, now: Timestamp) -> Option<Figures> {
    let (env_step, steps_per_s, age, gap_ms) = match (&model.latest, &model.progress) {
        (Some(latest), _) => (latest.counters.env_step, latest.steps_per_s, latest.since(now), latest.gap_ms),
        (None, Some(progress)) => (progress.totals.env_step, progress.steps_per_s, progress.since(now), 0),
        (None, None) => return None,
    };
    let goes_on = model.run.state == RunState::Running;
    let late_ms = Some(age).filter(|age| !is_over(model) && *age > due(gap_ms));
    let left = model.run.total_steps.map(|goal| goal.saturating_sub(env_step) as f64);
    Some(Figures {
        env_step,
        steps_per_s,
        eta_s: left.filter(|_| steps_per_s > 0.0).map(|left| left / steps_per_s),
        late_ms,
        stalled: late_ms.is_some() && goes_on && !moves(model, now),
    })
}

/// Nothing of it runs any more: its speeds are history.
pub fn is_over(model: &Model) -> bool {
    model.run.state == RunState::Over
}

/// What is known of a rank is not the present: it is gone, unheard, or the run is over.
pub fn is_past(model: &Model, rank: &RankModel, now: Timestamp) -> bool {
    let gone = is_over(model) || matches!(rank.life, RankLife::Exited(_));
    gone || unheard_rank(model, rank, now).is_some()
}

/// When what is known of a rank was so; `None` while it is the present.
pub fn was(model: &Model, rank: &RankModel, now: Timestamp) -> Option<String> {
    let sampled = rank.sampled.filter(|_| is_past(model, rank, now))?;
    Some(match model.run.ended.filter(|_| is_over(model)).map(|ended| ended.since(sampled)) {
        Some(0) => "at the end".into(),
        Some(ms) => format!("{} before the end", words::duration_ms(ms)),
        None => format!("{} ago", words::duration_ms(now.since(sampled))),
    })
}

/// Steps a second that a rank makes now: none of one that is gone, unheard or not yet measured.
pub fn speed(model: &Model, rank: &RankModel, now: Timestamp) -> Option<f64> {
    if rank.steps_per_s <= 0.0 || is_past(model, rank, now) {
        return None;
    }
    // What is smoothed falls slowly; a rank that stands still makes no steps.
    let still = silence(rank, now).is_some_and(|ms| ms > STILL_MS);
    Some(if still { 0.0 } else { rank.steps_per_s })
}

/// Milliseconds since the newest value of the charts, once one is due; 0 where none is.
pub fn charts_late_ms(model: &Model, now: Timestamp) -> u64 {
    let own = model.own.as_ref().filter(|_| model.run.state == RunState::Running);
    let late = match figures(model, now) {
        Some(figures) => figures.late_ms,
        None => own.map(|own| own.since(now)).filter(|age| *age > due(0)),
    };
    late.unwrap_or(0)
}

/// Age of the joined totals, in ms, when they are late or lag behind rank 0's latest ones.
pub fn joined_late(model: &Model, progress: &Progress, now: Timestamp) -> Option<u64> {
    let gap_ms = model.latest.as_ref().map_or(0, |latest| latest.gap_ms);
    Some(progress.since(now)).filter(|age| model.run.state == RunState::Running && *age > due(gap_ms))
}

/// Reports come with the iterations: twice the usual time between two of them is still on time.
fn due(gap_ms: u64) -> u64 {
    gap_ms.saturating_mul(2).max(UNHEARD_MS)
}

fn moves(model: &Model, now: Timestamp) -> bool {
    let heard = |rank: &&RankModel| unheard_rank(model, rank, now).is_none();
    let ranks = model.ranks.iter().filter(|rank| is_up(rank)).filter(heard);
    ranks.filter_map(|rank| silence(rank, now)).any(|ms| ms <= STILL_MS)
}

/// Its process exists.
fn is_up(rank: &RankModel) -> bool {
    matches!(rank.life, RankLife::Spawned | RankLife::Joined)
}

/// Milliseconds without a sign of life from the program; `None` when it gives none at all.
pub fn silence(rank: &RankModel, now: Timestamp) -> Option<u64> {
    let page = rank.sample.as_ref()?.page.as_ref()?;
    Some(page.heartbeat_age_ms.saturating_add(rank.sampled.map_or(0, |at| now.since(at))))
}

/// An age in one unit, so that it takes few cells: `22s`, `5m`, `3h`.
pub fn coarse(ms: u64) -> String {
    match ms / 1000 {
        s @ ..60 => format!("{s}s"),
        s @ 60..3600 => format!("{}m", s / 60),
        s => format!("{}h", s / 3600),
    }
}

/// Milliseconds since a host was heard, once that is too long; `None` while nothing is expected of it.
pub fn unheard(model: &Model, host: &HostModel, now: Timestamp) -> Option<u64> {
    let at = expected(model, host)?;
    Some(now.since(at)).filter(|age| *age > UNHEARD_MS)
}

/// Its gauges are of the present.
pub fn is_heard(model: &Model, host: &HostModel, now: Timestamp) -> bool {
    !is_over(model) && host.stopped.is_none() && unheard(model, host, now).is_none()
}

/// When a host was heard last, if it must go on speaking.
fn expected(model: &Model, host: &HostModel) -> Option<Timestamp> {
    let speaks = match model.run.state {
        RunState::Running | RunState::Draining | RunState::Restarting => true,
        RunState::Launching => host.heard.is_some(),
        RunState::Connecting | RunState::Over => false,
    };
    let due = speaks && host.stopped.is_none() && host.excluded.is_none();
    due.then(|| host.heard.unwrap_or(host.link_since))
}

/// The same for a rank: that of its host, unless the rank has ended.
pub fn unheard_rank(model: &Model, rank: &RankModel, now: Timestamp) -> Option<u64> {
    let host = model.hosts.get(rank.node.index())?;
    if matches!(rank.life, RankLife::Exited(_)) { None } else { unheard(model, host, now) }
}

/// When the screen changes next although nothing arrives: an age appears, or grows by a second.
pub fn next_change(model: &Model, now: Timestamp) -> Option<Timestamp> {
    let ages = model.hosts.iter().filter_map(|host| Some((now.since(expected(model, host)?), UNHEARD_MS)));
    let figures = model.latest.as_ref().map(|latest| (latest.since(now), due(latest.gap_ms)));
    let figures = figures.filter(|_| !is_over(model));
    ages.chain(figures)
        .map(|(age, due)| grows(age, due).map_or(now, |ms| now.plus(ms.saturating_sub(age))))
        .min()
}

/// The next age, in ms, at which a figure that is `age` old looks different.
fn grows(age: u64, due: u64) -> Option<u64> {
    if age <= due { due.checked_add(1) } else { (age / 1000).checked_add(1)?.checked_mul(1000) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_core::model::{LatestTotals, RunModel};
    use rankdeck_types::ids::NodeRank;

    fn model(heard: u64, reported: u64, gap_ms: u64) -> Model {
        let host = HostModel { heard: Some(Timestamp(heard)), ..HostModel::new(NodeRank(0), "a") };
        let at = Timestamp(reported);
        let latest = LatestTotals { steps_per_s: 5.0, at, gap_ms, ..LatestTotals::default() };
        let run = RunModel { state: RunState::Running, ..RunModel::default() };
        Model { run, hosts: vec![host], latest: Some(latest), ..Model::default() }
    }

    #[test]
    fn ui_12_an_age_appears_after_two_samples_and_grows_each_second() {
        let model = model(10_000, 10_000, 100);
        assert_eq!(unheard(&model, &model.hosts[0], Timestamp(12_000)), None);
        assert_eq!(next_change(&model, Timestamp(10_500)), Some(Timestamp(12_001)));
        assert_eq!(unheard(&model, &model.hosts[0], Timestamp(12_001)), Some(2_001));
        assert_eq!(next_change(&model, Timestamp(12_001)), Some(Timestamp(13_000)));
        assert_eq!(next_change(&model, Timestamp(13_000)), Some(Timestamp(14_000)));
    }

    #[test]
    fn reports_are_late_only_beyond_twice_their_usual_distance() {
        let slow = model(59_000, 10_000, 30_000);
        assert_eq!(figures(&slow, Timestamp(60_000)).unwrap().late_ms, None);
        let late = figures(&slow, Timestamp(71_000)).unwrap();
        assert_eq!((late.late_ms, late.stalled), (Some(61_000), true));
    }

    #[test]
    fn what_was_read_of_the_past_is_as_old_as_it_was_then() {
        let mut read = model(10_000, 10_000, 100);
        read.latest.as_mut().unwrap().age_ms = 15_000;
        let first = figures(&read, Timestamp(10_000)).unwrap();
        assert_eq!((first.late_ms, first.stalled), (Some(15_000), true));
        assert_eq!(next_change(&read, Timestamp(10_400)), Some(Timestamp(11_000)));
    }

    #[test]
    fn nothing_is_expected_of_a_run_that_is_over_or_of_a_host_that_has_stopped() {
        let mut model = model(0, 0, 0);
        model.run.state = RunState::Over;
        assert_eq!(next_change(&model, Timestamp(99_000)), None);
        assert_eq!(figures(&model, Timestamp(99_000)).unwrap().late_ms, None);
        model.run.state = RunState::Draining;
        model.hosts[0].stopped = Some(Vec::new());
        assert_eq!(unheard(&model, &model.hosts[0], Timestamp(99_000)), None);
    }
}
