//! Finished runs: `ps`, `attach`, `restart`, `eval`, `play`, `fetch`, `rm`.

use crate::support::terminal::Terminal;
use crate::support::{Bench, Console, rankdeck, wait_until};
use rankdeck_proto::message::Record;
use serde_json::Value;
use std::path::Path;

const RANKDECK: &str = env!("CARGO_BIN_EXE_rankdeck");

pub(crate) fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The lines of `ps --json`, newest first.
pub(crate) fn listed(hosts: &Path) -> Vec<Value> {
    let output = rankdeck().args(["ps", "--json", "--hosts", path(hosts)]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Runs it to its end; returns its name.
fn run_to_its_end(bench: &Bench, hosts: &Path, args: &[&str], more: &[&str], code: i32) -> String {
    let experiment = bench.program(args);
    let mut words = vec!["run", path(&experiment), "--hosts", path(hosts)];
    words.extend(more);
    let mut console = Console::start(&words);
    assert_eq!(console.finish(60).code(), Some(code), "{}", console.transcript());
    console.wait_kind("run_finished", 1)["run"].as_str().unwrap().to_owned()
}

#[test]
fn ps_lists_outcome_and_progress() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(2, 1);
    let good = run_to_its_end(&bench, &hosts, &["--iters", "20"], &["--note", "a first try"], 0);
    let until = run_to_its_end(&bench, &hosts, &["--iters", "100000"], &["--until", "iters=10"], 0);
    let failing = ["--iters", "400", "--fail-rank", "1", "--fail-at", "5"];
    let failed = run_to_its_end(&bench, &hosts, &failing, &[], 1);
    // The agents end a little after the console that has verified the stop.
    wait_until("the runs to be over", 60, || listed(&hosts).iter().all(|line| line["state"] == "finished"));
    let runs = listed(&hosts);
    let of = |run: &str| runs.iter().find(|line| line["run"] == run).unwrap();
    let (good, until, failed) = (of(&good), of(&until), of(&failed));
    assert_eq!(
        (&good["outcome"], &good["exit_code"], &good["clean"]),
        (&"succeeded".into(), &0.into(), &true.into())
    );
    assert_eq!((&good["env_step"], &good["train_iter"]), (&320.into(), &20.into()), "{good}");
    assert_eq!(
        (&good["note"], &good["state"], &good["world_size"]),
        (&"a first try".into(), &"finished".into(), &2.into())
    );
    let lasted = good["duration_s"].as_f64().unwrap();
    assert!(lasted > 0.5 && lasted <= good["age_s"].as_f64().unwrap(), "{good}");
    assert_eq!(until["outcome"], "succeeded", "{until}");
    assert!(until["reason"].as_str().unwrap().contains("iters=10"), "{until}");
    assert_eq!(
        (&failed["outcome"], &failed["exit_code"], &failed["clean"]),
        (&"failed".into(), &1.into(), &false.into())
    );
    let first = failed["first_failure"].as_str().unwrap();
    assert!(["rank 1", "local1", "3"].iter().all(|part| first.contains(part)), "{first}");
    let output = rankdeck().args(["ps", "--hosts", path(&hosts)]).output().unwrap();
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = |run: &Value| {
        let name = run["run"].as_str().unwrap();
        table.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{table}")).to_owned()
    };
    assert!(line(good).ends_with("a first try"), "{table}");
    assert_ne!(line(failed), line(good), "{table}");
}

#[test]
fn detached_run_ends_with_its_ranks_outcome() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    let experiment = bench.program(&["--iters", "40"]);
    let mut console = Console::start(&["run", path(&experiment), "--hosts", path(&hosts), "--detach"]);
    assert_eq!(console.finish(60).code(), Some(0), "{}", console.transcript());
    wait_until("the run to end", 60, || listed(&hosts)[0]["state"] == "finished");
    let line = &listed(&hosts)[0];
    assert_eq!((&line["outcome"], &line["train_iter"]), (&"succeeded".into(), &40.into()), "{line}");
    assert_eq!(line["clean"], true, "{line}");
}

