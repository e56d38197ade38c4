//! Writes to stdout, ignoring a closed pipe, and formats plain tables.
//!
//! Text of hosts, experiments, records and git passes here on its way to a terminal. Invariants:
//! - PRINT-1: no escape sequence and no control character of such a text gets through.
//! - PRINT-2: [`stdout`] writes one line, and a cell of a table is one line, so that none of them can pass for
//!   one of our lines.
//! - PRINT-3: data for other programs is unchanged, except on a terminal.

use crate::app::stderr;
use crate::cli::args::PrintArgs;
use rankdeck_types::error::HintedError;
use rankdeck_types::words::{clean, plain_json};
use serde_json::Value;
use std::io::{self, IsTerminal, Write};

/// Prints one line; `false` if stdout is closed.
pub(crate) fn stdout(line: &str) -> bool {
    stdout_bytes(format!("{}\n", clean(line)).as_bytes())
}

/// Prints several lines, such as a table.
pub(crate) fn text(lines: &str) -> bool {
    stdout_bytes(cleaned(lines).as_bytes())
}

/// Prints text for another program.
pub(crate) fn data(text: &str) -> bool {
    stdout_bytes(data_for(text, io::stdout().is_terminal()).as_bytes())
}

fn data_for(text: &str, terminal: bool) -> String {
    if terminal { cleaned(text) } else { format!("{text}\n") }
}

/// Prints a line of JSON.
pub(crate) fn json(value: &Value) -> bool {
    stdout_bytes(format!("{}\n", plain_json(&value.to_string())).as_bytes())
}

fn cleaned(lines: &str) -> String {
    lines.split('\n').map(|line| clean(line) + "\n").collect()
}

impl PrintArgs {
    /// Prints a step of the command to stderr.
    pub(crate) fn progress(self, line: &str) {
        if !self.quiet {
            stderr::line(line);
        }
    }

    /// Prints a detail of the result.
    pub(crate) fn detail(self, line: &str) {
        if !self.quiet {
            self.outcome(line);
        }
    }

    /// Prints the outcome, or a problem.
    pub(crate) fn outcome(self, line: &str) {
        if !self.json {
            stdout(line);
        }
    }

    /// Prints a JSON line.
    pub(crate) fn record(self, line: impl FnOnce() -> Value) {
        if self.json {
            json(&line());
        }
    }
}

/// Prints bytes of our own unchanged.
pub(crate) fn stdout_bytes(bytes: &[u8]) -> bool {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).is_ok()
}

/// Prints an error and its hint to stderr.
pub(crate) fn error(error: &HintedError) {
    stderr::line(&format!("error: {}", error.error));
    if !error.hint.is_empty() {
        stderr::line(&format!("hint: {}", error.hint));
    }
}

/// Columns padded to their widest cell, two spaces between, no trailing blanks. The first row is the header.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    use unicode_width::UnicodeWidthStr;
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| clean(cell)).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|c| rows.iter().filter_map(|row| row.get(c)).map(|cell| cell.width()).max().unwrap_or(0))
        .collect();
    rows.iter()
        .map(|row| {
            let line: String = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell}{}  ", " ".repeat(width.saturating_sub(cell.width()))))
                .collect();
            line.trim_end().to_owned()
        })
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    #[test]
    fn table_columns_align_by_display_width() {
        let rows = [vec!["host".into(), "state".into()], vec!["é-1".into(), "ok".into()], vec!["b".into()]];
        assert_eq!(super::table(&rows), "host  state\né-1   ok\nb");
    }

    #[test]
    fn print_2_cell_of_a_stranger_is_one_line() {
        let rows = [vec!["a".into(), "x\n  hosts  verified\x1b]0;t\x07\u{9b}31m".into(), "ok".into()]];
        assert_eq!(super::table(&rows), "a  x   hosts  verified  ok");
        assert_eq!(super::cleaned("one\x1b(B\n  two\u{202e}"), "one\n  two\n");
    }

    #[test]
    fn print_3_data_is_cleaned_only_for_a_terminal() {
        let data = "a,\u{1b}[31mb\nc";
        assert_eq!(super::data_for(data, false), "a,\u{1b}[31mb\nc\n");
        assert_eq!(super::data_for(data, true), "a,b\nc\n");
    }
}
