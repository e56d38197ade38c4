//! A whole run with real processes on this machine: console, agents, ranks. SSH and the trainer have test
//! files of their own.

use crate::support::{Bench, Console, kill, rankdeck, wait_until};
use rankdeck_testkit::python;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// Body of a rank that really waits for its peers: this test binary, started by an agent through
/// `launch.command`. It writes a status page as the built-in trainer does and meets the other ranks over TCP
/// once per iteration. `TEST_STALL=RANK:ITER` makes one of them sleep forever in its rollout instead.
#[test]
#[ignore = "not a test: a rank of other tests"]
fn rank_program() {
    use rankdeck_proto::message::Phase;
    use rankdeck_proto::status_page::{CollectiveOp, Dtype, StatusPageWriter, tag};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    let var = |name: &str| std::env::var(name).unwrap();
    let (rank, world): (u32, usize) = (var("RANK").parse().unwrap(), var("WORLD_SIZE").parse().unwrap());
    let mut page = StatusPageWriter::create(var("RANKDECK_STATUS_PAGE").as_ref(), rank, 0).unwrap();
    let master = format!("{}:{}", var("MASTER_ADDR"), var("MASTER_PORT"));
    page.phase(Phase::Rendezvous);
    let mut peers: Vec<TcpStream> = if rank == 0 {
        let listener = TcpListener::bind(&master).unwrap();
        (1..world).map(|_| listener.accept().unwrap().0).collect()
    } else {
        loop {
            match TcpStream::connect(&master) {
                Ok(stream) => break vec![stream],
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    };
    let stall = std::env::var("TEST_STALL").ok();
    for iteration in 1..100_000 {
        page.phase(Phase::Rollout);
        std::thread::sleep(Duration::from_millis(10));
        while stall.as_deref() == Some(&format!("{rank}:{iteration}")) {
            std::thread::sleep(Duration::from_secs(1));
        }
        page.update(|body| {
            (body.train_iter, body.updates, body.env_step) = (iteration, iteration, 8 * iteration)
        });
        page.phase(Phase::Learn);
        page.enter(CollectiveOp::AllReduce, tag("grad"), 9155, 36620, Dtype::F32, 1);
        // Every rank sends to rank 0, and rank 0 to every rank: none leaves before all have come.
        let mut byte = [0];
        if rank == 0 {
            peers.iter_mut().for_each(|peer| peer.read_exact(&mut byte).unwrap());
            peers.iter_mut().for_each(|peer| peer.write_all(&byte).unwrap());
        } else {
            peers[0].write_all(&byte).unwrap();
            peers[0].read_exact(&mut byte).unwrap();
        }
        page.leave();
    }
}

#[test]
fn rank_missing_from_a_collective_is_named() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(2, 2);
    let this = std::env::current_exe().unwrap();
    let command = [path(&this), "e2e::rank_program", "--exact", "--ignored", "--nocapture"];
    let experiment = bench.write(
        "experiment.toml",
        &format!(
            "[run]\nname = \"stall\"\n[launch]\ncommand = {command:?}\n[launch.env]\nTEST_STALL = \"2:60\"\n"
        ),
    );
    let mut console = Console::start(&["run", path(&experiment), "--hosts", path(&hosts)]);
    let verdict = console.wait_for("a red verdict", 40, |v| v["kind"] == "verdict" && v["severity"] == "red");
    assert_eq!(
        (&verdict["verdict"], &verdict["rank"]),
        (&Value::from("behind"), &Value::from(2)),
        "{verdict}"
    );
    assert!(verdict["latency_s"].as_f64().unwrap() <= 10.0, "{verdict}");
    let evidence = verdict["evidence"].to_string();
    assert!(
        evidence.contains("60") && evidence.contains("all_reduce") && evidence.contains("grad"),
        "{verdict}"
    );
    console.signal(libc::SIGINT);
    assert_eq!(console.finish(60).code(), Some(130));
    assert_eq!(console.all("verdict").iter().filter(|v| v["severity"] == "red").count(), 1, "one incident");
}

fn path(path: &std::path::Path) -> &str {
    path.to_str().unwrap()
}

/// `rank -> log lines` of a finished run, from the run directory.
fn rank_logs(bench: &Bench, run: &str) -> BTreeMap<u32, String> {
    let mut logs = BTreeMap::new();
    for node in 0..16 {
        let folder = bench.path().join(format!("runs/{run}/node{node}/gen0"));
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if let Some(rank) = name.strip_prefix("rank").and_then(|name| name.strip_suffix(".log")) {
                logs.insert(rank.parse().unwrap(), std::fs::read_to_string(entry.path()).unwrap());
            }
        }
    }
    logs
}

