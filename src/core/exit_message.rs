//! The error message with which a program ended: the exception that ended it, or its last line.
//!
//! If the program reports the kind of failure, that decides; the built-in trainer always does, and
//! the hook does if the type of the exception shows it. A log holds many words that have nothing to do with
//! the end: warnings about a full disk, addresses in use, sockets of simulators. Where no kind is given, the
//! text of these counts and of nothing else, the first that there is:
//!
//! 1. the exception that the program reported as its end ([`Exception`]; the hook does so for Python),
//! 2. the error that it reported,
//! 3. a traceback of Python at the end of the log, and the exception under it,
//! 4. for a process that was aborted, the message of C++ about the exception that was thrown, or what Python,
//!    the C library or CUDA print before they abort,
//! 5. the last line.
//!
//! A process that another signal ended has no message, unless an exception had ended its main program before
//! it crashed: the kernel's exit status counts.

use rankdeck_proto::message::{Exception, Exit, FailureKind};
use rankdeck_types::exit::is_epilogue;
use rankdeck_types::words;

/// Numbers of errors on Linux.
const ENOMEM: i32 = 12;
const ENOSPC: i32 = 28;
const EADDRINUSE: i32 = 98;
const EDQUOT: i32 = 122;
const SIGABRT: i32 = 6;
const SIGBUS: i32 = 7;
/// Exit code of a shell whose command was aborted.
const ABORTED: i32 = 128 + SIGABRT;

/// Most characters of a message in a sentence, and of a sentence.
const MESSAGE: usize = 300;
const SENTENCE: usize = 900;

/// What is printed about an abort by Python, the C library, PyTorch, CUDA and Gloo.
const ABORT_REASONS: [&str; 11] = [
    "Fatal Python error: ",
    "EnforceNotMet",
    "CUDA error",
    "device-side assert",
    "Assertion `",
    "Assertion failed",
    "Check failed:",
    "free(): ",
    "malloc(): ",
    "double free or corruption",
    "stack smashing detected",
];
/// What names the signal and no reason.
const NO_REASON: [&str; 2] = ["Fatal Python error: Aborted", "Fatal Python error: Segmentation fault"];

/// Most signs of an exception's text that are compared.
const GIST: usize = 400;

/// Python's own subclasses of `OSError`: their names are all that a log has.
const OS_ERRORS: [&str; 20] = [
    "OSError",
    "IOError",
    "EnvironmentError",
    "BlockingIOError",
    "BrokenPipeError",
    "ChildProcessError",
    "ConnectionAbortedError",
    "ConnectionError",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "FileExistsError",
    "FileNotFoundError",
    "InterruptedError",
    "IsADirectoryError",
    "NotADirectoryError",
    "PermissionError",
    "ProcessLookupError",
    "TimeoutError",
    "gaierror",
    "herror",
];

/// The source of the message, which decides how far its text may be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum MessageSource {
    /// No message.
    #[default]
    Unknown,
    /// An error that the program reported in words.
    Report,
    /// The last line of a program that reports nothing.
    LastLine,
    /// An exception of the operating system's calls: its number identifies it.
    System,
    /// An exception that C++ made: only its text identifies it.
    Library,
    /// Any other exception: its text is the program's own and not about the machine.
    Own,
}

/// The error message of a program.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ExitMessage {
    /// As the program reported; `None` if the rest decides.
    kind: Option<FailureKind>,
    source: MessageSource,
    /// Name of the exception's class, without its modules; empty where there is none.
    class: String,
    bases: Vec<String>,
    /// In lower case.
    text: String,
    errno: Option<i32>,
    /// As a sentence shows it: `KeyError: 'x' at train.py:7`.
    shown: String,
}

/// What is known about the end of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndOfProcess<'a> {
    pub exit: &'a Exit,
    /// The exception that it reported as its end.
    pub exception: Option<&'a Exception>,
    /// The error that it reported, and of what kind.
    pub error: Option<(&'a str, Option<FailureKind>)>,
    /// The end of its log, oldest line first.
    pub lines: &'a [String],
    /// It would have reported an exception.
    pub hooked: bool,
}

