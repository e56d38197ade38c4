//! Walking through log lines of one rank or of many in the order of their times, with a filter, a level and
//! folds. Pure; cost is what is looked at, not what is held, and never more than [`LOOKED`] lines.

use crate::log_filter::{Level, LogFilter, bare};
use crate::ranks;
use crate::state::{LogScope, ViewState};
use rankdeck_core::model::{HeldLine, LogPlace, LogRing, Model, RankModel};
use rankdeck_types::ids::{Generation, Rank};
use rankdeck_types::words;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Most lines that one walk looks at.
pub const LOOKED: usize = 200_000;
/// Most lines of a traceback.
const TRACEBACK: usize = 200;

/// A line and where it stands, or several that say the same.
#[derive(Debug, Clone, PartialEq)]
pub struct LogLine<'a> {
    /// Where it stands; the last of those that say the same.
    pub place: LogPlace,
    /// The rank that wrote it.
    pub rank: Rank,
    /// As the rank wrote it.
    pub text: &'a str,
    /// When it was read, by its host's clock, ms; 0: not known.
    pub time_ms: u64,
    /// Of which generation.
    pub generation: Generation,
    /// How grave.
    pub level: Level,
    /// How many lines it stands for.
    pub count: usize,
    /// The other ranks that say the same.
    pub others: Vec<Rank>,
    /// Lines of the traceback below it that are not shown.
    pub hidden: usize,
}

impl LogLine<'_> {
    /// All ranks that say it: `0-3,6`.
    pub fn ranks(&self) -> String {
        let all: Vec<u32> = self.others.iter().chain([&self.rank]).map(|rank| rank.0).collect();
        words::ranges(&all)
    }
}

/// How many lines match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// Lines that match.
    pub kept: usize,
    /// Lines that match up to the one that a search led to.
    pub upto: usize,
    /// Lines held.
    pub all: usize,
    /// Only the newest were looked at.
    pub cut: bool,
}

/// Lines as the view wants them.
pub struct Query<'a> {
    /// Ranks whose lines are looked at.
    pub sources: Vec<&'a RankModel>,
    /// What was typed.
    pub filter: LogFilter,
    level: Level,
    whole: bool,
    fold: bool,
    /// Only this generation.
    only: Option<Generation>,
}

/// The ranks whose lines are looked at.
pub fn sources<'a>(model: &'a Model, view: &ViewState) -> Vec<&'a RankModel> {
    match view.log.scope {
        LogScope::Selected => ranks::selected(model, view).into_iter().collect(),
        LogScope::Merged => {
            let marked: Vec<_> =
                model.ranks.iter().filter(|rank| view.ranks.marked.contains(&rank.rank)).collect();
            if marked.is_empty() { model.ranks.iter().collect() } else { marked }
        }
    }
}

impl<'a> Query<'a> {
    /// What `view` shows of `model`.
    pub fn new(model: &'a Model, view: &ViewState) -> Query<'a> {
        Query {
            sources: sources(model, view),
            filter: LogFilter::new(&view.log.filter),
            level: view.log.level,
            whole: view.log.whole,
            fold: view.log.fold,
            only: (!view.log.former).then_some(model.run.generation),
        }
    }

    /// The line is shown.
    fn keeps(&self, log: &LogRing, index: usize, line: &HeldLine) -> bool {
        if self.only.is_some_and(|only| only != line.generation) {
            return false;
        }
        let hits = self.filter.is_empty() || self.filter.keeps(&line.text);
        if !hits && !self.whole {
            return false;
        }
        let body = is_body(log, index);
        // What was looked for is not folded away.
        if body && self.fold && (self.filter.is_empty() || !hits) {
            return false;
        }
        self.level == Level::Debug || level(&line.text, body) >= self.level
    }

    fn line(&self, source: usize, index: usize) -> Option<(&'a RankModel, &'a HeldLine)> {
        let rank = *self.sources.get(source)?;
        Some((rank, rank.log.lines.get(index)?))
    }

    fn told(&self, rank: &'a RankModel, index: usize, line: &'a HeldLine) -> LogLine<'a> {
        let hidden = if self.fold && is_head(&line.text) { body_below(&rank.log, index) } else { 0 };
        LogLine {
            place: line.place(),
            rank: rank.rank,
            text: &line.text,
            time_ms: line.time_ms,
            generation: line.generation,
            level: level(&line.text, is_body(&rank.log, index)),
            count: 1,
            others: Vec::new(),
            hidden,
        }
    }

