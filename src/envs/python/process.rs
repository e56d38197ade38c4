//! Starts a worker process, exchanges requests and replies with it, and ends it.
//!
//! Three pipes: requests (its standard input), answers (its standard output; `worker.py` moves what
//! environments print to standard error), and its standard error, which a thread passes on to the rank's log
//! and of which it keeps the last lines. Neither writing to a worker nor reading from it waits without end. The
//! program and the shared memory are anonymous files that the child inherits, so that nothing is left on a disk.

use super::Spaces;
use crate::log::warn;
use crate::{EnvError, WorkerImports, classic, indices, start};
use rankdeck_proto::secret::GroupSecret;
use rankdeck_proto::show::EnvImage;
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::{Env, EnvWorker};
use serde::Deserialize;
use serde_json::Value;
use std::collections::VecDeque;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

const PROGRAM: &str = include_str!("worker.py");

/// Runs the program from its file, and lets tracebacks show its lines.
const BEGIN: &str = "import linecache as l,os,sys;p=os.fdopen(int(sys.argv[2])).read();\
                     n='<rankdeck environment worker>';l.cache[n]=(len(p),None,p.splitlines(True),n);exec(compile(p,n,'exec'))";

/// Takes the current directory out of the module path, before anything is imported. Python 3.11 does so by
/// itself where `PYTHONSAFEPATH` is set.
const INSTALLED_ONLY: &str = "import sys;sys.path[:]=[p for p in sys.path if p];";

/// Longest message of a worker.
const LONGEST: usize = 1 << 20;
/// Between two checks of the worker's progress.
const POLL: Duration = Duration::from_millis(200);
/// Wait for a worker whose input has ended to close its environments.
const CLOSING: Duration = Duration::from_secs(1);
/// Waits for the end of a killed process, and for its last lines.
const DYING: Duration = Duration::from_secs(5);
/// Least of that wait, where other workers have used up the time.
const LEAST: Duration = Duration::from_millis(200);
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The worker's report of its failure.
#[derive(Deserialize)]
struct WorkerFailure {
    #[serde(flatten)]
    error: HintedError,
    usage: bool,
    traceback: String,
}

/// A worker process; dropping ends it.
pub struct PythonWorker {
    id: String,
    python: String,
    threads: u32,
    timeout: Duration,
    /// The environment is not built in, and `env.worker` is not `python`: the id may be a typo.
    is_fallback: bool,
    child: Child,
    requests: Option<ChildStdin>,
    answers: ChildStdout,
    memory: File,
    tail: Arc<LogTail>,
    /// It has not reset its environments yet.
    starting: bool,
    /// When the latest request was sent.
    asked: Instant,
    /// Its number among the workers of the rank, and its environments, as messages name them.
    part: String,
    /// Steps requested since the start.
    steps: u64,
    /// When it was asked to end.
    closed: Option<Instant>,
}

