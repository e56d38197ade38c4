//! Bare `rankdeck` in a real terminal: home, a launch from it, the run's screen and back, the stop.

use crate::support::Bench;
use crate::support::terminal::Terminal;
use std::process::Command;

const RANKDECK: &str = env!("CARGO_BIN_EXE_rankdeck");

/// One local host of two ranks, and an experiment that goes on until it is stopped.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.local_hosts(1, 2);
    std::fs::create_dir(bench.path().join("configs")).unwrap();
    let text = "[run]\nname = \"endless\"\nnote = \"from home\"\n[launch]\n\
                command = [\"sh\", \"-c\", \"echo hello; while :; do sleep 1; done\"]\n";
    bench.write("configs/endless.toml", text);
    bench
}

#[test]
fn a_run_is_launched_left_found_and_stopped_from_home() {
    let bench = bench();
    let mut terminal = Terminal::start_in(bench.path(), RANKDECK, &[], &[]);
    terminal.until_shows("no runs yet");
    terminal.send("2");
    terminal.until_shows("configs/endless.toml");
    terminal.until_shows("world_size 2");
    terminal.send("\r");
    terminal.until_shows("launch configs/endless.toml");
    terminal.send("run.note=changed");
    terminal.until_shows("run.note=changed");
    terminal.send("\r");
    terminal.until("the run's screen", |t| t.text().contains("hello") && t.text().contains("ranks 2"));
    terminal.send("q");
    terminal.until_shows("1 running");
    terminal.send("1");
    terminal.until("the run, with its note", |t| {
        let text = t.text();
        text.contains("● running") && text.contains("changed")
    });
    terminal.send("\r");
    // Home shows the command, `hello` in it, too.
    terminal.until_shows("gen 0, adopted");
    terminal.send("q");
    terminal.until_shows("1 runs 1");
    terminal.send("x");
    terminal.until_shows("stop it?");
    terminal.send("y");
    terminal.until("the end", |t| t.text().contains("stopped") && t.text().contains("0 running"));
    terminal.send("o");
    terminal.until_shows("no process is left on 1 host");
    // Any key closes what was said; the next one leaves.
    terminal.send("q");
    terminal.until("the page under what was said", |t| !t.text().contains("no process is left"));
    terminal.send("q");
    assert_eq!(terminal.wait(), 0);
    terminal.assert_restored();
}

#[test]
fn sigterm_gives_the_terminal_back() {
    let bench = bench();
    let mut terminal = Terminal::start_in(bench.path(), RANKDECK, &[], &[]);
    terminal.until_shows("no runs yet");
    terminal.signal(libc::SIGTERM);
    assert_eq!(terminal.wait(), 0);
    terminal.assert_restored();
}

#[test]
fn without_a_terminal_there_is_the_help() {
    let output = Command::new(RANKDECK).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("Usage: rankdeck"));
    let output = Command::new(RANKDECK).arg("home").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("hint: `rankdeck ps`"));
}
