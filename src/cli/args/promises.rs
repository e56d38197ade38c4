//! Which promises each command and option needs, and what it does without them.
//!
//! One table: launches derive from it what they demand, and `rankdeck help promises` prints it. A test fails if the
//! command line has a command or an option without a row.

use super::{CheckArgs, RunArgs, SbatchArgs};
use rankdeck_types::override_key;
use rankdeck_types::promise::Promise;
use std::collections::BTreeSet;

/// What a command or option does without a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Without {
    /// It is rejected.
    Rejected,
    /// A line reports what happens instead.
    Reported,
    /// It shows less.
    Less,
}

impl Without {
    /// What users read.
    pub(crate) fn shown(self) -> &'static str {
        match self {
            Without::Rejected => "rejected",
            Without::Reported => "a note",
            Without::Less => "shows less",
        }
    }
}

/// A command or option, and the promise that it needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    pub(crate) command: &'static str,
    /// The identifier of the option; empty for the command itself.
    pub(crate) option: &'static str,
    /// The key of its value, for options of several meanings; empty for any.
    pub(crate) key: &'static str,
    pub(crate) promise: Promise,
    pub(crate) without: Without,
}

const fn need(
    command: &'static str,
    option: &'static str,
    key: &'static str,
    promise: Promise,
    without: Without,
) -> Need {
    Need { command, option, key, promise, without }
}

use Without::{Less, Rejected, Reported};

/// The commands and options that need a promise. The built-in trainer keeps all of them.
pub(crate) const NEEDS: &[Need] = &[
    need("run", "from", "", Promise::Resume, Rejected),
    need("run", "carry_on", "", Promise::Resume, Reported),
    need("run", "seeds", "", Promise::Seed, Rejected),
    need("run", "sweep", "run.seed", Promise::Seed, Rejected),
    need("run", "cells", "run.seed", Promise::Seed, Rejected),
    need("run", "set", "run.seed", Promise::Seed, Rejected),
    need("run", "until", "steps", Promise::Steps, Reported),
    need("run", "until", "iters", Promise::Steps, Reported),
    need("run", "until", "evals", Promise::Evaluations, Reported),
    need("check", "set", "run.seed", Promise::Seed, Rejected),
    need("drill", "", "", Promise::Stuck, Less),
    need("drill", "set", "run.seed", Promise::Seed, Rejected),
    need("sbatch", "set", "run.seed", Promise::Seed, Rejected),
    need("sbatch", "requeue", "", Promise::Resume, Reported),
    need("sbatch", "stop_before_s", "", Promise::Stop, Less),
    need("restart", "", "", Promise::Resume, Reported),
    need("restart", "from", "", Promise::Resume, Rejected),
    need("restart", "set", "run.seed", Promise::Seed, Rejected),
    need("queue", "", "", Promise::Evaluations, Less),
    need("queue", "resume", "", Promise::Resume, Reported),
    need("queue", "failed", "", Promise::Resume, Reported),
    need("stop", "", "", Promise::Stop, Less),
    need("wait", "", "", Promise::End, Less),
    need("ps", "", "", Promise::Steps, Less),
    need("status", "", "", Promise::Steps, Less),
    need("attach", "", "", Promise::Stuck, Less),
    need("explain", "", "", Promise::Stuck, Less),
    need("fetch", "", "", Promise::Results, Less),
    need("tensorboard", "", "", Promise::Metrics, Less),
    need("export-metrics", "", "", Promise::Metrics, Less),
    need("report", "", "", Promise::Metrics, Less),
    need("compare", "", "", Promise::Metrics, Less),
    need("diff", "", "", Promise::Playback, Rejected),
    need("mlflow", "", "", Promise::Metrics, Less),
    need("eval", "", "", Promise::Playback, Rejected),
    need("play", "", "", Promise::Playback, Rejected),
    need("export", "", "", Promise::Playback, Rejected),
];

/// What a launch needs of its program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RequiredPromises {
    /// The launch is rejected without these.
    pub(crate) demanded: BTreeSet<Promise>,
    /// A line reports what happens without these.
    pub(crate) wanted: BTreeSet<Promise>,
}

