//! The Evaluations page: rank 0's evaluations, newest first.

use crate::run::pages::{Page, PageCx, PageDrawCtx, step};
use rankdeck_charts::axis::Scale;
use rankdeck_charts::selection::evaluations;
use rankdeck_kit::plot::{Axes, Trace, plot};
use rankdeck_kit::{Role, plot, put, text};
use rankdeck_proto::message::Evaluation;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Row, Table, Widget};

/// Cells between two columns.
const GAP: usize = 2;
/// Cells of the mark behind the columns.
const MARK: usize = 7;

struct EvalColumn {
    name: &'static str,
    text: fn(&Evaluation) -> String,
    role: Role,
    page_only: bool,
}

const COLUMNS: [EvalColumn; 9] = [
    EvalColumn {
        name: "ENV_STEP",
        text: |eval| text::count_in(eval.env_step, 13),
        role: Role::Text,
        page_only: false,
    },
    EvalColumn {
        name: "ITER",
        text: |eval| text::count_in(eval.train_iter, 9),
        role: Role::Dim,
        page_only: true,
    },
    EvalColumn {
        name: "EPISODES",
        text: |eval| reported(eval, |eval| eval.episodes.to_string()),
        role: Role::Dim,
        page_only: true,
    },
    EvalColumn {
        name: "MEAN",
        text: |eval| text::value(eval.return_mean),
        role: Role::Strong,
        page_only: false,
    },
    EvalColumn {
        name: "± STD",
        text: |eval| reported(eval, |eval| text::value(eval.return_std)),
        role: Role::Text,
        page_only: false,
    },
    EvalColumn {
        name: "MIN",
        text: |eval| reported(eval, |eval| text::value(eval.return_min)),
        role: Role::Text,
        page_only: true,
    },
    EvalColumn {
        name: "MAX",
        text: |eval| reported(eval, |eval| text::value(eval.return_max)),
        role: Role::Text,
        page_only: true,
    },
    EvalColumn {
        name: "LENGTH",
        text: |eval| match eval.is_of_series() && eval.length_mean == 0.0 {
            true => text::NONE.into(),
            false => text::value(eval.length_mean),
        },
        role: Role::Dim,
        page_only: true,
    },
    EvalColumn {
        name: "TOOK",
        text: |eval| reported(eval, |eval| words::duration(eval.duration_s)),
        role: Role::Dim,
        page_only: true,
    },
];

/// A figure that a program's series does not have.
fn reported(eval: &Evaluation, text: fn(&Evaluation) -> String) -> String {
    if eval.is_of_series() { text::NONE.into() } else { text(eval) }
}

/// The page of evaluations.
#[derive(Debug, Clone, Default)]
pub struct EvalsPage {
    /// The first row shown, newest first.
    pub top: usize,
}

impl Page for EvalsPage {
    fn draw(&self, ctx: &PageDrawCtx<'_>, buf: &mut Buffer) {
        draw(self.top, ctx, buf);
    }

    fn settle(&mut self, cx: &mut PageCx<'_>) {
        let rows = cx.place.rows().saturating_sub(1).max(1);
        self.top = self.top.min(cx.model.evals.len().saturating_sub(rows));
    }

    fn scroll(&mut self, rows: i64, cx: &mut PageCx<'_>) {
        self.top = step(self.top, rows, cx.model.evals.len());
    }

    fn copy(&self, cx: &PageCx<'_>) -> String {
        let head = "env_step\ttrain_iter\tepisodes\treturn_mean\treturn_std\treturn_min\treturn_max\tstop\tsampled\n";
        let rows = cx.model.evals.iter().map(|eval| {
            let known = |text: String| if eval.is_of_series() { String::new() } else { text };
            format!(
                "{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\n",
                eval.env_step,
                known(eval.train_iter.to_string()),
                known(eval.episodes.to_string()),
                eval.return_mean,
                known(eval.return_std.to_string()),
                known(eval.return_min.to_string()),
                known(eval.return_max.to_string()),
                eval.stop,
                eval.sampled,
            )
        });
        std::iter::once(head.to_owned()).chain(rows).collect()
    }
}

