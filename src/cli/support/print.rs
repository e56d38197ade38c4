//! Writes to stdout, ignoring a closed pipe, and formats plain tables.

use crate::app::stderr;
use rankdeck_types::error::HintedError;
use rankdeck_types::words::plain_json;
use serde_json::Value;
use std::io::{self, Write};

/// Prints a line of data; `false` if stdout is closed.
pub(crate) fn stdout(text: &str) -> bool {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).is_ok()
}

/// Prints a line of JSON.
pub(crate) fn json(value: &Value) -> bool {
    stdout(&plain_json(&value.to_string()))
}

/// Prints bytes unchanged.
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
}
