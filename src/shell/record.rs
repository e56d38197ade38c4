//! What the console keeps: `runs/RUN/console/` with `record/` (what the core was told: [`segments`]),
//! `events.jsonl` (the reports), `console.log` and, for a launch, `experiment.toml` and `hosts.json`, and
//! `learnt.json`: what the watch has learnt about the run's pace, for the next console. A second console on
//! the same run uses `console-2/`, and so on.
//!
//! Owner: the driver. Files are private (0600 in 0700 folders): environments may hold secrets. A thread
//! writes them (`queue`): the console never waits for a disk. One that fails costs the record, never the
//! run.
//!
//! Invariant REC-1: all files are bounded and keep their end. The record is a ring (TRACE-2). A full
//! `events.jsonl` becomes `events-old.jsonl`, whose own lines go; how many went is said.

mod files;
pub mod found;
mod journal;
mod learnt;
mod queue;
pub mod reader;
pub mod segments;

pub use learnt::recall;

use journal::Journal;
use queue::Job;
use rankdeck_core::event::Event;
use rankdeck_core::report::Report;
use rankdeck_core::{Core, Goal, PaceHistory};
use rankdeck_types::ids::{RunId, Timestamp, WallTime};
use rankdeck_types::words;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What was learnt is kept this often.
pub const LEARNT_MS: u64 = 10_000;
/// Folder of the segments.
pub const RECORD: &str = "record";
/// About the bytes of reports that are given to the thread at once.
const REPORTS: u64 = 256 << 10;
/// Written lines reach the file at the latest after this.
pub const FLUSH_MS: u64 = 1000;

/// The open files of one console.
#[derive(Debug)]
pub struct Recorder {
    folder: PathBuf,
    ring: segments::Ring,
    /// Those that were not given to the thread yet, and about their bytes.
    reports: (Vec<Report>, u64),
    /// Reports that no file has: those that a slow disk did not take, and how many of all were told.
    refused: u64,
    told: u64,
    dirty_since: Option<Timestamp>,
    learnt: PaceHistory,
    learnt_at: Timestamp,
}

/// What a console has kept, for its last words.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptRecord {
    pub folder: PathBuf,
    /// Wall time of the first moment that can be gone back to.
    pub since: Option<WallTime>,
    /// Bytes of the record on disk.
    pub bytes: u64,
}

/// Makes `RUNS/RUN/console/` (or the next free `console-N/`).
pub fn make_folder(runs: &Path, run: &RunId) -> io::Result<PathBuf> {
    let mut builder = DirBuilder::new();
    builder.mode(0o700).recursive(true);
    let parent = runs.join(&run.0);
    builder.create(&parent)?;
    builder.recursive(false);
    for n in 1..1000 {
        let folder = parent.join(if n == 1 { "console".to_owned() } else { format!("console-{n}") });
        match builder.create(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| folder),
        }
    }
    Err(io::Error::other("a thousand consoles have watched this run from here"))
}

/// A private file that must not exist yet.
pub fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

impl Recorder {
    /// Opens the files in `folder`. Time 0 is now.
    pub fn new(folder: &Path, goal: &Goal, time: WallTime) -> io::Result<Recorder> {
        if let Goal::Launch(draft) = goal {
            let experiment = toml::to_string(&draft.experiment).map_err(io::Error::other)?;
            create(&folder.join("experiment.toml"))?.write_all(experiment.as_bytes())?;
            serde_json::to_writer_pretty(create(&folder.join("hosts.json"))?, &draft.hosts)?;
        }
        let segments = folder.join(RECORD);
        DirBuilder::new().mode(0o700).create(&segments)?;
        let journal = Journal::new(&folder.join("events.jsonl"))?;
        Ok(Recorder {
            folder: folder.to_owned(),
            ring: segments::Ring::beside(Some(journal), segments, segments::LIMITS, Timestamp(0), time)?,
            reports: Default::default(),
            refused: 0,
            told: 0,
            dirty_since: None,
            learnt: PaceHistory::default(),
            learnt_at: Timestamp(0),
        })
    }

    /// Where the files are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of all runs in which it lies.
    pub fn runs(&self) -> Option<&Path> {
        self.folder.ancestors().nth(2)
    }

    /// Keeps an event that `core` is about to be told.
    pub fn event(&mut self, now: Timestamp, event: &Event, core: &Core) {
        self.ring.event(now, event, core);
        self.dirty_since.get_or_insert(now);
    }

    /// What the user should know of the record, once.
    pub fn take_notices(&mut self) -> Vec<String> {
        let mut notices = self.ring.take_notices();
        let lost = self.refused + self.ring.queue().status().reports_lost;
        if lost > self.told {
            self.told = lost;
            notices.push(format!("events.jsonl: {} reports are not kept in it", words::count(lost)));
        }
        notices
    }

    /// Writes everything out, for who reads it now.
    pub fn settle(&mut self, now: Timestamp) {
        self.send_reports(now);
        self.ring.settle(now);
    }

    /// Ends it, and says what is kept.
    pub fn close(mut self) -> KeptRecord {
        self.send_reports(self.learnt_at);
        self.ring.finish();
        KeptRecord { folder: self.folder.clone(), since: self.ring.since(), bytes: self.ring.bytes() }
    }

