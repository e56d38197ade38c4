//! Loads `ui.toml`, the optional settings of the console.

use super::check::{self, check};
use super::diagnostic::{Diagnostic, Diagnostics, SourceSpan};
use super::document::{self, Node, TomlValue};
use rankdeck_types::ui::Ui;
use std::path::{Path, PathBuf};

/// Returns the path of the file: `$XDG_CONFIG_HOME/rankdeck/ui.toml`, else below `~/.config`.
pub fn path() -> Option<PathBuf> {
    let configured = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = configured.or_else(|| std::env::home_dir().map(|home| home.join(".config")))?;
    Some(folder.join("rankdeck").join("ui.toml"))
}

/// An invalid line of a table of names: index, error, hint.
pub type WrongName = (usize, String, String);

/// Tables that the screen validates, not the schema.
const NAMED: [&str; 2] = ["keys", "colors"];

/// Loads the file; returns the defaults if it does not exist. `validate` checks the lines of `[keys]` and
/// `[colors]`, in their order.
pub fn load(
    path: &Path,
    validate: impl Fn(&str, &[(String, String)]) -> Vec<WrongName>,
) -> Result<Ui, Diagnostics> {
    if !path.try_exists().unwrap_or(true) {
        return Ok(Ui::default());
    }
    let source = document::read(path, "console's settings", "")?;
    let root = check::parse(&source, Ui::KEYS)?;
    let mut found = Diagnostics::new();
    check(&root, Ui::KEYS, &mut found);
    found.or(())?;
    let mut found = Diagnostics::new();
    for table in NAMED {
        let lines = lines_of(&root, table);
        let written: Vec<(String, String)> =
            lines.iter().map(|(name, value, _)| (name.clone(), value.clone())).collect();
        for (line, what, hint) in validate(table, &written) {
            if let Some((_, _, place)) = lines.get(line) {
                found.push(Diagnostic::at(place, what).hint(hint));
            }
        }
    }
    found.or(())?;
    root.read()
}

/// Returns names, values and spans of a table.
fn lines_of(root: &Node, name: &str) -> Vec<(String, String, SourceSpan)> {
    let TomlValue::Table(top) = &root.value else { return Vec::new() };
    let Some(TomlValue::Table(table)) = top.get(name).map(|entry| &entry.node.value) else {
        return Vec::new();
    };
    let lines = table.iter().filter_map(|(name, entry)| match &entry.node.value {
        TomlValue::String(keys) => Some((name.clone(), keys.clone(), entry.node.place.clone())),
        _ => None,
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::ui::ThemeName;

    #[test]
    fn file_is_read_and_its_errors_have_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ui.toml");
        assert_eq!(load(&path, |_, _| Vec::new()).unwrap(), Ui::default(), "the file is optional");
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
    fn invalid_key_binding_has_its_line() {
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
        assert!(shown.contains("ui.toml:2:") && shown.contains("keys.stop"), "{shown}");
    }
}
