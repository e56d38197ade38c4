//! The Charts page: any series, in one chart or one chart each, with what the cursor reads; three at a glance on the
//! overview.

use crate::run::action::{Request, ScreenAction};
use crate::run::command::ScreenCommand;
use crate::run::geometry::{Pane, Tab, columns};
use crate::run::pages::{Page, PageCx, PageDrawCtx, PagePlacement, TargetMouse, WordResult, step};
use crate::run::words::Verb;
use crate::run::{RunScreen, RunTarget, Target, staleness};
use crossterm::event::KeyCode;
use rankdeck_charts::axis::{Axis, Scale};
use rankdeck_charts::export;
use rankdeck_charts::heat::{HeatPlot, column_at, value_range};
use rankdeck_charts::selection::{
    SeriesList, default_series, evaluations, is_live_only, is_rate, label, returns,
};
use rankdeck_charts::view::{ChartView, ChartWindow, MAX_COMPARED, letter, value_at};
use rankdeck_core::model::{ChartMark, ChartMarkKind, HistogramBucket, HistogramSeries, Model};
use rankdeck_core::report::Severity;
use rankdeck_core::series::{Place, Series};
use rankdeck_kit::frame::title_cells;
use rankdeck_kit::keys::{Binding, c, k};
use rankdeck_kit::list::scrolled_to;
use rankdeck_kit::plot::{Axes, Flag, Trace, plot};
use rankdeck_kit::{Role, bindings, fit, put, put_lines, text, width};
use rankdeck_proto::media::Bin;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use std::ops::Deref;

/// Formats of exported series.
const FORMATS: [&str; 3] = ["csv", "svg", "png"];

const CHARTS: &[Pane] = &[Pane::Charts];

/// The keys.
#[rustfmt::skip]
pub static KEYS: &[Binding<RunScreen>] = bindings![
    CHARTS, ScreenCommand::ToggleSeries, [c(' ')], 4, "show/hide", "Show or hide the series", |model, _| no_series(model);
    CHARTS, ScreenCommand::Filter, [c('/')], 11, "filter", "Filter series by name (!text excludes)", |model, _| no_series(model);
    CHARTS, ScreenCommand::Span(1), [c('+'), c('=')], 5, "zoom in", "Zoom in", |model, _| no_series(model);
    CHARTS, ScreenCommand::Span(-1), [c('-')], 5, "zoom out", "Zoom out", |_, view| view.charts.not_zoomed();
    CHARTS, ScreenCommand::Pan(-1), [k(KeyCode::Left), c('h')], 0, "pan left", "Pan left", |_, view| view.charts.not_zoomed();
    CHARTS, ScreenCommand::Pan(1), [k(KeyCode::Right), c('l')], 0, "pan right", "Pan right", |_, view| view.charts.not_zoomed();
    CHARTS, ScreenCommand::Cursor(-1), [c('[')], 6, "cursor", "Move the cursor left", |model, _| no_series(model);
    CHARTS, ScreenCommand::Cursor(1), [c(']')], 0, "cursor right", "Move the cursor right", |model, _| no_series(model);
    CHARTS, ScreenCommand::Cursor(-10), [c('{')], 0, "cursor far left", "Move the cursor left by 10 points", |model, _| no_series(model);
    CHARTS, ScreenCommand::Cursor(10), [c('}')], 0, "cursor far right", "Move the cursor right by 10 points", |model, _| no_series(model);
    CHARTS, ScreenCommand::Pin, [c('m')], 8, "pin", "Pin the cursor to compare values", |_, view| view.charts.no_cursor();
    CHARTS, ScreenCommand::Height(1), [c('K')], 0, "bin up", "Select the next higher histogram bin", |model, view| view.charts.no_histogram(model);
    CHARTS, ScreenCommand::Height(-1), [c('J')], 0, "bin down", "Select the next lower histogram bin", |model, view| view.charts.no_histogram(model);
    CHARTS, ScreenCommand::Smooth(1), [c('s')], 8, "smooth", "Smooth more (as in TensorBoard)", |model, _| no_series(model);
    CHARTS, ScreenCommand::Smooth(-1), [c('S')], 0, "smooth less", "Smooth less", |model, _| no_series(model);
    CHARTS, ScreenCommand::LogScale, [c('L')], 9, "log y", "Toggle log scale", |model, _| no_series(model);
    CHARTS, ScreenCommand::Axis, [c('a')], 9, "x axis", "Cycle the x axis: steps, time, wall clock", |model, _| no_series(model);
    CHARTS, ScreenCommand::Together, [c('o')], 10, "one chart", "Toggle one shared chart", |model, _| no_series(model);
    CHARTS, ScreenCommand::Former, [c('p')], 0, "generations", "Show or hide earlier generations", |model, _| no_former(model);
    CHARTS, ScreenCommand::ExportCharts, [c('e')], 10, "export", "Export shown series as CSV, SVG and PNG", |model, _| no_series(model);
    CHARTS, ScreenCommand::WholeRun, [c('0')], 7, "reset", "Reset the zoom", |_, view| view.charts.not_zoomed();
];

fn no_series(model: &Model) -> Option<&'static str> {
    model.charts().next().is_none().then_some("no data yet")
}

fn no_former(model: &Model) -> Option<&'static str> {
    let has_past = model.charts().any(|(_, series)| series.past().next().is_some());
    (!has_past).then_some("no values of earlier generations")
}

