//! Whether this host has a working GPU, and loading the libraries for it.
//!
//! Owner: the trainer's start-up. libtorch's CUDA half is not linked: it would not load on a host without the
//! driver. It is opened here, before the first tensor, where there is a device; tch sees CUDA from then on.

use super::error::{BackendError, DistError, DistErrorKind, DistPhase};
use super::library::{Library, torch_folder};
use super::nccl_api::Api;
use cudarc::driver::{result, sys};
use rankdeck_types::words::{GPU_FAILED, GPU_FULL, GPU_FULL_HINT, GPU_HINT};
use std::path::Path;
use std::sync::OnceLock;

/// The driver's library, under the name that every driver has.
const DRIVER: &str = "libcuda.so.1";
const TORCH_CUDA: &str = "libtorch_cuda.so";

pub(super) fn driver_failure(what: &str, error: result::DriverError) -> BackendError {
    let full = error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    let (said, hint) = if full { (GPU_FULL, GPU_FULL_HINT) } else { (GPU_FAILED, GPU_HINT) };
    let text = format!("{said}: {what}: CUDA error {:?}", error.0);
    BackendError { hint: Some(hint), ..BackendError::new(DistErrorKind::Device, text) }
}

/// How many devices this process may use; 0 without a driver. A driver that does not start is an error.
pub(super) fn device_count() -> Result<u32, BackendError> {
    // cudarc panics when the library is missing.
    if !has_driver() {
        return Ok(0);
    }
    let no_device = |error: &result::DriverError| error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE;
    match result::init() {
        Ok(()) => {}
        Err(error) if no_device(&error) => return Ok(0),
        Err(error) => return Err(driver_failure("the NVIDIA driver does not start", error)),
    }
    let count = result::device::get_count().map_err(|error| driver_failure("no count of devices", error))?;
    Ok(u32::try_from(count).unwrap_or(0))
}

/// An NVIDIA driver's library is there.
pub fn has_driver() -> bool {
    Library::open(Path::new(DRIVER)).is_ok()
}

/// The devices, or why NCCL cannot work here.
pub(super) fn require_devices() -> Result<u32, BackendError> {
    let unsupported = |text: &str| BackendError::new(DistErrorKind::Unsupported, text);
    if !has_driver() {
        return Err(unsupported("no NVIDIA driver on this host"));
    }
    match device_count()? {
        0 => Err(unsupported("no GPU visible to this process (see CUDA_VISIBLE_DEVICES)")),
        count => Ok(count),
    }
}

/// The CUDA that libtorch 2.11 is built for, in the driver's numbers, and the oldest driver with it. A driver
/// runs what is built for its own or an earlier major version.
const CUDA: i32 = 13_000;
const OLDEST_DRIVER: &str = "580";

/// Refuses a driver that cannot run libtorch: CUDA's own answer would be that there is no device.
fn refuse_old_driver() -> Result<(), BackendError> {
    let mut version = 0;
    // SAFETY: writes one integer; the library was found.
    let status = unsafe { sys::cuDriverGetVersion(&mut version) };
    if status != sys::CUresult::CUDA_SUCCESS || version / 1000 >= CUDA / 1000 {
        return Ok(());
    }
    let words = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
    Err(BackendError::new(
        DistErrorKind::Unsupported,
        format!(
            "the NVIDIA driver supports CUDA {}, and this libtorch needs {} (driver {OLDEST_DRIVER} or later)",
            words(version),
            words(CUDA)
        ),
    ))
}

fn load() -> Result<bool, BackendError> {
    if device_count()? == 0 {
        return Ok(false);
    }
    refuse_old_driver()?;
    let unsupported = |text: String| BackendError::new(DistErrorKind::Unsupported, text);
    let folder =
        torch_folder().ok_or_else(|| unsupported("cannot tell where libtorch was loaded from".into()))?;
    let path = folder.join(TORCH_CUDA);
    if !path.exists() {
        return Err(unsupported(format!("this libtorch has no CUDA half: no {}", path.display())));
    }
    Library::open(&path).map_err(|error| unsupported(format!("{TORCH_CUDA} does not load: {error}")))?;
    Ok(true)
}

/// Loads libtorch's CUDA half where a driver and a device are present. Call it before anything asks tch about
/// CUDA. `Ok(false)`: there is no GPU, use the CPU. An error: there is a GPU, but it cannot be used.
pub fn load_cuda() -> Result<bool, DistError> {
    static LOADED: OnceLock<Result<bool, BackendError>> = OnceLock::new();
    LOADED.get_or_init(load).clone().map_err(|failure| {
        let hint = match failure.text.contains("driver") {
            true => "update the driver, or leave `gpus` out of hosts.toml and set `nproc` to train on the CPU",
            false => {
                "install the CUDA wheels of torch 2.11.0 in the folder that `libtorch` in hosts.toml names, or set CUDA_VISIBLE_DEVICES= to use the CPU"
            }
        };
        DistError::new(failure.kind, DistPhase::Rendezvous, (0, 0), failure.text).with_hint(hint)
    })
}

/// Version of NCCL, which ranks on GPUs exchange by.
pub fn nccl_version() -> Result<String, DistError> {
    Api::get().map(Api::version).map_err(|failure| {
        DistError::new(failure.kind, DistPhase::Rendezvous, (0, 0), failure.text).with_hint(
            "install the wheel nvidia-nccl-cu13 beside torch, in the folder that `libtorch` in hosts.toml names",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_device_the_answer_is_no() {
        if device_count().is_ok_and(|count| count > 0) {
            rankdeck_testkit::skip!("GPU: this host has one");
        }
        assert!(!load_cuda().unwrap());
        assert!(!tch::Cuda::is_available());
        assert_eq!(require_devices().unwrap_err().kind, DistErrorKind::Unsupported);
    }
}
