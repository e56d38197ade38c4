//! The reasons why keys are disabled; `None` if a key is enabled.

use crate::run::shared::Shared;
use crate::run::{ViewState, ranks};
use rankdeck_core::model::{Model, RunState};

/// Reason in a replay.
pub const RECORDED: &str = "this is a recorded run";

/// Reason in a read-only console.
pub const SHOWN_ONLY: &str = "this console is read-only";

/// Reason in playback.
pub const PAST: &str = "not available in playback; esc returns to live";

/// Reason without a recording.
pub const UNRECORDED: &str = "no recording in this console";

/// It is always enabled.
pub fn always(_: &Model, _: &ViewState) -> Option<&'static str> {
    None
}

/// Why the run cannot be changed now.
pub fn no_order(shared: &Shared) -> Option<&'static str> {
    match &shared.moment.cursor {
        _ if shared.steering.replay => Some(RECORDED),
        _ if shared.steering.read_only => Some(SHOWN_ONLY),
        Some(_) => Some(PAST),
        None => None,
    }
}

/// Why agents cannot be queried now.
pub fn no_query(shared: &Shared) -> Option<&'static str> {
    match shared.moment.cursor {
        _ if shared.steering.replay => Some(RECORDED),
        Some(_) => Some(PAST),
        None => None,
    }
}

/// Some process of the run may exist.
pub fn runs(model: &Model) -> bool {
    match model.run.state {
        RunState::Over => false,
        RunState::Connecting => model.ranks.iter().any(ranks::alive),
        RunState::Launching | RunState::Running | RunState::Draining | RunState::Restarting => true,
    }
}

/// There is no recording to play back.
pub fn no_record(_: &Model, view: &ViewState) -> Option<&'static str> {
    view.steering.unrecorded.then_some(UNRECORDED)
}

/// No rank is selected.
pub fn no_rank(model: &Model, view: &ViewState) -> Option<&'static str> {
    match model.ranks.is_empty() {
        true => Some("no ranks yet"),
        false => view.selected_rank(model).is_none().then_some("no rank matches the filter"),
    }
}

/// No shell can be opened.
pub fn no_shell(model: &Model, view: &ViewState) -> Option<&'static str> {
    no_order(view).or_else(|| no_host(model))
}

/// The run has no hosts.
pub fn no_host(model: &Model) -> Option<&'static str> {
    model.hosts.is_empty().then_some("no hosts")
}

/// The selected rank has no process whose agent can be queried.
pub fn no_process(model: &Model, view: &ViewState) -> Option<&'static str> {
    let rank = || view.selected_rank(model).and_then(|rank| ranks::find(model, rank));
    no_query(view).or_else(|| (!rank().is_some_and(ranks::alive)).then_some("process not running"))
}

/// The selected rank's process is not stopped, or it cannot be resumed.
pub fn not_stopped(model: &Model, view: &ViewState) -> Option<&'static str> {
    if let Some(reason) = no_order(view) {
        return Some(reason);
    }
    let rank = view.selected_rank(model).and_then(|rank| ranks::find(model, rank));
    let state = rank.and_then(|rank| rank.sample.as_ref()).map(|sample| sample.state);
    (state != Some('T')).then_some("rank is not suspended")
}

/// The selected rank is not lost, or it cannot join the others.
pub fn not_lost(model: &Model, view: &ViewState) -> Option<&'static str> {
    let obstacle = || match view.selected_rank(model) {
        Some(rank) => model.rejoin_obstacle(rank),
        None => Some("no rank is selected"),
    };
    no_order(view).or_else(obstacle)
}
