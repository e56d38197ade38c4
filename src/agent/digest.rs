//! Summarizes a run from the records of a node, for lists of runs.
//!
//! Owner: one-shot commands. The digest of a run that is over is kept next to its records, so that a list of
//! many runs reads each file once. It is made again when the file has changed.

use crate::paths::RunPaths;
use rankdeck_proto::lineage::{Origin, SavedAt};
use rankdeck_proto::message::{
    CheckpointFile, CheckpointOrigin, Counters, Evaluation, Exit, FinishReason, RankEvent, Record,
    RecordEvent, Returns,
};
use rankdeck_proto::rate::SmoothedRate;
use rankdeck_proto::regular;
use rankdeck_proto::run_entry::{NodeDigest, NodeProgress, RankFailure, SavedCheckpoint};
use rankdeck_proto::trust;
use rankdeck_types::code::Code;
use rankdeck_types::exit::CANNOT_SHRINK;
use rankdeck_types::hidden;
use rankdeck_types::ids::{Generation, Rank};
use rankdeck_types::meaning::{Meaning, Meanings};
use rankdeck_types::plan::Plan;
use rankdeck_types::words::clip;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Grows whenever a digest is made in another way.
const FORM: u32 = 8;
/// Longest record that is read.
const RECORD_BYTES: u64 = 8 << 20;
/// Most checkpoints that are known by their paths.
const CHECKPOINTS: usize = 4096;
/// Most evaluations that are known; the earliest go first.
const EVALUATIONS: usize = 10_000;
/// Most files of a generation that are asked for their time.
const FILES: usize = 4096;
/// Longest text of a failure, characters.
const TEXT: usize = 400;
/// Longest name of what ranks run, characters.
const PROGRAM: usize = 200;

/// A digest, and the file of records that it is of.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct DigestFile {
    form: u32,
    build: String,
    length: u64,
    inode: u64,
    modified: (i64, i64),
    digest: NodeDigest,
}

/// The digest of a node; `over`: nothing of it runs.
pub(crate) fn read(paths: &RunPaths, over: bool) -> NodeDigest {
    let Ok(file) = regular::open(&paths.spool()) else { return NodeDigest::default() };
    let Ok(data) = file.metadata() else { return NodeDigest::default() };
    let (length, inode, modified) = (data.len(), data.ino(), (data.mtime(), data.mtime_nsec()));
    let path = paths.node_dir().join("digest.json");
    let known = regular::read(&path, regular::TEXT_BYTES)
        .ok()
        .and_then(|bytes| serde_json::from_slice::<DigestFile>(&bytes).ok());
    let build = crate::identity::build();
    let fresh = |kept: &DigestFile| {
        (kept.form, kept.length, kept.inode, kept.modified) == (FORM, length, inode, modified)
            && kept.build == build
    };
    if let Some(kept) = known.filter(fresh).filter(|_| over) {
        return kept.digest;
    }
    let mut fold = DigestBuilder::default();
    records(BufReader::with_capacity(1 << 16, file), |record| fold.read(record));
    let digest = fold.finish(over);
    if over {
        keep(&path, &DigestFile { form: FORM, build, length, inode, modified, digest: digest.clone() });
    }
    digest
}

/// Dates an end that no record has by the last files that its ranks and its guard wrote: the records of a run
/// whose agent was killed stop where they happened to be.
pub(crate) fn date_by_files(digest: &mut NodeDigest, paths: &RunPaths, generation: Generation) {
    let Some(ended) = digest.ended.filter(|_| !digest.proved) else { return };
    let folder = std::fs::read_dir(paths.generation_dir(generation));
    let logs = folder.into_iter().flatten().flatten().take(FILES).map(|file| file.path());
    let logs = logs.filter(|path| path.extension().is_some_and(|ending| ending == "log"));
    let written = logs.chain([paths.agent_log()]).filter_map(|path| {
        let data = std::fs::symlink_metadata(path).ok()?;
        Some(data.mtime() as f64 + data.mtime_nsec() as f64 / 1e9)
    });
    let last = written.fold(ended, f64::max);
    digest.seconds += last - ended;
    digest.ended = Some(last);
}

/// A list works without it, so a failure to write it is not reported.
fn keep(path: &Path, kept: &DigestFile) {
    let temporary = path.with_extension(format!("json.{}", std::process::id()));
    let written = serde_json::to_vec(kept).ok().is_some_and(|bytes| {
        trust::create(&temporary).and_then(|mut file| file.write_all(&bytes)).is_ok()
            && std::fs::rename(&temporary, path).is_ok()
    });
    if !written {
        let _ = std::fs::remove_file(&temporary);
    }
}

/// Passes every record of a file, in their order; none where it cannot be read.
pub(crate) fn each_record(path: &Path, each: impl FnMut(&Record)) {
    if let Ok(file) = regular::open(path) {
        records(BufReader::with_capacity(1 << 16, file), each);
    }
}

