//! From keys, pastes and typed lines to actions. Overlays come first, then the filter line, then the table of
//! keys.

use crate::run::action::{Request, ScreenAction};
use crate::run::command::ScreenCommand;
use crate::run::keys::{self, TABLE};
use crate::run::overlays::{EventCard, Inspector, Overlay, ProcessList, confirm};
use crate::run::pages::FilterChange;
use crate::run::reasons::runs;
use crate::run::time::TimeMove;
use crate::run::{RunScreen, ViewState, command, palette, ranks};
use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rankdeck_core::model::Model;
use rankdeck_kit::keys::{Binding, name, plain, with_ctrl};
use rankdeck_kit::{Glyphs, Role, input, overlay};
use rankdeck_proto::message::StopMode;
use rankdeck_types::ids::Timestamp;

/// Modifiers without a meaning here. Escape and a letter close behind it are two keys
/// ([`rankdeck_kit::decoder`]).
const STRANGE: KeyModifiers =
    KeyModifiers::ALT.union(KeyModifiers::SUPER).union(KeyModifiers::HYPER).union(KeyModifiers::META);

/// Milliseconds between two keys that were typed without looking up.
const TYPED_ON_MS: u64 = 1_000;

/// Handles a key.
pub fn on_key(model: &Model, view: &mut ViewState, key: KeyEvent, now: Timestamp) -> Vec<ScreenAction> {
    if key.kind == KeyEventKind::Release {
        return Vec::new();
    }
    view.expire(now);
    let (with, key) = (key.modifiers, plain(key));
    if with_ctrl(key) && key.code == KeyCode::Char('c') {
        return interrupt(model, view, now);
    }
    view.interrupts = 0;
    if with.intersects(STRANGE) {
        let name = name(key, Glyphs::Ascii);
        view.toast(format!("alt-{name} is not bound"), Role::Dim, now);
        return Vec::new();
    }
    if with_ctrl(key) && matches!(key.code, KeyCode::Char('z' | 'l' | 's')) {
        return on_page_key(model, view, key, now);
    }
    if was_meant_for_closed(view, now) {
        view.toast("key ignored: its overlay has closed", Role::Dim, now);
        return Vec::new();
    }
    if let Some(requests) = overlay::on_key::<RunScreen>(model, view, key, now) {
        return execute(model, view, requests, now);
    }
    if view.editing.is_some() {
        edit_filter(view, key);
        return Vec::new();
    }
    on_page_key(model, view, key, now)
}

/// Whether a key follows so close on the end of an overlay that it was meant for that one: for the page below, it
/// may be another order.
fn was_meant_for_closed(view: &mut ViewState, now: Timestamp) -> bool {
    let is_close = view.closed.is_some_and(|closed| now.since(closed) < TYPED_ON_MS);
    view.closed = is_close.then_some(now);
    is_close
}

/// Pasted text goes to the line that is being typed, without control characters; elsewhere it is ignored,
/// since pasted text is not a command.
pub fn on_paste(view: &mut ViewState, text: &str, now: Timestamp) {
    view.expire(now);
    if !overlay::on_paste::<RunScreen>(view, text)
        && let Some(pane) = view.editing
        && let Some(line) = view.page_mut(pane).filter()
    {
        input::paste(line, text);
    }
}

/// Runs a line as the palette does.
pub fn run_line(model: &Model, view: &mut ViewState, line: &str, now: Timestamp) -> Vec<ScreenAction> {
    execute(model, view, vec![Request::Line(line.to_owned())], now)
}

