//! The console's notifications: by the terminal (bell, notification, title, progress), by a command, by a
//! webhook.
//!
//! Owner: the console's one loop, which only decides and hands over. Invariants:
//! - NOTIFY-2: escape sequences beyond the bell go only to terminals that are known to support them.

use super::output::ConsoleOutput;
use super::screen::TerminalScreen;
use rankdeck_agent::notify::{EventFilter, LONGEST, NotificationSender, NotifyEvent, Occasion, WITHIN};
use rankdeck_core::model::{Model, RunState};
use rankdeck_core::report::{Report, ReportBody, RunOutcome, Severity};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::ui::{DesktopName, Notify};
use rankdeck_types::words::{self, clean};
use serde_json::json;
use std::time::Duration;

/// Saves the terminal's own title.
const SAVE_TITLE: &str = "\x1b[22;0t";
/// Restores it.
const RESTORE_TITLE: &str = "\x1b[23;0t";
/// Most characters of a title, or of a notification on the terminal.
const TERMINAL_CHARS: usize = 120;
/// A run that was up for this long was seen running, not read from records.
const ALIVE_MS: u64 = 1000;
/// How long the end of a screen waits for a command.
const PATIENCE: Duration = Duration::from_secs(3);

/// A notification, as the terminal and programs get it.
#[derive(Debug, Clone, PartialEq)]
struct RunNotification {
    /// The run.
    run: String,
    /// One sentence.
    text: String,
    /// The whole event, as in `--json`.
    json: String,
}

/// Decides which reports are worth a notification, and sends them.
struct Notifier {
    settings: Notify,
    filter: EventFilter,
    sender: NotificationSender,
}

impl Notifier {
    /// A notifier with the settings of `[notify]`.
    fn new(settings: Notify) -> Notifier {
        let sender = NotificationSender::default();
        let names = Occasion::ALL.map(Occasion::name);
        for word in settings.on.iter().filter(|word| !names.contains(&word.as_str())) {
            let all = names.join(", ");
            sender.report(format!("ui.toml: unknown `notify.on` value `{word}`; expected {all}"));
        }
        Notifier { settings, filter: EventFilter::default(), sender }
    }

    /// Returns the notification for a report, if it is worth one.
    fn assess(&mut self, report: &Report) -> Option<RunNotification> {
        let event = match &report.body {
            ReportBody::RunFinished { outcome, reason, .. } => NotifyEvent::End(match outcome {
                RunOutcome::Succeeded => "succeeded".to_owned(),
                other => format!("{}: {reason}", other.name()),
            }),
            ReportBody::Verdict(verdict) if verdict.severity == Severity::Red => {
                NotifyEvent::Verdict(verdict.reason.clone())
            }
            ReportBody::Membership { ranks, lost, world_size, .. } if !lost.is_empty() => {
                let lost: Vec<u32> = lost.iter().map(|rank| rank.0).collect();
                let (lost, left) = (words::ranges(&lost), ranks.len());
                NotifyEvent::Verdict(format!("lost rank {lost}; {left} of {world_size} ranks continue"))
            }
            ReportBody::Eval { return_mean, env_step, .. } => {
                NotifyEvent::Evaluation { return_mean: *return_mean, env_step: *env_step }
            }
            _ => return None,
        };
        let sent = self.filter.assess(event, &self.settings.on)?;
        let run = report.run.0.clone();
        let event = serde_json::to_value(report).unwrap_or_default();
        let json = json!({ "occasion": sent.occasion.name(), "run": run, "text": sent.text, "event": event });
        Some(RunNotification { run, text: words::clip(&sent.text, LONGEST), json: json.to_string() })
    }

    /// Returns the bytes that show a notification on the terminal.
    fn bytes(&self, notification: &RunNotification, terminal: &TerminalFacts) -> Vec<u8> {
        match self.settings.desktop {
            DesktopName::Off => Vec::new(),
            DesktopName::Bell => b"\x07".to_vec(),
            DesktopName::Auto => {
                terminal.notification(&format!("{}: {}", notification.run, notification.text))
            }
        }
    }

    /// Whether the terminal shows a title and progress.
    fn shows_title(&self) -> bool {
        self.settings.title
    }

