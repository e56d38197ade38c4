//! Launches on this machine: environments, variables, and the ways to name a program.

use std::path::Path;
use std::process::{Command, Output};

fn rankdeck(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rankdeck"));
    command.current_dir(folder).args(args).env("RANKDECK_CACHE", folder.join("cache"));
    command
}

fn text(output: &Output) -> (i32, String, String) {
    let string = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), string(&output.stdout), string(&output.stderr))
}

fn run(folder: &Path, args: &[&str]) -> (i32, String, String) {
    text(&rankdeck(folder, args).output().unwrap())
}

/// A folder with one local host, to which `more` is added, and an experiment of this command.
fn bench(more: &str, command: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
    write("hosts.toml", format!("[[host]]\nname = \"a\"\ntransport = \"local\"\n{more}\n"));
    write("e.toml", format!("[run]\nname = \"e\"\n[launch]\ncommand = {command}\n"));
    folder
}

#[test]
fn check_and_run_use_the_same_interpreter() {
    let show = r#"["python", "-c", "import sys; print('prefix', sys.prefix)"]"#;
    for more in ["prelude = \"source v/bin/activate\"", "venv = \"v\""] {
        let folder = bench(more, show);
        let there = folder.path().canonicalize().unwrap();
        let made =
            Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(there.join("v")).status();
        assert!(made.unwrap().success(), "python3 with venv is needed");
        let prefix = there.join("v").display().to_string();
        let (code, out, err) = run(folder.path(), &["check", "e.toml"]);
        assert!(code == 0 && out.contains(&format!("prefix {prefix}")), "{more}: {out}{err}");
        let (code, out, err) = run(folder.path(), &["run", "e.toml", "--headless", "--logs"]);
        assert!(code == 0 && out.contains(&format!("prefix {prefix}")), "{more}: {out}{err}");
    }
}

#[test]
fn failed_pre_launch_command_refuses_the_launch() {
    for (more, named) in [
        ("prelude = \"source /nope/activate; export A=1\"", "/nope/activate"),
        ("prelude = \"conda activate rl\"", "conda"),
        ("venv = \"nope\"", "nope/bin/activate"),
        ("prelude = \"exit 0\"", "status 0"),
    ] {
        let folder = bench(more, r#"["python3", "-c", "print(1)"]"#);
        for args in [&["check", "e.toml"][..], &["run", "e.toml", "--headless"]] {
            let (code, out, err) = run(folder.path(), args);
            assert!(
                code == 3 && err.contains(named) && err.contains("hint: "),
                "{more} {args:?}: {out}{err}"
            );
            assert!(!folder.path().join("runs").exists(), "nothing was started");
        }
    }
}

#[test]
fn program_runs_without_files() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("my train.py"),
        "import os, sys; print('args', sys.argv[1:], os.environ['RANK'])",
    )
    .unwrap();
    let line = ["--", "python3", "my train.py", "--lr", "a b"];
    let with = |command: &[&'static str]| [command, &line].concat();
    let (code, out, err) = run(folder.path(), &with(&["check", "--nproc", "2"]));
    assert_eq!(code, 0, "{out}{err}");
    for part in ["world_size 2", "command  python3 'my train.py' --lr 'a b'", "  code     ", "python "] {
        assert!(out.contains(part), "{part}\n{out}");
    }
    let (code, out, err) = run(folder.path(), &with(&["run", "--nproc", "2", "--headless", "--logs"]));
    assert!(code == 0 && out.contains("args ['--lr', 'a b'] 1"), "{out}{err}");
    assert!(out.contains("my-train-"), "the run is named after the script: {out}");
    // Other commands find it again without a hosts file.
    let (code, out, err) = run(folder.path(), &["ps", "--all"]);
    assert!(code == 0 && out.contains("my-train-"), "{out}{err}");
    let (code, _, err) = run(folder.path(), &with(&["sbatch", "--dry-run"]));
    assert_eq!(code, 0, "{err}");
}

