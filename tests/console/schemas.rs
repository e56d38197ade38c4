//! `rankdeck schema`: the schemas accept valid files and printed lines, and reject invalid ones.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

fn rankdeck(folder: &Path, args: &[&str]) -> String {
    let output =
        Command::new(env!("CARGO_BIN_EXE_rankdeck")).current_dir(folder).args(args).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn schema(what: &str) -> Value {
    serde_json::from_str(&rankdeck(Path::new("."), &["schema", what])).unwrap()
}

/// Returns why a value does not match a schema; supports only the keywords that the schemas use.
fn fault(schema: &Value, value: &Value, at: &str) -> Option<String> {
    let own = |what: String| Some(format!("{at}: {what}"));
    let is = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("type {other}"),
    };
    match &schema["type"] {
        Value::String(name) if !is(name) => return own(format!("{value} is not of type {name}")),
        Value::Array(names) if !names.iter().any(|name| is(name.as_str().unwrap())) => {
            return own(format!("{value} is not of types {names:?}"));
        }
        _ => {}
    }
    if let Value::Array(words) = &schema["enum"]
        && !words.contains(value)
    {
        return own(format!("{value} is not in {words:?}"));
    }
    if schema.get("const").is_some_and(|only| only != value) {
        return own(format!("{value} is not {}", schema["const"]));
    }
    if let Some(number) = value.as_f64() {
        let low = schema["minimum"].as_f64().is_some_and(|min| number < min)
            || schema["exclusiveMinimum"].as_f64().is_some_and(|min| number <= min);
        if low || schema["maximum"].as_f64().is_some_and(|max| number > max) {
            return own(format!("{number} is out of range"));
        }
    }
    if let Value::Object(fields) = value {
        for name in schema["required"].as_array().into_iter().flatten() {
            if !fields.contains_key(name.as_str().unwrap()) {
                return own(format!("{name} is missing"));
            }
        }
        for (name, field) in fields {
            let inner = match (schema["properties"].get(name), &schema["additionalProperties"]) {
                (Some(inner), _) => inner,
                (None, Value::Bool(false)) => return own(format!("{name} is unknown")),
                (None, inner @ Value::Object(_)) => inner,
                (None, _) => continue,
            };
            if let Some(fault) = fault(inner, field, &format!("{at}.{name}")) {
                return Some(fault);
            }
        }
    }
    if let Value::Array(items) = value {
        if schema["minItems"].as_u64().is_some_and(|least| (items.len() as u64) < least) {
            return own("too short".into());
        }
        if schema.get("items").is_some() {
            let inner = items.iter().find_map(|item| fault(&schema["items"], item, &format!("{at}[]")));
            if inner.is_some() {
                return inner;
            }
        }
    }
    for one in schema["allOf"].as_array().into_iter().flatten() {
        if let Some(fault) = fault(one, value, at) {
            return Some(fault);
        }
    }
    if let Some(condition) = schema.get("if") {
        let branch = if fault(condition, value, at).is_none() { "then" } else { "else" };
        if let Some(fault) = schema.get(branch).and_then(|branch| fault(branch, value, at)) {
            return Some(fault);
        }
    }
    let fits = |schemas: &Value| {
        schemas.as_array().unwrap().iter().filter(|one| fault(one, value, at).is_none()).count()
    };
    if schema.get("anyOf").is_some() && fits(&schema["anyOf"]) == 0 {
        return own("matches no alternative".into());
    }
    if schema.get("oneOf").is_some() && fits(&schema["oneOf"]) != 1 {
        let all: Vec<String> =
            schema["oneOf"].as_array().unwrap().iter().filter_map(|one| fault(one, value, at)).collect();
        return own(format!("does not match exactly one: {all:?}"));
    }
    None
}

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let all = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect()
}

fn document(path: &Path) -> Value {
    let table: toml::Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
    serde_json::to_value(table).unwrap()
}

#[test]
fn shipped_file_matches_its_schema() {
    let (experiment, hosts) = (schema("experiment"), schema("hosts"));
    let mut count = 0;
    for path in files("configs").into_iter().chain(files("tests/configs/valid")) {
        let is_hosts = path.file_name().unwrap() == "hosts.toml";
        let schema = if is_hosts { &hosts } else { &experiment };
        assert_eq!(fault(schema, &document(&path), ""), None, "{}", path.display());
        count += 1;
    }
    assert!(count > 0);
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("hosts.toml");
    assert_eq!(fault(&hosts, &document(&own), ""), None);
}

