//! Draws the rank table, and maps positions to its rows and columns.

use crate::run::geometry::Geometry;
use crate::run::pages::ranks::RanksPage;
use crate::run::pages::ranks::columns::{RankColumn, gap};
use crate::run::pages::ranks::rows::Sort;
use crate::run::pages::ranks::strip::{self, AwaitedRank, Strip};
use crate::run::pages::{PageCx, PageDrawCtx, PagePlacement};
use crate::run::rank_details;
use crate::run::ranks::{self, RankState};
use crate::run::staleness;
use rankdeck_core::model::{Model, RankModel};
use rankdeck_kit::{Role, put, text};
use rankdeck_types::ids::Rank;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

/// Rows that a table alone on the page must leave for the selected rank's card below it.
const DETAIL_LEAST: u16 = 10;

/// The parts of the pane, from top to bottom.
pub(super) struct Parts {
    /// The strip; empty where it is not shown.
    pub(super) strip: Rect,
    /// The table, its headings included.
    pub(super) table: Rect,
}

impl Parts {
    pub(super) fn of(page: &RanksPage, model: &Model, place: PagePlacement<'_>) -> Parts {
        let inner = place.inner();
        let lines = strip_lines(page, model, place.geo, inner).min(inner.height);
        let strip = Rect { height: lines, ..inner };
        Parts { strip, table: Rect { y: inner.y + lines, height: inner.height - lines, ..inner } }
    }

    /// Rows of ranks that fit.
    pub(super) fn rows(&self) -> usize {
        usize::from(self.table.height.saturating_sub(1))
    }
}

/// Lines of the strip. It helps where the table pages, or where there are many ranks.
fn strip_lines(page: &RanksPage, model: &Model, geo: &Geometry, inner: Rect) -> u16 {
    let ranks = model.ranks.len();
    let fits = ranks < usize::from(inner.height);
    let least = if page.waits { 3 } else { 5 };
    if inner.height < least || ranks == 0 || (fits && ranks < 16 && !page.waits) {
        return 0;
    }
    let lines = strip::height(model, inner.width);
    let most = if geo.area.height >= 40 { 4 } else { 2 };
    (lines as u16).min(most).min(inner.height / 3).max(u16::from(page.waits))
}

/// Draws the pane.
pub(super) fn draw(page: &RanksPage, ctx: &PageDrawCtx<'_>, buf: &mut Buffer) {
    let model = ctx.model;
    let parts = Parts::of(page, model, ctx.place);
    let height = parts.rows();
    let now = ctx.shared.moment.now;
    let rows = page.rows(model, now, model.ranks.len() > height);
    let top = page.top.min(rows.len().saturating_sub(height));
    let shown: Vec<(&RankModel, RankState)> = rows
        .iter()
        .skip(top)
        .take(height)
        .filter_map(|i| model.ranks.get(*i))
        .map(|rank| (rank, ranks::state_at(model, rank, ctx.glyphs(), ctx.now)))
        .collect();
    let more = if rows.len() == model.ranks.len() {
        model.ranks.len().to_string()
    } else {
        format!("{} of {}", rows.len(), model.ranks.len())
    };
    let mut info = ctx.typed_filter(&page.filter, 24);
    let marked = &ctx.shared.marked;
    if !marked.is_empty() {
        let gap = if info.is_empty() { "" } else { "  " };
        info.push(ctx.s(format!("{gap}{} marked", marked.len()), Role::Accent));
    }
    if rows.len() > height && height > 0 {
        let gap = if info.is_empty() { "" } else { "  " };
        info.push(ctx.s(format!("{gap}rows {}-{}", top + 1, (top + height).min(rows.len())), Role::Dim));
    }
    let strip = Strip::new(page, model, now, parts.strip.width, usize::from(parts.strip.height));
    if parts.strip.height > 0 && strip.fold > 1 {
        let what = if page.waits { "cell (shortest wait)" } else { "letter (worst)" };
        info.push(ctx.s(format!("  {} ranks per {what}", strip.fold), Role::Dim));
    }
    if let Some(awaited) = page.waits.then(|| AwaitedRank::of(model)).flatten() {
        let role = if awaited.is_slow() { Role::Warn } else { Role::Dim };
        info.push(ctx.s(format!("  {}", awaited.words()), role));
    }
    ctx.pane(buf, ctx.place.area(), ctx.title("ranks", more), info);
    strip::draw(page, ctx, buf, parts.strip, &strip);
    let table = parts.table;
    if model.ranks.is_empty() {
        put(buf, table, 0, Line::from(ctx.s("no ranks yet", Role::Dim)));
        return;
    }
    let columns = page.fitting(model, ctx.screen.width, table.width);
    put(buf, table, 0, Line::from(headings(page, ctx, &columns)));
    for (i, (rank, state)) in shown.iter().enumerate() {
        put(buf, table, i + 1, row(ctx, rank, state, &columns));
    }
    let taken = (1 + shown.len() as u16).min(table.height);
    let rest = Rect { y: table.y + taken, height: table.height - taken, ..table };
    let selected = ctx.rank.filter(|_| ctx.place.zoomed && rest.height >= DETAIL_LEAST);
    if let Some(rank) = selected.and_then(|rank| ranks::find(model, rank)) {
        rank_details::below(ctx, (model, ctx.keys()), buf, rest, rank);
    }
}

