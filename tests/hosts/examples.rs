//! examples/python: third-party programs that report with rankdeck.py, on two hosts over SSH, and resume on hosts with
//! disks of their own.

use crate::support::Console;
use crate::support::hosts::{Loopback, TestBed};
use rankdeck_testkit::{python, python_of, repository, skipped};
use std::path::Path;

/// Runs an example with a small budget; checks its totals over both ranks and its evaluations.
fn runs(name: &str, packages: &str, args: &[&str]) {
    let Some(python) = python(packages) else { return };
    runs_with(&python, name, args);
}

fn runs_with(python: &str, name: &str, args: &[&str]) {
    let Some(hosts) = Loopback::start(2, 1).map(Loopback::with_agent) else { return };
    let source = repository(&format!("examples/python/{name}.py"));
    let added =
        std::fs::read_to_string(&source).unwrap().lines().filter(|line| line.ends_with("# +")).count();
    assert!((1..=10).contains(&added), "{name}: {added} added lines");
    let experiment = repository(&format!("examples/python/{name}.toml"));
    let script = format!("{name}.py");
    let mut command = vec![python, "-u", &script];
    command.extend(args);
    let set = format!("launch.command={command:?}");
    // Else Stable-Baselines3 and others log to folders outside of the test.
    let logs = format!("launch.env={{TMPDIR={0:?},SB3_LOGDIR={0:?}}}", hosts.bench.path());
    let mut console = hosts.console(&["run", experiment.to_str().unwrap(), "--set", &set, "--set", &logs]);
    assert_eq!(console.finish(300).code(), Some(0), "{name}: {}", console.transcript());
    let progress = console.all("progress");
    let last = progress.last().unwrap_or_else(|| panic!("{name}: no totals"));
    let steps: Vec<u64> =
        last["per_rank"].as_array().unwrap().iter().map(|rank| rank["env_step"].as_u64().unwrap()).collect();
    assert!(steps.len() == 2 && steps.iter().all(|steps| *steps > 0), "{name}: {last}");
    assert_eq!(last["env_step"].as_u64(), Some(steps.iter().sum()), "{name}: {last}");
    assert!(last["episodes"].as_u64() > Some(0), "{name}: {last}");
    let evals = console.all("eval");
    assert!(
        evals.len() >= 2 && evals.iter().all(|eval| eval["return_mean"].as_f64() > Some(0.0)),
        "{evals:?}"
    );
}

/// Hosts with disks of their own that can run this interpreter; `None` if the test is skipped.
pub(crate) fn bed_with(python: &str) -> Option<TestBed> {
    let bed = TestBed::start(2)?.with_agent();
    let seen = bed.call(&["exec", "node1", python, "-c", "import torch"]).output().unwrap();
    if !seen.status.success() {
        skipped(&format!(
            "hosts of the test bed cannot run {python} with torch; install it outside of /home and /tmp"
        ));
        return None;
    }
    Some(bed)
}

/// The ranks that are killed: all of one of two hosts.
#[derive(Clone, Copy)]
pub(crate) struct KilledHost {
    pub(crate) node: usize,
    /// Ranks per host.
    pub(crate) nproc: usize,
}

/// Runs `script` from the folder of `experiment`, kills ranks with SIGKILL after a checkpoint, and checks that the next
/// generation resumes at its step on both hosts. A rank prints `resumed NAME=STEP`; the console's steps are `ranks`
/// times as many.
pub(crate) fn resumes_after_kill(
    bed: &TestBed,
    experiment: &Path,
    command: &[&str],
    env: &str,
    (killed, ranks): (KilledHost, u64),
) {
    let hosts = bed.hosts(2, killed.nproc, "");
    let set = format!("launch.command={command:?}");
    let args = ["run", experiment.to_str().unwrap(), "--set", &set, "--set", env];
    let restart = ["--set", "restart.max_restarts=1", "--set", "restart.backoff_s=0.0"];
    let mut console = bed.console(&hosts, &[&args[..], &restart].concat());
    console.wait_kind("checkpoint", 300);
    let script = command.iter().find(|word| word.ends_with(".py")).unwrap();
    // The brackets keep pkill from its own shell.
    bed.on(killed.node, &format!("pkill -KILL -f '[{}]{}'", &script[..1], &script[1..]));
    assert_eq!(console.finish(600).code(), Some(0), "{script}: {}", console.transcript());
    let saved = console.all("checkpoint").into_iter().rfind(|line| line["generation"] == 0);
    let saved = saved.unwrap()["env_step"].as_u64().unwrap();
    let resumed = |rank: u64| -> u64 {
        let lines =
            console.all("log").into_iter().filter(|line| line["generation"] == 1 && line["rank"] == rank);
        let mut step = lines.filter_map(|line| {
            let (_, step) = line["line"].as_str()?.strip_prefix("resumed ")?.split_once('=')?;
            step.parse::<u64>().ok()
        });
        step.next_back()
            .unwrap_or_else(|| panic!("{script}: rank {rank} has not resumed: {}", last_lines(&console)))
    };
    // Between the report of a checkpoint and the end of rank 0, there may be another one.
    assert!(saved > 0 && resumed(0) * ranks >= saved, "{script}: {} of {saved}", resumed(0));
    for rank in 1..2 * killed.nproc as u64 {
        assert_eq!(resumed(0), resumed(rank), "{script}: rank {rank}: its host has a disk of its own");
    }
    let first = console.all("progress").into_iter().find(|line| line["generation"] == 1);
    let first = first.unwrap_or_else(|| panic!("{script}: no progress"));
    assert!(first["env_step"].as_u64() >= Some(saved), "{script}: {first}");
}

