//! Runs a command on a host and collects its output, up to a marker or its end.
//!
//! Both output streams are read in turn (they share one window: SSH-1), and both are bounded. Invariants:
//! - INPUT-1: a command's input is sent only after its [`StartMarker`] was received: until then a start file
//!   of the login shell could read, run or print it. Errors never quote the input.
//!
//! [`CommandOutput`] quotes in errors neither its input nor what is marked as a secret (HIDE-1).
//!
//! [`Script`] builds shell scripts for hosts. Values are quoted words, so that the commands are constants. Scripts have
//! no newline and no `!`: the login shell may be csh, which interprets both before `/bin/sh`.

use super::session::BlockReason;
use super::session::{SshChannel, SshSession, Stream};
use super::{SessionOwner, SshError, SshErrorKind, quote};
use rankdeck_types::{hidden, words};
use std::fmt::{self, Display};
use std::io;
use std::time::{Duration, Instant, SystemTime};

/// Most retained bytes of stdout.
pub const MAX_OUTPUT: usize = 16 << 20;
/// Most retained bytes of stderr: the last ones.
const MAX_STDERR: usize = 4 << 10;
/// Timeout of closing the channel of an ended command.
const CLOSING: Duration = Duration::from_secs(2);
/// Most reads of one stream before the other one and the deadline are checked.
const READS: usize = 16;

/// Most bytes that start files may print before a command starts.
const MAX_NOISE: usize = 1 << 20;
/// Timeout of start files that read stdin, after its end.
const ENDING: Duration = Duration::from_secs(2);

/// First line of a command on stdout: the login shell has finished its start files, and the script runs.
/// Input is sent only after it (INPUT-1).
#[derive(Debug, Clone, Copy)]
pub struct StartMarker {
    /// First word of the line.
    pub marker: &'static str,
    /// Timeout of the marker; the timeout of the command starts after it.
    pub within: Duration,
}

/// The marker of [`Script::started`], with a timeout for slow home directories and start
/// files.
pub const START: StartMarker = StartMarker { marker: STARTED, within: Duration::from_secs(30) };

/// Runs `command` without input until its output satisfies `done`, or it ends.
pub fn run(
    session: &dyn SshSession,
    owner: &mut dyn SessionOwner,
    command: &str,
    within: Duration,
    done: &dyn Fn(&[u8]) -> bool,
) -> Result<CommandOutput, SshError> {
    let deadline = Instant::now() + within;
    let sent = SystemTime::now();
    let mut channel = session.start(owner, command, deadline)?;
    channel.end_input(owner, deadline).map_err(|blocked| fault(session, &blocked))?;
    let mut output = CommandOutput::default();
    let collected = collect_more(channel.as_mut(), owner, (deadline, session.parting()), &mut output, done);
    let output = collected.map(|()| output);
    finished(session, output.map_err(|blocked| fault(session, &blocked))?, sent)
}

/// Runs `command`, which prints `start` first, until its output satisfies `done`, or it ends. Sends `input`
/// after that marker.
pub fn run_from(
    session: &dyn SshSession,
    owner: &mut dyn SessionOwner,
    (command, start): (&str, StartMarker),
    input: &[u8],
    within: Duration,
    done: &dyn Fn(&[u8]) -> bool,
) -> Result<CommandOutput, SshError> {
    let sent = SystemTime::now();
    let mut channel = session.start(owner, command, Instant::now() + start.within)?;
    let channel = channel.as_mut();
    if input.is_empty() {
        let ended = channel.end_input(owner, Instant::now() + start.within);
        ended.map_err(|blocked| fault(session, &blocked))?;
    }
    let mut output = CommandOutput::default();
    // A login shell that is not a POSIX shell prints parts of the script.
    output.withhold(command.as_bytes());
    let opened = await_start(session, channel, owner, (start, input.is_empty()), &mut output)?;
    output.withhold(b"");
    let deadline = Instant::now() + within;
    // A command whose output is complete reads nothing.
    if !input.is_empty() && !done(&output.stdout) {
        output.withhold(input);
        feed(channel, owner, input, deadline).map_err(|blocked| fault(session, &blocked))?;
    }
    if !input.is_empty() {
        // Other failures show in the output.
        if let Err(blocked @ BlockReason::Closed) = channel.end_input(owner, deadline) {
            return Err(fault(session, &blocked));
        }
    }
    let ends = (deadline, session.parting());
    collect_more(channel, owner, ends, &mut output, done).map_err(|blocked| fault(session, &blocked))?;
    output.opened = Some(opened).filter(|_| !session.logs_in_per_command());
    finished(session, output, sent)
}

