//! Host keys: unknown, accepted, changed, hashed, revoked, of several types.

use super::client::Client;
use crate::support::sshd::{Sshd, keygen};
use rankdeck_types::link_state::{LinkState, Prompt};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The fingerprint as OpenSSH computes it.
fn fingerprint(server: &Sshd) -> String {
    let output =
        Command::new("ssh-keygen").arg("-lf").arg(server.folder.join("host_ed25519.pub")).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().nth(1).unwrap().to_string()
}

#[test]
fn an_unknown_key_is_refused_with_its_fingerprint_before_any_key_of_ours_is_offered() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    client.know("");
    let mut link = client.link(&server);
    let (error, hint) = link.failed();
    assert!(error.contains("unknown") && error.contains(&fingerprint(&server)), "{error}");
    assert!(hint.contains(&format!("ssh-keyscan -p {}", server.port)), "{hint}");
    assert_eq!(link.attempts(), 1);
    assert_eq!(server.logins(), 0);
    assert!(!server.log().contains("userauth"), "nothing was offered");
}

#[test]
fn an_accepted_key_is_remembered_in_a_file_for_the_owner_only() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    fs::remove_dir_all(client.folder.join("ssh")).unwrap();
    let mut link = client.interactive_link(&server);
    let prompt = link.asked();
    let host = format!("[127.0.0.1]:{}", server.port);
    assert_eq!(
        prompt,
        Prompt::UnknownHostKey { host, key_type: "ssh-ed25519".into(), fingerprint: fingerprint(&server) }
    );
    link.answer("yes");
    link.ready();
    link.close();
    let mode = |path: &str| fs::metadata(client.folder.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("ssh"), mode("ssh/known_hosts")), (0o700, 0o600));
    let text = fs::read_to_string(client.known_hosts()).unwrap();
    assert_eq!(text, format!("[127.0.0.1]:{} {}\n", server.port, server.host_key("host_ed25519")));
    // OpenSSH agrees, and so do we the next time.
    let found = Command::new("ssh-keygen")
        .arg("-F")
        .arg(format!("[127.0.0.1]:{}", server.port))
        .arg("-f")
        .arg(client.known_hosts())
        .stdout(Stdio::null())
        .status();
    assert!(found.unwrap().success());
    let mut again = client.link(&server);
    again.ready();
    again.close();
}

#[test]
fn anything_but_yes_refuses() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    client.know("");
    let mut link = client.interactive_link(&server);
    link.asked();
    link.answer("y");
    assert!(link.failed().0.contains("not accepted"));
    assert_eq!(fs::read_to_string(client.known_hosts()).unwrap(), "");
}

#[test]
fn strict_checking_does_not_even_ask() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    client.know("");
    client.configure("IdentityAgent none\nStrictHostKeyChecking yes\n");
    assert!(client.interactive_link(&server).failed().0.contains("StrictHostKeyChecking"));
}

#[test]
fn new_keys_are_accepted_where_the_configuration_says_so_and_changed_ones_nowhere() {
    for word in ["accept-new", "no"] {
        let Some(server) = Sshd::start("") else { return };
        let client = Client::of(&server);
        client.know("");
        client.configure(&format!("IdentityAgent none\nStrictHostKeyChecking {word}\n"));
        let mut link = client.link(&server);
        link.ready();
        link.close();
        let line = format!("[127.0.0.1]:{} {}\n", server.port, server.host_key("host_ed25519"));
        assert_eq!(fs::read_to_string(client.known_hosts()).unwrap(), line, "{word}");
        keygen(&client.folder.join("other"), "ed25519", "");
        let other = fs::read_to_string(client.folder.join("other.pub")).unwrap();
        client.know(&format!("[127.0.0.1]:{} {other}", server.port));
        assert!(client.link(&server).failed().0.contains("changed"), "{word}");
    }
}

#[test]
fn a_changed_key_is_refused_with_both_fingerprints_and_the_line_whoever_is_there() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    keygen(&client.folder.join("other"), "ed25519", "");
    let other = fs::read_to_string(client.folder.join("other.pub")).unwrap();
    client.know(&format!("# mine\n[127.0.0.1]:{} {other}", server.port));
    let mut link = client.interactive_link(&server);
    let (error, hint) = link.failed();
    assert!(error.contains("changed") && error.contains(&fingerprint(&server)), "{error}");
    assert!(error.matches("SHA256:").count() == 2 && error.contains("known_hosts:2"), "{error}");
    assert!(hint.contains("ssh-keygen -R"), "{hint}");
    assert_eq!(server.logins(), 0);
}

#[test]
fn hashed_files_and_files_with_rubbish_are_understood() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let hashed = Command::new("ssh-keygen")
        .arg("-H")
        .arg("-f")
        .arg(client.known_hosts())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(hashed.unwrap().success());
    let text = fs::read_to_string(client.known_hosts()).unwrap();
    assert!(text.starts_with("|1|"), "{text}");
    client.know(&format!("rubbish\n@cert-authority * ssh-ed25519 AAAA\n{text}"));
    let mut link = client.link(&server);
    link.ready();
    link.close();
}

