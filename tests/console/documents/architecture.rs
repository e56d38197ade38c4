//! docs/architecture.md has the crates and their edges; every numbered rule has a test.

use super::{check_parts, files, repository, table};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// The packages of the workspace, as Cargo sees them.
fn packages() -> Vec<Value> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(repository())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

fn short(name: &str) -> String {
    name.strip_prefix("rankdeck-").unwrap_or(name).to_string()
}

#[test]
fn architecture_lists_every_crate_with_its_edges() {
    let packages = packages();
    let packages = packages.iter().filter(|package| package["name"] != "rankdeck-testkit");
    let rows = packages.map(|package| {
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let edges: Vec<String> = dependencies
            .filter(|dependency| dependency["kind"] != "dev" && !dependency["path"].is_null())
            .map(|dependency| short(dependency["name"].as_str().unwrap()))
            .collect();
        let text = package["description"].as_str().unwrap_or_default().to_owned();
        [short(package["name"].as_str().unwrap()), text, edges.join(", ")]
    });
    let mut rows: Vec<[String; 3]> = rows.collect();
    // A crate comes after those that it uses: one with fewer crates below it comes first.
    rows.sort_by_key(|[name, _, edges]| {
        (edges.split(", ").filter(|edge| !edge.is_empty()).count(), name.clone())
    });
    check_parts("docs/architecture.md", &[("crates", table(["crate", "holds", "uses"], rows))]);
}

/// Names such as `PLAN-2` in a text.
fn rules(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-') {
        if let Some((name, number)) = word.split_once('-')
            && name.len() > 1
            && name.bytes().all(|byte| byte.is_ascii_uppercase())
            && !number.is_empty()
            && number.bytes().all(|byte| byte.is_ascii_digit())
        {
            found.insert(word.to_string());
        }
    }
    found
}

/// Rules that names of functions cite: `plan_2_sizes_...`, `report_1_and_2_...`.
fn cited_by_names(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for rest in text.split("fn ").skip(1) {
        let name: &str = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or("");
        let mut prefix = "";
        for part in name.split('_') {
            match part.bytes().all(|byte| byte.is_ascii_digit()) {
                true if !part.is_empty() && !prefix.is_empty() => {
                    found.insert(format!("{}-{part}", prefix.to_uppercase()));
                }
                _ if part == "and" => {}
                _ => prefix = part,
            }
        }
    }
    found
}

#[test]
fn numbered_rule_has_a_test_and_citation_has_a_rule() {
    let (mut defined, mut cited) = (BTreeMap::<String, String>::new(), BTreeSet::new());
    let mut mentioned = Vec::new();
    for path in files(&["src", "tests", "benches"], ".rs") {
        let text = std::fs::read_to_string(&path).unwrap();
        let path = path.strip_prefix(repository()).unwrap().display().to_string();
        for line in text.lines().filter_map(|line| line.strip_prefix("//! - ")) {
            let name = line.split(':').next().unwrap_or("");
            if rules(name).contains(name) {
                defined.entry(name.to_string()).or_insert_with(|| path.clone());
            }
        }
        let tests = path.starts_with("tests/") || path.contains("/tests") || path.contains("_tests.rs");
        let from = if tests { Some(0) } else { text.find("#[cfg(test)]") };
        if let Some(from) = from {
            cited.extend(rules(&text[from..]));
            cited.extend(cited_by_names(&text[from..]));
        }
        mentioned.push((path, rules(&text)));
    }
    for path in files(&["docs"], ".md") {
        let text = std::fs::read_to_string(&path).unwrap();
        mentioned.push((path.display().to_string(), rules(&text)));
    }
    let untested: Vec<String> = defined
        .iter()
        .filter(|(name, _)| !cited.contains(*name))
        .map(|(name, path)| format!("{name} in {path}"))
        .collect();
    assert!(untested.is_empty(), "numbered rules that no test cites: {untested:#?}");
    let families: BTreeSet<&str> = defined.keys().map(|name| name.split('-').next().unwrap()).collect();
    let dangling: Vec<String> = mentioned
        .iter()
        .flat_map(|(path, names)| names.iter().map(move |name| (path, name)))
        .filter(|(_, name)| {
            families.contains(name.split('-').next().unwrap()) && !defined.contains_key(*name)
        })
        .map(|(path, name)| format!("{name} in {path}"))
        .collect();
    assert!(dangling.is_empty(), "rules that are cited and not defined: {dangling:#?}");
}
