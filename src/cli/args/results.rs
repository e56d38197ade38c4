//! Arguments of the commands about what runs leave behind: `logs`, `fetch`, `tensorboard`, `eval`,
//! `export`, `replay`, `report`, `compare`, `rm`, `prune`.

use super::values::{parse_age, parse_weight};
use super::{HostKeyArgs, OutputArgs};
use clap::Args;
use std::path::PathBuf;

/// `fetch`.
#[derive(Debug, Args)]
pub struct FetchArgs {
    /// Which run, or the beginning of its name.
    pub run: String,
    /// Which files: `*.safetensors`, `checkpoints/best.*`, `gen0/`. Default: all but the copies of the code.
    pub pattern: Option<String>,
    /// Folder for them; default: `runs/RUN/hosts`. Each host gets a folder there.
    #[arg(long, value_name = "DIR")]
    pub into: Option<PathBuf>,
    /// Copy nothing when more than this matches.
    #[arg(long, value_name = "GB", default_value_t = 4)]
    pub max_size_gb: u32,
    #[command(flatten)]
    pub host_keys: HostKeyArgs,
}

/// `tensorboard`.
#[derive(Debug, Args)]
pub struct TensorboardArgs {
    /// Which runs, or the beginnings of their names.
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<String>,
    #[command(flatten)]
    pub host_keys: HostKeyArgs,
    /// Arguments for TensorBoard, such as `-- --port 6007`.
    #[arg(last = true, value_name = "ARG")]
    pub more: Vec<String>,
}

/// `compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Which runs, or the beginnings of their names, or paths to their folders; of a sweep, all of its runs.
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<String>,
    /// Only this series, such as `charts/SPS`; may be repeated. Default: the first two are drawn, all are
    /// written.
    #[arg(long, value_name = "NAME")]
    pub series: Vec<String>,
    /// What the x axis counts.
    #[arg(long, value_name = "AXIS", value_parser = ["steps", "time"], default_value = "steps")]
    pub x: String,
    /// Smooth with this weight of the past, as TensorBoard does: 0 to 0.999.
    #[arg(long, value_name = "WEIGHT", default_value_t = 0.0, value_parser = parse_weight)]
    pub smooth: f64,
    /// Logarithmic y axes.
    #[arg(long)]
    pub log: bool,
    /// Every run for itself, also where runs differ in nothing but the seed.
    #[arg(long)]
    pub apart: bool,
    /// A line of JSON per run, with all its charts, and one about all of them.
    #[arg(long)]
    pub json: bool,
    /// Also write the charts as SVG.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Also write the charts as PNG.
    #[arg(long, value_name = "FILE")]
    pub png: Option<PathBuf>,
    /// Also write their points as CSV.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

/// `mlflow`.
#[derive(Debug, Args)]
pub struct MlflowArgs {
    /// Which runs, or the beginnings of their names, or paths to their folders.
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<String>,
    /// The store: the folder that `mlflow ui --backend-store-uri` gets.
    #[arg(long, value_name = "DIR", default_value = "mlruns")]
    pub into: PathBuf,
}

/// `eval`.
#[derive(Debug, Args)]
pub struct EvalArgs {
    /// Which checkpoint: `RUN` or `RUN:latest`, `RUN:best`, `RUN:ITERATION`, or a path on this machine.
    #[arg(value_name = "RUN[:CHECKPOINT]|PATH")]
    pub policy: String,
    /// How many episodes; default: the run's `eval.episodes`.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub episodes: Option<u32>,
    /// The interpreter for environments in Python; default: the run's `env.python`.
    #[arg(long, value_name = "PYTHON")]
    pub python: Option<String>,
    /// One JSON object on stdout and nothing else there.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub host_keys: HostKeyArgs,
}

/// What a policy is exported as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PolicyFormat {
    /// Weights by name, moments, description.
    Safetensors,
    /// A program for `torch.jit.load`.
    Torchscript,
    /// A graph for ONNX runtimes.
    Onnx,
}

