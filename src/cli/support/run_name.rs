//! Names of runs as users type them: the full name, a prefix, `@last`, `NAME~N`. One function resolves them for
//! all commands.
//!
//! Invariants:
//! - NAME-1: a command that reads takes the newest run that matches. A command that stops, restarts or removes
//!   a run takes a name that only one run fits, and fails otherwise.

pub(crate) use crate::cli::args::values::LAST;
use crate::cli::support::Failure;
use rankdeck_proto::{folders, trust};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::RunId;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What a command does with the run that a name selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunAction {
    /// Shows or copies results: the newest match.
    Read,
    /// Shows a run live: the newest active match, else the newest.
    Watch,
    /// Stops it: the only active match, else the only match. Without a name: the only active run.
    Stop,
    /// Restarts or removes it: the only match. Without a name: the only active run.
    Change,
}

impl RunAction {
    /// Whether the newest of several matches is taken.
    pub(crate) fn is_reading(self) -> bool {
        matches!(self, RunAction::Read | RunAction::Watch)
    }
}

/// A run that a name may select.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NamedRun<'a> {
    pub(crate) name: &'a str,
    /// Its processes are running.
    pub(crate) is_active: bool,
}

/// The run that a name selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SelectedRun {
    /// Index of the run.
    pub(crate) index: usize,
    /// How many runs it was chosen from.
    pub(crate) of: usize,
}

/// Why a name selects no run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NameError {
    /// Nothing matches.
    NotFound,
    /// `NAME~N` counts back further than the runs of that name.
    TooFewRuns(usize),
    /// No run is active, and no name was given.
    NoneActive,
    /// Indices of the runs that match.
    Ambiguous(Vec<usize>),
}

/// A parsed name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ParsedName<'a> {
    /// Full name or prefix; empty: any run.
    base: &'a str,
    /// How many runs before the newest; `None`: not said.
    back: Option<usize>,
}

impl ParsedName<'_> {
    fn parse(text: &str) -> ParsedName<'_> {
        let counted = text.rsplit_once('~').filter(|(base, _)| !base.is_empty());
        let counted = counted.and_then(|(base, back)| Some((base, back.parse::<usize>().ok()?)));
        match counted {
            Some((LAST, back)) => ParsedName { base: "", back: Some(back) },
            Some((base, back)) => ParsedName { base, back: Some(back) },
            None if text == LAST => ParsedName { base: "", back: Some(0) },
            None => ParsedName { base: text, back: None },
        }
    }
}

/// Whether a name counts runs, as `@last` and `NAME~1` do: it depends on which hosts have answered.
pub(crate) fn is_relative(name: &str) -> bool {
    ParsedName::parse(name).back.is_some()
}

/// The prefix that the selected run has in any case.
pub(crate) fn prefix(name: &str) -> &str {
    ParsedName::parse(name).base
}

