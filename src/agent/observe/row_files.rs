//! Reads files with rows of values as they grow: CSV with a header, JSON Lines, and metrics of MLflow.
//!
//! - ROWS-1: a file that is rewritten is read again, without the rows that were read before: some loggers rewrite
//!   theirs when a column comes.

use crate::observe::open_logs::LogKind;
use rankdeck_proto::printed;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes read of one file at once.
const CHUNK: usize = 1 << 20;
/// Chunks of one file in one poll.
const CHUNKS: usize = 4;
/// Longest row; a longer one ends the file.
const ROW: usize = 64 << 10;
/// Most columns.
const COLUMNS: usize = 512;

/// Where a reader is.
#[derive(Debug)]
pub(super) struct RowReader {
    kind: LogKind,
    at: u64,
    /// Header of a CSV file, and where it is.
    head: Vec<u8>,
    head_at: u64,
    columns: Vec<String>,
    /// Rows given so far, and rows seen since the file was last rewritten.
    given: u64,
    seen: u64,
}

impl RowReader {
    /// A reader of a file from byte `begin`.
    pub fn new(kind: LogKind, begin: u64) -> RowReader {
        RowReader { kind, at: begin, head: Vec::new(), head_at: 0, columns: Vec::new(), given: 0, seen: 0 }
    }

    /// A reader of a metric of MLflow from byte `begin`. Its rows have two values: the step, without a name, and the
    /// metric.
    pub fn of_metric(name: String, begin: u64) -> RowReader {
        RowReader { columns: vec![name], ..RowReader::new(LogKind::Mlflow, begin) }
    }

    /// Reads what is new; `each` gets the values of each row. Returns whether the file can be read on.
    pub fn read(&mut self, file: &File, mut each: impl FnMut(Vec<(String, f64)>)) -> io::Result<bool> {
        let length = file.metadata()?.len();
        if length < self.at || !self.has_same_head(file)? {
            // ROWS-1.
            (self.at, self.seen) = (0, 0);
            self.head.clear();
        }
        if self.kind == LogKind::Csv && self.head.is_empty() && self.at > 0 && !self.read_head(file)? {
            return Ok(true);
        }
        for _ in 0..CHUNKS {
            let mut bytes = vec![0; CHUNK.min((length.saturating_sub(self.at)) as usize)];
            let read = file.read_at(&mut bytes, self.at)?;
            let whole = memchr::memrchr(b'\n', &bytes[..read]).map_or(0, |last| last + 1);
            if whole == 0 {
                return Ok(read < ROW);
            }
            for line in bytes[..whole].split_inclusive(|byte| *byte == b'\n') {
                self.row(line, &mut each);
                self.at += line.len() as u64;
            }
            if read < CHUNK {
                break;
            }
        }
        Ok(true)
    }

    fn has_same_head(&self, file: &File) -> io::Result<bool> {
        let mut head = vec![0; self.head.len()];
        let read = file.read_at(&mut head, self.head_at)?;
        Ok(head[..read] == self.head)
    }

    /// Reads the header of a file that is read from its middle on.
    fn read_head(&mut self, file: &File) -> io::Result<bool> {
        let mut bytes = vec![0; ROW];
        let read = file.read_at(&mut bytes, 0)?;
        let Some(end) = memchr::memchr(b'\n', &bytes[..read]) else { return Ok(false) };
        self.take_head(&bytes[..=end], 0);
        Ok(true)
    }

    fn take_head(&mut self, line: &[u8], at: u64) {
        (self.head, self.head_at) = (line.to_vec(), at);
        let text = String::from_utf8_lossy(line);
        self.columns = fields(text.trim()).into_iter().take(COLUMNS).collect();
    }

    /// The values of a line of MLflow.
    fn metric(&self, text: &str) -> Option<Vec<(String, f64)>> {
        let mut words = text.split_ascii_whitespace().skip(1);
        let value = words.next()?.parse().ok()?;
        let step = words.next().map_or(Some(0.0), |step| step.parse().ok())?;
        Some(vec![(String::new(), step), (self.columns.first()?.clone(), value)])
    }

