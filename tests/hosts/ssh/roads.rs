//! Deployment, frames both ways, and what happens when things break.

use super::desk::{Answers, Client, Nobody};
use crate::support::sshd::{Sshd, eventually, kill};
use rankdeck_link::ssh::exec;
use rankdeck_link::{LinkCommand, LinkRequest, Opening};
use rankdeck_proto::message::{AgentMessage, ConsoleMessage};
use rankdeck_types::host::Host;
use rankdeck_types::link_state::LinkState;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Files below the host's cache folder, relative, sorted.
fn cached(server: &Sshd) -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![server.folder.join("cache")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.path().is_dir() {
                true => folders.push(entry.path()),
                false => files.push(
                    entry.path().strip_prefix(server.folder.join("cache")).unwrap().display().to_string(),
                ),
            }
        }
    }
    files.sort();
    files
}

#[test]
fn the_agent_is_uploaded_once_and_frames_pass_both_ways() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let mut first = client.link(&server);
    first.ready();
    first.talk(7);
    assert_eq!(first.uploads(), ["rankdeck"]);
    let size = fs::metadata(client.agent()).unwrap().len();
    assert!(
        first.states.contains(&LinkState::Uploading { what: "rankdeck".into(), done: size, total: size }),
        "{:?}",
        first.states
    );
    let files = cached(&server);
    assert_eq!(files.len(), 1, "{files:?}");
    let there = server.folder.join("cache").join(&files[0]);
    assert_eq!(fs::read(&there).unwrap(), fs::read(client.agent()).unwrap());
    assert_eq!(fs::metadata(&there).unwrap().permissions().mode() & 0o777, 0o755);

    let mut second = client.link(&server);
    second.ready();
    second.talk(8);
    assert!(second.uploads().is_empty(), "{:?}", second.states);
    let calls = client.calls();
    assert_eq!(calls.len(), 2, "{calls:?}");
    let workdir = client.workdir().display().to_string();
    let expected =
        format!("agent start --run it's-a-run --host node1 --node-rank 0 --workdir {workdir} --launcher ");
    assert!(calls[0].starts_with(&expected), "{calls:?}");
    assert_eq!(calls[0], calls[1], "one console is one launcher");
    first.close();
    second.close();
}

#[test]
fn the_trainer_lies_beside_its_agent_and_the_agent_is_not_sent_twice() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let mut plain = client.link(&server);
    assert_eq!(plain.ready().trainer, None);
    plain.close();
    let trainer = client.folder.join("trainer");
    fs::write(&trainer, "the trainer").unwrap();
    let request =
        LinkRequest { trainer_binary: Some(trainer.clone()), ..client.request(client.host(&server)) };
    let mut link = client.open(request);
    let found = PathBuf::from(link.ready().trainer.unwrap());
    assert_eq!(link.uploads(), ["rankdeck-trainer"]);
    assert_eq!(fs::read_to_string(&found).unwrap(), "the trainer");
    assert!(found.parent().unwrap().join("rankdeck").exists());
    assert_eq!(cached(&server).len(), 3);
    link.close();
}

