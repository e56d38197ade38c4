//! Runs over real SSH: console, sshd, agents, ranks.
//!
//! The hosts are OpenSSH servers on loopback, or those of the test bed with their own addresses, process
//! tables and disks.

use crate::support::hosts::{Loopback, TestBed};
use crate::support::random::{Random, rounds};
use crate::support::{Console, rank_program, trainer, wait_until};
use rankdeck_testkit::repository;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

/// Returns the environment variables that each rank printed.
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
    assert_eq!(status.code(), Some(0), "{}", console.transcript());
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
        assert!(server.folder.join("cache").is_dir(), "not deployed");
        assert_eq!(server.logins(), 1, "more than one login: {}", server.log());
    }
    wait_until("agents end", 20, || hosts.bench.processes().is_empty());
}

#[test]
fn run_on_two_hosts_with_two_ranks_succeeds() {
    runs_over_ssh(2, 2);
}

#[test]
fn run_on_four_hosts_with_one_rank_succeeds() {
    runs_over_ssh(4, 1);
}

#[test]
fn killed_connections_leave_no_gap_in_progress() {
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
        console.wait_for_new("progress", 30, |v| v["kind"] == "progress");
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
fn stalled_link_loses_nothing_and_run_can_be_adopted() {
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
        first.wait_for_new("progress", 60, |v| v["kind"] == "progress");
        if losses > 0 {
            first.wait_for("the host is back", 60, |v| {
                v["kind"] == "verdict" && v["verdict"] == "lost" && v["severity"] == "cleared"
            });
        }
        assert_eq!(lost(&first) - before >= 1, losses > 0);
    }
    assert!(first.all("restart").is_empty() && first.all("run_started").len() == 1, "restarted");
    // Another folder, as on another machine, with only hosts.toml and the SSH configuration.
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
    second.wait_for_new("progress without the first console", 30, |v| v["kind"] == "progress");
    let stopped = away(&["stop", &run]).output().unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
    second.finish(60);
    let progress = second.all("progress");
    for (i, line) in progress.iter().enumerate() {
        let iteration = i as u64 + 1;
        assert_eq!(line["train_iter"], iteration, "a gap in the history");
        // The program counts 8 steps per rank and iteration.
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
fn host_error_at_start_exits_with_3() {
    for refusal in ["down", "key", "unknown"] {
        let Some(mut hosts) = Loopback::start(2, 1).map(Loopback::with_agent) else { return };
        let expected = match refusal {
            "down" => {
                hosts.servers[1].down();
                "h1"
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
        let output = format!("{stderr}\n{:?}", console.seen);
        assert_eq!(status.code(), Some(3), "{refusal}: {output}");
        assert!(output.contains(expected), "{refusal}: {output}");
        assert!(stderr.contains("hint:"), "{refusal}: {stderr}");
        wait_until("the hosts are free", 20, || hosts.bench.processes().is_empty());
    }
}

/// Writes an experiment that counts to `iters`, without files on the hosts.
fn on_the_bed(bed: &TestBed, iters: &str) -> PathBuf {
    let command = rank_program(&["--iters", iters]);
    let path = bed.folder.path().join("experiment.toml");
    std::fs::write(&path, format!("[run]\nname = \"bed\"\n[launch]\ncommand = [{command}]\n")).unwrap();
    path
}

#[test]
fn hosts_with_own_addresses_form_one_group() {
    for (nodes, nproc) in [(2, 2), (4, 1)] {
        let Some(bed) = TestBed::start(nodes).map(TestBed::with_agent) else { return };
        let experiment = on_the_bed(&bed, "20");
        let mut console = bed.console(&bed.hosts(nodes, nproc, ""), &["run", experiment.to_str().unwrap()]);
        assert_eq!(console.finish(120).code(), Some(0), "{}", console.transcript());
        let finished = console.seen.last().unwrap();
        assert_eq!(
            (&finished["outcome"], &finished["proved"]),
            (&Value::from("succeeded"), &Value::from(true))
        );
        let environments = environments(&console);
        assert_eq!(environments.len(), nodes * nproc);
        assert!(environments.values().all(|env| env["MASTER_ADDR"].as_deref() == Some("10.77.0.10")));
        for node in 0..nodes {
            wait_until("agents end", 20, || !bed.processes(node).contains("rankdeck"));
        }
    }
}

#[test]
fn connect_timeout_of_ssh_config_applies() {
    let Some(bed) = TestBed::start(1).map(TestBed::with_agent) else { return };
    let hosts = bed.hosts(1, 1, "");
    let config = bed.folder.path().join("config");
    let text = std::fs::read_to_string(&config).unwrap();
    for seconds in [1, 3] {
        // The first value of a directive applies.
        std::fs::write(&config, format!("Host *\nConnectTimeout {seconds}\n{text}")).unwrap();
        bed.fault(0, &["drop", "22"]);
        let output = bed.rankdeck(&hosts, &["ps"]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(stderr.contains(&format!(" {seconds} s")), "{stderr}");
        bed.fault(0, &["drop", "off"]);
    }
}

#[test]
fn training_continues_while_host_is_unreachable() {
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
    // From a second terminal: the script of the bed does not forward signals to the first console.
    let run = console.seen[0]["run"].as_str().unwrap().to_string();
    let stop = bed.rankdeck(&hosts, &["stop", &run]).output().unwrap();
    assert!(stop.status.success(), "{stop:?}");
    assert_eq!(console.finish(60).code(), Some(130));
    let iterations: Vec<u64> =
        console.all("progress").iter().map(|v| v["train_iter"].as_u64().unwrap()).collect();
    assert!(iterations.windows(2).all(|pair| pair[1] == pair[0] + 1), "a gap in {iterations:?}");
    let rank_verdicts: Vec<_> = console.all("verdict").into_iter().filter(|v| !v["rank"].is_null()).collect();
    assert!(rank_verdicts.is_empty(), "{rank_verdicts:?}");
}

mod with_the_trainer {
    use super::*;

    /// docs/security.md: rendezvous and collectives listen on the address of the chosen interface; nothing
    /// else of a run listens on TCP.
    #[test]
    fn run_listens_on_its_interface_only() {
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
            // Local address and process of each listener.
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
        assert_eq!(console.finish(90).code(), Some(130), "{}", console.transcript());
    }

    /// PPO between hosts that share only a network: the binaries are uploaded, and libtorch is set in
    /// hosts.toml.
    #[test]
    fn trainer_learns_across_hosts() {
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
            assert_eq!(console.finish(180).code(), Some(0), "{}", console.transcript());
            let progress = console.all("progress");
            assert_eq!(progress.last().unwrap()["env_step"], 10240);
            assert!(progress.iter().all(|line| line["consistent"] == true));
            assert!(console.all("eval").len() >= 2);
            assert!(console.all("verdict").is_empty(), "{:?}", console.all("verdict"));
            assert_eq!(console.seen.last().unwrap()["proved"], true);
        }
    }
}

/// UPLOAD-1: the first failed write is reported with the host, the path and the error of the system.
#[test]
fn unwritable_home_is_named() {
    let Some(bed) = TestBed::start(1) else { return };
    let hosts = bed.hosts(1, 1, "");
    let experiment = bed.folder.path().join("experiment.toml");
    std::fs::write(&experiment, "[run]\nname = \"full\"\n[launch]\ncommand = [\"true\"]\n").unwrap();
    for (options, error) in [("size=1m", "No space left on device"), ("ro", "Read-only file system")] {
        bed.on(0, &format!("mkdir -p ~tb/.cache && mount -t tmpfs -o {options},mode=1777 tmpfs ~tb/.cache"));
        for args in [&["ps"][..], &["run", experiment.to_str().unwrap(), "--headless"]] {
            let began = Instant::now();
            let output = bed.rankdeck(&hosts, args).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(3), "{stderr}");
            for fact in [error, "node0", ".cache/rankdeck", "df -h", "RANKDECK_CACHE"] {
                assert!(stderr.contains(fact), "{options} {args:?}: {fact}: {stderr}");
            }
            assert!(began.elapsed() < Duration::from_secs(20), "{options}: {:?}", began.elapsed());
        }
        bed.on(0, "umount ~tb/.cache");
    }
}

/// Reads the file of the only sweep in a folder.
fn sweep(folder: &Path) -> Option<Value> {
    let entries = std::fs::read_dir(folder.join("runs")).ok()?.flatten();
    let file = entries.map(|entry| entry.path().join("sweep.json")).find(|path| path.exists())?;
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

#[test]
fn killed_cell_can_be_resumed() {
    let Some(bed) = TestBed::start(2).map(TestBed::with_agent) else { return };
    let hosts = bed.hosts(2, 1, "");
    let folder = bed.folder.path();
    let experiment = folder.join("cells.toml");
    let program = rank_program(&["--iters", "200"]);
    let text = format!("[run]\nname = \"cells\"\n[launch]\ncommand = [{program}]\nstop_grace_s = 3.0\n");
    std::fs::write(&experiment, text).unwrap();
    let common = ["run", experiment.to_str().unwrap(), "--hosts-per-run", "1"];
    let words = [&common[..], &["--sweep", "launch.threads=1,2", "--seeds", "1..2"]].concat();
    let mut console = bed.rankdeck(&hosts, &words).spawn().unwrap();
    let running = || -> Option<(String, usize)> {
        let sweep = sweep(folder)?;
        let cell =
            sweep["cells"].as_array()?.iter().find(|cell| cell["env_step"].as_u64() > Some(0))?.clone();
        let host = sweep["slots"][cell["slot"].as_u64()? as usize]["hosts"][0].as_str()?.to_owned();
        Some((cell["run"].as_str()?.to_owned(), host.strip_prefix("node")?.parse().ok()?))
    };
    wait_until("a cell to make steps", 120, || running().is_some());
    let (run, node) = running().unwrap();
    // Kills the rank, not the agent.
    bed.on(node, &format!("for p in /proc/[0-9]*; do tr '\\0' '\\n' <$p/environ 2>/dev/null | grep -qx RANKDECK_RUN={run} \
                           && tr '\\0' '\\n' <$p/environ | grep -qx RANK=0 && kill -KILL ${{p#/proc/}}; done; true"));
    assert_eq!(console.wait().unwrap().code(), Some(1), "exit code");
    let states = || -> Vec<String> {
        let sweep = sweep(folder).unwrap();
        sweep["cells"]
            .as_array()
            .unwrap()
            .iter()
            .map(|cell| cell["state"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(states().iter().filter(|state| *state == "failed").count(), 1, "{:?}", states());
    assert_eq!(states().iter().filter(|state| *state == "succeeded").count(), 3, "{:?}", states());

    let again = bed.rankdeck(&hosts, &["queue", "sweep-cells", "--resume", "--failed"]).output().unwrap();
    assert_eq!(again.status.code(), Some(0), "{again:?}");
    assert!(states().iter().all(|state| state == "succeeded"), "{:?}", states());
    let cells = sweep(folder).unwrap()["cells"].clone();
    assert!(
        cells.as_array().unwrap().iter().any(|cell| cell["run"] == run.as_str()),
        "not in its own run: {cells}"
    );
}

/// Two hosts addressed by name, with Debian's /etc/hosts: each name resolves to a loopback address on the host itself, and to its address on the others.
fn debian() -> Option<(TestBed, PathBuf)> {
    let bed = TestBed::start(2)?.with_agent();
    for node in 0..2 {
        let own = format!("s/^.* node{node}$/127.0.1.1 node{node}/");
        bed.on(node, &format!("sed '{own}' /etc/hosts >/tmp/hosts && cat /tmp/hosts >/etc/hosts"));
    }
    let hosts = bed.hosts(2, 1, &bed.libtorch());
    let text = std::fs::read_to_string(&hosts).unwrap();
    let named = (0..2).fold(text, |text, node| {
        text.replace(&format!("address = \"10.77.0.{}\"", 10 + node), &format!("address = \"node{node}\""))
    });
    std::fs::write(&hosts, named).unwrap();
    Some((bed, hosts))
}

/// ROUTE-1: ranks get an address that reaches rank 0 from every host.
#[test]
fn loopback_name_is_replaced_by_routable_address() {
    let Some((bed, hosts)) = debian() else { return };
    assert_meet_at_address(&bed, &hosts);
}

/// Names that only the console's ssh configuration has.
#[test]
fn ssh_alias_is_replaced_by_its_host_name() {
    let Some(bed) = TestBed::start(2).map(TestBed::with_agent) else { return };
    let hosts = bed.hosts(2, 1, "");
    let rewrite = |path: &Path, change: &dyn Fn(String) -> String| {
        std::fs::write(path, change(std::fs::read_to_string(path).unwrap())).unwrap();
    };
    rewrite(&hosts, &|text| text.replace("10.77.0.1", "gpu-"));
    rewrite(&bed.folder.path().join("config"), &|text| {
        text.replace("Host node0", "Host gpu-0 node0")
            .replace("Host node1", "Host gpu-1 node1")
            .replace("Host node*", "Host gpu-* node*")
    });
    assert_meet_at_address(&bed, &hosts);
}

/// Checks and launches two ranks, whose rendezvous is at the address of the first host.
fn assert_meet_at_address(bed: &TestBed, hosts: &Path) {
    let command = rank_program(&["--iters", "5"]);
    let experiment = bed.folder.path().join("e.toml");
    std::fs::write(&experiment, format!("[run]\nname = \"n\"\n[launch]\ncommand = [{command}]\n")).unwrap();
    let experiment = experiment.to_str().unwrap();
    let output = bed.rankdeck(hosts, &["check", experiment]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("10.77.0.10"), "{output:?}");
    let mut console = bed.console(hosts, &["run", experiment]);
    assert_eq!(console.finish(120).code(), Some(0), "{}", console.transcript());
    let environments: Vec<Value> = console
        .all("log")
        .iter()
        .filter_map(|line| line["line"].as_str()?.strip_prefix("environment "))
        .map(|text| serde_json::from_str(text).unwrap())
        .collect();
    assert_eq!(environments.len(), 2, "{}", console.transcript());
    for env in environments {
        assert_eq!(env["MASTER_ADDR"], "10.77.0.10");
        assert_eq!(
            (&env["GLOO_SOCKET_IFNAME"], &env["NCCL_SOCKET_IFNAME"]),
            (&"eth0".into(), &"eth0".into())
        );
    }
}

#[test]
fn trainer_learns_with_loopback_names() {
    let Some(_) = trainer() else { return };
    let Some((bed, hosts)) = debian() else { return };
    let experiment = repository("configs/cartpole_ppo.toml");
    let few = ["--set", "run.total_steps=10240", "--set", "eval.every=1000"];
    let mut console = bed.console(&hosts, &[["run", experiment.to_str().unwrap()].as_slice(), &few].concat());
    assert_eq!(console.finish(240).code(), Some(0), "{}", console.transcript());
    let started = console.all("run_started");
    assert!(started[0]["master"].as_str().unwrap().starts_with("10.77.0.10:"), "{started:?}");
    assert_eq!(console.seen.last().unwrap()["outcome"], "succeeded");
}

/// Start files of a login shell that replace it or read its input, one for each host of the bed.
const START_FILES: [&str; 4] = ["exec cat", "read -r x; echo \"got $x\"", "exec bash -l", "exec sh"];

const SECRET: &str = "s3cr3t-pass-env";

fn all_output(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// INPUT-1, for both SSH transports: start files get no input.
#[test]
fn start_files_get_no_input() {
    let Some(bed) = TestBed::start(START_FILES.len()).map(TestBed::with_agent) else { return };
    for (node, line) in START_FILES.iter().enumerate() {
        std::fs::write(bed.folder.path().join(format!("node{node}/home/tb/.bashrc")), format!("{line}\n"))
            .unwrap();
    }
    let experiment = bed.folder.path().join("e.toml");
    let touch = "touch /tmp/touched";
    std::fs::write(
        &experiment,
        format!(
            "[run]\nname = \"x\"\n[launch]\ncommand = [\"echo\", \"$({touch})\", \"`{touch}`\", \"; {touch}\"]\n\
             pass_env = [\"WB_TOKEN\"]\nenv = {{ PLAIN = \"$({touch})\" }}\n"
        ),
    )
    .unwrap();
    let experiment = experiment.to_str().unwrap();
    for transport in ["ssh", "openssh"] {
        let hosts = bed.hosts(START_FILES.len(), 1, &format!("transport = \"{transport}\"\n"));
        let output = bed
            .rankdeck(&hosts, &["check", experiment, "--json"])
            .env("WB_TOKEN", SECRET)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = all_output(&output);
        assert_eq!(output.status.code(), Some(3), "{transport}: {text}");
        assert!(!text.contains(SECRET), "{transport}: {text}");
        for node in 0..START_FILES.len() {
            let host = format!("node{node}");
            assert!(text.contains(&format!("start files on {host}")), "{transport}: {host}: {text}");
            assert_eq!(bed.on(node, "ls /tmp").matches("touched").count(), 0, "{transport}: {host}");
        }
        assert!(text.contains(".bashrc"), "{transport}: {text}");
        // Start files that read the input get its end, and then the command runs.
        let output = bed.rankdeck(&hosts, &["ps"]).stdin(Stdio::null()).output().unwrap();
        let text = all_output(&output);
        for (node, named) in [(0, true), (1, false), (2, true), (3, true)] {
            let name = format!("start files on node{node}");
            assert_eq!(text.contains(&name), named, "{transport}: {name}: {text}");
        }
    }
}
