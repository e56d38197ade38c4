//! Files of ranks that look like checkpoints: whether one is being written, which are complete while ranks run,
//! and which are there at the end.
//!
//! A script need not report its checkpoints. What a rank's processes hold open for writing is theirs; a file
//! that is written in a moment is found by a search of the directories that they work in or write to.
//!
//! Owner: one thread looks at descriptors and searches; the last search runs on the thread that verifies the
//! stop. Invariants:
//! - CHECKPOINT-1: names alone decide, those of directories included; of an archive (`.zip`), also the name of its
//!   first entry.
//! - CHECKPOINT-2: a search is bounded in time and entries, and the last one reports whether it was complete.
//! - CHECKPOINT-3: a checkpoint is reported while ranks run once it is not open and has not changed for a while,
//!   and again only after another change. What a rank reports itself is not reported a second time.
//! - CHECKPOINT-4: while another run works in the same `workdir`, only what a rank was seen to write is its own.
//! - CHECKPOINT-5: data sets and downloads do not count as checkpoints: an archive without the layout of one, what lies in a
//!   cache, and what lies in a directory of data, unless their names are those of checkpoints. What the user's
//!   patterns name always is one.
//! - CHECKPOINT-6: what is cut off ([`saved_file`]) is not reported while ranks run, and is marked at the end.

use crate::other_runs;
use crate::proc::{self, ProcessKey};
use crate::saved_file;
use crate::writers::{FileId, WriterLog};
use rankdeck_proto::files::{CHECKPOINT_ENDINGS, SHARD_ENDING, is_checkpoint_folder};
use rankdeck_proto::message::{CheckpointFile, StepSource};
use rankdeck_proto::regular;
use rankdeck_types::ids::WallTime;
use rankdeck_types::path_pattern;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant, SystemTime};

/// Endings of files that are not complete, whatever comes before.
const PARTIAL: [&str; 4] = ["tmp", "temp", "part", "partial"];
/// Directories of data sets and downloads, in lower case.
const DATA: [&str; 10] = [
    "data",
    "dataset",
    "datasets",
    "download",
    "downloads",
    "raw",
    "corpus",
    "corpora",
    "pretrained",
    "cache",
];
/// Directories of downloads, wherever they are: of pip, PyTorch, Hugging Face and others.
const CACHES: [&str; 4] = [".cache", "huggingface", "torch_extensions", ".keras"];
/// Beginnings of directories in which Hugging Face keeps downloads.
const DOWNLOADED: [&str; 3] = ["models--", "datasets--", "spaces--"];
/// Words in the names of checkpoints, in lower case.
const WORDS: [&str; 17] = [
    "checkpoint",
    "ckpt",
    "model",
    "best",
    "last",
    "latest",
    "final",
    "epoch",
    "step",
    "iter",
    "policy",
    "actor",
    "critic",
    "agent",
    "weights",
    "optim",
    "save",
];
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
/// Between two searches while ranks run: this long at first, then twice as long each time up to the bound.
const SEARCH_FIRST: Duration = Duration::from_secs(5);
const SEARCH_ROUND: Duration = Duration::from_secs(30);
/// Bounds of each.
const SEARCH_ENTRIES: usize = 5_000;
const SEARCH_PATIENCE: Duration = Duration::from_millis(50);
/// A file, and a directory of files, are complete when they have not changed for this long.
const SETTLED: Duration = Duration::from_secs(1);
const SETTLED_FOLDER: Duration = Duration::from_secs(5);
/// A file that changed this long after its report was written again.
const AGAIN: Duration = Duration::from_secs(1);
/// Most files that are reported at once.
const REPORTED: usize = 32;
/// File systems may be so far behind the clock.
const TICK: Duration = Duration::from_millis(20);
/// Directories without checkpoints of a run.
const SKIPPED: [&str; 4] = ["__pycache__", "node_modules", "site-packages", "dist-packages"];

/// Which names are those of checkpoints.
#[derive(Clone, Default)]
struct CheckpointNames {
    /// The directory of the ranks.
    folder: PathBuf,
    /// Patterns of the user, below it or of whole paths.
    patterns: Arc<[String]>,
}

impl CheckpointNames {
    /// CHECKPOINT-1, CHECKPOINT-5. A part of the name is the ending of a checkpoint, as in `model.pt.tmp`.
    fn is_named(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut parts = name.split('.').skip(1);
        self.fits(path)
            || self.is_in_own_folder(path)
            || (parts.any(|part| part == SHARD_ENDING || CHECKPOINT_ENDINGS.contains(&part))
                || self.artifact(path) != path)
                && !self.is_data(path)
    }

