//! `rankdeck fetch`: copies a run's files from its hosts.

use crate::cli::args::FetchArgs;
use crate::cli::support::copy::{FetchedRun, copy};
use crate::cli::support::{Failure, code};
use rankdeck_config::HostsSource;

/// Runs `rankdeck fetch`.
pub(crate) async fn fetch(hosts_from: &HostsSource, args: FetchArgs) -> Result<u8, Failure> {
    let FetchedRun { run, into, total } = copy(hosts_from, &args).await?;
    if let Some(pattern) = args.pattern.as_deref().filter(|_| total.is_nothing()) {
        return Err(Failure::usage(format!("no file of run {run} matches `{pattern}`")).hint(format!(
            "use a name such as '*.safetensors' or a path in the run directory; `rankdeck fetch {run}` copies all files"
        )));
    }
    args.output.outcome(&total.text(&into));
    total.places().iter().for_each(|places| args.output.outcome(places));
    args.output.record(|| total.as_json(&run, &into));
    if let Some(failure) = total.lost {
        return Err(failure.hint(format!("`rankdeck fetch {run}` copies the rest")));
    }
    Ok(if total.is_complete() { code::SUCCESS } else { code::FAILED })
}
