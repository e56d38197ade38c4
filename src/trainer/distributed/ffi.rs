//! The C interface of `csrc/shim.cpp`, made safe to hold: handles that free themselves, statuses that become
//! [`BackendError`]s.
//!
//! Owner: the process group. Invariants: no C++ exception reaches Rust; a handle is used only while its owner
//! lives; tensors passed to a call may still be used by libtorch after a timeout, which is sound because
//! libtorch holds its own reference.

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
pub(super) struct RawGloo {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn rankdeck_store_open(
        host: *const c_char,
        port: u16,
        server: bool,
        listen_fd: i32,
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
    fn rankdeck_store_add(
        store: *mut RawStore,
        key: *const c_char,
        delta: i64,
        sum: *mut i64,
        error: *mut ErrorText,
    ) -> i32;
    fn rankdeck_store_check(
        store: *mut RawStore,
        key: *const c_char,
        present: *mut bool,
        error: *mut ErrorText,
    ) -> i32;
    fn rankdeck_gloo_open(
        store: *mut RawStore,
        prefix: *const c_char,
        rank: i32,
        world_size: i32,
        interface: *const c_char,
        address: *const c_char,
        timeout_ms: i64,
        out: *mut *mut RawGloo,
        error: *mut ErrorText,
    ) -> i32;
    fn rankdeck_gloo_free(gloo: *mut RawGloo);
    fn rankdeck_gloo_all_reduce(
        gloo: *mut RawGloo,
        data: *mut c_void,
        op: i32,
        limit_ms: i64,
        error: *mut ErrorText,
    ) -> i32;
    fn rankdeck_gloo_broadcast(
        gloo: *mut RawGloo,
        data: *mut c_void,
        root: i32,
        limit_ms: i64,
        error: *mut ErrorText,
    ) -> i32;
    fn rankdeck_gloo_all_gather(
        gloo: *mut RawGloo,
        outputs: *const *mut c_void,
        count: usize,
        input: *mut c_void,
        limit_ms: i64,
        error: *mut ErrorText,
    ) -> i32;
    fn rankdeck_gloo_barrier(gloo: *mut RawGloo, limit_ms: i64, error: *mut ErrorText) -> i32;
    fn rankdeck_set_grad(parameter: *mut c_void, gradient: *mut c_void, error: *mut ErrorText) -> i32;
    fn rankdeck_clear_grad(parameter: *mut c_void, error: *mut ErrorText) -> i32;
    fn rankdeck_upload(host: *mut c_void, index: i32, out: *mut c_void, error: *mut ErrorText) -> i32;
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
        5 => DistErrorKind::Mismatch,
        _ => DistErrorKind::Failed,
    };
    let end = error.bytes.iter().position(|byte| *byte == 0).unwrap_or(error.bytes.len());
    let text = String::from_utf8_lossy(&error.bytes[..end]);
    // libtorch appends source lines and stacks; the first line says what happened.
    Err(BackendError::new(kind, text.lines().next().unwrap_or("unknown error").trim().trim_end_matches('.')))
}

fn c_text(text: &str) -> Result<CString, BackendError> {
    CString::new(text)
        .map_err(|_| BackendError::new(DistErrorKind::Usage, format!("{text:?} holds a zero byte")))
}

fn pointer(tensor: &mut Tensor) -> *mut c_void {
    tensor.as_mut_ptr().cast()
}

/// Owns a TCPStore: on rank 0 also the server, which ends when the last owner goes.
pub(super) struct StoreHandle(*mut RawStore);

// SAFETY: c10d::TCPStore serialises its operations with a mutex of its own and has no thread affinity.
unsafe impl Send for StoreHandle {}
// SAFETY: as above.
unsafe impl Sync for StoreHandle {}

