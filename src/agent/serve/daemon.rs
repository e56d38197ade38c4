//! `agent start`: finds the agent of a run on this host, or starts one that survives its starter.
//!
//! Owner: a short-lived process. A lock next to the sockets orders two that run at once.
//! Invariants:
//! - At most one agent serves a node of a run.
//! - The agent keeps nothing of the process that started it: no terminal, no session, no open
//!   descriptor; an SSH `exec` returns at once.
//! - START-2: an agent that was stopped (SIGSTOP) is resumed, with its guard, for a console that stops the run, and
//!   for no other.
//! - START-3: a run belongs to the console that launched it: another one that makes up the same name is
//!   refused, and may only attach to it.

use crate::entries;
use crate::manifest::Manifest;
use crate::observe::cgroup_stat::{Groups, Mounts};
use crate::paths::StartLock;
use crate::paths::{self, RunPaths};
use crate::proc::{self, ProcessKey};
use crate::process_query;
use crate::supervise::{groups, guard};
use rankdeck_proto::trust;
use rankdeck_types::error::{HintedError, write_hint};
use rankdeck_types::ids::{NodeRank, RunId};
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long the other starter may take.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);
/// How long an agent that lives may not be reached.
const SERVING_PATIENCE: Duration = Duration::from_secs(15);
/// How long an agent may take until it is resumed.
const RESUME_PATIENCE: Duration = Duration::from_secs(2);
/// How long a new agent may take until it serves; it ends orphans first.
const READY_PATIENCE: Duration = Duration::from_secs(45);

/// Most bytes of a console's name in the launcher's file.
const LAUNCHER_BYTES: u64 = 4096;
/// Interval at which a holder checks its parent.
const HOLDER_POLL: Duration = Duration::from_secs(1);

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StartRequest {
    pub run: String,
    /// Name of this host.
    pub host: String,
    /// Index of this host.
    pub node: NodeRank,
    /// Directory for runs, as typed.
    pub workdir: String,
    /// Only a run that exists already.
    pub existing: bool,
    /// Name of the console that launches it; a run that another console has launched is refused. `None`
    /// accepts any.
    pub launcher: Option<String>,
    /// The run is to be stopped: an agent that was stopped is resumed.
    pub resume: bool,
}

/// An agent that serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServingAgent {
    pub socket: String,
    /// Its process.
    pub pid: u32,
    pub build: String,
    /// Directory of the run.
    pub run_dir: String,
}

/// Finds or makes the agent.
pub(crate) fn start(start: &StartRequest) -> Result<ServingAgent, HintedError> {
    start_held(start, None)
}

/// The same; an agent that is made ends with `holder`.
fn start_held(start: &StartRequest, holder: Option<ProcessKey>) -> Result<ServingAgent, HintedError> {
    let run = RunId::parse(&start.run)?;
    let umask = groups::set_umask(0o077);
    let workdir = paths::expand(&start.workdir);
    let run_dir = workdir.join("runs").join(&run.0);
    let node_dir = RunPaths { run_dir: run_dir.clone(), node: start.node }.node_dir();
    if start.existing {
        if !node_dir.is_dir() {
            let host = &start.host;
            return Err(HintedError::new(
                format!(
                    "run {run} of host {host} not found in {} on {}",
                    workdir.display(),
                    proc::hostname()
                ),
                "list the runs of all hosts with `rankdeck ps`",
            ));
        }
    } else {
        // Nothing is made where others could put something else in its place.
        check_trust(&paths::runs(&workdir), &node_dir)?;
        rankdeck_proto::folders::create_runs(&paths::runs(&workdir))?;
        rankdeck_proto::folders::create_private(&node_dir)?;
    }
    let absolute = |path: &Path| {
        path.canonicalize().map_err(|error| {
            HintedError::new(format!("cannot resolve {}: {error}", path.display()), "check `workdir`")
        })
    };
    let paths = RunPaths { run_dir: absolute(&run_dir)?, node: start.node };
    let workdir = absolute(&workdir)?;
    // An agent that serves is verified by its socket: its run can be stopped wherever its directory is.
    if start.existing
        && let Some(found) = serving(&paths, start.resume)?
    {
        return Ok(found);
    }
    check_trust(&paths::runs(&workdir), &paths.node_dir())?;
    let folder = paths::private_folder(&paths)?;
    let _lock = StartLock::take(&folder.join(paths.socket_stem()), LOCK_PATIENCE)?;
    claim(start, &paths)?;
    if let Some(found) = serving(&paths, start.resume)? {
        return Ok(found);
    }
    let made = AgentStart { start, paths: &paths, workdir: &workdir, sockets: &folder, umask, holder };
    made.spawn()
}

/// TRUST-1.
fn check_trust(runs: &Path, place: &Path) -> Result<(), HintedError> {
    trust::check_run(runs, place).map_err(|why| {
        let hint = format!("{}: change `workdir` in hosts.toml", why.hint);
        HintedError::new(format!("cannot store runs on {}: {}", proc::hostname(), why.error), hint)
    })
}

