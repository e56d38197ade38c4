//! The checkpoints of a run on one host, reported by ranks or found by the agent, from the node's records.
//!
//! Owner: threads and one-shot commands. Invariants:
//! - KNOWN-1: a checkpoint that was reported and found is one. What was set aside is known at its new place.

use crate::digest;
use crate::paths::RunPaths;
use crate::saved_file;
use rankdeck_proto::message::{CheckpointFile, RankEvent, Record, RecordEvent};
use rankdeck_types::ids::Generation;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Most known checkpoints; the latest are kept.
const KNOWN: usize = 4096;
/// Files found within this time after a checkpoint may belong to it, such as an optimizer's; seconds.
const TOGETHER_S: f64 = 10.0;
/// Most files of a checkpoint that are summed, and deepest directory.
const FILES: usize = 10_000;
const DEPTH: usize = 16;

/// A checkpoint that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownCheckpoint {
    /// A file or a directory.
    pub path: PathBuf,
    /// Size, of all files in it.
    pub bytes: u64,
    /// The generation that wrote it last.
    pub generation: Generation,
    pub env_step: Option<u64>,
}

/// Returns the checkpoints of a run on this host that exist, those that were written last at the end.
pub(crate) fn known(paths: &RunPaths) -> Vec<KnownCheckpoint> {
    // Of each generation the latest: what it wrote may have been set aside since.
    let mut all: Vec<LineCheckpoint> = Vec::new();
    let mut present: BTreeMap<Generation, TrainingLine> = BTreeMap::new();
    digest::each_record(&paths.spool(), |record| {
        if !matches!(record.event, RecordEvent::Launched { .. }) {
            present.entry(record.generation).or_default().read(record);
        }
    });
    for line in present.into_values() {
        all.extend(line.0);
    }
    let mut found: Vec<KnownCheckpoint> = Vec::new();
    for LineCheckpoint { path, generation, env_step, .. } in all {
        let own = paths.run_dir.join(path);
        for path in aside(&own, generation).into_iter().chain([own]) {
            let Some(bytes) = size(&path) else { continue };
            found.retain(|known| known.path != path);
            found.push(KnownCheckpoint { path, bytes, generation, env_step });
        }
    }
    let surplus = found.len().saturating_sub(KNOWN);
    found.drain(..surplus);
    found
}

/// The known checkpoints whose end is missing, for ranks whose agent was killed with them; `None` without any.
pub(crate) fn cut_off(paths: &RunPaths) -> Option<(Vec<CheckpointFile>, bool)> {
    let lost = known(paths).into_iter().filter(|known| saved_file::is_cut_off(&known.path));
    let lost: Vec<CheckpointFile> = lost
        .map(|KnownCheckpoint { path, bytes, .. }| CheckpointFile {
            path: path.display().to_string(),
            bytes,
            is_cut_off: true,
            ..CheckpointFile::default()
        })
        .collect();
    (!lost.is_empty()).then_some((lost, false))
}

/// Where a checkpoint of this generation is set aside.
fn aside(path: &Path, generation: Generation) -> Option<PathBuf> {
    Some(path.parent()?.join(format!("gen{generation}")).join(path.file_name()?))
}

/// The size of a file or of all files in a directory; `None`: it does not exist.
fn size(path: &Path) -> Option<u64> {
    let data = std::fs::metadata(path).ok()?;
    if !data.is_dir() {
        return Some(data.len());
    }
    let (mut bytes, mut files) = (0_u64, 0);
    let mut open = vec![(path.to_owned(), 0)];
    while let Some((folder, depth)) = open.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            files += 1;
            let Some(data) = entry.metadata().ok().filter(|_| files <= FILES) else { continue };
            if data.is_dir() && depth < DEPTH {
                open.push((entry.path(), depth + 1));
            } else if data.is_file() {
                bytes = bytes.saturating_add(data.len());
            }
        }
    }
    Some(bytes)
}

/// A checkpoint of the present line of training.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LineCheckpoint {
    pub path: String,
    /// The generation that wrote it last.
    pub generation: Generation,
    /// It was written more than once.
    pub repeated: bool,
    /// A rank has reported it.
    pub reported: bool,
    pub env_step: Option<u64>,
    /// Latest change of its files, as they were found.
    modified: Option<f64>,
    /// When it was complete, as far as is known.
    time: f64,
}

