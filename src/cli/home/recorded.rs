//! What a record alone tells of a run: how far this console saw it come, and how it ended.

use crate::cli::past::{self, PastRun};
use rankdeck_core::compare::ComparedRun;
use rankdeck_core::model::Model;
use rankdeck_core::run_summary::RunSummary;
use rankdeck_proto::run_entry::SavedCheckpoint;
use rankdeck_types::ids::Timestamp;

/// Reads it; of a record that cannot be read nothing is known.
pub(super) fn read(past: &PastRun) -> RunSummary {
    let read = past::open(past).ok().and_then(|record| record.last().ok());
    read.map(|(model, at)| summary(&model, at)).unwrap_or_default()
}

/// Of the run as it was at `at`, the end of its record.
fn summary(model: &Model, at: Timestamp) -> RunSummary {
    let told = ComparedRun::of("", model, at);
    let totals = model.latest.as_ref().map(|latest| &latest.counters);
    let totals = totals.or(model.progress.as_ref().map(|progress| &progress.totals));
    let best = model.evals.iter().filter(|eval| eval.return_mean.is_finite());
    let experiment = model.plan.as_ref().map(|plan| &plan.experiment);
    let program = experiment.map(|experiment| match (&experiment.learn, &experiment.env) {
        (Some(learn), Some(env)) if experiment.launch.command.is_empty() => {
            format!("{} {}", learn.name(), env.id)
        }
        _ => experiment.launch.command.join(" "),
    });
    RunSummary {
        outcome: told.outcome,
        exit_code: model.run.exit_code.filter(|_| told.outcome.is_some()),
        reason: model.run.reason.clone(),
        env_step: told.env_step,
        total_steps: model.run.total_steps.filter(|goal| *goal > 0),
        train_iter: told.train_iter,
        episodes: totals.map(|totals| totals.episodes),
        last_return: told.last_return,
        best: best.max_by(|a, b| a.return_mean.total_cmp(&b.return_mean)).cloned(),
        evals: model.evals.len() as u64,
        checkpoint: model.checkpoints.back().map(|saved| SavedCheckpoint {
            path: saved.path.clone(),
            env_step: saved.env_step,
            train_iter: saved.train_iter,
            reason: saved.reason.clone(),
        }),
        started: model.run.launched,
        ended: model.run.ended_time,
        duration_s: told.duration_s,
        generation: model.run.generation,
        world_size: model.ranks.len() as u32,
        gpus: model.ranks.iter().filter(|rank| rank.gpu.is_some()).count() as u32,
        hosts: model.hosts.iter().map(|host| host.name.clone()).collect(),
        program: program.unwrap_or_default(),
        note: experiment.and_then(|experiment| experiment.run.note.clone()).unwrap_or_default(),
        ..RunSummary::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_core::model::{LatestTotals, RunState};
    use rankdeck_core::report::Outcome;

    #[test]
    fn a_record_tells_how_far_a_run_came_and_how_it_ended() {
        let mut model = Model::default();
        model.run.started = Some(Timestamp(1_000));
        let mut latest = LatestTotals::default();
        latest.counters.env_step = 4096;
        model.latest = Some(latest);
        let seen = summary(&model, Timestamp(61_000));
        assert_eq!((seen.outcome, seen.env_step, seen.duration_s), (None, Some(4096), 60.0));
        model.run.state = RunState::Over;
        model.run.outcome = Some(Outcome::Failed);
        model.run.exit_code = Some(1);
        model.run.reason = "rank 1 was killed".into();
        let over = summary(&model, Timestamp(61_000));
        assert_eq!(over.outcome_text().as_deref(), Some("failed (1)"));
        assert_eq!(over.reason, "rank 1 was killed");
        let nothing = PastRun {
            name: "x".into(),
            record: "nowhere".into(),
            written: std::time::SystemTime::UNIX_EPOCH,
            path: None,
        };
        assert_eq!(read(&nothing), RunSummary::default());
    }
}