/// Whether a text is the time suffix of a run name: `-20260101-120000`, `-20260101-120000-2`.
pub(crate) fn is_time(text: &str) -> bool {
    let mut parts = text.split('-').skip(1);
    let digits = |part: Option<&str>, length: usize| {
        part.is_some_and(|part| part.len() == length && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    text.starts_with('-')
        && digits(parts.next(), 8)
        && digits(parts.next(), 6)
        && parts.next().is_none_or(|count| count.parse::<u32>().is_ok())
        && parts.next().is_none()
}

/// Returns the indices of the runs that a name fits: the run of that name, else the runs launched under that
/// name, else those that start with it.
pub(crate) fn matches(runs: &[NamedRun], name: &str) -> Vec<usize> {
    let base = prefix(name);
    let all = |fits: &dyn Fn(&str) -> bool| -> Vec<usize> {
        runs.iter().enumerate().filter(|(_, run)| fits(run.name)).map(|(index, _)| index).collect()
    };
    let exact = all(&|run| run == base);
    if !exact.is_empty() {
        return exact;
    }
    let launched = all(&|run| run.strip_prefix(base).is_some_and(is_time));
    if launched.is_empty() { all(&|run| run.starts_with(base)) } else { launched }
}

/// Returns the run that a name selects among `runs`, which are sorted newest first (NAME-1).
pub(crate) fn resolve(
    runs: &[NamedRun],
    name: Option<&str>,
    action: RunAction,
) -> Result<SelectedRun, NameError> {
    let only = |index| Ok(SelectedRun { index, of: 1 });
    if let Some(index) = runs.iter().position(|run| Some(run.name) == name) {
        return only(index);
    }
    let parsed = name.map(ParsedName::parse);
    if let Some(ParsedName { base, back: Some(back) }) = parsed {
        let found = matches(runs, base);
        return match (found.get(back), found.len()) {
            (Some(index), of) => Ok(SelectedRun { index: *index, of }),
            (None, 0) => Err(NameError::NotFound),
            (None, count) => Err(NameError::TooFewRuns(count)),
        };
    }
    let base = name.unwrap_or_default();
    let found: Vec<usize> = match action.is_reading() {
        true => matches(runs, base),
        // A run of this name does not hide others that start with it.
        false => (0..runs.len()).filter(|index| runs[*index].name.starts_with(base)).collect(),
    };
    let active: Vec<usize> = found.iter().copied().filter(|index| runs[*index].is_active).collect();
    let among = match action {
        RunAction::Read => found,
        RunAction::Watch | RunAction::Stop if !active.is_empty() => active,
        RunAction::Stop | RunAction::Change if name.is_none() => match active.is_empty() {
            true => return Err(NameError::NoneActive),
            false => active,
        },
        RunAction::Watch | RunAction::Stop | RunAction::Change => found,
    };
    match among.as_slice() {
        [] => Err(NameError::NotFound),
        [index] => only(*index),
        [newest, ..] if action.is_reading() => Ok(SelectedRun { index: *newest, of: among.len() }),
        _ => Err(NameError::Ambiguous(among)),
    }
}

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
    let time = (1..parts.len()).find(|at| is_time(&format!("-{}", parts[*at..].join("-"))));
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

    /// Newest first.
    const RUNS: [NamedRun; 5] = [
        NamedRun { name: "ppo-large-20260105-000000", is_active: false },
        NamedRun { name: "ppo-20260104-000000", is_active: false },
        NamedRun { name: "ppo-20260103-000000", is_active: true },
        NamedRun { name: "sac-20260102-000000", is_active: false },
        NamedRun { name: "ppo-20260101-000000", is_active: false },
    ];

    fn name_of(name: Option<&str>, action: RunAction) -> Result<&'static str, NameError> {
        resolve(&RUNS, name, action).map(|selected| RUNS[selected.index].name)
    }

    #[test]
    fn name_1_reading_takes_the_newest_match() {
        for (name, expected) in [
            (None, "ppo-large-20260105-000000"),
            (Some("ppo"), "ppo-20260104-000000"),
            (Some("pp"), "ppo-large-20260105-000000"),
            (Some("ppo-20260103"), "ppo-20260103-000000"),
            (Some("sac"), "sac-20260102-000000"),
        ] {
            assert_eq!(name_of(name, RunAction::Read), Ok(expected), "{name:?}");
        }
        assert_eq!(resolve(&RUNS, Some("ppo"), RunAction::Read).map(|selected| selected.of), Ok(3));
        assert_eq!(name_of(Some("dqn"), RunAction::Read), Err(NameError::NotFound));
        assert_eq!(resolve(&[], None, RunAction::Read), Err(NameError::NotFound));
    }

    #[test]
    fn watching_prefers_an_active_run() {
        for name in [None, Some("ppo"), Some("p")] {
            assert_eq!(name_of(name, RunAction::Watch), Ok("ppo-20260103-000000"), "{name:?}");
        }
        assert_eq!(name_of(Some("sac"), RunAction::Watch), Ok("sac-20260102-000000"));
        assert_eq!(name_of(Some(LAST), RunAction::Watch), Ok("ppo-large-20260105-000000"));
    }

    #[test]
    fn relative_name_counts_back_for_every_action() {
        for action in [RunAction::Read, RunAction::Watch, RunAction::Stop, RunAction::Change] {
            for (name, expected) in [
                ("@last", Ok("ppo-large-20260105-000000")),
                ("@last~1", Ok("ppo-20260104-000000")),
                ("ppo~0", Ok("ppo-20260104-000000")),
                ("ppo~1", Ok("ppo-20260103-000000")),
                ("ppo~2", Ok("ppo-20260101-000000")),
                ("ppo~3", Err(NameError::TooFewRuns(3))),
                ("dqn~1", Err(NameError::NotFound)),
                ("ppo~x", Err(NameError::NotFound)),
                ("~1", Err(NameError::NotFound)),
            ] {
                assert_eq!(name_of(Some(name), action), expected, "{name} {action:?}");
            }
        }
        assert!(is_relative("@last") && is_relative("a~1") && !is_relative("a") && !is_relative("~1"));
        assert_eq!((prefix("@last~2"), prefix("ppo~1"), prefix("ppo")), ("", "ppo", "ppo"));
    }

    #[test]
    fn name_1_changes_need_an_unambiguous_name() {
        for action in [RunAction::Stop, RunAction::Change] {
            assert_eq!(name_of(None, action), Ok("ppo-20260103-000000"), "the only active run");
            assert_eq!(name_of(Some("sac"), action), Ok("sac-20260102-000000"));
            assert_eq!(name_of(Some("ppo-20260101-000000"), action), Ok("ppo-20260101-000000"));
        }
        assert_eq!(name_of(Some("ppo"), RunAction::Stop), Ok("ppo-20260103-000000"));
        assert_eq!(name_of(Some("ppo-l"), RunAction::Stop), Ok("ppo-large-20260105-000000"));
        assert_eq!(name_of(Some("ppo"), RunAction::Change), Err(NameError::Ambiguous(vec![0, 1, 2, 4])));
        let all_active = RUNS.map(|run| NamedRun { is_active: true, ..run });
        for name in [None, Some("ppo-2026")] {
            let ambiguous = resolve(&all_active, name, RunAction::Stop);
            assert!(matches!(ambiguous, Err(NameError::Ambiguous(_))), "{name:?}");
        }
        let none_active = RUNS.map(|run| NamedRun { is_active: false, ..run });
        assert_eq!(resolve(&none_active, None, RunAction::Stop), Err(NameError::NoneActive));
        assert_eq!(resolve(&none_active, None, RunAction::Change), Err(NameError::NoneActive));
    }

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
