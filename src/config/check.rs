//! Parses a text and compares the document with the schema: syntax, unknown keys, missing keys, types,
//! ranges. Reports all errors.

mod unknown;

use super::diagnostic::{Diagnostic, Diagnostics, SourceSpan, SourceText};
use super::document::{self, Node, Table, TomlEntry, TomlValue};
use super::suggest::{self, closest, wrong_type, wrong_value};
use super::syntax;
use rankdeck_types::error::HintedError;
use rankdeck_types::schema::{self, ConfigKey, Keys, TextRule, ValueKind, Variant};
use rankdeck_types::{quote, variables};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use unknown::unknown;

/// Parses a text with the tables `keys`; reports all syntax errors at once.
pub fn parse(source: &Arc<SourceText>, keys: Keys) -> Result<Node, Diagnostics> {
    document::parse(source).map_err(|mut mistakes| {
        for mistake in &mut mistakes.0 {
            let Some(place) = mistake.place().filter(|_| document::is_syntax(mistake)) else { continue };
            if let Some(hint) = suggested_line(&source.text, place.range.start, keys) {
                mistake.hint = hint;
            }
        }
        mistakes
    })
}

/// Returns the hint for the line at this byte.
fn suggested_line(text: &str, at: usize, keys: Keys) -> Option<String> {
    let line = document::line_at(text, at);
    let line = line.split(" #").next().unwrap_or_default().trim();
    let (name, value) = syntax::assignment(line)?;
    let key = key_at(text, at, name, keys)?;
    let is_whole = line.parse::<toml::Table>().is_ok();
    // An unclosed quote, or typographic quotes.
    let value = value.trim_start_matches('=').trim();
    let inner = value.trim_matches(['"', '\'', '\u{201c}', '\u{201d}', '\u{2018}', '\u{2019}']);
    let has_more = inner.contains(['"', '\'', '=', '\\', '\u{201c}', '\u{201d}']);
    if is_whole
        || has_more
        || inner.is_empty()
        || syntax::foreign_keyword(inner) == Some(syntax::ForeignKeyword::Nothing)
    {
        return None;
    }
    Some(format!("write `{name} = {}`", suggest::value(key, inner)?))
}

/// Returns the key of this name in the table at this byte.
fn key_at(text: &str, at: usize, name: &str, keys: Keys) -> Option<&'static ConfigKey> {
    let before = text.get(..at).unwrap_or(text);
    let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
    let headers = before[..begin].lines().rev().map(str::trim);
    let header = headers.filter(|line| line.starts_with('[')).find_map(|line| {
        let inner = line.split('#').next()?.trim().strip_prefix('[')?.strip_suffix(']')?;
        Some(inner.trim_start_matches('[').trim_end_matches(']').trim())
    });
    let path: Vec<&str> =
        header.into_iter().flat_map(|header| header.split('.')).chain(name.split('.')).collect();
    schema::find(keys, &path)
}

/// Checks a whole document whose top level is `keys`.
pub fn check(root: &Node, keys: Keys, found: &mut Diagnostics) {
    if let TomlValue::Table(table) = &root.value {
        let top = Scope { top: keys, title: String::new(), header: None };
        check_table(table, keys.iter(), &top, found);
    }
}

/// Position of a table in the document.
pub(super) struct Scope {
    /// The schema's top level, to find where a misplaced key belongs.
    pub top: Keys,
    /// `[env]`, `[[host]]`; empty at the top.
    pub title: String,
    /// Its header, to point at if a key is missing.
    pub header: Option<SourceSpan>,
}

fn check_table(
    table: &Table,
    keys: impl Iterator<Item = &'static ConfigKey> + Clone,
    scope: &Scope,
    found: &mut Diagnostics,
) {
    let mut misspelled = BTreeSet::new();
    for (name, entry) in table {
        match keys.clone().find(|key| key.name == name) {
            Some(key) => check_value(key, &entry.node, &entry.key, scope, found),
            None => {
                misspelled.extend(closest(name, keys.clone().map(|key| key.name)));
                found.push(unknown(name, entry, keys.clone(), scope));
            }
        }
    }
    for key in keys.filter(|key| key.is_required() && !table.contains_key(key.name)) {
        // A document without hosts and a misspelled key have their own errors.
        if !matches!(key.kind, ValueKind::Tables(_)) && !misspelled.contains(key.name) {
            found.push(missing(key, scope));
        }
    }
}

