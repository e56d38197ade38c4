//! Names of runs.

use rankdeck_types::ids::RunId;
use std::path::Path;

/// Folder of runs, on the console too.
pub(super) const RUNS: &str = "runs";

/// `NAME-YYYYMMDD-HHMMSS`, local time; `-2`, `-3`, ... follow where this folder already knows a run of that name, so
/// that two consoles that begin in the same second do not end up in one run.
pub(super) fn new_run_id(name: &str) -> RunId {
    free_run_id(&format!("{name}-{}", jiff::Zoned::now().strftime("%Y%m%d-%H%M%S")), |id| {
        Path::new(RUNS).join(id).exists()
    })
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
    fn a_second_run_of_the_same_second_gets_a_name_of_its_own() {
        let mut known = vec![];
        for expected in ["a-1", "a-1-2", "a-1-3"] {
            let id = free_run_id("a-1", |id| known.iter().any(|name| name == id));
            assert_eq!(id.0, expected);
            known.push(id.0);
        }
    }
}
