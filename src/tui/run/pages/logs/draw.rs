//! Draws log lines, merged by their times or of one rank, and the state of a search in the hosts' files.

use crate::run::pages::PageDrawCtx;
use crate::run::pages::logs::lines::Level;
use crate::run::pages::logs::lines::{LineCount, LogLine, LogQuery};
use crate::run::pages::logs::{HostFiles, LogScope, LogsPage, Selection};
use crate::run::ranks;
use crate::run::staleness;
use crate::run::text_filter::TextFilter;
use crate::run::time::time_of_day;
use rankdeck_core::model::{RankModel, SearchResults, SearchState};
use rankdeck_kit::{Role, put, put_lines, text, width};
use rankdeck_types::ids::{Generation, WallTime};
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};
use std::ops::Deref;

/// Cells of a time and the gap behind it.
const TIME: usize = 9;
/// Width from which on times are shown.
const TIMES_FROM: usize = 64;
/// Cells of a frame's first row besides its title and notes.
const FRAME: usize = 9;
/// In place of lines that newer ones have pushed out.
const GONE: &str = "older lines were dropped; f freezes the view, `rankdeck logs` reads the hosts' files";
/// Most ranks whose unfinished lines are shown.
const LIVE_ROWS: usize = 4;
/// Most hosts whose gaps are listed.
const MOST_HOLES: usize = 3;
/// Cells from which on a long pattern has room.
const ROOMY: u16 = 100;

/// What the log is drawn with.
struct LogCtx<'a> {
    page: &'a LogsPage,
    ctx: &'a PageDrawCtx<'a>,
}

impl<'a> Deref for LogCtx<'a> {
    type Target = PageDrawCtx<'a>;

    fn deref(&self) -> &PageDrawCtx<'a> {
        self.ctx
    }
}

impl LogCtx<'_> {
    fn time_of_day(&self, time: WallTime) -> String {
        time_of_day(time, self.shared.style.utc_offset_s)
    }

    /// Whose lines are shown, for the title.
    fn whose(&self) -> String {
        match (self.page.scope, self.shared.marked.len()) {
            _ if self.page.back.is_some() => "all ranks".into(),
            (LogScope::Selected, _) => match self.rank.and_then(|rank| ranks::find(self.model, rank)) {
                Some(rank) => format!("rank {} on {}", rank.rank, rank.host),
                None => "no rank".into(),
            },
            (LogScope::Merged, 0) => "all ranks".into(),
            (LogScope::Merged, marked) => format!("{marked} marked"),
        }
    }
}

/// Draws the pane.
pub(super) fn draw(page: &LogsPage, ctx: &PageDrawCtx<'_>, buf: &mut Buffer) {
    let ctx = &LogCtx { page, ctx };
    let area = ctx.place.area();
    let whose = Selection { rank: ctx.rank, marked: &ctx.shared.marked };
    let query = LogQuery::new(page, ctx.model, whose);
    let position = page.position(ctx.model, whose);
    let search = page.found(ctx.model);
    let count = if search.is_some() { LineCount::default() } else { query.count(page.hit) };
    let title = ctx.title("log", ctx.whose());
    let room = usize::from(area.width).saturating_sub(width(&title) + FRAME);
    let info = match search {
        Some((files, search)) => search_info(ctx, files, search),
        None => info(ctx, &query, count, room),
    };
    let mut inner = ctx.pane(buf, area, title, info);
    if let Some((files, search)) = search {
        let notes = search_notes(ctx, files, search);
        let used = inner.height.min(notes.len() as u16);
        put_lines(buf, inner, notes);
        (inner.y, inner.height) = (inner.y + used, inner.height - used);
    }
    let height = usize::from(inner.height);
    let live = live_rows(ctx, &query, height);
    let lines = query.before(position.at, height.saturating_sub(live.len()));
    if lines.is_empty() && live.is_empty() {
        // Of a search in files, the notes give the reason.
        let text = if search.is_none() { why_empty(ctx, &query, count) } else { "" };
        put(buf, inner, 0, Line::from(ctx.s(text, Role::Dim)));
        return;
    }
    let room = usize::from(inner.width);
    let columns = LinePrefix {
        rank: match page.scope {
            LogScope::Merged => ctx.model.ranks.last().map_or(1, |rank| rank.rank.to_string().len()),
            LogScope::Selected => 0,
        },
        time: page.times && room >= TIMES_FROM && lines.iter().any(|line| line.time_ms > 0),
    };
    let cells = room.saturating_sub(columns.cells());
    let mut rows: Vec<Line<'static>> =
        live.iter().rev().map(|rank| live_line(ctx, rank, cells, columns)).collect();
    let mut below: Option<Generation> = None;
    for line in &lines {
        if below.is_some_and(|below| below != line.generation) && rows.len() < height {
            rows.push(divider(ctx, below.unwrap_or_default(), room));
        }
        below = Some(line.generation);
        let is_hit = position.hit == Some(line.place);
        let mut parts = pieces(ctx, line, cells);
        while rows.len() < height
            && let Some(part) = parts.pop()
        {
            let piece = Piece { first: parts.is_empty(), is_hit };
            rows.push(render(ctx, line, &part, piece, columns, &query.filter));
        }
    }
    // Short logs stand at the top; long ones end at the bottom. Where the ring has lost what stood above, the
    // others stay where they are.
    if page.at.is_some() && dropped(&query) > 0 && rows.len() < height {
        rows.push(Line::from(ctx.s(GONE, Role::Warn)));
        rows.resize_with(height, Line::default);
    }
    rows.reverse();
    put_lines(buf, inner, rows);
}

