//! Finds files of values that a program opens for each row only: Lightning's CSVLogger, pandas, MLflow's file store.
//!
//! No descriptor shows who writes them. They are searched for where the program works.
//!
//! Owner: the thread that follows metric files. Invariants:
//! - CLOSEDLOG-1: a search is bounded in time, entries and depth, and at most [`FILES`] files are remembered. Searches
//!   are up to [`LATEST`] apart; in between, the files that are known are looked at.
//! - CLOSEDLOG-2: a file counts once it has grown since the launch, and only while no other run works in the same
//!   `workdir`. Files of other ranks, by the names of their directories, are left out.

use crate::observe::checkpoint_files::may_have_own_files;
use crate::observe::open_logs::{FileKey, LogKind};
use crate::other_runs;
use crate::proc::{self, ProcessKey};
use rankdeck_proto::folders;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Processes of the program whose directories are searched.
const PROCESSES: usize = 32;
/// Bounds of a search.
const ENTRIES: usize = 5_000;
const DEPTH: usize = 8;
const PATIENCE: Duration = Duration::from_millis(50);
/// Most files that are remembered.
const FILES: usize = 256;
/// Between two searches: this long at first, then twice as long each time up to the bound.
const FIRST: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_secs(30);
/// A new file that was changed this long after its creation has grown.
const GROWN: Duration = Duration::from_millis(500);

/// A file that has grown.
#[derive(Debug)]
pub(super) struct ClosedLog {
    pub key: FileKey,
    pub path: PathBuf,
    pub kind: LogKind,
    /// Bytes that an earlier program has written.
    pub begin: u64,
}

/// A file that may grow.
#[derive(Debug)]
struct Candidate {
    path: PathBuf,
    kind: LogKind,
    /// It was created since the launch.
    is_new: bool,
    /// Size when it was found.
    bytes: u64,
}

impl Candidate {
    /// `is_alone`: no other run has worked here since the launch, so that a new file is this one's.
    fn has_grown(&self, data: &Metadata, is_alone: bool) -> bool {
        let age = data.modified().and_then(|modified| Ok((modified, data.created()?)));
        let is_written_later = age.is_ok_and(|(modified, created)| {
            modified.duration_since(created).is_ok_and(|later| later >= GROWN)
        });
        data.len() > self.bytes || is_alone && self.is_new && is_written_later
    }
}

/// The files of a generation.
#[derive(Debug, Default)]
pub(super) struct ClosedLogs {
    candidates: BTreeMap<FileKey, Candidate>,
    /// Another run has worked in the same `workdir` since the launch.
    had_company: bool,
    /// The next search, and the time until the one after it.
    due: Option<(Instant, Duration)>,
}

impl ClosedLogs {
    /// Returns files that have grown and are not known. `root`: the program's first process, while it lives.
    /// `run_dir`: the run's directory. `launched`: what is older was written by another program.
    pub fn find(
        &mut self,
        root: Option<ProcessKey>,
        run_dir: &Path,
        launched: SystemTime,
        now: Instant,
        is_known: impl Fn(FileKey) -> bool,
    ) -> Vec<ClosedLog> {
        if let Some(root) = root.filter(|_| self.due.is_none_or(|(due, _)| due <= now)) {
            let pause = self.due.map_or(FIRST, |(_, pause)| (pause * 2).min(LATEST));
            self.due = Some((now + pause, pause));
            self.had_company |= other_runs::any_live(run_dir);
            self.search(&folders_of(root), run_dir, launched, is_known);
        }
        self.grown(run_dir)
    }

    /// Takes the files that have grown.
    fn grown(&mut self, run_dir: &Path) -> Vec<ClosedLog> {
        let (mut grown, is_alone) = (Vec::new(), !self.had_company);
        self.candidates.retain(|key, candidate| {
            let data = std::fs::symlink_metadata(&candidate.path).ok();
            // It may have been removed or replaced.
            let Some(data) = data.filter(|data| data.is_file() && key_of(data) == *key) else { return false };
            if !candidate.has_grown(&data, is_alone) {
                return true;
            }
            let Candidate { kind, is_new, bytes, .. } = *candidate;
            let path = std::mem::take(&mut candidate.path);
            grown.push(ClosedLog { key: *key, path, kind, begin: if is_new { 0 } else { bytes } });
            false
        });
        // CLOSEDLOG-2. A later search finds them again.
        if !grown.is_empty() && other_runs::any_live(run_dir) {
            self.had_company = true;
            grown.clear();
        }
        grown
    }

