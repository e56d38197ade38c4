//! Exit of a process, and its description.

use crate::words::signal_name;
use serde::{Deserialize, Serialize};
use std::fmt;

const SIGINT: i32 = 2;
const SIGILL: i32 = 4;
/// The signal of `abort`.
pub const SIGABRT: i32 = 6;
const SIGBUS: i32 = 7;
const SIGFPE: i32 = 8;
const SIGKILL: i32 = 9;
const SIGSEGV: i32 = 11;
const SIGTERM: i32 = 15;

/// Exit code of a rank that cannot continue without a lost one (`EX_TEMPFAIL` of sysexits.h): only a restart helps.
pub const CANNOT_SHRINK: i32 = 75;

/// Exit of a process. Displayed as `killed by SIGKILL`, `exited with code 3`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum Exit {
    /// Exited with this code.
    Code {
        /// 0 to 255.
        code: i32,
    },
    /// Killed by a signal.
    Signal {
        /// Number of the signal.
        signal: i32,
        /// Sent by the kernel's out-of-memory killer (the cgroup's `oom_kill` counter moved).
        out_of_memory: bool,
    },
    NotStarted {
        /// The system's error, with the program's path.
        error: String,
    },
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code { code } => write!(f, "exited with code {code}"),
            Exit::Signal { out_of_memory: true, signal } => {
                write!(f, "killed by the kernel: out of memory ({})", signal_name(*signal))
            }
            Exit::Signal { signal, .. } if self.is_crash() => {
                write!(f, "crashed with {}", signal_name(*signal))
            }
            Exit::Signal { signal, .. } => write!(f, "killed by {}", signal_name(*signal)),
            Exit::NotStarted { error } => write!(f, "cannot start: {error}"),
        }
    }
}

impl Exit {
    /// Returns the description as a predicate: `was killed by SIGKILL`.
    pub fn predicate(&self) -> String {
        let killed = matches!(self, Exit::Signal { .. }) && !self.is_crash();
        format!("{}{self}", if killed { "was " } else { "" })
    }

    /// Returns a short description for a narrow column: `SIGKILL`, `exit 3`.
    pub fn short(&self) -> String {
        match self {
            Exit::Code { code } => format!("exit {code}"),
            Exit::Signal { out_of_memory: true, .. } => "no memory".into(),
            Exit::Signal { signal, .. } => signal_name(*signal),
            Exit::NotStarted { .. } => "no start".into(),
        }
    }

    /// Returns what the program itself has written about its end: its own message (`own`, may be empty), else the
    /// last line of its output. A signal from outside ends a program that has written nothing about it, and the
    /// error of a program that did not start is in its description.
    pub fn message<'a>(&self, own: &'a str, output: &'a [String]) -> &'a str {
        match self {
            Exit::Code { .. } if own.is_empty() => {
                let lines = || output.iter().rev().map(String::as_str).filter(|line| !line.trim().is_empty());
                lines().find(|line| !is_epilogue(line)).or_else(|| lines().next()).unwrap_or_default()
            }
            Exit::Code { .. } => own,
            Exit::Signal { .. } if self.is_crash() => own,
            Exit::Signal { .. } | Exit::NotStarted { .. } => "",
        }
    }

    /// Returns the description with that message: `exited with code 1: ValueError: x`.
    pub fn explained(&self, own: &str, output: &[String]) -> String {
        match self.message(own, output) {
            "" => self.to_string(),
            message => format!("{self}: {message}"),
        }
    }

    /// Returns whether the process succeeded.
    pub fn is_success(&self) -> bool {
        matches!(self, Exit::Code { code: 0 })
    }

    /// Returns whether the process crashed, such as by an access to unmapped memory.
    pub fn is_crash(&self) -> bool {
        matches!(
            self,
            Exit::Signal { signal: SIGILL | SIGABRT | SIGBUS | SIGFPE | SIGSEGV, out_of_memory: false }
        )
    }

    /// Returns whether it crashed, or a shell reports that its command did.
    pub fn reports_crash(&self) -> bool {
        self.is_crash()
            || matches!(self, Exit::Code { code } if [SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV].contains(&code.saturating_sub(128)))
    }

    /// Returns whether a signal of a stop (SIGINT, SIGTERM, SIGKILL) ended it, other than for out of memory.
    pub fn is_stop_signal(&self) -> bool {
        matches!(self, Exit::Signal { signal: SIGINT | SIGKILL | SIGTERM, out_of_memory: false })
    }

    /// Returns whether SIGKILL ended it, other than for out of memory.
    pub fn is_sigkill(&self) -> bool {
        matches!(self, Exit::Signal { signal: SIGKILL, out_of_memory: false })
    }

    /// Returns whether a stop could have caused this exit, whatever the program does with its signals.
    pub fn is_stop_effect(&self) -> bool {
        // Exit codes of a shell whose child was ended by SIGINT, SIGKILL or SIGTERM.
        self.is_stop_signal() || matches!(self, Exit::Code { code: 0 | 130 | 137 | 143 })
    }

