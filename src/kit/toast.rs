//! Short messages above the footer.

use crate::draw::{DrawCtx, put};
use crate::text;
use crate::theme::Role;
use rankdeck_types::ids::Timestamp;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::Line;
use ratatui::widgets::{Clear, Widget};
use std::ops::Deref;

/// Most toasts at once.
pub const TOASTS: usize = 3;
/// How long a toast stays, ms.
pub const TOAST_MS: u64 = 4000;
/// A toast without an end yet: it gets one when the clock that counts is known.
const UNDATED: Timestamp = Timestamp(u64::MAX);

/// A short message.
#[derive(Debug, Clone, PartialEq)]
pub struct Toast {
    /// What it reads.
    pub text: String,
    /// Its severity.
    pub role: Role,
    /// When it disappears.
    pub until: Timestamp,
}

/// The messages that are shown, oldest first; at most [`TOASTS`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Toasts(Vec<Toast>);

impl Toasts {
    /// Shows a message from `now` on; `None`: from the next [`Toasts::expire`] on.
    pub fn push(&mut self, text: impl Into<String>, role: Role, now: Option<Timestamp>) {
        let text = text.into();
        self.0.retain(|toast| toast.text != text);
        if self.0.len() == TOASTS {
            self.0.remove(0);
        }
        let until = now.map_or(UNDATED, |now| now.plus(TOAST_MS));
        self.0.push(Toast { text, role, until });
    }

    /// Drops toasts that have expired at `now`; true when the screen changed.
    pub fn expire(&mut self, now: Timestamp) -> bool {
        let before = self.0.len();
        for toast in self.0.iter_mut().filter(|toast| toast.until == UNDATED) {
            toast.until = now.plus(TOAST_MS);
        }
        self.0.retain(|toast| toast.until > now);
        self.0.len() != before
    }

    /// When the next toast disappears.
    pub fn next_expiry(&self) -> Option<Timestamp> {
        self.0.iter().map(|toast| toast.until).filter(|until| *until != UNDATED).min()
    }

    /// Drops all.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Draws those that have not expired at `cx.now`, the newest lowest.
    pub fn draw<T: Clone>(&self, cx: &DrawCtx<'_, T>, buf: &mut Buffer) {
        let screen = cx.screen;
        let visible = self.0.iter().rev().filter(|toast| toast.until > cx.now);
        for (i, toast) in visible.enumerate() {
            let Some(y) = screen.bottom().checked_sub(2 + i as u16).filter(|y| *y >= screen.y) else { break };
            let sign = match toast.role {
                Role::Good | Role::Warn | Role::Bad => format!(" {}", cx.glyphs().tone(toast.role)),
                _ => String::new(),
            };
            let text =
                format!("{sign} {} ", cx.cut(&toast.text, usize::from(screen.width.saturating_sub(6))));
            let wide = (text::width(&text) as u16).min(screen.width);
            let area =
                Rect { x: screen.right().saturating_sub(wide + 1).max(screen.x), y, width: wide, height: 1 };
            let area = area.intersection(screen);
            Clear.render(area, buf);
            let style = cx.theme.style(toast.role).add_modifier(Modifier::REVERSED);
            put(buf, area, 0, Line::styled(text, style));
        }
    }
}

impl Deref for Toasts {
    type Target = [Toast];

    fn deref(&self) -> &[Toast] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toasts_are_bounded_unique_and_expire() {
        let mut toasts = Toasts::default();
        for text in ["a", "b", "c", "d", "b"] {
            toasts.push(text, Role::Dim, Some(Timestamp(0)));
        }
        let texts: Vec<&str> = toasts.iter().map(|toast| toast.text.as_str()).collect();
        assert_eq!(texts, ["c", "d", "b"]);
        assert!(!toasts.expire(Timestamp(TOAST_MS - 1)) && toasts.expire(Timestamp(TOAST_MS)));
        toasts.push("undated", Role::Dim, None);
        assert_eq!(toasts.next_expiry(), None);
        assert!(!toasts.expire(Timestamp(10)));
        assert_eq!(toasts.next_expiry(), Some(Timestamp(10 + TOAST_MS)));
    }
}
