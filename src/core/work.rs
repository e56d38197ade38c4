//! The work that the end of a run saves or loses: whether the latest checkpoint holds it.
//!
//! Known checkpoints are those that ranks report and the files that agents find once no rank is left.
//!
//! Invariants:
//! - WORK-1: a checkpoint that was completed after the order to stop, or that holds the last iteration, holds
//!   the work.
//! - WORK-2: nothing is called lost, or never saved, while a host may have a checkpoint that is not known.

use crate::model::CheckpointModel;
use rankdeck_proto::message::Work;
use rankdeck_types::ids::{NodeRank, WallTime};
use serde::{Deserialize, Serialize};

/// Times of one host's files and records may differ by so much, seconds.
const CLOCK_S: f64 = 0.05;
/// A file that changed this long after its report was written again, seconds.
pub(crate) const AGAIN_S: f64 = 1.0;

/// A checkpoint file that a host has found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct FoundFile {
    /// Its host.
    pub node: NodeRank,
    pub path: String,
    pub bytes: u64,
    /// Latest change, seconds since the epoch on the console's clock.
    pub time: WallTime,
}

/// How far the run had come; 0: unknown.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReachedWork {
    pub env_step: u64,
    pub train_iter: u64,
}

/// What is known about the work of a run that has ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct WorkFacts<'a> {
    /// Reported by ranks, oldest first.
    pub reported: Vec<&'a CheckpointModel>,
    /// Found by hosts, oldest first.
    pub files: Vec<&'a FoundFile>,
    /// Every checkpoint that there may be is among them.
    pub complete: bool,
    /// When the stop was ordered, seconds since the epoch on the console's clock.
    pub stopped_at: Option<WallTime>,
    /// When training ended, by the same clock.
    pub ended_at: Option<WallTime>,
    pub reached: ReachedWork,
}

/// A checkpoint, however it is known.
struct Artifact<'a> {
    path: &'a str,
    bytes: Option<u64>,
    /// Complete since.
    time: Option<WallTime>,
    env_step: Option<u64>,
    train_iter: Option<u64>,
}

/// Whether the work is saved.
pub(crate) fn decide(facts: &WorkFacts<'_>) -> Work {
    let latest = artifacts(facts).into_iter().max_by(|a, b| {
        let time = |artifact: &Artifact<'_>| artifact.time.unwrap_or(0.0);
        time(a).total_cmp(&time(b)).then(a.train_iter.cmp(&b.train_iter))
    });
    let Some(Artifact { path, bytes, time, env_step, train_iter }) = latest else {
        return if facts.complete { Work::NeverSaved } else { Work::Unknown };
    };
    let path = path.to_owned();
    let after_s = facts.stopped_at.zip(time).map(|(stopped, time)| time - stopped);
    let is_after = after_s.is_some_and(|after_s| after_s >= -CLOCK_S);
    let ReachedWork { env_step: steps, train_iter: iterations } = facts.reached;
    let has_all = |held: Option<u64>, reached: u64| reached > 0 && held.is_some_and(|held| held >= reached);
    // WORK-1.
    if is_after || has_all(train_iter, iterations) || has_all(env_step, steps) {
        return Work::Saved { path, bytes, env_step, after_s: after_s.map(|after_s| after_s.max(0.0)) };
    }
    // WORK-2.
    if !facts.complete {
        return Work::Unknown;
    }
    let seconds = facts.stopped_at.or(facts.ended_at).zip(time).map(|(end, time)| (end - time).max(0.0));
    let steps = env_step.and_then(|held| steps.checked_sub(held)).filter(|steps| *steps > 0);
    Work::Lost { path, bytes, env_step, steps, seconds }
}

