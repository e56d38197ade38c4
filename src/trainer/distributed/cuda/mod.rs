//! Detects a working GPU and loads its libraries.
//!
//! libtorch's CUDA half is not linked: it would not load on a host without the driver. It is opened here,
//! before the first tensor, where there is a device; tch sees CUDA from then on.
//!
//! CUDA graphs: GPU work that is the same each time, captured once and launched with one call.
//!
//! tch has no graphs, so the shim calls libtorch's own, by name, where its CUDA half was opened.
//!
//! Invariants:
//! - What is captured reads and writes the same memory each time: tensors that outlive the graph, and those
//!   that were made inside it.
//! - Nothing inside waits for the GPU, copies from or to the host, or draws random numbers.

pub(super) mod loading;

use super::error::{BackendError, DistError, DistErrorKind, DistPhase};
use crate::distributed::ffi;
use crate::support::events::print_line;
use cudarc::driver::{result, sys};
use loading::Api;
use loading::{Library, torch_folder};
use rankdeck_types::words::{GPU_FAILED, GPU_FULL, GPU_FULL_HINT, GPU_HINT};
use std::ffi::{CStr, c_void};
use std::path::Path;
use std::sync::OnceLock;
use tch::{Device, TchError, Tensor};

/// The driver's library, under the name that every driver has.
const DRIVER: &str = "libcuda.so.1";
const TORCH_CUDA: &str = "libtorch_cuda.so";

pub(super) fn driver_failure(what: &str, error: result::DriverError) -> BackendError {
    let full = error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    let (kind, message, hint) = match full {
        true => (DistErrorKind::Memory, GPU_FULL, GPU_FULL_HINT),
        false => (DistErrorKind::Device, GPU_FAILED, GPU_HINT),
    };
    let text = format!("{message}: {what}: CUDA error {:?}", error.0);
    BackendError { hint: Some(hint.to_owned()), ..BackendError::new(kind, text) }
}

/// What this trainer calls in the driver's library. cudarc panics where one is missing.
const CALLED: [&CStr; 14] = [
    c"cuInit",
    c"cuDriverGetVersion",
    c"cuDeviceGetCount",
    c"cuDeviceGet",
    c"cuDeviceGetUuid_v2",
    c"cuDevicePrimaryCtxRetain",
    c"cuCtxSetCurrent",
    c"cuStreamCreate",
    c"cuStreamDestroy_v2",
    c"cuStreamWaitEvent",
    c"cuEventCreate",
    c"cuEventRecord",
    c"cuEventQuery",
    c"cuEventElapsedTime_v2",
];

/// What helps against the states in which a driver does not start.
fn start_hint(error: &result::DriverError) -> Option<&'static str> {
    match error.0 {
        sys::CUresult::CUDA_ERROR_STUB_LIBRARY => {
            Some("libcuda.so is the stub of the CUDA toolkit: remove its directory from LD_LIBRARY_PATH")
        }
        sys::CUresult::CUDA_ERROR_SYSTEM_NOT_READY => Some(
            "check `systemctl status nvidia-fabricmanager` on the host: GPUs behind NVLink switches need it",
        ),
        sys::CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
            Some("reboot the host: the driver library and the kernel module have different versions")
        }
        _ => None,
    }
}

/// Refuses a driver's library without what is called in it: an old one, or none of NVIDIA's.
fn refuse_lacking(driver: Library) -> Result<(), BackendError> {
    let Some(missing) = CALLED.into_iter().find(|symbol| driver.symbol(symbol).is_err()) else {
        return Ok(());
    };
    // The version, if available, is the better explanation.
    if missing != c"cuDriverGetVersion" {
        refuse_old_driver()?;
    }
    let place = Library::path_of(Path::new(DRIVER)).map_or(DRIVER.into(), |path| path.display().to_string());
    let text = format!(
        "the NVIDIA driver library {place} lacks {}: it is older than driver {OLDEST_DRIVER}",
        missing.to_string_lossy()
    );
    let hint = format!("update the driver, remove this library's directory from LD_LIBRARY_PATH, {ON_CPU}");
    Err(BackendError { hint: Some(hint), ..BackendError::new(DistErrorKind::Unsupported, text) })
}

