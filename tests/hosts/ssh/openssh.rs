//! `transport = "openssh"`: what libssh2 lacks, and errors.

use super::client::{Answers, Client};
use crate::support::sshd::{Sshd, eventually};
use rankdeck_link::{AgentCommand, LinkRequest, Upload};
use rankdeck_types::host::{Host, Transport};
use rankdeck_types::link_state::LinkState;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

fn host(client: &Client, server: &Sshd) -> Host {
    Host { transport: Transport::Openssh, ..client.host(server) }
}

#[test]
fn openssh_link_deploys_and_reconnects() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let trainer = client.folder.join("trainer");
    fs::write(&trainer, vec![7; 1 << 20]).unwrap();
    let request = LinkRequest { trainer_binary: Some(trainer), ..client.request(host(&client, &server)) };
    let mut link = client.open(request);
    link.ready();
    assert_eq!(link.uploads(), ["rankdeck", "rankdeck-trainer"]);
    link.talk(1);
    assert!(server.kill_sessions());
    link.until("lost", |state| matches!(state, LinkState::Lost { .. }));
    link.ready();
    link.talk(2);
    link.close();
    eventually("all sessions end", || !server.has_sessions());
}

#[tokio::test(flavor = "multi_thread")]
async fn openssh_one_shot_commands_upload_files() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let file = client.folder.join("file");
    fs::write(&file, vec![1; 20 << 20]).unwrap();
    let command = AgentCommand {
        args: ["list", "--workdir", "it's $HOME"].map(String::from).to_vec(),
        uploads: vec![Upload { path: file.clone(), folder: "code".into(), name: "file".into() }],
        ..AgentCommand::default()
    };
    for sent in [20 << 20, 0] {
        let answers = Arc::new(Answers(Mutex::new(Vec::new())));
        let reply = client
            .links()
            .call(&host(&client, &server), &client.agent(), command.clone(), answers)
            .await
            .unwrap();
        assert_eq!((reply.text.as_str(), reply.uploaded), (r#"["--workdir", "it's $HOME"]"#, sent));
    }
    assert_eq!(fs::read(server.folder.join("cache/code/file")).unwrap(), fs::read(&file).unwrap());
    eventually("all sessions end", || !server.has_sessions());
}

/// Each case needs something that libssh2 lacks.
#[test]
fn openssh_covers_what_libssh2_lacks() {
    let Some(server) = Sshd::start("KexAlgorithms sntrup761x25519-sha512@openssh.com") else { return };
    let client = Client::of(&server);
    assert!(client.link(&server).failed().1.contains("transport = \"openssh\""));
    let mut link = client.open(client.request(host(&client, &server)));
    link.ready();
    link.close();

    let Some(mut server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let authority = client.folder.join("ca");
    crate::support::sshd::keygen(&authority, "ed25519", "");
    let signed = Command::new("ssh-keygen")
        .arg("-qs")
        .arg(&authority)
        .args(["-I", "host", "-h", "-n", "127.0.0.1"])
        .arg(server.folder.join("host_ed25519.pub"))
        .stderr(Stdio::null())
        .status();
    assert!(signed.unwrap().success());
    let certificate = server.folder.join("host_ed25519-cert.pub");
    server.configure(&format!("HostCertificate {}", certificate.display()));
    let public = fs::read_to_string(authority.with_extension("pub")).unwrap();
    client.know(&format!("@cert-authority * {public}"));
    assert!(client.link(&server).failed().1.contains("transport = \"openssh\""));
    let mut link = client.open(client.request(host(&client, &server)));
    link.ready();
    link.talk(1);
    link.close();
}

/// OPENSSH-1.
#[test]
fn openssh_does_not_prompt() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let known = fs::read_to_string(client.known_hosts()).unwrap();
    client.know("");
    let mut link = client.open(LinkRequest { interactive: true, ..client.request(host(&client, &server)) });
    let (error, hint) = link.failed();
    assert!(error.contains("Host key verification failed"), "{error}");
    assert!(hint.contains("BatchMode") && hint.contains("`ssh -F "), "{hint}");
    assert_eq!(link.attempts(), 1);
    client.know(&known);
    fs::write(server.folder.join("authorized_keys"), "").unwrap();
    let mut link = client.open(client.request(host(&client, &server)));
    assert!(link.failed().0.contains("Permission denied"));
    assert_eq!(link.attempts(), 1);
}
