//! `rankdeck simulate`: a console over simulated hosts, for demonstrations and tests.

use super::args::SimulateArgs;
use super::choose::{self, Place};
use super::run::{self, INBOX};
use super::{Failure, args::MeetArgs};
use crate::shell::errand::Errand;
use rankdeck_core::Goal;
use rankdeck_link::simulator::{Scene, World};
use rankdeck_types::experiment::OnStuck;
use std::time::Duration;
use tokio::sync::mpsc;

/// `rankdeck simulate`.
pub async fn simulate(args: SimulateArgs) -> Result<u8, Failure> {
    let chosen = choose::choose(&args.face, &Place::here())?;
    let on_stuck = match args.on_stuck.as_str() {
        "report" => OnStuck::Report,
        "stop" => OnStuck::Stop,
        "restart" => OnStuck::Restart,
        other => return Err(Failure::usage(format!("--on-stuck {other}: expected report, stop or restart"))),
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
    let run = run::new_run_id("simulated");
    let mut draft = scene.draft(run.clone());
    draft.experiment.watch.on_stuck = on_stuck;
    let (events, inbox) = mpsc::channel(INBOX);
    let links = World::open(&scene, &run, &events);
    drop(events);
    let errand = if args.detach { Errand::Detach } else { Errand::Watch };
    let record = args.record.then_some(&run);
    let watching =
        run::Watching { until: args.until, errand, spares: Vec::new(), warnings: Vec::new(), record };
    let links = run::Links { links, inbox, connector: None };
    let end =
        run::console(Goal::Launch(Box::new(draft)), watching, links, &MeetArgs::default(), chosen).await?;
    Ok(run::finish(&end, &args.face, &run))
}
