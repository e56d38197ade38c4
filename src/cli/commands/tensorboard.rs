//! `rankdeck tensorboard`: fetches the event files of runs and opens them in TensorBoard.

use super::fetch::fetch;
use crate::cli::args::{FetchArgs, TensorboardArgs};
use crate::cli::support::locate::{LocatedRun, RunLocator};
use crate::cli::support::run_id::{RUNS, own_folder};
use crate::cli::support::run_name::RunAction;
use crate::cli::support::{Failure, code};
use rankdeck_config::HostsSource;

/// Runs `rankdeck tensorboard`.
pub(crate) async fn tensorboard(hosts_from: &HostsSource, args: TensorboardArgs) -> Result<u8, Failure> {
    let locator = RunLocator::new(hosts_from, &args.host_keys);
    let mut found: Vec<LocatedRun> = Vec::new();
    for run in &args.runs {
        let known = found.last().map(|located| &located.run_index);
        let run_index = locator.index_or(known, Some(run)).await?;
        found.push(locator.select(run_index, Some(run), RunAction::Read).await?);
    }
    let mut places = Vec::new();
    for LocatedRun { run: name, .. } in found {
        let into = own_folder(&name).map_err(Failure::place)?.join("hosts");
        let fetched = FetchArgs {
            run: name.clone(),
            pattern: Some("*tfevents*".to_owned()),
            into: Some(into.clone()),
            max_size_gb: 4,
            output: args.output,
            host_keys: args.host_keys.clone(),
        };
        fetch(hosts_from, fetched).await?;
        places.push(format!("{name}:{}", into.display()));
    }
    let mut command = std::process::Command::new("tensorboard");
    match args.runs.as_slice() {
        // TensorBoard recommends `--logdir` for a single directory.
        [_] => command.arg("--logdir").arg(places[0].split_once(':').map_or("", |(_, path)| path)),
        _ => command.arg("--logdir_spec").arg(places.join(",")),
    };
    let status = command.args(&args.more).status().map_err(|error| {
        Failure::failed(format!("failed to start tensorboard: {error}"))
            .hint(format!("run `pip install tensorboard`; the files are in {RUNS}/RUN/hosts"))
    })?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(code::FAILED))
}