/// Moves start and end of a finished run into the past, in the files of its host.
fn move_into_the_past(bench: &Bench, run: &str, seconds: f64) {
    let node = bench.path().join(format!("runs/{run}/node0"));
    let read = |name: &str| std::fs::read_to_string(node.join(name)).unwrap();
    let earlier = |line: &str| {
        let mut record: Record = serde_json::from_str(line).unwrap();
        record.time -= seconds;
        serde_json::to_string(&record).unwrap() + "\n"
    };
    std::fs::write(
        node.join("records.jsonl"),
        read("records.jsonl").lines().map(earlier).collect::<String>(),
    )
    .unwrap();
    let mut manifest: Value = serde_json::from_str(&read("manifest.json")).unwrap();
    manifest["started"] = (manifest["started"].as_f64().unwrap() - seconds).into();
    std::fs::write(node.join("manifest.json"), manifest.to_string()).unwrap();
}

#[test]
fn attach_to_a_finished_run_shows_its_end_and_duration() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let run = run_to_its_end(&bench, &hosts, &["--iters", "100000"], &["--until", "iters=10"], 0);
    let lasted = listed(&hosts)[0]["duration_s"].as_f64().unwrap();
    wait_until("the agent leaves", 60, || bench.processes().is_empty());
    move_into_the_past(&bench, &run, 1000.0);
    assert!(listed(&hosts)[0]["age_s"].as_f64().unwrap() > 1000.0);
    let mut attached = Console::start(&["attach", &run, "--hosts", path(&hosts)]);
    assert_eq!(attached.finish(60).code(), Some(0), "{}", attached.transcript());
    let end = attached.wait_kind("run_finished", 1);
    assert_eq!((&end["outcome"], &end["exit_code"]), (&"succeeded".into(), &0.into()), "{end}");
    let args = ["attach", &run, "--headless", "--hosts", path(&hosts)];
    let output = rankdeck().args(args).current_dir(bench.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
    let wall = text.lines().find_map(|line| line.strip_prefix("wall time")).unwrap().trim().to_owned();
    let (number, unit) = wall.strip_suffix("ms").map_or((wall.trim_end_matches('s'), 1.0), |n| (n, 1e-3));
    let seconds = unit * number.parse::<f64>().unwrap_or_else(|_| panic!("{wall}"));
    assert!((seconds - lasted).abs() < 1.0, "{wall} for {lasted}");
    // Attaching does not change it.
    assert_eq!(listed(&hosts)[0]["duration_s"].as_f64().unwrap(), lasted);
}

