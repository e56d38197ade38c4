//! Rank 0's evaluations, newest first.

use crate::state::{Pane, Tab};
use crate::text;
use crate::theme::Role;
use crate::widgets::plot::{Axes, Trace, plot};
use crate::widgets::{Ctx, frame, meter, put};
use rankdeck_proto::message::Evaluation;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

struct Column {
    name: &'static str,
    text: fn(&Evaluation) -> String,
    role: Role,
    page_only: bool,
}

const COLUMNS: [Column; 9] = [
    Column {
        name: "ENV_STEP",
        text: |eval| text::count_in(eval.env_step, 13),
        role: Role::Text,
        page_only: false,
    },
    Column {
        name: "ITER",
        text: |eval| text::count_in(eval.train_iter, 9),
        role: Role::Dim,
        page_only: true,
    },
    Column { name: "EPISODES", text: |eval| eval.episodes.to_string(), role: Role::Dim, page_only: true },
    Column { name: "MEAN", text: |eval| text::value(eval.return_mean), role: Role::Strong, page_only: false },
    Column { name: "± STD", text: |eval| text::value(eval.return_std), role: Role::Text, page_only: false },
    Column { name: "MIN", text: |eval| text::value(eval.return_min), role: Role::Text, page_only: true },
    Column { name: "MAX", text: |eval| text::value(eval.return_max), role: Role::Text, page_only: true },
    Column { name: "LENGTH", text: |eval| text::value(eval.length_mean), role: Role::Dim, page_only: true },
    Column { name: "TOOK", text: |eval| words::duration(eval.duration_s), role: Role::Dim, page_only: true },
];

/// Draws the pane.
pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let area = ctx.geo.pane(Pane::Evals);
    if area.is_empty() {
        return;
    }
    let evals = &ctx.model.evals;
    let page = ctx.view.tab == Tab::Evals || ctx.view.zoom;
    let means: Vec<f64> = evals.iter().map(|eval| eval.return_mean).collect();
    let best = means.iter().copied().filter(|mean| mean.is_finite()).fold(f64::NEG_INFINITY, f64::max);
    let goal = ctx.model.plan.as_ref().and_then(|plan| plan.experiment.eval.stop_value);
    let mut info = Vec::new();
    if page {
        let room = usize::from(area.width / 3).min(48);
        info.push(ctx.s(meter::spark_fit(&means, room, ctx.glyphs()), Role::Accent));
        if best.is_finite() {
            info.push(ctx.s(format!("  best {}", text::value(best)), Role::Text));
        }
        if let Some(goal) = goal {
            info.push(ctx.s(format!("  stops at {}", text::value(goal)), Role::Dim));
        }
    } else if area.width >= 40 {
        info.push(ctx.s(meter::spark_fit(&means, 12, ctx.glyphs()), Role::Accent));
    }
    let title = frame::title(ctx, Pane::Evals, "evaluations", evals.len().to_string());
    let inner = frame::pane(ctx, buf, area, Pane::Evals, title, info);
    if evals.is_empty() {
        let every = ctx.model.plan.as_ref().map_or(0, |plan| plan.experiment.eval.every);
        let text = match every {
            0 => "none yet".to_string(),
            n => format!("none yet; rank 0 evaluates every {}", words::plural(n as usize, "iteration")),
        };
        put(buf, inner, 0, Line::from(ctx.s(text, Role::Dim)));
        return;
    }
    let inner = if page { chart(ctx, buf, inner) } else { inner };
    // Of equal ones the first: the others are no better.
    let first = evals.iter().find(|eval| eval.return_mean >= best);
    let columns: Vec<&Column> = COLUMNS.iter().filter(|column| page || !column.page_only).collect();
    let height = usize::from(inner.height).saturating_sub(1);
    let shown: Vec<&Evaluation> = evals.iter().rev().skip(ctx.view.evals_top).take(height).collect();
    let wide: Vec<usize> = columns
        .iter()
        .map(|column| {
            let content = shown.iter().map(|eval| text::width(&(column.text)(eval))).max().unwrap_or(0);
            content.max(text::width(column.name)).max(if page { 7 } else { 5 })
        })
        .collect();
    let columns: Vec<(&Column, usize)> = fitting(columns, wide, usize::from(inner.width));
    let mut head = vec![Span::raw(" ")];
    for (column, wide) in &columns {
        let name = if column.name == "± STD" { ctx.glyphs().pick("± STD", "+- STD") } else { column.name };
        head.push(ctx.s(text::right(name, *wide, ctx.glyphs()), Role::Dim));
        head.push(Span::raw("  "));
    }
    put(buf, inner, 0, Line::from(head));
    // Behind the columns and the mark.
    let used = columns.iter().map(|(_, wide)| wide + 2).sum::<usize>() + 10;
    let most = best.max(goal.unwrap_or(best));
    let heading = format!("MEAN OF {}", text::value(most));
    if let Some(bars) = bars(inner, used, most).filter(|bars| usize::from(bars.width) >= heading.len()) {
        put(buf, bars, 0, Line::from(ctx.s(heading, Role::Dim)));
    }
    for (row, eval) in shown.iter().enumerate() {
        let mut spans = vec![Span::raw(" ")];
        for (column, wide) in &columns {
            spans.push(ctx.s(text::right(&(column.text)(eval), *wide, ctx.glyphs()), column.role));
            spans.push(Span::raw("  "));
        }
        spans.extend(mark(ctx, eval, first.is_some_and(|first| std::ptr::eq(first, *eval)), page));
        put(buf, inner, row + 1, Line::from(spans));
        if let Some(bars) = bars(inner, used, most) {
            let share = eval.return_mean / most;
            let bar = meter::bar(ctx.theme, share, usize::from(bars.width), ctx.theme.fill);
            put(buf, bars, row + 1, Line::from(bar.to_vec()));
        }
    }
}

