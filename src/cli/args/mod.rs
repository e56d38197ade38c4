//! The command line: commands, options and their help texts. Parsing only; nothing is opened here.
//!
//! Doc comments are the text of `--help`: the first line is an imperative of at most 72 characters without a
//! period; details follow after a blank line. Examples stand in [`help`].

mod commands;
pub(crate) mod help;
pub(crate) mod values;

pub(crate) use commands::{
    AttachArgs, CheckArgs, CompareArgs, DemoArgs, EvalArgs, ExplainArgs, ExportArgs, ExportMetricsArgs,
    FetchArgs, HomeArgs, InitArgs, LogsArgs, MlflowArgs, PlayArgs, PolicyFormat, PruneArgs, PsArgs, PushArgs,
    QueueArgs, RemovalArgs, RemoveArgs, ReplayArgs, ReportArgs, RestartArgs, RunArgs, SbatchArgs,
    SimulateArgs, StatusArgs, StopArgs, TensorboardArgs, WorkerArgs,
};

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use std::path::PathBuf;

const EXIT_CODES: &str = "Exit codes:
  0    the run succeeded or reached its stop value, or the console detached
  1    the run or the command failed
  2    invalid usage or configuration
  3    a host failed a preflight check or is unreachable
  4    the run was stuck and was stopped by `watch.on_stuck`
  130  interrupted and stopped cleanly
  137  interrupted; ranks of the built-in trainer were killed";

/// Launch, watch and debug multi-node PyTorch training over SSH
#[derive(Debug, Parser)]
#[command(name = "rankdeck", version = env!("RANKDECK_VERSION"), about, after_help = EXIT_CODES, max_term_width = 110)]
#[command(disable_help_subcommand = true)]
pub struct Cli {
    /// Hosts file, or SSH destinations in node-rank order (`a,me@b:2222`)
    ///
    /// Default: `hosts.toml` in this directory or in the project around it, then the value of RANKDECK_HOSTS,
    /// then `~/.config/rankdeck/hosts.toml`.
    #[arg(long, global = true, value_name = "FILE|HOST,HOST", help_heading = "Hosts")]
    pub(crate) hosts: Option<String>,
    /// Use the hosts of the current Slurm allocation
    ///
    /// `[defaults]` of the hosts file still applies.
    #[arg(long, global = true, help_heading = "Hosts")]
    pub(crate) slurm: bool,
    /// Command to run
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Open the home screen: runs, experiments and hosts (the default)
    Home(HomeArgs),
    /// Try rankdeck on a simulated cluster
    ///
    /// Needs no hosts and no trainer. F2 to F7 inject faults. Nothing is kept when it ends.
    Demo(DemoArgs),
    /// Launch an experiment, or any command, on all hosts
    ///
    /// Runs the preflight checks, copies the code, starts one process per rank and shows the run. With
    /// --seeds, --sweep or --cells, launches one run per combination.
    Run(Box<RunArgs>),
    /// Attach to a running or finished run
    Attach(AttachArgs),
    /// Stop a run and verify that no process is left
    ///
    /// The ranks save a checkpoint and exit. Each host then scans for leftover processes; `stop verified` is
    /// printed only when every host has found none.
    Stop(StopArgs),
    /// Restart a run from a checkpoint or from scratch
    ///
    /// A running run is stopped first. A run that has ended starts again with a new generation.
    Restart(RestartArgs),
    /// List runs and leftover processes on all hosts
    Ps(PsArgs),
    /// Show a run's progress
    Status(StatusArgs),
    /// Export a run's metrics to Prometheus
    ///
    /// Serves them over HTTP or writes a textfile until the run ends. The run is not affected.
    ExportMetrics(ExportMetricsArgs),
    /// List sweeps, or resume one
    Queue(QueueArgs),
    /// Copy a run's files to this machine
    ///
    /// An interrupted copy continues where it stopped.
    Fetch(FetchArgs),
    /// Copy the event files of runs here and open them in TensorBoard
    Tensorboard(TensorboardArgs),
    /// Evaluate a checkpoint on this machine
    Eval(EvalArgs),
    /// Show or record a policy playing, in the terminal
    Play(Box<PlayArgs>),
    /// Export a policy to TorchScript, ONNX or safetensors
    Export(ExportArgs),
    /// Remove finished runs from their hosts and from this machine
    Rm(RemoveArgs),
    /// Remove old finished runs from their hosts and from this machine
    Prune(PruneArgs),
    /// Submit an experiment as a Slurm batch job
    Sbatch(SbatchArgs),
    /// Check hosts and configuration without starting ranks
    ///
    /// Runs the `prelude` and the interpreter of a Python command on the hosts.
    Check(CheckArgs),
    /// Upload the agent, trainer, code and libtorch to all hosts
    Push(PushArgs),
    /// Generate hosts.toml and an experiment file for a script
    ///
    /// Detects GPUs and Python on the hosts, and metrics in the source of the script.
    Init(InitArgs),
    /// Print the JSON Schema of a file format or of the --json output
    Schema {
        /// Which schema to print
        #[arg(value_enum)]
        what: SchemaOf,
    },
    /// Print the logs of a run
    Logs(LogsArgs),
    /// Replay a recorded run
    Replay(ReplayArgs),
    /// Write an HTML or Markdown report of a recorded run
    Report(ReportArgs),
    /// Compare recorded runs: results, configuration and charts
    Compare(CompareArgs),
    /// Export recorded runs to an MLflow file store
    Mlflow(MlflowArgs),
    /// Explain a reason code of a verdict: its meaning and the fix
    Explain(ExplainArgs),
    /// Print rankdeck.py, the Python client module
    Client,
    /// Generate shell completions
    Completions {
        /// Shell to generate completions for
        shell: Shell,
    },
    /// Print a man page
    Man {
        /// Command to document [default: rankdeck itself]
        command: Option<String>,
    },
    /// Print help for a topic or a command
    ///
    /// Topics: env, exit-codes, files, hosts, json, keys, resume, slurm, sweep, terms.
    Help {
        /// Topic or command [default: rankdeck itself]
        #[arg(value_name = "TOPIC|COMMAND", hide_possible_values = true)]
        subject: Option<String>,
    },
    /// Show a simulated run without hosts or a trainer
    #[command(hide = true)]
    Simulate(SimulateArgs),
}

