//! Consoles of runs that are not launched here: `rankdeck attach` shows a running or finished run, `replay` a recorded
//! one, `demo` and `simulate` simulated hosts.

use crate::app::demo::Demo;
use crate::app::driver::{ConsoleLinks, ConsoleSetup, ExitReason};
use crate::app::exit_condition::ExitCondition;
use crate::app::headless::{LineFormat, PrintRate, Printer};
use crate::app::output::ConsoleOutput;
use crate::app::playback::{PlaybackCursor, show_replay};
use crate::app::record::reader::RecordError;
use crate::app::stderr;
use crate::cli::args::{AttachArgs, DemoArgs, ReplayArgs, SimulateArgs};
use crate::cli::support::console::{self, ExistingRun, INBOX};
use crate::cli::support::locate::{self, RunLocator};
use crate::cli::support::output_mode::{self, OutputMode, TerminalInfo};
use crate::cli::support::run_name::{RUNS, RunAction, new_run_id};
use crate::cli::support::{Failure, code, measure, provenance, relaunch};
use rankdeck_config::HostsSource;
use rankdeck_core::Goal;
use rankdeck_link::simulator::{self, SimulatedCluster};
use rankdeck_types::experiment::{OnStuck, Restart};
use std::path::Path;
use std::time::Duration;
use tokio::sync::mpsc;

/// Runs `rankdeck attach`.
pub(crate) async fn attach(hosts_from: &HostsSource, args: AttachArgs) -> Result<u8, Failure> {
    let chosen = output_mode::choose(&args.output, &TerminalInfo::here())?;
    let outlets = console::outlets().await?;
    let locator = RunLocator::new(hosts_from, &args.host_keys);
    let located = locator.find(args.run.as_deref(), RunAction::Watch).await?;
    let run_index = &located.run_index;
    let target = ExistingRun::new(run_index, &located.found()?)?;
    let goal = target.goal();
    let (recorder, log) = console::record(&goal, (Path::new(RUNS), &target.run), None)?;
    let links = target.open_links(&args.host_keys, chosen)?;
    let spares = run_index.hosts.iter().filter(|host| !target.hosts.contains(host)).cloned().collect();
    let mut setup = ConsoleSetup::new(goal, console::watching(&args.output), links);
    setup.recorder = Some(recorder);
    setup.slow_links = measure::baseline::slow_links(&target.hosts);
    setup.spares = spares;
    setup.listed = run_index.hosts.clone();
    setup.accept_new_host_keys = args.host_keys.accept_new_host_keys;
    relaunch::offer(provenance::relaunch_spec(&target.run), &target.run, &target.hosts);
    let end = console::console(setup, outlets, chosen, Some(log), output_mode::pace(&args.output)).await?;
    Ok(console::finish(&end, &args.output, &target.run))
}

/// Runs `rankdeck replay`.
pub(crate) async fn replay(args: ReplayArgs) -> Result<u8, Failure> {
    let chosen = output_mode::choose(&args.output, &TerminalInfo::here())?;
    let recorded = locate::recording(&args.what)?;
    let record = locate::open_recording(&recorded)?;
    let unreadable = |error: RecordError| {
        Failure::usage(error.to_string()).hint("it may be from another version of rankdeck: use that one")
    };
    let mut cursor = PlaybackCursor::replay(record).map_err(unreadable)?;
    match chosen {
        OutputMode::Screen => {
            let ConsoleOutput::Screen(screen) = output_mode::open(chosen, None, PrintRate::USUAL)? else {
                return Ok(code::FAILED);
            };
            let runs = recorded.record.ancestors().nth(3).unwrap_or(Path::new(RUNS));
            show_replay(cursor, *screen, runs, &recorded.typed()).await.map_err(|error| {
                Failure::failed(format!("the terminal failed: {error}"))
                    .hint("use `--headless` to print the run as lines")
            })?;
        }
        OutputMode::Linear { .. } | OutputMode::Lines(_) => {
            let form = match chosen {
                OutputMode::Lines(form) => form,
                _ => LineFormat::Plain { logs: args.output.logs },
            };
            let mut printer =
                Printer::paced(form, output_mode::pace(&args.output)).map_err(Failure::no_thread)?;
            let player = cursor.player();
            // One event at a time, so that every report is printed with the state of its moment.
            while let Some((at, reports)) = player.step() {
                for report in reports {
                    printer.report(at, &report, player.model());
                    printer.wait_for_room();
                }
            }
            printer.wait();
        }
    }
    Ok(code::SUCCESS)
}

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
