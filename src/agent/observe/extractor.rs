//! Metrics from the output of rank 0: by the patterns of the experiment, else by the forms in which programs print
//! values, and its progress bars.
//!
//! Owner: the agent of rank 0's host, one per launch. Invariants:
//! - METRICS-2: recognizing costs a bounded share of a core: at most [`LINES`] lines a second are read.
//! - METRICS-3: values whose names no program prints as results (`lr=0.1, epochs=5`) count from the second time on
//!   that they come together with others than before: a configuration is printed once.

use crate::observe::arbiter::SeriesSource;
use crate::observe::metrics::{EVERY, PendingValues, chart};
use rankdeck_proto::message::RecordEvent;
use rankdeck_proto::printed::{self, MetricLineParser, PrintedValues};
use rankdeck_proto::progress_bar::{self, MainBar, ShownCounter, ShownProgress};
use rankdeck_types::experiment::Metrics;
use rankdeck_types::ids::Rank;
use rankdeck_types::meaning::compile_patterns;
use rankdeck_types::meaning::{Meaning, Meanings};
use regex_lite::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// Most lines that are read for forms in a second.
const LINES: u32 = 1000;
/// Most combinations of names that wait for their second time.
const SHAPES: usize = 256;
/// Most names of counts.
const COUNTS: usize = 64;
/// Between two records of nothing but progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);
/// A table without a new row for this long is complete.
const TABLE_END: Duration = Duration::from_secs(1);
/// Largest step: all integers up to it are exact.
const STEP: f64 = 9e15;

/// Picks values and progress from lines.
#[derive(Debug)]
pub(crate) struct MetricExtractor {
    patterns: Vec<Regex>,
    /// Charts of the user's own patterns.
    declared: BTreeSet<String>,
    /// Reads forms; `None` if the user has patterns.
    reader: Option<MetricLineParser>,
    meanings: Meanings,
    gathered: PendingValues,
    counter: Option<ShownCounter>,
    /// How the program calls what it counts, since it was last taken.
    counted_by: Option<(Meaning, String)>,
    /// First values of names that may count, and whether a later one differed.
    counts: BTreeMap<String, (f64, bool)>,
    /// Combinations of names, with the values that came first.
    shapes: BTreeMap<u64, Option<PrintedValues>>,
    bars: MainBar,
    /// The latest progress that was recorded.
    recorded: Option<ShownProgress>,
    /// The latest step that was recorded.
    recorded_step: Option<u64>,
    budget: LineBudget,
    /// Unfinished rows whose values have been read.
    live_rows: Vec<String>,
    row_at: Option<Instant>,
    reported_at: Option<Instant>,
}

/// METRICS-2.
#[derive(Debug, Default)]
struct LineBudget {
    second: Option<Instant>,
    read: u32,
}

impl LineBudget {
    fn take(&mut self, now: Instant) -> bool {
        if self.second.is_none_or(|second| now.saturating_duration_since(second) >= Duration::from_secs(1)) {
            *self = LineBudget { second: Some(now), read: 0 };
        }
        self.read += 1;
        self.read <= LINES
    }
}

impl MetricExtractor {
    /// Returns the extractor of an experiment. Patterns that this build cannot read are left out: the console has
    /// checked them.
    pub fn new(metrics: &Metrics) -> MetricExtractor {
        let own = Metrics { presets: Vec::new(), ..metrics.clone() };
        let names = |pattern: &Regex| pattern.capture_names().flatten().map(chart).collect::<Vec<_>>();
        let declared = compile_patterns(&own).unwrap_or_default().iter().flat_map(names).collect();
        MetricExtractor {
            patterns: compile_patterns(metrics).unwrap_or_default(),
            declared,
            reader: metrics.stdout.is_empty().then(MetricLineParser::default),
            meanings: Meanings::new(&metrics.names),
            gathered: PendingValues::default(),
            counter: None,
            counted_by: None,
            counts: BTreeMap::new(),
            shapes: BTreeMap::new(),
            bars: MainBar::default(),
            recorded: None,
            recorded_step: None,
            budget: LineBudget::default(),
            live_rows: Vec::new(),
            row_at: None,
            reported_at: None,
        }
    }

    /// Where a value of this name comes from.
    pub fn source(&self, name: &str) -> SeriesSource {
        let is_step = matches!(name, "env_step" | "global_step");
        let is_declared = self.declared.contains(name) || is_step && !self.declared.is_empty();
        if is_declared { SeriesSource::Declared } else { SeriesSource::Printed }
    }

