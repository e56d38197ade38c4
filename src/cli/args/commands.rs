//! Options of each command, with their help texts.

use super::values::{
    CheckpointSource, LAST, SweepAxis, SweepSeeds, parse_age, parse_axis, parse_checkpoint, parse_env,
    parse_gb, parse_rank_pair, parse_seconds, parse_seeds, parse_set, parse_size, parse_time, parse_until,
    parse_weight,
};
use super::{EXIT_CODES, HostKeyArgs, OutputArgs, PrintArgs, SubjectArgs};
use crate::app::graphics::Graphics;
use clap::{ArgGroup, Args};
use rankdeck_core::origin::CodeChoice;
use rankdeck_types::plan::StopGoal;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

const DRILL_CODES: &str = "Exit codes:
  0    every case passed or was skipped
  1    a case failed
  2    invalid usage or configuration, or a run of yours is live on the hosts
  3    a host failed a preflight check or is unreachable
  130  interrupted: the run of the case was stopped";

/// Options that apply to a single run only.
const ALONE: [&str; 5] = ["json", "detach", "until", "from", "carry_on"];

// Commands that launch runs or prepare a launch.

/// `run`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES, group = ArgGroup::new("several").args(["seeds", "sweep", "cells"]).multiple(true))]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) subject: SubjectArgs,
    /// Override a config key (`learn.gamma=0.98`) or unset it (`~KEY`)
    ///
    /// Can be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_set)]
    pub(crate) set: Vec<String>,
    /// Read more overrides from stdin, as a JSON array of `KEY=VALUE`
    #[arg(long, hide = true)]
    pub(crate) set_stdin: bool,
    /// Name of a trial of a sweep, for the directory that it works in
    #[arg(long, hide = true, value_name = "NAME")]
    pub(crate) trial: Option<String>,
    /// Launch a run that `rankdeck drill` breaks
    #[arg(long, hide = true, conflicts_with = "several")]
    pub(crate) drill: bool,
    /// Name of the run [default: `run.name` of the experiment]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Note to show in `rankdeck ps` (`run.note`)
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    /// Stop cleanly at `steps=N`, `iters=N`, `evals=N` or `seconds=N`
    ///
    /// Can be repeated; the run stops at whichever limit comes first.
    #[arg(long, value_name = "KIND=N", value_parser = parse_until)]
    pub(crate) until: Vec<StopGoal>,
    /// Detach once all ranks have joined the process group
    #[arg(long)]
    pub(crate) detach: bool,
    /// Start from a checkpoint: RUN[:latest|:best|:ITERATION], or a path
    ///
    /// RUN may be a prefix, `@last` or `NAME~1`. A path is on rank 0's host or, for your own program, on any host of
    /// the run. `best` and ITERATION exist only for the built-in trainer.
    #[arg(long, value_name = "RUN[:CHECKPOINT]|PATH", value_parser = parse_checkpoint, help_heading = "Checkpoints")]
    pub(crate) from: Option<CheckpointSource>,
    /// Start a new run from the latest checkpoint of this experiment
    ///
    /// Uses the newest run that has a checkpoint. If there is none, starts from scratch.
    #[arg(long = "continue", conflicts_with = "from", help_heading = "Checkpoints")]
    pub(crate) carry_on: bool,
    /// Copy checkpoints of up to GB between hosts without a prompt [default: 2]
    ///
    /// For your own program, whose checkpoints must be on every host. Sets `launch.max_copy_gb`.
    #[arg(long, value_name = "GB", value_parser = parse_gb, help_heading = "Checkpoints")]
    pub(crate) max_copy_gb: Option<f64>,
    /// Exclude a host
    ///
    /// Can be repeated. `rankdeck restart --add` adds it later.
    #[arg(long, value_name = "HOST", help_heading = "Hosts")]
    pub(crate) exclude: Vec<String>,
    /// Launch one run per seed (`1..10` or `1,2,5`)
    ///
    /// `rankdeck queue` shows the sweep.
    #[arg(long, value_name = "SEEDS", value_parser = parse_seeds, conflicts_with_all = ALONE,
          help_heading = "Sweeps")]
    pub(crate) seeds: Option<SweepSeeds>,
    /// Launch one run per value (`learn.learning_rate=1e-4,3e-4`)
    ///
    /// Can be repeated; several config keys form a grid.
    #[arg(long, value_name = "KEY=VALUES", value_parser = parse_axis, conflicts_with_all = ALONE,
          help_heading = "Sweeps")]
    pub(crate) sweep: Vec<SweepAxis>,
    /// Launch one run per line of FILE, each `KEY=VALUE KEY=VALUE`
    #[arg(long, value_name = "FILE", conflicts_with_all = ALONE, help_heading = "Sweeps")]
    pub(crate) cells: Option<PathBuf>,
    /// Launch only N combinations, chosen at random from the --sweep grid
    ///
    /// Also chooses among the lines of --cells. Each combination runs with every seed.
    #[arg(long, value_name = "N", requires = "several", help_heading = "Sweeps")]
    pub(crate) random: Option<usize>,
    /// Hosts per trial, so that trials run in parallel [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "several",
          help_heading = "Sweeps")]
    pub(crate) hosts_per_run: Option<u32>,
    /// GPUs per trial, all on one host
    ///
    /// Runs as many trials at once as free GPUs allow. A GPU is free when less than 10% of its memory is in
    /// use. GPUs that become free later are used as well.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64),
          conflicts_with = "hosts_per_run",
          requires = "several", help_heading = "Sweeps")]
    pub(crate) gpus_per_run: Option<u32>,
    /// Trials that run on each host at the same time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024),
          conflicts_with_all = ["hosts_per_run", "gpus_per_run"], requires = "several", help_heading = "Sweeps")]
    pub(crate) runs_per_host: Option<u32>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) host_keys: HostKeyArgs,
}

