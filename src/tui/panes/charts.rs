//! Charts over env_step: three at a glance on the overview, any on their own page.

use crate::layout::columns;
use crate::state::{ChartWindow, Pane, Tab};
use crate::text;
use crate::theme::Role;
use crate::widgets::plot::{Trace, plot};
use crate::widgets::{Ctx, frame, put};
use rankdeck_core::model::Model;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// Returns of training episodes.
const RETURN: &str = "charts/episodic_return";
/// Mean returns of evaluations.
const EVAL: &str = "charts/eval_return";
/// Global environment steps per second.
const SPEED: &str = "charts/SPS";

/// The series that matter most, as far as they exist: return, loss, speed.
pub fn usual(model: &Model) -> Vec<&str> {
    let names = || model.scalars.keys().map(String::as_str);
    let first = names().find(|name| *name == RETURN).or_else(|| names().find(|name| *name == EVAL));
    let loss = names()
        .find(|name| *name == "losses/value_loss")
        .or_else(|| names().find(|name| name.starts_with("losses/") || name.contains("loss")));
    let speed = names().find(|name| *name == SPEED);
    [first, loss, speed].into_iter().flatten().collect()
}

/// A series as people call it.
fn label(name: &str) -> &str {
    match name {
        RETURN => "return",
        EVAL => "eval return",
        SPEED => "steps/s",
        other => other.rsplit('/').next().unwrap_or(other),
    }
}

/// Draws the pane.
pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let area = ctx.geo.charts;
    if area.is_empty() {
        return;
    }
    if ctx.view.tab == Tab::Charts {
        page(ctx, buf, area);
    } else {
        let names = usual(ctx.model);
        glance(ctx, buf, area, &names);
    }
}

/// Charts side by side, each with its own frame.
fn glance(ctx: &Ctx<'_>, buf: &mut Buffer, area: Rect, names: &[&str]) {
    if names.is_empty() {
        let title = frame::title(ctx, Pane::Charts, "charts", "over env_step");
        let inner = frame::pane(ctx, buf, area, Pane::Charts, title, Vec::new());
        let row = usize::from(inner.height / 2);
        put(buf, inner, row, Line::from(ctx.s("no values yet", Role::Dim)).centered());
        return;
    }
    let most = usize::from(area.width / 26).max(1);
    let shown = &names[..names.len().min(most)];
    let parts = columns(area, &vec![1; shown.len()]);
    for (i, (name, part)) in shown.iter().zip(parts).enumerate() {
        single(ctx, buf, part, name, i);
    }
}

/// One framed chart; the return has the evaluations as points on it.
fn single(ctx: &Ctx<'_>, buf: &mut Buffer, area: Rect, name: &str, colour: usize) {
    let Some(series) = ctx.model.scalars.get(name) else { return };
    let last = series.last().map_or(text::NONE.to_string(), text::value);
    let mut title = frame::title(ctx, Pane::Charts, label(name), "");
    title.push(Span::styled(format!(" {last}"), ctx.theme.series[colour % 6]));
    let evals = if name == RETURN { ctx.model.scalars.get(EVAL) } else { None };
    let mut info = Vec::new();
    if let Some(eval) = evals.and_then(|evals| evals.last()) {
        let sign = ctx.glyphs().pick("•", "o");
        info.push(Span::styled(format!("{sign} eval {}", text::value(eval)), ctx.theme.series[1]));
    }
    let inner = frame::pane(ctx, buf, area, Pane::Charts, title, info);
    let mut traces =
        vec![Trace { points: series.points(), style: ctx.theme.series[colour % 6], dots: false }];
    if let Some(evals) = evals {
        traces.push(Trace { points: evals.points(), style: ctx.theme.series[1], dots: true });
    }
    let inner = Rect { width: inner.width.saturating_sub(u16::from(!ctx.geo.boxed)), ..inner };
    plot(ctx, buf, inner, &traces, window(ctx.model, ctx.view.window));
}

/// The window on the x axis: the whole run, or a part of it.
pub fn window(model: &Model, window: ChartWindow) -> (f64, f64) {
    let ends = model
        .scalars
        .values()
        .filter_map(|series| Some((series.points().first()?.0, series.points().last()?.0)));
    let (low, high) =
        ends.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), (a, b)| (low.min(a), high.max(b)));
    if !low.is_finite() || !high.is_finite() {
        return (0.0, 1.0);
    }
    let low = low.min(0.0);
    let whole = (high - low).max(1.0);
    let span = whole / 2f64.powi(i32::from(window.zoom));
    let end = (high - span / 4.0 * f64::from(window.back)).max(low + span);
    (end - span, end)
}