impl StoreHandle {
    /// Opens the server (rank 0) or connects to it, within the time limit.
    pub(super) fn open(
        host: &str,
        port: u16,
        server: bool,
        listen_fd: Option<i32>,
        timeout_ms: i64,
    ) -> Result<StoreHandle, BackendError> {
        let host = c_text(host)?;
        let mut out = std::ptr::null_mut();
        // SAFETY: all pointers are valid for the call; `out` is written only on success.
        call(|error| unsafe {
            rankdeck_store_open(
                host.as_ptr(),
                port,
                server,
                listen_fd.unwrap_or(-1),
                timeout_ms,
                &mut out,
                error,
            )
        })?;
        Ok(StoreHandle(out))
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

    pub(super) fn add(&self, key: &str, delta: i64) -> Result<i64, BackendError> {
        let key = c_text(key)?;
        let mut sum = 0;
        // SAFETY: the handle is alive and the pointers are valid for the call.
        call(|error| unsafe { rankdeck_store_add(self.0, key.as_ptr(), delta, &mut sum, error) })?;
        Ok(sum)
    }

    pub(super) fn check(&self, key: &str) -> Result<bool, BackendError> {
        let key = c_text(key)?;
        let mut present = false;
        // SAFETY: the handle is alive and the pointers are valid for the call.
        call(|error| unsafe { rankdeck_store_check(self.0, key.as_ptr(), &mut present, error) })?;
        Ok(present)
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        // SAFETY: the handle came from `rankdeck_store_open` and is freed once.
        unsafe { rankdeck_store_free(self.0) };
    }
}

/// Owns a ProcessGroupGloo.
pub(super) struct GlooHandle(*mut RawGloo);

// SAFETY: c10d::ProcessGroupGloo may be used and destroyed from any thread, one at a time; `&mut`-like use is
// kept by its one owner.
unsafe impl Send for GlooHandle {}

/// Which address other ranks reach this one at.
pub(super) enum GlooDevice<'a> {
    Interface(&'a str),
    Address(&'a str),
    HostName,
}

/// Reductions that the shim knows.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(super) enum RawReduce {
    Sum = 0,
    Min = 1,
    Max = 2,
}

impl GlooHandle {
    pub(super) fn open(
        store: &StoreHandle,
        prefix: &str,
        rank: u32,
        world_size: u32,
        device: &GlooDevice<'_>,
        timeout_ms: i64,
    ) -> Result<GlooHandle, BackendError> {
        let prefix = c_text(prefix)?;
        let (interface, address) = match device {
            GlooDevice::Interface(name) => (Some(c_text(name)?), None),
            GlooDevice::Address(address) => (None, Some(c_text(address)?)),
            GlooDevice::HostName => (None, None),
        };
        let text = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
        let mut out = std::ptr::null_mut();
        // SAFETY: all pointers are valid for the call; `out` is written only on success; the group keeps its
        // own reference to the store.
        call(|error| unsafe {
            rankdeck_gloo_open(
                store.0,
                prefix.as_ptr(),
                rank as i32,
                world_size as i32,
                text(&interface),
                text(&address),
                timeout_ms,
                &mut out,
                error,
            )
        })?;
        Ok(GlooHandle(out))
    }

    pub(super) fn all_reduce(
        &self,
        data: &mut Tensor,
        op: RawReduce,
        limit_ms: i64,
    ) -> Result<(), BackendError> {
        // SAFETY: handle and tensor are alive for the call.
        call(|error| unsafe { rankdeck_gloo_all_reduce(self.0, pointer(data), op as i32, limit_ms, error) })
    }

    pub(super) fn broadcast(&self, data: &mut Tensor, root: u32, limit_ms: i64) -> Result<(), BackendError> {
        // SAFETY: handle and tensor are alive for the call.
        call(|error| unsafe { rankdeck_gloo_broadcast(self.0, pointer(data), root as i32, limit_ms, error) })
    }

    pub(super) fn all_gather(
        &self,
        outputs: &mut [Tensor],
        input: &mut Tensor,
        limit_ms: i64,
    ) -> Result<(), BackendError> {
        let pointers: Vec<*mut c_void> = outputs.iter_mut().map(pointer).collect();
        // SAFETY: handle, tensors and the array of pointers are alive for the call.
        call(|error| unsafe {
            rankdeck_gloo_all_gather(
                self.0,
                pointers.as_ptr(),
                pointers.len(),
                pointer(input),
                limit_ms,
                error,
            )
        })
    }

    pub(super) fn barrier(&self, limit_ms: i64) -> Result<(), BackendError> {
        // SAFETY: the handle is alive for the call.
        call(|error| unsafe { rankdeck_gloo_barrier(self.0, limit_ms, error) })
    }
}

impl Drop for GlooHandle {
    fn drop(&mut self) {
        // SAFETY: the handle came from `rankdeck_gloo_open` and is freed once.
        unsafe { rankdeck_gloo_free(self.0) };
    }
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

/// A copy of a CPU tensor on a GPU; see the shim.
pub(super) fn upload(host: &mut Tensor, index: i32) -> Result<Tensor, BackendError> {
    let mut there = Tensor::new();
    // SAFETY: both tensors are alive; the second takes its own reference to the copy, and libtorch keeps what
    // the copy is made from.
    call(|error| unsafe { rankdeck_upload(pointer(host), index, pointer(&mut there), error) })?;
    Ok(there)
}

/// Version of libtorch that the shim was compiled against.
pub(super) fn torch_version() -> String {
    // SAFETY: the shim returns a static, zero-terminated text.
    unsafe { CStr::from_ptr(rankdeck_torch_version()) }.to_string_lossy().into_owned()
}