    /// Starts the command and the webhook of `[notify]`.
    fn start(&mut self, notification: &RunNotification) {
        self.sender.send(&self.settings.command, &self.settings.webhook, &notification.json);
    }

    /// Returns the next problem. Cancel-safe; never ends.
    async fn failed(&mut self) -> String {
        self.sender.problem().await
    }

    /// Waits for the commands that still run, then kills them; returns all problems.
    async fn end(self, within: Duration) -> Vec<String> {
        self.sender.finish(within).await
    }
}

/// The escape sequence of a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NotificationSequence {
    /// iTerm2, WezTerm, ghostty.
    Osc9,
    /// foot, urxvt, VTE with a patch, WezTerm.
    Osc777,
    /// kitty.
    Osc99,
    /// The bell only.
    Bell,
}

/// What the terminal supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TerminalFacts {
    sequence: NotificationSequence,
    progress: bool,
    tmux: bool,
    title: bool,
}

/// The state of a progress indicator (OSC 9;4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TerminalProgress {
    /// No progress.
    Off,
    /// Percent.
    At(u8),
    /// Percent, and something is wrong.
    Wrong(u8),
}

impl TerminalFacts {
    /// The terminal that this process runs in, by its environment.
    fn here() -> TerminalFacts {
        TerminalFacts::of(&|name| std::env::var(name).unwrap_or_default())
    }

    fn of(value: &dyn Fn(&str) -> String) -> TerminalFacts {
        let (term, program) = (value("TERM"), value("TERM_PROGRAM"));
        let set = |name: &str| !value(name).is_empty();
        let sequence = match program.as_str() {
            "iTerm.app" | "WezTerm" | "ghostty" => NotificationSequence::Osc9,
            _ if set("KITTY_WINDOW_ID") || term == "xterm-kitty" => NotificationSequence::Osc99,
            _ if value("LC_TERMINAL") == "iTerm2" => NotificationSequence::Osc9,
            _ if term.starts_with("foot") || term.starts_with("rxvt-unicode") => NotificationSequence::Osc777,
            _ => NotificationSequence::Bell,
        };
        let progress =
            matches!(program.as_str(), "WezTerm" | "ghostty") || set("WT_SESSION") || set("ConEmuANSI");
        TerminalFacts {
            sequence,
            progress,
            tmux: set("TMUX"),
            title: term != "linux" && term != "dumb" && !term.is_empty(),
        }
    }

    /// Returns the bell, and a notification where the terminal supports one.
    fn notification(&self, text: &str) -> Vec<u8> {
        let text: String = clean(text).chars().filter(|c| *c != ';').take(TERMINAL_CHARS).collect();
        let sequence = match self.sequence {
            NotificationSequence::Osc9 => format!("\x1b]9;{text}\x07"),
            NotificationSequence::Osc777 => format!("\x1b]777;notify;rankdeck;{text}\x07"),
            NotificationSequence::Osc99 => format!("\x1b]99;;{text}\x1b\\"),
            NotificationSequence::Bell => String::new(),
        };
        format!("{}\x07", self.for_tmux(&sequence)).into_bytes()
    }

    /// Returns a title: the same bytes everywhere, tmux included.
    fn title(&self, text: &str) -> Vec<u8> {
        if !self.title {
            return Vec::new();
        }
        let text: String = clean(text).chars().take(TERMINAL_CHARS).collect();
        format!("\x1b]0;{text}\x07").into_bytes()
    }

    /// Whether the terminal saves and restores its title.
    fn saves_title(&self) -> bool {
        self.title && !self.tmux
    }

    /// Returns a progress, where the terminal supports one.
    fn progress(&self, progress: TerminalProgress) -> Vec<u8> {
        if !self.progress {
            return Vec::new();
        }
        let sequence = match progress {
            TerminalProgress::Off => "\x1b]9;4;0\x07".to_owned(),
            TerminalProgress::At(percent) => format!("\x1b]9;4;1;{percent}\x07"),
            TerminalProgress::Wrong(percent) => format!("\x1b]9;4;2;{percent}\x07"),
        };
        self.for_tmux(&sequence).into_bytes()
    }

    /// Wraps a sequence for tmux, which drops unknown ones (`allow-passthrough`).
    fn for_tmux(&self, sequence: &str) -> String {
        match self.tmux && !sequence.is_empty() {
            true => format!("\x1bPtmux;{}\x1b\\", sequence.replace('\x1b', "\x1b\x1b")),
            false => sequence.to_owned(),
        }
    }
}

