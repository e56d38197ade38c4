//! `rankdeck attach`: shows a running or finished run.

use crate::app::driver::ConsoleSetup;
use crate::app::exit_condition::ExitCondition;
use crate::app::stderr;
use crate::cli::args::AttachArgs;
use crate::cli::support::console::{self, ExistingRun};
use crate::cli::support::output_mode::{self, OutputMode, TerminalInfo};
use crate::cli::support::run_id::RUNS;
use crate::cli::support::run_index::query_runs;
use crate::cli::support::{Failure, provenance, relaunch};
use rankdeck_config::HostsSource;
use std::path::Path;

/// Runs `rankdeck attach`.
pub(crate) async fn attach(hosts_from: &HostsSource, args: AttachArgs) -> Result<u8, Failure> {
    let chosen = output_mode::choose(&args.output, &TerminalInfo::here())?;
    let run_index = query_runs(hosts_from, &args.host_keys).await?;
    let found = match chosen {
        OutputMode::Screen => run_index.pick_or_ask(args.run.as_deref(), true)?,
        OutputMode::Linear { .. } | OutputMode::Lines(_) => run_index.pick(args.run.as_deref())?,
    };
    let exit_condition = match chosen {
        OutputMode::Lines(_) if output_mode::is_read_only(&args.output)? => ExitCondition::Observe,
        _ => console::watching(&args.output),
    };
    if matches!(chosen, OutputMode::Lines(_)) && exit_condition != ExitCondition::Observe {
        stderr::line("note: ctrl-c stops the run cleanly; `kill -HUP` on this process detaches instead");
    }
    let target = ExistingRun::new(&run_index, &found)?;
    let links = target.open_links(&args.host_keys, chosen)?;
    let spares = run_index.hosts.iter().filter(|host| !target.hosts.contains(host)).cloned().collect();
    let mut setup = ConsoleSetup::new(target.goal(), exit_condition, links);
    setup.spares = spares;
    setup.listed = run_index.hosts.clone();
    setup.accept_new_host_keys = args.host_keys.accept_new_host_keys;
    let log = console::record(&mut setup, (Path::new(RUNS), &target.run), None)?;
    relaunch::offer(provenance::relaunch_spec(&target.run));
    let end = console::console(setup, chosen, Some(log), output_mode::pace(&args.output)).await?;
    Ok(console::finish(&end, &args.output, &target.run))
}
