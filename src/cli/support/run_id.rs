//! Names of runs.

use rankdeck_proto::folders;
use rankdeck_types::ids::RunId;
use std::path::Path;

/// Directory of runs, also on the console.
pub(crate) const RUNS: &str = "runs";

/// `NAME-YYYYMMDD-HHMMSS` in local time; `-2`, `-3`, ... follow if the name exists in this directory, so that
/// two consoles started in the same second do not share a run.
pub(crate) fn new_run_id(name: &str) -> RunId {
    free_run_id(&format!("{name}-{}", jiff::Zoned::now().strftime("%Y%m%d-%H%M%S")), |id| {
        Path::new(RUNS).join(id).exists()
    })
}

/// Returns a name for a launch that no other launch of this user on this machine gets.
pub(crate) fn claimed_run_id(name: &str) -> RunId {
    let claims = folders::cache().join("names");
    // Without a directory for claims, names are only as unique as the clock.
    let can_claim = folders::create_private(&claims).is_ok();
    let stem = format!("{name}-{}", jiff::Zoned::now().strftime("%Y%m%d-%H%M%S"));
    let taken = |id: &str| {
        Path::new(RUNS).join(id).exists()
            || can_claim
                && std::fs::OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .open(claims.join(id))
                    .is_err_and(|error| error.kind() == std::io::ErrorKind::AlreadyExists)
    };
    let id = free_run_id(&stem, taken);
    forget_old(&claims);
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

fn free_run_id(stem: &str, taken: impl Fn(&str) -> bool) -> RunId {
    let numbered = (2..).map(|n| format!("{stem}-{n}"));
    let id = std::iter::once(stem.to_owned()).chain(numbered).find(|id| !taken(id));
    RunId(id.unwrap_or_else(|| stem.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
