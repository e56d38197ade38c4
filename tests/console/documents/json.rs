//! docs/JSON.md: its examples are lines of a run that this test makes, its reasons are those of the code.
//! What differs from
//! run to run (times, ports, pids, paths, loads) has a fixed value in the examples. `UPDATE_EXPECTED=1`
//! writes them anew.

use super::pretty::pretty;
use super::{between, read, repository};
use crate::support::{Bench, rankdeck};
use rankdeck_core::reason;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// One line, as it was written and as it was read.
struct Line {
    text: String,
    value: Value,
}

/// Runs a command with `--json`.
fn lines(bench: &Bench, args: &[&str], code: i32) -> Vec<Line> {
    let output = rankdeck().args(args).arg("--json").current_dir(bench.path()).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{args:?}\n{stdout}\n{stderr}");
    let read = |text: &str| Line { text: text.into(), value: serde_json::from_str(text).unwrap() };
    stdout.lines().map(read).collect()
}

/// What the examples come from: a run in which rank 1 kills itself and a second generation finishes, a
/// preflight, and the list of runs afterwards.
fn recorded(bench: &Bench) -> Vec<Line> {
    let program = repository().join("tests/console/documents/recorded.py");
    let command = ["python3", "-u", program.to_str().unwrap()];
    let experiment = bench.write(
        "example.toml",
        &format!(
            "[run]\nname = \"example\"\ntotal_steps = 20_480\n[launch]\ncommand = {command:?}\n\
             [metrics]\npresets = [\"cleanrl\"]\n[restart]\nmax_restarts = 3\nbackoff_s = 2.0\n"
        ),
    );
    let workdir = bench.path();
    let hosts = bench.write(
        "hosts.toml",
        &format!(
            "[defaults]\ntransport = \"local\"\nworkdir = {workdir:?}\n[[host]]\nname = \"node0\"\n[[host]]\nname = \"node1\"\n"
        ),
    );
    let (experiment, hosts) = (experiment.to_str().unwrap(), hosts.to_str().unwrap());
    let mut all = lines(bench, &["check", experiment, "--hosts", hosts], 0);
    all.extend(lines(bench, &["run", experiment, "--hosts", hosts], 0));
    all.extend(lines(bench, &["ps", "--hosts", hosts], 0));
    all
}

/// The line of each kind that is shown.
fn shown(kind: &str, value: &Value) -> bool {
    match kind {
        "host" => value["node_rank"] == 1 && value["state"] == "ready",
        "rank" => value["state"] == "killed",
        "progress" => value["train_iter"] == 5,
        "verdict" => value["severity"] == "red" && value["reason_code"] == "killed",
        "log" => {
            value["rank"] == 0 && value["line"].as_str().is_some_and(|line| line.starts_with("collecting"))
        }
        "restart" => value["state"] == "waiting",
        "check" => value["check"] == "port" && value["node_rank"] == 0,
        _ => true,
    }
}

/// What differs from run to run, by the name of its field.
fn fixed(name: &str) -> Option<Value> {
    Some(match name {
        "time" => json!(1_767_268_800.5),
        "pid" => json!(4711),
        "master" => json!("127.0.0.1:29500"),
        "steps_per_s" => json!(8192.0),
        "eta_s" => json!(1.875),
        "cpu_percent" => json!(98.5),
        "rss" => json!(12_000_000),
        "latency_s" => json!(0.25),
        "first_s" => json!(0.25),
        "silent_ms" | "age_ms" | "phase_age_ms" => json!(1500),
        "in_s" => json!(2.0),
        "bound_s" => json!(0.0005),
        "stop_ms" => json!(140),
        // The state of a process that dies: seen before its end, or after it.
        "os" => json!("gone (X), cpu 2 %"),
        "others" => json!([{"ranks": [0], "text": "sleeping"}]),
        _ => return None,
    })
}

