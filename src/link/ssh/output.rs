//! What a command on a host said.

use std::time::{Duration, SystemTime};

/// What a command said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// Standard output, up to [`super::exec::MAX_OUTPUT`].
    pub stdout: Vec<u8>,
    /// The end of standard error.
    pub stderr: Vec<u8>,
    /// Exit code; `None` when it was not waited for or a signal ended the command.
    pub status: Option<i32>,
    /// How long it took until its [`super::exec::StartMarker`] was there.
    pub opened: Option<Duration>,
    /// When its command was sent.
    pub sent: Option<SystemTime>,
    /// When it had said enough, or ended.
    pub received: Option<SystemTime>,
    /// Its channel is closed on both sides: nothing of it is left on the session.
    pub closed: bool,
}

impl Output {
    /// The last line of standard error that says something, for errors.
    pub fn complaint(&self) -> String {
        let text = String::from_utf8_lossy(&self.stderr);
        text.lines()
            .rev()
            .map(str::trim)
            .find(|line| !line.is_empty())
            .unwrap_or_default()
            .chars()
            .take(300)
            .collect()
    }

    /// What a command said when it did not say what was expected.
    pub fn described(&self) -> String {
        let said = self.complaint();
        if !said.is_empty() {
            return said;
        }
        let text = String::from_utf8_lossy(&self.stdout);
        let last = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
        match (last, self.status) {
            (Some(line), _) => line.chars().take(200).collect(),
            (None, Some(status)) => format!("no output, exit code {status}"),
            (None, None) => "no output".into(),
        }
    }

    /// Standard output after the line `marker`, or after the word `marker` at the start of a line; noise
    /// before it is skipped.
    pub fn after(&self, marker: &str) -> Option<String> {
        after(&self.stdout, marker)
    }
}

/// What follows `marker` at the start of a line in `bytes`, to the end of that line; `None` until the line is
/// complete.
pub fn after(bytes: &[u8], marker: &str) -> Option<String> {
    let marker = marker.as_bytes();
    let mut lines = bytes.split_inclusive(|&byte| byte == b'\n');
    let line = lines.find(|line| line.starts_with(marker) && line.ends_with(b"\n"))?;
    Some(String::from_utf8_lossy(&line[marker.len()..]).trim().to_string())
}
