//! A console whose output is not read still does its work for the run.

use crate::support::terminal::Terminal;
use crate::support::texts;
use crate::support::{Bench, kill, rankdeck, wait_until};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

const POLICY: &str = "[restart]\nmax_restarts = 5\nbackoff_s = 0.1\n";

/// An experiment with a policy.
fn with_policy(bench: &Bench, args: &[&str]) -> String {
    let experiment = bench.program(args);
    let text = std::fs::read_to_string(&experiment).unwrap();
    std::fs::write(&experiment, text + POLICY).unwrap();
    experiment.to_str().unwrap().to_owned()
}

/// Pid of the only rank, once it is another one than `before`.
fn rank(bench: &Bench, before: u32) -> u32 {
    let mut found = 0;
    wait_until("a rank", 60, || {
        let ranks = bench.rank_processes();
        // Not what a version manager starts on the way to Python.
        let is_python =
            |command: &str| command.split(' ').next().is_some_and(|word| word.ends_with("python3"));
        found = ranks.iter().find(|(_, command)| is_python(command)).map_or(0, |(pid, _)| *pid);
        found != 0 && found != before
    });
    found
}

#[test]
fn unread_terminal_delays_no_restart() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let experiment = with_policy(&bench, &["--iters", "1000000"]);
    let words = ["--hosts", hosts.to_str().unwrap(), "run", &experiment, "--glyphs", "ascii"];
    let mut terminal = Terminal::start_in(bench.path(), env!("CARGO_BIN_EXE_rankdeck"), &words, &[]);
    terminal.until_shows("gen 0");
    let first = rank(&bench, 0);
    terminal.fill();
    kill(first, libc::SIGKILL);
    let second = rank(&bench, first);
    // What happens is recorded meanwhile.
    let events = || {
        let runs = std::fs::read_dir(bench.path().join("runs")).into_iter().flatten().flatten();
        let files = runs.map(|run| run.path().join("console/events.jsonl"));
        files.filter_map(|file| std::fs::read_to_string(file).ok()).collect::<String>()
    };
    let is_recorded = |line: &str| {
        serde_json::from_str::<Value>(line)
            .is_ok_and(|event| event["kind"] == "run_started" && event["generation"] == 1)
    };
    wait_until("a record of generation 1", 60, || events().lines().any(is_recorded));
    assert!(terminal.is_stuck(), "its output is unread");
    terminal.read(true);
    terminal.until("the latest state", |terminal| {
        let text = terminal.text();
        text.contains("gen 1") && !text.contains("gen 0")
    });
    // Whole: a screen that is drawn again has the same words.
    terminal.send("?");
    terminal.until_shows(texts::ESC_CLOSES);
    terminal.send("\x1b");
    terminal.until("the page again", |terminal| !terminal.text().contains(texts::ESC_CLOSES));

    // It is left in the end, although it does not read.
    terminal.fill();
    terminal.signal(libc::SIGTERM);
    assert_eq!(terminal.wait(), 130);
    terminal.read(true);
    terminal.assert_restored();
    assert!(!bench.rank_processes().iter().any(|(pid, _)| *pid == second));
}

/// LINES-1, LINES-3, TERM-3.
#[test]
fn unread_lines_delay_no_restart() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 1);
    let program = "import time\nfor i in range(1 << 30):\n print('x' * 100, flush=True)\n if i % 20 == 0: time.sleep(0.01)";
    let command =
        format!("[run]\nname = 'flood'\n[launch]\ncommand = ['python3', '-c', {program:?}]\n{POLICY}");
    let experiment = bench.write("flood.toml", &command);
    let mut console = rankdeck();
    console.args(["run", experiment.to_str().unwrap(), "--hosts", hosts.to_str().unwrap(), "--json"]);
    // stderr is full from the beginning, and stays so.
    let (_unread, mut full) = std::io::pipe().unwrap();
    full.write_all(&[b'x'; 1 << 16]).unwrap();
    console.current_dir(bench.path()).stdout(Stdio::piped()).stderr(full);
    let mut console = console.spawn().unwrap();
    let mut before = rank(&bench, 0);
    // Each line of a rank is a line here: far more than a pipe holds.
    let log = || {
        let runs = std::fs::read_dir(bench.path().join("runs")).into_iter().flatten().flatten();
        let files = runs.flat_map(|run| walk(&run.path()));
        files.filter(|(path, _)| path.ends_with("rank0.log")).map(|(_, size)| size).max().unwrap_or(0)
    };
    wait_until("a megabyte of lines", 60, || log() > 1 << 20);
    for _ in 0..2 {
        kill(before, libc::SIGKILL);
        before = rank(&bench, before);
    }
    kill(console.id(), libc::SIGINT);
    let lines = BufReader::new(console.stdout.take().unwrap()).lines();
    let lines: Vec<Value> = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert_eq!(console.wait().unwrap().code(), Some(130));
    let count = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).count();
    assert!(
        count("run_started") >= 2 && count("restart") >= 2,
        "{} {}",
        count("run_started"),
        count("restart")
    );
    assert_eq!(lines.last().map(|line| line["kind"].clone()), Some("run_finished".into()));
    assert!(bench.rank_processes().is_empty());
}

/// Files below a folder, with their sizes.
fn walk(folder: &std::path::Path) -> Vec<(String, u64)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .flat_map(|entry| match entry.metadata() {
            Ok(facts) if facts.is_dir() => walk(&entry.path()),
            Ok(facts) => vec![(entry.path().display().to_string(), facts.len())],
            Err(_) => Vec::new(),
        })
        .collect()
}
