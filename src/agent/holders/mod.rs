//! `agent gpus` and `agent free`: the processes of this host that hold GPUs or shared memory, which of them are
//! left over from runs, and their end.
//!
//! Owner: one-shot commands. `gpus` changes nothing.
//!
//! - HOLD-1: `free` decides again before it signals, and signals through a pidfd after comparing start times.
//! - HOLD-2: what is not proven to be a leftover is ended only if it is named as unproven; what is in use, and
//!   what belongs to others, never.

mod decide;
mod facts;
mod usage;

use crate::proc::{self, ProcessKey};
use crate::supervise::process_scan;
use facts::Host;
use rankdeck_proto::holders::{
    FreeOutcome, FreeReport, GpuShare, Holder, HolderList, HolderName, HolderStatus, LISTED,
};
use rankdeck_proto::trust;
use rankdeck_types::error::HintedError;
use rankdeck_types::words::clip;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

/// Time that a process has to end by SIGTERM, and then by SIGKILL.
const POLITE: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two scans.
const PAUSE: Duration = Duration::from_millis(50);
/// Most characters of a command line.
const COMMAND: usize = 160;

/// Lists every process that holds a GPU or files in `/dev/shm`, and every leftover of a run.
pub(crate) fn list(workdir: &Path) -> HolderList {
    let mut holders = holders(workdir, usage::gpu_shares());
    holders.sort_by_key(|holder| (holder.status, holder.gpus.is_empty(), holder.pid));
    let left_out = holders.len().saturating_sub(LISTED) as u64;
    holders.truncate(LISTED);
    HolderList { holders, left_out, machine: machine() }
}

/// `by_driver`: what the driver shows of each process.
fn holders(workdir: &Path, mut by_driver: BTreeMap<u32, Vec<GpuShare>>) -> Vec<Holder> {
    let host = Host::scan(workdir);
    let claims = host.claims();
    let (now, names) = (uptime(), &host.stats);
    let mut found = Vec::new();
    for stat in names.values().filter(|stat| !stat.is_gone()) {
        let given = by_driver.remove(&stat.pid).unwrap_or_default();
        let own = facts::owner(stat.pid) == Some(trust::own_uid());
        let files = if own { usage::open_files(stat.pid) } else { usage::OpenFiles::default() };
        let gpus = usage::combine(given, &files);
        let claim = claims.get(&stat.pid);
        let holds = !gpus.is_empty() || files.shm_files > 0;
        if !holds && claim.is_none_or(|claim| claim.has_agent) {
            continue;
        }
        let facts = decide::Facts { claim: claim.cloned(), gpu: !gpus.is_empty(), ..host.facts(stat) };
        let (status, why) = decide::decide(&facts);
        if !holds && status != HolderStatus::Leftover {
            continue;
        }
        let parent = names.get(&stat.ppid).map(|parent| parent.comm.clone()).unwrap_or_default();
        found.push(Holder {
            pid: stat.pid,
            start: stat.start,
            user: facts::owner(stat.pid).map(trust::user_name).unwrap_or_default(),
            command: clip(&proc::command(stat), COMMAND),
            state: stat.state.into(),
            age_s: (now - stat.start as f64 / proc::ticks_per_second() as f64).max(0.0),
            ppid: stat.ppid,
            parent,
            run: claim.and_then(|claim| claim.run.clone()),
            gpus,
            shm_bytes: files.shm_bytes,
            shm_files: files.shm_files,
            status,
            why,
        });
    }
    // Those that the driver shows and this host does not: of others, or outside of this container.
    found.extend(by_driver.into_iter().map(|(pid, gpus)| Holder {
        pid,
        gpus,
        status: HolderStatus::OtherUser,
        why: "the process is not visible on this host".into(),
        ..Holder::default()
    }));
    found
}

/// Identifies a machine, or a container with pids of its own.
fn machine() -> String {
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", proc::boot_id(), namespace.display())
}

/// Seconds since boot.
fn uptime() -> f64 {
    let text = proc::text("/proc/uptime").unwrap_or_default();
    text.split(' ').next().and_then(|seconds| seconds.parse().ok()).unwrap_or_default()
}

