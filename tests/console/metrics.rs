//! What Prometheus reads: OpenMetrics as its specification has it, and a dashboard that asks for what there
//! is.

use crate::scenes::*;
use rankdeck::app::metrics::{MetricsFormat, text as text_as};
use rankdeck_core::model::*;
use rankdeck_testkit::repository;
use rankdeck_types::ids::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

fn text(model: &Model, now: Timestamp) -> String {
    text_as(model, now, MetricsFormat::OpenMetrics)
}

/// One sample: labels and value.
type Sample = (BTreeMap<String, String>, f64);

/// Samples by name; every line must be as the specification has it.
fn parse(text: &str) -> BTreeMap<String, Vec<Sample>> {
    let mut found: BTreeMap<String, Vec<Sample>> = BTreeMap::new();
    let (mut family, mut kind, mut seen) = (String::new(), String::new(), BTreeSet::new());
    assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1);
    for line in text.lines().filter(|line| *line != "# EOF") {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            (family, kind) = rest.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
            assert!(seen.insert(family.clone()), "{family} stands twice");
            assert!(["gauge", "counter", "info"].contains(&kind.as_str()) && family.starts_with("rankdeck_"));
            assert!(!family.ends_with("_total") && !family.ends_with("_info"), "{family}");
            continue;
        }
        if let Some(rest) = line.strip_prefix("# HELP ") {
            assert!(rest.starts_with(&format!("{family} ")) && rest.ends_with('.'), "{line}");
            continue;
        }
        let (name, rest) = line.split_once('{').unwrap_or_else(|| panic!("{line}"));
        let suffix = match kind.as_str() {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        assert_eq!(name, format!("{family}{suffix}"), "{line}");
        let (labels, value) = rest.rsplit_once("} ").unwrap();
        let value: f64 = value.parse().unwrap();
        assert!(value.is_finite() && (kind != "counter" || value >= 0.0), "{line}");
        let mut all = BTreeMap::new();
        let mut left = labels;
        while !left.is_empty() {
            let (label, rest) = left.split_once("=\"").unwrap();
            let mut end = 0;
            while rest.as_bytes()[end] != b'"' {
                end += if rest.as_bytes()[end] == b'\\' { 2 } else { 1 };
            }
            assert!(all.insert(label.to_owned(), rest[..end].to_owned()).is_none(), "{line}");
            left = rest[end + 1..].trim_start_matches(',');
        }
        let samples = found.entry(name.to_owned()).or_default();
        assert!(samples.iter().all(|(labels, _)| *labels != all), "{line} stands twice");
        samples.push((all, value));
    }
    found
}

#[test]
fn text_is_openmetrics() {
    let model = running(&[gpu("node-a", 2), gpu("node-b", 2)]);
    let found = parse(&text(&model, NOW));
    let one = |name: &str| found.get(name).unwrap_or_else(|| panic!("no {name}"))[0].1;
    let totals = model.progress.as_ref().unwrap();
    assert_eq!(one("rankdeck_env_steps_total"), totals.totals.env_step as f64);
    assert_eq!(one("rankdeck_world_size"), 4.0);
    assert_eq!(found["rankdeck_rank_up"].len(), 4);
    assert_eq!(found["rankdeck_gpu_utilization_ratio"].len(), 4);
    assert!(found["rankdeck_gpu_utilization_ratio"].iter().all(|(_, ratio)| (0.0..=1.0).contains(ratio)));
    let states = &found["rankdeck_run_state"];
    assert_eq!(states.iter().map(|(_, value)| value).sum::<f64>(), 1.0);
    assert!(states.iter().any(|(labels, value)| labels["state"] == "running" && *value == 1.0));
    let empty = parse(&text(&Model::default(), Timestamp(0)));
    assert!(empty.contains_key("rankdeck_run_state") && !empty.contains_key("rankdeck_env_steps_total"));
}

#[test]
fn textfile_has_equal_samples_in_prometheus_format() {
    let model = running(&[gpu("node-a", 2), gpu("node-b", 2)]);
    let (new, old) = (text(&model, NOW), text_as(&model, NOW, MetricsFormat::Prometheus));
    let samples = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    };
    assert_eq!(samples(&new), samples(&old));
    let mut kind = BTreeMap::new();
    for line in old.lines() {
        if let Some((name, is)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            assert!(["gauge", "counter"].contains(&is), "{line}");
            kind.insert(name.to_owned(), is);
        } else if !line.starts_with('#') {
            let name = line.split('{').next().unwrap();
            assert!(kind.contains_key(name), "{name} has no TYPE of its own");
        }
    }
    assert!(kind["rankdeck_env_steps_total"] == "counter" && !old.contains("# EOF"));
}

#[test]
fn stalled_values_are_not_reported_as_current() {
    let model = running(&[gpu("node-a", 1)]);
    let later = parse(&text(&model, NOW.plus(60_000)));
    assert_eq!(later["rankdeck_env_steps_per_second"][0].1, 0.0);
    assert_eq!(later["rankdeck_host_up"][0].1, 0.0);
    assert!(!later.contains_key("rankdeck_eta_seconds") && !later.contains_key("rankdeck_gpu_power_watts"));
    assert!(later["rankdeck_progress_age_seconds"][0].1 >= 60.0);
}

#[test]
fn label_values_are_escaped() {
    let mut model = running(&[cpu("node-a", 1)]);
    model.ranks[0].host = "a\"b\\c\nd".into();
    let found = parse(&text(&model, NOW));
    assert_eq!(found["rankdeck_rank_up"][0].0["host"], "a\\\"b\\\\c\\nd");
}

#[test]
fn dashboard_queries_existing_metrics() {
    let mut model = running(&[gpu("node-a", 2)]);
    model.verdicts = behind().verdicts;
    let found = parse(&text(&model, NOW));
    let file = std::fs::read_to_string(repository("examples/grafana.json")).unwrap();
    let board: serde_json::Value = serde_json::from_str(&file).unwrap();
    let mut asked = 0;
    for panel in board["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            let at = query.find("rankdeck_").unwrap();
            let name: String =
                query[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            assert!(found.contains_key(&name), "{name} of {query}");
            asked += 1;
        }
    }
    assert!(asked >= 12);
}
