//! Opens CUDA libraries at run time; a load failure names the library and the wheel to install.
//!
//! The dynamic linker names the library that needs a symbol; the one to replace is the library that lacks
//! it.
//!
//! NCCL's functions, resolved in a library opened at run time.
//!
//! Types are cudarc's; its own loader is not used, since it does not search for `libnccl.so.2` and panics when
//! it finds nothing. Results are plain integers here, because a newer NCCL may return numbers that cudarc's
//! enums do not have.

use crate::distributed::error::{BackendError, DistErrorKind};
use cudarc::nccl::sys::{cudaStream_t, ncclComm_t, ncclConfig_t, ncclUniqueId};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::OnceLock;

/// Libraries, by the beginning of their names: how their symbols begin, and the wheel that has them. Versions
/// are those that the wheel torch 2.11.0 requires.
const LIBRARIES: [(&str, &str, &str); 15] = [
    ("libnccl.so.2", "nccl", "nvidia-nccl-cu13==2.28.9"),
    ("libcudnn", "cudnn", "nvidia-cudnn-cu13==9.19.0.56"),
    ("libcusparseLt.so.0", "cusparseLt", "nvidia-cusparselt-cu13==0.8.0"),
    ("libnvshmem_host.so.3", "nvshmem", "nvidia-nvshmem-cu13==3.4.5"),
    ("libcudart.so.13", "cuda", "cuda-toolkit[cudart]==13.0.2"),
    ("libcublas", "cublas", "cuda-toolkit[cublas]==13.0.2"),
    ("libcusparse.so.12", "cusparse", "cuda-toolkit[cusparse]==13.0.2"),
    ("libcusolver.so.12", "cusolver", "cuda-toolkit[cusolver]==13.0.2"),
    ("libcufft.so.12", "cufft", "cuda-toolkit[cufft]==13.0.2"),
    ("libcurand.so.10", "curand", "cuda-toolkit[curand]==13.0.2"),
    ("libcufile.so.0", "cuFile", "cuda-toolkit[cufile]==13.0.2"),
    ("libnvrtc.so.13", "nvrtc", "cuda-toolkit[nvrtc]==13.0.2"),
    ("libcupti.so.13", "cupti", "cuda-toolkit[cupti]==13.0.2"),
    ("libnvJitLink.so.13", "nvJitLink", "cuda-toolkit[nvjitlink]==13.0.2"),
    // Its own halves, of two releases.
    ("libc10", "_Z", "torch==2.11.0"),
];

/// Where libtorch searches first, seen from its `lib`; then in itself, then everywhere.
const BESIDE: [&str; 6] = [
    "../../nvidia/cudnn/lib",
    "../../nvidia/nvshmem/lib",
    "../../nvidia/nccl/lib",
    "../../nvidia/cusparselt/lib",
    "../../nvidia/cu13/lib",
    ".",
];

/// What is wrong, and what helps.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LoadFailure {
    pub text: String,
    pub hint: String,
    /// The library is not installed.
    pub missing: bool,
}

impl LoadFailure {
    /// As an error: `what` cannot be used.
    pub(crate) fn error(self, what: &str) -> BackendError {
        let text = if what.is_empty() { self.text } else { format!("{what}: {}", self.text) };
        BackendError { hint: Some(self.hint), ..BackendError::new(DistErrorKind::Unsupported, text) }
    }
}

/// Explains a message of `dlopen` or `dlsym`.
pub(crate) fn explain(message: &str) -> LoadFailure {
    if let Some((_, symbol)) = message.split_once("undefined symbol: ") {
        let (symbol, version) = symbol.split_once(", version ").unwrap_or((symbol, ""));
        return lacking(symbol.trim(), version.trim());
    }
    // The first word is the library, or its path.
    let named = message.split(": ").next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
    let wheel = entry(|(library, _, _)| named.starts_with(library)).map(|(_, _, wheel)| wheel);
    if message.ends_with("No such file or directory") {
        return LoadFailure { text: format!("{named} not found"), hint: hint(wheel), missing: true };
    }
    LoadFailure { text: message.to_owned(), hint: hint(wheel), missing: false }
}

