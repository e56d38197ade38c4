//! `ui.toml`: how the console looks. Nobody needs the file.

use super::check::check;
use super::diagnostic::Diagnostics;
use super::document;
use rankdeck_types::ui::Ui;
use std::path::{Path, PathBuf};

/// Where the file is, if anywhere: `$XDG_CONFIG_HOME/rankdeck/ui.toml`, else below `~/.config`.
pub fn path() -> Option<PathBuf> {
    let configured = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = configured.or_else(|| std::env::home_dir().map(|home| home.join(".config")))?;
    Some(folder.join("rankdeck").join("ui.toml"))
}

/// What the file says; without it, the defaults.
pub fn load(path: &Path) -> Result<Ui, Diagnostics> {
    if !path.try_exists().unwrap_or(true) {
        return Ok(Ui::default());
    }
    let source = document::read(path, "console's settings", "")?;
    let root = document::parse(&source)?;
    let mut found = Diagnostics::new();
    check(&root, Ui::KEYS, &mut found);
    found.or(())?;
    root.read()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::ui::ThemeName;

    #[test]
    fn the_file_is_read_and_its_mistakes_are_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ui.toml");
        assert_eq!(load(&path).unwrap(), Ui::default(), "nobody needs it");
        std::fs::write(&path, "theme = \"light\"\nread_only = true\ncolumns = [\"pid\", \"-power\"]\n")
            .unwrap();
        let ui = load(&path).unwrap();
        assert_eq!((ui.theme, ui.read_only, ui.columns.len()), (ThemeName::Light, true, 2));
        std::fs::write(&path, "theme = \"pink\"\nreadonly = true\n").unwrap();
        let shown = load(&path).unwrap_err().to_string();
        assert!(shown.contains("ui.toml:1:") && shown.contains("\"cvd\""), "{shown}");
        assert!(shown.contains("ui.toml:2:") && shown.contains("read_only"), "{shown}");
    }
}
