//! What a text means for a key: the value as TOML has it. Nothing is told that the key would not take.

use super::{Scope, check_value};
use crate::diagnostic::{Diagnostics, Source};
use crate::document::{self, Node, Value};
use crate::suggest::closest;
use crate::syntax::{self, Word};
use rankdeck_types::schema::{Key, Kind};
use std::sync::Arc;

/// The value to write for what was written.
pub(super) fn instead_of(key: &Key, node: &Node) -> Option<String> {
    let written = || node.place.source.text.get(node.place.range.clone()).map(str::to_owned);
    let text = match &node.value {
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let texts: Option<Vec<&str>> = items
                .iter()
                .map(|item| match &item.value {
                    Value::String(text) => Some(text.as_str()),
                    _ => None,
                })
                .collect();
            let between = match &key.kind {
                Kind::Environment => " ",
                Kind::Text(rule) if rule.expected == "a shell line" => " && ",
                _ if items.len() == 1 => "",
                _ => return None,
            };
            texts?.join(between)
        }
        Value::Table(_) => return None,
        _ => written()?,
    };
    value(key, &text)
}

/// The value that a text means for a key; `None` when there is none that the key takes.
pub fn value(key: &Key, text: &str) -> Option<String> {
    // No value of ours is as long.
    if text.len() > 4096 {
        return None;
    }
    candidates(key, text.trim()).into_iter().find(|candidate| fits(key, candidate))
}

/// The key takes this value.
fn fits(key: &Key, value: &str) -> bool {
    let source = Arc::new(Source::new("", format!("{} = {value}", key.name)));
    let Ok(root) = document::parse(&source) else { return false };
    let Some(found) = root.entry(key.name).filter(|_| root.table().is_some_and(|table| table.len() == 1))
    else {
        return false;
    };
    let mut wrong = Diagnostics::new();
    let scope = Scope { top: &[], title: String::new(), header: None };
    check_value(key, found.node, found.key, &scope, &mut wrong);
    wrong.0.is_empty()
}

fn candidates(key: &Key, text: &str) -> Vec<String> {
    let plain = text.trim_start_matches('=').trim();
    let quoted = || vec![quote(plain)];
    match &key.kind {
        Kind::Integer(_) | Kind::Number { .. } => number(key, plain).into_iter().collect(),
        Kind::Flag | Kind::FlagOrText(_) => {
            let flag = match (plain, syntax::word(plain)) {
                ("true" | "1", _) | (_, Some(Word::Flag(true))) => Some("true".to_owned()),
                ("false" | "0", _) | (_, Some(Word::Flag(false))) => Some("false".to_owned()),
                _ => None,
            };
            let texts = if matches!(key.kind, Kind::Flag) { Vec::new() } else { quoted() };
            flag.into_iter().chain(texts).collect()
        }
        Kind::Text(_) => quoted(),
        Kind::Choice(words) => {
            let lower = plain.to_lowercase();
            let same = words.iter().find(|word| **word == lower).copied();
            same.or_else(|| closest(plain, words.iter().copied())).map(quote).into_iter().collect()
        }
        Kind::Integers(_) => list(plain).map(|items| format!("[{}]", items.join(", "))).into_iter().collect(),
        Kind::Gpus => {
            let numbers = list(plain).map(|items| format!("[{}]", items.join(", ")));
            let count = plain.parse::<u32>().ok().map(|count| count.to_string());
            // Another word would be asked for what it means, and so on.
            let word = plain.to_lowercase();
            let word = ["all", "auto"].contains(&word.as_str()).then(|| quote(&word));
            count.into_iter().chain(numbers).chain(word).collect()
        }
        Kind::Texts(_) if key.name == "command" => {
            let words = syntax::words(plain);
            words.filter(|words| !words.is_empty()).map(|words| texts(&words)).into_iter().collect()
        }
        // A pattern may hold a comma.
        Kind::Texts(what) if *what == "patterns" && key.name == "stdout" => match plain.contains('\'') {
            true => vec![texts(&[plain.to_owned()])],
            false => vec![format!("['{plain}']")],
        },
        Kind::Texts(_) => {
            let items: Vec<String> = strip(plain).split(',').map(|item| bare(item).to_owned()).collect();
            if items.iter().any(String::is_empty) { Vec::new() } else { vec![texts(&items)] }
        }
        Kind::Environment => syntax::pairs(plain)
            .map(|pairs| {
                let pairs: Vec<String> =
                    pairs.iter().map(|(name, value)| format!("{name} = {}", quote(value))).collect();
                format!("{{ {} }}", pairs.join(", "))
            })
            .into_iter()
            .collect(),
        Kind::Names(_) | Kind::Table(_) | Kind::Tables(_) | Kind::Tagged { .. } => Vec::new(),
    }
}

/// A number in any form that people write, in TOML's.
fn number(key: &Key, text: &str) -> Option<String> {
    let of_unit = match key.name.rsplit_once('_').map(|(_, unit)| unit) {
        Some("s") => syntax::seconds(text),
        Some("mb") => syntax::mebibytes(text),
        _ => None,
    };
    let value = match of_unit {
        Some(value) => value,
        None => syntax::number(bare(text))?,
    };
    match &key.kind {
        Kind::Integer(_) if value.fract() != 0.0 => None,
        // What Rust and TOML read alike stays as it was written.
        Kind::Number { .. } if syntax::is_toml_number(text) => Some(text.to_owned()),
        _ if value.fract() == 0.0 && value.abs() < 1e15 => Some(format!("{value:.0}")),
        _ => Some(format!("{value:?}")),
    }
}

