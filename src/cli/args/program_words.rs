//! Command lines as Python and torchrun take them: `rankdeck run --nproc 2 train.py --lr 3e-4`.
//!
//! The first word that is neither an option of rankdeck's nor an experiment file is the program. It gets the `--`
//! that separates it from rankdeck's own options: all words behind it are the program's.

use rankdeck_types::command::{LAUNCHERS, file_name, is_python, is_shell_script};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Commands that take a program.
const COMMANDS: [&str; 4] = ["run", "check", "drill", "sbatch"];
/// Programs that are taken for one wherever they are: the hosts have them.
const KNOWN: [&str; 9] = ["bash", "sh", "uv", "conda", "mamba", "micromamba", "poetry", "env", "nohup"];

/// Returns the words with `--` before the program, and its interpreter if it is a script.
pub fn with_separator(argv: Vec<OsString>, cli: &clap::Command) -> Vec<OsString> {
    let Some((at, interpreter)) = place_of(&argv, cli) else { return argv };
    let mut words = argv;
    let program = words.split_off(at);
    words.push("--".into());
    words.extend(interpreter.map(OsString::from));
    words.extend(program);
    words
}

/// Returns where the program begins, and the interpreter to put before it.
fn place_of(argv: &[OsString], cli: &clap::Command) -> Option<(usize, Option<&'static str>)> {
    let at = next_word(argv, 1, &[cli])?;
    let name = argv.get(at)?.to_str()?;
    let command = cli
        .get_subcommands()
        .find(|command| command.get_name() == name || command.get_all_aliases().any(|alias| alias == name))?;
    if !COMMANDS.contains(&command.get_name()) {
        return None;
    }
    let at = next_word(argv, at + 1, &[command, cli])?;
    // Behind `--` are options of sbatch.
    let is_taken = command.get_name() == "sbatch" && argv[at..].iter().any(|word| word == "--");
    (!is_taken).then(|| Some((at, interpreter_of(argv.get(at)?.to_str()?)?))).flatten()
}

/// Returns the index of the first word that is neither an option nor its value; `None` if there is none, or if the
/// user has separated the program.
fn next_word(argv: &[OsString], from: usize, commands: &[&clap::Command]) -> Option<usize> {
    let mut at = from;
    loop {
        let word = argv.get(at)?.to_string_lossy().into_owned();
        if word == "--" {
            return None;
        }
        if word.len() < 2 || !word.starts_with('-') {
            return Some(at);
        }
        let has_value = !word.contains('=')
            && commands.iter().flat_map(|command| command.get_arguments()).any(|arg| takes(arg, &word));
        at += if has_value { 2 } else { 1 };
    }
}

/// Whether this option takes its value from the next word.
fn takes(arg: &clap::Arg, word: &str) -> bool {
    let is_named = match word.strip_prefix("--") {
        Some(name) => {
            arg.get_long() == Some(name)
                || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
        }
        None => word.chars().count() == 2 && arg.get_short() == word.chars().nth(1),
    };
    is_named && arg.get_action().takes_values() && !arg.is_require_equals_set()
}

/// Returns the interpreter of a program, if it needs one; `None` if it is not a program.
fn interpreter_of(word: &str) -> Option<Option<&'static str>> {
    if word.ends_with(".py") {
        return Some(Some("python3"));
    }
    if is_shell_script(word) {
        return Some(Some("bash"));
    }
    let name = file_name(word);
    let is_known = is_python(word) || LAUNCHERS.contains(&name) || KNOWN.contains(&name);
    let is_program = match word.contains('/') {
        true => is_known || is_executable(Path::new(word)),
        false => is_known || !Path::new(word).exists() && is_in_path(name),
    };
    (is_program && !word.ends_with(".toml")).then_some(None)
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn is_in_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| is_executable(&folder.join(OsStr::new(name))))
}

#[cfg(test)]
mod tests {
    use super::super::help::command;
    use super::*;

    fn separated(line: &str) -> String {
        let argv = line.split(' ').map(OsString::from).collect();
        let words = with_separator(argv, &command());
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn program_is_separated_from_options() {
        for (typed, expected) in [
            ("rankdeck run train.py --lr 3e-4", "rankdeck run -- python3 train.py --lr 3e-4"),
            ("rankdeck run python3 train.py --json", "rankdeck run -- python3 train.py --json"),
            (
                "rankdeck run --nproc 2 --json ./dir/train.py --lr 1",
                "rankdeck run --nproc 2 --json -- python3 ./dir/train.py --lr 1",
            ),
            (
                "rankdeck --hosts a,b run --nproc-per-node 2 torchrun --nnodes 2 t.py",
                "rankdeck --hosts a,b run --nproc-per-node 2 -- torchrun --nnodes 2 t.py",
            ),
            ("rankdeck launch run.sh x", "rankdeck launch -- bash run.sh x"),
            ("rankdeck drill --only kill t.py", "rankdeck drill --only kill -- python3 t.py"),
            ("rankdeck check --set a.b=1 sh -c env", "rankdeck check --set a.b=1 -- sh -c env"),
            ("rankdeck sbatch -N 2 --time 1:00 t.py", "rankdeck sbatch -N 2 --time 1:00 -- python3 t.py"),
            ("rankdeck run --slurm t.py", "rankdeck run --slurm -- python3 t.py"),
            ("rankdeck run /bin/sh -c env", "rankdeck run -- /bin/sh -c env"),
        ] {
            assert_eq!(separated(typed), expected);
        }
    }

    #[test]
    fn experiment_and_separated_program_stay() {
        for typed in [
            "rankdeck run ppo.toml --set a.b=1",
            "rankdeck run ppo --detach",
            "rankdeck run --set train.py=1 ppo.toml",
            "rankdeck run --name python3 ppo.toml",
            "rankdeck run -- python3 train.py",
            "rankdeck run configs/x.yaml",
            "rankdeck run a.toml -- python",
            "rankdeck sbatch t.py -- --partition=gpu",
            "rankdeck init a train.py",
            "rankdeck run",
            "rankdeck",
            "rankdeck --version",
        ] {
            assert_eq!(separated(typed), typed);
        }
    }
}
