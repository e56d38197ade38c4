//! Sweeps, the queue of their cells, and what prune leaves of them.

use crate::results::{listed, path, run_command};
use crate::support::{Bench, kill, rankdeck, wait_until};
use serde_json::Value;
use std::path::PathBuf;

/// The newest sweep of a bench, as its file has it.
pub(crate) fn sweep(bench: &Bench) -> Option<Value> {
    let folders = std::fs::read_dir(bench.path().join("runs")).ok()?.flatten();
    let file = folders.map(|entry| entry.path().join("sweep.json")).filter(|path| path.exists()).max()?;
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

/// States of the trials of the newest sweep, sorted.
fn states(bench: &Bench) -> Vec<String> {
    let sweep = sweep(bench).unwrap();
    let trials = sweep["cells"].as_array().unwrap().iter();
    let mut states: Vec<String> = trials.map(|trial| trial["state"].as_str().unwrap().to_owned()).collect();
    states.sort();
    states
}

/// How many trials the newest sweep runs in parallel.
fn slots(bench: &Bench) -> usize {
    sweep(bench).unwrap()["slots"].as_array().unwrap().len()
}

#[test]
fn sweep_runs_every_trial_although_some_fail() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(2, 1);
    let experiment = bench.program(&["--iters", "10"]);
    let axis = "launch.command=[\"true\", \"{seed}\"],[\"false\", \"{seed}\"]";
    let common = ["run", path(&experiment), "--hosts", path(&hosts), "--hosts-per-run", "1"];
    let (code, text) = run_command(&bench, &[&common[..], &["--sweep", axis, "--seeds", "1..2"]].concat());
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(
        (slots(&bench), states(&bench)),
        (2, ["failed", "failed", "succeeded", "succeeded"].map(str::to_owned).to_vec())
    );
    let (code, text) = run_command(&bench, &["queue"]);
    assert!(code == Some(0) && text.contains("sweep-program-"), "{text}");
    // Scores of programs that report them; an invalid value is refused before anything runs.
    let (code, text) = run_command(&bench, &[&common[..], &["--seeds", "1..3"]].concat());
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(states(&bench), ["succeeded"; 3]);
    let line = text.lines().find(|line| line.contains("3/3")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.matches("10.00").count() >= 2 && line.ends_with(" 80"), "{line}");
    let (code, text) = run_command(&bench, &[&common[..], &["--sweep", "run.seed=1,x"]].concat());
    assert!(code == Some(2) && !text.contains("sweep-"), "{text}");
}

#[test]
fn seed_reaches_the_script_or_is_refused() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    let write = |name: &str, text: &str| std::fs::write(bench.path().join(name), text).unwrap();
    write("reads.py", "import os\nprint('seed', os.environ['RANKDECK_SEED'], flush=True)\n");
    write("calls.py", "import rankdeck\nprint('seed', rankdeck.seed(), flush=True)\n");
    write("takes.py", "import sys\nprint('seed', sys.argv[1], flush=True)\n");
    write("plain.py", "print('seed 0', flush=True)\n");
    let launch = |script: &str| {
        let file = script.split(' ').next().unwrap();
        let path = bench.path().join(file).display().to_string();
        let words = ["python3", path.as_str()].into_iter().chain(script.split(' ').skip(1));
        let words = words.map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ");
        let name = file.trim_end_matches(".py");
        bench.write("experiment.toml", &format!("[run]\nname = \"{name}\"\n[launch]\ncommand = [{words}]\n"))
    };
    let runs_of = |script: &str| -> Vec<PathBuf> {
        let prefix = script.split(".py").next().unwrap();
        let entries = std::fs::read_dir(bench.path().join("runs")).unwrap().flatten();
        let of_script = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
        of_script.map(|entry| entry.path()).collect()
    };
    for script in ["reads.py", "calls.py", "takes.py {seed}"] {
        let common = ["run", path(&launch(script)), "--hosts", path(&hosts)].map(str::to_owned);
        let common: Vec<&str> = common.iter().map(String::as_str).collect();
        let (code, text) = run_command(&bench, &[&common[..], &["--seeds", "1..2"]].concat());
        assert_eq!(code, Some(0), "{script}: {text}");
        let mut output_text: Vec<String> = Vec::new();
        for run in runs_of(script) {
            let log = std::fs::read_to_string(run.join("node0/gen0/rank1.log"));
            output_text.extend(log.iter().flat_map(|log| log.lines()).map(str::to_owned));
        }
        output_text.sort();
        let output_text: Vec<&str> =
            output_text.iter().filter_map(|line| Some(&line[line.find("seed ")?..])).collect();
        assert_eq!(output_text, ["seed 1", "seed 2"], "{script}");
    }
    let experiment = launch("plain.py");
    for sets in [["--seeds", "1..2"], ["--sweep", "run.seed=1,2"], ["--set", "run.seed=1"]] {
        let common = ["run", path(&experiment), "--hosts", path(&hosts), "--headless"];
        let (code, text) = run_command(&bench, &[&common[..], &sets].concat());
        let line = "plain.py\", \"--seed\", \"{seed}\"]";
        assert!(code == Some(2) && text.contains(line), "{sets:?}: {text}");
        assert_eq!(runs_of("plain.py"), Vec::<PathBuf>::new(), "nothing was launched");
    }
}

