//! Short messages above the footer.

use crate::text;
use crate::theme::Role;
use crate::widgets::{Ctx, put};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Clear, Widget};

/// Draws those that have not expired, the newest lowest.
pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let screen = ctx.geo.area;
    let live = ctx.view.toasts.iter().rev().filter(|toast| toast.until > ctx.live_now);
    for (i, toast) in live.enumerate() {
        let Some(y) = screen.bottom().checked_sub(2 + i as u16).filter(|y| *y >= screen.y) else { break };
        let sign = match toast.role {
            Role::Good | Role::Warn | Role::Bad => format!(" {}", ctx.glyphs().tone(toast.role)),
            _ => String::new(),
        };
        let text = format!("{sign} {} ", ctx.cut(&toast.text, usize::from(screen.width.saturating_sub(6))));
        let wide = (text::width(&text) as u16).min(screen.width);
        let area =
            Rect { x: screen.right().saturating_sub(wide + 1).max(screen.x), y, width: wide, height: 1 };
        let area = area.intersection(screen);
        Clear.render(area, buf);
        let style = ctx.theme.style(toast.role).add_modifier(ratatui::style::Modifier::REVERSED);
        put(buf, area, 0, Line::styled(text, style));
    }
}
