//! Hosts and an experiment together: what cannot work is refused here, with file, line and column, before any host is
//! touched.

use super::diagnostic::Diagnostics;
use super::load::read_experiment;
use super::locate::Locator;
use super::source::HostsSource;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::ids::RunId;
use rankdeck_types::plan::PlanDraft;
use std::path::Path;

/// Loads both files and checks them, together too; reports the mistakes of both at once.
///
/// Errors: everything that cannot work, as far as it shows without asking a host.
pub fn load_draft(
    hosts_source: &HostsSource,
    experiment_path: &Path,
    sets: &[String],
    run: impl FnOnce(&Experiment) -> RunId,
) -> Result<PlanDraft, Diagnostics> {
    match (hosts_source.read(), read_experiment(experiment_path, sets)) {
        (Ok((hosts, hosts_text)), Ok((experiment, experiment_text))) => {
            let run = run(&experiment);
            let locator = Locator {
                hosts: Some(hosts_text),
                experiment: Some(experiment_text),
                hosts_name: hosts_source.name(),
                experiment_name: experiment_path.display().to_string(),
            };
            let draft = PlanDraft { run, experiment, hosts, excluded: Default::default() };
            let mut found = Diagnostics::new();
            for problem in draft.problems(&[]) {
                found.push(locator.diagnostic(&problem.key, &problem.error).hint(&problem.hint));
            }
            found.or(draft)
        }
        (hosts, experiment) => {
            let mut all = hosts.err().unwrap_or_default();
            all.0.extend(experiment.err().unwrap_or_default().0);
            Err(all)
        }
    }
}
