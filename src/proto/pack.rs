//! A directory as one file that is named by its content, to upload code and libraries to hosts.
//!
//! Format: for every file, in the order of paths, a line of JSON ([`PackEntry`]) and its bytes. Times, owners
//! and the order on disk are not stored, so that equal directories give equal packs on every machine.
//! Invariants:
//! - PACK-1: a pack is unpacked only if its content has the hash in its name.
//! - PACK-2: nothing is written outside the target directory, which exists completely or not at all.

use crate::folders::{caches, create_private, private_cache};
use rankdeck_types::error::HintedError;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Patterns that are never uploaded, besides those that the experiment excludes.
pub const EXCLUDED: [&str; 13] = [
    ".git",
    ".hg",
    ".venv",
    "venv",
    "__pycache__",
    "*.pyc",
    "*.egg-info",
    ".mypy_cache",
    ".pytest_cache",
    "node_modules",
    "runs",
    ".libtorch",
    "wandb",
];
/// Most files of a pack.
pub const MAX_FILES: usize = 100_000;
/// Most bytes of a pack.
pub const MAX_BYTES: u64 = 8 << 30;
/// Longest line of an entry.
const MAX_LINE: u64 = 64 << 10;

/// One file of a pack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PackEntry {
    /// Relative path, with `/`.
    path: String,
    /// Executable.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    executable: bool,
    /// Number of bytes that follow.
    #[serde(default)]
    size: u64,
    /// Target of a symbolic link; no bytes follow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    link: Option<String>,
}

/// A file of a directory: its path, and the SHA-256 of its content, for a link that of its target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHash {
    /// Relative path, with `/`.
    pub path: String,
    pub sha256: String,
}

/// A pack in this machine's cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pack {
    /// SHA-256 of the pack in hexadecimal.
    pub hash: String,
    /// Path of the pack.
    pub path: PathBuf,
    pub files: usize,
    /// Its files, in the order of paths.
    pub contents: Vec<FileHash>,
    /// Bytes of the pack.
    pub bytes: u64,
    /// Symbolic links whose target is not in the pack, so that they dangle on a host: name and target.
    pub dangling: Vec<(String, PathBuf)>,
}

/// Returns the path of a pack within a cache.
pub fn name(hash: &str) -> String {
    format!("packs/{hash}.pack")
}

/// Returns the path of the pack with this hash, if this host has it.
pub fn cached(hash: &str) -> Option<PathBuf> {
    // The hash is untrusted and becomes a path.
    let plain = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    caches().into_iter().filter(|_| plain).map(|cache| cache.join(name(hash))).find(|path| path.is_file())
}

/// Packs `folder` into this machine's cache. `keep` selects files by relative path; rejected directories are
/// not entered.
pub fn make(folder: &Path, keep: &dyn Fn(&str) -> bool) -> Result<Pack, HintedError> {
    let fault = |path: &Path, error: io::Error| {
        let hint = "check its permissions, or exclude it with `launch.exclude`";
        HintedError::new(format!("cannot pack {}: {error}", path.display()), hint)
    };
    let mut files = Vec::new();
    gather(folder, "", keep, &mut files, MAX_FILES).map_err(|(path, error)| fault(&path, error))?;
    if files.len() > MAX_FILES {
        return Err(HintedError::new(
            format!("{} contains more than {MAX_FILES} files", folder.display()),
            "exclude data and Python environments with `launch.exclude`",
        ));
    }
    files.sort();
    let packs = private_cache("packs")?;
    let part = packs.join(format!(".{}-{:x}.part", std::process::id(), stamp()));
    let made = write(folder, &files, &part).map_err(|(path, error)| fault(&path, error)).and_then(
        |(hash, bytes, contents)| {
            let path = packs.join(format!("{hash}.pack"));
            fs::rename(&part, &path).map_err(|error| fault(&path, error))?;
            let dangling = dangling(folder, &files);
            Ok(Pack { hash, path, files: files.len(), contents, bytes, dangling })
        },
    );
    let _ = fs::remove_file(&part);
    made
}

