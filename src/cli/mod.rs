//! The command line: parses it, runs the command and returns its exit code.
//!
//! Owner: the process. Each command is a function from its arguments to an exit code or a [`Failure`]; only
//! [`main`] prints failures. Data goes to stdout, everything else to stderr. Exit codes: [`code`].
//!
//! Invariants:
//! - A closed stdout is not reported: output is dropped, and the exit code stays the same.
//! - Every failure has an error and a hint.
//! - CLI-3: `stop verified` is printed only when the stop is verified on every host.

pub mod args;
mod commands;
mod home;
mod support;
mod usage;

pub(crate) use support::{Failure, code};

use commands::{
    attach, check, compare, drill, eval, explain, export, export_metrics, fetch, gpus, help, init, logs,
    mlflow, play, ps, push, queue, remove, replay, report, restart, run, sbatch, schema, simulate, status,
    stop, tensorboard, wait,
};
use support::locate::ListedHosts;
use support::{
    child, output_mode, preflight, print, prompt, recorded_runs, relaunch, run_id, run_index, sources,
};

use crate::app::stderr;
use args::{Cli, CliCommand};
use clap::FromArgMatches;
use clap::error::ErrorKind;
use rankdeck_config::HostsSource;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

/// How long threads of the runtime may take to end.
const THREADS_END_WITHIN: Duration = Duration::from_secs(2);

/// Runs a command line.
pub fn main(argv: impl IntoIterator<Item = OsString>) -> ExitCode {
    let argv: Vec<OsString> = argv.into_iter().collect();
    if help::complete(&argv) {
        return ExitCode::SUCCESS;
    }
    let cli = parse(argv);
    let cli = match cli {
        Ok(cli) => cli,
        Err(error) => {
            // A closed pipe is not a failure of `--help`.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { code::USAGE } else { code::SUCCESS });
        }
    };
    let code = dispatch(cli).unwrap_or_else(|failure| {
        failure.lines().iter().for_each(|line| stderr::line(line));
        failure.code
    });
    stderr::finish();
    ExitCode::from(code)
}

