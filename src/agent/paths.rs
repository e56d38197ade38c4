//! Where things lie on a host: run directories, and sockets in a private directory.
//!
//! Owner: none, pure names and checks. Layout: the run directory is `WORKDIR/runs/RUN`, and each node of the
//! run that shares it has its own `node<k>` inside. Sockets are not in the run directory (paths there are too
//! long, and network file systems carry no sockets).
//!
//! Files of a node in the socket directory: its agent's two sockets, the guard's note, and the lock of
//! `agent start`. All of it is removed with the agent, or after a dead one by its successor.
//!
//! Invariants:
//! - A lock is removed only by who holds it, and is held only while its name leads to it.
//! - SOCKET-2: nothing is removed outside a directory that is this user's alone, and no file that has another
//!   name than an agent gives.

use rankdeck_proto::folders;
use rankdeck_proto::trust::{self, own_uid, owned_privately};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Generation, NodeRank, Rank};
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest path of a unix socket, with room for the final NUL.
const SOCKET_PATH_BYTES: usize = 107;
/// Longest name of a socket or a lock in its directory, with the slash before it.
const SOCKET_NAME_BYTES: usize = 28;

/// The files of one node of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunPaths {
    /// `WORKDIR/runs/RUN`, absolute.
    pub run_dir: PathBuf,
    /// Index of this host.
    pub node: NodeRank,
}

impl RunPaths {
    /// The directory of this node.
    pub fn node_dir(&self) -> PathBuf {
        self.run_dir.join(format!("node{}", self.node))
    }

    /// Who serves the run and which processes belong to it.
    pub fn manifest(&self) -> PathBuf {
        self.node_dir().join("manifest.json")
    }

    /// Who launched the run.
    pub fn launcher(&self) -> PathBuf {
        self.node_dir().join("launcher")
    }

    /// Every record, one JSON object per line.
    pub fn spool(&self) -> PathBuf {
        self.node_dir().join("records.jsonl")
    }

    /// The directory that ranks of a script work in.
    pub fn work_record(&self) -> PathBuf {
        self.node_dir().join("work.json")
    }

    /// The files of that directory before the present generation.
    pub fn work_before(&self) -> PathBuf {
        self.node_dir().join("work-before.json")
    }

    /// What ranks have left there, once they have ended.
    pub fn results(&self) -> PathBuf {
        self.node_dir().join("results.json")
    }

    /// What ranks were seen to write there, and when they last lived.
    pub fn writers(&self) -> PathBuf {
        self.node_dir().join("writers.json")
    }

    /// The agent's own log.
    pub fn agent_log(&self) -> PathBuf {
        self.node_dir().join("agent.log")
    }

    /// The directory of one generation.
    pub fn generation_dir(&self, generation: Generation) -> PathBuf {
        self.node_dir().join(format!("gen{generation}"))
    }

    /// Standard output and error of a rank.
    pub fn rank_log(&self, generation: Generation, rank: Rank) -> PathBuf {
        self.generation_dir(generation).join(format!("rank{rank}.log"))
    }

    /// Status page of a rank.
    pub fn page(&self, generation: Generation, rank: Rank) -> PathBuf {
        self.generation_dir(generation).join(format!("rank{rank}.page"))
    }

    /// The resolved experiment of a generation.
    pub fn experiment(&self, generation: Generation) -> PathBuf {
        self.generation_dir(generation).join("experiment.toml")
    }

    /// The name under which this node's sockets are found: the same for everybody who names the same run
    /// directory.
    pub fn socket_stem(&self) -> String {
        let digest = Sha256::digest(self.node_dir().as_os_str().as_encoded_bytes());
        rankdeck_types::words::hex(&digest[..8])
    }
}

/// Where the files of all runs of `workdir` are. They are not results.
pub(crate) fn runs(workdir: &Path) -> PathBuf {
    workdir.join("runs")
}

/// Where ranks with uploaded code work, below `workdir`.
pub(crate) fn work(workdir: &Path) -> PathBuf {
    workdir.join("work")
}

/// The same with relative paths that start at `folder`.
pub(crate) fn expand_in(text: &str, folder: &Path) -> PathBuf {
    match text.starts_with("~/") || text == "~" {
        true => expand(text),
        false => folder.join(text),
    }
}

