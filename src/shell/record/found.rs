//! Runs of which a record lies in a folder of runs.

use super::RECORD;
use rankdeck_types::quote;
use rankdeck_types::words::duration;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A run with at least one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastRun {
    pub name: String,
    /// Folder of the segments that reach furthest.
    pub record: PathBuf,
    /// When that was last written.
    pub written: SystemTime,
    /// What it was found by, where that is a path.
    pub path: Option<PathBuf>,
}

impl PastRun {
    /// How it is named on a command line.
    pub fn typed(&self) -> String {
        self.path.as_ref().map_or_else(|| self.name.clone(), |path| quote::word(&path.to_string_lossy()))
    }

    /// For a list: its name, and how long ago it was written.
    pub fn line(&self) -> String {
        let ago = self.written.elapsed().unwrap_or_default().as_secs_f64();
        format!("{}  {} ago", self.name, duration(ago))
    }
}

/// The record of a folder that is a record, a console's folder or a run's; of several consoles, the one that
/// was written last.
pub fn record_of(folder: &Path) -> Option<(PathBuf, SystemTime)> {
    let consoles = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path().join(RECORD));
    let candidates = [folder.to_owned(), folder.join(RECORD)].into_iter().chain(consoles);
    let dated = candidates.filter_map(|record| Some((newest_segment(&record)?, record)));
    dated.max().map(|(written, record)| (record, written))
}

fn newest_segment(folder: &Path) -> Option<SystemTime> {
    let files = std::fs::read_dir(folder).ok()?.flatten();
    let segments = files.filter(|file| file.path().extension().is_some_and(|end| end == "seg"));
    segments.filter_map(|file| file.metadata().ok()?.modified().ok()).max()
}

/// Runs with a record in `runs`, the latest first.
pub fn list(runs: &Path) -> Vec<PastRun> {
    let entries = std::fs::read_dir(runs).into_iter().flatten().flatten();
    let mut found: Vec<PastRun> = entries
        .filter_map(|entry| {
            let (record, written) = record_of(&entry.path())?;
            Some(PastRun { name: entry.file_name().into_string().ok()?, record, written, path: None })
        })
        .collect();
    found.sort_by(|a, b| b.written.cmp(&a.written).then_with(|| a.name.cmp(&b.name)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_named_as_it_was_found() {
        let past = |path: Option<&str>| PastRun {
            name: "cart-1".into(),
            record: PathBuf::new(),
            written: SystemTime::UNIX_EPOCH,
            path: path.map(PathBuf::from),
        };
        assert_eq!(past(None).typed(), "cart-1");
        assert_eq!(past(Some("/tmp/runs/cart-1")).typed(), "/tmp/runs/cart-1");
        assert_eq!(past(Some("my runs/cart-1")).typed(), "'my runs/cart-1'");
    }

    #[test]
    fn of_several_consoles_the_one_that_was_written_last_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let first = folder.path().join("cart-1/console").join(RECORD);
        std::fs::create_dir_all(&first).unwrap();
        std::fs::write(first.join("000001.seg"), "").unwrap();
        let later = folder.path().join("cart-1/console-2").join(RECORD);
        std::fs::create_dir_all(&later).unwrap();
        let segment = std::fs::File::create(later.join("000001.seg")).unwrap();
        segment.set_modified(SystemTime::now() + std::time::Duration::from_secs(60)).unwrap();
        assert_eq!(list(folder.path())[0].record, later);
        for path in ["cart-1", "cart-1/console-2", "cart-1/console-2/record"] {
            assert_eq!(record_of(&folder.path().join(path)).unwrap().0, later, "{path}");
        }
    }
}
