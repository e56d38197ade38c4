//! The Events page: what happened, in order, newest at the bottom. On its own page a line is selected, and opens.

use crate::run::action::{Request, ScreenAction};
use crate::run::command::ScreenCommand;
use crate::run::geometry::Pane;
use crate::run::history::{self, since_launch};
use crate::run::pages::{FilterChange, Page, PageCx, PageDrawCtx, PagePlacement, TargetMouse};
use crate::run::reasons::*;
use crate::run::text_filter::TextFilter;
use crate::run::time::{TimeMove, time_of_day};
use crate::run::{RunScreen, RunTarget, Target};
use crossterm::event::KeyCode;
use rankdeck_core::model::{EventTone, HistoryLine, Model};
use rankdeck_kit::keys::{Binding, c, k};
use rankdeck_kit::{Role, bindings, put, text};
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

/// Most events that are copied; the newest are.
const COPIED: usize = 200;

const EVENTS: &[Pane] = &[Pane::Events];

/// The keys.
#[rustfmt::skip]
pub static KEYS: &[Binding<RunScreen>] = bindings![
    EVENTS, ScreenCommand::Inspect, [k(KeyCode::Enter)], 4, "open", "Show event details", |model, view| view.events.no_event(model);
    EVENTS, ScreenCommand::Filter, [c('/')], 5, "filter", "Filter events (text; !text excludes)", always;
    EVENTS, ScreenCommand::LogThere, [c('L')], 6, "log at event", "Show the log at this event", |model, view| view.events.no_event(model);
    EVENTS, ScreenCommand::GoThere, [c('o')], 6, "go to time", "Show every page as of this event", |model, view| view.events.no_event(model).or(no_record(model, view));
    EVENTS, ScreenCommand::Follow, [c('F')], 8, "follow", "Follow the newest event", |_, view| view.events.following();
];

/// The events page.
#[derive(Debug, Clone, Default)]
pub struct EventsPage {
    /// Number of the selected event; `None` follows the newest.
    pub selected: Option<u64>,
    /// Events between the newest and the lowest one shown.
    pub up: usize,
    /// The text that events must have.
    pub filter: String,
}

impl EventsPage {
    fn no_event(&self, model: &Model) -> Option<&'static str> {
        self.current(model).is_none().then_some("no event")
    }

    fn following(&self) -> Option<&'static str> {
        self.selected.is_none().then_some("already following")
    }

    /// The events that the filter lets through, oldest first.
    fn shown<'a>(&self, model: &'a Model) -> Vec<&'a HistoryLine> {
        let filter = TextFilter::new(&self.filter);
        model.history.iter().filter(|line| filter.keeps(&line.text)).collect()
    }

    /// Index of the selected event among those shown.
    fn index(&self, lines: &[&HistoryLine]) -> Option<usize> {
        self.selected.and_then(|number| lines.iter().position(|line| line.number >= number))
    }

    /// The selected event; the newest when none is.
    pub fn current<'a>(&self, model: &'a Model) -> Option<&'a HistoryLine> {
        let lines = self.shown(model);
        self.index(&lines).map(|at| lines[at]).or(lines.last().copied())
    }

    /// The right end of the title: filter and matches, failures, dropped events.
    fn info(&self, ctx: &PageDrawCtx<'_>, shown: usize) -> Vec<Span<'static>> {
        let history = &ctx.model.history;
        let bad = history.iter().filter(|line| line.tone == EventTone::Bad).count();
        let mut info = ctx.typed_filter(&self.filter, 24);
        if !info.is_empty() {
            info.push(ctx.s(format!("  {} of {}  ", shown, history.len()), Role::Text));
        }
        if bad > 0 {
            info.push(ctx.s(format!("{bad} bad"), Role::Bad));
        }
        if self.selected.is_some() {
            info.push(ctx.s("  scrolled; G follows", Role::Warn));
        }
        let older = ctx.model.drops.history;
        if older > 0 {
            let gap = if info.is_empty() { "" } else { "  " };
            info.push(ctx.s(format!("{gap}{} older dropped", text::count_in(older, 7)), Role::Dim));
        }
        info
    }

    /// The rows of an event, from the last one up: on its own page nothing is cut.
    fn rows(
        &self,
        ctx: &PageDrawCtx<'_>,
        line: &HistoryLine,
        cells: usize,
        is_current: bool,
    ) -> Vec<Line<'static>> {
        let own_page = ctx.place.own_page;
        let role = history::role(line.tone);
        let style = ctx.theme.style(history::text_role(line.tone));
        let style = match is_current && self.selected.is_some() {
            true => style.add_modifier(Modifier::REVERSED),
            false => style,
        };
        let text = words::clean(&line.text);
        let mut parts = if own_page { text::wrap(&text, cells) } else { vec![ctx.cut(&text, cells)] };
        let indent = " ".repeat(indent(ctx.place));
        let below = parts.drain(1..).rev();
        let mut rows: Vec<Line<'static>> = below
            .map(|part| Line::from(vec![Span::raw(indent.clone()), Span::styled(part, style)]))
            .collect();
        let mut spans = Vec::new();
        if own_page {
            let time = time_of_day(line.time, ctx.shared.style.utc_offset_s);
            spans.push(ctx.s(format!("{time}  "), Role::Text));
        }
        spans.push(ctx.s(format!("{:>7}", since_launch(ctx.model, line)), Role::Dim));
        let opens = if line.subject.is_some() && own_page { ctx.glyphs().pick("›", ">") } else { " " };
        spans.push(ctx.s(format!(" {opens}"), Role::Accent));
        spans.push(ctx.s(ctx.glyphs().tone(role), role));
        spans.push(Span::raw(" "));
        spans.push(Span::styled(parts.pop().unwrap_or_default(), style));
        rows.push(Line::from(spans));
        rows
    }
}

