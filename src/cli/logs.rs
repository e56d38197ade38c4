//! `rankdeck logs`: the ranks' lines, as `HOST:RANK| line`.
//!
//! Speaks to the agents itself, without a core: it wants no records, only lines, and must not mistake itself
//! for the run's console.

use super::args::LogsArgs;
use super::join::Target;
use super::roster::roster;
use super::{Failure, code, print, run};
use crate::shell::signals::Signals;
use rankdeck_config::HostsSource;
use rankdeck_link::{LinkCommand, LinkEvent, LinkHandle};
use rankdeck_proto::message::{AgentMessage, ConsoleMessage, PROTOCOL, RecordEvent};
use rankdeck_types::ids::{NodeRank, Rank};
use rankdeck_types::link_state::LinkState;
use rankdeck_types::words::clean;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Without `--follow`: this long without a line, after every host has answered, is the end.
const QUIET: Duration = Duration::from_millis(700);
/// Without `--follow`: a host that has not answered by then has no say.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// `rankdeck logs`.
pub async fn logs(hosts_from: &HostsSource, args: LogsArgs) -> Result<u8, Failure> {
    let roster = roster(hosts_from, &args.host_keys).await?;
    let found = roster.pick(args.run.as_deref())?;
    let target = Target::new(&roster, &found)?;
    let run::Links { links, mut inbox, .. } = target.open_links(&args.host_keys, run::plain())?;
    let names = target.hosts.iter().map(|host| host.name.clone()).collect();
    let mut tail = Tail { names, rank: args.rank.map(Rank), ..Tail::default() };
    let mut signals = Signals::new(false).map_err(Failure::no_thread)?;
    let deadline = Instant::now() + ANSWER_WITHIN;
    loop {
        let end = match (args.follow, tail.all_answered()) {
            (true, _) => None,
            (false, true) => Some(tail.moved.map_or(deadline, |moved| moved + QUIET)),
            (false, false) => Some(deadline),
        };
        let wait = async {
            match end {
                Some(end) => tokio::time::sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            event = inbox.recv() => match event {
                None => break,
                Some((node, event)) => {
                    if !tail.on(node, event, &links, args.tail) {
                        break;
                    }
                }
            },
            _ = signals.next() => break,
            () = wait => break,
        }
        if tail.failed.len() == tail.names.len() || (args.follow && tail.over()) {
            break;
        }
    }
    drop(inbox);
    for link in &links {
        let _ = link.commands.try_send(LinkCommand::Close);
    }
    for link in &links {
        let _ = tokio::time::timeout(Duration::from_secs(2), link.commands.closed()).await;
    }
    if let (Some(rank), false) = (args.rank, tail.ranks_seen.is_empty())
        && !tail.ranks_seen.contains_key(&Rank(rank))
    {
        return Err(Failure::usage(format!("run {} has no rank {rank}", target.run))
            .hint("`rankdeck ps` shows how many ranks each run has"));
    }
    match tail.failed.into_values().next() {
        Some((error, hint)) => Err(Failure::host(error).hint(hint)),
        None => Ok(code::SUCCESS),
    }
}

#[derive(Default)]
struct Tail {
    names: Vec<String>,
    rank: Option<Rank>,
    /// Next line number of each rank, so that a reconnection repeats nothing.
    next: BTreeMap<Rank, u64>,
    ranks_seen: BTreeMap<Rank, NodeRank>,
    answered: BTreeMap<NodeRank, ()>,
    stopped: BTreeMap<NodeRank, ()>,
    failed: BTreeMap<NodeRank, (String, String)>,
    /// When the latest answer or line came.
    moved: Option<Instant>,
}

impl Tail {
    fn all_answered(&self) -> bool {
        (0..self.names.len() as u32)
            .map(NodeRank)
            .all(|n| self.answered.contains_key(&n) || self.failed.contains_key(&n))
    }

    fn over(&self) -> bool {
        self.stopped.len() + self.failed.len() >= self.names.len()
    }

    /// Takes one event; `false` when nobody reads the lines any more.
    fn on(&mut self, node: NodeRank, event: LinkEvent, links: &[LinkHandle], tail: u32) -> bool {
        let send = |message| {
            if let Some(link) = links.iter().find(|link| link.node == node) {
                let _ = link.commands.try_send(LinkCommand::Send(message));
            }
        };
        match event {
            LinkEvent::State(LinkState::Ready { .. }) => send(ConsoleMessage::Attach {
                protocol: PROTOCOL,
                build: env!("CARGO_PKG_VERSION").to_owned(),
                after_seq: u64::MAX,
                log_tail: tail,
            }),
            LinkEvent::State(LinkState::Failed { error, hint }) => {
                self.failed.insert(node, (error, hint));
            }
            LinkEvent::State(LinkState::Asking { prompt: _ }) => {
                // The roster has just asked what there was to ask.
                if let Some(link) = links.iter().find(|link| link.node == node) {
                    let _ = link.commands.try_send(LinkCommand::Answer(None));
                }
            }
            LinkEvent::State(_) => {}
            LinkEvent::Message(message) => return self.on_message(node, *message),
        }
        true
    }

    fn on_message(&mut self, node: NodeRank, message: AgentMessage) -> bool {
        match message {
            AgentMessage::Snapshot { ranks, .. } => {
                self.answered.insert(node, ());
                self.moved = Some(Instant::now());
                if !ranks.is_empty() && ranks.iter().all(|rank| rank.exit.is_some()) {
                    self.stopped.insert(node, ());
                }
                self.ranks_seen.extend(ranks.iter().map(|rank| (rank.rank, node)));
            }
            AgentMessage::Log { rank, first, lines } => {
                self.ranks_seen.insert(rank, node);
                self.moved = Some(Instant::now());
                return self.print(node, rank, first, &lines);
            }
            AgentMessage::Record(record) => match record.event {
                // A new generation begins a new file.
                RecordEvent::Launched { .. } => self.next.clear(),
                RecordEvent::Stopped { .. } => {
                    self.stopped.insert(node, ());
                }
                _ => {}
            },
            _ => {}
        }
        true
    }

    fn print(&mut self, node: NodeRank, rank: Rank, first: u64, lines: &[String]) -> bool {
        if self.rank.is_some_and(|only| only != rank) {
            return true;
        }
        let next = self.next.get(&rank).copied().unwrap_or(0);
        let known = next.saturating_sub(first) as usize;
        self.next.insert(rank, next.max(first + lines.len() as u64));
        let host = self.names.get(node.index()).map_or("?", String::as_str);
        lines.iter().skip(known).all(|line| print::stdout(&format!("{host}:{rank}| {}", clean(line))))
    }
}
