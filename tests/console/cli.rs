//! The command line from outside: exit codes, streams, signals. Simulated hosts stand in for real ones, so
//! nothing here needs a network.

use crate::support::texts;
use rankdeck::app::summary::NOT_VERIFIED;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Nothing here takes longer unless it hangs.
const DEADLINE: Duration = Duration::from_secs(120);

fn rankdeck(folder: &Path, args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rankdeck"));
    command.current_dir(folder).args(args.split_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("RANKDECK_TEST_PANIC");
    command
}

/// A child that is killed and reaped when a test fails.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Guard {
    fn signal(&self, signal: i32) {
        // SAFETY: the child is not reaped yet, so its pid is its own.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
    }

    fn wait(&mut self) -> i32 {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(Instant::now() < deadline, "rankdeck did not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn finish(folder: &Path, args: &str) -> (i32, String, String) {
    let mut child = Guard(rankdeck(folder, args).spawn().unwrap());
    let mut out = child.0.stdout.take().unwrap();
    let mut err = child.0.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        out.read_to_string(&mut text).map(|_| text)
    });
    let mut complaint = String::new();
    err.read_to_string(&mut complaint).unwrap();
    let code = child.wait();
    (code, reader.join().unwrap().unwrap(), complaint)
}

fn text(output: &Output) -> (i32, String, String) {
    let string = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), string(&output.stdout), string(&output.stderr))
}

fn here() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// A simulated run of about two seconds.
const SHORT: &str = "simulate --nnodes 2 --ranks 2 --iteration-ms 100 --steps 81920";

#[test]
fn usage_errors_are_2_and_help_is_0() {
    let folder = here();
    for (args, code) in [
        ("", 2),
        ("fly", 2),
        ("run", 2),
        ("run a.toml --until laps=3", 2),
        ("--help", 0),
        ("run --help", 0),
        ("--version", 0),
        ("man", 0),
        ("man stop", 0),
        ("man fly", 2),
        ("completions bash", 0),
        ("replay nothing", 2),
        ("simulate --fault melt:1@2", 2),
    ] {
        let (got, out, err) = text(&rankdeck(folder.path(), args).output().unwrap());
        assert_eq!(got, code, "`{args}`: {out}{err}");
        assert_eq!(
            out.is_empty(),
            code != 0,
            "`{args}` writes data to stdout and errors to stderr: {out}{err}"
        );
    }
}

#[test]
fn run_without_an_experiment_lists_those_here() {
    let folder = here();
    let error = || text(&rankdeck(folder.path(), "run").output().unwrap()).2;
    assert!(error().contains("`rankdeck init`"), "{}", error());
    std::fs::create_dir(folder.path().join("configs")).unwrap();
    for path in ["pong.toml", "configs/ppo.toml"] {
        std::fs::write(folder.path().join(path), "[run]\nname = \"x\"\n").unwrap();
    }
    std::fs::write(folder.path().join("pyproject.toml"), "[project]\n").unwrap();
    let listed = error();
    assert!(listed.contains("configs/ppo.toml, pong.toml") && !listed.contains("pyproject"), "{listed}");
}

#[test]
fn file_with_program_is_refused() {
    let folder = here();
    let (code, out, err) = text(&rankdeck(folder.path(), "run a.toml -- python train.py").output().unwrap());
    assert!(code == 2 && out.is_empty(), "{code} {out}");
    assert!(err.contains("`rankdeck run -- python train.py`"), "{err}");
}

#[test]
fn missing_hosts_file_is_named_by_every_command() {
    let folder = here();
    for args in ["ps", "attach", "stop", "restart --yes", "logs x"] {
        let (code, out, err) = text(&rankdeck(folder.path(), args).output().unwrap());
        assert_eq!((code, out.as_str()), (2, ""), "`{args}`: {err}");
        assert!(
            err.starts_with("error: ") && err.contains("hosts.toml") && err.contains("hint: "),
            "`{args}`: {err}"
        );
    }
}

