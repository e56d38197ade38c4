//! `rankdeck run --from` and `--continue`: finds the checkpoint of an earlier run that a new run starts from.
//!
//! The built-in trainer's rank 0 reads it, so it must be on rank 0's host: of that host's own runs, or on a shared
//! disk. A script's may be on any host of the new run, which has it copied to the others.

use crate::app::stderr;
use crate::cli::args::HostKeyArgs;
use crate::cli::args::values::{CheckpointSource, LATEST};
use crate::cli::support::Failure;
use crate::cli::support::locate::RunLocator;
use crate::cli::support::run_index::{RunIndex, decode, exec_on_all};
use crate::cli::support::run_name::{self, NamedRun, RunAction};
use rankdeck_config::HostsSource;
use rankdeck_core::run_summary::RunSummary;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::files::{CheckpointHeader, RunCheckpoints};
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::Host;
use rankdeck_types::plan::PlanDraft;
use rankdeck_types::weights;

/// Returns the path of the `--from` checkpoint on rank 0's host.
pub(crate) async fn find(
    source: &CheckpointSource,
    draft: &PlanDraft,
    hosts_from: &HostsSource,
    host_keys: &HostKeyArgs,
) -> Result<String, Failure> {
    let (run, checkpoint) = match source {
        CheckpointSource::Path(path) => return resolve_path(&readers(draft)?, path, host_keys).await,
        CheckpointSource::Run { run, checkpoint } => (run, checkpoint),
    };
    let earlier = EarlierRuns::ask(run, draft, hosts_from, host_keys).await?;
    let saved = earlier.named(run, checkpoint)?;
    earlier.path(saved, host_keys).await
}

/// Returns the latest checkpoint of the newest run of this experiment that has one (`--continue`). A
/// `requeued` Slurm job fails rather than lose progress.
pub(crate) async fn find_newest(
    draft: &PlanDraft,
    requeued: bool,
    hosts_from: &HostsSource,
    host_keys: &HostKeyArgs,
) -> Result<Option<String>, Failure> {
    let name = &draft.experiment.run.name;
    let earlier = EarlierRuns::ask(&format!("{name}-"), draft, hosts_from, host_keys).await?;
    let is_own =
        |run: &str| run != draft.run.0 && run.strip_prefix(name.as_str()).is_some_and(run_name::is_time);
    let newest = earlier.newest(is_own);
    if let Some(run) = &newest.unsaved {
        stderr::line(&format!("note: run {run} made progress, but has no known checkpoint"));
    }
    match (newest.saved, newest.unsaved) {
        (Some(saved), _) => earlier.path(saved, host_keys).await.map(Some),
        (None, Some(run)) if requeued => {
            Err(Failure::failed(format!("the requeued job cannot resume: run {run} has no checkpoint"))
                .hint("report checkpoints with `rankdeck.checkpoint(path)`, name them in `launch.checkpoints`, or resubmit without `--requeue`"))
        }
        (None, _) => {
            stderr::line("starting from scratch: no earlier run with this name has a checkpoint");
            Ok(None)
        }
    }
}

/// Whether Slurm has started this job before.
pub(crate) fn is_requeued(variable: impl Fn(&str) -> Option<String>) -> bool {
    let count = variable("SLURM_RESTART_COUNT").and_then(|text| text.trim().parse::<u64>().ok());
    variable("SLURM_JOB_ID").is_some() && count.is_some_and(|count| count > 0)
}

/// Returns the absolute path on the first of these hosts that has it, or fails: a run without the file would fail
/// right after its start.
pub(crate) async fn resolve_path(
    hosts: &[Host],
    path: &str,
    host_keys: &HostKeyArgs,
) -> Result<String, Failure> {
    let args =
        |host: &Host| ["checkpoint", "--workdir", &host.workdir, "--path", path].map(str::to_owned).to_vec();
    let answers = exec_on_all(hosts, host_keys, args).await?;
    let answers = hosts.iter().zip(answers).map(|(host, answer)| answer.and_then(|text| decode(host, &text)));
    if let Some(found) = first_found(answers)? {
        return Ok(found);
    }
    let names = hosts.iter().map(|host| host.name.as_str()).collect::<Vec<_>>().join(", ");
    Err(Failure::usage(format!("{path} not found on {names}")).hint(
        "relative paths start at the host's `workdir`; use `RUN:latest`, `RUN:best` or `RUN:N` for checkpoints of a run",
    ))
}

