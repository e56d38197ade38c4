//! Fixtures for the tests of all crates: counted skips, files of the repository, programs of this machine.

pub mod browser;
pub mod fake_cuda;
pub mod fuzz;

use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Skips a test that cannot run here: `skip!("no sshd; install openssh-server")`. Reasons that depend on a
/// GPU or its absence start with `GPU:`.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        $crate::skipped(&format!($($reason)+));
        return;
    }};
}

/// Ends a test binary without libtorch's destructors, which take 0.1 s per test.
#[macro_export]
macro_rules! end_without_destructors {
    () => {
        // Runs after the constructors of the libraries; its handler runs before their destructors.
        #[used]
        #[unsafe(link_section = ".init_array")]
        static END_WITHOUT_DESTRUCTORS: extern "C" fn() = $crate::end_without_destructors;
    };
}

/// Hides the GPUs of this machine from the programs of a test binary. Tests with GPUs add them
/// ([`fake_cuda::FakeCuda::apply`]).
#[macro_export]
macro_rules! hide_gpus {
    () => {
        #[used]
        #[unsafe(link_section = ".init_array")]
        static HIDE_GPUS: extern "C" fn() = $crate::hide_gpus;
    };
}

/// Called by [`hide_gpus!`] at the start of a process; child processes inherit its environment.
pub extern "C" fn hide_gpus() {
    use std::ffi::{c_char, c_int};
    unsafe extern "C" {
        fn setenv(name: *const c_char, value: *const c_char, overwrite: c_int) -> c_int;
    }
    // SAFETY: both strings end in NUL, and no other thread runs yet.
    unsafe { setenv(c"CUDA_VISIBLE_DEVICES".as_ptr(), c"".as_ptr(), 1) };
}

/// Called by [`end_without_destructors!`] at the start of a process.
pub extern "C" fn end_without_destructors() {
    use std::ffi::{c_int, c_void};
    unsafe extern "C" {
        fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
        fn _exit(status: c_int) -> !;
    }
    extern "C" fn leave(status: c_int, _: *mut c_void) {
        // SAFETY: _exit takes an integer; the test runner has written its output.
        unsafe { _exit(status) }
    }
    // SAFETY: the function lives as long as the process, and needs no argument.
    unsafe { on_exit(leave, std::ptr::null_mut()) };
}

/// Records that the current test cannot run here. `tests/setup/test.sh` sets the file `RANKDECK_SKIPPED` and
/// counts its lines.
///
/// # Panics
///
/// Without that file, because a test that did not run must not pass.
#[expect(clippy::panic, clippy::expect_used, reason = "a test that did not run must not pass")]
pub fn skipped(reason: &str) {
    let Some(file) = std::env::var_os("RANKDECK_SKIPPED") else {
        panic!("cannot run here: {reason}\n(`make test` counts such tests as skipped)");
    };
    let (binary, test) = running();
    let line = format!("{binary}\t{test}\t{}\n", reason.split_whitespace().collect::<Vec<_>>().join(" "));
    #[expect(clippy::disallowed_macros, reason = "a test has no console")]
    {
        eprint!("skipped: {line}");
    }
    let file = std::fs::OpenOptions::new().append(true).create(true).open(file);
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the file of RANKDECK_SKIPPED");
}

/// Returns the names of the test binary and the running test.
fn running() -> (String, String) {
    let binary = std::env::current_exe().ok();
    let binary =
        binary.as_deref().and_then(Path::file_stem).unwrap_or_default().to_string_lossy().into_owned();
    // Cargo appends a hash.
    let binary = binary.rsplit_once('-').map_or(binary.clone(), |(name, _)| name.to_owned());
    let thread = std::thread::current();
    let test = match thread.name() {
        Some("main") | None => std::env::args().skip_while(|arg| arg != "--exact").nth(1).unwrap_or_default(),
        Some(name) => name.to_owned(),
    };
    (binary, test)
}

/// Returns a path in the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new(".")).join(path)
}

/// Returns the path of a program in the usual folders.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into(), "/usr/bin".into()]);
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Returns a free TCP port, reserved among the processes of these tests until this one ends. It is below the
/// ports of outgoing connections and those of the rendezvous.
pub fn free_port() -> u16 {
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 10_000;
    static HELD: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    // Processes start at different ports, to avoid collisions.
    let begin = (std::process::id() % 500) as u16 * 20;
    (0..COUNT)
        .find_map(|number| {
            let port = FIRST + (begin + number) % COUNT;
            // An abstract socket ends with the process and belongs to a network namespace, like ports.
            let name = SocketAddr::from_abstract_name(format!("rankdeck-test-port-{port}")).ok()?;
            let lock = UnixListener::bind_addr(&name).ok()?;
            std::net::TcpListener::bind(("0.0.0.0", port)).ok()?;
            held.push(lock);
            Some(port)
        })
        .unwrap_or_default()
}

/// Returns an interpreter with `packages` (`gymnasium, ale_py`): `RANKDECK_TEST_PYTHON`, or python3. `None`
/// if the test is skipped.
pub fn python(packages: &str) -> Option<String> {
    python_of("RANKDECK_TEST_PYTHON", packages)
}

/// Like [`python`], with another environment variable.
pub fn python_of(variable: &str, packages: &str) -> Option<String> {
    let python = std::env::var(variable).unwrap_or_else(|_| "python3".into());
    // Without importing them: torch alone takes 1.3 s.
    const FIND: &str =
        "import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))";
    let there = Command::new(&python).args(["-c", FIND]).args(packages.split(", ")).output();
    if there.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    skipped(&format!("{python} does not have {packages}; set {variable} to an interpreter that does"));
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_are_unique_among_processes() {
        let others = free_port();
        assert!((10_000..20_000).contains(&others));
        let name = SocketAddr::from_abstract_name(format!("rankdeck-test-port-{others}")).unwrap();
        assert!(UnixListener::bind_addr(&name).is_err(), "not reserved");
        let mut given: Vec<u16> = (0..200).map(|_| free_port()).collect();
        given
            .extend(std::thread::spawn(|| (0..200).map(|_| free_port()).collect::<Vec<_>>()).join().unwrap());
        given.push(others);
        let all = given.len();
        given.sort_unstable();
        given.dedup();
        assert_eq!(given.len(), all, "duplicate port");
    }
}