    /// Reads finished lines.
    pub fn lines(&mut self, lines: &[String], now: Instant) {
        for line in lines {
            match self.live_rows.iter().position(|row| row == line) {
                Some(read) => drop(self.live_rows.remove(read)),
                None => self.line(line, now),
            }
        }
    }

    /// Reads rows that are not finished: bars, and lines that are written over (`\rEpisode 7 score: 3`). A row that is
    /// finished as it was gives nothing more.
    pub fn live(&mut self, rows: &[String], now: Instant) {
        for row in rows.iter().filter(|row| !self.live_rows.contains(row)).cloned().collect::<Vec<_>>() {
            self.line(&row, now);
        }
        self.live_rows = rows.to_vec();
    }

    fn line(&mut self, line: &str, now: Instant) {
        if self.match_patterns(line) || !self.budget.take(now) {
            return;
        }
        if !self.see_bar(line, now) {
            self.read_forms(line, now);
        }
    }

    /// Extracts the values of a line by patterns; of a value that several patterns pick, the first pattern's
    /// counts. Returns whether any has matched.
    fn match_patterns(&mut self, line: &str) -> bool {
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
                ("env_step" | "global_step", Ok(step)) if (0.0..STEP).contains(&step) => {
                    self.gathered.env_step = Some(step as u64);
                }
                (name, Ok(value)) => self.gathered.add(name, value),
                (_, Err(_)) => self.gathered.skipped += 1,
            }
        }
        !picked.is_empty()
    }

    /// Returns whether the line is a progress bar.
    fn see_bar(&mut self, line: &str, now: Instant) -> bool {
        if !progress_bar::may_be(line) {
            return false;
        }
        let line = printed::plain(line);
        let Some(bar) = progress_bar::parse(&line) else { return false };
        self.bars.see(&bar, now);
        if self.reader.is_some() && !bar.values.is_empty() {
            let reading = printed::listed(bar.values, &self.meanings);
            self.take(reading, now);
        }
        true
    }

    fn read_forms(&mut self, line: &str, now: Instant) {
        let Some(reader) = &mut self.reader else { return };
        let mut readings = Vec::new();
        reader.line(line, &self.meanings, |reading| readings.push(reading));
        if reader.is_in_table() {
            self.row_at = Some(now);
        }
        readings.into_iter().for_each(|reading| self.take(reading, now));
    }

    /// METRICS-3.
    fn take(&mut self, reading: PrintedValues, now: Instant) {
        let is_result = |name: &str| self.meanings.of(name).is_some_and(Meaning::is_result);
        if reading.values.iter().any(|(name, _)| is_result(name)) {
            self.note_counts(&reading);
            return self.add(&reading, now);
        }
        let mut shape = DefaultHasher::new();
        reading.values.iter().for_each(|(name, _)| name.hash(&mut shape));
        let is_full = self.shapes.len() >= SHAPES;
        self.note_counts(&reading);
        match self.shapes.get_mut(&shape.finish()) {
            None if is_full => {}
            None => drop(self.shapes.insert(shape.finish(), Some(reading))),
            Some(Some(first)) if first.values == reading.values => {}
            Some(first) => {
                let first = first.take();
                first.into_iter().for_each(|first| self.add(&first, now));
                self.add(&reading, now);
            }
        }
    }

    /// Notes which of the names that may count something have changed their value.
    fn note_counts(&mut self, reading: &PrintedValues) {
        for (name, value) in &reading.values {
            if !self.meanings.of(name).is_some_and(Meaning::is_count) {
                continue;
            }
            let is_full = self.counts.len() >= COUNTS;
            match self.counts.get_mut(name) {
                Some((first, has_moved)) => *has_moved |= first != value,
                None if is_full => {}
                None => drop(self.counts.insert(name.clone(), (*value, false))),
            }
        }
    }

    fn add(&mut self, reading: &PrintedValues, now: Instant) {
        let names = || reading.values.iter().map(|(name, _)| name.as_str());
        let value =
            |name: &str| reading.values.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
        let counted = |meaning: Meaning| {
            let name = self.meanings.best(meaning, names())?;
            let at = value(name).filter(|at| (0.0..STEP).contains(at))?;
            Some((meaning, name.to_owned(), at))
        };
        // Steps of an epoch, which never change, count less than the epochs that do.
        let counters: Vec<_> =
            [Meaning::Step, Meaning::Epoch, Meaning::Iteration].into_iter().filter_map(counted).collect();
        let moving = |(_, name, _): &&(Meaning, String, f64)| {
            self.counts.get(name).is_some_and(|(_, has_moved)| *has_moved)
        };
        let counter = counters.iter().find(moving).or(counters.first()).cloned();
        if let Some((meaning, name, at)) = counter {
            let unit = meaning.key().to_owned();
            let total = reading.totals.iter().find(|(known, _)| *known == name).map(|(_, total)| *total);
            let total = total.filter(|total| (1.0..STEP).contains(total)).map(|total| total as u64);
            if meaning == Meaning::Step {
                self.gathered.env_step = Some(at as u64);
            } else if self.gathered.env_step.is_none() {
                self.counter = Some(ShownCounter { unit: unit.clone(), at });
            }
            if total.is_some() || meaning != Meaning::Step {
                let progress = ShownProgress { done: at as u64, total, unit, ..ShownProgress::default() };
                self.bars.count(progress, now);
            }
            self.counted_by = Some((meaning, name));
        }
        for (name, value) in &reading.values {
            let meaning = self.meanings.of(name);
            if !meaning.is_some_and(Meaning::is_count) {
                self.gathered.add(name, *value);
            }
        }
    }

    /// How the program calls what it counts, if that was read since the latest call.
    pub fn counted_by(&mut self) -> Option<(Meaning, String)> {
        self.counted_by.take()
    }

    /// Returns the record that is due (METRICS-1); `last`: at once.
    pub fn due(&mut self, now: Instant, last: bool) -> Option<RecordEvent> {
        self.end_table(now, last);
        let passed = self.reported_at.map(|at| now.saturating_duration_since(at));
        if !last && passed.is_some_and(|passed| passed < EVERY) {
            return None;
        }
        let shown = self.bars.progress().filter(|shown| self.recorded.as_ref() != Some(*shown)).cloned();
        let mut record = self.gathered.take("stdout", Rank(0)).or_else(|| {
            let is_due = last || passed.is_none_or(|passed| passed >= PROGRESS_EVERY);
            // A step without values is progress, too.
            let step = self.gathered.env_step.filter(|step| self.recorded_step != Some(*step));
            let moves = shown.is_some() || step.is_some();
            (moves && is_due).then(|| PendingValues::step("stdout", Rank(0), step))
        })?;
        if let RecordEvent::Metrics { counter, progress, env_step, .. } = &mut record {
            self.recorded_step = env_step.or(self.recorded_step);
            *counter = self.counter.take().filter(|_| env_step.is_none());
            self.recorded = shown.clone().or(self.recorded.take());
            *progress = shown;
        }
        self.reported_at = Some(now);
        Some(record)
    }

    fn end_table(&mut self, now: Instant, last: bool) {
        let Some(reader) = self.reader.as_mut().filter(|reader| reader.is_in_table()) else { return };
        if !last && self.row_at.is_some_and(|at| now.saturating_duration_since(at) < TABLE_END) {
            return;
        }
        let mut readings = Vec::new();
        reader.end(|reading| readings.push(reading));
        readings.into_iter().for_each(|reading| self.take(reading, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Shown {
        env_step: Option<u64>,
        counter: Option<ShownCounter>,
        values: Vec<(String, f64)>,
        skipped: u64,
        progress: Option<ShownProgress>,
    }

    fn shown(record: Option<RecordEvent>) -> Shown {
        match record {
            Some(RecordEvent::Metrics { env_step, counter, values, skipped, progress, .. }) => {
                Shown { env_step, counter, values: values.into_iter().collect(), skipped, progress }
            }
            other => panic!("{other:?}"),
        }
    }

    fn named(values: &[(&str, f64)]) -> Vec<(String, f64)> {
        values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    fn read(extractor: &mut MetricExtractor, lines: &[&str]) {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        extractor.lines(&lines, Instant::now());
    }

    fn recognized(lines: &[&str]) -> Shown {
        let mut extractor = MetricExtractor::new(&Metrics::default());
        read(&mut extractor, lines);
        shown(extractor.due(Instant::now(), true))
    }

    #[test]
    fn line_that_is_written_over_gives_its_values_once() {
        let (mut extractor, now) = (MetricExtractor::new(&Metrics::default()), Instant::now());
        let row = |episode: u32| format!("Episode {episode}\tAverage Score: {episode}.5");
        let values = |episode: f64| named(&[("Average Score", episode + 0.5), ("Episode", episode)]);
        extractor.live(&[row(98)], now);
        assert_eq!(shown(extractor.due(now, true)).values, values(98.0));
        extractor.live(&[row(98)], now);
        assert!(extractor.due(now, true).is_none(), "it stands still");
        extractor.live(&[row(99)], now);
        assert_eq!(shown(extractor.due(now, true)).values, values(99.0));
        read(&mut extractor, &[&row(99)]);
        assert!(extractor.due(now, true).is_none(), "it is finished as it was");
        read(&mut extractor, &[&row(99)]);
        assert_eq!(shown(extractor.due(now, true)).values, values(99.0), "another line");
    }

    #[test]
    fn metrics_1_lines_become_one_record_a_second() {
        let metrics = Metrics {
            presets: vec!["cleanrl".into()],
            stdout: vec!["loss (?P<loss>[-0-9.]+)".into()],
            ..Metrics::default()
        };
        let mut picker = MetricExtractor::new(&metrics);
        read(
            &mut picker,
            &[
                "global_step=100, episodic_return=10.0",
                "noise",
                "global_step=180, episodic_return=[30.]",
                "SPS: 512",
                "loss 0.5",
                "loss 0.25",
                "loss .-.",
            ],
        );
        let now = Instant::now();
        let first = shown(picker.due(now, false));
        assert_eq!(first.env_step, Some(180));
        let expected = [("charts/SPS", 512.0), ("charts/episodic_return", 20.0), ("loss", 0.25)];
        assert_eq!(first.values, named(&expected));
        assert_eq!(first.skipped, 2, "one loss was overtaken, one is not a number");
        read(&mut picker, &["loss 0.5", "loss 1000000", "loss 0.25"]);
        let Some(RecordEvent::Metrics { values, spread, .. }) = picker.due(now, true) else { panic!() };
        assert_eq!(values["loss"], 0.25, "the last is recorded");
        assert_eq!(spread, BTreeMap::from([("loss".into(), (0.25, 1e6))]), "and the spike is not lost");
        read(&mut picker, &["SPS: 600"]);
        assert_eq!(picker.due(now + Duration::from_millis(900), false), None);
        let third = shown(picker.due(now + Duration::from_millis(1100), false));
        assert_eq!((third.env_step, third.values[0].1), (Some(180), 600.0), "the step is the last one known");
        assert_eq!(picker.due(now + Duration::from_secs(9), true), None, "nothing is recorded twice");
    }

    #[test]
    fn line_gives_all_of_its_values_once() {
        let patterns = ["step (?P<env_step>[0-9]+)", "loss (?P<loss>[-0-9.]+)", "return (?P<return>[0-9.]+)"];
        let metrics = Metrics {
            stdout: patterns.iter().chain(&["(?P<loss>[0-9]+)"]).map(|text| (*text).to_owned()).collect(),
            ..Metrics::default()
        };
        let mut picker = MetricExtractor::new(&metrics);
        read(&mut picker, &["step 30 loss 0.5 return 7"]);
        let all = shown(picker.due(Instant::now(), false));
        assert_eq!((all.env_step, all.skipped), (Some(30), 0));
        assert_eq!(all.values, named(&[("charts/episodic_return", 7.0), ("loss", 0.5)]));
        assert_eq!(picker.source("charts/episodic_return"), SeriesSource::Declared);
    }

    #[test]
    fn own_patterns_replace_the_forms() {
        let metrics = Metrics { stdout: vec!["x (?P<x>[0-9]+)".into()], ..Metrics::default() };
        let mut picker = MetricExtractor::new(&metrics);
        read(&mut picker, &["loss=0.5 acc=1", "x 3", "1/2 [00:01<00:01, 1it/s, loss=3]"]);
        let all = shown(picker.due(Instant::now(), true));
        assert_eq!(all.values, named(&[("x", 3.0)]));
        assert_eq!(all.progress.map(|progress| progress.done), Some(1), "a bar is progress all the same");
    }

    #[test]
    fn forms_are_recognized_without_a_declaration() {
        let all =
            recognized(&["global_step=100, episodic_return=10.0", "global_step=180, episodic_return=[30.]"]);
        assert_eq!((all.env_step, all.values), (Some(180), named(&[("charts/episodic_return", 20.0)])));
        let all = recognized(&["{'loss': '5.993', 'learning_rate': '4.9e-05', 'epoch': 0.1}"]);
        assert_eq!(all.values, named(&[("learning_rate", 4.9e-5), ("loss", 5.993)]));
        assert_eq!(all.counter, Some(ShownCounter { unit: "epoch".into(), at: 0.1 }));
        let all = recognized(&[
            "| rollout/ | |",
            "|    ep_rew_mean | 21.3 |",
            "| time/ | |",
            "|    total_timesteps | 2048 |",
        ]);
        assert_eq!((all.env_step, all.values), (Some(2048), named(&[("rollout/ep_rew_mean", 21.3)])));
    }

    #[test]
    fn metrics_3_configuration_is_not_a_metric() {
        let mut picker = MetricExtractor::new(&Metrics::default());
        read(&mut picker, &["Namespace(lr=0.1, total_timesteps=500000, epochs=10)", "seed=1 batch=32"]);
        assert_eq!(picker.due(Instant::now(), true), None);
        read(&mut picker, &["seed=1 batch=32"]);
        assert_eq!(picker.due(Instant::now(), true), None, "still the same");
        read(&mut picker, &["step=1 acc=0.5", "step=2 acc=0.6"]);
        let all = shown(picker.due(Instant::now(), true));
        assert_eq!((all.env_step, all.values), (Some(2), named(&[("acc", 0.6)])));
    }

    #[test]
    fn constant_steps_count_less_than_moving_epochs() {
        let mut picker = MetricExtractor::new(&Metrics::default());
        let line = |epoch: u32| format!("[GPU0] Epoch {epoch} | Batchsize: 32 | Steps: 64");
        picker.lines(&[line(7), line(8)], Instant::now());
        let all = shown(picker.due(Instant::now(), true));
        assert_eq!((all.env_step, all.counter), (None, Some(ShownCounter { unit: "epoch".into(), at: 8.0 })));
        assert_eq!(
            all.progress.map(|progress| (progress.done, progress.unit)),
            Some((8, "epoch".to_owned()))
        );
    }

    #[test]
    fn table_without_an_end_counts_after_a_second() {
        let mut picker = MetricExtractor::new(&Metrics::default());
        let now = Instant::now();
        picker.lines(&["| loss | 0.5 |".to_owned()], now);
        assert_eq!(picker.due(now, false), None);
        assert_eq!(shown(picker.due(now + TABLE_END, false)).values, named(&[("loss", 0.5)]));
    }

    #[test]
    fn bar_becomes_progress_with_its_values() {
        let mut picker = MetricExtractor::new(&Metrics::default());
        let (now, bar) = (Instant::now(), |n: u32| format!("{n}/100 [00:10<00:12, 4.4it/s, loss=0.{n}]"));
        picker.live(&[bar(45)], now);
        let first = shown(picker.due(now, false));
        assert_eq!(first.values, named(&[("loss", 0.45)]));
        assert_eq!(first.progress.map(|progress| (progress.done, progress.total)), Some((45, Some(100))));
        picker.live(&["46/100 [00:10<00:12, 4.4it/s]".to_owned()], now);
        assert_eq!(picker.due(now + EVERY, false), None, "progress alone is recorded less often");
        let second = shown(picker.due(now + PROGRESS_EVERY, false));
        assert_eq!((second.values, second.progress.map(|progress| progress.done)), (vec![], Some(46)));
        assert_eq!(picker.due(now + 9 * EVERY, false), None, "it has not moved");
    }

    #[test]
    fn steps_without_values_are_progress() {
        for name in ["step", "global_step"] {
            let mut picker = MetricExtractor::new(&Metrics::default());
            let (now, line) = (Instant::now(), |n: u32| format!("{name}={n}"));
            picker.lines(&[line(1), line(2)], now);
            let first = shown(picker.due(now, false));
            assert_eq!((first.env_step, first.values, first.progress), (Some(2), vec![], None));
            assert_eq!(picker.due(now + 9 * EVERY, false), None, "it has not moved");
            picker.lines(&[line(3)], now);
            assert_eq!(picker.due(now + EVERY, false), None, "progress alone is recorded less often");
            assert_eq!(shown(picker.due(now + PROGRESS_EVERY, false)).env_step, Some(3));
        }
    }

    #[test]
    fn counters_with_an_end_are_progress() {
        for (line, expected) in [
            (
                "fps step: 9 fps total: 8 epoch: 3/500 frames: 49152/8000000",
                (49_152, Some(8_000_000), "step"),
            ),
            ("Epoch [3/10], Loss: 0.5", (3, Some(10), "epoch")),
        ] {
            let progress = recognized(&[line]).progress.unwrap();
            assert_eq!((progress.done, progress.total, progress.unit.as_str()), expected, "{line}");
        }
    }

    #[test]
    fn metrics_2_flood_of_lines_is_read_in_part() {
        let mut picker = MetricExtractor::new(&Metrics::default());
        let lines: Vec<String> = (0..5000).map(|n| format!("step={n} loss=0.5")).collect();
        picker.lines(&lines, Instant::now());
        assert_eq!(shown(picker.due(Instant::now(), true)).env_step, Some(u64::from(LINES) - 1));
    }
}
