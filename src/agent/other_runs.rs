//! Other runs of the same `workdir`: which of them live, and which one wrote a file last.
//!
//! Runs of one name work in the same directory, so a later one may write over the checkpoints of an earlier one. What
//! it has written is then not the earlier one's to move.
//!
//! Owner: the threads that prepare a launch, place a checkpoint or search for files. Invariants:
//! - OTHERS-1: a file that another run wrote after this one is that run's. Records of runs decide: which files a run
//!   has reported or its agent has found, and when it was active in the file's directory.

use crate::digest;
use crate::manifest::Manifest;
use crate::paths::RunPaths;
use crate::results;
use rankdeck_proto::message::{RankEvent, RecordEvent};
use rankdeck_types::ids::{NodeRank, WallTime};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Most other runs that are looked at, and nodes of each.
const RUNS: usize = 256;
const NODES: usize = 256;
/// Most files of a run that are known.
const FILES: usize = 4096;
/// Seconds after its latest record for which ranks of a run may still write.
const LATE_S: f64 = 60.0;
/// Clocks of file systems may be so far behind, seconds.
const TICK_S: f64 = 0.02;
/// A file is written and recorded within this time, seconds.
const RECORDED_S: f64 = 1.0;
/// Most entries of a directory whose times are read.
const ENTRIES: usize = 20_000;

/// Directories of other runs with records, next to `run_dir`.
fn nodes(run_dir: &Path) -> Vec<RunPaths> {
    let entries = |folder: &Path, most: usize| -> Vec<PathBuf> {
        let found = std::fs::read_dir(folder).into_iter().flatten().flatten();
        found.take(most).map(|entry| entry.path()).collect()
    };
    let runs = run_dir.parent().map(|runs| entries(runs, RUNS)).unwrap_or_default();
    let is_other = |run: &&PathBuf| run.as_path() != run_dir && !name(run).starts_with('.');
    let mut found = Vec::new();
    for run in runs.iter().filter(is_other) {
        let nodes = entries(run, NODES);
        let numbers = nodes.iter().filter_map(|node| name(node).strip_prefix("node")?.parse().ok());
        found.extend(numbers.map(|node| RunPaths { run_dir: run.clone(), node: NodeRank(node) }));
    }
    found
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn is_live(paths: &RunPaths) -> bool {
    Manifest::load(&paths.manifest()).is_some_and(|manifest| manifest.running && manifest.agent().is_some())
}

/// Whether another run works in the same `workdir` now.
pub(crate) fn any_live(run_dir: &Path) -> bool {
    nodes(run_dir).iter().any(is_live)
}

/// Seconds since the epoch.
fn seconds(time: SystemTime) -> WallTime {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// When a file, or any file of a directory, was changed last; `None`: there is none.
pub(crate) fn latest_change(path: &Path) -> Option<WallTime> {
    let own = |path: &Path| Some(seconds(std::fs::symlink_metadata(path).ok()?.modified().ok()?));
    if !std::fs::symlink_metadata(path).ok()?.is_dir() {
        return own(path);
    }
    let (mut latest, mut entries, mut open) = (None, 0, vec![path.to_owned()]);
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            entries += 1;
            if entries > ENTRIES {
                return latest;
            }
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(entry.path()),
                Ok(_) => latest = own(&entry.path()).into_iter().chain(latest).reduce(f64::max),
                Err(_) => {}
            }
        }
    }
    latest.or_else(|| own(path))
}

/// What this run knows of one of its files.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OwnKnowledge {
    /// When it wrote the file last, as far as is recorded.
    pub written: WallTime,
    /// Latest change of the file as its agent found it.
    pub found: Option<WallTime>,
    /// Its latest record of earlier generations.
    pub ended: WallTime,
}

/// One node of another run.
#[derive(Debug)]
struct OtherNode {
    run: String,
    began: WallTime,
    ended: WallTime,
    /// Where its ranks work.
    folder: Option<PathBuf>,
    /// Its checkpoints, and when they were written last.
    written: BTreeMap<PathBuf, WallTime>,
}

/// Other runs that were active since a moment.
#[derive(Debug, Default)]
pub(crate) struct OtherRuns(Vec<OtherNode>);

impl OtherRuns {
    /// Reads the records of other runs that were written since then, or that live.
    pub fn since(run_dir: &Path, since: WallTime) -> OtherRuns {
        let read = |paths: RunPaths| {
            let spool = paths.spool();
            let ended = seconds(std::fs::metadata(&spool).ok()?.modified().ok()?);
            let live = is_live(&paths);
            if ended < since && !live {
                return None;
            }
            let (mut began, mut written) = (f64::INFINITY, BTreeMap::new());
            digest::each_record(&spool, |record| {
                began = began.min(record.time);
                let mut add = |path: &str, time: WallTime| {
                    if written.len() < FILES || written.contains_key(Path::new(path)) {
                        written.insert(PathBuf::from(path), time);
                    }
                };
                match &record.event {
                    RecordEvent::Rank { event: RankEvent::Checkpoint { path, .. }, .. } => {
                        add(path, record.time);
                    }
                    RecordEvent::CheckpointFiles { files, .. } => {
                        files.iter().for_each(|file| add(&file.path, file.modified));
                    }
                    _ => {}
                }
            });
            let ended = if live { f64::INFINITY } else { ended + LATE_S };
            let folder = results::work(&paths).map(|work| work.folder);
            Some(OtherNode { run: name(&paths.run_dir).to_owned(), began, ended, folder, written })
        };
        OtherRuns(nodes(run_dir).into_iter().filter_map(read).collect())
    }

