//! `rankdeck gpus` on fake GPUs next to what makes leftovers on real hosts: killed agents, containers, a Slurm job
//! that is cancelled.
//!
//! `tests/runs/holders.rs` has the same without root, with processes that only resemble these.

use crate::support::podman::Podman;
use crate::support::slurm::Slurm;
use crate::support::terminal::Terminal;
use crate::support::{Bench, Console, kill, rankdeck, wait_until};
use rankdeck_testkit::fake_cuda::FakeCuda;
use rankdeck_testkit::skipped;
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Set in the namespaces of the test.
const INSIDE: &str = "RANKDECK_TEST_INSIDE";
const TEST: &str = "gpu_holders::gpus_free_ends_proven_leftovers_only";
/// The uid of another user.
const OTHER: u32 = 61_000;

/// `--free` ends every proven leftover that it sees, and other tests have some: the test has pids of its own.
/// Its process has pid 1 there, and what loses its parent is its child.
#[test]
fn gpus_free_ends_proven_leftovers_only() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    // SAFETY: geteuid takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return skipped("only root has other users and containers of its own");
    }
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount", "--propagation", "private", "--mount-proc"]);
    command.arg(std::env::current_exe().unwrap()).args(["--exact", TEST, "--nocapture"]).env(INSIDE, "1");
    let output = command.stdin(Stdio::null()).output().unwrap();
    let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{}\n{}", texts[0], texts[1]);
}

