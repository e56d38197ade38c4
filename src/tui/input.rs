//! From keys, mouse and pastes to actions. Overlays come first, then the filter line, then the table of keys.

mod line;
mod mouse;
mod overlays;
mod restart;

pub use line::on_paste;
pub use mouse::on_mouse;

use crate::commands;
use crate::confirm;
use crate::keys::{self, BINDINGS, Binding, Command, with_ctrl};
use crate::state::{Action, Overlay, ViewState};
use crate::theme::{Glyphs, Role};
use crate::time::TimeMove;
use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use line::edit_filter;
use overlays::{
    answer_ask, answer_confirm, in_card, in_help, in_hosts, in_palette, in_pictures, in_processes, type_time,
};
use rankdeck_core::model::Model;
use rankdeck_proto::message::StopMode;
use rankdeck_types::ids::Timestamp;
use restart::in_restart;

/// Modifiers without a meaning here. A terminal tells escape and a letter close behind it as alt and the
/// letter: what was meant is not known, so nothing is done.
const STRANGE: KeyModifiers =
    KeyModifiers::ALT.union(KeyModifiers::SUPER).union(KeyModifiers::HYPER).union(KeyModifiers::META);

/// A key was pressed.
pub fn on_key(model: &Model, view: &mut ViewState, key: KeyEvent, now: Timestamp) -> Vec<Action> {
    if key.kind == KeyEventKind::Release {
        return Vec::new();
    }
    view.expire(now);
    let (with, key) = (key.modifiers, keys::plain(key));
    if with_ctrl(key) && key.code == KeyCode::Char('c') {
        return interrupt(model, view, now);
    }
    view.interrupts = 0;
    if with.intersects(STRANGE) {
        let name = keys::name(key, Glyphs::Ascii);
        view.toast(format!("alt-{name} is not a key here"), Role::Dim, now);
        return Vec::new();
    }
    if with_ctrl(key) && matches!(key.code, KeyCode::Char('z' | 'l' | 's')) {
        return command(model, view, key, now);
    }
    match view.overlay().cloned() {
        // The others decide what an escape means.
        Some(
            Overlay::Help { .. }
            | Overlay::Palette(_)
            | Overlay::Hosts { .. }
            | Overlay::Processes { .. }
            | Overlay::Time { .. },
        ) if key.code == KeyCode::Esc => {
            view.overlays.pop();
            Vec::new()
        }
        Some(Overlay::Confirm(confirm)) => answer_confirm(view, confirm, key),
        Some(Overlay::Ask(ask)) => answer_ask(view, ask, key, with, now),
        Some(Overlay::Help { filter, selected }) => in_help(model, view, filter, selected, key, with, now),
        Some(Overlay::Palette(typing)) => in_palette(model, view, typing, key, with, now),
        Some(Overlay::Hosts { changed, selected }) => in_hosts(model, view, changed, selected, key, now),
        Some(Overlay::Processes { node, selected }) => in_processes(model, view, (node, selected), key, now),
        Some(Overlay::Restart(draft)) => in_restart(model, view, *draft, key, with, now),
        Some(
            Overlay::Inspect { .. }
            | Overlay::Evidence { .. }
            | Overlay::Event { .. }
            | Overlay::Environment { .. }
            | Overlay::Policy,
        ) => in_card(model, view, key, now),
        Some(Overlay::Pictures(choice)) => in_pictures(model, view, &choice, key, now),
        Some(Overlay::Time { input }) => type_time(view, input, key, with, now),
        None if view.editing.is_some() => {
            edit_filter(view, key, with);
            Vec::new()
        }
        None => command(model, view, key, now),
    }
}

/// Ctrl-c: first as `q`, then a clean stop, then leave at once.
fn interrupt(model: &Model, view: &mut ViewState, now: Timestamp) -> Vec<Action> {
    if view.moment.cursor.as_ref().is_some_and(|time| time.live) {
        view.toast("back in the present; ctrl-c again asks what to do", Role::Warn, now);
        return vec![Action::Time(TimeMove::Present)];
    }
    if view.steering.replay || view.steering.read_only || !keys::runs(model) {
        return vec![Action::leave()];
    }
    view.interrupts = view.interrupts.saturating_add(1);
    match view.interrupts {
        1 => {
            view.open(Overlay::Confirm(confirm::quit(model, view.steering.passing)));
            view.toast("ctrl-c again stops the run cleanly", Role::Warn, now);
            Vec::new()
        }
        2 => {
            view.overlays.retain(|overlay| !matches!(overlay, Overlay::Confirm(_)));
            view.toast("stopping cleanly; ctrl-c again leaves at once", Role::Warn, now);
            vec![Action::stop(StopMode::Clean)]
        }
        _ => vec![Action::leave()],
    }
}

fn command(model: &Model, view: &mut ViewState, key: KeyEvent, now: Timestamp) -> Vec<Action> {
    let Some(binding) = keys::find(view, key) else {
        let (name, place) = (keys::name(key, Glyphs::Ascii), keys::Scope::In(view.pane()).name());
        view.toast(format!("{name} is not a key in {place}; ? lists them"), Role::Dim, now);
        return Vec::new();
    };
    carry_out(model, view, binding, now)
}

/// What a key of this command would do here.
fn perform(model: &Model, view: &mut ViewState, command: Command, now: Timestamp) -> Vec<Action> {
    let mut here = BINDINGS.iter().filter(|binding| keys::in_scope(binding, view));
    match here.find(|binding| binding.command == command) {
        Some(binding) => carry_out(model, view, binding, now),
        None => Vec::new(),
    }
}

fn carry_out(model: &Model, view: &mut ViewState, binding: &Binding, now: Timestamp) -> Vec<Action> {
    match (binding.disabled)(model, view) {
        Some(reason) => {
            view.toast(format!("{}: {reason}", binding.short), Role::Warn, now);
            Vec::new()
        }
        None => commands::perform(model, view, binding.command, now),
    }
}