impl ExitMessage {
    /// Reads the message of this exit.
    pub fn of(end: &EndOfProcess<'_>) -> ExitMessage {
        match end.exit {
            Exit::NotStarted { .. } => ExitMessage::default(),
            Exit::Signal { .. } => {
                let ended = end.exception.filter(|exception| exception.ends_rank() && end.exit.is_crash());
                match ended {
                    Some(exception) => ExitMessage::exception(exception),
                    None if matches!(end.exit, Exit::Signal { signal: SIGABRT, .. }) => thrown(end.lines),
                    None => ExitMessage::default(),
                }
            }
            Exit::Code { .. } => {
                let reported = end.exception.filter(|exception| exception.thread.is_empty());
                if let Some(exception) = reported.or(end.exception) {
                    return ExitMessage::exception(exception);
                }
                if let Some((error, kind)) =
                    end.error.filter(|(error, kind)| !error.is_empty() || kind.is_some())
                {
                    return ExitMessage { kind, ..ExitMessage::plain(MessageSource::Report, error) };
                }
                match traceback(end.lines, end.hooked) {
                    Some(exception) => ExitMessage::exception(&exception),
                    None if matches!(end.exit, Exit::Code { code: ABORTED }) => thrown(end.lines),
                    None => last_line(end.lines, end.hooked),
                }
            }
        }
    }

    /// Of this exception.
    pub fn exception(exception: &Exception) -> ExitMessage {
        let class = exception.class.rsplit('.').next().unwrap_or_default().to_owned();
        let is = |names: &[&str]| {
            names.contains(&class.as_str())
                || exception.bases.iter().any(|base| names.contains(&base.as_str()))
        };
        let distributed = class.starts_with("Dist") && class.ends_with("Error");
        let source = if distributed || is(&["RuntimeError", "SystemError"]) {
            MessageSource::Library
        } else if is(&OS_ERRORS) {
            MessageSource::System
        } else {
            MessageSource::Own
        };
        let text = exception.message.to_lowercase();
        let number = || text.split_once("[errno ")?.1.split_once(']')?.0.trim().parse().ok();
        let errno = exception.errno.or_else(|| number().filter(|_| source == MessageSource::System));
        let message = joined(&exception.message);
        let mut shown = class.clone();
        if !message.is_empty() {
            shown.push_str(&format!(": {}", words::clip(&message, MESSAGE)));
        }
        if !exception.at.is_empty() {
            shown.push_str(&format!(" at {}", exception.at));
        }
        let cause = joined(&exception.cause);
        let text_of_cause = cause.split_once(": ").map_or(cause.as_str(), |(_, text)| text);
        if !cause.is_empty() && !message.contains(text_of_cause) {
            shown.push_str(&format!("; caused by {}", words::clip(&cause, MESSAGE)));
        }
        if let Some(child) = &exception.child {
            shown.push_str(&format!(
                "; its child {} (pid {}) {}",
                child.name,
                child.pid,
                child.exit.predicate()
            ));
            if matches!(child.exit, Exit::Signal { signal: SIGBUS, .. }) {
                shown.push_str(", as when /dev/shm is full");
            }
        }
        let child = exception.child.as_ref().map(|child| &child.exit);
        let out_of_memory = matches!(child, Some(Exit::Signal { out_of_memory: true, .. }));
        ExitMessage {
            kind: exception.failure.or(out_of_memory.then_some(FailureKind::OutOfMemory)),
            source,
            class,
            bases: exception.bases.clone(),
            text,
            errno,
            shown: words::clean(&words::clip(&shown, SENTENCE)),
        }
    }

    fn plain(source: MessageSource, text: &str) -> ExitMessage {
        let shown = words::clean_output(&words::clip(text, MESSAGE));
        ExitMessage { source, text: text.to_lowercase(), shown, ..ExitMessage::default() }
    }

    /// As a sentence shows them, empty without a message.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Returns whether a line of the log holds the first line of the message.
    pub fn is_in(&self, line: &str) -> bool {
        let first = self.text.lines().next().unwrap_or_default().trim();
        !first.is_empty() && line.to_lowercase().contains(first)
    }

    /// Compares equal if two programs ended with the same error: the exception or the error without its
    /// numbers. Empty if the program itself has no message.
    pub fn gist(&self) -> String {
        if matches!(self.source, MessageSource::Unknown | MessageSource::LastLine) {
            return String::new();
        }
        let mut gist = format!("{}: ", self.class);
        let mut within = false;
        for sign in self.text.chars().take(GIST) {
            within = if within { sign.is_alphanumeric() } else { sign.is_ascii_digit() };
            if !(within && gist.ends_with('#')) {
                gist.push(if within { '#' } else { sign });
            }
        }
        gist
    }

