//! The frame of home: header, tabs, the page, the footer.

use super::keys::{Binding, Command};
use super::model::{Home, Life};
use super::pen::Pen;
use super::state::{HomeView, Overlay, Page};
use super::{compare, experiments, fleet, keys, overlays, processes, runs};
use crate::target::{Targets, hinted};
use crate::text;
use crate::theme::{Role, Theme};
use crate::widgets::put;
use crossterm::event::{KeyCode, KeyEvent};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words::{clean, plural};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::text::{Line, Span};

/// Smallest screen.
const SMALLEST: (u16, u16) = (40, 8);

/// Where the pages are.
struct Places {
    header: Rect,
    tabs: Rect,
    page: Rect,
    footer: Rect,
}

fn places(area: Rect) -> Places {
    let line = |y: u16| Rect { y: area.y + y.min(area.height.saturating_sub(1)), height: 1, ..area };
    let page = Rect { y: area.y + 2, height: area.height.saturating_sub(3), ..area };
    Places { header: line(0), tabs: line(1), page, footer: line(area.height.saturating_sub(1)) }
}

/// Before each frame: what fits, and that the selected row is among it.
pub fn layout(home: &Home, view: &mut HomeView, area: Rect) {
    view.settle(home);
    let page = places(area).page;
    let (list, at, top) = match view.page {
        Page::Runs => (runs::list_area(page), view.list(home).1, 0),
        Page::Experiments => (experiments::list_area(page), view.list(home).1, 1),
        Page::Fleet => (fleet::list_area(page), fleet::row_of_selected(home, view), 2),
        Page::Compare => (compare::list_area(page, home), view.list(home).1, 3),
    };
    view.area = area;
    view.rows = usize::from(list.height);
    view.list_y = list.y;
    let at = at.unwrap_or(0);
    let block = if view.page == Page::Fleet { fleet::rows_of_selected(home, view) } else { 1 };
    let last = at + block.min(view.rows).max(1) - 1;
    let shown = &mut view.top[top];
    if at < *shown {
        *shown = at;
    } else if last >= *shown + view.rows {
        *shown = (last + 1).saturating_sub(view.rows);
    }
}

/// Draws home. Pure.
pub fn view(home: &Home, view: &HomeView, theme: &Theme, now: Timestamp, frame: &mut Frame<'_>) {
    let area = frame.area();
    let pen = Pen { theme, now, targets: Targets::default() };
    let buf = frame.buffer_mut();
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        put(
            buf,
            area,
            0,
            Line::from(pen.s(pen.cut("rankdeck: too small; q quits", area.width.into()), Role::Warn)),
        );
        return;
    }
    let places = places(area);
    header(&pen, buf, places.header, home);
    tabs(&pen, buf, places.tabs, home, view);
    match view.page {
        Page::Runs => runs::draw(&pen, buf, places.page, home, view),
        Page::Experiments => experiments::draw(&pen, buf, places.page, home, view),
        Page::Fleet => fleet::draw(&pen, buf, places.page, home, view),
        Page::Compare => compare::draw(&pen, buf, places.page, home, view),
    }
    footer(&pen, buf, places.footer, home, view);
    overlays::draw(&pen, buf, area, home, view);
}

fn header(pen: &Pen<'_>, buf: &mut Buffer, area: Rect, home: &Home) {
    let mut left = vec![pen.s(" rankdeck", Role::Accent)];
    let running = home.runs.iter().filter(|row| row.life == Life::Running).count();
    let orphaned = home.runs.iter().filter(|row| row.life == Life::Orphaned).count();
    let (free, all) =
        home.hosts.iter().map(super::FleetHost::free).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    let mut facts = vec![(plural(home.hosts.len(), "host"), Role::Text)];
    let silent: Vec<&str> = home.silent().map(|host| host.name.as_str()).collect();
    match silent.as_slice() {
        [] => {}
        [one] => facts.push((format!("{one} does not answer"), Role::Warn)),
        [first, rest @ ..] => {
            facts.push((format!("{first} and {} more do not answer", rest.len()), Role::Warn));
        }
    }
    facts.push((format!("{running} running"), Role::Text));
    if orphaned > 0 {
        facts.push((format!("{orphaned} orphaned"), Role::Bad));
    }
    if let [(_, title), ..] = home.jobs.as_slice() {
        facts.push((format!("{} {title}", pen.theme.glyphs.pick("⧗", "...")), Role::Accent));
    }
    if all > 0 {
        facts.push((format!("{free} of {} free", plural(all, "GPU")), Role::Text));
    }
    let mut used = text::width("rankdeck ");
    for (i, (fact, role)) in facts.into_iter().enumerate() {
        let dot = if i == 0 { "  " } else { pen.theme.glyphs.pick(" · ", " - ") };
        used += text::width(dot) + text::width(&fact);
        if used > usize::from(area.width) {
            break;
        }
        left.push(pen.s(dot, Role::Dim));
        left.push(pen.s(fact, role));
    }
    put(buf, area, 0, Line::from(left));
}

fn tab_texts(home: &Home) -> [String; 4] {
    let text = |number: usize, page: Page, count: usize| format!(" {number} {} {count} ", page.name());
    [
        text(1, Page::Runs, home.runs.len()),
        text(2, Page::Experiments, home.experiments.len()),
        text(3, Page::Fleet, home.hosts.len()),
        text(4, Page::Compare, home.compared.runs.len()),
    ]
}

