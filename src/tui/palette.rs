//! The palette: typed words, completed, with a history. Each word is a row of one table; every command of the
//! table of keys can be typed by its short name, too.

mod charts;
mod log;
mod reach;

use crate::column::Column;
use crate::commands;
use crate::keys::{self, BINDINGS};
use crate::ranks;
use crate::restart_draft::RestartDraft;
use crate::state::{Action, Overlay, Pane, PaneSizes, Sort, Tab, ViewState};
use crate::theme::{Glyphs, Role, Theme};
use crate::time::{self, TimeMove};
use rankdeck_core::event::Event;
use rankdeck_core::model::Model;
use rankdeck_types::ids::{Rank, Timestamp};

/// Most lines of history.
pub const HISTORY: usize = 50;
/// Most completions shown.
pub const SHOWN: usize = 8;

/// What became of a typed line: actions for the shell, or why there are none.
type LineResult = Result<Vec<Action>, String>;

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
    run: fn(&Model, &mut ViewState, &[&str]) -> LineResult,
}

const fn word(
    name: &'static str,
    arguments: &'static str,
    about: &'static str,
    complete: fn(&Model, &ViewState) -> Vec<String>,
    run: fn(&Model, &mut ViewState, &[&str]) -> LineResult,
) -> Word {
    Word { name, arguments, about, complete, run }
}

