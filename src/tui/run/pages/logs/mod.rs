//! The Logs page: lines of all ranks merged by time, or of one rank.

mod draw;
mod lines;
mod walk;

use crate::run::RunScreen;
use crate::run::action::{Request, ScreenAction};
use crate::run::command::ScreenCommand;
use crate::run::geometry::{Pane, Tab};
use crate::run::history;
use crate::run::pages::{FilterChange, Page, PageCx, PageDrawCtx, WordResult};
use crate::run::ranks;
use crate::run::reasons::*;
use crate::run::time::{self, TimeCursor};
use crate::run::words::Verb;
use crossterm::event::KeyCode;
use rankdeck_core::event::Event;
use rankdeck_core::model::{HistoryLine, LogPlace, Model, SearchResults};
use rankdeck_kit::keys::{Binding, c, k};
use rankdeck_kit::{Role, bindings};
use rankdeck_proto::search::{LinePlace, LogSearch};
use rankdeck_types::ids::{Rank, Timestamp};
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use std::collections::BTreeSet;

use lines::Level;
use lines::LogQuery;
use walk::MoveResult;

/// Characters per key press that scrolls long lines.
const SIDEWAYS: isize = 20;
/// No line of a log is longer.
const MOST_SIDEWAYS: usize = 16_000;
/// Rows of the screen besides the lines of the log, about.
const ROWS_BESIDE: u16 = 6;

const LOG: &[Pane] = &[Pane::Log];

/// The keys.
#[rustfmt::skip]
pub static KEYS: &[Binding<RunScreen>] = bindings![
    LOG, ScreenCommand::Filter, [c('/')], 4, "filter", "Filter lines (text or regex; !text excludes)", always;
    LOG, ScreenCommand::Hit(1), [c('n')], 0, "next match", "Go to the next match", |_, view| view.log.no_filter();
    LOG, ScreenCommand::Hit(-1), [c('N')], 5, "prev match", "Go to the previous match (searches the hosts' files)", |_, view| view.log.no_filter();
    LOG, ScreenCommand::Around, [k(KeyCode::Enter)], 5, "context", "Show context from all ranks", always;
    LOG, ScreenCommand::Level, [c('e')], 6, "level", "Cycle the log level: all, warnings, errors", always;
    LOG, ScreenCommand::Times, [c('t')], 9, "times", "Show timestamps (host clock)", always;
    LOG, ScreenCommand::Fold, [c('c')], 10, "fold", "Fold repeated lines and tracebacks", always;
    LOG, ScreenCommand::Former, [c('p')], 0, "generations", "Include earlier generations", always;
    LOG, ScreenCommand::Merge, [c('m')], 5, "merge", "Toggle merged or single-rank log", no_rank;
    LOG, ScreenCommand::OtherRank(1), [c(']'), k(KeyCode::Right)], 6, "next rank", "Select the next rank", |_, view| view.log.merged();
    LOG, ScreenCommand::OtherRank(-1), [c('['), k(KeyCode::Left)], 0, "prev rank", "Select the previous rank", |_, view| view.log.merged();
    LOG, ScreenCommand::Wrap, [c('w')], 7, "wrap", "Wrap long lines", always;
    LOG, ScreenCommand::Sideways(1), [c('l')], 0, "scroll right", "Scroll right", |_, view| view.log.wrapped();
    LOG, ScreenCommand::Sideways(-1), [c('h')], 0, "scroll left", "Scroll left", |_, view| view.log.at_line_start();
    LOG, ScreenCommand::Follow, [c('F')], 8, "follow", "Follow the newest line", |_, view| view.log.following();
];

/// Whose lines the log shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogScope {
    /// All ranks (or the marked ones), in the order of their times.
    #[default]
    Merged,
    /// The selected rank.
    Selected,
}

