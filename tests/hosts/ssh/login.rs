//! Keys, passphrases, the ssh-agent, rejected logins.

use super::client::Client;
use crate::support::sshd::{Sshd, eventually, keygen};
use rankdeck_link::LinkCommand;
use rankdeck_types::link_state::{LinkState, Prompt};
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Replaces the client's key.
pub fn rekey(client: &Client, server: &Sshd, kind: &str, passphrase: &str) {
    fs::remove_file(client.key()).unwrap();
    fs::remove_file(client.key().with_extension("pub")).unwrap();
    fs::write(server.folder.join("authorized_keys"), "").unwrap();
    keygen(&client.key(), kind, passphrase);
    server.authorize(&client.key());
}

#[test]
fn every_key_type_logs_in() {
    let Some(server) = Sshd::start("") else { return };
    for kind in ["ed25519", "rsa", "ecdsa"] {
        let client = Client::of(&server);
        rekey(&client, &server, kind, "");
        let mut link = client.link(&server);
        let probe = link.ready();
        assert_eq!((probe.hostname.as_str(), probe.cpu_count), ("stand-in", 2), "{kind}");
        link.close();
    }
}

#[test]
fn pem_key_logs_in() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    rekey(&client, &server, "rsa", "");
    let status = Command::new("ssh-keygen")
        .args(["-q", "-p", "-m", "PEM", "-N", "", "-f"])
        .arg(client.key())
        .stdout(Stdio::null())
        .status();
    assert!(status.unwrap().success());
    assert!(fs::read_to_string(client.key()).unwrap().contains("BEGIN RSA PRIVATE KEY"));
    let mut link = client.link(&server);
    link.ready();
    link.close();
}

#[test]
fn passphrase_is_prompted_for_once() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    rekey(&client, &server, "ed25519", "open sesame");
    let mut link = client.interactive_link(&server);
    assert_eq!(link.asked(), Prompt::Passphrase { key: client.key().display().to_string() });
    link.answer("wrong");
    assert_eq!(link.asked(), Prompt::Passphrase { key: client.key().display().to_string() });
    link.answer("open sesame");
    link.ready();
    let asked = link.states.iter().filter(|state| matches!(state, LinkState::Asking { .. })).count();
    assert_eq!((asked, link.uploads().len(), server.logins()), (2, 1, 1), "{:?}", link.states);
    assert!(server.kill_sessions());
    link.until("lost", |state| matches!(state, LinkState::Lost { .. }));
    link.ready();
    link.close();
}

#[test]
fn three_wrong_passphrases_fail() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    rekey(&client, &server, "ed25519", "right");
    let mut link = client.interactive_link(&server);
    for _ in 0..3 {
        link.asked();
        link.answer("wrong");
    }
    let (error, hint) = link.failed();
    assert!(error.contains(&client.key().display().to_string()), "{error}");
    assert!(hint.contains("ssh-keygen -y"), "{hint}");
    assert_eq!(link.attempts(), 1);
}

#[test]
fn cancelled_prompt_ends_link() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    rekey(&client, &server, "ed25519", "right");
    let mut link = client.interactive_link(&server);
    link.asked();
    link.order(LinkCommand::Answer(None));
    assert!(link.failed().0.contains(&client.key().display().to_string()));
}

#[test]
fn encrypted_key_without_user_fails_with_ssh_add_hint() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    rekey(&client, &server, "ed25519", "right");
    let (_, hint) = client.link(&server).failed();
    assert!(hint.contains(&format!("ssh-add {}", client.key().display())), "{hint}");
}

#[test]
fn rejected_key_fails_without_retry() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    fs::write(server.folder.join("authorized_keys"), "").unwrap();
    let mut link = client.link(&server);
    let (error, hint) = link.failed();
    assert!(error.contains(&client.key().display().to_string()), "{error}");
    assert!(error.contains(&format!("@127.0.0.1:{}", server.port)), "{error}");
    assert!(hint.contains("ssh-copy-id"), "{hint}");
    assert_eq!(link.attempts(), 1);
}

#[test]
fn invalid_and_missing_keys_are_named() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    fs::write(client.key(), "nonsense").unwrap();
    assert!(client.link(&server).failed().0.contains(&client.key().display().to_string()));
    fs::remove_file(client.key()).unwrap();
    let (_, hint) = client.link(&server).failed();
    assert!(hint.contains("identity_file"), "{hint}");
}

/// A real ssh-agent.
pub struct KeyAgent {
    child: Child,
    pub socket: PathBuf,
}

impl KeyAgent {
    pub fn start(folder: &Path) -> KeyAgent {
        let socket = folder.join("agent.sock");
        let child =
            Command::new("ssh-agent").arg("-D").arg("-a").arg(&socket).stdout(Stdio::null()).spawn().unwrap();
        eventually("the ssh-agent listens", || UnixStream::connect(&socket).is_ok());
        KeyAgent { child, socket }
    }

    pub fn add(&self, key: &Path) {
        let mut command = Command::new("ssh-add");
        let status = command
            .arg("-q")
            .arg(key)
            .env("SSH_AUTH_SOCK", &self.socket)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert!(status.unwrap().success());
    }
}

