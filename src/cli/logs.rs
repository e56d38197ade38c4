//! `rankdeck logs`: the ranks' lines, as `HOST:RANK| line`.
//!
//! Speaks to the agents itself, without a core: it wants no records, only lines, and must not mistake itself
//! for the run's console.

use super::args::{LogsArgs, moment};
use super::join::Target;
use super::roster::roster;
use super::{Failure, code, print, run, search};
use crate::shell::signals::Signals;
use rankdeck_config::HostsSource;
use rankdeck_link::{LinkCommand, LinkEvent, LinkHandle};
use rankdeck_proto::message::{AgentMessage, ConsoleMessage, LinesRead, PROTOCOL, RecordEvent};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{NodeRank, Rank};
use rankdeck_types::link_state::LinkState;
use rankdeck_types::words::clean_output;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Sent behind the order to attach: its answer comes after the lines that were there.
const MARK: u64 = 0;
/// Without `--follow`: a host that has not answered by then has no say.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Runs `rankdeck logs`: prints the lines of ranks.
pub async fn logs(hosts_from: &HostsSource, args: LogsArgs) -> Result<u8, Failure> {
    let roster = roster(hosts_from, &args.host_keys).await?;
    let found = roster.pick(args.run.as_deref())?;
    let target = Target::new(&roster, &found)?;
    if args.grep.is_some() || args.since.is_some() || args.until.is_some() || args.generation.is_some() {
        return search::search(&target, args.grep.as_deref().unwrap_or_default(), &args).await;
    }
    let run::Links { links, mut inbox, .. } = target.open_links(&args.host_keys, run::plain())?;
    let names = target.hosts.iter().map(|host| host.name.clone()).collect();
    let held = (!args.follow).then(Vec::new);
    let mut tail = Tail { names, rank: args.rank.map(Rank), times: args.times, held, ..Tail::default() };
    let mut signals = Signals::new(false).map_err(Failure::no_thread)?;
    let deadline = Instant::now() + ANSWER_WITHIN;
    loop {
        let wait = async {
            if args.follow { std::future::pending().await } else { tokio::time::sleep_until(deadline).await }
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
        let over = if args.follow { tail.over() } else { tail.has_all() };
        if tail.failed.len() == tail.names.len() || over {
            break;
        }
    }
    drop(inbox);
    tail.print_held();
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
        Some(error) => Err(error.into()),
        None => Ok(code::SUCCESS),
    }
}

#[derive(Default)]
struct Tail {
    names: Vec<String>,
    rank: Option<Rank>,
    /// Times are printed.
    times: bool,
    /// Lines that wait to be sorted by time, with that time; `None`: each is printed as it comes. As many as
    /// each agent keeps.
    held: Option<Vec<(u64, String)>>,
    /// Next line number of each rank, so that a reconnection repeats nothing.
    next: BTreeMap<Rank, u64>,
    ranks_seen: BTreeMap<Rank, NodeRank>,
    /// Hosts that have sent the lines that were there when this command began.
    told: BTreeMap<NodeRank, ()>,
    stopped: BTreeMap<NodeRank, ()>,
    failed: BTreeMap<NodeRank, HintedError>,
}

impl Tail {
    /// Every host has sent what was there, or cannot.
    fn has_all(&self) -> bool {
        (0..self.names.len() as u32)
            .map(NodeRank)
            .all(|n| self.told.contains_key(&n) || self.failed.contains_key(&n))
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
            LinkEvent::State(LinkState::Ready { .. }) => {
                send(ConsoleMessage::Attach {
                    protocol: PROTOCOL,
                    build: env!("CARGO_PKG_VERSION").to_owned(),
                    after_seq: u64::MAX,
                    log_tail: tail,
                });
                send(ConsoleMessage::Ping { sent_ms: MARK });
            }
            LinkEvent::State(LinkState::Failed(error)) => {
                self.failed.insert(node, error);
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
                if !ranks.is_empty() && ranks.iter().all(|rank| rank.exit.is_some()) {
                    self.stopped.insert(node, ());
                }
                self.ranks_seen.extend(ranks.iter().map(|rank| (rank.rank, node)));
            }
            AgentMessage::Log { rank, first, lines, times } => {
                self.ranks_seen.insert(rank, node);
                return self.print(node, rank, first, &lines, &times);
            }
            AgentMessage::Pong { sent_ms: MARK, .. } => {
                self.told.insert(node, ());
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

    fn print(
        &mut self,
        node: NodeRank,
        rank: Rank,
        first: u64,
        lines: &[String],
        times: &[LinesRead],
    ) -> bool {
        if self.rank.is_some_and(|only| only != rank) {
            return true;
        }
        let next = self.next.get(&rank).copied().unwrap_or(0);
        let known = next.saturating_sub(first) as usize;
        self.next.insert(rank, next.max(first + lines.len() as u64));
        let host = self.names.get(node.index()).map_or("?", String::as_str);
        lines.iter().zip(LinesRead::each(times)).skip(known).all(|(line, time_ms)| {
            let time = if self.times {
                format!("{} ", moment::shown(Some(time_ms as f64 / 1000.0)))
            } else {
                String::new()
            };
            let line = format!("{time}{host}:{rank}| {}", clean_output(line));
            match &mut self.held {
                Some(held) => {
                    held.push((time_ms, line));
                    true
                }
                None => print::stdout(&line),
            }
        })
    }

    /// Prints what waits, by time where all times are known.
    fn print_held(&mut self) {
        let mut held = self.held.take().unwrap_or_default();
        if held.iter().all(|(time_ms, _)| *time_ms > 0) {
            held.sort_by_key(|(time_ms, _)| *time_ms);
        }
        let _ = held.iter().all(|(_, line)| print::stdout(line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_is_all_although_lines_keep_coming() {
        let mut tail = Tail { names: vec!["a".into(), "b".into()], rank: Some(Rank(9)), ..Tail::default() };
        let log =
            |first| AgentMessage::Log { rank: Rank(0), first, lines: vec!["x".into()], times: Vec::new() };
        for (first, node) in [(0, 0), (1, 0), (0, 1)] {
            assert!(tail.on_message(NodeRank(node), log(first)));
        }
        tail.on_message(NodeRank(0), AgentMessage::Pong { sent_ms: MARK, wall_time: None });
        tail.on_message(NodeRank(0), log(2));
        assert!(!tail.has_all(), "b has not sent all of its lines");
        tail.on_message(NodeRank(1), AgentMessage::Pong { sent_ms: MARK, wall_time: None });
        assert!(tail.has_all());
    }
}
