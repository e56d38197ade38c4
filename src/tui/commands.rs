//! What each command of the table of keys does to the view, and which actions it asks for.

mod again;
mod log;

pub use log::{asked_of_hosts, log_there, open_rank_log};

use crate::borders;
use crate::chart_file;
use crate::chart_view::ChartWindow;
use crate::confirm;
use crate::copy;
use crate::keys;
use crate::keys::Command;
use crate::log_filter::Level;
use crate::log_walk;
use crate::overlays::evidence;
use crate::pane_sizes::PaneSizes;
use crate::panes::{charts, end, events};
use crate::ranks;
use crate::reach;
use crate::restart_draft::RestartDraft;
use crate::state::{Action, FrozenMoment, Overlay, Pane, PictureChoice, Tab, TypedLine, ViewState};
use crate::theme::{Glyphs, Role};
use crate::time::TimeMove;
use crate::widgets::plain;
use again::begin_again;
use log::{change_log, rank_log, shift_log};
use rankdeck_core::event::Event;
use rankdeck_core::model::{Model, RunState};
use rankdeck_proto::message::StopMode;
use rankdeck_types::ids::Timestamp;
use std::collections::BTreeSet;

/// Cells by which a pane becomes wider at once.
const WIDER: i16 = 2;

/// Carries out a command that is not disabled.
pub fn perform(model: &Model, view: &mut ViewState, command: Command, now: Timestamp) -> Vec<Action> {
    // What leads away from the table goes with the rank that the table shows as selected.
    if matches!(command, Command::RankLog | Command::Go(_) | Command::Explain)
        && let Some(rank) = ranks::selected(view.shown(model), view).map(|rank| rank.rank)
    {
        view.ranks.selected = Some(rank);
    }
    match command {
        Command::Quit => return quit(model, view, now),
        Command::Stop => return stop(model, view, StopMode::Clean),
        Command::Kill => return stop(model, view, StopMode::Kill),
        Command::Detach => return vec![Action::leave()],
        Command::Restart | Command::RestartWith => begin_again(model, view, command),
        Command::PickHosts | Command::Palette | Command::Help | Command::Policy | Command::Pictures => {
            view.open(overlay(command));
        }
        Command::Go(tab) => (view.tab, view.zoom, view.editing) = (tab, false, None),
        Command::NextPane
        | Command::PreviousPane
        | Command::Taller(_)
        | Command::Wider(_)
        | Command::UsualSizes
        | Command::Zoom => arrange(model, view, command),
        Command::Freeze => freeze(model, view, now),
        Command::Explain => evidence::open(model, view),
        Command::Back => return back(view),
        Command::Copy => return vec![Action::Copy(copy::text(view.shown(model), view, now))],
        Command::SaveScreen => return save_screen(view, now),
        Command::Redraw => return vec![Action::Redraw],
        Command::Suspend => return vec![Action::Suspend],
        Command::Move(_) | Command::Page(_) | Command::First | Command::Last => {
            scroll(model, view, view.pane(), rows(view, command));
        }
        Command::Inspect => inspect(model, view),
        Command::Filter => {
            view.editing = Some(view.pane());
            view.log.leave_files();
            (view.log.whole, view.log.hit) = (false, None);
        }
        Command::Sort => sort(view, now),
        Command::Reverse => view.ranks.reverse = !view.ranks.reverse,
        Command::Mark => mark(model, view),
        Command::NextTrouble => next_trouble(model, view),
        Command::OtherRank(step) => other_rank(model, view, step),
        Command::RankLog => rank_log(model, view),
        Command::Sideways(by) => shift_log(view, by),
        Command::Follow if view.pane() == Pane::Events => view.events.selected = None,
        Command::Merge
        | Command::Follow
        | Command::Wrap
        | Command::Hit(_)
        | Command::Around
        | Command::Level
        | Command::Times
        | Command::Fold
        | Command::Former
        | Command::LogThere => match change_log(model, view, command) {
            Ok(wanted) => return asked_of_hosts(view, wanted),
            Err(why) => view.toast(why, Role::Warn, now),
        },
        Command::Again => return vec![Action::Again],
        Command::Waits => view.ranks.waits = !view.ranks.waits,
        Command::Mouse => return mouse(view, now),
        Command::Stack | Command::Continue | Command::Shell | Command::Environment | Command::Processes => {
            return reach_out(model, view, command, now);
        }
        Command::ToggleSeries => toggle_series(model, view),
        Command::ExportCharts => {
            return vec![Action::SaveFiles(chart_file::files(view.shown(model), view))];
        }
        Command::Span(_) | Command::Pan(_) | Command::Axis | Command::Cursor(_) => look(model, view, command),
        Command::WholeRun
        | Command::Smooth(_)
        | Command::LogScale
        | Command::Together
        | Command::Pin
        | Command::Height(_) => draw_charts_otherwise(view, command, now),
        Command::Time(_) | Command::GoThere | Command::TypeTime => return travel(model, view, command),
    }
    Vec::new()
}

