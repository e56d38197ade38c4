//! Asks for confirmation of an action that cannot be undone: effects and choices; the selected choice is reversed and
//! bracketed, the first one does nothing and is the default.

use crate::draw::Target;
use crate::draw::{DrawCtx, put, width};
use crate::input::with_ctrl;
use crate::text;
use crate::theme::Role;
use crossterm::event::{KeyCode, KeyEvent};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget};

/// A question; `K` is what it is about, `A` the action of a choice.
#[derive(Debug, Clone, PartialEq)]
pub struct Confirm<K, A> {
    /// What it is about.
    pub kind: K,
    /// The question.
    pub title: String,
    /// Targets and effect, one paragraph each.
    pub text: Vec<String>,
    /// Choices; the first does nothing and is the default.
    pub choices: Vec<Choice<A>>,
    /// Index of the selected choice.
    pub selected: usize,
}

/// One choice of a [`Confirm`].
#[derive(Debug, Clone, PartialEq)]
pub struct Choice<A> {
    /// Key that picks it.
    pub key: char,
    /// Its label.
    pub label: String,
    /// What it does; `None`: cancel.
    pub action: Option<A>,
}

impl<K, A: Clone> Confirm<K, A> {
    /// Moves the selection, or returns the index of the choice that the key picks.
    pub fn on_key(&mut self, key: KeyEvent) -> Option<usize> {
        let picked = match key.code {
            KeyCode::Enter => Some(self.selected),
            KeyCode::Esc => Some(0),
            KeyCode::Char(c) if !with_ctrl(key) => self.choices.iter().position(|choice| choice.key == c),
            _ => None,
        };
        if picked.is_none() {
            let last = self.choices.len().saturating_sub(1);
            self.selected = match key.code {
                KeyCode::Left | KeyCode::Up | KeyCode::BackTab => self.selected.saturating_sub(1),
                KeyCode::Right | KeyCode::Down | KeyCode::Tab => (self.selected + 1).min(last),
                _ => self.selected,
            };
        }
        picked
    }

    /// The action of a choice.
    pub fn action(&self, choice: usize) -> Option<A> {
        self.choices.get(choice).and_then(|choice| choice.action.clone())
    }

    /// Draws the dialog with a frame in the style of `role`.
    pub fn draw<T: Clone>(&self, cx: &DrawCtx<'_, T>, buf: &mut Buffer, role: Role) {
        let cells = usize::from(cx.screen.width.saturating_sub(8)).min(66);
        let mut lines: Vec<Line<'static>> = Vec::new();
        for (i, paragraph) in self.text.iter().enumerate() {
            let role = if i == 0 { Role::Strong } else { Role::Text };
            lines.extend(text::wrap(paragraph, cells).into_iter().map(|line| Line::from(cx.s(line, role))));
        }
        let choices = self.choices(cx);
        let wide = lines.iter().map(Line::width).max().unwrap_or(0).max(width(&choices)).min(cells);
        let size = (wide as u16, lines.len() as u16 + 2);
        let inner = cx.popup(buf, size, role, &self.title, "");
        Paragraph::new(lines).render(Rect { height: inner.height.saturating_sub(2), ..inner }, buf);
        let row = inner.height.saturating_sub(1);
        let mut x = inner.right().saturating_sub(width(&choices) as u16);
        for choice in &self.choices {
            let wide = text::width(&choice.label) as u16 + 4;
            let place = Rect { x, y: inner.y + row, width: wide, height: 1 }.intersection(inner);
            cx.target(place, Target::Key(KeyEvent::from(KeyCode::Char(choice.key))));
            x = x.saturating_add(wide + 2);
        }
        put(buf, inner, usize::from(row), Line::from(choices).right_aligned());
    }

    /// The choices in one line: `[n cancel]  y stop`.
    pub fn choices<T: Clone>(&self, cx: &DrawCtx<'_, T>) -> Vec<Span<'static>> {
        let mut spans = Vec::new();
        for (i, choice) in self.choices.iter().enumerate() {
            if i > 0 {
                spans.push(Span::raw("  "));
            }
            if i == self.selected {
                spans.push(Span::styled(format!("[{} {}]", choice.key, choice.label), cx.theme.chosen));
            } else {
                spans.push(cx.s(format!(" {}", choice.key), Role::Accent));
                spans.push(cx.s(format!(" {} ", choice.label), Role::Text));
            }
        }
        spans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confirm_defaults_to_cancel_and_letters_pick() {
        let choice = |key, action| Choice { key, label: String::new(), action };
        let choices = vec![choice('n', None), choice('y', Some(7))];
        let mut confirm = Confirm { kind: (), title: String::new(), text: Vec::new(), choices, selected: 0 };
        let key = |code| KeyEvent::from(code);
        assert_eq!(confirm.on_key(key(KeyCode::Enter)), Some(0));
        assert_eq!(confirm.on_key(key(KeyCode::Char('y'))), Some(1));
        assert_eq!(confirm.on_key(key(KeyCode::Right)), None);
        assert_eq!(confirm.on_key(key(KeyCode::Enter)), Some(1));
        assert_eq!(confirm.on_key(key(KeyCode::Esc)), Some(0));
        assert_eq!((confirm.action(0), confirm.action(1)), (None, Some(7)));
    }
}
