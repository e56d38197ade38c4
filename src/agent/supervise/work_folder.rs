//! The directory in which ranks with uploaded code work: `WORKDIR/work/NAME`.
//!
//! It outlives the run, so that a later run of that name finds what an earlier one has written. The code is laid
//! over it: files of the pack are created and updated, and no others are touched. What was laid is noted next to
//! it, as `.NAME.pack.json`.
//!
//! Owner: the thread that prepares a launch; the supervisor holds the lock while its run lives. Invariants:
//! - OVERLAY-1: only files of packs are written or removed, a file is there completely or not at all, and links
//!   are not followed.
//! - OVERLAY-2: a file that was changed after it was laid, or that no pack has laid, is kept.
//! - OVERLAY-3: one live run owns a directory. Its hosts share it on a shared disk; another run gets the next
//!   name.

use crate::entries;
use crate::results::{self, FileState};
use rankdeck_proto::folders::create_private;
use rankdeck_proto::pack::{PackIndex, PackedFile};
use rankdeck_proto::{regular, trust};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::RunId;
use rankdeck_types::words;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Most directories of one name: as many runs of it may live at a time.
const NAMES: u32 = 100;
/// Longest part of a path, bytes.
const NAME: usize = 120;
/// Attempts to lock a directory while another agent is about to, and the time between two.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);
/// Most bytes of what was laid, and of the owner.
const MOST_BYTES: u64 = 64 << 20;

/// A directory that this run owns as long as the lock is held.
#[derive(Debug, Clone)]
pub(crate) struct WorkFolder {
    /// Absolute, without links.
    pub path: PathBuf,
    /// Equal on hosts that share it.
    pub mark: String,
    /// Held by each host of the run.
    _lock: Arc<File>,
}

/// Content of a lock.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
struct FolderOwner {
    run: String,
    mark: String,
}

/// A name as parts of a path: `lr/3` stays two of them.
fn safe(name: &str) -> PathBuf {
    let part = |part: &str| {
        let plain = |c: char| if c.is_alphanumeric() || "-_.=,+".contains(c) { c } else { '-' };
        let text: String = part.chars().map(plain).collect();
        let mut end = text.len().min(NAME);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let text = text[..end].trim_start_matches('.');
        if text.is_empty() { "run".to_owned() } else { text.to_owned() }
    };
    name.split('/').map(part).collect()
}

/// Takes the directory of this name below `root`, or the next one that no other live run owns. `known`: the one
/// that this run had before, if it had one. Returns a notice if it is not the one that was asked for.
///
/// # Errors
/// None can be made, or none is free.
pub(crate) fn take(
    root: &Path,
    name: &str,
    run: &RunId,
    known: Option<&Path>,
) -> Result<(WorkFolder, Option<String>), HintedError> {
    let failed = |path: &Path, error: io::Error| {
        HintedError::new(
            format!("cannot use {}: {error}", path.display()),
            "check its owner and the free disk space, or set another `workdir` in the hosts file",
        )
    };
    create_private(root)?;
    let root = root.canonicalize().map_err(|error| failed(root, error))?;
    if let Some(reason) = entries::foreign(&root) {
        return Err(failed(&root, io::Error::other(reason)));
    }
    let wanted = root.join(safe(name));
    let numbered = (1..=NAMES).map(|number| match number {
        1 => wanted.clone(),
        number => {
            let mut path = wanted.clone().into_os_string();
            path.push(format!("-{number}"));
            path.into()
        }
    });
    let known = known.filter(|known| known.starts_with(&root)).map(Path::to_owned);
    let mut owner = None;
    for path in known.into_iter().chain(numbered) {
        let found = lock(&path, run).map_err(|error| failed(&path, error))?;
        let (file, mark) = match found {
            LockAttempt::Own(file, mark) => (file, mark),
            LockAttempt::Other(run) => {
                owner.get_or_insert(run);
                continue;
            }
        };
        create_private(&path)?;
        if let Some(reason) = entries::foreign(&path) {
            return Err(failed(&path, io::Error::other(reason)));
        }
        let real = path.canonicalize().map_err(|error| failed(&path, error))?;
        let notice = owner.map(|owner| {
            format!("run {owner} works in {}; this run works in {}", wanted.display(), real.display())
        });
        return Ok((WorkFolder { path: real, mark, _lock: Arc::new(file) }, notice));
    }
    Err(HintedError::new(
        format!("{NAMES} live runs work in {} and its siblings", wanted.display()),
        "stop some of them, or set another `run.name`",
    ))
}