    /// CLOSEDLOG-1. Directories close to the top come first.
    fn search(
        &mut self,
        tops: &BTreeSet<PathBuf>,
        run_dir: &Path,
        launched: SystemTime,
        is_known: impl Fn(FileKey) -> bool,
    ) {
        let (begun, mut entries) = (Instant::now(), 0);
        let runs = run_dir.parent().unwrap_or(run_dir);
        // Programs of all kinds write below these.
        let home = folders::home();
        let is_shared = |folder: &Path| folder.parent().is_none() || folder == home;
        let is_covered =
            |top: &Path| top.ancestors().skip(1).any(|above| tops.contains(above) && !is_shared(above));
        for top in tops.iter().filter(|top| !is_covered(top)) {
            let deepest = if is_shared(top) { 0 } else { DEPTH };
            let mut todo = VecDeque::from([(top.clone(), 0)]);
            while let Some((folder, depth)) = todo.pop_front() {
                let Ok(found) = std::fs::read_dir(&folder) else { continue };
                for entry in found.flatten() {
                    entries += 1;
                    if entries > ENTRIES || begun.elapsed() > PATIENCE || self.candidates.len() >= FILES {
                        return;
                    }
                    let Ok(kind) = entry.file_type() else { continue };
                    let path = entry.path();
                    if kind.is_dir() && depth < deepest && may_have_own_files(&path, runs) {
                        todo.push_back((path, depth + 1));
                    } else if kind.is_file()
                        && let Some(kind) = kind_of(&path)
                        && path.strip_prefix(top).is_ok_and(|below| !is_of_another_rank(below))
                        && let Ok(data) = entry.metadata()
                        && data.modified().is_ok_and(|time| time >= launched)
                        && !is_known(key_of(&data))
                    {
                        let is_new = data.created().is_ok_and(|time| time >= launched);
                        let bytes = data.len();
                        let candidate = Candidate { path, kind, is_new, bytes };
                        self.candidates.entry(key_of(&data)).or_insert(candidate);
                    }
                }
            }
        }
    }
}

fn key_of(data: &Metadata) -> FileKey {
    (data.dev(), data.ino())
}

/// Directories that a program's processes work in.
fn folders_of(root: ProcessKey) -> BTreeSet<PathBuf> {
    if proc::stat(root.pid).is_none_or(|stat| stat.start != root.start) {
        return BTreeSet::new();
    }
    let pids = proc::nearest(root.pid, PROCESSES).into_iter();
    pids.filter_map(|pid| std::fs::read_link(format!("/proc/{pid}/cwd")).ok()).collect()
}

/// Returns the kind of a file whose rows are text; event files and run files are held open.
fn kind_of(path: &Path) -> Option<LogKind> {
    if mlflow_name(path).is_some() {
        return Some(LogKind::Mlflow);
    }
    let kind = LogKind::of(&path.to_string_lossy())?;
    matches!(kind, LogKind::Csv | LogKind::JsonLines).then_some(kind)
}

/// Returns the name of a metric in MLflow's file store: `mlruns/EXPERIMENT/RUN/metrics/NAME`.
pub(super) fn mlflow_name(path: &Path) -> Option<String> {
    let parts: Vec<String> =
        path.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    let at = parts.iter().rposition(|part| part == "mlruns")?;
    let [_, _, folder, name @ ..] = parts.get(at + 1..)? else { return None };
    (folder == "metrics" && !name.is_empty()).then(|| name.join("/"))
}

