//! The trainer's error: cause, hint, exit code and failure kind.

use crate::distributed::{DistError, DistErrorKind, DistPhase};
use crate::env::EnvError;
use rankdeck_launcher::LaunchError;
use rankdeck_proto::message::FailureKind;
use rankdeck_types::error::HintedError;
use rankdeck_types::exit::CANNOT_SHRINK;
use rankdeck_types::words::{GPU_FAILED, GPU_FULL, GPU_FULL_HINT, GPU_HINT};

/// libtorch's messages for exhausted GPU memory, besides its own allocator's.
const FULL: [&str; 3] =
    ["CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"];
/// Its messages for a GPU or driver that has failed.
const BROKEN: [&str; 4] = ["CUDA error: ", "CUDA driver error: ", "CUBLAS_STATUS_", "CUDNN_STATUS_"];

/// Its message for a GPU model that it was not built for.
const FOREIGN: &str = "no kernel image is available";
const FOREIGN_HINT: &str = "libtorch 2.11 for CUDA 13 needs compute capability 7.5 or later (`nvidia-smi --query-gpu=name,compute_cap --format=csv`): choose other `gpus`, or omit `gpus` and set `nproc`";

/// What failed, what helps, and whether the user has to correct something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{hinted}")]
pub struct TrainerError {
    /// What failed, and what helps.
    pub hinted: HintedError,
    /// A mistake in arguments, environment, configuration or checkpoint (exit code 2) rather than a failure
    /// (1).
    pub usage: bool,
    /// Kind of the failure, independent of the text.
    pub kind: FailureKind,
    /// Another rank is lost, and this one cannot continue without it: only a restart helps (exit code
    /// [`CANNOT_SHRINK`]).
    pub needs_restart: bool,
}

impl TrainerError {
    /// An error that ends the rank with exit code 1.
    pub fn failure(error: impl Into<String>, hint: impl Into<String>) -> TrainerError {
        TrainerError {
            hinted: HintedError::new(error, hint),
            usage: false,
            kind: FailureKind::Other,
            needs_restart: false,
        }
    }

    /// This rank cannot continue without a lost one; exit code [`CANNOT_SHRINK`].
    pub(crate) fn cannot_shrink(hinted: HintedError) -> TrainerError {
        TrainerError { hinted, usage: false, kind: FailureKind::Connection, needs_restart: true }
    }

    /// Training diverged; exit code 1.
    pub(crate) fn diverged(error: impl Into<String>, hint: impl Into<String>) -> TrainerError {
        TrainerError::failure(error, hint).with_kind(FailureKind::Diverged)
    }

    /// The same error, of this kind.
    pub(crate) fn with_kind(self, kind: FailureKind) -> TrainerError {
        TrainerError { kind, ..self }
    }

    /// The same error, which this one of the operating system has led to.
    pub(crate) fn with_io_kind(self, error: &std::io::Error) -> TrainerError {
        self.with_kind(FailureKind::of_io(error))
    }

    /// A mistake in arguments, environment, configuration or checkpoint; exit code 2.
    pub fn usage(error: impl Into<String>, hint: impl Into<String>) -> TrainerError {
        TrainerError::usage_of(HintedError::new(error, hint))
    }

    /// A mistake that was found elsewhere; exit code 2.
    pub(crate) fn usage_of(hinted: HintedError) -> TrainerError {
        TrainerError { hinted, usage: true, kind: FailureKind::Configuration, needs_restart: false }
    }

    /// What helps; may be empty.
    pub fn hint(&self) -> &str {
        &self.hinted.hint
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match (self.usage, self.needs_restart) {
            (true, _) => 2,
            (_, true) => CANNOT_SHRINK as u8,
            _ => 1,
        }
    }
}

