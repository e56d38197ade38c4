//! `rankdeck logs`: prints the ranks' lines as `HOST:RANK| line`.
//!
//! Talks to the agents directly, without a core: it reads only lines and must not act as the run's console.

use crate::app::driver::ConsoleLinks;
use crate::app::signals::ConsoleSignals;
use crate::app::stderr;
use crate::cli::args::LogsArgs;
use crate::cli::args::values::time_text;
use crate::cli::support::console::{self, ExistingRun};
use crate::cli::support::locate::RunLocator;
use crate::cli::support::run_index::{decode, exec_on_all};
use crate::cli::support::run_name::RunAction;
use crate::cli::support::{Failure, code, print};
use rankdeck_config::HostsSource;
use rankdeck_link::{LinkCommand, LinkEvent, LinkHandle};
use rankdeck_proto::message::{AgentMessage, ConsoleMessage, LinesRead, PROTOCOL, RecordEvent};
use rankdeck_proto::search::{LogFindings, LogHit, LogSearch};
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::ids::{Generation, NodeRank, Rank, RunId};
use rankdeck_types::link_state::LinkState;
use rankdeck_types::words::{clean_output, count, plain_json};
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Sent after the attach request: its reply arrives after the existing lines.
const MARK: u64 = 0;
/// Without `--follow`: how long a host is waited for.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Runs `rankdeck logs`.
pub(crate) async fn logs(hosts_from: &HostsSource, args: LogsArgs) -> Result<u8, Failure> {
    let action = if args.follow { RunAction::Watch } else { RunAction::Read };
    let located = RunLocator::new(hosts_from, &args.host_keys).find(args.run.as_deref(), action).await?;
    let target = ExistingRun::new(&located.run_index, &located.found()?)?;
    if args.grep.is_some() || args.since.is_some() || args.until.is_some() || args.generation.is_some() {
        return search(&target, args.grep.as_deref().unwrap_or_default(), &args).await;
    }
    let ConsoleLinks { handles: links, mut inbox, .. } =
        target.open_links(&args.host_keys, console::plain())?;
    let generation = located.found()?.parts.iter().map(|(_, part)| part.generation).max().unwrap_or_default();
    let names = target.hosts.iter().map(|host| host.name.clone()).collect();
    let held = (!args.follow).then(Vec::new);
    let mut tail = Tail {
        run: target.run.0.clone(),
        generation,
        names,
        rank: args.rank.map(Rank),
        times: args.times,
        json: args.output.json,
        held,
        ..Tail::default()
    };
    let mut signals = ConsoleSignals::new(false).map_err(Failure::no_thread)?;
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
            .hint("`rankdeck ps` shows the number of ranks"));
    }
    match tail.failed.into_values().next() {
        Some(error) => Err(error.into()),
        None => Ok(code::SUCCESS),
    }
}

#[derive(Default)]
struct Tail {
    run: String,
    generation: Generation,
    names: Vec<String>,
    rank: Option<Rank>,
    /// Whether times are printed.
    times: bool,
    /// Whether lines are JSON objects.
    json: bool,
    /// Lines to be sorted by time, with that time; `None`: printed as they arrive. As many as each agent
    /// keeps.
    held: Option<Vec<(u64, String)>>,
    /// Next line number of each rank, so that a reconnect repeats nothing.
    next: BTreeMap<Rank, u64>,
    ranks_seen: BTreeMap<Rank, NodeRank>,
    /// Hosts that have sent the lines from before the start of this command.
    caught_up: BTreeMap<NodeRank, ()>,
    stopped: BTreeMap<NodeRank, ()>,
    failed: BTreeMap<NodeRank, HintedError>,
}

impl Tail {
    /// Whether every host has sent its existing lines, or failed.
    fn has_all(&self) -> bool {
        (0..self.names.len() as u32)
            .map(NodeRank)
            .all(|n| self.caught_up.contains_key(&n) || self.failed.contains_key(&n))
    }

    fn over(&self) -> bool {
        self.stopped.len() + self.failed.len() >= self.names.len()
    }

