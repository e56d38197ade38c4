//! What the command line takes, and what it refuses.

use super::*;
use clap::CommandFactory;
use rankdeck_types::plan::Until;

fn parse(words: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(std::iter::once("rankdeck").chain(words.split_whitespace()))
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn run_takes_everything_that_the_design_lists() {
    let cli = parse(
        "run configs/a.toml --hosts lab.toml --headless --json --set a.b=1 --set c=x=y --until steps=1e6 \
         --until evals=3 --detach --name n1",
    )
    .unwrap();
    assert_eq!(cli.hosts.as_deref(), Some("lab.toml"));
    let Command::Run(args) = cli.command else { panic!("not run") };
    assert!(args.output.headless && args.output.json && args.detach);
    assert_eq!(args.set, ["a.b=1", "c=x=y"]);
    assert_eq!(args.until, [Until::Steps(1_000_000), Until::Evals(3)]);
    assert_eq!(args.name.as_deref(), Some("n1"));
}

#[test]
fn hosts_defaults_and_may_stand_anywhere() {
    assert_eq!(parse("ps").unwrap().hosts, None);
    assert_eq!(parse("--hosts a.toml ps").unwrap().hosts.as_deref(), Some("a.toml"));
    assert_eq!(parse("ps --hosts a,b").unwrap().hosts.as_deref(), Some("a,b"));
}

#[test]
fn a_program_needs_no_experiment_file() {
    let cli = parse("run --hosts a,b --nproc 2 -- python train.py --json --lr 1").unwrap();
    let Command::Run(args) = cli.command else { panic!("not run") };
    assert_eq!(args.subject.command.join(" "), "python train.py --json --lr 1");
    assert!(args.subject.experiment.is_none() && args.subject.nproc == Some(2) && !args.output.json);
    for words in ["run e.toml -- python", "run --", "check", "run --nproc 0 e.toml", "sbatch"] {
        assert!(parse(words).is_err(), "{words}");
    }
    let cli = parse("sbatch e.toml -- --partition=gpu --account lab").unwrap();
    let Command::Sbatch(args) = cli.command else { panic!("not sbatch") };
    assert_eq!(args.rest.len(), 3);
}

#[test]
fn nonsense_is_refused() {
    for words in [
        "",
        "run",
        "run a.toml --until steps",
        "run a.toml --until steps=x",
        "run a.toml --until steps=1.5",
        "run a.toml --until laps=3",
        "run a.toml --set gamma",
        "run a.toml --set =1",
        "run a.toml --json --logs",
        "stop a b",
        "logs a --rank x",
        "run a.toml --seeds x",
        "run a.toml --seeds 1..3 --json",
        "run a.toml --sweep a",
        "prune --older-than 3",
        "prune --older-than -3d",
        "rm",
        "fetch",
        "fly",
    ] {
        assert!(parse(words).is_err(), "{words}");
    }
}

#[test]
fn simulate_is_hidden() {
    assert!(!Cli::command().render_help().to_string().contains("simulate "));
    assert!(parse("simulate --nnodes 3 --fault freeze:2@5").is_ok());
}
