//! The table of ranks and the strip above it, on the Overview page: its rows, sorted and filtered, and which of
//! them keys act on.
//!
//! Invariants:
//! - UI-3: a failed or stuck rank ignores filters, and is listed first when not all rows fit.
//! - UI-13: keys act on what is shown: a rank that the filter hides is neither inspected nor marked.

pub mod columns;
pub mod strip;

use crate::run::action::Request;
use crate::run::command::ScreenCommand;
use crate::run::geometry::{Geometry, Pane};
use crate::run::pages::ranks::columns::gap;
use crate::run::pages::ranks::strip::{AwaitedRank, Strip};
use crate::run::pages::{Page, PageCx, PageDrawCtx, PagePlacement, WordResult, step};
use crate::run::ranks::{self, RankState};
use crate::run::reasons::*;
use crate::run::shared::Shared;
use crate::run::words::Verb;
use crate::run::{RunScreen, rank_details, staleness};
use columns::RankColumn;
use crossterm::event::KeyCode;
use rankdeck_core::model::{Model, RankModel};
use rankdeck_kit::keys::{Binding, c, k};
use rankdeck_kit::list::scrolled_to;
use rankdeck_kit::{Glyphs, Role, bindings, put, text};
use rankdeck_types::ids::{Rank, Timestamp};
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use std::cmp::Ordering;
use std::collections::BTreeMap;

const RANKS: &[Pane] = &[Pane::Ranks];

/// The keys.
#[rustfmt::skip]
pub static KEYS: &[Binding<RunScreen>] = bindings![
    RANKS, ScreenCommand::Inspect, [k(KeyCode::Enter)], 4, "inspect", "Show rank details", no_rank;
    RANKS, ScreenCommand::Filter, [c('/')], 5, "filter", "Filter ranks (text, !text, host: rank: state: phase:)", always;
    RANKS, ScreenCommand::Sort, [c('o')], 7, "sort", "Sort by the next column", always;
    RANKS, ScreenCommand::Reverse, [c('O')], 0, "reverse", "Reverse the sort order", always;
    RANKS, ScreenCommand::Mark, [c(' ')], 0, "mark", "Mark the rank for merged logs and copy", no_rank;
    RANKS, ScreenCommand::NextTrouble, [c('n')], 0, "next problem", "Go to the next failed or stuck rank", |model, _| no_problem(model);
    RANKS, ScreenCommand::LogThere, [c('L')], 0, "log at verdict", "Show the rank's log at its verdict", no_rank;
    RANKS, ScreenCommand::RankLog, [c('l')], 8, "log", "Show the rank's log", no_rank;
    RANKS, ScreenCommand::Stack, [c('t')], 8, "stack", "Show the rank's stack", no_process;
    RANKS, ScreenCommand::Continue, [c('c')], 0, "continue", "Continue the suspended rank (SIGCONT)", not_stopped;
    RANKS, ScreenCommand::Rejoin, [c('a')], 0, "add", "Start the lost rank again; it joins the running group", not_lost;
    RANKS, ScreenCommand::Environment, [c('e')], 0, "environment", "Show the rank's environment variables (secrets hidden)", no_process;
    RANKS, ScreenCommand::Waits, [c('w')], 0, "waits", "Show wait times (the shortest is the straggler)", |model, view| view.ranks.no_waits(model);
    RANKS, ScreenCommand::Shell, [c('s')], 0, "shell", "Open a shell in the run directory on the rank's host", no_shell;
];

fn is_trouble(model: &Model, rank: &RankModel) -> bool {
    ranks::state(model, rank, Glyphs::Ascii).trouble
}

fn no_problem(model: &Model) -> Option<&'static str> {
    let any = model.ranks.iter().any(|rank| is_trouble(model, rank));
    (!any).then_some("no failed or stuck rank")
}

/// The ranks page.
#[derive(Debug, Clone, Default)]
pub struct RanksPage {
    /// The first row shown.
    pub top: usize,
    /// How it is sorted.
    pub sort: Sort,
    /// The other way round.
    pub reverse: bool,
    /// The text that rows must have.
    pub filter: String,
    /// The strip shows how long ranks wait for each other, instead of letters.
    pub waits: bool,
    /// Columns to show before others (true) or never (false).
    pub columns: BTreeMap<RankColumn, bool>,
    /// Rows that fit, as of the last layout.
    height: usize,
}

