//! Executes the commands that apply on every page, and passes the others to the pages.

use crate::run::action::{Action, Request};
use crate::run::command::Command;
use crate::run::geometry::{Geometry, Pane, Tab};
use crate::run::overlays::{
    EnvironmentCard, EventCard, EvidenceCard, HostPicker, Images, Inspector, LivePolicy, Overlay, Palette,
    RestartForm, RunHelp, TimeInput, confirm,
};
use crate::run::pages::FilterChange;
use crate::run::pane_sizes::PaneSizes;
use crate::run::reasons::runs;
use crate::run::restart_draft::RestartDraft;
use crate::run::shared::FrozenMoment;
use crate::run::time::TimeMove;
use crate::run::{ViewState, layout, processes, ranks};
use rankdeck_core::event::Event;
use rankdeck_core::model::{EventSubject, HistoryLine, Model, RunState};
use rankdeck_core::report::Severity;
use rankdeck_kit::Role;
use rankdeck_proto::message::StopMode;
use rankdeck_types::ids::{Generation, Timestamp};
use std::sync::Arc;

/// Cells per key press that changes a pane's width.
const WIDER: i16 = 2;
/// Most bytes on the clipboard; terminals cut OSC 52 at about this size.
const COPY_LIMIT: usize = 64 * 1024;

/// Executes a command that is not disabled.
pub fn perform(model: &Model, view: &mut ViewState, command: Command, now: Timestamp) -> Vec<Request> {
    // What leads away from the table goes with the rank that the table shows as selected.
    if matches!(command, Command::RankLog | Command::Go(_) | Command::Explain)
        && let Some(rank) = view.selected_rank(model)
    {
        view.selected = Some(rank);
    }
    match command {
        Command::Quit => return quit(model, view, now),
        Command::Stop => return stop(model, view, StopMode::Clean),
        Command::Kill => return stop(model, view, StopMode::Kill),
        Command::Detach => return vec![Request::Do(Action::leave())],
        Command::Restart | Command::RestartWith => restart(model, view, command),
        Command::PickHosts => view.open(HostPicker::default()),
        Command::Palette => view.open(Palette::default()),
        Command::Help => view.open(RunHelp::default()),
        Command::Policy => view.open(LivePolicy),
        Command::Pictures => view.open(Images::default()),
        Command::Go(tab) => return vec![Request::ShowPage(tab)],
        Command::NextPane => focus(view, 1),
        Command::PreviousPane => focus(view, -1),
        Command::Taller(rows) => layout::grow(model, view, i16::from(rows), 0),
        Command::Wider(cells) => layout::grow(model, view, 0, i16::from(cells) * WIDER),
        Command::UsualSizes => view.sizes = PaneSizes::default(),
        Command::Zoom => view.zoom = !view.zoom,
        Command::Freeze => {
            view.moment.frozen = match view.moment.frozen.take() {
                Some(_) => None,
                None => Some(FrozenMoment { model: Arc::new(model.clone()), at: now }),
            };
        }
        Command::Explain => explain(model, view),
        Command::Back => return back(view),
        Command::Copy => return vec![Request::Do(Action::Copy(copied(model, view, now)))],
        Command::SaveScreen => return save_screen(view, now),
        Command::Redraw => return vec![Request::Do(Action::Redraw)],
        Command::Suspend => return vec![Request::Do(Action::Suspend)],
        Command::Move(_) | Command::Page(_) | Command::First | Command::Last => {
            let pane = view.pane();
            let rows = rows(&view.geometry, pane, command);
            scroll(model, view, pane, rows, now);
        }
        Command::Filter => {
            let pane = view.pane();
            view.editing = Some(pane);
            view.page_mut(pane).on_filter(FilterChange::Opened);
        }
        Command::Mouse => return toggle_mouse(view, now),
        Command::Stack | Command::Continue | Command::Environment => {
            return reach_rank(model, view, command, now);
        }
        Command::Shell if view.pane() != Pane::Hosts => {
            let rank = view.selected_rank(model).and_then(|rank| ranks::find(model, rank));
            return rank.map(|rank| Request::Do(Action::Shell(rank.node))).into_iter().collect();
        }
        Command::LogThere => return show_log_there(model, view, now),
        Command::Time(to) => return vec![Request::Live(Action::Time(to))],
        Command::TypeTime => {
            view.open(TimeInput::default());
            return vec![Request::Live(Action::Time(TimeMove::Step(0)))];
        }
        command => {
            return view.ask_pages(model, now, |page, cx| page.perform(command, cx)).unwrap_or_default();
        }
    }
    Vec::new()
}

