//! The console's binary, which is also the agent: parse, run, exit code. `rankdeck agent ...` goes its own
//! way before anything else is set up.

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|word| word == "agent") {
        return rankdeck_agent::main(std::env::args_os().skip(2));
    }
    rankdeck::cli::main(std::env::args_os())
}
