//! Transport to an agent on this machine, through the console's binary and the agent's socket.
//!
//! The short-lived children (`agent probe`, `agent start`, one-shot commands) have a deadline and are reaped.
//! The agent itself daemonizes.

use super::agent_command::{self, ONE_SHOT};
use super::frame_pump::{AgentTransport, Pipe};
use super::link_io::LinkIo;

use super::{AgentCommand, AgentReply, LinkRequest, Upload};
use crate::ssh::exec::MAX_OUTPUT;
use crate::ssh::exec::{self, CommandOutput};
use crate::ssh::session::{self, Interest};
use crate::ssh::{SessionOwner, SshError};
use rankdeck_proto::folders;
use rankdeck_proto::trust;
use rankdeck_types::error::write_hint;
use rankdeck_types::host::Host;
use rankdeck_types::host::Probe;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// Timeout of probing and of starting.
const STARTING: Duration = Duration::from_secs(30);
/// Timeout of the exit of a child that has replied.
const ENDING: Duration = Duration::from_secs(5);
/// How long a child that is not needed any more has to end by itself.
const ASKED: Duration = Duration::from_secs(1);

/// Local transport of one link.
#[derive(Debug)]
pub(crate) struct LocalTransport<'a> {
    request: &'a LinkRequest,
}

impl LocalTransport<'_> {
    /// Creates the transport for `request`.
    pub fn new(request: &LinkRequest) -> LocalTransport<'_> {
        LocalTransport { request }
    }
}

impl AgentTransport for LocalTransport<'_> {
    fn reach_agent(
        &mut self,
        link_io: &mut LinkIo,
        reconnecting: bool,
    ) -> Result<(Probe, Box<dyn Pipe>), SshError> {
        let request = self.request;
        let label = &request.host.name;
        let agent = &request.agent_binary;
        link_io.starting();
        let probed = run(label, agent, &["agent".into(), "probe".into()], STARTING, link_io, &|out| {
            exec::after(out, "RANKDECK-PROBE").is_some()
        })?;
        let probe = agent_command::read_probe_here(request, probed.after("RANKDECK-PROBE"));
        let workdir = if request.host.workdir.is_empty() { "." } else { &request.host.workdir };
        let arguments = agent_command::start_arguments(request, workdir, link_io.inbox.resumes());
        let output = run(label, agent, &arguments, STARTING, link_io, &|out| {
            exec::after(out, "RANKDECK-AGENT").is_some()
        })?;
        let answer = output.after("RANKDECK-AGENT");
        let started = agent_command::read_started(label, answer.as_deref(), &output.summary(), reconnecting)?;
        let connected = trust::connect(Path::new(&started.socket))
            .and_then(|stream| stream.set_nonblocking(true).map(|()| stream));
        let stream = connected.map_err(|error| {
            SshError::transient(
                format!("{label}: cannot reach the agent at {}: {error}", started.socket),
                "check agent.log in the run directory",
            )
        })?;
        Ok((probe, Box::new(stream)))
    }
}

/// Copies the uploads of `call` into this machine's cache, runs `rankdeck agent ARGS` and returns its reply.
pub fn call(
    host: &Host,
    agent: &Path,
    call: &AgentCommand,
    owner: &mut dyn SessionOwner,
) -> Result<AgentReply, SshError> {
    let mut command = Command::new(agent);
    command.arg("agent").args(&call.args);
    run_for_reply(host, command, &agent.display().to_string(), call, owner)
}

