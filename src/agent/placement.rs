//! Checkpoints that a generation resumes from, on this host: what is there, pieces of files, and copies.
//!
//! A checkpoint is looked for at its path, then at the same place below this host's own directories, then where
//! copies are. A copy goes to the same place if that is in the directory of the ranks or in `workdir`; otherwise
//! into the node's own directory.
//!
//! Owner: one thread per console. Invariants:
//! - PLACE-1: a copy appears under its name once it is complete and has the hash of its source.
//! - PLACE-2: only copies that rankdeck made, and that are unchanged since, are replaced or removed. Another file
//!   is moved away by order only, and kept; one that another run wrote last is not moved.
//! - PLACE-8: hosts that share a disk write files of their own until a copy is complete. The first one that is complete
//!   stays, and counts for all of them.

use crate::copied_files::{self, CopiedFiles, identity};
use crate::digest;
use crate::other_runs;
use crate::paths::{self, RunPaths};
use crate::results;
use crate::supervise::script_checkpoints::{keep_aside, later_owner};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rankdeck_proto::message::{
    CHECKPOINT_FILES, CheckpointContent, CheckpointOrder, CheckpointReply, PIECE, PartFile, RecordEvent,
    RelativePath,
};
use rankdeck_proto::regular;
use rankdeck_types::code::Code;
use rankdeck_types::error::{HintedError, write_hint};
use rankdeck_types::ids::{Generation, WallTime};
use rankdeck_types::words::{count, hex};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Most files of a checkpoint, and bytes of their names.
const FILES: usize = CHECKPOINT_FILES;
const NAME_BYTES: usize = 2 << 20;
/// The same of one reply, which fits into a frame.
const PAGE_FILES: usize = 2048;
const PAGE_BYTES: usize = 256 << 10;
/// Deepest directory below a checkpoint.
const DEPTH: usize = 16;
/// How long the hashes of a checkpoint may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// Most hashes that are remembered.
const REMEMBERED: usize = FILES;
/// Ending of a copy that is not complete.
const PARTIAL: &str = ".rankdeck-copy";
/// The directory of copies in the node's own.
const FOLDER: &str = "resume";

/// The node whose checkpoints are placed.
#[derive(Debug)]
pub(crate) struct Placement {
    paths: RunPaths,
    workdir: PathBuf,
    /// Hashes of files by path and identity.
    hashes: Mutex<BTreeMap<(PathBuf, String), String>>,
    /// The copy that is being written, and its inode: it goes with this.
    partial: Mutex<Option<(PathBuf, u64)>>,
}

impl Drop for Placement {
    fn drop(&mut self) {
        self.remove_partial();
    }
}

impl Placement {
    pub fn new(paths: RunPaths, workdir: PathBuf) -> Placement {
        Placement { paths, workdir, hashes: Mutex::default(), partial: Mutex::default() }
    }

    /// Carries an order out. Blocks.
    pub fn obey(&self, order: &CheckpointOrder) -> CheckpointReply {
        let result = match order {
            CheckpointOrder::Describe { path, relative, code, hash, after } => self
                .describe(path, relative.as_ref(), code.as_ref(), (*hash, after.as_deref()))
                .map(CheckpointReply::Described),
            CheckpointOrder::Read { path, file, offset } => {
                let piece = |data: Vec<u8>| CheckpointReply::Piece {
                    bytes: data.len() as u64,
                    data: STANDARD.encode(data),
                };
                read(&part(path, file), *offset).map(piece)
            }
            CheckpointOrder::Write { path, file, offset, data, sha256 } => {
                let data = STANDARD.decode(data).unwrap_or_default();
                let (path, sha256) = (part(path, file), sha256.as_deref());
                let written = self.write(&path, *offset, &data, sha256);
                if written.is_err() {
                    self.remove_partial();
                }
                written.map(|()| CheckpointReply::Written)
            }
            CheckpointOrder::SetAside { path, generation } => {
                self.set_aside(Path::new(path), *generation).map(|()| CheckpointReply::Written)
            }
            CheckpointOrder::Unknown => Err(HintedError::new("this agent does not support this order", "")),
        };
        result.unwrap_or_else(CheckpointReply::Failed)
    }