#[test]
fn program_on_two_hosts_has_the_torchrun_environment() {
    let bench = Bench::new();
    let (hosts, experiment) = (bench.local_hosts(2, 2), bench.program(&["--iters", "20"]));
    let mut console = Console::start(&["run", path(&experiment), "--hosts", path(&hosts)]);
    let started = console.wait_kind("run_started", 30);
    assert_eq!((started["world_size"].as_u64(), started["nnodes"].as_u64()), (Some(4), Some(2)));
    let status = console.finish(60);
    assert_eq!(status.code(), Some(0), "{:?}", console.seen.last());

    let finished = console.seen.last().unwrap().clone();
    assert_eq!(finished["kind"], "run_finished");
    assert_eq!((&finished["outcome"], &finished["proved"]), (&Value::from("succeeded"), &Value::from(true)));
    assert_eq!(finished["survivors"], Value::Array(vec![]));

    let progress = console.all("progress");
    assert!(!progress.is_empty());
    for line in &progress {
        for key in ["env_step", "samples", "episodes"] {
            let sum: u64 =
                line["per_rank"].as_array().unwrap().iter().map(|rank| rank[key].as_u64().unwrap()).sum();
            assert_eq!(line[key].as_u64(), Some(sum), "{key} in {line}");
        }
        assert_eq!(line["consistent"], true);
    }
    assert_eq!(progress.last().unwrap()["env_step"], 4 * 8 * 20);
    assert_eq!(console.all("eval").len(), 4);

    let logs = rank_logs(&bench, started["run"].as_str().unwrap());
    assert_eq!(logs.len(), 4);
    for (rank, log) in logs {
        let line = log.lines().find_map(|line| line.strip_prefix("environment ")).unwrap();
        let env: BTreeMap<String, Option<String>> = serde_json::from_str(line).unwrap();
        let get = |name: &str| env[name].clone().unwrap_or_else(|| panic!("{name} is not set"));
        assert_eq!(get("RANK"), rank.to_string());
        assert_eq!((get("WORLD_SIZE"), get("LOCAL_WORLD_SIZE")), ("4".into(), "2".into()));
        assert_eq!(get("LOCAL_RANK"), (rank % 2).to_string());
        assert_eq!((get("NODE_RANK"), get("GROUP_RANK")), ((rank / 2).to_string(), (rank / 2).to_string()));
        assert_eq!(
            format!("{}:{}", get("MASTER_ADDR"), get("MASTER_PORT")),
            started["master"].as_str().unwrap()
        );
        assert_eq!(get("TORCHELASTIC_RUN_ID"), started["run"].as_str().unwrap());
    }
    wait_until("agents leave", 20, || bench.processes().is_empty());
}

/// The console's output, and what each rank of the only run of this bench has printed.
fn run_of(bench: &Bench, words: &[&str]) -> (String, BTreeMap<u32, String>) {
    let mut command = rankdeck();
    command.args(words).current_dir(bench.path()).env_remove("RANKDECK_HOSTS");
    let output = command.env("XDG_CONFIG_HOME", bench.path()).env("HOME", bench.path()).output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{text}");
    let runs: Vec<_> = std::fs::read_dir(bench.path().join("runs")).unwrap().flatten().collect();
    assert_eq!(runs.len(), 1, "{runs:?}");
    let logs = rank_logs(bench, runs[0].file_name().to_str().unwrap());
    (text, logs)
}

