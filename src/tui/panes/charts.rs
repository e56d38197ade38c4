//! Charts: three at a glance on the overview, any on their own page.

mod histogram;
mod lines;
mod settings;

use crate::fresh;
use crate::layout::columns;
use crate::speeds::{is_of_now, is_speed};
use crate::state::{Pane, Tab, ViewState};
use crate::target::Target;
use crate::text;
use crate::theme::Role;
use crate::widgets::plot::{Axes, Flag, Trace, plot};
use crate::widgets::{Ctx, frame, put, width};
use lines::{at_cursor, fitting, readouts, traces};
use rankdeck_core::model::{MarkKind, Model};
use rankdeck_core::report::Severity;
use rankdeck_core::series::Series;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use settings::settings;

/// Cells per evaluation from which on they are drawn as dots.
const DOT_CELLS: usize = 4;
/// Fewest cells of the list of series.
const LIST_LEAST: u16 = 22;
/// Most cells of it.
const LIST_MOST: u16 = 40;
/// Cells that a chart keeps for its name beside what the cursor tells.
const SHORT: usize = 8;
/// Cells beside a name in it.
const NAME_ROOM: u16 = 6;
/// Returns of training episodes.
const RETURN: &str = "charts/episodic_return";
/// Mean returns of evaluations.
const EVAL: &str = "charts/eval_return";
/// Global environment steps per second.
const SPEED: &str = "charts/SPS";

/// The series that matter most, as far as they exist: return, loss, speed; else the first.
pub fn usual(model: &Model) -> Vec<&str> {
    let names = || model.scalars.keys().map(String::as_str);
    let first = names().find(|name| *name == RETURN).or_else(|| names().find(|name| *name == EVAL));
    let loss = names()
        .find(|name| *name == "losses/value_loss")
        .or_else(|| names().find(|name| name.starts_with("losses/") || name.contains("loss")));
    let speed = names().find(|name| *name == SPEED);
    let usual: Vec<&str> = [first, loss, speed].into_iter().flatten().collect();
    let first = || names().chain(model.histograms.keys().map(String::as_str)).next();
    if usual.is_empty() { first().into_iter().collect() } else { usual }
}

/// A series as people call it.
pub fn label(name: &str) -> &str {
    match name {
        RETURN => "return",
        EVAL => "eval return",
        SPEED => "steps/s",
        "ranks/SPS" => "rank steps/s",
        "ranks/iteration_s" => "rank iteration s",
        "ranks/wait_share" => "rank wait share",
        "ranks/cpu_percent" => "rank cpu %",
        "ranks/gpu_percent" => "rank gpu %",
        other => other.rsplit('/').next().unwrap_or(other),
    }
}

/// Draws the pane.
pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let area = ctx.geo.pane(Pane::Charts);
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

