//! Keys while an overlay is open.

use super::line::edit;
use crate::commands;
use crate::glossary;
use crate::keys::{self, Command, with_ctrl};
use crate::overlays;
use crate::overlays::pictures;
use crate::palette;
use crate::ranks;
use crate::reach;
use crate::restart_draft::RestartDraft;
use crate::state::{Action, Ask, Confirm, Overlay, Pane, PictureChoice, TypedLine, ViewState};
use crate::theme::{Glyphs, Role};
use crate::time::{self, TimeMove};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rankdeck_core::event::Event;
use rankdeck_core::model::Model;
use rankdeck_proto::process::ProcessName;
use rankdeck_types::ids::{NodeRank, Rank, Timestamp};
use rankdeck_types::link_state::Prompt;
use std::collections::BTreeSet;

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

pub(super) fn answer_confirm(view: &mut ViewState, mut confirm: Confirm, key: KeyEvent) -> Vec<Action> {
    let last = confirm.choices.len().saturating_sub(1);
    let picked = match key.code {
        KeyCode::Enter => Some(confirm.selected),
        KeyCode::Esc => Some(0),
        KeyCode::Char(c) if !with_ctrl(key) => confirm.choices.iter().position(|choice| choice.key == c),
        _ => None,
    };
    if let Some(index) = picked {
        view.overlays.pop();
        if index > 0 {
            // The order is given: what was typed for it is done with.
            view.overlays.retain(|overlay| !matches!(overlay, Overlay::Restart(_) | Overlay::Hosts { .. }));
        }
        return confirm.choices.get(index).and_then(|choice| choice.action.clone()).into_iter().collect();
    }
    confirm.selected = match key.code {
        KeyCode::Left | KeyCode::Up | KeyCode::BackTab => confirm.selected.saturating_sub(1),
        KeyCode::Right | KeyCode::Down | KeyCode::Tab => (confirm.selected + 1).min(last),
        _ => confirm.selected,
    };
    view.open(Overlay::Confirm(confirm));
    Vec::new()
}

