//! The worker process: started, asked, listened to, ended.
//!
//! Owner: [`super::PythonVector`]. Three pipes: requests (its standard input), answers (its standard output;
//! `worker.py` moves what environments print to standard error), and its standard error, which a thread
//! passes on to the rank's log and of which it keeps the last lines. The program and the shared memory are
//! anonymous files that the child inherits, so that nothing is left on a disk.

use super::super::{EnvError, classic, start};
use super::Spaces;
use super::tail::LogTail;
use super::threads;
use rankdeck_proto::secret::GroupSecret;
use rankdeck_proto::show::Picture;
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::{Env, EnvWorker};
use serde::Deserialize;
use serde_json::Value;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PROGRAM: &str = include_str!("worker.py");

/// Runs the program from its file, and lets tracebacks show its lines.
const BEGIN: &str = "import linecache as l,os,sys;p=os.fdopen(int(sys.argv[2])).read();\
                     n='<rankdeck environment worker>';l.cache[n]=(len(p),None,p.splitlines(True),n);exec(compile(p,n,'exec'))";

/// Longest message of a worker.
const LONGEST: usize = 1 << 20;
/// Between two looks at how far the worker is.
const LOOK: Duration = Duration::from_millis(200);
/// Wait for a worker whose input has ended to close its environments.
const CLOSING: Duration = Duration::from_secs(1);
/// Waits for the end of a killed process, and for its last lines.
const DYING: Duration = Duration::from_secs(5);
const LAST_WORDS: Duration = Duration::from_millis(500);

/// What the worker says about its failure.
#[derive(Deserialize)]
struct WorkerFailure {
    #[serde(flatten)]
    error: HintedError,
    usage: bool,
    traceback: String,
}

/// A worker process; dropping ends it.
pub struct Worker {
    id: String,
    python: String,
    threads: u32,
    timeout: Duration,
    /// The environment is not built in, and `env.worker` does not say Python.
    chosen_for_want_of_rust: bool,
    child: Child,
    requests: Option<ChildStdin>,
    answers: ChildStdout,
    memory: File,
    tail: Arc<LogTail>,
    /// It has not reset its environments yet.
    starting: bool,
}

