//! Finds the trainer and libtorch.
//!
//! - LAUNCHER-1: what the user names is taken or refused, never passed over: a `LIBTORCH` without libraries is
//!   an error. What is merely found (an environment's torch, a cache) counts where its version fits.

use crate::LaunchError;
use rankdeck_proto::{folders, libtorch};
use std::path::{Path, PathBuf};

/// Where libtorch may be.
#[derive(Debug, Default)]
pub struct Surroundings {
    /// `LIBTORCH`.
    pub named: Option<PathBuf>,
    /// Directories of `LD_LIBRARY_PATH`.
    pub library_path: Vec<PathBuf>,
    /// Directories that may have a `.libtorch/torch`: the current one, and those above the program.
    pub above: Vec<PathBuf>,
    /// Each torch of an environment.
    pub environments: Vec<PathBuf>,
    /// Directories of pushed libraries.
    pub pushed: Vec<PathBuf>,
}

impl Surroundings {
    /// This process's.
    pub fn here() -> Surroundings {
        let given = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let current = std::env::current_dir().ok();
        let executable = folders::executable();
        let entries = |cache: PathBuf| std::fs::read_dir(cache.join(folders::LIBTORCH));
        Surroundings {
            named: given("LIBTORCH").map(PathBuf::from),
            library_path: given("LD_LIBRARY_PATH")
                .map(|paths| std::env::split_paths(&paths).collect())
                .unwrap_or_default(),
            above: current
                .into_iter()
                .chain(executable.iter().flat_map(|path| path.ancestors().skip(1)).map(Path::to_owned))
                .collect(),
            environments: libtorch::of_environments(),
            pushed: folders::caches()
                .into_iter()
                .flat_map(|cache| entries(cache).into_iter().flatten().flatten())
                .map(|entry| entry.path())
                .collect(),
        }
    }

    /// The directory of libraries to start the trainer with.
    pub fn libraries(&self) -> Result<PathBuf, LaunchError> {
        if let Some(folder) = self.library_path.iter().find(|path| path.join("libtorch_cpu.so").exists()) {
            return Ok(folder.clone());
        }
        if let Some(named) = &self.named {
            return match libtorch::is_libtorch(named) {
                true => Ok(named.join("lib")),
                false => Err(LaunchError::usage(
                    format!("LIBTORCH={}: lib/libtorch_cpu.so not found", named.display()),
                    "set it to the unpacked torch directory, or unset it",
                )),
            };
        }
        let above = self.above.iter().map(|folder| folder.join(".libtorch/torch"));
        let known = above.chain(self.environments.iter().cloned()).chain(self.pushed.iter().cloned());
        let (fitting, others): (Vec<PathBuf>, Vec<PathBuf>) =
            known.filter(|folder| libtorch::is_libtorch(folder)).partition(|folder| libtorch::fits(folder));
        match (fitting.first(), others.first()) {
            (Some(folder), _) => Ok(folder.join("lib")),
            (None, Some(other)) => Err(LaunchError::usage(
                format!(
                    "the trainer needs libtorch {}x, but {} is {}",
                    libtorch::FITTING,
                    other.display(),
                    libtorch::version(other).unwrap_or_default()
                ),
                hint(),
            )),
            (None, None) => Err(LaunchError::usage("libtorch not found", hint())),
        }
    }
}

fn hint() -> String {
    format!(
        "run `{}` in the active Python environment, or set LIBTORCH to the directory of an installed libtorch",
        libtorch::FETCH
    )
}

/// The trainer behind a launcher at `own`.
///
/// Errors: it is missing, or is the launcher itself.
pub fn trainer(own: &Path) -> Result<PathBuf, LaunchError> {
    let same = |path: &PathBuf| std::fs::canonicalize(path).ok() == std::fs::canonicalize(own).ok();
    libtorch::trainer_of(own).filter(|path| !same(path)).ok_or_else(|| {
        LaunchError::failure(
            "libexec/rankdeck/rankdeck-trainer not found next to this launcher",
            "reinstall rankdeck: its programs belong together",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn torch(folder: &Path, version: &str) -> PathBuf {
        std::fs::create_dir_all(folder.join("lib")).unwrap();
        std::fs::write(folder.join("lib/libtorch_cpu.so"), "").unwrap();
        std::fs::write(folder.join("version.py"), format!("__version__ = '{version}'\n")).unwrap();
        folder.to_owned()
    }

    #[test]
    fn launcher_1_named_libtorch_counts_and_found_one_must_fit() {
        let home = tempfile::tempdir().unwrap();
        let place = |name: &str| home.path().join(name);
        let nothing = Surroundings::default().libraries().unwrap_err();
        assert!(nothing.usage && nothing.hinted.hint.contains(libtorch::FETCH), "{nothing:?}");

        let old = torch(&place("old"), "2.9.1");
        let environments = vec![old.clone()];
        let refused = Surroundings { environments, ..Surroundings::default() }.libraries().unwrap_err();
        assert!(
            refused.hinted.error.contains("2.9.1") && refused.hinted.error.contains("2.11"),
            "{refused:?}"
        );

        let fitting = torch(&place("fitting"), "2.11.0+cpu");
        let environments = vec![old.clone(), fitting.clone()];
        let found = Surroundings { environments, ..Surroundings::default() };
        assert_eq!(found.libraries().unwrap(), fitting.join("lib"));

        let named = Some(place("nothing"));
        let wrong = Surroundings { named, ..found }.libraries().unwrap_err();
        assert!(wrong.hinted.error.contains("LIBTORCH="), "{wrong:?}");
        let chosen = Surroundings { named: Some(old.clone()), ..Surroundings::default() };
        assert_eq!(chosen.libraries().unwrap(), old.join("lib"));
        let library_path = vec![place("x"), fitting.join("lib")];
        let linked = Surroundings { library_path, ..chosen };
        assert_eq!(linked.libraries().unwrap(), fitting.join("lib"), "as an agent has set it");
    }

    #[test]
    fn launcher_never_starts_itself() {
        let prefix = tempfile::tempdir().unwrap();
        let bin = prefix.path().join("bin");
        std::fs::create_dir_all(&bin).unwrap();
        let own = bin.join("rankdeck-trainer");
        std::fs::write(&own, "").unwrap();
        assert!(!trainer(&own).unwrap_err().hinted.hint.is_empty());
    }
}
