//! Starts the trainer, plays its agent on an event socket, and leaves nothing behind.

use rankdeck_proto::message::{Counters, FailureKind, RankEvent};
use std::io::{BufRead, BufReader};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Nothing here takes longer unless it hangs.
pub const DEADLINE: Duration = Duration::from_secs(180);
/// How long the last events of a run may take to arrive.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Between two checks whether the run has ended.
const POLL: Duration = Duration::from_millis(100);

/// EventSender of the ranks in order of arrival, each with its rank.
#[derive(Default)]
struct HeardEvents {
    events: Mutex<Vec<(u32, RankEvent)>>,
    changed: Condvar,
}

/// A running trainer.
pub struct Run {
    child: Child,
    mark: String,
    folder: tempfile::TempDir,
    received: Arc<HeardEvents>,
    socket: PathBuf,
    acceptor: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// An experiment on CartPole-v1 with the rest of the file appended; `[run]` is left open for more keys.
pub fn experiment(total_steps: u64, run: &str, rest: &str) -> String {
    format!(
        "[run]\nname = 'test'\ntotal_steps = {total_steps}\n{run}\n[env]\nid = 'CartPole-v1'\nnum_envs = 4\n\
         [learn]\nalgorithm = 'ppo'\n{rest}\n"
    )
}

impl Run {
    /// Starts `rankdeck-trainer --config ... ARGS` in a folder of its own.
    pub fn start(experiment: &str, args: &[&str]) -> Run {
        Run::start_with(experiment, args, &[])
    }

    /// The same with variables added.
    pub fn start_with(experiment: &str, args: &[&str], env: &[(&str, &str)]) -> Run {
        Run::start_by(experiment, args, |command| {
            command.envs(env.iter().copied());
        })
    }

    /// The same, with the last word about how it is started. Without one it sees no GPU: what a test compares
    /// must not depend on the machine.
    pub fn start_by(experiment: &str, args: &[&str], last: impl FnOnce(&mut Command)) -> Run {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("experiment.toml");
        std::fs::write(&config, experiment).unwrap();
        let socket = folder.path().join("events.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let received = Arc::new(HeardEvents::default());
        let theirs = Arc::clone(&received);
        let acceptor = std::thread::spawn(move || accept(&listener, &theirs));
        let mark = format!("test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let log = |name: &str| Stdio::from(std::fs::File::create(folder.path().join(name)).unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_rankdeck-trainer"));
        for key in [
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "MASTER_ADDR",
            "MASTER_PORT",
            "SLURM_STEP_ID",
        ] {
            command.env_remove(key);
        }
        if !args.contains(&"--run-dir") {
            command.args(["--run-dir".as_ref(), folder.path().join("run").as_os_str()]);
        }
        command
            .args(["--config".as_ref(), config.as_os_str()])
            .args(args)
            .env("RANKDECK_EVENTS", &socket)
            .env("RANKDECK_TEST_MARK", &mark)
            .env("OMP_NUM_THREADS", "1")
            .env("CUDA_VISIBLE_DEVICES", "")
            .stdin(Stdio::null())
            .stdout(log("stdout"))
            .stderr(log("stderr"));
        last(&mut command);
        let child = command.spawn().unwrap();
        Run { child, mark, folder, received, socket, acceptor: Mutex::new(Some(acceptor)) }
    }

