//! `rankdeck run --from` and `--continue`: which checkpoint of which earlier run a new run begins from.
//!
//! Rank 0 reads it, so it has to be a file on rank 0's host: of that host's own runs, or on a disk that hosts
//! share.

use super::Failure;
use super::args::HostKeyArgs;
use super::checkpoint_source::{LATEST, Source};
use super::roster::{decode, exec_on_all, roster};
use rankdeck_config::HostsSource;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::files::{CheckpointHeader, RunCheckpoints};
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::Host;
use rankdeck_types::plan::PlanDraft;
use rankdeck_types::weights;

/// The path, on rank 0's host, of the checkpoint that is meant.
pub async fn find(
    source: &Source,
    draft: &PlanDraft,
    hosts_from: &HostsSource,
    host_keys: &HostKeyArgs,
) -> Result<String, Failure> {
    let first = first_host(draft)?;
    let (run, checkpoint) = match source {
        Source::Path(path) => return there(first, path, host_keys).await,
        Source::Run { run, checkpoint } => (run, checkpoint),
    };
    let found = checkpoints(first, run, host_keys).await?;
    let file = format!("{checkpoint}.ckpt");
    let fits = |run: &&RunCheckpoints| run.files.iter().any(|entry| entry.path == file);
    let fitting: Vec<&RunCheckpoints> = found.iter().filter(fits).collect();
    match fitting.as_slice() {
        [only] => Ok(path(only, &file)),
        [] => missing(&found, run, checkpoint, first, hosts_from, host_keys).await,
        several => Err(Failure::usage(format!("`{run}` fits {} runs with a {file}", several.len()))
            .hint(format!("name one: {}", names(several.iter().copied())))),
    }
}

/// A path on rank 0's host, absolute: a run that finds nothing there would end as soon as it has begun.
pub async fn there(first: &Host, path: &str, host_keys: &HostKeyArgs) -> Result<String, Failure> {
    let args =
        |host: &Host| ["checkpoint", "--workdir", &host.workdir, "--path", path].map(str::to_owned).to_vec();
    let mut answers = exec_on_all(std::slice::from_ref(first), host_keys, args).await?;
    let answer = answers.pop().unwrap_or_else(|| Ok("[]".to_owned()));
    let mut found: Vec<String> = answer.and_then(|text| decode(first, &text))?;
    found.pop().ok_or_else(|| {
        Failure::usage(format!("there is no {path} on host {}, where rank 0 reads it", first.name)).hint(
            "relative paths begin at the host's `workdir`; `RUN:latest`, `RUN:best` and `RUN:N` find those of a run",
        )
    })
}

/// Makes sure that the built-in trainer can begin from a checkpoint, as far as its header tells: a run that
/// finds out by itself has failed by then. A program of the user knows its own files.
pub async fn fits(
    first: &Host,
    path: &str,
    experiment: &Experiment,
    host_keys: &HostKeyArgs,
) -> Result<(), Failure> {
    if !experiment.launch.command.is_empty() {
        return Ok(());
    }
    let header = header(first, path, host_keys).await?;
    let refused = |HintedError { error, hint }| Err(Failure::usage(error).hint(hint));
    match header {
        Ok(header) => misfit(path, &header, experiment).map_or(Ok(()), refused),
        Err(wrong) => refused(wrong),
    }
}

/// What a checkpoint on a host tells of itself.
///
/// Errors: the host does not answer. Within: the file is no checkpoint of the built-in trainer, or of another
/// version.
pub async fn header(
    first: &Host,
    path: &str,
    host_keys: &HostKeyArgs,
) -> Result<Result<CheckpointHeader, HintedError>, Failure> {
    let args =
        |host: &Host| ["header", "--workdir", &host.workdir, "--path", path].map(str::to_owned).to_vec();
    let mut answers = exec_on_all(std::slice::from_ref(first), host_keys, args).await?;
    let answer = answers.pop().unwrap_or_else(|| Err(HintedError::new("no host was asked", "")))?;
    Ok(decode(first, &answer))
}

/// Why nothing can begin from this checkpoint. Keys of another version say nothing: the trainer compares.
pub fn misfit(path: &str, header: &CheckpointHeader, experiment: &Experiment) -> Option<HintedError> {
    let there = serde_json::from_value(header.about.experiment.clone()).ok()?;
    weights::refusal(path, &weights::misfits(&there, experiment))
}

/// A checkpoint of a run by the name of its file, on the host of its rank 0.
pub async fn of_run(
    first: &Host,
    run: &str,
    checkpoint: &str,
    host_keys: &HostKeyArgs,
) -> Result<String, Failure> {
    let found = checkpoints(first, run, host_keys).await?;
    let file = format!("{checkpoint}.ckpt");
    let fits =
        |found: &&RunCheckpoints| found.run == run && found.files.iter().any(|entry| entry.path == file);
    match found.iter().find(fits) {
        Some(found) => Ok(path(found, &file)),
        None => Err(lacks(found.first(), run, checkpoint)),
    }
}