/// Returns a title with the state of the run, and its progress.
fn title_and_progress(model: &Model) -> (String, TerminalProgress) {
    let name = model.run.id.as_ref().map_or("rankdeck", |run| run.0.as_str());
    let goal = model.run.total_steps.filter(|goal| *goal > 0);
    let done = model.progress.as_ref().map_or(0, |progress| progress.totals.env_step);
    let percent = goal.map(|goal| (done.saturating_mul(100) / goal).min(100) as u8);
    let red = model.verdicts.first().filter(|_| model.run.state != RunState::Over);
    let red = red.filter(|verdict| verdict.severity == Severity::Red);
    match (model.run.state, red) {
        (RunState::Over, _) => {
            let sign = if model.run.outcome == Some(RunOutcome::Succeeded) { "✓" } else { "✗" };
            (format!("{sign} {name}"), TerminalProgress::Off)
        }
        (_, Some(verdict)) => {
            let whom = verdict.rank.map_or(String::new(), |rank| format!(" rank {rank}"));
            let name = format!("✗ {name}{whom} {}", verdict.verdict.name());
            (name, percent.map_or(TerminalProgress::Off, TerminalProgress::Wrong))
        }
        _ => match percent {
            Some(percent) => (format!("{percent}% {name}"), TerminalProgress::At(percent)),
            None => (name.to_owned(), TerminalProgress::Off),
        },
    }
}

/// The notifications of the loop: only for a run that this console has seen running.
pub(crate) struct ConsoleNotifier {
    notifier: Notifier,
    terminal: TerminalFacts,
    up_since: Option<Timestamp>,
    alive: bool,
    /// Title and progress shown by the terminal.
    shown: Option<(String, TerminalProgress)>,
}

/// Waits for the next failed notification. Cancel-safe.
pub(crate) async fn failed(notifier: &mut Option<ConsoleNotifier>) -> String {
    match notifier {
        Some(console) => console.notifier.failed().await,
        None => std::future::pending().await,
    }
}

impl ConsoleNotifier {
    pub(crate) fn new(settings: Notify) -> ConsoleNotifier {
        ConsoleNotifier {
            notifier: Notifier::new(settings),
            terminal: TerminalFacts::here(),
            up_since: None,
            alive: false,
            shown: None,
        }
    }

    /// Tracks whether the run is up.
    pub(crate) fn observe(&mut self, now: Timestamp, model: &Model) {
        if matches!(model.run.state, RunState::Launching | RunState::Running) {
            let since = *self.up_since.get_or_insert(now);
            self.alive |= now.since(since) >= ALIVE_MS;
        }
    }

    /// Sends a notification if the report is worth one.
    pub(crate) fn report(&mut self, report: &Report, output: &mut ConsoleOutput) {
        let Some(notification) = self.notifier.assess(report).filter(|_| self.alive) else { return };
        self.notifier.start(&notification);
        if let ConsoleOutput::Screen(screen) = output {
            screen.send(&self.notifier.bytes(&notification, &self.terminal));
        }
    }

    /// Updates title and progress of the terminal.
    pub(crate) fn show(&mut self, model: &Model, screen: &mut TerminalScreen) {
        if !self.notifier.shows_title() {
            return;
        }
        let now = title_and_progress(model);
        if self.shown.as_ref() == Some(&now) {
            return;
        }
        if self.shown.is_none() && self.terminal.saves_title() {
            screen.send(SAVE_TITLE.as_bytes());
        }
        screen.send(&self.terminal.title(&now.0));
        screen.send(&self.terminal.progress(now.1));
        self.shown = Some(now);
    }

    /// Restores the title of the terminal.
    pub(crate) fn leave(&self, screen: &mut TerminalScreen) {
        if self.shown.is_some() {
            screen.send(&self.terminal.progress(TerminalProgress::Off));
            if self.terminal.saves_title() {
                screen.send(RESTORE_TITLE.as_bytes());
            }
        }
    }

