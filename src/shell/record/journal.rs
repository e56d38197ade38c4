//! The reports of a console as lines of `events.jsonl` (REC-1).

use rankdeck_core::report::Report;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Most bytes of `events.jsonl`, and of `events-old.jsonl`.
pub const EVENT_BYTES: u64 = 32 << 20;
/// Where what was in `events.jsonl` goes when it is full.
const OLD_EVENTS: &str = "events-old.jsonl";

/// `events.jsonl` and the file before it.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: BufWriter<File>,
    bytes: u64,
    lines: u64,
    /// Lines of the older file.
    old_lines: u64,
    /// Lines that are in no file any more.
    lost: u64,
    failed: Option<String>,
}

impl Journal {
    /// Makes the file.
    pub fn new(path: &Path) -> io::Result<Journal> {
        Ok(Journal {
            path: path.to_owned(),
            file: BufWriter::new(super::create(path)?),
            bytes: 0,
            lines: 0,
            old_lines: 0,
            lost: 0,
            failed: None,
        })
    }

    /// Keeps a report.
    pub fn report(&mut self, report: &Report) {
        if let Ok(line) = serde_json::to_string(report) {
            self.write(&line, EVENT_BYTES);
        }
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
        self.file = BufWriter::new(super::create(&self.path)?);
        self.lost += self.old_lines;
        (self.old_lines, self.lines, self.bytes) = (self.lines, 0, 0);
        Ok(())
    }

    /// Reports that are in no file any more.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Writes out what is held back.
    pub fn flush(&mut self) {
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
        assert_eq!(journal.lost(), lost as u64);
    }
}