impl PythonWorker {
    /// Starts the interpreter; [`PythonWorker::spaces`] makes the environments.
    pub(crate) fn start(env: &Env, imports: WorkerImports) -> Result<PythonWorker, EnvError> {
        let failed = |what: String, hint: &str, usage: bool| EnvError::Worker {
            id: env.id.clone(),
            error: HintedError::new(what, hint),
            traceback: String::new(),
            usage,
        };
        let files = anonymous(c"rankdeck-env").and_then(|memory| Ok((memory, program()?)));
        let (memory, program) =
            files.map_err(|error| failed(format!("cannot create shared memory: {error}"), "", false))?;
        let threads = worker_threads(env);
        let inherited = [memory.as_raw_fd(), program.as_raw_fd()];
        let mut command = interpreter(env, (threads, imports), inherited);
        let mut child = command.spawn().map_err(|error| {
            failed(
                format!("cannot start its Python worker: {}: {error}", env.python),
                "install Python 3 on this host, set env.python to an interpreter, or create one with `rankdeck-trainer --setup-env DIR`",
                true,
            )
        })?;
        let (Some(requests), Some(answers), Some(errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(failed("its Python worker has no pipes".into(), "", false));
        };
        // A worker that does not read must not block the rank.
        // SAFETY: changes the flags of the rank's end of a pipe, which this function owns.
        if unsafe { libc::fcntl(requests.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } < 0 {
            let error = io::Error::last_os_error();
            return Err(failed(format!("cannot set up its Python worker's pipe: {error}"), "", false));
        }
        Ok(PythonWorker {
            id: env.id.clone(),
            python: env.python.clone(),
            threads,
            timeout: Duration::try_from_secs_f64(env.worker_timeout_s).unwrap_or(Duration::from_secs(60)),
            is_fallback: env.worker == EnvWorker::Auto && !env.is_atari(),
            child,
            requests: Some(requests),
            answers,
            memory,
            tail: LogTail::follow(errors),
            starting: true,
            asked: Instant::now(),
            part: String::new(),
            steps: 0,
            closed: None,
        })
    }

    /// Its number among the rank's workers, and its environments: `count` from the global index `first` on.
    pub(super) fn assign(&mut self, number: usize, first: u32, count: usize) {
        self.part = format!(" {number}, {}", indices(first, count));
    }

    /// What messages call it; `state` is the process's, or empty.
    fn name(&self, state: &str) -> String {
        let PythonWorker { part, python, steps, .. } = self;
        let step = if *steps > 0 { format!("step {steps}, ") } else { String::new() };
        let state = if state.is_empty() { String::new() } else { format!(", {state}") };
        format!("its worker{part} ({step}pid {}, {python}{state})", self.child.id())
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

    /// Lets the worker make environments; [`PythonWorker::spaces`] waits for them.
    pub(super) fn order(&mut self, config: &Value) -> Result<(), EnvError> {
        self.send(&config.to_string(), "what to make")?;
        self.asked = Instant::now();
        Ok(())
    }

    /// The spaces of the environments that were [ordered](PythonWorker::order).
    pub(super) fn spaces(&mut self) -> Result<Spaces, EnvError> {
        // Imports of large packages from a cold disk take their time.
        match self.answer("making the environments", self.timeout * 2, &mut || ())? {
            Some(text) => serde_json::from_slice(&text).map_err(|error| self.confused(&error.to_string())),
            None => Err(self.confused("no spaces")),
        }
    }

    /// Sends a line; `what` is for messages ("what to make").
    pub(super) fn send(&mut self, line: &str, what: &str) -> Result<(), EnvError> {
        if self.write(format!("{line}\n").as_bytes(), &format!("reading {what}"))? {
            return Ok(());
        }
        // If it died, its last lines explain why.
        let failure = self.answer(what, self.timeout, &mut || ()).err();
        Err(failure.unwrap_or_else(|| self.confused("a closed pipe")))
    }

    /// Sends a request; `doing` is for messages ("a step"). If the worker is gone, the answer fails.
    pub(super) fn request(&mut self, request: u8, doing: &str) -> Result<(), EnvError> {
        self.asked = Instant::now();
        self.steps += u64::from(request == b's');
        self.write(&[request], doing).map(drop)
    }

    /// Writes all of `bytes` before the worker's timeout is over; `false`: the worker has closed its pipe.
    fn write(&mut self, mut bytes: &[u8], doing: &str) -> Result<bool, EnvError> {
        let deadline = Instant::now() + self.timeout;
        while !bytes.is_empty() {
            let Some(requests) = &mut self.requests else { return Ok(false) };
            let fd = requests.as_raw_fd();
            let error = match requests.write(bytes) {
                Ok(count) => {
                    bytes = &bytes[count..];
                    continue;
                }
                Err(error) => error,
            };
            match error.kind() {
                io::ErrorKind::BrokenPipe => return Ok(false),
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if self.starting && start::is_abandoned() {
                        return Err(EnvError::Abandoned);
                    }
                    if left.is_zero() {
                        return Err(self.hangs((doing, self.timeout)));
                    }
                    ready(fd, libc::POLLOUT, left.min(POLL)).map_err(|error| {
                        self.refuse(format!("cannot wait for {}: {error}", self.name("")))
                    })?;
                }
                _ => return Err(self.refuse(format!("cannot write to {}: {error}", self.name("")))),
            }
        }
        Ok(true)
    }

    /// Waits until a request is done. `on_wait` is called now and then meanwhile.
    pub(super) fn answered(&mut self, asked: (u8, &str), on_wait: &mut dyn FnMut()) -> Result<(), EnvError> {
        let (request, doing) = asked;
        // The first reset of many emulators is as slow as their making.
        let within = if request == b'r' { self.timeout * 2 } else { self.timeout };
        match self.answer(doing, within, on_wait)? {
            None => Ok(()),
            Some(_) => Err(self.confused("spaces")),
        }
    }

    /// The first environment as it draws itself; `None` when it does not.
    pub(super) fn picture(&mut self) -> Result<Option<EnvImage>, EnvError> {
        let doing = "a picture";
        self.request(b'p', doing)?;
        let Some(bytes) = self.answer(doing, self.timeout, &mut || ())? else { return Ok(None) };
        let side = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        match (side(0), side(4), bytes.get(8..)) {
            (Some(width), Some(height), Some(pixels)) => Ok(Some(EnvImage::of(width, height, pixels))),
            _ => Err(self.confused("no picture")),
        }
    }

    /// `None`: done. Bytes: spaces, or a picture.
    fn answer(
        &mut self,
        doing: &str,
        within: Duration,
        on_wait: &mut dyn FnMut(),
    ) -> Result<Option<Vec<u8>>, EnvError> {
        // From the request on: workers work at the same time, and are waited for one after the other.
        let deadline = (self.asked + within).max(Instant::now() + POLL);
        let mut tag = [0];
        self.read(&mut tag, deadline, (doing, within), on_wait)?;
        if tag[0] == b'k' {
            return Ok(None);
        }
        let mut length = [0; 4];
        self.read(&mut length, deadline, (doing, within), on_wait)?;
        let length = u32::from_le_bytes(length) as usize;
        if !matches!(tag[0], b'S' | b'P' | b'E') || length > LONGEST {
            return Err(self.confused("neither a reply nor a message"));
        }
        let mut text = vec![0; length];
        self.read(&mut text, deadline, (doing, within), on_wait)?;
        if tag[0] != b'E' {
            return Ok(Some(text));
        }
        self.tail.wait_for_end(LAST_WORDS);
        match serde_json::from_slice::<WorkerFailure>(&text) {
            Ok(failure) => {
                let WorkerFailure { mut error, traceback, usage } = failure;
                if usage && self.is_fallback {
                    let known = classic::ids().join(", ");
                    error.hint.push_str(&format!("; built in: {known}"));
                }
                Err(EnvError::Worker { id: self.id.clone(), error, traceback, usage })
            }
            Err(error) => Err(self.confused(&error.to_string())),
        }
    }

    fn confused(&self, what: &str) -> EnvError {
        self.failed(
            format!("protocol error from {}: {what}", self.name("")),
            "set env.python to a Python 3 interpreter".into(),
            String::new(),
        )
    }

    /// Fills `buffer` before the deadline.
    fn read(
        &mut self,
        mut buffer: &mut [u8],
        deadline: Instant,
        asked: (&str, Duration),
        on_wait: &mut dyn FnMut(),
    ) -> Result<(), EnvError> {
        while !buffer.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            match ready(self.answers.as_raw_fd(), libc::POLLIN, left.min(POLL)) {
                Ok(true) => match self.answers.read(buffer) {
                    Ok(0) => return Err(self.died(asked.0)),
                    Ok(count) => buffer = &mut buffer[count..],
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        return Err(self.refuse(format!("cannot read from {}: {error}", self.name(""))));
                    }
                },
                Ok(false) if self.starting && start::is_abandoned() => return Err(EnvError::Abandoned),
                Ok(false) if left.is_zero() => return Err(self.hangs(asked)),
                Ok(false) => on_wait(),
                Err(error) => {
                    return Err(self.refuse(format!("cannot wait for {}: {error}", self.name(""))));
                }
            }
        }
        Ok(())
    }

