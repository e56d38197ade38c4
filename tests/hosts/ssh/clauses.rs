//! Features of OpenSSH's client and their tests, against a real server.
//!
//! - Host patterns and negation, HostName, Port, User, IdentityFile:
//!   `host_patterns_of_ssh_config_apply`
//! - Include: `included_ssh_configs_apply`
//! - Match: `match_blocks_apply`
//! - hosts.toml takes precedence: `hosts_toml_overrides_ssh_config`
//! - IdentitiesOnly: `login::identities_only_excludes_agent_keys`
//! - ssh-agent: `login::auth_2_every_agent_identity_is_tried`, `login::auth_1_...`
//! - encrypted keys: `login::passphrase_is_prompted_for_once`
//! - certificates: `certificate_is_offered_before_its_key`,
//!   `certificates_come_from_files_and_ssh_agent`
//! - ProxyJump, chains: `jump_chain_of_ssh_config_is_followed`,
//!   `connect::jump_hosts_carry_link`
//! - IdentitiesOnly, MaxAuthTries, order of keys: `login::auth_1_...`
//! - RevokedHostKeys (list, KRL): `host_keys::keys_in_revoked_host_keys_are_rejected`
//! - HostKeyAlgorithms, KexAlgorithms, Ciphers, MACs; KnownHostsCommand rejected by name:
//!   `host_keys::algorithms_of_ssh_config_apply`
//! - @cert-authority: rejected: `host_keys::host_of_certificate_authority_needs_known_key`; works with
//!   `transport = "openssh"`: `openssh::openssh_covers_what_libssh2_lacks`
//! - ProxyCommand: rejected by name: `connect::proxy_command_is_rejected`; works with
//!   `transport = "openssh"`
//! - ConnectTimeout: `ssh_runs::connect_timeout_of_ssh_config_applies` (needs a host that drops packets)
//! - ServerAliveInterval, ServerAliveCountMax: `server_alive_options_set_silence_limit`
//! - password, keyboard-interactive, two factors; in a terminal, in the TUI, without either:
//!   `tests/hosts/prompts.rs`
//! - known_hosts: hashed, `[host]:port`, changed, revoked, unknown; StrictHostKeyChecking: `host_keys`
//! - noisy start files: `links::start_file_output_is_skipped_on_every_transport`
//! - MaxStartups: eight handshakes, retry with jitter:
//!   `connect::burst_of_links_passes_server_with_low_max_startups`
//! - dead peers: `links::link_3_stopped_agent_is_lost_until_it_continues`,
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

/// The user that runs the tests, whom the server accepts.
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
fn host_patterns_of_ssh_config_apply() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    // The first value applies; a negated pattern excludes the block for its host.
    client.write_config(&format!(
        "Host gpu-* !gpu-bad\n  HostName 127.0.0.1\n  Port {}\n  User {}\n  IdentityFile {}\n  IdentityAgent none\n\
         Host gpu-?\n  Port 1\n  User nobody\nHost *\n  HostName no-such-host.invalid\n",
        server.port,
        user(),
        client.key().display()
    ));
    works(&client, client.named("gpu-1"));
    let mut link = client.open(client.request(client.named("gpu-bad")));
    // Retried only if no name server responds.
    let state = link.until("the other block", |state| match state {
        LinkState::Lost { reason, .. } => reason.contains("no-such-host.invalid"),
        LinkState::Failed(failure) => failure.error.contains("no-such-host.invalid"),
        _ => false,
    });
    if matches!(state, LinkState::Lost { .. }) {
        link.close();
    }
}

#[test]
fn included_ssh_configs_apply() {
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
fn match_blocks_apply() {
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
fn hosts_toml_overrides_ssh_config() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    client.write_config(
        "Host 127.0.0.1\n  Port 1\n  User nobody\n  IdentityFile /nowhere\n  ProxyJump no-such-host.invalid\n  IdentityAgent none\n",
    );
    works(&client, Host { user: Some(user()), proxy_jump: Some("none".into()), ..client.host(&server) });
}

#[test]
fn jump_chain_of_ssh_config_is_followed() {
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
fn server_alive_options_set_silence_limit() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    client.configure("IdentityAgent none\nServerAliveInterval 1\nServerAliveCountMax 2\n");
    let mut link = client.link(&server);
    link.ready();
    link.talk(1);
    kill(client.agent_pid(), libc::SIGSTOP);
    let began = Instant::now();
    link.until("lost", |state| matches!(state, LinkState::Lost { .. }));
    assert!(began.elapsed() < rankdeck_link::SILENCE, "2 s apply: {:?}", began.elapsed());
    kill(client.agent_pid(), libc::SIGCONT);
    link.ready();
    link.talk(2);
    link.close();
    // Longer than the default.
    client.configure("IdentityAgent none\nServerAliveInterval 10\nServerAliveCountMax 6\n");
    let mut link = client.link(&server);
    link.ready();
    link.talk(3);
    kill(client.agent_pid(), libc::SIGSTOP);
    let began = Instant::now();
    std::thread::sleep(rankdeck_link::SILENCE + Duration::from_secs(2));
    kill(client.agent_pid(), libc::SIGCONT);
    link.talk(4);
    assert!(began.elapsed() > rankdeck_link::SILENCE);
    assert!(!link.states.iter().any(|state| matches!(state, LinkState::Lost { .. })), "{:?}", link.states);
    link.close();
}

/// Signs `key` for the user that runs the tests: creates `KEY-cert.pub` next to it.
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

/// Starts a server that accepts an authority and no key.
fn trusting() -> Option<(Sshd, tempfile::TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    crate::support::sshd::program("ssh-keygen")?;
    let authority = folder.path().join("ca");
    keygen(&authority, "ed25519", "");
    let server = Sshd::start(&format!("TrustedUserCAKeys {}.pub", authority.display()))?;
    Some((server, folder))
}

#[test]
fn certificate_is_offered_before_its_key() {
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
    // An expired certificate does not prevent the login with its key, and is named if that fails too.
    let client = Client::of(&server);
    certify(&authority, &client.key(), "20000101:20000102");
    let mut link = client.link(&server);
    link.ready();
    link.close();
    fs::write(server.folder.join("authorized_keys"), "").unwrap();
    let (error, _) = client.link(&server).failed();
    assert!(error.contains("id-cert.pub"), "{error}");
}

#[test]
fn certificates_come_from_files_and_ssh_agent() {
    let Some((server, folder)) = trusting() else { return };
    let authority = folder.path().join("ca");
    let client = Client::of(&server);
    fs::write(server.folder.join("authorized_keys"), "").unwrap();
    certify(&authority, &client.key(), "+1h");
    let (beside, elsewhere) = (client.folder.join("id-cert.pub"), client.folder.join("elsewhere.pub"));
    fs::rename(&beside, &elsewhere).unwrap();
    assert!(client.link(&server).failed().0.contains(&client.key().display().to_string()));
    client.configure(&format!("IdentityAgent none\nCertificateFile {}\n", elsewhere.display()));
    works(&client, client.host(&server));
    // `ssh-add` adds the certificate next to the key.
    fs::rename(&elsewhere, &beside).unwrap();
    let agent = KeyAgent::start(&client.folder);
    agent.add(&client.key());
    fs::remove_file(&beside).unwrap();
    fs::remove_file(client.key()).unwrap();
    client.configure(&format!("IdentityAgent {}\n", agent.socket.display()));
    works(&client, client.host(&server));
}
