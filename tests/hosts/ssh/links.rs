//! Open links: frames both ways, and failures.

use super::client::{Client, NonInteractive};
use crate::support::sshd::{Sshd, eventually, kill};
use rankdeck_link::ssh::exec;
use rankdeck_link::{LinkCommand, LinkRequest, NoAgentPolicy};
use rankdeck_proto::message::{AgentMessage, ConsoleMessage};
use rankdeck_types::host::Host;
use rankdeck_types::link_state::LinkState;
use std::time::{Duration, Instant};

#[test]
fn relay_carries_link_without_socket_forwarding() {
    // One command at a time must suffice.
    let Some(server) = Sshd::start("AllowStreamLocalForwarding no\nMaxSessions 1") else { return };
    let client = Client::of(&server);
    let mut link = client.link(&server);
    link.ready();
    assert_eq!(link.attempts(), 1, "{:?}", link.states);
    link.talk(7);
    assert!(client.calls().contains(&"relay".to_string()), "{:?}", client.calls());
    assert!(server.kill_sessions());
    link.until("lost", |state| matches!(state, LinkState::Lost { .. }));
    link.ready();
    link.talk(8);
    link.close();
}

#[test]
fn start_file_output_is_skipped_on_every_transport() {
    let noise = "ForceCommand echo Welcome; echo 'RANKDECK is installed here' >&2; echo RANKDECK; eval \"$SSH_ORIGINAL_COMMAND\"";
    for more in ["", "\nAllowStreamLocalForwarding no"] {
        let Some(server) = Sshd::start(&format!("{noise}{more}")) else { return };
        let client = Client::of(&server);
        let mut link = client.link(&server);
        link.ready();
        link.talk(7);
        link.close();
    }
}

/// Returns a long message that requests many long lines from the fake agent.
fn long_attach() -> ConsoleMessage {
    ConsoleMessage::Attach { protocol: 1, build: "x".repeat(200_000), after_seq: 0, log_tail: 64 }
}

#[test]
fn large_messages_pass_both_ways_on_every_transport() {
    // Keys are re-exchanged every few packets: libssh2 stalls then if both directions are busy.
    for extra in [
        "",
        "AllowStreamLocalForwarding no",
        "RekeyLimit 128K",
        "RekeyLimit 128K\nAllowStreamLocalForwarding no",
    ] {
        let Some(server) = Sshd::start(extra) else { return };
        let client = Client::of(&server);
        let mut link = client.link(&server);
        link.ready();
        link.order(LinkCommand::Send(long_attach()));
        link.message("the last line", |message| matches!(message, AgentMessage::Log { first: 64, .. }));
        let lines = link
            .messages
            .iter()
            .filter(|message| matches!(message, AgentMessage::Log { lines, .. } if lines[0].len() == 65536));
        assert_eq!(lines.count(), 64);
        link.close();
    }
}

#[test]
fn link_reconnects_to_same_agent_after_killed_session() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let mut link = client.link(&server);
    link.ready();
    link.talk(1);
    let agent = client.agent_pid();
    for number in 2..4 {
        assert!(server.kill_sessions());
        let lost = link.until("lost", |state| matches!(state, LinkState::Lost { .. }));
        let LinkState::Lost { reason, retry_ms } = lost else { unreachable!() };
        assert!(!reason.is_empty() && (300..=1000).contains(&retry_ms), "{reason} {retry_ms}");
        link.ready();
        link.talk(number);
    }
    assert_eq!(client.agent_pid(), agent);
    link.close();
}