    /// Waits for commands; not for long if a user waits as well.
    pub(crate) async fn end(self, user_waits: bool) -> Vec<String> {
        self.notifier.end(if user_waits { PATIENCE } else { WITHIN + Duration::from_secs(1) }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::ids::{Generation, RunId};

    fn eval(return_mean: f64) -> Report {
        let body = ReportBody::Eval {
            env_step: return_mean.max(0.0) as u64,
            train_iter: 1,
            episodes: 1,
            return_mean,
            return_std: 0.0,
            sampled: false,
            return_min: 0.0,
            return_max: 0.0,
            stop: false,
            series: String::new(),
        };
        Report { run: RunId("r".into()), generation: Generation(0), time: 1.0, body }
    }

    fn settings(on: &[&str], command: &[&str]) -> Notify {
        let all = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Notify { on: all(on), command: all(command), ..Notify::default() }
    }

    #[test]
    fn reports_are_filtered_by_notify_on() {
        let mut notifier = Notifier::new(settings(&["best"], &[]));
        let sent = [1.0, f64::NAN, 2.0].map(|mean| notifier.assess(&eval(mean)).is_some());
        assert_eq!(sent, [false, false, true]);
        let mut other = Notifier::new(settings(&["end"], &[]));
        assert!(other.assess(&eval(1.0)).is_none() && other.assess(&eval(2.0)).is_none());
    }

    #[tokio::test]
    async fn unknown_notify_on_value_is_reported() {
        let mut notifier = Notifier::new(settings(&["endd"], &[]));
        assert!(notifier.failed().await.contains("`endd`"));
    }

    #[tokio::test]
    async fn notify_1_command_gets_the_event_and_failures_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("event");
        let script = format!("cat > {}", file.display());
        let mut notifier = Notifier::new(settings(&["best"], &["sh", "-c", &script]));
        notifier.assess(&eval(1.0));
        let notification = notifier.assess(&eval(2.0)).unwrap();
        notifier.start(&notification);
        assert_eq!(notifier.end(WITHIN).await, Vec::<String>::new());
        let event: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!((&event["occasion"], &event["run"]), (&json!("best"), &json!("r")));
        let mut missing = Notifier::new(settings(&["best"], &["/nowhere/at/all"]));
        missing.start(&notification);
        assert_eq!(missing.end(WITHIN).await.len(), 1);
        let mut wrong = Notifier::new(settings(&["best"], &["sh", "-c", "echo no route >&2; exit 3"]));
        wrong.start(&notification);
        assert!(wrong.failed().await.contains("no route"));
    }

    fn known(pairs: &[(&str, &str)]) -> TerminalFacts {
        TerminalFacts::of(&|name| {
            pairs.iter().find(|(key, _)| *key == name).map_or(String::new(), |(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn notify_2_notification_uses_known_sequences_only() {
        let text = |pairs: &[(&str, &str)]| {
            String::from_utf8(known(pairs).notification("a; b\x1b]0;x\x07")).unwrap()
        };
        assert_eq!(text(&[("TERM", "xterm-256color")]), "\x07");
        assert_eq!(text(&[("TERM_PROGRAM", "WezTerm")]), "\x1b]9;a b\x07\x07");
        assert_eq!(text(&[("TERM", "xterm-kitty")]), "\x1b]99;;a b\x1b\\\x07");
        assert_eq!(text(&[("TERM", "foot")]), "\x1b]777;notify;rankdeck;a b\x07\x07");
        let inside = [("TERM", "tmux-256color"), ("TMUX", "/x"), ("LC_TERMINAL", "iTerm2")];
        assert_eq!(text(&inside), "\x1bPtmux;\x1b\x1b]9;a b\x07\x1b\\\x07");
    }

    #[test]
    fn notify_2_progress_is_sent_only_where_supported() {
        assert!(known(&[("TERM_PROGRAM", "iTerm.app")]).progress(TerminalProgress::At(5)).is_empty());
        assert_eq!(known(&[("WT_SESSION", "x")]).progress(TerminalProgress::Wrong(5)), b"\x1b]9;4;2;5\x07");
        assert_eq!(known(&[("TERM_PROGRAM", "ghostty")]).progress(TerminalProgress::Off), b"\x1b]9;4;0\x07");
        assert!(known(&[("TERM", "linux")]).title("x").is_empty());
        assert_eq!(known(&[("TERM", "xterm")]).title("x\x07y"), b"\x1b]0;xy\x07");
    }
}