/// The first path that a host has found; a host that does not respond matters only where none has.
fn first_found(
    answers: impl Iterator<Item = Result<Vec<String>, HintedError>>,
) -> Result<Option<String>, HintedError> {
    let mut wrong = None;
    for answer in answers {
        match answer.map(|found| found.into_iter().next()) {
            Ok(Some(found)) => return Ok(Some(found)),
            Ok(None) => {}
            Err(error) => wrong = wrong.or(Some(error)),
        }
    }
    wrong.map_or(Ok(None), Err)
}

/// Hosts that may have the file of `--from`: rank 0's reads it for the trainer; the hosts of a script get copies.
fn readers(draft: &PlanDraft) -> Result<Vec<Host>, Failure> {
    let first = first_host(draft)?;
    let members = draft.hosts.iter().filter(|host| !draft.excluded.contains(&host.name));
    let is_script = !draft.experiment.launch.command.is_empty();
    Ok(members.filter(|host| is_script || host.name == first.name).cloned().collect())
}

/// Checks by its header that the built-in trainer can start from a checkpoint, before a run starts and fails.
/// Checkpoints of a user program are not checked.
pub(crate) async fn check_fits(
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
        Ok(header) => mismatch(path, &header, experiment).map_or(Ok(()), refused),
        Err(wrong) => refused(wrong),
    }
}

/// Reads the header of a checkpoint on a host.
///
/// Errors: the host does not respond. Inner error: the file is not a checkpoint of the built-in trainer, or of
/// another version.
pub(crate) async fn header(
    first: &Host,
    path: &str,
    host_keys: &HostKeyArgs,
) -> Result<Result<CheckpointHeader, HintedError>, Failure> {
    let args =
        |host: &Host| ["header", "--workdir", &host.workdir, "--path", path].map(str::to_owned).to_vec();
    let mut answers = exec_on_all(std::slice::from_ref(first), host_keys, args).await?;
    let answer = answers.pop().unwrap_or_else(|| Err(HintedError::new("no host was queried", "")))?;
    Ok(decode(first, &answer))
}

/// Returns why a run cannot start from this checkpoint. Unknown keys of another version are ignored: the
/// trainer compares them.
pub(crate) fn mismatch(
    path: &str,
    header: &CheckpointHeader,
    experiment: &Experiment,
) -> Option<HintedError> {
    let there = serde_json::from_value(header.about.experiment.clone()).ok()?;
    weights::refusal(path, &weights::mismatches(&there, experiment))
}

/// Returns a checkpoint of a run by file name, on the host of its rank 0.
pub(crate) async fn checkpoint_of_run(
    first: &Host,
    run: &str,
    checkpoint: &str,
    host_keys: &HostKeyArgs,
) -> Result<String, Failure> {
    let files = checkpoints(first, run, host_keys).await?;
    let earlier = EarlierRuns { readers: vec![first.clone()], files, run_index: RunIndex::default() };
    match earlier.place(run, checkpoint) {
        Some(ResumeCandidate { place: CheckpointPlace::File(path), .. }) => Ok(path),
        _ => Err(lacks(earlier.files_of(run), run, checkpoint)),
    }
}

/// The error for a missing checkpoint.
fn lacks(found: Option<&RunCheckpoints>, run: &str, checkpoint: &str) -> Failure {
    let files = found.map_or(&[][..], |found| &found.files);
    let stems: Vec<&str> =
        files.iter().filter_map(|entry| entry.path.strip_suffix(".ckpt")).take(8).collect();
    let hint = match stems.is_empty() {
        true => "rank 0 has saved no checkpoint".to_owned(),
        false => format!("available: {}", stems.join(", ")).replace("iter-", ""),
    };
    Failure::usage(format!("run {run} has no checkpoint {}", checkpoint.trim_start_matches("iter-")))
        .hint(hint)
}

