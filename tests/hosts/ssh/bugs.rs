//! Known defects of ssh2 and libssh2, and that none of them is met: each was seen with the plain library
//! (numbers are issues of alexcrichton/ssh2-rs, or of libssh2 where that is said). Each item has the defect,
//! why it is not met, and the test.
//!
//! - #322, dropping a channel frees memory without the session's lock: a session and its channels belong to
//!   one thread (SSH-1). `ssh2_322_many_threads_run_many_commands`
//! - #165, dropping a channel or session waits for the command, for ever: non-blocking; the socket is shut
//!   down first (SSH-5). `ssh2_165_a_session_is_dropped_while_its_command_runs`
//! - #220, #352, a session dropped in non-blocking mode leaks: so does ours, some kilobytes; its socket does
//!   not stay. `ssh2_220_the_server_sees_every_session_end`
//! - #226, dropping sftp switches to blocking: sftp is not used. `ssh2_226_nothing_uses_sftp`
//! - #22, reading one stream while the other fills the window: both are read in turns.
//!   `ssh2_22_both_streams_are_read`
//! - #222, one session cannot serve two blocking threads: as #322. `ssh2_322_many_threads_run_many_commands`
//! - libssh2 #169, re-exchange of keys, calls in between while a write waits: a write is repeated until it is
//!   through; bulk goes one way (SSH-3). `links::large_messages_pass_both_ways_on_every_transport`,
//!   `libssh2_169_keys_are_exchanged_anew_under_a_jump`
//! - libssh2, not told there: while a packet is half sent, every other call gets EAGAIN, whatever the socket
//!   takes; only the write itself, repeated, brings it on. An upload that is broken off does that before it
//!   ends the input. `libssh2_a_packet_that_is_half_sent_is_finished_before_the_input_ends`
//! - libssh2 #671, exec fails now and then (`Failed waiting for channel success`): one thread, each call
//!   repeated with the same arguments. `libssh2_671_a_hundred_commands_on_one_session`
//! - libssh2 #544, timeouts do not work in non-blocking mode: deadlines of our own.
//!   `libssh2_544_a_mute_server_is_given_up`
//! - async-ssh2-lite #28, #55, asserts and spins on the directions to wait for: that crate is not used;
//!   `wait` reads always. `ssh2_226_nothing_uses_sftp`
//! - #342, no callback for agent forwarding: not offered
//! - `userauth_agent` tries one identity: AUTH-2. `login::auth_2_every_identity_of_the_agent_gets_its_turn`
//! - -19 for a key that was accepted as the first factor: AUTH-3.
//!   `prompts::two_factors_are_asked_for_one_after_the_other`
//! - exit status 0 for a command that a signal ended: `exit_signal` is looked at first.
//!   `a_signal_is_no_success`
//! - known_hosts, port, wildcards, @revoked, one bad line, key types: a reader of our own. `host_keys`
//! - weak algorithms are offered: `method_pref`. `connect::weak_algorithms_are_refused`

