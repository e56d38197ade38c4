//! Host keys: unknown, accepted, changed, hashed, revoked, of several types.

use super::client::Client;
use crate::support::sshd::{Sshd, keygen};
use rankdeck_types::link_state::{LinkState, Prompt};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns the fingerprint from `ssh-keygen`.
fn fingerprint(server: &Sshd) -> String {
    let output =
        Command::new("ssh-keygen").arg("-lf").arg(server.folder.join("host_ed25519.pub")).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().nth(1).unwrap().to_string()
}

#[test]
fn unknown_host_key_is_rejected_before_authentication() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    client.know("");
    let mut link = client.link(&server);
    let (error, hint) = link.failed();
    assert!(error.contains(&fingerprint(&server)), "{error}");
    assert!(hint.contains(&format!("ssh-keyscan -p {}", server.port)), "{hint}");
    assert_eq!(link.attempts(), 1);
    assert_eq!(server.logins(), 0);
    assert!(!server.log().contains("userauth"), "a key was offered");
}

#[test]
fn accepted_host_key_is_stored_in_private_file() {
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
    // OpenSSH and rankdeck find it.
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
fn answer_other_than_yes_rejects_host_key() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    client.know("");
    let mut link = client.interactive_link(&server);
    link.asked();
    link.answer("y");
    link.failed();
    assert_eq!(server.logins(), 0);
    assert_eq!(fs::read_to_string(client.known_hosts()).unwrap(), "");
}

#[test]
fn strict_checking_rejects_without_prompt() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    client.know("");
    client.configure("IdentityAgent none\nStrictHostKeyChecking yes\n");
    assert!(client.interactive_link(&server).failed().0.contains("StrictHostKeyChecking"));
}

#[test]
fn accept_new_accepts_unknown_but_not_changed_keys() {
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
        assert!(client.link(&server).failed().0.contains("known_hosts:1"), "{word}");
    }
}

#[test]
fn changed_host_key_is_rejected_with_fingerprints() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    keygen(&client.folder.join("other"), "ed25519", "");
    let other = fs::read_to_string(client.folder.join("other.pub")).unwrap();
    client.know(&format!("# mine\n[127.0.0.1]:{} {other}", server.port));
    let mut link = client.interactive_link(&server);
    let (error, hint) = link.failed();
    assert!(error.contains(&fingerprint(&server)), "{error}");
    assert!(error.matches("SHA256:").count() == 2 && error.contains("known_hosts:2"), "{error}");
    assert!(hint.contains("ssh-keygen -R"), "{hint}");
    assert_eq!(server.logins(), 0);
}

#[test]
fn hashed_known_hosts_with_invalid_lines_is_read() {
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
    client.know(&format!("invalid\n@cert-authority * ssh-ed25519 AAAA\n{text}"));
    let mut link = client.link(&server);
    link.ready();
    link.close();
}

#[test]
fn host_key_of_another_port_is_unknown() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    client.know(&format!("127.0.0.1 {key}\n[127.0.0.1]:1 {key}\n", key = server.host_key("host_ed25519")));
    assert!(client.link(&server).failed().1.contains("ssh-keyscan"));
}

#[test]
fn revoked_host_key_is_rejected_though_listed() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let key = server.host_key("host_ed25519");
    client.know(&format!("[127.0.0.1]:{} {key}\n@revoked * {key}\n", server.port));
    assert!(client.link(&server).failed().0.contains("known_hosts:2"));
}

/// `RevokedHostKeys` in every form that OpenSSH supports; its client is the reference.
#[test]
fn keys_in_revoked_host_keys_are_rejected() {
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
        (public.clone(), true),
        (list("krl", &public), true),
        (client.folder.join("missing"), true),
        (garbled, true),
        (other.with_extension("pub"), false),
        (list("other-krl", &other.with_extension("pub")), false),
    ];
    for (file, rejected) in cases {
        client.configure(&format!("IdentityAgent none\nRevokedHostKeys {}\n", file.display()));
        let mut command = Command::new("ssh");
        command.arg("-F").arg(client.folder.join("config")).arg("-i").arg(client.key());
        command.args(["-o", "BatchMode=yes", "-p", &server.port.to_string(), "127.0.0.1", "true"]);
        let reference = command.stderr(Stdio::null()).status().unwrap().success();
        assert_eq!(reference, !rejected, "{}", file.display());
        let mut link = client.interactive_link(&server);
        if rejected {
            let (error, hint) = link.failed();
            assert!(error.contains(&file.display().to_string()) && !hint.is_empty(), "{error}; {hint}");
            assert_eq!(link.attempts(), 1);
        } else {
            link.ready();
            link.close();
        }
    }
}

#[test]
fn host_of_certificate_authority_needs_known_key() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let authority = client.folder.join("ca");
    keygen(&authority, "ed25519", "");
    let authority = fs::read_to_string(authority.with_extension("pub")).unwrap();
    let plain = fs::read_to_string(client.known_hosts()).unwrap();
    client.know(&format!("@cert-authority [127.0.0.1]:* {authority}"));
    let mut link = client.interactive_link(&server);
    let (error, hint) = link.failed();
    assert!(error.contains("known_hosts:1"), "{error}");
    assert!(!hint.contains("accept-new") && hint.contains("known_hosts"), "{hint}");
    assert!(!link.states.iter().any(|state| matches!(state, LinkState::Asking { .. })), "prompted");
    client.know(&format!("@cert-authority [127.0.0.1]:* {authority}{plain}"));
    let mut link = client.link(&server);
    link.ready();
    link.close();
}

#[test]
fn algorithms_of_ssh_config_apply() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    for (line, named) in [
        ("HostKeyAlgorithms rsa-sha2-512", "rsa-sha2-512"),
        ("HostKeyAlgorithms sk-ssh-ed25519@openssh.com", "HostKeyAlgorithms"),
        ("Ciphers aes128-cbc", "Ciphers"),
        ("KexAlgorithms sntrup761x25519-sha512@openssh.com", "KexAlgorithms"),
        ("KnownHostsCommand /bin/false", "KnownHostsCommand"),
    ] {
        client.configure(&format!("IdentityAgent none\n{line}\n"));
        let mut link = client.link(&server);
        let (error, hint) = link.failed();
        assert!(error.contains(named) && !hint.is_empty(), "{line}: {error}; {hint}");
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
fn known_key_type_is_negotiated() {
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