/// Hashes the files of `folder` that `keep` selects, in the order of paths; at most `most` of them, and then any.
///
/// # Errors
/// A directory or file cannot be read.
pub fn list(folder: &Path, keep: &dyn Fn(&str) -> bool, most: usize) -> io::Result<Vec<FileHash>> {
    let mut files = Vec::new();
    gather(folder, "", keep, &mut files, most).map_err(|(_, error)| error)?;
    files.truncate(most);
    files.sort();
    files.into_iter().map(|path| hash_of(folder, path)).collect()
}

/// Hashes one file of `folder`.
///
/// # Errors
/// It is gone, or cannot be read.
pub fn hash_of(folder: &Path, path: String) -> io::Result<FileHash> {
    let at = folder.join(&path);
    let sha256 = match fs::symlink_metadata(&at)?.is_symlink() {
        true => sha256(fs::read_link(&at)?.to_string_lossy().as_bytes()),
        false => digest_of(&mut crate::regular::open(&at)?)?,
    };
    Ok(FileHash { path, sha256 })
}

fn sha256(bytes: &[u8]) -> String {
    rankdeck_types::words::hex(&Sha256::digest(bytes))
}

/// Returns the links among `files` (sorted) that lead out of them. A link with an absolute target leads to the
/// host's own file of that name, if there is one.
fn dangling(root: &Path, files: &[String]) -> Vec<(String, PathBuf)> {
    let Ok(real_root) = root.canonicalize() else { return Vec::new() };
    let has = |path: &Path| {
        let Some(path) = path.to_str() else { return false };
        let inside = format!("{path}/");
        let at = files.partition_point(|name| name.as_str() < inside.as_str());
        path.is_empty()
            || files.binary_search_by(|name| name.as_str().cmp(path)).is_ok()
            || files.get(at).is_some_and(|name| name.starts_with(&inside))
    };
    let leads_out = |name: &String| {
        let path = root.join(name);
        let target = fs::read_link(&path).ok()?;
        let arrives = target.is_relative()
            && path.canonicalize().is_ok_and(|real| real.strip_prefix(&real_root).is_ok_and(&has));
        (!arrives).then(|| (name.clone(), target))
    };
    files.iter().filter_map(leads_out).collect()
}

/// Returns a number that is unique in this process, for names of temporary files.
fn stamp() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Collects paths; stops beyond `most`. An error names what cannot be read.
fn gather(
    root: &Path,
    below: &str,
    keep: &dyn Fn(&str) -> bool,
    files: &mut Vec<String>,
    most: usize,
) -> Result<(), (PathBuf, io::Error)> {
    let folder = root.join(below);
    for entry in fs::read_dir(&folder).map_err(|error| (folder.clone(), error))? {
        let entry = entry.map_err(|error| (folder.clone(), error))?;
        let Ok(name) = entry.file_name().into_string() else {
            let why = format!("{:?} is not valid UTF-8", entry.file_name());
            return Err((folder, io::Error::new(io::ErrorKind::InvalidData, why)));
        };
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        if !keep(&path) {
            continue;
        }
        let kind = entry.file_type().map_err(|error| (entry.path(), error))?;
        if kind.is_dir() {
            gather(root, &path, keep, files, most)?;
        } else if kind.is_file() || kind.is_symlink() {
            files.push(path);
        }
        if files.len() > most {
            break;
        }
    }
    Ok(())
}

/// What was packed: the hash of the pack, its bytes, its files.
type Written = (String, u64, Vec<FileHash>);

