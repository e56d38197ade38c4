//! `agent gpus` and `agent free`: the processes of this host that hold GPUs or shared memory, which of them are
//! left over from runs, and their end.
//!
//! Owner: one-shot commands. `gpus` changes nothing.
//!
//! - HOLD-1: `free` decides again before it signals, and signals through a pidfd after comparing start times.
//! - HOLD-2: what is not proven to be a leftover is ended only if it is named as unproven; what is in use, and
//!   what belongs to others, never.
//!
//! [`facts`] gathers what accounts for a process; the decision whether it is a leftover, and of which run, is pure.

mod facts;

use crate::proc::{self, ProcStat, ProcessKey};
use crate::supervise::process_scan;
use facts::ProcessTable;
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
    let mut holders = holders(workdir, facts::gpu_shares());
    holders.sort_by_key(|holder| (holder.status, holder.gpus.is_empty(), holder.pid));
    let left_out = holders.len().saturating_sub(LISTED) as u64;
    holders.truncate(LISTED);
    HolderList { holders, left_out, machine: machine() }
}

/// `by_driver`: what the driver shows of each process.
fn holders(workdir: &Path, mut by_driver: BTreeMap<u32, Vec<GpuShare>>) -> Vec<Holder> {
    let host = ProcessTable::scan(workdir);
    let claims = host.claims();
    let (now, names) = (uptime(), &host.stats);
    let mut found = Vec::new();
    for stat in names.values().filter(|stat| !stat.is_gone()) {
        let given = by_driver.remove(&stat.pid).unwrap_or_default();
        let own = facts::owner(stat.pid) == Some(trust::own_uid());
        let files = if own { facts::open_files(stat.pid) } else { facts::OpenFiles::default() };
        let gpus = facts::combine(given, &files);
        let claim = claims.get(&stat.pid);
        let holds = !gpus.is_empty() || files.shm_files > 0;
        if !holds && claim.is_none_or(|claim| claim.has_agent) {
            continue;
        }
        let facts = Facts { claim: claim.cloned(), gpu: !gpus.is_empty(), ..host.facts(stat) };
        let (status, why) = decide(&facts);
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
    let mut ending =
        Termination { names: names.iter().copied().collect(), unproven, ..Termination::default() };
    let begun = Instant::now();
    let (mut empty_scans, mut rest) = (0, BTreeMap::new());
    let mut shares = facts::gpu_shares();
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
struct Termination {
    names: BTreeSet<HolderName>,
    unproven: bool,
    /// Those that were to be ended, and the runs whose leftovers they are.
    chosen: BTreeSet<HolderName>,
    runs: BTreeSet<String>,
    refused: BTreeMap<HolderName, HintedError>,
    asked: BTreeSet<HolderName>,
    rounds: u32,
}

impl Termination {
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

/// What leads from a process to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Evidence {
    /// It is in a control group that an agent made for the ranks.
    Cgroup,
    /// Pid and start time stand in the run's manifest, or in the notes of its guard.
    Journal,
    /// The run's tag is in its environment.
    Tag,
    /// It is below a process that belongs to the run.
    Tree,
}

impl Evidence {
    fn text(self) -> &'static str {
        match self {
            Evidence::Cgroup => "its control group",
            Evidence::Journal => "pid and start time in the run's journal",
            Evidence::Tag => "the run's tag in its environment",
            Evidence::Tree => "its parent belongs to the run",
        }
    }
}

/// A run that a process belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Claim {
    /// Its name; `None` where only a control group is left of it.
    pub run: Option<String>,
    pub evidence: Evidence,
    /// An agent of the run lives, and answers for its processes.
    pub has_agent: bool,
}