    /// Returns whether this signal ended it, or ended the command of a shell.
    pub fn is_by(&self, signal: i32) -> bool {
        match self {
            Exit::Signal { signal: ended_by, out_of_memory } => *ended_by == signal && !out_of_memory,
            Exit::Code { code } => code.saturating_sub(128) == signal,
            Exit::NotStarted { .. } => false,
        }
    }
}

/// Returns whether a line is what libraries write as an interpreter exits: the program's own last words are above it.
pub fn is_epilogue(line: &str) -> bool {
    const WORDS: [&str; 5] =
        ["destroy_process_group", "resource_tracker", "warnings.warn", "Exception ignored", "leaked "];
    let line = without_rank(line);
    // The summary of W&B, and PyTorch's warnings: `[W1123 00:49:23.1 ProcessGroup.cpp:9]`.
    let is_summary = line.starts_with("wandb:") && !line.contains("ERROR");
    let is_written_at_exit = WORDS.iter().any(|word| line.contains(word));
    line.trim().is_empty() || line.starts_with("[W") || is_summary || is_written_at_exit
}

/// A line without the name of its rank, which PyTorch puts before its warnings and each line of a traceback.
fn without_rank(line: &str) -> &str {
    let named = line.strip_prefix("[rank").and_then(|rest| rest.split_once("]:"));
    let is_number = |rank: &str| !rank.is_empty() && rank.bytes().all(|byte| byte.is_ascii_digit());
    named.filter(|(rank, _)| is_number(rank)).map_or(line, |(_, rest)| rest.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signal(signal: i32) -> Exit {
        Exit::Signal { signal, out_of_memory: false }
    }

    #[test]
    fn signal_from_outside_is_not_explained_by_output() {
        let output = ["iteration 7".to_owned(), String::new()];
        let killed = Exit::Signal { signal: SIGKILL, out_of_memory: true };
        let unstarted = Exit::NotStarted { error: "no such file".into() };
        for exit in [signal(SIGKILL), signal(SIGTERM), killed, unstarted] {
            assert_eq!((exit.message("", &output), exit.message("own", &output)), ("", ""), "{exit}");
            assert_eq!(exit.explained("own", &output), exit.to_string());
        }
        let code = Exit::Code { code: 1 };
        assert_eq!((code.message("", &output), code.message("own", &output)), ("iteration 7", "own"));
        assert_eq!(code.explained("", &output), "exited with code 1: iteration 7");
        assert_eq!((code.message("", &[]), code.explained("", &[])), ("", code.to_string()));
        assert_eq!(
            (signal(SIGABRT).message("", &output), signal(SIGABRT).message("own", &output)),
            ("", "own")
        );
    }

    /// `sys.exit("no data")` in a program with a process group or W&B.
    #[test]
    fn last_words_are_above_what_libraries_write_at_exit() {
        let code = Exit::Code { code: 1 };
        for after in [
            "[rank0]:[W1123 00:49:23.1 ProcessGroupNCCL.cpp:9] Warning: x",
            "[W1123 00:49:23.1 ProcessGroup.cpp:9] x",
            "wandb: Find logs at: wandb/run-1",
            "resource_tracker: There appear to be 1 leaked semaphore objects",
        ] {
            let output = ["step 7", "no data", after, ""].map(str::to_owned);
            assert_eq!(code.message("", &output), "no data", "{after}");
            assert_eq!(code.message("", &output[2..]), after, "there is nothing else");
        }
        let output = ["step 7", "wandb: ERROR no network"].map(str::to_owned);
        assert_eq!(code.message("", &output), output[1]);
    }

    #[test]
    fn exit_has_description_predicate_and_short_form() {
        let memory = Exit::Signal { signal: SIGKILL, out_of_memory: true };
        let unstarted = Exit::NotStarted { error: "no such file".into() };
        for (exit, phrase, predicate, short) in [
            (signal(SIGKILL), "killed by SIGKILL", "was killed by SIGKILL", "SIGKILL"),
            (signal(SIGSEGV), "crashed with SIGSEGV", "crashed with SIGSEGV", "SIGSEGV"),
            (
                memory,
                "killed by the kernel: out of memory (SIGKILL)",
                "was killed by the kernel: out of memory (SIGKILL)",
                "no memory",
            ),
            (Exit::Code { code: 3 }, "exited with code 3", "exited with code 3", "exit 3"),
            (unstarted, "cannot start: no such file", "cannot start: no such file", "no start"),
        ] {
            assert_eq!(
                (exit.to_string(), exit.predicate(), exit.short()),
                (phrase.into(), predicate.into(), short.into())
            );
        }
    }

    #[test]
    fn stop_effect_excludes_out_of_memory() {
        assert!(signal(SIGTERM).is_stop_effect() && signal(SIGINT).is_stop_effect());
        assert!(Exit::Code { code: 130 }.is_stop_effect());
        assert!(!Exit::Signal { signal: SIGKILL, out_of_memory: true }.is_stop_effect());
        assert!(!Exit::Code { code: 1 }.is_stop_effect());
        assert!(signal(SIGSEGV).is_crash() && !signal(SIGKILL).is_crash());
        assert!(Exit::Code { code: 139 }.reports_crash() && !Exit::Code { code: 137 }.reports_crash());
        assert!(signal(10).is_by(10) && Exit::Code { code: 138 }.is_by(10) && !signal(9).is_by(10));
    }
}
