//! Files of runs: which checkpoints there are, what lies below a run's folder, pieces of it, and its removal.
//!
//! Owner: one-shot commands. Invariants:
//! - FILES-1: only regular files below the run's own folder are read; links are not followed.
//! - FILES-2: a run with a living agent or living processes on this machine is not removed. A removal that
//!   was interrupted is finished by the next one: the folder has got another name first.

use crate::entries;
use crate::paths;
use rankdeck_proto::files::{
    CHECKPOINT_MAGIC, CHECKPOINT_PREFIX, CHECKPOINT_VERSION, CheckpointHeader, FileEntry, FilePiece, Removal,
    RunCheckpoints, RunFiles,
};
use rankdeck_proto::run_entry::RunState;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::RunId;
use std::fs::{Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

/// Most runs of an answer, the newest.
const RUNS: usize = 64;
/// Most checkpoints of a run in an answer, the newest.
const CHECKPOINTS: usize = 1000;
/// Most files of a run in an answer.
const FILES: usize = 50_000;
/// Deepest folder that is looked into.
const DEPTH: usize = 24;
/// Longest header of a checkpoint that is read.
const HEADER: u64 = 16 << 20;
/// Most bytes of a piece.
pub const PIECE: u64 = 2 << 20;
/// What the name of a run that is being removed begins with; lists of runs leave such names out.
const REMOVED: &str = ".removed-";

/// The runs below `workdir` whose names begin with `start`, those with the newest checkpoints first. A run of
/// exactly that name is told alone.
pub fn checkpoints(workdir: &Path, start: &str) -> Vec<RunCheckpoints> {
    let folders = std::fs::read_dir(workdir.join("runs")).into_iter().flatten().flatten();
    let mut runs: Vec<RunCheckpoints> = folders
        .filter_map(|folder| {
            let run = folder.file_name().into_string().ok()?;
            let run_dir = folder.path().canonicalize().ok().filter(|_| run.starts_with(start))?;
            let inside = std::fs::read_dir(run_dir.join("checkpoints")).into_iter().flatten().flatten();
            let mut files: Vec<FileEntry> = inside
                .filter_map(|entry| {
                    let data = entry.metadata().ok().filter(Metadata::is_file)?;
                    let name = entry.file_name().into_string().ok().filter(|name| name.ends_with(".ckpt"))?;
                    Some(told(name, &data))
                })
                .collect();
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

/// The absolute path of what a run shall begin from, when it is there: relative paths begin at `workdir`. A
/// program of the user may keep a checkpoint in a folder.
pub fn checkpoint(workdir: &Path, path: &str) -> Option<String> {
    let wanted = std::path::absolute(paths::expand_in(path, workdir)).ok()?;
    wanted.exists().then(|| wanted.to_str().map(str::to_owned)).flatten()
}

/// What a checkpoint of the built-in trainer tells of itself; its body is not read.
pub fn header(workdir: &Path, path: &str) -> Result<CheckpointHeader, HintedError> {
    let wanted = paths::expand_in(path, workdir);
    let failed = |what: String| {
        HintedError::new(
            format!("checkpoint {} {what}", wanted.display()),
            "name another checkpoint of the run, or begin afresh",
        )
    };
    let open = || -> io::Result<std::fs::File> {
        // A pipe would never answer.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&wanted)?;
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::other("it is no regular file")),
        }
    };
    let mut file = open().map_err(|error| failed(format!("cannot be read: {error}")))?;
    let mut prefix = [0; CHECKPOINT_PREFIX];
    let begun = file.read_exact(&mut prefix);
    if begun.is_err() || !prefix.starts_with(CHECKPOINT_MAGIC) {
        return Err(failed("is no checkpoint of rankdeck".into()));
    }
    let word = |at: usize| {
        prefix.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_le_bytes)
    };
    let version = word(8);
    if version != CHECKPOINT_VERSION {
        return Err(failed(format!("has format version {version}; this build reads {CHECKPOINT_VERSION}")));
    }
    let length = u64::from(word(12));
    let mut text = Vec::new();
    let read = file.take(length.min(HEADER)).read_to_end(&mut text);
    if read.is_err() || text.len() as u64 != length {
        return Err(failed("is cut off".into()));
    }
    serde_json::from_slice(&text).map_err(|error| failed(format!("has an unreadable header: {error}")))
}

fn told(path: String, data: &Metadata) -> FileEntry {
    FileEntry { path, bytes: data.len(), modified: data.mtime() as f64 + data.mtime_nsec() as f64 / 1e9 }
}

fn folder(workdir: &Path, run: &str) -> Result<Option<PathBuf>, HintedError> {
    let run = RunId::parse(run)?;
    Ok(workdir.join("runs").join(&run.0).canonicalize().ok())
}

/// Every file of a run.
pub fn list(workdir: &Path, run: &str) -> Result<RunFiles, HintedError> {
    let Some(run_dir) = folder(workdir, run)? else { return Ok(RunFiles::default()) };
    let mut found = RunFiles { run_dir: run_dir.display().to_string(), ..RunFiles::default() };
    walk(&run_dir, 0, &mut |path, data| {
        let path = path.strip_prefix(&run_dir).ok().and_then(Path::to_str);
        match path {
            Some(path) if found.files.len() < FILES => found.files.push(told(path.to_owned(), data)),
            Some(_) => found.more = true,
            None => {}
        }
    });
    found.files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn walk(folder: &Path, depth: usize, each: &mut impl FnMut(&Path, &Metadata)) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        // Of the entry itself, not of what a link leads to.
        let Ok(data) = entry.metadata() else { continue };
        if data.is_file() {
            each(&entry.path(), &data);
        } else if data.is_dir() && depth < DEPTH {
            walk(&entry.path(), depth + 1, each);
        }
    }
}

