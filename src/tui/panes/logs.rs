//! Log lines: merged by their times, or of one rank.

use super::found;
use crate::log_filter::{Level, LogFilter};
use crate::log_walk;
use crate::logs::{Count, LogLine, Query};
use crate::ranks;
use crate::state::{LogScope, Pane};
use crate::text;
use crate::theme::Role;
use crate::time::time_of_day;
use crate::widgets::{Ctx, frame, put, width};
use rankdeck_types::ids::Generation;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

/// Cells of a time and the gap behind it.
const TIME: usize = 9;
/// Width from which on times are shown.
const TIMES_FROM: usize = 64;

/// Cells of a frame's first row beside its title and what is said there.
const FRAME: usize = 9;
/// In place of lines that newer ones have pushed out.
const GONE: &str = "older lines are not held here; f holds a view, `rankdeck logs` reads the hosts' files";

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
    let position = log_walk::position(ctx.model, view);
    let search = view.log.found(ctx.model);
    let count = if search.is_some() { Count::default() } else { query.count(view.log.hit) };
    let title = frame::title(ctx, Pane::Log, "log", found::whose(ctx, whose));
    let room = usize::from(area.width).saturating_sub(width(&title) + FRAME);
    let info = match search {
        Some((files, search)) => found::info(ctx, files, search),
        None => info(ctx, &query, count, room),
    };
    let mut inner = frame::pane(ctx, buf, area, Pane::Log, title, info);
    if let Some((files, search)) = search {
        for note in found::notes(ctx, files, search) {
            put(buf, inner, 0, note);
            let used = inner.height.min(1);
            (inner.y, inner.height) = (inner.y + used, inner.height - used);
        }
    }
    let height = usize::from(inner.height);
    let lines = query.before(position.at, height);
    if lines.is_empty() {
        // What was found in files speaks for itself, in its notes.
        let text = if search.is_none() { why_empty(ctx, &query, count) } else { "" };
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
            let is_hit = position.hit == Some(line.place);
            rows.push(render(
                ctx,
                line,
                &part,
                Piece { first: parts.is_empty(), is_hit },
                columns,
                &query.filter,
            ));
        }
    }
    // Short logs stand at the top; long ones end at the bottom. Where the ring has lost what stood above, the
    // others stay where they are.
    let lost = view.log.at.is_some() && dropped(&query) > 0 && rows.len() < height;
    let top = if lost { height - rows.len() } else { 0 };
    if lost {
        put(buf, inner, top - 1, Line::from(ctx.s(GONE, Role::Warn)));
    }
    for (row, line) in rows.into_iter().rev().enumerate() {
        put(buf, inner, top + row, line);
    }
}

/// Lines that the ring has lost.
fn dropped(query: &Query<'_>) -> u64 {
    query.sources.iter().map(|rank| rank.log.dropped).sum()
}

/// Why no line is shown.
fn why_empty(ctx: &Ctx<'_>, query: &Query<'_>, count: Count) -> &'static str {
    match ctx.view.log.at {
        Some(_) if dropped(query) > 0 => GONE,
        _ if count.all > 0 => "no line that is held here matches; N looks in the hosts' files, esc shows all",
        _ => "no lines yet",
    }
}

/// What stands in the frame: pattern, lines that match, level, where; in few cells, what matters most of it.
fn info(ctx: &Ctx<'_>, query: &Query<'_>, count: Count, cells: usize) -> Vec<Span<'static>> {
    let view = ctx.view;
    let typing = view.editing == Some(Pane::Log);
    let searches = !query.filter.is_empty() || typing;
    let note = |holds: bool, text: String, role| if holds { vec![ctx.s(text, role)] } else { Vec::new() };
    let dropped = dropped(query);
    let (at, role) = match view.log.at {
        None => ("  following", Role::Good),
        Some(_) => ("  scrolled; G follows", Role::Warn),
    };
    let mut matching = if searches { pattern(ctx, query, typing) } else { Vec::new() };
    matching.extend(counted(ctx, count, searches));
    // What was lost is said as long as there is room.
    let mut parts = [
        (u8::MAX, matching),
        (4, note(count.cut, "  only the newest were looked at".into(), Role::Warn)),
        (2, note(view.log.level != Level::Debug, format!("  {}", view.log.level.name()), Role::Warn)),
        (
            0,
            note(
                view.log.shift > 0 && !view.log.wrap,
                format!("  from column {}", view.log.shift + 1),
                Role::Warn,
            ),
        ),
        (3, note(dropped > 0, format!("  {} older not held", text::count_in(dropped, 7)), Role::Dim)),
        (1, note(true, at.into(), role)),
    ];
    for least in 0..u8::MAX {
        let wide: usize = parts.iter().map(|(_, spans)| width(spans)).sum();
        if wide <= cells || parts.iter().all(|(worth, spans)| *worth == u8::MAX || spans.is_empty()) {
            break;
        }
        parts.iter_mut().filter(|(worth, _)| *worth == least).for_each(|(_, spans)| spans.clear());
    }
    parts.into_iter().flat_map(|(_, spans)| spans).collect()
}

/// The pattern, as it is typed.
fn pattern(ctx: &Ctx<'_>, query: &Query<'_>, typing: bool) -> Vec<Span<'static>> {
    let mut spans = vec![ctx.s(format!("/{}", ctx.cut(&ctx.view.log.filter, 24)), Role::Accent)];
    if typing {
        spans.push(ctx.s(ctx.glyphs().pick("▏", "_"), Role::Accent));
    }
    if query.filter.literal {
        spans.push(ctx.s(" as text", Role::Dim));
    }
    spans
}

/// How many lines there are, and how many of them match.
fn counted(ctx: &Ctx<'_>, count: Count, searches: bool) -> Vec<Span<'static>> {
    let number = |n: usize| words::count(n as u64);
    let mut spans = Vec::new();
    if ctx.view.log.whole && searches {
        let which = ctx.view.log.hit.map_or(String::new(), |_| format!("{} of ", number(count.upto)));
        spans.push(ctx.s(format!("  match {which}{} in ", number(count.kept)), Role::Text));
    } else if searches || count.kept < count.all {
        let gap = if searches { "  " } else { "" };
        spans.push(ctx.s(format!("{gap}{} of ", number(count.kept)), Role::Text));
    }
    spans.push(ctx.s(format!("{} lines", number(count.all)), Role::Dim));
    spans
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
        let text: String = text.chars().skip(ctx.view.log.shift).collect();
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

/// Which piece of a line is drawn.
#[derive(Clone, Copy)]
struct Piece {
    first: bool,
    /// Of the match that is looked at.
    is_hit: bool,
}

fn render(
    ctx: &Ctx<'_>,
    line: &LogLine<'_>,
    part: &str,
    Piece { first, is_hit }: Piece,
    columns: Columns,
    filter: &LogFilter,
) -> Line<'static> {
    let mut spans = Vec::new();
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
