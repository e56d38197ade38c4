//! Restarts with real processes: by policy after a failed rank, on other hosts than before, and from the
//! checkpoints that programs report (`run --from`, `run --continue`, requeued jobs).

use crate::results::{listed, path, run_command};
use crate::support::{Bench, Console, kill, rankdeck, wait_until};
use rankdeck_proto::message::{Record, RecordEvent};
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;

fn with_policy(bench: &Bench, args: &[&str], policy: &str) -> String {
    let experiment = bench.program(args);
    let text = std::fs::read_to_string(&experiment).unwrap();
    std::fs::write(&experiment, format!("{text}[restart]\n{policy}\n")).unwrap();
    experiment.to_str().unwrap().to_owned()
}

#[test]
fn killed_rank_restarts_with_its_own_rendezvous() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(2, 2);
    let experiment =
        with_policy(&bench, &["--iters", "1000000", "--family"], "max_restarts = 2\nbackoff_s = 0.5");
    let mut console = Console::start(&["run", &experiment, "--hosts", hosts.to_str().unwrap()]);
    let started = console.wait_kind("run_started", 30);
    console.wait_kind("progress", 30);
    let line =
        console.wait_for("rank 2's pid", 5, |v| v["kind"] == "rank" && v["rank"] == 2 && v["pid"].is_u64());
    kill(line["pid"].as_u64().unwrap() as u32, libc::SIGKILL);
    let restart = console.wait_for("a restart", 60, |v| v["kind"] == "restart" && v["state"] == "waiting");
    assert_eq!((&restart["restarts"], &restart["max_restarts"]), (&Value::from(1), &Value::from(2)));
    let first = &restart["first_failure"];
    assert_eq!((&first["rank"], &first["host"]), (&Value::from(2), &Value::from("local1")), "{restart}");
    assert!(first["bound_s"].as_f64().unwrap() > 0.0 && first["bound_s"].as_f64().unwrap() < 1.0, "{first}");
    let again =
        console.wait_for("the next generation", 60, |v| v["kind"] == "run_started" && v["generation"] == 1);
    assert_ne!(again["master"], started["master"], "a port of its own");
    console.wait_for("it trains", 60, |v| v["kind"] == "progress" && v["generation"] == 1);
    console.signal(libc::SIGINT);
    assert_eq!(console.finish(60).code(), Some(130), "{}", console.transcript());
    assert!(bench.rank_processes().is_empty(), "{:?}", bench.rank_processes());
}

#[test]
fn program_failing_at_the_same_place_is_given_up() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    let args = ["--iters", "1000000", "--fail-rank", "1", "--fail-at", "5", "--pause", "0.02"];
    let experiment = with_policy(&bench, &args, "max_restarts = 50\nbackoff_s = 0.1");
    let mut console = Console::start(&["run", &experiment, "--hosts", hosts.to_str().unwrap()]);
    assert_eq!(console.finish(120).code(), Some(1), "{}", console.transcript());
    let states: Vec<Value> = console.all("restart").iter().map(|v| v["state"].clone()).collect();
    assert_eq!(states.last(), Some(&Value::from("given_up")), "{states:?}");
    assert!(states.len() <= 6, "it led nowhere from the second time on: {states:?}");
    let finished = console.seen.last().unwrap();
    assert_eq!(finished["first_failure"]["rank"], 1);
    let lines = finished["first_failure"]["last_lines"].to_string();
    assert!(lines.contains("about to fail"), "{finished}");
}

