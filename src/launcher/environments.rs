//! `--check-env` and `--setup-env`: an environment's needs on this host, before a run meets them.
//!
//! Owner: the user, on the host in question. The check makes and plays the environment with the code of a
//! run, so that what works here works there.

use crate::Flags;
use crate::{LaunchError, load_experiment};
use rankdeck_envs::log::print_line;
use rankdeck_envs::{ActionSpace, Actions, EnvFactory, EnvPurpose, Spec, StepOutcome};
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_kernel::seeds::{Purpose, Seeds};
use rankdeck_proto::libtorch;
use rankdeck_types::experiment::{Env, EnvWorker, Experiment};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// What `--setup-env` installs: versions that rankdeck is tested with.
const PACKAGES: [&str; 3] = ["numpy", "gymnasium>=1.0,<2", "ale-py==0.12.*"];

/// How long a check plays.
const PLAYED: Duration = Duration::from_secs(2);
/// Environments of a check.
const ENVS: usize = 4;

/// What was checked: the experiment around the environment, when one was given, and the environment's shapes.
#[derive(Debug)]
pub struct CheckedEnvironment {
    /// The file's experiment, with the requested environment.
    pub experiment: Option<Experiment>,
    /// Its shapes.
    pub spec: Spec,
}

/// Runs `--check-env`.
pub fn check(flags: &Flags) -> Result<CheckedEnvironment, LaunchError> {
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
    let spec = play(&env)?;
    Ok(CheckedEnvironment {
        experiment: experiment.map(|experiment| Experiment { env: Some(env), ..experiment }),
        spec,
    })
}

/// Plays `env` at random for a moment and prints its spaces; returns its shapes.
fn play(env: &Env) -> Result<Spec, LaunchError> {
    let begun = Instant::now();
    let seeds = Seeds::new(0);
    let factory = EnvFactory::open(env)?;
    let mut vector = factory.make(ENVS, 0, &seeds, 0, EnvPurpose::Train)?;
    let made = begun.elapsed();
    let spec = vector.spec().clone();
    let actions = match &spec.actions {
        ActionSpace::Discrete { n } => format!("{n} discrete"),
        ActionSpace::MultiDiscrete { sizes } => format!("{} parts of {sizes:?} discrete", sizes.len()),
        ActionSpace::Continuous { low, high } => {
            format!("{} continuous, from {low:?} to {high:?}", low.len())
        }
    };
    let mut random = seeds.generator(Purpose::Action, 0, 0);
    let mut outcome = StepOutcome::new(&spec, ENVS);
    let len = ENVS * spec.actions.action_len();
    let (mut discrete, mut continuous) = (vec![0; len], vec![0.0; len]);
    let (begun, mut steps, mut episodes) = (Instant::now(), 0_u64, 0_usize);
    while begun.elapsed() < PLAYED {
        let chosen = match &spec.actions {
            ActionSpace::Discrete { .. } | ActionSpace::MultiDiscrete { .. } => {
                choose(&mut discrete, &spec, vector.masks(), &mut random);
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
    print_line(&format!("{}: works", env.id));
    print_line(&format!("  observations  {:?} {:?}", spec.observation_type, spec.observation_shape));
    if let Some(images) = factory.images() {
        print_line(&format!("  images        {images}"));
    }
    print_line(&format!("  actions       {actions}"));
    if let Some(masks) = vector.masks() {
        let allowed = masks.iter().filter(|allowed| **allowed != 0).count();
        print_line(&format!("  action masks  {allowed} of {} choices allowed now", masks.len()));
    }
    print_line(&format!("  made in       {:.1} s", made.as_secs_f64()));
    print_line(&format!(
        "  speed         {rate:.0} steps/s of {ENVS} environments, {episodes} episodes ended"
    ));
    Ok(spec)
}

/// Draws an allowed action for every environment.
fn choose(actions: &mut [i64], spec: &Spec, masks: Option<&[u8]>, random: &mut Generator) {
    let sizes = spec.actions.sizes();
    let mut start = 0;
    for (action, size) in actions.iter_mut().zip(sizes.iter().cycle()) {
        let mask = masks.and_then(|masks| masks.get(start..start + size));
        start += size;
        *action = match mask {
            None => random.below(*size as u64) as i64,
            Some(mask) => {
                let allowed: Vec<usize> = (0..*size).filter(|i| mask[*i] != 0).collect();
                let chosen = random.below(allowed.len().max(1) as u64) as usize;
                allowed.get(chosen).map_or(0, |action| *action as i64)
            }
        };
    }
}

/// Runs `--setup-env`.
pub fn set_up(folder: &Path, flags: &Flags) -> Result<(), LaunchError> {
    let python = flags.python.as_deref().unwrap_or("python3");
    let home = folder.join("bin/python");
    if !home.exists() {
        print_line(&format!("creating {} with {python}", folder.display()));
        let mut command = Command::new(python);
        command.args(["-m", "venv"]).arg(folder);
        execute(
            &mut command,
            "cannot create the virtual environment",
            "install Python 3 with its venv module (Debian: `apt install python3-venv`), or pass --python",
        )?;
    }
    let more = flags.torch.then_some(libtorch::REQUIREMENT).into_iter();
    let packages: Vec<&str> =
        PACKAGES.into_iter().chain(more).chain(flags.package.iter().map(String::as_str)).collect();
    print_line(&format!("installing {}", packages.join(", ")));
    let mut command = Command::new(&home);
    command.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(&packages);
    execute(
        &mut command,
        "cannot install packages",
        "offline: run `pip download` on a connected machine, copy the directory here, and rerun with PIP_NO_INDEX=1 and PIP_FIND_LINKS=DIR in the environment",
    )?;
    // Absolute, as env.python needs it: a run may have another working directory.
    let home = std::path::absolute(&home)
        .map_err(|error| LaunchError::failure(format!("cannot read the current directory: {error}"), ""))?;
    for id in ["CartPole-v1", "ALE/Pong-v5"] {
        let python = home.display().to_string();
        play(&Env { worker: EnvWorker::Python, python, ..Env::new(id, ENVS as u32) })?;
    }
    print_line("");
    print_line("in the experiment:");
    print_line("  [env]");
    print_line(&format!("  python = {:?}", home.display().to_string()));
    if flags.torch {
        print_line("in hosts.toml:");
        print_line("  [defaults]");
        print_line(&format!("  libtorch = {:?}", format!("python:{}", home.display())));
    }
    Ok(())
}

/// Runs a program whose output is the user's.
fn execute(command: &mut Command, what: &str, hint: &str) -> Result<(), LaunchError> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(LaunchError::usage(format!("{what}: {program} ended with {status}"), hint)),
        Err(error) => Err(LaunchError::usage(format!("{what}: {program}: {error}"), hint)),
    }
}