/// The exit code and both streams of a command in the folder of the bench.
pub(crate) fn run_command(bench: &Bench, args: &[&str]) -> (Option<i32>, String) {
    let output = rankdeck().args(args).current_dir(bench.path()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn restart_runs_a_finished_program_again() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(2, 1);
    let failing = ["--iters", "400", "--fail-rank", "1", "--fail-at", "5"];
    let run = run_to_its_end(&bench, &hosts, &failing, &[], 1);
    let refused =
        run_command(&bench, &["restart", &run, "--yes", "--from", "latest", "--hosts", path(&hosts)]);
    assert_eq!(refused.0, Some(2), "{}", refused.1);
    assert!(refused.1.contains("--from scratch"), "{}", refused.1);
    let experiment = bench.path().join("experiment.toml");
    let edited = std::fs::read_to_string(&experiment).unwrap().replace("grace_s = 3.0", "grace_s = 4.0");
    std::fs::write(&experiment, edited).unwrap();
    let again = run_command(&bench, &["restart", &run, "--yes", "--hosts", path(&hosts)]);
    assert_eq!(again.0, Some(0), "{}", again.1);
    assert!(again.1.contains("launch.stop_grace_s 3.0 -> 4.0"), "the changed file is not used: {}", again.1);
    wait_until("the second failure", 60, || listed(&hosts)[0]["state"] == "finished");
    let line = &listed(&hosts)[0];
    assert_eq!((&line["generation"], &line["outcome"]), (&1.into(), &"failed".into()), "{line}");
}

/// A run of the built-in trainer that is stopped after three iterations; its name.
fn three_iterations(bench: &Bench, hosts: &Path) -> Option<(String, std::path::PathBuf)> {
    crate::support::trainer()?;
    let config = std::fs::read_to_string("configs/cartpole_ppo.toml").unwrap();
    // How far it comes before it is stopped depends on the machine: it shall not be good enough to end.
    let experiment = bench.write("cartpole.toml", &config.replace("stop_value = 475.0", "stop_value = 1e9"));
    let mut console =
        Console::start(&["run", path(&experiment), "--hosts", path(hosts), "--until", "iters=3"]);
    assert_eq!(console.finish(120).code(), Some(0), "{}", console.transcript());
    Some((console.wait_kind("run_finished", 1)["run"].as_str().unwrap().to_owned(), experiment))
}

#[test]
fn restart_resumes_a_finished_training() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    let Some((run, experiment)) = three_iterations(&bench, &hosts) else { return };
    let saved = listed(&hosts)[0]["checkpoint"]["train_iter"].as_u64().unwrap();
    let again = run_command(&bench, &["restart", &run, "--yes", "--hosts", path(&hosts)]);
    assert_eq!(again.0, Some(0), "{}", again.1);
    wait_until("it to continue", 60, || listed(&hosts)[0]["train_iter"].as_u64() > Some(saved + 2));
    let stopped = run_command(&bench, &["stop", &run, "--hosts", path(&hosts)]);
    assert_eq!(stopped.0, Some(0), "{}", stopped.1);
    let line = listed(&hosts)[0].clone();
    assert_eq!((&line["outcome"], &line["generation"]), (&"stopped".into(), &1.into()), "{line}");
    let reached = line["env_step"].as_u64().unwrap();
    // Another run, another rate, from this one's end.
    let from = format!("{run}:latest");
    let more = (reached + 1024).to_string();
    let goal = format!("run.total_steps={more}");
    let words =
        ["run", path(&experiment), "--hosts", path(&hosts), "--from", &from, "--set", &goal, "--json"];
    let (code, text) = run_command(&bench, &[&words[..], &["--set", "learn.learning_rate=1e-4"]].concat());
    assert_eq!(code, Some(0), "{text}");
    let line = listed(&hosts)[0].clone();
    assert_ne!(line["run"], run.as_str());
    assert!(
        line["env_step"].as_u64().unwrap() > reached && line["train_iter"].as_u64().unwrap() < 200,
        "{line}"
    );
    assert_eq!(
        (&line["outcome"], line["env_step"].as_u64() >= Some(reached + 1024)),
        (&"succeeded".into(), true)
    );
    let own = line["run"].as_str().unwrap().to_owned();
    let done = run_command(&bench, &["restart", &own, "--yes", "--hosts", path(&hosts)]);
    assert_eq!(done.0, Some(2), "{}", done.1);
    assert!(done.1.contains("--set run.total_steps=N"), "{}", done.1);
    let none = run_command(
        &bench,
        &["run", path(&experiment), "--hosts", path(&hosts), "--from", &format!("{own}:77")],
    );
    assert!(none.0 == Some(2) && none.1.contains("hint: "), "{}", none.1);
    // A finished run is not restarted from a missing checkpoint.
    for (from, parts) in [("77", [own.as_str(), "77"]), ("/nope/x.ckpt", ["/nope/x.ckpt", "local0"])] {
        let names = |text: &str| parts.iter().all(|part| text.contains(part));
        let refused =
            run_command(&bench, &["restart", &own, "--yes", "--from", from, "--hosts", path(&hosts)]);
        assert!(refused.0 == Some(2) && names(&refused.1), "{}", refused.1);
        let named = ["run", path(&experiment), "--hosts", path(&hosts), "--from", from];
        let refused = run_command(&bench, &named);
        assert!(refused.0 == Some(2) && (from == "77" || names(&refused.1)), "{}", refused.1);
    }
    // Nor from a checkpoint that holds other networks, or none.
    let narrow = ["--set", "policy.hidden=[32]"];
    let there = bench.path().join("runs").join(&own).join("checkpoints/latest.safetensors");
    let (file, whole) = (path(&there), there.with_extension("ckpt"));
    for (words, output_text) in [
        (&["restart", &own, "--yes", narrow[0], narrow[1]][..], "policy.hidden"),
        (
            &["restart", &own, "--yes", "--from", path(&whole), narrow[0], narrow[1]],
            "keep policy.hidden=[64,64]",
        ),
        (&["restart", &own, "--yes", "--from", file], file),
        (&["run", path(&experiment), "--from", &own, narrow[0], narrow[1]], "policy.hidden"),
        (&["run", path(&experiment), "--continue", narrow[0], narrow[1]], "keep policy.hidden=[64,64]"),
    ] {
        let refused = run_command(&bench, &[words, &["--hosts", path(&hosts)]].concat());
        assert!(refused.0 == Some(2) && refused.1.contains(output_text), "{words:?}: {}", refused.1);
    }
    let all = listed(&hosts);
    assert_eq!(
        (&all[0]["run"], &all[0]["generation"]),
        (&own.as_str().into(), &0.into()),
        "{own} is as it was"
    );
    let (code, text) = run_command(
        &bench,
        &["run", path(&experiment), "--hosts", path(&hosts), "--continue", "--set", &goal, "--json"],
    );
    assert!(code == Some(0) && text.contains(&format!("{own}/checkpoints/latest.ckpt")), "{text}");
}