#[test]
fn script_needs_no_separator_and_its_variables_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("train.py", "print(1)\n");
    write("joins.py", "import os\nprint(os.environ['WORLD_SIZE'])\n");
    for (name, is_plain) in [("train.py", true), ("joins.py", false)] {
        let (code, out, err) = run(folder.path(), &["check", name, "--lr", "1"]);
        assert!(code == 0 && out.contains(&format!("command  python3 {name} --lr 1")), "{out}{err}");
        assert_eq!(out.contains("rank_variables = true"), is_plain, "{out}{err}");
    }
    let (code, out, err) = run(folder.path(), &["check", "--nproc", "1", "train.py"]);
    assert!(code == 0 && out.contains("--nproc") && !out.contains("rank_variables"), "{out}{err}");
    // An experiment file uses this machine, too.
    write("e.toml", "[run]\nname = \"e\"\n[launch]\ncommand = [\"python3\", \"train.py\"]\n");
    let (code, out, err) = run(folder.path(), &["check", "e.toml"]);
    assert!(code == 0 && out.contains("rank_variables = true"), "{out}{err}");
}

#[test]
fn non_experiment_prints_how_to_run() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("conf.yaml"), "lr: 1\n").unwrap();
    for command in ["run", "check"] {
        let (code, out, err) = run(folder.path(), &[command, "conf.yaml"]);
        assert!(code == 2 && err.contains("rankdeck run -- python"), "{out}{err}");
    }
    for args in [
        &["run", "--hosts", "a,,b", "--", "true"][..],
        &["run", "--hosts", "a b", "--", "true"],
        &["run", "--hosts", "nowhere.toml", "--", "true"],
        &["run", "e.toml", "--", "true"],
        &["run", "--"],
    ] {
        let (code, out, err) = run(folder.path(), args);
        assert!(code == 2 && err.contains("error: "), "{args:?} {out}{err}");
    }
}

