//! Checks whether a user program uses `run.seed`: by the template `{seed}`, or because its source names
//! `RANKDECK_SEED` or calls `rankdeck.seed()`.
//!
//! A seed that is not used makes identical runs and false statistics, so it is rejected before anything
//! starts. The source may not be on this machine, or use the seed in a way that is not found: the template
//! always works, and the error prints it.

use crate::cli::support::Failure;
use rankdeck_config::ExperimentSource;
use rankdeck_proto::regular;
use rankdeck_types::code::Code;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::{Host, Transport};
use rankdeck_types::quote;
use rankdeck_types::template::{SEED, SEED_VARIABLE, names_seed};
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Most files of a program that are read, and most bytes of each.
const FILES: usize = 256;
const BYTES: u64 = 1 << 20;
/// Extensions of files that are followed when a text names them.
const FOLLOWED: [&str; 8] = [".py", ".sh", ".bash", ".yaml", ".yml", ".toml", ".json", ".cfg"];
/// The client module names the variable in every program that it is next to.
const CLIENT: &str = "rankdeck.py";

/// Whether these overrides set the seed.
pub(crate) fn is_set(sets: &[String]) -> bool {
    sets.iter().any(|set| set.split_once('=').is_some_and(|(key, _)| key.trim() == "run.seed"))
}

/// Rejects a seed that the program does not use.
pub(crate) fn demand(
    experiment: &Experiment,
    source: &ExperimentSource,
    hosts: &[Host],
) -> Result<(), Failure> {
    if reaches(experiment, &folders(experiment, source, hosts)) {
        return Ok(());
    }
    let error =
        "the program does not use the seed: `{seed}` and RANKDECK_SEED are not in its command or source";
    Err(Failure::usage(error).hint(hint(experiment, matches!(source, ExperimentSource::Command { .. }))))
}

/// Returns the line to write if the experiment's seed is not used.
pub(crate) fn unused(experiment: &Experiment, source: &ExperimentSource, hosts: &[Host]) -> Option<String> {
    let is_lost = experiment.run.seed != 0 && !reaches(experiment, &folders(experiment, source, hosts));
    is_lost.then(|| hint(experiment, matches!(source, ExperimentSource::Command { .. })))
}

/// Directories that may contain the program on this machine.
fn folders(experiment: &Experiment, source: &ExperimentSource, hosts: &[Host]) -> Vec<PathBuf> {
    let here = |host: &&Host| matches!(host.transport, Transport::Local);
    let code = experiment.launch.code.iter().filter_map(Code::path).map(|path| source.folder().join(path));
    let workdirs = hosts.iter().filter(here).map(|host| {
        let workdir = host.workdir.as_str();
        PathBuf::from(if workdir.is_empty() { "." } else { workdir })
    });
    code.chain([source.folder()]).chain(workdirs).chain([PathBuf::from(".")]).collect()
}

/// Whether the program uses the seed. The built-in trainer always does.
fn reaches(experiment: &Experiment, folders: &[PathBuf]) -> bool {
    let launch = &experiment.launch;
    let filled = launch.command.iter().chain(launch.env.values()).any(|text| names_seed(text));
    launch.command.is_empty() || filled || Program { folders, read: BTreeSet::new() }.asks(&launch.command)
}

/// The files of a program that have been read.
struct Program<'a> {
    folders: &'a [PathBuf],
    read: BTreeSet<PathBuf>,
}