impl RanksPage {
    fn no_waits(&self, model: &Model) -> Option<&'static str> {
        let any =
            model.ranks.len() > 1 && model.ranks.iter().any(|rank| rank.watch_history.iteration().is_some());
        (!any && !self.waits).then_some("no wait times reported yet")
    }

    /// Lines that the strip takes on the overview, where there is room.
    pub fn strip_lines(&self, model: &Model) -> u16 {
        if model.ranks.len() > 8 { 2 } else { u16::from(self.waits) }
    }

    /// Marks the rank that keys act on, or takes the mark away, and goes to the next one.
    fn mark(&mut self, cx: &mut PageCx<'_>) {
        let Some(rank) = cx.rank else { return };
        cx.shared.selected = Some(rank);
        if !cx.shared.marked.remove(&rank) {
            cx.shared.marked.insert(rank);
        }
        self.scroll(1, cx);
    }

    /// Sorts by a column that was typed.
    fn sort_by(&mut self, arguments: &[&str]) -> WordResult {
        let (name, reverse) = match arguments {
            [name] | [name, "down"] => (name, false),
            [name, "up"] => (name, true),
            _ => return Err("usage: sort COLUMN [up|down]".into()),
        };
        let sort = Sort::ALL.into_iter().find(|sort| sort.name() == *name);
        let names = Sort::ALL.map(Sort::name).join(", ");
        self.sort = sort.ok_or_else(|| format!("unknown column `{name}`; available: {names}"))?;
        self.reverse = reverse;
        Ok(Vec::new())
    }
}

impl Page for RanksPage {
    fn draw(&self, ctx: &PageDrawCtx<'_>, buf: &mut Buffer) {
        draw_table(self, ctx, buf);
    }

    fn settle(&mut self, cx: &mut PageCx<'_>) {
        let (shown, shared) = (cx.model, &mut *cx.shared);
        if shared.selected.is_none_or(|rank| ranks::find(shown, rank).is_none()) {
            shared.selected = shown.ranks.first().map(|rank| rank.rank);
        }
        shared.marked.retain(|rank| rank.index() < shown.ranks.len());
        self.height = Parts::of(self, shown, cx.place).rows();
        if self.height > 0 {
            let order = self.shown_rows(shown, shared.moment.now);
            let is_selected = |i: &usize| Some(shown.ranks[*i].rank) == shared.selected;
            let selected = order.iter().position(is_selected).unwrap_or(0);
            self.top = scrolled_to(self.top, selected, self.height, order.len());
        }
    }

    fn scroll(&mut self, rows: i64, cx: &mut PageCx<'_>) {
        let shown = cx.model;
        let order = self.shown_rows(shown, cx.shared.moment.now);
        let at = order.iter().position(|i| Some(shown.ranks[*i].rank) == cx.shared.selected).unwrap_or(0);
        if let Some(i) = order.get(step(at, rows, order.len())) {
            cx.shared.selected = Some(shown.ranks[*i].rank);
        }
    }

    fn copy(&self, cx: &PageCx<'_>) -> String {
        let plain = |rank| rank_details::plain(cx.model, rank, cx.now);
        if cx.shared.marked.is_empty() {
            return cx.rank.map_or(String::new(), plain);
        }
        cx.shared.marked.iter().map(|rank| plain(*rank) + "\n").collect()
    }

    fn perform(&mut self, command: ScreenCommand, cx: &mut PageCx<'_>) -> Option<Vec<Request>> {
        match command {
            ScreenCommand::Inspect => return Some(cx.rank.map(Request::Inspect).into_iter().collect()),
            ScreenCommand::Sort => {
                self.sort = self.sort.next();
                cx.shared.toast(format!("sorted by {}", self.sort.name()), Role::Dim, cx.now);
            }
            ScreenCommand::Reverse => self.reverse = !self.reverse,
            ScreenCommand::Mark => self.mark(cx),
            ScreenCommand::NextTrouble => {
                let all = cx.live.ranks.len();
                let from = cx.rank.map_or(0, |rank| rank.index() + 1);
                let found = (0..all)
                    .filter_map(|i| cx.live.ranks.get((from + i) % all))
                    .find(|rank| is_trouble(cx.live, rank));
                cx.shared.selected = found.map(|rank| rank.rank).or(cx.shared.selected);
            }
            ScreenCommand::Waits => self.waits = !self.waits,
            ScreenCommand::RankLog => return Some(vec![Request::ShowRankLog(None)]),
            _ => return None,
        }
        Some(Vec::new())
    }

