//! The line on which a time is typed.

use crate::theme::Role;
use crate::time::time_of_day;
use crate::widgets::{Ctx, frame, put};
use ratatui::buffer::Buffer;
use ratatui::text::Line;

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer, input: &str) {
    let inner = frame::popup(ctx, buf, (58, 3), Role::Accent, "go to a time", "enter goes, esc closes");
    let typed = vec![
        ctx.s("> ", Role::Accent),
        ctx.s(input, Role::Strong),
        ctx.s(ctx.glyphs().pick("▏", "_"), Role::Accent),
    ];
    put(buf, inner, 0, Line::from(typed));
    put(buf, inner, 1, Line::from(ctx.s("03:12   03:12:44   -5m   +30s   -1h30m   start   end", Role::Dim)));
    if let Some(cursor) = &ctx.view.moment.cursor {
        let clock = |at| time_of_day(cursor.wall_time(at), ctx.view.chart.utc_offset_s);
        let reach = format!("the record reaches from {} to {}", clock(cursor.start), clock(cursor.end));
        put(buf, inner, 2, Line::from(ctx.s(reach, Role::Dim)));
    }
}