#[test]
fn invalid_file_does_not_match() {
    let schema = schema("experiment");
    for text in [
        "nproc = 2",
        "[run]\nname = 3",
        "[run]\nname = 'x'\nsede = 1",
        "[run]\nname = 'x'\nseed = -1",
        "[learn]\nalgorithm = 'ppo'\ntau = 1.0",
        "[learn]\nalgorithm = 'none'",
        "[learn]\ngamma = 0.98",
        "base = 'b.toml'\n[learn]\nalgorithm = 'ppo'\ntau = 1.0",
        "base = 'b.toml'\n[learn]\ngama = 0.98",
        "[launch]\ncommand = 'x'",
        "[launch]\nenv = { A = 1 }",
        "[distributed]\nbackend = 'mpi'",
    ] {
        let value = serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap();
        assert!(fault(&schema, &value, "").is_some(), "{text}");
    }
    let hosts = self::schema("hosts");
    for text in
        ["[[host]]\nname = 'a'\nport = 0", "[[host]]\nname = 'a'\ngpus = 'some'", "[[host]]\nslots = 1"]
    {
        let value = serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap();
        assert!(fault(&hosts, &value, "").is_some(), "{text}");
    }
}

/// What it does not have, its base or sections have.
#[test]
fn derived_file_matches_its_schema() {
    let schema = schema("experiment");
    for text in [
        "base = 'b.toml'\n[learn]\ngamma = 0.98",
        "base = 'b.toml'\n[learn]\nalgorithm = 'ppo'\nupdate_epochs = 2\n[run]\nseed = 3",
        "use = ['fast']\n[learn]\ngamma = 0.9\n[section.fast.learn]\nalgorithm = 'ppo'",
    ] {
        let value = serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap();
        assert_eq!(fault(&schema, &value, ""), None, "{text}");
    }
    assert!(schema["properties"]["run"]["properties"]["name"]["pattern"].is_string());
}

#[test]
fn settings_file_matches_its_schema() {
    let schema = schema("ui");
    let fault = |text: &str| {
        let value = serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap();
        fault(&schema, &value, "")
    };
    let good = "theme = 'dark'\nmouse = false\n[keys]\nstop = 'ctrl-x'\n[notify]\non = ['end']\naway = true";
    assert_eq!(fault(good), None);
    for bad in ["theme = 'pink'", "mouse = 1", "[notify]\nwen = 1", "[keys]\nstop = 1"] {
        assert!(fault(bad).is_some(), "{bad}");
    }
}

#[test]
fn documented_line_matches_and_unknown_kind_does_not() {
    let schema = schema("events");
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/json.md")).unwrap();
    let kinds = schema["oneOf"].as_array().unwrap();
    assert!(!kinds.is_empty());
    let mut seen = 0;
    for part in text.split("```json").skip(1) {
        let line: Value = serde_json::from_str(part.split("```").next().unwrap()).unwrap();
        assert_eq!(fault(&schema, &line, ""), None);
        seen += 1;
    }
    assert!(seen >= kinds.len());
    assert!(
        fault(&schema, &json!({ "kind": "nope", "run": "r", "generation": 0, "time": 1.0 }), "").is_some()
    );
    assert!(fault(&schema, &json!({ "kind": "log", "run": 3, "generation": 0, "time": 1.0 }), "").is_some());
}

#[test]
fn printed_line_matches() {
    let schema = schema("events");
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("hosts.toml", "[[host]]\nname = \"a\"\ntransport = \"local\"\nnproc = 2\n");
    write(
        "e.toml",
        "[run]\nname = \"e\"\n[launch]\ncommand = [\"sh\", \"-c\", \"echo loss=1; exit $RANK\"]\n[metrics]\nstdout = ['loss=(?P<loss>.)']\n",
    );
    write("bad.toml", "x = 1\n");
    let runs: [&[&str]; 5] = [
        &["simulate", "--nnodes", "2", "--ranks", "2", "--iteration-ms", "100", "--steps", "81920", "--json"],
        &["check", "e.toml", "--json"],
        &["run", "e.toml", "--json"],
        &["run", "bad.toml", "--json"],
        &["check", "bad.toml", "--json"],
    ];
    for args in runs {
        let stdout = rankdeck(folder.path(), args);
        assert!(!stdout.is_empty(), "{args:?}");
        for line in stdout.lines() {
            let value: Value = serde_json::from_str(line).unwrap();
            assert_eq!(fault(&schema, &value, ""), None, "{line}");
        }
    }
}