    /// Text counts only without a class or number.
    fn mentions(&self, any: &[&str]) -> bool {
        matches!(self.source, MessageSource::Report | MessageSource::LastLine | MessageSource::Library)
            && any.iter().any(|word| self.text.contains(word))
    }

    fn is(&self, class: &str) -> bool {
        self.class == class || self.bases.iter().any(|base| base == class)
    }

    /// The end that ctrl-c causes.
    pub fn is_interrupt(&self) -> bool {
        self.is("KeyboardInterrupt")
    }

    /// What kind of failure it was. Of those that the rest of the words may mean, the gravest comes first.
    pub fn kind(&self) -> FailureKind {
        type Test = fn(&ExitMessage) -> bool;
        const MAY_BE: [(FailureKind, Test); 6] = [
            (FailureKind::Mismatch, ExitMessage::is_mismatch),
            (FailureKind::OutOfMemory, ExitMessage::is_out_of_memory),
            (FailureKind::GpuFailed, ExitMessage::is_gpu_failure),
            (FailureKind::DiskFull, ExitMessage::is_disk_full),
            (FailureKind::PortTaken, ExitMessage::is_port_taken),
            (FailureKind::Connection, ExitMessage::is_lost_peer),
        ];
        let by_text = || MAY_BE.iter().find(|(_, test)| test(self)).map(|(kind, _)| *kind);
        self.kind.or_else(by_text).unwrap_or(FailureKind::Other)
    }

    /// No space was left where the program wrote.
    fn is_disk_full(&self) -> bool {
        matches!(self.errno, Some(ENOSPC | EDQUOT))
            || self.mentions(&[
                "no space left on device",
                "os error 28",
                "disk quota exceeded",
                "os error 122",
            ])
    }

    /// A port that it needs belonged to another process.
    fn is_port_taken(&self) -> bool {
        self.errno == Some(EADDRINUSE) || self.mentions(&["address already in use", "eaddrinuse"])
    }

    /// An allocation failed, on the host or on a GPU.
    fn is_out_of_memory(&self) -> bool {
        self.is("MemoryError")
            || self.is("OutOfMemoryError")
            || self.errno == Some(ENOMEM)
            || self.mentions(&[
                "cuda out of memory",
                "cuda error: out of memory",
                "_status_alloc_failed",
                "can't allocate memory",
                "std::bad_alloc",
            ])
    }

    /// The GPU or its driver does not work any more. What a kernel of the program may have done itself (an
    /// illegal address, an assertion) is not that.
    fn is_gpu_failure(&self) -> bool {
        self.mentions(&[
            "cuda error: unknown error",
            "cuda error: uncorrectable ecc error",
            "cuda error: device unavailable",
            "cuda error: cuda-capable device(s) is/are busy or unavailable",
            "gpu is lost",
        ])
    }

    /// Gloo ends the receiver of a message of the wrong size: the sender is the culprit, not the one that
    /// died.
    fn is_mismatch(&self) -> bool {
        self.mentions(&[
            "data size doesn't match",
            "preamble.length <= op.nbytes",
            "op.preamble.length",
            "detected mismatch between collectives",
        ])
    }

    /// The process group lost another rank. A simulator or a server that breaks a connection of the program's
    /// own is another matter: process groups raise exceptions of the library, which name it.
    fn is_lost_peer(&self) -> bool {
        const NAMES: [&str; 6] = ["gloo", "nccl", "c10d", "tcpstore", "processgroup", "process group"];
        const BROKEN: [&str; 17] = [
            "connection reset by peer",
            "connection closed by peer",
            "connection closed by remote peer",
            "connection refused",
            "connection was likely closed",
            "broken pipe",
            "failed to recv",
            "timed out waiting",
            "socket timeout",
            "socket closed",
            "ncclremoteerror",
            "remote process exited",
            "collective operation timeout",
            "operation timed out",
            "operations have failed or timed out",
            "wait timeout after",
            "application timeout caused pair closure",
        ];
        match self.source {
            MessageSource::LastLine => self.mentions(&BROKEN),
            MessageSource::Library => {
                (self.class.starts_with("Dist") || self.mentions(&NAMES)) && self.mentions(&BROKEN)
            }
            MessageSource::Unknown | MessageSource::Report | MessageSource::System | MessageSource::Own => {
                false
            }
        }
    }
}

