//! The command line as data; pure parsing, nothing is opened here.
//!
//! Here are the commands and what several of them share; the arguments of each are in the modules below.

mod launch;
pub mod moment;
pub mod play;
mod results;
mod simulated;
mod steer;
mod values;

pub use launch::{CheckArgs, InitArgs, PushArgs, RunArgs, SbatchArgs};
pub use results::{
    CompareArgs, EvalArgs, ExportArgs, FetchArgs, LogsArgs, MlflowArgs, PolicyFormat, PruneArgs, RemovalArgs,
    RemoveArgs, ReplayArgs, ReportArgs, TensorboardArgs,
};
pub use simulated::{DemoArgs, SimulateArgs};
pub use steer::{
    AttachArgs, ExportMetricsArgs, HomeArgs, PsArgs, QueueArgs, RestartArgs, StatusArgs, StopArgs,
};

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use std::path::PathBuf;

const EXIT_CODES: &str = "Exit codes:
  0    succeeded, reached its stop value, or detached
  1    failed
  2    usage or configuration
  3    a host failed preflight or could not be reached
  4    stuck, and stopped by policy
  130  interrupted, and stopped cleanly
  137  interrupted, and ranks of the built-in trainer had to be killed";

/// A terminal console for multi-node data-parallel reinforcement learning.
#[derive(Debug, Parser)]
#[command(name = "rankdeck", version = env!("RANKDECK_VERSION"), about, after_help = EXIT_CODES, max_term_width = 110)]
pub struct Cli {
    /// Hosts file, or SSH destinations as `a,me@b:2222`; their order is the order of node_rank. Default:
    /// `hosts.toml` of this folder or of the project around it, `RANKDECK_HOSTS`,
    /// `~/.config/rankdeck/hosts.toml`.
    #[arg(long, global = true, value_name = "FILE|HOST,HOST", help_heading = "Hosts")]
    pub hosts: Option<String>,
    /// Take the hosts from the Slurm allocation that this runs in; `[defaults]` of the hosts file still
    /// holds.
    #[arg(long, global = true, help_heading = "Hosts")]
    pub slurm: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands; their comments are the text of `--help`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show runs and hosts, and launch, attach and stop from there: what `rankdeck` alone does on a terminal.
    Home(HomeArgs),
    /// Show a simulated cluster, and let things go wrong there: needs no host and no trainer.
    Demo(DemoArgs),
    /// Launch an experiment on all hosts and watch it.
    Run(Box<RunArgs>),
    /// Watch and steer a run that was launched before, running or finished.
    Attach(AttachArgs),
    /// Stop a run, and verify that none of its processes is left.
    Stop(StopArgs),
    /// Begin a new generation of a run: end the present one first, or go on with a run that is over.
    Restart(RestartArgs),
    /// List every run on every host, leftovers included.
    Ps(PsArgs),
    /// Say how far a run is, in one line for status bars or as JSON.
    Status(StatusArgs),
    /// Tell a run's figures to Prometheus until it is over; changes nothing of the run.
    ExportMetrics(ExportMetricsArgs),
    /// Show sweeps, or go on with one.
    Queue(QueueArgs),
    /// Copy files of a run from its hosts to this machine.
    Fetch(FetchArgs),
    /// Fetch the event files of runs, and start TensorBoard on them.
    Tensorboard(TensorboardArgs),
    /// Play a checkpoint of a run on this machine, and say its return.
    Eval(EvalArgs),
    /// Watch a checkpoint of a run play, drawn in the terminal, or record that.
    Play(Box<play::PlayArgs>),
    /// Make a file that PyTorch or ONNX runtimes load out of a run's policy.
    Export(ExportArgs),
    /// Remove runs that are over, from their hosts and from here.
    Rm(RemoveArgs),
    /// Remove runs that are over and old, from their hosts and from here.
    Prune(PruneArgs),
    /// Write a Slurm script that runs an experiment, and submit it.
    Sbatch(SbatchArgs),
    /// Check hosts and experiment; start no rank. It runs the prelude, and a Python command's interpreter, on
    /// the hosts.
    Check(CheckArgs),
    /// Copy agent, trainer, code and libtorch to all hosts; start nothing.
    Push(PushArgs),
    /// Write a hosts file and an experiment for a script of yours, after a look at hosts and script.
    Init(InitArgs),
    /// Print the JSON Schema of a file, or of the lines of `--json`.
    Schema {
        /// Of what.
        #[arg(value_enum)]
        what: SchemaOf,
    },
    /// Print the log lines of a run's ranks.
    Logs(LogsArgs),
    /// Show a recorded run.
    Replay(ReplayArgs),
    /// Write a report of a recorded run, with charts, as one HTML or Markdown file.
    Report(ReportArgs),
    /// Show recorded runs beside each other: what they came to, how they differ, charts over each other.
    Compare(CompareArgs),
    /// Write recorded runs as MLflow's file store has them.
    Mlflow(MlflowArgs),
    /// Print rankdeck.py, the Python module by which a script reports to the console.
    Client,
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

/// What to run.
#[derive(Debug, Clone, Default, Args)]
pub struct SubjectArgs {
    /// The experiment.
    #[arg(value_name = "EXPERIMENT.toml", required_unless_present = "command")]
    pub experiment: Option<PathBuf>,
    /// A torchrun-style program without an experiment file, such as `-- python train.py --lr 3e-4`. On SSH
    /// hosts the working folder is its code.
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "experiment")]
    pub command: Vec<String>,
    /// Ranks on each host; default: as in the hosts file, else one per GPU, or one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub nproc: Option<u32>,
    /// GPUs of each host, by the numbers of `nvidia-smi`, such as `0,2`; default: as in the hosts file.
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub gpus: Vec<u32>,
}

