//! The palette: a line that is typed, completed, with a history. [`crate::run::palette`] runs it.

use crate::run::action::Request;
use crate::run::geometry::Pane;
use crate::run::keys::TABLE;
use crate::run::restart_draft::RestartDraft;
use crate::run::words::{self, Verb};
use crate::run::{Cx, DrawCtx, Handled, RunScreen, Target, ViewState, processes};
use crossterm::event::{KeyCode, KeyEvent};
use rankdeck_core::model::Model;
use rankdeck_core::origin::{LATEST, SCRATCH};
use rankdeck_kit::{Component, Keep, Role, input, put, text};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

/// Most completions shown.
const SHOWN: usize = 8;

/// A line that is typed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Palette {
    /// What was typed so far.
    pub line: String,
    /// Index of the line of the history that it was taken from.
    pub recalled: Option<usize>,
    /// What it may become, as of the latest key or layout.
    suggestions: Vec<Suggestion>,
}

impl Palette {
    /// A line that starts with this text.
    pub fn new(line: impl Into<String>) -> Palette {
        Palette { line: line.into(), ..Palette::default() }
    }
}

impl Component<RunScreen> for Palette {
    fn on_key(&mut self, model: &Model, key: KeyEvent, cx: &mut Cx<'_>) -> Handled {
        match key.code {
            KeyCode::Esc => return Handled::Close,
            KeyCode::Enter => return Handled::CloseWith(vec![Request::Line(self.line.clone())]),
            KeyCode::Tab => self.line = complete(cx.state.shown(model), cx.state, &self.line),
            KeyCode::Up | KeyCode::Down => {
                let typed = &cx.state.typed;
                self.recalled = recall(typed.len(), self.recalled, key.code == KeyCode::Up);
                self.line = self.recalled.and_then(|at| typed.get(at)).cloned().unwrap_or_default();
            }
            KeyCode::Backspace if self.line.is_empty() => return Handled::Close,
            _ => {
                if input::edit(&mut self.line, key) {
                    self.recalled = None;
                }
            }
        }
        self.suggestions = suggestions(cx.state.shown(model), cx.state, &self.line);
        Handled::Done
    }

    fn on_click(&mut self, model: &Model, target: &Target, cx: &mut Cx<'_>) -> Handled {
        let Target::Row(row) = target else { return Handled::Ignored };
        let Some(chosen) = self.suggestions.get(*row).map(|suggestion| suggestion.line.clone()) else {
            return Handled::Ignored;
        };
        if chosen.trim() == self.line.trim() {
            return self.on_key(model, KeyEvent::from(KeyCode::Enter), cx);
        }
        *self = Palette::new(chosen);
        self.suggestions = suggestions(cx.state.shown(model), cx.state, &self.line);
        Handled::Done
    }

    fn input(&mut self) -> Option<&mut String> {
        Some(&mut self.line)
    }

    fn settle(&mut self, model: &Model, view: &ViewState, _: Rect) -> Keep {
        self.suggestions = suggestions(view.shown(model), view, &self.line);
        Keep::Yes
    }

    fn draw(&self, _: &Model, _: &ViewState, cx: &DrawCtx<'_>, buf: &mut Buffer) {
        let glyphs = cx.glyphs();
        let cells = usize::from(cx.screen.width.saturating_sub(6)).min(90);
        let title = "command";
        let keys = "tab completes, enter runs, up and down: history, esc closes";
        let inner = cx.popup(buf, (cells as u16, SHOWN as u16 + 2), Role::Accent, title, keys);
        let line = vec![cx.s(":", Role::Accent), cx.s(self.line.clone(), Role::Strong), cx.caret()];
        put(buf, inner, 0, Line::from(line));
        if self.suggestions.is_empty() && !self.line.contains(' ') {
            put(buf, inner, 1, Line::from(cx.s("no match", Role::Dim)));
        }
        let more = self.suggestions.len().saturating_sub(SHOWN);
        let wide = cells.saturating_sub(2);
        let usage = |suggestion: &Suggestion| {
            let gap = if suggestion.arguments.is_empty() { "" } else { " " };
            text::width(&suggestion.line) + gap.len() + text::width(suggestion.arguments)
        };
        let visible = || self.suggestions.iter().take(SHOWN);
        let longest = visible().map(usage).max().unwrap_or(0).min(wide);
        for (row, suggestion) in visible().enumerate() {
            let name = cx.cut(&suggestion.line, wide);
            let remaining = longest.saturating_sub(text::width(&name));
            let arguments = format!(" {}", suggestion.arguments);
            let room = wide.saturating_sub(longest + 2);
            let spans = vec![
                cx.s(name, Role::Accent),
                cx.s(text::left(&arguments, remaining, glyphs), Role::Dim),
                cx.s("  ", Role::Dim),
                cx.s(cx.cut(suggestion.about, room), Role::Text),
            ];
            let below = Rect { y: inner.y + row as u16 + 1, height: 1, ..inner };
            cx.target(below.intersection(inner), Target::Row(row));
            put(buf, inner, row + 1, Line::from(spans));
        }
        if more > 0 {
            put(buf, inner, SHOWN + 1, Line::from(cx.s(format!("{more} more"), Role::Dim)));
        }
    }

    fn hint(&self, _: &Model, _: &ViewState, _: &DrawCtx<'_>) -> String {
        "tab completes   enter runs   esc closes".into()
    }
}

