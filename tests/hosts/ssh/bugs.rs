//! Known defects of ssh2 and libssh2, and how they are avoided. All were seen with the plain library. Numbers
//! are issues of alexcrichton/ssh2-rs, or of libssh2 where stated. Each item has the defect, the workaround
//! and the test.
//!
//! - #322, dropping a channel frees memory without the session's lock: a session and its channels belong to
//!   one thread (SSH-1). `ssh2_322_many_threads_run_many_commands`
//! - #165, dropping a channel or session waits forever for the command: sessions are non-blocking; the socket
//!   is shut down first (SSH-5). `ssh2_165_dropping_session_does_not_wait_for_command`
//! - #220, #352, a session dropped in non-blocking mode leaks: some kilobytes leak here too, but no
//!   socket. `ssh2_220_dropped_sessions_end_on_server`
//! - #226, dropping sftp switches to blocking: sftp is not used. `ssh2_226_sources_do_not_use_sftp`
//! - #22, reading one stream while the other fills the window: both are read in turns.
//!   `ssh2_22_both_streams_are_read`
//! - #222, one session cannot serve two blocking threads: as #322. `ssh2_322_many_threads_run_many_commands`
//! - libssh2 #169, other calls during a re-exchange of keys while a write waits: a write is repeated until it
//!   succeeds, and nothing is read meanwhile; bulk data goes one way (SSH-3).
//!   `links::large_messages_pass_both_ways_on_every_transport`,
//!   `libssh2_169_link_through_jump_survives_rekeying`, `libssh2_169_half_sent_packet_blocks_reads`
//! - libssh2, without a number: while a packet is half sent, every other call returns EAGAIN even if the
//!   socket is writable; only repeating the write helps. A cancelled upload does so before it ends the input.
//!   `libssh2_half_sent_packet_is_finished_before_eof`
//! - libssh2 #671, exec fails occasionally (`Failed waiting for channel success`): one thread, each call
//!   repeated with the same arguments. `libssh2_671_session_runs_a_hundred_commands`
//! - libssh2 #544, timeouts do not work in non-blocking mode: rankdeck has its own deadlines.
//!   `libssh2_544_silent_server_times_out`
//! - async-ssh2-lite #28, #55, asserts and busy loops on the directions to wait for: that crate is not used;
//!   `wait` always reads. `ssh2_226_sources_do_not_use_sftp`
//! - #342, no callback for agent forwarding: not offered
//! - `userauth_agent` tries one identity: AUTH-2. `login::auth_2_every_agent_identity_is_tried`
//! - -19 for a key that was accepted as the first factor: AUTH-3.
//!   `prompts::two_factors_are_prompted_for_in_turn`
//! - exit status 0 for a command killed by a signal: `exit_signal` is checked first.
//!   `killed_command_has_no_exit_status`
//! - known_hosts, port, wildcards, @revoked, one bad line, key types: rankdeck has its own parser.
//!   `host_keys`
//! - weak algorithms are offered: `method_pref`. `connect::weak_algorithms_are_rejected`

