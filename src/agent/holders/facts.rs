//! Reasons for a process to exist: its parent, its session, a login, a Slurm job; and the runs of this host with
//! what leads to their processes.

use super::decide::{Facts, Trail};
use crate::entries;
use crate::examine::program;
use crate::manifest::Manifest;
use crate::paths::RunPaths;
use crate::proc::{self, ProcStat, ProcessKey};
use crate::supervise::cgroup::{self, Cgroup};
use crate::supervise::leftovers::Leftovers;
use crate::supervise::process_scan::ProcessScan;
use rankdeck_proto::trust;
use rankdeck_types::ids::{NodeRank, RunId};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time limit for Slurm's reply about the state of a job.
const SLURM: Duration = Duration::from_secs(10);
/// States of jobs whose processes may run.
const RUNNING: [&str; 7] =
    ["CONFIGURING", "RESIZING", "RUNNING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"];

/// The processes of this host at one moment.
pub(super) struct Host {
    pub stats: BTreeMap<u32, ProcStat>,
    trails: Vec<Trail>,
    /// This process and those that have led to it.
    asking: BTreeSet<u32>,
    /// Those that have led to a process with a terminal.
    above_terminals: BTreeSet<u32>,
    slurm_jobs: RefCell<BTreeMap<String, bool>>,
}

impl Host {
    /// Reads `/proc`, and the runs of this host: those in `workdir`, and those that processes name.
    pub fn scan(workdir: &Path) -> Host {
        let nodes = entries::nodes(workdir, None).0;
        let groups = cgroup::all();
        // Agents before processes: what is there after its agent is gone is left over.
        let served = served();
        let known: Vec<_> = nodes.into_iter().map(|node| KnownNode::new(node, &groups)).collect();
        let processes = ProcessScan::scan();
        let stats = processes.stats().iter().map(|stat| (stat.pid, stat.clone())).collect();
        let trails = trails(known, &processes, &groups, &served);
        let mut host = Host {
            stats,
            trails,
            asking: proc::ancestors(std::process::id()).collect(),
            above_terminals: BTreeSet::new(),
            slurm_jobs: RefCell::default(),
        };
        let with_terminal = host.stats.values().filter(|stat| host.has_terminal(stat));
        host.above_terminals = with_terminal.flat_map(|stat| proc::ancestors(stat.ppid)).collect();
        host
    }

    /// Which processes belong to which run.
    pub fn claims(&self) -> BTreeMap<u32, super::decide::Claim> {
        let all: Vec<ProcStat> = self.stats.values().cloned().collect();
        super::decide::claims(&all, &self.trails)
    }

    /// What is known of a process, but for its claim and its GPUs.
    pub fn facts(&self, stat: &ProcStat) -> Facts {
        let uid = owner(stat.pid);
        if uid != Some(trust::own_uid()) {
            let user = uid.map_or_else(|| "a user not visible on this host".to_owned(), trust::user_name);
            return Facts { other_user: Some(user), ..Facts::default() };
        }
        let terminal = self.has_terminal(stat);
        let mut facts = Facts {
            serves: self.asking.contains(&stat.pid) || is_rankdeck(stat.pid),
            parent: self.parent(stat),
            terminal,
            serves_terminal: self.above_terminals.contains(&stat.pid),
            login: self.session(stat),
            ..Facts::default()
        };
        // Slurm and the logins are asked only where nothing else accounts for the process.
        if facts.parent.is_none() && !terminal && facts.login.is_none() {
            facts.login = self.login(stat);
            facts.slurm_job = job_of(stat.pid).filter(|job| self.job_lives(job));
        }
        facts
    }

    /// A controlling terminal, and a leader of the session who lives.
    fn has_terminal(&self, stat: &ProcStat) -> bool {
        !stat.is_gone() && self.lives(stat.session) && proc::has_terminal(stat.pid)
    }

    fn lives(&self, pid: u32) -> bool {
        self.stats.get(&pid).is_some_and(|stat| !stat.is_gone())
    }