    fn describe(
        &self,
        path: &str,
        relative: Option<&RelativePath>,
        code: Option<&Code>,
        (hash, after): (bool, Option<&str>),
    ) -> Result<CheckpointContent, HintedError> {
        let folder = self.ranks_folder(code);
        let own = paths::expand_in(path, &self.workdir);
        let mapped =
            relative.and_then(|relative| self.resolve(relative, &folder)).unwrap_or_else(|| own.clone());
        let name = own.file_name().unwrap_or_default();
        let kept = self.paths.node_dir().join(FOLDER).join(name);
        let there = [&own, &mapped, &kept].into_iter().find(|path| path.exists()).cloned();
        let place =
            there.clone().unwrap_or_else(|| if self.takes_copies(&mapped, &folder) { mapped } else { kept });
        let text = |path: &Path| {
            let error = || HintedError::new(format!("{} is not UTF-8", path.display()), "rename it");
            path.to_str().map(str::to_owned).ok_or_else(error)
        };
        let mut content = CheckpointContent {
            path: text(&place)?,
            free: free(&place),
            relative: self.relative(&place, &folder),
            ..CheckpointContent::default()
        };
        let Some(there) = there else { return Ok(content) };
        let (copies, launches) = (CopiedFiles::read(&self.workdir), launches(&self.paths));
        let (begun, mut names) = (Instant::now(), 0);
        let (all, is_complete) = files(&there).map_err(|error| failed("read", &there, &error))?;
        for (name, data) in
            all.into_iter().filter(|(name, _)| after.is_none_or(|after| name.as_str() > after))
        {
            names += name.len();
            if content.files.len() >= PAGE_FILES || names > PAGE_BYTES && !content.files.is_empty() {
                content.more = true;
                break;
            }
            let file = if name.is_empty() { there.clone() } else { there.join(&name) };
            let identity = identity(&data);
            let sha256 = hash.then(|| self.hash(&file, &identity, begun)).transpose()?;
            let copied = copies.has(&file, &identity);
            let modified = data.mtime() as f64 + data.mtime_nsec() as f64 / 1e9;
            let launched = launches.iter().filter(|(time, _)| *time <= modified);
            let generation = launched.map(|(_, generation)| *generation).max();
            let bytes = data.len();
            content.files.push(PartFile { name, bytes, identity, modified, sha256, generation, copied });
        }
        if !is_complete && !content.more {
            let most = count(FILES as u64);
            let error = io::Error::other(format!("a checkpoint on several hosts has at most {most} files"));
            return Err(failed("read", &there, &error));
        }
        Ok(content)
    }

    /// The directory in which ranks work. Before the first launch of uploaded code it is not known: then it is the
    /// run's own of this host.
    fn ranks_folder(&self, code: Option<&Code>) -> PathBuf {
        match code {
            None => self.workdir.clone(),
            Some(Code::Path(path)) => paths::expand_in(path, &self.workdir),
            Some(Code::Pack(_)) => {
                results::work(&self.paths).map_or_else(|| self.paths.node_dir(), |work| work.folder)
            }
        }
    }

    /// A path that is relative to a directory of another host, on this one.
    fn resolve(&self, relative: &RelativePath, folder: &Path) -> Option<PathBuf> {
        let own = format!("node{}", self.paths.node);
        // Nodes of a run have directories of their own.
        let of_node = |path: &str, at: usize| -> PathBuf {
            let is_node = |part: &str| part.strip_prefix("node").is_some_and(|n| n.parse::<u32>().is_ok());
            let parts = path.split('/').enumerate();
            parts
                .map(|(index, part)| if index == at && is_node(part) { own.as_str() } else { part })
                .collect()
        };
        let (base, path) = match relative {
            RelativePath::Ranks(path) => (folder, PathBuf::from(path)),
            RelativePath::Run(path) => (self.paths.run_dir.as_path(), of_node(path, 0)),
            RelativePath::Workdir(path) => {
                let at = if path.starts_with("runs/") { 2 } else { usize::MAX };
                (self.workdir.as_path(), of_node(path, at))
            }
        };
        is_plain(&path).then(|| base.join(path))
    }

    fn relative(&self, path: &Path, folder: &Path) -> Option<RelativePath> {
        let below = |base: &Path| {
            path.strip_prefix(base).ok()?.to_str().filter(|rest| !rest.is_empty()).map(str::to_owned)
        };
        let ranks = below(folder).filter(|rest| !rest.starts_with("runs/")).map(RelativePath::Ranks);
        ranks
            .or_else(|| below(&self.paths.run_dir).map(RelativePath::Run))
            .or_else(|| below(&self.workdir).map(RelativePath::Workdir))
    }

