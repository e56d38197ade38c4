//! A process that tests look at, ended with all that it has started.

use crate::proc::{self, Ident};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A process of a test.
pub(super) struct Victim(pub Child);

impl Victim {
    pub fn start(program: &str, args: &[&str]) -> Victim {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Victim(command.spawn().unwrap())
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn ident(&self) -> Ident {
        let stat = proc::stat(self.pid()).unwrap();
        Ident { pid: stat.pid, start: stat.start }
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: kill takes integers; the child is ours and not reaped.
        unsafe { libc::kill(self.pid() as i32, signal) };
    }

    /// One look.
    pub fn looked_at(&self) -> rankdeck_proto::inspection::Inspection {
        let ident = Some(self.ident());
        super::inspect(vec![super::Subject { ident, ..Default::default() }]).remove(0)
    }

    pub fn until(&self, what: &str, mut fits: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !fits() {
            assert!(begun.elapsed() < Duration::from_secs(60), "not within 60 s: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        for child in proc::descendants(self.pid()) {
            let start = proc::stat(child).map_or(0, |stat| stat.start);
            crate::supervise::groups::signal(child, start, libc::SIGKILL);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