/// A way to break a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DrillCase {
    /// Suspend the last rank (SIGSTOP)
    Freeze,
    /// Kill the last rank (SIGKILL)
    Kill,
    /// Limit the last rank to a fifth of the time
    Slow,
    /// Raise an exception in the last rank (Python only)
    Exception,
    /// Kill the console and attach again
    Console,
    /// Kill the agent of the last rank's host
    Agent,
    /// Stop cleanly
    Stop,
    /// Restart from the latest checkpoint
    Restart,
}

impl DrillCase {
    /// In the order of a drill.
    pub(crate) const ALL: [DrillCase; 8] = [
        DrillCase::Freeze,
        DrillCase::Kill,
        DrillCase::Slow,
        DrillCase::Exception,
        DrillCase::Console,
        DrillCase::Agent,
        DrillCase::Stop,
        DrillCase::Restart,
    ];

    /// The word on the command line and in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            DrillCase::Freeze => "freeze",
            DrillCase::Kill => "kill",
            DrillCase::Slow => "slow",
            DrillCase::Exception => "exception",
            DrillCase::Console => "console",
            DrillCase::Agent => "agent",
            DrillCase::Stop => "stop",
            DrillCase::Restart => "restart",
        }
    }
}

/// `drill`.
#[derive(Debug, Args)]
#[command(after_help = DRILL_CODES)]
pub(crate) struct DrillArgs {
    #[command(flatten)]
    pub(crate) subject: SubjectArgs,
    /// Only these cases, comma-separated [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "CASE,CASE")]
    pub(crate) only: Vec<DrillCase>,
    /// Longest training before each fault, in seconds
    ///
    /// The fault comes earlier if the ranks make steps and, for cases that need one, have saved a checkpoint.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) train_s: u32,
    /// Keep the files of all runs [default: of cases that failed]
    #[arg(long)]
    pub(crate) keep: bool,
    /// Skip the prompt about GPUs that others use and your runs elsewhere
    #[arg(long, short = 'y')]
    pub(crate) yes: bool,
    /// Override a config key (`learn.gamma=0.98`) or unset it (`~KEY`)
    ///
    /// Can be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_set)]
    pub(crate) set: Vec<String>,
    /// Exclude a host
    ///
    /// Can be repeated.
    #[arg(long, value_name = "HOST", help_heading = "Hosts")]
    pub(crate) exclude: Vec<String>,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
    #[command(flatten)]
    pub(crate) host_keys: HostKeyArgs,
}