fn records(mut reader: impl BufRead, mut each: impl FnMut(&Record)) {
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.by_ref().take(RECORD_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if let Ok(record) = serde_json::from_slice::<Record>(&line) {
            each(&record);
        }
    }
}

/// Reads records in their order. State of one generation is reset by the next.
#[derive(Default)]
struct DigestBuilder {
    digest: NodeDigest,
    generation: Generation,
    /// Latest counters of the ranks of the current generation whose counters are summed.
    own: BTreeMap<Rank, Counters>,
    /// Ranks whose main program an exception has ended, whatever exit code follows.
    raised: BTreeSet<Rank>,
    /// Ranks whose main program has returned: a crash of the interpreter after that does not count as a failure.
    returned: BTreeSet<Rank>,
    /// Ranks that have been in the process group; `None`: the death of one ends the generation for all.
    joined: Option<BTreeSet<Rank>>,
    /// When the latest record of the present generation was written.
    last: f64,
    /// Checkpoints by their paths, the latest of each, and the generations that wrote them.
    saved: BTreeMap<String, (SavedCheckpoint, Generation)>,
    /// The generation that wrote the latest.
    saved_by: Generation,
    evals: VecDeque<Evaluation>,
    rate: SmoothedRate,
    /// Names of the present launch.
    meanings: Meanings,
}

impl DigestBuilder {
    fn read(&mut self, record: &Record) {
        if let RecordEvent::Launched { spec } = &record.event {
            self.follow(spec.generation, spec.resume.as_deref());
        }
        self.apply(record);
        self.measure(record);
        if let RecordEvent::CheckpointFiles { files, .. } = &record.event {
            files.iter().for_each(|file| self.found(record.generation, file));
        }
        if let RecordEvent::Rank { event: RankEvent::Checkpoint { path, .. }, .. } = &record.event
            && let Some(saved) = self.digest.checkpoint.as_ref().filter(|_| self.saved.len() < CHECKPOINTS)
        {
            self.saved.insert(path.clone(), (saved.clone(), record.generation));
        }
    }

    /// A checkpoint was found. It is the latest one unless ranks report theirs.
    fn found(&mut self, generation: Generation, file: &CheckpointFile) {
        if file.is_cut_off {
            return self.lose(generation, &file.path);
        }
        if self.digest.checkpoint.as_ref().is_some_and(|latest| latest.origin.is_reported()) {
            return;
        }
        let saved = SavedCheckpoint {
            path: file.path.clone(),
            env_step: file.env_step.unwrap_or(0),
            reason: SavedCheckpoint::FOUND.to_owned(),
            origin: CheckpointOrigin::Found,
            bytes: Some(file.bytes),
            ..SavedCheckpoint::default()
        };
        if self.saved.len() < CHECKPOINTS {
            self.saved.insert(file.path.clone(), (saved.clone(), generation));
        }
        (self.digest.checkpoint, self.saved_by) = (Some(saved), generation);
    }

    /// A checkpoint cannot be read any more: the one before it in the generation is the latest, or the one that the
    /// generation has resumed from.
    fn lose(&mut self, generation: Generation, path: &str) {
        self.saved.remove(path);
        if self.digest.checkpoint.as_ref().is_none_or(|latest| latest.path != path) {
            return;
        }
        let from = self.digest.resumed_from.as_deref();
        let is_left = |(saved, by): &&(SavedCheckpoint, Generation)| {
            *by == generation || from == Some(saved.path.as_str())
        };
        let place = |(saved, by): &&(SavedCheckpoint, Generation)| (*by, saved.env_step, saved.train_iter);
        let before = self.saved.values().filter(is_left).max_by_key(place).cloned();
        self.digest.checkpoint = before.map(|(saved, by)| {
            self.saved_by = by;
            saved
        });
    }

    /// Totals, evaluations and checkpoints of the record's generation.
    fn measure(&mut self, record: &Record) {
        match &record.event {
            RecordEvent::Rank { event: RankEvent::Totals(totals), .. } => {
                self.digest.reported = record.generation;
                self.digest.steps_per_s = self.rate.update(record.time, totals.env_step);
                self.digest.lineage.reached(record.generation, totals.env_step);
            }
            RecordEvent::Rank { event: RankEvent::Eval(evaluation), .. } => {
                self.evals.push_back(Evaluation { generation: record.generation, ..evaluation.clone() });
                if self.evals.len() > EVALUATIONS {
                    self.evals.pop_front();
                }
            }
            RecordEvent::Rank { event: RankEvent::Checkpoint { .. }, .. } => {
                self.saved_by = record.generation;
            }
            RecordEvent::Rank { event: RankEvent::Counters(counters), .. } if counters.sum => {
                self.digest.reported = record.generation;
                if let Some(counted) = &self.digest.counted {
                    self.digest.steps_per_s = self.rate.update(record.time, counted.env_step);
                }
            }
            RecordEvent::Metrics { .. } => self.digest.reported = record.generation,
            _ => {}
        }
    }

