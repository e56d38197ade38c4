//! The command line: commands, options and their help texts. Parsing only; nothing is opened here.
//!
//! Doc comments are the text of `--help`: the first line is an imperative of at most 72 characters without a
//! period; details follow after a blank line. Examples, and the groups of `rankdeck --help`, are in [`help`].
//!
//! Command lines as Python and torchrun take them: `rankdeck run --nproc 2 train.py --lr 3e-4`.
//!
//! The first word that is neither an option of rankdeck's nor an experiment file is the program. It gets the `--`
//! that separates it from rankdeck's own options: all words behind it are the program's.

mod commands;
pub(crate) mod help;
pub(crate) mod promises;
pub(crate) mod values;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
pub(crate) use commands::{
    AddArgs, AttachArgs, CheckArgs, CompareArgs, DemoArgs, DiffArgs, DrillArgs, DrillCase, EvalArgs,
    ExplainArgs, ExportArgs, ExportMetricsArgs, FetchArgs, GpusArgs, HomeArgs, InitArgs, LogsArgs,
    MlflowArgs, PlayArgs, PolicyFormat, PruneArgs, PsArgs, PushArgs, QueueArgs, RemovalArgs, RemoveArgs,
    ReplayArgs, ReportArgs, RestartArgs, RunArgs, SbatchArgs, SimulateArgs, StatusArgs, StopArgs,
    TensorboardArgs, WaitArgs, WorkerArgs,
};
use rankdeck_types::command::{LAUNCHERS, file_name, is_python, is_shell_script};
use rankdeck_types::host::GpuSelection;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const EXIT_CODES: &str = "Exit codes:
  0    the run succeeded or reached its --until limit, or you detached from it
  1    the run or the command failed
  2    invalid usage or configuration
  3    a host failed a preflight check or is unreachable
  4    ranks were stuck: `watch.on_stuck` stopped the run, or --until was reached
  130  interrupted and stopped cleanly
  137  stopped, but ranks had to be killed (unsaved progress may be lost)";

