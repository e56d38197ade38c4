//! `rankdeck-trainer`: one rank of a run, or with `--spawn` several on this host.

use clap::Parser;
use rankdeck_trainer::identity::Flags;
use std::process::ExitCode;

fn main() -> ExitCode {
    match Flags::try_parse() {
        Ok(flags) => ExitCode::from(rankdeck_trainer::main(&flags)),
        Err(error) => {
            let _ = error.print();
            ExitCode::from(if error.use_stderr() { 2 } else { 0 })
        }
    }
}