    /// The file may be a checkpoint by its content, where that counts (CHECKPOINT-5). Its name is that of one.
    fn is_laid_out(&self, path: &Path) -> bool {
        let is_archive = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("zip"));
        !is_archive
            || self.fits(path)
            || self.artifact(path) != path
            || is_saved_archive(path)
            || is_worded(path)
    }

    /// A directory that a pattern of the user names has the file.
    fn is_in_own_folder(&self, path: &Path) -> bool {
        path.ancestors().skip(1).any(|folder| self.fits(folder))
    }

    /// It lies in a cache, or in a directory of data without the name of a checkpoint.
    fn is_data(&self, path: &Path) -> bool {
        let names = |path: &Path| -> Vec<String> {
            let folders = path.parent().into_iter().flat_map(Path::components);
            folders.map(|part| part.as_os_str().to_string_lossy().to_lowercase()).collect()
        };
        let is_download = |folders: &[String]| {
            let is_hub = folders.windows(2).any(|pair| pair == ["hub", "checkpoints"]);
            let is_named = |folder: &String| {
                CACHES.contains(&folder.as_str()) || DOWNLOADED.iter().any(|start| folder.starts_with(start))
            };
            is_hub || folders.iter().any(is_named)
        };
        // In the ranks' directory, names above it are those of a disk or a user; elsewhere the last one counts.
        let (folders, of_data) = match path.strip_prefix(&self.folder) {
            Ok(below) => (names(below), names(below)),
            Err(_) => (names(path), names(path).into_iter().next_back().into_iter().collect()),
        };
        let is_shard = path.extension().is_some_and(|ending| ending == SHARD_ENDING);
        let is_of_data = |folder: &String| DATA.contains(&folder.as_str());
        is_download(&folders)
            || !is_shard && of_data.iter().any(is_of_data) && !is_worded(&self.artifact(path))
    }

    /// A pattern of the user fits the path.
    fn fits(&self, path: &Path) -> bool {
        let below = path.strip_prefix(&self.folder).ok().and_then(Path::to_str);
        let below = below.filter(|below| !below.is_empty());
        self.patterns.iter().any(|pattern| {
            let text = if pattern.starts_with('/') { path.to_str() } else { below };
            text.is_some_and(|text| path_pattern::fits(pattern.trim_end_matches('/'), text))
        })
    }

    /// The directories that absolute patterns name.
    fn places(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let place = |pattern: &String| {
            let fixed = pattern.find(['*', '?']).map_or(pattern.as_str(), |star| &pattern[..star]);
            let (folder, name) = fixed.trim_end_matches('/').rsplit_once('/')?;
            // A directory, unless its name has an ending.
            let is_folder = fixed.len() == pattern.len() && !name.contains('.') || fixed.ends_with('/');
            let folder = if is_folder { fixed } else { folder };
            (pattern.starts_with('/') && !folder.is_empty()).then(|| PathBuf::from(folder))
        };
        self.patterns.iter().filter_map(place)
    }

    /// The checkpoint that a file is part of: the outermost directory that is one, or the file itself.
    fn artifact(&self, path: &Path) -> PathBuf {
        // The ranks' directory is not a checkpoint, whatever its name is and whatever it contains.
        let is_inside = |folder: &Path| !self.folder.starts_with(folder);
        let is_one = |folder: &&Path| {
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            is_inside(folder) && is_checkpoint_folder(&name) || self.fits(folder)
        };
        if let Some(folder) = path.ancestors().skip(1).filter(is_one).last() {
            return folder.to_owned();
        }
        let is_shard = path.extension().is_some_and(|ending| ending == SHARD_ENDING);
        let folder = path.parent().filter(|folder| is_shard && is_inside(folder));
        folder.unwrap_or(path).to_owned()
    }

    /// The file has its last name.
    fn is_final(path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let ending = name.rsplit('.').next().unwrap_or_default();
        !name.starts_with('.') && !PARTIAL.contains(&ending)
    }
}

/// The name has a word of checkpoints.
fn is_worded(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    WORDS.iter().any(|word| name.contains(word))
}

/// The archive begins as those that PyTorch (`NAME/data.pkl`) and Stable-Baselines3 (`data`, `policy.pth`) save.
fn is_saved_archive(path: &Path) -> bool {
    /// Bytes before the name of the first entry, and where its length is.
    const HEADER: usize = 30;
    const LENGTH: usize = 26;
    let Ok(mut file) = regular::open(path) else { return false };
    let mut bytes = [0; HEADER + 256];
    let mut filled = 0;
    while let Ok(read @ 1..) = file.read(&mut bytes[filled..]) {
        filled += read;
    }
    let length = usize::from(u16::from_le_bytes([bytes[LENGTH], bytes[LENGTH + 1]]));
    let Some(name) = bytes[..filled].get(HEADER..HEADER + length) else { return false };
    bytes.starts_with(b"PK\x03\x04")
        && (name == b"data" || name.ends_with(b".pth") || name.ends_with(b"data.pkl"))
}

/// What is remembered of the present generation.
#[derive(Default)]
struct FilesState {
    /// Ranks that live.
    alive: Vec<ProcessKey>,
    /// Those of them whose files are looked at.
    ranks: Vec<ProcessKey>,
    /// What ranks write in the directory that they work in.
    writers: Option<WriterLog>,
    stopping: bool,
    /// Ranks write to places that this process cannot read.
    hidden: bool,
    since: Option<SystemTime>,
    /// The run's directory; other runs' directories next to it are not searched.
    run_dir: PathBuf,
    names: CheckpointNames,
    folders: BTreeSet<PathBuf>,
    /// Files that were seen open for writing, with size and position.
    open: BTreeMap<PathBuf, (u64, u64)>,
    /// Checkpoints that are open now.
    written: BTreeSet<PathBuf>,
    /// Checkpoints that were closed, until they are reported.
    closed: BTreeSet<PathBuf>,
    /// Reported checkpoints, with size and latest change.
    recorded: BTreeMap<PathBuf, (u64, SystemTime)>,
    /// When ranks have reported checkpoints themselves.
    reported: BTreeMap<PathBuf, SystemTime>,
    /// Environment steps of the ranks over time.
    steps: StepHistory,
    /// Checkpoints that had changed within the last moment when they were found, with their inodes.
    unsettled: BTreeMap<PathBuf, u64>,
    /// The next search, and the time until the one after it.
    search_at: Option<(Instant, Duration)>,
    thread: Option<Thread>,
}

/// The checkpoint files of a host's ranks.
#[derive(Clone, Default)]
pub(crate) struct CheckpointFiles(Arc<Mutex<FilesState>>);

