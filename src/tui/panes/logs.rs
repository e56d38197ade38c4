//! Log lines: merged by their times, or of one rank.

use crate::log_filter::{Level, LogFilter};
use crate::logs::{Count, LogLine, Query};
use crate::ranks;
use crate::state::{LogScope, Pane};
use crate::text;
use crate::theme::Role;
use crate::time::time_of_day;
use crate::widgets::{Ctx, frame, put};
use rankdeck_types::ids::Generation;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

/// Cells of a time and the gap behind it.
const TIME: usize = 9;
/// Width from which on times are shown.
const TIMES_FROM: usize = 64;

/// Draws the pane.
pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let area = ctx.geo.pane(Pane::Log);
    if area.is_empty() {
        return;
    }
    let view = ctx.view;
    let query = Query::new(ctx.model, view);
    let whose = match view.log.scope {
        LogScope::Selected => match ranks::selected(ctx.model, view) {
            Some(rank) => format!("rank {} on {}", rank.rank, rank.host),
            None => "no rank".into(),
        },
        LogScope::Merged if view.ranks.marked.is_empty() => "all ranks".into(),
        LogScope::Merged => format!("{} marked", view.ranks.marked.len()),
    };
    let count = query.count(view.log.hit);
    let info = info(ctx, &query, count);
    let inner = frame::pane(ctx, buf, area, Pane::Log, frame::title(ctx, Pane::Log, "log", whose), info);
    let height = usize::from(inner.height);
    let lines = query.before(view.log.at, height);
    if lines.is_empty() {
        let text = if count.all > 0 { "no line matches; esc shows all" } else { "no lines yet" };
        put(buf, inner, 0, Line::from(ctx.s(text, Role::Dim)));
        return;
    }
    let room = usize::from(inner.width);
    let columns = Columns {
        rank: match view.log.scope {
            LogScope::Merged => ctx.model.ranks.last().map_or(1, |rank| rank.rank.to_string().len()),
            LogScope::Selected => 0,
        },
        time: view.log.times && room >= TIMES_FROM && lines.iter().any(|line| line.time_ms > 0),
    };
    let cells = room.saturating_sub(columns.cells());
    let mut rows: Vec<Line<'static>> = Vec::new();
    let mut below: Option<Generation> = None;
    for line in &lines {
        if below.is_some_and(|below| below != line.generation) && rows.len() < height {
            rows.push(divider(ctx, below.unwrap_or_default(), room));
        }
        below = Some(line.generation);
        let mut parts = pieces(ctx, line, cells);
        while rows.len() < height
            && let Some(part) = parts.pop()
        {
            rows.push(render(ctx, line, &part, parts.is_empty(), columns, &query.filter));
        }
    }
    // Short logs stand at the top; long ones end at the bottom.
    for (row, line) in rows.into_iter().rev().enumerate() {
        put(buf, inner, row, line);
    }
}

/// What stands in the frame: pattern, lines that match, level, where.
fn info(ctx: &Ctx<'_>, query: &Query<'_>, count: Count) -> Vec<Span<'static>> {
    let view = ctx.view;
    let mut info = Vec::new();
    let typing = view.editing == Some(Pane::Log);
    let number = |n: usize| words::count(n as u64);
    let searches = !query.filter.is_empty() || typing;
    if searches {
        info.push(ctx.s(format!("/{}", ctx.cut(&view.log.filter, 24)), Role::Accent));
        if typing {
            info.push(ctx.s(ctx.glyphs().pick("▏", "_"), Role::Accent));
        }
        if query.filter.literal {
            info.push(ctx.s(" as text", Role::Dim));
        }
    }
    let some = searches || count.kept < count.all;
    if view.log.whole && searches {
        let which = view.log.hit.map_or(String::new(), |_| format!("{} of ", number(count.upto)));
        info.push(ctx.s(format!("  match {which}{} in ", number(count.kept)), Role::Text));
    } else if some {
        let gap = if searches { "  " } else { "" };
        info.push(ctx.s(format!("{gap}{} of ", number(count.kept)), Role::Text));
    }
    info.push(ctx.s(format!("{} lines", number(count.all)), Role::Dim));
    if count.cut {
        info.push(ctx.s("  only the newest were looked at", Role::Warn));
    }
    if view.log.level != Level::Debug {
        info.push(ctx.s(format!("  {}", view.log.level.name()), Role::Warn));
    }
    let dropped: u64 = query.sources.iter().map(|rank| rank.log.dropped).sum();
    if dropped > 0 {
        info.push(ctx.s(format!("  {} older not held", text::count_in(dropped, 7)), Role::Dim));
    }
    match view.log.at {
        None => info.push(ctx.s("  following", Role::Good)),
        Some(_) => info.push(ctx.s("  scrolled; G follows", Role::Warn)),
    }
    info
}

