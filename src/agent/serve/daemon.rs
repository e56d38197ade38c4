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
use crate::proc;
use crate::supervise::groups;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::NodeRank;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long the other starter may take.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);
/// How long a new agent may take until it serves; it ends orphans first.
const READY_PATIENCE: Duration = Duration::from_secs(45);

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// The run.
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
pub struct Started {
    /// Its socket.
    pub socket: String,
    /// Its process.
    pub pid: u32,
    /// Its build.
    pub build: String,
    /// Folder of the run.
    pub run_dir: String,
}

/// Finds or makes the agent.
pub fn start(start: &Start) -> Result<Started, HintedError> {
    let run = paths::check_run(&start.run)?;
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
    let folder = paths::private_folder()?;
    let _lock = lock(&folder.join(format!("{}.lock", paths.socket_stem())))?;
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
    spawn(start, &paths, &workdir, &folder, umask)
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
/// kill what a finished process leaves behind. Signals that such a launcher sends to everything are the
/// agent's business; it ends when it has verified its stop.
pub fn hold(wanted: &Start, tell: impl FnOnce(Result<Started, HintedError>)) -> std::process::ExitCode {
    let own = proc::stat(std::process::id()).map_or(0, |stat| stat.start);
    let started = start(wanted);
    let pid = started.as_ref().ok().map(|started| started.pid);
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGPIPE] {
        groups::ignore(signal);
    }
    tell(started);
    let Some(pid) = pid else { return std::process::ExitCode::FAILURE };
    // One that served before has a holder already.
    let mine = || proc::stat(pid).is_some_and(|stat| stat.start >= own && !stat.is_gone());
    if mine()
        && let Ok(fd) = groups::pidfd(pid)
    {
        while mine() && !groups::has_ended(&fd, Duration::from_secs(5)) {}
    }
    std::process::ExitCode::SUCCESS
}

/// The agent of the manifest, when it serves.
fn serving(paths: &RunPaths, manifest: &Manifest) -> Result<Option<Started>, HintedError> {
    let Some(agent) = manifest.agent() else { return Ok(None) };
    if agent.state == 'T' {
        return Err(HintedError::new(
            format!("the agent of this run, process {}, is stopped", agent.pid),
            format!("run `kill -CONT {}` on {}", agent.pid, proc::hostname()),
        ));
    }
    if UnixStream::connect(&manifest.socket).is_err() {
        // It is on its way out: wait for that rather than work beside it.
        let begun = Instant::now();
        while manifest.agent().is_some() {
            if begun.elapsed() > Duration::from_secs(15) {
                return Err(HintedError::new(
                    format!(
                        "the agent of this run, process {}, does not answer on {}",
                        agent.pid, manifest.socket
                    ),
                    format!("look at {}, or end it with `kill {}`", paths.agent_log().display(), agent.pid),
                ));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        return Ok(None);
    }
    Ok(Some(Started {
        socket: manifest.socket.clone(),
        pid: manifest.agent_pid,
        build: manifest.build.clone(),
        run_dir: paths.run_dir.display().to_string(),
    }))
}

/// A lock that the kernel drops with this process.
fn lock(path: &Path) -> Result<File, HintedError> {
    let failed = |error: String| {
        HintedError::new(format!("cannot lock {}: {error}", path.display()), "try again in a minute")
    };
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|error| failed(error.to_string()))?;
    let begun = Instant::now();
    loop {
        // SAFETY: flock takes a descriptor that `file` owns.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(file);
        }
        if begun.elapsed() > LOCK_PATIENCE {
            return Err(failed("another start of the same run holds it".into()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn spawn(
    start: &Start,
    paths: &RunPaths,
    workdir: &Path,
    folder: &Path,
    umask: u32,
) -> Result<Started, HintedError> {
    let log = OpenOptions::new().append(true).create(true).mode(0o600).open(paths.agent_log());
    let hint = format!("look at {}", paths.agent_log().display());
    let failed = |error: String| HintedError::new(format!("cannot start the agent: {error}"), hint.clone());
    let log = log.map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("rankdeck");
    command
        .args(["agent", "serve", "--run", &start.run, "--host", &start.host])
        .args(["--node-rank", &start.node.to_string(), "--umask", &umask.to_string()])
        .arg("--run-dir")
        .arg(&paths.run_dir)
        .arg("--workdir")
        .arg(workdir)
        .arg("--sockets")
        .arg(folder)
        .current_dir(workdir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
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
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    let output = child.stdout.take().ok_or_else(|| failed("no pipe".into()))?;
    // The first child has left already; what serves is its child.
    let _ = child.wait();
    let (answer, inbox) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = BufReader::new(output.take(1 << 16)).read_line(&mut line);
        let _ = answer.send(line);
    });
    let line = inbox.recv_timeout(READY_PATIENCE).map_err(|_| failed("it was not ready in time".into()))?;
    match serde_json::from_str::<Ready>(&line) {
        Ok(Ready::Serves(started)) => Ok(started),
        Ok(Ready::Failed(failure)) => Err(failure),
        Err(_) => Err(failed("it ended before it was ready".into())),
    }
}

/// The one line that a new agent writes to its starter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Ready {
    /// It serves.
    Serves(Started),
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
