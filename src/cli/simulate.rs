//! `rankdeck simulate`: a console over simulated hosts, for demonstrations and tests.

use super::args::{DemoArgs, SimulateArgs};
use super::choose::{self, OutputChoice, TerminalInfo};
use super::run::{self, INBOX};
use super::run_id::{RUNS, new_run_id};
use super::{Failure, args::HostKeyArgs};
use crate::shell::demo::Demo;
use crate::shell::driver::Why;
use crate::shell::objective::Objective;
use crate::shell::stderr;
use rankdeck_core::Goal;
use rankdeck_link::simulator;
use rankdeck_link::simulator::Scene;
use rankdeck_types::experiment::{OnStuck, Restart};
use std::path::Path;
use std::time::Duration;
use tokio::sync::mpsc;

/// Runs `rankdeck demo`: simulated hosts with GPUs, and keys that let things go wrong.
pub async fn demo(args: DemoArgs) -> Result<u8, Failure> {
    let restarts = Restart { max_restarts: Some(3), backoff_s: 2.0, ..Restart::default() };
    let simulated = SimulateArgs {
        nnodes: args.nnodes,
        ranks: args.ranks,
        gpus: true,
        seed: args.seed,
        steps: 0,
        iteration_ms: 500,
        fault: Vec::new(),
        on_stuck: "report".into(),
        output: args.output,
        until: Vec::new(),
        detach: false,
        record: false,
    };
    show(simulated, restarts, true).await
}

/// Runs `rankdeck simulate`: a console over simulated hosts.
pub async fn simulate(args: SimulateArgs) -> Result<u8, Failure> {
    show(args, Restart::default(), false).await
}

async fn show(args: SimulateArgs, restart: Restart, keys: bool) -> Result<u8, Failure> {
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
    draft.experiment.restart = restart;
    let (events, inbox) = mpsc::channel(INBOX);
    let (links, trouble) = simulator::open_for_trouble(&scene, &run, &events);
    drop(events);
    let objective = if args.detach { Objective::Detach } else { run::watching(&args.output) };
    // The moments of a demonstration can be gone back to as those of any run; nothing of it is kept.
    let screen = keys && !matches!(chosen, OutputChoice::Lines(_));
    let passing = screen.then(tempfile::tempdir).transpose().unwrap_or_default();
    let records = passing.as_ref().map_or(Path::new(RUNS), tempfile::TempDir::path);
    let record = (args.record || passing.is_some()).then_some((records, &run));
    let watching = run::ConsoleOptions {
        until: args.until,
        objective,
        spares: Vec::new(),
        listed: Vec::new(),
        warnings: Vec::new(),
        record,
        origin: None,
        pace: choose::pace(&args.output),
        simulated: true,
        demo: keys.then(|| Demo::new(trouble)),
    };
    let links = run::Links { links, inbox, connector: None };
    let mut end =
        run::console(Goal::Launch(Box::new(draft)), watching, links, &HostKeyArgs::default(), chosen).await?;
    if end.why == Why::Detached {
        stderr::line(&format!("left: the simulated run {run} has ended with its console"));
        return Ok(end.code);
    }
    // What is gone with the demonstration is not named.
    if passing.is_some() {
        end.record = None;
    }
    Ok(run::finish(&end, &args.output, &run))
}
