//! Shows a policy playing on the terminal, or saves it as an animation.
//!
//! `rankdeck-trainer` plays as a child process and prints a line per step ([`PolicyPlayer`]).
//! [`Play`](rankdeck_tui::play::Play) decides what is shown when. [`screen`] has the keys, frames and images
//! of the terminal, [`record`] the asciicasts and GIFs.

pub mod record;
pub mod screen;

use rankdeck_proto::show::ShowLine;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

/// Capacity of the queue of lines; the trainer waits while it is full.
const QUEUE: usize = 64;
/// Number of stored lines of stderr.
const STDERR_LINES: usize = 40;
/// Exit status of a program that cannot load a library.
pub const NOT_LOADED: i32 = 127;

/// A playing policy; dropping it kills the process.
pub struct PolicyPlayer {
    child: Child,
    lines: mpsc::Receiver<ShowLine>,
    stderr: tokio::task::JoinHandle<Vec<String>>,
}

impl PolicyPlayer {
    /// Starts the process.
    pub fn start(command: std::process::Command) -> std::io::Result<PolicyPlayer> {
        let mut child = Command::from(command)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (sender, lines) = mpsc::channel(QUEUE);
        if let Some(out) = child.stdout.take() {
            tokio::spawn(read(out, sender));
        }
        let errors = child.stderr.take();
        let stderr = tokio::spawn(async move {
            match errors {
                Some(errors) => last_lines(errors).await,
                None => Vec::new(),
            }
        });
        Ok(PolicyPlayer { child, lines, stderr })
    }

    /// Returns the next line, `None` at the end. Cancel-safe.
    pub async fn next(&mut self) -> Option<ShowLine> {
        self.lines.recv().await
    }

    /// Returns a line that has already been read.
    pub fn ready(&mut self) -> Option<ShowLine> {
        self.lines.try_recv().ok()
    }

    /// Waits for the process after its last line. The error is what it printed, without program names.
    pub async fn end(&mut self) -> Result<(), String> {
        let status = self.child.wait().await.map_err(|error| error.to_string())?;
        if status.success() {
            return Ok(());
        }
        let stderr = (&mut self.stderr).await.unwrap_or_default();
        if status.code() == Some(NOT_LOADED) {
            return Err("rankdeck-trainer cannot load libtorch\n`pip install torch==2.11.0` and add its \
                        torch/lib directory to LD_LIBRARY_PATH"
                .to_owned());
        }
        let own = |word: &str| {
            let mut named = stderr.iter().rev().filter_map(|line| line.strip_prefix("rankdeck-trainer: "));
            named.find_map(|line| line.strip_prefix(word)).map(str::to_owned)
        };
        match (own("error: "), own("hint: ")) {
            (Some(error), hint) => Err(format!("{error}\n{}", hint.unwrap_or_default())),
            (None, _) => Err(format!(
                "rankdeck-trainer failed: {status}\n{}",
                stderr.last().cloned().unwrap_or_else(|| "no output".to_owned())
            )),
        }
    }
}

/// Reads lines of JSON and skips other lines.
async fn read(out: impl AsyncRead + Unpin, sender: mpsc::Sender<ShowLine>) {
    let mut lines = BufReader::new(out).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Ok(line) = serde_json::from_str(&line)
            && sender.send(line).await.is_err()
        {
            return;
        }
    }
}

async fn last_lines(errors: impl AsyncRead + Unpin) -> Vec<String> {
    let mut lines = BufReader::new(errors).lines();
    let mut last = std::collections::VecDeque::new();
    while let Ok(Some(line)) = lines.next_line().await {
        if last.len() == STDERR_LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
    last.into()
}
