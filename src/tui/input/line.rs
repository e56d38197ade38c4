//! Lines that are typed or pasted: filters, and those of overlays.

use crate::keys::with_ctrl;
use crate::state::{INPUT_LIMIT, Overlay, Pane, ViewState};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::link_state::Prompt;

/// The filter line that is being typed.
fn filter_line(view: &mut ViewState) -> Option<&mut String> {
    match view.editing {
        Some(Pane::Log) => Some(&mut view.log.filter),
        Some(Pane::Events) => Some(&mut view.events.filter),
        Some(Pane::Charts) => Some(&mut view.series.filter),
        Some(_) => Some(&mut view.ranks.filter),
        None => None,
    }
}

pub(super) fn edit_filter(view: &mut ViewState, key: KeyEvent, with: KeyModifiers) {
    match key.code {
        KeyCode::Enter => view.editing = None,
        KeyCode::Esc => {
            (view.log.whole, view.log.hit) = (false, None);
            if let Some(line) = filter_line(view) {
                line.clear();
            }
            view.editing = None;
        }
        _ => {
            if let Some(line) = filter_line(view) {
                edit(line, key, with);
            }
            (view.log.at, view.events.selected) = (None, None);
        }
    }
}

/// One key on an input line; true when it changed the line.
pub(super) fn edit(line: &mut String, key: KeyEvent, with: KeyModifiers) -> bool {
    let before = line.len();
    match key.code {
        KeyCode::Char('u') if with_ctrl(key) => line.clear(),
        KeyCode::Char('w') if with_ctrl(key) => {
            let end = line.trim_end().rfind(' ').map_or(0, |at| at + 1);
            line.truncate(end);
        }
        KeyCode::Char('h') if with_ctrl(key) => {
            line.pop();
        }
        KeyCode::Char(c)
            if !with_ctrl(key) && !with.contains(KeyModifiers::ALT) && line.len() < INPUT_LIMIT =>
        {
            line.push(c);
        }
        KeyCode::Backspace => {
            line.pop();
        }
        _ => {}
    }
    line.len() != before
}

/// Text was pasted: it goes to the input line that is open, without control characters; elsewhere it is
/// ignored, since pasted text is no command.
pub fn on_paste(view: &mut ViewState, text: &str, now: Timestamp) {
    view.expire(now);
    let line = match view.overlays.last_mut() {
        Some(Overlay::Help { filter, .. }) => Some(filter),
        Some(Overlay::Palette(typing)) => Some(&mut typing.line),
        Some(Overlay::Restart(draft)) => Some(&mut draft.line),
        Some(Overlay::Time { input }) => Some(input),
        Some(Overlay::Ask(ask)) if !matches!(ask.prompt, Prompt::UnknownHostKey { .. }) => {
            Some(&mut ask.input)
        }
        Some(_) => None,
        None => filter_line(view),
    };
    if let Some(line) = line {
        // A pasted line often ends in a newline; only the first line is meant.
        for c in text.lines().next().unwrap_or_default().chars().filter(|c| !c.is_control()) {
            if line.len() < INPUT_LIMIT {
                line.push(c);
            }
        }
    }
}