    fn run_word(&mut self, verb: Verb, arguments: &[&str], _: &mut PageCx<'_>) -> Option<WordResult> {
        Some(match verb {
            Verb::Sort => self.sort_by(arguments),
            Verb::Cols => {
                if arguments.is_empty() {
                    self.columns.clear();
                }
                self.set_columns(arguments.iter().copied()).map(|()| Vec::new())
            }
            _ => return None,
        })
    }

    fn completions(&self, verb: Verb, _: &Model) -> Option<Vec<String>> {
        match verb {
            Verb::Sort => Some(Sort::ALL.map(|sort| sort.name().to_owned()).to_vec()),
            Verb::Cols => {
                let signed = |column: RankColumn| ["+", "-"].map(|sign| format!("{sign}{}", column.name()));
                Some(RankColumn::ALL.into_iter().flat_map(signed).collect())
            }
            _ => None,
        }
    }

    fn click(&mut self, at: Position, cx: &mut PageCx<'_>) -> Vec<Request> {
        if let Some(sort) = heading_at(self, cx, at) {
            // The same heading again reverses the order.
            self.reverse = self.sort == sort && !self.reverse;
            self.sort = sort;
            return Vec::new();
        }
        let Some(rank) = rank_at(self, cx, at) else { return Vec::new() };
        if cx.shared.selected == Some(rank) {
            return vec![Request::Command(ScreenCommand::Inspect)];
        }
        cx.shared.selected = Some(rank);
        Vec::new()
    }

    fn filter(&mut self) -> Option<&mut String> {
        Some(&mut self.filter)
    }
}

/// Column that the rank table is sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sort {
    #[default]
    Rank,
    /// Host, then rank.
    Host,
    /// GPU or CPU use.
    Use,
    Memory,
    /// Own environment steps.
    EnvStep,
    /// Own steps per second.
    Speed,
    /// Number of the latest collective.
    Collective,
    /// Worst first.
    State,
}

impl Sort {
    /// All, in the order of the columns.
    pub const ALL: [Sort; 8] = [
        Sort::Rank,
        Sort::Host,
        Sort::State,
        Sort::Use,
        Sort::Memory,
        Sort::EnvStep,
        Sort::Speed,
        Sort::Collective,
    ];

    /// The next column, in the order in which `o` goes through them.
    pub fn next(self) -> Sort {
        match self {
            Sort::Rank => Sort::State,
            Sort::State => Sort::Speed,
            Sort::Speed => Sort::EnvStep,
            Sort::EnvStep => Sort::Use,
            Sort::Use => Sort::Memory,
            Sort::Memory => Sort::Collective,
            Sort::Collective => Sort::Host,
            Sort::Host => Sort::Rank,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Sort::Rank => "rank",
            Sort::Host => "host",
            Sort::Use => "use",
            Sort::Memory => "memory",
            Sort::EnvStep => "env_step",
            Sort::Speed => "steps/s",
            Sort::Collective => "collective",
            Sort::State => "state",
        }
    }
}

impl RanksPage {
    /// Indices into `model.ranks`, filtered and sorted; with `pin`, failed and stuck ranks come first.
    pub fn rows(&self, model: &Model, now: Timestamp, pin: bool) -> Vec<usize> {
        let words: Vec<String> = self.filter.to_lowercase().split_whitespace().map(String::from).collect();
        let keeps = |i: usize, state: &RankState| {
            state.trouble || words.iter().all(|word| matches(&model.ranks[i], state, word))
        };
        let states = model.ranks.iter().map(|rank| ranks::state_at(model, rank, Glyphs::Ascii, now));
        let mut rows: Vec<(usize, bool)> = states
            .enumerate()
            .filter(|(i, state)| keeps(*i, state))
            .map(|(i, state)| (i, state.trouble))
            .collect();
        rows.sort_by(|(a, a_bad), (b, b_bad)| {
            let pinned = if pin { b_bad.cmp(a_bad) } else { Ordering::Equal };
            let order = compare(model, &model.ranks[*a], &model.ranks[*b], self.sort, now);
            pinned.then(if self.reverse { order.reverse() } else { order }).then(a.cmp(b))
        });
        rows.into_iter().map(|(i, _)| i).collect()
    }

