//! The guard: a small process that outlives its agent and kills the run when the agent cannot.
//!
//! Owner: started early by each agent, in its own session, with a pipe that the agent writes a byte to
//! every second. Invariants:
//! - When the agent dies, or stays stopped for [`STOPPED`], everything of the run is killed. A
//!   stopped agent holds every other safeguard still: its lease, its sweep, its parent-death signal.
//! - It touches only what this very agent started (`RANKDECK_AGENT`), since the next agent of the
//!   run may be at work already.
//! - A machine that was suspended has not been without its agent: only time that the guard itself
//!   was running counts.

use crate::paths::RunPaths;
use crate::proc::{self, ProcessKey};
use crate::supervise::{
    cgroup::Cgroup,
    groups,
    leftovers::SeenProcesses,
    process_scan::{self, RunTag, ScanScope},
};
use crate::transient_failure::TransientFailure;
use rankdeck_types::ids::RunId;
use rankdeck_types::words::clean;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A stopped agent (SIGSTOP) is given this long.
const STOPPED: Duration = Duration::from_secs(5);
/// An agent that is not stopped but does not beat, frozen or starved, is given this long.
const SILENT: Duration = Duration::from_secs(30);
/// Polling interval.
const POLL: Duration = Duration::from_millis(500);
/// Between two heartbeats of the agent.
pub(crate) const BEAT: Duration = Duration::from_secs(1);
/// How long the guard tries to end everything after the agent's death.
const PATIENCE: Duration = Duration::from_secs(60);

/// A note is written again after this long, so that cleaners of temporary files leave it.
const NOTE_AGAIN: Duration = Duration::from_secs(3600);

/// The agent's last byte: nothing is left to guard.
const FAREWELL: u8 = b'q';

/// Configuration of a guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GuardConfig {
    pub run: RunId,
    /// Its files on this host.
    pub paths: RunPaths,
    pub agent: ProcessKey,
    /// The ranks' own control group, where there is one.
    pub cgroup: Option<PathBuf>,
    /// The file in which it notes what is below the agent.
    pub note: PathBuf,
}

/// The agent's end.
#[derive(Debug)]
pub(crate) struct Guard {
    /// The guard's process.
    pub pid: u32,
    pipe: File,
}

/// How an agent is called in the environment of its ranks.
pub(crate) fn agent_name(agent: ProcessKey) -> String {
    format!("{}-{}", agent.pid, agent.start)
}

impl Guard {
    /// Starts a guard for this process.
    pub fn start(watch: &GuardConfig) -> io::Result<Guard> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("rankdeck");
        command
            .args(["agent", "guard", "--run", &watch.run.0, "--node-rank", &watch.paths.node.to_string()])
            .arg("--run-dir")
            .arg(&watch.paths.run_dir)
            .args(["--agent", &agent_name(watch.agent)])
            .arg("--note")
            .arg(&watch.note)
            .args(watch.cgroup.iter().flat_map(|path| [OsStr::new("--cgroup"), path.as_os_str()]))
            .stdin(Stdio::from(read))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit());
        groups::set_apart(&mut command);
        let child = groups::spawn(&mut command)?;
        Ok(Guard { pid: child.id(), pipe: File::from(write) })
    }

    /// Sends heartbeats from a thread until the guard is gone, so that a busy loop is not taken for a stopped
    /// agent.
    pub fn beat(&self) -> io::Result<()> {
        let mut pipe = self.pipe.try_clone()?;
        std::thread::Builder::new().name("heartbeat".into()).spawn(move || {
            loop {
                match pipe.write(b".") {
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
                    _ => std::thread::sleep(BEAT),
                }
            }
        })?;
        Ok(())
    }

    /// Nothing is left to guard.
    pub fn dismiss(mut self) {
        let _ = self.pipe.write(&[FAREWELL]);
    }
}

