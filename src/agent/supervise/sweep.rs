//! Finding every process of a run, and verifying that none is left.
//!
//! Owner: the agent, its guard and `agent sweep`. Four nets, because each has a hole: the session of each
//! rank (left by `setsid`), the tree below the agent (an agent that died has none), the mark in the
//! environment (a program may clear it), the control group (not everybody may make one). Whatever one of them
//! catches is extended by all its descendants.
//! Invariants:
//! - "nothing left" needs two looks in a row that find nothing, since processes fork while `/proc`
//!   is read.
//! - SWEEP-2: a zombie does not count as a survivor; its parent reaps it.
//! - SWEEP-3: a process of another run is never touched: run, run directory and node of a mark must all
//!   agree, and the name of a control group is made of the same.

use crate::proc::{self, Ident};
use crate::supervise::{cgroup::Cgroup, groups};
use rankdeck_proto::message::Survivor;
use rankdeck_types::ids::{NodeRank, Rank, RunId};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What the environment of every process of a run says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// `RANKDECK_RUN`.
    pub run: RunId,
    /// `RANKDECK_RUN_DIR`.
    pub run_dir: PathBuf,
    /// `RANKDECK_NODE`.
    pub node: NodeRank,
    /// `RANKDECK_AGENT`, when only the processes of one agent are meant: a guard that is still at work when
    /// the next agent starts must not touch that one's ranks.
    pub agent: Option<String>,
    /// `RANKDECK_RANK`, when only what one rank started is meant.
    pub rank: Option<Rank>,
}

impl Mark {
    /// The environment `environ` carries this mark.
    pub fn is_in(&self, environ: &[u8]) -> bool {
        let says = |name: &str, value: &[u8]| proc::variable(environ, name) == Some(value);
        says("RANKDECK_RUN", self.run.0.as_bytes())
            && says("RANKDECK_NODE", self.node.to_string().as_bytes())
            && says("RANKDECK_RUN_DIR", self.run_dir.as_os_str().as_encoded_bytes())
            && self.agent.as_ref().is_none_or(|agent| says("RANKDECK_AGENT", agent.as_bytes()))
            && self.rank.is_none_or(|rank| says("RANKDECK_RANK", rank.to_string().as_bytes()))
    }
}

/// Which processes to look for.
#[derive(Debug, Clone)]
pub struct Scope {
    /// The mark; `None` looks by sessions and trees only.
    pub mark: Option<Mark>,
    /// Session leaders (the ranks) and the rank of each session.
    pub sessions: BTreeMap<Ident, Option<Rank>>,
    /// Everything below this process belongs to the run.
    pub below: Option<u32>,
    /// Processes that were seen to belong to the run.
    pub members: BTreeSet<Ident>,
    /// Everything inside these belongs to the run.
    pub groups: Vec<Cgroup>,
    /// Never touched: the agent, its guard, helpers, and the process that searches.
    pub spared: BTreeSet<u32>,
}

impl Scope {
    /// Everything that carries `mark`.
    pub fn marked(mark: Mark) -> Scope {
        Scope {
            mark: Some(mark),
            sessions: BTreeMap::new(),
            below: None,
            members: BTreeSet::new(),
            groups: Vec::new(),
            spared: BTreeSet::from([std::process::id()]),
        }
    }
}

/// A live process of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundProcess {
    /// The process.
    pub ident: Ident,
    /// The rank whose tree it belongs to, when known.
    pub rank: Option<Rank>,
    pub session: u32,
    /// What the kernel says about it.
    pub stat: proc::Stat,
}

impl FoundProcess {
    /// As reports and people are told of it.
    pub fn survivor(&self) -> Survivor {
        Survivor {
            pid: self.ident.pid,
            rank: self.rank,
            state: self.stat.state,
            command: proc::command(&self.stat),
        }
    }
}

/// Looks once.
pub fn find(scope: &Scope) -> Vec<FoundProcess> {
    let processes = proc::all();
    choose(scope, &processes, &inside(scope), proc::environ)
}

/// Every process as it was at one moment, for whoever asks about many runs.
pub struct Processes {
    all: Vec<proc::Stat>,
    /// Environments of those that belong to a run, whichever it is.
    marked: BTreeMap<u32, Vec<u8>>,
}

impl Processes {
    /// Reads `/proc`, each environment once.
    pub fn look() -> Processes {
        let all = proc::all();
        let marked = all.iter().filter(|process| !process.is_gone()).filter_map(|process| {
            let environ = proc::environ(process.pid)?;
            proc::variable(&environ, "RANKDECK_RUN").is_some().then_some((process.pid, environ))
        });
        Processes { marked: marked.collect(), all }
    }

