//! Orphan check: kill -9 of the console, of an agent, of a rank and of the SSH connection at random moments.
//!
//! Expected for each:
//! - console: the run keeps running, `ps` lists it, any console can stop it verifiably; or, killed before the
//!   launch, nothing is left;
//! - agent: its ranks and their children die with it, and the console ends the run with code 1;
//! - rank: its own children die with it, the run fails with code 1, nothing is left anywhere;
//! - SSH connection: the run keeps running and the console reconnects (in `tests/hosts/ssh_runs.rs`).
//!
//! `RANKDECK_ORPHAN_ROUNDS` sets the rounds per kind (default 2), `RANKDECK_ORPHAN_SEED` repeats a seed.

use crate::support::random::{Random, rounds};
use crate::support::{Bench, Console, kill, rankdeck, texts, wait_until};
use rankdeck_testkit::skip;
use serde_json::Value;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// A run of two hosts with one rank each that forks a TERM-ignoring worker and a daemon.
fn begin(bench: &Bench) -> (Console, String) {
    let hosts = bench.local_hosts(2, 1);
    let experiment = bench.program(&["--iters", "1000000", "--pause", "0.02", "--family"]);
    let hosts = hosts.to_str().unwrap().to_string();
    (Console::start(&["run", experiment.to_str().unwrap(), "--hosts", &hosts]), hosts)
}

/// A run that has made progress for a random time.
fn some_time_in(bench: &Bench, random: &mut Random) -> Console {
    let (mut console, _) = begin(bench);
    console.wait_kind("progress", 30);
    std::thread::sleep(Duration::from_millis(random.below(1000)));
    console
}

/// Pids of the agents.
fn agents(bench: &Bench) -> Vec<u32> {
    bench
        .processes()
        .iter()
        .filter(|(_, command)| command.contains(" agent serve"))
        .map(|(pid, _)| *pid)
        .collect()
}

