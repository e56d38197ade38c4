//! Where things lie on a host: run directories, and sockets in a private folder.
//!
//! Owner: none, pure names and checks. Layout: the run directory is `WORKDIR/runs/RUN`, and each node of the
//! run that shares it has its own `node<k>` inside. Sockets are not in the run directory (paths there are too
//! long, and network file systems carry no sockets).

use rankdeck_proto::folders;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Generation, NodeRank, Rank, RunId};
use sha2::{Digest, Sha256};
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Longest path of a unix socket, with room for the final NUL.
const SOCKET_PATH_BYTES: usize = 107;

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

/// Refuses a run whose name is not a plain file name.
pub fn check_run(run: &str) -> Result<RunId, HintedError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if run.is_empty() || run.len() > 128 || run.starts_with('.') || !run.chars().all(plain) {
        return Err(HintedError::new(
            format!("`{run}` cannot be the name of a run"),
            "use letters, digits, `-`, `_` and `.`, not beginning with `.`",
        ));
    }
    Ok(RunId(run.to_owned()))
}

/// `text` as an absolute path: `~/` is the home folder, anything relative starts at the current folder.
pub fn expand(text: &str) -> PathBuf {
    let path = match text.strip_prefix("~/").or((text == "~").then_some("")) {
        Some(rest) => folders::home().join(rest),
        None => PathBuf::from(text),
    };
    std::path::absolute(&path).unwrap_or(path)
}

/// The folder of sockets and locks: `$XDG_RUNTIME_DIR/rankdeck`, else `/tmp/rankdeck-UID`.
///
/// A login manager removes `/run/user/UID` with the user's last login, and an agent must outlive that: it is
/// used only where lingering is enabled.
pub fn private_folder() -> Result<PathBuf, HintedError> {
    let uid = own_uid();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| {
        path.is_absolute()
            && owned_privately(path).is_ok()
            && path.as_os_str().len() + 40 < SOCKET_PATH_BYTES
            && (!path.starts_with("/run/user") || lingers())
    });
    let folder = match runtime {
        Some(runtime) => runtime.join("rankdeck"),
        None => PathBuf::from(format!("/tmp/rankdeck-{uid}")),
    };
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(HintedError::new(
                format!("cannot create {}: {error}", folder.display()),
                "the agent needs a private folder for its sockets",
            ));
        }
        _ => {}
    }
    owned_privately(&folder).map_err(|why| {
        HintedError::new(
            format!("{} {why}", folder.display()),
            format!("remove it, or run `chmod 700 {}` if it is yours", folder.display()),
        )
    })?;
    Ok(folder)
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
    fn runs_are_plain_names() {
        assert!(check_run("ppo-cartpole-20260101-120000").is_ok());
        for bad in ["", "..", ".hidden", "a/b", "a b", "a\0b", &"x".repeat(129)] {
            assert!(check_run(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn nodes_of_one_run_have_sockets_of_their_own() {
        let paths = |node| RunPaths { run_dir: "/w/runs/r".into(), node: NodeRank(node) };
        assert_eq!(paths(0).socket_stem(), paths(0).socket_stem());
        assert_ne!(paths(0).socket_stem(), paths(1).socket_stem());
        assert_eq!(paths(0).socket_stem().len(), 16);
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
