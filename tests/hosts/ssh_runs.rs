//! A whole run over real SSH: console, sshd, agents, ranks.
//!
//! Two kinds of hosts: OpenSSH servers on loopback; and the test bed's, with addresses, process tables and
//! disks of their own.

mod sweeps;

use crate::support::hosts::{Loopback, TestBed};
use crate::support::random::{Random, rounds};
use crate::support::{Console, rank_program, trainer, wait_until};
use rankdeck_testkit::repository;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What each rank printed of its environment, by rank.
fn environments(console: &Console) -> BTreeMap<u64, BTreeMap<String, Option<String>>> {
    let mut all = BTreeMap::new();
    for line in console.all("log") {
        if let Some(text) = line["line"].as_str().unwrap().strip_prefix("environment ") {
            all.insert(line["rank"].as_u64().unwrap(), serde_json::from_str(text).unwrap());
        }
    }
    all
}

fn runs_over_ssh(nodes: usize, nproc: usize) {
    let Some(hosts) = Loopback::start(nodes, nproc) else { return };
    let experiment = hosts.bench.program(&["--iters", "20"]);
    let mut console = hosts.console(&["run", experiment.to_str().unwrap()]);
    let status = console.finish(120);
    assert_eq!(status.code(), Some(0), "{}", console.told());
    let finished = console.seen.last().unwrap();
    assert_eq!((&finished["outcome"], &finished["proved"]), (&Value::from("succeeded"), &Value::from(true)));
    let environments = environments(&console);
    assert_eq!(environments.len(), nodes * nproc);
    for (rank, env) in environments {
        let get = |name: &str| env[name].clone().unwrap_or_else(|| panic!("{name} is not set"));
        assert_eq!(get("RANK"), rank.to_string());
        assert_eq!(get("WORLD_SIZE"), (nodes * nproc).to_string());
        assert_eq!(get("LOCAL_WORLD_SIZE"), nproc.to_string());
        assert_eq!(get("LOCAL_RANK"), (rank as usize % nproc).to_string());
        assert_eq!(get("NODE_RANK"), (rank as usize / nproc).to_string());
        assert_eq!(get("GROUP_RANK"), get("NODE_RANK"));
        assert_eq!(
            format!("{}:{}", get("MASTER_ADDR"), get("MASTER_PORT")),
            console.all("run_started")[0]["master"]
        );
    }
    for server in &hosts.servers {
        assert!(server.folder.join("cache").is_dir(), "the agent was deployed by content");
        assert_eq!(server.logins(), 1, "preflight, upload and link share one login: {}", server.log());
    }
    wait_until("agents leave", 20, || hosts.bench.processes().is_empty());
}

#[test]
fn two_hosts_of_two_ranks() {
    runs_over_ssh(2, 2);
}

#[test]
fn four_hosts_of_one_rank() {
    runs_over_ssh(4, 1);
}

#[test]
fn a_killed_connection_is_mended_and_the_run_goes_on_without_a_gap() {
    let Some(hosts) = Loopback::start(2, 1).map(Loopback::with_agent) else { return };
    let experiment = hosts.bench.program(&["--iters", "1000000", "--pause", "0.02", "--family"]);
    let mut console = hosts.console(&["run", experiment.to_str().unwrap()]);
    console.wait_kind("progress", 60);
    let mut random = Random::new(4);
    for round in 0..rounds() {
        let victim = random.below(2) as usize;
        std::thread::sleep(Duration::from_millis(random.below(1000)));
        let before = hosts.servers[victim].logins();
        assert!(hosts.servers[victim].kill_sessions(), "round {round}: no session to kill");
        console.wait_for_new("the host is back", 30, |v| {
            v["kind"] == "host" && v["node_rank"] == victim && v["state"] == "ready"
        });
        assert!(hosts.servers[victim].logins() > before, "round {round}");
        console.wait_for_new("progress goes on", 30, |v| v["kind"] == "progress");
        assert_eq!(
            hosts.bench.rank_processes().iter().filter(|(_, command)| command.contains("rank.py")).count(),
            6,
            "round {round}: two ranks, each with a worker and a daemon"
        );
    }
    console.signal(libc::SIGINT);
    assert_eq!(console.finish(60).code(), Some(130));
    assert_eq!(console.seen.last().unwrap()["proved"], true);
    let iterations: Vec<u64> =
        console.all("progress").iter().map(|v| v["train_iter"].as_u64().unwrap()).collect();
    assert!(iterations.windows(2).all(|pair| pair[1] == pair[0] + 1), "a gap in {iterations:?}");
    assert!(hosts.bench.rank_processes().is_empty());
}