/// A script that names no variable: its arguments, and all names of its environment.
const SEEN: &str =
    "import os, sys\nprint('args', *sys.argv[1:])\nprint(' '.join(sorted(os.environ)), flush=True)\n";

#[test]
fn plain_1_script_alone_runs_as_python_runs_it() {
    let bench = Bench::new();
    bench.write("seen.py", SEEN);
    let (text, logs) =
        run_of(&bench, &["run", "--env", "MARK={rank}", "--headless", "seen.py", "--lr", "3e-4"]);
    assert_eq!(logs.len(), 1, "{text}");
    let words: Vec<&str> = logs[&0].split_whitespace().collect();
    assert!(logs[&0].contains("args --lr 3e-4\n"), "{}", logs[&0]);
    for name in ["RANKDECK_RANK", "RANKDECK_RANK_SEED", "MARK", "PATH"] {
        assert!(words.contains(&name), "{name}: {}", logs[&0]);
    }
    for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "RANKDECK_SECRET"] {
        assert!(!words.contains(&name), "{name}: {}", logs[&0]);
    }
}

#[test]
fn torchrun_command_line_becomes_ranks() {
    let bench = Bench::new();
    bench.write("seen.py", SEEN);
    let line =
        ["run", "--headless", "torchrun", "--nproc-per-node=2", "--rdzv-id=7", "seen.py", "--id={rank}"];
    let (text, logs) = run_of(&bench, &line);
    assert_eq!(logs.len(), 2, "{text}");
    assert!(text.contains("--rdzv-id"), "{text}");
    for (rank, log) in logs {
        let words: Vec<&str> = log.split_whitespace().collect();
        let id = format!("--id={rank}");
        for word in ["WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS", id.as_str()] {
            assert!(words.contains(&word), "{word}: {log}");
        }
    }
}

#[test]
fn failed_rank_is_named_and_exits_1() {
    for (how, expected) in [("exit:3", "3"), ("signal:11", "SIGSEGV")] {
        let bench = Bench::new();
        let hosts = bench.local_hosts(2, 1);
        let experiment = bench.program(&[
            "--iters",
            "2000",
            "--fail-rank",
            "1",
            "--fail-at",
            "5",
            "--fail-how",
            how,
            "--family",
        ]);
        let mut console = Console::start(&["run", path(&experiment), "--hosts", path(&hosts)]);
        let verdict = console.wait_for("verdict", 30, |v| v["kind"] == "verdict" && v["severity"] == "red");
        assert_eq!(
            (&verdict["verdict"], &verdict["rank"]),
            (&Value::from("dead"), &Value::from(1)),
            "{verdict}"
        );
        assert!(verdict["reason"].as_str().unwrap().contains(expected), "{verdict}");
        let status = console.finish(60);
        assert_eq!(status.code(), Some(1), "{how}");
        let finished = console.seen.last().unwrap();
        assert_eq!(
            (&finished["outcome"], &finished["proved"]),
            (&Value::from("failed"), &Value::from(true)),
            "{finished}"
        );
        assert!(bench.rank_processes().is_empty(), "{:?}", bench.rank_processes());
    }
}

#[test]
fn first_signal_stops_ranks_cleanly_with_130() {
    let bench = Bench::new();
    let (hosts, experiment) = (bench.local_hosts(2, 1), bench.program(&["--iters", "100000", "--family"]));
    let mut console = Console::start(&["run", path(&experiment), "--hosts", path(&hosts)]);
    console.wait_kind("progress", 30);
    console.signal(libc::SIGINT);
    assert_eq!(console.finish(30).code(), Some(130));
    let finished = console.seen.last().unwrap();
    assert_eq!(
        (&finished["outcome"], &finished["proved"]),
        (&Value::from("stopped"), &Value::from(true)),
        "{finished}"
    );
    let exits: Vec<_> = console.all("rank").into_iter().filter(|v| !v["exit_code"].is_null()).collect();
    assert!(exits.iter().all(|v| v["exit_code"] == 0), "ranks left by themselves: {exits:?}");
    assert!(bench.rank_processes().is_empty(), "{:?}", bench.rank_processes());
}

