//! Queries of a screen to agents, and their replies. Not recorded.
//!
//! A search in the logs of all hosts has the state of each host, and the lines of all, merged. A process query
//! is about the environment of one process, or a signal to it.

use super::log_ring::{HeldLine, LogPlace, LogRing};
use rankdeck_proto::process::{Environment, ProcessAction, ProcessName, ReachOutcome};
use rankdeck_proto::search::{HitSelection, LinePlace, LogFindings, LogHit, LogSearch};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{NodeRank, Rank};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// The searches in the hosts' files. Not recorded.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LogSearchState {
    /// Lines that match.
    pub hits: Option<SearchResults>,
    /// All lines around one of them.
    pub around: Option<SearchResults>,
    /// Number of the latest search.
    pub(crate) requests: u64,
}

/// One search. Places are by this console's clock.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SearchResults {
    /// Its number.
    pub(crate) request: u64,
    /// The query.
    pub query: LogSearch,
    /// The hosts to which it was sent, or should have been.
    pub hosts: Vec<SearchedHost>,
    /// Where the lines stand that were found, in their order; none before all hosts have reported theirs.
    pub places: Vec<LinePlace>,
    /// These lines, by rank. [`HeldLine::order`] is their index in [`SearchResults::places`].
    pub logs: BTreeMap<Rank, LogRing>,
    /// Matches before those.
    pub older: u64,
    /// Matches after those.
    pub newer: u64,
}

/// One host of a search.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SearchedHost {
    /// The host.
    pub node: NodeRank,
    pub name: String,
    /// How far it is.
    pub state: SearchState,
    /// What it has found.
    pub findings: LogFindings,
    /// Its clock minus ours when the search was sent, ms.
    pub(crate) ahead_ms: i64,
    /// When it last replied, or the search was sent, on the awake clock.
    pub(crate) answered_at: u64,
}

/// How far a host is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SearchState {
    /// The search was sent to it.
    #[default]
    Sent,
    /// It has reported a part.
    Running,
    /// It has reported everything.
    Over,
    /// The search failed there, and why.
    Failed(String),
}

impl SearchResults {
    /// All hosts have reported everything, or cannot.
    pub fn is_over(&self) -> bool {
        self.hosts.iter().all(|host| matches!(host.state, SearchState::Over | SearchState::Failed(_)))
    }

    /// Where a line of [`SearchResults::places`] stands in [`SearchResults::logs`].
    pub fn log_place(&self, index: usize) -> Option<LogPlace> {
        let lines = &self.logs.get(&self.places.get(index)?.rank)?.lines;
        let at = lines.partition_point(|line| line.order < index as u64);
        lines.get(at).map(HeldLine::place)
    }

    /// Matches in all.
    pub fn matches(&self) -> u64 {
        self.older + self.places.len() as u64 + self.newer
    }

    /// Searched lines.
    pub fn lines(&self) -> u64 {
        self.hosts.iter().map(|host| host.findings.lines).sum()
    }

    /// Searched bytes, and all bytes.
    pub fn bytes(&self) -> (u64, u64) {
        let sum = |of: fn(&LogFindings) -> u64| self.hosts.iter().map(|host| of(&host.findings)).sum();
        (sum(|findings| findings.bytes), sum(|findings| findings.of_bytes))
    }

    /// Bytes that hosts no longer keep.
    pub fn gone_bytes(&self) -> u64 {
        self.hosts.iter().map(|host| host.findings.gone_bytes).sum()
    }

    /// Hosts that could not be searched, and why.
    pub fn holes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.hosts.iter().filter_map(|host| match &host.state {
            SearchState::Failed(why) => Some((host.name.as_str(), why.as_str())),
            _ if !host.findings.cut.is_empty() => Some((host.name.as_str(), host.findings.cut.as_str())),
            _ => None,
        })
    }

    /// Merges what the hosts have found. Of each host only the lines next to the requested place are known:
    /// what is further away than that on any host has holes, and is left to the next page.
    pub(crate) fn settle(&mut self) {
        let mut found: Vec<(LinePlace, LogHit)> = Vec::new();
        let (mut first, mut last) = (None, None);
        (self.older, self.newer) = (0, 0);
        for host in &mut self.hosts {
            let LogFindings { hits, more, newer, .. } = &mut host.findings;
            let ahead_ms = host.ahead_ms;
            let start = found.len();
            found.extend(hits.drain(..).map(|hit| (ours(hit.place(), ahead_ms), hit)));
            let of_host = &found[start..];
            if *more > 0 {
                first = first.max(of_host.iter().map(|(place, _)| *place).min());
            }
            if *newer > 0 {
                let its_last = of_host.iter().map(|(place, _)| *place).max();
                last = [last, its_last].into_iter().flatten().min();
            }
            self.older += *more;
            self.newer += *newer;
        }
        // Lines before (or after) the requested place are complete up to that place.
        let (first, last) = match self.query.part {
            HitSelection::Newest | HitSelection::Before(_) => (first, None),
            HitSelection::After(_) => (None, last),
            HitSelection::Around(_) => (first, last),
        };
        let all = found.len();
        found.retain(|(place, _)| first.is_none_or(|first| *place >= first));
        self.older += (all - found.len()) as u64;
        let all = found.len();
        found.retain(|(place, _)| last.is_none_or(|last| *place <= last));
        self.newer += (all - found.len()) as u64;
        found.sort_by_key(|(place, _)| *place);
        let mut merge_ms = 0;
        for (order, (place, hit)) in (0..).zip(found) {
            merge_ms = place.time_ms.max(merge_ms);
            let time_ms = hit.time.map_or(0, |time| (time.max(0.0) * 1000.0).round() as u64);
            let (text, generation) = (hit.text, place.generation);
            let line = HeldLine { order, text, time_ms, merge_ms, generation };
            self.logs.entry(place.rank).or_default().lines.push_back(line);
            self.places.push(place);
        }
    }
}