fn inside() {
    let mut stage = Stage::new();
    let Some(fake) = FakeCuda::new(&stage.gpus, &[("gpus", "4")]) else { return };
    let Some(podman) = Podman::new(stage.bench.path()) else { return };
    let Some(slurm) = Slurm::start() else { return };

    // Leftovers. Each kind sleeps for a time of its own.
    stage.leave_behind(
        "dead",
        "setsid sleep 1001 & setsid sleep 1002 & [ $RANK -lt 2 ] && env -i setsid sleep 1003 & exec sleep 1000",
        "",
        &[("worker", 1001, 4), ("stopped", 1002, 4), ("cleared, of a run", 1003, 2)],
    );
    for _ in 0..2 {
        orphan("env -i sleep 1004");
    }
    stage.find("cleared", 1004, 2);
    let container = format!("container = {:?}\n", podman.line("").replace("  ", " "));
    stage.leave_behind("boxed", "exec sleep 1005", &container, &[("container", 1005, 4)]);
    let ending = job(&slurm, 1006, 4);
    stage.find("cancelled", 1006, 4);
    slurm.ask("scancel", &[&ending]);
    wait_until("the job has ended", 60, || slurm.ask("squeue", &["-h", "-j", &ending]).is_empty());
    for pid in &stage.found["stopped"] {
        kill(*pid, libc::SIGSTOP);
    }

    // Innocents.
    let mut login = Terminal::start_in(stage.bench.path(), "bash", &["--norc", "-i"], &[]);
    login.send("(sleep 1007 &)\n");
    stage.find("login", 1007, 1);
    let mut parent = Command::new("sh").args(["-c", "sleep 1008 & wait"]).spawn().unwrap();
    stage.find("child", 1008, 1);
    job(&slurm, 1009, 1);
    stage.find("job", 1009, 1);
    let attended = stage.run("live", "setsid sleep 1010 & exec sleep 1000", "", &[("attended", 1010, 4)]);
    // A terminal's server that was started where a run had been.
    let run = stage.names().into_iter().find(|name| name.starts_with("dead")).unwrap();
    let folder = stage.bench.path().join("runs").join(&run);
    let tag = format!("RANKDECK_RUN={run} RANKDECK_RUN_DIR={} RANKDECK_NODE=0", folder.display());
    orphan(&format!("{tag} script --quiet --command 'exec sleep 1013' /dev/null"));
    stage.find("pane", 1013, 1);
    let mut other = Command::new("sleep").arg("1011").uid(OTHER).gid(OTHER).spawn().unwrap();
    stage.find("other user", 1011, 1);

    stage.hold_gpus();
    let gpus = |arguments: &[&str]| {
        let mut command = slurm.command(env!("CARGO_BIN_EXE_rankdeck"));
        fake.apply(&mut command);
        command.args(["gpus", "--json", "--hosts"]).arg(&stage.hosts).args(arguments);
        let output = command.current_dir(stage.bench.path()).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (output.status.code(), lines, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, listed, errors) = gpus(&[]);
    assert_eq!(code, Some(0), "{errors}");
    let line = |pid: u32| listed.iter().find(|line| line["pid"] == pid);
    let statuses = |kind: &str| {
        let of = |pid: &u32| line(*pid).map_or("not listed", |line| line["status"].as_str().unwrap());
        let mut all: Vec<&str> = stage.found[kind].iter().map(of).collect();
        all.dedup();
        all.join(" ")
    };
    let found: BTreeMap<&str, String> = stage.found.keys().map(|kind| (*kind, statuses(kind))).collect();
    let expected = BTreeMap::from(
        [
            ("worker", "leftover"),
            ("stopped", "leftover"),
            ("cleared, of a run", "leftover"),
            ("cleared", "unproven"),
            ("container", "leftover"),
            ("cancelled", "unproven"),
            ("login", "in_use"),
            ("child", "in_use"),
            ("job", "in_use"),
            ("attended", "in_use"),
            ("pane", "in_use"),
            ("other user", "other_user"),
        ]
        .map(|(kind, status)| (kind, status.to_owned())),
    );
    assert_eq!(found, expected, "{listed:#?}");

    let (code, ended, errors) = gpus(&["--free", "--yes"]);
    assert_eq!(code, Some(0), "{errors} {ended:#?}");
    let left: BTreeMap<&str, usize> = stage.found.iter().map(|(kind, pids)| (*kind, living(pids))).collect();
    let expected = [
        ("worker", 0),
        ("stopped", 0),
        ("cleared, of a run", 0),
        ("cleared", 2),
        ("container", 0),
        ("cancelled", 4),
        ("login", 1),
        ("child", 1),
        ("job", 1),
        ("attended", 4),
        ("pane", 1),
        ("other user", 1),
    ];
    assert_eq!(left, BTreeMap::from(expected), "{ended:#?}");
    let named: Vec<u64> = ended.iter().filter_map(|line| line["pid"].as_u64()).collect();
    let unnamed: Vec<&u32> =
        stage.found["worker"].iter().filter(|pid| !named.contains(&u64::from(**pid))).collect();
    assert!(unnamed.is_empty(), "each process that was ended is reported: {unnamed:?} {ended:#?}");
    let (code, again, errors) = gpus(&["--free", "--yes"]);
    assert_eq!((code, again.len()), (Some(0), 0), "{errors}");

    // The pid of a process that was listed belongs to another one by then.
    let [reused, frozen] = stage.found["cleared"][..] else { panic!("two processes") };
    let start = start_of(reused);
    kill(reused, libc::SIGKILL);
    wait_until("the pid is free", 10, || reap(reused));
    let mut innocent = with_pid(reused, &["sleep", "1012"]);
    let mut command = rankdeck();
    fake.apply(&mut command);
    command.args(["agent", "free", "--unproven", "--workdir"]).arg(stage.bench.path());
    let output = command.args(["--processes", &format!("{reused}-{start}")]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("refused"), "{output:?}");
    assert_eq!(living(&[reused]), 1, "{output:?}");

    // SIGKILL does not reach what the freezer of a first-generation control group holds: state D.
    if let Some(freezer) = Freezer::around(frozen) {
        let (code, lines, errors) = gpus(&["--pid", &frozen.to_string(), "--yes"]);
        drop(freezer);
        wait_until("the signal arrives", 10, || reap(frozen));
        assert_eq!(code, Some(1), "{errors}");
        let outcomes: Vec<_> = lines.iter().map(|line| (&line["outcome"], &line["state"])).collect();
        assert_eq!(outcomes, [(&Value::from("survived"), &Value::from("D"))]);
    }

    // What was named by its pid.
    let cancelled = stage.found["cancelled"][0];
    let (code, _, errors) = gpus(&["--pid", &cancelled.to_string(), "--yes"]);
    assert_eq!((code, living(&stage.found["cancelled"])), (Some(0), 3), "{errors}");
    for kind in ["login", "child", "job", "attended", "pane", "other user"] {
        let pid = stage.found[kind][0];
        let (code, _, _) = gpus(&["--pid", &pid.to_string(), "--yes"]);
        assert_eq!((code, living(&[pid])), (Some(2), 1), "{kind}");
    }
    drop(attended);
    for child in [&mut parent, &mut other, &mut innocent] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// The folder of the runs, and the processes by kind.
struct Stage {
    bench: Bench,
    gpus: PathBuf,
    hosts: PathBuf,
    found: BTreeMap<&'static str, Vec<u32>>,
}

impl Stage {
    fn new() -> Stage {
        let bench = Bench::new();
        let gpus = bench.path().join("gpus-of-the-test");
        std::fs::create_dir(&gpus).unwrap();
        let hosts = bench.local_hosts(1, 4);
        Stage { bench, gpus, hosts, found: BTreeMap::new() }
    }

    /// Starts a run of four ranks, and waits for what they start.
    fn run(&mut self, name: &str, script: &str, host: &str, kinds: &[(&'static str, u32, usize)]) -> Console {
        let text = std::fs::read_to_string(&self.hosts).unwrap();
        let hosts = self.bench.write(&format!("{name}-hosts.toml"), &format!("{text}{host}"));
        let text = format!("[run]\nname = '{name}'\n[launch]\ncommand = ['bash', '-c', '{script}']\n");
        let experiment = self.bench.write(&format!("{name}.toml"), &text);
        let words = ["run", experiment.to_str().unwrap(), "--hosts", hosts.to_str().unwrap()];
        let console = Console::start(&words);
        for (kind, seconds, count) in kinds {
            self.find(kind, *seconds, *count);
        }
        console
    }

    /// The same, and then its agent and its guard are killed together.
    fn leave_behind(&mut self, name: &str, script: &str, host: &str, kinds: &[(&'static str, u32, usize)]) {
        let console = self.run(name, script, host, kinds);
        let is_noted = |pid: &u32| {
            let group = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            group.contains("rankdeck")
                || self.notes().lines().any(|line| line.starts_with(&format!("{pid} ")))
        };
        wait_until("a control group or a journal has every process without a tag", 30, || {
            let cleared = kinds.iter().filter(|(kind, ..)| kind.starts_with("cleared"));
            cleared.flat_map(|(kind, ..)| &self.found[kind]).all(is_noted)
        });
        kill(console.pid(), libc::SIGKILL);
        drop(console);
        let agents = self.bench.processes().into_iter().filter(|(_, line)| line.contains(" agent "));
        let agents: Vec<u32> = agents.map(|(pid, _)| pid).collect();
        // None has time to see the other end.
        agents.iter().for_each(|pid| kill(*pid, libc::SIGSTOP));
        agents.iter().for_each(|pid| kill(*pid, libc::SIGKILL));
        wait_until("the ranks have ended", 30, || sleeping(1000).is_empty());
    }

    /// What the guards have written about the processes of their runs.
    fn notes(&self) -> String {
        let note = |run: String| {
            let folder = self.bench.path().join("runs").join(run);
            let manifest = std::fs::read(folder.join("node0/manifest.json")).ok()?;
            let manifest: Value = serde_json::from_slice(&manifest).ok()?;
            std::fs::read_to_string(Path::new(manifest["socket"].as_str()?).with_extension("below")).ok()
        };
        self.names().into_iter().filter_map(note).collect()
    }

    /// The names of the runs.
    fn names(&self) -> Vec<String> {
        let runs = std::fs::read_dir(self.bench.path().join("runs")).unwrap().flatten();
        runs.map(|run| run.file_name().into_string().unwrap()).collect()
    }

    /// Remembers the processes of a kind by what they sleep.
    fn find(&mut self, kind: &'static str, seconds: u32, count: usize) {
        wait_until(kind, 60, || sleeping(seconds).len() == count);
        self.found.insert(kind, sleeping(seconds));
    }

    /// Has the fake driver show every process.
    fn hold_gpus(&self) {
        for (index, pid) in self.found.values().flatten().enumerate() {
            let folder = self.gpus.join(format!("gpus/{}", index % 4));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(pid.to_string()), "1048576").unwrap();
        }
    }
}

/// A control group whose processes do not run, signals included; they go on with its end.
struct Freezer(PathBuf);

impl Freezer {
    /// `None` where control groups are of the second generation only.
    fn around(pid: u32) -> Option<Freezer> {
        let folder = PathBuf::from(format!("/sys/fs/cgroup/freezer/rankdeck-test-{}", start_of(pid)));
        std::fs::create_dir(&folder).ok()?;
        let freezer = Freezer(folder);
        std::fs::write(freezer.0.join("cgroup.procs"), pid.to_string()).unwrap();
        std::fs::write(freezer.0.join("freezer.state"), "FROZEN").unwrap();
        wait_until("state D", 10, || state(pid) == Some('D'));
        Some(freezer)
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("freezer.state"), "THAWED");
        // Processes leave it by their end or for the root.
        for pid in std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = std::fs::write("/sys/fs/cgroup/freezer/cgroup.procs", pid);
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Starts a job, and returns its id. Its processes are not below it.
fn job(slurm: &Slurm, seconds: u32, count: u32) -> String {
    let script = format!("for i in $(seq {count}); do setsid sh -c 'sleep {seconds} &'; done; sleep 1000");
    slurm.ask("sbatch", &["--parsable", "--output=/dev/null", "--wrap", &script])
}

/// Starts a process without parent, session and terminal.
fn orphan(command: &str) {
    let shell = format!("{command} &");
    let mut command = Command::new("setsid");
    command.args(["sh", "-c", &shell]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    assert!(command.status().unwrap().success());
}

/// Starts a process that has a given pid.
fn with_pid(pid: u32, words: &[&str]) -> Child {
    let mut made = None;
    wait_until("a process with that pid", 10, || {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
        let mut child = Command::new(words[0]).args(&words[1..]).spawn().unwrap();
        if child.id() != pid {
            // Something else has started in between.
            child.kill().unwrap();
            child.wait().unwrap();
            return false;
        }
        made = Some(child);
        true
    });
    made.unwrap()
}

/// The processes that sleep this long.
fn sleeping(seconds: u32) -> Vec<u32> {
    let line = format!("sleep\0{seconds}\0");
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_one = |pid: &u32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command == line.as_bytes() && living(&[*pid]) == 1
    };
    pids.filter(is_one).collect()
}

fn stat(pid: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    Some(text.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect())
}

fn state(pid: u32) -> Option<char> {
    stat(pid)?.first()?.chars().next()
}

fn start_of(pid: u32) -> u64 {
    stat(pid).unwrap()[19].parse().unwrap()
}

/// How many of them live.
fn living(pids: &[u32]) -> usize {
    pids.iter().filter(|pid| state(**pid).is_some_and(|state| !"ZX".contains(state))).count()
}

/// Lets go of a process that has ended; `true` once it is gone.
fn reap(pid: u32) -> bool {
    // SAFETY: a null status is allowed.
    unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), libc::WNOHANG) };
    stat(pid).is_none()
}