/// The last line; a warning does not end a program. A program that reports its exceptions and has reported
/// none may have caught the one of its process group: it shows that text and leaves.
fn last_line(lines: &[String], reports: bool) -> ExitMessage {
    let last = lines.iter().rev().find(|line| !is_epilogue(line));
    let ends = |line: &&str| {
        let library = line.starts_with("Connection ") || line.contains("/gloo/");
        (!reports || library) && !line.to_lowercase().contains("warn")
    };
    match last.map(|line| bare(line)).filter(ends) {
        Some(line) => ExitMessage::plain(MessageSource::LastLine, line),
        None => ExitMessage::default(),
    }
}

/// The lines of a message as one.
fn joined(message: &str) -> String {
    let lines: Vec<&str> = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join(" ")
}

/// The message of C++'s `terminate` about an uncaught exception, before it aborts the process, or another
/// reason of an abort.
fn thrown(lines: &[String]) -> ExitMessage {
    let what = lines.iter().rev().find_map(|line| Some(line.split_once("what():")?.1.trim()));
    let is_reason = |line: &&str| {
        ABORT_REASONS.iter().any(|reason| line.contains(reason))
            && !NO_REASON.iter().any(|other| line.contains(other))
    };
    let reason = || lines.iter().rev().map(|line| bare(line).trim()).find(is_reason);
    what.or_else(reason).map(|reason| ExitMessage::plain(MessageSource::Library, reason)).unwrap_or_default()
}