/// Parses a command line. Without a command, a terminal gets the home screen; a pipe gets the help.
fn parse(mut argv: Vec<OsString>) -> Result<Cli, clap::Error> {
    argv = args::program_words::with_separator(argv, &args::help::command());
    let read = |argv: &[OsString]| {
        args::help::command().try_get_matches_from(argv).and_then(|found| Cli::from_arg_matches(&found))
    };
    let mut error = match read(&argv) {
        Ok(cli) => return Ok(cli),
        Err(error) => error,
    };
    error = usage::explained(error);
    let lacking = matches!(
        error.kind(),
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    let place = output_mode::TerminalInfo::here();
    if !lacking || !place.terminal || matches!(place.term.as_deref(), None | Some("" | "dumb")) {
        return Err(error);
    }
    argv.push("home".into());
    read(&argv)
}

fn dispatch(cli: Cli) -> Result<u8, Failure> {
    match &cli.command {
        CliCommand::Completions { shell } => Ok(help::completions(*shell)),
        CliCommand::Client => {
            print::stdout_bytes(rankdeck_agent::client::SOURCE.as_bytes());
            Ok(code::SUCCESS)
        }
        CliCommand::Man { command } => help::man(command.as_deref()),
        CliCommand::Help { subject } => help::help(subject.as_deref()),
        CliCommand::Explain(args) => explain::explain(args),
        CliCommand::Version => {
            print::stdout(&format!("rankdeck {}", env!("RANKDECK_VERSION")));
            Ok(code::SUCCESS)
        }
        command => {
            let runtime = runtime(matches!(command, CliCommand::Demo(_) | CliCommand::Simulate(_)))?;
            let done = runtime.block_on(dispatch_async(cli));
            // A thread that waits for a disk does not keep the command from exiting.
            runtime.shutdown_timeout(THREADS_END_WITHIN);
            done
        }
    }
}

async fn dispatch_async(mut cli: Cli) -> Result<u8, Failure> {
    child::read_sets(&mut cli.command)?;
    let alone = match &cli.command {
        CliCommand::Run(_)
        | CliCommand::Check(_)
        | CliCommand::Drill(_)
        | CliCommand::Home(_)
        | CliCommand::Gpus(_) => true,
        // Runs that were launched without a hosts file.
        _ => std::path::Path::new(run_id::RUNS).is_dir(),
    };
    if cli.command.printing().is_some_and(|output| output.headless || output.json) {
        prompt::set_headless();
    }
    let hosts = &sources::hosts(&cli, alone);
    let given = cli.hosts.iter().flat_map(|hosts| ["--hosts".to_owned(), hosts.clone()]);
    let slurm = cli.slurm.iter().map(|job| match job.as_str() {
        "" => "--slurm".to_owned(),
        job => format!("--slurm={job}"),
    });
    let options: Vec<String> = given.chain(slurm).collect();
    let listed = if options.is_empty() { ListedHosts::Known } else { ListedHosts::Named };
    match cli.command {
        CliCommand::Home(args) => home::home(hosts, args, options, |cli| Box::pin(dispatch_async(cli))).await,
        CliCommand::Run(args) => {
            let done = run::run(hosts, *args).await;
            launch_again(hosts, options, done).await
        }
        CliCommand::Drill(args) => drill::drill(hosts, *args, options).await,
        CliCommand::Attach(args) => {
            let done = attach::attach(hosts, args).await;
            launch_again(hosts, options, done).await
        }
        CliCommand::Stop(args) => stop::stop(hosts, args).await,
        CliCommand::Kill(args) => stop::stop(hosts, args::StopArgs { kill: true, ..args }).await,
        CliCommand::Restart(args) => restart::restart(hosts, args).await,
        CliCommand::Wait(args) => wait::wait(hosts, args).await,
        CliCommand::Ps(args) => ps::ps(hosts, listed, args).await,
        CliCommand::Gpus(args) => gpus::gpus(hosts, args).await,
        CliCommand::Status(args) => status::status(hosts, args).await,
        CliCommand::ExportMetrics(args) => export_metrics::export_metrics(hosts, args).await,
        CliCommand::Queue(args) => queue::queue(args).await,
        CliCommand::Fetch(args) => fetch::fetch(hosts, args).await,
        CliCommand::Tensorboard(args) => tensorboard::tensorboard(hosts, args).await,
        CliCommand::Eval(args) => eval::eval(hosts, args).await,
        CliCommand::Play(args) => play::play(hosts, *args).await,
        CliCommand::Export(args) => export::export(hosts, args).await,
        CliCommand::Rm(args) => remove::remove(hosts, args).await,
        CliCommand::Prune(args) => remove::prune(hosts, listed, args).await,
        CliCommand::Sbatch(args) => sbatch::sbatch(hosts, &args),
        CliCommand::Check(args) => check::check(hosts, args).await,
        CliCommand::Push(args) => push::push(hosts, args).await,
        CliCommand::Init(args) => init::init(args).await,
        CliCommand::Schema { what } => Ok(schema::print(what)),
        CliCommand::Logs(args) => logs::logs(hosts, args).await,
        CliCommand::Replay(args) => replay::replay(args).await,
        CliCommand::Demo(args) => simulate::demo(args).await,
        CliCommand::Report(args) => report::report(&args),
        CliCommand::Compare(args) => compare::compare(&args),
        CliCommand::Mlflow(args) => mlflow::mlflow(&args),
        CliCommand::Simulate(args) => simulate::simulate(args).await,
        CliCommand::Client
        | CliCommand::Completions { .. }
        | CliCommand::Man { .. }
        | CliCommand::Help { .. }
        | CliCommand::Version
        | CliCommand::Explain(_) => Ok(code::SUCCESS),
    }
}

/// Opens the home screen if the user requested a relaunch there; the home screen itself does so without this.
async fn launch_again(
    hosts: &HostsSource,
    options: Vec<String>,
    done: Result<u8, Failure>,
) -> Result<u8, Failure> {
    if output_mode::is_at_home() || done.is_err() || !relaunch::is_requested() {
        return done;
    }
    home::home(hosts, args::HomeArgs::default(), options, |cli| Box::pin(dispatch_async(cli))).await?;
    done
}

/// One thread, since links, input and output have their own and a hop between threads costs more than the
/// work; two more for simulations with thousands of ranks.
fn runtime(simulates: bool) -> Result<tokio::runtime::Runtime, Failure> {
    use tokio::runtime::Builder;
    let mut builder = if simulates { Builder::new_multi_thread() } else { Builder::new_current_thread() };
    if simulates {
        builder.worker_threads(2);
    }
    builder.enable_all().build().map_err(Failure::no_thread)
}