use super::client::{Answers, Client, Nobody};
use crate::support::sshd::{Sshd, eventually};
use rankdeck_link::LinkCommand;
use rankdeck_link::ssh::upload::{Batch, Part, upload};
use rankdeck_link::ssh::wait::Stall;
use rankdeck_link::ssh::{exec, output};
use rankdeck_proto::message::{AgentMessage, ConsoleMessage};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const WITHIN: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ssh2_322_many_threads_run_many_commands() {
    let Some(server) = Sshd::start("") else { return };
    let client = Arc::new(Client::of(&server));
    let host = client.host(&server);
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let (client, host) = (client.clone(), host.clone());
            tokio::spawn(async move {
                for number in 0..10 {
                    let args = ["list".to_string(), "--workdir".into(), number.to_string()];
                    let answers = Arc::new(Answers(Mutex::new(Vec::new())));
                    let said = client.exec(&host, &args, answers).await.unwrap();
                    assert_eq!(said, format!(r#"["--workdir", "{number}"]"#));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[test]
fn ssh2_165_a_session_is_dropped_while_its_command_runs() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let connection = client.connection(&server);
    let began = Instant::now();
    // Enough is said at once; the command goes on for ten minutes.
    let done = |bytes: &[u8]| output::after(bytes, "READY").is_some();
    let output =
        exec::run(&connection, &mut Nobody, "echo READY now; exec sleep 600", &[], WITHIN, &done).unwrap();
    assert_eq!((output.after("READY").as_deref(), output.status), (Some("now"), None));
    let channel = exec::start(&connection, &mut Nobody, "exec sleep 600", Instant::now() + WITHIN).unwrap();
    drop(channel);
    drop(connection);
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

#[test]
fn ssh2_220_the_server_sees_every_session_end() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    for _ in 0..5 {
        drop(client.connection(&server));
    }
    eventually("no session is left", || !server.has_sessions());
    assert_eq!(server.logins(), 5);
}

/// Facts about the source that the table relies on.
#[test]
fn ssh2_226_nothing_uses_sftp() {
    let root = rankdeck_testkit::repository("");
    let mut folders = vec![root.join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            match entry.path() {
                path if path.is_dir() => folders.push(path),
                path => {
                    let text = std::fs::read_to_string(&path).unwrap_or_default();
                    assert!(!text.contains(".sftp(") && !text.contains("ssh2::Sftp"), "{}", path.display());
                }
            }
        }
    }
    let lock = std::fs::read_to_string(root.join("Cargo.lock")).unwrap();
    assert!(!lock.contains("name = \"async-ssh2-lite\""));
}

#[test]
fn ssh2_22_both_streams_are_read() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let connection = client.connection(&server);
    // Three windows' worth on each.
    let command = "head -c 6000000 /dev/zero >&2; head -c 6000000 /dev/zero; echo; echo END of it; echo >&2; echo said >&2";
    let output = exec::run(&connection, &mut Nobody, command, &[], WITHIN, &|_| false).unwrap();
    assert_eq!((output.after("END").as_deref(), output.status), (Some("of it"), Some(0)));
    assert!(output.stdout.len() > 6_000_000 && output.complaint() == "said");
}

#[test]
fn libssh2_671_a_hundred_commands_on_one_session() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let connection = client.connection(&server);
    for number in 0..100 {
        let command = format!("echo N {number}");
        let output = exec::run(&connection, &mut Nobody, &command, &[], WITHIN, &|_| false).unwrap();
        assert_eq!((output.after("N"), output.status), (Some(number.to_string()), Some(0)));
    }
}

#[test]
fn libssh2_544_a_mute_server_is_given_up() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let host =
        rankdeck_types::host::Host { port: Some(mute.local_addr().unwrap().port()), ..client.host(&server) };
    let mut link = client.open(client.request(host));
    link.until(
        "given up",
        |state| matches!(state, rankdeck_types::link_state::LinkState::Lost { reason, .. } if reason.contains("does not speak")),
    );
    link.close();
}

#[test]
fn libssh2_169_keys_are_exchanged_anew_under_a_jump() {
    let (Some(gate), Some(server)) = (Sshd::start("RekeyLimit 128K"), Sshd::start("RekeyLimit 128K")) else {
        return;
    };
    let client = Client::of(&server);
    gate.authorize(&client.key());
    let known =
        [&gate, &server].map(|sshd| format!("[127.0.0.1]:{} {}\n", sshd.port, sshd.host_key("host_ed25519")));
    client.know(&known.concat());
    client.configure(&format!("IdentityAgent none\nIdentityFile {}\n", client.key().display()));
    let host = rankdeck_types::host::Host {
        proxy_jump: Some(format!("127.0.0.1:{}", gate.port)),
        ..client.host(&server)
    };
    let mut link = client.open(client.request(host));
    link.ready();
    link.order(LinkCommand::Send(ConsoleMessage::Attach {
        protocol: 1,
        build: "x".repeat(200_000),
        after_seq: 0,
        log_tail: 64,
    }));
    link.message("the last line", |message| matches!(message, AgentMessage::Log { first: 64, .. }));
    link.close();
}

#[test]
fn a_signal_is_no_success() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let connection = client.connection(&server);
    for (command, status) in [("kill -TERM $$", None), ("exit 7", Some(7)), ("true", Some(0))] {
        let output = exec::run(&connection, &mut Nobody, command, &[], WITHIN, &|_| false).unwrap();
        assert_eq!(output.status, status, "{command}");
    }
}

