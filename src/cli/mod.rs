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

mod all_reduce;
pub mod args;
mod check;
mod choose;
mod failure;
mod join;
mod logs;
mod preflight;
mod print;
mod prompt;
mod provision;
mod ps;
mod replay;
mod roster;
mod run;
mod run_id;
mod sbatch;
mod simulate;
mod stop;

pub use failure::{Failure, code};

use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use rankdeck_config::HostsSource;
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs what was typed.
pub fn main(argv: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(argv) {
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
            print::stderr(&failure.to_string());
            ExitCode::from(failure.code)
        }
    }
}

fn dispatch(cli: Cli) -> Result<u8, Failure> {
    match &cli.command {
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "rankdeck", &mut text);
            print::stdout_bytes(&text);
            Ok(code::SUCCESS)
        }
        Command::Man { command } => man(command.as_deref()),
        command => runtime(matches!(command, Command::Simulate(_)))?.block_on(dispatch_async(cli)),
    }
}

async fn dispatch_async(cli: Cli) -> Result<u8, Failure> {
    let path = cli.hosts.clone();
    let hosts = if cli.slurm { HostsSource::Slurm { defaults: path } } else { HostsSource::File(path) };
    let hosts = &hosts;
    match cli.command {
        Command::Run(args) => run::run(hosts, args).await,
        Command::Attach(args) => join::attach(hosts, args).await,
        Command::Stop(args) => stop::stop(hosts, args).await,
        Command::Restart(args) => join::restart(hosts, args).await,
        Command::Ps(args) => ps::ps(hosts, args).await,
        Command::Sbatch(args) => sbatch::sbatch(&cli.hosts, &args),
        Command::Check(args) => check::check(hosts, args).await,
        Command::Push(args) => provision::push(hosts, args).await,
        Command::Logs(args) => logs::logs(hosts, args).await,
        Command::Replay(args) => replay::replay(args).await,
        Command::Simulate(args) => simulate::simulate(args).await,
        Command::Completions { .. } | Command::Man { .. } => Ok(code::SUCCESS),
    }
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
    let mut root = Cli::command();
    root.build();
    let page = match command {
        None => root,
        Some(name) => root.find_subcommand(name).cloned().ok_or_else(|| {
            Failure::usage(format!("there is no command `{name}`"))
                .hint("`rankdeck --help` lists the commands")
        })?,
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text).map_err(|error| {
        Failure::failed(format!("failed to write the page: {error}"))
            .hint("`rankdeck --help` has the same text")
    })?;
    print::stdout_bytes(&text);
    Ok(code::SUCCESS)
}
