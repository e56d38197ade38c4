//! What lies over a page: keys, questions, a launch, what a command said.

use super::model::Home;
use super::pen::{Pen, paragraph, popup};
use super::state::left_out;
use super::state::{HomeView, Launch, Overlay};
use super::{experiments, keys, processes};
use crate::text;
use crate::theme::Role;
use crate::widgets::put;
use crossterm::event::{KeyCode, KeyEvent};
use rankdeck_types::words::clean;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

/// Draws the overlay, if there is one.
pub(super) fn draw(pen: &Pen<'_>, buf: &mut Buffer, screen: Rect, home: &Home, view: &HomeView) {
    let Some(overlay) = &view.overlay else { return };
    // The footer stays.
    let screen = Rect { height: screen.height.saturating_sub(1), ..screen };
    match overlay {
        Overlay::Help(at) => help(pen, buf, screen, view, *at),
        Overlay::Confirm { lines, yes, .. } => confirm(pen, buf, screen, lines, yes),
        Overlay::Launch(launch) => draw_launch(pen, buf, screen, (home, view), launch),
        Overlay::Input(wanted) => {
            let inner = popup(pen, screen, buf, (70, 3), Role::Accent, &wanted.title);
            put(buf, inner, 0, typed(pen, &wanted.typed, inner.width));
            put(buf, inner, 2, Line::from(pen.s(wanted.hint.clone(), Role::Dim)));
        }
        Overlay::Processes { host, selected } => {
            processes::draw(pen, buf, screen, home, (host, *selected));
        }
        Overlay::Said(at) => said(pen, buf, screen, home, *at),
    }
}

