//! Shell scripts for a host.
//!
//! Values enter as quoted words only, so that the commands themselves are constants. A script has no newline
//! and no `!`: the login shell may be csh, which reads both before `/bin/sh` does.

use super::quote;
use std::fmt::Display;

/// Commands for `/bin/sh`, one after another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Script(String);

impl Script {
    /// A script without commands.
    pub fn new() -> Script {
        Script::default()
    }

    /// Adds commands as they are.
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

    /// Adds one command of these words.
    pub fn call<S: AsRef<str>>(self, words: &[S]) -> Script {
        self.run(&quote::words(words.iter().map(AsRef::as_ref)))
    }

    /// Adds the commands of another script.
    pub fn then(self, other: &Script) -> Script {
        self.run(&other.0)
    }

    /// The line that runs the script, whatever the user's login shell is; fish and csh understand this line,
    /// too.
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
    fn values_survive_a_second_shell() {
        let script = Script::new().set("x", "it's $HOME").run("printf %s \"$x\"");
        assert_eq!(output(&script), "it's $HOME");
        let words = ["a b", "", "*", "$(id)", "'"];
        let script = Script::new().arguments(&words).run("for w in \"$@\"; do printf \"<%s>\" \"$w\"; done");
        assert_eq!(output(&script), "<a b><><*><$(id)><'>");
        let inner = Script::new().call(&["printf", "%s", "a;b"]);
        assert_eq!(output(&Script::new().run("if true; then printf x").then(&inner).run("fi")), "xa;b");
    }
}
