//! `agent list`, `agent sweep` and `agent traces`: the runs and processes under a working directory, with
//! or without agents.
//!
//! Owner: one-shot commands; they change nothing but the processes that `sweep` ends, and the digests of runs. A
//! directory that several machines share is listed by each, each with its own entries only.

use crate::digest;
use crate::manifest::Manifest;
use crate::paths::RunPaths;
use crate::proc;
use crate::supervise::cgroup::{self, Cgroup};
use crate::supervise::leftovers::Leftovers;
use crate::supervise::process_scan::ProcessScan;
use rankdeck_proto::message::Survivor;
use rankdeck_proto::run_entry::{HostRunState, RunElsewhere, RunEntry, RunList, RunTraces};
use rankdeck_proto::trust;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{NodeRank, Rank, RunId};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most entries that are named as left out.
const MOST_REASONS: usize = 16;
/// How long `sweep` tries.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns every run in `workdir` that belongs to this machine, with one scan of the
/// processes: a directory may keep hundreds of runs, and a host may have thousands of processes.
pub(crate) fn list(workdir: &Path) -> RunList {
    let runs = workdir.join("runs");
    if let Err(error) = std::fs::read_dir(&runs)
        && error.kind() != io::ErrorKind::NotFound
    {
        return RunList { unreadable: Some(unreadable(&runs, &error)), ..RunList::default() };
    }
    let (nodes, left_out) = nodes(workdir, None);
    let (mut runs, processes) = entries(nodes);
    runs.sort_by(|a, b| (&a.run, a.node_rank).cmp(&(&b.run, b.node_rank)));
    let elsewhere = elsewhere(&runs, processes.marked());
    RunList { runs, left_out, unreadable: None, elsewhere }
}

/// The runs that processes of this user name, but not those of `known`, nor the one from whose shell this was called.
fn elsewhere(known: &[RunEntry], processes: &BTreeMap<u32, Vec<u8>>) -> Vec<RunElsewhere> {
    let asking: BTreeSet<u32> = proc::ancestors(std::process::id()).collect();
    let mut found: Vec<RunElsewhere> = Vec::new();
    for (pid, environ) in processes.iter().filter(|(pid, _)| !asking.contains(pid)) {
        let text = |name: &str| Some(String::from_utf8_lossy(proc::variable(environ, name)?).into_owned());
        let Some((run, run_dir)) = text("RANKDECK_RUN").zip(text("RANKDECK_RUN_DIR")) else { continue };
        let is_known = known.iter().any(|entry| entry.run.0 == run || entry.run_dir == run_dir)
            || found.iter().any(|other| other.run_dir == run_dir);
        if is_known || found.len() >= MOST_REASONS || !is_own(*pid) {
            continue;
        }
        found.extend(RunId::try_from(run).ok().map(|run| RunElsewhere { run, run_dir }));
    }
    found
}

/// Whether the process is this user's. Root can read the environments of others.
fn is_own(pid: u32) -> bool {
    std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|facts| facts.uid() == trust::own_uid())
}

/// Names whose directory it is.
fn unreadable(folder: &Path, error: &io::Error) -> HintedError {
    HintedError::new(
        format!("cannot read {}{}: {error}", folder.display(), trust::described(folder)),
        "set `workdir` in the hosts file to a directory of yours, or ask the owner for access",
    )
}

fn entries(nodes: Vec<(RunPaths, Manifest)>) -> (Vec<RunEntry>, ProcessScan) {
    let groups = cgroup::all();
    // Before the processes: what is there after its agent is gone is left over, and what was there before may
    // have ended with it.
    let agents: Vec<_> = nodes.iter().map(|(_, manifest)| manifest.agent()).collect();
    let processes = ProcessScan::scan();
    let asked = nodes.iter().zip(agents);
    let entry = |((paths, manifest), agent): (&(RunPaths, Manifest), _)| {
        entry(paths, manifest, agent, &groups, &processes)
    };
    (asked.map(entry).collect(), processes)
}

