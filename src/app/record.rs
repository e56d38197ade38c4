//! The console's recording: `runs/RUN/console/` with `record/` (the events of the core: [`segments`]),
//! `events.jsonl` (the reports), `console.log` and, for a launch, `experiment.toml`, `hosts.json`, `origin.json` and
//! `code.json`, and `learnt.json`, the detector's pace baseline for the next console. A second console of the same run
//! uses `console-2/`, and so on.
//!
//! Owner: the driver. Files are private (0600 in 0700 directories): environment variables may hold secrets. A thread
//! writes them ([`segments`]): the console never waits for a disk. A failing disk costs the recording, never the
//! run.
//!
//! Invariant REC-1: all files are bounded and keep their end. The recording is a ring (TRACE-2). A full
//! `events.jsonl` replaces `events-old.jsonl`; the number of lost lines is reported.

mod files;
pub(crate) mod reader;
pub(crate) mod segments;

use super::replace_file::replace_file;
use files::ReportJournal;
use rankdeck_core::event::Event;
use rankdeck_core::report::Report;
use rankdeck_core::{Core, Goal, PaceHistory};
use rankdeck_proto::regular;
use rankdeck_types::ids::{RunId, Timestamp, WallTime};
use rankdeck_types::words;
use segments::Job;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;

/// Interval at which the pace baseline is saved.
const SAVE_PACE_MS: u64 = 10_000;
/// The hosts of a launch.
pub(crate) const HOSTS: &str = "hosts.json";
/// Directory of the segments.
pub(crate) const RECORD: &str = "record";
/// About the bytes of reports that are passed to the thread at once.
const REPORTS: u64 = 256 << 10;
/// Written lines reach the file within this time.
const FLUSH_MS: u64 = 1000;

/// The detector's pace baseline, for the next console.
const PACE_FILE: &str = "learnt.json";
/// Far more than 24 histograms need.
const PACE_BYTES: u64 = 1 << 20;

/// Replaces the pace baseline in `folder`.
fn write_pace(folder: &Path, pace: &PaceHistory) -> io::Result<()> {
    replace_file(&folder.join(PACE_FILE), &serde_json::to_vec(pace)?, 0o600)
}

/// Reads the pace baseline of the latest earlier console of this run; `own` is the folder of this one.
pub(crate) fn earlier_pace(own: &Path) -> Option<PaceHistory> {
    let folders = std::fs::read_dir(own.parent()?).ok()?.flatten().map(|entry| entry.path());
    let files = folders.filter(|folder| folder != own).map(|folder| folder.join(PACE_FILE));
    let dated = files.filter_map(|file| Some((file.metadata().ok()?.modified().ok()?, file)));
    let (_, latest) = dated.max()?;
    serde_json::from_slice(&regular::read(&latest, PACE_BYTES).ok()?).ok()
}

/// The open files of one console.
#[derive(Debug)]
pub(crate) struct Recorder {
    folder: PathBuf,
    ring: segments::SegmentRing,
    /// Reports that were not passed to the thread yet, and about their bytes.
    reports: (Vec<Report>, u64),
    /// Reports that a slow disk refused, and how many losses were reported.
    refused: u64,
    notified: u64,
    dirty_since: Option<Timestamp>,
    pace: PaceHistory,
    pace_saved_at: Timestamp,
}

/// The recording, for the summary.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RecordingInfo {
    pub(crate) folder: PathBuf,
    /// Wall time of the first position.
    pub(crate) since: Option<WallTime>,
    /// Bytes of the recording on disk.
    pub(crate) bytes: u64,
}

/// Creates `RUNS/RUN/console/` (or the next free `console-N/`).
pub(crate) fn make_folder(runs: &Path, run: &RunId) -> io::Result<PathBuf> {
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
    Err(io::Error::other("this run has 1,000 recordings here; remove some"))
}

/// Creates a private file that must not exist.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Sends tracing to `FOLDER/console.log`. Does nothing the second time. Returns another handle to the file,
/// for stderr while the screen is up.
///
/// `RANKDECK_LOG_LEVEL` sets the level, default `info`, or levels of modules: `info,rankdeck_link=debug`.
pub(crate) fn open_log(folder: &Path) -> io::Result<File> {
    let file = create(&folder.join("console.log"))?;
    let copy = file.try_clone()?;
    let levels = std::env::var("RANKDECK_LOG_LEVEL").ok().and_then(|text| text.parse().ok());
    let levels = levels.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(file).with_filter(levels);
    // A second console in one process (tests) keeps the first log.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer));
    Ok(copy)
}

impl Recorder {
    /// Opens the files in `folder`. Time 0 is now.
    pub(crate) fn new(folder: &Path, goal: &Goal, time: WallTime) -> io::Result<Recorder> {
        if let Goal::Launch(draft) = goal {
            let experiment = toml::to_string(&draft.experiment).map_err(io::Error::other)?;
            create(&folder.join("experiment.toml"))?.write_all(experiment.as_bytes())?;
            serde_json::to_writer_pretty(create(&folder.join(HOSTS))?, &draft.hosts)?;
        }
        let segments = folder.join(RECORD);
        DirBuilder::new().mode(0o700).create(&segments)?;
        let journal = ReportJournal::new(&folder.join("events.jsonl"))?;
        Ok(Recorder {
            folder: folder.to_owned(),
            ring: segments::SegmentRing::new(Some(journal), segments, segments::LIMITS, Timestamp(0), time)?,
            reports: Default::default(),
            refused: 0,
            notified: 0,
            dirty_since: None,
            pace: PaceHistory::default(),
            pace_saved_at: Timestamp(0),
        })
    }

