//! The page of runs: a table, newest first, and what is known of the selected one.

use super::model::{Home, Life, RunRow};
use super::pen::{Pen, paragraph, rule};
use super::state::HomeView;
use crate::text::{self, NONE};
use crate::theme::{Glyphs, Role};
use crate::widgets::put;
use rankdeck_proto::message::Outcome;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// Rows of the details below the list.
const DETAILS: u16 = 8;
/// Rows from which on there are details.
const ROOMY: u16 = 18;
/// Widest name.
const NAME: usize = 44;

/// A column: heading, cells, numbers stand at the right.
struct Column {
    heading: &'static str,
    cells: usize,
    number: bool,
    text: fn(&RunRow) -> String,
}

const fn text_column(heading: &'static str, cells: usize, text: fn(&RunRow) -> String) -> Column {
    Column { heading, cells, number: false, text }
}
const fn number(heading: &'static str, cells: usize, text: fn(&RunRow) -> String) -> Column {
    Column { heading, cells, number: true, text }
}

/// Behind the name and the state, in the order of their worth and of reading.
const COLUMNS: [Column; 10] = [
    number("STEPS", 8, |row| short_count(row.summary.env_step)),
    number("GOAL", 5, goal),
    number("RETURN", 8, |row| value(row.summary.last_return)),
    number("BEST", 8, |row| value(row.summary.best.as_ref().map(|best| best.return_mean))),
    number("TIME", 8, |row| seconds(Some(row.summary.duration_s).filter(|s| *s > 0.0))),
    number("AGE", 7, |row| age(row.age_s)),
    number("GPUS", 4, |row| if row.summary.gpus > 0 { row.summary.gpus.to_string() } else { NONE.into() }),
    number("RANKS", 7, ranks),
    text_column("HOSTS", 10, |row| row.summary.hosts.join(" ")),
    text_column("NOTE", 12, |row| row.summary.note.clone()),
];

fn short_count(n: Option<u64>) -> String {
    n.map_or(NONE.into(), |n| text::count_in(n, 7))
}

fn goal(row: &RunRow) -> String {
    match (row.summary.env_step, row.summary.total_steps) {
        (Some(step), Some(goal)) if goal > 0 => format!("{:.0}%", step as f64 * 100.0 / goal as f64),
        _ => NONE.into(),
    }
}

fn ranks(row: &RunRow) -> String {
    match row.summary.world_size {
        0 => NONE.into(),
        all => format!("{}/{all}", row.alive),
    }
}

fn value(value: Option<f64>) -> String {
    value.map_or(NONE.into(), text::value)
}

fn seconds(seconds: Option<f64>) -> String {
    seconds.map_or(NONE.into(), words::duration)
}

/// In one unit.
fn age(seconds: Option<f64>) -> String {
    match seconds {
        None => NONE.into(),
        Some(s) if s < 60.0 => format!("{:.0}s", s.max(0.0)),
        Some(s) if s < 3600.0 => format!("{:.0}m", (s / 60.0).floor()),
        Some(s) if s < 2.0 * 86_400.0 => format!("{:.0}h", (s / 3600.0).floor()),
        Some(s) => format!("{:.0}d", (s / 86_400.0).floor()),
    }
}

/// How a run is: sign, word, meaning.
pub(super) fn state(row: &RunRow, glyphs: Glyphs) -> (&'static str, String, Role) {
    match (row.life, row.summary.outcome) {
        (Life::Running, _) => (glyphs.pick("●", "o"), "running".into(), Role::Good),
        (Life::Orphaned, _) => (glyphs.tone(Role::Bad), "orphaned".into(), Role::Bad),
        (Life::Recorded, None) => (glyphs.tone(Role::Dim), "record".into(), Role::Dim),
        (Life::Over | Life::Recorded, outcome) => {
            let word = row.summary.outcome_text().unwrap_or_else(|| "over".into());
            let role = match outcome {
                Some(Outcome::Succeeded) => Role::Good,
                Some(Outcome::Failed | Outcome::Stuck) => Role::Bad,
                Some(Outcome::Stopped) => Role::Warn,
                None => Role::Dim,
            };
            (glyphs.tone(role), word, role)
        }
    }
}

/// Where the rows are.
pub(super) fn list_area(page: Rect) -> Rect {
    let below = if page.height >= ROOMY { DETAILS } else { 0 };
    Rect { y: page.y + 1, height: page.height.saturating_sub(1 + below), ..page }
}

pub(super) fn draw(pen: &Pen<'_>, buf: &mut Buffer, page: Rect, home: &Home, view: &HomeView) {
    let list = list_area(page);
    let rows = view.runs(home);
    if rows.is_empty() {
        empty(pen, buf, list, home, view);
    } else {
        table(pen, buf, page, list, &rows, view);
    }
    if page.height >= ROOMY {
        let area = Rect { y: list.bottom(), height: DETAILS, ..page };
        details(pen, buf, area, home, view);
    }
}

