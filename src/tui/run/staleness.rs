//! Computes how old the values on the screen are: silent hosts, stalled training. Pure.
//!
//! Invariants:
//! - UI-12: what is older than two samples carries its age, and [`next_change`] names the moment at which an
//!   age on the screen grows, so that it grows although nothing arrives.

use rankdeck_core::model::{HostModel, Model, RankLife, RankModel, RunState, TrainingProgress};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words;

/// Milliseconds without a message after which a host is silent: two samples, which come at least once a second.
pub const SILENT_MS: u64 = 2_000;
/// Milliseconds without a heartbeat after which a rank makes no progress.
pub const STILL_MS: u64 = 3_000;

/// Statistics of the whole run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunFigures {
    /// Environment steps of all ranks.
    pub env_step: u64,
    /// Steps per second at the latest report; `None` before they are measured.
    pub steps_per_s: Option<f64>,
    /// Seconds to the target at that speed.
    pub eta_s: Option<f64>,
    /// Age in ms, if a new report is overdue.
    pub late_ms: Option<u64>,
    /// They are overdue, and no reachable rank makes progress.
    pub stalled: bool,
}

/// The run's statistics at `now`: rank 0's latest totals, else the latest that all ranks have confirmed.
pub fn figures(model: &Model, now: Timestamp) -> Option<RunFigures> {
    let (env_step, steps_per_s, age, gap_ms) = match (&model.latest, &model.progress) {
        (Some(latest), _) => (latest.counters.env_step, latest.steps_per_s, latest.since(now), latest.gap_ms),
        (None, Some(progress)) => (progress.totals.env_step, progress.steps_per_s, progress.since(now), 0),
        (None, None) => return None,
    };
    let goes_on = model.run.state == RunState::Running;
    let late_ms = Some(age).filter(|age| !is_over(model) && *age > due(gap_ms));
    let left = model.run.total_steps.map(|goal| goal.saturating_sub(env_step) as f64);
    Some(RunFigures {
        env_step,
        steps_per_s,
        eta_s: left.zip(steps_per_s.filter(|rate| *rate > 0.0)).map(|(left, rate)| left / rate),
        late_ms,
        stalled: late_ms.is_some() && goes_on && !moves(model, now),
    })
}

/// The run has ended.
pub fn is_over(model: &Model) -> bool {
    model.run.state == RunState::Over
}

/// The latest report of a rank is not current: it has exited, is silent, or the run has ended.
pub fn is_past(model: &Model, rank: &RankModel, now: Timestamp) -> bool {
    let gone = is_over(model) || matches!(rank.life, RankLife::Exited(_));
    gone || rank_silence(model, rank, now).is_some()
}

/// The age of a rank's latest report; `None` while it is current.
pub fn was(model: &Model, rank: &RankModel, now: Timestamp) -> Option<String> {
    let sampled = rank.sampled.filter(|_| is_past(model, rank, now))?;
    Some(match model.run.ended.filter(|_| is_over(model)).map(|ended| ended.since(sampled)) {
        Some(0) => "at the end".into(),
        Some(ms) => format!("{} before the end", words::duration_ms(ms)),
        None => format!("{} ago", words::duration_ms(now.since(sampled))),
    })
}

/// Current steps per second of a rank; `None` if it has exited, is silent or was not measured yet.
pub fn speed(model: &Model, rank: &RankModel, now: Timestamp) -> Option<f64> {
    let measured = rank.steps_per_s.filter(|_| !is_past(model, rank, now))?;
    // The smoothed value falls slowly; a rank without progress makes no steps.
    let still = heartbeat_age(rank, now).is_some_and(|ms| ms > STILL_MS);
    Some(if still { 0.0 } else { measured })
}

/// Milliseconds since the newest chart value, if one is overdue; else 0.
pub fn charts_late_ms(model: &Model, now: Timestamp) -> u64 {
    let own = model.own.as_ref().filter(|_| model.run.state == RunState::Running);
    let late = match figures(model, now) {
        Some(figures) => figures.late_ms,
        None => own.map(|own| own.since(now)).filter(|age| *age > due(0)),
    };
    late.unwrap_or(0)
}

/// Age of the confirmed totals in ms, if they are overdue or lag behind rank 0's latest ones.
pub fn joined_late(model: &Model, progress: &TrainingProgress, now: Timestamp) -> Option<u64> {
    let gap_ms = model.latest.as_ref().map_or(0, |latest| latest.gap_ms);
    Some(progress.since(now)).filter(|age| model.run.state == RunState::Running && *age > due(gap_ms))
}

/// Reports come with the iterations: twice the usual time between two of them is still on time.
fn due(gap_ms: u64) -> u64 {
    gap_ms.saturating_mul(2).max(SILENT_MS)
}

fn moves(model: &Model, now: Timestamp) -> bool {
    let is_reporting = |rank: &&RankModel| rank_silence(model, rank, now).is_none();
    let ranks = model.ranks.iter().filter(|rank| is_up(rank)).filter(is_reporting);
    ranks.filter_map(|rank| heartbeat_age(rank, now)).any(|ms| ms <= STILL_MS)
}

