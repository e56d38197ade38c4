//! Plain lines of a program that trains.

use std::io::Write;

/// A plain line on stdout. The program goes on when stdout is closed.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}");
    let _ = out.flush();
}

/// A plain line on stderr.
pub fn warn(text: &str) {
    #[expect(clippy::disallowed_methods, reason = "a rank's standard error is its log")]
    let mut stderr = std::io::stderr().lock();
    let _ = writeln!(stderr, "{text}");
}
