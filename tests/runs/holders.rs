//! `rankdeck gpus` on fake GPUs: leftovers of five kinds next to five innocents of the same user.

use crate::support::{Bench, rankdeck};
use rankdeck_testkit::fake_cuda::FakeCuda;
use serde_json::{Value, json};
use std::process::Command;

/// The results of tests/programs/gpu_holders.py; `None` if the test is skipped.
fn bed(bench: &Bench) -> Option<Value> {
    let folder = bench.path().join("gpus-of-the-test");
    std::fs::create_dir(&folder).unwrap();
    let fake = FakeCuda::new(&folder, &[("gpus", "4")])?;
    let hosts = format!(
        "[[host]]\nname = 'one'\ntransport = 'local'\nworkdir = '{0}'\n[[host]]\nname = 'same'\n\
         transport = 'local'\nworkdir = '{0}/other'\n",
        bench.path().display()
    );
    let hosts = bench.write("hosts.toml", &hosts);
    // Pids of its own: it ends leftovers, and other tests have some.
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    if !command.arg("true").output().is_ok_and(|output| output.status.success()) {
        rankdeck_testkit::skipped("no namespace of pids may be made");
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc", "python3"]);
    command.arg(rankdeck_testkit::repository("tests/programs/gpu_holders.py"));
    command.arg(&folder).arg(rankdeck().get_program()).arg(hosts).arg(bench.path());
    fake.apply(&mut command);
    let output = command.current_dir(bench.path()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    Some(serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}")))
}

#[test]
fn gpus_free_ends_only_proven_leftovers() {
    let bench = Bench::new();
    let Some(found) = bed(&bench) else { return };
    let status = |kind: &str| {
        let pids = found["pids"][kind].as_array().unwrap();
        let lines = found["listed"]["lines"].as_array().unwrap();
        let of = |pid: &Value| {
            let all: Vec<&Value> = lines.iter().filter(|line| line["pid"] == *pid).collect();
            assert_eq!(all.len(), 1, "both hosts are one machine: {found:#}");
            all[0]["status"].as_str().unwrap().to_owned()
        };
        let mut all: Vec<String> = pids.iter().map(of).collect();
        all.dedup();
        all.join(" ")
    };
    for kind in ["worker", "noted", "container", "stopped"] {
        assert_eq!(status(kind), "leftover", "{kind}: {found:#}");
    }
    for kind in ["cleared", "cancelled"] {
        assert_eq!(status(kind), "unproven", "{kind}: {found:#}");
    }
    for kind in ["shell", "pane", "job", "jupyter", "attended"] {
        assert_eq!(status(kind), "in_use", "{kind}: {found:#}");
    }
    let line = &found["listed"]["lines"][0];
    assert_eq!((&line["kind"], &line["gpus"][0]["memory"]), (&json!("gpu_process"), &json!(1_048_576)));
    // Without an answer nothing is ended.
    let all = json!({
        "worker": 4, "noted": 2, "cleared": 2, "container": 4, "cancelled": 4, "stopped": 4,
        "shell": 1, "pane": 1, "job": 1, "jupyter": 1, "attended": 1
    });
    assert_eq!((&found["asked"]["code"], &found["unasked"]), (&json!(2), &all));
    let left = json!({
        "worker": 0, "noted": 0, "cleared": 2, "container": 0, "cancelled": 4, "stopped": 0,
        "shell": 1, "pane": 1, "job": 1, "jupyter": 1, "attended": 1
    });
    assert_eq!((&found["freed"]["code"], &found["left"]), (&json!(0), &left), "{found:#}");
    let mut end = left;
    end["cleared"] = json!(1);
    assert_eq!((&found["named"]["code"], &found["refused"]["code"]), (&json!(0), &json!(2)), "{found:#}");
    assert_eq!(found["end"], end);
}
