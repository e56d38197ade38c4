//! Failures of commands: an error with a hint, and an exit code.

use rankdeck_config::Diagnostics;
use rankdeck_types::error::HintedError;
use rankdeck_types::plan::PlanError;
use rankdeck_types::words::clean;
use std::fmt;

/// Exit codes, part of the command line's contract. A run that was stuck and stopped ends with 4, which the
/// core returns.
pub(crate) mod code {
    /// Succeeded, or reached its stop value, or detached.
    pub(crate) const SUCCESS: u8 = 0;
    /// The run, or the command, failed.
    pub(crate) const FAILED: u8 = 1;
    /// Usage or configuration.
    pub(crate) const USAGE: u8 = 2;
    /// A host failed preflight or could not be reached.
    pub(crate) const HOST: u8 = 3;
    /// A time limit of the command passed, as with `timeout`.
    pub(crate) const TIMEOUT: u8 = 124;
    /// Interrupted, and stopped cleanly.
    pub(crate) const INTERRUPTED: u8 = 130;
}

/// The error of a command. Printed as `error: ...` and `hint: ...` lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The exit code of the process.
    pub(crate) code: u8,
    /// The error in one line, and the hint; each line of the hint is printed as its own hint. The error
    /// starts with `error:` if it comes with a source excerpt.
    pub(crate) cause: HintedError,
    /// Further lines after the error: a list, a source excerpt.
    pub(crate) details: Vec<String>,
    /// The configuration errors one by one, for programs.
    pub(crate) faults: Vec<ConfigIssue>,
}

/// One configuration error.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(crate) struct ConfigIssue {
    /// What is wrong.
    pub(crate) error: String,
    /// What to change.
    pub(crate) hint: String,
    /// `FILE:LINE:COLUMN`, or the file alone.
    pub(crate) place: String,
}

impl Failure {
    /// Text of hosts may be part of the error: it becomes one line.
    fn new(code: u8, error: &str) -> Failure {
        Failure {
            code,
            cause: HintedError::new(clean(error.trim_end()), ""),
            details: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// A failure with [`code::FAILED`].
    pub(crate) fn failed(error: impl Into<String>) -> Failure {
        Failure::new(code::FAILED, &error.into())
    }

    /// A failure with [`code::USAGE`].
    pub(crate) fn usage(error: impl Into<String>) -> Failure {
        Failure::new(code::USAGE, &error.into())
    }

    /// A failure with [`code::HOST`].
    pub(crate) fn host(error: impl Into<String>) -> Failure {
        Failure::new(code::HOST, &error.into())
    }

    /// The terminal failed.
    pub(crate) fn terminal(error: std::io::Error) -> Failure {
        Failure::failed(format!("the terminal failed: {error}")).hint("pass the name of the run")
    }

    /// Other users could change the files in this place.
    pub(crate) fn place(why: HintedError) -> Failure {
        Failure::usage(format!("cannot store runs here: {}", why.error)).hint(why.hint)
    }

    /// A list was closed without a choice.
    pub(crate) fn nothing_picked() -> Failure {
        Failure::usage("nothing selected").hint("pass the name of the run")
    }

    /// The system refused a thread or an event loop.
    pub(crate) fn no_thread(error: std::io::Error) -> Failure {
        Failure::failed(format!("cannot start a thread: {error}"))
            .hint("check the limits with `ulimit -u` and `ulimit -n`")
    }

    /// Adds a hint; an empty one adds nothing.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        let hint = clean(&hint.into());
        let all = &mut self.cause.hint;
        if !all.is_empty() && !hint.is_empty() {
            all.push('\n');
        }
        all.push_str(&hint);
        self
    }

    /// Adds a line after the error.
    pub(crate) fn detail(mut self, line: &str) -> Failure {
        self.details.push(clean(line));
        self
    }

    /// The lines to show.
    pub(crate) fn lines(&self) -> Vec<String> {
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
            .map(|one| ConfigIssue {
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
    /// One sentence with its place and a hint, where an excerpt does not fit.
    pub(crate) fn in_short(self) -> HintedError {
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
    fn failure_prints_error_once_and_every_hint() {
        let failure = Failure::usage("nothing to stop").hint("`rankdeck ps`").hint("").hint("`--hosts FILE`");
        assert_eq!(failure.to_string(), "error: nothing to stop\nhint: `rankdeck ps`\nhint: `--hosts FILE`");
        let excerpt = Failure::usage("error: bad key").detail(" --> a:1:2");
        assert_eq!(excerpt.to_string(), "error: bad key\n --> a:1:2");
    }

    #[test]
    fn short_failure_names_file_and_line() {
        let fault = |line: u32| ConfigIssue {
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

    /// TERM-2: text of a host stays in its line.
    #[test]
    fn host_output_cannot_imitate_our_lines() {
        let reply = "x: sent \x1b[2J\nstop verified: no process left on 2 hosts";
        for failure in [
            Failure::from(HintedError { error: reply.into(), hint: reply.into() }),
            Failure::host(reply).hint(reply),
            Failure::failed(reply).hint(reply),
        ] {
            assert_eq!(failure.lines().len(), 2, "{failure}");
            assert!(!failure.to_string().contains('\x1b'), "{failure:?}");
        }
    }
}