/// What stands before each line.
#[derive(Clone, Copy)]
struct Columns {
    /// Cells of the rank; 0: one rank is shown.
    rank: usize,
    time: bool,
}

impl Columns {
    fn cells(self) -> usize {
        let rank = if self.rank > 0 { self.rank + 3 } else { 0 };
        rank + if self.time { TIME } else { 0 }
    }
}

/// Below it, another generation begins.
fn divider(ctx: &Ctx<'_>, generation: Generation, cells: usize) -> Line<'static> {
    let dash = ctx.glyphs().pick("─", "-");
    let text = format!("{} generation {generation} ", dash.repeat(2));
    let rest = dash.repeat(cells.saturating_sub(text.chars().count()));
    Line::from(ctx.s(format!("{text}{rest}"), Role::Dim))
}

/// The pieces of a line: one that is cut, or as many as wrapping makes (bounded).
fn pieces(ctx: &Ctx<'_>, line: &LogLine<'_>, cells: usize) -> Vec<String> {
    let text = words::clean_output(line.text);
    if ctx.view.log.wrap {
        let mut parts = text::wrap(&text, cells);
        parts.truncate(64);
        parts
    } else {
        let behind = behind(ctx, line).chars().count();
        vec![ctx.cut(&text, cells.saturating_sub(behind))]
    }
}

/// What stands behind a line that stands for several.
fn behind(ctx: &Ctx<'_>, line: &LogLine<'_>) -> String {
    let mut text = String::new();
    if line.hidden > 0 {
        text = format!("  {} {} lines", ctx.glyphs().pick("…", "..."), line.hidden);
    }
    if line.count > 1 {
        text = format!("{text}  {}{}", ctx.glyphs().pick("×", "x"), line.count);
    }
    if !line.others.is_empty() {
        text = format!("{text} ranks {}", ctx.cut(&line.ranks(), 20));
    }
    text
}

fn render(
    ctx: &Ctx<'_>,
    line: &LogLine<'_>,
    part: &str,
    first: bool,
    columns: Columns,
    filter: &LogFilter,
) -> Line<'static> {
    let mut spans = Vec::new();
    let is_hit = ctx.view.log.hit == Some(line.place);
    if columns.time {
        let clock = match (first, line.time_ms) {
            (true, 1..) => time_of_day(line.time_ms as f64 / 1000.0, ctx.view.chart.utc_offset_s),
            _ => " ".repeat(TIME - 1),
        };
        spans.push(ctx.s(format!("{clock} "), Role::Dim));
    }
    if columns.rank > 0 {
        let number = if first { line.rank.to_string() } else { String::new() };
        spans.push(ctx.s(text::right(&number, columns.rank, ctx.glyphs()), Role::Accent));
        spans.push(Span::styled(ctx.glyphs().pick(" │ ", " | "), ctx.theme.border));
    }
    let role = match line.level {
        Level::Error => Role::Bad,
        Level::Warn => Role::Warn,
        Level::Info => Role::Text,
        Level::Debug => Role::Dim,
    };
    let style = match is_hit {
        true => ctx.theme.style(role).add_modifier(Modifier::REVERSED),
        false => ctx.theme.style(role),
    };
    let mark = ctx.theme.style(Role::Accent).add_modifier(Modifier::UNDERLINED);
    let mark = if is_hit { mark.add_modifier(Modifier::REVERSED) } else { mark };
    let mut done = 0;
    for (from, to) in filter.marks(part) {
        spans.push(Span::styled(part[done..from].to_string(), style));
        spans.push(Span::styled(part[from..to].to_string(), mark));
        done = to;
    }
    spans.push(Span::styled(part[done..].to_string(), style));
    if first {
        let behind = behind(ctx, line);
        if !behind.is_empty() {
            spans.push(ctx.s(behind, Role::Accent));
        }
    }
    Line::from(spans)
}