impl Worker {
    /// Starts the interpreter; [`Worker::spaces`] makes the environments.
    pub(super) fn start(env: &Env) -> Result<Worker, EnvError> {
        let failed = |what: String, hint: &str, usage: bool| EnvError::Worker {
            id: env.id.clone(),
            error: HintedError::new(what, hint),
            traceback: String::new(),
            usage,
        };
        let files = anonymous(c"rankdeck-env").and_then(|memory| Ok((memory, program()?)));
        let (memory, program) =
            files.map_err(|error| failed(format!("no memory to share: {error}"), "", false))?;
        let threads = threads::of_worker(env);
        let mut command = interpreter(env, threads, [memory.as_raw_fd(), program.as_raw_fd()]);
        let mut child = command.spawn().map_err(|error| {
            failed(
                format!("its Python worker cannot be started: {}: {error}", env.python),
                "install Python 3 on this host, or set env.python to an interpreter; `rankdeck-trainer --setup-env DIR` makes one",
                true,
            )
        })?;
        let (Some(requests), Some(answers), Some(errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(failed("its Python worker has no pipes".into(), "", false));
        };
        Ok(Worker {
            id: env.id.clone(),
            python: env.python.clone(),
            threads,
            timeout: Duration::try_from_secs_f64(env.worker_timeout_s).unwrap_or(Duration::from_secs(60)),
            chosen_for_want_of_rust: env.worker == EnvWorker::Auto && !env.looks_atari(),
            child,
            requests: Some(requests),
            answers,
            memory,
            tail: LogTail::follow(errors),
            starting: true,
        })
    }

    /// Environment id, as configured.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    #[cfg(test)]
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    #[cfg(test)]
    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Its environments can be stepped.
    pub(super) fn started(&mut self) {
        self.starting = false;
    }

    /// Threads for emulators.
    pub(super) fn threads(&self) -> u32 {
        self.threads
    }

    /// The shared memory's file.
    pub(super) fn memory(&self) -> &File {
        &self.memory
    }

    /// An error that is neither Python's nor the process's.
    pub(super) fn refuse(&self, what: String) -> EnvError {
        self.failed(what, String::new(), String::new())
    }

    fn failed(&self, what: String, hint: String, traceback: String) -> EnvError {
        let error = HintedError::new(what, hint);
        EnvError::Worker { id: self.id.clone(), error, traceback, usage: false }
    }

    /// Lets the worker make the environments; returns their spaces.
    pub(super) fn spaces(&mut self, config: &Value) -> Result<Spaces, EnvError> {
        self.send(&config.to_string(), "what to make")?;
        // Imports of large packages from a cold disk take their time.
        match self.answer("making the environments", self.timeout * 2, &mut || ())? {
            Some(text) => serde_json::from_slice(&text).map_err(|error| self.confused(&error.to_string())),
            None => Err(self.confused("no spaces")),
        }
    }
    pub(super) fn send(&mut self, line: &str, what: &str) -> Result<(), EnvError> {
        let sent = match &mut self.requests {
            Some(requests) => writeln!(requests, "{line}"),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        match sent {
            Ok(()) => Ok(()),
            // If it died, its last lines say why.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(self
                .answer(what, self.timeout, &mut || ())
                .err()
                .unwrap_or_else(|| self.confused("a closed pipe"))),
            Err(error) => Err(self.refuse(format!("its worker cannot be told {what}: {error}"))),
        }
    }

    /// Sends a request; `doing` is for messages ("a step").
    pub(super) fn request(&mut self, request: u8, doing: &str) -> Result<(), EnvError> {
        let sent = match &mut self.requests {
            Some(requests) => requests.write_all(&[request]),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        if let Err(error) = sent
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            return Err(self.refuse(format!("its worker cannot be asked for {doing}: {error}")));
        }
        Ok(())
    }

    /// Waits until a request is done. `look` is called now and then meanwhile.
    pub(super) fn answered(&mut self, asked: (u8, &str), look: &mut dyn FnMut()) -> Result<(), EnvError> {
        let (request, doing) = asked;
        // The first reset of many emulators is as slow as their making.
        let within = if request == b'r' { self.timeout * 2 } else { self.timeout };
        match self.answer(doing, within, look)? {
            None => Ok(()),
            Some(_) => Err(self.confused("spaces")),
        }
    }

    /// The first environment as it draws itself; `None` when it does not.
    pub(super) fn picture(&mut self) -> Result<Option<Picture>, EnvError> {
        let doing = "a picture";
        self.request(b'p', doing)?;
        let Some(bytes) = self.answer(doing, self.timeout, &mut || ())? else { return Ok(None) };
        let side = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        match (side(0), side(4), bytes.get(8..)) {
            (Some(width), Some(height), Some(pixels)) => Ok(Some(Picture::of(width, height, pixels))),
            _ => Err(self.confused("no picture")),
        }
    }

    /// `None`: done. Bytes: spaces, or a picture.
    fn answer(
        &mut self,
        doing: &str,
        within: Duration,
        look: &mut dyn FnMut(),
    ) -> Result<Option<Vec<u8>>, EnvError> {
        let deadline = Instant::now() + within;
        let mut tag = [0];
        self.read(&mut tag, deadline, (doing, within), look)?;
        if tag[0] == b'k' {
            return Ok(None);
        }
        let mut length = [0; 4];
        self.read(&mut length, deadline, (doing, within), look)?;
        let length = u32::from_le_bytes(length) as usize;
        if !matches!(tag[0], b'S' | b'P' | b'E') || length > LONGEST {
            return Err(self.confused("neither an answer nor a message"));
        }
        let mut text = vec![0; length];
        self.read(&mut text, deadline, (doing, within), look)?;
        if tag[0] != b'E' {
            return Ok(Some(text));
        }
        self.tail.wait_for_end(LAST_WORDS);
        match serde_json::from_slice::<WorkerFailure>(&text) {
            Ok(failure) => {
                let WorkerFailure { mut error, traceback, usage } = failure;
                if usage && self.chosen_for_want_of_rust {
                    let known = classic::KNOWN.join(", ");
                    error.hint.push_str(&format!("; without Python there are {known}"));
                }
                Err(EnvError::Worker { id: self.id.clone(), error, traceback, usage })
            }
            Err(error) => Err(self.confused(&error.to_string())),
        }
    }

    fn confused(&self, what: &str) -> EnvError {
        self.failed(
            format!("its worker ({}) does not speak the protocol: {what}", self.python),
            "env.python has to be a Python 3 interpreter".into(),
            String::new(),
        )
    }

    /// Fills `buffer` before the deadline.
    fn read(
        &mut self,
        mut buffer: &mut [u8],
        deadline: Instant,
        asked: (&str, Duration),
        look: &mut dyn FnMut(),
    ) -> Result<(), EnvError> {
        while !buffer.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            match readable(self.answers.as_raw_fd(), left.min(LOOK)) {
                Ok(true) => match self.answers.read(buffer) {
                    Ok(0) => return Err(self.died(asked.0)),
                    Ok(count) => buffer = &mut buffer[count..],
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(self.refuse(format!("its worker cannot be heard: {error}"))),
                },
                Ok(false) if self.starting && start::is_abandoned() => return Err(EnvError::Abandoned),
                Ok(false) if left.is_zero() => return Err(self.hangs(asked)),
                Ok(false) => look(),
                Err(error) => return Err(self.refuse(format!("its worker cannot be waited for: {error}"))),
            }
        }
        Ok(())
    }

    /// The pipe of answers has ended.
    fn died(&mut self, doing: &str) -> EnvError {
        self.tail.wait_for_end(LAST_WORDS);
        let pid = self.child.id();
        let ended = self.reap(DYING);
        let (how, hint) = match ended {
            Some(status) => describe(status),
            None => ("closed its pipe and does not end".into(), String::new()),
        };
        let last = self.tail.last().map(|line| format!("; its last line: {line}")).unwrap_or_default();
        self.failed(
            format!("its worker (pid {pid}, {}) {how} during {doing}{last}", self.python),
            hint,
            self.tail.text(),
        )
    }