#[test]
fn second_signal_kills_ranks_that_ignore_the_first() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    let experiment = bench.program(&["--iters", "100000", "--ignore-term"]);
    let mut console = Console::start(&[
        "run",
        path(&experiment),
        "--hosts",
        path(&hosts),
        "--set",
        "launch.stop_grace_s=600",
    ]);
    console.wait_kind("progress", 30);
    console.signal(libc::SIGTERM);
    let run = console.seen[0]["run"].as_str().unwrap().to_string();
    let records = bench.path().join(format!("runs/{run}/node0/records.jsonl"));
    wait_until("the first order arrives", 10, || {
        std::fs::read_to_string(&records).unwrap().contains("stop_ordered")
    });
    // SIGNAL-1: what comes at once belongs to the first.
    std::thread::sleep(Duration::from_secs(1));
    console.signal(libc::SIGTERM);
    assert_eq!(console.finish(30).code(), Some(130));
    assert_eq!(console.seen.last().unwrap()["proved"], true);
    assert!(bench.rank_processes().is_empty());
}

/// SIGNAL-1: `timeout` signals the console, and then the group that it is in, at the same moment.
#[test]
fn signal_1_console_under_timeout_stops_cleanly() {
    let bench = Bench::new();
    let (hosts, experiment) = (bench.local_hosts(1, 2), bench.program(&["--iters", "1000000"]));
    let mut timeout = std::process::Command::new("timeout");
    // The bound is reached by a signal to `timeout` itself, which does the same at its end.
    timeout.args(["--preserve-status", "600"]).arg(env!("CARGO_BIN_EXE_rankdeck"));
    timeout.args(["run", path(&experiment), "--hosts", path(&hosts), "--headless", "--json"]);
    timeout.current_dir(bench.path());
    let mut console = Console::spawn(timeout);
    console.wait_kind("progress", 30);
    console.signal(libc::SIGTERM);
    assert_eq!(console.finish(60).code(), Some(130), "{}", console.transcript());
    let finished = console.seen.last().unwrap();
    assert_eq!((&finished["outcome"], &finished["proved"]), (&"stopped".into(), &true.into()), "{finished}");
    let ends: Vec<_> = console.all("rank").into_iter().filter(|rank| !rank["exit_code"].is_null()).collect();
    assert!(ends.len() == 2 && ends.iter().all(|rank| rank["exit_code"] == 0), "{ends:?}");
    assert!(bench.rank_processes().is_empty());
}

#[test]
fn hangup_detaches_and_another_console_stops() {
    let bench = Bench::new();
    let (hosts, experiment) =
        (bench.local_hosts(2, 1), bench.program(&["--iters", "100000", "--pause", "0.02"]));
    let mut console = Console::start(&["run", path(&experiment), "--hosts", path(&hosts)]);
    let run = console.wait_kind("run_started", 30)["run"].as_str().unwrap().to_string();
    console.wait_kind("progress", 30);
    console.signal(libc::SIGHUP);
    assert_eq!(console.finish(20).code(), Some(0));
    assert_eq!(bench.rank_processes().len(), 2, "training continues");

    let listed = rankdeck().args(["ps", "--json", "--hosts", path(&hosts)]).output().unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains(&run), "{listed:?}");

    let mut adopted = Console::start(&["attach", &run, "--hosts", path(&hosts)]);
    assert_eq!(adopted.wait_kind("run_started", 20)["adopted"], true);
    let first = adopted.wait_kind("progress", 20);
    assert_eq!(first["train_iter"], 1, "history since launch, without a gap");
    let stop = rankdeck().args(["stop", &run, "--hosts", path(&hosts)]).output().unwrap();
    assert!(stop.status.success(), "{stop:?}");
    assert_eq!(adopted.wait_kind("run_finished", 20)["outcome"], "stopped");
    let iterations: Vec<u64> =
        adopted.all("progress").iter().map(|v| v["train_iter"].as_u64().unwrap()).collect();
    assert!(iterations.windows(2).all(|pair| pair[1] == pair[0] + 1), "a gap in {iterations:?}");
    assert!(bench.rank_processes().is_empty());
}