    /// The run that wrote a file after this one (OTHERS-1); `None`: none did, or it is not there.
    pub fn owner(&self, path: &Path, own: OwnKnowledge) -> Option<&str> {
        if self.0.is_empty() {
            return None;
        }
        let at = latest_change(path)?;
        let is_as_found = own.found.is_some_and(|found| (found - at).abs() < 1e-3);
        if is_as_found {
            return None;
        }
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let is_of = |node: &&OtherNode| {
            let is_it = |known: &&PathBuf| {
                [path, real.as_path()].iter().any(|path| path.starts_with(known) || known.starts_with(path))
            };
            let is_active = node.began <= at + TICK_S && at <= node.ended;
            let times = node.written.keys().filter(is_it).filter_map(|known| node.written.get(known));
            match times.copied().reduce(f64::max) {
                // It has the record, and this run has no later one.
                Some(time) => time > own.written + RECORDED_S,
                None => {
                    let works_there = node.folder.as_ref().is_some_and(|folder| real.starts_with(folder));
                    works_there && is_active && at > own.ended.max(own.written) + RECORDED_S
                }
            }
        };
        let owners = self.0.iter().filter(is_of);
        owners.max_by(|a, b| a.began.total_cmp(&b.began)).map(|node| node.run.as_str())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::results::WorkRecord;
    use rankdeck_proto::message::{CheckpointFile, Record};
    use rankdeck_types::ids::{Generation, LocalRank, Rank};
    use std::fs::{create_dir_all, write};

    /// Adds a run next to `run_dir` that works in `folder`, with records that begin at this time; it has written a
    /// file at another, unless that is 0.
    pub(crate) fn add_run(
        run_dir: &Path,
        run: &str,
        folder: &Path,
        began: WallTime,
        file: (&Path, WallTime),
    ) {
        let paths = RunPaths { run_dir: run_dir.with_file_name(run), node: NodeRank(0) };
        create_dir_all(paths.node_dir()).unwrap();
        let path = file.0.display().to_string();
        let first = RecordEvent::RankSpawned { rank: Rank(0), local_rank: LocalRank(0), pid: 1 };
        let files = vec![CheckpointFile { path, modified: file.1, ..CheckpointFile::default() }];
        let found = RecordEvent::CheckpointFiles { files, complete: false };
        let events = [(began, first)].into_iter().chain((file.1 > 0.0).then_some((file.1, found)));
        let line = |(seq, (time, event)): (usize, (f64, RecordEvent))| {
            let record = Record { seq: seq as u64 + 1, time, generation: Generation(0), event };
            serde_json::to_string(&record).unwrap() + "\n"
        };
        let lines: Vec<String> = events.enumerate().map(line).collect();
        write(paths.spool(), lines.concat()).unwrap();
        let work = WorkRecord { folder: folder.canonicalize().unwrap(), ..WorkRecord::default() };
        results::remember(&paths, &work).unwrap();
    }

    #[test]
    fn others_1_file_is_of_the_run_that_wrote_it_last() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        create_dir_all(at("runs/a/node0")).unwrap();
        create_dir_all(at("out")).unwrap();
        let path = at("out/best.pt");
        write(&path, "weights").unwrap();
        let now = latest_change(&path).unwrap();
        let own = OwnKnowledge { written: now - 100.0, found: None, ended: now - 90.0 };
        let owner = |own| OtherRuns::since(&at("runs/a"), 0.0).owner(&path, own).map(str::to_owned);
        assert_eq!(owner(own), None, "no other run");
        add_run(&at("runs/a"), "b", &at("out"), now - 50.0, (&at("out/other.pt"), now - 10.0));
        assert_eq!(owner(own).as_deref(), Some("b"), "it was active there, and this one was not");
        assert_eq!(owner(OwnKnowledge { ended: now + 1.0, ..own }), None, "this one was still running");
        assert_eq!(owner(OwnKnowledge { found: Some(now), ..own }), None, "it is as this one left it");
        add_run(&at("runs/a"), "b", &at("out"), now - 50.0, (&path, now));
        assert_eq!(owner(OwnKnowledge { ended: now + 1.0, ..own }).as_deref(), Some("b"), "by its record");
        assert_eq!(owner(OwnKnowledge { written: now + 5.0, ..own }), None, "written again since");
        assert!(OtherRuns::since(&at("runs/a"), now + 1e6).0.is_empty(), "older runs are not read");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(owner(own), None);
    }
}