/// The host stops reading in the middle of a packet, and goes on.
#[test]
fn libssh2_a_packet_that_is_half_sent_is_finished_before_the_input_ends() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let connection = client.connection(&server);
    let deadline = Instant::now() + WITHIN;
    let command = "cat >/dev/null; echo all of it; exit 3";
    let mut channel = exec::start(&connection, &mut Nobody, command, deadline).unwrap();
    // A small buffer is full before the command's window is.
    let (fd, size) = (channel.interest(false).fd, 4096_i32);
    // SAFETY: the descriptor is open, and the value is a live integer of the size that is said.
    let set = unsafe {
        let value: *const i32 = &size;
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, value.cast(), size_of::<i32>() as u32)
    };
    assert_eq!(set, 0);
    server.stall(true);
    let bytes = vec![7; 256 << 10];
    let refused = loop {
        if let Err(error) = channel.write(&bytes) {
            break error;
        }
    };
    assert!(refused.kind() == std::io::ErrorKind::WouldBlock && channel.is_half_sent(), "{refused}");
    server.stall(false);
    // The library's defect: the socket takes bytes again, and the end of the input is not sent.
    let vain = channel.end_input(&mut Nobody, Instant::now() + Duration::from_secs(1));
    assert!(matches!(vain, Err(Stall::TimedOut)), "{vain:?}");
    assert!(channel.is_half_sent());
    while let Err(error) = channel.write(&bytes) {
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        channel.pause(&mut Nobody, deadline).unwrap();
    }
    assert!(!channel.is_half_sent());
    channel.end_input(&mut Nobody, deadline).unwrap();
    let said = exec::collect(channel.as_mut(), &mut Nobody, deadline, &|_| false).unwrap();
    assert_eq!((String::from_utf8_lossy(&said.stdout).trim(), said.status), ("all of it", Some(3)));
}

/// Whatever of the stream is half sent when the host says that it cannot write, its end is heard at once: the
/// exit code and all that it says. Nothing waits for a bound.
#[test]
fn an_upload_that_the_host_refuses_ends_with_the_hosts_own_end() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let connection = client.connection(&server);
    let local = client.folder.join("large");
    std::fs::File::create(&local).unwrap().set_len(64 << 20).unwrap();
    // Where a file is, no folder can be made; the shell takes its time to say so, and the stream is on its
    // way.
    let blocked = client.folder.join("a file");
    std::fs::write(&blocked, "").unwrap();
    let folder = blocked.join("cache").display().to_string();
    let sha256 = "0".repeat(64);
    let parts = [Part { offset: 0, size: 64 << 20, sha256, name: "large".into() }];
    let what = Batch {
        local: &local,
        parts: &parts,
        folder: &folder,
        token: "t",
        shown: "large",
        before: 0,
        total: 64 << 20,
    };
    let mut times = Vec::new();
    for _ in 0..10 {
        let began = Instant::now();
        let refused = upload(&connection, &mut Nobody, &what).unwrap_err();
        times.push(began.elapsed());
        let error = refused.to_string();
        assert!(error.contains("cannot make the folder") && error.contains("Not a directory"), "{error}");
    }
    times.sort();
    assert!(times[5] < Duration::from_millis(1500), "{times:?}");
}