/// Launch, watch and debug multi-node PyTorch training over SSH
///
/// Runs your own torchrun-style script or the built-in RL trainer.
#[derive(Debug, Parser)]
#[command(name = "rankdeck", version = env!("RANKDECK_VERSION"), about, after_help = EXIT_CODES, max_term_width = 110)]
#[command(disable_help_subcommand = true)]
pub struct Cli {
    /// Hosts file, or SSH destinations in node-rank order (`a,me@b:2222`)
    ///
    /// Default: `./hosts.toml`, then $RANKDECK_HOSTS, then `hosts.toml` in an enclosing directory of the Git
    /// repository, then `~/.config/rankdeck/hosts.toml`.
    #[arg(long, global = true, value_name = "FILE|HOST,HOST", help_heading = "Hosts")]
    pub(crate) hosts: Option<String>,
    /// Use the nodes of the current Slurm allocation, or of a running job
    ///
    /// Without JOB, and outside an allocation, commands on existing runs use the nodes of your `rankdeck sbatch`
    /// jobs. So do commands without any configured hosts. `[defaults]` from the hosts file still apply.
    #[arg(long, global = true, value_name = "JOB", num_args = 0..=1, require_equals = true,
          default_missing_value = "", help_heading = "Hosts")]
    pub(crate) slurm: Option<String>,
    /// Command to run
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Open the home screen (the default)
    ///
    /// Shows runs, experiments and hosts.
    Home(HomeArgs),
    /// Try rankdeck on a simulated cluster
    ///
    /// Needs no hosts and no trainer. F2 to F7 inject faults. Nothing is kept when it ends.
    Demo(DemoArgs),
    /// Launch an experiment, or any command, on all hosts
    ///
    /// Runs the preflight checks, copies the code, starts one process per rank and shows the run. With
    /// --seeds, --sweep or --cells, launches one run per combination.
    #[command(alias = "launch")]
    Run(Box<RunArgs>),
    /// Inject faults into short runs to test detection and recovery
    ///
    /// Launches one run per case and injects a fault into it. Checks that a verdict names the fault, and how fast, that
    /// the latest checkpoint is kept, and that no process is left. Your program runs in a copy of its code, with
    /// RANKDECK_DRILL=1 and WANDB_MODE=offline.
    Drill(Box<DrillArgs>),
    /// Attach to a running or finished run
    Attach(AttachArgs),
    /// Stop a run and verify that nothing is left running
    ///
    /// Asks the ranks to save a checkpoint and exit (a script gets `rankdeck.should_stop()`, SIGTERM or SIGINT).
    /// Each host then scans for leftover processes; `stop verified` is printed only if every host finds none.
    Stop(StopArgs),
    /// Restart from a checkpoint or from scratch
    ///
    /// Stops the run first if it is still running. A finished run is started again as a new generation.
    #[command(visible_alias = "resume")]
    Restart(RestartArgs),
    /// Start a lost rank again, which joins the running ranks
    ///
    /// For runs that continue without a rank (`distributed.on_rank_loss = "shrink"`). The rank starts on its host with
    /// the settings of the launch and gets weights and counters from the others. Nothing is stopped. To add a host, use
    /// `rankdeck restart --add HOST`.
    Add(AddArgs),
    /// Wait until a run has ended, and exit with its code
    ///
    /// Does not affect the run. A run has ended when none of its processes is left on its hosts.
    Wait(WaitArgs),
    /// List runs and leftover processes on all hosts
    #[command(visible_alias = "ls", alias = "list")]
    Ps(PsArgs),
    /// List the processes that hold GPUs, and end leftovers
    ///
    /// Lists, on all hosts, every process that holds a GPU, its memory or files in /dev/shm, and every
    /// leftover of a run:
    ///
    /// leftover    proved by a run's tag, control group or journal; the run has no live agent
    /// unproven    holds a GPU, and has no parent but init, no login session and no Slurm job
    /// in_use      belongs to a live process, login session or job
    /// other_user  another user's process; only what you may read of it is shown
    ///
    /// Only leftovers and unproven processes can be ended.
    #[command(verbatim_doc_comment)]
    Gpus(GpusArgs),
    /// Show a run's progress
    Status(StatusArgs),
    /// Export a run's metrics to Prometheus
    ///
    /// Serves them over HTTP or writes a textfile until the run ends. The run is not affected.
    ExportMetrics(ExportMetricsArgs),
    /// List sweeps, or continue one
    Queue(QueueArgs),
    /// Copy a run's files to this machine
    ///
    /// An interrupted copy continues where it stopped.
    Fetch(FetchArgs),
    /// Open runs in TensorBoard
    ///
    /// Copies their event files to this machine first.
    Tensorboard(TensorboardArgs),
    /// Evaluate a checkpoint on this machine
    ///
    /// Copies it from the run's host if needed.
    Eval(EvalArgs),
    /// Show a policy playing, or save it as an animation
    Play(Box<PlayArgs>),
    /// Export a policy to TorchScript, ONNX or safetensors
    Export(ExportArgs),
    /// Remove finished runs from their hosts and from here
    Rm(RemoveArgs),
    /// Remove old finished runs from their hosts and from here
    Prune(PruneArgs),
    /// Submit an experiment as a Slurm batch job
    ///
    /// --hosts FILE provides only `[defaults]`: the nodes come from Slurm.
    Sbatch(SbatchArgs),
    /// Check hosts and configuration without launching your program
    ///
    /// On each host, runs the `prelude` from hosts.toml and starts the Python interpreter that your command
    /// would use.
    Check(CheckArgs),
    /// Upload what runs need to all hosts ahead of time
    ///
    /// Uploads the agent and, unless the experiment has its own command, the built-in trainer.
    Push(PushArgs),
    /// Generate hosts.toml and an experiment file for a script
    ///
    /// Detects GPUs and Python on the hosts, and the metrics that your script logs.
    Init(InitArgs),
    /// Print the JSON Schema of a file format or of --json
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
    /// Find where runs differ: first iteration, tensor, operation
    ///
    /// For the built-in trainer. Exits with 0 if everything recorded is equal and with 1 if something differs.
    Diff(DiffArgs),
    /// Export recorded runs to an MLflow file store
    Mlflow(MlflowArgs),
    /// Explain a verdict's reason code and how to fix it
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
    /// Topics:
    ///
    /// env         environment variables of rankdeck and of the ranks
    /// exit-codes  meanings of the exit codes
    /// files       files on this machine and on the hosts
    /// hosts       where hosts come from, and hosts.toml
    /// json        the lines of --json
    /// keys        key bindings of the run screen
    /// promises    features that depend on your program
    /// resume      restarts and checkpoints
    /// runs        names of runs, waiting, cron and systemd
    /// slurm       batch jobs and allocations
    /// sweep       seeds and sweeps
    /// terms       terms that rankdeck uses
    #[command(verbatim_doc_comment)]
    Help {
        /// Topic or command [default: rankdeck itself]
        #[arg(value_name = "TOPIC|COMMAND", hide_possible_values = true)]
        subject: Option<String>,
    },
    /// Kill a run: `rankdeck stop --kill`
    #[command(hide = true)]
    Kill(StopArgs),
    /// Print the version: `rankdeck --version`
    #[command(hide = true)]
    Version,
    /// Show a simulated run without hosts or a trainer
    #[command(hide = true)]
    Simulate(SimulateArgs),
}

