//! Home over real SSH: hosts without a run, one session each, and a host that becomes unreachable.

use crate::support::hosts::Loopback;
use crate::support::stripped_console;
use crate::support::terminal::Terminal;
use crate::support::texts;

#[test]
fn home_watches_each_host_over_one_session() {
    let Some(mut hosts) = Loopback::start(2, 1).map(Loopback::with_agent) else { return };
    let config = hosts.bench.path().join("ssh_config");
    let cache = hosts.bench.path().join("cache");
    let envs =
        [("RANKDECK_SSH_CONFIG", config.to_str().unwrap()), ("RANKDECK_CACHE", cache.to_str().unwrap())];
    // --hosts without a command opens home.
    let file = hosts.hosts.display().to_string();
    let mut terminal = Terminal::start_in(
        hosts.bench.path(),
        stripped_console().to_str().unwrap(),
        &["--hosts", &file],
        &envs,
    );
    terminal.until_shows("3 fleet");
    terminal.send("3");
    let has_gauges =
        |t: &Terminal, name: &str| t.text().lines().any(|line| line.contains(name) && line.contains('%'));
    terminal.until("gauges of both hosts", |t| has_gauges(t, "h0") && has_gauges(t, "h1"));
    // CPU use over time.
    terminal.until("a history of both hosts", |t| {
        let spark = |c: char| "▁▂▃▄▅▆▇█".contains(c);
        let long = |line: &str| line.chars().filter(|c| spark(*c)).count() >= 4;
        t.text().lines().filter(|line| line.contains('%') && long(line)).count() == 2
    });
    for server in &hosts.servers {
        assert_eq!(server.logins(), 1, "{}", server.log());
    }
    hosts.servers[1].down();
    hosts.servers[1].kill_sessions();
    terminal.until("h1 is lost", |t| {
        has_gauges(t, "h0") && t.text().contains(&format!("h1 {}", texts::UNREACHABLE))
    });
    terminal.send("q");
    assert_eq!(terminal.wait(), 0);
    terminal.assert_restored();
}
