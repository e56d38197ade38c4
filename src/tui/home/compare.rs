//! The page of runs beside each other: what they came to, what differs, one chart of all of them.

use super::model::{Home, RunRow};
use super::pen::{Pen, paragraph, rule};
use super::runs;
use super::state::HomeView;
use crate::chart_view::Axis;
use crate::compare::{curves, letter, reach};
use crate::text::{self, NONE};
use crate::theme::{Glyphs, Role};
use crate::widgets::plot::{Axes, Trace, plot};
use crate::widgets::put;
use rankdeck_core::compare::ComparedRun;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

/// Most rows for runs, and for keys that differ.
const ROWS: usize = 8;
/// Width of the list of series.
const LIST: u16 = 26;
/// Columns from which on the list stands beside the chart.
const WIDE: u16 = 70;

/// Rows above the chart.
fn head(home: &Home, page: Rect) -> u16 {
    let more = usize::from(home.compared.runs.len() > ROWS);
    let runs = home.compared.runs.len().min(ROWS) + more + 1 + home.compared.missing.len().min(2);
    let keys = match home.compared.changed.len() {
        0 => 0,
        some => some.min(ROWS / 2) + 1,
    };
    ((runs + keys) as u16).min(page.height / 2)
}

/// Where the series are listed.
pub(super) fn list_area(page: Rect, home: &Home) -> Rect {
    let above = head(home, page);
    let width = if page.width >= WIDE { LIST } else { 0 };
    Rect { y: page.y + above + 1, height: page.height.saturating_sub(above + 1), width, ..page }
}

pub(super) fn draw(pen: &Pen<'_>, buf: &mut Buffer, page: Rect, home: &Home, view: &HomeView) {
    let compared = &home.compared;
    if compared.runs.is_empty() {
        let mut lines: Vec<(String, Role)> =
            compared.missing.iter().map(|line| (line.clone(), Role::Warn)).collect();
        lines.push(("mark runs on page 1 with space, then c puts them beside each other".into(), Role::Dim));
        let area = Rect { x: page.x + 2, width: page.width.saturating_sub(4), ..page };
        paragraph(pen, buf, area, &lines, 0);
        return;
    }
    let above = Rect { height: head(home, page), ..page };
    tables(pen, buf, above, home, view);
    let list = list_area(page, home);
    let looks = &view.looks;
    let name = view.series.clone().unwrap_or_default();
    let mut title = format!("{name} over {}", if looks.axis == Axis::Steps { "steps" } else { "time" });
    if looks.weight > 0.0 {
        title += &format!(", smoothed {}", looks.weight);
    }
    if looks.log {
        title += ", log";
    }
    if !looks.apart && compared.groups.iter().any(|group| group.runs.len() > 1) {
        title += ", seeds as mean and band";
    }
    rule(pen, buf, Rect { y: list.y - 1, height: 1, ..page }, &pen.cut(&title, usize::from(page.width) - 4));
    for (at, series) in compared.series.iter().enumerate().skip(view.top[3]).take(list.height.into()) {
        let selected = view.series.as_ref() == Some(series);
        let room = usize::from(list.width).saturating_sub(3);
        // The end tells series of one family apart.
        let skip = text::width(series).saturating_sub(room);
        let mut shown: String = series.chars().skip(skip).collect();
        if skip > 0 {
            let rest: String = shown.chars().skip(1).collect();
            shown = format!("{}{rest}", pen.theme.glyphs.pick("…", "~"));
        }
        let role = if selected { Role::Accent } else { Role::Text };
        let line = Line::from(vec![pen.cursor(selected, false), pen.s(words::clean(&shown), role)]);
        pen.row(buf, list, at - view.top[3], line, selected);
    }
    let chart = Rect { x: page.x + list.width, width: page.width - list.width, ..list };
    let curves = curves(&compared.runs, &name, looks);
    let traces: Vec<Trace> = curves
        .iter()
        .enumerate()
        .map(|(at, curve)| Trace {
            dots: curve.dots.clone(),
            broken: Vec::new(),
            style: style(pen, at),
            single: false,
            letter: Some(letter(at)),
        })
        .collect();
    let axes = Axes { scale: looks.scale(), log: looks.log, ..Axes::steps(reach(&curves)) };
    let legend = curves.len().min(usize::from(chart.height / 3)) as u16;
    let below = Rect { height: chart.height.saturating_sub(legend), ..chart };
    plot(pen.theme, buf, below, &traces, &axes);
    for (at, curve) in curves.iter().take(legend.into()).enumerate() {
        let last = curve.dots.last().map_or(NONE.to_owned(), |dot| text::value(dot.y));
        let line = vec![
            Span::styled(format!("  {} {} ", pen.theme.glyphs.pick("━", "-"), letter(at)), style(pen, at)),
            pen.s(
                pen.cut(&format!("{} {last}", curve.name), usize::from(chart.width).saturating_sub(7)),
                Role::Text,
            ),
        ];
        put(buf, Rect { y: below.bottom() + at as u16, height: 1, ..chart }, 0, Line::from(line));
    }
}

