//! What the system's `ssh` understands, clause by clause with its tests, against a real server.
//!
//! - Host patterns and negation, HostName, Port, User, IdentityFile:
//!   `patterns_name_port_user_and_key_come_from_the_configuration`
//! - Include: `included_files_count`
//! - Match: `match_blocks_count`
//! - hosts.toml wins: `hosts_toml_wins_over_every_directive`
//! - IdentitiesOnly: `login::identities_only_keeps_the_agents_other_keys_back`
//! - ssh-agent: `login::auth_2_every_identity_of_the_agent_gets_its_turn`, `login::auth_1_...`
//! - encrypted keys: `login::a_passphrase_is_asked_for_once_though_a_second_session_needs_it`
//! - certificates: `a_certificate_is_offered_before_its_key`,
//!   `certificates_come_from_their_own_files_and_from_the_agent`
//! - ProxyJump, chains: `a_chain_of_jumps_is_followed_through_the_configuration`,
//!   `connect::jump_hosts_are_gone_through`
//! - IdentitiesOnly, MaxAuthTries, order of keys: `login::auth_1_...`
//! - RevokedHostKeys (list, KRL): `host_keys::keys_that_the_configuration_revokes_are_refused`
//! - HostKeyAlgorithms, KexAlgorithms, Ciphers, MACs; KnownHostsCommand refused by name:
//!   `host_keys::the_configuration_says_which_algorithms_are_good_enough`
//! - @cert-authority: refused in words: `host_keys::a_host_of_a_certificate_authority_...`; works with
//!   `transport = "openssh"`: `openssh::what_libssh2_cannot_do_works`
//! - ProxyCommand: refused by name: `connect::proxy_commands_are_refused_in_words`; works with
//!   `transport = "openssh"`
//! - ConnectTimeout: `ssh_runs::a_silent_host_costs_its_connect_timeout` (needs a host that drops packets)
//! - ServerAliveInterval, ServerAliveCountMax: `server_alive_says_how_long_silence_may_last`
//! - password, keyboard-interactive, two factors; on a terminal, on the screen, without either:
//!   `tests/hosts/prompts.rs`
//! - known_hosts: hashed, `[host]:port`, changed, revoked, unknown; StrictHostKeyChecking: `host_keys`
//! - noisy start files: `links::noise_of_start_files_is_skipped_on_every_transport`
//! - MaxStartups: eight handshakes, retry with jitter:
//!   `connect::many_links_at_once_get_through_a_server_that_drops_bursts`
//! - dead peers: `links::link_3_a_frozen_agent_is_lost_and_found_again_when_it_thaws`,
//!   `tests/hosts/faults.rs`

use super::client::Client;
use super::login::KeyAgent;
use crate::support::sshd::{Sshd, keygen, kill};
use rankdeck_types::host::Host;
use rankdeck_types::link_state::LinkState;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Who runs the tests, and so who the server lets in.
fn user() -> String {
    let output = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn works(client: &Client, host: Host) {
    let mut link = client.open(client.request(host));
    link.ready();
    link.talk(1);
    link.close();
}

#[test]
fn patterns_name_port_user_and_key_come_from_the_configuration() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    // The first value wins; a negated pattern keeps the block from its host.
    client.write_config(&format!(
        "Host gpu-* !gpu-bad\n  HostName 127.0.0.1\n  Port {}\n  User {}\n  IdentityFile {}\n  IdentityAgent none\n\
         Host gpu-?\n  Port 1\n  User nobody\nHost *\n  HostName no-such-host.invalid\n",
        server.port,
        user(),
        client.key().display()
    ));
    works(&client, client.named("gpu-1"));
    let mut link = client.open(client.request(client.named("gpu-bad")));
    link.until(
        "the other block",
        |state| matches!(state, LinkState::Lost { reason, .. } if reason.contains("no-such-host")),
    );
    link.close();
}

#[test]
fn included_files_count() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let folder = client.folder.join("conf.d");
    fs::create_dir(&folder).unwrap();
    fs::write(
        folder.join("10-lab"),
        format!(
            "Host lab\n  HostName 127.0.0.1\n  Port {}\n  IdentityFile {}\n",
            server.port,
            client.key().display()
        ),
    )
    .unwrap();
    client.write_config(&format!("IdentityAgent none\nInclude {}/*\n", folder.display()));
    works(&client, client.named("lab"));
}

#[test]
fn match_blocks_count() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    client.write_config(&format!(
        "IdentityAgent none\nMatch originalhost lab exec \"true\"\n  HostName 127.0.0.1\n  Port {}\n  IdentityFile {}\n\
         Match exec \"false\"\n  Port 1\n",
        server.port,
        client.key().display()
    ));
    works(&client, client.named("lab"));
}

#[test]
fn hosts_toml_wins_over_every_directive() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    client.write_config(
        "Host 127.0.0.1\n  Port 1\n  User nobody\n  IdentityFile /nowhere\n  ProxyJump no-such-host.invalid\n  IdentityAgent none\n",
    );
    works(&client, Host { user: Some(user()), proxy_jump: Some("none".into()), ..client.host(&server) });
}