    fn apply(&mut self, record: &Record) {
        let present = record.generation == self.generation;
        let digest = &mut self.digest;
        match &record.event {
            RecordEvent::Launched { spec } => {
                self.close();
                let experiment = &spec.plan.experiment;
                let digest = &mut self.digest;
                *digest = NodeDigest {
                    seconds: digest.seconds,
                    since: Some(record.time),
                    total_steps: experiment.run.total_steps,
                    note: clip(experiment.run.note.as_deref().unwrap_or_default(), TEXT),
                    program: program(&spec.plan),
                    code: match &experiment.launch.code {
                        Some(Code::Pack(hash)) => Some(clip(hash, TEXT)),
                        Some(Code::Path(_)) | None => None,
                    },
                    builtin: spec.plan.is_builtin(),
                    may_not_resume: spec.plan.may_not_resume(None),
                    gpus: spec.plan.ranks.iter().filter(|rank| rank.gpu.is_some()).count() as u32,
                    resumed_from: spec.resume.clone(),
                    restart_wait_ms: experiment.restart_wait_ms(),
                    lineage: std::mem::take(&mut digest.lineage),
                    reported: digest.reported,
                    totals: digest.totals,
                    counted: digest.counted,
                    last_return: digest.last_return,
                    checkpoint: digest.checkpoint.take(),
                    own_step: digest.own_step,
                    results: digest.results.take(),
                    ..NodeDigest::default()
                };
                self.meanings = Meanings::new(&experiment.metrics.names);
                self.drop_abandoned();
                self.rate = SmoothedRate::default();
                (self.generation, self.last) = (record.generation, record.time);
                self.own.clear();
                self.raised.clear();
                self.returned.clear();
                self.joined = spec.plan.shrinks().then(BTreeSet::new);
                return;
            }
            RecordEvent::RankExited { rank, exit, last_lines, stopping, .. } if present => {
                self.exited(record.time, *rank, exit, last_lines, *stopping);
            }
            // An order after the end has ended nothing.
            RecordEvent::StopOrdered { by, .. } if present && !digest.proved => {
                digest.stop.get_or_insert_with(|| clip(by, TEXT));
            }
            RecordEvent::Stopped { survivors, .. } if present => {
                digest.proved = survivors.is_empty();
                digest.ended = Some(record.time);
                self.last = self.last.max(record.time);
                self.close();
                return;
            }
            RecordEvent::Ended { ending } => {
                digest.ending = present.then(|| (**ending).clone());
                return;
            }
            RecordEvent::Rank { rank, event: RankEvent::Counters(counters) } if counters.sum => {
                if present {
                    self.add_up(*rank, counters);
                }
            }
            RecordEvent::Rank { rank, event } => {
                if present {
                    self.ends(*rank, event);
                }
                apply_event(&mut self.digest, record, *rank, event);
            }
            RecordEvent::Metrics { env_step, values, progress, .. } => {
                digest.own_step = env_step.or(digest.own_step);
                digest.last_return = self.meanings.value(Meaning::Return, values).or(digest.last_return);
                if let Some(shown) = progress.as_ref().filter(|_| present) {
                    digest.progress = Some(NodeProgress { shown: shown.clone(), time: record.time });
                }
            }
            RecordEvent::Results { results } => digest.results = Some((**results).clone()),
            RecordEvent::RankSpawned { rank, .. } if present && self.digest.lost.contains(rank) => {
                // It joins again, once the others have taken it.
                self.digest.exits = self.digest.exits.saturating_sub(1);
                self.digest.proved = false;
                self.digest.since.get_or_insert(record.time);
            }
            RecordEvent::RankSpawned { .. }
            | RecordEvent::RankExited { .. }
            | RecordEvent::Signalled { .. }
            | RecordEvent::StopOrdered { .. }
            | RecordEvent::Stopped { .. }
            | RecordEvent::CheckpointFiles { .. }
            | RecordEvent::CheckpointUnread { .. }
            | RecordEvent::Notice { .. }
            | RecordEvent::Omitted { .. }
            | RecordEvent::Unknown => {}
        }
        if self.digest.since.is_some() {
            self.last = self.last.max(record.time);
        }
    }

    fn exited(&mut self, time: f64, rank: Rank, exit: &Exit, last_lines: &[String], stopping: bool) {
        let digest = &mut self.digest;
        digest.exits += 1;
        let was_member = self.joined.as_mut().is_some_and(|joined| joined.remove(&rank));
        let gives_up = matches!(exit, Exit::Code { code: 0 | CANNOT_SHRINK });
        if !stopping && (was_member && !gives_up || digest.lost.contains(&rank)) {
            digest.lost.insert(rank);
            digest.failure = digest.failure.take().filter(|failure| failure.rank != rank);
            return;
        }
        let raised = self.raised.remove(&rank) && !stopping;
        let only_left = self.returned.remove(&rank) && exit.reports_crash();
        if (exit.is_success() || only_left) && !raised {
        } else if stopping && exit.is_stop_effect() {
            digest.killed += u32::from(exit.is_sigkill());
        } else if stopping {
            digest.bad_exits += 1;
        } else if digest.failure.as_ref().is_none_or(|known| known.exit.is_none()) {
            failed_by_exit(digest, time, rank, exit, last_lines);
        }
    }

