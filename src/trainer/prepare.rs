//! `--check-env` and `--setup-env`: an environment's needs on this host, before a run meets them.
//!
//! Owner: the user, on the host in question. The check makes and plays the environment with the code of a
//! run, so that what works here works there.

use super::algo;
use super::distributed::{cuda, torch_version};
use super::env::{ActionSpace, Actions, EnvPurpose, Spec, StepOutcome, make_vector};
use super::error::TrainerError;
use super::events::say;
use super::identity::Flags;
use super::setup::{Sizes, load_experiment, parts};
use rankdeck_kernel::seeds::Seeds;
use rankdeck_types::experiment::{Env, EnvWorker, Experiment};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor};

/// What `--setup-env` installs: versions that rankdeck is tested with.
const PACKAGES: [&str; 3] = ["numpy", "gymnasium>=1.0,<2", "ale-py==0.12.*"];

/// How long a check plays.
const PLAYED: Duration = Duration::from_secs(2);
/// Environments of a check.
const ENVS: usize = 4;

/// Loads what a rank on a GPU loads, and has each GPU compute.
fn check_gpu() -> Result<(), TrainerError> {
    if !cuda::load_cuda()? {
        return Err(TrainerError::usage(
            if cuda::has_driver() { "this process sees no GPU" } else { "no NVIDIA driver on this host" },
            "check `nvidia-smi` and CUDA_VISIBLE_DEVICES",
        ));
    }
    let count = tch::Cuda::device_count().max(0) as usize;
    if count == 0 {
        return Err(TrainerError::usage(
            "the driver shows GPUs, and CUDA finds none that it can use",
            "check `nvidia-smi`, CUDA_VISIBLE_DEVICES and the host's libtorch",
        ));
    }
    for index in 0..count {
        let there = Tensor::f_ones([4, 4], (Kind::Float, Device::Cuda(index)))?;
        there.f_mm(&there)?.f_sum(None::<Kind>)?.f_double_value(&[])?;
    }
    let nccl = cuda::nccl_version()?;
    say(&format!("{count} GPUs work with libtorch {} and NCCL {nccl}", torch_version()));
    Ok(())
}

/// Does what the flags ask for.
pub fn run(flags: &Flags) -> Result<(), TrainerError> {
    if flags.check_gpu {
        return check_gpu();
    }
    if let Some(folder) = &flags.setup_env {
        return setup(folder, flags.python.as_deref().unwrap_or("python3"), &flags.package);
    }
    let experiment = match flags.config.as_os_str() == "-" {
        true => None,
        false => Some(load_experiment(&flags.config)?),
    };
    let mut env = experiment
        .as_ref()
        .and_then(|experiment| experiment.env.clone())
        .unwrap_or_else(|| Env::new("", ENVS as u32));
    env.id = flags.check_env.clone().unwrap_or_default();
    if let Some(python) = &flags.python {
        env.python.clone_from(python);
    }
    let spec = check(&env)?;
    match experiment.filter(|experiment| experiment.learn.is_some()) {
        Some(experiment) => check_network(Experiment { env: Some(env), ..experiment }, spec),
        None => Ok(()),
    }
}

/// Refuses what a rank alone would refuse: spaces that algorithm and network do not take.
fn check_network(experiment: Experiment, spec: Spec) -> Result<(), TrainerError> {
    let sizes = Sizes::resolve(&experiment, 0, 1)?;
    let network = experiment.policy.network;
    let spec = spec.fitted(network);
    algo::check(&experiment, &spec, &sizes)?;
    let (_, learn) = parts(&experiment)?;
    say(&format!(
        "  network       {} of {} takes them as {:?} {:?}",
        serde_json::to_string(&network).unwrap_or_default().trim_matches('"'),
        learn.name(),
        spec.observation_type,
        spec.observation_shape
    ));
    Ok(())
}

