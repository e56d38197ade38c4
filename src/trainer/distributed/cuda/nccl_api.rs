//! NCCL's functions, resolved in a library opened at run time.
//!
//! Types are cudarc's; its own loader is not used, since it does not search for `libnccl.so.2` and panics when
//! it finds nothing. Results are plain integers here, because a newer NCCL may return numbers that cudarc's
//! enums do not have.

use super::loading::{self, Library, torch_folder};
use crate::distributed::error::{BackendError, DistErrorKind};
use cudarc::nccl::sys::{cudaStream_t, ncclComm_t, ncclConfig_t, ncclUniqueId};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

/// `ncclResult_t`, as an integer.
pub(crate) type NcclStatus = c_int;
pub(crate) const SUCCESS: NcclStatus = 0;
pub(crate) const REMOTE_ERROR: NcclStatus = 6;
pub(crate) const IN_PROGRESS: NcclStatus = 7;

const LIBRARY: &str = "libnccl.so.2";
/// The first version that has `ncclConfig_t`.
const OLDEST: c_int = 21_400;
/// Where the wheel `nvidia-nccl-cu13` puts it, seen from `torch/lib`.
const BESIDE_TORCH: &str = "../../nvidia/nccl/lib/libnccl.so.2";

macro_rules! api {
    ($($field:ident: $symbol:literal = fn($($argument:ty),*) -> $result:ty;)*) => {
        /// One entry per function used.
        pub(crate) struct Api {
            $(pub $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Api {
            fn from(library: Library) -> Result<Api, String> {
                Ok(Api {
                    $($field: {
                        let address = library.symbol($symbol)?;
                        // SAFETY: the symbol is NCCL's, with the signature of nccl.h since 2.14, and an older
                        // one is refused.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> $result>(
                                address.as_ptr(),
                            )
                        }
                    },)*
                })
            }
        }
    };
}

api! {
    get_version: c"ncclGetVersion" = fn(*mut c_int) -> NcclStatus;
    get_unique_id: c"ncclGetUniqueId" = fn(*mut ncclUniqueId) -> NcclStatus;
    comm_init_rank_config: c"ncclCommInitRankConfig" =
        fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> NcclStatus;
    comm_get_async_error: c"ncclCommGetAsyncError" = fn(ncclComm_t, *mut NcclStatus) -> NcclStatus;
    comm_abort: c"ncclCommAbort" = fn(ncclComm_t) -> NcclStatus;
    comm_finalize: c"ncclCommFinalize" = fn(ncclComm_t) -> NcclStatus;
    comm_destroy: c"ncclCommDestroy" = fn(ncclComm_t) -> NcclStatus;
    all_reduce: c"ncclAllReduce" =
        fn(*const c_void, *mut c_void, usize, c_int, c_int, ncclComm_t, cudaStream_t) -> NcclStatus;
    broadcast: c"ncclBroadcast" =
        fn(*const c_void, *mut c_void, usize, c_int, c_int, ncclComm_t, cudaStream_t) -> NcclStatus;
    all_gather: c"ncclAllGather" = fn(*const c_void, *mut c_void, usize, c_int, ncclComm_t, cudaStream_t) -> NcclStatus;
    get_error_string: c"ncclGetErrorString" = fn(NcclStatus) -> *const c_char;
    get_last_error: c"ncclGetLastError" = fn(ncclComm_t) -> *const c_char;
}

impl Api {
    /// The library, opened once.
    pub(crate) fn get() -> Result<&'static Api, BackendError> {
        static API: OnceLock<Result<Api, BackendError>> = OnceLock::new();
        API.get_or_init(open).as_ref().map_err(Clone::clone)
    }

    /// `2.28.9`.
    pub(crate) fn version(&self) -> String {
        words(self.number())
    }

    fn number(&self) -> c_int {
        let mut version = 0;
        // SAFETY: writes one integer.
        unsafe { (self.get_version)(&mut version) };
        version
    }

    /// Describes a status, with NCCL's last error on this communicator.
    pub(crate) fn explain(&self, what: &str, status: NcclStatus, comm: ncclComm_t) -> BackendError {
        let text = |pointer: *const c_char| {
            if pointer.is_null() {
                return String::new();
            }
            // SAFETY: NCCL returns static or communicator-owned zero-terminated text.
            unsafe { CStr::from_ptr(pointer) }.to_string_lossy().trim().to_lowercase()
        };
        // SAFETY: both functions only read; the communicator may be null.
        let (name, last) =
            unsafe { (text((self.get_error_string)(status)), text((self.get_last_error)(comm))) };
        let kind = if status == REMOTE_ERROR { DistErrorKind::Connection } else { DistErrorKind::Failed };
        let more = if last.is_empty() { String::new() } else { format!(" ({last})") };
        BackendError::new(kind, format!("{what}: nccl: {name}{more}"))
    }
}

fn words(version: c_int) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

fn open() -> Result<Api, BackendError> {
    let beside = torch_folder().map(|folder| folder.join(BESIDE_TORCH));
    let mut tried = Vec::new();
    for path in std::iter::once(PathBuf::from(LIBRARY)).chain(beside) {
        match Library::open(&path).and_then(Api::from) {
            Ok(api) if api.number() < OLDEST => {
                return Err(loading::too_old(LIBRARY, "NCCL", &api.version(), &words(OLDEST)).error(""));
            }
            Ok(api) => return Ok(api),
            Err(error) => tried.push(loading::explain(&error)),
        }
    }
    // The failure of an installed library is more specific than a path without one.
    let found = tried.iter().position(|tried| !tried.missing).unwrap_or(0);
    match tried.into_iter().nth(found) {
        Some(tried) => Err(tried.error("NCCL cannot be loaded")),
        None => Err(BackendError::new(DistErrorKind::Unsupported, "NCCL cannot be loaded")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_nccl_library_is_one_error() {
        match open() {
            Ok(api) => assert!(api.version().starts_with("2.")),
            Err(failure) => {
                assert_eq!(failure.kind, DistErrorKind::Unsupported);
                assert!(failure.text.contains("libnccl.so.2"), "{}", failure.text);
            }
        }
    }
}
