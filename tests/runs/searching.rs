//! A search on the log's page goes on in the hosts' files: while the run runs, after its end, and of another
//! console.

use crate::support::terminal::Terminal;
use crate::support::{Bench, wait_until};

const RANKDECK: &str = env!("CARGO_BIN_EXE_rankdeck");

fn terminal(bench: &Bench, words: &[&str]) -> Terminal {
    Terminal::start_in(bench.path(), RANKDECK, words, &[])
}

/// `N` leads to lines that left the console's memory long ago, `enter` to the lines of all ranks around them.
fn search(terminal: &mut Terminal) {
    terminal.send("4/needle\r");
    terminal.until_shows("no line that is held here matches");
    terminal.send("N");
    terminal.until_shows("match 2 of 2 in 12,004 lines on the hosts");
    assert!(terminal.text().contains("a needle of 1"), "{}", terminal.text());
    terminal.send("N");
    terminal.until_shows("match 1 of 2");
    terminal.send("\r");
    terminal.until_shows("lines around");
    terminal.until("lines of all ranks", |t| {
        let text = t.text();
        ["0 │ a needle of 0", "0 │ line 1 of many", "0 │ before it"].iter().all(|line| text.contains(line))
    });
    terminal.send("\x1b");
    terminal.until_shows("match 1 of 2");
    terminal.send("\x1b");
    terminal.until_shows("no line that is held here matches");
    terminal.send("\x1b");
    terminal.until("all lines", |t| !t.text().contains("/needle") && t.text().contains("following"));
}

#[test]
fn lines_that_left_the_console_long_ago_are_found_in_the_hosts_files() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    let (go, told) = (bench.path().join("go"), bench.path().join("told"));
    let script = format!(
        // No faster than a busy machine takes them in: what is lost on the way pushes nothing out here.
        "echo before it; echo a needle of $RANK; \
         for first in $(seq 1 100 6000); do seq -f 'line %g of many' $first $((first + 99)); sleep 0.1; done; \
         touch {}.$RANK; until [ -e {} ]; do sleep 0.1; done",
        told.display(),
        go.display()
    );
    let text = format!(
        "[run]\nname = \"talk\"\n[launch]\nstop_grace_s = 1.0\ncommand = [\"/bin/sh\", \"-c\", {script:?}]\n"
    );
    let experiment = bench.write("experiment.toml", &text);
    let (experiment, hosts) = (experiment.to_str().unwrap(), hosts.to_str().unwrap());
    let mut live = terminal(&bench, &["run", experiment, "--hosts", hosts]);
    wait_until("both ranks have printed all", 60, || {
        (0..2).all(|rank| bench.path().join(format!("told.{rank}")).exists())
    });
    live.until_shows("line 6000 of many");
    search(&mut live);
    std::fs::write(&go, "").unwrap();
    live.until_shows("the run is over");
    search(&mut live);
    live.send("q");
    assert_eq!(live.wait(), 0);
    let run = std::fs::read_dir(bench.path().join("runs")).unwrap().next().unwrap().unwrap().file_name();
    let mut later = terminal(&bench, &["attach", run.to_str().unwrap(), "--hosts", hosts, "--read-only"]);
    later.until_shows("the run is over");
    search(&mut later);
    later.send("q");
    assert_eq!(later.wait(), 0);
    let mut replay = terminal(&bench, &["replay", run.to_str().unwrap()]);
    replay.until_shows("the run is over");
    replay.send("4/needle\r");
    replay.until_shows("/needle");
    replay.send("N");
    replay.until_shows("only what the record holds");
    replay.send("q");
    replay.wait();
}
