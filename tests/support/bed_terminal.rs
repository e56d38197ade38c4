//! The program under test in a terminal, at the console's place of the test bed. The test binary brings `mod hosts` and `mod terminal`.

use crate::hosts::TestBed;
use crate::terminal::Terminal;
use std::path::Path;

impl TestBed {
    /// Starts a command of this build there.
    pub fn terminal(&self, hosts: &Path, args: &[&str]) -> Terminal {
        let bed = self.folder.path().join("bed").display().to_string();
        let config = self.folder.path().join("config").display().to_string();
        let mut words = vec!["exec", "console", env!("CARGO_BIN_EXE_rankdeck")];
        words.extend(args);
        words.extend(["--hosts", hosts.to_str().unwrap()]);
        let envs = [
            ("TESTBED_DIR", bed.as_str()),
            ("TESTBED_MODE", "root"),
            ("RANKDECK_SSH_CONFIG", config.as_str()),
        ];
        Terminal::start_in(self.folder.path(), self.script.to_str().unwrap(), &words, &envs)
    }
}