#[test]
fn json_lists_configuration_errors() {
    let folder = bench("", r#"["true"]"#);
    std::fs::write(
        folder.path().join("bad.toml"),
        "[run]\nname = \"x\"\nsede = 1\n[launch]\ncommand = [\"true\"]\nlr = 1\n",
    )
    .unwrap();
    for (args, kind) in [
        (&["check", "bad.toml", "--json"][..], "check_finished"),
        (&["run", "bad.toml", "--json"], "run_finished"),
        (&["run", "e.toml", "--json", "--set", "launch.code=nowhere"], "run_finished"),
        (&["check", "e.toml", "--json", "--hosts", "none.toml"], "check_finished"),
    ] {
        let (code, out, err) = run(folder.path(), args);
        let line: serde_json::Value =
            serde_json::from_str(out.trim()).unwrap_or_else(|_| panic!("{args:?} {out}{err}"));
        assert_eq!((code, &line["kind"], &line["exit_code"]), (2, &kind.into(), &2.into()), "{out}");
        if args.contains(&"bad.toml") {
            let errors = line["errors"].as_array().unwrap();
            assert_eq!(errors.len(), 2, "{out}");
            assert_eq!(errors[0]["place"], "bad.toml:3:1");
            assert!(
                errors.iter().all(|one| one["hint"].as_str().is_some_and(|hint| !hint.is_empty())),
                "{out}"
            );
        }
    }
}

#[test]
fn unused_and_missing_inputs_are_warned_of() {
    let folder = bench("", r#"["python3", "train.py"]"#);
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("train.py", "import os\nimport nothing_of_that_name\nimport beside\n");
    write("beside.py", "");
    let text =
        |more: &str| format!("[run]\nname = \"e\"\n[launch]\ncommand = [\"python3\", \"train.py\"]\n{more}");
    for code in ["", "code = \".\"\n"] {
        write("e.toml", &text(code));
        let (status, out, err) = run(folder.path(), &["check", "e.toml"]);
        assert!(status == 0 && err.contains("nothing_of_that_name"), "{out}{err}");
    }
    write("e.toml", &text("[learn]\nalgorithm = \"ppo\"\n[policy]\nhidden = [3]\n"));
    let (_, _, err) = run(folder.path(), &["check", "e.toml"]);
    assert!(err.contains("[learn], [policy]"), "{err}");
    let (_, _, err) = run(folder.path(), &["check", "--", "torchrun", "train.py"]);
    assert!(err.contains("torchrun"), "{err}");
}

#[test]
fn set_removes_keys_and_changes_algorithm() {
    let folder = bench("", r#"["true"]"#);
    let text = "[run]\nname = \"e\"\ntotal_steps = 10000\n[env]\nid = \"Pendulum-v1\"\nnum_envs = 4\n[eval]\nevery = 1\n\
                stop_value = 1.0\n[learn]\nalgorithm = \"ppo\"\ngae_lambda = 0.9\nclip_coef = 0.1\nvf_coef = 0.1\n";
    std::fs::write(folder.path().join("p.toml"), text).unwrap();
    let check_with = |sets: &[&str]| {
        let mut args = vec!["sbatch", "p.toml", "--dry-run"];
        sets.iter().for_each(|set| args.extend(["--set", set]));
        let (code, _, err) = run(folder.path(), &args);
        (code, err)
    };
    let (code, err) = check_with(&["learn.algorithm=sac"]);
    assert!(
        code == 2
            && err.lines().count() < 12
            && ["gae_lambda", "clip_coef", "vf_coef", "~learn"].iter().all(|key| err.contains(key)),
        "{err}"
    );
    assert_eq!(check_with(&["~learn", "learn.algorithm=sac", "learn.learning_starts=100"]).0, 0);
    assert_eq!(check_with(&["eval.every=0"]).0, 2);
    assert_eq!(check_with(&["eval.every=0", "~eval.stop_value"]).0, 0);
}

/// A script that reports by `rankdeck.py`: no warning that it is not installed, and its steps in `ps`.
#[test]
fn reporting_script_needs_no_package() {
    let folder = bench("nproc = 2", "[\"python3\", \"s.py\"]");
    let script = "import rankdeck\nfor i in range(4):\n    rankdeck.report(env_step=100 * (i + 1), returns=[2.0, 4.0])\n";
    std::fs::write(folder.path().join("s.py"), script).unwrap();
    let (code, out, err) = run(folder.path(), &["check", "e.toml"]);
    assert!(code == 0 && err.is_empty(), "no warnings: {out}{err}");
    let (code, out, err) = run(folder.path(), &["run", "e.toml", "--quiet"]);
    assert_eq!(code, 0, "{out}{err}");
    let (_, out, err) = run(folder.path(), &["ps", "--json"]);
    let listed: serde_json::Value =
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    assert_eq!((&listed["env_step"], &listed["last_return"]), (&800.into(), &3.0.into()), "{listed}");
    std::fs::write(folder.path().join("e2.toml"), "base = \"e.toml\"\n[watch]\npython_hook = false\n")
        .unwrap();
    let (_, out, err) = run(folder.path(), &["check", "e2.toml"]);
    assert!(err.contains("`rankdeck client > rankdeck.py`"), "{out}{err}");
}

/// Hosts that share a disk have each other's logs: each prints its own. A refusal of a host is an error.
#[test]
fn logs_are_deduplicated_and_errors_reported() {
    let folder =
        bench("\n[[host]]\nname = \"b\"\ntransport = \"local\"", "[\"sh\", \"-c\", \"echo rank $RANK\"]");
    let (code, out, err) = run(folder.path(), &["run", "e.toml", "--quiet"]);
    assert_eq!(code, 0, "{out}{err}");
    let (_, out, err) = run(folder.path(), &["logs", "e", "--grep", "rank"]);
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["a:0:1: rank 0", "b:1:1: rank 1"], "{err}");
    let (code, _, err) = run(folder.path(), &["logs", "e", "--grep", "("]);
    assert!(code != 0 && err.contains("host a: ") && err.contains("`(`"), "{code} {err}");
    let (code, out, err) = run(folder.path(), &["fetch", "e", "nothing.*"]);
    assert!(code == 2 && err.contains("`nothing.*`") && err.contains("hint: "), "{out}{err}");
    let (code, out, err) = run(folder.path(), &["queue", "nope"]);
    assert!(code == 2 && err.contains("rankdeck queue"), "{out}{err}");
    let (code, out, err) = run(folder.path(), &["run", "e.toml", "--random", "3"]);
    assert!(code == 2 && err.contains("--sweep"), "{out}{err}");
}

/// The environment of cron: no terminal, few variables. A success prints two lines, and nothing to be mailed.
#[test]
fn cron_job_prints_two_lines_and_no_error() {
    let folder = bench("", "[\"sleep\", \"0.1\"]");
    let call = |args: &[&str]| {
        let mut command = rankdeck(folder.path(), args);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", folder.path());
        text(&command.env("SHELL", "/bin/sh").stdin(std::process::Stdio::null()).output().unwrap())
    };
    let (code, out, err) = call(&["run", "e.toml", "--quiet"]);
    assert!(code == 0 && out.lines().count() == 2 && err.is_empty(), "{out}{err}");
    let (code, out, err) = call(&["run", "e.toml", "--quiet", "--detach"]);
    assert!(code == 0 && err.is_empty(), "{out}{err}");
    let (code, out, err) = call(&["wait", "--quiet", "--json"]);
    assert!(code == 0 && out.lines().count() == 1, "{out}{err}");
    let (code, out, err) = call(&["logs", "--json", "--rank", "0"]);
    assert_eq!((code, out.as_str(), err.lines().count()), (0, "", 1), "the note about the run: {err}");
}

/// Without a run, a hosts file and a directory of runs: where to run the command.
#[test]
fn commands_about_runs_name_the_directory_of_the_launch() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["ps", "status", "attach", "stop", "wait", "logs", "fetch", "prune", "rm x"] {
        let words: Vec<&str> = command.split(' ').collect();
        let (code, out, err) = run(folder.path(), &words);
        assert!(code == 2 && err.contains("directory"), "{command}: {out}{err}");
    }
}

/// Without `--hosts`; with it, those hosts are listed only.
#[test]
fn locate_2_ps_and_prune_list_launches_on_other_hosts() {
    let folder = bench("", "[\"true\"]");
    let elsewhere = tempfile::tempdir().unwrap();
    let (workdir, other) = (elsewhere.path(), folder.path().join("other.toml"));
    let hosts = format!("[[host]]\nname = \"b\"\ntransport = \"local\"\nworkdir = {workdir:?}\n");
    std::fs::write(other, hosts).unwrap();
    let call = |args: &[&str]| run(folder.path(), args);
    let (code, out, err) = call(&["run", "e.toml", "--hosts", "other.toml", "--quiet"]);
    assert_eq!(code, 0, "{out}{err}");
    let (code, out, err) = call(&["ps", "--json"]);
    let listed: serde_json::Value =
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    assert_eq!((code, &listed["hosts"]), (0, &serde_json::json!(["b"])), "{listed}{err}");
    let (code, out, err) = call(&["ps", "--json", "--hosts", "hosts.toml"]);
    assert!(code == 0 && out.is_empty(), "{out}{err}");
    let name = listed["run"].as_str().unwrap();
    let prune = ["prune", "--keep", "0", "--yes"];
    let (code, out, err) = call(&[&prune[..], &["--hosts", "hosts.toml"]].concat());
    assert!(code == 0 && workdir.join("runs").join(name).is_dir(), "{out}{err}");
    // The agent may stay for a moment.
    for _ in 0..60 {
        if !workdir.join("runs").join(name).exists() {
            break;
        }
        let (code, out, err) = call(&prune);
        assert_eq!(code, 0, "{out}{err}");
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    assert!(!workdir.join("runs").join(name).exists());
}

#[test]
fn wait_exits_as_the_run_did() {
    let folder = bench("", "[\"true\"]");
    let call = |args: &[&str]| run(folder.path(), args);
    let gate = folder.path().join("gate");
    let script = format!("while [ ! -e {} ]; do sleep 0.1; done; exit 3", gate.display());
    let failing = format!("launch.command=[\"sh\", \"-c\", \"{script}\"]");
    let (code, out, err) = call(&["run", "e.toml", "--detach", "--set", &failing]);
    assert_eq!(code, 0, "{out}{err}");
    std::fs::write(gate, "").unwrap();
    let (code, out, err) = call(&["wait", "--json"]);
    let ended: serde_json::Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}"));
    assert_eq!((code, &ended["outcome"], &ended["exit_code"]), (1, &"failed".into(), &1.into()), "{err}");
    let endless = ["run", "e.toml", "--detach", "--set", "launch.command=[\"sleep\", \"600\"]"];
    let (code, out, err) = call(&endless);
    assert_eq!(code, 0, "{out}{err}");
    let (code, out, err) = call(&["wait", "--timeout", "1s"]);
    assert!(code == 124 && out.is_empty() && err.contains("hint: "), "{out}{err}");
    let (_, out, _) = call(&["status", "--json"]);
    assert!(out.contains("\"state\":\"running\""), "{out}");
    let (code, out, err) = call(&["stop", "--quiet"]);
    assert!(code == 0 && out.lines().count() == 1 && err.is_empty(), "{out}{err}");
    for (name, expected) in [("@last", 130), ("e", 130), ("e~1", 1), ("@last~1", 1), ("e~2", 2)] {
        assert_eq!(call(&["wait", name]).0, expected, "{name}");
    }
}

#[test]
fn init_writes_working_files_and_overwrites_none() {
    let folder = tempfile::tempdir().unwrap();
    let script =
        "import time\nfor step in range(3):\n    print(f\"step={step} loss={1 / (step + 1):.3f}\")\n";
    std::fs::write(folder.path().join("train.py"), script).unwrap();
    let (code, out, err) = run(folder.path(), &["init"]);
    assert!(code == 0 && out.contains("hosts.toml") && out.contains("train.toml"), "{out}{err}");
    let (code, out, err) = run(folder.path(), &["check", "train.toml"]);
    assert_eq!(code, 0, "{out}{err}");
    let (code, out, err) = run(folder.path(), &["run", "train.toml", "--headless"]);
    assert!(code == 0 && out.contains("step 2  loss 0.3330"), "both of the line's values: {out}{err}");
    let (code, _, err) = run(folder.path(), &["init"]);
    assert!(code == 0 && err.contains("hosts.toml") && err.contains("--force"), "{err}");
    assert_eq!(run(folder.path(), &["init", "--script", "nope.py"]).0, 2);
    assert_eq!(run(folder.path(), &["init", "a b"]).0, 2);
    assert_eq!(run(folder.path(), &["init", "nope.py"]).0, 2);
    std::fs::remove_file(folder.path().join("hosts.toml")).unwrap();
    std::fs::rename(folder.path().join("train.py"), folder.path().join("other.py")).unwrap();
    let (code, out, err) = run(folder.path(), &["init", "other.py"]);
    assert!(code == 0 && out.contains("hosts.toml") && out.contains("other.toml"), "{out}{err}");
    let hosts = std::fs::read_to_string(folder.path().join("hosts.toml")).unwrap();
    assert!(hosts.contains("transport = \"local\"") && !hosts.contains("other.py"), "{hosts}");
}

/// SECRET-2: a value that a rank prints is in no output and in no file of the run.
#[test]
fn secret_2_printed_value_is_kept_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let script = "import os\nprint('key', os.environ['MY_API_KEY'], 'and', os.environ['LONG_NAME'], flush=True)\n\
                  raise SystemExit('failed with ' + os.environ['MY_API_KEY'])\n";
    std::fs::write(folder.path().join("x.py"), script).unwrap();
    for form in [&["--headless", "--logs"][..], &["--json"]] {
        let mut command =
            rankdeck(folder.path(), &["run", "--set", "launch.pass_env=[\"MY_API_KEY\", \"LONG_NAME\"]"]);
        command.args(form).args(["--", "python3", "x.py"]);
        let output =
            command.env("MY_API_KEY", "s3cret-value").env("LONG_NAME", "passed-value").output().unwrap();
        let (code, out, err) = text(&output);
        assert!(code == 1 && out.contains("key ************ and ************"), "{out}{err}");
        assert!(!format!("{out}{err}").contains("s3cret-value"), "{out}{err}");
    }
    let (code, out, err) = run(folder.path(), &["logs", "x-", "--grep", "key"]);
    assert!(code == 0 || code == 2, "{out}{err}");
    let found =
        Command::new("grep").args(["-rl", "s3cret-value", "."]).current_dir(folder.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "", "a file holds it");
}

