//! A rank's reports: events for the agent, and on rank 0 log lines and TensorBoard values.
//!
//! Nothing here changes the training.
//!
//! TensorBoard event files of the run; [`rankdeck_proto::tfrecord`] has the record format.
//!
//! One file per generation of the run, in `RUN_DIR/tensorboard`.

use super::exchange::Consensus;
use super::fingerprints::FingerprintFile;
use super::metrics::{CsvRow, MetricsFile};
use super::regroup;
use crate::checkpoint::description::Description;
use crate::collect::Interval;
use crate::play::show::LiveEval;
use crate::support::events::{EventSender, print_line, warn};
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::execution::FingerprintLine;
use rankdeck_proto::message::{Counters, Evaluation, Membership, RankEvent};
use rankdeck_proto::show::ShownPolicy;
use rankdeck_proto::tfrecord::{field_bytes, frame, varint};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time between two reports, and between two progress lines in the log: rank 0's are about all ranks, the
/// others' about themselves.
const REPORT_EVERY: Duration = Duration::from_millis(250);
const LOG_EVERY: Duration = Duration::from_secs(1);
const OTHERS_LOG_EVERY: Duration = Duration::from_secs(10);

/// Sends events and writes log lines and TensorBoard values.
pub(crate) struct Reporter<'a> {
    events: &'a EventSender,
    rank: u32,
    first: bool,
    board: Option<EventFile>,
    metrics: Option<MetricsFile>,
    prints: Option<FingerprintFile>,
    /// Time and environment steps of the latest report.
    reported: Option<(Instant, u64)>,
    last_log: Option<Instant>,
    equal: bool,
}

/// The content of a report.
pub(crate) struct IterationReport<'a> {
    /// This rank's counters.
    pub own: Counters,
    /// All ranks' counters.
    pub totals: Counters,
    /// Episodes of all ranks since the last report.
    pub interval: Interval,
    /// Losses, means over the ranks.
    pub losses: Vec<(&'a str, f64)>,
    /// The iterations since the last report, of all ranks.
    pub rows: Vec<CsvRow>,
}