#[test]
fn run_survives_a_killed_console() {
    let mut random = Random::new(1);
    for round in 0..rounds() {
        let bench = Bench::new();
        let (console, hosts) = begin(&bench);
        std::thread::sleep(Duration::from_millis(random.below(1500)));
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
fn killed_agent_fails_the_run() {
    let mut random = Random::new(2);
    for round in 0..rounds() {
        let bench = Bench::new();
        let mut console = some_time_in(&bench, &mut random);
        let agents = agents(&bench);
        assert!(agents.len() >= 2, "round {round}: agents {agents:?}");
        let victim = agents[random.below(agents.len() as u64) as usize];
        kill(victim, libc::SIGKILL);
        assert_eq!(console.finish(60).code(), Some(1), "round {round}: {:?}", console.seen.last());
        assert_eq!(console.seen.last().unwrap()["outcome"], "failed");
        wait_until("nothing is left", 20, || bench.rank_processes().is_empty());
    }
}

#[test]
fn killed_rank_fails_the_run() {
    let mut random = Random::new(3);
    for round in 0..rounds() {
        let bench = Bench::new();
        let mut console = some_time_in(&bench, &mut random);
        let victim = random.below(2);
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

/// A stopped agent holds its lease, its sweep and its parent-death signal still: only the guard is left to
/// act.
#[test]
fn stopped_agent_loses_its_ranks_to_the_guard() {
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

/// A daemon that clears its environment the moment its agent is killed: neither tree, session nor mark leads
/// to it, only the control group.
#[test]
fn untraceable_daemon_ends_with_its_agent() {
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

/// A user of a bench: whoever runs the tests, and, where that is root, one who may make no control group.
struct User<'a> {
    bench: &'a Bench,
    uid: Option<u32>,
}

impl User<'_> {
    fn each() -> Vec<Option<u32>> {
        let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
        if root { vec![None, Some(61_002)] } else { vec![None] }
    }

    fn own(&self, path: &std::path::Path) {
        std::os::unix::fs::chown(path, self.uid, self.uid).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = rankdeck();
        let sockets = self.bench.path().join("x");
        if std::fs::DirBuilder::new().mode(0o700).create(&sockets).is_ok() {
            self.own(&sockets);
            self.own(self.bench.path());
        }
        command.args(args).current_dir(self.bench.path()).env("XDG_RUNTIME_DIR", sockets);
        if let Some(uid) = self.uid {
            command.uid(uid).gid(uid).env("HOME", self.bench.path());
        }
        command
    }

    fn answer(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = self.command(args).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    }
}

/// Live processes whose command line begins with `start`.
fn called(start: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).starts_with(start)
    })
    .collect()
}

/// PROC-1: the kernel cuts names at 15 bytes, here inside a character.
#[test]
fn proc_1_programs_with_truncated_names_are_stopped() {
    for uid in User::each() {
        let bench = Bench::new();
        std::fs::set_permissions(bench.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let user = User { bench: &bench, uid };
        let hosts = bench.local_hosts(1, 1);
        let hosts = hosts.to_str().unwrap();
        let program = bench.path().join("run_\u{8bad}\u{7ec3}\u{811a}\u{672c}x");
        std::fs::copy("/bin/sleep", &program).unwrap();
        let program = program.to_str().unwrap();
        let experiment = bench.write(
            "experiment.toml",
            &format!(
                "[run]\nname = \"named\"\n[launch]\nstop_grace_s = 1.0\n\
                 command = [\"/bin/sh\", \"-c\", \"setsid '{program}' 777 & exec '{program}' 300\"]\n"
            ),
        );
        let run = ["run", experiment.to_str().unwrap(), "--hosts", hosts, "--headless", "--json"];
        let mut console = Console::spawn(user.command(&run));
        let started = console.wait_kind("run_started", 60);
        wait_until("both are there", 60, || called(program).len() == 2);
        wait_until("ps lists the rank", 60, || {
            let listed = user.answer(&["ps", "--json", "--hosts", hosts]).1;
            let listed: Value = serde_json::from_str(&listed).unwrap_or_else(|_| panic!("{listed}"));
            assert_eq!(listed["state"], "running", "{listed}");
            listed["ranks_alive"] == 1
        });
        let (code, output_text) = user.answer(&["stop", started["run"].as_str().unwrap(), "--hosts", hosts]);
        assert_eq!((code, called(program)), (Some(0), vec![]), "{uid:?}: {output_text}");
        console.finish(60);
    }
}

/// A guard that cannot write its notes logs that once, and retries.
#[test]
fn unwritable_guard_note_is_in_the_agent_log() {
    let bench = Bench::new();
    let user = User { bench: &bench, uid: None };
    let hosts = bench.local_hosts(1, 1);
    let hosts = hosts.to_str().unwrap();
    let text =
        "[run]\nname = \"d\"\n[launch]\ncommand = [\"/bin/sh\", \"-c\", \"sleep 777; exec sleep 778\"]\n";
    let experiment = bench.write("experiment.toml", text);
    let run = ["run", experiment.to_str().unwrap(), "--hosts", hosts, "--headless", "--json"];
    let mut console = Console::spawn(user.command(&run));
    let started = console.wait_kind("run_started", 60);
    let run = started["run"].as_str().unwrap().to_owned();
    let note = || {
        let notes = std::fs::read_dir(bench.path().join("x/rankdeck")).into_iter().flatten().flatten();
        notes.map(|note| note.path()).find(|path| path.extension().is_some_and(|end| end == "below"))
    };
    let sleeper = || {
        let all = bench.processes().into_iter().find(|(_, line)| line.trim() == "sleep 777");
        all.map(|(pid, _)| pid)
    };
    wait_until("the guard has noted the rank", 60, || sleeper().is_some() && note().is_some());
    let log = || {
        let logs = std::fs::read_dir(bench.path().join("runs").join(&run)).into_iter().flatten().flatten();
        let read =
            |path: std::path::PathBuf| std::fs::read_to_string(path.join("agent.log")).unwrap_or_default();
        logs.map(|node| read(node.path())).collect::<String>()
    };
    let note = note().unwrap();
    std::fs::remove_file(&note).unwrap();
    std::fs::create_dir(&note).unwrap();
    kill(sleeper().unwrap(), libc::SIGKILL);
    let reports = || log().matches(note.to_str().unwrap()).count();
    wait_until("the failure is logged once", 30, || reports() == 1);
    std::fs::remove_dir(&note).unwrap();
    wait_until("its end is logged", 30, || reports() == 2 && note.is_file());
    let (code, output_text) = user.answer(&["stop", &run, "--hosts", hosts]);
    assert_eq!(code, Some(0), "{output_text}");
    console.finish(60);
}

/// LEFT-1: `pkill -9 rankdeck`, as the out-of-memory killer does it. What was forked twice, with a session
/// and an environment of its own, is found by the control group or by the guard's note.
#[test]
fn left_1_untagged_leftovers_are_found_after_a_kill() {
    for uid in User::each() {
        let bench = Bench::new();
        std::fs::set_permissions(bench.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let user = User { bench: &bench, uid };
        let hosts = bench.local_hosts(1, 1);
        let hosts = hosts.to_str().unwrap();
        let name = format!("untraced-{}-{}", std::process::id(), uid.unwrap_or(0));
        let script = bench.write(
            "daemon.py",
            "import os, sys, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        \
             os.execve('/bin/sleep', [sys.argv[1], '600'], {})\n    os._exit(0)\ntime.sleep(1000)\n",
        );
        let text = format!("[run]\nname = \"d\"\n[launch]\ncommand = [\"python3\", {script:?}, {name:?}]\n");
        let experiment = bench.write("experiment.toml", &text);
        let run = ["run", experiment.to_str().unwrap(), "--hosts", hosts, "--headless", "--json"];
        let mut console = Console::spawn(user.command(&run));
        let started = console.wait_kind("run_started", 60);
        wait_until("the daemon is there", 60, || called(&name).len() == 1);
        let daemon = called(&name)[0].to_string();
        let noted = || {
            let notes = std::fs::read_dir(bench.path().join("x/rankdeck")).into_iter().flatten().flatten();
            let mut texts = notes.map(|note| std::fs::read_to_string(note.path()).unwrap_or_default());
            texts.any(|text| text.lines().any(|line| line.split(' ').next() == Some(&daemon)))
        };
        wait_until("the guard has noted it", 30, noted);
        console.signal(libc::SIGKILL);
        drop(console);
        let watchers = || {
            let all = bench.processes().into_iter();
            all.filter(|(_, line)| line.contains(" agent ")).map(|(pid, _)| pid).collect::<Vec<_>>()
        };
        let agents = watchers();
        assert!(agents.len() >= 2, "{agents:?}");
        agents.iter().for_each(|pid| kill(*pid, libc::SIGSTOP));
        agents.iter().for_each(|pid| kill(*pid, libc::SIGKILL));
        wait_until("agent and guard are gone", 30, || watchers().is_empty());
        let run = started["run"].as_str().unwrap();
        let listed = user.answer(&["ps", "--json", "--hosts", hosts]).1;
        let listed: Value = serde_json::from_str(&listed).unwrap_or_else(|_| panic!("{listed}"));
        assert_eq!(listed["state"], "orphaned", "{uid:?}: {listed}");
        let (code, output_text) = user.answer(&["stop", run, "--kill", "--hosts", hosts]);
        assert_eq!((code, called(&name)), (Some(0), vec![]), "{uid:?}: {output_text}");
    }
}

/// By the command, and by the console that launched the run: something else has stopped agents and guards.
#[test]
fn stop_resumes_stopped_agents() {
    for by_command in [true, false] {
        let bench = Bench::new();
        let experiment = bench.program(&["--iters", "1000000", "--pause", "0.02"]);
        let (hosts, experiment) = (bench.local_hosts(2, 1), experiment.to_str().unwrap().to_owned());
        let hosts = hosts.to_str().unwrap();
        let mut console = Console::start(&["run", &experiment, "--hosts", hosts]);
        let run = console.wait_kind("run_started", 60)["run"].as_str().unwrap().to_owned();
        console.wait_kind("progress", 60);
        let watchers = || {
            let all = bench.processes().into_iter();
            all.filter(|(_, line)| line.contains(" agent ")).map(|(pid, _)| pid).collect::<Vec<_>>()
        };
        if by_command {
            kill(console.pid(), libc::SIGKILL);
        }
        assert!(watchers().len() >= 4, "two agents and their guards");
        watchers().iter().for_each(|pid| kill(*pid, libc::SIGSTOP));
        if by_command {
            let output = rankdeck().args(["stop", &run, "--hosts", hosts]).output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{output:?}");
        } else {
            console.signal(libc::SIGINT);
            assert_eq!(console.finish(60).code(), Some(130));
        }
        assert_eq!(bench.rank_processes(), []);
        wait_until("agents and guards have ended", 60, || watchers().is_empty());
    }
}

/// CLI-3. A host that has lost a run's folder, or whose `workdir` is another one now, proves nothing: not
/// even when every other host does.
#[test]
fn host_without_the_runs_directory_is_unverified() {
    let bench = Bench::new();
    let hosts = |name: &str, workdirs: [&str; 2]| {
        let host = |(node, workdir): (usize, &&str)| {
            let workdir = bench.path().join(workdir);
            std::fs::create_dir_all(&workdir).unwrap();
            format!(
                "[[host]]\nname = \"local{node}\"\ntransport = \"local\"\nnproc = 1\nworkdir = {workdir:?}\n"
            )
        };
        let text = workdirs.iter().enumerate().map(host).collect::<String>();
        bench.write(name, &text).to_str().unwrap().to_owned()
    };
    let launched = hosts("hosts.toml", ["a", "b"]);
    let experiment = bench.program(&["--iters", "1000000", "--pause", "0.02"]);
    let mut console = Console::start(&["run", experiment.to_str().unwrap(), "--hosts", &launched]);
    let run = console.wait_kind("run_started", 60)["run"].as_str().unwrap().to_owned();
    console.wait_kind("progress", 60);
    kill(console.pid(), libc::SIGKILL);
    let stop = |hosts: &str| {
        let output = rankdeck().args(["stop", &run, "--hosts", hosts]).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    // No host lists it.
    let (code, output_text) = stop(&hosts("moved.toml", ["c", "d"]));
    assert_eq!(code, Some(1), "{output_text}");
    assert!(output_text.contains("local0"), "{output_text}");
    assert_eq!(bench.rank_processes().len(), 2, "nothing was ended");
    // One of two lists it.
    let (code, output_text) = stop(&hosts("half.toml", ["a", "d"]));
    assert_eq!(code, Some(1), "{output_text}");
    assert!(output_text.contains("local1"), "{output_text}");
    // The folder of the other is gone.
    std::fs::remove_dir_all(bench.path().join("b/runs")).unwrap();
    let (code, output_text) = stop(&launched);
    assert_eq!(code, Some(1), "{output_text}");
    assert!(output_text.contains("local1"), "{output_text}");
    drop(console);
}

/// A run is stopped on the hosts that it was launched on, whatever the hosts file now lists.
#[test]
fn run_is_stopped_where_it_was_launched() {
    let bench = Bench::new();
    let hosts = |names: [&str; 2], workdirs: [&str; 2]| {
        let host = |(name, workdir): (&str, &str)| {
            let workdir = bench.path().join(workdir);
            std::fs::create_dir_all(&workdir).unwrap();
            format!("[[host]]\nname = {name:?}\ntransport = \"local\"\nnproc = 1\nworkdir = {workdir:?}\n")
        };
        let text: String = names.into_iter().zip(workdirs).map(host).collect();
        bench.write("hosts.toml", &text).to_str().unwrap().to_owned()
    };
    let experiment = bench.program(&["--iters", "1000000", "--pause", "0.02"]);
    // Other directories, another name, and no file at all.
    let changes: [Option<([&str; 2], [&str; 2])>; 3] =
        [Some((["one", "two"], ["c", "d"])), Some((["two", "three"], ["c", "b"])), None];
    for change in changes {
        let file = hosts(["one", "two"], ["a", "b"]);
        let mut console = Console::start(&["run", experiment.to_str().unwrap(), "--hosts", &file]);
        let run = console.wait_kind("run_started", 60)["run"].as_str().unwrap().to_owned();
        console.wait_kind("progress", 60);
        kill(console.pid(), libc::SIGKILL);
        drop(console);
        match change {
            Some((names, workdirs)) => drop(hosts(names, workdirs)),
            None => std::fs::remove_file(&file).unwrap(),
        }
        let mut stop = rankdeck();
        let output = stop.args(["stop", &run, "--hosts", &file]).current_dir(bench.path()).output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert_eq!(output.status.code(), Some(0), "{change:?}: {text}");
        assert!(text.contains(texts::VERIFIED) && text.contains("2 hosts"), "{change:?}: {text}");
        assert_eq!(bench.rank_processes().len(), 0, "{change:?}");
    }
}

/// LOCATE-1: every command that names a run finds it on the hosts of its launch.
#[test]
fn locate_1_commands_find_a_run_without_its_hosts_file() {
    let bench = Bench::new();
    let host = |name: &str| {
        let workdir = bench.path().join(name);
        std::fs::create_dir_all(&workdir).unwrap();
        format!("[[host]]\nname = {name:?}\ntransport = \"local\"\nnproc = 1\nworkdir = {workdir:?}\n")
    };
    let file = bench.write("launch.toml", &format!("{}{}", host("one"), host("two")));
    let today = bench.write("today.toml", &host("three"));
    let experiment = bench.program(&["--iters", "1000000", "--pause", "0.02"]);
    let mut console =
        Console::start(&["run", experiment.to_str().unwrap(), "--hosts", file.to_str().unwrap()]);
    let run = console.wait_kind("run_started", 60)["run"].as_str().unwrap().to_owned();
    console.wait_kind("progress", 60);
    kill(console.pid(), libc::SIGKILL);
    drop(console);
    std::fs::remove_file(&file).unwrap();
    let call = |words: &[&str]| {
        let hosts = ["--hosts", today.to_str().unwrap()];
        let output = rankdeck().args(words).args(hosts).current_dir(bench.path()).output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), text)
    };
    for (words, code) in [
        (vec!["status", "--json"], 0),
        (vec!["status", &run, "--json"], 0),
        (vec!["logs", &run, "--tail", "1"], 0),
        (vec!["wait", "--timeout", "1s"], 124),
        (vec!["fetch", &run, "*.log"], 0),
        (vec!["rm", &run, "--yes"], 2),
        (vec!["stop"], 0),
        (vec!["wait", &run], 130),
        (vec!["attach", &run, "--headless"], 130),
        (vec!["restart", &run, "--from", "scratch", "--yes"], 0),
        (vec!["stop", &run[..4]], 0),
        (vec!["rm", &run, "--yes"], 0),
        (vec!["status", &run], 2),
    ] {
        let (exited, text) = call(&words);
        assert_eq!(exited, Some(code), "{words:?}: {text}");
        if matches!(words[0], "logs" | "attach" | "stop") {
            let notes =
                text.lines().filter(|line| line.starts_with("note: ") && line.ends_with(": one, two"));
            assert_eq!(notes.count(), 1, "{words:?}: {text}");
        }
    }
    assert_eq!(bench.rank_processes().len(), 0);
    assert!(!bench.path().join("one/runs").join(&run).exists(), "rm reaches the hosts of the launch");
}
