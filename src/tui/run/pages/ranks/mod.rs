//! The table of ranks and the strip above it, on the Overview page.

pub mod columns;
mod draw;
pub mod rows;
pub mod strip;

use crate::run::RunScreen;
use crate::run::action::Request;
use crate::run::command::ScreenCommand;
use crate::run::geometry::Pane;
use crate::run::pages::{Page, PageCx, PageDrawCtx, WordResult, step};
use crate::run::reasons::*;
use crate::run::words::Verb;
use crate::run::{rank_details, ranks};
use columns::RankColumn;
use crossterm::event::KeyCode;
use rankdeck_core::model::{Model, RankModel};
use rankdeck_kit::keys::{Binding, c, k};
use rankdeck_kit::list::scrolled_to;
use rankdeck_kit::{Glyphs, Role, bindings};
use ratatui::buffer::Buffer;
use ratatui::layout::Position;
use rows::Sort;
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
        draw::draw(self, ctx, buf);
    }

    fn settle(&mut self, cx: &mut PageCx<'_>) {
        let (shown, shared) = (cx.model, &mut *cx.shared);
        if shared.selected.is_none_or(|rank| ranks::find(shown, rank).is_none()) {
            shared.selected = shown.ranks.first().map(|rank| rank.rank);
        }
        shared.marked.retain(|rank| rank.index() < shown.ranks.len());
        self.height = draw::Parts::of(self, shown, cx.place).rows();
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
        if let Some(sort) = draw::heading_at(self, cx, at) {
            // The same heading again reverses the order.
            self.reverse = self.sort == sort && !self.reverse;
            self.sort = sort;
            return Vec::new();
        }
        let Some(rank) = draw::rank_at(self, cx, at) else { return Vec::new() };
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
