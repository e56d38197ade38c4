//! The built-in trainer and libtorch on this host.
//!
//! Nothing here imports torch: Python is only asked where the package is.
//!
//! - LIBTORCH-1: libraries that the user did not name are used only where no other user can write them. Uploaded
//!   ones were named by their content when they were unpacked, and hashing a gigabyte at every launch would cost
//!   seconds.
//! - LIBTORCH-2: a checkpoint is evaluated with no library of the current directory, which may be
//!   someone else's repository.

use crate::paths;
use crate::proc;
use crate::supervise::groups;
use crate::supervise::groups::Helpers;
use rankdeck_proto::folders;
use rankdeck_proto::libtorch::{fits, is_libtorch, of_environments, trainer_of};
use rankdeck_proto::trust;
use rankdeck_types::error::HintedError;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Time limit for an interpreter to locate torch.
const PYTHON_PATIENCE: Duration = Duration::from_secs(30);

/// The trainer that belongs to the running executable.
pub(crate) fn trainer() -> Option<PathBuf> {
    trainer_of(&folders::executable()?)
}

/// Returns a directory with libtorch: from hosts.toml, else `LIBTORCH`, else `.libtorch/torch` in the run's working
/// directory or above the executable, else the torch of a Python environment when it fits, else what was
/// pushed. `Ok(None)`: not found and not requested.
pub(crate) fn find(configured: Option<&str>, workdir: &Path) -> Result<Option<PathBuf>, HintedError> {
    let Some(configured) = configured.filter(|configured| !configured.is_empty()) else {
        return search(Some(workdir));
    };
    let folder = match configured.strip_prefix("python:") {
        Some(python) => workdir.join(asked(python, workdir)?),
        None => workdir.join(expanded(configured)),
    };
    if is_libtorch(&folder) {
        return Ok(Some(folder));
    }
    Err(HintedError::new(
        format!("lib/libtorch_cpu.so not found in {} on {}", folder.display(), proc::hostname()),
        "set `libtorch` in hosts.toml to the unpacked torch directory, or to `python:PATH` of an interpreter with torch",
    ))
}

fn expanded(text: &str) -> PathBuf {
    if text.starts_with('~') { paths::expand(text) } else { PathBuf::from(text) }
}

fn asked(python: &str, workdir: &Path) -> Result<String, HintedError> {
    const SCRIPT: &str = "import importlib.util as u; s = u.find_spec('torch'); print(list(s.submodule_search_locations)[0] if s else '')";
    let program = expanded(python);
    // A bare name is searched in PATH, a relative path starts at the working directory.
    let program = if python.contains('/') { workdir.join(program) } else { program };
    let failed =
        |error: String| HintedError::new(error, "check the interpreter after `python:` in hosts.toml");
    let answer =
        run_helper(&[program.into(), "-c".into(), SCRIPT.into()], PYTHON_PATIENCE, &Helpers::default())
            .map_err(failed)?;
    if answer.is_empty() {
        return Err(failed(format!("{python} on {} has no torch", proc::hostname())));
    }
    Ok(answer)
}

/// Runs a short helper and returns the first line it prints; killed after `within`.
pub(crate) fn run_helper(argv: &[OsString], within: Duration, helpers: &Helpers) -> Result<String, String> {
    let program = argv.first().ok_or("the command is empty")?;
    let shown = Path::new(program).display().to_string();
    let mut command = Command::new(program);
    command
        .args(&argv[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0);
    let (mut child, _spared) =
        helpers.spawn(&mut command).map_err(|error| format!("cannot run {shown}: {error}"))?;
    let pid = child.id();
    let start = proc::stat(pid).map_or(0, |stat| stat.start);
    let output = child.stdout.take().ok_or("no pipe")?;
    let (answer, inbox) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = BufReader::new(output.take(1 << 16)).read_line(&mut line);
        let _ = answer.send(line);
    });
    let line = inbox.recv_timeout(within).map_err(|_| {
        groups::signal(pid, start, libc::SIGKILL);
        format!("{shown} did not respond within {} s", within.as_secs())
    })?;
    Ok(line.trim().to_owned())
}

