//! The fault table: what can go wrong with hosts and links, each on the test bed, at random moments,
//! `RANKDECK_FAULT_ROUNDS` times (default 1).
//!
//! Every test says three things and checks them: what the user sees, what is left (nothing), what is lost
//! (nothing that was promised). With `RANKDECK_FAULT_REPORT=FILE` a line per round is appended there. `~tb`
//! is the home of the test bed's user on its own hosts.

mod before_launch;

use crate::support::hosts::TestBed;
use crate::support::random::Random;
use crate::support::{Console, kill, rank_program, wait_until};
use rankdeck_testkit::{program, skip};
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const NODES: usize = 2;

fn rounds() -> u64 {
    std::env::var("RANKDECK_FAULT_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// One line of the table.
fn report(fault: &str, round: u64, sees: &str, seconds: f64) {
    let line = format!("{fault} | {round} | {sees} | {seconds:.1} s\n");
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

    /// An experiment that counts to `iters`; `more` goes into `[launch]`.
    fn counting(&self, iters: u32, more: &str) -> String {
        let command = rank_program(&["--iters", &iters.to_string(), "--family"]);
        self.write(
            "experiment.toml",
            &format!("[run]\nname = \"fault\"\n[launch]\ncommand = [{command}]\nstop_grace_s = 3.0\n{more}"),
        )
    }

    /// An endless run that has made progress.
    fn running(&self) -> Console {
        let mut console = self.bed.console(&self.hosts, &["run", &self.counting(1_000_000, "")]);
        console.wait_kind("progress", 120);
        console
    }

    fn rankdeck(&self, args: &[&str]) -> Output {
        self.bed.rankdeck(&self.hosts, args).stdin(Stdio::null()).output().unwrap()
    }

    /// Refused before anything starts: the exit code, words of the message and of the hint, and nothing
    /// anywhere.
    fn refused(&self, experiment: &str, code: i32, words: &[&str]) -> String {
        let output = self.rankdeck(&["run", experiment, "--headless", "--json"]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        for word in words {
            assert!(stderr.contains(word), "{word:?} is not in:\n{stderr}");
        }
        assert!(stderr.contains("hint:"), "{stderr}");
        let last: Value =
            serde_json::from_slice(output.stdout.trim_ascii_end().rsplit(|b| *b == b'\n').next().unwrap())
                .unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&output.stdout)));
        assert_eq!((&last["kind"], &last["exit_code"]), (&Value::from("run_finished"), &Value::from(code)));
        self.nothing_is_left();
        stderr.lines().find(|line| line.starts_with("error:")).unwrap_or_default().to_owned()
    }

    fn nothing_is_left(&self) {
        let deadline = Instant::now() + Duration::from_secs(40);
        for node in 0..NODES {
            loop {
                let left = self.bed.processes(node);
                if !left.contains("rankdeck") && !left.contains("python3") {
                    break;
                }
                let log = || self.bed.on(node, "tail -n 20 ~tb/work/runs/*/node*/agent.log");
                assert!(Instant::now() < deadline, "left on node{node}:\n{left}\n{}", log());
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    /// Stops the run from a second terminal, proved, and checks that the console's counters have no gap.
    fn stop_without_a_gap(&self, mut console: Console) {
        let run = console.seen.iter().find(|v| v["kind"] == "run_started").unwrap()["run"]
            .as_str()
            .unwrap()
            .to_owned();
        let stop = self.rankdeck(&["stop", &run]);
        assert!(
            stop.status.success() && String::from_utf8_lossy(&stop.stdout).contains("stopped"),
            "{stop:?}"
        );
        assert_eq!(console.finish(90).code(), Some(130), "{}", console.told());
        assert_eq!(console.seen.last().unwrap()["survivors"], Value::Array(vec![]));
        gapless(&console);
        self.nothing_is_left();
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
    console.wait_for_new("progress goes on", 60, |v| v["kind"] == "progress");
}

/// A fault of the network: the host is seen to be gone or mended, comes back, and the run goes on without a
/// gap.
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
        let seen = console.wait_for_new("the user is told", 60, |v| {
            v["kind"] == "host" && v["node_rank"] == node && v["state"] != "ready"
        });
        let after = began.elapsed().as_secs_f64();
        mend_it(&fixture, node);
        host_is_back(&mut console, node);
        report(fault, round, &format!("host {}", seen["state"]), after);
    }
    let blamed: Vec<_> = console.all("verdict").into_iter().filter(|v| !v["rank"].is_null()).collect();
    assert!(blamed.is_empty(), "no rank is to blame: {blamed:?}");
    fixture.stop_without_a_gap(console);
}

#[test]
fn ssh_reset() {
    network_fault("ssh reset", 1, |fixture, node| fixture.bed.fault(node, &["reset"]), |_, _| {});
}

#[test]
fn sshd_sessions_killed() {
    network_fault("sshd killed", 2, |fixture, node| fixture.bed.fault(node, &["drop-sessions"]), |_, _| {});
}

#[test]
fn link_down_and_up() {
    network_fault(
        "link down and up",
        3,
        |fixture, node| fixture.bed.fault(node, &["link", "down"]),
        |fixture, node| fixture.bed.fault(node, &["link", "up"]),
    );
}

#[test]
fn half_open_tcp() {
    network_fault(
        "half-open tcp",
        4,
        |fixture, node| fixture.bed.fault(node, &["drop", "22"]),
        |fixture, node| fixture.bed.fault(node, &["drop", "off"]),
    );
}

/// `RANKDECK_DROPS=1,30,600`: seconds for which a host's link is down, one after the other.
fn drops() -> Vec<u64> {
    let asked = std::env::var("RANKDECK_DROPS").unwrap_or_else(|_| "1".into());
    asked.split(',').map(|seconds| seconds.trim().parse().unwrap()).collect()
}

/// However long a link is down: nothing is restarted, the host is shown as unreachable with its age, and when
/// it is back not one record is missing.
#[test]
fn link_drops_lose_nothing() {
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
                screen.until("the host with its age", |t| t.text().contains("unreachable"));
                let text = screen.text();
                let age = |line: &&str| line.contains("heard ") && !line.contains("ms ago");
                shown = text.lines().find(age).unwrap_or_else(|| panic!("{text}")).trim().to_owned();
            }
            // The console's lines are read meanwhile, as somebody who watches would.
            console.drain(left.min(Duration::from_millis(500)));
        }
        fixture.bed.fault(1, &["link", "up"]);
        if seconds >= 10 {
            host_is_back(&mut console, 1);
        }
        console.wait_for_new("progress", 60, |v| v["kind"] == "progress");
        report("link down for a while", seconds, &shown, began.elapsed().as_secs_f64());
        assert_eq!(ranks(), before, "the same processes");
    }
    assert!(console.all("restart").is_empty() && console.all("run_started").len() == 1);
    let blamed: Vec<_> = console.all("verdict").into_iter().filter(|v| !v["rank"].is_null()).collect();
    assert!(blamed.is_empty(), "no rank is to blame: {blamed:?}");
    drop(screen);
    fixture.stop_without_a_gap(console);
}