impl CheckpointFiles {
    /// Starts the thread; `grew` is called whenever a file that looks like a checkpoint has grown, `found` with
    /// checkpoints that are complete.
    ///
    /// Errors: the thread cannot be started.
    pub fn start(
        grew: impl Fn() + Send + 'static,
        found: impl Fn(Vec<CheckpointFile>) + Send + 'static,
    ) -> io::Result<CheckpointFiles> {
        let files = CheckpointFiles::default();
        let own = files.clone();
        let thread = std::thread::Builder::new().name("files".into()).spawn(move || {
            loop {
                let (is_alive, ranks, pause) = {
                    let state = own.lock();
                    let pause = if state.stopping { STOPPING_ROUND } else { ROUND };
                    let is_alive = !state.alive.is_empty() && (!state.hidden || state.writers.is_some());
                    (is_alive, state.ranks.clone(), pause)
                };
                if !is_alive {
                    std::thread::park();
                    continue;
                }
                own.beat();
                if own.look(&ranks) {
                    grew();
                }
                own.beat();
                let complete = own.completed(SystemTime::now());
                if !complete.is_empty() {
                    found(complete);
                }
                std::thread::park_timeout(pause);
            }
        })?;
        files.lock().thread = Some(thread.thread().clone());
        Ok(files)
    }

    /// A generation starts, with ranks in `folder`. `run_dir` is the run's directory; `hidden`: what ranks write
    /// is not visible from here, or is reported by themselves. `patterns`: further names, below `folder` or of whole
    /// paths. `writers`: the list of what ranks write there.
    pub fn begin(
        &self,
        folder: PathBuf,
        run_dir: PathBuf,
        hidden: bool,
        patterns: &[String],
        writers: Option<WriterLog>,
    ) {
        let mut state = self.lock();
        let thread = state.thread.take();
        let since = SystemTime::now().checked_sub(TICK);
        let names = CheckpointNames { folder: folder.clone(), patterns: patterns.into() };
        let folders = std::iter::once(folder).chain(names.places()).take(FOLDERS).collect();
        *state =
            FilesState { hidden, since, run_dir, names, folders, writers, thread, ..FilesState::default() };
    }

    /// Sets the processes of ranks, and whether they are being stopped.
    pub fn aim(&self, ranks: Vec<ProcessKey>, stopping: bool) {
        let mut state = self.lock();
        let changed = state.alive != ranks || state.stopping != stopping;
        state.ranks = if state.hidden { Vec::new() } else { ranks.clone() };
        (state.alive, state.stopping) = (ranks, stopping);
        if let Some(thread) = state.thread.as_ref().filter(|_| changed) {
            thread.unpark();
        }
    }

    /// A rank has reported a checkpoint itself.
    pub fn reported(&self, path: &str) {
        let mut state = self.lock();
        if state.reported.len() < FILES || state.reported.contains_key(Path::new(path)) {
            state.reported.insert(path.into(), SystemTime::now());
        }
    }

    /// The ranks have come to this step.
    pub fn stepped(&self, env_step: u64) {
        self.lock().steps.add(SystemTime::now(), env_step);
    }