/// Searches for libtorch that hosts.toml does not name; without `workdir`, in no directory of a run.
pub(crate) fn search(workdir: Option<&Path>) -> Result<Option<PathBuf>, HintedError> {
    let named = std::env::var_os("LIBTORCH").filter(|value| !value.is_empty()).map(PathBuf::from);
    let named = named.map(|value| workdir.map_or_else(|| value.clone(), |workdir| workdir.join(&value)));
    if let Some(named) = named.filter(|folder| is_libtorch(folder)) {
        return Ok(Some(named));
    }
    let refused = match unpacked(&places(workdir)) {
        Some(Ok(found)) => return Ok(Some(found)),
        Some(Err(refused)) => Some(refused),
        None => None,
    };
    // The user did not choose these: one of another version belongs to another program.
    if let Some(found) = of_environments().into_iter().find(|folder| fits(folder)) {
        return Ok(Some(found));
    }
    match folders::caches().into_iter().find_map(|cache| pushed(&cache)) {
        Some(found) => trusted(found).map(Some),
        None => refused.map_or(Ok(None), Err),
    }
}

/// Directories that may have a `.libtorch/torch`: the run's working directory, and those above the executable.
fn places(workdir: Option<&Path>) -> Vec<PathBuf> {
    let executable = folders::executable();
    let above = executable.iter().flat_map(|path| path.ancestors().skip(1));
    workdir.into_iter().chain(above).map(Path::to_owned).collect()
}

/// The first `.libtorch/torch` below one of these that no other user can write; else why one is not used.
fn unpacked(below: &[PathBuf]) -> Option<Result<PathBuf, HintedError>> {
    let found = below.iter().map(|folder| folder.join(".libtorch/torch"));
    let found = found.filter(|folder| is_libtorch(folder));
    let mut checked = found.map(trusted);
    let first = checked.next()?;
    Some(first.or_else(|refused| checked.find_map(Result::ok).ok_or(refused)))
}

/// What was pushed last into a cache.
fn pushed(cache: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(cache.join(folders::LIBTORCH)).into_iter().flatten().flatten();
    let found = entries.map(|entry| entry.path()).filter(|path| is_libtorch(path));
    found.max_by_key(|path| std::fs::metadata(path).and_then(|facts| facts.modified()).ok())
}

