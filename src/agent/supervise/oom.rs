//! Whether the kernel's out-of-memory killer ended a process.
//!
//! Owner: the agent's loop. The kernel tells nobody whom it ended but its log, which needs root; it only
//! counts. The count of the agent's own control group is about its ranks and nobody else. Ranks may live in
//! other groups, as a container's or a batch system's, so the machine's count is looked at too, but only over
//! the last seconds: an old rise has nothing to do with this end.

use crate::proc;
use std::path::Path;
use std::time::{Duration, Instant};

/// The machine's count is compared with one that is between one and two of these old: a process with much
/// memory takes a while to end.
const WINDOW: Duration = Duration::from_secs(5);

/// The counts before.
#[derive(Debug)]
pub struct OomWatch {
    own: Option<u64>,
    older: Option<u64>,
    newer: Option<u64>,
    turned: Instant,
}

impl OomWatch {
    /// Begins to count now.
    pub fn start() -> OomWatch {
        OomWatch { own: own(), older: machine(), newer: machine(), turned: Instant::now() }
    }

    /// Moves the window; to be called at least as often as it is long.
    pub fn turn(&mut self) {
        if self.turned.elapsed() >= WINDOW {
            self.turned = Instant::now();
            self.older = self.newer;
            self.newer = machine();
        }
    }

    /// A process was ended by SIGKILL: was it the kernel, for want of memory? A kill is taken for one process
    /// only.
    pub fn was_it(&mut self) -> bool {
        self.decide(own(), machine())
    }

    fn decide(&mut self, own: Option<u64>, machine: Option<u64>) -> bool {
        let rose =
            |before: Option<u64>, now: Option<u64>| now.zip(before).is_some_and(|(now, before)| now > before);
        let killed = rose(self.own, own) || rose(self.older, machine);
        self.own = own;
        (self.older, self.newer) = (machine, machine);
        killed
    }
}

fn count(path: &Path) -> Option<u64> {
    let text = proc::text(path)?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// Kills in this process's own group and below, where there is such a group.
fn own() -> Option<u64> {
    let cgroups = proc::text("/proc/self/cgroup").unwrap_or_default();
    cgroups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let path = path.trim_start_matches('/');
        if controllers.is_empty() {
            count(&Path::new("/sys/fs/cgroup").join(path).join("memory.events"))
        } else if controllers.split(',').any(|name| name == "memory") {
            count(&Path::new("/sys/fs/cgroup/memory").join(path).join("memory.oom_control"))
        } else {
            None
        }
    })
}

/// Kills on the whole machine, those of limited groups included.
fn machine() -> Option<u64> {
    count(Path::new("/proc/vmstat"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rise_of_either_count_is_one_kill_and_an_old_one_is_none() {
        let now = Instant::now();
        let mut watch = OomWatch { own: Some(2), older: Some(7), newer: Some(8), turned: now };
        assert!(watch.decide(Some(2), Some(8)), "within the window");
        assert!(!watch.decide(Some(2), Some(8)), "one kill is one process");
        assert!(watch.decide(Some(3), Some(8)));
        assert!(!watch.decide(None, None));
        assert!(!watch.decide(Some(9), Some(9)), "nothing was known before");
        let mut old = OomWatch { own: Some(0), older: Some(7), newer: Some(9), turned: now - 2 * WINDOW };
        old.turn();
        assert!(!old.decide(Some(0), Some(9)));
    }

    #[test]
    fn the_machine_counts() {
        // Kernels since 4.13 do; where there is no such line, only the own group is looked at.
        if let Some(kills) = machine() {
            assert!(machine().unwrap() >= kills);
        }
    }
}
