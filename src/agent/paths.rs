//! Where things lie on a host: run directories, and sockets in a private folder.
//!
//! Owner: none, pure names and checks. Layout: the run directory is `WORKDIR/runs/RUN`, and each node of the
//! run that shares it has its own `node<k>` inside. Sockets are not in the run directory (paths there are too
//! long, and network file systems carry no sockets).

use rankdeck_proto::folders;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Generation, NodeRank, Rank};
use sha2::{Digest, Sha256};
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Longest path of a unix socket, with room for the final NUL.
const SOCKET_PATH_BYTES: usize = 107;
/// Longest name of a socket or a lock in its folder, with the slash before it.
const SOCKET_NAME_BYTES: usize = 28;

/// The files of one node of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPaths {
    /// `WORKDIR/runs/RUN`, absolute.
    pub run_dir: PathBuf,
    /// Index of this host.
    pub node: NodeRank,
}

impl RunPaths {
    /// The folder of this node.
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

    /// What the agent itself has to say.
    pub fn agent_log(&self) -> PathBuf {
        self.node_dir().join("agent.log")
    }

    /// The folder of one generation.
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

/// The same with relative paths that begin at `folder`.
pub fn expand_in(text: &str, folder: &Path) -> PathBuf {
    match text.starts_with("~/") || text == "~" {
        true => expand(text),
        false => folder.join(text),
    }
}

/// `text` as an absolute path: `~/` is the home folder, anything relative starts at the current folder.
pub fn expand(text: &str) -> PathBuf {
    let path = match text.strip_prefix("~/").or((text == "~").then_some("")) {
        Some(rest) => folders::home().join(rest),
        None => PathBuf::from(text),
    };
    std::path::absolute(&path).unwrap_or(path)
}

/// The folder of sockets and locks of a node: the first of these that is this user's alone, or can be made
/// so. Anybody may have made a folder of a name that can be guessed in `/tmp`; nobody else can in the last
/// two.
///
/// - `$XDG_RUNTIME_DIR/rankdeck`, then `/run/user/UID/rankdeck`. A login manager removes `/run/user/UID` with
///   the user's last login, and an agent must outlive that: it is used only where lingering is enabled.
/// - `/tmp/rankdeck-UID`.
/// - `run` in the cache, then in the node's own folder. These may be network disks, and long paths.
///
/// Errors: none of them can be used, and why.
pub fn private_folder(paths: &RunPaths) -> Result<PathBuf, HintedError> {
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
        format!("no private folder for sockets: {}", reasons.join("; ")),
        "remove one of them, run `chmod 700` on it if it is yours, or set RANKDECK_CACHE to a short path",
    ))
}

/// Makes a folder for sockets, or sees to it that the present one is this user's alone.
pub fn make_private(folder: &Path) -> Result<(), String> {
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

/// Why others than this user and root could change what lies at `path`, or put something else there: an
/// owner, or a mode, of it or of a folder above it. Folders like `/tmp` are right above it, and so are those
/// that the user's private group can write. In a user namespace the folders of root look like nobody's.
pub fn distrust(path: &Path) -> Option<String> {
    let whole = crate::proc::text("/proc/self/uid_map").is_none_or(|map| map.contains("4294967295"));
    let nobody = crate::proc::text("/proc/sys/fs/overflowuid").and_then(|uid| uid.trim().parse().ok());
    let nobody = nobody.filter(|_| !whole);
    let path = match path.canonicalize() {
        Ok(path) => path,
        Err(error) => return Some(format!("{}: {error}", path.display())),
    };
    path.ancestors().enumerate().find_map(|(above, place)| {
        let data = match std::fs::metadata(place) {
            Ok(data) => data,
            Err(error) => return Some(format!("{}: {error}", place.display())),
        };
        let (mode, uid) = (data.permissions().mode(), data.uid());
        let sticky = above > 0 && mode & 0o1000 != 0;
        let private_group = above > 0 && data.gid() == uid && uid == own_uid();
        if ![own_uid(), 0].contains(&uid) && (above == 0 || nobody != Some(uid)) {
            Some(format!("{} belongs to user {uid}", place.display()))
        } else if !sticky && (mode & 0o002 != 0 || (mode & 0o020 != 0 && !private_group)) {
            Some(format!("others can write {}", place.display()))
        } else {
            None
        }
    })
}

/// A folder that only this user can look into and change.
pub fn is_private(folder: &Path) -> bool {
    owned_privately(folder).is_ok()
}

/// A folder of this user, whoever may look into it.
pub fn is_own(folder: &Path) -> bool {
    std::fs::symlink_metadata(folder).is_ok_and(|data| data.is_dir() && data.uid() == own_uid())
}

fn owned_privately(path: &Path) -> Result<(), String> {
    let data = std::fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    if !data.is_dir() {
        return Err("is not a folder".into());
    }
    if data.uid() != own_uid() {
        return Err(format!("belongs to user {}", data.uid()));
    }
    if data.permissions().mode() & 0o077 != 0 {
        return Err("is open to other users".into());
    }
    Ok(())
}

fn lingers() -> bool {
    std::env::var("USER").is_ok_and(|user| Path::new("/var/lib/systemd/linger").join(user).exists())
}

/// The user this process acts as.
pub fn own_uid() -> u32 {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_one_run_have_sockets_of_their_own() {
        let paths = |node| RunPaths { run_dir: "/w/runs/r".into(), node: NodeRank(node) };
        assert_eq!(paths(0).socket_stem(), paths(0).socket_stem());
        assert_ne!(paths(0).socket_stem(), paths(1).socket_stem());
        assert_eq!(paths(0).socket_stem().len(), 16);
    }

    #[test]
    fn a_folder_that_somebody_else_has_made_is_passed_over() {
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
        let words = ["too long", "is not a folder", "is open to other users", "cannot be created"];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        squatted.push(at("own"));
        assert_eq!(choose(&squatted).unwrap(), at("own"));
        assert_eq!(std::fs::metadata(at("own")).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn the_run_directory_is_the_last_place_for_sockets() {
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
    fn what_others_can_change_is_not_trusted() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("above/own");
        let mode = |path: &Path, mode: u32| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        };
        std::fs::create_dir_all(&folder).unwrap();
        mode(&folder, 0o755);
        mode(folder.parent().unwrap(), 0o755);
        assert_eq!(distrust(&folder), None);
        for open in [0o757, 0o775, 0o1777] {
            mode(&folder, open);
            assert!(distrust(&folder).unwrap().starts_with("others can write"));
        }
        mode(&folder, 0o755);
        mode(folder.parent().unwrap(), 0o777);
        assert!(distrust(&folder).unwrap().ends_with("above"));
        mode(folder.parent().unwrap(), 0o1777);
        assert_eq!(distrust(&folder), None);
        assert!(distrust(&folder.join("none")).is_some());
        if own_uid() == 0 {
            for place in [&folder, &folder.parent().unwrap().to_owned()] {
                std::os::unix::fs::chown(place, Some(61_003), None).unwrap();
                assert!(distrust(&folder).unwrap().ends_with("belongs to user 61003"));
                std::os::unix::fs::chown(place, Some(0), None).unwrap();
            }
        }
    }

    #[test]
    fn a_folder_open_to_others_is_no_place_for_sockets() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        assert!(owned_privately(folder.path()).is_err());
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
        assert!(owned_privately(folder.path()).is_ok());
    }
}