/// Cells before the text: the time of day and the time since the launch on its own page, only the latter
/// elsewhere.
fn indent(place: PagePlacement<'_>) -> usize {
    if place.own_page { 10 + 7 + 4 } else { 7 + 4 }
}

/// Cells of the text.
fn text_cells(place: PagePlacement<'_>) -> usize {
    usize::from(place.inner().width).saturating_sub(indent(place)).max(1)
}

impl Page for EventsPage {
    fn draw(&self, ctx: &PageDrawCtx<'_>, buf: &mut Buffer) {
        let history = &ctx.model.history;
        let lines = self.shown(ctx.model);
        let happened = words::count(ctx.model.drops.history.saturating_add(history.len() as u64));
        let title = ctx.title("events", happened);
        let inner = ctx.pane(buf, ctx.place.area(), title, self.info(ctx, lines.len()));
        if lines.is_empty() {
            let text = if history.is_empty() { "no events yet" } else { "no match; esc clears the filter" };
            put(buf, inner, 0, Line::from(ctx.s(text, Role::Dim)));
            return;
        }
        let height = usize::from(inner.height);
        let cells = text_cells(ctx.place);
        let current = self.current(ctx.model).filter(|_| ctx.place.focused).map(|line| line.number);
        let above = lines.iter().take(lines.len().saturating_sub(self.up)).rev();
        let rows = above.flat_map(|line| {
            let number = line.number;
            let rows = self.rows(ctx, line, cells, current == Some(number));
            rows.into_iter().map(move |row| (number, row))
        });
        let rows: Vec<(u64, Line<'static>)> = rows.take(height).collect();
        for (row, (number, line)) in rows.into_iter().rev().enumerate() {
            let place = Rect { y: inner.y + row as u16, height: 1, ..inner };
            ctx.target(place, Target::Own(RunTarget::Event(number)));
            put(buf, inner, row, line);
        }
    }

    /// Keeps the selected line on the screen.
    fn settle(&mut self, cx: &mut PageCx<'_>) {
        let height = cx.place.rows().max(1);
        let lines = self.shown(cx.model);
        let last = lines.len().saturating_sub(1);
        let at = self.index(&lines).unwrap_or(last);
        self.up = if self.selected.is_none() { 0 } else { self.up.min(last.saturating_sub(at)) };
        let cells = text_cells(cx.place);
        let rows = |line: &HistoryLine| match cx.place.own_page {
            true => text::wrap(&words::clean(&line.text), cells).len(),
            false => 1,
        };
        // As little as possible, counted from the selected line down.
        let mut used = 0;
        for (i, line) in lines.iter().enumerate().skip(at) {
            used += rows(line);
            if used > height && i > at {
                self.up = self.up.max(last + 1 - i);
                break;
            }
        }
    }

    /// Moves the selection; the newest line is followed again when it is reached.
    fn scroll(&mut self, rows: i64, cx: &mut PageCx<'_>) {
        let lines = self.shown(cx.model);
        let last = lines.len().saturating_sub(1);
        let at = self.index(&lines).unwrap_or(last);
        let to = (at as i64).saturating_add(rows).clamp(0, last as i64) as usize;
        self.selected = if to == last { None } else { lines.get(to).map(|line| line.number) };
    }

    fn copy(&self, cx: &PageCx<'_>) -> String {
        let history = &cx.model.history;
        let skip = history.len().saturating_sub(COPIED);
        history.iter().skip(skip).map(|line| format!("{}\n", line.text)).collect()
    }

    fn perform(&mut self, command: ScreenCommand, cx: &mut PageCx<'_>) -> Option<Vec<Request>> {
        let current = || self.current(cx.model);
        let request = match command {
            ScreenCommand::Inspect if cx.place.focused => {
                current().map(|line| Request::ShowEvent(line.number))
            }
            ScreenCommand::Follow if cx.place.focused => {
                self.selected = None;
                None
            }
            ScreenCommand::GoThere => {
                current().map(|line| Request::Live(ScreenAction::Time(TimeMove::To(line.at))))
            }
            _ => return None,
        };
        Some(request.into_iter().collect())
    }

    fn on_target(
        &mut self,
        target: &RunTarget,
        mouse: TargetMouse,
        _: &mut PageCx<'_>,
    ) -> Option<Vec<Request>> {
        let (RunTarget::Event(number), TargetMouse::Click { .. }) = (target, mouse) else { return None };
        if self.selected == Some(*number) {
            return Some(vec![Request::Command(ScreenCommand::Inspect)]);
        }
        self.selected = Some(*number);
        Some(Vec::new())
    }

    fn filter(&mut self) -> Option<&mut String> {
        Some(&mut self.filter)
    }

    fn on_filter(&mut self, change: FilterChange) {
        if change == FilterChange::Typed {
            self.selected = None;
        }
    }

    fn back(&mut self) -> bool {
        self.clear_filter() || self.selected.take().is_some()
    }
}