/// Plays `env` at random for a moment and says what it looks like; returns its shapes.
fn check(env: &Env) -> Result<Spec, TrainerError> {
    let begun = Instant::now();
    let seeds = Seeds::new(0);
    let mut vector = make_vector(env, ENVS, 0, &seeds, 0, EnvPurpose::Train)?;
    let made = begun.elapsed();
    let spec = vector.spec().clone();
    let actions = match &spec.actions {
        ActionSpace::Discrete { n } => format!("{n} discrete"),
        ActionSpace::Continuous { low, high } => {
            format!("{} continuous, from {low:?} to {high:?}", low.len())
        }
    };
    let mut random = seeds.generator(rankdeck_kernel::seeds::Purpose::Action, 0, 0);
    let mut outcome = StepOutcome::new(&spec, ENVS);
    let (mut discrete, mut continuous) = (vec![0; ENVS], vec![0.0; ENVS * spec.actions.width()]);
    let (begun, mut steps, mut episodes) = (Instant::now(), 0_u64, 0_usize);
    while begun.elapsed() < PLAYED {
        let chosen = match &spec.actions {
            ActionSpace::Discrete { n } => {
                discrete.fill_with(|| random.below(*n as u64) as i64);
                Actions::Discrete(&discrete)
            }
            ActionSpace::Continuous { low, high } => {
                let bounds = low.iter().zip(high).cycle();
                for (value, (low, high)) in continuous.iter_mut().zip(bounds) {
                    // Unbounded actions are tried around 0.
                    let (low, high) = (low.max(-1e3), high.min(1e3));
                    *value = low + (high - low) * random.next_f64() as f32;
                }
                Actions::Continuous(&continuous)
            }
        };
        vector.step(chosen, &mut outcome)?;
        steps += ENVS as u64;
        episodes += outcome.episodes.len();
    }
    let rate = steps as f64 / begun.elapsed().as_secs_f64();
    say(&format!("{}: works", env.id));
    say(&format!("  observations  {:?} {:?}", spec.observation_type, spec.observation_shape));
    say(&format!("  actions       {actions}"));
    say(&format!("  made in       {:.1} s", made.as_secs_f64()));
    say(&format!("  speed         {rate:.0} steps/s of {ENVS} environments, {episodes} episodes ended"));
    Ok(spec)
}

fn setup(folder: &Path, python: &str, more: &[String]) -> Result<(), TrainerError> {
    let home = folder.join("bin/python");
    if !home.exists() {
        say(&format!("making {} with {python}", folder.display()));
        let mut command = Command::new(python);
        command.args(["-m", "venv"]).arg(folder);
        execute(
            &mut command,
            "the virtual environment cannot be made",
            "install Python 3 with its venv module (Debian: `apt install python3-venv`), or give --python",
        )?;
    }
    let packages: Vec<&str> = PACKAGES.into_iter().chain(more.iter().map(String::as_str)).collect();
    say(&format!("installing {}", packages.join(", ")));
    let mut command = Command::new(&home);
    command.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(&packages);
    execute(
        &mut command,
        "packages cannot be installed",
        "without a network: `pip download` them on a machine that has one, copy the folder here, and run this again with \
         PIP_NO_INDEX=1 and PIP_FIND_LINKS=FOLDER in the environment",
    )?;
    // Absolute, as env.python needs it: a run may have another working directory.
    let home = std::path::absolute(&home)
        .map_err(|error| TrainerError::failure(format!("the current folder is gone: {error}"), ""))?;
    for id in ["CartPole-v1", "ALE/Pong-v5"] {
        let python = home.display().to_string();
        check(&Env { worker: EnvWorker::Python, python, ..Env::new(id, ENVS as u32) })?;
    }
    say("");
    say("in the experiment:");
    say("  [env]");
    say(&format!("  python = {:?}", home.display().to_string()));
    Ok(())
}

/// Runs a program whose output is the user's.
fn execute(command: &mut Command, what: &str, hint: &str) -> Result<(), TrainerError> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(TrainerError::usage(format!("{what}: {program} ended with {status}"), hint)),
        Err(error) => Err(TrainerError::usage(format!("{what}: {program}: {error}"), hint)),
    }
}
