//! Documents match the program: links lead somewhere, commands parse, generated parts are current.
//!
//! `make docs` writes the generated parts: the text between `<!-- NAME -->` and `<!-- /NAME -->` markers.

mod architecture;
mod generated;
mod json;
mod promises;
mod recipes;
mod references;
mod reporting;

use std::path::PathBuf;

/// The repository.
fn repository() -> PathBuf {
    rankdeck_testkit::repository("")
}

/// The text of a file of the repository.
fn read(path: &str) -> String {
    let path = repository().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Fails when a document differs from what the code generates, or writes it if `UPDATE_EXPECTED` is set.
fn check_current(path: &str, expected: &str) {
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        std::fs::write(repository().join(path), expected).unwrap();
    }
    let text = read(path);
    let differs = text.lines().zip(expected.lines()).find(|(now, new)| now != new);
    assert!(text == expected, "run `make docs`: {path} is not current: {differs:#?}");
}

/// Checks the generated parts of a document: marker name and text.
fn check_parts(path: &str, parts: &[(&str, String)]) {
    let mut text = read(path);
    for (name, part) in parts {
        let (open, close) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
        let start = text.find(&open).unwrap_or_else(|| panic!("{path} has no {open}")) + open.len();
        let end = text.find(&close).unwrap_or_else(|| panic!("{path} has no {close}"));
        text.replace_range(start..end, part);
    }
    check_current(path, &text);
}

/// A Markdown table.
fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let body: String = rows.into_iter().map(|cells| row(&cells)).collect();
    row(&head.map(str::to_owned)) + &"|---".repeat(N) + "|\n" + &body
}

/// All files below the given folders whose name ends so.
fn files(folders: &[&str], ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = folders.iter().map(|folder| repository().join(folder)).collect();
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