    /// What happened, moment by moment.
    pub fn ring(&self) -> &segments::Ring {
        &self.ring
    }

    /// Keeps a report.
    pub fn report(&mut self, now: Timestamp, report: Box<Report>) {
        self.reports.1 += queue::weight(&report);
        self.reports.0.push(*report);
        self.dirty_since.get_or_insert(now);
        if self.reports.1 >= REPORTS {
            self.send_reports(now);
        }
    }

    fn send_reports(&mut self, now: Timestamp) {
        let (reports, _) = std::mem::take(&mut self.reports);
        let count = reports.len() as u64;
        if count > 0 && self.ring.queue().send(now, Job::Report(reports)).is_err() {
            self.refused += count;
        }
    }

    /// When to flush next.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.dirty_since.map(|since| since.plus(FLUSH_MS))
    }

    /// Keeps what the watch has learnt, at most every [`LEARNT_MS`], or `now` is not given.
    pub fn learnt(&mut self, now: Option<Timestamp>, learnt: impl FnOnce() -> PaceHistory) {
        if now.is_some_and(|now| now.since(self.learnt_at) < LEARNT_MS) {
            return;
        }
        self.learnt_at = now.unwrap_or(self.learnt_at);
        let learnt = learnt();
        if learnt == self.learnt {
            return;
        }
        let at = now.unwrap_or(self.learnt_at);
        let job = Job::Learnt(self.folder.clone(), learnt.clone());
        if self.ring.queue().send(at, job).is_ok() {
            self.learnt = learnt;
        }
    }

    /// Flushes if it will be time soon, so that nobody has to wake for it, or `now` is not given.
    pub fn flush(&mut self, now: Option<Timestamp>) {
        let due = match (now, self.poll_timeout()) {
            (None, _) => true,
            (Some(now), Some(due)) => now.plus(FLUSH_MS / 2) >= due,
            (Some(_), None) => false,
        };
        if due {
            let now = now.unwrap_or(self.learnt_at);
            self.send_reports(now);
            self.ring.flush(now);
            self.dirty_since = None;
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.send_reports(self.learnt_at);
        self.ring.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn goal() -> Goal {
        Goal::Attach { run: RunId("r".into()), hosts: vec!["a".into()] }
    }

    #[test]
    fn each_console_has_a_private_folder_of_its_own() {
        let runs = tempfile::tempdir().unwrap();
        let run = RunId("r-1".into());
        let first = make_folder(runs.path(), &run).unwrap();
        let second = make_folder(runs.path(), &run).unwrap();
        assert!(first.ends_with("r-1/console") && second.ends_with("r-1/console-2"));
        Recorder::new(&first, &goal(), 0.0).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&first), mode(&first.join(RECORD))), (0o700, 0o700));
    }

    #[test]
    fn what_was_recorded_can_be_read_after_a_flush() {
        let runs = tempfile::tempdir().unwrap();
        let folder = make_folder(runs.path(), &RunId("r".into())).unwrap();
        let mut recorder = Recorder::new(&folder, &goal(), 7.0).unwrap();
        let core = Core::new(goal(), Vec::new(), Timestamp(0));
        recorder.event(Timestamp(3), &Event::Ticked, &core);
        assert_eq!(recorder.poll_timeout(), Some(Timestamp(3 + FLUSH_MS)));
        recorder.flush(Some(Timestamp(4)));
        assert!(recorder.poll_timeout().is_some(), "not yet");
        recorder.flush(Some(Timestamp(3 + FLUSH_MS)));
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let read =
            || reader::Record::open(&folder.join(RECORD)).ok().filter(|record| record.events().count() > 0);
        let record = loop {
            if let Some(record) = read() {
                break record;
            }
            assert!(std::time::Instant::now() < deadline, "nothing is written");
            std::thread::yield_now();
        };
        // The console may be killed now.
        std::mem::forget(recorder);
        assert_eq!(record.events().collect::<Vec<_>>(), [(Timestamp(3), Event::Ticked)]);
        assert_eq!(record.since(), 7.003);
    }

    #[test]
    fn what_was_learnt_is_found_by_the_next_console_of_the_run_and_nonsense_is_ignored() {
        let runs = tempfile::tempdir().unwrap();
        let run = RunId("r".into());
        let first = make_folder(runs.path(), &run).unwrap();
        let mut recorder = Recorder::new(&first, &goal(), 0.0).unwrap();
        let learnt = PaceHistory { places: vec![vec![(4, 7)]] };
        recorder.learnt(Some(Timestamp(5)), || panic!("not yet"));
        recorder.learnt(Some(Timestamp(LEARNT_MS)), || learnt.clone());
        recorder.settle(Timestamp(LEARNT_MS));
        let second = make_folder(runs.path(), &run).unwrap();
        assert_eq!(recall(&second), Some(learnt));
        assert_eq!(recall(&first), None, "its own is not an earlier one's");
        std::fs::write(first.join("learnt.json"), "{").unwrap();
        assert_eq!(recall(&second), None);
    }
}
