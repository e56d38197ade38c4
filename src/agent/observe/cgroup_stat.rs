//! The control groups of a process: frozen, throttled, out of memory; versions 1, 2 and both at once.
//!
//! Owner: the maker of the [`Mounts`]; they are read once, since hierarchies do not move while a run lives.
//! Nothing here blocks: these are counters of the kernel.

use crate::proc;
use rankdeck_proto::message::CgroupSample;
use std::path::{Path, PathBuf};

/// Where a process's groups lie.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Groups {
    /// Path below the mount of the most useful hierarchy: version 2 where it has controllers, else the
    /// freezer's.
    pub path: String,
    unified: Option<PathBuf>,
    freezer: Option<PathBuf>,
    /// The group of the CPU controller and the mount it may climb up to.
    cpu: Option<(PathBuf, PathBuf)>,
    memory: Option<PathBuf>,
}

/// Counters of a CPU quota.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Throttling {
    /// Periods that have passed while anything in the group ran.
    pub periods: u64,
    /// Those of them in which it was throttled.
    pub throttled: u64,
    /// For how long, ms, on each core by itself; 0 where unknown.
    pub held_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    root: String,
    at: PathBuf,
    /// Controllers of version 1; empty for version 2.
    controllers: Vec<String>,
}

/// The mounted hierarchies, as this process sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Mounts {
    list: Vec<Mount>,
}

impl Mounts {
    /// Reads them.
    pub fn read() -> Mounts {
        Mounts::parse(&proc::text("/proc/self/mountinfo").unwrap_or_default())
    }

    fn parse(mountinfo: &str) -> Mounts {
        let list = mountinfo
            .lines()
            .filter_map(|line| {
                let (left, right) = line.split_once(" - ")?;
                let mut left = left.split(' ').skip(3);
                let (root, at) = (left.next()?, left.next()?);
                let mut right = right.split(' ');
                let kind = right.next()?;
                let options = right.nth(1)?;
                let controllers = match kind {
                    "cgroup2" => Vec::new(),
                    "cgroup" => options.split(',').map(str::to_owned).collect(),
                    _ => return None,
                };
                Some(Mount { root: root.into(), at: at.into(), controllers })
            })
            .collect();
        Mounts { list }
    }

    /// The groups of a process; `None` when it is gone or no hierarchy is mounted.
    pub fn of(&self, pid: u32) -> Option<Groups> {
        self.locate(&proc::text(format!("/proc/{pid}/cgroup"))?)
    }

    /// The same from the text of its `cgroup` file.
    pub fn locate(&self, cgroup: &str) -> Option<Groups> {
        if self.list.is_empty() {
            return None;
        }
        let mut groups = Groups::default();
        for line in cgroup.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let names: Vec<&str> = controllers.split(',').filter(|name| !name.is_empty()).collect();
            let mount = self.list.iter().find(|mount| {
                if names.is_empty() {
                    mount.controllers.is_empty()
                } else {
                    names.iter().all(|name| mount.controllers.iter().any(|has| has == name))
                }
            });
            let Some(mount) = mount else { continue };
            // Inside a container the mount may start at the container's own group.
            let below = path.strip_prefix(mount.root.as_str()).unwrap_or(path).trim_start_matches('/');
            let folder = mount.at.join(below);
            if names.is_empty() {
                groups.unified = Some(folder.clone());
                groups.cpu.get_or_insert_with(|| (folder.clone(), mount.at.clone()));
                if groups.path.is_empty() || path != "/" {
                    groups.path = path.to_owned();
                }
                continue;
            }
            for name in names {
                match name {
                    "freezer" => {
                        groups.freezer = Some(folder.clone());
                        if groups.path.is_empty() || groups.path == "/" {
                            groups.path = path.to_owned();
                        }
                    }
                    "cpu" => groups.cpu = Some((folder.clone(), mount.at.clone())),
                    "memory" => groups.memory = Some(folder.clone()),
                    _ => {}
                }
            }
        }
        Some(groups)
    }
}

impl Groups {
    /// The counters now.
    pub fn sample(&self) -> CgroupSample {
        let Throttling { periods, throttled, held_ms } = self.throttling();
        CgroupSample {
            path: self.path.clone(),
            frozen: self.is_frozen(),
            periods,
            throttled,
            throttled_ms: held_ms,
            oom_kills: self.oom_kills(),
            memory_stall_ms: self.memory_stall_ms(),
            limit_hits: self.limit_hits(),
        }
    }

    /// Frozen by either version, by itself or through a parent.
    pub fn is_frozen(&self) -> bool {
        let by_two = self.unified.as_ref().and_then(|folder| value(&folder.join("cgroup.events"), "frozen"))
            == Some(1);
        let by_one = || {
            let state = proc::text(self.freezer.as_ref()?.join("freezer.state"))?;
            Some(matches!(state.trim(), "FROZEN" | "FREEZING"))
        };
        by_two || by_one() == Some(true)
    }

    /// What the quota of the nearest group upwards that has one has done to it.
    pub fn throttling(&self) -> Throttling {
        let Some((folder, top)) = &self.cpu else { return Throttling::default() };
        let mut at: &Path = folder;
        loop {
            let text = proc::text(at.join("cpu.stat")).unwrap_or_default();
            let value = |name: &str| value_in(&text, name);
            if let Some(periods) = value("nr_periods").filter(|periods| *periods > 0) {
                // Microseconds in version 2, nanoseconds in version 1.
                let two = value("throttled_usec").map(|us| us / 1000);
                let one = || value("throttled_time").map(|ns| ns / 1_000_000);
                let throttled = value("nr_throttled").unwrap_or(0);
                return Throttling { periods, throttled, held_ms: two.or_else(one).unwrap_or(0) };
            }
            match at.parent() {
                Some(parent) if at != top => at = parent,
                _ => return Throttling::default(),
            }
        }
    }

