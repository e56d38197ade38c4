//! `rankdeck demo` and `rankdeck simulate`: show a console for simulated hosts.

use crate::app::demo::Demo;
use crate::app::driver::{ConsoleLinks, ConsoleSetup, ExitReason};
use crate::app::exit_condition::ExitCondition;
use crate::app::stderr;
use crate::cli::args::{DemoArgs, SimulateArgs};
use crate::cli::support::Failure;
use crate::cli::support::console::{self, INBOX};
use crate::cli::support::output_mode::{self, OutputMode, TerminalInfo};
use crate::cli::support::run_id::{RUNS, new_run_id};
use rankdeck_core::Goal;
use rankdeck_link::simulator::{self, SimulatedCluster};
use rankdeck_types::experiment::{OnStuck, Restart};
use std::path::Path;
use std::time::Duration;
use tokio::sync::mpsc;

/// Runs `rankdeck demo`: simulated hosts with GPUs, and keys that inject faults.
pub(crate) async fn demo(args: DemoArgs) -> Result<u8, Failure> {
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

/// Runs `rankdeck simulate`.
pub(crate) async fn simulate(args: SimulateArgs) -> Result<u8, Failure> {
    show(args, Restart::default(), false).await
}

async fn show(args: SimulateArgs, restart: Restart, keys: bool) -> Result<u8, Failure> {
    let chosen = output_mode::choose(&args.output, &TerminalInfo::here())?;
    let outlets = console::outlets().await?;
    let on_stuck = match args.on_stuck.as_str() {
        "report" => OnStuck::Report,
        "stop" => OnStuck::Stop,
        "restart" => OnStuck::Restart,
        other => {
            return Err(Failure::usage(format!("--on-stuck {other}: expected report, stop or restart"))
                .hint("`--on-stuck report`"));
        }
    };
    let scene = SimulatedCluster {
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
    let (links, trouble) = simulator::open_with_injector(&scene, &run, &events);
    drop(events);
    let exit_condition = if args.detach { ExitCondition::detach() } else { console::watching(&args.output) };
    // A demonstration can be rewound like any run; its recording is deleted at the end.
    let screen = keys && !matches!(chosen, OutputMode::Lines(_));
    let passing = screen.then(tempfile::tempdir).transpose().unwrap_or_default();
    let records = passing.as_ref().map_or(Path::new(RUNS), tempfile::TempDir::path);
    let links = ConsoleLinks { handles: links, inbox, connector: None };
    let mut setup = ConsoleSetup::new(Goal::Launch(Box::new(draft)), exit_condition, links);
    setup.until = args.until;
    setup.simulated = true;
    setup.demo = keys.then(|| Demo::new(trouble));
    let is_recorded = args.record || passing.is_some();
    let recorded = is_recorded.then(|| console::record(&setup.goal, (records, &run), None)).transpose()?;
    let (recorder, log) = recorded.unzip();
    setup.recorder = recorder;
    let mut end = console::console(setup, outlets, chosen, log, output_mode::pace(&args.output)).await?;
    if end.why == ExitReason::Detached {
        stderr::line(&format!("the simulated run {run} ended with its console"));
        return Ok(end.code);
    }
    // A deleted recording is not listed.
    if passing.is_some() {
        end.record = None;
    }
    Ok(console::finish(&end, &args.output, &run))
}