/// What opens over the page.
fn overlay(command: Command) -> Overlay {
    match command {
        Command::PickHosts => Overlay::Hosts { changed: BTreeSet::new(), selected: 0 },
        Command::Palette => Overlay::Palette(TypedLine::default()),
        Command::Help => Overlay::Help { filter: String::new(), selected: 0 },
        Command::Pictures => Overlay::Pictures(PictureChoice::default()),
        _ => Overlay::Policy,
    }
}

/// Moves the focus between panes, and changes their sizes.
fn arrange(model: &Model, view: &mut ViewState, command: Command) {
    match command {
        Command::NextPane => focus(view, 1),
        Command::PreviousPane => focus(view, -1),
        Command::Taller(rows) => borders::grow(model, view, i16::from(rows), 0),
        Command::Wider(cells) => borders::grow(model, view, 0, i16::from(cells) * WIDER),
        Command::UsualSizes => view.sizes = PaneSizes::default(),
        _ => view.zoom = !view.zoom,
    }
}

/// Writes what is shown into a file, unless secrets may be among it.
fn save_screen(view: &mut ViewState, now: Timestamp) -> Vec<Action> {
    if view.overlays.iter().any(|open| matches!(open, Overlay::Environment { .. })) {
        view.toast("an environment is shown, and written nowhere", Role::Warn, now);
        return Vec::new();
    }
    vec![Action::SaveScreen]
}