impl<'a> Reporter<'a> {
    /// For a rank of the run, after iteration `start`; the group's first one opens its files in `run_dir`.
    pub(crate) fn new(
        events: &'a EventSender,
        (rank, first): (u32, bool),
        run_dir: &Path,
        start: u64,
    ) -> Reporter<'a> {
        let board = first.then(|| EventFile::create(&run_dir.join("tensorboard")));
        let board = board.and_then(|opened| {
            opened
                .map_err(|error| {
                    warn(&format!("cannot create a TensorBoard file in {}: {error}", run_dir.display()))
                })
                .ok()
        });
        let metrics = first.then(|| MetricsFile::new(run_dir, start));
        let prints = first.then(|| FingerprintFile::new(run_dir, start));
        Reporter { events, rank, first, board, metrics, prints, reported: None, last_log: None, equal: true }
    }

    /// Writes what is trained into the TensorBoard file.
    pub(crate) fn describe(&mut self, about: &Description) {
        self.on_board(|board| board.settings(&about.settings()));
    }

    /// Whether a report is due, by rank 0's clock.
    pub(crate) fn due(&self) -> bool {
        self.first && self.reported.is_none_or(|(when, _)| when.elapsed() >= REPORT_EVERY)
    }

    /// Reports whether the weights are equal: with each report, and at once when that changes. `at` is
    /// (iteration, updates).
    pub(crate) fn fingerprints(&mut self, consensus: &Consensus, at: (u64, u64), report: bool) {
        let covered = consensus.chains.iter().any(|chain| *chain != 0);
        let equal = consensus.equal();
        let changed = equal != self.equal;
        self.equal = equal;
        if covered {
            self.write_fingerprints(&FingerprintLine::new(at.0, &consensus.chains), report || changed);
        }
        if !self.first || !covered || !(report || changed) {
            return;
        }
        let (train_iter, update) = at;
        let values: Vec<String> = consensus.chains.iter().map(|chain| format!("{chain:016x}")).collect();
        if changed {
            let state = if equal { "equal again" } else { "different" };
            warn(&format!("weights {state} at iteration {train_iter}: {}", values.join(" ")));
        }
        self.events.send(&RankEvent::Fingerprint { train_iter, update, values, equal });
    }

    /// One line per iteration with a covered update.
    fn write_fingerprints(&mut self, line: &FingerprintLine, flush: bool) {
        let Some(prints) = &mut self.prints else { return };
        let written = prints.add(line).and_then(|()| if flush { prints.flush() } else { Ok(()) });
        if let Err(error) = written {
            warn(&format!("fingerprints disabled: cannot write {}: {error}", prints.path().display()));
            self.prints = None;
        }
    }

    /// Sends the counters, and on rank 0 totals, losses and a progress line.
    pub(crate) fn iteration(&mut self, report: IterationReport) {
        self.events.send(&RankEvent::Counters(report.own));
        if !self.first {
            if self.last_log.is_none_or(|last_log| last_log.elapsed() >= OTHERS_LOG_EVERY) {
                self.last_log = Some(Instant::now());
                print_line(&format!("rank {}: {}", self.rank, progress_line(&report.own, None)));
            }
            return;
        }
        let IterationReport { totals, interval, .. } = report;
        self.events.send(&RankEvent::Totals(totals));
        let now = Instant::now();
        let rate = self.reported.map(|(when, steps)| {
            totals.env_step.saturating_sub(steps) as f64 / now.duration_since(when).as_secs_f64().max(1e-9)
        });
        self.reported = Some((now, totals.env_step));
        let count = interval.returns.count as f64;
        let values: BTreeMap<&str, f64> = report
            .losses
            .into_iter()
            .chain([
                ("charts/episodic_return", interval.returns.sum / count),
                ("charts/episodic_length", interval.length as f64 / count),
                ("charts/return_last_100", totals.return_last_100.unwrap_or(f64::NAN)),
                ("charts/learning_rate", rate_of(&report.rows)),
                ("charts/SPS", rate.unwrap_or(f64::NAN)),
            ])
            .filter(|(_, value)| value.is_finite())
            .collect();
        self.write_rows(report.rows);
        // What a report knows and its iterations do not.
        let own = ["charts/return_last_100", "charts/SPS"];
        let own =
            own.iter().filter_map(|name| values.get_key_value(name)).map(|(name, value)| (*name, *value));
        self.write_board(totals.env_step, &own.collect());
        self.events.send(&RankEvent::Scalars {
            train_iter: totals.train_iter,
            env_step: totals.env_step,
            values: values.iter().map(|(name, value)| (name.to_string(), *value)).collect(),
            not_finite: BTreeMap::new(),
        });
        if self.last_log.is_none_or(|last_log| last_log.elapsed() >= LOG_EVERY) {
            self.last_log = Some(now);
            print_line(&progress_line(&totals, rate));
        }
    }

    /// Reports that the members of the group have changed, on its first rank.
    pub(crate) fn membership(&self, change: Membership) {
        if self.first {
            print_line(&regroup::describe(&change));
            self.events.send(&RankEvent::Membership(change));
        }
    }

    /// Shows steps of an evaluation that begins.
    pub(crate) fn live(&self, policy: ShownPolicy) -> LiveEval<'a> {
        LiveEval::new(self.events, policy)
    }

    /// Reports an evaluation, on rank 0.
    pub(crate) fn evaluation(&mut self, e: &Evaluation) {
        if !self.first {
            return;
        }
        self.events.send(&RankEvent::Eval(e.clone()));
        let values = [("eval/return_mean", e.return_mean), ("eval/return_std", e.return_std)];
        self.write_board(e.env_step, &BTreeMap::from(values));
        if let Some(metrics) = &mut self.metrics {
            metrics.evaluation(e);
        }
        print_line(&format!(
            "eval after iteration {}, env_step {}: return {:.1} +- {:.1} over {} episodes in {:.2} s{}{}",
            e.train_iter,
            e.env_step,
            e.return_mean,
            e.return_std,
            e.episodes,
            e.duration_s,
            if e.sampled { ", actions sampled" } else { "" },
            if e.stop { ", stop value reached" } else { "" },
        ));
    }

    /// Reports a complete checkpoint; called on rank 0.
    pub(crate) fn checkpoint(&self, path: &Path, env_step: u64, train_iter: u64, reason: &str) {
        // The path comes last: it is long, and screens cut the ends of lines.
        print_line(&format!("checkpoint after iteration {train_iter} ({reason}): {}", path.display()));
        let path = path.to_string_lossy().into_owned();
        self.events.send(&RankEvent::Checkpoint { path, env_step, train_iter, reason: reason.into() });
    }

    fn write_board(&mut self, env_step: u64, values: &BTreeMap<&str, f64>) {
        self.on_board(|board| board.scalars(env_step, values.iter().map(|(name, value)| (*name, *value))));
    }

    /// One point and one line per iteration.
    fn write_rows(&mut self, rows: Vec<CsvRow>) {
        self.on_board(|board| {
            rows.iter().try_for_each(|row| {
                let there = row.values.iter().filter(|(_, value)| value.is_finite());
                board.scalars(row.env_step, there.map(|(name, value)| (*name, *value)))
            })
        });
        let Some(metrics) = &mut self.metrics else { return };
        let written = rows.into_iter().try_for_each(|row| metrics.row(row)).and_then(|()| metrics.flush());
        if let Err(error) = written {
            warn(&format!("metrics disabled: cannot write {}: {error}", metrics.path().display()));
            self.metrics = None;
        }
    }

    fn on_board(&mut self, write: impl FnOnce(&mut EventFile) -> io::Result<()>) {
        let Some(board) = &mut self.board else { return };
        if let Err(error) = write(board).and_then(|()| board.flush()) {
            let path = board.path().display();
            warn(&format!("TensorBoard disabled: cannot write {path}: {error}"));
            self.board = None;
        }
    }
}

