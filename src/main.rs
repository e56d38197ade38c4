//! The binary of the console and of the agent. `rankdeck agent ...` runs the agent before anything of the
//! console is set up.

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|word| word == "agent") {
        return rankdeck_agent::main(std::env::args_os().skip(2));
    }
    rankdeck::cli::main(std::env::args_os())
}
