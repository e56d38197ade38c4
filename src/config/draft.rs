//! Hosts and an experiment together: what cannot work is refused here, with file, line and column, before any
//! host is touched.

use super::diagnostic::Diagnostics;
use super::load::read_experiment;
use super::locate::Locator;
use super::source::{ExperimentSource, HostsSource};
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::{Gpus, Host};
use rankdeck_types::ids::RunId;
use rankdeck_types::plan::PlanDraft;
use rankdeck_types::variables::{MOST_BYTES, WantedVariables};
use std::collections::BTreeSet;

/// Loads both files and checks them, together too; reports the mistakes of both at once.
///
/// Errors: everything that cannot work, as far as it shows without asking a host.
pub fn load_draft(
    hosts_source: &HostsSource,
    experiment_source: &ExperimentSource,
    sets: &[String],
    run: impl FnOnce(&Experiment) -> RunId,
) -> Result<PlanDraft, Diagnostics> {
    match (hosts_source.read(), read_experiment(experiment_source, sets)) {
        (Ok((hosts, hosts_text)), Ok((experiment, experiment_text))) => {
            let run = run(&experiment);
            let locator = Locator {
                hosts: Some(hosts_text),
                experiment: Some(experiment_text),
                hosts_name: hosts_source.name(),
                experiment_name: experiment_source.name(),
            };
            let draft = PlanDraft { run, experiment, hosts, excluded: Default::default(), resume: None };
            let mut found = Diagnostics::new();
            for problem in draft.problems(&[]) {
                found.push(locator.diagnostic(&problem.key, &problem.cause.error).hint(&problem.cause.hint));
            }
            missing_variables(&draft, &locator, &mut found);
            gpus_for_all(&draft, &locator, &mut found);
            long_strings(&draft, &locator, &mut found);
            found.or(draft)
        }
        (hosts, experiment) => {
            let mut all = hosts.err().unwrap_or_default();
            all.0.extend(experiment.err().unwrap_or_default().0);
            Err(all)
        }
    }
}

/// Linux's MAX_ARG_STRLEN: one string of a program's environment or command, its end included.
const MOST_STRING: usize = 128 << 10;
/// What else is in the script that a prelude is part of.
const SCRIPT_ROOM: usize = 16 << 10;

/// Variables, arguments and preludes that no program can be started with; hosts would say "argument list too
/// long" of each rank.
fn long_strings(draft: &PlanDraft, locator: &Locator, found: &mut Diagnostics) {
    let launch = &draft.experiment.launch;
    // `NAME=VALUE` and a zero byte.
    let variable = |(name, value): (&String, &String)| (name.clone(), name.len() + value.len() + 2);
    let mut strings: Vec<(String, usize, usize)> = Vec::new();
    strings.extend(launch.command.iter().map(|word| ("launch.command".into(), word.len() + 1, MOST_STRING)));
    let shared = launch.env.iter().map(variable);
    strings.extend(shared.map(|(name, bytes)| (format!("launch.env.{name}"), bytes, MOST_STRING)));
    for (node, host) in draft.hosts.iter().enumerate() {
        let own = host.env.iter().map(variable);
        strings.extend(own.map(|(name, bytes)| (format!("host.{node}.env.{name}"), bytes, MOST_STRING)));
        let prelude = host.setup.prelude.as_ref().map_or(0, String::len);
        strings.push((format!("host.{node}.prelude"), prelude, MOST_STRING - SCRIPT_ROOM));
    }
    for (key, bytes, most) in strings.into_iter().filter(|(_, bytes, most)| bytes > most) {
        let error = format!(
            "`{key}` has {} KiB; Linux starts no program with more than {} KiB in one string",
            bytes.div_ceil(1 << 10),
            most >> 10
        );
        found.push(locator.diagnostic(&key, &error).hint("put its content into a file on the hosts"));
    }
}

/// The list of GPUs that a rank sees is its own: one for all ranks would put them on the same GPU.
fn gpus_for_all(draft: &PlanDraft, locator: &Locator, found: &mut Diagnostics) {
    const LIST: &str = "CUDA_VISIBLE_DEVICES";
    let launch = &draft.experiment.launch;
    let none = Gpus::List(Vec::new());
    let uses = |host: &&Host| host.gpus.as_ref().is_some_and(|gpus| *gpus != none && !gpus.is_auto());
    let Some(node) = draft.hosts.iter().position(|host| uses(&host)) else { return };
    let passed =
        launch.pass_env.iter().position(|name| name == LIST).map(|at| format!("launch.pass_env.{at}"));
    let set = launch.env.contains_key(LIST).then(|| format!("launch.env.{LIST}"));
    let own = draft.hosts[node].env.contains_key(LIST).then(|| format!("host.{node}.env.{LIST}"));
    if let Some(key) = passed.or(set).or(own) {
        let text = format!("`{LIST}` would be the same for all ranks, and rankdeck gives each its own GPU");
        let hint =
            "`gpus = [2, 3]` of a host, or `--gpus 2,3`, says which to use; `gpus = []` leaves them to you";
        found.push(locator.diagnostic(&key, &text).hint(hint));
    }
}

/// Variables that ranks are to have from this process, and that it does not have.
fn missing_variables(draft: &PlanDraft, locator: &Locator, found: &mut Diagnostics) {
    let launch = &draft.experiment.launch;
    let mut told = BTreeSet::new();
    let mut bytes = 0;
    for (node, host) in draft.hosts.iter().enumerate() {
        let (values, missing) = WantedVariables::new(launch, host).fill(&|name| std::env::var(name).ok());
        bytes = bytes.max(values.bytes());
        for name in missing.into_iter().filter(|name| told.insert(name.clone())) {
            let holds = |(_, value): &(&String, &String)| value.contains(&format!("${{{name}}}"));
            let key = match (
                launch.pass_env.iter().position(|passed| *passed == name),
                launch.env.iter().find(holds),
            ) {
                (Some(index), _) => format!("launch.pass_env.{index}"),
                (None, Some((key, _))) => format!("launch.env.{key}"),
                (None, None) => {
                    let own = host.env.iter().find(holds).map_or("", |(key, _)| key.as_str());
                    format!("host.{node}.env.{own}")
                }
            };
            found.push(
                locator
                    .diagnostic(&key, &format!("`{name}` is not set in this console's environment"))
                    .hint(format!("`export {name}=...` in this shell first; an empty value counts as set")),
            );
        }
    }
    if bytes > MOST_BYTES {
        found.push(
            locator
                .diagnostic(
                    "launch.pass_env",
                    &format!("the values of variables have {bytes} bytes, {MOST_BYTES} at most"),
                )
                .hint("put what is large into a file on the hosts"),
        );
    }
}
