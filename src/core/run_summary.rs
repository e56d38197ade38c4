//! The summary of a run, finished or running: a line of `rankdeck ps` and of lists of runs.
//!
//! It has two sources: the hosts' digests of a run ([`RunSummary::from_digests`]), or a model, live or from a
//! recording ([`RunSummary::from_model`]). The outcome is the one recorded by the console that launched the
//! last generation; without it, the records of the ranks decide, by the same rules.

use crate::model::{self, CheckpointModel, Model};
use crate::origin::{LATEST, PlannedCode, Standing};
use crate::report::ResultsReport;
use crate::series::Series;
use rankdeck_proto::lineage::Lineage;
use rankdeck_proto::message::{Evaluation, FinishReason, RunEnd, RunOutcome, Work};
use rankdeck_proto::progress_bar::ShownProgress;
use rankdeck_proto::run_entry::{HostRunState, NodeDigest, RankFailure, RunEntry, SavedCheckpoint};
use rankdeck_types::hidden;
use rankdeck_types::ids::{Generation, Rank, Timestamp, WallTime};
use rankdeck_types::meaning::Meaning;
use serde::Serialize;
use std::collections::BTreeSet;

/// The summary of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct RunSummary {
    /// How it ended, `None` while it runs, or if unknown.
    pub outcome: Option<RunOutcome>,
    /// The exit code of that end.
    pub exit_code: Option<u8>,
    /// Nothing of it runs, and no host has recorded how it ended.
    pub unrecorded: bool,
    /// Nothing of it runs, and its policy may begin another generation.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub restarting: bool,
    /// Every rank exited by itself.
    pub clean: Option<bool>,
    /// One sentence about the end, empty while it runs.
    pub reason: String,
    /// The rank of the latest generation that failed first, and how; also while others run.
    pub first_failure: Option<String>,
    /// What the end left of the work; `None` while it runs, and if it ended by itself.
    pub work: Option<Work>,
    /// What ranks have written where they work, per host or shared directory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<ResultsReport>,
    /// Environment steps over all ranks.
    pub env_step: Option<u64>,
    /// The goal in environment steps.
    pub total_steps: Option<u64>,
    pub train_iter: Option<u64>,
    /// How far a program is, by its progress bar or a counter with an end.
    pub progress: Option<ShownProgress>,
    /// Finished training episodes.
    pub episodes: Option<u64>,
    /// Environment steps per second of late; `None` before they are measured.
    pub steps_per_s: Option<f64>,
    /// Latest mean return of training episodes.
    pub last_return: Option<f64>,
    /// The evaluation with the highest mean return.
    pub best: Option<Evaluation>,
    pub evals: u64,
    /// The latest checkpoint.
    pub checkpoint: Option<SavedCheckpoint>,
    /// What its last generation began from; `None`: from scratch.
    #[serde(skip)]
    pub resumed_from: Option<String>,
    /// When it began, seconds since the epoch.
    pub started: Option<WallTime>,
    /// When its last generation ended.
    pub ended: Option<WallTime>,
    /// Seconds that its generations have lasted.
    pub duration_s: f64,
    /// The latest generation.
    pub generation: Generation,
    /// Ranks of it.
    pub world_size: u32,
    /// Those without which it continues, in rising order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Rank>,
    pub gpus: u32,
    /// Names of all hosts that it ever had, in node_rank order.
    pub hosts: Vec<String>,
    /// Those without the hosts that the latest generation excludes.
    #[serde(skip)]
    pub members: Vec<String>,
    /// What ranks run.
    pub program: String,
    /// The pack that they run in, by its hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// That is the built-in trainer, which can begin from its checkpoints.
    pub builtin: bool,
    /// That is a program that does not declare that it resumes from a checkpoint.
    #[serde(skip)]
    pub may_not_resume: bool,
    /// `run.note`.
    pub note: String,
}

