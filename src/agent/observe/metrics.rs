//! Values of a program that knows nothing of rankdeck: picked from rank 0's output lines, and read from
//! TensorBoard event files that it writes.
//!
//! Owner: the agent of rank 0's host, one [`Picker`] per launch and one thread for event files. Invariants:
//! - METRICS-1: at most one record per second and source; of several values of one name the last is told (of
//!   `return` the mean) with their extremes, the others counted.
//! - At most [`NAMES`] names and [`FILES`] files; a file that is not an event file is left alone.
//! - Histograms and pictures of event files pass the [`Gate`], as those of the event socket do.

mod logged;

use crate::observe::gate::Gate;
use logged::LoggedMedia;
use rankdeck_proto::message::RecordEvent;
use rankdeck_proto::tfrecord;
use rankdeck_proto::tfrecord::{Next, Value};
use rankdeck_types::experiment::Metrics;
use rankdeck_types::ids::Rank;
use rankdeck_types::metrics::compile;
use regex_lite::Regex;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
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

/// Values of one name since the last record.
#[derive(Debug, Clone, Copy)]
struct MergedValue {
    /// The last one, or the mean of all.
    told: f64,
    count: u64,
    low: f64,
    high: f64,
    /// The mean is told.
    mean: bool,
}

impl MergedValue {
    /// With those that came before it.
    fn after(self, older: MergedValue) -> MergedValue {
        let count = self.count.saturating_add(older.count);
        let share = older.count as f64 / count.max(1) as f64;
        let told = if self.mean { self.told * (1.0 - share) + older.told * share } else { self.told };
        MergedValue { told, count, low: self.low.min(older.low), high: self.high.max(older.high), ..self }
    }
}

/// Values since the last record.
#[derive(Debug, Default)]
struct PendingValues {
    env_step: Option<u64>,
    values: BTreeMap<String, MergedValue>,
    skipped: u64,
    not_finite: BTreeMap<String, u64>,
}

impl PendingValues {
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
        self.put(name, MergedValue { told: value, count: 1, low: value, high: value, mean });
    }

    /// Adds what came after all that is there.
    fn put(&mut self, name: String, newer: MergedValue) {
        match self.values.get_mut(&name) {
            Some(known) => {
                self.skipped += u64::from(!newer.mean);
                *known = newer.after(*known);
            }
            None => drop(self.values.insert(name, newer)),
        }
    }

    /// The same with what came after it.
    fn then(mut self, newer: PendingValues) -> PendingValues {
        self.env_step = newer.env_step.or(self.env_step);
        self.skipped += newer.skipped;
        for (name, count) in newer.not_finite {
            self.skipped += self.values.remove(&name).map_or(0, |_| 1);
            *self.not_finite.entry(name).or_default() += count;
        }
        newer.values.into_iter().for_each(|(name, value)| self.put(name, value));
        self
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
            spread: taken
                .values
                .iter()
                .filter(|(_, value)| value.low < value.high)
                .map(|(name, value)| (name.clone(), (value.low, value.high)))
                .collect(),
            values: taken.values.into_iter().map(|(name, value)| (name, value.told)).collect(),
            skipped: taken.skipped,
            not_finite: taken.not_finite,
        })
    }
}

/// Picks values from lines.
#[derive(Debug)]
pub struct Picker {
    patterns: Vec<Regex>,
    gathered: PendingValues,
    told: Option<Instant>,
}

impl Picker {
    /// A picker for what an experiment asks for; `None` when it asks for nothing, or for what this build
    /// cannot read (the console has checked it).
    pub fn new(metrics: &Metrics) -> Option<Picker> {
        let patterns = compile(metrics).ok().filter(|patterns| !patterns.is_empty())?;
        Some(Picker { patterns, gathered: PendingValues::default(), told: None })
    }

