//! Reads log lines of one rank or of many in the order of their times, with a filter, a level and folds. Pure;
//! it costs as many lines as are read, not as are held, and never more than [`MOST_READ`]. [`Level`] is the
//! severity of a line, as common log formats write it.

use crate::run::pages::logs::{LogScope, LogsPage, Selection};
use crate::run::text_filter::TextFilter;
use rankdeck_core::model::{HeldLine, LogPlace, LogRing, Model};
use rankdeck_proto::search::LinePlace;
use rankdeck_types::ids::{Generation, Rank};
use rankdeck_types::words;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Most lines that one walk reads.
const MOST_READ: usize = 200_000;
/// Most lines of a traceback.
const TRACEBACK: usize = 200;

/// A line and where it stands, or several equal ones.
#[derive(Debug, Clone, PartialEq)]
pub struct LogLine<'a> {
    /// Where it stands; of equal lines the last.
    pub place: LogPlace,
    /// The rank that wrote it.
    pub rank: Rank,
    /// As the rank wrote it.
    pub text: &'a str,
    /// When it was read, by its host's clock, ms; 0: not known.
    pub time_ms: u64,
    pub generation: Generation,
    /// Its severity.
    pub level: Level,
    /// How many lines it stands for.
    pub count: usize,
    /// The other ranks that wrote the same.
    pub others: Vec<Rank>,
    /// Lines of the traceback below it that are not shown.
    pub hidden: usize,
}

impl LogLine<'_> {
    /// All ranks that wrote it: `0-3,6`.
    pub fn ranks(&self) -> String {
        let all: Vec<u32> = self.others.iter().chain([&self.rank]).map(|rank| rank.0).collect();
        words::ranges(&all)
    }
}

/// How many lines match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LineCount {
    /// Lines that match.
    pub kept: usize,
    /// Lines that match up to the one that a search led to.
    pub upto: usize,
    /// Lines held.
    pub all: usize,
    /// Only the newest were read.
    pub cut: bool,
}

/// A log whose lines are read.
#[derive(Debug, Clone, Copy)]
pub struct LogSource<'a> {
    pub rank: Rank,
    /// What is held of it, or was found.
    pub log: &'a LogRing,
}

/// Which lines are shown, of which logs.
pub struct LogQuery<'a> {
    /// Logs whose lines are read.
    pub sources: Vec<LogSource<'a>>,
    /// What was typed.
    pub filter: TextFilter,
    level: Level,
    whole: bool,
    fold: bool,
    only: Option<Generation>,
}

impl LogsPage {
    /// The ranks whose lines are shown; `None`: all.
    pub(super) fn shown_ranks(&self, model: &Model, whose: Selection<'_>) -> Option<Vec<Rank>> {
        match self.scope {
            // Around a match the others count.
            _ if self.back.is_some() => None,
            LogScope::Selected => Some(whose.rank.into_iter().collect()),
            LogScope::Merged => {
                let ranks = model.ranks.iter().map(|rank| rank.rank);
                let marked: Vec<Rank> = ranks.filter(|rank| whose.marked.contains(rank)).collect();
                Some(marked).filter(|marked| !marked.is_empty())
            }
        }
    }
}