/// How to show a run.
#[derive(Debug, Clone, Default, Args)]
pub struct OutputArgs {
    /// Leave the screen when the run is over; otherwise its last picture stays until `q`.
    #[arg(long, help_heading = "Output")]
    pub exit: bool,
    /// Plain lines instead of the screen; automatic without a terminal.
    #[arg(long, help_heading = "Output")]
    pub headless: bool,
    /// Lines that stay, and words that are typed (`help` lists them), instead of the screen: for screen
    /// readers, and for terminals that cannot move a cursor.
    #[arg(long, conflicts_with_all = ["headless", "json", "quiet"], help_heading = "Output")]
    pub linear: bool,
    /// Colours of the screen; default: what `ui.toml` says, or by the terminal's background.
    #[arg(long, value_name = "NAME", help_heading = "Output", value_parser = ["auto", "dark", "light", "mono", "cvd"])]
    pub theme: Option<String>,
    /// Characters of the screen; default: what `ui.toml` says, or by the locale.
    #[arg(long, value_name = "NAME", help_heading = "Output", value_parser = ["auto", "braille", "block", "ascii"])]
    pub glyphs: Option<String>,
    /// The screen only shows: no key stops, kills, restarts or changes the run.
    #[arg(long, help_heading = "Output")]
    pub read_only: bool,
    /// One JSON object per line on stdout and nothing else there; implies --headless.
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Serve the run's figures to Prometheus: `GET /metrics` at this port of this machine, or at this
    /// address.
    #[arg(long, value_name = "[ADDRESS:]PORT", help_heading = "Output",
          value_parser = crate::shell::metrics::parse)]
    pub metrics: Option<std::net::SocketAddr>,
    /// Without the screen: print the ranks' log lines too.
    #[arg(long, conflicts_with = "json", help_heading = "Output")]
    pub logs: bool,
    /// Headless: only the start, verdicts, restarts and the end.
    #[arg(long, conflicts_with = "logs", help_heading = "Output")]
    pub quiet: bool,
    /// Without the screen: at most one line of progress, and one of metrics, in so many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = values::parse_seconds, help_heading = "Output")]
    pub every: Option<f64>,
}

/// Which host keys to accept.
#[derive(Debug, Clone, Default, Args)]
pub struct HostKeyArgs {
    /// Accept and remember the keys of hosts that known_hosts does not list. Changed keys are still refused.
    #[arg(long, help_heading = "Hosts")]
    pub accept_new_host_keys: bool,
}

/// `schema`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum SchemaOf {
    /// An experiment file.
    Experiment,
    /// A hosts file.
    Hosts,
    /// Lines of `--json`.
    Events,
}

#[cfg(test)]
mod tests;
