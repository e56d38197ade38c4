//! Runs commands typed into the palette. Commands of keys can be typed by their short names, too, and
//! each page has commands of its own.

use crate::run::action::{Request, ScreenAction};
use crate::run::command;
use crate::run::command::ScreenCommand;
use crate::run::geometry::Tab;
use crate::run::keys::{TABLE, disabled};
use crate::run::layout::PaneSizes;
use crate::run::overlays::{
    EnvironmentCard, Images, Inspector, TimeInput, confirm, processes as process_list,
};
use crate::run::pages::WordResult;
use crate::run::reasons::no_query;
use crate::run::time::{self, TimeMove};
use crate::run::words::{self, Verb};
use crate::run::{ViewState, processes, ranks};
use rankdeck_core::model::Model;
use rankdeck_kit::{Glyphs, Role, Theme};
use rankdeck_types::ids::Timestamp;

/// Most lines of history.
pub const HISTORY: usize = 50;

/// Runs a typed line.
pub fn run(model: &Model, view: &mut ViewState, typed: &str, now: Timestamp) -> Vec<Request> {
    let typed = typed.trim();
    if typed.is_empty() {
        return Vec::new();
    }
    view.typed.retain(|line| line != typed);
    view.typed.push(typed.to_string());
    let over = view.typed.len().saturating_sub(HISTORY);
    view.typed.drain(..over);
    let parts: Vec<&str> = typed.split_whitespace().collect();
    let (first, arguments) = parts.split_first().map_or(("", &[][..]), |(first, rest)| (*first, rest));
    let word = words::on_screen(first).and_then(|word| run_word(model, view, word.verb, arguments, now));
    word.unwrap_or_else(|| run_command(model, view, typed, now)).unwrap_or_else(|why| {
        view.toast(why, Role::Warn, now);
        Vec::new()
    })
}

/// Runs a word of the screen or of a page; `None`: it has none of them.
fn run_word(
    model: &Model,
    view: &mut ViewState,
    verb: Verb,
    arguments: &[&str],
    now: Timestamp,
) -> Option<WordResult> {
    Some(match verb {
        Verb::Rank => inspect(model, view, arguments),
        Verb::Host => host(model, view, arguments),
        Verb::Filter => filter(view, arguments),
        Verb::Add => add(model, view, arguments, now),
        Verb::Env => environment(model, view, arguments),
        Verb::Signal => signal(model, view, arguments),
        Verb::Panes => panes(view, arguments),
        Verb::Media => media(model, view, arguments),
        Verb::Time => moment(model, view, arguments),
        Verb::Theme => theme(view, arguments),
        Verb::Glyphs => glyphs(view, arguments),
        Verb::Set => set(model, view, arguments),
        Verb::Restart => restart(model, view, arguments),
        _ => return view.ask_pages(model, now, |page, cx| page.run_word(verb, arguments, cx)),
    })
}

/// Executes a key's command by its short name, or by an unambiguous prefix of it.
fn run_command(model: &Model, view: &mut ViewState, typed: &str, now: Timestamp) -> WordResult {
    let here = || TABLE.iter().filter(|binding| binding.applies_in(view.pane()));
    let exact = here().find(|binding| binding.short == typed);
    let mut beginning = here().filter(|binding| binding.short.starts_with(typed));
    let found = exact.or_else(|| beginning.next().filter(|_| beginning.next().is_none()));
    let found = found.or_else(|| TABLE.iter().find(|binding| binding.short == typed));
    let Some(binding) = found else {
        return Err(format!("unknown command `{typed}`; tab completes, ? shows help"));
    };
    if let Some(reason) = (binding.disabled)(model, view) {
        return Err(format!("{}: {reason}", binding.short));
    }
    Ok(command::perform(model, view, binding.command, now))
}

fn inspect(model: &Model, view: &mut ViewState, arguments: &[&str]) -> WordResult {
    let [name] = arguments else { return Err("usage: rank N".into()) };
    let rank = ranks::named(model, name)?;
    view.selected = Some(rank);
    view.open(Inspector::new(rank));
    Ok(Vec::new())
}

/// Starts the named or selected lost rank again.
fn add(model: &Model, view: &mut ViewState, arguments: &[&str], now: Timestamp) -> WordResult {
    match arguments {
        [] => {}
        [name] => view.selected = Some(ranks::named(model, name)?),
        _ => return Err("usage: add [N]".into()),
    }
    if let Some(why) = disabled(model, view, ScreenCommand::Rejoin) {
        return Err(format!("add: {why}"));
    }
    Ok(command::perform(model, view, ScreenCommand::Rejoin, now))
}

fn host(model: &Model, view: &mut ViewState, arguments: &[&str]) -> WordResult {
    let [name] = arguments else { return Err("usage: host NAME".into()) };
    let host = model.hosts.iter().find(|host| host.name == *name);
    let host = host.ok_or_else(|| format!("unknown host `{name}`"))?;
    view.select_place(None, Some(host.node_rank));
    Ok(vec![Request::ShowRanksOf(host.name.clone())])
}

/// Filters the log on its page, else the ranks.
fn filter(view: &mut ViewState, arguments: &[&str]) -> WordResult {
    let text = arguments.join(" ");
    match view.tab {
        Tab::Logs => view.log.set_filter(text),
        _ => view.filter_ranks(text),
    }
    Ok(Vec::new())
}

fn environment(model: &Model, view: &mut ViewState, arguments: &[&str]) -> WordResult {
    let [target] = arguments else { return Err(format!("usage: env {}", processes::TARGET)) };
    if let Some(why) = no_query(view) {
        return Err(format!("env: {why}"));
    }
    EnvironmentCard::open(view, &processes::typed(model, target)?)
}