use super::client::{Answers, Client, NonInteractive};
use crate::support::sshd::{Sshd, eventually};
use rankdeck_link::LinkCommand;
use rankdeck_link::ssh::connection::Connection;
use rankdeck_link::ssh::exec;
use rankdeck_link::ssh::session::{self, BlockReason, Interest};
use rankdeck_link::ssh::session::{SshChannel, SshSession, Stream};
use rankdeck_link::ssh::upload::{UploadJob, UploadPart, upload};
use rankdeck_proto::message::{AgentMessage, ConsoleMessage};
use rankdeck_types::host::Host;
use rankdeck_types::link_state::LinkState;
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
                    let reply = client.exec(&host, &args, answers).await.unwrap();
                    assert_eq!(reply, format!(r#"["--workdir", "{number}"]"#));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[test]
fn ssh2_165_dropping_session_does_not_wait_for_command() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let connection = client.connection(&server);
    let began = Instant::now();
    // The output is complete at once, but the command runs for ten minutes.
    let done = |bytes: &[u8]| exec::after(bytes, "READY").is_some();
    let output =
        exec::run(&connection, &mut NonInteractive, "echo READY now; exec sleep 600", WITHIN, &done).unwrap();
    assert_eq!((output.after("READY").as_deref(), output.status), (Some("now"), None));
    let channel = connection.start(&mut NonInteractive, "exec sleep 600", Instant::now() + WITHIN).unwrap();
    drop(channel);
    drop(connection);
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

#[test]
fn ssh2_220_dropped_sessions_end_on_server() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    for _ in 0..5 {
        drop(client.connection(&server));
    }
    eventually("all sessions end", || !server.has_sessions());
    assert_eq!(server.logins(), 5);
}

/// Facts about the sources that the list relies on.
#[test]
fn ssh2_226_sources_do_not_use_sftp() {
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
    // Three windows on each.
    let command = "head -c 6000000 /dev/zero >&2; head -c 6000000 /dev/zero; echo; echo END of it; echo >&2; echo last >&2";
    let output = exec::run(&connection, &mut NonInteractive, command, WITHIN, &|_| false).unwrap();
    assert_eq!((output.after("END").as_deref(), output.status), (Some("of it"), Some(0)));
    assert!(output.stdout.len() > 6_000_000 && output.last_error_line() == "last");
}

#[test]
fn libssh2_671_session_runs_a_hundred_commands() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let connection = client.connection(&server);
    for number in 0..100 {
        let command = format!("echo N {number}");
        let output = exec::run(&connection, &mut NonInteractive, &command, WITHIN, &|_| false).unwrap();
        assert_eq!((output.after("N"), output.status), (Some(number.to_string()), Some(0)));
    }
}

#[test]
fn libssh2_544_silent_server_times_out() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = Host { port: Some(silent.local_addr().unwrap().port()), ..client.host(&server) };
    let mut link = client.open(client.request(host));
    link.until("lost", |state| matches!(state, LinkState::Lost { .. }));
    link.close();
}

/// JUMP-2.
#[test]
fn libssh2_169_link_through_jump_survives_rekeying() {
    let (Some(gate), Some(server)) = (Sshd::start("RekeyLimit 128K"), Sshd::start("RekeyLimit 128K")) else {
        return;
    };
    let client = Client::of(&server);
    gate.authorize(&client.key());
    let known =
        [&gate, &server].map(|sshd| format!("[127.0.0.1]:{} {}\n", sshd.port, sshd.host_key("host_ed25519")));
    client.know(&known.concat());
    client.configure(&format!("IdentityAgent none\nIdentityFile {}\n", client.key().display()));
    let host = Host { proxy_jump: Some(format!("127.0.0.1:{}", gate.port)), ..client.host(&server) };
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
fn killed_command_has_no_exit_status() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let connection = client.connection(&server);
    for (command, status) in [("kill -TERM $$", None), ("exit 7", Some(7)), ("true", Some(0))] {
        let output = exec::run(&connection, &mut NonInteractive, command, WITHIN, &|_| false).unwrap();
        assert_eq!(output.status, status, "{command}");
    }
}

/// Returns a connection with a command whose next write stays half sent until the host continues.
fn half_sent(server: &Sshd, client: &Client, command: &str) -> (Connection, Box<dyn SshChannel>, Vec<u8>) {
    let connection = client.connection(server);
    let mut channel = connection.start(&mut NonInteractive, command, Instant::now() + WITHIN).unwrap();
    // A small buffer is full before the window of the command.
    let (fd, size) = (channel.interest(false).fd, 4096_i32);
    // SAFETY: the descriptor is open, and the value is a live integer of the given size.
    let set = unsafe {
        let value: *const i32 = &size;
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, value.cast(), size_of::<i32>() as u32)
    };
    assert_eq!(set, 0);
    // The first output of the command has arrived.
    session::poll(&[channel.interest(false)], WITHIN).unwrap();
    server.stall(true);
    let bytes = vec![7; 256 << 10];
    let blocked = loop {
        if let Err(error) = channel.write(&bytes) {
            break error;
        }
    };
    assert!(blocked.kind() == std::io::ErrorKind::WouldBlock && channel.is_half_sent(), "{blocked}");
    (connection, channel, bytes)
}

