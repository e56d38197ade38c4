//! The commands of keys, typed words and clicks on the run screen. Those that apply on every page are executed
//! here, the others by the pages.

use crate::run::action::{Request, ScreenAction};
use crate::run::geometry::{Geometry, Pane, Tab};
use crate::run::layout::PaneSizes;
use crate::run::overlays::{
    EnvironmentCard, EventCard, EvidenceCard, HostPicker, Images, Inspector, LivePolicy, Overlay, Palette,
    RestartForm, RunHelp, TimeInput, confirm,
};
use crate::run::pages::FilterChange;
use crate::run::reasons::runs;
use crate::run::restart_draft::RestartDraft;
use crate::run::shared::FrozenMoment;
use crate::run::time::TimeMove;
use crate::run::{RunScreen, ViewState, layout, processes, ranks};
use rankdeck_core::event::Event;
use rankdeck_core::model::{EventSubject, HistoryLine, Model, RunState};
use rankdeck_core::report::Severity;
use rankdeck_kit::keys::{KeyTable, Keymap};
use rankdeck_kit::{Glyphs, Role};
use rankdeck_proto::message::StopMode;
use rankdeck_types::ids::{Generation, Timestamp};
use std::sync::Arc;

/// A command.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScreenCommand {
    /// Open the help page.
    Help,
    /// Open the command palette.
    Palette,
    /// Quit the console.
    Quit,
    /// Stop the run cleanly.
    Stop,
    /// Kill the run.
    Kill,
    /// End the console; the run keeps running.
    Detach,
    /// Restart the run.
    Restart,
    /// Restart with changed config keys.
    RestartWith,
    /// Add or exclude hosts.
    PickHosts,
    /// Go to a page.
    Go(Tab),
    /// Focus the next pane.
    NextPane,
    /// Focus the previous pane.
    PreviousPane,
    /// Toggle the zoom of the focused pane.
    Zoom,
    /// Make the focused pane higher, or lower.
    Taller(i8),
    /// Make it wider, or narrower.
    Wider(i8),
    /// Reset pane sizes.
    UsualSizes,
    /// Freeze or unfreeze the view.
    Freeze,
    /// Show the evidence.
    Explain,
    /// Show the policy in rank 0's evaluation.
    Policy,
    /// Show logged images.
    Pictures,
    /// Go back one level.
    Back,
    /// Copy what is selected.
    Copy,
    /// Write the screen to a file.
    SaveScreen,
    /// Redraw the screen.
    Redraw,
    /// Suspend the console.
    Suspend,
    /// Move by rows; down is positive.
    Move(i8),
    /// Move by half pages; down is positive.
    Page(i8),
    /// Go to the first row.
    First,
    /// Go to the last row.
    Last,
    /// Show details of the selection.
    Inspect,
    /// Type a filter.
    Filter,
    /// Sort by the next column.
    Sort,
    /// Reverse the sort order.
    Reverse,
    /// Mark the selected rank.
    Mark,
    /// Select the next rank with a problem.
    NextTrouble,
    /// Show the log of the selected rank.
    RankLog,
    /// Toggle merged and single-rank log.
    Merge,
    /// Follow the newest line.
    Follow,
    /// Toggle wrapping of long lines.
    Wrap,
    /// Scroll long lines; right is positive.
    Sideways(i8),
    /// Go to the next match, or the previous one when negative.
    Hit(i8),
    /// Show the context of the match from all ranks.
    Around,
    /// Cycle the log level.
    Level,
    /// Toggle timestamps.
    Times,
    /// Toggle folding of repeated lines and tracebacks.
    Fold,
    /// Show or hide earlier generations, in the log or the charts.
    Former,
    /// Show the log at the time of the selection.
    LogThere,
    /// Select the next (or previous) rank without leaving the log.
    OtherRank(i8),
    /// Show or hide the selected series.
    ToggleSeries,
    /// Zoom the charts; in is positive.
    Span(i8),
    /// Pan the charts; right is positive.
    Pan(i8),
    /// Reset the zoom.
    WholeRun,
    /// Cycle the x axis: steps, time, wall clock.
    Axis,
    /// Smooth the charts more, or less.
    Smooth(i8),
    /// Toggle log scale.
    LogScale,
    /// Toggle one shared chart.
    Together,
    /// Move the cursor of the charts; positive: later.
    Cursor(i8),
    /// Pin the cursor.
    Pin,
    /// Select another bin of heat maps; up is positive.
    Height(i8),
    /// Export the shown series.
    ExportCharts,
    /// Move the timeline cursor.
    Time(TimeMove),
    /// Type a time to go to.
    TypeTime,
    /// Go to the time of the selection.
    GoThere,
    /// Launch again with changes.
    Again,
    /// Toggle mouse capture.
    Mouse,
    /// Show the stack of the selected rank.
    Stack,
    /// Show the environment of the selected rank.
    Environment,
    /// List the processes of the selected host.
    Processes,
    /// Resume the selected rank (SIGCONT).
    Continue,
    /// Start the selected lost rank again.
    Rejoin,
    /// Toggle wait times in the strip.
    Waits,
    /// Open a shell on the selected host.
    Shell,
}

