//! From the end of a run to another one like it.

use crate::support::Bench;
use crate::support::terminal::Terminal;

#[test]
fn a_run_like_the_one_that_is_over_is_prepared_with_its_changes_and_its_plan() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    let experiment = bench.program(&["--iters", "3"]);
    let binary = env!("CARGO_BIN_EXE_rankdeck");
    let hosts = hosts.to_str().unwrap();
    let set = "launch.stop_grace_s=2.5";
    let words = ["--hosts", hosts, "run", experiment.to_str().unwrap(), "--set", set];
    let mut terminal = Terminal::start_in(bench.path(), binary, &words, &[]);
    terminal.until_shows("a new run like this one");
    terminal.send("n");
    // The same file and changes, which can be changed again, and what they come to.
    terminal.until("the launch", |t| {
        let text = t.text();
        text.contains("experiment.toml") && text.contains(set) && text.contains("world_size 2")
    });
    terminal.send("\x1b");
    terminal.until("home without it", |t| !t.text().contains(set));
    terminal.send("q");
    assert_eq!(terminal.wait(), 0, "as the run has ended");
    terminal.assert_restored();
    // A console that comes later knows it from the record of the first.
    let words = ["--hosts", hosts, "attach", "program"];
    let mut terminal = Terminal::start_in(bench.path(), binary, &words, &[]);
    terminal.until_shows("the run is over");
    terminal.send("7n");
    terminal.until_shows(set);
    terminal.send("\x1b");
    terminal.until("home", |t| !t.text().contains(set));
    terminal.send("q");
    terminal.wait();
    terminal.assert_restored();
}