/// A read that receives the server's request for new keys could not answer it, and no write would succeed any
/// more.
#[test]
fn libssh2_169_half_sent_packet_blocks_reads() {
    let Some(server) = Sshd::start("RekeyLimit 32K") else { return };
    let client = Client::of(&server);
    let (_connection, mut channel, bytes) = half_sent(&server, &client, "echo first; cat >/dev/null");
    let interest = channel.interest(false);
    assert!(interest.write && !interest.read, "{interest:?}");
    server.stall(false);
    // The request has arrived.
    session::poll(&[Interest { read: true, write: false, ..interest }], WITHIN).unwrap();
    let mut buffer = [0; 64];
    for stream in [Stream::Output, Stream::Error] {
        let read = channel.read(stream, &mut buffer);
        assert!(read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    }
    let deadline = Instant::now() + WITHIN;
    while channel.write(&bytes).is_err() {
        channel.pause(&mut NonInteractive, deadline).unwrap();
    }
    channel.end_input(&mut NonInteractive, deadline).unwrap();
    let output = exec::collect(channel.as_mut(), &mut NonInteractive, deadline).unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "first");
}

/// The host stops reading in the middle of a packet, and continues later.
#[test]
fn libssh2_half_sent_packet_is_finished_before_eof() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let (_connection, mut channel, bytes) =
        half_sent(&server, &client, "echo first; cat >/dev/null; echo all of it; exit 3");
    let deadline = Instant::now() + WITHIN;
    server.stall(false);
    // The defect: the socket is writable again, but the end of the input is not sent.
    let early = channel.end_input(&mut NonInteractive, Instant::now() + Duration::from_secs(1));
    assert!(matches!(early, Err(BlockReason::TimedOut)), "{early:?}");
    assert!(channel.is_half_sent());
    while let Err(error) = channel.write(&bytes) {
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        channel.pause(&mut NonInteractive, deadline).unwrap();
    }
    assert!(!channel.is_half_sent());
    channel.end_input(&mut NonInteractive, deadline).unwrap();
    let output = exec::collect(channel.as_mut(), &mut NonInteractive, deadline).unwrap();
    assert_eq!(
        (String::from_utf8_lossy(&output.stdout).trim(), output.status),
        ("first\nall of it", Some(3))
    );
}

/// Even if the stream is half sent, the error and the exit code of the host arrive at once, without a
/// timeout.
#[test]
fn refused_upload_ends_with_error_of_host() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let connection = client.connection(&server);
    let local = client.folder.join("large");
    std::fs::File::create(&local).unwrap().set_len(64 << 20).unwrap();
    // A file is in the way of the folder; the stream is being sent when the shell reports it.
    let blocked = client.folder.join("a file");
    std::fs::write(&blocked, "").unwrap();
    let folder = blocked.join("cache").display().to_string();
    let sha256 = "0".repeat(64);
    let parts = [UploadPart { offset: 0, size: 64 << 20, sha256, name: "large".into() }];
    let job = UploadJob {
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
        let failed = upload(&connection, &mut NonInteractive, &job).unwrap_err();
        times.push(began.elapsed());
        // The words of `mkdir`.
        let error = failed.to_string();
        assert!(error.contains("Not a directory"), "{error}");
    }
    times.sort();
    assert!(times[5] < Duration::from_millis(1500), "{times:?}");
}