    /// Handles one event; `false` when stdout is closed.
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
                // The run_index has just prompted for everything needed.
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
            AgentMessage::Log { rank, first, lines, times, .. } => {
                self.ranks_seen.insert(rank, node);
                return self.print(node, rank, first, &lines, &times);
            }
            AgentMessage::Pong { sent_ms: MARK, .. } => {
                self.caught_up.insert(node, ());
            }
            AgentMessage::Record(record) => match record.event {
                // A new generation starts a new file.
                RecordEvent::Launched { .. } => {
                    self.next.clear();
                    self.generation = self.generation.max(record.generation);
                }
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
            let seconds = time_ms as f64 / 1000.0;
            let line = match self.json {
                true => json!({
                    "kind": "log",
                    "run": self.run,
                    "generation": self.generation,
                    "time": (time_ms > 0).then_some(seconds),
                    "rank": rank,
                    "host": host,
                    "line": line,
                })
                .to_string(),
                false => {
                    let time =
                        if self.times { format!("{} ", time_text(Some(seconds))) } else { String::new() };
                    format!("{time}{host}:{rank}| {}", clean_output(line))
                }
            };
            match &mut self.held {
                Some(held) => {
                    held.push((time_ms, line));
                    true
                }
                None => print_line(&line, self.json),
            }
        })
    }

    /// Prints the held lines, sorted if all times are known.
    fn print_held(&mut self) {
        let mut held = self.held.take().unwrap_or_default();
        if held.iter().all(|(time_ms, _)| *time_ms > 0) {
            held.sort_by_key(|(time_ms, _)| *time_ms);
        }
        let _ = held.iter().all(|(_, line)| print_line(line, self.json));
    }
}

/// Prints a line, or a JSON object, in which control characters are escaped.
fn print_line(line: &str, json: bool) -> bool {
    if json { print::data(&plain_json(line)) } else { print::stdout(line) }
}

/// Exit code without a match, as with `grep`.
const NOTHING: u8 = 1;

/// Searches the logs of every host and prints the matches.
pub(crate) async fn search(target: &ExistingRun, pattern: &str, args: &LogsArgs) -> Result<u8, Failure> {
    let query = LogSearch {
        node: None,
        pattern: pattern.to_owned(),
        rank: args.rank.map(Rank),
        generation: args.generation.map(Generation),
        since: args.since,
        until: args.until,
        context: args.context,
        limit: args.limit,
        ..LogSearch::default()
    };
    let ask = |host: &Host| {
        let node = target.hosts.iter().position(|known| known.name == host.name);
        let node = node.and_then(|node| u32::try_from(node).ok()).map(NodeRank);
        // Plain numbers and texts always become JSON.
        let json = serde_json::to_string(&LogSearch { node, ..query.clone() }).unwrap_or_default();
        let named = ["--run", &target.run.0, "--workdir", &host.workdir, "--wanted", &json];
        std::iter::once("search").chain(named).map(str::to_owned).collect()
    };
    let answers = exec_on_all(&target.hosts, &args.host_keys, ask).await?;
    let (mut lines, mut more, mut untimed, mut failed) = (0, 0, 0, None);
    let mut hits: Vec<(&str, LogHit)> = Vec::new();
    for (host, answer) in target.hosts.iter().zip(answers) {
        let of_host = |failed: HintedError| HintedError {
            error: format!("host {}: {}", host.name, failed.error),
            ..failed
        };
        let found: LogFindings = match answer.map_err(of_host).and_then(|text| decode(host, &text)) {
            Ok(found) => found,
            Err(error) => {
                stderr::line(&format!("error: {}", error.error));
                failed.get_or_insert(error);
                continue;
            }
        };
        if !found.cut.is_empty() {
            stderr::line(&format!("warning: {}: {}", host.name, found.cut));
        }
        (lines, more, untimed) = (lines + found.lines, more + found.more, untimed + found.untimed);
        hits.extend(found.hits.into_iter().map(|hit| (host.name.as_str(), hit)));
    }
    if hits.iter().all(|(_, hit)| hit.time.is_some()) {
        hits.sort_by(|(_, a), (_, b)| a.time.partial_cmp(&b.time).unwrap_or(Ordering::Equal));
    }
    let timed = args.times || args.since.is_some() || args.until.is_some();
    let context = query.context > 0;
    for (host, hit) in &hits {
        if args.output.json {
            if !as_json(&target.run, host, hit).iter().all(print::json) {
                break;
            }
            continue;
        }
        let time = timed.then(|| time_text(hit.time));
        if !shown(host, hit, context, time.as_deref()).iter().all(|line| print::stdout(line)) {
            break;
        }
    }
    let older =
        if more > 0 { format!(", {} older ones omitted (--limit)", count(more)) } else { String::new() };
    let all = hits.len() as u64 + more;
    let untimed =
        if untimed > 0 { format!("; {} without a time omitted", count(untimed)) } else { String::new() };
    args.output.progress(&format!("{} of {} lines match{older}{untimed}", count(all), count(lines)));
    match failed {
        Some(error) => Err(error.into()),
        None if hits.is_empty() => Ok(NOTHING),
        None => Ok(code::SUCCESS),
    }
}

