//! The screen of a run with real processes: search in the hosts' files, a live evaluation, and a relaunch.

use crate::support::terminal::Terminal;
use crate::support::texts;
use crate::support::{Bench, wait_until};

const RANKDECK: &str = env!("CARGO_BIN_EXE_rankdeck");

fn terminal(bench: &Bench, words: &[&str]) -> Terminal {
    Terminal::start_in(bench.path(), RANKDECK, words, &[])
}

/// `N` leads to lines that left the console's memory long ago, `enter` to the lines of all ranks around them.
fn search(terminal: &mut Terminal) {
    terminal.send("4/needle\r");
    terminal.until_shows("/needle");
    terminal.send("N");
    terminal.until("the last match", |t| t.text().contains("2 of 2") && t.text().contains("12,004"));
    assert!(terminal.text().contains("a needle of 1"), "{}", terminal.text());
    terminal.send("N");
    terminal.until_shows("1 of 2");
    terminal.send("\r");
    terminal.until("lines of all ranks", |t| {
        let text = t.text();
        ["0 │ a needle of 0", "0 │ line 1 of many", "0 │ before it"].iter().all(|line| text.contains(line))
    });
    terminal.send("\x1b");
    terminal.until_shows("1 of 2");
    terminal.send("\x1b");
    terminal.until("no match of the hosts", |t| !t.text().contains("1 of 2"));
    terminal.send("\x1b");
    terminal.until("all lines", |t| !t.text().contains("/needle"));
}

#[test]
fn search_finds_evicted_lines_in_the_hosts_files() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    let (go, printed) = (bench.path().join("go"), bench.path().join("printed"));
    let script = format!(
        // No faster than a busy machine receives them: lost lines push nothing out.
        "echo before it; echo a needle of $RANK; \
         for first in $(seq 1 100 6000); do seq -f 'line %g of many' $first $((first + 99)); sleep 0.1; done; \
         touch {}.$RANK; until [ -e {} ]; do sleep 0.1; done",
        printed.display(),
        go.display()
    );
    let text = format!(
        "[run]\nname = \"talk\"\n[launch]\nstop_grace_s = 1.0\ncommand = [\"/bin/sh\", \"-c\", {script:?}]\n"
    );
    let experiment = bench.write("experiment.toml", &text);
    let (experiment, hosts) = (experiment.to_str().unwrap(), hosts.to_str().unwrap());
    let mut live = terminal(&bench, &["run", experiment, "--hosts", hosts]);
    wait_until("both ranks have printed all", 60, || {
        (0..2).all(|rank| bench.path().join(format!("printed.{rank}")).exists())
    });
    live.until_shows("line 6000 of many");
    search(&mut live);
    std::fs::write(&go, "").unwrap();
    live.until_shows(texts::SUCCEEDED);
    search(&mut live);
    live.send("q");
    assert_eq!(live.wait(), 0);
    let run = std::fs::read_dir(bench.path().join("runs")).unwrap().next().unwrap().unwrap().file_name();
    let mut later = terminal(&bench, &["attach", run.to_str().unwrap(), "--hosts", hosts, "--read-only"]);
    later.until_shows(texts::SUCCEEDED);
    search(&mut later);
    later.send("q");
    assert_eq!(later.wait(), 0);
    let mut replay = terminal(&bench, &["replay", run.to_str().unwrap()]);
    replay.until_shows(texts::SUCCEEDED);
    replay.send("4/needle\r");
    replay.until_shows("/needle");
    let before = replay.text();
    replay.send("N");
    replay.until("a reason", |t| t.text() != before);
    assert!(!replay.text().contains(" of 2"), "hosts are not searched: {}", replay.text());
    replay.send("q");
    replay.wait();
}

#[test]
fn running_evaluation_is_shown_live() {
    let bench = Bench::new();
    let Some(_) = crate::support::trainer() else { return };
    let hosts = bench.local_hosts(1, 2);
    // One environment after the other, so that the first evaluation takes a while.
    let experiment = bench.write(
        "watched.toml",
        "[run]\nname = 'watched'\ntotal_steps = 10_000_000\n[env]\nid = 'CartPole-v1'\nnum_envs = 8\n\
         [learn]\nalgorithm = 'ppo'\n[eval]\nevery = 2\nepisodes = 5000\nnum_envs = 1\n",
    );
    let words =
        ["--hosts", hosts.to_str().unwrap(), "run", experiment.to_str().unwrap(), "--glyphs", "ascii"];
    let mut terminal = Terminal::start_in(bench.path(), env!("CARGO_BIN_EXE_rankdeck"), &words, &[]);
    terminal.until_shows("watched-");
    terminal.send("v");
    terminal.until("a step of the evaluation", |t| {
        let text = t.text();
        text.contains("CartPole-v1") && text.contains("5000")
    });
    let first = terminal.text();
    let place = |text: &str| text.lines().find(|line| line.contains("5000")).map(str::to_owned);
    terminal.until("another step", |t| place(&t.text()).is_some_and(|now| Some(now) != place(&first)));
    terminal.send("v");
    terminal.until("the run again", |t| !t.text().contains("5000"));
    terminal.signal(libc::SIGTERM);
    assert_eq!(terminal.wait(), 130);
    terminal.assert_restored();
}

#[test]
fn relaunch_form_keeps_changes_and_shows_the_plan() {
    let bench = Bench::new();
    let hosts = bench.local_hosts(1, 2);
    let experiment = bench.program(&["--iters", "3"]);
    let binary = env!("CARGO_BIN_EXE_rankdeck");
    let hosts = hosts.to_str().unwrap();
    let set = "launch.stop_grace_s=2.5";
    let words = ["--hosts", hosts, "run", experiment.to_str().unwrap(), "--set", set];
    let mut terminal = Terminal::start_in(bench.path(), binary, &words, &[]);
    terminal.until_shows(texts::RELAUNCH);
    terminal.send("n");
    // The same file and changes, which can be changed again, and the resulting plan.
    terminal.until("the launch", |t| {
        let text = t.text();
        text.contains("experiment.toml") && text.contains(set) && text.contains("world_size 2")
    });
    terminal.send("\x1b");
    terminal.until("home without it", |t| !t.text().contains(set));
    terminal.send("q");
    assert_eq!(terminal.wait(), 0, "as the run has ended");
    terminal.assert_restored();
    // A console that attaches later reads it from the recording of the first.
    let words = ["--hosts", hosts, "attach", "program"];
    let mut terminal = Terminal::start_in(bench.path(), binary, &words, &[]);
    terminal.until_shows(texts::ENDED);
    terminal.send("7n");
    terminal.until_shows(set);
    terminal.send("\x1b");
    terminal.until("home", |t| !t.text().contains(set));
    terminal.send("q");
    terminal.wait();
    terminal.assert_restored();
}
