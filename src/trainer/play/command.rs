//! `--evaluate`: evaluates the policy of a checkpoint as its run would.
//!
//! The checkpoint holds everything else: the experiment is in it. Invariants:
//! - IMPORT-1: a checkpoint chooses no program and no module. Its interpreter is never used, its module is
//!   imported only when `--env-module` names it, and the worker imports nothing from the current directory.

use super::evaluate::{self, EvalCallback, EvalHeartbeat, evaluate};
use super::show;
use crate::algo::{self, Algorithm, BuildContext};
use crate::checkpoint::resume::read;
use crate::checkpoint::{Checkpoint, CheckpointMetadata};
use crate::distributed::{BackendKind, GroupSettings, ProcessGroup};
use crate::env::{self, EnvFactory, EnvPurpose, VectorEnv, WorkerImports};
use crate::error::TrainerError;
use crate::startup::identity::Flags;
use crate::startup::setup::{self, Sizes};
use crate::support::events::print_line;
use crate::support::page::StatusPage;
use crate::support::state::RestoredState;
use rankdeck_kernel::seeds::Seeds;
use rankdeck_proto::message::Evaluation;
use rankdeck_proto::show::ShownPolicy;
use rankdeck_proto::status_page::StatusPageWriter;
use rankdeck_types::experiment::{Env, Experiment};
use rankdeck_types::words::clean;
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};
use tch::Device;

/// Evaluates the checkpoint at `path` and prints the result.
pub(crate) fn run(path: &Path, flags: &Flags) -> Result<(), TrainerError> {
    let bytes = read(path)?;
    let unusable = |what: String| crate::checkpoint::refuse(path, what, "evaluate another checkpoint");
    let checkpoint = Checkpoint::decode(&bytes).map_err(unusable)?;
    let mut experiment: Experiment = serde_json::from_value(checkpoint.header.about.experiment.clone())
        .map_err(|error| unusable(format!("has an experiment that this build cannot read: {error}")))?;
    experiment.eval.episodes = flags.episodes.unwrap_or(experiment.eval.episodes);
    experiment.eval.greedy = flags.greedy || experiment.eval.greedy && !flags.sample;
    if let Some(env) = &mut experiment.env {
        trust(env, flags)?;
    }
    let (env, learn) = setup::parts(&experiment)?;
    let (algorithm, env_id) = (learn.name().to_owned(), clean(&env.id));
    let CheckpointMetadata { train_iter, env_step, .. } = checkpoint.header;
    if flags.show {
        return show(&experiment, path, checkpoint);
    }
    if !flags.json {
        print_line(&format!("{algorithm} on {env_id}, after iteration {train_iter}"));
    }
    let Some(evaluation) = play(&acting_alone(&experiment), path, checkpoint)? else {
        return Err(TrainerError::failure(
            "stopped before the last episode ended",
            "play fewer episodes: --episodes N",
        ));
    };
    let interval = interval(&evaluation);
    let Evaluation {
        return_mean,
        return_std,
        return_min,
        return_max,
        length_mean,
        episodes,
        duration_s,
        sampled,
        ..
    } = evaluation;
    if flags.json {
        print_line(
            &json!({
                "kind": "evaluation",
                "checkpoint": path,
                "algorithm": algorithm,
                "env_id": env_id,
                "train_iter": train_iter,
                "env_step": env_step,
                "episodes": episodes,
                "greedy": !sampled,
                "return_mean": return_mean,
                "return_std": return_std,
                "return_interval": interval,
                "return_min": return_min,
                "return_max": return_max,
                "length_mean": length_mean,
                "duration_s": duration_s,
            })
            .to_string(),
        );
        return Ok(());
    }
    let how = if sampled { ", actions sampled" } else { "" };
    print_line(&format!("return {return_mean:.3} +- {return_std:.3} over {episodes} episodes{how}"));
    if let Some([low, high]) = interval {
        print_line(&format!("95% confidence interval of the mean: {low:.3} to {high:.3}"));
    }
    print_line(&format!("min {return_min:.3}, max {return_max:.3}, {length_mean:.1} steps per episode"));
    Ok(())
}

/// Takes the interpreter from the flags, and refuses a module that they do not name.
fn trust(env: &mut Env, flags: &Flags) -> Result<(), TrainerError> {
    env.python = flags.python.clone().unwrap_or_else(|| Env::default().python);
    let modules = env.modules();
    let Some(module) =
        modules.into_iter().find(|module| !flags.env_module.iter().any(|named| named == module))
    else {
        return Ok(());
    };
    let plain = module.chars().all(|char| char.is_ascii_alphanumeric() || "_.".contains(char));
    let hint = match plain {
        true => format!(
            "if you trust it, pass `--env-module {module}`; if it is not installed, set PYTHONPATH to its directory"
        ),
        false => "evaluate a checkpoint that you trust".to_owned(),
    };
    let what = match env.library.as_deref() == Some(module) {
        true => format!("loads the library {module:?}, which is not allowed"),
        false => "imports a Python module that is not allowed".to_owned(),
    };
    Err(TrainerError::usage(format!("the checkpoint's environment {:?} {what}", env.id), hint))
}

