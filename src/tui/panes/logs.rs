//! Log lines: merged in the order of arrival, or of one rank.

use crate::logs;
use crate::logs::{LogFilter, LogLine};
use crate::ranks;
use crate::state::{LogScope, Pane};
use crate::text;
use crate::theme::Role;
use crate::widgets::{Ctx, frame, put};
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

/// Draws the pane.
pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let area = ctx.geo.log;
    if area.is_empty() {
        return;
    }
    let view = ctx.view;
    let sources = logs::sources(ctx.model, view);
    let filter = LogFilter::new(&view.log_filter);
    let whose = match view.log_scope {
        LogScope::Selected => match ranks::selected(ctx.model, view) {
            Some(rank) => format!("rank {} on {}", rank.rank, rank.host),
            None => "no rank".into(),
        },
        LogScope::Merged if view.marked.is_empty() => "all ranks".into(),
        LogScope::Merged => format!("{} marked", view.marked.len()),
    };
    let mut info = Vec::new();
    let (kept, all) = logs::count(&sources, &filter);
    if !filter.is_empty() || view.editing == Some(Pane::Log) {
        info.push(ctx.s(format!("/{}", ctx.cut(&view.log_filter, 24)), Role::Accent));
        if view.editing == Some(Pane::Log) {
            info.push(ctx.s(ctx.glyphs().pick("▏", "_"), Role::Accent));
        }
        info.push(ctx.s(format!("  {} of ", words::count(kept as u64)), Role::Text));
    }
    info.push(ctx.s(format!("{} lines", words::count(all as u64)), Role::Dim));
    let dropped: u64 = sources.iter().map(|rank| rank.log.dropped).sum();
    if dropped > 0 {
        info.push(ctx.s(format!("  {} older not held", text::count_in(dropped, 7)), Role::Dim));
    }
    match view.log_at {
        None => info.push(ctx.s("  following", Role::Good)),
        Some(_) => info.push(ctx.s("  scrolled; G follows", Role::Warn)),
    }
    let inner = frame::pane(ctx, buf, area, Pane::Log, frame::title(ctx, Pane::Log, "log", whose), info);
    let height = usize::from(inner.height);
    let lines = logs::before(&sources, &filter, view.log_at, height);
    if lines.is_empty() {
        let text = if all > 0 { "no line matches; esc clears the filter" } else { "no lines yet" };
        put(buf, inner, 0, Line::from(ctx.s(text, Role::Dim)));
        return;
    }
    let prefix = if view.log_scope == LogScope::Merged {
        ctx.model.ranks.last().map_or(1, |rank| rank.rank.to_string().len()) + 3
    } else {
        0
    };
    let cells = usize::from(inner.width).saturating_sub(prefix);
    let mut rows: Vec<Line<'static>> = Vec::new();
    for line in &lines {
        let mut parts = pieces(ctx, line, cells);
        while rows.len() < height
            && let Some(part) = parts.pop()
        {
            rows.push(render(ctx, line, &part, parts.is_empty(), prefix, &filter));
        }
    }
    // Short logs stand at the top; long ones end at the bottom.
    for (row, line) in rows.into_iter().rev().enumerate() {
        put(buf, inner, row, line);
    }
}

/// The pieces of a line: one that is cut, or as many as wrapping makes (bounded).
fn pieces(ctx: &Ctx<'_>, line: &LogLine<'_>, cells: usize) -> Vec<String> {
    let text = words::clean(line.text);
    if ctx.view.log_wrap {
        let mut parts = text::wrap(&text, cells);
        parts.truncate(64);
        parts
    } else {
        vec![ctx.cut(&text, cells)]
    }
}

fn render(
    ctx: &Ctx<'_>,
    line: &LogLine<'_>,
    part: &str,
    first: bool,
    prefix: usize,
    filter: &LogFilter,
) -> Line<'static> {
    let mut spans = Vec::new();
    if prefix > 0 {
        let number = if first { line.rank.to_string() } else { String::new() };
        spans.push(ctx.s(text::right(&number, prefix - 3, ctx.glyphs()), Role::Accent));
        spans.push(Span::styled(ctx.glyphs().pick(" │ ", " | "), ctx.theme.border));
    }
    let role = gravity(line.text);
    match filter.highlight().and_then(|needle| find(part, needle)) {
        Some((from, to)) => {
            spans.push(ctx.s(&part[..from], role));
            let style = ctx.theme.style(Role::Accent).add_modifier(Modifier::UNDERLINED);
            spans.push(Span::styled(part[from..to].to_string(), style));
            spans.push(ctx.s(&part[to..], role));
        }
        None => spans.push(ctx.s(part, role)),
    }
    Line::from(spans)
}

/// Bytes of the first match of a lower-case needle, in any case.
fn find(text: &str, needle: &str) -> Option<(usize, usize)> {
    let lower = text.to_lowercase();
    // Lower-casing may change lengths outside of ASCII; then nothing is marked.
    if lower.len() != text.len() {
        return None;
    }
    let from = lower.find(needle)?;
    let to = from + needle.len();
    (text.is_char_boundary(from) && text.is_char_boundary(to)).then_some((from, to))
}

/// What common log formats say about a line.
fn gravity(text: &str) -> Role {
    let head: String = text.chars().take(60).collect::<String>().to_lowercase();
    if ["error", "panic", "traceback", "fatal", "critical"].iter().any(|word| head.contains(word)) {
        Role::Bad
    } else if head.contains("warn") {
        Role::Warn
    } else {
        Role::Text
    }
}