/// Explains a library whose version differs from the one that its user needs.
fn lacking(symbol: &str, version: &str) -> LoadFailure {
    // NVIDIA gives its symbols the name of their library as a version. Of two beginnings the longer one is
    // meant.
    let named = entry(|(library, _, _)| !version.is_empty() && version.starts_with(library));
    let begins = LIBRARIES.iter().filter(|(_, beginning, _)| symbol.starts_with(beginning));
    let found = named.or_else(|| begins.max_by_key(|(_, beginning, _)| beginning.len()).copied());
    let Some((library, beginning, wheel)) = found else {
        return LoadFailure {
            text: format!("symbol {symbol} not found in any library"),
            hint: hint(None),
            missing: false,
        };
    };
    if beginning == "_Z" {
        let text = format!("files of two torch releases are mixed: symbol {symbol} not found");
        return LoadFailure { text, hint: hint(Some(wheel)), missing: false };
    }
    let name = if version.starts_with("lib") { version } else { library };
    let there = place(name).map_or(name.to_owned(), |path| path.display().to_string());
    let text = format!("{there} lacks {symbol}: its version does not match this libtorch");
    LoadFailure { text, hint: hint(Some(wheel)), missing: false }
}

/// A library whose version is below the required one.
pub(crate) fn too_old(name: &str, what: &str, has: &str, needs: &str) -> LoadFailure {
    let there = place(name).map_or(name.to_owned(), |path| path.display().to_string());
    let wheel = entry(|(library, _, _)| name.starts_with(library)).map(|(_, _, wheel)| wheel);
    let text = format!("{what} {has} is too old (needs {needs} or later): {there}");
    LoadFailure { text, hint: hint(wheel), missing: false }
}

fn entry(is: impl Fn(&(&str, &str, &str)) -> bool) -> Option<(&'static str, &'static str, &'static str)> {
    LIBRARIES.iter().find(|entry| is(entry)).copied()
}

/// Installing a wheel, or all of them.
pub(crate) fn hint(wheel: Option<&str>) -> String {
    let wheel =
        wheel.map_or("the CUDA wheels of torch 2.11.0".to_owned(), |wheel| format!("the wheel `{wheel}`"));
    format!(
        "install {wheel} next to torch (`libtorch` in hosts.toml), or set CUDA_VISIBLE_DEVICES= to use the CPU"
    )
}

/// The file that libtorch gets for a library's name.
fn place(name: &str) -> Option<PathBuf> {
    let torch = torch_folder()?;
    let beside = BESIDE.iter().filter_map(|folder| torch.join(folder).join(name).canonicalize().ok());
    beside.into_iter().next().or_else(|| Library::path_of(Path::new(name)))
}

/// An open library.
#[derive(Clone, Copy)]
pub(crate) struct Library(NonNull<c_void>);

fn last_error() -> String {
    // SAFETY: dlerror returns null or a text that is valid until this thread's next dl call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown error".into();
    }
    // SAFETY: checked for null; zero-terminated by contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

impl Library {
    /// Opens by name (searched as usual) or path, its symbols visible to libraries opened later.
    pub(crate) fn open(name: &Path) -> Result<Library, String> {
        Library::with_flags(name, libc::RTLD_NOW | libc::RTLD_GLOBAL)
    }

    fn with_flags(name: &Path, flags: c_int) -> Result<Library, String> {
        let text = CString::new(name.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: runs the library's initializers; only the driver's, NCCL's and libtorch's libraries are
        // opened here.
        NonNull::new(unsafe { libc::dlopen(text.as_ptr(), flags) }).map(Library).ok_or_else(last_error)
    }

    /// The file that is opened for a name; the library does not stay.
    pub(crate) fn path_of(name: &Path) -> Option<PathBuf> {
        let library = Library::with_flags(name, libc::RTLD_LAZY | libc::RTLD_LOCAL).ok()?;
        let path = mapped(&name.to_string_lossy());
        // SAFETY: no symbol of it was resolved.
        unsafe { libc::dlclose(library.0.as_ptr()) };
        path
    }

    /// The address of a symbol.
    pub(crate) fn symbol(self, name: &CStr) -> Result<NonNull<c_void>, String> {
        // SAFETY: the handle is open for the life of the process.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) }).ok_or_else(last_error)
    }
}

/// The file of this name that this process has mapped.
fn mapped(name: &str) -> Option<PathBuf> {
    // Paths may be any bytes, those of other files, too.
    let maps = std::fs::read("/proc/self/maps").ok()?;
    let maps = String::from_utf8_lossy(&maps);
    let paths = maps.lines().filter_map(|line| Some(Path::new(&line[line.find('/')?..])));
    paths.into_iter().find(|path| path.file_name().is_some_and(|file| file == name)).map(Path::to_path_buf)
}

/// The folder of this process's libtorch.
pub(crate) fn torch_folder() -> Option<PathBuf> {
    mapped("libtorch_cpu.so")?.parent().map(Path::to_path_buf)
}

#[cfg(test)]
mod library_tests {
    use super::*;