#[test]
fn argument_is_swept_and_equal_trials_are_named() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let script = bench.write(
        "t.py",
        "import sys, rankdeck\nlr = sys.argv[sys.argv.index('--lr') + 1]\n\
         for i in range(1, 4): rankdeck.report(env_step=i, loss=min(float(lr), 0.5) / i)\n",
    );
    let command = format!("[\"python3\", {:?}, \"--lr\", \"9\"]", path(&script));
    let experiment =
        bench.write("experiment.toml", &format!("[run]\nname = \"s\"\n[launch]\ncommand = {command}\n"));
    let common = ["run", path(&experiment), "--hosts", path(&hosts)];
    let (code, text) = run_command(&bench, &[&common[..], &["--sweep", "args.lr=0.1,0.5,0.7"]].concat());
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(sweep(&bench).unwrap()["equal"], serde_json::json!([[1, 2]]), "{text}");
    assert!(text.contains("trials 2 and 3"), "{text}");
    // What reaches no program is refused before anything runs.
    let before = std::fs::read_dir(bench.path().join("runs")).unwrap().count();
    for axis in ["learn.gamma=0.1,0.2", "launch.stop_grace_s=1,2"] {
        let (code, text) = run_command(&bench, &[&common[..], &["--sweep", axis]].concat());
        assert!(code == Some(2) && text.contains("args."), "{axis}: {text}");
    }
    assert_eq!(std::fs::read_dir(bench.path().join("runs")).unwrap().count(), before);
}

#[test]
fn host_without_a_slot_is_not_used_by_a_sweep() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(3, 1);
    let experiment = bench.program(&["--iters", "10"]);
    let common = ["run", path(&experiment), "--hosts", path(&hosts), "--seeds", "1..2"];
    let (code, text) = run_command(&bench, &[&common[..], &["--hosts-per-run", "2"]].concat());
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(slots(&bench), 1);
    let sizes: Vec<Value> = listed(&hosts).iter().map(|line| line["world_size"].clone()).collect();
    assert_eq!(sizes, [2, 2]);
}

#[test]
fn trials_of_a_sweep_share_a_host() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let experiment = bench.program(&["--iters", "30"]);
    let common = ["run", path(&experiment), "--hosts", path(&hosts), "--seeds", "1..3"];
    let (code, text) = run_command(&bench, &[&common[..], &["--runs-per-host", "3"]].concat());
    assert_eq!(code, Some(0), "{text}");
    assert_eq!((slots(&bench), states(&bench)), (3, vec!["succeeded".to_owned(); 3]));
}

/// Processes that have a text in their arguments.
fn in_arguments(text: &str) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(text))
    };
    pids.filter(has).collect()
}

#[test]
fn interrupted_sweep_resumes() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    // No trial ends by itself before the sweep is interrupted, however long its polls take.
    let gate = bench.path().join("interrupted");
    let experiment = bench.program(&["--iters", "20", "--wait-for", path(&gate)]);
    let token = format!("hunter2-{}", std::process::id());
    let set = format!("launch.env.API_TOKEN={token}");
    let mut running = rankdeck()
        .args(["run", path(&experiment), "--hosts", path(&hosts), "--seeds", "1,2", "--set", &set])
        .current_dir(bench.path())
        .spawn()
        .unwrap();
    wait_until("the first cell to run", 60, || {
        listed(&hosts).first().is_some_and(|line| line["train_iter"].as_u64() > Some(5))
    });
    assert_eq!(in_arguments(&token), [running.id()], "ARGV-1: only of the command that the user typed");
    kill(running.id(), libc::SIGINT);
    assert_eq!(running.wait().unwrap().code(), Some(130));
    let run = listed(&hosts)[0]["run"].as_str().unwrap().to_owned();
    let kept = std::fs::read_to_string(bench.path().join("runs").join(run).join("console/experiment.toml"));
    assert!(kept.is_ok_and(|text| text.contains(&token)), "the trial has it");
    assert_eq!(states(&bench), ["stopped", "waiting"]);
    std::fs::write(&gate, "").unwrap();
    let (code, text) = run_command(&bench, &["queue", "sweep-program", "--resume"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(states(&bench), ["succeeded"; 2]);
    let generations: Vec<Value> = listed(&hosts).iter().map(|line| line["generation"].clone()).collect();
    assert_eq!(generations, [Value::from(0), Value::from(1)], "the stopped cell went on in its own run");

    // Its name stands for all of its runs.
    let (code, text) = run_command(&bench, &["compare", "sweep-program", "--json"]);
    assert_eq!((code, text.lines().count()), (Some(0), 3), "two runs, and their comparison: {text}");
    let (code, text) = run_command(&bench, &["rm", "sweep-program", "--yes", "--hosts", path(&hosts)]);
    assert_eq!(code, Some(0), "{text}");
    assert!(listed(&hosts).is_empty() && sweep(&bench).is_none());
}

#[test]
fn interrupted_prune_lists_what_is_left() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let experiment = bench.program(&["--iters", "3"]);
    let common = ["run", path(&experiment), "--hosts", path(&hosts), "--runs-per-host", "4"];
    for given in [["--seeds", "1,1"], ["--seeds", "1..2"]] {
        let set = ["--set", "run.seed=1"];
        let (code, text) = run_command(&bench, &[&common[..], &given, &set].concat());
        assert_eq!(code, Some(2), "{text}");
        assert!(sweep(&bench).is_none(), "nothing was launched: {text}");
    }
    let (code, text) = run_command(&bench, &[&common[..], &["--seeds", "1..4"]].concat());
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
        assert!(left().iter().all(|run| text.contains(run.as_str())) && text.contains("hint: "), "{text}");
        assert!(sweep(&bench).is_some(), "its table stays with its runs");
    }
    // A sweep goes with the last of its runs.
    let (code, text) = run_command(&bench, &prune);
    assert_eq!(code, Some(0), "{text}");
    assert!(left().is_empty() && listed(&hosts).is_empty());
    assert!(gone == 4 || text.contains("sweep-program"), "{text}");
    assert!(sweep(&bench).is_none());
}
