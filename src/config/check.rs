//! Compares a document with the schema: unknown keys, missing keys, types, ranges. Finds all mistakes, not
//! the first.

mod numbers;

use super::aliases::elsewhere;
use super::diagnostic::{Diagnostic, Diagnostics, Place};
use super::document::{Entry, Node, Table, Value};
use super::suggest::{closest, nearly};
use numbers::{check_integers, check_number};
use rankdeck_types::schema::{self, Key, Keys, Kind, TextRule, Variant};
use rankdeck_types::variables;
use std::collections::BTreeSet;

/// Checks a whole document whose top level is `keys`.
pub fn check(root: &Node, keys: Keys, found: &mut Diagnostics) {
    if let Value::Table(table) = &root.value {
        let top = Scope { top: keys, title: String::new(), header: None };
        check_table(table, keys.iter(), &top, found);
    }
}

/// Where in the document a table is.
struct Scope {
    /// The schema's top level, to tell where a misplaced key belongs.
    top: Keys,
    /// `[env]`, `[[host]]`; empty at the top.
    title: String,
    /// Its header, to point at when a key is missing.
    header: Option<Place>,
}

fn check_table(
    table: &Table,
    keys: impl Iterator<Item = &'static Key> + Clone,
    scope: &Scope,
    found: &mut Diagnostics,
) {
    for (name, entry) in table {
        match keys.clone().find(|key| key.name == name) {
            Some(key) => check_value(key, &entry.node, &entry.key, scope, found),
            None => found.push(unknown(name, entry, keys.clone(), scope)),
        }
    }
    for key in keys.filter(|key| key.is_required() && !table.contains_key(key.name)) {
        // A document without any host has an error of its own.
        if !matches!(key.kind, Kind::Tables(_)) {
            found.push(missing(key, scope));
        }
    }
}

fn missing(key: &Key, scope: &Scope) -> Diagnostic {
    let is_table = matches!(key.kind, Kind::Table(_));
    let what = if is_table { format!("[{}]", key.name) } else { key.name.to_owned() };
    let message = match scope.title.as_str() {
        "" => format!("`{what}` is missing"),
        title => format!("`{what}` is missing in `{title}`"),
    };
    let hint = if is_table {
        format!("add a table `{what}`")
    } else {
        format!("add `{} = {}`", key.name, example(key, &scope.title))
    };
    match &scope.header {
        Some(place) => Diagnostic::at(place, message).label(format!("without `{what}`")).hint(hint),
        None => Diagnostic::about_file(String::new(), message).hint(hint),
    }
}

/// A value that would pass, for hints.
fn example(key: &Key, title: &str) -> String {
    match (&key.kind, key.name) {
        (_, "id") => "\"CartPole-v1\"".into(),
        (Kind::Choice(words), _) => format!("\"{}\"", words.first().copied().unwrap_or_default()),
        (Kind::Integer(_), _) => "4".into(),
        (Kind::Text(_), "name") if title == "[run]" => "\"ppo\"".into(),
        (Kind::Text(_), "name") => "\"node0\"".into(),
        _ => "...".into(),
    }
}

fn unknown(
    name: &str,
    entry: &Entry,
    keys: impl Iterator<Item = &'static Key> + Clone,
    scope: &Scope,
) -> Diagnostic {
    let names = || keys.clone().map(|key| key.name);
    let message = match scope.title.as_str() {
        "" => format!("unknown key `{name}`"),
        title => format!("unknown key `{name}` in `{title}`"),
    };
    let near = closest(name, names());
    let hint = match (home_of(name, scope), near, elsewhere(name)) {
        (Some(home), near, _) if near.is_none_or(|near| !nearly(name, near)) => {
            format!("`{name}` belongs in `{home}`")
        }
        (None, near, Some(hint)) if near.is_none_or(|near| !nearly(name, near)) => hint.to_owned(),
        (_, Some(close), _) => format!("did you mean `{close}`?"),
        (_, None, _) => {
            let list: Vec<String> = names().map(|name| format!("`{name}`")).collect();
            format!("known keys here: {}", list.join(", "))
        }
    };
    Diagnostic::at(&entry.key, message).label("unknown key").hint(hint)
}