/// CLI-3: a run whose hosts do not reply is not stopped.
#[test]
fn cli_3_unanswered_stop_is_not_verified() {
    let folder = here();
    // Nothing listens there.
    let hosts = ["a", "b"].map(|name| {
        format!("[[host]]\nname = \"host-{name}\"\naddress = \"127.0.0.1\"\nport = 1\nworkdir = \"w\"\n")
    });
    std::fs::write(folder.path().join("hosts.toml"), hosts.concat()).unwrap();
    for args in ["stop pong-20260101-000000", "stop pong-20260101-000000 --kill"] {
        let (code, out, err) = text(&rankdeck(folder.path(), args).output().unwrap());
        assert_eq!(code, 3, "`{args}`: {out}{err}");
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines.len(), 3, "`{args}`: {out}");
        assert!(lines[0].starts_with(NOT_VERIFIED) && lines[0].ends_with(" pong-20260101-000000"), "{out}");
        for (line, host) in lines[1..].iter().zip(["host-a", "host-b"]) {
            assert!(line.contains(host), "{out}");
        }
        assert!(err.contains("pong-20260101-000000"), "{err}");
        assert!(err.contains("hint: "), "{err}");
    }
    let (code, out, _) = text(&rankdeck(folder.path(), "stop").output().unwrap());
    assert_eq!(code, 3);
    assert!(out.starts_with(NOT_VERIFIED) && out.contains("host-a") && out.contains("host-b"), "{out}");
}

#[test]
fn unknown_key_is_refused_with_its_line() {
    let folder = here();
    std::fs::write(folder.path().join("hosts.toml"), "[[host]]\nname = \"a\"\ntransport = \"local\"\n")
        .unwrap();
    std::fs::write(
        folder.path().join("e.toml"),
        "[run]\nname = \"x\"\nsede = 3\n[launch]\ncommand = [\"true\"]\n",
    )
    .unwrap();
    let (code, out, err) = text(&rankdeck(folder.path(), "run e.toml").output().unwrap());
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(err.contains("e.toml:3:1") && err.contains("seed"), "{err}");
    assert!(!folder.path().join("runs").exists(), "nothing was started");
}

#[test]
fn completions_list_commands_and_runs() {
    let folder = here();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (_, out, _) = text(&rankdeck(folder.path(), &format!("completions {shell}")).output().unwrap());
        assert!(out.contains("_RANKDECK_COMPLETE"), "{shell}: {out}");
    }
    let completed = |words: &[&str]| {
        let mut command = rankdeck(folder.path(), "");
        command.env("_RANKDECK_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
        command.env("_CLAP_IFS", "\n").arg("--").args(words);
        text(&command.output().unwrap()).1
    };
    assert!(completed(&["rankdeck", "at"]).contains("attach"));
    assert!(completed(&["rankdeck", "run", "--u"]).contains("--until"));
    std::fs::create_dir_all(folder.path().join("runs/ppo-20260101-120000")).unwrap();
    for command in ["logs", "stop", "rm", "eval", "report", "wait"] {
        let names = completed(&["rankdeck", command, "pp"]);
        assert_eq!(names.trim(), "ppo-20260101-120000", "{command}");
    }
    std::fs::create_dir_all(folder.path().join("runs/sweep-ppo-20260101-120000")).unwrap();
    assert!(completed(&["rankdeck", "run", "--from", "pp"]).contains("ppo-20260101-120000"));
    assert_eq!(completed(&["rankdeck", "queue", "s"]).trim(), "sweep-ppo-20260101-120000");
    assert_eq!(completed(&["rankdeck", "help", "slu"]).trim(), "slurm");
    assert!(!completed(&["rankdeck", "schema", ""]).contains("ppo-"));
    let (_, out, _) = text(&rankdeck(folder.path(), "man").output().unwrap());
    assert!(out.contains(".TH") && out.contains("restart") && out.contains("130"), "{out}");
}

fn json_lines(out: &str) -> Vec<Value> {
    out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

fn of_kind<'a>(lines: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    lines.iter().filter(move |line| line["kind"] == kind)
}