/// How many devices this process may use; 0 without a driver. A driver that does not start is an error.
pub(crate) fn device_count() -> Result<u32, BackendError> {
    // cudarc panics when the library is missing.
    let Ok(driver) = Library::open(Path::new(DRIVER)) else { return Ok(0) };
    refuse_lacking(driver)?;
    let no_device = |error: &result::DriverError| error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE;
    match result::init() {
        Ok(()) => {}
        Err(error) if no_device(&error) => return Ok(0),
        Err(error) => {
            let hint = start_hint(&error).map(str::to_owned);
            let failure = driver_failure("the NVIDIA driver failed to initialize", error);
            return Err(BackendError { hint: hint.or(failure.hint), ..failure });
        }
    }
    let count = result::device::get_count().map_err(|error| driver_failure("cannot count devices", error))?;
    Ok(u32::try_from(count).unwrap_or(0))
}

/// An NVIDIA driver's library is there.
pub fn has_driver() -> bool {
    Library::open(Path::new(DRIVER)).is_ok()
}

/// The devices, or why NCCL cannot work here.
pub(crate) fn require_devices() -> Result<u32, BackendError> {
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
const ON_CPU: &str = "or remove `gpus` from hosts.toml and set `nproc` to train on the CPU";

/// Version of the cuDNN that libtorch 2.11 is built with. A lower minor version is what
/// PyTorch refuses, too.
const CUDNN: usize = 91_900;

/// Refuses a driver that cannot run libtorch: CUDA itself would report that it found no device.
fn refuse_old_driver() -> Result<(), BackendError> {
    let mut version = 0;
    // SAFETY: writes one integer; the library was found.
    let status = unsafe { sys::cuDriverGetVersion(&mut version) };
    if status != sys::CUresult::CUDA_SUCCESS || version / 1000 >= CUDA / 1000 {
        return Ok(());
    }
    let words = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
    let text = format!(
        "the NVIDIA driver supports CUDA {}, but this libtorch needs {} (driver {OLDEST_DRIVER} or later)",
        words(version),
        words(CUDA)
    );
    let hint = Some(format!("update the driver, {ON_CPU}"));
    Err(BackendError { hint, ..BackendError::new(DistErrorKind::Unsupported, text) })
}

/// Refuses a cuDNN that is older than what libtorch calls in it.
fn refuse_old_cudnn(torch: Library) -> Result<(), BackendError> {
    let Ok(address) = torch.symbol(c"cudnnGetVersion") else { return Ok(()) };
    // SAFETY: cuDNN's function, with its signature since the first release.
    let version =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> usize>(address.as_ptr())() };
    if version / 100 >= CUDNN / 100 {
        return Ok(());
    }
    let words = |version: usize| format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100);
    Err(loading::too_old("libcudnn.so.9", "cuDNN", &words(version), &words(CUDNN)).error(""))
}

fn load() -> Result<bool, BackendError> {
    if device_count()? == 0 {
        return Ok(false);
    }
    refuse_old_driver()?;
    let unsupported = |text: String| BackendError::new(DistErrorKind::Unsupported, text);
    let folder = torch_folder()
        .ok_or_else(|| unsupported("cannot determine where libtorch was loaded from".into()))?;
    let path = folder.join(TORCH_CUDA);
    if !path.exists() {
        return Err(unsupported(format!(
            "this libtorch was built without CUDA: {} not found",
            path.display()
        )));
    }
    let refused = |error: String| loading::explain(&error).error(&format!("cannot load {TORCH_CUDA}"));
    refuse_old_cudnn(Library::open(&path).map_err(refused)?)?;
    Ok(true)
}

/// Loads libtorch's CUDA half where a driver and a device are present. Call it before anything asks tch about
/// CUDA. `Ok(false)`: there is no GPU, use the CPU. An error: there is a GPU, but it cannot be used.
pub fn load_cuda() -> Result<bool, DistError> {
    static LOADED: OnceLock<Result<bool, BackendError>> = OnceLock::new();
    LOADED.get_or_init(load).clone().map_err(found)
}

/// Version of NCCL, which ranks on GPUs exchange by.
pub(crate) fn nccl_version() -> Result<String, DistError> {
    Api::get().map(Api::version).map_err(found)
}