impl RequiredPromises {
    /// Of a command with these options, each with the key of its value.
    fn of<'a>(command: &str, options: impl IntoIterator<Item = (&'static str, &'a str)>) -> RequiredPromises {
        let mut needs = RequiredPromises::default();
        for (option, key) in options {
            let is_this = |need: &&Need| (need.command, need.option) == (command, option);
            for need in NEEDS.iter().filter(is_this).filter(|need| need.key.is_empty() || need.key == key) {
                match need.without {
                    Without::Rejected => needs.demanded.insert(need.promise),
                    Without::Reported => needs.wanted.insert(need.promise),
                    Without::Less => false,
                };
            }
        }
        needs
    }

    /// Of overrides alone, as typed for this command.
    pub(crate) fn of_sets(command: &str, sets: &[String]) -> RequiredPromises {
        RequiredPromises::of(command, keys(sets).iter().map(|key| ("set", key.as_str())))
    }
}

/// The keys that overrides set.
fn keys(sets: &[String]) -> Vec<String> {
    let sets = sets.iter().filter(|set| set.contains('=') && !set.trim().starts_with('~'));
    sets.flat_map(|set| override_key::keys(set)).collect()
}

impl RunArgs {
    /// What the options need of the program.
    pub(crate) fn needs(&self) -> RequiredPromises {
        let goals = self.until.iter().map(|goal| ("until", goal.name()));
        let given = [("from", self.from.is_some()), ("carry_on", self.carry_on)];
        let given = given.into_iter().filter(|(_, is_given)| *is_given).map(|(option, _)| (option, ""));
        let keys = keys(&self.set);
        let set = keys.iter().map(|key| ("set", key.as_str()));
        RequiredPromises::of("run", set.chain(goals).chain(given))
    }
}

impl CheckArgs {
    /// What the options need of the program.
    pub(crate) fn needs(&self) -> RequiredPromises {
        RequiredPromises::of_sets("check", &self.set)
    }
}

