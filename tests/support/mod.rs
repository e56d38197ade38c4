//! What integration tests share: a console process with its JSON lines, run directories, hosts files,
//! processes to clean up.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod hosts;
pub mod random;
pub mod slurm;
pub mod sshd;
pub mod terminal;

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

/// The console without symbols, with the trainer beside it: what tests use that send it to hosts over SSH.
/// Half the size is half the time to encrypt, write and hash it there.
pub fn stripped_console() -> PathBuf {
    let console = Path::new(env!("CARGO_BIN_EXE_rankdeck"));
    let folder = console.with_file_name("stripped");
    std::fs::create_dir_all(&folder).unwrap();
    // Each test is a process of its own: the first one makes it for all.
    let lock = std::fs::File::create(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    let changed = |path: &Path| std::fs::metadata(path).and_then(|file| file.modified()).ok();
    for name in ["rankdeck", "rankdeck-trainer"] {
        let (built, there) = (console.with_file_name(name), folder.join(name));
        if changed(&built).is_none() || changed(&there) >= changed(&built) {
            continue;
        }
        let new = there.with_extension("new");
        // The trainer keeps its symbols: evidence names its functions.
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
    let told = Command::new("openssl").args(["dgst", "-sha256", "-r"]).arg(file).output().unwrap();
    assert!(told.status.success(), "{told:?}");
    String::from_utf8(told.stdout).unwrap()
}

/// The trainer, which is built beside the console; `None` has been noted as a skip.
pub fn trainer() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_BIN_EXE_rankdeck")).with_file_name("rankdeck-trainer");
    if path.is_file() {
        return Some(path);
    }
    skipped("no trainer beside the console; cargo build -p rankdeck-trainer");
    None
}

/// Folder of libtorch on this machine.
pub fn libtorch() -> PathBuf {
    std::env::var_os("LIBTORCH").map_or_else(|| repository(".libtorch/torch"), PathBuf::from)
}

/// tests/programs/rank.py as a command that needs no file on the host: what stands in `command = [...]`.
pub fn rank_program(args: &[&str]) -> String {
    let program = std::fs::read_to_string(repository("tests/programs/rank.py")).unwrap();
    let words = ["python3", "-u", "-c", &program].into_iter().chain(args.iter().copied());
    words.map(|word| Value::from(word).to_string()).collect::<Vec<_>>().join(", ")
}

/// A folder of its own for one test: hosts.toml, experiments and the run directories of local hosts. Whatever
/// still runs there is killed on drop.
pub struct Bench {
    /// The folder.
    pub folder: tempfile::TempDir,
}

impl Bench {
    /// An empty folder.
    pub fn new() -> Bench {
        Bench { folder: tempfile::Builder::new().prefix("rankdeck-test-").tempdir().unwrap() }
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Writes a hosts.toml of `nodes` local hosts with `nproc` ranks each.
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

    /// Pids of all processes that carry the mark of a run of this folder, agents included.
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
            // Without a command line it has given up its memory since: it ends, whatever it was.
            let is_there = !zombie && !command.is_empty();
            if is_there && (environment.contains(&needle) || command.contains(&needle)) {
                found.push((pid, command));
            }
        }
        found
    }

    /// Processes of ranks and their descendants only: no console, agent or guard.
    pub fn rank_processes(&self) -> Vec<(u32, String)> {
        self.processes().into_iter().filter(|(_, command)| !command.contains("rankdeck ")).collect()
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
        // An agent and its guard that were killed together have removed nothing.
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

/// Sends a signal; a process that is gone is fine.
pub fn kill(pid: u32, signal: i32) {
    // SAFETY: kill has no memory effects.
    unsafe { libc::kill(pid as i32, signal) };
}

/// When a wait is given up that takes at most `seconds` on a quiet machine: beside nine other tests on two
/// cores it may take three times as long, and one that is over sooner costs nothing.
fn deadline(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(3 * seconds)
}

/// Polls until `done` or panics when `seconds` of a quiet machine are over.
pub fn wait_until(what: &str, seconds: u64, mut done: impl FnMut() -> bool) {
    let deadline = deadline(seconds);
    loop {
        let asked = Instant::now();
        if done() {
            return;
        }
        assert!(Instant::now() < deadline, "not within 3 x {seconds} s: {what}");
        // Some questions are commands: most of the machine is left to what is waited for.
        std::thread::sleep((asked.elapsed() * 3).max(Duration::from_millis(20)));
    }
}

/// A console that prints JSON lines.
pub struct Console {
    child: Child,
    lines: Receiver<Value>,
    /// Everything seen so far.
    pub seen: Vec<Value>,
    stderr: Option<std::thread::JoinHandle<String>>,
}

impl Console {
    /// Starts `rankdeck ARGS --headless --json` where the hosts file is, so that its record goes there.
    pub fn start(args: &[&str]) -> Console {
        let mut command = rankdeck();
        command.args(args).args(["--headless", "--json"]);
        let hosts = args.iter().skip_while(|arg| **arg != "--hosts").nth(1).expect("--hosts FILE");
        command.current_dir(Path::new(hosts).parent().expect("the hosts file lies in a folder"));
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

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line that fits, seen lines included.
    pub fn wait_for(&mut self, what: &str, seconds: u64, fits: impl Fn(&Value) -> bool) -> Value {
        if let Some(value) = self.seen.iter().find(|value| fits(value)) {
            return value.clone();
        }
        self.wait_for_new(what, seconds, fits)
    }

    /// Waits for a line that fits and comes after this call.
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

    /// Takes what comes within `time`.
    pub fn drain(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        while let Ok(value) = self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            self.seen.push(value);
        }
    }

    /// Waits for a kind.
    pub fn wait_kind(&mut self, kind: &str, seconds: u64) -> Value {
        self.wait_for(kind, seconds, |value| value["kind"] == kind)
    }

    /// All lines of a kind so far.
    pub fn all(&self, kind: &str) -> Vec<Value> {
        self.seen.iter().filter(|value| value["kind"] == kind).cloned().collect()
    }

    /// Waits for the end; all remaining lines go to `seen`.
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

    /// What it said on stderr, once it has ended.
    pub fn stderr(&mut self) -> String {
        self.stderr.take().map(|thread| thread.join().unwrap()).unwrap_or_default()
    }

    /// Its last line and its stderr, once it has ended: what a failed assertion wants to show.
    pub fn told(&mut self) -> String {
        let stderr = self.stderr();
        format!("{:?}\n{stderr}", self.seen.last())
    }

    /// Sends it a signal, and waits for its end where that cannot be withstood: a console that is dropped
    /// while it dies has its children ended, too.
    pub fn signal(&mut self, signal: i32) {
        kill(self.child.id(), signal);
        if signal == libc::SIGKILL {
            let _ = self.child.wait();
        }
    }

    /// Ends it, and what it runs where it is a script that passes nothing on: that would keep our pipes open.
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