/// A run has other checkpoints, or none.
fn lacks(found: Option<&RunCheckpoints>, run: &str, checkpoint: &str) -> Failure {
    let files = found.map_or(&[][..], |found| &found.files);
    let stems: Vec<&str> =
        files.iter().filter_map(|entry| entry.path.strip_suffix(".ckpt")).take(8).collect();
    let hint = match stems.is_empty() {
        true => "its rank 0 has written none".to_owned(),
        false => format!("it has {}", stems.join(", ")).replace("iter-", ""),
    };
    Failure::usage(format!("run {run} has no checkpoint {}", checkpoint.trim_start_matches("iter-")))
        .hint(hint)
}

/// The latest checkpoint of the newest run of this experiment that has one.
pub async fn find_newest(draft: &PlanDraft, host_keys: &HostKeyArgs) -> Result<Option<String>, Failure> {
    let name = &draft.experiment.run.name;
    let file = format!("{LATEST}.ckpt");
    let found = checkpoints(first_host(draft)?, &format!("{name}-"), host_keys).await?;
    let own = |run: &&RunCheckpoints| run.run.strip_prefix(name.as_str()).is_some_and(is_time);
    let age =
        |run: &RunCheckpoints| run.files.iter().find(|entry| entry.path == file).map(|entry| entry.modified);
    let newest = found.iter().filter(own).filter_map(|run| Some((run, age(run)?)));
    Ok(newest.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(run, _)| path(run, &file)))
}

/// What follows a run's name: `-20260101-120000`, `-20260101-120000-2`.
fn is_time(text: &str) -> bool {
    let mut parts = text.split('-').skip(1);
    let digits = |part: Option<&str>, length: usize| {
        part.is_some_and(|part| part.len() == length && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    text.starts_with('-')
        && digits(parts.next(), 8)
        && digits(parts.next(), 6)
        && parts.next().is_none_or(|count| count.parse::<u32>().is_ok())
        && parts.next().is_none()
}

fn path(run: &RunCheckpoints, file: &str) -> String {
    format!("{}/checkpoints/{file}", run.run_dir)
}

fn names<'a>(runs: impl Iterator<Item = &'a RunCheckpoints>) -> String {
    runs.take(5).map(|run| run.run.as_str()).collect::<Vec<_>>().join(", ")
}

/// Where rank 0 will be.
pub fn first_host(draft: &PlanDraft) -> Result<&Host, Failure> {
    draft
        .hosts
        .iter()
        .find(|host| !draft.excluded.contains(&host.name))
        .ok_or_else(|| Failure::usage("there is no host left").hint("exclude fewer hosts"))
}

async fn checkpoints(
    host: &Host,
    start: &str,
    host_keys: &HostKeyArgs,
) -> Result<Vec<RunCheckpoints>, Failure> {
    let args =
        |host: &Host| ["checkpoints", "--workdir", &host.workdir, "--run", start].map(str::to_owned).to_vec();
    let mut answers = exec_on_all(std::slice::from_ref(host), host_keys, args).await?;
    let answer = answers.pop().unwrap_or_else(|| Ok("[]".to_owned()));
    Ok(answer.and_then(|text| decode(host, &text))?)
}

/// No checkpoint of that name lies where rank 0 looks: a program of the user may have told where its own is,
/// and another host may have it.
async fn missing(
    found: &[RunCheckpoints],
    run: &str,
    checkpoint: &str,
    first: &Host,
    hosts_from: &HostsSource,
    host_keys: &HostKeyArgs,
) -> Result<String, Failure> {
    if let Some(only) = found.first().filter(|only| !only.files.is_empty()) {
        return Err(lacks(Some(only), &only.run, checkpoint));
    }
    let roster = roster(hosts_from, host_keys).await?;
    let picked = roster.pick(Some(run))?;
    let saved = picked.summary(wall_time()).checkpoint;
    let owner = picked.parts.iter().find(|(_, part)| part.digest.checkpoint == saved);
    match (saved, owner) {
        (Some(saved), Some((_, part))) if part.host == first.name && checkpoint == LATEST => Ok(saved.path),
        (Some(saved), Some((_, part))) if part.host != first.name => Err(Failure::usage(format!(
            "the checkpoints of run {} are on host {}, and rank 0 of this run will be on {}",
            picked.run, part.host, first.name
        ))
        .hint(format!("copy {} to {} and name it: `--from PATH`", saved.path, first.name))),
        _ => Err(Failure::usage(format!("run {} has no checkpoint to begin from", picked.run))
            .hint("a program that writes its own: `--from PATH` hands it over as RANKDECK_RESUME")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_an_experiment_are_known_by_the_time_in_their_names() {
        assert!(is_time("-20260101-120000") && is_time("-20260101-120000-2"));
        for other in ["", "-7-20260101-120000", "-20260101", "-20260101-120000-2-3", "-2026x101-120000"] {
            assert!(!is_time(other), "{other}");
        }
    }
}
