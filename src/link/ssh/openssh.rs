//! Sessions through the system's `ssh`, one process per command.
//!
//! Supports what libssh2 does not: post-quantum key exchange, FIDO keys, host certificates, GSSAPI,
//! ProxyCommand, KnownHostsCommand. `ssh` checks the host key and logs in with the user's whole
//! configuration; with `ControlMaster auto`, all commands share one login. A process ends when its value is
//! dropped. Invariants:
//! - OPENSSH-1: there are no prompts, and no secret is passed on: `BatchMode` rejects them.

use super::exec::CommandOutput;
use super::session::{self, BlockReason, Interest};
use super::session::{SshChannel, SshSession, Stream};
use super::user_config::{self, SshTarget};
use super::{SessionOwner, SshError, SshErrorKind, quote};
use rankdeck_types::host::Host;
use rankdeck_types::words;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Exit code of an `ssh` that failed before the command.
const CONNECTION_FAILED: i32 = 255;
/// Timeout of the exit of a process after its streams are closed.
const ENDING: Duration = Duration::from_secs(1);

/// A session with one host.
pub struct Openssh {
    target: SshTarget,
    /// Options and address.
    words: Vec<String>,
}

impl Openssh {
    /// Creates a session with `host`. `config`: a file in place of `~/.ssh/config`.
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
        _owner: &mut dyn SessionOwner,
        command: &str,
        _deadline: Instant,
    ) -> Result<Box<dyn SshChannel>, SshError> {
        let mut ssh = Command::new("ssh");
        // The user's file may set these for interactive sessions. Level INFO prints the server's banner, which
        // has PAM's reason for a refusal.
        for option in ["BatchMode=yes", "ClearAllForwardings=yes", "RemoteCommand=none", "LogLevel=INFO"] {
            ssh.args(["-o", option]);
        }
        ssh.args(["-T", "-x", "-e", "none"]).args(&self.words).arg(command);
        let process = SshProcess::start(ssh).map_err(|error| {
            SshError::permanent(
                format!("{}: cannot run `ssh`: {error}", self.label()),
                "install the OpenSSH client, or set `transport = \"ssh\"` for this host",
            )
        })?;
        Ok(Box::new(process))
    }

    fn socket(
        &self,
        _owner: &mut dyn SessionOwner,
        _path: &str,
        _deadline: Instant,
    ) -> Result<Option<Box<dyn SshChannel>>, SshError> {
        Ok(None)
    }

    fn refusal(&self, output: &CommandOutput) -> Option<SshError> {
        if output.status != Some(CONNECTION_FAILED) {
            return None;
        }
        Some(refused(self.label(), &String::from_utf8_lossy(&output.stderr), &self.by_hand()))
    }

    fn logs_in_per_command(&self) -> bool {
        true
    }

    fn release(self: Box<Self>) {}

    fn by_hand(&self) -> String {
        format!("ssh {}", quote::words(self.words.iter().filter(|word| *word != "--").map(String::as_str)))
    }
}

/// Returns the error of an `ssh` that failed before the command, with its own words first.
fn refused(label: &str, stderr: &str, by_hand: &str) -> SshError {
    const NOISE: [&str; 2] = ["**", "Warning: Permanently added"];
    const TRANSIENT: [&str; 6] =
        ["refused", "timed out", "closed by", "reset by", "unreachable", "Temporary failure"];
    let lines: Vec<&str> = stderr
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !NOISE.iter().any(|noise| line.starts_with(noise)))
        .collect();
    let reason = lines[lines.len().saturating_sub(3)..].join("; ");
    let has = |words: &str| reason.contains(words);
    let is_transient = TRANSIENT.iter().any(|words| has(words)) && !has("denied");
    let is_name = has("Could not resolve hostname");
    let kind = match (is_transient, is_name) {
        (true, _) => SshErrorKind::Transient,
        (false, true) => SshErrorKind::UnknownName,
        (false, false) => SshErrorKind::Permanent,
    };
    let hint = if is_name {
        format!("check `address` of this host in hosts.toml, and try `{by_hand}`")
    } else if has("Host key verification failed") {
        format!(
            "run `{by_hand}` by hand to accept the host key: rankdeck runs ssh without prompts (BatchMode)"
        )
    } else if has("Permission denied") {
        format!(
            "try `{by_hand}`; passphrases need an ssh-agent, because rankdeck runs ssh without prompts (BatchMode)"
        )
    } else {
        format!("try `{by_hand}`")
    };
    let reason = if reason.is_empty() { "no reason given" } else { &reason };
    SshError::new(kind, format!("{label}: ssh failed: {}", words::clip(reason, 400)), hint)
}

