//! Links that stand: frames both ways, and what happens when something breaks.

use super::client::{Client, Nobody};
use crate::support::sshd::{Sshd, eventually, kill};
use rankdeck_link::ssh::exec;
use rankdeck_link::{LinkCommand, LinkRequest, Opening};
use rankdeck_proto::message::{AgentMessage, ConsoleMessage};
use rankdeck_types::host::Host;
use rankdeck_types::link_state::LinkState;
use std::time::{Duration, Instant};

#[test]
fn where_sockets_are_not_forwarded_a_relay_carries() {
    // One command at a time must do.
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
fn noise_of_start_files_is_skipped_on_every_transport() {
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

/// Asks the stand-in for many long lines, with a message that is long itself.
fn long_attach() -> ConsoleMessage {
    ConsoleMessage::Attach { protocol: 1, build: "x".repeat(200_000), after_seq: 0, log_tail: 64 }
}

#[test]
fn large_messages_pass_both_ways_on_every_transport() {
    // Keys exchanged anew every few packets: where libssh2 stalls when both directions are busy.
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
fn a_killed_session_is_lost_and_found_again_and_the_agent_is_the_same() {
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
fn a_server_that_comes_back_is_found_again() {
    let Some(mut server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let mut link = client.link(&server);
    link.ready();
    server.down();
    link.until(
        "refused",
        |state| matches!(state, LinkState::Lost { reason, .. } if reason.contains("connection refused")),
    );
    server.up();
    link.ready();
    link.talk(1);
    link.close();
}

#[test]
fn link_3_a_frozen_agent_is_lost_and_found_again_when_it_thaws() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let mut link = client.link(&server);
    link.ready();
    link.talk(1);
    kill(client.agent_pid(), libc::SIGSTOP);
    let began = Instant::now();
    link.until(
        "lost",
        |state| matches!(state, LinkState::Lost { reason, .. } if reason.contains("no sign of life")),
    );
    assert!(began.elapsed() >= rankdeck_link::carry::SILENCE / 2);
    kill(client.agent_pid(), libc::SIGCONT);
    link.ready();
    link.talk(2);
    link.close();
}

#[test]
fn dropping_the_handle_closes_and_a_deaf_driver_ends_the_link() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let mut link = client.link(&server);
    link.ready();
    let (handle, other) = (link.handle.clone(), link);
    drop(other);
    eventually("the link ends when nobody receives", || handle.commands.is_closed());
}

#[test]
fn the_agents_refusal_is_passed_through() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let host = Host { workdir: format!("{}/refuse", client.folder.display()), ..client.host(&server) };
    let mut link = client.open(client.request(host));
    assert_eq!(link.failed(), ("node1: no room for spool".into(), "free some".into()));
    let mut missing =
        client.open(LinkRequest { opening: Opening::Attach, ..client.request(client.host(&server)) });
    assert_eq!(missing.failed().0, "node1: no such run");
    assert!(client.calls()[0].ends_with(" --existing"));
}

/// A login shell that dawdles: the time until the command itself begins is bounded, measured, and called by
/// its name.
#[test]
fn a_command_that_does_not_begin_is_given_up_in_words() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let connection = client.connection(&server);
    let run = |command: &str, opening: Duration| {
        let opening = exec::StartMarker { marker: "BEGUN", within: opening };
        let within = Duration::from_secs(60);
        exec::run_from(&connection, &mut Nobody, (command, Some(opening)), &[], within, &|_| false)
    };
    let error = run("sleep 600", Duration::from_secs(1)).unwrap_err();
    assert!(error.cause.error.contains("node1: no command begins there within 1 s"), "{error}");
    assert!(error.cause.hint.contains(".bashrc"), "{}", error.cause.hint);
    let output = run("echo noise; sleep 2; echo BEGUN; echo END of it", Duration::from_secs(60)).unwrap();
    assert_eq!((output.after("END").as_deref(), output.status), (Some("of it"), Some(0)));
    // The shell begins a moment before its time is taken here.
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
        let connection = rankdeck_link::ssh::connect::connect(&target, &mut Nobody).unwrap();
        let took = began.elapsed();
        drop(connection);
        took
    });
    let connection = rankdeck_link::ssh::connect::connect(&target, &mut Nobody).unwrap();
    report("command on an open session", &|| {
        let began = Instant::now();
        let within = std::time::Duration::from_secs(10);
        rankdeck_link::ssh::exec::run(&connection, &mut Nobody, "echo ok", &[], within, &|_| false).unwrap();
        began.elapsed()
    });
}