    /// The pipe of answers has ended.
    fn died(&mut self, doing: &str) -> EnvError {
        self.tail.wait_for_end(LAST_WORDS);
        let now = Instant::now();
        let ended = self.reap(now + DYING / 2, now + DYING);
        let (how, hint) = match ended {
            Some(status) => describe(status),
            None => ("closed its pipe but is still running".into(), String::new()),
        };
        let last = self.tail.last().map(|line| format!("; last output: {line}")).unwrap_or_default();
        self.failed(format!("{} {how} during {doing}{last}", self.name("")), hint, self.tail.text())
    }

    /// The error of a worker that does not answer, with its stack.
    fn hangs(&mut self, (doing, within): (&str, Duration)) -> EnvError {
        let pid = self.child.id();
        let name = self.name(state_of(pid));
        let before = self.tail.count();
        // SAFETY: the child is not reaped yet, so its pid is still its own.
        unsafe { libc::kill(pid as libc::pid_t, libc::SIGUSR1) };
        let stack = self.tail.stack_after(before, LAST_WORDS * 4);
        let place = match stack.iter().find(|line| line.trim_start().starts_with("File ")) {
            Some(line) => format!("; it is at {}", line.trim()),
            None => String::new(),
        };
        let now = Instant::now();
        self.reap(now, now + DYING);
        self.failed(
            format!("{name} did not finish {doing} within {within:?}{place}"),
            "check its stack in the rank's log; if the environment is that slow, raise env.worker_timeout_s, and distributed.timeout_s to 2.5 times as much"
                .into(),
            stack.join("\n"),
        )
    }

