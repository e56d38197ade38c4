//! What ranks write into the directory that they work in.
//!
//! The state of that directory is remembered before a generation starts; at the end, what is new or has changed
//! are the run's results. They are listed once, so that a later run that works in the same directory changes
//! nothing about them.
//!
//! In the user's own directory, hidden entries at its top are left out: they belong to the user's shell and tools.
//!
//! Owner: the thread that prepares a launch, the one that verifies a stop, and one-shot commands. Invariants:
//! - RESULTS-1: names, sizes and times decide; no file is opened and no link followed.
//! - RESULTS-2: the search is bounded in time, entries and depth, and reports whether it was complete.
//! - RESULTS-3: a file that was changed after the end of its run is not one of its results. A run whose agent was
//!   killed has ended with the last evidence of life that it has left.
//! - RESULTS-4: a file that changed while another run worked in the same directory belongs to the run whose processes
//!   were seen to write it. If that is not known, or both were, it is a shared one and none of the run's own.

use crate::entries;
use crate::manifest::Manifest;
use crate::paths::{self, RunPaths};
use crate::writers::{self, FileId};
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::files::{has_metrics, is_checkpoint_name};
use rankdeck_proto::message::RunResults;
use rankdeck_proto::{folders, trust};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::Metadata;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Bounds of a search.
const ENTRIES: usize = 50_000;
const DEPTH: usize = 24;
const PATIENCE: Duration = Duration::from_millis(1500);
/// Most bytes of a file of this module: as many names of usual length.
const MOST_BYTES: u64 = 64 << 20;
/// Names that a record has.
const NAMED: usize = 6;
/// Longest name in a record, bytes.
const NAME: usize = 200;
/// Directories without results.
const SKIPPED: [&str; 8] = [
    "__pycache__",
    ".git",
    ".hg",
    "node_modules",
    "site-packages",
    ".mypy_cache",
    ".pytest_cache",
    ".ipynb_checkpoints",
];
/// Endings of files that the user may edit while ranks work in the user's own directory.
const EDITED: [&str; 8] = [".py", ".ipynb", ".sh", ".toml", ".yaml", ".yml", ".md", ".cfg"];
/// File systems may be so far behind the clock, seconds.
const TICK_S: f64 = 0.02;
/// Ranks may live so long after the last evidence that [`writers`] has noted, seconds: its round, and what a guard
/// takes.
const EVIDENCE_S: f64 = 6.0;
/// Most other runs that are compared with, and most that a record names.
const OTHERS: usize = 256;
const OTHER_NAMES: usize = 4;
/// Most files of a generation's directory that are dated.
const DATED: usize = 4096;

/// The directory that ranks of a script work in.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct WorkRecord {
    /// Without links.
    pub folder: PathBuf,
    /// It is the user's own.
    pub in_place: bool,
    /// Equal on hosts that share it.
    pub mark: String,
    /// `runs` and `work` of the host: directories inside the user's own without results of this run.
    pub apart: Vec<PathBuf>,
}

/// Size and time of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileState {
    pub bytes: u64,
    seconds: i64,
    nanos: i64,
}

impl FileState {
    pub fn of(data: &Metadata) -> FileState {
        FileState { bytes: data.len(), seconds: data.mtime(), nanos: data.mtime_nsec() }
    }

    /// Time of the last change, seconds since the epoch.
    pub fn modified(&self) -> f64 {
        self.seconds as f64 + self.nanos as f64 / 1e9
    }
}

/// The files of a directory by their paths in it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct FolderState {
    pub files: BTreeMap<String, FileState>,
    /// Those of them that another run may have written (RESULTS-4).
    pub shared: BTreeSet<String>,
    /// Names of such runs.
    pub shared_with: BTreeSet<String>,
    /// The list has all of them.
    pub complete: bool,
    /// When the search began, seconds since the epoch.
    pub began: f64,
}

