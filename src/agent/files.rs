//! Files of runs: which checkpoints there are, what lies below a run's directory, pieces of it, and its removal.
//!
//! Owner: one-shot commands. Invariants:
//! - FILES-1: only files that a list names are read: those below the run's own directory, results of the run where
//!   its ranks work (`work/...`), and checkpoints that it has elsewhere (`files/...`). They are regular files; links
//!   are not followed.
//! - FILES-2: a run with a living agent or living processes on this machine is not removed. A removal that
//!   was interrupted is finished by the next one: the directory has got another name first.
//! - FILES-3: a directory or file of another user is neither read nor removed.
//! - FILES-4: results where ranks work, and copies that were fetched into the run's directory, are removed on
//!   request only; those in the user's own directory never.

use crate::entries::{self, LeftOut};
use crate::known_checkpoints;
use crate::paths::{self, RunPaths};
use crate::results::{self, FileState, FoundResults};
use crate::supervise::work_folder;
use rankdeck_proto::files::{
    CHECKPOINT_MAGIC, CHECKPOINT_PREFIX, CHECKPOINT_VERSION, CheckpointHeader, FETCHED, FileEntry, FilePiece,
    OTHER_FILES, Removal, RunCheckpoints, RunFiles, WORK_FILES, WorkDirectory, is_checkpoint_name,
};
use rankdeck_proto::run_entry::HostRunState;
use rankdeck_proto::{regular, trust};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::RunId;
use rankdeck_types::words::plural;
use std::collections::BTreeSet;
use std::fs::{Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

/// Most runs of an answer, the newest.
const RUNS: usize = 64;
/// Most checkpoints of a run in an answer, the newest.
const CHECKPOINTS: usize = 1000;
/// Most files of a run in an answer.
const FILES: usize = 50_000;
/// Deepest directory level.
const DEPTH: usize = 24;
/// Longest header of a checkpoint that is read.
const HEADER: u64 = 16 << 20;
/// Most bytes of a piece.
pub(crate) const PIECE: u64 = 2 << 20;
const OTHER_USER: &str = "use a `workdir` of your own in the hosts file";
/// What the name of a run that is being removed starts with; lists of runs leave such names out.
const REMOVED: &str = ".removed-";
/// Most checkpoints that a removal names.
const NAMED_CHECKPOINTS: usize = 256;
/// Most runs that a note about shared files names.
const SHARED_WITH: usize = 4;
/// Most bytes of the list of files elsewhere.
const LIST_BYTES: u64 = 16 << 20;
/// Attempts to empty a directory that other hosts empty, too.
const ATTEMPTS: u32 = 10;
/// File systems may be so far behind the clock, seconds.
const BEHIND_S: f64 = 5.0;

/// The runs below `workdir` whose names start with `start`, those with the newest checkpoints first. A run of
/// exactly that name is returned alone.
pub(crate) fn checkpoints(workdir: &Path, start: &str) -> Vec<RunCheckpoints> {
    let folders = std::fs::read_dir(workdir.join("runs")).into_iter().flatten().flatten();
    let mut runs: Vec<RunCheckpoints> = folders
        .filter_map(|folder| {
            let run = folder.file_name().into_string().ok()?;
            let run_dir = folder.path().canonicalize().ok().filter(|_| run.starts_with(start))?;
            if entries::foreign(&folder.path()).or(entries::foreign(&run_dir)).is_some() {
                return None;
            }
            let folder = run_dir.join("checkpoints");
            let mut files: Vec<FileEntry> = Vec::new();
            // Those of earlier generations lie one directory deeper.
            walk(&folder, DEPTH - 1, &mut |path, data| {
                let name = path.strip_prefix(&folder).ok().and_then(Path::to_str);
                if let Some(name) = name.filter(|name| name.ends_with(".ckpt")) {
                    files.push(file_entry(name.to_owned(), data));
                }
            });
            files.sort_by(|a, b| b.modified.total_cmp(&a.modified).then_with(|| a.path.cmp(&b.path)));
            files.truncate(CHECKPOINTS);
            Some(RunCheckpoints { run, run_dir: run_dir.display().to_string(), files })
        })
        .collect();
    if let Some(at) = runs.iter().position(|found| found.run == start) {
        return vec![runs.swap_remove(at)];
    }
    let newest = |found: &RunCheckpoints| found.files.first().map_or(0.0, |file| file.modified);
    runs.sort_by(|a, b| newest(b).total_cmp(&newest(a)).then_with(|| b.run.cmp(&a.run)));
    runs.truncate(RUNS);
    runs
}

/// The absolute path of what a run shall start from, when it is there: relative paths start at `workdir`. A
/// program of the user may keep a checkpoint in a directory.
pub(crate) fn checkpoint(workdir: &Path, path: &str) -> Option<String> {
    let requested = std::path::absolute(paths::expand_in(path, workdir)).ok()?;
    requested.exists().then(|| requested.to_str().map(str::to_owned)).flatten()
}

/// Returns the header of a built-in trainer's checkpoint; its body is not read.
pub(crate) fn header(workdir: &Path, path: &str) -> Result<CheckpointHeader, HintedError> {
    let requested = paths::expand_in(path, workdir);
    let failed = |what: String| {
        HintedError::new(
            format!("checkpoint {} {what}", requested.display()),
            "choose another checkpoint of the run, or start from scratch",
        )
    };
    let opened = regular::open(&requested);
    let mut file = opened.map_err(|error| failed(format!("is not readable: {error}")))?;
    let mut prefix = [0; CHECKPOINT_PREFIX];
    let begun = file.read_exact(&mut prefix);
    if begun.is_err() || !prefix.starts_with(CHECKPOINT_MAGIC) {
        return Err(failed("is not a rankdeck checkpoint".into()));
    }
    let word = |at: usize| {
        prefix.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_le_bytes)
    };
    let version = word(8);
    if version != CHECKPOINT_VERSION {
        return Err(failed(format!(
            "has format version {version}; this build reads version {CHECKPOINT_VERSION}"
        )));
    }
    let length = u64::from(word(12));
    let mut text = Vec::new();
    let read = file.take(length.min(HEADER)).read_to_end(&mut text);
    if read.is_err() || text.len() as u64 != length {
        return Err(failed("is truncated".into()));
    }
    serde_json::from_slice(&text).map_err(|error| failed(format!("has an unreadable header: {error}")))
}

