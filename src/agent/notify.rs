//! Notifications by a command or a webhook: which events are worth one, and the programs that send them.
//!
//! The console uses it while it is attached, and the agent of rank 0's host while no console is. Invariants:
//! - NOTIFY-1: at most [`AT_ONCE`] commands run at a time, [`WITHIN`] each. A notification beyond that is
//!   dropped, counted and reported.

use crate::proc;
use crate::supervise::groups;
use crate::supervise::groups::Helpers;
use rankdeck_types::words;
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Most commands at a time.
pub const AT_ONCE: usize = 4;
/// Time limit of a command.
pub const WITHIN: Duration = Duration::from_secs(10);
/// Most characters of a notification on a terminal or from an agent, and of a command's error.
pub const LONGEST: usize = 200;

/// Posts JSON to a URL. It reads both from stdin, so that no process list shows the URL.
const CURL: [&str; 8] = ["curl", "--silent", "--show-error", "--fail", "--max-time", "9", "--config", "-"];

/// The kinds of notification, as `notify.on` names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occasion {
    /// The run has ended or failed.
    End,
    /// A critical verdict.
    Verdict,
    /// The best evaluation so far.
    Best,
}

impl Occasion {
    /// Every kind.
    pub const ALL: [Occasion; 3] = [Occasion::End, Occasion::Verdict, Occasion::Best];

    /// Its name in `notify.on` and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Occasion::End => "end",
            Occasion::Verdict => "verdict",
            Occasion::Best => "best",
        }
    }

    /// Whether `on`, the value of `notify.on`, contains it. An empty list means `end` and `verdict`.
    fn is_enabled(self, on: &[String]) -> bool {
        match on.is_empty() {
            true => self != Occasion::Best,
            false => on.iter().any(|name| name == self.name()),
        }
    }
}

/// Something that may be worth a notification.
#[derive(Debug, Clone, PartialEq)]
pub enum NotifyEvent {
    /// The run has ended or failed; one sentence.
    End(String),
    /// A critical verdict; one sentence.
    Verdict(String),
    /// An evaluation.
    Evaluation {
        /// Mean return.
        return_mean: f64,
        /// Environment steps of the run.
        env_step: u64,
    },
}

/// A notification to send.
#[derive(Debug, Clone, PartialEq)]
pub struct Notification {
    /// Its kind.
    pub occasion: Occasion,
    /// One sentence.
    pub text: String,
}

/// Decides which events are worth a notification.
#[derive(Debug, Default)]
pub struct EventFilter {
    /// Evaluations that were the best so far: their steps and mean returns, both rising.
    best: Vec<(u64, f64)>,
}

/// Most of them; the earliest go first.
const BEST: usize = 1024;

impl EventFilter {
    /// Returns the notification for an event, where `on` (`notify.on`) asks for it.
    pub fn assess(&mut self, event: NotifyEvent, on: &[String]) -> Option<Notification> {
        let (occasion, text) = match event {
            NotifyEvent::End(text) => (Occasion::End, text),
            NotifyEvent::Verdict(text) => (Occasion::Verdict, text),
            NotifyEvent::Evaluation { return_mean, env_step } if return_mean.is_finite() => {
                // Steps that are repeated were thrown away by a restart.
                self.best.retain(|(step, _)| *step < env_step);
                let before = self.best.last().map(|(_, mean)| *mean);
                if before.is_none_or(|before| return_mean > before) {
                    self.best.push((env_step, return_mean));
                    self.best.drain(..self.best.len().saturating_sub(BEST));
                }
                // The first evaluation has nothing to be better than.
                before.filter(|before| return_mean > *before)?;
                (
                    Occasion::Best,
                    format!("best evaluation {} at step {env_step}", words::fixed(return_mean, 1)),
                )
            }
            NotifyEvent::Evaluation { .. } => return None,
        };
        occasion.is_enabled(on).then_some(Notification { occasion, text })
    }
}

/// Sends notifications: each command runs on a thread of its own.
#[derive(Debug)]
pub struct NotificationSender {
    /// The processes of the commands.
    helpers: Helpers,
    /// Another thread of this process reaps its children, as in an agent, so that exit codes are unknown.
    is_reaped_elsewhere: bool,
    /// One clone per running command.
    running: Arc<()>,
    dropped: u64,
    reported: u64,
    problems_in: mpsc::Sender<String>,
    problems: mpsc::Receiver<String>,
}

impl Default for NotificationSender {
    /// A sender for a process that reaps no children of others.
    fn default() -> NotificationSender {
        NotificationSender::new(Helpers::default(), false)
    }
}

impl NotificationSender {
    /// A sender for an agent, whose supervisor reaps all children.
    pub(crate) fn for_agent(helpers: Helpers) -> NotificationSender {
        NotificationSender::new(helpers, true)
    }