/// The charts page.
#[derive(Debug, Clone, Default)]
pub struct ChartsPage {
    /// The list of series.
    pub series: SeriesList,
    /// How the charts are drawn.
    pub view: ChartView,
}

impl ChartsPage {
    fn no_histogram(&self, model: &Model) -> Option<&'static str> {
        match model.histograms.is_empty() {
            true => Some("no histograms logged yet"),
            false => self.no_cursor(),
        }
    }

    fn no_cursor(&self) -> Option<&'static str> {
        self.view.cursor.is_none().then_some("no cursor; [ or ] places it")
    }

    fn not_zoomed(&self) -> Option<&'static str> {
        (self.view.window.zoom == 0).then_some("already showing the whole run")
    }

    /// Names of the listed series, and the row of the selected one.
    fn list(&self, model: &Model) -> (Vec<String>, Option<usize>) {
        let names: Vec<String> = self.series.listed(model).map(|(name, _)| name.clone()).collect();
        let selected = names.iter().position(|name| Some(name) == self.series.selected.as_ref());
        (names, selected)
    }

    /// Files of the shown series, of these formats or of all.
    fn export(&self, model: &Model, formats: &[&str]) -> Vec<Request> {
        let mut files = export::files(model, &self.series, &self.view);
        files.retain(|file| formats.is_empty() || formats.contains(&file.ending));
        vec![Request::Do(ScreenAction::SaveFiles(files))]
    }

    fn set_axis(&mut self, arguments: &[&str], cx: &PageCx<'_>) -> WordResult {
        let axis = arguments.first().and_then(|name| Axis::from_name(name));
        self.view.set_axis(cx.model, axis.ok_or("usage: axis steps|time|wall")?);
        Ok(shown())
    }

    fn set_smoothing(&mut self, arguments: &[&str]) -> WordResult {
        let weight = arguments.first().and_then(|text| text.parse::<f64>().ok());
        let weight = weight.filter(|weight| (0.0..1.0).contains(weight));
        self.view.set_weight(weight.ok_or("usage: smooth WEIGHT, from 0 to 0.99")?);
        Ok(shown())
    }

    fn toggle(&mut self, arguments: &[&str], cx: &PageCx<'_>) -> WordResult {
        if arguments.is_empty() {
            return Err("usage: chart NAME".into());
        }
        let name = arguments.join(" ");
        if cx.live.chart(&name).is_none() {
            return Err(format!("unknown series `{name}`"));
        }
        self.series.selected = Some(name);
        self.series.toggle_selected(cx.live);
        Ok(shown())
    }

    fn export_as(&self, arguments: &[&str], cx: &PageCx<'_>) -> WordResult {
        if let Some(why) = no_series(cx.live) {
            return Err(format!("export: {why}"));
        }
        if let Some(word) = arguments.iter().find(|word| !FORMATS.contains(word)) {
            return Err(format!("unknown format `{word}`; use csv, svg or png"));
        }
        Ok(self.export(cx.model, arguments))
    }
}

/// Goes to this page.
fn shown() -> Vec<Request> {
    vec![Request::ShowPage(Tab::Charts)]
}

/// Overlays other runs on the charts, or none.
fn compare(arguments: &[&str]) -> WordResult {
    if arguments.len() > MAX_COMPARED {
        return Err(format!("compare: at most {MAX_COMPARED} runs; use `rankdeck compare` for more"));
    }
    let runs = arguments.iter().map(|run| (*run).to_owned()).collect();
    Ok([shown(), vec![Request::Do(ScreenAction::Compare(runs))]].concat())
}