    /// Looks once; returns whether a file has grown since.
    fn look(&self, ranks: &[ProcessKey]) -> bool {
        let mut seen: BTreeMap<PathBuf, (u64, u64)> = BTreeMap::new();
        let mut folders = BTreeSet::new();
        let (names, inside) = {
            let state = self.lock();
            (state.names.clone(), state.writers.as_ref().map(|writers| writers.folder().to_owned()))
        };
        let mut written_inside = BTreeSet::new();
        for rank in ranks {
            let pids = std::iter::once(rank.pid).chain(proc::descendants(rank.pid));
            for pid in pids.take(PROCESSES) {
                folders.extend(std::fs::read_link(format!("/proc/{pid}/cwd")));
                for (path, size) in written_by(pid, &names, inside.as_deref()) {
                    if inside.as_ref().is_some_and(|inside| path.starts_with(inside)) {
                        written_inside.extend(std::fs::symlink_metadata(&path).map(|data| FileId::of(&data)));
                    }
                    if names.is_named(&path) {
                        seen.insert(path, size);
                    }
                }
            }
        }
        let mut state = self.lock();
        state.writers.iter_mut().for_each(|writers| writers.add(written_inside.iter().copied()));
        folders.extend(seen.keys().filter_map(|path| Some(names.artifact(path).parent()?.to_owned())));
        for folder in folders {
            if state.folders.len() < FOLDERS {
                state.folders.insert(folder);
            }
        }
        let written: BTreeSet<PathBuf> = seen.keys().map(|path| names.artifact(path)).collect();
        let before = std::mem::replace(&mut state.written, written);
        for path in before {
            if !state.written.contains(&path) && state.closed.len() < FILES {
                state.closed.insert(path);
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

    /// Notes that ranks live, and what they were seen to write.
    fn beat(&self) {
        // Disks are not waited for with the state in hand.
        let writers = self.lock().writers.take();
        if let Some(mut writers) = writers {
            writers.beat();
            // The next generation may have begun.
            self.lock().writers.get_or_insert(writers);
        }
    }

    /// CHECKPOINT-3. Checkpoints that have been completed since the last call, oldest first.
    fn completed(&self, now: SystemTime) -> Vec<CheckpointFile> {
        let (search, closed, unsettled, is_due) = {
            let mut state = self.lock();
            let (due, round) =
                state.search_at.get_or_insert_with(|| (Instant::now() + SEARCH_FIRST, SEARCH_FIRST));
            let is_due = *due <= Instant::now();
            if is_due {
                *round = (*round * 2).min(SEARCH_ROUND);
                *due = Instant::now() + *round;
            }
            (state.search(), state.closed.clone(), std::mem::take(&mut state.unsettled), is_due)
        };
        let begins = is_due || !closed.is_empty() || !unsettled.is_empty();
        let Some(mut search) = search.filter(|_| begins) else { return Vec::new() };
        (search.most, search.patience) = (SEARCH_ENTRIES, SEARCH_PATIENCE);
        unsettled.keys().for_each(|path| search.add_named(path));
        for path in &closed {
            search.add_named(path);
            // It may have got its last name since, and others may have been written meanwhile.
            if let Some(folder) = path.parent() {
                search.list(folder);
            }
        }
        if is_due {
            let tops = self.lock().tops(&search);
            tops.iter().for_each(|folder| search.walk(folder));
        }
        // Disks are not waited for with the state in hand.
        let found: Vec<FoundCheckpoint> = search
            .found
            .into_iter()
            .map(|(path, (bytes, modified))| {
                let data = std::fs::symlink_metadata(&path).ok();
                let (is_folder, inode) = data.map_or((false, 0), |data| (data.is_dir(), data.ino()));
                let replaced = unsettled.get(&path).is_some_and(|before| *before != inode);
                FoundCheckpoint { is_folder, inode, replaced, path, bytes, modified }
            })
            .collect();
        // Complete files are reported, or known already.
        let is_settled = |found: &&FoundCheckpoint| {
            now.duration_since(found.modified).is_ok_and(|age| age >= SETTLED_FOLDER)
        };
        let settled: BTreeSet<PathBuf> =
            found.iter().filter(is_settled).map(|found| found.path.clone()).collect();
        // What has gone was renamed or removed.
        let there: BTreeSet<PathBuf> = closed.into_iter().filter(|path| path.exists()).collect();
        let (mut own, seen, run_dir) = {
            let mut state = self.lock();
            // Looked at again at the next call, before the next search.
            let changing =
                found.iter().filter(|found| !found.is_settled(now) && state.is_own(found)).take(FILES);
            let changing = changing.map(|found| (found.path.clone(), found.inode)).collect();
            let new =
                found.into_iter().filter(|found| state.is_new(found, now)).collect::<Vec<FoundCheckpoint>>();
            state.unsettled = changing;
            (new, state.seen(), state.run_dir.clone())
        };
        let is_seen = |found: &FoundCheckpoint| seen.contains(&found.path) || there.contains(&found.path);
        // CHECKPOINT-4.
        if !own.iter().all(is_seen) && other_runs::any_live(&run_dir) {
            own.retain(is_seen);
        }
        own.sort_by_key(|found| found.modified);
        own.truncate(REPORTED);
        // CHECKPOINT-6. Its writer may only be slow: it is looked at again.
        own.retain(|found| !saved_file::is_cut_off(&found.path));
        let mut state = self.lock();
        for found in &own {
            if state.recorded.len() >= FILES && !state.recorded.contains_key(&found.path) {
                state.recorded.pop_first();
            }
            state.recorded.insert(found.path.clone(), (found.bytes, found.modified));
        }
        let recorded: BTreeSet<&PathBuf> = own.iter().map(|found| &found.path).collect();
        state
            .closed
            .retain(|path| there.contains(path) && !recorded.contains(path) && !settled.contains(path));
        own.iter().map(|found| state.file(found, is_seen(found))).collect()
    }

    /// CHECKPOINT-2. The newest checkpoints since the launch, oldest first; `None`: ranks report their own, or
    /// nothing can be seen. Blocks.
    pub fn find(&self) -> Option<(Vec<CheckpointFile>, bool)> {
        let (mut search, seen, run_dir) = {
            let state = self.lock();
            (state.search()?, state.seen(), state.run_dir.clone())
        };
        seen.iter().for_each(|path| search.add_named(path));
        let tops = self.lock().tops(&search);
        tops.iter().for_each(|folder| search.walk(folder));
        let CheckpointSearch { found, mut complete, .. } = search;
        let found = found.into_iter();
        let mut files: Vec<FoundCheckpoint> = found
            .map(|(path, (bytes, modified))| FoundCheckpoint {
                path,
                bytes,
                modified,
                is_folder: false,
                inode: 0,
                replaced: false,
            })
            .collect();
        // CHECKPOINT-4.
        let is_seen = |found: &FoundCheckpoint| seen.contains(&found.path);
        if !files.iter().all(is_seen) && other_runs::any_live(&run_dir) {
            files.retain(is_seen);
            complete = false;
        }
        files.sort_by_key(|found| found.modified);
        let from = files.len().saturating_sub(REPORTED);
        let newest = files.split_off(from);
        // CHECKPOINT-6.
        let cut_off: Vec<bool> = newest.iter().map(|found| saved_file::is_cut_off(&found.path)).collect();
        let state = self.lock();
        let file = |(found, is_cut_off): (&FoundCheckpoint, bool)| CheckpointFile {
            is_cut_off,
            ..state.file(found, is_seen(found))
        };
        Some((newest.iter().zip(cut_off).map(file).collect(), complete))
    }

    fn lock(&self) -> MutexGuard<'_, FilesState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FilesState {
    /// A search of what has changed since the launch; `None`: ranks report their own, or nothing can be seen.
    fn search(&self) -> Option<CheckpointSearch> {
        let since = self.since.filter(|_| !self.hidden)?;
        let runs = self.run_dir.parent().unwrap_or(&self.run_dir).to_owned();
        Some(CheckpointSearch::new(runs, self.names.clone(), since))
    }

    /// Checkpoints that ranks were seen to write.
    fn seen(&self) -> BTreeSet<PathBuf> {
        self.open.keys().map(|path| self.names.artifact(path)).collect()
    }

    /// Directories to search: one below another is searched with that.
    fn tops(&self, search: &CheckpointSearch) -> Vec<PathBuf> {
        let covers = |above: &Path, folder: &Path| {
            self.folders.contains(above) && search.is_of_a_run(above) == search.is_of_a_run(folder)
        };
        let is_top = |folder: &&PathBuf| !folder.ancestors().skip(1).any(|above| covers(above, folder));
        self.folders.iter().filter(is_top).cloned().collect()
    }

    /// CHECKPOINT-3. It is complete, and not known.
    fn is_new(&self, found: &FoundCheckpoint, now: SystemTime) -> bool {
        let FoundCheckpoint { path, bytes, modified, .. } = found;
        // A rank that saves more often than files settle: one version in a while is enough.
        let is_old = |(_, before): &(u64, SystemTime)| {
            modified.duration_since(*before).is_ok_and(|age| age >= SEARCH_ROUND)
        };
        let replaced = found.replaced && self.recorded.get(path).is_none_or(is_old);
        (found.is_settled(now) || replaced)
            && self.is_own(found)
            && self.recorded.get(path) != Some(&(*bytes, *modified))
    }

    /// It has its last name, is closed, and ranks do not report it themselves.
    fn is_own(&self, found: &FoundCheckpoint) -> bool {
        let FoundCheckpoint { path, modified, .. } = found;
        let is_reported = self.reported.iter().any(|(reported, at)| {
            (path.starts_with(reported) || reported.starts_with(path)) && *modified <= *at + AGAIN
        });
        CheckpointNames::is_final(path) && !self.written.contains(path) && !is_reported
    }

    fn file(&self, found: &FoundCheckpoint, observed: bool) -> CheckpointFile {
        let name = found.path.file_name().unwrap_or_default().to_string_lossy();
        let (env_step, step_from) = step(&name, self.steps.around(found.modified)).unzip();
        CheckpointFile {
            path: found.path.display().to_string(),
            bytes: found.bytes,
            modified: seconds(found.modified),
            observed,
            env_step,
            step_from,
            is_cut_off: false,
        }
    }
}

/// A checkpoint as a search has found it.
struct FoundCheckpoint {
    path: PathBuf,
    /// Size, of all files in it.
    bytes: u64,
    modified: SystemTime,
    is_folder: bool,
    inode: u64,
    /// Another file has taken its name since the last look: that one was complete.
    replaced: bool,
}

impl FoundCheckpoint {
    fn is_settled(&self, now: SystemTime) -> bool {
        let settled = if self.is_folder { SETTLED_FOLDER } else { SETTLED };
        // A time in the future is one of another clock.
        now.duration_since(self.modified).map_or(true, |age| age >= settled)
    }
}

/// When ranks came to which step; thinned out when it is full.
#[derive(Default)]
struct StepHistory(Vec<(SystemTime, u64)>);

impl StepHistory {
    /// Entries of a history.
    const MOST: usize = 1024;

    fn add(&mut self, at: SystemTime, env_step: u64) {
        if env_step == 0 || self.0.last().is_some_and(|(_, last)| *last >= env_step) {
            return;
        }
        if self.0.len() >= Self::MOST {
            let mut number = 0;
            self.0.retain(|_| {
                number += 1;
                number % 2 == 0
            });
        }
        self.0.push((at, env_step));
    }

    /// The last step known at a time, and the largest one that the ranks can have reached by then: the next one
    /// that is known, or else twice as many. `None`: no steps are known.
    fn around(&self, at: SystemTime) -> Option<(u64, u64)> {
        let first = self.0.first()?;
        let next = self.0.partition_point(|(time, _)| *time <= at);
        let before = next.checked_sub(1).map_or(0, |last| self.0[last].1);
        let most = self.0.get(next).map_or(2 * before, |(_, step)| *step);
        Some((if before == 0 { first.1 } else { before }, most))
    }
}

/// Steps of a checkpoint: the last number of its name, unless the ranks' own count, [`StepHistory::around`] its
/// last change, shows that it counts something else.
fn step(name: &str, ranks: Option<(u64, u64)>) -> Option<(u64, StepSource)> {
    let named = number(name).filter(|named| {
        ranks.is_none_or(|(before, most)| *named <= most.max(before) && *named >= before / 2)
    });
    let named = named.map(|named| (named, StepSource::Name));
    named.or(ranks.map(|(before, _)| (before, StepSource::Rank)))
}

/// The last whole number of a name: `20` of `checkpoint-20`, none of `CartPole-v1.zip` or `best_0.95.pt`.
fn number(name: &str) -> Option<u64> {
    let stem = name.split_once('.').map_or(name, |(stem, rest)| {
        // A fraction belongs to no step.
        if rest.starts_with(|c: char| c.is_ascii_digit()) { "" } else { stem }
    });
    let mut found = None;
    let mut rest = stem;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from) = rest.split_at(at);
        let end = from.find(|c: char| !c.is_ascii_digit()).unwrap_or(from.len());
        let (digits, after) = from.split_at(end);
        let is_version = before.ends_with(['v', 'V']);
        found = digits.parse().ok().filter(|_| !is_version).or(found);
        rest = after;
    }
    found
}

/// Files of a process that look like checkpoints or lie `inside` a directory and are open for writing, with size and
/// position. Links in `/proc` are read, never followed.
fn written_by(pid: u32, names: &CheckpointNames, inside: Option<&Path>) -> Vec<(PathBuf, (u64, u64))> {
    let is_inside = |path: &Path| inside.is_some_and(|inside| path.starts_with(inside));
    let Ok(folder) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let found = folder.flatten().take(DESCRIPTORS).filter_map(|entry| {
        let path = std::fs::read_link(entry.path()).ok()?;
        if !path.is_absolute() || !(names.is_named(&path) || is_inside(&path)) {
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
    names: CheckpointNames,
    since: SystemTime,
    begun: Instant,
    entries: usize,
    /// Bounds.
    most: usize,
    patience: Duration,
    complete: bool,
    /// Size and latest change of each.
    found: BTreeMap<PathBuf, (u64, SystemTime)>,
}

impl CheckpointSearch {
    fn new(runs: PathBuf, names: CheckpointNames, since: SystemTime) -> CheckpointSearch {
        CheckpointSearch {
            runs,
            names,
            since,
            begun: Instant::now(),
            entries: 0,
            most: ENTRIES,
            patience: PATIENCE,
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
        if modified >= self.since && self.names.is_laid_out(path) {
            let known = self.found.entry(self.names.artifact(path)).or_insert((0, modified));
            *known = (known.0.saturating_add(data.len()), known.1.max(modified));
        }
    }

    /// A checkpoint that was seen open, wherever it is.
    fn add_named(&mut self, path: &Path) {
        if self.found.contains_key(path) {
            return;
        }
        match std::fs::symlink_metadata(path) {
            Ok(data) if data.is_dir() => self.walk(path),
            Ok(data) if data.is_file() => self.add(path, &data),
            Ok(_) | Err(_) => {}
        }
    }

    /// The files of a directory, without those below.
    fn list(&mut self, folder: &Path) {
        self.search(folder, 0);
    }

    fn walk(&mut self, top: &Path) {
        self.search(top, DEPTH);
    }

    fn search(&mut self, top: &Path, deepest: usize) {
        let mut todo = vec![(top.to_owned(), 0)];
        // What an earlier search has found is counted.
        let known: BTreeSet<PathBuf> = self.found.keys().cloned().collect();
        while let Some((folder, depth)) = todo.pop() {
            let Ok(entries) = std::fs::read_dir(&folder) else { continue };
            for entry in entries.flatten() {
                self.entries += 1;
                if self.entries > self.most || self.begun.elapsed() > self.patience {
                    self.complete = false;
                    return;
                }
                let Ok(kind) = entry.file_type() else { continue };
                let path = entry.path();
                if kind.is_dir() && self.is_searched(&path) {
                    match depth < deepest {
                        true => todo.push((path, depth + 1)),
                        false => self.complete = false,
                    }
                } else if kind.is_file()
                    && self.names.is_named(&path)
                    && !known.contains(&self.names.artifact(&path))
                    && let Ok(data) = entry.metadata()
                {
                    self.add(&path, &data);
                }
            }
        }
    }

    fn is_searched(&self, folder: &Path) -> bool {
        !self.found.contains_key(folder) && may_have_own_files(folder, &self.runs)
    }
}

/// Hidden directories, environments and runs, those in `runs`, have no files that a rank chose to write.
pub(super) fn may_have_own_files(folder: &Path, runs: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let is_run = folder.parent() == Some(runs) && folder.join("node0").is_dir();
    !name.starts_with('.') && !SKIPPED.contains(&&*name) && !is_run && !folder.join("pyvenv.cfg").exists()
}

fn seconds(time: SystemTime) -> WallTime {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;
    use crate::paths::RunPaths;
    use crate::writers;
    use rankdeck_types::ids::NodeRank;
    use std::fs::{create_dir_all, write};
    use std::process::{Child, Command, Stdio};

    #[test]
    fn checkpoint_1_names_decide() {
        let names = CheckpointNames { folder: "/w".into(), patterns: Arc::default() };
        let named = |path: &str| names.is_named(Path::new(path));
        for path in [
            "/w/a.pt",
            "/w/a.zip",
            "/w/x.ckpt.tmp",
            "/w/.m.pth.1",
            "/w/checkpoint-20/optimizer.bin",
            "/w/dcp/__0_0.distcp",
            "/w/runs/CartPole-v1__dqn__1/dqn.cleanrl_model",
            "/w/checkpoint_000010/algorithm_state.pkl",
            "/w/global_step100/latest",
        ] {
            assert!(named(path), "{path}");
        }
        for path in ["/w/a.py", "/w/pt", "/w/events.out.tfevents.1", "/w/checkpoint-20", "/w/ckpt/log.txt"] {
            assert!(!named(path), "{path}");
        }
        let of = |path: &str| names.artifact(Path::new(path)).display().to_string();
        assert_eq!(of("/w/checkpoint-20/a/b.pt"), "/w/checkpoint-20");
        for (path, artifact) in [
            ("/w/ray/checkpoint_000010/policies/p/state.pkl", "/w/ray/checkpoint_000010"),
            ("/w/global_step100/mp_rank_00_model_states.pt", "/w/global_step100"),
            ("/w/v/global_step_20/actor/model_world_size_2_rank_0.pt", "/w/v/global_step_20"),
            ("/w/last.ckpt/meta.pt", "/w/last.ckpt"),
            ("/w/last.ckpt/__0_0.distcp", "/w/last.ckpt"),
            ("/w/checkpoint-20/global_step20/a.pt", "/w/checkpoint-20"),
        ] {
            assert_eq!(of(path), artifact);
        }
        let inside = CheckpointNames { folder: "/d/checkpoint-20/w".into(), patterns: Arc::default() };
        let path = Path::new("/d/checkpoint-20/w/a.pt");
        assert_eq!(inside.artifact(path), path, "the ranks work below a checkpoint");
        assert_eq!(of("/w/a.pt"), "/w/a.pt");
        assert_eq!(of("/w/dcp/__0_0.distcp"), "/w/dcp");
        assert_eq!(of("/w/__0_0.distcp"), "/w/__0_0.distcp", "never the directory of the ranks");
        let names =
            CheckpointNames { patterns: Arc::from(["out/*.bin".to_owned(), "step-*/".to_owned()]), ..names };
        assert!(names.is_named(Path::new("/w/out/a.bin")) && !names.is_named(Path::new("/v/out/a.bin")));
        assert_eq!(names.artifact(Path::new("/w/x/step-3/model")), Path::new("/w/x/step-3"));
        for (name, is_final) in
            [("a.pt", true), ("a.pt.tmp", false), (".a.pt", false), ("a.ckpt.partial", false)]
        {
            assert_eq!(CheckpointNames::is_final(Path::new(name)), is_final, "{name}");
        }
    }

    #[test]
    fn checkpoint_5_data_and_downloads_are_no_checkpoints() {
        let patterns = Arc::from(["raw/*.pt".to_owned()]);
        let names = CheckpointNames { folder: "/data/ann".into(), patterns };
        for (path, expected) in [
            ("/data/ann/out/a.pt", true),
            ("/data/ann/data/MNIST/training.pt", false),
            ("/data/ann/data/ppo/pyt_save/model.pt", true),
            ("/data/ann/data/checkpoint-3/a.bin", true),
            ("/data/ann/raw/a.pt", true),
            ("/scratch/data/cifar.zip", false),
            ("/data/else/a.pt", true),
            ("/data/ann/.cache/pip/a.pt", false),
            ("/home/ann/.cache/torch/hub/checkpoints/resnet50.pth", false),
            ("/scratch/torch/hub/checkpoints/model.pth", false),
            ("/scratch/hf/hub/models--a--b/blobs/model.safetensors", false),
        ] {
            assert_eq!(names.is_named(Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn checkpoint_5_archive_has_the_layout_of_a_checkpoint() {
        let made = tempfile::tempdir().unwrap();
        let archive = |entry: &str| {
            let mut bytes = b"PK\x03\x04".to_vec();
            bytes.resize(26, 0);
            bytes.extend((entry.len() as u16).to_le_bytes());
            bytes.extend([0, 0]);
            bytes.extend(entry.as_bytes());
            bytes
        };
        let files = begun(made.path());
        for (name, entry) in [
            ("PPO-1.zip", "data"),
            ("net.zip", "archive/data.pkl"),
            ("sac.zip", "policy.pth"),
            ("cifar.zip", "cifar/train/0.png"),
            ("model_9.zip", "variables/0"),
        ] {
            write(made.path().join(name), archive(entry)).unwrap();
        }
        write(made.path().join("cut.zip"), "PK").unwrap();
        let mut found = names(&files.find().unwrap().0, made.path());
        found.sort();
        assert_eq!(found, ["PPO-1.zip", "model_9.zip", "net.zip", "sac.zip"]);
    }

    #[test]
    fn checkpoint_step_is_of_its_name_or_the_ranks() {
        for (name, expected) in [
            ("checkpoint-20", Some(20)),
            ("rl_model_500_steps.zip", Some(500)),
            ("seed1_step200.pt", Some(200)),
            ("CartPole-v1.zip", None),
            ("best_0.95.pt", None),
            ("model.pt", None),
            ("ckpt_99999999999999999999999.pt", None),
        ] {
            assert_eq!(number(name), expected, "{name}");
        }
        assert_eq!(step("epoch-3.pt", Some((12_800, 12_800))), Some((12_800, StepSource::Rank)));
        assert_eq!(step("step-12000.pt", Some((12_800, 12_800))), Some((12_000, StepSource::Name)));
        assert_eq!(step("step-7.pt", None), Some((7, StepSource::Name)));
        assert_eq!(step("model.pt", None), None);
    }

    #[test]
    fn checkpoint_has_the_step_of_its_own_time() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let mut steps = StepHistory::default();
        assert_eq!(steps.around(at(5)), None);
        for second in 1..=9 {
            steps.add(at(second * 10), second * 9_900);
        }
        // Found half a minute after it was written, and between two reports of the ranks.
        let found = |name, second| step(name, steps.around(at(second)));
        assert_eq!(found("model_40000_steps.zip", 42), Some((40_000, StepSource::Name)));
        assert_eq!(found("model_90000_steps.zip", 91), Some((90_000, StepSource::Name)));
        assert_eq!(found("best_model.zip", 42), Some((39_600, StepSource::Rank)));
        assert_eq!(found("epoch-3.pt", 42), Some((39_600, StepSource::Rank)));
        assert_eq!(found("model_9000_steps.zip", 5), Some((9_000, StepSource::Name)));
        for second in 100..5_000 {
            steps.add(at(second * 10), second * 9_900);
        }
        assert!(steps.0.len() <= StepHistory::MOST);
    }

    /// The checkpoints that are recorded after `later` seconds, by name.
    fn recorded(files: &CheckpointFiles, made: &Path, later: u64) -> Vec<String> {
        let found = files.completed(SystemTime::now() + Duration::from_secs(later));
        names(&found, made)
    }

    fn search_now(files: &CheckpointFiles) {
        files.lock().search_at = Some((Instant::now(), SEARCH_ROUND));
    }

    #[test]
    fn checkpoint_3_complete_ones_are_recorded_once() {
        let made = tempfile::tempdir().unwrap();
        let at = |name: &str| made.path().join(name);
        let files = begun(made.path());
        create_dir_all(at("checkpoint-8")).unwrap();
        write(at("checkpoint-8/model.bin"), "1234").unwrap();
        write(at("checkpoint-8/more.ckpt"), "1234").unwrap();
        write(at("model.pt"), "12").unwrap();
        write(at("own.pt"), "1").unwrap();
        files.reported(&at("own.pt").display().to_string());
        search_now(&files);
        assert_eq!(recorded(&files, made.path(), 2), ["model.pt"], "directories settle later");
        search_now(&files);
        assert_eq!(recorded(&files, made.path(), 9), ["checkpoint-8"]);
        search_now(&files);
        assert!(recorded(&files, made.path(), 9).is_empty());
        write(at("model.pt"), "123").unwrap();
        files.lock().written.insert(at("model.pt"));
        search_now(&files);
        assert!(recorded(&files, made.path(), 9).is_empty(), "it is open");
        // Closed, and next to it another one that no scan has found open.
        files.lock().written.clear();
        files.lock().closed.insert(at("model.pt"));
        write(at("other.pt"), "123").unwrap();
        let mut both = recorded(&files, made.path(), 9);
        both.sort();
        assert_eq!(both, ["model.pt", "other.pt"], "without a search");
    }

    /// Scripts of small networks save several times in a second.
    #[test]
    fn checkpoint_3_replaced_without_pause_is_recorded() {
        let made = tempfile::tempdir().unwrap();
        let at = |name: &str| made.path().join(name);
        let save = |text: &str| {
            write(at("model.pt.tmp"), text).unwrap();
            std::fs::rename(at("model.pt.tmp"), at("model.pt")).unwrap();
        };
        let files = begun(made.path());
        save("1");
        search_now(&files);
        assert!(recorded(&files, made.path(), 0).is_empty(), "it may be in the middle of a save");
        assert!(recorded(&files, made.path(), 0).is_empty(), "the same file");
        save("12");
        assert_eq!(recorded(&files, made.path(), 0), ["model.pt"], "without a search");
        save("123");
        assert!(recorded(&files, made.path(), 0).is_empty(), "one version in a while");
        assert_eq!(recorded(&files, made.path(), 2), ["model.pt"], "the last one settles");
        assert!(recorded(&files, made.path(), 2).is_empty());
    }

    #[test]
    fn checkpoint_4_of_two_runs_only_what_was_seen_is_own() {
        let made = tempfile::tempdir().unwrap();
        let at = |name: &str| made.path().join(name);
        let files = begun(made.path());
        create_dir_all(at("runs/b/node0")).unwrap();
        let mut other = Command::new("sleep").arg("60").spawn().map(Writer).unwrap();
        let stat = proc::stat(other.0.id()).unwrap();
        let manifest = Manifest {
            hostname: proc::hostname(),
            boot_id: proc::boot_id(),
            agent_pid: stat.pid,
            agent_start: stat.start,
            running: true,
            ..Manifest::default()
        };
        write(at("runs/b/node0/manifest.json"), manifest.bytes()).unwrap();
        write(at("a.pt"), "1").unwrap();
        write(at("b.pt"), "1").unwrap();
        files.lock().open.insert(at("a.pt"), (1, 1));
        search_now(&files);
        assert_eq!(recorded(&files, made.path(), 9), ["a.pt"]);
        let (found, complete) = files.find().unwrap();
        assert_eq!((names(&found, made.path()), complete), (vec!["a.pt".to_owned()], false));
        other.0.kill().unwrap();
        other.0.wait().unwrap();
        search_now(&files);
        assert_eq!(recorded(&files, made.path(), 9), ["b.pt"]);
    }

    #[test]
    fn checkpoint_6_cut_off_file_is_marked_at_the_end_only() {
        let made = tempfile::tempdir().unwrap();
        let files = begun(made.path());
        write(made.path().join("whole.pt"), b"PK\x03\x04PK\x05\x06").unwrap();
        write(made.path().join("cut.pt"), b"PK\x03\x04weights").unwrap();
        search_now(&files);
        assert_eq!(recorded(&files, made.path(), 9), ["whole.pt"]);
        write(made.path().join("cut.pt"), b"PK\x03\x04weightsPK\x05\x06").unwrap();
        search_now(&files);
        assert_eq!(recorded(&files, made.path(), 9), ["cut.pt"], "its writer was slow");
        write(made.path().join("cut.pt"), b"PK\x03\x04").unwrap();
        let (found, _) = files.find().unwrap();
        let mut marked: Vec<(String, bool)> =
            names(&found, made.path()).into_iter().zip(found.iter().map(|file| file.is_cut_off)).collect();
        marked.sort();
        assert_eq!(marked, [("cut.pt".to_owned(), true), ("whole.pt".to_owned(), false)]);
    }

    #[test]
    fn checkpoint_elsewhere_is_found_by_an_absolute_pattern() {
        let (made, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |name: &str| format!("{}/{name}", other.path().display());
        create_dir_all(at("out/step-3")).unwrap();
        for (pattern, found) in [
            ("a*.bin", Some("a1.bin")),
            ("out/step-*/", Some("out/step-3")),
            ("out/**/model", Some("out/step-3/model")),
            ("none/*.bin", None),
        ] {
            let files = CheckpointFiles::default();
            files.begin(made.path().into(), made.path().join("runs/own"), false, &[at(pattern)], None);
            for name in ["a1.bin", "b.bin", "out/step-3/model"] {
                write(at(name), "x").unwrap();
            }
            let paths: Vec<String> = files.find().unwrap().0.into_iter().map(|file| file.path).collect();
            assert_eq!(paths, found.map(at).into_iter().collect::<Vec<_>>(), "{pattern}");
        }
        let names = |pattern: &str| {
            let names = CheckpointNames { folder: "/w".into(), patterns: Arc::from([pattern.to_owned()]) };
            names.places().collect::<Vec<_>>()
        };
        for (pattern, place) in [
            ("/s/x/*.pt", "/s/x/"),
            ("/s/x-*/a", "/s"),
            ("/s/x/", "/s/x/"),
            ("/s/x", "/s/x"),
            ("/s/a.pt", "/s"),
        ] {
            assert_eq!(names(pattern), [PathBuf::from(place)], "{pattern}");
        }
        assert!(names("x/*.pt").is_empty() && names("/*.pt").is_empty());
    }

    fn begun(folder: &Path) -> CheckpointFiles {
        let files = CheckpointFiles::default();
        files.begin(folder.to_owned(), folder.join("runs/own"), false, &[], None);
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
        files.begin(made.path().to_owned(), at("runs/own"), true, &[], None);
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

    /// Files of any name in the directory of the ranks, and none elsewhere.
    #[test]
    fn files_that_a_rank_writes_where_it_works_are_noted() {
        let made = tempfile::tempdir().unwrap();
        let at = |name: &str| made.path().join(name);
        let paths = RunPaths { run_dir: at("runs/own"), node: NodeRank(0) };
        create_dir_all(paths.node_dir()).unwrap();
        create_dir_all(at("w")).unwrap();
        for name in ["w/read.csv", "w/log.csv", "other.csv"] {
            write(at(name), "1").unwrap();
        }
        let mut shell = Command::new("sh");
        let script = "exec 3>log.csv 4>../other.csv 5<read.csv; read line";
        shell.args(["-c", script]).current_dir(at("w")).stdin(Stdio::piped());
        let writer = Writer(shell.spawn().unwrap());
        let stat = proc::stat(writer.0.id()).unwrap();
        let files = CheckpointFiles::default();
        let log = WriterLog::new(&paths, &at("w"));
        files.begin(at("w"), paths.run_dir.clone(), false, &[], Some(log));
        let id = |name: &str| FileId::of(&std::fs::symlink_metadata(at(name)).unwrap());
        let deadline = Instant::now() + Duration::from_secs(30);
        while writers::read(&paths) != BTreeSet::from([id("w/log.csv")]) {
            assert!(Instant::now() < deadline, "{:?}", writers::read(&paths));
            files.beat();
            files.look(&[ProcessKey { pid: stat.pid, start: stat.start }]);
            files.beat();
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
