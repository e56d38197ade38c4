//! A script that saves on one host only resumes on all of them: hosts with disks of their own.

use crate::support::hosts::TestBed;
use crate::support::{Console, wait_until};
use serde_json::Value;
use std::path::PathBuf;

/// Rank 0 saves every five steps, and reports nothing. A rank that resumes prints what it has read, and ends.
const SCRIPT: &str = r#"
import hashlib, os, time

rank, resume = os.environ["RANKDECK_RANK"], os.environ.get("RANKDECK_RESUME")
if resume:
    with open(resume, "rb") as file:
        content = file.read()
    print("resumed", hashlib.sha256(content).hexdigest(), resume, flush=True)
    raise SystemExit(0)
for step in range(1, 100000):
    if rank == "0" and step % 5 == 0:
        with open("ck.pt.tmp", "wb") as file:
            file.write(str(step).encode() * 300000)
        os.replace("ck.pt.tmp", "ck.pt")
        print("saved", step, flush=True)
    time.sleep(0.05)
"#;

/// Kills all ranks of a host.
const KILL: &str = "kill -9 $(pgrep -f '[t]rain.py')";

/// The script on two hosts.
struct Project {
    bed: TestBed,
    hosts: PathBuf,
    experiment: PathBuf,
}

impl Project {
    /// `None` if the test is skipped.
    fn new(nproc: usize, restart: &str) -> Option<Project> {
        let bed = TestBed::start(2).map(TestBed::with_agent)?;
        let folder = bed.folder.path().join("project");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("train.py"), SCRIPT).unwrap();
        let experiment = folder.join("resume.toml");
        let text = format!(
            "[run]\nname = \"resume\"\n[launch]\ncommand = [\"python3\", \"train.py\"]\ncode = \".\"\n\
             [restart]\nbackoff_s = 0.1\n{restart}"
        );
        std::fs::write(&experiment, text).unwrap();
        let hosts = bed.hosts(2, nproc, "");
        Some(Project { bed, hosts, experiment })
    }

    /// Launches it, and waits for a checkpoint.
    fn saved(&self) -> Console {
        let mut console = self.bed.console(&self.hosts, &["run", self.experiment.to_str().unwrap()]);
        console.wait_for("a checkpoint", 120, |line| says(line, "saved 10"));
        console
    }

    /// Runs a command to its end; returns the exit code and its output.
    fn command(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = self.bed.rankdeck(&self.hosts, args).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    }
}

fn says(line: &Value, start: &str) -> bool {
    line["kind"] == "log" && line["line"].as_str().is_some_and(|text| text.starts_with(start))
}

/// The hash of each line `resumed HASH PATH`.
fn hashes<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    lines
        .filter_map(|line| line.split_once("resumed "))
        .filter_map(|(_, rest)| rest.split(' ').next())
        .collect()
}

/// Runs the script, kills ranks with `kill` on a host, and checks that all ranks resume from the same bytes.
fn resumes_everywhere(nproc: usize, node: usize, kill: &str) {
    let Some(project) = Project::new(nproc, "max_restarts = 1\n") else { return };
    let mut console = project.saved();
    project.bed.on(node, kill);
    for rank in 0..2 * nproc {
        console.wait_for("it resumes", 120, |line| says(line, "resumed ") && line["rank"] == rank);
    }
    assert_eq!(console.finish(120).code(), Some(0), "{}", console.transcript());
    let found = console.all("checkpoint");
    assert!(found.iter().any(|v| v["origin"] == "found" && v["bytes"].as_u64() > Some(300_000)), "{found:?}");
    let logs = console.all("log");
    let found = hashes(logs.iter().filter_map(|line| line["line"].as_str()));
    assert_eq!(found.len(), 2 * nproc, "{found:?}");
    assert!(found.iter().all(|hash| *hash == found[0]), "not the same bytes: {found:?}");
}

#[test]
fn killed_rank_1_resumes_on_both_hosts() {
    resumes_everywhere(1, 1, KILL);
}

#[test]
fn killed_rank_0_resumes_on_both_hosts() {
    resumes_everywhere(1, 0, KILL);
}

#[test]
fn killed_ranks_of_a_saving_host_resume_on_both_hosts() {
    resumes_everywhere(2, 0, KILL);
}

#[test]
fn killed_ranks_of_another_host_resume_on_both_hosts() {
    resumes_everywhere(2, 1, KILL);
}

/// The host of rank 1 loses its power, and rank 0 fails: it resumes alone.
#[test]
fn run_resumes_without_a_lost_host() {
    let Some(project) = Project::new(1, "lost_host = \"exclude\"\n") else { return };
    let mut console = project.saved();
    project.bed.fault(1, &["kill"]);
    console.wait_for("the verdict", 60, |line| line["verdict"] == "lost" && line["host"] == "node1");
    project.bed.on(0, KILL);
    console.wait_for("rank 0 resumes", 180, |line| says(line, "resumed ") && line["rank"] == 0);
    console.finish(120);
    let logs = console.all("log");
    assert_eq!(hashes(logs.iter().filter_map(|line| line["line"].as_str())).len(), 1, "one rank");
}

/// The host of rank 0, which has the only checkpoint, loses its power, and rank 1 fails. Once the host is back,
/// `restart` resumes on both.
#[test]
fn restart_resumes_after_the_saving_host_is_back() {
    let Some(project) = Project::new(1, "") else { return };
    // What is on the disk of `work` does not outlive a host of the bed.
    let hosts = std::fs::read_to_string(&project.hosts).unwrap();
    std::fs::write(&project.hosts, hosts.replace("workdir = \"work\"", "workdir = \"kept\"")).unwrap();
    let mut console = project.saved();
    // Searches for files are some time apart, and a host without power makes no last one.
    console.wait_for("the checkpoint to be known", 120, |line| line["kind"] == "checkpoint");
    let run = console.all("run_started")[0]["run"].as_str().unwrap().to_owned();
    project.bed.fault(0, &["kill"]);
    console.wait_for("the verdict", 60, |line| line["verdict"] == "lost" && line["host"] == "node0");
    project.bed.on(1, KILL);
    assert_ne!(console.finish(180).code(), Some(0), "{}", console.transcript());
    let booted = project.bed.call(&["boot", "node0"]).output().unwrap();
    assert!(booted.status.success(), "{booted:?}");
    let (code, text) = project.command(&["restart", &run, "--yes"]);
    assert_eq!(code, Some(0), "{text}");
    wait_until("both ranks to resume", 120, || {
        let (_, text) = project.command(&["logs", &run]);
        let found = hashes(text.lines());
        found.len() == 2 && found[0] == found[1]
    });
}