impl LineCheckpoint {
    /// When it was written last, as far as is recorded; seconds since the epoch.
    pub fn written(&self) -> f64 {
        self.modified.map_or(self.time, |modified| modified.max(self.time))
    }

    /// Latest change of its files, as the agent found them.
    pub fn found(&self) -> Option<f64> {
        self.modified
    }
}

/// The checkpoints of the present line of training, those that were written last at the end.
#[derive(Debug, Default)]
pub(crate) struct TrainingLine(pub Vec<LineCheckpoint>);

impl TrainingLine {
    /// Applies a record of a generation before the next one.
    pub fn read(&mut self, record: &Record) {
        let generation = record.generation;
        match &record.event {
            RecordEvent::Launched { spec } => {
                let mut kept = self.continued(spec.resume_path(), spec.plan.members().count()).into_iter();
                self.0.retain(|_| kept.next().unwrap_or(false));
            }
            RecordEvent::Rank { event: RankEvent::Checkpoint { path, env_step, .. }, .. } => {
                let known = self.0.iter().position(|known| known.path == *path);
                let known = known.map(|at| self.0.remove(at));
                self.add(LineCheckpoint {
                    path: path.clone(),
                    generation,
                    repeated: known.as_ref().is_some_and(|known| known.reported || known.repeated),
                    reported: true,
                    env_step: Some(*env_step).filter(|step| *step > 0),
                    modified: known.and_then(|known| known.modified),
                    time: record.time,
                });
            }
            RecordEvent::CheckpointFiles { files, .. } => {
                files.iter().for_each(|file| self.find(file, generation))
            }
            _ => {}
        }
    }

    /// KNOWN-1. A file was found.
    fn find(&mut self, file: &CheckpointFile, generation: Generation) {
        if file.is_cut_off {
            return self.0.retain(|known| known.path != file.path);
        }
        let path = Path::new(&file.path);
        // A program may report a directory, and write files in it, or the other way round.
        let is_part = |known: &LineCheckpoint| {
            known.path == file.path
                || known.reported
                    && (path.starts_with(&known.path) || Path::new(&known.path).starts_with(path))
        };
        let known = self.0.iter().position(is_part);
        if let Some(at) = known {
            let known = &mut self.0[at];
            if known.reported || known.modified == Some(file.modified) {
                known.modified = Some(file.modified);
                return;
            }
        }
        let repeated = known.map(|at| self.0.remove(at)).is_some();
        self.add(LineCheckpoint {
            path: file.path.clone(),
            generation,
            repeated,
            reported: false,
            env_step: file.env_step,
            modified: Some(file.modified),
            time: file.modified,
        });
    }

    fn add(&mut self, checkpoint: LineCheckpoint) {
        if self.0.len() >= KNOWN {
            self.0.remove(0);
        }
        self.0.push(checkpoint);
    }

