//! Builds shell scripts for hosts.
//!
//! Values are quoted words, so that the commands are constants. Scripts have no newline and no `!`: the login
//! shell may be csh, which interprets both before `/bin/sh`.

use super::quote;
use std::fmt::Display;

/// First line of a script from [`Script::started`].
pub const STARTED: &str = "RANKDECK-HOST";

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
    use std::process::Command;

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