/// Its lines are not read.
#[test]
fn one_signal_ends_attach_with_unread_stdout() {
    use std::os::fd::AsRawFd;
    use std::process::Stdio;
    let bench = Bench::new();
    let (hosts, experiment) =
        (bench.local_hosts(2, 1), bench.program(&["--iters", "100000", "--pause", "0.02"]));
    let mut console = Console::start(&["run", path(&experiment), "--hosts", path(&hosts)]);
    let run = console.wait_kind("run_started", 30)["run"].as_str().unwrap().to_string();
    console.wait_for("history", 60, |v| v["kind"] == "progress" && v["train_iter"].as_u64() >= Some(60));
    let mut command = rankdeck();
    command.args(["attach", &run, "--json", "--hosts", path(&hosts)]);
    let mut watcher = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pipe = watcher.stdout.take().unwrap();
    let mut waiting = 0i32;
    // SAFETY: fcntl takes integers; FIONREAD writes one integer.
    wait_until("lines without a reader", 30, || unsafe {
        libc::fcntl(pipe.as_raw_fd(), libc::F_SETPIPE_SZ, 4096);
        libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &mut waiting) == 0 && waiting > 0
    });
    kill(watcher.id(), libc::SIGINT);
    wait_until("one signal is enough", 20, || watcher.try_wait().unwrap().is_some());
    assert_eq!(watcher.wait().unwrap().code(), Some(0));
    assert_eq!(bench.rank_processes().len(), 2, "training continues");
    console.signal(libc::SIGINT);
    assert_eq!(console.finish(30).code(), Some(130));
}

#[test]
fn restart_is_a_generation_with_its_own_rendezvous() {
    let bench = Bench::new();
    let (hosts, experiment) = (bench.local_hosts(2, 1), bench.program(&["--iters", "100000"]));
    let mut console = Console::start(&["run", path(&experiment), "--hosts", path(&hosts)]);
    let started = console.wait_kind("run_started", 30);
    console.wait_kind("progress", 30);
    let run = started["run"].as_str().unwrap();
    let restart = rankdeck()
        .args(["restart", run, "--yes", "--hosts", path(&hosts)])
        .current_dir(bench.path())
        .output()
        .unwrap();
    assert!(restart.status.success(), "{restart:?}");
    let progress =
        console.wait_for("progress of generation 1", 30, |v| v["kind"] == "progress" && v["generation"] == 1);
    assert_eq!(progress["consistent"], true);
    console.signal(libc::SIGINT);
    assert_eq!(console.finish(30).code(), Some(130));
}

#[test]
fn frozen_rank_is_named_then_cleared() {
    let bench = Bench::new();
    let (hosts, experiment) = (bench.local_hosts(2, 1), bench.program(&["--iters", "100000"]));
    let mut console = Console::start(&["run", path(&experiment), "--hosts", path(&hosts)]);
    console.wait_kind("progress", 30);
    let pid =
        console.wait_for("rank 1", 5, |v| v["kind"] == "rank" && v["rank"] == 1 && v["pid"].is_u64())["pid"]
            .as_u64()
            .unwrap();
    kill(pid as u32, libc::SIGSTOP);
    let verdict = console.wait_for("frozen", 10, |v| v["kind"] == "verdict" && v["verdict"] == "frozen");
    assert_eq!((&verdict["rank"], &verdict["severity"]), (&Value::from(1), &Value::from("red")), "{verdict}");
    assert!(!verdict["evidence"].as_array().unwrap().is_empty());
    kill(pid as u32, libc::SIGCONT);
    console.wait_for("cleared", 10, |v| {
        v["kind"] == "verdict" && v["verdict"] == "frozen" && v["severity"] == "cleared"
    });
    console.signal(libc::SIGINT);
    assert_eq!(console.finish(30).code(), Some(130));
}

