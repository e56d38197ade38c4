//! A type is named by a noun: `LogExcerpt`, not `Taken`. A bare participle says nothing of what a value is,
//! and soon several types have the same one.

use super::{files, repository};

/// Participles that do not end in `ed`.
const IRREGULAR: [&str; 24] = [
    "Begun", "Bound", "Built", "Cut", "Done", "Found", "Frozen", "Given", "Heard", "Held", "Hidden", "Kept",
    "Known", "Left", "Lost", "Made", "Said", "Seen", "Sent", "Shown", "Taken", "Told", "Written", "Wrong",
];
/// Nouns that end in `ed`, and `[distributed]`, a section of experiments.
const NOUNS: [&str; 6] = ["Bed", "Distributed", "Feed", "Need", "Seed", "Speed"];

fn is_bare_participle(name: &str) -> bool {
    let one_word = !name[1..].contains(|c: char| c.is_ascii_uppercase());
    one_word && (IRREGULAR.contains(&name) || name.ends_with("ed") && !NOUNS.contains(&name))
}

/// The type that a line begins to define.
fn defined(line: &str) -> Option<&str> {
    let mut line = line.trim_start();
    if let Some(rest) = line.strip_prefix("pub") {
        line = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(rest, |(_, rest)| rest);
    }
    let line = line.trim_start();
    let rest = ["struct ", "enum ", "trait ", "type "].iter().find_map(|word| line.strip_prefix(word))?;
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
    Some(&rest[..end]).filter(|name| name.starts_with(|c: char| c.is_ascii_uppercase()))
}

#[test]
fn no_type_is_a_bare_participle() {
    let mut found = Vec::new();
    for path in files(&["src", "tests"], ".rs") {
        let text = std::fs::read_to_string(&path).unwrap();
        let named = text.lines().filter_map(defined).filter(|name| is_bare_participle(name));
        let file = path.strip_prefix(repository()).unwrap().display().to_string();
        found.extend(named.map(|name| format!("{file}: {name}")));
    }
    assert!(found.is_empty(), "say what a value is:\n{}", found.join("\n"));
}

#[test]
fn definitions_are_found_in_any_form() {
    let lines =
        ["pub(super) struct Kept<T> {", "    type Told = u8;", "pub enum LogExcerpt", "let type_of = 1;"];
    let names: Vec<_> = lines.iter().map(|line| defined(line)).collect();
    assert_eq!(names, [Some("Kept"), Some("Told"), Some("LogExcerpt"), None]);
    let judged = ["Kept", "Compared", "Seed", "FoundRun"].map(is_bare_participle);
    assert_eq!(judged, [true, true, false, false]);
}