/// A directory or the file is named after another rank than 0: `rank1`, `rank_3`.
fn is_of_another_rank(path: &Path) -> bool {
    let numbers = |part: &str| -> bool {
        part.split("rank").skip(1).any(|rest| {
            let rest = rest.trim_start_matches(['_', '-', '=']);
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u64>().is_ok_and(|number| number > 0)
        })
    };
    path.components().any(|part| numbers(&part.as_os_str().to_string_lossy().to_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;
    use std::fs::{OpenOptions, create_dir_all, write};
    use std::io::Write;
    use std::process::{Child, Command};

    struct Program(Child);

    impl Drop for Program {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn closedlog_2_files_of_mlflow_and_other_ranks_are_known() {
        let name = |path: &str| mlflow_name(Path::new(path));
        assert_eq!(name("/w/mlruns/0/ab12/metrics/train/loss").as_deref(), Some("train/loss"));
        for path in ["/w/mlruns/0/ab12/params/lr", "/w/mlruns/0/ab12/metrics", "/w/metrics/loss"] {
            assert_eq!(name(path), None, "{path}");
        }
        for (path, expected) in
            [("rank1/metrics.csv", true), ("out/rank_12/a.csv", true), ("rank0/a.csv", false), ("a", false)]
        {
            assert_eq!(is_of_another_rank(Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn closedlog_1_files_and_depth_are_bounded() {
        let made = tempfile::tempdir().unwrap();
        let top = made.path().canonicalize().unwrap();
        let program = Program(Command::new("sleep").arg("60").current_dir(&top).spawn().unwrap());
        let stat = proc::stat(program.0.id()).unwrap();
        let root = ProcessKey { pid: stat.pid, start: stat.start };
        let deep = top.join("0/1/2/3/4/5/6/7/8");
        let folders = (0..FILES + 20).map(|number| top.join(format!("trial{number}")));
        for folder in folders.chain([deep.clone()]) {
            create_dir_all(&folder).unwrap();
            write(folder.join("metrics.csv"), "step,loss\n").unwrap();
        }
        let launched = SystemTime::now() - Duration::from_secs(60);
        let mut logs = ClosedLogs::default();
        // Searches of a busy machine end by their time.
        let mut at = Instant::now();
        for _ in 0..10 {
            at += LATEST;
            logs.find(Some(root), &top.join("runs/own"), launched, at, |_| false);
        }
        assert!((1..=FILES).contains(&logs.candidates.len()), "{}", logs.candidates.len());
        assert!(logs.candidates.values().all(|file| !file.path.starts_with(&deep)));
    }

    #[test]
    fn closedlog_2_file_counts_once_it_has_grown() {
        let made = tempfile::tempdir().unwrap();
        let top = made.path().canonicalize().unwrap();
        let mut command = Command::new("sleep");
        let program = Program(command.arg("60").current_dir(&top).spawn().unwrap());
        let stat = proc::stat(program.0.id()).unwrap();
        let root = ProcessKey { pid: stat.pid, start: stat.start };
        for folder in ["lightning_logs/version_0", "mlruns/0/ab/metrics", "rank1", "runs/b/node0", "venv"] {
            create_dir_all(top.join(folder)).unwrap();
        }
        write(top.join("venv/pyvenv.cfg"), "").unwrap();
        let csv = "lightning_logs/version_0/metrics.csv";
        let files = [csv, "mlruns/0/ab/metrics/loss", "rank1/metrics.csv", "data.csv", "venv/metrics.csv"];
        let append = |text: &str| {
            for name in files {
                let file = OpenOptions::new().create(true).append(true).open(top.join(name));
                file.and_then(|mut file| file.write_all(text.as_bytes())).unwrap();
            }
        };
        append("step,loss\n");
        let launched = SystemTime::now() - Duration::from_secs(60);
        let run_dir = top.join("runs/own");
        let mut logs = ClosedLogs::default();
        let mut at = Instant::now();
        let mut find = || {
            at += LATEST;
            let found = logs.find(Some(root), &run_dir, launched, at, |_| false);
            let name = |log: ClosedLog| log.path.strip_prefix(&top).unwrap().display().to_string();
            found.into_iter().map(name).collect::<BTreeSet<String>>()
        };
        assert!(find().is_empty());
        let manifest = Manifest {
            hostname: proc::hostname(),
            boot_id: proc::boot_id(),
            agent_pid: stat.pid,
            agent_start: stat.start,
            running: true,
            ..Manifest::default()
        };
        write(top.join("runs/b/node0/manifest.json"), manifest.bytes()).unwrap();
        append("1,0.5\n");
        assert!(find().is_empty(), "another run works here");
        std::fs::remove_file(top.join("runs/b/node0/manifest.json")).unwrap();
        let mut found = find();
        append("2,0.25\n");
        found.extend(find());
        assert_eq!(found, BTreeSet::from([csv, "mlruns/0/ab/metrics/loss"].map(str::to_owned)));
    }
}
