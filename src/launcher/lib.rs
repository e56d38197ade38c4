//! The command line of `rankdeck-trainer`, and what it does without libtorch.
//!
//! Packages install the launcher as `bin/rankdeck-trainer` and the trainer in `libexec/rankdeck`. The
//! dynamic linker starts no program whose libraries are missing, so the launcher needs none: it answers
//! `--help`, sets up and checks environments, and for everything else finds libtorch and becomes the
//! trainer. Agents start the trainer itself.

pub mod discovery;
pub mod environments;

use clap::builder::ArgPredicate;
use rankdeck_envs::EnvError;
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::{BackendChoice, Experiment};
use rankdeck_types::schema::former_word;
use std::path::{Path, PathBuf};

/// Why the trainer is not started, or an environment not set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchError {
    /// What failed, and what helps.
    pub hinted: HintedError,
    /// A mistake in arguments, configuration or environment (exit code 2) rather than a failure (1).
    pub usage: bool,
}

impl LaunchError {
    /// Exit code 1.
    pub fn failure(error: impl Into<String>, hint: impl Into<String>) -> LaunchError {
        LaunchError { hinted: HintedError::new(error, hint), usage: false }
    }

    /// Exit code 2.
    pub fn usage(error: impl Into<String>, hint: impl Into<String>) -> LaunchError {
        LaunchError { hinted: HintedError::new(error, hint), usage: true }
    }
}

impl From<EnvError> for LaunchError {
    fn from(error: EnvError) -> LaunchError {
        let hinted = HintedError::new(error.to_string(), error.hint());
        LaunchError { hinted, usage: error.is_usage() }
    }
}

/// Reads an experiment file.
pub fn load_experiment(path: &Path) -> Result<Experiment, LaunchError> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        LaunchError::usage(
            format!("cannot read experiment {}: {error}", path.display()),
            "pass an existing file to --config",
        )
    })?;
    toml::from_str(&text).map_err(|error| {
        LaunchError::usage(
            format!("invalid experiment {}: {}", path.display(), error.to_string().trim_end()),
            "check it with `rankdeck check FILE`",
        )
    })
}