/// A place of a host by this console's clock. One without a time has none here, either.
fn ours(place: LinePlace, ahead_ms: i64) -> LinePlace {
    shifted(place, ahead_ms.saturating_neg())
}

/// A place by the clock of a host.
pub(crate) fn theirs(place: LinePlace, ahead_ms: i64) -> LinePlace {
    shifted(place, ahead_ms)
}

fn shifted(place: LinePlace, by_ms: i64) -> LinePlace {
    let time_ms = if place.time_ms == 0 { 0 } else { place.time_ms.saturating_add_signed(by_ms).max(1) };
    LinePlace { time_ms, ..place }
}

/// Queries that are remembered.
const KEPT_QUERIES: usize = 16;

/// The latest queries. Not recorded.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProcessQueries {
    /// The newest last, bounded.
    queries: VecDeque<ProcessQuery>,
    requests: u64,
    answers: u64,
}

/// One query.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessQuery {
    /// Its number.
    pub request: u64,
    pub node: NodeRank,
    /// Name of the host.
    pub host: String,
    pub process: ProcessName,
    pub action: ProcessAction,
    /// What came back, once it has.
    pub outcome: Option<ReachOutcome>,
    /// Which answer that was, in the order in which they came, from 1.
    pub answer: u64,
    /// When it was sent, in time that this console was awake.
    pub(crate) since: u64,
}

impl ProcessQuery {
    /// A query that is not sent yet.
    pub fn new(
        node: NodeRank,
        host: impl Into<String>,
        process: ProcessName,
        action: ProcessAction,
    ) -> ProcessQuery {
        ProcessQuery {
            request: 0,
            node,
            host: host.into(),
            process,
            action,
            outcome: None,
            answer: 0,
            since: 0,
        }
    }
}

impl ProcessQueries {
    /// Adds a query and returns its number.
    pub fn add(&mut self, query: ProcessQuery) -> u64 {
        self.requests += 1;
        let answered = query.outcome.is_some();
        if self.queries.len() == KEPT_QUERIES {
            self.queries.pop_front();
        }
        self.answers += u64::from(answered);
        let answer = if answered { self.answers } else { 0 };
        self.queries.push_back(ProcessQuery { request: self.requests, answer, ..query });
        self.requests
    }

    /// Takes the answer for each open query that gets one; `true` when one did.
    pub fn settle(&mut self, mut answer: impl FnMut(&ProcessQuery) -> Option<ReachOutcome>) -> bool {
        let before = self.answers;
        for query in self.queries.iter_mut().filter(|query| query.outcome.is_none()) {
            if let Some(outcome) = answer(query) {
                self.answers += 1;
                (query.answer, query.outcome) = (self.answers, Some(outcome));
            }
        }
        self.answers > before
    }

    /// Something waits for an answer.
    pub(crate) fn is_waiting(&self) -> bool {
        self.queries.iter().any(|query| query.outcome.is_none())
    }

    /// How many answers have come.
    pub fn answers(&self) -> u64 {
        self.answers
    }

    /// Those whose answers came after that one.
    pub fn answered(&self, after: u64) -> impl Iterator<Item = (&ProcessQuery, &ReachOutcome)> {
        let done = self.queries.iter().filter_map(|query| Some((query, query.outcome.as_ref()?)));
        done.filter(move |(query, _)| query.answer > after)
    }

    /// The latest answer about the environment of a process: `None` while there is none.
    pub fn environment(
        &self,
        node: NodeRank,
        process: ProcessName,
    ) -> Option<Result<&Environment, HintedError>> {
        let about = |query: &&ProcessQuery| {
            (query.node, query.process, query.action) == (node, process, ProcessAction::Environment)
        };
        match self.queries.iter().rev().find(about)?.outcome.as_ref()? {
            ReachOutcome::Environment(found) => Some(Ok(found)),
            ReachOutcome::Refused(error) => Some(Err(error.clone())),
            ReachOutcome::Signalled { .. } | ReachOutcome::Unknown => {
                Some(Err(HintedError::new("the agent sent an unexpected reply", "")))
            }
        }
    }
}

/// A signal that a console had sent to a rank.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SentSignal {
    pub signal: i32,
    /// When, by the agent's clock, seconds since the epoch.
    pub time: f64,
}
