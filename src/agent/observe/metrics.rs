//! Values of a program that knows nothing of rankdeck: picked from rank 0's output lines, and read from
//! TensorBoard event files that it writes.
//!
//! Owner: the agent of rank 0's host, one [`Picker`] per launch and one thread for event files. Invariants:
//! - METRICS-1: at most one record per second and source; of several values of one name the last is told (of
//!   `return` the mean), the others counted.
//! - At most [`NAMES`] names and [`FILES`] files; a file that is not an event file is left alone.

use rankdeck_proto::message::RecordEvent;
use rankdeck_proto::tfrecord;
use rankdeck_proto::tfrecord::Next;
use rankdeck_types::experiment::Metrics;
use rankdeck_types::ids::Rank;
use rankdeck_types::metrics::compile;
use regex_lite::Regex;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between two records of one source.
const EVERY: Duration = Duration::from_secs(1);
/// Most names of values.
const NAMES: usize = 256;
/// Most event files that are followed.
const FILES: usize = 64;
/// How deep folders are searched for event files.
const DEPTH: usize = 4;
/// Bytes read of one file at once.
const CHUNK: u64 = 1 << 20;

/// What the charts are called that several programs have.
fn chart(name: &str) -> String {
    match name {
        "return" | "episodic_return" => "charts/episodic_return".into(),
        "SPS" | "sps" => "charts/SPS".into(),
        other => other.into(),
    }
}

/// Values since the last record.
#[derive(Debug, Default)]
struct Gathered {
    env_step: Option<u64>,
    values: BTreeMap<String, (f64, u64)>,
    skipped: u64,
    not_finite: BTreeMap<String, u64>,
}

impl Gathered {
    fn add(&mut self, name: &str, value: f64) {
        let (name, mean) = (chart(name), matches!(name, "return" | "episodic_return"));
        let known = self.values.contains_key(&name) || self.not_finite.contains_key(&name);
        if self.values.len() + self.not_finite.len() >= NAMES && !known {
            self.skipped += 1;
            return;
        }
        if !value.is_finite() {
            // What broke last is what counts: a number from before it would be told as the newest value.
            self.skipped += self.values.remove(&name).map_or(0, |_| 1);
            *self.not_finite.entry(name).or_default() += 1;
            return;
        }
        let entry = self.values.entry(name).or_insert((value, 0));
        entry.1 += 1;
        if mean {
            entry.0 += (value - entry.0) / entry.1 as f64;
        } else {
            self.skipped += u64::from(entry.1 > 1);
            entry.0 = value;
        }
    }

    fn take(&mut self, source: &str, rank: Rank) -> Option<RecordEvent> {
        if self.values.is_empty() && self.not_finite.is_empty() {
            return None;
        }
        let taken = std::mem::take(self);
        self.env_step = taken.env_step;
        Some(RecordEvent::Metrics {
            rank,
            source: source.into(),
            env_step: taken.env_step,
            values: taken.values.into_iter().map(|(name, (value, _))| (name, value)).collect(),
            skipped: taken.skipped,
            not_finite: taken.not_finite,
        })
    }
}

/// Picks values from lines.
#[derive(Debug)]
pub struct Picker {
    patterns: Vec<Regex>,
    gathered: Gathered,
    told: Option<Instant>,
}

impl Picker {
    /// A picker for what an experiment asks for; `None` when it asks for nothing, or for what this build
    /// cannot read (the console has checked it).
    pub fn new(metrics: &Metrics) -> Option<Picker> {
        let patterns = compile(metrics).ok().filter(|patterns| !patterns.is_empty())?;
        Some(Picker { patterns, gathered: Gathered::default(), told: None })
    }

