//! `--evaluate`: the policy of a checkpoint plays as in an evaluation of its run.
//!
//! Owner: the user, on any host that has the environment. The checkpoint says everything else: the experiment
//! is in it.

use super::algo::{self, Algorithm, BuildContext};
use super::checkpoint::{Checkpoint, Header};
use super::distributed::{BackendKind, GroupSettings, ProcessGroup};
use super::env::{self, EnvFactory, EnvPurpose, VectorEnv};
use super::error::TrainerError;
use super::evaluate::{self, Beat, Decider, evaluate};
use super::events::say;
use super::identity::Flags;
use super::page::Page;
use super::resume::read;
use super::setup::{self, Sizes};
use super::show;
use super::sight;
use super::state::RestoredState;
use rankdeck_kernel::seeds::Seeds;
use rankdeck_proto::message::Evaluation;
use rankdeck_proto::show::ShownPolicy;
use rankdeck_proto::status_page::Writer;
use rankdeck_types::experiment::{Experiment, Learn};
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};
use tch::Device;

/// Plays the checkpoint at `path` as the flags say, and prints what came of it.
pub fn run(path: &Path, flags: &Flags) -> Result<(), TrainerError> {
    let bytes = read(path)?;
    let unusable = |what: String| super::checkpoint::refuse(path, what, "evaluate another checkpoint");
    let checkpoint = Checkpoint::decode(&bytes).map_err(unusable)?;
    let mut experiment: Experiment = serde_json::from_value(checkpoint.header.about.experiment.clone())
        .map_err(|error| unusable(format!("holds no experiment that this build reads: {error}")))?;
    experiment.eval.episodes = flags.episodes.unwrap_or(experiment.eval.episodes);
    if let (Some(python), Some(env)) = (&flags.python, &mut experiment.env) {
        env.python.clone_from(python);
    }
    let (env, learn) = setup::parts(&experiment)?;
    let (algorithm, env_id) = (learn.name().to_owned(), env.id.clone());
    let Header { train_iter, env_step, .. } = checkpoint.header;
    if flags.show {
        return show(&experiment, path, checkpoint);
    }
    if !flags.json {
        say(&format!("{algorithm} on {env_id}, after iteration {train_iter}"));
    }
    let Some(evaluation) = play(&acting_alone(&experiment), path, checkpoint)? else {
        return Err(TrainerError::failure(
            "stopped before the last episode had ended",
            "play fewer episodes: --episodes N",
        ));
    };
    let interval = interval(&evaluation);
    let Evaluation {
        return_mean, return_std, return_min, return_max, length_mean, episodes, duration_s, ..
    } = evaluation;
    if flags.json {
        say(&json!({
            "kind": "evaluation",
            "checkpoint": path,
            "algorithm": algorithm,
            "env_id": env_id,
            "train_iter": train_iter,
            "env_step": env_step,
            "episodes": episodes,
            "return_mean": return_mean,
            "return_std": return_std,
            "return_interval": interval,
            "return_min": return_min,
            "return_max": return_max,
            "length_mean": length_mean,
            "duration_s": duration_s,
        })
        .to_string());
        return Ok(());
    }
    say(&format!("return {return_mean:.3} +- {return_std:.3} over {episodes} episodes"));
    if let Some([low, high]) = interval {
        say(&format!("the mean lies between {low:.3} and {high:.3} (95 %)"));
    }
    say(&format!("from {return_min:.3} to {return_max:.3}, {length_mean:.1} steps per episode"));
    Ok(())
}

/// Student's t for 95 %, by degrees of freedom from 1.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// The 95 % interval of the mean return; `None` for a single episode.
fn interval(evaluation: &Evaluation) -> Option<[f64; 2]> {
    let freedom = (evaluation.episodes as usize).checked_sub(1).filter(|freedom| *freedom > 0)?;
    // Beyond the table, within 0.1 %.
    let student = STUDENT.get(freedom - 1).copied().unwrap_or(1.96 + 2.46 / freedom as f64);
    // The deviation is that of the episodes played; the estimate divides by one less.
    let half = student * evaluation.return_std / (freedom as f64).sqrt();
    Some([evaluation.return_mean - half, evaluation.return_mean + half])
}