#[test]
fn json_is_consistent_and_ends_with_run_finished() {
    let folder = here();
    let (code, out, err) = finish(folder.path(), &format!("{SHORT} --json"));
    assert_eq!(code, 0, "{err}");
    let lines = json_lines(&out);
    for line in &lines {
        for key in ["kind", "run", "generation", "time"] {
            assert!(line.get(key).is_some(), "{key} is missing: {line}");
        }
    }
    assert_eq!(of_kind(&lines, "run_started").count(), 1);
    assert!(of_kind(&lines, "eval").count() >= 1);
    assert!(of_kind(&lines, "progress").count() >= 1);
    for progress in of_kind(&lines, "progress") {
        let ranks = progress["per_rank"].as_array().unwrap();
        assert_eq!(ranks.len(), 4);
        for key in ["env_step", "samples", "episodes"] {
            let sum: u64 = ranks.iter().map(|rank| rank[key].as_u64().unwrap()).sum();
            assert_eq!(progress[key].as_u64(), Some(sum), "{key}");
        }
    }
    let last = lines.last().unwrap();
    assert_eq!(
        (&last["kind"], &last["outcome"]),
        (&Value::from("run_finished"), &Value::from("succeeded")),
        "{last}"
    );
    assert_eq!((last["exit_code"].as_u64(), last["survivors"].as_array().map(Vec::len)), (Some(0), Some(0)));
}

#[test]
fn plain_lines_end_with_totals_and_verified_stop() {
    let folder = here();
    let (code, out, err) = finish(folder.path(), SHORT);
    assert_eq!(code, 0, "{out}{err}");
    for expected in ["run simulated-", "eval", texts::TOTALS_LINE, texts::NO_PROCESS_LEFT, texts::SUCCEEDED] {
        assert!(out.contains(expected), "{expected}: {out}{err}");
    }
    assert!(!out.contains('\x1b'), "no escape sequences without a terminal");
    assert!(!folder.path().join("runs").exists(), "a simulation records only when asked to");
}

#[test]
fn failed_rank_never_exits_0() {
    let folder = here();
    for fault in ["kill:1@0.5", "fail:3@0.5"] {
        let (code, out, err) = finish(folder.path(), &format!("{SHORT} --fault {fault} --json"));
        assert_eq!(code, 1, "{fault}: {err}");
        let lines = json_lines(&out);
        let last = lines.last().unwrap();
        assert_eq!(
            (last["kind"].as_str(), last["outcome"].as_str()),
            (Some("run_finished"), Some("failed")),
            "{last}"
        );
        let rank = u64::from(fault.as_bytes()[5] - b'0');
        assert!(
            of_kind(&lines, "verdict").any(|v| v["verdict"] == "dead" && v["rank"].as_u64() == Some(rank)),
            "{fault}"
        );
    }
}

#[test]
fn survivor_is_listed_and_stop_not_verified() {
    let folder = here();
    let (code, out, err) = finish(folder.path(), &format!("{SHORT} --fault survive:1@0"));
    assert_ne!(code, 0, "{out}{err}");
    assert!(out.contains(NOT_VERIFIED) && out.contains("31337"), "{out}");
    assert!(!out.contains(texts::VERIFIED), "{out}");
}

#[test]
fn stuck_run_stopped_by_policy_exits_4() {
    let folder = here();
    let args = "simulate --nnodes 2 --ranks 2 --iteration-ms 100 --fault freeze:2@1 --on-stuck stop --json";
    let (code, out, err) = finish(folder.path(), args);
    let lines = json_lines(&out);
    let verdict =
        of_kind(&lines, "verdict").find(|v| v["severity"] == "red").unwrap_or_else(|| panic!("{out}{err}"));
    assert_eq!(
        (verdict["rank"].as_u64(), verdict["verdict"].as_str()),
        (Some(2), Some("frozen")),
        "{verdict}"
    );
    assert_eq!((code, lines.last().unwrap()["outcome"].as_str()), (4, Some("stuck")), "{err}");
}

