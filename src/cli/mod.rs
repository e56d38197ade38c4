//! What was typed, and what it ends with.
//!
//! Owner: the process. Each command is a function from its arguments to an exit code or a [`Failure`]; only
//! [`main`] prints failures. Data goes to stdout, everything else to stderr. Exit codes: [`code`].
//!
//! Invariants:
//! - A closed stdout is not reported: output is dropped, and the exit code stays what it was going to
//!   be.
//! - Every failure says what failed and what helps (`hint:`).
//! - CLI-3: `stopped` is printed only when the stop is verified on every host.

mod again;
mod all_reduce;
pub mod args;
mod axes;
mod begin_from;
mod check;
mod checkpoint_source;
mod choose;
mod compare;
mod export_metrics;
mod failure;
mod fetch;
mod git;
mod guess;
mod help;
mod home;
mod init;
mod join;
mod logs;
mod mlflow;
mod origin;
mod past;
mod pick;
mod play;
mod policy;
mod preflight;
mod print;
mod prompt;
mod provision;
mod ps;
mod remove;
mod replay;
mod report;
mod roster;
mod run;
mod run_id;
mod sbatch;
mod schema;
mod search;
mod simulate;
mod sources;
mod status;
mod stop;
mod sweep;

pub use failure::{Failure, code};

use crate::shell::stderr;
use args::{Cli, Command};
use clap::FromArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use rankdeck_config::HostsSource;
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs what was typed.
pub fn main(argv: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = parse(argv.into_iter().collect());
    let cli = match cli {
        Ok(cli) => cli,
        Err(error) => {
            // `--help` into a closed pipe is no failure.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { code::USAGE } else { code::SUCCESS });
        }
    };
    match dispatch(cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.lines().iter().for_each(|line| stderr::line(line));
            ExitCode::from(failure.code)
        }
    }
}

/// What was typed, as data. Without a command, somebody at a terminal is at home; others get the help.
fn parse(mut argv: Vec<OsString>) -> Result<Cli, clap::Error> {
    let read = |argv: &[OsString]| {
        help::command().try_get_matches_from(argv).and_then(|found| Cli::from_arg_matches(&found))
    };
    let mut error = match read(&argv) {
        Ok(cli) => return Ok(cli),
        Err(error) => error,
    };
    let is_about = |what: &ContextValue| what.to_string().contains("COMMAND");
    if error.kind() == ErrorKind::ArgumentConflict && error.context().any(|(_, what)| is_about(what)) {
        let tip = "a program needs no experiment file: `rankdeck run -- python train.py`; in a file it stands as \
                   `command = [\"python\", \"train.py\"]` in `[launch]`";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    let lacking = matches!(
        error.kind(),
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    let place = choose::TerminalInfo::here();
    if !lacking || !place.terminal || matches!(place.term.as_deref(), None | Some("" | "dumb")) {
        return Err(error);
    }
    argv.push("home".into());
    read(&argv)
}

fn dispatch(cli: Cli) -> Result<u8, Failure> {
    match &cli.command {
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut help::command(), "rankdeck", &mut text);
            print::stdout_bytes(&text);
            Ok(code::SUCCESS)
        }
        Command::Client => {
            print::stdout_bytes(rankdeck_agent::client::SOURCE.as_bytes());
            Ok(code::SUCCESS)
        }
        Command::Man { command } => man(command.as_deref()),
        command => {
            runtime(matches!(command, Command::Demo(_) | Command::Simulate(_)))?.block_on(dispatch_async(cli))
        }
    }
}

