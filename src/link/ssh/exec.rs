//! One command on a host: run it, collect what it says, up to a marker or its end.
//!
//! Owner: the session's thread. Both output streams are read in every turn (they share one window: SSH-1), and both are bounded.

use super::connection::Connection;
use super::wait::{EAGAIN, Stall};
use super::{Operator, SshError};
use ssh2::Channel;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant, SystemTime};

/// Most bytes of standard output that are kept.
pub const MAX_OUTPUT: usize = 16 << 20;
/// Most bytes of standard error that are kept: the last ones.
const MAX_STDERR: usize = 4 << 10;
/// How long an ended command may take to be closed in due form.
const CLOSING: Duration = Duration::from_secs(2);

/// How long a command may go on that has said enough.
const PARTING: Duration = Duration::from_millis(500);

/// A word that begins a line of standard output once the login shell has got through its start files, and the bound of that.
#[derive(Debug, Clone, Copy)]
pub struct StartMarker {
    /// The word.
    pub marker: &'static str,
    /// Bound until it is there; that of the whole command begins behind it.
    pub within: Duration,
}

/// What a command said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// Standard output, up to [`MAX_OUTPUT`].
    pub stdout: Vec<u8>,
    /// The end of standard error.
    pub stderr: Vec<u8>,
    /// Exit code; `None` when it was not waited for or a signal ended the command.
    pub status: Option<i32>,
    /// How long it took until its [`StartMarker`] was there.
    pub opened: Option<Duration>,
    /// When its command was sent.
    pub sent: Option<SystemTime>,
    /// When it had said enough, or ended.
    pub received: Option<SystemTime>,
}

impl Output {
    /// The last line of standard error that says something, for errors.
    pub fn complaint(&self) -> String {
        let text = String::from_utf8_lossy(&self.stderr);
        text.lines()
            .rev()
            .map(str::trim)
            .find(|line| !line.is_empty())
            .unwrap_or_default()
            .chars()
            .take(300)
            .collect()
    }

    /// What a command said when it did not say what was expected.
    pub fn described(&self) -> String {
        let said = self.complaint();
        if !said.is_empty() {
            return said;
        }
        let text = String::from_utf8_lossy(&self.stdout);
        let last = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
        match (last, self.status) {
            (Some(line), _) => line.chars().take(200).collect(),
            (None, Some(status)) => format!("no output, exit code {status}"),
            (None, None) => "no output".into(),
        }
    }

    /// Standard output after the line `marker`, or after the word `marker` at the start of a line; noise before it is skipped.
    pub fn after(&self, marker: &str) -> Option<String> {
        after(&self.stdout, marker)
    }
}

/// What follows `marker` at the start of a line in `bytes`, to the end of that line; `None` until the line is complete.
pub fn after(bytes: &[u8], marker: &str) -> Option<String> {
    let marker = marker.as_bytes();
    let mut lines = bytes.split_inclusive(|&byte| byte == b'\n');
    let line = lines.find(|line| line.starts_with(marker) && line.ends_with(b"\n"))?;
    Some(String::from_utf8_lossy(&line[marker.len()..]).trim().to_string())
}

/// Opens a channel and starts `command` on it.
pub fn start(
    connection: &Connection,
    operator: &mut dyn Operator,
    command: &str,
    deadline: Instant,
) -> Result<Channel, SshError> {
    let label = connection.label();
    let mut channel =
        connection.until(operator, deadline, || connection.session.channel_session()).map_err(|stall| {
            let hint = if stall.code() == -21 {
                "the server allows no further channel: raise MaxSessions in its sshd_config"
            } else {
                ""
            };
            stall.passing(&format!("{label}: cannot open a channel"), hint)
        })?;
    connection.until(operator, deadline, || channel.exec(command)).map_err(|stall| {
        stall.passing(
            &format!("{label}: the server does not run commands"),
            "does its sshd_config force another command?",
        )
    })?;
    Ok(channel)
}

/// Runs `command` with `input` on its standard input until `done` is satisfied by its output, or it ends.
pub fn run(
    connection: &Connection,
    operator: &mut dyn Operator,
    command: &str,
    input: &[u8],
    within: Duration,
    done: &dyn Fn(&[u8]) -> bool,
) -> Result<Output, SshError> {
    run_from(connection, operator, (command, None), input, within, done)
}

/// [`run`] of a command that has an opening.
pub fn run_from(
    connection: &Connection,
    operator: &mut dyn Operator,
    (command, opening): (&str, Option<StartMarker>),
    input: &[u8],
    within: Duration,
    done: &dyn Fn(&[u8]) -> bool,
) -> Result<Output, SshError> {
    let deadline = Instant::now() + opening.map_or(within, |opening| opening.within);
    let sent = SystemTime::now();
    let mut channel = start(connection, operator, command, deadline)?;
    let fault = |stall: Stall, what: &str| stall.passing(&format!("{}: {what}", connection.label()), "");
    feed(connection, operator, &mut channel, input, deadline)
        .map_err(|stall| fault(stall, "cannot write a command's input"))?;
    connection
        .until(operator, deadline, || channel.send_eof())
        .map_err(|stall| fault(stall, "cannot close a command's input"))?;
    let mut heard = Heard { opening, within, opened: None, since: Instant::now() };
    let mut output = gather(connection, operator, &mut channel, deadline, &mut heard, done).map_err(
        |stall| match (&stall, opening) {
            (Stall::TimedOut, Some(opening)) if heard.opened.is_none() => SshError::passing(
                format!(
                    "{}: no command begins there within {} s: what the login shell reads first takes longer",
                    connection.label(),
                    opening.within.as_secs()
                ),
                format!(
                    "time `{} true`; let ~/.bashrc return at once where the shell is not interactive",
                    connection.target.command()
                ),
            ),
            _ => fault(stall, "a command on the host did not end in due form"),
        },
    )?;
    output.opened = heard.opened;
    output.sent = Some(sent);
    Ok(output)
}