/// The table that has a key of this name, when it is not this one.
fn home_of(name: &str, scope: &Scope) -> Option<String> {
    let title = |key: &Key| match key.kind {
        Kind::Tables(_) => format!("[[{}]]", key.name),
        _ => format!("[{}]", key.name),
    };
    let found = |key: &Key| schema::find(scope.top, &[key.name, name]);
    scope
        .top
        .iter()
        .filter(|key| title(key) != scope.title && found(key).is_some())
        // The table that cannot do without it; `[[host]]` rather than `[defaults]`.
        .max_by_key(|key| found(key).is_some_and(Key::is_required))
        .map(title)
}

fn check_value(key: &Key, node: &Node, at: &Place, scope: &Scope, found: &mut Diagnostics) {
    let path = key.name;
    match (&key.kind, &node.value) {
        (Kind::Table(keys), Value::Table(table)) => {
            let inner = Scope { top: scope.top, title: format!("[{path}]"), header: Some(at.clone()) };
            check_table(table, keys.iter(), &inner, found);
        }
        (Kind::Tables(keys), Value::Array(items)) => {
            for item in items {
                match &item.value {
                    Value::Table(table) => {
                        let header = Some(item.place.clone());
                        let inner = Scope { top: scope.top, title: format!("[[{path}]]"), header };
                        check_table(table, keys.iter(), &inner, found);
                    }
                    other => found.push(wrong_type(path, other, "a table", &item.place)),
                }
            }
        }
        (Kind::Tables(_), Value::Table(_)) => found.push(
            Diagnostic::at(at, format!("`[{path}]` is one table, expected an array of tables"))
                .hint(format!("write `[[{path}]]`, once per {path}")),
        ),
        (Kind::Tagged { tag, variants }, Value::Table(table)) => {
            let inner = Scope { top: scope.top, title: format!("[{path}]"), header: Some(at.clone()) };
            check_tagged(table, tag, variants, &inner, found);
        }
        (Kind::Text(rule), Value::String(text)) => check_text(path, text, rule, &node.place, found),
        (Kind::Choice(words), Value::String(word)) if !words.contains(&word.as_str()) => {
            let meant =
                closest(word, words.iter().copied()).map(|close| format!("did you mean `\"{close}\"`?"));
            let former = schema::former_word(key.name, word).map(str::to_owned);
            let hint = former.or(meant).unwrap_or_else(|| format!("write {}", key.kind.expected()));
            found.push(
                Diagnostic::at(
                    &node.place,
                    format!("`{path}` is `\"{word}\"`, expected {}", key.kind.expected()),
                )
                .hint(hint),
            );
        }
        (Kind::FlagOrText(rule), Value::String(text)) => check_text(path, text, rule, &node.place, found),
        (Kind::Choice(_), Value::String(_)) | (Kind::Flag | Kind::FlagOrText(_), Value::Boolean(_)) => {}
        (Kind::Integer(_) | Kind::Number { .. }, _) => check_number(key, node, scope, found),
        (Kind::Texts(_), Value::Array(items)) => check_texts(path, items, node, found),
        (Kind::Integers(range), value) => check_integers(key, value, range, node, found),
        (Kind::Environment, Value::Table(table)) => check_environment(path, table, found),
        (Kind::Names(what), Value::Table(table)) => check_names(path, what, table, found),
        (Kind::Gpus, value) => check_gpus(value, node, found),
        (Kind::Text(_), value) => found.push(wrong_type(path, value, "a string", &node.place)),
        (kind, value) => found.push(wrong_type(path, value, &kind.expected(), &node.place)),
    }
}

