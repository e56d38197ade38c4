//! Keys that hold texts: one, several, or some under names.

use super::wrong_type;
use crate::diagnostic::{Diagnostic, Diagnostics, Place};
use crate::document::{Node, Table, Value};
use rankdeck_types::error::HintedError;
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
    let whole = || format!("to run a line of a shell, write `[\"sh\", \"-c\", {:?}]`", words.join(" "));
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
        let split: Vec<String> = first.split_whitespace().map(|word| format!("{word:?}")).collect();
        return says(
            format!("`command` would run a program called `{first}`"),
            format!("write one string per argument: `[{}]`", split.join(", ")),
        )
        .map(|diagnostic| diagnostic.label("one string"));
    }
    if let Some(word) = words.iter().find(|word| ["&&", "||", "2>&1"].contains(word)) {
        return says(format!("`command` would give `{word}` to `{first}` as an argument"), whole());
    }
    if let Some((name, value)) = first.split_once('=')
        && variables::is_name(name)
    {
        return says(
            format!("`command` begins with a variable: `{first}`"),
            format!("write `{name} = {value:?}` in `[launch.env]`, and the program first"),
        );
    }
    ["cd", "source", "export", "alias"].contains(&first).then(|| {
        Diagnostic::at(&node.place, format!("`{first}` is a word of shells, and no program"))
            .hint(format!("{}; `prelude` of a host runs before each rank", whole()))
    })
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

pub(super) fn check_environment(path: &str, table: &Table, found: &mut Diagnostics) {
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
            other => found.push(wrong_type(&format!("{path}.{name}"), other, "a string", &entry.node.place)),
        }
    }
}
