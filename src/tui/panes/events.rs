//! What happened, in order, newest at the bottom. On its own page a line is selected, and opens.

use crate::log_filter::LogFilter;
use crate::state::{Pane, Tab, ViewState};
use crate::target::Target;
use crate::text;
use crate::theme::Role;
use crate::time::time_of_day;
use crate::widgets::{Ctx, frame, put};
use rankdeck_core::model::{HistoryLine, Model, Tone};
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

/// How grave a tone is.
pub fn role(tone: Tone) -> Role {
    match tone {
        Tone::Info => Role::Dim,
        Tone::Good => Role::Good,
        Tone::Warn => Role::Warn,
        Tone::Bad => Role::Bad,
    }
}

/// The lines that the filter lets through, oldest first.
pub fn shown<'a>(model: &'a Model, view: &ViewState) -> Vec<&'a HistoryLine> {
    let filter = LogFilter::new(&view.events.filter);
    model.history.iter().filter(|line| filter.keeps(&line.text)).collect()
}

/// The selected line; the newest when none is.
pub fn selected<'a>(model: &'a Model, view: &ViewState) -> Option<&'a HistoryLine> {
    let lines = shown(model, view);
    let by_number =
        view.events.selected.and_then(|number| lines.iter().find(|line| line.number >= number).copied());
    by_number.or(lines.last().copied())
}

/// Moves the selection; the newest line is followed again when it is reached.
pub fn scroll(model: &Model, view: &mut ViewState, rows: i64) {
    let lines = shown(model, view);
    let last = lines.len().saturating_sub(1);
    let at = view.events.selected.and_then(|number| lines.iter().position(|line| line.number >= number));
    let to = (at.unwrap_or(last) as i64).saturating_add(rows).clamp(0, last as i64) as usize;
    view.events.selected = if to == last { None } else { lines.get(to).map(|line| line.number) };
}

/// Keeps the selected line on the screen.
pub fn clamp(model: &Model, view: &mut ViewState) {
    let inner = view.geometry.inside(view.geometry.pane(Pane::Events));
    let height = usize::from(inner.height).max(1);
    let lines = shown(model, view);
    let last = lines.len().saturating_sub(1);
    let at = view
        .events
        .selected
        .and_then(|number| lines.iter().position(|line| line.number >= number))
        .unwrap_or(last);
    let below = last.saturating_sub(at);
    view.events.up = if view.events.selected.is_none() { 0 } else { view.events.up.min(below) };
    let room = room(view, usize::from(inner.width));
    let rows = |line: &HistoryLine| match view.tab {
        Tab::Events => text::wrap(&words::clean(&line.text), room).len(),
        _ => 1,
    };
    // As little as possible, counted from the selected line down.
    let mut used = 0;
    for (i, line) in lines.iter().enumerate().skip(at) {
        used += rows(line);
        if used > height && i > at {
            view.events.up = view.events.up.max(last + 1 - i);
            break;
        }
    }
}

/// Cells before the text: the time of day and the time since the launch on its own page, only the latter
/// elsewhere.
fn indent(view: &ViewState) -> usize {
    if view.tab == Tab::Events { 10 + 7 + 4 } else { 7 + 4 }
}

fn room(view: &ViewState, width: usize) -> usize {
    width.saturating_sub(indent(view)).max(1)
}

