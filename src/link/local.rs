//! The transport to an agent on this machine: no SSH, the console's own binary, the agent's socket.
//!
//! Owner: the link's thread; the short-lived children (`agent probe`, `agent start`, one-shot commands) are
//! its own, bounded by a deadline, and reaped. The agent itself is nobody's child: it daemonises.

use super::agent_command::{self, ONE_SHOT};
use super::carry::Pipe;
use super::link_io::LinkIo;
use super::random;
use super::transport::AgentTransport;
use super::{AgentCommand, AgentReply, LinkRequest, Upload};
use crate::ssh::exec::MAX_OUTPUT;
use crate::ssh::output::{self, Output};
use crate::ssh::wait;
use crate::ssh::wait::Interest;
use crate::ssh::{Operator, SshError};
use rankdeck_proto::folders;
use rankdeck_types::host::Host;
use rankdeck_types::probe::Probe;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// Bound of probing and of starting.
const STARTING: Duration = Duration::from_secs(30);
/// How long an answered child may take to end.
const ENDING: Duration = Duration::from_secs(5);

/// The local transport of one link.
#[derive(Debug)]
pub struct LocalTransport<'a> {
    request: &'a LinkRequest,
}

impl LocalTransport<'_> {
    /// The transport for `request`.
    pub fn new(request: &LinkRequest) -> LocalTransport<'_> {
        LocalTransport { request }
    }
}

impl AgentTransport for LocalTransport<'_> {
    fn reach_agent(
        &mut self,
        link_io: &mut LinkIo,
        mending: bool,
    ) -> Result<(Probe, Box<dyn Pipe>), SshError> {
        let request = self.request;
        let label = &request.host.name;
        let agent = &request.agent_binary;
        link_io.starting();
        let probed = run(label, agent, &["agent".into(), "probe".into()], STARTING, link_io, &|out| {
            output::after(out, "RANKDECK-PROBE").is_some()
        })?;
        let probe = agent_command::read_probe_here(request, probed.after("RANKDECK-PROBE"));
        let workdir = if request.host.workdir.is_empty() { "." } else { &request.host.workdir };
        let arguments = agent_command::start_arguments(request, workdir);
        let said = run(label, agent, &arguments, STARTING, link_io, &|out| {
            output::after(out, "RANKDECK-AGENT").is_some()
        })?;
        let answer = said.after("RANKDECK-AGENT");
        let started = agent_command::read_started(label, answer.as_deref(), &said.described(), mending)?;
        let connected = UnixStream::connect(&started.socket)
            .and_then(|stream| stream.set_nonblocking(true).map(|()| stream));
        let stream = connected.map_err(|error| {
            SshError::passing(
                format!("{label}: cannot reach the agent at {}: {error}", started.socket),
                "see agent.log in the run directory",
            )
        })?;
        Ok((probe, Box::new(stream)))
    }
}

/// Copies the uploads of `call` into this machine's cache, runs `rankdeck agent ARGS` here and returns its
/// answer.
pub fn call(
    host: &Host,
    agent: &Path,
    call: &AgentCommand,
    operator: &mut dyn Operator,
) -> Result<AgentReply, SshError> {
    let mut command = Command::new(agent);
    command.arg("agent").args(&call.args);
    answer_of(host, command, &agent.display().to_string(), call, operator)
}