/// `sbatch`.
#[derive(Debug, Clone, Args)]
pub(crate) struct SbatchArgs {
    /// Experiment file
    #[arg(value_name = "EXPERIMENT.toml", required_unless_present = "rest")]
    pub(crate) experiment: Option<PathBuf>,
    /// Options for sbatch, or a command to run
    ///
    /// With an experiment file: options for sbatch (`-- --partition=gpu --account lab`). Without one: a
    /// command (`-- python train.py`), or options and then the command (`-- --partition=gpu -- python
    /// train.py`).
    #[arg(last = true, value_name = "OPTIONS|COMMAND")]
    pub(crate) rest: Vec<String>,
    /// Number of nodes
    #[arg(long, short = 'N', alias = "nnodes", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) nodes: u32,
    /// Ranks per node [default: one per GPU, else 1]
    #[arg(long, alias = "nproc", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ntasks_per_node: Option<u32>,
    /// GPUs per node
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) gpus_per_node: u32,
    /// Time limit in Slurm format (`8:00:00`)
    #[arg(long)]
    pub(crate) time: Option<String>,
    /// Override a config key (`learn.gamma=0.98`) or unset it (`~KEY`)
    ///
    /// Can be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_set)]
    pub(crate) set: Vec<String>,
    /// Virtual environment to activate on every node [default: hosts file]
    #[arg(long, value_name = "DIR")]
    pub(crate) venv: Option<String>,
    /// Set a variable of the ranks (`launch.env`)
    ///
    /// Can be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_env)]
    pub(crate) env: Vec<String>,
    /// Pass an option to sbatch (`--option=--partition=gpu`)
    ///
    /// Can be repeated.
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    pub(crate) option: Vec<String>,
    /// Seconds before the time limit to stop and save a checkpoint
    #[arg(long, value_name = "SECONDS", default_value_t = 120,
          value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) stop_before_s: u32,
    /// Requeue the job at its time limit and resume from the latest checkpoint
    #[arg(long)]
    pub(crate) requeue: bool,
    /// Print the script without submitting it
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
}

/// `check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) subject: SubjectArgs,
    /// Override a config key (`learn.gamma=0.98`) or unset it (`~KEY`)
    ///
    /// Can be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_set)]
    pub(crate) set: Vec<String>,
    /// Read more overrides from stdin, as a JSON array of `KEY=VALUE`
    #[arg(long, hide = true)]
    pub(crate) set_stdin: bool,
    /// Also start one test process per rank and run a 1 MB all-reduce
    #[arg(long)]
    pub(crate) all_reduce: bool,
    /// Also measure links, clocks and disks of the hosts (at most 20 s)
    ///
    /// Round trip and bandwidth of each pair of hosts, an all-reduce over all of them, clock offsets, and the time to
    /// write a checkpoint. Needs only SSH. The first measurement of these hosts is the baseline for later ones.
    #[arg(long)]
    pub(crate) measure: bool,
    /// Size of the file that `--measure` writes, in MiB; 0: none
    #[arg(long, value_name = "N", default_value_t = 64, requires = "measure", value_parser = clap::value_parser!(u32).range(0..=65_536))]
    pub(crate) measure_mb: u32,
    /// Make the measurement the new baseline
    #[arg(long, requires = "measure")]
    pub(crate) save: bool,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
    #[command(flatten)]
    pub(crate) host_keys: HostKeyArgs,
}

/// `push`.
#[derive(Debug, Args)]
pub(crate) struct PushArgs {
    /// Also upload this experiment's code and resolved configuration
    #[arg(value_name = "EXPERIMENT.toml")]
    pub(crate) experiment: Option<PathBuf>,
    /// Override a config key (`learn.gamma=0.98`) or unset it (`~KEY`)
    ///
    /// Can be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_set)]
    pub(crate) set: Vec<String>,
    /// Install libtorch from DIR on hosts that lack it
    ///
    /// DIR is an unpacked torch package. The built-in trainer needs libtorch.
    #[arg(long, value_name = "DIR")]
    pub(crate) libtorch: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
    #[command(flatten)]
    pub(crate) host_keys: HostKeyArgs,
}

/// `init`.
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// SSH hosts [default: this machine] and the training script
    ///
    /// A file, or a name that ends in .py or .sh, is the script [default: detected in this directory].
    #[arg(value_name = "HOST|SCRIPT")]
    pub(crate) given: Vec<String>,
    /// Training script (use this if its name could be mistaken for a host)
    #[arg(long, value_name = "FILE")]
    pub(crate) script: Option<PathBuf>,
    /// Overwrite existing files
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
    #[command(flatten)]
    pub(crate) host_keys: HostKeyArgs,
}