/// A writer that hashes and counts its bytes.
struct Hashing<W> {
    inner: W,
    digest: Sha256,
    bytes: u64,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.digest.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn write(root: &Path, files: &[String], part: &Path) -> Result<Written, (PathBuf, io::Error)> {
    let here = |error: io::Error| (part.to_owned(), error);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(part).map_err(here)?;
    let mut out = Hashing { inner: BufWriter::new(file), digest: Sha256::new(), bytes: 0 };
    let mut contents = Vec::with_capacity(files.len());
    for name in files {
        let path = root.join(name);
        let there = |error: io::Error| (path.clone(), error);
        let facts = fs::symlink_metadata(&path).map_err(there)?;
        let link = facts.is_symlink().then(|| fs::read_link(&path)).transpose().map_err(there)?;
        let entry = PackEntry {
            path: name.clone(),
            executable: link.is_none() && facts.permissions().mode() & 0o111 != 0,
            size: if link.is_none() { facts.len() } else { 0 },
            link: link.map(|target| target.to_string_lossy().into_owned()),
        };
        let line = serde_json::to_string(&entry).map_err(|error| here(error.into()))?;
        writeln!(out, "{line}").map_err(here)?;
        let sha256 = match &entry.link {
            Some(target) => sha256(target.as_bytes()),
            None => {
                let mut content = Hashing { inner: &mut out, digest: Sha256::new(), bytes: 0 };
                let copied = io::copy(&mut File::open(&path).map_err(there)?.take(entry.size), &mut content)
                    .map_err(there)?;
                if copied != entry.size {
                    return Err(there(io::Error::other("it changed while being read")));
                }
                rankdeck_types::words::hex(&content.digest.finalize())
            }
        };
        contents.push(FileHash { path: name.clone(), sha256 });
        if out.bytes > MAX_BYTES {
            return Err(there(io::Error::other("the pack exceeds 8 GiB")));
        }
    }
    out.flush().map_err(here)?;
    let hash = rankdeck_types::words::hex(&out.digest.finalize());
    Ok((hash, out.bytes, contents))
}

/// Unpacks into `target`, whose name contains the hash: an existing one was unpacked from the same pack.
pub fn unpack(pack: &Path, hash: &str, target: &Path) -> Result<(), HintedError> {
    if target.is_dir() {
        return Ok(());
    }
    let failed = |error: io::Error| {
        HintedError::new(
            format!("cannot unpack {} into {}: {error}", pack.display(), target.display()),
            "check the free disk space; for a damaged pack, remove it and run `rankdeck push`",
        )
    };
    if digest(pack).map_err(failed)? != hash {
        // The next push uploads it again.
        let _ = fs::remove_file(pack);
        return Err(failed(io::Error::other("it is damaged and was removed")));
    }
    let parent = target.parent().unwrap_or(Path::new("/"));
    create_private(parent)?;
    let part = parent.join(format!(".unpack-{}-{:x}", std::process::id(), stamp()));
    let result = extract(pack, &part).and_then(|()| match fs::rename(&part, target) {
        // Another process was faster, with the same content.
        Err(_) if target.is_dir() => Ok(()),
        other => other,
    });
    let _ = fs::remove_dir_all(&part);
    result.map_err(failed)
}

/// One file of a pack, and where its bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedFile {
    /// Relative path, with `/`.
    pub path: String,
    pub executable: bool,
    /// Target of a symbolic link.
    pub link: Option<String>,
    pub size: u64,
    /// SHA-256 of its bytes in hexadecimal.
    pub hash: String,
    offset: u64,
}

/// The files of a pack, to be written one by one.
#[derive(Debug)]
pub struct PackIndex {
    pack: File,
    pub files: Vec<PackedFile>,
}

impl PackIndex {
    /// Reads the index of a pack (PACK-1). A damaged pack is removed.
    ///
    /// # Errors
    /// It cannot be read, or its content does not have this hash.
    pub fn read(pack: &Path, hash: &str) -> Result<PackIndex, HintedError> {
        let failed = |error: io::Error| {
            HintedError::new(
                format!("cannot read {}: {error}", pack.display()),
                "run `rankdeck push`, which uploads it again",
            )
        };
        if digest(pack).map_err(failed)? != hash {
            let _ = fs::remove_file(pack);
            return Err(failed(io::Error::other("it is damaged and was removed")));
        }
        PackIndex::parse(File::open(pack).map_err(failed)?).map_err(failed)
    }

