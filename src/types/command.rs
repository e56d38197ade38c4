//! The parts of a command line: programs that run another one, the interpreter or tool, what it runs, and the
//! arguments of that. Pure: nothing is looked up.

use std::path::Path;

/// What a command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandTarget<'a> {
    /// A script, by its path.
    Script(&'a str),
    /// A Python module.
    Module(&'a str),
    /// The text after `-c`.
    Text(&'a str),
    /// A program without an interpreter.
    Program(&'a str),
}

/// Who reads the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interpreter {
    /// Python.
    Python,
    /// A POSIX shell.
    Shell,
    /// The target is started by itself or by a launcher.
    None,
}

/// The parts of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandParts<'a> {
    /// Index of the interpreter, launcher or tool, after programs such as `env` and `uv run`.
    pub program: usize,
    pub interpreter: Interpreter,
    pub target: CommandTarget<'a>,
    /// Index of the first argument of the target; the number of words if it has none.
    pub arguments: usize,
}

/// A program that runs another one.
struct Wrapper {
    name: &'static str,
    /// The subcommand that does so; empty: the program itself.
    subcommand: &'static str,
    /// Options with a value in the next word.
    valued: &'static [&'static str],
    /// Words before the command that are not options.
    words: usize,
}

const fn wrapper(
    name: &'static str,
    subcommand: &'static str,
    valued: &'static [&'static str],
    words: usize,
) -> Wrapper {
    Wrapper { name, subcommand, valued, words }
}

const CONDA: &[&str] = &["-n", "--name", "-p", "--prefix", "--cwd"];
const UV: &[&str] = &[
    "-p",
    "--python",
    "--with",
    "--with-editable",
    "--with-requirements",
    "--extra",
    "--group",
    "--only-group",
    "--package",
    "--project",
    "--directory",
    "--env-file",
    "--index",
    "--default-index",
    "--index-url",
    "--extra-index-url",
];
static WRAPPERS: [Wrapper; 19] = [
    wrapper("env", "", &["-u", "--unset", "-C", "--chdir"], 0),
    wrapper("uv", "run", UV, 0),
    wrapper("conda", "run", CONDA, 0),
    wrapper("mamba", "run", CONDA, 0),
    wrapper("micromamba", "run", CONDA, 0),
    wrapper("poetry", "run", &["-C", "--directory", "-P", "--project"], 0),
    wrapper("pipenv", "run", &[], 0),
    wrapper("pdm", "run", &["-p", "--project"], 0),
    wrapper("pixi", "run", &["-e", "--environment", "--manifest-path"], 0),
    wrapper("nohup", "", &[], 0),
    wrapper("setsid", "", &[], 0),
    wrapper("time", "", &["-o", "--output", "-f", "--format"], 0),
    wrapper("nice", "", &["-n", "--adjustment"], 0),
    wrapper("ionice", "", &["-c", "--class", "-n", "--classdata"], 0),
    wrapper("stdbuf", "", &["-i", "-o", "-e"], 0),
    wrapper("numactl", "", &["-m", "-N", "-C", "-i", "-p"], 0),
    wrapper("taskset", "", &[], 1),
    wrapper("timeout", "", &["-k", "--kill-after", "-s", "--signal"], 1),
    wrapper("xvfb-run", "", &["-n", "--server-num", "-s", "--server-args", "-e", "--error-file"], 0),
];

/// Programs that start a script as several processes.
pub const LAUNCHERS: [&str; 13] = [
    "torchrun",
    "accelerate",
    "accelerate-launch",
    "fabric",
    "lightning",
    "deepspeed",
    "mpirun",
    "mpiexec",
    "srun",
    "horovodrun",
    "composer",
    "colossalai",
    "trl",
];
/// Modules of Python that do so.
pub const LAUNCHER_MODULES: [&str; 11] = [
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "lightning.fabric.cli",
    "deepspeed.launcher.runner",
    "trl.cli",
    "lightning",
    "composer.cli",
    "composer.cli.launcher",
    "colossalai.cli",
    "horovod.runner.launch",
];

const SHELLS: [&str; 6] = ["sh", "bash", "dash", "zsh", "ksh", "ash"];
const SHELL_SCRIPTS: [&str; 4] = [".sh", ".bash", ".zsh", ".ksh"];
/// Names of modules that name no program.
const GENERIC: [&str; 7] = ["__main__", "main", "run", "cli", "launch", "app", "entry"];

/// Returns the file name of a program.
pub fn file_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// Returns whether a program is a Python interpreter, by its name.
pub fn is_python(word: &str) -> bool {
    let name = file_name(word);
    let version = name.strip_prefix("python").or_else(|| name.strip_prefix("pypy"));
    version.is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.' || c == 't'))
}

fn is_shell(word: &str) -> bool {
    SHELLS.contains(&file_name(word))
}

/// Returns whether a file is a shell script, by its name.
pub fn is_shell_script(path: &str) -> bool {
    SHELL_SCRIPTS.iter().any(|ending| path.ends_with(ending))
}

/// Returns whether a word sets a variable: `NAME=VALUE`.
fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| crate::variables::is_name(name))
}

