//! Which files a run's processes hold open for writing in the directory that they work in, and when ranks last lived.
//!
//! Other runs may work in the same directory, then or later. What a rank was seen to write is its run's; the time of
//! the file is the last evidence of life of a run whose agent was killed.
//!
//! Owner: the thread that looks at descriptors writes the file; whoever lists results reads it. Invariants:
//! - WRITERS-1: at most [`FILES`] files are remembered, by device and inode: a rename changes nothing.

use crate::paths::RunPaths;
use crate::results;
use rankdeck_proto::trust;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Most files.
const FILES: usize = 4096;
/// Most bytes of the list: as many pairs of numbers.
const MOST_BYTES: u64 = 1 << 20;

/// A file on this machine: its device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct FileId(u64, u64);

impl FileId {
    pub fn of(data: &Metadata) -> FileId {
        FileId(data.dev(), data.ino())
    }
}

/// The files that processes of a run were seen to write; empty without a list.
pub(crate) fn read(paths: &RunPaths) -> BTreeSet<FileId> {
    let bytes = trust::read(&paths.writers(), MOST_BYTES).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// When ranks of a run last lived, as far as the list shows.
pub(crate) fn last_seen(paths: &RunPaths) -> Option<SystemTime> {
    std::fs::symlink_metadata(paths.writers()).ok()?.modified().ok()
}

/// What the ranks of the present generation write.
#[derive(Debug)]
pub(crate) struct WriterLog {
    paths: RunPaths,
    /// The directory that they work in; once the list is loaded, without links.
    folder: PathBuf,
    files: BTreeSet<FileId>,
    /// The list of earlier generations was read.
    is_loaded: bool,
    /// The list on disk lacks some files.
    has_new: bool,
}

impl WriterLog {
    /// Continues the list of earlier generations; reads nothing yet.
    pub fn new(paths: &RunPaths, folder: &Path) -> WriterLog {
        let (paths, folder) = (paths.clone(), folder.to_owned());
        WriterLog { paths, folder, files: BTreeSet::new(), is_loaded: false, has_new: false }
    }

    /// The directory that the ranks work in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Adds files that are open for writing now.
    pub fn add(&mut self, files: impl IntoIterator<Item = FileId>) {
        for file in files {
            self.has_new |= self.files.len() < FILES && self.files.insert(file);
        }
    }

    /// Ranks live. Without the list, less is attributed, so a failure to write it is not reported.
    pub fn beat(&mut self) {
        if !self.is_loaded {
            self.is_loaded = true;
            self.files.extend(read(&self.paths));
            self.folder = self.folder.canonicalize().unwrap_or_else(|_| self.folder.clone());
        }
        let path = self.paths.writers();
        let touched = || File::options().write(true).open(&path)?.set_modified(SystemTime::now());
        if self.has_new || touched().is_err() {
            self.has_new = results::write(&path, &self.files).is_err();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::ids::NodeRank;
    use std::time::Duration;

    #[test]
    fn writers_1_files_are_known_after_a_rename_and_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let paths = RunPaths { run_dir: at("runs/r"), node: NodeRank(0) };
        std::fs::create_dir_all(paths.node_dir()).unwrap();
        assert_eq!((read(&paths).len(), last_seen(&paths)), (0, None));
        std::fs::write(at("a.pt.tmp"), "1").unwrap();
        let id = |name: &str| FileId::of(&std::fs::symlink_metadata(at(name)).unwrap());
        let mut log = WriterLog::new(&paths, folder.path());
        log.add([id("a.pt.tmp")]);
        log.beat();
        std::fs::rename(at("a.pt.tmp"), at("a.pt")).unwrap();
        assert!(read(&paths).contains(&id("a.pt")));
        let old = SystemTime::now() - Duration::from_secs(100);
        File::options().write(true).open(paths.writers()).unwrap().set_modified(old).unwrap();
        let mut later = WriterLog::new(&paths, folder.path());
        assert!(
            last_seen(&paths).unwrap() < SystemTime::now() - Duration::from_secs(50),
            "no rank lives yet"
        );
        later.beat();
        assert!(last_seen(&paths).unwrap() > SystemTime::now() - Duration::from_secs(50));
        assert!(read(&paths).contains(&id("a.pt")));
        later.add((0..2 * FILES as u64).map(|inode| FileId(1, inode)));
        later.beat();
        assert_eq!(read(&paths).len(), FILES);
    }
}