    /// The living parent. The first process of this host, or of its container, adopts processes whose parent has exited.
    fn parent(&self, stat: &ProcStat) -> Option<(u32, String)> {
        match stat.ppid {
            0 => Some((0, "not visible on this host".into())),
            1 => None,
            ppid => self
                .stats
                .get(&ppid)
                .filter(|parent| !parent.is_gone())
                .map(|parent| (ppid, parent.comm.clone())),
        }
    }

    /// The leader of its session, which lives.
    fn session(&self, stat: &ProcStat) -> Option<String> {
        if stat.session == 0 {
            return Some("its session leader is not visible on this host".into());
        }
        let leader = self
            .stats
            .get(&stat.session)
            .filter(|leader| leader.pid != stat.pid && !leader.is_gone() && leader.start <= stat.start)?;
        Some(format!("the leader of its session is alive: {} (pid {})", leader.comm, leader.pid))
    }

    /// A login that is still open: of systemd, else by the kernel's audit session.
    fn login(&self, stat: &ProcStat) -> Option<String> {
        let groups = proc::text(format!("/proc/{}/cgroup", stat.pid)).unwrap_or_default();
        if let Some(session) = login_scope(&groups) {
            let facts = proc::text(format!("/run/systemd/sessions/{session}")).unwrap_or_default();
            let leader = facts.lines().find_map(|line| line.strip_prefix("LEADER=")?.trim().parse().ok());
            if leader.is_some_and(|leader| self.lives(leader)) {
                return Some(format!("login session {session} is open"));
            }
        }
        let session = audit_session(stat.pid)?;
        let keeps_open = |other: &&ProcStat| {
            other.pid != stat.pid
                && !other.is_gone()
                && audit_session(other.pid) == Some(session)
                && (other.comm.starts_with("sshd") || other.comm == "login" || proc::has_terminal(other.pid))
        };
        let open = self.stats.values().find(keeps_open)?;
        Some(format!("its login is open: {} (pid {})", open.comm, open.pid))
    }

    /// Whether a Slurm job has not ended; `true` if that cannot be determined.
    fn job_lives(&self, job: &str) -> bool {
        if let Some(known) = self.slurm_jobs.borrow().get(job) {
            return *known;
        }
        let step = format!("[{job}.");
        let has_step = |stat: &ProcStat| {
            stat.comm.starts_with("slurmstepd") && !stat.is_gone() && proc::command(stat).contains(&step)
        };
        let lives = self.stats.values().any(has_step) || {
            let mut squeue = Command::new("squeue");
            squeue.args(["--noheader", "--format=%T", "--jobs", job]);
            match program::output(&mut squeue, SLURM) {
                Ok((text, errors)) => job_state(&text, &errors),
                // Without Slurm's commands: each job has its steps' daemon, where processes of root are shown.
                Err(_) => !self.stats.contains_key(&1),
            }
        };
        self.slurm_jobs.borrow_mut().insert(job.to_owned(), lives);
        lives
    }
}

/// Whether a job may have processes, by what `squeue` prints about it.
fn job_state(states: &str, errors: &str) -> bool {
    if errors.contains("Invalid job id") {
        return false;
    }
    let mut states = states.split_whitespace().peekable();
    if states.peek().is_none() {
        return !errors.trim().is_empty();
    }
    states.any(|state| RUNNING.contains(&state))
}

/// A node of a run in `workdir`, before the processes are read.
struct KnownNode {
    paths: RunPaths,
    trail: Trail,
}

impl KnownNode {
    fn new((paths, manifest): (RunPaths, Manifest), groups: &[Cgroup]) -> KnownNode {
        let agent = manifest.agent();
        let leftovers = Leftovers::find(&paths, Some(&manifest), groups);
        let mut journal = leftovers.members().clone();
        let ranks = if manifest.is_of_this_boot() { manifest.ranks.as_slice() } else { &[] };
        journal.extend(ranks.iter().map(|rank| ProcessKey { pid: rank.pid, start: rank.start }));
        let trail = Trail {
            run: Some(manifest.run.clone()),
            has_agent: agent.is_some(),
            inside: leftovers.groups.iter().flat_map(Cgroup::pids).collect(),
            journal,
            tagged: BTreeSet::new(),
            agents: agent.map(|agent| agent.pid).into_iter().collect(),
        };
        KnownNode { paths, trail }
    }

