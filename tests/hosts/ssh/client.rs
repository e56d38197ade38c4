//! Fixtures: files of a client, a fake agent, a link and its events.

use crate::support::sshd::{PATIENCE, Sshd, keygen, kill, program};
use rankdeck_link::{
    AgentCommand, LinkCommand, LinkEvent, LinkHandle, LinkRequest, Links, NoAgentPolicy, Prompter,
};
use rankdeck_proto::message::{AgentMessage, ConsoleMessage};
use rankdeck_types::error::HintedError;
use rankdeck_types::host::{Host, Transport};
use rankdeck_types::ids::{NodeRank, RunId};
use rankdeck_types::link_state::{LinkState, Prompt};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Folder of a client: keys, known_hosts, ssh configuration, the agent to deploy, the remote working folder.
pub struct Client {
    pub folder: PathBuf,
    keep: Option<tempfile::TempDir>,
}

impl Client {
    /// Creates a client whose ed25519 key `server` accepts, and that knows the server's host key.
    pub fn of(server: &Sshd) -> Client {
        let keep = tempfile::Builder::new().prefix("rdcli").tempdir().unwrap();
        let client = Client { folder: keep.path().to_path_buf(), keep: Some(keep) };
        keygen(&client.key(), "ed25519", "");
        server.authorize(&client.key());
        client.configure("IdentityAgent none\nIdentitiesOnly yes\n");
        client.know(&format!("[127.0.0.1]:{} {}\n", server.port, server.host_key("host_ed25519")));
        write_agent(&client.agent());
        client
    }

    pub fn key(&self) -> PathBuf {
        self.folder.join("id")
    }

    pub fn agent(&self) -> PathBuf {
        self.folder.join("agent")
    }

    pub fn known_hosts(&self) -> PathBuf {
        self.folder.join("ssh/known_hosts")
    }

    /// Working folder on the host.
    pub fn workdir(&self) -> PathBuf {
        self.folder.join("work dir")
    }

    /// Writes the ssh configuration, with `extra` for all hosts.
    pub fn configure(&self, extra: &str) {
        let text = format!(
            "Host *\nUserKnownHostsFile {}\nGlobalKnownHostsFile none\n{extra}",
            self.known_hosts().display()
        );
        fs::write(self.folder.join("config"), text).unwrap();
    }

    /// Replaces known_hosts.
    pub fn know(&self, text: &str) {
        fs::create_dir_all(self.folder.join("ssh")).unwrap();
        fs::write(self.known_hosts(), text).unwrap();
    }

    pub fn links(&self) -> Links {
        Links { ssh_config: Some(self.folder.join("config")) }
    }

    pub fn host(&self, server: &Sshd) -> Host {
        Host {
            name: "node1".into(),
            address: "127.0.0.1".into(),
            port: Some(server.port),
            user: None,
            identity_file: Some(self.key().display().to_string()),
            proxy_jump: None,
            slurm_job: None,
            gpus: None,
            nproc: None,
            workdir: self.workdir().display().to_string(),
            env: BTreeMap::new(),
            setup: Default::default(),
            libtorch: None,
            transport: Transport::Ssh,
            interface: None,
            peer_address: None,
        }
    }

    pub fn request(&self, host: Host) -> LinkRequest {
        LinkRequest {
            node: NodeRank(0),
            host,
            run: RunId("it's-a-run".into()),
            no_agent: NoAgentPolicy::Launch,
            agent_binary: self.agent(),
            trainer_binary: None,
            interactive: false,
        }
    }

    /// Replaces the ssh configuration; the known_hosts file is set first.
    pub fn write_config(&self, text: &str) {
        let known = self.known_hosts();
        let head = format!("UserKnownHostsFile {}\nGlobalKnownHostsFile none\n", known.display());
        fs::write(self.folder.join("config"), head + text).unwrap();
    }

    /// Returns a host with only a name in hosts.toml.
    pub fn named(&self, name: &str) -> Host {
        Host {
            name: "node1".into(),
            address: name.into(),
            workdir: self.workdir().display().to_string(),
            transport: Transport::Ssh,
            ..Host::default()
        }
    }

