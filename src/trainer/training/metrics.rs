//! Metrics of single iterations: gathered over all ranks with the reports, so that they need no collective
//! of their own, and written to `metrics.csv` in the run directory, one line per iteration, for pandas, R
//! and spreadsheets.
//!
//! Invariants:
//! - METRICS-1: an iteration has one line, also after a restart: what an earlier generation wrote about
//!   iterations that are made again is removed.
//! - An evaluation stands in the line of its iteration; a value that there is not is an empty cell.
//! - ROWS-1: which iterations are retained follows from their numbers and from how many there were
//!   between two reports, so all ranks keep the same ones. A report has at most [`MOST`] of them, of fast
//!   loops every second, fourth and so on.

use crate::algo::{IterationStats, ScalarStat};
use crate::collect::{Interval, RankCounters};
use crate::support::state::push_bounded;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::message::Evaluation;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Most iterations between two reports.
const MOST: usize = 64;

/// What an iteration did on this rank, and what all ranks know of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct IterationRow {
    known: CsvRow,
    learning_rate: f64,
    losses: Vec<ScalarStat>,
    /// Sum of the returns of this rank's episodes, their number, sum of their lengths.
    episodes: [f64; 3],
}

impl IterationRow {
    /// The numbers that are averaged over the ranks.
    pub(super) fn values(&self) -> impl Iterator<Item = f64> + '_ {
        self.losses.iter().map(|stat| stat.value).chain(self.episodes)
    }
}

/// Iterations since the last report.
#[derive(Debug, Default)]
pub(super) struct IterationRows {
    retained: Vec<IterationRow>,
    /// Which ones are retained: multiples of two to this power.
    power: u32,
    /// Episodes since the last report.
    interval: Interval,
    /// Episodes since the row retained last.
    open: [f64; 3],
}

impl IterationRows {
    /// An iteration has ended; `own` has its episodes on this rank.
    pub(super) fn add(
        &mut self,
        train_iter: u64,
        updates: u64,
        totals: &RankCounters,
        stats: &IterationStats,
        own: Interval,
    ) {
        let Interval { returns, length, latest } = own;
        let ended = [returns.sum, returns.count as f64, length as f64];
        self.open.iter_mut().zip(ended).for_each(|(sum, more)| *sum += more);
        self.interval.returns = self.interval.returns.plus(returns);
        self.interval.length += length;
        latest.into_iter().for_each(|one| push_bounded(&mut self.interval.latest, one));
        if !train_iter.is_multiple_of(1 << self.power.min(62)) {
            return;
        }
        self.retained.push(IterationRow {
            known: CsvRow {
                train_iter,
                env_step: totals.env_step,
                episodes: totals.episodes,
                updates,
                time: wall_time(),
                ..CsvRow::default()
            },
            learning_rate: stats.learning_rate,
            losses: stats.losses.clone(),
            episodes: std::mem::take(&mut self.open),
        });
        if self.retained.len() > MOST {
            self.power += 1;
            let power = self.power;
            let mut passed = [0.0; 3];
            self.retained.retain_mut(|row| {
                passed.iter_mut().zip(row.episodes).for_each(|(sum, more)| *sum += more);
                let keeps = row.known.train_iter.is_multiple_of(1 << power.min(62));
                if keeps {
                    row.episodes = std::mem::take(&mut passed);
                }
                keeps
            });
            self.open.iter_mut().zip(passed).for_each(|(sum, more)| *sum += more);
        }
    }

    /// What there is to report.
    pub(super) fn take(&mut self) -> (Vec<IterationRow>, Interval) {
        (std::mem::take(&mut self.retained), std::mem::take(&mut self.interval))
    }
}

/// The same of all ranks: `means` are the averages of [`IterationRow::values`], one row after the other.
pub(super) fn merged(rows: &[IterationRow], names: &[&'static str], means: &[f64]) -> Vec<CsvRow> {
    let each = names.len() + 3;
    let rows = rows.iter().filter(|row| row.losses.len() == names.len());
    rows.zip(means.chunks_exact(each))
        .map(|(row, means)| {
            let (losses, episodes) = means.split_at(names.len());
            // Means over the ranks on both sides: their number cancels out.
            let [sum, count, length] = [0, 1, 2].map(|i| episodes.get(i).copied().unwrap_or(0.0));
            let own = [
                ("charts/episodic_return", sum / count),
                ("charts/episodic_length", length / count),
                ("charts/learning_rate", row.learning_rate),
            ];
            let values = names.iter().copied().zip(losses.iter().copied()).chain(own);
            CsvRow { values: values.collect(), ..row.known.clone() }
        })
        .collect()
}

/// Columns of every algorithm, in front of its own.
const FIRST: &str = "train_iter,env_step,episodes,updates,time";
/// Columns of evaluations, behind them.
const LAST: &str = "eval/return_mean,eval/return_std,eval/episodes";

/// What is known of an iteration.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct CsvRow {
    pub train_iter: u64,
    pub env_step: u64,
    pub episodes: u64,
    pub updates: u64,
    /// Unix time.
    pub time: f64,
    /// By name; the same names in each.
    pub values: BTreeMap<&'static str, f64>,
}