    /// Whether a copy may be made there: where ranks work, not in directories of runs. The directory of the ranks
    /// must exist: it is made with all that belongs into it.
    fn takes_copies(&self, path: &Path, folder: &Path) -> bool {
        if path.starts_with(folder) && folder != self.workdir {
            return folder.is_dir();
        }
        // Of runs, and of their uploaded code: others may work there.
        let mut apart = ["runs", "work"].map(|name| self.workdir.join(name)).into_iter();
        path.starts_with(&self.workdir)
            && !path.starts_with(&self.paths.run_dir)
            && !apart.any(|folder| path.starts_with(folder))
    }

    /// The hash of a file as it is now.
    fn hash(&self, path: &Path, identity: &str, begun: Instant) -> Result<String, HintedError> {
        let hashes = || self.hashes.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (path.to_owned(), identity.to_owned());
        if let Some(known) = hashes().get(&key) {
            return Ok(known.clone());
        }
        let hash = hash_of(path, begun).map_err(|error| failed("read", path, &error))?;
        let mut hashes = hashes();
        if hashes.len() >= REMEMBERED {
            hashes.pop_first();
        }
        hashes.insert(key, hash.clone());
        Ok(hash)
    }

    /// Moves what is there to `genN/` next to it.
    fn set_aside(&self, path: &Path, generation: Generation) -> Result<(), HintedError> {
        let refused = |why: String| {
            HintedError::new(
                format!("cannot set {} aside: {why}", path.display()),
                "move it away, then restart",
            )
        };
        let shared = [self.workdir.as_path(), self.paths.run_dir.as_path()];
        if !path.is_absolute() || shared.iter().any(|folder| folder.starts_with(path)) {
            return Err(refused("it is not a checkpoint's own path".to_owned()));
        }
        if let Some(run) = later_owner(&self.paths, path) {
            return Err(refused(format!("run {run} wrote it last")));
        }
        keep_aside(path, generation).map_err(|error| refused(error.to_string()))?;
        match std::fs::symlink_metadata(path) {
            Ok(_) => Err(refused("it is a link".to_owned())),
            Err(_) => Ok(()),
        }
    }

    /// Removes the copy that is being written. Another console may be writing one under the same name.
    fn remove_partial(&self) {
        let partial = self.partial.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((path, inode)) = partial
            && std::fs::symlink_metadata(&path).is_ok_and(|data| data.ino() == inode)
        {
            let _ = std::fs::remove_file(&path);
        }
    }

    /// PLACE-1.
    fn write(&self, path: &Path, offset: u64, data: &[u8], sha256: Option<&str>) -> Result<(), HintedError> {
        let wrong = |error: io::Error| {
            let error = error.to_string();
            HintedError::new(format!("cannot write {}: {error}", path.display()), write_hint(&error))
        };
        let refused = |why: &str| wrong(io::Error::other(why));
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(refused("not the path of a file"));
        };
        // Of this node only (PLACE-8).
        let run = hex(&Sha256::digest(self.paths.run_dir.as_os_str().as_encoded_bytes())[..4]);
        let name = name.to_string_lossy();
        let partial = folder.join(format!(".{name}.{run}-node{}{PARTIAL}", self.paths.node));
        if offset == 0 {
            std::fs::create_dir_all(folder).map_err(wrong)?;
            self.remove_partial();
            let _ = std::fs::remove_file(&partial);
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(offset == 0).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(&partial).map_err(wrong)?;
        let found = file.metadata().map_err(wrong)?;
        if found.len() != offset {
            return Err(refused("pieces do not follow each other"));
        }
        if offset == 0 {
            let own = (partial.clone(), found.ino());
            *self.partial.lock().unwrap_or_else(PoisonError::into_inner) = Some(own);
        }
        file.write_all_at(data, offset).map_err(wrong)?;
        let Some(sha256) = sha256 else { return Ok(()) };
        file.sync_all().map_err(wrong)?;
        let found = hash_of(&partial, Instant::now()).map_err(wrong)?;
        if found != sha256 {
            let _ = std::fs::remove_file(&partial);
            return Err(refused("its hash differs from the original's"));
        }
        // PLACE-2.
        let is_copy = |data: &Metadata| CopiedFiles::read(&self.workdir).has(path, &identity(data));
        if let Ok(data) = std::fs::symlink_metadata(path)
            && !is_copy(&data)
        {
            // PLACE-8.
            let is_there = data.is_file()
                && data.len() == file.metadata().map_err(wrong)?.len()
                && hash_of(path, Instant::now()).is_ok_and(|found| found == sha256);
            self.remove_partial();
            return if is_there { Ok(()) } else { Err(refused("it exists, and rankdeck did not copy it")) };
        }
        // Older than the ranks: nothing that they save.
        let _ = file.set_modified(SystemTime::now() - Duration::from_secs(5));
        std::fs::rename(&partial, path).map_err(wrong)?;
        *self.partial.lock().unwrap_or_else(PoisonError::into_inner) = None;
        copied_files::add(&self.workdir, &self.paths.run_dir, path).map_err(wrong)
    }
}