    /// Returns the reply of `rankdeck agent ARGS` on `host`.
    pub async fn exec(
        &self,
        host: &Host,
        args: &[String],
        prompter: Arc<dyn Prompter>,
    ) -> Result<String, HintedError> {
        let command = AgentCommand { args: args.to_vec(), ..AgentCommand::default() };
        Ok(self.links().call(host, &self.agent(), command, prompter).await?.text)
    }

    /// Logs in.
    pub fn connection(&self, server: &Sshd) -> rankdeck_link::ssh::connection::Connection {
        let target =
            rankdeck_link::ssh::user_config::resolve(&self.host(server), self.links().ssh_config.as_deref())
                .unwrap();
        rankdeck_link::ssh::connection::connect(&target, &mut NonInteractive).unwrap()
    }

    /// Opens a non-interactive link to `server`.
    pub fn link(&self, server: &Sshd) -> Link {
        self.open(self.request(self.host(server)))
    }

    /// Opens an interactive link.
    pub fn interactive_link(&self, server: &Sshd) -> Link {
        self.open(LinkRequest { interactive: true, ..self.request(self.host(server)) })
    }

    pub fn open(&self, request: LinkRequest) -> Link {
        let (sender, events) = mpsc::channel(16);
        let handle = self.links().open(request, sender);
        Link { handle, events, states: Vec::new(), messages: Vec::new() }
    }

    /// Returns the commands that the fake agent received.
    pub fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.workdir().join("calls")).unwrap_or_default();
        text.lines().map(String::from).collect()
    }

    /// Returns the process ID of the fake agent.
    pub fn agent_pid(&self) -> u32 {
        fs::read_to_string(self.workdir().join("agent.pid")).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Ok(text) = fs::read_to_string(self.workdir().join("agent.pid")) {
            text.trim().parse().into_iter().for_each(|pid| kill(pid, libc::SIGKILL));
        }
        drop(self.keep.take());
    }
}

