//! A control group of the ranks' own, where cgroup v2 lets this user make one: `cgroup.kill` ends everything
//! inside at once, also what forks while it is being killed, has left its session, cleared its environment or
//! lost its parent (Linux 5.14, Documentation/admin-guide/cgroup-v2.rst).
//!
//! Owner: the agent, which makes it below its own group and removes it; its guard has the path. Its name
//! contains its owner, so that a scan for leftovers of a dead agent finds it.
//! Where there is none (no cgroup v2, not writable, an older kernel), the other layers stand alone.

use crate::open_files::patiently;
use crate::paths::RunPaths;
use crate::proc;
use rankdeck_proto::trust;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Prefix of the name of every group of rankdeck; the run directory's stem and the agent's name follow.
const PREFIX: &str = "rankdeck-";
/// Most groups of a search, and its depth.
const SEARCHED: usize = 50_000;
const DEPTH: usize = 16;
/// How long a group may stay busy with processes that are just ending.
const EMPTYING: Duration = Duration::from_secs(1);

/// A group that was made here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes a group for the ranks of one agent; `None` where that cannot be done.
    pub fn make(paths: &RunPaths, agent: &str) -> Option<Cgroup> {
        let parent = own()?;
        remove_abandoned(&parent);
        let path = parent.join(format!("{PREFIX}{}-{agent}", paths.socket_stem()));
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

    /// The group at a path that the guard got from its agent.
    pub fn at(path: PathBuf) -> Cgroup {
        Cgroup { path }
    }

    /// Its directory.
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

    /// Pids of everything inside, the groups that ranks made inside included.
    pub fn pids(&self) -> Vec<u32> {
        let mut found = Vec::new();
        walk(&self.path, &mut |folder| {
            let listed = patiently(|| proc::read(folder.join("cgroup.procs"))).unwrap_or_default();
            // Processes that this one cannot name are listed as 0.
            found.extend(listed.lines().filter_map(|pid| pid.parse::<u32>().ok()).filter(|pid| *pid > 0));
            true
        });
        found
    }

    /// It belongs to this node of this run.
    pub fn is_of(&self, paths: &RunPaths) -> bool {
        let name = format!("{PREFIX}{}-", paths.socket_stem());
        self.path.file_name().is_some_and(|own| own.to_string_lossy().starts_with(&name))
    }

    /// What its name has in common with those of other agents of its node.
    pub fn stem(&self) -> Option<&str> {
        let name = self.path.file_name()?.to_str()?.strip_prefix(PREFIX)?;
        name.split('-').next()
    }

    /// The agent that made it, by its name.
    pub fn agent(&self) -> Option<proc::ProcessKey> {
        named_agent(&self.path)
    }

    /// Removes it once it is empty, the groups that ranks made inside first; waits a moment for processes
    /// that are just ending.
    pub fn remove(&self) {
        let begun = Instant::now();
        while !remove(&self.path, DEPTH) && self.pids().is_empty() && begun.elapsed() < EMPTYING {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// `true` when it is gone.
fn remove(folder: &Path, depth: usize) -> bool {
    if depth > 0 {
        folders(folder).for_each(|inside| _ = remove(&inside, depth - 1));
    }
    std::fs::remove_dir(folder).is_ok() || !folder.exists()
}

fn folders(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = patiently(|| std::fs::read_dir(folder)).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

/// Calls `each` for a group and, if it returns `true`, for those inside.
fn walk(top: &Path, each: &mut impl FnMut(&Path) -> bool) {
    let (mut todo, mut seen) = (vec![(top.to_owned(), 0)], 0);
    while let Some((folder, depth)) = todo.pop() {
        seen += 1;
        if each(&folder) && depth < DEPTH && seen < SEARCHED {
            todo.extend(folders(&folder).map(|inside| (inside, depth + 1)));
        }
    }
}

/// Every group that agents of this user have made on this machine, wherever they ran. The names alone would
/// let another user have processes ended that are not ours.
pub(crate) fn all() -> Vec<Cgroup> {
    let mounts = proc::text("/proc/self/mountinfo").unwrap_or_default();
    let mut found = Vec::new();
    for (_, point) in mounts.lines().filter_map(cgroup2) {
        walk(Path::new(point), &mut |folder| {
            let named = folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
            if named && std::fs::metadata(folder).is_ok_and(|data| data.uid() == trust::own_uid()) {
                found.push(Cgroup { path: folder.to_owned() });
            }
            !named
        });
    }
    found
}

/// Removes empty sibling groups whose agents were killed together with their guards, also where
/// their run directories are unknown.
fn remove_abandoned(parent: &Path) {
    let is_dead = |folder: &PathBuf| {
        let agent = named_agent(folder)?;
        Some(proc::stat(agent.pid).is_none_or(|stat| stat.start != agent.start))
    };
    // The kernel refuses to remove one that is not empty.
    folders(parent)
        .filter(|folder| is_dead(folder) == Some(true))
        .for_each(|folder| _ = remove(&folder, DEPTH));
}

fn named_agent(folder: &Path) -> Option<proc::ProcessKey> {
    let mut parts = folder.file_name()?.to_str()?.strip_prefix(PREFIX)?.rsplit('-');
    let (start, pid) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(proc::ProcessKey { pid, start })
}

/// The directory of this process's own group in the cgroup v2 tree.
fn own() -> Option<PathBuf> {
    let groups = proc::text("/proc/self/cgroup")?;
    let mounts = proc::text("/proc/self/mountinfo")?;
    find(&groups, &mounts).filter(|path| path.is_dir())
}

/// What is mounted and where, when a line of `mountinfo` is about a cgroup v2 tree.
fn cgroup2(line: &str) -> Option<(&str, &str)> {
    let (left, right) = line.split_once(" - ")?;
    let mut fields = left.split(' ').skip(3);
    (right.split(' ').next()? == "cgroup2").then_some((fields.next()?, fields.next()?))
}

/// From the texts of `/proc/self/cgroup` and `/proc/self/mountinfo` (`man 5 proc`).
fn find(groups: &str, mounts: &str) -> Option<PathBuf> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().filter_map(cgroup2).find_map(|(root, point)| {
        // What is mounted may be a part of the tree, as in containers.
        let below = if root == "/" { group } else { group.strip_prefix(root)? };
        Some(Path::new(point).join(below.trim_start_matches('/')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_group_is_found_in_pure_hybrid_and_mounted_in_part() {
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
