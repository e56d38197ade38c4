//! `node<k>/manifest.json`: which agent serves a node of a run, and which processes belong to it.
//!
//! Owner: the agent that serves; written whole and renamed into place, so that a reader never sees half of
//! it. Every process is recorded with start time and boot, so that a reused pid or a reboot is not
//! mistaken for a live agent.

use crate::paths;
use crate::paths::RunPaths;
use crate::proc;
use rankdeck_proto::trust;
use rankdeck_types::ids::{Generation, NodeRank, Rank, RunId};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Most bytes of the file: a host has thousands of ranks at most.
const MOST_BYTES: u64 = 4 << 20;

/// The file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Manifest {
    pub run: String,
    /// Name of this host in hosts.toml.
    pub host: String,
    /// Index of this host.
    pub node_rank: u32,
    /// `uname -n`: a shared directory holds the manifests of other machines, too.
    pub hostname: String,
    /// The boot that the pids belong to.
    pub boot_id: String,
    /// The agent, 0 once it has ended as it should.
    pub agent_pid: u32,
    /// Its start time, clock ticks.
    pub agent_start: u64,
    /// Build of the agent.
    pub build: String,
    pub socket: String,
    /// When the run began here, seconds since the epoch.
    pub started: f64,
    /// A generation has started and is not over.
    pub running: bool,
    /// Latest generation.
    pub generation: u32,
    /// Name of the experiment.
    pub name: String,
    /// Ranks of the whole run, 0 before the first launch.
    pub world_size: u32,
    /// Names of all hosts, in node_rank order.
    pub hosts: Vec<String>,
    /// Ranks of this host that have a process.
    pub ranks: Vec<ManifestRank>,
    /// Launched by `rankdeck drill`.
    pub drill: bool,
}

/// One rank's process.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ManifestRank {
    /// Index of the rank.
    pub rank: u32,
    pub pid: u32,
    /// Its start time, clock ticks.
    pub start: u64,
    /// It has ended.
    pub ended: bool,
}

impl Manifest {
    /// The manifest of a node, `None` when it is missing or cannot be read.
    pub fn load(path: &Path) -> Option<Manifest> {
        Manifest::read(path).ok().flatten()
    }

    /// The manifest of a node, `None` when it is missing. One that belongs to another user is not read, and a
    /// socket is dropped from it that no agent of this user can have made.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(path: &Path) -> Result<Option<Manifest>, String> {
        let failed = |error: String| format!("cannot read {}: {error}", path.display());
        let bytes = match trust::read(path, MOST_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error.to_string())),
        };
        let mut manifest: Manifest =
            serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string()))?;
        if !paths::is_node_file(Path::new(&manifest.socket)) {
            manifest.socket.clear();
        }
        Ok(Some(manifest))
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }

    /// It was written on this machine since its last boot.
    pub fn is_of_this_boot(&self) -> bool {
        self.is_of_this_machine() && self.boot_id == proc::boot_id()
    }

    /// It was written on this machine.
    pub fn is_of_this_machine(&self) -> bool {
        self.hostname == proc::hostname()
    }

    /// The agent, when it lives.
    pub fn agent(&self) -> Option<proc::ProcStat> {
        if self.agent_pid == 0 || !self.is_of_this_boot() {
            return None;
        }
        proc::stat(self.agent_pid).filter(|stat| stat.start == self.agent_start && !stat.is_gone())
    }

    /// The file in which the agent's guard notes what it sees below the agent; `None` without a socket.
    pub fn note(&self) -> Option<PathBuf> {
        let socket = Some(Path::new(&self.socket)).filter(|socket| !socket.as_os_str().is_empty())?;
        Some(socket.with_extension(paths::GUARD_NOTE))
    }

    /// Ranks whose processes live.
    pub fn ranks_alive(&self) -> Vec<(Rank, u32)> {
        if !self.is_of_this_boot() {
            return Vec::new();
        }
        let lives = |rank: &&ManifestRank| {
            proc::stat(rank.pid).is_some_and(|stat| stat.start == rank.start && !stat.is_gone())
        };
        self.ranks.iter().filter(lives).map(|rank| (Rank(rank.rank), rank.pid)).collect()
    }

    /// Which run and node it is about.
    pub fn identity(&self) -> (RunId, NodeRank, Generation) {
        (RunId(self.run.clone()), NodeRank(self.node_rank), Generation(self.generation))
    }
}

/// Writes `bytes` as the manifest of `paths`, atomically; it survives a power cut from then on.
pub(crate) fn write(paths: &RunPaths, bytes: &[u8]) -> io::Result<()> {
    put(paths, bytes, File::sync_data).map(drop)
}

/// The same for readers on this machine. The caller flushes the file, when a disk that is busy may take its
/// time: a power cut before that leaves nothing that runs, and may leave no manifest.
pub(crate) fn replace(paths: &RunPaths, bytes: &[u8]) -> io::Result<File> {
    put(paths, bytes, |_| Ok(()))
}

fn put(paths: &RunPaths, bytes: &[u8], before: impl FnOnce(&File) -> io::Result<()>) -> io::Result<File> {
    let target = paths.manifest();
    let temporary = target.with_extension(format!("json.{}", std::process::id()));
    let mut file = trust::create(&temporary)?;
    let written = file
        .write_all(bytes)
        .and_then(|()| before(&file))
        .and_then(|()| std::fs::rename(&temporary, &target));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written.map(|()| file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_is_alive_only_with_its_start_time_and_boot() {
        let own = proc::stat(std::process::id()).unwrap();
        let manifest = Manifest {
            hostname: proc::hostname(),
            boot_id: proc::boot_id(),
            agent_pid: own.pid,
            agent_start: own.start,
            ..Manifest::default()
        };
        assert!(manifest.agent().is_some());
        assert!(Manifest { agent_start: own.start + 1, ..manifest.clone() }.agent().is_none());
        assert!(Manifest { boot_id: "other".into(), ..manifest.clone() }.agent().is_none());
        assert!(Manifest { hostname: "other".into(), ..manifest }.agent().is_none());
    }

    #[test]
    fn manifest_survives_the_disk_and_unknown_fields() {
        let folder = tempfile::tempdir().unwrap();
        let paths = RunPaths { run_dir: folder.path().into(), node: NodeRank(2) };
        std::fs::create_dir(paths.node_dir()).unwrap();
        let manifest = Manifest { run: "r".into(), hosts: vec!["a".into()], ..Manifest::default() };
        write(&paths, &manifest.bytes()).unwrap();
        assert_eq!(Manifest::load(&paths.manifest()), Some(manifest));
        write(&paths, br#"{"run":"r","new_field":1}"#).unwrap();
        assert_eq!(Manifest::load(&paths.manifest()).unwrap().run, "r");
        write(&paths, b"{ torn").unwrap();
        assert_eq!(Manifest::load(&paths.manifest()), None);
        assert_eq!(std::fs::read_dir(paths.node_dir()).unwrap().count(), 1, "no temporary file is left");
    }
}
