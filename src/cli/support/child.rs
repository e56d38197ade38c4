//! Starts rankdeck itself as a child process.
//!
//! Invariants:
//! - ARGV-1: no value of `--set` is in the arguments of a child, which every user of the machine can read. A child
//!   reads them from stdin (`--set-stdin`).

use crate::cli::args::CliCommand;
use crate::cli::support::Failure;
use std::io::{self, Read};
use std::process::Stdio;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

/// Most bytes of the overrides on stdin.
const MOST_BYTES: u64 = 4 << 20;
/// The option that reads overrides from stdin.
pub(crate) const SET_STDIN: &str = "--set-stdin";

/// Splits the words of a rankdeck command into those without values of `--set`, and the overrides as text for
/// stdin, if there are any.
pub(crate) fn split_sets(words: Vec<String>) -> (Vec<String>, Option<String>) {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let (mut kept, mut sets) = (Vec::new(), Vec::new());
    let mut all = words.into_iter();
    let mut options = all.by_ref().take(end);
    while let Some(word) = options.next() {
        match word.strip_prefix("--set=") {
            Some(set) => sets.push(set.to_owned()),
            None if word == "--set" => sets.extend(options.next()),
            None => kept.push(word),
        }
    }
    let input = serde_json::to_string(&sets).ok().filter(|_| !sets.is_empty());
    kept.extend(input.iter().map(|_| SET_STDIN.to_owned()));
    kept.extend(all);
    (kept, input)
}

/// Starts a rankdeck command that reads no terminal. `configure` chooses its streams but stdin.
pub(crate) fn spawn(
    binary: &std::path::Path,
    words: Vec<String>,
    configure: impl FnOnce(&mut Command),
) -> io::Result<Child> {
    let (words, input) = split_sets(words);
    let mut command = Command::new(binary);
    command.args(words).stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    configure(&mut command);
    let mut child = command.spawn()?;
    if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
        // A child that has ended reports why.
        tokio::spawn(async move { stdin.write_all(input.as_bytes()).await });
    }
    Ok(child)
}

/// Adds the overrides of other options (`--env`), and those on stdin, to a command that has them.
pub(crate) fn read_sets(command: &mut CliCommand) -> Result<(), Failure> {
    match command {
        CliCommand::Run(args) => args.set.extend(args.subject.sets()),
        CliCommand::Check(args) => args.set.extend(args.subject.sets()),
        CliCommand::Drill(args) => args.set.extend(args.subject.sets()),
        CliCommand::Sbatch(args) => args.set.append(&mut args.env),
        _ => {}
    }
    let sets = match command {
        CliCommand::Run(args) if args.set_stdin => &mut args.set,
        CliCommand::Check(args) if args.set_stdin => &mut args.set,
        _ => return Ok(()),
    };
    let mut text = String::new();
    let read = io::stdin().lock().take(MOST_BYTES).read_to_string(&mut text);
    let own: Vec<String> = read.ok().and_then(|_| serde_json::from_str(&text).ok()).ok_or_else(|| {
        Failure::usage(format!("{SET_STDIN}: stdin is not a JSON array of strings"))
            .hint("pass overrides with `--set KEY=VALUE`")
    })?;
    sets.extend(own);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argv_1_values_of_set_are_not_in_the_arguments() {
        let split = |line: &str| split_sets(line.split(' ').map(str::to_owned).collect());
        let (words, input) = split("run a.toml --set launch.env.TOKEN=x --json --set=b=2 -- sh --set c=3");
        assert_eq!(words.join(" "), "run a.toml --json --set-stdin -- sh --set c=3");
        assert_eq!(input.as_deref(), Some(r#"["launch.env.TOKEN=x","b=2"]"#));
        assert_eq!(split("rm a --yes"), (vec!["rm".into(), "a".into(), "--yes".into()], None));
    }
}