/// The end of both ranks' logs, for messages of assertions.
fn last_lines(console: &Console) -> String {
    let all = console.all("log");
    all.iter().rev().take(20).map(|line| line.to_string()).collect::<Vec<_>>().join("\n")
}

/// The same for an example.
fn example_resumes(python: Option<String>, name: &str, killed: (KilledHost, u64), args: &[&str]) {
    let Some(python) = python else { return };
    let Some(bed) = bed_with(&python) else { return };
    let experiment = repository(&format!("examples/python/{name}.toml"));
    let script = format!("{name}.py");
    let command = [&[python.as_str(), "-u", script.as_str()], args].concat();
    let shared = bed.folder.path().join("shared");
    std::fs::write(shared.join("wandb.py"), WANDB).unwrap();
    std::fs::write(shared.join("wandb.log"), "").unwrap();
    std::os::unix::fs::chown(shared.join("wandb.log"), Some(61_000), Some(61_000)).ok();
    let env = "launch.env={PYTHONPATH=\"/mnt\",SB3_LOGDIR=\"/tmp\"}";
    resumes_after_kill(&bed, &experiment, &command, env, killed);
    let written = std::fs::read_to_string(shared.join("wandb.log")).unwrap();
    if args.contains(&"--wandb") {
        let runs: Vec<&str> = written.lines().collect();
        let id = |line: &str| line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(runs.len(), 2, "rank 0 of each generation: {written}");
        assert!(runs[0].starts_with("0 ") && runs[1].starts_with("1 "), "{written}");
        assert_eq!(id(runs[0]), id(runs[1]), "one run of W&B: {written}");
        assert!(id(runs[0])[0].starts_with("ppo-") && id(runs[0])[1] == "allow", "{written}");
    }
}

/// Stands for W&B: one line per run with the generation, its id and whether it may be resumed.
const WANDB: &str = "\
import os

def init(**options):
    with open('/mnt/wandb.log', 'a') as file:
        print(os.environ['RANKDECK_GENERATION'], options['id'], options['resume'], file=file)

def define_metric(*args, **options):
    pass

def log(values):
    pass
";

/// All ranks of a host are killed.
#[test]
fn ppo_example_resumes_on_two_disks() {
    let args = ["--total-timesteps", "49152", "--eval-every", "2", "--wandb", "test"];
    let killed = KilledHost { node: 1, nproc: 2 };
    example_resumes(python("torch, gymnasium"), "ppo", (killed, 1), &args);
}

/// Rank 0 is killed, which saves.
#[test]
fn sb3_example_resumes_on_two_disks() {
    let args = ["--timesteps", "4096", "--rounds", "16"];
    example_resumes(python("stable_baselines3"), "sb3", (KilledHost { node: 0, nproc: 1 }, 2), &args);
}

#[test]
fn lightning_example_resumes_on_two_disks() {
    let args = ["--epochs", "12", "--episodes", "6"];
    let killed = KilledHost { node: 1, nproc: 1 };
    example_resumes(python("pytorch_lightning, gymnasium"), "lightning", (killed, 2), &args);
}

/// Rank 0 is killed. It needs an interpreter of its own, see below.
#[test]
fn di_engine_example_resumes_on_two_disks() {
    let python = python_of("RANKDECK_TEST_DING", "torch, ding");
    example_resumes(python, "ding_dqn", (KilledHost { node: 0, nproc: 1 }, 2), &["--steps", "1000"]);
}

#[test]
fn ppo_example_runs() {
    runs("ppo", "torch, gymnasium", &["--total-timesteps", "4096", "--eval-every", "2"]);
}

#[test]
fn sb3_example_runs() {
    runs("sb3", "stable_baselines3", &["--timesteps", "512", "--rounds", "2"]);
}

#[test]
fn lightning_example_runs() {
    runs("lightning", "pytorch_lightning, gymnasium", &["--epochs", "2", "--episodes", "4"]);
}

/// It needs NumPy 1 and gym 0.25, so it has its own interpreter (`tests/setup/ding.txt`).
#[test]
fn di_engine_example_runs() {
    let Some(python) = python_of("RANKDECK_TEST_DING", "torch, ding") else { return };
    runs_with(&python, "ding_dqn", &["--steps", "400"]);
}