/// `demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Number of hosts
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) nnodes: u32,
    /// Ranks per host, each with a GPU
    #[arg(long, alias = "nproc", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) ranks: u32,
    /// Random seed
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `simulate`.
#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// Number of hosts
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) nnodes: u32,
    /// Ranks per host
    #[arg(long, alias = "nproc", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) ranks: u32,
    /// Give every rank a GPU
    #[arg(long)]
    pub(crate) gpus: bool,
    /// Random seed
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// End after this many environment steps; 0: never
    #[arg(long, default_value_t = 0)]
    pub(crate) steps: u64,
    /// Milliseconds per training iteration
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub(crate) iteration_ms: u64,
    /// Inject a fault; can be repeated
    ///
    /// `freeze|behind|env|slow|kill|fail|drift:RANK@SECONDS[+DURATION]`, `lose:NODE@SECONDS[+DURATION]` or
    /// `survive:NODE@0`.
    #[arg(long, value_name = "FAULT", value_parser = rankdeck_link::simulator::parse_fault)]
    pub(crate) fault: Vec<rankdeck_link::simulator::Fault>,
    /// What to do about a stuck rank: `report`, `stop` or `restart`
    #[arg(long, default_value = "report")]
    pub(crate) on_stuck: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Stop cleanly at `steps=N`, `iters=N`, `evals=N` or `seconds=N`
    #[arg(long, value_name = "KIND=N", value_parser = parse_until)]
    pub(crate) until: Vec<StopGoal>,
    /// Detach once all ranks have joined the process group
    #[arg(long)]
    pub(crate) detach: bool,
    /// Keep a recording in `runs/`, as for a real run
    #[arg(long)]
    pub(crate) record: bool,
}

// Commands that show and control existing runs.

/// `home`.
#[derive(Debug, Default, Args)]
pub(crate) struct HomeArgs {
    /// Color theme [default: ui.toml, then RANKDECK_THEME, then the terminal]
    #[arg(long, value_name = "NAME", value_parser = ["auto", "dark", "light", "mono", "cvd"])]
    pub(crate) theme: Option<String>,
    /// Glyph set [default: ui.toml, then RANKDECK_GLYPHS, then the locale]
    #[arg(long, value_name = "NAME", value_parser = ["auto", "braille", "block", "ascii"])]
    pub(crate) glyphs: Option<String>,
    /// Disable all key bindings that stop, remove or launch runs
    #[arg(long)]
    pub(crate) read_only: bool,
}

/// `attach`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct AttachArgs {
    /// Run: name, prefix, `@last` or `NAME~1` [default: newest, running first]
    pub(crate) run: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) host_keys: HostKeyArgs,
}

/// `stop`.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Run: name, prefix or `NAME~1` [default: the only one running]
    pub(crate) run: Option<String>,
    /// Send SIGKILL immediately; no checkpoint is saved
    #[arg(long)]
    pub(crate) kill: bool,
    /// Skip the confirmation prompt
    ///
    /// The prompt appears only on a terminal, and only if no run is named.
    #[arg(long, short = 'y')]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
    #[command(flatten)]
    pub(crate) host_keys: HostKeyArgs,
}

/// `add`.
#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// Run: name, prefix or `NAME~1` [default: the only one running]
    pub(crate) run: Option<String>,
    /// The rank to start again
    #[arg(long, value_name = "N")]
    pub(crate) rank: u32,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
    #[command(flatten)]
    pub(crate) host_keys: HostKeyArgs,
}

/// `wait`.
#[derive(Debug, Args)]
#[command(after_help = "Exit code: that of the run, or 124 if --timeout expires first.")]
pub(crate) struct WaitArgs {
    /// Run: name, prefix, `@last` or `NAME~1`
    #[arg(default_value = LAST)]
    pub(crate) run: String,
    /// Give up after TIME (`30s`, `90m`, `8h`, `2d`)
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    pub(crate) timeout: Option<f64>,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
    #[command(flatten)]
    pub(crate) host_keys: HostKeyArgs,
}

