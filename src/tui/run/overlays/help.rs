//! The help overlay: all key bindings and the terms of the screen, filterable; Enter runs.

use crate::run::action::Request;
use crate::run::keys::TABLE;
use crate::run::ranks;
use crate::run::{Cx, DrawCtx, Handled, RunScreen, Target, ViewState};
use crossterm::event::{KeyCode, KeyEvent};
use rankdeck_core::model::Model;
use rankdeck_kit::help::{HelpEntry, HelpPage, draw};
use rankdeck_kit::keys::{Binding, name};
use rankdeck_kit::list::Move;
use rankdeck_kit::overlay::wheel_as_arrows;
use rankdeck_kit::{Component, Glyphs, Role, input, text};
use ratatui::buffer::Buffer;

/// What is typed and selected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunHelp {
    /// What was typed.
    pub filter: String,
    /// Index into the entries that match: bindings, then terms.
    pub selected: usize,
}

impl RunHelp {
    /// Bindings that match. Key names are matched in one spelling, whatever the arrows of the theme.
    fn bindings(&self, view: &ViewState) -> Vec<&'static Binding<RunScreen>> {
        TABLE.help(&self.filter, view.pane(), &view.steering.keymap, Glyphs::Ascii)
    }
}

impl Component<RunScreen> for RunHelp {
    fn on_key(&mut self, model: &Model, key: KeyEvent, cx: &mut Cx<'_>) -> Handled {
        let entries = self.bindings(cx.state);
        let len = entries.len() + matching_terms(&self.filter).len();
        if let Some(to) = Move::of_key(key, false) {
            self.selected = to.apply(self.selected, len);
            return Handled::Done;
        }
        match key.code {
            KeyCode::Esc => return Handled::Close,
            KeyCode::Char('?') if self.filter.is_empty() => return Handled::Close,
            KeyCode::Enter => {
                // A term does nothing.
                let Some(binding) = entries.get(self.selected.min(len.saturating_sub(1))) else {
                    return Handled::Done;
                };
                let reason = match (binding.disabled)(model, cx.state) {
                    Some(reason) => reason.to_owned(),
                    None if binding.applies_in(cx.state.pane()) => {
                        return Handled::CloseWith(vec![Request::Command(binding.command)]);
                    }
                    None => format!("only in {}", binding.scope_name()),
                };
                cx.state.toast(format!("{}: {reason}", binding.short), Role::Warn, cx.now);
            }
            _ => {
                if input::edit(&mut self.filter, key) {
                    self.selected = 0;
                }
            }
        }
        Handled::Done
    }

    fn on_click(&mut self, model: &Model, target: &Target, cx: &mut Cx<'_>) -> Handled {
        let Target::Row(row) = target else { return Handled::Ignored };
        self.selected = *row;
        self.on_key(model, KeyEvent::from(KeyCode::Enter), cx)
    }

    fn on_wheel(&mut self, model: &Model, rows: isize, cx: &mut Cx<'_>) -> Handled {
        wheel_as_arrows(self, model, rows, cx)
    }

    fn input(&mut self) -> Option<&mut String> {
        Some(&mut self.filter)
    }

    fn draw(&self, model: &Model, view: &ViewState, cx: &DrawCtx<'_>, buf: &mut Buffer) {
        let keys = |binding: &'static Binding<RunScreen>| {
            let keys = TABLE.keys(binding, &view.steering.keymap).iter();
            keys.map(|key| name(*key, cx.glyphs())).collect::<Vec<_>>().join(" ")
        };
        let entries: Vec<HelpEntry> = self
            .bindings(view)
            .into_iter()
            .map(|binding| HelpEntry {
                scope: binding.scope_name(),
                keys: keys(binding),
                long: binding.long,
                disabled: (binding.disabled)(model, view),
            })
            .collect();
        let not_equal = cx.glyphs().pick("≠", "!=");
        let found: Vec<(&str, String)> = matching_terms(&self.filter)
            .into_iter()
            .map(|(term, meaning)| (term, meaning.replace('≠', not_equal)))
            .collect();
        let selected = self.selected.min((entries.len() + found.len()).saturating_sub(1));
        let page =
            HelpPage { filter: &self.filter, selected, entries: &entries, terms: &found, legend: &letters };
        draw(cx, buf, &page);
    }

    fn hint(&self, _: &Model, _: &ViewState, _: &DrawCtx<'_>) -> String {
        "type to filter   up/down move   enter runs   esc closes".into()
    }

    fn closes_on_click_beside(&self) -> bool {
        true
    }
}

/// The meaning of the letters of rank states; a letter stays with its word.
fn letters(cells: usize) -> Vec<String> {
    let mut lines = vec!["states:".to_owned()];
    for pair in ranks::LETTERS.split("  ") {
        match lines.last_mut() {
            Some(line) if text::width(line) + 2 + text::width(pair) <= cells => {
                line.push_str(if line.ends_with(':') { " " } else { "  " });
                line.push_str(pair);
            }
            _ => lines.push(pair.to_owned()),
        }
    }
    lines
}

/// A term as the screen has it, and its meaning.
type GlossaryEntry = (&'static str, &'static str);

/// In the order of the pages.
#[rustfmt::skip]
const TERMS: &[GlossaryEntry] = &[
    ("env_step", "environment steps over all ranks; skipped frames do not count"),
    ("samples", "transitions available for training"),
    ("collecting", "seconds spent in environments, summed over ranks; not the time since the launch"),
    ("all-reduced", "agreed on by all ranks in a collective"),
    ("sum of ranks", "sum of the ranks' own counters; = equal to the all-reduced total, ≠ different"),
    ("mean return", "of the last 100 training episodes of all ranks; RETURN in lists of runs"),
    ("episode return", "of the training episodes of the last iterations"),
    ("eval", "mean return of rank 0's last evaluation"),
    ("weights equal", "number of comparisons of all ranks' weights, none of which found a difference"),
    ("steps/s", "of all ranks over the last iterations; in the rank table, of one rank"),
    ("ETA", "time to run.total_steps at this speed"),
    ("stalled", "no progress on any reachable rank for this long"),
    ("silent", "no message from the rank's host for this long: its state is unknown"),
    ("gen", "generation: how often the worker group was restarted"),
    ("adopted", "launched by another console"),
    ("drops", "data lost (red), or not sent because this console was too slow (gray)"),
    ("GPU% CPU%", "use of the rank's GPU, or of one core"),
    ("MEM", "memory on the rank's GPU, or RAM"),
    ("PHASE", "as reported by the program: rollout, learn, eval, checkpoint, ..."),
    ("COLLECTIVE", "number of the rank's latest collective; its name and time while the rank is in it"),
    ("wait share", "share of an iteration spent waiting for others in collectives"),
    ("evaluation", "episodes without exploration on rank 0, for the curve and the best checkpoint"),
    ("culprit", "in evidence: the rank that blocks the others, shown as waiting"),
    ("warning", "worth knowing, no action needed"),
    ("critical", "act now"),
];

/// The terms that contain what was typed, or whose meaning does.
fn matching_terms(typed: &str) -> Vec<GlossaryEntry> {
    let needle = typed.to_lowercase();
    let has = |text: &str| text.to_lowercase().contains(&needle);
    TERMS.iter().copied().filter(|(term, meaning)| has(term) || has(meaning)).collect()
}