#[test]
fn roads_that_stall_lose_nothing_and_any_console_adopts_the_run() {
    let Some(hosts) = Loopback::start(2, 1).map(Loopback::with_agent) else { return };
    let experiment = hosts.bench.program(&["--iters", "1000000", "--pause", "0.02"]);
    let mut first = hosts.console(&["run", experiment.to_str().unwrap()]);
    first.wait_kind("progress", 60);
    let run = first.seen[0]["run"].as_str().unwrap().to_owned();
    let lost = |console: &Console| console.all("host").iter().filter(|v| v["state"] == "lost").count();
    for losses in [0, 1] {
        let before = lost(&first);
        hosts.servers[1].stall(true);
        if losses > 0 {
            first.wait_for_new("the host is lost", 60, |v| v["kind"] == "host" && v["state"] == "lost");
        } else {
            std::thread::sleep(Duration::from_secs(1));
        }
        hosts.servers[1].stall(false);
        first.wait_for_new("it goes on", 60, |v| v["kind"] == "progress");
        if losses > 0 {
            first.wait_for("the host is back", 60, |v| {
                v["kind"] == "verdict" && v["verdict"] == "lost" && v["severity"] == "cleared"
            });
        }
        assert_eq!(lost(&first) - before >= 1, losses > 0);
    }
    assert!(first.all("restart").is_empty() && first.all("run_started").len() == 1, "nothing was restarted");
    // Another folder, as on another machine: only hosts.toml and the way to log in.
    let elsewhere = tempfile::tempdir().unwrap();
    let away = |args: &[&str]| {
        let mut command = hosts.command(args);
        command.current_dir(elsewhere.path());
        command
    };
    let listed = away(&["ps", "--json"]).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(
        (listed["run"].as_str(), listed["ranks_alive"].as_u64()),
        (Some(run.as_str()), Some(2)),
        "{listed}"
    );
    let mut second = Console::spawn(away(&["attach", &run, "--headless", "--json"]));
    second.wait_kind("progress", 60);
    first.signal(libc::SIGKILL);
    drop(first);
    second.wait_for_new("training goes on without the first", 30, |v| v["kind"] == "progress");
    let stopped = away(&["stop", &run]).output().unwrap();
    assert!(String::from_utf8_lossy(&stopped.stdout).contains("stopped: verified"), "{stopped:?}");
    second.finish(60);
    let progress = second.all("progress");
    for (i, line) in progress.iter().enumerate() {
        let iteration = i as u64 + 1;
        assert_eq!(line["train_iter"], iteration, "history from the launch, without a gap");
        // What the program counts: 8 steps per rank and iteration.
        assert_eq!(
            (&line["env_step"], &line["consistent"]),
            (&Value::from(16 * iteration), &Value::from(true))
        );
        assert!(
            line["per_rank"].as_array().unwrap().iter().all(|rank| rank["env_step"] == 8 * iteration),
            "{line}"
        );
    }
    assert!(progress.len() > 100 && hosts.bench.rank_processes().is_empty());
}

#[test]
fn a_host_that_refuses_ends_the_run_with_3_and_nothing_is_left_anywhere() {
    for refusal in ["down", "key", "unknown"] {
        let Some(mut hosts) = Loopback::start(2, 1).map(Loopback::with_agent) else { return };
        let expected = match refusal {
            "down" => {
                hosts.servers[1].down();
                "refused"
            }
            "key" => {
                std::fs::write(hosts.servers[1].folder.join("authorized_keys"), "").unwrap();
                "h1"
            }
            _ => {
                hosts.bench.write("known_hosts", "");
                "SHA256:"
            }
        };
        let experiment = hosts.bench.program(&["--iters", "20"]);
        let mut console = hosts.console(&["run", experiment.to_str().unwrap()]);
        let status = console.finish(60);
        let stderr = console.stderr();
        let told = format!("{stderr}\n{:?}", console.seen);
        assert_eq!(status.code(), Some(3), "{refusal}: {told}");
        assert!(told.contains(expected), "{refusal}: {told}");
        assert!(stderr.contains("hint:"), "{refusal}: {stderr}");
        wait_until("nothing is left", 20, || hosts.bench.processes().is_empty());
    }
}

