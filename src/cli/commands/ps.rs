//! `rankdeck ps`: lists runs and leftover processes on all hosts, and Slurm jobs that wait for nodes.

use crate::cli::args::PsArgs;
use crate::cli::support::locate::{ListedHosts, RunLocator};
use crate::cli::support::run_index::{FoundRun, RunIndex, RunStatus};
use crate::cli::support::{Failure, code, print};
use rankdeck_config::{HostsSource, OwnSlurmJob, SlurmJobs};
use rankdeck_core::run_summary::RunSummary;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::progress_bar::ShownProgress;
use rankdeck_proto::run_entry::HostRunState;
use rankdeck_types::words::{NONE, clean, count, duration, fixed, plural};
use serde_json::{Value, json};

/// Finished runs shown without `--all`.
const FINISHED: usize = 10;

/// Runs `rankdeck ps`.
pub(crate) async fn ps(hosts_from: &HostsSource, listed: ListedHosts, args: PsArgs) -> Result<u8, Failure> {
    let locator = RunLocator::new(hosts_from, &args.host_keys);
    let (jobs, run_index) = tokio::join!(slurm_jobs(hosts_from), locator.index_all(listed));
    let has_nodes = jobs.is_empty() || jobs.iter().any(OwnSlurmJob::is_running);
    let run_index = match run_index {
        Err(_) if is_of_own_jobs(hosts_from) && !has_nodes => RunIndex::default(),
        run_index => run_index?,
    };
    let waiting: Vec<OwnSlurmJob> = jobs.into_iter().filter(|job| !job.is_running()).collect();
    let now = wall_time();
    let runs = run_index.runs();
    if args.output.json {
        for job in &waiting {
            print::json(&job_as_json(job));
        }
        for found in &runs {
            print::json(&as_json(&run_index, found, now));
        }
    } else {
        print_table(&run_index, &runs, &waiting, &args, now);
    }
    let (others, silent): (Vec<_>, Vec<_>) =
        run_index.silent.iter().partition(|(index, _)| run_index.is_other(*index));
    print::errors(silent.iter().map(|(_, error)| error));
    let names = others.iter().filter_map(|(index, _)| run_index.hosts.get(*index));
    let names = names.map(|host| host.name.as_str()).collect::<Vec<_>>().join(", ");
    if !names.is_empty() {
        let note = format!(
            "note: no response from {names}, which had runs of this directory and is not in the hosts file"
        );
        args.output.progress(&clean(&note));
    }
    Ok(if silent.is_empty() { code::SUCCESS } else { code::HOST })
}

fn is_of_own_jobs(hosts_from: &HostsSource) -> bool {
    matches!(hosts_from, HostsSource::Slurm { jobs: SlurmJobs::Own, .. })
}

/// Returns the Slurm jobs that rankdeck submitted, unless hosts are named.
async fn slurm_jobs(hosts_from: &HostsSource) -> Vec<OwnSlurmJob> {
    if !is_of_own_jobs(hosts_from) && !hosts_from.is_without_hosts() {
        return Vec::new();
    }
    let jobs = tokio::task::spawn_blocking(rankdeck_config::own_slurm_jobs).await;
    jobs.ok().flatten().unwrap_or_default()
}

fn print_table(run_index: &RunIndex, runs: &[FoundRun], waiting: &[OwnSlurmJob], args: &PsArgs, now: f64) {
    let mut finished = 0;
    let shown: Vec<&FoundRun> = runs
        .iter()
        .filter(|found| {
            finished += usize::from(found.state == RunStatus::Finished);
            args.all || found.state != RunStatus::Finished || finished <= FINISHED
        })
        .collect();
    if shown.is_empty() && waiting.is_empty() {
        if run_index.silent.iter().all(|(index, _)| run_index.is_other(*index)) {
            print::stdout("no runs");
        }
        return;
    }
    let rows = waiting.iter().map(job_row).chain(shown.iter().map(|found| row(run_index, found, now)));
    let rows = rows.map(|row| row.iter().map(|cell| clean(cell)).collect());
    let header = HEADER.map(str::to_owned).to_vec();
    print::text(&print::table(&std::iter::once(header).chain(rows).collect::<Vec<_>>()));
    for found in shown.iter().filter(|found| found.state == RunStatus::Orphaned) {
        for (index, part) in found.parts.iter().filter(|(_, part)| part.state == HostRunState::Orphaned) {
            let host = run_index.hosts.get(*index).map_or(part.host.as_str(), |host| host.name.as_str());
            print::stdout(&clean(&format!("leftover processes of {} on {host}: {:?}", found.run, part.pids)));
        }
        args.output.progress(&format!("hint: kill leftover processes with `rankdeck stop {}`", found.run));
    }
    if shown.len() < runs.len() {
        args.output.progress(&format!(
            "hint: {} older finished runs; list them with `rankdeck ps --all`",
            runs.len() - shown.len()
        ));
    }
}

const HEADER: [&str; 12] =
    ["RUN", "STATE", "GEN", "RANKS", "GPUS", "STEPS", "RETURN", "BEST EVAL", "TIME", "AGE", "HOSTS", "NOTE"];

