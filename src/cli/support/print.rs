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

/// Columns of a terminal that does not report its size, and the least to fold at.
const USUAL: usize = 80;
const NARROWEST: usize = 40;

/// Columns of the terminal that stdout is; text for a file or another program is not folded.
pub(crate) fn columns() -> usize {
    match io::stdout().is_terminal() {
        true => crossterm::terminal::size().map_or(USUAL, |(columns, _)| usize::from(columns).max(NARROWEST)),
        false => usize::MAX,
    }
}

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

/// Most hosts that have a hint of their own; of more, the first one is printed.
pub(crate) const FEW_HINTS: usize = 2;

/// Prints the errors of hosts and their hints to stderr.
pub(crate) fn errors<'a>(errors: impl IntoIterator<Item = &'a HintedError>) {
    error_lines(&errors.into_iter().collect::<Vec<_>>()).iter().for_each(|line| stderr::line(line));
}

/// Each error, and its hint behind it; of many, the first hint behind all of them.
fn error_lines(errors: &[&HintedError]) -> Vec<String> {
    let hint =
        |error: &&HintedError| Some(format!("hint: {}", error.hint)).filter(|_| !error.hint.is_empty());
    let few = errors.len() <= FEW_HINTS;
    let line = |error: &&HintedError| {
        std::iter::once(format!("error: {}", error.error))
            .chain(hint(error).filter(|_| few))
            .collect::<Vec<_>>()
    };
    let late = errors.iter().find_map(hint).filter(|_| !few);
    errors.iter().flat_map(line).chain(late).collect()
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
    use rankdeck_types::error::HintedError;

    #[test]
    fn many_hosts_have_one_line_each_and_one_hint() {
        let all: Vec<HintedError> =
            (0..5).map(|n| HintedError::new(format!("bad{n}: refused"), format!("ssh bad{n}"))).collect();
        let lines = |count: usize| super::error_lines(&all.iter().take(count).collect::<Vec<_>>());
        assert_eq!(
            lines(2),
            ["error: bad0: refused", "hint: ssh bad0", "error: bad1: refused", "hint: ssh bad1"]
        );
        assert_eq!((lines(5).len(), lines(5)[5].as_str()), (6, "hint: ssh bad0"));
        assert!(lines(0).is_empty());
    }

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
