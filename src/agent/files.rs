//! Files of runs: which checkpoints there are, what lies below a run's directory, pieces of it, and its removal.
//!
//! Owner: one-shot commands. Invariants:
//! - FILES-1: only regular files below the run's own directory are read; links are not followed.
//! - FILES-2: a run with a living agent or living processes on this machine is not removed. A removal that
//!   was interrupted is finished by the next one: the directory has got another name first.
//! - FILES-3: a directory of another user is neither read nor removed.

use crate::entries::{self, LeftOut};
use crate::paths;
use rankdeck_proto::files::{
    CHECKPOINT_MAGIC, CHECKPOINT_PREFIX, CHECKPOINT_VERSION, CheckpointHeader, FileEntry, FilePiece, Removal,
    RunCheckpoints, RunFiles,
};
use rankdeck_proto::regular;
use rankdeck_proto::run_entry::HostRunState;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::RunId;
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
    FileEntry { path, bytes: data.len(), modified: data.mtime() as f64 + data.mtime_nsec() as f64 / 1e9 }
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
            Some(path) if found.files.len() < FILES => found.files.push(file_entry(path.to_owned(), data)),
            Some(_) => found.more = true,
            None => unnamed.add(format!("{} is not UTF-8", below.as_os_str().as_bytes().escape_ascii())),
        }
    });
    found.files.sort_by(|a, b| a.path.cmp(&b.path));
    found.left_out = [left_out.into_reasons(), unnamed.into_reasons()].concat();
    Ok(found)
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
    let plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    let whole = run_dir.join(path).canonicalize().map_err(failed)?;
    if !plain || whole != run_dir.join(path) {
        return Err(failed(io::Error::other("it is not a file of that run")));
    }
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(&whole)
        .map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("it is not a regular file")));
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

/// Removes a finished run from this host; `dry`: only returns what that would free.
pub(crate) fn remove(workdir: &Path, run: &str, dry: bool) -> Result<Removal, HintedError> {
    let name = RunId::parse(run)?;
    let runs = workdir.join("runs");
    let aside = runs.join(format!("{REMOVED}{}", name.0));
    let mut removal = Removal::default();
    let mut count = |_: &Path, data: &Metadata| {
        removal.files += 1;
        removal.bytes += data.blocks() * 512;
    };
    let own = runs.join(&name.0);
    // The user may have made a link on purpose.
    let folder = std::fs::symlink_metadata(&own).ok().filter(Metadata::is_dir);
    let present = folder.is_some();
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
    if let Some(data) = folder {
        removal.place = format!("{}:{}:{}.{}", own.display(), data.ino(), data.ctime(), data.ctime_nsec());
    }
    if dry {
        return Ok(removal);
    }
    let failed = |error: io::Error| {
        HintedError::new(format!("cannot remove run {run}: {error}"), "run `rankdeck rm` again to continue")
    };
    gone(std::fs::remove_dir_all(&aside)).map_err(failed)?;
    if present {
        // Another host of a shared disk may be faster.
        gone(std::fs::rename(&own, &aside)).map_err(failed)?;
        gone(std::fs::remove_dir_all(&aside)).map_err(failed)?;
    }
    Ok(removal)
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
    use rankdeck_proto::trust;

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
        assert!(remove(folder.path(), "r", false).unwrap().refused.is_some() && run.exists());
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
        let dry = remove(folder.path(), "r", true).unwrap();
        assert_eq!((dry.files, dry.refused), (2, None));
        assert!(folder.path().join("runs/r").exists());
        assert_eq!(remove(folder.path(), "r", false).unwrap().files, 2);
        let left: Vec<_> = std::fs::read_dir(folder.path().join("runs")).unwrap().flatten().collect();
        assert_eq!(left.iter().map(|entry| entry.file_name()).collect::<Vec<_>>(), ["s"]);
        assert_eq!(remove(folder.path(), "r", false).unwrap().files, 0);
    }
}
