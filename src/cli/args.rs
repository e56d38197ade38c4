//! The command line as data; pure parsing, nothing is opened here.

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use rankdeck_types::plan::Until;
use std::path::PathBuf;

const EXIT_CODES: &str = "Exit codes:
  0    succeeded, reached its stop value, or detached
  1    failed
  2    usage or configuration
  3    a host failed preflight or could not be reached
  4    stuck, and stopped by policy
  130  interrupted, and stopped cleanly";

/// A terminal console for multi-node data-parallel reinforcement learning.
#[derive(Debug, Parser)]
#[command(name = "rankdeck", version, about, after_help = EXIT_CODES, max_term_width = 110)]
pub struct Cli {
    /// Hosts file; the order of its hosts is the order of node_rank.
    #[arg(long, global = true, value_name = "FILE", default_value = "hosts.toml")]
    pub hosts: PathBuf,
    /// Take the hosts from the Slurm allocation that this runs in; `[defaults]` of the hosts file still
    /// holds.
    #[arg(long, global = true)]
    pub slurm: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Launch an experiment on all hosts and watch it.
    Run(RunArgs),
    /// Watch and steer a run that was launched before, running or finished.
    Attach(AttachArgs),
    /// Stop a run, and verify that none of its processes is left.
    Stop(StopArgs),
    /// End the present generation of a run and begin a new one.
    Restart(RestartArgs),
    /// List every run on every host, leftovers included.
    Ps(PsArgs),
    /// Write a Slurm script that runs an experiment, and submit it.
    Sbatch(SbatchArgs),
    /// Check hosts and experiment; start nothing.
    Check(CheckArgs),
    /// Copy agent, trainer, code and libtorch to all hosts; start nothing.
    Push(PushArgs),
    /// Print the log lines of a run's ranks.
    Logs(LogsArgs),
    /// Show a recorded run.
    Replay(ReplayArgs),
    /// Print the completions of a shell.
    Completions {
        /// Which shell.
        shell: Shell,
    },
    /// Print the manual page.
    Man {
        /// Of this command; default: of rankdeck itself.
        command: Option<String>,
    },
    /// Watch a simulated run: no host, no trainer.
    #[command(hide = true)]
    Simulate(SimulateArgs),
}

/// How to show a run.
#[derive(Debug, Clone, Default, Args)]
pub struct OutputArgs {
    /// Plain lines instead of the screen; automatic without a terminal.
    #[arg(long)]
    pub headless: bool,
    /// One JSON object per line on stdout and nothing else there; implies --headless.
    #[arg(long)]
    pub json: bool,
    /// Headless: print the ranks' log lines too.
    #[arg(long, conflicts_with = "json")]
    pub logs: bool,
}

/// Which host keys to accept.
#[derive(Debug, Clone, Default, Args)]
pub struct HostKeyArgs {
    /// Accept and remember the keys of hosts that known_hosts does not list. Changed keys are still refused.
    #[arg(long)]
    pub accept_new_host_keys: bool,
}

/// `run`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct RunArgs {
    /// The experiment.
    #[arg(value_name = "EXPERIMENT.toml")]
    pub experiment: PathBuf,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: OutputArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub host_keys: HostKeyArgs,
    /// Change a key of the experiment, such as `learn.gamma=0.98`; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_set)]
    pub set: Vec<String>,
    /// Stop cleanly at `steps=N`, `iters=N`, `evals=N` or `seconds=N`; may be repeated.
    #[arg(long, value_name = "KIND=N", value_parser = parse_until)]
    pub until: Vec<Until>,
    /// Leave as soon as every rank is in the process group; the run goes on.
    #[arg(long)]
    pub detach: bool,
    /// Name of the run instead of the experiment's `run.name`.
    #[arg(long)]
    pub name: Option<String>,
    /// Exclude this host; `rankdeck restart --add` can add it later; may be repeated.
    #[arg(long, value_name = "HOST")]
    pub exclude: Vec<String>,
}