fn page(ctx: &Ctx<'_>, buf: &mut Buffer, area: Rect) {
    let model = ctx.model;
    let list = (area.width / 4).clamp(22, 40);
    let parts = [Rect { width: list, ..area }, Rect { x: area.x + list, width: area.width - list, ..area }];
    let usual = usual(model);
    let is_shown = |name: &str| match &ctx.view.shown_series {
        Some(shown) => shown.contains(name),
        None => usual.contains(&name),
    };
    let (from, to) = window(model, ctx.view.window);
    let info = if ctx.view.window.zoom > 0 {
        vec![ctx.s(format!("{}..{}", text::si(from), text::si(to)), Role::Accent)]
    } else {
        Vec::new()
    };
    let title = frame::title(ctx, Pane::Charts, "series", model.scalars.len().to_string());
    let inner = frame::pane(ctx, buf, parts[0], Pane::Charts, title, info);
    let height = usize::from(inner.height);
    for (row, (name, series)) in model.scalars.iter().skip(ctx.view.series_top).take(height).enumerate() {
        let selected = Some(name) == ctx.view.series.as_ref();
        let shown = is_shown(name);
        let mark = if selected { ctx.glyphs().pick("▸", ">") } else { " " };
        let sign = if shown { ctx.glyphs().pick("●", "*") } else { ctx.glyphs().pick("○", "o") };
        let last = series.last().map_or(text::NONE.to_string(), text::si);
        let short = label(name);
        let unique = model.scalars.keys().filter(|other| label(other) == short).count() == 1;
        let called = if unique { short } else { name.as_str() };
        let room = usize::from(inner.width).saturating_sub(text::width(&last) + 5);
        let role = if selected {
            Role::Strong
        } else if shown {
            Role::Text
        } else {
            Role::Dim
        };
        let style = colour(ctx, name, &is_shown).unwrap_or(ctx.theme.dim);
        put(
            buf,
            inner,
            row,
            Line::from(vec![
                ctx.s(mark, Role::Accent),
                Span::styled(format!("{sign} "), style),
                ctx.s(text::left(called, room, ctx.glyphs()), role),
                ctx.s(format!(" {last}"), role),
            ]),
        );
    }
    let mut names: Vec<&str> =
        model.scalars.keys().map(String::as_str).filter(|name| is_shown(name)).collect();
    if let Some(selected) = ctx.view.series.as_deref()
        && model.scalars.contains_key(selected)
    {
        // The selected one first, shown or not: moving through the list is looking at it.
        names.retain(|name| *name != selected);
        names.insert(0, selected);
    }
    grid(ctx, buf, parts[1], &names, &is_shown);
}

/// Each series keeps its colour while others come and go: by its place among those shown.
fn colour(ctx: &Ctx<'_>, name: &str, is_shown: &impl Fn(&str) -> bool) -> Option<ratatui::style::Style> {
    let at = ctx.model.scalars.keys().filter(|other| is_shown(other)).position(|other| other == name)?;
    Some(ctx.theme.series[at % 6])
}

/// The first chart large, the others below it side by side.
fn grid(ctx: &Ctx<'_>, buf: &mut Buffer, area: Rect, names: &[&str], is_shown: &impl Fn(&str) -> bool) {
    let Some(first) = names.first() else {
        let title = frame::title(ctx, Pane::Charts, "charts", "over env_step");
        let inner = frame::pane(ctx, buf, area, Pane::Charts, title, Vec::new());
        put(
            buf,
            inner,
            usize::from(inner.height / 2),
            Line::from(ctx.s("no values yet", Role::Dim)).centered(),
        );
        return;
    };
    let rest = &names[1..];
    let across = usize::from(area.width / 26).max(1);
    let rows = rest.len().div_ceil(across).min(usize::from(area.height / 9));
    let large =
        if rows == 0 { area.height } else { area.height - area.height * rows as u16 / (rows as u16 + 1) };
    named(ctx, buf, Rect { height: large, ..area }, first, is_shown);
    let mut y = area.y + large;
    for (row, names) in rest.chunks(across).take(rows).enumerate() {
        let height = (area.bottom() - y) / (rows - row) as u16;
        let line = Rect { y, height, ..area };
        for (name, part) in names.iter().zip(columns(line, &vec![1; names.len()])) {
            named(ctx, buf, part, name, is_shown);
        }
        y += height;
    }
}

fn named(ctx: &Ctx<'_>, buf: &mut Buffer, area: Rect, name: &str, is_shown: &impl Fn(&str) -> bool) {
    let Some(series) = ctx.model.scalars.get(name) else { return };
    let style = colour(ctx, name, is_shown).unwrap_or(ctx.theme.series[0]);
    let last = series.last().map_or(text::NONE.to_string(), text::value);
    let window = window(ctx.model, ctx.view.window);
    let seen: Vec<f64> = series
        .points()
        .iter()
        .filter(|point| point.0 >= window.0 && point.0 <= window.1)
        .map(|point| point.1)
        .collect();
    let low = seen.iter().copied().fold(f64::INFINITY, f64::min);
    let high = seen.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let room = usize::from(area.width).saturating_sub(text::width(&last) + 8);
    let called = if text::width(name) + 22 <= room { name } else { label(name) };
    let mut title = vec![ctx.s(ctx.cut(called, room), Role::Strong)];
    title.push(Span::styled(format!(" {last}"), style));
    let info = vec![ctx.s(format!("min {}  max {}", text::si(low), text::si(high)), Role::Dim)];
    let inner = frame::pane(ctx, buf, area, Pane::Charts, title, info);
    plot(ctx, buf, inner, &[Trace { points: series.points(), style, dots: false }], window);
}