#[test]
fn checkpoint_is_evaluated_and_exported() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    let Some((run, _)) = three_iterations(&bench, &hosts) else { return };
    let here = ["--hosts", path(&hosts)];
    let (code, text) =
        run_command(&bench, &[&["eval", &run, "--episodes", "4", "--json"], &here[..]].concat());
    assert_eq!(code, Some(0), "{text}");
    let output_text: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(
        (&output_text["kind"], &output_text["episodes"]),
        (&"evaluation".into(), &4.into()),
        "{output_text}"
    );
    let number = |name: &str| output_text[name].as_f64().unwrap_or_else(|| panic!("{name}: {output_text}"));
    let interval: Vec<f64> = serde_json::from_value(output_text["return_interval"].clone()).unwrap();
    assert!(interval[0] <= number("return_mean") && number("return_mean") <= interval[1], "{output_text}");
    let (code, text) =
        run_command(&bench, &[&["eval", &run[..run.len() - 1], "--episodes", "4"], &here[..]].concat());
    let expected = [number("return_mean"), number("return_std")].map(|number| format!("{number:.3}"));
    assert!(code == Some(0) && expected.iter().all(|number| text.contains(number)), "{text}");
    let (code, text) = run_command(
        &bench,
        &[&["export", &run, "--format", "safetensors", "--output", "mine.safetensors"], &here[..]].concat(),
    );
    assert_eq!(code, Some(0), "{text}");
    let own = bench.path().join("runs").join(&run).join("checkpoints/latest.safetensors");
    assert!(std::fs::read(own).unwrap() == std::fs::read(bench.path().join("mine.safetensors")).unwrap());
    let again = run_command(
        &bench,
        &[&["export", &run, "--format", "safetensors", "--output", "mine.safetensors"], &here[..]].concat(),
    );
    assert!(again.0 == Some(2) && again.1.contains("mine.safetensors"), "{}", again.1);
    let none = run_command(&bench, &[&["eval", &format!("{run}:77")], &here[..]].concat());
    assert!(none.0 == Some(2) && none.1.contains("checkpoints/iter-77.ckpt"), "{}", none.1);
    // A checkpoint that was fetched before is used if no host replies.
    let nobody =
        bench.write("nobody.toml", "[[host]]\nname = 'x'\ntransport = 'local'\nworkdir = 'elsewhere'\n");
    let (code, text) = run_command(&bench, &["eval", &run, "--episodes", "2", "--hosts", path(&nobody)]);
    assert_eq!(code, Some(0), "{text}");
    let wrong =
        run_command(&bench, &["export", "./mine.safetensors", "--output", "x.pt", "--python", "/no/python"]);
    assert!(wrong.0 == Some(1) && wrong.1.contains("--python"), "{}", wrong.1);
    let Some(python) = rankdeck_testkit::python("torch") else { return };
    let (code, text) =
        run_command(&bench, &["export", "./mine.safetensors", "--output", "x.pt", "--python", &python]);
    assert!(code == Some(0) && bench.path().join("x.pt").is_file(), "{text}");
}