fn tabs(pen: &Pen<'_>, buf: &mut Buffer, area: Rect, home: &Home, view: &HomeView) {
    let mut spans = vec![Span::raw(" ")];
    for (page, text) in Page::ALL.into_iter().zip(tab_texts(home)) {
        spans.push(match page == view.page {
            true => Span::styled(text, pen.theme.chosen),
            false => pen.s(text, Role::Dim),
        });
    }
    put(buf, area, 0, Line::from(spans));
}

/// The key that a place of the footer or of what lies over the page stands for; `None` beside all of it.
pub(super) fn key_at(home: &Home, view: &HomeView, at: Position) -> Option<Option<KeyEvent>> {
    let theme = Theme::mono();
    let pen = Pen { theme: &theme, now: Timestamp(0), targets: Targets::default() };
    let buf = &mut Buffer::empty(view.area);
    footer(&pen, buf, places(view.area).footer, home, view);
    overlays::draw(&pen, buf, view.area, home, view);
    pen.targets.at(at).map(|(_, key)| key)
}

/// The page whose tab is in this column.
pub(super) fn tab_at(home: &Home, column: u16) -> Option<Page> {
    let mut end = 1;
    Page::ALL.into_iter().zip(tab_texts(home)).find_map(|(page, text)| {
        let from = end;
        end += text::width(&text);
        (from..end).contains(&usize::from(column)).then_some(page)
    })
}

/// What the list has in this row of the screen.
pub(super) fn name_at(home: &Home, view: &HomeView, row: u16) -> Option<String> {
    let row = usize::from(row.checked_sub(view.list_y)?);
    if row >= view.rows {
        return None;
    }
    match view.page {
        Page::Fleet => fleet::host_at(home, row + view.top[2]),
        Page::Runs => view.list(home).0.get(row + view.top[0]).cloned(),
        Page::Experiments => view.list(home).0.get(row + view.top[1]).cloned(),
        Page::Compare => view.list(home).0.get(row + view.top[3]).cloned(),
    }
}

fn footer(pen: &Pen<'_>, buf: &mut Buffer, area: Rect, home: &Home, view: &HomeView) {
    if view.filtering {
        let bar = pen.theme.glyphs.pick("▏", "_");
        let line = vec![
            pen.s(" / ", Role::Accent),
            pen.s(clean(&view.filter), Role::Strong),
            pen.s(bar, Role::Accent),
            pen.s("   enter keeps   esc clears   !text inverts", Role::Dim),
        ];
        put(buf, area, 0, Line::from(line));
        return;
    }
    if let Some((text, role, _)) = view.toast.as_ref().filter(|_| view.overlay.is_none()) {
        let sign = pen.theme.glyphs.tone(*role);
        put(
            buf,
            area,
            0,
            Line::from(pen.s(format!(" {sign} {}", pen.cut(text, usize::from(area.width) - 4)), *role)),
        );
        return;
    }
    let hint = match &view.overlay {
        Some(Overlay::Launch(_)) => {
            Some(" KEY=VALUE ...   enter launches   tab checks the hosts   esc goes back")
        }
        Some(Overlay::Input(_)) => Some(" enter goes on   esc goes back"),
        Some(Overlay::Confirm { .. }) => Some(" y does it   n or esc goes back"),
        Some(Overlay::Processes { host, .. }) => Some(processes::keys(home, host)),
        Some(Overlay::Help(_) | Overlay::Said(_)) => Some(" j/k scroll   esc closes"),
        None => None,
    };
    if let Some(hint) = hint {
        for (x, width, key) in hinted(hint) {
            let place = Rect { x: area.x.saturating_add(x), width, ..area };
            pen.targets.put(place.intersection(area), Some(key));
        }
        put(buf, area, 0, Line::from(pen.s(hint, Role::Dim)));
        return;
    }
    const HELP: &str = "? help ";
    let room = usize::from(area.width).saturating_sub(HELP.len() + 1);
    let mut spans = vec![Span::raw(" ")];
    let mut used = 1;
    // Nobody goes to the page that is there.
    let offered = |binding: &&Binding| !binding.short.is_empty() && binding.command != Command::Go(view.page);
    for binding in keys::of(view.page).filter(offered) {
        if (binding.disabled)(home, view).is_some() {
            continue;
        }
        let Some(event) = binding.keys.first() else { continue };
        let key = crate::keys::name(*event, pen.theme.glyphs);
        let wide = text::width(&key) + binding.short.len() + 3;
        if used + wide > room {
            continue;
        }
        let x = area.x + used as u16;
        pen.targets.put(Rect { x, width: wide as u16 - 2, ..area }, Some(*event));
        used += wide;
        spans.push(pen.s(key, Role::Accent));
        spans.push(pen.s(format!(" {}  ", binding.short), Role::Dim));
    }
    put(buf, area, 0, Line::from(spans));
    let x = area.right().saturating_sub(HELP.len() as u16);
    let help = Line::from(vec![pen.s("?", Role::Accent), pen.s(" help ", Role::Dim)]);
    let place = Rect { x, width: HELP.len() as u16, ..area };
    pen.targets.put(place, Some(KeyEvent::from(KeyCode::Char('?'))));
    put(buf, place, 0, help);
}
