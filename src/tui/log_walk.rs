//! Ways through the log: rows, matches, moments, and the lines of all ranks around a match. Where lines that
//! are held here end, the search goes on in the files that the hosts keep.

use crate::log_filter::{Level, LogFilter};
use crate::log_view::Files;
use crate::logs::{Query, wanted_ranks};
use crate::state::{LogScope, ViewState};
use rankdeck_core::model::{LogPlace, Model, Search};
use rankdeck_proto::search::{LinePlace, LogSearch, Part};
use rankdeck_types::ids::Generation;
use rankdeck_types::link_state::LinkState;

/// Matches of one page of the hosts' files; core shares them out.
const HITS: u32 = 500;
/// Lines around one.
const AROUND: u32 = 2_000;

/// What a move led to: nothing more to do, or a search in the hosts' files.
pub type MoveResult = Result<Option<LogSearch>, String>;

/// Which lines are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The match.
    pub hit: Option<LogPlace>,
    /// The lowest line shown; `None` follows the newest.
    pub at: Option<LogPlace>,
}

/// Which lines are looked at now.
pub fn position(model: &Model, view: &ViewState) -> Position {
    let Some((files, search)) = view.log.found(model) else {
        return Position { hit: view.log.hit, at: view.log.at };
    };
    let hit = files.current(search).and_then(|index| search.log_place(index));
    let at = view.log.at.filter(|_| files.around);
    Position { hit, at: at.or(hit.and_then(|hit| middle(&Query::new(model, view), view, hit))) }
}

/// The lowest line shown, when that one is in the middle.
fn middle(query: &Query<'_>, view: &ViewState, place: LogPlace) -> Option<LogPlace> {
    let below = query.after(place, view.geometry.log_rows / 2);
    below.or_else(|| query.before(None, 1).first().map(|line| line.place)).or(Some(place))
}

/// Moves the cursor of the log by `rows` lines (down is positive); among matches, that is from one to
/// another.
pub fn scroll(model: &Model, view: &mut ViewState, rows: i64) {
    let n = usize::try_from(rows.unsigned_abs()).unwrap_or(usize::MAX);
    let around = match view.log.found(model) {
        Some((files, search)) if !files.around => {
            let index = files.current(search).unwrap_or(0);
            let last = search.places.len().saturating_sub(1);
            let to = if rows < 0 { index.saturating_sub(n) } else { index.saturating_add(n).min(last) };
            if let Some(place) = search.places.get(to) {
                view.log.files = Some(Files { at: Some(*place), ..Files::default() });
            }
            return;
        }
        found => found.is_some(),
    };
    let from = position(model, view).at;
    let query = Query::new(model, view);
    if rows < 0 {
        // At the very top the cursor stays, so that the first page does not shrink to one line.
        let rows = view.geometry.log_rows;
        let wanted = rows.saturating_add(n);
        let place = if wanted >= query.held_before(from) {
            query.first_page(from, rows)
        } else {
            let page = query.before(from, wanted);
            let room = page.len().saturating_sub(rows).min(n);
            page.get(room).filter(|_| room > 0).map(|line| line.place)
        };
        view.log.at = place.or(view.log.at);
    } else if let Some(at) = from {
        // One more than asked for must exist, else the newest is on screen and the log follows again.
        view.log.at = query.after(at, n).filter(|place| query.after(*place, 1).is_some());
        if view.log.at.is_none() && around {
            view.log.at = query.before(None, 1).first().map(|line| line.place);
        } else if view.log.at.is_none() {
            view.log.hit = None;
        }
    }
}