/// The logs page: whose lines are shown, where, and which of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogsPage {
    /// Whose lines are shown.
    pub scope: LogScope,
    /// The lowest line shown; `None` follows the newest.
    pub at: Option<LogPlace>,
    /// The text that lines must have.
    pub filter: String,
    /// Long lines wrap.
    pub wrap: bool,
    /// Characters scrolled off at the start of each line, without wrapping.
    pub shift: usize,
    /// Lines from this level on.
    level: Level,
    /// All lines are shown, those that match are marked; else only those.
    whole: bool,
    /// The line that a search or an event led to.
    pub hit: Option<LogPlace>,
    /// When each line was read.
    times: bool,
    /// Equal lines are one, tracebacks are their ends.
    fold: bool,
    /// Lines of former generations, too.
    former: bool,
    /// Lines of the hosts' files are shown instead of those that are held here.
    pub files: Option<HostFiles>,
    /// What was shown before the lines of all ranks around one of them.
    back: Option<Box<LogsPage>>,
    /// Lines that fit, as of the last layout.
    rows: usize,
}

/// What is shown of the hosts' files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostFiles {
    /// The current match, or the one from which to step; `None`: the newest.
    at: Option<LinePlace>,
    /// The match before it (-1) or after it (1) is meant; it may still have to be found.
    step: i8,
    /// All lines around it are shown, not the matches.
    around: bool,
}

impl HostFiles {
    /// The index of the line that is meant.
    fn current(&self, search: &SearchResults) -> Option<usize> {
        let places = &search.places;
        let Some(at) = &self.at else { return places.len().checked_sub(1) };
        match self.step {
            0 => places.iter().position(|place| place.is(at)),
            ..0 => places.iter().rposition(|place| place.is_before(at)),
            _ => places.iter().position(|place| at.is_before(place)),
        }
    }
}

/// The ranks whose lines are shown.
#[derive(Clone, Copy)]
struct Selection<'a> {
    rank: Option<Rank>,
    marked: &'a BTreeSet<Rank>,
}

impl<'a> Selection<'a> {
    fn of(cx: &'a PageCx<'_>) -> Selection<'a> {
        Selection { rank: cx.rank, marked: &cx.shared.marked }
    }
}

impl Default for LogsPage {
    fn default() -> LogsPage {
        LogsPage {
            scope: LogScope::Merged,
            at: None,
            filter: String::new(),
            wrap: false,
            shift: 0,
            level: Level::Debug,
            whole: false,
            hit: None,
            times: true,
            fold: true,
            former: true,
            files: None,
            back: None,
            rows: 0,
        }
    }
}