    fn new(helpers: Helpers, is_reaped_elsewhere: bool) -> NotificationSender {
        let (problems_in, problems) = mpsc::channel(2 * AT_ONCE);
        let running = Arc::default();
        NotificationSender {
            helpers,
            is_reaped_elsewhere,
            running,
            dropped: 0,
            reported: 0,
            problems_in,
            problems,
        }
    }

    /// Starts `command` with `json` on its input, and posts `json` to `webhook`; either may be empty.
    pub fn send(&mut self, command: &[String], webhook: &str, json: &str) {
        if !command.is_empty() {
            self.start(None, command.to_vec(), json.to_owned());
        }
        if !webhook.is_empty() {
            self.start(Some("webhook"), CURL.map(str::to_owned).to_vec(), curl_input(webhook, json));
        }
        if self.dropped > self.reported {
            self.reported = self.dropped;
            let text = format!("{} notifications dropped: earlier commands are still running", self.dropped);
            self.report(text);
        }
    }

    fn start(&mut self, name: Option<&str>, words: Vec<String>, input: String) {
        if Arc::strong_count(&self.running) > AT_ONCE {
            self.dropped += 1;
            return;
        }
        let name = name.map_or_else(|| words.first().cloned().unwrap_or_default(), str::to_owned);
        let (helpers, is_reaped_elsewhere) = (self.helpers.clone(), self.is_reaped_elsewhere);
        let (problems, running) = (self.problems_in.clone(), self.running.clone());
        let work = move || {
            if let Err(error) = run(&words, &input, WITHIN, &helpers, is_reaped_elsewhere) {
                // A full queue has enough of them.
                let _ = problems.try_send(format!("notify: {name}: {error}"));
            }
            drop(running);
        };
        if let Err(error) = std::thread::Builder::new().name("notify".into()).spawn(work) {
            self.report(format!("cannot start a thread: {error}"));
        }
    }

    /// Queues a problem for the user.
    pub fn report(&self, text: impl std::fmt::Display) {
        let _ = self.problems_in.try_send(format!("notify: {text}"));
    }

    /// Counts notifications that were dropped before they came here.
    pub(crate) fn count_dropped(&mut self, count: u64) {
        self.dropped += count;
    }

    /// Returns the next problem. Cancel-safe; never ends.
    pub async fn problem(&mut self) -> String {
        match self.problems.recv().await {
            Some(text) => text,
            None => std::future::pending().await,
        }
    }

    /// Returns the problems so far.
    pub(crate) fn problems(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.problems.try_recv().ok()).collect()
    }

    /// Waits for the commands that still run, then kills them; returns all problems.
    pub async fn finish(self, within: Duration) -> Vec<String> {
        let NotificationSender { helpers, problems_in, mut problems, .. } = self;
        drop(problems_in);
        let mut found = Vec::new();
        let all = async {
            // Every command holds the other end.
            while let Some(text) = problems.recv().await {
                found.push(text);
            }
        };
        if tokio::time::timeout(within, all).await.is_err() {
            found.push(format!("notify: killed after {} s", within.as_secs()));
        }
        for pid in helpers.pids() {
            groups::signal(pid, proc::stat(pid).map_or(0, |stat| stat.start), libc::SIGKILL);
        }
        found
    }
}

/// Runs a command with `input` on its standard input.
///
/// Errors: its exit status and last line on standard error. Where another thread reaps it, the status is
/// unknown, and any line on standard error is an error.
fn run(
    words: &[String],
    input: &str,
    within: Duration,
    helpers: &Helpers,
    is_reaped_elsewhere: bool,
) -> Result<(), String> {
    let deadline = Instant::now() + within;
    let (program, arguments) = words.split_first().ok_or("the command is empty")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let (mut child, _spared) = helpers.spawn(&mut command).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "program not found (check `[notify]` in ui.toml)".to_owned(),
        _ => error.to_string(),
    })?;
    let pid = child.id();
    let start = proc::stat(pid).map_or(0, |stat| stat.start);
    let (input, stdin, stderr) = (input.to_owned(), child.stdin.take(), child.stderr.take());
    let (sender, output) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        if let Some(mut stdin) = stdin {
            // A program need not read its input.
            let _ = stdin.write_all(input.as_bytes());
        }
        let mut text = Vec::new();
        if let Some(stderr) = stderr {
            let _ = stderr.take(LONGEST as u64 * 8).read_to_end(&mut text);
        }
        let _ = sender.send(String::from_utf8_lossy(&text).into_owned());
    });
    let kill = || {
        groups::signal(pid, start, libc::SIGKILL);
        format!("killed after {} s", within.as_secs())
    };
    let output = output.recv_timeout(within).map_err(|_| kill());
    let last = |text: &str| text.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned);
    if is_reaped_elsewhere {
        return match last(&output?) {
            Some(line) => Err(words::clip(line.trim(), LONGEST)),
            None => Ok(()),
        };
    }
    // A program may close standard error and run on.
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            Ok(None) => {
                let error = kill();
                let _ = child.wait();
                return Err(error);
            }
            Err(error) => return Err(error.to_string()),
        }
    };
    let output = output?;
    match status.success() {
        true => Ok(()),
        false => Err(words::clip(&format!("{status} {}", last(&output).unwrap_or_default()), LONGEST)),
    }
}