fn fault(session: &dyn SshSession, blocked: &BlockReason) -> SshError {
    blocked.transient(&format!("{}: a command on the host failed", session.label()), "")
}

fn finished(
    session: &dyn SshSession,
    mut output: CommandOutput,
    sent: SystemTime,
) -> Result<CommandOutput, SshError> {
    if let Some(error) = session.refusal(&output) {
        return Err(error);
    }
    output.sent = Some(sent);
    Ok(output)
}

/// Waits for the marker of a new command; returns the time that it took. `ended`: its input is closed.
pub(crate) fn await_start(
    session: &dyn SshSession,
    channel: &mut dyn SshChannel,
    owner: &mut dyn SessionOwner,
    (start, ended): (StartMarker, bool),
    output: &mut CommandOutput,
) -> Result<Duration, SshError> {
    let began = Instant::now();
    let mut deadline = began + start.within;
    // Set once the input was closed to detect a reader.
    let mut tried = false;
    loop {
        let moved = read_output(channel, output).map_err(|blocked| fault(session, &blocked))?;
        if after(&output.stdout, start.marker).is_some() {
            if tried {
                // A start file read stdin to its end; the marker follows.
                return Err(start_files(session, &CommandOutput::default()));
            }
            owner.begun();
            return Ok(began.elapsed());
        }
        if channel.ended() || output.stdout.len() > MAX_NOISE {
            let closed = channel.ended().then(|| channel.close(owner, Instant::now() + CLOSING));
            output.status = match closed {
                Some(Err(blocked @ BlockReason::Closed)) => return Err(fault(session, &blocked)),
                Some(Ok(status)) => status,
                Some(Err(_)) | None => None,
            };
            return Err(match session.refusal(output) {
                Some(error) => error,
                None if tried || matches!(output.status, None | Some(0)) => start_files(session, output),
                None => not_run(session, output),
            });
        }
        let paused = match moved && Instant::now() < deadline {
            true => Ok(()),
            false => channel.pause(owner, deadline),
        };
        match paused {
            Ok(()) => {}
            // Nothing was sent yet. A start file that reads stdin ends at its end.
            Err(BlockReason::TimedOut) if !ended && !tried => {
                tried = true;
                deadline = Instant::now() + ENDING;
                let end = channel.end_input(owner, deadline);
                end.map_err(|blocked| fault(session, &blocked))?;
            }
            Err(BlockReason::TimedOut) => return Err(slow(session, start.within)),
            Err(blocked) => return Err(fault(session, &blocked)),
        }
    }
}

/// Returns the error of a start file that replaces the shell or reads its input.
fn start_files(session: &dyn SshSession, output: &CommandOutput) -> SshError {
    let label = session.label();
    let printed = if output.is_silent() { String::new() } else { format!(": {}", output.summary()) };
    SshError::new(
        SshErrorKind::StartFiles,
        format!("{label}: start files on {label} replace the login shell or read its input{printed}"),
        format!(
            "limit such lines in ~/.bashrc, ~/.profile and the like to interactive shells with \
             `case $- in *i*) ;; *) return ;; esac`, then check with `{} true`",
            session.by_hand()
        ),
    )
}

/// Returns the error of a login shell that failed.
fn not_run(session: &dyn SshSession, output: &CommandOutput) -> SshError {
    SshError::permanent(
        format!("{}: cannot run commands: {}", session.label(), output.summary()),
        format!("check the login shell and its start files with `{} uname -sm`", session.by_hand()),
    )
}

