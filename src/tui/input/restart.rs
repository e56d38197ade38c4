//! Keys while a restart with changed keys is typed.

use super::line::edit;
use crate::confirm;
use crate::overlays::restart;
use crate::restart_draft::{RestartDraft, origins};
use crate::state::{Action, Overlay, ViewState};
use crate::theme::Role;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rankdeck_core::model::Model;
use rankdeck_types::ids::Timestamp;

pub(super) fn in_restart(
    model: &Model,
    view: &mut ViewState,
    mut draft: RestartDraft,
    key: KeyEvent,
    with: KeyModifiers,
    now: Timestamp,
) -> Vec<Action> {
    let last = origins(model).len().saturating_sub(1);
    let before = (draft.line.clone(), draft.selected);
    match key.code {
        KeyCode::Esc => {
            view.overlays.pop();
            return Vec::new();
        }
        KeyCode::Enter => {
            match restart::order(model, view, &draft) {
                Ok((text, event)) => view.open(Overlay::Confirm(confirm::changed(model, text, event))),
                Err(why) => view.toast(why, Role::Warn, now),
            }
            return Vec::new();
        }
        KeyCode::Up => draft.selected = draft.selected.min(last).saturating_sub(1),
        KeyCode::Down => draft.selected = (draft.selected + 1).min(last),
        KeyCode::PageUp => draft.selected = draft.selected.min(last).saturating_sub(8),
        KeyCode::PageDown => draft.selected = (draft.selected + 8).min(last),
        KeyCode::Tab => draft.complete(),
        _ => {
            edit(&mut draft.line, key, with);
        }
    }
    if (&draft.line, draft.selected) != (&before.0, before.1) {
        draft.look(model, view.steering.changer);
    }
    view.open(Overlay::Restart(Box::new(draft)));
    Vec::new()
}