fn missing(key: &ConfigKey, scope: &Scope) -> Diagnostic {
    let is_table = matches!(key.kind, ValueKind::Table(_));
    let what = if is_table { format!("[{}]", key.name) } else { key.name.to_owned() };
    let message = match scope.title.as_str() {
        "" => format!("`{what}` is missing"),
        title => format!("`{what}` is missing in `{title}`"),
    };
    let hint = if let ValueKind::Table(keys) = &key.kind {
        match keys.iter().find(|key| key.is_required()) {
            Some(first) => format!("add `{what}` with `{} = {}`", first.name, example(first, &what)),
            None => format!("add a table `{what}`"),
        }
    } else {
        format!("add `{} = {}`", key.name, example(key, &scope.title))
    };
    match &scope.header {
        Some(place) => Diagnostic::at(place, message).label(format!("without `{what}`")).hint(hint),
        None => Diagnostic::about_file(String::new(), message).hint(hint),
    }
}

/// Returns a valid value, for hints.
fn example(key: &ConfigKey, title: &str) -> String {
    match (&key.kind, key.name) {
        (_, "id") => "\"CartPole-v1\"".into(),
        (ValueKind::Choice(words), _) => format!("\"{}\"", words.first().copied().unwrap_or_default()),
        (ValueKind::Integer(_), _) => "4".into(),
        (ValueKind::Text(_), "name") if title == "[run]" => "\"ppo\"".into(),
        (ValueKind::Text(_), "name") => "\"node0\"".into(),
        _ => "...".into(),
    }
}

pub(super) fn check_value(
    key: &ConfigKey,
    node: &Node,
    at: &SourceSpan,
    scope: &Scope,
    found: &mut Diagnostics,
) {
    let path = key.name;
    match (&key.kind, &node.value) {
        (ValueKind::Table(keys), TomlValue::Table(table)) => {
            let inner = Scope { top: scope.top, title: format!("[{path}]"), header: Some(at.clone()) };
            check_table(table, keys.iter(), &inner, found);
        }
        (ValueKind::Tables(keys), TomlValue::Array(items)) => {
            for item in items {
                match &item.value {
                    TomlValue::Table(table) => {
                        let header = Some(item.place.clone());
                        let inner = Scope { top: scope.top, title: format!("[[{path}]]"), header };
                        check_table(table, keys.iter(), &inner, found);
                    }
                    other => found.push(wrong_type(path, other, "a table", &item.place)),
                }
            }
        }
        (ValueKind::Tables(_), TomlValue::Table(_)) => found.push(
            Diagnostic::at(at, format!("`[{path}]` is a single table, expected an array of tables"))
                .hint(format!("write `[[{path}]]`, once per {path}")),
        ),
        (ValueKind::Tagged { tag, variants }, TomlValue::Table(table)) => {
            let inner = Scope { top: scope.top, title: format!("[{path}]"), header: Some(at.clone()) };
            check_tagged(table, tag, variants, &inner, found);
        }
        (ValueKind::Text(_), TomlValue::String(text)) if text.trim().is_empty() && key.is_required() => found
            .push(
                Diagnostic::at(&node.place, format!("`{path}` is empty"))
                    .hint(format!("write `{path} = {}`", example(key, &scope.title))),
            ),
        (ValueKind::Text(rule), TomlValue::String(text)) => check_text(path, text, rule, &node.place, found),
        (ValueKind::Choice(words), TomlValue::String(word)) if !words.contains(&word.as_str()) => {
            let close = closest(word, words.iter().copied())
                .map(|close| format!("a similar value exists: `\"{close}\"`"));
            let former = schema::former_word(key.name, word).map(str::to_owned);
            let hint = former.or(close).unwrap_or_else(|| format!("write {}", key.kind.expected()));
            found.push(
                Diagnostic::at(
                    &node.place,
                    format!("`{path}` is `\"{word}\"`, expected {}", key.kind.expected()),
                )
                .hint(hint),
            );
        }
        (ValueKind::FlagOrText(rule), TomlValue::String(text)) => {
            check_text(path, text, rule, &node.place, found)
        }
        (ValueKind::Choice(_), TomlValue::String(_))
        | (ValueKind::Flag | ValueKind::FlagOrText(_), TomlValue::Boolean(_)) => {}
        (ValueKind::Integer(_) | ValueKind::Number { .. }, _) => check_number(key, node, scope, found),
        (ValueKind::Texts(_), TomlValue::Array(items)) => check_texts(path, items, node, found),
        (ValueKind::Integers(range), value) => check_integers(key, value, range, node, found),
        (ValueKind::Environment, TomlValue::Table(table)) => check_environment(path, table, found),
        (ValueKind::Names(what), TomlValue::Table(table)) => check_names(path, what, table, found),
        (ValueKind::Arguments, TomlValue::Table(table)) => check_arguments(path, table, found),
        (ValueKind::Values, TomlValue::Table(_)) => {}
        (ValueKind::Gpus, value) => check_gpus(key, value, node, found),
        (ValueKind::Text(_), _) => found.push(wrong_value(key, node, "a string")),
        (kind, _) => found.push(wrong_value(key, node, &kind.expected())),
    }
}

