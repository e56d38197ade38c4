//! Lists runs: those of the hosts, merged as `rankdeck ps` does, and local recordings, with their
//! latest progress and their outcome.

use crate::app::record::reader;
use crate::cli::run_index::{RunIndex, RunStatus};
use crate::cli::support::locate::{self, RecordedRun};
use crate::cli::support::run_name::RUNS;
use rankdeck_core::run_summary::RunSummary;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::run_entry::RunEntry;
use rankdeck_tui::home::{Home, RunPhase, RunRow};
use rankdeck_types::host::Host;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// How long the list of recordings is cached.
const CACHED: Duration = Duration::from_secs(10);

/// Maximum number of recordings read for the list, latest first.
const MAX_READ: usize = 200;

/// The latest run list of each host.
pub(super) struct RunLists {
    hosts: Vec<Host>,
    reported: Vec<Vec<RunEntry>>,
    left_out: Vec<Vec<String>>,
    records: Vec<RecordedRun>,
    listed_at: Option<Instant>,
    /// Summaries of recordings, with their modification times.
    summaries: BTreeMap<String, (SystemTime, RunSummary)>,
    /// Recordings are being read.
    reading: bool,
}

impl RunLists {
    /// Creates empty lists for these hosts.
    pub fn new(hosts: Vec<Host>) -> RunLists {
        let (reported, left_out) = (vec![Vec::new(); hosts.len()], vec![Vec::new(); hosts.len()]);
        let (records, summaries) = (Vec::new(), BTreeMap::new());
        RunLists { hosts, reported, left_out, records, listed_at: None, summaries, reading: false }
    }

    /// Replaces the list of a host.
    pub fn set(&mut self, host: usize, runs: Vec<RunEntry>) {
        if let Some(reported) = self.reported.get_mut(host) {
            *reported = runs;
        }
    }

    /// Returns a warning if a host omits something from its list for a new reason.
    pub fn left_out(&mut self, host: usize, reasons: Vec<String>) -> Option<String> {
        let (known, name) = (self.left_out.get_mut(host)?, &self.hosts.get(host)?.name);
        let new = reasons.iter().find(|reason| !known.contains(reason));
        let warning = new.map(|reason| format!("host {name}: not listed: {reason}"));
        *known = reasons;
        warning
    }

    /// Returns recordings of these runs that changed since they were read, and marks them as being read
    /// until [`RunLists::read_all`].
    pub fn unread(&mut self, rows: &[RunRow]) -> Vec<RecordedRun> {
        let alone: BTreeSet<&str> =
            rows.iter().filter(|row| row.phase == RunPhase::Recorded).map(|row| row.run.as_str()).collect();
        let candidates =
            self.records.iter().filter(|recorded| alone.contains(recorded.name.as_str())).take(MAX_READ);
        let is_old = |recorded: &&RecordedRun| {
            self.summaries.get(&recorded.name).is_none_or(|(written, _)| *written != recorded.written)
        };
        let unread: Vec<RecordedRun> = candidates.filter(is_old).cloned().collect();
        if self.reading || unread.is_empty() {
            return Vec::new();
        }
        self.reading = true;
        unread
    }

    /// Caches the summary of a recording.
    pub fn add_summary(&mut self, recorded: &RecordedRun, summary: RunSummary) {
        self.summaries.insert(recorded.name.clone(), (recorded.written, summary));
    }

    /// All requested recordings are read.
    pub fn read_all(&mut self) {
        self.reading = false;
    }

    /// Returns all runs, newest first; recordings of runs that no host knows come last.
    pub fn rows(&mut self, home: &Home) -> Vec<RunRow> {
        if self.listed_at.is_none_or(|at| at.elapsed() >= CACHED) {
            self.records = reader::list(Path::new(RUNS));
            self.listed_at = Some(Instant::now());
        }
        let now = wall_time();
        let entries = self
            .reported
            .iter()
            .enumerate()
            .flat_map(|(host, reported)| reported.iter().map(move |entry| (host, entry.clone())));
        let silent = home.hosts.iter().enumerate();
        let silent = silent.filter_map(|(index, host)| Some((index, host.error.clone()?)));
        let run_index = RunIndex {
            hosts: self.hosts.clone(),
            entries: entries.collect(),
            silent: silent.collect(),
            left_out: Vec::new(),
            others: Vec::new(),
        }
        .deduplicated();
        let mut rows: Vec<RunRow> = run_index
            .runs()
            .iter()
            .map(|found| {
                let summary = found.summary(now);
                RunRow {
                    run: found.run.to_owned(),
                    phase: match found.state {
                        RunStatus::Running => RunPhase::Running,
                        RunStatus::Orphaned => RunPhase::Orphaned,
                        RunStatus::Finished => RunPhase::Ended,
                    },
                    alive: found.parts.iter().map(|(_, part)| part.ranks_alive).sum(),
                    age_s: summary.started.map(|started| (now - started).max(0.0)),
                    recorded: self.records.iter().any(|recorded| recorded.name == found.run),
                    summary,
                }
            })
            .collect();
        let listed: Vec<String> = rows.iter().map(|row| row.run.clone()).collect();
        let alone = self.records.iter().filter(|recorded| !listed.contains(&recorded.name));
        rows.extend(alone.map(|recorded| {
            let summary =
                self.summaries.get(&recorded.name).map(|(_, summary)| summary.clone()).unwrap_or_default();
            let written = recorded.written.elapsed().ok().map(|age| age.as_secs_f64());
            RunRow {
                run: recorded.name.clone(),
                phase: RunPhase::Recorded,
                age_s: summary.started.map(|started| (now - started).max(0.0)).or(written),
                recorded: true,
                summary,
                ..RunRow::default()
            }
        }));
        rows
    }
}

/// Reads the recording; the summary is empty if it cannot be read.
pub(super) fn read_summary(recorded: &RecordedRun) -> RunSummary {
    let read = locate::open_recording(recorded).ok().and_then(|record| record.last().ok());
    read.map(|(model, at)| RunSummary::from_model(&model, at)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_recording_has_an_empty_summary() {
        let nothing = RecordedRun {
            name: "x".into(),
            record: "nowhere".into(),
            written: std::time::SystemTime::UNIX_EPOCH,
            path: None,
        };
        assert_eq!(read_summary(&nothing), RunSummary::default());
    }
}
