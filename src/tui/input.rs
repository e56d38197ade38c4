//! From keys, mouse and pastes to actions. Overlays come first, then the filter line, then the table of keys.

use crate::commands;
use crate::confirm;
use crate::keys;
use crate::keys::{Chord, Command};
use crate::overlays;
use crate::panes;
use crate::ranks;
use crate::state::{Action, Ask, Confirm, INPUT_LIMIT, LogScope, Overlay, Pane, Tab, ViewState};
use crate::theme::{Glyphs, Role};
use crossterm::event::{
    KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use rankdeck_core::event::Event;
use rankdeck_core::model::{Model, RunState};
use rankdeck_proto::message::StopMode;
use rankdeck_types::ids::Timestamp;
use rankdeck_types::link_state::Prompt;
use ratatui::layout::Position;
use std::collections::BTreeSet;

/// A key was pressed.
pub fn on_key(model: &Model, view: &mut ViewState, key: KeyEvent, now: Timestamp) -> Vec<Action> {
    if key.kind == KeyEventKind::Release {
        return Vec::new();
    }
    view.expire(now);
    let chord = Chord::of(key);
    if chord.ctrl && chord.code == KeyCode::Char('c') {
        return interrupt(model, view, now);
    }
    view.interrupts = 0;
    if chord.ctrl && matches!(chord.code, KeyCode::Char('z' | 'l' | 's')) {
        return command(model, view, chord, now);
    }
    match view.overlay().cloned() {
        Some(Overlay::Confirm(confirm)) => answer_confirm(view, confirm, chord),
        Some(Overlay::Ask(ask)) => answer_ask(view, ask, chord, key.modifiers, now),
        Some(Overlay::Help { filter, selected }) => {
            in_help(model, view, filter, selected, chord, key.modifiers, now)
        }
        Some(Overlay::Hosts { changed, selected }) => in_hosts(model, view, changed, selected, chord, now),
        Some(Overlay::Inspect { .. } | Overlay::Evidence { .. }) => in_card(model, view, chord, now),
        None if view.editing.is_some() => {
            edit_filter(view, chord, key.modifiers);
            Vec::new()
        }
        None => command(model, view, chord, now),
    }
}

/// Ctrl-c: first as `q`, then a clean stop, then leave at once.
fn interrupt(model: &Model, view: &mut ViewState, now: Timestamp) -> Vec<Action> {
    if !keys::runs(model) {
        return vec![Action::leave()];
    }
    view.interrupts = view.interrupts.saturating_add(1);
    match view.interrupts {
        1 => {
            view.open(Overlay::Confirm(confirm::quit(model)));
            view.toast("ctrl-c again stops the run cleanly", Role::Warn, now);
            Vec::new()
        }
        2 => {
            view.overlays.retain(|overlay| !matches!(overlay, Overlay::Confirm(_)));
            view.toast("stopping cleanly; ctrl-c again leaves at once", Role::Warn, now);
            vec![Action::stop(StopMode::Clean)]
        }
        _ => vec![Action::leave()],
    }
}

fn command(model: &Model, view: &mut ViewState, chord: Chord, now: Timestamp) -> Vec<Action> {
    let Some(binding) = keys::find(view, chord) else { return Vec::new() };
    match (binding.disabled)(model, view) {
        Some(reason) => {
            view.toast(format!("{}: {reason}", binding.short), Role::Warn, now);
            Vec::new()
        }
        None => commands::perform(model, view, binding.command, now),
    }
}

fn answer_confirm(view: &mut ViewState, mut confirm: Confirm, chord: Chord) -> Vec<Action> {
    let last = confirm.choices.len().saturating_sub(1);
    let picked = match chord.code {
        KeyCode::Enter => Some(confirm.selected),
        KeyCode::Esc => Some(0),
        KeyCode::Char(key) if !chord.ctrl => confirm.choices.iter().position(|choice| choice.key == key),
        _ => None,
    };
    if let Some(index) = picked {
        view.overlays.pop();
        return confirm.choices.get(index).and_then(|choice| choice.action.clone()).into_iter().collect();
    }
    confirm.selected = match chord.code {
        KeyCode::Left | KeyCode::Up | KeyCode::BackTab => confirm.selected.saturating_sub(1),
        KeyCode::Right | KeyCode::Down | KeyCode::Tab => (confirm.selected + 1).min(last),
        _ => confirm.selected,
    };
    view.open(Overlay::Confirm(confirm));
    Vec::new()
}

fn answer_ask(
    view: &mut ViewState,
    mut ask: Ask,
    chord: Chord,
    with: KeyModifiers,
    now: Timestamp,
) -> Vec<Action> {
    let host_key = matches!(ask.prompt, Prompt::UnknownHostKey { .. });
    let answer = match (host_key, chord.code) {
        (_, KeyCode::Esc) => Some(None),
        (true, KeyCode::Char('y' | 'Y')) if !chord.ctrl => Some(Some("yes".to_string())),
        (true, KeyCode::Char('n' | 'N')) if !chord.ctrl => Some(None),
        (true, KeyCode::Enter) => Some(ask.yes.then(|| "yes".to_string())),
        (
            true,
            KeyCode::Left | KeyCode::Right | KeyCode::Up | KeyCode::Down | KeyCode::Tab | KeyCode::BackTab,
        ) => {
            ask.yes = !ask.yes;
            None
        }
        (false, KeyCode::Enter) => Some(Some(std::mem::take(&mut ask.input))),
        (false, _) => {
            edit(&mut ask.input, chord, with);
            None
        }
        (true, _) => None,
    };
    match answer {
        Some(answer) => {
            view.overlays.pop();
            if answer.is_none() {
                view.toast("refused: this host will not be used", Role::Warn, now);
            }
            let node = ask.node;
            view.answered.retain(|(other, _)| *other != node);
            view.answered.push((node, ask.prompt));
            vec![Action::Tell(Event::PromptAnswered { node, answer })]
        }
        None => {
            view.open(Overlay::Ask(ask));
            Vec::new()
        }
    }
}

fn in_help(
    model: &Model,
    view: &mut ViewState,
    mut filter: String,
    mut selected: usize,
    chord: Chord,
    with: KeyModifiers,
    now: Timestamp,
) -> Vec<Action> {
    // Key names in the filter are matched in one spelling, whatever the theme's arrows look like.
    let entries = keys::help(view, &filter, Glyphs::Ascii);
    let last = entries.len().saturating_sub(1);
    match chord.code {
        KeyCode::Esc => {
            view.overlays.pop();
            return Vec::new();
        }
        KeyCode::Enter => {
            let Some(binding) = entries.get(selected.min(last)) else { return Vec::new() };
            if let Some(reason) = (binding.disabled)(model, view) {
                view.toast(format!("{}: {reason}", binding.short), Role::Warn, now);
                return Vec::new();
            }
            if !keys::in_scope(binding, view) {
                view.toast(format!("{}: only in {}", binding.short, binding.scope.name()), Role::Warn, now);
                return Vec::new();
            }
            view.overlays.pop();
            return commands::perform(model, view, binding.command, now);
        }
        KeyCode::Up => selected = selected.min(last).saturating_sub(1),
        KeyCode::Down => selected = (selected + 1).min(last),
        KeyCode::PageUp => selected = selected.min(last).saturating_sub(8),
        KeyCode::PageDown => selected = (selected + 8).min(last),
        KeyCode::Home => selected = 0,
        KeyCode::End => selected = last,
        KeyCode::Char('?') if filter.is_empty() => {
            view.overlays.pop();
            return Vec::new();
        }
        _ => {
            if edit(&mut filter, chord, with) {
                selected = 0;
            }
        }
    }
    view.open(Overlay::Help { filter, selected });
    Vec::new()
}

fn in_hosts(
    model: &Model,
    view: &mut ViewState,
    mut changed: BTreeSet<String>,
    mut selected: usize,
    chord: Chord,
    now: Timestamp,
) -> Vec<Action> {
    let rows = overlays::hosts::rows(model, view);
    let last = rows.len().saturating_sub(1);
    match chord.code {
        KeyCode::Esc | KeyCode::Char('q' | 'H') => {
            view.overlays.pop();
            return Vec::new();
        }
        KeyCode::Enter => {
            return match overlays::hosts::order(model, view, &changed) {
                Ok(action) => {
                    view.overlays.pop();
                    vec![action]
                }
                Err(why) => {
                    view.toast(why, Role::Warn, now);
                    Vec::new()
                }
            };
        }
        KeyCode::Char(' ' | 'x') => {
            if let Some(row) = rows.get(selected)
                && !changed.remove(&row.name)
            {
                changed.insert(row.name.clone());
            }
        }
        KeyCode::Up | KeyCode::Char('k') => selected = selected.min(last).saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => selected = (selected + 1).min(last),
        KeyCode::Home | KeyCode::Char('g') => selected = 0,
        KeyCode::End | KeyCode::Char('G') => selected = last,
        _ => {}
    }
    view.open(Overlay::Hosts { changed, selected });
    Vec::new()
}

/// Keys while a card (inspector, evidence) is open: it scrolls, closes, and stop, kill, restart and quit
/// still work.
fn in_card(model: &Model, view: &mut ViewState, chord: Chord, now: Timestamp) -> Vec<Action> {
    let Some(command) = keys::find(view, chord).map(|binding| binding.command) else { return Vec::new() };
    let inspecting = match view.overlay() {
        Some(Overlay::Inspect { rank, .. }) => Some(*rank),
        _ => None,
    };
    match command {
        Command::Back | Command::Inspect => {
            view.overlays.pop();
        }
        Command::Move(rows) => overlays::scroll(view, i64::from(rows)),
        Command::Page(pages) => overlays::scroll(view, i64::from(pages) * 10),
        Command::First => overlays::scroll(view, i64::MIN),
        Command::Last => overlays::scroll(view, i64::from(i32::MAX)),
        Command::Explain => match inspecting {
            Some(rank) => match ranks::verdict_of(model, rank) {
                Some(verdict) => {
                    let about = ranks::verdict_id(verdict);
                    view.open(Overlay::Evidence { about, top: 0 });
                }
                None => {
                    view.toast(format!("why: the watch has nothing against rank {rank}"), Role::Warn, now)
                }
            },
            None => overlays::evidence::next(model, view),
        },
        Command::NextTrouble | Command::NextPane if inspecting.is_none() => {
            overlays::evidence::next(model, view)
        }
        Command::OtherRank(step) => commands::other_rank(model, view, step),
        Command::NextPane => commands::other_rank(model, view, 1),
        Command::PreviousPane => commands::other_rank(model, view, -1),
        Command::RankLog => {
            view.overlays.clear();
            return commands::perform(model, view, Command::RankLog, now);
        }
        Command::Quit
        | Command::Stop
        | Command::Kill
        | Command::Detach
        | Command::Restart
        | Command::PickHosts
        | Command::Help
        | Command::Copy => {
            return self::command(model, view, chord, now);
        }
        Command::Go(_) => {
            view.overlays.clear();
            return commands::perform(model, view, command, now);
        }
        _ => {}
    }
    Vec::new()
}

/// The filter line that is being typed.
fn filter_line(view: &mut ViewState) -> Option<&mut String> {
    match view.editing {
        Some(Pane::Log) => Some(&mut view.log_filter),
        Some(_) => Some(&mut view.rank_filter),
        None => None,
    }
}

fn edit_filter(view: &mut ViewState, chord: Chord, with: KeyModifiers) {
    match chord.code {
        KeyCode::Enter => view.editing = None,
        KeyCode::Esc => {
            if let Some(line) = filter_line(view) {
                line.clear();
            }
            view.editing = None;
        }
        _ => {
            if let Some(line) = filter_line(view) {
                edit(line, chord, with);
            }
            view.log_at = None;
        }
    }
}

/// One key on an input line; true when it changed the line.
fn edit(line: &mut String, chord: Chord, with: KeyModifiers) -> bool {
    let before = line.len();
    match chord.code {
        KeyCode::Char('u') if chord.ctrl => line.clear(),
        KeyCode::Char('w') if chord.ctrl => {
            let end = line.trim_end().rfind(' ').map_or(0, |at| at + 1);
            line.truncate(end);
        }
        KeyCode::Char('h') if chord.ctrl => {
            line.pop();
        }
        KeyCode::Char(c) if !chord.ctrl && !with.contains(KeyModifiers::ALT) && line.len() < INPUT_LIMIT => {
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

/// The mouse did something.
pub fn on_mouse(model: &Model, view: &mut ViewState, mouse: MouseEvent, now: Timestamp) -> Vec<Action> {
    view.expire(now);
    let at = Position { x: mouse.column, y: mouse.row };
    match mouse.kind {
        MouseEventKind::ScrollDown => wheel(model, view, at, 3),
        MouseEventKind::ScrollUp => wheel(model, view, at, -3),
        MouseEventKind::Down(MouseButton::Left) if view.overlays.is_empty() => {
            return click(model, view, at, now);
        }
        _ => {}
    }
    Vec::new()
}

fn pane_at(view: &ViewState, at: Position) -> Option<Pane> {
    let geo = &view.geometry;
    [
        (Pane::Ranks, geo.ranks),
        (Pane::Charts, geo.charts),
        (Pane::Evals, geo.evals),
        (Pane::Log, geo.log),
        (Pane::Hosts, geo.hosts),
        (Pane::Events, geo.events),
    ]
    .into_iter()
    .find(|(_, area)| area.contains(at))
    .map(|(pane, _)| pane)
}

fn wheel(model: &Model, view: &mut ViewState, at: Position, rows: i64) {
    match view.overlay().cloned() {
        Some(Overlay::Inspect { .. } | Overlay::Evidence { .. }) => overlays::scroll(view, rows),
        Some(Overlay::Help { filter, selected }) => {
            let last = keys::help(view, &filter, Glyphs::Ascii).len().saturating_sub(1);
            let selected = selected.saturating_add_signed(rows as isize).min(last);
            view.open(Overlay::Help { filter, selected });
        }
        Some(_) => {}
        None => {
            if let Some(pane) = pane_at(view, at) {
                commands::scroll(model, view, pane, rows);
            }
        }
    }
}

fn click(model: &Model, view: &mut ViewState, at: Position, now: Timestamp) -> Vec<Action> {
    if let Some(tab) = panes::header::tab_at(view, at) {
        return commands::perform(model, view, Command::Go(tab), now);
    }
    if view.geometry.status.contains(at) && !model.verdicts.is_empty() && model.run.state != RunState::Over {
        return commands::perform(model, view, Command::Explain, now);
    }
    if let Some(chosen) = panes::footer::command_at(model, view, at) {
        return commands::perform(model, view, chosen, now);
    }
    let Some(pane) = pane_at(view, at) else { return Vec::new() };
    if view.tab == Tab::Overview {
        view.focus = pane;
    }
    let frozen = view.frozen.take();
    let shown = frozen.as_ref().map_or(model, |frozen| &frozen.model);
    let rank = match pane {
        Pane::Ranks => panes::ranks::rank_at(shown, view, at),
        _ => None,
    };
    view.frozen = frozen;
    if let Some(rank) = rank {
        if view.rank == Some(rank) {
            return commands::perform(model, view, Command::Inspect, now);
        }
        view.rank = Some(rank);
    } else if pane == Pane::Log && view.log_scope == LogScope::Merged {
        view.editing = None;
    }
    Vec::new()
}
