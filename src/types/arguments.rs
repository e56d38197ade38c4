//! `[args]`: values for the command line of the user's program.
//!
//! Each value has one place: where `{args.KEY}` stands in `launch.command` or `launch.env`; else in place of the
//! value of `--KEY VALUE`, `--KEY=VALUE` or `KEY=VALUE` in the command; else at its end, as `--KEY=VALUE`, or
//! `KEY=VALUE` if the command has words of that form (Hydra). Words after a shell's script may reach no program,
//! so that nothing is appended there.

use crate::command::{CommandParts, CommandTarget, Interpreter};
use crate::experiment::LaunchConfig;
use crate::template;
use std::collections::BTreeMap;

/// Returns the command with a template at the place of each argument, and the arguments without a place.
pub fn placed<'a>(launch: &LaunchConfig, args: &'a BTreeMap<String, String>) -> (Vec<String>, Vec<&'a str>) {
    let (mut words, mut lost) = (launch.command.clone(), Vec::new());
    for (key, value) in args {
        let name = format!("args.{key}");
        if template::names(launch).any(|named| named == name) {
            continue;
        }
        let Some(parts) = CommandParts::of(&words) else {
            lost.push(key.as_str());
            continue;
        };
        let (from, is_shell) = (parts.arguments, parts.is_shell());
        let template = format!("{{{name}}}");
        if replace(&mut words, from, key, value, &template) {
            continue;
        }
        if is_shell {
            lost.push(key.as_str());
            continue;
        }
        let own = || words.iter().skip(from);
        let end = own().position(|word| word == "--").map_or(words.len(), |at| from + at);
        let dashes = if own().any(|word| is_hydra(word)) { "" } else { "--" };
        words.insert(end, format!("{dashes}{key}={template}"));
    }
    (words, lost)
}

/// Puts the template in place of a value that the command has for the key.
fn replace(words: &mut [String], from: usize, key: &str, value: &str, template: &str) -> bool {
    let is_same = |name: &str| is_named(name, key);
    let mut is_found = false;
    for at in from..words.len() {
        let Some(word) = words.get(at).cloned() else { break };
        if word == "--" {
            break;
        }
        if let Some((name, _)) = word.split_once('=') {
            if is_same(name.trim_start_matches(['-', '+'])) {
                words[at] = format!("{name}={template}");
                is_found = true;
            }
        } else if word.starts_with('-') && is_same(word.trim_start_matches('-')) {
            let is_value = words.get(at + 1).is_some_and(|next| {
                let is_option = next.starts_with('-') && next.parse::<f64>().is_err();
                // A flag before a positional argument is not an option with a value.
                let is_number = |text: &str| text.parse::<f64>().is_ok();
                !is_option && (!is_flag(value) || is_flag(next) || is_number(value) && is_number(next))
            });
            match is_value {
                true => words[at + 1] = template.to_owned(),
                false => words[at] = format!("{word}={template}"),
            }
            is_found = true;
        }
    }
    is_found
}

/// Whether both name the same option: `learning-rate` and `learning_rate`.
pub fn is_named(name: &str, key: &str) -> bool {
    let folded = |text: &str| text.replace('-', "_");
    folded(name) == folded(key)
}

fn is_flag(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "true" | "false" | "yes" | "no" | "on" | "off" | "0" | "1")
}

/// Whether a word is an override as Hydra reads it: `model.lr=1`, `+trainer.steps=5`.
fn is_hydra(word: &str) -> bool {
    let Some((key, _)) = word.split_once('=') else { return false };
    let name = key.trim_start_matches('+');
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_./@-".contains(c))
}

