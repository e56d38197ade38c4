//! What the tests of all crates share: skips that are counted, files of the repository, programs of this
//! machine.

pub mod fake_cuda;
pub mod fuzz;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};

/// Ends a test that cannot run here: `skip!("no sshd; install openssh-server")`. What only a GPU (or its
/// absence) decides begins with `GPU:`.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        $crate::skipped(&format!($($reason)+));
        return;
    }};
}

/// For a test binary that is linked with libtorch: its processes end without libtorch's destructors, which
/// take 0.1 s. Every test is a process of its own.
#[macro_export]
macro_rules! end_without_destructors {
    () => {
        // Runs after the constructors of the libraries; what it registers, before their destructors.
        #[used]
        #[unsafe(link_section = ".init_array")]
        static END_WITHOUT_DESTRUCTORS: extern "C" fn() = $crate::end_without_destructors;
    };
}

/// For a test binary whose programs are not to find the GPUs of this machine: what they would say of those
/// depends on the machine. A test with GPUs gives them itself ([`fake_cuda::FakeCuda::apply`]).
#[macro_export]
macro_rules! hide_gpus {
    () => {
        #[used]
        #[unsafe(link_section = ".init_array")]
        static HIDE_GPUS: extern "C" fn() = $crate::hide_gpus;
    };
}

/// What [`hide_gpus!`] runs at the start of a process: its environment is that of whatever it starts.
pub extern "C" fn hide_gpus() {
    use std::ffi::{c_char, c_int};
    unsafe extern "C" {
        fn setenv(name: *const c_char, value: *const c_char, overwrite: c_int) -> c_int;
    }
    // SAFETY: both strings end in NUL, and no other thread runs yet.
    unsafe { setenv(c"CUDA_VISIBLE_DEVICES".as_ptr(), c"".as_ptr(), 1) };
}

/// What [`end_without_destructors!`] runs at the start of a process.
pub extern "C" fn end_without_destructors() {
    use std::ffi::{c_int, c_void};
    unsafe extern "C" {
        fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
        fn _exit(status: c_int) -> !;
    }
    extern "C" fn leave(status: c_int, _: *mut c_void) {
        // SAFETY: _exit takes an integer; the test runner has written what it had to say.
        unsafe { _exit(status) }
    }
    // SAFETY: the function lives as long as the process, and needs no argument.
    unsafe { on_exit(leave, std::ptr::null_mut()) };
}

/// Notes that the running test cannot run here. `tests/setup/test.sh` names a file in `RANKDECK_SKIPPED` and
/// counts its lines as skipped.
///
/// # Panics
///
/// Without that file: a test that did not run must not pass.
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

/// Names of the running test and of its binary.
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

/// A file below the repository's root.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new(".")).join(path)
}

/// A program's path, where distributions put it.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into(), "/usr/bin".into()]);
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// A port that is free and stays so: below those that the kernel gives to outgoing connections, and one of
/// this process's own.
pub fn free_port() -> u16 {
    const FIRST: u16 = 10_000;
    const PROCESSES: u16 = 1_000;
    const EACH: u16 = 20;
    static COUNT: AtomicU16 = AtomicU16::new(0);
    let begin = (std::process::id() % u32::from(PROCESSES)) as u16 * EACH;
    loop {
        let port = FIRST + (begin + COUNT.fetch_add(1, Ordering::Relaxed)) % (PROCESSES * EACH);
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// An interpreter that has `packages` (`gymnasium, ale_py`): the one that `RANKDECK_TEST_PYTHON` names, or
/// python3. `None` has been noted as a skip.
pub fn python(packages: &str) -> Option<String> {
    python_of("RANKDECK_TEST_PYTHON", packages)
}

/// The same, where the environment's `variable` names it.
pub fn python_of(variable: &str, packages: &str) -> Option<String> {
    let python = std::env::var(variable).unwrap_or_else(|_| "python3".into());
    // Whether they are there, without what it takes to load them: torch alone takes 1.3 s.
    const FIND: &str =
        "import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))";
    let there = Command::new(&python).args(["-c", FIND]).args(packages.split(", ")).output();
    if there.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    skipped(&format!("{python} does not have {packages}; {variable} names one that does"));
    None
}