fn check_gpus(key: &ConfigKey, value: &TomlValue, node: &Node, found: &mut Diagnostics) {
    let expected = ValueKind::Gpus.expected();
    match value {
        TomlValue::String(word) if word == "all" || word == "auto" => {}
        TomlValue::String(word) => found.push(
            Diagnostic::at(&node.place, format!("`gpus` is `\"{word}\"`, expected {expected}")).hint(
                match suggest::value(key, word) {
                    Some(value) if value == *word => format!("write `gpus = {value}` without quotes"),
                    Some(value) => format!("write `gpus = {value}`"),
                    None => "expected `\"all\"`, or `\"auto\"` to accept a host without GPUs".to_owned(),
                },
            ),
        ),
        TomlValue::Integer(count) if (0..=1024).contains(count) => {}
        TomlValue::Integer(count) => found.push(
            Diagnostic::at(&node.place, format!("`gpus` is {count}, expected a count from 0 to 1024"))
                .hint("a single index is a list: `gpus = [0]`"),
        ),
        TomlValue::Array(items) => {
            let mut seen = BTreeSet::new();
            for item in items {
                match item.value {
                    TomlValue::Integer(index) if !(0..=1023).contains(&index) => found.push(
                        Diagnostic::at(
                            &item.place,
                            format!("GPU index {index} is out of range, expected 0 to 1023"),
                        )
                        .hint("list the indices with `nvidia-smi -L` on the host"),
                    ),
                    TomlValue::Integer(index) if !seen.insert(index) => found.push(
                        Diagnostic::at(&item.place, format!("GPU index {index} is listed twice"))
                            .label("duplicate")
                            .hint("list each GPU once; to share GPUs between ranks, set `nproc`"),
                    ),
                    TomlValue::Integer(_) => {}
                    ref other => found.push(wrong_type("gpus", other, "a list of integers", &item.place)),
                }
            }
        }
        other => found.push(wrong_type("gpus", other, &expected, &node.place)),
    }
}

fn check_tagged(
    table: &Table,
    tag: &str,
    variants: &'static [Variant],
    scope: &Scope,
    found: &mut Diagnostics,
) {
    let words: Vec<&str> = variants.iter().map(|variant| variant.word).collect();
    let list = words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", ");
    match table.get(tag).map(|entry| (&entry.node.value, &entry.node.place)) {
        Some((TomlValue::String(word), at)) => match variants.iter().find(|variant| variant.word == word) {
            Some(variant) => {
                let others = of_others(table, variant, variants);
                let own: Table =
                    table.iter().filter(|(name, _)| !others.contains_key(*name)).map(cloned).collect();
                check_table(&own, variant.all_keys(), scope, found);
                found.0.extend(foreign_keys(&others, tag, word, at, variants));
            }
            None => found.push(
                Diagnostic::at(at, format!("unknown {tag} `{word}`")).label(format!("unknown {tag}")).hint(
                    closest(word, words.iter().copied()).map_or(format!("known: {list}"), |close| {
                        format!("a similar value exists: `\"{close}\"`")
                    }),
                ),
            ),
        },
        Some((other, at)) => found.push(wrong_type(tag, other, &format!("one of {list}"), at)),
        None => {
            if let Some(variant) = variants.first() {
                check_table(table, variant.all_keys(), scope, found);
            }
        }
    }
}

fn cloned((name, entry): (&String, &TomlEntry)) -> (String, TomlEntry) {
    (name.clone(), entry.clone())
}

