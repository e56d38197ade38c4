//! A script that saves on one host only resumes on all of them: hosts with disks of their own.

use crate::support::hosts::TestBed;
use serde_json::Value;

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

#[test]
fn killed_script_resumes_on_both_hosts_from_the_same_bytes() {
    let Some(bed) = TestBed::start(2).map(TestBed::with_agent) else { return };
    let folder = bed.folder.path().join("project");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("train.py"), SCRIPT).unwrap();
    let experiment = folder.join("resume.toml");
    let text = "[run]\nname = \"resume\"\n[launch]\ncommand = [\"python3\", \"train.py\"]\ncode = \".\"\n\
                [restart]\nmax_restarts = 1\nbackoff_s = 0.1\n";
    std::fs::write(&experiment, text).unwrap();
    let mut console = bed.console(&bed.hosts(2, 1, ""), &["run", experiment.to_str().unwrap()]);
    let says = |v: &Value, start: &str| {
        v["kind"] == "log" && v["line"].as_str().is_some_and(|line| line.starts_with(start))
    };
    console.wait_for("a checkpoint", 120, |v| says(v, "saved 10"));
    bed.on(1, "kill -9 $(pgrep -f '[t]rain.py')");
    for rank in 0..2 {
        console.wait_for("it resumes", 120, |v| says(v, "resumed ") && v["rank"] == rank);
    }
    assert_eq!(console.finish(120).code(), Some(0), "{}", console.transcript());
    let found = console.all("checkpoint");
    assert!(found.iter().any(|v| v["origin"] == "found" && v["bytes"].as_u64() > Some(300_000)), "{found:?}");
    let resumed: Vec<Value> = console.all("log").into_iter().filter(|v| says(v, "resumed ")).collect();
    let words =
        |v: &Value| -> Vec<String> { v["line"].as_str().unwrap().split(' ').map(str::to_owned).collect() };
    let (first, second) = (words(&resumed[0]), words(&resumed[1]));
    assert_eq!(resumed.len(), 2, "{resumed:?}");
    assert_eq!(first[1], second[1], "the same bytes");
}
