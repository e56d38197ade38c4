//! Home over real SSH: hosts without any run, one session each, and a host that goes away.

use crate::support::hosts::Loopback;
use crate::support::stripped_console;
use crate::support::terminal::Terminal;

#[test]
fn hosts_are_watched_over_one_session_each_and_one_that_goes_is_said() {
    let Some(mut hosts) = Loopback::start(2, 1).map(Loopback::with_agent) else { return };
    let config = hosts.bench.path().join("ssh_config");
    let cache = hosts.bench.path().join("cache");
    let envs =
        [("RANKDECK_SSH_CONFIG", config.to_str().unwrap()), ("RANKDECK_CACHE", cache.to_str().unwrap())];
    // Its name is not looked for: --hosts alone is home, too.
    let file = hosts.hosts.display().to_string();
    let mut terminal = Terminal::start_in(
        hosts.bench.path(),
        stripped_console().to_str().unwrap(),
        &["--hosts", &file],
        &envs,
    );
    terminal.until_shows("no runs yet");
    terminal.send("3");
    let told = |t: &Terminal, name: &str| {
        t.text().lines().any(|line| line.contains(name) && line.contains('%') && line.contains("idle"))
    };
    terminal.until("gauges of both hosts", |t| told(t, "h0") && told(t, "h1"));
    // More than one look: the use of CPUs over time.
    terminal.until("a history of both hosts", |t| {
        let spark = |c: char| "▁▂▃▄▅▆▇█".contains(c);
        let long = |line: &str| line.chars().filter(|c| spark(*c)).count() >= 4;
        t.text().lines().filter(|line| line.contains("idle") && long(line)).count() == 2
    });
    for server in &hosts.servers {
        assert_eq!(server.logins(), 1, "one session: {}", server.log());
    }
    hosts.servers[1].down();
    hosts.servers[1].kill_sessions();
    terminal.until_shows("h1 does not answer");
    terminal.until("the other goes on", |t| told(t, "h0"));
    terminal.send("q");
    assert_eq!(terminal.wait(), 0);
    terminal.assert_restored();
}