impl From<DistError> for TrainerError {
    fn from(error: DistError) -> TrainerError {
        // libtorch's own words may be the detail.
        let gpu_error = Some(&error.detail)
            .filter(|_| error.kind == DistErrorKind::Failed)
            .and_then(|text| gpu_error(text));
        let hint = gpu_error.as_ref().map_or(error.hint(), TrainerError::hint);
        let kind = match (error.kind, error.phase) {
            (DistErrorKind::Usage | DistErrorKind::Unsupported, _) => FailureKind::Configuration,
            (DistErrorKind::AddressInUse, _) => FailureKind::PortTaken,
            (DistErrorKind::Timeout | DistErrorKind::Connection, DistPhase::Rendezvous) => {
                FailureKind::Rendezvous
            }
            (DistErrorKind::Timeout | DistErrorKind::Connection, _) => FailureKind::Connection,
            (DistErrorKind::Mismatch, _) => FailureKind::Mismatch,
            (DistErrorKind::Device, _) => FailureKind::GpuFailed,
            (DistErrorKind::Memory, _) => FailureKind::OutOfMemory,
            (DistErrorKind::Forged, _) => FailureKind::Other,
            (DistErrorKind::Failed, _) => gpu_error.as_ref().map_or(FailureKind::Other, |error| error.kind),
        };
        let text = error.to_string();
        let first = text.lines().next().unwrap_or(&text);
        TrainerError {
            hinted: HintedError::new(first, hint),
            usage: error.is_usage(),
            kind,
            needs_restart: false,
        }
    }
}

/// The GPU error in a libtorch message, if it is one.
pub(crate) fn gpu_error(text: &str) -> Option<TrainerError> {
    // libtorch appends its stack; the first line is the message.
    let first = text.lines().next().unwrap_or(text);
    let first = first.strip_prefix("Internal torch error: ").unwrap_or(first);
    if let Some((_, rest)) = first.split_once("CUDA out of memory.") {
        // What follows is about allocators.
        let rest = rest.split("Of the allocated memory").next().unwrap_or(rest).trim();
        let error = TrainerError::failure(format!("CUDA out of memory. {rest}"), GPU_FULL_HINT);
        return Some(error.with_kind(FailureKind::OutOfMemory));
    }
    let contains_any = |any: &[&str]| any.iter().any(|words| first.contains(words));
    if contains_any(&[FOREIGN]) {
        return Some(TrainerError::usage(
            format!("this libtorch has no kernels for this GPU: {first}"),
            FOREIGN_HINT,
        ));
    }
    if contains_any(&FULL) {
        let error = TrainerError::failure(format!("{GPU_FULL}: {first}"), GPU_FULL_HINT);
        return Some(error.with_kind(FailureKind::OutOfMemory));
    }
    let broken = || TrainerError::failure(format!("{GPU_FAILED}: {first}"), GPU_HINT);
    contains_any(&BROKEN).then(|| broken().with_kind(FailureKind::GpuFailed))
}

impl From<tch::TchError> for TrainerError {
    fn from(error: tch::TchError) -> TrainerError {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or("unknown error");
        if let Some(error) = gpu_error(&text) {
            return error;
        }
        TrainerError::failure(format!("libtorch operation failed: {first}"), "")
    }
}

impl From<LaunchError> for TrainerError {
    fn from(LaunchError { hinted, usage }: LaunchError) -> TrainerError {
        let kind = if usage { FailureKind::Configuration } else { FailureKind::Other };
        TrainerError { hinted, usage, kind, needs_restart: false }
    }
}

