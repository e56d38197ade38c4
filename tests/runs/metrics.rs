//! Values of a program that knows nothing of rankdeck: from its output and from event files it writes.

use crate::support::{Bench, Console};
use rankdeck_proto::tfrecord::{field_bytes, frame, varint};
use serde_json::Value;

#[test]
fn cleanrls_prints_become_charts_and_are_called_what_they_are() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(2, 1);
    // Every rank prints; only rank 0's lines count.
    let script = "i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo \"global_step=$((i*100)), episodic_return=[$((RANK*1000+i)).0]\"; \
                  echo \"SPS: 4$RANK\"; sleep 0.05; done";
    let experiment = bench.write(
        "experiment.toml",
        &format!("[run]\nname = \"own\"\n[launch]\ncommand = [\"sh\", \"-c\", {script:?}]\n[metrics]\npresets = [\"cleanrl\"]\n"),
    );
    let mut console =
        Console::start(&["run", experiment.to_str().unwrap(), "--hosts", hosts.to_str().unwrap()]);
    assert_eq!(console.finish(60).code(), Some(0), "{}", console.told());
    let told = console.all("metrics");
    assert!(told.len() >= 2, "about one a second, and the last: {told:?}");
    for line in &told {
        assert_eq!(
            (&line["rank"], &line["source"], &line["reduced"]),
            (&0.into(), &"stdout".into(), &false.into())
        );
        assert_eq!(line["values"]["charts/SPS"], 40.0, "{line}");
        assert!(line["values"]["charts/episodic_return"].as_f64().unwrap() <= 60.0, "{line}");
    }
    assert_eq!(told.last().unwrap()["env_step"], 6000, "the last line is told, too");
    assert!(console.all("progress").is_empty(), "nothing here is all-reduced");
}

#[test]
fn event_files_become_charts() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let scalar = |step: u64, value: f32| {
        let (mut entry, mut summary, mut event) = (Vec::new(), Vec::new(), Vec::new());
        field_bytes(&mut entry, 1, b"losses/value_loss");
        varint(&mut entry, 2 << 3 | 5);
        entry.extend(value.to_le_bytes());
        field_bytes(&mut summary, 1, &entry);
        varint(&mut event, 2 << 3);
        varint(&mut event, step);
        field_bytes(&mut event, 5, &summary);
        frame(&event)
    };
    std::fs::write(bench.path().join("part"), [scalar(10, 0.5), scalar(20, 0.25)].concat()).unwrap();
    let script = "mkdir -p tb/x; cat part > tb/x/events.out.tfevents.1.h; sleep 4";
    let experiment = bench.write(
        "experiment.toml",
        &format!("[run]\nname = \"tb\"\n[launch]\ncommand = [\"sh\", \"-c\", {script:?}]\n[metrics]\ntensorboard = \"tb\"\n"),
    );
    let mut console =
        Console::start(&["run", experiment.to_str().unwrap(), "--hosts", hosts.to_str().unwrap()]);
    assert_eq!(console.finish(60).code(), Some(0), "{}", console.told());
    let told: Vec<(Value, Value)> = console
        .all("metrics")
        .iter()
        .map(|line| (line["env_step"].clone(), line["values"]["losses/value_loss"].clone()))
        .collect();
    assert_eq!(told, [(10.into(), 0.5.into()), (20.into(), 0.25.into())]);
}

#[test]
fn a_pattern_that_cannot_work_is_refused_with_its_line() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let experiment = bench.write(
        "experiment.toml",
        "[run]\nname = \"bad\"\n[launch]\ncommand = [\"true\"]\n[metrics]\nstdout = ['loss=(.*)']\n",
    );
    let out = crate::support::rankdeck()
        .args(["run", experiment.to_str().unwrap(), "--hosts", hosts.to_str().unwrap(), "--headless"])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(2), "{out:?}");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains("no named group") && said.contains("experiment.toml:6"), "{said}");
}

#[test]
fn event_files_are_found_where_the_pushed_code_writes_them() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    std::fs::create_dir(bench.path().join("src")).unwrap();
    let script = "import os, shutil, time; os.makedirs('runs/a/b'); shutil.copy('part', 'runs/a/b/events.out.tfevents.1.h'); \
                  os.utime('runs/a/b/events.out.tfevents.1.h'); time.sleep(4)";
    std::fs::write(bench.path().join("src/train.py"), script).unwrap();
    let (mut entry, mut summary, mut event) = (Vec::new(), Vec::new(), Vec::new());
    field_bytes(&mut entry, 1, b"loss");
    varint(&mut entry, 2 << 3 | 5);
    entry.extend(0.5f32.to_le_bytes());
    field_bytes(&mut summary, 1, &entry);
    varint(&mut event, 2 << 3);
    varint(&mut event, 7);
    field_bytes(&mut event, 5, &summary);
    std::fs::write(bench.path().join("src/part"), frame(&event)).unwrap();
    let experiment = bench.write(
        "experiment.toml",
        "[run]\nname = \"tb\"\n[launch]\ncommand = [\"python3\", \"train.py\"]\ncode = \"src\"\n[metrics]\ntensorboard = \"runs\"\n",
    );
    let mut console =
        Console::start(&["run", experiment.to_str().unwrap(), "--hosts", hosts.to_str().unwrap()]);
    assert_eq!(console.finish(60).code(), Some(0), "{}", console.told());
    assert!(console.all("metrics").iter().any(|line| line["env_step"] == 7), "{}", console.told());
}
