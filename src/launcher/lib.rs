//! The command line of `rankdeck-trainer`, and what it does without libtorch.
//!
//! Packages install the launcher as `bin/rankdeck-trainer` and the trainer in `libexec/rankdeck`. The
//! dynamic linker starts no program whose libraries are missing, so the launcher needs none: it answers
//! `--help`, sets up and checks environments, and for everything else finds libtorch and becomes the
//! trainer. Agents start the trainer itself.

pub mod discovery;
pub mod environments;
pub mod flags;

use rankdeck_envs::EnvError;
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::Experiment;
use std::path::Path;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_experiment_file_is_named() {
        let error = load_experiment(Path::new("/nonexistent/x.toml")).unwrap_err();
        assert!(error.usage && error.hinted.error.contains("/nonexistent/x.toml"));
    }
}
