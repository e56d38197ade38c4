//! Files of ranks that look like checkpoints: whether one is being written, and which are there at the end.
//!
//! A script need not report its checkpoints. What a rank's processes hold open for writing is theirs; a file
//! that is written in a moment is found at the end, in the directories that they worked in or wrote to.
//!
//! Owner: one thread looks at descriptors; the search runs on the thread that verifies the stop. Invariants:
//! - CHECKPOINT-1: names alone decide, those of directories included; a file is never opened.
//! - CHECKPOINT-2: the search is bounded in time and entries, and reports whether it was complete.

use crate::proc::{self, ProcessKey};
use rankdeck_proto::message::CheckpointFile;
use rankdeck_types::ids::WallTime;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant, SystemTime};

/// Endings of checkpoints.
const ENDINGS: [&str; 5] = ["pt", "pth", "ckpt", "zip", "safetensors"];
/// Beginning of the name of a directory that is one checkpoint.
const FOLDER: &str = "checkpoint-";
/// Between two looks at descriptors: each costs some time of the ranks' cores.
const ROUND: Duration = Duration::from_secs(5);
/// The same while ranks are asked to end.
const STOPPING_ROUND: Duration = Duration::from_millis(500);
/// Most processes of a rank that are looked at, and descriptors of each.
const PROCESSES: usize = 64;
const DESCRIPTORS: usize = 1024;
/// Most directories and files that are remembered.
const FOLDERS: usize = 64;
const FILES: usize = 256;
/// Bounds of a search.
const ENTRIES: usize = 50_000;
const DEPTH: usize = 8;
const PATIENCE: Duration = Duration::from_millis(1500);
/// Most files that are reported.
const REPORTED: usize = 32;
/// File systems may be so far behind the clock.
const TICK: Duration = Duration::from_millis(20);
/// Directories without checkpoints of a run.
const SKIPPED: [&str; 4] = ["__pycache__", "node_modules", "site-packages", "dist-packages"];

/// What is remembered of the present generation.
#[derive(Default)]
struct FilesState {
    ranks: Vec<ProcessKey>,
    stopping: bool,
    /// Ranks write where this process cannot see it.
    hidden: bool,
    since: Option<SystemTime>,
    /// Directories of all runs; those of others are not searched.
    runs: PathBuf,
    folders: BTreeSet<PathBuf>,
    /// Files that were seen open for writing, with size and position.
    open: BTreeMap<PathBuf, (u64, u64)>,
    thread: Option<Thread>,
}

/// The checkpoint files of a host's ranks.
#[derive(Clone, Default)]
pub(crate) struct CheckpointFiles(Arc<Mutex<FilesState>>);

impl CheckpointFiles {
    /// Starts the thread; `grew` is called whenever a file that looks like a checkpoint has grown.
    ///
    /// Errors: the thread cannot be started.
    pub fn start(grew: impl Fn() + Send + 'static) -> io::Result<CheckpointFiles> {
        let files = CheckpointFiles::default();
        let own = files.clone();
        let thread = std::thread::Builder::new().name("files".into()).spawn(move || {
            loop {
                let (ranks, pause) = {
                    let state = own.lock();
                    (state.ranks.clone(), if state.stopping { STOPPING_ROUND } else { ROUND })
                };
                if ranks.is_empty() {
                    std::thread::park();
                    continue;
                }
                if own.look(&ranks) {
                    grew();
                }
                std::thread::park_timeout(pause);
            }
        })?;
        files.lock().thread = Some(thread.thread().clone());
        Ok(files)
    }

    /// A generation starts, with ranks in `folder`. `runs` is the directory of all runs; `hidden`: what ranks
    /// write is not visible from here, or is reported by themselves.
    pub fn begin(&self, folder: PathBuf, runs: PathBuf, hidden: bool) {
        let mut state = self.lock();
        let thread = state.thread.take();
        let folders = BTreeSet::from([folder]);
        let since = SystemTime::now().checked_sub(TICK);
        *state = FilesState { hidden, since, runs, folders, thread, ..FilesState::default() };
    }

