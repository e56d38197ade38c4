//! A new generation: from which checkpoint the question begins.

use super::restart_with;
use crate::confirm;
use crate::keys::Command;
use crate::overlays::{event, evidence};
use crate::panes::events;
use crate::ranks;
use crate::state::{Overlay, Pane, ViewState};
use rankdeck_core::model::{Model, Subject};

/// Asks about a new generation: from the selected checkpoint, from the one before the trouble, or from the
/// latest one.
pub(super) fn begin_again(model: &Model, view: &mut ViewState, command: Command) {
    let picked = picked(model, view);
    if command == Command::RestartWith {
        let from = picked.or_else(|| before_trouble(model, view));
        return restart_with(model, view, from.as_deref(), "");
    }
    let question = match picked {
        Some(path) => confirm::restart(model, Some(&path), None),
        None => confirm::restart(model, None, before_trouble(model, view).as_deref()),
    };
    view.open(Overlay::Confirm(question));
}

/// The checkpoint of the selected event.
fn picked(model: &Model, view: &ViewState) -> Option<String> {
    let line = match view.overlay() {
        Some(Overlay::Event { number, .. }) => event::find(view.shown(model), *number),
        None if view.pane() == Pane::Events => {
            events::selected(view.shown(model), view).filter(|_| view.events.selected.is_some())
        }
        _ => None,
    };
    line.and_then(|line| match &line.subject {
        Some(Subject::Checkpoint(path)) => Some(path.clone()),
        _ => None,
    })
}

/// The checkpoint to which the advice of what is looked at goes back: that of the open card, else of the
/// worst verdict.
fn before_trouble(model: &Model, view: &ViewState) -> Option<String> {
    let told = match view.overlay() {
        Some(Overlay::Evidence { about, .. }) => evidence::find(model, about),
        Some(Overlay::Event { number, .. }) => {
            event::find(view.shown(model), *number).and_then(|line| match &line.subject {
                Some(Subject::Verdict(verdict)) => Some(&**verdict),
                _ => None,
            })
        }
        _ => ranks::live_verdicts(model).next(),
    };
    told?.card.actions.iter().find_map(|advice| advice.checkpoint()).map(str::to_owned)
}
