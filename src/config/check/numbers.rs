//! Keys that hold a number, or several.

use super::{Scope, meant, wrong_type, wrong_value};
use crate::diagnostic::{Diagnostic, Diagnostics, Place};
use crate::document::{Node, Value};
use crate::syntax;
use rankdeck_types::schema::{Key, Kind};
use std::ops::RangeInclusive;

/// A key that holds one number.
pub(super) fn check_number(key: &Key, node: &Node, scope: &Scope, found: &mut Diagnostics) {
    let wrong = || wrong_value(key, node, &key.kind.expected());
    match (&key.kind, &node.value) {
        (Kind::Integer(range), Value::Integer(number)) => {
            if !range.contains(number) {
                found.push(out_of_range(key, &number.to_string(), &node.place));
            }
        }
        (Kind::Integer(range), Value::Float(number)) if number.fract() == 0.0 && number.abs() < 1e15 => {
            let whole = *number as i64;
            found.push(match range.contains(&i128::from(whole)) {
                true => wrong().hint(format!("write `{whole}` without a fraction or exponent")),
                false => out_of_range(key, &whole.to_string(), &node.place),
            });
        }
        (Kind::Number { min, max, open }, Value::Integer(_) | Value::Float(_)) => {
            let number = match node.value {
                Value::Float(number) => number,
                Value::Integer(number) => number as f64,
                _ => f64::NAN,
            };
            let inside =
                number.is_finite() && number <= *max && if *open { number > *min } else { number >= *min };
            if !inside {
                found.push(out_of_range(key, &number.to_string(), &node.place));
            }
        }
        (_, value) => match several(value) {
            Some(values) if meant::instead_of(key, node).is_none() => {
                found.push(wrong().hint(one_each(key, &values, scope)))
            }
            _ => found.push(wrong()),
        },
    }
}

/// How to get a run for each of several values.
fn one_each(key: &Key, values: &str, scope: &Scope) -> String {
    match key.name {
        "seed" => {
            format!("a run has one; `--seeds {values}` makes a run for each")
        }
        path => {
            let table = scope.title.trim_matches(['[', ']']);
            format!("a run has one; `--sweep {table}.{path}={values}` makes a run for each")
        }
    }
}

/// Numbers that a text holds between commas, two or more.
fn numbers(text: &str) -> Option<String> {
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    let all = parts.len() > 1 && parts.iter().all(|part| part.parse::<f64>().is_ok());
    all.then(|| parts.join(", "))
}

/// The values that are given where one is expected.
fn several(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if syntax::number(text).is_some() => None,
        Value::String(text) => Some(numbers(text)?.replace(' ', "")),
        Value::Array(items) => {
            let texts: Option<Vec<String>> = items
                .iter()
                .map(|item| match item.value {
                    Value::Integer(number) => Some(number.to_string()),
                    Value::Float(number) => Some(number.to_string()),
                    _ => None,
                })
                .collect();
            texts.filter(|texts| texts.len() > 1).map(|texts| texts.join(","))
        }
        _ => None,
    }
}

fn out_of_range(key: &Key, number: &str, at: &Place) -> Diagnostic {
    let expected = match &key.kind {
        // Its range is said without its upper end, which only such a number meets.
        Kind::Integer(range)
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

/// A key that holds an array of integers.
pub(super) fn check_integers(
    key: &Key,
    value: &Value,
    range: &RangeInclusive<i128>,
    node: &Node,
    found: &mut Diagnostics,
) {
    let Value::Array(items) = value else {
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
            Value::Integer(number) if range.contains(number) => {}
            Value::Integer(number) => found.push(out_of_range(key, &number.to_string(), &item.place)),
            other => found.push(wrong_type(key.name, other, "integers only", &item.place)),
        }
    }
}