impl LogsPage {
    fn no_filter(&self) -> Option<&'static str> {
        self.filter.is_empty().then_some("no filter; press / to set one")
    }

    fn wrapped(&self) -> Option<&'static str> {
        self.wrap.then_some("lines are wrapped; w unwraps")
    }

    fn at_line_start(&self) -> Option<&'static str> {
        (self.wrap || self.shift == 0).then_some("already at the line start")
    }

    fn merged(&self) -> Option<&'static str> {
        (self.scope == LogScope::Merged).then_some("log is merged; m shows one rank")
    }

    fn following(&self) -> Option<&'static str> {
        let follows = self.at.is_none() && self.files.is_none() && self.back.is_none();
        follows.then_some("already following")
    }

    /// What was found in the hosts' files, when that is shown.
    fn found<'a>(&self, model: &'a Model) -> Option<(HostFiles, &'a SearchResults)> {
        let files = self.files?;
        let searches = &model.log_search;
        let search = if files.around { searches.around.as_ref() } else { searches.hits.as_ref() };
        Some((files, search?))
    }

    /// Follows the newest lines that are held here.
    fn follow(&mut self) {
        self.show_newest();
        self.hit = None;
    }

    /// Shows the newest lines that are held here.
    pub fn show_newest(&mut self) {
        self.leave_files();
        self.at = None;
    }

    /// Follows the log of the selected rank.
    pub fn show_selected(&mut self) {
        self.follow();
        self.scope = LogScope::Selected;
    }

    /// Shows what is held here again.
    fn leave_files(&mut self) {
        self.leave_context();
        self.files = None;
    }

    /// Shows what was shown before the context of a line.
    fn leave_context(&mut self) {
        if let Some(back) = self.back.take() {
            *self = LogsPage { rows: self.rows, ..*back };
        }
    }

    /// Keeps only lines with a text.
    pub fn set_filter(&mut self, text: String) {
        self.leave_files();
        (self.filter, self.at) = (text, None);
    }

    /// Counts on the whole page, which is laid out later than its middle is needed. The overview's filter does
    /// not hide the selected rank there.
    fn expect_page(&mut self, cx: &mut PageCx<'_>) {
        self.rows = usize::from(cx.place.geo.area.height.saturating_sub(ROWS_BESIDE));
        let selected = cx.shared.selected.filter(|rank| ranks::find(cx.model, *rank).is_some());
        cx.rank = selected.or(cx.model.ranks.first().map(|rank| rank.rank));
    }

    /// Shows the log at the time of an event.
    pub fn show_event(&mut self, line: &HistoryLine, cx: &mut PageCx<'_>) -> Vec<Request> {
        let about = history::rank_of(line);
        self.leave_files();
        self.filter.clear();
        self.scope = if about.is_some() { LogScope::Selected } else { LogScope::Merged };
        cx.shared.selected = about.or(cx.shared.selected);
        self.expect_page(cx);
        let moved = self.go_to_time(cx, (line.time.max(0.0) * 1000.0) as u64);
        report(moved, cx)
    }

    /// Shows the log of a rank or of all, as typed: `[N|all] [TIME]`.
    fn show(&mut self, arguments: &[&str], cx: &mut PageCx<'_>) -> WordResult {
        let is_time = |word: &str| word.contains(':') || word.starts_with(['-', '+']);
        let (who, when) = match arguments {
            [] => ("all", None),
            [one] if is_time(one) => ("all", Some(*one)),
            [who] => (*who, None),
            [who, when] => (*who, Some(*when)),
            _ => return Err("usage: log [N|all] [TIME]".into()),
        };
        let rank = if who == "all" { None } else { Some(ranks::named(cx.live, who)?) };
        let at = when.map(|when| log_time(cx, when)).transpose()?;
        self.follow();
        self.scope = if rank.is_some() { LogScope::Selected } else { LogScope::Merged };
        cx.shared.selected = rank.or(cx.shared.selected);
        let Some(at) = at else { return Ok(shown()) };
        self.expect_page(cx);
        let moved = self.go_to_time(cx, at);
        Ok([shown(), report(moved, cx)].concat())
    }

    /// Goes to the newest match; searches the hosts' files if there is none in this console.
    fn search(&mut self, arguments: &[&str], cx: &mut PageCx<'_>) -> WordResult {
        if arguments.is_empty() {
            return Err("usage: search TEXT".into());
        }
        self.follow();
        (self.filter, self.whole) = (arguments.join(" "), false);
        self.expect_page(cx);
        let moved = self.go_to_hit(cx, -1);
        Ok([shown(), report(moved, cx)].concat())
    }

    fn set_level(&mut self, arguments: &[&str]) -> WordResult {
        let level = arguments.first().and_then(|name| Level::named(name));
        self.level = level.ok_or("usage: level all|info|warnings|errors")?;
        Ok(shown())
    }
}

/// Goes to this page.
fn shown() -> Vec<Request> {
    vec![Request::ShowPage(Tab::Logs)]
}

/// Sends a search to the hosts, if there is one; results arrive live.
fn searched(search: Option<LogSearch>) -> Vec<Request> {
    let send = |search| Request::Live(ScreenAction::Send(Event::Searched { search: Some(Box::new(search)) }));
    search.map(send).into_iter().collect()
}

/// What a move led to: a search in the hosts' files, or a message.
fn report(moved: MoveResult, cx: &mut PageCx<'_>) -> Vec<Request> {
    moved.map(searched).unwrap_or_else(|why| {
        cx.shared.toast(why, Role::Warn, cx.now);
        Vec::new()
    })
}

/// The typed time in ms, relative to the newest log line.
fn log_time(cx: &PageCx<'_>, typed: &str) -> Result<u64, String> {
    let lines = cx.live.ranks.iter().filter_map(|rank| rank.log.lines.back());
    let newest = lines.map(|line| line.merge_ms).max().filter(|time| *time > 0);
    let at = Timestamp(newest.ok_or("no log line has a time")?);
    let cursor = TimeCursor { at, end: at, ..TimeCursor::default() };
    Ok(time::parse(typed, &cursor, cx.shared.style.utc_offset_s)?.0)
}