fn signal(model: &Model, view: &mut ViewState, arguments: &[&str]) -> WordResult {
    let [target, name] = arguments else {
        return Err(format!("usage: signal {} NAME", processes::TARGET));
    };
    let number = rankdeck_types::words::signal_named(name).ok_or_else(|| {
        format!("unknown signal `{name}`; use TERM, INT, USR1, KILL or a number from 1 to 31")
    })?;
    process_list::signal(model, view, &processes::typed(model, target)?, number)
}

fn panes(view: &mut ViewState, arguments: &[&str]) -> WordResult {
    view.sizes = PaneSizes::read(arguments.iter().copied())?;
    (view.tab, view.zoom) = (Tab::Overview, false);
    Ok(Vec::new())
}

/// Shows an image by its name, or by an unambiguous part of it.
fn media(model: &Model, view: &mut ViewState, arguments: &[&str]) -> WordResult {
    if let Some(why) = disabled(model, view, ScreenCommand::Pictures) {
        return Err(format!("media: {why}"));
    }
    let name = image_named(view.shown(model), &arguments.join(" "))?;
    view.open(Images::new(name, None));
    Ok(Vec::new())
}

/// The image's name that was typed; `None` if nothing was.
fn image_named(model: &Model, typed: &str) -> Result<Option<String>, String> {
    if typed.is_empty() {
        return Ok(None);
    }
    let names = || model.gallery.names().map(|(name, _)| name);
    let mut like = names().filter(|name| name.contains(typed));
    let only = like.next().filter(|_| like.next().is_none());
    let found = names().find(|name| *name == typed).or(only);
    let found = found.ok_or_else(|| format!("media: `{typed}` matches no image, or several"))?;
    Ok(Some(found.clone()))
}

fn theme(view: &mut ViewState, arguments: &[&str]) -> WordResult {
    let name = arguments.first().copied().unwrap_or_default();
    view.style.theme = match name {
        "auto" => None,
        _ => Some(Theme::named(name).ok_or("usage: theme auto|dark|light|mono|cvd")?.name),
    };
    Ok(Vec::new())
}

fn glyphs(view: &mut ViewState, arguments: &[&str]) -> WordResult {
    let name = arguments.first().copied().unwrap_or_default();
    view.style.glyphs = match name {
        "auto" => None,
        _ => Some(Glyphs::named(name).ok_or("usage: glyphs auto|braille|block|ascii")?),
    };
    Ok(Vec::new())
}

fn set(model: &Model, view: &mut ViewState, arguments: &[&str]) -> WordResult {
    if let Some(reason) = disabled(model, view, ScreenCommand::RestartWith) {
        return Err(format!("set: {reason}"));
    }
    if let Some(word) = arguments.iter().find(|word| !word.contains('=')) {
        return Err(format!("usage: set KEY=VALUE; `{word}` has no `=`"));
    }
    command::restart_with(model, view, None, &arguments.join(" "));
    Ok(Vec::new())
}

/// Goes to a time. Live, there is no cursor to count from: the time input opens with what was typed.
fn moment(model: &Model, view: &mut ViewState, arguments: &[&str]) -> WordResult {
    if let Some(reason) = disabled(model, view, ScreenCommand::TypeTime) {
        return Err(format!("time: {reason}"));
    }
    let to = match (arguments, &view.moment.cursor) {
        (["now"], _) => TimeMove::Present,
        ([typed], Some(cursor)) => TimeMove::To(time::parse(typed, cursor, view.style.utc_offset_s)?),
        ([] | [_], _) => {
            view.open(TimeInput { line: arguments.concat() });
            TimeMove::Step(0)
        }
        _ => return Err("usage: time 03:12|-5m|now".into()),
    };
    Ok(vec![Request::Live(ScreenAction::Time(to))])
}

/// Asks about a restart; the arguments name a checkpoint and changed keys.
///
/// # Errors
/// It is not possible now, or the checkpoint is unknown.
pub fn restart(model: &Model, view: &mut ViewState, arguments: &[&str]) -> WordResult {
    if let Some(reason) = disabled(model, view, ScreenCommand::Restart) {
        return Err(format!("restart: {reason}"));
    }
    match arguments {
        [] => command::restart(model, view, ScreenCommand::Restart),
        [word] if !word.contains('=') => view.open(confirm::restart_from(model, word)?),
        _ => {
            let (from, sets) = match arguments.split_first() {
                Some((first, rest)) if !first.contains('=') => (Some(*first), rest),
                _ => (None, arguments),
            };
            command::restart_with(model, view, from, &sets.join(" "));
        }
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn palette_runs_every_word_of_the_screen() {
        let (model, mut view) = (Model::default(), ViewState::new());
        let mut runs = |verb| run_word(&model, &mut view, verb, &[], Timestamp(0)).is_some();
        assert!(words::of_screen().all(|(word, _)| runs(word.verb)));
    }

    #[test]
    fn palette_history_is_bounded_and_has_each_line_once() {
        let (model, mut view) = (Model::default(), ViewState::new());
        for i in 0..HISTORY * 2 {
            run(&model, &mut view, &format!("filter x{i}"), Timestamp(0));
            run(&model, &mut view, "theme mono", Timestamp(0));
        }
        assert_eq!(view.typed.len(), HISTORY);
        assert_eq!(view.typed.iter().filter(|line| *line == "theme mono").count(), 1);
    }
}
