//! examples/python: third-party programs that report with rankdeck.py, on two hosts over SSH.

use crate::support::hosts::Loopback;
use rankdeck_testkit::{python, python_of, repository};

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