/// Returns the keys of the table that only other variants have.
fn of_others(table: &Table, variant: &'static Variant, variants: &'static [Variant]) -> Table {
    let has = |variant: &'static Variant, name: &str| variant.all_keys().any(|key| key.name == name);
    let foreign = |(name, _): &(&String, &TomlEntry)| {
        !has(variant, name) && variants.iter().any(|variant| has(variant, name))
    };
    table.iter().filter(foreign).map(cloned).collect()
}

/// Returns one error for all keys of other variants: the tag was changed, and its keys were not.
fn foreign_keys(
    others: &Table,
    tag: &str,
    word: &str,
    at: &SourceSpan,
    variants: &'static [Variant],
) -> Option<Diagnostic> {
    let (name, first) = others.iter().next()?;
    let names: Vec<String> = others.keys().map(|name| format!("`{name}`")).collect();
    let homes: Vec<String> = variants
        .iter()
        .filter(|variant| others.keys().all(|name| variant.all_keys().any(|key| key.name == *name)))
        .map(|variant| format!("`{}`", variant.word))
        .collect();
    let of = match homes.as_slice() {
        [] => "other algorithms".to_owned(),
        homes => homes.join(" and "),
    };
    let message = match others.len() {
        1 => format!("`{name}` belongs to {of}, but `{tag}` is `{word}`"),
        count => format!("{count} keys belong to {of}, but `{tag}` is `{word}`: {}", names.join(", ")),
    };
    let changed = at.source.name != first.key.source.name;
    let hint = match changed {
        true => format!(
            "reset the table with `--set ~learn --set learn.{tag}={word}`, or unset single keys: `--set ~learn.{name}`"
        ),
        false => format!("remove them, or set `{tag}` to the {tag} that they belong to"),
    };
    Some(Diagnostic::at(&first.key, message).label(format!("not a key of `{word}`")).hint(hint))
}

/// Checks a key with one number.
fn check_number(key: &ConfigKey, node: &Node, scope: &Scope, found: &mut Diagnostics) {
    let wrong = || wrong_value(key, node, &key.kind.expected());
    match (&key.kind, &node.value) {
        (ValueKind::Integer(range), TomlValue::Integer(number)) => {
            if !range.contains(number) {
                found.push(out_of_range(key, &number.to_string(), &node.place));
            }
        }
        (ValueKind::Integer(range), TomlValue::Float(number))
            if number.fract() == 0.0 && number.abs() < 1e15 =>
        {
            let whole = *number as i64;
            found.push(match range.contains(&i128::from(whole)) {
                true => wrong().hint(format!("write `{whole}` without a fraction or exponent")),
                false => out_of_range(key, &whole.to_string(), &node.place),
            });
        }
        (ValueKind::Number { min, max, open }, TomlValue::Integer(_) | TomlValue::Float(_)) => {
            let number = match node.value {
                TomlValue::Float(number) => number,
                TomlValue::Integer(number) => number as f64,
                _ => f64::NAN,
            };
            let inside =
                number.is_finite() && number <= *max && if *open { number > *min } else { number >= *min };
            if !inside {
                found.push(out_of_range(key, &number.to_string(), &node.place));
            }
        }
        (_, value) => match several(value) {
            Some(values) if suggest::instead_of(key, node).is_none() => {
                found.push(wrong().hint(one_run_each(key, &values, scope)))
            }
            _ => found.push(wrong()),
        },
    }
}

/// Returns the hint for several values: one run each.
fn one_run_each(key: &ConfigKey, values: &str, scope: &Scope) -> String {
    match key.name {
        "seed" => {
            format!("a run has one seed; `--seeds {values}` launches one run per seed")
        }
        path => {
            let table = scope.title.trim_matches(['[', ']']);
            format!("a run has one value; `--sweep {table}.{path}={values}` launches one run per value")
        }
    }
}

/// Returns two or more comma-separated numbers.
fn numbers(text: &str) -> Option<String> {
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    let all = parts.len() > 1 && parts.iter().all(|part| part.parse::<f64>().is_ok());
    all.then(|| parts.join(", "))
}

/// Returns several values in place of one.
fn several(value: &TomlValue) -> Option<String> {
    match value {
        TomlValue::String(text) if syntax::number(text).is_some() => None,
        TomlValue::String(text) => Some(numbers(text)?.replace(' ', "")),
        TomlValue::Array(items) => {
            let texts: Option<Vec<String>> = items
                .iter()
                .map(|item| match item.value {
                    TomlValue::Integer(number) => Some(number.to_string()),
                    TomlValue::Float(number) => Some(number.to_string()),
                    _ => None,
                })
                .collect();
            texts.filter(|texts| texts.len() > 1).map(|texts| texts.join(","))
        }
        _ => None,
    }
}

