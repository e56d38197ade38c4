//! Why a trainer ends without success.

use super::algo::adam::AdamError;
use super::distributed::DistError;
use super::env::EnvError;
use rankdeck_launcher::error::LaunchError;
use rankdeck_types::error::HintedError;

/// What failed, what helps, and whether the user has to correct something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{hinted}")]
pub struct TrainerError {
    /// What failed, and what helps.
    pub hinted: HintedError,
    /// A mistake in arguments, environment, configuration or checkpoint (exit code 2) rather than a failure
    /// (1).
    pub usage: bool,
}

impl TrainerError {
    /// An error that ends the rank with exit code 1.
    pub fn failure(error: impl Into<String>, hint: impl Into<String>) -> TrainerError {
        TrainerError { hinted: HintedError::new(error, hint), usage: false }
    }

    /// A mistake in arguments, environment, configuration or checkpoint; exit code 2.
    pub fn usage(error: impl Into<String>, hint: impl Into<String>) -> TrainerError {
        TrainerError::usage_of(HintedError::new(error, hint))
    }

    /// A mistake that was found elsewhere; exit code 2.
    pub fn usage_of(hinted: HintedError) -> TrainerError {
        TrainerError { hinted, usage: true }
    }

    /// What helps; may be empty.
    pub fn hint(&self) -> &str {
        &self.hinted.hint
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        if self.usage { 2 } else { 1 }
    }
}

impl From<DistError> for TrainerError {
    fn from(error: DistError) -> TrainerError {
        let hinted = HintedError::new(error.to_string(), error.hint());
        TrainerError { hinted, usage: error.is_usage() }
    }
}

impl From<tch::TchError> for TrainerError {
    fn from(error: tch::TchError) -> TrainerError {
        // libtorch appends its stack; the first line says what happened.
        let text = error.to_string();
        let first = text.lines().next().unwrap_or("no reason given");
        let Some((_, rest)) = first.split_once("CUDA out of memory.") else {
            return TrainerError::failure(format!("libtorch refused an operation: {first}"), "");
        };
        // What follows is about allocators.
        let rest = rest.split("Of the allocated memory").next().unwrap_or(rest).trim();
        TrainerError::failure(
            format!("CUDA out of memory. {rest}"),
            "`nvidia-smi` shows who uses it; lower env.num_envs, collect.num_steps or learn.batch_size, or start fewer \
             ranks on it; complete checkpoints stay, and `rankdeck restart RUN` goes on from the latest",
        )
    }
}

impl From<AdamError> for TrainerError {
    fn from(error: AdamError) -> TrainerError {
        TrainerError::failure(error.to_string(), "")
    }
}

impl From<LaunchError> for TrainerError {
    fn from(LaunchError { hinted, usage }: LaunchError) -> TrainerError {
        TrainerError { hinted, usage }
    }
}

impl From<EnvError> for TrainerError {
    fn from(error: EnvError) -> TrainerError {
        let hinted = HintedError::new(error.to_string(), error.hint());
        TrainerError { hinted, usage: error.is_usage() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_gpu_is_said_in_a_line_with_what_helps() {
        let text = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 8.00 GiB of which \
                    3.00 MiB is free. Of the allocated memory 7 GiB is allocated by PyTorch.\nException raised from x";
        let error = TrainerError::from(tch::TchError::Torch(text.into()));
        let said = error.to_string();
        assert!(said.starts_with("CUDA out of memory. Tried to allocate 20.00 MiB."), "{said}");
        assert!(said.ends_with("3.00 MiB is free."), "{said}");
        assert!(error.hint().contains("env.num_envs") && error.hint().contains("restart"), "{error:?}");
        let other = TrainerError::from(tch::TchError::Torch("no such kernel\nframe #0: x".into()));
        assert!(other.to_string().ends_with("no such kernel"), "{other}");
    }
}
