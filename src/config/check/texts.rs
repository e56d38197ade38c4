//! Keys that hold texts: one, several, or some under names.

use super::{meant, wrong_type};
use crate::diagnostic::{Diagnostic, Diagnostics, Place};
use crate::document::{Node, Table, Value};
use crate::syntax;
use rankdeck_types::error::HintedError;
use rankdeck_types::quote;
use rankdeck_types::schema::TextRule;
use rankdeck_types::variables;

pub(super) fn check_text(path: &str, text: &str, rule: &TextRule, at: &Place, found: &mut Diagnostics) {
    let verdict = match text.contains('\0') {
        true => Err(("holds a NUL character".to_owned(), format!("write {}", rule.expected))),
        false => (rule.test)(text),
    };
    if let Err((why, hint)) = verdict {
        found.push(Diagnostic::at(at, format!("`{path}` {why}")).hint(hint));
    }
}

pub(super) fn check_texts(path: &str, items: &[Node], node: &Node, found: &mut Diagnostics) {
    if items.is_empty() {
        found.push(Diagnostic::at(&node.place, format!("`{path}` is empty")).hint(match path {
            "command" => "leave `command` out to run the built-in trainer".to_owned(),
            _ => format!("leave `{path}` out, or write what it lists"),
        }));
    }
    if path == "command"
        && let Some(diagnostic) = shell_line(items, node)
    {
        found.push(diagnostic);
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

/// A command that only a shell understands: no shell reads it.
fn shell_line(items: &[Node], node: &Node) -> Option<Diagnostic> {
    let words: Option<Vec<&str>> = items
        .iter()
        .map(|item| match &item.value {
            Value::String(word) => Some(word.as_str()),
            _ => None,
        })
        .collect();
    let words = words?;
    let first = *words.first()?;
    let whole = || format!("to run a line of a shell, write `{}`", in_a_shell(&words));
    let says = |message: String, hint: String| Some(Diagnostic::at(&node.place, message).hint(hint));
    if first.trim().is_empty() {
        return says(
            "`command` names no program".into(),
            "the first string is the program, such as `\"python3\"`".into(),
        );
    }
    // Without a path of that name, a line for a shell was meant.
    let is_line =
        first.trim().contains(char::is_whitespace) && !first.trim_start().starts_with(['/', '.', '~']);
    if is_line && words.len() == 1 {
        let hint = match syntax::words(first) {
            Some(split) => {
                let split: Vec<String> = split.iter().map(|word| meant::quote(word)).collect();
                format!("write one string per argument: `[{}]`", split.join(", "))
            }
            None => format!("to run a line of a shell, write `[\"sh\", \"-c\", {}]`", meant::quote(first)),
        };
        return says(format!("`command` would run a program called `{first}`"), hint)
            .map(|diagnostic| diagnostic.label("one string"));
    }
    if let Some((&"&", others)) = words.split_last() {
        let all: Vec<String> = others.iter().map(|word| meant::quote(word)).collect();
        return says(
            format!("`command` would give `&` to `{first}` as an argument"),
            format!("ranks need no `&`: write `[{}]`", all.join(", ")),
        );
    }
    if let Some(word) = words.iter().find(|word| is_operator(word)) {
        return says(format!("`command` would give `{word}` to `{first}` as an argument"), whole());
    }
    if let Some(at) = glued(&words) {
        let split = words[at].split_whitespace();
        let all: Vec<&str> =
            words[..at].iter().copied().chain(split).chain(words[at + 1..].iter().copied()).collect();
        let all: Vec<String> = all.into_iter().map(meant::quote).collect();
        return says(
            format!("`command` would give `{}` to `{first}` as one argument", words[at]),
            format!("write one string per argument: `[{}]`", all.join(", ")),
        );
    }
    if let Some((name, value)) = first.split_once('=')
        && variables::is_name(name)
    {
        return says(
            format!("`command` begins with a variable: `{first}`"),
            format!("write `{name} = {}` in `[launch.env]`, and the program first", meant::quote(value)),
        );
    }
    ["cd", "source", "export", "alias"].contains(&first).then(|| {
        Diagnostic::at(&node.place, format!("`{first}` is a word of shells, and no program"))
            .hint(format!("{}; `prelude` of a host runs before each rank", whole()))
    })
}

/// What a shell does itself with a word: pipes, redirections, what separates commands.
fn is_operator(word: &str) -> bool {
    if ["&&", "||", "&", "|", "|&", ";", "<", "<<<"].contains(&word) {
        return true;
    }
    // `2>&1`, `>out.txt`, `&>`; what has more in it is text.
    let behind = word.trim_start_matches(|c: char| c.is_ascii_digit() || c == '&');
    behind.starts_with('>') && word.len() - behind.len() <= 1 && !word.contains(char::is_whitespace)
}

/// The argument that is an option and its value in one string: `-m torch.distributed.run`.
fn glued(words: &[&str]) -> Option<usize> {
    let is_text = |at: usize| at > 0 && ["-c", "-e", "-lc", "-ic", "-ec"].contains(&words[at - 1]);
    let is_option = |word: &str| word.starts_with('-') && !word.contains('=');
    (1..words.len()).find(|at| {
        let Some((option, value)) = words[*at].split_once(char::is_whitespace) else { return false };
        let letters = option.trim_start_matches('-');
        let is_named = is_option(option)
            && letters.starts_with(|c: char| c.is_ascii_alphabetic())
            && letters.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        // Behind another option it may be that one's value: `--worker-args "--lr 1"`.
        let follows = *at > 1 && is_option(words[at - 1]) && option != "-m";
        is_named && !value.trim().is_empty() && !follows && !is_text(*at)
    })
}

/// The words as one line that a shell runs; what only a shell understands is left to it.
pub fn in_a_shell(words: &[&str]) -> String {
    let left = |word: &str| is_operator(word) || word.starts_with("~/") || word == "~";
    let word = |word: &&str| match *word {
        word if left(word) => word.to_owned(),
        word if word.contains('$') => format!("\"{}\"", word.replace(['"', '`', '\\'], "")),
        word => quote::word(word),
    };
    let line: Vec<String> = words.iter().map(word).collect();
    format!("[\"sh\", \"-c\", {}]", meant::quote(&line.join(" ")))
}

/// Strings under names of the user's choice.
pub(super) fn check_names(path: &str, what: &str, table: &Table, found: &mut Diagnostics) {
    for (name, entry) in table {
        if !matches!(entry.node.value, Value::String(_)) {
            let at = format!("{path}.{name}");
            let wrong = wrong_type(&at, &entry.node.value, "a string", &entry.node.place);
            found.push(wrong.hint(format!("write {what} as a string")));
        }
    }
}

/// A name of letters, digits and `_` in place of one that holds more.
fn name_meant(name: &str, node: &Node) -> String {
    let rule = "a name has letters, digits and `_`, and begins with none of the digits";
    let (name, more) = name.split_once('=').unwrap_or((name, ""));
    let mut plain: String =
        name.trim().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if plain.starts_with(|c: char| c.is_ascii_digit()) {
        plain.insert(0, '_');
    }
    let value = match (&node.value, more) {
        (Value::String(value), "") => value.clone(),
        (Value::String(value), more) => format!("{more}={value}"),
        _ => return rule.to_owned(),
    };
    if variables::names_secret(&plain) {
        return rule.to_owned();
    }
    match variables::is_name(&plain)
        && !plain.trim_matches('_').is_empty()
        && variables::reserved(&plain).is_none()
    {
        true => format!("{rule}: write `{plain} = {}`", meant::quote(&value)),
        false => rule.to_owned(),
    }
}

pub(super) fn check_environment(path: &str, table: &Table, found: &mut Diagnostics) {
    for (name, entry) in table {
        if !variables::is_name(name) {
            let message = format!("`{}` is no name of an environment variable", name.escape_default());
            found.push(Diagnostic::at(&entry.key, message).hint(name_meant(name, &entry.node)));
        }
        if let Some(HintedError { error, hint }) = variables::reserved(name) {
            found.push(Diagnostic::at(&entry.key, error).hint(hint));
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
