//! The rank table.
//!
//! Invariants:
//! - UI-14: columns and their widths depend on the run and on the size of the screen, never on what the cells
//!   say now.

use crate::column::Column;
use crate::fresh;
use crate::overlays::inspect;
use crate::panes::strip;
use crate::panes::strip::{AwaitedRank, Strip};
use crate::ranks;
use crate::ranks::RankState;
use crate::state::{Pane, Sort, ViewState};
use crate::text;
use crate::theme::Role;
use crate::widgets::{Ctx, frame, meter, put};
use rankdeck_core::model::{Model, RankLife, RankModel};
use rankdeck_proto::message::PageSample;
use rankdeck_types::ids::Rank;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

/// In reading order, with the order in which they are given up when the screen is narrow (smallest stays
/// longest).
const COLUMNS: [(Column, u8); 15] = [
    (Column::Rank, 0),
    (Column::Host, 5),
    (Column::Device, 10),
    (Column::State, 1),
    (Column::Use, 3),
    (Column::History, 13),
    (Column::Cpu, 12),
    (Column::Memory, 8),
    (Column::Power, 9),
    (Column::Phase, 2),
    (Column::Iteration, 11),
    (Column::EnvStep, 6),
    (Column::Speed, 4),
    (Column::Collective, 7),
    (Column::Pid, 14),
];

struct Cell {
    text: String,
    role: Role,
    right: bool,
}

fn heading(model: &Model, column: Column) -> &'static str {
    let gpus = model.ranks.iter().any(|rank| rank.gpu.is_some());
    match column {
        Column::Rank => "RANK",
        Column::Host => "HOST",
        Column::Device => "DEVICE",
        Column::Use if gpus => "GPU%",
        Column::Use | Column::Cpu => "CPU%",
        Column::Memory => "MEM",
        Column::Power => "POWER",
        Column::Phase => "PHASE",
        Column::Iteration => "ITER",
        Column::EnvStep => "ENV_STEP",
        Column::Speed => "STEPS/S",
        Column::Collective => "COLLECTIVE",
        Column::State => "STATE",
        Column::History => "USE OVER TIME",
        Column::Pid => "PID",
    }
}

fn sorted_by(column: Column) -> Option<Sort> {
    match column {
        Column::Rank => Some(Sort::Rank),
        Column::Host => Some(Sort::Host),
        Column::Use => Some(Sort::Use),
        Column::Memory => Some(Sort::Memory),
        Column::EnvStep => Some(Sort::EnvStep),
        Column::Speed => Some(Sort::Speed),
        Column::Collective => Some(Sort::Collective),
        Column::State => Some(Sort::State),
        Column::Device | Column::Cpu | Column::Power | Column::Phase => None,
        Column::Iteration | Column::History | Column::Pid => None,
    }
}

fn cell(ctx: &Ctx<'_>, rank: &RankModel, state: &RankState, column: Column, cells: usize) -> Cell {
    let right = |text: Option<String>| Cell {
        role: if text.is_some() { Role::Text } else { Role::Dim },
        text: text.unwrap_or_else(|| text::NONE.into()),
        right: true,
    };
    let left = |text: String, role| Cell { text, role, right: false };
    let page = ranks::page(rank);
    // Gauges of a process that is gone are history; what it did last is evidence and stays.
    let gone = matches!(rank.life, RankLife::Exited(_)) || fresh::is_over(ctx.model);
    match column {
        Column::Use | Column::Cpu | Column::Memory | Column::Power if gone => right(None),
        Column::Rank => Cell { text: rank.rank.to_string(), role: Role::Strong, right: true },
        Column::Host => left(rank.host.clone(), Role::Text),
        Column::Device => left(device(rank), Role::Text),
        Column::Use => right(ranks::usage(ctx.model, rank).map(|percent| format!("{percent:.0}"))),
        Column::Cpu => right(rank.sample.as_ref().map(|sample| format!("{:.0}", sample.cpu_percent))),
        Column::Memory => right(ranks::memory(ctx.model, rank).map(words::bytes)),
        Column::Power => {
            right(ranks::gpu(ctx.model, rank).and_then(|gpu| gpu.power_w).map(|watts| format!("{watts:.0}W")))
        }
        Column::Phase => left(ranks::phase(rank).into(), if page.is_some() { Role::Text } else { Role::Dim }),
        Column::Iteration => {
            right(page.and_then(PageSample::iteration).map(|iteration| text::count_in(iteration, 9)))
        }
        Column::EnvStep => right(ranks::env_step(rank).map(|steps| text::count_in(steps, 11))),
        Column::Speed => right(fresh::speed(ctx.model, rank, ctx.now).map(text::si)),
        Column::Collective => match page.filter(|page| page.collective.entered > 0) {
            Some(page) => {
                let role = if ranks::inside(&page.collective) { Role::Text } else { Role::Dim };
                left(collective(page, cells), role)
            }
            None => left(text::NONE.into(), Role::Dim),
        },
        Column::State => {
            let full = format!("{} {} {}", state.letter, state.glyph, state.word);
            // The age goes first where there is no room for it.
            let short = full.split_inclusive("unheard").next().unwrap_or_default();
            left(if text::width(&full) > cells { short.into() } else { full }, state.role)
        }
        Column::History => {
            let history = if rank.gpu.is_some() { &rank.gpu_history } else { &rank.cpu_history };
            let values = history.iter().map(|value| f64::from(*value));
            left(meter::spark(values, HISTORY, 0.0, 100.0, ctx.glyphs()), Role::Accent)
        }
        Column::Pid => right(rank.pid.map(|pid| pid.to_string())),
    }
}

