//! `rankdeck schema`: JSON Schemas of the files, made from the definitions of their keys, and of the lines of
//! `--json`, made from their documentation.

use super::args::SchemaOf;
use super::{code, print};
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::Hosts;
use rankdeck_types::schema::{Fallback, Key, Kind, Variant};
use serde_json::{Map, Value, json};

/// What explains the lines.
const LINES: &str = include_str!("../../docs/JSON.md");
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Prints a schema; returns the exit code.
pub fn print(what: SchemaOf) -> u8 {
    let schema = match what {
        SchemaOf::Experiment => experiment(),
        SchemaOf::Hosts => root("hosts.toml of rankdeck", table(Hosts::KEYS.iter())),
        SchemaOf::Events => events(),
    };
    print::stdout(&serde_json::to_string_pretty(&schema).unwrap_or_default());
    code::SUCCESS
}

fn root(title: &str, mut schema: Value) -> Value {
    schema["$schema"] = DIALECT.into();
    schema["title"] = title.into();
    schema
}

/// A file may take everything from others, so no table is required of it alone.
fn experiment() -> Value {
    let mut schema = table(Experiment::KEYS.iter());
    if let Value::Object(fields) = &mut schema {
        fields.remove("required");
    }
    let names = json!({ "type": "array", "items": { "type": "string" } });
    let more = [
        (
            "base",
            json!({ "type": "string", "description": "Another experiment file whose values hold where this one has none." }),
        ),
        (
            "use",
            json!({ "anyOf": [{ "type": "string" }, names], "description": "Sections whose values hold." }),
        ),
        ("section", json!({ "type": "object", "description": "Named values: `[section.NAME.learn]`." })),
    ];
    for (name, property) in more {
        schema["properties"][name] = property;
    }
    root("An experiment of rankdeck", schema)
}

fn table(keys: impl Iterator<Item = &'static Key>) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for key in keys {
        properties.insert(key.name.to_owned(), property(key));
        if key.is_required() {
            required.push(key.name);
        }
    }
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn property(key: &Key) -> Value {
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

fn kind(kind: &Kind) -> Value {
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
        Kind::Text(_) => text(),
        Kind::Choice(words) => json!({ "enum": words }),
        Kind::Integer(range) => integer(range),
        Kind::Number { min, max, open } => {
            let mut schema = json!({ "type": "number" });
            if *min > f64::MIN {
                schema[if *open { "exclusiveMinimum" } else { "minimum" }] = json!(min);
            }
            if *max < f64::MAX {
                schema["maximum"] = json!(max);
            }
            schema
        }
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::FlagOrText(_) => json!({ "anyOf": [{ "type": "boolean" }, text()] }),
        Kind::Texts(_) => list(json!({ "type": "string" })),
        Kind::Integers(range) => list(integer(range)),
        Kind::Environment | Kind::Names(_) => {
            json!({ "type": "object", "additionalProperties": { "type": "string" } })
        }
        Kind::Gpus => json!({ "anyOf": [
            { "enum": ["all", "auto"] },
            { "type": "integer", "minimum": 0, "maximum": 1024 },
            { "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 1023 } },
        ] }),
        Kind::Table(keys) => table(keys.iter()),
        Kind::Tables(keys) => json!({ "type": "array", "items": table(keys.iter()) }),
        Kind::Tagged { tag, variants } => {
            json!({ "oneOf": variants.iter().map(|variant| tagged(tag, variant)).collect::<Vec<_>>() })
        }
    }
}

fn tagged(tag: &str, variant: &'static Variant) -> Value {
    let mut schema = table(variant.all_keys());
    schema["properties"][tag] = json!({ "const": variant.word, "description": variant.tag.doc });
    schema
}

/// One alternative per kind of line: the fields that its section explains, with the types of its example. A
/// later build may add kinds and fields.
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
        // Lines about a run that goes on carry all four; the list of runs and checks have no time of their
        // own.
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
    root("A line of rankdeck --json", json!({ "type": "object", "oneOf": kinds }))
}

/// `| `field` | meaning |`.
fn row(line: &str) -> Option<(String, String)> {
    let mut cells = line.strip_prefix("| `")?.splitn(2, "` | ");
    let (field, meaning) = (cells.next()?, cells.next()?);
    Some((field.to_owned(), meaning.trim_end_matches('|').trim().to_owned()))
}

/// The type of a field whose example this is; a null says nothing, and any field may be null.
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