    /// Milliseconds in which everything in it waited for memory.
    fn memory_stall_ms(&self) -> u64 {
        let stalled = || {
            let text = proc::text(self.unified.as_ref()?.join("memory.pressure"))?;
            let full = text.lines().find_map(|line| line.strip_prefix("full "))?;
            full.split(' ').find_map(|word| word.strip_prefix("total=")?.trim().parse::<u64>().ok())
        };
        stalled().map_or(0, |microseconds| microseconds / 1000)
    }

    /// How often it had to give pages back at a limit.
    fn limit_hits(&self) -> u64 {
        let one = || proc::text(self.memory.as_ref()?.join("memory.failcnt"))?.trim().parse().ok();
        let two = || {
            let events = self.unified.as_ref()?.join("memory.events");
            Some(value(&events, "high")?.saturating_add(value(&events, "max")?))
        };
        one().or_else(two).unwrap_or(0)
    }

    /// Processes ended by the out-of-memory killer.
    pub fn oom_kills(&self) -> u64 {
        let two = || value(&self.unified.as_ref()?.join("memory.events"), "oom_kill");
        let one = || value(&self.memory.as_ref()?.join("memory.oom_control"), "oom_kill");
        one().or_else(two).unwrap_or(0)
    }
}

fn value(path: &Path, name: &str) -> Option<u64> {
    value_in(&proc::text(path)?, name)
}

fn value_in(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 25 0:25 / /sys/fs/cgroup ro shared:9 - tmpfs tmpfs ro,mode=755
31 30 0:26 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw
32 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:11 - cgroup cgroup rw,cpu,cpuacct
33 30 0:28 / /sys/fs/cgroup/freezer rw shared:12 - cgroup cgroup rw,freezer
34 30 0:29 /docker/abc /sys/fs/cgroup/memory rw shared:13 - cgroup cgroup rw,memory
";

    #[test]
    fn both_cgroup_versions_at_once_are_distinguished() {
        let groups = Mounts::parse(HYBRID)
            .locate("12:cpu,cpuacct:/a/b\n11:freezer:/jobs/7\n10:memory:/docker/abc/x\n0::/user.slice/7\n")
            .unwrap();
        assert_eq!(groups.path, "/user.slice/7");
        assert_eq!(groups.unified.unwrap(), Path::new("/sys/fs/cgroup/unified/user.slice/7"));
        assert_eq!(groups.freezer.unwrap(), Path::new("/sys/fs/cgroup/freezer/jobs/7"));
        assert_eq!(groups.cpu.unwrap().0, Path::new("/sys/fs/cgroup/cpu,cpuacct/a/b"));
        assert_eq!(groups.memory.unwrap(), Path::new("/sys/fs/cgroup/memory/x"));
    }

    #[test]
    fn without_a_hierarchy_there_are_no_groups() {
        assert_eq!(Mounts::default().locate("0::/a\n"), None);
    }

    #[test]
    fn version_2_alone_serves_everything() {
        let mounts = Mounts::parse("29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n");
        let groups = mounts.locate("0::/system.slice/x.service\n").unwrap();
        let folder = Path::new("/sys/fs/cgroup/system.slice/x.service");
        assert_eq!((groups.unified.as_deref(), groups.cpu.unwrap().0.as_path()), (Some(folder), folder));
    }

    #[test]
    fn counters_come_from_the_nearest_group_with_a_quota() {
        let top = tempfile::tempdir().unwrap();
        let inner = top.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join("cpu.stat"), "nr_periods 0\nnr_throttled 0\n").unwrap();
        std::fs::write(
            top.path().join("a/cpu.stat"),
            "usage_usec 9\nnr_periods 75\nnr_throttled 74\nthrottled_usec 7300999\n",
        )
        .unwrap();
        std::fs::write(inner.join("cgroup.events"), "populated 1\nfrozen 1\n").unwrap();
        std::fs::write(inner.join("memory.events"), "high 40\nmax 2\noom 3\noom_kill 2\n").unwrap();
        let pressure = "some avg10=9.00 avg60=1.00 avg300=0.00 total=9000000\nfull avg10=8.00 avg60=1.00 avg300=0.00 total=7000999\n";
        std::fs::write(inner.join("memory.pressure"), pressure).unwrap();
        let groups = Groups {
            path: "/a/b".into(),
            unified: Some(inner.clone()),
            freezer: None,
            cpu: Some((inner, top.path().into())),
            memory: None,
        };
        let sample = groups.sample();
        assert_eq!((sample.periods, sample.throttled, sample.frozen, sample.oom_kills), (75, 74, true, 2));
        assert_eq!(sample.throttled_ms, 7_300);
        let one = "nr_periods 80\nnr_throttled 79\nthrottled_time 7900000001\n";
        std::fs::write(top.path().join("a/cpu.stat"), one).unwrap();
        assert_eq!(groups.throttling(), Throttling { periods: 80, throttled: 79, held_ms: 7_900 });
        assert_eq!((sample.memory_stall_ms, sample.limit_hits), (7_000, 42));
        std::fs::write(top.path().join("a/b/cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
        assert!(!groups.is_frozen());
    }

    #[test]
    fn frozen_freezer_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("freezer.state"), "FROZEN\n").unwrap();
        let groups = Groups { freezer: Some(folder.path().into()), ..Groups::default() };
        assert!(groups.is_frozen());
        std::fs::write(folder.path().join("freezer.state"), "THAWED\n").unwrap();
        assert!(!groups.is_frozen());
    }
}
