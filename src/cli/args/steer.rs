//! Arguments of the commands that watch and steer runs that are there: `home`, `attach`, `stop`, `restart`,
//! `status`, `export-metrics`, `ps`, `queue`.

use super::{EXIT_CODES, HostKeyArgs, OutputArgs};
use clap::Args;

/// `home`.
#[derive(Debug, Default, Args)]
pub struct HomeArgs {
    /// Colours of the screen; default: what `ui.toml` says, or by the terminal's background.
    #[arg(long, value_name = "NAME", value_parser = ["auto", "dark", "light", "mono", "cvd"])]
    pub theme: Option<String>,
    /// Characters of the screen; default: what `ui.toml` says, or by the locale.
    #[arg(long, value_name = "NAME", value_parser = ["auto", "braille", "block", "ascii"])]
    pub glyphs: Option<String>,
    /// The screen only shows: no key stops, removes or launches anything.
    #[arg(long)]
    pub read_only: bool,
}

/// `attach`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct AttachArgs {
    /// Which run, or the beginning of its name; default: the only one that runs.
    pub run: Option<String>,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
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
    pub host_keys: HostKeyArgs,
}

/// `restart`.
#[derive(Debug, Args)]
pub struct RestartArgs {
    /// Which run, or the beginning of its name; default: the only one that runs.
    pub run: Option<String>,
    /// Checkpoint to begin from: its iteration, `best`, `latest`, a path on rank 0's host, or `afresh`.
    /// Default: afresh for a run that goes on, `latest` with --set, --exclude or --add and for a run that is
    /// over.
    #[arg(long, value_name = "N|NAME|PATH")]
    pub from: Option<String>,
    /// Change a key of the run's experiment from now on, such as `learn.learning_rate=1e-4`; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = super::values::parse_set)]
    pub set: Vec<String>,
    /// Compare every collective of all ranks before it begins. Slower, but names the call where ranks first
    /// differ.
    #[arg(long, conflicts_with_all = ["exclude", "add", "set"])]
    pub check_collectives: bool,
    /// Go on without this host; may be repeated.
    #[arg(long, value_name = "HOST")]
    pub exclude: Vec<String>,
    /// Add this host of the hosts file; may be repeated.
    #[arg(long, value_name = "HOST")]
    pub add: Vec<String>,
    /// Do not ask before the run's command is started again on all hosts.
    #[arg(long, short = 'y')]
    pub yes: bool,
    #[command(flatten)]
    pub host_keys: HostKeyArgs,
}

/// `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Which run, or the beginning of its name; default: the only one that runs, else the newest.
    pub run: Option<String>,
    /// One line, for tmux, starship and other status bars; without any run an empty one.
    #[arg(long, conflicts_with = "json")]
    pub line: bool,
    /// One JSON object, as `ps --json` prints for each run.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub host_keys: HostKeyArgs,
}

/// `export-metrics`.
#[derive(Debug, Args)]
pub struct ExportMetricsArgs {
    /// Which run, or the beginning of its name; default: the only one that runs.
    pub run: Option<String>,
    /// Serve `GET /metrics` at this port of this machine, or at this address; without --textfile: 9464.
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = crate::shell::metrics::parse)]
    pub listen: Option<std::net::SocketAddr>,
    /// Write this file again and again, for the textfile collector of a node exporter: a name that ends with
    /// `.prom`. The last figures stay there when the run is over.
    #[arg(long, value_name = "FILE")]
    pub textfile: Option<std::path::PathBuf>,
    /// Seconds between two times that the file is written.
    #[arg(long, value_name = "SECONDS", default_value = "15", requires = "textfile",
          value_parser = super::values::parse_seconds)]
    pub every: f64,
    #[command(flatten)]
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
    pub host_keys: HostKeyArgs,
}

/// `queue`.
#[derive(Debug, Args)]
pub struct QueueArgs {
    /// Which sweep, or a part of its name; default: all.
    pub sweep: Option<String>,
    /// Go on with it: begin what waits, look at what runs, restart what was stopped.
    #[arg(long)]
    pub resume: bool,
    /// With --resume: also restart what failed, from its latest checkpoint.
    #[arg(long, requires = "resume")]
    pub failed: bool,
}
