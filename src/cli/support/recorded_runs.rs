//! Recordings on this machine, found by name, prefix or path.

pub(crate) use crate::app::record::reader::{RecordedRun, list};
use crate::app::record::reader::{Recording, record_of};
use crate::app::stderr;
use crate::cli::support::run_id::{RUNS, check_readable};
use crate::cli::support::run_name::{self, LAST, NameError, NamedRun, RunAction, SelectedRun};
use crate::cli::support::{Failure, run_id};
use rankdeck_types::words::plural;
use std::path::Path;

/// Finds a recording by path or by name ([`run_name::resolve`]). Prints which one it takes if several match.
pub(crate) fn find(what: &str) -> Result<RecordedRun, Failure> {
    if let Some(recorded) = at_path(what) {
        return Ok(recorded);
    }
    check_readable()?;
    let all = newest_first(list(Path::new(RUNS)));
    let (recorded, of) = choose(&all, what)?;
    if of > 1 {
        stderr::line(&format!("note: using run {} ({of} match)", recorded.name));
    }
    Ok(recorded)
}

/// Returns the names of all recordings that a prefix matches, newest first; a path or a relative name selects
/// one.
pub(crate) fn matching(what: &str) -> Result<Vec<String>, Failure> {
    if at_path(what).is_some() || run_name::is_relative(what) {
        return Ok(vec![what.to_owned()]);
    }
    check_readable()?;
    let all = newest_first(list(Path::new(RUNS)));
    choose(&all, what)?;
    let found = run_name::matches(&named(&all), what);
    Ok(found.into_iter().filter_map(|index| all.get(index)).map(|recorded| recorded.name.clone()).collect())
}

/// Finds the recording at a path.
pub(crate) fn at_path(what: &str) -> Option<RecordedRun> {
    let path = Path::new(what);
    let (record, written) = record_of(path)?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Some(RecordedRun { name, record, written, path: Some(path.to_owned()) })
}

/// Sorts by the launch: another console may have written into the recording of an older run.
fn newest_first(mut all: Vec<RecordedRun>) -> Vec<RecordedRun> {
    all.sort_by_cached_key(|recorded| {
        std::cmp::Reverse(run_id::launch_order(&recorded.name, recorded.written))
    });
    all
}

fn named(all: &[RecordedRun]) -> Vec<NamedRun<'_>> {
    all.iter().map(|recorded| NamedRun { name: &recorded.name, is_active: false }).collect()
}

/// Returns the selected recording, and how many match.
fn choose(all: &[RecordedRun], what: &str) -> Result<(RecordedRun, usize), Failure> {
    match run_name::resolve(&named(all), Some(what), RunAction::Read) {
        Ok(SelectedRun { index, of }) => Ok((all[index].clone(), of)),
        Err(NameError::TooFewRuns(count)) => {
            Err(Failure::usage(format!("`{what}`: only {} of that name", plural(count, "recording")))
                .hint(format!("recordings are in {RUNS}/ of this directory")))
        }
        Err(_) if what != LAST => Err(Failure::usage(format!("no recording of `{what}` found"))
            .hint(format!("pass a run recorded in {RUNS}/ of this directory, or a path"))),
        Err(_) => Err(Failure::usage(format!("no recordings in {RUNS}/ of this directory"))
            .hint("`rankdeck run` records runs; to replay one from elsewhere, use `rankdeck replay PATH`")),
    }
}

/// Opens the recording of a run.
pub(crate) fn open(recorded: &RecordedRun) -> Result<Recording, Failure> {
    Recording::open(&recorded.record).map_err(|error| {
        Failure::usage(error.to_string()).hint("a recording is `console/record/` in a run directory")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::record::RECORD;

    fn runs(names: &[&str]) -> (tempfile::TempDir, Vec<RecordedRun>) {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            let record = folder.path().join(name).join("console").join(RECORD);
            std::fs::create_dir_all(&record).unwrap();
            std::fs::write(record.join("000001.seg"), "").unwrap();
        }
        std::fs::create_dir_all(folder.path().join("other")).unwrap();
        let all = list(folder.path());
        (folder, all)
    }

    #[test]
    fn name_1_recording_is_the_newest_launch_that_matches() {
        let (_folder, all) = runs(&["cart-20260103-000000", "cart-20260101-000000", "pong-20260102-000000"]);
        let all = newest_first(all);
        let chosen = |what: &str| choose(&all, what).map(|(recorded, of)| (recorded.name, of));
        let found = |name: &str, of| -> Result<(String, usize), Failure> { Ok((name.to_owned(), of)) };
        assert_eq!(chosen("@last"), found("cart-20260103-000000", 3));
        assert_eq!(chosen("cart"), found("cart-20260103-000000", 2));
        assert_eq!(chosen("cart~1"), found("cart-20260101-000000", 2));
        assert_eq!(chosen("@last~1"), found("pong-20260102-000000", 3));
        assert_eq!(chosen("cart-20260101-000000"), found("cart-20260101-000000", 1));
        for what in ["other", "cart~2"] {
            assert_eq!(chosen(what).unwrap_err().code, 2, "{what}");
        }
        for what in ["@last", "x"] {
            assert_eq!(choose(&[], what).unwrap_err().code, 2, "{what}");
        }
    }
}
