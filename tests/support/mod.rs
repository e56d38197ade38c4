//! Fixtures of integration tests: a console process with its JSON lines, run folders, hosts files, process
//! cleanup.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod hosts;
pub mod podman;
pub mod random;
pub mod slurm;
pub mod sshd;
pub mod terminal;
pub mod texts;

use rankdeck_testkit::{repository, skipped};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The console under test.
pub fn rankdeck() -> Command {
    Command::new(env!("CARGO_BIN_EXE_rankdeck"))
}

/// Returns the console without symbols, with the trainer next to it, for tests that upload it over SSH: half
/// the size halves the time to encrypt, write and hash it.
pub fn stripped_console() -> PathBuf {
    let console = Path::new(env!("CARGO_BIN_EXE_rankdeck"));
    let folder = console.with_file_name("stripped");
    std::fs::create_dir_all(&folder).unwrap();
    // Each test is its own process; the first one creates it for all.
    let lock = std::fs::File::create(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    let changed = |path: &Path| std::fs::metadata(path).and_then(|file| file.modified()).ok();
    for name in ["rankdeck", "rankdeck-trainer"] {
        let (built, there) = (console.with_file_name(name), folder.join(name));
        if changed(&built).is_none() || changed(&there) >= changed(&built) {
            continue;
        }
        let new = there.with_extension("new");
        // The trainer keeps its symbols for the evidence.
        let made = name == "rankdeck" && {
            let mut strip = Command::new("strip");
            strip.arg("--strip-all").arg("-o").args([&new, &built]);
            strip.status().is_ok_and(|status| status.success())
        };
        if !made {
            std::fs::copy(&built, &new).unwrap();
        }
        std::fs::rename(new, there).unwrap();
    }
    let (console, hash) = (folder.join("rankdeck"), folder.join("rankdeck.sha256"));
    if changed(&hash) < changed(&console) {
        std::fs::write(hash, sha256(&console)).unwrap();
    }
    console
}

fn sha256(file: &Path) -> String {
    let output = Command::new("openssl").args(["dgst", "-sha256", "-r"]).arg(file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the trainer next to the console; `None` if the test is skipped.
pub fn trainer() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_BIN_EXE_rankdeck")).with_file_name("rankdeck-trainer");
    if path.is_file() {
        return Some(path);
    }
    skipped("no trainer next to the console; cargo build -p rankdeck-trainer");
    None
}

/// Folder of libtorch on this machine.
pub fn libtorch() -> PathBuf {
    std::env::var_os("LIBTORCH").map_or_else(|| repository(".libtorch/torch"), PathBuf::from)
}

/// Returns tests/programs/rank.py as the content of `command = [...]`, without a file on the host.
pub fn rank_program(args: &[&str]) -> String {
    let program = std::fs::read_to_string(repository("tests/programs/rank.py")).unwrap();
    let words = ["python3", "-u", "-c", &program].into_iter().chain(args.iter().copied());
    words.map(|word| Value::from(word).to_string()).collect::<Vec<_>>().join(", ")
}

/// Folder of one test: hosts.toml, experiments and the run folders of local hosts. Its processes are killed
/// on drop.
pub struct Bench {
    /// The folder.
    pub folder: tempfile::TempDir,
}

impl Bench {
    /// Creates an empty folder.
    pub fn new() -> Bench {
        Bench { folder: tempfile::Builder::new().prefix("rankdeck-test-").tempdir().unwrap() }
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Writes a hosts.toml with `nodes` local hosts with `nproc` ranks each.
    pub fn local_hosts(&self, nodes: usize, nproc: usize) -> PathBuf {
        let mut text = format!("[defaults]\ntransport = \"local\"\nworkdir = {:?}\n", self.path());
        for node in 0..nodes {
            text += &format!("[[host]]\nname = \"local{node}\"\nnproc = {nproc}\n");
        }
        self.write("hosts.toml", &text)
    }

    /// Writes an experiment that runs tests/programs/rank.py with `args`.
    pub fn program(&self, args: &[&str]) -> PathBuf {
        let script = repository("tests/programs/rank.py");
        let mut command = vec!["python3".to_string(), "-u".into(), script.display().to_string()];
        command.extend(args.iter().map(|arg| arg.to_string()));
        self.write(
            "experiment.toml",
            &format!("[run]\nname = \"program\"\n[launch]\ncommand = {command:?}\nstop_grace_s = 3.0\n"),
        )
    }

    /// Returns all processes of runs in this folder, including agents.
    pub fn processes(&self) -> Vec<(u32, String)> {
        let needle = self.path().display().to_string();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            if pid == std::process::id() {
                continue;
            }
            let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let stat = String::from_utf8_lossy(&read("stat")).into_owned();
            let zombie =
                stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z') || rest.starts_with('X'));
            let [environment, command] =
                ["environ", "cmdline"].map(|file| String::from_utf8_lossy(&read(file)).replace('\0', " "));
            // A process without a command line is exiting.
            let is_there = !zombie && !command.is_empty();
            if is_there && (environment.contains(&needle) || command.contains(&needle)) {
                found.push((pid, command));
            }
        }
        found
    }

    /// Returns the processes of ranks and their descendants, without consoles, agents and guards.
    pub fn rank_processes(&self) -> Vec<(u32, String)> {
        // A preflight also starts the interpreter of the ranks, with its own script.
        let is_rank = |command: &str| !["rankdeck ", "RANKDECK-"].iter().any(|other| command.contains(other));
        self.processes().into_iter().filter(|(_, command)| is_rank(command)).collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline {
            let left = self.processes();
            if left.is_empty() {
                break;
            }
            for (pid, _) in left {
                kill(pid, libc::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // An agent and its guard that were killed together could not clean up.
        for run in std::fs::read_dir(self.path().join("runs")).into_iter().flatten().flatten() {
            let _ = rankdeck()
                .args(["agent", "sweep", "--run"])
                .arg(run.file_name())
                .arg("--workdir")
                .arg(self.path())
                .output();
        }
    }
}

/// Sends a signal; ignores processes that have ended.
pub fn kill(pid: u32, signal: i32) {
    // SAFETY: kill has no memory effects.
    unsafe { libc::kill(pid as i32, signal) };
}

/// Returns the deadline of a wait of at most `seconds` on an idle machine. With nine other tests on two cores
/// it may take three times as long.
fn deadline(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(3 * seconds)
}

/// Polls until `done`; panics after the deadline.
pub fn wait_until(what: &str, seconds: u64, mut done: impl FnMut() -> bool) {
    let deadline = deadline(seconds);
    loop {
        let began = Instant::now();
        if done() {
            return;
        }
        assert!(Instant::now() < deadline, "not within 3 x {seconds} s: {what}");
        // Some checks run commands; leave most of the machine to the program under test.
        std::thread::sleep((began.elapsed() * 3).max(Duration::from_millis(20)));
    }
}

/// A console that prints JSON lines.
pub struct Console {
    child: Child,
    lines: Receiver<Value>,
    /// All lines so far.
    pub seen: Vec<Value>,
    stderr: Option<std::thread::JoinHandle<String>>,
}

impl Console {
    /// Starts `rankdeck ARGS --headless --json` in the folder of the hosts file, so that its record is there.
    pub fn start(args: &[&str]) -> Console {
        let mut command = rankdeck();
        command.args(args).args(["--headless", "--json"]);
        let hosts = args.iter().skip_while(|arg| **arg != "--hosts").nth(1).expect("--hosts FILE");
        command.current_dir(Path::new(hosts).parent().expect("a folder of the hosts file"));
        Console::spawn(command)
    }

    /// Starts a prepared command whose stdout is JSON lines.
    pub fn spawn(mut command: Command) -> Console {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("not JSON ({e}): {line}"));
                if sender.send(value).is_err() {
                    break;
                }
            }
        });
        let mut stderr = child.stderr.take().unwrap();
        let stderr = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        Console { child, lines, seen: Vec::new(), stderr: Some(stderr) }
    }

    /// Returns its process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a matching line, including earlier ones.
    pub fn wait_for(&mut self, what: &str, seconds: u64, fits: impl Fn(&Value) -> bool) -> Value {
        if let Some(value) = self.seen.iter().find(|value| fits(value)) {
            return value.clone();
        }
        self.wait_for_new(what, seconds, fits)
    }

    /// Waits for a matching line after this call.
    pub fn wait_for_new(&mut self, what: &str, seconds: u64, fits: impl Fn(&Value) -> bool) -> Value {
        let deadline = deadline(seconds);
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(value) => {
                    self.seen.push(value.clone());
                    if fits(&value) {
                        return value;
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.fail(&format!("not within 3 x {seconds} s: {what}")),
                Err(RecvTimeoutError::Disconnected) => self.fail(&format!("console ended before: {what}")),
            }
        }
    }

    /// Reads lines for `time`.
    pub fn drain(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        while let Ok(value) = self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            self.seen.push(value);
        }
    }

    /// Waits for a line of a kind, including earlier ones.
    pub fn wait_kind(&mut self, kind: &str, seconds: u64) -> Value {
        self.wait_for(kind, seconds, |value| value["kind"] == kind)
    }

    /// Returns all lines of a kind so far.
    pub fn all(&self, kind: &str) -> Vec<Value> {
        self.seen.iter().filter(|value| value["kind"] == kind).cloned().collect()
    }

    /// Waits for the end; adds the remaining lines to `seen`.
    pub fn finish(&mut self, seconds: u64) -> ExitStatus {
        let deadline = deadline(seconds);
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(value) => self.seen.push(value),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    self.fail(&format!("console did not end within 3 x {seconds} s"))
                }
            }
        }
        self.child.wait().unwrap()
    }

    /// Returns its stderr after its end.
    pub fn stderr(&mut self) -> String {
        self.stderr.take().map(|thread| thread.join().unwrap()).unwrap_or_default()
    }

    /// Returns its last line and its stderr after its end, for messages of assertions.
    pub fn transcript(&mut self) -> String {
        let stderr = self.stderr();
        format!("{:?}\n{stderr}", self.seen.last())
    }

    /// Sends a signal, and waits for the end after SIGKILL: dropping a console that is still exiting also
    /// kills its children.
    pub fn signal(&mut self, signal: i32) {
        kill(self.child.id(), signal);
        if signal == libc::SIGKILL {
            let _ = self.child.wait();
        }
    }

    /// Kills the process and its children, which would keep the pipes open: scripts do not forward signals.
    fn end(&mut self) {
        let pid = self.child.id();
        let below = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        below.split_whitespace().filter_map(|pid| pid.parse().ok()).for_each(|pid| kill(pid, libc::SIGKILL));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn fail(&mut self, what: &str) -> ! {
        self.end();
        let lines: Vec<String> = self.seen.iter().rev().take(40).map(|v| v.to_string()).collect();
        let stderr = self.stderr();
        panic!("{what}\nlast lines, newest first:\n{}\nstderr:\n{stderr}", lines.join("\n"));
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        // Reaped already where it has ended: its number may be another's by now.
        if self.child.try_wait().ok().flatten().is_none() {
            self.end();
        }
    }
}
