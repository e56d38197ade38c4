//! Drills: a small program of two ranks is broken in every way, on this machine.

use crate::results::{listed, path, run_command};
use crate::support::{Bench, Console, kill, rankdeck, wait_until};
use serde_json::Value;
use std::path::PathBuf;

/// Two ranks that wait for each other at each step, save now and then and when they are stopped, and resume. All in
/// the directory that they run in.
const PROGRAM: &str = r#"
import json, os, socket, time
import rankdeck

rank = int(os.environ["RANK"])
assert os.environ["RANKDECK_DRILL"] == "1" and os.environ["WANDB_MODE"] == "offline"
at = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    server = socket.create_server(at)
    peer = server.accept()[0]
else:
    while True:
        try:
            peer = socket.create_connection(at)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
step = 0
if os.environ.get("RANKDECK_RESUME"):
    step = json.load(open(os.environ["RANKDECK_RESUME"]))["step"]


def save():
    with open("saved.tmp", "w") as file:
        json.dump({"step": step}, file)
    os.replace("saved.tmp", "saved.pt")
    rankdeck.checkpoint(os.path.abspath("saved.pt"))


while True:
    step += 1
    stop = b"1" if rankdeck.should_stop() else b"0"
    peer.sendall(stop)
    other = peer.recv(1)
    if not other:
        raise ConnectionResetError("the other rank is gone")
    time.sleep(0.02)
    rankdeck.report(env_step=step, loss=1 / step)
    if rank == 0 and step % 25 == 0:
        save()
    if b"1" in (stop, other):
        break
if rank == 0:
    save()
"#;

/// A bench with the program.
fn bench() -> (Bench, PathBuf, PathBuf) {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    bench.write("train.py", PROGRAM);
    let experiment =
        "[run]\nname = \"tiny\"\n[launch]\ncommand = [\"python3\", \"train.py\"]\nstop_grace_s = 5.0\n";
    let experiment = bench.write("experiment.toml", experiment);
    (bench, hosts, experiment)
}

/// A drill whose results are kept in the bench.
fn drill(bench: &Bench, experiment: &std::path::Path, hosts: &std::path::Path, only: &str) -> Console {
    let mut command = rankdeck();
    command.args([
        "drill",
        path(experiment),
        "--hosts",
        path(hosts),
        "--json",
        "--train-s",
        "30",
        // Other tests run on this machine, too.
        "--yes",
        "--only",
        only,
    ]);
    command.current_dir(bench.path()).env("XDG_STATE_HOME", bench.path().join("state"));
    Console::spawn(command)
}

