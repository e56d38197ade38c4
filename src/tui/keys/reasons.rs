//! Why a key cannot be used now: `None` when it can.

use crate::ranks;
use crate::state::{LogScope, Tab, ViewState};
use crate::theme::Glyphs;
use rankdeck_core::model::{Model, RunState};
use rankdeck_proto::message::StopMode;

pub(super) fn always(_: &Model, _: &ViewState) -> Option<&'static str> {
    None
}

/// Why nothing can be ordered in a replay.
const RECORDED: &str = "this is a recorded run";

/// Why nothing can be ordered of a console that only shows.
const SHOWN_ONLY: &str = "this console is read-only";

/// Why nothing can be ordered while the past is shown.
const PAST: &str = "only in the present; esc goes there";

/// Why there is no past.
const UNRECORDED: &str = "this console keeps no record to go back in";

/// Why nothing can be ordered from what is shown.
pub fn no_order(view: &ViewState) -> Option<&'static str> {
    match &view.moment.cursor {
        _ if view.steering.replay => Some(RECORDED),
        _ if view.steering.read_only => Some(SHOWN_ONLY),
        Some(_) => Some(PAST),
        None => None,
    }
}

/// Why no agent can be asked anything from what is shown.
pub fn no_question(view: &ViewState) -> Option<&'static str> {
    match view.moment.cursor {
        _ if view.steering.replay => Some(RECORDED),
        Some(_) => Some(PAST),
        None => None,
    }
}

pub(super) fn present(_: &Model, view: &ViewState) -> Option<&'static str> {
    view.moment.cursor.is_none().then_some("the present is shown; , and < go back")
}

pub(super) fn no_record(_: &Model, view: &ViewState) -> Option<&'static str> {
    view.steering.unrecorded.then_some(UNRECORDED)
}

pub(super) fn past_stands(_: &Model, view: &ViewState) -> Option<&'static str> {
    view.moment.cursor.is_some().then_some("the past stands still; P lets it run")
}

pub(super) fn no_repeat(model: &Model, view: &ViewState) -> Option<&'static str> {
    match model.run.state {
        _ if view.steering.replay => Some(RECORDED),
        _ if view.steering.read_only => Some(SHOWN_ONLY),
        RunState::Over if !view.steering.again => Some("no experiment file of it is known here"),
        RunState::Over => None,
        _ => Some("the run is not over"),
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

pub(super) fn no_stop(model: &Model, view: &ViewState) -> Option<&'static str> {
    if let Some(reason) = no_order(view) {
        return Some(reason);
    }
    match model.run.state {
        // A host that proved nothing may be back.
        RunState::Over if !model.run.unverified.is_empty() => None,
        RunState::Over => Some("the run is over"),
        _ if model.run.stopping == Some(StopMode::Kill) => Some("the run is being killed"),
        _ if model.run.stopping.is_some() => Some("a stop is on its way; X kills"),
        _ => None,
    }
}

pub(super) fn no_kill(model: &Model, view: &ViewState) -> Option<&'static str> {
    if let Some(reason) = no_order(view) {
        return Some(reason);
    }
    match model.run.state {
        RunState::Over if !model.run.unverified.is_empty() => None,
        RunState::Over => Some("the run is over"),
        _ if model.run.stopping == Some(StopMode::Kill) => Some("the run is being killed"),
        _ => None,
    }
}

pub(super) fn no_detach(model: &Model, view: &ViewState) -> Option<&'static str> {
    if let Some(reason) = no_order(view) {
        return Some(reason);
    }
    match runs(model) {
        true => view.steering.passing.then_some("simulated hosts end with their console; q leaves"),
        false => Some("nothing runs; q leaves"),
    }
}

pub(super) fn no_restart(model: &Model, view: &ViewState) -> Option<&'static str> {
    if let Some(reason) = no_order(view) {
        return Some(reason);
    }
    match model.run.state {
        RunState::Connecting | RunState::Launching => Some("the run has not started yet"),
        RunState::Restarting if model.run.restart_at.is_some() => None,
        RunState::Restarting => Some("a restart is on its way"),
        RunState::Running | RunState::Draining | RunState::Over => None,
    }
}

pub(super) fn no_rehost(model: &Model, view: &ViewState) -> Option<&'static str> {
    if let Some(reason) = no_order(view) {
        return Some(reason);
    }
    match model.run.state {
        RunState::Restarting if model.run.restart_at.is_some() => None,
        RunState::Draining => Some("the run is on its way out"),
        _ => no_restart(model, view),
    }
}

pub(super) fn no_sight(model: &Model, view: &ViewState) -> Option<&'static str> {
    match view.moment.cursor {
        _ if view.steering.replay => Some("a record has no pictures of the policy; `rankdeck play` shows it"),
        Some(_) => Some(PAST),
        // What was seen last stays to be looked at.
        None if model.run.state == RunState::Over && model.policy.frame.is_none() => {
            Some("the run is over; `rankdeck play` shows its policy")
        }
        None => None,
    }
}

pub(super) fn no_verdict(model: &Model, _: &ViewState) -> Option<&'static str> {
    let any = !model.verdicts.is_empty() || crate::overlays::evidence::latest_verdict(model).is_some();
    (!any).then_some("the watch has nothing to say")
}

pub(super) fn no_trouble(model: &Model, _: &ViewState) -> Option<&'static str> {
    let any = model.ranks.iter().any(|rank| ranks::state(model, rank, Glyphs::Ascii).trouble);
    (!any).then_some("no rank is failed or stuck")
}

