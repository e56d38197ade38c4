//! Output of a command on a host. Errors never quote its input, nor what is marked as a secret (HIDE-1).

use rankdeck_types::{hidden, words};
use std::fmt;
use std::time::{Duration, SystemTime};

/// Output of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandOutput {
    /// Stdout, up to [`super::exec::MAX_OUTPUT`].
    pub stdout: Vec<u8>,
    /// The end of stderr.
    pub stderr: Vec<u8>,
    /// Exit code; `None` if unknown or killed by a signal.
    pub status: Option<i32>,
    /// Time until its [`super::exec::StartMarker`].
    pub opened: Option<Duration>,
    /// Time at which the command was sent.
    pub sent: Option<SystemTime>,
    /// Time at which its output was complete, or it ended.
    pub received: Option<SystemTime>,
    /// Its channel is closed on both sides.
    pub closed: bool,
    /// Its input, hidden from errors.
    pub(crate) input: WithheldInput,
}

impl CommandOutput {
    /// Hides `input` from errors.
    pub fn withhold(&mut self, input: &[u8]) {
        self.input = WithheldInput::new(input);
    }

    /// Returns whether it printed nothing.
    pub(crate) fn is_silent(&self) -> bool {
        self.stdout.trim_ascii().is_empty() && self.stderr.trim_ascii().is_empty()
    }

    /// Returns the last line of `bytes` that is not empty, with the input and secrets hidden.
    fn last_line(&self, bytes: &[u8], most: usize) -> Option<String> {
        let text = String::from_utf8_lossy(bytes);
        let last = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
        Some(hidden::line(&self.input.hide(&words::clip(last, most))))
    }

    /// Returns the last line of stderr that is not empty.
    pub fn last_error_line(&self) -> String {
        self.last_line(&self.stderr, 300).unwrap_or_default()
    }

    /// Returns the output in a few words, for errors.
    pub fn summary(&self) -> String {
        let error = self.last_error_line();
        if !error.is_empty() {
            return error;
        }
        match (self.last_line(&self.stdout, 200), self.status) {
            (Some(line), _) => line,
            (None, Some(status)) => format!("no output, exit code {status}"),
            (None, None) => "no output".into(),
        }
    }

    /// Returns stdout after `marker` at the start of a line; skips other lines before it.
    pub fn after(&self, marker: &str) -> Option<String> {
        after(&self.stdout, marker)
    }
}

/// Returns the text after `marker` at the start of a line, to the end of that line; `None` until the line is
/// complete.
pub fn after(bytes: &[u8], marker: &str) -> Option<String> {
    let marker = marker.as_bytes();
    let mut lines = bytes.split_inclusive(|&byte| byte == b'\n');
    let line = lines.find(|line| line.starts_with(marker) && line.ends_with(b"\n"))?;
    Some(String::from_utf8_lossy(&line[marker.len()..]).trim().to_string())
}

/// Consecutive letters and digits that count as a quotation; quotes and escapes around them may differ.
const RUN: usize = 8;
/// Shorter lines are quoted: they contain no value.
const LEAST: usize = 4;
/// Placeholder for hidden text.
const HIDDEN: char = '…';

/// Returns whether a byte is part of a letter or digit of any script.
fn counts(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || !byte.is_ascii()
}

/// The letters and digits of an input.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct WithheldInput(Vec<u8>);

impl WithheldInput {
    /// Creates it from `input`.
    pub(crate) fn new(input: &[u8]) -> WithheldInput {
        WithheldInput(input.iter().copied().filter(counts).collect())
    }

    /// Returns `line` without quotations of the input.
    pub(crate) fn hide(&self, line: &str) -> String {
        let places: Vec<(usize, u8)> = line.bytes().enumerate().filter(|(_, byte)| counts(byte)).collect();
        let run = RUN.min(places.len());
        if run < LEAST || self.0.len() < run {
            return line.to_owned();
        }
        let mut hidden = vec![false; line.len()];
        for window in places.windows(run) {
            let bytes: Vec<u8> = window.iter().map(|(_, byte)| *byte).collect();
            if let (Some((first, _)), Some((last, _))) = (window.first(), window.last())
                && self.0.windows(run).any(|part| part == bytes)
            {
                hidden[*first..=*last].fill(true);
            }
        }
        let mut shown = String::new();
        for (at, char) in line.char_indices() {
            match hidden[at] {
                true if shown.ends_with(HIDDEN) => {}
                true => shown.push(HIDDEN),
                false => shown.push(char),
            }
        }
        shown
    }
}

impl fmt::Debug for WithheldInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hide_1_quoted_line_of_a_host_has_no_secret() {
        let stderr = b"x\n+ export API_TOKEN=hunter2 PROXY=https://me:hunter2@h\n".to_vec();
        let output = CommandOutput { stderr, ..CommandOutput::default() };
        let (stdout, none) = (output.stderr.clone(), Vec::new());
        let printed = CommandOutput { stdout, stderr: none, ..CommandOutput::default() };
        for text in [output.last_error_line(), output.summary(), printed.summary()] {
            assert!(text.contains("API_TOKEN") && !text.contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn input_is_hidden_in_any_quoting() {
        let input = WithheldInput::new(br#"{"variables":{"WB_TOKEN":"s3cr3t-pass-env"}}"#);
        assert_eq!(
            input.hide("zsh: no matches found: {WB_TOKEN:s3cr3t-pass-env}"),
            "zsh: no matches found: {…}"
        );
        assert_eq!(input.hide("s3cr3t"), "…", "a separate line");
        assert_eq!(input.hide("ünknown: 's3cr3t-pass-env' and more"), "ünknown: '…' and more");
        for harmless in ["Permission denied", "", "no", "exit code 127"] {
            assert_eq!(input.hide(harmless), harmless);
            assert_eq!(WithheldInput::default().hide(harmless), harmless);
        }
        assert!(!format!("{input:?}").contains("s3cr3t"));
    }
}
