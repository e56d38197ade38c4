//! The palette: typed words, completed, with a history. Each word is a row of one table; every command of the
//! table of keys can be typed by its short name, too.

use crate::chart_view::Axis;
use crate::column::Column;
use crate::commands;
use crate::keys::{self, BINDINGS};
use crate::log_filter::Level;
use crate::logs;
use crate::ranks;
use crate::state::{Action, LogScope, Overlay, Pane, Sort, Tab, ViewState};
use crate::theme::{Glyphs, Role, Theme};
use crate::time::{self, TimeCursor};
use rankdeck_core::event::Event;
use rankdeck_core::model::Model;
use rankdeck_types::ids::{Rank, Timestamp};

/// Most lines of history.
pub const HISTORY: usize = 50;
/// Most completions shown.
pub const SHOWN: usize = 8;

/// What became of a typed line: actions for the shell, or why there are none.
type Done = Result<Vec<Action>, String>;

/// A word that takes arguments.
pub struct Word {
    /// As it is typed.
    pub name: &'static str,
    /// What follows it, for the list.
    pub arguments: &'static str,
    /// What it does.
    pub about: &'static str,
    /// What an argument may be.
    complete: fn(&Model, &ViewState) -> Vec<String>,
    run: fn(&Model, &mut ViewState, &[&str]) -> Done,
}

const fn word(
    name: &'static str,
    arguments: &'static str,
    about: &'static str,
    complete: fn(&Model, &ViewState) -> Vec<String>,
    run: fn(&Model, &mut ViewState, &[&str]) -> Done,
) -> Word {
    Word { name, arguments, about, complete, run }
}

/// The words.
pub static WORDS: &[Word] = &[
    word("rank", "N", "select a rank and show everything about it", rank_names, inspect),
    word("host", "NAME", "show a host's ranks", host_names, host),
    word("log", "[N|all] [TIME]", "the log of a rank, or of all, at a time: 03:12, -5m", rank_names, log),
    word(
        "level",
        "NAME",
        "log lines from a level on: all, info, warnings, errors",
        |_, _| named(&["all", "info", "warnings", "errors"]),
        level,
    ),
    word("filter", "[TEXT]", "filter the ranks, or the log on its page", |_, _| Vec::new(), filter),
    word("sort", "COLUMN [up|down]", "sort the ranks", |_, _| named(&Sort::ALL.map(Sort::name)), sort),
    word("cols", "[+COLUMN] [-COLUMN]", "columns to show first, or never; alone: as at first", columns, cols),
    word("axis", "steps|time|wall", "the x axis of charts", |_, _| named(&["steps", "time", "wall"]), axis),
    word("smooth", "WEIGHT", "smooth the charts, 0 to 0.99", |_, _| named(&["0", "0.6", "0.9"]), smooth),
    word("chart", "NAME", "show or hide a series", series_names, chart),
    word("export", "", "write the shown series to files, as CSV, SVG and PNG", |_, _| Vec::new(), export),
    word(
        "theme",
        "NAME",
        "dark, light, mono, cvd",
        |_, _| named(&["auto", "dark", "light", "mono", "cvd"]),
        theme,
    ),
    word(
        "glyphs",
        "NAME",
        "braille, block, ascii",
        |_, _| named(&["auto", "braille", "block", "ascii"]),
        glyphs,
    ),
    word(
        "restart",
        "[latest|afresh|CHECKPOINT] [KEY=VALUE]",
        "begin a new generation, from there, with changed keys",
        checkpoints,
        restart,
    ),
];

fn named(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_string()).collect()
}

fn rank_names(model: &Model, _: &ViewState) -> Vec<String> {
    model.ranks.iter().map(|rank| rank.rank.to_string()).collect()
}

fn host_names(model: &Model, _: &ViewState) -> Vec<String> {
    model.hosts.iter().map(|host| host.name.clone()).collect()
}

fn series_names(model: &Model, _: &ViewState) -> Vec<String> {
    model.charts().map(|(name, _)| name.clone()).collect()
}

fn checkpoints(model: &Model, _: &ViewState) -> Vec<String> {
    let kept = model.checkpoints.iter().rev().take(20).map(|checkpoint| checkpoint.path.clone());
    named(&["latest", "afresh"]).into_iter().chain(kept).collect()
}

fn columns(_: &Model, _: &ViewState) -> Vec<String> {
    Column::ALL.iter().flat_map(|column| ["+", "-"].map(|sign| format!("{sign}{}", column.name()))).collect()
}

