//! The Compare page: results, configuration differences, and one chart of all runs.

use super::{Binding, PageState, draw_item, enabled};
use crate::home::model::Home;
use crate::home::{DrawCtx, HomeAction, HomeCommand, HomePage, HomeRequest, HomeView};
use rankdeck_charts::axis::Axis;
use rankdeck_charts::compare::{CompareOptions, curves, letter, x_range};
use rankdeck_core::compare::ComparedRun;
use rankdeck_kit::frame::titled_rule;
use rankdeck_kit::keys::c;
use rankdeck_kit::list::ListPosition;
use rankdeck_kit::plot::{Axes, Trace, plot};
use rankdeck_kit::text::NONE;
use rankdeck_kit::{Glyphs, Role, bindings, put, text};
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget};

/// Smoothing weights, in order.
const WEIGHTS: [f64; 6] = [0.0, 0.3, 0.6, 0.8, 0.9, 0.99];
/// Maximum number of rows for runs.
const ROWS: usize = 8;
/// Width of the list of series.
const LIST: u16 = 26;
/// Minimum width of the page with the list next to the chart.
const WIDE: u16 = 70;

/// State of the page of comparisons.
#[derive(Debug, Clone, Default)]
pub struct ComparePage {
    /// The series.
    pub list: ListPosition,
    pub options: CompareOptions,
}

/// What a key of this page can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompareCommand {
    Axis,
    LogScale,
    /// Smooth more, or less.
    Smooth(i8),
    /// Group runs that differ only by seed, or not.
    Group,
    Export,
}

const HERE: &[HomePage] = &[HomePage::Compare];

const fn compare(command: CompareCommand) -> HomeCommand {
    HomeCommand::Compare(command)
}

#[rustfmt::skip]
pub(in crate::home) const KEYS: &[Binding] = bindings![
    HERE, compare(CompareCommand::Axis), [c('x')], 1, "axis", "Toggle the x axis: steps, or time since the first value", enabled;
    HERE, compare(CompareCommand::LogScale), [c('y')], 1, "log", "Toggle log scale", enabled;
    HERE, compare(CompareCommand::Smooth(1)), [c('s')], 1, "smooth", "Smooth more", enabled;
    HERE, compare(CompareCommand::Smooth(-1)), [c('S')], 0, "", "Smooth less", enabled;
    HERE, compare(CompareCommand::Group), [c('t')], 1, "seeds", "Toggle seed aggregation", enabled;
    HERE, compare(CompareCommand::Export), [c('e')], 1, "export", "Export all charts as CSV, SVG and PNG", no_runs;
];

fn no_runs(home: &Home, _: &HomeView) -> Option<&'static str> {
    home.compared.runs.is_empty().then_some("no runs to compare; mark runs on page 1, then press c")
}

impl ComparePage {
    /// Runs a command of this page.
    pub(in crate::home) fn perform(&mut self, home: &Home, command: CompareCommand) -> Vec<HomeRequest> {
        let options = &mut self.options;
        match command {
            CompareCommand::Axis => {
                options.axis = if options.axis == Axis::Steps { Axis::Time } else { Axis::Steps };
            }
            CompareCommand::LogScale => options.log = !options.log,
            CompareCommand::Group => options.ungrouped = !options.ungrouped,
            CompareCommand::Smooth(by) => {
                let at = WEIGHTS.iter().position(|weight| *weight >= options.weight).unwrap_or(0);
                options.weight = WEIGHTS[at.saturating_add_signed(isize::from(by)).min(WEIGHTS.len() - 1)];
            }
            CompareCommand::Export => {
                let runs = home.compared.runs.iter().map(|run| run.run.as_str());
                let ungrouped = options.ungrouped.then_some("--apart");
                let args = ["compare"].into_iter().chain(runs).chain(ungrouped).map(str::to_owned).collect();
                let files = vec![("--svg", "svg"), ("--png", "png"), ("--csv", "csv")];
                let export = HomeAction::WriteFiles { args, stem: "compared".to_owned(), files };
                return vec![HomeRequest::Do(export)];
            }
        }
        Vec::new()
    }

