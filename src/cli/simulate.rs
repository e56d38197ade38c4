//! `rankdeck simulate`: a console over simulated hosts, for demonstrations and tests.

use super::args::SimulateArgs;
use super::choose::{self, TerminalInfo};
use super::run::{self, INBOX};
use super::run_id::new_run_id;
use super::{Failure, args::HostKeyArgs};
use crate::shell::objective::Objective;
use rankdeck_core::Goal;
use rankdeck_link::simulator;
use rankdeck_link::simulator::Scene;
use rankdeck_types::experiment::OnStuck;
use std::time::Duration;
use tokio::sync::mpsc;

/// `rankdeck simulate`.
pub async fn simulate(args: SimulateArgs) -> Result<u8, Failure> {
    let chosen = choose::choose(&args.output, &TerminalInfo::here())?;
    let on_stuck = match args.on_stuck.as_str() {
        "report" => OnStuck::Report,
        "stop" => OnStuck::Stop,
        "restart" => OnStuck::Restart,
        other => {
            return Err(Failure::usage(format!("--on-stuck {other}: expected report, stop or restart"))
                .hint("`--on-stuck report`"));
        }
    };
    let scene = Scene {
        nnodes: args.nnodes,
        ranks_per_host: args.ranks,
        gpus: args.gpus,
        seed: args.seed,
        total_steps: args.steps,
        iteration: Duration::from_millis(args.iteration_ms),
        faults: args.fault.clone(),
    };
    let run = new_run_id("simulated");
    let mut draft = scene.draft(run.clone());
    draft.experiment.watch.on_stuck = on_stuck;
    let (events, inbox) = mpsc::channel(INBOX);
    let links = simulator::open(&scene, &run, &events);
    drop(events);
    let objective = if args.detach { Objective::Detach } else { Objective::Watch };
    let record = args.record.then_some(&run);
    let watching = run::ConsoleOptions {
        until: args.until,
        objective,
        spares: Vec::new(),
        warnings: Vec::new(),
        record,
    };
    let links = run::Links { links, inbox, connector: None };
    let end =
        run::console(Goal::Launch(Box::new(draft)), watching, links, &HostKeyArgs::default(), chosen).await?;
    Ok(run::finish(&end, &args.output, &run))
}