enum LockAttempt {
    Own(File, String),
    /// Another live run has it.
    Other(String),
}

/// A file next to the directory, hidden.
fn sibling(folder: &Path, ending: &str) -> PathBuf {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    folder.with_file_name(format!(".{name}.{ending}"))
}

/// What was laid in a directory.
pub(crate) fn laid_record(folder: &Path) -> PathBuf {
    sibling(folder, "pack.json")
}

/// The live run that works in a directory.
pub(crate) fn live_owner(folder: &Path) -> Option<String> {
    let mut file = trust::open(&sibling(folder, "lock"), OpenOptions::new().read(true).write(true)).ok()?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Some(owner(&mut file).ok()??.run),
        Ok(()) | Err(TryLockError::Error(_)) => None,
    }
}

/// OVERLAY-3. All hosts of the owner hold a shared lock, so whoever gets an exclusive one is alone.
fn lock(folder: &Path, run: &RunId) -> io::Result<LockAttempt> {
    if let Some(parent) = folder.parent() {
        create_private(parent).map_err(|failure| io::Error::other(failure.error))?;
        if let Some(reason) = entries::foreign(parent) {
            return Err(io::Error::other(reason));
        }
    }
    let path = sibling(folder, "lock");
    let mut file =
        trust::open(&path, OpenOptions::new().read(true).write(true).create(true).truncate(false))?;
    for _ in 0..ATTEMPTS {
        match file.try_lock() {
            Ok(()) => {
                let known = owner(&mut file)?.filter(|owner| owner.run == run.0);
                let owner = known.map_or_else(|| new_owner(run), Ok)?;
                set_owner(&mut file, &owner)?;
            }
            Err(TryLockError::WouldBlock) => {}
            // Some network file systems have no locks.
            Err(TryLockError::Error(_)) => {
                let known = owner(&mut file)?.filter(|owner| owner.run == run.0);
                let owner = known.map_or_else(|| new_owner(run), Ok)?;
                set_owner(&mut file, &owner)?;
                return Ok(LockAttempt::Own(file, owner.mark));
            }
        }
        // Between two locks, another agent may have got an exclusive one: what it has written counts.
        if file.try_lock_shared().is_ok() {
            let owner = owner(&mut file)?.unwrap_or_default();
            return Ok(match owner.run == run.0 {
                true => LockAttempt::Own(file, owner.mark),
                false => LockAttempt::Other(owner.run),
            });
        }
        std::thread::sleep(PAUSE);
    }
    Ok(LockAttempt::Other(String::new()))
}

fn new_owner(run: &RunId) -> io::Result<FolderOwner> {
    Ok(FolderOwner { run: run.0.clone(), mark: new_mark()? })
}

/// The mark of a directory that only this run uses: hosts that share it get the same one.
pub(crate) fn mark_of(folder: &Path) -> io::Result<String> {
    let path = folder.join("disk-mark");
    let own = new_mark()?;
    let part = folder.join(results::part_name(&own));
    fs::write(&part, &own)?;
    // Complete at once, and of the first host only.
    let linked = fs::hard_link(&part, &path);
    let _ = fs::remove_file(&part);
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => regular::read_text(&path),
        // Some file systems have no hard links: then nothing is known to be shared.
        Ok(()) | Err(_) => Ok(own),
    }
}

fn new_mark() -> io::Result<String> {
    let mut mark = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut mark)?;
    Ok(words::hex(&mark))
}