fn wrong_type(path: &str, value: &Value, expected: &str, at: &Place) -> Diagnostic {
    let kind = value.type_name();
    let diagnostic = Diagnostic::at(at, format!("`{path}` is {kind}, expected {expected}")).label(kind);
    match value {
        Value::String(text)
            if text.parse::<f64>().is_ok()
                && (expected.contains("integer") || expected.contains("number")) =>
        {
            diagnostic.hint(format!("write `{text}` without quotes"))
        }
        Value::String(text) if text.parse::<bool>().is_ok() && expected.contains("true") => {
            diagnostic.hint(format!("write `{text}` without quotes"))
        }
        Value::Integer(number) if expected == "a string" => diagnostic.hint(format!("write `\"{number}\"`")),
        Value::String(_) if expected.contains("an array of strings") => {
            diagnostic.hint("write `[\"program\", \"argument\", ...]`, one string per argument")
        }
        Value::Table(_) if !expected.contains("table") => diagnostic,
        _ => diagnostic.hint(format!("write {expected}")),
    }
}

fn check_text(path: &str, text: &str, rule: &TextRule, at: &Place, found: &mut Diagnostics) {
    let verdict = match text.contains('\0') {
        true => Err(("holds a NUL character".to_owned(), format!("write {}", rule.expected))),
        false => (rule.test)(text),
    };
    if let Err((why, hint)) = verdict {
        found.push(Diagnostic::at(at, format!("`{path}` {why}")).hint(hint));
    }
}

fn check_texts(path: &str, items: &[Node], node: &Node, found: &mut Diagnostics) {
    let first = items.first().map(|item| &item.value);
    match first {
        None => found.push(Diagnostic::at(&node.place, format!("`{path}` is empty")).hint(match path {
            "command" => "leave `command` out to run the built-in trainer".to_owned(),
            _ => format!("leave `{path}` out, or write what it lists"),
        })),
        // Without a path of that name, a line for a shell was meant.
        Some(Value::String(line))
            if path == "command"
                && items.len() == 1
                && line.trim().contains(char::is_whitespace)
                && !line.trim_start().starts_with(['/', '.', '~']) =>
        {
            let words: Vec<String> = line.split_whitespace().map(|word| format!("{word:?}")).collect();
            found.push(
                Diagnostic::at(&node.place, format!("`{path}` would run a program called `{line}`"))
                    .label("one string")
                    .hint(format!("write one string per argument: `[{}]`", words.join(", "))),
            );
        }
        Some(Value::String(program)) if program.trim().is_empty() && path == "command" => found.push(
            Diagnostic::at(&node.place, format!("`{path}` names no program"))
                .hint("the first string is the program, such as `\"python3\"`"),
        ),
        Some(_) => {}
    }
    for item in items {
        match &item.value {
            Value::String(text) if text.contains('\0') => {
                found.push(Diagnostic::at(&item.place, format!("`{path}` holds a NUL character")));
            }
            Value::String(_) => {}
            other => found.push(wrong_type(path, other, "strings only", &item.place)),
        }
    }
}

/// Strings under names of the user's choice.
fn check_names(path: &str, what: &str, table: &Table, found: &mut Diagnostics) {
    for (name, entry) in table {
        if !matches!(entry.node.value, Value::String(_)) {
            let at = format!("{path}.{name}");
            let wrong = wrong_type(&at, &entry.node.value, "a string", &entry.node.place);
            found.push(wrong.hint(format!("write {what} as a string")));
        }
    }
}

fn check_environment(path: &str, table: &Table, found: &mut Diagnostics) {
    for (name, entry) in table {
        if name.is_empty() || name.contains(['=', '\0']) {
            found.push(
                Diagnostic::at(
                    &entry.key,
                    format!("`{}` is no name of an environment variable", name.escape_default()),
                )
                .hint("names are not empty and hold no `=`"),
            );
        }
        match &entry.node.value {
            Value::String(text) if text.contains('\0') => {
                found.push(Diagnostic::at(
                    &entry.node.place,
                    format!("`{path}.{name}` holds a NUL character"),
                ));
            }
            Value::String(text) => {
                if let Err(fault) = variables::check(text) {
                    let message = format!("`{path}.{name}` {}", fault.error);
                    found.push(Diagnostic::at(&entry.node.place, message).hint(fault.hint));
                }
            }
            other => found.push(wrong_type(&format!("{path}.{name}"), other, "a string", &entry.node.place)),
        }
    }
}

