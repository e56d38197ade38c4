//! Handles the mouse: the wheel scrolls and zooms charts, a click selects, a second click opens, and dragging
//! moves chart cursors, the timeline and pane borders; the right button pins a chart position.

use crate::run::action::ScreenAction;
use crate::run::chrome::{Ctx, footer, header, timeline};
use crate::run::command::ScreenCommand;
use crate::run::geometry::{Pane, Tab};
use crate::run::input::{execute, on_command, on_key};
use crate::run::pages::TargetMouse;
use crate::run::time::{STEP_MS, TimeMove};
use crate::run::{DrawCtx, RunScreen, RunTarget, Target, ViewState, command, draw_pages, layout};
use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};
use rankdeck_core::model::{Model, RunState};
use rankdeck_kit::draw::click_share;
use rankdeck_kit::overlay::{self, WHEEL};
use rankdeck_kit::{Glyphs, Theme};
use rankdeck_types::ids::Timestamp;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

/// Handles a mouse event.
pub fn on_mouse(model: &Model, view: &mut ViewState, mouse: MouseEvent, now: Timestamp) -> Vec<ScreenAction> {
    view.expire(now);
    let at = Position { x: mouse.column, y: mouse.row };
    match mouse.kind {
        MouseEventKind::ScrollDown => return wheel(model, view, at, 1, now),
        MouseEventKind::ScrollUp => return wheel(model, view, at, -1, now),
        MouseEventKind::ScrollLeft if view.overlays.is_empty() && view.pane() == Pane::Log => {
            return on_command(model, view, ScreenCommand::Sideways(-1), now);
        }
        MouseEventKind::ScrollRight if view.overlays.is_empty() && view.pane() == Pane::Log => {
            return on_command(model, view, ScreenCommand::Sideways(1), now);
        }
        MouseEventKind::Down(MouseButton::Left) if view.overlays.is_empty() => {
            view.dragged = layout::border_at(view, at).map(|border| (border, false));
            // A border may be a title, too: what was not dragged is clicked when it is let go.
            if view.dragged.is_none() {
                return click(model, view, at, now);
            }
        }
        MouseEventKind::Down(MouseButton::Left) if !view.geometry.too_small => {
            return click_over(model, view, at, now);
        }
        MouseEventKind::Drag(MouseButton::Left) if view.overlays.is_empty() => {
            if let Some((border, moved)) = &mut view.dragged {
                *moved = true;
                let border = *border;
                layout::drag(model, view, border, at);
                return Vec::new();
            }
            return drag(model, view, at, now);
        }
        MouseEventKind::Up(_) => {
            if let Some((_, false)) = view.dragged.take() {
                return click(model, view, at, now);
            }
        }
        MouseEventKind::Down(MouseButton::Right) if view.overlays.is_empty() => {
            if let Some((place, Target::Own(target))) = under(model, view, at, now) {
                let mouse = TargetMouse::Pin { at: click_share(place, at) };
                return on_target(model, view, at, &target, mouse, now).unwrap_or_default();
            }
        }
        _ => {}
    }
    Vec::new()
}

fn pane_at(view: &ViewState, at: Position) -> Option<Pane> {
    Pane::ALL.into_iter().find(|pane| view.geometry.pane(*pane).contains(at))
}

/// Lets the page at a position handle the mouse on a target of its drawing.
fn on_target(
    model: &Model,
    view: &mut ViewState,
    at: Position,
    target: &RunTarget,
    mouse: TargetMouse,
    now: Timestamp,
) -> Option<Vec<ScreenAction>> {
    let pane = pane_at(view, at)?;
    let requests = view.with_page(pane, model, now, |page, cx| page.on_target(target, mouse, cx))?;
    Some(execute(model, view, requests, now))
}

fn wheel(model: &Model, view: &mut ViewState, at: Position, turns: i64, now: Timestamp) -> Vec<ScreenAction> {
    let rows = turns * WHEEL as i64;
    if let Some(requests) = overlay::on_wheel::<RunScreen>(model, view, rows as isize, now) {
        return execute(model, view, requests, now);
    }
    if let Some((place, Target::Own(target))) = under(model, view, at, now) {
        if let RunTarget::Recording(..) = target {
            return vec![ScreenAction::Time(TimeMove::Step(STEP_MS * turns))];
        }
        let mouse = TargetMouse::Wheel { at: click_share(place, at), turns };
        if let Some(actions) = on_target(model, view, at, &target, mouse, now) {
            return actions;
        }
    }
    if let Some(pane) = pane_at(view, at) {
        command::scroll(model, view, pane, rows, now);
    }
    Vec::new()
}