impl PolicyFormat {
    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            PolicyFormat::Safetensors => "safetensors",
            PolicyFormat::Torchscript => "torchscript",
            PolicyFormat::Onnx => "onnx",
        }
    }

    /// Ending of its files.
    pub fn ending(self) -> &'static str {
        match self {
            PolicyFormat::Torchscript => "pt",
            PolicyFormat::Safetensors | PolicyFormat::Onnx => self.name(),
        }
    }
}

/// `export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Which policy: `RUN` or `RUN:latest`, `RUN:best`, `RUN:ITERATION`, or a path on this machine.
    #[arg(value_name = "RUN[:CHECKPOINT]|PATH")]
    pub policy: String,
    /// As what. TorchScript and ONNX are made by PyTorch and take observations as the environment gives them.
    #[arg(long, value_enum, default_value_t = PolicyFormat::Torchscript)]
    pub format: PolicyFormat,
    /// The file; default: `CHECKPOINT.pt` and the like in this folder.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Replace a file that is there.
    #[arg(long)]
    pub force: bool,
    /// An interpreter with PyTorch; default: `python3`.
    #[arg(long, value_name = "PYTHON")]
    pub python: Option<String>,
    #[command(flatten)]
    pub host_keys: HostKeyArgs,
}

/// How runs are removed.
#[derive(Debug, Args)]
pub struct RemovalArgs {
    /// Only say what would be freed.
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask.
    #[arg(long, short = 'y')]
    pub yes: bool,
    #[command(flatten)]
    pub host_keys: HostKeyArgs,
}

/// `rm`.
#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// Which runs, or the beginnings of their names; of a sweep, all of its runs and its table.
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<String>,
    #[command(flatten)]
    pub removal: RemovalArgs,
}

/// `prune`.
#[derive(Debug, Args)]
pub struct PruneArgs {
    /// Runs that ended before this: `30d`, `12h`.
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    pub older_than: Option<f64>,
    /// All but this many of the newest runs that are over.
    #[arg(long, value_name = "N")]
    pub keep: Option<usize>,
    #[command(flatten)]
    pub removal: RemovalArgs,
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
    /// Look for this regular expression in everything that the hosts keep, all generations, and print the
    /// lines that match. Without capital letters, it matches in any case.
    #[arg(long, short = 'e', value_name = "PATTERN", conflicts_with = "follow")]
    pub grep: Option<String>,
    /// Only lines from then on, of all that the hosts keep: `10m` (ago), `03:12`, `2026-11-23 03:12`.
    #[arg(long, value_name = "TIME", value_parser = super::moment::parse, conflicts_with = "follow")]
    pub since: Option<f64>,
    /// Only lines up to then.
    #[arg(long, value_name = "TIME", value_parser = super::moment::parse, conflicts_with = "follow")]
    pub until: Option<f64>,
    /// Print when each line was read, by its host's clock.
    #[arg(long, short)]
    pub times: bool,
    /// With --grep: also print so many lines around each.
    #[arg(long, short = 'C', value_name = "LINES", default_value_t = 0, requires = "grep")]
    pub context: u32,
    /// Only this generation, of all that the hosts keep.
    #[arg(long, value_name = "N", conflicts_with = "follow")]
    pub generation: Option<u32>,
    /// With --grep, --since, --until or --generation: most lines of each host; the newest are printed.
    #[arg(long, value_name = "LINES", default_value_t = 1000)]
    pub limit: u32,
    #[command(flatten)]
    pub host_keys: HostKeyArgs,
}

/// `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// A run in `runs/`, the beginning of its name, or a path to its folder.
    #[arg(value_name = "RUN|PATH")]
    pub what: Option<String>,
    /// The file to write; `.md` for Markdown, anything else for HTML; `-` for stdout (Markdown). Default:
    /// RUN.html in this folder.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// A run in `runs/`, the beginning of its name, or a path to its folder.
    #[arg(value_name = "RUN|PATH")]
    pub what: Option<String>,
    #[command(flatten)]
    pub output: OutputArgs,
}
