//! The door to standard error: everything that the console says to people beside a screen goes through here.
//!
//! Errors, hints and questions carry words of hosts: output of a login shell, answers of an agent, questions
//! of a server. Owner: this module; clippy (`clippy.toml`) refuses other ways to standard error. Invariants:
//! - TERM-1: no escape sequence and no control character gets through.
//! - TERM-2: one call writes one line, so that words of a host cannot pass for a line of ours.
//!
//! A closed standard error is nobody's loss: nothing here fails.

use rankdeck_types::words::clean;
use std::io::{self, IsTerminal, Write};

/// Writes one line.
pub fn line(text: &str) {
    put(&format!("{}\n", clean(text)));
}

/// Writes a line that the next one of its kind is written over.
pub fn status(text: &str) {
    put(&format!("\r{}\x1b[K", clean(text)));
}

/// Ends a line of [`status`], which stays.
pub fn end_status() {
    put("\n");
}

/// Removes a line of [`status`].
pub fn clear_status() {
    put("\r\x1b[K");
}

/// Writes rows of a list, each of them cleaned, and goes back to the first, so that the next list is written
/// over it.
pub fn list(rows: &[String]) {
    let rows: Vec<String> = rows.iter().map(|row| clean(row)).collect();
    let up = match rows.len() {
        0 | 1 => String::new(),
        more => format!("\x1b[{}A", more - 1),
    };
    put(&format!("\r\x1b[J{}{up}\r", rows.join("\r\n")));
}

/// Removes a list.
pub fn clear_list() {
    put("\r\x1b[J");
}

/// A terminal shows what is written.
pub fn is_terminal() -> bool {
    #[expect(clippy::disallowed_methods, reason = "asks, and writes nothing")]
    io::stderr().is_terminal()
}

fn put(text: &str) {
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}
