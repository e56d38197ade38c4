//! Writing to stdout and stderr without ever failing on a closed pipe, and plain tables.

use std::io::{self, Write};

/// One line (or several) of data; `false` when nobody reads it any more.
pub fn stdout(text: &str) -> bool {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).is_ok()
}

/// Bytes of data as they are.
pub fn stdout_bytes(bytes: &[u8]) -> bool {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).is_ok()
}

/// One line (or several) for people.
pub fn stderr(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Columns padded to their widest cell, two spaces between, no trailing blanks. The first row is the header.
pub fn table(rows: &[Vec<String>]) -> String {
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
    fn columns_line_up_by_display_width() {
        let rows = [vec!["host".into(), "state".into()], vec!["é-1".into(), "ok".into()], vec!["b".into()]];
        assert_eq!(super::table(&rows), "host  state\né-1   ok\nb");
    }
}
