//! Evaluations within a run: rank 0 plays, and all ranks get the result.

use super::Trainer;
use crate::algo;
use crate::env::{self, EnvError};
use crate::error::TrainerError;
use crate::play::evaluate::{self, EvalControl, EvalHeartbeat, EvalObserver, EvalProgress, evaluate};
use crate::play::show;
use crate::play::show::LiveEval;
use crate::startup::setup;
use crate::support::events::print_line;
use crate::support::page::StatusPage;
use rankdeck_proto::message::{Evaluation, FinishReason, Phase};
use rankdeck_proto::show::{ShownPolicy, ShownStep};
use rankdeck_types::error::HintedError;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// What rank 0 broadcasts after an evaluation.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct EvaluationResult {
    pub(super) evaluation: Evaluation,
    /// Better than every one before.
    pub(super) best: bool,
    /// A stop was requested before the last episode had ended.
    abandoned: bool,
    /// Rank 0 could not evaluate; all ranks end.
    error: Option<HintedError>,
}

impl EvaluationResult {
    /// Why the run ends with it, if it does.
    pub(super) fn end(&self) -> Option<FinishReason> {
        match (self.abandoned, self.evaluation.stop) {
            (true, _) => Some(FinishReason::Stopped),
            (_, true) => Some(FinishReason::StopValue),
            _ => None,
        }
    }
}

impl Trainer<'_> {
    /// Rank 0 plays, the others wait; all ranks get the result.
    pub(super) fn evaluate(&mut self, env_step: u64) -> Result<EvaluationResult, TrainerError> {
        let mut result = EvaluationResult::default();
        if self.is_first() {
            self.page.lock().phase(Phase::Eval);
            let mut heartbeat = EvalHeartbeat::new(self.group, self.experiment.eval.episodes);
            match self.play(&mut heartbeat, env_step) {
                Ok(Some(evaluation)) => {
                    let mean = evaluation.return_mean;
                    let reached = self.experiment.eval.stop_value.is_some_and(|goal| mean >= goal);
                    let stop = reached && self.train_iter > 0 && evaluation.episodes > 0;
                    // A mean that is not a number is better than none and worse than every other.
                    let better = !mean.is_nan() && self.best.is_none_or(|best| best.is_nan() || mean > best);
                    result.best = better;
                    result.evaluation =
                        Evaluation { env_step, train_iter: self.train_iter, stop, ..evaluation };
                }
                Ok(None) => result.abandoned = true,
                Err(error) => result.error = Some(error.hinted),
            }
            self.page.lock().phase(Phase::Sync);
            heartbeat.end()?;
        } else {
            evaluate::wait(self.group)?;
        }
        self.group.broadcast_object(&mut result, 0, "eval")?;
        if let Some(HintedError { error, hint }) = &result.error {
            return Err(TrainerError::failure(format!("evaluation on rank 0 failed: {error}"), hint.clone()));
        }
        self.evaluation_due = result.abandoned;
        if result.abandoned {
            if self.is_first() {
                print_line("evaluation aborted: stop requested");
            }
            return Ok(result);
        }
        if result.best {
            self.best = Some(result.evaluation.return_mean);
        }
        self.reporter.evaluation(&result.evaluation);
        Ok(result)
    }

    fn play(
        &mut self,
        heartbeat: &mut EvalHeartbeat<'_>,
        env_step: u64,
    ) -> Result<Option<Evaluation>, TrainerError> {
        let (eval, page) = (&self.experiment.eval, self.page);
        let (env, learn) = setup::parts(self.experiment)?;
        let envs = match &mut self.evaluation {
            Some(envs) => envs,
            made => {
                let purpose = env::EnvPurpose::Evaluate;
                let vector = env::make_vector(env, evaluate::num_envs(eval), 0, &self.seeds, 0, purpose);
                if matches!(vector, Err(EnvError::Abandoned)) {
                    return Ok(None);
                }
                let mut vector = env::fit(vector?, self.experiment.policy.network);
                vector.watch(algo::shown(page));
                made.insert(vector)
            }
        };
        let policy = ShownPolicy {
            algorithm: learn.name().to_owned(),
            env_id: env.id.clone(),
            train_iter: self.train_iter,
            env_step,
            episodes: eval.episodes,
            bounds: show::bounds(&envs.spec().actions),
        };
        let live = self.reporter.live(policy);
        let reporter = EvalReporter { page, heartbeat, live, episodes: eval.episodes };
        evaluate(&mut **envs, (eval, &self.seeds), self.algorithm.greedy()?, reporter)
    }
}

/// Observes rank 0's evaluation: updates the page, votes with the other ranks, shows steps on request.
struct EvalReporter<'a, 'b> {
    page: &'a StatusPage,
    heartbeat: &'a mut EvalHeartbeat<'b>,
    live: LiveEval<'a>,
    episodes: u32,
}

impl EvalObserver for EvalReporter<'_, '_> {
    fn after_step(&mut self, played: EvalProgress) -> Result<EvalControl, TrainerError> {
        self.page.lock().amount(played.episodes as u64, u64::from(self.episodes));
        Ok(match self.heartbeat.continues(played, Instant::now())? {
            false => EvalControl::Stop,
            true if self.live.is_requested() => EvalControl::Show,
            true => EvalControl::Continue,
        })
    }

    fn on_step(&mut self, step: ShownStep, ended: usize) {
        self.live.show(step, ended);
    }

    fn on_end(&mut self, returns: &[f64]) {
        self.live.returns(returns);
    }
}
