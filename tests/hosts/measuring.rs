//! `rankdeck check --measure` on two hosts: links, clocks, disks, and the baseline.

use crate::support::hosts::TestBed;
use crate::support::rank_program;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Output, Stdio};

struct Measured {
    bed: TestBed,
    hosts: PathBuf,
    experiment: String,
}

impl Measured {
    fn start() -> Option<Measured> {
        let bed = TestBed::start(2)?.with_agent();
        let hosts = bed.hosts(2, 1, "");
        let path = bed.folder.path().join("experiment.toml");
        let command = rank_program(&["--iters", "5"]);
        std::fs::write(&path, format!("[run]\nname = \"measured\"\n[launch]\ncommand = [{command}]\n"))
            .unwrap();
        Some(Measured { bed, hosts, experiment: path.display().to_string() })
    }

    /// Runs `check --json`; returns its lines.
    fn check(&self, more: &[&str]) -> (Output, Vec<Value>) {
        let mut command =
            self.bed.rankdeck(&self.hosts, &[&["check", &self.experiment, "--json"], more].concat());
        command.env("RANKDECK_CACHE", self.bed.folder.path().join("console-cache"));
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (output, lines)
    }

    fn measure(&self, more: &[&str]) -> Vec<Value> {
        let (output, lines) = self.check(&[&["--measure", "--measure-mb", "4"], more].concat());
        assert!(output.status.success(), "{output:?}");
        lines
    }
}

fn of<'a>(lines: &'a [Value], what: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["kind"] == "measurement" && line["of"] == what).collect()
}

fn facts(lines: &[Value]) -> Vec<&str> {
    let facts = lines.iter().filter(|line| line["check"] == "measure" && line["result"] == "warning");
    facts.filter_map(|line| line["text"].as_str()).collect()
}

#[test]
fn measured_hosts_keep_a_baseline_and_nothing_else() {
    let Some(measured) = Measured::start() else { return };
    let first = measured.measure(&[]);
    let pairs = of(&first, "pair");
    assert_eq!(pairs.len(), 1, "{first:?}");
    let pair = pairs[0];
    assert_eq!((&pair["error"], &pair["baseline"]), (&Value::Null, &Value::Null), "{pair}");
    for value in ["latency_s", "there_bps", "back_bps"] {
        assert!(pair[value].as_f64().is_some_and(|value| value > 0.0), "{value}: {pair}");
    }
    for host in of(&first, "host") {
        assert!(
            host["disk_bytes"] == 4 << 20 && host["clock_s"].is_f64() && host["error"].is_null(),
            "{host}"
        );
    }
    assert!(of(&first, "whole")[0]["bus_bps"].is_f64());
    for node in 0..2 {
        let processes = measured.bed.processes(node);
        assert!(!processes.contains("benchmark"), "{processes}");
        let files = measured.bed.on(node, "ls -A ~tb/work");
        assert!(!files.contains("benchmark"), "{files}");
    }
    let (_, plain) = measured.check(&[]);
    let age = &plain.last().unwrap()["baseline_age_s"];
    assert!(age.as_f64().is_some_and(|age| age >= 0.0), "{age}");
    let again = measured.measure(&[]);
    assert_eq!(of(&again, "pair")[0]["baseline"]["there_bps"], pair["there_bps"]);
}

#[test]
fn slower_link_differs_from_the_baseline() {
    let Some(measured) = Measured::start() else { return };
    measured.measure(&[]);
    let fault = measured.bed.call(&["fault", "node1", "rate", "20000"]).output().unwrap();
    if !fault.status.success() {
        return rankdeck_testkit::skipped("this kernel limits no rates");
    }
    let slow = measured.measure(&[]);
    let pair = of(&slow, "pair")[0];
    assert!(pair["there_bps"].as_f64().is_some_and(|bps| bps < 40e6), "{pair}");
    assert!(facts(&slow).iter().any(|fact| fact.contains("node0") && fact.contains("node1")), "{slow:?}");
    // The baseline has not changed, until it is replaced.
    let known = |lines: &[Value]| of(lines, "pair")[0]["baseline"]["there_bps"].as_f64().unwrap();
    assert!(known(&measured.measure(&["--save"])) > 40e6);
    assert!(known(&measured.measure(&[])) < 40e6);
}