/// The kernel starts no program with a longer string; with the largest that it takes, it does.
#[test]
fn string_with_nul_is_refused_with_its_line() {
    let long = "x".repeat(200_000);
    // `BIG=` and the zero byte at the end count.
    let largest = "x".repeat((128 << 10) - 5);
    let prelude = format!("prelude = \"\"\"\n# {long}\n\"\"\"\n");
    let cases = [
        (
            "true".to_string(),
            format!("BIG = \"{long}\"\n"),
            String::new(),
            "launch.env.BIG",
            "experiment.toml:6",
        ),
        (
            "true".to_string(),
            format!("BIG = \"{largest}x\"\n"),
            String::new(),
            "launch.env.BIG",
            "experiment.toml:6",
        ),
        (long.clone(), String::new(), String::new(), "launch.command", "experiment.toml:4"),
        (
            "true".to_string(),
            String::new(),
            format!("env = {{ OWN = \"{long}\" }}\n"),
            "host.0.env.OWN",
            "hosts.toml:5",
        ),
        ("true".to_string(), String::new(), prelude, "host.0.prelude", "hosts.toml:5"),
        ("true".to_string(), format!("BIG = \"{largest}\"\n"), String::new(), "", ""),
    ];
    for (word, env, own, key, place) in cases {
        let bench = Bench::new();
        let text = format!(
            "[run]\nname = \"large\"\n[launch]\ncommand = [\"/bin/sh\", \"-c\", \"exit 0\", \"{word}\"]\n\
             [launch.env]\n{env}"
        );
        let file = bench.write("experiment.toml", &text).display().to_string();
        let folder = bench.path().join("n0").display().to_string();
        let hosts = format!(
            "[[host]]\nname = \"node0\"\ntransport = \"local\"\nworkdir = {folder:?}\n{own}nproc = 1\n"
        );
        let hosts = bench.write("hosts.toml", &hosts).display().to_string();
        for args in [&["check", &file][..], &["run", &file, "--headless"]] {
            let output =
                rankdeck().args(args).args(["--hosts", &hosts]).current_dir(bench.path()).output().unwrap();
            let output_text = String::from_utf8_lossy(&output.stderr);
            if key.is_empty() {
                let out = String::from_utf8_lossy(&output.stdout);
                assert_eq!(output.status.code(), Some(0), "{args:?}: {output_text}{out}");
                continue;
            }
            assert_eq!(output.status.code(), Some(2), "{args:?} {key}: {output_text}");
            for part in [&format!("`{key}` "), place, "128 KiB", "hint: "] {
                let part =
                    if key.ends_with("prelude") { part.replace("128", "112") } else { part.to_owned() };
                assert!(output_text.contains(&part), "{args:?}: {part} in {output_text}");
            }
        }
        assert!(key.is_empty() || bench.processes().is_empty(), "nothing was started");
    }
}