fn file_entry(path: String, data: &Metadata) -> FileEntry {
    let checkpoint = is_checkpoint_name(&path);
    FileEntry { path, bytes: data.len(), modified: FileState::of(data).modified(), checkpoint }
}

fn folder(workdir: &Path, run: &str) -> Result<Option<PathBuf>, HintedError> {
    let run = RunId::parse(run)?;
    let link = workdir.join("runs").join(&run.0);
    let Ok(run_dir) = link.canonicalize() else { return Ok(None) };
    match entries::foreign(&link).or(entries::foreign(&run_dir)) {
        Some(reason) => Err(HintedError::new(reason, OTHER_USER)),
        None => Ok(Some(run_dir)),
    }
}

/// Every file of a run.
pub(crate) fn list(workdir: &Path, run: &str) -> Result<RunFiles, HintedError> {
    let Some(run_dir) = folder(workdir, run)? else { return Ok(RunFiles::default()) };
    let mut found = RunFiles { run_dir: run_dir.display().to_string(), ..RunFiles::default() };
    let mut unnamed = LeftOut::default();
    let left_out = walk(&run_dir, 0, &mut |path, data| {
        let below = path.strip_prefix(&run_dir).unwrap_or(path);
        match below.to_str() {
            // Copies of what hosts have, on the console's machine.
            _ if below.starts_with(FETCHED) => {}
            Some(path) if found.files.len() < FILES => found.files.push(file_entry(path.to_owned(), data)),
            Some(_) => found.more = true,
            None => unnamed.add(format!("{} is not UTF-8", below.as_os_str().as_bytes().escape_ascii())),
        }
    });
    found.left_out = [left_out.into_reasons(), unnamed.into_reasons()].concat();
    for (paths, manifest) in entries::nodes(workdir, Some(&RunId::parse(run)?)).0 {
        add_outside(&paths, manifest.started, &mut found);
    }
    found.files.sort_by(|a, b| a.path.cmp(&b.path));
    found.files.dedup_by(|a, b| a.path == b.path);
    Ok(found)
}

/// Where a node lists its checkpoints that lie elsewhere: what may be read of them.
fn elsewhere(paths: &RunPaths) -> PathBuf {
    paths.node_dir().join("elsewhere.json")
}

