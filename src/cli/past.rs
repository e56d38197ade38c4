//! Runs of which a record lies here: found by name, by the beginning of a name, or by path.

use super::run_id::RUNS;
use super::{Failure, pick};
use crate::shell::record::found::record_of;
pub use crate::shell::record::found::{PastRun, list};
use crate::shell::record::reader::Record;
use std::path::Path;

/// Most candidates that are listed.
const LISTED: usize = 20;

/// The record that is meant; of `None`, the only one.
pub fn find(what: Option<&str>) -> Result<PastRun, Failure> {
    if let Some(path) = what.map(Path::new)
        && let Some((record, written)) = record_of(path)
    {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        return Ok(PastRun { name, record, written, path: Some(path.to_owned()) });
    }
    let all = list(Path::new(RUNS));
    let candidates = candidates(&all, what);
    if candidates.len() > 1 && pick::can_pick() {
        let items: Vec<String> = candidates.iter().map(|past| past.line()).collect();
        let picked = pick::one("which record?", &items).map_err(Failure::terminal)?;
        return picked
            .and_then(|index| candidates.get(index))
            .map(|past| (*past).clone())
            .ok_or_else(Failure::nothing_picked);
    }
    choose(&all, what)
}

/// The runs that may be meant; one, when its whole name was given.
fn candidates<'a>(all: &'a [PastRun], what: Option<&str>) -> Vec<&'a PastRun> {
    match all.iter().find(|past| Some(past.name.as_str()) == what) {
        Some(exact) => vec![exact],
        None => all.iter().filter(|past| what.is_none_or(|start| past.name.starts_with(start))).collect(),
    }
}

fn choose(all: &[PastRun], what: Option<&str>) -> Result<PastRun, Failure> {
    match (candidates(all, what).as_slice(), what) {
        ([only], _) => Ok((*only).clone()),
        ([], Some(name)) => Err(Failure::usage(format!("there is no record of `{name}` here"))
            .hint(format!("give a run whose console recorded into {RUNS}/ in this folder, or a path to it"))),
        ([], None) => Err(Failure::usage(format!("no run is recorded in {RUNS}/ of this folder"))
            .hint("`rankdeck run` records what it shows; `rankdeck replay PATH` takes a run elsewhere")),
        (many, _) => {
            let failure = Failure::usage("which one?").hint("give the run's name");
            Err(many
                .iter()
                .take(LISTED)
                .fold(failure, |failure, past| failure.detail(&format!("  {}", past.name))))
        }
    }
}

/// Opens the record of a run.
pub fn open(past: &PastRun) -> Result<Record, Failure> {
    Record::open(&past.record).map_err(|error| {
        Failure::usage(error.to_string()).hint("a record is `console/record/` in a run's folder")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::record::RECORD;

    fn runs(names: &[&str]) -> (tempfile::TempDir, Vec<PastRun>) {
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
    fn a_record_is_found_by_the_beginning_of_its_name_and_never_guessed() {
        let (_folder, all) = runs(&["cart-1", "cart-2", "pong-1"]);
        assert_eq!(all.len(), 3);
        assert_eq!(choose(&all, Some("pong")).unwrap().name, "pong-1");
        assert_eq!(choose(&all, Some("cart-1")).unwrap().name, "cart-1");
        let failure = choose(&all, Some("cart")).unwrap_err().to_string();
        assert!(failure.contains("cart-1") && failure.contains("cart-2"), "{failure}");
        assert!(choose(&all, None).unwrap_err().to_string().contains("which one?"));
        assert_eq!(choose(&all, Some("other")).unwrap_err().code, 2);
        assert_eq!(choose(&[], None).unwrap_err().code, 2);
    }
}
