//! Computes how old the values on the screen are: silent hosts, stalled training. Pure.
//!
//! Invariants:
//! - UI-12: what is older than two samples carries its age, and [`next_change`] names the moment at which an
//!   age on the screen grows, so that it grows although nothing arrives.

use rankdeck_core::model::{HostModel, Model, RankLife, RankModel, RunState, TrainingProgress};
use rankdeck_proto::progress_bar::ShownProgress;
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words;

/// Milliseconds without a message after which a host is silent: two samples, which come at least once a second.
pub const SILENT_MS: u64 = 2_000;
/// Milliseconds without a heartbeat after which a rank makes no progress.
pub const STILL_MS: u64 = 3_000;
/// Values that a program prints carry their age from then on, ms: how often it prints is its own affair.
pub const OWN_LATE_MS: u64 = 10_000;

/// How far the run is.
#[derive(Debug, Clone, PartialEq)]
pub struct RunFigures {
    /// Environment steps of all ranks; of a program that reports none, what it shows.
    pub done: u64,
    /// The target.
    pub goal: Option<u64>,
    /// What is counted: `steps`, or as the program's progress bar has it; may be empty.
    pub unit: String,
    /// Label of that bar; may be empty.
    pub label: String,
    /// Rate per second at the latest report; `None` before they are measured.
    pub per_s: Option<f64>,
    /// Seconds to the target.
    pub eta_s: Option<f64>,
    /// Age in ms, if a new report is overdue.
    pub late_ms: Option<u64>,
    /// They are overdue, and no reachable rank makes progress.
    pub stalled: bool,
}

/// How far the run is at `now`: rank 0's latest totals, else the latest that all ranks have confirmed, else what the
/// program shows itself.
pub fn figures(model: &Model, now: Timestamp) -> Option<RunFigures> {
    let (done, per_s, age, gap_ms) = match (&model.latest, &model.progress) {
        (Some(latest), _) => (latest.counters.env_step, latest.steps_per_s, latest.since(now), latest.gap_ms),
        (None, Some(progress)) => (progress.totals.env_step, progress.steps_per_s, progress.since(now), 0),
        (None, None) => return own_figures(model, now),
    };
    let goes_on = model.run.state == RunState::Running;
    let late_ms = Some(age).filter(|age| !is_over(model) && *age > due(gap_ms));
    let eta_s = eta(model.run.total_steps, done, per_s);
    let stalled = late_ms.is_some() && goes_on && !moves(model, now);
    let (goal, unit) = (model.run.total_steps, "steps".to_owned());
    Some(RunFigures { done, goal, unit, label: String::new(), per_s, eta_s, late_ms, stalled })
}

fn eta(goal: Option<u64>, done: u64, per_s: Option<f64>) -> Option<f64> {
    Some(goal?.saturating_sub(done) as f64 / per_s.filter(|rate| *rate > 0.0)?)
}

/// The same of a program that does not report it: its steps to the run's target, else its progress bar, else its
/// steps. How often it shows them is its own affair, so it never counts as stalled.
fn own_figures(model: &Model, now: Timestamp) -> Option<RunFigures> {
    let own = model.own.as_ref()?;
    let late = |age: u64, gap_ms: u64| {
        Some(age).filter(|age| !is_over(model) && *age > OWN_LATE_MS.max(gap_ms.saturating_mul(2)))
    };
    let steps = own.env_step.map(|done| {
        let (goal, per_s) = (model.run.total_steps.filter(|goal| *goal > 0), own.steps_per_s);
        let late_ms = late(own.since(now), 0);
        let eta_s = eta(goal, done, per_s).filter(|_| late_ms.is_none());
        let (unit, label) = ("steps".to_owned(), String::new());
        RunFigures { done, goal, unit, label, per_s, eta_s, late_ms, stalled: false }
    });
    let bar = own.progress.as_ref().map(|progress| {
        let ShownProgress { done, total, unit, per_s, label, .. } = progress.shown.clone();
        // A slow bar moves once per step.
        let gap_ms = per_s.map_or(0, |per_s| (1000.0 / per_s) as u64);
        let late_ms = late(progress.since(now), gap_ms);
        let eta_s = progress.eta_s(now).filter(|_| late_ms.is_none());
        RunFigures { done, goal: total, unit, label, per_s, eta_s, late_ms, stalled: false }
    });
    let has_goal = steps.as_ref().is_some_and(|steps| steps.goal.is_some());
    let (first, second) = if has_goal { (steps, bar) } else { (bar, steps) };
    first.or(second)
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
    let late = match figures(model, now).filter(|_| model.latest.is_some() || model.progress.is_some()) {
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
    use rankdeck_core::model::{LatestTotals, OwnMetrics, OwnProgress, RunModel};
    use rankdeck_types::ids::{NodeRank, Rank};

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
    fn bar_of_a_program_is_progress_unless_its_steps_have_a_goal() {
        let at = Timestamp(10_000);
        let shown = ShownProgress {
            done: 20,
            total: Some(1800),
            unit: "it".into(),
            per_s: Some(2.0),
            eta_s: Some(890.0),
            label: "train".into(),
        };
        let own = OwnMetrics {
            rank: Rank(0),
            source: "stdout".into(),
            generation: Default::default(),
            env_step: Some(500),
            steps_per_s: Some(10.0),
            return_mean: None,
            records: 1,
            x: 500.0,
            progress: Some(OwnProgress { shown, at, age_ms: 0 }),
            at,
            age_ms: 0,
        };
        let mut model = Model { latest: None, own: Some(own), ..model(10_000, 10_000, 0) };
        let bar = figures(&model, Timestamp(15_000)).unwrap();
        assert_eq!((bar.done, bar.goal, bar.unit.as_str(), bar.eta_s), (20, Some(1800), "it", Some(885.0)));
        assert_eq!((bar.late_ms, bar.stalled), (None, false));
        let late = figures(&model, Timestamp(30_000)).unwrap();
        assert_eq!((late.late_ms, late.eta_s, late.stalled), (Some(20_000), None, false));
        model.run.total_steps = Some(1000);
        let steps = figures(&model, Timestamp(15_000)).unwrap();
        assert_eq!(
            (steps.done, steps.goal, steps.unit.as_str(), steps.eta_s),
            (500, Some(1000), "steps", Some(50.0))
        );
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
