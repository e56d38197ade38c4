//! Scans for every process of a run and verifies that none is left.
//!
//! Owner: the agent, its guard and `agent sweep`. Four nets, because each has a hole: the session of each
//! rank (left by `setsid`), the tree below the agent (a dead agent has none), the tag in the environment (a
//! program may clear it), the control group (not every user may make one). All descendants of a found process
//! belong to the run, too.
//! Invariants:
//! - "nothing left" needs two empty scans in a row, since processes fork while `/proc`
//!   is read.
//! - SWEEP-2: a zombie does not count as a survivor; its parent reaps it.
//! - SWEEP-3: a process of another run is never touched: run, run directory and node of a tag must all
//!   agree, and the name of a control group is made of the same.
//! - SCAN-1: a shared scan starts after each of its users requested it: "nothing is left" never comes from
//!   an older scan.

use crate::open_files::patiently;
use crate::proc::{self, ProcessKey};
use crate::supervise::cgroup::Cgroup;
use crate::supervise::groups;
use rankdeck_proto::message::Survivor;
use rankdeck_types::ids::{NodeRank, Rank, RunId};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Tag in the environment of every process of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunTag {
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

impl RunTag {
    /// The environment `environ` carries this tag.
    pub fn is_in(&self, environ: &[u8]) -> bool {
        let carries = |name: &str, value: &[u8]| proc::variable(environ, name) == Some(value);
        carries("RANKDECK_RUN", self.run.0.as_bytes())
            && carries("RANKDECK_NODE", self.node.to_string().as_bytes())
            && carries("RANKDECK_RUN_DIR", self.run_dir.as_os_str().as_encoded_bytes())
            && self.agent.as_ref().is_none_or(|agent| carries("RANKDECK_AGENT", agent.as_bytes()))
            && self.rank.is_none_or(|rank| carries("RANKDECK_RANK", rank.to_string().as_bytes()))
    }
}

/// Which processes to find.
#[derive(Debug, Clone)]
pub(crate) struct ScanScope {
    /// The tag; `None` uses sessions and trees only.
    pub mark: Option<RunTag>,
    /// Session leaders (the ranks) and the rank of each session.
    pub sessions: BTreeMap<ProcessKey, Option<Rank>>,
    /// Everything below this process belongs to the run.
    pub below: Option<u32>,
    /// Processes that were seen to belong to the run.
    pub members: BTreeSet<ProcessKey>,
    /// Everything inside these belongs to the run.
    pub groups: Vec<Cgroup>,
    /// Never touched: the agent, its guard, helpers, and the process that scans.
    pub spared: BTreeSet<u32>,
}

impl ScanScope {
    /// Everything that carries `mark`.
    pub fn marked(mark: RunTag) -> ScanScope {
        ScanScope {
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
pub(crate) struct FoundProcess {
    /// The process.
    pub ident: ProcessKey,
    /// The rank whose tree it belongs to, when known.
    pub rank: Option<Rank>,
    pub session: u32,
    /// Its state from the kernel.
    pub stat: proc::ProcStat,
}

impl FoundProcess {
    /// Returns it as reports show it.
    pub fn survivor(&self) -> Survivor {
        Survivor {
            pid: self.ident.pid,
            rank: self.rank,
            state: self.stat.state,
            command: proc::command(&self.stat),
        }
    }
}

/// Scans once.
pub(crate) fn find(scope: &ScanScope) -> Vec<FoundProcess> {
    choose(scope, &all(), &inside(scope), environ)
}

/// FILES-4. All processes that this user can see.
fn all() -> Vec<proc::ProcStat> {
    let Ok(folder) = patiently(|| std::fs::read_dir("/proc")) else { return Vec::new() };
    let pids = folder.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let stat = |pid| proc::parse_stat(&patiently(|| proc::read(format!("/proc/{pid}/stat"))).ok()?);
    pids.filter_map(stat).collect()
}

/// FILES-4.
fn environ(pid: u32) -> Option<Vec<u8>> {
    patiently(|| proc::read_environ(pid)).ok()
}

/// Every process at one moment, for queries about many runs.
pub(crate) struct ProcessScan {
    all: Vec<proc::ProcStat>,
    /// Environments of those that belong to a run, whichever it is.
    marked: BTreeMap<u32, Vec<u8>>,
}

impl ProcessScan {
    /// Reads `/proc`, each environment once.
    pub fn scan() -> ProcessScan {
        let all = all();
        let marked = all.iter().filter(|process| !process.is_gone()).filter_map(|process| {
            let environ = environ(process.pid)?;
            proc::variable(&environ, "RANKDECK_RUN").is_some().then_some((process.pid, environ))
        });
        ProcessScan { marked: marked.collect(), all }
    }

    /// Every process.
    pub fn stats(&self) -> &[proc::ProcStat] {
        &self.all
    }

    /// Those whose environments name a run, with these.
    pub fn marked(&self) -> &BTreeMap<u32, Vec<u8>> {
        &self.marked
    }

    /// Those in scope.
    pub fn find(&self, scope: &ScanScope) -> Vec<FoundProcess> {
        choose(scope, &self.all, &inside(scope), |pid| self.marked.get(&pid))
    }
}

fn inside(scope: &ScanScope) -> BTreeSet<u32> {
    scope.groups.iter().flat_map(Cgroup::pids).collect()
}

fn choose<E: AsRef<[u8]>>(
    scope: &ScanScope,
    processes: &[proc::ProcStat],
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
        let ident = ProcessKey { pid: process.pid, start: process.start };
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
            let ident = ProcessKey { pid: process.pid, start: process.start };
            Some(FoundProcess { ident, rank, session: process.session, stat: process.clone() })
        })
        .collect()
}

/// Sends a signal that a stopped process acts on, too.
pub(crate) fn deliver(ident: ProcessKey, signal: i32) -> bool {
    let sent = groups::signal(ident.pid, ident.start, signal);
    if sent && signal != libc::SIGKILL {
        groups::signal(ident.pid, ident.start, libc::SIGCONT);
    }
    sent
}

/// Ends everything in scope, scanning with `find` each time: SIGTERM for `polite`, then SIGKILL again
/// and again until nothing is left or `within` is over. Blocks.
pub(crate) fn kill_all(
    scope: &ScanScope,
    find: impl Fn(&ScanScope) -> Vec<FoundProcess>,
    polite: Duration,
    within: Duration,
) -> Vec<Survivor> {
    let begun = Instant::now();
    let mut empty_scans = 0;
    let mut asked: BTreeSet<ProcessKey> = BTreeSet::new();
    loop {
        let found = find(scope);
        if found.is_empty() {
            empty_scans += 1;
            if empty_scans >= 2 {
                return Vec::new();
            }
            std::thread::sleep(Duration::from_millis(10));
            continue;
        }
        empty_scans = 0;
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

/// A process scan that several threads share: when a generation ends, each of its ranks is scanned for at the
/// same moment, and a scan reads every environment of the host.
#[derive(Clone, Default)]
pub(crate) struct SharedProcessScan(Arc<(Mutex<ScanState>, Condvar)>);

#[derive(Default)]
struct ScanState {
    /// Number of scans that have started.
    begun: u64,
    /// The last of them is under way.
    scanning: bool,
    /// Threads that wait for a scan.
    waiting: usize,
    /// The last finished scan and its number, while a thread waits.
    last: Option<(u64, Arc<ProcessScan>)>,
}

impl SharedProcessScan {
    /// Returns the processes in scope of a scan that starts now. Blocks.
    pub fn find(&self, scope: &ScanScope) -> Vec<FoundProcess> {
        self.scan(ProcessScan::scan).find(scope)
    }

    fn scan(&self, read: impl Fn() -> ProcessScan) -> Arc<ProcessScan> {
        let (_, changed) = &*self.0;
        let mut state = self.lock();
        let number_needed = state.begun + 1;
        state.waiting += 1;
        let processes = loop {
            if let Some((_, last)) = state.last.as_ref().filter(|(number, _)| *number >= number_needed) {
                break Arc::clone(last);
            }
            if state.scanning {
                state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.scanning = true;
            state.begun += 1;
            drop(state);
            let processes = Arc::new(read());
            state = self.lock();
            state.scanning = false;
            state.last = Some((state.begun, processes));
            changed.notify_all();
        };
        state.waiting -= 1;
        if state.waiting == 0 {
            state.last = None;
        }
        processes
    }

    fn lock(&self) -> MutexGuard<'_, ScanState> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts running scans. They find processes by tags that the next generation's ranks carry as well, so a stop
/// is verified only when none is running.
#[derive(Clone, Default)]
pub(crate) struct ScanCount(Arc<(Mutex<usize>, Condvar)>);

/// One of them, until it is dropped.
pub(crate) struct CountedScan(ScanCount);

impl ScanCount {
    /// To be called before its thread starts: the thread may take a while to.
    pub fn start(&self) -> CountedScan {
        self.change(|count| *count += 1);
        CountedScan(self.clone())
    }

    /// Blocks while there is any.
    pub fn wait(&self) {
        let (count, ended) = &*self.0;
        let count = count.lock().unwrap_or_else(PoisonError::into_inner);
        drop(ended.wait_while(count, |count| *count > 0));
    }

    fn change(&self, how: impl FnOnce(&mut usize)) {
        let (count, changed) = &*self.0;
        how(&mut count.lock().unwrap_or_else(PoisonError::into_inner));
        changed.notify_all();
    }
}

impl Drop for CountedScan {
    fn drop(&mut self) {
        self.0.change(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    fn process(pid: u32, ppid: u32, session: u32, start: u64) -> proc::ProcStat {
        proc::ProcStat {
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

    fn scope() -> ScanScope {
        ScanScope {
            mark: Some(RunTag {
                run: RunId("r".into()),
                run_dir: "/w/runs/r".into(),
                node: NodeRank(1),
                agent: None,
                rank: None,
            }),
            sessions: BTreeMap::from([(ProcessKey { pid: 20, start: 5 }, Some(Rank(3)))]),
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
    fn reused_leader_pid_makes_the_session_foreign() {
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
    fn sweep_3_mark_must_agree_in_everything() {
        let mark = scope().mark.unwrap();
        assert!(mark.is_in(b"RANKDECK_RUN=r\0RANKDECK_RUN_DIR=/w/runs/r\0RANKDECK_NODE=1\0"));
        assert!(!mark.is_in(b"RANKDECK_RUN=r\0RANKDECK_RUN_DIR=/w/runs/r\0RANKDECK_NODE=0\0"));
        assert!(!mark.is_in(b"RANKDECK_RUN=r\0RANKDECK_RUN_DIR=/other/runs/r\0RANKDECK_NODE=1\0"));
        assert!(!mark.is_in(b"RANKDECK_RUN=r2\0RANKDECK_RUN_DIR=/w/runs/r\0RANKDECK_NODE=1\0"));
        let mine = RunTag { agent: Some("7-8".into()), ..mark };
        assert!(
            !mine.is_in(b"RANKDECK_RUN=r\0RANKDECK_RUN_DIR=/w/runs/r\0RANKDECK_NODE=1\0RANKDECK_AGENT=7-9\0")
        );
    }

    #[test]
    fn scan_1_shared_scan_starts_after_all_requests() {
        let scans = SharedProcessScan::default();
        let (begun, begins) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel();
        let goes_on = Arc::new(Mutex::new(goes_on));
        let ask = || {
            let (scans, begun, goes_on) = (scans.clone(), begun.clone(), goes_on.clone());
            thread::spawn(move || {
                scans.scan(|| {
                    begun.send(()).unwrap();
                    goes_on.lock().unwrap().recv().unwrap();
                    ProcessScan::scan()
                })
            })
        };
        let first = ask();
        begins.recv_timeout(Duration::from_secs(10)).unwrap();
        let others: Vec<_> = (0..7).map(|_| ask()).collect();
        let deadline = Instant::now() + Duration::from_secs(10);
        while scans.lock().waiting < 8 {
            assert!(Instant::now() < deadline, "all have asked");
            thread::yield_now();
        }
        go_on.send(()).unwrap();
        begins.recv_timeout(Duration::from_secs(10)).expect("the others need a scan of their own");
        go_on.send(()).unwrap();
        let first = first.join().unwrap();
        let others: Vec<_> = others.into_iter().map(|other| other.join().unwrap()).collect();
        assert!(others.iter().all(|other| Arc::ptr_eq(other, &others[0]) && !Arc::ptr_eq(other, &first)));
        assert!(begins.try_recv().is_err(), "two scans are enough");
        assert!(scans.lock().last.is_none(), "nothing is kept");
    }

    #[test]
    fn wait_ends_when_no_scan_is_running() {
        let scans = ScanCount::default();
        scans.wait();
        let (first, second) = (scans.start(), scans.start());
        let (done, waited) = mpsc::channel();
        let other = scans.clone();
        let waiting = thread::spawn(move || {
            other.wait();
            done.send(()).unwrap();
        });
        drop(first);
        assert!(waited.recv_timeout(Duration::from_millis(50)).is_err(), "one is under way");
        thread::spawn(move || drop(second)).join().unwrap();
        waited.recv_timeout(Duration::from_secs(10)).unwrap();
        waiting.join().unwrap();
    }
}