/// Drawn in a terminal, printed without one, recorded.
#[test]
fn play_shows_and_records_a_policy() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    let Some((run, _)) = three_iterations(&bench, &hosts) else { return };
    let here = ["--hosts", path(&hosts)];
    let (code, text) = run_command(&bench, &[&["play", &run, "--episodes", "2"], &here[..]].concat());
    assert!(code == Some(0) && text.contains("CartPole-v1"), "{text}");
    assert!(text.contains("episode 2"), "{text}");
    let record = |file: &str, more: &[&str]| {
        let words = [&["play", run.as_str(), "--record", file, "--episodes", "1"], more, &here[..]].concat();
        run_command(&bench, &words)
    };
    let (code, text) = record("pole.cast", &["--size", "72x20"]);
    assert!(code == Some(0) && text.contains("pole.cast"), "{text}");
    let cast = std::fs::read_to_string(bench.path().join("pole.cast")).unwrap();
    let mut lines = cast.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let header = lines.next().unwrap();
    assert_eq!((&header["version"], &header["width"]), (&2.into(), &72.into()));
    let mut parser = vt100::Parser::new(20, 72, 0);
    let mut before = 0.0;
    for event in lines {
        let at = event[0].as_f64().unwrap();
        assert!(at >= before && event[1] == "o", "{event}");
        before = at;
        parser.process(event[2].as_str().unwrap().as_bytes());
    }
    let shown = parser.screen().contents();
    assert!(shown.chars().any(|c| ('\u{2801}'..='\u{28ff}').contains(&c)), "a line drawing: {shown}");
    let (code, text) = record("pole.gif", &[]);
    assert!(code == Some(0), "{text}");
    let gif = std::fs::read(bench.path().join("pole.gif")).unwrap();
    assert!(gif.starts_with(b"GIF89a") && gif.ends_with(&[0, 0x3b]), "{}", gif.len());
    let (code, text) = record("pole.gif", &[]);
    assert!(code == Some(2) && text.contains("pole.gif"), "{text}");
    let (code, text) = record("pole.mov", &[]);
    assert!(code == Some(2) && text.contains(".gif"), "{text}");
    let words = ["play", run.as_str(), "--hosts", path(&hosts), "--glyphs", "ascii"];
    let mut terminal = Terminal::start_in(bench.path(), RANKDECK, &words, &[]);
    terminal.until("a pole", |t| t.text().contains("CartPole-v1") && t.text().contains("%"));
    terminal.send(" ");
    terminal.send("n");
    terminal.until_shows("episode 2");
    terminal.send("q");
    assert_eq!(terminal.wait(), 0);
    terminal.assert_restored();
}

