//! The console: parse, run, exit code. `rankdeck agent ...` is what runs on a host and goes its own way before anything else is set up.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    if args.nth(1).is_some_and(|command| command == "agent") {
        return rankdeck::agent::main(args);
    }
    rankdeck::cli::main(std::env::args_os())
}