fn number(model: &Model, text: &str) -> Result<Rank, String> {
    let rank = text.parse().ok().map(Rank).filter(|rank| ranks::find(model, *rank).is_some());
    rank.ok_or_else(|| match model.ranks.len() {
        0 => "no ranks yet".to_string(),
        all => format!("`{text}` is no rank; there are 0 to {}", all - 1),
    })
}

fn inspect(model: &Model, view: &mut ViewState, arguments: &[&str]) -> Done {
    let [name] = arguments else { return Err("rank N: which one?".into()) };
    let rank = number(model, name)?;
    view.ranks.selected = Some(rank);
    view.open(Overlay::Inspect { rank, top: 0 });
    Ok(Vec::new())
}

fn host(model: &Model, view: &mut ViewState, arguments: &[&str]) -> Done {
    let [name] = arguments else { return Err("host NAME: which one?".into()) };
    let host = model.hosts.iter().find(|host| host.name == *name);
    let host = host.ok_or_else(|| format!("there is no host `{name}` in this run"))?;
    view.hosts.selected = Some(host.node_rank);
    view.ranks.filter = format!("host:{}", host.name);
    (view.ranks.selected, view.tab, view.focus) = (None, Tab::Overview, Pane::Ranks);
    Ok(Vec::new())
}

fn log(model: &Model, view: &mut ViewState, arguments: &[&str]) -> Done {
    let is_time = |word: &str| word.contains(':') || word.starts_with(['-', '+']);
    let (who, when) = match arguments {
        [] => ("all", None),
        [one] if is_time(one) => ("all", Some(*one)),
        [who] => (*who, None),
        [who, when] => (*who, Some(*when)),
        _ => return Err("log N TIME: one rank, or `all`, and a time of day".into()),
    };
    let rank = if who == "all" { None } else { Some(number(model, who)?) };
    let at = when.map(|when| log_time(model, view, when)).transpose()?;
    match rank {
        None => {
            (view.tab, view.log.scope, view.log.at, view.zoom) = (Tab::Logs, LogScope::Merged, None, false);
        }
        Some(_) => {
            view.ranks.selected = rank;
            commands::open_rank_log(view);
        }
    }
    if let Some(at) = at {
        // The page is laid out later than its middle is needed.
        view.geometry.log_rows = usize::from(view.geometry.area.height.saturating_sub(6));
        commands::on_shown(model, view, |shown, view| logs::go_to_time(shown, view, at))?;
    }
    Ok(Vec::new())
}

/// The typed moment, ms, seen from the newest line that is held.
fn log_time(model: &Model, view: &ViewState, typed: &str) -> Result<u64, String> {
    let newest = model.ranks.iter().filter_map(|rank| rank.log.lines.back()).map(|line| line.merge_ms).max();
    let newest = newest.filter(|time| *time > 0).ok_or("no line with a time is held")?;
    let at = Timestamp(newest);
    let cursor = TimeCursor { at, end: at, ..TimeCursor::default() };
    Ok(time::parse(typed, &cursor, view.chart.utc_offset_s)?.0)
}

fn filter(_: &Model, view: &mut ViewState, arguments: &[&str]) -> Done {
    let text = arguments.join(" ");
    if view.tab == Tab::Logs {
        (view.log.filter, view.log.at) = (text, None);
    } else {
        (view.ranks.filter, view.tab, view.focus) = (text, Tab::Overview, Pane::Ranks);
    }
    Ok(Vec::new())
}

fn level(_: &Model, view: &mut ViewState, arguments: &[&str]) -> Done {
    let level = arguments.first().and_then(|name| Level::named(name));
    view.log.level = level.ok_or("level all, info, warnings or errors")?;
    (view.tab, view.zoom) = (Tab::Logs, false);
    Ok(Vec::new())
}

fn sort(_: &Model, view: &mut ViewState, arguments: &[&str]) -> Done {
    let (name, reverse) = match arguments {
        [name] | [name, "down"] => (name, false),
        [name, "up"] => (name, true),
        _ => return Err("sort COLUMN, with `up` or `down` behind it".into()),
    };
    let sort = Sort::ALL.into_iter().find(|sort| sort.name() == *name);
    let names = Sort::ALL.map(Sort::name).join(", ");
    view.ranks.sort = sort.ok_or_else(|| format!("`{name}` sorts nothing; there are {names}"))?;
    view.ranks.reverse = reverse;
    Ok(Vec::new())
}

fn cols(_: &Model, view: &mut ViewState, arguments: &[&str]) -> Done {
    if arguments.is_empty() {
        view.ranks.columns.clear();
    }
    set_columns(view, arguments.iter().copied())?;
    Ok(Vec::new())
}