/// Command line of `rankdeck-trainer`.
#[derive(Debug, Clone, Default, clap::Parser)]
#[command(name = "rankdeck-trainer", version, about = "rankdeck's built-in trainer: one rank of a run")]
pub struct Flags {
    /// Experiment file (TOML)
    #[arg(long, value_name = "FILE", required = false, required_unless_present_any = ["all_reduce", "check_env", "check_gpu", "setup_env", "evaluate"],
          default_value_if("all_reduce", ArgPredicate::IsPresent, "-"),
          default_value_if("check_env", ArgPredicate::IsPresent, "-"),
          default_value_if("check_gpu", ArgPredicate::IsPresent, "-"),
          default_value_if("evaluate", ArgPredicate::IsPresent, "-"),
          default_value_if("setup_env", ArgPredicate::IsPresent, "-"))]
    pub config: PathBuf,
    /// Directory for checkpoints and TensorBoard files
    ///
    /// Default: $RANKDECK_RUN_DIR, else runs/NAME-TIME.
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Checkpoint to resume from, or `latest` [default: $RANKDECK_RESUME]
    #[arg(long, value_name = "FILE|latest")]
    pub resume: Option<String>,
    /// Index of this rank over all hosts [default: $RANK]
    #[arg(long, value_name = "N")]
    pub rank: Option<u32>,
    /// Ranks in the group [default: $WORLD_SIZE]
    #[arg(long, value_name = "N")]
    pub world_size: Option<u32>,
    /// Index of this rank on its host; picks the GPU [default: $LOCAL_RANK]
    #[arg(long, value_name = "N")]
    pub local_rank: Option<u32>,
    /// Host of rank 0's store [default: $MASTER_ADDR]
    #[arg(long, value_name = "HOST")]
    pub master_addr: Option<String>,
    /// Port of rank 0's store [default: $MASTER_PORT]
    #[arg(long, value_name = "PORT")]
    pub master_port: Option<u16>,
    /// Backend of the collectives; overrides distributed.backend
    #[arg(long, value_name = "tcp|nccl", value_parser = backend)]
    pub backend: Option<BackendChoice>,
    /// Start N ranks on this host
    ///
    /// Forwards signals to them, and exits with the worst of their exit codes.
    #[arg(long, value_name = "N", conflicts_with_all = ["rank", "world_size", "local_rank"],
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub spawn: Option<u32>,
    /// Write what each operation gives to FILE.RANK, and end after the traced iterations
    ///
    /// For `rankdeck diff`. Nothing is evaluated or saved.
    #[arg(long, value_name = "FILE", requires = "trace_iterations")]
    pub trace: Option<PathBuf>,
    /// With --trace: iterations to trace, counted from 1 (`7` or `3-7`)
    #[arg(long, value_name = "N|N-N", requires = "trace", value_parser = iterations)]
    pub trace_iterations: Option<(u64, u64)>,
    /// Inject a fault: FAULT[=VALUE]@RANK:STEP
    ///
    /// Can be repeated.
    #[cfg(feature = "inject")]
    #[arg(long, value_name = "FAULT@RANK:STEP")]
    pub inject: Vec<String>,
    /// Create an RL environment as a run would, step it and print its spaces
    ///
    /// With --config, uses the options of its [env].
    #[arg(long, value_name = "ID", conflicts_with = "spawn")]
    pub check_env: Option<String>,
    /// Load CUDA and compute on each visible GPU, or print why that fails
    #[arg(long, conflicts_with_all = ["spawn", "check_env", "setup_env", "evaluate"])]
    pub check_gpu: bool,
    /// Time all-reduces between the ranks, from 4 bytes to LARGEST
    ///
    /// Trains nothing. Rank 0 prints a line of JSON for each size. With --spawn N, runs N ranks on this host,
    /// else as one rank of any launcher.
    #[arg(long, value_name = "LARGEST", num_args = 0..=1, default_missing_value = "33554432", conflicts_with_all = ["config", "resume", "run_dir", "check_env", "check_gpu", "setup_env", "evaluate"])]
    pub all_reduce: Option<usize>,
    /// Evaluate a checkpoint (`checkpoints/NAME.ckpt`) and print the returns
    ///
    /// Plays its policy as in an evaluation of its run.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["spawn", "check_env", "setup_env", "resume"])]
    pub evaluate: Option<PathBuf>,
    /// With --evaluate: number of episodes [default: the run's eval.episodes]
    #[arg(long, value_name = "N", requires = "evaluate", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub episodes: Option<u32>,
    /// With --evaluate: take the best actions [default: the run's eval.greedy]
    #[arg(long, requires = "evaluate", conflicts_with = "sample")]
    pub greedy: bool,
    /// With --evaluate: act as in training (eval.greedy = false)
    #[arg(long, requires = "evaluate")]
    pub sample: bool,
    /// With --evaluate: print one JSON object and nothing else
    #[arg(long, requires = "evaluate")]
    pub json: bool,
    /// With --evaluate: print each step as a line of JSON
    ///
    /// Plays one episode after the other.
    #[arg(long, requires = "evaluate", conflicts_with = "json")]
    pub show: bool,
    /// Create a Python virtual environment for Gymnasium and Atari
    #[arg(long, value_name = "DIR", conflicts_with_all = ["spawn", "check_env"])]
    pub setup_env: Option<PathBuf>,
    /// With --setup-env: also install a package, such as `gymnasium[mujoco]`
    ///
    /// Can be repeated.
    #[arg(long, value_name = "PACKAGE", requires = "setup_env")]
    pub package: Vec<String>,
    /// With --setup-env: also install the torch that the trainer uses
    #[arg(long, requires = "setup_env")]
    pub torch: bool,
    /// With --evaluate: allow the checkpoint to import this Python module
    ///
    /// `MODULE` in `MODULE:Name-v0`. Can be repeated.
    #[arg(long, value_name = "MODULE", requires = "evaluate")]
    pub env_module: Vec<String>,
    /// With --check-env, --setup-env or --evaluate: Python interpreter
    ///
    /// Default: env.python of --config, else python3.
    #[arg(long, value_name = "PYTHON")]
    pub python: Option<String>,
}

/// Reads `--trace-iterations`.
fn iterations(text: &str) -> Result<(u64, u64), String> {
    let number = |word: &str| word.parse::<u64>().ok().filter(|number| *number > 0);
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Ok((first, last)),
        _ => Err("expected an iteration from 1, or two of them as `3-7`".into()),
    }
}

/// Reads `--backend`.
fn backend(word: &str) -> Result<BackendChoice, String> {
    match word {
        "tcp" => Ok(BackendChoice::Tcp),
        "nccl" => Ok(BackendChoice::Nccl),
        _ => Err(match former_word("backend", word) {
            Some(hint) => format!("this backend was removed; {hint}"),
            None => "expected `tcp` or `nccl`".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traced_iterations_are_one_or_a_range() {
        assert_eq!((iterations("7"), iterations("3-7")), (Ok((7, 7)), Ok((3, 7))));
        for wrong in ["", "0", "7-3", "3-", "x", "1-2-3"] {
            assert!(iterations(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn missing_experiment_file_is_named() {
        let error = load_experiment(Path::new("/nonexistent/x.toml")).unwrap_err();
        assert!(error.usage && error.hinted.error.contains("/nonexistent/x.toml"));
    }
}
