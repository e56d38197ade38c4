//! Navigation in the log: rows, matches, times, and the lines of all ranks around a match. Where lines that
//! are held here end, the search continues in the files that the hosts keep.

use crate::run::pages::PageCx;
use crate::run::pages::logs::lines::Level;
use crate::run::pages::logs::lines::LogQuery;
use crate::run::pages::logs::{HostFiles, LogScope, LogsPage, Selection};
use crate::run::text_filter::TextFilter;
use rankdeck_core::model::{LogPlace, Model, SearchResults};
use rankdeck_proto::search::{HitSelection, LinePlace, LogSearch};
use rankdeck_types::ids::Generation;
use rankdeck_types::link_state::LinkState;

/// Matches of one page of the hosts' files; core shares them out.
const HITS: u32 = 500;
/// Lines around one.
const AROUND: u32 = 2_000;

/// What a move led to: nothing more to do, or a search in the hosts' files.
pub type MoveResult = Result<Option<LogSearch>, String>;

/// Where the log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPosition {
    /// The current match.
    pub hit: Option<LogPlace>,
    /// The lowest line shown; `None` follows the newest.
    pub at: Option<LogPlace>,
}

impl LogsPage {
    /// The match and the lowest line that are shown now.
    pub(super) fn position(&self, model: &Model, whose: Selection<'_>) -> LogPosition {
        let Some((files, search)) = self.found(model) else {
            return LogPosition { hit: self.hit, at: self.at };
        };
        let hit = files.current(search).and_then(|index| search.log_place(index));
        let at = self.at.filter(|_| files.around);
        let middle = |hit| self.middle(&LogQuery::new(self, model, whose), hit);
        LogPosition { hit, at: at.or_else(|| hit.and_then(middle)) }
    }

    /// The lowest line shown, when that one is in the middle.
    fn middle(&self, query: &LogQuery<'_>, place: LogPlace) -> Option<LogPlace> {
        let below = query.after(place, self.rows / 2);
        below.or_else(|| query.before(None, 1).first().map(|line| line.place)).or(Some(place))
    }

    /// Moves the cursor of the log by `rows` lines (down is positive); among matches, that is from one to
    /// another.
    pub(super) fn scroll_lines(&mut self, cx: &PageCx<'_>, rows: i64) {
        let n = usize::try_from(rows.unsigned_abs()).unwrap_or(usize::MAX);
        let around = match self.found(cx.model) {
            Some((files, search)) if !files.around => {
                let index = files.current(search).unwrap_or(0);
                let last = search.places.len().saturating_sub(1);
                let to = if rows < 0 { index.saturating_sub(n) } else { index.saturating_add(n).min(last) };
                if let Some(place) = search.places.get(to) {
                    self.files = Some(HostFiles { at: Some(*place), ..HostFiles::default() });
                }
                return;
            }
            found => found.is_some(),
        };
        let from = self.position(cx.model, Selection::of(cx)).at;
        let query = LogQuery::new(self, cx.model, Selection::of(cx));
        if rows < 0 {
            // At the very top the cursor stays, so that the first page does not shrink to one line.
            let needed = self.rows.saturating_add(n);
            let place = if needed >= query.held_before(from) {
                query.first_page(from, self.rows)
            } else {
                let page = query.before(from, needed);
                let room = page.len().saturating_sub(self.rows).min(n);
                page.get(room).filter(|_| room > 0).map(|line| line.place)
            };
            self.at = place.or(self.at);
        } else if let Some(at) = from {
            // One more than requested must exist, else the newest is on screen and the log follows again.
            self.at = query.after(at, n).filter(|place| query.after(*place, 1).is_some());
            if self.at.is_none() && around {
                self.at = query.before(None, 1).first().map(|line| line.place);
            } else if self.at.is_none() {
                self.hit = None;
            }
        }
    }