    /// Waits for the end of the process, kills it at the instant `kill`; `None`: it is still there at `until`.
    fn reap(&mut self, kill: Instant, until: Instant) -> Option<ExitStatus> {
        let mut pause = Duration::from_millis(1);
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            let now = Instant::now();
            if now > until {
                return None;
            }
            if now >= kill {
                let _ = self.child.kill();
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Asks the worker to end, by the end of its input; dropping it waits.
    pub(super) fn close(&mut self) {
        self.requests = None;
        self.closed.get_or_insert_with(Instant::now);
    }
}

impl Drop for PythonWorker {
    /// Waits for the end of the process. Workers that were [closed](PythonWorker::close) together have their
    /// time together, however many they are.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        self.close();
        let kill = self.closed.unwrap_or_else(Instant::now) + CLOSING;
        let until = (kill + DYING).max(Instant::now() + LEAST);
        if self.reap(kill, until).is_none() {
            let name = self.name(state_of(self.child.id()));
            warn(&format!("environment {}: {name} is still there after SIGKILL", self.id));
        }
    }
}

fn describe(status: ExitStatus) -> (String, String) {
    match status.signal() {
        Some(libc::SIGKILL) => (
            "was killed by SIGKILL".into(),
            "it may have run out of memory (`dmesg | grep -i oom`): lower env.num_envs or add memory".into(),
        ),
        Some(libc::SIGSEGV) => {
            ("crashed (SIGSEGV)".into(), "check the Python stack in the rank's log".into())
        }
        Some(libc::SIGABRT) => ("aborted (SIGABRT)".into(), "check its output in the rank's log".into()),
        Some(signal) => (format!("was terminated by signal {signal}"), String::new()),
        None => {
            let code = status.code().unwrap_or(-1);
            (format!("exited with code {code}"), "check its output in the rank's log".into())
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
        Some('T' | 't') => "suspended",
        Some('Z') => "dead",
        _ => "in an unknown state",
    }
}

/// `events` are there, or the other end is closed. A signal may end the wait early.
fn ready(fd: RawFd, events: libc::c_short, within: Duration) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
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
fn interpreter(env: &Env, (threads, imports): (u32, WorkerImports), inherited: [RawFd; 2]) -> Command {
    let mut command = Command::new(&env.python);
    let begin = match imports {
        WorkerImports::CurrentDirectory => BEGIN.to_owned(),
        WorkerImports::Installed => {
            // An empty part means the current directory.
            let path = std::env::var_os("PYTHONPATH").unwrap_or_default();
            let parts = std::env::split_paths(&path).filter(|part| !part.as_os_str().is_empty());
            command.env("PYTHONPATH", std::env::join_paths(parts).unwrap_or_default());
            command.env("PYTHONSAFEPATH", "1");
            [INSTALLED_ONLY, BEGIN].concat()
        }
    };
    command
        .args(["-c", &begin, &inherited[0].to_string(), &inherited[1].to_string(), &env.id])
        .env("OMP_NUM_THREADS", numpy_threads(env, threads).to_string())
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
    // SAFETY: the name is a C string; the returned descriptor is not shared.
    unsafe {
        match libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(File::from_raw_fd(fd)),
        }
    }
}

/// `env.worker_threads`. Without it, Atari emulators take this rank's share of the cores, since the trainer
/// waits while they compute; others have what the rank has.
fn worker_threads(env: &Env) -> u32 {
    let threads = std::env::var("OMP_NUM_THREADS").ok().and_then(|threads| threads.parse().ok());
    env.worker_threads.unwrap_or_else(|| share(env.is_atari(), rank_cores(), threads))
}

/// Cores of this rank: all that it may use if it is bound to some of the host's (`launch.bind`), else its share.
pub(super) fn rank_cores() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let ranks = std::env::var("LOCAL_WORLD_SIZE").ok().and_then(|ranks| ranks.parse().ok());
    cores_of_rank(cores, ranks, std::env::var_os("RANKDECK_CPUS").is_some())
}

fn cores_of_rank(cores: usize, ranks: Option<usize>, is_bound: bool) -> usize {
    if is_bound { cores } else { cores / ranks.unwrap_or(1).max(1) }
}

fn share(emulators: bool, cores: usize, threads: Option<usize>) -> u32 {
    let threads = if emulators { cores } else { threads.unwrap_or(1) };
    threads.clamp(1, 4096) as u32
}

/// `OMP_NUM_THREADS` of a worker with this many threads. Emulators have threads of their own; those of NumPy's
/// would only spin next to them.
fn numpy_threads(env: &Env, threads: u32) -> u32 {
    if env.is_atari() { 1 } else { threads }
}

const LINES_KEPT: usize = 60;
const LONGEST_LINE: usize = 2000;