/// Opens the evidence for the selected rank's verdict if it is critical, else for the worst verdict.
fn explain(model: &Model, view: &mut ViewState) {
    let own = view.selected.and_then(|rank| ranks::verdict_of(model, rank));
    let own = own.filter(|verdict| verdict.severity == Severity::Red);
    if let Some(verdict) = own.or_else(|| model.verdicts.first()) {
        view.open(EvidenceCard::new(verdict));
    } else if let Some(line) = ranks::latest_verdict(model) {
        // It has cleared; its evidence is kept with the event.
        view.open(EventCard::new(line.number));
    }
}

/// Plain text of what is selected: in the top overlay, else on the page.
fn copied(live: &Model, view: &mut ViewState, now: Timestamp) -> String {
    use rankdeck_kit::Component;
    let overlay = view.overlay().and_then(|overlay| overlay.copy(live, view, now));
    let mut out = overlay.unwrap_or_else(|| view.with_page(view.pane(), live, now, |page, cx| page.copy(cx)));
    let mut end = out.len().min(COPY_LIMIT);
    while !out.is_char_boundary(end) {
        end -= 1;
    }
    out.truncate(end);
    out
}

/// Writes what is shown into a file, unless secrets may be among it.
fn save_screen(view: &mut ViewState, now: Timestamp) -> Vec<Request> {
    if view.overlays.iter().any(Overlay::has_secrets) {
        view.toast("environments are never saved to files", Role::Warn, now);
        return Vec::new();
    }
    vec![Request::Do(Action::SaveScreen)]
}

/// Requests something from the selected rank's agent.
fn reach_rank(model: &Model, view: &mut ViewState, command: Command, now: Timestamp) -> Vec<Request> {
    let Some(rank) = view.selected_rank(model) else { return Vec::new() };
    match command {
        Command::Stack => {
            view.open(Inspector::new(rank));
            vec![Request::Do(Action::Send(Event::InspectRequested { rank }))]
        }
        Command::Continue => {
            view.toast(format!("sending SIGCONT to rank {rank}"), Role::Dim, now);
            vec![Request::Do(Action::Send(Event::ContinueRequested { rank }))]
        }
        _ => {
            let process = processes::rank(model, rank);
            process.and_then(|process| EnvironmentCard::open(view, &process)).unwrap_or_else(|why| {
                view.toast(format!("environment: {why}"), Role::Warn, now);
                Vec::new()
            })
        }
    }
}

/// Shows the log at the time of the selected event, or of the latest verdict about the selected rank.
fn show_log_there(model: &Model, view: &mut ViewState, now: Timestamp) -> Vec<Request> {
    let frozen = view.moment.frozen_model();
    let shown = frozen.as_deref().unwrap_or(model);
    let newest_verdict = || {
        let rank = view.selected_rank(model)?;
        let is_it = |line: &&HistoryLine| match &line.subject {
            Some(EventSubject::Verdict(verdict)) => verdict.rank == Some(rank),
            _ => false,
        };
        shown.history.iter().rev().find(is_it)
    };
    let line = match view.overlay() {
        Some(overlay @ (Overlay::Event(_) | Overlay::Evidence(_))) => overlay.event(shown),
        _ if view.pane() == Pane::Events => view.events.current(shown),
        _ => newest_verdict(),
    };
    let Some(line) = line else {
        view.toast("no verdict for this rank", Role::Warn, now);
        return Vec::new();
    };
    view.overlays.clear();
    view.show_event_log(model, line, now)
}

/// Toggles mouse capture.
fn toggle_mouse(view: &mut ViewState, now: Timestamp) -> Vec<Request> {
    let off = !view.steering.mouse_off;
    view.steering.mouse_off = off;
    let text = match off {
        true => "mouse capture off; drag to select text",
        false => "mouse capture on",
    };
    view.toast(text, Role::Dim, now);
    vec![Request::Do(Action::Mouse(!off))]
}

/// Quits, or asks how; in playback, returns to live first, since the choices depend on the live run.
fn quit(model: &Model, view: &mut ViewState, now: Timestamp) -> Vec<Request> {
    if view.moment.is_behind_live() {
        view.toast("live; press q again to quit", Role::Dim, now);
        return vec![Request::Live(Action::Time(TimeMove::Present))];
    }
    if view.steering.replay || view.steering.read_only || view.steering.at_home || !runs(model) {
        return vec![Request::Do(Action::leave())];
    }
    view.open(confirm::quit(model, view.steering.passing));
    Vec::new()
}

