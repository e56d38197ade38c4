//! `rankdeck schema`: JSON Schemas of the files, generated from their key definitions, and of the `--json`
//! output, generated from its documentation.

use crate::cli::args::SchemaOf;
use crate::cli::support::{code, print};
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::Hosts;
use rankdeck_types::schema::{ConfigKey, Fallback, ValueKind, Variant};
use serde_json::{Map, Value, json};

/// The documentation of the lines.
const LINES: &str = include_str!("../../../docs/json.md");
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Prints a schema; returns the exit code.
pub(crate) fn print(what: SchemaOf) -> u8 {
    let schema = match what {
        SchemaOf::Experiment => experiment(),
        SchemaOf::Hosts => root("rankdeck hosts.toml", table(Hosts::KEYS.iter())),
        SchemaOf::Events => events(),
    };
    print::data(&serde_json::to_string_pretty(&schema).unwrap_or_default());
    code::SUCCESS
}

fn root(title: &str, mut schema: Value) -> Value {
    schema["$schema"] = DIALECT.into();
    schema["title"] = title.into();
    schema
}

/// No table is required: a file may inherit everything from others.
fn experiment() -> Value {
    let mut schema = table(Experiment::KEYS.iter());
    if let Value::Object(fields) = &mut schema {
        fields.remove("required");
    }
    let names = json!({ "type": "array", "items": { "type": "string" } });
    let more = [
        (
            "base",
            json!({ "type": "string", "description": "Another experiment file whose values are the defaults of this one." }),
        ),
        (
            "use",
            json!({ "anyOf": [{ "type": "string" }, names], "description": "Sections whose values apply." }),
        ),
        ("section", json!({ "type": "object", "description": "Named values: `[section.NAME.learn]`." })),
    ];
    for (name, property) in more {
        schema["properties"][name] = property;
    }
    root("rankdeck experiment", schema)
}

fn table(keys: impl Iterator<Item = &'static ConfigKey>) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for key in keys {
        properties.insert(key.name.to_owned(), property(key));
        if key.is_required() {
            required.push(key.name);
        }
    }
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn property(key: &ConfigKey) -> Value {
    let mut schema = kind(&key.kind);
    schema["description"] = key.doc.into();
    if let Fallback::Value(value) = key.default
        && let Ok(table) = format!("value = {}", value()).parse::<toml::Table>()
        && let Some(value) = table.get("value").and_then(|value| serde_json::to_value(value).ok())
    {
        schema["default"] = value;
    }
    schema
}

fn kind(kind: &ValueKind) -> Value {
    let text = || json!({ "type": "string", "minLength": 1 });
    let integer = |range: &std::ops::RangeInclusive<i128>| {
        let mut schema = json!({ "type": "integer", "minimum": *range.start() as i64 });
        if let Ok(max) = i64::try_from(*range.end()) {
            schema["maximum"] = max.into();
        }
        schema
    };
    let list = |items: Value| json!({ "type": "array", "items": items, "minItems": 1 });
    match kind {
        ValueKind::Text(_) => text(),
        ValueKind::Choice(words) => json!({ "enum": words }),
        ValueKind::Integer(range) => integer(range),
        ValueKind::Number { min, max, open } => {
            let mut schema = json!({ "type": "number" });
            if *min > f64::MIN {
                schema[if *open { "exclusiveMinimum" } else { "minimum" }] = json!(min);
            }
            if *max < f64::MAX {
                schema["maximum"] = json!(max);
            }
            schema
        }
        ValueKind::Flag => json!({ "type": "boolean" }),
        ValueKind::FlagOrText(_) => json!({ "anyOf": [{ "type": "boolean" }, text()] }),
        ValueKind::Texts(_) => list(json!({ "type": "string" })),
        ValueKind::Integers(range) => list(integer(range)),
        ValueKind::Environment | ValueKind::Names(_) => {
            json!({ "type": "object", "additionalProperties": { "type": "string" } })
        }
        ValueKind::Gpus => json!({ "anyOf": [
            { "enum": ["all", "auto"] },
            { "type": "integer", "minimum": 0, "maximum": 1024 },
            { "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 1023 } },
        ] }),
        ValueKind::Table(keys) => table(keys.iter()),
        ValueKind::Tables(keys) => json!({ "type": "array", "items": table(keys.iter()) }),
        ValueKind::Tagged { tag, variants } => {
            json!({ "oneOf": variants.iter().map(|variant| tagged(tag, variant)).collect::<Vec<_>>() })
        }
    }
}

fn tagged(tag: &str, variant: &'static Variant) -> Value {
    let mut schema = table(variant.all_keys());
    schema["properties"][tag] = json!({ "const": variant.word, "description": variant.tag.doc });
    schema
}

/// Returns one alternative per kind of line: the documented fields, with the types of the example. Later
/// versions may add kinds and fields.
fn events() -> Value {
    let mut kinds = Vec::new();
    for section in LINES.split("\n## ").skip(1) {
        let Some(name) = section.lines().next().and_then(|line| line.strip_prefix('`')?.strip_suffix('`'))
        else {
            continue;
        };
        let example = section.split("```json").nth(1).and_then(|rest| rest.split("```").next());
        let Some(Value::Object(example)) = example.and_then(|text| serde_json::from_str(text).ok()) else {
            continue;
        };
        // Lines of a run carry all four fields; lists of runs and checks have no time of their own.
        let required: Vec<&str> = ["kind", "run", "generation", "time"]
            .into_iter()
            .filter(|field| example.contains_key(*field))
            .collect();
        let mut properties: Map<String, Value> =
            example.iter().map(|(field, value)| (field.clone(), like(value))).collect();
        for (field, meaning) in section.lines().filter_map(row) {
            let property = properties.entry(field).or_insert_with(|| json!({}));
            property["description"] = meaning.into();
        }
        properties.insert("kind".into(), json!({ "const": name }));
        kinds.push(json!({
            "type": "object",
            "title": name,
            "properties": properties,
            "required": required,
        }));
    }
    root("Line of rankdeck --json", json!({ "type": "object", "oneOf": kinds }))
}

/// `| `field` | meaning |`.
fn row(line: &str) -> Option<(String, String)> {
    let mut cells = line.strip_prefix("| `")?.splitn(2, "` | ");
    let (field, meaning) = (cells.next()?, cells.next()?);
    Some((field.to_owned(), meaning.trim_end_matches('|').trim().to_owned()))
}

/// Returns the type of an example; a null gives none, and any field may be null.
fn like(example: &Value) -> Value {
    match example {
        Value::Null => json!({}),
        Value::Bool(_) => json!({ "type": ["boolean", "null"] }),
        Value::Number(_) => json!({ "type": ["number", "null"] }),
        Value::String(_) => json!({ "type": ["string", "null"] }),
        Value::Array(_) => json!({ "type": ["array", "null"] }),
        Value::Object(_) => json!({ "type": ["object", "null"] }),
    }
}