/// Shows columns before others (`+pid`, `pid`), or never (`-power`).
pub fn set_columns<'a>(view: &mut ViewState, names: impl Iterator<Item = &'a str>) -> Result<(), String> {
    for name in names {
        let bare = name.trim_start_matches(['+', '-']);
        let column = Column::ALL.iter().find(|column| column.name() == bare).copied();
        let all = Column::ALL.map(Column::name).join(", ");
        let column = column.ok_or_else(|| format!("there is no column `{bare}`; there are {all}"))?;
        if column == Column::Rank && name.starts_with('-') {
            return Err("the column `rank` stays: rows are known by it".into());
        }
        view.ranks.columns.insert(column, !name.starts_with('-'));
    }
    Ok(())
}

fn axis(model: &Model, view: &mut ViewState, arguments: &[&str]) -> Done {
    let axis = arguments.first().and_then(|name| Axis::named(name));
    let axis = axis.ok_or("axis steps, axis time or axis wall")?;
    let mut chart = std::mem::take(&mut view.chart);
    chart.turn(view.shown(model), axis);
    (view.chart, view.tab) = (chart, Tab::Charts);
    Ok(Vec::new())
}

fn smooth(_: &Model, view: &mut ViewState, arguments: &[&str]) -> Done {
    let weight = arguments.first().and_then(|text| text.parse::<f64>().ok());
    let weight = weight.filter(|weight| (0.0..1.0).contains(weight)).ok_or("smooth WEIGHT: 0 to 0.99")?;
    view.chart.set_weight(weight);
    view.tab = Tab::Charts;
    Ok(Vec::new())
}

fn chart(model: &Model, view: &mut ViewState, arguments: &[&str]) -> Done {
    let [name] = arguments else { return Err("chart NAME: which series?".into()) };
    if model.chart(name).is_none() {
        return Err(format!("there is no series `{name}`"));
    }
    (view.series.selected, view.tab) = (Some((*name).to_string()), Tab::Charts);
    commands::toggle_series(model, view);
    Ok(Vec::new())
}

fn export(model: &Model, view: &mut ViewState, _: &[&str]) -> Done {
    if model.charts().next().is_none() {
        return Err("export: no values yet".into());
    }
    Ok(vec![Action::SaveFiles(crate::chart_file::files(view.shown(model), view))])
}

fn theme(_: &Model, view: &mut ViewState, arguments: &[&str]) -> Done {
    let name = arguments.first().copied().unwrap_or_default();
    view.style.theme = match name {
        "auto" => None,
        _ => Some(Theme::named(name).ok_or("theme auto, dark, light, mono or cvd")?.name),
    };
    Ok(Vec::new())
}

fn glyphs(_: &Model, view: &mut ViewState, arguments: &[&str]) -> Done {
    let name = arguments.first().copied().unwrap_or_default();
    view.style.glyphs = match name {
        "auto" => None,
        _ => Some(Glyphs::named(name).ok_or("glyphs auto, braille, block or ascii")?),
    };
    Ok(Vec::new())
}

fn restart(model: &Model, view: &mut ViewState, arguments: &[&str]) -> Done {
    if let Some(reason) = BINDINGS
        .iter()
        .find(|binding| binding.command == keys::Command::Restart)
        .and_then(|binding| (binding.disabled)(model, view))
    {
        return Err(format!("restart: {reason}"));
    }
    match arguments {
        ["afresh"] => Ok(vec![Action::Tell(Event::restart(None))]),
        ["latest"] => Ok(vec![Action::Tell(Event::restart(Some("latest".into())))]),
        [path] if path.contains('/') => Ok(vec![Action::Tell(Event::restart(Some((*path).to_string())))]),
        _ => {
            let (from, sets) = match arguments.split_first() {
                Some((first, rest)) if !first.contains('=') => (Some(*first), rest),
                _ => (None, arguments),
            };
            commands::restart_with(model, view, from, &sets.join(" "));
            Ok(Vec::new())
        }
    }
}

/// A line of the list below what is typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suggestion {
    /// What the line would be.
    pub line: String,
    /// What follows, and what it does.
    pub about: String,
}

