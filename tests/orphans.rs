//! Orphan check: kill -9 of the console, of an agent, of a rank and of the SSH connection at random moments.
//!
//! What is right for each:
//! - console: the run goes on, `ps` lists it, any console can stop it with proof; or, killed before the launch, nothing stays;
//! - agent: its ranks and their children die with it, and the console ends the run with code 1;
//! - rank: its own children die with it, the run fails with code 1, nothing is left anywhere;
//! - SSH connection: the run goes on and the console has it again (in `tests/ssh_runs.rs`).
//!
//! `RANKDECK_ORPHAN_ROUNDS` sets the rounds per kind (default 2), `RANKDECK_ORPHAN_SEED` repeats a seed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that fails should say so loudly"
)]

mod support;

use serde_json::Value;
use std::time::Duration;
use support::moments::{Moments, rounds};
use support::{Bench, Console, kill, rankdeck, wait_until};

/// A run of two hosts with one rank each that forks a TERM-ignoring worker and a daemon.
fn begin(bench: &Bench) -> (Console, String) {
    let hosts = bench.local_hosts(2, 1);
    let experiment = bench.program(&["--iters", "1000000", "--pause", "0.02", "--family"]);
    let hosts = hosts.to_str().unwrap().to_string();
    (Console::start(&["run", experiment.to_str().unwrap(), "--hosts", &hosts]), hosts)
}

/// Pids of a kind: `agent` or `rank`.
fn agents(bench: &Bench) -> Vec<u32> {
    bench
        .processes()
        .iter()
        .filter(|(_, command)| command.contains(" agent serve"))
        .map(|(pid, _)| *pid)
        .collect()
}

#[test]
fn console_killed() {
    let mut moments = Moments::new(1);
    for round in 0..rounds() {
        let bench = Bench::new();
        let (console, hosts) = begin(&bench);
        std::thread::sleep(Duration::from_millis(moments.below(1500)));
        kill(console.pid(), libc::SIGKILL);
        drop(console);
        let folder = bench.path().join("runs");
        let run = std::fs::read_dir(&folder).into_iter().flatten().flatten().next();
        let run = run.map(|entry| entry.file_name().into_string().unwrap());
        let Some(run) = run else {
            wait_until("nothing stays", 60, || bench.processes().is_empty());
            continue;
        };
        // Orders already sent are still being carried out: wait until the hosts agree on what they run.
        let mut last = usize::MAX;
        wait_until("the hosts settle", 20, || {
            std::thread::sleep(Duration::from_millis(300));
            let now = bench.rank_processes().len();
            std::mem::replace(&mut last, now) == now
        });
        if bench.rank_processes().is_empty() {
            wait_until("agents without a launch leave", 60, || bench.processes().is_empty());
            continue;
        }
        let listed = rankdeck().args(["ps", "--json", "--hosts", &hosts]).output().unwrap();
        assert!(String::from_utf8_lossy(&listed.stdout).contains(&run), "round {round}: {listed:?}");
        let stop = rankdeck().args(["stop", &run, "--hosts", &hosts]).output().unwrap();
        assert!(stop.status.success(), "round {round}: {stop:?}");
        assert!(bench.rank_processes().is_empty(), "round {round}: {:?}", bench.rank_processes());
    }
}

#[test]
fn agent_killed() {
    let mut moments = Moments::new(2);
    for round in 0..rounds() {
        let bench = Bench::new();
        let (mut console, _) = begin(&bench);
        console.wait_kind("progress", 30);
        std::thread::sleep(Duration::from_millis(moments.below(1000)));
        let agents = agents(&bench);
        assert!(agents.len() >= 2, "round {round}: agents {agents:?}");
        let victim = agents[moments.below(agents.len() as u64) as usize];
        kill(victim, libc::SIGKILL);
        assert_eq!(console.finish(60).code(), Some(1), "round {round}: {:?}", console.seen.last());
        assert_eq!(console.seen.last().unwrap()["outcome"], "failed");
        wait_until("nothing is left", 20, || bench.rank_processes().is_empty());
    }
}

#[test]
fn rank_killed() {
    let mut moments = Moments::new(3);
    for round in 0..rounds() {
        let bench = Bench::new();
        let (mut console, _) = begin(&bench);
        console.wait_kind("progress", 30);
        std::thread::sleep(Duration::from_millis(moments.below(1000)));
        let victim = moments.below(2);
        let line = console
            .wait_for("its pid", 5, |v| v["kind"] == "rank" && v["rank"] == victim && v["pid"].is_u64());
        kill(line["pid"].as_u64().unwrap() as u32, libc::SIGKILL);
        assert_eq!(console.finish(60).code(), Some(1), "round {round}");
        let finished = console.seen.last().unwrap();
        assert_eq!(
            (&finished["outcome"], &finished["proved"]),
            (&Value::from("failed"), &Value::from(true)),
            "{finished}"
        );
        let dead = console.all("verdict");
        assert!(
            dead.iter().any(|v| v["verdict"] == "dead" && v["rank"] == victim),
            "round {round}: {dead:?}"
        );
        assert!(bench.rank_processes().is_empty(), "round {round}: {:?}", bench.rank_processes());
    }
}