    /// The rows in the order of the table that was shown last.
    fn shown_rows(&self, model: &Model, now: Timestamp) -> Vec<usize> {
        self.rows(model, now, model.ranks.len() > self.height)
    }

    /// The rank that keys act on (UI-13): the selected one, by id; where the table hides it, the first row
    /// shown. `None` when the filter shows no rank.
    pub fn selected(&self, model: &Model, shared: &Shared, is_visible: bool) -> Option<Rank> {
        if !is_visible || self.filter.is_empty() {
            let chosen = shared.selected.filter(|rank| ranks::find(model, *rank).is_some());
            return chosen.or_else(|| model.ranks.first().map(|rank| rank.rank));
        }
        let rows = self.shown_rows(model, shared.moment.now);
        let shown = || rows.iter().filter_map(|i| model.ranks.get(*i)).map(|rank| rank.rank);
        shown().find(|rank| Some(*rank) == shared.selected).or_else(|| shown().next())
    }
}

/// One word of a filter: `!` inverts, `host:`, `rank:`, `state:`, `phase:` match one field, anything else
/// all of them.
fn matches(rank: &RankModel, state: &RankState, word: &str) -> bool {
    if let Some(rest) = word.strip_prefix('!') {
        return rest.is_empty() || !matches(rank, state, rest);
    }
    let has = |text: &str, part: &str| text.to_lowercase().contains(part);
    match word.split_once(':') {
        Some(("host", part)) => has(&rank.host, part),
        Some(("rank", part)) => part.is_empty() || rank.rank.to_string() == part,
        Some(("state", part)) => has(&state.word, part),
        Some(("phase", part)) => has(ranks::phase(rank), part),
        _ => {
            has(&rank.host, word)
                || has(&state.word, word)
                || has(ranks::phase(rank), word)
                || has(&rank.device, word)
                || rank.rank.to_string() == word
                || ranks::page(rank).is_some_and(|page| {
                    has(&page.collective.call.op, word) || has(&page.collective.call.tag, word)
                })
        }
    }
}

/// Ascending for names; largest first for numbers.
fn compare(model: &Model, a: &RankModel, b: &RankModel, sort: Sort, now: Timestamp) -> Ordering {
    let float = |a: Option<f32>, b: Option<f32>| b.unwrap_or(-1.0).total_cmp(&a.unwrap_or(-1.0));
    match sort {
        Sort::Rank => a.rank.cmp(&b.rank),
        Sort::Host => a.node.cmp(&b.node),
        Sort::Use => float(ranks::usage(model, a), ranks::usage(model, b)),
        Sort::Memory => ranks::memory(model, b).cmp(&ranks::memory(model, a)),
        Sort::EnvStep => ranks::env_step(b).cmp(&ranks::env_step(a)),
        Sort::Speed => b.steps_per_s.unwrap_or(-1.0).total_cmp(&a.steps_per_s.unwrap_or(-1.0)),
        Sort::Collective => {
            let seq = |rank: &RankModel| ranks::page(rank).map(|page| page.collective.entered);
            seq(a).cmp(&seq(b))
        }
        Sort::State => {
            let grade = |rank: &RankModel| match ranks::state_at(model, rank, Glyphs::Ascii, now).role {
                Role::Bad => 0,
                Role::Warn => 1,
                Role::Good => 2,
                Role::Text | Role::Strong | Role::Accent => 3,
                Role::Dim => 4,
            };
            grade(a).cmp(&grade(b))
        }
    }
}

/// Rows that a table alone on the page must leave for the selected rank's card below it.
const DETAIL_LEAST: u16 = 10;

/// The parts of the pane, from top to bottom.
struct Parts {
    /// The strip; empty where it is not shown.
    strip: Rect,
    /// The table, its headings included.
    table: Rect,
}

