//! What the console keeps: `runs/RUN/console/` with `record/` (what the core was told: [`segments`]),
//! `events.jsonl` (the reports), `console.log` and, for a launch, `experiment.toml` and `hosts.json`, and
//! `learnt.json`: what the watch has learnt about the run's pace, for the next console. A second console on
//! the same run uses `console-2/`, and so on.
//!
//! Owner: the driver. Files are private (0600 in 0700 folders): environments may hold secrets. A disk that
//! fails costs the record, never the run: the first error is kept and shown in the log, and writing ends.
//!
//! Invariant REC-1: all files are bounded. The record is a ring (TRACE-2); reports of gauges (log lines,
//! progress) end after [`GAUGE_BYTES`], all others are kept for ever. What is left out is counted.

pub mod reader;
pub mod segments;

use rankdeck_core::event::Event;
use rankdeck_core::report::{Report, ReportBody};
use rankdeck_core::{Core, Goal, PaceHistory};
use rankdeck_types::ids::{RunId, Timestamp, WallTime};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Most bytes of `events.jsonl` before gauges are left out.
pub const GAUGE_BYTES: u64 = 64 << 20;
/// What was learnt is kept this often.
pub const LEARNT_MS: u64 = 10_000;
const LEARNT: &str = "learnt.json";
/// Folder of the segments.
pub const RECORD: &str = "record";
/// Far more than 24 histograms need.
const LEARNT_BYTES: u64 = 1 << 20;
/// Written lines reach the file at the latest after this.
pub const FLUSH_MS: u64 = 1000;

/// The open files of one console.
#[derive(Debug)]
pub struct Recorder {
    folder: PathBuf,
    ring: segments::Ring,
    events: Journal,
    dirty_since: Option<Timestamp>,
    learnt: PaceHistory,
    learnt_at: Timestamp,
}

/// What a console has kept, for its last words.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// The folder.
    pub folder: PathBuf,
    /// Wall time of the first moment that can be gone back to.
    pub since: Option<WallTime>,
    /// Bytes of the record on disk.
    pub bytes: u64,
}

#[derive(Debug)]
struct Journal {
    file: BufWriter<File>,
    bytes: u64,
    dropped: u64,
    failed: Option<String>,
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

/// What the latest earlier console of the same run, whose folder lies beside `own`, has learnt.
pub fn recall(own: &Path) -> Option<PaceHistory> {
    let folders = std::fs::read_dir(own.parent()?).ok()?.flatten().map(|entry| entry.path());
    let files = folders.filter(|folder| folder != own).map(|folder| folder.join(LEARNT));
    let dated = files.filter_map(|file| Some((file.metadata().ok()?.modified().ok()?, file)));
    let (_, latest) = dated.max()?;
    let mut text = String::new();
    File::open(latest).ok()?.take(LEARNT_BYTES).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
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
        Ok(Recorder {
            folder: folder.to_owned(),
            ring: segments::Ring::new(segments, segments::LIMITS, Timestamp(0), time),
            events: Journal::new(&folder.join("events.jsonl"))?,
            dirty_since: None,
            learnt: PaceHistory::default(),
            learnt_at: Timestamp(0),
        })
    }

    /// Where the files are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Keeps an event that `core` is about to be told.
    pub fn event(&mut self, now: Timestamp, event: &Event, core: &Core) {
        self.ring.event(now, event, core);
        self.dirty_since.get_or_insert(now);
    }

    /// What the user should know of the record, once.
    pub fn take_notices(&mut self) -> Vec<String> {
        self.ring.take_notices()
    }

    /// Writes everything out, for who reads it now.
    pub fn settle(&mut self, now: Timestamp) {
        self.ring.flush(now);
    }

    /// What is kept so far.
    pub fn kept(&self) -> Kept {
        Kept { folder: self.folder.clone(), since: self.ring.since(), bytes: self.ring.bytes() }
    }

    /// What happened, moment by moment.
    pub fn ring(&self) -> &segments::Ring {
        &self.ring
    }

    /// Keeps a report.
    pub fn report(&mut self, now: Timestamp, report: &Report) {
        if let Ok(line) = serde_json::to_string(report) {
            let gauge = matches!(report.body, ReportBody::Progress { .. } | ReportBody::Log { .. });
            self.events.write(&line, gauge);
            self.dirty_since.get_or_insert(now);
        }
    }

    /// When to flush next.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.dirty_since.map(|since| since.plus(FLUSH_MS))
    }

    /// Keeps what the watch has learnt, at most every [`LEARNT_MS`], or `now` is not given. A failure costs
    /// the next console some minutes of learning, and is logged.
    pub fn learnt(&mut self, now: Option<Timestamp>, learnt: impl FnOnce() -> PaceHistory) {
        if now.is_some_and(|now| now.since(self.learnt_at) < LEARNT_MS) {
            return;
        }
        self.learnt_at = now.unwrap_or(self.learnt_at);
        let learnt = learnt();
        if learnt == self.learnt {
            return;
        }
        let temporary = self.folder.join(format!("{LEARNT}.tmp"));
        let written = serde_json::to_vec(&learnt).map_err(io::Error::other).and_then(|text| {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
            file.write_all(&text)?;
            std::fs::rename(&temporary, self.folder.join(LEARNT))
        });
        match written {
            Ok(()) => self.learnt = learnt,
            Err(error) => tracing::warn!("failed to keep what was learnt: {error}"),
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
            self.ring.flush(now.unwrap_or(self.learnt_at));
            self.events.flush();
            self.dirty_since = None;
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.ring.finish();
        self.flush(None);
    }
}

impl Journal {
    fn new(path: &Path) -> io::Result<Journal> {
        Ok(Journal { file: BufWriter::new(create(path)?), bytes: 0, dropped: 0, failed: None })
    }

    fn write(&mut self, line: &str, gauge: bool) {
        if self.failed.is_some() || (gauge && self.bytes > GAUGE_BYTES) {
            self.dropped += 1;
            return;
        }
        self.bytes += line.len() as u64 + 1;
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.write_all(b"\n"));
        self.keep(written);
    }

    fn flush(&mut self) {
        let flushed = self.file.flush();
        self.keep(flushed);
    }

    fn keep(&mut self, result: io::Result<()>) {
        if let Err(error) = result
            && self.failed.is_none()
        {
            tracing::error!("failed to record: {error}; recording ends here");
            self.failed = Some(error.to_string());
        }
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
        // The console may be killed now.
        std::mem::forget(recorder);
        let record = reader::Record::open(&folder.join(RECORD)).unwrap();
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
        let second = make_folder(runs.path(), &run).unwrap();
        assert_eq!(recall(&second), Some(learnt));
        assert_eq!(recall(&first), None, "its own is not an earlier one's");
        std::fs::write(first.join(LEARNT), "{").unwrap();
        assert_eq!(recall(&second), None);
    }

    #[test]
    fn rec_1_gauges_are_bounded_and_counted() {
        let runs = tempfile::tempdir().unwrap();
        let mut journal = Journal::new(&runs.path().join("j")).unwrap();
        journal.bytes = GAUGE_BYTES + 1;
        journal.write("gauge", true);
        journal.write("fact", false);
        journal.flush();
        assert_eq!(journal.dropped, 1);
        assert_eq!(std::fs::read_to_string(runs.path().join("j")).unwrap(), "fact\n");
    }
}
