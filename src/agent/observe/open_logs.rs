//! Finds the files in which a program logs values: those that its processes hold open for writing.
//!
//! A file belongs to the run if a process of the rank has it open, whatever its directory is and whichever other
//! processes write there.
//!
//! - OPENLOG-1: one scan reads at most [`PROCESSES`] processes and [`DESCRIPTORS`] descriptors of each. Links are
//!   read; only what looks like a log is opened, by the descriptor, so that it is the same file in a container.

use crate::open_files::OpenFileSlot;
use crate::proc::{self, ProcessKey};
use rankdeck_proto::regular;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

/// Most processes of one scan: the rank's own, its programs and their children.
const PROCESSES: usize = 32;
/// Most descriptors of a process.
const DESCRIPTORS: usize = 256;
/// Names of files with rows of values, without their endings.
const ROWS: [&str; 16] = [
    "progress", "metrics", "scalars", "result", "results", "log", "logs", "train", "training", "history",
    "stats", "scores", "episodes", "losses", "rewards", "returns",
];
/// Names of files with the values of evaluations, next to one with those of training.
const EVALUATIONS: [&str; 6] = ["eval", "evals", "evaluation", "evaluations", "eval_log", "eval_results"];

/// Device and inode of a file.
pub(super) type FileKey = (u64, u64);

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogKind {
    /// TensorBoard's events.
    Events,
    /// A header and rows.
    Csv,
    /// An object per line.
    JsonLines,
    /// Weights & Biases' run file.
    Wandb,
    /// A metric of MLflow's file store: `TIME VALUE STEP` per line.
    Mlflow,
}

impl LogKind {
    /// Returns the kind of a file by its path; `None` if it is not a log of values.
    pub fn of(path: &str) -> Option<LogKind> {
        let name = path.rsplit('/').next().unwrap_or(path);
        if name.contains("events.out.tfevents") {
            return Some(LogKind::Events);
        }
        let (stem, ending) = name.rsplit_once('.')?;
        if ending == "wandb" && stem.starts_with("run-") {
            return Some(LogKind::Wandb);
        }
        let stem = stem.to_ascii_lowercase();
        let is_rows = ROWS.contains(&stem.as_str())
            || EVALUATIONS.contains(&stem.as_str())
            || stem.starts_with("progress")
            || stem.ends_with("metrics");
        match ending {
            "csv" if is_rows => Some(LogKind::Csv),
            "json" | "jsonl" | "ndjson" if is_rows => Some(LogKind::JsonLines),
            _ => None,
        }
    }

    /// Whether the rows of a file are about evaluations, by its path: their values have the names of training.
    pub fn is_of_evaluations(path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path);
        name.to_ascii_lowercase().starts_with("eval")
    }

    /// The source of its values.
    pub fn source(self) -> &'static str {
        match self {
            LogKind::Events => "tensorboard",
            LogKind::Csv => "csv",
            LogKind::JsonLines => "jsonl",
            LogKind::Wandb => "wandb",
            LogKind::Mlflow => "mlflow",
        }
    }
}

/// An open log.
#[derive(Debug)]
pub(super) struct OpenLog {
    pub key: FileKey,
    pub kind: LogKind,
    pub file: File,
    pub slot: OpenFileSlot,
    /// Bytes that an earlier program has written.
    pub begin: u64,
    /// [`LogKind::is_of_evaluations`].
    pub of_evaluations: bool,
}