impl<'a> LogQuery<'a> {
    /// What `page` shows of `model`.
    pub fn new(page: &LogsPage, model: &'a Model, whose: Selection<'_>) -> LogQuery<'a> {
        match page.found(model) {
            Some((_, search)) => LogQuery {
                sources: search.logs.iter().map(|(rank, log)| LogSource { rank: *rank, log }).collect(),
                filter: TextFilter::new(&page.filter),
                level: Level::Debug,
                whole: true,
                fold: false,
                only: None,
            },
            None => LogQuery::held(page, model, whose),
        }
    }

    /// The same of what is held here.
    pub fn held(page: &LogsPage, model: &'a Model, whose: Selection<'_>) -> LogQuery<'a> {
        let only = page.shown_ranks(model, whose);
        let ranks = model.ranks.iter();
        let ranks = ranks.filter(|rank| only.as_ref().is_none_or(|some| some.contains(&rank.rank)));
        LogQuery {
            sources: ranks.map(|rank| LogSource { rank: rank.rank, log: &rank.log }).collect(),
            filter: TextFilter::new(&page.filter),
            level: page.level,
            whole: page.whole,
            fold: page.fold,
            only: (!page.former).then_some(model.run.generation),
        }
    }

    /// The same without pattern and level.
    pub fn of_every_line(self) -> LogQuery<'a> {
        LogQuery { filter: TextFilter::default(), level: Level::Debug, ..self }
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
        // A match is not folded away.
        if body && self.fold && (self.filter.is_empty() || !hits) {
            return false;
        }
        self.level == Level::Debug || level(&line.text, body) >= self.level
    }

    fn line(&self, source: usize, index: usize) -> Option<(LogSource<'a>, &'a HeldLine)> {
        let rank = *self.sources.get(source)?;
        Some((rank, rank.log.lines.get(index)?))
    }

    fn log_line(&self, rank: LogSource<'a>, index: usize, line: &'a HeldLine) -> LogLine<'a> {
        let hidden = if self.fold && is_head(&line.text) { body_below(rank.log, index) } else { 0 };
        LogLine {
            place: line.place(),
            rank: rank.rank,
            text: &line.text,
            time_ms: line.time_ms,
            generation: line.generation,
            level: level(&line.text, is_body(rank.log, index)),
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
        for _ in 0..MOST_READ {
            let Some((_, source, index)) = heap.pop() else { break };
            let Some((rank, line)) = self.line(source, index) else { continue };
            if let Some(before) = index.checked_sub(1) {
                heap.push((rank.log.lines[before].place(), source, before));
            }
            if !self.keeps(rank.log, index, line) {
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
                None => found.push(self.log_line(rank, index, line)),
            }
        }
        found
    }

    fn same(&self, text: &str, generation: Generation, line: &HeldLine) -> bool {
        self.fold && text == line.text && generation == line.generation && !is_head(text)
    }

    /// Lines held up to and including `at`, whether they are shown or not: no walk finds more.
    pub fn held_before(&self, at: Option<LogPlace>) -> usize {
        let until = |log: &LogRing| {
            at.map_or(log.lines.len(), |at| log.lines.partition_point(|line| line.place() <= at))
        };
        self.sources.iter().map(|source| until(source.log)).sum()
    }

    /// The lowest line of the first page of `rows` rows, if that is above `from`. It is found from the
    /// top: all that is held may be much.
    pub fn first_page(&self, from: Option<LogPlace>, rows: usize) -> Option<LogPlace> {
        let lowest = self.after(LogPlace::default(), rows.max(1))?;
        let above = match from {
            Some(from) => lowest < from,
            None => self.after(lowest, 1).is_some(),
        };
        above.then_some(lowest)
    }

    /// Place of the `n`th line that is shown after `at`; `None` when there are fewer, which is the way back
    /// to following.
    pub fn after(&self, at: LogPlace, n: usize) -> Option<LogPlace> {
        if n > self.held_before(None).saturating_sub(self.held_before(Some(at))) {
            return None;
        }
        let mut left = n;
        let mut latest: Option<(LogPlace, &str, Generation)> = None;
        self.ahead(at, |rank, index, line| {
            if self.keeps(rank.log, index, line) {
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

    /// Passes the lines after `at` to `each`, oldest first, until it returns false.
    fn ahead(&self, at: LogPlace, mut each: impl FnMut(LogSource<'a>, usize, &'a HeldLine) -> bool) {
        let mut heap: BinaryHeap<Reverse<(LogPlace, usize, usize)>> = BinaryHeap::new();
        for (source, rank) in self.sources.iter().enumerate() {
            let index = rank.log.lines.partition_point(|line| line.place() <= at);
            if let Some(line) = rank.log.lines.get(index) {
                heap.push(Reverse((line.place(), source, index)));
            }
        }
        for _ in 0..MOST_READ {
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
        let only = LogQuery {
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

    /// From where on no line of any of these logs is missing; `None`: nothing was ever left out.
    pub fn whole_from(&self) -> Option<LogPlace> {
        let cut = self.sources.iter().filter(|source| source.log.dropped > 0 || source.log.unrecorded > 0);
        cut.map(|source| source.log.lines.front().map_or(LogPlace::MAX, HeldLine::place)).max()
    }

    /// Where a line stands among those that hosts keep. One whose number is not known is placed by its time.
    pub fn line_place(&self, place: LogPlace) -> Option<LinePlace> {
        self.sources.iter().find_map(|source| {
            let lines = &source.log.lines;
            let index = lines.binary_search_by_key(&place, HeldLine::place).ok()?;
            let (generation, rank) = (lines[index].generation, Rank(u32::MAX));
            let by_time = LinePlace { generation, time_ms: place.merge_ms, rank, line: 0 };
            Some(source.log.line_place(source.rank, index).unwrap_or(by_time))
        })
    }

    /// The first line that matches after `at` and is accepted.
    pub fn next_hit(&self, at: LogPlace, accept: impl Fn(&LinePlace) -> bool) -> Option<LogPlace> {
        let mut found = None;
        self.ahead(at, |source, index, line| {
            let place = source.log.line_place(source.rank, index);
            if self.filter.keeps(&line.text) && place.is_none_or(|place| accept(&place)) {
                found = Some(line.place());
            }
            found.is_none()
        });
        found
    }

    /// Lines that match, and lines held; `upto`: those up to that place.
    pub fn count(&self, upto: Option<LogPlace>) -> LineCount {
        let all = self.sources.iter().map(|rank| rank.log.lines.len()).sum();
        if self.filter.is_empty() && self.level == Level::Debug && self.only.is_none() {
            return LineCount { kept: all, upto: 0, all, cut: false };
        }
        let share = (MOST_READ / self.sources.len().max(1)).max(1);
        let only =
            LogQuery { sources: Vec::new(), filter: self.filter.clone(), whole: false, fold: false, ..*self };
        let mut count = LineCount { kept: 0, upto: 0, all, cut: false };
        for rank in &self.sources {
            let skip = rank.log.lines.len().saturating_sub(share);
            count.cut |= skip > 0;
            for (index, line) in rank.log.lines.iter().enumerate().skip(skip) {
                if only.keeps(rank.log, index, line) {
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

/// Most bytes of a line that are read for its level.
const HEAD_BYTES: usize = 160;
/// Most words of it.
const HEAD_WORDS: usize = 14;

/// The severity of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Level {
    /// Debug output.
    Debug,
    /// Everything else.
    #[default]
    Info,
    Warn,
    Error,
}

impl Level {
    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Level::Debug => "all",
            Level::Info => "info",
            Level::Warn => "warnings",
            Level::Error => "errors",
        }
    }

    /// The level of that name.
    pub fn named(name: &str) -> Option<Level> {
        match name {
            "all" | "debug" => Some(Level::Debug),
            "info" => Some(Level::Info),
            "warn" | "warning" | "warnings" => Some(Level::Warn),
            "error" | "errors" => Some(Level::Error),
            _ => None,
        }
    }

    /// The next one to show from on.
    pub fn next(self) -> Level {
        match self {
            Level::Debug | Level::Info => Level::Warn,
            Level::Warn => Level::Error,
            Level::Error => Level::Debug,
        }
    }

    /// The level of a line, by the words with which Python's logging, glog, Rust and shells begin theirs.
    pub fn of(text: &str) -> Level {
        let text = bare(text);
        let mut end = text.len().min(HEAD_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let head = &text[..end];
        if head.starts_with("Traceback (most recent") || head.contains("panicked at") {
            return Level::Error;
        }
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut rest = head;
        for _ in 0..HEAD_WORDS {
            rest = rest.trim_start_matches(|c: char| !is_word(c));
            let word = &rest[..rest.find(|c: char| !is_word(c)).unwrap_or(rest.len())];
            if word.is_empty() {
                break;
            }
            rest = &rest[word.len()..];
            if let Some(level) = of_word(word, rest.starts_with(':')) {
                return level;
            }
        }
        Level::Info
    }
}

/// The level of a word; `named` ones are followed by a colon, as in `error: ...`.
fn of_word(word: &str, named: bool) -> Option<Level> {
    match word {
        "ERROR" | "CRITICAL" | "FATAL" | "PANIC" => return Some(Level::Error),
        "WARNING" | "WARN" => return Some(Level::Warn),
        "INFO" | "NOTICE" => return Some(Level::Info),
        "DEBUG" | "TRACE" => return Some(Level::Debug),
        "error" | "Error" | "fatal" | "Fatal" | "critical" | "panic" if named => return Some(Level::Error),
        "warning" | "Warning" | "warn" if named => return Some(Level::Warn),
        _ => {}
    }
    if named && (word.ends_with("Error") || word.ends_with("Exception")) {
        return Some(Level::Error);
    }
    if named && word.ends_with("Warning") {
        return Some(Level::Warn);
    }
    // glog: E1123.
    let (first, digits) = word.split_at_checked(1)?;
    if digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return match first {
            "E" | "F" => Some(Level::Error),
            "W" => Some(Level::Warn),
            "I" => Some(Level::Info),
            _ => None,
        };
    }
    None
}

/// A line without the rank that PyTorch puts before it: `[rank0]: `.
pub(super) fn bare(text: &str) -> &str {
    let rest = text.strip_prefix("[rank").and_then(|rest| rest.split_once("]:"));
    rest.map_or(text, |(_, rest)| rest.strip_prefix(' ').unwrap_or(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_of_common_formats_is_read() {
        for (text, level) in [
            ("2026-11-23 07:00:01,123 - trainer - WARNING - slow", Level::Warn),
            ("ERROR:root:no", Level::Error),
            ("[rank3]:E1123 07:44:50.1 1234 process_group.cpp:1 x", Level::Error),
            ("[rank3]: RuntimeError: CUDA out of memory", Level::Error),
            ("torch.cuda.OutOfMemoryError: CUDA out of memory", Level::Error),
            ("W1123 07:44:50 x", Level::Warn),
            ("/a/b.py:12: UserWarning: deprecated", Level::Warn),
            ("warning: environment 3 was reset twice", Level::Warn),
            ("Traceback (most recent call last):", Level::Error),
            ("thread 'main' panicked at src/main.rs:1", Level::Error),
            ("[DEBUG] x", Level::Debug),
            ("INFO no ERROR here", Level::Info),
            ("iter 5 eval_error 0.1 errors 0 error 0.5", Level::Info),
            ("value_loss 0.1 td_error 3", Level::Info),
            ("épisode 5", Level::Info),
            ("", Level::Info),
        ] {
            assert_eq!(Level::of(text), level, "{text}");
        }
    }
}
