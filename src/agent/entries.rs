//! `agent list`, `agent sweep` and `agent traces`: what there is and what runs under a working folder, with
//! or without agents.
//!
//! Owner: one-shot commands; they change nothing but what `sweep` is told to end, and the digests of runs. A
//! folder that several machines share is seen by each of them, and each tells only what is its own.

use crate::digest;
use crate::manifest::Manifest;
use crate::paths::{self, RunPaths};
use crate::proc;
use crate::supervise::cgroup::{self, Cgroup};
use crate::supervise::leftovers::Leftovers;
use crate::supervise::sweep::Processes;
use rankdeck_proto::message::Survivor;
use rankdeck_proto::run_entry::{RunEntry, RunState, Traces};
use rankdeck_types::ids::{NodeRank, Rank, RunId};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long `sweep` tries.
const PATIENCE: Duration = Duration::from_secs(10);

/// Every run under `workdir` that belongs to this machine. All of them are looked for in one look at the
/// processes: a folder may keep hundreds of runs, and a host may have thousands of processes.
pub fn list(workdir: &Path) -> Vec<RunEntry> {
    let mut entries = entries(nodes(workdir, None));
    entries.sort_by(|a, b| (&a.run, a.node_rank).cmp(&(&b.run, b.node_rank)));
    entries
}

fn entries(nodes: Vec<(RunPaths, Manifest)>) -> Vec<RunEntry> {
    let groups = cgroup::all();
    // Before the processes: what is there after its agent is gone is left over, and what was there before may
    // have ended with it.
    let agents: Vec<_> = nodes.iter().map(|(_, manifest)| manifest.agent()).collect();
    let processes = Processes::look();
    let asked = nodes.iter().zip(agents);
    asked.map(|((paths, manifest), agent)| entry(paths, manifest, agent, &groups, &processes)).collect()
}

fn entry(
    paths: &RunPaths,
    manifest: &Manifest,
    agent: Option<proc::Stat>,
    groups: &[Cgroup],
    processes: &Processes,
) -> RunEntry {
    let (run, node_rank, generation) = manifest.identity();
    let scope = Leftovers::find(paths, Some(manifest), groups).scope(&run, paths);
    let mut pids: Vec<u32> = processes.find(&scope).iter().map(|found| found.ident.pid).collect();
    let alive = manifest.ranks_alive();
    pids.extend(alive.iter().map(|(_, pid)| *pid));
    pids.sort_unstable();
    pids.dedup();
    let state = match &agent {
        // An agent's first processes are there before its manifest says so.
        Some(_) if manifest.running || !pids.is_empty() => RunState::Running,
        None if !pids.is_empty() => RunState::Orphaned,
        _ => RunState::Finished,
    };
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
        digest: digest::of(paths, state != RunState::Running),
    }
}

/// Ends everything of `run` on this machine whose agent is dead; nodes that a live agent looks after are left
/// to it.
pub fn clean(run: &RunId, workdir: &Path) -> Vec<Survivor> {
    let groups = cgroup::all();
    nodes(workdir, Some(run))
        .into_iter()
        .filter(|(_, manifest)| manifest.agent().is_none())
        .flat_map(|(paths, manifest)| {
            Leftovers::find(&paths, Some(&manifest), &groups).end(run, &paths, PATIENCE)
        })
        .collect()
}

/// What lives of `run` on this machine. Under `workdir`, that is what nodes and their agents lead to;
/// anywhere else, what names the run itself: a folder that was removed, or another `workdir`, hides
/// nothing.
pub fn traces(run: &RunId, workdir: &Path) -> Traces {
    let entries = entries(nodes(workdir, Some(run)));
    let known = !entries.is_empty();
    let mut pids: BTreeSet<u32> = entries
        .into_iter()
        .filter(|entry| entry.state != RunState::Finished)
        .flat_map(|entry| if entry.pids.is_empty() { vec![entry.agent_pid] } else { entry.pids })
        .collect();
    pids.extend(named(run, !known));
    let alive = pids.into_iter().filter_map(proc::stat).filter(|stat| !stat.is_gone());
    Traces { known, alive: alive.map(|stat| survivor(&stat)).collect() }
}

fn survivor(stat: &proc::Stat) -> Survivor {
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
/// by their command lines. Whoever asks is not among them, even from a shell inside the run.
fn named(run: &RunId, agents: bool) -> Vec<u32> {
    let asking: BTreeSet<u32> = proc::ancestors(std::process::id()).collect();
    let own = |pid: u32| {
        std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|facts| facts.uid() == paths::own_uid())
    };
    let marked = |pid: u32| {
        let environ = proc::environ(pid).unwrap_or_default();
        proc::variable(&environ, "RANKDECK_RUN") == Some(run.0.as_bytes())
    };
    let all = proc::all().into_iter().map(|stat| stat.pid);
    all.filter(|pid| !asking.contains(pid) && own(*pid))
        .filter(|pid| marked(*pid) || agents && serves(run, &proc::arguments(*pid)))
        .collect()
}

/// A command line of an agent of `run`, or of its guard.
fn serves(run: &RunId, arguments: &[String]) -> bool {
    let ours = arguments.get(1).is_some_and(|word| word == "agent")
        && arguments.get(2).is_some_and(|verb| verb == "serve" || verb == "guard");
    ours && arguments.windows(2).any(|pair| pair[0] == "--run" && pair[1] == run.0)
}

/// The folders of a run's nodes on this machine.
pub fn folders_of(workdir: &Path, run: &RunId) -> Vec<RunPaths> {
    nodes(workdir, Some(run)).into_iter().map(|(paths, _)| paths).collect()
}

fn nodes(workdir: &Path, only: Option<&RunId>) -> Vec<(RunPaths, Manifest)> {
    let runs = workdir.join("runs");
    let folders: Vec<PathBuf> = match only {
        Some(run) => vec![runs.join(&run.0)],
        None => std::fs::read_dir(&runs).into_iter().flatten().flatten().map(|entry| entry.path()).collect(),
    };
    let shown =
        |folder: &PathBuf| !folder.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let numbered = |name: &str| name.strip_prefix("node")?.parse().ok().map(NodeRank);
    folders
        .into_iter()
        .filter(shown)
        .filter_map(|folder| folder.canonicalize().ok())
        .flat_map(|run_dir| {
            let inside = std::fs::read_dir(&run_dir).into_iter().flatten().flatten();
            inside
                .filter_map(|entry| {
                    let paths =
                        RunPaths { run_dir: run_dir.clone(), node: numbered(entry.file_name().to_str()?)? };
                    let manifest = Manifest::load(&paths.manifest()).filter(Manifest::is_of_this_machine)?;
                    Some((paths, manifest))
                })
                .collect::<Vec<_>>()
        })
        .collect()
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
    fn a_finished_run_costs_a_list_no_look_at_the_processes() {
        if !Path::new("/proc/thread-self/io").exists() {
            return rankdeck_testkit::skipped("this kernel does not count what a thread reads");
        }
        let folder = tempfile::tempdir().unwrap();
        let cost = |runs: usize| {
            let before = reads();
            assert_eq!(list(folder.path()).len(), runs);
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
        assert!(all < one + 30 * 32, "{one} reads for one run, {all} for 31 beside 64 processes");
    }
}