/// Ends processes that were listed: leftovers, and, if `unproven`, also what is unproven. Whatever else belongs
/// to the same leftovers by then ends with them.
pub(crate) fn free(workdir: &Path, names: &[HolderName], unproven: bool) -> FreeReport {
    let mut ending = Ending { names: names.iter().copied().collect(), unproven, ..Ending::default() };
    let begun = Instant::now();
    let (mut empty_scans, mut rest) = (0, BTreeMap::new());
    let mut shares = usage::gpu_shares();
    loop {
        // The driver is asked once: it may be slow, and only the first round decides by GPUs.
        let mut open = ending.round(&holders(workdir, std::mem::take(&mut shares)));
        // A process lets go of its GPU before it ends.
        for name in ending.chosen.iter().filter(|name| !open.contains_key(name)) {
            let stat = proc::stat(name.pid).filter(|stat| stat.start == name.start && !stat.is_gone());
            rest.extend(stat.map(|stat| (*name, stat.state.into())));
        }
        open.append(&mut rest);
        if open.is_empty() {
            // Processes fork while they are read.
            empty_scans += 1;
            if empty_scans >= 2 {
                return ending.report(&open);
            }
        } else if begun.elapsed() >= POLITE + PATIENCE {
            return ending.report(&open);
        } else {
            empty_scans = 0;
            let is_polite = begun.elapsed() < POLITE;
            for name in open.keys() {
                let signal = if is_polite { libc::SIGTERM } else { libc::SIGKILL };
                if !is_polite || ending.asked.insert(*name) {
                    process_scan::deliver(ProcessKey { pid: name.pid, start: name.start }, signal);
                }
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// Processes that are being ended.
#[derive(Debug, Default)]
struct Ending {
    names: BTreeSet<HolderName>,
    unproven: bool,
    /// Those that were to be ended, and the runs whose leftovers they are.
    chosen: BTreeSet<HolderName>,
    runs: BTreeSet<String>,
    refused: BTreeMap<HolderName, HintedError>,
    asked: BTreeSet<HolderName>,
    rounds: u32,
}

impl Ending {
    /// Chooses among the processes of this moment; returns those that are to be ended and live, with their
    /// states. Pure.
    fn round(&mut self, holders: &[Holder]) -> BTreeMap<HolderName, String> {
        let mut open = BTreeMap::new();
        self.rounds += 1;
        let is_first = self.rounds == 1;
        for holder in holders {
            let name = holder.name();
            let is_named = self.names.contains(&name);
            let is_left = holder.status == HolderStatus::Leftover;
            let same_run = is_left && holder.run.as_ref().is_some_and(|run| self.runs.contains(run));
            let unproven = holder.status == HolderStatus::Unproven;
            let may_end = is_left || is_first && self.unproven && unproven;
            if !(is_named && may_end || same_run) {
                if is_named && is_first {
                    let error = format!("pid {} is {}: {}", name.pid, in_words(holder.status), holder.why);
                    self.refused.insert(
                        name,
                        HintedError::new(error, "list the processes again with `rankdeck gpus`"),
                    );
                }
                continue;
            }
            self.chosen.insert(name);
            self.refused.remove(&name);
            // All that is left of the run, if the whole run was meant.
            self.runs.extend(holder.run.clone().filter(|_| is_left && !self.unproven));
            open.insert(name, holder.state.clone());
        }
        // What is not listed any more has ended, or holds nothing.
        let there: BTreeSet<HolderName> = holders.iter().map(Holder::name).collect();
        for name in self.names.iter().filter(|name| is_first && !there.contains(name)) {
            let error = format!("pid {} has ended, or no longer holds a GPU", name.pid);
            self.refused.insert(*name, HintedError::new(error, ""));
        }
        open
    }

    fn report(self, open: &BTreeMap<HolderName, String>) -> FreeReport {
        let refused = self.refused.into_iter().map(|(name, error)| (name, FreeOutcome::Refused(error)));
        let chosen = self.chosen.into_iter().map(|name| match open.get(&name) {
            Some(state) => (name, FreeOutcome::Survived { state: state.clone() }),
            None => (name, FreeOutcome::Ended),
        });
        FreeReport { processes: refused.chain(chosen).collect() }
    }
}

fn in_words(status: HolderStatus) -> &'static str {
    match status {
        HolderStatus::Leftover => "a leftover",
        HolderStatus::Unproven => "unproven",
        HolderStatus::InUse => "in use",
        HolderStatus::OtherUser => "another user's",
        HolderStatus::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(pid: u32, status: HolderStatus, run: &str) -> Holder {
        let run = Some(run.to_owned()).filter(|run| !run.is_empty());
        Holder { pid, start: 9, status, run, state: "S".into(), ..Holder::default() }
    }

    fn name(pid: u32) -> HolderName {
        HolderName { pid, start: 9 }
    }

    #[test]
    fn hold_2_only_named_and_proven_processes_are_ended() {
        use HolderStatus::{InUse, Leftover, OtherUser, Unproven};
        let all = [
            holder(1, Leftover, "a"),
            holder(2, Leftover, "a"),
            holder(3, Leftover, "b"),
            holder(4, Unproven, ""),
            holder(5, InUse, "c"),
            holder(6, OtherUser, ""),
        ];
        let names: BTreeSet<HolderName> = [1, 4, 5, 6, 7].map(name).into();
        let mut ending = Ending { names: names.clone(), ..Ending::default() };
        let first: Vec<u32> = ending.round(&all).keys().map(|name| name.pid).collect();
        let second: Vec<u32> = ending.round(&all).keys().map(|name| name.pid).collect();
        assert_eq!((first, second), (vec![1, 2], vec![1, 2]), "one run was named; run b is left alone");
        let refused: Vec<u32> = ending.refused.keys().map(|name| name.pid).collect();
        assert_eq!(refused, [4, 5, 6, 7]);
        // Named one by one.
        let mut ending = Ending { names, unproven: true, ..Ending::default() };
        ending.round(&all);
        assert_eq!(ending.chosen.iter().map(|name| name.pid).collect::<Vec<_>>(), [1, 4]);
        assert_eq!(ending.refused.keys().map(|name| name.pid).collect::<Vec<_>>(), [5, 6, 7]);
    }

    #[test]
    fn hold_1_reused_pid_is_not_ended() {
        let mut ending = Ending { names: [HolderName { pid: 1, start: 8 }].into(), ..Ending::default() };
        assert!(ending.round(&[holder(1, HolderStatus::Leftover, "a")]).is_empty());
        let report = ending.report(&BTreeMap::new());
        assert!(matches!(report.processes[..], [(_, FreeOutcome::Refused(_))]), "{report:?}");
    }

    #[test]
    fn ended_and_surviving_processes_are_reported() {
        let mut ending = Ending { names: [name(1), name(2)].into(), ..Ending::default() };
        let both = [holder(1, HolderStatus::Leftover, "a"), holder(2, HolderStatus::Leftover, "a")];
        ending.round(&both);
        let open = ending.round(&both[1..]);
        let report = ending.report(&open);
        let survived = FreeOutcome::Survived { state: "S".into() };
        assert_eq!(report.processes, [(name(1), FreeOutcome::Ended), (name(2), survived)]);
    }
}