/// Goes to the next line that matches what was typed, or to the one before.
pub fn go_to_hit(model: &Model, view: &mut ViewState, step: i8) -> MoveResult {
    let inside = view.log.back.is_some();
    if let Some(back) = view.log.back.take() {
        view.log = *back;
    }
    let filter = LogFilter::new(&view.log.filter);
    if filter.is_empty() {
        return Err("type what to look for first: /".into());
    }
    let asked = match view.log.found(model) {
        Some((files, search)) => step_in_files(model, view, files, search, step)?,
        None => step_in_held(model, view, step)?,
    };
    // From the lines around a match to those around the next.
    if inside && asked.is_none() { around(model, view) } else { Ok(asked) }
}

fn step_in_files(model: &Model, view: &mut ViewState, files: Files, search: &Search, step: i8) -> MoveResult {
    if !search.is_over() {
        return Err("the hosts still look; esc calls it off".into());
    }
    let mut go = |at: LinePlace, step: i8| view.log.files = Some(Files { at: Some(at), step, around: false });
    let Some(index) = files.current(search) else {
        // Nothing was found there: back to where the step began.
        return match files.at {
            Some(at) if step > 0 => back_to_held(model, view, at, search),
            _ => Err("nothing earlier matches in the hosts' files".into()),
        };
    };
    let place = search.places[index];
    let next = index.checked_add_signed(isize::from(step)).and_then(|index| search.places.get(index));
    match next {
        Some(next) => go(*next, 0),
        None if step < 0 && search.older > 0 => {
            go(place, -1);
            return Ok(Some(LogSearch { part: Part::Before(place), ..search.wanted.clone() }));
        }
        None if step > 0 && search.newer > 0 => {
            go(place, 1);
            return Ok(Some(LogSearch { part: Part::After(place), ..search.wanted.clone() }));
        }
        None if step > 0 => return back_to_held(model, view, place, search),
        None => return Err("nothing earlier matches in the hosts' files".into()),
    }
    Ok(None)
}

/// After the newest match of the files come those that have arrived since.
fn back_to_held(model: &Model, view: &mut ViewState, place: LinePlace, search: &Search) -> MoveResult {
    /// A time out of a file is late by so much at most.
    const LATE_MS: u64 = 1500;
    let from = LogPlace { merge_ms: place.time_ms.saturating_sub(LATE_MS), order: 0 };
    let known = |held: &LinePlace| search.places.iter().any(|found| found.is(held));
    let next = Query::held(model, view).next_hit(from, |held| place.is_before(held) && !known(held));
    let Some(next) = next else { return Err("nothing later matches; G follows the newest".into()) };
    view.log.leave_files();
    show(model, view, next);
    Ok(None)
}

fn step_in_held(model: &Model, view: &mut ViewState, step: i8) -> MoveResult {
    let query = Query::held(model, view);
    let from = view.log.hit.or(view.log.at);
    let hit = query.hit(from, step);
    let whole = query.whole_from();
    let former = view.log.former && model.run.generation > Generation(0);
    let ends = step < 0 && hit.is_none_or(|hit| whole.is_some_and(|whole| hit < whole));
    let why = match why_not_asked(model, view) {
        None if ends && (whole.is_some() || former) => {
            let at = from.and_then(|from| query.line_place(from));
            view.log.files = Some(Files { at, step: if at.is_some() { -1 } else { 0 }, around: false });
            let part = at.map_or(Part::Newest, Part::Before);
            return Ok(Some(wanted(model, view, part)));
        }
        why => why.unwrap_or("every line of the run is held here"),
    };
    match hit {
        Some(hit) => show(model, view, hit),
        None if step < 0 => return Err(format!("nothing earlier matches here: {why}")),
        None if from.is_none() => return Err("the newest line is shown; N goes to earlier ones".into()),
        None => return Err("nothing later matches; N goes to earlier ones".into()),
    }
    Ok(None)
}

/// Why hosts cannot be asked for what they keep.
pub fn why_not_asked(model: &Model, view: &ViewState) -> Option<&'static str> {
    match &view.moment.cursor {
        _ if view.steering.replay => {
            Some("only what the record holds; `rankdeck logs --grep` looks on the hosts")
        }
        Some(_) => Some("only what the record holds; esc goes to the present, where hosts look, too"),
        None if !model.hosts.iter().any(|host| matches!(host.link, LinkState::Ready { .. })) => {
            Some("no host is connected that could look in its files")
        }
        None => None,
    }
}