/// `attach`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct AttachArgs {
    /// Which run, or the beginning of its name; default: the only one that runs.
    pub run: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: OutputArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub host_keys: HostKeyArgs,
}

/// `stop`.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// Which run, or the beginning of its name; default: the only one that runs.
    pub run: Option<String>,
    /// SIGKILL at once instead of a checkpoint and a clean end.
    #[arg(long)]
    pub kill: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub host_keys: HostKeyArgs,
}

/// `restart`.
#[derive(Debug, Args)]
pub struct RestartArgs {
    /// Which run, or the beginning of its name; default: the only one that runs.
    pub run: Option<String>,
    /// Checkpoint on rank 0's host to begin from, or `latest`, or `afresh`.
    /// Default: afresh, and `latest` with --exclude or --add.
    #[arg(long, value_name = "CHECKPOINT")]
    pub from: Option<String>,
    /// Compare every collective of all ranks before it begins. Slower, but names the call where ranks first
    /// differ.
    #[arg(long, conflicts_with_all = ["exclude", "add"])]
    pub check_collectives: bool,
    /// Go on without this host; may be repeated.
    #[arg(long, value_name = "HOST")]
    pub exclude: Vec<String>,
    /// Add this host of the hosts file; may be repeated.
    #[arg(long, value_name = "HOST")]
    pub add: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub host_keys: HostKeyArgs,
}

/// `ps`.
#[derive(Debug, Args)]
pub struct PsArgs {
    /// One JSON object per run and line.
    #[arg(long)]
    pub json: bool,
    /// All finished runs, not only the newest.
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub host_keys: HostKeyArgs,
}

/// `sbatch`.
#[derive(Debug, Args)]
pub struct SbatchArgs {
    /// The experiment.
    #[arg(value_name = "EXPERIMENT.toml")]
    pub experiment: PathBuf,
    /// Number of nodes.
    #[arg(long, short = 'N', default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub nodes: u32,
    /// Ranks per node; default: one per GPU, or one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub ntasks_per_node: Option<u32>,
    /// GPUs per node.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub gpus_per_node: u32,
    /// Time limit as Slurm writes it, such as `8:00:00`.
    #[arg(long)]
    pub time: Option<String>,
    /// Change a key of the experiment; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_set)]
    pub set: Vec<String>,
    /// Further options of sbatch, such as `--option=--partition=gpu`; may be repeated.
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    pub option: Vec<String>,
    /// Seconds before the time limit at which the run is stopped with a checkpoint.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub stop_before_s: u32,
    /// Show the script; submit nothing.
    #[arg(long)]
    pub dry_run: bool,
}

/// `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The experiment.
    #[arg(value_name = "EXPERIMENT.toml")]
    pub experiment: PathBuf,
    /// Change a key of the experiment; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_set)]
    pub set: Vec<String>,
    /// One JSON object per check and host.
    #[arg(long)]
    pub json: bool,
    /// Also launch all ranks once for an all-reduce of 1 MB.
    #[arg(long)]
    pub all_reduce: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub host_keys: HostKeyArgs,
}

/// `push`.
#[derive(Debug, Args)]
pub struct PushArgs {
    /// Copy this experiment's code (`launch.code`) and its resolved form, too.
    #[arg(value_name = "EXPERIMENT.toml")]
    pub experiment: Option<PathBuf>,
    /// Change a key of the experiment; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_set)]
    pub set: Vec<String>,
    /// Install this unpacked torch folder on every host that lacks it, for the built-in trainer.
    #[arg(long, value_name = "DIR")]
    pub libtorch: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub host_keys: HostKeyArgs,
}

/// `logs`.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// Which run, or the beginning of its name; default: the only one that runs.
    pub run: Option<String>,
    /// Only this rank.
    #[arg(long, value_name = "N")]
    pub rank: Option<u32>,
    /// Keep printing lines as they come.
    #[arg(short, long)]
    pub follow: bool,
    /// Begin with this many of the latest lines of each rank.
    #[arg(long, value_name = "LINES", default_value_t = 1000)]
    pub tail: u32,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub host_keys: HostKeyArgs,
}