    /// The process that was started has not ended.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// The run directory.
    pub fn run_dir(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// Process id of what was started.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to what was started.
    pub fn signal(&self, signal: i32) {
        kill(self.pid(), signal);
    }

    /// All events so far.
    pub fn events(&self) -> Vec<(u32, RankEvent)> {
        self.received.events.lock().unwrap().clone()
    }

    /// It is a zombie, or gone: who waits for it does not reap it.
    fn has_ended(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
    }

    /// Waits until `found` holds for the events; not for a run that has ended.
    pub fn wait_for(&self, what: &str, found: impl Fn(&[(u32, RankEvent)]) -> bool) {
        let mut deadline = Instant::now() + DEADLINE;
        let mut ended = false;
        let mut events = self.received.events.lock().unwrap();
        while !found(&events) {
            if !ended && self.has_ended() {
                (ended, deadline) = (true, deadline.min(Instant::now() + LAST_WORDS));
            }
            let why = if ended { "before the end" } else { "in time" };
            assert!(Instant::now() < deadline, "no {what} {why}\n{}", self.logs());
            events = self.received.changed.wait_timeout(events, POLL).unwrap().0;
        }
    }

    /// Waits for the end.
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "still running after {DEADLINE:?}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the end, which must be exit code `code`, and for every process of the run to be gone.
    pub fn end_with(&mut self, code: i32) {
        let status = self.wait();
        assert_eq!(status.code(), Some(code), "{status}\n{}", self.logs());
        self.nothing_left();
    }

    /// Waits until no process carries this run's mark and all their events have arrived.
    pub fn nothing_left(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let left = self.processes();
            if left.is_empty() {
                return self.hear_out();
            }
            assert!(Instant::now() < deadline, "processes left: {left:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for the ends of all connections; later ones are not read.
    fn hear_out(&self) {
        if let Some(acceptor) = self.acceptor.lock().unwrap().take() {
            let _ = UnixStream::connect(&self.socket)
                .map(|mut stream| std::io::Write::write_all(&mut stream, b"end\n"));
            let _ = acceptor.join();
        }
    }

    /// Living processes of this run, itself included.
    pub fn processes(&self) -> Vec<u32> {
        let pids = std::fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(|pid| {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let mark_variable = format!("RANKDECK_TEST_MARK={}", self.mark);
            environ.split(|byte| *byte == 0).any(|pair| pair == mark_variable.as_bytes())
        })
        .collect()
    }

    /// Process id of a rank that `--spawn` starts: one after the other, as children of its own.
    pub fn rank_pid(&self, rank: u32) -> u32 {
        let parent = self.pid().to_string();
        // After the name in brackets: state, parent, and as the twentieth the time of its start.
        let started = |pid: u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let mut fields = stat.rsplit(") ").next()?.split(' ').skip(1);
            (fields.next()? == parent).then_some(())?;
            Some((fields.nth(17)?.parse::<u64>().ok()?, pid))
        };
        let deadline = Instant::now() + DEADLINE;
        loop {
            let mut ranks: Vec<(u64, u32)> = self.processes().into_iter().filter_map(started).collect();
            ranks.sort();
            if let Some((_, pid)) = ranks.get(rank as usize) {
                return *pid;
            }
            assert!(Instant::now() < deadline, "rank {rank} is not started\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// stdout and stderr, for messages.
    pub fn logs(&self) -> String {
        let read = |name: &str| std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        format!("--- stdout\n{}--- stderr\n{}", read("stdout"), read("stderr"))
    }

    /// A file of the run directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.run_dir().join(name)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // The ranks of a group die with their parent.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.hear_out();
    }
}

/// Sends a signal.
pub fn kill(pid: u32, signal: i32) {
    // SAFETY: plain system call; the process was started by this test and is not reaped before its `Run` is
    // dropped.
    unsafe { libc::kill(pid as i32, signal) };
}

fn accept(listener: &UnixListener, received: &Arc<HeardEvents>) {
    let mut readers = Vec::new();
    for stream in listener.incoming() {
        let mut lines = BufReader::new(stream.unwrap()).lines();
        let Some(Ok(first)) = lines.next() else { continue };
        if first == "end" {
            break;
        }
        let RankEvent::Hello { rank, .. } = serde_json::from_str(&first).unwrap() else {
            panic!("a connection begins with hello, not {first}");
        };
        let received = Arc::clone(received);
        readers.push(std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let event = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
                received.events.lock().unwrap().push((rank.0, event));
                received.changed.notify_all();
            }
        }));
    }
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

/// The error that ended a rank, as its agent gets it.
#[derive(Debug, Clone)]
pub struct RankError {
    pub rank: u32,
    pub message: String,
    pub hint: String,
    pub usage: bool,
    pub kind: FailureKind,
}

/// Errors of all ranks, in order of arrival.
pub fn errors(events: &[(u32, RankEvent)]) -> Vec<RankError> {
    let pick = |(rank, event): &(u32, RankEvent)| match event.clone() {
        RankEvent::Error { message, hint, usage, failure } => {
            let kind = failure.unwrap_or(FailureKind::Other);
            Some(RankError { rank: *rank, message, hint, usage, kind })
        }
        _ => None,
    };
    events.iter().filter_map(pick).collect()
}

/// All counters of a rank, in order.
pub fn counters(events: &[(u32, RankEvent)], of: u32) -> Vec<Counters> {
    let pick = |(rank, event): &(u32, RankEvent)| match event {
        RankEvent::Counters(counters) if *rank == of => Some(*counters),
        _ => None,
    };
    events.iter().filter_map(pick).collect()
}

/// All totals, in order.
pub fn totals(events: &[(u32, RankEvent)]) -> Vec<Counters> {
    let pick = |(_, event): &(u32, RankEvent)| match event {
        RankEvent::Totals(counters) => Some(*counters),
        _ => None,
    };
    events.iter().filter_map(pick).collect()
}

/// Runs a Python program that needs packages; `None` has been noted as a skip.
pub fn python(packages: &str, program: &[&std::ffi::OsStr]) -> Option<String> {
    let mut command = Command::new(rankdeck_testkit::python(packages)?);
    // Threads of torch's that wait for each other spin, and take the cores from the other tests.
    let output = command.args(program).env("OMP_NUM_THREADS", "1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}
