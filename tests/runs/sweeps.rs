//! Sweeps, the queue of their cells, and what prune leaves of them.

use crate::results::{listed, path, told};
use crate::support::{Bench, kill, rankdeck, wait_until};
use serde_json::Value;

#[test]
fn a_sweep_runs_every_cell_although_some_fail_and_the_queue_shows_it() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(2, 1);
    let experiment = bench.program(&["--iters", "10"]);
    let axis = "launch.command=[\"true\"],[\"false\"]";
    let common = ["run", path(&experiment), "--hosts", path(&hosts), "--hosts-per-run", "1"];
    let (code, text) = told(&bench, &[&common[..], &["--sweep", axis, "--seeds", "1..2"]].concat());
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("2 at once") && text.contains("2 succeeded, 2 failed"), "{text}");
    let (code, text) = told(&bench, &["queue"]);
    assert!(
        code == Some(0) && text.contains("sweep-program-") && text.contains("2 succeeded, 2 failed"),
        "{text}"
    );
    // Scores of programs that tell them; a wrong value is told before anything runs.
    let (code, text) = told(&bench, &[&common[..], &["--seeds", "1..3"]].concat());
    assert_eq!(code, Some(0), "{text}");
    let line = text.lines().find(|line| line.starts_with("(as it is)")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains("3/3") && line.contains("10.00 to 10.00") && line.ends_with(" 80"), "{line}");
    let (code, text) = told(&bench, &[&common[..], &["--sweep", "run.seed=1,x"]].concat());
    assert!(code == Some(2) && !text.contains("sweep sweep-"), "{text}");
}

#[test]
fn a_host_that_no_slot_has_takes_no_part_in_a_sweep() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(3, 1);
    let experiment = bench.program(&["--iters", "10"]);
    let common = ["run", path(&experiment), "--hosts", path(&hosts), "--seeds", "1..2"];
    let (code, text) = told(&bench, &[&common[..], &["--hosts-per-run", "2"]].concat());
    assert!(code == Some(0) && text.contains("1 at once"), "{text}");
    let sizes: Vec<Value> = listed(&hosts).iter().map(|line| line["world_size"].clone()).collect();
    assert_eq!(sizes, [2, 2]);
}

#[test]
fn several_runs_of_a_sweep_share_a_host() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let experiment = bench.program(&["--iters", "30"]);
    let common = ["run", path(&experiment), "--hosts", path(&hosts), "--seeds", "1..3"];
    let (code, text) = told(&bench, &[&common[..], &["--runs-per-host", "3"]].concat());
    assert!(code == Some(0) && text.contains("3 at once") && text.contains("3 succeeded"), "{text}");
}

#[test]
fn an_interrupted_sweep_goes_on() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let experiment = bench.program(&["--iters", "120"]);
    let mut sweep = rankdeck()
        .args(["run", path(&experiment), "--hosts", path(&hosts), "--seeds", "1,2"])
        .current_dir(bench.path())
        .spawn()
        .unwrap();
    wait_until("the first cell to run", 60, || {
        listed(&hosts).first().is_some_and(|line| line["train_iter"].as_u64() > Some(5))
    });
    kill(sweep.id(), libc::SIGINT);
    assert_eq!(sweep.wait().unwrap().code(), Some(130));
    let (_, text) = told(&bench, &["queue"]);
    assert!(text.contains("1 stopped, 1 waiting"), "{text}");
    let (code, text) = told(&bench, &["queue", "sweep-program", "--resume"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("2 succeeded"), "{text}");
    let generations: Vec<Value> = listed(&hosts).iter().map(|line| line["generation"].clone()).collect();
    assert_eq!(generations, [Value::from(0), Value::from(1)], "the stopped cell went on in its own run");

    // Its name stands for all of its runs.
    let (code, text) = told(&bench, &["compare", "sweep-program", "--json"]);
    assert_eq!((code, text.lines().count()), (Some(0), 3), "two runs, and what is said of both: {text}");
    let (code, text) = told(&bench, &["rm", "sweep-program", "--yes", "--hosts", path(&hosts)]);
    assert!(code == Some(0) && text.contains("removed 2 runs"), "{text}");
    assert!(listed(&hosts).is_empty());
    assert!(told(&bench, &["queue"]).1.contains("no sweeps"));
}

#[test]
fn an_interrupted_prune_says_what_is_gone_and_what_is_left() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let experiment = bench.program(&["--iters", "3"]);
    let common = ["run", path(&experiment), "--hosts", path(&hosts), "--runs-per-host", "4"];
    for given in [["--seeds", "1,1"], ["--seeds", "1..2"]] {
        let set = ["--set", "run.seed=1"];
        let (code, text) = told(&bench, &[&common[..], &given, &set].concat());
        let says = text.contains("named twice") || text.contains("given by --set");
        assert!(code == Some(2) && says && !text.contains("sweep sweep-"), "{text}");
    }
    let (code, text) = told(&bench, &[&common[..], &["--seeds", "1..4"]].concat());
    assert_eq!(code, Some(0), "{text}");
    let runs: Vec<String> =
        listed(&hosts).iter().map(|line| line["run"].as_str().unwrap().to_owned()).collect();
    assert_eq!(runs.len(), 4);
    wait_until("the runs to be over", 60, || listed(&hosts).iter().all(|line| line["state"] == "finished"));
    let prune = ["prune", "--older-than", "0s", "--yes", "--hosts", path(&hosts)];
    let left = || runs.iter().filter(|run| bench.path().join("runs").join(run).exists()).collect::<Vec<_>>();
    let child = rankdeck()
        .args(prune)
        .current_dir(bench.path())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the first run to be gone", 60, || left().len() < 4);
    kill(child.id(), libc::SIGINT);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let gone = 4 - left().len();
    // A machine that was busy may have removed all of them before the signal came.
    if gone < 4 {
        assert_eq!(output.status.code(), Some(130), "{text}");
        assert!(text.contains(&format!("removed {gone} of 4 runs")) && text.contains("left: "), "{text}");
        assert!(left().iter().all(|run| text.contains(run.as_str())) && text.contains("hint: "), "{text}");
        assert!(told(&bench, &["queue"]).1.contains("sweep-program"), "its table stays with its runs");
    }
    // A sweep goes with the last of its runs.
    let (code, text) = told(&bench, &prune);
    assert_eq!(code, Some(0), "{text}");
    assert!(left().is_empty() && listed(&hosts).is_empty());
    assert!(gone == 4 || text.contains("sweep-program"), "{text}");
    assert!(told(&bench, &["queue"]).1.contains("no sweeps"));
}
