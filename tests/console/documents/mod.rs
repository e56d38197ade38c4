//! The documents say what the program does: the map of the crates, the examples, the lists. Sources keep to
//! the rules of their form.

mod architecture;
mod circles;
mod commands;
mod doc_comments;
mod events;
mod json;
mod licences;
mod links;
mod pretty;
mod type_names;
mod width;

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

/// What stands between two marks.
fn between<'a>(text: &'a str, name: &str) -> &'a str {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let (_, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("no {begin}"));
    rest.split_once(&end).unwrap_or_else(|| panic!("no {end}")).0
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