/// Runs a `command` that runs `rankdeck agent ARGS` and uses this machine's cache, and returns its reply.
pub(super) fn run_for_reply(
    host: &Host,
    command: Command,
    name: &str,
    call: &AgentCommand,
    owner: &mut dyn SessionOwner,
) -> Result<AgentReply, SshError> {
    let cache = folders::cache();
    let mut uploaded = 0;
    for file in &call.uploads {
        uploaded += copy(&cache, file, owner).map_err(|error| {
            let error = error.to_string();
            let what = format!("cannot copy {} into {}", file.path.display(), cache.display());
            let hint = format!("{}, or set RANKDECK_CACHE to another directory", write_hint(&error));
            SshError::permanent(format!("{}: {what}: {error}", host.name), hint)
        })?;
    }
    let sent = SystemTime::now();
    let mut running = RunningCommand::start(&host.name, command, &call.input)?;
    let lines = call.lines.cursor();
    let done = |out: &[u8]| {
        lines.read(out);
        agent_command::reply(out).is_some()
    };
    let mut output = running.until(&host.name, name, call.within.unwrap_or(ONE_SHOT), owner, &done)?;
    output.withhold(&call.input);
    let received = SystemTime::now();
    let text = agent_command::reply(&output.stdout).ok_or_else(|| {
        let what = call.args.first().map(String::as_str).unwrap_or_default();
        SshError::permanent(format!("{}: rankdeck agent {what} failed: {}", host.name, output.summary()), "")
    })?;
    Ok(AgentReply {
        text,
        sent: agent_command::seconds(Some(sent)),
        received: agent_command::seconds(Some(received)),
        shell: 0.0,
        uploaded,
        cache: cache.display().to_string(),
    })
}

/// Returns the copied bytes; 0 if the file is already in the cache.
fn copy(cache: &Path, file: &Upload, owner: &mut dyn SessionOwner) -> io::Result<u64> {
    let folder = cache.join(&file.folder);
    let target = folder.join(&file.name);
    let size = std::fs::metadata(&file.path)?.len();
    if std::fs::metadata(&target).is_ok_and(|facts| facts.len() == size) {
        return Ok(0);
    }
    folders::private_cache(&file.folder).map_err(|failure| io::Error::other(failure.error))?;
    let part = folder.join(format!(
        ".{}.{}.{:x}.part",
        file.name,
        std::process::id(),
        crate::random_fraction().to_bits()
    ));
    let copied = std::fs::copy(&file.path, &part).and_then(|_| std::fs::rename(&part, &target));
    let _ = std::fs::remove_file(&part);
    copied?;
    owner.progress(&file.name, size, size);
    Ok(size)
}

/// A child that is killed and reaped on drop.
struct OwnedChild(Option<Child>);