impl Program<'_> {
    /// Whether the command, or a file that it leads to, names the seed.
    fn asks(mut self, command: &[String]) -> bool {
        let mut open: Vec<PathBuf> = Vec::new();
        for (at, word) in command.iter().enumerate() {
            let before = at.checked_sub(1).and_then(|at| command.get(at)).map_or("", String::as_str);
            let is_text = before.starts_with('-') && before.ends_with('c');
            // In other words, no shell expands a variable.
            let is_expanded =
                is_text || !(word.contains("$RANKDECK_SEED") || word.contains("${RANKDECK_SEED"));
            if is_expanded && names_in(word) {
                return true;
            }
            let value = word.split_once('=').map_or(word.as_str(), |(_, value)| value);
            open.extend([word.as_str(), value].iter().filter_map(|name| self.file(name, None)));
            if before == "-m" {
                open.extend(self.module(word, None));
            }
            if is_text {
                open.extend(self.named_in(word, None));
            }
        }
        while let Some(path) = open.pop() {
            let is_client = path.file_name().is_some_and(|name| name == CLIENT);
            if is_client || self.read.len() >= FILES || !self.read.insert(path.clone()) {
                continue;
            }
            let text = text_of(&path);
            if names_in(&text) {
                return true;
            }
            open.extend(self.named_in(&text, path.parent()));
            if path.extension().is_some_and(|ending| ending == "py") {
                open.extend(self.imported_by(&text, path.parent()));
            }
        }
        false
    }

    /// Finds a file with this name, next to another one or in a directory of the program.
    fn file(&self, name: &str, dir: Option<&Path>) -> Option<PathBuf> {
        let places = dir.into_iter().chain(self.folders.iter().map(PathBuf::as_path));
        places.map(|folder| folder.join(name)).find(|path| !name.is_empty() && path.is_file())
    }

    /// The files of a module.
    fn module(&self, name: &str, dir: Option<&Path>) -> Vec<PathBuf> {
        let path = name.trim_start_matches('.').replace('.', "/");
        let files = [format!("{path}.py"), format!("{path}/__init__.py"), format!("{path}/__main__.py")];
        files.iter().filter(|_| !path.is_empty()).filter_map(|file| self.file(file, dir)).collect()
    }

    /// Returns the files that a text names: scripts that a shell starts, and configurations.
    fn named_in(&self, text: &str, dir: Option<&Path>) -> Vec<PathBuf> {
        let is_part = |c: char| c.is_alphanumeric() || "._-/~".contains(c);
        let mut words = text.split(|c| !is_part(c)).filter(|word| !word.is_empty()).peekable();
        let mut found = Vec::new();
        while let Some(word) = words.next() {
            if word == "-m" {
                found.extend(words.peek().into_iter().flat_map(|module| self.module(module, dir)));
            } else if FOLLOWED.iter().any(|ending| word.ends_with(ending)) {
                found.extend(self.file(word, dir));
            }
        }
        found
    }

    /// Modules of the program that a Python source imports.
    fn imported_by(&self, text: &str, dir: Option<&Path>) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for line in text.lines().map(str::trim_start) {
            let line = line.split('#').next().unwrap_or_default();
            if let Some(list) = line.strip_prefix("import ") {
                let names = list.split(',').filter_map(|name| name.split_whitespace().next());
                found.extend(names.flat_map(|name| self.module(name, dir)));
            } else if let Some((from, names)) =
                line.strip_prefix("from ").and_then(|rest| rest.split_once(" import"))
            {
                let from = from.trim();
                found.extend(self.module(from, dir));
                let names = names.split([',', '(', ')']).filter_map(|name| name.split_whitespace().next());
                found.extend(names.flat_map(|name| self.module(&format!("{from}.{name}"), dir)));
            }
        }
        found
    }
}