/// Executes what pages and overlays request.
pub fn execute(
    model: &Model,
    view: &mut ViewState,
    requests: Vec<Request>,
    now: Timestamp,
) -> Vec<ScreenAction> {
    let mut actions = Vec::new();
    for request in requests {
        match request {
            Request::Do(action) => actions.push(action),
            Request::Live(action) => {
                view.moment.frozen = None;
                actions.push(action);
            }
            Request::Command(command) => actions.extend(on_command(model, view, command, now)),
            Request::CommandAbout(rank, command) => {
                // On the hosts page a shell opens on the host that is selected there.
                let node = rank.and_then(|rank| ranks::find(model, rank)).map(|rank| rank.node);
                view.select_place(rank, node);
                actions.extend(on_command(model, view, command, now));
            }
            Request::Line(line) => {
                let requests = palette::run(model, view, &line, now);
                actions.extend(execute(model, view, requests, now));
            }
            Request::ShowPage(tab) => (view.tab, view.zoom, view.editing) = (tab, false, None),
            Request::Inspect(rank) => view.open(Inspector::new(rank)),
            Request::ShowEvent(number) => view.open(EventCard::new(number)),
            Request::ListProcesses(node) => view.open(ProcessList { node, selected: None }),
            Request::ShowRanksOf(host) => {
                view.selected = None;
                view.filter_ranks(format!("host:{host}"));
            }
            Request::ShowRankLog(rank) => view.show_rank_log(rank),
            Request::CloseOverlays => view.overlays.clear(),
            Request::CloseForms => view.overlays.retain(|overlay| !overlay.is_form()),
        }
    }
    actions
}

/// Does what the key of this command does, or shows why it is disabled.
pub fn on_command(
    model: &Model,
    view: &mut ViewState,
    command: ScreenCommand,
    now: Timestamp,
) -> Vec<ScreenAction> {
    match TABLE.of_command(command, view.pane()).or_else(|| keys::binding(command)) {
        Some(binding) => on_binding(model, view, binding, now),
        None => Vec::new(),
    }
}

/// Ctrl-c: first as `q`, then a clean stop, then quit at once. A console that attached leaves the run alone.
fn interrupt(model: &Model, view: &mut ViewState, now: Timestamp) -> Vec<ScreenAction> {
    if view.moment.is_behind_live() {
        view.toast("live; press ctrl-c again for options", Role::Warn, now);
        return vec![ScreenAction::Time(TimeMove::Present)];
    }
    if view.steering.replay || view.steering.read_only || !runs(model) {
        return vec![ScreenAction::leave()];
    }
    view.interrupts = view.interrupts.saturating_add(1);
    match view.interrupts {
        1 => {
            let question = confirm::quit(model, view.steering.passing);
            view.open(question);
            let next = if view.steering.attached { "detach" } else { "stop the run cleanly" };
            view.toast(format!("press ctrl-c again to {next}"), Role::Warn, now);
            Vec::new()
        }
        2 if view.steering.attached => vec![ScreenAction::leave()],
        2 => {
            view.overlays.retain(|overlay| !matches!(overlay, Overlay::Confirm(_)));
            view.toast("stopping; press ctrl-c again to quit now", Role::Warn, now);
            vec![ScreenAction::stop(StopMode::Clean)]
        }
        _ => vec![ScreenAction::leave()],
    }
}

fn on_page_key(model: &Model, view: &mut ViewState, key: KeyEvent, now: Timestamp) -> Vec<ScreenAction> {
    let Some(binding) = TABLE.find(key, view.pane(), &view.steering.keymap) else {
        let (name, place) = (name(key, Glyphs::Ascii), view.pane().name());
        view.toast(format!("{name} is not bound in {place}; ? shows keys"), Role::Dim, now);
        return Vec::new();
    };
    on_binding(model, view, binding, now)
}

fn on_binding(
    model: &Model,
    view: &mut ViewState,
    binding: &Binding<RunScreen>,
    now: Timestamp,
) -> Vec<ScreenAction> {
    match (binding.disabled)(model, view) {
        Some(reason) => {
            view.toast(format!("{}: {reason}", binding.short), Role::Warn, now);
            Vec::new()
        }
        None => {
            let requests = command::perform(model, view, binding.command, now);
            execute(model, view, requests, now)
        }
    }
}

fn edit_filter(view: &mut ViewState, key: KeyEvent) {
    let Some(pane) = view.editing else { return };
    if matches!(key.code, KeyCode::Enter | KeyCode::Esc) {
        view.editing = None;
    }
    let page = view.page_mut(pane);
    match key.code {
        KeyCode::Enter => {}
        KeyCode::Esc => {
            if let Some(line) = page.filter() {
                line.clear();
            }
            page.on_filter(FilterChange::Cleared);
        }
        _ => {
            if let Some(line) = page.filter() {
                input::edit(line, key);
            }
            page.on_filter(FilterChange::Typed);
        }
    }
}