/// A failure before there are ranks.
fn found(BackendError { kind, text, hint }: BackendError) -> DistError {
    let hint = hint.unwrap_or_else(|| loading::hint(None));
    DistError::new(kind, DistPhase::Rendezvous, (0, 0), text).with_hint(hint)
}

fn torch(failure: crate::distributed::error::BackendError) -> TchError {
    TchError::Torch(failure.text)
}

/// An open capture: until it ends, libtorch's work on this thread is recorded and not executed.
pub(crate) struct Capture(ffi::Graph);

/// Captured work.
pub(crate) struct CudaGraph(ffi::Graph);

impl Capture {
    /// Begins on a GPU.
    pub(crate) fn start(device: Device) -> Result<Capture, TchError> {
        match device {
            Device::Cuda(index) => ffi::Graph::start(index as i32).map(Capture).map_err(torch),
            other => Err(TchError::Torch(format!("CUDA graphs are not supported on {other:?}"))),
        }
    }

    /// Ends it.
    pub(crate) fn end(mut self) -> Result<CudaGraph, TchError> {
        self.0.end().map_err(torch)?;
        Ok(CudaGraph(self.0))
    }
}

impl CudaGraph {
    /// Starts the work, as if it were put on libtorch's stream again.
    pub(crate) fn replay(&mut self) -> Result<(), TchError> {
        self.0.replay().map_err(torch)
    }
}

/// Passes before the capture: libraries choose algorithms and allocate memory in the first ones.
const WARM: u32 = 3;

/// A forward pass without gradients, captured on a GPU after the first few with as many rows.
///
/// Parameters are read where they are, so a captured pass uses what was learned since. Other numbers of
/// rows, as evaluations have them, run step by step.
pub(crate) struct CapturedPass {
    device: Device,
    /// Passes until the capture; `None` without one.
    left: Option<u32>,
    input: Option<Tensor>,
    graph: Option<(CudaGraph, Tensor)>,
}

impl CapturedPass {
    /// On this device; captured when it is a GPU and that is `enabled`.
    pub(crate) fn new(device: Device, enabled: bool) -> CapturedPass {
        let enabled = enabled && matches!(device, Device::Cuda(_));
        CapturedPass { device, left: enabled.then_some(WARM), input: None, graph: None }
    }

    /// What `forward` makes of an input. It must do the same each time, and keep nothing.
    pub(crate) fn run(
        &mut self,
        input: &Tensor,
        forward: impl Fn(&Tensor) -> Result<Tensor, TchError>,
    ) -> Result<Tensor, TchError> {
        let Some(left) = self.left else { return forward(input) };
        let kept = self.input.get_or_insert_with(|| input.empty_like());
        if kept.size() != input.size() {
            return forward(input);
        }
        kept.f_copy_(input)?;
        if left > 0 {
            self.left = Some(left - 1);
            return forward(kept);
        }
        if self.graph.is_none() {
            match capture(self.device, || forward(kept)) {
                Ok(made) => self.graph = Some(made),
                Err(error) => {
                    print_line(&format!("not using CUDA graphs: cannot capture the forward pass: {error}"));
                    self.left = None;
                }
            }
        }
        match &mut self.graph {
            Some((graph, output)) => {
                graph.replay()?;
                Ok(output.shallow_clone())
            }
            None => forward(kept),
        }
    }
}

/// Captures the pass without running it.
fn capture(
    device: Device,
    forward: impl FnOnce() -> Result<Tensor, TchError>,
) -> Result<(CudaGraph, Tensor), TchError> {
    let capture = Capture::start(device)?;
    let output = forward();
    // An open capture must end, whatever the result.
    let graph = capture.end();
    Ok((graph?, output?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_is_not_loaded_without_a_device() {
        if device_count().is_ok_and(|count| count > 0) {
            rankdeck_testkit::skip!("GPU: this host has one");
        }
        assert!(!load_cuda().unwrap());
        assert!(!tch::Cuda::is_available());
        assert_eq!(require_devices().unwrap_err().kind, DistErrorKind::Unsupported);
    }

    #[test]
    fn capture_without_a_gpu_is_an_error() {
        let error = Capture::start(Device::Cpu).err().unwrap();
        assert!(error.to_string().contains("Cpu"), "{error}");
    }
}