fn trusted(folder: PathBuf) -> Result<PathBuf, HintedError> {
    let inside =
        std::fs::read_dir(folder.join("lib")).into_iter().flatten().flatten().map(|entry| entry.path());
    match std::iter::once(folder.join("lib")).chain(inside).find_map(|path| trust::distrust(&path)) {
        None => Ok(folder),
        Some(reason) => Err(HintedError::new(
            format!(
                "libtorch in {} on {} is not trusted: {}",
                folder.display(),
                proc::hostname(),
                reason.error
            ),
            "run `chmod -R go-w` on it if it is yours, or set `libtorch` in hosts.toml to another one",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::process_scan::{self, RunTag, ScanScope};
    use rankdeck_types::ids::{NodeRank, RunId};
    use std::collections::BTreeSet;
    use std::time::Instant;

    /// A job's end sweeps the run while the controller is asked why it ends.
    #[test]
    fn helper_is_no_process_of_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let script =
            format!("while [ ! -e {} ]; do sleep 0.01; done; echo here", folder.path().join("go").display());
        let helpers = Helpers::default();
        let found = |spared: BTreeSet<u32>| {
            let mark = RunTag {
                run: RunId("x".into()),
                run_dir: "/x".into(),
                node: NodeRank(0),
                agent: None,
                rank: None,
            };
            let below = Some(std::process::id());
            process_scan::find(&ScanScope { below, spared, ..ScanScope::marked(mark) })
        };
        let asked = helpers.clone();
        let answer = std::thread::spawn(move || {
            run_helper(&["sh".into(), "-c".into(), script.into()], Duration::from_secs(30), &asked)
        });
        let deadline = Instant::now() + Duration::from_secs(20);
        while helpers.pids().is_empty() {
            assert!(Instant::now() < deadline, "it never ran");
            std::thread::yield_now();
        }
        let spared = helpers.pids();
        assert!(!found(BTreeSet::new()).is_empty(), "it is below this process");
        assert_eq!(found(spared), []);
        std::fs::write(folder.path().join("go"), "").unwrap();
        assert_eq!(answer.join().unwrap().as_deref(), Ok("here"));
        assert!(helpers.pids().is_empty());
    }

    #[test]
    fn folder_is_libtorch_by_its_library() {
        let folder = tempfile::tempdir().unwrap();
        let torch = folder.path().join("torch");
        std::fs::create_dir_all(torch.join("lib")).unwrap();
        assert!(find(Some("torch"), folder.path()).unwrap_err().error.contains("libtorch_cpu.so"));
        std::fs::write(torch.join("lib/libtorch_cpu.so"), "").unwrap();
        assert_eq!(find(Some("torch"), folder.path()).unwrap(), Some(torch.clone()));
        assert_eq!(find(torch.to_str(), Path::new("/")).unwrap(), Some(torch));
    }

    #[test]
    fn libtorch_1_writable_uploaded_libraries_are_refused() {
        use std::os::unix::fs::PermissionsExt;
        let cache = tempfile::tempdir().unwrap();
        let place = |name: &str| {
            let lib = cache.path().join(folders::LIBTORCH).join(name).join("lib");
            std::fs::create_dir_all(&lib).unwrap();
            std::fs::write(lib.join("libtorch_cpu.so"), "").unwrap();
            lib
        };
        assert_eq!(pushed(cache.path()), None);
        let lib = place("0123");
        let found = pushed(cache.path()).unwrap();
        assert_eq!(trusted(found.clone()).unwrap(), lib.parent().unwrap());
        for (path, mode) in [(lib.join("libtorch_cpu.so"), 0o666), (lib.clone(), 0o777)] {
            let before = std::fs::metadata(&path).unwrap().permissions();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let refused = trusted(found.clone()).unwrap_err();
            assert!(refused.error.contains(&format!("{} ", path.display())), "{refused:?}");
            std::fs::set_permissions(&path, before).unwrap();
        }
    }

    #[test]
    fn libtorch_1_found_libraries_of_others_are_passed_over() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| {
            let below = folder.path().join(name);
            std::fs::create_dir_all(below.join(".libtorch/torch/lib")).unwrap();
            std::fs::write(below.join(".libtorch/torch/lib/libtorch_cpu.so"), "").unwrap();
            below
        };
        let (open, own) = (place("open"), place("own"));
        std::fs::set_permissions(open.join(".libtorch"), PermissionsExt::from_mode(0o777)).unwrap();
        assert_eq!(unpacked(&[open.clone(), own.clone()]), Some(Ok(own.join(".libtorch/torch"))));
        assert!(unpacked(&[open]).unwrap().unwrap_err().error.contains(".libtorch"));
        assert_eq!(unpacked(&[folder.path().join("none")]), None);
    }

    #[test]
    fn libtorch_2_current_directory_is_not_searched() {
        let current = std::env::current_dir().unwrap();
        assert!(!places(None).contains(&current), "a test runs in its crate's directory");
        assert!(places(Some(&current)).contains(&current));
    }

    #[test]
    fn interpreter_is_queried_and_its_failure_reported() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let torch = folder.path().join("site/torch");
        std::fs::create_dir_all(torch.join("lib")).unwrap();
        std::fs::write(torch.join("lib/libtorch_cpu.so"), "").unwrap();
        let python = folder.path().join("python");
        let script = |text: &str| {
            std::fs::write(&python, text).unwrap();
            std::fs::set_permissions(&python, PermissionsExt::from_mode(0o755)).unwrap();
        };
        script(&format!("#!/bin/sh\necho {}\n", torch.display()));
        assert_eq!(find(Some("python:./python"), folder.path()).unwrap(), Some(torch));
        script("#!/bin/sh\nexit 1\n");
        let failure = |python: &str| find(Some(python), folder.path()).unwrap_err().error;
        assert!(failure("python:./python").contains("./python"));
        assert!(failure("python:/nonexistent/python").contains("/nonexistent/python"));
    }
}