#[test]
fn a_chain_of_jumps_is_followed_through_the_configuration() {
    let (Some(gate), Some(inner), Some(server)) = (Sshd::start(""), Sshd::start(""), Sshd::start("")) else {
        return;
    };
    let client = Client::of(&server);
    let known = [&gate, &inner, &server]
        .map(|sshd| format!("[127.0.0.1]:{} {}\n", sshd.port, sshd.host_key("host_ed25519")));
    client.know(&known.concat());
    gate.authorize(&client.key());
    inner.authorize(&client.key());
    let block = |name: &str, port: u16, jump: &str| format!("Host {name}\n  Port {port}\n{jump}");
    client.write_config(&format!(
        "{}{}{}Host *\n  HostName 127.0.0.1\n  IdentityAgent none\n  IdentityFile {}\n",
        block("gate", gate.port, ""),
        block("inner", inner.port, "  ProxyJump gate\n"),
        block("target", server.port, "  ProxyJump inner\n"),
        client.key().display()
    ));
    works(&client, client.named("target"));
    assert!(gate.logins() > 0 && inner.logins() > 0 && server.logins() > 0);
    let direct = server.log().matches("Connection from").count();
    assert!(inner.log().contains("direct-tcpip") || direct > 0, "through the inner host: {}", inner.log());
}

#[test]
fn server_alive_says_how_long_silence_may_last() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    client.configure("IdentityAgent none\nServerAliveInterval 1\nServerAliveCountMax 2\n");
    let mut link = client.link(&server);
    link.ready();
    link.talk(1);
    kill(client.agent_pid(), libc::SIGSTOP);
    link.until(
        "lost early",
        |state| matches!(state, LinkState::Lost { reason, .. } if reason.contains("no sign of life from the agent for 2 s")),
    );
    kill(client.agent_pid(), libc::SIGCONT);
    link.ready();
    link.talk(2);
    link.close();
    // Longer than what counts as silence where nothing is configured.
    client.configure("IdentityAgent none\nServerAliveInterval 10\nServerAliveCountMax 6\n");
    let mut link = client.link(&server);
    link.ready();
    link.talk(3);
    kill(client.agent_pid(), libc::SIGSTOP);
    let began = Instant::now();
    std::thread::sleep(rankdeck_link::carry::SILENCE + Duration::from_secs(2));
    kill(client.agent_pid(), libc::SIGCONT);
    link.talk(4);
    assert!(began.elapsed() > rankdeck_link::carry::SILENCE);
    assert!(!link.states.iter().any(|state| matches!(state, LinkState::Lost { .. })), "{:?}", link.states);
    link.close();
}

/// Certifies `key` for the user who runs the tests: `KEY-cert.pub` appears beside it.
fn certify(authority: &Path, key: &Path, validity: &str) {
    let status = Command::new("ssh-keygen")
        .args(["-q", "-s"])
        .arg(authority)
        .args(["-I", "test", "-n", &user(), "-V", validity])
        .arg(key.with_extension("pub"))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(status.unwrap().success());
}

/// A server that trusts an authority and no key.
fn trusting() -> Option<(Sshd, tempfile::TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    crate::support::sshd::program("ssh-keygen")?;
    let authority = folder.path().join("ca");
    keygen(&authority, "ed25519", "");
    let server = Sshd::start(&format!("TrustedUserCAKeys {}.pub", authority.display()))?;
    Some((server, folder))
}

#[test]
fn a_certificate_is_offered_before_its_key() {
    let Some((server, folder)) = trusting() else { return };
    let authority = folder.path().join("ca");
    for (kind, passphrase) in [("ed25519", ""), ("ecdsa", ""), ("rsa", ""), ("ed25519", "secret")] {
        let client = Client::of(&server);
        super::login::rekey(&client, &server, kind, passphrase);
        fs::write(server.folder.join("authorized_keys"), "").unwrap();
        certify(&authority, &client.key(), "+1h");
        let by_certificate = || server.log().matches("-CERT ").count();
        let before = by_certificate();
        let mut link = client.interactive_link(&server);
        if !passphrase.is_empty() {
            link.asked();
            link.answer("wrong");
            link.asked();
            link.answer(passphrase);
        }
        link.ready();
        link.close();
        assert!(by_certificate() > before, "{kind}: by certificate");
    }
    // One that is no longer valid does not keep the key itself from logging in, and is named when nothing
    // helps.
    let client = Client::of(&server);
    certify(&authority, &client.key(), "20000101:20000102");
    let mut link = client.link(&server);
    link.ready();
    link.close();
    fs::write(server.folder.join("authorized_keys"), "").unwrap();
    let (error, _) = client.link(&server).failed();
    assert!(error.contains("id-cert.pub: refused"), "{error}");
}

#[test]
fn certificates_come_from_their_own_files_and_from_the_agent() {
    let Some((server, folder)) = trusting() else { return };
    let authority = folder.path().join("ca");
    let client = Client::of(&server);
    fs::write(server.folder.join("authorized_keys"), "").unwrap();
    certify(&authority, &client.key(), "+1h");
    let (beside, elsewhere) = (client.folder.join("id-cert.pub"), client.folder.join("elsewhere.pub"));
    fs::rename(&beside, &elsewhere).unwrap();
    assert!(client.link(&server).failed().0.contains("refused"));
    client.configure(&format!("IdentityAgent none\nCertificateFile {}\n", elsewhere.display()));
    works(&client, client.host(&server));
    // `ssh-add` takes the certificate that lies beside the key.
    fs::rename(&elsewhere, &beside).unwrap();
    let agent = KeyAgent::start(&client.folder);
    agent.add(&client.key());
    fs::remove_file(&beside).unwrap();
    fs::remove_file(client.key()).unwrap();
    client.configure(&format!("IdentityAgent {}\n", agent.socket.display()));
    works(&client, client.host(&server));
}