/// `text` as an absolute path: `~/` is the home directory, anything relative starts at the current directory.
pub(crate) fn expand(text: &str) -> PathBuf {
    let path = match text.strip_prefix("~/").or((text == "~").then_some("")) {
        Some(rest) => folders::home().join(rest),
        None => PathBuf::from(text),
    };
    std::path::absolute(&path).unwrap_or(path)
}

/// A program as a command names it: `~/` is the home directory, everything else stays.
pub(crate) fn program(word: &str) -> OsString {
    match word.starts_with("~/") {
        true => expand(word).into(),
        false => word.into(),
    }
}

/// The directory of sockets and locks of a node: the first of these that is this user's alone, or can be made
/// so. Any user may have made a directory of a guessable name in `/tmp`; only this user can in the last
/// two.
///
/// - `$XDG_RUNTIME_DIR/rankdeck`, then `/run/user/UID/rankdeck`. A login manager removes `/run/user/UID` with
///   the user's last login, and an agent must outlive that: it is used only where lingering is enabled.
/// - `/tmp/rankdeck-UID`.
/// - `run` in the cache, then in the node's own directory. These may be network disks, and long paths.
///
/// Errors: none of them can be used, and why.
pub(crate) fn private_folder(paths: &RunPaths) -> Result<PathBuf, HintedError> {
    let xdg = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    choose(&candidates(xdg, paths))
}

fn candidates(xdg: Option<PathBuf>, paths: &RunPaths) -> Vec<PathBuf> {
    let uid = own_uid();
    let lasts = |path: &PathBuf| !path.starts_with("/run/user") || lingers();
    let login = [xdg, Some(PathBuf::from(format!("/run/user/{uid}")))].into_iter().flatten();
    let login = login.filter(|path| owned_privately(path).is_ok() && lasts(path));
    let others = [
        PathBuf::from(format!("/tmp/rankdeck-{uid}")),
        folders::cache().join("run"),
        paths.node_dir().join("run"),
    ];
    login.map(|path| path.join("rankdeck")).chain(others).collect()
}

fn choose(candidates: &[PathBuf]) -> Result<PathBuf, HintedError> {
    let mut reasons = Vec::new();
    for folder in candidates {
        match make_private(folder) {
            Ok(()) => return Ok(folder.clone()),
            Err(why) => reasons.push(format!("{} {why}", folder.display())),
        }
    }
    Err(HintedError::new(
        format!("no private directory for sockets: {}", reasons.join("; ")),
        "remove one of them, run `chmod 700` on it if it is yours, or set RANKDECK_CACHE to a short path",
    ))
}

/// Makes a directory for sockets, or sees to it that the present one is this user's alone.
pub(crate) fn make_private(folder: &Path) -> Result<(), String> {
    if folder.as_os_str().len() + SOCKET_NAME_BYTES > SOCKET_PATH_BYTES {
        return Err("is too long for the path of a socket".into());
    }
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(format!("cannot be created: {error}"))
        }
        _ => owned_privately(folder),
    }
}

fn lingers() -> bool {
    std::env::var("USER").is_ok_and(|user| Path::new("/var/lib/systemd/linger").join(user).exists())
}

/// Ends of the names, behind the one that all of a node have in common.
pub(super) const CONSOLE_SOCKET: &str = "sock";
pub(super) const EVENT_SOCKET: &str = "ev";
pub(super) const GUARD_NOTE: &str = "below";
const START_LOCK: &str = "lock";
/// Length of the name that all of a node have in common.
const STEM: usize = 16;

/// Between two tries.
const AGAIN: Duration = Duration::from_millis(20);

/// Puts starts of the same node in order.
#[derive(Debug)]
pub(super) struct StartLock {
    file: File,
    path: PathBuf,
}

