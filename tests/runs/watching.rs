//! The policy in rank 0's evaluation, on the screen while it goes on.

use crate::support::Bench;
use crate::support::terminal::Terminal;

#[test]
fn who_looks_sees_the_policy_in_the_evaluation_that_goes_on() {
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
        text.contains("* live") && text.contains("ppo on CartPole-v1") && text.contains(" of 5000")
    });
    let first = terminal.text();
    assert!(first.contains("action: probability") && first.contains("sees  0"), "{first}");
    let place = |text: &str| text.lines().find(|line| line.contains("of 5000")).map(str::to_owned);
    terminal.until("another step", |t| place(&t.text()).is_some_and(|now| Some(now) != place(&first)));
    terminal.send("v");
    terminal.until("the run again", |t| !t.text().contains("of 5000"));
    terminal.signal(libc::SIGTERM);
    assert_eq!(terminal.wait(), 130);
    terminal.assert_restored();
}