/// The search for what was typed.
fn wanted(model: &Model, view: &ViewState, part: Part) -> LogSearch {
    let filter = LogFilter::new(&view.log.filter);
    LogSearch {
        pattern: filter.pattern().to_owned(),
        invert: filter.invert,
        ranks: wanted_ranks(model, view).unwrap_or_default(),
        generation: (!view.log.former).then_some(model.run.generation),
        limit: HITS,
        part,
        ..LogSearch::default()
    }
}

/// Shows the lines of all ranks around the match, or around the lowest line.
pub fn around(model: &Model, view: &mut ViewState) -> MoveResult {
    if view.log.back.is_some() {
        return Err("these are the lines around it; esc goes back".into());
    }
    let query = Query::new(model, view);
    let (held, kept) = match view.log.found(model) {
        Some((files, search)) => (None, files.current(search).map(|index| search.places[index])),
        None => {
            let lowest = || query.before(view.log.at, 1).first().map(|line| line.place);
            let held = view.log.hit.or_else(lowest);
            (held, held.and_then(|held| query.line_place(held)))
        }
    };
    let before = view.log.clone();
    (view.log.scope, view.log.level) = (LogScope::Merged, Level::Debug);
    view.log.back = Some(Box::new(before));
    let whole = Query::held(model, view).whole_from();
    let is_whole = |held: LogPlace| whole.is_none_or(|whole| held > whole);
    match (held, kept) {
        (Some(held), kept) if is_whole(held) || kept.is_none() || why_not_asked(model, view).is_some() => {
            show(model, view, held);
            Ok(None)
        }
        (_, Some(at)) => {
            view.log.at = None;
            view.log.files = Some(Files { at: Some(at), step: 0, around: true });
            Ok(Some(LogSearch { part: Part::Around(at), limit: AROUND, ..LogSearch::default() }))
        }
        _ => {
            view.log.leave_files();
            Err("no line is shown".into())
        }
    }
}

/// Shows the line there in the middle of all lines.
pub fn show(model: &Model, view: &mut ViewState, place: LogPlace) {
    (view.log.hit, view.log.whole) = (Some(place), true);
    let query = Query::new(model, view);
    let below = query.after(place, view.geometry.log_rows / 2);
    let newest = || query.before(None, 1).first().map(|line| line.place);
    view.log.at = below.or_else(newest).or(Some(place));
}

/// Goes to the last line that was written by a moment, ms by this console's clock; where not all lines of
/// that time are held here, in the hosts' files.
pub fn go_to_time(model: &Model, view: &mut ViewState, time_ms: u64) -> MoveResult {
    let query = Query::held(model, view).of_every_line();
    let found = query.before(Some(LogPlace { merge_ms: time_ms, order: u64::MAX }), 1);
    let place = found.first().map(|line| line.place);
    let whole = Query::held(model, view).whole_from();
    let all_held = place.is_some_and(|place| whole.is_none_or(|whole| place >= whole));
    match (place, why_not_asked(model, view)) {
        (Some(place), _) if place.merge_ms == 0 => {
            Err("these lines have no times: their agent is of an older rankdeck".into())
        }
        (Some(place), why) if all_held || why.is_some() => {
            show(model, view, place);
            Ok(None)
        }
        (None, Some(why)) => Err(format!("lines of that time are not held here: {why}")),
        (_, _) => {
            view.log.filter.clear();
            view.log.files = Some(Files::default());
            let until = Some(time_ms as f64 / 1000.0);
            Ok(Some(LogSearch { until, generation: None, ..wanted(model, view, Part::Newest) }))
        }
    }
}
