//! `rankdeck schema`: JSON Schemas of the files, generated from their key definitions, and of the `--json`
//! output, generated from its documentation.

use crate::cli::args::SchemaOf;
use crate::cli::support::{code, print};
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::Hosts;
use rankdeck_types::schema::{ConfigKey, Fallback, Keys, TextRule, ValueKind, Variant};
use rankdeck_types::ui::Ui;
use serde_json::{Map, Value, json};

/// The documentation of the lines.
const LINES: &str = include_str!("../../../docs/json.md");
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Prints a schema; returns the exit code.
pub(crate) fn print(what: SchemaOf) -> u8 {
    let schema = match what {
        SchemaOf::Experiment => experiment(),
        SchemaOf::Hosts => root("rankdeck hosts.toml", table(Hosts::KEYS.iter(), ValueSource::Own)),
        SchemaOf::Ui => root("rankdeck ui.toml", table(Ui::KEYS.iter(), ValueSource::Own)),
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

/// Where the values of a table may come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueSource {
    /// The table has them all.
    Own,
    /// A base or a section may have them.
    Inherited,
}

/// No table is required: a file may inherit everything from others. The keys of a table are required unless the
/// file has a base or uses sections.
fn experiment() -> Value {
    let mut schema = table(Experiment::KEYS.iter(), ValueSource::Inherited);
    schema["if"] = json!({ "anyOf": [{ "required": ["base"] }, { "required": ["use"] }] });
    schema["else"] = json!({ "properties": required_below(Experiment::KEYS) });
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

fn table(keys: impl Iterator<Item = &'static ConfigKey>, values: ValueSource) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for key in keys {
        properties.insert(key.name.to_owned(), property(key, values));
        if key.is_required() {
            required.push(key.name);
        }
    }
    let mut schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    if values == ValueSource::Own {
        schema["required"] = json!(required);
    }
    schema
}

/// What the tables below require, by key.
fn required_below(keys: Keys) -> Map<String, Value> {
    let mut required = Map::new();
    for key in keys {
        let schema = match &key.kind {
            ValueKind::Table(keys) => required_in(keys),
            ValueKind::Tagged { tag, variants } => {
                let kinds = variants.iter().map(|variant| if_tagged(tag, variant, required_in(variant.keys)));
                json!({ "required": [tag], "allOf": kinds.collect::<Vec<_>>() })
            }
            _ => continue,
        };
        required.insert(key.name.to_owned(), schema);
    }
    required
}

fn required_in(keys: Keys) -> Value {
    let names: Vec<&str> = keys.iter().filter(|key| key.is_required()).map(|key| key.name).collect();
    json!({ "required": names, "properties": required_below(keys) })
}

fn property(key: &ConfigKey, values: ValueSource) -> Value {
    let mut schema = kind(&key.kind, values);
    schema["description"] = key.doc.into();
    if let Fallback::Value(value) = key.default
        && let Ok(table) = format!("value = {}", value()).parse::<toml::Table>()
        && let Some(value) = table.get("value").and_then(|value| serde_json::to_value(value).ok())
    {
        schema["default"] = value;
    }
    schema
}

fn kind(kind: &ValueKind, values: ValueSource) -> Value {
    let text = |rule: &TextRule| {
        let mut schema = json!({ "type": "string", "minLength": 1 });
        if let Some(pattern) = rule.pattern {
            schema["pattern"] = pattern.into();
        }
        schema
    };
    let integer = |range: &std::ops::RangeInclusive<i128>| {
        let mut schema = json!({ "type": "integer", "minimum": *range.start() as i64 });
        if let Ok(max) = i64::try_from(*range.end()) {
            schema["maximum"] = max.into();
        }
        schema
    };
    let list = |items: Value| json!({ "type": "array", "items": items, "minItems": 1 });
    match kind {
        ValueKind::Text(rule) => text(rule),
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
        ValueKind::FlagOrText(rule) => json!({ "anyOf": [{ "type": "boolean" }, text(rule)] }),
        ValueKind::Texts(_) => list(json!({ "type": "string" })),
        ValueKind::Integers(range) => list(integer(range)),
        ValueKind::Environment | ValueKind::Names(_) => {
            json!({ "type": "object", "additionalProperties": { "type": "string" } })
        }
        ValueKind::Arguments | ValueKind::Values => json!({ "type": "object" }),
        ValueKind::Gpus => json!({ "anyOf": [
            { "enum": ["all", "auto"] },
            { "type": "integer", "minimum": 0, "maximum": 1024 },
            { "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 1023 } },
        ] }),
        ValueKind::Table(keys) => table(keys.iter(), values),
        // A list is never inherited in part.
        ValueKind::Tables(keys) => json!({ "type": "array", "items": table(keys.iter(), ValueSource::Own) }),
        ValueKind::Tagged { tag, variants } => tagged(tag, variants, values),
    }
}

/// The keys of all variants; a tag selects those of its own.
fn tagged(tag: &str, variants: &'static [Variant], values: ValueSource) -> Value {
    let mut properties: Map<String, Value> = Map::new();
    for key in variants.iter().flat_map(|variant| variant.keys) {
        let schema = property(key, values);
        match properties.get_mut(key.name) {
            None => drop(properties.insert(key.name.to_owned(), schema)),
            Some(known) if *known == schema => {}
            Some(known) => {
                let mut kinds = match known.get_mut("anyOf").map(Value::take) {
                    Some(Value::Array(kinds)) => kinds,
                    _ => vec![known.take()],
                };
                if !kinds.contains(&schema) {
                    kinds.push(schema);
                }
                *known = json!({ "anyOf": kinds });
            }
        }
    }
    let words: Vec<&str> = variants.iter().map(|variant| variant.word).collect();
    let doc = variants.first().map_or("", |variant| variant.tag.doc);
    properties.insert(tag.to_owned(), json!({ "enum": words, "description": doc }));
    let own = |variant: &'static Variant| {
        let mut own = table(variant.all_keys(), values);
        own["properties"][tag] = json!({ "const": variant.word, "description": variant.tag.doc });
        if_tagged(tag, variant, own)
    };
    let mut schema = json!({
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
        "allOf": variants.iter().map(own).collect::<Vec<_>>(),
    });
    if values == ValueSource::Own {
        schema["required"] = json!([tag]);
    }
    schema
}

/// `schema` for tables with the tag of this variant.
fn if_tagged(tag: &str, variant: &Variant, schema: Value) -> Value {
    json!({ "if": { "properties": { tag: { "const": variant.word } }, "required": [tag] }, "then": schema })
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
