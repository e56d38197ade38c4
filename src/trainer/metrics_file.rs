//! `metrics.csv` in the run directory: a line per iteration, for pandas, R and spreadsheets.
//!
//! Owner: rank 0. Invariants:
//! - METRICS-1: an iteration has one line, also after a restart: what an earlier generation wrote about
//!   iterations that are made again is removed.
//! - An evaluation stands in the line of its iteration; a value that there is not is an empty cell.

use rankdeck_proto::clock::wall_time;
use rankdeck_proto::message::Evaluation;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Columns of every algorithm, in front of its own.
const FIRST: &str = "train_iter,env_step,episodes,updates,time";
/// Columns of evaluations, behind them.
const LAST: &str = "eval/return_mean,eval/return_std,eval/episodes";

/// What is known of an iteration.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row {
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
pub struct MetricsFile {
    path: PathBuf,
    /// Iterations that were made before.
    start: u64,
    file: Option<BufWriter<File>>,
    /// The latest iteration, whose evaluation may follow.
    open: Option<(Row, Option<Evaluation>)>,
    /// Before the first iteration.
    first: Option<Evaluation>,
}

impl MetricsFile {
    /// In this folder, from iteration `start` on. Nothing is written before the first line.
    pub fn new(run_dir: &Path, start: u64) -> MetricsFile {
        MetricsFile { path: run_dir.join("metrics.csv"), start, file: None, open: None, first: None }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An iteration has ended.
    pub fn row(&mut self, row: Row) -> io::Result<()> {
        if self.file.is_none() {
            self.begin(&row)?;
        }
        self.close_row()?;
        self.open = Some((row, None));
        Ok(())
    }

    /// The policy after the latest iteration was evaluated.
    pub fn evaluation(&mut self, evaluation: &Evaluation) {
        match &mut self.open {
            Some((row, slot)) if row.train_iter == evaluation.train_iter => *slot = Some(evaluation.clone()),
            _ => self.first = Some(evaluation.clone()),
        }
    }

    /// Hands everything but the latest line to the kernel.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), BufWriter::flush)
    }

    fn begin(&mut self, row: &Row) -> io::Result<()> {
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
        let beside = self.path.with_extension("csv.partial");
        let mut file = BufWriter::new(File::create(&beside)?);
        writeln!(file, "{header}")?;
        kept.iter().try_for_each(|line| writeln!(file, "{line}"))?;
        file.flush()?;
        std::fs::rename(&beside, &self.path)?;
        self.file = Some(file);
        if let Some(evaluation) = self.first.take().filter(|_| self.start == 0) {
            let row = Row {
                env_step: evaluation.env_step,
                time: wall_time(),
                values: row.values.keys().map(|name| (*name, f64::NAN)).collect(),
                ..Row::default()
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
        // The run ends: there is nobody left to tell.
        let _ = self.close_row().and_then(|()| self.flush());
    }
}

/// A line of an iteration that this generation does not make again.
fn is_kept(line: &str, start: u64) -> bool {
    line.split(',').next().and_then(|number| number.parse::<u64>().ok()).is_some_and(|number| number <= start)
}

fn line(row: &Row, evaluation: Option<&Evaluation>) -> String {
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

    fn row(train_iter: u64, loss: f64) -> Row {
        Row {
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
    fn metrics_1_an_iteration_has_one_line_also_after_a_restart() {
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
        let mut afresh = MetricsFile::new(folder.path(), 0);
        afresh.row(row(1, 1.0)).unwrap();
        drop(afresh);
        assert_eq!(text().lines().count(), 2);
    }

    #[test]
    fn a_file_of_another_algorithm_is_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("metrics.csv"), "other\n1\n").unwrap();
        let mut file = MetricsFile::new(folder.path(), 7);
        file.row(row(8, 1.0)).unwrap();
        drop(file);
        assert!(folder.path().join("metrics.csv.old").exists());
    }
}