impl Parts {
    fn of(page: &RanksPage, model: &Model, place: PagePlacement<'_>) -> Parts {
        let inner = place.inner();
        let lines = strip_lines(page, model, place.geo, inner).min(inner.height);
        let strip = Rect { height: lines, ..inner };
        Parts { strip, table: Rect { y: inner.y + lines, height: inner.height - lines, ..inner } }
    }

    /// Rows of ranks that fit.
    fn rows(&self) -> usize {
        usize::from(self.table.height.saturating_sub(1))
    }
}

/// Lines of the strip. It helps where the table pages, or where there are many ranks.
fn strip_lines(page: &RanksPage, model: &Model, geo: &Geometry, inner: Rect) -> u16 {
    let ranks = model.ranks.len();
    let fits = ranks < usize::from(inner.height);
    let least = if page.waits { 3 } else { 5 };
    if inner.height < least || ranks == 0 || (fits && ranks < 16 && !page.waits) {
        return 0;
    }
    let lines = strip::height(model, inner.width);
    let most = if geo.area.height >= 40 { 4 } else { 2 };
    (lines as u16).min(most).min(inner.height / 3).max(u16::from(page.waits))
}

/// Draws the pane.
fn draw_table(page: &RanksPage, ctx: &PageDrawCtx<'_>, buf: &mut Buffer) {
    let model = ctx.model;
    let parts = Parts::of(page, model, ctx.place);
    let height = parts.rows();
    let now = ctx.shared.moment.now;
    let rows = page.rows(model, now, model.ranks.len() > height);
    let top = page.top.min(rows.len().saturating_sub(height));
    let shown: Vec<(&RankModel, RankState)> = rows
        .iter()
        .skip(top)
        .take(height)
        .filter_map(|i| model.ranks.get(*i))
        .map(|rank| (rank, ranks::state_at(model, rank, ctx.glyphs(), ctx.now)))
        .collect();
    let more = if rows.len() == model.ranks.len() {
        model.ranks.len().to_string()
    } else {
        format!("{} of {}", rows.len(), model.ranks.len())
    };
    let mut info = ctx.typed_filter(&page.filter, 24);
    let marked = &ctx.shared.marked;
    if !marked.is_empty() {
        let gap = if info.is_empty() { "" } else { "  " };
        info.push(ctx.s(format!("{gap}{} marked", marked.len()), Role::Accent));
    }
    if rows.len() > height && height > 0 {
        let gap = if info.is_empty() { "" } else { "  " };
        info.push(ctx.s(format!("{gap}rows {}-{}", top + 1, (top + height).min(rows.len())), Role::Dim));
    }
    let strip = Strip::new(page, model, now, parts.strip.width, usize::from(parts.strip.height));
    if parts.strip.height > 0 && strip.fold > 1 {
        let what = if page.waits { "cell (shortest wait)" } else { "letter (worst)" };
        info.push(ctx.s(format!("  {} ranks per {what}", strip.fold), Role::Dim));
    }
    if let Some(awaited) = page.waits.then(|| AwaitedRank::of(model)).flatten() {
        let role = if awaited.is_slow() { Role::Warn } else { Role::Dim };
        info.push(ctx.s(format!("  {}", awaited.words()), role));
    }
    ctx.pane(buf, ctx.place.area(), ctx.title("ranks", more), info);
    strip::draw(page, ctx, buf, parts.strip, &strip);
    let table = parts.table;
    if model.ranks.is_empty() {
        put(buf, table, 0, Line::from(ctx.s("no ranks yet", Role::Dim)));
        return;
    }
    let columns = page.fitting(model, ctx.screen.width, table.width);
    put(buf, table, 0, Line::from(headings(page, ctx, &columns)));
    for (i, (rank, state)) in shown.iter().enumerate() {
        put(buf, table, i + 1, row(ctx, rank, state, &columns));
    }
    let taken = (1 + shown.len() as u16).min(table.height);
    let rest = Rect { y: table.y + taken, height: table.height - taken, ..table };
    let selected = ctx.rank.filter(|_| ctx.place.zoomed && rest.height >= DETAIL_LEAST);
    if let Some(rank) = selected.and_then(|rank| ranks::find(model, rank)) {
        rank_details::below(ctx, (model, ctx.keys()), buf, rest, rank);
    }
}

