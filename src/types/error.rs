//! The error for users: cause and hint.

use serde::{Deserialize, Serialize};

/// An error with a hint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{error}")]
pub struct HintedError {
    /// The cause, with its host or rank.
    pub error: String,
    /// The fix: a command, a key, a line to change. May be empty.
    pub hint: String,
}

impl HintedError {
    /// Creates an error from cause and hint.
    pub fn new(error: impl Into<String>, hint: impl Into<String>) -> HintedError {
        HintedError { error: error.into(), hint: hint.into() }
    }

    /// Returns cause and hint in one line.
    pub fn with_hint(&self) -> String {
        let HintedError { error, hint } = self;
        if hint.is_empty() { error.clone() } else { format!("{error}; {hint}") }
    }
}

/// What helps when a file or directory cannot be written, by the words of the system: those of a library call, or of
/// a shell. One cause, one hint.
pub fn write_hint(error: &str) -> &'static str {
    const CAUSES: [(&[&str], &str); 6] = [
        (
            &["permission denied", "operation not permitted"],
            "make the directory writable for this user (check `ls -ld`)",
        ),
        (&["no space left"], "free disk space (check `df -h` and `df -i`)"),
        (&["quota exceeded"], "free space of your quota (check `quota -s`)"),
        (&["read-only"], "remount the file system writable (check `mount`)"),
        (
            &["not a directory", "no such file", "symbolic links", "name too long", "file exists"],
            "make every part of the path a directory (check `ls -ld`)",
        ),
        (
            &["no response", "stale file handle", "input/output error", "not connected", "timed out"],
            "repair the mount (check `df` and `dmesg`)",
        ),
    ];
    let error = error.to_lowercase();
    let cause = CAUSES.iter().find(|(words, _)| words.iter().any(|word| error.contains(word)));
    cause.map_or("write a file there in a shell", |(_, hint)| hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::io::Error;

    #[test]
    fn each_cause_of_a_failed_write_has_its_own_hint() {
        // EACCES, ENOSPC, EDQUOT, EROFS, ENOTDIR, EIO, and one that none of them names.
        let errors = [13, 28, 122, 30, 20, 5, 24].map(|number| Error::from_raw_os_error(number).to_string());
        let hints: BTreeSet<&str> = errors.iter().map(|error| write_hint(error)).collect();
        assert_eq!(hints.len(), errors.len(), "{errors:?} {hints:?}");
        for (same, other) in [(13, 1), (20, 2), (20, 40), (20, 36), (5, 116), (5, 107), (5, 110)] {
            let hint = |number| write_hint(&Error::from_raw_os_error(number).to_string());
            assert_eq!(hint(same), hint(other), "{other}");
        }
        assert_eq!(write_hint("no response within 10 s"), write_hint("Input/output error"));
        assert_eq!(write_hint("sh: 1: cannot create x: Permission denied"), write_hint("permission denied"));
    }
}