    /// A node that a tag names.
    fn of_tag(run: String, run_dir: PathBuf, node: NodeRank, groups: &[Cgroup]) -> KnownNode {
        let paths = RunPaths { run_dir, node };
        // A manifest of another user could name any process.
        let places = [paths.run_dir.clone(), paths.node_dir(), paths.manifest()];
        let is_ours = places.iter().all(|path| trust::other_owner(path).is_none());
        let manifest = Manifest::load(&paths.manifest())
            .filter(|found| is_ours && found.is_of_this_machine() && found.run == run);
        let manifest = manifest.unwrap_or_else(|| Manifest { run, ..Manifest::default() });
        KnownNode::new((paths, manifest), groups)
    }
}

/// What leads to the processes of each run. `served`: runs whose agents live, wherever their directories are.
fn trails(
    mut nodes: Vec<KnownNode>,
    processes: &ProcessScan,
    groups: &[Cgroup],
    served: &BTreeSet<String>,
) -> Vec<Trail> {
    let mut tags: BTreeMap<(String, PathBuf, u32), (BTreeSet<u32>, bool)> = BTreeMap::new();
    for (pid, environ) in processes.marked() {
        let text = |name| Some(String::from_utf8_lossy(proc::variable(environ, name)?).into_owned());
        let node = text("RANKDECK_NODE").and_then(|node| node.parse().ok());
        let (Some(run), Some(folder), Some(node)) = (text("RANKDECK_RUN"), text("RANKDECK_RUN_DIR"), node)
        else {
            continue;
        };
        // A tag that names a living agent is that one's business, wherever its run's directory is.
        let agent = text("RANKDECK_AGENT").as_deref().and_then(key).is_some_and(is_alive);
        let (tagged, has_agent) = tags.entry((run, folder.into(), node)).or_default();
        tagged.insert(*pid);
        *has_agent |= agent;
    }
    for ((run, run_dir, node), (tagged, has_agent)) in tags {
        let is_same = |known: &KnownNode| {
            known.paths.node.0 == node
                && known.trail.run.as_ref() == Some(&run)
                && known.paths.run_dir == run_dir
        };
        let at = nodes.iter().position(is_same).unwrap_or(nodes.len());
        if at == nodes.len() {
            nodes.push(KnownNode::of_tag(run, run_dir, NodeRank(node), groups));
        }
        let Some(KnownNode { trail, .. }) = nodes.get_mut(at) else { continue };
        trail.tagged.extend(tagged);
        trail.has_agent |= has_agent;
    }
    // Control groups of runs that nothing else names.
    let unknown = groups.iter().filter(|group| !nodes.iter().any(|node| group.is_of(&node.paths)));
    let unknown: Vec<Trail> = unknown
        .map(|group| Trail {
            inside: group.pids().into_iter().collect(),
            // Another agent of the node may serve it now.
            has_agent: groups
                .iter()
                .filter(|other| other.stem() == group.stem())
                .any(|other| other.agent().is_none_or(is_alive)),
            ..Trail::default()
        })
        .collect();
    let is_served = |trail: &Trail| trail.run.as_ref().is_some_and(|run| served.contains(run));
    let trails = nodes.into_iter().map(|node| node.trail).chain(unknown);
    trails.map(|trail| Trail { has_agent: trail.has_agent || is_served(&trail), ..trail }).collect()
}

fn key(text: &str) -> Option<ProcessKey> {
    let (pid, start) = text.split_once('-')?;
    Some(ProcessKey { pid: pid.parse().ok()?, start: start.parse().ok()? })
}

fn is_alive(key: ProcessKey) -> bool {
    proc::stat(key.pid).is_some_and(|stat| stat.start == key.start && !stat.is_gone())
}