/// Removes copies of this run that a generation from `from` does not continue (PLACE-2). A script would find them, and
/// go on where the others start from scratch. While another run works there, they stay: it may use them.
pub(crate) fn forget_copies(paths: &RunPaths, workdir: &Path, from: Option<&str>) {
    if !other_runs::any_live(&paths.run_dir) {
        let stays = |path: &Path| from.is_some_and(|from| path.starts_with(from));
        let _ = copied_files::remove(workdir, &paths.run_dir, stays);
    }
}

/// When this host's generations were launched, by its clock.
fn launches(paths: &RunPaths) -> Vec<(WallTime, Generation)> {
    let mut all = Vec::new();
    digest::each_record(&paths.spool(), |record| {
        if matches!(record.event, RecordEvent::Launched { .. }) {
            all.push((record.time, record.generation));
        }
    });
    all
}

/// A file of a checkpoint.
fn part(path: &str, file: &str) -> PathBuf {
    match file.is_empty() {
        true => path.into(),
        // Nothing outside.
        false => Path::new(path).join(if is_plain(Path::new(file)) { file } else { "." }),
    }
}

fn is_plain(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_)))
}

/// Regular files of a checkpoint by their names below it, in order, and whether these are all.
fn files(path: &Path) -> io::Result<(Vec<(String, Metadata)>, bool)> {
    let data = std::fs::metadata(path)?;
    if data.is_file() {
        return Ok((vec![(String::new(), data)], true));
    }
    let (mut all, mut names) = (Vec::new(), 0);
    let is_full = |all: &Vec<(String, Metadata)>, names: usize| all.len() > FILES || names > NAME_BYTES;
    let mut open = vec![(path.to_owned(), 0)];
    while let Some((folder, depth)) = open.pop().filter(|_| !is_full(&all, names)) {
        for entry in std::fs::read_dir(&folder)? {
            let inner = entry?.path();
            let data = std::fs::symlink_metadata(&inner)?;
            let Some(name) = inner.strip_prefix(path).ok().and_then(Path::to_str) else { continue };
            // Interrupted copies do not count.
            if data.is_dir() && depth < DEPTH {
                open.push((inner, depth + 1));
            } else if data.is_file() && !name.ends_with(PARTIAL) {
                names += name.len();
                all.push((name.to_owned(), data));
            }
            if is_full(&all, names) {
                break;
            }
        }
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    let is_complete = !is_full(&all, names);
    Ok((all, is_complete))
}

fn read(path: &Path, offset: u64) -> Result<Vec<u8>, HintedError> {
    let wrong = |error: io::Error| failed("read", path, &error);
    let file = regular::open(path).map_err(wrong)?;
    let mut data = vec![0; PIECE as usize];
    let mut filled = 0;
    while filled < data.len() {
        match file.read_at(&mut data[filled..], offset + filled as u64).map_err(wrong)? {
            0 => break,
            read => filled += read,
        }
    }
    data.truncate(filled);
    Ok(data)
}

fn hash_of(path: &Path, begun: Instant) -> io::Result<String> {
    let mut file: File = regular::open(path)?;
    let (mut hash, mut chunk) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        if begun.elapsed() > PATIENCE {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "its hash takes more than 10 minutes"));
        }
        match file.read(&mut chunk)? {
            0 => return Ok(hex(&hash.finalize())),
            read => hash.update(&chunk[..read]),
        }
    }
}

fn free(path: &Path) -> u64 {
    let there = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    rustix::fs::statvfs(there).map_or(0, |facts| facts.f_bavail.saturating_mul(facts.f_frsize))
}