/// A running `ssh`. Stdin and stdout are the two directions of one socket.
pub(super) struct SshProcess {
    child: Child,
    stream: UnixStream,
    errors: ChildStderr,
    /// Whether stdout and stderr have ended.
    ended: (bool, bool),
    /// The last write did not fit.
    full: bool,
    status: Option<ExitStatus>,
}

impl SshProcess {
    pub(super) fn start(mut command: Command) -> io::Result<SshProcess> {
        let (stream, theirs) = UnixStream::pair()?;
        stream.set_nonblocking(true)?;
        let (input, output) = (OwnedFd::from(theirs.try_clone()?), OwnedFd::from(theirs));
        // In its own process group: ctrl-c on the terminal is for the console.
        let spawned = command.stdin(input).stdout(output).stderr(Stdio::piped()).process_group(0).spawn();
        // Close its ends of the socket, so that the end of the process is noticed.
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
        Ok(SshProcess { child, stream, errors, ended: (false, false), full: false, status: None })
    }
}

/// Takes a reset for the end: a process that left some of its input unread has ended, and its words are on
/// stderr.
fn end_of_reset(read: io::Result<usize>) -> io::Result<usize> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(0),
        read => read,
    }
}

impl SshChannel for SshProcess {
    fn read(&mut self, stream: Stream, buffer: &mut [u8]) -> io::Result<usize> {
        let (read, ended) = match stream {
            Stream::Output => (end_of_reset(Read::read(&mut self.stream, buffer)), &mut self.ended.0),
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

    fn end_input(&mut self, _owner: &mut dyn SessionOwner, _deadline: Instant) -> Result<(), BlockReason> {
        self.full = false;
        // Fails if the process has ended.
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

    fn pause(&self, owner: &mut dyn SessionOwner, deadline: Instant) -> Result<(), BlockReason> {
        let mut interests = Vec::new();
        if !self.ended.0 {
            interests.push(self.interest(false));
        }
        if !self.ended.1 {
            interests.push(Interest { fd: self.errors.as_raw_fd(), read: true, write: false });
        }
        session::wait_briefly(&interests, owner, deadline)
    }

    fn close(&mut self, owner: &mut dyn SessionOwner, deadline: Instant) -> Result<Option<i32>, BlockReason> {
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                self.status = Some(status);
                return Ok(status.code());
            }
            if owner.closing() {
                return Err(BlockReason::Closed);
            }
            if Instant::now() >= deadline {
                return Err(BlockReason::TimedOut);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn abandon(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Drop for SshProcess {
    fn drop(&mut self) {
        if self.status.is_some() {
            return;
        }
        // The command receives the end of its input; killing `ssh` affects nothing else.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssh::auth::AbsentOwner;
    use crate::ssh::exec;

    #[test]
    fn openssh_words_come_first_and_decide_the_kind() {
        for (stderr, kind, hint) in [
            (
                "ssh: Could not resolve hostname nodex: Name or service not known",
                SshErrorKind::UnknownName,
                "address",
            ),
            (
                "ssh: Could not resolve hostname n: Temporary failure in name resolution",
                SshErrorKind::Transient,
                "address",
            ),
            ("Host key verification failed.", SshErrorKind::Permanent, "host key"),
            ("me@n: Permission denied (publickey).", SshErrorKind::Permanent, "ssh-agent"),
            (
                "** WARNING: no post-quantum\n** key exchange\nAccess denied: no active job on this node\n\
                 Connection closed by 10.0.0.1 port 22",
                SshErrorKind::Permanent,
                "try `ssh n`",
            ),
            ("", SshErrorKind::Permanent, "try `ssh n`"),
        ] {
            let error = refused("node1", stderr, "ssh n");
            assert_eq!(error.kind, kind, "{error}");
            assert!(error.cause.hint.contains(hint), "{error:?}");
            let shown = |line: &&str| !line.is_empty() && !line.starts_with("**");
            assert!(stderr.lines().filter(shown).all(|line| error.cause.error.contains(line)), "{error}");
        }
    }

    /// The process ends with its input unread, which resets the socket.
    #[test]
    fn process_that_ignores_its_input_keeps_its_words() {
        let mut command = Command::new("sh");
        command.args(["-c", "exec <&-; echo no route >&2; sleep 0.2; exit 255"]);
        let mut process = SshProcess::start(command).unwrap();
        assert_eq!(process.write(b"question").unwrap(), 8);
        let deadline = Instant::now() + Duration::from_secs(60);
        let output = exec::collect(&mut process, &mut AbsentOwner, deadline).unwrap();
        assert_eq!((output.status, output.last_error_line().as_str()), (Some(255), "no route"));
    }
}