#[test]
fn host_killed() {
    for round in 0..rounds() {
        let Some(fixture) = Fixture::start(NODES) else { return };
        let mut console = fixture.running();
        std::thread::sleep(Duration::from_millis(Random::new(50 + round).below(1500)));
        let began = Instant::now();
        fixture.bed.fault(1, &["kill"]);
        let seen = console.wait_for_new("the user is told", 60, |v| {
            v["kind"] == "verdict" && v["verdict"] == "lost" && v["host"] == "node1"
        });
        report(
            "host killed",
            round,
            &format!("verdict lost, host {}", seen["host"]),
            began.elapsed().as_secs_f64(),
        );
        let run = console.all("run_started")[0]["run"].as_str().unwrap().to_owned();
        // A host that is gone cannot prove anything, and that is said; the other one is stopped and proved.
        let stop = fixture.rankdeck(&["stop", &run]);
        let said =
            format!("{}{}", String::from_utf8_lossy(&stop.stdout), String::from_utf8_lossy(&stop.stderr));
        assert!(!stop.status.success() && said.contains("node1"), "{said}");
        wait_until("the other host is free", 60, || !fixture.bed.processes(0).contains("python3"));
        gapless(&console);
    }
}

#[test]
fn agent_killed() {
    for round in 0..rounds() {
        let Some(fixture) = Fixture::start(NODES) else { return };
        let mut console = fixture.running();
        std::thread::sleep(Duration::from_millis(Random::new(60 + round).below(1500)));
        let began = Instant::now();
        fixture.bed.on(1, "kill -9 $(pgrep -f '[r]ankdeck agent serve')");
        wait_until("the guard ends the ranks", 30, || !fixture.bed.processes(1).contains("python3"));
        let gone = began.elapsed().as_secs_f64();
        let status = console.finish(120);
        assert_eq!(status.code(), Some(1), "{}", console.told());
        let finished = console.seen.last().unwrap().clone();
        assert_eq!(finished["survivors"], Value::Array(vec![]), "{finished}");
        assert!(finished["reason"].as_str().unwrap().contains("the agent on node1"), "{finished}");
        report("agent SIGKILL", round, finished["reason"].as_str().unwrap(), gone);
        gapless(&console);
        fixture.nothing_is_left();
    }
}