/// Earlier runs: checkpoint files on the new rank 0's host, and what all hosts have recorded.
struct EarlierRuns {
    /// Hosts of the new run from which it can take a checkpoint, rank 0's first.
    readers: Vec<Host>,
    /// Checkpoint files on rank 0's host, newest run first.
    files: Vec<RunCheckpoints>,
    run_index: RunIndex,
}

/// A checkpoint of a run.
#[derive(Debug, Clone, PartialEq)]
struct ResumeCandidate {
    run: String,
    place: CheckpointPlace,
}

#[derive(Debug, Clone, PartialEq)]
enum CheckpointPlace {
    /// A file of the built-in trainer on the new rank 0's host.
    File(String),
    /// A path that a program reported, or that was found, on a host.
    Known { host: String, path: String },
}

/// The newest run that has a checkpoint.
#[derive(Debug, Default, PartialEq)]
struct Newest {
    saved: Option<ResumeCandidate>,
    /// A newer run that made progress and has no checkpoint.
    unsaved: Option<String>,
}

impl EarlierRuns {
    /// Queries the hosts of the draft for the runs that a name selects.
    async fn ask(
        name: &str,
        draft: &PlanDraft,
        hosts_from: &HostsSource,
        host_keys: &HostKeyArgs,
    ) -> Result<EarlierRuns, Failure> {
        let first = first_host(draft)?.clone();
        let excluded: Vec<String> = draft.excluded.iter().cloned().collect();
        // One after the other: both may prompt for a passphrase.
        let files = checkpoints(&first, run_name::prefix(name), host_keys).await?;
        let locator = RunLocator::new(hosts_from, host_keys).without(&excluded);
        let run_index = locator.index(Some(name)).await?;
        Ok(EarlierRuns { readers: readers(draft)?, files, run_index })
    }

    /// Names of all runs, the newest first.
    fn names(&self) -> Vec<String> {
        let recorded = self.run_index.runs();
        let recorded: Vec<&str> = recorded.iter().map(|found| found.run).collect();
        let others = self.files.iter().map(|found| found.run.as_str());
        let others = others.filter(|run| !recorded.contains(run));
        recorded.iter().copied().chain(others).map(str::to_owned).collect()
    }

    fn files_of(&self, run: &str) -> Option<&RunCheckpoints> {
        self.files.iter().find(|found| found.run == run)
    }

    /// Finds a checkpoint of a run: a file with that name, else the latest one that is known of its program.
    fn place(&self, run: &str, checkpoint: &str) -> Option<ResumeCandidate> {
        let saved = |place| Some(ResumeCandidate { run: run.to_owned(), place });
        let file = format!("{checkpoint}.ckpt");
        if let Some(found) = self.files_of(run)
            && found.files.iter().any(|entry| entry.path == file)
        {
            return saved(CheckpointPlace::File(path(found, &file)));
        }
        let runs = self.run_index.runs();
        let found = runs.iter().find(|found| found.run == run && checkpoint == LATEST)?;
        let reported = found.summary(wall_time()).checkpoint?;
        let owner =
            found.parts.iter().find(|(_, part)| part.digest.checkpoint.as_ref() == Some(&reported))?;
        saved(CheckpointPlace::Known { host: owner.1.host.clone(), path: reported.path })
    }

    /// Returns the checkpoint of the run that a name selects ([`run_name::resolve`]).
    fn named(&self, run: &str, checkpoint: &str) -> Result<ResumeCandidate, Failure> {
        let names = self.names();
        let named: Vec<NamedRun> = names.iter().map(|name| NamedRun { name, is_active: false }).collect();
        let Ok(selected) = run_name::resolve(&named, Some(run), RunAction::Read) else {
            let unknown = self.run_index.pick(Some(run), RunAction::Read).err();
            return Err(unknown.unwrap_or_else(|| lacks(None, run, checkpoint)));
        };
        let name = &names[selected.index];
        if let Some(saved) = self.place(name, checkpoint) {
            return Ok(saved);
        }
        let failure = match self.files_of(name).filter(|found| !found.files.is_empty()) {
            Some(found) => lacks(Some(found), name, checkpoint),
            None => Failure::usage(format!("run {name} has no checkpoint to start from"))
                .hint("for checkpoints of your own program, use `--from PATH`; the ranks read the path from RANKDECK_RESUME"),
        };
        let others = run_name::matches(&named, run).into_iter().map(|index| &names[index]);
        let other =
            others.filter(|other| *other != name).find(|other| self.place(other, checkpoint).is_some());
        Err(match other {
            Some(other) => failure.hint(format!("an earlier run has one: `--from {other}`")),
            None => failure,
        })
    }