/// Its process exists.
fn is_up(rank: &RankModel) -> bool {
    matches!(rank.life, RankLife::Spawned | RankLife::Joined)
}

/// Milliseconds since the program's last heartbeat; `None` if it has none.
pub fn heartbeat_age(rank: &RankModel, now: Timestamp) -> Option<u64> {
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

/// Milliseconds since the last message of a host, if that is too long; `None` if none is expected.
pub fn host_silence(model: &Model, host: &HostModel, now: Timestamp) -> Option<u64> {
    let at = expected(model, host)?;
    Some(now.since(at)).filter(|age| *age > SILENT_MS)
}

/// Its samples are current.
pub fn is_current(model: &Model, host: &HostModel, now: Timestamp) -> bool {
    !is_over(model) && host.stopped.is_none() && host_silence(model, host, now).is_none()
}

/// The last message of a host, if more are expected.
fn expected(model: &Model, host: &HostModel) -> Option<Timestamp> {
    let is_expected = match model.run.state {
        RunState::Running | RunState::Draining | RunState::Restarting => true,
        RunState::Launching => host.last_message_at.is_some(),
        RunState::Connecting | RunState::Over => false,
    };
    let due = is_expected && host.stopped.is_none() && host.excluded.is_none();
    due.then(|| host.last_message_at.unwrap_or(host.link_since))
}

/// The same for a rank: that of its host, unless the rank has ended.
pub fn rank_silence(model: &Model, rank: &RankModel, now: Timestamp) -> Option<u64> {
    let host = model.hosts.get(rank.node.index())?;
    if matches!(rank.life, RankLife::Exited(_)) { None } else { host_silence(model, host, now) }
}

/// When the screen changes next although nothing arrives: an age appears, or grows by a second.
pub fn next_change(model: &Model, now: Timestamp) -> Option<Timestamp> {
    let ages = model.hosts.iter().filter_map(|host| Some((now.since(expected(model, host)?), SILENT_MS)));
    let figures = model.latest.as_ref().map(|latest| (latest.since(now), due(latest.gap_ms)));
    let figures = figures.filter(|_| !is_over(model));
    ages.chain(figures)
        .map(|(age, due)| grows(age, due).map_or(now, |ms| now.plus(ms.saturating_sub(age))))
        .min()
}

/// The next age, in ms, at which a figure that is `age` old reads differently.
fn grows(age: u64, due: u64) -> Option<u64> {
    if age <= due { due.checked_add(1) } else { (age / 1000).checked_add(1)?.checked_mul(1000) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_core::model::{LatestTotals, RunModel};
    use rankdeck_types::ids::NodeRank;

    fn model(message: u64, reported: u64, gap_ms: u64) -> Model {
        let host =
            HostModel { last_message_at: Some(Timestamp(message)), ..HostModel::new(NodeRank(0), "a") };
        let at = Timestamp(reported);
        let latest = LatestTotals { steps_per_s: Some(5.0), at, gap_ms, ..LatestTotals::default() };
        let run = RunModel { state: RunState::Running, ..RunModel::default() };
        Model { run, hosts: vec![host], latest: Some(latest), ..Model::default() }
    }

    #[test]
    fn ui_12_age_appears_after_two_samples_and_grows() {
        let model = model(10_000, 10_000, 100);
        assert_eq!(host_silence(&model, &model.hosts[0], Timestamp(12_000)), None);
        assert_eq!(next_change(&model, Timestamp(10_500)), Some(Timestamp(12_001)));
        assert_eq!(host_silence(&model, &model.hosts[0], Timestamp(12_001)), Some(2_001));
        assert_eq!(next_change(&model, Timestamp(12_001)), Some(Timestamp(13_000)));
        assert_eq!(next_change(&model, Timestamp(13_000)), Some(Timestamp(14_000)));
    }

    #[test]
    fn reports_are_late_after_twice_their_usual_gap() {
        let slow = model(59_000, 10_000, 30_000);
        assert_eq!(figures(&slow, Timestamp(60_000)).unwrap().late_ms, None);
        let late = figures(&slow, Timestamp(71_000)).unwrap();
        assert_eq!((late.late_ms, late.stalled), (Some(61_000), true));
    }

    #[test]
    fn report_read_later_keeps_its_age() {
        let mut read = model(10_000, 10_000, 100);
        read.latest.as_mut().unwrap().age_ms = 15_000;
        let first = figures(&read, Timestamp(10_000)).unwrap();
        assert_eq!((first.late_ms, first.stalled), (Some(15_000), true));
        assert_eq!(next_change(&read, Timestamp(10_400)), Some(Timestamp(11_000)));
    }

    #[test]
    fn ended_run_and_stopped_host_are_not_silent() {
        let mut model = model(0, 0, 0);
        model.run.state = RunState::Over;
        assert_eq!(next_change(&model, Timestamp(99_000)), None);
        assert_eq!(figures(&model, Timestamp(99_000)).unwrap().late_ms, None);
        model.run.state = RunState::Draining;
        model.hosts[0].stopped = Some(Vec::new());
        assert_eq!(host_silence(&model, &model.hosts[0], Timestamp(99_000)), None);
    }
}
