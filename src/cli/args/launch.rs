//! Arguments of the commands that launch a run, or prepare a launch: `run`, `sbatch`, `check`, `push`,
//! `init`.

use super::values::{parse_set, parse_until};
use super::{EXIT_CODES, HostKeyArgs, OutputArgs, SubjectArgs};
use crate::cli::axes::{self, Axis, Seeds};
use crate::cli::checkpoint_source::{self, Source};
use clap::{ArgGroup, Args};
use rankdeck_types::plan::Until;
use std::path::PathBuf;

/// What has no meaning for a sweep.
const ALONE: [&str; 5] = ["json", "detach", "until", "from", "carry_on"];

/// `run`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES, group = ArgGroup::new("several").args(["seeds", "sweep", "cells"]).multiple(true))]
pub struct RunArgs {
    #[command(flatten)]
    pub subject: SubjectArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub host_keys: HostKeyArgs,
    /// Change a key of the experiment, such as `learn.gamma=0.98`, or remove one: `~eval.stop_value`; may be
    /// repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_set)]
    pub set: Vec<String>,
    /// Stop cleanly at `steps=N`, `iters=N`, `evals=N` or `seconds=N`; may be repeated.
    #[arg(long, value_name = "KIND=N", value_parser = parse_until)]
    pub until: Vec<Until>,
    /// Leave as soon as every rank is in the process group; the run goes on.
    #[arg(long)]
    pub detach: bool,
    /// Begin from a checkpoint of an earlier run: `RUN` or `RUN:latest`, `RUN:best`, `RUN:ITERATION`, or a
    /// path on rank 0's host.
    #[arg(long, value_name = "RUN[:CHECKPOINT]|PATH", value_parser = checkpoint_source::parse)]
    pub from: Option<Source>,
    /// Begin from the latest checkpoint of this experiment's newest run, or from the beginning when there is
    /// none.
    #[arg(long = "continue", conflicts_with = "from")]
    pub carry_on: bool,
    /// Name of the run instead of the experiment's `run.name`.
    #[arg(long)]
    pub name: Option<String>,
    /// What the run is for, in your own words (`run.note`); `rankdeck ps` shows it.
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    /// One run per seed: `1..10` or `1,2,5`. Shown by `rankdeck queue`, as all sweeps.
    #[arg(long, value_name = "SEEDS", value_parser = axes::parse_seeds, conflicts_with_all = ALONE)]
    pub seeds: Option<Seeds>,
    /// One run per value, such as `learn.learning_rate=1e-4,3e-4`; of several keys, per combination.
    #[arg(long, value_name = "KEY=VALUES", value_parser = axes::parse_axis, conflicts_with_all = ALONE)]
    pub sweep: Vec<Axis>,
    /// One run per line of this file, each `KEY=VALUE KEY=VALUE`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ALONE)]
    pub cells: Option<PathBuf>,
    /// Only this many combinations, drawn at random.
    #[arg(long, value_name = "N", requires = "several")]
    pub random: Option<usize>,
    /// Hosts for each run of a sweep, so that several go on at once; default: all.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "several")]
    pub hosts_per_run: Option<u32>,
    /// GPUs for each run of a sweep, all of one host: as many runs at once as hosts have free GPUs. A GPU is
    /// free when less than a tenth of its memory is in use; while runs wait, GPUs that others leave count.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), conflicts_with = "hosts_per_run",
          requires = "several")]
    pub gpus_per_run: Option<u32>,
    /// Runs of a sweep on each host at once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024),
          conflicts_with_all = ["hosts_per_run", "gpus_per_run"], requires = "several")]
    pub runs_per_host: Option<u32>,
    /// Exclude this host; `rankdeck restart --add` can add it later; may be repeated.
    #[arg(long, value_name = "HOST")]
    pub exclude: Vec<String>,
}

/// `sbatch`.
#[derive(Debug, Clone, Args)]
pub struct SbatchArgs {
    /// The experiment.
    #[arg(value_name = "EXPERIMENT.toml", required_unless_present = "rest")]
    pub experiment: Option<PathBuf>,
    /// With an experiment: options of sbatch, such as `-- --partition=gpu --account lab`. Without one: a
    /// program, such as `-- python train.py`, or options and then the program:
    /// `-- --partition=gpu -- python train.py`.
    #[arg(last = true, value_name = "OPTIONS|COMMAND")]
    pub rest: Vec<String>,
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
    /// Submit the job again when its time limit stops it; it goes on from its latest checkpoint.
    #[arg(long)]
    pub requeue: bool,
    /// Show the script; submit nothing.
    #[arg(long)]
    pub dry_run: bool,
}

/// `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub subject: SubjectArgs,
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
    pub host_keys: HostKeyArgs,
}

/// `init`.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// Hosts as SSH destinations, such as `gpu-a` or `me@10.0.0.1:2222`; default: this machine. What is a
    /// file, or ends in `.py` or `.sh`, is the script; default: the one in this folder that looks like it.
    #[arg(value_name = "HOST|SCRIPT")]
    pub given: Vec<String>,
    /// The script, where its name could be that of a host.
    #[arg(long, value_name = "FILE")]
    pub script: Option<PathBuf>,
    /// Write over files that are there.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub host_keys: HostKeyArgs,
}