/// What is known of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Facts {
    /// It belongs to this user; the user's name otherwise.
    pub other_user: Option<String>,
    /// It serves rankdeck itself: an agent, a guard, or what asks.
    pub serves: bool,
    pub claim: Option<Claim>,
    /// A living parent other than init, by pid and program.
    pub parent: Option<(u32, String)>,
    /// It has a controlling terminal, and its session's leader lives.
    pub terminal: bool,
    /// A process below it has one: it is the server of a terminal.
    pub serves_terminal: bool,
    /// A login session, or the leader of its session, that lives.
    pub login: Option<String>,
    /// A Slurm job that has not ended.
    pub slurm_job: Option<String>,
    /// It holds a GPU.
    pub gpu: bool,
}

/// The status of a process, and what it follows from.
///
/// `--free` ends only proven leftovers, and nothing ends a process that has a reason to exist.
fn decide(facts: &Facts) -> (HolderStatus, String) {
    if let Some(user) = &facts.other_user {
        return (HolderStatus::OtherUser, format!("it belongs to {user}"));
    }
    let in_use = |why: String| (HolderStatus::InUse, why);
    if facts.serves {
        return in_use("it is part of rankdeck".into());
    }
    if let Some(claim) = &facts.claim {
        let run = claim.run.as_ref().map_or_else(|| "a run".to_owned(), |run| format!("run {run}"));
        if claim.has_agent {
            return in_use(format!("{run} has a live agent"));
        }
        // A tag is inherited by every shell, by what is typed there, and by a terminal's server.
        if matches!(claim.evidence, Evidence::Tag | Evidence::Tree) {
            if facts.terminal {
                return in_use(format!("it has a terminal, and the tag of {run}"));
            }
            if facts.serves_terminal {
                return in_use(format!("a process below it has a terminal, and it has the tag of {run}"));
            }
        }
        return (HolderStatus::Leftover, format!("{run} has no live agent; {}", claim.evidence.text()));
    }
    if let Some((pid, name)) = &facts.parent {
        return in_use(format!("its parent is alive: {name} (pid {pid})"));
    }
    if let Some(login) = &facts.login {
        return in_use(login.clone());
    }
    if facts.terminal {
        return in_use("it has a terminal".into());
    }
    if let Some(job) = &facts.slurm_job {
        return in_use(format!("Slurm job {job} has not ended"));
    }
    if !facts.gpu {
        return in_use("it holds no GPU".into());
    }
    (HolderStatus::Unproven, "no parent but init, no login session, no Slurm job".into())
}

/// A node of a run, and what leads to its processes.
#[derive(Debug, Clone, Default)]
struct Trail {
    /// `None` for a control group without a run.
    pub run: Option<String>,
    pub has_agent: bool,
    /// Pids in its control groups.
    pub inside: BTreeSet<u32>,
    /// Processes of its journal.
    pub journal: BTreeSet<ProcessKey>,
    /// Processes whose environments carry its tag.
    pub tagged: BTreeSet<u32>,
    /// Its agents: everything below one belongs to the run.
    pub agents: BTreeSet<u32>,
}

