//! Who uses the GPUs of this host. What a process is, is read once.

use crate::paths::own_uid;
use crate::proc;
use rankdeck_proto::message::GpuSample;
use rankdeck_proto::process::GpuUser;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;

/// Most characters of a command line.
const COMMAND: usize = 120;
/// Most processes told.
const USERS: usize = 256;

/// What is known of processes on GPUs.
#[derive(Debug, Default)]
pub struct GpuUsers(BTreeMap<u32, GpuUser>);

impl GpuUsers {
    /// Those that are on a GPU now, but for `ranks`.
    pub fn look(&mut self, gpus: &[GpuSample], ranks: &BTreeSet<u32>) -> Vec<GpuUser> {
        let all = gpus.iter().flat_map(|gpu| &gpu.processes).map(|(pid, _)| *pid);
        let pids: BTreeSet<u32> = all.filter(|pid| !ranks.contains(pid)).collect();
        // A pid may belong to another process by now.
        self.0.retain(|pid, known| pids.contains(pid) && start_of(*pid) == known.start);
        let told = pids.into_iter().take(USERS);
        told.map(|pid| self.0.entry(pid).or_insert_with(|| user(pid)).clone()).collect()
    }
}

fn start_of(pid: u32) -> u64 {
    proc::stat(pid).map_or(0, |stat| stat.start)
}

fn user(pid: u32) -> GpuUser {
    let start = start_of(pid);
    let uid = std::fs::metadata(format!("/proc/{pid}")).ok().map(|facts| facts.uid());
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    let environ = proc::environ(pid).unwrap_or_default();
    GpuUser {
        pid,
        start,
        own: start > 0 && uid == Some(own_uid()),
        user: uid.map(proc::user_name).unwrap_or_default(),
        command: command.trim().chars().take(COMMAND).collect(),
        run: proc::variable(&environ, "RANKDECK_RUN").map(|run| String::from_utf8_lossy(run).into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_on_a_gpu_has_a_user_a_command_and_a_start() {
        let own = std::process::id();
        let gpu = GpuSample { processes: vec![(own, 1), (u32::MAX - 1, 1)], ..GpuSample::default() };
        let mut known = GpuUsers::default();
        let users = known.look(std::slice::from_ref(&gpu), &BTreeSet::new());
        assert_eq!(users.len(), 2);
        assert!(!users[0].user.is_empty() && !users[0].command.is_empty(), "{users:?}");
        assert!(users[0].own && users[0].start == proc::stat(own).unwrap().start);
        assert!(!users[1].own && users[1].start == 0, "of one that is gone nothing is known: {users:?}");
        assert_eq!(known.look(&[gpu], &BTreeSet::from([own])).len(), 1, "a rank is no other");
        assert!(
            known.look(&[], &BTreeSet::new()).is_empty() && known.0.is_empty(),
            "what is gone is forgotten"
        );
    }
}