fn out_of_range(key: &ConfigKey, number: &str, at: &SourceSpan) -> Diagnostic {
    let expected = match &key.kind {
        // The usual text omits the upper bound, which this number exceeds.
        ValueKind::Integer(range)
            if number.parse::<i128>().is_ok_and(|number| number > *range.end())
                && !key.kind.expected().contains(&range.end().to_string()) =>
        {
            format!("an integer, at most {}", range.end())
        }
        kind => kind.expected(),
    };
    Diagnostic::at(at, format!("`{}` is {number}, expected {expected}", key.name)).hint(format!(
        "`{}`: {}",
        key.name,
        key.doc.trim_end_matches('.')
    ))
}

/// Checks a key with an array of integers.
fn check_integers(
    key: &ConfigKey,
    value: &TomlValue,
    range: &RangeInclusive<i128>,
    node: &Node,
    found: &mut Diagnostics,
) {
    let TomlValue::Array(items) = value else {
        return found.push(wrong_value(key, node, &key.kind.expected()));
    };
    if items.is_empty() {
        found.push(
            Diagnostic::at(&node.place, format!("`{}` is empty", key.name))
                .hint(format!("write {}", key.kind.expected())),
        );
    }
    for item in items {
        match &item.value {
            TomlValue::Integer(number) if range.contains(number) => {}
            TomlValue::Integer(number) => found.push(out_of_range(key, &number.to_string(), &item.place)),
            other => found.push(wrong_type(key.name, other, "integers only", &item.place)),
        }
    }
}

fn check_text(path: &str, text: &str, rule: &TextRule, at: &SourceSpan, found: &mut Diagnostics) {
    let verdict = match text.contains('\0') {
        true => Err(("contains a NUL character".to_owned(), format!("write {}", rule.expected))),
        false => (rule.test)(text),
    };
    if let Err((why, hint)) = verdict {
        found.push(Diagnostic::at(at, format!("`{path}` {why}")).hint(hint));
    }
}

fn check_texts(path: &str, items: &[Node], node: &Node, found: &mut Diagnostics) {
    if items.is_empty() {
        found.push(Diagnostic::at(&node.place, format!("`{path}` is empty")).hint(match path {
            "command" => "remove `command` to run the built-in trainer".to_owned(),
            _ => format!("remove `{path}`, or list at least one value"),
        }));
    }
    if path == "command"
        && let Some(diagnostic) = shell_line(items, node)
    {
        found.push(diagnostic);
    }
    for item in items {
        match &item.value {
            TomlValue::String(text) if text.contains('\0') => {
                found.push(Diagnostic::at(&item.place, format!("`{path}` contains a NUL character")));
            }
            TomlValue::String(_) => {}
            other => found.push(wrong_type(path, other, "strings only", &item.place)),
        }
    }
}

