//! Words about the log.

use super::{LineResult, number};
use crate::commands;
use crate::log_filter::Level;
use crate::log_walk;
use crate::state::{LogScope, Pane, Tab, ViewState};
use crate::time::{self, TimeCursor};
use rankdeck_core::model::Model;
use rankdeck_types::ids::Timestamp;

pub(super) fn log(model: &Model, view: &mut ViewState, arguments: &[&str]) -> LineResult {
    let is_time = |word: &str| word.contains(':') || word.starts_with(['-', '+']);
    let (who, when) = match arguments {
        [] => ("all", None),
        [one] if is_time(one) => ("all", Some(*one)),
        [who] => (*who, None),
        [who, when] => (*who, Some(*when)),
        _ => return Err("log N TIME: one rank, or `all`, and a time of day".into()),
    };
    let rank = if who == "all" { None } else { Some(number(model, who)?) };
    let at = when.map(|when| log_time(model, view, when)).transpose()?;
    match rank {
        None => {
            view.log.follow();
            (view.tab, view.log.scope, view.zoom) = (Tab::Logs, LogScope::Merged, false);
        }
        Some(_) => {
            view.ranks.selected = rank;
            commands::open_rank_log(view);
        }
    }
    if let Some(at) = at {
        // The page is laid out later than its middle is needed.
        view.geometry.log_rows = usize::from(view.geometry.area.height.saturating_sub(6));
        let moved = commands::on_shown(model, view, |shown, view| log_walk::go_to_time(shown, view, at))?;
        return Ok(commands::asked_of_hosts(view, moved));
    }
    Ok(Vec::new())
}

/// The typed moment, ms, seen from the newest line that is held.
fn log_time(model: &Model, view: &ViewState, typed: &str) -> Result<u64, String> {
    let newest = model.ranks.iter().filter_map(|rank| rank.log.lines.back()).map(|line| line.merge_ms).max();
    let newest = newest.filter(|time| *time > 0).ok_or("no line with a time is held")?;
    let at = Timestamp(newest);
    let cursor = TimeCursor { at, end: at, ..TimeCursor::default() };
    Ok(time::parse(typed, &cursor, view.chart.utc_offset_s)?.0)
}

pub(super) fn filter(_: &Model, view: &mut ViewState, arguments: &[&str]) -> LineResult {
    let text = arguments.join(" ");
    if view.tab == Tab::Logs {
        view.log.leave_files();
        (view.log.filter, view.log.at) = (text, None);
    } else {
        (view.ranks.filter, view.tab, view.focus) = (text, Tab::Overview, Pane::Ranks);
    }
    Ok(Vec::new())
}

pub(super) fn level(_: &Model, view: &mut ViewState, arguments: &[&str]) -> LineResult {
    let level = arguments.first().and_then(|name| Level::named(name));
    view.log.level = level.ok_or("level all, info, warnings or errors")?;
    (view.tab, view.zoom) = (Tab::Logs, false);
    Ok(Vec::new())
}

/// Goes to the newest line that matches, in the hosts' files where none is held here.
pub(super) fn search(model: &Model, view: &mut ViewState, arguments: &[&str]) -> LineResult {
    if arguments.is_empty() {
        return Err("search TEXT: what for?".into());
    }
    view.log.follow();
    (view.tab, view.zoom, view.log.filter, view.log.whole) = (Tab::Logs, false, arguments.join(" "), false);
    // The page is laid out later than its middle is needed.
    view.geometry.log_rows = usize::from(view.geometry.area.height.saturating_sub(6));
    let moved = commands::on_shown(model, view, |shown, view| log_walk::go_to_hit(shown, view, -1))?;
    Ok(commands::asked_of_hosts(view, moved))
}