/// The learning rate of the latest iteration.
fn rate_of(rows: &[CsvRow]) -> f64 {
    rows.last().and_then(|row| row.values.get("charts/learning_rate").copied()).unwrap_or(f64::NAN)
}

fn progress_line(totals: &Counters, rate: Option<f64>) -> String {
    let Counters { train_iter, env_step, episodes, returns, return_last_100, .. } = totals;
    let mean = match returns.count {
        0 => "-".to_string(),
        count => format!("{:.1}", returns.sum / count as f64),
    };
    let rate = rate.map_or(String::new(), |rate| format!("  {rate:.0} steps/s"));
    let last = return_last_100.map_or(String::new(), |last| format!("  mean return {last:.1}"));
    format!(
        "iteration {train_iter}  env_step {env_step}  episodes {episodes}  episode return {mean}{last}{rate}"
    )
}

/// An open event file.
pub(super) struct EventFile {
    file: BufWriter<File>,
    path: PathBuf,
}

impl EventFile {
    /// Creates the folder and a file named as TensorBoard expects it, and writes the version record.
    pub(crate) fn create(folder: &Path) -> io::Result<EventFile> {
        std::fs::create_dir_all(folder)?;
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "localhost" } else { host.trim() };
        let now = wall_time();
        // Two generations may start in the same second with the same process id (containers).
        let name = format!(
            "events.out.tfevents.{}.{host}.{}.{:06}",
            now as u64,
            std::process::id(),
            (now.fract() * 1e6) as u64
        );
        let path = folder.join(name);
        let file = BufWriter::new(File::options().write(true).create_new(true).open(&path)?);
        let mut this = EventFile { file, path };
        let mut version = Vec::new();
        field_bytes(&mut version, 3, b"brain.Event:2");
        this.event(0, &version)?;
        this.flush()?;
        Ok(this)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes scalars for one step.
    pub(crate) fn scalars<'a>(
        &mut self,
        step: u64,
        values: impl IntoIterator<Item = (&'a str, f64)>,
    ) -> io::Result<()> {
        let mut summary = Vec::new();
        for (tag, value) in values {
            let mut entry = Vec::new();
            field_bytes(&mut entry, 1, tag.as_bytes());
            varint(&mut entry, 2 << 3 | 5);
            entry.extend((value as f32).to_le_bytes());
            field_bytes(&mut summary, 1, &entry);
        }
        let mut body = Vec::new();
        field_bytes(&mut body, 5, &summary);
        self.event(step, &body)
    }

