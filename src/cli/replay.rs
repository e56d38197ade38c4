//! `rankdeck replay`: a recorded run again, on the screen or as lines.

use super::args::ReplayArgs;
use super::choose::{self, OutputChoice, TerminalInfo};
use super::run_id::RUNS;
use super::{Failure, code, past};
use crate::shell::cursor::Cursor;
use crate::shell::headless::{Form, Pace, Printer};
use crate::shell::output::Output;
use crate::shell::record::reader::RecordError;
use crate::shell::replay;
use std::path::Path;

/// Runs `rankdeck replay`: shows a recorded run.
pub async fn replay(args: ReplayArgs) -> Result<u8, Failure> {
    let chosen = choose::choose(&args.output, &TerminalInfo::here())?;
    let past = past::find(args.what.as_deref())?;
    let record = past::open(&past)?;
    let unreadable = |error: RecordError| {
        Failure::usage(error.to_string()).hint("another rankdeck may have written it: use that one")
    };
    let mut cursor = Cursor::replay(record).map_err(unreadable)?;
    match chosen {
        OutputChoice::Screen => {
            let Output::Screen(screen) = choose::open(chosen, None, Pace::USUAL)? else {
                return Ok(code::FAILED);
            };
            let runs = past.record.ancestors().nth(3).unwrap_or(Path::new(RUNS));
            replay::on_screen(cursor, *screen, runs, &past.typed()).await.map_err(|error| {
                Failure::failed(format!("the terminal failed: {error}"))
                    .hint("`--headless` prints the recorded run as lines")
            })?;
        }
        OutputChoice::Linear { .. } | OutputChoice::Lines(_) => {
            let form = match chosen {
                OutputChoice::Lines(form) => form,
                _ => Form::Plain { logs: args.output.logs },
            };
            let mut printer = Printer::new(form).map_err(Failure::no_thread)?;
            let player = cursor.player();
            // One event at a time, so that every report is printed with the state it was made in.
            while let Some((at, reports)) = player.step() {
                for report in reports {
                    printer.report(at, &report, player.model());
                }
            }
        }
    }
    Ok(code::SUCCESS)
}
