//! `fingerprints.txt` in the run directory: the fingerprint of the weights after each iteration, for `rankdeck diff`
//! ([`rankdeck_proto::execution`]).
//!
//! Invariants:
//! - PRINTS-1: an iteration has one line, also after a restart, as in `metrics.csv`.
//! - PRINTS-2: the file has at most [`MOST`] lines: when it is full, every second one is removed, and only multiples of
//!   the doubled distance are added. Which iterations are kept depends on their numbers alone, so the lines of two runs
//!   of the same length are of the same iterations.

use rankdeck_proto::execution::{FINGERPRINTS, FingerprintLine};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Most lines: 1.5 MB.
const MOST: u64 = 65_536;
const HEADER: &str = "# iteration, then the fingerprint of the weights after it: one of all ranks, or each rank's where they differ";

/// The file, open for the lines to come.
pub(super) struct FingerprintFile {
    path: PathBuf,
    /// Iterations that were made before.
    start: u64,
    most: u64,
    /// Distance of the lines in the file.
    kept: u64,
    file: Option<BufWriter<File>>,
}

/// Distance of the iterations that are kept, once iteration `latest` is made.
fn distance(latest: u64, most: u64) -> u64 {
    (latest / most.max(1) + 1).next_power_of_two()
}

impl FingerprintFile {
    /// In this folder, from iteration `start` on. Nothing is written before the first line.
    pub(super) fn new(run_dir: &Path, start: u64) -> FingerprintFile {
        FingerprintFile { path: run_dir.join(FINGERPRINTS), start, most: MOST, kept: 1, file: None }
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds the fingerprints of an iteration.
    pub(super) fn add(&mut self, line: &FingerprintLine) -> io::Result<()> {
        // Not every iteration has a line (`distributed.fingerprint_every`).
        let now = distance(line.train_iter, self.most);
        if self.file.is_none() || now != self.kept {
            let until = if self.file.is_none() { self.start } else { line.train_iter };
            self.rewrite(until, now)?;
        }
        match &mut self.file {
            Some(file) if line.train_iter.is_multiple_of(now) => writeln!(file, "{line}"),
            _ => Ok(()),
        }
    }

    /// Hands everything to the kernel.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), BufWriter::flush)
    }

    /// Keeps the lines up to an iteration that are multiples of `distance`.
    fn rewrite(&mut self, until: u64, distance: u64) -> io::Result<()> {
        self.flush()?;
        let known = match until {
            0 => String::new(),
            _ => match std::fs::read_to_string(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
                read => read?,
            },
        };
        let temporary = self.path.with_extension("txt.partial");
        let mut file = BufWriter::new(File::create(&temporary)?);
        writeln!(file, "{HEADER}")?;
        let kept = FingerprintLine::parse_all(&known).into_values();
        let kept = kept.filter(|line| line.train_iter <= until && line.train_iter.is_multiple_of(distance));
        kept.into_iter().try_for_each(|line| writeln!(file, "{line}"))?;
        file.flush()?;
        std::fs::rename(&temporary, &self.path)?;
        (self.file, self.kept) = (Some(file), distance);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(folder: &Path) -> Vec<u64> {
        let text = std::fs::read_to_string(folder.join(FINGERPRINTS)).unwrap();
        assert!(text.starts_with(HEADER));
        FingerprintLine::parse_all(&text).into_keys().collect()
    }

    fn add(file: &mut FingerprintFile, iterations: std::ops::RangeInclusive<u64>) {
        for iteration in iterations {
            file.add(&FingerprintLine::new(iteration, &[iteration, iteration])).unwrap();
        }
        file.flush().unwrap();
    }

    #[test]
    fn prints_1_iteration_has_one_line_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        add(&mut FingerprintFile::new(folder.path(), 0), 1..=5);
        add(&mut FingerprintFile::new(folder.path(), 3), 4..=6);
        assert_eq!(lines(folder.path()), [1, 2, 3, 4, 5, 6]);
        let text = std::fs::read_to_string(folder.path().join(FINGERPRINTS)).unwrap();
        assert_eq!(text.lines().count(), 7);
        add(&mut FingerprintFile::new(folder.path(), 0), 1..=2);
        assert_eq!(lines(folder.path()), [1, 2]);
    }

    #[test]
    fn prints_2_full_file_keeps_every_second_iteration() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = FingerprintFile { most: 8, ..FingerprintFile::new(folder.path(), 0) };
        add(&mut file, 1..=7);
        assert_eq!(lines(folder.path()), [1, 2, 3, 4, 5, 6, 7]);
        add(&mut file, 8..=17);
        assert_eq!(lines(folder.path()), [4, 8, 12, 16]);
        for latest in 1..1000 {
            assert!(latest / distance(latest, 8) <= 8, "{latest}");
        }
        // A run that was restarted in between has the same lines.
        let other = tempfile::tempdir().unwrap();
        add(&mut FingerprintFile { most: 8, ..FingerprintFile::new(other.path(), 0) }, 1..=9);
        add(&mut FingerprintFile { most: 8, ..FingerprintFile::new(other.path(), 9) }, 10..=17);
        assert_eq!(lines(other.path()), lines(folder.path()));
        // One in which no line is of the iteration at which the distance grows.
        let sparse = tempfile::tempdir().unwrap();
        let mut file = FingerprintFile { most: 8, ..FingerprintFile::new(sparse.path(), 0) };
        (1..=17).filter(|at| at % 3 == 0).for_each(|at| add(&mut file, at..=at));
        assert_eq!(lines(sparse.path()), [6, 12]);
    }
}
