//! Commands of the log: which of its lines are shown, and how.

use super::on_shown;
use crate::keys::Command;
use crate::log_walk::{self, MoveResult};
use crate::overlays::event;
use crate::panes::{end, events};
use crate::ranks;
use crate::state::{Action, LogScope, Overlay, Pane, Tab, ViewState};
use rankdeck_core::event::Event;
use rankdeck_core::model::{HistoryLine, Model, Subject};
use rankdeck_core::report::VerdictReport;
use rankdeck_proto::search::LogSearch;

/// Characters by which long lines move at once.
const SIDEWAYS: isize = 20;
/// No line of a log is longer.
const MOST_SIDEWAYS: usize = 16_000;

/// Moves along the long lines of the log.
pub(super) fn shift_log(view: &mut ViewState, by: i8) {
    let to = view.log.shift.saturating_add_signed(isize::from(by) * SIDEWAYS);
    view.log.shift = to.min(MOST_SIDEWAYS);
}

/// The log of the selected rank; on the page of the end, of the one that ended the run.
pub(super) fn rank_log(model: &Model, view: &mut ViewState) {
    if view.pane() == Pane::End {
        view.ranks.selected = end::guilty(model).or(view.ranks.selected);
    }
    open_rank_log(view);
}

/// Has the hosts look in their files, if that is wanted.
pub fn asked_of_hosts(view: &mut ViewState, wanted: Option<LogSearch>) -> Vec<Action> {
    if wanted.is_some() {
        // What hosts say arrives in the present.
        view.moment.frozen = None;
    }
    let asked = wanted.map(|wanted| Action::Tell(Event::Searched { wanted: Some(Box::new(wanted)) }));
    asked.into_iter().collect()
}

/// Changes which lines of the log are shown, and how: what hosts are to look for, or why not.
pub(super) fn change_log(model: &Model, view: &mut ViewState, command: Command) -> MoveResult {
    match command {
        Command::Hit(_) | Command::Around => {
            return on_shown(model, view, |shown, view| match command {
                Command::Hit(step) => log_walk::go_to_hit(shown, view, step),
                _ => log_walk::around(shown, view),
            });
        }
        Command::LogThere => return log_there(model, view),
        Command::Merge => {
            view.log.leave_files();
            view.log.scope = match view.log.scope {
                LogScope::Merged => LogScope::Selected,
                LogScope::Selected => LogScope::Merged,
            };
            (view.log.at, view.log.hit) = (None, None);
        }
        Command::Follow => view.log.follow(),
        Command::Wrap => view.log.wrap = !view.log.wrap,
        Command::Level => view.log.level = view.log.level.next(),
        Command::Times => view.log.times = !view.log.times,
        Command::Fold => view.log.fold = !view.log.fold,
        _ => {
            view.log.leave_files();
            view.log.former = !view.log.former;
        }
    }
    Ok(None)
}

/// The log at the moment of the selected event, or of the latest verdict about the selected rank; why not.
pub fn log_there(model: &Model, view: &mut ViewState) -> MoveResult {
    on_shown(model, view, show_log_there)
}

fn show_log_there(shown: &Model, view: &mut ViewState) -> MoveResult {
    let rank = ranks::selected(shown, view).map(|rank| rank.rank);
    let told = |is: &dyn Fn(&VerdictReport) -> bool| {
        let is_it = |line: &&HistoryLine| matches!(&line.subject, Some(Subject::Verdict(found)) if is(found));
        shown.history.iter().rev().find(is_it)
    };
    let line = match view.overlay() {
        Some(Overlay::Event { number, .. }) => event::find(shown, *number),
        Some(Overlay::Evidence { about, .. }) => {
            told(&|verdict| (verdict.rank, &verdict.host) == (about.1, &about.2))
        }
        _ if view.pane() == Pane::Events => events::selected(shown, view),
        _ => told(&|verdict| rank.is_some() && verdict.rank == rank),
    };
    match line {
        Some(line) => {
            let (time_ms, about) = ((line.time.max(0.0) * 1000.0) as u64, event::rank_of(line));
            view.overlays.clear();
            view.log.leave_files();
            (view.tab, view.zoom, view.log.filter) = (Tab::Logs, false, String::new());
            view.log.scope = if about.is_some() { LogScope::Selected } else { LogScope::Merged };
            view.ranks.selected = about.or(view.ranks.selected);
            // The page is laid out later than its middle is needed.
            view.geometry.log_rows = usize::from(view.geometry.area.height.saturating_sub(6));
            log_walk::go_to_time(shown, view, time_ms)
        }
        None => Err("log there: no verdict about this rank is held".into()),
    }
}

/// The log of the selected rank, on its page.
pub fn open_rank_log(view: &mut ViewState) {
    view.log.follow();
    view.log.scope = LogScope::Selected;
    view.tab = Tab::Logs;
    view.zoom = false;
}