impl RunSummary {
    /// Summarizes a model as it was at `at`, by the model's clock.
    pub fn from_model(model: &Model, at: Timestamp) -> RunSummary {
        let totals = model.latest.as_ref().map(|latest| &latest.counters);
        let totals = totals.or(model.progress.as_ref().map(|progress| &progress.totals));
        let own = model.own.as_ref();
        let returns = model.series(Meaning::Return).map(|(_, series)| series);
        let shown = own.and_then(|own| own.progress.as_ref());
        let progress = shown.map(|progress| ShownProgress {
            eta_s: progress.eta_s(at).filter(|_| model.run.state != model::RunState::Over),
            ..progress.shown.clone()
        });
        let best = model.evals.iter().filter(|eval| eval.return_mean.is_finite());
        let outcome = model.run.outcome.filter(|_| model.run.state == model::RunState::Over);
        let experiment = model.plan.as_ref().map(|plan| &plan.experiment);
        let program = experiment.map(|experiment| match (&experiment.learn, &experiment.env) {
            (Some(learn), Some(env)) if experiment.launch.command.is_empty() => {
                format!("{} {}", learn.name(), env.id)
            }
            _ => hidden::command(experiment).join(" "),
        });
        RunSummary {
            outcome,
            exit_code: model.run.exit_code.filter(|_| outcome.is_some()),
            reason: model.run.reason.clone(),
            work: model.run.work.clone().filter(|_| outcome.is_some()),
            results: model.run.results(),
            env_step: totals.map(|totals| totals.env_step).or(own.and_then(|own| own.env_step)),
            total_steps: model.run.total_steps.filter(|target| *target > 0),
            train_iter: totals.map(|totals| totals.train_iter),
            progress,
            episodes: totals.map(|totals| totals.episodes),
            steps_per_s: model.latest.as_ref().and_then(|latest| latest.steps_per_s),
            last_return: returns.and_then(Series::last).or(own.and_then(|own| own.return_mean)),
            best: best.max_by(|a, b| a.return_mean.total_cmp(&b.return_mean)).cloned(),
            evals: model.evals.len() as u64,
            checkpoint: model.checkpoints.back().map(CheckpointModel::saved),
            started: model.run.launched,
            ended: model.run.ended_time,
            duration_s: model.run.elapsed_ms(at).unwrap_or(model.run.head_start_ms) as f64 / 1000.0,
            generation: model.run.generation,
            world_size: model.ranks.len() as u32,
            lost: model.lost_ranks(),
            gpus: model.ranks.iter().filter(|rank| rank.gpu.is_some()).count() as u32,
            hosts: model.hosts.iter().map(|host| host.name.clone()).collect(),
            members: model.member_names(),
            program: program.unwrap_or_default(),
            code: model.plan.as_ref().and_then(PlannedCode::of).and_then(PlannedCode::into_hash),
            note: experiment.and_then(|experiment| experiment.run.note.clone()).unwrap_or_default(),
            ..RunSummary::default()
        }
    }

