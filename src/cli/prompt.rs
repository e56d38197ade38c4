//! Answers the questions of one-shot connections.

use super::args::HostKeyArgs;
use crate::shell::{ask, stderr};
use rankdeck_link::{Prompter, Wait};
use rankdeck_types::link_state::Prompt;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Asks on the terminal, one question at a time; refuses without one.
#[derive(Debug)]
pub struct Terminal {
    accept_new_host_keys: bool,
    can_ask: bool,
    turn: Mutex<()>,
}

/// Is there somebody who can be asked?
pub fn can_ask() -> bool {
    io::stdin().is_terminal()
}

/// A question that is answered with yes or no on the terminal; anything but yes is no.
pub fn yes(question: &str) -> bool {
    stderr::status(&format!("{question} [y/N] "));
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

impl Terminal {
    /// A prompter for these arguments.
    pub fn new(host_keys: &HostKeyArgs) -> Arc<Terminal> {
        Arc::new(Terminal {
            accept_new_host_keys: host_keys.accept_new_host_keys,
            can_ask: can_ask(),
            turn: Mutex::new(()),
        })
    }
}

impl Prompter for Terminal {
    fn ask(&self, host: &str, prompt: &Prompt) -> Option<String> {
        if self.accept_new_host_keys && matches!(prompt, Prompt::UnknownHostKey { .. }) {
            return Some("yes".to_owned());
        }
        if !self.can_ask {
            return None;
        }
        // A poisoned lock only means that another question ended badly.
        let _turn = self.turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        ask::on_terminal(host, prompt)
    }
}

/// Nothing is said of a wait that is shorter.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between two lines where lines cannot be written over.
const SELDOM: Duration = Duration::from_secs(15);

/// The same, and tells how far files have come and what is waited for: one line that is written over on a
/// terminal, a line per quarter of a minute elsewhere.
#[derive(Debug)]
pub struct Progress {
    terminal: Arc<Terminal>,
    shown: Mutex<ProgressState>,
}

#[derive(Debug, Default)]
struct ProgressState {
    /// Bytes sent and wanted, by host and file.
    files: BTreeMap<(String, String), (u64, u64)>,
    /// What each host is waited for, and since when.
    waits: BTreeMap<String, (Wait, Instant)>,
    /// When the first of them began.
    begun: Option<Instant>,
    /// A line was said of files that are still on their way.
    lines: bool,
    at: Option<Instant>,
    /// A line without its end stands on the terminal.
    open: bool,
}

/// Tells about waits until it is dropped.
#[derive(Debug)]
pub struct Teller(tokio::task::JoinHandle<()>);

impl Drop for Teller {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Progress {
    /// For these arguments.
    pub fn new(host_keys: &HostKeyArgs) -> Arc<Progress> {
        Arc::new(Progress { terminal: Terminal::new(host_keys), shown: Mutex::default() })
    }

    /// Begins to tell about waits that last.
    pub fn tell_waits(self: &Arc<Self>) -> Teller {
        let progress = Arc::downgrade(self);
        Teller(tokio::spawn(async move {
            let mut clock = tokio::time::interval(Duration::from_millis(500));
            loop {
                clock.tick().await;
                let Some(progress) = progress.upgrade() else { return };
                progress.shown().tell_waits(Instant::now());
            }
        }))
    }

    fn shown(&self) -> std::sync::MutexGuard<'_, ProgressState> {
        // A poisoned lock only means that another report ended badly.
        self.shown.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl ProgressState {
    /// Shows `text`, over what stands there.
    fn say(&mut self, text: &str) {
        let fancy = stderr::is_terminal();
        if fancy {
            stderr::status(text)
        } else {
            stderr::line(text)
        }
        self.at = Some(Instant::now());
        self.open = fancy;
    }

    /// What was sent stays on the terminal; a wait that is over does not.
    fn end(&mut self) {
        if self.files.is_empty() {
            self.clear();
        } else if std::mem::take(&mut self.open) {
            stderr::end_status();
        }
    }

    /// Clears the line that stands there.
    fn clear(&mut self) {
        if std::mem::take(&mut self.open) {
            stderr::clear_status();
        }
    }

    fn due(&self, often: Duration) -> bool {
        let pause = if stderr::is_terminal() { often } else { SELDOM };
        self.at.is_none_or(|at| at.elapsed() >= pause)
    }

    fn tell_waits(&mut self, now: Instant) {
        match waits(&self.waits, now) {
            Some(text) if self.due(Duration::from_millis(400)) => self.say(&text),
            _ => {}
        }
    }
}

/// One line for hosts that are waited for, the longest first; `None` while nobody has waited long.
fn waits(waits: &BTreeMap<String, (Wait, Instant)>, now: Instant) -> Option<String> {
    let mut long: Vec<_> = waits
        .iter()
        .map(|(host, (why, since))| (now.saturating_duration_since(*since), host, *why))
        .filter(|(waited, ..)| *waited >= PATIENCE)
        .collect();
    long.sort_by(|a, b| b.cmp(a));
    let (waited, host, why) = *long.first()?;
    let why = match why {
        Wait::Login => "to log in",
        Wait::Shell => "to run a command: its login shell reads its start files",
        Wait::Answer => "to answer",
    };
    let others = match long.len() - 1 {
        0 => String::new(),
        count => format!(" (and {count} more)"),
    };
    Some(format!("waiting {} s for {}{others} {why}", waited.as_secs(), host))
}

impl Prompter for Progress {
    fn ask(&self, host: &str, prompt: &Prompt) -> Option<String> {
        {
            let mut shown = self.shown();
            shown.clear();
            // From here on the wait is for the user.
            shown.waits.remove(host);
        }
        self.terminal.ask(host, prompt)
    }

    fn waiting(&self, host: &str, why: Option<Wait>) {
        let mut shown = self.shown();
        match why {
            Some(why) => drop(shown.waits.insert(host.to_owned(), (why, Instant::now()))),
            None => drop(shown.waits.remove(host)),
        }
    }

    fn finished(&self) {
        self.shown().end();
    }

    fn progress(&self, host: &str, what: &str, done: u64, total: u64) {
        let mut shown = self.shown();
        // Bytes that move are told about by their number.
        shown.waits.remove(host);
        shown.files.insert((host.to_owned(), what.to_owned()), (done, total));
        let (sent, wanted) =
            shown.files.values().fold((0, 0), |(sent, wanted), (done, total)| (sent + done, wanted + total));
        let fancy = stderr::is_terminal();
        // Lines that stay are for files that take their time.
        let begun = *shown.begun.get_or_insert_with(Instant::now);
        let last = sent >= wanted && (fancy || shown.lines);
        if last || (shown.due(Duration::from_millis(100)) && (fancy || begun.elapsed() >= SELDOM)) {
            shown.lines = sent < wanted;
            let hosts: std::collections::BTreeSet<&String> =
                shown.files.keys().map(|(host, _)| host).collect();
            let text = format!(
                "{} of {} to {}",
                rankdeck_types::words::bytes(sent),
                rankdeck_types::words::bytes(wanted),
                rankdeck_types::words::plural(hosts.len(), "host")
            );
            shown.say(&text);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.shown().end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_is_told_with_its_reason_once_it_is_long() {
        let began = Instant::now();
        let mut all = BTreeMap::new();
        all.insert("a".to_owned(), (Wait::Answer, began + Duration::from_secs(1)));
        all.insert("b".to_owned(), (Wait::Shell, began));
        all.insert("c".to_owned(), (Wait::Login, began + Duration::from_secs(9)));
        assert_eq!(waits(&all, began + Duration::from_secs(2)), None);
        let text = waits(&all, began + Duration::from_secs(5)).unwrap();
        assert_eq!(
            text,
            "waiting 5 s for b (and 1 more) to run a command: its login shell reads its start files"
        );
    }
}