/// `metrics.csv`, open for the lines to come.
pub(crate) struct MetricsFile {
    path: PathBuf,
    /// Iterations that were made before.
    start: u64,
    file: Option<BufWriter<File>>,
    /// The latest iteration, whose evaluation may follow.
    open: Option<(CsvRow, Option<Evaluation>)>,
    /// Before the first iteration.
    first: Option<Evaluation>,
}

impl MetricsFile {
    /// In this folder, from iteration `start` on. Nothing is written before the first line.
    pub(crate) fn new(run_dir: &Path, start: u64) -> MetricsFile {
        MetricsFile { path: run_dir.join("metrics.csv"), start, file: None, open: None, first: None }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// An iteration has ended.
    pub(crate) fn row(&mut self, row: CsvRow) -> io::Result<()> {
        if self.file.is_none() {
            self.open(&row)?;
        }
        self.close_row()?;
        self.open = Some((row, None));
        Ok(())
    }

    /// The policy after the latest iteration was evaluated.
    pub(crate) fn evaluation(&mut self, evaluation: &Evaluation) {
        match &mut self.open {
            Some((row, slot)) if row.train_iter == evaluation.train_iter => *slot = Some(evaluation.clone()),
            _ => self.first = Some(evaluation.clone()),
        }
    }

    /// Hands everything but the latest line to the kernel.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), BufWriter::flush)
    }

    fn open(&mut self, row: &CsvRow) -> io::Result<()> {
        let names: Vec<&str> = row.values.keys().copied().collect();
        let header = format!("{FIRST},{},{LAST}", names.join(","));
        let known = std::fs::read_to_string(&self.path).unwrap_or_default();
        let mut lines = known.lines();
        let kept: Vec<&str> = match lines.next() {
            Some(theirs) if theirs == header && self.start > 0 => {
                lines.filter(|line| is_kept(line, self.start)).collect()
            }
            // Of another algorithm.
            Some(theirs) if theirs != header && self.start > 0 => {
                std::fs::rename(&self.path, self.path.with_extension("csv.old"))?;
                Vec::new()
            }
            _ => Vec::new(),
        };
        let temporary = self.path.with_extension("csv.partial");
        let mut file = BufWriter::new(File::create(&temporary)?);
        writeln!(file, "{header}")?;
        kept.iter().try_for_each(|line| writeln!(file, "{line}"))?;
        file.flush()?;
        std::fs::rename(&temporary, &self.path)?;
        self.file = Some(file);
        if let Some(evaluation) = self.first.take().filter(|_| self.start == 0) {
            let row = CsvRow {
                env_step: evaluation.env_step,
                time: wall_time(),
                values: row.values.keys().map(|name| (*name, f64::NAN)).collect(),
                ..CsvRow::default()
            };
            self.open = Some((row, Some(evaluation)));
        }
        Ok(())
    }

    fn close_row(&mut self) -> io::Result<()> {
        let (Some((row, evaluation)), Some(file)) = (self.open.take(), &mut self.file) else { return Ok(()) };
        writeln!(file, "{}", line(&row, evaluation.as_ref()))
    }
}

impl Drop for MetricsFile {
    fn drop(&mut self) {
        // The run ends: an error has no receiver.
        let _ = self.close_row().and_then(|()| self.flush());
    }
}

/// A line of an iteration that this generation does not make again.
fn is_kept(line: &str, start: u64) -> bool {
    line.split(',').next().and_then(|number| number.parse::<u64>().ok()).is_some_and(|number| number <= start)
}

