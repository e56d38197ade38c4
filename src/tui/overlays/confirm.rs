//! A question of ours: targets, effect, answers; the marked answer is reversed and bracketed.

use crate::state::{Confirm, ConfirmKind};
use crate::target::Target;
use crate::text;
use crate::theme::Role;
use crate::widgets::{Ctx, frame, put, width};
use crossterm::event::{KeyCode, KeyEvent};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer, confirm: &Confirm) {
    let cells = usize::from(ctx.geo.area.width.saturating_sub(8)).min(66);
    let mut lines: Vec<Line<'static>> = Vec::new();
    for (i, paragraph) in confirm.text.iter().enumerate() {
        let role = if i == 0 { Role::Strong } else { Role::Text };
        lines.extend(text::wrap(paragraph, cells).into_iter().map(|line| Line::from(ctx.s(line, role))));
    }
    let answers = answers(ctx, confirm);
    let wide = lines.iter().map(Line::width).max().unwrap_or(0).max(width(&answers)).min(cells);
    let role = match confirm.kind {
        ConfirmKind::Kill => Role::Bad,
        ConfirmKind::Quit | ConfirmKind::Stop | ConfirmKind::Restart | ConfirmKind::Signal => Role::Warn,
    };
    let size = (wide as u16, lines.len() as u16 + 2);
    let inner = frame::popup(ctx, buf, size, role, &confirm.title, "");
    let text = usize::from(inner.height).saturating_sub(2);
    for (row, line) in lines.into_iter().take(text).enumerate() {
        put(buf, inner, row, line);
    }
    let row = inner.height.saturating_sub(1);
    let mut x = inner.right().saturating_sub(width(&answers) as u16);
    for choice in &confirm.choices {
        let wide = text::width(&choice.label) as u16 + 4;
        let place = Rect { x, y: inner.y + row, width: wide, height: 1 }.intersection(inner);
        ctx.target(place, Target::Key(KeyEvent::from(KeyCode::Char(choice.key))));
        x = x.saturating_add(wide + 2);
    }
    put(buf, inner, usize::from(row), Line::from(answers).right_aligned());
}

/// The answers in one line: `[n no, go back]  y yes, stop`.
pub fn answers(ctx: &Ctx<'_>, confirm: &Confirm) -> Vec<Span<'static>> {
    let mut spans = Vec::new();
    for (i, choice) in confirm.choices.iter().enumerate() {
        if i > 0 {
            spans.push(Span::raw("  "));
        }
        if i == confirm.selected {
            spans.push(Span::styled(format!("[{} {}]", choice.key, choice.label), ctx.theme.chosen));
        } else {
            spans.push(ctx.s(format!(" {}", choice.key), Role::Accent));
            spans.push(ctx.s(format!(" {} ", choice.label), Role::Text));
        }
    }
    spans
}
