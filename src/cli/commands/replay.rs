//! `rankdeck replay`: shows a recorded run on the screen or as lines.

use crate::app::headless::{LineFormat, PrintRate, Printer};
use crate::app::output::ConsoleOutput;
use crate::app::playback::{PlaybackCursor, show_replay};
use crate::app::record::reader::RecordError;
use crate::cli::args::ReplayArgs;
use crate::cli::support::output_mode::{self, OutputMode, TerminalInfo};
use crate::cli::support::run_id::RUNS;
use crate::cli::support::{Failure, code, recorded_runs};
use std::path::Path;

/// Runs `rankdeck replay`.
pub(crate) async fn replay(args: ReplayArgs) -> Result<u8, Failure> {
    let chosen = output_mode::choose(&args.output, &TerminalInfo::here())?;
    let recorded = recorded_runs::find(&args.what)?;
    let record = recorded_runs::open(&recorded)?;
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
