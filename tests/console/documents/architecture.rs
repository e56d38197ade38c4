//! docs/ARCHITECTURE.md against Cargo and the sources: edges between crates, versions, numbered rules.

use super::{between, files, read, repository};
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

/// Not a crate of helpers for tests.
fn for_users(package: &Value) -> bool {
    package["publish"].as_array().is_none_or(|registries| !registries.is_empty())
}

fn short(name: &str) -> String {
    name.strip_prefix("rankdeck-").unwrap_or(name).to_string()
}

#[test]
fn crates_use_each_other_as_the_table_of_edges_says() {
    let text = read("docs/ARCHITECTURE.md");
    let rows = between(&text, "edges").lines().filter(|line| line.starts_with('|')).skip(2);
    let told: BTreeMap<String, BTreeSet<String>> = rows
        .map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [name, _, uses] = cells[..] else { panic!("three columns: {row}") };
            let uses = uses.split(',').map(|name| name.trim().to_string()).filter(|name| !name.is_empty());
            (name.to_string(), uses.collect())
        })
        .collect();
    let packages: Vec<Value> = packages().into_iter().filter(for_users).collect();
    let members: BTreeSet<String> =
        packages.iter().map(|package| short(package["name"].as_str().unwrap())).collect();
    let mut true_edges = BTreeMap::new();
    for package in &packages {
        let uses: BTreeSet<String> = package["dependencies"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|dependency| dependency["kind"] != "dev" && !dependency["path"].is_null())
            .map(|dependency| short(dependency["name"].as_str().unwrap()))
            .filter(|name| members.contains(name))
            .collect();
        true_edges.insert(short(package["name"].as_str().unwrap()), uses);
    }
    assert_eq!(told, true_edges, "left: docs/ARCHITECTURE.md, right: cargo metadata");
}

/// `(section, line)` of all dependencies in a manifest, multi-line tables in one line.
fn dependencies(manifest: &str) -> Vec<(String, String)> {
    let (mut section, mut found, mut open) = (String::new(), Vec::<(String, String)>::new(), false);
    for line in manifest.lines() {
        let line = line.trim();
        if line.starts_with('[') && !open {
            section =
                line.split_once(']').map_or(line, |(name, _)| name).trim_matches(['[', ']']).to_string();
        } else if open {
            if let Some((_, last)) = found.last_mut() {
                last.push_str(line);
            }
            open = !line.contains(']');
        } else if !line.is_empty() && !line.starts_with('#') && section.contains("dependencies") {
            open = line.matches('[').count() > line.matches(']').count();
            found.push((section.clone(), line.to_string()));
        }
    }
    found
}

#[test]
fn versions_of_dependencies_stand_once_each_with_its_reason_and_a_user() {
    let root = read("Cargo.toml");
    let shared: Vec<String> = dependencies(&root)
        .into_iter()
        .filter(|(section, _)| section == "workspace.dependencies")
        .map(|(_, line)| line)
        .collect();
    let mut used = BTreeSet::new();
    for package in packages() {
        let manifest = std::fs::read_to_string(package["manifest_path"].as_str().unwrap()).unwrap();
        let name = package["name"].as_str().unwrap();
        for (section, line) in dependencies(&manifest) {
            if section == "workspace.dependencies" {
                continue;
            }
            // `name.workspace = true`, `name = { workspace = true, ... }` or `[dependencies.name]`, never a
            // version.
            assert!(!section.contains("dependencies."), "{name}: write {section} in one line");
            assert!(
                line.contains("workspace = true"),
                "{name}: the version belongs to [workspace.dependencies]: {line}"
            );
            used.insert(line.split(['.', ' ', '=']).next().unwrap().to_string());
        }
    }
    for line in shared {
        let name = line.split([' ', '=']).next().unwrap();
        assert!(used.contains(name), "nobody uses {name} of [workspace.dependencies]");
        let own = name.starts_with("rankdeck");
        assert!(
            own || line.contains(" # "),
            "{name} of [workspace.dependencies] needs its reason in a comment"
        );
    }
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

/// Rules that the names of functions cite: `plan_2_sizes_...`, `report_1_and_2_...`.
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
fn every_numbered_rule_has_a_test_and_every_citation_a_rule() {
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
