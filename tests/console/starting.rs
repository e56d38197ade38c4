//! What a launch is told and what it finds, on this machine: environments, variables, ways to say what to
//! run.

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

fn told(folder: &Path, args: &[&str]) -> (i32, String, String) {
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
fn check_and_run_agree_on_the_interpreter_of_the_ranks() {
    let show = r#"["python", "-c", "import sys; print('prefix', sys.prefix)"]"#;
    for more in ["prelude = \"source v/bin/activate\"", "venv = \"v\""] {
        let folder = bench(more, show);
        let there = folder.path().canonicalize().unwrap();
        let made =
            Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(there.join("v")).status();
        assert!(made.unwrap().success(), "python3 with venv is needed");
        let prefix = there.join("v").display().to_string();
        let (code, out, err) = told(folder.path(), &["check", "e.toml"]);
        assert!(code == 0 && out.contains(&format!("prefix {prefix}")), "{more}: {out}{err}");
        let (code, out, err) = told(folder.path(), &["run", "e.toml", "--headless", "--logs"]);
        assert!(code == 0 && out.contains(&format!("prefix {prefix}")), "{more}: {out}{err}");
    }
}

#[test]
fn what_fails_before_the_ranks_refuses_the_launch_with_its_own_words() {
    for (more, says) in [
        ("prelude = \"source /nope/activate; export A=1\"", "/nope/activate"),
        ("prelude = \"conda activate rl\"", "conda"),
        ("venv = \"nope\"", "nope/bin/activate"),
        ("prelude = \"exit 0\"", "status 0"),
    ] {
        let folder = bench(more, r#"["python3", "-c", "print(1)"]"#);
        for args in [&["check", "e.toml"][..], &["run", "e.toml", "--headless"]] {
            let (code, out, err) = told(folder.path(), args);
            assert!(code == 3 && err.contains(says) && err.contains("hint: "), "{more} {args:?}: {out}{err}");
            assert!(!folder.path().join("runs").exists(), "nothing was started");
        }
    }
}

#[test]
fn a_program_runs_without_any_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("my train.py"),
        "import os, sys; print('args', sys.argv[1:], os.environ['RANK'])",
    )
    .unwrap();
    let line = ["--", "python3", "my train.py", "--lr", "a b"];
    let with = |command: &[&'static str]| [command, &line].concat();
    let (code, out, err) = told(folder.path(), &with(&["check", "--nproc", "2"]));
    assert_eq!(code, 0, "{out}{err}");
    for part in
        ["world_size 2", "command  python3 'my train.py' --lr 'a b'", "code     none is copied", "python "]
    {
        assert!(out.contains(part), "{part}\n{out}");
    }
    let (code, out, err) = told(folder.path(), &with(&["run", "--nproc", "2", "--headless", "--logs"]));
    assert!(code == 0 && out.contains("args ['--lr', 'a b'] 1"), "{out}{err}");
    assert!(out.contains("my-train-"), "the run is named after the script: {out}");
    // Other commands find it again without a hosts file.
    let (code, out, err) = told(folder.path(), &["ps", "--all"]);
    assert!(code == 0 && out.contains("my-train-"), "{out}{err}");
    let (code, _, err) = told(folder.path(), &with(&["sbatch", "--dry-run"]));
    assert_eq!(code, 0, "{err}");
}

#[test]
fn what_is_no_experiment_is_told_how_to_run() {
    let folder = tempfile::tempdir().unwrap();
    for (name, says) in [
        ("train.py", "rankdeck run -- python train.py"),
        ("run.sh", "rankdeck run -- bash run.sh"),
        ("conf.yaml", "an experiment is a TOML file"),
    ] {
        std::fs::write(folder.path().join(name), "import os\n").unwrap();
        for command in ["run", "check"] {
            let (code, out, err) = told(folder.path(), &[command, name]);
            assert!(code == 2 && err.contains(says), "{out}{err}");
        }
    }
    for args in [
        &["run", "--hosts", "a,,b", "--", "true"][..],
        &["run", "--hosts", "a b", "--", "true"],
        &["run", "--hosts", "nowhere.toml", "--", "true"],
        &["run", "e.toml", "--", "true"],
        &["run", "--"],
    ] {
        let (code, out, err) = told(folder.path(), args);
        assert!(code == 2 && err.contains("error: "), "{args:?} {out}{err}");
    }
}

#[test]
fn mistakes_are_told_to_programs_too() {
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
        let (code, out, err) = told(folder.path(), args);
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
fn what_a_run_would_not_use_or_not_find_is_warned_of() {
    let folder = bench("", r#"["python3", "train.py"]"#);
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("train.py", "import os\nimport nothing_of_that_name\nimport beside\n");
    write("beside.py", "");
    let text =
        |more: &str| format!("[run]\nname = \"e\"\n[launch]\ncommand = [\"python3\", \"train.py\"]\n{more}");
    for code in ["", "code = \".\"\n"] {
        write("e.toml", &text(code));
        let (status, out, err) = told(folder.path(), &["check", "e.toml"]);
        assert!(status == 0 && err.contains("has no nothing_of_that_name"), "{out}{err}");
    }
    write("e.toml", &text("[learn]\nalgorithm = \"ppo\"\n[policy]\nhidden = [3]\n"));
    let (_, _, err) = told(folder.path(), &["check", "e.toml"]);
    assert!(err.contains("does not see [learn], [policy]"), "{err}");
    let (_, _, err) = told(folder.path(), &["check", "--", "torchrun", "train.py"]);
    assert!(err.contains("torchrun"), "{err}");
}

#[test]
fn a_key_can_be_removed_and_another_algorithm_named_in_a_few_lines() {
    let folder = bench("", r#"["true"]"#);
    let text = "[run]\nname = \"e\"\ntotal_steps = 10000\n[env]\nid = \"Pendulum-v1\"\nnum_envs = 4\n[eval]\nevery = 1\n\
                stop_value = 1.0\n[learn]\nalgorithm = \"ppo\"\ngae_lambda = 0.9\nclip_coef = 0.1\nvf_coef = 0.1\n";
    std::fs::write(folder.path().join("p.toml"), text).unwrap();
    let said = |sets: &[&str]| {
        let mut args = vec!["sbatch", "p.toml", "--dry-run"];
        sets.iter().for_each(|set| args.extend(["--set", set]));
        let (code, _, err) = told(folder.path(), &args);
        (code, err)
    };
    let (code, err) = said(&["learn.algorithm=sac"]);
    assert!(
        code == 2
            && err.lines().count() < 12
            && err.contains("3 keys are those of")
            && err.contains("~learn"),
        "{err}"
    );
    assert_eq!(said(&["~learn", "learn.algorithm=sac", "learn.learning_starts=100"]).0, 0);
    assert_eq!(said(&["eval.every=0"]).0, 2);
    assert_eq!(said(&["eval.every=0", "~eval.stop_value"]).0, 0);
}

/// A script that reports by `rankdeck.py`: no warning that it is not installed, and its steps in `ps`.
#[test]
fn a_script_that_reports_is_taken_as_it_is_and_its_steps_are_listed() {
    let folder = bench("nproc = 2", "[\"python3\", \"s.py\"]");
    let script = "import rankdeck\nfor i in range(4):\n    rankdeck.report(env_step=100 * (i + 1), returns=[2.0, 4.0])\n";
    std::fs::write(folder.path().join("s.py"), script).unwrap();
    let (code, out, err) = told(folder.path(), &["check", "e.toml"]);
    assert!(code == 0 && err.is_empty() && out.contains("0 warnings"), "{out}{err}");
    let (code, out, err) = told(folder.path(), &["run", "e.toml", "--quiet"]);
    assert_eq!(code, 0, "{out}{err}");
    let (_, out, err) = told(folder.path(), &["ps", "--json"]);
    let run: serde_json::Value =
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    assert_eq!((&run["env_step"], &run["last_return"]), (&800.into(), &3.0.into()), "{run}");
    std::fs::write(folder.path().join("e2.toml"), "base = \"e.toml\"\n[watch]\npython_hook = false\n")
        .unwrap();
    let (_, out, err) = told(folder.path(), &["check", "e2.toml"]);
    assert!(err.contains("`rankdeck client > rankdeck.py` writes it"), "{out}{err}");
}

/// Hosts that share a disk have each other's logs: each tells its own. What a host refuses is an error.
#[test]
fn every_line_is_found_once_and_what_is_wrong_is_said() {
    let folder =
        bench("\n[[host]]\nname = \"b\"\ntransport = \"local\"", "[\"sh\", \"-c\", \"echo rank $RANK\"]");
    let (code, out, err) = told(folder.path(), &["run", "e.toml", "--quiet"]);
    assert_eq!(code, 0, "{out}{err}");
    let (_, out, err) = told(folder.path(), &["logs", "e", "--grep", "rank"]);
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["a:0:1: rank 0", "b:1:1: rank 1"], "{err}");
    let (code, _, err) = told(folder.path(), &["logs", "e", "--grep", "("]);
    assert!(code != 0 && err.contains("error: host a: `(`: "), "{code} {err}");
    let (code, out, err) = told(folder.path(), &["fetch", "e", "nothing.*"]);
    assert!(code == 2 && err.contains("is called `nothing.*`") && err.contains("hint: "), "{out}{err}");
    let (code, out, err) = told(folder.path(), &["queue", "nope"]);
    assert!(code == 2 && err.contains("there is no such sweep"), "{out}{err}");
    let (code, out, err) = told(folder.path(), &["run", "e.toml", "--random", "3"]);
    assert!(code == 2 && err.contains("--sweep"), "{out}{err}");
}

#[test]
fn init_writes_files_that_work_and_writes_over_none() {
    let folder = tempfile::tempdir().unwrap();
    let script =
        "import time\nfor step in range(3):\n    print(f\"step={step} loss={1 / (step + 1):.3f}\")\n";
    std::fs::write(folder.path().join("train.py"), script).unwrap();
    let (code, out, err) = told(folder.path(), &["init"]);
    assert!(code == 0 && out.contains("wrote hosts.toml") && out.contains("wrote train.toml"), "{out}{err}");
    let text = std::fs::read_to_string(folder.path().join("train.toml")).unwrap();
    assert!(text.contains("(?P<loss>") && text.contains("(?P<env_step>"), "{text}");
    let (code, out, err) = told(folder.path(), &["check", "train.toml"]);
    assert_eq!(code, 0, "{out}{err}");
    let (code, out, err) = told(folder.path(), &["run", "train.toml", "--headless"]);
    assert!(code == 0 && out.contains("step 2  loss 0.3330"), "both of the line's values: {out}{err}");
    let (code, _, err) = told(folder.path(), &["init"]);
    assert!(code == 0 && err.contains("stays as it is"), "{err}");
    assert_eq!(told(folder.path(), &["init", "--script", "nope.py"]).0, 2);
    assert_eq!(told(folder.path(), &["init", "a b"]).0, 2);
    assert_eq!(told(folder.path(), &["init", "nope.py"]).0, 2);
    std::fs::remove_file(folder.path().join("hosts.toml")).unwrap();
    std::fs::rename(folder.path().join("train.py"), folder.path().join("other.py")).unwrap();
    let (code, out, err) = told(folder.path(), &["init", "other.py"]);
    assert!(code == 0 && out.contains("wrote hosts.toml") && out.contains("wrote other.toml"), "{out}{err}");
    let hosts = std::fs::read_to_string(folder.path().join("hosts.toml")).unwrap();
    assert!(hosts.contains("transport = \"local\"") && !hosts.contains("other.py"), "{hosts}");
}

/// SECRET-2: a value that a rank prints is in no output and in no file of the run.
#[test]
fn a_passed_value_that_a_rank_prints_is_kept_nowhere() {
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
    let (code, out, err) = told(folder.path(), &["logs", "x-", "--grep", "key"]);
    assert!(code == 0 || code == 2, "{out}{err}");
    let found =
        Command::new("grep").args(["-rl", "s3cret-value", "."]).current_dir(folder.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "", "a file holds it");
}

#[test]
fn a_script_without_a_file_shows_its_numbers_and_where_its_output_is() {
    let folder = tempfile::tempdir().unwrap();
    let script = "for step in range(3):\n    print('step', step, 'loss:', 1 / (step + 1))\n";
    std::fs::write(folder.path().join("x.py"), script).unwrap();
    let command = ["--", "python3", "x.py"];
    let (code, out, err) = told(folder.path(), &[&["run", "--headless"][..], &command].concat());
    assert!(code == 0 && out.contains("step 2  loss 0.3333"), "{out}{err}");
    let told_once = err.matches("`rankdeck logs x-").count() == 1 && err.contains("`--logs`");
    assert!(told_once, "{out}{err}");
    for option in ["--logs", "--quiet"] {
        let (code, out, err) = told(folder.path(), &[&["run", "--headless", option][..], &command].concat());
        assert!(code == 0 && !err.contains("rankdeck logs"), "{option}: {out}{err}");
    }
}

#[test]
fn a_run_keeps_where_it_comes_from_and_what_git_ignores_stays() {
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
    let (code, out, err) = told(folder.path(), &["check", "e.toml"]);
    assert!(code == 0 && out.contains("  git      "), "{out}{err}");
    let (code, out, err) = told(folder.path(), &["run", "e.toml", "--headless", "--logs"]);
    assert!(code == 0 && out.contains("'kept.so'") && !out.contains("big.bin"), "{out}{err}");
    let run = std::fs::read_dir(folder.path().join("runs")).unwrap().next().unwrap().unwrap().path();
    let origin: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(run.join("console/origin.json")).unwrap()).unwrap();
    assert_eq!(origin["command_line"][1], "run");
    assert_eq!(origin["git"]["commit"].as_str().map(str::len), Some(40));
    assert_eq!((&origin["git"]["dirty"], &origin["git"]["changed"]), (&true.into(), &1.into()));
    assert!(origin["hosts"]["a"]["python"].is_string() && origin["code"].is_string(), "{origin}");
    let changes = std::fs::read_to_string(run.join("console/changes.diff")).unwrap();
    assert!(changes.contains("# changed"), "{changes}");
    let (code, out, err) = told(folder.path(), &["report", "--output", "-"]);
    assert!(
        code == 0 && out.contains("## Where it comes from") && out.contains(", 1 file changed"),
        "{out}{err}"
    );
    assert!(out.contains("| a | python 3.") && out.contains("run e.toml --headless --logs"), "{out}");
}

#[test]
fn launches_of_the_same_second_have_names_of_their_own() {
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
        let (code, out, _) = told(folder.path(), &["schema", what]);
        let schema: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert!(code == 0 && schema["$schema"].is_string(), "{what}");
    }
    assert_eq!(told(folder.path(), &["schema", "none"]).0, 2);
}
