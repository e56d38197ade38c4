//! Whether a process is a leftover of a run, and which process belongs to which run. Pure: facts in, decision
//! out.

use crate::proc::{ProcStat, ProcessKey};
use rankdeck_proto::holders::HolderStatus;
use std::collections::{BTreeMap, BTreeSet};

/// What leads from a process to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Evidence {
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
pub(super) struct Claim {
    /// Its name; `None` where only a control group is left of it.
    pub run: Option<String>,
    pub evidence: Evidence,
    /// An agent of the run lives, and answers for its processes.
    pub has_agent: bool,
}

/// What is known of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Facts {
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
pub(super) fn decide(facts: &Facts) -> (HolderStatus, String) {
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
pub(super) struct Trail {
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
pub(super) fn claims(processes: &[ProcStat], trails: &[Trail]) -> BTreeMap<u32, Claim> {
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
