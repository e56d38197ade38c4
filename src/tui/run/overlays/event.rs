//! Details of an event: its whole text, and the evidence or checkpoint behind it.

use crate::run::card::{self, LabeledValue};
use crate::run::command::{KeyNames, ScreenCommand};
use crate::run::history::{self, find, rank_of};
use crate::run::keys::names;
use crate::run::overlays::evidence::{CELLS, Plain, lines_of, styled};
use crate::run::overlays::{card_hint, on_card_key};
use crate::run::time::time_of_day;
use crate::run::{Cx, DrawCtx, Handled, RunScreen, ViewState};
use crossterm::event::KeyEvent;
use rankdeck_core::model::{EventSubject, HistoryLine, Model};
use rankdeck_kit::{Component, Glyphs, Keep, Role};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

/// The card of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventCard {
    /// Number of the event.
    pub number: u64,
    /// First line shown.
    pub top: usize,
}

impl EventCard {
    /// The card of an event, from its first line.
    pub fn new(number: u64) -> EventCard {
        EventCard { number, top: 0 }
    }
}

impl Component<RunScreen> for EventCard {
    fn on_key(&mut self, model: &Model, key: KeyEvent, cx: &mut Cx<'_>) -> Handled {
        let rank = find(model, self.number).and_then(rank_of);
        on_card_key(key, &mut self.top, rank, cx)
    }

    fn on_wheel(&mut self, _: &Model, rows: isize, _: &mut Cx<'_>) -> Handled {
        card::scroll(&mut self.top, rows as i64);
        Handled::Done
    }

    fn settle(&mut self, model: &Model, view: &ViewState, screen: Rect) -> Keep {
        let shown = view.shown(model);
        let Some(line) = find(shown, self.number) else {
            // One of the live run may not be in the frozen view.
            return find(model, self.number).is_some().into();
        };
        let cells = card::cells(screen, CELLS);
        let evidence = evidence(line, names(&view.steering.keymap, Glyphs::Ascii), cells);
        card::clamp(&mut self.top, card::value_rows(&values(shown, line, 0), cells) + evidence.len(), screen);
        Keep::Yes
    }

    fn draw(&self, model: &Model, view: &ViewState, cx: &DrawCtx<'_>, buf: &mut Buffer) {
        let shown = view.shown(model);
        let Some(line) = find(shown, self.number) else { return };
        let cells = card::cells(cx.screen, CELLS);
        let mut lines = card::value_lines(cx, &values(shown, line, view.style.utc_offset_s), cells);
        let evidence = evidence(line, names(&view.steering.keymap, cx.glyphs()), cells);
        lines.extend(evidence.into_iter().map(|line| styled(cx, line)));
        card::draw(cx, buf, history::role(line.tone), "event", lines, (self.top, cells));
    }

    fn hint(&self, _: &Model, view: &ViewState, cx: &DrawCtx<'_>) -> String {
        let own = [(ScreenCommand::Restart, "restart from a checkpoint"), (ScreenCommand::RankLog, "log")];
        card_hint(cx, view, &own)
    }

    fn copy(&self, model: &Model, view: &ViewState, _: Timestamp) -> Option<String> {
        Some(plain(view.shown(model), self.number, view.style.utc_offset_s))
    }

    fn closes_on_click_beside(&self) -> bool {
        true
    }
}

/// The evidence below the values of a verdict's event.
fn evidence(line: &HistoryLine, keys: KeyNames<'_>, cells: usize) -> Vec<Plain> {
    let Some(EventSubject::Verdict(verdict)) = &line.subject else { return Vec::new() };
    std::iter::once(Plain::new()).chain(lines_of(verdict, keys, cells)).collect()
}

fn values(model: &Model, line: &HistoryLine, offset_s: i64) -> Vec<LabeledValue> {
    let clock = time_of_day(line.time, offset_s);
    let mut values = vec![
        ("what", words::clean(&line.text), history::role(line.tone)),
        (
            "when",
            format!("{clock}, {} after the launch", history::since_launch(model, line).trim()),
            Role::Text,
        ),
    ];
    match &line.subject {
        Some(EventSubject::Checkpoint(path)) => {
            values.push(("file", words::clean(path), Role::Text));
            values.push(("do", "r: restart from this checkpoint".into(), Role::Accent));
        }
        Some(EventSubject::Rank(rank)) => {
            values.push(("do", format!("l: show the log of rank {rank}"), Role::Accent))
        }
        Some(EventSubject::Verdict(_)) | None => {}
    }
    values
}

/// As plain text, for the clipboard.
fn plain(model: &Model, number: u64, offset_s: i64) -> String {
    let Some(line) = find(model, number) else { return String::new() };
    let mut text = format!("{}  {}", time_of_day(line.time, offset_s), line.text);
    if let Some(EventSubject::Verdict(verdict)) = &line.subject {
        for more in verdict.card.text() {
            text.push('\n');
            text.push_str(&more);
        }
    }
    text
}
