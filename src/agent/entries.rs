//! `agent list` and `agent sweep`: what there is and what runs under a working folder, with or without
//! agents.
//!
//! Owner: one-shot commands; they change nothing but what `sweep` is told to end, and the digests of runs. A
//! folder that several machines share is seen by each of them, and each tells only what is its own.

use crate::digest;
use crate::manifest::Manifest;
use crate::paths::RunPaths;
use crate::supervise::cgroup::{self, Cgroup};
use crate::supervise::leftovers::Leftovers;
use crate::supervise::sweep;
use rankdeck_proto::message::Survivor;
use rankdeck_proto::run_entry::{RunEntry, RunState};
use rankdeck_types::ids::{NodeRank, RunId};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long `sweep` tries.
const PATIENCE: Duration = Duration::from_secs(10);

/// Every run under `workdir` that belongs to this machine.
pub fn list(workdir: &Path) -> Vec<RunEntry> {
    let groups = cgroup::all();
    let mut entries: Vec<RunEntry> =
        nodes(workdir, None).into_iter().map(|(paths, manifest)| entry(&paths, &manifest, &groups)).collect();
    entries.sort_by(|a, b| (&a.run, a.node_rank).cmp(&(&b.run, b.node_rank)));
    entries
}

fn entry(paths: &RunPaths, manifest: &Manifest, groups: &[Cgroup]) -> RunEntry {
    let (run, node_rank, generation) = manifest.identity();
    let agent = manifest.agent();
    let scope = Leftovers::find(paths, Some(manifest), groups).scope(&run, paths);
    let mut pids: Vec<u32> = sweep::find(&scope).iter().map(|found| found.ident.pid).collect();
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
