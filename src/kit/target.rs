//! Maps places of the screen to the meaning of a click: drawing records each place, and a click finds what
//! was drawn last there.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Position, Rect};
use std::cell::RefCell;

/// Between two hints of a line.
const BETWEEN: &str = "   ";

/// What a click on a place means; `T` is what only this screen has.
#[derive(Debug, Clone, PartialEq)]
pub enum Target<T> {
    /// Nothing, and nothing of what lies below it either.
    Covered,
    /// The same as this key.
    Key(KeyEvent),
    /// An entry of the list in the top overlay.
    Row(usize),
    /// Something of this screen.
    Own(T),
}

/// Places with what a click on them means, in the order in which they were drawn.
#[derive(Debug)]
pub struct Targets<T>(RefCell<Vec<(Rect, Target<T>)>>);

impl<T> Default for Targets<T> {
    fn default() -> Targets<T> {
        Targets(RefCell::default())
    }
}

impl<T: Clone> Targets<T> {
    /// Records what was drawn at a place.
    pub fn put(&self, place: Rect, target: Target<T>) {
        // Drawing is not re-entrant; were it so, a click would miss, and nothing worse.
        if let Ok(mut all) = self.0.try_borrow_mut() {
            all.push((place, target));
        }
    }

    /// The topmost target at a position, with its whole place.
    pub fn at(&self, at: Position) -> Option<(Rect, Target<T>)> {
        self.0.borrow().iter().rev().find(|(place, _)| place.contains(at)).cloned()
    }
}

/// How far a position is from the left end of a place to its right one, 0 to 1.
pub fn share(place: Rect, at: Position) -> f64 {
    let wide = place.width.saturating_sub(1).max(1);
    (f64::from(at.x.saturating_sub(place.x)) / f64::from(wide)).min(1.0)
}

/// The hints of a line that start with a key: first cell, cells, key. `enter runs   esc closes` has two.
pub fn hinted(line: &str) -> Vec<(u16, u16, KeyEvent)> {
    let (mut found, mut x) = (Vec::new(), 0);
    for part in line.split(BETWEEN) {
        let word = part.trim_start();
        let cells = |text: &str| text.chars().count();
        let from = x + cells(part) - cells(word);
        if let Some(key) = word.split_whitespace().next().and_then(key) {
            found.push((from as u16, cells(word) as u16, key));
        }
        x += cells(part) + BETWEEN.len();
    }
    found
}

/// The key of a name in a hint.
fn key(name: &str) -> Option<KeyEvent> {
    let (control, name) = match name.strip_prefix("ctrl-") {
        Some(name) => (KeyModifiers::CONTROL, name),
        None => (KeyModifiers::NONE, name),
    };
    let mut letters = name.chars();
    let code = match (name, letters.next(), letters.next()) {
        ("enter", ..) => KeyCode::Enter,
        ("esc", ..) => KeyCode::Esc,
        ("tab", ..) => KeyCode::Tab,
        ("space", ..) => KeyCode::Char(' '),
        (_, Some(letter), None) => KeyCode::Char(letter),
        _ => return None,
    };
    Some(KeyEvent::new(code, control))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hinted_line_yields_keys_with_their_cells() {
        let line = " type to filter   up/down move   enter runs   esc closes";
        let keys: Vec<(u16, u16, KeyCode)> =
            hinted(line).into_iter().map(|(x, wide, key)| (x, wide, key.code)).collect();
        assert_eq!(keys, [(33, 10, KeyCode::Enter), (46, 10, KeyCode::Esc)]);
        assert_eq!(hinted("ctrl-c quits")[0].2, KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    }

    #[test]
    fn targets_at_returns_the_topmost() {
        let targets = Targets::default();
        targets.put(Rect::new(0, 0, 10, 4), Target::Own(1));
        targets.put(Rect::new(2, 1, 3, 1), Target::Own(2));
        let at = |x, y| targets.at(Position { x, y }).map(|(_, target)| target);
        assert_eq!((at(2, 1), at(5, 1), at(0, 4)), (Some(Target::Own(2)), Some(Target::Own(1)), None));
    }
}
