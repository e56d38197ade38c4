//! Names of runs.

use crate::cli::support::{Failure, run_name};
use rankdeck_proto::{folders, trust};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::RunId;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Directory of runs, also on the console.
pub(crate) const RUNS: &str = "runs";
/// The launch time in the name of a run.
const TIME: &str = "%Y%m%d-%H%M%S";

/// Checks that the runs of this directory can be listed; there may be none.
///
/// Errors: another user owns them, or the file system fails.
pub(crate) fn check_readable() -> Result<(), Failure> {
    match std::fs::read_dir(RUNS) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let owner = trust::described(Path::new(RUNS));
            Err(Failure::failed(format!("cannot read {RUNS}/{owner}: {error}"))
                .hint("run the command in a directory of yours, or ask the owner for access"))
        }
        _ => Ok(()),
    }
}

/// Returns the directory of a run or sweep on this machine, which may not exist (TRUST-1).
///
/// # Errors
/// Other users could change or replace it.
pub(crate) fn own_folder(name: &str) -> Result<PathBuf, HintedError> {
    let folder = Path::new(RUNS).join(name);
    trust::check_run(Path::new(RUNS), &folder).map(|()| folder)
}

/// `NAME-YYYYMMDD-HHMMSS` in local time; `-2`, `-3`, ... follow if the name exists in this directory, so that
/// two consoles started in the same second do not share a run.
pub(crate) fn new_run_id(name: &str) -> RunId {
    free_run_id(&format!("{name}-{}", jiff::Zoned::now().strftime(TIME)), |id| {
        Path::new(RUNS).join(id).exists()
    })
}

/// Returns a name for a launch that no other launch of this user on this machine gets.
pub(crate) fn claimed_run_id(name: &str) -> RunId {
    // Without a directory for claims, names are only as unique as the clock.
    let claims = folders::private_cache("names").ok();
    let stem = format!("{name}-{}", jiff::Zoned::now().strftime(TIME));
    let taken = |id: &str| {
        Path::new(RUNS).join(id).exists()
            || claims.as_ref().is_some_and(|claims| {
                std::fs::OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .open(claims.join(id))
                    .is_err_and(|error| error.kind() == std::io::ErrorKind::AlreadyExists)
            })
    };
    let id = free_run_id(&stem, taken);
    claims.iter().for_each(|claims| forget_old(claims));
    id
}

/// Claims matter for a second; a day is plenty.
fn forget_old(claims: &Path) {
    let old = |entry: &std::fs::DirEntry| {
        let made = entry.metadata().and_then(|data| data.modified());
        made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age.as_secs() > 86_400))
    };
    for entry in std::fs::read_dir(claims).into_iter().flatten().flatten().filter(old) {
        let _ = std::fs::remove_file(entry.path());
    }
}

/// Most names that are completed.
const COMPLETED: usize = 200;

/// Names of the runs of this directory that are completed, newest first.
pub(crate) fn local_names() -> Vec<String> {
    run_names(Path::new(RUNS)).into_iter().take(COMPLETED).collect()
}

/// Names of the runs of a directory of runs, newest first.
pub(crate) fn run_names(runs: &Path) -> Vec<String> {
    let folders = std::fs::read_dir(runs).into_iter().flatten().flatten();
    let mut names: Vec<(SystemTime, String)> = folders
        .filter_map(|entry| {
            let written = entry.metadata().and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
            let name = entry.file_name().into_string().ok()?;
            RunId::parse(&name).ok().map(|run| (written, run.0))
        })
        .collect();
    names.sort_by_cached_key(|(written, name)| std::cmp::Reverse(launch_order(name, *written)));
    names.into_iter().map(|(_, name)| name).collect()
}

/// A key that sorts runs by their launch: the time in the name, else that of the newest file. The number of a
/// launch in the same second comes last.
pub(crate) fn launch_order(name: &str, written: SystemTime) -> (String, u32) {
    let parts: Vec<&str> = name.split('-').collect();
    let time = (1..parts.len()).find(|at| run_name::is_time(&format!("-{}", parts[*at..].join("-"))));
    match time {
        Some(at) => {
            let count = parts.get(at + 2).and_then(|count| count.parse().ok()).unwrap_or(1);
            (parts[at..at + 2].join("-"), count)
        }
        None => {
            let written = jiff::Timestamp::try_from(written).unwrap_or_default();
            let local = written.to_zoned(jiff::tz::TimeZone::system());
            (local.strftime(TIME).to_string(), 1)
        }
    }
}

fn free_run_id(stem: &str, taken: impl Fn(&str) -> bool) -> RunId {
    let numbered = (2..).map(|n| format!("{stem}-{n}"));
    let id = std::iter::once(stem.to_owned()).chain(numbered).find(|id| !taken(id));
    RunId(id.unwrap_or_else(|| stem.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launch_order_follows_the_time_in_the_name() {
        let written = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
        let of = |name: &str| launch_order(name, written);
        assert_eq!(of("ppo-20260101-120000"), ("20260101-120000".to_owned(), 1));
        assert!(of("ppo-20260101-120000") < of("a-b-20260101-120000-2"));
        assert!(of("ppo-20260101-120000-2") < of("ppo-20260101-120000-10"));
        assert!(of("named") < of("ppo-20260101-120000"), "by the time of its file");
        assert!(of("named") > of("ppo-20200101-120000"));
    }

    #[test]
    fn run_ids_of_the_same_second_differ() {
        let mut known = vec![];
        for expected in ["a-1", "a-1-2", "a-1-3"] {
            let id = free_run_id("a-1", |id| known.iter().any(|name| name == id));
            assert_eq!(id.0, expected);
            known.push(id.0);
        }
    }
}
