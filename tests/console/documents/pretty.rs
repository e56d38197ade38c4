//! JSON as people read it: fields in the order in which they were written, short values on one line.

use serde_json::Value;

/// Values up to this length stay on one line.
const LINE: usize = 100;

/// `value`, with the fields of objects in the order of the line that it was read from.
pub fn pretty(value: &Value, line: &str) -> String {
    let mut out = String::new();
    write(&mut out, value, line, 0);
    out
}

fn fields<'a>(value: &'a Value, line: &str) -> Vec<(&'a String, &'a Value)> {
    let mut fields: Vec<_> = value.as_object().into_iter().flatten().collect();
    fields.sort_by_key(|(name, _)| line.find(&format!("\"{name}\":")));
    fields
}

fn compact(value: &Value, line: &str) -> String {
    match value {
        Value::Object(_) => {
            let parts = fields(value, line)
                .into_iter()
                .map(|(name, value)| format!("\"{name}\": {}", compact(value, line)));
            format!("{{{}}}", parts.collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(|item| compact(item, line)).collect::<Vec<_>>().join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

fn write(out: &mut String, value: &Value, line: &str, depth: usize) {
    let short = compact(value, line);
    let (open, close, parts): (char, char, Vec<(String, &Value)>) = match value {
        Value::Object(_) if depth == 0 || short.len() > LINE => {
            let parts = fields(value, line).into_iter();
            ('{', '}', parts.map(|(name, value)| (format!("\"{name}\": "), value)).collect())
        }
        Value::Array(items) if short.len() > LINE => {
            ('[', ']', items.iter().map(|item| (String::new(), item)).collect())
        }
        _ => return out.push_str(&short),
    };
    let indent = "  ".repeat(depth + 1);
    out.push(open);
    for (i, (name, value)) in parts.iter().enumerate() {
        out.push_str(if i == 0 { "\n" } else { ",\n" });
        out.push_str(&indent);
        out.push_str(name);
        write(out, value, line, depth + 1);
    }
    out.push('\n');
    out.push_str(&"  ".repeat(depth));
    out.push(close);
}