    /// Exceptions that end a rank whatever its exit code, as far as it has not survived them.
    fn ends(&mut self, rank: Rank, event: &RankEvent) {
        match event {
            RankEvent::Exception(exception) if exception.ends_rank() => {
                self.raised.insert(rank);
            }
            RankEvent::Survived => {
                self.raised.remove(&rank);
                self.returned.remove(&rank);
            }
            RankEvent::Returned => {
                self.returned.insert(rank);
            }
            RankEvent::Joined { .. } => self.joined.iter_mut().for_each(|joined| {
                joined.insert(rank);
            }),
            RankEvent::Membership(change) => {
                let lost = &mut self.digest.lost;
                lost.extend(&change.lost);
                lost.retain(|rank| !change.ranks.contains(rank));
            }
            RankEvent::Exception(_)
            | RankEvent::InnerRank(_)
            | RankEvent::Hello { .. }
            | RankEvent::Counters(_)
            | RankEvent::Totals(_)
            | RankEvent::Scalars { .. }
            | RankEvent::Histogram(_)
            | RankEvent::Image(_)
            | RankEvent::Eval(_)
            | RankEvent::Checkpoint { .. }
            | RankEvent::Fingerprint { .. }
            | RankEvent::Frame(_)
            | RankEvent::Error { .. }
            | RankEvent::Finished { .. }
            | RankEvent::Unknown => {}
        }
    }

    /// A generation starts from there: checkpoints after it are no longer the run's latest.
    fn follow(&mut self, generation: Generation, from: Option<&str>) {
        let latest = self.digest.checkpoint.take().map(|saved| (saved, self.saved_by));
        let saved = match from {
            Some("latest") => latest,
            // Where this host was away in between, others may have saved another one under the path.
            Some(path) if generation.0 <= self.generation.0.saturating_add(1) => {
                self.saved.get(path).cloned()
            }
            Some(_) | None => None,
        };
        let at = saved.as_ref().map(|(saved, by)| SavedAt { generation: *by, env_step: saved.env_step });
        self.digest.lineage.begin(generation, Origin::of(generation, from, at));
        if let Some((saved, by)) = saved {
            (self.digest.checkpoint, self.saved_by) = (Some(saved), by);
        }
    }

    /// Forgets what the present generation does not continue.
    fn drop_abandoned(&mut self) {
        let digest = &mut self.digest;
        let keeps = |step: u64| digest.lineage.keeps(digest.reported, step as f64);
        let step = digest.totals.or(digest.counted).map(|counters| counters.env_step).or(digest.own_step);
        // Without a known step, only a start from scratch keeps them.
        if !keeps(step.unwrap_or(0)) {
            (digest.totals, digest.counted, digest.last_return, digest.own_step) = (None, None, None, None);
        }
    }

    /// Counters of a rank without all-reduced totals.
    fn add_up(&mut self, rank: Rank, counters: &Counters) {
        self.own.insert(rank, *counters);
        self.digest.counted = self.own.values().copied().reduce(|one, other| one.plus(&other));
        self.digest.last_return = mean(&counters.returns).or(self.digest.last_return);
    }

    /// The present generation ended with its latest record.
    fn close(&mut self) {
        if let Some(since) = self.digest.since.take() {
            self.digest.seconds += (self.last - since).max(0.0);
            self.digest.ended = Some(self.last);
        }
    }

    fn finish(mut self, over: bool) -> NodeDigest {
        if over {
            self.close();
        }
        let lineage = &self.digest.lineage;
        self.evals.retain(|eval| lineage.keeps(eval.generation, eval.env_step as f64));
        self.digest.evals = self.evals.len() as u64;
        let best = self.evals.iter().filter(|eval| eval.return_mean.is_finite());
        self.digest.best = best.max_by(|a, b| a.return_mean.total_cmp(&b.return_mean)).cloned();
        self.digest
    }
}

/// What ranks run, in a few words.
fn program(plan: &Plan) -> String {
    let experiment = &plan.experiment;
    let text = match (plan.is_builtin(), &experiment.learn, &experiment.env) {
        (true, Some(learn), Some(env)) => format!("{} {}", learn.name(), env.id),
        _ => hidden::words(experiment.launch.command.iter().map(String::as_str)).join(" "),
    };
    clip(&text, PROGRAM)
}

/// A rank's end is its failure, with its own message if it sent one.
fn failed_by_exit(digest: &mut NodeDigest, time: f64, rank: Rank, exit: &Exit, last_lines: &[String]) {
    let own = digest.failure.take().map(|failure| failure.text).unwrap_or_default();
    let text = clip(exit.message(&own, last_lines), TEXT);
    digest.failure = Some(RankFailure { rank, time, exit: Some(exit.clone()), text, usage: digest.usage });
}

