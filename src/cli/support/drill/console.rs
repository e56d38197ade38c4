//! A console of a drill: a rankdeck command below this process that prints JSON lines, as a trial of a sweep does.
//! The run is launched by `rankdeck run` itself, with all its checks.

use super::events::{self, RunEvents};
use crate::app::signals::{ConsoleSignal, ConsoleSignals};
use crate::cli::support::{Failure, child};
use rankdeck_types::words::clean;
use serde_json::Value;
use std::collections::VecDeque;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Last lines of its stderr that are kept.
const ERROR_LINES: usize = 16;
/// Replies of a command that are kept.
const REPLIES: usize = 16;
/// Between two looks at the time while no line comes.
const TICK: Duration = Duration::from_millis(250);

/// What comes from a console.
enum ConsoleLine {
    Json(Instant, Value),
    Error(String),
    End(i32),
}

/// Why a wait has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waited {
    Done,
    Late,
    /// The console has ended.
    Ended,
    /// A signal asked the drill to stop.
    Interrupted,
}

/// A console, and what it has printed.
pub(crate) struct DrillConsole {
    pid: u32,
    lines: mpsc::Receiver<ConsoleLine>,
    /// When the drill began.
    begun: Instant,
    pub(crate) events: RunEvents,
    /// Lines about commands: `stop`, `restarted`.
    pub(crate) replies: Vec<Value>,
    /// The end of its stderr.
    pub(crate) errors: VecDeque<String>,
    /// Exit code, -1 after a signal; `None` while it runs.
    pub(crate) exit: Option<i32>,
}

impl DrillConsole {
    /// Starts a command.
    pub(crate) fn start(binary: &Path, words: Vec<String>, begun: Instant) -> Result<DrillConsole, Failure> {
        // In its own process group: a signal of the terminal reaches the drill only, which stops the run.
        let started = child::spawn(binary, words, |command| {
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        });
        let mut child = started.map_err(|error| {
            Failure::failed(format!("cannot start a console: {error}"))
                .hint("check the limits with `ulimit -u` and `ulimit -n`")
        })?;
        let pid = child.id().unwrap_or_default();
        let (sender, lines) = mpsc::channel(1024);
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        tokio::spawn(async move {
            let read = |line: String| {
                serde_json::from_str(&line).ok().map(|value| ConsoleLine::Json(Instant::now(), value))
            };
            let errors = |line: String| Some(ConsoleLine::Error(line));
            tokio::join!(pass(stdout, &sender, read), pass(stderr, &sender, errors));
            let exit = child.wait().await.ok().and_then(|status| status.code()).unwrap_or(-1);
            let _ = sender.send(ConsoleLine::End(exit)).await;
        });
        Ok(DrillConsole {
            pid,
            lines,
            begun,
            events: RunEvents::default(),
            replies: Vec::new(),
            errors: VecDeque::new(),
            exit: None,
        })
    }

    /// Signals it; programs that it has started, such as `ssh`, are its own business.
    pub(crate) fn signal(&self, signal: i32) {
        if self.exit.is_none() && self.pid > 0 {
            // SAFETY: kill takes two numbers.
            unsafe { libc::kill(self.pid as i32, signal) };
        }
    }

    /// Reads lines until `done`, for `within` at most. `done` gets seconds since the drill began.
    pub(crate) async fn until(
        &mut self,
        signals: &mut ConsoleSignals,
        within: Duration,
        mut done: impl FnMut(&RunEvents, f64) -> bool,
    ) -> Waited {
        let deadline = Instant::now() + within;
        loop {
            let now = Instant::now();
            if done(&self.events, now.duration_since(self.begun).as_secs_f64()) {
                return Waited::Done;
            }
            if self.exit.is_some() {
                return Waited::Ended;
            }
            if now >= deadline {
                return Waited::Late;
            }
            tokio::select! {
                line = self.lines.recv() => self.take(line),
                signal = signals.next() => {
                    if matches!(signal, ConsoleSignal::Stop | ConsoleSignal::HangUp) {
                        return Waited::Interrupted;
                    }
                }
                () = tokio::time::sleep_until(deadline.min(now + TICK)) => {}
            }
        }
    }

    /// Reads until the command has ended.
    pub(crate) async fn until_end(&mut self, signals: &mut ConsoleSignals, within: Duration) -> Waited {
        self.until(signals, within, |_, _| false).await
    }

    fn take(&mut self, line: Option<ConsoleLine>) {
        match line {
            Some(ConsoleLine::Json(at, value)) => {
                let at = at.duration_since(self.begun).as_secs_f64();
                match value["kind"].as_str() {
                    Some("stop") => self.events.end = Some(events::stopped(at, &value)),
                    _ => self.events.on_line(at, &value),
                }
                if matches!(value["kind"].as_str(), Some("stop" | "restarted"))
                    && self.replies.len() < REPLIES
                {
                    self.replies.push(value);
                }
            }
            Some(ConsoleLine::Error(line)) => {
                if self.errors.len() == ERROR_LINES {
                    self.errors.pop_front();
                }
                self.errors.push_back(clean(&line));
            }
            Some(ConsoleLine::End(exit)) => self.exit = Some(exit),
            None => self.exit = Some(self.exit.unwrap_or(-1)),
        }
    }

    /// The error that it ended with, in one line.
    pub(crate) fn error(&self) -> String {
        let error = self.errors.iter().find_map(|line| line.strip_prefix("error: ")).map(str::to_owned);
        let reason =
            self.events.end.as_ref().map(|end| end.reason.clone()).filter(|reason| !reason.is_empty());
        error.or(reason).or(self.errors.back().cloned()).unwrap_or_else(|| "no reason is known".to_owned())
    }

    /// What kept the run from starting, for a drill that ends with it.
    pub(crate) fn failure(&self, code: u8) -> Failure {
        let hints = self.errors.iter().filter_map(|line| line.strip_prefix("hint: "));
        let failure = Failure { code, ..Failure::failed(self.error()) };
        hints.fold(failure, |failure, hint| failure.hint(hint))
    }
}

/// Passes lines on until the end of the stream.
async fn pass(
    from: Option<impl AsyncRead + Unpin>,
    to: &mpsc::Sender<ConsoleLine>,
    read: impl Fn(String) -> Option<ConsoleLine>,
) {
    let Some(from) = from else { return };
    let mut lines = BufReader::new(from).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(line) = read(line) {
            let _ = to.send(line).await;
        }
    }
}
