//! Files that rankdeck has copied to this host: whatever run looks at them later, they are copies.
//!
//! One list per host in `runs/.copies/` of its `workdir`, one line per copy; hosts that share the `workdir` read each
//! other's lists. A copy that was changed since no longer counts as one.
//!
//! Owner: the threads that place a checkpoint or prepare a launch. Invariants:
//! - COPIES-1: a copy is known to every run of the `workdir`, not only to the one that made it.
//! - COPIES-2: a list is bounded; entries of files that are gone or changed make room first.

use crate::paths;
use crate::proc;
use rankdeck_proto::folders::create_private;
use rankdeck_proto::trust;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Most bytes of a list, and from which size on it is made shorter.
const LIST_BYTES: u64 = 32 << 20;
const LONG: u64 = LIST_BYTES / 2;
/// Most entries that a shortened list keeps, the newest.
const KEPT: usize = 40_000;
/// Most lists that are read.
const HOSTS: usize = 1024;

/// The same on two hosts if they share the disk, and another one after every change.
pub(crate) fn identity(data: &Metadata) -> String {
    format!("{}:{}:{}.{:09}", data.ino(), data.len(), data.ctime(), data.ctime_nsec())
}

/// A copy that rankdeck made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct CopiedFile {
    path: PathBuf,
    /// As it was when it was made.
    identity: String,
    /// The run that it was made for.
    run: String,
}

impl CopiedFile {
    fn is_unchanged(&self) -> bool {
        std::fs::symlink_metadata(&self.path).is_ok_and(|data| identity(&data) == self.identity)
    }
}

/// The copies in a `workdir`, by path.
#[derive(Debug, Default)]
pub(crate) struct CopiedFiles(BTreeMap<PathBuf, Vec<CopiedFile>>);

impl CopiedFiles {
    /// Reads the lists of all hosts that use the `workdir` (COPIES-1).
    pub fn read(workdir: &Path) -> CopiedFiles {
        let mut all = CopiedFiles::default();
        let lists = std::fs::read_dir(folder(workdir)).into_iter().flatten().flatten();
        let is_list = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "jsonl");
        for list in lists.map(|entry| entry.path()).filter(is_list).take(HOSTS) {
            for copy in lines(&list) {
                all.0.entry(copy.path.clone()).or_default().push(copy);
            }
        }
        all
    }

    /// Whether a file with this identity is an unchanged copy.
    pub fn has(&self, path: &Path, identity: &str) -> bool {
        self.0.get(path).is_some_and(|copies| copies.iter().any(|copy| copy.identity == identity))
    }
}

fn folder(workdir: &Path) -> PathBuf {
    paths::runs(workdir).join(".copies")
}

/// The list of this host.
fn list(workdir: &Path) -> PathBuf {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let host: String = proc::hostname().chars().map(plain).take(120).collect();
    folder(workdir).join(format!("{host}.jsonl"))
}

