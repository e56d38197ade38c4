//! What a console asks of one process here: checked, recorded where it changes something, carried out,
//! answered.

use crate::proc::Ident;
use crate::reach;
use crate::serve::console::Order;
use crate::serve::journal::Journal;
use crate::supervise::lifecycle::Lifecycle;
use rankdeck_proto::message::{AgentMessage, RecordEvent};
use rankdeck_proto::process::{ProcessAction, ProcessName, ReachOutcome};
use rankdeck_types::error::HintedError;
use rankdeck_types::variables::WantedVariables;
use std::collections::BTreeSet;

/// Does what `order` asks of a process; `spared` serve the run and are left alone.
pub(crate) fn reach(
    request: u64,
    process: ProcessName,
    action: ProcessAction,
    order: &Order,
    (lifecycle, journal): (&Lifecycle, &Journal),
    spared: &BTreeSet<u32>,
) {
    let answers = order.answers.clone();
    let answer = move |result: Result<ReachOutcome, HintedError>| AgentMessage::Reached {
        request,
        outcome: Box::new(result.unwrap_or_else(ReachOutcome::Refused)),
    };
    let meant = match meant(lifecycle, process, spared) {
        Ok(meant) => meant,
        Err(error) => {
            let _ = answers.try_send(answer(Err(error)));
            return;
        }
    };
    match action {
        ProcessAction::Environment => {
            let hidden = hidden(lifecycle);
            // The kernel may keep a reader waiting for as long as the process holds its memory map.
            tokio::task::spawn_blocking(move || {
                let _ = answers.blocking_send(answer(reach::environment(meant, &hidden)));
            });
        }
        ProcessAction::Signal { signal } => {
            // Its record is to come before that of the end that it may cause.
            let result = reach::check(meant).and_then(|()| {
                let ProcessName { rank, pid, .. } = process;
                journal.record(RecordEvent::Signalled { rank, pid, signal });
                reach::signal(meant, signal)
            });
            if let Err(error) = &result {
                journal.notice(format!("{process}: {}", error.error));
            }
            // A console that does not even take its answers has the record.
            let _ = answers.try_send(answer(result));
        }
        ProcessAction::Unknown => {
            let error = HintedError::new("this agent is of an older rankdeck and does not know that", "");
            let _ = answers.try_send(answer(Err(error)));
        }
    }
}

/// The process that is meant.
fn meant(lifecycle: &Lifecycle, process: ProcessName, spared: &BTreeSet<u32>) -> Result<Ident, HintedError> {
    let Some(rank) = process.rank else {
        if spared.contains(&process.pid) {
            let error = format!("pid {} is rankdeck's own: it serves the run", process.pid);
            return Err(HintedError::new(error, "`rankdeck stop` ends the run and what serves it"));
        }
        return Ok(Ident { pid: process.pid, start: process.start });
    };
    let life = lifecycle.ranks().iter().find(|life| life.rank == rank);
    let ident = life.filter(|life| life.lives()).and_then(|life| life.ident);
    match ident {
        None => Err(HintedError::new(format!("rank {rank} has no process here"), "")),
        Some(ident) if ident.pid != process.pid => Err(HintedError::new(
            format!("rank {rank} is pid {} by now, not {}", ident.pid, process.pid),
            "ask again: it was started anew",
        )),
        Some(ident) => Ok(ident),
    }
}

/// Variables whose values came from the console that launched the run.
fn hidden(lifecycle: &Lifecycle) -> BTreeSet<String> {
    let Some(spec) = lifecycle.spec() else { return BTreeSet::new() };
    let host = spec.plan.hosts.get(spec.node_rank.index());
    let wanted = host.map(|planned| WantedVariables::new(&spec.plan.experiment.launch, &planned.host));
    wanted.iter().flat_map(|wanted| wanted.names().map(str::to_owned).collect::<Vec<_>>()).collect()
}
