//! The hosts of home: one session each, over which the host tells itself again and again.
//!
//! Owner: [`Watch`], one task per host, ended with it. No host waits for another. A question of a host (key,
//! passphrase) cannot be answered beside a screen: it counts as a failure that says how to answer it.

use crate::cli::past::PastRun;
use crate::cli::roster::own_binary;
use rankdeck_core::compare::ComparedRun;
use rankdeck_core::run_summary::RunSummary;
use rankdeck_link::{AgentCommand, LineSink, Links, Prompter};
use rankdeck_proto::fleet::{HostLook, LOOK};
use rankdeck_proto::process::{ProcessAction, ProcessName, ReachOutcome};
use rankdeck_tui::home::Draft;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::link_state::Prompt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// News that may wait.
const NEWS: usize = 4096;
/// How long one command tells the host; then the next begins in the same session.
const TELLING: Duration = Duration::from_secs(120);
/// What a command may take longer than that.
const SLACK: Duration = Duration::from_secs(60);
/// A host that says nothing for so long is tried anew: longer than the longest pause between two looks.
const SILENCE: Duration = Duration::from_secs(45);
/// Between two tries of a host that failed.
const RETRY: Duration = Duration::from_secs(10);

/// What is heard.
#[derive(Debug)]
pub(super) enum News {
    /// A host has told itself.
    Look(usize, Box<HostLook>),
    /// A host cannot be asked.
    Failed(usize, HintedError),
    /// A plan was made.
    Drafted(Draft),
    /// What became of a question about a process of a host.
    Reached(String, ProcessName, ProcessAction, ReachOutcome),
    /// What a record tells of a run that no host has.
    Recorded(PastRun, Box<RunSummary>),
    /// All such records are read.
    AllRecorded,
    /// Records were read, and why others could not be.
    Compared(Vec<ComparedRun>, Vec<String>),
}

/// Tasks that listen to hosts.
pub(super) struct Watch {
    tasks: JoinSet<()>,
    sender: mpsc::Sender<News>,
    news: mpsc::Receiver<News>,
}

impl Default for Watch {
    fn default() -> Watch {
        let (sender, news) = mpsc::channel(NEWS);
        Watch { tasks: JoinSet::new(), sender, news }
    }
}

impl Watch {
    /// Listens to these hosts; anew, if it does already.
    pub fn begin(&mut self, hosts: &[Host]) {
        self.end();
        for (index, host) in hosts.iter().enumerate() {
            self.tasks.spawn(listen(index, host.clone(), self.sender.clone()));
        }
    }

    /// Listens no more.
    pub fn end(&mut self) {
        self.tasks.abort_all();
        self.tasks = JoinSet::new();
    }

    /// The next news. Cancel-safe.
    pub async fn news(&mut self) -> News {
        match self.news.recv().await {
            Some(news) => news,
            None => std::future::pending().await,
        }
    }

    /// Where news go.
    pub fn sender(&self) -> mpsc::Sender<News> {
        self.sender.clone()
    }
}

/// Refuses, and remembers that it was asked.
#[derive(Debug, Default)]
pub(super) struct RefusingPrompter(AtomicBool);

impl Prompter for RefusingPrompter {
    fn ask(&self, _: &str, _: &Prompt) -> Option<String> {
        self.0.store(true, Ordering::Relaxed);
        None
    }
}

async fn listen(index: usize, host: Host, news: mpsc::Sender<News>) {
    let Ok(binary) = own_binary() else { return };
    let links = Links::from_environment();
    loop {
        let (begun, heard_ms) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let (to, at) = (news.clone(), heard_ms.clone());
        let lines = LineSink::new(move |line| {
            let Some(json) = line.strip_prefix(LOOK) else { return };
            at.store(begun.elapsed().as_millis() as u64, Ordering::Relaxed);
            if let Ok(look) = serde_json::from_str(json) {
                // A look that finds no room is followed by a newer one.
                let _ = to.try_send(News::Look(index, look));
            }
        });
        let seconds = TELLING.as_secs().to_string();
        let args = ["fleet", "--workdir", &host.workdir, "--seconds", &seconds];
        let command = AgentCommand {
            args: args.map(str::to_owned).to_vec(),
            lines,
            within: Some(TELLING + SLACK),
            ..AgentCommand::default()
        };
        let prompter = Arc::new(RefusingPrompter::default());
        let call = links.call(&host, &binary, command, prompter.clone());
        let silent = async {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let heard = Duration::from_millis(heard_ms.load(Ordering::Relaxed));
                // A login has deadlines of its own.
                if !heard.is_zero() && begun.elapsed().saturating_sub(heard) > SILENCE {
                    return;
                }
            }
        };
        let failed = tokio::select! {
            ended = call => ended.err(),
            () = silent => Some(HintedError::new(
                format!("{}: nothing was heard for {} s", host.name, SILENCE.as_secs()),
                "it is tried again",
            )),
        };
        if let Some(mut error) = failed {
            if prompter.0.load(Ordering::Relaxed) {
                error.hint = "a asks you what this host asks, and home goes on with the answer".into();
            }
            if news.send(News::Failed(index, error)).await.is_err() {
                return;
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}