fn mean(returns: &Returns) -> Option<f64> {
    (returns.count > 0).then(|| returns.sum / returns.count as f64)
}

fn apply_event(digest: &mut NodeDigest, record: &Record, rank: Rank, event: &RankEvent) {
    match event {
        RankEvent::Totals(totals) => {
            digest.totals = Some(*totals);
            digest.last_return = totals.return_last_100.or(mean(&totals.returns)).or(digest.last_return);
        }
        RankEvent::Checkpoint { path, env_step, train_iter, reason } => {
            digest.checkpoint = Some(SavedCheckpoint {
                path: path.clone(),
                env_step: *env_step,
                train_iter: *train_iter,
                reason: reason.clone(),
                ..SavedCheckpoint::default()
            });
        }
        RankEvent::Finished { reason } => {
            if *reason != FinishReason::Stopped || digest.finish.is_none() {
                digest.finish = Some(*reason);
            }
        }
        RankEvent::Error { message, usage, .. } => {
            digest.usage |= usage;
            fail(digest, record, rank, message);
        }
        RankEvent::Exception(exception) if exception.thread.is_empty() => {
            let text = format!("{}: {}", exception.class, exception.message);
            fail(digest, record, rank, &text);
        }
        RankEvent::Survived => {
            let before = |failure: &RankFailure| failure.rank == rank && failure.exit.is_none();
            digest.failure = digest.failure.take().filter(|failure| !before(failure));
        }
        RankEvent::Exception(_)
        | RankEvent::InnerRank(_)
        | RankEvent::Membership(_)
        | RankEvent::Returned
        | RankEvent::Eval(_)
        | RankEvent::Histogram(_)
        | RankEvent::Image(_)
        | RankEvent::Hello { .. }
        | RankEvent::Joined { .. }
        | RankEvent::Counters(_)
        | RankEvent::Scalars { .. }
        | RankEvent::Fingerprint { .. }
        | RankEvent::Frame(_)
        | RankEvent::Unknown => {}
    }
}

