//! Compares a document with the schema: unknown keys, missing keys, types, ranges. Finds all mistakes, not
//! the first.

mod instead;
pub mod meant;
mod numbers;
mod texts;
mod unknown;

pub use texts::in_a_shell;

use super::diagnostic::{Diagnostic, Diagnostics, Place};
use super::document::{Entry, Node, Table, Value};
use super::suggest::closest;
use instead::{wrong_type, wrong_value};
use numbers::{check_integers, check_number};
use rankdeck_types::schema::{self, Key, Keys, Kind, Variant};
use std::collections::BTreeSet;
use texts::{check_environment, check_names, check_text, check_texts};
use unknown::unknown;

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
    let mut misspelt = BTreeSet::new();
    for (name, entry) in table {
        match keys.clone().find(|key| key.name == name) {
            Some(key) => check_value(key, &entry.node, &entry.key, scope, found),
            None => {
                misspelt.extend(closest(name, keys.clone().map(|key| key.name)));
                found.push(unknown(name, entry, keys.clone(), scope));
            }
        }
    }
    for key in keys.filter(|key| key.is_required() && !table.contains_key(key.name)) {
        // A document without any host has an error of its own, and so has a name that is misspelt.
        if !matches!(key.kind, Kind::Tables(_)) && !misspelt.contains(key.name) {
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
    let hint = if let Kind::Table(keys) = &key.kind {
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
        (Kind::Text(_), Value::String(text)) if text.trim().is_empty() && key.is_required() => found.push(
            Diagnostic::at(&node.place, format!("`{path}` is empty"))
                .hint(format!("write `{path} = {}`", example(key, &scope.title))),
        ),
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
        (Kind::Gpus, value) => check_gpus(key, value, node, found),
        (Kind::Text(_), _) => found.push(wrong_value(key, node, "a string")),
        (kind, _) => found.push(wrong_value(key, node, &kind.expected())),
    }
}

fn check_gpus(key: &Key, value: &Value, node: &Node, found: &mut Diagnostics) {
    let expected = Kind::Gpus.expected();
    match value {
        Value::String(word) if word == "all" || word == "auto" => {}
        Value::String(word) => found.push(
            Diagnostic::at(&node.place, format!("`gpus` is `\"{word}\"`, expected {expected}")).hint(
                match meant::value(key, word) {
                    Some(value) if value == *word => format!("write `gpus = {value}` without quotes"),
                    Some(value) => format!("write `gpus = {value}`"),
                    None => "the words are `\"all\"`, and `\"auto\"`: all there are, or none".to_owned(),
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
