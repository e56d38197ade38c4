//! The way to a host: many at once, through others, refused, silent, or with algorithms that do not fit.

use super::client::Client;
use super::deploy::cached;
use crate::support::sshd::Sshd;
use rankdeck_types::host::Host;
use rankdeck_types::link_state::LinkState;
use std::fs;
use std::net::TcpListener;

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
fn weak_algorithms_are_refused() {
    for weak in [
        "Ciphers 3des-cbc",
        "KexAlgorithms diffie-hellman-group1-sha1",
        "MACs hmac-md5\nCiphers aes128-ctr",
        "MACs hmac-sha1\nCiphers aes128-ctr",
    ] {
        let Some(server) = Sshd::start(weak) else { return };
        let client = Client::of(&server);
        let (error, hint) = client.link(&server).failed();
        assert!(error.contains("no common algorithm"), "{weak}: {error}");
        let (directive, name) = weak.split_whitespace().next().zip(weak.split_whitespace().nth(1)).unwrap();
        assert!(error.contains(name), "what the server offers: {error}");
        assert!(hint.contains("rankdeck refuses SHA-1") && hint.contains(directive), "{hint}");
    }
}

#[test]
fn a_server_that_shares_no_algorithm_says_what_it_offers_and_the_hint_fits() {
    for (line, offered, ours, hinted) in [
        (
            "KexAlgorithms sntrup761x25519-sha512@openssh.com",
            "sntrup761",
            "curve25519-sha256",
            "post-quantum",
        ),
        ("MACs umac-64@openssh.com\nCiphers aes128-ctr", "umac-64@openssh.com", "hmac-sha2-256", "MACs"),
        ("Ciphers aes256-cbc", "aes256-cbc", "aes256-gcm@openssh.com", "CBC"),
    ] {
        let Some(server) = Sshd::start(line) else { return };
        let client = Client::of(&server);
        let (error, hint) = client.link(&server).failed();
        assert!(error.contains(offered) && error.contains(ours), "{line}: {error}");
        assert!(hint.contains(hinted), "{line}: {hint}");
        assert!(!line.contains("Kex") || !hint.contains("SHA-1"), "{hint}");
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