    /// At most `n` lines that are shown, up to and including `at` (`None`: the newest), newest first.
    pub fn before(&self, at: Option<LogPlace>, n: usize) -> Vec<LogLine<'a>> {
        let mut heap: BinaryHeap<(LogPlace, usize, usize)> = BinaryHeap::new();
        for (source, rank) in self.sources.iter().enumerate() {
            let lines = &rank.log.lines;
            let end = at.map_or(lines.len(), |at| lines.partition_point(|line| line.place() <= at));
            if let Some(index) = end.checked_sub(1) {
                heap.push((lines[index].place(), source, index));
            }
        }
        let mut found: Vec<LogLine<'a>> = Vec::new();
        for _ in 0..LOOKED {
            let Some((_, source, index)) = heap.pop() else { break };
            let Some((rank, line)) = self.line(source, index) else { continue };
            if let Some(before) = index.checked_sub(1) {
                heap.push((rank.log.lines[before].place(), source, before));
            }
            if !self.keeps(&rank.log, index, line) {
                continue;
            }
            let full = found.len() == n;
            match found.last_mut().filter(|last| self.same(last.text, last.generation, line)) {
                Some(last) => {
                    last.count += 1;
                    let other = last.rank.max(rank.rank);
                    if last.rank != rank.rank && !last.others.contains(&other) {
                        last.others.push(other);
                    }
                    last.rank = last.rank.min(rank.rank);
                }
                None if full => break,
                None => found.push(self.told(rank, index, line)),
            }
        }
        found
    }

    fn same(&self, text: &str, generation: Generation, line: &HeldLine) -> bool {
        self.fold && text == line.text && generation == line.generation && !is_head(text)
    }

    /// Place of the `n`th line that is shown after `at`; `None` when there are fewer, which is the way back
    /// to following.
    pub fn after(&self, at: LogPlace, n: usize) -> Option<LogPlace> {
        let mut left = n;
        let mut latest: Option<(LogPlace, &str, Generation)> = None;
        self.ahead(at, |rank, index, line| {
            if self.keeps(&rank.log, index, line) {
                let goes_on = latest.is_some_and(|(_, text, generation)| self.same(text, generation, line));
                if !goes_on {
                    if left == 0 {
                        return false;
                    }
                    left -= 1;
                }
                latest = Some((line.place(), &line.text, line.generation));
            }
            true
        });
        latest.filter(|_| left == 0).map(|(place, ..)| place)
    }

    /// Gives `each` the lines after `at`, oldest first, until it says false.
    fn ahead(&self, at: LogPlace, mut each: impl FnMut(&'a RankModel, usize, &'a HeldLine) -> bool) {
        let mut heap: BinaryHeap<Reverse<(LogPlace, usize, usize)>> = BinaryHeap::new();
        for (source, rank) in self.sources.iter().enumerate() {
            let index = rank.log.lines.partition_point(|line| line.place() <= at);
            if let Some(line) = rank.log.lines.get(index) {
                heap.push(Reverse((line.place(), source, index)));
            }
        }
        for _ in 0..LOOKED {
            let Some(Reverse((_, source, index))) = heap.pop() else { return };
            let Some((rank, line)) = self.line(source, index) else { continue };
            if let Some(next) = rank.log.lines.get(index + 1) {
                heap.push(Reverse((next.place(), source, index + 1)));
            }
            if !each(rank, index, line) {
                return;
            }
        }
    }

    /// The next line that matches after `at` (`step` > 0), or the one before it; without a place, from the
    /// end.
    pub fn hit(&self, at: Option<LogPlace>, step: i8) -> Option<LogPlace> {
        let only = Query {
            sources: self.sources.clone(),
            filter: self.filter.clone(),
            whole: false,
            fold: false,
            ..*self
        };
        if step > 0 {
            return only.after(at?, 1);
        }
        let lines = only.before(at, 2);
        lines.into_iter().map(|line| line.place).find(|place| at.is_none_or(|at| *place < at))
    }

    /// Lines that match, and lines held; `upto`: those up to that place.
    pub fn count(&self, upto: Option<LogPlace>) -> Count {
        let all = self.sources.iter().map(|rank| rank.log.lines.len()).sum();
        if self.filter.is_empty() && self.level == Level::Debug && self.only.is_none() {
            return Count { kept: all, upto: 0, all, cut: false };
        }
        let share = (LOOKED / self.sources.len().max(1)).max(1);
        let only =
            Query { sources: Vec::new(), filter: self.filter.clone(), whole: false, fold: false, ..*self };
        let mut count = Count { kept: 0, upto: 0, all, cut: false };
        for rank in &self.sources {
            let skip = rank.log.lines.len().saturating_sub(share);
            count.cut |= skip > 0;
            for (index, line) in rank.log.lines.iter().enumerate().skip(skip) {
                if only.keeps(&rank.log, index, line) {
                    count.kept += 1;
                    count.upto += usize::from(upto.is_some_and(|upto| line.place() <= upto));
                }
            }
        }
        count
    }
}

