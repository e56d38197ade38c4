//! A file that a command writes: checked before the work, written when the work is done.
//!
//! Invariants:
//! - FILE-1: a name that the user did not type is one that no file has.

use super::Failure;
use crate::app::replace_file::{check_replaceable, replace_file};
use crate::cli::args::PrintArgs;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Mode of a new file.
const NEW: u32 = 0o666;

/// The target of an option such as `--output`.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
}

impl OutputFile {
    /// Checks that the file can be written; changes nothing.
    ///
    /// # Errors
    /// Its directory is missing or not writable, or it is a directory.
    pub(crate) fn new(path: &Path) -> Result<OutputFile, Failure> {
        let checked = if is_stream(path) { Ok(()) } else { check_replaceable(path, NEW) };
        checked.map_err(|error| refused(path, &error))?;
        Ok(OutputFile { path: path.to_owned() })
    }

    /// The same, for a file that replaces another one only with `--force`.
    ///
    /// # Errors
    /// As for [`OutputFile::new`], and if the file exists.
    pub(crate) fn unless_present(path: &Path, force: bool) -> Result<OutputFile, Failure> {
        match path.exists() && !force && !is_stream(path) {
            true => Err(Failure::usage(format!("{} already exists", path.display()))
                .hint("choose another name, or pass --force")),
            false => OutputFile::new(path),
        }
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the file: a reader sees the old content or the new one. A link is replaced, not its target.
    ///
    /// # Errors
    /// A system error.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        let written = match is_stream(&self.path) {
            true => {
                OpenOptions::new().write(true).open(&self.path).and_then(|mut file| file.write_all(bytes))
            }
            false => {
                let old = std::fs::symlink_metadata(&self.path).ok().filter(std::fs::Metadata::is_file);
                let mode = old.map_or(NEW, |old| old.permissions().mode() & 0o777);
                replace_file(&self.path, bytes, mode)
            }
        };
        written.map_err(|error| refused(&self.path, &error))
    }

    /// Writes the file and reports it.
    ///
    /// # Errors
    /// As for [`OutputFile::write`].
    pub(crate) fn report(&self, bytes: &[u8], output: PrintArgs) -> Result<(), Failure> {
        self.write(bytes)?;
        output.progress(&format!("written: {}", self.path.display()));
        Ok(())
    }
}

/// Returns `STEM.ENDING` for each ending, or `STEM-2.ENDING`, `STEM-3.ENDING`, ...: the first names of which no
/// file of the directory has one (FILE-1).
pub(crate) fn free_names(folder: &Path, stem: &str, endings: &[&str]) -> Vec<String> {
    let names = |stem: &str| endings.iter().map(|ending| format!("{stem}.{ending}")).collect::<Vec<_>>();
    let is_free = |name: &String| folder.join(name).symlink_metadata().is_err();
    let mut free = names(stem);
    for n in 2_u32.. {
        if free.iter().all(is_free) {
            break;
        }
        free = names(&format!("{stem}-{n}"));
    }
    free
}

fn refused(path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!("failed to write {}: {error}", path.display()))
        .hint("choose a file in a writable directory")
}

/// Whether bytes go elsewhere: a device, a pipe, `/dev/stdout`.
fn is_stream(path: &Path) -> bool {
    path.starts_with("/dev")
        || path.starts_with("/proc")
        || std::fs::metadata(path).is_ok_and(|data| !data.is_file() && !data.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn file_1_free_names_share_a_number() {
        let folder = tempfile::tempdir().unwrap();
        let free = || free_names(folder.path(), "compared", &["svg", "csv"]);
        assert_eq!(free(), ["compared.svg", "compared.csv"]);
        fs::write(folder.path().join("compared.csv"), "").unwrap();
        symlink("/nowhere", folder.path().join("compared-2.svg")).unwrap();
        assert_eq!(free(), ["compared-3.svg", "compared-3.csv"]);
    }

    #[test]
    fn output_file_is_unchanged_until_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("old.html"), "old").unwrap();
        fs::set_permissions(at("old.html"), fs::Permissions::from_mode(0o600)).unwrap();
        symlink(at("old.html"), at("link.html")).unwrap();
        symlink("/dev/null", at("null")).unwrap();
        let outputs = ["old.html", "new.html", "link.html", "null"].map(|name| OutputFile::new(&at(name)));
        assert!(!at("new.html").exists());
        assert_eq!(fs::read_to_string(at("old.html")).unwrap(), "old");
        for output in outputs {
            output.unwrap().write(b"new").unwrap();
        }
        for name in ["old.html", "new.html", "link.html"] {
            assert_eq!(fs::read_to_string(at(name)).unwrap(), "new");
        }
        assert_eq!(fs::metadata(at("old.html")).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!at("link.html").is_symlink() && at("null").is_symlink());
        assert!(OutputFile::unless_present(&at("new.html"), false).is_err());
        assert!(OutputFile::unless_present(&at("new.html"), true).is_ok());
        assert!(OutputFile::new(&at("none/x.html")).is_err() && OutputFile::new(folder.path()).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4, "no temporary file is left");
    }
}