    /// Returns the latest checkpoint of the newest matching run that has one.
    fn newest(&self, fits: impl Fn(&str) -> bool) -> Newest {
        let runs = self.run_index.runs();
        let mut newest = Newest::default();
        for name in self.names().into_iter().filter(|name| fits(name)) {
            newest.saved = self.place(&name, LATEST);
            if newest.saved.is_some() {
                break;
            }
            let found = runs.iter().find(|found| found.run == name);
            let progressed = found.is_some_and(|found| has_progressed(&found.summary(wall_time())));
            newest.unsaved = newest.unsaved.or(progressed.then_some(name));
        }
        newest
    }

    /// Returns the path on a host of the new run: the host that saved it, or one that shares its disk.
    async fn path(&self, saved: ResumeCandidate, host_keys: &HostKeyArgs) -> Result<String, Failure> {
        let (host, path) = match saved.place {
            CheckpointPlace::File(path) => return Ok(path),
            CheckpointPlace::Known { host, path } => (host, path),
        };
        let own: Vec<Host> = self.readers.iter().filter(|reader| reader.name == host).cloned().collect();
        if !own.is_empty() {
            return resolve_path(&own, &path, host_keys).await;
        }
        resolve_path(&self.readers, &path, host_keys).await.map_err(|_| {
            let names = self.readers.iter().map(|reader| reader.name.as_str()).collect::<Vec<_>>().join(", ");
            Failure::usage(format!("the checkpoints of run {} are on host {host}, not on {names}", saved.run))
                .hint(format!("copy {path} to one of these hosts and pass it with `--from PATH`"))
        })
    }
}

/// Whether progress would be lost without a checkpoint.
fn has_progressed(summary: &RunSummary) -> bool {
    summary.train_iter.is_some_and(|iterations| iterations > 0)
        || summary.env_step.is_some_and(|steps| steps > 0)
        || summary.evals > 0
}

fn path(run: &RunCheckpoints, file: &str) -> String {
    format!("{}/checkpoints/{file}", run.run_dir)
}