#[test]
fn hosts_are_excluded_and_added_by_command() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(3, 1);
    let path = hosts.to_str().unwrap();
    let experiment = with_policy(&bench, &["--iters", "1000000"], "");
    let run = ["run", &experiment, "--hosts", path, "--exclude", "local2"];
    let mut console = Console::start(&run);
    let started = console.wait_kind("run_started", 30);
    assert_eq!((&started["world_size"], &started["nnodes"]), (&Value::from(2), &Value::from(2)));
    console.wait_kind("progress", 30);
    let restart = |args: &[&str]| {
        rankdeck()
            .args(["restart", "--yes", "--hosts", path])
            .args(args)
            .current_dir(bench.path())
            .output()
            .unwrap()
    };
    let out = restart(&["--exclude", "local1", "--add", "local2"]);
    assert!(out.status.success(), "{out:?}");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(text.contains("local0") && text.contains("local2"), "{text}");
    let seen = console
        .wait_for("the other console sees it", 30, |v| v["kind"] == "run_started" && v["generation"] == 1);
    assert_eq!(seen["world_size"], 2);
    let placed = console.wait_for("rank 1 there", 30, |v| {
        v["kind"] == "rank" && v["generation"] == 1 && v["rank"] == 1 && v["state"] == "joined"
    });
    assert_eq!(placed["host"], "local2");
    let back = restart(&["--add", "local1"]);
    assert!(back.status.success(), "{back:?}");
    console.wait_for("three ranks", 30, |v| v["kind"] == "run_started" && v["world_size"] == 3);
    // A refused change has no effect.
    for (args, named) in [
        (&["--exclude", "unknown"][..], "`unknown`"),
        (&["--add", "local1"][..], "local1"),
        (&["--exclude", "local0", "--exclude", "local1", "--exclude", "local2"][..], "error: "),
    ] {
        let refused = restart(args);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains(named), "{refused:?}");
    }
    let stopped = rankdeck().args(["stop", "--hosts", path]).output().unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
    console.finish(60);
    wait_until("nothing is left", 20, || bench.rank_processes().is_empty());
}

#[test]
fn planner_refuses_indivisible_sizes() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(3, 1);
    let path = hosts.to_str().unwrap();
    // A program of the user has no sizes of ours: the planner of the built-in trainer is asked through
    // `check`.
    let experiment = bench.write(
        "builtin.toml",
        "[run]\nname = \"b\"\n[env]\nid = \"CartPole-v1\"\nnum_envs = 9\n[learn]\nalgorithm = \"ppo\"\nnum_minibatches = 1\nanneal_lr = false\n",
    );
    let out = rankdeck()
        .args(["run", experiment.to_str().unwrap(), "--hosts", path, "--exclude", "local0", "--headless"])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(2), "{out:?}");
    let output_text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(output_text.contains("env.num_envs"), "{output_text}");
}