/// What the typed line may become.
pub fn suggestions(model: &Model, view: &ViewState, typed: &str) -> Vec<Suggestion> {
    let typed = typed.trim_start();
    if let Some((name, rest)) = typed.split_once(' ') {
        let Some(word) = WORDS.iter().find(|word| word.name == name) else { return Vec::new() };
        let (before, last) = rest.rsplit_once(' ').map_or(("", rest), |(before, last)| (before, last));
        let before = if before.is_empty() { String::new() } else { format!("{before} ") };
        let matching = (word.complete)(model, view).into_iter().filter(|full| full.starts_with(last));
        return matching
            .map(|full| Suggestion { line: format!("{name} {before}{full}"), about: String::new() })
            .collect();
    }
    let words = WORDS.iter().map(|word| Suggestion {
        line: word.name.to_string(),
        about: format!(
            "{}{}{}",
            word.arguments,
            if word.arguments.is_empty() { "" } else { "  " },
            word.about
        ),
    });
    let taken = |short: &str| WORDS.iter().any(|word| word.name == short);
    let commands = BINDINGS.iter().filter(|binding| !taken(binding.short) && keys::in_scope(binding, view));
    let commands =
        commands.map(|binding| Suggestion { line: binding.short.into(), about: binding.long.into() });
    words.chain(commands).filter(|suggestion| suggestion.line.starts_with(typed)).collect()
}

/// The typed line with what all that it may become have in common.
pub fn complete(model: &Model, view: &ViewState, typed: &str) -> String {
    let all = suggestions(model, view, typed);
    let takes_more = |line: &str| WORDS.iter().any(|word| word.name == line && !word.arguments.is_empty());
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

/// Does what was typed.
pub fn run(model: &Model, view: &mut ViewState, typed: &str, now: Timestamp) -> Vec<Action> {
    let typed = typed.trim();
    if typed.is_empty() {
        return Vec::new();
    }
    view.typed.retain(|line| line != typed);
    view.typed.push(typed.to_string());
    let over = view.typed.len().saturating_sub(HISTORY);
    view.typed.drain(..over);
    let words: Vec<&str> = typed.split_whitespace().collect();
    let named = |name: &str| WORDS.iter().find(|word| word.name == name);
    let done = match words.split_first() {
        Some((first, arguments)) if named(first).is_some() => {
            named(first).map_or(Ok(Vec::new()), |word| (word.run)(model, view, arguments))
        }
        _ => command(model, view, typed, now),
    };
    match done {
        Ok(actions) => actions,
        Err(why) => {
            view.toast(why, Role::Warn, now);
            Vec::new()
        }
    }
}

/// A command of the table of keys by its short name, or by the beginning of it when that is enough.
fn command(model: &Model, view: &mut ViewState, typed: &str, now: Timestamp) -> Done {
    let here = || BINDINGS.iter().filter(|binding| keys::in_scope(binding, view));
    let exact = here().find(|binding| binding.short == typed);
    let mut beginning = here().filter(|binding| binding.short.starts_with(typed));
    let found = exact.or_else(|| beginning.next().filter(|_| beginning.next().is_none()));
    let found = found.or_else(|| BINDINGS.iter().find(|binding| binding.short == typed));
    let Some(binding) = found else {
        return Err(format!("`{typed}` is nothing that can be done; tab completes, ? lists keys"));
    };
    if let Some(reason) = (binding.disabled)(model, view) {
        return Err(format!("{}: {reason}", binding.short));
    }
    Ok(commands::perform(model, view, binding.command, now))
}

/// An older or newer line of the history than the one at `at`; `None` is the line that is being typed.
pub fn recall(view: &ViewState, at: Option<usize>, older: bool) -> Option<usize> {
    let last = view.typed.len().checked_sub(1)?;
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
    fn words_and_commands_have_different_names() {
        for (i, word) in WORDS.iter().enumerate() {
            assert!(WORDS[i + 1..].iter().all(|other| other.name != word.name), "{}", word.name);
            assert!(!word.name.contains(' ') && !word.about.is_empty());
        }
    }

    #[test]
    fn lines_are_completed_as_far_as_they_are_clear() {
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
    fn the_history_is_bounded_and_has_each_line_once() {
        let (model, mut view) = (Model::default(), ViewState::new());
        for i in 0..HISTORY * 2 {
            run(&model, &mut view, &format!("filter x{i}"), Timestamp(0));
            run(&model, &mut view, "theme mono", Timestamp(0));
        }
        assert_eq!(view.typed.len(), HISTORY);
        assert_eq!(view.typed.iter().filter(|line| *line == "theme mono").count(), 1);
        assert_eq!(recall(&view, None, true), Some(HISTORY - 1));
        assert_eq!(recall(&view, Some(HISTORY - 1), false), None);
        assert_eq!(recall(&view, Some(0), true), Some(0));
    }
}
