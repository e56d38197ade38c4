//! Replaces files atomically: a reader sees the old text or the new one.

use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::NamedTempFile;

/// Replaces a file, or the link in its place. The temporary file is in the same directory under a random
/// name, never an existing one, and is removed on failure; `mode` as for a new file.
///
/// # Errors
/// The directory is missing, full or read-only.
pub(crate) fn replace_file(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut file = temporary(path, mode)?;
    file.write_all(bytes)?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

/// Whether [`replace_file`] can write there; changes nothing.
///
/// # Errors
/// As for [`replace_file`].
pub(crate) fn check_replaceable(path: &Path, mode: u32) -> io::Result<()> {
    match path.is_dir() {
        true => Err(io::ErrorKind::IsADirectory.into()),
        false => temporary(path, mode).map(drop),
    }
}

fn temporary(path: &Path, mode: u32) -> io::Result<NamedTempFile> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    tempfile::Builder::new()
        .prefix(".rankdeck-")
        .suffix(".tmp")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn replace_file_replaces_a_link_not_its_target() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("keep.txt"), "valuable").unwrap();
        // Names that could be guessed.
        for name in ["run.prom", "run.prom.tmp", ".run.prom.tmp"] {
            symlink(at("keep.txt"), at(name)).unwrap();
        }
        check_replaceable(&at("run.prom"), 0o666).unwrap();
        assert!(at("run.prom").is_symlink(), "a check changes nothing");
        replace_file(&at("run.prom"), b"x 1\n", 0o644).unwrap();
        assert_eq!(fs::read_to_string(at("keep.txt")).unwrap(), "valuable");
        assert_eq!(fs::read_to_string(at("run.prom")).unwrap(), "x 1\n");
        assert!(!at("run.prom").is_symlink());
        assert_eq!(fs::metadata(at("run.prom")).unwrap().permissions().mode() & 0o777, 0o644);
        fs::create_dir(at("folder")).unwrap();
        assert!(replace_file(&at("folder"), b"x", 0o644).is_err());
        assert!(check_replaceable(&at("folder"), 0o644).is_err());
        assert!(check_replaceable(&at("none/run.prom"), 0o644).is_err());
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 5, "no temporary file is left");
    }
}