/// An experiment that counts to `iters` on hosts that have no file of it.
fn on_the_bed(bed: &TestBed, iters: &str) -> PathBuf {
    let command = rank_program(&["--iters", iters]);
    let path = bed.folder.path().join("experiment.toml");
    std::fs::write(&path, format!("[run]\nname = \"bed\"\n[launch]\ncommand = [{command}]\n")).unwrap();
    path
}

#[test]
fn hosts_with_addresses_of_their_own_form_one_group() {
    for (nodes, nproc) in [(2, 2), (4, 1)] {
        let Some(bed) = TestBed::start(nodes).map(TestBed::with_agent) else { return };
        let experiment = on_the_bed(&bed, "20");
        let mut console = bed.console(&bed.hosts(nodes, nproc, ""), &["run", experiment.to_str().unwrap()]);
        assert_eq!(console.finish(120).code(), Some(0), "{}", console.told());
        let finished = console.seen.last().unwrap();
        assert_eq!(
            (&finished["outcome"], &finished["proved"]),
            (&Value::from("succeeded"), &Value::from(true))
        );
        let environments = environments(&console);
        assert_eq!(environments.len(), nodes * nproc);
        assert!(environments.values().all(|env| env["MASTER_ADDR"].as_deref() == Some("10.77.0.10")));
        for node in 0..nodes {
            wait_until("agents leave", 20, || !bed.processes(node).contains("rankdeck"));
        }
    }
}