impl StartLock {
    /// Waits for it; `of` is any of the node's files there.
    ///
    /// Errors: it cannot be made, or another start holds it for longer than `patience`.
    pub fn take(of: &Path, patience: Duration) -> Result<StartLock, HintedError> {
        let path = of.with_extension(START_LOCK);
        let failed = |error: String| {
            HintedError::new(format!("cannot lock {}: {error}", path.display()), "try again in a minute")
        };
        let begun = Instant::now();
        loop {
            match StartLock::attempt(&path) {
                Ok(file) => return Ok(StartLock { file, path }),
                Err(TryLockError::Error(error)) => return Err(failed(error.to_string())),
                Err(TryLockError::WouldBlock) if begun.elapsed() > patience => {
                    return Err(failed("another start of the same run is in progress".into()));
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(AGAIN),
            }
        }
    }

    fn attempt(path: &Path) -> Result<File, TryLockError> {
        let file = trust::open(path, OpenOptions::new().write(true).create(true).truncate(false))
            .map_err(TryLockError::Error)?;
        file.try_lock()?;
        // The previous holder may have removed it.
        let name = |data: std::fs::Metadata| (data.dev(), data.ino());
        let own = file.metadata().map(name).map_err(TryLockError::Error)?;
        match std::fs::metadata(path).map(name) {
            Ok(found) if found == own => Ok(file),
            _ => Err(TryLockError::WouldBlock),
        }
    }

    fn remove(self) {
        let _ = std::fs::remove_file(&self.path);
        drop(self.file);
    }
}

/// Removes sockets and lock of a node whose agent does not serve (any more); `of` is any of its files. Where
/// another agent serves or is being started, they are that one's. The note is its writer's to remove.
pub(super) fn remove_sockets(of: &Path) {
    if !is_node_file(of) {
        return;
    }
    let path = of.with_extension(START_LOCK);
    let Ok(file) = StartLock::attempt(&path) else { return };
    let lock = StartLock { file, path };
    let at = |end: &str| of.with_extension(end);
    if trust::connect(&at(CONSOLE_SOCKET)).is_err() {
        for end in [CONSOLE_SOCKET, EVENT_SOCKET] {
            let _ = std::fs::remove_file(at(end));
        }
        lock.remove();
    }
}

/// Removes the socket of an agent that ends, and what lies with it.
pub(super) fn close_socket(socket: &Path) {
    if is_node_file(socket) {
        let _ = std::fs::remove_file(socket);
        remove_sockets(socket);
    }
}

/// Removes the note of a guard.
pub(super) fn remove_note(note: &Path) {
    if is_node_file(note) && note.extension().is_some_and(|end| end == GUARD_NOTE) {
        let _ = std::fs::remove_file(note);
    }
}

/// SOCKET-2. A file of a node in a directory of sockets: its name is as [`RunPaths::socket_stem`] makes it.
///
/// [`RunPaths::socket_stem`]: RunPaths::socket_stem
pub(super) fn is_node_file(file: &Path) -> bool {
    let named = file.file_stem().and_then(|stem| stem.to_str()).is_some_and(|stem| {
        stem.len() == STEM && stem.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    });
    let ending = file.extension().and_then(|end| end.to_str());
    named
        && ending.is_some_and(|end| [CONSOLE_SOCKET, EVENT_SOCKET, GUARD_NOTE, START_LOCK].contains(&end))
        && file.parent().is_some_and(trust::is_private)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    #[test]
    fn nodes_of_one_run_have_sockets_of_their_own() {
        let paths = |node| RunPaths { run_dir: "/w/runs/r".into(), node: NodeRank(node) };
        assert_eq!(paths(0).socket_stem(), paths(0).socket_stem());
        assert_ne!(paths(0).socket_stem(), paths(1).socket_stem());
        assert_eq!(paths(0).socket_stem().len(), 16);
    }

    #[test]
    fn directory_of_another_user_is_skipped() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        let long = at(&"x".repeat(SOCKET_PATH_BYTES));
        std::fs::write(at("file"), "").unwrap();
        std::fs::create_dir(at("target")).unwrap();
        std::fs::set_permissions(at("target"), PermissionsExt::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink(at("target"), at("link")).unwrap();
        std::fs::create_dir(at("open")).unwrap();
        std::fs::set_permissions(at("open"), PermissionsExt::from_mode(0o777)).unwrap();
        let mut squatted = vec![long, at("file"), at("link"), at("open"), at("none/below")];
        if own_uid() == 0 {
            std::fs::create_dir(at("foreign")).unwrap();
            std::fs::set_permissions(at("foreign"), PermissionsExt::from_mode(0o700)).unwrap();
            std::os::unix::fs::chown(at("foreign"), Some(65_534), None).unwrap();
            squatted.push(at("foreign"));
        }
        let error = choose(&squatted).unwrap_err().error;
        let words = ["too long", "is not a directory", "is open to other users", "cannot be created"];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        squatted.push(at("own"));
        assert_eq!(choose(&squatted).unwrap(), at("own"));
        assert_eq!(std::fs::metadata(at("own")).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn run_directory_is_the_last_place_for_sockets() {
        let paths = RunPaths { run_dir: "/w/runs/r".into(), node: NodeRank(1) };
        let own = tempfile::tempdir().unwrap();
        std::fs::set_permissions(own.path(), PermissionsExt::from_mode(0o700)).unwrap();
        let all = candidates(Some(own.path().to_owned()), &paths);
        assert_eq!(
            (all.first().unwrap(), all.last().unwrap()),
            (&own.path().join("rankdeck"), &"/w/runs/r/node1/run".into())
        );
        std::fs::set_permissions(own.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let all = candidates(Some(own.path().to_owned()), &paths);
        assert!(!all.iter().any(|path| path.starts_with(own.path())), "{all:?}");
    }

    #[test]
    fn folder_open_to_others_is_no_place_for_sockets() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        assert!(owned_privately(folder.path()).is_err());
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
        assert!(owned_privately(folder.path()).is_ok());
    }

    fn names(folder: &Path) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    }

    #[test]
    fn files_of_dead_agents_only_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        mode(folder.path(), 0o700);
        let at = |end: &str| folder.path().join("0123456789abcdef").with_extension(end);
        let listener = UnixListener::bind(at(CONSOLE_SOCKET)).unwrap();
        std::fs::write(at(EVENT_SOCKET), "").unwrap();
        drop(StartLock::take(&at(EVENT_SOCKET), Duration::ZERO).unwrap());
        remove_sockets(&at(EVENT_SOCKET));
        assert_eq!(names(folder.path()), 3, "it serves");
        drop(listener);
        let starting = StartLock::take(&at(EVENT_SOCKET), Duration::ZERO).unwrap();
        remove_sockets(&at(EVENT_SOCKET));
        assert_eq!(names(folder.path()), 3, "another one is being started");
        assert!(StartLock::take(&at(EVENT_SOCKET), Duration::ZERO).is_err(), "and is waited for");
        drop(starting);
        remove_sockets(&at(EVENT_SOCKET));
        assert_eq!(names(folder.path()), 0);
    }

    #[test]
    fn socket_2_nothing_else_is_removed() {
        let base = tempfile::tempdir().unwrap();
        let stem = "0123456789abcdef";
        for (name, open) in [("Cargo", 0o700), ("x.y", 0o700), (stem, 0o755), (stem, 0o777)] {
            let folder = base.path().join(format!("{name}-{open:o}"));
            std::fs::create_dir(&folder).unwrap();
            let ends = [CONSOLE_SOCKET, EVENT_SOCKET, GUARD_NOTE, START_LOCK];
            ends.iter().for_each(|end| std::fs::write(folder.join(format!("{name}.{end}")), "").unwrap());
            mode(&folder, open);
            let of = folder.join(format!("{name}.{CONSOLE_SOCKET}"));
            remove_sockets(&of);
            close_socket(&of);
            remove_note(&of.with_extension(GUARD_NOTE));
            assert_eq!(names(&folder), ends.len(), "{name} in a directory of mode {open:o}");
        }
        let other = base.path().join(format!("{stem}.toml"));
        mode(base.path(), 0o700);
        std::fs::write(&other, "").unwrap();
        remove_note(&other);
        remove_sockets(&other);
        assert!(other.exists() && !other.with_extension(START_LOCK).exists());
    }

    #[test]
    fn lock_removed_during_a_wait_is_recreated() {
        let folder = tempfile::tempdir().unwrap();
        let of = folder.path().join("0123456789abcdef.sock");
        let held = StartLock::take(&of, Duration::ZERO).unwrap();
        let waiting = std::thread::spawn({
            let of = of.clone();
            move || StartLock::take(&of, Duration::from_secs(60)).unwrap()
        });
        held.remove();
        let second = waiting.join().unwrap();
        assert!(StartLock::take(&of, Duration::ZERO).is_err(), "there is one lock of that name");
        drop(second);
    }
}
