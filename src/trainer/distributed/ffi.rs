//! Safe wrappers of the C interface of `csrc/shim.cpp`: handles free themselves, statuses become
//! [`BackendError`]s.
//!
//! Invariants: no C++ exception reaches Rust; a handle is used only while its owner lives; tensors passed to
//! a call may still be used by libtorch after a timeout, which is sound because libtorch holds its own
//! reference.

use super::error::{BackendError, DistErrorKind};
use std::ffi::{CStr, CString, c_char, c_void};
use tch::Tensor;

#[repr(C)]
pub(super) struct ErrorText {
    bytes: [u8; 1024],
}

#[repr(C)]
pub(super) struct RawStore {
    _private: [u8; 0],
}

#[repr(C)]
pub(super) struct RawGraph {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn rankdeck_store_open(
        host: *const c_char,
        port: u16,
        timeout_ms: i64,
        out: *mut *mut RawStore,
        error: *mut ErrorText,
    ) -> i32;
    fn rankdeck_store_free(store: *mut RawStore);
    fn rankdeck_store_set(
        store: *mut RawStore,
        key: *const c_char,
        value: *const u8,
        length: usize,
        error: *mut ErrorText,
    ) -> i32;
    fn rankdeck_store_get(
        store: *mut RawStore,
        key: *const c_char,
        timeout_ms: i64,
        value: *mut u8,
        capacity: usize,
        length: *mut usize,
        error: *mut ErrorText,
    ) -> i32;
    fn rankdeck_set_grad(parameter: *mut c_void, gradient: *mut c_void, error: *mut ErrorText) -> i32;
    fn rankdeck_backward(from: *mut c_void, gradient: *mut c_void, error: *mut ErrorText) -> i32;
    fn rankdeck_clear_grad(parameter: *mut c_void, error: *mut ErrorText) -> i32;
    fn rankdeck_upload(host: *mut c_void, index: i32, out: *mut c_void, error: *mut ErrorText) -> i32;
    fn rankdeck_fused_adam(
        parameters: *const *mut c_void,
        gradients: *const *mut c_void,
        first: *const *mut c_void,
        second: *const *mut c_void,
        steps: *const *mut c_void,
        count: usize,
        rate: *mut c_void,
        learning_rate: f64,
        beta1: f64,
        beta2: f64,
        eps: f64,
        error: *mut ErrorText,
    ) -> i32;
    fn rankdeck_graph_begin(index: i32, out: *mut *mut RawGraph, error: *mut ErrorText) -> i32;
    fn rankdeck_graph_end(graph: *mut RawGraph, error: *mut ErrorText) -> i32;
    fn rankdeck_graph_replay(graph: *mut RawGraph, error: *mut ErrorText) -> i32;
    fn rankdeck_graph_free(graph: *mut RawGraph);
    fn rankdeck_cudnn(deterministic: i32, benchmark: i32) -> i32;
    fn rankdeck_torch_version() -> *const c_char;
}

/// Runs one call of the shim and turns its status and text into a result.
fn call(body: impl FnOnce(*mut ErrorText) -> i32) -> Result<(), BackendError> {
    let mut error = ErrorText { bytes: [0; 1024] };
    let status = body(&mut error);
    let kind = match status {
        0 => return Ok(()),
        2 => DistErrorKind::Timeout,
        3 => DistErrorKind::Connection,
        4 => DistErrorKind::AddressInUse,
        _ => DistErrorKind::Failed,
    };
    let end = error.bytes.iter().position(|byte| *byte == 0).unwrap_or(error.bytes.len());
    let text = String::from_utf8_lossy(&error.bytes[..end]);
    // libtorch appends source lines and stacks; the first line is the message.
    Err(BackendError::new(kind, text.lines().next().unwrap_or("unknown error").trim().trim_end_matches('.')))
}

fn c_text(text: &str) -> Result<CString, BackendError> {
    CString::new(text)
        .map_err(|_| BackendError::new(DistErrorKind::Usage, format!("{text:?} contains a NUL byte")))
}