/// `restart`.
#[derive(Debug, Args)]
pub(crate) struct RestartArgs {
    /// Run: name, prefix or `NAME~1` [default: the only one running]
    pub(crate) run: Option<String>,
    /// Checkpoint to restart from [default: latest]
    ///
    /// `latest`, `best`, an iteration or step, the name of a known checkpoint, a path on rank 0's host (for your own
    /// program, on any host), or `scratch` to start without a checkpoint. Names such as `gen0/best`, from an earlier
    /// generation, exist only for the built-in trainer.
    #[arg(long, value_name = "N|NAME|PATH")]
    pub(crate) from: Option<String>,
    /// Copy checkpoints of up to GB between hosts without a prompt [default: 2]
    ///
    /// For your own program, whose checkpoints must be on every host. Sets `launch.max_copy_gb`.
    #[arg(long, value_name = "GB", value_parser = parse_gb, conflicts_with = "check_collectives")]
    pub(crate) max_copy_gb: Option<f64>,
    /// Override a config key from now on (`learn.learning_rate=1e-4`)
    ///
    /// Can be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_set)]
    pub(crate) set: Vec<String>,
    /// Code of the next generation: `same` as before, or `new` [default: same]
    ///
    /// `new` uploads the code directory again, from the machine that launched the run. Without `launch.code`, ranks
    /// always use the files on their hosts.
    #[arg(long, value_name = "same|new", value_parser = CodeChoice::parse)]
    pub(crate) code: Option<CodeChoice>,
    /// Before each collective, check that all ranks issue the same one (slow)
    ///
    /// Finds the first mismatch.
    #[arg(long, conflicts_with_all = ["exclude", "add", "set", "code"])]
    pub(crate) check_collectives: bool,
    /// Restart without a host
    ///
    /// Can be repeated.
    #[arg(long, value_name = "HOST")]
    pub(crate) exclude: Vec<String>,
    /// Add a host from the hosts file
    ///
    /// Can be repeated.
    #[arg(long, value_name = "HOST")]
    pub(crate) add: Vec<String>,
    /// Skip the confirmation prompt
    #[arg(long, short = 'y')]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
    #[command(flatten)]
    pub(crate) host_keys: HostKeyArgs,
}

/// `status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Run: name, prefix, `@last` or `NAME~1` [default: newest, running first]
    pub(crate) run: Option<String>,
    /// Print one line for a status bar
    ///
    /// For tmux, starship and the like. The line is empty if no run exists.
    #[arg(long, conflicts_with = "json")]
    pub(crate) line: bool,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
    #[command(flatten)]
    pub(crate) host_keys: HostKeyArgs,
}

/// `export-metrics`.
#[derive(Debug, Args)]
pub(crate) struct ExportMetricsArgs {
    /// Run: name, prefix, `@last` or `NAME~1` [default: newest, running first]
    pub(crate) run: Option<String>,
    /// Serve `/metrics` at this address
    ///
    /// Default: 127.0.0.1:9464, or no server with --textfile.
    #[arg(long, alias = "metrics", value_name = "[ADDRESS:]PORT", value_parser = crate::app::metrics::parse)]
    pub(crate) listen: Option<SocketAddr>,
    /// Write a .prom file for node_exporter
    ///
    /// FILE is replaced at the interval of --every. The final values stay after the run ends.
    #[arg(long, alias = "output", value_name = "FILE")]
    pub(crate) textfile: Option<PathBuf>,
    /// Seconds between two writes of the textfile
    #[arg(long, value_name = "SECONDS", default_value = "15", requires = "textfile",
          value_parser = parse_seconds)]
    pub(crate) every: f64,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
    #[command(flatten)]
    pub(crate) host_keys: HostKeyArgs,
}

/// `ps`.
#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// List all finished runs, not just the most recent
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
    #[command(flatten)]
    pub(crate) host_keys: HostKeyArgs,
}

/// `gpus`.
#[derive(Debug, Default, Args)]
pub(crate) struct GpusArgs {
    /// End all leftover processes
    ///
    /// Each host first proves again that they are leftovers. Everything else is left alone.
    #[arg(long, conflicts_with = "pid")]
    pub(crate) free: bool,
    /// End this leftover or unproven process
    ///
    /// Can be repeated.
    #[arg(long, value_name = "[HOST:]PID")]
    pub(crate) pid: Vec<String>,
    /// Skip the confirmation prompt
    #[arg(long, short = 'y')]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
    #[command(flatten)]
    pub(crate) host_keys: HostKeyArgs,
}

/// `queue`.
#[derive(Debug, Args)]
pub(crate) struct QueueArgs {
    /// Sweep name or part of it [default: all]
    pub(crate) sweep: Option<String>,
    /// Continue the sweep
    ///
    /// Starts pending trials, attaches to running ones and restarts stopped ones.
    #[arg(long)]
    pub(crate) resume: bool,
    /// Also restart failed trials from their latest checkpoint
    #[arg(long, requires = "resume")]
    pub(crate) failed: bool,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
}

/// `explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Reason code, such as `gil_held` [default: list all reason codes]
    pub(crate) reason: Option<String>,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
}

// Commands that use the results of runs.

