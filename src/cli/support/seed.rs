//! Checks whether a user program uses `run.seed`: by the template `{run.seed}`, or because its source names
//! `RANKDECK_SEED` or calls `rankdeck.seed()`.
//!
//! A seed that is not used makes identical runs and false statistics, so it is rejected before anything
//! starts. The template always works, and the error prints it.

use crate::cli::support::Failure;
use crate::cli::support::program_source::{ProgramSource, code_lines};
use rankdeck_config::ExperimentSource;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::Host;
use rankdeck_types::template::{RANK_SEED_VARIABLE, SEED, SEED_VARIABLE, names_seed};
use rankdeck_types::{arguments, quote};

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
    if reaches(experiment, &ProgramSource::of(experiment, source, hosts)) {
        return Ok(());
    }
    let error =
        "the program does not use the seed: `{run.seed}` and RANKDECK_SEED are not in its command or source";
    Err(Failure::usage(error).hint(hint(experiment, matches!(source, ExperimentSource::Command { .. }))))
}

/// Returns the line to write if the experiment's seed is not used.
pub(crate) fn unused(experiment: &Experiment, source: &ExperimentSource, hosts: &[Host]) -> Option<String> {
    let is_lost =
        experiment.run.seed != 0 && !reaches(experiment, &ProgramSource::of(experiment, source, hosts));
    is_lost.then(|| hint(experiment, matches!(source, ExperimentSource::Command { .. })))
}

/// Whether the program uses the seed. The built-in trainer always does.
pub(crate) fn reaches(experiment: &Experiment, source: &ProgramSource) -> bool {
    let launch = &experiment.launch;
    let in_args =
        || experiment.args.values().any(|value| value.contains(SEED) || value.contains("{run.seed}"));
    launch.command.is_empty() || names_seed(launch) || in_args() || source.names(&launch.command, &names_in)
}

/// Whether the text without comments names the variable or calls the client's function.
fn names_in(text: &str) -> bool {
    let alias = code_lines(text).find_map(|line| line.strip_prefix("import rankdeck as ")).map(str::trim);
    code_lines(text).any(|line| {
        let imports = line.strip_prefix("from rankdeck import").is_some_and(|names| {
            names.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|name| name == "seed")
        });
        let calls = alias.is_some_and(|alias| line.contains(&format!("{alias}.seed(")));
        let reads = line.contains(SEED_VARIABLE) || line.contains(RANK_SEED_VARIABLE);
        imports || calls || reads || line.contains("rankdeck.seed(")
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
    arguments::with_option(command, "seed", SEED)
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
        write("ranks.py", "import os\nseed = os.environ['RANKDECK_RANK_SEED']\n");
        write("run.sh", "#!/bin/bash\nexec python3 reads.py \"$@\"\n");
        write("plain.sh", "python3 plain.py\n");
        write("hydra.yaml", "seed: ${oc.env:RANKDECK_SEED}\n");
        let folders = [folder.path().to_owned()];
        let asks = |command: &[&str], env: &[(&str, &str)]| {
            reaches(&experiment(command, env), &ProgramSource { folders: folders.to_vec() })
        };
        for command in [
            &["python3", "plain.py", "--seed", "{seed}"][..],
            &["python3", "plain.py", "seed={seed}"],
            &["python3", "reads.py"],
            &["python3", "-u", "calls.py"],
            &["python3", "ranks.py"],
            &["python3", "plain.py", "--seed={run.seed}"],
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
        let mut own = experiment(&["python3", "plain.py"], &[]);
        own.args.insert("seed".into(), "{seed}".into());
        assert!(reaches(&own, &ProgramSource { folders: Vec::new() }));
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
