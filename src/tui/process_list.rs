//! Draws the list of processes on a host, for the run screen and home.

use rankdeck_kit::{DrawCtx, Role, Target, put, text};
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

/// A row of the list: a process, or one of its descendants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessRow {
    /// Index of the process that the row belongs to.
    pub process: usize,
    /// It is a descendant of that process.
    pub is_descendant: bool,
    pub pid: u32,
    pub user: String,
    pub gpus: String,
    pub memory: String,
    /// Command, or name and state.
    pub what: String,
    pub role: Role,
}

/// Draws the list with the rows of process `selected` visible. Each row is a [`Target::Row`] of its process.
pub fn draw<T: Clone>(
    cx: &DrawCtx<'_, T>,
    buf: &mut Buffer,
    (title, empty): (&str, &str),
    rows: &[ProcessRow],
    selected: usize,
) {
    let cells = usize::from(cx.screen.width.saturating_sub(8)).min(110);
    let height = usize::from(cx.screen.height.saturating_sub(6)).max(1);
    // All rows of the selected process, as far as there is room; its first row in any case.
    let is_selected = |row: &ProcessRow| row.process == selected;
    let top = rows.iter().position(is_selected).unwrap_or(0);
    let end = rows.iter().rposition(is_selected).map_or(0, |last| last + 1);
    let first = end.saturating_sub(height).min(top);
    let inner =
        cx.popup(buf, (cells as u16, rows.len().clamp(1, height) as u16 + 1), Role::Accent, title, "");
    let user_cells = rows.iter().map(|row| text::width(&row.user)).max().unwrap_or(0).clamp(4, 12);
    let columns = |pid: &str, user: &str, gpus: &str, memory: &str, what: &str| {
        let line = format!("{pid:>8} {} {gpus:>6} {memory:>6}  {what}", cx.left(user, user_cells));
        cx.cut(&line, cells.saturating_sub(2))
    };
    let head = columns("PID", "USER", "GPU", "MEMORY", "WHAT");
    put(buf, inner, 0, Line::from(cx.s(format!("  {head}"), Role::Dim)));
    if rows.is_empty() {
        put(buf, inner, 1, Line::from(cx.s(empty, Role::Dim)));
    }
    let list = Rect { y: inner.y + 1, height: inner.height.saturating_sub(1), ..inner };
    for (i, row) in rows.iter().skip(first).take(usize::from(list.height)).enumerate() {
        cx.target(Rect { y: list.y + i as u16, height: 1, ..list }, Target::Row(row.process));
        let is_current = row.process == selected && !row.is_descendant;
        let mark = if is_current { cx.glyphs().pick("▸", ">") } else { " " };
        let role = if is_current { Role::Accent } else { row.role };
        let (user, what) = (words::clean(&row.user), words::clean(&row.what));
        let line = columns(&row.pid.to_string(), &user, &row.gpus, &row.memory, &what);
        put(buf, list, i, Line::from(cx.s(format!("{mark} {line}"), role)));
    }
}