    /// Looks at a line, which may hold several values; of a value that several patterns pick, the first
    /// pattern's counts.
    pub fn line(&mut self, line: &str) {
        let found = self.patterns.iter().filter_map(|pattern| Some((pattern, pattern.captures(line)?)));
        let values = found.flat_map(|(pattern, found)| {
            let texts = pattern.capture_names().flatten();
            texts.filter_map(move |name| Some((name, found.name(name)?.as_str()))).collect::<Vec<_>>()
        });
        let mut picked: Vec<&str> = Vec::new();
        for (name, text) in values {
            if picked.contains(&name) {
                continue;
            }
            picked.push(name);
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
    pace: Arc<FollowerPace>,
    thread: Thread,
}

#[derive(Debug, Default)]
struct FollowerPace {
    over: AtomicBool,
    /// Looks that were asked for, and the greatest such number that the latest whole look came after.
    asked: AtomicU64,
    done: AtomicU64,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.pace.over.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

impl Follower {
    /// Starts the thread; files that are older than the launch are left alone. `tell` is called on it.
    /// After `silence` without any file it says so, once.
    pub fn start(
        folder: PathBuf,
        gate: Gate,
        silence: Duration,
        tell: impl Fn(RecordEvent) + Send + 'static,
    ) -> std::io::Result<Follower> {
        let pace = Arc::new(FollowerPace::default());
        let seen = pace.clone();
        let (begun, mut told) = (Instant::now(), false);
        let mut files = Files::new(folder, gate, std::time::SystemTime::now() - Duration::from_secs(2));
        let thread = std::thread::Builder::new().name("event-files".into()).spawn(move || {
            while !seen.over.load(Ordering::Relaxed) {
                let asked = seen.asked.load(Ordering::Acquire);
                files.look().into_iter().for_each(&tell);
                seen.done.store(asked, Ordering::Release);
                if !told && begun.elapsed() >= silence {
                    told = true;
                    files.complaint().into_iter().for_each(&tell);
                }
                std::thread::park_timeout(EVERY);
            }
        })?;
        Ok(Follower { pace, thread: thread.thread().clone() })
    }

    /// Has the files looked at now: a program writes the last of them at its end. What is returned says
    /// whether that look is over.
    pub fn look_now(&self) -> impl Fn() -> bool + use<> {
        let asked = self.pace.asked.fetch_add(1, Ordering::AcqRel) + 1;
        self.thread.unpark();
        let pace = self.pace.clone();
        move || pace.over.load(Ordering::Relaxed) || pace.done.load(Ordering::Acquire) >= asked
    }
}

/// Event files and how far each has been read.
#[derive(Debug)]
struct Files {
    folder: PathBuf,
    since: std::time::SystemTime,
    /// Path to next byte; `None`: no event file, or broken.
    read: BTreeMap<PathBuf, Option<u64>>,
    gate: Gate,
    logged: LoggedMedia,
}

impl Files {
    fn new(folder: PathBuf, gate: Gate, since: std::time::SystemTime) -> Files {
        Files { folder, since, read: BTreeMap::new(), gate, logged: LoggedMedia::default() }
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
        let mut steps: BTreeMap<u64, PendingValues> = BTreeMap::new();
        for (path, at) in &mut self.read {
            let Some(from) = *at else { continue };
            *at = follow(path, from, |part| match part {
                Part::Long(bytes) => self.logged.too_long(bytes),
                Part::Values(step, values) => {
                    values.into_iter().for_each(|(name, value)| match value {
                        Value::Scalar(value) => {
                            let gathered = steps.entry(step).or_default();
                            gathered.env_step = Some(step);
                            gathered.add(&name, value);
                        }
                        Value::Histogram(bins) => self.logged.histogram(name, step, bins),
                        Value::Picture(file) => self.logged.picture(name, step, file),
                        Value::Wrong(why) => self.logged.refuse("histogram", &name, step, &why),
                    });
                }
            });
        }
        // A burst (a whole file at the start of a console, many short episodes) becomes a bounded number of
        // records.
        while steps.len() > STEPS {
            let (all, stride) = (steps.len(), steps.len().div_ceil(STEPS));
            let mut before = PendingValues::default();
            for (n, (step, gathered)) in std::mem::take(&mut steps).into_iter().enumerate() {
                before = before.then(gathered);
                if (n + 1) % stride == 0 || n + 1 == all {
                    steps.insert(step, std::mem::take(&mut before));
                }
            }
        }
        let scalars = steps.values_mut().filter_map(|gathered| gathered.take("tensorboard", Rank(0)));
        let mut all: Vec<RecordEvent> = scalars.collect();
        all.extend(self.logged.take(&self.gate, Instant::now()));
        all
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

/// What stands in a file.
enum Part<'a> {
    /// Values of a step.
    Values(u64, Vec<(String, Value<'a>)>),
    /// A record of so many bytes that is not read.
    Long(u64),
}

/// Reads whole records from byte `from`; gives the byte to go on from, `None` when the file is of no use.
fn follow(path: &Path, from: u64, mut each: impl FnMut(Part<'_>)) -> Option<u64> {
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
                    if let Some((step, values)) = tfrecord::values(data) {
                        each(Part::Values(step, values));
                    }
                    at += taken as u64;
                    rest = &rest[taken..];
                }
                Next::Partial => break,
                Next::Broken if tfrecord::length(rest).is_some_and(|long| long > CHUNK) => break,
                Next::Broken => return None,
            }
        }
        if at == begun {
            if bytes.len() < CHUNK as usize {
                return Some(at);
            }
            // Nothing whole in a full chunk: a record that is longer than those that are read.
            let long = tfrecord::length(&bytes).filter(|long| *long > CHUNK)?;
            let whole = file.metadata().is_ok_and(|data| data.len() >= at.saturating_add(long));
            if !whole {
                return Some(at);
            }
            each(Part::Long(long));
            at += long;
        }
    }
}

#[cfg(test)]
mod tests;