fn slow(session: &dyn SshSession, within: Duration) -> SshError {
    let what = match session.logs_in_per_command() {
        true => "the login or start files of the login shell are too slow",
        false => "~/.ssh/rc or start files of the login shell are too slow",
    };
    SshError::transient(
        format!("{}: no command started within {} s: {what}", session.label(), within.as_secs()),
        format!(
            "time `{} true`; return early from ~/.bashrc in non-interactive shells, and check ~/.ssh/rc",
            session.by_hand()
        ),
    )
}

/// Writes a short input completely (SSH-3).
fn feed(
    channel: &mut dyn SshChannel,
    owner: &mut dyn SessionOwner,
    input: &[u8],
    deadline: Instant,
) -> Result<(), BlockReason> {
    let mut done = 0;
    while done < input.len() {
        match channel.write(&input[done..]) {
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                channel.pause(owner, deadline)?;
            }
            // It has ended; its output has the reason.
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

/// Collects output until the end, and closes the channel.
pub fn collect(
    channel: &mut dyn SshChannel,
    owner: &mut dyn SessionOwner,
    deadline: Instant,
) -> Result<CommandOutput, BlockReason> {
    let mut output = CommandOutput::default();
    collect_more(channel, owner, (deadline, Duration::ZERO), &mut output, &|_| false)?;
    Ok(output)
}

/// Reads available output of both streams; returns whether there was any.
pub(crate) fn read_output(
    channel: &mut dyn SshChannel,
    output: &mut CommandOutput,
) -> Result<bool, BlockReason> {
    let mut buffer = vec![0; 64 << 10];
    let mut moved = false;
    for stream in [Stream::Output, Stream::Error] {
        for _ in 0..READS {
            match channel.read(stream, &mut buffer) {
                Ok(0) => break,
                Ok(count) => {
                    moved = true;
                    retain(output, stream, &buffer[..count]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Err(BlockReason::lost()),
            }
        }
    }
    Ok(moved)
}

/// Continues [`collect`] with existing output, until `done` or the end; `parting`: how long the command may take to end
/// after that.
fn collect_more(
    channel: &mut dyn SshChannel,
    owner: &mut dyn SessionOwner,
    (mut deadline, parting): (Instant, Duration),
    output: &mut CommandOutput,
    done: &dyn Fn(&[u8]) -> bool,
) -> Result<(), BlockReason> {
    let mut satisfied = false;
    loop {
        let moved = read_output(channel, output)?;
        if !satisfied && done(&output.stdout) {
            satisfied = true;
            output.received = Some(SystemTime::now());
            // Most commands end at once; waiting frees a slot of the server (MaxSessions).
            deadline = deadline.min(Instant::now() + parting);
        }
        if channel.ended() {
            break;
        }
        // Endless output is bounded by the deadline, too.
        if !moved || Instant::now() >= deadline {
            match channel.pause(owner, deadline) {
                Err(BlockReason::TimedOut) if satisfied => {
                    channel.abandon();
                    return Ok(());
                }
                paused => paused?,
            }
        }
    }
    output.received.get_or_insert_with(SystemTime::now);
    match channel.close(owner, Instant::now() + CLOSING) {
        Err(BlockReason::Closed) => return Err(BlockReason::Closed),
        Ok(status) => {
            output.closed = true;
            output.status = status;
        }
        Err(_) => {}
    }
    Ok(())
}

/// Retains the head of stdout and the tail of stderr.
fn retain(output: &mut CommandOutput, stream: Stream, bytes: &[u8]) {
    if stream == Stream::Output {
        let room = MAX_OUTPUT.saturating_sub(output.stdout.len());
        output.stdout.extend_from_slice(&bytes[..bytes.len().min(room)]);
    } else {
        output.stderr.extend_from_slice(bytes);
        let surplus = output.stderr.len().saturating_sub(MAX_STDERR);
        output.stderr.drain(..surplus);
    }
}

/// Output of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandOutput {
    /// Stdout, up to [`MAX_OUTPUT`].
    pub stdout: Vec<u8>,
    /// The end of stderr.
    pub stderr: Vec<u8>,
    /// Exit code; `None` if unknown or killed by a signal.
    pub status: Option<i32>,
    /// Time until its [`StartMarker`].
    pub opened: Option<Duration>,
    /// Time at which the command was sent.
    pub sent: Option<SystemTime>,
    /// Time at which its output was complete, or it ended.
    pub received: Option<SystemTime>,
    /// Its channel is closed on both sides.
    pub closed: bool,
    /// Its input, hidden from errors.
    pub(crate) input: WithheldInput,
}

impl CommandOutput {
    /// Hides `input` from errors.
    pub fn withhold(&mut self, input: &[u8]) {
        self.input = WithheldInput::new(input);
    }

    /// Returns whether it printed nothing.
    pub(crate) fn is_silent(&self) -> bool {
        self.stdout.trim_ascii().is_empty() && self.stderr.trim_ascii().is_empty()
    }

    /// Returns the last line of `bytes` that is not empty, with the input and secrets hidden.
    fn last_line(&self, bytes: &[u8], most: usize) -> Option<String> {
        let text = String::from_utf8_lossy(bytes);
        let last = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
        Some(hidden::line(&self.input.hide(&words::clip(last, most))))
    }

    /// Returns the last line of stderr that is not empty.
    pub fn last_error_line(&self) -> String {
        self.last_line(&self.stderr, 300).unwrap_or_default()
    }

    /// Returns the output in a few words, for errors.
    pub fn summary(&self) -> String {
        let error = self.last_error_line();
        if !error.is_empty() {
            return error;
        }
        match (self.last_line(&self.stdout, 200), self.status) {
            (Some(line), _) => line,
            (None, Some(status)) => format!("no output, exit code {status}"),
            (None, None) => "no output".into(),
        }
    }

    /// Returns stdout after `marker` at the start of a line; skips other lines before it.
    pub fn after(&self, marker: &str) -> Option<String> {
        after(&self.stdout, marker)
    }
}

/// Returns the text after `marker` at the start of a line, to the end of that line; `None` until the line is
/// complete.
pub fn after(bytes: &[u8], marker: &str) -> Option<String> {
    let marker = marker.as_bytes();
    let mut lines = bytes.split_inclusive(|&byte| byte == b'\n');
    let line = lines.find(|line| line.starts_with(marker) && line.ends_with(b"\n"))?;
    Some(String::from_utf8_lossy(&line[marker.len()..]).trim().to_string())
}

/// Consecutive letters and digits that count as a quotation; quotes and escapes around them may differ.
const RUN: usize = 8;
/// Shorter lines are quoted: they contain no value.
const LEAST: usize = 4;
/// Placeholder for hidden text.
const HIDDEN: char = '…';

/// Returns whether a byte is part of a letter or digit of any script.
fn counts(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || !byte.is_ascii()
}

/// The letters and digits of an input.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct WithheldInput(Vec<u8>);

impl WithheldInput {
    /// Creates it from `input`.
    pub(crate) fn new(input: &[u8]) -> WithheldInput {
        WithheldInput(input.iter().copied().filter(counts).collect())
    }

    /// Returns `line` without quotations of the input.
    pub(crate) fn hide(&self, line: &str) -> String {
        let places: Vec<(usize, u8)> = line.bytes().enumerate().filter(|(_, byte)| counts(byte)).collect();
        let run = RUN.min(places.len());
        if run < LEAST || self.0.len() < run {
            return line.to_owned();
        }
        let mut hidden = vec![false; line.len()];
        for window in places.windows(run) {
            let bytes: Vec<u8> = window.iter().map(|(_, byte)| *byte).collect();
            if let (Some((first, _)), Some((last, _))) = (window.first(), window.last())
                && self.0.windows(run).any(|part| part == bytes)
            {
                hidden[*first..=*last].fill(true);
            }
        }
        let mut shown = String::new();
        for (at, char) in line.char_indices() {
            match hidden[at] {
                true if shown.ends_with(HIDDEN) => {}
                true => shown.push(HIDDEN),
                false => shown.push(char),
            }
        }
        shown
    }
}

impl fmt::Debug for WithheldInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// First line of a script from [`Script::started`].
pub(crate) const STARTED: &str = "RANKDECK-HOST";

/// A script for `/bin/sh`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Script(String);

impl Script {
    /// Creates an empty script.
    pub fn new() -> Script {
        Script::default()
    }

    /// Creates a script that first prints [`STARTED`], on a separate line after any output of start files.
    pub fn started() -> Script {
        Script::new().run("echo").call(&["echo", STARTED])
    }

    /// Appends commands verbatim.
    pub fn run(mut self, commands: &str) -> Script {
        if !self.0.is_empty() {
            self.0.push_str("; ");
        }
        self.0.push_str(commands);
        self
    }

    /// Sets a variable.
    pub fn set(self, name: &str, value: impl Display) -> Script {
        self.run(&format!("{name}={}", quote::word(&value.to_string())))
    }

    /// Sets the positional parameters, `"$@"`.
    pub fn arguments<S: AsRef<str>>(self, words: &[S]) -> Script {
        self.run(&format!("set -- {}", quote::words(words.iter().map(AsRef::as_ref))))
    }

    /// Appends one command of these words.
    pub fn call<S: AsRef<str>>(self, words: &[S]) -> Script {
        self.run(&quote::words(words.iter().map(AsRef::as_ref)))
    }

    /// Appends another script.
    pub fn then(self, other: &Script) -> Script {
        self.run(&other.0)
    }

    /// Returns the command line that runs the script from any login shell, including fish and csh.
    pub fn command(&self) -> String {
        format!("exec /bin/sh -c {}", quote::always(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssh::auth::AbsentOwner;
    use crate::ssh::exec::Script;
    use crate::ssh::openssh::{Openssh, SshProcess};
    use crate::ssh::user_config::SshTarget;
    use rankdeck_types::host::Host;
    use std::fs;
    use std::process::Command;

    /// A bash that reads `~/.bashrc` before a command, as under sshd: its stdin is a socket.
    struct ShellSession {
        target: SshTarget,
        home: tempfile::TempDir,
        parting: Duration,
    }

    impl ShellSession {
        fn new(bashrc: &str) -> ShellSession {
            let host = Host { name: "node1".into(), address: "192.0.2.1".into(), ..Host::default() };
            let target = Openssh::new(&host, None).unwrap().target().clone();
            let home = tempfile::tempdir().unwrap();
            fs::write(home.path().join(".bashrc"), format!("{bashrc}\n")).unwrap();
            ShellSession { target, home, parting: Duration::from_millis(50) }
        }

        /// Runs `cat` after the marker, with `input`.
        fn cat(&self, input: &[u8], start_within: Duration) -> Result<CommandOutput, SshError> {
            let command = Script::started().run("exec cat >&2").command();
            let start = StartMarker { within: start_within, ..START };
            let within = Duration::from_secs(60);
            run_from(self, &mut AbsentOwner, (&command, start), input, within, &|_| false)
        }

        fn touched(&self) -> bool {
            self.home.path().join("touched").exists()
        }
    }

    impl SshSession for ShellSession {
        fn target(&self) -> &SshTarget {
            &self.target
        }

        fn start(
            &self,
            _owner: &mut dyn SessionOwner,
            command: &str,
            _deadline: Instant,
        ) -> Result<Box<dyn SshChannel>, SshError> {
            let mut bash = Command::new("bash");
            let path = std::env::var_os("PATH").unwrap();
            bash.env_clear().env("PATH", path).env("HOME", self.home.path()).current_dir(self.home.path());
            bash.env("SSH_CLIENT", "192.0.2.2 1 22").args(["-c", command]);
            Ok(Box::new(SshProcess::start(bash).unwrap()))
        }

        fn socket(
            &self,
            _owner: &mut dyn SessionOwner,
            _path: &str,
            _deadline: Instant,
        ) -> Result<Option<Box<dyn SshChannel>>, SshError> {
            Ok(None)
        }

        fn refusal(&self, _output: &CommandOutput) -> Option<SshError> {
            None
        }

        fn parting(&self) -> Duration {
            self.parting
        }

        fn release(self: Box<Self>) {}
    }

    /// A session is reused only if its command has ended.
    #[test]
    fn command_that_ends_late_is_waited_for_as_the_session_allows() {
        for (parting, is_closed) in [(Duration::from_millis(50), false), (Duration::from_secs(30), true)] {
            let session = ShellSession { parting, ..ShellSession::new("") };
            let command = Script::started().run("echo REPLY; exec sleep 0.4").command();
            let done = |bytes: &[u8]| after(bytes, "REPLY").is_some();
            let within = Duration::from_secs(60);
            let output = run_from(&session, &mut AbsentOwner, (&command, START), &[], within, &done).unwrap();
            assert_eq!(output.closed, is_closed, "{parting:?}");
        }
    }

    /// Input that runs as a command, and that `cat` and `read` would consume.
    const INPUT: &str = "{\"variables\":{\"WB_TOKEN\":\"s3cr3t-pass-env\"},\"x\":\"$(touch touched)\"}\n";

    #[test]
    fn input_1_start_files_receive_no_input() {
        // The last field: it ends by itself, before the timeout.
        for (bashrc, at_once) in [
            ("exec cat", false),
            ("read -r x; echo \"$x\"", false),
            ("exec bash -l", false),
            ("exec sh", false),
            ("cat; echo later", false),
            ("cat >&2; exit 3", false),
            ("exec python3 -c 'import sys; print(sys.stdin.read())'", false),
            ("exit 0", true),
            ("exec true", true),
        ] {
            let session = ShellSession::new(bashrc);
            let bound = Duration::from_secs(if at_once { 60 } else { 1 });
            let error = session.cat(INPUT.as_bytes(), bound).expect_err(bashrc);
            assert_eq!(error.kind, SshErrorKind::StartFiles, "{bashrc}: {error:?}");
            let text = error.cause.with_hint();
            assert!(text.contains("node1") && text.contains(".bashrc"), "{bashrc}: {text}");
            assert!(!text.contains("s3cr3t") && !text.contains("touch"), "{bashrc}: {text}");
            assert!(!text.contains(START.marker), "{bashrc}: {text}");
            assert!(!session.touched(), "{bashrc}: the input ran as a command");
        }
    }

    #[test]
    fn input_1_closed_input_ends_start_files_that_read_it() {
        for bashrc in ["exec cat", "exec sh", "exec bash -l"] {
            let error = ShellSession::new(bashrc).cat(b"", Duration::from_secs(60)).expect_err(bashrc);
            assert_eq!(error.kind, SshErrorKind::StartFiles, "{bashrc}: {error:?}");
        }
        let output = ShellSession::new("read -r x").cat(b"", Duration::from_secs(60)).unwrap();
        assert_eq!((output.status, output.is_silent()), (Some(0), false), "the end of the input suffices");
    }

    #[test]
    fn output_of_start_files_is_not_a_failure() {
        let failed =
            ShellSession::new("echo '\x1b[31mno home today'; exit 7").cat(b"x", Duration::from_secs(60));
        let error = failed.unwrap_err();
        assert_eq!(error.kind, SshErrorKind::Permanent, "the shell failed");
        assert!(
            error.cause.error.contains("no home today") && !error.cause.error.contains('\x1b'),
            "{error}"
        );
        // Such as a login shell that is not a POSIX shell.
        let quoted = ShellSession::new("echo \"syntax error: $BASH_EXECUTION_STRING\" >&2; exit 9");
        let error = quoted.cat(b"x", Duration::from_secs(60)).unwrap_err();
        assert!(error.cause.error.contains("syntax error"), "{error}");
        assert!(!error.cause.error.contains(START.marker), "{error}");
        for bashrc in
            ["echo Welcome; printf half-a-line", "set -x; set -v", "head -c 100000 /dev/zero >&2", "stty -a"]
        {
            let output = ShellSession::new(bashrc).cat(INPUT.as_bytes(), Duration::from_secs(60)).unwrap();
            assert_eq!(output.status, Some(0), "{bashrc}");
            assert!(output.stderr.ends_with(INPUT.as_bytes()), "{bashrc}: the input is not whole");
            assert!(output.opened.is_some(), "{bashrc}");
        }
    }

    #[test]
    fn endless_output_of_start_files_is_bounded() {
        for bashrc in ["yes", "yes >&2"] {
            let error = ShellSession::new(bashrc).cat(INPUT.as_bytes(), Duration::from_secs(1)).unwrap_err();
            assert_ne!(error.kind, SshErrorKind::Closed, "{bashrc}: {error:?}");
        }
    }

    #[test]
    fn input_1_error_never_quotes_the_input() {
        let output = ShellSession::new("").cat(INPUT.as_bytes(), Duration::from_secs(60)).unwrap();
        assert!(output.stderr.ends_with(INPUT.as_bytes()));
        for text in [output.last_error_line(), output.summary()] {
            assert!(!text.contains("s3cr3t") && !text.contains("touch"), "{text}");
        }
    }

    #[test]
    fn marker_is_found_after_noise_in_a_complete_line() {
        let text = b"Welcome!\nabout RANKDECK-AGENT x\nRANKDECK-AGENT {\"a\":1}\r\nlater\n";
        assert_eq!(after(text, "RANKDECK-AGENT").as_deref(), Some("{\"a\":1}"));
        assert_eq!(after(b"x\nRANKDECK-AGENT {\"a\"", "RANKDECK-AGENT"), None);
        assert_eq!(after(b"RANKDECK-RELAY\n", "RANKDECK-RELAY").as_deref(), Some(""));
    }

    #[test]
    fn output_is_bounded_and_has_its_last_error_line() {
        let mut output = CommandOutput::default();
        retain(&mut output, Stream::Error, &vec![b'x'; MAX_STDERR * 2]);
        retain(&mut output, Stream::Error, b"\ndisk full\n\n");
        assert_eq!(output.stderr.len(), MAX_STDERR);
        assert_eq!(output.last_error_line(), "disk full");
        retain(&mut output, Stream::Output, &vec![0; MAX_OUTPUT + 1]);
        assert_eq!(output.stdout.len(), MAX_OUTPUT);
    }

    #[test]
    fn hide_1_quoted_line_of_a_host_has_no_secret() {
        let stderr = b"x\n+ export API_TOKEN=hunter2 PROXY=https://me:hunter2@h\n".to_vec();
        let output = CommandOutput { stderr, ..CommandOutput::default() };
        let (stdout, none) = (output.stderr.clone(), Vec::new());
        let printed = CommandOutput { stdout, stderr: none, ..CommandOutput::default() };
        for text in [output.last_error_line(), output.summary(), printed.summary()] {
            assert!(text.contains("API_TOKEN") && !text.contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn input_is_hidden_in_any_quoting() {
        let input = WithheldInput::new(br#"{"variables":{"WB_TOKEN":"s3cr3t-pass-env"}}"#);
        assert_eq!(
            input.hide("zsh: no matches found: {WB_TOKEN:s3cr3t-pass-env}"),
            "zsh: no matches found: {…}"
        );
        assert_eq!(input.hide("s3cr3t"), "…", "a separate line");
        assert_eq!(input.hide("ünknown: 's3cr3t-pass-env' and more"), "ünknown: '…' and more");
        for harmless in ["Permission denied", "", "no", "exit code 127"] {
            assert_eq!(input.hide(harmless), harmless);
            assert_eq!(WithheldInput::default().hide(harmless), harmless);
        }
        assert!(!format!("{input:?}").contains("s3cr3t"));
    }

    fn output(script: &Script) -> String {
        let output = Command::new("/bin/sh").args(["-c", &script.command()]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn quoted_values_survive_a_second_shell() {
        let script = Script::new().set("x", "it's $HOME").run("printf %s \"$x\"");
        assert_eq!(output(&script), "it's $HOME");
        let words = ["a b", "", "*", "$(id)", "'"];
        let script = Script::new().arguments(&words).run("for w in \"$@\"; do printf \"<%s>\" \"$w\"; done");
        assert_eq!(output(&script), "<a b><><*><$(id)><'>");
        let inner = Script::new().call(&["printf", "%s", "a;b"]);
        assert_eq!(output(&Script::new().run("if true; then printf x").then(&inner).run("fi")), "xa;b");
    }
}
