//! Draws the help page: a filter line, key bindings by scope, and terms with their meanings.

use crate::draw::Target;
use crate::draw::{DrawCtx, put};
use crate::text;
use crate::theme::Role;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// Cells of a term and the gap behind it.
const TERM: usize = 17;
/// Cells of a binding's keys, its mark included.
const KEYS: usize = 15;

/// A key binding on the help page.
pub struct HelpEntry {
    /// Heading of the group that it belongs to.
    pub scope: &'static str,
    /// Its keys, as people write them.
    pub keys: String,
    /// What it does.
    pub long: &'static str,
    /// Why it is disabled.
    pub disabled: Option<&'static str>,
}

/// What the help page shows.
pub struct HelpPage<'a> {
    /// What was typed.
    pub filter: &'a str,
    /// Selected entry: bindings first, then terms.
    pub selected: usize,
    /// Bindings that match.
    pub entries: &'a [HelpEntry],
    /// Terms that match, with their meanings.
    pub terms: &'a [(&'static str, String)],
    /// A legend below the list, at most three lines.
    pub legend: &'a dyn Fn(usize) -> Vec<String>,
}

/// A line of the page, and the entry that starts on it.
type HelpRow = (Option<usize>, Line<'static>);

fn mark<T: Clone>(cx: &DrawCtx<'_, T>, chosen: bool) -> Span<'static> {
    cx.s(if chosen { cx.glyphs().pick("▸ ", "> ") } else { "  " }, Role::Accent)
}

fn binding_rows<T: Clone>(cx: &DrawCtx<'_, T>, page: &HelpPage<'_>, cells: usize) -> Vec<HelpRow> {
    let mut rows: Vec<HelpRow> = Vec::new();
    let mut scope = None;
    for (i, entry) in page.entries.iter().enumerate() {
        if scope != Some(entry.scope) {
            rows.extend(scope.is_some().then(|| (None, Line::default())));
            scope = Some(entry.scope);
            rows.push((None, Line::from(cx.s(entry.scope, Role::Accent))));
        }
        let chosen = i == page.selected;
        let text = match entry.disabled {
            Some(reason) => format!("{} ({reason})", entry.long),
            None => entry.long.to_string(),
        };
        let role = match (entry.disabled, chosen) {
            (Some(_), _) => Role::Dim,
            (None, true) => Role::Strong,
            (None, false) => Role::Text,
        };
        // The selected entry shows its whole text, on further lines if needed.
        let room = cells.saturating_sub(KEYS);
        let mut parts = if chosen { text::wrap(&text, room) } else { vec![cx.cut(&text, room)] }.into_iter();
        let keys = cx.left(&entry.keys, KEYS - 2);
        let keys = cx.s(keys, if entry.disabled.is_some() { Role::Dim } else { Role::Accent });
        let first = vec![mark(cx, chosen), keys, cx.s(parts.next().unwrap_or_default(), role)];
        rows.push((Some(i), Line::from(first)));
        rows.extend(parts.map(|part| (None, Line::from(cx.s(format!("{}{part}", " ".repeat(KEYS)), role)))));
    }
    rows
}

fn term_rows<T: Clone>(cx: &DrawCtx<'_, T>, page: &HelpPage<'_>, cells: usize, rows: &mut Vec<HelpRow>) {
    for (i, (term, meaning)) in page.terms.iter().enumerate() {
        if i == 0 {
            let gap = (!rows.is_empty()).then(|| (None, Line::default()));
            rows.extend(gap);
            rows.push((None, Line::from(cx.s("terms", Role::Accent))));
        }
        let entry = page.entries.len() + i;
        let chosen = entry == page.selected;
        let role = if chosen { Role::Strong } else { Role::Text };
        for (part, text) in text::wrap(meaning, cells.saturating_sub(TERM)).into_iter().enumerate() {
            let is_first = part == 0;
            let term = if is_first { *term } else { "" };
            let line = vec![
                mark(cx, chosen && is_first),
                cx.s(cx.left(term, TERM - 2), Role::Accent),
                cx.s(text, role),
            ];
            rows.push((Some(entry).filter(|_| is_first), Line::from(line)));
        }
    }
}

/// Draws the page; each entry is a [`Target::Row`].
pub fn draw<T: Clone>(cx: &DrawCtx<'_, T>, buf: &mut Buffer, page: &HelpPage<'_>) {
    let cells = usize::from(cx.screen.width.saturating_sub(6)).min(86);
    let mut rows = binding_rows(cx, page, cells);
    term_rows(cx, page, cells, &mut rows);
    let size = (cells as u16, (rows.len() + 4).max(16) as u16);
    let inner = cx.popup(buf, size, Role::Accent, "help", "type to filter, enter runs, esc closes");
    let typed = vec![cx.s("filter: ", Role::Dim), cx.s(page.filter, Role::Strong), cx.caret()];
    put(buf, inner, 0, Line::from(typed));
    let legend = (page.legend)(usize::from(inner.width));
    let below = legend.len().min(3);
    let list = Rect { y: inner.y + 1, height: inner.height.saturating_sub(1 + below as u16), ..inner };
    let height = usize::from(list.height);
    let at = rows.iter().position(|(i, _)| *i == Some(page.selected)).unwrap_or(0);
    let top = (at + 3).saturating_sub(height).min(rows.len().saturating_sub(height));
    if page.entries.is_empty() && page.terms.is_empty() {
        put(buf, list, 0, Line::from(cx.s("no matching key or term", Role::Dim)));
    }
    for (row, (entry, line)) in rows.into_iter().skip(top).take(height).enumerate() {
        if let Some(entry) = entry {
            cx.target(Rect { y: list.y + row as u16, height: 1, ..list }, Target::Row(entry));
        }
        put(buf, list, row, line);
    }
    let start = usize::from(inner.height).saturating_sub(below);
    for (i, line) in legend.into_iter().take(below).enumerate() {
        put(buf, inner, start + i, Line::from(Span::styled(line, cx.theme.dim)));
    }
}