/// Rows that a table alone on the page must leave for the selected rank's card below it.
const DETAIL_LEAST: u16 = 10;
/// Cells of the sparkline column.
const HISTORY: usize = 16;
/// Fewest cells of the collective column: its number and `in`.
const COLLECTIVE_LEAST: usize = 10;
/// Cells of the collective column that hold most operations.
const COLLECTIVE_USUAL: usize = 28;
/// Most cells of the collective column.
const COLLECTIVE_MOST: usize = 36;

fn device(rank: &RankModel) -> String {
    match rank.gpu {
        _ if !rank.device.is_empty() => rank.device.clone(),
        Some(gpu) => format!("gpu {gpu}"),
        None => "cpu".into(),
    }
}

/// Columns that fit, with their widths: taken in the order of their worth, drawn in reading order. No width
/// depends on what the cells say now (UI-14): columns stay where they are while one reads.
fn choose(ctx: &Ctx<'_>, cells: usize, gap: usize) -> Vec<(Column, usize)> {
    let gpus = ctx.model.ranks.iter().any(|rank| rank.gpu.is_some());
    let mut wanted: Vec<(Column, u8, usize)> = COLUMNS
        .into_iter()
        .filter(|(column, _)| gpus || !matches!(column, Column::Cpu | Column::Power))
        .filter(|(column, _)| ctx.view.ranks.columns.get(column) != Some(&false))
        .map(|(column, order)| {
            // What the user asks for comes right after what a row is known by.
            let asked = ctx.view.ranks.columns.contains_key(&column);
            (column, if asked { order.min(1) } else { order }, wide(ctx, column))
        })
        .collect();
    wanted.sort_by_key(|(_, order, _)| *order);
    let mut spare = cells;
    let mut chosen: Vec<(Column, usize)> = Vec::new();
    for (column, _, wide) in wanted {
        if let Some(rest) = spare.checked_sub(wide + gap) {
            spare = rest;
            chosen.push((column, wide));
        }
        // Once the gauges have their place, before identity and history get theirs: the operation beside its
        // number.
        let gauged = column == Column::Power || !gpus && column == Column::Memory;
        if let Some((_, wide)) = chosen.iter_mut().find(|(column, _)| gauged && *column == Column::Collective)
        {
            let more = COLLECTIVE_USUAL.saturating_sub(*wide).min(spare);
            *wide += more;
            spare -= more;
        }
    }
    if let Some((_, wide)) = chosen.iter_mut().find(|(column, _)| *column == Column::Collective) {
        *wide += spare.min(COLLECTIVE_MOST.saturating_sub(*wide));
    }
    COLUMNS
        .into_iter()
        .filter_map(|(column, _)| chosen.iter().find(|(other, _)| *other == column).copied())
        .collect()
}

/// Cells of a column: for the widest that it may have to show in this run.
fn wide(ctx: &Ctx<'_>, column: Column) -> usize {
    let model = ctx.model;
    match column {
        Column::Rank => model.ranks.len().saturating_sub(1).to_string().len().max(4),
        Column::Host => {
            let names = model.ranks.iter().map(|rank| text::width(&rank.host));
            names.max().unwrap_or(0).clamp(4, 16)
        }
        Column::Device => model.ranks.iter().map(|rank| text::width(&device(rank))).max().unwrap_or(0).max(7),
        Column::State if ctx.geo.area.width < 100 => 13,
        Column::State => 16,
        Column::Use | Column::Cpu => 4,
        Column::History => HISTORY,
        Column::Memory | Column::Power => 5,
        Column::Phase => 10,
        Column::Iteration => 7,
        Column::EnvStep => {
            let goal = model.run.total_steps.map_or(11, |goal| text::count_in(goal, 11).len());
            goal.clamp(9, 11)
        }
        Column::Speed => 7,
        Column::Collective => COLLECTIVE_LEAST,
        Column::Pid => 7,
    }
}