    /// Goes to the next line that matches the filter, or to the one before.
    pub(super) fn go_to_hit(&mut self, cx: &PageCx<'_>, step: i8) -> MoveResult {
        let inside = self.back.is_some();
        self.leave_context();
        if TextFilter::new(&self.filter).is_empty() {
            return Err("no filter; press / to set one".into());
        }
        let search = match self.found(cx.model) {
            Some((files, search)) => self.step_in_files(cx, files, search, step)?,
            None => self.step_in_held(cx, step)?,
        };
        // From the lines around a match to those around the next.
        if inside && search.is_none() { self.show_context(cx) } else { Ok(search) }
    }

    fn step_in_files(
        &mut self,
        cx: &PageCx<'_>,
        files: HostFiles,
        search: &SearchResults,
        step: i8,
    ) -> MoveResult {
        if !search.is_over() {
            return Err("still searching; esc cancels".into());
        }
        let mut go =
            |at: LinePlace, step: i8| self.files = Some(HostFiles { at: Some(at), step, around: false });
        let Some(index) = files.current(search) else {
            // Nothing was found there: back to where the step began.
            return match files.at {
                Some(at) if step > 0 => self.back_to_held(cx, at, search),
                _ => Err("no earlier match in the hosts' files".into()),
            };
        };
        let place = search.places[index];
        let next = index.checked_add_signed(isize::from(step)).and_then(|index| search.places.get(index));
        match next {
            Some(next) => go(*next, 0),
            None if step < 0 && search.older > 0 => {
                go(place, -1);
                return Ok(Some(LogSearch { part: HitSelection::Before(place), ..search.query.clone() }));
            }
            None if step > 0 && search.newer > 0 => {
                go(place, 1);
                return Ok(Some(LogSearch { part: HitSelection::After(place), ..search.query.clone() }));
            }
            None if step > 0 => return self.back_to_held(cx, place, search),
            None => return Err("no earlier match in the hosts' files".into()),
        }
        Ok(None)
    }

    /// After the newest match of the files come those that have arrived since.
    fn back_to_held(&mut self, cx: &PageCx<'_>, place: LinePlace, search: &SearchResults) -> MoveResult {
        /// A time out of a file is late by so much at most.
        const LATE_MS: u64 = 1500;
        let from = LogPlace { merge_ms: place.time_ms.saturating_sub(LATE_MS), order: 0 };
        let known = |held: &LinePlace| search.places.iter().any(|found| found.is(held));
        let query = LogQuery::held(self, cx.model, Selection::of(cx));
        let next = query.next_hit(from, |held| place.is_before(held) && !known(held));
        let Some(next) = next else { return Err("no later match; G follows".into()) };
        self.leave_files();
        self.show_line(cx, next);
        Ok(None)
    }

    fn step_in_held(&mut self, cx: &PageCx<'_>, step: i8) -> MoveResult {
        let query = LogQuery::held(self, cx.model, Selection::of(cx));
        let from = self.hit.or(self.at);
        let hit = query.hit(from, step);
        let whole = query.whole_from();
        let former = self.former && cx.model.run.generation > Generation(0);
        let ends = step < 0 && hit.is_none_or(|hit| whole.is_some_and(|whole| hit < whole));
        let why = match why_not_searched(cx) {
            None if ends && (whole.is_some() || former) => {
                let at = from.and_then(|from| query.line_place(from));
                self.files = Some(HostFiles { at, step: if at.is_some() { -1 } else { 0 }, around: false });
                let part = at.map_or(HitSelection::Newest, HitSelection::Before);
                return Ok(Some(self.search_for(cx, part)));
            }
            why => why.unwrap_or("the whole log was searched"),
        };
        match hit {
            Some(hit) => self.show_line(cx, hit),
            None if step < 0 => return Err(format!("no earlier match: {why}")),
            None if from.is_none() => return Err("already following; N goes to the previous match".into()),
            None => return Err("no later match; N goes to the previous match".into()),
        }
        Ok(None)
    }

