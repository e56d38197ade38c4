//! Finds the trainer and libtorch.
//!
//! - LAUNCHER-1: what the user names is taken or refused, never passed over: a `LIBTORCH` without libraries is
//!   an error. What is merely found (an environment's torch, a cache) counts where its version fits.
//! - LAUNCHER-2: nothing of the current directory is loaded, which may be someone else's repository, nor a library
//!   found where another user can write.

use crate::LaunchError;
use rankdeck_proto::{folders, libtorch, trust};
use std::path::{Path, PathBuf};

/// Where libtorch may be.
#[derive(Debug, Default)]
pub struct Surroundings {
    /// `LIBTORCH`.
    pub named: Option<PathBuf>,
    /// Directories of `LD_LIBRARY_PATH`.
    pub library_path: Vec<PathBuf>,
    /// Directories that may have a `.libtorch/torch`: those above the program.
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
        let executable = folders::executable();
        let entries = |cache: PathBuf| std::fs::read_dir(cache.join(folders::LIBTORCH));
        Surroundings {
            named: given("LIBTORCH").map(PathBuf::from),
            library_path: given("LD_LIBRARY_PATH")
                .map(|paths| std::env::split_paths(&paths).collect())
                .unwrap_or_default(),
            above: executable.iter().flat_map(|path| path.ancestors().skip(1)).map(Path::to_owned).collect(),
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
        let mut open = Vec::new();
        let mut own = |folder: &PathBuf| {
            let reason = trust::distrust(&folder.join("lib/libtorch_cpu.so"));
            open.extend(reason.map(|reason| (folder.clone(), reason)));
            open.last().is_none_or(|(last, _)| last != folder)
        };
        let there = |folder: &PathBuf| libtorch::is_libtorch(folder);
        let above: Vec<PathBuf> = above.filter(there).filter(&mut own).collect();
        let pushed: Vec<PathBuf> =
            self.pushed.iter().filter(|folder| there(folder) && own(folder)).cloned().collect();
        let environments = self.environments.iter().filter(|folder| there(folder)).cloned();
        let (fitting, others): (Vec<PathBuf>, Vec<PathBuf>) =
            above.into_iter().chain(environments).chain(pushed).partition(|folder| libtorch::fits(folder));
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
            (None, None) => Err(match open.into_iter().next() {
                Some((folder, reason)) => LaunchError::usage(
                    format!("libtorch in {} is not trusted: {}", folder.display(), reason.error),
                    "run `chmod -R go-w` on it if it is yours, or set LIBTORCH to another one",
                ),
                None => LaunchError::usage("libtorch not found", hint()),
            }),
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
    fn launcher_2_libraries_of_others_are_not_loaded() {
        use std::os::unix::fs::PermissionsExt;
        let current = std::env::current_dir().unwrap();
        assert!(!Surroundings::here().above.contains(&current), "a test runs in its crate's directory");
        let home = tempfile::tempdir().unwrap();
        let (open, own) = (home.path().join("open"), home.path().join("own"));
        let (theirs, ours) =
            (torch(&open.join(".libtorch/torch"), "2.11.0"), torch(&own.join(".libtorch/torch"), "2.11.0"));
        std::fs::set_permissions(open.join(".libtorch"), PermissionsExt::from_mode(0o777)).unwrap();
        let above = vec![open.clone(), own];
        assert_eq!(Surroundings { above, ..Surroundings::default() }.libraries().unwrap(), ours.join("lib"));
        for found in [
            Surroundings { above: vec![open], ..Surroundings::default() },
            Surroundings { pushed: vec![theirs], ..Surroundings::default() },
        ] {
            let refused = found.libraries().unwrap_err();
            assert!(refused.usage && refused.hinted.error.contains(".libtorch"), "{refused:?}");
        }
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
