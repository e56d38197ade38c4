//! Interrupts before a command has changed a run: how it handles signals and reports the state of the run.

use crate::app::driver::{ConsoleExit, ExitReason};
use crate::app::exit_condition::silent;
use crate::app::signals::{ConsoleSignal, ConsoleSignals};
use crate::app::{stderr, tty_prompt};
use crate::cli::support::{Failure, code};
use rankdeck_core::model::{Model, RunModel, RunState};
use rankdeck_core::origin;
use rankdeck_types::ids::RunId;
use std::future::Future;

/// Runs `work` unless a signal arrives; then the command `name` exits. `known`: the state that hosts have
/// reported so far.
pub(crate) async fn unless_interrupted<T>(
    name: &str,
    known: Option<&ConsoleExit>,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    until_interrupted(work).await?.unwrap_or_else(|| {
        Err(interrupted(name).hint(match known.map(|end| &end.model) {
            Some(model @ Model { run: RunModel { id: Some(run), .. }, .. }) => standing(model, run),
            _ => "check the run with `rankdeck ps`".to_owned(),
        }))
    })
}

/// Runs `work`, which starts nothing, unless a signal arrives; then the command exits.
pub(crate) async fn before_start<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    until_interrupted(work).await?.unwrap_or_else(|| {
        let failure = Failure::failed("interrupted: nothing was started");
        Err(Failure { code: code::INTERRUPTED, ..failure })
    })
}

/// Runs `work`, which ends its processes when it is dropped, unless a signal arrives; then the command exits.
pub(crate) async fn while_replaying<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    until_interrupted(work).await?.unwrap_or_else(|| {
        let failure = Failure::failed("interrupted: the replay was ended")
            .hint("pass --no-replay to compare only what the runs recorded");
        Err(Failure { code: code::INTERRUPTED, ..failure })
    })
}

/// Runs `work`; `None` if a signal arrives first.
async fn until_interrupted<T>(work: impl Future<Output = T>) -> Result<Option<T>, Failure> {
    let mut signals = ConsoleSignals::new(false).map_err(Failure::no_thread)?;
    let interrupt =
        async { while !matches!(signals.next().await, ConsoleSignal::Stop | ConsoleSignal::HangUp) {} };
    tokio::select! {
        done = work => Ok(Some(done)),
        () = interrupt => {
            tty_prompt::restore();
            if stderr::is_terminal() {
                stderr::end_status();
            }
            Ok(None)
        }
    }
}

fn interrupted(name: &str) -> Failure {
    Failure { code: code::INTERRUPTED, ..Failure::failed(format!("interrupted: no {name} was requested")) }
}

/// Returns why the command `name` ended without a request; `None` if it sent one, or completed its query.
pub(crate) fn unrequested(name: &str, end: &ConsoleExit, run: &RunId) -> Option<Failure> {
    let model = &end.model;
    let away: Vec<&str> = silent(model, &[]).map(|host| host.name.as_str()).collect();
    let failure = match end.why {
        _ if !end.unrequested => return None,
        ExitReason::Detached => return None,
        ExitReason::Interrupted | ExitReason::Cut => interrupted(name),
        ExitReason::Done => {
            let failure = Failure::failed(format!("no {name}: {}", model.run.reason));
            Failure { code: end.code.max(code::FAILED), ..failure }
        }
        ExitReason::GaveUp if away.is_empty() => {
            Failure::failed(format!("no {name}: run {run} is changing state; try again"))
        }
        ExitReason::GaveUp => {
            let failure = Failure::host(format!("no {name}: no response from {}", away.join(", ")));
            failure.hint(exclusion(model, &away))
        }
    };
    Some(failure.hint(standing(model, run)))
}

/// Returns the hint to restart without hosts that do not respond.
pub(crate) fn exclusion(model: &Model, away: &[&str]) -> String {
    origin::exclusion(model, away)
        .unwrap_or_else(|| "list the hosts that respond with `rankdeck ps`".to_owned())
}

/// Describes the state of the run as reported by its hosts.
pub(crate) fn standing(model: &Model, run: &RunId) -> String {
    let away: Vec<&str> = silent(model, &[]).map(|host| host.name.as_str()).collect();
    let is_here = |name: &&str| !away.contains(name);
    let members = model.plan.iter().flat_map(|plan| plan.members());
    let here: Vec<&str> = members.map(|planned| planned.host.name.as_str()).filter(is_here).collect();
    let here = here.join(", ");
    // Without a launch reported by a host, only the console has ended, not the run.
    let state = if model.run.launch.is_some() { model.run.state } else { RunState::Connecting };
    let text = match state {
        RunState::Connecting => format!("no host has reported run {run}"),
        // Hosts that do not respond have not reported their ranks either.
        RunState::Launching if away.is_empty() => format!("run {run} is starting on {here}"),
        RunState::Launching | RunState::Running => format!("run {run} keeps running on {here}"),
        RunState::Draining => format!("run {run} is stopping"),
        RunState::Restarting => format!("run {run} is restarting"),
        RunState::Over if model.run.reason.is_empty() => format!("run {run} has ended"),
        RunState::Over => format!("run {run} has ended: {}", model.run.reason),
    };
    match away.is_empty() || state == RunState::Connecting {
        true => text,
        false => format!("{text}; no response from {}", away.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_core::model::HostModel;
    use rankdeck_proto::message::LaunchHash;
    use rankdeck_types::ids::NodeRank;

    #[test]
    fn run_activity_is_read_from_hosts() {
        let run = RunId("r".into());
        let mut model = Model::default();
        for (node, name) in ["a", "b"].into_iter().enumerate() {
            let host = HostModel::new(NodeRank(node as u32), name);
            model.hosts.push(HostModel { agent: (node == 0).then(|| (1, "b".into())), ..host });
        }
        model.run.launch = Some(LaunchHash("1".into()));
        let mut texts = std::collections::BTreeSet::new();
        for state in [
            RunState::Connecting,
            RunState::Running,
            RunState::Draining,
            RunState::Restarting,
            RunState::Over,
        ] {
            model.run.state = state;
            let text = standing(&model, &run);
            assert_eq!(text.contains("no response from b"), state != RunState::Connecting, "{text}");
            assert!(!text.contains("no response from a"), "{text}");
            texts.insert(text);
        }
        assert_eq!(texts.len(), 5, "no two states have the same words");
        model.run.launch = None;
        assert!(texts.contains(&standing(&model, &run)), "a console that found nothing has seen no end");
    }
}
