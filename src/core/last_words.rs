//! What ended a program, in its own words: the exception that nobody caught. Pure.
//!
//! Where the program says what kind of failure it was, that decides; the built-in trainer always does, and
//! the hook does where the type of the exception tells. A log holds many words that have nothing to do with
//! the end: warnings about a full disk, addresses in use, sockets of simulators. Where no kind is given, the
//! text of these counts and of nothing else, the first that there is:
//!
//! 1. the exception that the program reported as its end ([`Exception`]; the hook does so for Python),
//! 2. the error that it reported,
//! 3. a traceback of Python at the end of the log, and the exception under it,
//! 4. for a process that was aborted, what C++ says of the exception that was thrown,
//! 5. the last line.
//!
//! A process that another signal ended has said nothing about it: the kernel's word counts.

use rankdeck_proto::message::{Exception, Exit, FailureKind};
use rankdeck_types::words;

/// Numbers of errors on Linux.
const ENOMEM: i32 = 12;
const ENOSPC: i32 = 28;
const EADDRINUSE: i32 = 98;
const EDQUOT: i32 = 122;
const SIGABRT: i32 = 6;

/// Most signs of an exception's text that are compared.
const GIST: usize = 400;

/// Python's own subclasses of `OSError`: their names are all that a log tells.
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

/// Where the words come from, which says how far text in them may be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum WordsSource {
    /// Nothing was said.
    #[default]
    Nobody,
    /// An error that the program reported in words.
    Report,
    /// The last line of a program that reports nothing.
    LastLine,
    /// An exception of the operating system's calls: its number says what it is.
    System,
    /// An exception that C++ made: only its text says what it is.
    Library,
    /// Any other exception: its text is the program's own and says nothing about the machine.
    Own,
}

/// What ended a program, in its own words.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct LastWords {
    /// As the program said; `None` where the rest has to tell.
    kind: Option<FailureKind>,
    source: WordsSource,
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

impl LastWords {
    /// The words about this end.
    pub fn of(end: &EndOfProcess<'_>) -> LastWords {
        match end.exit {
            Exit::NotStarted { .. } => LastWords::default(),
            Exit::Signal { signal: SIGABRT, .. } => thrown(end.lines),
            Exit::Signal { .. } => LastWords::default(),
            Exit::Code { .. } => {
                let reported = end.exception.filter(|exception| exception.thread.is_empty());
                if let Some(exception) = reported.or(end.exception) {
                    return LastWords::exception(exception);
                }
                if let Some((error, kind)) =
                    end.error.filter(|(error, kind)| !error.is_empty() || kind.is_some())
                {
                    return LastWords { kind, ..LastWords::plain(WordsSource::Report, error) };
                }
                match traceback(end.lines, end.hooked) {
                    Some(exception) => LastWords::exception(&exception),
                    None => last_line(end.lines, end.hooked),
                }
            }
        }
    }

    /// Of this exception.
    pub fn exception(exception: &Exception) -> LastWords {
        let class = exception.class.rsplit('.').next().unwrap_or_default().to_owned();
        let is = |names: &[&str]| {
            names.contains(&class.as_str())
                || exception.bases.iter().any(|base| names.contains(&base.as_str()))
        };
        let distributed = class.starts_with("Dist") && class.ends_with("Error");
        let source = if distributed || is(&["RuntimeError", "SystemError"]) {
            WordsSource::Library
        } else if is(&OS_ERRORS) {
            WordsSource::System
        } else {
            WordsSource::Own
        };
        let text = exception.message.to_lowercase();
        let number = || text.split_once("[errno ")?.1.split_once(']')?.0.trim().parse().ok();
        let errno = exception.errno.or_else(|| number().filter(|_| source == WordsSource::System));
        let first = exception.message.lines().next().unwrap_or_default();
        let mut shown = class.clone();
        if !first.is_empty() {
            shown.push_str(&format!(": {}", words::clip(first, 300)));
        }
        if !exception.at.is_empty() {
            shown.push_str(&format!(" at {}", exception.at));
        }
        LastWords {
            kind: exception.failure,
            source,
            class,
            bases: exception.bases.clone(),
            text,
            errno,
            shown: words::clean(&words::clip(&shown, 600)),
        }
    }

    fn plain(source: WordsSource, text: &str) -> LastWords {
        let shown = words::clean_output(&words::clip(text, 300));
        LastWords { source, text: text.to_lowercase(), shown, ..LastWords::default() }
    }

