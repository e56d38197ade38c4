//! The help page: every key from the table and the words of the screen, filterable; Enter runs.

use crate::glossary;
use crate::keys;
use crate::keys::Scope;
use crate::ranks;
use crate::target::Target;
use crate::text;
use crate::theme::{Glyphs, Role};
use crate::widgets::{Ctx, frame, put};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// Cells of a word and the gap behind it.
const WORD: usize = 17;

/// A line of the page, and the entry that it begins.
type Row = (Option<usize>, Line<'static>);

/// Words and their meanings, whole, behind `before` other entries.
fn word_rows(
    ctx: &Ctx<'_>,
    words: &[glossary::Word],
    (before, selected): (usize, usize),
    cells: usize,
    rows: &mut Vec<Row>,
) {
    let glyphs = ctx.glyphs();
    for (i, (word, meaning)) in words.iter().enumerate() {
        if i == 0 {
            let gap = (!rows.is_empty()).then(|| (None, Line::default()));
            rows.extend(gap);
            rows.push((None, Line::from(ctx.s("words", Role::Accent))));
        }
        let entry = before + i;
        let chosen = entry == selected;
        let mark = if chosen { glyphs.pick("▸ ", "> ") } else { "  " };
        let role = if chosen { Role::Strong } else { Role::Text };
        let meaning = meaning.replace('≠', glyphs.pick("≠", "!="));
        for (part, text) in text::wrap(&meaning, cells.saturating_sub(WORD)).into_iter().enumerate() {
            let (mark, word) = if part == 0 { (mark, *word) } else { ("  ", "") };
            let line = vec![
                ctx.s(mark, Role::Accent),
                ctx.s(text::left(word, WORD - 2, glyphs), Role::Accent),
                ctx.s(text, role),
            ];
            rows.push((Some(entry).filter(|_| part == 0), Line::from(line)));
        }
    }
}

/// What the letters of states mean; a letter stays with its word.
fn letters(cells: usize) -> Vec<String> {
    let mut lines = vec!["states:".to_owned()];
    for pair in ranks::LETTERS.split("  ") {
        match lines.last_mut() {
            Some(line) if text::width(line) + 2 + text::width(pair) <= cells => {
                line.push_str(if line.ends_with(':') { " " } else { "  " });
                line.push_str(pair);
            }
            _ => lines.push(pair.to_owned()),
        }
    }
    lines
}

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer, filter: &str, selected: usize) {
    let entries = keys::help(ctx.view, filter, Glyphs::Ascii);
    let words = glossary::matching(filter);
    let selected = selected.min((entries.len() + words.len()).saturating_sub(1));
    let mut rows: Vec<Row> = Vec::new();
    let mut scope: Option<Scope> = None;
    let wide = usize::from(ctx.geo.area.width.saturating_sub(6)).min(86);
    for (i, binding) in entries.iter().enumerate() {
        if scope != Some(binding.scope) {
            if scope.is_some() {
                rows.push((None, Line::default()));
            }
            scope = Some(binding.scope);
            rows.push((None, Line::from(ctx.s(binding.scope.name(), Role::Accent))));
        }
        let names: Vec<String> =
            ctx.view.steering.keymap.of(binding).iter().map(|key| keys::name(*key, ctx.glyphs())).collect();
        let reason = (binding.disabled)(ctx.live, ctx.view);
        let chosen = i == selected;
        let mark = if chosen { ctx.glyphs().pick("▸ ", "> ") } else { "  " };
        let text = match reason {
            Some(reason) => format!("{} ({reason})", binding.long),
            None => binding.long.to_string(),
        };
        let role = match (reason, chosen) {
            (Some(_), _) => Role::Dim,
            (None, true) => Role::Strong,
            (None, false) => Role::Text,
        };
        // The entry that is chosen says everything, on further lines where it must.
        let room = wide.saturating_sub(15);
        let mut parts = if chosen { text::wrap(&text, room) } else { vec![ctx.cut(&text, room)] }.into_iter();
        rows.push((
            Some(i),
            Line::from(vec![
                ctx.s(mark, Role::Accent),
                ctx.s(
                    text::left(&names.join(" "), 13, ctx.glyphs()),
                    if reason.is_some() { Role::Dim } else { Role::Accent },
                ),
                ctx.s(parts.next().unwrap_or_default(), role),
            ]),
        ));
        rows.extend(parts.map(|part| (None, Line::from(ctx.s(format!("{}{part}", " ".repeat(15)), role)))));
    }
    word_rows(ctx, &words, (entries.len(), selected), wide, &mut rows);
    let size = (wide as u16, (rows.len() + 4).max(16) as u16);
    let inner = frame::popup(ctx, buf, size, Role::Accent, "help", "type to filter, enter runs, esc closes");
    let glyphs = ctx.glyphs();
    let typed = if filter.is_empty() {
        vec![ctx.s("filter: ", Role::Dim), ctx.s(glyphs.pick("▏", "_"), Role::Accent)]
    } else {
        vec![
            ctx.s("filter: ", Role::Dim),
            ctx.s(filter, Role::Strong),
            ctx.s(glyphs.pick("▏", "_"), Role::Accent),
        ]
    };
    put(buf, inner, 0, Line::from(typed));
    let letters = letters(usize::from(inner.width));
    let below = letters.len().min(3);
    let list = Rect { y: inner.y + 1, height: inner.height.saturating_sub(1 + below as u16), ..inner };
    let height = usize::from(list.height);
    let at = rows.iter().position(|(i, _)| *i == Some(selected)).unwrap_or(0);
    let top = (at + 3).saturating_sub(height).min(rows.len().saturating_sub(height));
    if entries.is_empty() && words.is_empty() {
        put(buf, list, 0, Line::from(ctx.s("no key does that, and no word here means it", Role::Dim)));
    }
    for (row, (entry, line)) in rows.into_iter().skip(top).take(height).enumerate() {
        if let Some(entry) = entry {
            ctx.target(Rect { y: list.y + row as u16, height: 1, ..list }, Target::Row(entry));
        }
        put(buf, list, row, line);
    }
    let start = usize::from(inner.height).saturating_sub(below);
    for (i, line) in letters.into_iter().take(below).enumerate() {
        put(buf, inner, start + i, Line::from(Span::styled(line, ctx.theme.dim)));
    }
}
