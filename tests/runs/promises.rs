//! Promises of a run whose program is a shell script, and what its options demand.

use crate::results::{listed, path, run_command};
use crate::support::{Bench, trainer};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// An experiment that runs a shell script.
fn shell(bench: &Bench, script: &str) -> PathBuf {
    let text = format!("[run]\nname = \"shell\"\n[launch]\ncommand = [\"sh\", \"-c\", {script:?}]\n");
    bench.write("experiment.toml", &text)
}

/// Runs the experiment to its end; returns its name and the output of its ranks.
fn output_of(bench: &Bench, hosts: &Path, experiment: &Path, more: &[&str]) -> (String, String) {
    let words = ["run", path(experiment), "--hosts", path(hosts), "--headless"];
    let (code, text) = run_command(bench, &[&words, more].concat());
    assert_eq!(code, Some(0), "{text}");
    let run = listed(hosts)[0]["run"].as_str().unwrap().to_owned();
    let (code, log) = run_command(bench, &["logs", &run, "--hosts", path(hosts)]);
    assert_eq!(code, Some(0), "{log}");
    (run, log)
}

#[test]
fn shell_program_gets_its_identity_and_the_seed() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(2, 2);
    let experiment =
        shell(&bench, "echo \"is $RANK.$LOCAL_RANK of $WORLD_SIZE at ${MASTER_ADDR:?}, seed {seed}\"");
    let (_, log) = output_of(&bench, &hosts, &experiment, &["--set", "run.seed=7"]);
    for rank in 0..4 {
        let start = format!("is {rank}.{} of 4 at ", rank % 2);
        assert!(log.contains(&start), "{start}: {log}");
    }
    assert_eq!(log.matches(", seed 7").count(), 4, "{log}");
}

#[test]
fn shell_program_starts_from_a_checkpoint_or_is_refused() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let saved = bench.write("saved.txt", "7");
    let reads = shell(&bench, "echo \"resumes ${RANKDECK_RESUME-none}\"");
    let (_, log) = output_of(&bench, &hosts, &reads, &["--from", path(&saved)]);
    assert!(log.contains(&format!("resumes {}", path(&saved))), "{log}");
    // A program that does not declare it would begin from scratch, and look as if it had resumed.
    let plain = shell(&bench, "echo plain");
    let words = ["run", path(&plain), "--hosts", path(&hosts), "--headless"];
    let before = listed(&hosts).len();
    let (code, text) = run_command(&bench, &[&words[..], &["--from", path(&saved)]].concat());
    assert!(code == Some(2) && text.contains("{resume}") && text.contains("RANKDECK_RESUME"), "{text}");
    assert_eq!(listed(&hosts).len(), before, "nothing was launched");
    // It may resume by itself.
    let noted = |more: &[&str]| {
        let (code, text) = run_command(&bench, &[&words[..], more].concat());
        assert_eq!(code, Some(0), "{text}");
        text.contains("note: ") && text.contains("{resume}")
    };
    assert!(noted(&["--continue"]) && noted(&["--set", "restart.max_restarts=1"]) && !noted(&[]));
}

#[test]
fn shell_program_leaves_files_but_no_policy() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let experiment = shell(&bench, "echo 7 > \"$RANKDECK_RUN_DIR/result.txt\"");
    let (run, _) = output_of(&bench, &hosts, &experiment, &[]);
    let into = bench.path().join("here");
    let fetch = ["fetch", &run, "*.txt", "--into", path(&into), "--hosts", path(&hosts)];
    let (code, text) = run_command(&bench, &fetch);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(std::fs::read_to_string(into.join("local0/result.txt")).unwrap(), "7\n", "{text}");
    for command in ["eval", "export"] {
        let (code, text) = run_command(&bench, &[command, &run, "--hosts", path(&hosts)]);
        assert!(code == Some(2) && text.contains("built-in trainer"), "{command}: {text}");
    }
}

#[test]
fn check_prints_which_promises_are_kept() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let kept = |experiment: &Path| -> Vec<(String, String)> {
        let words = ["check", path(experiment), "--hosts", path(&hosts), "--json"];
        let (_, text) = run_command(&bench, &words);
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        lines
            .filter(|line| line["kind"] == "promise")
            .map(|line| (text(&line["promise"]), text(&line["kept"])))
            .collect()
    };
    let own = kept(&shell(&bench, "echo $RANKDECK_SEED"));
    assert_eq!(own.len(), 12, "{own:?}");
    for (promise, expected) in
        [("seed", "yes"), ("resume", "no"), ("steps", "unknown"), ("playback", "no"), ("end", "yes")]
    {
        assert!(own.contains(&(promise.to_owned(), expected.to_owned())), "{promise}: {own:?}");
    }
    let builtin = kept(&rankdeck_testkit::repository("configs/cartpole_ppo.toml"));
    assert!(builtin.len() == 12 && builtin.iter().all(|(_, kept)| kept == "yes"), "{builtin:?}");
}

#[test]
fn trials_of_the_trainer_differ_by_seed() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    if trainer().is_none() {
        return;
    }
    let experiment = rankdeck_testkit::repository("configs/cartpole_ppo.toml");
    let words = ["run", path(&experiment), "--hosts", path(&hosts), "--seeds", "1..2"];
    let (code, text) = run_command(&bench, &[&words[..], &["--set", "run.total_steps=20480"]].concat());
    assert_eq!(code, Some(0), "{text}");
    let sweep = crate::sweeps::sweep(&bench).unwrap();
    assert_eq!(sweep["equal"], Value::Null, "{sweep}");
    let mut returns: Vec<f64> =
        sweep["cells"].as_array().unwrap().iter().filter_map(|trial| trial["last_return"].as_f64()).collect();
    returns.dedup();
    assert_eq!(returns.len(), 2, "{sweep}");
}
