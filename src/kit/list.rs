//! Selection and scroll position of lists.

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::layout::Rect;
use std::ops::Range;

/// Rows of a page key in lists and cards.
pub const PAGE: usize = 8;

/// A movement in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// By a number of rows; down is positive.
    By(isize),
    /// To the first row.
    First,
    /// To the last row.
    Last,
}

impl Move {
    /// The movement of an arrow, page, home or end key; with `letters` also of j, k, g and G.
    pub fn of_key(key: KeyEvent, letters: bool) -> Option<Move> {
        match key.code {
            KeyCode::Up => Some(Move::By(-1)),
            KeyCode::Down => Some(Move::By(1)),
            KeyCode::PageUp => Some(Move::By(-(PAGE as isize))),
            KeyCode::PageDown => Some(Move::By(PAGE as isize)),
            KeyCode::Home => Some(Move::First),
            KeyCode::End => Some(Move::Last),
            KeyCode::Char('k') if letters => Some(Move::By(-1)),
            KeyCode::Char('j') if letters => Some(Move::By(1)),
            KeyCode::Char('g') if letters => Some(Move::First),
            KeyCode::Char('G') if letters => Some(Move::Last),
            _ => None,
        }
    }

    /// The row after this movement in a list of `len` rows, from row `from`.
    pub fn apply(self, from: usize, len: usize) -> usize {
        let last = len.saturating_sub(1);
        match self {
            Move::By(rows) => from.min(last).saturating_add_signed(rows).min(last),
            Move::First => 0,
            Move::Last => last,
        }
    }
}

/// The first row to show so that `selected` is visible among `rows` rows, as close to `top` as possible.
pub fn scrolled_to(top: usize, selected: usize, rows: usize, len: usize) -> usize {
    let rows = rows.max(1);
    let top = top.min(selected).max((selected + 1).saturating_sub(rows));
    top.min(len.saturating_sub(rows))
}

/// Selection and scroll position of a list. A selection is a name, never a row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListPosition {
    pub selected: Option<String>,
    /// The first visible row.
    pub top: usize,
    /// Area of the list at the last layout.
    pub area: Rect,
}

impl ListPosition {
    /// Returns the index of the selected name.
    pub fn index(&self, names: &[String]) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        names.iter().position(|name| name == selected)
    }

    /// Tests whether a name is selected.
    pub fn is_selected(&self, name: &str) -> bool {
        self.selected.as_deref() == Some(name)
    }

    /// Moves the selection.
    pub fn step(&mut self, names: &[String], by: Move) {
        let to = self.index(names).map_or(0, |from| by.apply(from, names.len()));
        if let Some(name) = names.get(to) {
            self.selected = Some(name.clone());
        }
    }

    /// Selects the first name if the selected one does not exist.
    pub fn settle(&mut self, names: Vec<String>) {
        if self.index(&names).is_none() {
            self.selected = names.into_iter().next();
        }
    }

    /// Scrolls so that these rows of `len` are visible in `area`, their first one in any case.
    pub fn scroll_to(&mut self, rows: Range<usize>, len: usize, area: Rect) {
        let height = usize::from(area.height);
        let last = rows.start + rows.len().min(height).max(1) - 1;
        self.top = scrolled_to(self.top, last, height, len);
        self.top = scrolled_to(self.top, rows.start, height, len);
        self.area = area;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn move_stays_inside_the_list() {
        assert_eq!([Move::By(-1).apply(0, 3), Move::By(8).apply(1, 3), Move::Last.apply(9, 3)], [0, 2, 2]);
        assert_eq!(Move::By(1).apply(0, 0), 0);
    }

    #[test]
    fn scrolled_to_keeps_the_selection_visible() {
        assert_eq!(
            [scrolled_to(0, 9, 4, 20), scrolled_to(8, 3, 4, 20), scrolled_to(19, 19, 4, 20)],
            [6, 3, 16]
        );
    }
}
