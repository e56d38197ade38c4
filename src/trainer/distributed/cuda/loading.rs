//! Opens CUDA libraries at run time; a load failure names the library and the wheel to install.
//!
//! The dynamic linker names the library that needs a symbol; the one to replace is the library that lacks
//! it.

use crate::distributed::error::{BackendError, DistErrorKind};
use std::ffi::{CStr, CString, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

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
}
