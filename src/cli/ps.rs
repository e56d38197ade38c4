//! `rankdeck ps`: every run on every host, leftovers included.

use super::args::PsArgs;
use super::roster::{Found, Roster, State, roster};
use super::{Failure, code, print};
use rankdeck_config::HostsSource;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::run_entry::RunState;
use rankdeck_types::words::{clean, duration};
use serde_json::{Value, json};

/// Finished runs shown without `--all`.
const FINISHED: usize = 10;

/// `rankdeck ps`.
pub async fn ps(hosts_from: &HostsSource, args: PsArgs) -> Result<u8, Failure> {
    let roster = roster(hosts_from, &args.host_keys).await?;
    let now = wall_time();
    let runs = roster.runs();
    if args.json {
        for found in &runs {
            print::stdout(&as_json(&roster, found, now).to_string());
        }
    } else {
        print_table(&roster, &runs, args.all, now);
    }
    for (_, error) in &roster.silent {
        print::stderr(&format!("error: {}", error.error));
        if !error.hint.is_empty() {
            print::stderr(&format!("hint: {}", error.hint));
        }
    }
    Ok(if roster.silent.is_empty() { code::SUCCESS } else { code::HOST })
}

fn age(found: &Found, now: f64) -> f64 {
    found
        .parts
        .iter()
        .map(|(_, part)| part.started)
        .filter(|started| *started > 0.0)
        .fold(f64::NAN, f64::min)
        .mul_add(-1.0, now)
}

fn print_table(roster: &Roster, runs: &[Found], all: bool, now: f64) {
    let mut finished = 0;
    let shown: Vec<&Found> = runs
        .iter()
        .filter(|found| {
            finished += usize::from(found.state == State::Finished);
            all || found.state != State::Finished || finished <= FINISHED
        })
        .collect();
    if shown.is_empty() {
        if roster.silent.is_empty() {
            print::stdout("no runs");
        }
        return;
    }
    let header = ["RUN", "STATE", "GEN", "RANKS", "AGE", "HOSTS"].map(str::to_owned).to_vec();
    let rows = shown.iter().map(|found| row(found, now).iter().map(|cell| clean(cell)).collect());
    print::stdout(&print::table(&std::iter::once(header).chain(rows).collect::<Vec<_>>()));
    for found in shown.iter().filter(|found| found.state == State::Orphaned) {
        for (index, part) in found.parts.iter().filter(|(_, part)| part.state == RunState::Orphaned) {
            let host = roster.hosts.get(*index).map_or(part.host.as_str(), |host| host.name.as_str());
            print::stdout(&clean(&format!("leftovers of {} on {host}: pids {:?}", found.run, part.pids)));
        }
        print::stderr(&format!("hint: `rankdeck stop {}` removes its leftovers", found.run));
    }
    if shown.len() < runs.len() {
        print::stderr(&format!(
            "hint: {} older finished runs: `rankdeck ps --all`",
            runs.len() - shown.len()
        ));
    }
}

fn row(found: &Found, now: f64) -> Vec<String> {
    let alive: u32 = found.parts.iter().map(|(_, part)| part.ranks_alive).sum();
    let world = found.parts.iter().map(|(_, part)| part.world_size).max().unwrap_or(0);
    let generation = found.parts.iter().map(|(_, part)| part.generation).max().unwrap_or_default();
    vec![
        found.run.to_owned(),
        found.state.name().to_owned(),
        generation.to_string(),
        format!("{alive}/{world}"),
        duration(age(found, now)),
        found.hosts().join(" "),
    ]
}

fn as_json(roster: &Roster, found: &Found, now: f64) -> Value {
    let parts: Vec<Value> = found
        .parts
        .iter()
        .map(|(index, part)| {
            json!({
                "host": roster.hosts.get(*index).map_or(&part.host, |host| &host.name),
                "node_rank": part.node_rank,
                "state": State::of(part.state).name(),
                "generation": part.generation,
                "ranks_alive": part.ranks_alive,
                "pids": part.pids,
                "run_dir": part.run_dir,
            })
        })
        .collect();
    let age = age(found, now);
    json!({
        "kind": "run",
        "run": found.run,
        "state": found.state.name(),
        "generation": found.parts.iter().map(|(_, part)| part.generation).max(),
        "world_size": found.parts.iter().map(|(_, part)| part.world_size).max(),
        "ranks_alive": found.parts.iter().map(|(_, part)| part.ranks_alive).sum::<u32>(),
        "nnodes": found.hosts().len(),
        "age_s": age.is_finite().then_some(age),
        "hosts": found.hosts(),
        "parts": parts,
    })
}
