//! Runs as home lists them: what the hosts tell, put together as `rankdeck ps` does, and records that lie
//! here.

use crate::cli::past;
use crate::cli::roster::{Roster, State};
use crate::cli::run_id::RUNS;
use rankdeck_core::run_summary::RunSummary;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::run_entry::RunEntry;
use rankdeck_tui::home::{Home, Life, RunRow};
use rankdeck_types::host::Host;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// How long what lies in the folder is taken as known.
const FRESH: Duration = Duration::from_secs(10);

/// Most records that are read for the list, the latest first.
const READ: usize = 200;

/// The latest list of each host.
pub(super) struct Lists {
    hosts: Vec<Host>,
    told: Vec<Vec<RunEntry>>,
    records: Vec<past::PastRun>,
    looked: Option<Instant>,
    /// What records tell, and when they were written then.
    known: BTreeMap<String, (SystemTime, RunSummary)>,
    /// They are being read.
    reading: bool,
}

impl Lists {
    /// Of hosts that have told nothing yet.
    pub fn new(hosts: Vec<Host>) -> Lists {
        let told = vec![Vec::new(); hosts.len()];
        let (records, known) = (Vec::new(), BTreeMap::new());
        Lists { hosts, told, records, looked: None, known, reading: false }
    }

    /// A host has told its runs.
    pub fn heard(&mut self, host: usize, runs: Vec<RunEntry>) {
        if let Some(told) = self.told.get_mut(host) {
            *told = runs;
        }
    }

    /// Records of these runs that nobody has read since they were written. They count as being read until
    /// [`Lists::read_all`].
    pub fn unread(&mut self, rows: &[RunRow]) -> Vec<past::PastRun> {
        let alone: BTreeSet<&str> =
            rows.iter().filter(|row| row.life == Life::Recorded).map(|row| row.run.as_str()).collect();
        let wanted = self.records.iter().filter(|past| alone.contains(past.name.as_str())).take(READ);
        let is_old = |past: &&past::PastRun| {
            self.known.get(&past.name).is_none_or(|(written, _)| *written != past.written)
        };
        let unread: Vec<past::PastRun> = wanted.filter(is_old).cloned().collect();
        if self.reading || unread.is_empty() {
            return Vec::new();
        }
        self.reading = true;
        unread
    }

    /// A record tells this.
    pub fn learnt(&mut self, past: &past::PastRun, summary: RunSummary) {
        self.known.insert(past.name.clone(), (past.written, summary));
    }

    /// Those that were wanted are read.
    pub fn read_all(&mut self) {
        self.reading = false;
    }

    /// All runs, newest first; records of runs that no host has come last.
    pub fn rows(&mut self, home: &Home) -> Vec<RunRow> {
        if self.looked.is_none_or(|at| at.elapsed() >= FRESH) {
            self.records = past::list(Path::new(RUNS));
            self.looked = Some(Instant::now());
        }
        let now = wall_time();
        let entries = self
            .told
            .iter()
            .enumerate()
            .flat_map(|(host, told)| told.iter().map(move |entry| (host, entry.clone())));
        let silent = home.hosts.iter().enumerate();
        let silent = silent.filter_map(|(index, host)| Some((index, host.trouble.clone()?)));
        let roster =
            Roster { hosts: self.hosts.clone(), entries: entries.collect(), silent: silent.collect() }
                .whole();
        let mut rows: Vec<RunRow> = roster
            .runs()
            .iter()
            .map(|found| {
                let summary = found.summary(now);
                RunRow {
                    run: found.run.to_owned(),
                    life: match found.state {
                        State::Running => Life::Running,
                        State::Orphaned => Life::Orphaned,
                        State::Finished => Life::Over,
                    },
                    alive: found.parts.iter().map(|(_, part)| part.ranks_alive).sum(),
                    age_s: summary.started.map(|started| (now - started).max(0.0)),
                    recorded: self.records.iter().any(|past| past.name == found.run),
                    summary,
                }
            })
            .collect();
        let known: Vec<String> = rows.iter().map(|row| row.run.clone()).collect();
        let alone = self.records.iter().filter(|past| !known.contains(&past.name));
        rows.extend(alone.map(|past| {
            let summary = self.known.get(&past.name).map(|(_, summary)| summary.clone()).unwrap_or_default();
            let written = past.written.elapsed().ok().map(|age| age.as_secs_f64());
            RunRow {
                run: past.name.clone(),
                life: Life::Recorded,
                age_s: summary.started.map(|started| (now - started).max(0.0)).or(written),
                recorded: true,
                summary,
                ..RunRow::default()
            }
        }));
        rows
    }
}