/// The words.
pub static WORDS: &[Word] = &[
    word("rank", "N", "select a rank and show everything about it", rank_names, inspect),
    word("host", "NAME", "show a host's ranks", host_names, host),
    word(
        "log",
        "[N|all] [TIME]",
        "the log of a rank, or of all, at a time: 03:12, -5m",
        rank_names,
        log::log,
    ),
    word(
        "level",
        "NAME",
        "log lines from a level on: all, info, warnings, errors",
        |_, _| named(&["all", "info", "warnings", "errors"]),
        log::level,
    ),
    word(
        "search",
        "TEXT",
        "the newest line of the log that matches; N and n go on",
        |_, _| Vec::new(),
        log::search,
    ),
    word("filter", "[TEXT]", "filter the ranks, or the log on its page", |_, _| Vec::new(), log::filter),
    word(
        "env",
        "RANK|pid:PID",
        "the environment of a process, without its secrets",
        crate::reach::processes,
        reach::environment,
    ),
    word(
        "signal",
        "RANK|pid:PID NAME",
        "send a signal to a process: TERM, USR1 ...; asks first",
        crate::reach::names,
        reach::signal,
    ),
    word("sort", "COLUMN [up|down]", "sort the ranks", |_, _| named(&Sort::ALL.map(Sort::name)), sort),
    word(
        "panes",
        "[NAME=PERCENT]",
        "sizes: ranks, charts, evals, events; alone: the usual ones",
        sizes,
        panes,
    ),
    word("cols", "[+COLUMN] [-COLUMN]", "columns to show first, or never; alone: as at first", columns, cols),
    word(
        "axis",
        "steps|time|wall",
        "the x axis of charts",
        |_, _| named(&["steps", "time", "wall"]),
        charts::axis,
    ),
    word(
        "smooth",
        "WEIGHT",
        "smooth the charts, 0 to 0.99",
        |_, _| named(&["0", "0.6", "0.9"]),
        charts::smooth,
    ),
    word("chart", "NAME", "show or hide a series", series_names, charts::chart),
    word(
        "export",
        "[csv|svg|png]",
        "write the shown series to files",
        |_, _| named(&["csv", "svg", "png"]),
        charts::export,
    ),
    word(
        "compare",
        "[RUN ...]",
        "draw recorded runs over the charts; alone: none",
        recorded,
        charts::compare,
    ),
    word("media", "[NAME]", "pictures that the program logs", picture_names, charts::media),
    word("time", "[WHEN|now]", "the moment that all pages show: 03:12, -5m", |_, _| named(&["now"]), moment),
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
    word("set", "KEY=VALUE ...", "begin a new generation with changed keys", settings, set),
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

fn picture_names(model: &Model, _: &ViewState) -> Vec<String> {
    model.gallery.names().map(|(name, _)| name.clone()).collect()
}

fn checkpoints(model: &Model, _: &ViewState) -> Vec<String> {
    let kept = model.checkpoints.iter().rev().take(20).map(|checkpoint| checkpoint.path.clone());
    named(&["latest", "afresh"]).into_iter().chain(kept).collect()
}

fn settings(_: &Model, _: &ViewState) -> Vec<String> {
    RestartDraft::default().suggestions().into_iter().map(|(path, _)| format!("{path}=")).collect()
}

fn recorded(_: &Model, view: &ViewState) -> Vec<String> {
    view.steering.recorded.clone()
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

fn inspect(model: &Model, view: &mut ViewState, arguments: &[&str]) -> LineResult {
    let [name] = arguments else { return Err("rank N: which one?".into()) };
    let rank = number(model, name)?;
    view.ranks.selected = Some(rank);
    view.open(Overlay::Inspect { rank, top: 0 });
    Ok(Vec::new())
}

fn host(model: &Model, view: &mut ViewState, arguments: &[&str]) -> LineResult {
    let [name] = arguments else { return Err("host NAME: which one?".into()) };
    let host = model.hosts.iter().find(|host| host.name == *name);
    let host = host.ok_or_else(|| format!("there is no host `{name}` in this run"))?;
    view.hosts.selected = Some(host.node_rank);
    view.ranks.filter = format!("host:{}", host.name);
    (view.ranks.selected, view.tab, view.focus) = (None, Tab::Overview, Pane::Ranks);
    Ok(Vec::new())
}

fn sort(_: &Model, view: &mut ViewState, arguments: &[&str]) -> LineResult {
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

fn cols(_: &Model, view: &mut ViewState, arguments: &[&str]) -> LineResult {
    if arguments.is_empty() {
        view.ranks.columns.clear();
    }
    set_columns(view, arguments.iter().copied())?;
    Ok(Vec::new())
}

fn sizes(_: &Model, view: &ViewState) -> Vec<String> {
    view.sizes.words()
}

fn panes(_: &Model, view: &mut ViewState, arguments: &[&str]) -> LineResult {
    view.sizes = PaneSizes::read(arguments.iter().copied())?;
    (view.tab, view.zoom) = (Tab::Overview, false);
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

fn theme(_: &Model, view: &mut ViewState, arguments: &[&str]) -> LineResult {
    let name = arguments.first().copied().unwrap_or_default();
    view.style.theme = match name {
        "auto" => None,
        _ => Some(Theme::named(name).ok_or("theme auto, dark, light, mono or cvd")?.name),
    };
    Ok(Vec::new())
}

fn glyphs(_: &Model, view: &mut ViewState, arguments: &[&str]) -> LineResult {
    let name = arguments.first().copied().unwrap_or_default();
    view.style.glyphs = match name {
        "auto" => None,
        _ => Some(Glyphs::named(name).ok_or("glyphs auto, braille, block or ascii")?),
    };
    Ok(Vec::new())
}

/// Why a command cannot be carried out now.
fn barred(model: &Model, view: &ViewState, command: keys::Command) -> Option<&'static str> {
    let binding = BINDINGS.iter().find(|binding| binding.command == command)?;
    (binding.disabled)(model, view)
}

fn set(model: &Model, view: &mut ViewState, arguments: &[&str]) -> LineResult {
    if let Some(reason) = barred(model, view, keys::Command::RestartWith) {
        return Err(format!("set: {reason}"));
    }
    if let Some(word) = arguments.iter().find(|word| !word.contains('=')) {
        return Err(format!("set KEY=VALUE: `{word}` has no `=`"));
    }
    commands::restart_with(model, view, None, &arguments.join(" "));
    Ok(Vec::new())
}

/// In the present, which has no cursor to count from, the line for a time opens with what was typed.
fn moment(model: &Model, view: &mut ViewState, arguments: &[&str]) -> LineResult {
    if let Some(reason) = barred(model, view, keys::Command::TypeTime) {
        return Err(format!("time: {reason}"));
    }
    let to = match (arguments, &view.moment.cursor) {
        (["now"], _) => TimeMove::Present,
        ([typed], Some(cursor)) => TimeMove::To(time::parse(typed, cursor, view.chart.utc_offset_s)?),
        ([] | [_], _) => {
            view.moment.frozen = None;
            view.open(Overlay::Time { input: arguments.concat() });
            TimeMove::Step(0)
        }
        _ => return Err("time WHEN: a time of day, -5m, or now".into()),
    };
    Ok(vec![Action::Time(to)])
}

fn restart(model: &Model, view: &mut ViewState, arguments: &[&str]) -> LineResult {
    if let Some(reason) = barred(model, view, keys::Command::Restart) {
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
    /// What follows.
    pub arguments: &'static str,
    /// What it does.
    pub about: &'static str,
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
            .map(|full| Suggestion { line: format!("{name} {before}{full}"), arguments: "", about: "" })
            .collect();
    }
    let words = WORDS.iter().map(|word| Suggestion {
        line: word.name.to_string(),
        arguments: word.arguments,
        about: word.about,
    });
    let taken = |short: &str| WORDS.iter().any(|word| word.name == short);
    let commands = BINDINGS.iter().filter(|binding| !taken(binding.short) && keys::in_scope(binding, view));
    let commands =
        commands.map(|binding| Suggestion { line: binding.short.into(), arguments: "", about: binding.long });
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
fn command(model: &Model, view: &mut ViewState, typed: &str, now: Timestamp) -> LineResult {
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
