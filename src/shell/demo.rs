//! What a demonstration adds to the screen: a line of keys, each of which lets something go wrong.
//!
//! Owner: the driver. The keys are function keys, which the screen has no use for.

use crossterm::event::{Event as TermEvent, KeyCode, KeyEventKind};
use rankdeck_core::model::RunState;
use rankdeck_link::simulator::{FaultKind, Trouble};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use std::time::Duration;

/// Key, word, fault, and how many seconds it lasts.
const KEYS: [(u8, &str, FaultKind, Option<u64>); 6] = [
    (2, "freeze", FaultKind::Freeze, Some(15)),
    (3, "slow", FaultKind::Slow, Some(60)),
    (4, "kill", FaultKind::Kill, None),
    (5, "drift", FaultKind::Drift, Some(10)),
    (6, "lose host", FaultKind::Lose, Some(10)),
    (7, "hang env", FaultKind::EnvStuck, Some(15)),
];

/// The keys of a demonstration.
#[derive(Debug)]
pub struct Demo {
    trouble: Trouble,
}

impl Demo {
    /// Keys that make trouble there.
    pub fn new(trouble: Trouble) -> Demo {
        Demo { trouble }
    }

    /// `None` if it was none of the keys, which have no other meaning; what to say, where one does nothing.
    /// `restart`: the key that begins the run again.
    pub fn hear(&self, input: &TermEvent, state: RunState, restart: &str) -> Option<String> {
        let TermEvent::Key(key) = input else { return None };
        let KeyCode::F(number) = key.code else { return None };
        let (_, word, kind, lasts) = KEYS.iter().find(|(key, ..)| *key == number)?;
        if key.kind != KeyEventKind::Press {
            return Some(String::new());
        }
        let why = match state {
            RunState::Over => format!("the run is over; {restart} begins it again"),
            RunState::Draining => "the run is on its way out".to_owned(),
            RunState::Connecting | RunState::Launching | RunState::Running | RunState::Restarting
                if self.trouble.begin(*kind, lasts.map(Duration::from_secs)) =>
            {
                return Some(String::new());
            }
            RunState::Connecting | RunState::Launching | RunState::Running | RunState::Restarting => {
                "not all ranks have joined yet".to_owned()
            }
        };
        Some(format!("{word}: {why}"))
    }

    /// Draws the line, over the footer. Pages have one, from 60 x 16 on.
    pub fn paint(&self, frame: &mut Frame) {
        let Rect { width, height, .. } = frame.area();
        if width >= 60 && height >= 16 {
            paint_bar(frame, &line(usize::from(width)));
        }
    }
}

/// Its keys before those that every page has: all of them, closer where it is narrow; else as many as fit.
fn line(cells: usize) -> String {
    let roomy = form(cells, "  ", "1-7 pages  ? help  q quit ");
    let close = form(cells, " ", "? help q quit ");
    if roomy.0 == KEYS.len() { roomy.1 } else { close.1 }
}

/// How many keys stand in a line, and the line.
fn form(cells: usize, gap: &str, general: &str) -> (usize, String) {
    let mut keys = String::from(" DEMO");
    let mut count = 0;
    for (key, word, ..) in KEYS {
        let more = format!("{gap}F{key} {word}");
        if keys.len() + more.len() + 1 + general.len() > cells {
            break;
        }
        keys += &more;
        count += 1;
    }
    let space = cells.saturating_sub(keys.len() + general.len());
    (count, format!("{keys}{}{general}", " ".repeat(space)))
}

/// Paints a line over the last one of the screen.
fn paint_bar(frame: &mut Frame, text: &str) {
    let area = frame.area();
    if area.height == 0 {
        return;
    }
    let row = Rect { y: area.bottom() - 1, height: 1, ..area };
    let width = usize::from(area.width);
    let line = Line::styled(format!("{text:width$}"), Style::default().add_modifier(Modifier::REVERSED));
    frame.render_widget(line, row);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_and_quit_stand_at_every_width() {
        for cells in 60..200 {
            let line = line(cells);
            assert_eq!(line.len(), cells);
            assert!(line.starts_with(" DEMO ") && line.contains("F2 freeze "), "{line}");
            assert!(line.ends_with(" q quit "), "{line}");
            assert!(cells < 80 || line.contains(" F7 hang env "), "{line}");
        }
        assert!(line(120).contains("1-7 pages"));
    }
}
