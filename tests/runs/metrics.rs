//! Metrics of a program without rankdeck's client: from its output and from its event files.

use crate::support::{Bench, Console, trainer};
use rankdeck_proto::tfrecord::{field_bytes, frame, varint};
use rankdeck_testkit::{python_of, repository, skip};
use serde_json::Value;
use std::process::Command;

#[test]
fn cleanrl_output_becomes_metrics() {
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
    assert_eq!(console.finish(60).code(), Some(0), "{}", console.transcript());
    let logged = console.all("metrics");
    assert!(logged.len() >= 2, "about one a second, and the last: {logged:?}");
    for line in &logged {
        assert_eq!(
            (&line["rank"], &line["source"], &line["reduced"]),
            (&0.into(), &"stdout".into(), &false.into())
        );
        assert_eq!(line["values"]["charts/SPS"], 40.0, "{line}");
        assert!(line["values"]["charts/episodic_return"].as_f64().unwrap() <= 60.0, "{line}");
    }
    assert_eq!(logged.last().unwrap()["env_step"], 6000, "the last line is recorded, too");
    assert!(console.all("progress").is_empty(), "nothing here is all-reduced");
}

#[test]
fn output_is_recognized_without_a_declaration() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    // A table of Stable-Baselines3, an evaluation, and a bar that writes over itself.
    let script = "printf '%s\\n' '-----' '| rollout/ | |' '|    ep_rew_mean | 21.5 |' '| time/ | |' \
                  '|    total_timesteps | 2048 |' '-----' '| eval/ | |' '|    mean_reward | 30.5 |' '-----'; \
                  i=0; while [ $i -lt 30 ]; do i=$((i+1)); printf '\\r%s' \"$i/40 [00:01<00:09, 10it/s]\"; sleep 0.1; done; sleep 2";
    let experiment = bench.write(
        "experiment.toml",
        &format!("[run]\nname = \"seen\"\n[launch]\ncommand = [\"sh\", \"-c\", {script:?}]\n"),
    );
    let mut console =
        Console::start(&["run", experiment.to_str().unwrap(), "--hosts", hosts.to_str().unwrap()]);
    assert_eq!(console.finish(60).code(), Some(0), "{}", console.transcript());
    let logged = console.all("metrics");
    let first = logged.iter().find(|line| line["values"]["rollout/ep_rew_mean"] == 21.5);
    let first = first.unwrap_or_else(|| panic!("{logged:?}"));
    assert_eq!((&first["env_step"], &first["return_mean"]), (&2048.into(), &21.5.into()));
    let last = logged.iter().rev().find_map(|line| line["progress"].as_object());
    let last = last.unwrap_or_else(|| panic!("{logged:?}"));
    assert_eq!((&last["done"], &last["total"], &last["unit"]), (&30.into(), &40.into(), &"it".into()));
    let evals = console.all("eval");
    assert_eq!((evals.len(), &evals[0]["return_mean"]), (1, &30.5.into()));
    assert_eq!(evals[0]["series"], "eval/mean_reward");
    assert!(console.all("log").len() <= 10, "the table, and the bar once: {:?}", console.all("log"));
    let notices = console.all("notice");
    let found =
        |line: &Value| line["text"].as_str().is_some_and(|text| text.contains("metrics.names.return"));
    assert_eq!(notices.iter().filter(|line| found(line)).count(), 1, "{notices:?}");
    let run = console.wait_kind("run_finished", 1)["run"].as_str().unwrap().to_owned();
    let out = crate::support::rankdeck()
        .args(["status", &run, "--json", "--hosts", hosts.to_str().unwrap()])
        .output()
        .unwrap();
    let status: Value =
        serde_json::from_slice(&out.stdout).unwrap_or_else(|error| panic!("{error}: {out:?}"));
    assert_eq!((&status["last_return"], &status["best"]["return_mean"]), (&21.5.into(), &30.5.into()));
    assert_eq!((&status["env_step"], &status["progress"]["done"]), (&2048.into(), &30.into()));
}