/// What stands at the right of the title: the filter and how many match it, what is bad, what is not held.
fn info(ctx: &Ctx<'_>, shown: usize) -> Vec<Span<'static>> {
    let history = &ctx.model.history;
    let bad = history.iter().filter(|line| line.tone == Tone::Bad).count();
    let mut info = Vec::new();
    if !ctx.view.events.filter.is_empty() || ctx.view.editing == Some(Pane::Events) {
        info.push(ctx.s(format!("/{}", ctx.cut(&ctx.view.events.filter, 24)), Role::Accent));
        if ctx.view.editing == Some(Pane::Events) {
            info.push(ctx.s(ctx.glyphs().pick("▏", "_"), Role::Accent));
        }
        info.push(ctx.s(format!("  {} of {}  ", shown, history.len()), Role::Text));
    }
    if bad > 0 {
        info.push(ctx.s(format!("{bad} bad"), Role::Bad));
    }
    if ctx.view.events.selected.is_some() {
        info.push(ctx.s("  scrolled; G follows", Role::Warn));
    }
    let older = ctx.model.drops.history;
    if older > 0 {
        let gap = if info.is_empty() { "" } else { "  " };
        info.push(ctx.s(format!("{gap}{} older not held", text::count_in(older, 7)), Role::Dim));
    }
    info
}

/// Draws the pane.
pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let area = ctx.geo.pane(Pane::Events);
    if area.is_empty() {
        return;
    }
    let history = &ctx.model.history;
    let lines = shown(ctx.model, ctx.view);
    let info = info(ctx, lines.len());
    let older = ctx.model.drops.history;
    let happened = words::count(older.saturating_add(history.len() as u64));
    let title = frame::title(ctx, Pane::Events, "events", happened);
    let inner = frame::pane(ctx, buf, area, Pane::Events, title, info);
    if lines.is_empty() {
        let text = if history.is_empty() {
            "nothing happened yet"
        } else {
            "no line matches; esc clears the filter"
        };
        put(buf, inner, 0, Line::from(ctx.s(text, Role::Dim)));
        return;
    }
    let height = usize::from(inner.height);
    let end = lines.len().saturating_sub(ctx.view.events.up);
    let whole = ctx.view.tab == Tab::Events;
    let chosen = selected(ctx.model, ctx.view).filter(|_| ctx.view.pane() == Pane::Events);
    let room = room(ctx.view, usize::from(inner.width));
    let indent = " ".repeat(indent(ctx.view));
    let mut rows: Vec<(u64, Line<'static>)> = Vec::new();
    for line in lines.iter().take(end).rev() {
        if rows.len() >= height {
            break;
        }
        let is_chosen = chosen.is_some_and(|chosen| chosen.number == line.number);
        let role = role(line.tone);
        let words_role = if line.tone == Tone::Info { Role::Text } else { role };
        let style = match is_chosen && ctx.view.events.selected.is_some() {
            true => ctx.theme.style(words_role).add_modifier(Modifier::REVERSED),
            false => ctx.theme.style(words_role),
        };
        // On its own page nothing is cut.
        let text = words::clean(&line.text);
        let mut parts = if whole { text::wrap(&text, room) } else { vec![ctx.cut(&text, room)] };
        for part in parts.drain(1..).rev() {
            let spans = vec![Span::raw(indent.clone()), Span::styled(part, style)];
            rows.push((line.number, Line::from(spans)));
        }
        let mut spans = Vec::new();
        if whole {
            let time = time_of_day(line.time, ctx.view.chart.utc_offset_s);
            spans.push(ctx.s(format!("{time}  "), Role::Text));
        }
        spans.push(ctx.s(format!("{:>7}", since_launch(ctx.model, line)), Role::Dim));
        let opens = if line.subject.is_some() && whole { ctx.glyphs().pick("›", ">") } else { " " };
        spans.push(ctx.s(format!(" {opens}"), Role::Accent));
        spans.push(ctx.s(ctx.glyphs().tone(role), role));
        spans.push(Span::raw(" "));
        spans.push(Span::styled(parts.pop().unwrap_or_default(), style));
        rows.push((line.number, Line::from(spans)));
    }
    rows.truncate(height);
    for (row, (number, line)) in rows.into_iter().rev().enumerate() {
        ctx.target(Rect { y: inner.y + row as u16, height: 1, ..inner }, Target::Event(number));
        put(buf, inner, row, line);
    }
}

/// Before the launch there is no zero; then the first event is it.
pub fn since_launch(model: &Model, line: &HistoryLine) -> String {
    // A console that came later has read all of it at once: the agents say when it was.
    if let Some(launched) = model.run.launched.filter(|_| model.run.adopted && line.time > 0.0) {
        let after_ms = (line.time - launched) * 1000.0;
        return match after_ms < 0.0 {
            true => format!("-{:>6}", words::duration_ms(-after_ms as u64)),
            false => text::clock(after_ms as u64),
        };
    }
    let first = model.history.front().map(|line| line.at);
    let zero = model.run.started.or(first).unwrap_or_default();
    match line.at < zero {
        true => format!("-{:>6}", words::duration_ms(zero.since(line.at))),
        false => text::clock(line.at.since(zero)),
    }
}
