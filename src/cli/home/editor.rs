//! The user's editor on a file.

use crate::cli::Failure;
use tokio::process::Command;

/// Opens a file in the editor that the user's environment names, on the terminal, and waits for its end.
pub async fn edit(path: &str) -> Result<(), Failure> {
    edit_with(&named(&|name| std::env::var(name).ok()), path).await
}

/// What the environment names, as git and crontab understand it.
fn named(value: &dyn Fn(&str) -> Option<String>) -> String {
    let set = |name: &str| value(name).filter(|editor| !editor.trim().is_empty());
    set("VISUAL").or_else(|| set("EDITOR")).unwrap_or_else(|| "vi".into())
}

/// An editor may have arguments of its own: a shell takes them apart.
async fn edit_with(editor: &str, path: &str) -> Result<(), Failure> {
    let script = format!("exec {editor} \"$1\"");
    let status = Command::new("sh").args(["-c", &script, "sh", path]).status().await;
    let why = match status {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    Err(Failure::failed(format!("the editor `{editor}` failed on {path}: {why}"))
        .hint("`export EDITOR=nano` names another one"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_editor_is_the_one_that_the_environment_names_with_its_arguments() {
        let of = |pairs: &[(&str, &str)]| {
            named(&|name| {
                pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(of(&[("EDITOR", "nano"), ("VISUAL", "code -w")]), "code -w");
        assert_eq!(of(&[("EDITOR", "nano"), ("VISUAL", " ")]), "nano");
        assert_eq!(of(&[]), "vi");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("an experiment.toml");
        std::fs::write(&file, "a\n").unwrap();
        edit_with("sed -i s/a/b/", file.to_str().unwrap()).await.unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "b\n");
        let failure = edit_with("false", "x.toml").await.unwrap_err().to_string();
        assert!(failure.contains("`false` failed on x.toml"), "{failure}");
    }
}