#[test]
fn console_killed() {
    for round in 0..rounds() {
        let Some(fixture) = Fixture::start(NODES) else { return };
        let console = fixture.running();
        let run = console.all("run_started")[0]["run"].as_str().unwrap().to_owned();
        std::thread::sleep(Duration::from_millis(Random::new(70 + round).below(1500)));
        let began = Instant::now();
        // The bed's script passes no signal on: the console is its child.
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
        assert_eq!(first, Some(1), "the whole history is there");
        second.wait_for_new("progress goes on", 60, |v| v["kind"] == "progress");
        fixture.stop_without_a_gap_of(second, &run);
    }
}

impl Fixture {
    fn stop_without_a_gap_of(&self, mut console: Console, run: &str) {
        let stop = self.rankdeck(&["stop", run]);
        assert!(stop.status.success(), "{stop:?}");
        assert_eq!(console.finish(90).code(), Some(130), "{}", console.told());
        gapless(&console);
        self.nothing_is_left();
    }
}

/// Two consoles of two machines make up the same name in the same second: never do both go on. One is refused
/// and the other does not notice; both are refused when each was first on another host.
#[test]
fn two_launches_of_one_name() {
    let Some(fixture) = Fixture::start(NODES) else { return };
    for round in 0..rounds() {
        let experiment = fixture.counting(1_000_000, "");
        let began = Instant::now();
        let (mut winners, mut losers) = (Vec::new(), Vec::new());
        // Names hold a second: a pair that fell on both sides of one has different names and is tried again.
        for attempt in 0.. {
            assert!(attempt < 10, "no two consoles began in one second");
            let consoles = ["a", "b"].map(|machine| {
                let folder = fixture.bed.folder.path().join(machine);
                std::fs::create_dir_all(&folder).unwrap();
                let mut command =
                    fixture.bed.rankdeck(&fixture.hosts, &["run", &experiment, "--headless", "--json"]);
                // Consoles of one machine never make up the same name: their cache knows the names of all.
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
            assert_ne!(names[0], names[1], "both go on");
            for mut console in winners.drain(..) {
                let run = console.all("run_started")[0]["run"].as_str().unwrap().to_owned();
                assert!(fixture.rankdeck(&["stop", &run]).status.success());
                assert_eq!(console.finish(90).code(), Some(130), "{}", console.told());
            }
            fixture.nothing_is_left();
        }
        for mut loser in losers {
            assert_eq!(loser.finish(60).code(), Some(3), "{}", loser.told());
            let stderr = loser.stderr();
            assert!(stderr.contains("another console") || stderr.contains("is there already"), "{stderr}");
            report(
                "two launches of one name",
                round,
                stderr.lines().find(|line| line.starts_with("error:")).unwrap_or_default(),
                began.elapsed().as_secs_f64(),
            );
        }
        for mut winner in winners {
            winner.wait_for_new("the winner goes on", 60, |v| v["kind"] == "progress");
            fixture.stop_without_a_gap(winner);
        }
        fixture.nothing_is_left();
    }
}
