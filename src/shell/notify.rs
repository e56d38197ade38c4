//! The console calls its user: by the terminal (bell, notification, title, progress), by a command, by a
//! webhook.
//!
//! Owner: the console's one loop, which only decides and hands over. Commands run beside it, [`WITHIN`] at
//! most each, and are reaped. Invariants:
//! - NOTIFY-1: at most [`AT_ONCE`] commands run at a time; one that finds no room is counted as lost, and
//!   said.
//! - NOTIFY-2: nothing that a terminal would not understand is sent to it: escape sequences beyond the bell
//!   go only to terminals that are known to have them.

mod terminal;

pub use terminal::{Progress, TITLE_BACK, TITLE_KEPT, TerminalFacts, state};

use rankdeck_core::report::{Report, ReportBody, Severity};
use rankdeck_proto::message::Outcome;
use rankdeck_types::ui::{DesktopName, Notify};
use rankdeck_types::webhook;
use serde_json::json;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Most commands at a time.
pub const AT_ONCE: usize = 4;
/// How long a command may take.
pub const WITHIN: Duration = Duration::from_secs(10);
/// Most characters of what is told.
const LONGEST: usize = 200;

/// What `notify.on` may name, and without it.
const OCCASIONS: [&str; 3] = ["end", "verdict", "best"];
const USUAL: [&str; 2] = ["end", "verdict"];

/// What is worth a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occasion {
    /// The run is over.
    End,
    /// A red verdict.
    Verdict,
    /// An evaluation better than all before it.
    Best,
}

impl Occasion {
    /// As `notify.on` names it.
    pub fn name(self) -> &'static str {
        match self {
            Occasion::End => "end",
            Occasion::Verdict => "verdict",
            Occasion::Best => "best",
        }
    }
}

/// One call.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub occasion: Occasion,
    pub run: String,
    /// One sentence.
    pub text: String,
    /// All that is known of it, as `--json` says it.
    pub json: String,
}

/// Decides what is worth a call, and makes it.
pub struct Notifier {
    settings: Notify,
    best: Option<f64>,
    running: JoinSet<()>,
    failures_in: mpsc::Sender<String>,
    failures: mpsc::Receiver<String>,
    lost: u64,
    told: u64,
}

impl Notifier {
    /// As `[notify]` says.
    pub fn new(settings: Notify) -> Notifier {
        let (failures_in, failures) = mpsc::channel(AT_ONCE);
        for word in settings.on.iter().filter(|word| !OCCASIONS.contains(&word.as_str())) {
            let all = OCCASIONS.join(", ");
            let _ = failures_in.try_send(format!("ui.toml: notify.on: `{word}` is nothing; there are {all}"));
        }
        Notifier { settings, best: None, running: JoinSet::new(), failures_in, failures, lost: 0, told: 0 }
    }

    /// What a report is worth; `None`: nothing.
    pub fn weigh(&mut self, report: &Report) -> Option<Call> {
        let (occasion, text) = match &report.body {
            ReportBody::RunFinished { outcome, reason, .. } => {
                let how = match outcome {
                    Outcome::Succeeded => "succeeded".to_owned(),
                    other => format!("{}: {reason}", other.name()),
                };
                (Occasion::End, how)
            }
            ReportBody::Verdict(verdict) if verdict.severity == Severity::Red => {
                (Occasion::Verdict, verdict.reason.clone())
            }
            ReportBody::Eval { return_mean, env_step, .. } if return_mean.is_finite() => {
                let before = self.best.replace(self.best.map_or(*return_mean, |best| best.max(*return_mean)));
                // The first one is the best of none.
                let better = before.is_some_and(|before| *return_mean > before);
                if !better {
                    return None;
                }
                (Occasion::Best, format!("best evaluation {return_mean:.1} at step {env_step}"))
            }
            _ => return None,
        };
        let wanted = match self.settings.on.is_empty() {
            true => USUAL.contains(&occasion.name()),
            false => self.settings.on.iter().any(|on| on == occasion.name()),
        };
        if !wanted {
            return None;
        }
        let run = report.run.0.clone();
        let event = serde_json::to_value(report).unwrap_or_default();
        let json = json!({ "occasion": occasion.name(), "run": run, "text": text, "event": event });
        let text = rankdeck_types::words::clip(&text, LONGEST);
        Some(Call { occasion, run, text, json: json.to_string() })
    }

    /// What the terminal is sent for a call.
    pub fn bytes(&self, call: &Call, known: &TerminalFacts) -> Vec<u8> {
        match self.settings.desktop {
            DesktopName::Off => Vec::new(),
            DesktopName::Bell => b"\x07".to_vec(),
            DesktopName::Auto => known.notification(&format!("{}: {}", call.run, call.text)),
        }
    }

    /// A title and a progress are shown.
    pub fn shows_title(&self) -> bool {
        self.settings.title
    }