/// All checkpoints. A file that a rank has reported is one with the report, unless it was written again.
fn artifacts<'a>(facts: &WorkFacts<'a>) -> Vec<Artifact<'a>> {
    let known = |value: u64| Some(value).filter(|value| *value > 0);
    let mut all: Vec<Artifact<'a>> = facts
        .reported
        .iter()
        .map(|reported| Artifact {
            path: &reported.path,
            bytes: None,
            time: Some(reported.at).filter(|at| *at > 0.0),
            env_step: known(reported.env_step),
            train_iter: known(reported.train_iter),
        })
        .collect();
    for file in &facts.files {
        let is_it = |artifact: &&mut Artifact<'a>| {
            file.path.strip_suffix(artifact.path).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
        };
        let reported = all.iter_mut().rev().find(is_it);
        let is_again = reported
            .as_ref()
            .and_then(|artifact| artifact.time)
            .is_some_and(|time| file.time - time > AGAIN_S);
        match reported {
            Some(artifact) if !is_again => artifact.bytes = Some(file.bytes),
            Some(_) | None => all.push(Artifact {
                path: &file.path,
                bytes: Some(file.bytes),
                time: Some(file.time),
                env_step: None,
                train_iter: None,
            }),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const STOP: f64 = 1_000.0;

    fn reported(at: f64, env_step: u64, train_iter: u64) -> CheckpointModel {
        let path = format!("checkpoints/{train_iter}.ckpt");
        CheckpointModel { path, env_step, train_iter, at, ..CheckpointModel::default() }
    }

    fn file(path: &str, time: f64) -> FoundFile {
        FoundFile { node: NodeRank(0), path: path.into(), bytes: 141_000, time }
    }

    fn work(reported: &[CheckpointModel], files: &[FoundFile], change: impl Fn(&mut WorkFacts<'_>)) -> Work {
        let mut facts = WorkFacts {
            reported: reported.iter().collect(),
            files: files.iter().collect(),
            complete: true,
            stopped_at: Some(STOP),
            ended_at: Some(STOP + 5.0),
            reached: ReachedWork::default(),
        };
        change(&mut facts);
        decide(&facts)
    }

    fn nothing(_: &mut WorkFacts<'_>) {}

    #[test]
    fn work_1_checkpoint_after_the_order_saves() {
        let files = [file("/w/logs/a_100.zip", STOP - 60.0), file("/w/logs/a.zip", STOP + 3.0)];
        let saved = Work::Saved {
            path: "/w/logs/a.zip".into(),
            bytes: Some(141_000),
            env_step: None,
            after_s: Some(3.0),
        };
        assert_eq!(work(&[], &files, nothing), saved);
        assert_eq!(work(&[], &files, |facts| facts.complete = false), saved, "whatever else there is");
        let events = [reported(STOP - 60.0, 100, 1), reported(STOP + 1.0, 200, 2)];
        let Work::Saved { env_step: Some(200), after_s: Some(1.0), bytes: None, .. } =
            work(&events, &[], nothing)
        else {
            panic!()
        };
    }

    #[test]
    fn work_1_checkpoint_of_the_last_iteration_saves() {
        let events = [reported(STOP - 9.0, 4_096, 8)];
        let reached = |train_iter, env_step| {
            work(&events, &[], |facts| facts.reached = ReachedWork { env_step, train_iter })
        };
        let Work::Saved { after_s: Some(0.0), .. } = reached(8, 4_096) else { panic!() };
        let Work::Lost { steps: Some(512), seconds: Some(9.0), env_step: Some(4_096), .. } =
            reached(9, 4_608)
        else {
            panic!()
        };
    }

    #[test]
    fn work_after_an_old_checkpoint_is_lost() {
        let files = [file("/w/a.pt", STOP - 60.0)];
        let lost = work(&[], &files, nothing);
        let Work::Lost { path, seconds: Some(60.0), steps: None, .. } = &lost else { panic!("{lost:?}") };
        assert_eq!(path, "/w/a.pt");
        let Work::Lost { seconds: Some(65.0), .. } = work(&[], &files, |facts| facts.stopped_at = None)
        else {
            panic!("it ended by itself")
        };
        // An unknown time is not shown.
        let Work::Lost { seconds: None, .. } = work(&[reported(0.0, 9, 0)], &[], nothing) else { panic!() };
    }

    #[test]
    fn work_2_unknown_files_are_neither_lost_nor_absent() {
        assert_eq!(work(&[], &[], nothing), Work::NeverSaved);
        assert_eq!(work(&[], &[], |facts| facts.complete = false), Work::Unknown);
        let files = [file("/w/a.pt", STOP - 60.0)];
        assert_eq!(work(&[], &files, |facts| facts.complete = false), Work::Unknown);
    }

    #[test]
    fn reported_file_is_one_with_its_report() {
        let events = [reported(STOP + 1.0, 200, 2)];
        let Work::Saved { bytes: Some(141_000), env_step: Some(200), .. } =
            work(&events, &[file("/w/run/checkpoints/2.ckpt", STOP + 1.5)], nothing)
        else {
            panic!()
        };
        let again = work(&events, &[file("/w/run/checkpoints/2.ckpt", STOP + 9.0)], nothing);
        let Work::Saved { env_step: None, after_s: Some(9.0), .. } = again else { panic!() };
        let other = work(&events, &[file("/w/run/checkpoints/12.ckpt", STOP - 1.5)], nothing);
        let Work::Saved { bytes: None, .. } = other else { panic!("another file") };
    }
}