/// Reports a command that only a shell understands: it runs without one.
fn shell_line(items: &[Node], node: &Node) -> Option<Diagnostic> {
    let words: Option<Vec<&str>> = items
        .iter()
        .map(|item| match &item.value {
            TomlValue::String(word) => Some(word.as_str()),
            _ => None,
        })
        .collect();
    let words = words?;
    let first = *words.first()?;
    let whole = || format!("to run a shell command line, write `{}`", in_a_shell(&words));
    let refuse = |message: String, hint: String| Some(Diagnostic::at(&node.place, message).hint(hint));
    if first.trim().is_empty() {
        return refuse(
            "`command` has no program".into(),
            "the first string is the program, such as `\"python3\"`".into(),
        );
    }
    // A path may contain spaces; anything else is a shell command line.
    let is_line =
        first.trim().contains(char::is_whitespace) && !first.trim_start().starts_with(['/', '.', '~']);
    if is_line && words.len() == 1 {
        let hint = match syntax::words(first) {
            Some(split) => {
                let split: Vec<String> = split.iter().map(|word| suggest::quote(word)).collect();
                format!("write one string per argument: `[{}]`", split.join(", "))
            }
            None => {
                format!("to run a shell command line, write `[\"sh\", \"-c\", {}]`", suggest::quote(first))
            }
        };
        return refuse(format!("`command` would run a program named `{first}`"), hint)
            .map(|diagnostic| diagnostic.label("one string"));
    }
    if let Some((&"&", others)) = words.split_last() {
        let all: Vec<String> = others.iter().map(|word| suggest::quote(word)).collect();
        return refuse(
            format!("`command` would pass `&` to `{first}` as an argument"),
            format!("ranks need no `&`: write `[{}]`", all.join(", ")),
        );
    }
    if let Some(word) = words.iter().find(|word| is_operator(word)) {
        return refuse(format!("`command` would pass `{word}` to `{first}` as an argument"), whole());
    }
    if let Some(at) = glued(&words) {
        let split = words[at].split_whitespace();
        let all: Vec<&str> =
            words[..at].iter().copied().chain(split).chain(words[at + 1..].iter().copied()).collect();
        let all: Vec<String> = all.into_iter().map(suggest::quote).collect();
        return refuse(
            format!("`command` would pass `{}` to `{first}` as one argument", words[at]),
            format!("write one string per argument: `[{}]`", all.join(", ")),
        );
    }
    if let Some((name, value)) = first.split_once('=')
        && variables::is_name(name)
    {
        return refuse(
            format!("`command` starts with a variable: `{first}`"),
            format!("write `{name} = {}` in `[launch.env]`, and the program first", suggest::quote(value)),
        );
    }
    ["cd", "source", "export", "alias"].contains(&first).then(|| {
        Diagnostic::at(&node.place, format!("`{first}` is a shell builtin, not a program"))
            .hint(format!("{}; the `prelude` of a host runs before each rank", whole()))
    })
}

/// Returns whether a shell interprets the word: pipes, redirections, separators.
fn is_operator(word: &str) -> bool {
    if ["&&", "||", "&", "|", "|&", ";", "<", "<<<"].contains(&word) {
        return true;
    }
    // `2>&1`, `>out.txt`, `&>`.
    let behind = word.trim_start_matches(|c: char| c.is_ascii_digit() || c == '&');
    behind.starts_with('>') && word.len() - behind.len() <= 1 && !word.contains(char::is_whitespace)
}

/// Returns the argument that is an option and its value in one string: `-m torch.distributed.run`.
fn glued(words: &[&str]) -> Option<usize> {
    let is_text = |at: usize| at > 0 && ["-c", "-e", "-lc", "-ic", "-ec"].contains(&words[at - 1]);
    let is_option = |word: &str| word.starts_with('-') && !word.contains('=');
    (1..words.len()).find(|at| {
        let Some((option, value)) = words[*at].split_once(char::is_whitespace) else { return false };
        let letters = option.trim_start_matches('-');
        let is_named = is_option(option)
            && letters.starts_with(|c: char| c.is_ascii_alphabetic())
            && letters.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        // After another option it may be that option's value: `--worker-args "--lr 1"`.
        let follows = *at > 1 && is_option(words[at - 1]) && option != "-m";
        is_named && !value.trim().is_empty() && !follows && !is_text(*at)
    })
}

/// Returns the words as a command that a shell runs, with shell syntax unquoted.
pub fn in_a_shell(words: &[&str]) -> String {
    let left = |word: &str| is_operator(word) || word.starts_with("~/") || word == "~";
    let word = |word: &&str| match *word {
        word if left(word) => word.to_owned(),
        word if word.contains('$') => format!("\"{}\"", word.replace(['"', '`', '\\'], "")),
        word => quote::word(word),
    };
    let line: Vec<String> = words.iter().map(word).collect();
    format!("[\"sh\", \"-c\", {}]", suggest::quote(&line.join(" ")))
}

/// Checks a table of strings with free names.
fn check_names(path: &str, what: &str, table: &Table, found: &mut Diagnostics) {
    for (name, entry) in table {
        if !matches!(entry.node.value, TomlValue::String(_)) {
            let at = format!("{path}.{name}");
            let wrong = wrong_type(&at, &entry.node.value, "a string", &entry.node.place);
            found.push(wrong.hint(format!("write {what} as a string")));
        }
    }
}