impl CliCommand {
    /// How a command without a screen of a run prints.
    pub(crate) fn printing(&self) -> Option<PrintArgs> {
        Some(match self {
            CliCommand::Stop(args) | CliCommand::Kill(args) => args.output,
            CliCommand::Restart(args) => args.output,
            CliCommand::Add(args) => args.output,
            CliCommand::Wait(args) => args.output,
            CliCommand::Ps(args) => args.output,
            CliCommand::Gpus(args) => args.output,
            CliCommand::Status(args) => args.output,
            CliCommand::ExportMetrics(args) => args.output,
            CliCommand::Queue(args) => args.output,
            CliCommand::Fetch(args) => args.output,
            CliCommand::Tensorboard(args) => args.output,
            CliCommand::Eval(args) => args.output,
            CliCommand::Play(args) => args.output,
            CliCommand::Export(args) => args.print,
            CliCommand::Rm(args) => args.removal.output,
            CliCommand::Prune(args) => args.removal.output,
            CliCommand::Sbatch(args) => args.output,
            CliCommand::Check(args) => args.output,
            CliCommand::Drill(args) => args.output,
            CliCommand::Push(args) => args.output,
            CliCommand::Init(args) => args.output,
            CliCommand::Logs(args) => args.output,
            CliCommand::Report(args) => args.print,
            CliCommand::Compare(args) => args.output,
            CliCommand::Diff(args) => args.output,
            CliCommand::Mlflow(args) => args.output,
            CliCommand::Explain(args) => args.output,
            CliCommand::Home(_)
            | CliCommand::Demo(_)
            | CliCommand::Run(_)
            | CliCommand::Attach(_)
            | CliCommand::Replay(_)
            | CliCommand::Simulate(_)
            | CliCommand::Schema { .. }
            | CliCommand::Client
            | CliCommand::Completions { .. }
            | CliCommand::Man { .. }
            | CliCommand::Help { .. }
            | CliCommand::Version => return None,
        })
    }
}

/// The experiment or the command to run.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SubjectArgs {
    /// Experiment file
    #[arg(value_name = "EXPERIMENT.toml", required_unless_present = "command")]
    pub(crate) experiment: Option<PathBuf>,
    /// Command to run on every rank, without an experiment file
    ///
    /// Example: `-- python train.py --lr 3e-4`. On SSH hosts, the current directory is uploaded. `--` may be left
    /// out: `train.py --lr 3e-4` runs with python3.
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "experiment")]
    pub(crate) command: Vec<String>,
    /// Ranks per host [default: hosts file, else one per GPU, else 1]
    #[arg(long, alias = "nproc-per-node", alias = "nproc_per_node", value_name = "N", help_heading = "Hosts",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) nproc: Option<u32>,
    /// GPU indices as in `nvidia-smi`, or `all` [default: hosts file]
    #[arg(long, value_name = "N,N|all", value_parser = values::parse_gpus, help_heading = "Hosts")]
    pub(crate) gpus: Option<GpuSelection>,
    /// Run `torchrun` and other launchers as they are, as one rank per host
    ///
    /// Otherwise their command lines are translated: rankdeck starts the ranks itself.
    #[arg(long)]
    pub(crate) keep_launcher: bool,
    /// Virtual environment to activate on every host [default: hosts file]
    ///
    /// Relative paths start at the host's `workdir`.
    #[arg(long, value_name = "DIR")]
    pub(crate) venv: Option<String>,
    /// Set a variable of the ranks (`launch.env`)
    ///
    /// Can be repeated. `${NAME}` in VALUE is this console's variable.
    #[arg(long, value_name = "NAME=VALUE", value_parser = values::parse_env)]
    pub(crate) env: Vec<String>,
}