#[test]
fn hanging_environment_is_env_stuck() {
    let folder = here();
    let args = "simulate --nnodes 2 --ranks 2 --iteration-ms 100 --fault env:2@1 --json";
    let mut child = Guard(rankdeck(folder.path(), args).spawn().unwrap());
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut lines = lines.map(|line| serde_json::from_str::<Value>(&line).unwrap());
    let verdict = lines.find(|line| line["kind"] == "verdict" && line["severity"] == "red");
    let verdict = verdict.expect("a red verdict before the end");
    let found = (verdict["rank"].as_u64(), verdict["verdict"].as_str(), verdict["reason_code"].as_str());
    assert_eq!(found, (Some(2), Some("env_stuck"), Some("env_worker_deadlocked")), "{verdict}");
    child.signal(libc::SIGKILL);
    child.wait();
}

#[test]
fn until_stops_cleanly() {
    let folder = here();
    let args = "simulate --nnodes 1 --ranks 2 --iteration-ms 100 --until iters=5 --json";
    let (code, out, err) = finish(folder.path(), args);
    let lines = json_lines(&out);
    assert_eq!(
        (code, lines.last().unwrap()["outcome"].as_str()),
        (0, Some("succeeded")),
        "{err}{}",
        lines.last().unwrap()
    );
    assert!(of_kind(&lines, "checkpoint").count() >= 1, "a clean stop writes a checkpoint");
}

/// Starts a run that never ends by itself, and waits for the first line of this kind.
fn start_and_wait_for(folder: &Path, args: &str, kind: &str) -> (Guard, mpsc::Receiver<String>) {
    let mut child = Guard(rankdeck(folder, args).spawn().unwrap());
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    let needle = format!("\"kind\":\"{kind}\"");
    loop {
        let line = receiver.recv_timeout(DEADLINE).unwrap_or_else(|_| panic!("no {kind}"));
        if line.contains(&needle) {
            return (child, receiver);
        }
    }
}

const ENDLESS: &str = "simulate --nnodes 2 --ranks 2 --iteration-ms 100 --json";

#[test]
fn first_signal_stops_cleanly_with_130() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let folder = here();
        let (mut child, lines) = start_and_wait_for(folder.path(), ENDLESS, "progress");
        child.signal(signal);
        assert_eq!(child.wait(), 130);
        let last = lines.iter().last().unwrap();
        let last: Value = serde_json::from_str(&last).unwrap();
        assert_eq!(
            (last["kind"].as_str(), last["outcome"].as_str()),
            (Some("run_finished"), Some("stopped")),
            "{last}"
        );
    }
}

/// Each way that the hint lists leads past this error.
#[test]
fn missing_hosts_file_hint_lists_all_ways() {
    let folder = here();
    std::fs::write(folder.path().join("a.toml"), "[run]\nname = \"a\"\n[launch]\ncommand = [\"true\"]\n")
        .unwrap();
    let home = folder.path().join("home");
    let missing = |args: &str| {
        let mut command = rankdeck(folder.path(), args);
        command.env_remove("RANKDECK_HOSTS").env_remove("XDG_CONFIG_HOME").env("HOME", &home);
        text(&command.output().unwrap())
    };
    for args in ["ps", "stop", "attach --headless", "logs a", "fetch a"] {
        let (code, _, err) = missing(args);
        assert_eq!(code, 2, "`{args}`: {err}");
        assert!(err.starts_with("error: ") && err.contains("hosts.toml"), "`{args}`: {err}");
        for way in ["--hosts gpu-a,gpu-b", "--hosts PATH", "rankdeck init", "[[host]]", "name = \"gpu-a\""] {
            assert!(err.contains(way), "`{args}`: {way}: {err}");
        }
    }
    let (_, _, err) = missing("ps --hosts host.invalid");
    assert!(!err.contains("rankdeck init") && err.contains("host.invalid"), "{err}");
    std::fs::write(folder.path().join("hosts.toml"), "[[host]]\nname = \"host.invalid\"\n").unwrap();
    let (_, _, err) = missing("ps");
    assert!(!err.contains("rankdeck init") && err.contains("host.invalid"), "{err}");
}