/// Returns where the command begins that the program at `at` runs.
fn after_wrapper(words: &[String], at: usize) -> Option<usize> {
    let name = file_name(words.get(at)?);
    let own = WRAPPERS.iter().find(|own| own.name == name)?;
    let mut at = at + 1;
    if !own.subcommand.is_empty() {
        words.get(at).filter(|word| **word == own.subcommand)?;
        at += 1;
    }
    let mut others = own.words;
    while let Some(word) = words.get(at) {
        if word == "--" {
            return Some(at + 1);
        } else if own.valued.contains(&word.as_str()) {
            at += 2;
        } else if word.len() > 1 && word.starts_with('-') || name == "env" && is_assignment(word) {
            at += 1;
        } else if others > 0 {
            others -= 1;
            at += 1;
        } else {
            break;
        }
    }
    Some(at)
}

/// Returns the target after the options of an interpreter, and where its arguments begin.
fn interpreted(words: &[String], from: usize, is_python: bool) -> Option<(CommandTarget<'_>, usize)> {
    let valued: &[&str] = if is_python { &["-W", "-X"] } else { &["-O", "+O", "--rcfile", "--init-file"] };
    let mut at = from;
    loop {
        let word = words.get(at)?;
        let letters = word.strip_prefix('-').unwrap_or_default();
        let is_cluster = (1..=6).contains(&letters.len())
            && letters.chars().all(|c| c.is_ascii_alphabetic())
            && !letters.starts_with(['W', 'X']);
        match letters.chars().last().filter(|_| is_cluster) {
            Some('c') => return Some((CommandTarget::Text(words.get(at + 1)?), at + 2)),
            Some('m') if is_python => return Some((CommandTarget::Module(words.get(at + 1)?), at + 2)),
            // `bash -euo pipefail`.
            Some('o') if !is_python => at += 2,
            _ if valued.contains(&word.as_str()) => at += 2,
            _ if word.len() > 1 && word.starts_with(['-', '+']) => at += 1,
            _ => return Some((CommandTarget::Script(word), at + 1)),
        }
    }
}

/// Returns the script or module that a launcher starts.
fn launched(words: &[String], from: usize) -> Option<(CommandTarget<'_>, usize)> {
    let rest = words.get(from..)?;
    let script = rest.iter().position(|word| word.ends_with(".py"));
    let module = rest.iter().position(|word| word == "-m" || word == "--module");
    match (script, module) {
        (Some(at), _) => Some((CommandTarget::Script(&rest[at]), from + at + 1)),
        (None, Some(at)) => Some((CommandTarget::Module(rest.get(at + 1)?), from + at + 2)),
        (None, None) => None,
    }
}

impl<'a> CommandParts<'a> {
    /// Returns the parts of a command; `None` if it has no word.
    pub fn of(words: &'a [String]) -> Option<CommandParts<'a>> {
        let mut program = 0;
        while let Some(next) = after_wrapper(words, program).filter(|next| *next < words.len()) {
            program = next;
        }
        let first = words.get(program)?;
        let itself = (CommandTarget::Program(first), program + 1);
        // `uv run -m MODULE`.
        let is_module = program > 0 && words.get(program - 1).is_some_and(|word| word == "-m");
        let (interpreter, (target, arguments)) = if is_module || is_python(first) {
            let (target, arguments) = match is_module {
                true => (CommandTarget::Module(first), program + 1),
                false => interpreted(words, program + 1, true).unwrap_or(itself),
            };
            let is_launcher =
                matches!(target, CommandTarget::Module(name) if LAUNCHER_MODULES.contains(&name));
            let inner = launched(words, arguments).filter(|_| is_launcher);
            (Interpreter::Python, inner.unwrap_or((target, arguments)))
        } else if is_shell(first) {
            (Interpreter::Shell, interpreted(words, program + 1, false).unwrap_or(itself))
        } else if is_shell_script(first) {
            (Interpreter::Shell, (CommandTarget::Script(first), program + 1))
        } else if first.ends_with(".py") {
            (Interpreter::Python, (CommandTarget::Script(first), program + 1))
        } else if LAUNCHERS.contains(&file_name(first)) {
            (Interpreter::None, launched(words, program + 1).unwrap_or(itself))
        } else {
            (Interpreter::None, itself)
        };
        Some(CommandParts { program, interpreter, target, arguments: arguments.min(words.len()) })
    }

    /// Returns whether a shell reads the target: words after it may reach no program.
    pub fn is_shell(&self) -> bool {
        let is_script = matches!(self.target, CommandTarget::Script(path) if is_shell_script(path));
        self.interpreter == Interpreter::Shell || is_script
    }
}

fn last_part(module: &str) -> &str {
    module.rsplit('.').next().unwrap_or(module)
}

/// Returns the name of what a command runs: its module, else its last Python script, else its script or tool.
pub fn title(words: &[String]) -> String {
    let parts = CommandParts::of(words);
    let text = match parts.map(|parts| parts.target) {
        Some(CommandTarget::Text(text)) => text,
        _ => "",
    };
    let is_part = |c: char| c.is_alphanumeric() || "._-/~".contains(c);
    let is_script = |word: &&str| word.ends_with(".py") && word.len() > ".py".len();
    let in_words = words.iter().map(String::as_str).filter(|word| *word != text).rfind(is_script);
    let script = in_words.or_else(|| text.split(|c: char| !is_part(c)).rfind(is_script));
    let what = match (script, parts.map(|parts| parts.target)) {
        (_, Some(CommandTarget::Module(module))) if !GENERIC.contains(&last_part(module)) => {
            return last_part(module).to_owned();
        }
        (Some(script), _) => script,
        (None, Some(CommandTarget::Module(module))) => {
            return module.split('.').next().unwrap_or(module).to_owned();
        }
        (None, Some(CommandTarget::Script(path) | CommandTarget::Program(path))) => path,
        (None, Some(CommandTarget::Text(_))) => {
            parts.and_then(|parts| words.get(parts.program)).map_or("", String::as_str)
        }
        (None, None) => "",
    };
    let stem = Path::new(what).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    stem.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::CommandTarget::{Module, Program, Script, Text};
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split('|').map(str::to_owned).collect()
    }