fn lines(list: &Path) -> Vec<CopiedFile> {
    let bytes = trust::read(list, LIST_BYTES).unwrap_or_default();
    let lines = bytes.split(|byte| *byte == b'\n');
    lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

/// Holds off other agents of this host while a list changes. Some file systems have no locks.
fn lock(workdir: &Path) -> io::Result<File> {
    create_private(&folder(workdir)).map_err(|failure| io::Error::other(failure.error))?;
    let path = list(workdir).with_extension("lock");
    let file = trust::open(&path, OpenOptions::new().read(true).write(true).create(true).truncate(false))?;
    let _ = file.lock();
    Ok(file)
}

/// Notes a copy that was made for a run.
///
/// # Errors
/// The list cannot be written.
pub(crate) fn add(workdir: &Path, run_dir: &Path, path: &Path) -> io::Result<()> {
    let run = run_name(run_dir);
    let copy =
        CopiedFile { path: path.to_owned(), identity: identity(&std::fs::symlink_metadata(path)?), run };
    let _lock = lock(workdir)?;
    let path = list(workdir);
    let mut line = serde_json::to_vec(&copy)?;
    line.push(b'\n');
    let mut file = trust::open(&path, OpenOptions::new().append(true).create(true))?;
    file.write_all(&line)?;
    // COPIES-2.
    if file.metadata()?.len() > LONG {
        let mut kept: Vec<CopiedFile> = lines(&path).into_iter().filter(CopiedFile::is_unchanged).collect();
        let surplus = kept.len().saturating_sub(KEPT);
        kept.drain(..surplus);
        replace(&path, &kept)?;
    }
    Ok(())
}

/// Removes the unchanged copies of a run on this host that are not to stay, and their entries.
pub(crate) fn remove(workdir: &Path, run_dir: &Path, stays: impl Fn(&Path) -> bool) -> io::Result<()> {
    let (run, path) = (run_name(run_dir), list(workdir));
    if !path.exists() {
        return Ok(());
    }
    let _lock = lock(workdir)?;
    let (gone, kept): (Vec<CopiedFile>, Vec<CopiedFile>) =
        lines(&path).into_iter().partition(|copy| copy.run == run && !stays(&copy.path));
    if gone.is_empty() {
        return Ok(());
    }
    for copy in gone.iter().filter(|copy| copy.is_unchanged()) {
        let _ = std::fs::remove_file(&copy.path);
    }
    replace(&path, &kept)
}

fn run_name(run_dir: &Path) -> String {
    run_dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn replace(path: &Path, copies: &[CopiedFile]) -> io::Result<()> {
    let mut bytes = Vec::new();
    for copy in copies {
        serde_json::to_writer(&mut bytes, copy)?;
        bytes.push(b'\n');
    }
    // The lock is this host's: so is the name.
    let temporary = path.with_extension("new");
    let written = trust::create(&temporary)
        .and_then(|mut file| file.write_all(&bytes))
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};

    #[test]
    fn copies_1_list_is_that_of_all_runs_of_the_workdir() {
        let folder = tempfile::tempdir().unwrap();
        let (workdir, path) = (folder.path(), folder.path().join("ck.pt"));
        create_dir_all(paths::runs(workdir)).unwrap();
        write(&path, "1").unwrap();
        let is_copy = || {
            let identity = identity(&std::fs::symlink_metadata(&path).unwrap());
            CopiedFiles::read(workdir).has(&path, &identity)
        };
        assert!(!is_copy());
        add(workdir, &workdir.join("runs/a"), &path).unwrap();
        assert!(is_copy(), "whoever asks");
        // A host that shares the disk has a list of its own.
        std::fs::rename(list(workdir), list(workdir).with_file_name("other.jsonl")).unwrap();
        assert!(is_copy());
        std::fs::rename(list(workdir).with_file_name("other.jsonl"), list(workdir)).unwrap();
        remove(workdir, &workdir.join("runs/b"), |_| false).unwrap();
        assert!(path.exists(), "it is not that run's");
        write(&path, "of a rank").unwrap();
        assert!(!is_copy());
        remove(workdir, &workdir.join("runs/a"), |_| false).unwrap();
        assert!(path.exists(), "it was changed");
    }

    #[test]
    fn copies_2_list_keeps_only_copies_that_stand() {
        let folder = tempfile::tempdir().unwrap();
        let (workdir, path) = (folder.path(), folder.path().join("ck.pt"));
        create_dir_all(self::folder(workdir)).unwrap();
        let gone = CopiedFile { path: "/none/ck.pt".into(), identity: "x".repeat(4000), run: "a".into() };
        replace(&list(workdir), &vec![gone; (LONG / 4000) as usize + 1]).unwrap();
        write(&path, "1").unwrap();
        add(workdir, &workdir.join("runs/a"), &path).unwrap();
        assert_eq!(lines(&list(workdir)).len(), 1);
    }
}
