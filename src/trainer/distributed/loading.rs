//! Why a library of CUDA does not load, in a sentence, and the wheel that helps.
//!
//! Owner: `cuda` and `nccl_api`. The dynamic linker names the library that asks for a symbol; what has to be
//! replaced is the one that lacks it.

use super::error::{BackendError, DistErrorKind};
use super::library::{Library, torch_folder};
use std::path::{Path, PathBuf};

/// Libraries, by the beginning of their names: how their symbols begin, and the wheel that has them. Versions
/// are those that the wheel torch 2.11.0 asks for.
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

/// Where libtorch looks first, seen from its `lib`; then in itself, then everywhere.
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
pub(super) struct LoadFailure {
    pub text: String,
    pub hint: String,
}

impl LoadFailure {
    /// As an error: `what` cannot be used.
    pub(super) fn error(self, what: &str) -> BackendError {
        let text = if what.is_empty() { self.text } else { format!("{what}: {}", self.text) };
        BackendError { hint: Some(self.hint), ..BackendError::new(DistErrorKind::Unsupported, text) }
    }
}

/// What `dlopen` or `dlsym` said.
pub(super) fn explain(said: &str) -> LoadFailure {
    if let Some((_, symbol)) = said.split_once("undefined symbol: ") {
        let (symbol, version) = symbol.split_once(", version ").unwrap_or((symbol, ""));
        return lacking(symbol.trim(), version.trim());
    }
    // The first word is the library, or its path.
    let named = said.split(": ").next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
    let wheel = entry(|(library, _, _)| named.starts_with(library)).map(|(_, _, wheel)| wheel);
    if said.ends_with("No such file or directory") {
        return LoadFailure { text: format!("{named} is not there"), hint: hint(wheel) };
    }
    LoadFailure { text: said.to_owned(), hint: hint(wheel) }
}

/// A library is there, and has another version than what asks for it.
fn lacking(symbol: &str, version: &str) -> LoadFailure {
    // NVIDIA gives its symbols the name of their library as a version. Of two beginnings the longer one is
    // meant.
    let named = entry(|(library, _, _)| !version.is_empty() && version.starts_with(library));
    let begins = LIBRARIES.iter().filter(|(_, beginning, _)| symbol.starts_with(beginning));
    let found = named.or_else(|| begins.max_by_key(|(_, beginning, _)| beginning.len()).copied());
    let Some((library, beginning, wheel)) = found else {
        return LoadFailure { text: format!("no library has {symbol}, which it needs"), hint: hint(None) };
    };
    if beginning == "_Z" {
        let text = format!("its files are of two releases of torch: none has {symbol}");
        return LoadFailure { text, hint: hint(Some(wheel)) };
    }
    let name = if version.starts_with("lib") { version } else { library };
    let there = place(name).map_or(name.to_owned(), |path| path.display().to_string());
    let text =
        format!("{there} has no {symbol}, so it is another version than the one that this libtorch needs");
    LoadFailure { text, hint: hint(Some(wheel)) }
}

/// A library that says a version below the one that is needed.
pub(super) fn too_old(name: &str, what: &str, has: &str, needs: &str) -> LoadFailure {
    let there = place(name).map_or(name.to_owned(), |path| path.display().to_string());
    let wheel = entry(|(library, _, _)| name.starts_with(library)).map(|(_, _, wheel)| wheel);
    let text = format!("{what} {has} is too old, {needs} or later is needed: {there}");
    LoadFailure { text, hint: hint(wheel) }
}

fn entry(is: impl Fn(&(&str, &str, &str)) -> bool) -> Option<(&'static str, &'static str, &'static str)> {
    LIBRARIES.iter().find(|entry| is(entry)).copied()
}

/// Installing a wheel, or all of them.
pub(super) fn hint(wheel: Option<&str>) -> String {
    let wheel =
        wheel.map_or("the CUDA wheels of torch 2.11.0".to_owned(), |wheel| format!("the wheel `{wheel}`"));
    format!(
        "install {wheel} beside torch, in the folder that `libtorch` in hosts.toml names, \
         or set CUDA_VISIBLE_DEVICES= to use the CPU"
    )
}

/// The file that libtorch gets for a library's name.
fn place(name: &str) -> Option<PathBuf> {
    let torch = torch_folder()?;
    let beside = BESIDE.iter().filter_map(|folder| torch.join(folder).join(name).canonicalize().ok());
    beside.into_iter().next().or_else(|| Library::path_of(Path::new(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_linker_says_becomes_a_sentence_with_a_wheel() {
        let of = |said: &str| explain(said);
        let found = of("libcusparse.so.12: cannot open shared object file: No such file or directory");
        assert_eq!(found.text, "libcusparse.so.12 is not there");
        assert!(found.hint.contains("`cuda-toolkit[cusparse]==13.0.2`"), "{found:?}");

        let found =
            of("/t/lib/libtorch_cuda.so: undefined symbol: cublasLtMatmul, version libcublasLt.so.13");
        assert!(found.text.starts_with("libcublasLt.so.13 has no cublasLtMatmul"), "{found:?}");
        assert!(found.hint.contains("cuda-toolkit[cublas]"), "{found:?}");

        let found = of("/t/lib/libtorch_cuda.so: undefined symbol: ncclCommWindowRegister");
        assert!(found.text.starts_with("libnccl.so.2 has no ncclCommWindowRegister"), "{found:?}");
        assert!(found.hint.contains("nvidia-nccl-cu13"), "{found:?}");
        let found = of("/t/lib/libtorch_cuda.so: undefined symbol: cusparseLtInit");
        assert!(found.text.starts_with("libcusparseLt.so.0 has no "), "{found:?}");

        let found = of("/t/lib/libtorch_cuda.so: undefined symbol: _ZN3c104cuda9GetDeviceEPa");
        assert!(found.text.contains("two releases of torch"), "{found:?}");
        assert!(found.hint.contains("torch==2.11.0"), "{found:?}");
        assert!(of("x.so: undefined symbol: quite_another").text.contains("no library has quite_another"));

        let found = of("/n/lib/libcudnn.so.9: file too short");
        assert_eq!(found.text, "/n/lib/libcudnn.so.9: file too short");
        assert!(found.hint.contains("nvidia-cudnn-cu13"), "{found:?}");
        assert!(of("").hint.contains("the CUDA wheels of torch"));
    }

    /// The table is that of the wheel that is built against.
    #[test]
    fn the_wheels_that_are_named_are_those_that_torch_asks_for() {
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
