//! Restarts with real processes: by policy after a failed rank, and on other hosts than before.

use crate::support::{Bench, Console, kill, rankdeck, wait_until};
use serde_json::Value;

fn with_policy(bench: &Bench, args: &[&str], policy: &str) -> String {
    let experiment = bench.program(args);
    let text = std::fs::read_to_string(&experiment).unwrap();
    std::fs::write(&experiment, format!("{text}[restart]\n{policy}\n")).unwrap();
    experiment.to_str().unwrap().to_owned()
}

#[test]
fn a_killed_rank_is_followed_by_a_generation_with_its_own_rendezvous() {
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
    assert_eq!(console.finish(60).code(), Some(130), "{}", console.told());
    assert!(bench.rank_processes().is_empty(), "{:?}", bench.rank_processes());
}

#[test]
fn a_program_that_always_fails_at_the_same_place_is_given_up() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    let args = ["--iters", "1000000", "--fail-rank", "1", "--fail-at", "5", "--pause", "0.02"];
    let experiment = with_policy(&bench, &args, "max_restarts = 50\nbackoff_s = 0.1");
    let mut console = Console::start(&["run", &experiment, "--hosts", hosts.to_str().unwrap()]);
    assert_eq!(console.finish(120).code(), Some(1), "{}", console.told());
    let states: Vec<Value> = console.all("restart").iter().map(|v| v["state"].clone()).collect();
    assert_eq!(states.last(), Some(&Value::from("given_up")), "{states:?}");
    assert!(states.len() <= 6, "it led nowhere from the second time on: {states:?}");
    let finished = console.seen.last().unwrap();
    assert_eq!(finished["first_failure"]["rank"], 1);
    let lines = finished["first_failure"]["last_lines"].to_string();
    assert!(lines.contains("about to fail"), "{finished}");
}

#[test]
fn hosts_are_left_out_and_taken_in_by_command() {
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
    assert!(text.contains("generation 1, 2 ranks on local0, local2"), "{text}");
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
    // Nothing is touched by what cannot be.
    for (args, why) in [
        (&["--exclude", "nobody"][..], "no host `nobody`"),
        (&["--add", "local1"][..], "takes part already"),
        (
            &["--exclude", "local0", "--exclude", "local1", "--exclude", "local2"][..],
            "every host is excluded",
        ),
    ] {
        let refused = restart(args);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains(why), "{refused:?}");
    }
    let stopped = rankdeck().args(["stop", "--hosts", path]).output().unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
    console.finish(60);
    wait_until("nothing is left", 20, || bench.rank_processes().is_empty());
}

#[test]
fn the_built_in_planner_refuses_what_does_not_divide_and_the_run_goes_on() {
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
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        said.contains("9 environments cannot be split over 2 ranks") && said.contains("env.num_envs"),
        "{said}"
    );
}