/// A suggestion below the typed line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Suggestion {
    /// The completed line.
    line: String,
    /// Its arguments.
    arguments: &'static str,
    /// What it does.
    about: &'static str,
}

/// Suggestions for the typed line.
fn suggestions(model: &Model, view: &ViewState, typed: &str) -> Vec<Suggestion> {
    let typed = typed.trim_start();
    if let Some((name, rest)) = typed.split_once(' ') {
        let Some(word) = words::on_screen(name) else { return Vec::new() };
        let (before, last) = rest.rsplit_once(' ').map_or(("", rest), |(before, last)| (before, last));
        let before = if before.is_empty() { String::new() } else { format!("{before} ") };
        let matching = completions(word.verb, model, view).into_iter().filter(|full| full.starts_with(last));
        return matching
            .map(|full| Suggestion { line: format!("{name} {before}{full}"), arguments: "", about: "" })
            .collect();
    }
    let words = words::of_screen().map(|(word, (arguments, about))| Suggestion {
        line: word.name.to_string(),
        arguments,
        about,
    });
    let commands = TABLE
        .iter()
        .filter(|binding| words::on_screen(binding.short).is_none() && binding.applies_in(view.pane()))
        .map(|binding| Suggestion { line: binding.short.into(), arguments: "", about: binding.long });
    words.chain(commands).filter(|suggestion| suggestion.line.starts_with(typed)).collect()
}

/// Completes the typed line as far as all suggestions agree.
fn complete(model: &Model, view: &ViewState, typed: &str) -> String {
    let all = suggestions(model, view, typed);
    let takes_more = |line: &str| {
        words::of_screen().any(|(word, (arguments, _))| word.name == line && !arguments.is_empty())
    };
    let whole = |line: &str| if takes_more(line) { format!("{line} ") } else { line.to_string() };
    match all.as_slice() {
        [] => typed.to_string(),
        [one] => whole(&one.line),
        [first, rest @ ..] => {
            let mut end = first.line.len();
            for other in rest {
                let same = first.line.char_indices().zip(other.line.chars());
                let differs = same.into_iter().find(|((_, a), b)| a != b).map(|((at, _), _)| at);
                end = end.min(differs.unwrap_or(other.line.len().min(first.line.len())));
            }
            first.line.get(..end).filter(|common| common.len() >= typed.len()).unwrap_or(typed).to_string()
        }
    }
}

/// What completes the arguments of a command.
fn completions(verb: Verb, model: &Model, view: &ViewState) -> Vec<String> {
    let named = |names: &[&str]| -> Vec<String> { names.iter().map(|name| (*name).to_string()).collect() };
    match verb {
        Verb::Rank => model.ranks.iter().map(|rank| rank.rank.to_string()).collect(),
        Verb::Host => model.hosts.iter().map(|host| host.name.clone()).collect(),
        Verb::Env => processes::processes(model),
        Verb::Signal => processes::names(model),
        Verb::Panes => view.sizes.words(),
        Verb::Compare => view.steering.recorded.clone(),
        Verb::Media => model.gallery.names().map(|(name, _)| name.clone()).collect(),
        Verb::Time => named(&["now"]),
        Verb::Theme => named(&["auto", "dark", "light", "mono", "cvd"]),
        Verb::Glyphs => named(&["auto", "braille", "block", "ascii"]),
        Verb::Set => {
            RestartDraft::default().suggestions().into_iter().map(|(path, _)| format!("{path}=")).collect()
        }
        Verb::Restart => checkpoints(model),
        _ => Pane::ALL
            .into_iter()
            .find_map(|pane| view.page(pane).completions(verb, model))
            .unwrap_or_default(),
    }
}

fn checkpoints(model: &Model) -> Vec<String> {
    let kept = model.checkpoints.iter().rev().take(20).map(|checkpoint| checkpoint.path.clone());
    [LATEST, "best", SCRATCH].map(str::to_owned).into_iter().chain(kept).collect()
}

/// An older or newer line of a history of `len` lines than the one at `at`; `None` is the line that is being
/// typed.
fn recall(len: usize, at: Option<usize>, older: bool) -> Option<usize> {
    let last = len.checked_sub(1)?;
    match (at, older) {
        (None, true) => Some(last),
        (Some(at), true) => Some(at.saturating_sub(1)),
        (Some(at), false) if at < last => Some(at + 1),
        (Some(_) | None, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn palette_lines_are_completed_while_unambiguous() {
        let (model, view) = (Model::default(), ViewState::new());
        let complete = |typed| complete(&model, &view, typed);
        assert_eq!(complete("the"), "theme ");
        assert_eq!(complete("theme l"), "theme light");
        assert_eq!(complete("sort ste"), "sort steps/s");
        assert_eq!(complete("s"), "s", "several begin so");
        assert_eq!(complete("cols +rank -po"), "cols +rank -power");
        assert_eq!(complete("nonsense"), "nonsense");
    }

    #[test]
    fn palette_history_recalls_older_and_newer_lines() {
        assert_eq!(recall(50, None, true), Some(49));
        assert_eq!(recall(50, Some(49), false), None);
        assert_eq!(recall(50, Some(0), true), Some(0));
        assert_eq!(recall(0, None, true), None);
    }
}
