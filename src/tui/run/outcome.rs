//! How the run ended: cause, totals, losses, the last minute.

use rankdeck_core::model::{EventTone, HistoryLine, LeftoverState, Model, RankLife, RunState};
use rankdeck_core::report::{RunOutcome, VerdictKind};
use rankdeck_kit::text;
use rankdeck_proto::message::Work;
use rankdeck_types::ids::{Rank, Timestamp};
use rankdeck_types::words;

/// How much time before the end is listed, milliseconds.
const LAST_MS: u64 = 60_000;
/// Events up to this time after the end belong to it, seconds.
const AFTER_S: f64 = 2.0;
/// Most events of the last minute.
const EVENTS: usize = 12;

/// When the run ended; when it began to, if something failed.
pub fn when(model: &Model) -> Option<Timestamp> {
    let bad = model.history.iter().rev().find(|line| line.tone == EventTone::Bad).map(|line| line.at);
    let ended = model.run.ended.or(model.history.back().map(|line| line.at));
    match failed(model) {
        true => bad.or(ended),
        false => ended,
    }
}

fn failed(model: &Model) -> bool {
    matches!(model.run.outcome, Some(RunOutcome::Failed | RunOutcome::Stuck))
}

/// The rank that caused the end.
pub fn culprit(model: &Model) -> Option<Rank> {
    let first = model.run.first_failure.as_ref().map(|first| first.rank);
    first.or_else(|| model.verdicts.first().and_then(|verdict| verdict.rank))
}

/// How it ended, in one sentence.
pub fn headline(model: &Model) -> String {
    let word = match (model.run.state, model.run.outcome) {
        (RunState::Over, Some(outcome)) => format!("{outcome:?}").to_lowercase(),
        (RunState::Over, None) => "over".into(),
        _ => "the run is still running".into(),
    };
    match model.run.reason.as_str() {
        "" => word,
        reason => format!("{word}: {}", words::clean(reason)),
    }
}

fn is_dead(model: &Model, rank: Rank) -> bool {
    model.verdicts.iter().any(|found| found.verdict == VerdictKind::Dead && found.rank == Some(rank))
}

/// Totals of the run, and losses.
pub fn totals(model: &Model) -> Vec<String> {
    let mut lines = Vec::new();
    let latest = model.latest.as_ref().map(|latest| &latest.counters);
    let latest = latest.or(model.progress.as_ref().map(|progress| &progress.totals));
    let reached = latest.map(|totals| totals.env_step);
    let over = model.run.state == RunState::Over;
    if let Some(t) = latest {
        lines.push(format!(
            "totals: {} steps, {} episodes, {} updates, iteration {}",
            words::count(t.env_step),
            words::count(t.episodes),
            words::count(t.updates),
            words::count(t.train_iter)
        ));
    }
    // Of equal ones the first, as on the page of evaluations: its checkpoint is the best one.
    let best = model.evals.iter().rev().filter(|eval| eval.return_mean.is_finite());
    if let Some(best) = best.max_by(|a, b| a.return_mean.total_cmp(&b.return_mean)) {
        lines.push(format!(
            "best evaluation: {} at {} steps",
            text::value(best.return_mean),
            words::count(best.env_step)
        ));
    }
    match (model.run.work.as_ref().filter(|_| over), model.checkpoints.back()) {
        (Some(work), _) => {
            lines.push(work.describe());
            // Its last two parts stand in the line above.
            let path = saved_path(work).filter(|path| path.matches('/').count() > 1);
            lines.extend(path.map(|path| format!("  {}", words::clean(path))));
        }
        (None, Some(checkpoint)) if checkpoint.step().is_none() => {
            lines.push(format!("last checkpoint: {}{}", words::clean(&checkpoint.path), checkpoint.remark()));
        }
        (None, Some(checkpoint)) => {
            let lost = reached.map_or(0, |reached| reached.saturating_sub(checkpoint.env_step));
            let lost = match lost {
                0 => "nothing lost".to_owned(),
                lost if over => format!("{} later steps lost", words::count(lost)),
                since => format!("{} steps since", words::count(since)),
            };
            lines.push(format!("last checkpoint: {} steps, {lost}", words::count(checkpoint.env_step)));
            lines.push(format!("  {}", words::clean(&checkpoint.path)));
        }
        (None, None) if over && reached.is_some_and(|reached| reached > 0) => {
            lines.push("no checkpoint was saved: all steps lost".into());
        }
        (None, None) => {}
    }
    lines.extend(model.run.results().iter().map(|found| format!("results: {}", found.describe())));
    lines.extend(model.run.end_warnings.iter().map(|warning| format!("warning: {}", words::clean(warning))));
    for (remains, what) in [
        (LeftoverState::LeftOver, "ranks with leftover processes"),
        (LeftoverState::Unproved, "ranks that may still run (stop not verified)"),
    ] {
        let those = model.ranks.iter().filter(|rank| model.remains(rank) == Some(remains));
        let those: Vec<u32> = those.map(|rank| rank.rank.0).collect();
        lines.extend((!those.is_empty()).then(|| format!("{what}: {}", words::ranges(&those))));
    }
    // The rank that began the end may have been stopped like all others.
    let is_culprit = |rank: Rank| Some(rank) == culprit(model) || is_dead(model, rank);
    let dead = model.ranks.iter().filter(|rank| {
        let has_exited = matches!(&rank.life, RankLife::Exited(_)) && !rank.ended_well();
        has_exited && (rank.failed() || is_culprit(rank.rank))
    });
    let dead: Vec<u32> = dead.map(|rank| rank.rank.0).collect();
    if failed(model) && dead.len() > 1 {
        lines.push(format!("ranks that failed: {}", words::ranges(&dead)));
    }
    lines
}

/// The checkpoint that the end of the run has left.
fn saved_path(work: &Work) -> Option<&str> {
    match work {
        Work::Saved { path, .. } | Work::Lost { path, .. } => Some(path),
        Work::NeverSaved | Work::Unknown => None,
    }
}

/// What happened in the minute before the end, routine left out, oldest first.
pub fn last_minute(model: &Model) -> Vec<&HistoryLine> {
    let Some(end) = when(model) else { return Vec::new() };
    let routine = |line: &&HistoryLine| !line.routine;
    let newest = model.history.iter().rev().filter(routine);
    let mut lines: Vec<&HistoryLine> = match model.run.ended_time.filter(|_| model.run.adopted) {
        // A console that came later has read all of it at once, host by host: the agents report when it was.
        Some(ended) => {
            let near = |line: &&HistoryLine| {
                (ended - LAST_MS as f64 / 1000.0..=ended + AFTER_S).contains(&line.time)
            };
            let mut all: Vec<&HistoryLine> = newest.filter(near).collect();
            all.sort_by(|a, b| b.time.total_cmp(&a.time));
            all
        }
        None => newest.filter(|line| line.at.plus(LAST_MS) >= end).collect(),
    };
    lines.truncate(EVENTS);
    lines.reverse();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_core::model::RunModel;

    #[test]
    fn totals_have_the_whole_path_of_the_saved_checkpoint() {
        let path = "/scratch/runs/a-1/checkpoints/latest.ckpt";
        let named = |path: &str| {
            let work = Work::Saved { path: path.into(), bytes: None, env_step: Some(5), after_s: None };
            let run = RunModel { state: RunState::Over, work: Some(work), ..RunModel::default() };
            totals(&Model { run, ..Model::default() })
        };
        assert!(named(path).iter().any(|line| line.trim() == path));
        assert_eq!(named("checkpoints/latest.ckpt").len(), 1, "it is named once");
    }
}