/// What a rank reported before its end; the first of this host counts.
fn fail(digest: &mut NodeDigest, record: &Record, rank: Rank, text: &str) {
    if digest.failure.is_none() {
        let text = clip(text, TEXT);
        digest.failure = Some(RankFailure { rank, time: record.time, exit: None, text, usage: digest.usage });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::message::{LaunchSpec, StopMode};
    use rankdeck_proto::progress_bar::ShownProgress;
    use rankdeck_types::exit::Exit;
    use rankdeck_types::ids::NodeRank;

    fn launch(generation: u32) -> RecordEvent {
        let experiment =
            toml::from_str("[run]\nname = \"t\"\nnote = \"why\"\n[launch]\ncommand = [\"true\"]");
        let plan = Plan {
            run: rankdeck_types::ids::RunId("t".into()),
            experiment: experiment.unwrap(),
            program: None,
            hosts: Vec::new(),
            ranks: Vec::new(),
            sizes: Vec::new(),
            drill: false,
        };
        let spec = LaunchSpec {
            generation: Generation(generation),
            node_rank: NodeRank(0),
            master_addr: String::new(),
            master_port: 1,
            resume: None,
            resume_at: None,
            plan,
        };
        RecordEvent::Launched { spec: Box::new(spec) }
    }

    fn exited(code: i32, stopping: bool) -> RecordEvent {
        RecordEvent::RankExited {
            rank: Rank(0),
            pid: 1,
            exit: Exit::Code { code },
            last_lines: vec!["ValueError: x".into(), String::new()],
            stopping,
            ago_ms: 0,
            with_agent: false,
        }
    }

    fn event(event: RankEvent) -> RecordEvent {
        RecordEvent::Rank { rank: Rank(0), event }
    }

    /// One record a second.
    fn written(events: &[RecordEvent]) -> (tempfile::TempDir, RunPaths) {
        let folder = tempfile::tempdir().unwrap();
        let paths = RunPaths { run_dir: folder.path().into(), node: NodeRank(0) };
        std::fs::create_dir(paths.node_dir()).unwrap();
        let mut generation = Generation(0);
        let lines: Vec<String> = (1..)
            .zip(events)
            .map(|(seq, event)| {
                if let RecordEvent::Launched { spec } = event {
                    generation = spec.generation;
                }
                let record = Record { seq, time: seq as f64, generation, event: event.clone() };
                serde_json::to_string(&record).unwrap() + "\n"
            })
            .collect();
        std::fs::write(paths.spool(), lines.concat()).unwrap();
        (folder, paths)
    }

    #[test]
    fn end_without_record_is_dated_by_the_last_log() {
        let stopped = RecordEvent::Stopped { survivors: vec![], gpus_free: vec![], took_ms: 1 };
        for (events, expected) in [(vec![launch(0)], 50.0), (vec![launch(0), stopped], 1.0)] {
            let (_folder, paths) = written(&events);
            std::fs::create_dir(paths.generation_dir(Generation(0))).unwrap();
            let log = std::fs::File::create(paths.rank_log(Generation(0), Rank(0))).unwrap();
            log.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(51)).unwrap();
            let mut digest = read(&paths, true);
            date_by_files(&mut digest, &paths, Generation(0));
            assert_eq!((digest.seconds, digest.ended), (expected, Some(1.0 + expected)));
        }
    }

    #[test]
    fn digest_has_the_wait_of_the_restart_policy() {
        let (_folder, paths) = written(&[launch(0)]);
        assert_eq!(read(&paths, true).restart_wait_ms, None);
        let RecordEvent::Launched { mut spec } = launch(0) else { unreachable!() };
        spec.plan.experiment.restart.max_restarts = Some(2);
        let wait = spec.plan.experiment.restart_wait_ms();
        let (_folder, paths) = written(&[RecordEvent::Launched { spec }]);
        assert!(wait.is_some());
        assert_eq!(read(&paths, true).restart_wait_ms, wait);
    }

    #[test]
    fn counters_that_nobody_all_reduces_are_added_up() {
        let counters = |rank, env_step, sum| RecordEvent::Rank {
            rank: Rank(rank),
            event: RankEvent::Counters(Counters {
                train_iter: env_step / 10,
                env_step,
                sum,
                returns: Returns { sum: 6.0, count: 4, ..Returns::default() },
                ..Counters::default()
            }),
        };
        let (_folder, paths) =
            written(&[launch(0), counters(0, 100, true), counters(1, 80, true), counters(0, 120, true)]);
        let digest = read(&paths, true);
        let counted = digest.counted.unwrap();
        assert_eq!((counted.env_step, counted.train_iter, digest.last_return), (200, 8, Some(1.5)));
        let (_folder, paths) = written(&[launch(0), counters(0, 100, false)]);
        assert_eq!(read(&paths, true).counted, None, "of a program that sends totals");
    }

    #[test]
    fn values_and_bar_of_a_program_are_in_the_digest() {
        let metrics = |values: &[(&str, f64)], progress: Option<u64>| RecordEvent::Metrics {
            rank: Rank(0),
            source: "stdout".into(),
            env_step: None,
            values: values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
            skipped: 0,
            not_finite: BTreeMap::new(),
            spread: BTreeMap::new(),
            counter: None,
            progress: progress.map(|done| ShownProgress { done, ..ShownProgress::default() }),
        };
        let events = [
            launch(0),
            metrics(&[("rollout/ep_rew_mean", 21.5)], None),
            metrics(&[("loss", 0.5)], Some(20)),
            metrics(&[("my/score", 1.0)], None),
        ];
        let (_folder, paths) = written(&events);
        let digest = read(&paths, true);
        let progress = digest.progress.map(|progress| (progress.shown.done, progress.time));
        assert_eq!((digest.last_return, progress), (Some(21.5), Some((20, 3.0))));
        let RecordEvent::Launched { mut spec } = launch(0) else { unreachable!() };
        spec.plan.experiment.metrics.names = [("return".into(), "my/score".into())].into();
        let (_folder, paths) = written(&[&[RecordEvent::Launched { spec }], &events[1..]].concat());
        assert_eq!(read(&paths, true).last_return, Some(1.0), "the name that the user assigns");
    }

    #[test]
    fn generations_add_up_and_the_end_is_the_last_one_s() {
        let stopped = RecordEvent::Stopped { survivors: vec![], gpus_free: vec![], took_ms: 1 };
        let eval = |mean| event(RankEvent::Eval(Evaluation { return_mean: mean, ..Evaluation::default() }));
        let totals = Counters { env_step: 80, return_last_100: Some(3.5), ..Counters::default() };
        let (_folder, paths) = written(&[
            launch(0),
            eval(9.0),
            exited(1, false),
            stopped.clone(),
            launch(1),
            eval(4.0),
            event(RankEvent::Totals(totals)),
            RecordEvent::StopOrdered { mode: StopMode::Clean, by: "console".into(), ends: false },
            exited(0, true),
            stopped,
        ]);
        let digest = read(&paths, true);
        assert_eq!((digest.seconds, digest.ended, digest.since), (8.0, Some(10.0), None));
        assert_eq!((digest.best.unwrap().return_mean, digest.evals), (4.0, 1), "of generation 1");
        assert_eq!((digest.totals.unwrap().env_step, digest.last_return), (80, Some(3.5)));
        assert_eq!((digest.failure, digest.exits, digest.stop.as_deref()), (None, 1, Some("console")));
        assert_eq!((digest.note.as_str(), digest.program.as_str()), ("why", "true"));
    }

    /// A generation from an earlier checkpoint, before and after its first report.
    #[test]
    fn restart_drops_figures_after_its_checkpoint() {
        let from = |generation: u32, path: Option<&str>| {
            let RecordEvent::Launched { mut spec } = launch(generation) else { unreachable!() };
            spec.resume = path.map(str::to_owned);
            RecordEvent::Launched { spec }
        };
        let trained = |step: u64, mean: f64| {
            let eval = Evaluation { env_step: step, return_mean: mean, ..Evaluation::default() };
            let last = Some(mean);
            let totals = Counters { env_step: step, return_last_100: last, ..Counters::default() };
            [event(RankEvent::Totals(totals)), event(RankEvent::Eval(eval))]
        };
        let checkpoint = event(RankEvent::Checkpoint {
            path: "/r/a.ckpt".into(),
            env_step: 100,
            train_iter: 1,
            reason: "every".into(),
        });
        let figures = |restart: &[RecordEvent]| {
            let mut all = vec![from(0, None)];
            all.extend(trained(100, 50.0));
            all.push(checkpoint.clone());
            all.extend(trained(200, 500.0));
            all.extend(restart.iter().cloned());
            let (_folder, paths) = written(&all);
            let digest = read(&paths, true);
            let best = digest.best.map(|best| best.return_mean);
            (best, digest.evals, digest.totals.map(|totals| totals.env_step), digest.last_return)
        };
        assert_eq!(figures(&[]), (Some(500.0), 2, Some(200), Some(500.0)));
        let early = || from(1, Some("/r/a.ckpt"));
        assert_eq!(figures(&[early()]), (Some(50.0), 1, None, None));
        assert_eq!(figures(&[from(1, None)]), (None, 0, None, None));
        let mut resumed = vec![early()];
        resumed.extend(trained(150, 20.0));
        assert_eq!(figures(&resumed), (Some(50.0), 2, Some(150), Some(20.0)));
        let mut clean = vec![checkpoint.clone(), from(1, Some("latest"))];
        clean.extend(trained(300, 20.0));
        assert_eq!(figures(&clean).0, Some(50.0), "`latest` was written at step 100");
    }

    #[test]
    fn latest_checkpoint_follows_the_latest_generation() {
        let checkpoint = |name: &str, step| {
            let (path, reason) = (format!("/r/{name}.ckpt"), "every".to_owned());
            event(RankEvent::Checkpoint { path, env_step: step, train_iter: step, reason })
        };
        let next = |from: Option<&str>| match launch(1) {
            RecordEvent::Launched { mut spec } => {
                spec.resume = from.map(str::to_owned);
                RecordEvent::Launched { spec }
            }
            other => other,
        };
        for (from, expected) in
            [(None, None), (Some("latest"), Some(9)), (Some("/r/best.ckpt"), Some(5)), (Some("/x"), None)]
        {
            let events = [launch(0), checkpoint("best", 5), checkpoint("latest", 9), next(from)];
            let (_folder, paths) = written(&events);
            assert_eq!(read(&paths, true).checkpoint.map(|saved| saved.env_step), expected, "{from:?}");
        }
    }

    #[test]
    fn checkpoint_from_before_a_missed_generation_is_unknown() {
        let path = "/r/a.ckpt".to_owned();
        let (env_step, train_iter, reason) = (9, 9, "every".to_owned());
        let saved = event(RankEvent::Checkpoint { path: path.clone(), env_step, train_iter, reason });
        for (generation, expected) in [(1, Some(9)), (2, None)] {
            let RecordEvent::Launched { mut spec } = launch(generation) else { unreachable!() };
            spec.resume = Some(path.clone());
            let (_folder, paths) = written(&[launch(0), saved.clone(), RecordEvent::Launched { spec }]);
            assert_eq!(read(&paths, true).checkpoint.map(|saved| saved.env_step), expected, "{generation}");
        }
    }

    #[test]
    fn found_checkpoint_is_the_latest_unless_ranks_report() {
        let found = |path: &str, env_step| {
            let file = CheckpointFile { path: path.into(), bytes: 7, env_step, ..CheckpointFile::default() };
            RecordEvent::CheckpointFiles { files: vec![file], complete: false }
        };
        let (_folder, paths) = written(&[launch(0), found("/w/a.pt", Some(5)), found("/w/b.pt", None)]);
        let latest = read(&paths, true).checkpoint.unwrap();
        assert_eq!((latest.path.as_str(), latest.bytes, latest.step()), ("/w/b.pt", Some(7), None));
        let cut_off = |path: &str| {
            let path = path.to_owned();
            let file = CheckpointFile { path, is_cut_off: true, ..CheckpointFile::default() };
            RecordEvent::CheckpointFiles { files: vec![file], complete: true }
        };
        for (lost, expected) in [("/w/b.pt", Some("/w/a.pt")), ("/w/a.pt", Some("/w/b.pt"))] {
            let events = [launch(0), found("/w/a.pt", Some(5)), found("/w/b.pt", None), cut_off(lost)];
            let (_folder, paths) = written(&events);
            let latest = read(&paths, true).checkpoint.map(|saved| saved.path);
            assert_eq!(latest.as_deref(), expected, "{lost} is cut off");
        }
        let (_folder, paths) = written(&[launch(0), found("/w/a.pt", Some(5)), cut_off("/w/a.pt")]);
        assert_eq!(read(&paths, true).checkpoint, None);
        let reported = event(RankEvent::Checkpoint {
            path: "/w/own.pt".into(),
            env_step: 3,
            train_iter: 1,
            reason: "best".into(),
        });
        let (_folder, paths) =
            written(&[launch(0), found("/w/a.pt", Some(5)), reported, found("/w/b.pt", Some(9))]);
        let latest = read(&paths, true).checkpoint.unwrap();
        assert!(latest.origin.is_reported() && latest.path == "/w/own.pt", "{latest:?}");
    }

    #[test]
    fn failure_has_the_last_line_unless_the_rank_reported() {
        let (_folder, paths) = written(&[launch(0), exited(1, false)]);
        let failure = read(&paths, true).failure.unwrap();
        assert_eq!((failure.text.as_str(), failure.exit), ("ValueError: x", Some(Exit::Code { code: 1 })));
        let error = RankEvent::Error {
            message: "batch of 7".into(),
            hint: String::new(),
            usage: true,
            failure: None,
        };
        let (_folder, paths) = written(&[launch(0), event(error), exited(2, false), exited(1, false)]);
        let failure = read(&paths, true).failure.unwrap();
        assert_eq!((failure.text.as_str(), failure.usage), ("batch of 7", true));
    }

    #[test]
    fn killed_rank_has_no_message() {
        let killed = RecordEvent::RankExited {
            rank: Rank(0),
            pid: 1,
            exit: Exit::Signal { signal: libc::SIGKILL, out_of_memory: false },
            last_lines: vec!["iteration 7".into()],
            stopping: false,
            ago_ms: 0,
            with_agent: false,
        };
        let (_folder, paths) = written(&[launch(0), killed]);
        let failure = read(&paths, true).failure.unwrap();
        assert_eq!(failure.text, "");
        assert!(failure.exit.is_some_and(|exit| exit.is_sigkill()));
    }

    #[test]
    fn uncaught_exception_is_a_failure_despite_exit_code_0() {
        use rankdeck_proto::message::Exception;
        let raised = |thread: &str, survivable| {
            let (class, thread) = ("RuntimeError".into(), thread.into());
            let exception =
                Exception { class, message: "lost".into(), thread, survivable, ..Exception::default() };
            event(RankEvent::Exception(exception))
        };
        let failure = |events: &[RecordEvent]| {
            let all = [&[launch(0)], events, &[exited(0, false)]].concat();
            let (_folder, paths) = written(&all);
            read(&paths, true).failure.filter(|failure| failure.exit.is_some())
        };
        let failed = failure(&[raised("", false)]).unwrap();
        assert_eq!((failed.exit, failed.text.as_str()), (Some(Exit::Code { code: 0 }), "RuntimeError: lost"));
        assert_eq!(failure(&[raised("", true)]), None);
        assert_eq!(failure(&[raised("loader", false)]), None);
        assert_eq!(failure(&[raised("", false), event(RankEvent::Survived)]), None);
        assert_eq!(failure(&[raised("", false), exited(0, true)]), None, "a stop was ordered");
    }

    #[test]
    fn crash_after_the_program_returned_is_no_failure() {
        let failure = |events: &[RecordEvent], code: i32| {
            let all = [&[launch(0)], events, &[exited(code, false)]].concat();
            let (_folder, paths) = written(&all);
            read(&paths, true).failure
        };
        let returned = || event(RankEvent::Returned);
        assert_eq!(failure(&[returned()], 139), None);
        assert!(failure(&[], 139).is_some());
        assert!(failure(&[returned(), event(RankEvent::Survived)], 139).is_some(), "of another program");
        assert!(failure(&[returned()], 1).is_some(), "no crash");
    }

    #[test]
    fn digest_is_kept_until_the_records_change() {
        let (_folder, paths) = written(&[launch(0), exited(0, false)]);
        let kept = paths.node_dir().join("digest.json");
        read(&paths, false);
        assert!(!kept.exists(), "a run that continues is read each time");
        let digest = read(&paths, true);
        let marked = std::fs::read_to_string(&kept).unwrap().replace("\"why\"", "\"kept\"");
        std::fs::write(&kept, marked).unwrap();
        assert_eq!(read(&paths, true).note, "kept");
        let mut file = std::fs::OpenOptions::new().append(true).open(paths.spool()).unwrap();
        std::io::Write::write_all(&mut file, b"{ torn").unwrap();
        assert_eq!(read(&paths, true), digest);
        std::fs::write(&kept, "{ torn").unwrap();
        assert_eq!(read(&paths, true), digest);
        assert_eq!(
            read(&RunPaths { run_dir: "/none".into(), node: NodeRank(0) }, true),
            NodeDigest::default()
        );
    }
}