impl Drop for OwnedChild {
    /// Asks it to end first: an agent's command undoes what must not last, such as a suspended rank.
    fn drop(&mut self) {
        let Some(pid) = self.0.as_ref().map(Child::id) else { return };
        let deadline = Instant::now() + ASKED;
        if let Some(child) = &mut self.0
            && !matches!(child.try_wait(), Ok(Some(_)))
        {
            // SAFETY: kill takes two numbers; the child was not waited for, so the number is still its own.
            unsafe { libc::kill(pid as i32, libc::SIGTERM) };
        }
        while let Some(child) = &mut self.0
            && !matches!(child.try_wait(), Ok(Some(_)))
        {
            if Instant::now() >= deadline {
                let _ = child.kill();
                let _ = child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Runs a child until its output satisfies `done`, or it ends.
fn run(
    label: &str,
    program: &Path,
    arguments: &[String],
    within: Duration,
    owner: &mut dyn SessionOwner,
    done: &dyn Fn(&[u8]) -> bool,
) -> Result<CommandOutput, SshError> {
    let mut command = Command::new(program);
    command.args(arguments);
    let name = program.display().to_string();
    RunningCommand::start(label, command, &[])?.until(label, &name, within, owner, done)
}

/// A running child with its output streams.
pub(super) struct RunningCommand {
    child: OwnedChild,
    stdout: ChildStdout,
    stderr: ChildStderr,
}

impl RunningCommand {
    /// Starts a child with a short `input` on stdin.
    pub(super) fn start(label: &str, mut command: Command, input: &[u8]) -> Result<RunningCommand, SshError> {
        let name = command.get_program().display().to_string();
        let fault = |error: io::Error| {
            SshError::permanent(
                format!("{label}: cannot run {name}: {error}"),
                "check that it is installed and executable",
            )
        };
        let spawned = command
            .stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(fault)?;
        let mut child = OwnedChild(Some(spawned));
        if let Some(mut stdin) = child.0.as_mut().and_then(|child| child.stdin.take()) {
            let bytes = input.to_vec();
            // On a thread, because a pipe is small; a child that exits early shows in its output.
            std::thread::spawn(move || stdin.write_all(&bytes));
        }
        let streams = child.0.as_mut().map(|child| (child.stdout.take(), child.stderr.take()));
        let Some((Some(stdout), Some(stderr))) = streams else {
            return Err(fault(io::ErrorKind::BrokenPipe.into()));
        };
        for fd in [stdout.as_raw_fd(), stderr.as_raw_fd()] {
            nonblocking(fd).map_err(fault)?;
        }
        Ok(RunningCommand { child, stdout, stderr })
    }

    /// Releases the child without killing it.
    pub(super) fn release(mut self) -> Option<Child> {
        self.child.0.take()
    }

    /// Waits until its output satisfies `done`, or it ends.
    pub(super) fn until(
        &mut self,
        label: &str,
        name: &str,
        within: Duration,
        owner: &mut dyn SessionOwner,
        done: &dyn Fn(&[u8]) -> bool,
    ) -> Result<CommandOutput, SshError> {
        let RunningCommand { child, stdout, stderr } = self;
        let deadline = Instant::now() + within;
        let mut output = CommandOutput::default();
        let (mut open_out, mut open_err) = (true, true);
        loop {
            open_out = open_out && drain(stdout, &mut output.stdout, MAX_OUTPUT);
            open_err = open_err && drain(stderr, &mut output.stderr, 4 << 10);
            let answered = done(&output.stdout);
            if answered || !open_out {
                // A child that replied and keeps running is left alone.
                let patience = if answered { Duration::from_millis(20) } else { ENDING };
                let until = deadline.min(Instant::now() + patience);
                output.status = ending(child, until);
                drain(stderr, &mut output.stderr, 4 << 10);
                return Ok(output);
            }
            if owner.closing() {
                return Err(SshError::closed());
            }
            let now = Instant::now();
            if now >= deadline {
                let error = format!("{label}: {name} did not respond within {} s", within.as_secs());
                return Err(SshError::transient(error, ""));
            }
            let mut interests = vec![Interest { fd: stdout.as_raw_fd(), read: true, write: false }];
            if open_err {
                interests.push(Interest { fd: stderr.as_raw_fd(), read: true, write: false });
            }
            interests.extend(owner.wake_fd().map(|fd| Interest { fd, read: true, write: false }));
            // One-shot owners have no bell: poll them.
            let patience = if owner.wake_fd().is_some() { deadline - now } else { session::OWNER_POLL };
            let _ = session::poll(&interests, patience.min(deadline - now));
        }
    }
}

/// Returns the exit code of a child that is about to exit; `None` if it does not, or was killed by a signal.
fn ending(child: &mut OwnedChild, deadline: Instant) -> Option<i32> {
    loop {
        match child.0.as_mut()?.try_wait() {
            Ok(Some(status)) => return status.code(),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            _ => return None,
        }
    }
}

/// Reads available bytes; `false` at the end of the stream. Bytes beyond `most` are dropped.
fn drain(stream: &mut dyn Read, into: &mut Vec<u8>, most: usize) -> bool {
    let mut buffer = vec![0; 16 << 10];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return false,
            Ok(count) => {
                let room = most.saturating_sub(into.len());
                into.extend_from_slice(&buffer[..count.min(room)]);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
}

fn nonblocking(fd: i32) -> io::Result<()> {
    // SAFETY: plain calls on a descriptor that the caller holds open; no memory is passed.
    let set = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags < 0 { flags } else { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) }
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    #[test]
    fn unneeded_child_is_asked_to_end_before_it_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let undone = folder.path().join("undone");
        for (trap, is_undone) in [("echo x >\"$0\"; exit", true), ("", false)] {
            let script = format!("trap '{trap}' TERM; echo up; while :; do sleep 0.01; done");
            let mut command = Command::new("sh");
            let mut child =
                command.args(["-c", &script]).arg(&undone).stdout(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            let begun = Instant::now();
            drop(OwnedChild(Some(child)));
            assert!(begun.elapsed() < Duration::from_secs(20), "it is not waited for forever");
            assert_eq!(undone.exists(), is_undone, "{trap}");
            let _ = std::fs::remove_file(&undone);
        }
    }
}