/// Returns the command with an option whose value is a template, as a user would write it: in the text of a
/// shell, else at the end.
pub fn with_option(command: &[String], name: &str, template: &str) -> Vec<String> {
    let mut words = command.to_vec();
    let text = CommandParts::of(command).and_then(|parts| match (parts.interpreter, parts.target) {
        (Interpreter::Shell, CommandTarget::Text(_)) => parts.arguments.checked_sub(1),
        _ => None,
    });
    match text.and_then(|at| words.get_mut(at)) {
        Some(text) => text.push_str(&format!(" --{name} {template}")),
        None => words.extend([format!("--{name}"), template.to_owned()]),
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Experiment;

    fn experiment(command: &[&str], args: &[(&str, &str)]) -> Experiment {
        let mut found: Experiment =
            toml::from_str("[run]\nname = \"a\"\n[launch]\ncommand = [\"true\"]\n").unwrap();
        found.launch.command = command.iter().map(|word| (*word).to_owned()).collect();
        found.args = args.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        found
    }

    fn filled(command: &[&str], args: &[(&str, &str)]) -> String {
        experiment(command, args).filled_launch().command.join(" ")
    }

    #[test]
    fn argument_is_filled_replaced_or_appended() {
        let lr = &[("lr", "3e-4")][..];
        for (command, expected) in [
            (&["python3", "t.py", "--rate", "{args.lr}"][..], "python3 t.py --rate 3e-4"),
            (&["python3", "t.py", "--lr", "1", "-x"], "python3 t.py --lr 3e-4 -x"),
            (&["python3", "t.py", "--lr=1", "-x"], "python3 t.py --lr=3e-4 -x"),
            (&["python3", "t.py", "-lr", "-1"], "python3 t.py -lr 3e-4"),
            (&["python3", "t.py", "lr=1", "b=2"], "python3 t.py lr=3e-4 b=2"),
            (&["python3", "t.py", "+lr=1"], "python3 t.py +lr=3e-4"),
            (&["python3", "t.py"], "python3 t.py --lr=3e-4"),
            (&["python3", "t.py", "model.size=2"], "python3 t.py model.size=2 lr=3e-4"),
            (&["./simulate", "--lr", "--fast"], "./simulate --lr=3e-4 --fast"),
            (&["python3", "-m", "pkg", "--", "--lr", "1"], "python3 -m pkg --lr=3e-4 -- --lr 1"),
            (&["bash", "run.sh", "--lr", "1"], "bash run.sh --lr 3e-4"),
        ] {
            assert_eq!(filled(command, lr), expected);
        }
    }

    #[test]
    fn options_of_the_interpreter_are_not_arguments() {
        assert_eq!(filled(&["python3", "-m", "pkg"], &[("m", "1")]), "python3 -m pkg --m=1");
        assert_eq!(filled(&["uv", "run", "-p", "3", "t.py"], &[("p", "1")]), "uv run -p 3 t.py --p=1");
    }

    #[test]
    fn name_of_an_option_ignores_dash_and_underscore() {
        let args = &[("learning_rate", "1"), ("model.size", "2")][..];
        let command = ["python3", "t.py", "--learning-rate", "5", "model.size=9"];
        assert_eq!(filled(&command, args), "python3 t.py --learning-rate 1 model.size=2");
    }

    #[test]
    fn flag_does_not_replace_a_positional_argument() {
        let on = &[("track", "true")][..];
        assert_eq!(filled(&["python3", "t.py", "--track", "out"], on), "python3 t.py --track=true out");
        assert_eq!(filled(&["python3", "t.py", "--track", "False"], on), "python3 t.py --track true");
    }

    #[test]
    fn argument_behind_a_shell_is_lost() {
        for command in [&["bash", "run.sh"][..], &["sh", "-c", "python3 t.py"], &["./run.sh"]] {
            let experiment = experiment(command, &[("lr", "1")]);
            let (words, lost) = placed(&experiment.launch, &experiment.args);
            assert_eq!((words, lost), (experiment.launch.command.clone(), vec!["lr"]), "{command:?}");
        }
        let in_env = |value: &str| {
            let mut own = experiment(&["bash", "run.sh"], &[("lr", "1")]);
            own.launch.env.insert("LR".into(), value.into());
            (placed(&own.launch, &own.args).1.len(), own.filled_launch().env["LR"].clone())
        };
        assert_eq!(in_env("{args.lr}"), (0, "1".into()));
        assert_eq!(in_env("2"), (1, "2".into()));
    }

    #[test]
    fn option_to_write_is_in_the_text_of_a_shell() {
        let with = |command: &[&str]| {
            let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
            with_option(&command, "lr", "{args.lr}").join("|")
        };
        assert_eq!(with(&["sh", "-c", "python3 t.py"]), "sh|-c|python3 t.py --lr {args.lr}");
        assert_eq!(with(&["bash", "run.sh"]), "bash|run.sh|--lr|{args.lr}");
        assert_eq!(with(&["python3", "-c", "1"]), "python3|-c|1|--lr|{args.lr}");
    }
}
