//! Recordings on this machine, found by name, prefix or path.

pub(crate) use crate::app::record::reader::{RecordedRun, list};
use crate::app::record::reader::{Recording, record_of};
use crate::cli::support::run_id::RUNS;
use crate::cli::support::{Failure, prompt};
use std::path::Path;

/// Most candidates that are listed.
const LISTED: usize = 20;

/// Finds a recording; without a name, the only one.
pub(crate) fn find(what: Option<&str>) -> Result<RecordedRun, Failure> {
    if let Some(path) = what.map(Path::new)
        && let Some((record, written)) = record_of(path)
    {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        return Ok(RecordedRun { name, record, written, path: Some(path.to_owned()) });
    }
    let all = list(Path::new(RUNS));
    let candidates = candidates(&all, what);
    if candidates.len() > 1 && prompt::can_select() {
        let items: Vec<String> = candidates.iter().map(|recorded| recorded.line()).collect();
        let picked = prompt::select("Select a recording", &items).map_err(Failure::terminal)?;
        return picked
            .and_then(|index| candidates.get(index))
            .map(|recorded| (*recorded).clone())
            .ok_or_else(Failure::nothing_picked);
    }
    choose(&all, what)
}

/// Returns the matching recordings; one for a full name.
fn candidates<'a>(all: &'a [RecordedRun], what: Option<&str>) -> Vec<&'a RecordedRun> {
    match all.iter().find(|recorded| Some(recorded.name.as_str()) == what) {
        Some(exact) => vec![exact],
        None => {
            all.iter().filter(|recorded| what.is_none_or(|start| recorded.name.starts_with(start))).collect()
        }
    }
}

fn choose(all: &[RecordedRun], what: Option<&str>) -> Result<RecordedRun, Failure> {
    match (candidates(all, what).as_slice(), what) {
        ([only], _) => Ok((*only).clone()),
        ([], Some(name)) => Err(Failure::usage(format!("no recording of `{name}` found"))
            .hint(format!("pass a run recorded in {RUNS}/ of this directory, or a path"))),
        ([], None) => Err(Failure::usage(format!("no recordings in {RUNS}/ of this directory"))
            .hint("`rankdeck run` records runs; to replay one from elsewhere, use `rankdeck replay PATH`")),
        (many, _) => {
            let failure = Failure::usage("the name is ambiguous").hint("pass the name of the run");
            Err(many
                .iter()
                .take(LISTED)
                .fold(failure, |failure, recorded| failure.detail(&format!("  {}", recorded.name))))
        }
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
    fn recording_is_found_by_unique_prefix() {
        let (_folder, all) = runs(&["cart-1", "cart-2", "pong-1"]);
        assert_eq!(all.len(), 3);
        assert_eq!(choose(&all, Some("pong")).unwrap().name, "pong-1");
        assert_eq!(choose(&all, Some("cart-1")).unwrap().name, "cart-1");
        let failure = choose(&all, Some("cart")).unwrap_err().to_string();
        assert!(failure.contains("cart-1") && failure.contains("cart-2"), "{failure}");
        assert!(choose(&all, None).unwrap_err().to_string().contains("the name is ambiguous"));
        assert_eq!(choose(&all, Some("other")).unwrap_err().code, 2);
        assert_eq!(choose(&[], None).unwrap_err().code, 2);
    }
}
