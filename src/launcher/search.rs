//! Looks for the trainer and for libtorch.
//!
//! - SEARCH-1: what the user names is taken or refused, never passed over: a `LIBTORCH` without libraries is
//!   an error. What is merely found (an environment's torch, a cache) counts where its version fits.

use crate::error::LaunchError;
use rankdeck_proto::{folders, libtorch};
use std::path::{Path, PathBuf};

/// What the search looks at.
#[derive(Debug, Default)]
pub struct Surroundings {
    /// `LIBTORCH`.
    pub named: Option<PathBuf>,
    /// Folders of `LD_LIBRARY_PATH`.
    pub library_path: Vec<PathBuf>,
    /// Folders that may have a `.libtorch/torch`: the current one, and those above the program.
    pub above: Vec<PathBuf>,
    /// Each torch of an environment.
    pub environments: Vec<PathBuf>,
    /// Folders of pushed libraries.
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

    /// The folder of libraries to start the trainer with.
    pub fn libraries(&self) -> Result<PathBuf, LaunchError> {
        if let Some(folder) = self.library_path.iter().find(|path| path.join("libtorch_cpu.so").exists()) {
            return Ok(folder.clone());
        }
        if let Some(named) = &self.named {
            return match libtorch::is_libtorch(named) {
                true => Ok(named.join("lib")),
                false => Err(LaunchError::usage(
                    format!("LIBTORCH={} has no lib/libtorch_cpu.so", named.display()),
                    "set it to the unpacked torch folder, or unset it",
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
                    "the trainer needs libtorch {}x, and {} is {}",
                    libtorch::FITTING,
                    other.display(),
                    libtorch::version(other).unwrap_or_default()
                ),
                hint(),
            )),
            (None, None) => {
                Err(LaunchError::usage("there is no libtorch here, which the trainer computes with", hint()))
            }
        }
    }
}

fn hint() -> String {
    format!(
        "`{}` in the active Python environment fetches it, or set LIBTORCH to the folder of one that is there",
        libtorch::FETCH
    )
}

/// The trainer behind a launcher at `own`.
///
/// Errors: there is none, or it is the launcher itself.
pub fn trainer(own: &Path) -> Result<PathBuf, LaunchError> {
    let same = |path: &PathBuf| std::fs::canonicalize(path).ok() == std::fs::canonicalize(own).ok();
    libtorch::trainer_of(own).filter(|path| !same(path)).ok_or_else(|| {
        LaunchError::failure(
            "libexec/rankdeck/rankdeck-trainer is not where this launcher was installed",
            "install rankdeck again: its programs belong together",
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
    fn search_1_what_is_named_counts_and_what_is_found_has_to_fit() {
        let home = tempfile::tempdir().unwrap();
        let place = |name: &str| home.path().join(name);
        let nothing = Surroundings::default().libraries().unwrap_err();
        assert!(nothing.usage && nothing.hinted.hint.contains("pip install torch==2.11"), "{nothing:?}");

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
    fn a_launcher_never_starts_itself() {
        let prefix = tempfile::tempdir().unwrap();
        let bin = prefix.path().join("bin");
        std::fs::create_dir_all(&bin).unwrap();
        let own = bin.join("rankdeck-trainer");
        std::fs::write(&own, "").unwrap();
        assert!(trainer(&own).unwrap_err().hinted.hint.contains("install rankdeck again"));
    }
}