impl Drop for KeyAgent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn auth_2_every_agent_identity_is_tried() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let agent = KeyAgent::start(&client.folder);
    for name in ["a", "b"] {
        keygen(&client.folder.join(name), "ed25519", "");
        agent.add(&client.folder.join(name));
    }
    agent.add(&client.key());
    fs::remove_file(client.key()).unwrap();
    client.configure(&format!("IdentityAgent {}\n", agent.socket.display()));
    let mut link = client.link(&server);
    link.ready();
    link.close();
}

#[test]
fn auth_1_configured_key_precedes_agent_keys() {
    let Some(server) = Sshd::start("MaxAuthTries 3") else { return };
    let client = Client::of(&server);
    let agent = KeyAgent::start(&client.folder);
    for number in 0..8 {
        let key = client.folder.join(format!("k{number}"));
        keygen(&key, "ed25519", "");
        agent.add(&key);
    }
    agent.add(&client.key());
    // Only the agent has the private key; the public file selects the identity.
    fs::rename(client.key().with_extension("pub"), client.key()).unwrap();
    client.configure(&format!("IdentityAgent {}\n", agent.socket.display()));
    let mut link = client.link(&server);
    link.ready();
    link.close();
}

/// Starts an agent with `before` other keys and then the client's key.
fn crowded(client: &Client, before: usize) -> KeyAgent {
    let agent = KeyAgent::start(&client.folder);
    for number in 0..before {
        let key = client.folder.join(format!("k{number}"));
        keygen(&key, "ed25519", "");
        agent.add(&key);
    }
    agent.add(&client.key());
    agent
}

/// Returns whether OpenSSH's client can log in with this configuration.
fn openssh_logs_in(client: &Client, server: &Sshd, key: Option<&Path>) -> bool {
    let mut command = Command::new("ssh");
    command.arg("-F").arg(client.folder.join("config")).args(["-o", "BatchMode=yes"]);
    command.args(["-p", &server.port.to_string()]);
    command.args(key.map(|key| format!("-oIdentityFile={}", key.display())));
    command.args(["127.0.0.1", "true"]).stdin(Stdio::null()).stderr(Stdio::null());
    command.status().unwrap().success()
}

/// AUTH-1: position of the key in the agent, limit of the server, with OpenSSH as the reference.
#[test]
fn auth_1_rejected_key_costs_one_attempt() {
    for (before, tries) in [(0, 1), (1, 2), (2, 3), (5, 6), (9, 10), (1, 1), (3, 3)] {
        let Some(server) = Sshd::start(&format!("MaxAuthTries {tries}")) else { return };
        let client = Client::of(&server);
        let agent = crowded(&client, before);
        fs::remove_file(client.key()).unwrap();
        client.configure(&format!("IdentityAgent {}\nIdentityFile none\n", agent.socket.display()));
        let reference = openssh_logs_in(&client, &server, None);
        assert_eq!(reference, before < tries, "{before} {tries}: {}", server.log());
        let mut link = client.link(&server);
        if reference {
            link.ready();
            link.close();
        } else {
            let (_, hint) = link.failed();
            assert!(hint.contains("IdentitiesOnly") && hint.contains("identity_file"), "{hint}");
        }
    }
}

/// The server disconnects after the only key, which it has refused.
#[test]
fn refused_key_at_the_limit_has_the_hint_of_a_refused_key() {
    let Some(server) = Sshd::start("MaxAuthTries 1") else { return };
    let client = Client::of(&server);
    fs::write(server.folder.join("authorized_keys"), "").unwrap();
    let (error, hint) = client.link(&server).failed();
    assert!(error.contains("refused") && hint.contains("ssh-copy-id"), "{error}; {hint}");
    assert!(!hint.contains("PAM") && !hint.contains("MaxAuthTries"), "{hint}");
}

/// AUTH-1: keys of the agent are tried in the order of the configured files, and a configured file is tried
/// even if the agent has more keys than the server allows attempts.
#[test]
fn auth_1_configured_keys_are_tried_before_the_limit() {
    for in_agent in [true, false] {
        let Some(server) = Sshd::start("MaxAuthTries 2") else { return };
        let client = Client::of(&server);
        let agent = KeyAgent::start(&client.folder);
        for number in 0..4 {
            let key = client.folder.join(format!("k{number}"));
            keygen(&key, "ed25519", "");
            agent.add(&key);
        }
        if in_agent {
            agent.add(&client.key());
        }
        client.configure(&format!("IdentityAgent {}\n", agent.socket.display()));
        assert!(!in_agent || openssh_logs_in(&client, &server, Some(&client.key())));
        let mut link = client.link(&server);
        link.ready();
        link.close();
    }
}

#[test]
fn identities_only_excludes_agent_keys() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let agent = KeyAgent::start(&client.folder);
    agent.add(&client.key());
    fs::remove_file(client.key()).unwrap();
    client.configure(&format!("IdentityAgent {}\nIdentitiesOnly yes\n", agent.socket.display()));
    client.link(&server).failed();
    assert_eq!(server.logins(), 0);
}

#[test]
fn unreachable_ssh_agent_does_not_block_key_file() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    client.configure(&format!("IdentityAgent {}/missing\n", client.folder.display()));
    let mut link = client.link(&server);
    link.ready();
    link.close();
}