    /// Looks at a line; the first pattern that fits counts.
    pub fn line(&mut self, line: &str) {
        let Some((pattern, found)) =
            self.patterns.iter().find_map(|pattern| Some((pattern, pattern.captures(line)?)))
        else {
            return;
        };
        for name in pattern.capture_names().flatten() {
            let Some(text) = found.name(name).map(|found| found.as_str()) else { continue };
            match (name, text.replace('_', "").parse::<f64>()) {
                ("env_step" | "global_step", Ok(step)) if (0.0..9e15).contains(&step) => {
                    self.gathered.env_step = Some(step as u64);
                }
                (name, Ok(value)) => self.gathered.add(name, value),
                (_, Err(_)) => self.gathered.skipped += 1,
            }
        }
    }

    /// What there is to tell, when it is time (METRICS-1); `last`: now, whatever the time.
    pub fn due(&mut self, now: Instant, last: bool) -> Option<RecordEvent> {
        if !last && self.told.is_some_and(|told| now.duration_since(told) < EVERY) {
            return None;
        }
        let record = self.gathered.take("stdout", Rank(0))?;
        self.told = Some(now);
        Some(record)
    }
}

/// How long a script may write nothing before that is worth a word.
pub const SILENCE: Duration = Duration::from_secs(30);

/// Follows event files below a folder until dropped.
#[derive(Debug)]
pub struct Follower {
    over: Arc<AtomicBool>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

impl Follower {
    /// Starts the thread; files that are older than the launch are left alone. `tell` is called on it.
    /// After `silence` without any file it says so, once.
    pub fn start(
        folder: PathBuf,
        silence: Duration,
        tell: impl Fn(RecordEvent) + Send + 'static,
    ) -> std::io::Result<Follower> {
        let over = Arc::new(AtomicBool::new(false));
        let seen = over.clone();
        let (begun, mut told) = (Instant::now(), false);
        let mut files = Files::new(folder, std::time::SystemTime::now() - Duration::from_secs(2));
        std::thread::Builder::new().name("event-files".into()).spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                files.look().into_iter().for_each(&tell);
                if !told && begun.elapsed() >= silence {
                    told = true;
                    files.complaint().into_iter().for_each(&tell);
                }
                std::thread::sleep(EVERY);
            }
        })?;
        Ok(Follower { over })
    }
}

/// Event files and how far each has been read.
#[derive(Debug)]
struct Files {
    folder: PathBuf,
    since: std::time::SystemTime,
    /// Path to next byte; `None`: no event file, or broken.
    read: BTreeMap<PathBuf, Option<u64>>,
}

impl Files {
    fn new(folder: PathBuf, since: std::time::SystemTime) -> Files {
        Files { folder, since, read: BTreeMap::new() }
    }

    /// New values, one record for each step that was written, the latest [`STEPS`] of them.
    fn look(&mut self) -> Vec<RecordEvent> {
        let mut found = Vec::new();
        search(&self.folder, DEPTH, self.since, &mut found);
        for path in found {
            if self.read.len() < FILES {
                self.read.entry(path).or_insert(Some(0));
            }
        }
        let mut steps: BTreeMap<u64, Gathered> = BTreeMap::new();
        for (path, at) in &mut self.read {
            let Some(from) = *at else { continue };
            *at = follow(path, from, |step, values| {
                let gathered = steps.entry(step).or_default();
                gathered.env_step = Some(step);
                values.iter().for_each(|(name, value)| gathered.add(name, *value));
            });
        }
        // A burst (a whole file at the start of a console, many short episodes) becomes a bounded number of
        // records.
        while steps.len() > STEPS {
            let stride = steps.len().div_ceil(STEPS);
            let mut n = 0;
            let mut skipped = 0;
            steps.retain(|_, gathered| {
                n += 1;
                let keep = n % stride == 0;
                skipped += if keep { 0 } else { gathered.values.len() as u64 };
                keep
            });
            if let Some(mut last) = steps.last_entry() {
                last.get_mut().skipped += skipped;
            }
        }
        steps.values_mut().filter_map(|gathered| gathered.take("tensorboard", Rank(0))).collect()
    }
}