/// Which processes belong to which run. Where two runs claim one, the run that lives has it.
fn claims(processes: &[ProcStat], trails: &[Trail]) -> BTreeMap<u32, Claim> {
    let mut claims: BTreeMap<u32, Claim> = BTreeMap::new();
    let mut add = |pid: u32, claim: Claim| {
        let known = claims.get(&pid);
        let is_better = |known: &Claim| {
            (!claim.has_agent, claim.run.is_none(), claim.evidence)
                < (!known.has_agent, known.run.is_none(), known.evidence)
        };
        if known.is_none_or(is_better) {
            claims.insert(pid, claim);
        }
    };
    let living: Vec<&ProcStat> = processes.iter().filter(|process| !process.is_gone()).collect();
    for trail in trails {
        for process in &living {
            let key = ProcessKey { pid: process.pid, start: process.start };
            let evidence = if trail.inside.contains(&process.pid) {
                Evidence::Cgroup
            } else if trail.journal.contains(&key) {
                Evidence::Journal
            } else if trail.tagged.contains(&process.pid) {
                Evidence::Tag
            } else if trail.agents.contains(&process.ppid) {
                Evidence::Tree
            } else {
                continue;
            };
            add(process.pid, Claim { run: trail.run.clone(), evidence, has_agent: trail.has_agent });
        }
    }
    // Parents come before their children, except where pids or clocks wrap: until nothing changes.
    loop {
        let found: Vec<(u32, Claim)> = living
            .iter()
            .filter(|process| !claims.contains_key(&process.pid))
            .filter_map(|process| {
                let claim = claims.get(&process.ppid)?;
                Some((process.pid, Claim { evidence: Evidence::Tree, ..claim.clone() }))
            })
            .collect();
        if found.is_empty() {
            return claims;
        }
        claims.extend(found);
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
        let mut ending = Termination { names: names.clone(), ..Termination::default() };
        let first: Vec<u32> = ending.round(&all).keys().map(|name| name.pid).collect();
        let second: Vec<u32> = ending.round(&all).keys().map(|name| name.pid).collect();
        assert_eq!((first, second), (vec![1, 2], vec![1, 2]), "one run was named; run b is left alone");
        let refused: Vec<u32> = ending.refused.keys().map(|name| name.pid).collect();
        assert_eq!(refused, [4, 5, 6, 7]);
        // Named one by one.
        let mut ending = Termination { names, unproven: true, ..Termination::default() };
        ending.round(&all);
        assert_eq!(ending.chosen.iter().map(|name| name.pid).collect::<Vec<_>>(), [1, 4]);
        assert_eq!(ending.refused.keys().map(|name| name.pid).collect::<Vec<_>>(), [5, 6, 7]);
    }

    #[test]
    fn hold_1_reused_pid_is_not_ended() {
        let mut ending =
            Termination { names: [HolderName { pid: 1, start: 8 }].into(), ..Termination::default() };
        assert!(ending.round(&[holder(1, HolderStatus::Leftover, "a")]).is_empty());
        let report = ending.report(&BTreeMap::new());
        assert!(matches!(report.processes[..], [(_, FreeOutcome::Refused(_))]), "{report:?}");
    }

    #[test]
    fn ended_and_surviving_processes_are_reported() {
        let mut ending = Termination { names: [name(1), name(2)].into(), ..Termination::default() };
        let both = [holder(1, HolderStatus::Leftover, "a"), holder(2, HolderStatus::Leftover, "a")];
        ending.round(&both);
        let open = ending.round(&both[1..]);
        let report = ending.report(&open);
        let survived = FreeOutcome::Survived { state: "S".into() };
        assert_eq!(report.processes, [(name(1), FreeOutcome::Ended), (name(2), survived)]);
    }

    fn process(pid: u32, ppid: u32, start: u64) -> ProcStat {
        let text = format!("{pid} (python) S {ppid} {pid} {pid} 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0");
        crate::proc::parse_stat(&text).unwrap()
    }

    fn claim(evidence: Evidence, has_agent: bool) -> Option<Claim> {
        Some(Claim { run: Some("ppo-1".into()), evidence, has_agent })
    }

    /// An orphan of this user on a GPU: nothing accounts for it.
    fn orphan() -> Facts {
        Facts { gpu: true, ..Facts::default() }
    }

    fn status(facts: &Facts) -> HolderStatus {
        decide(facts).0
    }

    #[test]
    fn leftovers_of_five_kinds_are_told_apart() {
        use HolderStatus::{Leftover, Unproven};
        let tagged = Facts { claim: claim(Evidence::Tag, false), ..orphan() };
        for (kind, facts, expected) in [
            ("re-parented worker", tagged.clone(), Leftover),
            ("re-parented worker without a GPU", Facts { gpu: false, ..tagged.clone() }, Leftover),
            ("cleared environment", orphan(), Unproven),
            (
                "cleared environment, noted by the guard",
                Facts { claim: claim(Evidence::Journal, false), ..orphan() },
                Leftover,
            ),
            (
                "cleared environment, control group",
                Facts { claim: claim(Evidence::Cgroup, false), ..orphan() },
                Leftover,
            ),
            // Below containerd-shim.
            ("container", Facts { parent: Some((9, "containerd-shim".into())), ..tagged.clone() }, Leftover),
            ("cancelled Slurm job", Facts { slurm_job: None, ..orphan() }, Unproven),
            ("stopped process", tagged, Leftover),
        ] {
            assert_eq!(status(&facts), expected, "{kind}");
        }
    }

    #[test]
    fn innocents_are_in_use() {
        for (kind, facts) in [
            (
                "shell child of a login session",
                Facts { parent: Some((7, "bash".into())), terminal: true, ..orphan() },
            ),
            (
                "background job of an open login",
                Facts { login: Some("its login session is open".into()), ..orphan() },
            ),
            ("tmux job", Facts { parent: Some((8, "bash".into())), ..orphan() }),
            ("Slurm job of the user", Facts { slurm_job: Some("42".into()), ..orphan() }),
            ("Jupyter kernel", Facts { parent: Some((9, "jupyter-lab".into())), ..orphan() }),
            ("another run with a live agent", Facts { claim: claim(Evidence::Tag, true), ..orphan() }),
            ("the agent itself", Facts { serves: true, claim: claim(Evidence::Tag, false), ..orphan() }),
            (
                "a rank that was started again by hand",
                Facts { claim: claim(Evidence::Tag, false), terminal: true, ..orphan() },
            ),
            (
                "the server of a terminal, started where a run had been",
                Facts { claim: claim(Evidence::Tag, false), serves_terminal: true, gpu: false, ..orphan() },
            ),
            ("no GPU", Facts { gpu: false, ..orphan() }),
        ] {
            assert_eq!(status(&facts), HolderStatus::InUse, "{kind}");
        }
    }

    #[test]
    fn processes_of_others_are_listed_only() {
        let facts = Facts { other_user: Some("bob".into()), claim: claim(Evidence::Tag, false), ..orphan() };
        assert_eq!(status(&facts), HolderStatus::OtherUser);
    }

    #[test]
    fn claims_follow_cgroup_journal_tag_and_tree() {
        let all = [
            process(10, 1, 5),
            process(11, 10, 6),
            process(12, 11, 7),
            process(20, 1, 8),
            process(21, 1, 9),
            process(99, 1, 9),
        ];
        let trail = Trail {
            run: Some("ppo-1".into()),
            inside: BTreeSet::from([20]),
            journal: BTreeSet::from([ProcessKey { pid: 21, start: 9 }]),
            tagged: BTreeSet::from([10]),
            ..Trail::default()
        };
        let found = claims(&all, std::slice::from_ref(&trail));
        let evidence: Vec<_> = found.iter().map(|(pid, claim)| (*pid, claim.evidence)).collect();
        let expected = [
            (10, Evidence::Tag),
            (11, Evidence::Tree),
            (12, Evidence::Tree),
            (20, Evidence::Cgroup),
            (21, Evidence::Journal),
        ];
        assert_eq!(evidence, expected);
        // Another process has the pid by now.
        let reused = [process(21, 1, 900)];
        assert!(claims(&reused, &[trail]).is_empty());
    }

    #[test]
    fn run_with_an_agent_keeps_what_another_claims() {
        let dead = Trail { run: Some("old".into()), inside: BTreeSet::from([20]), ..Trail::default() };
        let live = Trail {
            run: Some("new".into()),
            has_agent: true,
            agents: BTreeSet::from([5]),
            ..Trail::default()
        };
        let all = [process(5, 1, 1), process(20, 5, 2), process(21, 20, 3)];
        for trails in [[dead.clone(), live.clone()], [live, dead]] {
            let found = claims(&all, &trails);
            assert!(found[&20].has_agent && found[&21].has_agent, "{found:?}");
        }
    }
}