/// Reaches the selected rank, or its host, by its agent or by a shell.
fn reach_out(model: &Model, view: &mut ViewState, command: Command, now: Timestamp) -> Vec<Action> {
    let selected = ranks::selected(model, view).map(|rank| (rank.rank, rank.node));
    match (command, selected) {
        (Command::Stack, Some((rank, _))) => {
            view.open(Overlay::Inspect { rank, top: 0 });
            vec![Action::Tell(Event::LookRequested { rank })]
        }
        (Command::Continue, Some((rank, _))) => {
            view.toast(format!("asked the agent to continue rank {rank}"), Role::Dim, now);
            vec![Action::Tell(Event::ContinueRequested { rank })]
        }
        (Command::Environment, Some((rank, _))) => {
            let asked = reach::rank(model, rank).and_then(|process| reach::environment(view, &process));
            asked.unwrap_or_else(|why| {
                view.toast(format!("environment: {why}"), Role::Warn, now);
                Vec::new()
            })
        }
        (Command::Processes, _) => {
            if let Some(node) = view.hosts.selected {
                view.open(Overlay::Processes { node, selected: None });
            }
            Vec::new()
        }
        (Command::Shell, selected) => {
            let listed = (view.pane() == Pane::Hosts).then_some(view.hosts.selected).flatten();
            listed.or(selected.map(|(_, node)| node)).map(Action::Shell).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// Leaves the mouse to the terminal, or takes it back.
fn mouse(view: &mut ViewState, now: Timestamp) -> Vec<Action> {
    let off = !view.steering.mouse_off;
    view.steering.mouse_off = off;
    let said = match off {
        true => "the mouse is the terminal's: it selects text",
        false => "the mouse is the console's",
    };
    view.toast(said, Role::Dim, now);
    vec![Action::Mouse(!off)]
}

/// Leaves, or asks how; from the past, goes to the present first. What could be left, and how, is a matter of
/// the present.
fn quit(model: &Model, view: &mut ViewState, now: Timestamp) -> Vec<Action> {
    if view.moment.cursor.as_ref().is_some_and(|time| time.live) {
        view.toast("back in the present; q again leaves", Role::Dim, now);
        return vec![Action::Time(TimeMove::Present)];
    }
    if view.steering.replay || view.steering.read_only || view.steering.at_home || !keys::runs(model) {
        return vec![Action::leave()];
    }
    view.open(Overlay::Confirm(confirm::quit(model, view.steering.passing)));
    Vec::new()
}

/// Asks before a stop. While nothing has been started there is nothing to lose and nothing to ask.
fn stop(model: &Model, view: &mut ViewState, mode: StopMode) -> Vec<Action> {
    if model.run.state == RunState::Connecting && !keys::runs(model) {
        return vec![Action::stop(mode)];
    }
    let question = if mode == StopMode::Kill { confirm::kill(model) } else { confirm::stop(model) };
    view.open(Overlay::Confirm(question));
    Vec::new()
}

/// Moves the time cursor: by a step, to the selected event or the end, or to what is typed.
fn travel(model: &Model, view: &mut ViewState, command: Command) -> Vec<Action> {
    let to = match command {
        Command::Time(to) => Some(to),
        Command::GoThere if view.pane() == Pane::End => {
            let to =
                end::when(model).map(|end| TimeMove::To(Timestamp(end.0.saturating_sub(end::BEFORE_MS))));
            // The page of the end has nothing to say of the time before it.
            view.tab = if to.is_some() { Tab::Overview } else { view.tab };
            to
        }
        Command::GoThere => events::selected(view.shown(model), view).map(|line| TimeMove::To(line.at)),
        _ => {
            view.open(Overlay::Time { input: String::new() });
            Some(TimeMove::Step(0))
        }
    };
    if to.is_some() {
        view.moment.frozen = None;
    }
    to.map(Action::Time).into_iter().collect()
}

/// How the charts are drawn, whatever they show.
fn draw_charts_otherwise(view: &mut ViewState, command: Command, now: Timestamp) {
    match command {
        Command::WholeRun => view.chart.window = ChartWindow::default(),
        Command::Smooth(by) => {
            view.chart.smoother(by);
            view.toast(format!("smoothing {}", view.chart.weight()), Role::Dim, now);
        }
        Command::LogScale => view.chart.log = !view.chart.log,
        Command::Together => view.chart.together = !view.chart.together,
        Command::Height(by) => view.chart.move_height(by),
        _ => view.chart.pin_cursor(),
    }
}

/// How far a key moves in the pane that has the focus.
fn rows(view: &ViewState, command: Command) -> i64 {
    match command {
        Command::Move(rows) => i64::from(rows),
        Command::Page(pages) => {
            let height = view.geometry.inside(view.geometry.pane(view.pane())).height;
            i64::from(pages) * i64::from((height / 2).max(1))
        }
        Command::First => -i64::from(i32::MAX),
        _ => i64::from(i32::MAX),
    }
}

fn sort(view: &mut ViewState, now: Timestamp) {
    view.ranks.sort = view.ranks.sort.next();
    view.toast(format!("sorted by {}", view.ranks.sort.name()), Role::Dim, now);
}

/// Moves what the charts show.
fn look(model: &Model, view: &mut ViewState, command: Command) {
    let mut chart = std::mem::take(&mut view.chart);
    let shown = view.shown(model);
    match command {
        Command::Span(by) => chart.zoom(shown, by),
        Command::Pan(by) => chart.pan(shown, by),
        Command::Axis => chart.turn(shown, chart.axis.next()),
        Command::Cursor(by) => chart.move_cursor(shown, by),
        _ => {}
    }
    view.chart = chart;
}

/// Asks from which checkpoint, and with which keys, the next generation begins.
pub fn restart_with(model: &Model, view: &mut ViewState, from: Option<&str>, line: &str) {
    let mut draft = RestartDraft::new(model, from, line, view.steering.changer);
    draft.edited = view.steering.edited.and_then(|look| look());
    view.open(Overlay::Restart(Box::new(draft)));
}

/// Does something with what is shown, be it frozen or not.
pub fn on_shown<T>(model: &Model, view: &mut ViewState, act: impl FnOnce(&Model, &mut ViewState) -> T) -> T {
    let frozen = view.moment.frozen.take();
    let done = act(frozen.as_ref().map_or(model, |frozen| &frozen.model), view);
    view.moment.frozen = frozen;
    done
}

fn focus(view: &mut ViewState, step: isize) {
    let panes = view.geometry.panes();
    if let Some(at) = panes.iter().position(|pane| *pane == view.focus) {
        let next = (at as isize + step).rem_euclid(panes.len() as isize) as usize;
        view.focus = panes[next];
    }
}

fn freeze(model: &Model, view: &mut ViewState, now: Timestamp) {
    view.moment.frozen = match view.moment.frozen.take() {
        Some(_) => None,
        None => Some(FrozenMoment { model: Box::new(model.clone()), at: now }),
    };
}

/// Leaves one transient state, the innermost first.
fn back(view: &mut ViewState) -> Vec<Action> {
    if view.overlays.pop().is_some() {
        return Vec::new();
    }
    if view.pane() == Pane::Log && (view.log.back.is_some() || view.log.files.is_some()) {
        match view.log.back.take() {
            Some(back) => view.log = *back,
            None => view.log.leave_files(),
        }
        return Vec::new();
    }
    let filter = match view.pane() {
        Pane::Ranks => Some(&mut view.ranks.filter),
        Pane::Log => Some(&mut view.log.filter),
        Pane::Events => Some(&mut view.events.filter),
        Pane::Charts => Some(&mut view.series.filter),
        Pane::Evals | Pane::Hosts | Pane::End => None,
    };
    if let Some(filter) = filter
        && !filter.is_empty()
    {
        filter.clear();
        (view.log.whole, view.log.hit) = (false, None);
    } else if view.pane() == Pane::Log && view.log.at.is_some() {
        (view.log.at, view.log.hit) = (None, None);
    } else if view.pane() == Pane::Log && view.log.level != Level::Debug {
        view.log.level = Level::Debug;
    } else if view.pane() == Pane::Charts && view.chart.cursor.is_some() {
        (view.chart.cursor, view.chart.pin, view.chart.height) = (None, None, None);
    } else if view.pane() == Pane::Events && view.events.selected.is_some() {
        view.events.selected = None;
    } else if view.zoom {
        view.zoom = false;
    } else if view.moment.frozen.is_some() {
        view.moment.frozen = None;
    } else if view.moment.cursor.as_ref().is_some_and(|time| time.live) {
        return vec![Action::Time(TimeMove::Present)];
    } else if !view.ranks.marked.is_empty() {
        view.ranks.marked.clear();
    } else {
        view.tab = Tab::Overview;
    }
    Vec::new()
}

/// Moves in a pane; down is positive. Selections move in lists, offsets elsewhere.
pub fn scroll(model: &Model, view: &mut ViewState, pane: Pane, rows: i64) {
    on_shown(model, view, |shown, view| scroll_shown(shown, view, pane, rows));
}

fn scroll_shown(shown: &Model, view: &mut ViewState, pane: Pane, rows: i64) {
    let step = |at: usize, len: usize| {
        (at as i64).saturating_add(rows).clamp(0, len.saturating_sub(1) as i64) as usize
    };
    match pane {
        Pane::Ranks => {
            let order = ranks::rows(shown, view, shown.ranks.len() > view.geometry.rank_rows);
            let at =
                order.iter().position(|i| Some(shown.ranks[*i].rank) == view.ranks.selected).unwrap_or(0);
            if let Some(i) = order.get(step(at, order.len())) {
                view.ranks.selected = Some(shown.ranks[*i].rank);
            }
        }
        Pane::Hosts => {
            let at = view.hosts.selected.map_or(0, |node| node.index());
            view.hosts.selected = shown.hosts.get(step(at, shown.hosts.len())).map(|host| host.node_rank);
        }
        Pane::Charts => {
            let names: Vec<&String> = charts::listed(shown, view).map(|(name, _)| name).collect();
            let at = names.iter().position(|name| Some(*name) == view.series.selected.as_ref()).unwrap_or(0);
            view.series.selected = names.get(step(at, names.len())).map(|name| (*name).clone());
        }
        Pane::Evals => view.evals_top = step(view.evals_top, shown.evals.len()),
        Pane::Events => events::scroll(shown, view, rows),
        Pane::Log => log_walk::scroll(shown, view, rows),
        Pane::End => {
            let (top, most) = plain(shown, view, view.moment.now, end::scrolled);
            view.end_top = Some(step(top, most + 1));
        }
    }
}

fn inspect(model: &Model, view: &mut ViewState) {
    if view.pane() == Pane::Hosts {
        if let Some(host) = view.hosts.selected.and_then(|node| model.hosts.get(node.index())) {
            view.ranks.filter = format!("host:{}", host.name);
            view.ranks.selected = None;
            view.tab = Tab::Overview;
            view.focus = Pane::Ranks;
        }
    } else if view.pane() == Pane::Events {
        if let Some(line) = events::selected(view.shown(model), view) {
            view.open(Overlay::Event { number: line.number, top: 0 });
        }
    } else if let Some(rank) = ranks::selected(model, view) {
        view.open(Overlay::Inspect { rank: rank.rank, top: 0 });
    }
}

fn mark(model: &Model, view: &mut ViewState) {
    if let Some(rank) = ranks::selected(model, view).map(|rank| rank.rank) {
        view.ranks.selected = Some(rank);
        if !view.ranks.marked.remove(&rank) {
            view.ranks.marked.insert(rank);
        }
        scroll(model, view, Pane::Ranks, 1);
    }
}

fn next_trouble(model: &Model, view: &mut ViewState) {
    let all = model.ranks.len();
    let from = ranks::selected(model, view).map_or(0, |rank| rank.rank.index() + 1);
    let found = (0..all)
        .filter_map(|i| model.ranks.get((from + i) % all))
        .find(|rank| ranks::state(model, rank, Glyphs::Ascii).trouble);
    if let Some(rank) = found {
        view.ranks.selected = Some(rank.rank);
    }
}

/// Selects another rank by number, in the inspector too.
pub fn other_rank(model: &Model, view: &mut ViewState, step: i8) {
    let at = ranks::selected(model, view).map_or(0, |rank| rank.rank.index());
    let last = model.ranks.len().saturating_sub(1);
    let Some(rank) = model.ranks.get(at.saturating_add_signed(isize::from(step)).min(last)) else { return };
    view.ranks.selected = Some(rank.rank);
    view.log.leave_files();
    view.log.at = None;
    if let Some(Overlay::Inspect { rank: shown, top }) = view.overlays.last_mut() {
        (*shown, *top) = (rank.rank, 0);
    }
}

/// Shows the selected series beside the others, or hides it.
pub fn toggle_series(model: &Model, view: &mut ViewState) {
    let Some(name) = view.series.selected.clone() else { return };
    let usual = || charts::usual(model).into_iter().map(String::from).collect::<BTreeSet<_>>();
    let shown = view.series.shown.get_or_insert_with(usual);
    if !shown.remove(&name) {
        shown.insert(name);
    }
}