/// Files of a kind below the bench.
fn found(bench: &Bench, name: &str) -> Vec<PathBuf> {
    let mut folders = vec![bench.path().to_owned()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                _ if entry.file_name().to_string_lossy().starts_with(name) => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}

/// Runs these cases; each must pass.
fn passes(only: &str) -> (Bench, Vec<Value>) {
    let (bench, hosts, experiment) = bench();
    let mut console = drill(&bench, &experiment, &hosts, only);
    let code = console.finish(300).code();
    let cases = console.all("drill_case");
    assert_eq!(code, Some(0), "{cases:#?} {}", console.transcript());
    let names: Vec<&str> = cases.iter().filter_map(|case| case["case"].as_str()).collect();
    assert_eq!(names.join(","), only);
    for case in &cases {
        assert_eq!(
            (&case["outcome"], &case["processes_left"]),
            (&"passed".into(), &serde_json::json!([])),
            "{case}"
        );
        assert!(case["seconds"].as_f64().is_some_and(|seconds| seconds >= 0.0), "{case}");
    }
    // Nothing but the results is left, and the program wrote only in copies of its directory.
    wait_until("processes to end", 20, || bench.processes().is_empty());
    assert_eq!(found(&bench, "saved"), Vec::<PathBuf>::new());
    assert_eq!(listed(&hosts), Vec::<Value>::new());
    let kept = found(&bench, "drill.json");
    let facts: Value = serde_json::from_slice(&std::fs::read(&kept[0]).unwrap()).unwrap();
    assert_eq!((kept.len(), facts["cases"].as_array().map(Vec::len)), (1, Some(cases.len())), "{facts}");
    (bench, cases)
}

#[test]
fn drill_names_frozen_and_killed_ranks_and_stops() {
    let (_bench, cases) = passes("freeze,kill,stop");
    let named: Vec<&str> = cases.iter().filter_map(|case| case["named"].as_str()).collect();
    assert!(named[0].contains("stopped") && named[1].contains("killed"), "{named:?}");
    assert_eq!(
        (&cases[1]["checkpoint"], &cases[2]["checkpoint"]),
        (&"kept".into(), &"kept".into()),
        "{cases:?}"
    );
}

/// The ranks of this program wait for each other through a socket, which tells nothing about who is late.
#[test]
fn slow_case_without_collectives_is_skipped() {
    let (bench, hosts, experiment) = bench();
    let mut console = drill(&bench, &experiment, &hosts, "slow");
    assert_eq!(console.finish(200).code(), Some(0), "{}", console.transcript());
    let case = console.wait_kind("drill_case", 1);
    assert_eq!((&case["outcome"], &case["processes_left"]), (&"skipped".into(), &serde_json::json!([])));
    assert!(case["notes"][0].as_str().is_some_and(|note| note.contains("collectives")), "{case}");
}

#[test]
fn drill_survives_lost_consoles_and_agents() {
    let (_bench, cases) = passes("exception,console,agent,restart");
    let restart = &cases[3];
    // Both ranks had made 25 steps when the first checkpoint was saved.
    assert!(restart["resumed_step"].as_u64().is_some_and(|step| step > 50), "{restart}");
}

/// DRILL-5, DRILL-1
#[test]
fn drill_5_is_refused_beside_a_live_run_that_it_cannot_break() {
    let (bench, hosts, experiment) = bench();
    let own = bench.program(&["--iters", "1000000", "--pause", "0.02"]);
    let mut console = Console::start(&["run", path(&own), "--hosts", path(&hosts)]);
    console.wait_kind("progress", 30);
    let run = console.wait_kind("run_started", 1)["run"].as_str().unwrap().to_owned();
    let before = std::fs::read_dir(bench.path().join("runs")).unwrap().count();
    std::fs::write(&experiment, "[run]\nname = \"tiny\"\n[launch]\ncommand = [\"python3\", \"train.py\"]\n")
        .unwrap();
    let (code, text) =
        run_command(&bench, &["drill", path(&experiment), "--hosts", path(&hosts), "--headless"]);
    assert!(code == Some(2) && text.contains(&run), "{text}");
    assert_eq!(std::fs::read_dir(bench.path().join("runs")).unwrap().count(), before, "nothing was launched");
    for fault in ["freeze", "kill", "slow", "exception", "agent"] {
        let words = ["agent", "drill", "--run", &run, "--workdir", path(bench.path()), "--rank", "1"];
        let words = [&words[..], &["--fault", fault, "--seconds", "1"]].concat();
        let (code, text) = run_command(&bench, &words);
        assert!(code == Some(1) && text.contains("rankdeck drill"), "{fault}: {text}");
    }
    console.wait_for_new("progress of all ranks", 30, |line| line["kind"] == "progress");
    kill(console.pid(), libc::SIGTERM);
    assert_eq!(console.finish(60).code(), Some(130), "{}", console.transcript());
    assert_eq!(console.all("verdict"), Vec::<Value>::new());
}

/// DRILL-5
#[test]
fn drill_5_asks_before_it_starts_beside_a_run_elsewhere() {
    let (bench, hosts, experiment) = bench();
    let other = Bench::new();
    let own = other.program(&["--iters", "1000000", "--pause", "0.02"]);
    let mut console = Console::start(&["run", path(&own), "--hosts", path(&other.local_hosts(1, 1))]);
    console.wait_kind("progress", 30);
    let run = console.wait_kind("run_started", 1)["run"].as_str().unwrap().to_owned();
    let (code, text) =
        run_command(&bench, &["drill", path(&experiment), "--hosts", path(&hosts), "--headless"]);
    assert!(code == Some(2) && text.contains(&run) && text.contains("--yes"), "{text}");
    assert!(!bench.path().join("runs").exists(), "a run was launched: {text}");
    kill(console.pid(), libc::SIGTERM);
    assert_eq!(console.finish(60).code(), Some(130), "{}", console.transcript());
}

/// DRILL-6
#[test]
fn drill_6_interrupted_case_is_stopped_and_removed() {
    let (bench, hosts, experiment) = bench();
    let console = drill(&bench, &experiment, &hosts, "slow,freeze");
    wait_until("the ranks to save", 60, || !found(&bench, "saved.pt").is_empty());
    kill(console.pid(), libc::SIGINT);
    let mut console = console;
    assert_eq!(console.finish(120).code(), Some(130), "{}", console.transcript());
    assert_eq!(console.all("drill_case"), Vec::<Value>::new());
    let summary = console.wait_kind("drill", 1);
    assert_eq!((&summary["exit_code"], &summary["passed"]), (&130.into(), &0.into()), "{summary}");
    wait_until("processes to end", 20, || bench.processes().is_empty());
    assert_eq!(listed(&hosts), Vec::<Value>::new());
}
