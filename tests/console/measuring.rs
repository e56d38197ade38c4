//! `rankdeck check --measure` on this machine, and the end of its command on a host.

use crate::support::{Bench, rankdeck, wait_until};
use serde_json::{Value, json};
use std::io::Write;
use std::process::Stdio;

#[test]
fn single_host_measures_loopback_and_disk() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let experiment = bench.program(&["--iters", "1"]);
    let mut command = rankdeck();
    command.arg("check").arg(&experiment).arg("--hosts").arg(&hosts);
    command.args(["--measure", "--measure-mb", "1", "--json"]).current_dir(bench.path());
    let output = command.env("RANKDECK_CACHE", bench.path().join("cache")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |what: &str| lines.iter().find(|line| line["kind"] == "measurement" && line["of"] == what);
    let (pair, host) = (of("pair").unwrap(), of("host").unwrap());
    assert_eq!(pair["hosts"], json!(["local0", "local0"]));
    assert!(pair["there_bps"].is_f64() && pair["error"].is_null(), "{pair}");
    assert!(host["disk_bytes"] == 1 << 20 && host["clock_s"].is_f64(), "{host}");
    assert!(of("whole").is_none());
    assert_eq!(std::fs::read_dir(bench.path().join("cache/baselines")).unwrap().count(), 1);
    let last = lines.last().unwrap();
    assert_eq!((&last["kind"], &last["failed"]), (&json!("check_finished"), &json!(0)));
}

#[test]
fn bench_1_measuring_ends_with_its_console() {
    let mut child = rankdeck()
        .args(["agent", "benchmark"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // It waits for a host that never comes.
    let question = json!({
        "workdir": "/", "node": 1, "hosts": 2, "token": "t", "ports": [0], "patience_ms": 12_000,
        "turns": [{ "turn": 0, "peer": 0, "calls": false }], "turn_ms": 100,
    });
    child.stdin.take().unwrap().write_all(question.to_string().as_bytes()).unwrap();
    drop(child.stdout.take());
    wait_until("the end of the command", 3, || child.try_wait().unwrap().is_some());
    assert!(!child.wait().unwrap().success());
}
