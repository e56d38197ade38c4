//! Every crate that is linked has a licence of deny.toml's list, and what is linked without a crate of its
//! own is named in THIRD-PARTY.md.

use super::read;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;

/// All packages that are built on Linux.
fn packages() -> Vec<Value> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--offline", "--locked"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(super::repository())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// The list of deny.toml.
fn allowed() -> BTreeSet<String> {
    let deny: toml::Table = read("deny.toml").parse().unwrap();
    let list = deny["licenses"]["allow"].as_array().unwrap();
    list.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// Whether an SPDX expression can be met with the allowed licences. `/` is an old way to write `OR`.
fn is_met(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let text = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut at = 0;
    let met = either(&words, &mut at, allowed);
    met && at == words.len()
}

fn either(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut met = all(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all(words, at, allowed);
    }
    met
}

fn all(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut met = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at, allowed);
    }
    met
}

fn one(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let met = either(words, at, allowed);
        *at += 1;
        return met;
    }
    let mut name = (*word).to_owned();
    if words.get(*at) == Some(&"WITH") {
        name = words[*at - 1..(*at + 2).min(words.len())].join(" ");
        *at += 2;
    }
    allowed.contains(&name)
}

#[test]
fn expressions_are_met_by_what_is_allowed() {
    let allowed = ["MIT", "ISC", "A WITH B"].map(str::to_owned).into();
    for met in ["MIT", "GPL-3.0 OR MIT", "GPL-3.0/MIT", "MIT AND ISC", "(GPL-3.0 OR MIT) AND ISC", "A WITH B"]
    {
        assert!(is_met(met, &allowed), "{met}");
    }
    for unmet in ["", "GPL-3.0", "MIT AND GPL-3.0", "(GPL-3.0 OR X) AND ISC", "A", "MIT WITH B", "MIT MIT"] {
        assert!(!is_met(unmet, &allowed), "{unmet}");
    }
}

#[test]
fn every_crate_has_a_licence_of_the_list() {
    let allowed = allowed();
    let unmet: Vec<String> = packages()
        .iter()
        .filter(|package| !package["license"].as_str().is_some_and(|licence| is_met(licence, &allowed)))
        .map(|package| format!("{}: {}", package["name"], package["license"]))
        .collect();
    assert!(unmet.is_empty(), "not in deny.toml: {unmet:#?}");
}

/// What `cargo deny check sources` would say, which is not everywhere.
#[test]
fn every_crate_comes_from_the_registry_or_from_this_repository() {
    let lock: toml::Table = read("Cargo.lock").parse().unwrap();
    let members: BTreeSet<String> = packages()
        .iter()
        .filter(|package| package["source"].is_null())
        .map(|package| package["name"].as_str().unwrap().to_owned())
        .collect();
    for package in lock["package"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        match package.get("source").and_then(toml::Value::as_str) {
            None => assert!(members.contains(name), "{name} has no source and is no crate of ours"),
            Some(source) => {
                assert_eq!(source, "registry+https://github.com/rust-lang/crates.io-index", "{name}");
                assert!(package.get("checksum").is_some(), "{name} has no checksum");
            }
        }
    }
}

/// C libraries that come with a crate have licences of their own.
#[test]
fn libraries_that_are_linked_statically_are_named() {
    let notices = read("docs/THIRD-PARTY.md");
    let names: BTreeSet<String> =
        packages().iter().map(|package| package["name"].as_str().unwrap().to_owned()).collect();
    for (name, library) in
        [("openssl-src", "OpenSSL"), ("libssh2-sys", "libssh2"), ("libz-sys", "zlib"), ("ring", "ring")]
    {
        assert!(names.contains(name), "{name} is not linked any more: take {library} out of THIRD-PARTY.md");
        assert!(notices.contains(&format!("## {library}\n")), "THIRD-PARTY.md says nothing of {library}");
    }
}