#[test]
fn many_links_at_once_get_through_a_server_that_drops_bursts() {
    let Some(server) = Sshd::start("MaxStartups 10:100:10\nMaxSessions 4") else { return };
    let client = Client::of(&server);
    let hosts: Vec<Host> =
        (0..16).map(|number| Host { name: format!("node1-{number}"), ..client.host(&server) }).collect();
    let mut links: Vec<_> = hosts.into_iter().map(|host| client.open(client.request(host))).collect();
    for link in &mut links {
        link.ready();
    }
    assert!(!server.log().contains("drop connection"), "no handshake was dropped");
    assert_eq!(cached(&server).len(), 1, "no part files are left: {:?}", cached(&server));
    for link in links {
        link.close();
    }
}

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
fn noise_of_start_files_is_skipped_on_every_road() {
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
fn large_messages_pass_both_ways_on_every_road() {
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
fn a_refused_connection_is_tried_again_and_then_fails_with_a_hint() {
    let Some(mut server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    server.down();
    let mut link = client.link(&server);
    let (error, hint) = link.until_failed_after_losses();
    assert!(error.contains("connection refused") && error.contains(&server.port.to_string()), "{error}");
    assert!(hint.contains("ssh -p"), "{hint}");
    assert_eq!(link.attempts(), 4);
}

#[test]
fn a_name_without_address_is_named() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let host = Host { address: "no-such-host.invalid".into(), ..client.host(&server) };
    let mut link = client.open(client.request(host));
    link.until("lost", |state| matches!(state, LinkState::Lost { reason, .. } if reason.contains("no address for \"no-such-host.invalid\"")));
    link.close();
}

#[test]
fn close_ends_a_link_in_the_middle_of_a_handshake() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = Host { port: Some(mute.local_addr().unwrap().port()), ..client.host(&server) };
    let link = client.open(client.request(host));
    let _silent = mute.accept().unwrap();
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

/// A login shell that dawdles: the time until the command itself begins is bounded, measured, and called by its name.
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
    assert!(output.opened.unwrap() >= Duration::from_secs(2), "{:?}", output.opened);
}

#[test]
fn a_cache_folder_that_cannot_be_written_is_named() {
    // `SetEnv` of the first line wins.
    let Some(server) = Sshd::start("SetEnv RANKDECK_CACHE=/proc/nowhere") else { return };
    let client = Client::of(&server);
    let mut link = client.link(&server);
    let lost = link.until("lost", |state| matches!(state, LinkState::Lost { .. }));
    let LinkState::Lost { reason, .. } = lost else { unreachable!() };
    assert!(
        reason.contains("upload of rankdeck to /proc/nowhere") && reason.contains("cannot make the folder"),
        "{reason}"
    );
    link.close();
}

#[test]
fn weak_algorithms_are_refused() {
    for weak in [
        "Ciphers 3des-cbc",
        "KexAlgorithms diffie-hellman-group1-sha1",
        "MACs hmac-md5\nCiphers aes128-ctr",
        "MACs hmac-sha1\nCiphers aes128-ctr",
    ] {
        let Some(server) = Sshd::start(weak) else { return };
        let client = Client::of(&server);
        let (error, _) = client.link(&server).failed();
        assert!(error.contains("no common algorithm"), "{weak}: {error}");
    }
}

#[test]
fn jump_hosts_are_gone_through() {
    let (Some(gate), Some(inner), Some(server)) = (Sshd::start(""), Sshd::start(""), Sshd::start("")) else {
        return;
    };
    let client = Client::of(&server);
    let known: Vec<String> = [&gate, &inner, &server]
        .map(|sshd| format!("[127.0.0.1]:{} {}\n", sshd.port, sshd.host_key("host_ed25519")))
        .into();
    client.know(&known.concat());
    client.configure(&format!("IdentityAgent none\nIdentityFile {}\n", client.key().display()));
    for sshd in [&gate, &inner] {
        sshd.authorize(&client.key());
    }
    let host = Host {
        proxy_jump: Some(format!("127.0.0.1:{},127.0.0.1:{}", gate.port, inner.port)),
        ..client.host(&server)
    };
    let mut link = client.open(client.request(host.clone()));
    link.ready();
    link.talk(1);
    assert!(gate.logins() > 0 && inner.logins() > 0 && server.logins() > 0);
    assert!(gate.kill_sessions());
    link.until("lost", |state| matches!(state, LinkState::Lost { .. }));
    link.ready();
    link.talk(2);
    link.close();
    fs::write(inner.folder.join("authorized_keys"), "").unwrap();
    let (error, _) = client.open(client.request(host)).failed();
    assert!(error.contains("jump 127.0.0.1") && error.contains("refused the login"), "{error}");
}

#[test]
fn proxy_commands_are_refused_in_words() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    client.configure("ProxyCommand nc %h %p\n");
    let (error, hint) = client.link(&server).failed();
    assert!(error.contains("ProxyCommand") && hint.contains("proxy_jump"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_shot_commands_deploy_and_answer() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let answers = || Arc::new(Answers(Mutex::new(Vec::new())));
    let args = ["list", "--workdir", "it's $HOME"].map(String::from);
    let host = client.host(&server);
    for _ in 0..2 {
        let said = client.exec(&host, &args, answers()).await.unwrap();
        assert_eq!(said, r#"["--workdir", "it's $HOME"]"#);
    }
    assert_eq!(server.logins(), 3, "the second needed no upload");
    let error = client.exec(&host, &["nonsense".to_string()], answers()).await.unwrap_err();
    assert!(error.error.contains("unknown command nonsense"), "{error}");
    client.know("");
    let error = client.exec(&host, &args, answers()).await.unwrap_err();
    assert!(error.error.contains("unknown") && error.hint.contains("ssh-keyscan"), "{error}");
    let yes = Arc::new(Answers(Mutex::new(vec!["yes".to_string()])));
    client.exec(&host, &args, yes).await.unwrap();
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