fn style(pen: &Pen<'_>, at: usize) -> Style {
    pen.theme.series[at % pen.theme.series.len()]
}

/// How it ended; what its hosts say where its record has no end.
fn outcome(home: &Home, run: &ComparedRun) -> String {
    let row = || home.runs.iter().find(|row| row.run == run.run);
    let told = |row: &RunRow| runs::state(row, Glyphs::Ascii).1;
    run.outcome.map_or_else(|| row().map_or("record".into(), told), |outcome| outcome.name().into())
}

fn tables(pen: &Pen<'_>, buf: &mut Buffer, area: Rect, home: &Home, view: &HomeView) {
    let compared = &home.compared;
    let name = compared.runs.iter().map(|run| text::width(&run.run)).max().unwrap_or(0);
    // The name gives way to the figures.
    let name = name.clamp(8, 34).min(usize::from(area.width).saturating_sub(59).max(8));
    let heading = |text: &str, cells: usize| pen.right(text, cells);
    let head = format!(
        "    {} {} {} {} {} {} {}",
        pen.left("RUN", name),
        pen.left("OUTCOME", 9),
        heading("STEPS", 8),
        heading("STEPS/S", 8),
        heading("TIME", 8),
        heading("LAST", 8),
        heading("BEST", 8)
    );
    put(buf, area, 0, Line::from(pen.s(head, Role::Dim)));
    let number = |value: Option<f64>| value.map_or(NONE.into(), text::value);
    let mut row = 1;
    for (at, run) in compared.runs.iter().enumerate().take(ROWS) {
        // A letter stands for a curve: of a group all runs have the same.
        let curve = match view.looks.apart {
            true => at,
            false => compared.groups.iter().position(|group| group.runs.contains(&at)).unwrap_or(at),
        };
        let cells = format!(
            "{} {} {} {} {} {} {}",
            pen.left(&run.run, name),
            pen.left(&outcome(home, run), 9),
            heading(&run.env_step.map_or(NONE.into(), |n| text::count_in(n, 7)), 8),
            heading(&run.steps_per_s.map_or(NONE.into(), text::si), 8),
            heading(&words::duration(run.duration_s), 8),
            heading(&number(run.score()), 8),
            heading(&number(run.best_return), 8)
        );
        let sign = Span::styled(format!("  {} ", letter(curve)), style(pen, curve));
        put(buf, area, row, Line::from(vec![sign, pen.s(cells, Role::Text)]));
        row += 1;
    }
    if let Some(more @ 1..) = compared.runs.len().checked_sub(ROWS) {
        let text = format!("    and {}: `rankdeck compare` lists all", words::plural(more, "more run"));
        put(buf, area, row, Line::from(pen.s(pen.cut(&text, area.width.into()), Role::Dim)));
        row += 1;
    }
    for line in compared.missing.iter().take(2) {
        put(
            buf,
            area,
            row,
            Line::from(pen.s(pen.cut(&format!("    {line}"), area.width.into()), Role::Warn)),
        );
        row += 1;
    }
    for (at, changed) in compared.changed.iter().enumerate().take(ROWS / 2) {
        let values = changed.values.iter().map(|value| value.as_deref().unwrap_or(NONE));
        let more = match compared.changed.len() - ROWS.min(compared.changed.len() * 2) / 2 {
            more if more > 0 && at + 1 == ROWS / 2 => format!("   and {more} more keys: `rankdeck compare`"),
            _ => String::new(),
        };
        let text = format!("    {}  {}{more}", changed.key, values.collect::<Vec<_>>().join(" | "));
        put(buf, area, row, Line::from(pen.s(pen.cut(&text, area.width.into()), Role::Dim)));
        row += 1;
    }
}