async fn dispatch_async(cli: Cli) -> Result<u8, Failure> {
    let alone = match &cli.command {
        Command::Run(args) => args.subject.experiment.is_none(),
        Command::Check(args) => args.subject.experiment.is_none(),
        Command::Home(_) => true,
        // Of runs that were launched without a hosts file.
        _ => std::path::Path::new(run_id::RUNS).is_dir(),
    };
    let hosts = &sources::hosts(&cli, alone);
    let given = cli.hosts.iter().flat_map(|hosts| ["--hosts".to_owned(), hosts.clone()]);
    let options = given.chain(cli.slurm.then(|| "--slurm".to_owned())).collect();
    match cli.command {
        Command::Home(args) => home::home(hosts, args, options, |cli| Box::pin(dispatch_async(cli))).await,
        Command::Run(args) => {
            let done = run::run(hosts, *args).await;
            launch_again(hosts, options, done).await
        }
        Command::Attach(args) => {
            let done = join::attach(hosts, args).await;
            launch_again(hosts, options, done).await
        }
        Command::Stop(args) => stop::stop(hosts, args).await,
        Command::Restart(args) => join::restart(hosts, args).await,
        Command::Ps(args) => ps::ps(hosts, args).await,
        Command::Status(args) => status::status(hosts, args).await,
        Command::ExportMetrics(args) => export_metrics::export_metrics(hosts, args).await,
        Command::Queue(args) => sweep::queue(args).await,
        Command::Fetch(args) => fetch::fetch(hosts, args).await,
        Command::Tensorboard(args) => fetch::tensorboard(hosts, args).await,
        Command::Eval(args) => policy::eval(hosts, args).await,
        Command::Play(args) => play::play(hosts, *args).await,
        Command::Export(args) => policy::export(hosts, args).await,
        Command::Rm(args) => remove::remove(hosts, args).await,
        Command::Prune(args) => remove::prune(hosts, args).await,
        Command::Sbatch(args) => sbatch::sbatch(hosts, &args),
        Command::Check(args) => check::check(hosts, args).await,
        Command::Push(args) => provision::push(hosts, args).await,
        Command::Init(args) => init::init(args).await,
        Command::Schema { what } => Ok(schema::print(what)),
        Command::Logs(args) => logs::logs(hosts, args).await,
        Command::Replay(args) => replay::replay(args).await,
        Command::Demo(args) => simulate::demo(args).await,
        Command::Report(args) => report::report(&args),
        Command::Compare(args) => compare::compare(&args),
        Command::Mlflow(args) => mlflow::mlflow(&args),
        Command::Simulate(args) => simulate::simulate(args).await,
        Command::Client | Command::Completions { .. } | Command::Man { .. } => Ok(code::SUCCESS),
    }
}

/// Home, when a screen was left for another run like its own; where home is, it does so itself.
async fn launch_again(
    hosts: &HostsSource,
    options: Vec<String>,
    done: Result<u8, Failure>,
) -> Result<u8, Failure> {
    if choose::is_at_home() || done.is_err() || !again::is_wanted() {
        return done;
    }
    home::home(hosts, args::HomeArgs::default(), options, |cli| Box::pin(dispatch_async(cli))).await?;
    done
}

/// One thread, since links, input and output have threads of their own and a hop between two costs more than
/// the work; two more where thousands of simulated ranks live in this process.
fn runtime(simulates: bool) -> Result<tokio::runtime::Runtime, Failure> {
    use tokio::runtime::Builder;
    let mut builder = if simulates { Builder::new_multi_thread() } else { Builder::new_current_thread() };
    if simulates {
        builder.worker_threads(2);
    }
    builder.enable_all().build().map_err(Failure::no_thread)
}

fn man(command: Option<&str>) -> Result<u8, Failure> {
    let page = help::manual(command).ok_or_else(|| {
        Failure::usage(format!("there is no command `{}`", command.unwrap_or_default()))
            .hint("`rankdeck --help` lists the commands")
    })?;
    let text = page.map_err(|error| {
        Failure::failed(format!("failed to write the page: {error}"))
            .hint("`rankdeck --help` has the same text")
    })?;
    print::stdout_bytes(&text);
    Ok(code::SUCCESS)
}