/// `fetch`.
#[derive(Debug, Args)]
pub(crate) struct FetchArgs {
    /// Run: name, prefix, `@last` or `NAME~1`
    #[arg(default_value = LAST)]
    pub(crate) run: String,
    /// Files to copy (`*.safetensors`, `gen0/`) [default: all except code]
    pub(crate) pattern: Option<String>,
    /// Directory to copy into [default: runs/RUN/hosts]
    ///
    /// Each host gets a subdirectory.
    #[arg(long, alias = "output", value_name = "DIR")]
    pub(crate) into: Option<PathBuf>,
    /// Copy at most GB gigabytes: checkpoints, then metrics, then others
    ///
    /// Files beyond the limit are listed. With PATTERN, a larger total is rejected.
    #[arg(long, value_name = "GB", default_value_t = 4)]
    pub(crate) max_size_gb: u32,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
    #[command(flatten)]
    pub(crate) host_keys: HostKeyArgs,
}

/// `tensorboard`.
#[derive(Debug, Args)]
pub(crate) struct TensorboardArgs {
    /// Runs: names, prefixes, `@last` or `NAME~1`
    #[arg(value_name = "RUN", default_value = LAST)]
    pub(crate) runs: Vec<String>,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
    #[command(flatten)]
    pub(crate) host_keys: HostKeyArgs,
    /// Arguments for TensorBoard (`-- --port 6007`)
    #[arg(last = true, value_name = "ARG")]
    pub(crate) more: Vec<String>,
}

/// `compare`.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// Runs: names, prefixes, `@last`, `NAME~1` or directories
    ///
    /// A sweep, or a single prefix, selects all of its runs. If there are several prefixes, each selects its newest
    /// run.
    #[arg(value_name = "RUN", default_value = LAST)]
    pub(crate) runs: Vec<String>,
    /// Show only this series (`charts/SPS`)
    ///
    /// Can be repeated. By default, the terminal shows the first two series; --svg, --png and --csv include all.
    #[arg(long, value_name = "NAME")]
    pub(crate) series: Vec<String>,
    /// X axis
    #[arg(long, value_name = "AXIS", value_parser = ["steps", "time"], default_value = "steps")]
    pub(crate) x: String,
    /// Smoothing weight, as in TensorBoard (0 to 0.999)
    #[arg(long, value_name = "WEIGHT", default_value_t = 0.0, value_parser = parse_weight)]
    pub(crate) smooth: f64,
    /// Use logarithmic y axes
    #[arg(long)]
    pub(crate) log: bool,
    /// Do not group runs that differ only by seed
    #[arg(long)]
    pub(crate) apart: bool,
    /// Also write the charts as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Also write the charts as PNG
    #[arg(long, value_name = "FILE")]
    pub(crate) png: Option<PathBuf>,
    /// Also write the points of the charts as CSV
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Overwrite existing files
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
}

/// `diff`.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// Run: name, prefix, `@last`, `NAME~1` or its directory
    #[arg(value_name = "RUN_A")]
    pub(crate) run: String,
    /// Run to compare it with
    #[arg(value_name = "RUN_B", required_unless_present = "ranks", conflicts_with = "ranks")]
    pub(crate) other: Option<String>,
    /// Compare two ranks of RUN_A
    #[arg(long, value_name = "RANK,RANK", value_parser = parse_rank_pair)]
    pub(crate) ranks: Option<(u32, u32)>,
    /// Compare only what the runs recorded
    ///
    /// By default, both executions are repeated on this machine from their last equal checkpoint, to find the first
    /// operation that differs. Only runs on CPUs with RL environments of the trainer itself can be repeated.
    #[arg(long)]
    pub(crate) no_replay: bool,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
    #[command(flatten)]
    pub(crate) host_keys: HostKeyArgs,
}

/// `mlflow`.
#[derive(Debug, Args)]
pub(crate) struct MlflowArgs {
    /// Runs: names, prefixes, `@last`, `NAME~1` or directories
    #[arg(value_name = "RUN", default_value = LAST)]
    pub(crate) runs: Vec<String>,
    /// Store directory, for `mlflow ui --backend-store-uri DIR`
    #[arg(long, alias = "output", value_name = "DIR", default_value = "mlruns")]
    pub(crate) into: PathBuf,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
}

/// `eval`.
#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    /// Checkpoint: RUN[:latest|:best|:ITERATION], or a path
    ///
    /// A path refers to a file on this machine.
    #[arg(value_name = "RUN[:CHECKPOINT]|PATH", default_value = LAST)]
    pub(crate) policy: String,
    /// Number of episodes [default: `eval.episodes` of the run]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) episodes: Option<u32>,
    #[command(flatten)]
    pub(crate) actions: ActionArgs,
    #[command(flatten)]
    pub(crate) worker: WorkerArgs,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
    #[command(flatten)]
    pub(crate) host_keys: HostKeyArgs,
}