/// Checks a table of arguments, whose values are texts by now.
fn check_arguments(path: &str, table: &Table, found: &mut Diagnostics) {
    let is_part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
    };
    for (name, entry) in table {
        if !name.split('.').all(is_part) {
            let bare = name.trim_start_matches(['-', '+']);
            let hint = match bare != name && bare.split('.').all(is_part) {
                true => format!("write `{bare}`, without `{}`", name.trim_end_matches(bare)),
                false => "use letters, digits, `_`, `-` and dots".to_owned(),
            };
            let message = format!("invalid name of an argument: `{}`", name.escape_default());
            found.push(Diagnostic::at(&entry.key, message).hint(hint));
        }
        let at = format!("{path}.{name}");
        match &entry.node.value {
            TomlValue::String(text) if text.contains('\0') => {
                found.push(Diagnostic::at(&entry.node.place, format!("`{at}` contains a NUL character")));
            }
            TomlValue::String(_) => {}
            other => {
                let expected = "a text, number, boolean or array of these";
                found.push(wrong_type(&at, other, expected, &entry.node.place));
            }
        }
    }
}

/// Returns the hint for an invalid variable name.
fn name_hint(name: &str, node: &Node) -> String {
    let rule = "use letters, digits and `_`, not starting with a digit";
    let (name, more) = name.split_once('=').unwrap_or((name, ""));
    let mut plain: String =
        name.trim().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if plain.starts_with(|c: char| c.is_ascii_digit()) {
        plain.insert(0, '_');
    }
    let value = match (&node.value, more) {
        (TomlValue::String(value), "") => value.clone(),
        (TomlValue::String(value), more) => format!("{more}={value}"),
        _ => return rule.to_owned(),
    };
    if variables::names_secret(&plain) {
        return rule.to_owned();
    }
    match variables::is_name(&plain)
        && !plain.trim_matches('_').is_empty()
        && variables::reserved(&plain).is_none()
    {
        true => format!("{rule}: write `{plain} = {}`", suggest::quote(&value)),
        false => rule.to_owned(),
    }
}

fn check_environment(path: &str, table: &Table, found: &mut Diagnostics) {
    for (name, entry) in table {
        if !variables::is_name(name) {
            let message = format!("invalid environment variable name `{}`", name.escape_default());
            found.push(Diagnostic::at(&entry.key, message).hint(name_hint(name, &entry.node)));
        }
        if let Some(HintedError { error, hint }) = variables::reserved(name) {
            found.push(Diagnostic::at(&entry.key, error).hint(hint));
        }
        match &entry.node.value {
            TomlValue::String(text) if text.contains('\0') => {
                found.push(Diagnostic::at(
                    &entry.node.place,
                    format!("`{path}.{name}` contains a NUL character"),
                ));
            }
            TomlValue::String(text) => {
                if let Err(fault) = variables::check(text) {
                    let message = format!("`{path}.{name}` {}", fault.error);
                    found.push(Diagnostic::at(&entry.node.place, message).hint(fault.hint));
                }
            }
            other => {
                let wrong = wrong_type(&format!("{path}.{name}"), other, "a string", &entry.node.place);
                found.push(if variables::names_secret(name) {
                    wrong.hint("write it in quotes")
                } else {
                    wrong
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::experiment::Experiment;
    use rankdeck_types::host::Hosts;

    #[test]
    fn invalid_line_is_suggested_in_its_keys_form() {
        let hint = |keys: Keys, text: &str| {
            let source = Arc::new(SourceText::new("f", text));
            parse(&source, keys).unwrap_err().0[0].hint.clone()
        };
        for (text, line) in [
            ("[learn]\ngamma = 0,99\n", "gamma = 0.99"),
            ("[policy]\nhidden = (64, 64)\n", "hidden = [64, 64]"),
            ("[policy]\nhidden = 64, 64\n", "hidden = [64, 64]"),
            ("[run]\ntotal_steps = 10^6\n", "total_steps = 1000000"),
            ("[launch] # of all\nstop_grace_s = 10m\n", "stop_grace_s = 600"),
            ("[run]\nname = ppo\n", "name = \"ppo\""),
            ("[launch]\ncommand = python train.py\n", "command = [\"python\", \"train.py\"]"),
            ("[learn]\nanneal_lr = True\n", "anneal_lr = true"),
        ] {
            assert_eq!(hint(Experiment::KEYS, text), format!("write `{line}`"), "{text}");
        }
        for (text, line) in [
            ("[[host]]\nname = gpu-a\n", "name = \"gpu-a\""),
            ("[[host]]\nname = \"a\"\ngpus = 0, 1\n", "gpus = [0, 1]"),
            ("[defaults]\nenv = A=1 B=2\n", ""),
        ] {
            let found = hint(Hosts::KEYS, text);
            assert!(found == format!("write `{line}`") || line.is_empty(), "{text}: {found}");
        }
    }
}
