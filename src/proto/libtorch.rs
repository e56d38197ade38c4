//! Finds libtorch on a host, and checks its version for the trainer.
//!
//! It reads directories and their version files; it neither loads libtorch nor runs Python.

use crate::folders;
use crate::regular;
use std::path::{Path, PathBuf};

/// Prefix of the versions that the trainer supports: the C++ interface changes with each minor version.
pub const FITTING: &str = "2.11.";
/// Command that installs a supported version.
pub const FETCH: &str = "pip install torch==2.11.0";
/// Requirement for pip, whose environment may have another supported version.
pub const REQUIREMENT: &str = "torch==2.11.*";

/// Returns whether the directory is an unpacked libtorch, or the torch package of a Python.
pub fn is_libtorch(folder: &Path) -> bool {
    folder.join("lib/libtorch_cpu.so").exists()
}

/// Returns the version of an unpacked libtorch, from the wheel's `version.py` or the archive's
/// `build-version`.
pub fn version(folder: &Path) -> Option<String> {
    let wheel = regular::read_text(&folder.join("version.py")).ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("__version__"))?;
        Some(line.split('\'').nth(1)?.to_owned())
    });
    wheel.or_else(|| {
        let text = regular::read_text(&folder.join("build-version")).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    })
}

/// Returns whether its version is supported or unknown.
pub fn fits(folder: &Path) -> bool {
    version(folder).is_none_or(|version| version.starts_with(FITTING))
}

/// Returns each torch package of the active Python environment, of that in which the running program is
/// installed, and of pip's directories outside of environments.
pub fn of_environments() -> Vec<PathBuf> {
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    // `bin/rankdeck`, and `libexec/rankdeck/rankdeck-trainer`.
    let own = folders::executable();
    let around = own.iter().flat_map(|path| path.ancestors().skip(2).take(2)).map(Path::to_owned);
    let plain = [folders::home().join(".local"), PathBuf::from("/usr/local")];
    active
        .chain(around)
        .chain(plain)
        .filter(|prefix| prefix.is_absolute())
        .flat_map(|prefix| of_prefix(&prefix))
        .collect()
}

/// Returns each torch package below a prefix, that of the newest Python first.
fn of_prefix(prefix: &Path) -> Vec<PathBuf> {
    let minor = |path: &PathBuf| -> Option<u32> {
        path.file_name()?.to_str()?.strip_prefix("python3.")?.parse().ok()
    };
    let entries = std::fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten();
    let mut pythons: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| minor(path).is_some()).collect();
    pythons.sort_by_key(|path| std::cmp::Reverse(minor(path)));
    pythons
        .into_iter()
        .flat_map(|path| ["site-packages/torch", "dist-packages/torch"].map(|name| path.join(name)))
        .filter(|folder| is_libtorch(folder))
        .collect()
}

/// Returns the trainer of a console or an agent: where packages install it, else next to the executable.
pub fn trainer_of(executable: &Path) -> Option<PathBuf> {
    let folder = executable.parent()?;
    let installed = folder.parent().map(|prefix| prefix.join("libexec/rankdeck/rankdeck-trainer"));
    installed.into_iter().chain([folder.join("rankdeck-trainer")]).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_compared() {
        let folder = tempfile::tempdir().unwrap();
        assert!(version(folder.path()).is_none() && fits(folder.path()));
        std::fs::write(folder.path().join("build-version"), "2.11.0+cpu\n").unwrap();
        assert_eq!(version(folder.path()).as_deref(), Some("2.11.0+cpu"));
        assert!(fits(folder.path()));
        std::fs::write(folder.path().join("version.py"), "x = 1\n__version__ = '2.9.1'\n").unwrap();
        assert_eq!(version(folder.path()).as_deref(), Some("2.9.1"));
        assert!(!fits(folder.path()));
    }

    #[test]
    fn torch_of_the_newest_python_comes_first() {
        let prefix = tempfile::tempdir().unwrap();
        for python in ["python3.9", "python3.12", "python3"] {
            let lib = prefix.path().join("lib").join(python).join("site-packages/torch/lib");
            std::fs::create_dir_all(&lib).unwrap();
            std::fs::write(lib.join("libtorch_cpu.so"), "").unwrap();
        }
        let found = of_prefix(prefix.path());
        assert_eq!(found.len(), 2);
        assert!(found[0].to_string_lossy().contains("python3.12"), "{found:?}");
    }

    #[test]
    fn installed_trainer_precedes_the_launcher_next_to_it() {
        let prefix = tempfile::tempdir().unwrap();
        let (bin, libexec) = (prefix.path().join("bin"), prefix.path().join("libexec/rankdeck"));
        std::fs::create_dir_all(&bin).unwrap();
        let console = bin.join("rankdeck");
        assert_eq!(trainer_of(&console), None);
        std::fs::write(bin.join("rankdeck-trainer"), "").unwrap();
        assert_eq!(trainer_of(&console), Some(bin.join("rankdeck-trainer")));
        std::fs::create_dir_all(&libexec).unwrap();
        std::fs::write(libexec.join("rankdeck-trainer"), "").unwrap();
        assert_eq!(trainer_of(&console), Some(libexec.join("rankdeck-trainer")));
    }
}
