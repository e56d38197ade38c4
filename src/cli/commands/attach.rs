//! `rankdeck attach`: shows a running or finished run.

use crate::app::driver::ConsoleSetup;
use crate::cli::args::AttachArgs;
use crate::cli::support::console::{self, ExistingRun};
use crate::cli::support::locate::RunLocator;
use crate::cli::support::output_mode::{self, TerminalInfo};
use crate::cli::support::run_id::RUNS;
use crate::cli::support::run_name::RunAction;
use crate::cli::support::{Failure, measure, provenance, relaunch};
use rankdeck_config::HostsSource;
use std::path::Path;

/// Runs `rankdeck attach`.
pub(crate) async fn attach(hosts_from: &HostsSource, args: AttachArgs) -> Result<u8, Failure> {
    let chosen = output_mode::choose(&args.output, &TerminalInfo::here())?;
    let outlets = console::outlets().await?;
    let locator = RunLocator::new(hosts_from, &args.host_keys);
    let located = locator.find(args.run.as_deref(), RunAction::Watch).await?;
    let run_index = &located.run_index;
    let target = ExistingRun::new(run_index, &located.found()?)?;
    let goal = target.goal();
    let (recorder, log) = console::record(&goal, (Path::new(RUNS), &target.run), None)?;
    let links = target.open_links(&args.host_keys, chosen)?;
    let spares = run_index.hosts.iter().filter(|host| !target.hosts.contains(host)).cloned().collect();
    let mut setup = ConsoleSetup::new(goal, console::watching(&args.output), links);
    setup.recorder = Some(recorder);
    setup.slow_links = measure::baseline::slow_links(&target.hosts);
    setup.spares = spares;
    setup.listed = run_index.hosts.clone();
    setup.accept_new_host_keys = args.host_keys.accept_new_host_keys;
    relaunch::offer(provenance::relaunch_spec(&target.run), &target.run, &target.hosts);
    let end = console::console(setup, outlets, chosen, Some(log), output_mode::pace(&args.output)).await?;
    Ok(console::finish(&end, &args.output, &target.run))
}