/// Student's t for 95%, by degrees of freedom from 1.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// The 95% interval of the mean return; `None` for a single episode.
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
    if let Some(learn) = &mut alone.learn {
        learn.shrink_replay();
    }
    alone
}

fn play(
    experiment: &Experiment,
    path: &Path,
    checkpoint: Checkpoint,
) -> Result<Option<Evaluation>, TrainerError> {
    let eval = &experiment.eval;
    let mut played =
        PlaySetup::new(experiment, path, checkpoint, evaluate::num_envs(eval), EnvPurpose::Evaluate)?;
    let mut heartbeat = EvalHeartbeat::new(&played.group, eval.episodes);
    let observer = EvalCallback(|played| heartbeat.continues(played, Instant::now()));
    evaluate(&mut *played.vector, (eval, &played.seeds), played.algorithm.greedy()?, observer)
}

/// Plays one environment and prints each step.
fn show(experiment: &Experiment, path: &Path, checkpoint: Checkpoint) -> Result<(), TrainerError> {
    let experiment = &acting_alone(experiment);
    let (env, learn) = setup::parts(experiment)?;
    let CheckpointMetadata { train_iter, env_step, .. } = checkpoint.header;
    let mut policy = ShownPolicy {
        algorithm: learn.name().to_owned(),
        env_id: env.id.clone(),
        train_iter,
        env_step,
        episodes: experiment.eval.episodes,
        bounds: Vec::new(),
    };
    let mut played = PlaySetup::new(experiment, path, checkpoint, 1, EnvPurpose::Show)?;
    policy.bounds = show::bounds(&played.vector.spec().actions);
    let eval = (&experiment.eval, &played.seeds);
    show::show(&mut *played.vector, eval, played.algorithm.greedy()?, policy)
}

/// A policy and environments for it.
struct PlaySetup {
    group: ProcessGroup,
    algorithm: Box<dyn Algorithm>,
    vector: Box<dyn VectorEnv>,
    seeds: Seeds,
}

impl PlaySetup {
    fn new(
        experiment: &Experiment,
        path: &Path,
        checkpoint: Checkpoint,
        envs: usize,
        purpose: EnvPurpose,
    ) -> Result<PlaySetup, TrainerError> {
        let page = StatusPageWriter::anonymous(0, 0)
            .map_err(|error| TrainerError::failure(format!("cannot map a status page: {error}"), ""))?;
        let settings = GroupSettings {
            rank: 0,
            world_size: 1,
            local_rank: 0,
            master_addr: String::new(),
            master_port: 0,
            backend: BackendKind::Tcp,
            timeout: Duration::from_secs(60),
            shared_memory: true,
            interface: None,
            generation: 0,
            secret: None,
            device: Device::Cpu,
            interrupt: None,
        };
        let group = ProcessGroup::connect(&settings, StatusPage::new(page))?;
        let (env, _) = setup::parts(experiment)?;
        let network = experiment.policy.network;
        let seeds = Seeds::new(experiment.run.seed);
        let factory = EnvFactory::open_with(env, WorkerImports::Installed)?;
        let build = BuildContext {
            experiment,
            sizes: Sizes {
                local_envs: 1,
                first_env: 0,
                num_steps: 1,
                local_batch: 1,
                batch: 1,
                num_iterations: None,
                blocks: None,
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
        Ok(PlaySetup { group, algorithm, vector, seeds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn import_1_each_module_of_an_environment_must_be_named() {
        let checkpoint = || Env {
            id: "registers:X-v0".into(),
            python: "/evil/python".into(),
            wrappers: Some(vec!["wraps:One".into()]),
            vector: Some("factory:make".into()),
            library: Some("./libenv.so".into()),
            ..Env::default()
        };
        let all = ["registers", "wraps", "factory", "./libenv.so"];
        let naming_all_but = |missing: &str| Flags {
            env_module: all.into_iter().filter(|module| *module != missing).map(str::to_owned).collect(),
            ..Flags::default()
        };
        for missing in all {
            let refused = trust(&mut checkpoint(), &naming_all_but(missing));
            assert!(refused.is_err_and(|error| error.usage), "{missing}");
        }
        let mut env = checkpoint();
        assert!(trust(&mut env, &naming_all_but("")).is_ok());
        assert_eq!(env.python, Env::default().python, "never that of the checkpoint");
    }

    #[test]
    fn confidence_interval_is_students() {
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