/// Why there is nothing to draw.
fn empty(ctx: &Ctx<'_>) -> &'static str {
    let own = ctx.model.plan.as_ref().is_some_and(|plan| !plan.is_builtin());
    match own && ctx.model.plan.as_ref().is_some_and(|plan| plan.experiment.metrics == Default::default()) {
        true => "no values yet; [metrics] names where to find them",
        false => "no values yet",
    }
}

/// Charts side by side, each with its own frame.
fn glance(ctx: &Ctx<'_>, buf: &mut Buffer, area: Rect, names: &[&str]) {
    if names.is_empty() {
        let title = frame::title(ctx, Pane::Charts, "charts", "over env_step");
        let inner = frame::pane(ctx, buf, area, Pane::Charts, title, Vec::new());
        let row = usize::from(inner.height / 2);
        put(buf, inner, row, Line::from(ctx.s(empty(ctx), Role::Dim)).centered());
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
    let Some(series) = ctx.model.chart(name) else { return };
    let room = frame::room(area);
    let beside = room.saturating_sub(text::width(label(name)));
    let newest = newest(ctx, name, series, ctx.theme.series[colour % 6], beside);
    // The newest value is what people look for: a long name gives way to it.
    let called = ctx.cut(label(name), room.saturating_sub(width(&newest)));
    let mut title = frame::title(ctx, Pane::Charts, &called, "");
    title.extend(newest);
    let evals = if name == RETURN { ctx.model.scalars.get(EVAL) } else { None };
    let mut info = Vec::new();
    if let Some(eval) = evals.and_then(|evals| evals.last()) {
        let sign = ctx.glyphs().pick("•", "o");
        info.push(Span::styled(format!("{sign} eval {}", text::value(eval)), ctx.theme.series[1]));
    }
    let inner = frame::pane(ctx, buf, area, Pane::Charts, title, info);
    let axes = axes(ctx, false);
    if let Some(histogram) = ctx.model.histograms.get(name) {
        ctx.target(area, Target::Series(name.to_owned()));
        histogram::draw(ctx, buf, inner, histogram, &axes);
        return;
    }
    let weight = ctx.view.chart.weight();
    let line = Trace::line(series, &axes.scale, weight, ctx.theme.series[colour % 6]);
    let mut traces = Vec::new();
    if let Some(evals) = evals {
        // As dots over the line as long as they leave it visible, else as a line below it.
        let single = evals.points().len() * DOT_CELLS <= usize::from(inner.width);
        let evals = Trace { single, ..Trace::line(evals, &axes.scale, 0.0, ctx.theme.series[1]) };
        traces = if single { vec![line, evals] } else { vec![evals, line] };
    } else {
        traces.push(line);
    }
    let inner = Rect { width: inner.width.saturating_sub(u16::from(!ctx.geo.boxed)), ..inner };
    ctx.target(area, Target::Series(name.to_owned()));
    plot(ctx.theme, buf, inner, &traces, &axes);
}

/// What all charts are drawn on; `told`: with cursors and with what happened.
fn axes(ctx: &Ctx<'_>, told: bool) -> Axes {
    let view = &ctx.view.chart;
    let scale = view.scale(ctx.model);
    let (cursors, flags) = match told {
        true => (view.pin.into_iter().chain(view.cursor).collect(), flags(ctx, |place| scale.of(place))),
        false => (Vec::new(), Vec::new()),
    };
    // At a glance, only this run is drawn.
    let x = if told { view.window(ctx.model) } else { view.own_window(ctx.model) };
    Axes { scale, x, log: view.log, cursors, flags }
}

/// Restarts, verdicts and checkpoints.
fn flags(ctx: &Ctx<'_>, x: impl Fn(rankdeck_core::series::Place) -> f64) -> Vec<Flag> {
    let glyphs = ctx.glyphs();
    let sign = |text: &'static str| text.chars().next().unwrap_or(' ');
    let flag = |mark: &rankdeck_core::model::Mark| {
        let (text, unicode, ascii, role, low) = match mark.kind {
            MarkKind::Generation(generation) => (format!("gen {generation}"), "┊", ":", Role::Text, false),
            MarkKind::Verdict(kind, severity) => {
                let role = if severity == Severity::Red { Role::Bad } else { Role::Warn };
                let sign = glyphs.tone(role);
                (kind.name().to_string(), sign, sign, role, false)
            }
            MarkKind::Checkpoint => (String::new(), "▴", "^", Role::Dim, true),
        };
        let sign = sign(glyphs.pick(unicode, ascii));
        Flag { x: x(mark.place), sign, text, style: ctx.theme.style(role), low }
    };
    // What matters is drawn last.
    let order = |mark: &&rankdeck_core::model::Mark| match mark.kind {
        MarkKind::Checkpoint => 0,
        MarkKind::Generation(_) => 1,
        MarkKind::Verdict(_, Severity::Red) => 3,
        MarkKind::Verdict(..) => 2,
    };
    let mut marks: Vec<_> = ctx.model.marks.iter().collect();
    marks.sort_by_key(order);
    marks.into_iter().map(flag).collect()
}

/// The newest value, dim with its age once the run's figures are late, red when it is not a number. A run
/// that is over has no speed. An age that does not fit `room` is left out rather than cut.
fn newest(ctx: &Ctx<'_>, name: &str, series: &Series, style: Style, room: usize) -> Vec<Span<'static>> {
    if is_of_now(name) && fresh::is_over(ctx.model) {
        return vec![ctx.s(format!(" {}", text::NONE), Role::Dim)];
    }
    let last = series.last().map_or(text::NONE.to_string(), text::value);
    let late = fresh::figures(ctx.model, ctx.now).and_then(|figures| figures.late_ms);
    match late {
        _ if series.last().is_some_and(|last| !last.is_finite()) => {
            vec![ctx.s(format!(" {last}"), Role::Bad)]
        }
        Some(age) => {
            let aged = format!(" {last} {} ago", fresh::coarse(age));
            let told = if text::width(&aged) <= room { aged } else { format!(" {last}") };
            vec![ctx.s(told, Role::Dim)]
        }
        None => vec![Span::styled(format!(" {last}"), style)],
    }
}

/// The list of series, as wide as its names where that is not too much, and the charts beside it.
fn parts(model: &Model, area: Rect) -> [Rect; 2] {
    let names = model.charts().map(|(name, _)| text::width(label(name)) as u16 + NAME_ROOM);
    let most = (area.width / 3).clamp(LIST_LEAST, LIST_MOST);
    let list = names.max().unwrap_or(0).max(area.width / 4).clamp(LIST_LEAST, most);
    [Rect { width: list, ..area }, Rect { x: area.x + list, width: area.width.saturating_sub(list), ..area }]
}

/// Where the page's charts are: beside the list, above the line of settings.
fn beside_list(ctx: &Ctx<'_>) -> Rect {
    let area = parts(ctx.model, ctx.geo.pane(Pane::Charts))[1];
    Rect { height: area.height - u16::from(area.height >= 8), ..area }
}

/// A series is shown beside the selected one.
fn is_shown(ctx: &Ctx<'_>, name: &str) -> bool {
    match &ctx.view.series.shown {
        Some(shown) => shown.contains(name),
        None => usual(ctx.model).contains(&name),
    }
}

/// The series of the page's charts, in order.
fn chosen<'a>(ctx: &'a Ctx<'_>) -> Vec<&'a str> {
    let model = ctx.model;
    let mut names: Vec<&str> =
        model.charts().map(|(name, _)| name.as_str()).filter(|name| is_shown(ctx, name)).collect();
    if let Some(selected) = ctx.view.series.selected.as_deref()
        && model.chart(selected).is_some()
    {
        // The selected one first, shown or not: moving through the list is looking at it.
        names.retain(|name| *name != selected);
        names.insert(0, selected);
    }
    names
}

/// The series at a place of the list on the page.
pub fn series_at(model: &Model, view: &ViewState, at: Position) -> Option<String> {
    if view.tab != Tab::Charts {
        return None;
    }
    let inner = view.geometry.inside(parts(model, view.geometry.pane(Pane::Charts))[0]);
    let row = inner.contains(at).then(|| usize::from(at.y - inner.y))?;
    listed(model, view).nth(view.series.top + row).map(|(name, _)| name.clone())
}

/// The series of the list: those that the filter shows.
pub fn listed<'a>(model: &'a Model, view: &'a ViewState) -> impl Iterator<Item = (&'a String, &'a Series)> {
    let filter = view.series.filter.as_str();
    let (wanted, text) = match filter.strip_prefix('!') {
        Some(text) => (false, text),
        None => (true, filter),
    };
    model.charts().filter(move |(name, _)| {
        let has = name.contains(text) || label(name).contains(text);
        text.is_empty() || has == wanted
    })
}

fn page(ctx: &Ctx<'_>, buf: &mut Buffer, area: Rect) {
    let model = ctx.model;
    let parts = parts(model, area);
    let is_shown = |name: &str| is_shown(ctx, name);
    let mut info = Vec::new();
    if !ctx.view.series.filter.is_empty() || ctx.view.editing == Some(Pane::Charts) {
        let cursor = if ctx.view.editing == Some(Pane::Charts) { ctx.glyphs().pick("▏", "_") } else { "" };
        info.push(ctx.s(format!("/{}{cursor}", ctx.cut(&ctx.view.series.filter, 16)), Role::Accent));
    }
    let title = frame::title(ctx, Pane::Charts, "series", listed(model, ctx.view).count().to_string());
    let inner = frame::pane(ctx, buf, parts[0], Pane::Charts, title, info);
    let height = usize::from(inner.height);
    let stalled = fresh::figures(model, ctx.now).is_some_and(|figures| figures.stalled);
    for (row, (name, series)) in listed(model, ctx.view).skip(ctx.view.series.top).take(height).enumerate() {
        let selected = Some(name) == ctx.view.series.selected.as_ref();
        let shown = is_shown(name);
        let mark = if selected { ctx.glyphs().pick("▸", ">") } else { " " };
        let sign = if shown { ctx.glyphs().pick("●", "*") } else { ctx.glyphs().pick("○", "o") };
        let last = match series.last() {
            Some(_) if is_of_now(name) && fresh::is_over(model) => text::NONE.to_string(),
            Some(_) if is_speed(name) && stalled => "0".to_string(),
            last => last.map_or(text::NONE.to_string(), text::short),
        };
        let short = label(name);
        let unique = model.charts().filter(|(other, _)| label(other) == short).count() == 1;
        let called = if unique { short } else { name.as_str() };
        // The names matter more than the last digits.
        let room = usize::from(inner.width).saturating_sub(text::width(&last) + 5);
        let (room, last) = match text::width(called) > room {
            true => (usize::from(inner.width).saturating_sub(4), String::new()),
            false => (room, last),
        };
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
    let names = chosen(ctx);
    let area = beside_list(ctx);
    if area.height < parts[1].height {
        let row = usize::from(area.height);
        put(buf, parts[1], row, Line::from(settings(ctx, usize::from(area.width))));
    }
    if ctx.view.chart.together && names.len() > 1 {
        together(ctx, buf, area, &names, &is_shown);
    } else {
        grid(ctx, buf, area, &names, &is_shown);
    }
}

/// All of them in one chart, with a legend.
fn together(ctx: &Ctx<'_>, buf: &mut Buffer, area: Rect, names: &[&str], is_shown: &impl Fn(&str) -> bool) {
    let axes = axes(ctx, true);
    let title =
        frame::title(ctx, Pane::Charts, "charts", format!("{} over {}", names.len(), axes.scale.axis.name()));
    let at = ctx.view.chart.cursor.map(|at| ctx.s(format!("at {}", axes.scale.label(at)), Role::Text));
    let inner = frame::pane(ctx, buf, area, Pane::Charts, title, at.into_iter().collect());
    let rows = legend(ctx, names, usize::from(inner.width), inner.height);
    let below = rows.len() as u16;
    for (i, row) in rows.into_iter().enumerate() {
        put(buf, inner, i, Line::from(row));
    }
    // The first one is the selected one: it is drawn last, over the others.
    let style = |name: &str| colour(ctx, name, is_shown).unwrap_or(ctx.theme.series[0]);
    let traces: Vec<Trace> =
        names.iter().rev().flat_map(|name| traces(ctx, name, &axes, style(name))).collect();
    let canvas = Rect { y: inner.y + below, height: inner.height - below, ..inner };
    let canvas = plot(ctx.theme, buf, canvas, &traces, &axes);
    ctx.target(canvas, Target::Plot(axes.x.0, axes.x.1));
}

/// Which colour is which series, in as many lines as there is room for.
fn legend(ctx: &Ctx<'_>, names: &[&str], cells: usize, height: u16) -> Vec<Vec<Span<'static>>> {
    let is_shown = |name: &str| is_shown(ctx, name);
    let entries = names.iter().filter_map(|name| {
        let series = ctx.model.chart(name)?;
        let sign = ctx.glyphs().pick("●", "*");
        let style = colour(ctx, name, &is_shown).unwrap_or(ctx.theme.series[0]);
        let mut entry = vec![Span::styled(format!("{sign} {}", label(name)), style)];
        match at_cursor(ctx, series) {
            Some(told) => entry.extend(std::iter::once(Span::raw(" ")).chain(told)),
            None => entry.extend(newest(ctx, name, series, ctx.theme.style(Role::Text), cells)),
        }
        Some(entry)
    });
    let mut rows: Vec<Vec<Span<'static>>> = vec![Vec::new()];
    for entry in entries {
        let last = rows.last().map_or(0, |row| width(row));
        if last > 0 && last + 3 + width(&entry) > cells {
            rows.push(Vec::new());
        }
        if let Some(row) = rows.last_mut() {
            if !row.is_empty() {
                row.push(Span::raw("   "));
            }
            row.extend(entry);
        }
    }
    rows.truncate(usize::from(height / 3).max(1).min(usize::from(height)));
    rows
}

/// Each series keeps its colour while others come and go: by its place among those shown.
fn colour(ctx: &Ctx<'_>, name: &str, is_shown: &impl Fn(&str) -> bool) -> Option<ratatui::style::Style> {
    let at = ctx.model.charts().filter(|(other, _)| is_shown(other)).position(|(other, _)| other == name)?;
    Some(ctx.theme.series[at % 6])
}

/// The first chart large, the others below it side by side.
fn cells<'a>(area: Rect, names: &[&'a str]) -> Vec<(&'a str, Rect)> {
    let Some((first, rest)) = names.split_first() else { return Vec::new() };
    let across = usize::from(area.width / 26).max(1);
    let rows = rest.len().div_ceil(across).min(usize::from(area.height / 9));
    let large =
        if rows == 0 { area.height } else { area.height - area.height * rows as u16 / (rows as u16 + 1) };
    let mut all = vec![(*first, Rect { height: large, ..area })];
    let mut y = area.y + large;
    for (row, names) in rest.chunks(across).take(rows).enumerate() {
        let height = (area.bottom() - y) / (rows - row) as u16;
        let line = Rect { y, height, ..area };
        all.extend(names.iter().copied().zip(columns(line, &vec![1; names.len()])));
        y += height;
    }
    all
}

fn grid(ctx: &Ctx<'_>, buf: &mut Buffer, area: Rect, names: &[&str], is_shown: &impl Fn(&str) -> bool) {
    if names.is_empty() {
        let title = frame::title(ctx, Pane::Charts, "charts", "over env_step");
        let inner = frame::pane(ctx, buf, area, Pane::Charts, title, Vec::new());
        put(buf, inner, usize::from(inner.height / 2), Line::from(ctx.s(empty(ctx), Role::Dim)).centered());
        return;
    }
    for (name, part) in cells(area, names) {
        named(ctx, buf, part, name, is_shown);
    }
}

fn named(ctx: &Ctx<'_>, buf: &mut Buffer, area: Rect, name: &str, is_shown: &impl Fn(&str) -> bool) {
    let Some(series) = ctx.model.chart(name) else { return };
    let style = colour(ctx, name, is_shown).unwrap_or(ctx.theme.series[0]);
    let axes = axes(ctx, true);
    let histogram = ctx.model.histograms.get(name);
    let told = match histogram {
        Some(histogram) => histogram::readouts(ctx, histogram, &axes),
        None => readouts(ctx, name, series),
    };
    let seen = || {
        let points = series.points().iter();
        points.filter(|point| (axes.x.0..=axes.x.1).contains(&axes.scale.of(point.place)))
    };
    let low = seen().map(|point| point.low).fold(f64::INFINITY, f64::min);
    let high = seen().map(|point| point.high).fold(f64::NEG_INFINITY, f64::max);
    let mut newest = newest(ctx, name, series, style, usize::from(area.width).saturating_sub(8));
    let (cells, whole) =
        (usize::from(area.width).saturating_sub(8), told.first().map_or(0, |told| width(told)));
    if whole > 0 && text::width(label(name)) + width(&newest) + whole >= cells {
        // Where not both have room, what is asked for comes first.
        newest.clear();
    }
    let room = cells.saturating_sub(width(&newest));
    let called = label(name);
    // The name that files and `:compare` know, where there is room for it.
    let full = format!(" {name}");
    let both = called != name && text::width(called) + text::width(&full) + whole.max(22) <= room;
    let full = if both { full } else { String::new() };
    let shown = text::width(called).min(SHORT) + text::width(&full);
    let least = fitting(&told, room.saturating_sub(shown + 1)).map_or(0, |told| width(&told) + 1);
    let room = room.saturating_sub(least + text::width(&full));
    let mut title = vec![ctx.s(ctx.cut(called, room), Role::Strong), ctx.s(full, Role::Dim)];
    title.extend(newest);
    let mut info = Vec::new();
    if series.not_finite() > 0 {
        info.push(ctx.s(format!("{} not numbers  ", text::count_in(series.not_finite(), 7)), Role::Bad));
    }
    let left = usize::from(area.width).saturating_sub(width(&title) + width(&info) + 9);
    if let Some(readout) = fitting(&told, left) {
        info.extend(readout);
    } else if low.is_finite() && (info.is_empty() || area.width >= 60) {
        info.push(ctx.s(format!("min {}  max {}", text::short(low), text::short(high)), Role::Dim));
    }
    let inner = frame::pane(ctx, buf, area, Pane::Charts, title, info);
    let canvas = match histogram {
        Some(histogram) => histogram::draw(ctx, buf, inner, histogram, &axes),
        None => plot(ctx.theme, buf, inner, &traces(ctx, name, &axes, style), &axes),
    };
    ctx.target(area, Target::Series(name.to_owned()));
    ctx.target(canvas, Target::Plot(axes.x.0, axes.x.1));
}