    /// Summarizes the digests that its hosts report; `now`: seconds since the epoch.
    pub fn from_digests(parts: &[&RunEntry], now: WallTime) -> RunSummary {
        let generation = parts.iter().map(|part| part.generation).max().unwrap_or_default();
        let latest: Vec<&RunEntry> =
            parts.iter().copied().filter(|part| part.generation == generation).collect();
        let digests = || parts.iter().map(|part| &part.digest);
        let mut lineage = Lineage::default();
        digests().for_each(|digest| lineage.merge(&digest.lineage));
        let lineage = &lineage;
        // Rank 0 may have moved to another host with a generation, which leaves what it abandons on the first.
        let reports = || {
            digests().filter(move |digest| {
                let counters = digest.totals.or(digest.counted).map(|counters| counters.env_step);
                lineage.keeps(digest.reported, counters.or(digest.own_step).unwrap_or(0) as f64)
            })
        };
        let furthest: Option<&NodeDigest> = reports().max_by_key(|digest| {
            (digest.reported, digest.totals.map_or(0, |totals| totals.train_iter.saturating_add(1)))
        });
        let totals = furthest.and_then(|digest| digest.totals);
        let totals = totals.or_else(|| reports().filter_map(|digest| digest.totals).next_back());
        let counted = reports().filter_map(|digest| digest.counted).reduce(|one, other| one.plus(&other));
        let best = digests().filter_map(|digest| digest.best.as_ref());
        let best = best.filter(|eval| lineage.keeps(eval.generation, eval.env_step as f64));
        let is_line = |part: &&&RunEntry| lineage.keeps(part.generation, 0.0);
        let first = latest.first().map(|part| &part.digest);
        let restarting = is_restarting(parts, now);
        let over = !restarting && is_over(parts);
        let hosts = hosts(parts);
        let takes_part = |name: &&String| latest.iter().any(|part| part.host == **name);
        let is_silent = |name: &&String| parts.iter().all(|part| part.host != **name);
        let members = hosts.iter().filter(|name| takes_part(name) || is_silent(name)).cloned().collect();
        let (ending, unrecorded) = match over.then(|| ending(&latest, hosts.len() > parts.len())) {
            Some(FoundEnding::Known(ending)) => (Some(ending), false),
            Some(FoundEnding::Unrecorded) => (None, true),
            Some(FoundEnding::Open) | None => (None, false),
        };
        let began = parts.iter().map(|part| part.started).filter(|started| *started > 0.0);
        let lost: BTreeSet<Rank> = latest.iter().flat_map(|part| part.digest.lost.iter().copied()).collect();
        RunSummary {
            outcome: ending.as_ref().map(|ending| ending.outcome),
            exit_code: ending.as_ref().map(|ending| ending.exit_code),
            clean: ending.as_ref().map(|ending| ending.clean),
            first_failure: match &ending {
                Some(ending) => ending.first_failure.clone(),
                None => first_failed(&latest).map(|(part, failure)| failure_text(&part.host, failure)),
            },
            work: ending.as_ref().and_then(|ending| ending.work.clone()),
            results: ResultsReport::of(
                parts.iter().filter_map(|part| Some((&*part.host, part.digest.results.as_ref()?))),
            ),
            unrecorded,
            restarting,
            reason: match unrecorded {
                true => UNRECORDED.to_owned(),
                false => ending.map(|ending| ending.reason).unwrap_or_default(),
            },
            env_step: totals
                .map(|totals| totals.env_step)
                .or(counted.map(|counted| counted.env_step))
                .or(reports().find_map(|digest| digest.own_step)),
            total_steps: first.map(|digest| digest.total_steps).filter(|goal| *goal > 0),
            train_iter: totals.or(counted).map(|counters| counters.train_iter),
            progress: latest.iter().find_map(|part| shown(&part.digest, now, over)),
            episodes: totals.or(counted).map(|counters| counters.episodes),
            last_return: furthest
                .and_then(|digest| digest.last_return)
                .or(reports().find_map(|digest| digest.last_return)),
            steps_per_s: furthest.and_then(|digest| digest.steps_per_s),
            best: best.max_by(|a, b| a.return_mean.total_cmp(&b.return_mean)).cloned(),
            evals: parts.iter().filter(is_line).map(|part| part.digest.evals).sum(),
            checkpoint: checkpoint(parts, &latest),
            resumed_from: first.and_then(|digest| digest.resumed_from.clone()),
            started: began.fold(None, |least, one| Some(least.map_or(one, |least: f64| least.min(one)))),
            ended: digests()
                .filter_map(|digest| digest.ended)
                .fold(None, |latest, one| Some(latest.map_or(one, |latest: f64| latest.max(one))))
                .filter(|_| over),
            duration_s: digests().map(|digest| duration(digest, now)).fold(0.0, f64::max),
            generation,
            world_size: latest.iter().map(|part| part.world_size).max().unwrap_or(0),
            lost: lost.into_iter().collect(),
            gpus: latest.iter().map(|part| part.digest.gpus).max().unwrap_or(0),
            hosts,
            members,
            program: first.map(|digest| digest.program.clone()).unwrap_or_default(),
            code: first.and_then(|digest| digest.code.clone()),
            builtin: first.is_some_and(|digest| digest.builtin),
            may_not_resume: first.is_some_and(|digest| digest.may_not_resume),
            note: first.map(|digest| digest.note.clone()).unwrap_or_default(),
        }
    }