/// Names of the hosts that have, or may have, ranks of a run: all but those that answered without a part of it.
fn hosts_of(run_index: &RunIndex, found: &FoundRun) -> Vec<String> {
    let is_silent = |name: &str| {
        run_index
            .silent
            .iter()
            .any(|(index, _)| run_index.hosts.get(*index).is_some_and(|host| host.name == name))
    };
    let is_listed = |name: &str| run_index.hosts.iter().any(|host| host.name == name);
    let has_part = |name: &str| found.parts.iter().any(|(_, part)| part.host == name);
    let mut hosts = found.hosts();
    hosts.retain(|name| has_part(name) || is_silent(name) || !is_listed(name));
    hosts
}

fn row(run_index: &RunIndex, found: &FoundRun, now: f64) -> Vec<String> {
    let summary = found.summary(now);
    let alive: u32 = found.parts.iter().map(|(_, part)| part.ranks_alive).sum();
    let number = |value: Option<f64>| value.map_or(NONE.to_owned(), |value| fixed(value, 1));
    let seconds = |value: Option<f64>| value.map_or(NONE.to_owned(), duration);
    vec![
        found.run.to_owned(),
        found.state_text(&summary),
        summary.generation.to_string(),
        format!("{alive}/{}", summary.world_size),
        if summary.gpus > 0 { summary.gpus.to_string() } else { NONE.to_owned() },
        steps(&summary),
        number(summary.last_return),
        number(summary.best.as_ref().map(|best| best.return_mean)),
        seconds(Some(summary.duration_s).filter(|seconds| *seconds > 0.0)),
        seconds(summary.started.map(|started| now - started)),
        hosts_of(run_index, found).join(" "),
        summary.note,
    ]
}

/// Steps, or what the program's progress bar shows.
fn steps(summary: &RunSummary) -> String {
    let shown = || summary.progress.as_ref().map(ShownProgress::amount);
    summary.env_step.map(count).or_else(shown).unwrap_or_else(|| NONE.to_owned())
}

/// A waiting job: its run has no name before it starts.
fn job_row(job: &OwnSlurmJob) -> Vec<String> {
    let reason = if job.reason.is_empty() { String::new() } else { format!(": {}", job.reason) };
    let mut row = vec![NONE.to_owned(); HEADER.len()];
    row[0] = job.name.clone();
    row[1] = job.state.clone();
    row[HEADER.len() - 2] = plural(job.nodes as usize, "node");
    row[HEADER.len() - 1] = format!("Slurm job {}{reason}", job.id);
    row
}

fn job_as_json(job: &OwnSlurmJob) -> Value {
    json!({
        "kind": "job",
        "job": job.id,
        "name": job.name,
        "state": job.state,
        "reason": job.reason,
        "nnodes": job.nodes,
    })
}

/// A run as a JSON line.
pub(crate) fn as_json(run_index: &RunIndex, found: &FoundRun, now: f64) -> Value {
    let parts: Vec<Value> = found
        .parts
        .iter()
        .map(|(index, part)| {
            json!({
                "host": run_index.hosts.get(*index).map_or(&part.host, |host| &host.name),
                "node_rank": part.node_rank,
                "state": RunStatus::of(part.state).name(),
                "generation": part.generation,
                "ranks_alive": part.ranks_alive,
                "pids": part.pids,
                "run_dir": part.run_dir,
            })
        })
        .collect();
    let summary = found.summary(now);
    let mut line = json!({
        "kind": "run",
        "run": found.run,
        "state": found.state.name(),
        "ranks_alive": found.parts.iter().map(|(_, part)| part.ranks_alive).sum::<u32>(),
        "nnodes": summary.hosts.len(),
        "age_s": summary.started.map(|started| now - started),
    });
    if let (Value::Object(line), Ok(Value::Object(summary))) = (&mut line, serde_json::to_value(&summary)) {
        line.extend(summary);
        line.insert("parts".to_owned(), parts.into());
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::support::run_index::sample_entry;
    use rankdeck_types::error::HintedError;
    use rankdeck_types::host::Host;

    #[test]
    fn steps_are_counted_or_those_of_the_bar() {
        let progress = ShownProgress { done: 20, total: Some(1800), unit: "it".into(), ..Default::default() };
        let shown = RunSummary { progress: Some(progress), ..RunSummary::default() };
        assert_eq!(steps(&shown), "20 of 1,800 it");
        assert_eq!(steps(&RunSummary { env_step: Some(2048), ..shown }), "2,048");
        assert_eq!(steps(&RunSummary::default()), NONE);
    }

    #[test]
    fn excluded_hosts_are_not_listed() {
        let host = |name: &str| Host { name: name.into(), ..Host::default() };
        let mut entry = sample_entry();
        entry.hosts = vec!["a".into(), "b".into(), "c".into()];
        let mut run_index =
            RunIndex { hosts: vec![host("a"), host("b")], entries: vec![(0, entry)], ..RunIndex::default() };
        let hosts = |run_index: &RunIndex| hosts_of(run_index, &run_index.runs()[0]);
        assert_eq!(hosts(&run_index), ["a", "c"], "c is in another hosts file");
        run_index.silent.push((1, HintedError::new("b: refused", "")));
        assert_eq!(hosts(&run_index), ["a", "b", "c"], "b may have ranks");
    }
}
