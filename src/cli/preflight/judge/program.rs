//! What runs on a host: the program, its environment and the versions of both.

use crate::cli::preflight::{Cell, Subject};
use rankdeck_config::check::in_a_shell;
use rankdeck_proto::examination::Findings;
use rankdeck_proto::libtorch::FITTING;
use rankdeck_types::experiment::{Experiment, Learn};
use rankdeck_types::host::Host;
use rankdeck_types::schema::text_rules::variable_in;

pub(super) fn program(
    subject: &Subject<'_>,
    host: &Host,
    found: &Findings,
    key: &dyn Fn(&str) -> String,
) -> Cell {
    if let Some(error) = &found.setup {
        let which = host.setup.deciding_key();
        return Cell::failed(
            format!("what comes before the ranks fails there: {error}"),
            setup_hint(which),
            key(which),
        );
    }
    let Some(program) = &found.program else {
        return match (&found.probe.trainer, subject.can_upload) {
            (_, true) => Cell::passed("trainer (uploaded)"),
            (Some(_), false) => Cell::passed("trainer"),
            (None, false) => Cell::failed(
                "no rankdeck-trainer there, and none beside rankdeck to upload",
                "build it with `cargo build --release --workspace`, or set `launch.command`",
                "launch.command",
            ),
        };
    };
    if let Some(error) = &program.error {
        return Cell::failed(error.error.clone(), error.hint.clone(), "launch.command");
    }
    match (&program.script, subject.code) {
        (_, Some(code)) if !code.has_script => Cell::failed(
            "the script is not in the code that was pushed",
            "`launch.command` names it relative to `launch.code`",
            "launch.code",
        ),
        (Some(script), None) if !program.script_exists => Cell::failed(
            format!("there is no {script}"),
            "copy it there, change `workdir`, or let rankdeck bring it: `launch.code = \"DIR\"`",
            "launch.command",
        ),
        _ if launcher(&subject.draft.experiment.launch.command).is_some() => {
            let name = launcher(&subject.draft.experiment.launch.command).unwrap_or_default();
            Cell::warning(
                format!(
                    "`{name}` starts ranks of its own, and so does rankdeck: each rank would be a whole group"
                ),
                "write the program itself, such as `[\"python\", \"train.py\"]`; `nproc` says how many ranks",
                "launch.command",
            )
        }
        _ if unexpanded(&subject.draft.experiment.launch.command).is_some() => {
            let command = &subject.draft.experiment.launch.command;
            let word = unexpanded(command).unwrap_or_default();
            let line: Vec<&str> = ["exec"].into_iter().chain(command.iter().map(String::as_str)).collect();
            Cell::warning(
                format!("the program gets `{word}` as it is written: no shell expands it"),
                format!("write the value itself, or have a shell run the line: `{}`", in_a_shell(&line)),
                "launch.command",
            )
        }
        _ if !unused(&subject.draft.experiment).is_empty() => {
            let tables = unused(&subject.draft.experiment);
            Cell::warning(
                format!("`launch.command` runs a program of yours, which does not see {}", tables.join(", ")),
                "remove them; or remove `launch.command`, and the built-in trainer uses them",
                tables.first().map_or("", |name| name.trim_matches(['[', ']'])),
            )
        }
        _ => Cell::passed(match &program.python {
            Some(python) => format!("{} {}", python.version, python.prefix),
            None if program.later.is_some() => program.later.clone().unwrap_or_default(),
            None => program.path.clone().unwrap_or_default(),
        }),
    }
}

/// What helps against a failure of what comes before the ranks, by the key that decides it.
fn setup_hint(key: &str) -> &'static str {
    match key {
        "prelude" => {
            "every command of `prelude` must succeed; `venv`, `conda` and `modules` need no shell line, and \
                     `|| true` lets a command fail"
        }
        "venv" => {
            "make it there by `python3 -m venv FOLDER`, or correct `venv`; relative paths begin at `workdir`"
        }
        "conda" => "`conda env list` there names the environments; `venv` or `prelude` do without conda",
        "uv" => "install uv there (`pip install uv`), or name an environment that is there: `venv`",
        "modules" => {
            "`module avail` in a login shell there lists them; `prelude` brings the command where it is missing"
        }
        "container" => {
            "give the same words to that tool in a shell there: it must be installed, and have the image"
        }
        _ => "try the same in a shell on that host",
    }
}

/// A launcher that starts ranks itself.
fn launcher(command: &[String]) -> Option<&str> {
    let name = |word: &String| word.rsplit('/').next().unwrap_or(word).to_owned();
    let first = command.first()?;
    let known = ["torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "horovodrun"];
    if known.contains(&name(first).as_str()) {
        return Some(first);
    }
    let module = command.iter().position(|word| word == "-m").and_then(|at| command.get(at + 1))?;
    ["torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"]
        .contains(&module.as_str())
        .then_some(module)
}

/// An argument that a shell would change: `~/data`, `$HOME/data`. A program may know both by itself.
fn unexpanded(command: &[String]) -> Option<&str> {
    let is_text = |at: usize| ["-c", "-e", "-lc", "-ic", "-ec"].contains(&command[at - 1].as_str());
    let is_own = |name: &str| name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    let found = (1..command.len()).find(|at| {
        let word = command[*at].as_str();
        let home = word == "~" || word.starts_with("~/") || word.contains("=~/");
        !is_text(*at) && (home || variable_in(word).is_some_and(is_own))
    })?;
    // What follows `sh -c TEXT` are parameters of that text.
    let is_shell = command.first().is_some_and(|first| first.ends_with("sh"));
    (!(is_shell && command.iter().any(|word| word.ends_with('c') && word.starts_with('-'))))
        .then_some(command[found].as_str())
}

/// Tables that a program of the user's never sees.
fn unused(experiment: &Experiment) -> Vec<&'static str> {
    let Experiment { env, policy, collect, learn, eval, .. } = experiment;
    let rows = [
        ("[env]", env.is_some()),
        ("[learn]", learn.is_some()),
        ("[policy]", *policy != Default::default()),
        ("[collect]", *collect != Default::default()),
        ("[eval]", *eval != Default::default()),
    ];
    rows.into_iter().filter(|(_, set)| *set).map(|(name, _)| name).collect()
}