impl Page for LogsPage {
    fn draw(&self, ctx: &PageDrawCtx<'_>, buf: &mut Buffer) {
        draw::draw(self, ctx, buf);
    }

    fn settle(&mut self, cx: &mut PageCx<'_>) {
        self.rows = cx.place.rows();
    }

    fn scroll(&mut self, rows: i64, cx: &mut PageCx<'_>) {
        self.scroll_lines(cx, rows);
    }

    fn copy(&self, cx: &PageCx<'_>) -> String {
        let whose = Selection::of(cx);
        let lowest = self.position(cx.model, whose).at;
        let lines = LogQuery::new(self, cx.model, whose).before(lowest, self.rows.max(1));
        let text = lines.iter().rev().map(|line| {
            let many = if line.count > 1 { format!("  x{}", line.count) } else { String::new() };
            let whose = match line.others.is_empty() {
                true => format!("rank {}", line.rank),
                false => format!("ranks {}", line.ranks()),
            };
            format!("[{whose}] {}{many}\n", words::clean_output(line.text))
        });
        text.collect()
    }

    fn perform(&mut self, command: ScreenCommand, cx: &mut PageCx<'_>) -> Option<Vec<Request>> {
        match command {
            ScreenCommand::Hit(step) => {
                let moved = self.go_to_hit(cx, step);
                return Some(report(moved, cx));
            }
            ScreenCommand::Around => {
                let moved = self.show_context(cx);
                return Some(report(moved, cx));
            }
            ScreenCommand::OtherRank(step) => {
                if let Some(rank) = ranks::neighbor(cx.live, cx.rank, step) {
                    cx.shared.selected = Some(rank);
                    self.show_newest();
                }
            }
            ScreenCommand::Sideways(by) => {
                let to = self.shift.saturating_add_signed(isize::from(by) * SIDEWAYS);
                self.shift = to.min(MOST_SIDEWAYS);
            }
            ScreenCommand::Merge => {
                self.leave_files();
                self.scope = match self.scope {
                    LogScope::Merged => LogScope::Selected,
                    LogScope::Selected => LogScope::Merged,
                };
                (self.at, self.hit) = (None, None);
            }
            ScreenCommand::Follow => self.follow(),
            ScreenCommand::Wrap => self.wrap = !self.wrap,
            ScreenCommand::Level => self.level = self.level.next(),
            ScreenCommand::Times => self.times = !self.times,
            ScreenCommand::Fold => self.fold = !self.fold,
            ScreenCommand::Former => {
                self.leave_files();
                self.former = !self.former;
            }
            _ => return None,
        }
        Some(Vec::new())
    }

    fn run_word(&mut self, verb: Verb, arguments: &[&str], cx: &mut PageCx<'_>) -> Option<WordResult> {
        Some(match verb {
            Verb::Log => self.show(arguments, cx),
            Verb::Level => self.set_level(arguments),
            Verb::Search => self.search(arguments, cx),
            _ => return None,
        })
    }

    fn completions(&self, verb: Verb, model: &Model) -> Option<Vec<String>> {
        match verb {
            Verb::Log => Some(model.ranks.iter().map(|rank| rank.rank.to_string()).collect()),
            Verb::Level => Some(["all", "info", "warnings", "errors"].map(str::to_owned).to_vec()),
            _ => None,
        }
    }

    fn filter(&mut self) -> Option<&mut String> {
        Some(&mut self.filter)
    }

    fn on_filter(&mut self, change: FilterChange) {
        match change {
            FilterChange::Opened => {
                self.leave_files();
                (self.whole, self.hit) = (false, None);
            }
            FilterChange::Typed => self.at = None,
            FilterChange::Cleared => (self.whole, self.hit) = (false, None),
        }
    }

    fn back(&mut self) -> bool {
        if self.back.is_some() {
            self.leave_context();
        } else if self.files.is_some() {
            self.leave_files();
        } else if self.clear_filter() {
        } else if self.at.is_some() {
            (self.at, self.hit) = (None, None);
        } else if self.level != Level::Debug {
            self.level = Level::Debug;
        } else {
            return false;
        }
        true
    }
}