    /// What a restart of this run begins from; `silent`: not all of its hosts respond.
    pub fn standing(&self, run: &str, running: bool, silent: bool) -> Standing {
        Standing {
            run: run.to_owned(),
            builtin: self.builtin,
            unsure: self.may_not_resume,
            running,
            generation: self.generation,
            ranks: self.world_size as usize,
            hosts: self.members.clone(),
            env_step: self.env_step,
            latest: self.checkpoint.clone(),
            resumed: self.resumed_from.clone(),
            silent,
            away: silent,
            fixed: Vec::new(),
        }
    }

    /// How it ended in one word, with the exit code unless that is 0.
    pub fn outcome_text(&self) -> Option<String> {
        if self.unrecorded {
            return Some("end not recorded".to_owned());
        }
        let (outcome, code) = (self.outcome?, self.exit_code.unwrap_or(0));
        let usual = matches!((outcome, code), (RunOutcome::Succeeded, _) | (RunOutcome::Stopped, 130));
        Some(if usual { outcome.name().to_owned() } else { format!("{} ({code})", outcome.name()) })
    }
}

/// The latest checkpoint: of the latest generation, else of those that it continues.
fn checkpoint(parts: &[&RunEntry], latest: &[&RunEntry]) -> Option<SavedCheckpoint> {
    let newest = |parts: &[&RunEntry]| {
        let saved = parts.iter().filter_map(|part| part.digest.checkpoint.as_ref());
        // Of equal ones that of the first host.
        saved
            .rev()
            .max_by_key(|saved| (saved.origin.is_reported(), saved.train_iter, saved.env_step))
            .cloned()
    };
    let continues = latest.iter().any(|part| part.digest.resumed_from.as_deref() == Some(LATEST));
    newest(latest).or_else(|| newest(parts).filter(|_| continues))
}

/// The progress that a program of this node shows; of a run that is over, nothing is left.
fn shown(digest: &NodeDigest, now: WallTime, over: bool) -> Option<ShownProgress> {
    let progress = digest.progress.as_ref()?;
    let eta_s = progress.shown.eta_after(now - progress.time).filter(|_| !over);
    Some(ShownProgress { eta_s, ..progress.shown.clone().checked() })
}

fn duration(digest: &NodeDigest, now: WallTime) -> f64 {
    digest.seconds + digest.since.map_or(0.0, |since| (now - since).max(0.0))
}

/// Names of all hosts that any part of the run names, in node_rank order. Every host reports its own place
/// best; the lists have the others, the latest generation's first.
pub fn hosts(parts: &[&RunEntry]) -> Vec<String> {
    let mut parts: Vec<&RunEntry> = parts.to_vec();
    parts.sort_by_key(|part| std::cmp::Reverse(part.generation));
    let own = parts.iter().map(|part| (part.node_rank.index(), part.host.as_str()));
    let lists = parts.iter().flat_map(|part| part.hosts.iter().map(String::as_str).enumerate());
    let mut named = BTreeSet::new();
    let named_hosts: Vec<(usize, &str)> = own.chain(lists).filter(|(_, name)| named.insert(*name)).collect();
    let mut places: Vec<Option<&str>> = vec![None; named_hosts.len()];
    let mut displaced = Vec::new();
    for (index, name) in named_hosts {
        match places.get_mut(index) {
            Some(place @ None) => *place = Some(name),
            Some(Some(_)) | None => displaced.push(name),
        }
    }
    let mut displaced = displaced.into_iter();
    places.into_iter().filter_map(|place| place.or_else(|| displaced.next())).map(str::to_owned).collect()
}

/// Nothing of it runs on any host.
fn is_over(parts: &[&RunEntry]) -> bool {
    !parts.is_empty() && parts.iter().all(|part| part.state == HostRunState::Finished)
}

/// Seconds that hosts may take between two generations besides the wait of the policy: for the proof of the stop,
/// and to copy a checkpoint.
const RESTART_S: f64 = 30.0;

