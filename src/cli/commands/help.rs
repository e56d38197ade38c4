//! `rankdeck help`, `man` and `completions`: texts about rankdeck itself.

use crate::cli::args::help;
use crate::cli::support::{Failure, code, print};
use clap_complete::Shell;
use rankdeck_tui::Glyphs;
use rankdeck_tui::keys::{TABLE, name};

/// Runs `rankdeck help`: prints a topic, or the help of a command.
pub(crate) fn help(subject: Option<&str>) -> Result<u8, Failure> {
    let mut root = help::command();
    root.build();
    let text = match subject {
        None => root.render_long_help().to_string(),
        Some("keys") => keys(),
        Some(subject) => match help::topic(subject) {
            Some(text) => text,
            None => root
                .find_subcommand_mut(subject)
                .map(|command| command.render_long_help().to_string())
                .ok_or_else(|| unknown(subject))?,
        },
    };
    print::stdout(text.trim_end());
    Ok(code::SUCCESS)
}

fn unknown(subject: &str) -> Failure {
    Failure::usage(format!("unknown command `{subject}`")).hint("`rankdeck help` lists commands and topics")
}

/// The keys of a run's screen, from the key table.
fn keys() -> String {
    let mut lines = vec!["Keys of a run's screen".to_owned()];
    let mut scope = "";
    for binding in TABLE.iter() {
        if binding.scope_name() != scope {
            scope = binding.scope_name();
            lines.extend([String::new(), scope.to_owned()]);
        }
        let keys: Vec<String> = binding.keys.iter().map(|key| name(*key, Glyphs::Ascii)).collect();
        lines.push(format!("  {:<12} {}", keys.join(" "), binding.long));
    }
    lines.extend([
        String::new(),
        "`?` shows the keys of the current screen, also on the home screen and in `play`.".to_owned(),
        "Change keys with `[keys]` in ~/.config/rankdeck/ui.toml.".to_owned(),
    ]);
    lines.join("\n")
}

/// Runs `rankdeck man`: prints the man page of a command, or of rankdeck itself.
pub(crate) fn man(command: Option<&str>) -> Result<u8, Failure> {
    let page = help::manual(command).ok_or_else(|| unknown(command.unwrap_or_default()))?;
    let text = page.map_err(|error| {
        Failure::failed(format!("cannot write the man page: {error}"))
            .hint("`rankdeck help` prints the same text")
    })?;
    print::stdout_bytes(&text);
    Ok(code::SUCCESS)
}

/// Runs `rankdeck completions`.
pub(crate) fn completions(shell: Shell) -> u8 {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut help::command(), "rankdeck", &mut text);
    print::stdout_bytes(&text);
    code::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_topic_lists_every_binding() {
        let text = keys();
        assert!(TABLE.iter().all(|binding| text.contains(binding.long)));
    }
}
