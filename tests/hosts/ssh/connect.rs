//! Connections: many at once, through jump hosts, refused, silent, or without a common algorithm.

use super::client::Client;
use super::deploy::cached;
use crate::support::sshd::{Sshd, eventually};
use rankdeck_types::host::Host;
use rankdeck_types::link_state::LinkState;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

#[test]
fn burst_of_links_passes_server_with_low_max_startups() {
    let Some(server) = Sshd::start("MaxStartups 10:100:10\nMaxSessions 4") else { return };
    let client = Client::of(&server);
    let hosts: Vec<Host> =
        (0..16).map(|number| Host { name: format!("node1-{number}"), ..client.host(&server) }).collect();
    let mut links: Vec<_> = hosts.into_iter().map(|host| client.open(client.request(host))).collect();
    for link in &mut links {
        link.ready();
    }
    assert!(!server.log().contains("drop connection"), "dropped handshakes");
    assert_eq!(cached(&server).len(), 1, "part files: {:?}", cached(&server));
    for link in links {
        link.close();
    }
}

#[test]
fn refused_connection_is_retried_then_fails() {
    let Some(mut server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    server.down();
    let mut link = client.link(&server);
    let (error, hint) = link.until_failed_after_losses();
    assert!(error.contains(&server.port.to_string()), "{error}");
    assert!(hint.contains("ssh -p"), "{hint}");
    assert_eq!(link.attempts(), 4);
}

#[test]
fn unresolvable_name_is_named() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let host = Host { address: "no-such-host.invalid".into(), ..client.host(&server) };
    let mut link = client.open(client.request(host));
    // Retried only if no name server responds.
    link.until("a named failure", |state| match state {
        LinkState::Lost { reason, .. } => reason.contains("no-such-host.invalid"),
        LinkState::Failed(failure) => failure.error.contains("no-such-host.invalid"),
        _ => false,
    });
}

#[test]
fn close_ends_link_during_handshake() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = Host { port: Some(silent.local_addr().unwrap().port()), ..client.host(&server) };
    let link = client.open(client.request(host));
    let _stream = silent.accept().unwrap();
    link.close();
}

#[test]
fn weak_algorithms_are_rejected() {
    for weak in [
        "Ciphers 3des-cbc",
        "KexAlgorithms diffie-hellman-group1-sha1",
        "MACs hmac-md5\nCiphers aes128-ctr",
        "MACs hmac-sha1\nCiphers aes128-ctr",
    ] {
        let Some(server) = Sshd::start(weak) else { return };
        let client = Client::of(&server);
        let (error, hint) = client.link(&server).failed();
        let (directive, name) = weak.split_whitespace().next().zip(weak.split_whitespace().nth(1)).unwrap();
        assert!(error.contains(name) && hint.contains(directive), "{weak}: {error}; {hint}");
    }
}

#[test]
fn unmatched_algorithms_are_listed_with_fix() {
    for (line, offered, ours, hinted) in [
        (
            "KexAlgorithms sntrup761x25519-sha512@openssh.com",
            "sntrup761",
            "curve25519-sha256",
            "KexAlgorithms",
        ),
        ("MACs umac-64@openssh.com\nCiphers aes128-ctr", "umac-64@openssh.com", "hmac-sha2-256", "MACs"),
        ("Ciphers aes256-cbc", "aes256-cbc", "aes256-gcm@openssh.com", "Ciphers"),
    ] {
        let Some(server) = Sshd::start(line) else { return };
        let client = Client::of(&server);
        let (error, hint) = client.link(&server).failed();
        assert!(error.contains(offered) && error.contains(ours), "{line}: {error}");
        assert!(hint.contains(hinted), "{line}: {hint}");
        // The built-in SSH lacks what only newer servers offer.
        assert_eq!(hint.contains("transport"), !line.contains("cbc"), "{hint}");
    }
}