/// Returns the start of a file; empty if it cannot be read.
fn text_of(path: &Path) -> String {
    let mut bytes = Vec::new();
    let _ = regular::open(path).map(|file| file.take(BYTES).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether the text without comments names the variable or calls the client's function.
fn names_in(text: &str) -> bool {
    let lines = || text.lines().map(str::trim_start).filter(|line| !line.starts_with('#'));
    let alias = lines().find_map(|line| line.strip_prefix("import rankdeck as ")).map(str::trim);
    lines().any(|line| {
        let imports = line.strip_prefix("from rankdeck import").is_some_and(|names| {
            names.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|name| name == "seed")
        });
        let calls = alias.is_some_and(|alias| line.contains(&format!("{alias}.seed(")));
        imports || calls || line.contains(SEED_VARIABLE) || line.contains("rankdeck.seed(")
    })
}

/// Returns what to write so that the program gets the seed.
fn hint(experiment: &Experiment, on_command_line: bool) -> String {
    let command = with_seed(&experiment.launch.command);
    let line = if on_command_line {
        format!("rankdeck run -- {}", quote::words(command.iter().map(String::as_str)))
    } else {
        let words = command.into_iter().map(toml::Value::String).collect();
        format!("command = {}", toml::Value::Array(words))
    };
    format!("write `{line}`, or have the program read `{SEED_VARIABLE}` (in Python: `rankdeck.seed()`)")
}

/// Returns the command with the template: instead of a seed that it names, else as an option at its end.
fn with_seed(command: &[String]) -> Vec<String> {
    let mut words = command.to_vec();
    let option = |word: &str| matches!(word, "--seed" | "-seed" | "--random-seed" | "--random_seed");
    for at in 0..words.len() {
        let next = words.get(at + 1).is_some_and(|value| value.parse::<i64>().is_ok());
        let Some(word) = words.get(at).cloned() else { break };
        let given = word.split_once('=').filter(|(name, _)| option(name) || name.ends_with("seed"));
        if let Some((name, _)) = given.filter(|(name, _)| !name.contains(' ')) {
            words[at] = format!("{name}={SEED}");
            return words;
        }
        if option(&word) && next {
            words[at + 1] = SEED.to_owned();
            return words;
        }
    }
    let text = words.iter().position(|word| word.starts_with('-') && word.ends_with('c'));
    let is_shell = words.first().is_some_and(|program| program.ends_with("sh"));
    match text.filter(|_| is_shell).and_then(|at| words.get_mut(at + 1)) {
        Some(text) => text.push_str(&format!(" --seed {SEED}")),
        None => words.extend(["--seed".to_owned(), SEED.to_owned()]),
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment(command: &[&str], env: &[(&str, &str)]) -> Experiment {
        let mut found: Experiment =
            toml::from_str("[run]\nname = \"a\"\n[launch]\ncommand = [\"true\"]\n").unwrap();
        found.launch.command = command.iter().map(|word| (*word).to_owned()).collect();
        found.launch.env = env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        found
    }

    #[test]
    fn seed_is_accepted_by_template_or_source() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("plain.py", "import random, torch\n# RANKDECK_SEED is not used\nseed = 1\n");
        write("reads.py", "import os\nseed = int(os.environ['RANKDECK_SEED'])\n");
        write("calls.py", "import rankdeck\ntorch.manual_seed(rankdeck.seed())\n");
        write("alias.py", "import rankdeck as rd\nprint(rd.seed())\n");
        write("from.py", "from rankdeck import report, seed\n");
        write("reports.py", "import rankdeck\nrankdeck.report(1)\n");
        write("rankdeck.py", "RANKDECK_SEED\n");
        write("imports.py", "if True:\n    from lib.args import parse\n");
        write("lib/args.py", "from . import deep\n");
        write("lib/deep.py", "SEED = 'RANKDECK_SEED'\n");
        write("pkg/__init__.py", "");
        write("pkg/__main__.py", "import pkg.own\n");
        write("pkg/own.py", "RANKDECK_SEED\n");
        write("run.sh", "#!/bin/bash\nexec python3 reads.py \"$@\"\n");
        write("plain.sh", "python3 plain.py\n");
        write("hydra.yaml", "seed: ${oc.env:RANKDECK_SEED}\n");
        let folders = [folder.path().to_owned()];
        let asks = |command: &[&str], env: &[(&str, &str)]| reaches(&experiment(command, env), &folders);
        for command in [
            &["python3", "plain.py", "--seed", "{seed}"][..],
            &["python3", "plain.py", "seed={seed}"],
            &["python3", "reads.py"],
            &["python3", "-u", "calls.py"],
            &["python3", "alias.py"],
            &["python3", "from.py"],
            &["python3", "imports.py"],
            &["python3", "-m", "pkg"],
            &["bash", "run.sh"],
            &["./run.sh"],
            &["sh", "-c", "exec python3 plain.py --seed $RANKDECK_SEED"],
            &["sh", "-c", "cd . && python3 reads.py"],
            &["python3", "-c", "import os; os.environ['RANKDECK_SEED']"],
            &["python3", "plain.py", "--config=hydra.yaml"],
            &["python3", "plain.py", "seed=${oc.env:RANKDECK_SEED}"],
            &[],
        ] {
            assert!(asks(command, &[]), "{command:?}");
        }
        assert!(asks(&["python3", "plain.py"], &[("SEED", "{seed}")]));
        for command in [
            &["python3", "plain.py"][..],
            &["python3", "reports.py"],
            &["python3", "absent.py"],
            &["bash", "plain.sh"],
            &["./simulate", "--seed", "1"],
            &["python3", "plain.py", "--seed", "$RANKDECK_SEED"],
            &["python3", "plain.py", "${seed}", "{{seed}}"],
        ] {
            assert!(!asks(command, &[("A", "b")]), "{command:?}");
        }
    }

    #[test]
    fn seed_error_prints_the_template() {
        for (command, expected) in [
            (&["python3", "train.py"][..], &["python3", "train.py", "--seed", "{seed}"][..]),
            (&["python3", "t.py", "--seed", "1", "-x"], &["python3", "t.py", "--seed", "{seed}", "-x"]),
            (&["python3", "t.py", "--seed=1"], &["python3", "t.py", "--seed={seed}"]),
            (&["python3", "t.py", "train.seed=1"], &["python3", "t.py", "train.seed={seed}"]),
            (&["sh", "-c", "python3 t.py"], &["sh", "-c", "python3 t.py --seed {seed}"]),
        ] {
            let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(with_seed(&command), expected);
        }
        let of = experiment(&["python3", "train.py"], &[]);
        let line = "command = [\"python3\", \"train.py\", \"--seed\", \"{seed}\"]";
        assert!(hint(&of, false).contains(line), "{}", hint(&of, false));
        assert!(toml::from_str::<toml::Table>(line).is_ok());
        assert!(hint(&of, true).contains("rankdeck run -- python3 train.py --seed"));
    }

    #[test]
    fn seed_is_set_by_its_key_only() {
        let sets = |texts: &[&str]| is_set(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        assert!(sets(&["a=1", "run.seed=2"]) && sets(&[" run.seed = 2"]));
        assert!(!sets(&["run.seeds=2", "learn.seed=1", "~run.seed"]) && !sets(&[]));
    }
}