    /// Sets the processes of ranks, and whether they are being stopped.
    pub fn aim(&self, ranks: Vec<ProcessKey>, stopping: bool) {
        let mut state = self.lock();
        let ranks = if state.hidden { Vec::new() } else { ranks };
        let changed = state.ranks != ranks || state.stopping != stopping;
        (state.ranks, state.stopping) = (ranks, stopping);
        if let Some(thread) = state.thread.as_ref().filter(|_| changed) {
            thread.unpark();
        }
    }

    /// Looks once; returns whether a file has grown since.
    fn look(&self, ranks: &[ProcessKey]) -> bool {
        let mut seen: BTreeMap<PathBuf, (u64, u64)> = BTreeMap::new();
        let mut folders = BTreeSet::new();
        for rank in ranks {
            let pids = std::iter::once(rank.pid).chain(proc::descendants(rank.pid));
            for pid in pids.take(PROCESSES) {
                folders.extend(std::fs::read_link(format!("/proc/{pid}/cwd")));
                seen.extend(written_by(pid));
            }
        }
        let mut state = self.lock();
        folders.extend(seen.keys().filter_map(|path| Some(artifact(path).parent()?.to_owned())));
        for folder in folders {
            if state.folders.len() < FOLDERS {
                state.folders.insert(folder);
            }
        }
        let mut grew = false;
        for (path, size) in seen {
            let known = state.open.get(&path);
            grew |= known.is_none_or(|known| *known < size);
            if known.is_some() || state.open.len() < FILES {
                state.open.insert(path, size);
            }
        }
        grew
    }

    /// CHECKPOINT-2. The newest checkpoints since the launch, oldest first; `None`: ranks report their own, or
    /// nothing can be seen. Blocks.
    pub fn find(&self) -> Option<(Vec<CheckpointFile>, bool)> {
        let (folders, open, runs, since) = {
            let state = self.lock();
            if state.hidden {
                return None;
            }
            let open: BTreeSet<PathBuf> = state.open.keys().map(|path| artifact(path)).collect();
            (state.folders.clone(), open, state.runs.clone(), state.since?)
        };
        let mut search = CheckpointSearch::new(runs, since);
        open.iter().for_each(|path| search.add_named(path));
        // A directory below another one is searched with that.
        let covers = |above: &Path, folder: &Path| {
            folders.contains(above) && search.is_of_a_run(above) == search.is_of_a_run(folder)
        };
        let is_top = |folder: &&PathBuf| !folder.ancestors().skip(1).any(|above| covers(above, folder));
        let tops: Vec<&PathBuf> = folders.iter().filter(is_top).collect();
        for folder in tops {
            search.walk(folder);
        }
        Some(search.finish(&open))
    }

    fn lock(&self) -> MutexGuard<'_, FilesState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// CHECKPOINT-1. A part of the name is the ending of a checkpoint, as in `model.pt.tmp`.
fn is_named_so(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut parts = name.split('.').skip(1);
    parts.any(|part| ENDINGS.contains(&part)) || artifact(path) != path
}

/// The checkpoint that a file is part of: the outermost directory that is one, or the file itself.
fn artifact(path: &Path) -> PathBuf {
    let is_one = |folder: &&Path| {
        folder.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(FOLDER.as_bytes()))
    };
    path.ancestors().skip(1).filter(is_one).last().unwrap_or(path).to_owned()
}

/// Files of a process that look like checkpoints and are open for writing, with size and position. Links in
/// `/proc` are read, never followed.
fn written_by(pid: u32) -> Vec<(PathBuf, (u64, u64))> {
    let Ok(folder) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let found = folder.flatten().take(DESCRIPTORS).filter_map(|entry| {
        let path = std::fs::read_link(entry.path()).ok()?;
        if !path.is_absolute() || !is_named_so(&path) {
            return None;
        }
        let number = entry.file_name();
        let info = proc::text(format!("/proc/{pid}/fdinfo/{}", number.to_str()?))?;
        let value = |name: &str| info.lines().find_map(|line| Some(line.strip_prefix(name)?.trim()));
        let flags = i32::from_str_radix(value("flags:")?, 8).ok()?;
        let position = value("pos:").and_then(|text| text.parse().ok()).unwrap_or(0);
        let size = std::fs::symlink_metadata(&path).map_or(0, |data| data.len());
        (flags & libc::O_ACCMODE != libc::O_RDONLY).then_some((path, (size, position)))
    });
    found.collect()
}

