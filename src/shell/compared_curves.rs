//! Recorded runs over the charts of the run on the screen: read beside the console's loop, which only asks
//! and shows.

use super::record::found;
use super::record::reader::Record;
use rankdeck_core::compare::ComparedRun;
use rankdeck_tui::chart_view::ComparedCurves;
use std::path::{Path, PathBuf};
use tokio::task::JoinHandle;

/// Most names that are offered.
const OFFERED: usize = 200;

/// What was read, or why it was not.
pub type LoadedRuns = Result<Vec<ComparedCurves>, String>;

/// At most one request at a time; a newer one replaces an older one.
#[derive(Debug, Default)]
pub struct CurveReader {
    reading: Option<JoinHandle<LoadedRuns>>,
}

impl CurveReader {
    /// Begins to read runs of a folder.
    pub fn read(&mut self, runs: PathBuf, names: Vec<String>) {
        if let Some(older) = self.reading.take() {
            older.abort();
        }
        let all = move || names.iter().map(|name| load(&runs, name)).collect();
        self.reading = Some(tokio::task::spawn_blocking(all));
    }

    /// What was read. Cancel-safe; never ends while nothing was asked for.
    pub async fn next(&mut self) -> LoadedRuns {
        let Some(reading) = &mut self.reading else { return std::future::pending().await };
        let done = reading.await;
        self.reading = None;
        done.unwrap_or_else(|error| Err(error.to_string()))
    }
}

/// Names of the runs of a folder, the latest first.
pub fn names(runs: &Path, own: &str) -> Vec<String> {
    let names = found::list(runs).into_iter().map(|past| past.name);
    names.filter(|name| name != own).take(OFFERED).collect()
}

/// A run by its name or the beginning of it; of several, the latest.
fn load(runs: &Path, name: &str) -> Result<ComparedCurves, String> {
    let all = found::list(runs);
    let exact = all.iter().find(|past| past.name == name);
    let past = exact.or_else(|| all.iter().find(|past| past.name.starts_with(name)));
    let past = past.ok_or_else(|| format!("no record of `{name}` is in {}", runs.display()))?;
    let read = Record::open(&past.record).and_then(|record| record.last());
    let (model, at) = read.map_err(|error| format!("{}: {error}", past.name))?;
    Ok(ComparedCurves::new(ComparedRun::of(&past.name, &model, at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_run_without_a_record_is_said_and_nothing_else_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let mut curves = CurveReader::default();
        curves.read(folder.path().to_owned(), vec!["older".into()]);
        curves.read(folder.path().to_owned(), vec!["cart".into()]);
        assert!(curves.next().await.unwrap_err().contains("no record of `cart`"));
        assert!(curves.reading.is_none());
        std::fs::create_dir_all(folder.path().join("cart-1/console/record")).unwrap();
        std::fs::write(folder.path().join("cart-1/console/record/000001.seg"), "").unwrap();
        assert_eq!(names(folder.path(), "other"), ["cart-1"]);
        assert!(names(folder.path(), "cart-1").is_empty());
        curves.read(folder.path().to_owned(), vec!["cart".into()]);
        assert!(curves.next().await.unwrap_err().contains("cart-1"), "its record is empty");
    }
}