    /// Which of them a generation continues that runs on `hosts` hosts and resumes from the path `from` on this host.
    pub fn continued(&self, from: Option<&str>, hosts: usize) -> Vec<bool> {
        let Some(from) = from else { return vec![false; self.0.len()] };
        // A program may keep a checkpoint in a directory, and be given a file of it.
        let depth = |known: &LineCheckpoint| Path::new(&known.path).components().count();
        let origins = self.0.iter().enumerate().filter(|(_, one)| Path::new(from).starts_with(&one.path));
        let Some((last, origin)) = origins.max_by_key(|(at, one)| (depth(one), *at)) else {
            // Another host may have saved it, and files next to it on this host may belong to it.
            return vec![hosts > 1; self.0.len()];
        };
        let belongs = |one: &LineCheckpoint| !one.reported && one.time <= origin.time + TOGETHER_S;
        self.0.iter().enumerate().map(|(at, one)| at <= last || belongs(one)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::ids::{NodeRank, Rank};
    use std::fs::{create_dir_all, write};

    fn found(path: &Path, modified: f64) -> RecordEvent {
        let path = path.display().to_string();
        let file =
            CheckpointFile { path, bytes: 1, modified, env_step: Some(7), ..CheckpointFile::default() };
        RecordEvent::CheckpointFiles { files: vec![file], complete: false }
    }

    fn reported(path: &Path) -> RecordEvent {
        let path = path.display().to_string();
        let event = RankEvent::Checkpoint { path, env_step: 9, train_iter: 1, reason: "best".into() };
        RecordEvent::Rank { rank: Rank(0), event }
    }

    #[test]
    fn known_1_reported_and_found_are_one_wherever_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let paths = RunPaths { run_dir: at("run"), node: NodeRank(0) };
        create_dir_all(paths.node_dir()).unwrap();
        create_dir_all(at("out/gen0")).unwrap();
        create_dir_all(at("out/checkpoint-4")).unwrap();
        write(at("out/checkpoint-4/a.bin"), "12345").unwrap();
        write(at("out/checkpoint-4/b.bin"), "123").unwrap();
        write(at("out/best.pt"), "12").unwrap();
        write(at("out/gen0/last.pt"), "1").unwrap();
        let events = [
            (0, found(&at("out/checkpoint-4"), 1.0)),
            (0, reported(&at("out/best.pt"))),
            (0, found(&at("out/best.pt"), 2.0)),
            (0, found(&at("out/last.pt"), 3.0)),
            (0, reported(&at("out/gone.pt"))),
            (1, reported(&at("out/best.pt"))),
        ];
        let line = |(seq, (generation, event)): (usize, (u32, RecordEvent))| {
            let record = Record { seq: seq as u64 + 1, time: 1.0, generation: Generation(generation), event };
            serde_json::to_string(&record).unwrap() + "\n"
        };
        let lines: Vec<String> = events.into_iter().enumerate().map(line).collect();
        write(paths.spool(), lines.concat()).unwrap();
        let known = |path: &str, bytes, generation, env_step| KnownCheckpoint {
            path: at(path),
            bytes,
            generation: Generation(generation),
            env_step: Some(env_step),
        };
        assert_eq!(
            super::known(&paths),
            [
                known("out/checkpoint-4", 8, 0, 7),
                known("out/gen0/last.pt", 1, 0, 7),
                known("out/best.pt", 2, 1, 9)
            ]
        );
    }

    /// The host went down while a rank saved.
    #[test]
    fn known_checkpoint_without_its_end_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let paths = RunPaths { run_dir: at("run"), node: NodeRank(0) };
        create_dir_all(paths.node_dir()).unwrap();
        write(at("a.pt"), b"PK\x03\x04weights").unwrap();
        write(at("b.pt"), "12").unwrap();
        let line = |seq, event| {
            let record = Record { seq, time: 1.0, generation: Generation(0), event };
            serde_json::to_string(&record).unwrap() + "\n"
        };
        write(paths.spool(), line(1, found(&at("a.pt"), 1.0)) + &line(2, found(&at("b.pt"), 2.0))).unwrap();
        let (lost, is_complete) = cut_off(&paths).unwrap();
        assert_eq!((lost.len(), lost[0].is_cut_off, is_complete), (1, true, false));
        assert_eq!(lost[0].path, at("a.pt").display().to_string());
        write(at("a.pt"), b"PK\x03\x04weightsPK\x05\x06").unwrap();
        assert_eq!(cut_off(&paths), None);
    }

    #[test]
    fn found_file_is_repeated_only_after_a_change() {
        let mut line = TrainingLine::default();
        let mut read = |event| {
            line.read(&Record { seq: 1, time: 1.0, generation: Generation(0), event });
            line.0.last().map(|known| (known.repeated, known.reported)).unwrap()
        };
        let path = Path::new("/w/a.pt");
        assert_eq!(read(found(path, 1.0)), (false, false));
        assert_eq!(read(found(path, 1.0)), (false, false), "at the end, all of them are found again");
        assert_eq!(read(found(path, 2.0)), (true, false));
        assert_eq!(read(reported(path)), (true, true));
        assert_eq!(read(found(Path::new("/w/a.pt"), 3.0)), (true, true));
    }
}