fn entry(
    paths: &RunPaths,
    manifest: &Manifest,
    agent: Option<proc::ProcStat>,
    groups: &[Cgroup],
    processes: &ProcessScan,
) -> RunEntry {
    let (run, node_rank, generation) = manifest.identity();
    let scope = Leftovers::find(paths, Some(manifest), groups).scope(&run, paths);
    let mut pids: Vec<u32> = processes.find(&scope).iter().map(|found| found.ident.pid).collect();
    let alive = manifest.ranks_alive();
    pids.extend(alive.iter().map(|(_, pid)| *pid));
    pids.sort_unstable();
    pids.dedup();
    let state = match &agent {
        // An agent's first processes are there before its manifest names it.
        Some(_) if manifest.running || !pids.is_empty() => HostRunState::Running,
        None if !pids.is_empty() => HostRunState::Orphaned,
        _ => HostRunState::Finished,
    };
    let mut digest = digest::read(paths, state != HostRunState::Running);
    if state != HostRunState::Running {
        digest::date_by_files(&mut digest, paths, generation);
    }
    RunEntry {
        run,
        node_rank,
        host: manifest.host.clone(),
        state,
        generation,
        world_size: manifest.world_size,
        ranks_alive: alive.len() as u32,
        pids,
        socket: if agent.is_some() { manifest.socket.clone() } else { String::new() },
        started: manifest.started,
        name: manifest.name.clone(),
        run_dir: paths.run_dir.display().to_string(),
        nnodes: manifest.hosts.len() as u32,
        hosts: manifest.hosts.clone(),
        agent_pid: agent.map_or(0, |agent| agent.pid),
        digest,
    }
}

/// Ends everything of `run` on this machine whose agent is dead; nodes with a live agent are left
/// to it.
pub(crate) fn clean(run: &RunId, workdir: &Path) -> Vec<Survivor> {
    let groups = cgroup::all();
    nodes(workdir, Some(run))
        .0
        .into_iter()
        .filter(|(_, manifest)| manifest.agent().is_none())
        .flat_map(|(paths, manifest)| {
            Leftovers::find(&paths, Some(&manifest), &groups).end(run, &paths, PATIENCE)
        })
        .collect()
}

/// What lives of `run` on this machine. Under `workdir`, that is what nodes and their agents lead to;
/// anywhere else, what names the run itself: a directory that was removed, or another `workdir`, hides
/// nothing.
pub(crate) fn traces(run: &RunId, workdir: &Path) -> RunTraces {
    let (entries, _) = entries(nodes(workdir, Some(run)).0);
    let known = !entries.is_empty();
    let mut pids: BTreeSet<u32> = entries
        .into_iter()
        .filter(|entry| entry.state != HostRunState::Finished)
        .flat_map(|entry| if entry.pids.is_empty() { vec![entry.agent_pid] } else { entry.pids })
        .collect();
    pids.extend(named(run, !known));
    let alive = pids.into_iter().filter_map(proc::stat).filter(|stat| !stat.is_gone());
    RunTraces { known, alive: alive.map(|stat| survivor(&stat)).collect() }
}

fn survivor(stat: &proc::ProcStat) -> Survivor {
    let environ = proc::environ(stat.pid).unwrap_or_default();
    let rank = proc::variable(&environ, "RANKDECK_RANK").and_then(|text| std::str::from_utf8(text).ok());
    Survivor {
        pid: stat.pid,
        rank: rank.and_then(|text| text.parse().ok()).map(Rank),
        state: stat.state,
        command: proc::command(stat),
    }
}

/// This user's processes that name the run: in their environment, and where `agents`, its agent and its guard
/// by their command lines. The caller is not among them, even from a shell inside the run.
fn named(run: &RunId, agents: bool) -> Vec<u32> {
    let asking: BTreeSet<u32> = proc::ancestors(std::process::id()).collect();
    let marked = |pid: u32| {
        let environ = proc::environ(pid).unwrap_or_default();
        proc::variable(&environ, "RANKDECK_RUN") == Some(run.0.as_bytes())
    };
    let all = proc::all().into_iter().map(|stat| stat.pid);
    all.filter(|pid| !asking.contains(pid) && is_own(*pid))
        .filter(|pid| marked(*pid) || agents && serves(run, &proc::arguments(*pid)))
        .collect()
}

/// A command line of an agent of `run`, or of its guard.
pub(crate) fn serves(run: &RunId, arguments: &[String]) -> bool {
    let ours = arguments.get(1).is_some_and(|word| word == "agent")
        && arguments.get(2).is_some_and(|verb| verb == "serve" || verb == "guard");
    ours && arguments.windows(2).any(|pair| pair[0] == "--run" && pair[1] == run.0)
}

/// The directories of a run's nodes on this machine.
pub(crate) fn folders_of(workdir: &Path, run: &RunId) -> Vec<RunPaths> {
    nodes(workdir, Some(run)).0.into_iter().map(|(paths, _)| paths).collect()
}

