//! Directories that the console and the agent locate in the same way: home, cache, and that of the running
//! executable.

use rankdeck_types::error::HintedError;
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
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| {
        HintedError::new(
            format!("cannot create {}: {error}", path.display()),
            "check `workdir` in hosts.toml and the free disk space",
        )
    })
}

/// Returns the directory of all files that outlive a run: `$RANKDECK_CACHE`, else `~/.cache/rankdeck`.
pub fn cache() -> PathBuf {
    std::env::var_os("RANKDECK_CACHE")
        .filter(|value| !value.is_empty())
        .map_or_else(|| home().join(".cache/rankdeck"), PathBuf::from)
}

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
