//! docs/json.md: its examples are lines of a run that this test makes, its reasons are those of the code.
//! Values that differ from run to run (times, ports, pids, paths, loads) are fixed in the examples.

use super::{check_current, read, repository, table};
use crate::support::{Bench, rankdeck};
use rankdeck_core::reason;
use rankdeck_core::report::{Report, ReportBody};
use rankdeck_types::ids::{Generation, Rank, RunId};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// One line, as written and as parsed.
struct Line {
    text: String,
    value: Value,
}

/// Runs a command with `--json`.
fn lines(bench: &Bench, args: &[&str], code: i32) -> Vec<Line> {
    read_lines(rankdeck().args(args).arg("--json").current_dir(bench.path()), code)
}

fn read_lines(command: &mut Command, code: i32) -> Vec<Line> {
    let output = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{command:?}\n{stdout}\n{stderr}");
    let read = |text: &str| Line { text: text.into(), value: serde_json::from_str(text).unwrap() };
    stdout.lines().map(read).collect()
}

/// Lines of a preflight, of a run in which rank 1 kills itself and a second generation finishes, and of `ps`.
fn record_run(bench: &Bench) -> Vec<Line> {
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
    let mut measure = rankdeck();
    measure.args(["check", experiment, "--hosts", hosts, "--measure", "--measure-mb", "1", "--json"]);
    // The baseline is the bench's own.
    measure.env("RANKDECK_CACHE", bench.path().join("cache")).current_dir(bench.path());
    let measured = read_lines(&mut measure, 0).into_iter();
    all.extend(measured.filter(|line| line.value["kind"] == "measurement"));
    all.extend(lines(bench, &["run", experiment, "--hosts", hosts], 0));
    all.extend(lines(bench, &["ps", "--hosts", hosts], 0));
    all
}

/// Whether a line becomes the example of its kind.
fn is_example(kind: &str, value: &Value) -> bool {
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
        "measurement" => value["of"] == "pair",
        "promise" => value["promise"] == "resume",
        _ => true,
    }
}

/// The fixed value of a field that differs from run to run.
fn fixed_value(name: &str) -> Option<Value> {
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
        // The state of a dying process depends on the time of the sample.
        "os" => json!("gone (X), cpu 2%"),
        "others" => json!([{"ranks": [0], "text": "sleeping"}]),
        _ => return None,
    })
}

/// A text with fixed names of runs and paths.
fn without_names(text: &str, folder: &Path) -> String {
    let text = text.replace(&folder.display().to_string(), "/home/alice/rankdeck");
    let mut parts = text.split("example-2");
    let mut out = parts.next().unwrap_or("").to_string();
    for part in parts {
        out.push_str("example-20260101-120000");
        out.push_str(part.get("0260101-120000".len()..).unwrap_or(""));
    }
    out
}

/// A text with fixed numbers before units, and after `pid`, `port` and the like.
fn without_measurements(text: &str) -> String {
    if let Some((rank, rest)) = text.split_once(": pid ") {
        let state = rest.split_once(" is ").map_or(rest, |(pid, _)| pid);
        if state.bytes().all(|byte| byte.is_ascii_digit()) {
            return format!("{rank}: pid 4711 is gone (X), cpu 2%");
        }
    }
    let words: Vec<&str> = text.split(' ').collect();
    let mut out: Vec<String> = Vec::new();
    for (i, word) in words.iter().enumerate() {
        let bare = word.trim_end_matches([',', ';', ':', ')', '%']);
        let end = &word[bare.len()..];
        let number = !bare.is_empty() && bare.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let unit = words.get(i + 1).map_or("", |next| next.trim_end_matches([',', ';', ':', ')', '.']));
        let before = if i > 0 { words[i - 1] } else { "" };
        let moment = end.starts_with('%')
            || ["s", "ms", "%", "MB", "MiB", "GB", "GiB", "core", "cores", "GPUs"].contains(&unit);
        let name = ["pid", "port", "process"].contains(&before.trim_start_matches('('));
        out.push(if number && (moment || name) { format!("2{end}") } else { (*word).to_string() });
    }
    out.join(" ")
}