/// The longest form that fits: number, operation, purpose, time inside.
fn collective(page: &PageSample, cells: usize) -> String {
    let collective = &page.collective;
    let number = format!("#{}", words::count(collective.entered));
    if !ranks::inside(collective) {
        return number;
    }
    let age = words::duration_ms(collective.age_ms);
    let forms = [
        format!("{number} {} {} {age}", collective.call.op, collective.call.tag),
        format!("{number} {} {age}", collective.call.op),
        format!("{number} {}", collective.call.op),
        format!("{number} {age}"),
        format!("{number} in"),
    ];
    forms.into_iter().find(|form| text::width(form) <= cells).unwrap_or(number)
}

/// Draws the pane.
pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let area = ctx.geo.pane(Pane::Ranks);
    if area.is_empty() {
        return;
    }
    let model = ctx.model;
    let height = ctx.geo.rank_rows;
    let paged = model.ranks.len() > height;
    let rows = ranks::rows(model, ctx.view, paged);
    let top = ctx.view.ranks.top.min(rows.len().saturating_sub(height));
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
    let mut info = Vec::new();
    if !ctx.view.ranks.filter.is_empty() || ctx.view.editing == Some(Pane::Ranks) {
        info.push(ctx.s(format!("/{}", ctx.cut(&ctx.view.ranks.filter, 24)), Role::Accent));
        if ctx.view.editing == Some(Pane::Ranks) {
            info.push(ctx.s(ctx.glyphs().pick("▏", "_"), Role::Accent));
        }
    }
    if !ctx.view.ranks.marked.is_empty() {
        let gap = if info.is_empty() { "" } else { "  " };
        info.push(ctx.s(format!("{gap}{} marked", ctx.view.ranks.marked.len()), Role::Accent));
    }
    if rows.len() > height && height > 0 {
        let gap = if info.is_empty() { "" } else { "  " };
        info.push(ctx.s(format!("{gap}rows {}-{}", top + 1, (top + height).min(rows.len())), Role::Dim));
    }
    let strip = Strip::new(model, ctx.view, ctx.geo.inside(area).width, usize::from(ctx.geo.strip));
    if ctx.geo.strip > 0 && strip.fold > 1 {
        let what = if ctx.view.ranks.waits { "cell, who waits least" } else { "letter, the worst" };
        info.push(ctx.s(format!("  {} ranks per {what} shows", strip.fold), Role::Dim));
    }
    if let Some(awaited) = ctx.view.ranks.waits.then(|| AwaitedRank::of(model)).flatten() {
        let role = if awaited.is_slow() { Role::Warn } else { Role::Dim };
        info.push(ctx.s(format!("  {}", awaited.words()), role));
    }
    let inner = frame::pane(ctx, buf, area, Pane::Ranks, frame::title(ctx, Pane::Ranks, "ranks", more), info);
    let chosen = ranks::selected(model, ctx.view).map(|rank| rank.rank);
    strip::draw(ctx, buf, Rect { height: ctx.geo.strip.min(inner.height), ..inner }, &strip, chosen);
    let table = Rect {
        y: inner.y + ctx.geo.strip.min(inner.height),
        height: inner.height.saturating_sub(ctx.geo.strip),
        ..inner
    };
    if model.ranks.is_empty() {
        put(buf, table, 0, Line::from(ctx.s("no ranks yet", Role::Dim)));
        return;
    }
    let gap = gap(ctx);
    let columns = choose(ctx, room(table.width, gap), gap);
    put(buf, table, 0, Line::from(headings(ctx, &columns, gap)));
    for (i, (rank, state)) in shown.iter().enumerate() {
        put(buf, table, i + 1, row(ctx, rank, state, &columns, gap, chosen));
    }
    let taken = (1 + shown.len() as u16).min(table.height);
    let rest = Rect { y: table.y + taken, height: table.height - taken, ..table };
    let of = ranks::selected(model, ctx.view).filter(|_| ctx.view.zoom && rest.height >= DETAIL_LEAST);
    if let Some(rank) = of {
        inspect::below(ctx, buf, rest, rank);
    }
}

