//! Real containers.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// podman with folders of its own, and a root folder of links into the host's /usr. `None`, and a skip, where
/// no container starts.
pub struct Podman {
    tool: PathBuf,
    root: PathBuf,
}

impl Podman {
    pub fn new(folder: &Path) -> Option<Podman> {
        let root = folder.join("root");
        for name in ["usr", "etc", "tmp", "proc", "sys", "dev", "run", "root"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            std::os::unix::fs::symlink(format!("usr/{name}"), root.join(name)).unwrap();
        }
        let tool = folder.join("podman");
        let storage = folder.join("containers");
        let own = ["root", "runroot"].map(|name| format!("--{name} {}", storage.join(name).display()));
        let options =
            format!("--runtime runc --cgroup-manager cgroupfs --storage-driver vfs {}", own.join(" "));
        std::fs::write(&tool, format!("#!/bin/sh\nexec /usr/bin/podman {options} \"$@\"\n")).unwrap();
        std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
        let podman = Podman { tool, root };
        let trial = format!("{} true", podman.line("run --rm --network=host --ipc=host --pid=host"));
        let tried = Command::new("sh").args(["-c", &trial]).output();
        match tried {
            Ok(done) if done.status.success() => Some(podman),
            Ok(done) => {
                let output_text = String::from_utf8_lossy(&done.stderr);
                rankdeck_testkit::skipped(&format!("podman and runc start no container: {output_text}"));
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// The tool, `words`, options and root folder. A machine may have lower limits than podman requests.
    pub fn line(&self, words: &str) -> String {
        let (tool, root) = (self.tool.display(), self.root.display());
        format!(
            "{tool} {words} --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 --volume /usr:/usr:ro \
             --rootfs {root}"
        )
    }

    /// Names of its containers.
    pub fn names(&self) -> String {
        let listed =
            Command::new(&self.tool).args(["ps", "--all", "--format", "{{.Names}}"]).output().unwrap();
        String::from_utf8_lossy(&listed.stdout).into_owned()
    }
}