/// Adds what a node has outside the run's directory.
fn add_outside(paths: &RunPaths, started: f64, found: &mut RunFiles) {
    let known: BTreeSet<PathBuf> =
        known_checkpoints::known(paths).into_iter().map(|known| known.path).collect();
    let is_known = |path: &Path| path.ancestors().any(|path| known.contains(path));
    for file in &mut found.files {
        file.checkpoint |= is_known(&paths.run_dir.join(&file.path));
    }
    let mut listed: BTreeSet<PathBuf> = BTreeSet::new();
    let results = results::find(paths);
    if let Some(FoundResults { work, state, settled }) = &results {
        found.work = Some(WorkDirectory {
            folder: work.folder.display().to_string(),
            in_place: work.in_place,
            mark: work.mark.clone(),
        });
        let mut changed = 0;
        for (name, was) in &state.files {
            let path = work.folder.join(name);
            let now = std::fs::symlink_metadata(&path).ok().filter(Metadata::is_file);
            let Some(now) = now.filter(is_own) else { continue };
            if *settled && FileState::of(&now) != *was {
                changed += 1;
            } else if found.files.len() < FILES {
                let entry = file_entry(format!("{WORK_FILES}/{name}"), &now);
                let checkpoint = entry.checkpoint || is_known(&path);
                found.files.push(FileEntry { checkpoint, ..entry });
                listed.insert(path);
            } else {
                found.more = true;
            }
        }
        if !state.shared.is_empty() {
            let runs: Vec<&str> = state.shared_with.iter().map(String::as_str).take(SHARED_WITH).collect();
            let (files, folder) = (plural(state.shared.len(), "file"), work.folder.display());
            found.notes.push(format!(
                "{files} in {folder} may belong to {}, which worked there at the same time",
                runs.join(", ")
            ));
        }
        if changed > 0 {
            let folder = work.folder.display();
            let changed = plural(changed, "file");
            found
                .notes
                .push(format!("{changed} in {folder} changed after the run and may belong to another one"));
        }
        found.more |= !state.complete;
    }
    // Another run may have written there since; what this one did is in its results.
    let is_listed = |path: &Path| {
        let settled = results.as_ref().filter(|results| results.settled);
        path.starts_with(&paths.run_dir)
            || listed.contains(path)
            || settled.is_some_and(|results| path.starts_with(&results.work.folder))
    };
    let mut others: Vec<String> = Vec::new();
    let mut add = |path: &Path, data: &Metadata| {
        let is_real = path.canonicalize().is_ok_and(|real| real == path);
        let is_new = FileState::of(data).modified() >= started - BEHIND_S;
        let Some(text) = path.to_str().filter(|_| is_real && is_new && is_own(data)) else { return };
        if found.files.len() < FILES && !is_listed(path) {
            let name = format!("{OTHER_FILES}{text}");
            found.files.push(FileEntry { checkpoint: true, ..file_entry(name, data) });
            others.push(text.to_owned());
        }
    };
    for path in &known {
        match std::fs::symlink_metadata(path) {
            Ok(data) if data.is_file() => add(path, &data),
            Ok(data) if data.is_dir() => {
                walk(path, 0, &mut add);
            }
            _ => {}
        }
    }
    let list = elsewhere(paths);
    if !others.is_empty() || list.exists() {
        // Without the list, none of them is read.
        let _ = results::write(&list, &others);
    }
}

fn is_own(data: &Metadata) -> bool {
    data.uid() == trust::own_uid()
}

/// The file that a list names outside the run's directory (FILES-1).
fn outside(nodes: &[RunPaths], path: &str) -> Option<PathBuf> {
    let name = |beginning: &str| path.strip_prefix(beginning)?.strip_prefix('/');
    if let Some(name) = name(WORK_FILES) {
        return nodes.iter().find_map(|paths| results::path_of(paths, name));
    }
    let wanted = format!("/{}", name(OTHER_FILES)?);
    let is_listed = |paths: &RunPaths| {
        let list = trust::read(&elsewhere(paths), LIST_BYTES).ok();
        let list = list.and_then(|bytes| serde_json::from_slice::<Vec<String>>(&bytes).ok());
        list.is_some_and(|list| list.contains(&wanted))
    };
    let real = Path::new(&wanted).canonicalize().ok()?;
    (real == Path::new(&wanted) && nodes.iter().any(is_listed)).then_some(real)
}

/// Passes every file to `each`; returns the directories that were not read.
fn walk(folder: &Path, depth: usize, each: &mut impl FnMut(&Path, &Metadata)) -> LeftOut {
    let mut left_out = LeftOut::default();
    walk_below(folder, depth, &mut left_out, each);
    left_out
}

fn walk_below(folder: &Path, depth: usize, left_out: &mut LeftOut, each: &mut impl FnMut(&Path, &Metadata)) {
    for path in left_out.entries_of(folder) {
        // Of the entry itself, not of what a link leads to.
        let Ok(data) = std::fs::symlink_metadata(&path) else { continue };
        if data.is_file() {
            each(&path, &data);
        } else if data.is_dir() && depth < DEPTH {
            walk_below(&path, depth + 1, left_out, each);
        } else if data.is_dir() {
            left_out.add(format!("{} is more than {DEPTH} directories deep", path.display()));
        }
    }
}