/// Results of a run on this host.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct FoundResults {
    pub work: WorkRecord,
    pub state: FolderState,
    /// The run has ended: these are all.
    pub settled: bool,
}

/// Remembers where ranks work, and the state of it before they start.
///
/// # Errors
/// It cannot be written.
pub(crate) fn remember(paths: &RunPaths, work: &WorkRecord) -> io::Result<()> {
    // Results of an earlier generation remain results.
    let earlier =
        find_until(paths, last_evidence(paths, false)).filter(|earlier| earlier.work.folder == work.folder);
    let mut before = search(work);
    if let Some(earlier) = earlier {
        before.files.retain(|path, state| earlier.state.files.get(path) != Some(state));
    }
    write(&paths.work_before(), &before)?;
    write(&paths.work_record(), work)?;
    match std::fs::remove_file(paths.results()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Where ranks of the run work, as remembered at its latest launch.
pub(crate) fn work(paths: &RunPaths) -> Option<WorkRecord> {
    read::<WorkRecord>(&paths.work_record()).filter(|work| work.folder.is_absolute())
}

/// The results of a run, while it runs or once it has ended. `None`: it has no such directory.
pub(crate) fn find(paths: &RunPaths) -> Option<FoundResults> {
    find_until(paths, end(paths))
}

/// The same for a run that ended at a time in seconds since the epoch.
fn find_until(paths: &RunPaths, end: f64) -> Option<FoundResults> {
    let work = work(paths)?;
    if let Some(state) = read::<FolderState>(&paths.results()) {
        return Some(FoundResults { work, state, settled: true });
    }
    let before = read::<FolderState>(&paths.work_before())?;
    let mut state = search(&work);
    let attribution = Attribution::of(paths, &work, end);
    let (mut shared, mut shared_with) = (BTreeSet::new(), BTreeSet::new());
    state.files.retain(|path, now| {
        if !is_result(path, now, &before, work.in_place) {
            return false;
        }
        match attribution.writer(&work.folder.join(path), now) {
            FileWriter::Own => true,
            FileWriter::Other => false,
            FileWriter::Shared(with) => {
                shared.insert(path.clone());
                shared_with.extend(with.iter().map(|run| (*run).to_owned()));
                true
            }
        }
    });
    state.complete &= before.complete;
    Some(FoundResults { work, state: FolderState { shared, shared_with, ..state }, settled: false })
}

/// When a run ended, seconds since the epoch; infinite while it runs (RESULTS-3).
fn end(paths: &RunPaths) -> f64 {
    let lives = |manifest: &Manifest| {
        manifest.running && manifest.agent().is_some() || !manifest.ranks_alive().is_empty()
    };
    match Manifest::load(&paths.manifest()) {
        // Of another machine, which alone knows.
        Some(manifest) if manifest.is_of_this_machine() && !lives(&manifest) => last_evidence(paths, true),
        _ => f64::INFINITY,
    }
}

/// The last evidence of life of ranks, seconds since the epoch. `is_over`: no agent serves the run, and the records are
/// those of the one that ran them.
fn last_evidence(paths: &RunPaths, is_over: bool) -> f64 {
    let changed =
        |path: &Path| std::fs::symlink_metadata(path).map_or(0.0, |data| FileState::of(&data).modified());
    let generations = std::fs::read_dir(paths.node_dir()).into_iter().flatten().flatten();
    let generations = generations
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"gen")));
    let logs =
        generations.filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten().take(DATED);
    let last_log = logs.map(|entry| changed(&entry.path())).fold(0.0, f64::max) + TICK_S;
    let seen = writers::last_seen(paths).and_then(|seen| seen.duration_since(SystemTime::UNIX_EPOCH).ok());
    match seen {
        Some(seen) => last_log.max(seen.as_secs_f64() + EVIDENCE_S),
        None if is_over => last_log.max(changed(&paths.spool()) + TICK_S),
        None => last_log,
    }
}