/// A run between two generations: nothing of it runs, its agents wait, and the console that launched it has not
/// recorded the end. That console may be gone, so this has a bound.
pub fn is_restarting(parts: &[&RunEntry], now: WallTime) -> bool {
    let generation = parts.iter().map(|part| part.generation).max().unwrap_or_default();
    let latest: Vec<&RunEntry> = parts.iter().copied().filter(|part| part.generation == generation).collect();
    let digests = || latest.iter().map(|part| &part.digest);
    let Some(wait_ms) = digests().filter_map(|digest| digest.restart_wait_ms).max() else { return false };
    let ended = digests().filter_map(|digest| digest.ended).fold(0.0, f64::max);
    let is_final = |digest: &NodeDigest| {
        let reached = matches!(digest.finish, Some(FinishReason::Budget | FinishReason::StopValue));
        let ordered = digest.stop.as_ref().is_some_and(|by| by != "console");
        let usage = digest.usage || digest.failure.as_ref().is_some_and(|failure| failure.usage);
        digest.ending.is_some() || reached || ordered || usage
    };
    is_over(parts)
        && now < ended + wait_ms as f64 / 1000.0 + RESTART_S
        && latest.iter().any(|part| part.agent_pid != 0)
        && !digests().any(is_final)
        // Ranks that all ended well are not restarted. A stuck rank is stopped by the console.
        && (first_failed(&latest).is_some() || digests().any(|digest| digest.stop.is_some()))
}

/// The rank that failed first, and its host's part.
fn first_failed<'a>(parts: &[&'a RunEntry]) -> Option<(&'a RunEntry, &'a RankFailure)> {
    let failed = parts.iter().filter_map(|part| Some((*part, part.digest.failure.as_ref()?)));
    let failed = failed.filter(|(_, failure)| failure.exit.is_some());
    failed.min_by(|a, b| a.1.time.total_cmp(&b.1.time))
}

/// What the hosts' records say about the end of a run of which nothing runs.
enum FoundEnding {
    Known(RunEnd),
    /// The records stop before it.
    Unrecorded,
    /// Not all hosts have reported.
    Open,
}

/// The reason of [`FoundEnding::Unrecorded`]: a full disk looks like a dead host.
const UNRECORDED: &str =
    "its end was not recorded: a disk was full, an agent was killed, or its host went down";

/// The end of the latest generation; `silent`: not all hosts of the run have reported.
fn ending(parts: &[&RunEntry], silent: bool) -> FoundEnding {
    if let Some(ending) = parts.iter().find_map(|part| part.digest.ending.as_ref()) {
        return FoundEnding::Known(ending.clone());
    }
    if parts.iter().all(|part| part.world_size == 0) {
        return FoundEnding::Open;
    }
    let sum = |of: fn(&NodeDigest) -> u32| parts.iter().map(|part| of(&part.digest)).sum::<u32>();
    if let Some((part, failure)) = first_failed(parts) {
        let text = failure_text(&part.host, failure);
        let code = if failure.usage { 2 } else { 1 };
        return FoundEnding::Known(RunEnd {
            first_failure: Some(text.clone()),
            ..RunEnd::new(RunOutcome::Failed, code, text)
        });
    }
    if sum(|digest| digest.bad_exits) > 0 {
        let text = "a rank failed while it was being stopped";
        return FoundEnding::Known(RunEnd::new(RunOutcome::Failed, 1, text));
    }
    if silent {
        return FoundEnding::Open;
    }
    let ended = sum(|digest| digest.exits) >= parts.iter().map(|part| part.world_size).max().unwrap_or(0);
    let killed = sum(|digest| digest.killed) > 0;
    let finish = parts.iter().find_map(|part| part.digest.finish);
    let stopped_by = parts.iter().find_map(|part| part.digest.stop.as_ref());
    FoundEnding::Known(match (finish, stopped_by) {
        (_, Some(by)) if killed => {
            RunEnd::new(RunOutcome::Stopped, RunEnd::KILLED, format!("stopped by {by}: ranks were killed"))
        }
        _ if !ended => return FoundEnding::Unrecorded,
        (Some(FinishReason::StopValue), _) => {
            RunEnd::clean(RunOutcome::Succeeded, 0, "reached the stop value")
        }
        (Some(FinishReason::Budget), _) => {
            RunEnd::clean(RunOutcome::Succeeded, 0, "reached the target steps")
        }
        (_, Some(by)) => RunEnd::clean(RunOutcome::Stopped, 130, format!("stopped by {by}")),
        (Some(FinishReason::Stopped), None) => {
            RunEnd::clean(RunOutcome::Stopped, 130, "all ranks exited after a signal")
        }
        (None, None) => RunEnd::clean(RunOutcome::Succeeded, 0, "all ranks ended with exit code 0"),
    })
}