impl Files {
    /// What to say when nothing has been found.
    fn complaint(&self) -> Option<RecordEvent> {
        if !self.read.is_empty() {
            return None;
        }
        let folder = self.folder.display();
        let what = match self.folder.is_dir() {
            true => "no event file that is newer than the launch lies below",
            false => "there is no folder",
        };
        Some(RecordEvent::Notice {
            text: format!(
                "metrics.tensorboard: {what} {folder}, {} s after the launch; a relative path begins where the ranks \
                 run; only rank 0's host is looked at",
                SILENCE.as_secs()
            ),
        })
    }
}

/// Most records of one look.
const STEPS: usize = 20;

fn search(folder: &Path, depth: usize, since: std::time::SystemTime, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten().take(4096) {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && depth > 0 {
            search(&entry.path(), depth - 1, since, found);
        } else if kind.is_file() && entry.file_name().to_string_lossy().contains("events.out.tfevents") {
            let fresh = entry.metadata().and_then(|data| data.modified()).is_ok_and(|time| time >= since);
            if fresh && found.len() < FILES {
                found.push(entry.path());
            }
        }
    }
}

/// Reads whole records from byte `from`; gives the byte to go on from, `None` when the file is of no use.
fn follow(path: &Path, from: u64, mut each: impl FnMut(u64, Vec<(String, f64)>)) -> Option<u64> {
    let Ok(mut file) = File::open(path) else { return Some(from) };
    let mut at = from;
    loop {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(at)).ok()?;
        if file.by_ref().take(CHUNK).read_to_end(&mut bytes).is_err() {
            return Some(at);
        }
        let mut rest = bytes.as_slice();
        let begun = at;
        loop {
            match tfrecord::next(rest) {
                Next::Record(data, taken) => {
                    if let Some((step, values)) = tfrecord::scalars(data) {
                        each(step, values);
                    }
                    at += taken as u64;
                    rest = &rest[taken..];
                }
                Next::Partial => break,
                Next::Broken => return None,
            }
        }
        if at == begun {
            // Nothing whole in a full chunk: a record too long to hold scalars, so the file cannot be
            // followed further.
            return (bytes.len() < CHUNK as usize).then_some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::tfrecord::{field_bytes, frame, varint};
    use std::io::Write;

    #[test]
    fn values_that_are_not_numbers_are_told_by_name_and_number() {
        let mut gathered = Gathered::default();
        for (name, value) in
            [("loss", 0.5), ("loss", f64::NAN), ("kl", f64::INFINITY), ("kl", 0.25), ("loss", f64::NAN)]
        {
            gathered.add(name, value);
        }
        let Some(RecordEvent::Metrics { values, not_finite, .. }) = gathered.take("stdout", Rank(0)) else {
            panic!("no record")
        };
        assert_eq!(values, BTreeMap::from([("kl".into(), 0.25)]), "a number is the newest of kl only");
        assert_eq!(not_finite, BTreeMap::from([("loss".into(), 2), ("kl".into(), 1)]));
    }

    #[test]
    fn a_folder_without_event_files_is_told_once_and_one_with_files_never() {
        let folder = tempfile::tempdir().unwrap();
        let (sender, told) = std::sync::mpsc::channel();
        let start = |path: PathBuf, sender: std::sync::mpsc::Sender<RecordEvent>| {
            Follower::start(path, Duration::ZERO, move |event| drop(sender.send(event))).unwrap()
        };
        let follower = start(folder.path().join("runs"), sender.clone());
        let Ok(RecordEvent::Notice { text }) = told.recv_timeout(Duration::from_secs(60)) else { panic!() };
        assert!(text.contains("there is no folder") && text.contains("/runs"), "{text}");
        drop(follower);
        std::fs::write(folder.path().join("events.out.tfevents.1"), "").unwrap();
        let mut files = Files::new(folder.path().into(), std::time::SystemTime::UNIX_EPOCH);
        files.look();
        assert_eq!(files.complaint(), None);
    }

    fn told(record: Option<RecordEvent>) -> (Option<u64>, Vec<(String, f64)>, u64) {
        match record {
            Some(RecordEvent::Metrics { env_step, values, skipped, .. }) => {
                (env_step, values.into_iter().collect(), skipped)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn metrics_1_lines_become_one_record_a_second() {
        let metrics = Metrics {
            presets: vec!["cleanrl".into()],
            stdout: vec!["loss (?P<loss>[-0-9.]+)".into()],
            tensorboard: None,
        };
        let mut picker = Picker::new(&metrics).unwrap();
        for line in [
            "global_step=100, episodic_return=10.0",
            "noise",
            "global_step=180, episodic_return=[30.]",
            "SPS: 512",
            "loss 0.5",
            "loss 0.25",
            "loss .-.",
        ] {
            picker.line(line);
        }
        let now = Instant::now();
        let (step, values, skipped) = told(picker.due(now, false));
        assert_eq!(step, Some(180));
        let expected = [("charts/SPS", 512.0), ("charts/episodic_return", 20.0), ("loss", 0.25)];
        assert_eq!(values, expected.map(|(name, value)| (name.to_owned(), value)));
        assert_eq!(skipped, 2, "one loss was overtaken, one is no number");
        picker.line("SPS: 600");
        assert_eq!(picker.due(now + Duration::from_millis(900), false), None);
        let (step, values, _) = told(picker.due(now + Duration::from_millis(1100), false));
        assert_eq!((step, values[0].1), (Some(180), 600.0), "the step is the last one known");
        assert_eq!(picker.due(now + Duration::from_secs(9), true), None, "nothing is told twice");
    }

    fn event(step: u64, tag: &str, value: f32) -> Vec<u8> {
        let mut entry = Vec::new();
        field_bytes(&mut entry, 1, tag.as_bytes());
        varint(&mut entry, 2 << 3 | 5);
        entry.extend(value.to_le_bytes());
        let (mut summary, mut bytes) = (Vec::new(), Vec::new());
        field_bytes(&mut summary, 1, &entry);
        varint(&mut bytes, 2 << 3);
        varint(&mut bytes, step);
        field_bytes(&mut bytes, 5, &summary);
        frame(&bytes)
    }

    #[test]
    fn event_files_are_followed_as_they_grow() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("run/a");
        std::fs::create_dir_all(&below).unwrap();
        let mut file = File::create(below.join("events.out.tfevents.1.h")).unwrap();
        File::create(below.join("events.out.tfevents.2.h"))
            .unwrap()
            .write_all(b"this is none at all")
            .unwrap();
        let mut files = Files::new(folder.path().into(), std::time::SystemTime::UNIX_EPOCH);
        file.write_all(&event(5, "losses/value", 0.5)).unwrap();
        let second = event(7, "charts/SPS", 100.0);
        file.write_all(&second[..9]).unwrap();
        let mut records = files.look();
        assert_eq!(told(records.pop()), (Some(5), vec![("losses/value".into(), 0.5)], 0));
        assert!(records.is_empty() && files.look().is_empty(), "the second record is not whole");
        file.write_all(&second[9..]).unwrap();
        assert_eq!(told(files.look().pop()), (Some(7), vec![("charts/SPS".into(), 100.0)], 0));
        for step in 0..1000 {
            file.write_all(&event(step, "x", step as f32)).unwrap();
        }
        let burst = files.look();
        assert!(burst.len() <= STEPS, "{}", burst.len());
        let skipped: u64 = burst.iter().map(|record| told(Some(record.clone())).2).sum();
        assert_eq!(skipped as usize + burst.len(), 1000, "every value is told or counted");
        let old =
            Files::new(folder.path().into(), std::time::SystemTime::now() + Duration::from_secs(60)).look();
        assert!(old.is_empty(), "files of earlier runs are left alone");
    }
}
