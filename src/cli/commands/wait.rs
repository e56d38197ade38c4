//! `rankdeck wait`: waits until a run has ended and exits with its code. The run is not affected.

use crate::app::driver::ExitReason;
use crate::app::exit_condition::ExitCondition;
use crate::cli::args::WaitArgs;
use crate::cli::commands::ps;
use crate::cli::support::console::ExistingRun;
use crate::cli::support::locate::{LocatedRun, RunLocator};
use crate::cli::support::run_index::RunStatus;
use crate::cli::support::run_name::RunAction;
use crate::cli::support::{Failure, code, print};
use rankdeck_config::HostsSource;
use rankdeck_proto::clock::wall_time;
use rankdeck_types::words::{clean, duration};
use std::sync::Mutex;
use std::time::Duration;

/// Between two queries about a run whose console has just ended: another generation may start.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs `rankdeck wait`.
pub(crate) async fn wait(hosts_from: &HostsSource, args: WaitArgs) -> Result<u8, Failure> {
    let run = Mutex::new(args.run.clone());
    let ended = ended(hosts_from, &args, &run);
    let Some(limit) = args.timeout else { return ended.await };
    let within = Duration::try_from_secs_f64(limit).unwrap_or(Duration::MAX);
    tokio::time::timeout(within, ended).await.unwrap_or_else(|_| {
        let run = run.lock().map_or_else(|_| args.run.clone(), |run| run.clone());
        let failure = Failure::failed(format!("run {run} has not ended within {}", duration(limit)));
        Err(Failure { code: code::TIMEOUT, ..failure }.hint(format!(
            "show its progress with `rankdeck status {run}`, or stop it with `rankdeck stop {run}`"
        )))
    })
}

/// Waits for the end of the run and prints it. `run` becomes its full name.
async fn ended(hosts_from: &HostsSource, args: &WaitArgs, run: &Mutex<String>) -> Result<u8, Failure> {
    let locator = RunLocator::new(hosts_from, &args.host_keys);
    let mut located = locator.find(Some(&args.run), RunAction::Read).await?;
    let name = located.run.clone();
    if let Ok(mut run) = run.lock() {
        run.clone_from(&name);
    }
    loop {
        let found = located.found()?;
        match found.state {
            RunStatus::Finished => return report(&located, args),
            RunStatus::Orphaned => {
                return Err(Failure::failed(format!("run {name} has processes without an agent"))
                    .hint(format!("kill them with `rankdeck stop {name}`")));
            }
            RunStatus::Running => {}
        }
        let target = ExistingRun::new(&located.run_index, &found)?;
        let end = target.run_until(ExitCondition::Observe, &args.host_keys).await?;
        if end.why != ExitReason::Done {
            return Ok(code::INTERRUPTED);
        }
        located = locator.pick(Some(&name), RunAction::Read).await?;
        if located.found()?.state == RunStatus::Running {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Prints how the run ended; returns its exit code.
fn report(located: &LocatedRun, args: &WaitArgs) -> Result<u8, Failure> {
    let (run_index, found, now) = (&located.run_index, located.found()?, wall_time());
    let summary = found.summary(now);
    if args.output.json {
        print::json(&ps::as_json(run_index, &found, now));
    }
    let silent = run_index
        .silent
        .iter()
        .any(|(index, _)| run_index.hosts.get(*index).is_some_and(|host| found.hosts().contains(&host.name)));
    match (summary.exit_code, summary.outcome) {
        (Some(code), Some(outcome)) => {
            if !args.output.json {
                let reason =
                    if summary.reason.is_empty() { String::new() } else { format!(": {}", summary.reason) };
                print::stdout(&clean(&format!(
                    "run {} {}{reason} (exit code {code})",
                    found.run,
                    outcome.name()
                )));
            }
            Ok(code)
        }
        _ if silent => Err(run_index.silent_failure()),
        _ => Err(Failure::failed(format!("the end of run {} is not recorded", found.run))
            .hint(format!("check its logs with `rankdeck logs {}`", found.run))),
    }
}