/// Text at the side of its column.
fn aligned(ctx: &PageDrawCtx<'_>, column: RankColumn, text: &str, cells: usize) -> String {
    if column.is_number() { ctx.right(text, cells) } else { ctx.left(text, cells) }
}

fn headings(page: &RanksPage, ctx: &PageDrawCtx<'_>, columns: &[(RankColumn, usize)]) -> Vec<Span<'static>> {
    let gap = " ".repeat(gap(ctx.screen.width));
    let arrow = if page.reverse { ctx.glyphs().pick("▴", "^") } else { ctx.glyphs().pick("▾", "v") };
    let mut spans = vec![Span::raw("  ")];
    for (column, cells) in columns {
        let name = column.heading(ctx.model);
        // Sorted by rank is how the table starts.
        let is_sorted = column.sort() == Some(page.sort) && (page.sort != Sort::Rank || page.reverse);
        let (name, role) = match is_sorted {
            true => (format!("{}{arrow}", text::head(name, cells.saturating_sub(1))), Role::Accent),
            false => (name.to_string(), Role::Dim),
        };
        spans.push(ctx.s(aligned(ctx, *column, &name, *cells), role));
        spans.push(Span::raw(gap.clone()));
    }
    spans
}

fn row(
    ctx: &PageDrawCtx<'_>,
    rank: &RankModel,
    state: &RankState,
    columns: &[(RankColumn, usize)],
) -> Line<'static> {
    let selected = ctx.rank == Some(rank.rank);
    let marked = ctx.shared.marked.contains(&rank.rank);
    let diamond = ctx.glyphs().pick("◆", "+");
    let (mark, role) = if selected {
        (ctx.glyphs().pick("▸", ">"), Role::Accent)
    } else if marked {
        (diamond, Role::Accent)
    } else if state.trouble {
        ("!", Role::Bad)
    } else {
        (" ", Role::Dim)
    };
    let is_silent = staleness::rank_silence(ctx.model, rank, ctx.now).is_some();
    let second = if selected && marked { diamond } else { " " };
    let gap = " ".repeat(gap(ctx.screen.width));
    let mut spans = vec![ctx.s(mark, role), ctx.s(second, Role::Accent)];
    for (column, cells) in columns {
        let (text, role) = column.cell(ctx, rank, state, *cells);
        let role = match column {
            RankColumn::Rank if state.trouble => Role::Bad,
            RankColumn::Rank | RankColumn::Host | RankColumn::State => role,
            _ if is_silent => Role::Dim,
            _ => role,
        };
        spans.push(ctx.s(aligned(ctx, *column, &text, *cells), role));
        spans.push(Span::raw(gap.clone()));
    }
    let line = Line::from(spans);
    if selected { line.style(Style::new().add_modifier(Modifier::BOLD)) } else { line }
}

/// What a click on a heading sorts by.
pub(super) fn heading_at(page: &RanksPage, cx: &PageCx<'_>, at: Position) -> Option<Sort> {
    let table = Parts::of(page, cx.model, cx.place).table;
    if !table.contains(at) || at.y != table.y {
        return None;
    }
    let screen_width = cx.place.geo.area.width;
    let mut end = usize::from(table.x) + 2;
    let under = page.fitting(cx.model, screen_width, table.width).into_iter().find(|(_, cells)| {
        end += cells + gap(screen_width);
        usize::from(at.x) < end
    });
    under?.0.sort()
}

/// The rank at a place of the pane: in the strip or in a row.
pub(super) fn rank_at(page: &RanksPage, cx: &PageCx<'_>, at: Position) -> Option<Rank> {
    let Parts { strip, table } = Parts::of(page, cx.model, cx.place);
    let now = cx.shared.moment.now;
    if strip.contains(at) {
        let cells = Strip::new(page, cx.model, now, strip.width, usize::from(strip.height));
        let (row, column) = (usize::from(at.y - strip.y), usize::from(at.x - strip.x));
        return cells.rank_at(cx.model, now, row, column);
    }
    let row = table.contains(at).then(|| usize::from(at.y - table.y).checked_sub(1)).flatten()?;
    let rows = page.shown_rows(cx.model, now);
    cx.model.ranks.get(*rows.get(page.top + row)?).map(|rank| rank.rank)
}
