//! The key bar of `rankdeck demo`: each key injects a fault.
//!
//! Owner: the driver. The screen does not use function keys.

use crossterm::event::{Event as TermEvent, KeyCode, KeyEventKind};
use rankdeck_core::model::RunState;
use rankdeck_link::simulator::{FaultInjector, FaultKind};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use std::time::Duration;

/// Key, label, fault, and its duration in seconds.
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
pub(crate) struct Demo {
    trouble: FaultInjector,
}

impl Demo {
    /// Keys that inject faults there.
    pub(crate) fn new(trouble: FaultInjector) -> Demo {
        Demo { trouble }
    }

    /// Returns `None` for other keys, else the text to show if the key had no effect. `restart`: the key that
    /// restarts the run.
    pub(crate) fn handle_input(&self, input: &TermEvent, state: RunState, restart: &str) -> Option<String> {
        let TermEvent::Key(key) = input else { return None };
        let KeyCode::F(number) = key.code else { return None };
        let (_, word, kind, lasts) = KEYS.iter().find(|(key, ..)| *key == number)?;
        if key.kind != KeyEventKind::Press {
            return Some(String::new());
        }
        let why = match state {
            RunState::Over => format!("the run has ended; {restart} restarts it"),
            RunState::Draining => "the run is stopping".to_owned(),
            RunState::Connecting | RunState::Launching | RunState::Running | RunState::Restarting
                if self.trouble.start(*kind, lasts.map(Duration::from_secs)) =>
            {
                return Some(String::new());
            }
            RunState::Connecting | RunState::Launching | RunState::Running | RunState::Restarting => {
                "not all ranks have joined yet".to_owned()
            }
        };
        Some(format!("{word}: {why}"))
    }

    /// Draws the bar over the footer. Pages have a footer from 60 x 16 on.
    pub(crate) fn paint(&self, frame: &mut Frame) {
        let Rect { width, height, .. } = frame.area();
        if width >= 60 && height >= 16 {
            paint_bar(frame, &line(usize::from(width)));
        }
    }
}

/// The fault keys, then the general keys; tighter on narrow screens, and as many as fit.
fn line(cells: usize) -> String {
    let roomy = form(cells, "  ", "1-7 pages  ? help  q quit ");
    let close = form(cells, " ", "? help q quit ");
    if roomy.0 == KEYS.len() { roomy.1 } else { close.1 }
}

/// Returns the number of keys that fit, and the bar.
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

/// Draws a line over the last row.
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
    fn demo_bar_shows_help_and_quit_at_every_width() {
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
