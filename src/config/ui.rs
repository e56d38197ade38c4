//! `ui.toml`: how the console looks. Nobody needs the file.

use super::check::check;
use super::diagnostic::{Diagnostic, Diagnostics, Place};
use super::document::{self, Node, Value};
use super::mistakes;
use rankdeck_types::ui::Ui;
use std::path::{Path, PathBuf};

/// Where the file is, if anywhere: `$XDG_CONFIG_HOME/rankdeck/ui.toml`, else below `~/.config`.
pub fn path() -> Option<PathBuf> {
    let configured = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = configured.or_else(|| std::env::home_dir().map(|home| home.join(".config")))?;
    Some(folder.join("rankdeck").join("ui.toml"))
}

/// A line of a table of names that cannot be followed: which, what is wrong, what helps.
pub type WrongName = (usize, String, String);

/// Tables whose names and values the screen knows, and not the schema.
const NAMED: [&str; 2] = ["keys", "colors"];

/// What the file says; without it, the defaults. `judge` looks at the lines of `[keys]` and `[colors]`, in
/// their order.
pub fn load(
    path: &Path,
    judge: impl Fn(&str, &[(String, String)]) -> Vec<WrongName>,
) -> Result<Ui, Diagnostics> {
    if !path.try_exists().unwrap_or(true) {
        return Ok(Ui::default());
    }
    let source = document::read(path, "console's settings", "")?;
    let root = mistakes::parse(&source, Ui::KEYS)?;
    let mut found = Diagnostics::new();
    check(&root, Ui::KEYS, &mut found);
    found.or(())?;
    let mut found = Diagnostics::new();
    for table in NAMED {
        let lines = lines_of(&root, table);
        let written: Vec<(String, String)> =
            lines.iter().map(|(name, value, _)| (name.clone(), value.clone())).collect();
        for (line, what, hint) in judge(table, &written) {
            if let Some((_, _, place)) = lines.get(line) {
                found.push(Diagnostic::at(place, what).hint(hint));
            }
        }
    }
    found.or(())?;
    root.read()
}

/// Names, values and places of a table.
fn lines_of(root: &Node, name: &str) -> Vec<(String, String, Place)> {
    let Value::Table(top) = &root.value else { return Vec::new() };
    let Some(Value::Table(table)) = top.get(name).map(|entry| &entry.node.value) else { return Vec::new() };
    let lines = table.iter().filter_map(|(name, entry)| match &entry.node.value {
        Value::String(keys) => Some((name.clone(), keys.clone(), entry.node.place.clone())),
        _ => None,
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::ui::ThemeName;

    #[test]
    fn the_file_is_read_and_its_mistakes_are_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ui.toml");
        assert_eq!(load(&path, |_, _| Vec::new()).unwrap(), Ui::default(), "nobody needs it");
        std::fs::write(&path, "theme = \"light\"\nread_only = true\ncolumns = [\"pid\", \"-power\"]\n")
            .unwrap();
        let ui = load(&path, |_, _| Vec::new()).unwrap();
        assert_eq!((ui.theme, ui.read_only, ui.columns.len()), (ThemeName::Light, true, 2));
        std::fs::write(&path, "theme = \"pink\"\nreadonly = true\n").unwrap();
        let shown = load(&path, |_, _| Vec::new()).unwrap_err().to_string();
        assert!(shown.contains("ui.toml:1:") && shown.contains("\"cvd\""), "{shown}");
        assert!(shown.contains("ui.toml:2:") && shown.contains("read_only"), "{shown}");
    }

    #[test]
    fn keys_that_cannot_be_followed_are_shown_with_their_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ui.toml");
        std::fs::write(&path, "[keys]\nstop = \"ctrl-x\"\nquit = \"ctrl-x\"\n").unwrap();
        let wrong = |table: &str, lines: &[(String, String)]| {
            if table != "keys" {
                return Vec::new();
            }
            assert_eq!(lines[0], ("quit".to_owned(), "ctrl-x".to_owned()));
            vec![(1, "taken".to_owned(), "another".to_owned())]
        };
        let shown = load(&path, wrong).unwrap_err().to_string();
        assert!(
            shown.contains("ui.toml:2:") && shown.contains("taken") && shown.contains("another"),
            "{shown}"
        );
        assert_eq!(load(&path, |_, _| Vec::new()).unwrap().keys["stop"], "ctrl-x");
        std::fs::write(&path, "[keys]\nstop = 1\n").unwrap();
        let shown = load(&path, |_, _| Vec::new()).unwrap_err().to_string();
        assert!(shown.contains("ui.toml:2:") && shown.contains("`keys.stop` is an integer"), "{shown}");
    }
}