/// Writes the fake agent, padded so that its upload takes several packets.
fn write_agent(path: &Path) {
    let python = program("python3").unwrap();
    let padding = format!("#{}\n", "-".repeat(1023)).repeat(512);
    fs::write(
        path,
        format!("#!{} -IS\n{}\n{padding}", system_python(&python).display(), include_str!("agent.py")),
    )
    .unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns the interpreter itself, not a shim that needs a login shell's environment.
fn system_python(found: &Path) -> PathBuf {
    let usual = PathBuf::from("/usr/bin/python3");
    if usual.is_file() { usual } else { found.to_path_buf() }
}

/// A link under test.
pub struct Link {
    pub handle: LinkHandle,
    events: mpsc::Receiver<(NodeRank, LinkEvent)>,
    /// States so far.
    pub states: Vec<LinkState>,
    /// Messages so far.
    pub messages: Vec<AgentMessage>,
}

impl Link {
    /// Takes the next event; `false` if the link has ended.
    fn take(&mut self, what: &str) -> bool {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.events.try_recv() {
                Ok((_, LinkEvent::State(state))) => self.states.push(state),
                Ok((_, LinkEvent::Message(message))) => self.messages.push(*message),
                Err(mpsc::error::TryRecvError::Disconnected) => return false,
                Err(mpsc::error::TryRecvError::Empty) => {
                    assert!(Instant::now() < deadline, "timed out: {what}; states: {:?}", self.states);
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
            }
            return true;
        }
    }

    /// Waits for a state among the events from now on.
    pub fn until(&mut self, what: &str, fits: impl Fn(&LinkState) -> bool) -> LinkState {
        loop {
            let before = self.states.len();
            assert!(self.take(what), "the link ended before {what}: {:?}", self.states);
            if let Some(state) = self.states.get(before).filter(|state| fits(state)) {
                return state.clone();
            }
            assert!(
                !matches!(self.states.last(), Some(LinkState::Failed(_) | LinkState::Closed))
                    || self.states.len() == before,
                "{what}: {:?}",
                self.states
            );
        }
    }

    /// Waits until the link is ready.
    pub fn ready(&mut self) -> rankdeck_types::host::Probe {
        match self.until("ready", |state| matches!(state, LinkState::Ready { .. })) {
            LinkState::Ready { probe } => probe,
            _ => unreachable!(),
        }
    }

    /// Waits for a prompt.
    pub fn asked(&mut self) -> Prompt {
        match self.until("a prompt", |state| matches!(state, LinkState::Asking { .. })) {
            LinkState::Asking { prompt } => prompt,
            _ => unreachable!(),
        }
    }

    /// Waits for the failure; returns the error and the hint.
    pub fn failed(&mut self) -> (String, String) {
        match self.until("a failure", |state| matches!(state, LinkState::Failed(_))) {
            LinkState::Failed(HintedError { error, hint }) => {
                assert!(
                    !error.contains('\n') && error.starts_with("node1"),
                    "not one line with the host: {error:?}"
                );
                assert!(!self.take("the end"), "events after the last state");
                (error, hint)
            }
            _ => unreachable!(),
        }
    }

    /// Waits for the failure that follows several losses.
    pub fn until_failed_after_losses(&mut self) -> (String, String) {
        self.until("lost", |state| matches!(state, LinkState::Lost { .. }));
        self.failed()
    }

    pub fn order(&self, command: LinkCommand) {
        self.handle.commands.blocking_send(command).unwrap();
    }

    pub fn answer(&self, text: &str) {
        self.order(LinkCommand::Answer(Some(text.into())));
    }

    pub fn attach(&self) {
        self.order(LinkCommand::Send(ConsoleMessage::Attach {
            protocol: 1,
            build: "test".into(),
            after_seq: 0,
            log_tail: 0,
        }));
    }

    /// Waits for a message among the events from now on.
    pub fn message(&mut self, what: &str, fits: impl Fn(&AgentMessage) -> bool) {
        loop {
            let before = self.messages.len();
            assert!(self.take(what), "the link ended before {what}: {:?}", self.states);
            if self.messages.get(before).is_some_and(&fits) {
                return;
            }
        }
    }

    /// Attaches and sends a ping; waits for both replies.
    pub fn talk(&mut self, number: u64) {
        self.attach();
        self.message(
            "the answer to attach",
            |message| matches!(message, AgentMessage::Log { lines, .. } if lines == &["attached"]),
        );
        self.order(LinkCommand::Send(ConsoleMessage::Ping { sent_ms: number }));
        self.message(
            "pong",
            |message| matches!(message, AgentMessage::Pong { sent_ms, .. } if *sent_ms == number),
        );
    }

    /// Closes the link and waits for its end.
    pub fn close(mut self) -> Vec<LinkState> {
        self.order(LinkCommand::Close);
        while self.take("the end") {}
        assert_eq!(self.states.last(), Some(&LinkState::Closed), "{:?}", self.states);
        self.states
    }

    /// Returns the number of attempts.
    pub fn attempts(&self) -> u32 {
        let attempts = self.states.iter().filter_map(|state| match state {
            LinkState::Connecting { attempt } => Some(*attempt),
            _ => None,
        });
        attempts.max().unwrap_or(0)
    }

    /// Returns the names of uploaded files.
    pub fn uploads(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .states
            .iter()
            .filter_map(|state| match state {
                LinkState::Uploading { what, .. } => Some(what.clone()),
                _ => None,
            })
            .collect();
        names.dedup();
        names
    }
}

/// Answers prompts of one-shot commands from a list.
pub struct Answers(pub Mutex<Vec<String>>);

impl Prompter for Answers {
    fn ask(&self, _host: &str, _prompt: &Prompt) -> Option<String> {
        self.0.lock().unwrap().pop()
    }
}

/// A non-interactive owner that waits forever.
pub struct NonInteractive;

impl rankdeck_link::ssh::SessionOwner for NonInteractive {
    fn interactive(&self) -> bool {
        false
    }

    fn ask(&mut self, _prompt: &rankdeck_types::link_state::Prompt) -> Option<String> {
        None
    }

    fn closing(&mut self) -> bool {
        false
    }

    fn wake_fd(&self) -> Option<std::os::fd::RawFd> {
        None
    }
}
