//! The process that serves one node of a run: `agent serve`, and the sockets that it listens on.
//!
//! ```text
//! agent       the agent and its loop, which wires the parts below together
//! consoles    the attached consoles, and what their absence means for the run
//! console     one connection of one console
//! observers   samples, log lines, metrics, events and inspections of the ranks
//! events      the event socket, on which ranks report
//! line_store  the last log lines of each rank, and the queues of the consoles
//! notifier    notifications while no console is attached
//! spool       durable records with gap-free numbers, and notices
//! compaction  which records of a long run are dropped
//! slurm_step  the Slurm step that contains the agent, and its end
//! port        the rendezvous port
//! daemon      `agent start`: finds the agent of a run, or starts one
//! relay       `agent relay`: a socket over standard streams
//! ```
//!
//! - SOCKET-1: a socket is bound only in a directory that is this user's alone, at the start and at any time
//!   later.

mod agent;
mod compaction;
mod console;
mod consoles;
pub mod daemon;
mod events;
mod line_store;
mod notifier;
mod observers;
mod port;
pub(crate) mod relay;
mod slurm_step;
mod spool;

use crate::open_files;
use crate::paths::{self, RunPaths};
use crate::proc::ProcessKey;
use agent::Agent;
use daemon::Ready;
use rankdeck_proto::trust;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::RunId;
use rankdeck_types::words::clean;
use std::cell::RefCell;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};

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
        Err(error) => Err(HintedError::new(
            format!("cannot start the runtime: {error}"),
            "check the limits on processes and files",
        )),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            log_line(&format!("{} ({})", error.error, error.hint));
            send_to_starter(&Ready::Failed(error));
            ExitCode::FAILURE
        }
    }
}

async fn serve(settings: Settings) -> Result<ExitCode, HintedError> {
    let (agent, inputs) = Agent::open(settings).await?;
    send_to_starter(&Ready::Serves(agent.started()));
    Ok(agent.serve(inputs).await)
}

fn send_to_starter(ready: &Ready) {
    let mut output = io::stdout().lock();
    let _ = writeln!(output, "{}", serde_json::to_string(ready).unwrap_or_default());
    let _ = output.flush();
    // From here on the starter is gone; nothing may write to its pipe.
    let _ = rustix::stdio::dup2_stdout(rustix::stdio::stderr());
}

/// A line in `agent.log`.
pub(crate) fn log_line(text: &str) {
    #[expect(clippy::disallowed_methods, reason = "standard error of an agent is its log")]
    let _ = writeln!(io::stderr(), "agent: {}", clean(text));
}

/// Settings of a new agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub run: RunId,
    /// Name of this host.
    pub host: String,
    /// Files of this node.
    pub paths: RunPaths,
    /// Working directory of the ranks.
    pub workdir: PathBuf,
    /// Directory of the sockets; replaced when it is removed.
    pub sockets: Rc<RefCell<PathBuf>>,
    /// File mode mask that ranks get.
    pub umask: u32,
    /// The process of a Slurm step whose end is the agent's, too.
    pub holder: Option<ProcessKey>,
}

impl Settings {
    pub fn console_socket(&self) -> PathBuf {
        self.socket(crate::paths::CONSOLE_SOCKET)
    }

    /// Socket on which ranks report events.
    pub fn event_socket(&self) -> PathBuf {
        self.socket(crate::paths::EVENT_SOCKET)
    }

    /// Where the guard notes what it sees below the agent.
    pub fn note(&self) -> PathBuf {
        self.socket(crate::paths::GUARD_NOTE)
    }

    fn socket(&self, ending: &str) -> PathBuf {
        self.sockets.borrow().join(format!("{}.{ending}", self.paths.socket_stem()))
    }
}

/// Between two checks for a removed socket.
const SOCKET_CHECK: Duration = Duration::from_secs(10);
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts on one of the agent's sockets while the agent lives; to be called in a `LocalSet`.
///
/// Errors: the socket cannot be made.
fn listen(
    settings: &Settings,
    path: fn(&Settings) -> PathBuf,
    each: impl FnMut(UnixStream) + 'static,
) -> Result<(), HintedError> {
    let listener = bind(&path(settings)).map_err(|error| {
        HintedError::new(format!("cannot listen on {}: {error}", path(settings).display()), "check agent.log")
    })?;
    tokio::task::spawn_local(keep_listening(settings.clone(), path, listener, each));
    Ok(())
}

/// SOCKET-1 at every bind.
fn bind(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        paths::make_private(folder).map_err(io::Error::other)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Restores a socket that a cleaner of temporary files has removed; in another directory when the name of
/// this one is taken meanwhile.
async fn keep_listening(
    settings: Settings,
    path: fn(&Settings) -> PathBuf,
    mut listener: UnixListener,
    mut each: impl FnMut(UnixStream),
) {
    loop {
        let now = path(&settings);
        match tokio::time::timeout(SOCKET_CHECK, listener.accept()).await {
            Ok(Ok((stream, _))) => each(stream),
            // Out of descriptors, most likely: wait for some to come back.
            Ok(Err(_)) => {
                // FILES-3. A console may have come to stop the run.
                if now == settings.console_socket() {
                    open_files::release();
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
            Err(_) if is_there(&now) => {}
            Err(_) => match bind(&now).or_else(|error| bind_elsewhere(&settings, path, &error)) {
                Ok(again) => listener = again,
                Err(error) => log_line(&format!("cannot listen on {} again: {error}", now.display())),
            },
        }
    }
}

/// Whether the socket and its directory are as they were made: replacements by others do not count.
fn is_there(path: &Path) -> bool {
    path.exists() && path.parent().is_none_or(trust::is_own)
}

fn bind_elsewhere(
    settings: &Settings,
    path: fn(&Settings) -> PathBuf,
    why: &io::Error,
) -> io::Result<UnixListener> {
    let folder = paths::private_folder(&settings.paths).map_err(|error| io::Error::other(error.error))?;
    log_line(&format!("{} {why}; sockets are now in {}", path(settings).display(), folder.display()));
    settings.sockets.replace(folder);
    bind(&path(settings))
}