/// Runs that an agent or a guard of this user serves.
fn served() -> BTreeSet<String> {
    let of = |stat: ProcStat| {
        let arguments = proc::arguments(stat.pid);
        let run = arguments.iter().position(|word| word == "--run").and_then(|at| arguments.get(at + 1))?;
        let serves = !stat.is_gone()
            && owner(stat.pid) == Some(trust::own_uid())
            && entries::serves(&RunId(run.clone()), &arguments);
        serves.then(|| run.clone())
    };
    proc::all().into_iter().filter_map(of).collect()
}

/// An agent, a guard, or a command of a console.
fn is_rankdeck(pid: u32) -> bool {
    let arguments = proc::arguments(pid);
    let program = arguments.first().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    program.starts_with("rankdeck") && arguments.get(1).is_some_and(|word| word == "agent")
}

/// The user of a process. Of one that hides itself from its own user, that is root.
pub(super) fn owner(pid: u32) -> Option<u32> {
    std::fs::metadata(format!("/proc/{pid}")).ok().map(|facts| facts.uid())
}

/// The kernel's audit session, if a login has set one.
fn audit_session(pid: u32) -> Option<u32> {
    proc::text(format!("/proc/{pid}/sessionid"))?.trim().parse().ok().filter(|id| *id != 0 && *id != u32::MAX)
}

/// `42` of a control group `.../session-42.scope`.
fn login_scope(groups: &str) -> Option<&str> {
    groups.split(['/', '\n']).find_map(|name| {
        let id = name.strip_prefix("session-")?.strip_suffix(".scope")?;
        (!id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric())).then_some(id)
    })
}

/// The Slurm job of a process: by its control group, else by its environment.
fn job_of(pid: u32) -> Option<String> {
    let groups = proc::text(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let environ = proc::environ(pid).unwrap_or_default();
    let named =
        || proc::variable(&environ, "SLURM_JOB_ID").map(|id| String::from_utf8_lossy(id).into_owned());
    let id = job_group(&groups).map(str::to_owned).or_else(named)?;
    (!id.is_empty() && id.len() < 16 && id.bytes().all(|byte| byte.is_ascii_digit())).then_some(id)
}

fn job_group(groups: &str) -> Option<&str> {
    groups
        .lines()
        .filter(|line| line.contains("slurm"))
        .flat_map(|line| line.split('/'))
        .find_map(|name| name.strip_prefix("job_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_and_job_are_read_from_control_groups() {
        assert_eq!(login_scope("0::/user.slice/user-1000.slice/session-42.scope\n"), Some("42"));
        assert_eq!(login_scope("1:name=systemd:/user.slice/session-c3.scope\n0::/"), Some("c3"));
        assert_eq!(login_scope("0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope"), None);
        assert_eq!(job_group("9:memory:/slurm/uid_1000/job_123/step_0/task_0\n"), Some("123"));
        assert_eq!(job_group("0::/system.slice/slurmstepd.scope/job_7/step_batch/user/task_0"), Some("7"));
        assert_eq!(job_group("0::/user.slice/job_7"), None);
    }

    #[test]
    fn slurm_job_that_cannot_be_asked_counts_as_alive() {
        let errors = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n";
        for (states, errors, lives) in [
            ("RUNNING\n", "", true),
            ("COMPLETING\n", "", false),
            ("PENDING\n", "", false),
            ("", "", false),
            ("", "slurm_load_jobs error: Invalid job id specified\n", false),
            ("", errors, true),
        ] {
            assert_eq!(job_state(states, errors), lives, "{states:?} {errors:?}");
        }
    }

    #[test]
    fn this_process_has_a_parent_and_is_part_of_rankdeck() {
        let folder = tempfile::tempdir().unwrap();
        let host = Host::scan(folder.path());
        let own = proc::stat(std::process::id()).unwrap();
        let facts = host.facts(&own);
        assert!(facts.serves && facts.other_user.is_none() && facts.claim.is_none(), "{facts:?}");
    }
}
