//! The fault table: faults of hosts and links on the test bed, at random moments, `RANKDECK_FAULT_ROUNDS`
//! times (default 1).
//!
//! Each test checks what the user sees, that no processes remain, and that no data is lost. With
//! `RANKDECK_FAULT_REPORT=FILE`, each round appends a line to that file. `~tb` is the home of the user on the
//! hosts of the test bed.

use crate::support::hosts::TestBed;
use crate::support::random::Random;
use crate::support::texts;
use crate::support::{Console, kill, rank_program, wait_until};
use rankdeck_testkit::{program, skip};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const NODES: usize = 2;

fn rounds() -> u64 {
    std::env::var("RANKDECK_FAULT_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Prints a line of the table.
fn report(fault: &str, round: u64, shown: &str, seconds: f64) {
    let line = format!("{fault} | {round} | {shown} | {seconds:.1} s\n");
    print!("{line}");
    if let Some(path) = std::env::var_os("RANKDECK_FAULT_REPORT") {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        file.write_all(line.as_bytes()).unwrap();
    }
}

/// Hosts, and programs to run on them.
struct Fixture {
    bed: TestBed,
    hosts: PathBuf,
}

impl Fixture {
    fn start(nodes: usize) -> Option<Fixture> {
        let bed = TestBed::start(nodes)?.with_agent();
        let hosts = bed.hosts(nodes, 1, "");
        Some(Fixture { bed, hosts })
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.bed.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// Writes an experiment that counts to `iters`; `more` goes to `[launch]`.
    fn counting(&self, iters: u32, more: &str) -> String {
        let command = rank_program(&["--iters", &iters.to_string(), "--family"]);
        self.write(
            "experiment.toml",
            &format!("[run]\nname = \"fault\"\n[launch]\ncommand = [{command}]\nstop_grace_s = 3.0\n{more}"),
        )
    }

    /// Starts an endless run and waits for progress.
    fn running(&self) -> Console {
        let mut console = self.bed.console(&self.hosts, &["run", &self.counting(1_000_000, "")]);
        console.wait_kind("progress", 120);
        console
    }

    fn rankdeck(&self, args: &[&str]) -> Output {
        self.bed.rankdeck(&self.hosts, args).stdin(Stdio::null()).output().unwrap()
    }

    /// Expects an error before anything starts, with an exit code, facts in the message and a hint; returns
    /// the message.
    fn rejected(&self, experiment: &str, code: i32, facts: &[&str]) -> String {
        let output = self.rankdeck(&["run", experiment, "--headless", "--json"]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        for fact in facts {
            assert!(stderr.contains(fact), "{fact:?} is missing in:\n{stderr}");
        }
        assert!(stderr.contains("hint:"), "{stderr}");
        let last: Value =
            serde_json::from_slice(output.stdout.trim_ascii_end().rsplit(|b| *b == b'\n').next().unwrap())
                .unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&output.stdout)));
        assert_eq!((&last["kind"], &last["exit_code"]), (&Value::from("run_finished"), &Value::from(code)));
        self.wait_until_free();
        stderr.lines().find(|line| line.starts_with("error:")).unwrap_or_default().to_owned()
    }

    fn wait_until_free(&self) {
        let deadline = Instant::now() + Duration::from_secs(40);
        for node in 0..NODES {
            loop {
                let left = self.bed.processes(node);
                if !left.contains("rankdeck") && !left.contains("python3") {
                    break;
                }
                let log = || self.bed.on(node, "tail -n 20 ~tb/work/runs/*/node*/agent.log");
                assert!(Instant::now() < deadline, "remaining on node{node}:\n{left}\n{}", log());
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    /// Stops the run from a second terminal, and checks that the stop is verified and the counters have no
    /// gap.
    fn stop_without_a_gap(&self, mut console: Console) {
        let run = console.seen.iter().find(|v| v["kind"] == "run_started").unwrap()["run"]
            .as_str()
            .unwrap()
            .to_owned();
        let stop = self.rankdeck(&["stop", &run]);
        assert!(stop.status.success(), "{stop:?}");
        assert_eq!(console.finish(90).code(), Some(130), "{}", console.transcript());
        assert_eq!(console.seen.last().unwrap()["survivors"], Value::Array(vec![]));
        gapless(&console);
        self.wait_until_free();
    }
}

fn gapless(console: &Console) {
    let iterations: Vec<u64> =
        console.all("progress").iter().map(|v| v["train_iter"].as_u64().unwrap()).collect();
    assert!(iterations.windows(2).all(|pair| pair[1] == pair[0] + 1), "a gap in {iterations:?}");
}

fn host_is_back(console: &mut Console, node: usize) {
    console.wait_for_new("the host is back", 90, |v| {
        v["kind"] == "host" && v["node_rank"] == node && v["state"] == "ready"
    });
    console.wait_for_new("progress", 60, |v| v["kind"] == "progress");
}

/// A network fault: the host is shown as not ready, returns, and the run continues without a gap.
fn network_fault(
    fault: &str,
    kind: u64,
    break_it: impl Fn(&Fixture, usize),
    mend_it: impl Fn(&Fixture, usize),
) {
    let Some(fixture) = Fixture::start(NODES) else { return };
    let mut console = fixture.running();
    let mut random = Random::new(kind);
    for round in 0..rounds() {
        let node = random.below(NODES as u64) as usize;
        std::thread::sleep(Duration::from_millis(random.below(1500)));
        let began = Instant::now();
        break_it(&fixture, node);
        let seen = console.wait_for_new("the host is not ready", 60, |v| {
            v["kind"] == "host" && v["node_rank"] == node && v["state"] != "ready"
        });
        let after = began.elapsed().as_secs_f64();
        mend_it(&fixture, node);
        host_is_back(&mut console, node);
        report(fault, round, &format!("host {}", seen["state"]), after);
    }
    let rank_verdicts: Vec<_> = console.all("verdict").into_iter().filter(|v| !v["rank"].is_null()).collect();
    assert!(rank_verdicts.is_empty(), "{rank_verdicts:?}");
    fixture.stop_without_a_gap(console);
}

#[test]
fn ssh_reset() {
    network_fault("ssh reset", 1, |fixture, node| fixture.bed.fault(node, &["reset"]), |_, _| {});
}

#[test]
fn run_survives_killed_sshd_sessions() {
    network_fault("sshd killed", 2, |fixture, node| fixture.bed.fault(node, &["drop-sessions"]), |_, _| {});
}

#[test]
fn run_survives_link_outage() {
    network_fault(
        "link down and up",
        3,
        |fixture, node| fixture.bed.fault(node, &["link", "down"]),
        |fixture, node| fixture.bed.fault(node, &["link", "up"]),
    );
}

#[test]
fn run_survives_half_open_tcp() {
    network_fault(
        "half-open tcp",
        4,
        |fixture, node| fixture.bed.fault(node, &["drop", "22"]),
        |fixture, node| fixture.bed.fault(node, &["drop", "off"]),
    );
}

/// `RANKDECK_DROPS=1,30,600`: seconds of the link outages, in turn.
fn drops() -> Vec<u64> {
    let asked = std::env::var("RANKDECK_DROPS").unwrap_or_else(|_| "1".into());
    asked.split(',').map(|seconds| seconds.trim().parse().unwrap()).collect()
}

/// However long the outage: no restart, the host is shown as unreachable with its age, and no record is
/// missing when it returns.
#[test]
fn link_outage_loses_no_records() {
    let Some(fixture) = Fixture::start(NODES) else { return };
    let mut console = fixture.running();
    let run = console.all("run_started")[0]["run"].as_str().unwrap().to_owned();
    let ranks = || fixture.bed.on(1, "pgrep -f '[-]-iters' | sort | tr '\\n' ' '");
    let before = ranks();
    assert!(!before.trim().is_empty());
    let mut screen = fixture.bed.terminal(&fixture.hosts, &["attach", &run]);
    screen.until("the run", |t| t.alternate() && t.text().contains("node1"));
    for seconds in drops() {
        let began = Instant::now();
        fixture.bed.fault(1, &["link", "down"]);
        if seconds >= 10 {
            console.wait_for_new("lost", 30, |v| v["kind"] == "host" && v["state"] == "lost");
        }
        let mut shown = String::new();
        while began.elapsed() < Duration::from_secs(seconds) {
            let left = Duration::from_secs(seconds).saturating_sub(began.elapsed());
            if seconds >= 30 && shown.is_empty() && left < Duration::from_secs(10) {
                screen.send("5");
                screen.until("the host with its age", |t| t.text().contains(texts::UNREACHABLE));
                let text = screen.text();
                let age = |line: &&str| line.contains("s ago") && !line.contains("ms ago");
                shown = text.lines().find(age).unwrap_or_else(|| panic!("{text}")).trim().to_owned();
            }
            // The lines of the console are read meanwhile, as a user would.
            console.drain(left.min(Duration::from_millis(500)));
        }
        fixture.bed.fault(1, &["link", "up"]);
        if seconds >= 10 {
            host_is_back(&mut console, 1);
        }
        console.wait_for_new("progress", 60, |v| v["kind"] == "progress");
        report("link down for a while", seconds, &shown, began.elapsed().as_secs_f64());
        assert_eq!(ranks(), before);
    }
    assert!(console.all("restart").is_empty() && console.all("run_started").len() == 1);
    let rank_verdicts: Vec<_> = console.all("verdict").into_iter().filter(|v| !v["rank"].is_null()).collect();
    assert!(rank_verdicts.is_empty(), "{rank_verdicts:?}");
    drop(screen);
    fixture.stop_without_a_gap(console);
}

#[test]
fn killed_host_is_reported_lost() {
    for round in 0..rounds() {
        let Some(fixture) = Fixture::start(NODES) else { return };
        let mut console = fixture.running();
        std::thread::sleep(Duration::from_millis(Random::new(50 + round).below(1500)));
        let began = Instant::now();
        fixture.bed.fault(1, &["kill"]);
        let seen = console.wait_for_new("the verdict", 60, |v| {
            v["kind"] == "verdict" && v["verdict"] == "lost" && v["host"] == "node1"
        });
        report(
            "host killed",
            round,
            &format!("verdict lost, host {}", seen["host"]),
            began.elapsed().as_secs_f64(),
        );
        let run = console.all("run_started")[0]["run"].as_str().unwrap().to_owned();
        // The stop is not verified on the killed host.
        let stop = fixture.rankdeck(&["stop", &run]);
        let text =
            format!("{}{}", String::from_utf8_lossy(&stop.stdout), String::from_utf8_lossy(&stop.stderr));
        assert!(!stop.status.success() && text.contains("node1"), "{text}");
        wait_until("the other host is free", 60, || !fixture.bed.processes(0).contains("python3"));
        gapless(&console);
    }
}

#[test]
fn killed_agent_ends_run() {
    for round in 0..rounds() {
        let Some(fixture) = Fixture::start(NODES) else { return };
        let mut console = fixture.running();
        std::thread::sleep(Duration::from_millis(Random::new(60 + round).below(1500)));
        let began = Instant::now();
        fixture.bed.on(1, "kill -9 $(pgrep -f '[r]ankdeck agent serve')");
        wait_until("the guard ends the ranks", 30, || !fixture.bed.processes(1).contains("python3"));
        let gone = began.elapsed().as_secs_f64();
        let status = console.finish(120);
        assert_eq!(status.code(), Some(1), "{}", console.transcript());
        let finished = console.seen.last().unwrap().clone();
        assert_eq!(finished["survivors"], Value::Array(vec![]), "{finished}");
        assert!(finished["reason"].as_str().unwrap().contains("node1"), "{finished}");
        report("agent SIGKILL", round, finished["reason"].as_str().unwrap(), gone);
        gapless(&console);
        fixture.wait_until_free();
    }
}

#[test]
fn second_console_takes_over_after_kill() {
    for round in 0..rounds() {
        let Some(fixture) = Fixture::start(NODES) else { return };
        let console = fixture.running();
        let run = console.all("run_started")[0]["run"].as_str().unwrap().to_owned();
        std::thread::sleep(Duration::from_millis(Random::new(70 + round).below(1500)));
        let began = Instant::now();
        // The script of the bed does not forward signals; the console is its child.
        let pid = console.pid();
        let children =
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        for pid in children.split_whitespace().filter_map(|pid| pid.parse().ok()).chain([pid]) {
            kill(pid, libc::SIGKILL);
        }
        drop(console);
        let mut second = fixture.bed.console(&fixture.hosts, &["attach", &run]);
        second.wait_kind("progress", 60);
        report(
            "console SIGKILL",
            round,
            "a second console shows the run from its first iteration",
            began.elapsed().as_secs_f64(),
        );
        let first = second.all("progress")[0]["train_iter"].as_u64();
        assert_eq!(first, Some(1), "the history is incomplete");
        second.wait_for_new("progress", 60, |v| v["kind"] == "progress");
        fixture.stop_without_a_gap_of(second, &run);
    }
}

impl Fixture {
    fn stop_without_a_gap_of(&self, mut console: Console, run: &str) {
        let stop = self.rankdeck(&["stop", run]);
        assert!(stop.status.success(), "{stop:?}");
        assert_eq!(console.finish(90).code(), Some(130), "{}", console.transcript());
        gapless(&console);
        self.wait_until_free();
    }
}

/// Two consoles on two machines choose the same name in the same second: at most one continues. Both are
/// rejected if each was first on a different host.
#[test]
fn simultaneous_launches_of_one_name_have_one_winner() {
    let Some(fixture) = Fixture::start(NODES) else { return };
    for round in 0..rounds() {
        let experiment = fixture.counting(1_000_000, "");
        let began = Instant::now();
        let (mut winners, mut losers) = (Vec::new(), Vec::new());
        // Names contain the second: a pair in two different seconds is tried again.
        for attempt in 0.. {
            assert!(attempt < 10, "no two consoles started in one second");
            let consoles = ["a", "b"].map(|machine| {
                let folder = fixture.bed.folder.path().join(machine);
                std::fs::create_dir_all(&folder).unwrap();
                let mut command =
                    fixture.bed.rankdeck(&fixture.hosts, &["run", &experiment, "--headless", "--json"]);
                // Consoles on one machine have different names: their cache has all names.
                command.env("RANKDECK_CACHE", folder.join("cache")).current_dir(folder);
                Console::spawn(command)
            });
            for mut console in consoles {
                let first = console.wait_for("progress or the end", 300, |v| {
                    v["kind"] == "progress" || v["kind"] == "run_finished"
                });
                if first["kind"] == "progress" { winners.push(console) } else { losers.push(console) }
            }
            let names: Vec<String> =
                winners.iter().map(|console| console.all("run_started")[0]["run"].to_string()).collect();
            if !losers.is_empty() {
                break;
            }
            assert_ne!(names[0], names[1], "two winners");
            for mut console in winners.drain(..) {
                let run = console.all("run_started")[0]["run"].as_str().unwrap().to_owned();
                assert!(fixture.rankdeck(&["stop", &run]).status.success());
                assert_eq!(console.finish(90).code(), Some(130), "{}", console.transcript());
            }
            fixture.wait_until_free();
        }
        for mut loser in losers {
            assert_eq!(loser.finish(60).code(), Some(3), "{}", loser.transcript());
            let stderr = loser.stderr();
            report(
                "two launches of one name",
                round,
                stderr.lines().find(|line| line.starts_with("error:")).unwrap_or_default(),
                began.elapsed().as_secs_f64(),
            );
        }
        for mut winner in winners {
            winner.wait_for_new("progress of the winner", 60, |v| v["kind"] == "progress");
            fixture.stop_without_a_gap(winner);
        }
        fixture.wait_until_free();
    }
}

/// A fault that is reported before anything starts.
fn rejection(fault: &str, code: i32, facts: &[&str], break_it: impl Fn(&Fixture) -> String) {
    let Some(fixture) = Fixture::start(NODES) else { return };
    for round in 0..rounds() {
        let experiment = break_it(&fixture);
        let began = Instant::now();
        let error = fixture.rejected(&experiment, code, facts);
        report(fault, round, &error, began.elapsed().as_secs_f64());
    }
}

#[test]
fn wrong_key_is_rejected() {
    rejection("wrong key", 3, &["node1"], |fixture| {
        fixture.bed.fault(1, &["keys", "none"]);
        fixture.counting(5, "")
    });
}

#[test]
fn changed_host_key_is_rejected() {
    rejection("changed host key", 3, &["SHA256:", "known_hosts"], |fixture| {
        fixture.bed.fault(1, &["hostkey"]);
        fixture.counting(5, "")
    });
}

#[test]
fn full_disk_is_rejected() {
    rejection("full disk", 3, &["disk", "No space left", "workdir"], |fixture| {
        // The agent is deployed first: its cache may be on another disk than the runs.
        let experiment = fixture.counting(5, "");
        fixture.rankdeck(&["check", &experiment]);
        fixture.bed.fault(1, &["disk", "full"]);
        experiment
    });
}

#[test]
fn missing_interpreter_is_rejected() {
    rejection("missing interpreter", 3, &["python9", "e.toml:4"], |fixture| {
        fixture.write("e.toml", "[run]\nname = \"x\"\n[launch]\ncommand = [\"python9\", \"train.py\"]\n")
    });
}

#[test]
fn missing_script_is_rejected() {
    rejection("missing script", 3, &["train.py", "launch.code"], |fixture| {
        fixture.write("e.toml", "[run]\nname = \"x\"\n[launch]\ncommand = [\"python3\", \"train.py\"]\n")
    });
}

#[test]
fn code_mismatch_is_rejected() {
    rejection("code mismatch", 3, &["code", "node0", "node1"], |fixture| {
        for node in 0..NODES {
            fixture.bed.on(
                node,
                &format!("mkdir -p ~tb/work; echo 'print({node})' > ~tb/work/train.py; chown -R tb ~tb/work"),
            );
        }
        fixture.write("e.toml", "[run]\nname = \"x\"\n[launch]\ncommand = [\"python3\", \"train.py\"]\n")
    });
}

#[test]
fn version_mismatch_is_rejected() {
    rejection("version mismatch", 3, &["torch", "2.10.1", "2.10.0", "node0"], |fixture| {
        for node in 0..NODES {
            let torch = format!(
                "mkdir -p ~tb/work/torch; echo \"__version__ = '2.10.{node}'\" > ~tb/work/torch/version.py; chown -R tb ~tb/work"
            );
            fixture.bed.on(node, &torch);
        }
        fixture.counting(5, "")
    });
}

/// A process that listens on a port of a host; killed when dropped.
struct PortUser(Child);

impl Drop for PortUser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn used_port_is_rejected() {
    let Some(fixture) = Fixture::start(NODES) else { return };
    let listen =
        "import socket, sys; s = socket.create_server((\"\", 24711)); print(1, flush=True); sys.stdin.read()";
    let mut command: Command = fixture.bed.call(&["exec", "node0", "python3", "-c", listen]);
    let mut port_user = PortUser(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = [0];
    std::io::Read::read_exact(port_user.0.stdout.as_mut().unwrap(), &mut line).unwrap();
    for round in 0..rounds() {
        let experiment = fixture.counting(5, "master_port = 24711\n");
        let began = Instant::now();
        let output = fixture.rankdeck(&["run", &experiment, "--headless"]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{stderr}");
        assert!(stderr.contains("24711") && stderr.contains("master_port"), "{stderr}");
        report(
            "port in use",
            round,
            stderr.lines().find(|line| line.starts_with("error:")).unwrap_or_default(),
            began.elapsed().as_secs_f64(),
        );
    }
    drop(port_user);
    fixture.bed.on(0, "pkill -f [c]reate_server || true");
    wait_until("the hosts are free", 40, || {
        (0..NODES).all(|node| !fixture.bed.processes(node).contains("rankdeck"))
    });
}

/// The start files of one host take longer than the limit of the join: the console waits, and reports the
/// cause.
#[test]
fn slow_login_shell_is_reported() {
    let Some(fixture) = Fixture::start(NODES) else { return };
    for (node, seconds) in [(0, "1"), (1, "5")] {
        fixture.bed.fault(node, &["slowlogin", seconds]);
    }
    for round in 0..rounds() {
        let began = Instant::now();
        let mut console = fixture.bed.console(&fixture.hosts, &["run", &fixture.counting(10, "")]);
        assert_eq!(console.finish(180).code(), Some(0), "{}", console.transcript());
        let took = began.elapsed().as_secs_f64();
        gapless(&console);
        let stderr = console.stderr();
        let warning = stderr
            .lines()
            .find(|line| line.starts_with("warning:") && line.contains("node1"))
            .unwrap_or_else(|| panic!("{stderr}"));
        report("slow login shell", round, warning, took);
        fixture.wait_until_free();
    }
}

#[test]
fn noisy_shell_and_max_startups_are_tolerated() {
    for (fault, args) in
        [("noisy rc", vec!["noisy"]), ("MaxStartups", vec!["sshd-opt", "m", "MaxStartups 1:100:1"])]
    {
        let Some(fixture) = Fixture::start(NODES) else { return };
        for node in 0..NODES {
            fixture.bed.fault(node, &args);
        }
        for round in 0..rounds() {
            let began = Instant::now();
            let mut console = fixture.bed.console(&fixture.hosts, &["run", &fixture.counting(10, "")]);
            assert_eq!(console.finish(180).code(), Some(0), "{fault}: {}", console.transcript());
            let finished = console.seen.last().unwrap();
            assert_eq!(
                (&finished["outcome"], &finished["proved"]),
                (&Value::from("succeeded"), &Value::from(true))
            );
            report(fault, round, "the run succeeds", began.elapsed().as_secs_f64());
            gapless(&console);
            fixture.wait_until_free();
        }
    }
}

/// A preloaded library sets the wall clock of a host 100 s ahead.
#[test]
fn clock_skew_is_reported() {
    let Some(fixture) = Fixture::start(NODES) else { return };
    if program("cc").is_none() {
        skip!("no C compiler for the clock");
    }
    let source = fixture.write(
        "skew.c",
        "#define _GNU_SOURCE\n#include <time.h>\n#include <unistd.h>\n#include <sys/syscall.h>\n\
         int clock_gettime(clockid_t id, struct timespec *t) { int r = syscall(SYS_clock_gettime, id, t); \
         if (id == CLOCK_REALTIME) t->tv_sec += 100; return r; }\n",
    );
    let library = fixture.bed.folder.path().join("shared/skew.so");
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().unwrap();
    assert!(built.success());
    fixture.bed.on(1, "echo 'export LD_PRELOAD=/mnt/skew.so' > ~tb/.bashrc; chown tb ~tb/.bashrc");
    for round in 0..rounds() {
        let began = Instant::now();
        let mut console = fixture.bed.console(&fixture.hosts, &["run", &fixture.counting(10, "")]);
        assert_eq!(console.finish(120).code(), Some(0), "{}", console.transcript());
        gapless(&console);
        let stderr = console.stderr();
        let warning =
            stderr.lines().find(|line| line.contains("clock")).unwrap_or_else(|| panic!("{stderr}"));
        assert!(warning.contains("node1"), "{warning}");
        report("clock skew", round, warning, began.elapsed().as_secs_f64());
        fixture.wait_until_free();
    }
}

/// Returns the process that a script of the test bed runs.
fn below(pid: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().next().and_then(|child| child.parse().ok()).map_or(pid, below)
}

/// A restart while a host is unreachable is rejected within the time limit of a stop, has no effect if
/// interrupted, and works without that host if it is excluded.
#[test]
fn restart_with_unreachable_host_is_bounded() {
    const NODES: usize = 3;
    let Some(bed) = TestBed::start(NODES).map(TestBed::with_agent) else { return };
    let hosts = bed.hosts(NODES, 1, "");
    let rank = rank_program(&["--iters", "1000000"]);
    let config = format!("[run]\nname = \"away\"\n[launch]\ncommand = [{rank}]\nstop_grace_s = 3.0\n");
    let experiment = bed.folder.path().join("experiment.toml");
    std::fs::write(&experiment, config).unwrap();
    let rankdeck =
        |args: &[&str]| -> Output { bed.rankdeck(&hosts, args).stdin(Stdio::null()).output().unwrap() };
    let text = |output: &Output| {
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    let launched = rankdeck(&["run", experiment.to_str().unwrap(), "--headless", "--detach"]);
    assert!(launched.status.success(), "{}", text(&launched));
    let ranks = |node: usize| -> Vec<String> {
        let all = bed.processes(node);
        all.lines().filter(|line| line.contains("python3")).map(str::to_owned).collect()
    };
    let pid = |line: String| line.split_whitespace().find(|w| w.parse::<u32>().is_ok()).map(str::to_owned);
    let pids_on = |nodes: usize| -> Vec<String> { (0..nodes).flat_map(ranks).filter_map(pid).collect() };
    let pids = || pids_on(NODES);
    let before = pids();
    assert_eq!(before.len(), NODES, "{before:?}");
    bed.fault(2, &["link", "down"]);
    // Without a response.
    let refused = rankdeck(&["restart", "--yes"]);
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused));
    assert!(text(&refused).contains("--exclude node2"), "{}", text(&refused));
    assert_eq!(pids(), before);
    // Interrupted while it waits.
    for signal in [libc::SIGINT, libc::SIGHUP] {
        let mut command = bed.rankdeck(&hosts, &["restart", "--yes"]);
        let mut waiting =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(waiting.stderr.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("node2")));
        kill(below(waiting.id()), signal);
        let left: Vec<String> = lines.collect();
        assert_eq!(waiting.wait().unwrap().code(), Some(130), "{left:?}");
        assert!(left.iter().any(|line| line.starts_with("error:")), "{left:?}");
        assert_eq!(pids(), before);
    }
    // Without the host.
    let restarted = rankdeck(&["restart", "--yes", "--exclude", "node2", "--from", "afresh"]);
    assert!(restarted.status.success(), "{}", text(&restarted));
    assert!(ranks(0).len() == 1 && ranks(1).len() == 1);
    // The excluded host keeps its rank until it is reachable again.
    let after = pids_on(NODES - 1);
    assert!(after.iter().all(|pid| !before.contains(pid)), "{before:?} {after:?}");
    bed.fault(2, &["link", "up"]);
    // An attached console stops what the excluded host still runs, and ending the console stops nothing.
    let mut console = bed.console(&hosts, &["attach"]);
    wait_until("the ranks of the excluded host end", 60, || ranks(2).is_empty());
    kill(below(console.pid()), libc::SIGTERM);
    assert_eq!(console.finish(30).code(), Some(0), "{}", console.transcript());
    assert_eq!(pids_on(NODES - 1), after);
    wait_until("a stop that all hosts verify", 60, || rankdeck(&["stop"]).status.success());
    wait_until("ranks end", 40, || (0..NODES).all(|node| ranks(node).is_empty()));
}