impl SubjectArgs {
    /// Returns the overrides that these options stand for.
    pub(crate) fn sets(&self) -> Vec<String> {
        let keep = self.keep_launcher.then(|| "launch.keep_launcher=true".to_owned());
        self.env.iter().cloned().chain(keep).collect()
    }
}

/// How a run is shown.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct OutputArgs {
    /// Exit when the run ends instead of waiting for `q`
    #[arg(long, help_heading = "Output")]
    pub(crate) exit: bool,
    /// Print lines and accept no commands (default without a terminal)
    #[arg(long, help_heading = "Output")]
    pub(crate) headless: bool,
    /// Like --headless, but accept typed commands
    ///
    /// For screen readers and terminals that cannot move a cursor. `help` lists the commands.
    #[arg(long, conflicts_with_all = ["headless", "json", "quiet"], help_heading = "Output")]
    pub(crate) linear: bool,
    /// Color theme [default: ui.toml, then RANKDECK_THEME, then the terminal]
    #[arg(long, value_name = "NAME", help_heading = "Output", value_parser = ["auto", "dark", "light", "mono", "cvd"])]
    pub(crate) theme: Option<String>,
    /// Glyph set [default: ui.toml, then RANKDECK_GLYPHS, then the locale]
    #[arg(long, value_name = "NAME", help_heading = "Output", value_parser = ["auto", "braille", "block", "ascii"])]
    pub(crate) glyphs: Option<String>,
    /// Disable all key bindings that change the run
    #[arg(long, help_heading = "Output")]
    pub(crate) read_only: bool,
    /// Write JSON Lines to stdout (implies --headless)
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Serve Prometheus metrics at `/metrics` [default address: 127.0.0.1]
    #[arg(long, alias = "listen", value_name = "[ADDRESS:]PORT", help_heading = "Output",
          value_parser = crate::app::metrics::parse)]
    pub(crate) metrics: Option<std::net::SocketAddr>,
    /// Also print the ranks' log lines (not on the full screen)
    #[arg(long, conflicts_with = "json", help_heading = "Output")]
    pub(crate) logs: bool,
    /// Print only the start, problems and the outcome
    #[arg(long, conflicts_with = "logs", help_heading = "Output")]
    pub(crate) quiet: bool,
    /// Minimum seconds between lines of progress and of metrics
    #[arg(long, value_name = "SECONDS", value_parser = values::parse_seconds, help_heading = "Output")]
    pub(crate) every: Option<f64>,
}

/// How a command without a screen prints.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct PrintArgs {
    /// Write JSON Lines to stdout
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Print only problems and the outcome
    #[arg(long, help_heading = "Output")]
    pub(crate) quiet: bool,
    /// Print lines: no lists and no prompts (default without a terminal)
    #[arg(long, help_heading = "Output")]
    pub(crate) headless: bool,
}

/// Which host keys are accepted.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct HostKeyArgs {
    /// Accept and save unknown SSH host keys; still reject changed ones
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
    /// Settings of the console: ui.toml
    Ui,
    /// Lines of the --json output
    Events,
}

/// Commands that take a program.
const COMMANDS: [&str; 4] = ["run", "check", "drill", "sbatch"];
/// Programs that are taken for one wherever they are: the hosts have them.
const KNOWN: [&str; 9] = ["bash", "sh", "uv", "conda", "mamba", "micromamba", "poetry", "env", "nohup"];

