//! Doc comments say what a name does not say.

use super::{files, repository};
use std::collections::BTreeSet;

/// Whose comments are texts of the program: help, and the keys of CONFIG.md.
const TEXTS: [&str; 2] = ["src/cli/args", "src/launcher/flags.rs"];
const ITEMS: [&str; 9] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro"];
const QUALIFIERS: [&str; 4] = ["async", "unsafe", "extern", "\"C\""];
/// Words that say nothing by themselves.
const FILLERS: [&str; 28] = [
    "a", "an", "the", "its", "it", "is", "are", "of", "to", "in", "on", "at", "by", "for", "and", "one",
    "all", "that", "this", "which", "what", "whose", "where", "when", "each", "with", "from", "them",
];

/// What an item is, when the line begins one.
fn item(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub")).peekable();
    while words.next_if(|word| QUALIFIERS.contains(word)).is_some() {}
    words.next().filter(|word| ITEMS.contains(word))
}

/// The beginnings of the words, by which `Evaluations` and `evals` are one.
fn stems(text: &str) -> BTreeSet<String> {
    let (mut spaced, mut before) = (String::new(), ' ');
    for c in text.chars() {
        if before.is_lowercase() && c.is_uppercase() {
            spaced.push(' ');
        }
        before = c;
        spaced.push(if c.is_alphanumeric() { c.to_ascii_lowercase() } else { ' ' });
    }
    let words = spaced.split_whitespace().filter(|word| !FILLERS.contains(word));
    words.map(|word| word.chars().take(4).collect()).collect()
}

/// Comments of one line on fields and variants that say no word which these do not have.
fn empty(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_doc = |line: &usize| lines.get(*line).is_some_and(|line| line.starts_with("///"));
    let mut found = Vec::new();
    let mut in_macro = false;
    for (number, line) in lines.iter().enumerate() {
        in_macro = (in_macro || line.ends_with("! {")) && !text.lines().nth(number).unwrap().starts_with('}');
        let Some(said) = line.strip_prefix("/// ") else { continue };
        let is_alone = !is_doc(&(number + 1)) && number.checked_sub(1).is_none_or(|before| !is_doc(&before));
        let named = lines[number + 1..].iter().find(|line| !line.starts_with("#["));
        let Some(named) = named.filter(|named| is_alone && !in_macro && item(named).is_none()) else {
            continue;
        };
        let tells = said.contains(['`', '#', '/']) || said.chars().any(|c| c.is_ascii_digit());
        if !tells && said.split_whitespace().count() < 4 && stems(said).is_subset(&stems(named)) {
            found.push(number + 1);
        }
    }
    found
}

#[test]
fn no_doc_comment_only_repeats_the_name_that_it_explains() {
    assert_eq!(empty("    /// Training iteration.\n    pub train_iter: u64,\n"), [1]);
    assert_eq!(empty("    /// Which host.\n    #[serde(default)]\n    host: String,\n"), [1]);
    assert_eq!(
        empty("/// Unix time.\npub time: f64,\n/// Reward.\nfn reward() {}\n/// In ms.\nage: u64"),
        [0; 0]
    );
    let mut found = Vec::new();
    for path in files(&["src"], ".rs") {
        let file = path.strip_prefix(repository()).unwrap().display().to_string();
        if !TEXTS.iter().any(|text| file.starts_with(text)) {
            let text = std::fs::read_to_string(&path).unwrap();
            found.extend(empty(&text).iter().map(|line| format!("{file}:{line}")));
        }
    }
    assert!(found.is_empty(), "a comment says what the name says; leave it out:\n{}", found.join("\n"));
}

/// Fields and variants need no comment where their names say it all; their types do.
#[test]
fn every_public_type_says_what_it_is() {
    const TYPES: [&str; 4] = ["struct", "enum", "union", "trait"];
    let mut silent = Vec::new();
    for path in files(&["src"], ".rs") {
        let text = std::fs::read_to_string(&path).unwrap();
        let file = path.strip_prefix(repository()).unwrap().display().to_string();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (number, line) in lines.iter().enumerate() {
            let is_type = line.starts_with("pub ") && item(line).is_some_and(|item| TYPES.contains(&item));
            // Macros give the comments of what they make.
            if is_type && !line.contains('$') {
                let before = lines[..number].iter().rev().find(|line| !line.starts_with("#["));
                if !before.is_some_and(|line| line.starts_with("///")) {
                    silent.push(format!("{file}:{}: {line}", number + 1));
                }
            }
        }
    }
    assert!(silent.is_empty(), "public types without a comment:\n{}", silent.join("\n"));
}
