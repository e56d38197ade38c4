//! The process of a rank: its start, its output, its end.

use std::collections::BTreeMap;
use std::io::{PipeReader, PipeWriter, Read, pipe};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Of an environment: what is set, and what is not to be there.
pub type Variables = BTreeMap<String, Option<String>>;

/// Killed and reaped when it goes.
pub struct RankProcess {
    pid: i32,
    status: Option<ExitStatus>,
    pipes: Option<[PipeReader; 2]>,
    output: Option<[JoinHandle<String>; 2]>,
}

impl RankProcess {
    /// Runs [`super::run_role`] in a process with these variables, which may inherit a descriptor.
    ///
    /// Where no other thread of this process does anything, it is forked, for it takes a sixth of a second to
    /// load libtorch; but `LD_LIBRARY_PATH` is read by the loader of a new process only.
    pub fn start(variables: &Variables, inherited: Option<BorrowedFd>) -> RankProcess {
        let alone = std::env::var_os("NEXTEST").is_some();
        let ((out, to_out), (err, to_err)) = (pipe().unwrap(), pipe().unwrap());
        let pid = if alone && !variables.contains_key("LD_LIBRARY_PATH") {
            fork(variables, inherited, [&to_out, &to_err])
        } else {
            execute(variables, inherited, [to_out, to_err])
        };
        RankProcess { pid, status: None, pipes: Some([out, err]), output: None }
    }

    /// Reads its output in threads. A thread that begins or ends holds locks of the loader, which a process
    /// that is forked at that moment finds locked for good: call this when all ranks are started.
    pub fn read_output(&mut self) {
        self.output = self.pipes.take().map(|pipes| pipes.map(drain));
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits for its end, and kills it at the deadline; its output and errors.
    pub fn end(&mut self, deadline: Instant) -> (ExitStatus, [String; 2]) {
        while self.status.is_none() {
            self.reap(libc::WNOHANG);
            if self.status.is_none() && Instant::now() > deadline {
                self.kill();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let output = self.output.take().unwrap().map(|reader| reader.join().unwrap());
        (self.status.unwrap(), output)
    }

    fn reap(&mut self, flags: i32) {
        let mut status = 0;
        // SAFETY: the status is this function's; the child is not reaped yet.
        if self.status.is_none() && unsafe { libc::waitpid(self.pid, &mut status, flags) } == self.pid {
            self.status = Some(ExitStatus::from_raw(status));
        }
    }

    fn kill(&mut self) {
        if self.status.is_none() {
            // SAFETY: the child is not reaped yet, so its pid is still its own.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
            self.reap(0);
        }
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A child of this process that continues from here.
fn fork(variables: &Variables, inherited: Option<BorrowedFd>, [out, err]: [&PipeWriter; 2]) -> i32 {
    // SAFETY: the other threads of this process only wait, so that the child may do whatever the parent may.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: descriptors and variables of this process, which has one thread. It must not outlive a
            // test that is killed.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY);
                for (from, to) in [(null, 0), (out.as_raw_fd(), 1), (err.as_raw_fd(), 2)] {
                    libc::dup2(from, to);
                }
                close_all_but(inherited);
                for (name, value) in variables {
                    match value {
                        Some(value) => std::env::set_var(name, value),
                        None => std::env::remove_var(name),
                    }
                }
            }
            let failed = catch_unwind(AssertUnwindSafe(super::run_role)).is_err();
            std::process::exit(if failed { 101 } else { 0 });
        }
        pid if pid > 0 => pid,
        _ => panic!("fork: {}", std::io::Error::last_os_error()),
    }
}

/// Closes what is the parent's; two processes that listen on one socket would take each other's connections.
fn close_all_but(kept: Option<BorrowedFd>) {
    let close = |first: u32, last: u32| {
        if first <= last {
            // SAFETY: nothing of this process uses them any more.
            unsafe { libc::close_range(first, last, 0) };
        }
    };
    match kept.map(|kept| kept.as_raw_fd() as u32) {
        Some(kept) => {
            close(3, kept - 1);
            close(kept + 1, u32::MAX);
        }
        None => close(3, u32::MAX),
    }
}

/// This binary, from its beginning.
fn execute(variables: &Variables, inherited: Option<BorrowedFd>, [out, err]: [PipeWriter; 2]) -> i32 {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "distributed::rank_process", "--ignored", "--nocapture", "--test-threads=1"]);
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    for (name, value) in variables {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let inherited = inherited.map(|fd| fd.as_raw_fd());
    // SAFETY: prctl and fcntl are async-signal-safe. Ranks must not outlive a test that is killed.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            match inherited {
                Some(fd) if libc::fcntl(fd, libc::F_SETFD, 0) != 0 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            }
        });
    }
    // Reaped by its pid.
    command.spawn().unwrap().id() as i32
}

fn drain(mut from: PipeReader) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