#[test]
fn files_that_a_rank_holds_open_become_metrics() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    // The second file is closed after each row.
    let script = "mkdir -p any/where; exec 3>any/where/progress.csv; echo other,loss > metrics.csv; echo 1,9 >> metrics.csv; \
                  echo time/total_timesteps,rollout/ep_rew_mean >&3; echo 2048,21.5 >&3; sleep 2; echo 2,8 >> metrics.csv; \
                  sleep 2; echo 4096,22.5 >&3; echo 3,7 >> metrics.csv";
    let experiment = bench.write(
        "experiment.toml",
        &format!("[run]\nname = \"open\"\n[launch]\ncommand = [\"sh\", \"-c\", {script:?}]\n"),
    );
    let mut console =
        Console::start(&["run", experiment.to_str().unwrap(), "--hosts", hosts.to_str().unwrap()]);
    assert_eq!(console.finish(60).code(), Some(0), "{}", console.transcript());
    let logged: Vec<(Value, Value, Value)> = console
        .all("metrics")
        .iter()
        .filter(|line| line["values"]["rollout/ep_rew_mean"].is_number())
        .map(|line| (line["source"].clone(), line["env_step"].clone(), line["return_mean"].clone()))
        .collect();
    let expected = |step: u64, mean: f64| ("csv".into(), step.into(), mean.into());
    assert_eq!(logged, [expected(2048, 21.5), expected(4096, 22.5)], "the last row is read at the end");
    let losses: Vec<f64> =
        console.all("metrics").iter().filter_map(|line| line["values"]["loss"].as_f64()).collect();
    assert_eq!(losses.last(), Some(&7.0), "{losses:?}");
}

#[test]
fn event_files_become_metrics() {
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
    assert_eq!(console.finish(60).code(), Some(0), "{}", console.transcript());
    let logged: Vec<(Value, Value)> = console
        .all("metrics")
        .iter()
        .map(|line| (line["env_step"].clone(), line["values"]["losses/value_loss"].clone()))
        .collect();
    assert_eq!(logged, [(10.into(), 0.5.into()), (20.into(), 0.25.into())]);
}

#[test]
fn metrics_pattern_without_a_group_is_refused_with_its_line() {
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
    let output_text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(output_text.contains("experiment.toml:6"), "{output_text}");
}

#[test]
fn event_files_of_uploaded_code_are_found() {
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
    assert_eq!(console.finish(60).code(), Some(0), "{}", console.transcript());
    assert!(console.all("metrics").iter().any(|line| line["env_step"] == 7), "{}", console.transcript());
}

/// Runs until a reward is NaN; returns the verdict, which names the checkpoint to restart from.
fn no_number(experiment: &str, reason: &str) -> Value {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    let experiment = bench.write("experiment.toml", experiment);
    let mut console =
        Console::start(&["run", experiment.to_str().unwrap(), "--hosts", hosts.to_str().unwrap()]);
    let verdict = console.wait_for("a verdict about it", 120, |line| {
        line["kind"] == "verdict" && line["reason_code"] == reason
    });
    assert!(!console.all("checkpoint").is_empty(), "{}", console.transcript());
    console.signal(libc::SIGINT);
    console.finish(60);
    verdict
}

#[test]
fn nan_reward_of_a_script_names_the_previous_checkpoint() {
    let Some(python) = rankdeck_testkit::python("json") else { return };
    let script = "import rankdeck, time\nfor step in range(1, 100000):\n    reward = float('nan') if step > 40 else 1.0\n    \
        rankdeck.report(env_step=step * 8, returns=[reward], loss=0.5)\n    \
        if step == 20: rankdeck.checkpoint('good.pt')\n    time.sleep(0.1)\n";
    let command = serde_json::to_string(&[&python, "-c", script]).unwrap();
    let verdict = no_number(&format!("[run]\nname = 'nan'\n[launch]\ncommand = {command}\n"), "nan");
    assert_eq!(verdict["severity"], "red", "{verdict}");
    let reason = verdict["reason"].as_str().unwrap();
    assert!(reason.contains("charts/episodic_return"), "{reason}");
    let logged = verdict.to_string();
    assert!(logged.contains("good.pt") && logged.contains("320"), "{logged}");
}

