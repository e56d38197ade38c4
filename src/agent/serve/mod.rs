//! The process that serves one node of a run: `agent serve`.
//!
//! ```text
//! agent        the agent and its loop, which wires the parts below together
//! consoles     who is attached, and what their absence means for the run
//! console      one connection of one console
//! observers    samples, log lines, metrics, events and close looks of the ranks
//! events       what ranks report on the event socket
//! event_lines  its lines, cut from what comes
//! line_store   the last log lines of each rank, and the queues of the consoles
//! calls        calls to the user while no console looks on
//! journal      records, notices and the agent's own log
//! kept         values of a console's variables, for the next generation
//! reach        a process that a console asks for
//! spool        durable records with gap-free numbers
//! compaction   which records of a long run are left out
//! settings     what a new agent is told
//! searches     searches in this host's logs for the screen
//! slurm_step   the Slurm step that an agent lives in, and its end
//! sockets      the sockets that an agent listens on
//! wire         reads and writes of a console's connection
//! port         the port where ranks meet
//! daemon       `agent start`: finds the agent of a run, or starts one
//! relay        `agent relay`: a socket over standard streams
//! ```

mod agent;
mod calls;
mod compaction;
mod console;
mod consoles;
pub mod daemon;
mod event_lines;
mod events;
mod flusher;
mod journal;
mod kept;
mod line_store;
mod log;
mod observers;
mod port;
mod reach;
pub(crate) mod relay;
mod searches;
pub(crate) mod settings;
mod slurm_step;
mod sockets;
mod spool;
mod wire;

use agent::Agent;
use daemon::Ready;
use log::say;
use rankdeck_types::error::HintedError;
use settings::Settings;
use std::io::{self, Write};
use std::process::ExitCode;

/// Serves until the run is over and no console is attached. Standard output is the pipe to the starter.
pub(crate) fn main(settings: Settings) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => {
            let result = tokio::task::LocalSet::new().block_on(&runtime, serve(settings));
            // A thread that hangs on a disk or a driver must not keep the agent.
            runtime.shutdown_background();
            result
        }
        Err(error) => {
            Err(HintedError::new(format!("no runtime: {error}"), "check the limits on processes and files"))
        }
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            say(&format!("{} ({})", error.error, error.hint));
            tell_starter(&Ready::Failed(error));
            ExitCode::FAILURE
        }
    }
}

async fn serve(settings: Settings) -> Result<ExitCode, HintedError> {
    let (agent, inputs) = Agent::open(settings).await?;
    tell_starter(&Ready::Serves(agent.started()));
    Ok(agent.serve(inputs).await)
}

fn tell_starter(ready: &Ready) {
    let mut output = io::stdout().lock();
    let _ = writeln!(output, "{}", serde_json::to_string(ready).unwrap_or_default());
    let _ = output.flush();
    // From here on the starter is gone; nothing may write to its pipe.
    // SAFETY: dup2 takes two open descriptors.
    unsafe { libc::dup2(2, 1) };
}