fn names(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl Page for ChartsPage {
    fn draw(&self, ctx: &PageDrawCtx<'_>, buf: &mut Buffer) {
        draw_charts(self, ctx, buf);
    }

    fn settle(&mut self, cx: &mut PageCx<'_>) {
        let moment = &cx.shared.moment;
        self.view.late_s = staleness::charts_late_ms(cx.model, moment.now) as f64 / 1000.0;
        self.view.utc_offset_s = cx.shared.style.utc_offset_s;
        if self.series.selected.as_ref().is_none_or(|name| cx.model.chart(name).is_none()) {
            self.series.selected = default_series(cx.model).first().map(|name| (*name).to_string());
        }
        let (names, selected) = self.list(cx.model);
        if let (Some(first), None) = (names.first(), selected) {
            self.series.selected = Some(first.clone());
        }
        self.series.top = scrolled_to(self.series.top, selected.unwrap_or(0), cx.place.rows(), names.len());
    }

    fn scroll(&mut self, rows: i64, cx: &mut PageCx<'_>) {
        let (names, selected) = self.list(cx.model);
        self.series.selected = names.get(step(selected.unwrap_or(0), rows, names.len())).cloned();
    }

    fn copy(&self, cx: &PageCx<'_>) -> String {
        let selected = self.series.selected.as_deref();
        let series = selected.and_then(|name| Some((name, cx.model.chart(name)?)));
        series.map_or(String::new(), |series| export::csv(&[series]).replace(',', "\t"))
    }

    fn perform(&mut self, command: ScreenCommand, cx: &mut PageCx<'_>) -> Option<Vec<Request>> {
        let (chart, shown) = (&mut self.view, cx.model);
        match command {
            ScreenCommand::Span(by) => chart.zoom(shown, by),
            ScreenCommand::Pan(by) => chart.pan(shown, by),
            ScreenCommand::Axis => chart.set_axis(shown, chart.axis.next()),
            ScreenCommand::Cursor(by) => chart.move_cursor(shown, by),
            ScreenCommand::WholeRun => chart.window = ChartWindow::default(),
            ScreenCommand::Smooth(by) => {
                chart.adjust_smoothing(by);
                cx.shared.toast(format!("smoothing {}", chart.weight()), Role::Dim, cx.now);
            }
            ScreenCommand::LogScale => chart.log = !chart.log,
            ScreenCommand::Together => chart.together = !chart.together,
            ScreenCommand::Former => chart.present_only = !chart.present_only,
            ScreenCommand::Height(by) => chart.move_height(by),
            ScreenCommand::Pin => chart.pin_cursor(),
            ScreenCommand::ToggleSeries => self.series.toggle_selected(cx.live),
            ScreenCommand::ExportCharts => return Some(self.export(shown, &[])),
            _ => return None,
        }
        Some(Vec::new())
    }

    fn run_word(&mut self, verb: Verb, arguments: &[&str], cx: &mut PageCx<'_>) -> Option<WordResult> {
        Some(match verb {
            Verb::Axis => self.set_axis(arguments, cx),
            Verb::Smooth => self.set_smoothing(arguments),
            Verb::Chart => self.toggle(arguments, cx),
            Verb::Export => self.export_as(arguments, cx),
            Verb::Compare => compare(arguments),
            _ => return None,
        })
    }

    fn completions(&self, verb: Verb, model: &Model) -> Option<Vec<String>> {
        match verb {
            Verb::Axis => Some(names(&["steps", "time", "wall"])),
            Verb::Smooth => Some(names(&["0", "0.6", "0.9"])),
            Verb::Chart => Some(model.charts().map(|(name, _)| name.clone()).collect()),
            Verb::Export => Some(names(&FORMATS)),
            _ => None,
        }
    }

    fn click(&mut self, at: Position, cx: &mut PageCx<'_>) -> Vec<Request> {
        let list = list_area(cx.model, cx.place);
        if !cx.place.own_page || !list.contains(at) {
            return Vec::new();
        }
        let row = self.series.top + usize::from(at.y - list.y);
        let Some(name) = self.series.listed(cx.model).nth(row).map(|(name, _)| name.clone()) else {
            return Vec::new();
        };
        if self.series.selected.as_ref() == Some(&name) {
            return vec![Request::Command(ScreenCommand::ToggleSeries)];
        }
        self.series.selected = Some(name);
        Vec::new()
    }

    fn on_target(
        &mut self,
        target: &RunTarget,
        mouse: TargetMouse,
        cx: &mut PageCx<'_>,
    ) -> Option<Vec<Request>> {
        match (target, mouse) {
            (RunTarget::Plot(from, to), mouse) => {
                let position = |at: f64| from + (to - from) * at;
                match mouse {
                    TargetMouse::Click { at, .. } => self.view.place_cursor(position(at), false),
                    TargetMouse::Drag { at } => self.view.place_cursor(position(at), true),
                    TargetMouse::Pin { at } => {
                        self.view.place_cursor(position(at), false);
                        self.view.pin_cursor();
                    }
                    TargetMouse::Wheel { at, turns } => {
                        let by = if turns > 0 { -1 } else { 1 };
                        self.view.zoom_around(cx.model, by, Some(position(at)));
                    }
                }
            }
            (RunTarget::Series(name), TargetMouse::Click { focused, .. }) => {
                self.series.selected = Some(name.clone());
                if focused && !cx.place.own_page {
                    return Some(shown());
                }
            }
            _ => return None,
        }
        Some(Vec::new())
    }

    fn filter(&mut self) -> Option<&mut String> {
        Some(&mut self.series.filter)
    }

    fn back(&mut self) -> bool {
        if self.clear_filter() {
            return true;
        }
        let had_cursor = self.view.cursor.is_some();
        (self.view.cursor, self.view.pin, self.view.height) = (None, None, None);
        had_cursor
    }
}

/// Cells per evaluation from which on they are drawn as dots.
const DOT_CELLS: usize = 4;
/// Fewest cells of the list of series.
const LIST_LEAST: u16 = 22;
/// Most cells of it.
const LIST_MOST: u16 = 40;
/// Cells that a chart keeps for its name next to the values at the cursor.
const SHORT: usize = 8;
/// Cells next to a name in it.
const NAME_ROOM: u16 = 6;

/// What the charts are drawn with.
struct ChartsCtx<'a> {
    page: &'a ChartsPage,
    ctx: &'a PageDrawCtx<'a>,
    /// Series shown in addition to the selected one.
    shown: Vec<&'a str>,
}

impl<'a> Deref for ChartsCtx<'a> {
    type Target = PageDrawCtx<'a>;

    fn deref(&self) -> &PageDrawCtx<'a> {
        self.ctx
    }
}

/// Draws the pane: charts at a glance on the overview, the list and any charts on their own page.
fn draw_charts(page: &ChartsPage, ctx: &PageDrawCtx<'_>, buf: &mut Buffer) {
    let (area, own_page) = (ctx.place.area(), ctx.place.own_page);
    let ctx = &ChartsCtx { page, ctx, shown: page.series.shown_names(ctx.model) };
    match own_page {
        true => whole_page(ctx, buf, area),
        false => glance(ctx, buf, area, &default_series(ctx.model)),
    }
}