    fn parse(pack: File) -> io::Result<PackIndex> {
        let mut reader = BufReader::new(&pack);
        let (mut files, mut offset) = (Vec::new(), 0);
        while let Some((entry, length)) = read_entry(&mut reader)? {
            offset += length;
            let mut bytes = Hashing { inner: io::sink(), digest: Sha256::new(), bytes: 0 };
            if io::copy(&mut (&mut reader).take(entry.size), &mut bytes)? != entry.size {
                return Err(bad(format!("truncated inside `{}`", entry.path)));
            }
            let hash = rankdeck_types::words::hex(&bytes.digest.finalize());
            let PackEntry { path, executable, size, link } = entry;
            files.push(PackedFile { path, executable, link, size, hash, offset });
            offset += size;
        }
        Ok(PackIndex { pack, files })
    }

    /// Writes the bytes of a file.
    pub fn copy(&self, file: &PackedFile, to: &mut impl Write) -> io::Result<()> {
        let mut pack = &self.pack;
        pack.seek(SeekFrom::Start(file.offset))?;
        match io::copy(&mut pack.take(file.size), to)? == file.size {
            true => Ok(()),
            false => Err(bad(format!("truncated inside `{}`", file.path))),
        }
    }
}

fn bad(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Reads the line of the next file; returns it with its length, `None` at the end (PACK-2).
fn read_entry(reader: &mut impl BufRead) -> io::Result<Option<(PackEntry, u64)>> {
    let mut line = String::new();
    let length = reader.take(MAX_LINE).read_line(&mut line)?;
    if length == 0 {
        return Ok(None);
    }
    let entry: PackEntry = serde_json::from_str(&line).map_err(|error| bad(error.to_string()))?;
    let is_inside = !entry.path.is_empty()
        && Path::new(&entry.path).components().all(|part| matches!(part, Component::Normal(_)));
    match is_inside {
        true => Ok(Some((entry, length as u64))),
        false => Err(bad(format!("`{}` points outside the directory", entry.path))),
    }
}

fn digest(path: &Path) -> io::Result<String> {
    digest_of(&mut File::open(path)?)
}

fn digest_of(file: &mut File) -> io::Result<String> {
    let mut out = Hashing { inner: io::sink(), digest: Sha256::new(), bytes: 0 };
    io::copy(file, &mut out)?;
    Ok(rankdeck_types::words::hex(&out.digest.finalize()))
}

fn extract(pack: &Path, into: &Path) -> io::Result<()> {
    let mut reader = BufReader::new(File::open(pack)?);
    fs::create_dir(into)?;
    while let Some((entry, _)) = read_entry(&mut reader)? {
        let path = into.join(&entry.path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
            // A link among the parents could lead anywhere.
            if !parent.canonicalize()?.starts_with(into.canonicalize()?) {
                return Err(bad(format!("`{}` points outside the directory", entry.path)));
            }
        }
        if let Some(link) = entry.link {
            std::os::unix::fs::symlink(link, &path)?;
            continue;
        }
        let mode = if entry.executable { 0o700 } else { 0o600 };
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
        if io::copy(&mut (&mut reader).take(entry.size), &mut file)? != entry.size {
            return Err(bad(format!("truncated inside `{}`", entry.path)));
        }
    }
    Ok(())
}

/// Returns whether `path`, or a directory above it, matches one of `patterns`. A pattern with `/` matches the
/// whole path, one without matches any name in it; `*` matches anything, `?` one character.
pub fn matches(path: &str, patterns: &[String]) -> bool {
    patterns.iter().any(|pattern| {
        let pattern = pattern.trim_end_matches('/');
        match pattern.strip_prefix('/').or_else(|| pattern.contains('/').then_some(pattern)) {
            Some(whole) => {
                let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
                ends.map(|end| &path[..end]).any(|prefix| glob(whole.as_bytes(), prefix.as_bytes()))
            }
            None => path.split('/').any(|name| glob(pattern.as_bytes(), name.as_bytes())),
        }
    })
}

/// Matches wildcards iteratively: on a mismatch, the last `*` takes one more byte.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, t));
                p += 1;
            }
            Some(&byte) if byte == b'?' || byte == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((after, taken)) => {
                    p = after;
                    t = taken + 1;
                    star = Some((after, taken + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack_of(root: &Path, files: &[String], into: &Path) -> (String, PathBuf) {
        let _ = fs::remove_file(into);
        let (hash, bytes, contents) = write(root, files, into).unwrap();
        assert_eq!(bytes, fs::metadata(into).unwrap().len());
        let hashed = |path: &String| hash_of(root, path.clone()).unwrap();
        assert_eq!(contents, files.iter().map(hashed).collect::<Vec<_>>());
        (hash, into.to_owned())
    }

    fn listed(root: &Path, exclude: &[&str]) -> Vec<String> {
        let exclude: Vec<String> = exclude.iter().map(|text| text.to_string()).collect();
        let mut files = Vec::new();
        gather(root, "", &|path| !matches(path, &exclude), &mut files, MAX_FILES).unwrap();
        files.sort();
        files
    }

    #[test]
    fn pack_round_trip_keeps_content_and_hash() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("code");
        fs::create_dir_all(root.join("pkg")).unwrap();
        fs::write(root.join("train.py"), "print(1)\n").unwrap();
        fs::write(root.join("pkg/model.py"), [0u8, 255, 10]).unwrap();
        fs::write(root.join("run.sh"), "").unwrap();
        fs::set_permissions(root.join("run.sh"), PermissionsExt::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink("train.py", root.join("main.py")).unwrap();
        let files = listed(&root, &[]);
        let (hash, pack) = pack_of(&root, &files, &folder.path().join("a"));
        assert_eq!(pack_of(&root, &files, &folder.path().join("b")).0, hash);
        let out = folder.path().join("out");
        unpack(&pack, &hash, &out).unwrap();
        assert_eq!(fs::read(out.join("pkg/model.py")).unwrap(), [0, 255, 10]);
        assert_eq!(fs::read_link(out.join("main.py")).unwrap(), Path::new("train.py"));
        assert_eq!(fs::metadata(out.join("run.sh")).unwrap().permissions().mode() & 0o777, 0o700);
        unpack(&pack, &hash, &out).unwrap();
        fs::write(root.join("train.py"), "print(2)\n").unwrap();
        assert_ne!(pack_of(&root, &files, &folder.path().join("c")).0, hash);
    }

    #[test]
    fn folder_that_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/gone")).unwrap();
        let remove = |path: &str| {
            if path == "a/gone" {
                fs::remove_dir(folder.path().join(path)).unwrap();
            }
            true
        };
        let error = make(folder.path(), &remove).unwrap_err();
        assert!(error.error.contains("/a/gone: "), "{error:?}");
    }

    #[test]
    fn links_that_leave_the_pack_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("code");
        fs::create_dir_all(root.join("pkg/sub")).unwrap();
        fs::create_dir_all(root.join("data")).unwrap();
        fs::create_dir_all(folder.path().join("libs/common")).unwrap();
        for name in ["a.py", "pkg/b.py", "pkg/sub/c.py", "data/x"] {
            fs::write(root.join(name), "").unwrap();
        }
        let absolute = root.join("a.py");
        for (name, target) in [
            ("in_file", "a.py"),
            ("in_folder", "pkg"),
            ("pkg/up", "../a.py"),
            ("through", "in_folder/sub"),
            ("itself", "."),
            ("common", "../libs/common"),
            ("absolute", absolute.to_str().unwrap()),
            ("left_out", "data/x"),
            ("broken", "nowhere"),
        ] {
            std::os::unix::fs::symlink(target, root.join(name)).unwrap();
        }
        let files = listed(&root, &["data"]);
        let found: Vec<String> = dangling(&root, &files).into_iter().map(|(name, _)| name).collect();
        assert_eq!(found, ["absolute", "broken", "common", "left_out"]);
    }

    #[test]
    fn pack_1_damaged_pack_is_rejected_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let pack = folder.path().join("p");
        fs::write(&pack, "{\"path\":\"a\",\"size\":1}\nx").unwrap();
        let hash = digest(&pack).unwrap();
        fs::write(&pack, "{\"path\":\"a\",\"size\":1}\ny").unwrap();
        let out = folder.path().join("out");
        assert!(unpack(&pack, &hash, &out).unwrap_err().error.contains("damaged"));
        assert!(!out.exists() && !pack.exists());
    }

    #[test]
    fn pack_index_has_every_file_with_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("code");
        fs::create_dir_all(root.join("pkg")).unwrap();
        fs::write(root.join("train.py"), "print(1)\n").unwrap();
        fs::write(root.join("pkg/data"), [0u8, 255, 10, 10]).unwrap();
        std::os::unix::fs::symlink("train.py", root.join("main.py")).unwrap();
        let (hash, pack) = pack_of(&root, &listed(&root, &[]), &folder.path().join("a"));
        let index = PackIndex::read(&pack, &hash).unwrap();
        let names: Vec<&str> = index.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(names, ["main.py", "pkg/data", "train.py"]);
        assert_eq!(index.files[0].link.as_deref(), Some("train.py"));
        // In any order.
        for (at, expected) in [(2, &b"print(1)\n"[..]), (1, &[0, 255, 10, 10])] {
            let mut bytes = Vec::new();
            index.copy(&index.files[at], &mut bytes).unwrap();
            assert_eq!(bytes, expected);
            assert_eq!(index.files[at].hash, rankdeck_types::words::hex(&Sha256::digest(&bytes)));
        }
        // PACK-1.
        assert!(PackIndex::read(&pack, &"0".repeat(64)).is_err() && !pack.exists());
    }

    #[test]
    fn pack_2_unpacking_never_writes_outside() {
        let folder = tempfile::tempdir().unwrap();
        for text in [
            "{\"path\":\"../x\",\"size\":0}\n",
            "{\"path\":\"/tmp/x\",\"size\":0}\n",
            "{\"path\":\"\",\"size\":0}\n",
            "{\"path\":\"l\",\"link\":\"..\"}\n{\"path\":\"l/x\",\"size\":0}\n",
            "{\"path\":\"a\",\"size\":5}\nx",
            "nonsense\n",
        ] {
            let pack = folder.path().join("p");
            fs::write(&pack, text).unwrap();
            let hash = digest(&pack).unwrap();
            assert!(unpack(&pack, &hash, &folder.path().join("out")).is_err(), "{text}");
            assert!(!folder.path().join("out").exists() && !folder.path().join("x").exists());
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left: {text}");
        }
    }

    #[test]
    fn pattern_matches_names_or_whole_paths() {
        let matches = |path: &str, pattern: &str| matches(path, &[pattern.to_owned()]);
        assert!(matches("a/b.pyc", "*.pyc") && matches(".git/config", ".git") && matches("x/.git", ".git/"));
        assert!(matches("data/big/x", "data/*") && matches("data/x", "/data") && !matches("a/data", "/data"));
        assert!(!matches("a/b.py", "*.pyc") && !matches("abc", "a?") && matches("ab", "a?"));
        assert!(matches("a/x/b", "a/*/b") && !matches("a", "b"));
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("data/deep")).unwrap();
        for name in ["a.py", "a.pyc", "data/deep/x"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(listed(folder.path(), &["*.pyc", "data"]), ["a.py"]);
    }
}
