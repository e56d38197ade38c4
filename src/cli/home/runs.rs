//! Runs as home lists them: what the hosts tell, put together as `rankdeck ps` does, and records that lie
//! here.

use crate::cli::past;
use crate::cli::roster::{Roster, State};
use crate::cli::run_id::RUNS;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::run_entry::RunEntry;
use rankdeck_tui::home::{Home, Life, RunRow};
use rankdeck_types::host::Host;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long what lies in the folder is taken as known.
const FRESH: Duration = Duration::from_secs(10);

/// The latest list of each host.
pub(super) struct Lists {
    hosts: Vec<Host>,
    told: Vec<Vec<RunEntry>>,
    records: Vec<past::Past>,
    looked: Option<Instant>,
}

impl Lists {
    /// Of hosts that have told nothing yet.
    pub fn new(hosts: Vec<Host>) -> Lists {
        let told = vec![Vec::new(); hosts.len()];
        Lists { hosts, told, records: Vec::new(), looked: None }
    }

    /// A host has told its runs.
    pub fn heard(&mut self, host: usize, runs: Vec<RunEntry>) {
        if let Some(told) = self.told.get_mut(host) {
            *told = runs;
        }
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
        rows.extend(alone.map(|past| RunRow {
            run: past.name.clone(),
            life: Life::Recorded,
            age_s: past.written.elapsed().ok().map(|age| age.as_secs_f64()),
            recorded: true,
            ..RunRow::default()
        }));
        rows
    }
}
