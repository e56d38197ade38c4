//! Answers to a server's questions: passwords and what else keyboard-interactive asks for.
//!
//! Owner: one login. libssh2 asks from inside a call, so the operator is lent to the callback meanwhile.

use super::Operator;
use super::keyring::Secret;
use rankdeck_types::link_state::Prompt;
use ssh2::KeyboardInteractivePrompt;

/// Answers the server's questions.
pub(super) struct Answers<'a> {
    pub operator: &'a mut dyn Operator,
    pub account: &'a str,
    pub remembered: Option<Secret>,
    /// The one secret typed, when there was exactly one.
    pub typed: Option<Secret>,
    pub rounds: u32,
    pub refused: bool,
}

impl Answers<'_> {
    pub fn one(&mut self, text: &str) -> Option<String> {
        if let Some(secret) = self.remembered.take() {
            return Some(secret.text().to_string());
        }
        let prompt = Prompt::Password { account: self.account.into(), text: text.into() };
        let answer = if self.refused { None } else { self.operator.ask(&prompt) };
        self.rounds += 1;
        match &answer {
            Some(text) => self.typed = (self.rounds == 1).then(|| Secret::new(text.clone())),
            None => self.refused = true,
        }
        answer
    }
}

impl KeyboardInteractivePrompt for Answers<'_> {
    fn prompt<'a>(&mut self, _user: &str, instructions: &str, prompts: &[ssh2::Prompt<'a>]) -> Vec<String> {
        let ask = |prompt: &ssh2::Prompt<'a>| match instructions.trim() {
            "" => prompt.text.to_string(),
            instructions => format!("{instructions} {}", prompt.text),
        };
        prompts.iter().map(|prompt| self.one(&ask(prompt)).unwrap_or_default()).collect()
    }
}

/// Stands for the operator while libssh2 holds the real one inside its callback; the exchange's own deadline
/// bounds the wait.
pub(super) struct AbsentOperator;

impl Operator for AbsentOperator {
    fn interactive(&self) -> bool {
        false
    }

    fn ask(&mut self, _prompt: &Prompt) -> Option<String> {
        None
    }

    fn closing(&mut self) -> bool {
        false
    }

    fn wake_fd(&self) -> Option<std::os::fd::RawFd> {
        None
    }
}