#[test]
fn script_without_file_shows_metrics_and_logs_hint() {
    let folder = tempfile::tempdir().unwrap();
    let script = "for step in range(3):\n    print('step', step, 'loss:', 1 / (step + 1))\n";
    std::fs::write(folder.path().join("x.py"), script).unwrap();
    let command = ["--", "python3", "x.py"];
    let (code, out, err) = run(folder.path(), &[&["run", "--headless"][..], &command].concat());
    assert!(code == 0 && out.contains("step 2  loss 0.3333"), "{out}{err}");
    assert!(err.matches("`rankdeck logs x-").count() == 1 && err.contains("`--logs`"), "{out}{err}");
    for option in ["--logs", "--quiet"] {
        let (code, out, err) = run(folder.path(), &[&["run", "--headless", option][..], &command].concat());
        assert!(code == 0 && !err.contains("rankdeck logs"), "{option}: {out}{err}");
    }
}

#[test]
fn origin_of_a_run_in_place_is_saved() {
    let folder = bench("", "[\"python3\", \"train.py\"]\ncode = \".\"\ninclude = [\"*.so\"]");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("train.py", "import os; print('files', sorted(os.listdir('.')))");
    write(".gitignore", "*.bin\n*.so\nruns/\ncache/\n");
    write("big.bin", "x");
    write("kept.so", "x");
    let git = |args: &[&str]| {
        let all =
            [&["-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false"], args].concat();
        assert!(Command::new("git").current_dir(folder.path()).args(all).output().unwrap().status.success());
    };
    git(&["init", "-q"]);
    git(&["add", "."]);
    git(&["commit", "-qm", "one"]);
    write("train.py", "import os; print('files', sorted(os.listdir('.')))  # changed");
    let (code, out, err) = run(folder.path(), &["check", "e.toml"]);
    assert!(code == 0 && out.contains("  git      "), "{out}{err}");
    let (code, out, err) = run(folder.path(), &["run", "e.toml", "--headless", "--logs"]);
    assert!(code == 0 && out.contains("'kept.so'") && out.contains("big.bin"), "{out}{err}");
    let run_folder = std::fs::read_dir(folder.path().join("runs")).unwrap().next().unwrap().unwrap().path();
    let origin: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(run_folder.join("console/origin.json")).unwrap())
            .unwrap();
    assert_eq!(origin["command_line"][1], "run");
    assert_eq!(origin["git"]["commit"].as_str().map(str::len), Some(40));
    assert_eq!((&origin["git"]["dirty"], &origin["git"]["changed"]), (&true.into(), &1.into()));
    assert!(origin["hosts"]["a"]["python"].is_string() && origin["code"].is_string(), "{origin}");
    let changes = std::fs::read_to_string(run_folder.join("console/changes.diff")).unwrap();
    assert!(changes.contains("# changed"), "{changes}");
    let (code, out, err) = run(folder.path(), &["report", "--output", "-"]);
    assert!(code == 0 && out.contains(" 1 file "), "{out}{err}");
    assert!(out.contains("| a | python 3.") && out.contains("run e.toml --headless --logs"), "{out}");
}

#[test]
fn launches_of_one_second_have_distinct_names() {
    let folder = bench("", r#"["true"]"#);
    let other = bench("", r#"["true"]"#);
    let start = |at: &Path| {
        let mut command = rankdeck(at, &["run", "e.toml", "--headless", "--quiet"]);
        command.env("RANKDECK_CACHE", folder.path().join("cache"));
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let runs: Vec<_> = [folder.path(), folder.path(), other.path(), folder.path()].map(start).into();
    for run in runs {
        let output = run.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(std::fs::read_dir(folder.path().join("runs")).unwrap().count(), 3);
}

#[test]
fn schemas_are_printed() {
    let folder = tempfile::tempdir().unwrap();
    for what in ["experiment", "hosts", "events"] {
        let (code, out, _) = run(folder.path(), &["schema", what]);
        let schema: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert!(code == 0 && schema["$schema"].is_string(), "{what}");
    }
    assert_eq!(run(folder.path(), &["schema", "none"]).0, 2);
}