fn headings(ctx: &Ctx<'_>, columns: &[(Column, usize)], gap: usize) -> Vec<Span<'static>> {
    let mut spans = vec![Span::raw("  ")];
    for (column, wide) in columns {
        let name = heading(ctx.model, *column);
        let arrow = if ctx.view.ranks.reverse {
            ctx.glyphs().pick("▴", "^")
        } else {
            ctx.glyphs().pick("▾", "v")
        };
        let (name, role) = if sorted_by(*column) == Some(ctx.view.ranks.sort)
            && ctx.view.ranks.sort != Sort::Rank
            || (*column == Column::Rank && ctx.view.ranks.sort == Sort::Rank && ctx.view.ranks.reverse)
        {
            (format!("{}{arrow}", text::head(name, wide.saturating_sub(1))), Role::Accent)
        } else {
            (name.to_string(), Role::Dim)
        };
        let left = matches!(
            column,
            Column::Host
                | Column::Device
                | Column::Phase
                | Column::Collective
                | Column::State
                | Column::History
        );
        let text = if left {
            text::left(&name, *wide, ctx.glyphs())
        } else {
            text::right(&name, *wide, ctx.glyphs())
        };
        spans.push(ctx.s(text, role));
        spans.push(Span::raw(" ".repeat(gap)));
    }
    spans
}

fn row(
    ctx: &Ctx<'_>,
    rank: &RankModel,
    state: &RankState,
    columns: &[(Column, usize)],
    gap: usize,
    chosen: Option<Rank>,
) -> Line<'static> {
    let selected = chosen == Some(rank.rank);
    let glyphs = ctx.glyphs();
    let (mark, role) = if selected {
        (glyphs.pick("▸", ">"), Role::Accent)
    } else if ctx.view.ranks.marked.contains(&rank.rank) {
        (glyphs.pick("◆", "+"), Role::Accent)
    } else if state.trouble {
        ("!", Role::Bad)
    } else {
        (" ", Role::Dim)
    };
    let unheard = fresh::unheard_rank(ctx.model, rank, ctx.now).is_some();
    let second =
        if selected && ctx.view.ranks.marked.contains(&rank.rank) { glyphs.pick("◆", "+") } else { " " };
    let mut spans = vec![ctx.s(mark, role), ctx.s(second, Role::Accent)];
    for (column, wide) in columns {
        let cell = cell(ctx, rank, state, *column, *wide);
        let text = if cell.right {
            text::right(&cell.text, *wide, glyphs)
        } else {
            text::left(&cell.text, *wide, glyphs)
        };
        let role = match column {
            Column::Rank if state.trouble => Role::Bad,
            Column::Rank | Column::Host | Column::State => cell.role,
            _ if unheard => Role::Dim,
            _ => cell.role,
        };
        spans.push(ctx.s(text, role));
        spans.push(Span::raw(" ".repeat(gap)));
    }
    let line = Line::from(spans);
    if selected { line.style(ratatui::style::Style::new().add_modifier(Modifier::BOLD)) } else { line }
}

/// What a click on a heading sorts by.
pub fn heading_at(ctx: &Ctx<'_>, at: Position) -> Option<Sort> {
    let inner = ctx.geo.inside(ctx.geo.pane(Pane::Ranks));
    if !inner.contains(at) || at.y != inner.y + ctx.geo.strip {
        return None;
    }
    let gap = gap(ctx);
    let mut end = usize::from(inner.x) + 2;
    let under = choose(ctx, room(inner.width, gap), gap).into_iter().find(|(_, wide)| {
        end += wide + gap;
        usize::from(at.x) < end
    });
    sorted_by(under?.0)
}

/// Cells between two columns.
fn gap(ctx: &Ctx<'_>) -> usize {
    if ctx.geo.area.width < 120 { 1 } else { 2 }
}

/// Cells for columns in a table of this width, the gap behind the last one included.
fn room(width: u16, gap: usize) -> usize {
    usize::from(width).saturating_sub(2) + gap
}

/// The rank at a place of the pane: in the strip or in a row.
pub fn rank_at(model: &Model, view: &ViewState, at: Position) -> Option<Rank> {
    let geo = &view.geometry;
    let inner = geo.inside(geo.pane(Pane::Ranks));
    if !inner.contains(at) {
        return None;
    }
    let row = usize::from(at.y - inner.y);
    let strip = usize::from(geo.strip);
    let index = if row < strip {
        let strip = Strip::new(model, view, inner.width, strip);
        return strip.rank_at(model, view.moment.now, row, usize::from(at.x - inner.x));
    } else {
        let rows = ranks::rows(model, view, model.ranks.len() > geo.rank_rows);
        rows.get(view.ranks.top + (row - strip).checked_sub(1)?).copied()
    };
    model.ranks.get(index?).map(|rank| rank.rank)
}
