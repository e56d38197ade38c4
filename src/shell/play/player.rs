//! The trainer as a child that plays, and its lines.

use rankdeck_proto::show::ShowLine;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

/// Lines that wait to be looked at; then the trainer waits.
const WAITING: usize = 64;
/// Lines of its last words.
const LAST_WORDS: usize = 40;
/// What a program answers that lacks a library.
pub const NOT_LOADED: i32 = 127;

/// A policy that plays; dropping ends it.
pub struct Player {
    child: Child,
    lines: mpsc::Receiver<ShowLine>,
    said: tokio::task::JoinHandle<Vec<String>>,
}

impl Player {
    /// Starts it.
    pub fn start(command: std::process::Command) -> std::io::Result<Player> {
        let mut child = Command::from(command)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (sender, lines) = mpsc::channel(WAITING);
        if let Some(out) = child.stdout.take() {
            tokio::spawn(read(out, sender));
        }
        let errors = child.stderr.take();
        let said = tokio::spawn(async move {
            match errors {
                Some(errors) => last_words(errors).await,
                None => Vec::new(),
            }
        });
        Ok(Player { child, lines, said })
    }

    /// The next line; `None` when there are no more. Cancel-safe.
    pub async fn next(&mut self) -> Option<ShowLine> {
        self.lines.recv().await
    }

    /// A line that is there already.
    pub fn ready(&mut self) -> Option<ShowLine> {
        self.lines.try_recv().ok()
    }

    /// After the last line: how it ended. The error is what it said, without the names of programs.
    pub async fn end(&mut self) -> Result<(), String> {
        let status = self.child.wait().await.map_err(|error| error.to_string())?;
        if status.success() {
            return Ok(());
        }
        let said = (&mut self.said).await.unwrap_or_default();
        if status.code() == Some(NOT_LOADED) {
            return Err("rankdeck-trainer cannot load libtorch here\n`pip install torch==2.11.0`, and give \
                        LD_LIBRARY_PATH its folder torch/lib"
                .to_owned());
        }
        let own = |word: &str| {
            let mut named = said.iter().rev().filter_map(|line| line.strip_prefix("rankdeck-trainer: "));
            named.find_map(|line| line.strip_prefix(word)).map(str::to_owned)
        };
        match (own("error: "), own("hint: ")) {
            (Some(error), hint) => Err(format!("{error}\n{}", hint.unwrap_or_default())),
            (None, _) => Err(format!(
                "rankdeck-trainer ended: {status}\n{}",
                said.last().cloned().unwrap_or_else(|| "it said nothing".to_owned())
            )),
        }
    }
}

/// Lines that are none of ours are passed over.
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

async fn last_words(errors: impl AsyncRead + Unpin) -> Vec<String> {
    let mut lines = BufReader::new(errors).lines();
    let mut said = std::collections::VecDeque::new();
    while let Ok(Some(line)) = lines.next_line().await {
        if said.len() == LAST_WORDS {
            said.pop_front();
        }
        said.push_back(line);
    }
    said.into()
}