/// Returns the words with `--` before the program, and its interpreter if it is a script.
pub fn with_separator(argv: Vec<OsString>, cli: &clap::Command) -> Vec<OsString> {
    let Some((at, interpreter)) = place_of(&argv, cli) else { return argv };
    let mut words = argv;
    let program = words.split_off(at);
    words.push("--".into());
    words.extend(interpreter.map(OsString::from));
    words.extend(program);
    words
}

/// Returns where the program begins, and the interpreter to put before it.
fn place_of(argv: &[OsString], cli: &clap::Command) -> Option<(usize, Option<&'static str>)> {
    let at = next_word(argv, 1, &[cli])?;
    let name = argv.get(at)?.to_str()?;
    let command = cli
        .get_subcommands()
        .find(|command| command.get_name() == name || command.get_all_aliases().any(|alias| alias == name))?;
    if !COMMANDS.contains(&command.get_name()) {
        return None;
    }
    let at = next_word(argv, at + 1, &[command, cli])?;
    // Behind `--` are options of sbatch.
    let is_taken = command.get_name() == "sbatch" && argv[at..].iter().any(|word| word == "--");
    (!is_taken).then(|| Some((at, interpreter_of(argv.get(at)?.to_str()?)?))).flatten()
}

/// Returns the index of the first word that is neither an option nor its value; `None` if there is none, or if the
/// user has separated the program.
fn next_word(argv: &[OsString], from: usize, commands: &[&clap::Command]) -> Option<usize> {
    let mut at = from;
    loop {
        let word = argv.get(at)?.to_string_lossy().into_owned();
        if word == "--" {
            return None;
        }
        if word.len() < 2 || !word.starts_with('-') {
            return Some(at);
        }
        let has_value = !word.contains('=')
            && commands.iter().flat_map(|command| command.get_arguments()).any(|arg| takes(arg, &word));
        at += if has_value { 2 } else { 1 };
    }
}

/// Whether this option takes its value from the next word.
fn takes(arg: &clap::Arg, word: &str) -> bool {
    let is_named = match word.strip_prefix("--") {
        Some(name) => {
            arg.get_long() == Some(name)
                || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
        }
        None => word.chars().count() == 2 && arg.get_short() == word.chars().nth(1),
    };
    is_named && arg.get_action().takes_values() && !arg.is_require_equals_set()
}

/// Returns the interpreter of a program, if it needs one; `None` if it is not a program.
fn interpreter_of(word: &str) -> Option<Option<&'static str>> {
    if word.ends_with(".py") {
        return Some(Some("python3"));
    }
    if is_shell_script(word) {
        return Some(Some("bash"));
    }
    let name = file_name(word);
    let is_known = is_python(word) || LAUNCHERS.contains(&name) || KNOWN.contains(&name);
    let is_program = match word.contains('/') {
        true => is_known || is_executable(Path::new(word)),
        false => is_known || !Path::new(word).exists() && is_in_path(name),
    };
    (is_program && !word.ends_with(".toml")).then_some(None)
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn is_in_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| is_executable(&folder.join(OsStr::new(name))))
}