/// How a policy acts.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ActionArgs {
    /// Take the best actions [default: `eval.greedy` of the run]
    #[arg(long, conflicts_with = "sample")]
    pub(crate) greedy: bool,
    /// Act as in training (`eval.greedy = false`)
    #[arg(long)]
    pub(crate) sample: bool,
}

impl ActionArgs {
    /// Returns the trainer's flags for it.
    pub(crate) fn flags(&self) -> impl Iterator<Item = &'static str> {
        [(self.greedy, "--greedy"), (self.sample, "--sample")]
            .into_iter()
            .filter_map(|(set, flag)| set.then_some(flag))
    }
}

/// What an RL environment of Python runs with. A checkpoint chooses neither.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct WorkerArgs {
    /// Python interpreter for RL environments written in Python
    ///
    /// Default: `env.python` of the run's experiment file on this machine, else python3.
    #[arg(long, value_name = "PYTHON")]
    pub(crate) python: Option<String>,
    /// Python module that registers the RL environment
    ///
    /// `MODULE` in `MODULE:Name-v0`. Can be repeated. Default: the module in the run's experiment file on this machine.
    #[arg(long, value_name = "MODULE")]
    pub(crate) env_module: Vec<String>,
}

/// What a policy is exported as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PolicyFormat {
    /// Weights by name, normalization moments and a description
    Safetensors,
    /// A program for `torch.jit.load`
    Torchscript,
    /// A graph for ONNX runtimes
    Onnx,
}

impl PolicyFormat {
    /// As it is typed.
    pub(crate) fn name(self) -> &'static str {
        match self {
            PolicyFormat::Safetensors => "safetensors",
            PolicyFormat::Torchscript => "torchscript",
            PolicyFormat::Onnx => "onnx",
        }
    }

    /// Ending of its files.
    pub(crate) fn ending(self) -> &'static str {
        match self {
            PolicyFormat::Torchscript => "pt",
            PolicyFormat::Safetensors | PolicyFormat::Onnx => self.name(),
        }
    }
}

/// `export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Checkpoint: RUN[:latest|:best|:ITERATION], or a path
    ///
    /// A path refers to a file on this machine.
    #[arg(value_name = "RUN[:CHECKPOINT]|PATH", default_value = LAST)]
    pub(crate) policy: String,
    /// Output format
    ///
    /// TorchScript and ONNX take raw observations and need PyTorch.
    #[arg(long, value_enum, default_value_t = PolicyFormat::Torchscript)]
    pub(crate) format: PolicyFormat,
    /// Output file [default: CHECKPOINT with the extension of the format]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long)]
    pub(crate) force: bool,
    /// Python interpreter with PyTorch [default: python3]
    #[arg(long, value_name = "PYTHON")]
    pub(crate) python: Option<String>,
    #[command(flatten)]
    pub(crate) print: PrintArgs,
    #[command(flatten)]
    pub(crate) host_keys: HostKeyArgs,
}

/// How runs are removed.
#[derive(Debug, Args)]
pub(crate) struct RemovalArgs {
    /// Also remove the run's results, fetched or not
    ///
    /// Without it, a run whose checkpoints were not fetched is kept, and so are files that its ranks wrote in
    /// their working directory. Files in your own directory are never removed.
    #[arg(long)]
    pub(crate) with_results: bool,
    /// Show what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Skip the confirmation prompt
    #[arg(long, short = 'y')]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
    #[command(flatten)]
    pub(crate) host_keys: HostKeyArgs,
}

/// `rm`.
#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    /// Runs: names, unique prefixes or `NAME~1`
    ///
    /// A sweep name removes all of the sweep's runs and its results table.
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<String>,
    #[command(flatten)]
    pub(crate) removal: RemovalArgs,
}

/// `prune`.
#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    /// Remove runs that ended more than TIME ago (`30d`, `12h`)
    ///
    /// With --keep, a run must match both. At least one of the two is required.
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    pub(crate) older_than: Option<f64>,
    /// Keep the N newest finished runs
    #[arg(long, value_name = "N")]
    pub(crate) keep: Option<usize>,
    #[command(flatten)]
    pub(crate) removal: RemovalArgs,
}