/// Up to `bytes` bytes of a file of a run, from `offset`.
pub(crate) fn read(
    workdir: &Path,
    run: &str,
    path: &str,
    offset: u64,
    bytes: u64,
) -> Result<FilePiece, HintedError> {
    let failed = |error: io::Error| {
        HintedError::new(
            format!("cannot read {path} of run {run}: {error}"),
            "try again with `rankdeck fetch`",
        )
    };
    let run_dir = folder(workdir, run)?.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    let whole = match outside(&entries::folders_of(workdir, &RunId::parse(run)?), path) {
        Some(whole) => whole,
        None => {
            let plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
            let whole = run_dir.join(path).canonicalize().map_err(failed)?;
            if !plain || whole != run_dir.join(path) {
                return Err(failed(io::Error::other("it is not a file of that run")));
            }
            whole
        }
    };
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(&whole)
        .map_err(failed)?;
    let data = file.metadata().map_err(failed)?;
    if !data.is_file() || !whole.starts_with(&run_dir) && !is_own(&data) {
        return Err(failed(io::Error::other("it is not a regular file of yours")));
    }
    let mut data = Vec::new();
    let reader = At { file: &file, offset };
    reader.take(bytes.min(PIECE)).read_to_end(&mut data).map_err(failed)?;
    Ok(FilePiece { data: base64::Engine::encode(&base64::engine::general_purpose::STANDARD, data) })
}

struct At<'a> {
    file: &'a std::fs::File,
    offset: u64,
}

