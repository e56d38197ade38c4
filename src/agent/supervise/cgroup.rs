//! A control group of the ranks' own, where cgroup v2 lets this user make one: `cgroup.kill` ends everything
//! inside at once, also what forks while it is being killed, has left its session, cleared its environment or
//! lost its parent (Linux 5.14, Documentation/admin-guide/cgroup-v2.rst).
//!
//! Owner: the agent, which makes it below its own group and removes it; its guard knows the path. Where there
//! is none (no cgroup v2, not writable, an older kernel), the other layers stand alone.

use crate::paths::RunPaths;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A group that was made here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes a group for the ranks of one agent; `None` where that cannot be done.
    pub fn make(paths: &RunPaths, agent: &str) -> Option<Cgroup> {
        let parent = own()?;
        let name = format!("rankdeck-{}-{agent}", paths.socket_stem());
        let path = parent.join(name);
        match std::fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return None,
            _ => {}
        }
        let made = Cgroup { path };
        // Without this file the group would only be in the way.
        let usable = made.path.join("cgroup.kill").exists() && made.door().is_ok();
        if !usable {
            made.remove();
        }
        usable.then_some(made)
    }

    /// The group at a path that an agent has told its guard.
    pub fn at(path: PathBuf) -> Cgroup {
        Cgroup { path }
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file that a process enters by, writing `0`.
    pub fn door(&self) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.path.join("cgroup.procs"))
    }

    /// SIGKILL to everything inside.
    pub fn kill(&self) {
        let file = OpenOptions::new().write(true).open(self.path.join("cgroup.kill"));
        // A group that is gone is empty.
        let _ = file.and_then(|mut file| file.write_all(b"1"));
    }

    /// Removes it once it is empty, the groups that ranks made inside first.
    pub fn remove(&self) {
        remove(&self.path, 8);
    }
}

fn remove(folder: &Path, depth: usize) {
    if depth > 0 {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            remove(&entry.path(), depth - 1);
        }
    }
    let _ = std::fs::remove_dir(folder);
}

/// The folder of this process's own group in the cgroup v2 tree.
fn own() -> Option<PathBuf> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    find(&groups, &mounts).filter(|path| path.is_dir())
}

/// From the texts of `/proc/self/cgroup` and `/proc/self/mountinfo` (`man 5 proc`).
fn find(groups: &str, mounts: &str) -> Option<PathBuf> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        if right.split(' ').next()? != "cgroup2" {
            return None;
        }
        let mut fields = left.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        // What is mounted may be a part of the tree, as in containers.
        let below = if root == "/" { group } else { group.strip_prefix(root)? };
        Some(Path::new(point).join(below.trim_start_matches('/')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_in_pure_hybrid_and_mounted_in_part() {
        let pure = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
        let hybrid = "25 24 0:22 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      26 24 0:23 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let part = "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        let groups = "12:memory:/x\n0::/user.slice/a.scope\n";
        let found = |groups: &str, mounts: &str| find(groups, mounts).map(|path| path.display().to_string());
        assert_eq!(found(groups, pure).as_deref(), Some("/sys/fs/cgroup/user.slice/a.scope"));
        assert_eq!(found(groups, hybrid).as_deref(), Some("/sys/fs/cgroup/unified/user.slice/a.scope"));
        assert_eq!(found("0::/docker/abc/job", part).as_deref(), Some("/sys/fs/cgroup/job"));
        assert_eq!(found("0::/elsewhere", part), None);
        assert_eq!(found("12:memory:/x\n", pure), None);
        assert_eq!(found(groups, "25 24 0:22 / /sys/fs/cgroup rw - cgroup cgroup rw\n"), None);
    }
}