/// A match and its context as JSON lines.
fn as_json(run: &RunId, host: &str, hit: &LogHit) -> Vec<Value> {
    let first = hit.line.saturating_sub(hit.before.len() as u64);
    let before = (first..).zip(&hit.before).map(|(number, text)| (number, text, false));
    let after = (hit.line + 1..).zip(&hit.after).map(|(number, text)| (number, text, false));
    let lines = before.chain([(hit.line, &hit.text, true)]).chain(after);
    let line = |(number, text, matches): (u64, &String, bool)| {
        json!({
            "kind": "log",
            "run": run,
            "generation": hit.generation,
            "time": hit.time.filter(|_| matches),
            "rank": hit.rank,
            "host": host,
            "line": text,
            "line_number": number,
            "matches": matches,
        })
    };
    lines.map(line).collect()
}

/// Formats a match as `grep` does: `:` for the match, `-` for its context.
fn shown(host: &str, hit: &LogHit, context: bool, time: Option<&str>) -> Vec<String> {
    let (rank, first) = (hit.rank, hit.line.saturating_sub(hit.before.len() as u64));
    let time = time.map_or(String::new(), |time| format!("{time} "));
    let name = match hit.generation {
        Generation(0) => format!("{host}:{rank}"),
        generation => format!("{host}:{rank} gen {generation}"),
    };
    let line = |number: u64, sign: char, text: &str| {
        format!("{time}{name}{sign}{number}{sign} {}", clean_output(text))
    };
    let mut lines: Vec<String> =
        hit.before.iter().zip(first..).map(|(text, number)| line(number, '-', text)).collect();
    lines.push(line(hit.line, ':', &hit.text));
    lines.extend(hit.after.iter().zip(hit.line + 1..).map(|(text, number)| line(number, '-', text)));
    if context {
        lines.push("--".into());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_end_although_lines_keep_coming() {
        let mut tail = Tail { names: vec!["a".into(), "b".into()], rank: Some(Rank(9)), ..Tail::default() };
        let log = |first| AgentMessage::Log {
            rank: Rank(0),
            first,
            overwritten: 0,
            lines: vec!["x".into()],
            times: Vec::new(),
        };
        for (first, node) in [(0, 0), (1, 0), (0, 1)] {
            assert!(tail.on_message(NodeRank(node), log(first)));
        }
        tail.on_message(NodeRank(0), AgentMessage::Pong { sent_ms: MARK, wall_time: None });
        tail.on_message(NodeRank(0), log(2));
        assert!(!tail.has_all(), "b has not sent all of its lines");
        tail.on_message(NodeRank(1), AgentMessage::Pong { sent_ms: MARK, wall_time: None });
        assert!(tail.has_all());
    }

    #[test]
    fn match_and_its_context_are_json_lines() {
        let hit = LogHit {
            line: 8,
            text: "loss \u{1b}[2Jnan".into(),
            before: vec!["before".into()],
            time: Some(1.5),
            ..LogHit::default()
        };
        let lines = as_json(&RunId("r".into()), "a", &hit);
        let fields = lines.iter().map(|line| (line["line_number"].as_u64(), line["matches"].as_bool()));
        assert_eq!(fields.collect::<Vec<_>>(), [(Some(7), Some(false)), (Some(8), Some(true))]);
        assert_eq!((lines[1]["time"].as_f64(), lines[0]["kind"].as_str()), (Some(1.5), Some("log")));
    }

    #[test]
    fn match_is_formatted_like_grep() {
        let hit = LogHit {
            rank: Rank(3),
            line: 8,
            text: "loss \u{1b}[2Jnan".into(),
            before: vec!["before".into()],
            after: vec!["after".into()],
            ..LogHit::default()
        };
        assert_eq!(shown("a", &hit, true, None), ["a:3-7- before", "a:3:8: loss nan", "a:3-9- after", "--"]);
        let later = LogHit { generation: Generation(2), ..hit };
        assert_eq!(
            shown("a", &later, false, Some("11-23 03:12:44"))[1],
            "11-23 03:12:44 a:3 gen 2:8: loss nan"
        );
    }
}
