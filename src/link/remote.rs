//! Transport to an agent over SSH.
//!
//! The link's thread owns the session and its channels (SSH-1). It reaches the agent's socket by
//! `direct-streamlocal`, without a process on the host, or through `rankdeck agent relay` if sshd forbids
//! that.

use super::agent_command::{self, ONE_SHOT};
use super::deploy::Image;
use super::deploy::{self, DeployedPrograms, Package, RemoteScript};
use super::frame_pump::{self, AgentTransport, Pipe};
use super::link_io::LinkIo;
use super::{AgentCommand, AgentReply, LinkRequest, Links, Upload};
use crate::ssh::connection;
use crate::ssh::connection::Connection;
use crate::ssh::exec;
use crate::ssh::exec::CommandOutput;
use crate::ssh::exec::Script;
use crate::ssh::openssh::Openssh;
use crate::ssh::session::{self, BlockReason, Interest};
use crate::ssh::session::{SshChannel, SshSession, Stream};
use crate::ssh::upload::Uploader;
use crate::ssh::user_config;
use crate::ssh::{SessionOwner, SshError, quote};
use rankdeck_types::host::Probe;
use rankdeck_types::host::{Host, Transport};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Timeout of probing and starting the agent.
const STARTING: Duration = Duration::from_secs(30);
/// Timeout of connecting to its socket.
const OPENING: Duration = Duration::from_secs(15);
/// Timeout of one write; messages to an agent are short.
const WRITING: Duration = Duration::from_secs(5);
/// Timeout of closing a relay that ended early.
const CLOSING: Duration = Duration::from_secs(2);
/// Most bytes before the relay's marker.
const MAX_NOISE: usize = 1 << 20;
const MAX_STDERR: usize = 4 << 10;
const RELAY_MARKER: &str = "RANKDECK-RELAY";

/// SSH transport of one link.
#[derive(Debug)]
pub(crate) struct SshTransport<'a> {
    links: Links,
    request: &'a LinkRequest,
}

impl SshTransport<'_> {
    /// Creates the transport for `request`.
    pub fn new(links: Links, request: &LinkRequest) -> SshTransport<'_> {
        SshTransport { links, request }
    }
}

impl AgentTransport for SshTransport<'_> {
    fn reach_agent(
        &mut self,
        link_io: &mut LinkIo,
        reconnecting: bool,
    ) -> Result<(Probe, Box<dyn Pipe>), SshError> {
        let request = self.request;
        // First: it fails at once, and hashing the files may take seconds.
        let session = session(&self.links, &request.host, link_io)?;
        let package =
            Package::read(&request.host.name, &request.agent_binary, request.trainer_binary.as_deref())?;
        let workdir = if request.host.workdir.is_empty() { "rankdeck" } else { &request.host.workdir };
        let arguments = agent_command::start_arguments(request, workdir, link_io.inbox.resumes());
        let script = Script::new().arguments(&arguments).run("\"$A\" agent probe; exec \"$A\" \"$@\"");
        let done = |bytes: &[u8]| exec::after(bytes, "RANKDECK-AGENT").is_some();
        let remote = RemoteScript { script: &script, input: &[], done: &done, within: STARTING };
        let (deployed, output) = deploy::run(session.as_ref(), &package, &remote, link_io)?;
        let answer = output.after("RANKDECK-AGENT");
        let started =
            agent_command::read_started(session.label(), answer.as_deref(), &output.summary(), reconnecting)?;
        let probe = read_probe(&deployed, &output);
        // The launch is done on this host: close idle sessions.
        Connection::close_idle(session.target());
        Ok((probe, Box::new(open(session, &deployed.agent, &started.socket, link_io)?)))
    }
}

/// Returns a session with a host: an idle one, a new one, or the system's `ssh`.
fn session(
    links: &Links,
    host: &Host,
    owner: &mut dyn SessionOwner,
) -> Result<Box<dyn SshSession>, SshError> {
    let config = links.ssh_config.as_deref();
    if host.transport == Transport::Openssh {
        return Ok(Box::new(Openssh::new(host, config)?));
    }
    let target = user_config::resolve(host, config)?;
    Ok(match Connection::take_idle(&target) {
        Some(connection) => Box::new(connection),
        None => Box::new(connection::connect(&target, owner)?),
    })
}

