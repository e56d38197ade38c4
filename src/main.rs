//! The console's binary, which is also the agent.

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|word| word == "agent") {
        return rankdeck::agent::main(std::env::args_os().skip(2));
    }
    ExitCode::SUCCESS
}