/// A search for checkpoints.
struct CheckpointSearch {
    runs: PathBuf,
    since: SystemTime,
    begun: Instant,
    entries: usize,
    complete: bool,
    /// Size and latest change of each.
    found: BTreeMap<PathBuf, (u64, SystemTime)>,
}

impl CheckpointSearch {
    fn new(runs: PathBuf, since: SystemTime) -> CheckpointSearch {
        CheckpointSearch {
            runs,
            since,
            begun: Instant::now(),
            entries: 0,
            complete: true,
            found: BTreeMap::new(),
        }
    }

    /// It lies in a run's directory.
    fn is_of_a_run(&self, folder: &Path) -> bool {
        folder.parent().is_some_and(|above| above.starts_with(&self.runs))
    }

    fn add(&mut self, path: &Path, data: &Metadata) {
        let Ok(modified) = data.modified() else { return };
        if modified >= self.since {
            let known = self.found.entry(artifact(path)).or_insert((0, modified));
            *known = (known.0.saturating_add(data.len()), known.1.max(modified));
        }
    }

    /// A checkpoint that was seen open, wherever it is.
    fn add_named(&mut self, path: &Path) {
        match std::fs::symlink_metadata(path) {
            Ok(data) if data.is_dir() => self.walk(path),
            Ok(data) if data.is_file() => self.add(path, &data),
            Ok(_) | Err(_) => {}
        }
    }

    fn walk(&mut self, top: &Path) {
        let mut todo = vec![(top.to_owned(), 0)];
        while let Some((folder, depth)) = todo.pop() {
            let Ok(entries) = std::fs::read_dir(&folder) else { continue };
            for entry in entries.flatten() {
                self.entries += 1;
                if self.entries > ENTRIES || self.begun.elapsed() > PATIENCE {
                    self.complete = false;
                    return;
                }
                let Ok(kind) = entry.file_type() else { continue };
                let path = entry.path();
                if kind.is_dir() && self.is_searched(&path) {
                    match depth < DEPTH {
                        true => todo.push((path, depth + 1)),
                        false => self.complete = false,
                    }
                } else if kind.is_file()
                    && !self.found.contains_key(&path)
                    && is_named_so(&path)
                    && let Ok(data) = entry.metadata()
                {
                    self.add(&path, &data);
                }
            }
        }
    }

    /// Hidden directories, environments and other runs have none of this run's checkpoints.
    fn is_searched(&self, folder: &Path) -> bool {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let of_another_run = folder.parent() == Some(&self.runs) && folder.join("node0").is_dir();
        !name.starts_with('.')
            && !self.found.contains_key(folder)
            && !SKIPPED.contains(&&*name)
            && !of_another_run
            && !folder.join("pyvenv.cfg").exists()
    }

    fn finish(self, open: &BTreeSet<PathBuf>) -> (Vec<CheckpointFile>, bool) {
        let mut files: Vec<(PathBuf, (u64, SystemTime))> = self.found.into_iter().collect();
        files.sort_by_key(|(_, (_, modified))| *modified);
        let from = files.len().saturating_sub(REPORTED);
        let file = |(path, (bytes, modified)): (PathBuf, (u64, SystemTime))| CheckpointFile {
            observed: open.contains(&path),
            path: path.display().to_string(),
            bytes,
            modified: seconds(modified),
        };
        (files.split_off(from).into_iter().map(file).collect(), self.complete)
    }
}