pub(super) fn answer_ask(
    view: &mut ViewState,
    mut ask: Ask,
    key: KeyEvent,
    with: KeyModifiers,
    now: Timestamp,
) -> Vec<Action> {
    let host_key = matches!(ask.prompt, Prompt::UnknownHostKey { .. });
    let answer = match (host_key, key.code) {
        (_, KeyCode::Esc) => Some(None),
        (true, KeyCode::Char('y' | 'Y')) if !with_ctrl(key) => Some(Some("yes".to_string())),
        (true, KeyCode::Char('n' | 'N')) if !with_ctrl(key) => Some(None),
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
            edit(&mut ask.input, key, with);
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

pub(super) fn type_time(
    view: &mut ViewState,
    mut input: String,
    key: KeyEvent,
    with: KeyModifiers,
    now: Timestamp,
) -> Vec<Action> {
    match key.code {
        KeyCode::Enter => {
            let Some(cursor) = &view.moment.cursor else {
                view.overlays.pop();
                return Vec::new();
            };
            match time::parse(&input, cursor, view.chart.utc_offset_s) {
                Ok(to) => {
                    view.overlays.pop();
                    return vec![Action::Time(TimeMove::To(to))];
                }
                Err(why) => view.toast(why, Role::Warn, now),
            }
        }
        _ => {
            edit(&mut input, key, with);
        }
    }
    view.open(Overlay::Time { input });
    Vec::new()
}

pub(super) fn in_help(
    model: &Model,
    view: &mut ViewState,
    mut filter: String,
    mut selected: usize,
    key: KeyEvent,
    with: KeyModifiers,
    now: Timestamp,
) -> Vec<Action> {
    // Key names in the filter are matched in one spelling, whatever the theme's arrows look like.
    let entries = keys::help(view, &filter, Glyphs::Ascii);
    let last = (entries.len() + glossary::matching(&filter).len()).saturating_sub(1);
    match key.code {
        KeyCode::Enter => {
            // A word does nothing.
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
            if edit(&mut filter, key, with) {
                selected = 0;
            }
        }
    }
    view.open(Overlay::Help { filter, selected });
    Vec::new()
}

pub(super) fn in_palette(
    model: &Model,
    view: &mut ViewState,
    mut typing: TypedLine,
    key: KeyEvent,
    with: KeyModifiers,
    now: Timestamp,
) -> Vec<Action> {
    match key.code {
        KeyCode::Enter => {
            view.overlays.pop();
            return palette::run(model, view, &typing.line, now);
        }
        KeyCode::Tab => typing.line = palette::complete(view.shown(model), view, &typing.line),
        KeyCode::Up | KeyCode::Down => {
            typing.recalled = palette::recall(view, typing.recalled, key.code == KeyCode::Up);
            let line = typing.recalled.and_then(|at| view.typed.get(at));
            typing.line = line.cloned().unwrap_or_default();
        }
        // The way back of an empty line is the way out.
        KeyCode::Backspace if typing.line.is_empty() => {
            view.overlays.pop();
            return Vec::new();
        }
        _ => {
            if edit(&mut typing.line, key, with) {
                typing.recalled = None;
            }
        }
    }
    view.open(Overlay::Palette(typing));
    Vec::new()
}

pub(super) fn in_hosts(
    model: &Model,
    view: &mut ViewState,
    mut changed: BTreeSet<String>,
    mut selected: usize,
    key: KeyEvent,
    now: Timestamp,
) -> Vec<Action> {
    let rows = overlays::hosts::rows(model, view);
    let last = rows.len().saturating_sub(1);
    match key.code {
        KeyCode::Char('q' | 'H') => {
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
        KeyCode::Char('R') => {
            let hosts = overlays::hosts::others(model, view, &changed);
            let draft = RestartDraft::on_hosts(model, hosts, view.steering.changer);
            // The hosts stay below, for the way back.
            view.open(Overlay::Restart(Box::new(draft)));
            return Vec::new();
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

pub(super) fn in_processes(
    model: &Model,
    view: &mut ViewState,
    (node, selected): (NodeRank, Option<ProcessName>),
    key: KeyEvent,
    now: Timestamp,
) -> Vec<Action> {
    let all = reach::of_host(model, node);
    let at = overlays::processes::row_of(&all, selected);
    let to = match key.code {
        KeyCode::Char('q' | 'p') => {
            view.overlays.pop();
            return Vec::new();
        }
        KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => at + 1,
        KeyCode::Home | KeyCode::Char('g') => 0,
        KeyCode::End | KeyCode::Char('G') => usize::MAX,
        _ => at,
    };
    let to = all.get(to.min(all.len().saturating_sub(1)));
    view.open(Overlay::Processes { node, selected: to.map(|process| process.name) });
    let Some(process) = to else { return Vec::new() };
    let done = match key.code {
        KeyCode::Enter | KeyCode::Char('e') => reach::environment(view, process),
        KeyCode::Char('T') => reach::signal(model, view, process, SIGTERM),
        KeyCode::Char('K') => reach::signal(model, view, process, SIGKILL),
        KeyCode::Char('s') => {
            let line = format!("signal {} ", reach::typed_as(process));
            view.open(Overlay::Palette(TypedLine { line, recalled: None }));
            Ok(Vec::new())
        }
        _ => Ok(Vec::new()),
    };
    done.unwrap_or_else(|why| {
        view.toast(why, Role::Warn, now);
        Vec::new()
    })
}

/// The rank that the open card is about.
fn concerned(model: &Model, view: &ViewState) -> Option<Rank> {
    match view.overlay()? {
        // A host is reached as its first rank is.
        Overlay::Evidence { about: (_, None, Some(host)), .. } => {
            model.ranks.iter().find(|rank| rank.host == *host).map(|rank| rank.rank)
        }
        Overlay::Evidence { about, .. } => about.1,
        Overlay::Event { number, .. } => {
            overlays::event::find(model, *number).and_then(overlays::event::rank_of)
        }
        Overlay::Inspect { rank, .. } => Some(*rank),
        _ => None,
    }
}

/// Keys while a card (inspector, evidence) is open: it scrolls, closes, and stop, kill, restart and quit
/// still work.
pub(super) fn in_card(model: &Model, view: &mut ViewState, key: KeyEvent, now: Timestamp) -> Vec<Action> {
    // A card shows a rank, whatever page it was opened from.
    let Some(command) = keys::find_in(view, Pane::Ranks, key).map(|binding| binding.command) else {
        return Vec::new();
    };
    let inspecting = match view.overlay() {
        Some(Overlay::Inspect { rank, .. }) => Some(*rank),
        _ => None,
    };
    match command {
        Command::Back | Command::Inspect | Command::Policy => {
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
            view.ranks.selected = concerned(model, view).or(view.ranks.selected);
            view.overlays.clear();
            commands::open_rank_log(view);
        }
        Command::Stack | Command::Continue | Command::Shell | Command::Environment => {
            let rank = concerned(model, view);
            // On the page of hosts a shell goes to the host that is selected there.
            let node = rank.and_then(|rank| ranks::find(model, rank)).map(|rank| rank.node);
            view.hosts.selected = node.or(view.hosts.selected);
            view.ranks.selected = rank.or(view.ranks.selected);
            return super::command(model, view, key, now);
        }
        Command::LogThere => match commands::log_there(model, view) {
            Ok(wanted) => return commands::asked_of_hosts(view, wanted),
            Err(why) => view.toast(why, Role::Warn, now),
        },
        Command::Quit
        | Command::Stop
        | Command::Kill
        | Command::Detach
        | Command::Restart
        | Command::RestartWith
        | Command::PickHosts
        | Command::Help
        | Command::Palette
        | Command::Copy => {
            return super::command(model, view, key, now);
        }
        Command::Go(_) => {
            view.overlays.clear();
            return commands::perform(model, view, command, now);
        }
        _ => {}
    }
    Vec::new()
}

/// Keys while a logged picture is shown: others by step and name, and everything that leads elsewhere.
pub(super) fn in_pictures(
    model: &Model,
    view: &mut ViewState,
    choice: &PictureChoice,
    key: KeyEvent,
    now: Timestamp,
) -> Vec<Action> {
    // What charts do along their axis and in their list.
    let Some(binding) = keys::find_in(view, Pane::Charts, key) else { return Vec::new() };
    let (command, shown) = (binding.command, view.shown(model));
    let next = match command {
        Command::Back | Command::Pictures => {
            view.overlays.pop();
            return Vec::new();
        }
        Command::Pan(by) | Command::Cursor(by) => pictures::step(shown, choice, by.into()),
        Command::Move(by) => pictures::other(shown, choice, by.into()),
        Command::NextPane => pictures::other(shown, choice, 1),
        Command::PreviousPane => pictures::other(shown, choice, -1),
        Command::First => pictures::step(shown, choice, i64::MIN),
        Command::Last => pictures::step(shown, choice, i64::from(i32::MAX)),
        Command::ExportCharts => return pictures::export(shown, choice).into_iter().collect(),
        Command::Go(_) => {
            view.overlays.clear();
            return commands::perform(model, view, command, now);
        }
        Command::Time(_)
        | Command::TypeTime
        | Command::Freeze
        | Command::Quit
        | Command::Stop
        | Command::Kill
        | Command::Detach
        | Command::Restart
        | Command::RestartWith
        | Command::Help
        | Command::Palette
        | Command::Copy => return super::command(model, view, key, now),
        _ => return Vec::new(),
    };
    view.open(Overlay::Pictures(next));
    Vec::new()
}