/// The names of keys, as the user has bound them.
#[derive(Clone, Copy)]
pub struct KeyNames<'a> {
    /// The keys of the screen.
    pub table: &'static KeyTable<RunScreen>,
    /// The user's own keys.
    pub keymap: &'a Keymap,
    /// The characters of arrows.
    pub glyphs: Glyphs,
}

impl KeyNames<'_> {
    /// The first key of a command.
    pub fn of(&self, command: ScreenCommand) -> String {
        self.table.key_name(command, None, self.keymap, self.glyphs)
    }

    /// Its first key in a pane.
    pub fn in_pane(&self, command: ScreenCommand, pane: Pane) -> String {
        self.table.key_name(command, Some(pane), self.keymap, self.glyphs)
    }

    /// The same names without characters that not every terminal has.
    pub fn ascii(self) -> Self {
        KeyNames { glyphs: Glyphs::Ascii, ..self }
    }
}

/// Cells per key press that changes a pane's width.
const WIDER: i16 = 2;
/// Most bytes on the clipboard; terminals cut OSC 52 at about this size.
const COPY_LIMIT: usize = 64 * 1024;

/// Executes a command that is not disabled.
pub(crate) fn perform(
    model: &Model,
    view: &mut ViewState,
    command: ScreenCommand,
    now: Timestamp,
) -> Vec<Request> {
    // What leads away from the table goes with the rank that the table shows as selected.
    if matches!(command, ScreenCommand::RankLog | ScreenCommand::Go(_) | ScreenCommand::Explain)
        && let Some(rank) = view.selected_rank(model)
    {
        view.selected = Some(rank);
    }
    match command {
        ScreenCommand::Quit => return quit(model, view, now),
        ScreenCommand::Stop => return stop(model, view, StopMode::Clean),
        ScreenCommand::Kill => return stop(model, view, StopMode::Kill),
        ScreenCommand::Detach => return vec![Request::Do(ScreenAction::leave())],
        ScreenCommand::Restart | ScreenCommand::RestartWith => restart(model, view, command),
        ScreenCommand::PickHosts => view.open(HostPicker::default()),
        ScreenCommand::Palette => view.open(Palette::default()),
        ScreenCommand::Help => view.open(RunHelp::default()),
        ScreenCommand::Policy => view.open(LivePolicy),
        ScreenCommand::Pictures => view.open(Images::default()),
        ScreenCommand::Go(tab) => return vec![Request::ShowPage(tab)],
        ScreenCommand::NextPane => focus(view, 1),
        ScreenCommand::PreviousPane => focus(view, -1),
        ScreenCommand::Taller(rows) => layout::grow(model, view, i16::from(rows), 0),
        ScreenCommand::Wider(cells) => layout::grow(model, view, 0, i16::from(cells) * WIDER),
        ScreenCommand::UsualSizes => view.sizes = PaneSizes::default(),
        ScreenCommand::Zoom => view.zoom = !view.zoom,
        ScreenCommand::Freeze => {
            view.moment.frozen = match view.moment.frozen.take() {
                Some(_) => None,
                None => Some(FrozenMoment { model: Arc::new(model.clone()), at: now }),
            };
        }
        ScreenCommand::Explain => explain(model, view),
        ScreenCommand::Back => return back(view),
        ScreenCommand::Copy => return vec![Request::Do(ScreenAction::Copy(copied(model, view, now)))],
        ScreenCommand::SaveScreen => return save_screen(view, now),
        ScreenCommand::Redraw => return vec![Request::Do(ScreenAction::Redraw)],
        ScreenCommand::Suspend => return vec![Request::Do(ScreenAction::Suspend)],
        ScreenCommand::Move(_) | ScreenCommand::Page(_) | ScreenCommand::First | ScreenCommand::Last => {
            let pane = view.pane();
            let rows = rows(&view.geometry, pane, command);
            scroll(model, view, pane, rows, now);
        }
        ScreenCommand::Filter => {
            let pane = view.pane();
            view.editing = Some(pane);
            view.page_mut(pane).on_filter(FilterChange::Opened);
        }
        ScreenCommand::Mouse => return toggle_mouse(view, now),
        ScreenCommand::Stack
        | ScreenCommand::Continue
        | ScreenCommand::Rejoin
        | ScreenCommand::Environment => {
            return reach_rank(model, view, command, now);
        }
        ScreenCommand::Shell if view.pane() != Pane::Hosts => {
            let rank = view.selected_rank(model).and_then(|rank| ranks::find(model, rank));
            return rank.map(|rank| Request::Do(ScreenAction::Shell(rank.node))).into_iter().collect();
        }
        ScreenCommand::LogThere => return show_log_there(model, view, now),
        ScreenCommand::Time(to) => return vec![Request::Live(ScreenAction::Time(to))],
        ScreenCommand::TypeTime => {
            view.open(TimeInput::default());
            return vec![Request::Live(ScreenAction::Time(TimeMove::Step(0)))];
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
        view.toast("environment variables are never saved to files", Role::Warn, now);
        return Vec::new();
    }
    vec![Request::Do(ScreenAction::SaveScreen)]
}

/// Requests something from the selected rank's agent.
fn reach_rank(model: &Model, view: &mut ViewState, command: ScreenCommand, now: Timestamp) -> Vec<Request> {
    let Some(rank) = view.selected_rank(model) else { return Vec::new() };
    match command {
        ScreenCommand::Stack => {
            view.open(Inspector::new(rank));
            vec![Request::Do(ScreenAction::Send(Event::InspectRequested { rank }))]
        }
        ScreenCommand::Continue => {
            view.toast(format!("sending SIGCONT to rank {rank}"), Role::Dim, now);
            vec![Request::Do(ScreenAction::Send(Event::ContinueRequested { rank }))]
        }
        ScreenCommand::Rejoin => {
            view.toast(format!("starting rank {rank} again"), Role::Dim, now);
            vec![Request::Do(ScreenAction::Send(Event::RejoinRequested { rank }))]
        }
        _ => {
            let process = processes::rank(model, rank);
            process.and_then(|process| EnvironmentCard::open(view, &process)).unwrap_or_else(|why| {
                view.toast(format!("environment variables: {why}"), Role::Warn, now);
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
    vec![Request::Do(ScreenAction::Mouse(!off))]
}

/// Quits, or asks how; in playback, returns to live first, since the choices depend on the live run.
fn quit(model: &Model, view: &mut ViewState, now: Timestamp) -> Vec<Request> {
    if view.moment.is_behind_live() {
        view.toast("live; press q again to quit", Role::Dim, now);
        return vec![Request::Live(ScreenAction::Time(TimeMove::Present))];
    }
    if view.steering.replay || view.steering.read_only || view.steering.at_home || !runs(model) {
        return vec![Request::Do(ScreenAction::leave())];
    }
    view.open(confirm::quit(model, view.steering.passing));
    Vec::new()
}

/// Asks before a stop, unless nothing has been started yet.
fn stop(model: &Model, view: &mut ViewState, mode: StopMode) -> Vec<Request> {
    if model.run.state == RunState::Connecting && !runs(model) && !view.steering.attached {
        return vec![Request::Do(ScreenAction::stop(mode))];
    }
    let question = if mode == StopMode::Kill { confirm::kill(model) } else { confirm::stop(model) };
    view.open(question);
    Vec::new()
}

/// Rows that a movement key moves in a pane.
fn rows(geo: &Geometry, pane: Pane, command: ScreenCommand) -> i64 {
    match command {
        ScreenCommand::Move(rows) => i64::from(rows),
        ScreenCommand::Page(pages) => {
            let height = geo.inside(geo.pane(pane)).height;
            i64::from(pages) * i64::from((height / 2).max(1))
        }
        ScreenCommand::First => -i64::from(i32::MAX),
        _ => i64::from(i32::MAX),
    }
}

/// Moves in a pane; down is positive.
pub(crate) fn scroll(model: &Model, view: &mut ViewState, pane: Pane, rows: i64, now: Timestamp) {
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
        return vec![Request::Live(ScreenAction::Time(TimeMove::Present))];
    } else if !view.marked.is_empty() {
        view.marked.clear();
    } else {
        view.tab = Tab::Overview;
    }
    Vec::new()
}

/// Opens the restart form.
pub(crate) fn restart_with(model: &Model, view: &mut ViewState, from: Option<&str>, line: &str) {
    let draft = RestartDraft::new(model, from, line, view.steering.changer);
    view.open(RestartForm(Box::new(draft)));
}

/// Asks about a restart: from the selected checkpoint, the last one before the problem, or the latest.
pub(crate) fn restart(model: &Model, view: &mut ViewState, command: ScreenCommand) {
    let picked = selected_checkpoint(model, view);
    if command == ScreenCommand::RestartWith {
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