/// The stdin of [`CURL`].
fn curl_input(url: &str, body: &str) -> String {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace(['\n', '\r'], " ");
    format!(
        "url = \"{}\"\nheader = \"Content-Type: application/json\"\ndata-raw = \"{}\"\n",
        quoted(url),
        quoted(body)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhook_url_is_in_stdin_only_and_quoted() {
        let text = curl_input("https://x/y", "{\"a\":\"b\\n\"}");
        assert!(
            text.contains("url = \"https://x/y\"") && text.contains("{\\\"a\\\":\\\"b\\\\n\\\"}"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 3);
        assert!(CURL.iter().all(|word| !word.contains("://")));
    }

    fn script(text: &str) -> Vec<String> {
        vec!["sh".to_owned(), "-c".to_owned(), text.to_owned()]
    }

    fn on(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn only_a_better_finite_evaluation_is_a_best_one() {
        let sent = |on: &[String]| {
            let mut filter = EventFilter::default();
            [(1, 1.0), (2, 0.5), (3, f64::NAN), (4, 2.0), (5, 2.0)].map(|(env_step, return_mean)| {
                filter.assess(NotifyEvent::Evaluation { return_mean, env_step }, on).is_some()
            })
        };
        assert_eq!(sent(&on(&["best"])), [false, false, false, true, false]);
        assert_eq!(sent(&on(&["end"])), [false; 5]);
        assert_eq!(sent(&[]), [false; 5]);
    }

    /// Steps 1 to 3, then a restart from step 1.
    #[test]
    fn best_evaluation_of_an_abandoned_generation_is_forgotten() {
        let mut filter = EventFilter::default();
        let evaluations = [(1, 5.0), (2, 50.0), (3, 500.0), (2, 4.0), (3, 6.0)];
        let sent = evaluations.map(|(env_step, return_mean)| {
            filter.assess(NotifyEvent::Evaluation { return_mean, env_step }, &on(&["best"])).is_some()
        });
        assert_eq!(sent, [false, true, true, false, true]);
    }

    #[test]
    fn without_a_list_ends_and_verdicts_are_sent() {
        let mut filter = EventFilter::default();
        let mut occasion = |event, on: &[String]| filter.assess(event, on).map(|sent| sent.occasion);
        assert_eq!(occasion(NotifyEvent::End("x".into()), &[]), Some(Occasion::End));
        assert_eq!(occasion(NotifyEvent::Verdict("x".into()), &[]), Some(Occasion::Verdict));
        assert_eq!(occasion(NotifyEvent::Verdict("x".into()), &on(&["end"])), None);
    }

    #[test]
    fn notify_1_hanging_command_is_killed_and_failures_are_errors() {
        let helpers = Helpers::default();
        for is_reaped_elsewhere in [false, true] {
            let run = |words: &[String], input: &str, within| {
                run(words, input, within, &helpers, is_reaped_elsewhere)
            };
            let begun = Instant::now();
            assert!(run(&script("read never </dev/zero"), "", Duration::from_millis(50)).is_err());
            assert!(begun.elapsed() < WITHIN);
            let failed = run(&script("echo no route >&2; exit 3"), "{}", WITHIN).unwrap_err();
            assert!(failed.ends_with("no route") && failed.contains('3') != is_reaped_elsewhere, "{failed}");
            assert!(run(&["/nowhere/at/all".to_owned()], "", WITHIN).is_err());
            assert_eq!(run(&script("cat >/dev/null"), "{}", WITHIN), Ok(()));
            assert!(helpers.pids().is_empty());
        }
        assert_eq!(run(&script("echo slow >&2"), "{}", WITHIN, &helpers, false), Ok(()), "it exited with 0");
    }

    #[tokio::test]
    async fn notify_1_notifications_beyond_the_limit_are_counted() {
        let mut sender = NotificationSender::default();
        for _ in 0..AT_ONCE + 3 {
            sender.send(&script("read never </dev/zero"), "", "{}");
        }
        assert_eq!((Arc::strong_count(&sender.running), sender.dropped), (AT_ONCE + 1, 3));
        assert_eq!(sender.problems().len(), 3, "one for each that was dropped");
        let helpers = sender.helpers.clone();
        let deadline = Instant::now() + WITHIN;
        while helpers.pids().len() < AT_ONCE {
            assert!(Instant::now() < deadline, "all have started");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(sender.finish(Duration::from_millis(20)).await.len(), 1);
        while !helpers.pids().is_empty() {
            assert!(Instant::now() < deadline, "all are killed");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