fn owner(file: &mut File) -> io::Result<Option<FolderOwner>> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes).ok())
}

fn set_owner(file: &mut File, owner: &FolderOwner) -> io::Result<()> {
    file.rewind()?;
    file.set_len(0)?;
    file.write_all(&serde_json::to_vec(owner)?)
}

/// What was laid in a directory, by path.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
struct LaidFiles {
    files: BTreeMap<String, LaidFile>,
}

/// One laid file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
struct LaidFile {
    /// What it is unless it was changed; two while it is being replaced.
    marks: Vec<String>,
    /// Its size and time then: with these, it is not read again.
    state: Option<FileState>,
}

/// A file as it is now.
#[derive(Debug, PartialEq)]
enum Present {
    Nothing,
    /// A file or link with this content.
    Content(String),
    /// Something else, or certainly changed.
    Other,
}

/// Directories on the way to a file.
#[derive(Debug, PartialEq)]
enum Way {
    Open,
    /// Some have to be made.
    New,
    /// A link or a file is in the way.
    Blocked,
}

fn content_of(file: &PackedFile) -> String {
    match &file.link {
        Some(target) => format!("link:{target}"),
        None => file.hash.clone(),
    }
}

/// Lays a pack over a directory; returns the files that were kept instead, in order.
///
/// # Errors
/// A file cannot be written. What was laid until then is noted.
pub(crate) fn lay(pack: &PackIndex, folder: &Path) -> io::Result<Vec<String>> {
    let record = laid_record(folder);
    let mut laid: LaidFiles = match trust::read(&record, MOST_BYTES) {
        Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => LaidFiles::default(),
        Err(error) => return Err(error),
    };
    remove_obsolete(pack, folder, &mut laid)?;
    let (mut kept, mut missing) = (Vec::new(), Vec::new());
    for file in &pack.files {
        let (target, content) = (folder.join(&file.path), content_of(file));
        let known = laid.files.get(&file.path);
        let found = match way(folder, &file.path)? {
            Way::Open => present(&target, known, Some(file.size))?,
            Way::New => Present::Nothing,
            Way::Blocked => Present::Other,
        };
        match found {
            Present::Content(found) if found == content => {
                note(&mut laid, file, &target)?;
            }
            Present::Nothing => missing.push(file),
            Present::Content(found) if known.is_some_and(|known| known.marks.contains(&found)) => {
                missing.push(file);
            }
            Present::Content(_) | Present::Other => kept.push(file.path.clone()),
        }
    }
    if !missing.is_empty() {
        // An agent that is killed in between has not changed these files on behalf of a run.
        for file in &missing {
            let known = laid.files.entry(file.path.clone()).or_default();
            known.marks.push(content_of(file));
            known.state = None;
        }
        results::write(&record, &laid)?;
    }
    let written = missing.iter().try_for_each(|file| {
        let target = folder.join(&file.path);
        make_way(folder, &file.path)?;
        write(pack, file, &target)?;
        note(&mut laid, file, &target)
    });
    results::write(&record, &laid)?;
    written.map(|()| kept)
}

