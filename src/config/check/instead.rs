//! Values of another type than is expected.

use crate::document::Value;
use crate::syntax::{self, Word};

/// What to write instead of a value of another type than is expected.
pub(super) fn instead(path: &str, value: &Value, expected: &str) -> Option<String> {
    let Value::String(text) = value else {
        return match value {
            Value::Integer(number) if expected == "a string" => Some(format!("write `\"{number}\"`")),
            Value::Array(items) if path == "env" && items.iter().all(|item| matches!(item.value, Value::String(_))) => {
                Some("values are `env = { KEY = \"value\" }`; names of this console's variables go into `launch.pass_env`".into())
            }
            Value::Array(_) if expected == "a table" => Some(format!("write `[{path}]`, once")),
            Value::Array(items) => match items.as_slice() {
                [one] if expected == "a string" => match &one.value {
                    Value::String(text) => Some(format!("write `\"{text}\"`")),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        };
    };
    let wants_number = expected.contains("integer") || expected.contains("number");
    let text = text.trim();
    let plain = text.trim_start_matches('=').trim();
    match syntax::word(text) {
        Some(Word::Nothing) => {
            return Some(format!("leave `{path}` out; `--set ~TABLE.{path}` takes it out of a file"));
        }
        Some(Word::Flag(flag)) if expected.contains("`true`") => return Some(format!("write `{flag}`")),
        _ => {}
    }
    if wants_number && !expected.contains("array") && plain.parse::<f64>().is_ok() {
        return Some(match plain == text {
            true => format!("write `{text}` without quotes"),
            false => format!("write `{plain}`, behind one `=`"),
        });
    }
    if wants_number
        && !expected.contains("array")
        && let Some(number) = syntax::number(text)
    {
        return Some(format!("write `{number}`"));
    }
    if text.parse::<bool>().is_ok() && expected.contains("true") {
        return Some(format!("write `{text}` without quotes"));
    }
    if expected == "a table of strings" {
        let (name, value) = text.split_once('=').unwrap_or(("KEY", "value"));
        return Some(format!("write `{path} = {{ {name} = \"{value}\" }}`"));
    }
    if expected.contains("an array of strings") {
        return Some("write `[\"program\", \"argument\", ...]`, one string per argument".into());
    }
    if expected.starts_with("an array of patterns") {
        return Some(format!("write `['{text}']`"));
    }
    if expected.starts_with("an array of ") && !wants_number && !text.is_empty() {
        let items: Vec<String> = text.split(',').map(|item| format!("{:?}", item.trim())).collect();
        return Some(format!("write `[{}]`", items.join(", ")));
    }
    None
}