/// Returns the agent's probe, completed with facts of the deployment.
fn read_probe(deployed: &DeployedPrograms, output: &CommandOutput) -> Probe {
    let mut probe = agent_command::read_probe(output.after("RANKDECK-PROBE"));
    if probe.home.is_empty() {
        probe.home = deployed.home.clone();
    }
    probe.trainer = probe.trainer.or_else(|| deployed.trainer.clone());
    probe
}

/// Opens a byte stream to the agent's socket.
fn open(
    session: Box<dyn SshSession>,
    agent: &str,
    socket: &str,
    owner: &mut dyn SessionOwner,
) -> Result<SshPipe, SshError> {
    match session.socket(owner, socket, Instant::now() + OPENING)? {
        Some(stream) => Ok(SshPipe { stream, session, head: Vec::new(), stderr: Vec::new() }),
        None => relay(session, agent, socket, owner),
    }
}

/// Connects through a relay process on the host.
fn relay(
    session: Box<dyn SshSession>,
    agent: &str,
    socket: &str,
    owner: &mut dyn SessionOwner,
) -> Result<SshPipe, SshError> {
    let deadline = Instant::now() + OPENING;
    let script = Script::new().arguments(&[agent, "agent", "relay", "--socket", socket]).run("exec \"$@\"");
    let mut stream = session.start(owner, &script.command(), deadline)?;
    let mut output = CommandOutput::default();
    let head = loop {
        let fault = |why: String| {
            SshError::transient(
                format!("{}: cannot reach the agent at {socket}: {why}", session.label()),
                "check agent.log in the run directory",
            )
        };
        let moved =
            exec::read_output(stream.as_mut(), &mut output).map_err(|blocked| fault(blocked.text()))?;
        if let Some(head) = behind_marker(&output.stdout) {
            break head;
        }
        if stream.ended() || output.stdout.len() > MAX_NOISE {
            output.status = stream.close(owner, Instant::now() + CLOSING).ok().flatten();
            return Err(session.refusal(&output).unwrap_or_else(|| fault(output.summary())));
        }
        if !moved {
            stream.pause(owner, deadline).map_err(|blocked| match blocked {
                BlockReason::Closed => SshError::closed(),
                blocked => fault(blocked.text()),
            })?;
        }
    };
    Ok(SshPipe { stream, session, head, stderr: Vec::new() })
}

/// Returns the bytes after the relay's marker line.
fn behind_marker(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut at = 0;
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        at += line.len();
        if line.trim_ascii_end() == RELAY_MARKER.as_bytes() && line.ends_with(b"\n") {
            return Some(bytes[at..].to_vec());
        }
    }
    None
}

/// Uploads the files of `call` to a host, runs `rankdeck agent ARGS` there and returns its reply.
pub fn call(
    links: &Links,
    host: &Host,
    agent: &Path,
    call: &AgentCommand,
    owner: &mut dyn SessionOwner,
) -> Result<AgentReply, SshError> {
    // First: it fails at once, and hashing the files may take seconds.
    let session = session(links, host, owner)?;
    let package = Package::read(&host.name, agent, call.trainer.as_deref())?;
    let arguments = quote::words(call.args.iter().map(String::as_str));
    let script = Script::new().arguments(&call.args).run("exec \"$A\" agent \"$@\"");
    let uploaded = match call.uploads.as_slice() {
        [] => 0,
        uploads => upload_missing(session.as_ref(), &package, uploads, owner)?,
    };
    let lines = call.lines.cursor();
    let done = |bytes: &[u8]| {
        lines.read(bytes);
        agent_command::reply(bytes).is_some()
    };
    let within = call.within.unwrap_or(ONE_SHOT);
    let remote = RemoteScript { script: &script, input: &call.input, done: &done, within };
    let (deployed, output) = deploy::run(session.as_ref(), &package, &remote, owner)?;
    let text = agent_command::reply(&output.stdout).ok_or_else(|| {
        let what = call.args.first().map(String::as_str).unwrap_or_default();
        SshError::permanent(
            format!("{}: rankdeck agent {what} failed: {}", host.name, output.summary()),
            format!("run it by hand: `{} {} agent {arguments}`", session.by_hand(), deployed.agent),
        )
    })?;
    if output.closed {
        session.release();
    }
    Ok(AgentReply {
        text,
        sent: agent_command::seconds(output.sent),
        received: agent_command::seconds(output.received),
        shell: output.opened.unwrap_or_default().as_secs_f64(),
        uploaded,
        cache: deployed.cache,
    })
}