    /// Starts what `[notify]` names.
    pub fn start(&mut self, call: &Call) {
        while self.running.try_join_next().is_some() {}
        let own = self.settings.command.split_first().map(|(program, arguments)| {
            let mut command = Command::new(program);
            command.args(arguments);
            (program.clone(), command, call.json.clone())
        });
        let hook = (!self.settings.webhook.is_empty()).then(|| {
            let mut command = Command::new(webhook::PROGRAM);
            command.args(webhook::ARGUMENTS);
            ("webhook".to_owned(), command, webhook::input(&self.settings.webhook, &call.json))
        });
        for (name, command, input) in [own, hook].into_iter().flatten() {
            if self.running.len() >= AT_ONCE {
                self.lost += 1;
                continue;
            }
            let failures = self.failures_in.clone();
            self.running.spawn(async move {
                if let Err(why) = run(command, input).await {
                    // A full queue has enough to say.
                    let _ = failures.try_send(format!("notify: {name}: {why}"));
                }
            });
        }
        if self.lost > self.told {
            let text =
                format!("notify: {} calls found no room, the commands before them take too long", self.lost);
            self.told = self.lost;
            let _ = self.failures_in.try_send(text);
        }
    }

    /// The next failure, for people. Cancel-safe; never ends.
    pub async fn failed(&mut self) -> String {
        match self.failures.recv().await {
            Some(text) => text,
            None => std::future::pending().await,
        }
    }

    /// Waits for what still runs, then kills it; failures that nobody has heard.
    pub async fn end(mut self, within: Duration) -> Vec<String> {
        let all = async { while self.running.join_next().await.is_some() {} };
        if tokio::time::timeout(within, all).await.is_err() {
            let _ = self.failures_in.try_send(format!("notify: given up after {} s", within.as_secs()));
        }
        self.running.shutdown().await;
        let mut left = Vec::new();
        while let Ok(text) = self.failures.try_recv() {
            left.push(text);
        }
        left
    }
}

async fn run(mut command: Command, input: String) -> Result<(), String> {
    let command =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "it is not installed here; hint: `[notify]` in ui.toml".to_owned(),
        _ => error.to_string(),
    })?;
    let talk = async {
        if let Some(mut pipe) = child.stdin.take() {
            // One that does not read is none the worse.
            let _ = pipe.write_all(input.as_bytes()).await;
        }
        child.wait_with_output().await
    };
    match tokio::time::timeout(WITHIN, talk).await {
        Err(_) => Err(format!("killed after {} s", WITHIN.as_secs())),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) => {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
            Err(rankdeck_types::words::clip(&format!("{} {last}", output.status), LONGEST))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::ids::{Generation, RunId};

    fn eval(return_mean: f64) -> Report {
        let body = ReportBody::Eval {
            env_step: 5,
            train_iter: 1,
            episodes: 1,
            return_mean,
            return_std: 0.0,
            return_min: 0.0,
            return_max: 0.0,
            stop: false,
        };
        Report { run: RunId("r".into()), generation: Generation(0), time: 1.0, body }
    }

    fn settings(on: &[&str], command: &[&str]) -> Notify {
        let all = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Notify { on: all(on), command: all(command), ..Notify::default() }
    }

    #[test]
    fn only_a_better_evaluation_is_a_best_one_and_only_what_is_wanted_is_told() {
        let mut notifier = Notifier::new(settings(&["best"], &[]));
        let calls: Vec<bool> = [1.0, 0.5, f64::NAN, 2.0, 2.0]
            .iter()
            .map(|mean| notifier.weigh(&eval(*mean)).is_some())
            .collect();
        assert_eq!(calls, [false, false, false, true, false]);
        let mut other = Notifier::new(settings(&["end"], &[]));
        assert!(other.weigh(&eval(1.0)).is_none() && other.weigh(&eval(2.0)).is_none());
    }

    #[tokio::test]
    async fn notify_1_a_command_gets_the_event_and_its_failures_are_said() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("told");
        let script = format!("cat > {}", file.display());
        let mut notifier = Notifier::new(settings(&["best"], &["sh", "-c", &script]));
        notifier.weigh(&eval(1.0));
        let call = notifier.weigh(&eval(2.0)).unwrap();
        notifier.start(&call);
        assert_eq!(notifier.end(WITHIN).await, Vec::<String>::new());
        let told = std::fs::read_to_string(&file).unwrap();
        assert!(told.contains("\"occasion\":\"best\"") && told.contains("\"run\":\"r\""), "{told}");
        let mut missing = Notifier::new(settings(&["best"], &["/nowhere/at/all"]));
        missing.start(&call);
        assert!(missing.end(WITHIN).await[0].contains("not installed"));
        let mut wrong = Notifier::new(settings(&["best"], &["sh", "-c", "echo no >&2; exit 3"]));
        wrong.start(&call);
        assert!(wrong.failed().await.contains("no"));
    }

    #[tokio::test]
    async fn notify_1_what_finds_no_room_is_counted() {
        let mut notifier = Notifier::new(settings(&["best"], &["sh", "-c", "read never </dev/zero"]));
        notifier.weigh(&eval(1.0));
        let call = notifier.weigh(&eval(2.0)).unwrap();
        for _ in 0..AT_ONCE + 3 {
            notifier.start(&call);
        }
        assert_eq!((notifier.running.len(), notifier.lost), (AT_ONCE, 3));
        assert!(notifier.failed().await.contains("no room"));
        notifier.running.shutdown().await;
    }
}