#[cfg(test)]
mod tests {
    use super::help::command;
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
            "wait --timeout 3",
            "fly",
        ] {
            assert!(parse(words).is_err(), "{words}");
        }
    }

    #[test]
    fn usual_words_of_other_tools_are_aliases() {
        for (typed, command) in [
            ("ls", "ps"),
            ("list --all", "ps"),
            ("resume ppo --from best", "restart"),
            ("launch e.toml", "run"),
            ("kill ppo", "kill"),
            ("version", "version"),
        ] {
            let parsed = Cli::command()
                .try_get_matches_from([&["rankdeck"][..], &typed.split(' ').collect::<Vec<_>>()].concat());
            assert_eq!(parsed.unwrap().subcommand_name(), Some(command), "{typed}");
        }
    }

    #[test]
    fn commands_that_read_need_no_run() {
        for words in
            ["attach", "status", "logs", "wait", "fetch", "eval", "play", "export", "report", "replay"]
        {
            assert!(parse(words).is_ok(), "{words}");
        }
        for words in ["compare", "mlflow", "tensorboard", "export-metrics"] {
            assert!(parse(words).is_ok(), "{words}");
        }
    }

    /// Commands without `--json`, `--quiet` and `--headless`, and why.
    const WITHOUT_PRINT_OPTIONS: [(&str, &str); 7] = [
        ("home", "has only a screen"),
        ("schema", "prints one JSON document"),
        ("client", "prints one file"),
        ("completions", "prints one script"),
        ("man", "prints one page"),
        ("help", "prints one page"),
        ("version", "prints one line"),
    ];

    #[test]
    fn print_options_exist_in_every_command() {
        let help = |command: &clap::Command, option: &str| {
            let found = command.get_arguments().find(|arg| arg.get_long() == Some(option))?;
            Some((found.get_help_heading()?.to_owned(), found.get_help()?.to_string()))
        };
        let (cli, mut texts) = (Cli::command(), std::collections::BTreeMap::new());
        for command in cli.get_subcommands() {
            let is_exempt = WITHOUT_PRINT_OPTIONS.iter().any(|(name, _)| *name == command.get_name());
            for option in ["json", "quiet", "headless"] {
                let found = help(command, option);
                assert_eq!(found.is_none(), is_exempt, "{} --{option}", command.get_name());
                texts.entry(option).or_insert_with(Vec::new).extend(found);
            }
        }
        for (option, mut found) in texts {
            found.sort();
            found.dedup();
            // Commands with a screen of a run describe it there.
            assert!(found.len() <= 2, "{option} means one thing: {found:?}");
        }
        for (name, _) in WITHOUT_PRINT_OPTIONS {
            assert!(cli.find_subcommand(name).is_some(), "{name}");
        }
    }

    #[test]
    fn simulate_is_hidden() {
        assert!(!Cli::command().render_help().to_string().contains("simulate "));
        assert!(parse("simulate --nnodes 3 --fault freeze:2@5").is_ok());
    }

    fn separated(line: &str) -> String {
        let argv = line.split(' ').map(OsString::from).collect();
        let words = with_separator(argv, &command());
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn program_is_separated_from_options() {
        for (typed, expected) in [
            ("rankdeck run train.py --lr 3e-4", "rankdeck run -- python3 train.py --lr 3e-4"),
            ("rankdeck run python3 train.py --json", "rankdeck run -- python3 train.py --json"),
            (
                "rankdeck run --nproc 2 --json ./dir/train.py --lr 1",
                "rankdeck run --nproc 2 --json -- python3 ./dir/train.py --lr 1",
            ),
            (
                "rankdeck --hosts a,b run --nproc-per-node 2 torchrun --nnodes 2 t.py",
                "rankdeck --hosts a,b run --nproc-per-node 2 -- torchrun --nnodes 2 t.py",
            ),
            ("rankdeck launch run.sh x", "rankdeck launch -- bash run.sh x"),
            ("rankdeck drill --only kill t.py", "rankdeck drill --only kill -- python3 t.py"),
            ("rankdeck check --set a.b=1 sh -c env", "rankdeck check --set a.b=1 -- sh -c env"),
            ("rankdeck sbatch -N 2 --time 1:00 t.py", "rankdeck sbatch -N 2 --time 1:00 -- python3 t.py"),
            ("rankdeck run --slurm t.py", "rankdeck run --slurm -- python3 t.py"),
            ("rankdeck run /bin/sh -c env", "rankdeck run -- /bin/sh -c env"),
        ] {
            assert_eq!(separated(typed), expected);
        }
    }

    #[test]
    fn experiment_and_separated_program_stay() {
        for typed in [
            "rankdeck run ppo.toml --set a.b=1",
            "rankdeck run ppo --detach",
            "rankdeck run --set train.py=1 ppo.toml",
            "rankdeck run --name python3 ppo.toml",
            "rankdeck run -- python3 train.py",
            "rankdeck run configs/x.yaml",
            "rankdeck run a.toml -- python",
            "rankdeck sbatch t.py -- --partition=gpu",
            "rankdeck init a train.py",
            "rankdeck run",
            "rankdeck",
            "rankdeck --version",
        ] {
            assert_eq!(separated(typed), typed);
        }
    }
}