/// An empty frame, and why there is nothing to draw.
fn no_charts(ctx: &ChartsCtx<'_>, buf: &mut Buffer, area: Rect) {
    let inner = ctx.pane(buf, area, ctx.title("charts", "over env_step"), Vec::new());
    let own = ctx.model.plan.as_ref().filter(|plan| !plan.is_builtin());
    let why = match own.is_some_and(|plan| plan.experiment.metrics == Default::default()) {
        true => "no values found in the output yet; set patterns in [metrics]",
        false => "no values yet",
    };
    put(buf, inner, usize::from(inner.height / 2), Line::from(ctx.s(why, Role::Dim)).centered());
}

/// Charts side by side, each with its own frame.
fn glance(ctx: &ChartsCtx<'_>, buf: &mut Buffer, area: Rect, names: &[&str]) {
    if names.is_empty() {
        return no_charts(ctx, buf, area);
    }
    let most = usize::from(area.width / 26).max(1);
    let shown = &names[..names.len().min(most)];
    let parts = columns(area, &vec![1; shown.len()]);
    for (i, (name, part)) in shown.iter().zip(parts).enumerate() {
        single(ctx, buf, part, name, i);
    }
}

/// One framed chart; the return has the evaluations as points on it.
fn single(ctx: &ChartsCtx<'_>, buf: &mut Buffer, area: Rect, name: &str, colour: usize) {
    let Some(series) = ctx.model.chart(name) else { return };
    let room = title_cells(area);
    let beside = room.saturating_sub(text::width(label(name)));
    let newest = newest(ctx, name, series, ctx.theme.series[colour % 6], beside);
    // The newest value matters most: a long name gives way to it.
    let called = ctx.cut(label(name), room.saturating_sub(width(&newest)));
    let mut title = ctx.title(&called, "");
    title.extend(newest);
    let evals = evaluations(ctx.model).filter(|_| returns(ctx.model) == Some(name));
    let mut info = Vec::new();
    if let Some(eval) = evals.and_then(|evals| evals.last()) {
        let sign = ctx.glyphs().pick("•", "o");
        info.push(Span::styled(format!("{sign} eval {}", text::value(eval)), ctx.theme.series[1]));
    }
    let inner = ctx.pane(buf, area, title, info);
    let (axes, scale) = axes(ctx, false);
    if let Some(histogram) = ctx.model.histograms.get(name) {
        ctx.target(area, Target::Own(RunTarget::Series(name.to_owned())));
        heat_map(ctx, buf, inner, (histogram, &scale), &axes);
        return;
    }
    let weight = ctx.page.view.weight();
    let trace = scale.line(series, weight, ctx.theme.series[colour % 6]);
    let mut traces = ctx.page.view.past_lines(series, &scale, ctx.theme.dim);
    if let Some(evals) = evals {
        // As dots over the line as long as they leave it visible, else as a line below it.
        let single = evals.points().len() * DOT_CELLS <= usize::from(inner.width);
        let evals = Trace { single, ..scale.line(evals, 0.0, ctx.theme.series[1]) };
        traces.extend(if single { [trace, evals] } else { [evals, trace] });
    } else {
        traces.push(trace);
    }
    let inner = Rect { width: inner.width.saturating_sub(u16::from(!ctx.place.geo.boxed)), ..inner };
    ctx.target(area, Target::Own(RunTarget::Series(name.to_owned())));
    plot(ctx.theme, buf, inner, &traces, &axes);
}

/// The axes of all charts; `detailed`: with cursors and flags.
fn axes(ctx: &ChartsCtx<'_>, detailed: bool) -> (Axes, Scale) {
    let view = &ctx.page.view;
    let scale = view.scale(ctx.model);
    let (cursors, flags) = match detailed {
        true => {
            (view.pin.into_iter().chain(view.cursor).collect(), flags(ctx, |place| scale.position(place)))
        }
        false => (Vec::new(), Vec::new()),
    };
    // At a glance, only this run is drawn.
    let x = if detailed { view.window(ctx.model) } else { view.own_window(ctx.model) };
    (Axes { log: view.log, cursors, flags, ..scale.axes(x) }, scale)
}

/// Restarts, verdicts and checkpoints.
fn flags(ctx: &ChartsCtx<'_>, x: impl Fn(Place) -> f64) -> Vec<Flag> {
    let glyphs = ctx.glyphs();
    let sign = |text: &'static str| text.chars().next().unwrap_or(' ');
    let flag = |mark: &ChartMark| {
        let (text, unicode, ascii, role, low) = match mark.kind {
            ChartMarkKind::Generation(generation) => {
                (format!("gen {generation}"), "┊", ":", Role::Text, false)
            }
            ChartMarkKind::Verdict(kind, severity) => {
                let role = if severity == Severity::Red { Role::Bad } else { Role::Warn };
                let sign = glyphs.tone(role);
                (kind.name().to_string(), sign, sign, role, false)
            }
            ChartMarkKind::Checkpoint => (String::new(), "▴", "^", Role::Dim, true),
            ChartMarkKind::Membership { members, world } => {
                let role = if members < world { Role::Warn } else { Role::Good };
                (format!("{members}/{world} ranks"), "┊", ":", role, false)
            }
        };
        let sign = sign(glyphs.pick(unicode, ascii));
        Flag { x: x(mark.place), sign, text, style: ctx.theme.style(role), low }
    };
    // What matters is drawn last.
    let order = |mark: &&ChartMark| match mark.kind {
        ChartMarkKind::Checkpoint => 0,
        ChartMarkKind::Generation(_) | ChartMarkKind::Membership { .. } => 1,
        ChartMarkKind::Verdict(_, Severity::Red) => 3,
        ChartMarkKind::Verdict(..) => 2,
    };
    let mut marks: Vec<_> = ctx.model.marks.iter().collect();
    marks.sort_by_key(order);
    marks.into_iter().map(flag).collect()
}