#[test]
fn fetch_copies_files_once_and_rm_removes_the_run() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(2, 1);
    let run = run_to_its_end(&bench, &hosts, &["--iters", "10"], &[], 0);
    // Three pieces of one file, and a name with a line break.
    let large: Vec<u8> = (0..5_000_000_u32).map(|i| (i % 251) as u8).collect();
    let folder = bench.path().join("runs").join(&run);
    std::fs::create_dir_all(folder.join("checkpoints")).unwrap();
    std::fs::write(folder.join("checkpoints/large.ckpt"), &large).unwrap();
    std::fs::write(folder.join("checkpoints/a\nb"), "x").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.join("checkpoints/link.ckpt")).unwrap();
    let into = bench.path().join("here");
    let words = ["fetch", &run[..run.len() - 1], "*.ckpt", "--into", path(&into), "--hosts", path(&hosts)];
    let (code, text) = run_command(&bench, &words);
    assert_eq!(code, Some(0), "{text}");
    let got = into.join("local0/checkpoints/large.ckpt");
    assert!(std::fs::read(&got).unwrap() == large && !into.join("local0/checkpoints/link.ckpt").exists());
    let modified = std::fs::metadata(&got).unwrap().modified().unwrap();
    let (code, text) = run_command(&bench, &words);
    let again = std::fs::metadata(&got).unwrap().modified().unwrap();
    assert_eq!((code, again), (Some(0), modified), "it is not copied again: {text}");
    // An interrupted copy continues with the existing part, whatever its content.
    let ms = modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64() * 1000.0;
    std::fs::remove_file(&got).unwrap();
    let part = got.with_file_name(format!(".large.ckpt.5000000-{ms:.0}.part"));
    std::fs::write(&part, &large[..4_999_000]).unwrap();
    let (code, text) = run_command(&bench, &words);
    assert!(code == Some(0) && std::fs::read(&got).unwrap() == large, "{text}");
    let small = run_command(&bench, &["fetch", &run, "--max-size-gb", "0", "--hosts", path(&hosts)]);
    assert_eq!(small.0, Some(1), "what is left out is named: {}", small.1);
    let small = ["fetch", &run, "*.ckpt", "--max-size-gb", "0", "--hosts", path(&hosts)];
    let (code, text) = run_command(&bench, &small);
    assert_eq!(code, Some(2), "{text}");
    // FETCH-3: a name with a line break cannot be copied; the other file can.
    std::fs::remove_file(&got).unwrap();
    let all =
        run_command(&bench, &["fetch", &run, "checkpoints/", "--into", path(&into), "--hosts", path(&hosts)]);
    assert!(all.0 == Some(1) && all.1.contains("checkpoints/a") && got.exists(), "{}", all.1);
    // Removal.
    // REMOVE-1: its checkpoints were fetched to another place only.
    let (code, text) = run_command(&bench, &["rm", &run, "--yes", "--hosts", path(&hosts)]);
    assert!(code == Some(2) && text.contains("--with-results") && folder.exists(), "{text}");
    let all = ["rm", &run, "--with-results", "--dry-run", "--hosts", path(&hosts)];
    let (code, text) = run_command(&bench, &all);
    assert!(code == Some(0) && text.contains(&run) && folder.exists(), "{text}");
    let (code, text) = run_command(&bench, &["rm", &run, "--with-results", "--hosts", path(&hosts)]);
    assert!(code == Some(2) && text.contains("--yes") && folder.exists(), "{text}");
    let (code, text) = run_command(&bench, &["prune", "--keep", "1", "--yes", "--hosts", path(&hosts)]);
    assert!(code == Some(0) && folder.exists(), "{text}");
    let prune = ["prune", "--older-than", "0s", "--yes", "--hosts", path(&hosts)];
    let (code, text) = run_command(&bench, &prune);
    assert!(code == Some(0) && text.contains("--with-results") && folder.exists(), "{text}");
    let (code, text) = run_command(&bench, &[&prune[..], &["--with-results"]].concat());
    assert!(code == Some(0) && !folder.exists(), "{text}");
    assert!(listed(&hosts).is_empty());
}

