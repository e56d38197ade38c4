//! Values of another type than is expected.

use super::meant;
use crate::diagnostic::{Diagnostic, Place};
use crate::document::{Node, Value};
use crate::syntax::{self, Word};
use rankdeck_types::schema::{Key, Kind};

/// A value of another type, with what to write instead, as far as the type alone tells it.
pub(super) fn wrong_type(path: &str, value: &Value, expected: &str, at: &Place) -> Diagnostic {
    let kind = value.type_name();
    let diagnostic = Diagnostic::at(at, format!("`{path}` is {kind}, expected {expected}")).label(kind);
    let written = at.source.text.get(at.range.clone()).unwrap_or_default();
    let hint = match value {
        Value::Array(_) if expected == "a table" => Some(format!("write `[{path}]`, once")),
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_)
            if ["a string", "strings only"].contains(&expected) =>
        {
            Some(format!("write `{}`", meant::quote(written)))
        }
        Value::String(text) if expected == "integers only" => syntax::number(text)
            .filter(|number| number.fract() == 0.0 && (0.0..1e15).contains(number))
            .map(|number| format!("write `{number:.0}`")),
        _ => None,
    };
    match (hint, value) {
        (Some(hint), _) => diagnostic.hint(hint),
        (None, Value::Table(_)) if !expected.contains("table") => diagnostic,
        (None, _) => diagnostic.hint(format!("write {expected}")),
    }
}

/// The same of the value of a key, which may tell more.
pub(super) fn wrong_value(key: &Key, node: &Node, expected: &str) -> Diagnostic {
    let wrong = wrong_type(key.name, &node.value, expected, &node.place);
    let text = match &node.value {
        Value::String(text) => text.trim(),
        _ => "",
    };
    if syntax::word(text) == Some(Word::Nothing) {
        let path = key.name;
        return wrong.hint(format!("leave `{path}` out; `--set ~TABLE.{path}` takes it out of a file"));
    }
    match meant::instead_of(key, node) {
        Some(value) if matches!(key.kind, Kind::Environment) => {
            wrong.hint(format!("write `{} = {value}`", key.name))
        }
        Some(value) if value == text => wrong.hint(format!("write `{value}` without quotes")),
        Some(value) if text.starts_with('=') => wrong.hint(format!("write `{value}`, behind one `=`")),
        Some(value) => wrong.hint(format!("write `{value}`")),
        None => match general(key, node) {
            Some(hint) => wrong.hint(hint),
            None => wrong,
        },
    }
}

/// What helps where no value can be told.
fn general(key: &Key, node: &Node) -> Option<String> {
    match (&key.kind, &node.value) {
        (Kind::Environment, Value::Array(_)) => Some(
            "values are `env = { KEY = \"value\" }`; names of this console's variables go into `launch.pass_env`"
                .into(),
        ),
        (Kind::Environment, _) => Some(format!("write `{} = {{ KEY = \"value\" }}`", key.name)),
        (Kind::Texts(_), Value::String(line)) if key.name == "command" => {
            Some(format!("write `[\"sh\", \"-c\", {}]`: a shell runs the line", meant::quote(line)))
        }
        _ => None,
    }
}