/// The same policy with next to nothing to collect into and to learn from.
fn acting_alone(experiment: &Experiment) -> Experiment {
    let mut alone = experiment.clone();
    alone.collect.num_steps = 1;
    match &mut alone.learn {
        Some(Learn::Dqn(dqn)) => (dqn.buffer_size, dqn.batch_size) = (1, 1),
        Some(Learn::Sac(sac)) => (sac.buffer_size, sac.batch_size) = (1, 1),
        _ => {}
    }
    alone
}

fn play(
    experiment: &Experiment,
    path: &Path,
    checkpoint: Checkpoint,
) -> Result<Option<Evaluation>, TrainerError> {
    let eval = &experiment.eval;
    let mut stage = Stage::new(experiment, path, checkpoint, evaluate::num_envs(eval), EnvPurpose::Evaluate)?;
    let mut beat = Beat::new(&stage.group, eval.episodes);
    let onlooker = Decider(|played| beat.goes_on(played, Instant::now()));
    evaluate(&mut *stage.vector, eval, stage.algorithm.greedy()?, onlooker)
}

/// Plays to be looked at.
fn show(experiment: &Experiment, path: &Path, checkpoint: Checkpoint) -> Result<(), TrainerError> {
    let experiment = &acting_alone(experiment);
    let (env, learn) = setup::parts(experiment)?;
    let Header { train_iter, env_step, .. } = checkpoint.header;
    let mut policy = ShownPolicy {
        algorithm: learn.name().to_owned(),
        env_id: env.id.clone(),
        train_iter,
        env_step,
        episodes: experiment.eval.episodes,
        bounds: Vec::new(),
    };
    let mut stage = Stage::new(experiment, path, checkpoint, 1, EnvPurpose::Show)?;
    policy.bounds = sight::bounds(&stage.vector.spec().actions);
    show::show(&mut *stage.vector, &experiment.eval, stage.algorithm.greedy()?, policy)
}

/// A policy and environments for it.
struct Stage {
    group: ProcessGroup,
    algorithm: Box<dyn Algorithm>,
    vector: Box<dyn VectorEnv>,
}

impl Stage {
    fn new(
        experiment: &Experiment,
        path: &Path,
        checkpoint: Checkpoint,
        envs: usize,
        purpose: EnvPurpose,
    ) -> Result<Stage, TrainerError> {
        let page = Writer::anonymous(0, 0)
            .map_err(|error| TrainerError::failure(format!("cannot map a status page: {error}"), ""))?;
        let settings = GroupSettings {
            rank: 0,
            world_size: 1,
            local_rank: 0,
            master_addr: String::new(),
            master_port: 0,
            backend: BackendKind::Tcp,
            timeout: Duration::from_secs(60),
            interface: None,
            generation: 0,
            secret: None,
            device: Device::Cpu,
        };
        let group = ProcessGroup::connect(&settings, Page::new(page))?;
        let (env, _) = setup::parts(experiment)?;
        let network = experiment.policy.network;
        let seeds = Seeds::new(experiment.run.seed);
        let factory = EnvFactory::open(env)?;
        let build = BuildContext {
            experiment,
            sizes: Sizes {
                local_envs: 1,
                first_env: 0,
                num_steps: 1,
                local_batch: 1,
                batch: 1,
                num_iterations: None,
            },
            envs: &factory,
            spec: factory.spec().clone().fitted(network),
            seeds,
            device: Device::Cpu,
            group: &group,
            start_iteration: checkpoint.header.train_iter,
        };
        setup::set_threads(experiment);
        let mut algorithm = algo::make(&build)?;
        checkpoint.fits(path, &algorithm.state()?)?;
        algorithm.restore(&RestoredState {
            arrays: checkpoint.arrays,
            words: checkpoint.words,
            ..RestoredState::default()
        })?;
        let vector = env::fit(factory.make(envs, 0, &seeds, 0, purpose)?, network);
        Ok(Stage { group, algorithm, vector })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_students() {
        let of = |episodes, return_std| {
            interval(&Evaluation { episodes, return_std, return_mean: 10.0, ..Evaluation::default() })
        };
        assert_eq!(of(1, 3.0), None);
        let [low, high] = of(5, 2.0).unwrap();
        // 2.776 * 2 / sqrt(4), as scipy.stats.t.interval gives it from the returns.
        assert!((low - 7.224).abs() < 1e-3 && (high - 12.776).abs() < 1e-3, "{low} {high}");
        let [low, _] = of(101, 1.0).unwrap();
        assert!((10.0 - low - 0.198_4).abs() < 1e-3, "{low}");
    }
}
