//! A search in the logs that the hosts keep: what each host said, and the lines of all, merged.

use super::log_ring::{HeldLine, LogPlace, LogRing};
use rankdeck_proto::search::{LinePlace, LogFindings, LogHit, LogSearch, Part};
use rankdeck_types::ids::{NodeRank, Rank};
use std::collections::BTreeMap;

/// What was looked for in the hosts' files. In no record.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Finder {
    /// Lines that match.
    pub hits: Option<Search>,
    /// All lines around one of them.
    pub around: Option<Search>,
    /// Number of the latest search.
    pub(crate) requests: u64,
}

/// One search. Places are by this console's clock.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Search {
    /// Its number.
    pub(crate) request: u64,
    /// What is looked for.
    pub wanted: LogSearch,
    /// The hosts that were asked, or should have been.
    pub hosts: Vec<SearchedHost>,
    /// Where the lines stand that were found, in their order; none before all hosts have said theirs.
    pub places: Vec<LinePlace>,
    /// These lines, by rank. [`HeldLine::order`] is their index in [`Search::places`].
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
    /// What it has said.
    pub findings: LogFindings,
    /// Its clock minus ours when it was asked, ms.
    pub(crate) ahead_ms: i64,
    /// When it last said something, or was asked, in time that this console was awake.
    pub(crate) heard: u64,
}

/// How far a host is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SearchState {
    /// It was asked.
    #[default]
    Asked,
    Looking,
    /// It has said all.
    Over,
    /// It cannot say anything, and why.
    Failed(String),
}

impl Search {
    /// All hosts have said all, or cannot.
    pub fn is_over(&self) -> bool {
        self.hosts.iter().all(|host| matches!(host.state, SearchState::Over | SearchState::Failed(_)))
    }

    /// Where a line of [`Search::places`] stands in [`Search::logs`].
    pub fn log_place(&self, index: usize) -> Option<LogPlace> {
        let lines = &self.logs.get(&self.places.get(index)?.rank)?.lines;
        let at = lines.partition_point(|line| line.order < index as u64);
        lines.get(at).map(HeldLine::place)
    }

    /// Matches in all.
    pub fn matches(&self) -> u64 {
        self.older + self.places.len() as u64 + self.newer
    }

    /// Lines that were looked at.
    pub fn lines(&self) -> u64 {
        self.hosts.iter().map(|host| host.findings.lines).sum()
    }

    /// Bytes that were looked at, and all there are.
    pub fn bytes(&self) -> (u64, u64) {
        let sum = |of: fn(&LogFindings) -> u64| self.hosts.iter().map(|host| of(&host.findings)).sum();
        (sum(|findings| findings.bytes), sum(|findings| findings.of_bytes))
    }

    /// Bytes that hosts no longer keep.
    pub fn gone_bytes(&self) -> u64 {
        self.hosts.iter().map(|host| host.findings.gone_bytes).sum()
    }

    /// What could not be looked at: host and why.
    pub fn holes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.hosts.iter().filter_map(|host| match &host.state {
            SearchState::Failed(why) => Some((host.name.as_str(), why.as_str())),
            _ if !host.findings.cut.is_empty() => Some((host.name.as_str(), host.findings.cut.as_str())),
            _ => None,
        })
    }

    /// Merges what the hosts have found. Of each host only the lines next to the wanted place are known: what
    /// is further away than that on any host has holes, and is left to the next page.
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
        // Whatever is before (or after) the wanted place is whole up to that place.
        let (first, last) = match self.wanted.part {
            Part::Newest | Part::Before(_) => (first, None),
            Part::After(_) => (None, last),
            Part::Around(_) => (first, last),
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
