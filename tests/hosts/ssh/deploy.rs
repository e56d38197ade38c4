//! Uploads of the binaries, and checks of the host before them.

use super::client::{Answers, Client};
use crate::support::sshd::Sshd;
use rankdeck_link::LinkRequest;
use rankdeck_types::host::Host;
use rankdeck_types::link_state::LinkState;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// Returns the relative paths of the files in the host's cache folder, sorted.
pub fn cached(server: &Sshd) -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![server.folder.join("cache")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.path().is_dir() {
                true => folders.push(entry.path()),
                false => files.push(
                    entry.path().strip_prefix(server.folder.join("cache")).unwrap().display().to_string(),
                ),
            }
        }
    }
    files.sort();
    files
}

#[test]
fn agent_is_uploaded_once() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let mut first = client.link(&server);
    first.ready();
    first.talk(7);
    assert_eq!(first.uploads(), ["rankdeck"]);
    let size = fs::metadata(client.agent()).unwrap().len();
    assert!(
        first.states.contains(&LinkState::Uploading { what: "rankdeck".into(), done: size, total: size }),
        "{:?}",
        first.states
    );
    let files = cached(&server);
    assert_eq!(files.len(), 1, "{files:?}");
    let there = server.folder.join("cache").join(&files[0]);
    assert_eq!(fs::read(&there).unwrap(), fs::read(client.agent()).unwrap());
    assert_eq!(fs::metadata(&there).unwrap().permissions().mode() & 0o777, 0o755);

    let mut second = client.link(&server);
    second.ready();
    second.talk(8);
    assert!(second.uploads().is_empty(), "{:?}", second.states);
    let calls = client.calls();
    assert_eq!(calls.len(), 2, "{calls:?}");
    let workdir = client.workdir().display().to_string();
    let expected =
        format!("agent start --run it's-a-run --host node1 --node-rank 0 --workdir {workdir} --launcher ");
    assert!(calls[0].starts_with(&expected), "{calls:?}");
    assert_eq!(calls[0], calls[1], "one console has one launcher ID");
    first.close();
    second.close();
}

#[test]
fn trainer_is_uploaded_beside_cached_agent() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let mut plain = client.link(&server);
    assert_eq!(plain.ready().trainer, None);
    plain.close();
    let trainer = client.folder.join("trainer");
    fs::write(&trainer, "the trainer").unwrap();
    let request =
        LinkRequest { trainer_binary: Some(trainer.clone()), ..client.request(client.host(&server)) };
    let mut link = client.open(request);
    let found = PathBuf::from(link.ready().trainer.unwrap());
    assert_eq!(link.uploads(), ["rankdeck-trainer"]);
    assert_eq!(fs::read_to_string(&found).unwrap(), "the trainer");
    assert!(found.parent().unwrap().join("rankdeck").exists());
    assert_eq!(cached(&server).len(), 3);
    link.close();
}

#[test]
fn unwritable_cache_folder_is_named() {
    // The first `SetEnv` applies.
    let Some(server) = Sshd::start("SetEnv RANKDECK_CACHE=/proc/nowhere") else { return };
    let client = Client::of(&server);
    let mut link = client.link(&server);
    let (error, hint) = link.failed();
    assert!(error.contains("/proc/nowhere"), "{error}");
    assert!(!hint.contains("df -h") && hint.contains("RANKDECK_CACHE"), "no disk is full: {hint}");
    assert_eq!(link.attempts(), 1);
}

/// sshd allows one command at a time.
#[test]
fn server_with_one_session_gets_agent_and_trainer() {
    for extra in ["MaxSessions 1", "MaxSessions 1\nAllowStreamLocalForwarding no"] {
        let Some(server) = Sshd::start(extra) else { return };
        let client = Client::of(&server);
        let trainer = client.folder.join("trainer");
        fs::write(&trainer, "trainer").unwrap();
        let request = LinkRequest { trainer_binary: Some(trainer), ..client.request(client.host(&server)) };
        let mut link = client.open(request);
        link.ready();
        link.talk(1);
        assert_eq!((link.attempts(), server.logins()), (1, 1), "{:?}", link.states);
        link.close();
    }
}

/// Returns a folder, and an sshd setting, with which `uname` and `getconf` print `system` and `libc`.
fn fake_system(system: &str, libc: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    for (name, output) in [("uname", system), ("getconf", libc)] {
        let path = folder.path().join(name);
        fs::write(&path, format!("#!/bin/sh\ntest -n '{output}' && echo '{output}'\n")).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let path = format!("SetEnv PATH={}:/usr/bin:/bin", folder.path().display());
    (folder, path)
}

/// Uses this program as the agent; `foreign`: with a loader that does not exist.
fn real_agent(client: &Client, foreign: bool) {
    let mut program = fs::read(env!("CARGO_BIN_EXE_rankdeck")).unwrap();
    if foreign {
        let loader = b"/lib64/ld-linux-x86-64.so.2\0";
        let at = program.windows(loader.len()).position(|window| window == loader).unwrap();
        program[at + loader.len() - 2] = b'9';
    }
    fs::write(client.agent(), program).unwrap();
}

#[test]
fn incompatible_host_is_rejected_before_upload() {
    let linux = format!("Linux {}", std::env::consts::ARCH);
    let cases = [
        (linux.as_str(), "", true, "glibc"),
        (&linux, "glibc 2.17", false, "glibc 2.17"),
        ("Linux aarch64", "glibc 2.36", false, "Linux aarch64"),
        ("Darwin arm64", "", false, "Darwin arm64"),
    ];
    for (system, libc, foreign, named) in cases {
        let (_programs, path) = fake_system(system, libc);
        // Only the first `SetEnv` applies.
        let keep = tempfile::tempdir().unwrap();
        let cache = keep.path().join("cache");
        let extra = format!("{path} RANKDECK_CACHE={} SHLVL=2", cache.display());
        let Some(server) = Sshd::start(&extra) else { return };
        let client = Client::of(&server);
        real_agent(&client, foreign);
        let mut link = client.link(&server);
        let (error, hint) = link.failed();
        assert!(error.contains(named) && !hint.is_empty(), "{system} {libc}: {error}; {hint}");
        assert!(link.uploads().is_empty() && !cache.exists() && link.attempts() == 1, "{:?}", link.states);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_shot_command_deploys_agent() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let answers = || Arc::new(Answers(Mutex::new(Vec::new())));
    let args = ["list", "--workdir", "it's $HOME"].map(String::from);
    let host = client.host(&server);
    for _ in 0..2 {
        let reply = client.exec(&host, &args, answers()).await.unwrap();
        assert_eq!(reply, r#"["--workdir", "it's $HOME"]"#);
    }
    assert_eq!(server.logins(), 1, "one session for the upload and both commands");
    let error = client.exec(&host, &["nonsense".to_string()], answers()).await.unwrap_err();
    assert!(error.error.contains("unknown command nonsense"), "{error}");
    // Another target does not use the pooled session.
    client.know("");
    let host = Host { name: "again".into(), ..host };
    let error = client.exec(&host, &args, answers()).await.unwrap_err();
    assert!(error.hint.contains("ssh-keyscan"), "{error}");
    let yes = Arc::new(Answers(Mutex::new(vec!["yes".to_string()])));
    client.exec(&host, &args, yes).await.unwrap();
}