fn check_gpus(value: &Value, node: &Node, found: &mut Diagnostics) {
    let expected = Kind::Gpus.expected();
    match value {
        Value::String(word) if word == "all" || word == "auto" => {}
        Value::String(word) => found.push(
            Diagnostic::at(&node.place, format!("`gpus` is `\"{word}\"`, expected {expected}")).hint(
                match word.parse::<u32>() {
                    Ok(count) => format!("write `gpus = {count}` without quotes"),
                    Err(_) => "the words are `\"all\"`, and `\"auto\"`: all there are, or none".to_owned(),
                },
            ),
        ),
        Value::Integer(count) if (0..=1024).contains(count) => {}
        Value::Integer(count) => found.push(
            Diagnostic::at(&node.place, format!("`gpus` is {count}, expected a count from 0 to 1024"))
                .hint("a list of one index is `gpus = [0]`"),
        ),
        Value::Array(items) => {
            let mut seen = BTreeSet::new();
            for item in items {
                match item.value {
                    Value::Integer(index) if !(0..=1023).contains(&index) => found.push(
                        Diagnostic::at(
                            &item.place,
                            format!("GPU index {index} is out of range, expected 0 to 1023"),
                        )
                        .hint("`nvidia-smi -L` on the host lists the indices"),
                    ),
                    Value::Integer(index) if !seen.insert(index) => found.push(
                        Diagnostic::at(&item.place, format!("GPU index {index} is listed twice"))
                            .label("again")
                            .hint("list every GPU once; `nproc` larger than the list makes ranks share GPUs"),
                    ),
                    Value::Integer(_) => {}
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
        Some((Value::String(word), at)) => match variants.iter().find(|variant| variant.word == word) {
            Some(variant) => {
                let others = of_others(table, variant, variants);
                let own: Table =
                    table.iter().filter(|(name, _)| !others.contains_key(*name)).map(cloned).collect();
                check_table(&own, variant.all_keys(), scope, found);
                found.0.extend(strangers(&others, tag, word, at, variants));
            }
            None => found.push(
                Diagnostic::at(at, format!("unknown {tag} `{word}`")).label(format!("unknown {tag}")).hint(
                    closest(word, words.iter().copied())
                        .map_or(format!("known: {list}"), |close| format!("did you mean `\"{close}\"`?")),
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

fn cloned((name, entry): (&String, &Entry)) -> (String, Entry) {
    (name.clone(), entry.clone())
}

/// Keys of the table that only other variants have.
fn of_others(table: &Table, variant: &'static Variant, variants: &'static [Variant]) -> Table {
    let has = |variant: &'static Variant, name: &str| variant.all_keys().any(|key| key.name == name);
    let foreign = |(name, _): &(&String, &Entry)| {
        !has(variant, name) && variants.iter().any(|variant| has(variant, name))
    };
    table.iter().filter(foreign).map(cloned).collect()
}

/// One mistake, however many keys there are: a word was changed, and the keys beside it were not.
fn strangers(
    others: &Table,
    tag: &str,
    word: &str,
    at: &Place,
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
        1 => format!("`{name}` is a key of {of}, and `{tag}` is `{word}`"),
        count => format!("{count} keys are those of {of}, and `{tag}` is `{word}`: {}", names.join(", ")),
    };
    let changed = at.source.name != first.key.source.name;
    let hint = match changed {
        true => format!(
            "begin the table anew: `--set ~learn --set learn.{tag}={word}`; or remove single keys: `--set ~learn.{name}`"
        ),
        false => format!("remove them, or set `{tag}` to what they belong to"),
    };
    Some(Diagnostic::at(&first.key, message).label(format!("not of `{word}`")).hint(hint))
}