    /// Those in scope.
    pub fn find(&self, scope: &Scope) -> Vec<FoundProcess> {
        choose(scope, &self.all, &inside(scope), |pid| self.marked.get(&pid))
    }
}

fn inside(scope: &Scope) -> BTreeSet<u32> {
    scope.groups.iter().flat_map(Cgroup::pids).collect()
}

fn choose<E: AsRef<[u8]>>(
    scope: &Scope,
    processes: &[proc::Stat],
    inside: &BTreeSet<u32>,
    environ: impl Fn(u32) -> Option<E>,
) -> Vec<FoundProcess> {
    // A leader's number may have gone to a stranger since; then the session of that number is a stranger's
    // too.
    let stolen: BTreeSet<u32> = scope
        .sessions
        .keys()
        .filter(|leader| processes.iter().any(|p| p.pid == leader.pid && p.start != leader.start))
        .map(|leader| leader.pid)
        .collect();
    let sessions: BTreeMap<u32, Option<Rank>> = scope
        .sessions
        .iter()
        .filter(|(leader, _)| !stolen.contains(&leader.pid))
        .map(|(leader, rank)| (leader.pid, *rank))
        .collect();
    let mut chosen: BTreeMap<u32, Option<Rank>> = BTreeMap::new();
    for process in processes {
        let ident = Ident { pid: process.pid, start: process.start };
        if scope.spared.contains(&process.pid) {
            continue;
        }
        if let Some(rank) = sessions.get(&process.session) {
            chosen.insert(process.pid, *rank);
        } else if scope.members.contains(&ident)
            || inside.contains(&process.pid)
            || scope.below.is_some_and(|root| process.ppid == root)
        {
            chosen.insert(process.pid, None);
        }
        if let Some(mark) = &scope.mark
            && !process.is_gone()
            && chosen.get(&process.pid).is_none_or(|rank| rank.is_none())
            && let Some(environ) = environ(process.pid)
            && mark.is_in(environ.as_ref())
        {
            let rank = proc::variable(environ.as_ref(), "RANKDECK_RANK")
                .and_then(|value| std::str::from_utf8(value).ok()?.parse().ok())
                .map(Rank);
            chosen.insert(process.pid, rank);
        }
    }
    let mut grew = true;
    while grew {
        grew = false;
        for process in processes {
            if !chosen.contains_key(&process.pid)
                && !scope.spared.contains(&process.pid)
                && let Some(rank) = chosen.get(&process.ppid).copied()
            {
                chosen.insert(process.pid, rank);
                grew = true;
            }
        }
    }
    processes
        .iter()
        .filter(|process| !process.is_gone())
        .filter_map(|process| {
            let rank = *chosen.get(&process.pid)?;
            let ident = Ident { pid: process.pid, start: process.start };
            Some(FoundProcess { ident, rank, session: process.session, stat: process.clone() })
        })
        .collect()
}

/// Sends a signal that a stopped process acts on, too.
pub fn deliver(ident: Ident, signal: i32) -> bool {
    let sent = groups::signal(ident.pid, ident.start, signal);
    if sent && signal != libc::SIGKILL {
        groups::signal(ident.pid, ident.start, libc::SIGCONT);
    }
    sent
}