    /// Draws the runs, and the config keys that differ.
    fn draw_tables(&self, home: &Home, cx: &DrawCtx<'_>, buf: &mut Buffer, area: Rect) {
        let compared = &home.compared;
        let name = compared.runs.iter().map(|run| text::width(&run.run)).max().unwrap_or(0);
        // The name makes room for the numbers.
        let room = usize::from(area.width).saturating_sub(60);
        let has_last = room >= name.clamp(8, 34) + 9;
        let name = name.clamp(8, 34).min(room.saturating_sub(if has_last { 9 } else { 0 }).max(8));
        let right = |text: &str, cells: usize| cx.right(text, cells);
        // The latest evaluation is the first column to go.
        let last = |text: &str| if has_last { format!(" {}", right(text, 8)) } else { String::new() };
        let head = format!(
            "    {} {} {} {} {} {}{} {}",
            cx.left("RUN", name),
            cx.left("OUTCOME", 9),
            right("STEPS", 8),
            right("STEPS/S", 8),
            right("TIME", 8),
            right("RETURN", 8),
            last("EVAL"),
            right("BEST EVAL", 9)
        );
        let number = |value: Option<f64>| value.map_or(NONE.into(), text::value);
        let mut lines = vec![Line::from(cx.s(head, Role::Dim))];
        for (at, run) in compared.runs.iter().enumerate().take(ROWS) {
            // All runs of a group have the letter of its curve.
            let curve = match self.options.ungrouped {
                true => at,
                false => compared.groups.iter().position(|group| group.runs.contains(&at)).unwrap_or(at),
            };
            let cells = format!(
                "{} {} {} {} {} {}{} {}",
                cx.left(&run.run, name),
                cx.left(&outcome(home, run), 9),
                right(&run.env_step.map_or(NONE.into(), |n| text::count_in(n, 7)), 8),
                right(&run.steps_per_s.map_or(NONE.into(), text::si), 8),
                right(&words::duration(run.duration_s), 8),
                right(&number(run.last_return), 8),
                last(&number(run.last_eval)),
                right(&number(run.best_eval()), 9)
            );
            let sign = Span::styled(format!("  {} ", letter(curve)), style(cx, curve));
            lines.push(Line::from(vec![sign, cx.s(cells, Role::Text)]));
        }
        if let Some(more @ 1..) = compared.runs.len().checked_sub(ROWS) {
            let text = format!("    and {}: `rankdeck compare` lists all", words::plural(more, "more run"));
            lines.push(Line::from(cx.s(cx.cut(&text, area.width.into()), Role::Dim)));
        }
        for line in compared.missing.iter().take(2) {
            lines.push(Line::from(cx.s(cx.cut(&format!("    {line}"), area.width.into()), Role::Warn)));
        }
        for (at, changed) in compared.changed.iter().enumerate().take(ROWS / 2) {
            let values = changed.values.iter().map(|value| value.as_deref().unwrap_or(NONE));
            let more = match compared.changed.len() - ROWS.min(compared.changed.len() * 2) / 2 {
                more if more > 0 && at + 1 == ROWS / 2 => {
                    format!("   and {more} more config keys: `rankdeck compare`")
                }
                _ => String::new(),
            };
            let text = format!("    {}  {}{more}", changed.key, values.collect::<Vec<_>>().join(" | "));
            lines.push(Line::from(cx.s(cx.cut(&text, area.width.into()), Role::Dim)));
        }
        Paragraph::new(lines).render(area, buf);
    }
}

impl PageState for ComparePage {
    fn position(&self) -> &ListPosition {
        &self.list
    }

    fn position_mut(&mut self) -> &mut ListPosition {
        &mut self.list
    }

    fn names(&self, home: &Home) -> Vec<String> {
        home.compared.series.clone()
    }

    fn count(&self, home: &Home) -> usize {
        home.compared.runs.len()
    }

    /// The series, below the tables and left of the chart.
    fn list_area(&self, home: &Home, page: Rect) -> Rect {
        let above = table_rows(home, page);
        let width = if page.width >= WIDE { LIST } else { 0 };
        Rect { y: page.y + above + 1, height: page.height.saturating_sub(above + 1), width, ..page }
    }