    /// The search in the hosts' files for what the filter matches.
    fn search_for(&self, cx: &PageCx<'_>, part: HitSelection) -> LogSearch {
        let filter = TextFilter::new(&self.filter);
        LogSearch {
            pattern: filter.pattern().to_owned(),
            invert: filter.invert,
            ranks: self.shown_ranks(cx.model, Selection::of(cx)).unwrap_or_default(),
            generation: (!self.former).then_some(cx.model.run.generation),
            limit: HITS,
            part,
            ..LogSearch::default()
        }
    }

    /// Shows the lines of all ranks around the match, or around the lowest line.
    pub(super) fn show_context(&mut self, cx: &PageCx<'_>) -> MoveResult {
        if self.back.is_some() {
            return Err("already showing context; esc goes back".into());
        }
        let query = LogQuery::new(self, cx.model, Selection::of(cx));
        let (held, kept) = match self.found(cx.model) {
            Some((files, search)) => (None, files.current(search).map(|index| search.places[index])),
            None => {
                let lowest = || query.before(self.at, 1).first().map(|line| line.place);
                let held = self.hit.or_else(lowest);
                (held, held.and_then(|held| query.line_place(held)))
            }
        };
        let before = self.clone();
        (self.scope, self.level) = (LogScope::Merged, Level::Debug);
        self.back = Some(Box::new(before));
        let whole = LogQuery::held(self, cx.model, Selection::of(cx)).whole_from();
        let is_whole = |held: LogPlace| whole.is_none_or(|whole| held > whole);
        match (held, kept) {
            (Some(held), kept) if is_whole(held) || kept.is_none() || why_not_searched(cx).is_some() => {
                self.show_line(cx, held);
                Ok(None)
            }
            (_, Some(at)) => {
                self.at = None;
                self.files = Some(HostFiles { at: Some(at), step: 0, around: true });
                let part = HitSelection::Around(at);
                Ok(Some(LogSearch { part, limit: AROUND, ..LogSearch::default() }))
            }
            _ => {
                self.leave_files();
                Err("no line".into())
            }
        }
    }

    /// Shows a line in the middle of all lines.
    fn show_line(&mut self, cx: &PageCx<'_>, place: LogPlace) {
        (self.hit, self.whole) = (Some(place), true);
        self.at = self.middle(&LogQuery::new(self, cx.model, Selection::of(cx)), place);
    }

    /// Goes to the last line that was written by a moment, ms by this console's clock; where not all lines of
    /// that time are held here, in the hosts' files.
    pub(super) fn go_to_time(&mut self, cx: &PageCx<'_>, time_ms: u64) -> MoveResult {
        let query = LogQuery::held(self, cx.model, Selection::of(cx));
        let whole = query.whole_from();
        let found = query.of_every_line().before(Some(LogPlace { merge_ms: time_ms, order: u64::MAX }), 1);
        let place = found.first().map(|line| line.place);
        let all_held = place.is_some_and(|place| whole.is_none_or(|whole| place >= whole));
        match (place, why_not_searched(cx)) {
            (Some(place), _) if place.merge_ms == 0 => Err("these lines have no times (older agent)".into()),
            (Some(place), why) if all_held || why.is_some() => {
                self.show_line(cx, place);
                Ok(None)
            }
            (None, Some(why)) => Err(format!("no lines of that time: {why}")),
            (_, _) => {
                self.filter.clear();
                self.files = Some(HostFiles::default());
                let until = Some(time_ms as f64 / 1000.0);
                let search = self.search_for(cx, HitSelection::Newest);
                Ok(Some(LogSearch { until, generation: None, ..search }))
            }
        }
    }
}

/// Why the hosts' files cannot be searched.
fn why_not_searched(cx: &PageCx<'_>) -> Option<&'static str> {
    match &cx.shared.moment.cursor {
        _ if cx.shared.steering.replay => {
            Some("only the recording was searched; `rankdeck logs --grep` searches the hosts")
        }
        Some(_) => Some("only the recording was searched; esc returns to live and its hosts"),
        None if !cx.model.hosts.iter().any(|host| matches!(host.link, LinkState::Ready { .. })) => {
            Some("no host is connected")
        }
        None => None,
    }
}