fn pointer(tensor: &mut Tensor) -> *mut c_void {
    tensor.as_mut_ptr().cast()
}

/// A connection to the TCPStore that torchrun's agent serves.
pub(super) struct TorchStore(*mut RawStore);

impl TorchStore {
    /// Connects within the time limit.
    pub(super) fn connect(host: &str, port: u16, timeout_ms: i64) -> Result<TorchStore, BackendError> {
        let host = c_text(host)?;
        let mut out = std::ptr::null_mut();
        // SAFETY: all pointers are valid for the call; `out` is written only on success.
        call(|error| unsafe { rankdeck_store_open(host.as_ptr(), port, timeout_ms, &mut out, error) })?;
        Ok(TorchStore(out))
    }

    pub(super) fn set(&self, key: &str, value: &[u8]) -> Result<(), BackendError> {
        let key = c_text(key)?;
        // SAFETY: the handle is alive, `value` is valid for its length, and the shim copies it.
        call(|error| unsafe { rankdeck_store_set(self.0, key.as_ptr(), value.as_ptr(), value.len(), error) })
    }

    /// Waits for the key; values longer than 64 KiB are refused.
    pub(super) fn get(&self, key: &str, timeout_ms: i64) -> Result<Vec<u8>, BackendError> {
        let name = c_text(key)?;
        let mut value = vec![0; 65536];
        let mut length = 0;
        // SAFETY: the handle is alive and `value` is writable for the capacity given.
        call(|error| unsafe {
            rankdeck_store_get(
                self.0,
                name.as_ptr(),
                timeout_ms,
                value.as_mut_ptr(),
                value.len(),
                &mut length,
                error,
            )
        })?;
        if length > value.len() {
            return Err(BackendError::new(
                DistErrorKind::Failed,
                format!("value of {key} is too long: {length} bytes"),
            ));
        }
        value.truncate(length);
        Ok(value)
    }
}

impl Drop for TorchStore {
    fn drop(&mut self) {
        // SAFETY: the handle came from `rankdeck_store_open` and is freed once.
        unsafe { rankdeck_store_free(self.0) };
    }
}

/// How numbers are combined.
#[derive(Clone, Copy)]
pub(super) enum ReduceKernel {
    Sum = 0,
    Min = 1,
    Max = 2,
}

/// Makes `gradient` the `.grad` of `parameter` (same shape, dtype and device).
pub(super) fn set_grad(parameter: &mut Tensor, gradient: &mut Tensor) -> Result<(), BackendError> {
    // SAFETY: both tensors are alive; the parameter takes its own reference to the gradient.
    call(|error| unsafe { rankdeck_set_grad(pointer(parameter), pointer(gradient), error) })
}

/// Leaves `parameter` without a gradient.
pub(super) fn clear_grad(parameter: &mut Tensor) -> Result<(), BackendError> {
    // SAFETY: the tensor is alive.
    call(|error| unsafe { rankdeck_clear_grad(pointer(parameter), error) })
}

/// Continues a backward pass from `from`, whose gradient is known.
pub(crate) fn backward(from: &mut Tensor, gradient: &mut Tensor) -> Result<(), tch::TchError> {
    // SAFETY: both tensors are alive.
    call(|error| unsafe { rankdeck_backward(pointer(from), pointer(gradient), error) })
        .map_err(|failure| tch::TchError::Torch(failure.text))
}

/// A copy of a CPU tensor on a GPU; see the shim.
pub(super) fn upload(host: &mut Tensor, index: i32) -> Result<Tensor, BackendError> {
    let mut there = Tensor::new();
    // SAFETY: both tensors are alive; the second takes its own reference to the copy, and libtorch keeps what
    // the copy is made from.
    call(|error| unsafe { rankdeck_upload(pointer(host), index, pointer(&mut there), error) })?;
    Ok(there)
}

/// Work of libtorch on one GPU that was captured, or is being captured.
pub(super) struct Graph(*mut RawGraph);