/// The numbers of `64, 64`, `(64, 64)`, `[64 64]` and `64x64`; of one number, that alone.
fn list(text: &str) -> Option<Vec<String>> {
    let inner = strip(text);
    let cut = |c: char| c == ',' || c.is_whitespace() || c == 'x' || c == ';';
    let items: Vec<String> = inner.split(cut).filter(|item| !item.is_empty()).map(str::to_owned).collect();
    let all = !items.is_empty() && items.iter().all(|item| item.parse::<u64>().is_ok());
    all.then_some(items)
}

/// Without the brackets around all of it.
fn strip(text: &str) -> &str {
    [('(', ')'), ('[', ']'), ('{', '}')]
        .iter()
        .find_map(|(open, close)| text.strip_prefix(*open)?.strip_suffix(*close))
        .unwrap_or(text)
        .trim()
        .trim_end_matches(',')
}

/// Without the quotes around all of it.
fn bare(text: &str) -> &str {
    let text = text.trim();
    ['"', '\''].iter().find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote)).unwrap_or(text)
}

fn texts(items: &[String]) -> String {
    let items: Vec<String> = items.iter().map(|item| quote(item)).collect();
    format!("[{}]", items.join(", "))
}

/// A string of TOML, on one line.
pub fn quote(text: &str) -> String {
    match text.contains('\\') && !text.contains('\'') && !text.contains(char::is_control) {
        true => format!("'{text}'"),
        false => {
            let escaped: String = text
                .chars()
                .map(|c| match c {
                    '"' => "\\\"".to_owned(),
                    '\\' => "\\\\".to_owned(),
                    c if c.is_control() => format!("\\u{:04X}", u32::from(c)),
                    c => c.to_string(),
                })
                .collect();
            format!("\"{escaped}\"")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::experiment::Experiment;
    use rankdeck_types::host::Hosts;
    use rankdeck_types::schema;

    #[test]
    fn what_people_write_is_told_as_toml_has_it() {
        for (path, text, told) in [
            ("launch.stop_grace_s", "10m", Some("600")),
            ("launch.stop_grace_s", "1h30m", Some("5400")),
            ("launch.stop_grace_s", "1.5 min", Some("90")),
            ("launch.stop_grace_s", "500ms", Some("0.5")),
            ("launch.stop_grace_s", "0:01:30", Some("90")),
            ("launch.stop_grace_s", "30", Some("30")),
            ("launch.stop_grace_s", "10 years", None),
            ("launch.stop_grace_s", "-1s", None),
            ("distributed.bucket_mb", "25MiB", Some("25")),
            ("distributed.bucket_mb", "1 GB", Some("1024")),
            ("learn.gamma", "0,99", Some("0.99")),
            ("learn.gamma", "99%", Some("0.99")),
            ("learn.gamma", ".99", Some("0.99")),
            ("learn.gamma", "3/4", Some("0.75")),
            ("learn.gamma", "99", None),
            ("learn.learning_rate", "3e-4", Some("3e-4")),
            ("learn.learning_rate", "3*10^-4", None),
            ("run.total_steps", "10^6", Some("1000000")),
            ("run.total_steps", "2**16", Some("65536")),
            ("run.total_steps", "64 * 1024", Some("65536")),
            ("run.total_steps", "1e6", Some("1000000")),
            ("run.total_steps", "1.5M", Some("1500000")),
            ("run.total_steps", "1 000 000", Some("1000000")),
            ("run.total_steps", "1'000'000", Some("1000000")),
            ("run.total_steps", "0.5", None),
            ("run.total_steps", "-3", None),
            ("launch.master_port", "70000", None),
            ("policy.hidden", "(64, 64)", Some("[64, 64]")),
            ("policy.hidden", "64x32", Some("[64, 32]")),
            ("policy.hidden", "64", Some("[64]")),
            ("policy.hidden", "(0, 64)", None),
            ("launch.env", "A=1 B=2", Some("{ A = \"1\", B = \"2\" }")),
            ("launch.env", "export A='x y'; B=", Some("{ A = \"x y\", B = \"\" }")),
            ("launch.env", "RANK=1", None),
            ("launch.command", "python 'my train.py' --x", Some("[\"python\", \"my train.py\", \"--x\"]")),
            ("launch.command", "cd x && make", None),
            ("launch.pass_env", "A, B", Some("[\"A\", \"B\"]")),
            ("metrics.stdout", "a=(?P<a>[0-9]{1,3})", Some("['a=(?P<a>[0-9]{1,3})']")),
            ("launch.on_disconnect", "Stop", Some("\"stop\"")),
            ("learn.anneal_lr", "no", Some("false")),
            ("host.gpus", "0, 1", Some("[0, 1]")),
            ("host.gpus", "2", Some("2")),
            ("host.address", "5", None),
            ("host.uv", "yes", Some("true")),
            ("host.uv", "proj", Some("\"proj\"")),
        ] {
            let parts: Vec<&str> = path.split('.').collect();
            let keys = if path.starts_with("host.") { Hosts::KEYS } else { Experiment::KEYS };
            let key = schema::find(keys, &parts).unwrap_or_else(|| panic!("{path}"));
            assert_eq!(value(key, text).as_deref(), told, "{path} = {text}");
        }
    }
}