/// Removes what an earlier pack has laid and this one lacks, unless it was changed.
fn remove_obsolete(pack: &PackIndex, folder: &Path, laid: &mut LaidFiles) -> io::Result<()> {
    let present_now: BTreeSet<&str> = pack.files.iter().map(|file| file.path.as_str()).collect();
    let obsolete: Vec<String> =
        laid.files.keys().filter(|path| !present_now.contains(path.as_str())).cloned().collect();
    for path in obsolete {
        let Some(known) = laid.files.remove(&path) else { continue };
        let target = folder.join(&path);
        let is_unchanged = is_plain(&path)
            && way(folder, &path)? == Way::Open
            && matches!(present(&target, Some(&known), None)?, Present::Content(found) if known.marks.contains(&found));
        if !is_unchanged {
            continue;
        }
        match fs::remove_file(&target) {
            // Another host of a shared disk may be faster.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Directories that are now empty.
        let mut above = Path::new(&path).parent();
        while let Some(parent) = above.filter(|parent| !parent.as_os_str().is_empty()) {
            if fs::remove_dir(folder.join(parent)).is_err() {
                break;
            }
            above = parent.parent();
        }
    }
    Ok(())
}

/// The record may be edited by anybody who may write to the directory.
fn is_plain(path: &str) -> bool {
    Path::new(path).components().all(|part| matches!(part, std::path::Component::Normal(_)))
}

/// OVERLAY-1. Looks at the directories on the way to a file, without following links.
fn way(folder: &Path, path: &str) -> io::Result<Way> {
    let mut at = folder.to_owned();
    for part in Path::new(path).parent().into_iter().flat_map(Path::components) {
        at.push(part);
        match fs::symlink_metadata(&at) {
            Ok(data) if data.is_dir() => {}
            Ok(_) => return Ok(Way::Blocked),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Way::New),
            Err(error) => return Err(error),
        }
    }
    Ok(Way::Open)
}

fn make_way(folder: &Path, path: &str) -> io::Result<()> {
    let mut at = folder.to_owned();
    for part in Path::new(path).parent().into_iter().flat_map(Path::components) {
        at.push(part);
        match DirBuilder::new().mode(0o700).create(&at) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ if fs::symlink_metadata(&at)?.is_dir() => {}
            _ => return Err(io::Error::other(format!("{} is not a directory", at.display()))),
        }
    }
    Ok(())
}

/// What is at `target`. Content is read only if it may be what was laid, or what has `size` bytes.
fn present(target: &Path, known: Option<&LaidFile>, size: Option<u64>) -> io::Result<Present> {
    let data = match fs::symlink_metadata(target) {
        Ok(data) => data,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Present::Nothing),
        Err(error) => return Err(error),
    };
    if data.is_symlink() {
        let target = fs::read_link(target)?;
        return Ok(Present::Content(format!("link:{}", target.to_string_lossy())));
    }
    if !data.is_file() {
        return Ok(Present::Other);
    }
    let state = FileState::of(&data);
    if let Some(LaidFile { marks, state: Some(laid) }) = known
        && *laid == state
        && let [mark] = marks.as_slice()
    {
        return Ok(Present::Content(mark.clone()));
    }
    let may_be_laid = known.is_some_and(|known| known.state.is_none_or(|laid| laid.bytes == state.bytes));
    if !may_be_laid && size != Some(state.bytes) {
        return Ok(Present::Other);
    }
    let mut digest = Sha256::new();
    io::copy(&mut regular::open(target)?, &mut digest)?;
    Ok(Present::Content(words::hex(&digest.finalize())))
}

/// Notes that a file is as the pack has it.
fn note(laid: &mut LaidFiles, file: &PackedFile, target: &Path) -> io::Result<()> {
    let data = fs::symlink_metadata(target)?;
    if data.is_file() {
        let (mode, runs) = (data.permissions().mode() & 0o7777, data.permissions().mode() & 0o111 != 0);
        if runs != file.executable {
            let mode = if file.executable { mode | 0o100 } else { mode & !0o111 };
            fs::set_permissions(target, Permissions::from_mode(mode))?;
        }
    }
    let state = data.is_file().then(|| FileState::of(&data));
    laid.files.insert(file.path.clone(), LaidFile { marks: vec![content_of(file)], state });
    Ok(())
}