impl From<EnvError> for TrainerError {
    fn from(error: EnvError) -> TrainerError {
        let kind = match &error {
            error if error.is_usage() => FailureKind::Configuration,
            EnvError::Abandoned => FailureKind::Other,
            _ => FailureKind::Environment,
        };
        let hinted = HintedError::new(error.to_string(), error.hint());
        TrainerError { hinted, usage: error.is_usage(), kind, needs_restart: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kind follows from the type of the error, however misleading its text.
    #[test]
    fn error_kind_does_not_depend_on_its_text() {
        let text = "socket closed: No space left on device, CUDA error: lost another rank";
        let worker = |usage| EnvError::Worker {
            id: "x".into(),
            error: HintedError::new(text, ""),
            traceback: String::new(),
            usage,
        };
        assert_eq!(TrainerError::from(worker(false)).kind, FailureKind::Environment);
        assert_eq!(TrainerError::from(worker(true)).kind, FailureKind::Configuration);
        assert_eq!(TrainerError::failure(text, "").kind, FailureKind::Other);
        assert_eq!(TrainerError::usage(text, "").kind, FailureKind::Configuration);
        let full = std::io::Error::from_raw_os_error(libc::ENOSPC);
        assert_eq!(TrainerError::failure("x", "").with_io_kind(&full).kind, FailureKind::DiskFull);
        let quota = std::io::Error::from_raw_os_error(libc::EDQUOT);
        assert_eq!(TrainerError::failure("x", "").with_io_kind(&quota).kind, FailureKind::DiskFull);
        for (kind, phase, expected) in [
            (DistErrorKind::Connection, DistPhase::Collective, FailureKind::Connection),
            (DistErrorKind::Timeout, DistPhase::Collective, FailureKind::Connection),
            (DistErrorKind::Timeout, DistPhase::Rendezvous, FailureKind::Rendezvous),
            (DistErrorKind::Mismatch, DistPhase::Collective, FailureKind::Mismatch),
            (DistErrorKind::AddressInUse, DistPhase::Rendezvous, FailureKind::PortTaken),
            (DistErrorKind::Memory, DistPhase::Collective, FailureKind::OutOfMemory),
            (DistErrorKind::Device, DistPhase::Collective, FailureKind::GpuFailed),
            (DistErrorKind::Usage, DistPhase::Collective, FailureKind::Configuration),
            (DistErrorKind::Forged, DistPhase::Collective, FailureKind::Other),
        ] {
            let error = DistError::some(kind, phase, text);
            assert_eq!(TrainerError::from(error).kind, expected, "{kind:?} {phase:?}");
        }
    }

    #[test]
    fn exit_code_tells_restart_from_failure() {
        let hinted = || HintedError::new("x", "");
        assert_eq!(TrainerError::cannot_shrink(hinted()).exit_code(), 75);
        assert_eq!(TrainerError::usage_of(hinted()).exit_code(), 2);
        assert_eq!(TrainerError::failure("x", "").exit_code(), 1);
    }

    #[test]
    fn full_gpu_is_one_line_with_a_hint() {
        let text = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 8.00 GiB of which \
                    3.00 MiB is free. Of the allocated memory 7 GiB is allocated by PyTorch.\nException raised from x";
        let error = TrainerError::from(tch::TchError::Torch(text.into()));
        let output = error.to_string();
        assert!(output.starts_with("CUDA out of memory. Tried to allocate 20.00 MiB."), "{output}");
        assert!(output.ends_with("3.00 MiB is free."), "{output}");
        assert!(error.hint().contains("env.num_envs") && error.hint().contains("restart"), "{error:?}");
        let other = TrainerError::from(tch::TchError::Torch("no such kernel\nframe #0: x".into()));
        for full in
            ["CUDA error: out of memory\nx", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `x`"]
        {
            let error = TrainerError::from(tch::TchError::Torch(full.into()));
            assert!(error.to_string().starts_with(&format!("{GPU_FULL}: CUDA error: ")), "{error}");
            assert!(error.hint().contains("env.num_envs"), "{error:?}");
        }
        let broken =
            TrainerError::from(tch::TchError::Torch("CUDA error: unspecified launch failure\nx".into()));
        assert_eq!(broken.to_string(), "the GPU failed: CUDA error: unspecified launch failure");
        assert!(broken.hint().contains("nvidia-smi") && broken.hint().contains("restart"), "{broken:?}");
        assert!(other.to_string().ends_with("no such kernel"), "{other}");
    }
}