/// `logs`.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// Run: name, prefix, `@last` or `NAME~1` [default: the newest]
    pub(crate) run: Option<String>,
    /// Only this rank
    #[arg(long, value_name = "N")]
    pub(crate) rank: Option<u32>,
    /// Follow: print new lines as they arrive
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Start with the last LINES lines of each rank
    #[arg(long, short = 'n', value_name = "LINES", default_value_t = 1000)]
    pub(crate) tail: u32,
    /// Search the logs of all hosts and generations (regex, smart case)
    ///
    /// A pattern without uppercase letters matches in any case. Not with --follow.
    #[arg(long, short = 'e', value_name = "PATTERN", conflicts_with = "follow")]
    pub(crate) grep: Option<String>,
    /// Only lines after TIME (`10m` ago, `03:12`, `2026-11-23 03:12`)
    ///
    /// Not with --follow.
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "follow")]
    pub(crate) since: Option<f64>,
    /// Only lines before TIME
    ///
    /// Not with --follow.
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "follow")]
    pub(crate) until: Option<f64>,
    /// Print the time of each line, by its host's clock
    #[arg(long, short)]
    pub(crate) times: bool,
    /// Lines of context around each match
    #[arg(long, short = 'C', value_name = "LINES", default_value_t = 0, requires = "grep")]
    pub(crate) context: u32,
    /// Only this generation
    ///
    /// Not with --follow.
    #[arg(long, value_name = "N", conflicts_with = "follow")]
    pub(crate) generation: Option<u32>,
    /// When searching, print at most the newest LINES lines per host
    ///
    /// Applies with --grep, --since, --until or --generation.
    #[arg(long, value_name = "LINES", default_value_t = 1000)]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
    #[command(flatten)]
    pub(crate) host_keys: HostKeyArgs,
}

/// `report`.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Run: name, prefix, `@last`, `NAME~1` or directory
    #[arg(value_name = "RUN|PATH", default_value = LAST)]
    pub(crate) what: String,
    /// Output file: .md for Markdown, - for Markdown to stdout, else HTML
    ///
    /// Default: RUN.html in this directory.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) print: PrintArgs,
}

/// `replay`.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// Run: name, prefix, `@last`, `NAME~1` or directory
    #[arg(value_name = "RUN|PATH", default_value = LAST)]
    pub(crate) what: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// How images of RL environments are drawn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Pictures {
    /// Detect from the terminal
    #[default]
    Auto,
    /// kitty graphics protocol
    Kitty,
    /// iTerm2 inline images
    Iterm2,
    /// Sixel
    Sixel,
    /// Half-block characters
    Blocks,
}

impl Pictures {
    /// The protocol, `None` for characters.
    pub(crate) fn graphics(self) -> Option<Graphics> {
        match self {
            Pictures::Auto => Graphics::here(),
            Pictures::Kitty => Some(Graphics::Kitty),
            Pictures::Iterm2 => Some(Graphics::Iterm2),
            Pictures::Sixel => Some(Graphics::Sixel),
            Pictures::Blocks => None,
        }
    }
}

/// `play`.
#[derive(Debug, Args)]
pub(crate) struct PlayArgs {
    /// Checkpoint: RUN[:latest|:best|:ITERATION], or a path
    ///
    /// A path refers to a file on this machine.
    #[arg(value_name = "RUN[:CHECKPOINT]|PATH", default_value = LAST)]
    pub(crate) policy: String,
    /// Number of episodes
    ///
    /// Default: until you quit; 3 with --record; `eval.episodes` of the run with --headless.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) episodes: Option<u32>,
    #[command(flatten)]
    pub(crate) actions: ActionArgs,
    /// Save an animation to FILE instead of playing on screen
    ///
    /// .cast shows the whole screen (asciicast); .gif shows only the RL environment.
    #[arg(long, alias = "output", value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// Size of the animation in columns and rows
    #[arg(long, value_name = "COLUMNSxROWS", value_parser = parse_size, default_value = "80x24")]
    pub(crate) size: (u16, u16),
    /// How to draw RL environment images
    #[arg(long, value_enum, default_value_t = Pictures::Auto, value_name = "HOW")]
    pub(crate) pictures: Pictures,
    /// Overwrite an existing file
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) worker: WorkerArgs,
    /// Color theme [default: ui.toml, then RANKDECK_THEME, then the terminal]
    #[arg(long, value_name = "NAME", value_parser = ["auto", "dark", "light", "mono", "cvd"])]
    pub(crate) theme: Option<String>,
    /// Glyph set [default: ui.toml, then RANKDECK_GLYPHS, then the locale]
    #[arg(long, value_name = "NAME", value_parser = ["auto", "braille", "block", "ascii"])]
    pub(crate) glyphs: Option<String>,
    #[command(flatten)]
    pub(crate) output: PrintArgs,
    #[command(flatten)]
    pub(crate) host_keys: HostKeyArgs,
}
