//! Folders that the console and the agent find alike: home, cache, and the place of the running executable.

use rankdeck_types::error::HintedError;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Folder below a cache in which `rankdeck push --libtorch` puts libraries, each in a folder named by its
/// content.
pub const LIBTORCH: &str = "libtorch";

/// The home folder, `/` when there is none.
pub fn home() -> PathBuf {
    std::env::home_dir().filter(|home| home.is_absolute()).unwrap_or_else(|| PathBuf::from("/"))
}

/// Creates a folder and its parents, readable by the owner only.
pub fn create_private(path: &Path) -> Result<(), HintedError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| {
        HintedError::new(
            format!("cannot create {}: {error}", path.display()),
            "check `workdir` in hosts.toml and the free space",
        )
    })
}

/// Folder of everything that is kept between runs: `$RANKDECK_CACHE`, else `~/.cache/rankdeck`.
pub fn cache() -> PathBuf {
    std::env::var_os("RANKDECK_CACHE")
        .filter(|value| !value.is_empty())
        .map_or_else(|| home().join(".cache/rankdeck"), PathBuf::from)
}

/// Every place that may be the cache: as the environment says, and around the running executable, which was
/// deployed into one.
pub fn caches() -> Vec<PathBuf> {
    let around = executable().and_then(|path| Some(path.parent()?.parent()?.to_owned()));
    std::iter::once(cache()).chain(around).collect()
}

/// The running executable, also when its file was replaced meanwhile.
pub fn executable() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?;
    let text = path.to_str()?;
    Some(text.strip_suffix(" (deleted)").map_or(path.clone(), PathBuf::from))
}
