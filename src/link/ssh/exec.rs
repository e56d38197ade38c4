//! One command on a host: run it, collect what it says, up to a marker or its end.
//!
//! Owner: the session's thread. Both output streams are read in every turn (they share one window: SSH-1),
//! and both are bounded.

use super::output::{Output, after};
use super::session::{SshChannel, SshSession, Stream};
use super::wait::Stall;
use super::{Operator, SshError};
use std::io;
use std::time::{Duration, Instant, SystemTime};

/// Most bytes of standard output that are kept.
pub const MAX_OUTPUT: usize = 16 << 20;
/// Most bytes of standard error that are kept: the last ones.
const MAX_STDERR: usize = 4 << 10;
/// How long an ended command may take to be closed in due form.
const CLOSING: Duration = Duration::from_secs(2);

/// How long a command may go on that has said enough.
const PARTING: Duration = Duration::from_millis(500);

/// A word that begins a line of standard output once the login shell has got through its start files, and the
/// bound of that.
#[derive(Debug, Clone, Copy)]
pub struct StartMarker {
    /// The word.
    pub marker: &'static str,
    /// Bound until it is there; that of the whole command begins behind it.
    pub within: Duration,
}

/// Starts `command`.
pub fn start(
    session: &dyn SshSession,
    operator: &mut dyn Operator,
    command: &str,
    deadline: Instant,
) -> Result<Box<dyn SshChannel>, SshError> {
    session.start(operator, command, deadline)
}

/// Runs `command` with `input` on its standard input until `done` is satisfied by its output, or it ends.
pub fn run(
    session: &dyn SshSession,
    operator: &mut dyn Operator,
    command: &str,
    input: &[u8],
    within: Duration,
    done: &dyn Fn(&[u8]) -> bool,
) -> Result<Output, SshError> {
    run_from(session, operator, (command, None), input, within, done)
}

/// [`run`] of a command that has an opening.
pub fn run_from(
    session: &dyn SshSession,
    operator: &mut dyn Operator,
    (command, opening): (&str, Option<StartMarker>),
    input: &[u8],
    within: Duration,
    done: &dyn Fn(&[u8]) -> bool,
) -> Result<Output, SshError> {
    let deadline = Instant::now() + opening.map_or(within, |opening| opening.within);
    let sent = SystemTime::now();
    let mut channel = session.start(operator, command, deadline)?;
    let fault = |stall: Stall, what: &str| stall.passing(&format!("{}: {what}", session.label()), "");
    feed(channel.as_mut(), operator, input, deadline)
        .map_err(|stall| fault(stall, "cannot write a command's input"))?;
    channel.end_input(operator, deadline).map_err(|stall| fault(stall, "cannot close a command's input"))?;
    let mut heard = OpeningState { opening, within, opened: None, since: Instant::now() };
    let mut output = gather(channel.as_mut(), operator, deadline, &mut heard, done).map_err(
        |stall| match (&stall, opening) {
            (Stall::TimedOut, Some(opening)) if heard.opened.is_none() => SshError::passing(
                format!(
                    "{}: no command begins there within {} s: what the login shell reads first takes longer",
                    session.label(),
                    opening.within.as_secs()
                ),
                format!(
                    "time `{} true`; let ~/.bashrc return at once where the shell is not interactive",
                    session.by_hand()
                ),
            ),
            _ => fault(stall, "a command on the host did not end in due form"),
        },
    )?;
    if let Some(error) = session.refusal(&output) {
        return Err(error);
    }
    output.opened = heard.opened;
    output.sent = Some(sent);
    Ok(output)
}

/// Writes a short input whole, before anything is read (SSH-3).
fn feed(
    channel: &mut dyn SshChannel,
    operator: &mut dyn Operator,
    input: &[u8],
    deadline: Instant,
) -> Result<(), Stall> {
    let mut done = 0;
    while done < input.len() {
        match channel.write(&input[done..]) {
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                channel.pause(operator, deadline)?;
            }
            // It has ended already; what it said tells why.
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

/// What is known of a command's opening.
struct OpeningState {
    opening: Option<StartMarker>,
    /// Bound of what follows.
    within: Duration,
    opened: Option<Duration>,
    since: Instant,
}

impl OpeningState {
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
    channel: &mut dyn SshChannel,
    operator: &mut dyn Operator,
    deadline: Instant,
    done: &dyn Fn(&[u8]) -> bool,
) -> Result<Output, Stall> {
    let mut heard =
        OpeningState { opening: None, within: Duration::ZERO, opened: None, since: Instant::now() };
    gather(channel, operator, deadline, &mut heard, done)
}

/// Takes what has arrived on both streams; `true` when something had.
pub fn listen(channel: &mut dyn SshChannel, output: &mut Output) -> Result<bool, Stall> {
    let mut buffer = vec![0; 64 << 10];
    let mut moved = false;
    for stream in [Stream::Output, Stream::Error] {
        loop {
            match channel.read(stream, &mut buffer) {
                Ok(0) => break,
                Ok(count) => {
                    moved = true;
                    keep(output, stream, &buffer[..count]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Err(Stall::lost()),
            }
        }
    }
    Ok(moved)
}

fn gather(
    channel: &mut dyn SshChannel,
    operator: &mut dyn Operator,
    mut deadline: Instant,
    heard: &mut OpeningState,
    done: &dyn Fn(&[u8]) -> bool,
) -> Result<Output, Stall> {
    let mut satisfied = false;
    let mut output = Output::default();
    loop {
        let moved = listen(channel, &mut output)?;
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
        if channel.ended() {
            break;
        }
        if !moved {
            match channel.pause(operator, deadline) {
                Err(Stall::TimedOut) if satisfied => {
                    channel.abandon();
                    return Ok(output);
                }
                paused => paused?,
            }
        }
    }
    output.received.get_or_insert_with(SystemTime::now);
    match channel.close(operator, Instant::now() + CLOSING) {
        Err(Stall::Closed) => return Err(Stall::Closed),
        Ok(status) => {
            output.closed = true;
            output.status = status;
        }
        Err(_) => {}
    }
    Ok(output)
}

/// Keeps the head of standard output and the tail of standard error.
fn keep(output: &mut Output, stream: Stream, bytes: &[u8]) {
    if stream == Stream::Output {
        let room = MAX_OUTPUT.saturating_sub(output.stdout.len());
        output.stdout.extend_from_slice(&bytes[..bytes.len().min(room)]);
    } else {
        output.stderr.extend_from_slice(bytes);
        let surplus = output.stderr.len().saturating_sub(MAX_STDERR);
        output.stderr.drain(..surplus);
    }
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
        keep(&mut output, Stream::Error, &vec![b'x'; MAX_STDERR * 2]);
        keep(&mut output, Stream::Error, b"\ndisk full\n\n");
        assert_eq!(output.stderr.len(), MAX_STDERR);
        assert_eq!(output.complaint(), "disk full");
        keep(&mut output, Stream::Output, &vec![0; MAX_OUTPUT + 1]);
        assert_eq!(output.stdout.len(), MAX_OUTPUT);
    }
}