/// Finds the logs that the processes of a rank hold open for writing. `launched`: what is older was written by
/// another program.
pub(super) fn find(
    root: ProcessKey,
    is_known: impl Fn(FileKey) -> bool,
    launched: SystemTime,
) -> Vec<OpenLog> {
    if proc::stat(root.pid).is_none_or(|stat| stat.start != root.start) {
        return Vec::new();
    }
    let mut found: Vec<OpenLog> = Vec::new();
    for pid in proc::nearest(root.pid, PROCESSES) {
        let Ok(folder) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        for entry in folder.flatten().take(DESCRIPTORS) {
            let path = entry.path();
            let Ok(link) = std::fs::read_link(&path) else { continue };
            let link = link.to_string_lossy();
            let Some(kind) = LogKind::of(&link) else { continue };
            let Some(number) = entry.file_name().to_str().map(str::to_owned) else { continue };
            let Some(flags) = flags(pid, &number).filter(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
            else {
                continue;
            };
            let Some(slot) = OpenFileSlot::take() else { return found };
            let Ok(file) = regular::open(&path) else { continue };
            let Ok(data) = file.metadata() else { continue };
            let key = (data.dev(), data.ino());
            if is_known(key) || found.iter().any(|log| log.key == key) {
                continue;
            }
            // One that is continued.
            let is_older = flags & libc::O_APPEND != 0 && data.created().is_ok_and(|time| time < launched);
            let begin = if is_older { data.len() } else { 0 };
            let of_evaluations = LogKind::is_of_evaluations(&link);
            found.push(OpenLog { key, kind, file, slot, begin, of_evaluations });
        }
    }
    found
}

/// The flags with which a descriptor was opened.
fn flags(pid: u32, number: &str) -> Option<i32> {
    let text = proc::text(format!("/proc/{pid}/fdinfo/{number}"))?;
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"))?;
    i32::from_str_radix(flags.trim(), 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::time::Duration;

    fn own() -> ProcessKey {
        let pid = std::process::id();
        ProcessKey { pid, start: proc::stat(pid).unwrap().start }
    }

    #[test]
    fn openlog_1_logs_are_known_by_their_names() {
        for (path, kind) in [
            ("/x/logs/ppo_3/events.out.tfevents.1.host", Some(LogKind::Events)),
            ("/x/progress.csv", Some(LogKind::Csv)),
            ("/x/train_metrics.csv", Some(LogKind::Csv)),
            ("metrics.jsonl", Some(LogKind::JsonLines)),
            ("/x/progress.json", Some(LogKind::JsonLines)),
            ("/x/wandb/run-20261130_120000-ab12cd34/run-ab12cd34.wandb", Some(LogKind::Wandb)),
            ("/x/settings.wandb", None),
            ("/x/eval.csv", Some(LogKind::Csv)),
            ("/x/scores.jsonl", Some(LogKind::JsonLines)),
            ("/x/eval_data.csv", None),
            ("/x/data.csv", None),
            ("/x/config.json", None),
            ("/x/metrics", None),
            ("socket:[1]", None),
            ("/x/events.out", None),
        ] {
            assert_eq!(LogKind::of(path), kind, "{path}");
        }
    }

    #[test]
    fn openlog_1_only_files_open_for_writing_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("metrics.csv"), "a,b\n").unwrap();
        std::fs::write(at("metrics.jsonl"), "{}\n").unwrap();
        let _read = File::open(at("metrics.csv")).unwrap();
        let _appended = OpenOptions::new().append(true).open(at("metrics.jsonl")).unwrap();
        let written = File::create(at("progress.csv")).unwrap();
        let _other = File::create(at("checkpoint.pt")).unwrap();
        let launched = SystemTime::now() + Duration::from_secs(60);
        let inside = |log: &OpenLog| {
            let dev = std::fs::metadata(folder.path()).unwrap().dev();
            let all = ["metrics.csv", "metrics.jsonl", "progress.csv"];
            let name = all.into_iter().find(|name| std::fs::metadata(at(name)).unwrap().ino() == log.key.1);
            name.filter(|_| log.key.0 == dev)
        };
        let found = find(own(), |_| false, launched);
        let mut names: Vec<(&str, u64)> =
            found.iter().filter_map(|log| Some((inside(log)?, log.begin))).collect();
        names.sort_unstable();
        // Where the file system has no time of creation, all of it counts.
        let older = if written.metadata().unwrap().created().is_ok() { 3 } else { 0 };
        assert_eq!(names, [("metrics.jsonl", older), ("progress.csv", 0)], "an older part is left out");
        let key = written.metadata().map(|data| (data.dev(), data.ino())).unwrap();
        assert!(!find(own(), |known| known == key, launched).iter().any(|log| log.key == key));
        let gone = ProcessKey { start: own().start + 1, ..own() };
        assert!(find(gone, |_| false, launched).is_empty(), "a pid that another process has");
    }
}
