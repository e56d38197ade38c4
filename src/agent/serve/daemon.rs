//! `agent start`: finds the agent of a run on this host, or makes one that nothing can take down with it.
//!
//! Owner: a short-lived process. Two that run at once are put in order by a lock beside the sockets.
//! Invariants:
//! - At most one agent serves a node of a run.
//! - The agent keeps nothing of the process that started it: no terminal, no session, no open
//!   descriptor; an SSH `exec` returns at once.
//! - START-3: a run belongs to the console that launched it: another one that makes up the same name is
//!   refused, and may only attach to it.

use crate::manifest::Manifest;
use crate::paths::{self, RunPaths};
use crate::proc::{self, Ident};
use crate::sockets::StartLock;
use crate::supervise::{groups, guard};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{NodeRank, RunId};
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long the other starter may take.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);
/// How long an agent that lives may not be reached.
const SERVING_PATIENCE: Duration = Duration::from_secs(15);
/// How long a new agent may take until it serves; it ends orphans first.
const READY_PATIENCE: Duration = Duration::from_secs(45);

/// Between two looks of a holder at its parent.
const HOLDER_LOOK: Duration = Duration::from_secs(1);

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    pub run: String,
    /// Name of this host.
    pub host: String,
    /// Index of this host.
    pub node: NodeRank,
    /// Folder for runs, as typed.
    pub workdir: String,
    /// Only a run that exists already.
    pub existing: bool,
    /// Name of the console that launches it; a run that another console has launched is refused. `None`
    /// accepts any.
    pub launcher: Option<String>,
}

/// An agent that serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServingAgent {
    pub socket: String,
    /// Its process.
    pub pid: u32,
    pub build: String,
    /// Folder of the run.
    pub run_dir: String,
}

/// Finds or makes the agent.
pub fn start(start: &Start) -> Result<ServingAgent, HintedError> {
    start_held(start, None)
}

/// The same; an agent that is made ends with `holder`.
fn start_held(start: &Start, holder: Option<Ident>) -> Result<ServingAgent, HintedError> {
    let run = RunId::parse(&start.run)?;
    let umask = groups::set_umask(0o077);
    let workdir = paths::expand(&start.workdir);
    let run_dir = workdir.join("runs").join(&run.0);
    let node_dir = RunPaths { run_dir: run_dir.clone(), node: start.node }.node_dir();
    if start.existing && !node_dir.is_dir() {
        return Err(HintedError::new(
            format!("no run {run} of host {} in {} on {}", start.host, workdir.display(), proc::hostname()),
            "`rankdeck ps` lists the runs of all hosts",
        ));
    }
    rankdeck_proto::folders::create_private(&node_dir)?;
    let absolute = |path: &Path| {
        path.canonicalize().map_err(|error| {
            HintedError::new(format!("cannot resolve {}: {error}", path.display()), "check `workdir`")
        })
    };
    let paths = RunPaths { run_dir: absolute(&run_dir)?, node: start.node };
    let workdir = absolute(&workdir)?;
    let folder = paths::private_folder(&paths)?;
    let _lock = StartLock::take(&folder.join(paths.socket_stem()), LOCK_PATIENCE)?;
    claim(start, &paths)?;
    if let Some(manifest) = Manifest::load(&paths.manifest()) {
        if !manifest.is_of_this_machine() {
            return Err(HintedError::new(
                format!(
                    "node {} of run {run} belongs to machine {}, and this is {}",
                    start.node,
                    manifest.hostname,
                    proc::hostname()
                ),
                "keep the order of hosts.toml while a run lives, or give each host its own `workdir`",
            ));
        }
        if let Some(found) = serving(&paths, &manifest)? {
            return Ok(found);
        }
    }
    let made = AgentStart { start, paths: &paths, workdir: &workdir, sockets: &folder, umask, holder };
    made.spawn()
}

