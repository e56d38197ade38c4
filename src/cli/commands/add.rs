//! `rankdeck add`: starts a lost rank of a running run again; it joins the others.

use crate::app::driver::ExitReason;
use crate::app::exit_condition::{ExitCondition, is_lost};
use crate::cli::args::AddArgs;
use crate::cli::support::console::ExistingRun;
use crate::cli::support::locate::RunLocator;
use crate::cli::support::run_name::RunAction;
use crate::cli::support::{Failure, code, interrupt};
use rankdeck_config::HostsSource;
use rankdeck_types::ids::Rank;
use serde_json::json;

/// The command's name in messages.
const ADD: &str = "add";

/// Runs `rankdeck add`: orders the agent of the rank's host to start it, and waits until it has joined.
pub(crate) async fn add(hosts_from: &HostsSource, args: AddArgs) -> Result<u8, Failure> {
    let locator = RunLocator::new(hosts_from, &args.host_keys);
    let find = locator.find(args.run.as_deref(), RunAction::Change);
    let located = interrupt::unless_interrupted(ADD, None, find).await?;
    let (run_index, found) = (&located.run_index, located.found()?);
    let target = ExistingRun::new(run_index, &found)?;
    let (rank, run) = (Rank(args.rank), &target.run);
    args.output.progress(&format!("starting rank {rank} of run {run} again"));
    let end = target.run_until(ExitCondition::add(rank), &args.host_keys).await?;
    if let Some(failure) = interrupt::unrequested(ADD, &end, run) {
        return Err(failure);
    }
    let model = &end.model;
    let standing = interrupt::standing(model, run);
    if let Some(refused) = &model.membership.refused {
        return Err(Failure::failed(format!("not added: {refused}")).hint(standing));
    }
    if is_lost(model, rank) || end.why != ExitReason::Detached {
        let failure = Failure::failed(format!("rank {rank} has not joined run {run}"));
        return Err(failure.hint(standing).hint(format!("`rankdeck logs {run} --rank {rank}`")));
    }
    let members = model.member_count();
    args.output
        .outcome(&format!("added: rank {rank} of run {run}; {members} of {} ranks", model.ranks.len()));
    args.output.record(|| {
        json!({
            "kind": "added",
            "run": run,
            "rank": rank,
            "members": members,
            "world_size": model.ranks.len(),
            "epoch": model.membership.epoch,
        })
    });
    Ok(code::SUCCESS)
}
