//! Traces of the agents of a node: everything that leads to their processes when agent and guard are
//! gone.
//!
//! Owner: the next agent, `agent list` and `agent sweep`. A process that was forked twice, has its own
//! session and its own environment carries no tag and has no parent of the run. Two
//! things still lead to it: the control group of its agent, and where there was none, a file in which the
//! guard notes the processes below its agent.
//!
//! - LEFT-1: a scan for leftovers of a dead agent uses tags, the control groups of every agent
//!   of that node, and the last guard's notes.
//! - LEFT-2: a note is written and read only in a directory of this user: its processes get killed.

use crate::manifest::Manifest;
use crate::paths::RunPaths;
use crate::proc::{self, ProcessKey};
use crate::supervise::cgroup::Cgroup;
use crate::supervise::process_scan::{self, RunTag, ScanScope};
use rankdeck_proto::message::Survivor;
use rankdeck_proto::trust;
use rankdeck_types::ids::{Rank, RunId};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What was below an agent while it lived.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SeenProcesses {
    /// Every process.
    pub members: BTreeSet<ProcessKey>,
    /// Those that lead a session.
    pub sessions: BTreeMap<ProcessKey, Option<Rank>>,
}

impl SeenProcesses {
    /// What is below `agent` now, without this process.
    pub fn below(agent: u32) -> SeenProcesses {
        let own = std::process::id();
        let below: Vec<proc::ProcStat> =
            proc::descendants(agent).into_iter().filter(|pid| *pid != own).filter_map(proc::stat).collect();
        let ident = |stat: &proc::ProcStat| ProcessKey { pid: stat.pid, start: stat.start };
        SeenProcesses {
            members: below.iter().map(ident).collect(),
            sessions: below
                .iter()
                .filter(|stat| stat.session == stat.pid)
                .map(|stat| (ident(stat), None))
                .collect(),
        }
    }

    /// Writes it whole, so that a reader never sees half of it.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        if !is_safe(path) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut text = proc::boot_id() + "\n";
        for member in &self.members {
            let leads = if self.sessions.contains_key(member) { " leads" } else { "" };
            text += &format!("{} {}{leads}\n", member.pid, member.start);
        }
        let temporary = path.with_extension("below.new");
        trust::create(&temporary)?.write_all(text.as_bytes())?;
        std::fs::rename(&temporary, path)
    }

    /// What a guard has noted since this machine was started; empty when it has noted nothing.
    pub fn load(path: &Path) -> SeenProcesses {
        let text = if is_safe(path) { proc::text(path).unwrap_or_default() } else { String::new() };
        let mut lines = text.lines();
        let mut seen = SeenProcesses::default();
        if lines.next() != Some(proc::boot_id().as_str()) {
            return seen;
        }
        for line in lines {
            let mut words = line.split(' ');
            let mut number = || words.next()?.parse::<u64>().ok();
            let (Some(pid), Some(start)) = (number(), number()) else { continue };
            let Ok(pid) = pid.try_into() else { continue };
            let ident = ProcessKey { pid, start };
            seen.members.insert(ident);
            if words.next() == Some("leads") {
                seen.sessions.insert(ident, None);
            }
        }
        seen
    }
}

/// LEFT-2.
fn is_safe(note: &Path) -> bool {
    note.parent().is_some_and(trust::is_private)
}

/// What an agent of a node may have left, as found at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Leftovers {
    /// Control groups of its agents, present ones included.
    pub groups: Vec<Cgroup>,
    seen: SeenProcesses,
    note: Option<PathBuf>,
}

impl Leftovers {
    /// Of a node of a run whose manifest was this one; `groups` are all control groups of ours.
    pub fn find(paths: &RunPaths, manifest: Option<&Manifest>, groups: &[Cgroup]) -> Leftovers {
        let note = manifest.filter(|manifest| manifest.is_of_this_boot()).and_then(Manifest::note);
        Leftovers {
            groups: groups.iter().filter(|group| group.is_of(paths)).cloned().collect(),
            seen: note.as_deref().map(SeenProcesses::load).unwrap_or_default(),
            note,
        }
    }

    /// What the last guard has noted.
    pub fn members(&self) -> &BTreeSet<ProcessKey> {
        &self.seen.members
    }

    /// LEFT-1. Everything of the node.
    pub fn scope(&self, run: &RunId, paths: &RunPaths) -> ScanScope {
        let mark = RunTag {
            run: run.clone(),
            run_dir: paths.run_dir.clone(),
            node: paths.node,
            agent: None,
            rank: None,
        };
        self.add_to(ScanScope::marked(mark))
    }

    /// `scope`, and what is known here.
    pub fn add_to(&self, mut scope: ScanScope) -> ScanScope {
        scope.groups.extend(self.groups.iter().cloned());
        scope.members.extend(&self.seen.members);
        scope.sessions.extend(self.seen.sessions.clone());
        scope
    }

    /// Ends all of it, and removes what led to it when nothing is left.
    pub fn end(&self, run: &RunId, paths: &RunPaths, within: Duration) -> Vec<Survivor> {
        let survivors =
            process_scan::kill_all(&self.scope(run, paths), process_scan::find, Duration::ZERO, within);
        self.groups.iter().for_each(Cgroup::remove);
        if survivors.is_empty()
            && let Some(note) = &self.note
        {
            crate::paths::remove_note(note);
            crate::paths::remove_sockets(note);
        }
        survivors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn private_folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
        folder
    }

    #[test]
    fn left_1_guard_notes_are_read_within_the_same_boot() {
        let folder = private_folder();
        let path = folder.path().join("x.below");
        assert_eq!(SeenProcesses::load(&path), SeenProcesses::default());
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let seen = SeenProcesses::below(std::process::id());
        seen.save(&path).unwrap();
        assert!(
            SeenProcesses::load(&path) == seen && seen.members.iter().any(|member| member.pid == child.id())
        );
        child.kill().unwrap();
        child.wait().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replacen(&proc::boot_id(), "another-boot", 1)).unwrap();
        assert_eq!(SeenProcesses::load(&path), SeenProcesses::default(), "pids of another boot are ignored");
        std::fs::write(&path, format!("{}\n1 x\n\u{fffd}\n99999999999 1\n7 8 leads\n", proc::boot_id()))
            .unwrap();
        assert_eq!(SeenProcesses::load(&path).members, BTreeSet::from([ProcessKey { pid: 7, start: 8 }]));
    }

    #[test]
    fn left_2_note_in_a_shared_directory_is_ignored() {
        let folder = private_folder();
        let path = folder.path().join("x.below");
        let seen = SeenProcesses {
            members: BTreeSet::from([ProcessKey { pid: 7, start: 8 }]),
            ..SeenProcesses::default()
        };
        seen.save(&path).unwrap();
        assert_eq!(SeenProcesses::load(&path), seen);
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
        assert_eq!(SeenProcesses::load(&path), SeenProcesses::default());
        assert!(seen.save(&path).is_err());
    }
}