    #[test]
    fn libraries_open_by_name_and_give_symbols() {
        let library = Library::open(Path::new("libc.so.6")).unwrap();
        assert!(library.symbol(c"getpid").is_ok());
        assert!(library.symbol(c"no_such_symbol").is_err());
        assert!(Library::open(Path::new("libnosuch.so.9")).err().unwrap().contains("libnosuch.so.9"));
    }

    #[test]
    fn libtorch_finds_itself() {
        let _ = tch::Tensor::from_slice(&[1]);
        assert!(torch_folder().unwrap().join("libc10.so").exists());
    }
}

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
                return Err(too_old(LIBRARY, "NCCL", &api.version(), &words(OLDEST)).error(""));
            }
            Ok(api) => return Ok(api),
            Err(error) => tried.push(explain(&error)),
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
    fn linker_messages_name_library_and_wheel() {
        let of = |message: &str| explain(message);
        let names = |found: &LoadFailure, library: &str, symbol: &str| {
            found.text.contains(library) && found.text.contains(symbol)
        };
        let found = of("libcusparse.so.12: cannot open shared object file: No such file or directory");
        assert!(found.missing && found.text.starts_with("libcusparse.so.12 "), "{found:?}");
        assert!(found.hint.contains("`cuda-toolkit[cusparse]==13.0.2`"), "{found:?}");

        let found =
            of("/t/lib/libtorch_cuda.so: undefined symbol: cublasLtMatmul, version libcublasLt.so.13");
        assert!(!found.missing && names(&found, "libcublasLt.so.13", "cublasLtMatmul"), "{found:?}");
        assert!(found.hint.contains("cuda-toolkit[cublas]"), "{found:?}");

        let found = of("/t/lib/libtorch_cuda.so: undefined symbol: ncclCommWindowRegister");
        assert!(names(&found, "libnccl.so.2", "ncclCommWindowRegister"), "{found:?}");
        assert!(found.hint.contains("nvidia-nccl-cu13"), "{found:?}");
        let found = of("/t/lib/libtorch_cuda.so: undefined symbol: cusparseLtInit");
        assert!(names(&found, "libcusparseLt.so.0", "cusparseLtInit"), "{found:?}");

        let found = of("/t/lib/libtorch_cuda.so: undefined symbol: _ZN3c104cuda9GetDeviceEPa");
        assert!(found.text.contains("_ZN3c104cuda9GetDeviceEPa"), "{found:?}");
        assert!(found.hint.contains("torch==2.11.0"), "{found:?}");
        assert!(of("x.so: undefined symbol: quite_another").text.contains("quite_another"));

        let found = of("/n/lib/libcudnn.so.9: file too short");
        assert_eq!(found.text, "/n/lib/libcudnn.so.9: file too short");
        assert!(found.hint.contains("nvidia-cudnn-cu13"), "{found:?}");
        assert!(of("").hint.contains("the CUDA wheels of torch"));
    }

    /// The table is that of the wheel that is built against.
    #[test]
    fn wheel_versions_match_torchs_requirements() {
        let Some(torch) = torch_folder() else { panic!("libtorch") };
        let site = torch.join("../..");
        let metadata = std::fs::read_dir(site).unwrap().flatten().map(|entry| entry.path()).find(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("torch-2.11.0"))
        });
        let Some(metadata) = metadata else {
            rankdeck_testkit::skip!("this libtorch has no metadata of its wheel");
        };
        let text = std::fs::read_to_string(metadata.join("METADATA")).unwrap();
        for (library, _, wheel) in LIBRARIES {
            let known = match wheel.strip_prefix("cuda-toolkit[").and_then(|rest| rest.split_once(']')) {
                Some((extra, version)) => text.lines().any(|line| {
                    line.strip_prefix("Requires-Dist: cuda-toolkit[")
                        .and_then(|rest| rest.split_once(']'))
                        .is_some_and(|(extras, rest)| {
                            extras.split(',').any(|other| other == extra) && rest.starts_with(version)
                        })
                }),
                None if wheel.starts_with("torch==") => true,
                None => text.contains(&format!("Requires-Dist: {wheel};")),
            };
            assert!(known, "{library}: {wheel}");
        }
    }

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