fn failed(what: &str, path: &Path, error: &io::Error) -> HintedError {
    HintedError::new(
        format!("cannot {what} checkpoint {}: {error}", path.display()),
        "choose another checkpoint",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::message::{LaunchSpec, Record};
    use rankdeck_types::ids::{NodeRank, RunId};
    use rankdeck_types::plan::Plan;
    use std::fs::{create_dir_all, read_to_string, write};

    fn node(folder: &Path, node: u32) -> Placement {
        let workdir = folder.join(format!("host{node}"));
        let paths = RunPaths { run_dir: workdir.join("runs/r"), node: NodeRank(node) };
        create_dir_all(paths.node_dir()).unwrap();
        Placement::new(paths, workdir)
    }

    fn describe(node: &Placement, path: &Path, relative: Option<RelativePath>) -> CheckpointContent {
        let path = path.display().to_string();
        let order = CheckpointOrder::Describe { path, relative, code: None, hash: true, after: None };
        match node.obey(&order) {
            CheckpointReply::Described(content) => content,
            other => panic!("{other:?}"),
        }
    }

    fn put(node: &Placement, path: &str, data: &[u8], sha256: &str) -> Result<(), String> {
        let data = STANDARD.encode(data);
        let sha256 = Some(sha256.to_owned());
        let order =
            CheckpointOrder::Write { path: path.into(), file: String::new(), offset: 0, data, sha256 };
        match node.obey(&order) {
            CheckpointReply::Written => Ok(()),
            CheckpointReply::Failed(error) => Err(error.error),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn copy_goes_where_the_original_is_or_into_the_node_s_directory() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (node(folder.path(), 0), node(folder.path(), 1));
        let at = |node: &Placement, name: &str| node.workdir.join(name);
        create_dir_all(at(&a, "out")).unwrap();
        for name in ["out/ck.pt", "runs/r/node0/own.pt"] {
            write(at(&a, name), name).unwrap();
        }
        write(folder.path().join("far.pt"), "far").unwrap();
        create_dir_all(at(&a, "work/other")).unwrap();
        write(at(&a, "work/other/ck.pt"), "1").unwrap();
        for (path, place) in [
            (at(&a, "out/ck.pt"), at(&b, "out/ck.pt")),
            (at(&a, "work/other/ck.pt"), at(&b, "runs/r/node1/resume/ck.pt")),
            (at(&a, "runs/r/node0/own.pt"), at(&b, "runs/r/node1/resume/own.pt")),
        ] {
            let content = describe(&a, &path, None);
            assert_eq!((content.files.len(), Path::new(&content.path)), (1, path.as_path()));
            let other = Path::new("/elsewhere").join(path.file_name().unwrap());
            let there = describe(&b, &other, content.relative);
            assert_eq!((there.files.len(), PathBuf::from(there.path)), (0, place), "{path:?}");
            assert!(there.free > 0);
        }
        // The same path on both hosts: they share it.
        let shared = [&a, &b].map(|node| describe(node, &folder.path().join("far.pt"), None));
        assert_eq!(shared[0].files, shared[1].files);
    }

    #[test]
    fn place_1_only_a_whole_copy_appears() {
        let folder = tempfile::tempdir().unwrap();
        let a = node(folder.path(), 0);
        let path = a.workdir.join("out/ck.pt");
        let text = path.display().to_string();
        assert!(put(&a, &text, b"12345", "wrong").is_err());
        assert!(!path.exists());
        let hash = hex(&Sha256::digest(b"12345"));
        assert_eq!(put(&a, &text, b"12345", &hash), Ok(()));
        assert_eq!(read_to_string(&path).unwrap(), "12345");
        let file = &describe(&a, &path, None).files[0];
        assert!(file.copied && file.sha256.as_ref() == Some(&hash) && file.bytes == 5, "{file:?}");
        let piece = CheckpointOrder::Read { path: text.clone(), file: String::new(), offset: 3 };
        assert_eq!(a.obey(&piece), CheckpointReply::Piece { bytes: 2, data: STANDARD.encode("45") });
        let gap = CheckpointOrder::Write {
            path: text,
            file: "x".into(),
            offset: 9,
            data: String::new(),
            sha256: None,
        };
        assert!(matches!(a.obey(&gap), CheckpointReply::Failed(_)));
    }

    #[test]
    fn place_2_only_unchanged_copies_are_replaced_or_removed() {
        let folder = tempfile::tempdir().unwrap();
        let a = node(folder.path(), 0);
        let at = |name: &str| a.workdir.join(name).display().to_string();
        let (one, two) = (hex(&Sha256::digest(b"1")), hex(&Sha256::digest(b"2")));
        write(at("own.pt"), "own").unwrap();
        assert!(put(&a, &at("own.pt"), b"1", &one).is_err());
        for name in ["a.pt", "b.pt", "c.pt"] {
            put(&a, &at(name), b"1", &one).unwrap();
        }
        assert_eq!(put(&a, &at("a.pt"), b"2", &two), Ok(()));
        write(at("b.pt"), "changed").unwrap();
        assert!(put(&a, &at("b.pt"), b"2", &two).is_err());
        forget_copies(&a.paths, &a.workdir, Some(&at("a.pt")));
        let there = ["own.pt", "a.pt", "b.pt", "c.pt"].map(|name| Path::new(&at(name)).exists());
        assert_eq!(there, [true, true, true, false]);
        forget_copies(&a.paths, &a.workdir, None);
        assert!(!Path::new(&at("a.pt")).exists() && Path::new(&at("b.pt")).exists());
    }

    /// Both hosts have the same `workdir`, and get the same file.
    #[test]
    fn place_8_hosts_of_one_disk_write_files_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let workdir = folder.path().join("shared");
        let nodes = [0, 1].map(|node| {
            let paths = RunPaths { run_dir: workdir.join("runs/r"), node: NodeRank(node) };
            create_dir_all(paths.node_dir()).unwrap();
            Placement::new(paths, workdir.clone())
        });
        let path = workdir.join("ck.pt").display().to_string();
        let hash = hex(&Sha256::digest(b"123456"));
        let piece = |node: &Placement, offset: u64, data: &[u8]| {
            let (data, sha256) = (STANDARD.encode(data), (offset > 0).then(|| hash.clone()));
            let order =
                CheckpointOrder::Write { path: path.clone(), file: String::new(), offset, data, sha256 };
            assert_eq!(node.obey(&order), CheckpointReply::Written);
        };
        for node in &nodes {
            piece(node, 0, b"123");
        }
        for node in &nodes {
            piece(node, 3, b"456");
            assert_eq!(read_to_string(&path).unwrap(), "123456");
        }
        assert_eq!(std::fs::read_dir(&workdir).unwrap().count(), 2, "no partial file is left");
        assert!(describe(&nodes[0], Path::new(&path), None).files[0].copied);
        // The same through directories whose lists of copies are not shared.
        let other = node(folder.path(), 2);
        assert_eq!(put(&other, &path, b"123456", &hash), Ok(()));
        let wrong = hex(&Sha256::digest(b"6"));
        assert!(put(&other, &path, b"6", &wrong).is_err());
    }

    /// What a run gets as a copy is one for the next run, too.
    #[test]
    fn place_2_copy_of_another_run_is_a_copy() {
        let folder = tempfile::tempdir().unwrap();
        let a = node(folder.path(), 0);
        let path = a.workdir.join("ck.pt");
        let one = hex(&Sha256::digest(b"1"));
        assert_eq!(put(&a, &path.display().to_string(), b"1", &one), Ok(()));
        let paths = RunPaths { run_dir: a.workdir.join("runs/later"), node: NodeRank(0) };
        create_dir_all(paths.node_dir()).unwrap();
        let later = Placement::new(paths, a.workdir.clone());
        assert!(describe(&later, &path, None).files[0].copied);
        let two = hex(&Sha256::digest(b"2"));
        assert_eq!(put(&later, &path.display().to_string(), b"2", &two), Ok(()), "it is replaced");
    }

    #[test]
    fn directory_of_many_files_is_described_in_pages() {
        let folder = tempfile::tempdir().unwrap();
        let a = node(folder.path(), 0);
        let path = a.workdir.join("global_step1");
        create_dir_all(&path).unwrap();
        (0..PAGE_FILES + 1).for_each(|index| write(path.join(format!("{index:05}")), "").unwrap());
        let page = |after: Option<&str>| {
            let (path, after) = (path.display().to_string(), after.map(str::to_owned));
            let order = CheckpointOrder::Describe { path, relative: None, code: None, hash: false, after };
            match a.obey(&order) {
                CheckpointReply::Described(content) => content,
                other => panic!("{other:?}"),
            }
        };
        let first = page(None);
        assert_eq!((first.files.len(), first.more), (PAGE_FILES, true));
        let second = page(first.files.last().map(|file| file.name.as_str()));
        assert_eq!((second.files.len(), second.more), (1, false));
        assert!(serde_json::to_vec(&first).unwrap().len() < 900 << 10, "it fits into a frame");
    }

    #[test]
    fn place_1_interrupted_copy_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let a = node(folder.path(), 0);
        let out = a.workdir.join("out");
        let first_piece = |node: &Placement| {
            let order = CheckpointOrder::Write {
                path: out.join("ck.pt").display().to_string(),
                file: String::new(),
                offset: 0,
                data: STANDARD.encode(b"123"),
                sha256: None,
            };
            assert_eq!(node.obey(&order), CheckpointReply::Written);
        };
        let files = || std::fs::read_dir(&out).unwrap().count();
        first_piece(&a);
        assert_eq!(files(), 1);
        // The console is gone; another one has begun meanwhile.
        let b = node(folder.path(), 0);
        first_piece(&b);
        drop(b);
        assert_eq!(files(), 0);
        drop(a);
    }

    #[test]
    fn place_2_file_of_an_earlier_generation_is_kept_aside() {
        let folder = tempfile::tempdir().unwrap();
        let a = node(folder.path(), 0);
        let path = a.workdir.join("ck.pt");
        write(&path, "old").unwrap();
        let aside = |path: &Path| {
            let path = path.display().to_string();
            a.obey(&CheckpointOrder::SetAside { path, generation: Generation(2) })
        };
        assert_eq!(aside(&path), CheckpointReply::Written);
        assert_eq!(read_to_string(a.workdir.join("gen2/ck.pt")).unwrap(), "old");
        assert!(!path.exists());
        for outer in [a.workdir.as_path(), a.paths.run_dir.as_path(), Path::new("ck.pt")] {
            assert!(matches!(aside(outer), CheckpointReply::Failed(_)), "{outer:?}");
        }
        let one = hex(&Sha256::digest(b"1"));
        assert_eq!(put(&a, &path.display().to_string(), b"1", &one), Ok(()));
    }

    #[test]
    fn file_is_of_the_generation_before_its_last_change() {
        let folder = tempfile::tempdir().unwrap();
        let a = node(folder.path(), 0);
        let launched = |seq: u64, time: f64, generation: u32| {
            let generation = Generation(generation);
            let plan = Plan {
                run: RunId("r".into()),
                experiment: toml::from_str("[run]\nname = \"t\"\n[launch]\ncommand = [\"true\"]").unwrap(),
                program: None,
                hosts: vec![],
                ranks: vec![],
                sizes: vec![],
                drill: false,
            };
            let spec = LaunchSpec {
                generation,
                node_rank: NodeRank(0),
                master_addr: "127.0.0.1".into(),
                master_port: 1,
                resume: None,
                resume_at: None,
                plan,
            };
            let event = RecordEvent::Launched { spec: Box::new(spec) };
            let record = Record { seq, time, generation, event };
            serde_json::to_string(&record).unwrap() + "\n"
        };
        write(a.paths.spool(), launched(1, 1000.0, 0) + &launched(2, 2000.0, 1)).unwrap();
        let path = a.workdir.join("ck.pt");
        for (time, generation) in [(900, None), (1500, Some(0)), (2500, Some(1))] {
            write(&path, "1").unwrap();
            let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(time);
            OpenOptions::new().write(true).open(&path).unwrap().set_modified(modified).unwrap();
            assert_eq!(describe(&a, &path, None).files[0].generation, generation.map(Generation));
        }
    }

    #[test]
    fn directory_is_described_by_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (node(folder.path(), 0), node(folder.path(), 1));
        create_dir_all(a.workdir.join("ck-2/deep")).unwrap();
        for (name, text) in [("ck-2/b", "12"), ("ck-2/deep/a", "1")] {
            write(a.workdir.join(name), text).unwrap();
        }
        let content = describe(&a, &a.workdir.join("ck-2"), None);
        let files: Vec<_> = content.files.iter().map(|file| (file.name.as_str(), file.bytes)).collect();
        assert_eq!(files, [("b", 2), ("deep/a", 1)]);
        assert_eq!(content.relative, Some(RelativePath::Ranks("ck-2".into())));
        let outside = RelativePath::Workdir("../x".into());
        let there = describe(&b, Path::new("/none/ck"), Some(outside));
        assert!(there.path.ends_with("node1/resume/ck"), "{there:?}");
    }
}