    /// The directory of the files.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The directory of all runs.
    pub(crate) fn runs(&self) -> Option<&Path> {
        self.folder.ancestors().nth(2)
    }

    /// Records an event before it is passed to `core`.
    pub(crate) fn event(&mut self, now: Timestamp, event: &Event, core: &Core) {
        self.ring.event(now, event, core);
        self.dirty_since.get_or_insert(now);
    }

    /// Returns new problems of the recording, once.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        let mut notices = self.ring.take_notices();
        let lost = self.refused + self.ring.queue().status().reports_lost;
        if lost > self.notified {
            self.notified = lost;
            notices.push(format!("events.jsonl: {} reports lost", words::count(lost)));
        }
        notices
    }

    /// Has everything written out for a reader, which waits for the answer; `None`: the disk is too far behind.
    pub(crate) fn settle(&mut self, now: Timestamp) -> Option<Receiver<()>> {
        self.send_reports(now);
        self.ring.settle(now)
    }

    /// Ends the recording and describes it.
    pub(crate) fn close(mut self) -> RecordingInfo {
        self.send_reports(self.pace_saved_at);
        self.ring.finish();
        RecordingInfo { folder: self.folder.clone(), since: self.ring.since(), bytes: self.ring.bytes() }
    }

    /// The recorded events.
    pub(crate) fn ring(&self) -> &segments::SegmentRing {
        &self.ring
    }

    /// Records a report.
    pub(crate) fn report(&mut self, now: Timestamp, report: Box<Report>) {
        self.reports.1 += segments::weight(&report);
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
    pub(crate) fn poll_timeout(&self) -> Option<Timestamp> {
        self.dirty_since.map(|since| since.plus(FLUSH_MS))
    }

    /// Saves the pace baseline, at most every [`SAVE_PACE_MS`], or at once without `now`.
    pub(crate) fn save_pace(&mut self, now: Option<Timestamp>, pace: impl FnOnce() -> PaceHistory) {
        if now.is_some_and(|now| now.since(self.pace_saved_at) < SAVE_PACE_MS) {
            return;
        }
        self.pace_saved_at = now.unwrap_or(self.pace_saved_at);
        let pace = pace();
        if pace == self.pace {
            return;
        }
        let at = now.unwrap_or(self.pace_saved_at);
        let job = Job::Pace(self.folder.clone(), pace.clone());
        if self.ring.queue().send(at, job).is_ok() {
            self.pace = pace;
        }
    }

    /// Flushes if it is almost time, so that the loop need not wake up for it, or at once without `now`.
    pub(crate) fn flush(&mut self, now: Option<Timestamp>) {
        let due = match (now, self.poll_timeout()) {
            (None, _) => true,
            (Some(now), Some(due)) => now.plus(FLUSH_MS / 2) >= due,
            (Some(_), None) => false,
        };
        if due {
            let now = now.unwrap_or(self.pace_saved_at);
            self.send_reports(now);
            self.ring.flush(now);
            self.dirty_since = None;
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.send_reports(self.pace_saved_at);
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
    fn each_console_has_a_private_directory() {
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
    fn flushed_recording_can_be_read() {
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
        let read = || {
            reader::Recording::open(&folder.join(RECORD)).ok().filter(|record| record.events().count() > 0)
        };
        let record = loop {
            if let Some(record) = read() {
                break record;
            }
            assert!(std::time::Instant::now() < deadline, "nothing is written");
            std::thread::yield_now();
        };
        // The console could be killed now.
        std::mem::forget(recorder);
        assert_eq!(record.events().collect::<Vec<_>>(), [(Timestamp(3), Event::Ticked)]);
        assert_eq!(record.since(), 7.003);
    }

    #[test]
    fn learned_values_survive_the_console_and_nonsense_is_ignored() {
        let runs = tempfile::tempdir().unwrap();
        let run = RunId("r".into());
        let first = make_folder(runs.path(), &run).unwrap();
        let mut recorder = Recorder::new(&first, &goal(), 0.0).unwrap();
        let pace = PaceHistory { places: vec![vec![(4, 7)]], ..PaceHistory::default() };
        recorder.save_pace(Some(Timestamp(5)), || panic!("not yet"));
        recorder.save_pace(Some(Timestamp(SAVE_PACE_MS)), || pace.clone());
        recorder.settle(Timestamp(SAVE_PACE_MS)).unwrap().recv().unwrap();
        let second = make_folder(runs.path(), &run).unwrap();
        assert_eq!(earlier_pace(&second), Some(pace));
        assert_eq!(earlier_pace(&first), None, "its own is not an earlier one's");
        std::fs::write(first.join("learnt.json"), "{").unwrap();
        assert_eq!(earlier_pace(&second), None);
    }
}