#[test]
fn a_silent_host_costs_its_connect_timeout() {
    let Some(bed) = TestBed::start(1).map(TestBed::with_agent) else { return };
    let hosts = bed.hosts(1, 1, "");
    let config = bed.folder.path().join("config");
    let text = std::fs::read_to_string(&config).unwrap();
    for seconds in [1, 3] {
        // The first value of a directive wins.
        std::fs::write(&config, format!("Host *\nConnectTimeout {seconds}\n{text}")).unwrap();
        bed.fault(0, &["drop", "22"]);
        let output = bed.rankdeck(&hosts, &["ps"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(&format!("no answer within {seconds} s")), "{said}");
        bed.fault(0, &["drop", "off"]);
    }
}

#[test]
fn a_silent_host_is_lost_and_found_again_while_training_goes_on() {
    let Some(bed) = TestBed::start(2).map(TestBed::with_agent) else { return };
    let experiment = on_the_bed(&bed, "1000000");
    let hosts = bed.hosts(2, 1, "");
    let mut console = bed.console(&hosts, &["run", experiment.to_str().unwrap()]);
    console.wait_kind("progress", 60);
    let fault = |args: &[&str]| {
        let output = bed.call(&[&["fault", "node1"], args].concat()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    fault(&["link", "down"]);
    let begin = Instant::now();
    let verdict = console.wait_for("lost", 30, |v| v["kind"] == "verdict" && v["verdict"] == "lost");
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}: {verdict}", begin.elapsed());
    assert_eq!((&verdict["host"], &verdict["rank"]), (&Value::from("node1"), &Value::Null), "{verdict}");
    fault(&["link", "up"]);
    console.wait_for("cleared", 60, |v| {
        v["kind"] == "verdict" && v["verdict"] == "lost" && v["severity"] == "cleared"
    });
    console.wait_for_new("progress", 30, |v| v["kind"] == "progress");
    // From a second terminal: the first console runs behind the bed's script, which passes no signals on.
    let run = console.seen[0]["run"].as_str().unwrap().to_string();
    let stop = bed.rankdeck(&hosts, &["stop", &run]).output().unwrap();
    assert!(stop.status.success() && String::from_utf8_lossy(&stop.stdout).contains("stopped"), "{stop:?}");
    assert_eq!(console.finish(60).code(), Some(130));
    let iterations: Vec<u64> =
        console.all("progress").iter().map(|v| v["train_iter"].as_u64().unwrap()).collect();
    assert!(iterations.windows(2).all(|pair| pair[1] == pair[0] + 1), "a gap in {iterations:?}");
    let blamed: Vec<_> = console.all("verdict").into_iter().filter(|v| !v["rank"].is_null()).collect();
    assert!(blamed.is_empty(), "no rank is to blame: {blamed:?}");
}

mod with_the_trainer {
    use super::*;

    /// docs/SECURITY.md: rendezvous and collectives listen on the address of the chosen interface, and
    /// nothing else of a run listens on TCP.
    #[test]
    fn a_run_listens_on_its_own_interface_only() {
        let Some(_) = trainer() else { return };
        let Some(bed) = TestBed::start(2).map(TestBed::with_agent) else { return };
        let hosts = bed.hosts(2, 1, &bed.libtorch());
        let experiment = repository("configs/cartpole_ppo.toml");
        let endless = ["--set", "run.total_steps=1000000000", "--set", "eval.stop_value=1000000"];
        let args = [["run", experiment.to_str().unwrap()].as_slice(), &endless].concat();
        let mut console = bed.console(&hosts, &args);
        let started = console.wait_kind("run_started", 120);
        console.wait_kind("progress", 120);
        let master = started["master"].as_str().unwrap().to_owned();
        assert!(master.starts_with("10.77.0.10:"), "{master}");
        for node in 0..2 {
            // Local address and process of everything that listens.
            let text = bed.on(node, "ss -ltnpH | awk '{print $4, $6}'");
            let own = format!("10.77.0.{}:", 10 + node);
            let others: Vec<&str> = text.lines().filter(|line| !line.contains("sshd")).collect();
            for line in &others {
                let (address, process) = line.split_once(' ').unwrap();
                let address = address.trim_start_matches("[::ffff:").replace("]:", ":");
                assert!(address.starts_with(&own), "node{node}: {line}");
                assert!(process.contains("rankdeck-traine"), "not an agent: node{node}: {line}");
            }
            let store =
                others.iter().any(|line| line.contains(&master) || line.contains(&master.replace(':', "]:")));
            assert_eq!(store, node == 0, "{master} in {others:?}");
        }
        let run = started["run"].as_str().unwrap().to_owned();
        let stop = bed.rankdeck(&hosts, &["stop", &run]).output().unwrap();
        assert!(stop.status.success(), "{stop:?}");
        assert_eq!(console.finish(90).code(), Some(130), "{}", console.told());
    }

    /// PPO between hosts that share nothing but a network: the binaries are uploaded, libtorch is found by
    /// hosts.toml.
    #[test]
    fn the_built_in_trainer_learns_across_hosts() {
        let Some(_) = trainer() else { return };
        for (nodes, nproc) in [(2, 2), (4, 1)] {
            let Some(bed) = TestBed::start(nodes) else { return };
            let hosts = bed.hosts(nodes, nproc, &bed.libtorch());
            let experiment = repository("configs/cartpole_ppo.toml");
            let mut console = bed.console(
                &hosts,
                &[
                    "run",
                    experiment.to_str().unwrap(),
                    "--set",
                    "run.total_steps=10240",
                    "--set",
                    "eval.every=10",
                ],
            );
            assert_eq!(console.finish(180).code(), Some(0), "{}", console.told());
            let progress = console.all("progress");
            assert_eq!(progress.last().unwrap()["env_step"], 10240);
            assert!(progress.iter().all(|line| line["consistent"] == true));
            assert!(console.all("eval").len() >= 2);
            assert!(console.all("verdict").is_empty(), "{:?}", console.all("verdict"));
            assert_eq!(console.seen.last().unwrap()["proved"], true);
        }
    }
}

/// UPLOAD-1: the first write that fails says so, with the host, the path and the system's word.
#[test]
fn a_home_that_cannot_be_written_is_named_at_once() {
    let Some(bed) = TestBed::start(1) else { return };
    let hosts = bed.hosts(1, 1, "");
    let experiment = bed.folder.path().join("experiment.toml");
    std::fs::write(&experiment, "[run]\nname = \"full\"\n[launch]\ncommand = [\"true\"]\n").unwrap();
    for (options, words) in [("size=1m", "No space left on device"), ("ro", "Read-only file system")] {
        bed.on(0, &format!("mkdir -p ~tb/.cache && mount -t tmpfs -o {options},mode=1777 tmpfs ~tb/.cache"));
        for args in [&["ps"][..], &["run", experiment.to_str().unwrap(), "--headless"]] {
            let began = Instant::now();
            let output = bed.rankdeck(&hosts, args).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(3), "{stderr}");
            for wanted in [words, "node0", ".cache/rankdeck", "df -h", "RANKDECK_CACHE"] {
                assert!(stderr.contains(wanted), "{options} {args:?}: {wanted}: {stderr}");
            }
            assert!(began.elapsed() < Duration::from_secs(20), "{options}: {:?}", began.elapsed());
        }
        bed.on(0, "umount ~tb/.cache");
    }
}