/// Whose a file is that changed while a run worked in its directory.
#[derive(Debug, PartialEq, Eq)]
enum FileWriter<'a> {
    Own,
    Other,
    /// It may be one of these runs.
    Shared(Vec<&'a str>),
}

/// Another run that has worked in the directory.
#[derive(Debug)]
struct OtherRun {
    run: String,
    folder: PathBuf,
    /// When it worked there, seconds since the epoch.
    from: f64,
    to: f64,
    written: BTreeSet<FileId>,
}

/// How results of a run are separated from files of other runs (RESULTS-3, RESULTS-4).
#[derive(Debug)]
struct Attribution {
    end: f64,
    written: BTreeSet<FileId>,
    others: Vec<OtherRun>,
}

impl Attribution {
    fn of(paths: &RunPaths, work: &WorkRecord, end: f64) -> Attribution {
        let workdir = paths.run_dir.parent().and_then(Path::parent);
        let nodes = workdir.map(|workdir| entries::nodes(workdir, None).0).unwrap_or_default();
        let began = Manifest::load(&paths.manifest()).map_or(0.0, |own| own.started - TICK_S);
        let other = |(other, manifest): (RunPaths, Manifest)| {
            let folder = self::work(&other)?.folder;
            if !folder.starts_with(&work.folder) && !work.folder.starts_with(&folder) {
                return None;
            }
            let to = match std::fs::symlink_metadata(other.results()) {
                Ok(settled) => FileState::of(&settled).modified(),
                Err(_) => self::end(&other),
            };
            let from = manifest.started - TICK_S;
            // Most have ended before this run began.
            (to >= began).then(|| OtherRun {
                run: manifest.run,
                folder,
                from,
                to,
                written: writers::read(&other),
            })
        };
        // Other nodes of the same run do not count.
        let is_other = |other: &RunPaths| other.run_dir.file_name() != paths.run_dir.file_name();
        let nodes = nodes.into_iter().filter(|(other, _)| is_other(other));
        Attribution {
            end,
            written: writers::read(paths),
            others: nodes.filter_map(other).take(OTHERS).collect(),
        }
    }

    fn writer(&self, path: &Path, now: &FileState) -> FileWriter<'_> {
        let at = now.modified();
        if at > self.end {
            return FileWriter::Other;
        }
        let others: Vec<&OtherRun> = self
            .others
            .iter()
            .filter(|run| path.starts_with(&run.folder) && run.from <= at && at <= run.to)
            .collect();
        if others.is_empty() {
            return FileWriter::Own;
        }
        let id = std::fs::symlink_metadata(path).ok().map(|data| FileId::of(&data));
        let is_in = |written: &BTreeSet<FileId>| id.is_some_and(|id| written.contains(&id));
        let (own, other) = (is_in(&self.written), others.iter().any(|run| is_in(&run.written)));
        match (own, other) {
            (true, false) => FileWriter::Own,
            (false, true) => FileWriter::Other,
            _ => FileWriter::Shared(others.iter().map(|run| run.run.as_str()).collect()),
        }
    }
}

/// Settles the results of a run whose ranks have just ended; `None` without any.
pub(crate) fn settle(paths: &RunPaths) -> Option<RunResults> {
    settle_until(paths, f64::INFINITY)
}

/// The same for ranks of an agent that was killed.
pub(crate) fn settle_late(paths: &RunPaths) -> Option<RunResults> {
    settle_until(paths, last_evidence(paths, false))
}

