//! How a command fails: an error with its hint, and an exit code.

use rankdeck_config::Diagnostics;
use rankdeck_types::error::HintedError;
use rankdeck_types::plan::PlanError;
use rankdeck_types::words::clean;
use std::fmt;

/// Exit codes; part of the command line's contract.
pub mod code {
    /// Succeeded, or reached its stop value, or detached.
    pub const SUCCESS: u8 = 0;
    /// The run, or the command, failed.
    pub const FAILED: u8 = 1;
    /// Usage or configuration.
    pub const USAGE: u8 = 2;
    /// A host failed preflight or could not be reached.
    pub const HOST: u8 = 3;
    /// Stuck, and stopped by policy.
    pub const STUCK: u8 = 4;
    /// Interrupted, and stopped cleanly.
    pub const INTERRUPTED: u8 = 130;
}

/// Why a command ended without doing its work. Shown as `error: ...` and `hint: ...` lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The exit code of the process.
    pub code: u8,
    /// What failed, in one line, and what helps; each line of the hint is a hint of its own. The error
    /// already begins with `error:` when it comes with a source excerpt.
    pub cause: HintedError,
    /// Further lines behind the error: a list, a source excerpt.
    pub details: Vec<String>,
    /// The mistakes of a configuration one by one, for programs.
    pub faults: Vec<Fault>,
}

/// One mistake of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Fault {
    /// What is wrong.
    pub error: String,
    /// What to change.
    pub hint: String,
    /// `FILE:LINE:COLUMN`, or the file alone.
    pub place: String,
}

impl Failure {
    /// Words of hosts may be among them: they are made one line.
    fn new(code: u8, error: &str) -> Failure {
        Failure {
            code,
            cause: HintedError::new(clean(error.trim_end()), ""),
            details: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// A failure with [`code::FAILED`].
    pub fn failed(error: impl Into<String>) -> Failure {
        Failure::new(code::FAILED, &error.into())
    }

    /// A failure with [`code::USAGE`].
    pub fn usage(error: impl Into<String>) -> Failure {
        Failure::new(code::USAGE, &error.into())
    }

    /// A failure with [`code::HOST`].
    pub fn host(error: impl Into<String>) -> Failure {
        Failure::new(code::HOST, &error.into())
    }

    /// The terminal does not do what was asked of it.
    pub fn terminal(error: std::io::Error) -> Failure {
        Failure::failed(format!("the terminal failed: {error}")).hint("give the run's name")
    }

    /// A list was left without a choice.
    pub fn nothing_picked() -> Failure {
        Failure::usage("nothing was picked").hint("give the run's name")
    }

    /// The system gave the console no thread or no event loop.
    pub fn no_thread(error: std::io::Error) -> Failure {
        Failure::failed(format!("failed to start a thread of the console: {error}"))
            .hint("`ulimit -u` and `ulimit -n` show the limits on processes and open files")
    }

    /// The same with one more hint; an empty one adds nothing.
    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        let hint = clean(&hint.into());
        let all = &mut self.cause.hint;
        if !all.is_empty() && !hint.is_empty() {
            all.push('\n');
        }
        all.push_str(&hint);
        self
    }

    /// The same with one more line behind the error.
    pub fn detail(mut self, line: &str) -> Failure {
        self.details.push(clean(line));
        self
    }

    /// The lines to show.
    pub fn lines(&self) -> Vec<String> {
        let error = match &self.cause.error {
            error if error.starts_with("error:") => error.clone(),
            error => format!("error: {error}"),
        };
        let hints = self.cause.hint.lines().map(|hint| format!("hint: {hint}"));
        std::iter::once(error).chain(self.details.iter().cloned()).chain(hints).collect()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join("\n"))
    }
}

impl From<Diagnostics> for Failure {
    fn from(diagnostic: Diagnostics) -> Failure {
        let text = diagnostic.to_string();
        let mut lines = text.trim_end().lines();
        let mut failure = Failure::usage(lines.next().unwrap_or_default());
        failure.faults = diagnostic
            .0
            .iter()
            .map(|one| Fault {
                error: clean(&one.message),
                hint: clean(&one.hint),
                place: match one.span {
                    Some(span) => format!("{}:{}:{}", clean(&one.file), span.line, span.column),
                    None => clean(&one.file),
                },
            })
            .collect();
        lines.fold(failure, Failure::detail)
    }
}

impl Failure {
    /// In a sentence with its place, where a file is at fault, and what helps: where an excerpt has no room.
    pub fn in_short(self) -> HintedError {
        let more = match self.faults.len() {
            0 | 1 => String::new(),
            all => format!(" (and {} more)", all - 1),
        };
        match self.faults.into_iter().next() {
            Some(first) => {
                HintedError { error: format!("{}: {}{more}", first.place, first.error), hint: first.hint }
            }
            None => self.cause,
        }
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Failure {
        Failure::usage(error.cause.error).hint(error.cause.hint)
    }
}

impl From<HintedError> for Failure {
    fn from(error: HintedError) -> Failure {
        Failure::host(error.error).hint(error.hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_prints_its_error_once_and_every_hint() {
        let failure = Failure::usage("nothing to stop").hint("`rankdeck ps`").hint("").hint("`--hosts FILE`");
        assert_eq!(failure.to_string(), "error: nothing to stop\nhint: `rankdeck ps`\nhint: `--hosts FILE`");
        let excerpt = Failure::usage("error: bad key").detail(" --> a:1:2");
        assert_eq!(excerpt.to_string(), "error: bad key\n --> a:1:2");
    }

    #[test]
    fn a_file_that_is_at_fault_is_named_with_its_line_in_short_too() {
        let fault = |line: u32| Fault {
            error: "unknown key `link`".into(),
            hint: "known keys here: `name`".into(),
            place: format!("hosts.toml:{line}:1"),
        };
        let mut failure = Failure::usage("error: unknown key `link`");
        failure.faults = vec![fault(4), fault(9)];
        let short = failure.in_short();
        assert_eq!(short.error, "hosts.toml:4:1: unknown key `link` (and 1 more)");
        assert_eq!(short.hint, "known keys here: `name`");
        assert_eq!(Failure::usage("x").hint("y").in_short().hint, "y");
    }

    /// TERM-2: what a host says stays in its line.
    #[test]
    fn words_of_a_host_cannot_pass_for_a_line_of_ours() {
        let said = "x: said \x1b[2J\nstopped: verified, no process is left on 2 hosts";
        for failure in [
            Failure::from(HintedError { error: said.into(), hint: said.into() }),
            Failure::host(said).hint(said),
            Failure::failed(said).hint(said),
        ] {
            assert_eq!(failure.lines().len(), 2, "{failure}");
            assert!(!failure.to_string().contains('\x1b'), "{failure:?}");
        }
    }
}
