//! Hosts of the home screen: polls them, one session per host, over which the host sends snapshots, and
//! requests the environment variables of a process or sends it a signal.
//!
//! [`HostPoller`] owns one task per host; no host waits for another. A login prompt (host key, passphrase)
//! cannot be answered here: it is a failure whose hint names the key that answers it.

use crate::cli::run_index::{decode, own_binary};
use crate::cli::support::locate::RecordedRun;
use rankdeck_core::compare::ComparedRun;
use rankdeck_core::run_summary::RunSummary;
use rankdeck_link::{AgentCommand, LineSink, Links, Prompter};
use rankdeck_proto::process::{Environment, ProcessAction, ProcessName, ReachOutcome};
use rankdeck_proto::run_entry::{HostSnapshot, SNAPSHOT_MARKER};
use rankdeck_tui::Role;
use rankdeck_tui::home::{JobOutput, LaunchPreview};
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::link_state::Prompt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Capacity of the queue of updates.
const QUEUE: usize = 4096;
/// Duration of one polling command; the next one starts in the same session.
const COMMAND: Duration = Duration::from_secs(120);
/// Additional time before a command is considered stuck.
const SLACK: Duration = Duration::from_secs(60);
/// Silence after which a host is reconnected; longer than the longest pause between two snapshots.
const SILENCE: Duration = Duration::from_secs(45);
/// Delay between two attempts.
const RETRY: Duration = Duration::from_secs(10);

/// An update of what home shows.
#[derive(Debug)]
pub(super) enum HostUpdate {
    /// A snapshot of a host.
    Snapshot(usize, Box<HostSnapshot>),
    /// A host is unreachable.
    Failed(usize, HintedError),
    /// A launch plan is ready.
    Planned(LaunchPreview),
    /// The reply to a request about a process.
    Replied(String, ProcessName, ProcessAction, ReachOutcome),
    /// The summary of a run that only a recording knows.
    Recorded(RecordedRun, Box<RunSummary>),
    /// All such recordings are read.
    AllRecorded,
    /// Recordings to compare, and why others could not be read.
    Compared(Vec<ComparedRun>, Vec<String>),
}

/// One polling task per host.
pub(super) struct HostPoller {
    tasks: JoinSet<()>,
    sender: mpsc::Sender<HostUpdate>,
    updates: mpsc::Receiver<HostUpdate>,
}

impl Default for HostPoller {
    fn default() -> HostPoller {
        let (sender, updates) = mpsc::channel(QUEUE);
        HostPoller { tasks: JoinSet::new(), sender, updates }
    }
}

impl HostPoller {
    /// Polls these hosts, after stopping all tasks.
    pub fn start(&mut self, hosts: &[Host]) {
        self.stop();
        for (index, host) in hosts.iter().enumerate() {
            self.tasks.spawn(poll(index, host.clone(), self.sender.clone()));
        }
    }

    /// Stops all tasks.
    pub fn stop(&mut self) {
        self.tasks.abort_all();
        self.tasks = JoinSet::new();
    }

    /// Returns the next update. Cancel-safe.
    pub async fn next(&mut self) -> HostUpdate {
        match self.updates.recv().await {
            Some(update) => update,
            None => std::future::pending().await,
        }
    }

    /// Returns the sending end of the queue of updates.
    pub fn sender(&self) -> mpsc::Sender<HostUpdate> {
        self.sender.clone()
    }
}

/// Refuses login prompts and records that there was one.
#[derive(Debug, Default)]
pub(super) struct RefusingPrompter(AtomicBool);

impl Prompter for RefusingPrompter {
    fn ask(&self, _: &str, _: &Prompt) -> Option<String> {
        self.0.store(true, Ordering::Relaxed);
        None
    }
}