/// The end of what is typed, with a bar.
fn typed(pen: &Pen<'_>, text: &str, width: u16) -> Line<'static> {
    let text = clean(text);
    let room = usize::from(width).saturating_sub(4);
    let skip = text.chars().count().saturating_sub(room);
    let shown: String = text.chars().skip(skip).collect();
    Line::from(vec![
        pen.s("> ", Role::Accent),
        pen.s(shown, Role::Strong),
        pen.s(pen.theme.glyphs.pick("▏", "_"), Role::Accent),
    ])
}

fn help(pen: &Pen<'_>, buf: &mut Buffer, screen: Rect, view: &HomeView, at: usize) {
    let bindings: Vec<_> = keys::of(view.page).collect();
    let size = (76, bindings.len() as u16);
    let title = format!("keys on {}", view.page.name());
    let inner = popup(pen, screen, buf, size, Role::Text, &title);
    let at = at.min(bindings.len().saturating_sub(inner.height.into()));
    for (row, binding) in bindings.iter().skip(at).enumerate() {
        let keys: Vec<String> =
            binding.keys.iter().map(|key| crate::keys::name(*key, pen.theme.glyphs)).collect();
        let line = vec![
            pen.s(pen.left(&keys.join(" "), 12), Role::Accent),
            pen.s(pen.cut(binding.long, usize::from(inner.width).saturating_sub(12)), Role::Text),
        ];
        put(buf, inner, row, Line::from(line));
    }
}

fn confirm(pen: &Pen<'_>, buf: &mut Buffer, screen: Rect, lines: &[String], yes: &str) {
    let cells = usize::from(screen.width.saturating_sub(8)).min(70);
    let lines: Vec<(String, Role)> = lines
        .iter()
        .flat_map(|line| text::wrap(&clean(line), cells))
        .map(|line| (line, Role::Text))
        .collect();
    let size = (cells as u16, lines.len() as u16 + 2);
    let inner = popup(pen, screen, buf, size, Role::Warn, &format!("{yes}?"));
    paragraph(pen, buf, inner, &lines, 0);
    const BACK: u16 = "n go back".len() as u16;
    let y = inner.bottom().saturating_sub(1);
    let no = Rect { x: inner.right().saturating_sub(BACK), y, width: BACK, height: 1 };
    let wide = text::width(yes) as u16 + 2;
    let yes_at = Rect { x: no.x.saturating_sub(wide + 3), width: wide, ..no };
    for (place, key) in [(yes_at, 'y'), (no, 'n')] {
        pen.targets.put(place.intersection(inner), Some(KeyEvent::from(KeyCode::Char(key))));
    }
    let answer = Line::from(vec![
        pen.s("y ", Role::Accent),
        pen.s(format!("{yes}   "), Role::Text),
        pen.s("n ", Role::Accent),
        pen.s("go back", Role::Text),
    ]);
    put(buf, inner, usize::from(inner.height.saturating_sub(1)), answer.right_aligned());
}

fn draw_launch(
    pen: &Pen<'_>,
    buf: &mut Buffer,
    screen: Rect,
    (home, view): (&Home, &HomeView),
    launch: &Launch,
) {
    let size = (screen.width.saturating_sub(8), screen.height.saturating_sub(4));
    let inner = popup(pen, screen, buf, size, Role::Accent, &format!("launch {}", launch.path));
    put(
        buf,
        inner,
        0,
        Line::from(pen.s("changes, such as learn.gamma=0.98 run.total_steps=200000 run.note=...", Role::Dim)),
    );
    put(buf, inner, 1, typed(pen, &launch.typed, inner.width));
    let out: Vec<&str> = left_out(home, view).collect();
    let mut from = 2;
    if !out.is_empty() {
        let text = format!("on the chosen hosts; left out: {}", out.join(", "));
        put(buf, inner, 2, Line::from(pen.s(pen.cut(&text, inner.width.into()), Role::Warn)));
        from = 3;
    }
    let rest = Rect { y: inner.y + from, height: inner.height.saturating_sub(from), ..inner };
    let title = format!("check {}", launch.path);
    let checked = home.said.as_ref().filter(|said| said.title == title);
    let checking = home.jobs.iter().any(|(_, job)| *job == title);
    let upper = if checked.is_some() || checking { rest.height / 2 } else { rest.height };
    experiments::plan(pen, buf, Rect { height: upper, ..rest }, home, &launch.path);
    if upper < rest.height {
        let lower = Rect { y: rest.y + upper, height: rest.height - upper, ..rest };
        super::pen::rule(pen, buf, lower, if checking { "check: asking the hosts ..." } else { "check" });
        let lines: Vec<(String, Role)> = match checked.filter(|_| !checking) {
            Some(said) => said.lines.iter().map(|line| (line.clone(), tone(line))).collect(),
            None => Vec::new(),
        };
        let inside = Rect { y: lower.y + 1, height: lower.height.saturating_sub(1), ..lower };
        rows(pen, buf, inside, &lines, 0);
    }
}

/// Lines of a command keep their columns: they are cut, not wrapped.
fn rows(pen: &Pen<'_>, buf: &mut Buffer, area: Rect, lines: &[(String, Role)], skip: usize) {
    for (row, (line, role)) in lines.iter().skip(skip).take(area.height.into()).enumerate() {
        put(buf, area, row, Line::from(pen.s(pen.cut(line, area.width.into()), *role)));
    }
}

fn tone(line: &str) -> Role {
    match line.split(':').next() {
        Some("error") => Role::Bad,
        Some("warning") => Role::Warn,
        Some("hint" | "note") => Role::Dim,
        _ => Role::Text,
    }
}

fn said(pen: &Pen<'_>, buf: &mut Buffer, screen: Rect, home: &Home, at: usize) {
    let Some(said) = &home.said else { return };
    let cells = screen.width.saturating_sub(8);
    let lines: Vec<(String, Role)> = said
        .lines
        .iter()
        .flat_map(|line| text::wrap(&clean(line), cells.into()).into_iter().map(|part| (part, tone(line))))
        .collect();
    let role = if said.well { Role::Good } else { Role::Bad };
    let inner = popup(pen, screen, buf, (cells, lines.len().max(1) as u16), role, &said.title);
    let at = at.min(lines.len().saturating_sub(inner.height.into()));
    rows(pen, buf, inner, &lines, at);
}