/// Copies a worker's standard error to the rank's log and keeps its last lines for error messages.
///
/// A thread per worker reads; it ends when the last process that holds the pipe's other end does. Bounded:
/// [`LINES_KEPT`] lines of at most [`LONGEST_LINE`] bytes; longer lines are cut into several.
struct LogTail {
    lines: Mutex<LastLines>,
    changed: Condvar,
}

#[derive(Default)]
struct LastLines {
    last: VecDeque<String>,
    /// Lines since the start.
    count: u64,
    ended: bool,
}

impl LogTail {
    /// Follows a pipe until its end.
    fn follow(pipe: ChildStderr) -> Arc<LogTail> {
        let tail = Arc::new(LogTail { lines: Mutex::default(), changed: Condvar::new() });
        let theirs = Arc::clone(&tail);
        let thread = std::thread::Builder::new().name("env-log".into());
        if thread.spawn(move || theirs.run(pipe)).is_err() {
            tail.lock().ended = true;
        }
        tail
    }

    fn run(&self, mut pipe: ChildStderr) {
        let (mut rest, mut chunk) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = pipe.read(&mut chunk) {
            for byte in &chunk[..count] {
                if *byte != b'\n' {
                    rest.push(*byte);
                }
                if *byte == b'\n' || rest.len() >= LONGEST_LINE {
                    self.add(&rest);
                    rest.clear();
                }
            }
        }
        if !rest.is_empty() {
            self.add(&rest);
        }
        self.lock().ended = true;
        self.changed.notify_all();
    }

    fn add(&self, line: &[u8]) {
        let line = String::from_utf8_lossy(line).trim_end().to_string();
        warn(&format!("env worker: {line}"));
        let mut lines = self.lock();
        if lines.last.len() == LINES_KEPT {
            lines.last.pop_front();
        }
        lines.last.push_back(line);
        lines.count += 1;
        drop(lines);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, LastLines> {
        self.lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Lines so far.
    fn count(&self) -> u64 {
        self.lock().count
    }

    /// The last line that is not empty.
    fn last(&self) -> Option<String> {
        self.lock().last.iter().rev().find(|line| !line.is_empty()).cloned()
    }

    /// All lines that are kept.
    fn text(&self) -> String {
        self.lock().last.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// Waits until the pipe has ended.
    fn wait_for_end(&self, within: Duration) {
        let lines = self.lock();
        let _unused = self.changed.wait_timeout_while(lines, within, |lines| !lines.ended);
    }

    /// The lines after the first `before` ones, once Python's stack of the main thread, which comes last, is
    /// among them.
    fn stack_after(&self, before: u64, within: Duration) -> Vec<String> {
        let deadline = Instant::now() + within;
        // The end of a stack is not marked; it is complete when no line follows its first frames for a while.
        const PAUSE: Duration = Duration::from_millis(100);
        let mut lines = self.lock();
        loop {
            let new = (lines.count - before).min(lines.last.len() as u64) as usize;
            let added: Vec<String> = lines.last.iter().skip(lines.last.len() - new).cloned().collect();
            let started = added.iter().position(|line| line.starts_with("Current thread"));
            let is_whole = started.is_some_and(|at| added.len() > at + 1);
            let wait = if is_whole { PAUSE } else { deadline.saturating_duration_since(Instant::now()) };
            let count = lines.count;
            let (guard, timeout) =
                match self.changed.wait_timeout_while(lines, wait, |l| l.count == count && !l.ended) {
                    Ok(waited) => waited,
                    Err(_) => return added,
                };
            lines = guard;
            if timeout.timed_out() || lines.ended && lines.count == count || Instant::now() >= deadline {
                return started.map_or(added.clone(), |at| added[at..].to_vec());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_has_its_share_of_cores_or_those_it_is_bound_to() {
        for (cores, ranks, is_bound, expected) in
            [(16, None, false, 16), (16, Some(4), false, 4), (2, Some(8), false, 0), (4, Some(4), true, 4)]
        {
            assert_eq!(cores_of_rank(cores, ranks, is_bound), expected);
        }
    }

    #[test]
    fn only_emulators_have_a_thread_per_core() {
        assert_eq!((share(true, 16, Some(3)), share(true, 0, None)), (16, 1));
        assert_eq!((share(false, 16, Some(3)), share(false, 16, None)), (3, 1));
    }

    #[test]
    fn numpy_has_one_thread_with_emulators() {
        for (id, expected) in [("ALE/Pong-v5", 1), ("HalfCheetah-v5", 3)] {
            assert_eq!(numpy_threads(&Env::new(id, 1), 3), expected, "{id}");
        }
    }
}
