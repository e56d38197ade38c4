//! Questions of links, where no screen puts them to the user.

use super::super::ask::{Answer, Asker};
use rankdeck_core::event::Event;
use rankdeck_types::ids::NodeRank;
use rankdeck_types::link_state::Prompt;
use tokio::sync::mpsc;

/// How questions are answered.
pub(super) struct Questions {
    accept_new_host_keys: bool,
    /// There is somebody at a terminal who can be asked.
    can_ask: bool,
    asker: Option<Asker>,
    answers: mpsc::Sender<Answer>,
}

impl Questions {
    pub(super) fn new(accept_new_host_keys: bool, can_ask: bool, answers: mpsc::Sender<Answer>) -> Questions {
        Questions { accept_new_host_keys, can_ask, asker: None, answers }
    }

    /// The answer to a question that need not, or cannot, be put to the user on a screen; otherwise asks on
    /// the terminal.
    pub(super) fn answer_for_user(
        &mut self,
        node: NodeRank,
        name: impl FnOnce() -> String,
        prompt: &Prompt,
        on_screen: bool,
    ) -> Option<Event> {
        if self.accept_new_host_keys && matches!(prompt, Prompt::UnknownHostKey { .. }) {
            return Some(Event::PromptAnswered { node, answer: Some("yes".to_owned()) });
        }
        if on_screen {
            return None;
        }
        if self.can_ask && self.asker.is_none() {
            self.asker = Asker::new(self.answers.clone()).ok();
        }
        let asked = self.can_ask && self.asker.as_ref().is_some_and(|asker| asker.ask(node, &name(), prompt));
        (!asked).then_some(Event::PromptAnswered { node, answer: None })
    }
}
