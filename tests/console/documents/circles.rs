//! Modules of a crate do not use each other in a circle.
//!
//! A module that another one declares may use it and be used by it: the one is a part of the other. All other
//! edges count. Tests do not.

use super::{files, repository};
use std::collections::{BTreeMap, BTreeSet};

type Module = Vec<String>;

/// The module that a file is, relative to its crate; none for files of tests.
fn module(file: &str) -> Option<Module> {
    let path = file.strip_suffix(".rs")?;
    let mut parts: Module = path.split('/').map(str::to_owned).collect();
    if parts.iter().any(|part| part == "tests" || part.ends_with("_tests") || part == "testkit") {
        return None;
    }
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        parts.pop();
    }
    Some(parts)
}

/// The paths of a `use` tree: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn leaves(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((prefix, rest)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap_or(tree).trim().to_owned()];
    };
    let body = rest.strip_suffix('}').unwrap_or(rest);
    let (mut found, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in body.char_indices().chain([(body.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = body[start..at].trim();
                if !part.is_empty() {
                    found.extend(leaves(part).into_iter().map(|leaf| format!("{prefix}{leaf}")));
                }
                start = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// Paths that a file names by `use` of anything, or in its text after `crate::` or `super::`.
fn paths(text: &str) -> Vec<String> {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: String =
        text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let mut found = Vec::new();
    let mut rest = String::new();
    let mut left = code.as_str();
    while let Some(at) = left.find("use ") {
        let begins = left[..at].ends_with(['\n', ' ', '{', '}', ';']) || at == 0;
        rest.push_str(&left[..at]);
        let Some(end) = left[at..].find(';').filter(|_| begins) else {
            left = &left[at + 4..];
            continue;
        };
        found.extend(leaves(&left[at + 4..at + end]));
        left = &left[at + end..];
    }
    rest.push_str(left);
    for root in ["crate::", "super::"] {
        for (at, _) in rest.match_indices(root) {
            let named = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
            if !rest[..at].ends_with(named) {
                found.push(rest[at..].chars().take_while(|c| named(*c)).collect());
            }
        }
    }
    found
}

/// The module of `known` that a path means, seen from `here`.
fn target(path: &str, here: &Module, known: &BTreeSet<Module>) -> Option<Module> {
    let mut parts = path.split("::").map(str::trim).peekable();
    let mut at = here.clone();
    match parts.peek()? {
        &"crate" => {
            parts.next();
            at.clear();
        }
        &"super" => {
            while parts.next_if_eq(&"super").is_some() {
                at.pop();
            }
        }
        &"self" => {
            parts.next();
        }
        first => {
            let child: Module = here.iter().cloned().chain([(*first).to_owned()]).collect();
            known.contains(&child).then_some(())?;
        }
    }
    for part in parts {
        let below: Module = at.iter().cloned().chain([part.to_owned()]).collect();
        if !known.contains(&below) {
            break;
        }
        at = below;
    }
    known.contains(&at).then_some(at)
}

/// Modules that can be reached from one.
fn reached(from: &Module, edges: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<Module> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from.clone()]);
    while let Some(next) = open.pop() {
        for other in edges.get(&next).into_iter().flatten() {
            if seen.insert(other.clone()) {
                open.push(other.clone());
            }
        }
    }
    seen
}

#[test]
fn no_modules_use_each_other_in_a_circle() {
    let folders = std::fs::read_dir(repository().join("src")).unwrap();
    let crates: Vec<String> = folders
        .filter_map(|entry| entry.ok().filter(|entry| entry.path().is_dir()))
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    assert!(crates.len() > 8, "{crates:?}");
    let mut circles = Vec::new();
    for name in crates {
        let folder = repository().join("src").join(&name);
        let texts: BTreeMap<Module, String> = files(&[&format!("src/{name}")], ".rs")
            .into_iter()
            .filter_map(|path| {
                let here = module(path.strip_prefix(&folder).ok()?.to_str()?)?;
                Some((here, std::fs::read_to_string(&path).unwrap()))
            })
            .collect();
        let known: BTreeSet<Module> = texts.keys().cloned().collect();
        let edges: BTreeMap<Module, BTreeSet<Module>> = texts
            .iter()
            .map(|(here, text)| {
                let others = paths(text).into_iter().filter_map(|path| target(&path, here, &known));
                (
                    here.clone(),
                    others.filter(|other| !here.starts_with(other) && !other.starts_with(here)).collect(),
                )
            })
            .collect();
        for (here, others) in &edges {
            for other in others.iter().filter(|other| reached(other, &edges).contains(here)) {
                circles.push(format!("{name}: {} -> {}", here.join("::"), other.join("::")));
            }
        }
    }
    assert!(circles.is_empty(), "these lie on circles:\n{}", circles.join("\n"));
}

#[test]
fn trees_of_use_are_read() {
    assert_eq!(leaves("a::{b, c::{d, e as f}}"), ["a::b", "a::c::d", "a::c::e"]);
    assert_eq!(
        paths("use super::a::{self, B};\nfn f() { crate::c::d(); } // super::e\n"),
        ["super::a::self", "super::a::B", "crate::c::d"]
    );
}