    /// As a sentence shows them, empty where nothing was said.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// What tells whether two programs ended alike: the exception or the error, numbers in it left out. Empty
    /// where the program itself has said nothing.
    pub fn gist(&self) -> String {
        if matches!(self.source, WordsSource::Nobody | WordsSource::LastLine) {
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

    /// Text counts only where no class and no number tells more.
    fn says(&self, any: &[&str]) -> bool {
        matches!(self.source, WordsSource::Report | WordsSource::LastLine | WordsSource::Library)
            && any.iter().any(|word| self.text.contains(word))
    }

    fn is(&self, class: &str) -> bool {
        self.class == class || self.bases.iter().any(|base| base == class)
    }

    /// What kind of failure it was. Of those that the rest of the words may mean, the gravest comes first.
    pub fn kind(&self) -> FailureKind {
        type Tells = fn(&LastWords) -> bool;
        const MAY_BE: [(FailureKind, Tells); 6] = [
            (FailureKind::Mismatch, LastWords::tells_of_mismatch),
            (FailureKind::OutOfMemory, LastWords::tells_of_memory),
            (FailureKind::GpuFailed, LastWords::tells_of_gpu),
            (FailureKind::DiskFull, LastWords::tells_of_disk),
            (FailureKind::PortTaken, LastWords::tells_of_port),
            (FailureKind::Connection, LastWords::tells_of_lost_peer),
        ];
        let told = || MAY_BE.iter().find(|(_, tells)| tells(self)).map(|(kind, _)| *kind);
        self.kind.or_else(told).unwrap_or(FailureKind::Other)
    }

    /// No space was left where the program wrote.
    fn tells_of_disk(&self) -> bool {
        matches!(self.errno, Some(ENOSPC | EDQUOT))
            || self.says(&["no space left on device", "os error 28", "disk quota exceeded", "os error 122"])
    }

    /// A port that it wanted belonged to another process.
    fn tells_of_port(&self) -> bool {
        self.errno == Some(EADDRINUSE) || self.says(&["address already in use", "eaddrinuse"])
    }

    /// An allocation failed, on the host or on a GPU.
    fn tells_of_memory(&self) -> bool {
        self.is("MemoryError")
            || self.is("OutOfMemoryError")
            || self.errno == Some(ENOMEM)
            || self.says(&[
                "cuda out of memory",
                "cuda error: out of memory",
                "_status_alloc_failed",
                "can't allocate memory",
                "std::bad_alloc",
            ])
    }

    /// The GPU or its driver does not work any more. What a kernel of the program may have done itself (an
    /// illegal address, an assertion) is not that.
    fn tells_of_gpu(&self) -> bool {
        self.says(&[
            "cuda error: unknown error",
            "cuda error: uncorrectable ecc error",
            "cuda error: device unavailable",
            "cuda error: cuda-capable device(s) is/are busy or unavailable",
            "gpu is lost",
        ])
    }

    /// Gloo ends the receiver of a message of the wrong size: the sender is guilty, not the one that died.
    fn tells_of_mismatch(&self) -> bool {
        self.says(&[
            "data size doesn't match",
            "preamble.length <= op.nbytes",
            "op.preamble.length",
            "detected mismatch between collectives",
        ])
    }

    /// The process group lost another rank. A simulator or a server that breaks a connection of the program's
    /// own is another matter: process groups raise exceptions of the library, which name it.
    fn tells_of_lost_peer(&self) -> bool {
        const NAMES: [&str; 6] = ["gloo", "nccl", "c10d", "tcpstore", "processgroup", "process group"];
        const BROKEN: [&str; 14] = [
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
        ];
        match self.source {
            WordsSource::LastLine => self.says(&BROKEN),
            WordsSource::Library => {
                (self.class.starts_with("Dist") || self.says(&NAMES)) && self.says(&BROKEN)
            }
            WordsSource::Nobody | WordsSource::Report | WordsSource::System | WordsSource::Own => false,
        }
    }
}

/// The last line; a warning is no reason to end. A program that reports its exceptions and has reported none
/// may have caught the one of its process group: it shows that text and leaves.
fn last_line(lines: &[String], reports: bool) -> LastWords {
    let last = lines.iter().rev().find(|line| !line.trim().is_empty());
    let ends = |line: &&str| {
        let library = line.starts_with("Connection ") || line.contains("/gloo/");
        (!reports || library) && !line.to_lowercase().contains("warn")
    };
    match last.map(|line| bare(line)).filter(ends) {
        Some(line) => LastWords::plain(WordsSource::LastLine, line),
        None => LastWords::default(),
    }
}

/// What C++ says of an exception that nobody caught, before it aborts the process.
fn thrown(lines: &[String]) -> LastWords {
    let what = lines.iter().rev().find_map(|line| Some(line.split_once("what():")?.1.trim()));
    what.map(|what| LastWords::plain(WordsSource::Library, what)).unwrap_or_default()
}

/// A line without the name of its rank, which PyTorch puts before each line of a traceback (`[rank0]: `).
fn bare(line: &str) -> &str {
    let tail = || line.strip_prefix("[rank")?.split_once("]: ").filter(|(rank, _)| is_number(rank));
    tail().map_or(line, |(_, rest)| rest)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// What libraries write when an interpreter ends.
fn is_epilogue(line: &str) -> bool {
    let line = bare(line);
    const WORDS: [&str; 5] =
        ["destroy_process_group", "resource_tracker", "warnings.warn", "Exception ignored", "leaked "];
    line.trim().is_empty() || line.starts_with("[W") || WORDS.iter().any(|word| line.contains(word))
}

/// The exception below the last traceback of a log. What follows it is its message's further lines, or what
/// is written when an interpreter ends; `strict` allows the latter only.
fn traceback(lines: &[String], strict: bool) -> Option<Exception> {
    let frame = |line: &str| line.starts_with("  File \"") && line.contains(", line ");
    let at = lines.iter().rposition(|line| frame(bare(line)))?;
    let below = lines.get(at + 1..)?.iter().position(|line| !bare(line).starts_with(' '))?;
    let ended = at + 1 + below;
    let (class, message) = head(bare(lines.get(ended)?))?;
    let rest = lines.get(ended + 1..).unwrap_or_default();
    if strict && !rest.iter().all(|line| is_epilogue(line)) {
        return None;
    }
    let place = |line: &String| {
        let (file, rest) = bare(line).trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
        let number = rest.split(',').next()?.trim();
        (!file.contains("/lib/python") && !file.contains("<frozen")).then(|| format!("{file}:{number}"))
    };
    let at = lines.get(..ended)?.iter().rev().find_map(place).unwrap_or_default();
    Some(Exception { class: class.into(), message: message.into(), at, ..Exception::default() })
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
mod tests;
