//! The Charts page: any series, in one chart or one chart each.

mod draw;

use crate::run::action::{Request, ScreenAction};
use crate::run::command::ScreenCommand;
use crate::run::geometry::{Pane, Tab};
use crate::run::pages::{Page, PageCx, PageDrawCtx, TargetMouse, WordResult, step};
use crate::run::staleness;
use crate::run::words::Verb;
use crate::run::{RunScreen, RunTarget};
use crossterm::event::KeyCode;
use rankdeck_charts::axis::Axis;
use rankdeck_charts::export;
use rankdeck_charts::selection::{SeriesList, default_series};
use rankdeck_charts::view::{ChartView, ChartWindow, MAX_COMPARED};
use rankdeck_core::model::Model;
use rankdeck_kit::keys::{Binding, c, k};
use rankdeck_kit::list::scrolled_to;
use rankdeck_kit::{Role, bindings};
use ratatui::buffer::Buffer;
use ratatui::layout::Position;

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
        draw::draw(self, ctx, buf);
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
        let list = draw::list_area(cx.model, cx.place);
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
