//! Edits one line of text: filters, commands, answers, passphrases.

use crate::draw::DrawCtx;
use crate::theme::Role;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rankdeck_types::words::{clean, controls_terminal};
use ratatui::text::Span;
use std::fmt;

/// Most bytes of an input line.
pub const INPUT_LIMIT: usize = 1024;

/// A line that is being typed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TextInput {
    /// The text so far.
    pub line: String,
    /// Its characters are not shown: a passphrase or password.
    pub masked: bool,
}

impl fmt::Debug for TextInput {
    // By hand, so that a passphrase cannot reach a log through `{:?}`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.masked { f.write_str("TextInput(***)") } else { write!(f, "TextInput({:?})", self.line) }
    }
}

impl TextInput {
    /// A line with this text.
    pub fn new(line: impl Into<String>) -> TextInput {
        TextInput { line: line.into(), masked: false }
    }

    /// An empty line whose characters are not shown.
    pub fn masked() -> TextInput {
        TextInput { line: String::new(), masked: true }
    }

    /// Edits the line; true when it changed.
    pub fn on_key(&mut self, key: KeyEvent) -> bool {
        edit(&mut self.line, key)
    }

    /// Appends the first line of pasted text.
    pub fn paste(&mut self, text: &str) {
        paste(&mut self.line, text);
    }

    /// The line with its caret; of a line longer than `cells`, its end.
    pub fn spans<T: Clone>(&self, cx: &DrawCtx<'_, T>, prompt: &str, cells: usize) -> Vec<Span<'static>> {
        let text = match self.masked {
            true => cx.glyphs().pick("•", "*").repeat(self.line.chars().count()),
            false => clean(&self.line),
        };
        let room = cells.saturating_sub(prompt.chars().count() + 2);
        let skip = text.chars().count().saturating_sub(room);
        let visible: String = text.chars().skip(skip).collect();
        vec![cx.s(prompt, Role::Accent), cx.s(visible, Role::Strong), cx.caret()]
    }
}

/// Tests whether a key is pressed together with control.
pub fn with_ctrl(key: KeyEvent) -> bool {
    key.modifiers.contains(KeyModifiers::CONTROL)
}

/// Applies one key to an input line; true when it changed the line.
pub fn edit(line: &mut String, key: KeyEvent) -> bool {
    let before = line.len();
    match key.code {
        KeyCode::Char('u') if with_ctrl(key) => line.clear(),
        KeyCode::Char('w') if with_ctrl(key) => {
            let end = line.trim_end().rfind(' ').map_or(0, |at| at + 1);
            line.truncate(end);
        }
        KeyCode::Char('h') if with_ctrl(key) => {
            line.pop();
        }
        KeyCode::Char(c) if !with_ctrl(key) && line.len() < INPUT_LIMIT => line.push(c),
        KeyCode::Backspace => {
            line.pop();
        }
        _ => {}
    }
    line.len() != before
}

/// Appends pasted text to an input line, without control characters. A pasted line often ends in a newline:
/// only the first line is meant.
pub fn paste(line: &mut String, text: &str) {
    for c in text.lines().next().unwrap_or_default().chars().filter(|c| !controls_terminal(*c)) {
        if line.len() < INPUT_LIMIT {
            line.push(c);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_handles_word_and_line_deletion() {
        let mut input = TextInput::new("one two");
        let ctrl = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
        assert!(input.on_key(ctrl('w')) && input.line == "one ");
        assert!(input.on_key(ctrl('u')) && input.line.is_empty() && !input.on_key(ctrl('u')));
    }

    #[test]
    fn paste_is_bounded_and_takes_one_line() {
        let mut input = TextInput::default();
        input.paste("a\tb\nc");
        assert_eq!(input.line, "ab");
        input.paste(&"z".repeat(10 * INPUT_LIMIT));
        assert_eq!(input.line.len(), INPUT_LIMIT);
    }

    #[test]
    fn masked_input_is_not_printed() {
        let mut input = TextInput::masked();
        input.paste("secret");
        assert!(!format!("{input:?}").contains("secret"));
    }
}