fn level(text: &str, body: bool) -> Level {
    if body { Level::Error } else { Level::of(text) }
}

fn is_head(text: &str) -> bool {
    bare(text).starts_with("Traceback (most recent call last)")
}

fn is_inner(text: &str) -> bool {
    let text = bare(text);
    text.starts_with([' ', '\t']) && !text.trim().is_empty()
}

/// The line belongs to a traceback, between its head and its last line.
fn is_body(log: &LogRing, index: usize) -> bool {
    if !log.lines.get(index).is_some_and(|line| is_inner(&line.text)) {
        return false;
    }
    let above = (index.saturating_sub(TRACEBACK)..index).rev();
    for line in above.filter_map(|index| log.lines.get(index)) {
        if is_head(&line.text) {
            return true;
        }
        if !is_inner(&line.text) {
            return false;
        }
    }
    false
}

fn body_below(log: &LogRing, head: usize) -> usize {
    log.lines.iter().skip(head + 1).take(TRACEBACK).take_while(|line| is_inner(&line.text)).count()
}

/// Moves the cursor of the log by `rows` lines (down is positive).
pub fn scroll(model: &Model, view: &mut ViewState, rows: i64) {
    let query = Query::new(model, view);
    let n = rows.unsigned_abs().min(LOOKED as u64) as usize;
    if rows < 0 {
        // At the very top the cursor stays, so that the first page does not shrink to one line.
        let rows = view.geometry.log_rows;
        let page = query.before(view.log.at, rows.saturating_add(n));
        let room = page.len().saturating_sub(rows).min(n);
        if room > 0
            && let Some(line) = page.get(room)
        {
            view.log.at = Some(line.place);
        }
    } else if let Some(at) = view.log.at {
        // One more than asked for must exist, else the newest is on screen and the log follows again.
        view.log.at = query.after(at, n).filter(|place| query.after(*place, 1).is_some());
        if view.log.at.is_none() {
            view.log.hit = None;
        }
    }
}

/// Goes to the next line that matches what was typed, or to the one before; why not.
pub fn go_to_hit(model: &Model, view: &mut ViewState, step: i8) -> Result<(), &'static str> {
    let query = Query::new(model, view);
    if query.filter.is_empty() {
        return Err("type what to look for first: /");
    }
    let from = view.log.hit.or(view.log.at);
    let Some(hit) = query.hit(from, step) else {
        return Err(match (from, step > 0) {
            (None, true) => "the newest line is shown; N goes to earlier ones",
            (Some(_), true) => "nothing later matches; N goes to earlier ones",
            (_, false) => "nothing earlier matches here; `rankdeck logs --grep` looks on the hosts",
        });
    };
    show(model, view, hit);
    Ok(())
}

/// Shows the line there in the middle of all lines.
pub fn show(model: &Model, view: &mut ViewState, place: LogPlace) {
    (view.log.hit, view.log.whole) = (Some(place), true);
    let query = Query::new(model, view);
    let below = query.after(place, view.geometry.log_rows / 2);
    let newest = || query.before(None, 1).first().map(|line| line.place);
    view.log.at = below.or_else(newest).or(Some(place));
}

/// Goes to the last line that was written by a moment, ms by this console's clock; why not.
pub fn go_to_time(model: &Model, view: &mut ViewState, time_ms: u64) -> Result<(), &'static str> {
    let query = Query { filter: LogFilter::default(), level: Level::Debug, ..Query::new(model, view) };
    let found = query.before(Some(LogPlace { merge_ms: time_ms, order: u64::MAX }), 1);
    match found.first() {
        Some(line) if line.place.merge_ms > 0 => {
            let place = line.place;
            show(model, view, place);
            Ok(())
        }
        Some(_) => Err("these lines have no times: their agent is of an older rankdeck"),
        None => Err("lines of that time are not held here; `rankdeck logs --since` reads them on the hosts"),
    }
}