#[test]
fn restart_without_a_terminal_needs_yes() {
    let bench = Bench::new();
    let refused = rankdeck()
        .args(["restart", "--hosts", "no-such-hosts.toml"])
        .current_dir(bench.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let output_text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{output_text}");
    assert!(output_text.contains("--yes"), "{output_text}");
}

/// A training that runs is restarted from its latest checkpoint, then from scratch: what earlier generations
/// have saved stays as it was.
#[test]
fn generations_keep_earlier_checkpoints() {
    if crate::support::trainer().is_none() {
        return;
    }
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    let here = ["--hosts", path(&hosts)];
    let config = std::fs::read_to_string("configs/cartpole_ppo.toml").unwrap();
    let config = config.replace("stop_value = 475.0", "stop_value = 1e9").replace("every = 100", "every = 2");
    let experiment = bench.write("cartpole.toml", &config.replace("500_000", "50_000_000"));
    let (code, text) = run_command(&bench, &[&["run", path(&experiment), "--detach"], &here[..]].concat());
    assert_eq!(code, Some(0), "{text}");
    let run = listed(&hosts)[0]["run"].as_str().unwrap().to_owned();
    let folder = bench.path().join("runs").join(&run).join("checkpoints");
    let step = || listed(&hosts)[0]["checkpoint"]["env_step"].as_u64();
    let restart =
        |from: &[&str]| run_command(&bench, &[&["restart", &run, "--yes"], from, &here[..]].concat());
    let read =
        |name: &str| std::fs::read(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    // The note of whose the files are changes once everything is set aside.
    let resumed_from = || {
        let file = bench.path().join("runs").join(&run).join("node0/records.jsonl");
        let text = std::fs::read_to_string(file).unwrap();
        let records = text.lines().map(|line| serde_json::from_str::<Record>(line).unwrap());
        let resume = |record: Record| match record.event {
            RecordEvent::Launched { spec } => Some(spec.resume),
            _ => None,
        };
        records.filter_map(resume).next_back().unwrap()
    };
    let settled = |generation: u32| {
        wait_until("earlier ones to be set aside", 60, || {
            std::fs::read_to_string(folder.join(".generation"))
                .is_ok_and(|text| text.trim() == generation.to_string())
        });
    };
    wait_until("a checkpoint", 60, || {
        folder.join("iter-2.ckpt").exists() && folder.join("best.ckpt").exists()
    });

    let (code, text) = restart(&[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(resumed_from().is_some(), "{text}");
    settled(1);
    let first = ["gen0/latest.ckpt", "gen0/best.ckpt", "gen0/latest.safetensors", "gen0/best.safetensors"];
    let kept = first.map(read);
    let begun = step();
    wait_until("it to save more", 60, || step() > begun && read("latest.ckpt") != kept[0]);
    assert!(folder.join("iter-2.ckpt").exists(), "it is continued");

    let (code, text) = restart(&["--from", "scratch"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(resumed_from(), None, "{text}");
    settled(2);
    wait_until("the new training to save", 60, || folder.join("latest.ckpt").exists());
    assert!(first.map(read) == kept, "generation 0's files");
    assert!(read("gen1/latest.ckpt") != kept[0] && folder.join("gen1/iter-2.ckpt").exists());

    // An earlier one can be named.
    let (code, text) = restart(&["--from", "gen0/best"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(resumed_from().unwrap().contains("gen0/best"), "{text}");
    settled(3);
    assert!(first.map(read) == kept && folder.join("gen2/latest.ckpt").exists(), "generation 0's files");
    let (code, text) = run_command(&bench, &[&["stop", &run], &here[..]].concat());
    assert_eq!(code, Some(0), "{text}");
    assert!(first.map(read) == kept, "generation 0's files");
}

/// Runs the program for some iterations; returns the name of its run and the checkpoint that it resumed from.
fn run_resuming(bench: &Bench, hosts: &Path, more: &[&str]) -> (String, Option<String>) {
    let mut words = vec!["run", "experiment.toml", "--hosts", path(hosts), "--until", "iters=15"];
    words.extend(more);
    let mut console = Console::start(&words);
    assert_eq!(console.finish(120).code(), Some(0), "{}", console.transcript());
    let run = console.wait_kind("run_finished", 1)["run"].as_str().unwrap().to_owned();
    let (_, log) = run_command(bench, &["logs", &run, "--hosts", path(hosts)]);
    let line = log.split_once("environment ").unwrap_or_else(|| panic!("{log}")).1.lines().next().unwrap();
    let environment: Value = serde_json::from_str(line).unwrap();
    (run, environment["RANKDECK_RESUME"].as_str().map(str::to_owned))
}

#[test]
fn program_resumes_from_its_reported_checkpoint() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let saved = bench.path().join("ck.txt");
    bench.program(&["--iters", "100000", "--save", path(&saved)]);
    let (first, resumed) = run_resuming(&bench, &hosts, &["--continue"]);
    assert_eq!(resumed, None, "no run before it");
    let saved = Some(path(&saved).to_owned());
    let latest = format!("{first}:latest");
    for from in [&["--from", &first][..], &["--from", &latest], &["--continue"]] {
        assert_eq!(run_resuming(&bench, &hosts, from).1, saved, "{from:?}");
    }
}

#[test]
fn requeued_job_without_checkpoint_is_refused() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    bench.program(&["--iters", "100000"]);
    let (first, _) = run_resuming(&bench, &hosts, &[]);
    let again = |requeues: &str| {
        let words = ["run", "experiment.toml", "--hosts", path(&hosts), "--continue", "--headless"];
        let mut command = rankdeck();
        command.args(words).args(["--until", "iters=1"]).current_dir(bench.path());
        command.env("SLURM_JOB_ID", "7").env("SLURM_RESTART_COUNT", requeues).output().unwrap()
    };
    let refused = again("1");
    let output_text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{output_text}");
    assert!(output_text.contains(&first) && output_text.contains("hint:"), "{output_text}");
    assert_eq!(std::fs::read_dir(bench.path().join("runs")).unwrap().count(), 1, "nothing was launched");
    let begun = again("0");
    let output_text = String::from_utf8_lossy(&begun.stderr).into_owned();
    assert_eq!(begun.status.code(), Some(0), "{output_text}");
    assert!(output_text.contains(&first), "that nothing was resumed is reported: {output_text}");
}
