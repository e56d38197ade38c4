//! Directories that the console and the agent locate in the same way: home, cache, and that of the running
//! executable.

use crate::trust;
use rankdeck_types::error::{HintedError, write_hint};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
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
    use std::os::unix::fs::{PermissionsExt, symlink};

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
    fn cache_that_cannot_be_created_has_a_hint_of_its_own() {
        let base = tempfile::tempdir().unwrap();
        std::fs::write(base.path().join("file"), "").unwrap();
        let refused = private_in(&base.path().join("file"), "names").unwrap_err();
        assert!(refused.hint.contains("RANKDECK_CACHE") && !refused.hint.contains("workdir"), "{refused:?}");
    }
}
