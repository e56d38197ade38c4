//! What documents and sources refer to exists: commands, links, paths, other documents.

use super::{files, read, repository};
use clap::CommandFactory;
use clap::error::ErrorKind;
use std::ffi::OsString;
use std::path::PathBuf;

/// The words of a command line as documents write it: up to a pipe, a redirection or a comment.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() && !rest.starts_with(['|', '>', '#', ';', '&']) {
        let quoted = rest.chars().next().filter(|c| matches!(c, '\'' | '"'));
        let (word, after) = match quoted {
            Some(quote) => rest[1..].split_once(quote).unwrap_or((&rest[1..], "")),
            None => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
        };
        // `N` stands for a number.
        words.push(if word == "N" { "1".to_owned() } else { word.to_owned() });
        rest = after.trim_start();
    }
    words
}

/// Command lines in code spans, and lines of code blocks that begin with the program.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            let line = line.trim_start().trim_start_matches("$ ");
            found.extend(line.starts_with("rankdeck ").then(|| line.to_owned()));
        } else {
            let spans = line.split('`').skip(1).step_by(2);
            found.extend(spans.filter(|span| span.starts_with("rankdeck ")).map(str::to_owned));
        }
    }
    found
}

#[test]
fn command_in_document_parses() {
    let mut pages = files(&["docs"], ".md");
    pages.extend(["README.md", "CONTRIBUTING.md", "VOICE.md"].map(|name| repository().join(name)));
    let mut wrong = Vec::new();
    for page in pages {
        for line in commands(&std::fs::read_to_string(&page).unwrap()) {
            let words = words(&line);
            let named = words.get(1).is_some_and(|word| word.starts_with(|c: char| c.is_ascii_lowercase()));
            let cli = rankdeck::cli::args::Cli::command();
            let given = words.iter().map(OsString::from).collect();
            let given = rankdeck::cli::args::with_separator(given, &cli);
            let error = match cli.try_get_matches_from(given) {
                Err(error) if named => error,
                _ => continue,
            };
            // A code span may leave arguments out.
            let lacks = [
                ErrorKind::MissingRequiredArgument,
                ErrorKind::MissingSubcommand,
                ErrorKind::DisplayHelp,
                ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
                ErrorKind::DisplayVersion,
            ];
            let without_value = error.to_string().contains("a value is required");
            if !lacks.contains(&error.kind()) && !without_value {
                let why = error.to_string().lines().next().unwrap_or_default().to_owned();
                wrong.push(format!("{}: {line}: {why}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "no such commands: {wrong:#?}");
}

/// Every page of the documents.
fn pages() -> Vec<PathBuf> {
    let mut pages = files(&["docs", "benches"], ".md");
    let root = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "VOICE.md"];
    pages.extend(root.map(|name| repository().join(name)));
    pages
}

#[test]
fn document_link_leads_to_file_and_heading() {
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            if link.starts_with("http") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link}: no such file", page.display());
            if !heading.is_empty() {
                let there = std::fs::read_to_string(&target).unwrap();
                let found =
                    there.lines().filter(|line| line.starts_with('#')).any(|line| anchor(line) == heading);
                assert!(found, "{}: {link}: no such heading", page.display());
            }
        }
    }
}

/// A heading as forges make anchors of it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn path_in_document_exists() {
    let mut missing = Vec::new();
    // Notes and changes name files that may be gone.
    let current =
        |page: &PathBuf| !page.ends_with("CHANGELOG.md") && !page.to_string_lossy().contains("/notes/");
    for page in pages().into_iter().filter(current) {
        let text = std::fs::read_to_string(&page).unwrap();
        for name in text.split('`').skip(1).step_by(2) {
            let roots = ["src/", "tests/", "benches/", "examples/", "configs/"];
            let placeholder =
                name.contains(char::is_whitespace) || name.contains("NAME") || name.contains("ENV");
            if roots.iter().any(|root| name.starts_with(root))
                && !placeholder
                && !repository().join(name).exists()
            {
                missing.push(format!("{}: {name}", page.display()));
            }
        }
    }
    assert!(missing.is_empty(), "paths not found: {missing:#?}");
}

/// `make gpu-test` filters by that word.
#[test]
fn test_that_needs_a_gpu_has_gpu_in_its_name() {
    let script = read("tests/setup/gpu_test.sh");
    assert!(script.contains("-- --ignored gpu") && script.contains("[ \"$passed\" -eq \"$expected\" ]"));
    let mut found = Vec::new();
    for path in files(&["tests", "src"], ".rs") {
        let text = std::fs::read_to_string(&path).unwrap();
        for rest in text.split("#[ignore = \"GPU").skip(1) {
            let name =
                rest.split_once("fn ").and_then(|(_, rest)| rest.split_once('(')).map(|(name, _)| name);
            // A test of tests, such as this one, names none.
            found.extend(name.filter(|_| !path.ends_with("references.rs")).map(str::to_owned));
        }
    }
    assert!(!found.is_empty() && found.iter().all(|name| name.contains("gpu")), "{found:?}");
}

#[test]
fn document_named_in_source_exists() {
    for ending in [".rs", ".toml", ".py"] {
        for path in files(&["src", "configs", "tests", "benches", "examples"], ending) {
            let text = std::fs::read_to_string(&path).unwrap();
            for rest in text.split("docs/").skip(1) {
                let end = rest
                    .find(|c: char| !c.is_ascii_alphanumeric() && !"-_./".contains(c))
                    .unwrap_or(rest.len());
                let name = rest[..end].trim_end_matches('.');
                if name.ends_with(".md") {
                    assert!(repository().join("docs").join(name).exists(), "{}: docs/{name}", path.display());
                }
            }
        }
    }
}