fn table(pen: &Pen<'_>, buf: &mut Buffer, page: Rect, list: Rect, rows: &[&RunRow], view: &HomeView) {
    let longest = rows.iter().map(|row| text::width(&row.run)).max().unwrap_or(0).clamp(12, NAME);
    let mut room = usize::from(page.width).saturating_sub(2 + 14 + 1);
    let name = longest.min(room.saturating_sub(20).max(12));
    room = room.saturating_sub(name + 1);
    let mut columns: Vec<(&Column, usize)> = Vec::new();
    for column in &COLUMNS {
        if column.cells < room {
            room -= column.cells + 1;
            columns.push((column, column.cells));
        }
    }
    // What is left goes to the columns of words, as far as they have more to say.
    for (column, cells) in columns.iter_mut().filter(|(column, _)| !column.number) {
        let longest = rows.iter().map(|row| text::width(&(column.text)(row))).max().unwrap_or(0);
        let more = longest.saturating_sub(*cells).min(room);
        (*cells, room) = (*cells + more, room - more);
    }
    let cell = |(column, cells): &(&Column, usize), text: &str| match column.number {
        true => format!(" {}", pen.right(text, *cells)),
        false => format!(" {}", pen.left(text, *cells)),
    };
    let mut head = format!("  {} {}", pen.left("RUN", name), pen.left("STATE", 14));
    columns.iter().for_each(|column| head.push_str(&cell(column, column.0.heading)));
    put(buf, Rect { height: 1, ..page }, 0, Line::from(pen.s(head, Role::Dim)));
    for (at, row) in rows.iter().enumerate().skip(view.top[0]).take(list.height.into()) {
        let selected = view.run.as_ref() == Some(&row.run);
        let (sign, word, role) = state(row, pen.theme.glyphs);
        let mut spans = vec![
            pen.cursor(selected, view.marks.contains(&row.run)),
            pen.s(pen.left(&row.run, name), if selected { Role::Accent } else { Role::Text }),
            Span::raw(" "),
            pen.s(pen.left(&format!("{sign} {word}"), 14), role),
        ];
        spans.extend(columns.iter().map(|column| pen.s(cell(column, &(column.0.text)(row)), Role::Text)));
        pen.row(buf, list, at - view.top[0], Line::from(spans), selected);
    }
}

fn empty(pen: &Pen<'_>, buf: &mut Buffer, list: Rect, home: &Home, view: &HomeView) {
    let asked = home.hosts.iter().all(|host| host.listed.is_some() || host.trouble.is_some());
    let mut lines = Vec::new();
    if let Some(trouble) = &home.trouble {
        lines.push((trouble.error.clone(), Role::Bad));
        lines.push((trouble.hint.clone(), Role::Dim));
    } else if !view.filter.is_empty() {
        lines.push((format!("no run has `{}`; esc shows all", view.filter), Role::Dim));
    } else if asked {
        lines.push(("no runs yet".into(), Role::Strong));
        let how = match home.experiments.is_empty() {
            true => "`rankdeck init` writes an experiment; `rankdeck demo` shows a simulated cluster",
            false => "n prepares a launch; `rankdeck demo` shows a simulated cluster",
        };
        lines.push((how.into(), Role::Dim));
    } else {
        lines.push(("asking the hosts ...".into(), Role::Dim));
    }
    let area = Rect { x: list.x + 2, width: list.width.saturating_sub(4), ..list };
    paragraph(pen, buf, area, &lines, 0);
}

fn details(pen: &Pen<'_>, buf: &mut Buffer, area: Rect, home: &Home, view: &HomeView) {
    let Some(row) = view.selected_run(home) else {
        rule(pen, buf, area, "");
        return;
    };
    rule(pen, buf, area, &pen.cut(&row.run, usize::from(area.width).saturating_sub(4)));
    let summary = &row.summary;
    let mut lines: Vec<(String, Role)> = Vec::new();
    let (_, word, role) = state(row, pen.theme.glyphs);
    let reason = if summary.reason.is_empty() { word } else { format!("{word}: {}", summary.reason) };
    lines.push((reason, role));
    let silent: Vec<&str> = home.silent().map(|host| host.name.as_str()).collect();
    let unknown: Vec<&str> =
        summary.hosts.iter().map(String::as_str).filter(|name| silent.contains(name)).collect();
    if !unknown.is_empty() {
        let text = format!("{} of its hosts cannot be asked: {}", unknown.len(), unknown.join(", "));
        lines.push((text, Role::Warn));
    }
    if row.life == Life::Recorded {
        lines.push(("no host of the hosts file has it; enter replays its record".into(), Role::Dim));
    }
    let mut facts = vec![format!("generation {}", summary.generation)];
    if let Some(iterations) = summary.train_iter {
        facts.push(format!("iteration {}", words::count(iterations)));
    }
    if let Some(episodes) = summary.episodes {
        facts.push(format!("{} episodes", words::count(episodes)));
    }
    if let Some(goal) = summary.total_steps {
        facts.push(format!("goal {} steps", words::count(goal)));
    }
    if let Some(best) = &summary.best {
        facts.push(format!(
            "best evaluation {} at {} steps",
            text::value(best.return_mean),
            words::count(best.env_step)
        ));
    }
    let dot = pen.theme.glyphs.pick(" · ", " - ");
    if row.life != Life::Recorded || summary.env_step.is_some() {
        lines.push((facts.join(dot), Role::Text));
    }
    let labelled = [
        ("hosts", summary.hosts.join(", ")),
        ("runs", summary.program.clone()),
        ("note", summary.note.clone()),
        ("checkpoint", summary.checkpoint.as_ref().map(|saved| saved.path.clone()).unwrap_or_default()),
    ];
    for (label, text) in labelled.into_iter().filter(|(_, text)| !text.is_empty()) {
        let cells = usize::from(area.width).saturating_sub(3);
        lines.push((pen.cut(&format!("{label:<11}{text}"), cells), Role::Dim));
    }
    let inside =
        Rect { x: area.x + 2, y: area.y + 1, width: area.width.saturating_sub(3), height: area.height - 1 };
    paragraph(pen, buf, inside, &lines, 0);
}
