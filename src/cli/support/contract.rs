//! The gate of every launch: reads the promises of a program, and rejects options that need other ones.

use crate::cli::args::promises::Needs;
use crate::cli::support::program_source::ProgramSource;
use crate::cli::support::{Failure, rank_variables};
use rankdeck_config::{ExperimentSource, HostsSource};
use rankdeck_core::model::Model;
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::Host;
use rankdeck_types::plan::PlanDraft;
use rankdeck_types::promise::{Contract, Kept, ProgramFacts, Promise};

/// Returns what is known about the program of an experiment. Reads its source on this machine.
pub(crate) fn facts(experiment: &Experiment, source: &ExperimentSource, hosts: &[Host]) -> ProgramFacts {
    let is_typed = matches!(source, ExperimentSource::Command { .. });
    ProgramSource::of(experiment, source, hosts).facts(&experiment.launch.command, is_typed)
}

/// Rejects an experiment whose program does not keep what is needed.
pub(crate) fn demand(
    experiment: &Experiment,
    source: &ExperimentSource,
    hosts: &[Host],
    needs: &Needs,
) -> Result<(), Failure> {
    if needs.demanded.is_empty() {
        return Ok(());
    }
    checked(&Contract::of(experiment, &facts(experiment, source, hosts)), needs)
}

/// Completes a draft by what is known about its program, and rejects it if the program does not keep what is needed.
/// Returns why a single rank has torchrun's variables, or lacks them.
pub(crate) fn complete(
    draft: &mut PlanDraft,
    hosts: &HostsSource,
    source: &ExperimentSource,
    needs: &Needs,
) -> Result<Option<&'static str>, Failure> {
    let facts = facts(&draft.experiment, source, &draft.hosts);
    let why = rank_variables::decide(draft, hosts, &facts);
    draft.program = Some(facts).filter(|_| !draft.experiment.launch.command.is_empty());
    draft.asked = needs.demanded.clone();
    checked(&draft.contract(), needs).map(|()| why)
}

fn checked(contract: &Contract, needs: &Needs) -> Result<(), Failure> {
    let asked: Vec<Promise> = needs.demanded.iter().copied().collect();
    contract.demand(&asked).map_err(refused)
}

fn refused(HintedError { error, hint }: HintedError) -> Failure {
    Failure::usage(error).hint(hint)
}

/// Rejects what needs a promise that the program of an existing run does not keep, by its record. Older records have no
/// facts about the program: what is unknown there is left to the prompt of the command.
pub(crate) fn demand_of_run(model: &Model, promise: Promise) -> Result<(), Failure> {
    let Some(plan) = &model.plan else { return Ok(()) };
    let contract = plan.contract();
    match plan.program.is_none() && contract.kept(promise) == Kept::Unknown {
        true => Ok(()),
        false => contract.demand(&[promise]).map_err(refused),
    }
}

/// Returns the note on a launch that is to resume, now or by itself, if its program does not declare that it can.
pub(crate) fn caution(experiment: &Experiment, contract: &Contract, needs: &Needs) -> Option<String> {
    let who = match needs.wanted.contains(&Promise::Resume) {
        true => "the run",
        false if experiment.restarts_by_itself() => "each restart",
        false => return None,
    };
    let HintedError { error, hint } = contract.caution()?;
    Some(format!("note: {who} {error}; {hint}"))
}

/// Returns the same note on a run that was restarted from a checkpoint.
pub(crate) fn caution_of_run(model: &Model) -> Option<String> {
    let plan = model.plan.as_ref().filter(|plan| plan.program.is_some())?;
    let HintedError { error, hint } = plan.contract().caution()?;
    Some(format!("note: the run {error}; {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_config::load_draft;
    use rankdeck_types::ids::RunId;

    #[test]
    fn draft_with_a_promise_not_kept_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("e.toml");
        let rejected = |script: &str, needs: &Needs| {
            std::fs::write(folder.path().join("t.py"), script).unwrap();
            std::fs::write(&path, "[run]\nname = \"a\"\n[launch]\ncommand = [\"python3\", \"t.py\"]\n")
                .unwrap();
            let source = ExperimentSource::File(path.clone());
            let mut draft = load_draft(&HostsSource::Here, &source, &[], |_| RunId("a-1".into())).unwrap();
            let completed = complete(&mut draft, &HostsSource::Here, &source, needs);
            assert!(draft.program.is_some());
            assert_eq!(draft.problems(&[]).is_empty(), completed.is_ok());
            assert_eq!(demand(&draft.experiment, &source, &draft.hosts, needs).is_ok(), completed.is_ok());
            let noted = caution(&draft.experiment, &draft.contract(), needs).is_some();
            (completed.is_err(), noted)
        };
        let resume = || [Promise::Resume].into();
        let from = Needs { demanded: resume(), ..Needs::default() };
        let continued = Needs { wanted: resume(), ..Needs::default() };
        let reads = "import os\nfrom_ = os.environ.get(\"RANKDECK_RESUME\")\n";
        assert_eq!(rejected("import torch\n", &Needs::default()), (false, false));
        assert_eq!(rejected("import torch\n", &from), (true, false));
        assert_eq!(rejected("import torch\n", &continued), (false, true));
        assert_eq!(rejected(reads, &from), (false, false));
        assert_eq!(rejected(reads, &continued), (false, false));
    }
}