#[test]
fn jump_hosts_carry_link() {
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
    // Its session is shared with the next link.
    inner.kill_sessions();
    let (error, _) = client.open(client.request(host)).failed();
    assert!(error.contains(&inner.port.to_string()), "{error}");
}

/// JUMP-1.
#[test]
fn jump_host_is_logged_in_to_once() {
    let (Some(gate), Some(server)) = (Sshd::start(""), Sshd::start("")) else { return };
    let client = Client::of(&server);
    let known: Vec<String> = [&gate, &server]
        .map(|sshd| format!("[127.0.0.1]:{} {}\n", sshd.port, sshd.host_key("host_ed25519")))
        .into();
    client.know(&known.concat());
    client.configure(&format!("IdentityAgent none\nIdentityFile {}\n", client.key().display()));
    gate.authorize(&client.key());
    let hosts = (0..4).map(|number| Host {
        name: format!("node{number}"),
        proxy_jump: Some(format!("127.0.0.1:{}", gate.port)),
        ..client.host(&server)
    });
    let mut links: Vec<_> = hosts.map(|host| client.open(client.request(host))).collect();
    for link in &mut links {
        link.ready();
        link.talk(1);
    }
    assert_eq!(gate.logins(), 1, "{}", gate.log());
    // The hosts are lost, and the jump host is not.
    assert!(server.kill_sessions());
    for link in &mut links {
        link.until("lost", |state| matches!(state, LinkState::Lost { .. }));
    }
    for link in &mut links {
        link.ready();
    }
    assert_eq!(gate.logins(), 1, "{}", gate.log());
    // One login after the session broke, for all hosts.
    assert!(gate.kill_sessions());
    for link in &mut links {
        link.until("lost", |state| matches!(state, LinkState::Lost { .. }));
        link.ready();
    }
    assert_eq!(gate.logins(), 2, "{}", gate.log());
    for link in links {
        link.close();
    }
}

/// JUMP-3.
#[test]
fn dead_host_behind_jump_host_blocks_no_other() {
    let (Some(gate), Some(server)) = (Sshd::start(""), Sshd::start("")) else { return };
    let client = Client::of(&server);
    let known: Vec<String> = [&gate, &server]
        .map(|sshd| format!("[127.0.0.1]:{} {}\n", sshd.port, sshd.host_key("host_ed25519")))
        .into();
    client.know(&known.concat());
    client.configure(&format!("IdentityAgent none\nIdentityFile {}\n", client.key().display()));
    gate.authorize(&client.key());
    let jump = Some(format!("127.0.0.1:{}", gate.port));
    let host = Host { proxy_jump: jump, ..client.host(&server) };
    let mut first = client.open(client.request(host.clone()));
    first.ready();
    // A full queue of connections: the next one gets no answer, as from a machine that is switched off.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // SAFETY: the descriptor is that of the listener.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let dead = listener.local_addr().unwrap();
    let connect = || TcpStream::connect_timeout(&dead, Duration::from_millis(200)).ok();
    let queued: Vec<TcpStream> = std::iter::from_fn(connect).collect();
    let waiting = format!(":{:04X} 02 ", dead.port());
    let stuck =
        client.open(client.request(Host { name: "dead".into(), port: Some(dead.port()), ..host.clone() }));
    eventually("the jump host connects to the dead host", || {
        fs::read_to_string("/proc/net/tcp").is_ok_and(|table| table.contains(&waiting))
    });
    let mut second = client.open(client.request(Host { name: "other".into(), ..host }));
    second.ready();
    second.talk(1);
    first.talk(1);
    drop(queued);
    for link in [stuck, first, second] {
        link.close();
    }
}

#[test]
fn proxy_command_is_rejected() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    client.configure("ProxyCommand nc %h %p\n");
    let (error, hint) = client.link(&server).failed();
    assert!(error.contains("ProxyCommand") && hint.contains("proxy_jump"), "{error}");
}
