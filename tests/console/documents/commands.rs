//! Commands that documents name are commands of this build, and each feature has something that holds it.

use super::{files, read, repository};
use clap::CommandFactory;
use clap::error::ErrorKind;

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
fn every_command_that_a_document_names_can_be_given() {
    let mut pages = files(&["docs"], ".md");
    pages.extend(["README.md", "CONTRIBUTING.md"].map(|name| repository().join(name)));
    let mut wrong = Vec::new();
    // A lab book names what there was.
    for page in pages.into_iter().filter(|page| !page.to_string_lossy().contains("/lab/")) {
        for line in commands(&std::fs::read_to_string(&page).unwrap()) {
            let words = words(&line);
            let named = words.get(1).is_some_and(|word| word.starts_with(|c: char| c.is_ascii_lowercase()));
            let error = match rankdeck::cli::args::Cli::command().try_get_matches_from(&words) {
                Err(error) if named => error,
                _ => continue,
            };
            // What a span leaves out is in the sentence around it.
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

#[test]
fn every_feature_has_a_command_a_test_or_a_page() {
    let text = read("docs/FEATURES.md");
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    assert!(rows.len() > 40, "{}", rows.len());
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [_, state, holds] = cells[..] else { panic!("three cells: {row}") };
        assert!(["yes", "part", "no"].contains(&state), "{row}");
        let held = ["`rankdeck ", "`tests/", "`src/", "`benches/", "`make ", "]("];
        assert!(state == "no" || held.iter().any(|part| holds.contains(part)), "nothing holds it: {row}");
    }
}