/// The means over env_step above the table (beside it on wide screens), where there is room; returns what is
/// left for the table.
fn chart(ctx: &Ctx<'_>, buf: &mut Buffer, inner: Rect) -> Rect {
    let evals = &ctx.model.evals;
    let rows = inner.height.saturating_sub(1 + evals.len().min(200) as u16);
    let points: Vec<(f64, f64)> = evals.iter().map(|eval| (eval.env_step as f64, eval.return_mean)).collect();
    let (Some(last), true) = (points.last(), points.len() > 1) else { return inner };
    let (area, rest) = if inner.width >= 130 {
        let table = inner.width * 3 / 5;
        let x = inner.x + table + 2;
        let height = inner.height.min(24);
        (Rect { x, width: inner.width - table - 2, height, ..inner }, Rect { width: table, ..inner })
    } else {
        let height = rows.min(12).max(if inner.height >= 15 { 6 } else { 0 });
        if height < 6 {
            return inner;
        }
        (Rect { height, ..inner }, Rect { y: inner.y + height, height: inner.height - height, ..inner })
    };
    let traces = [false, true]
        .map(|single| Trace::plain(points.iter().copied(), ctx.theme.series[usize::from(single)], single));
    plot(ctx.theme, buf, area, &traces, &Axes::steps((0.0, last.0.max(1.0))));
    rest
}

/// Columns from the left as far as they fit; the mean is always among them.
fn fitting(columns: Vec<&'static Column>, wide: Vec<usize>, cells: usize) -> Vec<(&'static Column, usize)> {
    let mut all: Vec<(&Column, usize)> = columns.into_iter().zip(wide).collect();
    let total = |all: &[(&Column, usize)]| all.iter().map(|(_, wide)| wide + 2).sum::<usize>() + 8;
    for name in ["LENGTH", "TOOK", "EPISODES", "ITER", "MAX", "MIN", "± STD", "ENV_STEP"] {
        if total(&all) <= cells {
            break;
        }
        all.retain(|(column, _)| column.name != name);
    }
    all
}

fn mark(ctx: &Ctx<'_>, eval: &Evaluation, best: bool, page: bool) -> Vec<Span<'static>> {
    let glyphs = ctx.glyphs();
    if eval.stop {
        let text =
            if page { format!("{} stop", glyphs.pick("■", "#")) } else { glyphs.pick("■", "#").into() };
        vec![ctx.s(text, Role::Good)]
    } else if best {
        let text =
            if page { format!("{} best", glyphs.pick("▲", "^")) } else { glyphs.pick("▲", "^").into() };
        vec![ctx.s(text, Role::Accent)]
    } else {
        Vec::new()
    }
}

/// Where the means are bars: on the right, if there is room, and if `most` is one to measure them by.
fn bars(inner: Rect, used: usize, most: f64) -> Option<Rect> {
    let width = usize::from(inner.width).saturating_sub(used).min(40) as u16;
    (width >= 10 && most > 0.0).then(|| Rect { x: inner.x + used as u16, width, ..inner })
}