/// A line without the name of its rank, which PyTorch puts before each line of a traceback (`[rank0]: `).
fn bare(line: &str) -> &str {
    let tail = || line.strip_prefix("[rank")?.split_once("]: ").filter(|(rank, _)| is_number(rank));
    tail().map_or(line, |(_, rest)| rest)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The exception below the last traceback of a log. What follows it is its message's further lines, or what
/// is written when an interpreter ends; `strict` allows the latter only.
fn traceback(lines: &[String], strict: bool) -> Option<Exception> {
    let (exception, rest) = last_traceback(lines)?;
    (!strict || rest.iter().all(|line| is_epilogue(line))).then_some(exception)
}

/// Most lines that may follow an exception with which a log ends.
const AFTER: usize = 5;

/// The exception of a traceback with which a log ends, as a sentence shows it. A program may have caught and
/// logged it, and exited with code 0.
pub(crate) fn logged_exception(lines: &[String]) -> Option<String> {
    let begun = lines.iter().rposition(|line| bare(line).starts_with("Traceback (most recent call last)"))?;
    let is_ignored = begun.checked_sub(1).and_then(|before| lines.get(before));
    let is_ignored = is_ignored.is_some_and(|line| line.contains("Exception ignored"));
    let (exception, rest) = last_traceback(lines.get(begun..)?)?;
    let followed = rest.iter().filter(|line| !is_epilogue(line)).count();
    (!is_ignored && followed <= AFTER).then(|| ExitMessage::exception(&exception).shown)
}

/// The exception below the last traceback of a log, and the lines that follow its first one.
fn last_traceback(lines: &[String]) -> Option<(Exception, &[String])> {
    let frame = |line: &str| line.starts_with("  File \"") && line.contains(", line ");
    let at = lines.iter().rposition(|line| frame(bare(line)))?;
    let below = lines.get(at + 1..)?.iter().position(|line| !bare(line).starts_with(' '))?;
    let ended = at + 1 + below;
    let (class, message) = head(bare(lines.get(ended)?))?;
    let rest = lines.get(ended + 1..).unwrap_or_default();
    let place = |line: &String| {
        let (file, rest) = bare(line).trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
        let number = rest.split(',').next()?.trim();
        (!file.contains("/lib/python") && !file.contains("<frozen")).then(|| format!("{file}:{number}"))
    };
    let at = lines.get(..ended)?.iter().rev().find_map(place).unwrap_or_default();
    Some((Exception { class: class.into(), message: message.into(), at, ..Exception::default() }, rest))
}

/// Class and message of a line such as `ValueError: bad` or `torch.OutOfMemoryError: ...`.
fn head(line: &str) -> Option<(&str, &str)> {
    let (class, message) = line.split_once(": ").unwrap_or((line.trim_end_matches(':'), ""));
    let part = |part: &str| {
        let mut letters = part.chars();
        letters.next().is_some_and(|first| first.is_alphabetic() || first == '_')
            && letters.all(|letter| letter.is_alphanumeric() || letter == '_')
    };
    class.split('.').all(part).then_some((class, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::reason::{Reason, Severity};
    use crate::watch::{AbnormalExit, dead};
    use rankdeck_types::ids::Rank;

    const CODE: Exit = Exit::Code { code: 1 };

    fn signal(signal: i32) -> Exit {
        Exit::Signal { signal, out_of_memory: false }
    }

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    /// Reason and severity of an end with this log.
    fn reason(exit: &Exit, log: &str, exception: Option<&Exception>, hooked: bool) -> (Reason, Severity) {
        let lines = lines(log);
        let message = ExitMessage::of(&EndOfProcess { exit, exception, error: None, lines: &lines, hooked });
        let victim = message.kind() == FailureKind::Connection;
        let death =
            AbnormalExit { exit, message: &message, last_lines: &lines, victim, victim_of: None, sent: None };
        let verdict = dead(&Model::default(), Rank(1), &death);
        (verdict.reason_code, verdict.severity)
    }

    /// A log that ends with an exception raised in `train.py`.
    fn raised(before: &str, exception: &str) -> String {
        format!(
            "{before}\nTraceback (most recent call last):\n  File \"/w/train.py\", line 40, in <module>\n    main()\n  \
             File \"/w/train.py\", line 31, in main\n    step()\n    ^^^^^^\n{exception}"
        )
    }

    /// Warnings that have nothing to do with the end.
    const NOISE: [&str; 7] = [
        "WARNING: cannot write the cache: [Errno 28] No space left on device (ENOSPC), going on without it",
        "bind: Address already in use (EADDRINUSE), trying the next port",
        "tracker: socket timed out, will try again",
        "simulator: Connection reset by peer, reconnecting",
        "wandb: Broken pipe, offline from now on",
        "torch.OutOfMemoryError: CUDA out of memory. caught, batch halved",
        "peer 3: connection closed; connection refused; lost another rank",
    ];

    /// The reason of an end that the rank has reported as `kind`.
    fn reported(kind: FailureKind, text: &str) -> Reason {
        let message = ExitMessage::of(&EndOfProcess {
            exit: &CODE,
            exception: None,
            error: Some((text, Some(kind))),
            lines: &lines(text),
            hooked: false,
        });
        let victim = message.kind() == FailureKind::Connection;
        let death = AbnormalExit {
            exit: &CODE,
            message: &message,
            last_lines: &[],
            victim,
            victim_of: None,
            sent: None,
        };
        dead(&Model::default(), Rank(1), &death).reason_code
    }

    #[test]
    fn reported_failure_kind_overrides_text() {
        use FailureKind::*;
        let misleading = NOISE.into_iter().chain([
            "environment Pong: socket closed: no space left on device",
            "rank 1 of 2: all_reduce \"grad\": CUDA out of memory",
            "the GPU failed: data size doesn't match",
            "",
        ]);
        for text in misleading {
            for (kind, expected) in [
                (Connection, Reason::ConnectionLost),
                (Mismatch, Reason::MismatchAbort),
                (Rendezvous, Reason::Failed),
                (PortTaken, Reason::PortTaken),
                (DiskFull, Reason::DiskFull),
                (OutOfMemory, Reason::OutOfMemory),
                (GpuFailed, Reason::GpuFailed),
                (Environment, Reason::Failed),
                (Configuration, Reason::Failed),
                (Diverged, Reason::Failed),
                (Other, Reason::Failed),
            ] {
                assert_eq!(reported(kind, text), expected, "{kind:?} {text}");
                let exception = Exception {
                    class: "RuntimeError".into(),
                    message: text.into(),
                    errno: Some(ENOSPC),
                    failure: Some(kind),
                    ..Exception::default()
                };
                let message = ExitMessage::exception(&exception);
                assert_eq!(message.kind(), kind, "{text}");
            }
        }
        let newer: FailureKind = serde_json::from_str("\"melted\"").unwrap();
        assert_eq!(newer, Other, "a kind of a newer build is the rank's own");
    }

    #[test]
    fn earlier_log_lines_decide_nothing() {
        let key = Exception { class: "KeyError".into(), message: "'obs'".into(), ..Exception::default() };
        for noise in NOISE {
            for (exit, log, exception, hooked, expected) in [
                (CODE, raised(noise, "KeyError: 'obs'"), None, false, Reason::Failed),
                (CODE, raised(noise, "KeyError: 'obs'"), Some(&key), true, Reason::Failed),
                (CODE, format!("KeyError: 'obs'\n{noise}"), Some(&key), true, Reason::Failed),
                (CODE, format!("{noise}\nleaving with code 1"), None, false, Reason::Failed),
                (CODE, noise.to_owned(), None, true, Reason::Failed),
                (signal(11), noise.to_owned(), None, false, Reason::Crashed),
                (signal(9), noise.to_owned(), None, true, Reason::Killed),
                (Exit::Code { code: 139 }, format!("{noise}\nleaving"), None, false, Reason::Crashed),
                (signal(6), format!("{noise}\nFatal Python error: Aborted"), None, false, Reason::Crashed),
            ] {
                let found = reason(&exit, &log, exception, hooked);
                assert_eq!(found, (expected, Severity::Red), "{exit:?} {log}");
            }
        }
    }

    #[test]
    fn final_exception_decides_reason() {
        use Reason::{ConnectionLost, DiskFull, Failed, MismatchAbort, OutOfMemory, PortTaken};
        let table = [
            ("OSError: [Errno 28] No space left on device: '/ckpt/latest.pt'", DiskFull),
            ("OSError: [Errno 122] Disk quota exceeded: '/data/latest.pt'", DiskFull),
            ("RuntimeError: unable to write to file </torch_1_2_0>: No space left on device (28)", DiskFull),
            ("OSError: [Errno 98] Address already in use", PortTaken),
            (
                "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network \
              address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
                PortTaken,
            ),
            (
                "RuntimeError: The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
                PortTaken,
            ),
            ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", OutOfMemory),
            ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", OutOfMemory),
            ("MemoryError", OutOfMemory),
            (
                "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried \
              to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)",
                OutOfMemory,
            ),
            ("OSError: [Errno 12] Cannot allocate memory", OutOfMemory),
            (
                "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:1",
                ConnectionLost,
            ),
            (
                "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Read error [10.0.0.1]:4: Connection reset by peer",
                ConnectionLost,
            ),
            (
                "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for \
              recv operation to complete",
                ConnectionLost,
            ),
            (
                "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2027, remote process exited or there \
              was a network error",
                ConnectionLost,
            ),
            (
                "torch.distributed.DistNetworkError: failed to recv, got 0 bytes. Connection was likely closed.",
                ConnectionLost,
            ),
            ("torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients", Failed),
            (
                "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 26668 vs 13336",
                MismatchAbort,
            ),
            (
                "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective",
                MismatchAbort,
            ),
            // The program's own connections, words and values.
            ("ConnectionResetError: [Errno 104] Connection reset by peer", Failed),
            ("BrokenPipeError: [Errno 32] Broken pipe", Failed),
            ("ConnectionRefusedError: [Errno 111] Connection refused", Failed),
            ("TimeoutError: timed out", Failed),
            ("socket.timeout: timed out", Failed),
            ("socket.gaierror: [Errno -3] Temporary failure in name resolution", Failed),
            ("EOFError", Failed),
            (
                "RuntimeError: time-out of 2000ms while waiting for the simulator, make sure it is ready",
                Failed,
            ),
            ("RuntimeError: simulator: connection reset by peer", Failed),
            ("mysim.client.SimulatorError: socket closed, peer gone, timed out waiting", Failed),
            ("KeyError: 'No space left on device'", Failed),
            ("ValueError: Address already in use", Failed),
            ("AssertionError: op.preamble.length <= op.nbytes", Failed),
            ("NotImplementedError: CUDA out of memory", Failed),
            ("FileNotFoundError: [Errno 2] No such file or directory: 'no space left on device'", Failed),
            ("PermissionError: [Errno 13] Permission denied: '/ckpt'", Failed),
            ("AttributeError: 'Peer' object has no attribute 'socket'", Failed),
        ];
        for (exception, expected) in table {
            for log in [
                raised("step 7", exception),
                raised("step 7", exception).lines().map(|line| format!("[rank1]: {line}\n")).collect(),
                raised(
                    "step 7",
                    &format!(
                        "{exception}\n[rank1]:[W1123 00:49:23.1 ProcessGroup.cpp:9] destroy_process_group() was not called"
                    ),
                ),
                // The head of the traceback is further up than the last lines reach.
                raised("", exception).lines().skip(3).map(|line| format!("{line}\n")).collect(),
            ] {
                assert_eq!(reason(&CODE, &log, None, false).0, expected, "{log}");
            }
        }
    }

    #[test]
    fn hook_exception_decides_without_log() {
        let exception = |class: &str, bases: &[&str], message: &str, errno| Exception {
            class: class.into(),
            bases: bases.iter().map(|base| (*base).into()).collect(),
            message: message.into(),
            errno,
            at: "/w/train.py:31".into(),
            ..Exception::default()
        };
        let os: &[&str] = &["ConnectionError", "OSError", "Exception"];
        let runtime: &[&str] = &["RuntimeError", "Exception"];
        for (exception, expected) in [
            (exception("sim.Reset", os, "[Errno 104] Connection reset by peer", Some(104)), Reason::Failed),
            (exception("sim.Full", os, "full", Some(28)), Reason::DiskFull),
            (
                exception(
                    "RuntimeError",
                    &["Exception"],
                    "[enforce fail at inline_container.cc:672]",
                    Some(28),
                ),
                Reason::DiskFull,
            ),
            (exception("torch.OutOfMemoryError", runtime, "CUDA out of memory.", None), Reason::OutOfMemory),
            (
                exception(
                    "numpy._core._exceptions._ArrayMemoryError",
                    &["MemoryError", "Exception"],
                    "Unable",
                    None,
                ),
                Reason::OutOfMemory,
            ),
            (
                exception("mine.BadBatch", &["ValueError", "Exception"], "no space left on device", None),
                Reason::Failed,
            ),
            (
                exception(
                    "torch.distributed.DistBackendError",
                    runtime,
                    "NCCL error: remote process exited",
                    None,
                ),
                Reason::ConnectionLost,
            ),
        ] {
            assert_eq!(reason(&CODE, "", Some(&exception), true).0, expected, "{exception:?}");
            let message = ExitMessage::exception(&exception);
            assert!(message.shown().ends_with(" at /w/train.py:31"), "{}", message.shown());
        }
        // A thread that ended is not the program; what ended the program counts.
        let thread = Exception { thread: "loader".into(), ..exception("OSError", &[], "full", Some(28)) };
        assert_eq!(
            reason(&CODE, "", Some(&thread), true).0,
            Reason::DiskFull,
            "unless nothing else is known"
        );
    }

    #[test]
    fn abort_message_is_read_from_what() {
        let thrown = |what: &str| {
            format!(
                "step 7\nterminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  {what}\n\
                 Fatal Python error: Aborted\n\nCurrent thread 0x00007f (most recent call first):\n  File \"/w/t.py\", line 3 in f"
            )
        };
        for (what, expected) in [
            (
                "[enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 26668 vs 13336",
                Reason::MismatchAbort,
            ),
            ("std::bad_alloc", Reason::OutOfMemory),
            ("vector::_M_range_check", Reason::Crashed),
            ("No space left on device", Reason::Crashed),
        ] {
            assert_eq!(reason(&signal(6), &thrown(what), None, true).0, expected, "{what}");
        }
        let peer = thrown("[PG ID 0 Rank 1] ProcessGroupNCCL's watchdog: collective operation timeout");
        let lines = lines(&peer);
        let end =
            EndOfProcess { exit: &signal(6), exception: None, error: None, lines: &lines, hooked: true };
        assert_eq!(ExitMessage::of(&end).kind(), FailureKind::Connection);
    }

    #[test]
    fn abort_without_what_has_its_reason() {
        for (reason, expected) in [
            ("Fatal Python error: init_import_site: Failed to import the site module", Reason::Crashed),
            (
                "../aten/src/ATen/native/cuda/IndexKernel.cu:92: block: [0,0,0] Assertion `index` failed.",
                Reason::Crashed,
            ),
            ("python: gloo/rendezvous/store.cc:35: Assertion `size > 0' failed.", Reason::Crashed),
            ("CUDA error: out of memory", Reason::OutOfMemory),
            ("double free or corruption (!prev)", Reason::Crashed),
        ] {
            let log = lines(&format!(
                "step 7\n{reason}\nFatal Python error: Aborted\n\nThread 0x7f:\n  File \"t.py\", line 3 in f"
            ));
            for exit in [signal(6), Exit::Code { code: ABORTED }] {
                let end =
                    EndOfProcess { exit: &exit, exception: None, error: None, lines: &log, hooked: true };
                assert_eq!(ExitMessage::of(&end).shown(), reason, "{exit:?}");
                assert_eq!(super::tests::reason(&exit, &log.join("\n"), None, true).0, expected, "{reason}");
            }
        }
    }

    #[test]
    fn message_is_joined_and_has_cause_and_child() {
        use rankdeck_proto::message::DeadChild;
        let exception = Exception {
            class: "RuntimeError".into(),
            message: "Error(s) in loading state_dict:\n\n\tsize mismatch for a.weight".into(),
            at: "t.py:3".into(),
            cause: "KeyError: 'obs'".into(),
            ..Exception::default()
        };
        let shown = |exception: &Exception| ExitMessage::exception(exception).shown;
        let joined = "RuntimeError: Error(s) in loading state_dict: size mismatch for a.weight at t.py:3";
        assert_eq!(shown(&exception), format!("{joined}; caused by KeyError: 'obs'"));
        let repeated =
            Exception { cause: "ValueError: size mismatch for a.weight".into(), ..exception.clone() };
        assert_eq!(shown(&repeated), joined, "the message has it");
        let long = Exception { message: "x".repeat(2_000), ..exception.clone() };
        assert!(shown(&long).len() < 400, "{}", shown(&long).len());
        let child = |exit| Some(DeadChild { pid: 7, name: "loader".into(), exit });
        let killed = child(Exit::Signal { signal: 9, out_of_memory: true });
        let killed = Exception { child: killed, cause: String::new(), ..exception.clone() };
        assert!(shown(&killed).contains("its child loader (pid 7) "), "{}", shown(&killed));
        assert_eq!(reason(&CODE, "", Some(&killed), true).0, Reason::OutOfMemory);
        let full = Exception { child: child(signal(7)), ..exception };
        assert!(shown(&full).contains("/dev/shm"));
    }

    #[test]
    fn exception_before_a_crash_at_exit_is_the_message() {
        let key = Exception { class: "KeyError".into(), message: "'obs'".into(), ..Exception::default() };
        let shown = |exit: &Exit, exception: &Exception| {
            let exception = Some(exception);
            ExitMessage::of(&EndOfProcess { exit, exception, error: None, lines: &[], hooked: true }).shown
        };
        assert_eq!([signal(11), signal(6)].map(|exit| shown(&exit, &key)), ["KeyError: 'obs'"; 2]);
        assert_eq!(shown(&signal(9), &key), "", "somebody killed it");
        let thread = Exception { thread: "loader".into(), ..key };
        assert_eq!(shown(&signal(11), &thread), "");
    }

    #[test]
    fn logged_exception_is_one_at_the_end_of_the_log() {
        let log = |after: usize| lines(&(raised("step 1", "KeyError: 'obs'") + &"\nbye".repeat(after)));
        assert_eq!(logged_exception(&log(2)).as_deref(), Some("KeyError: 'obs' at /w/train.py:31"));
        assert_eq!(logged_exception(&log(AFTER + 1)), None, "the program went on");
        let ignored = raised("Exception ignored in: <function f>", "KeyError: 'obs'");
        assert_eq!(logged_exception(&lines(&ignored)), None);
        assert_eq!(logged_exception(&lines("step 1\ndone")), None);
    }

    #[test]
    fn last_line_decides_without_exception() {
        for (line, expected) in [
            ("cp: error writing 'x': No space left on device", Reason::DiskFull),
            ("error: lost another rank: Connection closed by peer", Reason::ConnectionLost),
            ("warning: No space left on device", Reason::Failed),
            ("done", Reason::Failed),
        ] {
            assert_eq!(reason(&CODE, &format!("step 1\n{line}\n\n"), None, false).0, expected, "{line}");
        }
    }

    #[test]
    fn error_stays_in_the_evidence_before_noise() {
        let noise: String = (0..20).map(|n| format!("worker: step {}\n", n / 10)).collect();
        let other: String = (0..9).map(|n| format!("closing {n}\n")).collect();
        let log = lines(&format!("error: reward is NaN\n{noise}{other}"));
        let error = Some(("reward is NaN", None));
        let end = EndOfProcess { exit: &CODE, exception: None, error, lines: &log, hooked: false };
        let message = ExitMessage::of(&end);
        let mut death = AbnormalExit {
            exit: &CODE,
            message: &message,
            last_lines: &log,
            victim: false,
            victim_of: None,
            sent: None,
        };
        let facts = dead(&Model::default(), Rank(1), &death).card.facts;
        assert_eq!(facts.first().map(String::as_str), Some("log: error: reward is NaN"), "{facts:?}");
        assert_eq!((facts.len(), facts.last().unwrap().as_str()), (6, "log: closing 8"), "{facts:?}");
        death.last_lines = &log[..21];
        let facts = dead(&Model::default(), Rank(1), &death).card.facts;
        assert_eq!(
            facts,
            ["log: error: reward is NaN", "log: worker: step 0 (10 times)", "log: worker: step 1 (10 times)"]
        );
    }
}