impl SbatchArgs {
    /// What the options need of the program.
    pub(crate) fn needs(&self) -> RequiredPromises {
        let requeue = self.requeue.then_some(("requeue", ""));
        let keys = keys(&self.set);
        RequiredPromises::of("sbatch", keys.iter().map(|key| ("set", key.as_str())).chain(requeue))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Cli;
    use clap::{CommandFactory, Parser};

    /// Options that need nothing of a program, in every command.
    const COMMON: &[&str] = &[
        "hosts",
        "slurm",
        "json",
        "quiet",
        "headless",
        "linear",
        "exit",
        "theme",
        "glyphs",
        "read_only",
        "metrics",
        "logs",
        "every",
        "accept_new_host_keys",
        "yes",
        "run",
        "runs",
        "what",
        "policy",
        "output",
        "force",
        "into",
        "experiment",
        "command",
        "nproc",
        "gpus",
        "keep_launcher",
        "venv",
        "env",
        "set_stdin",
    ];

    /// Commands, and their other options that need nothing of a program.
    const FREE: &[(&str, &[&str])] = &[
        ("home", &[]),
        ("demo", &["nnodes", "ranks", "seed"]),
        (
            "run",
            &[
                "trial",
                "drill",
                "max_copy_gb",
                "name",
                "note",
                "detach",
                "exclude",
                "random",
                "hosts_per_run",
                "gpus_per_run",
                "runs_per_host",
            ],
        ),
        ("attach", &[]),
        ("drill", &["only", "train_s", "keep", "exclude"]),
        ("stop", &["kill"]),
        ("restart", &["check_collectives", "exclude", "add", "max_copy_gb", "code"]),
        ("add", &["rank"]),
        ("wait", &["timeout"]),
        ("ps", &["all"]),
        ("gpus", &["free", "pid"]),
        ("status", &["line"]),
        ("export-metrics", &["listen", "textfile"]),
        ("queue", &["sweep"]),
        ("fetch", &["pattern", "max_size_gb"]),
        ("tensorboard", &["more"]),
        ("eval", &["episodes", "greedy", "sample", "python", "env_module"]),
        ("play", &["episodes", "greedy", "sample", "record", "size", "pictures", "python", "env_module"]),
        ("export", &["format", "python"]),
        ("rm", &["dry_run", "with_results"]),
        ("prune", &["dry_run", "older_than", "keep", "with_results"]),
        ("sbatch", &["rest", "nodes", "ntasks_per_node", "gpus_per_node", "time", "option", "dry_run"]),
        ("check", &["all_reduce", "measure", "measure_mb", "save"]),
        ("push", &["set", "libtorch"]),
        ("init", &["given", "script"]),
        ("schema", &[]),
        (
            "logs",
            &["rank", "follow", "tail", "grep", "since", "until", "times", "context", "generation", "limit"],
        ),
        ("replay", &[]),
        ("report", &[]),
        ("compare", &["series", "x", "smooth", "log", "apart", "svg", "png", "csv"]),
        ("diff", &["other", "ranks", "no_replay"]),
        ("mlflow", &[]),
        ("explain", &["reason"]),
        ("client", &[]),
        ("completions", &["shell"]),
        ("man", &[]),
        ("help", &["subject"]),
        ("kill", &["kill"]),
        ("version", &[]),
        (
            "simulate",
            &[
                "nnodes",
                "ranks",
                "seed",
                "steps",
                "iteration_ms",
                "fault",
                "on_stuck",
                "until",
                "detach",
                "record",
            ],
        ),
    ];

    #[test]
    fn every_command_and_option_has_a_row() {
        let cli = Cli::command();
        let mut wrong = Vec::new();
        for command in cli.get_subcommands() {
            let name = command.get_name();
            let needs = |option: &str| NEEDS.iter().any(|need| (need.command, need.option) == (name, option));
            let Some((_, free)) = FREE.iter().find(|(of, _)| *of == name) else {
                wrong.push(format!("{name}: the command has no row"));
                continue;
            };
            let own: Vec<&str> = command.get_arguments().map(|arg| arg.get_id().as_str()).collect();
            let own = own.into_iter().filter(|id| !["help", "version"].contains(id));
            for id in own {
                let rows = [needs(id), free.contains(&id), COMMON.contains(&id) && !needs(id)];
                if rows.iter().filter(|row| **row).count() != 1 {
                    wrong.push(format!("{name} {id}: expected one row"));
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn every_row_is_of_a_command_and_option() {
        let cli = Cli::command();
        for need in NEEDS {
            let command = cli.find_subcommand(need.command).unwrap_or_else(|| panic!("{need:?}"));
            let has = |id: &str| command.get_arguments().any(|arg| arg.get_id() == id);
            assert!(need.option.is_empty() || has(need.option), "{need:?}");
        }
        for (name, options) in FREE {
            let command = cli.find_subcommand(name).unwrap_or_else(|| panic!("{name}"));
            let has = |id: &str| command.get_arguments().any(|arg| arg.get_id() == id);
            assert!(options.iter().all(|option| has(option)), "{name} {options:?}");
        }
    }

    #[test]
    fn needs_follow_options_and_their_values() {
        let run = |words: &str| {
            let cli = Cli::try_parse_from(["rankdeck", "run"].into_iter().chain(words.split(' '))).unwrap();
            let crate::cli::args::CliCommand::Run(args) = cli.command else { panic!("not run") };
            args.needs()
        };
        let demanded = |words: &str| run(words).demanded.into_iter().collect::<Vec<_>>();
        assert!(demanded("e.toml --set run.name=b").is_empty());
        assert!(demanded("e.toml --set run.seeds=2 --set ~run.seed").is_empty());
        assert_eq!(demanded("e.toml --set run.seed=2"), [Promise::Seed]);
        assert_eq!(demanded("e.toml --from ppo"), [Promise::Resume]);
        let until = run("e.toml --until evals=2 --until seconds=3");
        assert!(until.demanded.is_empty() && until.wanted.contains(&Promise::Evaluations));
        let continued = run("e.toml --continue");
        assert!(continued.demanded.is_empty() && continued.wanted.contains(&Promise::Resume));
        let typed = |text: &str| RequiredPromises::of_sets("run", &[text.to_owned()]);
        for set in [" run.seed = 2", "run . seed=2", "run.\"seed\"=2", "'run'.seed=2", "run={seed=2}"] {
            assert!(typed(set).demanded.contains(&Promise::Seed), "{set}");
        }
        assert_eq!(typed("learn.seed=1"), RequiredPromises::default());
    }
}
