//! Reasons for a process to exist: its parent, its session, a login, a Slurm job; and the runs of this host with
//! what leads to their processes. And what a process holds: GPUs by the driver and by its open devices, files in
//! `/dev/shm`.

use super::{Facts, Trail};
use crate::entries;
use crate::examine::{self, program};
use crate::manifest::Manifest;
use crate::observe::nvml::{self, Shares};
use crate::paths::RunPaths;
use crate::proc::{self, ProcStat, ProcessKey};
use crate::supervise::cgroup::{self, Cgroup};
use crate::supervise::leftovers::Leftovers;
use crate::supervise::process_scan::ProcessScan;
use rankdeck_proto::holders::GpuShare;
use rankdeck_proto::message::GpuSample;
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
pub(super) struct ProcessTable {
    pub stats: BTreeMap<u32, ProcStat>,
    trails: Vec<Trail>,
    /// This process and those that have led to it.
    asking: BTreeSet<u32>,
    /// Those that have led to a process with a terminal.
    above_terminals: BTreeSet<u32>,
    slurm_jobs: RefCell<BTreeMap<String, bool>>,
}

impl ProcessTable {
    /// Reads `/proc`, and the runs of this host: those in `workdir`, and those that processes name.
    pub fn scan(workdir: &Path) -> ProcessTable {
        let nodes = entries::nodes(workdir, None).0;
        let groups = cgroup::all();
        // Agents before processes: what is there after its agent is gone is left over.
        let served = served();
        let known: Vec<_> = nodes.into_iter().map(|node| KnownNode::new(node, &groups)).collect();
        let processes = ProcessScan::scan();
        let stats = processes.stats().iter().map(|stat| (stat.pid, stat.clone())).collect();
        let trails = trails(known, &processes, &groups, &served);
        let mut host = ProcessTable {
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
    pub fn claims(&self) -> BTreeMap<u32, super::Claim> {
        let all: Vec<ProcStat> = self.stats.values().cloned().collect();
        super::claims(&all, &self.trails)
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

/// How long the driver may take.
const DRIVER: Duration = Duration::from_secs(10);
/// Most descriptors of a process that are read.
const DESCRIPTORS: usize = 65_536;
/// The driver's own device, which is there wherever its GPUs are.
const CONTROL: &str = "/dev/nvidiactl";
const SHM: &str = "/dev/shm/";

/// What each process uses of which GPU, by the driver; empty without one, or where it does not respond.
pub(super) fn gpu_shares() -> BTreeMap<u32, Vec<GpuShare>> {
    let sampled = examine::bounded(DRIVER, || {
        nvml::load().map(|nvml| nvml::sample(&nvml, &mut Shares::default())).unwrap_or_default()
    });
    by_process(&sampled.wait().unwrap_or_default())
}

fn by_process(gpus: &[GpuSample]) -> BTreeMap<u32, Vec<GpuShare>> {
    let mut found: BTreeMap<u32, Vec<GpuShare>> = BTreeMap::new();
    for gpu in gpus {
        for (pid, memory) in &gpu.processes {
            let percent = gpu.shares.iter().find(|(of, _)| of == pid).map(|(_, percent)| *percent);
            let shares = found.entry(*pid).or_default();
            // Compute and graphics, or two instances of one GPU.
            match shares.iter_mut().find(|share| share.index == gpu.index) {
                Some(share) => share.memory = share.memory.max(*memory),
                None => shares.push(GpuShare { index: gpu.index, memory: *memory, percent }),
            }
        }
    }
    found
}

/// What a process of this user has open.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OpenFiles {
    /// GPUs by their devices.
    pub gpus: BTreeSet<u32>,
    /// It has a device of the driver open; `None` if that cannot be read.
    pub driver: Option<bool>,
    pub shm_bytes: u64,
    pub shm_files: u32,
}

/// Reads descriptors and mappings of a process.
pub(super) fn open_files(pid: u32) -> OpenFiles {
    let Ok(folder) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return OpenFiles::default() };
    let links: Vec<(PathBuf, PathBuf)> = folder
        .flatten()
        .take(DESCRIPTORS)
        .filter_map(|entry| Some((std::fs::read_link(entry.path()).ok()?, entry.path())))
        .collect();
    let mut found = OpenFiles::default();
    let devices = || links.iter().filter_map(|(target, _)| target.to_str()?.strip_prefix("/dev/nvidia"));
    found.driver = Some(devices().next().is_some());
    found.gpus = devices().filter_map(|number| number.parse().ok()).collect();
    // A file that is mapped twice or has several descriptors takes its memory once.
    let mut files: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for (_, descriptor) in links.iter().filter(|(target, _)| target.starts_with(SHM)) {
        if let Ok(facts) = std::fs::metadata(descriptor) {
            files.insert((facts.dev(), facts.ino()), facts.blocks() * 512);
        }
    }
    let maps = proc::text(format!("/proc/{pid}/maps")).unwrap_or_default();
    for (range, device, inode, bytes) in maps.lines().filter_map(shared_mapping) {
        // The file may have been removed since: then only the mapping leads to it.
        let size = std::fs::metadata(format!("/proc/{pid}/map_files/{range}"))
            .map_or(bytes, |facts| facts.blocks() * 512);
        let known = files.entry((device, inode)).or_default();
        *known = (*known).max(size);
    }
    found.shm_files = files.len() as u32;
    found.shm_bytes = files.values().fold(0, |sum, bytes| sum.saturating_add(*bytes));
    found
}

/// Range, device, inode and bytes of a line of `maps` about a file in `/dev/shm`.
fn shared_mapping(line: &str) -> Option<(&str, u64, u64, u64)> {
    let mut fields = line.split_ascii_whitespace();
    let range = fields.next()?;
    let (device, inode) = (fields.nth(2)?, fields.next()?.parse().ok()?);
    fields.next()?.starts_with(SHM).then_some(())?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (from, to) = range.split_once('-')?;
    let (major, minor) = device.split_once(':')?;
    let device = rustix::fs::makedev(hex(major)? as u32, hex(minor)? as u32);
    Some((range, device, inode, hex(to)?.saturating_sub(hex(from)?)))
}

/// What a process of this user uses, by the driver and by its open files. In a container the driver's pids are
/// those of the host: what has none of its devices open is not the process that it means.
pub(super) fn combine(by_driver: Vec<GpuShare>, files: &OpenFiles) -> Vec<GpuShare> {
    let is_other = files.driver == Some(false) && Path::new(CONTROL).exists();
    let mut shares = if is_other { Vec::new() } else { by_driver };
    if shares.is_empty() {
        shares.extend(files.gpus.iter().map(|index| GpuShare { index: *index, ..GpuShare::default() }));
    }
    shares
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
        let host = ProcessTable::scan(folder.path());
        let own = proc::stat(std::process::id()).unwrap();
        let facts = host.facts(&own);
        assert!(facts.serves && facts.other_user.is_none() && facts.claim.is_none(), "{facts:?}");
    }

    #[test]
    fn shares_of_a_process_are_added_up_by_gpu() {
        let gpu = |index, processes: &[(u32, u64)]| GpuSample {
            index,
            processes: processes.to_vec(),
            shares: vec![(7, 40)],
            ..GpuSample::default()
        };
        let found = by_process(&[gpu(0, &[(7, 10), (7, 30), (8, 1)]), gpu(1, &[(7, 5)])]);
        assert_eq!(
            found[&7].iter().map(|share| (share.index, share.memory)).collect::<Vec<_>>(),
            [(0, 30), (1, 5)]
        );
        assert_eq!((found[&7][0].percent, found[&8][0].percent), (Some(40), None));
    }

    #[test]
    fn shared_memory_of_a_process_is_seen_once() {
        let name = format!("/dev/shm/rankdeck-test-{}", std::process::id());
        let Ok(()) = std::fs::write(&name, vec![1; 1 << 20]) else {
            return rankdeck_testkit::skipped("no /dev/shm that this user can write");
        };
        let file = std::fs::File::open(&name).unwrap();
        let second = std::fs::File::open(&name).unwrap();
        let before = open_files(std::process::id());
        std::fs::remove_file(&name).unwrap();
        let removed = open_files(std::process::id());
        drop((file, second));
        assert!(before.shm_files >= 1 && before.shm_bytes >= 1 << 20, "{before:?}");
        assert_eq!((removed.shm_files, removed.shm_bytes), (before.shm_files, before.shm_bytes));
        assert!(open_files(std::process::id()).shm_files < before.shm_files);
    }

    #[test]
    fn mappings_of_shared_memory_are_parsed() {
        let line = "7f0000000000-7f0000100000 rw-s 00000000 00:1a 77    /dev/shm/torch_1_2 (deleted)";
        assert_eq!(
            shared_mapping(line),
            Some(("7f0000000000-7f0000100000", rustix::fs::makedev(0, 0x1a), 77, 1 << 20))
        );
        assert_eq!(shared_mapping("7f00-7f10 r-xp 00000000 00:1a 77 /usr/lib/x.so"), None);
        assert_eq!(shared_mapping("7f00-7f10 rw-p 00000000 00:00 0"), None);
    }
}