#[test]
fn link_reconnects_when_server_is_back() {
    let Some(mut server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let mut link = client.link(&server);
    link.ready();
    server.down();
    // The connection ends, and the next one is refused.
    for _ in 0..2 {
        link.until("lost", |state| matches!(state, LinkState::Lost { .. }));
    }
    server.up();
    link.ready();
    link.talk(1);
    link.close();
}

#[test]
fn link_3_stopped_agent_is_lost_until_it_continues() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let mut link = client.link(&server);
    link.ready();
    link.talk(1);
    kill(client.agent_pid(), libc::SIGSTOP);
    let began = Instant::now();
    link.until("lost", |state| matches!(state, LinkState::Lost { .. }));
    assert!(began.elapsed() >= rankdeck_link::SILENCE / 2);
    kill(client.agent_pid(), libc::SIGCONT);
    link.ready();
    link.talk(2);
    link.close();
}

#[test]
fn dropped_receiver_ends_link() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let mut link = client.link(&server);
    link.ready();
    let (handle, other) = (link.handle.clone(), link);
    drop(other);
    eventually("the link ends without a receiver", || handle.commands.is_closed());
}

#[test]
fn error_of_agent_is_passed_on() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let host = Host { workdir: format!("{}/refuse", client.folder.display()), ..client.host(&server) };
    let mut link = client.open(client.request(host));
    assert_eq!(link.failed(), ("node1: no room for spool".into(), "free some".into()));
    let mut missing =
        client.open(LinkRequest { no_agent: NoAgentPolicy::Attach, ..client.request(client.host(&server)) });
    assert_eq!(missing.failed().0, "node1: no such run");
    assert!(client.calls()[0].ends_with(" --existing"));
}

/// The time until the login shell starts the command is bounded, measured and named.
#[test]
fn slow_login_shell_times_out() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let connection = client.connection(&server);
    let run = |command: &str, opening: Duration| {
        let opening = exec::StartMarker { marker: "BEGUN", within: opening };
        let within = Duration::from_secs(60);
        exec::run_from(&connection, &mut NonInteractive, (command, opening), &[], within, &|_| false)
    };
    let error = run("sleep 600", Duration::from_secs(1)).unwrap_err();
    assert!(error.cause.error.starts_with("node1") && error.cause.hint.contains(".bashrc"), "{error}");
    let output = run("echo noise; sleep 2; echo BEGUN; echo END of it", Duration::from_secs(60)).unwrap();
    assert_eq!((output.after("END").as_deref(), output.status), (Some("of it"), Some(0)));
    // The shell starts a moment before the measurement.
    assert!(output.opened.unwrap() >= Duration::from_millis(1500), "{:?}", output.opened);
}

#[test]
#[ignore = "not a test but a measurement: cargo test --test hosts -- --ignored --nocapture latency"]
fn latency_of_logins_and_links() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let link = || {
        let began = Instant::now();
        let mut link = client.link(&server);
        link.ready();
        let took = began.elapsed();
        link.close();
        took
    };
    let report = |what: &str, measure: &dyn Fn() -> std::time::Duration| {
        let mut times: Vec<_> = (0..20).map(|_| measure()).collect();
        times.sort();
        println!("{what}: p50 {:?}, worst {:?}", times[10], times[19]);
    };
    println!("first link, with upload: {:?}", link());
    report("link to a host that has the agent", &link);
    report("`ssh -G`", &|| {
        let began = Instant::now();
        rankdeck_link::ssh::user_config::resolve(&client.host(&server), client.links().ssh_config.as_deref())
            .unwrap();
        began.elapsed()
    });
    let target =
        rankdeck_link::ssh::user_config::resolve(&client.host(&server), client.links().ssh_config.as_deref())
            .unwrap();
    report("login", &|| {
        let began = Instant::now();
        let connection = rankdeck_link::ssh::connection::connect(&target, &mut NonInteractive).unwrap();
        let took = began.elapsed();
        drop(connection);
        took
    });
    let connection = rankdeck_link::ssh::connection::connect(&target, &mut NonInteractive).unwrap();
    report("command on an open session", &|| {
        let began = Instant::now();
        let within = std::time::Duration::from_secs(10);
        rankdeck_link::ssh::exec::run(&connection, &mut NonInteractive, "echo ok", within, &|_| false)
            .unwrap();
        began.elapsed()
    });
}