/// WIRE-1: thousands of variables, a long command.
#[test]
fn wire_1_too_large_launch_is_refused_with_its_line() {
    let many: String = (0..20_400).map(|i| format!("VARIABLE_{i} = \"{i:030}\"\n")).collect();
    let words = vec![format!("{:?}", "x".repeat(100_000)); 10].join(", ");
    let cases =
        [(String::new(), many, "launch.env", 5), (format!(", {words}"), String::new(), "launch.command", 4)];
    for (words, env, key, line) in cases {
        let bench = Bench::new();
        let hosts = bench.local_hosts(1, 1).display().to_string();
        let text = format!(
            "[run]\nname = \"large\"\n[launch]\ncommand = [\"true\"{words}]\n[launch.env]\nSMALL = \"1\"\n{env}"
        );
        let file = bench.write("experiment.toml", &text).display().to_string();
        for args in [&["check", &file][..], &["run", &file, "--headless"]] {
            let output =
                rankdeck().args(args).args(["--hosts", &hosts]).current_dir(bench.path()).output().unwrap();
            let output_text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{args:?} {key}: {output_text}");
            for part in [&format!("`{key}`"), &format!("experiment.toml:{line}"), "hint: "] {
                assert!(output_text.contains(part), "{args:?}: {part} in {output_text}");
            }
        }
        assert!(bench.processes().is_empty(), "nothing was started");
    }
}

#[test]
fn clean_stop_waits_for_a_long_iteration() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let experiment = bench.program(&["--iters", "1000", "--pause", "2.5"]);
    let args = [
        "run",
        experiment.to_str().unwrap(),
        "--hosts",
        hosts.to_str().unwrap(),
        "--set",
        "launch.stop_grace_s=0.5",
    ];
    let mut console = Console::start(&args);
    console.wait_for("two iterations", 60, |line| {
        line["kind"] == "progress" && line["train_iter"].as_u64() >= Some(3)
    });
    console.signal(libc::SIGINT);
    assert_eq!(console.finish(60).code(), Some(130), "{}", console.transcript());
    let end = &console.all("run_finished")[0];
    assert_eq!(end["outcome"], "stopped", "{end}");
    let notices = console.all("notice");
    assert!(notices.iter().any(|line| line["text"].to_string().contains("iteration")), "{notices:?}");
}

/// A rank that prints all the time: `logs` without `-f` prints the lines up to its start, and ends.
#[test]
fn logs_of_an_endlessly_printing_run_end() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    let text = "[run]\nname = \"talk\"\n[launch]\nstop_grace_s = 1.0\n\
                command = [\"/bin/sh\", \"-c\", \"while :; do echo and on; sleep 0.02; done\"]\n";
    let experiment = bench.write("experiment.toml", text);
    let mut console = Console::start(&["run", path(&experiment), "--hosts", path(&hosts)]);
    let run = console.wait_kind("run_started", 60)["run"].as_str().unwrap().to_owned();
    // More than an agent leaves unread between two polls.
    wait_until("both ranks print", 60, || {
        rank_logs(&bench, &run).values().filter(|log| log.lines().count() > 100).count() == 2
    });
    let mut logs = std::process::Command::new("timeout");
    logs.args(["40", env!("CARGO_BIN_EXE_rankdeck"), "logs", &run, "--hosts", path(&hosts)]);
    let logs = logs.output().unwrap();
    let shown = String::from_utf8_lossy(&logs.stdout);
    assert!(logs.status.success() && shown.lines().count() > 2, "{:?}: {shown}", logs.status);
    console.signal(libc::SIGINT);
    assert_eq!(console.finish(60).code(), Some(130), "{}", console.transcript());
}

/// `HOW` ends rank 1 inside `init_process_group`: after the rendezvous, while there is no group yet that could
/// break.
const JOIN_SCRIPT: &str = r#"
import os, signal, sys
import torch.distributed as dist

def strike(*args, **kwargs):
    how = os.environ["HOW"]
    if how == "raise":
        raise ValueError("no such fabric")
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)

if os.environ["RANK"] == "1":
    dist.distributed_c10d._new_process_group_helper = strike
dist.init_process_group("gloo")
dist.barrier()
"#;

