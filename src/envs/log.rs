//! Plain log lines of a training program.

use std::io::Write;

/// Prints a line on stdout. The program continues when stdout is closed.
pub fn print_line(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}");
    let _ = out.flush();
}

/// Prints a line on stderr.
pub fn warn(text: &str) {
    #[expect(clippy::disallowed_methods, reason = "a rank's standard error is its log")]
    let mut stderr = std::io::stderr().lock();
    let _ = writeln!(stderr, "{text}");
}
