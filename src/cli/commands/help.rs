//! `rankdeck help`, `man` and `completions`: print texts about rankdeck itself.

use crate::cli::args::help;
use crate::cli::args::promises::{NEEDS, Need};
use crate::cli::args::values::LAST;
use crate::cli::support::{Failure, code, print, run_name};
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};
use rankdeck_config::suggest::closest;
use rankdeck_tui::Glyphs;
use rankdeck_tui::keys::{TABLE, name};
use rankdeck_types::promise::Promise;
use std::ffi::OsString;

/// Runs `rankdeck help`: prints a topic, or the help of a command.
pub(crate) fn help(subject: Option<&str>) -> Result<u8, Failure> {
    let mut root = help::command();
    root.build();
    let text = match subject {
        None => root.render_long_help().to_string(),
        Some("keys") => keys(),
        Some("promises") => promises(),
        Some(subject) => match help::topic(subject) {
            Some(text) => text,
            None => root
                .find_subcommand_mut(subject)
                .map(|command| command.render_long_help().to_string())
                .ok_or_else(|| unknown(subject))?,
        },
    };
    print::text(text.trim_end());
    Ok(code::SUCCESS)
}

fn unknown(subject: &str) -> Failure {
    let failure = Failure::usage(format!("unknown command or topic `{subject}`"));
    let subjects = help::subjects();
    let failure = match closest(subject, subjects.iter().map(String::as_str)) {
        Some(similar) => failure.hint(format!("a similar one exists: `rankdeck help {similar}`")),
        None => failure,
    };
    failure.hint("`rankdeck help` lists commands and topics")
}

/// The key bindings of the run screen, from the key table.
fn keys() -> String {
    let mut lines = vec![
        "Key bindings of the run screen".to_owned(),
        String::new(),
        "The keys of a pane take precedence over those that work everywhere.".to_owned(),
    ];
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
        "Change key bindings with `[keys]` in ~/.config/rankdeck/ui.toml.".to_owned(),
    ]);
    lines.join("\n")
}

/// What a run promises, and the commands and options that need a promise.
fn promises() -> String {
    let mut lines = vec![
        "What a run promises".to_owned(),
        String::new(),
        "A promise is a feature of a run that may need support from your program, such as".to_owned(),
        "seeds or resuming. The built-in trainer keeps all promises. `rankdeck check`".to_owned(),
        "prints which ones your program keeps, and the line to write for the others.".to_owned(),
        String::new(),
    ];
    lines.extend(Promise::ALL.map(|promise| format!("  {:<12} {}", promise.name(), promise.meaning())));
    lines.extend([String::new(), "Commands and options that need a promise".to_owned()]);
    for promise in Promise::ALL {
        let needs = NEEDS.iter().filter(|need| need.promise == promise);
        let rows: Vec<String> = needs.map(need_line).collect();
        if !rows.is_empty() {
            lines.extend([String::new(), promise.name().to_owned()]);
            lines.extend(rows);
        }
    }
    lines.extend([
        String::new(),
        "If your program does not keep the promise, the option is rejected, a note states".to_owned(),
        "the consequence, or the command shows less.".to_owned(),
    ]);
    lines.join("\n")
}

/// `  run --until evals=N        rejected`.
fn need_line(need: &Need) -> String {
    let option = match (need.option, need.key) {
        ("", _) => String::new(),
        // The identifier is not an English word.
        ("carry_on", _) => " --continue".to_owned(),
        ("sweep" | "cells" | "set", key) => format!(" --{} {key}", need.option),
        (option, "") => format!(" --{}", option.replace('_', "-")),
        (option, key) => format!(" --{option} {key}=N"),
    };
    let words = format!("{}{option}", need.command);
    format!("  {words:<28} {}", need.without.shown())
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

/// Set by the completions of a shell when they call rankdeck.
const COMPLETE: &str = "_RANKDECK_COMPLETE";
const BINARY: &str = "rankdeck";

/// Runs `rankdeck completions`: prints a script that calls rankdeck for each completion.
pub(crate) fn completions(shell: Shell) -> u8 {
    let mut text = Vec::new();
    let shells = Shells::builtins();
    let completer = shells.completer(&shell.to_string());
    match completer.map(|shell| shell.write_registration(COMPLETE, BINARY, BINARY, BINARY, &mut text)) {
        Some(Ok(())) => {
            print::stdout_bytes(&text);
            code::SUCCESS
        }
        _ => code::FAILED,
    }
}

/// Prints the completions that a shell asks for. `false` if it asks for none.
pub(crate) fn complete(argv: &[OsString]) -> bool {
    let request = CompleteEnv::with_factory(completed).var(COMPLETE).completer(BINARY);
    // A shell shows no errors of completions.
    request.try_complete(argv, std::env::current_dir().ok().as_deref()).unwrap_or(true)
}

/// The command line with candidates for the arguments that have them.
fn completed() -> clap::Command {
    let mut root = help::command();
    let commands: Vec<String> = root.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    for name in commands {
        root = root.mut_subcommand(&name, |command| {
            command.mut_args(|arg| match candidates(&name, arg.get_id().as_str()) {
                Some(candidates) => arg.add(candidates),
                None => arg,
            })
        });
    }
    root
}

/// The candidates of an argument, if it takes a run, a sweep or a topic.
fn candidates(command: &str, argument: &str) -> Option<ArgValueCandidates> {
    match (command, argument) {
        ("schema", _) => None,
        ("help", "subject") => Some(ArgValueCandidates::new(subjects)),
        ("man", "command") => Some(ArgValueCandidates::new(command_names)),
        ("queue", "sweep") => Some(ArgValueCandidates::new(sweep_names)),
        ("run", "from") | (_, "run" | "runs" | "policy" | "what") => Some(ArgValueCandidates::new(run_names)),
        _ => None,
    }
}

fn subjects() -> Vec<CompletionCandidate> {
    help::subjects().into_iter().map(CompletionCandidate::new).collect()
}

fn command_names() -> Vec<CompletionCandidate> {
    let names = help::subjects().into_iter().filter(|name| help::topic(name).is_none());
    names.map(CompletionCandidate::new).collect()
}

/// The sweeps that this directory has.
fn sweep_names() -> Vec<CompletionCandidate> {
    let names = run_name::local_names().into_iter().filter(|name| name.starts_with("sweep-"));
    names.map(CompletionCandidate::new).collect()
}

/// The runs that this directory has; no host is queried.
fn run_names() -> Vec<CompletionCandidate> {
    let names = run_name::local_names();
    names.iter().map(String::as_str).chain([LAST]).map(CompletionCandidate::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_topic_lists_every_promise_and_need() {
        let text = promises();
        assert!(Promise::ALL.iter().all(|promise| text.contains(promise.meaning())));
        assert!(NEEDS.iter().all(|need| text.contains(&need_line(need))));
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        // What is printed is what is typed.
        let root = help::command();
        for need in NEEDS.iter().filter(|need| !need.option.is_empty()) {
            let command = root.find_subcommand(need.command).unwrap();
            let arg = command.get_arguments().find(|arg| arg.get_id() == need.option).unwrap();
            let long = format!(" --{}", arg.get_long().unwrap());
            assert!(need_line(need).contains(&long), "{need:?}");
        }
    }

    #[test]
    fn keys_topic_lists_every_binding() {
        let text = keys();
        assert!(TABLE.iter().all(|binding| text.contains(binding.long)));
    }
}