/// The newest value, dim with its age once the run's figures are late, red when it is not a number. A run
/// that is over has no speed. An age that does not fit `room` is left out rather than cut.
fn newest(ctx: &ChartsCtx<'_>, name: &str, series: &Series, style: Style, room: usize) -> Vec<Span<'static>> {
    if is_live_only(name) && staleness::is_over(ctx.model) {
        return vec![ctx.s(format!(" {}", text::NONE), Role::Dim)];
    }
    let last = series.last().map_or(text::NONE.to_string(), text::value);
    let late = staleness::figures(ctx.model, ctx.now).and_then(|figures| figures.late_ms);
    match late {
        _ if series.last().is_some_and(|last| !last.is_finite()) => {
            vec![ctx.s(format!(" {last}"), Role::Bad)]
        }
        Some(age) => {
            let aged = format!(" {last} {} ago", staleness::coarse(age));
            let readout = if text::width(&aged) <= room { aged } else { format!(" {last}") };
            vec![ctx.s(readout, Role::Dim)]
        }
        None => vec![Span::styled(format!(" {last}"), style)],
    }
}

/// The list of series, as wide as its names if that is not too much, and the charts next to it.
fn parts(model: &Model, area: Rect) -> [Rect; 2] {
    let names = model.charts().map(|(name, _)| text::width(label(name)) as u16 + NAME_ROOM);
    let most = (area.width / 3).clamp(LIST_LEAST, LIST_MOST);
    let list = names.max().unwrap_or(0).max(area.width / 4).clamp(LIST_LEAST, most);
    [Rect { width: list, ..area }, Rect { x: area.x + list, width: area.width.saturating_sub(list), ..area }]
}

/// Where the list of series is.
fn list_area(model: &Model, place: PagePlacement<'_>) -> Rect {
    place.geo.inside(parts(model, place.area())[0])
}

/// The list of series, and next to it the charts, above the line of settings.
fn whole_page(ctx: &ChartsCtx<'_>, buf: &mut Buffer, area: Rect) {
    let [list, mut charts] = parts(ctx.model, area);
    let series = &ctx.page.series;
    let title = ctx.title("series", series.listed(ctx.model).count().to_string());
    let inner = ctx.pane(buf, list, title, ctx.typed_filter(&series.filter, 16));
    let entries = series.listed(ctx.model).skip(series.top).take(usize::from(inner.height));
    put_lines(buf, inner, entries.map(|(name, series)| entry(ctx, name, series, inner.width)));
    if charts.height >= 8 {
        charts.height -= 1;
        let below = Rect { y: charts.bottom(), height: 1, ..charts };
        put(buf, below, 0, Line::from(settings(ctx, usize::from(charts.width))));
    }
    let names = series.drawn(ctx.model);
    match ctx.page.view.together && names.len() > 1 {
        true => together(ctx, buf, charts, &names),
        false => grid(ctx, buf, charts, &names),
    }
}

/// An entry of the list: whether it is selected and shown, its name, its newest value.
fn entry(ctx: &ChartsCtx<'_>, name: &str, series: &Series, width: u16) -> Line<'static> {
    let model = ctx.model;
    let selected = Some(name) == ctx.page.series.selected.as_deref();
    let shown = ctx.shown.contains(&name);
    let mark = if selected { ctx.glyphs().pick("▸", ">") } else { " " };
    let sign = if shown { ctx.glyphs().pick("●", "*") } else { ctx.glyphs().pick("○", "o") };
    let is_stalled = || staleness::figures(model, ctx.now).is_some_and(|figures| figures.stalled);
    let last = match series.last() {
        Some(_) if is_live_only(name) && staleness::is_over(model) => text::NONE.to_string(),
        Some(_) if is_rate(name) && is_stalled() => "0".to_string(),
        last => last.map_or(text::NONE.to_string(), text::short),
    };
    let short = label(name);
    let unique = model.charts().filter(|(other, _)| label(other) == short).count() == 1;
    let called = if unique { short } else { name };
    // The names matter more than the last digits.
    let room = usize::from(width).saturating_sub(text::width(&last) + 5);
    let (room, last) = match text::width(called) > room {
        true => (usize::from(width).saturating_sub(4), String::new()),
        false => (room, last),
    };
    let role = match (selected, shown) {
        (true, _) => Role::Strong,
        (false, true) => Role::Text,
        (false, false) => Role::Dim,
    };
    Line::from(vec![
        ctx.s(mark, Role::Accent),
        Span::styled(format!("{sign} "), colour(ctx, name).unwrap_or(ctx.theme.dim)),
        ctx.s(ctx.left(called, room), role),
        ctx.s(format!(" {last}"), role),
    ])
}

/// All of them in one chart, with a legend.
fn together(ctx: &ChartsCtx<'_>, buf: &mut Buffer, area: Rect, names: &[&str]) {
    let (axes, scale) = axes(ctx, true);
    let axis = scale.axis.name_over(names.iter().filter_map(|name| ctx.model.chart(name)));
    let title = ctx.title("charts", format!("{} over {axis}", names.len()));
    let at = ctx.page.view.cursor.map(|at| ctx.s(format!("at {}", scale.label(at)), Role::Text));
    let inner = ctx.pane(buf, area, title, at.into_iter().collect());
    let rows = legend(ctx, names, usize::from(inner.width), inner.height);
    let below = rows.len() as u16;
    put_lines(buf, inner, rows.into_iter().map(Line::from));
    // The first one is the selected one: it is drawn last, over the others.
    let style = |name: &str| colour(ctx, name).unwrap_or(ctx.theme.series[0]);
    let traces: Vec<Trace> =
        names.iter().rev().flat_map(|name| traces(ctx, name, &scale, style(name))).collect();
    let canvas = Rect { y: inner.y + below, height: inner.height - below, ..inner };
    let canvas = plot(ctx.theme, buf, canvas, &traces, &axes);
    ctx.target(canvas, Target::Own(RunTarget::Plot(axes.x.0, axes.x.1)));
}

/// Which colour is which series, in as many lines as there is room for.
fn legend(ctx: &ChartsCtx<'_>, names: &[&str], cells: usize, height: u16) -> Vec<Vec<Span<'static>>> {
    let entries = names.iter().filter_map(|name| {
        let series = ctx.model.chart(name)?;
        let sign = ctx.glyphs().pick("●", "*");
        let style = colour(ctx, name).unwrap_or(ctx.theme.series[0]);
        let mut entry = vec![Span::styled(format!("{sign} {}", label(name)), style)];
        match at_cursor(ctx, series) {
            Some(readout) => entry.extend(std::iter::once(Span::raw(" ")).chain(readout)),
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
fn colour(ctx: &ChartsCtx<'_>, name: &str) -> Option<Style> {
    let is_shown = |name: &str| ctx.shown.contains(&name);
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

fn grid(ctx: &ChartsCtx<'_>, buf: &mut Buffer, area: Rect, names: &[&str]) {
    if names.is_empty() {
        return no_charts(ctx, buf, area);
    }
    for (name, part) in cells(area, names) {
        named(ctx, buf, part, name);
    }
}

fn named(ctx: &ChartsCtx<'_>, buf: &mut Buffer, area: Rect, name: &str) {
    let Some(series) = ctx.model.chart(name) else { return };
    let style = colour(ctx, name).unwrap_or(ctx.theme.series[0]);
    let (axes, scale) = axes(ctx, true);
    let histogram = ctx.model.histograms.get(name);
    let readout = match histogram {
        Some(histogram) => bin_readouts(ctx, histogram, &axes, &scale),
        None => readouts(ctx, name, series),
    };
    let seen = || {
        let points = series.points().iter();
        points.filter(|point| (axes.x.0..=axes.x.1).contains(&scale.position(point.place)))
    };
    let low = seen().map(|point| point.low).fold(f64::INFINITY, f64::min);
    let high = seen().map(|point| point.high).fold(f64::NEG_INFINITY, f64::max);
    let mut newest = newest(ctx, name, series, style, usize::from(area.width).saturating_sub(8));
    let (cells, whole) =
        (usize::from(area.width).saturating_sub(8), readout.first().map_or(0, |readout| width(readout)));
    if whole > 0 && text::width(label(name)) + width(&newest) + whole >= cells {
        // Where not both have room, the requested value comes first.
        newest.clear();
    }
    let room = cells.saturating_sub(width(&newest));
    let called = label(name);
    // The name that files and `:compare` know, where there is room for it.
    let full = format!(" {name}");
    let both = called != name && text::width(called) + text::width(&full) + whole.max(22) <= room;
    let full = if both { full } else { String::new() };
    let shown = text::width(called).min(SHORT) + text::width(&full);
    let least = fitting(&readout, room.saturating_sub(shown + 1)).map_or(0, |readout| width(&readout) + 1);
    let room = room.saturating_sub(least + text::width(&full));
    let mut title = vec![ctx.s(ctx.cut(called, room), Role::Strong), ctx.s(full, Role::Dim)];
    title.extend(newest);
    let mut info = Vec::new();
    if series.not_finite() > 0 {
        info.push(ctx.s(format!("{} not finite  ", text::count_in(series.not_finite(), 7)), Role::Bad));
    }
    let left = usize::from(area.width).saturating_sub(width(&title) + width(&info) + 9);
    if let Some(readout) = fitting(&readout, left) {
        info.extend(readout);
    } else if low.is_finite() && (info.is_empty() || area.width >= 60) {
        let range = format!("min {}  max {}", text::short(low), text::short(high));
        let old = abandoned(ctx, series, left.saturating_sub(text::width(&range) + 2));
        info.push(ctx.s(old + &range, Role::Dim));
    }
    let inner = ctx.pane(buf, area, title, info);
    let canvas = match histogram {
        Some(histogram) => heat_map(ctx, buf, inner, (histogram, &scale), &axes),
        None => plot(ctx.theme, buf, inner, &traces(ctx, name, &scale, style), &axes),
    };
    ctx.target(area, Target::Own(RunTarget::Series(name.to_owned())));
    ctx.target(canvas, Target::Own(RunTarget::Plot(axes.x.0, axes.x.1)));
}

/// What restarts have discarded, newest first, as far as there is room: `gen 0 ┄ 85 (abandoned at 5.2k)  `.
fn abandoned(ctx: &ChartsCtx<'_>, series: &Series, cells: usize) -> String {
    if ctx.page.view.present_only {
        return String::new();
    }
    let line = ctx.glyphs().pick("┄", "..");
    let parts: Vec<_> = series.past().collect();
    let mut all = String::new();
    for (generation, points) in parts.into_iter().rev() {
        let Some(last) = points.last() else { continue };
        let (value, step) = (text::short(last.mean), text::si(last.place.step));
        let part = format!("gen {generation} {line} {value} (abandoned at {step})  ");
        if text::width(&all) + text::width(&part) > cells {
            break;
        }
        all.push_str(&part);
    }
    all
}

/// A series of this run, of the compared runs, which lie below, and what restarts have discarded, at the
/// bottom.
fn traces(ctx: &ChartsCtx<'_>, name: &str, scale: &Scale, style: Style) -> Vec<Trace> {
    let view = &ctx.page.view;
    let Some(own) = ctx.model.chart(name) else { return Vec::new() };
    let mut all = view.past_lines(own, scale, ctx.theme.dim);
    let own = scale.line(own, view.weight(), style);
    all.extend(view.compared.iter().enumerate().filter_map(|(at, run)| {
        let scale = run.scale(scale);
        let trace = scale.line(run.series.get(name)?, view.weight(), other(ctx, style, at));
        Some(Trace { letter: Some(letter(at + 1)), ..trace })
    }));
    let letter = (!view.compared.is_empty()).then(|| letter(0));
    all.push(Trace { letter, ..own });
    all
}

/// The style of another run next to a line of this style.
fn other(ctx: &ChartsCtx<'_>, own: Style, at: usize) -> Style {
    let series = &ctx.theme.series;
    let taken = series.iter().position(|style| *style == own).unwrap_or(0);
    series[(taken + 1 + at) % series.len()]
}

/// The value of a series at the cursor, and its difference from the one at the pin.
fn at_cursor(ctx: &ChartsCtx<'_>, series: &Series) -> Option<Vec<Span<'static>>> {
    let view = &ctx.page.view;
    let scale = view.scale(ctx.model);
    let (_, value) = value_at(series, &scale, view.cursor?)?;
    let mut spans = vec![ctx.s(text::value(value), Role::Strong)];
    if let Some((_, before)) = view.pin.and_then(|pin| value_at(series, &scale, pin)) {
        let sign = if value >= before { "+" } else { "" };
        let delta = ctx.glyphs().pick("Δ", "diff");
        spans.push(ctx.s(format!(" {delta} {sign}{}", text::value(value - before)), Role::Accent));
    }
    Some(spans)
}

/// The same with where that is, and with the values of other runs there; then without, in fewer cells. None
/// where there is no cursor.
fn readouts(ctx: &ChartsCtx<'_>, name: &str, series: &Series) -> Vec<Vec<Span<'static>>> {
    let view = &ctx.page.view;
    let scale = view.scale(ctx.model);
    let found = view.cursor.and_then(|cursor| value_at(series, &scale, cursor));
    let Some((at, short)) = found.and_then(|(at, _)| Some((at, at_cursor(ctx, series)?))) else {
        return Vec::new();
    };
    let mut long = short.clone();
    for (nth, run) in view.compared.iter().enumerate() {
        let there = run.series.get(name).and_then(|series| value_at(series, &run.scale(&scale), at));
        let there = there.map_or(text::NONE.to_string(), |(_, value)| text::value(value));
        long.push(ctx.s(format!("  {} {there}", letter(nth + 1)), Role::Text));
    }
    let place = ctx.s(format!("at {} ", scale.label(at)), Role::Dim);
    let whole = std::iter::once(place).chain(long.clone()).collect();
    let value = short.first().cloned().into_iter().collect();
    vec![whole, long, short, value]
}

/// The first of some forms that fits.
fn fitting(forms: &[Vec<Span<'static>>], cells: usize) -> Option<Vec<Span<'static>>> {
    forms.iter().find(|form| width(form) <= cells).or(forms.last()).cloned()
}

/// Draws the heat map.
fn heat_map(
    ctx: &ChartsCtx<'_>,
    buf: &mut Buffer,
    area: Rect,
    (series, scale): (&HistogramSeries, &Scale),
    axes: &Axes,
) -> Rect {
    let height = ctx.page.view.cursor.and(ctx.page.view.height);
    HeatPlot { series, scale, height }.draw(ctx.theme, ctx.shared.style.colours, buf, area, axes)
}

/// The bin at the height of the cursor, or the fullest.
fn bin_at(column: &HistogramBucket, height: Option<f64>, y: Option<(f64, f64)>) -> Option<Bin> {
    match height.zip(y) {
        Some((height, (low, high))) => column.bins.bin_at(low + (high - low) * height),
        None => column.bins.fullest(),
    }
}

/// The bin and its count at the cursor, of how many values, and how far the mean is from that at the pin;
/// then the same in fewer cells. None where there is no cursor.
fn bin_readouts(
    ctx: &ChartsCtx<'_>,
    series: &HistogramSeries,
    axes: &Axes,
    scale: &Scale,
) -> Vec<Vec<Span<'static>>> {
    let view = &ctx.page.view;
    let Some(column) = view.cursor.and_then(|cursor| column_at(series, scale, cursor)) else {
        return Vec::new();
    };
    let mut spans = Vec::new();
    let y = value_range(series, scale, axes.x);
    let of = words::count(column.bins.total().round() as u64);
    match bin_at(column, view.height, y) {
        Some(bin) => {
            let [low, high] = text::apart([bin.low, bin.high]);
            let what = if view.height.is_none() { "most in " } else { "in " };
            spans.push(ctx.s(format!("{what}{low} to {high} "), Role::Dim));
            spans.push(ctx.s(words::count(bin.count.round() as u64), Role::Strong));
            // With a pin there is more next to it.
            if view.pin.is_none() {
                spans.push(ctx.s(format!(" of {of}"), Role::Dim));
            }
        }
        None => spans.push(ctx.s(format!("0 of {of}"), Role::Dim)),
    }
    if let Some(before) = view.pin.and_then(|pin| column_at(series, scale, pin)) {
        let apart = column.bins.mean() - before.bins.mean();
        let sign = if apart >= 0.0 { "+" } else { "" };
        let delta = ctx.glyphs().pick("Δ", "diff");
        spans.push(ctx.s(format!(" mean {delta} {sign}{}", text::value(apart)), Role::Accent));
    }
    let place = ctx.s(format!("at {} ", scale.label(scale.position(column.place))), Role::Dim);
    let whole = std::iter::once(place).chain(spans.clone()).collect();
    // Of the bin alone, its place and its count.
    let bin = spans.iter().take(2).cloned().collect();
    vec![whole, spans, bin]
}

/// How the charts are drawn, with the keys that change it.
fn settings(ctx: &ChartsCtx<'_>, cells: usize) -> Vec<Span<'static>> {
    let view = &ctx.page.view;
    let scale = view.scale(ctx.model);
    let setting = |name: &str, value: String, key: &str| {
        vec![
            ctx.s(format!("{name} "), Role::Dim),
            ctx.s(value, Role::Text),
            ctx.s(format!(" {key}"), Role::Accent),
        ]
    };
    let mut groups = Vec::new();
    if let Some(cursor) = view.cursor {
        let mut group = setting("cursor", scale.label(cursor), "[ ]");
        if let Some(pin) = view.pin.filter(|pin| *pin != cursor) {
            let apart = match view.axis {
                Axis::Steps => text::si((cursor - pin).abs()),
                _ => words::duration((cursor - pin).abs()),
            };
            group.push(ctx.s(format!(" {apart} from {}", scale.label(pin)), Role::Dim));
        }
        groups.push(group);
    }
    if !view.compared.is_empty() {
        let taken: usize = groups.iter().map(|group| width(group) + 3).sum();
        let room = cells.saturating_sub(taken + "compared  :compare".len());
        groups.push(setting("compared", compared(ctx, room), ":compare"));
    }
    let axis = view.axis.name_over(ctx.shown.iter().filter_map(|name| ctx.model.chart(name)));
    groups.push(setting("x", axis.into(), "a"));
    if view.window.zoom > 0 {
        let [from, to] = scale.labels([view.window(ctx.model).0, view.window(ctx.model).1]);
        groups.push(setting("shown", format!("{from} to {to}"), "0"));
    }
    let weight = view.weight();
    let smooth = if weight > 0.0 { weight.to_string() } else { "off".into() };
    groups.push(setting("smooth", smooth, "s/S"));
    groups.push(setting("y", if view.log { "log" } else { "linear" }.into(), "L"));
    if view.together {
        groups.push(setting("one chart", "on".into(), "o"));
    }
    if view.present_only {
        groups.push(setting("earlier generations", "hidden".into(), "p"));
    }
    let withheld = ctx.model.drops.withheld;
    if withheld > 0 && !ctx.model.histograms.is_empty() {
        let text =
            format!("{} histograms or images dropped by the agents: too many", text::count_in(withheld, 7));
        groups.push(vec![ctx.s(text, Role::Dim)]);
    }
    fit(ctx, groups, cells)
}

/// Letters and names of the compared runs, the names as long as there is room for all of them.
fn compared(ctx: &ChartsCtx<'_>, cells: usize) -> String {
    let runs = &ctx.page.view.compared;
    // A letter, a gap, and what parts it from the next.
    let each = (cells / runs.len().max(1)).saturating_sub(4);
    let whole: usize = runs.iter().map(|run| text::width(&run.name) + 4).sum();
    let named = runs.iter().enumerate().map(|(at, run)| {
        let name = if whole <= cells + 2 { run.name.clone() } else { middle_cut(ctx, &run.name, each) };
        format!("{} {name}", letter(at + 1))
    });
    named.collect::<Vec<_>>().join(", ")
}

/// Names of runs differ in how they begin and how they end.
fn middle_cut(ctx: &ChartsCtx<'_>, name: &str, cells: usize) -> String {
    if text::width(name) <= cells {
        return name.to_owned();
    }
    let chars: Vec<char> = name.chars().collect();
    let (begin, end) = (cells.div_ceil(2), (cells / 2).saturating_sub(1));
    let begin: String = chars.iter().take(begin).collect();
    let end: String = chars.iter().skip(chars.len().saturating_sub(end)).collect();
    ctx.cut(&format!("{begin}{}{end}", ctx.glyphs().pick("…", "~")), cells)
}
