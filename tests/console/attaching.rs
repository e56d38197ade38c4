//! The screen of a run that ends stays, and `attach` without a name finds what is meant.

use crate::support::Bench;
use crate::support::terminal::Terminal;
use std::process::{Command, Output};

const RANKDECK: &str = env!("CARGO_BIN_EXE_rankdeck");

fn bench() -> Bench {
    let bench = Bench::new();
    bench.local_hosts(1, 1);
    bench
}

fn call(bench: &Bench, args: &[&str]) -> Output {
    Command::new(RANKDECK).args(args).current_dir(bench.path()).output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A run that goes on by itself; its whole name.
fn launched(bench: &Bench, name: &str) -> String {
    let endless = ["--", "sh", "-c", "echo hello; while :; do sleep 1; done"];
    let output = call(bench, &[&["run", "--detach", "--name", name][..], &endless].concat());
    assert!(output.status.success(), "{}", errors(&output));
    let runs = std::fs::read_dir(bench.path().join("runs")).unwrap().flatten();
    let names = runs.filter_map(|entry| entry.file_name().into_string().ok());
    names.into_iter().find(|run| run.starts_with(name)).unwrap()
}

#[test]
fn the_screen_of_a_run_stays_when_it_ends_until_a_key_and_says_how_to_look_again() {
    for (command, code, word) in [("echo hello", 0, "succeeded"), ("echo hello; exit 3", 1, "failed")] {
        let bench = bench();
        let mut terminal =
            Terminal::start_in(bench.path(), RANKDECK, &["run", "--", "sh", "-c", command], &[]);
        terminal.until_shows("the run is over");
        assert!(terminal.alternate() && terminal.text().contains(word), "{}", terminal.text());
        terminal.send("4");
        terminal.until_shows("hello");
        terminal.send("q");
        assert_eq!(terminal.wait(), code);
        terminal.assert_restored();
        terminal.until_shows("`rankdeck replay ");
    }
}

#[test]
fn attach_offers_a_list_of_the_runs_that_may_be_meant_and_says_which_in_a_pipe() {
    let bench = bench();
    let [first, second] = ["walker", "hopper"].map(|name| launched(&bench, name));
    let output = call(&bench, &["attach"]);
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for part in ["which one?", first.as_str(), second.as_str(), "hint: give the run's name"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let mut terminal = Terminal::start_in(bench.path(), RANKDECK, &["attach"], &[]);
    terminal.until("both runs", |t| {
        let text = t.text();
        text.contains("which run?") && text.contains(&first) && text.contains(&second)
    });
    terminal.send("\x1b");
    assert_eq!(terminal.wait(), 2, "none of them");
    let mut terminal = Terminal::start_in(bench.path(), RANKDECK, &["attach"], &[]);
    terminal.until_shows(&first);
    // The newest comes first.
    terminal.send("j\r");
    terminal.until("its screen", |t| t.alternate() && t.text().contains("gen 0, adopted"));
    assert!(terminal.text().contains(&first), "{}", terminal.text());
    terminal.send("D");
    assert_eq!(terminal.wait(), 0);
    for run in [&first, &second] {
        assert!(call(&bench, &["stop", run]).status.success());
    }
    // Nothing runs: on a terminal those that are over are there to look at.
    let said = errors(&call(&bench, &["attach"]));
    assert!(said.contains("nothing runs") && said.contains("hint: name a finished run"), "{said}");
    let mut terminal = Terminal::start_in(bench.path(), RANKDECK, &["attach"], &[]);
    terminal.until("finished runs", |t| t.text().contains("finished") && t.text().contains(&second));
    terminal.send("\r");
    terminal.until_shows("the run is over");
    terminal.send("q");
    terminal.wait();
    terminal.assert_restored();
}

#[test]
fn attach_where_no_run_has_ever_been_says_so() {
    let bench = bench();
    let mut terminal = Terminal::start_in(bench.path(), RANKDECK, &["attach"], &[]);
    assert_eq!(terminal.wait(), 2);
    terminal.until_shows("nothing runs on these hosts");
    terminal.until_shows("hint: ");
}