impl Graph {
    /// From here on this thread's work becomes part of the graph, and is not done, until [`Graph::end`].
    pub(super) fn start(index: i32) -> Result<Graph, BackendError> {
        let mut out = std::ptr::null_mut();
        // SAFETY: `out` is written only on success.
        call(|error| unsafe { rankdeck_graph_begin(index, &mut out, error) })?;
        Ok(Graph(out))
    }

    /// Ends the capture. Call it once.
    pub(super) fn end(&mut self) -> Result<(), BackendError> {
        // SAFETY: the handle is alive.
        call(|error| unsafe { rankdeck_graph_end(self.0, error) })
    }

    /// Does the work once more.
    pub(super) fn replay(&mut self) -> Result<(), BackendError> {
        // SAFETY: the handle is alive.
        call(|error| unsafe { rankdeck_graph_replay(self.0, error) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: ours, and not used again.
        unsafe { rankdeck_graph_free(self.0) };
    }
}

/// What one step of Adam changes, for one run of parameters.
pub(crate) struct AdamPart {
    pub parameters: Tensor,
    pub gradients: Tensor,
    pub first: Tensor,
    pub second: Tensor,
    /// Steps of these parameters, this one included; an f32 scalar.
    pub steps: Tensor,
    /// Steps in which they had no gradient.
    pub missed: u64,
}

/// Adam's learning rate.
pub(crate) enum AdamRate<'a> {
    Number(f64),
    /// A scalar where the parameters are, read when the step is made there.
    OnDevice(&'a mut Tensor),
}

/// One step of Adam on all parts; one kernel on a GPU.
pub(crate) fn fused_adam(
    parts: &mut [AdamPart],
    rate: AdamRate<'_>,
    (beta1, beta2): (f64, f64),
    eps: f64,
) -> Result<(), tch::TchError> {
    let mut pointers = |pick: fn(&mut AdamPart) -> &mut Tensor| -> Vec<*mut c_void> {
        parts.iter_mut().map(|part| pointer(pick(part))).collect()
    };
    let lists = [
        pointers(|part| &mut part.parameters),
        pointers(|part| &mut part.gradients),
        pointers(|part| &mut part.first),
        pointers(|part| &mut part.second),
        pointers(|part| &mut part.steps),
    ];
    let [parameters, gradients, first, second, steps] = lists.each_ref().map(|list| list.as_ptr());
    let count = parts.len();
    let (rate, learning_rate) = match rate {
        AdamRate::Number(rate) => (std::ptr::null_mut(), rate),
        AdamRate::OnDevice(rate) => (pointer(rate), 0.0),
    };
    // SAFETY: each list has `count` pointers to tensors that are alive for the call.
    call(|error| unsafe {
        rankdeck_fused_adam(
            parameters,
            gradients,
            first,
            second,
            steps,
            count,
            rate,
            learning_rate,
            beta1,
            beta2,
            eps,
            error,
        )
    })
    .map_err(|failure| tch::TchError::Torch(failure.text))
}

/// Whether cuDNN may only use algorithms that give the same bits each time, and whether it times those it may
/// use wherever a shape is new (libtorch's defaults: neither). Returns what held before.
pub(crate) fn cudnn(deterministic: bool, benchmark: bool) -> (bool, bool) {
    // SAFETY: sets flags of libtorch.
    let before = unsafe { rankdeck_cudnn(deterministic.into(), benchmark.into()) };
    (before & 1 != 0, before & 2 != 0)
}

/// Version of libtorch that the shim was compiled against.
pub(crate) fn torch_version() -> String {
    // SAFETY: the shim returns a static, zero-terminated text.
    unsafe { CStr::from_ptr(rankdeck_torch_version()) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cudnn_determinism_can_be_set_and_reset() {
        let (deterministic, benchmark) = cudnn(true, false);
        assert_eq!(cudnn(false, true), (true, false));
        assert_eq!(cudnn(deterministic, benchmark), (false, true));
    }
}