/// Draws the pane, from a row on.
fn draw(top: usize, ctx: &PageDrawCtx<'_>, buf: &mut Buffer) {
    let area = ctx.place.area();
    let evals = &ctx.model.evals;
    let page = ctx.place.own_page || ctx.place.zoomed;
    let means: Vec<f64> = evals.iter().map(|eval| eval.return_mean).collect();
    let best = means.iter().copied().filter(|mean| mean.is_finite()).fold(f64::NEG_INFINITY, f64::max);
    let goal = ctx.model.plan.as_ref().and_then(|plan| plan.experiment.eval.stop_value);
    let mut info = Vec::new();
    if page {
        let room = usize::from(area.width / 3).min(48);
        info.push(ctx.s(plot::spark_fit(&means, room, ctx.glyphs()), Role::Accent));
        if best.is_finite() {
            info.push(ctx.s(format!("  best {}", text::value(best)), Role::Text));
        }
        if let Some(goal) = goal {
            info.push(ctx.s(format!("  stops at {}", text::value(goal)), Role::Dim));
        }
        if evals.back().is_some_and(|eval| eval.sampled) {
            info.push(ctx.s("  actions sampled".to_owned(), Role::Dim));
        }
    } else if area.width >= 40 {
        info.push(ctx.s(plot::spark_fit(&means, 12, ctx.glyphs()), Role::Accent));
    }
    let title = ctx.title("evaluations", evals.len().to_string());
    let inner = ctx.pane(buf, area, title, info);
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
    // Of equal ones the first: the others are not better.
    let first = evals.iter().find(|eval| eval.return_mean >= best);
    let columns: Vec<&EvalColumn> = COLUMNS.iter().filter(|column| page || !column.page_only).collect();
    let height = usize::from(inner.height).saturating_sub(1);
    let shown: Vec<&Evaluation> = evals.iter().rev().skip(top).take(height).collect();
    let wide: Vec<usize> = columns
        .iter()
        .map(|column| {
            let content = shown.iter().map(|eval| text::width(&(column.text)(eval))).max().unwrap_or(0);
            content.max(text::width(column.name)).max(if page { 7 } else { 5 })
        })
        .collect();
    let columns: Vec<(&EvalColumn, usize)> = fitting(columns, wide, usize::from(inner.width));
    let most = best.max(goal.unwrap_or(best));
    let bars = bar_cells(inner, &columns, most);
    let right = |text: &str, role| Line::from(ctx.s(text, role)).right_aligned();
    let heading = Some(format!("MEAN OF {}", text::value(most))).filter(|heading| bars >= heading.len());
    let names = columns.iter().map(|(column, _)| match column.name {
        "± STD" => right(ctx.glyphs().pick("± STD", "+- STD"), Role::Dim),
        name => right(name, Role::Dim),
    });
    let header = names.chain([Line::default(), Line::from(ctx.s(heading.unwrap_or_default(), Role::Dim))]);
    let rows = shown.iter().map(|eval| {
        let is_best = first.is_some_and(|first| std::ptr::eq(first, *eval));
        let cells = columns.iter().map(|(column, _)| right(&(column.text)(eval), column.role));
        let bar = plot::bar(ctx.theme, eval.return_mean / most, bars, ctx.theme.fill);
        Row::new(cells.chain([Line::from(mark(ctx, eval, is_best, page)), Line::from(bar.to_vec())]))
    });
    let widths = columns.iter().map(|(_, wide)| *wide).chain([MARK]).chain((bars > 0).then_some(bars));
    let table = Table::new(rows, widths.map(|cells| Constraint::Length(cells as u16)));
    let area = Rect { x: inner.x + 1, width: inner.width.saturating_sub(1), ..inner };
    Widget::render(table.header(Row::new(header)).column_spacing(GAP as u16), area, buf);
}

/// The means over env_step above the table (next to it on wide screens), if there is room; returns what is
/// left for the table.
fn chart(ctx: &PageDrawCtx<'_>, buf: &mut Buffer, inner: Rect) -> Rect {
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
    let past = evaluations(ctx.model).into_iter();
    let mut traces: Vec<Trace> =
        past.flat_map(|series| Scale::default().past_lines(series, 0.0, ctx.theme.dim)).collect();
    traces.extend(
        [false, true].map(|single| {
            Trace::plain(points.iter().copied(), ctx.theme.series[usize::from(single)], single)
        }),
    );
    plot(ctx.theme, buf, area, &traces, &Axes::steps((0.0, last.0.max(1.0))));
    rest
}

/// Columns from the left as far as they fit; the mean is always among them.
fn fitting(
    columns: Vec<&'static EvalColumn>,
    wide: Vec<usize>,
    cells: usize,
) -> Vec<(&'static EvalColumn, usize)> {
    let mut all: Vec<(&EvalColumn, usize)> = columns.into_iter().zip(wide).collect();
    let total = |all: &[(&EvalColumn, usize)]| all.iter().map(|(_, wide)| wide + 2).sum::<usize>() + 8;
    for name in ["LENGTH", "TOOK", "EPISODES", "ITER", "MAX", "MIN", "± STD", "ENV_STEP"] {
        if total(&all) <= cells {
            break;
        }
        all.retain(|(column, _)| column.name != name);
    }
    all
}

fn mark(ctx: &PageDrawCtx<'_>, eval: &Evaluation, best: bool, page: bool) -> Vec<Span<'static>> {
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

/// Cells of the bars of the means: on the right, if there is room, and if `most` is one to measure them by.
fn bar_cells(inner: Rect, columns: &[(&EvalColumn, usize)], most: f64) -> usize {
    let used = 1 + columns.iter().map(|(_, wide)| wide + GAP).sum::<usize>() + MARK + GAP;
    let cells = usize::from(inner.width).saturating_sub(used).min(40);
    if cells >= 10 && most > 0.0 { cells } else { 0 }
}