/// Uploads missing files; returns the number of bytes.
fn upload_missing(
    session: &dyn SshSession,
    package: &Package,
    uploads: &[Upload],
    owner: &mut dyn SessionOwner,
) -> Result<u64, SshError> {
    let names: Vec<String> = uploads.iter().map(|file| format!("{}/{}", file.folder, file.name)).collect();
    // The cache is two directories above the agent.
    let script = Script::new().arguments(&names).run(
        "D=\"${A%/*}\"; D=\"${D%/*}\"; for f in \"$@\"; do if test -f \"$D/$f\"; \
         then echo \"RANKDECK-SIZE $(($(wc -c < \"$D/$f\")))\"; else echo \"RANKDECK-SIZE -\"; fi; done; \
         echo RANKDECK-SIZES",
    );
    let done = |bytes: &[u8]| exec::after(bytes, "RANKDECK-SIZES").is_some();
    let remote = RemoteScript { script: &script, input: &[], done: &done, within: STARTING };
    let (deployed, output) = deploy::run(session, package, &remote, owner)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let sizes: Vec<Option<u64>> = text
        .lines()
        .filter_map(|line| line.strip_prefix("RANKDECK-SIZE "))
        .map(|size| size.trim().parse().ok())
        .collect();
    let mut uploader = Uploader::new(session);
    for (index, file) in uploads.iter().enumerate() {
        let image = Image::read(&file.path).map_err(|error| {
            SshError::permanent(
                format!("{}: cannot read {}: {error}", session.label(), file.path.display()),
                "check that it was not moved or rebuilt meanwhile",
            )
        })?;
        if sizes.get(index) != Some(&Some(image.size)) {
            uploader.file(&image, &deployed.cache, &file.folder, &file.name, owner)?;
        }
    }
    Ok(uploader.sent)
}

/// A stream to an agent. Field order: the stream must be dropped before its session.
struct SshPipe {
    stream: Box<dyn SshChannel>,
    session: Box<dyn SshSession>,
    /// Bytes after the relay's marker.
    head: Vec<u8>,
    stderr: Vec<u8>,
}

impl Pipe for SshPipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.head.is_empty() {
            let count = self.head.len().min(buffer.len());
            buffer[..count].copy_from_slice(&self.head[..count]);
            self.head.drain(..count);
            return Ok(count);
        }
        // Both streams share one window: unread stderr would block the messages.
        let mut scrap = [0; 1024];
        while let Ok(count) = self.stream.read(Stream::Error, &mut scrap)
            && count > 0
        {
            self.stderr.extend_from_slice(&scrap[..count]);
            let surplus = self.stderr.len().saturating_sub(MAX_STDERR);
            self.stderr.drain(..surplus);
        }
        match self.stream.read(Stream::Output, buffer)? {
            0 if !self.stream.over() => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let deadline = Instant::now() + WRITING;
        // Repeated until complete, without reads in between: libssh2 allows no other call in the middle of a
        // packet.
        loop {
            match self.stream.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("write timed out after {} s", WRITING.as_secs()),
                ));
            }
            session::poll(&[self.stream.interest(false)], deadline - now)?;
        }
    }

    fn interest(&self, pending: bool) -> Interest {
        self.stream.interest(pending)
    }

    fn silence(&self) -> Duration {
        self.session.target().silence.unwrap_or(frame_pump::SILENCE)
    }

    fn last_error_line(&mut self) -> String {
        CommandOutput { stderr: std::mem::take(&mut self.stderr), ..CommandOutput::default() }
            .last_error_line()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relay_stream_starts_after_its_marker_line() {
        assert_eq!(behind_marker(b"Welcome\nRANKDECK-RELAY\n\0\0a\n").as_deref(), Some(&b"\0\0a\n"[..]));
        assert_eq!(behind_marker(b"RANKDECK-RELAY\r\n").as_deref(), Some(&b""[..]));
        assert_eq!(behind_marker(b"RANKDECK-RELAY"), None);
        assert_eq!(behind_marker(b"see RANKDECK-RELAY\n"), None);
    }
}