    fn row(&mut self, line: &[u8], each: &mut impl FnMut(Vec<(String, f64)>)) {
        let text = String::from_utf8_lossy(&line[..line.len().min(ROW)]);
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            return;
        }
        if self.kind == LogKind::Csv && self.head.is_empty() {
            return self.take_head(line, self.at);
        }
        self.seen += 1;
        if self.seen <= self.given {
            return;
        }
        self.given = self.seen;
        let values = match self.kind {
            LogKind::Csv => {
                let named = self.columns.iter().zip(fields(text));
                let values =
                    named.filter_map(|(name, field)| Some((name.clone(), field.trim().parse().ok()?)));
                values.filter(|(name, _)| !name.is_empty()).collect()
            }
            LogKind::Mlflow => self.metric(text).unwrap_or_default(),
            LogKind::JsonLines | LogKind::Events | LogKind::Wandb => printed::object(text),
        };
        if !values.is_empty() {
            each(values);
        }
    }
}

/// The fields of a row; quotes may hold commas.
fn fields(row: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut is_quoted = false;
    for c in row.chars() {
        if c == '"' {
            is_quoted = !is_quoted;
        } else if c == ',' && !is_quoted {
            fields.push(String::new());
        } else if let Some(field) = fields.last_mut() {
            field.push(c);
        }
        if fields.len() > COLUMNS {
            break;
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::io::Write;

    fn read(reader: &mut RowReader, file: &File) -> Vec<String> {
        let mut rows = Vec::new();
        let each = |values: Vec<(String, f64)>| {
            let values: Vec<String> = values.iter().map(|(name, value)| format!("{name}={value}")).collect();
            rows.push(values.join(" "));
        };
        assert!(reader.read(file, each).unwrap());
        rows
    }

    #[test]
    fn csv_rows_are_read_as_they_come() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("progress.csv");
        let mut writer = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        let (file, mut reader) = (File::open(&path).unwrap(), RowReader::new(LogKind::Csv, 0));
        assert!(read(&mut reader, &file).is_empty());
        write!(writer, "# comment\nstep,\"a,b\",loss\n1,2,0.5\n2,,0.").unwrap();
        assert_eq!(read(&mut reader, &file), ["step=1 a,b=2 loss=0.5"]);
        write!(writer, "25\n3,x,nan\n").unwrap();
        assert_eq!(read(&mut reader, &file), ["step=2 loss=0.25", "step=3 loss=NaN"]);
        assert!(read(&mut reader, &file).is_empty());
    }

    #[test]
    fn rows_1_rewritten_file_gives_new_rows_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("progress.csv");
        std::fs::write(&path, "step,loss\n1,0.5\n2,0.4\n").unwrap();
        let (file, mut reader) = (File::open(&path).unwrap(), RowReader::new(LogKind::Csv, 0));
        assert_eq!(read(&mut reader, &file).len(), 2);
        std::fs::write(&path, "step,loss,return\n1,0.5,\n2,0.4,\n3,0.3,9\n").unwrap();
        assert_eq!(read(&mut reader, &file), ["step=3 loss=0.3 return=9"]);
    }

    #[test]
    fn json_lines_are_read_from_a_place_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let old = "{\"step\": 1, \"loss\": 0.5}\n";
        std::fs::write(&path, format!("{old}{}", "{\"step\": 2, \"losses\": {\"v\": 0.25}}\nnone\n"))
            .unwrap();
        let mut reader = RowReader::new(LogKind::JsonLines, old.len() as u64);
        assert_eq!(read(&mut reader, &File::open(&path).unwrap()), ["step=2 losses/v=0.25"]);
    }

    #[test]
    fn metric_of_mlflow_has_value_and_step() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("loss");
        std::fs::write(&path, "1700000000000 0.5 1\nnone\n1700000000001 nan 2\n").unwrap();
        let mut reader = RowReader::of_metric("loss".into(), 0);
        assert_eq!(read(&mut reader, &File::open(&path).unwrap()), ["=1 loss=0.5", "=2 loss=NaN"]);
    }

    #[test]
    fn csv_that_is_continued_has_its_header() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("progress.csv");
        std::fs::write(&path, "step,loss\n1,0.5\n2,0.4\n").unwrap();
        let mut reader = RowReader::new(LogKind::Csv, 16);
        assert_eq!(read(&mut reader, &File::open(&path).unwrap()), ["step=2 loss=0.4"]);
    }
}
