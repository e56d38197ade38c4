//! Keys of every kind, passphrases, the ssh-agent, refusals.

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
fn keys_of_every_kind_log_in() {
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
fn old_pem_keys_log_in() {
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
fn a_passphrase_is_asked_for_once_though_a_second_session_needs_it() {
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
fn three_wrong_passphrases_are_enough() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    rekey(&client, &server, "ed25519", "right");
    let mut link = client.interactive_link(&server);
    for _ in 0..3 {
        link.asked();
        link.answer("wrong");
    }
    let (error, hint) = link.failed();
    assert!(error.contains("wrong passphrase"), "{error}");
    assert!(hint.contains("ssh-keygen -y"), "{hint}");
    assert_eq!(link.attempts(), 1, "not tried again");
}

#[test]
fn a_refused_question_ends_the_link() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    rekey(&client, &server, "ed25519", "right");
    let mut link = client.interactive_link(&server);
    link.asked();
    link.order(LinkCommand::Answer(None));
    assert!(link.failed().0.contains("no passphrase given"));
}

#[test]
fn without_a_user_an_encrypted_key_fails_with_the_command_that_helps() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    rekey(&client, &server, "ed25519", "right");
    let (error, hint) = client.link(&server).failed();
    assert!(error.contains("needs a passphrase"), "{error}");
    assert!(hint.contains(&format!("ssh-add {}", client.key().display())), "{hint}");
}

#[test]
fn a_wrong_key_fails_at_once_and_names_the_key_and_the_account() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    fs::write(server.folder.join("authorized_keys"), "").unwrap();
    let mut link = client.link(&server);
    let (error, hint) = link.failed();
    assert!(
        error.contains("refused the login") && error.contains(&client.key().display().to_string()),
        "{error}"
    );
    assert!(error.contains(&format!("@127.0.0.1:{}", server.port)), "{error}");
    assert!(hint.contains("ssh-copy-id"), "{hint}");
    assert_eq!(link.attempts(), 1);
}

#[test]
fn a_file_that_is_no_key_and_a_missing_key_are_named() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    fs::write(client.key(), "nonsense").unwrap();
    assert!(client.link(&server).failed().0.contains("no private key"));
    fs::remove_file(client.key()).unwrap();
    let (error, hint) = client.link(&server).failed();
    assert!(error.contains("no key to offer") && hint.contains("identity_file"), "{error}; {hint}");
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
fn auth_2_every_identity_of_the_agent_gets_its_turn() {
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
fn auth_1_the_configured_key_comes_first_among_many_of_the_agent() {
    let Some(server) = Sshd::start("MaxAuthTries 3") else { return };
    let client = Client::of(&server);
    let agent = KeyAgent::start(&client.folder);
    for number in 0..8 {
        let key = client.folder.join(format!("k{number}"));
        keygen(&key, "ed25519", "");
        agent.add(&key);
    }
    agent.add(&client.key());
    // The private half is only in the agent; its public file tells which identity is meant.
    fs::rename(client.key().with_extension("pub"), client.key()).unwrap();
    client.configure(&format!("IdentityAgent {}\n", agent.socket.display()));
    let mut link = client.link(&server);
    link.ready();
    link.close();
}

/// An agent with `before` other keys and then the client's own, which lies in no file.
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

/// Does OpenSSH's own client get in with this configuration?
fn openssh_gets_in(client: &Client, server: &Sshd, key: Option<&Path>) -> bool {
    let mut command = Command::new("ssh");
    command.arg("-F").arg(client.folder.join("config")).args(["-o", "BatchMode=yes"]);
    command.args(["-p", &server.port.to_string()]);
    command.args(key.map(|key| format!("-oIdentityFile={}", key.display())));
    command.args(["127.0.0.1", "true"]).stdin(Stdio::null()).stderr(Stdio::null());
    command.status().unwrap().success()
}

/// AUTH-1: the key's place in the agent, the server's limit, and what OpenSSH makes of it.
#[test]
fn auth_1_a_refused_key_costs_one_attempt_as_with_openssh() {
    for (before, tries) in [(0, 1), (1, 2), (2, 3), (5, 6), (9, 10), (1, 1), (3, 3)] {
        let Some(server) = Sshd::start(&format!("MaxAuthTries {tries}")) else { return };
        let client = Client::of(&server);
        let agent = crowded(&client, before);
        fs::remove_file(client.key()).unwrap();
        client.configure(&format!("IdentityAgent {}\nIdentityFile none\n", agent.socket.display()));
        let theirs = openssh_gets_in(&client, &server, None);
        assert_eq!(theirs, before < tries, "{before} {tries}: {}", server.log());
        let mut link = client.link(&server);
        if theirs {
            link.ready();
            link.close();
        } else {
            let (error, hint) = link.failed();
            assert!(error.contains("hung up"), "{before} {tries}: {error}");
            assert!(hint.contains("IdentitiesOnly") && hint.contains("identity_file"), "{hint}");
        }
    }
}

/// AUTH-1: the order of the files decides among keys of the agent, and a file that the user has named gets
/// its turn though the agent's keys use up all attempts.
#[test]
fn auth_1_configured_keys_get_their_turn() {
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
        assert!(!in_agent || openssh_gets_in(&client, &server, Some(&client.key())));
        let mut link = client.link(&server);
        link.ready();
        link.close();
    }
}

#[test]
fn identities_only_keeps_the_agents_other_keys_back() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let agent = KeyAgent::start(&client.folder);
    agent.add(&client.key());
    fs::remove_file(client.key()).unwrap();
    client.configure(&format!("IdentityAgent {}\nIdentitiesOnly yes\n", agent.socket.display()));
    assert!(client.link(&server).failed().0.contains("no key to offer"));
}

#[test]
fn a_dead_agent_does_not_hinder_a_key_file() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    client.configure(&format!("IdentityAgent {}/nobody\n", client.folder.display()));
    let mut link = client.link(&server);
    link.ready();
    link.close();
}
