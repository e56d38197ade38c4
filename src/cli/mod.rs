//! The command line: parses it, runs the command and returns its exit code.
//!
//! Owner: the process. Each command is a function from its arguments to an exit code or a [`Failure`]; only
//! [`main`] prints failures. Data goes to stdout, everything else to stderr. Exit codes: [`code`].
//!
//! Invariants:
//! - A closed stdout is not reported: output is dropped, and the exit code stays the same.
//! - Every failure has an error and a hint.
//! - CLI-3: `stop verified` is printed only when the stop is verified on every host.
//!
//! Errors of the command line: clap's, with a correction.

pub mod args;
mod commands;
mod home;
mod support;

use crate::app::stderr;
use args::{Cli, CliCommand};
use clap::FromArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use commands::{
    add, check, compare, consoles, diff, drill, explain, fetch, gpus, help, init, logs, metrics_tools, play,
    ps, push, remove, report, restart, run, sbatch, schema, status, stop,
};
use rankdeck_config::HostsSource;
use std::error::Error as _;
use std::ffi::OsString;
use std::num::{IntErrorKind, ParseIntError};
use std::process::ExitCode;
use std::time::Duration;
use support::locate::ListedHosts;
pub(crate) use support::{Failure, code};
use support::{child, output_mode, preflight, print, prompt, relaunch, run_index, run_name, sources};

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
    argv = args::with_separator(argv, &args::help::command());
    let read = |argv: &[OsString]| {
        args::help::command().try_get_matches_from(argv).and_then(|found| Cli::from_arg_matches(&found))
    };
    let mut error = match read(&argv) {
        Ok(cli) => return Ok(cli),
        Err(error) => error,
    };
    error = explained(error);
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
        _ => std::path::Path::new(run_name::RUNS).is_dir(),
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
            let done = consoles::attach(hosts, args).await;
            launch_again(hosts, options, done).await
        }
        CliCommand::Stop(args) => stop::stop(hosts, args).await,
        CliCommand::Kill(args) => stop::stop(hosts, args::StopArgs { kill: true, ..args }).await,
        CliCommand::Restart(args) => restart::restart(hosts, args).await,
        CliCommand::Add(args) => add::add(hosts, args).await,
        CliCommand::Wait(args) => status::wait(hosts, args).await,
        CliCommand::Ps(args) => ps::ps(hosts, listed, args).await,
        CliCommand::Gpus(args) => gpus::gpus(hosts, args).await,
        CliCommand::Status(args) => status::status(hosts, args).await,
        CliCommand::ExportMetrics(args) => metrics_tools::export_metrics(hosts, args).await,
        CliCommand::Queue(args) => run::queue(args).await,
        CliCommand::Fetch(args) => fetch::fetch(hosts, args).await,
        CliCommand::Tensorboard(args) => metrics_tools::tensorboard(hosts, args).await,
        CliCommand::Eval(args) => play::eval(hosts, args).await,
        CliCommand::Play(args) => play::play(hosts, *args).await,
        CliCommand::Export(args) => play::export(hosts, args).await,
        CliCommand::Rm(args) => remove::remove(hosts, args).await,
        CliCommand::Prune(args) => remove::prune(hosts, listed, args).await,
        CliCommand::Sbatch(args) => sbatch::sbatch(hosts, &args),
        CliCommand::Check(args) => check::check(hosts, args).await,
        CliCommand::Push(args) => push::push(hosts, args).await,
        CliCommand::Init(args) => init::init(args).await,
        CliCommand::Schema { what } => Ok(schema::print(what)),
        CliCommand::Logs(args) => logs::logs(hosts, args).await,
        CliCommand::Replay(args) => consoles::replay(args).await,
        CliCommand::Demo(args) => consoles::demo(args).await,
        CliCommand::Report(args) => report::report(&args),
        CliCommand::Compare(args) => compare::compare(&args),
        CliCommand::Diff(args) => diff::diff(hosts, args).await,
        CliCommand::Mlflow(args) => metrics_tools::mlflow(&args),
        CliCommand::Simulate(args) => consoles::simulate(args).await,
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

/// Most experiments that an error lists.
const EXPERIMENTS: usize = 8;

/// Adds a tip to an error, or replaces words that explain nothing.
fn explained(mut error: clap::Error) -> clap::Error {
    let has = |word: &str| error.context().any(|(_, what)| what.to_string().contains(word));
    let tip = match error.kind() {
        ErrorKind::ArgumentConflict if has("COMMAND") => Some(
            "a program needs no experiment file: `rankdeck run -- python train.py`; in a file, write \
             `command = [\"python\", \"train.py\"]` in `[launch]`"
                .to_owned(),
        ),
        ErrorKind::MissingRequiredArgument if has("EXPERIMENT") => Some(experiments()),
        ErrorKind::MissingRequiredArgument if has("<RUN>") => {
            Some("list runs with `rankdeck ps --all`; `@last` is the newest".to_owned())
        }
        ErrorKind::UnknownArgument if has("-v") && !has("--v") => {
            Some("`--version` prints the version".to_owned())
        }
        ErrorKind::ValueValidation => return number(error),
        _ => None,
    };
    if let Some(tip) = tip {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// The experiments of this directory, or how to do without one.
fn experiments() -> String {
    let files = home::experiments::paths();
    let shown: Vec<String> = files.iter().take(EXPERIMENTS).map(|path| path.display().to_string()).collect();
    let more = if files.len() > shown.len() { ", ..." } else { "" };
    match shown.is_empty() {
        true => "pass a program: `-- python train.py`; or write an experiment file with `rankdeck init`"
            .to_owned(),
        false => format!("experiments here: {}{more}", shown.join(", ")),
    }
}

/// Adds the expected number to an error of the parser, which names only the invalid digit.
fn number(error: clap::Error) -> clap::Error {
    let Some(why) = error.source().and_then(|source| source.downcast_ref::<ParseIntError>()) else {
        return error;
    };
    let expected = match why.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "the number is out of range",
        _ => "expected a whole number",
    };
    let value = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let (given, argument) = (value(ContextKind::InvalidValue), value(ContextKind::InvalidArg));
    let text = format!(
        "invalid value '{given}' for '{argument}': {expected}\n\nFor more information, try '--help'.\n"
    );
    clap::Error::raw(ErrorKind::ValueValidation, text)
}

#[cfg(test)]
mod tests {
    use crate::cli::args::help::command;

    /// The error of a command line.
    fn error(words: &str) -> String {
        let found = command().try_get_matches_from(words.split(' '));
        super::explained(found.unwrap_err()).to_string()
    }

    #[test]
    fn wrong_command_line_says_what_to_type() {
        for (words, expected) in [
            ("rankdeck logs --tail x", "expected a whole number"),
            ("rankdeck logs --tail 99999999999999999999", "out of range"),
            ("rankdeck rm", "`rankdeck ps --all`"),
            ("rankdeck -v", "`--version`"),
            ("rankdeck run a.toml -- python", "needs no experiment file"),
        ] {
            let text = error(words);
            assert!(text.contains(expected), "{words}: {text}");
        }
        assert!(!error("rankdeck logs --verbose").contains("--version"));
    }
}