/// Asks before a stop, unless nothing has been started yet.
fn stop(model: &Model, view: &mut ViewState, mode: StopMode) -> Vec<Request> {
    if model.run.state == RunState::Connecting && !runs(model) {
        return vec![Request::Do(Action::stop(mode))];
    }
    let question = if mode == StopMode::Kill { confirm::kill(model) } else { confirm::stop(model) };
    view.open(question);
    Vec::new()
}

/// Rows that a movement key moves in a pane.
fn rows(geo: &Geometry, pane: Pane, command: Command) -> i64 {
    match command {
        Command::Move(rows) => i64::from(rows),
        Command::Page(pages) => {
            let height = geo.inside(geo.pane(pane)).height;
            i64::from(pages) * i64::from((height / 2).max(1))
        }
        Command::First => -i64::from(i32::MAX),
        _ => i64::from(i32::MAX),
    }
}

/// Moves in a pane; down is positive.
pub fn scroll(model: &Model, view: &mut ViewState, pane: Pane, rows: i64, now: Timestamp) {
    view.with_page(pane, model, now, |page, cx| page.scroll(rows, cx));
}

fn focus(view: &mut ViewState, step: isize) {
    let panes = view.geometry.panes();
    if let Some(at) = panes.iter().position(|pane| *pane == view.focus) {
        let next = (at as isize + step).rem_euclid(panes.len() as isize) as usize;
        view.focus = panes[next];
    }
}

/// Leaves one transient state, the innermost first.
fn back(view: &mut ViewState) -> Vec<Request> {
    if view.overlays.pop().is_some() || view.page_mut(view.pane()).back() {
    } else if view.zoom {
        view.zoom = false;
    } else if view.moment.frozen.is_some() {
        view.moment.frozen = None;
    } else if view.moment.is_behind_live() {
        return vec![Request::Live(Action::Time(TimeMove::Present))];
    } else if !view.marked.is_empty() {
        view.marked.clear();
    } else {
        view.tab = Tab::Overview;
    }
    Vec::new()
}

/// Opens the restart form.
pub fn restart_with(model: &Model, view: &mut ViewState, from: Option<&str>, line: &str) {
    let mut draft = RestartDraft::new(model, from, line, view.steering.changer);
    draft.edited = view.steering.edited.and_then(|check| check());
    view.open(RestartForm(Box::new(draft)));
}

/// Asks about a restart: from the selected checkpoint, the last one before the problem, or the latest.
pub fn restart(model: &Model, view: &mut ViewState, command: Command) {
    let picked = selected_checkpoint(model, view);
    if command == Command::RestartWith {
        let from = picked.or_else(|| checkpoint_before_problem(model, view));
        return restart_with(model, view, from.as_deref(), "");
    }
    let question = match picked {
        Some(path) => confirm::restart(model, Some(&path), None),
        None => confirm::restart(model, None, checkpoint_before_problem(model, view).as_deref()),
    };
    view.open(question);
}

/// The checkpoint of the selected event.
fn selected_checkpoint(model: &Model, view: &ViewState) -> Option<String> {
    let shown = view.shown(model);
    let line = match view.overlay() {
        Some(overlay) => overlay.event(shown),
        None if view.pane() == Pane::Events && view.events.selected.is_some() => view.events.current(shown),
        None => None,
    };
    // A later generation may have left it behind, and then it lies elsewhere.
    let stands = |path: &str| {
        let generation = model.run.generation;
        generation == Generation(0) || model.checkpoints.iter().any(|saved| saved.path == path)
    };
    line.and_then(|line| match &line.subject {
        Some(EventSubject::Checkpoint(path)) => Some(path.clone()).filter(|path| stands(path)),
        _ => None,
    })
}

/// The checkpoint that the advice of the open card's verdict names, else that of the worst verdict's.
fn checkpoint_before_problem(model: &Model, view: &ViewState) -> Option<String> {
    let verdict = match view.overlay() {
        Some(overlay @ (Overlay::Evidence(_) | Overlay::Event(_))) => {
            overlay.verdict(model, view.shown(model))
        }
        _ => ranks::live_verdicts(model).next(),
    };
    verdict?.card.actions.iter().find_map(|advice| advice.checkpoint()).map(str::to_owned)
}