/// The nodes of this machine under `workdir`, and what was left out. An entry of another user is not read:
/// its manifest could name any process and any file.
pub(crate) fn nodes(workdir: &Path, only: Option<&RunId>) -> (Vec<(RunPaths, Manifest)>, Vec<String>) {
    let runs = workdir.join("runs");
    let (mut found, mut left_out) = (Vec::new(), LeftOut::default());
    let folders: Vec<PathBuf> = match only {
        Some(run) => vec![runs.join(&run.0)],
        None => left_out.entries_of(&runs),
    };
    let numbered = |name: &str| name.strip_prefix("node")?.parse().ok().map(NodeRank);
    for folder in folders {
        if folder.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
            continue;
        }
        let Ok(run_dir) = folder.canonicalize() else { continue };
        if !run_dir.is_dir() || left_out.owned_by_other(&folder) || left_out.owned_by_other(&run_dir) {
            continue;
        }
        for entry in left_out.entries_of(&run_dir) {
            let name = entry.file_name().and_then(|name| name.to_str());
            let Some(node) = name.and_then(numbered) else { continue };
            let paths = RunPaths { run_dir: run_dir.clone(), node };
            if left_out.owned_by_other(&entry) || left_out.owned_by_other(&paths.manifest()) {
                continue;
            }
            let manifest = Manifest::read(&paths.manifest()).unwrap_or_else(|error| {
                left_out.add(error);
                None
            });
            let manifest = manifest.filter(Manifest::is_of_this_machine);
            found.extend(manifest.map(|manifest| (paths, manifest)));
        }
    }
    (found, left_out.into_reasons())
}

/// Returns why what lies at `path` is not a run of this user, if another user owns it.
pub(crate) fn foreign(path: &Path) -> Option<String> {
    let uid = trust::other_owner(path)?;
    Some(format!("{} belongs to user {}", path.display(), trust::user_name(uid)))
}

/// What a list leaves out, and why.
#[derive(Default)]
pub(crate) struct LeftOut {
    reasons: Vec<String>,
    more: usize,
}

impl LeftOut {
    pub fn add(&mut self, reason: String) {
        match self.reasons.len() < MOST_REASONS {
            true => self.reasons.push(reason),
            false => self.more += 1,
        }
    }

    fn owned_by_other(&mut self, path: &Path) -> bool {
        let foreign = foreign(path);
        foreign.into_iter().map(|reason| self.add(reason)).count() > 0
    }