/// The same with a `command` that runs `rankdeck agent ARGS` somewhere; its cache is taken to be this
/// machine's.
pub(super) fn answer_of(
    host: &Host,
    command: Command,
    name: &str,
    call: &AgentCommand,
    operator: &mut dyn Operator,
) -> Result<AgentReply, SshError> {
    let cache = folders::cache();
    let mut uploaded = 0;
    for file in &call.uploads {
        uploaded += copy(&cache, file, operator).map_err(|error| {
            SshError::lasting(
                format!(
                    "{}: cannot copy {} into {}: {error}",
                    host.name,
                    file.path.display(),
                    cache.display()
                ),
                "is the disk full? RANKDECK_CACHE names another folder",
            )
        })?;
    }
    let sent = SystemTime::now();
    let mut running = RunningCommand::start(&host.name, command, &call.input)?;
    let lines = call.lines.reader();
    let done = |out: &[u8]| {
        lines.read(out);
        agent_command::answer(out).is_some()
    };
    let output = running.until(&host.name, name, call.within.unwrap_or(ONE_SHOT), operator, &done)?;
    let received = SystemTime::now();
    let text = agent_command::answer(&output.stdout).ok_or_else(|| {
        let what = call.args.first().map(String::as_str).unwrap_or_default();
        SshError::lasting(format!("{}: rankdeck agent {what} failed: {}", host.name, output.described()), "")
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

/// Bytes copied; 0 when it is there already.
fn copy(cache: &Path, file: &Upload, operator: &mut dyn Operator) -> io::Result<u64> {
    let folder = cache.join(&file.folder);
    let target = folder.join(&file.name);
    let size = std::fs::metadata(&file.path)?.len();
    if std::fs::metadata(&target).is_ok_and(|facts| facts.len() == size) {
        return Ok(0);
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    let part =
        folder.join(format!(".{}.{}.{:x}.part", file.name, std::process::id(), random::fraction().to_bits()));
    let copied = std::fs::copy(&file.path, &part).and_then(|_| std::fs::rename(&part, &target));
    let _ = std::fs::remove_file(&part);
    copied?;
    operator.progress(&file.name, size, size);
    Ok(size)
}

/// Kills and reaps on drop what has not ended by itself.
struct OwnedChild(Option<Child>);

impl Drop for OwnedChild {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0
            && !matches!(child.try_wait(), Ok(Some(_)))
        {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs a child until `done` is satisfied by its output, or it ends.
fn run(
    label: &str,
    program: &Path,
    arguments: &[String],
    within: Duration,
    operator: &mut dyn Operator,
    done: &dyn Fn(&[u8]) -> bool,
) -> Result<Output, SshError> {
    let mut command = Command::new(program);
    command.args(arguments);
    let name = program.display().to_string();
    RunningCommand::start(label, command, &[])?.until(label, &name, within, operator, done)
}

/// A child whose output is read while it runs.
pub(super) struct RunningCommand {
    child: OwnedChild,
    stdout: ChildStdout,
    stderr: ChildStderr,
}

impl RunningCommand {
    /// Starts it with `input`, which is short, as its standard input.
    pub(super) fn start(label: &str, mut command: Command, input: &[u8]) -> Result<RunningCommand, SshError> {
        let name = command.get_program().display().to_string();
        let fault = |error: io::Error| {
            SshError::lasting(
                format!("{label}: cannot run {name}: {error}"),
                "is it installed here, and may this user run it?",
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
            // Elsewhere, because a pipe is small; a child that ended early shows in its output.
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

    /// The child, which is not ended with this.
    pub(super) fn release(mut self) -> Option<Child> {
        self.child.0.take()
    }

    /// Waits until `done` is satisfied by its output, or it ends.
    pub(super) fn until(
        &mut self,
        label: &str,
        name: &str,
        within: Duration,
        operator: &mut dyn Operator,
        done: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Output, SshError> {
        let RunningCommand { child, stdout, stderr } = self;
        let deadline = Instant::now() + within;
        let mut output = Output::default();
        let (mut open_out, mut open_err) = (true, true);
        loop {
            open_out = open_out && drain(stdout, &mut output.stdout, MAX_OUTPUT);
            open_err = open_err && drain(stderr, &mut output.stderr, 4 << 10);
            let answered = done(&output.stdout);
            if answered || !open_out {
                // A child that has answered and keeps running has said all that is wanted.
                let patience = if answered { Duration::from_millis(20) } else { ENDING };
                let until = deadline.min(Instant::now() + patience);
                output.status = ending(child, until);
                drain(stderr, &mut output.stderr, 4 << 10);
                return Ok(output);
            }
            if operator.closing() {
                return Err(SshError::closed());
            }
            let now = Instant::now();
            if now >= deadline {
                let error = format!("{label}: {name} did not answer within {} s", within.as_secs());
                return Err(SshError::passing(error, ""));
            }
            let mut interests = vec![Interest { fd: stdout.as_raw_fd(), read: true, write: false }];
            if open_err {
                interests.push(Interest { fd: stderr.as_raw_fd(), read: true, write: false });
            }
            interests.extend(operator.wake_fd().map(|fd| Interest { fd, read: true, write: false }));
            // One-shot operators cannot be woken, so they are looked at now and then.
            let patience = if operator.wake_fd().is_some() { deadline - now } else { wait::GLANCE };
            let _ = wait::poll(&interests, patience.min(deadline - now));
        }
    }
}

/// Exit code of a child that is about to end; `None` when it does not, or a signal ended it.
fn ending(child: &mut OwnedChild, deadline: Instant) -> Option<i32> {
    loop {
        match child.0.as_mut()?.try_wait() {
            Ok(Some(status)) => return status.code(),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            _ => return None,
        }
    }
}

/// Reads what is there; `false` once the stream has ended. What does not fit is read and dropped.
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

pub(super) fn nonblocking(fd: i32) -> io::Result<()> {
    // SAFETY: plain calls on a descriptor that the caller holds open; no memory is passed.
    let set = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags < 0 { flags } else { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) }
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