/// Returns the host of rank 0.
pub(crate) fn first_host(draft: &PlanDraft) -> Result<&Host, Failure> {
    draft
        .hosts
        .iter()
        .find(|host| !draft.excluded.contains(&host.name))
        .ok_or_else(|| Failure::usage("no host left").hint("exclude fewer hosts with `--exclude`"))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::support::run_index::sample_entry;
    use crate::cli::support::run_name::is_time;
    use rankdeck_proto::files::FileEntry;
    use rankdeck_proto::message::Counters;
    use rankdeck_proto::run_entry::{NodeDigest, RunEntry, SavedCheckpoint};
    use rankdeck_types::ids::RunId;

    #[test]
    fn run_name_suffix_is_a_time() {
        assert!(is_time("-20260101-120000") && is_time("-20260101-120000-2"));
        for other in ["", "-7-20260101-120000", "-20260101", "-20260101-120000-2-3", "-2026x101-120000"] {
            assert!(!is_time(other), "{other}");
        }
    }

    fn entry(run: &str, host: &str, started: f64, saved: Option<&str>, train_iter: u64) -> (usize, RunEntry) {
        let checkpoint = saved.map(|path| SavedCheckpoint {
            path: path.into(),
            env_step: train_iter,
            train_iter,
            reason: "latest".into(),
            ..SavedCheckpoint::default()
        });
        let totals = Some(Counters { train_iter, ..Counters::default() });
        let digest = NodeDigest { checkpoint, totals, ..NodeDigest::default() };
        let entry = RunEntry { run: RunId(run.into()), host: host.into(), started, digest, ..sample_entry() };
        (usize::from(host == "b"), entry)
    }

    fn earlier(entries: Vec<(usize, RunEntry)>, files: &[(&str, &str)]) -> EarlierRuns {
        let host = |name: &str| Host { name: name.into(), ..Host::default() };
        let files = files.iter().map(|(run, file)| RunCheckpoints {
            run: run.to_string(),
            run_dir: format!("/w/runs/{run}"),
            files: vec![FileEntry { path: file.to_string(), ..FileEntry::default() }],
        });
        let run_index = RunIndex { hosts: vec![host("a"), host("b")], entries, ..RunIndex::default() };
        EarlierRuns { readers: vec![host("a")], files: files.collect(), run_index }
    }

    fn reported(run: &str, host: &str, path: &str) -> ResumeCandidate {
        ResumeCandidate {
            run: run.into(),
            place: CheckpointPlace::Known { host: host.into(), path: path.into() },
        }
    }

    #[test]
    fn reported_checkpoint_is_found_by_name_and_as_newest() {
        let runs = vec![
            entry("ck-1", "a", 1.0, Some("/w/old.txt"), 5),
            entry("ck-2", "a", 2.0, Some("/w/ck.txt"), 9),
            entry("other", "a", 3.0, Some("/w/other.txt"), 9),
        ];
        let all = earlier(runs, &[("ppo-1", "latest.ckpt"), ("ppo-2", "best.ckpt")]);
        let is_ck = |run: &str| run.starts_with("ck-");
        assert_eq!(all.newest(is_ck).saved, Some(reported("ck-2", "a", "/w/ck.txt")));
        assert_eq!(all.named("ck-2", LATEST), Ok(reported("ck-2", "a", "/w/ck.txt")));
        assert_eq!(all.named("ck-", LATEST), Ok(reported("ck-2", "a", "/w/ck.txt")), "the newest");
        assert_eq!(all.named("ck-~1", LATEST), Ok(reported("ck-1", "a", "/w/old.txt")));
        assert!(all.named("ck-2", "best").is_err() && all.named("none", LATEST).is_err());
        let file = CheckpointPlace::File("/w/runs/ppo-1/checkpoints/latest.ckpt".into());
        for found in [all.named("ppo", LATEST).ok(), all.newest(|run| run == "ppo-1").saved] {
            assert_eq!(found, Some(ResumeCandidate { run: "ppo-1".into(), place: file.clone() }));
        }
    }

    #[test]
    fn run_with_progress_without_checkpoint_is_named() {
        let runs = vec![
            entry("ck-1", "a", 1.0, Some("/w/ck.txt"), 5),
            entry("ck-2", "a", 2.0, None, 7),
            entry("ck-3", "a", 3.0, None, 0),
        ];
        let all = earlier(runs, &[]);
        let unsaved = Some("ck-2".to_string());
        let saved = Some(reported("ck-1", "a", "/w/ck.txt"));
        assert_eq!(all.newest(|_| true), Newest { saved, unsaved: unsaved.clone() });
        assert_eq!(all.newest(|run| run != "ck-1"), Newest { saved: None, unsaved });
        assert_eq!(all.newest(|run| run == "ck-3"), Newest::default());
    }

    #[test]
    fn file_on_a_host_that_answers_is_found() {
        let silent = HintedError::new("a: no route to host", "");
        let has = |paths: &[&str]| -> Result<Vec<String>, HintedError> {
            Ok(paths.iter().map(|path| path.to_string()).collect())
        };
        let found = |answers: Vec<Result<Vec<String>, HintedError>>| first_found(answers.into_iter());
        let answers = vec![Err(silent.clone()), has(&[]), has(&["/w/ck.pt"])];
        assert_eq!(found(answers), Ok(Some("/w/ck.pt".to_owned())));
        assert_eq!(found(vec![has(&[]), has(&[])]), Ok(None));
        assert_eq!(found(vec![has(&[]), Err(silent.clone())]), Err(silent));
    }

    #[test]
    fn slurm_restart_count_means_requeued() {
        let of = |job: Option<&str>, count: Option<&str>| {
            is_requeued(|name| match name {
                "SLURM_JOB_ID" => job.map(str::to_owned),
                _ => count.map(str::to_owned),
            })
        };
        assert!(of(Some("7"), Some("1")) && of(Some("7"), Some("12")));
        assert!(!of(Some("7"), None) && !of(Some("7"), Some("0")) && !of(None, Some("1")));
    }
}