/// Ends everything in scope, which `find` looks for each time anew: SIGTERM for `polite`, then SIGKILL again
/// and again until nothing is left or `within` is over. Blocks.
pub fn kill_all(
    scope: &Scope,
    find: impl Fn(&Scope) -> Vec<FoundProcess>,
    polite: Duration,
    within: Duration,
) -> Vec<Survivor> {
    let begun = Instant::now();
    let mut looks_without_any = 0;
    let mut asked: BTreeSet<Ident> = BTreeSet::new();
    loop {
        let found = find(scope);
        if found.is_empty() {
            looks_without_any += 1;
            if looks_without_any >= 2 {
                return Vec::new();
            }
            std::thread::sleep(Duration::from_millis(10));
            continue;
        }
        looks_without_any = 0;
        if begun.elapsed() >= polite.saturating_add(within) {
            return found.iter().map(FoundProcess::survivor).collect();
        }
        if begun.elapsed() >= polite {
            scope.groups.iter().for_each(Cgroup::kill);
        }
        for found in &found {
            if begun.elapsed() >= polite {
                deliver(found.ident, libc::SIGKILL);
            } else if asked.insert(found.ident) {
                deliver(found.ident, libc::SIGTERM);
            }
        }
        std::thread::sleep(Duration::from_millis(25));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, ppid: u32, session: u32, start: u64) -> proc::Stat {
        proc::Stat {
            pid,
            comm: "x".into(),
            state: 'S',
            ppid,
            session,
            cpu_ticks: 0,
            major_faults: 0,
            threads: 1,
            start,
            rss: 0,
        }
    }

    fn scope() -> Scope {
        Scope {
            mark: Some(Mark {
                run: RunId("r".into()),
                run_dir: "/w/runs/r".into(),
                node: NodeRank(1),
                agent: None,
                rank: None,
            }),
            sessions: BTreeMap::from([(Ident { pid: 20, start: 5 }, Some(Rank(3)))]),
            below: Some(10),
            members: BTreeSet::new(),
            groups: Vec::new(),
            spared: BTreeSet::from([10, 11]),
        }
    }

    fn nothing(_: u32) -> Option<Vec<u8>> {
        None
    }

    fn pids(found: &[FoundProcess]) -> Vec<(u32, Option<u32>)> {
        found.iter().map(|found| (found.ident.pid, found.rank.map(|rank| rank.0))).collect()
    }

    #[test]
    fn sessions_trees_marks_and_groups_are_all_nets() {
        let marked =
            b"RANKDECK_RUN=r\0RANKDECK_RUN_DIR=/w/runs/r\0RANKDECK_NODE=1\0RANKDECK_RANK=3\0".to_vec();
        let processes = [
            process(10, 1, 10, 1),  // the agent
            process(11, 10, 11, 2), // its guard
            process(20, 10, 20, 5), // the rank
            process(21, 20, 20, 6), // its child
            process(22, 21, 22, 7), // grandchild with a session of its own
            process(23, 1, 20, 8),  // left the tree, kept the session
            process(24, 10, 24, 9), // daemon, adopted by the agent
            process(25, 1, 25, 9),  // left both, kept the mark
            process(26, 25, 26, 9), // its child without the mark
            process(27, 1, 27, 9),  // left all of it, but not the control group
            process(28, 27, 28, 9), // its child
            process(99, 1, 99, 3),  // a stranger
        ];
        let inside = BTreeSet::from([27]);
        let found = choose(&scope(), &processes, &inside, |pid| (pid == 25).then(|| marked.clone()));
        let three = Some(3);
        assert_eq!(
            pids(&found),
            [
                (20, three),
                (21, three),
                (22, three),
                (23, three),
                (24, None),
                (25, three),
                (26, three),
                (27, None),
                (28, None)
            ]
        );
    }

    #[test]
    fn a_reused_leader_number_makes_the_session_a_strangers() {
        let processes = [process(20, 1, 20, 77), process(21, 20, 20, 78)];
        assert_eq!(choose(&scope(), &processes, &BTreeSet::new(), nothing), []);
    }

    #[test]
    fn sweep_2_zombies_are_no_survivors_but_their_children_are() {
        let mut dead = process(20, 10, 20, 5);
        dead.state = 'Z';
        let found = choose(&scope(), &[dead, process(21, 20, 99, 6)], &BTreeSet::new(), nothing);
        assert_eq!(pids(&found), [(21, Some(3))]);
    }

    #[test]
    fn sweep_3_a_mark_must_agree_in_everything() {
        let mark = scope().mark.unwrap();
        assert!(mark.is_in(b"RANKDECK_RUN=r\0RANKDECK_RUN_DIR=/w/runs/r\0RANKDECK_NODE=1\0"));
        assert!(!mark.is_in(b"RANKDECK_RUN=r\0RANKDECK_RUN_DIR=/w/runs/r\0RANKDECK_NODE=0\0"));
        assert!(!mark.is_in(b"RANKDECK_RUN=r\0RANKDECK_RUN_DIR=/other/runs/r\0RANKDECK_NODE=1\0"));
        assert!(!mark.is_in(b"RANKDECK_RUN=r2\0RANKDECK_RUN_DIR=/w/runs/r\0RANKDECK_NODE=1\0"));
        let mine = Mark { agent: Some("7-8".into()), ..mark };
        assert!(
            !mine.is_in(b"RANKDECK_RUN=r\0RANKDECK_RUN_DIR=/w/runs/r\0RANKDECK_NODE=1\0RANKDECK_AGENT=7-9\0")
        );
    }
}