pub(super) fn no_event(model: &Model, view: &ViewState) -> Option<&'static str> {
    crate::panes::events::selected(model, view).is_none().then_some("no event is shown")
}

pub(super) fn no_moment(model: &Model, view: &ViewState) -> Option<&'static str> {
    no_event(model, view).or_else(|| no_record(model, view))
}

pub(super) fn at_newest(_: &Model, view: &ViewState) -> Option<&'static str> {
    view.events.selected.is_none().then_some("the newest event is shown")
}

pub(super) fn not_over(model: &Model, view: &ViewState) -> Option<&'static str> {
    let runs = (model.run.state != RunState::Over).then_some("the run is not over");
    runs.or_else(|| no_record(model, view))
}

pub(super) fn nobody_blamed(model: &Model, _: &ViewState) -> Option<&'static str> {
    crate::panes::end::guilty(model).is_none().then_some("no rank is blamed")
}

pub(super) fn no_host(model: &Model, _: &ViewState) -> Option<&'static str> {
    model.hosts.is_empty().then_some("no hosts")
}

/// Why a host shows no ranks yet.
pub(super) fn no_ranks_there(model: &Model, view: &ViewState) -> Option<&'static str> {
    let waits = view.geometry.connecting.then_some("no rank has been started yet");
    no_host(model, view).or(waits)
}

pub(super) fn no_rank(model: &Model, view: &ViewState) -> Option<&'static str> {
    match model.ranks.is_empty() {
        true => Some("no ranks yet"),
        false => ranks::selected(model, view).is_none().then_some("the filter shows no rank"),
    }
}

pub(super) fn no_look(model: &Model, view: &ViewState) -> Option<&'static str> {
    let alive = || ranks::selected(model, view).is_some_and(ranks::alive);
    no_question(view).or_else(|| (!alive()).then_some("this rank has no process"))
}

pub(super) fn no_continue(model: &Model, view: &ViewState) -> Option<&'static str> {
    if let Some(reason) = no_order(view) {
        return Some(reason);
    }
    let state = ranks::selected(model, view).and_then(|rank| rank.sample.as_ref()).map(|sample| sample.state);
    (state != Some('T')).then_some("no signal has stopped this rank")
}

pub(super) fn no_processes(model: &Model, view: &ViewState) -> Option<&'static str> {
    no_question(view).or_else(|| no_host(model, view))
}

pub(super) fn no_waits(model: &Model, view: &ViewState) -> Option<&'static str> {
    let told = model.ranks.len() > 1 && model.ranks.iter().any(|rank| rank.track.iteration().is_some());
    (!told && !view.ranks.waits).then_some("no two ranks have told how long they wait")
}

pub(super) fn no_shell(model: &Model, view: &ViewState) -> Option<&'static str> {
    no_order(view).or_else(|| model.hosts.is_empty().then_some("no hosts"))
}

pub(super) fn no_series(model: &Model, _: &ViewState) -> Option<&'static str> {
    model.charts().next().is_none().then_some("no values yet")
}

pub(super) fn no_picture(model: &Model, view: &ViewState) -> Option<&'static str> {
    view.shown(model).gallery.is_empty().then_some("the program has logged no pictures")
}

pub(super) fn no_histogram(model: &Model, view: &ViewState) -> Option<&'static str> {
    match view.chart.cursor {
        _ if model.histograms.is_empty() => Some("the program has logged no histograms"),
        None => Some("no cursor; [ and ] move one"),
        Some(_) => None,
    }
}

pub(super) fn no_cursor(_: &Model, view: &ViewState) -> Option<&'static str> {
    view.chart.cursor.is_none().then_some("no cursor; [ and ] move one")
}

pub(super) fn whole(_: &Model, view: &ViewState) -> Option<&'static str> {
    (view.chart.window.zoom == 0).then_some("the whole run is shown")
}

pub(super) fn no_pattern(_: &Model, view: &ViewState) -> Option<&'static str> {
    view.log.filter.is_empty().then_some("type what to look for first: /")
}

pub(super) fn broken(_: &Model, view: &ViewState) -> Option<&'static str> {
    view.log.wrap.then_some("long lines are whole already; w cuts them")
}

pub(super) fn at_begin(_: &Model, view: &ViewState) -> Option<&'static str> {
    (view.log.wrap || view.log.shift == 0).then_some("lines are shown from their begin")
}

pub(super) fn merged(_: &Model, view: &ViewState) -> Option<&'static str> {
    (view.log.scope == LogScope::Merged).then_some("lines of all ranks are shown; m shows one rank")
}

pub(super) fn following(_: &Model, view: &ViewState) -> Option<&'static str> {
    let follows = view.log.at.is_none() && view.log.files.is_none() && view.log.back.is_none();
    follows.then_some("the newest line is shown")
}

pub(super) fn one_pane(_: &Model, view: &ViewState) -> Option<&'static str> {
    let several = view.tab == Tab::Overview && view.geometry.panes().len() > 1;
    (!several).then_some("this page has one pane")
}

pub(super) fn no_sizes(_: &Model, view: &ViewState) -> Option<&'static str> {
    (view.sizes == Default::default()).then_some("panes have their usual sizes")
}

pub(super) fn no_zoom(model: &Model, view: &ViewState) -> Option<&'static str> {
    if view.tab != Tab::Overview {
        return Some("this page is whole already");
    }
    model.ranks.is_empty().then_some("no ranks yet")
}