/// Text at the side of its column.
fn aligned(ctx: &PageDrawCtx<'_>, column: RankColumn, text: &str, cells: usize) -> String {
    if column.is_number() { ctx.right(text, cells) } else { ctx.left(text, cells) }
}

fn headings(page: &RanksPage, ctx: &PageDrawCtx<'_>, columns: &[(RankColumn, usize)]) -> Vec<Span<'static>> {
    let gap = " ".repeat(gap(ctx.screen.width));
    let arrow = if page.reverse { ctx.glyphs().pick("▴", "^") } else { ctx.glyphs().pick("▾", "v") };
    let mut spans = vec![Span::raw("  ")];
    for (column, cells) in columns {
        let name = column.heading(ctx.model);
        // Sorted by rank is how the table starts.
        let is_sorted = column.sort() == Some(page.sort) && (page.sort != Sort::Rank || page.reverse);
        let (name, role) = match is_sorted {
            true => (format!("{}{arrow}", text::head(name, cells.saturating_sub(1))), Role::Accent),
            false => (name.to_string(), Role::Dim),
        };
        spans.push(ctx.s(aligned(ctx, *column, &name, *cells), role));
        spans.push(Span::raw(gap.clone()));
    }
    spans
}

fn row(
    ctx: &PageDrawCtx<'_>,
    rank: &RankModel,
    state: &RankState,
    columns: &[(RankColumn, usize)],
) -> Line<'static> {
    let selected = ctx.rank == Some(rank.rank);
    let marked = ctx.shared.marked.contains(&rank.rank);
    let diamond = ctx.glyphs().pick("◆", "+");
    let (mark, role) = if selected {
        (ctx.glyphs().pick("▸", ">"), Role::Accent)
    } else if marked {
        (diamond, Role::Accent)
    } else if state.trouble {
        ("!", Role::Bad)
    } else {
        (" ", Role::Dim)
    };
    let is_silent = staleness::rank_silence(ctx.model, rank, ctx.now).is_some();
    let second = if selected && marked { diamond } else { " " };
    let gap = " ".repeat(gap(ctx.screen.width));
    let mut spans = vec![ctx.s(mark, role), ctx.s(second, Role::Accent)];
    for (column, cells) in columns {
        let (text, role) = column.cell(ctx, rank, state, *cells);
        let role = match column {
            RankColumn::Rank if state.trouble => Role::Bad,
            RankColumn::Rank | RankColumn::Host | RankColumn::State => role,
            _ if is_silent => Role::Dim,
            _ => role,
        };
        spans.push(ctx.s(aligned(ctx, *column, &text, *cells), role));
        spans.push(Span::raw(gap.clone()));
    }
    let line = Line::from(spans);
    if selected { line.style(Style::new().add_modifier(Modifier::BOLD)) } else { line }
}

/// What a click on a heading sorts by.
fn heading_at(page: &RanksPage, cx: &PageCx<'_>, at: Position) -> Option<Sort> {
    let table = Parts::of(page, cx.model, cx.place).table;
    if !table.contains(at) || at.y != table.y {
        return None;
    }
    let screen_width = cx.place.geo.area.width;
    let mut end = usize::from(table.x) + 2;
    let under = page.fitting(cx.model, screen_width, table.width).into_iter().find(|(_, cells)| {
        end += cells + gap(screen_width);
        usize::from(at.x) < end
    });
    under?.0.sort()
}

/// The rank at a place of the pane: in the strip or in a row.
fn rank_at(page: &RanksPage, cx: &PageCx<'_>, at: Position) -> Option<Rank> {
    let Parts { strip, table } = Parts::of(page, cx.model, cx.place);
    let now = cx.shared.moment.now;
    if strip.contains(at) {
        let cells = Strip::new(page, cx.model, now, strip.width, usize::from(strip.height));
        let (row, column) = (usize::from(at.y - strip.y), usize::from(at.x - strip.x));
        return cells.rank_at(cx.model, now, row, column);
    }
    let row = table.contains(at).then(|| usize::from(at.y - table.y).checked_sub(1)).flatten()?;
    let rows = page.shown_rows(cx.model, now);
    cx.model.ranks.get(*rows.get(page.top + row)?).map(|rank| rank.rank)
}
