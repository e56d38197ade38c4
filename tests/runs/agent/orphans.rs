//! Nothing outlives its run: every way in which an agent, a rank or a stop can go wrong.

use super::bed::*;
use rankdeck_agent::serve::daemon::ServingAgent;
use rankdeck_proto::message::*;
use sha2::{Digest, Sha256};
use std::path::PathBuf;

/// A rank with a worker that ignores SIGTERM, a daemon that left its session and parent, and one that cleared
/// its environment as well.
const FAMILY: &str = r#"
import os, signal, sys, time
def child(work):
    if os.fork() == 0:
        work()
        while True:
            time.sleep(1000)
def stubborn():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
def daemon(clean):
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    if clean:
        os.execve("/bin/sleep", ["sleep", "300"], {})
child(stubborn)
child(lambda: daemon(False))
child(lambda: daemon(True))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

print("up", flush=True)
while True:
    time.sleep(1000)
"#;

/// Processes that a family of `ranks` ranks consists of: rank, worker, daemon (marked), and the one without a
/// mark.
fn family(bed: &Bed, console: &mut Console, ranks: u32) -> Vec<(u32, u64)> {
    let script = bed.script("family.py", FAMILY);
    console.launch(bed.spec(0, ranks, &["python3", &script]));
    for rank in 0..ranks {
        console.wait_line(rank, "up");
    }
    until("the whole family", || {
        let agent = bed.watchers().iter().find(|stat| is_agent(stat.pid)).map(|stat| stat.pid)?;
        let guards: Vec<u32> = bed.watchers().iter().map(|stat| stat.pid).collect();
        let all: Vec<_> = rankdeck_agent::proc::descendants(agent)
            .into_iter()
            .filter(|pid| !guards.contains(pid))
            .filter_map(rankdeck_agent::proc::stat)
            .filter(|stat| !stat.is_gone())
            .collect();
        // Rank, daemon and sleeper are children of the agent, the worker is the rank's; anything else is
        // still on its way.
        let count = |expected: &dyn Fn(&rankdeck_agent::proc::ProcStat) -> bool| {
            all.iter().filter(|stat| expected(stat)).count()
        };
        let ranks = ranks as usize;
        let settled = all.len() == 4 * ranks
            && count(&|stat| stat.comm == "sleep") == ranks
            && count(&|stat| stat.ppid == agent) == 3 * ranks;
        settled.then(|| all.iter().map(|stat| (stat.pid, stat.start)).collect())
    })
}