fn line(row: &CsvRow, evaluation: Option<&Evaluation>) -> String {
    let mut line =
        format!("{},{},{},{},{:.3}", row.train_iter, row.env_step, row.episodes, row.updates, row.time);
    let evaluated =
        evaluation.map(|e| [e.return_mean, e.return_std, f64::from(e.episodes)]).unwrap_or([f64::NAN; 3]);
    for value in row.values.values().chain(&evaluated) {
        line.push(',');
        if value.is_finite() {
            let _ = write!(line, "{value}");
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(rows: &mut IterationRows, train_iter: u64, episode_return: Option<f64>) {
        let mut own = Interval::default();
        if let Some(episode_return) = episode_return {
            own.add(train_iter, episode_return, 10);
        }
        let stats = IterationStats {
            losses: vec![ScalarStat::loss("losses/a", train_iter as f64)],
            ..IterationStats::default()
        };
        let totals = RankCounters { env_step: 8 * train_iter, ..RankCounters::default() };
        rows.add(train_iter, train_iter, &totals, &stats, own);
    }

    #[test]
    fn every_iteration_has_its_own_numbers() {
        let mut rows = IterationRows::default();
        (1..4).for_each(|i| add(&mut rows, i, (i != 2).then_some(i as f64)));
        let (retained, interval) = rows.take();
        assert_eq!((interval.returns.count, interval.length), (2, 20));
        // Two ranks, of which the other ended no episode: means are halves.
        let halves: Vec<f64> = retained
            .iter()
            .flat_map(|row| {
                let mut values: Vec<f64> = row.values().collect();
                values[1..].iter_mut().for_each(|value| *value /= 2.0);
                values
            })
            .collect();
        let rows = merged(&retained, &["losses/a"], &halves);
        let of = |i: usize, name: &str| rows[i].values[name];
        assert_eq!(
            rows.iter().map(|row| (row.train_iter, row.env_step)).collect::<Vec<_>>(),
            [(1, 8), (2, 16), (3, 24)]
        );
        assert_eq!((of(0, "charts/episodic_return"), of(2, "charts/episodic_length")), (1.0, 10.0));
        assert!(of(1, "charts/episodic_return").is_nan() && of(1, "losses/a") == 2.0);
    }

    #[test]
    fn rows_1_fast_loop_is_thinned_without_losing_episodes() {
        let mut rows = IterationRows::default();
        (1..=1000).for_each(|i| add(&mut rows, i, Some(1.0)));
        let (retained, interval) = rows.take();
        assert!(retained.len() > MOST / 4 && retained.len() <= MOST, "{}", retained.len());
        assert_eq!(interval.returns.count, 1000);
        let numbers: Vec<u64> = retained.iter().map(|row| row.known.train_iter).collect();
        assert!(numbers.iter().all(|number| number.is_multiple_of(16)), "{numbers:?}");
        let counted: f64 = retained.iter().map(|row| row.episodes[1]).sum();
        assert_eq!(counted + rows.open[1], 1000.0);
    }

    fn row(train_iter: u64, loss: f64) -> CsvRow {
        CsvRow {
            train_iter,
            env_step: 8 * train_iter,
            episodes: 1,
            updates: train_iter,
            time: 2.0,
            values: BTreeMap::from([("losses/a", loss)]),
        }
    }

    fn evaluated(train_iter: u64) -> Evaluation {
        Evaluation { train_iter, return_mean: 9.5, return_std: 1.0, episodes: 4, ..Evaluation::default() }
    }

    #[test]
    fn metrics_1_iteration_has_one_line_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let text = || std::fs::read_to_string(folder.path().join("metrics.csv")).unwrap();
        let mut file = MetricsFile::new(folder.path(), 0);
        file.evaluation(&evaluated(0));
        file.row(row(1, 0.5)).unwrap();
        file.row(row(2, f64::NAN)).unwrap();
        file.evaluation(&evaluated(2));
        file.row(row(3, 0.25)).unwrap();
        drop(file);
        let header = "train_iter,env_step,episodes,updates,time,losses/a,eval/return_mean,eval/return_std,eval/episodes";
        let whole = text();
        let lines: Vec<&str> = whole.lines().collect();
        assert_eq!(lines[0], header);
        assert!(lines[1].starts_with("0,0,0,0,") && lines[1].ends_with(",,9.5,1,4"), "{whole}");
        assert_eq!(lines[2..], ["1,8,1,1,2.000,0.5,,,", "2,16,1,2,2.000,,9.5,1,4", "3,24,1,3,2.000,0.25,,,"]);
        let mut again = MetricsFile::new(folder.path(), 2);
        again.row(row(3, 0.75)).unwrap();
        drop(again);
        assert_eq!(text().lines().last(), Some("3,24,1,3,2.000,0.75,,,"));
        assert_eq!(text().lines().count(), 5);
        let mut restarted = MetricsFile::new(folder.path(), 0);
        restarted.row(row(1, 1.0)).unwrap();
        drop(restarted);
        assert_eq!(text().lines().count(), 2);
    }

    #[test]
    fn metrics_of_another_algorithm_are_renamed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("metrics.csv"), "other\n1\n").unwrap();
        let mut file = MetricsFile::new(folder.path(), 7);
        file.row(row(8, 1.0)).unwrap();
        drop(file);
        assert!(folder.path().join("metrics.csv.old").exists());
    }
}