/// START-3. Records who launches the run, or refuses when another console did. The caller holds the
/// lock.
fn claim(start: &StartRequest, paths: &RunPaths) -> Result<(), HintedError> {
    let Some(launcher) = &start.launcher else { return Ok(()) };
    let failed = |error: std::io::Error| {
        let error = error.to_string();
        let hint = format!("{}, or change `workdir` in hosts.toml", write_hint(&error));
        HintedError::new(format!("cannot write {}: {error}", paths.launcher().display()), hint)
    };
    let foreign = || {
        HintedError::new(
            format!("run {} already exists on {}: another console launched it", start.run, proc::hostname()),
            "launch again, or choose another `--name`",
        )
    };
    match trust::read(&paths.launcher(), LAUNCHER_BYTES) {
        Ok(found) if found == launcher.as_bytes() => Ok(()),
        Ok(_) => Err(foreign()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // A run of an agent that wrote no such file belongs to another console, too.
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

/// Finds or starts the agent, reports, and stays until an agent that it started has ended: for launchers that
/// kill what a finished process leaves behind. A signal to end, and the end of its parent, which is Slurm's
/// daemon of the step, are passed on to the agent: it ends when it has verified its stop.
pub(crate) fn hold(
    request: &StartRequest,
    report: impl FnOnce(Result<ServingAgent, HintedError>),
) -> std::process::ExitCode {
    let own = proc::stat(std::process::id()).map(|stat| ProcessKey { pid: stat.pid, start: stat.start });
    let parent = groups::parent();
    groups::note_end_signals();
    let started = start_held(request, own);
    for signal in [libc::SIGHUP, libc::SIGPIPE] {
        groups::ignore(signal);
    }
    let pid = started.as_ref().ok().map(|started| started.pid);
    report(started);
    let Some(pid) = pid else { return std::process::ExitCode::FAILURE };
    // One that served before has a holder already.
    let since = own.map_or(0, |own| own.start);
    let mine = || proc::stat(pid).filter(|stat| stat.start >= since && !stat.is_gone());
    let Ok(fd) = groups::pidfd(pid) else { return std::process::ExitCode::SUCCESS };
    let mut orphaned = false;
    while let Some(agent) = mine()
        && !groups::has_ended(&fd, HOLDER_POLL)
    {
        let left = groups::parent() != parent && !std::mem::replace(&mut orphaned, true);
        if groups::has_end_signal() || left {
            groups::signal(agent.pid, agent.start, libc::SIGTERM);
        }
    }
    std::process::ExitCode::SUCCESS
}

/// Resumes the stopped agent of a run, and its guard (START-2).
fn resume(run: &RunId, agent: ProcessKey) {
    let guards = proc::all().into_iter().filter(|stat| entries::serves(run, &proc::arguments(stat.pid)));
    let guards = guards.map(|stat| ProcessKey { pid: stat.pid, start: stat.start });
    for process in guards.chain([agent]) {
        // Only processes of this user are reached; whatever is still stopped is reported by `suspension`.
        let _ = process_query::signal(process, libc::SIGCONT);
    }
    let begun = Instant::now();
    while begun.elapsed() < RESUME_PATIENCE && proc::stat(agent.pid).is_some_and(|stat| stat.state == 'T') {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Why an agent that lives cannot serve.
fn suspension(agent: &proc::ProcStat) -> Option<HintedError> {
    let (pid, host) = (agent.pid, proc::hostname());
    let error = |how: String, hint: String| {
        Some(HintedError::new(format!("the agent of this run (process {pid}) is {how}"), hint))
    };
    match agent.state {
        'T' => return error("suspended".into(), format!("resume it with `kill -CONT {pid}` on {host}")),
        't' => {
            let tracer = proc::tracer(pid);
            return error(
                format!("traced by process {tracer}"),
                format!("detach the debugger: see `ps {tracer}` on {host}"),
            );
        }
        _ => {}
    }
    let groups = Mounts::read().of(pid).filter(Groups::is_frozen)?;
    error(
        format!("frozen by its cgroup {}", groups.path),
        format!("resume the container or thaw the cgroup on {host}"),
    )
}

/// The agent of the node, when it serves.
fn serving(paths: &RunPaths, resumes: bool) -> Result<Option<ServingAgent>, HintedError> {
    let Some(mut manifest) = Manifest::load(&paths.manifest()) else { return Ok(None) };
    if !manifest.is_of_this_machine() {
        return Err(HintedError::new(
            format!(
                "node rank {} of run {} belongs to machine {}, but this is {}",
                paths.node,
                manifest.run,
                manifest.hostname,
                proc::hostname()
            ),
            "keep the order of hosts.toml while a run is active, or give each host its own `workdir`",
        ));
    }
    let Some(mut agent) = manifest.agent() else { return Ok(None) };
    if agent.state == 'T' && resumes {
        resume(&manifest.identity().0, ProcessKey { pid: agent.pid, start: agent.start });
        agent = match manifest.agent() {
            Some(agent) => agent,
            None => return Ok(None),
        };
    }
    if let Some(suspended) = suspension(&agent) {
        return Err(suspended);
    }
    // It is shutting down, or moves its sockets: wait for that rather than work in parallel.
    let begun = Instant::now();
    while let Err(error) = trust::connect(Path::new(&manifest.socket)) {
        if manifest.agent().is_none() {
            return Ok(None);
        }
        if begun.elapsed() > SERVING_PATIENCE {
            return Err(HintedError::new(
                format!(
                    "the agent of this run (process {}) does not respond on {}: {error}",
                    agent.pid, manifest.socket
                ),
                format!("check {}, or end the agent with `kill {}`", paths.agent_log().display(), agent.pid),
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
    start: &'a StartRequest,
    paths: &'a RunPaths,
    workdir: &'a Path,
    sockets: &'a Path,
    umask: u32,
    holder: Option<ProcessKey>,
}

impl AgentStart<'_> {
    fn failed(&self, error: String) -> HintedError {
        let hint = format!("check {}", self.paths.agent_log().display());
        HintedError::new(format!("cannot start the agent: {error}"), hint)
    }

    fn command(&self) -> Result<Command, HintedError> {
        let log = trust::open(&self.paths.agent_log(), OpenOptions::new().append(true).create(true));
        let log = log.map_err(|error| {
            let hint =
                format!("remove it with `rm {}`, or free disk space", self.paths.agent_log().display());
            HintedError::new(format!("cannot start the agent: {error}"), hint)
        })?;
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
pub(crate) enum Ready {
    Serves(ServingAgent),
    /// It cannot.
    Failed(HintedError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_3_second_console_of_one_name_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let paths = RunPaths { run_dir: folder.path().into(), node: NodeRank(0) };
        std::fs::create_dir(paths.node_dir()).unwrap();
        let start = |launcher: Option<&str>| StartRequest {
            run: "r".into(),
            host: "h".into(),
            node: NodeRank(0),
            workdir: "w".into(),
            existing: false,
            launcher: launcher.map(str::to_owned),
            resume: false,
        };
        claim(&start(Some("a")), &paths).unwrap();
        claim(&start(Some("a")), &paths).unwrap();
        claim(&start(None), &paths).unwrap();
        let refused = claim(&start(Some("b")), &paths).unwrap_err();
        assert!(refused.hint.contains("--name"), "{refused:?}");
        std::fs::remove_file(paths.launcher()).unwrap();
        std::fs::write(paths.manifest(), "{}").unwrap();
        assert!(claim(&start(Some("a")), &paths).is_err(), "a run that is older than this file");
    }

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    }

    #[test]
    fn trust_1_no_agent_starts_where_others_can_write() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        std::fs::create_dir_all(at("w/runs/r/node0")).unwrap();
        let request = |run: &str, existing: bool| StartRequest {
            run: run.into(),
            host: "h".into(),
            node: NodeRank(0),
            workdir: at("w").display().to_string(),
            existing,
            launcher: (!existing).then(|| "a".into()),
            resume: false,
        };
        for open in ["w", "w/runs", "w/runs/r", "w/runs/r/node0"] {
            mode(&at(open), 0o777);
            // The way to another run leads through the upper two only.
            let runs: &[&str] =
                if open.contains("/r/") || open.ends_with("/r") { &["r"] } else { &["r", "new"] };
            for (run, existing) in runs.iter().flat_map(|run| [(*run, false), (*run, *run == "r")]) {
                let refused = start(&request(run, existing)).unwrap_err();
                let place = at(open).canonicalize().unwrap();
                assert!(refused.error.contains(&format!("{} ", place.display())), "{refused:?}");
                assert!(refused.hint.contains("chmod go-w"), "{refused:?}");
            }
            mode(&at(open), 0o700);
        }
        assert!(!at("w/runs/new").exists() && !at("w/runs/r/node0/launcher").exists());
    }

    #[test]
    fn trust_2_no_link_is_followed_to_the_log_of_an_agent() {
        let base = tempfile::tempdir().unwrap();
        let paths = RunPaths { run_dir: base.path().into(), node: NodeRank(0) };
        std::fs::create_dir(paths.node_dir()).unwrap();
        std::os::unix::fs::symlink(base.path().join("bashrc"), paths.agent_log()).unwrap();
        let start = StartRequest {
            run: "r".into(),
            host: "h".into(),
            node: NodeRank(0),
            workdir: "w".into(),
            existing: true,
            launcher: None,
            resume: false,
        };
        let (workdir, sockets) = (base.path(), base.path());
        let made = AgentStart { start: &start, paths: &paths, workdir, sockets, umask: 0, holder: None };
        let refused = made.command().unwrap_err();
        assert!(refused.error.contains("agent.log"), "{refused:?}");
        assert!(!base.path().join("bashrc").exists());
    }
}