/// START-3. Writes down who launches the run, or refuses when that was somebody else. The caller holds the
/// lock.
fn claim(start: &Start, paths: &RunPaths) -> Result<(), HintedError> {
    let Some(launcher) = &start.launcher else { return Ok(()) };
    let failed = |error: std::io::Error| {
        HintedError::new(format!("cannot write {}: {error}", paths.launcher().display()), "is the disk full?")
    };
    let foreign = || {
        HintedError::new(
            format!("another console has launched a run called {} on {}", start.run, proc::hostname()),
            "names hold the second of the launch: launch again, or give the run another `--name`",
        )
    };
    match std::fs::read_to_string(paths.launcher()) {
        Ok(found) if found == *launcher => Ok(()),
        Ok(_) => Err(foreign()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // A run of an agent that wrote no such file is somebody else's, too.
            if paths.manifest().exists() {
                return Err(foreign());
            }
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(paths.launcher())
                .and_then(|mut file| std::io::Write::write_all(&mut file, launcher.as_bytes()))
                .map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

/// Finds or makes the agent, tells, and stays until an agent that was made here has ended: for launchers that
/// kill what a finished process leaves behind. A signal to end, and the end of its parent, which is Slurm's
/// daemon of the step, are passed on to the agent: it ends when it has verified its stop.
pub fn hold(wanted: &Start, tell: impl FnOnce(Result<ServingAgent, HintedError>)) -> std::process::ExitCode {
    let own = proc::stat(std::process::id()).map(|stat| Ident { pid: stat.pid, start: stat.start });
    let parent = groups::parent();
    groups::note_end_signals();
    let started = start_held(wanted, own);
    for signal in [libc::SIGHUP, libc::SIGPIPE] {
        groups::ignore(signal);
    }
    let pid = started.as_ref().ok().map(|started| started.pid);
    tell(started);
    let Some(pid) = pid else { return std::process::ExitCode::FAILURE };
    // One that served before has a holder already.
    let since = own.map_or(0, |own| own.start);
    let mine = || proc::stat(pid).filter(|stat| stat.start >= since && !stat.is_gone());
    let Ok(fd) = groups::pidfd(pid) else { return std::process::ExitCode::SUCCESS };
    let mut orphaned = false;
    while let Some(agent) = mine()
        && !groups::has_ended(&fd, HOLDER_LOOK)
    {
        let left = groups::parent() != parent && !std::mem::replace(&mut orphaned, true);
        if groups::was_told_to_end() || left {
            groups::signal(agent.pid, agent.start, libc::SIGTERM);
        }
    }
    std::process::ExitCode::SUCCESS
}

/// The agent of the manifest, when it serves.
fn serving(paths: &RunPaths, manifest: &Manifest) -> Result<Option<ServingAgent>, HintedError> {
    let Some(agent) = manifest.agent() else { return Ok(None) };
    if agent.state == 'T' {
        return Err(HintedError::new(
            format!("the agent of this run, process {}, is stopped", agent.pid),
            format!("run `kill -CONT {}` on {}", agent.pid, proc::hostname()),
        ));
    }
    let mut manifest = manifest.clone();
    // It is on its way out, or moves its sockets: wait for that rather than work beside it.
    let begun = Instant::now();
    while UnixStream::connect(&manifest.socket).is_err() {
        if manifest.agent().is_none() {
            return Ok(None);
        }
        if begun.elapsed() > SERVING_PATIENCE {
            return Err(HintedError::new(
                format!(
                    "the agent of this run, process {}, does not answer on {}",
                    agent.pid, manifest.socket
                ),
                format!("look at {}, or end it with `kill {}`", paths.agent_log().display(), agent.pid),
            ));
        }
        std::thread::sleep(Duration::from_millis(50));
        manifest = Manifest::load(&paths.manifest()).unwrap_or(manifest);
    }
    Ok(Some(ServingAgent {
        socket: manifest.socket.clone(),
        pid: manifest.agent_pid,
        build: manifest.build.clone(),
        run_dir: paths.run_dir.display().to_string(),
    }))
}

/// An agent that is to be made.
struct AgentStart<'a> {
    start: &'a Start,
    paths: &'a RunPaths,
    workdir: &'a Path,
    sockets: &'a Path,
    umask: u32,
    holder: Option<Ident>,
}

impl AgentStart<'_> {
    fn failed(&self, error: String) -> HintedError {
        let hint = format!("look at {}", self.paths.agent_log().display());
        HintedError::new(format!("cannot start the agent: {error}"), hint)
    }

    fn command(&self) -> Result<Command, HintedError> {
        let log = OpenOptions::new().append(true).create(true).mode(0o600).open(self.paths.agent_log());
        let log = log.map_err(|error| self.failed(error.to_string()))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("rankdeck");
        command
            .args(["agent", "serve", "--run", &self.start.run, "--host", &self.start.host])
            .args(["--node-rank", &self.start.node.to_string(), "--umask", &self.umask.to_string()])
            .arg("--run-dir")
            .arg(&self.paths.run_dir)
            .arg("--workdir")
            .arg(self.workdir)
            .arg("--sockets")
            .arg(self.sockets)
            .current_dir(self.workdir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log);
        if let Some(holder) = self.holder {
            command.args(["--holder", &guard::agent_name(holder)]);
        }
        for (name, _) in std::env::vars_os() {
            // An agent that is started from inside a rank does not belong to that rank's run.
            if name.to_string_lossy().starts_with("RANKDECK_")
                && name != "RANKDECK_AGENT_TIMING"
                && name != "RANKDECK_CACHE"
            {
                command.env_remove(name);
            }
        }
        groups::detach(&mut command);
        Ok(command)
    }

    fn spawn(&self) -> Result<ServingAgent, HintedError> {
        let failed = |error: &str| self.failed(error.to_owned());
        let mut child = self.command()?.spawn().map_err(|error| failed(&error.to_string()))?;
        let output = child.stdout.take().ok_or_else(|| failed("no pipe"))?;
        // The first child has left already; what serves is its child.
        let _ = child.wait();
        let (answer, inbox) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(output.take(1 << 16)).read_line(&mut line);
            let _ = answer.send(line);
        });
        let line = inbox.recv_timeout(READY_PATIENCE).map_err(|_| failed("it was not ready in time"))?;
        match serde_json::from_str::<Ready>(&line) {
            Ok(Ready::Serves(started)) => Ok(started),
            Ok(Ready::Failed(failure)) => Err(failure),
            Err(_) => Err(failed("it ended before it was ready")),
        }
    }
}

/// The one line that a new agent writes to its starter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Ready {
    Serves(ServingAgent),
    /// It cannot.
    Failed(HintedError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_3_the_second_console_of_one_name_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let paths = RunPaths { run_dir: folder.path().into(), node: NodeRank(0) };
        std::fs::create_dir(paths.node_dir()).unwrap();
        let start = |launcher: Option<&str>| Start {
            run: "r".into(),
            host: "h".into(),
            node: NodeRank(0),
            workdir: "w".into(),
            existing: false,
            launcher: launcher.map(str::to_owned),
        };
        claim(&start(Some("a")), &paths).unwrap();
        claim(&start(Some("a")), &paths).unwrap();
        claim(&start(None), &paths).unwrap();
        let refused = claim(&start(Some("b")), &paths).unwrap_err();
        assert!(refused.error.contains("another console") && refused.hint.contains("--name"), "{refused:?}");
        std::fs::remove_file(paths.launcher()).unwrap();
        std::fs::write(paths.manifest(), "{}").unwrap();
        assert!(claim(&start(Some("a")), &paths).is_err(), "a run that is older than this file");
    }
}