/// `replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// A run (looked up in `runs/`) or a `trace.jsonl`.
    #[arg(value_name = "RUN|TRACE")]
    pub what: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: OutputArgs,
}

/// `simulate`.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// Hosts (the option `--hosts` names the file).
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub nnodes: u32,
    /// Ranks per host.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub ranks: u32,
    /// Give every rank a GPU.
    #[arg(long)]
    pub gpus: bool,
    /// Same seed, same run.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Global environment steps after which it ends; 0: never.
    #[arg(long, default_value_t = 0)]
    pub steps: u64,
    /// Milliseconds per training iteration.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub iteration_ms: u64,
    /// `freeze|behind|env|slow|kill|fail|drift:RANK@SECONDS[+DURATION]`, `lose:NODE@SECONDS[+DURATION]` or
    /// `survive:NODE@0`; may be repeated.
    #[arg(long, value_name = "FAULT", value_parser = rankdeck_link::simulator::parse_fault)]
    pub fault: Vec<rankdeck_link::simulator::Fault>,
    /// What to do about a stuck rank: `report`, `stop` or `restart`.
    #[arg(long, default_value = "report")]
    pub on_stuck: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: OutputArgs,
    /// Stop cleanly at `steps=N`, `iters=N`, `evals=N` or `seconds=N`.
    #[arg(long, value_name = "KIND=N", value_parser = parse_until)]
    pub until: Vec<Until>,
    /// Leave once it runs.
    #[arg(long)]
    pub detach: bool,
    /// Record into `runs/` as a real run does.
    #[arg(long)]
    pub record: bool,
}

fn parse_set(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((key, _)) if !key.trim().is_empty() => Ok(text.to_owned()),
        _ => Err("expected KEY=VALUE, such as learn.gamma=0.98".to_owned()),
    }
}

fn parse_until(text: &str) -> Result<Until, String> {
    let expected = "expected steps=N, iters=N, evals=N or seconds=N";
    let (kind, number) = text.split_once('=').ok_or(expected)?;
    // People write 1_000_000 and 1e6 for step counts.
    let plain = number.trim().replace('_', "");
    let n = plain
        .parse::<u64>()
        .ok()
        .or_else(|| {
            plain
                .parse::<f64>()
                .ok()
                .filter(|n| n.fract() == 0.0 && (0.0..9e15).contains(n))
                .map(|n| n as u64)
        })
        .ok_or_else(|| format!("`{number}` is not a whole number; {expected}"))?;
    match kind.trim() {
        "steps" => Ok(Until::Steps(n)),
        "iters" => Ok(Until::Iters(n)),
        "evals" => Ok(Until::Evals(n)),
        "seconds" => Ok(Until::Seconds(n)),
        _ => Err(expected.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

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
        assert_eq!(cli.hosts, PathBuf::from("lab.toml"));
        let Command::Run(args) = cli.command else { panic!("not run") };
        assert!(args.output.headless && args.output.json && args.detach);
        assert_eq!(args.set, ["a.b=1", "c=x=y"]);
        assert_eq!(args.until, [Until::Steps(1_000_000), Until::Evals(3)]);
        assert_eq!(args.name.as_deref(), Some("n1"));
    }

    #[test]
    fn hosts_defaults_and_may_stand_anywhere() {
        assert_eq!(parse("ps").unwrap().hosts, PathBuf::from("hosts.toml"));
        assert_eq!(parse("--hosts a.toml ps").unwrap().hosts, PathBuf::from("a.toml"));
        assert_eq!(parse("ps --hosts a.toml").unwrap().hosts, PathBuf::from("a.toml"));
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
            "fly",
        ] {
            assert!(parse(words).is_err(), "{words}");
        }
    }

    #[test]
    fn simulate_is_hidden() {
        assert!(!Cli::command().render_help().to_string().contains("simulate"));
        assert!(parse("simulate --nnodes 3 --fault freeze:2@5").is_ok());
    }
}