/// A signal after this is a request of its own (SIGNAL-1).
fn later_signal() {
    std::thread::sleep(Duration::from_secs(1));
}

#[test]
fn second_signal_kills_frozen_ranks() {
    let folder = here();
    // The frozen rank cannot take part in a clean stop, and the grace would be long.
    let args = format!("{ENDLESS} --fault freeze:0@0.5");
    let (mut child, lines) = start_and_wait_for(folder.path(), &args, "verdict");
    child.signal(libc::SIGINT);
    let stderr = BufReader::new(child.0.stderr.take().unwrap());
    let mut notes = stderr.lines().map_while(Result::ok);
    assert!(notes.any(|line| line.contains(texts::SECOND_SIGNAL)));
    later_signal();
    child.signal(libc::SIGINT);
    assert_ne!(child.wait(), 0);
    let last: Value = serde_json::from_str(&lines.iter().last().unwrap()).unwrap();
    assert_eq!(
        (last["kind"].as_str(), last["proved"].as_bool()),
        (Some("run_finished"), Some(true)),
        "{last}"
    );
}

#[test]
fn hang_up_detaches() {
    let folder = here();
    let (mut child, lines) = start_and_wait_for(folder.path(), ENDLESS, "progress");
    child.signal(libc::SIGHUP);
    assert_eq!(child.wait(), 0);
    assert!(lines.iter().all(|line| !line.contains("run_finished")), "the run continues");
}

#[test]
fn detach_returns_once_ranks_joined() {
    let folder = here();
    let (code, out, err) = finish(folder.path(), &format!("{ENDLESS} --detach"));
    assert_eq!(code, 0, "{err}");
    let lines = json_lines(&out);
    let joined = of_kind(&lines, "rank").filter(|rank| rank["state"] == "joined").count();
    assert_eq!(joined, 4, "{out}");
    // No console can attach to simulated hosts.
    assert!(err.contains("simulated") && !err.contains("rankdeck attach"), "{err}");
}

#[test]
fn closed_stdout_is_no_error() {
    let folder = here();
    for args in
        [format!("{SHORT} --json"), SHORT.to_owned(), "--help".to_owned(), "completions bash".to_owned()]
    {
        let mut child = Guard(rankdeck(folder.path(), &args).spawn().unwrap());
        let mut out = BufReader::new(child.0.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        drop(out);
        let mut err = String::new();
        child.0.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert_eq!(child.wait(), 0, "`{args}`: {err}");
        for word in ["panicked", "roken pipe", "os error"] {
            assert!(!err.contains(word), "`{args}`: {err}");
        }
    }
}

/// Equal, fractions to the last bit, but for the time of the report.
fn alike(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| alike(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter().all(|(key, a)| key == "time" || b.get(key).is_some_and(|b| alike(a, b)))
        }
        _ => a == b,
    }
}

#[test]
fn recorded_run_replays_to_equal_reports() {
    let folder = here();
    let (code, live, err) = finish(folder.path(), &format!("{SHORT} --record --json"));
    assert_eq!(code, 0, "{err}");
    let live = json_lines(&live);
    let run = live[0]["run"].as_str().unwrap();
    let console = folder.path().join("runs").join(run).join("console");
    for file in ["record/000001.seg", "events.jsonl", "console.log", "experiment.toml"] {
        assert!(console.join(file).is_file(), "{file}");
    }
    let events = std::fs::read_to_string(console.join("events.jsonl")).unwrap();
    assert_eq!(json_lines(&events), live, "the recording holds what was printed");
    let (code, again, err) = finish(folder.path(), &format!("replay {run} --json"));
    assert_eq!(code, 0, "{err}");
    let again = json_lines(&again);
    assert_eq!(again.len(), live.len());
    for (again, live) in again.iter().zip(&live) {
        assert!(alike(again, live), "the same events make the same reports:\n{live}\n{again}");
    }
}
