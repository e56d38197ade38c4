//! The processes of a host: its ranks, and what else is on its GPUs.

use crate::overlays::hosts::target_rows;
use crate::reach::{self, Process};
use crate::text;
use crate::theme::Role;
use crate::widgets::{Ctx, frame, put};
use rankdeck_proto::process::ProcessName;
use rankdeck_types::ids::NodeRank;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::text::Line;

/// The marked row.
pub fn row_of(all: &[Process], selected: Option<ProcessName>) -> usize {
    all.iter().position(|process| Some(process.name) == selected).unwrap_or(0)
}

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer, node: NodeRank, selected: Option<ProcessName>) {
    let all = reach::of_host(ctx.live, node);
    let cells = usize::from(ctx.geo.area.width.saturating_sub(8)).min(110);
    let height = usize::from(ctx.geo.area.height.saturating_sub(6)).max(1);
    let host = ctx.live.hosts.get(node.index()).map_or("", |host| host.name.as_str());
    let at = row_of(&all, selected);
    let first = (at + 1).saturating_sub(height);
    let rows = all.len().clamp(1, height);
    let size = (cells as u16, rows as u16 + 1);
    let inner = frame::popup(ctx, buf, size, Role::Accent, &format!("processes of {host}"), "");
    let whose = all.iter().map(|process| text::width(&process.user)).max().unwrap_or(0).clamp(4, 12);
    let head = format!(
        "  {:>8} {} {:>6} {:>6}  {}",
        "PID",
        text::left("USER", whose, ctx.glyphs()),
        "GPU",
        "MEMORY",
        "WHAT"
    );
    put(buf, inner, 0, Line::from(ctx.s(ctx.cut(&head, cells), Role::Dim)));
    if all.is_empty() {
        put(buf, inner, 1, Line::from(ctx.s("no process is known here", Role::Dim)));
    }
    let list = ratatui::layout::Rect { y: inner.y + 1, height: inner.height.saturating_sub(1), ..inner };
    target_rows(ctx, list, first, all.len().saturating_sub(first).min(height));
    for (i, process) in all.iter().enumerate().skip(first).take(usize::from(list.height)) {
        let mark = if i == at { ctx.glyphs().pick("▸", ">") } else { " " };
        let gpus: Vec<String> = process.gpus.iter().map(u32::to_string).collect();
        let gpus = if gpus.is_empty() { text::NONE.to_owned() } else { gpus.join(",") };
        let memory =
            if process.gpus.is_empty() { text::NONE.to_owned() } else { words::bytes(process.memory) };
        let user = text::left(&process.user, whose, ctx.glyphs());
        let line =
            format!("{mark} {:>8} {user} {gpus:>6} {memory:>6}  {}", process.name.pid, process.command);
        let role = match process.own {
            _ if i == at => Role::Accent,
            true => Role::Text,
            false => Role::Dim,
        };
        put(buf, list, i - first, Line::from(ctx.s(ctx.cut(&line, cells), role)));
    }
}