/// Names of runs and paths in a text. The name of a run ends with the second in which it was made.
fn neutral(text: &str, folder: &Path) -> String {
    let text = text.replace(&folder.display().to_string(), "/home/alice/rankdeck");
    let mut parts = text.split("example-2");
    let mut out = parts.next().unwrap_or("").to_string();
    for part in parts {
        out.push_str("example-20260101-120000");
        out.push_str(part.get("0260101-120000".len()..).unwrap_or(""));
    }
    out
}

/// Numbers in front of a unit, and behind `pid`, `port` and the like: moments of this machine.
fn steady(text: &str) -> String {
    if let Some((rank, rest)) = text.split_once(": pid ") {
        let state = rest.split_once(" is ").map_or(rest, |(pid, _)| pid);
        if state.bytes().all(|byte| byte.is_ascii_digit()) {
            return format!("{rank}: pid 4711 is gone (X), cpu 2 %");
        }
    }
    let words: Vec<&str> = text.split(' ').collect();
    let mut out: Vec<String> = Vec::new();
    for (i, word) in words.iter().enumerate() {
        let bare = word.trim_end_matches([',', ';', ':', ')']);
        let end = &word[bare.len()..];
        let number = !bare.is_empty() && bare.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let unit = words.get(i + 1).map_or("", |next| next.trim_end_matches([',', ';', ':', ')', '.']));
        let before = if i > 0 { words[i - 1] } else { "" };
        let moment = ["s", "ms", "%", "MB", "MiB", "GB", "GiB", "core", "cores", "GPUs"].contains(&unit);
        let name = ["pid", "port", "process"].contains(&before.trim_start_matches('('));
        out.push(if number && (moment || name) { format!("2{end}") } else { (*word).to_string() });
    }
    out.join(" ")
}

fn normalised(name: &str, value: &Value, folder: &Path) -> Value {
    if !value.is_null()
        && let Some(fixed) = fixed(name)
    {
        return fixed;
    }
    match value {
        Value::String(text) => Value::String(steady(&neutral(text, folder))),
        Value::Array(items) => items.iter().map(|item| normalised(name, item, folder)).collect(),
        Value::Object(fields) => Value::Object(
            fields.iter().map(|(name, value)| (name.clone(), normalised(name, value, folder))).collect(),
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// The document with the examples of this run: each stands below the heading of its kind.
fn with_examples(text: &str, examples: &BTreeMap<String, String>) -> String {
    let (mut out, mut section, mut inside, mut seen) = (Vec::new(), String::new(), false, Vec::new());
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            section = title.trim_matches('`').to_string();
        }
        match line {
            "```json" => {
                let example = examples.get(&section).unwrap_or_else(|| panic!("no line of kind `{section}`"));
                out.extend([line.to_string(), example.clone()]);
                seen.push(section.clone());
                inside = true;
            }
            "```" if inside => {
                out.push(line.to_string());
                inside = false;
            }
            _ if inside => {}
            _ => out.push(line.to_string()),
        }
    }
    let mut missing = examples.keys().filter(|kind| !seen.contains(kind));
    assert_eq!(missing.next(), None, "a kind without an example in docs/JSON.md");
    out.join("\n") + "\n"
}

/// The list of reasons, by verdict.
fn reasons() -> String {
    let mut by_verdict: Vec<((&str, &str), Vec<String>)> = Vec::new();
    for row in reason::reasons() {
        let verdict = (row.kind.name(), row.policy.name());
        let name = format!("`{}`", row.name);
        match by_verdict.iter_mut().find(|(known, _)| *known == verdict) {
            Some((_, names)) => names.push(name),
            None => by_verdict.push((verdict, vec![name])),
        }
    }
    let rows = by_verdict
        .into_iter()
        .map(|((verdict, policy), names)| format!("| `{verdict}` | {} | {policy} |\n", names.join(", ")));
    format!("| verdict | reason codes | `on_stuck` acts |\n|---|---|---|\n{}", rows.collect::<String>())
}

#[test]
fn the_examples_are_lines_of_a_real_run_and_the_reasons_those_of_the_code() {
    let bench = Bench::new();
    let all = recorded(&bench);
    let mut examples = BTreeMap::new();
    let mut kinds: Vec<&str> = Vec::new();
    for line in &all {
        let kind = line.value["kind"].as_str().unwrap();
        kinds.push(kind);
        if shown(kind, &line.value) && !examples.contains_key(kind) {
            let mut value = normalised("", &line.value, bench.path());
            match kind {
                "check_finished" => value["duration_s"] = json!(0.25),
                "run" => {
                    (value["started"], value["ended"]) = (json!(1_767_268_800.5), json!(1_767_268_806.5));
                    (value["duration_s"], value["age_s"]) = (json!(4.0), json!(60.0));
                    value["env_step"] = json!(20_480);
                    value["program"] = json!("python train.py");
                }
                // Which of the lines within a second is the last one.
                "metrics" => value["env_step"] = json!(2048),
                _ => {}
            }
            examples.insert(kind.to_string(), pretty(&value, &line.text));
        }
    }
    let missing: Vec<&&str> = kinds.iter().filter(|kind| !examples.contains_key(**kind)).collect();
    assert!(missing.is_empty(), "no line of these kinds is worth showing: {missing:?}");
    let text = read("docs/JSON.md");
    let mut expected = with_examples(&text, &examples);
    let listed = |list: &str| format!("<!-- reasons -->\n{list}<!-- /reasons -->");
    expected = expected.replace(&listed(between(&text, "reasons")), &listed(&reasons()));
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        std::fs::write(repository().join("docs/JSON.md"), &expected).unwrap();
    }
    let differing = text.lines().zip(expected.lines()).find(|(now, then)| now != then);
    assert!(
        read("docs/JSON.md") == expected,
        "UPDATE_EXPECTED=1 writes docs/JSON.md anew; (document, run): {differing:#?}"
    );
}