/// Draws without colors, to find out what lies where.
fn plain<T>(
    model: &Model,
    view: &ViewState,
    now: Timestamp,
    draw: impl FnOnce(&Ctx<'_>, &mut Buffer) -> T,
) -> T {
    let theme = Theme::mono().with_glyphs(view.style.glyphs.unwrap_or(Glyphs::Braille));
    let geo = view.geometry.clone();
    let buf = &mut Buffer::empty(geo.area);
    let cx = DrawCtx::new(&theme, now, geo.area);
    draw(&Ctx { live: model, model: view.shown(model), view, live_now: now, geo, draw: cx }, buf)
}

/// The target at a position of the page.
fn under(model: &Model, view: &ViewState, at: Position, now: Timestamp) -> Option<(Rect, Target)> {
    plain(model, view, now, |ctx, buf| {
        draw_pages(ctx, buf);
        timeline::draw(ctx, buf);
        footer::draw(ctx, buf);
        ctx.targets.at(at)
    })
}

/// Handles a click while an overlay is open: on a key hint it is that key, on an entry it goes to the
/// overlay, and outside of a card it closes the card. Forms and questions stay open.
fn click_over(model: &Model, view: &mut ViewState, at: Position, now: Timestamp) -> Vec<ScreenAction> {
    let found = plain(model, view, now, |ctx, buf| {
        overlay::draw::<RunScreen>(&view.overlays, model, view, ctx, buf);
        footer::draw(ctx, buf);
        ctx.targets.at(at).map(|(_, target)| target)
    });
    if let Some(Target::Key(key)) = found {
        return on_key(model, view, key, now);
    }
    let requests = overlay::on_click::<RunScreen>(model, view, found, now).unwrap_or_default();
    execute(model, view, requests, now)
}

/// Moves the chart cursor, or the timeline cursor.
fn drag(model: &Model, view: &mut ViewState, at: Position, now: Timestamp) -> Vec<ScreenAction> {
    match under(model, view, at, now) {
        Some((place, Target::Own(RunTarget::Recording(from, to)))) => {
            travel(from, to, click_share(place, at))
        }
        Some((place, Target::Own(target))) => {
            let mouse = TargetMouse::Drag { at: click_share(place, at) };
            on_target(model, view, at, &target, mouse, now).unwrap_or_default()
        }
        Some(_) | None => Vec::new(),
    }
}

fn travel(from: Timestamp, to: Timestamp, share: f64) -> Vec<ScreenAction> {
    let after = (to.since(from) as f64 * share).round() as u64;
    vec![ScreenAction::Time(TimeMove::To(from.plus(after)))]
}

fn click(model: &Model, view: &mut ViewState, at: Position, now: Timestamp) -> Vec<ScreenAction> {
    if let Some(tab) = header::tab_at(view, at) {
        return on_command(model, view, ScreenCommand::Go(tab), now);
    }
    if view.geometry.status.contains(at) {
        return match model.run.state {
            RunState::Over => on_command(model, view, ScreenCommand::Go(Tab::Outcome), now),
            _ if !model.verdicts.is_empty() => on_command(model, view, ScreenCommand::Explain, now),
            _ => Vec::new(),
        };
    }
    if let Some(chosen) = footer::command_at(model, view, at) {
        return on_command(model, view, chosen, now);
    }
    let (found, pane) = (under(model, view, at, now), pane_at(view, at));
    let focused = view.focus;
    if view.tab == Tab::Overview {
        view.focus = pane.unwrap_or(focused);
    }
    let share = |place| click_share(place, at);
    match found {
        Some((_, Target::Key(key))) => on_key(model, view, key, now),
        Some((_, Target::Own(RunTarget::Command(command)))) => on_command(model, view, command, now),
        Some((place, Target::Own(RunTarget::Recording(from, to)))) => travel(from, to, share(place)),
        Some((place, Target::Own(target))) => {
            let mouse = TargetMouse::Click { at: share(place), focused: Some(focused) == pane };
            on_target(model, view, at, &target, mouse, now).unwrap_or_default()
        }
        Some((_, Target::Covered | Target::Row(_))) => Vec::new(),
        None => click_pane(model, view, at, now),
    }
}

/// Handles a click outside the targets of a page.
fn click_pane(model: &Model, view: &mut ViewState, at: Position, now: Timestamp) -> Vec<ScreenAction> {
    let Some(pane) = pane_at(view, at) else { return Vec::new() };
    if pane == Pane::Log {
        view.editing = None;
    }
    let requests = view.with_page(pane, model, now, |page, cx| page.click(at, cx));
    execute(model, view, requests, now)
}