/// The experiment or the command to run.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SubjectArgs {
    /// Experiment file
    #[arg(value_name = "EXPERIMENT.toml", required_unless_present = "command")]
    pub(crate) experiment: Option<PathBuf>,
    /// Command to run on every rank, without an experiment file
    ///
    /// Example: `-- python train.py --lr 3e-4`. On SSH hosts, the current directory is uploaded.
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "experiment")]
    pub(crate) command: Vec<String>,
    /// Ranks per host [default: hosts file, else one per GPU, else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) nproc: Option<u32>,
    /// GPU indices on each host, as in `nvidia-smi` [default: hosts file]
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub(crate) gpus: Vec<u32>,
}

/// How a run is shown.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct OutputArgs {
    /// Exit when the run ends instead of waiting for `q`
    #[arg(long, help_heading = "Output")]
    pub(crate) exit: bool,
    /// Print lines instead of the full-screen UI (default without a terminal)
    #[arg(long, help_heading = "Output")]
    pub(crate) headless: bool,
    /// Line mode: print lines and read typed commands
    ///
    /// For screen readers and for terminals that cannot move the cursor. `help` lists the commands.
    #[arg(long, conflicts_with_all = ["headless", "json", "quiet"], help_heading = "Output")]
    pub(crate) linear: bool,
    /// Color theme [default: ui.toml, else the terminal background]
    #[arg(long, value_name = "NAME", help_heading = "Output", value_parser = ["auto", "dark", "light", "mono", "cvd"])]
    pub(crate) theme: Option<String>,
    /// Glyph set [default: ui.toml, else the locale]
    #[arg(long, value_name = "NAME", help_heading = "Output", value_parser = ["auto", "braille", "block", "ascii"])]
    pub(crate) glyphs: Option<String>,
    /// Disable every key that changes the run
    #[arg(long, help_heading = "Output")]
    pub(crate) read_only: bool,
    /// Write JSON Lines to stdout (implies --headless)
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Serve Prometheus metrics at `/metrics` [default address: 127.0.0.1]
    #[arg(long, value_name = "[ADDRESS:]PORT", help_heading = "Output",
          value_parser = crate::app::metrics::parse)]
    pub(crate) metrics: Option<std::net::SocketAddr>,
    /// Also print the log lines of the ranks (without the full-screen UI)
    #[arg(long, conflicts_with = "json", help_heading = "Output")]
    pub(crate) logs: bool,
    /// Print only the start, verdicts, restarts and the end
    #[arg(long, conflicts_with = "logs", help_heading = "Output")]
    pub(crate) quiet: bool,
    /// Print progress and metrics at most once per SECONDS
    #[arg(long, value_name = "SECONDS", value_parser = values::parse_seconds, help_heading = "Output")]
    pub(crate) every: Option<f64>,
}

