//! The way through the system's `ssh`: one process per command.
//!
//! It serves what libssh2 cannot do: post-quantum key exchange, FIDO keys, host certificates, GSSAPI,
//! ProxyCommand, KnownHostsCommand. `ssh` checks the host key and logs in by itself, with the user's whole
//! configuration; with `ControlMaster auto` there, all commands share one login. Owner: the link's thread; a
//! process ends with the value that stands for it. Invariants:
//! - OPENSSH-1: nothing is asked and no secret is passed on: `BatchMode` refuses what would need a question.

use super::output::Output;
use super::session::{SshChannel, SshSession, Stream};
use super::user_config::{self, SshTarget};
use super::wait::{self, Interest, Stall};
use super::{Operator, SshError, quote};
use rankdeck_types::host::Host;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Exit code of an `ssh` that did not get as far as the command.
const NOT_IN: i32 = 255;
/// How long a process may take to end by itself once its streams are closed.
const ENDING: Duration = Duration::from_secs(1);

/// The way to one host.
pub struct Openssh {
    target: SshTarget,
    /// Its options and the address.
    words: Vec<String>,
}

impl Openssh {
    /// The way to `host`. `config`: another file than `~/.ssh/config`.
    pub fn new(host: &Host, config: Option<&Path>) -> Result<Openssh, SshError> {
        let target = user_config::outline(host, config)?;
        let mut words: Vec<String> = Vec::new();
        let mut option = |name: &str, value: Option<String>| {
            words.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
        };
        option("-F", config.map(|file| file.display().to_string()));
        option("-p", host.port.map(|port| port.to_string()));
        option("-l", host.user.clone());
        option("-i", host.identity_file.clone());
        option("-J", host.proxy_jump.clone());
        words.extend(["--".into(), host.address.clone()]);
        Ok(Openssh { target, words })
    }
}

impl SshSession for Openssh {
    fn target(&self) -> &SshTarget {
        &self.target
    }

    fn start(
        &self,
        _operator: &mut dyn Operator,
        command: &str,
        _deadline: Instant,
    ) -> Result<Box<dyn SshChannel>, SshError> {
        let mut ssh = Command::new("ssh");
        // A shell of the user's may set these in his file for people's sessions.
        for option in ["BatchMode=yes", "ClearAllForwardings=yes", "RemoteCommand=none", "LogLevel=ERROR"] {
            ssh.args(["-o", option]);
        }
        ssh.args(["-T", "-x", "-e", "none"]).args(&self.words).arg(command);
        let process = Process::start(ssh).map_err(|error| {
            SshError::lasting(
                format!("{}: cannot run `ssh`: {error}", self.label()),
                "install the OpenSSH client, or set `transport = \"ssh\"` for this host",
            )
        })?;
        Ok(Box::new(process))
    }

    fn socket(
        &self,
        _operator: &mut dyn Operator,
        _path: &str,
        _deadline: Instant,
    ) -> Result<Option<Box<dyn SshChannel>>, SshError> {
        Ok(None)
    }

    fn refusal(&self, output: &Output) -> Option<SshError> {
        if output.status != Some(NOT_IN) {
            return None;
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let said = lines[lines.len().saturating_sub(3)..].join("; ");
        let error =
            format!("{}: ssh did not get in: {}", self.label(), rankdeck_types::words::clip(&said, 400));
        const PASSING: [&str; 6] =
            ["refused", "timed out", "closed by", "reset by", "unreachable", "Temporary failure"];
        let passing = PASSING.iter().any(|words| said.contains(words)) && !said.contains("denied");
        let hint = format!(
            "try `{}`: rankdeck's ssh asks nothing (BatchMode), so a passphrase wants an ssh-agent, and an unknown host \
             key has to be accepted there first",
            self.by_hand()
        );
        Some(if passing { SshError::passing(error, hint) } else { SshError::lasting(error, hint) })
    }

    fn keep(self: Box<Self>) {}

    fn by_hand(&self) -> String {
        format!("ssh {}", quote::words(self.words.iter().filter(|word| *word != "--").map(String::as_str)))
    }
}

/// One `ssh` and its command. Standard input and output are the two directions of one socket.
struct Process {
    child: Child,
    stream: UnixStream,
    errors: ChildStderr,
    /// Standard output has ended; standard error has.
    ended: (bool, bool),
    /// The last write did not fit.
    full: bool,
    status: Option<ExitStatus>,
}

impl Process {
    fn start(mut command: Command) -> io::Result<Process> {
        let (stream, theirs) = UnixStream::pair()?;
        stream.set_nonblocking(true)?;
        let (input, output) = (OwnedFd::from(theirs.try_clone()?), OwnedFd::from(theirs));
        // A group of its own: ctrl-c on the terminal is for the console.
        let spawned = command.stdin(input).stdout(output).stderr(Stdio::piped()).process_group(0).spawn();
        // Its ends of the socket go, so that the end of the process is seen.
        drop(command);
        let mut child = spawned?;
        let Some(errors) = child.stderr.take() else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        // SAFETY: the descriptor is open, `errors` owns it; fcntl touches no memory.
        unsafe {
            let flags = libc::fcntl(errors.as_raw_fd(), libc::F_GETFL);
            libc::fcntl(errors.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK);
        }
        Ok(Process { child, stream, errors, ended: (false, false), full: false, status: None })
    }
}

impl SshChannel for Process {
    fn read(&mut self, stream: Stream, buffer: &mut [u8]) -> io::Result<usize> {
        let (read, ended) = match stream {
            Stream::Output => (Read::read(&mut self.stream, buffer), &mut self.ended.0),
            Stream::Error => (self.errors.read(buffer), &mut self.ended.1),
        };
        *ended |= matches!(read, Ok(0)) && !buffer.is_empty();
        read
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let wrote = Write::write(&mut self.stream, bytes);
        self.full = wrote.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        wrote
    }

    fn end_input(&mut self, _operator: &mut dyn Operator, _deadline: Instant) -> Result<(), Stall> {
        self.full = false;
        // An ended process has no input to end.
        let _ = self.stream.shutdown(Shutdown::Write);
        Ok(())
    }

    fn ended(&self) -> bool {
        self.ended == (true, true)
    }

    fn over(&self) -> bool {
        self.ended.0
    }

    fn interest(&self, pending: bool) -> Interest {
        Interest { fd: self.stream.as_raw_fd(), read: true, write: pending || self.full }
    }

    fn pause(&self, operator: &mut dyn Operator, deadline: Instant) -> Result<(), Stall> {
        let mut interests = Vec::new();
        if !self.ended.0 {
            interests.push(self.interest(false));
        }
        if !self.ended.1 {
            interests.push(Interest { fd: self.errors.as_raw_fd(), read: true, write: false });
        }
        wait::pause(&interests, operator, deadline)
    }

    fn close(&mut self, operator: &mut dyn Operator, deadline: Instant) -> Result<Option<i32>, Stall> {
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                self.status = Some(status);
                return Ok(status.code());
            }
            if operator.closing() {
                return Err(Stall::Closed);
            }
            if Instant::now() >= deadline {
                return Err(Stall::TimedOut);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn abandon(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.status.is_some() {
            return;
        }
        // The command sees the end of its input; killing `ssh` harms nobody else.
        self.abandon();
        let deadline = Instant::now() + ENDING;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                _ => return,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