/// Of a Python worker: what is wrong with its environment, if anything is.
pub(super) fn environment(subject: &Subject<'_>, found: &Findings) -> Option<Cell> {
    let (env, learn) = (subject.draft.experiment.env.as_ref()?, subject.draft.experiment.learn.as_ref()?);
    let seen = found.environment.as_ref()?;
    if let Some(error) = &seen.no_python {
        return Some(Cell::failed(
            format!("`env.python`: {error}"),
            "`rankdeck-trainer --setup-env DIR` on that host makes an interpreter with what environments need",
            "env.python",
        ));
    }
    if !seen.missing.is_empty() {
        let pip: Vec<String> = seen.missing.iter().map(|name| name.replace('_', "-")).collect();
        return Some(Cell::failed(
            format!("{} has no {}, which `{}` needs", seen.executable, seen.missing.join(", "), env.id),
            format!(
                "`{} -m pip install {}` there, or `rankdeck-trainer --setup-env DIR` and `env.python`",
                seen.executable,
                pip.join(" ")
            ),
            "env.python",
        ));
    }
    if let Some(error) = &seen.error {
        return Some(Cell::failed(
            format!("`{}` cannot be made there: {error}", env.id),
            "write the id as Gymnasium lists it (`python -c \"import gymnasium; gymnasium.pprint_registry()\"`), and \
             install what it names",
            "env.id",
        ));
    }
    match (learn, seen.discrete?) {
        (Learn::Sac(_), true) => Some(Cell::failed(
            format!("`sac` needs continuous actions, and those of `{}` are discrete", env.id),
            "set `learn.algorithm = \"dqn\"`, or choose another `env.id`",
            "learn.algorithm",
        )),
        (Learn::Dqn(_), false) => Some(Cell::failed(
            format!("`dqn` needs discrete actions, and those of `{}` are continuous", env.id),
            "set `learn.algorithm = \"sac\"`, or choose another `env.id`",
            "learn.algorithm",
        )),
        _ => None,
    }
}

pub(super) fn versions(subject: &Subject<'_>, found: &Findings, key: &dyn Fn(&str) -> String) -> Cell {
    // The hook brings rankdeck.py to every rank.
    let is_brought = |name: &str| name == "rankdeck" && subject.draft.experiment.watch.python_hook;
    let python = found.program.as_ref().and_then(|program| program.python.as_ref());
    let missing: Vec<&str> = python
        .map(|python| python.missing.iter().map(String::as_str).filter(|name| !is_brought(name)).collect())
        .unwrap_or_default();
    match (&found.libtorch, &found.program) {
        (Some(Err(failure)), _) => Cell::failed(failure.error.clone(), failure.hint.clone(), key("libtorch")),
        (Some(Ok(_)), _) => match &found.libtorch_version {
            Some(version) if !version.starts_with(FITTING) => Cell::failed(
                format!("libtorch {version}, and the trainer is built for {FITTING}x"),
                format!("point `libtorch` at {FITTING}x, or bring it with `rankdeck push --libtorch DIR`"),
                key("libtorch"),
            ),
            Some(version) => Cell::passed(format!("libtorch {version}")),
            None => Cell::passed("libtorch"),
        },
        (None, Some(_)) if !missing.is_empty() => Cell::warning(
            format!(
                "{} has no {}, which the script imports",
                python.map_or("python", |python| python.executable.as_str()),
                missing.join(", ")
            ),
            match missing.as_slice() {
                ["rankdeck"] => "`rankdeck client > rankdeck.py` writes it; put it beside the script",
                _ => "install it there, or say where Python comes from: `venv`, `conda` or `uv` of that host",
            },
            key("venv"),
        ),
        (None, Some(program)) => match program.python.as_ref().and_then(|python| python.torch.as_ref()) {
            Some(torch) => Cell::passed(format!("torch {torch}")),
            None => Cell::passed("no torch"),
        },
        (None, None) => Cell::passed("not needed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_a_shell_expands_is_told() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (line, word) in [
            ("python x.py ~/data", "~/data"),
            ("python x.py --data=~/data", "--data=~/data"),
            ("python x.py $HOME/data", "$HOME/data"),
            ("./x --out=${SCRATCH}/a", "--out=${SCRATCH}/a"),
        ] {
            assert_eq!(unexpanded(&words(line)), Some(word), "{line}");
        }
        for line in [
            "python -c $HOME",
            "sh -c x $HOME",
            "bash -lc ~/x",
            "python x.py a~b ^a$ ${now:%Y} ${seed}",
            "$HOME/x",
        ] {
            assert_eq!(unexpanded(&words(line)), None, "{line}");
        }
    }
}