fn normalized(name: &str, value: &Value, folder: &Path) -> Value {
    if !value.is_null()
        && let Some(value) = fixed_value(name)
    {
        return value;
    }
    match value {
        Value::String(text) => Value::String(without_measurements(&without_names(text, folder))),
        Value::Array(items) => items.iter().map(|item| normalized(name, item, folder)).collect(),
        Value::Object(fields) => Value::Object(
            fields.iter().map(|(name, value)| (name.clone(), normalized(name, value, folder))).collect(),
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// Values up to this length stay on one line of an example.
const LINE: usize = 100;

/// `value`, with the fields of objects in the order of the line that it was read from.
fn pretty(value: &Value, line: &str) -> String {
    let mut out = String::new();
    write_pretty(&mut out, value, line, 0);
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

fn write_pretty(out: &mut String, value: &Value, line: &str, depth: usize) {
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
        write_pretty(out, value, line, depth + 1);
    }
    out.push('\n');
    out.push_str(&"  ".repeat(depth));
    out.push(close);
}

/// A line that the run does not produce.
fn report(body: ReportBody) -> Report {
    Report { run: RunId("example-20260101-120000".into()), generation: Generation(0), time: 1.5, body }
}

/// The document with the examples of this run, each below the heading of its kind.
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
    assert_eq!(missing.next(), None, "a kind without an example in docs/json.md");
    out.join("\n") + "\n"
}

/// The reasons by verdict and by when `on_stuck` acts.
fn reasons() -> String {
    let mut rows: Vec<[String; 3]> = Vec::new();
    for row in reason::all_reasons() {
        let (verdict, policy) = (format!("`{}`", row.kind.name()), row.policy.name().to_owned());
        match rows.iter_mut().find(|[known, _, when]| (known, when) == (&verdict, &policy)) {
            Some([_, names, _]) => *names += &format!(", `{}`", row.name),
            None => rows.push([verdict, format!("`{}`", row.name), policy]),
        }
    }
    table(["verdict", "reason codes", "`on_stuck` acts"], rows)
}

#[test]
fn json_examples_and_reasons_are_current() {
    let bench = Bench::new();
    let all = record_run(&bench);
    let mut examples = BTreeMap::new();
    let mut kinds: Vec<&str> = Vec::new();
    for line in &all {
        let kind = line.value["kind"].as_str().unwrap();
        kinds.push(kind);
        if is_example(kind, &line.value) && !examples.contains_key(kind) {
            let mut value = normalized("", &line.value, bench.path());
            match kind {
                "check_finished" => value["duration_s"] = json!(0.25),
                "measurement" => {
                    let was = json!({ "latency_s": 0.00009, "there_bps": 9.4e9, "back_bps": 9.3e9 });
                    (value["latency_s"], value["baseline"]) = (json!(0.00008), was);
                    (value["there_bps"], value["back_bps"]) = (json!(1.5e9), json!(9.3e9));
                }
                "run" => {
                    (value["started"], value["ended"]) = (json!(1_767_268_800.5), json!(1_767_268_806.5));
                    (value["duration_s"], value["age_s"]) = (json!(4.0), json!(60.0));
                    value["env_step"] = json!(20_480);
                    value["program"] = json!("python train.py");
                }
                // The last line within a second varies.
                "metrics" => {
                    value["env_step"] = json!(2048);
                    value.as_object_mut().unwrap().remove("counter");
                    value["values"] = json!({ "charts/episodic_return": 21.5, "loss": 0.25 });
                    value["return_mean"] = json!(21.5);
                    value["progress"] = json!({
                        "done": 20, "total": 1800, "unit": "it", "per_s": 2.5, "eta_s": 712.0, "label": "Epoch 3",
                    });
                }
                _ => {}
            }
            examples.insert(kind.to_string(), pretty(&value, &line.text));
        }
    }
    // The reader of this run is fast enough.
    let dropped = report(ReportBody::LinesDropped { lines: 312 });
    let value = normalized("", &serde_json::to_value(&dropped).unwrap(), bench.path());
    examples.insert("lines_dropped".into(), pretty(&value, &serde_json::to_string(&dropped).unwrap()));
    let shrunk = report(ReportBody::Membership {
        epoch: 1,
        ranks: vec![Rank(0), Rank(2), Rank(3)],
        lost: vec![Rank(1)],
        joined: Vec::new(),
        world_size: 4,
        train_iter: 12,
        env_step: 6144,
        steps_lost: 128,
        seconds: 0.25,
    });
    let value = normalized("", &serde_json::to_value(&shrunk).unwrap(), bench.path());
    examples.insert("membership".into(), pretty(&value, &serde_json::to_string(&shrunk).unwrap()));
    let missing: Vec<&&str> = kinds.iter().filter(|kind| !examples.contains_key(**kind)).collect();
    assert!(missing.is_empty(), "the run has no example of {missing:?}");
    let text = with_examples(&read("docs/json.md"), &examples);
    let (before, rest) = text.split_once("<!-- reasons -->\n").unwrap();
    let (_, after) = rest.split_once("<!-- /reasons -->").unwrap();
    let expected = format!("{before}<!-- reasons -->\n{}<!-- /reasons -->{after}", reasons());
    check_current("docs/json.md", &expected);
}

/// Every kind and field that can be written, in this run or not.
#[test]
fn json_page_explains_every_kind_and_field() {
    let text = read("docs/json.md");
    let explained = |field: &str| text.contains(&format!("`{field}`"));
    // A new kind does not compile until it is listed here.
    let kind = |body: &ReportBody| match body {
        ReportBody::RunStarted { .. } => "run_started",
        ReportBody::Host { .. } => "host",
        ReportBody::Rank { .. } => "rank",
        ReportBody::Progress { .. } => "progress",
        ReportBody::Eval { .. } => "eval",
        ReportBody::Checkpoint { .. } => "checkpoint",
        ReportBody::Notice { .. } => "notice",
        ReportBody::LinesDropped { .. } => "lines_dropped",
        ReportBody::Verdict(_) => "verdict",
        ReportBody::Log { .. } => "log",
        ReportBody::RunFinished { .. } => "run_finished",
        ReportBody::Metrics { .. } => "metrics",
        ReportBody::Histogram { .. } => "histogram",
        ReportBody::Image { .. } => "image",
        ReportBody::Restart { .. } => "restart",
        ReportBody::Membership { .. } => "membership",
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
                    assert!(explained(field), "docs/json.md does not explain `{field}` of `{section}`");
                });
                if let Ok(report) = serde_json::from_value::<rankdeck_core::report::Report>(value.clone()) {
                    assert_eq!(kind(&report.body), section);
                }
            }
            _ if inside => example.push_str(line),
            _ => {}
        }
    }
    let side = serde_json::to_value(rankdeck_core::card::RankEvidence::default()).unwrap();
    let call = serde_json::to_value(rankdeck_core::card::CollectiveRef::default()).unwrap();
    for field in names(&side).into_iter().chain(names(&call)) {
        assert!(explained(&field), "docs/json.md does not explain `{field}` of the card");
    }
}

/// Names of all fields, inner objects included; names in `values` are free.
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