    pub fn entries_of(&mut self, folder: &Path) -> Vec<PathBuf> {
        match std::fs::read_dir(folder) {
            Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                self.add(format!("cannot read {}: {error}", folder.display()));
                Vec::new()
            }
        }
    }

    pub fn into_reasons(mut self) -> Vec<String> {
        if self.more > 0 {
            self.reasons.push(format!("and {} more", self.more));
        }
        self.reasons
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest;

    /// Calls of `read` by this thread so far.
    fn reads() -> usize {
        let counts = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        counts.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap().parse().unwrap()
    }

    fn finished(workdir: &Path, runs: std::ops::Range<u32>) {
        for run in runs {
            let paths =
                RunPaths { run_dir: workdir.join("runs").join(format!("r-{run}")), node: NodeRank(0) };
            std::fs::create_dir_all(paths.node_dir()).unwrap();
            let manifest = Manifest {
                run: format!("r-{run}"),
                hostname: proc::hostname(),
                boot_id: proc::boot_id(),
                ..Manifest::default()
            };
            manifest::write(&paths, &manifest.bytes()).unwrap();
        }
    }

    #[test]
    fn list_of_finished_runs_reads_no_processes() {
        if !Path::new("/proc/thread-self/io").exists() {
            return rankdeck_testkit::skipped("this kernel does not count what a thread reads");
        }
        let folder = tempfile::tempdir().unwrap();
        let cost = |runs: usize| {
            let before = reads();
            assert_eq!(list(folder.path()).runs.len(), runs);
            reads() - before
        };
        let mut strangers: Vec<_> =
            (0..64).map(|_| std::process::Command::new("sleep").arg("60").spawn().unwrap()).collect();
        finished(folder.path(), 0..1);
        // The first list writes the digest of a finished run.
        let (_, one) = (cost(1), cost(1));
        finished(folder.path(), 1..31);
        let (_, all) = (cost(31), cost(31));
        for stranger in &mut strangers {
            stranger.kill().unwrap();
            stranger.wait().unwrap();
        }
        assert!(all < one + 30 * 32, "{one} reads for one run, {all} for 31 next to 64 processes");
    }

    #[test]
    fn live_run_in_another_directory_is_listed() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = folder.path().join("away/runs/away-1").display().to_string();
        let mut process = std::process::Command::new("sleep")
            .arg("60")
            .envs([("RANKDECK_RUN", "away-1"), ("RANKDECK_RUN_DIR", &run_dir)])
            .spawn()
            .unwrap();
        let has = || list(folder.path()).elsewhere.iter().filter(|other| other.run_dir == run_dir).count();
        let begun = std::time::Instant::now();
        // It has the environment from its `exec` on.
        while has() == 0 {
            assert!(begun.elapsed() < Duration::from_secs(30), "not listed");
            std::thread::yield_now();
        }
        assert_eq!(has(), 1);
        process.kill().unwrap();
        process.wait().unwrap();
        assert_eq!(has(), 0);
    }

    #[test]
    fn unreadable_manifest_is_left_out_and_named() {
        let folder = tempfile::tempdir().unwrap();
        finished(folder.path(), 0..4);
        let at = |run: usize| folder.path().join(format!("runs/r-{run}/node0/manifest.json"));
        std::fs::rename(at(0), at(0).with_extension("was")).unwrap();
        std::os::unix::fs::symlink(at(0).with_extension("was"), at(0)).unwrap();
        std::fs::write(at(1), "{").unwrap();
        std::fs::remove_file(at(2)).unwrap();
        let listed = list(folder.path());
        let names: Vec<&str> = listed.runs.iter().map(|entry| entry.run.0.as_str()).collect();
        assert_eq!(names, ["r-3"]);
        let named =
            |run: usize| listed.left_out.iter().any(|line| line.contains(&at(run).display().to_string()));
        assert_eq!([0, 1, 2].map(named), [true, true, false], "{:?}", listed.left_out);
    }

    #[test]
    fn entries_of_other_users_are_left_out_and_named() {
        if trust::own_uid() != 0 {
            return rankdeck_testkit::skipped("only root can give files to other users");
        }
        let folder = tempfile::tempdir().unwrap();
        finished(folder.path(), 0..4);
        let at = |name: &str| folder.path().join("runs").join(name);
        // A manifest of a stranger would have this process taken for a rank of the run.
        let own = proc::stat(std::process::id()).unwrap();
        for run in 0..3 {
            let manifest = Manifest {
                boot_id: proc::boot_id(),
                hostname: proc::hostname(),
                run: format!("r-{run}"),
                ranks: vec![manifest::ManifestRank { pid: own.pid, start: own.start, ..Default::default() }],
                ..Manifest::default()
            };
            let paths = RunPaths { run_dir: at(&format!("r-{run}")), node: NodeRank(0) };
            manifest::write(&paths, &manifest.bytes()).unwrap();
        }
        for name in ["r-0", "r-1/node0", "r-2/node0/manifest.json"] {
            std::os::unix::fs::lchown(at(name), Some(61_003), None).unwrap();
        }
        std::os::unix::fs::symlink(at("r-3"), at("r-4")).unwrap();
        std::os::unix::fs::lchown(at("r-4"), Some(61_003), None).unwrap();
        let listed = list(folder.path());
        let names: Vec<&str> = listed.runs.iter().map(|entry| entry.run.0.as_str()).collect();
        assert_eq!(names, ["r-3"]);
        for name in ["r-0", "r-1/node0", "r-2/node0/manifest.json", "r-4"] {
            let named = |reason: &String| reason.contains(&format!("{} ", at(name).display()));
            assert!(listed.left_out.iter().any(named), "{name}: {:?}", listed.left_out);
        }
        let run = RunId("r-0".into());
        assert_eq!((clean(&run, folder.path()).len(), traces(&run, folder.path()).known), (0, false));
    }

    #[test]
    fn directory_that_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        // Other tests' runs are live in other directories.
        let own = || RunList { elsewhere: Vec::new(), ..list(folder.path()) };
        assert_eq!(own(), RunList::default());
        std::fs::create_dir(folder.path().join("runs")).unwrap();
        std::fs::write(folder.path().join("runs/a-file"), "").unwrap();
        assert_eq!(own(), RunList::default());
        std::fs::remove_dir_all(folder.path().join("runs")).unwrap();
        std::fs::write(folder.path().join("runs"), "a file").unwrap();
        let found = list(folder.path()).unreadable.unwrap();
        assert!(found.error.contains("owner") && found.hint.contains("workdir"), "{found:?}");
    }
}