/// OVERLAY-1. Writes a sibling and moves it into place.
fn write(pack: &PackIndex, file: &PackedFile, target: &Path) -> io::Result<()> {
    // Another host may lay the same file on a shared disk.
    let part = target.with_file_name(results::part_name(&new_mark()?));
    let written = match &file.link {
        Some(link) => symlink(link, &part),
        None => {
            let mode = if file.executable { 0o700 } else { 0o600 };
            let made = OpenOptions::new().write(true).create_new(true).mode(mode).open(&part);
            made.and_then(|mut part| pack.copy(file, &mut part))
        }
    };
    let placed = written.and_then(|()| fs::rename(&part, target));
    if placed.is_err() {
        let _ = fs::remove_file(&part);
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A work folder, and code that is laid over it.
    struct Bed {
        root: tempfile::TempDir,
        folder: PathBuf,
    }

    impl Bed {
        fn new() -> Bed {
            let root = tempfile::tempdir().unwrap();
            let folder = root.path().join("work/ppo");
            fs::create_dir_all(&folder).unwrap();
            Bed { root, folder }
        }

        /// Lays exactly these files; a content that begins with `->` is a link.
        fn lay(&self, files: &[(&str, &str)]) -> Vec<String> {
            self.lay_with(files, false)
        }

        fn lay_with(&self, files: &[(&str, &str)], executable: bool) -> Vec<String> {
            let mut bytes = Vec::new();
            for (path, text) in files {
                let (entry, text) = match text.strip_prefix("->") {
                    Some(link) => (json!({ "path": path, "link": link }), ""),
                    None => (json!({ "path": path, "executable": executable, "size": text.len() }), *text),
                };
                write!(bytes, "{entry}\n{text}").unwrap();
            }
            let pack = self.root.path().join("pack");
            fs::write(&pack, &bytes).unwrap();
            let hash = words::hex(&Sha256::digest(&bytes));
            lay(&PackIndex::read(&pack, &hash).unwrap(), &self.folder).unwrap()
        }

        fn put(&self, name: &str, text: &str) {
            fs::write(self.folder.join(name), text).unwrap();
        }

        fn text(&self, name: &str) -> Option<String> {
            fs::read_to_string(self.folder.join(name)).ok()
        }
    }

    #[test]
    fn overlay_1_pack_is_laid_over_what_is_there() {
        let bed = Bed::new();
        assert!(bed.lay(&[("train.py", "1"), ("pkg/model.py", "1"), ("old/a.py", "1")]).is_empty());
        bed.put("best.pt", "weights");
        bed.put("pkg/cache", "mine");
        assert!(bed.lay(&[("train.py", "2"), ("pkg/model.py", "1"), ("new.py", "1")]).is_empty());
        assert_eq!(bed.text("train.py").as_deref(), Some("2"));
        assert_eq!(bed.text("new.py").as_deref(), Some("1"));
        assert_eq!(bed.text("best.pt").as_deref(), Some("weights"));
        assert_eq!(bed.text("pkg/cache").as_deref(), Some("mine"));
        assert!(!bed.folder.join("old").exists(), "what the pack no longer has");
        // No parts are left.
        let names: Vec<_> =
            fs::read_dir(&bed.folder).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(names.len(), 4, "{names:?}");
    }

    #[test]
    fn overlay_1_links_are_not_followed() {
        let bed = Bed::new();
        bed.lay(&[("data/x", "1"), ("main.py", "->train.py"), ("train.py", "1")]);
        assert_eq!(fs::read_link(bed.folder.join("main.py")).unwrap(), Path::new("train.py"));
        let outside = bed.root.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::remove_dir_all(bed.folder.join("data")).unwrap();
        symlink(&outside, bed.folder.join("data")).unwrap();
        fs::remove_file(bed.folder.join("train.py")).unwrap();
        fs::write(outside.join("mine"), "mine").unwrap();
        symlink(outside.join("mine"), bed.folder.join("train.py")).unwrap();
        let kept = bed.lay(&[("data/x", "2"), ("main.py", "->other.py"), ("train.py", "2")]);
        assert_eq!(kept, ["data/x", "train.py"]);
        assert_eq!(fs::read_link(bed.folder.join("main.py")).unwrap(), Path::new("other.py"));
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(outside.join("mine")).unwrap(), "mine");
    }

    #[test]
    fn overlay_2_changed_files_are_kept_and_named() {
        let bed = Bed::new();
        bed.lay(&[("config.json", "1"), ("gone.json", "1"), ("train.py", "1")]);
        bed.put("config.json", "of the run");
        bed.put("gone.json", "of the run");
        bed.put("log.txt", "of the run");
        let next = [("config.json", "2"), ("log.txt", "of the user"), ("train.py", "2")];
        for _ in 0..2 {
            assert_eq!(bed.lay(&next), ["config.json", "log.txt"]);
        }
        for name in ["config.json", "gone.json", "log.txt"] {
            assert_eq!(bed.text(name).as_deref(), Some("of the run"), "{name}");
        }
        // Equal content does not conflict, and the file counts as laid from then on.
        bed.put("config.json", "2");
        assert_eq!(bed.lay(&next), ["log.txt"]);
        assert_eq!(bed.lay(&[("config.json", "3"), ("train.py", "2")]), [""; 0]);
        assert_eq!(bed.text("config.json").as_deref(), Some("3"));
    }

    #[test]
    fn overlay_2_interrupted_lay_is_continued() {
        let bed = Bed::new();
        bed.lay(&[("a.py", "1"), ("b.py", "1")]);
        // The note before the files: one was replaced, then the agent was killed.
        let record = laid_record(&bed.folder);
        let mut laid: LaidFiles = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
        for file in laid.files.values_mut() {
            file.marks.push(words::hex(&Sha256::digest("2")));
            file.state = None;
        }
        results::write(&record, &laid).unwrap();
        bed.put("a.py", "2");
        assert!(bed.lay(&[("a.py", "3"), ("b.py", "3")]).is_empty());
        assert_eq!(["a.py", "b.py"].map(|name| bed.text(name).unwrap()), ["3", "3"]);
    }

    #[test]
    fn executable_files_stay_executable() {
        let bed = Bed::new();
        let laid = |executable| {
            bed.lay_with(&[("run.sh", "true")], executable);
            fs::metadata(bed.folder.join("run.sh")).unwrap().permissions().mode() & 0o777
        };
        assert_eq!([laid(true), laid(false), laid(true)], [0o700, 0o600, 0o700]);
    }

    #[test]
    fn overlay_3_second_live_run_gets_the_next_name() {
        let root = tempfile::tempdir().unwrap();
        let (one, two) = (RunId("ppo-1".into()), RunId("ppo-2".into()));
        let taken = |run: &RunId, known: Option<&Path>| take(root.path(), "ppo", run, known).unwrap();
        let (first, notice) = taken(&one, None);
        assert!(first.path.ends_with("ppo") && notice.is_none());
        let (second, notice) = taken(&two, None);
        assert!(second.path.ends_with("ppo-2") && notice.unwrap().contains("ppo-1"));
        // Another host of the first run on the same disk.
        let (other, notice) = taken(&one, None);
        assert_eq!((&other.path, &other.mark), (&first.path, &first.mark));
        assert!(notice.is_none() && other.mark != second.mark);
        drop(first);
        let three = RunId("ppo-three".into());
        assert!(taken(&three, None).0.path.ends_with("ppo-3"), "the other host still has it");
        drop(other);
        // A restart stays where the run was, and a new run gets the first free one.
        assert!(taken(&two, Some(&second.path)).0.path.ends_with("ppo-2"));
        assert!(taken(&three, None).0.path.ends_with("ppo"));
        drop(second);
        assert!(taken(&one, None).0.path.ends_with("ppo"));
    }

    #[test]
    fn hosts_that_share_a_directory_get_the_same_mark() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let marks = [one.path(), one.path(), other.path()].map(|folder| mark_of(folder).unwrap());
        assert!(marks[0] == marks[1] && marks[1] != marks[2] && marks[0].len() == 32);
    }

    #[test]
    fn names_become_safe_paths() {
        for (name, path) in [
            ("ppo", "ppo"),
            ("lr/3-1a2b", "lr/3-1a2b"),
            ("../x", "run/x"),
            ("a b;c", "a-b-c"),
            ("", "run"),
            (".git", "git"),
        ] {
            assert_eq!(safe(name), Path::new(path), "{name}");
        }
        assert!(safe(&"ä".repeat(300)).as_os_str().len() <= NAME);
    }
}
