//! Redacts secret values in the output of ranks: each byte of them is a star in the log
//! file and in every forwarded line.
//!
//! - SECRET-2: a value of `launch.pass_env`, or of a variable with a secret's name, of at least
//!   [`LEAST`] bytes is in no line that an agent delivers, and leaves the log file when the agent reads it.

use rankdeck_proto::message::{LaunchSecrets, LaunchSpec};
use rankdeck_types::variables::{holds_password, names_secret, plain};
use std::fmt;
use std::ops::Range;

/// Shorter values are words that a log is full of.
const LEAST: usize = 8;
/// Longest value that is redacted.
pub(super) const MOST: usize = 4096;

/// What is kept out of the lines of a generation.
#[derive(Default, Clone)]
pub(crate) struct LogSecrets {
    values: Vec<Vec<u8>>,
    /// Whether a byte starts one of them.
    begins: Vec<bool>,
}

impl fmt::Debug for LogSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets", self.values.len())
    }
}

impl LogSecrets {
    /// Those of a launch on this host.
    pub fn from_launch(spec: &LaunchSpec, private: &LaunchSecrets) -> LogSecrets {
        let launch = &spec.plan.experiment.launch;
        let host = spec.plan.hosts.iter().find(|host| host.node_rank == spec.node_rank);
        let passed = private.variables.reveal().filter(|(name, value)| {
            // Directories are passed as well, and are not secret.
            let is_passed = launch.pass_env.iter().any(|passed| passed == name) && !value.starts_with('/');
            is_passed || names_secret(name) || holds_password(value)
        });
        let own = host.into_iter().flat_map(|host| &host.host.env);
        let written = launch.env.iter().chain(own).filter(|(name, _)| names_secret(name));
        let passed = passed.map(|(_, value)| value.to_owned());
        LogSecrets::new(passed.chain(written.filter_map(|(_, value)| plain(value))))
    }

    /// These values; of one with several lines, each line.
    pub fn new(values: impl Iterator<Item = String>) -> LogSecrets {
        let mut all: Vec<Vec<u8>> = values
            .flat_map(|value| value.lines().map(|line| line.trim().as_bytes().to_vec()).collect::<Vec<_>>())
            .filter(|value| (LEAST..=MOST).contains(&value.len()))
            .collect();
        // Of two that start alike, the longer one.
        all.sort_by_key(|value| std::cmp::Reverse(value.len()));
        all.dedup();
        let mut begins = vec![false; 256];
        all.iter().filter_map(|value| value.first()).for_each(|byte| begins[usize::from(*byte)] = true);
        LogSecrets { values: all, begins }
    }

    /// Hides them in these bytes; where that was.
    pub fn hide(&self, bytes: &mut [u8]) -> Vec<Range<usize>> {
        let mut hidden = Vec::new();
        let mut at = 0;
        while !self.values.is_empty() && at < bytes.len() {
            let found = self.begins[usize::from(bytes[at])]
                .then(|| self.values.iter().find(|value| bytes[at..].starts_with(value)))
                .flatten();
            match found {
                Some(value) => {
                    let range = at..at + value.len();
                    bytes[range.clone()].fill(b'*');
                    at = range.end;
                    hidden.push(range);
                }
                None => at += 1,
            }
        }
        hidden
    }

    /// How many of the last bytes may be the beginning of one.
    pub fn open_end(&self, bytes: &[u8]) -> usize {
        let longest = self.values.first().map_or(0, |value| value.len().saturating_sub(1));
        let from = bytes.len().saturating_sub(longest);
        let begins = |at: &usize| self.values.iter().any(|value| value.starts_with(&bytes[*at..]));
        (from..bytes.len()).find(begins).map_or(0, |at| bytes.len() - at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_2_values_become_stars_and_an_open_end_waits() {
        let secrets = LogSecrets::new(
            ["abcdefgh", "abcdefghijkl", "short", "key one\nkey two 2\n"].map(str::to_owned).into_iter(),
        );
        let hidden = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            secrets.hide(&mut bytes);
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(hidden("x abcdefghi y"), "x ********i y");
        assert_eq!(hidden("abcdefghijkl,abcdefgh"), "************,********");
        assert_eq!(hidden("short key two 2"), "short *********");
        for (text, open) in
            [("", 0), ("x", 0), ("x a", 1), ("abcdefg", 7), ("xabcdefghij", 10), ("key two", 7)]
        {
            assert_eq!(secrets.open_end(text.as_bytes()), open, "{text}");
        }
        assert_eq!(
            (LogSecrets::default().hide(&mut [b'a'; 9]).len(), LogSecrets::default().open_end(b"a")),
            (0, 0)
        );
        assert!(!format!("{secrets:?}").contains("abc"));
    }
}
