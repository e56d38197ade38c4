//! Answers the questions of one-shot connections.

use super::args::MeetArgs;
use crate::core::event::Prompt;
use crate::link::Prompter;
use crate::shell::ask;
use std::io::{self, IsTerminal};
use std::sync::{Arc, Mutex};

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