/// Ranks whose unfinished lines are shown below the newest lines.
fn live_rows<'a>(ctx: &'a LogCtx<'_>, query: &LogQuery<'_>, height: usize) -> Vec<&'a RankModel> {
    let page = ctx.page;
    let follows = page.at.is_none() && page.files.is_none() && page.back.is_none();
    if !follows || page.level != Level::Debug {
        return Vec::new();
    }
    let is_shown = |rank: &&RankModel| {
        let text = live_text(rank);
        !text.is_empty()
            && !staleness::is_past(ctx.model, rank, ctx.now)
            && query.sources.iter().any(|source| source.rank == rank.rank)
            && (query.filter.is_empty() || query.filter.keeps(text))
    };
    ctx.model.ranks.iter().filter(is_shown).take((height / 3).min(LIVE_ROWS)).collect()
}

fn live_text(rank: &RankModel) -> &str {
    rank.sample.as_ref().map_or("", |sample| sample.live.as_str())
}

/// An unfinished line, which is replaced in place.
fn live_line(ctx: &LogCtx<'_>, rank: &RankModel, cells: usize, columns: LinePrefix) -> Line<'static> {
    let mut spans = Vec::new();
    if columns.time {
        spans.push(ctx.s(format!("{:<TIME$}", "live"), Role::Accent));
    }
    if columns.rank > 0 {
        spans.push(ctx.s(text::right(&rank.rank.to_string(), columns.rank, ctx.glyphs()), Role::Accent));
        spans.push(Span::styled(ctx.glyphs().pick(" │ ", " | "), ctx.theme.border));
    }
    spans.push(ctx.s(ctx.cut(&words::clean_output(live_text(rank)), cells), Role::Text));
    Line::from(spans)
}

/// Lines that the ring has lost.
fn dropped(query: &LogQuery<'_>) -> u64 {
    query.sources.iter().map(|rank| rank.log.dropped).sum()
}

/// Why no line is shown.
fn why_empty(ctx: &LogCtx<'_>, query: &LogQuery<'_>, count: LineCount) -> &'static str {
    match ctx.page.at {
        Some(_) if dropped(query) > 0 => GONE,
        _ if count.all > 0 => "no match in this console; N searches the hosts' files, esc shows all",
        _ => "no lines yet",
    }
}

