//! Answers the questions of one-shot connections.

use super::args::MeetArgs;
use crate::core::event::Prompt;
use crate::link::Prompter;
use crate::shell::ask;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
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

impl Terminal {
    /// A prompter for these arguments.
    pub fn new(meet: &MeetArgs) -> Arc<Terminal> {
        Arc::new(Terminal {
            accept_new_host_keys: meet.accept_new_host_keys,
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

/// The same, and tells how far files have come: one line that is written over on a terminal, a line per quarter of a minute elsewhere.
#[derive(Debug)]
pub struct Progress {
    terminal: Arc<Terminal>,
    shown: Mutex<Shown>,
}

#[derive(Debug, Default)]
struct Shown {
    /// Bytes sent and wanted, by host and file.
    files: BTreeMap<(String, String), (u64, u64)>,
    at: Option<Instant>,
    /// A line without its end stands on the terminal.
    open: bool,
}

impl Progress {
    /// For these arguments.
    pub fn new(meet: &MeetArgs) -> Arc<Progress> {
        Arc::new(Progress { terminal: Terminal::new(meet), shown: Mutex::default() })
    }
}

impl Prompter for Progress {
    fn ask(&self, host: &str, prompt: &Prompt) -> Option<String> {
        self.terminal.ask(host, prompt)
    }

    fn progress(&self, host: &str, what: &str, done: u64, total: u64) {
        let mut shown = self.shown.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if total > 0 {
            shown.files.insert((host.to_owned(), what.to_owned()), (done, total));
        }
        let (sent, wanted) =
            shown.files.values().fold((0, 0), |(sent, wanted), (done, total)| (sent + done, wanted + total));
        let fancy = io::stderr().is_terminal();
        let pause = if fancy { Duration::from_millis(100) } else { Duration::from_secs(15) };
        let due = shown.at.is_none_or(|at| at.elapsed() >= pause) || sent >= wanted;
        let mut stderr = io::stderr().lock();
        // A closed stderr is nobody's loss.
        if total == 0 {
            if shown.open {
                let _ = writeln!(stderr);
            }
            shown.open = false;
        } else if due {
            shown.at = Some(Instant::now());
            let hosts: std::collections::BTreeSet<&String> =
                shown.files.keys().map(|(host, _)| host).collect();
            let text = format!(
                "{} of {} to {} hosts",
                crate::ui::text::bytes(sent),
                crate::ui::text::bytes(wanted),
                hosts.len()
            );
            let _ = if fancy { write!(stderr, "\r{text}\x1b[K") } else { writeln!(stderr, "{text}") };
            shown.open = fancy;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.progress("", "", 0, 0);
    }
}