/// Up to `bytes` bytes of a file of a run, from `offset`.
pub fn read(
    workdir: &Path,
    run: &str,
    path: &str,
    offset: u64,
    bytes: u64,
) -> Result<FilePiece, HintedError> {
    let failed = |error: io::Error| {
        HintedError::new(format!("cannot read {path} of run {run}: {error}"), "`rankdeck fetch` looks again")
    };
    let run_dir = folder(workdir, run)?.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    let plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    let whole = run_dir.join(path).canonicalize().map_err(failed)?;
    if !plain || whole != run_dir.join(path) {
        return Err(failed(io::Error::other("it is no file of that run")));
    }
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(&whole)
        .map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("it is no regular file")));
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

/// Removes a run that is over from this host; `dry`: only says what that would free.
pub fn remove(workdir: &Path, run: &str, dry: bool) -> Result<Removal, HintedError> {
    let name = RunId::parse(run)?;
    let runs = workdir.join("runs");
    let aside = runs.join(format!("{REMOVED}{}", name.0));
    let mut removal = Removal::default();
    let mut count = |_: &Path, data: &Metadata| {
        removal.files += 1;
        removal.bytes += data.blocks() * 512;
    };
    let own = runs.join(&name.0);
    // A link would be somebody's own arrangement.
    let folder = std::fs::symlink_metadata(&own).ok().filter(Metadata::is_dir);
    let present = folder.is_some();
    if present {
        walk(&own, 0, &mut count);
    }
    walk(&aside, 0, &mut count);
    let busy = entries::list(workdir).into_iter().find(|entry| {
        entry.run == name
            && (entry.state != RunState::Finished || entry.agent_pid != 0 || !entry.pids.is_empty())
    });
    if let Some(busy) = busy {
        let why = match busy.agent_pid {
            0 => "processes of it are left".to_owned(),
            pid => format!("its agent lives (pid {pid}): it runs, or a console holds it"),
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
        HintedError::new(
            format!("cannot remove run {run}: {error}"),
            "`rankdeck rm` again goes on where it ended",
        )
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
        let files: Vec<_> = found.files.iter().map(|file| (file.path.as_str(), file.bytes)).collect();
        assert_eq!(files, [("best.ckpt", 2)]);
        assert!(Path::new(&found.run_dir).is_absolute());
    }

    #[test]
    fn what_a_run_shall_begin_from_is_there_or_not() {
        let folder = with(&[("r/checkpoints/best.ckpt", "12")]);
        let file = folder.path().join("runs/r/checkpoints/best.ckpt");
        let found = checkpoint(folder.path(), "runs/r/checkpoints/best.ckpt");
        assert_eq!(found.as_deref(), file.to_str(), "relative paths begin at workdir");
        assert_eq!(checkpoint(Path::new("/none"), file.to_str().unwrap()), found);
        assert!(checkpoint(folder.path(), "runs/r/checkpoints").is_some(), "a program's folder");
        assert_eq!(checkpoint(folder.path(), "runs/r/checkpoints/latest.ckpt"), None);
    }

    #[test]
    fn a_checkpoint_tells_what_it_was_made_with_and_nothing_else_does() {
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
            ("text", "is no checkpoint"),
            ("short", "is no checkpoint"),
            ("cut", "is cut off"),
            ("odd", "unreadable header"),
            ("old", "format version 1"),
            ("none", "cannot be read"),
        ] {
            let refused = header(name).unwrap_err();
            assert!(refused.error.contains(why) && refused.error.contains(name), "{name}: {refused:?}");
        }
    }

    #[test]
    fn files_1_only_files_of_the_run_are_told_and_read() {
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
    fn files_2_a_removal_goes_on_where_it_ended() {
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
