//! The card of a rank.

use crate::run::card;
use crate::run::command::ScreenCommand;
use crate::run::keys::names;
use crate::run::overlays::{EvidenceCard, card_command, card_hint, on_card_key};
use crate::run::rank_details::{self, LOG_LINES};
use crate::run::ranks;
use crate::run::{Cx, DrawCtx, Handled, RunScreen, ViewState};
use crossterm::event::KeyEvent;
use rankdeck_core::model::Model;
use rankdeck_kit::{Component, Glyphs, Keep, Role};
use rankdeck_types::ids::{Rank, Timestamp};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

/// Most cells of the card.
const CELLS: usize = 110;

/// The card of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspector {
    /// The rank.
    pub rank: Rank,
    /// First line shown.
    pub top: usize,
}

impl Inspector {
    /// The card of a rank, from its first line.
    pub fn new(rank: Rank) -> Inspector {
        Inspector { rank, top: 0 }
    }

    /// Goes to another rank by its number, and selects it on all pages.
    fn go(&mut self, model: &Model, step: i8, cx: &mut Cx<'_>) {
        let selected = cx.state.selected_rank(model);
        if let Some(rank) = ranks::neighbor(model, selected, step) {
            cx.state.select_rank(rank);
            *self = Inspector::new(rank);
        }
    }
}

impl Component<RunScreen> for Inspector {
    fn on_key(&mut self, model: &Model, key: KeyEvent, cx: &mut Cx<'_>) -> Handled {
        match card_command(key, cx.state) {
            Some(ScreenCommand::Explain) => match ranks::verdict_of(model, self.rank) {
                Some(verdict) => cx.state.open(EvidenceCard::new(verdict)),
                None => {
                    let text = format!("rank {} has no verdict", self.rank);
                    cx.state.toast(text, Role::Warn, cx.now);
                }
            },
            Some(ScreenCommand::OtherRank(step)) => self.go(model, step, cx),
            Some(ScreenCommand::NextPane) => self.go(model, 1, cx),
            Some(ScreenCommand::PreviousPane) => self.go(model, -1, cx),
            _ => return on_card_key(key, &mut self.top, Some(self.rank), cx),
        }
        Handled::Done
    }

    fn on_wheel(&mut self, _: &Model, rows: isize, _: &mut Cx<'_>) -> Handled {
        card::scroll(&mut self.top, rows as i64);
        Handled::Done
    }

    fn settle(&mut self, model: &Model, view: &ViewState, screen: Rect) -> Keep {
        let cells = card::cells(screen, CELLS);
        let keys = names(&view.steering.keymap, Glyphs::Ascii);
        let rows = rank_details::rows(view.shown(model), self.rank, cells, view.moment.now, keys);
        card::clamp(&mut self.top, rows, screen);
        ranks::find(model, self.rank).is_some().into()
    }

    fn draw(&self, model: &Model, view: &ViewState, cx: &DrawCtx<'_>, buf: &mut Buffer) {
        let shown = view.shown(model);
        let Some(rank) = ranks::find(shown, self.rank) else { return };
        let cells = card::cells(cx.screen, CELLS);
        let (title, role) = rank_details::title(cx, shown, rank);
        let keys = names(&view.steering.keymap, cx.glyphs());
        let lines = rank_details::lines(cx, (shown, keys), rank, cells, |_| LOG_LINES);
        card::draw(cx, buf, role, &title, lines, (self.top, cells));
    }

    fn hint(&self, _: &Model, view: &ViewState, cx: &DrawCtx<'_>) -> String {
        let own = [
            (ScreenCommand::NextPane, "next rank"),
            (ScreenCommand::Explain, "why"),
            (ScreenCommand::RankLog, "log"),
            (ScreenCommand::Stack, "stack"),
        ];
        card_hint(cx, view, &own)
    }

    fn copy(&self, model: &Model, view: &ViewState, now: Timestamp) -> Option<String> {
        Some(rank_details::plain(view.shown(model), self.rank, now))
    }

    fn closes_on_click_beside(&self) -> bool {
        true
    }
}
