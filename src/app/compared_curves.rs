//! Reads recorded runs to overlay on the charts, on another thread than the event loop.

use super::record::reader::{self, Recording};
use rankdeck_charts::view::ComparedCurves;
use rankdeck_core::compare::ComparedRun;
use std::path::{Path, PathBuf};
use tokio::task::JoinHandle;

/// Maximum number of suggested names.
const MAX_NAMES: usize = 200;

/// The overlaid runs, or why they cannot be read.
pub type LoadedRuns = Result<Vec<ComparedCurves>, String>;

/// Handles one request at a time; a newer request replaces an older one.
#[derive(Debug, Default)]
pub struct CurveReader {
    reading: Option<JoinHandle<LoadedRuns>>,
}

impl CurveReader {
    /// Starts reading runs of a directory.
    pub fn read(&mut self, runs: PathBuf, names: Vec<String>) {
        if let Some(older) = self.reading.take() {
            older.abort();
        }
        let all = move || names.iter().map(|name| load(&runs, name)).collect();
        self.reading = Some(tokio::task::spawn_blocking(all));
    }

    /// Returns the result. Cancel-safe; pending without a request.
    pub async fn next(&mut self) -> LoadedRuns {
        let Some(reading) = &mut self.reading else { return std::future::pending().await };
        let done = reading.await;
        self.reading = None;
        done.unwrap_or_else(|error| Err(error.to_string()))
    }
}

/// Returns the names of recorded runs in a directory, latest first.
pub fn names(runs: &Path, own: &str) -> Vec<String> {
    let names = reader::list(runs).into_iter().map(|recorded| recorded.name);
    names.filter(|name| name != own).take(MAX_NAMES).collect()
}

/// Loads a run by its name or a prefix; of several, the latest.
fn load(runs: &Path, name: &str) -> Result<ComparedCurves, String> {
    let all = reader::list(runs);
    let exact = all.iter().find(|recorded| recorded.name == name);
    let recorded = exact.or_else(|| all.iter().find(|recorded| recorded.name.starts_with(name)));
    let recorded = recorded.ok_or_else(|| format!("no recording of `{name}` in {}", runs.display()))?;
    let read = Recording::open(&recorded.record).and_then(|record| record.last());
    let (model, at) = read.map_err(|error| format!("{}: {error}", recorded.name))?;
    Ok(ComparedCurves::new(ComparedRun::from_model(&recorded.name, &model, at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn run_without_recording_is_an_error_naming_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut curves = CurveReader::default();
        curves.read(folder.path().to_owned(), vec!["older".into()]);
        curves.read(folder.path().to_owned(), vec!["cart".into()]);
        assert!(curves.next().await.unwrap_err().contains("`cart`"));
        assert!(curves.reading.is_none());
        std::fs::create_dir_all(folder.path().join("cart-1/console/record")).unwrap();
        std::fs::write(folder.path().join("cart-1/console/record/000001.seg"), "").unwrap();
        assert_eq!(names(folder.path(), "other"), ["cart-1"]);
        assert!(names(folder.path(), "cart-1").is_empty());
        curves.read(folder.path().to_owned(), vec!["cart".into()]);
        assert!(curves.next().await.unwrap_err().contains("cart-1"), "its recording is empty");
    }
}