impl Read for At<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(into, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

/// Removes a finished run from this host; `dry`: only returns what that would free. `with_results`: also what its
/// ranks have written where they worked, and what was fetched into its directory (FILES-4).
pub(crate) fn remove(
    workdir: &Path,
    run: &str,
    dry: bool,
    with_results: bool,
) -> Result<Removal, HintedError> {
    let name = RunId::parse(run)?;
    let runs = paths::runs(workdir);
    let aside = runs.join(format!("{REMOVED}{}", name.0));
    let mut removal = Removal::default();
    let own = runs.join(&name.0);
    // The user may have made a link on purpose.
    let folder = std::fs::symlink_metadata(&own).ok().filter(Metadata::is_dir);
    let present = folder.is_some();
    let keeps = !with_results && own.join(FETCHED).is_dir();
    let mut count = |path: &Path, data: &Metadata| {
        if keeps && path.starts_with(own.join(FETCHED)) {
            return;
        }
        removal.files += 1;
        removal.bytes += data.blocks() * 512;
    };
    if present {
        walk(&own, 0, &mut count);
    }
    walk(&aside, 0, &mut count);
    let busy = entries::list(workdir).runs.into_iter().find(|entry| {
        entry.run == name
            && (entry.state != HostRunState::Finished || entry.agent_pid != 0 || !entry.pids.is_empty())
    });
    if let Some(reason) = present.then(|| entries::foreign(&own)).flatten() {
        removal.refused = Some(reason);
        return Ok(removal);
    }
    if let Some(busy) = busy {
        let why = match busy.agent_pid {
            0 => "it has leftover processes".to_owned(),
            pid => format!("its agent is alive (pid {pid}): the run is active, or a console is attached"),
        };
        removal.refused = Some(why);
        return Ok(removal);
    }
    let nodes = if present { entries::folders_of(workdir, &name) } else { Vec::new() };
    let settled: Vec<FoundResults> =
        nodes.iter().filter_map(results::find).filter(|results| results.settled).collect();
    if with_results {
        for FoundResults { work, .. } in settled.iter().filter(|results| !results.work.in_place) {
            if let Some(owner) = work_folder::live_owner(&work.folder) {
                let why = format!("run {owner} works in {}, where its results are", work.folder.display());
                removal.refused = Some(why);
                return Ok(removal);
            }
        }
    }
    if let Some(data) = folder {
        removal.place = format!("{}:{}:{}.{}", own.display(), data.ino(), data.ctime(), data.ctime_nsec());
        (removal.checkpoints, removal.more_checkpoints) = checkpoints_inside(&own, &nodes);
    }
    removal.kept = settled
        .iter()
        .filter(|results| !results.state.files.is_empty() && (results.work.in_place || !with_results))
        .map(|results| results.work.folder.display().to_string())
        .next();
    let failed = |error: io::Error| {
        HintedError::new(format!("cannot remove run {run}: {error}"), "run `rankdeck rm` again to continue")
    };
    for results in settled.iter().filter(|results| with_results && !results.work.in_place) {
        // Before the list of them is gone.
        let (files, bytes) = remove_results(results, dry).map_err(failed)?;
        removal.files += files;
        removal.bytes += bytes;
    }
    if dry {
        return Ok(removal);
    }
    gone(std::fs::remove_dir_all(&aside)).map_err(failed)?;
    if present && keeps {
        for _ in 0..ATTEMPTS {
            if !move_all_but_fetched(&own, &aside).map_err(failed)? {
                break;
            }
            gone(std::fs::remove_dir_all(&aside)).map_err(failed)?;
        }
    } else if present {
        // Another host of a shared disk may be faster.
        gone(std::fs::rename(&own, &aside)).map_err(failed)?;
        gone(std::fs::remove_dir_all(&aside)).map_err(failed)?;
    }
    Ok(removal)
}

/// The complete checkpoints in a run's directory that a removal would delete, and whether there are more.
fn checkpoints_inside(own: &Path, nodes: &[RunPaths]) -> (Vec<FileEntry>, bool) {
    let known: BTreeSet<PathBuf> =
        nodes.iter().flat_map(known_checkpoints::known).map(|known| known.path).collect();
    let real = own.canonicalize().unwrap_or_else(|_| own.to_owned());
    let is_known = |below: &Path| real.join(below).ancestors().any(|path| known.contains(path));
    let mut found: Vec<FileEntry> = Vec::new();
    let mut more = false;
    walk(own, 0, &mut |path, data| {
        let Ok(below) = path.strip_prefix(own) else { return };
        let Some(text) = below.to_str() else { return };
        let top = text.split('/').next().unwrap_or_default();
        let node = top.strip_prefix("node").unwrap_or_default();
        let is_node = !node.is_empty() && node.bytes().all(|byte| byte.is_ascii_digit());
        let is_internal = top == FETCHED || is_node || top.starts_with("console");
        if data.len() == 0 || !(is_known(below) || !is_internal && is_checkpoint_name(text)) {
            return;
        }
        match found.len() < NAMED_CHECKPOINTS {
            true => found.push(FileEntry { checkpoint: true, ..file_entry(text.to_owned(), data) }),
            false => more = true,
        }
    });
    (found, more)
}

/// Removes results that are as the run has left them, and directories that become empty; returns files and bytes.
fn remove_results(results: &FoundResults, dry: bool) -> io::Result<(u64, u64)> {
    let folder = &results.work.folder;
    let (mut files, mut bytes) = (0, 0);
    let own = results.state.files.iter().filter(|(name, _)| !results.state.shared.contains(*name));
    for (name, was) in own {
        let path = folder.join(name);
        let is_real = path.canonicalize().is_ok_and(|real| real == path && real.starts_with(folder));
        let data = std::fs::symlink_metadata(&path).ok().filter(|data| data.is_file() && is_own(data));
        let Some(data) = data.filter(|data| is_real && FileState::of(data) == *was) else { continue };
        files += 1;
        bytes += data.blocks() * 512;
        if dry {
            continue;
        }
        gone(std::fs::remove_file(&path))?;
        let above =
            path.ancestors().skip(1).take_while(|above| above.starts_with(folder) && *above != folder);
        for parent in above {
            if std::fs::remove_dir(parent).is_err() {
                break;
            }
        }
    }
    Ok((files, bytes))
}

/// Moves everything but fetched copies from a run's directory; returns whether there was anything.
fn move_all_but_fetched(own: &Path, aside: &Path) -> io::Result<bool> {
    let mut moved = false;
    for entry in std::fs::read_dir(own)?.flatten().filter(|entry| entry.file_name() != FETCHED) {
        match std::fs::create_dir(aside) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // Another host of a shared disk may be faster.
        gone(std::fs::rename(entry.path(), aside.join(entry.file_name())))?;
        moved = true;
    }
    Ok(moved)
}

fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{self, Manifest};
    use crate::proc;
    use crate::results::WorkRecord;
    use rankdeck_proto::message::{RankEvent, Record, RecordEvent};
    use rankdeck_types::ids::{Generation, NodeRank, Rank};

    /// A run of a script that works in `work/r` and reports a checkpoint elsewhere.
    struct ScriptRun {
        folder: tempfile::TempDir,
        root: PathBuf,
        paths: RunPaths,
    }

    impl ScriptRun {
        fn new() -> ScriptRun {
            let folder = with(&[("r/node0/gen0/rank0.log", "out")]);
            let root = folder.path().canonicalize().unwrap();
            let paths = RunPaths { run_dir: root.join("runs/r"), node: NodeRank(0) };
            let manifest = Manifest {
                run: "r".into(),
                hostname: proc::hostname(),
                boot_id: proc::boot_id(),
                ..Manifest::default()
            };
            manifest::write(&paths, &manifest.bytes()).unwrap();
            let run = ScriptRun { folder, root, paths };
            run.put("work/r/train.py", "code");
            let work = WorkRecord { folder: run.root.join("work/r"), ..WorkRecord::default() };
            results::remember(&run.paths, &work).unwrap();
            run.put("work/r/best.pt", "weights");
            run.put("work/r/logs/log.csv", "1");
            run.put("scratch/last.bin", "elsewhere");
            let reported = |seq, path: &str| Record {
                seq,
                time: 1.0,
                generation: Generation(0),
                event: RecordEvent::Rank {
                    rank: Rank(0),
                    event: RankEvent::Checkpoint {
                        path: run.root.join(path).display().to_string(),
                        env_step: 1,
                        train_iter: 1,
                        reason: "latest".into(),
                    },
                },
            };
            let records = [reported(1, "scratch/last.bin"), reported(2, "work/r/best.pt")];
            let lines = records.map(|record| serde_json::to_string(&record).unwrap() + "\n");
            std::fs::write(run.paths.spool(), lines.concat()).unwrap();
            run
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        /// Names outside the run's directory, with a star for checkpoints.
        fn outside(&self) -> Vec<String> {
            let found = list(self.folder.path(), "r").unwrap();
            let prefix = format!("files{}/", self.root.display());
            let outside = found.files.iter().filter(|file| !file.path.starts_with("node0/"));
            let name = |file: &FileEntry| {
                let star = if file.checkpoint { "*" } else { "" };
                format!("{}{star}", file.path.replace(&prefix, "files:"))
            };
            outside.map(name).collect()
        }

        fn piece(&self, path: &str) -> Option<Vec<u8>> {
            let piece = read(self.folder.path(), "r", path, 0, 99).ok()?;
            base64::Engine::decode(&base64::engine::general_purpose::STANDARD, piece.data).ok()
        }
    }

    #[test]
    fn files_1_results_and_checkpoints_elsewhere_are_listed() {
        let run = ScriptRun::new();
        let all = ["files:scratch/last.bin*", "work/best.pt*", "work/logs/log.csv"];
        for settled in [false, true] {
            assert_eq!(run.outside(), all, "{settled}");
            assert_eq!(run.piece("work/best.pt").as_deref(), Some(&b"weights"[..]));
            let elsewhere = format!("files{}", run.root.join("scratch/last.bin").display());
            assert_eq!(run.piece(&elsewhere).as_deref(), Some(&b"elsewhere"[..]));
            run.put("scratch/secret", "x");
            std::os::unix::fs::symlink(
                run.root.join("scratch/secret"),
                run.root.join(format!("work/r/{settled}")),
            )
            .unwrap();
            let secret = format!("files{}", run.root.join("scratch/secret").display());
            for path in
                ["work/train.py", "work/true", "work/false", "work/../r/best.pt", "files/etc/passwd", &secret]
            {
                assert_eq!(run.piece(path), None, "{path}");
            }
            results::settle(&run.paths);
        }
        let work = list(run.folder.path(), "r").unwrap().work.unwrap();
        assert_eq!((work.folder, work.in_place), (run.root.join("work/r").display().to_string(), false));
    }

    #[test]
    fn results_3_files_that_a_later_run_changed_are_named() {
        let run = ScriptRun::new();
        results::settle(&run.paths);
        run.put("work/r/best.pt", "weights of a later run");
        run.put("work/r/new.pt", "of a later run");
        assert_eq!(run.outside(), ["files:scratch/last.bin*", "work/logs/log.csv"]);
        assert_eq!(list(run.folder.path(), "r").unwrap().notes.len(), 1);
        assert_eq!(run.piece("work/best.pt"), None);
    }

    #[test]
    fn files_4_results_are_removed_on_request_only() {
        for (with_results, in_place) in [(false, false), (true, false), (true, true)] {
            let run = ScriptRun::new();
            if in_place {
                let work = WorkRecord { in_place, ..results::work(&run.paths).unwrap() };
                results::write(&run.paths.work_record(), &work).unwrap();
            }
            results::settle(&run.paths);
            run.put("runs/r/hosts/a/work/best.pt", "fetched");
            let there = |path: &str| run.root.join(path).exists();
            let dry = remove(run.folder.path(), "r", true, with_results).unwrap();
            assert!(there("work/r/best.pt") && there("runs/r/node0"));
            let removed = remove(run.folder.path(), "r", false, with_results).unwrap();
            assert!(dry.files > 0 && removed.files >= dry.files && removed.refused.is_none());
            assert_eq!(removed.kept.is_some(), in_place || !with_results);
            let gone = with_results && !in_place;
            assert_eq!(there("work/r/best.pt"), !gone, "{with_results} {in_place}");
            assert_eq!(there("work/r/logs"), !gone);
            assert!(there("work/r/train.py"), "the code is not a result");
            assert!(!there("runs/r/node0") && there("scratch/last.bin"));
            assert_eq!(there("runs/r/hosts/a/work/best.pt"), !with_results);
        }
    }

    #[test]
    fn checkpoints_that_a_removal_would_delete_are_named() {
        let run = ScriptRun::new();
        for path in ["checkpoints/best.ckpt", "hosts/a/best.ckpt", "node0/gen0/python/x.pt", "empty.pt"] {
            run.put(&format!("runs/r/{path}"), if path == "empty.pt" { "" } else { "1" });
        }
        let found = remove(run.folder.path(), "r", true, false).unwrap().checkpoints;
        let names: Vec<&str> = found.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(names, ["checkpoints/best.ckpt"]);
    }

    fn with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join("runs").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn checkpoints_are_found_by_the_beginning_of_the_run_s_name() {
        let folder = with(&[
            ("a-1/checkpoints/latest.ckpt", "12"),
            ("a-12/checkpoints/best.ckpt", "12"),
            ("a-12/checkpoints/best.safetensors", "12"),
            ("a-12/checkpoints/gen0/best.ckpt", "1"),
            ("b-1/checkpoints/x.ckpt", "12"),
        ]);
        let names = |start: &str| {
            let mut runs: Vec<String> =
                checkpoints(folder.path(), start).into_iter().map(|found| found.run).collect();
            runs.sort();
            runs
        };
        assert_eq!(names("a-"), ["a-1", "a-12"]);
        assert_eq!(names("a-1"), ["a-1"]);
        assert!(names("c").is_empty() && checkpoints(Path::new("/none"), "").is_empty());
        let found = &checkpoints(folder.path(), "a-12")[0];
        let mut files: Vec<_> = found.files.iter().map(|file| (file.path.as_str(), file.bytes)).collect();
        files.sort_unstable();
        assert_eq!(files, [("best.ckpt", 2), ("gen0/best.ckpt", 1)]);
        assert!(Path::new(&found.run_dir).is_absolute());
    }

    #[test]
    fn requested_checkpoint_is_found_or_missing() {
        let folder = with(&[("r/checkpoints/best.ckpt", "12")]);
        let file = folder.path().join("runs/r/checkpoints/best.ckpt");
        let found = checkpoint(folder.path(), "runs/r/checkpoints/best.ckpt");
        assert_eq!(found.as_deref(), file.to_str(), "relative paths begin at workdir");
        assert_eq!(checkpoint(Path::new("/none"), file.to_str().unwrap()), found);
        assert!(checkpoint(folder.path(), "runs/r/checkpoints").is_some(), "a program's folder");
        assert_eq!(checkpoint(folder.path(), "runs/r/checkpoints/latest.ckpt"), None);
    }

    #[test]
    fn checkpoint_header_is_read_and_other_files_refused() {
        let folder = with(&[("r/text.ckpt", "no checkpoint at all"), ("r/short.ckpt", "RANK")]);
        let write = |name: &str, version: u32, length: u32, text: &str| {
            let mut bytes = CHECKPOINT_MAGIC.to_vec();
            bytes.extend(version.to_le_bytes());
            bytes.extend(length.to_le_bytes());
            bytes.extend(text.as_bytes());
            std::fs::write(folder.path().join("runs/r").join(name), bytes).unwrap();
        };
        let text = r#"{"algorithm":"ppo","about":{"experiment":{"run":{"name":"x"}},"versions":{}}}"#;
        let length = text.len() as u32;
        write("good.ckpt", CHECKPOINT_VERSION, length, &format!("{text}weights"));
        write("cut.ckpt", CHECKPOINT_VERSION, u32::MAX, text);
        write("odd.ckpt", CHECKPOINT_VERSION, 3, text);
        write("old.ckpt", 1, length, text);
        let header = |name: &str| header(folder.path(), &format!("runs/r/{name}.ckpt"));
        assert_eq!(header("good").unwrap().about.experiment["run"]["name"], "x");
        for (name, why) in [
            ("text", "is not a rankdeck checkpoint"),
            ("short", "is not a rankdeck checkpoint"),
            ("cut", "is truncated"),
            ("odd", "unreadable header"),
            ("old", "format version 1"),
            ("none", "is not readable"),
        ] {
            let refused = header(name).unwrap_err();
            assert!(refused.error.contains(why) && refused.error.contains(name), "{name}: {refused:?}");
        }
    }

    #[test]
    fn files_3_directory_of_another_user_is_left_alone() {
        if trust::own_uid() != 0 {
            return rankdeck_testkit::skipped("only root can give files to other users");
        }
        let folder = with(&[("r/checkpoints/best.ckpt", "1")]);
        let run = folder.path().join("runs/r");
        std::os::unix::fs::lchown(&run, Some(61_003), None).unwrap();
        assert!(checkpoints(folder.path(), "r").is_empty());
        let errors = [
            list(folder.path(), "r").map(drop),
            read(folder.path(), "r", "checkpoints/best.ckpt", 0, 9).map(drop),
        ];
        for error in errors {
            assert!(error.unwrap_err().error.contains("61003"));
        }
        assert!(remove(folder.path(), "r", false, false).unwrap().refused.is_some() && run.exists());
    }

    #[test]
    fn file_without_a_name_in_utf_8_is_left_out_and_named() {
        let folder = with(&[("r/node0/log", "1")]);
        let run = folder.path().join("runs/r");
        let odd = std::ffi::OsStr::from_bytes(b"caf\xe9");
        std::fs::write(run.join(odd), "2").unwrap();
        std::fs::create_dir(run.join("more")).unwrap();
        std::fs::write(run.join("more").join("x".repeat(250)), "3").unwrap();
        let mut deep = run.join("deep");
        deep.extend((0..DEPTH + 1).map(|_| "d"));
        std::fs::create_dir_all(&deep).unwrap();
        let found = list(folder.path(), "r").unwrap();
        assert_eq!(found.files.len(), 2, "{found:?}");
        let has = |what: &str| found.left_out.iter().any(|reason| reason.contains(what));
        assert!(has("caf\\xe9") && has("deep"), "{:?}", found.left_out);
        assert_eq!(found.left_out.len(), 2);
    }

    #[test]
    fn files_1_only_files_of_the_run_are_listed_and_read() {
        let folder = with(&[("r/node0/log", "0123456789"), ("other/secret", "x")]);
        let run = folder.path().join("runs/r");
        std::os::unix::fs::symlink(folder.path().join("runs/other/secret"), run.join("link")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("runs/other"), run.join("folder")).unwrap();
        let found = list(folder.path(), "r").unwrap();
        assert_eq!(found.files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["node0/log"]);
        let piece = |path: &str, offset, bytes| {
            let piece = read(folder.path(), "r", path, offset, bytes).ok()?;
            base64::Engine::decode(&base64::engine::general_purpose::STANDARD, piece.data).ok()
        };
        assert_eq!(piece("node0/log", 2, 3).unwrap(), b"234");
        assert_eq!(piece("node0/log", 8, 100).unwrap(), b"89");
        assert_eq!(piece("node0/log", 99, 1).unwrap(), b"");
        for path in ["link", "folder/secret", "../other/secret", "/etc/passwd", "node0", "none"] {
            assert_eq!(piece(path, 0, 9), None, "{path}");
        }
        assert!(list(folder.path(), "../x").is_err());
        assert_eq!(list(folder.path(), "none").unwrap(), RunFiles::default());
    }

    #[test]
    fn files_2_removal_goes_on_where_it_ended() {
        let folder = with(&[("r/node0/log", "0123456789"), (".removed-r/left", "x"), ("s/log", "x")]);
        let dry = remove(folder.path(), "r", true, false).unwrap();
        assert_eq!((dry.files, dry.refused), (2, None));
        assert!(folder.path().join("runs/r").exists());
        assert_eq!(remove(folder.path(), "r", false, false).unwrap().files, 2);
        let left: Vec<_> = std::fs::read_dir(folder.path().join("runs")).unwrap().flatten().collect();
        assert_eq!(left.iter().map(|entry| entry.file_name()).collect::<Vec<_>>(), ["s"]);
        assert_eq!(remove(folder.path(), "r", false, false).unwrap().files, 0);
    }
}