#[test]
fn nan_reward_of_an_environment_names_the_rank() {
    let Some(python) = rankdeck_testkit::python("gymnasium") else { return };
    if crate::support::trainer().is_none() {
        return;
    }
    let programs = rankdeck_testkit::repository("tests/programs");
    let programs = programs.to_str().unwrap();
    let experiment = format!(
        "[run]\nname = 'nan'\ntotal_steps = 6400000\n[launch.env]\nPYTHONPATH = '{programs}'\nFAULTY_RANK = '1'\n\
         FAULTY_AFTER = '400'\n[env]\nid = 'faulty_env:Faulty-nan-v0'\nnum_envs = 4\npython = '{python}'\n\
         [collect]\nnum_steps = 8\n[learn]\nalgorithm = 'ppo'\n[checkpoint]\nevery = 10\n"
    );
    let verdict = no_number(&experiment, "failed");
    assert_eq!((&verdict["severity"], &verdict["rank"]), (&"red".into(), &1.into()), "{verdict}");
    assert!(verdict["reason"].as_str().unwrap().contains("NaN"), "{verdict}");
    let card = &verdict["card"];
    let facts: Vec<&str> = card["facts"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(facts.iter().any(|fact| fact.contains("NaN")), "{facts:?}");
    assert!(facts.iter().filter(|fact| fact.contains("a line on standard output")).count() <= 1, "{facts:?}");
    let commands: Vec<&str> =
        card["actions"].as_array().unwrap().iter().filter_map(|action| action["command"].as_str()).collect();
    assert!(commands.iter().any(|command| command.starts_with("rankdeck restart ")), "{verdict}");
}

/// What an offline run of W&B holds, by its own reader.
const READ: &str = r#"
import json, pathlib
from wandb.proto.wandb_internal_pb2 import Record
from wandb.sdk.internal.datastore import DataStore
store = DataStore()
store.open_for_scan(str(next(pathlib.Path(".").glob("wandb/offline-run-*/*.wandb"))))
logged = {"history": [], "config": []}
while (data := store.scan_data()) is not None:
    record = Record()
    record.ParseFromString(data)
    if record.WhichOneof("record_type") == "history":
        logged["history"].append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item})
    if record.WhichOneof("record_type") == "run":
        logged["run"] = record.run.run_id
        logged["config"] += [item.key for item in record.run.config.update]
print(json.dumps(logged))
"#;

#[test]
fn trainer_run_is_exported_to_wandb() {
    let Some(python) = python_of("RANKDECK_TEST_DING", "wandb") else { return };
    if trainer().is_none() {
        skip!("the trainer is not built");
    }
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    let experiment = bench.write(
        "experiment.toml",
        "[run]\nname = 'sent'\ntotal_steps = 1536\n[env]\nid = 'CartPole-v1'\nnum_envs = 4\n\
         [collect]\nnum_steps = 128\n[learn]\nalgorithm = 'ppo'\n[eval]\nevery = 3\nepisodes = 2\n",
    );
    let mut console =
        Console::start(&["run", experiment.to_str().unwrap(), "--hosts", hosts.to_str().unwrap()]);
    assert_eq!(console.finish(90).code(), Some(0), "{}", console.transcript());
    let run = console.wait_kind("run_finished", 1)["run"].as_str().unwrap().to_owned();
    let evaluation = console.all("eval").last().unwrap()["return_mean"].clone();
    let in_place = |args: &[&str]| {
        let mut command = Command::new(&python);
        command.args(args).current_dir(bench.path()).env("WANDB_MODE", "offline").env("WANDB_SILENT", "true");
        command.env("HOME", bench.path()).output().unwrap()
    };
    let script = repository("examples/python/wandb_run.py");
    let sent = in_place(&[script.to_str().unwrap(), &format!("runs/{run}")]);
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    let read = in_place(&["-c", READ]);
    let logged: Value =
        serde_json::from_slice(&read.stdout).unwrap_or_else(|error| panic!("{error}: {read:?}"));
    assert_eq!(logged["run"], run.as_str());
    assert!(logged["config"].as_array().unwrap().contains(&"learn".into()), "{logged}");
    assert!(!logged["config"].as_array().unwrap().contains(&"launch".into()), "secrets stay here: {logged}");
    let history = logged["history"].as_array().unwrap();
    let steps: Vec<f64> = history.iter().map(|row| row["env_step"].as_f64().unwrap()).collect();
    assert_eq!(steps, [0.0, 512.0, 1024.0, 1536.0]);
    assert_eq!(history[3]["eval/return_mean"].as_f64(), evaluation.as_f64(), "{logged}");
    assert!(history[3]["losses/policy_loss"].is_f64(), "{logged}");
}