    /// The error of a worker that does not answer, with its stack.
    fn hangs(&mut self, (doing, within): (&str, Duration)) -> EnvError {
        let pid = self.child.id();
        let state = state_of(pid);
        let before = self.tail.count();
        // SAFETY: the child is not reaped yet, so its pid is still its own.
        unsafe { libc::kill(pid as libc::pid_t, libc::SIGUSR1) };
        let stack = self.tail.stack_after(before, LAST_WORDS * 4);
        let place = match stack.iter().find(|line| line.trim_start().starts_with("File ")) {
            Some(line) => format!("; it is at {}", line.trim()),
            None => String::new(),
        };
        let _ = self.child.kill();
        self.reap(DYING);
        self.failed(
            format!(
                "its worker (pid {pid}, {}, {state}) did not finish {doing} within {within:?}{place}",
                self.python
            ),
            "raise env.worker_timeout_s if the environment is that slow, and distributed.timeout_s to 2.5 times as much, since the other ranks wait; its stack is in the rank's log"
                .into(),
            stack.join("\n"),
        )
    }

    /// Waits for the end of the process, kills it at half time.
    fn reap(&mut self, within: Duration) -> Option<ExitStatus> {
        let begun = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            if begun.elapsed() > within {
                return None;
            }
            if begun.elapsed() > within / 2 {
                let _ = self.child.kill();
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        // The end of its input asks the worker to end.
        self.requests = None;
        let _ = readable(self.answers.as_raw_fd(), CLOSING);
        let _ = self.child.kill();
        self.reap(DYING);
    }
}

fn describe(status: ExitStatus) -> (String, String) {
    match status.signal() {
        Some(libc::SIGKILL) => (
            "was killed by SIGKILL".into(),
            "the kernel does that when memory is short: `dmesg | grep -i oom`; lower env.num_envs or add memory"
                .into(),
        ),
        Some(libc::SIGSEGV) => {
            ("crashed (SIGSEGV)".into(), "the rank's log has the stack of Python at the crash".into())
        }
        Some(libc::SIGABRT) => {
            ("aborted (SIGABRT)".into(), "the rank's log has what it said before".into())
        }
        Some(signal) => (format!("was ended by signal {signal}"), String::new()),
        None => {
            let code = status.code().unwrap_or(-1);
            (format!("ended with exit code {code}"), "the rank's log has what it said before".into())
        }
    }
}

/// The state of a process, in a word.
fn state_of(pid: u32) -> &'static str {
    // Names of programs may be any bytes.
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    match String::from_utf8_lossy(&stat)
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.trim_start().chars().next())
    {
        Some('R') => "running",
        Some('S') => "sleeping",
        Some('D') => "in uninterruptible sleep",
        Some('T' | 't') => "stopped",
        Some('Z') => "dead",
        _ => "in an unknown state",
    }
}

/// Something can be read, or the other end is closed. A signal may end the wait early.
fn readable(fd: RawFd, within: Duration) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // Rounded up, so that a remainder below a millisecond does not become a busy loop.
    let millis = within.as_millis().saturating_add(1).min(i32::MAX as u128) as i32;
    let millis = if within.is_zero() { 0 } else { millis };
    // SAFETY: one valid pollfd.
    match unsafe { libc::poll(&mut poll, 1, millis) } {
        -1 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
        count => Ok(count > 0),
    }
}

/// The worker's program in an anonymous file.
fn program() -> io::Result<File> {
    let mut file = anonymous(c"rankdeck-env-worker")?;
    file.write_all(PROGRAM.as_bytes())?;
    io::Seek::rewind(&mut file)?;
    Ok(file)
}

/// The command of a worker that inherits shared memory and program, and dies with this thread.
fn interpreter(env: &Env, threads: u32, inherited: [RawFd; 2]) -> Command {
    let mut command = Command::new(&env.python);
    command
        .args(["-c", BEGIN, &inherited[0].to_string(), &inherited[1].to_string(), &env.id])
        .env("OMP_NUM_THREADS", threads::of_numpy(env, threads).to_string())
        // Environments are not ranks.
        .env_remove(GroupSecret::VARIABLE)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let parent = std::process::id();
    // SAFETY: between fork and exec only async-signal-safe calls are made: prctl, getppid, _exit, fcntl.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // The parent may have died before the line above.
            if libc::getppid() as u32 != parent {
                libc::_exit(1);
            }
            for fd in inherited {
                if libc::fcntl(fd, libc::F_SETFD, 0) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    command
}

/// An anonymous file in memory, closed on exec.
fn anonymous(name: &std::ffi::CStr) -> io::Result<File> {
    let name = CString::from(name);
    // SAFETY: the name is a C string; the descriptor that comes back is nobody else's.
    unsafe {
        match libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(File::from_raw_fd(fd)),
        }
    }
}