/// Every kind and every field of what can be written, whether this run has it or not.
#[test]
fn every_kind_and_every_field_is_explained() {
    use rankdeck_core::report::ReportBody;
    let text = read("docs/JSON.md");
    let explained = |field: &str| text.contains(&format!("`{field}`"));
    // A new kind does not compile until it stands here.
    let kind = |body: &ReportBody| match body {
        ReportBody::RunStarted { .. } => "run_started",
        ReportBody::Host { .. } => "host",
        ReportBody::Rank { .. } => "rank",
        ReportBody::Progress { .. } => "progress",
        ReportBody::Eval { .. } => "eval",
        ReportBody::Checkpoint { .. } => "checkpoint",
        ReportBody::Notice { .. } => "notice",
        ReportBody::Verdict(_) => "verdict",
        ReportBody::Log { .. } => "log",
        ReportBody::RunFinished { .. } => "run_finished",
        ReportBody::Metrics { .. } => "metrics",
        ReportBody::Histogram { .. } => "histogram",
        ReportBody::Image { .. } => "image",
        ReportBody::Restart { .. } => "restart",
    };
    let mut section = String::new();
    let mut example = String::new();
    let mut inside = false;
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            section = title.trim_matches('`').to_string();
        }
        match line {
            "```json" => (inside, example) = (true, String::new()),
            "```" if inside => {
                inside = false;
                let value: Value = serde_json::from_str(&example).unwrap();
                names(&value).iter().for_each(|field| {
                    assert!(explained(field), "docs/JSON.md does not explain `{field}` of `{section}`");
                });
                if let Ok(report) = serde_json::from_value::<rankdeck_core::report::Report>(value.clone()) {
                    assert_eq!(kind(&report.body), section);
                }
            }
            _ if inside => example.push_str(line),
            _ => {}
        }
    }
    let side = serde_json::to_value(rankdeck_core::card::Side::default()).unwrap();
    let call = serde_json::to_value(rankdeck_core::card::Call::default()).unwrap();
    for field in names(&side).into_iter().chain(names(&call)) {
        assert!(explained(&field), "docs/JSON.md does not explain `{field}` of the card");
    }
}

/// Names of all fields, those of inner objects included; names of values are free.
fn names(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, value)| {
                let inner = if name == "values" { Vec::new() } else { names(value) };
                std::iter::once(name.clone()).chain(inner)
            })
            .collect(),
        Value::Array(items) => items.iter().flat_map(names).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}
