//! The template `{seed}` in `launch.command` and in values of `launch.env`.
//!
//! Only this exact name is replaced. `${seed}` is a shell's or a console's variable and `{{seed}}` another
//! template's escape: both stay, as all other braces do.

use crate::experiment::{Experiment, LaunchConfig};

/// Template for `run.seed`.
pub const SEED: &str = "{seed}";

/// Environment variable with `run.seed`.
pub const SEED_VARIABLE: &str = "RANKDECK_SEED";

/// Returns the positions of the template in a text.
fn places(text: &str) -> impl Iterator<Item = usize> {
    text.match_indices(SEED).map(|(at, _)| at).filter(|at| {
        let before = text.get(..*at).unwrap_or_default();
        let after = text.get(at + SEED.len()..).unwrap_or_default();
        !(before.ends_with('$') || before.ends_with('{') && after.starts_with('}'))
    })
}

/// Returns whether the text contains the template.
pub fn names_seed(text: &str) -> bool {
    places(text).next().is_some()
}

/// Replaces the template with the seed.
pub fn filled(text: &str, seed: u64) -> String {
    let mut whole = String::with_capacity(text.len());
    let mut from = 0;
    for at in places(text) {
        whole.push_str(text.get(from..at).unwrap_or_default());
        whole.push_str(&seed.to_string());
        from = at + SEED.len();
    }
    whole + text.get(from..).unwrap_or_default()
}

impl Experiment {
    /// Returns `[launch]` with all templates replaced.
    pub fn filled_launch(&self) -> LaunchConfig {
        let mut launch = self.launch.clone();
        for text in launch.command.iter_mut().chain(launch.env.values_mut()) {
            *text = filled(text, self.run.seed);
        }
        launch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_template_is_replaced() {
        for (text, expected) in [
            ("{seed}", "7"),
            ("--seed={seed}", "--seed=7"),
            ("out/{seed}/{seed}.pt", "out/7/7.pt"),
            ("{\"seed\":{seed}}", "{\"seed\":7}"),
            ("größe{seed}é", "größe7é"),
            ("${seed}", "${seed}"),
            ("{{seed}}", "{{seed}}"),
            (
                "{Seed} {seed } { seed} {run.seed} {1:2} {} {seed",
                "{Seed} {seed } { seed} {run.seed} {1:2} {} {seed",
            ),
            ("", ""),
        ] {
            assert_eq!(filled(text, 7), expected);
            assert_eq!(names_seed(text), text != expected, "{text}");
        }
    }

    #[test]
    fn only_command_and_env_are_filled() {
        let text = "[run]\nname = \"a\"\nseed = 3\nnote = \"{seed}\"\n[launch]\n\
                    command = [\"train\", \"--seed\", \"{seed}\"]\nenv = { OUT = \"${HOME}/{seed}\" }\n";
        let experiment: Experiment = toml::from_str(text).unwrap();
        let launch = experiment.filled_launch();
        assert_eq!(launch.command, ["train", "--seed", "3"]);
        assert_eq!(launch.env["OUT"], "${HOME}/3");
        assert_eq!(experiment.run.note.as_deref(), Some("{seed}"));
    }
}