/// Which host keys are accepted.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct HostKeyArgs {
    /// Accept and save unknown host keys; changed keys are still rejected
    #[arg(long, help_heading = "Hosts")]
    pub(crate) accept_new_host_keys: bool,
}

/// The schemas that `schema` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SchemaOf {
    /// An experiment file
    Experiment,
    /// A hosts file
    Hosts,
    /// Lines of the --json output
    Events,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use rankdeck_types::plan::StopGoal;

    fn parse(words: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("rankdeck").chain(words.split_whitespace()))
    }

    #[test]
    fn clap_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn run_accepts_all_options() {
        let cli = parse(
            "run configs/a.toml --hosts lab.toml --headless --json --set a.b=1 --set c=x=y --until steps=1e6 \
             --until evals=3 --detach --name n1",
        )
        .unwrap();
        assert_eq!(cli.hosts.as_deref(), Some("lab.toml"));
        let CliCommand::Run(args) = cli.command else { panic!("not run") };
        assert!(args.output.headless && args.output.json && args.detach);
        assert_eq!(args.set, ["a.b=1", "c=x=y"]);
        assert_eq!(args.until, [StopGoal::Steps(1_000_000), StopGoal::Evals(3)]);
        assert_eq!(args.name.as_deref(), Some("n1"));
    }

    #[test]
    fn hosts_option_is_global() {
        assert_eq!(parse("ps").unwrap().hosts, None);
        assert_eq!(parse("--hosts a.toml ps").unwrap().hosts.as_deref(), Some("a.toml"));
        assert_eq!(parse("ps --hosts a,b").unwrap().hosts.as_deref(), Some("a,b"));
    }

    #[test]
    fn command_needs_no_experiment_file() {
        let cli = parse("run --hosts a,b --nproc 2 -- python train.py --json --lr 1").unwrap();
        let CliCommand::Run(args) = cli.command else { panic!("not run") };
        assert_eq!(args.subject.command.join(" "), "python train.py --json --lr 1");
        assert!(args.subject.experiment.is_none() && args.subject.nproc == Some(2) && !args.output.json);
        for words in ["run e.toml -- python", "run --", "check", "run --nproc 0 e.toml", "sbatch"] {
            assert!(parse(words).is_err(), "{words}");
        }
        let cli = parse("sbatch e.toml -- --partition=gpu --account lab").unwrap();
        let CliCommand::Sbatch(args) = cli.command else { panic!("not sbatch") };
        assert_eq!(args.rest.len(), 3);
    }

    #[test]
    fn invalid_arguments_are_rejected() {
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
}