    fn draw(&self, home: &Home, cx: &DrawCtx<'_>, buf: &mut Buffer, page: Rect) {
        let compared = &home.compared;
        if compared.runs.is_empty() {
            let mut lines: Vec<(String, Role)> =
                compared.missing.iter().map(|line| (line.clone(), Role::Warn)).collect();
            lines.push(("mark runs on page 1 with space, then press c to compare them".into(), Role::Dim));
            let area = Rect { x: page.x + 2, width: page.width.saturating_sub(4), ..page };
            cx.paragraphs(buf, area, &lines);
            return;
        }
        let above = Rect { height: table_rows(home, page), ..page };
        self.draw_tables(home, cx, buf, above);
        let list = self.list_area(home, page);
        let options = &self.options;
        let name = self.list.selected.clone().unwrap_or_default();
        let series = compared.runs.iter().filter_map(|run| run.series.get(&name));
        let mut title = format!("{name} over {}", options.axis.name_over(series));
        if options.weight > 0.0 {
            title += &format!(", smoothed {}", options.weight);
        }
        if options.log {
            title += ", log";
        }
        if !options.ungrouped && compared.groups.iter().any(|group| group.runs.len() > 1) {
            title += ", mean and band over seeds";
        }
        titled_rule(
            cx.theme,
            buf,
            Rect { y: list.y - 1, height: 1, ..page },
            &cx.cut(&title, usize::from(page.width) - 4),
        );
        for (row, series) in compared.series.iter().skip(self.list.top).take(list.height.into()).enumerate() {
            let selected = self.list.is_selected(series);
            let room = usize::from(list.width).saturating_sub(3);
            // Names of related series differ in their ends.
            let skip = text::width(series).saturating_sub(room);
            let mut shown: String = series.chars().skip(skip).collect();
            if skip > 0 {
                let end: String = shown.chars().skip(1).collect();
                shown = format!("{}{end}", cx.theme.glyphs.pick("…", "~"));
            }
            let role = if selected { Role::Accent } else { Role::Text };
            let line = Line::from(vec![cx.cursor(selected, false), cx.s(words::clean(&shown), role)]);
            draw_item(cx, buf, list, row, line, series, selected);
        }
        let chart = Rect { x: page.x + list.width, width: page.width - list.width, ..list };
        let curves = curves(&compared.runs, &name, options);
        let traces: Vec<Trace> = curves
            .iter()
            .enumerate()
            .map(|(at, curve)| Trace {
                dots: curve.dots.clone(),
                broken: Vec::new(),
                style: style(cx, at),
                single: false,
                letter: Some(letter(at)),
            })
            .collect();
        let axes = Axes { log: options.log, ..options.scale().axes(x_range(&curves)) };
        let legend = curves.len().min(usize::from(chart.height / 3)) as u16;
        let below = Rect { height: chart.height.saturating_sub(legend), ..chart };
        plot(cx.theme, buf, below, &traces, &axes);
        for (at, curve) in curves.iter().take(legend.into()).enumerate() {
            let last = curve.dots.last().map_or(NONE.to_owned(), |dot| text::value(dot.y));
            let line = vec![
                Span::styled(format!("  {} {} ", cx.theme.glyphs.pick("━", "-"), letter(at)), style(cx, at)),
                cx.s(
                    cx.cut(&format!("{} {last}", curve.name), usize::from(chart.width).saturating_sub(7)),
                    Role::Text,
                ),
            ];
            put(buf, Rect { y: below.bottom() + at as u16, height: 1, ..chart }, 0, Line::from(line));
        }
    }
}

/// Returns the number of rows above the chart.
fn table_rows(home: &Home, page: Rect) -> u16 {
    let more = usize::from(home.compared.runs.len() > ROWS);
    let runs = home.compared.runs.len().min(ROWS) + more + 1 + home.compared.missing.len().min(2);
    let keys = match home.compared.changed.len() {
        0 => 0,
        some => some.min(ROWS / 2) + 1,
    };
    ((runs + keys) as u16).min(page.height / 2)
}

fn style(cx: &DrawCtx<'_>, at: usize) -> Style {
    cx.theme.series[at % cx.theme.series.len()]
}

/// Returns the outcome, or the state by the run's hosts if its recording has no end.
fn outcome(home: &Home, run: &ComparedRun) -> String {
    match (run.outcome, home.run(&run.run)) {
        (Some(outcome), _) => outcome.name().into(),
        (None, Some(row)) => row.state(Glyphs::Ascii).1,
        (None, None) => "recording".into(),
    }
}
