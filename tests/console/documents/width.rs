//! Comments are at most as wide as the code, and hold no code.

use super::{files, repository};

/// `max_width` of rustfmt.toml.
const WIDTH: usize = 110;
const FOLDERS: [&str; 7] = ["src", "tests", "benches", "examples", "packaging", "configs", ".config"];

/// A line is nothing but a comment. One that is a single word, such as a long address, cannot be broken.
fn is_comment(line: &str, marker: &str) -> bool {
    let text = line.trim_start();
    text.starts_with(marker) && text.split_whitespace().count() > 2
}

#[test]
fn comments_are_at_most_as_wide_as_the_code() {
    let mut wide = Vec::new();
    let kinds = [
        (".rs", "//"),
        (".c", "//"),
        (".h", "//"),
        (".cpp", "//"),
        (".py", "#"),
        (".sh", "#"),
        (".toml", "#"),
    ];
    for (ending, marker) in kinds {
        for path in files(&FOLDERS, ending) {
            let text = std::fs::read_to_string(&path).unwrap();
            let lines = text.lines().enumerate();
            let over = lines.filter(|(_, line)| is_comment(line, marker) && line.chars().count() > WIDTH);
            let file = path.strip_prefix(repository()).unwrap().display().to_string();
            wide.extend(over.map(|(number, _)| format!("{file}:{}", number + 1)));
        }
    }
    assert!(wide.is_empty(), "comments wider than {WIDTH} columns:\n{}", wide.join("\n"));
}

/// `make test` compiles no examples in comments, and what nobody compiles is soon wrong.
#[test]
fn doc_comments_hold_no_code_that_nobody_compiles() {
    let mut open = Vec::new();
    for path in files(&FOLDERS, ".rs") {
        let text = std::fs::read_to_string(&path).unwrap();
        let docs = text.lines().map(str::trim_start).enumerate().filter_map(|(number, line)| {
            let line = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))?;
            Some((number + 1, line.trim_start().strip_prefix("```")?))
        });
        let file = path.strip_prefix(repository()).unwrap().display();
        // Fences come in pairs: the first of each names the language.
        open.extend(
            docs.step_by(2)
                .filter(|(_, language)| *language != "text")
                .map(|(number, language)| format!("{file}:{number} {language:?}")),
        );
    }
    assert!(open.is_empty(), "code in comments; make it a test, or say ```text:\n{}", open.join("\n"));
}