#[test]
fn death_in_init_process_group_names_rank_and_cause() {
    let Some(python) = python("torch") else { return };
    for (how, ranks, cause) in [
        ("kill", 3, "SIGKILL"),
        ("exit", 2, "exited with code 3"),
        ("raise", 2, "ValueError: no such fabric"),
    ] {
        let bench = Bench::new();
        let hosts = bench.local_hosts(1, ranks);
        let script = bench.write("script.py", JOIN_SCRIPT);
        let text = format!(
            "[run]\nname = \"joining\"\n[launch]\ncommand = {:?}\n[launch.env]\nHOW = \"{how}\"\n",
            [python.to_string(), script.display().to_string()]
        );
        let experiment = bench.write("experiment.toml", &text);
        let mut console =
            Console::start(&["run", experiment.to_str().unwrap(), "--hosts", hosts.to_str().unwrap()]);
        let verdict = console.wait_for("a red verdict", 60, |line| {
            line["kind"] == "verdict" && line["severity"] == "red" && line["verdict"] == "dead"
        });
        assert_eq!(verdict["rank"], Value::from(1), "{how}: {verdict}");
        // Its peers wait for it, and may notice in their own time; no rank waits for them.
        assert_eq!(console.finish(90).code(), Some(1), "{how}: {}", console.transcript());
        let finished = console.seen.last().unwrap();
        assert_eq!(finished["first_failure"]["rank"], Value::from(1), "{how}: {finished}");
        let output_text = format!("{verdict}{finished}");
        assert!(output_text.contains(cause), "{how}: {cause}: {output_text}");
        assert_eq!(finished["proved"], Value::from(true), "{how}: {finished}");
        assert!(bench.rank_processes().is_empty(), "{how}: {:?}", bench.rank_processes());
    }
}

/// Runs `script` on `hosts` hosts with `ranks` ranks each; returns the console that waits for its end.
fn run_script(bench: &Bench, python: &str, hosts: usize, ranks: usize, script: &str) -> Console {
    let hosts = bench.local_hosts(hosts, ranks);
    let script = bench.write("script.py", script);
    let command = [python.to_string(), script.display().to_string()];
    let text = format!("[run]\nname = \"script\"\n[launch]\ncommand = {command:?}\n");
    let experiment = bench.write("experiment.toml", &text);
    Console::start(&["run", path(&experiment), "--hosts", path(&hosts)])
}

/// Several copies of a program that was written for one process.
const COPIES_SCRIPT: &str = r#"
import time, torch
net = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
for _ in range(20):
    net(torch.ones(8)).sum().backward()
    opt.step()
    time.sleep(0.05)
"#;

#[test]
fn copies_without_process_group_are_named_at_the_end() {
    let Some(python) = python("torch") else { return };
    let bench = Bench::new();
    let mut console = run_script(&bench, &python, 1, 2, COPIES_SCRIPT);
    assert_eq!(console.finish(120).code(), Some(0), "{}", console.transcript());
    let reason = console.seen.last().unwrap()["reason"].to_string();
    assert!(reason.contains("2 separate programs"), "{reason}");
}

/// The rank on its host taken for the rank, as in many scripts that were only run on one host.
const LOCAL_RANK_SCRIPT: &str = r#"
import os
import torch.distributed as dist
dist.init_process_group("gloo", rank=int(os.environ["LOCAL_RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
dist.barrier()
"#;

#[test]
fn local_rank_as_rank_over_hosts_is_named() {
    let Some(python) = python("torch") else { return };
    let bench = Bench::new();
    let mut console = run_script(&bench, &python, 2, 1, LOCAL_RANK_SCRIPT);
    let verdict = console.wait_for("a verdict about the rank", 60, |line| {
        line["kind"] == "verdict" && line["reason"].to_string().contains("as rank 0 (LOCAL_RANK?)")
    });
    assert_eq!((&verdict["rank"], &verdict["severity"]), (&Value::from(1), &Value::from("red")), "{verdict}");
    assert!(verdict["reason"].to_string().contains("script.py:4"), "{verdict}");
    console.signal(libc::SIGTERM);
    console.finish(90);
}
