//! Comments are at most as wide as the code.

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
