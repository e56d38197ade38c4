//! Directories that the console and the agent locate in the same way: home, cache, and that of the running
//! executable.

use crate::trust;
use rankdeck_types::error::{HintedError, write_hint};
use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Directory below a cache for the libraries of `rankdeck push --libtorch`, each in a directory named by its
/// content.
pub const LIBTORCH: &str = "libtorch";

/// Returns the home directory, `/` if there is none.
pub fn home() -> PathBuf {
    std::env::home_dir().filter(|home| home.is_absolute()).unwrap_or_else(|| PathBuf::from("/"))
}

/// Creates a directory and its parents, readable by the owner only.
pub fn create_private(path: &Path) -> Result<(), HintedError> {
    create(path, "change `workdir` in hosts.toml")
}

/// Mode of a directory of runs that colleagues share: none of them can remove another one's run.
const SHARED_RUNS: u32 = 0o3770;

/// Creates the directory of all runs, private unless it is in a project folder of a group (mode 2775).
///
/// # Errors
/// A system error.
pub fn create_runs(runs: &Path) -> Result<(), HintedError> {
    create_runs_in(runs, &trust::own_groups())
}

fn create_runs_in(runs: &Path, groups: &[u32]) -> Result<(), HintedError> {
    if runs.exists() {
        return Ok(());
    }
    create_private(runs)?;
    let above = std::path::absolute(runs).ok().and_then(|runs| runs.parent()?.metadata().ok());
    let group = runs.metadata().ok().map(|data| data.gid());
    if above.is_some_and(|above| trust::is_project(&above, groups) && group == Some(above.gid())) {
        // Without it, colleagues get an error that names the owner.
        let _ = std::fs::set_permissions(runs, Permissions::from_mode(SHARED_RUNS));
    }
    Ok(())
}

fn create(path: &Path, or: &str) -> Result<(), HintedError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| {
        let error = error.to_string();
        let hint = format!("{}, or {or}", write_hint(&error));
        HintedError::new(format!("cannot create {}: {error}", path.display()), hint)
    })
}

/// Returns the directory of all files that outlive a run: `$RANKDECK_CACHE`, else `~/.cache/rankdeck`.
pub fn cache() -> PathBuf {
    std::env::var_os("RANKDECK_CACHE")
        .filter(|value| !value.is_empty())
        .map_or_else(|| home().join(".cache/rankdeck"), PathBuf::from)
}

/// Creates a directory of the cache in which no other user can change or replace a file (TRUST-1).
///
/// # Errors
/// The reason.
pub fn private_cache(name: &str) -> Result<PathBuf, HintedError> {
    private_in(&cache(), name)
}

fn private_in(cache: &Path, name: &str) -> Result<PathBuf, HintedError> {
    let folder = cache.join(name);
    let refuse = |why: HintedError| {
        let error = format!("the cache cannot be trusted: {}", why.error);
        HintedError::new(error, format!("{}, or {OTHER_CACHE}", why.hint))
    };
    // Nothing is created where others could replace it. The second check is about what has appeared meanwhile.
    trust::check_place(&folder).map_err(refuse)?;
    create(&folder, OTHER_CACHE)?;
    trust::distrust(&folder).map_or(Ok(folder), |why| Err(refuse(why)))
}

const OTHER_CACHE: &str = "set RANKDECK_CACHE to another directory";

/// Returns every possible cache: that of the environment, and that which the running executable was deployed
/// into.
pub fn caches() -> Vec<PathBuf> {
    let around = executable().and_then(|path| Some(path.parent()?.parent()?.to_owned()));
    std::iter::once(cache()).chain(around).collect()
}

/// Returns the path of the running executable, even if its file was replaced.
pub fn executable() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?;
    let text = path.to_str()?;
    Some(text.strip_suffix(" (deleted)").map_or(path.clone(), PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};

    #[test]
    fn trust_1_cache_that_others_can_write_is_rejected() {
        let base = tempfile::tempdir().unwrap();
        let (cache, own) = (base.path().join("cache"), base.path().join("own"));
        [&cache, &own].into_iter().for_each(|folder| create_private(folder).unwrap());
        assert_eq!(private_in(&cache, "names").unwrap(), cache.join("names"));
        symlink(&own, cache.join("packs")).unwrap();
        assert!(private_in(&cache, "packs").is_ok());
        std::fs::set_permissions(&cache, PermissionsExt::from_mode(0o777)).unwrap();
        for name in ["names", "packs"] {
            let refused = private_in(&cache, name).unwrap_err();
            assert!(refused.error.contains(&cache.display().to_string()), "{refused:?}");
            assert!(refused.hint.contains("RANKDECK_CACHE"), "{refused:?}");
        }
        assert!(
            private_in(&cache, "traces").is_err() && !cache.join("traces").exists(),
            "nothing is created"
        );
        let deep = cache.join("a/b");
        assert!(private_in(&deep, "traces").is_err() && !cache.join("a").exists());
    }

    #[test]
    fn trust_1_runs_in_a_project_folder_are_shared() {
        if trust::own_uid() != 0 {
            return rankdeck_testkit::skipped("only root can give files to other groups");
        }
        let base = tempfile::tempdir().unwrap();
        let made = |name: &str, mode: u32, groups: &[u32]| {
            let project = base.path().join(name);
            std::fs::create_dir(&project).unwrap();
            chown(&project, None, Some(61_003)).unwrap();
            std::fs::set_permissions(&project, PermissionsExt::from_mode(mode)).unwrap();
            create_runs_in(&project.join("runs"), groups).unwrap();
            project.join("runs").metadata().unwrap().mode() & 0o1777
        };
        assert_eq!(made("project", 0o2775, &[61_003]), SHARED_RUNS & 0o1777);
        assert_eq!(made("other", 0o2775, &[]), 0o700);
        assert_eq!(made("own", 0o2755, &[61_003]), 0o700);
        assert_eq!(made("open", 0o2777, &[61_003]), 0o700);
    }

    #[test]
    fn cache_that_cannot_be_created_has_a_hint_of_its_own() {
        let base = tempfile::tempdir().unwrap();
        std::fs::write(base.path().join("file"), "").unwrap();
        let refused = private_in(&base.path().join("file"), "names").unwrap_err();
        assert!(refused.hint.contains("RANKDECK_CACHE") && !refused.hint.contains("workdir"), "{refused:?}");
    }
}
