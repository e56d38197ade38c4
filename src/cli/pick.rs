//! A list on the terminal, of which one entry is picked with keys.

use crate::shell::stderr;
use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::terminal;
use rankdeck_types::words::clean;
use std::io::{self, IsTerminal};

/// Rows of the list at once.
const ROWS: usize = 12;

/// What a key does to a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Another entry is marked.
    To(usize),
    /// The marked one is it.
    Take,
    /// None of them.
    Leave,
}

fn step(key: KeyEvent, at: usize, count: usize) -> Step {
    let last = count.saturating_sub(1);
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Step::Leave,
        KeyCode::Esc | KeyCode::Char('q') => Step::Leave,
        KeyCode::Enter => Step::Take,
        KeyCode::Up | KeyCode::Char('k') => Step::To(at.saturating_sub(1)),
        KeyCode::Down | KeyCode::Char('j') => Step::To((at + 1).min(last)),
        KeyCode::PageUp => Step::To(at.saturating_sub(ROWS)),
        KeyCode::PageDown => Step::To((at + ROWS).min(last)),
        KeyCode::Home | KeyCode::Char('g') => Step::To(0),
        KeyCode::End | KeyCode::Char('G') => Step::To(last),
        _ => Step::To(at),
    }
}

/// The rows shown: the first one, so that the marked entry is among them.
fn window(at: usize, count: usize) -> std::ops::Range<usize> {
    let top = at.saturating_sub(ROWS - 1).min(count.saturating_sub(ROWS));
    top..count.min(top + ROWS)
}

fn rows(title: &str, items: &[String], at: usize, cells: usize) -> Vec<String> {
    let shown = window(at, items.len());
    let more = items.len() - shown.len();
    let more = if more > 0 { format!("  ({} of {})", at + 1, items.len()) } else { String::new() };
    let cut = |text: String| text.chars().take(cells.max(1)).collect::<String>();
    let mut rows = vec![cut(format!("{title}  up/down, enter takes, esc leaves{more}"))];
    rows.extend(shown.map(|index| {
        let mark = if index == at { ">" } else { " " };
        cut(format!("{mark} {}", clean(items.get(index).map_or("", String::as_str))))
    }));
    rows
}

/// Somebody at a terminal can pick.
pub fn can_pick() -> bool {
    let dumb = std::env::var("TERM").map_or(true, |term| term.is_empty() || term == "dumb");
    io::stdin().is_terminal() && stderr::is_terminal() && !dumb
}

/// The raw mode of the terminal, given back whatever happens.
struct Raw;

impl Raw {
    fn enter() -> io::Result<Raw> {
        terminal::enable_raw_mode().map(|()| Raw)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = terminal::disable_raw_mode();
    }
}

/// Shows the entries below the cursor and lets the user pick one; `None`: none of them. The list is taken
/// away again.
pub fn one(title: &str, items: &[String]) -> io::Result<Option<usize>> {
    let _raw = Raw::enter()?;
    let mut at = 0;
    let picked = loop {
        let cells = terminal::size().map_or(80, |(columns, _)| usize::from(columns).saturating_sub(1));
        let rows = rows(title, items, at, cells);
        stderr::list(&rows);
        match crossterm::event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => match step(key, at, items.len()) {
                Step::To(index) => at = index,
                Step::Take => break Some(at),
                Step::Leave => break None,
            },
            _ => {}
        }
    };
    stderr::clear_list();
    Ok(picked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_move_within_the_list_and_the_marked_entry_is_shown() {
        let key = |code| KeyEvent::new(code, KeyModifiers::NONE);
        assert_eq!(step(key(KeyCode::Up), 0, 5), Step::To(0));
        assert_eq!(step(key(KeyCode::Char('j')), 4, 5), Step::To(4));
        assert_eq!(step(key(KeyCode::End), 0, 5), Step::To(4));
        assert_eq!(step(key(KeyCode::Enter), 3, 5), Step::Take);
        assert_eq!(step(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL), 3, 5), Step::Leave);
        for (at, count) in [(0, 1), (11, 12), (12, 40), (39, 40), (3, 40)] {
            let shown = window(at, count);
            assert!(shown.contains(&at) && shown.len() == count.min(ROWS), "{at} of {count}: {shown:?}");
        }
    }

    #[test]
    fn entries_are_cut_to_the_terminal_and_carry_no_controls() {
        let items = vec!["a\u{1b}[2Jb".to_owned(), "x".repeat(500)];
        let rows = rows("which one?", &items, 1, 40);
        assert!(rows.iter().all(|row| row.chars().count() <= 40 && !row.contains('\u{1b}')), "{rows:?}");
        assert!(rows[2].starts_with("> xxx"));
    }
}