/// Writes a short input whole, before anything is read (SSH-3).
fn feed(
    connection: &Connection,
    operator: &mut dyn Operator,
    channel: &mut Channel,
    input: &[u8],
    deadline: Instant,
) -> Result<(), Stall> {
    let mut done = 0;
    while done < input.len() {
        match channel.write(&input[done..]) {
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                super::wait::pause(&connection.session, connection.fd(), operator, deadline)?;
            }
            // It has ended already; what it said tells why.
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

/// What is known of a command's opening.
struct Heard {
    opening: Option<StartMarker>,
    /// Bound of what follows.
    within: Duration,
    opened: Option<Duration>,
    since: Instant,
}

impl Heard {
    /// The new deadline, when the opening is among `bytes` for the first time.
    fn look(&mut self, bytes: &[u8]) -> Option<Instant> {
        let opening = self.opening.filter(|_| self.opened.is_none())?;
        after(bytes, opening.marker)?;
        self.opened = Some(self.since.elapsed());
        Some(Instant::now() + self.within)
    }
}

/// Collects output until `done`, or the end; closes the channel either way.
pub fn collect(
    connection: &Connection,
    operator: &mut dyn Operator,
    channel: &mut Channel,
    deadline: Instant,
    done: &dyn Fn(&[u8]) -> bool,
) -> Result<Output, Stall> {
    let mut heard = Heard { opening: None, within: Duration::ZERO, opened: None, since: Instant::now() };
    gather(connection, operator, channel, deadline, &mut heard, done)
}

fn gather(
    connection: &Connection,
    operator: &mut dyn Operator,
    channel: &mut Channel,
    mut deadline: Instant,
    heard: &mut Heard,
    done: &dyn Fn(&[u8]) -> bool,
) -> Result<Output, Stall> {
    let mut satisfied = false;
    let mut output = Output::default();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let mut moved = false;
        for stream in [0, 1] {
            loop {
                match channel.stream(stream).read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) => {
                        moved = true;
                        keep(&mut output, stream, &buffer[..count]);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(Stall::Failed(session_error(connection, &error))),
                }
            }
        }
        if let Some(later) = heard.look(&output.stdout) {
            operator.begun();
            deadline = later;
        }
        if !satisfied && done(&output.stdout) {
            satisfied = true;
            output.received = Some(SystemTime::now());
            // Its end is of no interest, but the server counts open commands (MaxSessions): most end at once.
            deadline = deadline.min(Instant::now() + PARTING);
        }
        if channel.eof() {
            break;
        }
        if !moved {
            match super::wait::pause(&connection.session, connection.fd(), operator, deadline) {
                Err(Stall::TimedOut) if satisfied => {
                    let _ = channel.close();
                    return Ok(output);
                }
                paused => paused?,
            }
        }
    }
    output.received.get_or_insert_with(SystemTime::now);
    let closing = Instant::now() + CLOSING;
    let closed = connection
        .until(operator, closing, || channel.close())
        .and_then(|()| connection.until(operator, closing, || channel.wait_close()));
    match closed {
        Err(Stall::Closed) => return Err(Stall::Closed),
        // A signal ended it: libssh2 then reports exit status 0.
        Ok(()) if channel.exit_signal().is_ok_and(|signal| signal.exit_signal.is_some()) => {}
        Ok(()) => output.status = channel.exit_status().ok(),
        Err(_) => {}
    }
    Ok(output)
}

/// Keeps the head of standard output and the tail of standard error.
fn keep(output: &mut Output, stream: i32, bytes: &[u8]) {
    if stream == 0 {
        let room = MAX_OUTPUT.saturating_sub(output.stdout.len());
        output.stdout.extend_from_slice(&bytes[..bytes.len().min(room)]);
    } else {
        output.stderr.extend_from_slice(bytes);
        let surplus = output.stderr.len().saturating_sub(MAX_STDERR);
        output.stderr.drain(..surplus);
    }
}

/// The session's own error behind an I/O error of one of its streams.
pub fn session_error(connection: &Connection, error: &io::Error) -> ssh2::Error {
    let last =
        ssh2::Error::last_session_error(&connection.session).filter(|last| super::wait::code(last) != EAGAIN);
    let _ = error;
    last.unwrap_or_else(|| ssh2::Error::new(ssh2::ErrorCode::Session(-43), "connection lost"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_before_a_marker_is_skipped_and_half_lines_wait() {
        let text = b"Welcome!\nabout RANKDECK-AGENT x\nRANKDECK-AGENT {\"a\":1}\r\nlater\n";
        assert_eq!(after(text, "RANKDECK-AGENT").as_deref(), Some("{\"a\":1}"));
        assert_eq!(after(b"x\nRANKDECK-AGENT {\"a\"", "RANKDECK-AGENT"), None);
        assert_eq!(after(b"RANKDECK-RELAY\n", "RANKDECK-RELAY").as_deref(), Some(""));
    }

    #[test]
    fn output_is_bounded_and_the_last_complaint_is_found() {
        let mut output = Output::default();
        keep(&mut output, 1, &vec![b'x'; MAX_STDERR * 2]);
        keep(&mut output, 1, b"\ndisk full\n\n");
        assert_eq!(output.stderr.len(), MAX_STDERR);
        assert_eq!(output.complaint(), "disk full");
        keep(&mut output, 0, &vec![0; MAX_OUTPUT + 1]);
        assert_eq!(output.stdout.len(), MAX_OUTPUT);
    }
}