/// PLACE-1: in the user's own directory, as in a shell; a second run of that name at the same time has a copy.
#[test]
fn local_run_works_in_place_and_a_second_one_in_a_copy() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let (own, gate) = (bench.path().join("code"), bench.path().join("gate"));
    std::fs::create_dir(&own).unwrap();
    let script = format!(
        "import os, time\nopen('best.pt', 'w').write(os.environ['RANKDECK_RUN'])\nprint('in', os.getcwd(), flush=True)\n\
         while not os.path.exists({:?}): time.sleep(0.05)\n",
        path(&gate)
    );
    std::fs::write(own.join("train.py"), script).unwrap();
    let text = "[run]\nname = \"place\"\n[launch]\ncommand = [\"python3\", \"train.py\"]\ncode = \"code\"\n";
    let experiment = bench.write("place.toml", text);
    let start = |expected: &Path| {
        let mut console = Console::start(&["run", path(&experiment), "--hosts", path(&hosts)]);
        let line = format!("in {}", path(&expected.canonicalize().unwrap_or_else(|_| expected.to_owned())));
        console.wait_for("a rank in its directory", 60, |value| value["line"] == line.as_str());
        console
    };
    let mut first = start(&own);
    let work = bench.path().canonicalize().unwrap().join("work/place");
    let mut second = start(&work);
    std::fs::write(&gate, "").unwrap();
    let mut ends = Vec::new();
    for console in [&mut first, &mut second] {
        assert_eq!(console.finish(60).code(), Some(0), "{}", console.transcript());
        ends.push(console.wait_kind("run_finished", 1));
    }
    for (end, folder) in ends.iter().zip([&own, &work]) {
        let found = &end["results"][0];
        assert_eq!((&found["files"], &found["names"][0]), (&1.into(), &"best.pt".into()), "{end}");
        assert_eq!(std::fs::read_to_string(folder.join("best.pt")).unwrap(), end["run"].as_str().unwrap());
    }
    let fetch = |end: &Value, args: &[&str]| {
        let words = [&["fetch", end["run"].as_str().unwrap()], args, &["--hosts", path(&hosts)]].concat();
        let (code, text) = run_command(&bench, &words);
        assert_eq!(code, Some(0), "{text}");
        text
    };
    let into = |end: &Value| bench.path().join("runs").join(end["run"].as_str().unwrap()).join("hosts");
    assert!(fetch(&ends[0], &[]).contains(path(&own.canonicalize().unwrap())));
    assert!(!into(&ends[0]).join("local0/work").exists());
    let copy = bench.path().join("copy");
    fetch(&ends[0], &["--into", path(&copy)]);
    assert!(copy.join("local0/work/best.pt").is_file());
    fetch(&ends[1], &[]);
    assert!(into(&ends[1]).join("local0/work/best.pt").is_file());
}

#[test]
fn active_run_is_not_removed() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let experiment = bench.program(&["--iters", "100000"]);
    let mut console = Console::start(&["run", path(&experiment), "--hosts", path(&hosts)]);
    let run = console.wait_kind("run_started", 30)["run"].as_str().unwrap().to_owned();
    console.wait_kind("progress", 30);
    let (code, text) = run_command(&bench, &["rm", &run, "--yes", "--hosts", path(&hosts)]);
    assert!(code == Some(2) && text.contains(&run), "{text}");
    let (code, text) =
        run_command(&bench, &["prune", "--older-than", "0s", "--yes", "--hosts", path(&hosts)]);
    assert_eq!(code, Some(0), "{text}");
    assert!(bench.path().join("runs").join(&run).exists());
    console.signal(libc::SIGINT);
    assert_eq!(console.finish(60).code(), Some(130));
}
