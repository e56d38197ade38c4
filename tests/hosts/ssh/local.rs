//! The local transport: an agent on this machine.

use super::client::{Answers, Client};
use crate::support::sshd::{Sshd, kill};
use rankdeck_link::{LinkRequest, NoAgentPolicy};
use rankdeck_types::host::{Host, Transport};
use rankdeck_types::link_state::LinkState;
use std::sync::{Arc, Mutex};

fn local(client: &Client, server: &Sshd) -> Host {
    Host { transport: Transport::Local, ..client.host(server) }
}

#[test]
fn local_agent_is_restarted_after_kill() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let mut link = client.open(client.request(local(&client, &server)));
    assert_eq!(link.ready().hostname, "stand-in");
    link.talk(1);
    let first = client.agent_pid();
    kill(first, libc::SIGKILL);
    link.until("lost", |state| matches!(state, LinkState::Lost { .. }));
    link.ready();
    link.talk(2);
    assert_ne!(client.agent_pid(), first);
    link.close();
    assert_eq!(server.logins(), 0);
}

#[test]
fn local_errors_are_failures() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let mut missing = client
        .open(LinkRequest { no_agent: NoAgentPolicy::Attach, ..client.request(local(&client, &server)) });
    assert_eq!(missing.failed(), ("node1: no such run".into(), "rankdeck ps".into()));
    let nothing = LinkRequest {
        agent_binary: "/nonexistent/rankdeck".into(),
        ..client.request(local(&client, &server))
    };
    assert!(client.open(nothing).failed().0.contains("/nonexistent/rankdeck"));
}

#[tokio::test]
async fn local_one_shot_command_answers() {
    let Some(server) = Sshd::start("") else { return };
    let client = Client::of(&server);
    let answers = Arc::new(Answers(Mutex::new(Vec::new())));
    let host = local(&client, &server);
    let reply = client.exec(&host, &["list".into(), "a b".into()], answers.clone()).await.unwrap();
    assert_eq!(reply, r#"["a b"]"#);
    let error = client.exec(&host, &["nonsense".into()], answers).await.unwrap_err();
    assert!(error.error.contains("unknown command nonsense"), "{error}");
}