fn settle_until(paths: &RunPaths, end: f64) -> Option<RunResults> {
    let found = find_until(paths, end)?;
    if !found.settled {
        // Without the list, a later look decides.
        let _ = write(&paths.results(), &found.state);
    }
    let FoundResults { work, state, .. } = found;
    if state.files.is_empty() {
        return None;
    }
    let rank = |path: &str| if is_checkpoint_name(path) { 0 } else { 2 - u8::from(has_metrics(path)) };
    let is_shared = |path: &str| state.shared.contains(path);
    let mut files: Vec<(&String, &FileState)> =
        state.files.iter().filter(|(path, _)| !is_shared(path)).collect();
    files.sort_by(|a, b| {
        rank(a.0).cmp(&rank(b.0)).then(b.1.modified().total_cmp(&a.1.modified())).then(a.0.cmp(b.0))
    });
    let short = files.iter().map(|(path, _)| (*path).clone()).filter(|path| path.len() <= NAME);
    Some(RunResults {
        folder: work.folder.display().to_string(),
        in_place: work.in_place,
        mark: work.mark.clone(),
        files: files.len() as u64,
        bytes: files.iter().map(|(_, state)| state.bytes).fold(0, u64::saturating_add),
        names: short.take(NAMED).collect(),
        shared: state.shared.len() as u64,
        shared_with: state.shared_with.iter().take(OTHER_NAMES).cloned().collect(),
        complete: state.complete,
    })
}

/// The path of one result, by its name in the directory (RESULTS-3).
pub(crate) fn path_of(paths: &RunPaths, name: &str) -> Option<PathBuf> {
    let work = work(paths)?;
    let parts = Path::new(name).components().map(|part| match part {
        Component::Normal(part) => part.to_str().filter(|part| !SKIPPED.contains(part)),
        _ => None,
    });
    // As listed: another spelling of a name does not match.
    let is_plain = parts.collect::<Option<Vec<&str>>>().is_some_and(|parts| parts.join("/") == name);
    let path = work.folder.join(name);
    let is_hidden = work.in_place && name.starts_with('.');
    let mut inside =
        work.apart.iter().filter(|apart| **apart != work.folder && apart.starts_with(&work.folder));
    if !is_plain || is_hidden || inside.any(|apart| path.starts_with(apart)) {
        return None;
    }
    // Without links on the way.
    path.canonicalize().ok().filter(|real| *real == path)?;
    let now = FileState::of(&std::fs::symlink_metadata(&path).ok().filter(Metadata::is_file)?);
    let is_one = match read::<FolderState>(&paths.results()) {
        Some(settled) => settled.files.get(name) == Some(&now),
        None => {
            let before = read::<FolderState>(&paths.work_before())?;
            is_result(name, &now, &before, work.in_place)
                && Attribution::of(paths, &work, end(paths)).writer(&path, &now) != FileWriter::Other
        }
    };
    is_one.then_some(path)
}

fn is_result(path: &str, now: &FileState, before: &FolderState, in_place: bool) -> bool {
    match before.files.get(path) {
        Some(was) => was != now && !(in_place && EDITED.iter().any(|ending| path.ends_with(ending))),
        None => before.complete || now.modified() >= before.began - TICK_S,
    }
}

/// Lists the files of a directory, those near its top first (RESULTS-1, RESULTS-2).
fn search(work: &WorkRecord) -> FolderState {
    let begun = Instant::now();
    let mut state = FolderState { complete: true, began: wall_time(), ..FolderState::default() };
    let mut entries = 0;
    let mut todo = VecDeque::from([(PathBuf::new(), 0)]);
    while let Some((below, depth)) = todo.pop_front() {
        let Ok(folder) = std::fs::read_dir(work.folder.join(&below)) else { continue };
        for entry in folder.flatten() {
            entries += 1;
            if entries > ENTRIES || begun.elapsed() > PATIENCE {
                state.complete = false;
                return state;
            }
            let (Ok(kind), Ok(name)) = (entry.file_type(), entry.file_name().into_string()) else { continue };
            let path = below.join(&name);
            if work.in_place && depth == 0 && name.starts_with('.') {
                continue;
            }
            if kind.is_dir() {
                if SKIPPED.contains(&name.as_str()) || is_apart(work, &work.folder.join(&path)) {
                    continue;
                }
                match depth < DEPTH {
                    true => todo.push_back((path, depth + 1)),
                    false => state.complete = false,
                }
            } else if kind.is_file()
                && !is_part(&name)
                && let (Some(path), Ok(data)) = (path.to_str(), entry.metadata())
            {
                state.files.insert(path.to_owned(), FileState::of(&data));
            }
        }
    }
    state
}