    fn spaced(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn target_and_its_arguments_are_found() {
        for (line, program, target, arguments) in [
            ("python3 -u train.py --lr 1", 0, Script("train.py"), 3),
            ("python train.py", 0, Script("train.py"), 2),
            ("/v/bin/python3.11 -X dev -W error a.py b.py", 0, Script("a.py"), 6),
            ("python -m pkg.train --lr 1", 0, Module("pkg.train"), 3),
            ("python -um pkg.train", 0, Module("pkg.train"), 3),
            ("python /v/bin/ray start --head", 0, Script("/v/bin/ray"), 2),
            ("uv run --with torch python train.py x", 4, Script("train.py"), 6),
            ("uv run train.py --lr 1", 2, Script("train.py"), 3),
            ("uv run -m pkg.train --lr 1", 3, Module("pkg.train"), 4),
            ("uv run -m torch.distributed.run t.py -x", 3, Script("t.py"), 5),
            ("env A=1 -u B python train.py x", 4, Script("train.py"), 6),
            ("conda run -n rl --no-capture-output python train.py", 5, Script("train.py"), 7),
            ("nohup nice -n 5 taskset -c 0-3 python train.py", 7, Script("train.py"), 9),
            ("timeout 60 ./simulate --seed 1", 2, Program("./simulate"), 3),
            ("bash -euo pipefail run.sh x", 0, Script("run.sh"), 4),
            ("./run.sh --lr 1", 0, Script("./run.sh"), 1),
            ("torchrun --nproc-per-node 2 train.py --lr 1", 0, Script("train.py"), 4),
            ("torchrun --nproc-per-node 2 -m pkg.train", 0, Module("pkg.train"), 5),
            ("python -m torch.distributed.run --nproc-per-node 2 t.py -x", 0, Script("t.py"), 6),
            ("puffer train", 0, Program("puffer"), 1),
            ("python", 0, Program("python"), 1),
            ("uv run", 0, Program("uv"), 1),
        ] {
            let words = spaced(line);
            let parts = CommandParts::of(&words).unwrap_or_else(|| panic!("{line}"));
            assert_eq!(
                (parts.program, parts.target, parts.arguments),
                (program, target, arguments),
                "{line}"
            );
        }
        assert_eq!(CommandParts::of(&[]), None);
    }

    #[test]
    fn shell_is_told_from_python_text() {
        for (line, is_shell) in [
            ("sh|-c|python t.py", true),
            ("bash|-lc|python t.py", true),
            ("bash|run.sh", true),
            ("./run.sh", true),
            ("nohup|./run.sh", true),
            ("python|-c|print(1)", false),
            ("python|t.py", false),
            ("./simulate", false),
        ] {
            assert_eq!(CommandParts::of(&words(line)).unwrap().is_shell(), is_shell, "{line}");
        }
        let text = words("python|-c|print(1)|a");
        let parts = CommandParts::of(&text).unwrap();
        assert_eq!((parts.target, parts.arguments), (Text("print(1)"), 3));
    }

    #[test]
    fn title_is_the_last_script_or_the_tool() {
        for (line, name) in [
            ("python3|-u|dir/train.py|--lr|1", "train"),
            ("python|-m|torch.distributed.run|--nproc-per-node|2|dist.py", "dist"),
            ("accelerate|launch|--num_processes|2|sft.py", "sft"),
            ("python|-m|pkg.train|--config|a.py", "train"),
            ("python|-m|ding.entry.cli|-c|configs/dqn.py", "dqn"),
            ("python|-m|ding.entry.cli", "ding"),
            ("python|/v/bin/ray|start|--head", "ray"),
            ("ray|start|--head", "ray"),
            ("uv|run|puffer|train", "puffer"),
            ("bash|run.sh", "run"),
            ("sh|-c|exec python3 plain.py --seed 1", "plain"),
            ("sh|-c|env", "sh"),
            ("./bin/simulate", "simulate"),
        ] {
            assert_eq!(title(&words(line)), name, "{line}");
        }
        assert_eq!(title(&[]), "");
    }
}