#[test]
fn a_key_known_for_another_port_does_not_count() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    client.know(&format!("127.0.0.1 {key}\n[127.0.0.1]:1 {key}\n", key = server.host_key("host_ed25519")));
    assert!(client.link(&server).failed().0.contains("unknown"));
}

#[test]
fn a_revoked_key_is_refused_though_it_is_listed() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let key = server.host_key("host_ed25519");
    client.know(&format!("[127.0.0.1]:{} {key}\n@revoked * {key}\n", server.port));
    assert!(client.link(&server).failed().0.contains("revoked"));
}

/// `RevokedHostKeys` in every form that OpenSSH takes; its client is the reference.
#[test]
fn keys_that_the_configuration_revokes_are_refused() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let public = server.folder.join("host_ed25519.pub");
    let other = client.folder.join("other");
    keygen(&other, "ed25519", "");
    let list = |name: &str, key: &Path| {
        let path = client.folder.join(name);
        let made = Command::new("ssh-keygen").args(["-q", "-k", "-f"]).arg(&path).arg(key).status();
        assert!(made.unwrap().success());
        path
    };
    let garbled = client.folder.join("garbled");
    fs::write(&garbled, "SSHKRL\n\0and so on").unwrap();
    let cases = [
        (public.clone(), Some("revoked by")),
        (list("krl", &public), Some("revoked by")),
        (client.folder.join("missing"), Some("no host key is accepted")),
        (garbled, Some("no host key is accepted")),
        (other.with_extension("pub"), None),
        (list("other-krl", &other.with_extension("pub")), None),
    ];
    for (file, refused) in cases {
        client.configure(&format!("IdentityAgent none\nRevokedHostKeys {}\n", file.display()));
        let mut command = Command::new("ssh");
        command.arg("-F").arg(client.folder.join("config")).arg("-i").arg(client.key());
        command.args(["-o", "BatchMode=yes", "-p", &server.port.to_string(), "127.0.0.1", "true"]);
        let theirs = command.stderr(Stdio::null()).status().unwrap().success();
        assert_eq!(theirs, refused.is_none(), "{}", file.display());
        let mut link = client.interactive_link(&server);
        match refused {
            None => {
                link.ready();
                link.close();
            }
            Some(words) => {
                let (error, hint) = link.failed();
                assert!(error.contains(words) && error.contains(&file.display().to_string()), "{error}");
                assert!(!hint.is_empty());
                assert_eq!(link.attempts(), 1);
            }
        }
    }
}

#[test]
fn a_host_of_a_certificate_authority_is_refused_in_words_unless_its_key_is_on_record() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let authority = client.folder.join("ca");
    keygen(&authority, "ed25519", "");
    let authority = fs::read_to_string(authority.with_extension("pub")).unwrap();
    let plain = fs::read_to_string(client.known_hosts()).unwrap();
    client.know(&format!("@cert-authority [127.0.0.1]:* {authority}"));
    let mut link = client.interactive_link(&server);
    let (error, hint) = link.failed();
    assert!(error.contains("certificate authority") && error.contains("known_hosts:1"), "{error}");
    assert!(!hint.contains("accept-new") && hint.contains("known_hosts"), "{hint}");
    assert!(!link.states.iter().any(|state| matches!(state, LinkState::Asking { .. })), "nobody is asked");
    client.know(&format!("@cert-authority [127.0.0.1]:* {authority}{plain}"));
    let mut link = client.link(&server);
    link.ready();
    link.close();
}

#[test]
fn the_configuration_says_which_algorithms_are_good_enough() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    for (line, words) in [
        ("HostKeyAlgorithms rsa-sha2-512", "no common algorithm"),
        ("HostKeyAlgorithms sk-ssh-ed25519@openssh.com", "HostKeyAlgorithms of the ssh configuration"),
        ("Ciphers aes128-cbc", "Ciphers of the ssh configuration"),
        ("KexAlgorithms sntrup761x25519-sha512@openssh.com", "KexAlgorithms of the ssh configuration"),
        ("KnownHostsCommand /bin/false", "KnownHostsCommand"),
    ] {
        client.configure(&format!("IdentityAgent none\n{line}\n"));
        let mut link = client.link(&server);
        let (error, hint) = link.failed();
        assert!(error.contains(words) && !hint.is_empty(), "{line}: {error}; {hint}");
        assert_eq!(link.attempts(), 1, "{line}");
    }
    client.configure(
        "IdentityAgent none\nHostKeyAlgorithms ssh-ed25519\nCiphers aes128-ctr\nMACs hmac-sha2-512\n",
    );
    let mut link = client.link(&server);
    link.ready();
    link.close();
}

#[test]
fn the_type_on_record_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let second = folder.path().join("host_ecdsa");
    if rankdeck_testkit::program("ssh-keygen").is_none() {
        rankdeck_testkit::skip!("no ssh-keygen; install openssh-client");
    }
    for kind in ["ecdsa", "rsa"] {
        keygen(&second, kind, "");
        let Some(server) = Sshd::start(&format!("HostKey {}", second.display())) else { return };
        let client = Client::of(&server);
        let public = fs::read_to_string(second.with_extension("pub")).unwrap();
        client.know(&format!("[127.0.0.1]:{} {public}", server.port));
        let mut link = client.link(&server);
        link.ready();
        link.close();
        fs::remove_file(&second).unwrap();
    }
}