fn failure_text(host: &str, failure: &RankFailure) -> String {
    let exit = failure.exit.as_ref();
    let how = exit.map(|exit| exit.predicate()).unwrap_or_default();
    // A digest of an earlier build may have the last line of a rank that was killed.
    let text = exit.map_or(failure.text.as_str(), |exit| exit.message(&failure.text, &[]));
    let message = if text.is_empty() { String::new() } else { format!(": {text}") };
    format!("rank {} on {host} {how}{message}", failure.rank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::message::Counters;
    use rankdeck_types::exit::Exit;
    use rankdeck_types::ids::{NodeRank, Rank, RunId};

    /// One of two hosts with a rank each, after a run of 60 s.
    fn part(node: u32, digest: NodeDigest) -> RunEntry {
        RunEntry {
            run: RunId("r".into()),
            node_rank: NodeRank(node),
            host: ["a", "b"][node as usize].into(),
            state: HostRunState::Finished,
            generation: Generation(0),
            world_size: 2,
            ranks_alive: 0,
            pids: Vec::new(),
            socket: String::new(),
            started: 1000.0 + f64::from(node),
            name: "r".into(),
            run_dir: "/r".into(),
            nnodes: 2,
            hosts: vec!["a".into(), "b".into()],
            agent_pid: 0,
            digest: NodeDigest { exits: 1, proved: true, seconds: 60.0, ended: Some(1060.0), ..digest },
        }
    }

    fn both(digest: NodeDigest) -> RunSummary {
        let parts = [part(0, digest.clone()), part(1, digest)];
        RunSummary::from_digests(&parts.iter().collect::<Vec<_>>(), 9000.0)
    }

    #[test]
    fn ending_recorded_by_console_is_kept() {
        let ending = RunEnd::clean(RunOutcome::Succeeded, 0, "reached iters=3");
        let reported =
            NodeDigest { ending: Some(ending), stop: Some("console".into()), ..Default::default() };
        let mut parts = [part(0, NodeDigest::default()), part(1, reported)];
        let summary = RunSummary::from_digests(&parts.iter().collect::<Vec<_>>(), 9000.0);
        assert_eq!((summary.outcome_text().unwrap().as_str(), summary.clean), ("succeeded", Some(true)));
        assert_eq!((summary.reason.as_str(), summary.duration_s), ("reached iters=3", 60.0));
        assert_eq!((summary.started, summary.ended), (Some(1000.0), Some(1060.0)));
        // Not while something of it runs, and not the end of a generation that another one has followed.
        parts[0].state = HostRunState::Running;
        assert_eq!(RunSummary::from_digests(&parts.iter().collect::<Vec<_>>(), 9000.0).outcome, None);
        parts[0].state = HostRunState::Finished;
        parts[0].generation = Generation(1);
        let summary = RunSummary::from_digests(&parts.iter().collect::<Vec<_>>(), 9000.0);
        insta::assert_snapshot!("end_not_recorded", summary.reason);
    }

    #[test]
    fn ending_without_console_follows_ranks() {
        let mut reasons = Vec::new();
        let mut end = |digest| {
            let summary = both(digest);
            reasons.push(summary.reason.clone());
            (summary.outcome_text().unwrap(), summary.clean.unwrap())
        };
        let none = NodeDigest::default;
        assert_eq!(end(none()), ("succeeded".into(), true));
        let budget = NodeDigest { finish: Some(FinishReason::Budget), ..none() };
        assert_eq!(end(budget), ("succeeded".into(), true));
        let stop = NodeDigest { stop: Some("console".into()), finish: Some(FinishReason::Stopped), ..none() };
        assert_eq!(end(stop.clone()), ("stopped".into(), true));
        let killed = NodeDigest { killed: 1, finish: None, ..stop };
        assert_eq!(end(killed), ("stopped (137)".into(), false));
        let bad = NodeDigest { bad_exits: 1, stop: Some("lease".into()), ..none() };
        assert_eq!(end(bad), ("failed (1)".into(), false));
        insta::assert_snapshot!("endings_without_console", reasons.join("\n"));
    }

    #[test]
    fn earliest_failure_is_reported_and_run_fails() {
        let failure = |rank: u32, time: f64, text: &str| {
            let exit = Some(Exit::Code { code: 1 });
            let failure = RankFailure { rank: Rank(rank), time, exit, text: text.into(), usage: false };
            NodeDigest { failure: Some(failure), stop: Some("console".into()), ..NodeDigest::default() }
        };
        let parts =
            [part(0, failure(0, 1050.0, "connection lost")), part(1, failure(1, 1049.0, "ValueError: x"))];
        let summary = RunSummary::from_digests(&parts.iter().collect::<Vec<_>>(), 9000.0);
        insta::assert_snapshot!("earliest_failure", summary.first_failure.unwrap_or_default());
        assert_eq!((summary.outcome, summary.exit_code), (Some(RunOutcome::Failed), Some(1)));
        // A reported error alone does not make a rank fail.
        let reported = RankFailure { rank: Rank(0), time: 1.0, exit: None, text: "x".into(), usage: false };
        let summary = both(NodeDigest { failure: Some(reported), ..NodeDigest::default() });
        assert_eq!(summary.outcome, Some(RunOutcome::Succeeded));
    }

    /// Two hosts of a generation that failed at 1060 s, with a policy that waits for 5 s.
    fn failed_with_policy() -> [RunEntry; 2] {
        let exit = Some(Exit::Code { code: 1 });
        let failure = RankFailure { rank: Rank(0), time: 1059.0, exit, text: String::new(), usage: false };
        let failed = NodeDigest { failure: Some(failure), ..NodeDigest::default() };
        [part(0, failed), part(1, NodeDigest::default())].map(|part| RunEntry {
            agent_pid: 7,
            digest: NodeDigest { restart_wait_ms: Some(5_000), ..part.digest },
            ..part
        })
    }

    #[test]
    fn failed_generation_restarts_until_its_time_is_up() {
        let at = |parts: &[RunEntry], now| {
            let summary = RunSummary::from_digests(&parts.iter().collect::<Vec<_>>(), now);
            assert!(summary.first_failure.is_some());
            (summary.restarting, summary.outcome, summary.ended)
        };
        let over = (false, Some(RunOutcome::Failed), Some(1060.0));
        let parts = failed_with_policy();
        assert_eq!(at(&parts, 1064.0), (true, None, None));
        assert_eq!(at(&parts, 1066.0 + RESTART_S), over, "the console is gone");
        let changed = |change: fn(&mut RunEntry)| {
            let mut parts = failed_with_policy();
            parts.iter_mut().for_each(change);
            at(&parts, 1064.0)
        };
        assert_eq!(changed(|part| part.agent_pid = 0), over, "no agent waits");
        assert_eq!(changed(|part| part.digest.restart_wait_ms = None), over, "no policy");
        assert_eq!(changed(|part| part.digest.usage = true), over, "a mistake stays one");
        assert_eq!(changed(|part| part.digest.stop = Some("lease".into())), over);
    }

    #[test]
    fn recorded_end_of_a_policy_run_is_final() {
        let mut parts = failed_with_policy();
        parts[0].digest.ending = Some(RunEnd::new(RunOutcome::Failed, 1, "giving up"));
        assert!(!is_restarting(&parts.iter().collect::<Vec<_>>(), 1064.0));
        let mut parts = failed_with_policy();
        parts[0].digest.failure = None;
        assert!(!is_restarting(&parts.iter().collect::<Vec<_>>(), 1064.0), "all ranks ended well");
    }

    #[test]
    fn failed_rank_is_reported_while_others_run() {
        let mut parts = failed_with_policy();
        parts[1].state = HostRunState::Running;
        let summary = RunSummary::from_digests(&parts.iter().collect::<Vec<_>>(), 1064.0);
        assert_eq!((summary.outcome, summary.restarting), (None, false));
        assert!(summary.first_failure.is_some_and(|text| text.contains("rank 0 on a")));
    }

    #[test]
    fn excluded_host_is_no_member() {
        let mut parts = [part(0, NodeDigest::default()), part(1, NodeDigest::default())];
        parts[0].generation = Generation(1);
        let summary = RunSummary::from_digests(&parts.iter().collect::<Vec<_>>(), 9000.0);
        assert_eq!((summary.hosts.len(), summary.members), (2, vec!["a".to_owned()]));
        let summary = RunSummary::from_digests(&[&parts[0]], 9000.0);
        assert_eq!(summary.members.len(), 2, "a host that does not answer may have ranks");
    }

    #[test]
    fn killed_rank_is_not_explained_by_its_output() {
        let reason = |exit| {
            let text = "iteration 7".to_owned();
            let failure = RankFailure { rank: Rank(0), time: 1.0, exit: Some(exit), text, usage: false };
            both(NodeDigest { failure: Some(failure), ..NodeDigest::default() }).reason
        };
        assert!(reason(Exit::Code { code: 1 }).contains("iteration 7"));
        assert!(!reason(Exit::Signal { signal: 9, out_of_memory: false }).contains("iteration 7"));
    }

    #[test]
    fn lost_end_is_unrecorded_and_silent_host_leaves_it_open() {
        let mut parts = [part(0, NodeDigest::default()), part(1, NodeDigest::default())];
        parts[1].digest.exits = 0;
        let summary = RunSummary::from_digests(&parts.iter().collect::<Vec<_>>(), 9000.0);
        assert_eq!((summary.outcome, summary.exit_code, summary.unrecorded), (None, None, true));
        insta::assert_snapshot!("end_not_recorded", summary.reason);
        let summary = RunSummary::from_digests(&[&parts[0]], 9000.0);
        assert_eq!((summary.outcome, summary.unrecorded, summary.hosts.len()), (None, false, 2));
        assert_eq!(RunSummary::from_digests(&[], 0.0), RunSummary::default());
    }

    #[test]
    fn metrics_are_of_rank_0_on_any_host() {
        let totals = |train_iter, env_step| Some(Counters { train_iter, env_step, ..Counters::default() });
        let best = |mean| Some(Evaluation { return_mean: mean, ..Evaluation::default() });
        let old = NodeDigest {
            totals: totals(5, 50),
            last_return: Some(1.0),
            best: best(9.0),
            evals: 2,
            ..Default::default()
        };
        let new = NodeDigest {
            totals: totals(8, 80),
            last_return: Some(2.0),
            best: best(4.0),
            evals: 1,
            ..Default::default()
        };
        let parts = [part(0, old), part(1, new)];
        let summary = RunSummary::from_digests(&parts.iter().collect::<Vec<_>>(), 9000.0);
        assert_eq!(
            (summary.env_step, summary.train_iter, summary.last_return),
            (Some(80), Some(8), Some(2.0))
        );
        assert_eq!((summary.best.unwrap().return_mean, summary.evals), (9.0, 3));
    }

    #[test]
    fn running_run_lasts_until_now() {
        let mut entry = part(0, NodeDigest { since: Some(2000.0), ..NodeDigest::default() });
        entry.state = HostRunState::Running;
        assert_eq!(RunSummary::from_digests(&[&entry], 2030.0).duration_s, 90.0);
    }

    #[test]
    fn model_summary_has_progress_and_outcome() {
        let mut model = Model::default();
        model.run.started = Some(Timestamp(1_000));
        let mut latest = model::LatestTotals::default();
        latest.counters.env_step = 4096;
        model.latest = Some(latest);
        let running = RunSummary::from_model(&model, Timestamp(61_000));
        assert_eq!((running.outcome, running.env_step, running.duration_s), (None, Some(4096), 60.0));
        model.run.state = model::RunState::Over;
        model.run.outcome = Some(RunOutcome::Failed);
        model.run.exit_code = Some(1);
        model.run.reason = "rank 1 was killed".into();
        let over = RunSummary::from_model(&model, Timestamp(61_000));
        assert_eq!(over.outcome_text().as_deref(), Some("failed (1)"));
        assert_eq!(over.reason, model.run.reason);
    }
}