    /// Writes settings: as a table of texts, and as the hyper-parameters of TensorBoard's plugin
    /// (tensorboard/plugins/hparams/plugin_data.proto).
    pub(crate) fn settings(&mut self, settings: &[(String, Value)]) -> io::Result<()> {
        let mut table = String::from("| key | value |\n|---|---|\n");
        let (mut session, mut hparams) = (Vec::new(), Vec::new());
        for (name, value) in settings {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            table.push_str(&format!("| {name} | {} |\n", text.replace('|', "\\|").replace('\n', " ")));
            let mut entry = Vec::new();
            field_bytes(&mut entry, 1, name.as_bytes());
            field_bytes(&mut entry, 2, &hparam(value, &text));
            field_bytes(&mut hparams, 1, &entry);
        }
        field_bytes(&mut session, 3, &hparams);
        let text = plugin_value("settings/text_summary", "text", &[], Some(&table));
        self.event(0, &summary(&text))?;
        let session = plugin_value("_hparams_/session_start_info", "hparams", &session, None);
        self.event(0, &summary(&session))
    }

    /// Hands everything to the kernel.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    fn event(&mut self, step: u64, body: &[u8]) -> io::Result<()> {
        let mut event = Vec::with_capacity(body.len() + 20);
        varint(&mut event, 1 << 3 | 1);
        event.extend(wall_time().to_le_bytes());
        varint(&mut event, 2 << 3);
        varint(&mut event, step);
        event.extend_from_slice(body);
        self.file.write_all(&frame(&event))
    }
}

/// A `google.protobuf.Value`.
fn hparam(value: &Value, text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    match (value, value.as_f64()) {
        (_, Some(number)) => {
            varint(&mut bytes, 2 << 3 | 1);
            bytes.extend(number.to_le_bytes());
        }
        (Value::Bool(flag), _) => {
            varint(&mut bytes, 4 << 3);
            varint(&mut bytes, u64::from(*flag));
        }
        _ => field_bytes(&mut bytes, 3, text.as_bytes()),
    }
    bytes
}

/// `Event.summary` with one value.
fn summary(value: &[u8]) -> Vec<u8> {
    let (mut summary, mut event) = (Vec::new(), Vec::new());
    field_bytes(&mut summary, 1, value);
    field_bytes(&mut event, 5, &summary);
    event
}

/// `Summary.Value` of a plugin: its tag, its data, and a tensor with a text.
fn plugin_value(tag: &str, plugin: &str, data: &[u8], text: Option<&str>) -> Vec<u8> {
    let (mut value, mut plugin_data, mut metadata) = (Vec::new(), Vec::new(), Vec::new());
    field_bytes(&mut plugin_data, 1, plugin.as_bytes());
    field_bytes(&mut plugin_data, 2, data);
    field_bytes(&mut metadata, 1, &plugin_data);
    field_bytes(&mut value, 1, tag.as_bytes());
    if let Some(text) = text {
        const STRING: u64 = 7;
        let (mut tensor, mut shape, mut side) = (Vec::new(), Vec::new(), Vec::new());
        varint(&mut tensor, 1 << 3);
        varint(&mut tensor, STRING);
        varint(&mut side, 1 << 3);
        varint(&mut side, 1);
        field_bytes(&mut shape, 2, &side);
        field_bytes(&mut tensor, 2, &shape);
        field_bytes(&mut tensor, 8, text.as_bytes());
        field_bytes(&mut value, 8, &tensor);
    }
    field_bytes(&mut value, 9, &metadata);
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::tfrecord::{Next, next};

    #[test]
    fn frames_hold_their_length_and_checksums() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(folder.path()).unwrap();
        file.scalars(300, [("charts/SPS", 1.5), ("losses/entropy", -2.0)]).unwrap();
        file.flush().unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        let mut rest = bytes.as_slice();
        let mut records = Vec::new();
        while let Next::Record(data, taken) = next(rest) {
            records.push(data.to_vec());
            rest = &rest[taken..];
        }
        assert!(rest.is_empty());
        assert_eq!(records.len(), 2);
        let contains = |record: &[u8], text: &[u8]| record.windows(text.len()).any(|window| window == text);
        assert!(contains(&records[0], b"brain.Event:2"));
        assert!(contains(&records[1], b"charts/SPS") && contains(&records[1], &1.5_f32.to_le_bytes()));
        // Field 2, 300 as a varint.
        assert!(contains(&records[1], &[0x10, 0xac, 0x02]));
    }
}