fn seconds(time: SystemTime) -> WallTime {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};
    use std::process::{Child, Command, Stdio};

    #[test]
    fn checkpoint_1_names_decide() {
        let named = |path: &str| is_named_so(Path::new(path));
        for path in ["/w/a.pt", "/w/a.zip", "/w/x.ckpt.tmp", "/w/.m.pth.1", "/w/checkpoint-20/optimizer.bin"]
        {
            assert!(named(path), "{path}");
        }
        for path in ["/w/a.py", "/w/pt", "/w/events.out.tfevents.1", "/w/checkpoint-20", "/w/ckpt/log.txt"] {
            assert!(!named(path), "{path}");
        }
        let of = |path: &str| artifact(Path::new(path)).display().to_string();
        assert_eq!(of("/w/checkpoint-20/a/b.pt"), "/w/checkpoint-20");
        assert_eq!(of("/w/a.pt"), "/w/a.pt");
    }

    fn begun(folder: &Path) -> CheckpointFiles {
        let files = CheckpointFiles::default();
        files.begin(folder.to_owned(), folder.join("runs"), false);
        files
    }

    fn names(found: &[CheckpointFile], folder: &Path) -> Vec<String> {
        let prefix = format!("{}/", folder.display());
        found.iter().map(|file| file.path.trim_start_matches(&prefix).to_owned()).collect()
    }

    #[test]
    fn checkpoints_since_the_launch_are_found_and_summed() {
        let made = tempfile::tempdir().unwrap();
        let at = |name: &str| made.path().join(name);
        for folder in ["logs/ppo", "checkpoint-20", "runs/other/node0", ".git", "venv"] {
            create_dir_all(at(folder)).unwrap();
        }
        write(at("old.pt"), "old").unwrap();
        let old = std::fs::File::options().write(true).open(at("old.pt")).unwrap();
        old.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
        write(at("venv/pyvenv.cfg"), "").unwrap();
        let files = begun(made.path());
        for hidden in ["runs/other/node0/a.pt", ".git/a.pt", "venv/a.pt", "train.py"] {
            write(at(hidden), "x").unwrap();
        }
        write(at("checkpoint-20/model.bin"), "12345").unwrap();
        write(at("checkpoint-20/a.safetensors"), "123").unwrap();
        let later = SystemTime::now() + Duration::from_secs(5);
        write(at("logs/ppo/best.zip"), "1234").unwrap();
        std::fs::File::options()
            .write(true)
            .open(at("logs/ppo/best.zip"))
            .unwrap()
            .set_modified(later)
            .unwrap();
        let (found, complete) = files.find().unwrap();
        assert_eq!(names(&found, made.path()), ["checkpoint-20", "logs/ppo/best.zip"]);
        assert_eq!(found.iter().map(|file| file.bytes).collect::<Vec<_>>(), [8, 4]);
        assert!(complete && found[0].modified > 1e9 && !found[0].observed, "{found:?}");
        files.begin(made.path().to_owned(), at("runs"), true);
        assert_eq!(files.find(), None, "what ranks write is hidden");
    }

    #[test]
    fn checkpoint_2_search_is_bounded() {
        let made = tempfile::tempdir().unwrap();
        let deep: PathBuf = (0..DEPTH + 2).map(|_| "d").collect();
        create_dir_all(made.path().join(&deep)).unwrap();
        let files = begun(made.path());
        write(made.path().join(&deep).join("a.pt"), "x").unwrap();
        assert_eq!(files.find(), Some((Vec::new(), false)));
    }

    struct Writer(Child);

    impl Drop for Writer {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// A child that appends to a checkpoint outside the directory of its rank whenever it gets a line.
    #[test]
    fn checkpoint_that_a_rank_writes_is_seen_to_grow() {
        use std::io::Write;
        let (made, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let target = other.path().canonicalize().unwrap().join("model.pt.tmp");
        let script = "exec 3>\"$0\"; while read line; do echo \"$line\" >&3; done";
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).arg(&target).current_dir(made.path()).stdin(Stdio::piped());
        let mut writer = Writer(shell.spawn().unwrap());
        let stat = proc::stat(writer.0.id()).unwrap();
        let rank = [ProcessKey { pid: stat.pid, start: stat.start }];
        let files = begun(made.path());
        let deadline = Instant::now() + Duration::from_secs(30);
        while !files.look(&rank) {
            assert!(Instant::now() < deadline, "not opened within 30 s");
        }
        assert!(!files.look(&rank), "it stands still");
        writer.0.stdin.as_mut().unwrap().write_all(b"weights\n").unwrap();
        while !files.look(&rank) {
            assert!(Instant::now() < deadline, "did not grow within 30 s");
        }
        // It is renamed when it is complete.
        std::fs::rename(&target, other.path().join("model.pt")).unwrap();
        let (found, _) = files.find().unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].path.ends_with("model.pt") && found[0].bytes == 8, "{found:?}");
    }
}