/// A directory that has nothing of this run: other runs, an environment of Python.
fn is_apart(work: &WorkRecord, folder: &Path) -> bool {
    work.apart.iter().any(|apart| apart == folder) || folder.join("pyvenv.cfg").exists()
}

/// A name of a file that is being laid.
pub(crate) fn part_name(unique: &str) -> String {
    format!(".rankdeck-{unique}.part")
}

fn is_part(name: &str) -> bool {
    name.starts_with(".rankdeck-") && name.ends_with(".part")
}

/// Directories inside the user's own whose files are not the ranks' output.
pub(crate) fn apart(workdir: &Path) -> Vec<PathBuf> {
    let work = paths::work(workdir);
    // The user may have a directory of that name.
    let is_ours = |name: &std::ffi::OsStr| name.as_encoded_bytes().ends_with(b".pack.json");
    let mut entries = std::fs::read_dir(&work).into_iter().flatten().flatten();
    let ours = entries.any(|entry| is_ours(&entry.file_name()));
    std::iter::once(paths::runs(workdir)).chain(ours.then_some(work)).chain(folders::caches()).collect()
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&trust::read(path, MOST_BYTES).ok()?).ok()
}

/// Replaces a file of this module.
pub(crate) fn write<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    // Hosts of a shared disk may have equal process ids.
    let unique = format!("{}-{:x}", std::process::id(), (wall_time() * 1e9) as u64);
    let temporary = path.with_extension(format!("json.{unique}"));
    let bytes = serde_json::to_vec(value)?;
    let written = trust::create(&temporary)
        .and_then(|mut file| file.write_all(&bytes))
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writers::WriterLog;
    use crate::{manifest, proc};
    use rankdeck_types::ids::{Generation, NodeRank, Rank};
    use std::fs::{create_dir_all, write as put};

    struct TestRun {
        folder: tempfile::TempDir,
        paths: RunPaths,
        work: WorkRecord,
    }

    impl TestRun {
        fn new() -> TestRun {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().canonicalize().unwrap();
            let paths = RunPaths { run_dir: root.join("runs/r"), node: NodeRank(0) };
            create_dir_all(paths.node_dir()).unwrap();
            let work = WorkRecord { folder: root.join("work/r"), ..WorkRecord::default() };
            create_dir_all(&work.folder).unwrap();
            TestRun { folder, paths, work }
        }

        fn put(&self, name: &str, text: &str) {
            let path = self.work.folder.join(name);
            create_dir_all(path.parent().unwrap()).unwrap();
            put(path, text).unwrap();
        }

        fn names(&self) -> Vec<String> {
            find(&self.paths).unwrap().state.files.into_keys().collect()
        }
    }

    #[test]
    fn results_1_new_and_changed_files_are_found() {
        let run = TestRun::new();
        for name in ["train.py", "old.pt", "data/x"] {
            run.put(name, "1");
        }
        assert_eq!(find(&run.paths), None, "nothing is remembered");
        remember(&run.paths, &run.work).unwrap();
        assert_eq!(settle(&run.paths), None, "no results");
        remember(&run.paths, &run.work).unwrap();
        run.put("old.pt", "longer");
        run.put("logs/events.out.tfevents.1", "2");
        run.put("logs/note", "2");
        run.put("__pycache__/train.pyc", "2");
        run.put(".git/HEAD", "2");
        run.put(&part_name("1-2"), "2");
        std::os::unix::fs::symlink("/etc/passwd", run.work.folder.join("link")).unwrap();
        std::os::unix::fs::symlink("logs", run.work.folder.join("same")).unwrap();
        for name in ["logs/./note", "same/note", "link", "train.py"] {
            assert_eq!(path_of(&run.paths, name), None, "{name}");
        }
        assert!(path_of(&run.paths, "logs/note").is_some());
        let settled = settle(&run.paths).unwrap();
        assert_eq!(settled.names, ["old.pt", "logs/events.out.tfevents.1", "logs/note"]);
        assert_eq!((settled.files, settled.bytes, settled.complete), (3, 8, true));
        for (name, is_one) in [
            ("old.pt", true),
            ("train.py", false),
            ("link", false),
            (".git/HEAD", false),
            ("../r/old.pt", false),
        ] {
            assert_eq!(path_of(&run.paths, name).is_some(), is_one, "{name}");
        }
    }

    #[test]
    fn results_of_earlier_generations_remain() {
        let run = TestRun::new();
        remember(&run.paths, &run.work).unwrap();
        run.put("a.pt", "1");
        settle(&run.paths);
        remember(&run.paths, &run.work).unwrap();
        run.put("b.pt", "1");
        assert_eq!(run.names(), ["a.pt", "b.pt"]);
        // It works elsewhere now.
        let other = WorkRecord { folder: run.folder.path().join("work/r-2"), ..run.work.clone() };
        create_dir_all(&other.folder).unwrap();
        remember(&run.paths, &other).unwrap();
        assert!(run.names().is_empty());
    }

    #[test]
    fn results_3_files_of_a_later_run_are_no_results() {
        let run = TestRun::new();
        remember(&run.paths, &run.work).unwrap();
        run.put("a.pt", "1");
        run.put("b.pt", "1");
        settle(&run.paths);
        run.put("a.pt", "changed later");
        run.put("c.pt", "1");
        assert_eq!(run.names(), ["a.pt", "b.pt"]);
        let read = ["a.pt", "b.pt", "c.pt"].map(|name| path_of(&run.paths, name).is_some());
        assert_eq!(read, [false, true, false]);
    }

    /// Another node's files next to those of the run, in the same work folder, with a manifest.
    fn manifest(run: &str, started: f64, running: bool) -> Manifest {
        let own = proc::stat(std::process::id()).unwrap();
        Manifest {
            run: run.into(),
            hostname: proc::hostname(),
            boot_id: proc::boot_id(),
            agent_pid: if running { own.pid } else { 0 },
            agent_start: own.start,
            started,
            running,
            ..Manifest::default()
        }
    }

    fn date(path: &Path, seconds: f64) {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(seconds);
        std::fs::File::options().write(true).open(path).unwrap().set_modified(at).unwrap();
    }

    #[test]
    fn results_3_run_of_a_killed_agent_ends_with_its_evidence() {
        let run = TestRun::new();
        let now = wall_time();
        manifest::write(&run.paths, &manifest("r", now - 100.0, true).bytes()).unwrap();
        remember(&run.paths, &run.work).unwrap();
        for (name, age) in [("own.pt", 60.0), ("late.pt", 10.0)] {
            run.put(name, "1");
            date(&run.work.folder.join(name), now - age);
        }
        create_dir_all(run.paths.generation_dir(Generation(0))).unwrap();
        let log = run.paths.rank_log(Generation(0), Rank(0));
        put(&log, "out").unwrap();
        date(&log, now - 59.0);
        put(run.paths.spool(), "").unwrap();
        date(&run.paths.spool(), now - 80.0);
        assert_eq!(run.names(), ["late.pt", "own.pt"], "it lives");
        let killed = Manifest { agent_start: 1, ..manifest("r", now - 100.0, true) };
        manifest::write(&run.paths, &killed.bytes()).unwrap();
        assert_eq!(run.names(), ["own.pt"], "by the log of its rank");
        assert_eq!(path_of(&run.paths, "late.pt"), None);
        WriterLog::new(&run.paths, &run.work.folder).beat();
        date(&run.paths.writers(), now - 8.0);
        assert_eq!(run.names(), ["late.pt", "own.pt"], "ranks were seen later");
        date(&run.paths.writers(), now - 58.0);
        // The next agent of the run writes records, and a manifest of its own.
        put(run.paths.spool(), "more").unwrap();
        manifest::write(&run.paths, &manifest("r", now - 100.0, true).bytes()).unwrap();
        remember(&run.paths, &run.work).unwrap();
        assert_eq!(run.names(), ["own.pt"], "of the earlier generation");
    }

    #[test]
    fn results_4_files_of_two_runs_are_counted_once() {
        let run = TestRun::new();
        let other =
            RunPaths { run_dir: run.folder.path().canonicalize().unwrap().join("runs/b"), node: NodeRank(0) };
        create_dir_all(other.node_dir()).unwrap();
        let began = wall_time() - 1.0;
        for (paths, name) in [(&run.paths, "r"), (&other, "b")] {
            manifest::write(paths, &manifest(name, began, true).bytes()).unwrap();
            remember(paths, &run.work).unwrap();
        }
        for name in ["own.csv", "other.csv", "both.csv", "unknown.csv"] {
            run.put(name, "1");
        }
        let id = |name: &str| FileId::of(&std::fs::symlink_metadata(run.work.folder.join(name)).unwrap());
        for (paths, written) in [(&run.paths, ["own.csv", "both.csv"]), (&other, ["other.csv", "both.csv"])] {
            let mut log = WriterLog::new(paths, &run.work.folder);
            log.add(written.map(id));
            log.beat();
        }
        let found = find(&run.paths).unwrap().state;
        assert_eq!(found.files.keys().collect::<Vec<_>>(), ["both.csv", "own.csv", "unknown.csv"]);
        assert_eq!(found.shared.iter().collect::<Vec<_>>(), ["both.csv", "unknown.csv"]);
        let read = ["own.csv", "other.csv", "unknown.csv"].map(|name| path_of(&run.paths, name).is_some());
        assert_eq!(read, [true, false, true]);
        let settled = settle(&run.paths).unwrap();
        assert_eq!((settled.files, settled.names), (1, vec!["own.csv".to_owned()]));
        assert_eq!((settled.shared, settled.shared_with), (2, vec!["b".to_owned()]));
        // What came after the end of the first run is the other one's alone.
        date(&run.paths.results(), wall_time() - 5.0);
        let found = find(&other).unwrap().state;
        assert_eq!(found.files.len(), 4);
        assert!(found.shared.is_empty(), "{found:?}");
    }

    #[test]
    fn sources_that_the_user_edits_in_place_are_no_results() {
        let mut run = TestRun::new();
        run.work.in_place = true;
        run.work.apart = apart(run.folder.path());
        run.work.folder = run.folder.path().to_owned();
        run.put("train.py", "1");
        run.put("state.bin", "1");
        run.put("work/own.txt", "1");
        remember(&run.paths, &run.work).unwrap();
        run.put("train.py", "longer");
        run.put("state.bin", "longer");
        run.put("plot.py", "new");
        run.put(".cache/model", "new");
        run.put("outputs/.hydra/config.yaml", "new");
        run.put("runs/other/node0/rank0.log", "new");
        run.put("work/more.txt", "1");
        assert_eq!(run.names(), ["outputs/.hydra/config.yaml", "plot.py", "state.bin", "work/more.txt"]);
        put(run.folder.path().join("work/.ppo.pack.json"), "{}").unwrap();
        assert!(apart(run.folder.path()).contains(&run.folder.path().join("work")));
    }

    #[test]
    fn results_2_search_is_bounded() {
        let run = TestRun::new();
        let deep: PathBuf = (0..DEPTH + 2).map(|_| "d").collect();
        create_dir_all(run.work.folder.join(&deep)).unwrap();
        remember(&run.paths, &run.work).unwrap();
        put(run.work.folder.join(&deep).join("a.pt"), "x").unwrap();
        run.put("near.pt", "x");
        let found = find(&run.paths).unwrap();
        assert_eq!(found.state.files.into_keys().collect::<Vec<_>>(), ["near.pt"]);
        assert!(!found.state.complete);
    }
}