async fn poll(index: usize, host: Host, updates: mpsc::Sender<HostUpdate>) {
    let Ok(binary) = own_binary() else { return };
    let links = Links::from_environment();
    loop {
        let (started, last_ms) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let (to, at) = (updates.clone(), last_ms.clone());
        let lines = LineSink::new(move |line| {
            let Some(json) = line.strip_prefix(SNAPSHOT_MARKER) else { return };
            at.store(started.elapsed().as_millis() as u64, Ordering::Relaxed);
            if let Ok(snapshot) = serde_json::from_str(json) {
                // If the queue is full, a newer snapshot follows.
                let _ = to.try_send(HostUpdate::Snapshot(index, snapshot));
            }
        });
        let seconds = COMMAND.as_secs().to_string();
        let args = ["fleet", "--workdir", &host.workdir, "--seconds", &seconds];
        let command = AgentCommand {
            args: args.map(str::to_owned).to_vec(),
            lines,
            within: Some(COMMAND + SLACK),
            ..AgentCommand::default()
        };
        let prompter = Arc::new(RefusingPrompter::default());
        let call = links.call(&host, &binary, command, prompter.clone());
        let silent = async {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let last = Duration::from_millis(last_ms.load(Ordering::Relaxed));
                // The login has its own deadlines.
                if !last.is_zero() && started.elapsed().saturating_sub(last) > SILENCE {
                    return;
                }
            }
        };
        let failed = tokio::select! {
            ended = call => ended.err(),
            () = silent => Some(HintedError::new(
                format!("{}: no message for {} s", host.name, SILENCE.as_secs()),
                "reconnecting",
            )),
        };
        if let Some(mut error) = failed {
            if prompter.0.load(Ordering::Relaxed) {
                error.hint = "press A to answer the login prompts".into();
            }
            if updates.send(HostUpdate::Failed(index, error)).await.is_err() {
                return;
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Sends a request and queues the reply as an update.
pub(super) async fn request_process(
    host: Host,
    process: ProcessName,
    action: ProcessAction,
    updates: mpsc::Sender<HostUpdate>,
) {
    let outcome = match call(&host, process, action).await {
        Ok(outcome) => outcome,
        Err(error) => ReachOutcome::Refused(error),
    };
    let _ = updates.send(HostUpdate::Replied(host.name, process, action, outcome)).await;
}

async fn call(host: &Host, process: ProcessName, action: ProcessAction) -> Result<ReachOutcome, HintedError> {
    let binary = own_binary().map_err(|failure| failure.cause)?;
    let mut args = vec!["reach".to_owned(), "--process".into(), format!("{}-{}", process.pid, process.start)];
    if let ProcessAction::Signal { signal } = action {
        args.extend(["--signal".to_owned(), signal.to_string()]);
    }
    let command = AgentCommand { args, ..AgentCommand::default() };
    let reply =
        Links::from_environment().call(host, &binary, command, Arc::<RefusingPrompter>::default()).await?;
    decode(host, &reply.text)
}

/// How a reply is shown: as output in an overlay, or as a toast.
pub(super) enum ReplyView {
    Output(JobOutput),
    Toast(String, Role),
}

pub(super) fn reply_view(
    host: &str,
    process: ProcessName,
    action: ProcessAction,
    outcome: ReachOutcome,
) -> ReplyView {
    match outcome {
        ReachOutcome::Environment(found) => {
            let title = format!("environment variables of {process} on {host} at its start");
            ReplyView::Output(JobOutput { title, succeeded: true, lines: environment_lines(&found) })
        }
        ReachOutcome::Signalled { .. } => {
            ReplyView::Toast(format!("sent {action} to {process} on {host}"), Role::Good)
        }
        ReachOutcome::Refused(error) => {
            ReplyView::Toast(format!("{action}, {process}: {}", error.with_hint()), Role::Bad)
        }
        ReachOutcome::Unknown => {
            ReplyView::Toast(format!("{host} runs a different version of rankdeck"), Role::Warn)
        }
    }
}

fn environment_lines(found: &Environment) -> Vec<String> {
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "(hidden)".into());
    let each = found.variables.iter().map(|variable| format!("{}={}", variable.name, value(&variable.value)));
    let more = (found.left_out > 0).then(|| format!("warning: {} more variables not shown", found.left_out));
    each.chain(more).collect()
}
