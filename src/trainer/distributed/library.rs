//! Shared libraries opened at run time, so that one binary serves hosts with and without a GPU.
//!
//! Owner: `cuda` and `nccl`. Invariant: libraries of which a symbol was looked up are never closed, so that
//! it stays valid for the life of the process.

use std::ffi::{CStr, CString, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// An open library.
#[derive(Clone, Copy)]
pub(super) struct Library(NonNull<c_void>);

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
    pub(super) fn open(name: &Path) -> Result<Library, String> {
        Library::with_flags(name, libc::RTLD_NOW | libc::RTLD_GLOBAL)
    }

    fn with_flags(name: &Path, flags: c_int) -> Result<Library, String> {
        let text = CString::new(name.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: runs the library's initialisers; only the driver's, NCCL's and libtorch's libraries are
        // opened here.
        NonNull::new(unsafe { libc::dlopen(text.as_ptr(), flags) }).map(Library).ok_or_else(last_error)
    }

    /// The file that is opened for a name; the library does not stay.
    pub(super) fn path_of(name: &Path) -> Option<PathBuf> {
        let library = Library::with_flags(name, libc::RTLD_LAZY | libc::RTLD_LOCAL).ok()?;
        let path = mapped(&name.to_string_lossy());
        // SAFETY: nothing of it was looked up.
        unsafe { libc::dlclose(library.0.as_ptr()) };
        path
    }

    /// The address of a symbol.
    pub(super) fn symbol(self, name: &CStr) -> Result<NonNull<c_void>, String> {
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
pub(super) fn torch_folder() -> Option<PathBuf> {
    mapped("libtorch_cpu.so")?.parent().map(Path::to_path_buf)
}

#[cfg(test)]
mod tests {
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