/// Waits until the guard has scanned the process tree again: it cannot find an untagged process that it has
/// never seen.
fn guard_has_scanned(bed: &Bed) {
    let guard = bed.watchers().iter().map(|stat| stat.pid).find(|pid| !is_agent(*pid)).unwrap();
    let waits = || {
        let status = std::fs::read_to_string(format!("/proc/{guard}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    let before = waits();
    until("the guard scans", || (waits() >= before + 4).then_some(()));
}

fn is_agent(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| line.split(|b| *b == 0).nth(2) == Some(b"serve"))
}

fn alive(family: &[(u32, u64)]) -> Vec<u32> {
    let lives = |(pid, start): &&(u32, u64)| {
        rankdeck_agent::proc::stat(*pid).is_some_and(|stat| stat.start == *start && !stat.is_gone())
    };
    family.iter().filter(lives).map(|(pid, _)| *pid).collect()
}

#[test]
fn stop_ends_workers_daemons_and_untagged_processes() {
    for (name, mode) in [("sc", StopMode::Clean), ("st", StopMode::Terminate), ("sk", StopMode::Kill)] {
        let bed = Bed::new(name);
        let mut console = Console::attach(&bed.start(), 0);
        let family = family(&bed, &mut console, 2);
        assert_eq!(alive(&family).len(), 8);
        console.stop(mode, 20_000);
        assert_eq!(console.stopped(), []);
        assert_eq!(alive(&family), [0; 0], "{mode:?}");
        assert_eq!(bed.marked(), []);
    }
}

#[test]
fn killed_rank_ends_only_its_own_workers() {
    let bed = Bed::new("rankkill");
    let mut console = Console::attach(&bed.start(), 0);
    let family = family(&bed, &mut console, 2);
    kill(console.pid(0), libc::SIGKILL);
    assert_eq!(console.exit(0).0, Exit::Signal { signal: 9, out_of_memory: false });
    // Rank 0 with its worker and its marked daemon. What cleared both session and mark is found by the proof
    // at the end.
    until("the workers of rank 0 are gone", || (alive(&family).len() == 5).then_some(()));
    let other = console.pid(1);
    assert!(alive(&family).contains(&other));
    assert!(console.find(|event| matches!(event, RecordEvent::StopOrdered { .. }).then_some(())).is_none());
    console.stop(StopMode::Kill, 0);
    assert_eq!(console.stopped(), []);
    assert_eq!(alive(&family), [0; 0]);
}

#[test]
fn killed_agent_ends_its_ranks_and_the_next_reports_it() {
    let bed = Bed::new("agentkill");
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    let family = family(&bed, &mut console, 2);
    let seen = console.records.len() as u64;
    guard_has_scanned(&bed);
    kill(agent.pid, libc::SIGKILL);
    until("all are gone", || alive(&family).is_empty().then_some(()));
    until("the guard is gone", || bed.watchers().is_empty().then_some(()));
    assert_eq!(bed.marked(), []);
    assert_eq!(serde_json::to_value(&bed.list()[0]).unwrap()["state"], "finished");
    let again: ServingAgent = bed.start();
    let mut console = Console::attach(&again, seen);
    assert_eq!(console.stopped(), []);
    assert_eq!(console.exit(1).0, Exit::Signal { signal: 9, out_of_memory: false });
    assert_eq!(console.seqs(), (seen + 1..=seen + console.records.len() as u64).collect::<Vec<_>>());
    console.launch(bed.spec(1, 1, &["true"]));
    console.wait("the next generation", |console| {
        console.records.iter().filter(|r| matches!(r.event, RecordEvent::Stopped { .. })).count() == 2
    });
}

#[test]
fn stopped_agent_loses_its_run_and_reports_it() {
    let bed = Bed::new("agentstop");
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    let family = family(&bed, &mut console, 1);
    kill(agent.pid, libc::SIGSTOP);
    until("all are gone", || alive(&family).is_empty().then_some(()));
    let output = bed.agent(&bed.start_args("0"));
    let failure: serde_json::Value = answer(&output, "RANKDECK-AGENT");
    assert!(failure["hint"].as_str().unwrap().contains("kill -CONT"), "{failure}");
    kill(agent.pid, libc::SIGCONT);
    assert_eq!(console.exit(0).0, Exit::Signal { signal: 9, out_of_memory: false });
    assert_eq!(console.stopped(), []);
}

#[test]
fn start_2_stopped_agent_is_resumed_for_a_stop_only() {
    let bed = Bed::new("agentresume");
    let agent = bed.start();
    let watchers = || bed.watchers();
    until("agent and guard", || (watchers().len() == 2).then_some(()));
    watchers().iter().for_each(|stat| kill(stat.pid, libc::SIGSTOP));
    until("both are stopped", || watchers().iter().all(|stat| stat.state == 'T').then_some(()));
    let failure: serde_json::Value = answer(&bed.agent(&bed.start_args("0")), "RANKDECK-AGENT");
    assert!(failure["hint"].as_str().unwrap().contains("kill -CONT"), "{failure}");
    assert!(watchers().iter().all(|stat| stat.state == 'T'));
    let resume = [&bed.start_args("0")[..], &["--resume"]].concat();
    let found: ServingAgent = answer(&bed.agent(&resume), "RANKDECK-AGENT");
    assert_eq!(found.pid, agent.pid);
    assert!(watchers().iter().all(|stat| stat.state != 'T'), "the guard, too");
}

#[test]
fn killed_guard_is_replaced() {
    let bed = Bed::new("guardkill");
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    let family = family(&bed, &mut console, 1);
    let guard = || bed.watchers().iter().map(|stat| stat.pid).find(|pid| !is_agent(*pid));
    let first = guard().unwrap();
    kill(first, libc::SIGKILL);
    until("another guard", || guard().filter(|pid| *pid != first));
    console.wait("notice", |console| {
        console.find(|e| matches!(e, RecordEvent::Notice { .. }).then_some(())).is_some()
    });
    guard_has_scanned(&bed);
    kill(agent.pid, libc::SIGKILL);
    until("all are gone", || alive(&family).is_empty().then_some(()));
}

#[test]
fn sweep_finds_tagged_leftovers() {
    let bed = Bed::new("both");
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    let family = family(&bed, &mut console, 2);
    guard_has_scanned(&bed);
    let guard = bed.watchers().iter().map(|stat| stat.pid).find(|pid| !is_agent(*pid)).unwrap();
    kill(guard, libc::SIGSTOP);
    kill(agent.pid, libc::SIGKILL);
    kill(guard, libc::SIGKILL);
    until("the ranks died with the agent", || (alive(&family).len() == 6).then_some(()));
    let entry = &bed.list()[0];
    assert_eq!(serde_json::to_value(entry).unwrap()["state"], "orphaned");
    assert_eq!((entry.pids.len(), entry.ranks_alive), (6, 0), "two workers, two daemons, two without a mark");
    let workdir = bed.workdir().to_str().unwrap();
    let swept: serde_json::Value =
        answer(&bed.agent(&["sweep", "--run", &bed.run, "--workdir", workdir]), "RANKDECK-SWEEP");
    assert_eq!(swept, serde_json::json!({"survivors": []}));
    assert_eq!(bed.marked(), []);
    assert_eq!(alive(&family), [0; 0]);
    assert_eq!(serde_json::to_value(&bed.list()[0]).unwrap()["state"], "finished");
    assert!(left_groups(&bed).is_empty(), "{:?}", left_groups(&bed));
}

/// LEFT-1: the next agent scans the same places.
#[test]
fn left_1_untagged_leftovers_are_killed_by_next_agent() {
    let bed = Bed::new("next");
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    let family = family(&bed, &mut console, 1);
    guard_has_scanned(&bed);
    let guard = bed.watchers().iter().map(|stat| stat.pid).find(|pid| !is_agent(*pid)).unwrap();
    kill(guard, libc::SIGSTOP);
    kill(agent.pid, libc::SIGKILL);
    kill(guard, libc::SIGKILL);
    // An agent that is dying still takes connections.
    until("agent and guard have ended", || bed.watchers().is_empty().then_some(()));
    let mut console = Console::attach(&bed.start(), 0);
    assert_eq!(console.stopped(), []);
    assert_eq!(alive(&family), [0; 0]);
    assert_eq!(left_groups(&bed).len(), 1, "that of the agent that serves now");
}

/// Control groups of agents of this run.
fn left_groups(bed: &Bed) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let tree =
        mounts.lines().find(|line| line.contains(" - cgroup2 ")).and_then(|line| line.split(' ').nth(4));
    let stem =
        rankdeck_types::words::hex(&Sha256::digest(bed.node_dir(0).as_os_str().as_encoded_bytes())[..8]);
    let folders = tree.into_iter().flat_map(|tree| std::fs::read_dir(tree).into_iter().flatten().flatten());
    folders.map(|entry| entry.path()).filter(|path| path.to_string_lossy().contains(&stem)).collect()
}

#[test]
fn sweep_leaves_a_living_agents_run_alone() {
    let bed = Bed::new("sweepalive");
    let mut console = Console::attach(&bed.start(), 0);
    console.launch(bed.spec(0, 1, &["sh", "-c", "echo up; sleep 1000"]));
    console.wait_line(0, "up");
    let before = bed.marked().len();
    bed.agent(&["sweep", "--run", &bed.run, "--workdir", bed.workdir().to_str().unwrap()]);
    assert_eq!(bed.marked().len(), before);
    let entry = &bed.list()[0];
    assert_eq!((entry.ranks_alive, entry.host.as_str(), entry.hosts.len()), (1, "a", 1));
    assert_eq!(serde_json::to_value(entry).unwrap()["state"], "running");
}

#[test]
fn signaled_agent_stops_its_run_first() {
    let bed = Bed::new("term");
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    let family = family(&bed, &mut console, 1);
    kill(agent.pid, libc::SIGHUP);
    kill(agent.pid, libc::SIGTERM);
    assert_eq!(console.stopped(), []);
    console.wait("bye", |console| console.others.iter().any(|m| matches!(m, AgentMessage::Bye { .. })));
    until("agent and guard have ended", || bed.watchers().is_empty().then_some(()));
    assert_eq!(alive(&family), [0; 0]);
    assert!(
        console
            .find(|e| matches!(e, RecordEvent::StopOrdered { by, .. } if by == "signal").then_some(()))
            .is_some()
    );
}

#[test]
fn unattended_failure_stops_the_other_ranks() {
    let mut bed = Bed::new("unattended");
    bed.timing = "unattended=0.5,linger=600".into();
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    let script = bed.script("rank.sh", "echo up; [ $RANKDECK_RANK = 1 ] && { while [ ! -e go ]; do sleep 0.05; done; exit 9; }; sleep 1000\n");
    console.launch(bed.spec(0, 2, &["sh", &script]));
    console.wait_line(0, "up");
    drop(console);
    std::fs::write(bed.workdir().join("go"), "").unwrap();
    until("rank 0 is stopped", || bed.marked().is_empty().then_some(()));
    let mut console = Console::attach(&agent, 0);
    assert_eq!(console.stopped(), []);
    assert_eq!(console.exit(1).0, Exit::Code { code: 9 });
    assert!(
        console
            .find(|e| matches!(e, RecordEvent::StopOrdered { by, .. } if by == "rank 1 failed").then_some(()))
            .is_some()
    );
}
