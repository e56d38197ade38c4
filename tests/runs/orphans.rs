//! Orphan check: kill -9 of the console, of an agent, of a rank and of the SSH connection at random moments.
//!
//! What is right for each:
//! - console: the run goes on, `ps` lists it, any console can stop it with proof; or, killed before the launch, nothing stays;
//! - agent: its ranks and their children die with it, and the console ends the run with code 1;
//! - rank: its own children die with it, the run fails with code 1, nothing is left anywhere;
//! - SSH connection: the run goes on and the console has it again (in `tests/hosts/ssh_runs.rs`).
//!
//! `RANKDECK_ORPHAN_ROUNDS` sets the rounds per kind (default 2), `RANKDECK_ORPHAN_SEED` repeats a seed.

use crate::support::moments::{Moments, rounds};
use crate::support::{Bench, Console, kill, rankdeck, wait_until};
use rankdeck_testkit::skip;
use serde_json::Value;
use std::time::Duration;

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

/// A stopped agent holds its lease, its sweep and its parent-death signal still: only the guard is left to act.
#[test]
fn agent_stopped() {
    let bench = Bench::new();
    let (mut console, _) = begin(&bench);
    console.wait_kind("progress", 30);
    let victim = agents(&bench)[0];
    kill(victim, libc::SIGSTOP);
    let ranks_of = |node: &str| {
        bench
            .rank_processes()
            .into_iter()
            .filter(|(pid, _)| {
                let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                String::from_utf8_lossy(&environ).contains(&format!("RANKDECK_NODE={node}\0"))
            })
            .count()
    };
    let node = |pid: u32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        line.split('\0').skip_while(|word| *word != "--node-rank").nth(1).unwrap().to_owned()
    };
    let node = node(victim);
    wait_until("the guard ends what the stopped agent holds", 60, || ranks_of(&node) == 0);
    kill(victim, libc::SIGCONT);
    assert_eq!(console.finish(90).code(), Some(1), "{:?}", console.seen.last());
    wait_until("nothing is left", 20, || bench.rank_processes().is_empty());
}

/// A daemon that clears its environment the moment its agent is killed: neither tree, session nor mark leads to it, only the control group.
#[test]
fn agent_killed_beside_a_daemon_without_traces() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let script = bench.write(
        "daemons.py",
        "import os, sys, time\nmark = sys.argv[1]\n\
         while True:\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n            \
         os.execve('/bin/sleep', ['sleep-' + mark, '7'], {})\n        os._exit(0)\n    os.wait()\n    time.sleep(0.02)\n",
    );
    let mark = format!("trace-{}", std::process::id());
    let experiment = bench.write(
        "experiment.toml",
        &format!("[run]\nname = \"d\"\n[launch]\ncommand = [\"python3\", {script:?}, {mark:?}]\n"),
    );
    let daemons = || {
        let folders = std::fs::read_dir("/proc").unwrap().flatten();
        folders
            .filter(|entry| {
                let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
                String::from_utf8_lossy(&line).starts_with(&format!("sleep-{mark}"))
            })
            .count()
    };
    let mut console =
        Console::start(&["run", experiment.to_str().unwrap(), "--hosts", hosts.to_str().unwrap()]);
    wait_until("daemons are there", 30, || daemons() > 20);
    let agent = agents(&bench)[0];
    let grouped = std::fs::read_to_string(format!("/proc/{agent}/cgroup")).unwrap();
    let rank = bench.rank_processes()[0].0;
    let apart = std::fs::read_to_string(format!("/proc/{rank}/cgroup")).unwrap() != grouped;
    if !apart {
        skip!("no writable cgroup v2 here, so nothing leads to a process without traces");
    }
    kill(agent, libc::SIGKILL);
    // They would live for 7 s by themselves.
    wait_until("no daemon is left", 4, || daemons() == 0);
    assert_eq!(console.finish(60).code(), Some(1));
}
