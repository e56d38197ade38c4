//! What the console keeps: `runs/RUN/console/` with `record/` (what the core was told: [`segments`]),
//! `events.jsonl` (the reports), `console.log` and, for a launch, `experiment.toml` and `hosts.json`, and
//! `learnt.json`: what the watch has learnt about the run's pace, for the next console. A second console on
//! the same run uses `console-2/`, and so on.
//!
//! Owner: the driver. Files are private (0600 in 0700 folders): environments may hold secrets. A disk that
//! fails costs the record, never the run: the first error is kept and shown in the log, and writing ends.
//!
//! Invariant REC-1: all files are bounded and keep their end. The record is a ring (TRACE-2). A full
//! `events.jsonl` becomes `events-old.jsonl`, whose own lines go; how many went is said.

pub mod found;
pub mod reader;
pub mod segments;

use rankdeck_core::event::Event;
use rankdeck_core::report::Report;
use rankdeck_core::{Core, Goal, PaceHistory};
use rankdeck_types::ids::{RunId, Timestamp, WallTime};
use rankdeck_types::words;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Most bytes of `events.jsonl`, and of `events-old.jsonl`.
pub const EVENT_BYTES: u64 = 32 << 20;
/// What was learnt is kept this often.
pub const LEARNT_MS: u64 = 10_000;
/// Where what was in `events.jsonl` goes when it is full.
const OLD_EVENTS: &str = "events-old.jsonl";
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
    pub folder: PathBuf,
    /// Wall time of the first moment that can be gone back to.
    pub since: Option<WallTime>,
    /// Bytes of the record on disk.
    pub bytes: u64,
}

#[derive(Debug)]
struct Journal {
    path: PathBuf,
    file: BufWriter<File>,
    bytes: u64,
    lines: u64,
    /// Lines of the older file.
    old_lines: u64,
    /// Lines that are in no file any more.
    lost: u64,
    /// So many of them were told.
    told: u64,
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
        notices.extend(self.events.take_notice());
        notices
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
            self.events.write(&line, EVENT_BYTES);
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
        Ok(Journal {
            path: path.to_owned(),
            file: BufWriter::new(create(path)?),
            bytes: 0,
            lines: 0,
            old_lines: 0,
            lost: 0,
            told: 0,
            failed: None,
        })
    }

    fn write(&mut self, line: &str, most: u64) {
        if self.failed.is_some() {
            self.lost += 1;
            return;
        }
        if self.bytes > 0 && self.bytes + line.len() as u64 >= most {
            let turned = self.turn();
            self.keep(turned);
        }
        self.bytes += line.len() as u64 + 1;
        self.lines += 1;
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.write_all(b"\n"));
        self.keep(written);
    }

    /// Begins a new file; the full one takes the place of the older one.
    fn turn(&mut self) -> io::Result<()> {
        self.file.flush()?;
        std::fs::rename(&self.path, self.path.with_file_name(OLD_EVENTS))?;
        self.file = BufWriter::new(create(&self.path)?);
        self.lost += self.old_lines;
        (self.old_lines, self.lines, self.bytes) = (self.lines, 0, 0);
        Ok(())
    }

    /// What fell out, when more did.
    fn take_notice(&mut self) -> Option<String> {
        let more = self.lost > self.told;
        self.told = self.lost;
        let said =
            || format!("events.jsonl: the oldest {} reports are not kept any more", words::count(self.lost));
        more.then(said)
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
    fn rec_1_reports_keep_their_end_and_what_fell_out_is_said() {
        let runs = tempfile::tempdir().unwrap();
        let path = runs.path().join("events.jsonl");
        let mut journal = Journal::new(&path).unwrap();
        (0..100).for_each(|i| journal.write(&format!("report {i:03}"), 300));
        journal.flush();
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        let (old, new) = (read(&path.with_file_name(OLD_EVENTS)), read(&path));
        assert!(old.len() <= 300 && new.len() <= 300 && !new.is_empty());
        let kept: Vec<&str> = old.lines().chain(new.lines()).collect();
        assert_eq!(kept.last(), Some(&"report 099"));
        let lost = 100 - kept.len();
        assert_eq!(kept[0], format!("report {lost:03}"), "no gap");
        assert_eq!(journal.lost, lost as u64);
        let said = journal.take_notice().unwrap();
        assert!(said.contains(&format!("oldest {lost} reports")), "{said}");
        assert_eq!(journal.take_notice(), None);
    }
}
