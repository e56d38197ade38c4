//! `rankdeck replay`: a recorded run again, on the screen or as lines.

use super::args::ReplayArgs;
use super::choose::{self, OutputChoice, TerminalInfo};
use super::run_id::RUNS;
use super::{Failure, code};
use crate::shell::headless::Printer;
use crate::shell::output::Output;
use crate::shell::replay;
use crate::shell::replay::Player;
use rankdeck_core::trace::Trace;
use std::path::{Path, PathBuf};

/// `rankdeck replay`.
pub async fn replay(args: ReplayArgs) -> Result<u8, Failure> {
    let chosen = choose::choose(&args.output, &TerminalInfo::here())?;
    let path = find(&args.what)?;
    let trace = load(&path)?;
    if let Some(line) = trace.torn_at {
        super::print::stderr(&format!("note: {} ends early, at line {line}", path.display()));
    }
    let mut player = Player::new(trace);
    match chosen {
        OutputChoice::Screen => {
            let Output::Screen(screen) = choose::open(chosen, None)? else { return Ok(code::FAILED) };
            replay::on_screen(player, *screen).await.map_err(|error| {
                Failure::failed(format!("the terminal failed: {error}"))
                    .hint("`--headless` prints the recorded run as lines")
            })?;
        }
        OutputChoice::Lines(form) => {
            let mut printer = Printer::new(form).map_err(Failure::no_thread)?;
            // One event at a time, so that every report is printed with the state it was made in.
            while let Some(at) = player.next_at() {
                for report in player.seek(at) {
                    printer.report(at, &report, player.model());
                }
            }
        }
    }
    Ok(code::SUCCESS)
}

/// The trace that is meant: a file, a folder with one, or a run under `runs/`.
fn find(what: &str) -> Result<PathBuf, Failure> {
    let given = Path::new(what);
    let candidates = [
        given.to_path_buf(),
        given.join("trace.jsonl"),
        given.join("console/trace.jsonl"),
        Path::new(RUNS).join(what).join("console/trace.jsonl"),
    ];
    candidates.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        Failure::usage(format!("there is no trace of `{what}` here"))
            .hint(format!("give a trace.jsonl, or a run whose console recorded into {RUNS}/ in this folder"))
    })
}

fn load(path: &Path) -> Result<Trace, Failure> {
    let failure = |error: String| {
        Failure::usage(format!("{}: {error}", path.display()))
            .hint("a trace is `console/trace.jsonl` in a run directory")
    };
    let text = std::fs::read_to_string(path).map_err(|error| failure(error.to_string()))?;
    Trace::parse(&text).map_err(|error| failure(error.to_string()))
}