/// What stands in the frame: pattern, lines that match, level, where; in few cells, what matters most of it.
fn info(ctx: &LogCtx<'_>, query: &LogQuery<'_>, count: LineCount, cells: usize) -> Vec<Span<'static>> {
    let (page, typing) = (ctx.page, ctx.place.typing);
    let searches = !query.filter.is_empty() || typing;
    let note = |holds: bool, text: String, role| if holds { vec![ctx.s(text, role)] } else { Vec::new() };
    let dropped = dropped(query);
    let (at, role) = match page.at {
        None => ("  following", Role::Good),
        Some(_) => ("  scrolled; G follows", Role::Warn),
    };
    let mut matching = if searches { ctx.typed_filter(&page.filter, 24) } else { Vec::new() };
    if query.filter.literal {
        matching.push(ctx.s(" as text", Role::Dim));
    }
    matching.extend(counted(ctx, count, searches));
    // Losses are mentioned as long as there is room.
    let mut parts = [
        (u8::MAX, matching),
        (4, note(count.cut, "  only the newest were searched".into(), Role::Warn)),
        (2, note(page.level != Level::Debug, format!("  {}", page.level.name()), Role::Warn)),
        (0, note(page.shift > 0 && !page.wrap, format!("  from column {}", page.shift + 1), Role::Warn)),
        (3, note(dropped > 0, format!("  {} older dropped", text::count_in(dropped, 7)), Role::Dim)),
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

/// How many lines there are, and how many of them match.
fn counted(ctx: &LogCtx<'_>, count: LineCount, searches: bool) -> Vec<Span<'static>> {
    let number = |n: usize| words::count(n as u64);
    let mut spans = Vec::new();
    if ctx.page.whole && searches {
        let which = ctx.page.hit.map_or(String::new(), |_| format!("{} of ", number(count.upto)));
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
struct LinePrefix {
    /// Cells of the rank; 0: one rank is shown.
    rank: usize,
    time: bool,
}

impl LinePrefix {
    fn cells(self) -> usize {
        let rank = if self.rank > 0 { self.rank + 3 } else { 0 };
        rank + if self.time { TIME } else { 0 }
    }
}

/// Below it, another generation begins.
fn divider(ctx: &LogCtx<'_>, generation: Generation, cells: usize) -> Line<'static> {
    let dash = ctx.glyphs().pick("─", "-");
    let text = format!("{} generation {generation} ", dash.repeat(2));
    let rest = dash.repeat(cells.saturating_sub(text.chars().count()));
    Line::from(ctx.s(format!("{text}{rest}"), Role::Dim))
}

/// The pieces of a line: one that is cut, or as many as wrapping makes (bounded).
fn pieces(ctx: &LogCtx<'_>, line: &LogLine<'_>, cells: usize) -> Vec<String> {
    let text = words::clean_output(line.text);
    if ctx.page.wrap {
        let mut parts = text::wrap(&text, cells);
        parts.truncate(64);
        parts
    } else {
        let behind = behind(ctx, line).chars().count();
        let text: String = text.chars().skip(ctx.page.shift).collect();
        vec![ctx.cut(&text, cells.saturating_sub(behind))]
    }
}

/// What stands behind a line that stands for several.
fn behind(ctx: &LogCtx<'_>, line: &LogLine<'_>) -> String {
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
    /// Of the current match.
    is_hit: bool,
}

fn render(
    ctx: &LogCtx<'_>,
    line: &LogLine<'_>,
    part: &str,
    Piece { first, is_hit }: Piece,
    columns: LinePrefix,
    filter: &TextFilter,
) -> Line<'static> {
    let mut spans = Vec::new();
    if columns.time {
        let clock = match (first, line.time_ms) {
            (true, 1..) => ctx.time_of_day(line.time_ms as f64 / 1000.0),
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

/// What stands in the frame during a search in the hosts' files: the pattern, which match of how many, where.
fn search_info(ctx: &LogCtx<'_>, files: HostFiles, search: &SearchResults) -> Vec<Span<'static>> {
    let number = |n: u64| words::count(n);
    let mut info = Vec::new();
    if !ctx.page.filter.is_empty() {
        let cells = if ctx.place.area().width < ROOMY { 12 } else { 24 };
        info.push(ctx.s(format!("/{}", ctx.cut(&ctx.page.filter, cells)), Role::Accent));
    }
    if files.around {
        let clock = files
            .at
            .filter(|at| at.time_ms > 0)
            .map(|at| format!(" {}", ctx.time_of_day(at.time_ms as f64 / 1000.0)));
        let text = format!("  context{}", clock.unwrap_or_default());
        info.push(ctx.s(text, Role::Text));
        info.push(ctx.s("  esc back", Role::Warn));
        return info;
    }
    if !search.is_over() {
        info.push(ctx.s("  searching the hosts' files", Role::Text));
        return info;
    }
    let which = match files.current(search) {
        Some(index) => format!("{} of ", number(search.older + index as u64 + 1)),
        None => String::new(),
    };
    let what = match search.query.until {
        Some(time) => format!("  up to {}: line", ctx.time_of_day(time)),
        None => "  match".into(),
    };
    info.push(ctx.s(format!("{what} {which}{}", number(search.matches())), Role::Text));
    if ctx.place.area().width >= ROOMY || search.query.until.is_none() {
        let lines = text::count_in(search.lines(), 7);
        info.push(ctx.s(format!(" in {lines} lines on hosts"), Role::Dim));
    }
    info
}

/// Notes above the lines: search progress and gaps.
fn search_notes(ctx: &LogCtx<'_>, files: HostFiles, search: &SearchResults) -> Vec<Line<'static>> {
    let mut notes = Vec::new();
    let mut note = |text: String, role: Role| notes.push(Line::from(ctx.s(text, role)));
    if !search.is_over() {
        let (done, all) = search.bytes();
        let far = match all {
            0 => String::new(),
            _ => format!(": {} of {}", words::bytes(done), words::bytes(all)),
        };
        let waits = |state: &SearchState| matches!(state, SearchState::Sent | SearchState::Running);
        let left: Vec<&str> =
            search.hosts.iter().filter(|host| waits(&host.state)).map(|host| host.name.as_str()).collect();
        let whom = match left[..] {
            [one] => one.to_owned(),
            _ => words::plural(left.len(), "host"),
        };
        note(format!("searching {whom}{far}; esc cancels"), Role::Dim);
    } else if search.places.is_empty() {
        let what = match files.step {
            _ if files.around || search.query.until.is_some() => {
                "no lines of that time on the hosts; esc goes back"
            }
            0 => "no match in the hosts' files; esc goes back",
            ..0 => "no earlier match in the hosts' files; n or esc goes back",
            _ => "no later match in the hosts' files; esc goes back",
        };
        note(what.into(), Role::Dim);
    }
    for (host, why) in search.holes().take(MOST_HOLES) {
        note(format!("{host} {why}"), Role::Warn);
    }
    let more = search.holes().count().saturating_sub(MOST_HOLES);
    if more > 0 {
        note(format!("{} not searched", words::plural(more, "more host")), Role::Warn);
    }
    let gone = search.gone_bytes();
    if gone > 0 && search.is_over() {
        note(format!("{} of earlier output no longer on the hosts", words::bytes(gone)), Role::Dim);
    }
    notes
}