/// The guard's life. Standard input is the pipe.
pub(crate) fn main(watch: &GuardConfig) -> io::Result<()> {
    let pidfd = groups::pidfd(watch.agent.pid);
    let pidfd = match (pidfd, proc::stat(watch.agent.pid)) {
        (Ok(fd), Some(stat)) if stat.start == watch.agent.start => fd,
        _ => {
            end(watch, &SeenProcesses::default(), PATIENCE);
            return Ok(());
        }
    };
    let mut seen = SeenProcesses::default();
    let mut noted = Instant::now();
    let mut noting = TransientFailure::default();
    let mut last_beat = Instant::now();
    let mut stopped_for = Duration::ZERO;
    let mut last_poll = Instant::now();
    let mut killed = false;
    loop {
        let news = wait(&pidfd, POLL)?;
        if news.farewell {
            crate::paths::remove_note(&watch.note);
            return Ok(());
        }
        if news.agent_died {
            log_line(&format!("agent {} has died; killing its processes", watch.agent.pid));
            end(watch, &seen, PATIENCE);
            return Ok(());
        }
        let now = Instant::now();
        // A gap far above the wait means that this process did not run either.
        let passed = now.duration_since(last_poll);
        let was_away = passed > POLL + Duration::from_secs(2);
        last_poll = now;
        if news.beat || was_away {
            last_beat = now;
        }
        let state = proc::stat(watch.agent.pid).map_or('X', |stat| stat.state);
        stopped_for = if state == 'T' && !was_away { stopped_for + passed } else { Duration::ZERO };
        let below = SeenProcesses::below(watch.agent.pid);
        let due = noting.is_failing() || noted.elapsed() >= NOTE_AGAIN;
        if below != seen || due {
            seen = below;
            noted = now;
            // Without the note, less is found when agent and guard die together.
            let error = seen.save(&watch.note).err().map(|error| error.to_string());
            let what = || format!("cannot write {}", watch.note.display());
            noting.tried(what, error.as_deref()).iter().for_each(|text| log_line(text));
        }
        let lost = stopped_for >= STOPPED || now.duration_since(last_beat) >= SILENT;
        if lost && !killed {
            log_line(&format!("agent {} is stuck (state {state}); killing its processes", watch.agent.pid));
            end(watch, &seen, Duration::from_secs(10));
        }
        killed = lost;
    }
}

#[derive(Debug, Default)]
struct GuardEvent {
    beat: bool,
    farewell: bool,
    agent_died: bool,
}

fn wait(pidfd: &OwnedFd, within: Duration) -> io::Result<GuardEvent> {
    let stdin = rustix::stdio::stdin();
    let mut fds = [PollFd::new(pidfd, PollFlags::IN), PollFd::from_borrowed_fd(stdin, PollFlags::IN)];
    match rustix::event::poll(&mut fds, Timespec::try_from(within).ok().as_ref()) {
        Err(Errno::INTR) => return Ok(GuardEvent::default()),
        ready => ready?,
    };
    let (has_ended, has_input) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
    let mut news = GuardEvent::default();
    if has_input {
        let mut bytes = [0u8; 256];
        let read = rustix::io::read(stdin, &mut bytes);
        let bytes = &bytes[..read.unwrap_or(0)];
        news.beat = !bytes.is_empty();
        news.farewell = bytes.contains(&FAREWELL);
        // Only the agent holds the other end: end of file is its death, too.
        news.agent_died = read == Ok(0);
    }
    news.agent_died |= has_ended && !news.farewell;
    Ok(news)
}

fn end(watch: &GuardConfig, seen: &SeenProcesses, within: Duration) {
    let cgroup = watch.cgroup.clone().map(Cgroup::at);
    let alive =
        proc::stat(watch.agent.pid).is_some_and(|stat| stat.start == watch.agent.start && !stat.is_gone());
    let scope = ScanScope {
        sessions: seen.sessions.clone(),
        members: seen.members.clone(),
        below: alive.then_some(watch.agent.pid),
        groups: cgroup.iter().cloned().collect(),
        spared: BTreeSet::from([std::process::id(), watch.agent.pid]),
        ..ScanScope::marked(RunTag {
            run: watch.run.clone(),
            run_dir: watch.paths.run_dir.clone(),
            node: watch.paths.node,
            agent: Some(agent_name(watch.agent)),
            rank: None,
        })
    };
    let survivors = process_scan::kill_all(&scope, process_scan::find, Duration::ZERO, within);
    if !alive && survivors.is_empty() {
        crate::paths::remove_note(&watch.note);
        crate::paths::remove_sockets(&watch.note);
    }
    for survivor in survivors {
        log_line(&format!(
            "process {} ({}) survives SIGKILL (state {})",
            survivor.pid, survivor.command, survivor.state
        ));
    }
    if let Some(cgroup) = cgroup.filter(|_| !alive) {
        cgroup.remove();
    }
}

fn log_line(text: &str) {
    #[expect(clippy::disallowed_methods, reason = "standard error of a guard is its agent's log")]
    let _ = writeln!(io::stderr(), "guard: {}", clean(text));
}
