//! What a host offers: cores, GPUs, the built-in trainer, libtorch.
//!
//! Owner: `agent probe` and every launch. Nothing here imports torch: Python is only asked where the package lies.

use super::spawn::ask;
use super::{Failure, gpu, paths, proc};
use rankdeck_proto::folders;
use rankdeck_types::probe::Probe;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long an interpreter may take to say where torch is.
const PYTHON_PATIENCE: Duration = Duration::from_secs(30);

/// Everything about this host.
pub fn probe() -> Probe {
    let here = std::env::current_dir().unwrap_or_default();
    Probe {
        hostname: proc::hostname(),
        cpu_count: proc::cpu_count(),
        gpu_count: gpu::count(),
        home: folders::home().display().to_string(),
        trainer: trainer().map(|path| path.display().to_string()),
        libtorch: libtorch(None, &here).ok().flatten().map(|path| path.display().to_string()),
    }
}

/// `rankdeck-trainer` beside the running executable.
pub fn trainer() -> Option<PathBuf> {
    let path = folders::executable()?.parent()?.join("rankdeck-trainer");
    path.is_file().then_some(path)
}

/// A folder with libtorch: what hosts.toml says, else `LIBTORCH`, else `.libtorch/torch` in the working folder or above the executable, else what was pushed. `Ok(None)`: there
/// is none and none was asked for.
pub fn libtorch(wanted: Option<&str>, workdir: &Path) -> Result<Option<PathBuf>, Failure> {
    let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) else { return Ok(find(workdir)) };
    let folder = match wanted.strip_prefix("python:") {
        Some(python) => workdir.join(asked(python, workdir)?),
        None => workdir.join(expanded(wanted)),
    };
    if is_libtorch(&folder) {
        return Ok(Some(folder));
    }
    Err(Failure::new(
        format!("no lib/libtorch_cpu.so in {} on {}", folder.display(), proc::hostname()),
        "set `libtorch` in hosts.toml to the unpacked torch folder, or to `python:PATH` of an interpreter that has torch",
    ))
}

fn expanded(text: &str) -> PathBuf {
    if text.starts_with('~') { paths::expand(text) } else { PathBuf::from(text) }
}

fn asked(python: &str, workdir: &Path) -> Result<String, Failure> {
    const SCRIPT: &str = "import importlib.util as u; s = u.find_spec('torch'); print(list(s.submodule_search_locations)[0] if s else '')";
    let program = expanded(python);
    // A bare name is looked up in PATH, a relative path starts at the working folder.
    let program = if python.contains('/') { workdir.join(program) } else { program };
    let failed = |error: String| Failure::new(error, "check the interpreter after `python:` in hosts.toml");
    let answer = ask(&[program.into(), "-c".into(), SCRIPT.into()], PYTHON_PATIENCE).map_err(failed)?;
    if answer.is_empty() {
        return Err(failed(format!("{python} on {} has no torch", proc::hostname())));
    }
    Ok(answer)
}

/// Where `rankdeck push --libtorch` puts libraries: below this folder of a cache, in folders named by content.
pub const PUSHED: &str = "libtorch";

fn find(workdir: &Path) -> Option<PathBuf> {
    let variable =
        std::env::var_os("LIBTORCH").filter(|value| !value.is_empty()).map(|value| workdir.join(value));
    let here = std::env::current_dir().ok();
    let executable = folders::executable();
    let above = executable.iter().flat_map(|path| path.ancestors().skip(1)).map(Path::to_owned);
    variable
        .into_iter()
        .chain(
            here.into_iter()
                .chain([workdir.to_owned()])
                .chain(above)
                .map(|folder| folder.join(".libtorch/torch")),
        )
        .chain(folders::caches().into_iter().flat_map(|cache| {
            let mut pushed: Vec<PathBuf> = std::fs::read_dir(cache.join(PUSHED))
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path())
                .filter(|path| is_libtorch(path))
                .collect();
            // The one that was pushed last.
            pushed.sort_by_key(|path| std::fs::metadata(path).and_then(|facts| facts.modified()).ok());
            pushed.into_iter().rev()
        }))
        .find(|folder| is_libtorch(folder))
}

fn is_libtorch(folder: &Path) -> bool {
    folder.join("lib/libtorch_cpu.so").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_libtorch_by_its_library() {
        let folder = tempfile::tempdir().unwrap();
        let torch = folder.path().join("torch");
        std::fs::create_dir_all(torch.join("lib")).unwrap();
        assert!(libtorch(Some("torch"), folder.path()).unwrap_err().error.contains("libtorch_cpu.so"));
        std::fs::write(torch.join("lib/libtorch_cpu.so"), "").unwrap();
        assert_eq!(libtorch(Some("torch"), folder.path()).unwrap(), Some(torch.clone()));
        assert_eq!(libtorch(torch.to_str(), Path::new("/")).unwrap(), Some(torch));
    }

    #[test]
    fn an_interpreter_is_asked_and_its_failure_told() {
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
        assert_eq!(libtorch(Some("python:./python"), folder.path()).unwrap(), Some(torch));
        script("#!/bin/sh\nexit 1\n");
        assert!(libtorch(Some("python:./python"), folder.path()).unwrap_err().error.contains("has no torch"));
        assert!(
            libtorch(Some("python:/nonexistent/python"), folder.path())
                .unwrap_err()
                .error
                .contains("cannot run")
        );
    }
}
