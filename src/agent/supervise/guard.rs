//! The guard: a small process that outlives its agent and kills the run when the agent cannot.
//!
//! Owner: started early by each agent, in a session of its own, with a pipe that the agent writes a byte to
//! every second. Invariants:
//! - When the agent dies, or stays stopped for [`STOPPED`], everything of the run is killed. A
//!   stopped agent holds every other safeguard still: its lease, its sweep, its parent-death signal.
//! - It touches only what this very agent started (`RANKDECK_AGENT`), since the next agent of the
//!   run may be at work already.
//! - A machine that was suspended has not been without its agent: only time that the guard itself
//!   was running counts.

use crate::paths::RunPaths;
use crate::proc::{self, Ident};
use crate::supervise::{
    cgroup::Cgroup,
    groups,
    leftovers::SeenProcesses,
    sweep::{self, Mark, Scope},
};
use crate::trouble::Trouble;
use rankdeck_types::ids::RunId;
use rankdeck_types::words::clean;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A stopped agent (SIGSTOP) is given this long.
const STOPPED: Duration = Duration::from_secs(5);
/// An agent that is not stopped but does not beat, frozen or starved, is given this long.
const SILENT: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// Between two heartbeats of the agent.
pub const BEAT: Duration = Duration::from_secs(1);
/// How long the guard tries to end everything after the agent's death.
const PATIENCE: Duration = Duration::from_secs(60);

/// A note is written again after this long, so that cleaners of temporary files leave it.
const NOTE_AGAIN: Duration = Duration::from_secs(3600);

/// What the agent says at the end: nothing is left to guard.
const FAREWELL: u8 = b'q';

/// What a guard has to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watch {
    pub run: RunId,
    /// Its files on this host.
    pub paths: RunPaths,
    pub agent: Ident,
    /// The ranks' own control group, where there is one.
    pub cgroup: Option<PathBuf>,
    /// The file in which it notes what is below the agent.
    pub note: PathBuf,
}

/// The agent's end.
#[derive(Debug)]
pub struct Guard {
    /// The guard's process.
    pub pid: u32,
    pipe: File,
}

/// How an agent is called in the environment of its ranks.
pub fn agent_name(agent: Ident) -> String {
    format!("{}-{}", agent.pid, agent.start)
}

impl Guard {
    /// Starts a guard for this process.
    pub fn start(watch: &Watch) -> io::Result<Guard> {
        let mut ends = [0; 2];
        // SAFETY: pipe2 fills the two descriptors of the array.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned these descriptors, and nobody else owns them.
        let (read, write) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
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

    /// Beats from a thread of its own until the guard is gone, so that a busy loop is not taken for a stopped
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
pub fn main(watch: &Watch) -> io::Result<()> {
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
    let mut noting = Trouble::default();
    let mut last_beat = Instant::now();
    let mut stopped_for = Duration::ZERO;
    let mut last_look = Instant::now();
    let mut killed = false;
    loop {
        let news = wait(&pidfd, LOOK)?;
        if news.farewell {
            let _ = std::fs::remove_file(&watch.note);
            return Ok(());
        }
        if news.agent_died {
            say(&format!("agent {} is gone; killing what it started", watch.agent.pid));
            end(watch, &seen, PATIENCE);
            return Ok(());
        }
        let now = Instant::now();
        // A gap far above the wait means that this process did not run either.
        let passed = now.duration_since(last_look);
        let was_away = passed > LOOK + Duration::from_secs(2);
        last_look = now;
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
            let what = || format!("the note {} cannot be written", watch.note.display());
            noting.tried(what, error.as_deref()).iter().for_each(|text| say(text));
        }
        let lost = stopped_for >= STOPPED || now.duration_since(last_beat) >= SILENT;
        if lost && !killed {
            say(&format!("agent {} does not run (state {state}); killing what it started", watch.agent.pid));
            end(watch, &seen, Duration::from_secs(10));
        }
        killed = lost;
    }
}

#[derive(Debug, Default)]
struct News {
    beat: bool,
    farewell: bool,
    agent_died: bool,
}

fn wait(pidfd: &OwnedFd, within: Duration) -> io::Result<News> {
    let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = [poll(pidfd.as_raw_fd()), poll(0)];
    // SAFETY: `fds` is a valid array of two entries for the duration of the call.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), 2, within.as_millis() as i32) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(News::default()) } else { Err(error) };
    }
    let mut news = News::default();
    if fds[1].revents != 0 {
        let mut bytes = [0u8; 256];
        // SAFETY: the buffer is valid for its length; descriptor 0 is the pipe.
        let read = unsafe { libc::read(0, bytes.as_mut_ptr().cast(), bytes.len()) };
        let bytes = &bytes[..read.max(0) as usize];
        news.beat = !bytes.is_empty();
        news.farewell = bytes.contains(&FAREWELL);
        // Nobody else holds the other end: end of file is the agent's death, too.
        news.agent_died = read == 0;
    }
    news.agent_died |= fds[0].revents != 0 && !news.farewell;
    Ok(news)
}

fn end(watch: &Watch, seen: &SeenProcesses, within: Duration) {
    let cgroup = watch.cgroup.clone().map(Cgroup::at);
    let alive =
        proc::stat(watch.agent.pid).is_some_and(|stat| stat.start == watch.agent.start && !stat.is_gone());
    let scope = Scope {
        sessions: seen.sessions.clone(),
        members: seen.members.clone(),
        below: alive.then_some(watch.agent.pid),
        groups: cgroup.iter().cloned().collect(),
        spared: BTreeSet::from([std::process::id(), watch.agent.pid]),
        ..Scope::marked(Mark {
            run: watch.run.clone(),
            run_dir: watch.paths.run_dir.clone(),
            node: watch.paths.node,
            agent: Some(agent_name(watch.agent)),
            rank: None,
        })
    };
    let survivors = sweep::kill_all(&scope, sweep::find, Duration::ZERO, within);
    if !alive && survivors.is_empty() {
        let _ = std::fs::remove_file(&watch.note);
        crate::sockets::remove(&watch.note);
    }
    for survivor in survivors {
        say(&format!(
            "process {} ({}) resists SIGKILL, state {}",
            survivor.pid, survivor.command, survivor.state
        ));
    }
    if let Some(cgroup) = cgroup.filter(|_| !alive) {
        cgroup.remove();
    }
}

fn say(text: &str) {
    #[expect(clippy::disallowed_methods, reason = "standard error of a guard is its agent's log")]
    let _ = writeln!(io::stderr(), "guard: {}", clean(text));
}
